"""What is taken out at a time: a head, or a key/value head with all query heads that share it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from transformers import PreTrainedModel

from headlens.errors import PlanError
from headlens.models import head_counts
from headlens.plan import HeadPlan, plan_of

Kind = Literal["head", "group"]


@dataclass(frozen=True)
class Unit:
    """Heads of one layer that go together."""

    layer: int
    heads: tuple[int, ...]  # in the numbers of the original model
    places: tuple[int, ...]  # where they stand in the layer as it is now


def plan_now(network: PreTrainedModel) -> HeadPlan:
    """The heads that the network has; all of them where it was never pruned."""
    counts = head_counts(network.config)
    return plan_of(network.config) or HeadPlan.full(counts["layers"], counts["heads"], counts["kv_heads"])


def units_of(network: PreTrainedModel, kind: Kind) -> list[Unit]:
    """All that can be taken out, layer by layer; PlanError for a unit of another name."""
    if kind not in get_args(Kind):
        raise PlanError(f"What is taken out at a time is one of {', '.join(get_args(Kind))}, got {kind!r}.")
    found = []
    for layer, groups in enumerate(plan_now(network).groups):
        place = 0
        for group in groups:
            places = tuple(range(place, place + len(group)))
            place += len(group)
            if kind == "group":
                found.append(Unit(layer, group, places))
            else:
                found += [Unit(layer, (head,), (at,)) for head, at in zip(group, places, strict=True)]
    return found
