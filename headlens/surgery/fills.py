"""What removed heads go on giving: the mean of their outputs over text, folded into the bias of W_O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from headlens.errors import CorpusError, PlanError
from headlens.plan import HeadPlan
from headlens.scores import head_name
from headlens.surgery.passes import TokenBatch, projections_seen, real_tokens, run
from headlens.surgery.present import Layer, full_plan, head_rows, layers_of


@dataclass(frozen=True, eq=False)
class Means:
    """The mean output of every head before W_O, over the real tokens of some text."""

    values: list[Float[Tensor, "head dim"]]  # by layer; float64, heads of the original model, NaN for those not there
    tokens: int  # how many were averaged


@torch.no_grad()
def mean_contexts(model: PreTrainedModel, batches: Iterable[TokenBatch]) -> Means:
    """Mean outputs of all heads over all tokens that are no padding, special ones included.

    Only sums are kept, so a corpus may be of any length. Of an encoder-decoder model the encoder is run.

    Raises
    ------
    CorpusError
        No token at all.
    CaptureError
        The model is in train mode, where dropout would be averaged as well.
    """
    layers, original = layers_of(model), full_plan(model)
    sums = [torch.zeros(len(layer.heads) * layer.dim, dtype=torch.float64) for layer in layers]
    tokens = 0
    for batch in batches:
        mask = real_tokens(model, batch)

        def add(layer: Layer, context: Tensor, output: Tensor, mask: Tensor = mask) -> None:
            sums[layer.number] += context[mask].double().sum(dim=0).cpu()

        with projections_seen(layers, add):
            run(model, batch)
        tokens += int(mask.sum())
    if not tokens:
        raise CorpusError("The mean output of a head needs text, and there is not one token of it.")
    values = [_by_head(layer, sums[layer.number] / tokens, original.heads) for layer in layers]
    return Means(values, tokens)


def _by_head(layer: Layer, means: Float[Tensor, " features"], heads: int) -> Float[Tensor, "head dim"]:
    found = torch.full((heads, layer.dim), torch.nan, dtype=torch.float64)
    found[list(layer.heads)] = means.reshape(len(layer.heads), layer.dim)
    return found


def folded(fill: Means, layers: Sequence[Layer], plan: HeadPlan) -> list[Float[Tensor, " hidden"]]:
    """What the heads that a plan takes out give on average, all of a layer together, in float64.

    Raises
    ------
    PlanError
        Means of another model, or none of a head that is taken out.
    """
    found, wanted = ([tuple(means.shape) for means in fill.values], [(plan.heads, layer.dim) for layer in layers])
    if found != wanted:
        raise PlanError(
            f"The means are of {_sizes(found)}, and the model has {_sizes(wanted)}: take mean_contexts of this model."
        )
    return [_folded(layer, fill.values[layer.number], plan.kept[layer.number]) for layer in layers]


def add_to_biases(layers: Sequence[Layer], added: Sequence[Float[Tensor, " hidden"]]) -> None:
    """Change the output biases of layers in place; where several are one module, by the average of theirs."""
    by_module: dict[Any, list[Tensor]] = {}
    for layer, one in zip(layers, added, strict=True):
        by_module.setdefault(layer.out, []).append(one)
    for out, each in by_module.items():
        out.bias.copy_(out.bias.double() + torch.stack(each).mean(dim=0).to(out.bias.device))


def _folded(layer: Layer, means: Float[Tensor, "head dim"], kept: tuple[int, ...]) -> Float[Tensor, " hidden"]:
    places = [place for place, head in enumerate(layer.heads) if head not in kept]
    gone = means[[layer.heads[place] for place in places]]
    for place, mean in zip(places, gone, strict=True):
        if not mean.isfinite().all():
            raise PlanError(
                f"There is no mean of {head_name(layer.number, layer.heads[place])}: take mean_contexts of a model "
                f"that has it."
            )
    rows = head_rows(layer)[places]
    return torch.einsum("hd,hdo->o", gone.to(rows.device), rows)


def _sizes(shapes: Sequence[tuple[int, ...]]) -> str:
    heads, dim = shapes[0] if shapes else (0, 0)
    return f"{len(shapes)} layers of {heads} heads of {dim} numbers"
