"""Let the heads that are left stand in for those that are gone: W_O is fitted anew, layer by layer, in closed form."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from headlens.arch import is_transposed
from headlens.errors import CorpusError, PlanError, UnsupportedModel
from headlens.surgery.passes import TokenBatch
from headlens.surgery.present import Layer, full_plan, known_layout
from headlens.surgery.walk import Walk

RIDGE = 0.01


@torch.no_grad()
def refit(
    model: PreTrainedModel,
    original: PreTrainedModel,
    batches: Iterable[TokenBatch],
    *,
    layers: Collection[int] | None = None,
    ridge: float = RIDGE,
    say: Callable[[str], None] = lambda _what: None,
) -> PreTrainedModel:
    """A copy of a pruned model whose W_O and output biases bring its stream as near to the original's as they can.

    Layer by layer from below, each with the fitted ones below it, the squared distance over all real tokens between
    `stream + z W_O + b` of the pruned model and the original's stream after its attention is made least. (The stream
    is what attention is added to; of post-norm models it is taken before the norm.) Nothing is trained. A bias is
    fitted where the model has one. The model comes nearer to the original, which can still lower the score of a task.

    Both models are walked through block by block (`headlens.surgery.walk`): of the text two streams are kept, and sums
    of the size of W_O and its inputs squared.

    Parameters
    ----------
    layers
        Those to fit, by number; the others stay as they are. None is all of them.
    ridge
        How strongly W_O is held to what it is, as a share of the mean square of what goes into it. Without it, features
        that hardly vary would be fitted to noise.

    Raises
    ------
    PlanError
        `original` is no model of which `model` can be a part, no such layer, or a ridge that is no positive number.
    CorpusError
        No token at all.
    UnsupportedModel
        Layers that share their weights, or a family whose heads are not known.
    CaptureError
        A model in train mode.
    """
    if not (math.isfinite(ridge) and ridge > 0):
        raise PlanError(f"The ridge of a refit must be a positive number, got {ridge}.")
    _check_pair(model, original)
    chosen = _numbers(model, layers)
    fitted, batches = copy.deepcopy(model), list(batches)
    new, old = Walk(fitted, batches), Walk(original, batches)
    for number in range(chosen[-1] + 1 if chosen else 0):
        if number in chosen:
            say(f"fitting layer {number}")
            layer = new.layers[number]
            _set_weights(layer, *_solve(_moments(new, old), *_weights(layer), ridge))
        new.go_on()
        old.go_on()
    return fitted


def _check_pair(model: PreTrainedModel, original: PreTrainedModel) -> None:
    if known_layout(model).is_shared:
        raise UnsupportedModel(
            f"The layers of {type(model).__name__} share their weights, and a refit fits one layer after the other."
        )
    if full_plan(model) != full_plan(original) or model.config.hidden_size != original.config.hidden_size:
        raise PlanError(
            f"A refit needs the model that was pruned: this {type(original).__name__} has other layers or heads than "
            f"the {type(model).__name__} had."
        )


def _numbers(model: PreTrainedModel, layers: Collection[int] | None) -> list[int]:
    """Of the layers to fit, from below."""
    count = full_plan(model).layers
    chosen = sorted(range(count) if layers is None else {*layers})
    if unknown := [layer for layer in chosen if not 0 <= layer < count]:
        raise PlanError(f"{type(model).__name__} has layers 0 to {count - 1}, no layer {unknown[0]} to refit.")
    return chosen


# ------------------------------------------------------------------------------------------------------ least squares


@dataclass(frozen=True, eq=False)
class _Moments:
    """Sums over tokens of products of features [z, 1] with each other and with what W_O and b should make of them."""

    features: Float[Tensor, "feature feature"]
    targets: Float[Tensor, "feature hidden"]


def _solve(
    moments: _Moments, weight: Float[Tensor, "inputs hidden"], bias: Float[Tensor, " hidden"] | None, ridge: float
) -> tuple[Float[Tensor, "inputs hidden"], Float[Tensor, " hidden"] | None]:
    """W_O and b of least squares, held to the present W_O; b is free. Without b, it is as if all were centred."""
    tokens = moments.features[-1, -1]
    square, target = moments.features[:-1, :-1], moments.targets[:-1]
    mean, mean_target = moments.features[-1, :-1] / tokens, moments.targets[-1] / tokens
    if bias is not None:
        square = square - tokens * torch.outer(mean, mean)
        target = target - tokens * torch.outer(mean, mean_target)
    if len(weight):
        held = (ridge * square.diagonal().mean()).clamp_min(1e-100)  # where all inputs are 0, weights stay as they are
        weight = torch.linalg.solve(square + held * torch.eye(len(square)).to(square), target + held * weight)
    return weight, None if bias is None else mean_target - mean @ weight


def _moments(fitted: Walk, original: Walk) -> _Moments:
    """Of the attention layer that comes next in both walks."""
    layer = fitted.layers[fitted.at]
    size, hidden, device = len(layer.heads) * layer.dim + 1, len(_weights(layer)[0].T), layer.out.weight.device
    features = torch.zeros(size, size, dtype=torch.float64, device=device)
    targets = torch.zeros(size, hidden, dtype=torch.float64, device=device)
    for new, old in zip(fitted.reaches(), original.reaches(), strict=True):
        inputs = torch.cat([new.context, new.context.new_ones(len(new.context), 1)], dim=-1)
        wanted = (old.stream + old.output).to(inputs) - new.stream
        features += inputs.T @ inputs
        targets += inputs.T @ wanted
    if features[-1, -1] == 0:
        raise CorpusError("A refit needs text, and there is not one token of it.")
    return _Moments(features, targets)


# ------------------------------------------------------------------------------------------------------------- weights


def _weights(layer: Layer) -> tuple[Float[Tensor, "inputs hidden"], Float[Tensor, " hidden"] | None]:
    weight = layer.out.weight if is_transposed(layer.out) else layer.out.weight.T
    return weight.double(), None if layer.out.bias is None else layer.out.bias.double()


def _set_weights(layer: Layer, weight: Float[Tensor, "inputs hidden"], bias: Float[Tensor, " hidden"] | None) -> None:
    layer.out.weight.copy_(weight if is_transposed(layer.out) else weight.T)
    if bias is not None:
        layer.out.bias.copy_(bias)
