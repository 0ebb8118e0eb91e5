"""Take heads out of a model: what is left computes what the whole model computes with the others silenced."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headlens.arch import is_transposed
from headlens.errors import PlanError, UnsupportedModel
from headlens.plan import CONFIG_ENTRY, Groups, HeadPlan
from headlens.scores import head_name
from headlens.surgery.fills import Means, add_to_biases, folded
from headlens.surgery.present import Layer, check_same_model, configs_above, known_layout, layers_of, present_plan
from headlens.surgery.shapes import Layout, attention_layers, family_of, projection_of, resize, rows_of


@torch.no_grad()
def apply_plan(model: PreTrainedModel, plan: HeadPlan, *, fill: Means | None = None) -> PreTrainedModel:
    """A copy of the model that has the heads of `plan` and no others; the model itself is left as it is.

    The copy is of the same class, and its config is that of the model with one more entry, the plan. A layer that loses
    all its heads keeps the bias of its output projection. Key/value heads go with the last of their query heads; where
    a plan gives query heads of one group key/value heads of their own, these are copies. Of an encoder-decoder model
    the encoder is pruned.

    Parameters
    ----------
    plan
        In the numbers of the original model, also when `model` is pruned already: then a part of what it has left.
    fill
        None: removed heads give nothing, as if their output were zero. Otherwise they go on giving what they give on
        average: `mean_h @ W_O,h` is added to the bias of the output projection, and a bias is made where there is none.
        Layers that share their weights share the bias too, and the average over them is added.

    Raises
    ------
    PlanError
        A plan for another model, for heads that are gone, or one that the model's family cannot express; the message
        says what it can.
    UnsupportedModel
        A family whose heads cannot be taken out, or weights that are quantized, adapted or not in memory.
    """
    layout, present, layers = known_layout(model), present_plan(model), layers_of(model)
    plan = _fitted(model, present, plan)
    added = None if fill is None else folded(fill, layers, plan)
    _check_in_memory(model, layout, layers)
    pruned = copy.deepcopy(model)
    resize(pruned, *_counts(plan), output_bias=fill is not None)
    has_new_bias = fill is not None and any(layer.out.bias is None for layer in layers)
    for config in configs_above(pruned, layers[0].name):
        _tell(config, plan, has_new_bias)
    for layer, old, new in zip(layers, present.groups, plan.groups, strict=True):
        _copy_weights(layout, model, pruned, layer, old, new)
    if added is not None:
        add_to_biases(layers_of(pruned), added)
    return pruned


# ------------------------------------------------------------------------------------------------- what can be done


def _fitted(model: PreTrainedModel, present: HeadPlan, plan: HeadPlan) -> HeadPlan:
    """The plan, with groups that the model does not share any more taken apart; PlanError where it does not fit."""
    check_same_model(model, present, plan)
    groups = tuple(
        tuple(part for group in wanted for part in _fitted_group(present, layer, group))
        for layer, wanted in enumerate(plan.groups)
    )
    for layer, fitted in enumerate(groups):
        sizes = [len(group) for group in fitted]
        if len(set(sizes)) > 1:
            raise PlanError(
                f"Layer {layer} would have {' and '.join(map(str, sizes))} query heads on its key/value heads, and "
                f"{family_of(model)} needs the same number on each: take out whole groups, or as many heads of every "
                f"group, or expand the model first (--expand, or expand_to_multi_head)."
            )
    return HeadPlan(plan.heads, plan.kv_heads, groups)


def _fitted_group(present: HeadPlan, layer: int, group: tuple[int, ...]) -> Groups:
    holders = {_place(present.groups[layer], head) for head in group}
    if len(holders) == 1:
        return (group,)
    share = present.heads // present.kv_heads
    are_copies = len({head // share for head in group}) == 1
    if not are_copies or any(len(present.groups[layer][holder]) > 1 for holder in holders):
        names = " and ".join(head_name(layer, head) for head in group)
        raise PlanError(
            f"{names} have key/value heads of their own and would get one between them: surgery takes heads out, and "
            f"does not convert what stays."
        )
    return tuple((head,) for head in group)  # the model was expanded to multi-head attention


def _place(groups: Groups, head: int) -> int:
    return next(number for number, group in enumerate(groups) if head in group)


def _check_in_memory(model: PreTrainedModel, layout: Layout, layers: Sequence[Layer]) -> None:
    for layer in layers:
        for path in [part.path for part in layout.parts] + [layout.out]:
            weight: Any = projection_of(model, layer.name, path).weight
            if weight.is_meta:
                raise UnsupportedModel(
                    f"The weights of layer {layer.number} are not in memory: load the model without offloading it."
                )


# ------------------------------------------------------------------------------------------------------ what is done


def _counts(plan: HeadPlan) -> tuple[list[int], list[int]]:
    return [len(kept) for kept in plan.kept], [len(groups) for groups in plan.groups]


def _tell(config: Any, plan: HeadPlan, has_new_bias: bool) -> None:
    setattr(config, CONFIG_ENTRY, plan.to_dict())
    if hasattr(config, "heads_per_layer"):  # of a model that was pruned, saved and loaded
        config.heads_per_layer, config.kv_heads_per_layer = _counts(plan)
        config.output_bias = config.output_bias or has_new_bias


def _copy_weights(
    layout: Layout, model: PreTrainedModel, pruned: PreTrainedModel, layer: Layer, old: Groups, new: Groups
) -> None:
    heads = [layer.heads.index(head) for group in new for head in group]
    kv_heads = [_place(old, group[0]) for group in new]
    for part in layout.parts:
        source, target = (projection_of(each, layer.name, part.path) for each in (model, pruned))
        _copy_outputs(source, target, part.rows((len(layer.heads), len(old)), heads, kv_heads, layer.dim))
    source, target = layer.out, projection_of(pruned, layer.name, layout.out)
    _copy_inputs(source, target, rows_of(heads, layer.dim))
    if layout.has_position_bias:
        _copy_position_bias(model, pruned, layer, heads)


def _copy_outputs(source: Any, target: Any, rows: Tensor) -> None:
    rows = rows.to(source.weight.device)
    target.weight.copy_(source.weight.index_select(1 if is_transposed(source) else 0, rows))
    if source.bias is not None:
        target.bias.copy_(source.bias[rows])


def _copy_inputs(source: Any, target: Any, columns: Tensor) -> None:
    if len(columns):  # with no heads left, the target may be of another kind
        axis = 0 if is_transposed(source) else 1
        target.weight.copy_(source.weight.index_select(axis, columns.to(source.weight.device)))
    if source.bias is not None:
        target.bias.copy_(source.bias)
    elif target.bias is not None:
        target.bias.zero_()


def _copy_position_bias(model: PreTrainedModel, pruned: PreTrainedModel, layer: Layer, heads: list[int]) -> None:
    first = attention_layers(model)[0][1]
    own: Any = layer.attention if layer.attention.has_relative_attention_bias else first
    table: Any = attention_layers(pruned)[layer.number][1]
    columns = torch.tensor(heads, dtype=torch.long, device=own.relative_attention_bias.weight.device)
    table.relative_attention_bias.weight.copy_(own.relative_attention_bias.weight.index_select(1, columns))
