"""The masked twin of a pruned model: of full size, a stock checkpoint, its heads zeroed. It is not pruned."""

from __future__ import annotations

import copy

import torch
from transformers import PreTrainedModel

from headlens.arch import is_transposed
from headlens.errors import PlanError
from headlens.plan import HeadPlan, plan_of
from headlens.surgery.fills import Means, add_to_biases, folded
from headlens.surgery.present import check_same_model, configs_above, full_plan, layers_of
from headlens.surgery.shapes import family_of, rows_of

MASKED_ENTRY = "headlens_masked"  # of a transformers config: the plan of a masked twin as a dict


@torch.no_grad()
def masked_twin(model: PreTrainedModel, plan: HeadPlan, *, fill: Means | None = None) -> PreTrainedModel:
    """A copy whose heads outside `plan` give nothing to the stream: their part of W_O is zero.

    It computes what the pruned model computes, and loads in stock transformers; it is as large and as slow as the
    original. Its config tells so: the plan stands there as `headlens_masked`.

    Parameters
    ----------
    fill
        As in `apply_plan`. A stock checkpoint has no room for means where the family has no output bias.

    Raises
    ------
    PlanError
        A plan for another model, a model that is pruned, or means without a bias to hold them.
    UnsupportedModel
        A family whose heads cannot be taken out.
    """
    present, layers = full_plan(model), layers_of(model)
    if plan_of(model.config) is not None:
        raise PlanError(f"This {type(model).__name__} is pruned: a masked twin is made of the original model.")
    check_same_model(model, _unmasked(model, present), plan)
    added = None if fill is None else folded(fill, layers, plan)
    if fill is not None and any(layer.out.bias is None for layer in layers):
        raise PlanError(
            f"{family_of(model)} has no output bias that could hold means: mask by zero (fill=None), or take the heads "
            f"out with apply_plan, which adds one."
        )
    twin = copy.deepcopy(model)
    for config in configs_above(twin, layers[0].name):
        setattr(config, MASKED_ENTRY, plan.to_dict())
    masked = layers_of(twin)
    for layer, kept in zip(masked, plan.kept, strict=True):
        gone = rows_of([head for head in layer.heads if head not in kept], layer.dim)
        layer.out.weight.index_fill_(0 if is_transposed(layer.out) else 1, gone.to(layer.out.weight.device), 0)
    if added is not None:
        add_to_biases(masked, added)
    return twin


def _unmasked(model: PreTrainedModel, full: HeadPlan) -> HeadPlan:
    earlier = getattr(model.config, MASKED_ENTRY, None)
    return full if earlier is None else HeadPlan.from_dict(earlier)
