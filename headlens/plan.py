"""Which heads of a model stay, and which of them share a key/value head. No torch here.

Heads keep the numbers that they have in the original model, also after others are gone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from headlens.errors import OutputError, PlanError
from headlens.files import atomic_write
from headlens.scores import head_name

SCHEMA_VERSION = "headlens.plan/1"
FILE = "plan.json"
CONFIG_ENTRY = "headlens_plan"  # of a transformers config: the plan of a pruned model as a dict

Head = tuple[int, int]  # layer and head
Groups = tuple[tuple[int, ...], ...]  # of one layer: query heads by key/value head


@dataclass(frozen=True)
class HeadPlan:
    """`groups[layer][group]` are the query heads that share one key/value head; a head in no group is removed.

    With one head a group it is plain multi-head attention; a layer without groups has lost all its heads. Within a
    layer the groups, and the heads of a group, stand in the order in which the checkpoint holds them.
    """

    heads: int  # query heads of a layer of the original model
    kv_heads: int  # key/value heads of a layer of the original model
    groups: tuple[Groups, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(tuple(tuple(group) for group in layer) for layer in self.groups))
        if self.heads < 1 or self.kv_heads < 1 or self.heads % self.kv_heads or not self.groups:
            raise PlanError(
                f"A plan is for at least one layer, and its heads divide evenly among key/value heads; got "
                f"{len(self.groups)} layers of {self.heads} heads and {self.kv_heads} key/value heads."
            )
        for layer, groups in enumerate(self.groups):
            self._check_layer(layer, groups)

    def _check_layer(self, layer: int, groups: Groups) -> None:
        named = [head for group in groups for head in group]
        for head in named:
            if not 0 <= head < self.heads:
                raise PlanError(f"The model has {self.heads} heads a layer, no {head_name(layer, head)}.")
            if named.count(head) > 1:
                raise PlanError(f"{head_name(layer, head)} stands in the plan more than once.")
        if not all(groups):
            raise PlanError(f"Layer {layer} has an empty group; leave it out: its key/value head goes, too.")

    @classmethod
    def full(cls, layers: int, heads: int, kv_heads: int | None = None) -> HeadPlan:
        """The model as it is."""
        kv_heads = heads if kv_heads is None else kv_heads
        share = heads // kv_heads
        return cls(
            heads, kv_heads, (tuple(tuple(range(kv * share, (kv + 1) * share)) for kv in range(kv_heads)),) * layers
        )

    @property
    def layers(self) -> int:
        return len(self.groups)

    @cached_property
    def kept(self) -> tuple[tuple[int, ...], ...]:
        """Query heads of every layer, in the order in which the checkpoint holds them."""
        return tuple(tuple(head for group in layer for head in group) for layer in self.groups)

    @property
    def removed(self) -> tuple[Head, ...]:
        return tuple(
            (layer, head) for layer, kept in enumerate(self.kept) for head in range(self.heads) if head not in kept
        )

    @property
    def n_kept(self) -> int:
        return sum(map(len, self.kept))

    @property
    def is_grouped(self) -> bool:
        """Whether heads share keys and values in any layer."""
        return any(len(group) > 1 for groups in self.groups for group in groups)

    @property
    def merges(self) -> bool:
        """Whether heads share a key/value head that had different ones in the original model."""
        share = self.heads // self.kv_heads
        return any(len({head // share for head in group}) > 1 for groups in self.groups for group in groups)

    def layers_that_share_otherwise(self, original: HeadPlan) -> list[int]:
        """Layers whose heads share keys and values with others than they did; heads that are gone are no difference,
        nor is the order of groups and heads."""
        before = original.without(set(original) - set(self))
        return [
            layer
            for layer, (own, was) in enumerate(zip(self.groups, before.groups, strict=True))
            if {frozenset(group) for group in own} != {frozenset(group) for group in was}
        ]

    @property
    def is_full(self) -> bool:
        return self == HeadPlan.full(self.layers, self.heads, self.kv_heads)

    @property
    def is_uniform(self) -> bool:
        """Every layer has as many groups of as many heads as every other one, so that one config can tell of all."""
        return len({tuple(map(len, layer)) for layer in self.groups}) == 1 and self.is_even

    @property
    def is_even(self) -> bool:
        """The groups of a layer are of one size, as grouped-query attention needs it."""
        return all(len({*map(len, layer)}) <= 1 for layer in self.groups)

    def __iter__(self) -> Iterator[Head]:
        """Heads that stay."""
        for layer, kept in enumerate(self.kept):
            yield from ((layer, head) for head in sorted(kept))

    def without(self, heads: Iterable[Head]) -> HeadPlan:
        """The same with these heads removed; a group that loses all its heads goes, too."""
        off = set(heads)
        for layer, head in off:
            if not (0 <= layer < self.layers and 0 <= head < self.heads):
                raise PlanError(
                    f"The model has {self.layers} layers of {self.heads} heads, no {head_name(layer, head)}."
                )
        return HeadPlan(
            self.heads,
            self.kv_heads,
            tuple(
                tuple(left for group in layer if (left := tuple(head for head in group if (number, head) not in off)))
                for number, layer in enumerate(self.groups)
            ),
        )

    @property
    def apart(self) -> HeadPlan:
        """The same heads, none of them sharing keys and values with another."""
        return HeadPlan(self.heads, self.kv_heads, tuple(tuple((head,) for head in layer) for layer in self.kept))

    def __str__(self) -> str:
        kept = f"{self.n_kept} of {self.layers * self.heads} heads kept"
        shared = " ".join(str(len(groups)) for groups in self.groups)
        return f"{kept}, {shared} key/value heads by layer" if self.is_grouped else kept

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA_VERSION,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "groups": [[list(group) for group in layer] for layer in self.groups],
        }

    @classmethod
    def from_dict(cls, found: object) -> HeadPlan:
        """What `to_dict` gave; PlanError on anything else."""
        if not isinstance(found, dict) or found.get("schema") != SCHEMA_VERSION:
            raise PlanError(f"Not a plan of heads of the schema {SCHEMA_VERSION}: {found!r:.80}.")
        heads, kv_heads, groups = (found.get(name) for name in ("heads", "kv_heads", "groups"))
        if type(heads) is not int or type(kv_heads) is not int or not _is_nested(groups):
            raise PlanError(
                "A plan gives heads and kv_heads as whole numbers and groups as lists of lists of lists of heads; "
                f"got {found!r:.80}."
            )
        assert isinstance(groups, list)
        return cls(heads, kv_heads, tuple(tuple(tuple(group) for group in layer) for layer in groups))

    def save(self, path: str | os.PathLike[str]) -> None:
        text = json.dumps(self.to_dict()) + "\n"
        atomic_write(path, lambda file: file.write_text(text, encoding="utf-8"))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> HeadPlan:
        """A file that `save` wrote, or the folder with plan.json; PlanError says what is wrong with it."""
        file = Path(path) / FILE if Path(path).is_dir() else Path(path)
        try:
            return cls.from_dict(json.loads(file.read_text(encoding="utf-8")))
        except OSError as reason:
            raise OutputError(
                f"{file} cannot be read ({reason.strerror}); give a plan.json that headlens wrote."
            ) from None
        except (ValueError, RecursionError) as reason:
            raise PlanError(f"{file} is not JSON: {reason}.") from None
        except PlanError as reason:
            raise PlanError(f"{file}: {reason}") from None


def plan_of(config: Any) -> HeadPlan | None:
    """The plan that a model was pruned by, from its config; None of a model that never was."""
    found = getattr(config, CONFIG_ENTRY, None)
    return None if found is None else HeadPlan.from_dict(found)


def _is_nested(groups: object) -> bool:
    return isinstance(groups, list) and all(
        isinstance(layer, list)
        and all(isinstance(group, list) and all(type(head) is int for head in group) for group in layer)
        for layer in groups
    )
