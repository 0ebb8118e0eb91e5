"""The weights of an attention layer, head by head, in float64: read from a model, and written into one.

Every family keeps the same four matrices and their biases in its own way: apart or fused, by head or not, transposed.
What converts key/value heads sees them in one form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from headlens.arch import is_transposed
from headlens.errors import PlanError, UnsupportedModel
from headlens.plan import Groups
from headlens.surgery.masked import MASKED_ENTRY
from headlens.surgery.present import Layer, known_layout, layers_of, present_plan
from headlens.surgery.shapes import Layout, family_of, projection_of

# Families whose queries and keys meet as they are projected, but for a rotation by their positions
READABLE = (
    *("bert", "roberta", "xlm-roberta", "camembert", "electra", "distilbert"),
    *("gpt2", "opt", "gpt_neox", "llama", "mistral", "qwen2"),
)
_WHY_NOT = {
    "qwen3": "it normalises queries and keys after their projections, so that merged weights are not merged keys",
    "albert": "its layers share one set of weights",
    "t5": "it adds a bias of every head to its scores, which no shared head can have",
}


@dataclass(frozen=True)
class Rotary:
    """Which entries of queries and keys turn with the position; those behind the first `2 * pairs` do not."""

    pairs: int
    interleaved: bool = False  # False: entry i is paired with entry i + pairs; True: with its neighbour


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """One attention layer: `q_h = x @ q[h].T + q_bias[h]`, keys and values alike, `out = sum_h z_h @ o[h] + o_bias`.

    `groups` says which query heads (places in `q` and `o`) use key/value head 0, 1, ...; they stand in any order.
    A model has them in the order of the groups: they are put into it when the weights are written.
    """

    q: Float[Tensor, "head dim hidden"]
    k: Float[Tensor, "kv dim hidden"]
    v: Float[Tensor, "kv dim hidden"]
    o: Float[Tensor, "head dim hidden"]
    q_bias: Float[Tensor, "head dim"] | None
    k_bias: Float[Tensor, "kv dim"] | None
    v_bias: Float[Tensor, "kv dim"] | None
    o_bias: Float[Tensor, " hidden"] | None
    groups: Groups
    rotary: Rotary | None  # None: positions are not in the keys
    scaling: float  # of the products of queries and keys

    def __post_init__(self) -> None:
        heads, kv_heads = len(self.q), len(self.k)
        if sorted(self.order) != list(range(heads)) or len(self.groups) != kv_heads:
            raise PlanError(
                f"The groups of a layer must hold each of its {heads} heads once, one group for each of its {kv_heads} "
                f"key/value heads; got {self.groups}."
            )
        sizes = sorted({len(group) for group in self.groups})
        if len(sizes) > 1 or 0 in sizes:
            raise PlanError(
                f"The groups of a layer must be of one size, got sizes {sizes}: grouped attention has as many query "
                f"heads on every key/value head."
            )

    @property
    def order(self) -> list[int]:
        """The query heads as a model holds them."""
        return list(chain.from_iterable(self.groups))


def check_readable(model: PreTrainedModel) -> None:
    """UnsupportedModel where `read_layer` cannot tell the key/value heads of a model, or they cannot be shared."""
    family = family_of(model)
    if family not in READABLE:
        why = _WHY_NOT.get(family, "how its queries meet its keys is not known here")
        raise UnsupportedModel(
            f"Key/value heads of {family!r} cannot be converted: {why}. They can be of {', '.join(READABLE)}."
        )
    if getattr(model.config, MASKED_ENTRY, None) is not None:
        raise UnsupportedModel(
            "The heads of a masked twin are zeroed and would come back; convert the model that it was made from, or "
            "what was pruned without --masked."
        )
    if getattr(model.config, "add_cross_attention", False):
        raise UnsupportedModel(
            f"{type(model).__name__} has cross-attention, which is not converted; choose a model with self-attention "
            f"only."
        )


@torch.no_grad()
def read_layer(model: PreTrainedModel, layer: int) -> LayerWeights:
    """The weights of layer `layer` as copies in float64 on the CPU; of a pruned model those of the heads it has.

    A layer that has lost all its heads has tensors of no heads, and no groups.

    Raises
    ------
    UnsupportedModel
        A family that cannot be converted, or weights that are quantized, adapted, not in memory or not finite.
    PlanError
        No such layer.
    """
    check_readable(model)
    layers = layers_of(model)
    if not 0 <= layer < len(layers):
        raise PlanError(f"{type(model).__name__} has {len(layers)} layers, no layer {layer}.")
    return _read(model, layers[layer], present_plan(model).groups[layer])


@torch.no_grad()
def read_layers(model: PreTrainedModel) -> list[LayerWeights]:
    """`read_layer` of every layer."""
    check_readable(model)
    layers = zip(layers_of(model), present_plan(model).groups, strict=True)
    return [_read(model, layer, groups) for layer, groups in layers]


@torch.no_grad()
def write_layers(model: PreTrainedModel, layers: Sequence[LayerWeights]) -> None:
    """Put weights into a model, in place, that has as many query and key/value heads in every layer as they have.

    Query heads are put in the order of their groups. A bias that is None is written as zeros where the model has one.

    Raises
    ------
    PlanError
        Another number of layers or heads than the model has, other sizes, or a bias that it has no place for.
    """
    check_readable(model)
    found = layers_of(model)
    if len(found) != len(layers):
        raise PlanError(f"{type(model).__name__} has {len(found)} layers, got weights for {len(layers)}.")
    for layer, weights in zip(found, layers, strict=True):
        _write(model, layer, weights)


# ------------------------------------------------------------------------------------------------------------- reading


def _read(model: PreTrainedModel, layer: Layer, groups: Groups) -> LayerWeights:
    layout, counts = known_layout(model), (len(layer.heads), len(groups))
    weights, biases = [], []
    for part in layout.parts:
        projection: Any = _in_memory(model, layer, part.path)
        for rows in part.places(*counts, layer.dim):
            weights.append(_copy(_by_output(projection)[rows.to(projection.weight.device)]))
            biases.append(None if projection.bias is None else _copy(projection.bias[rows.to(projection.bias.device)]))
    out = _in_memory(model, layer, layout.out)
    o = _copy(_by_output(out).T).unflatten(0, (counts[0], layer.dim))
    o_bias = None if out.bias is None else _copy(out.bias)
    _check_finite(model, layer, [*weights, *biases, o, o_bias])
    places = {head: place for place, head in enumerate(layer.heads)}
    (q, k, v), (q_bias, k_bias, v_bias) = weights, biases
    in_places = tuple(tuple(places[head] for head in group) for group in groups)
    return LayerWeights(
        q, k, v, o, q_bias, k_bias, v_bias, o_bias, in_places, _rotary(model), float(layer.attention.scaling)
    )


def _rotary(model: PreTrainedModel) -> Rotary | None:
    turning: Any = getattr(model.base_model, "rotary_emb", None)
    return None if turning is None else Rotary(len(turning.inv_freq))


def _in_memory(model: PreTrainedModel, layer: Layer, path: str) -> Any:
    projection = _projection(model, layer, path)
    if projection.weight.is_meta:
        raise UnsupportedModel(
            f"The weights of layer {layer.number} are not in memory: load the model without offloading it."
        )
    return projection


def _projection(model: PreTrainedModel, layer: Layer, path: str) -> Any:
    try:
        return projection_of(model, layer.name, path)
    except ValueError as error:
        raise UnsupportedModel(str(error)) from None


def _by_output(projection: Any) -> Tensor:
    """Its weight as [out, in]; a view of it."""
    weight: Tensor = projection.weight
    return weight.T if is_transposed(projection) else weight


def _copy(weight: Tensor) -> Tensor:
    return weight.detach().to(device="cpu", dtype=torch.float64, copy=True).contiguous()


def _check_finite(model: PreTrainedModel, layer: Layer, parts: Sequence[Tensor | None]) -> None:
    if not all(part.isfinite().all() for part in parts if part is not None):
        raise UnsupportedModel(
            f"Layer {layer.number} of {type(model).__name__} has weights that are no finite numbers; its file is "
            f"damaged or its training diverged: take another checkpoint."
        )


# ------------------------------------------------------------------------------------------------------------- writing


def _write(model: PreTrainedModel, layer: Layer, weights: LayerWeights) -> None:
    layout, counts = known_layout(model), (len(weights.q), len(weights.k))
    _check_fits(model, layout, layer, weights)
    order = weights.order
    parts = iter(
        [
            (weights.q[order], None if weights.q_bias is None else weights.q_bias[order]),
            (weights.k, weights.k_bias),
            (weights.v, weights.v_bias),
        ]
    )
    for part in layout.parts:
        projection = _projection(model, layer, part.path)
        for rows in part.places(*counts, layer.dim):
            weight, bias = next(parts)
            _by_output(projection)[rows.flatten()] = weight.flatten(0, 1).to(projection.weight)
            _write_bias(layer, projection, rows.flatten(), None if bias is None else bias.flatten())
    out = _projection(model, layer, layout.out)
    if order:  # of no heads, the target may be of another kind
        _by_output(out).copy_(weights.o[order].flatten(0, 1).T)
    _write_bias(layer, out, torch.arange(weights.o.shape[-1]), weights.o_bias)


def _write_bias(layer: Layer, projection: Any, rows: Int[Tensor, " row"], bias: Float[Tensor, " row"] | None) -> None:
    if projection.bias is None:
        if bias is not None:
            raise PlanError(f"Layer {layer.number} has a bias to be written, and the model has no place for it.")
        return
    projection.bias[rows.to(projection.bias.device)] = 0.0 if bias is None else bias.to(projection.bias)


def _check_fits(model: PreTrainedModel, layout: Layout, layer: Layer, weights: LayerWeights) -> None:
    present = present_plan(model)
    has = (len(layer.heads), len(present.groups[layer.number]), layer.dim)
    given = (len(weights.q), len(weights.k), weights.q.shape[1])
    if has != given:
        raise PlanError(
            f"Layer {layer.number} of {type(model).__name__} has {has[0]} heads and {has[1]} key/value heads of "
            f"{has[2]} dimensions, and the weights are of {given[0]}, {given[1]} and {given[2]}."
        )
