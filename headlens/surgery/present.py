"""The heads that a model has now, in the numbers of the original."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from headlens.arch import is_transposed
from headlens.errors import PlanError, UnsupportedModel
from headlens.plan import HeadPlan, plan_of
from headlens.scores import head_name
from headlens.surgery.shapes import Layout, attention_layers, counts_of, layout_of, projection_of


@dataclass(frozen=True, eq=False)
class Layer:
    """One self-attention layer of a model: its modules, and which heads it has."""

    number: int
    name: str  # dotted path of the attention module
    attention: Any
    out: Any  # the projection that the outputs of its heads go through
    heads: tuple[int, ...]  # in the numbers of the original, in the order of its weights
    dim: int


def full_plan(model: PreTrainedModel) -> HeadPlan:
    """All heads that the model has, or had before it was pruned; of an encoder-decoder model, those of the encoder.

    Raises
    ------
    UnsupportedModel
        A family whose heads cannot be taken out, or layers of different numbers of heads for no known reason.
    """
    found = plan_of(model.config)
    if found is not None:
        return HeadPlan.full(found.layers, found.heads, found.kv_heads)
    layout, counts = known_layout(model), _counts(model)
    if len(set(counts)) != 1:
        raise UnsupportedModel(
            f"The layers of {type(model).__name__} have different numbers of heads ({_listed(counts)}), and its config "
            f"has no plan that says which ones they are: take the model as it was loaded."
        )
    heads, kv_heads = counts[0]
    assert layout.is_grouped or heads == kv_heads
    return HeadPlan.full(len(counts), heads, kv_heads)


def present_plan(model: PreTrainedModel) -> HeadPlan:
    """The heads that the model has now; errors as those of `full_plan`."""
    found = plan_of(model.config)
    if found is None:
        return full_plan(model)
    wanted = [(len(kept), len(groups)) for kept, groups in zip(found.kept, found.groups, strict=True)]
    counts = _counts(model)
    if wanted != counts:
        raise UnsupportedModel(
            f"The plan in the config of {type(model).__name__} leaves it {_listed(wanted)} heads (and key/value heads) "
            f"a layer, and its weights are of {_listed(counts)}: take the model as it was loaded."
        )
    return found


def known_layout(model: PreTrainedModel) -> Layout:
    """Where the family keeps its heads; UnsupportedModel where that is not known."""
    try:
        return layout_of(model)
    except ValueError as error:
        raise UnsupportedModel(str(error)) from None


def _counts(model: PreTrainedModel) -> list[tuple[int, int]]:
    """Query heads and key/value heads of every layer; UnsupportedModel where they cannot be read off."""
    try:
        return counts_of(model)
    except ValueError as error:
        raise UnsupportedModel(str(error)) from None


def layers_of(model: PreTrainedModel) -> list[Layer]:
    """The self-attention layers, of two stacks those of the encoder."""
    layout, plan = known_layout(model), present_plan(model)
    return [
        Layer(number, name, attention, projection_of(model, name, layout.out), kept, layout.head_dim(attention))
        for number, ((name, attention), kept) in enumerate(zip(attention_layers(model), plan.kept, strict=True))
    ]


def check_same_model(model: PreTrainedModel, present: HeadPlan, plan: HeadPlan) -> None:
    """PlanError where a plan is not for this model, for heads that are gone, or unlike for layers that are one."""
    wanted, found = ((one.layers, one.heads, one.kv_heads) for one in (plan, present))
    if wanted != found:
        raise PlanError(
            f"The plan is for {_sizes(*wanted)}, and {type(model).__name__} has {_sizes(*found)}: make a plan for this "
            f"model."
        )
    for layer, kept in enumerate(plan.kept):
        gone = [head for head in kept if head not in present.kept[layer]]
        if gone:
            raise PlanError(
                f"{head_name(layer, gone[0])} has been taken out of this model already: take a part of what is left, "
                f"or start from the original model."
            )
    first: dict[str, int] = {}
    for layer, (name, _) in enumerate(attention_layers(model)):
        other = first.setdefault(name, layer)
        if plan.groups[layer] != plan.groups[other]:
            raise PlanError(
                f"Layers {other} and {layer} of {type(model).__name__} share their weights: a plan must leave both the "
                f"same heads."
            )


def head_rows(layer: Layer) -> Float[Tensor, "head dim hidden"]:
    """What W_O makes of every head that the layer has, in float64: head h adds `context_h @ rows[h]` to the stream."""
    weight = layer.out.weight.detach()
    rows = weight if is_transposed(layer.out) else weight.T  # [in, out]
    return rows.double().reshape(len(layer.heads), layer.dim, rows.shape[-1])


def configs_above(model: PreTrainedModel, name: str) -> list[Any]:
    """The configs of the models that hold a module; a stack inside a model may have one of its own."""
    holders = [
        part
        for path, part in model.named_modules()
        if isinstance(part, PreTrainedModel) and (not path or name.startswith(f"{path}."))
    ]
    return list({id(part.config): part.config for part in holders}.values())


def _sizes(layers: int, heads: int, kv_heads: int) -> str:
    return f"{layers} layers of {heads} heads and {kv_heads} key/value heads"


def _listed(counts: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{heads}" if heads == kv_heads else f"{heads}/{kv_heads}" for heads, kv_heads in counts)
