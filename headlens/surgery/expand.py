"""Give every query head of a grouped model key/value heads of its own, so that any of them can be taken out."""

from __future__ import annotations

from transformers import PreTrainedModel

from headlens.surgery.apply import apply_plan
from headlens.surgery.present import present_plan


def expand_to_multi_head(model: PreTrainedModel) -> PreTrainedModel:
    """A copy that computes the same with plain multi-head attention, exactly: shared key/value heads become copies.

    Its key/value cache is as many times larger as query heads shared a key/value head. Plans for the original model,
    ragged ones too, can be applied to it.

    Raises
    ------
    UnsupportedModel
        A family whose heads cannot be taken apart.
    """
    return apply_plan(model, present_plan(model).apart)
