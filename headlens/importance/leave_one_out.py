"""Leave one out: what the objective loses without each head, alone, exactly and for all heads.

What stands in for the head's context z_h says what is asked:

zero      nothing: asks for more than what the head does for an input, as its mean output goes, too
mean      E[z_h] over all real tokens: what stays when the head is removed and its mean kept in the output bias
resample  z_h of another example, the first token for the first, the last for the last, an inner one for an inner one
uniform   what the head gives if it attends to all visible keys alike: does its pattern matter? (Kovaleva et al. 2019)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from headlens.capture import capture
from headlens.errors import CorpusError, PlanError, UnsupportedModel
from headlens.importance.ablated import ROW_TOKENS, Fill, Intact, Runner, in_features, runner_of
from headlens.importance.inputs import TextBatch, padded_batches
from headlens.importance.objectives import Objective
from headlens.importance.result import Floats, Importance
from headlens.importance.units import Kind, Unit, plan_now, units_of
from headlens.records import LayerAttention
from headlens.surgery.fills import Means

Ablation = Literal["zero", "mean", "resample", "uniform"]
FillOf = Callable[[Intact], Sequence[Fill]]  # what stands in for the contexts of each layer

_MEANING = {
    "zero": "without the head (its output becomes 0)",
    "mean": "when the head always gives its mean output",
    "resample": "when the head gives what it gives for another text",
    "uniform": "when the head attends to all visible tokens alike",
}


def leave_one_out(
    network: PreTrainedModel,
    objective: Objective,
    *,
    ablation: Ablation = "zero",
    unit: Kind = "head",
    means: Means | None = None,
    seed: int = 0,
    row_tokens: int = ROW_TOKENS,
    say: Callable[[str], None] = lambda _what: None,
) -> Importance:
    """By how much the objective rises without each head, the mean over examples; takes about half a pass a head.

    Parameters
    ----------
    network
        What is run: no task head, one stack of layers, in eval mode. It is left as it was.
    ablation
        What stands in for the head, as above.
    unit
        "group" takes a key/value head out with all its query heads; each of them gets the value of the group.
    means
        Of "mean": E[z] of every head; None takes that over the objective's own texts.
    seed
        Of "resample": which other example.
    row_tokens
        How many tokens go through the layers at once, padding included.

    Raises
    ------
    UnsupportedModel
        Where W_O is in this family is not known, the network has several stacks, or its output is not finite.
    CorpusError
        "resample" with a single example.
    PlanError
        An ablation or a unit of another name.
    """
    if ablation not in get_args(Ablation):
        raise PlanError(f"The ablation is one of {', '.join(get_args(Ablation))}, got {ablation!r}.")
    units = units_of(network, unit)
    runner = runner_of(network, objective.batches[0].to(network.device))
    fills = fills_of(runner, objective, ablation, means, seed)
    rises = damages(runner, objective, units, fills, row_tokens=row_tokens, say=say)
    facts: dict[str, Any] = {"ablation": ablation, "unit": unit, "objective": objective.name}
    if ablation == "resample":
        facts["seed"] = seed
    return Importance.of_examples(
        f"loo_{ablation}",
        by_head(network, units, rises),
        unit=objective.unit,
        meaning=f"How much {objective.name.replace('_', ' ')} rises {_MEANING[ablation]}; larger matters more.",
        facts=facts,
    )


@torch.inference_mode()
def damages(
    runner: Runner,
    objective: Objective,
    units: Sequence[Unit],
    fills: FillOf,
    *,
    batches: Sequence[TextBatch] | None = None,
    row_tokens: int = ROW_TOKENS,
    in_bfloat16: bool = False,
    say: Callable[[str], None] = lambda _what: None,
) -> Floats:
    """By how much the objective rises without each unit, [unit, example], on `batches` (None: all of them).

    NaN for examples that are in none of the batches. `in_bfloat16`: the network runs so (autocast), and the objective
    as ever.
    """
    rises = np.full((len(units), objective.examples), np.nan)
    by_layer = defaultdict[int, list[int]](list)
    for place, unit in enumerate(units):
        by_layer[unit.layer].append(place)
    batches = objective.batches if batches is None else batches
    device, dtype = runner.network.device.type, runner.network.dtype
    for number, batch in enumerate(batches, start=1):
        say(f"leaving heads out, batch {number} of {len(batches)}")
        with torch.autocast(device, torch.bfloat16, enabled=in_bfloat16):
            intact = runner.intact(batch)
        before = _finite(objective.values(intact.hidden.to(dtype), intact.batch))
        fill, size = fills(intact), max(1, row_tokens // batch.input_ids.numel())
        for layer, places in by_layer.items():
            for some in _slices(places, size):
                with torch.autocast(device, torch.bfloat16, enabled=in_bfloat16):
                    hidden = runner.without(intact, layer, [units[place] for place in some], fill[layer])
                rows = torch.arange(len(batch), device=hidden.device).repeat(len(some))
                after = _finite(objective.values(hidden.to(dtype), intact.batch, rows)).view(len(some), -1)
                rises[np.ix_(np.array(some), batch.example.cpu().numpy())] = (after - before).double().cpu().numpy()
    return rises


def by_head(network: PreTrainedModel, units: Sequence[Unit], rises: Floats) -> Floats:
    """[example, layer, head] from [unit, example]; every head of a unit gets the unit's; NaN of heads not there."""
    plan = plan_now(network)
    found = np.full((rises.shape[1], plan.layers, plan.heads), np.nan)
    for unit, own in zip(units, rises, strict=True):
        found[:, unit.layer, list(unit.heads)] = own[:, None]
    return found


# --------------------------------------------------------------------------------------------- what stands in for heads


def fills_of(
    runner: Runner,
    objective: Objective,
    ablation: Ablation,
    means: Means | None = None,
    seed: int = 0,
) -> FillOf:
    """What stands in for the contexts of every layer, batch by batch."""
    if ablation == "zero" or ablation == "mean":
        constant = constant_fills(runner, objective, ablation, means)
        return lambda intact: constant
    if ablation == "uniform":
        return lambda intact: uniform_contexts(runner, intact.batch)
    partners = _Partners(runner, objective.batches, seed)
    return partners.contexts


def constant_fills(
    runner: Runner, objective: Objective, ablation: Literal["zero", "mean"], means: Means | None
) -> Sequence[Fill]:
    """What stands in for the contexts of every layer, the same for all texts."""
    if ablation == "zero":
        return [None] * len(runner.sites)
    return mean_contexts_of(runner, objective.batches) if means is None else as_contexts(runner, means)


@torch.inference_mode()
def mean_contexts_of(runner: Runner, batches: Sequence[TextBatch]) -> list[Float[Tensor, " context"]]:
    """E[z] over all real tokens, special ones included, in float64: for each layer [head * dim]."""
    sums: list[Tensor] = []
    tokens = 0
    for batch in batches:
        intact = runner.intact(batch)
        real = intact.batch.attention_mask.bool()
        parts = [context[real].double().sum(dim=0) for context in intact.context]
        sums = parts if not sums else [total + part for total, part in zip(sums, parts, strict=True)]
        tokens += int(real.sum())
    return [total / tokens for total in sums]


def as_contexts(runner: Runner, means: Means) -> list[Float[Tensor, " context"]]:
    """Means of the heads that the network has, layer by layer; PlanError where they are those of another network."""
    kept = plan_now(runner.network).kept
    found = [values[list(heads)].flatten() for values, heads in zip(means.values, kept, strict=False)]
    wanted = [in_features(projection) for projection in runner.projections]
    if len(found) != len(means.values) or [len(one) for one in found] != wanted:
        raise PlanError("The means are those of another network; take mean_contexts of this one.")
    return [one.to(runner.network.device) for one in found]


def uniform_contexts(runner: Runner, batch: TextBatch) -> list[Float[Tensor, "batch token context"]]:
    """The mean of the values of all visible keys for every query and head, layer by layer."""
    found = [torch.zeros(0)] * len(runner.sites)

    def observe(attention: LayerAttention) -> None:
        rows = slice(attention.query_start, attention.query_start + attention.probs.shape[2])
        mixed = _mean_of_values(attention).transpose(1, 2).flatten(2)  # [batch, query, head * dim]
        if not found[attention.layer].numel():
            found[attention.layer] = mixed.new_zeros(*batch.input_ids.shape, mixed.shape[-1])
        found[attention.layer][:, rows] = mixed

    with capture(runner.network, observe, way="fast"):
        runner.hidden(batch)
    return found


def _mean_of_values(attention: LayerAttention) -> Float[Tensor, "batch head query dim"]:
    if attention.scores is None:  # a key that one head gives no weight to can be rounding, that all give none not
        visible = (attention.probs > 0).any(dim=1, keepdim=True)
    else:
        visible = (attention.scores > torch.finfo(torch.float32).min / 2).any(dim=1, keepdim=True)
    weights = visible.to(attention.v.dtype)
    mixed = (weights @ attention.v) / weights.sum(dim=-1, keepdim=True).clamp_min(1)  # [batch, kv, query, dim]
    return mixed.repeat_interleave(attention.probs.shape[1] // max(1, attention.v.shape[1]), dim=1)


class _Partners:
    """For every example another one, drawn without one getting itself, and its contexts."""

    def __init__(self, runner: Runner, batches: Sequence[TextBatch], seed: int) -> None:
        self.runner = runner
        self.texts: dict[int, list[int]] = {}
        for batch in batches:
            rows = zip(batch.example.tolist(), batch.input_ids.tolist(), batch.lengths.tolist(), strict=True)
            self.texts |= {example: ids[:length] for example, ids, length in rows}
        if len(self.texts) < 2:
            raise CorpusError(
                "Resampling takes a head's output from another example, and there is only one; give more."
            )
        order = np.random.default_rng(seed).permutation(len(self.texts))
        self.partner = dict(zip(order.tolist(), np.roll(order, 1).tolist(), strict=True))  # one circle: nobody's own

    def contexts(self, intact: Intact) -> list[Float[Tensor, "batch token context"]]:
        others = [self.texts[self.partner[example]] for example in intact.batch.example.tolist()]
        batch = padded_batches(others, batch_tokens=len(others) * max(map(len, others)))[0]
        given = self.runner.intact(batch)
        row = torch.argsort(batch.example).to(intact.hidden.device)  # sorted by length there
        length = intact.batch.input_ids.shape[1]
        places = torch.stack(
            [_same_kind(length, int(own), len(other)) for own, other in zip(intact.batch.lengths, others, strict=True)]
        )
        return [context[row[:, None], places.to(row)] for context in given.context]


def _same_kind(tokens: int, length: int, other: int) -> Int[Tensor, " token"]:
    """For each token of a text of `length` the place of one of the same kind in a text of `other` tokens.

    The first for the first, the last for the last, inner ones in order and from the start again where they run out;
    padding gets the last.
    """
    inner = torch.arange(tokens) - 1
    places = 1 + inner % max(1, other - 2)
    places[0] = 0
    places[length - 1 :] = other - 1
    if length == 1:
        places[0] = 0
    return places.clamp_max(other - 1)


def _finite(values: Tensor) -> Tensor:
    if not values.isfinite().all():
        raise UnsupportedModel(
            "The model's output is not finite on these texts, so heads cannot be judged: run it in float32, and with "
            "batches of texts of one length (some models with sliding windows give NaN where there is padding)."
        )
    return values


def _slices(places: Sequence[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(places), size):
        yield list(places[start : start + size])
