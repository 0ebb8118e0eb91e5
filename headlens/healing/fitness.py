"""Which pairs of models can be healed, and on what."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel

from headlens.arch import attention_sites, family_of
from headlens.errors import HealingError, PlanError, UnsupportedModel
from headlens.healing.recipe import Recipe
from headlens.models import network_of
from headlens.surgery import MASKED_ENTRY

_HALF = (torch.float16, torch.bfloat16)


def check_pair(student: PreTrainedModel, teacher: PreTrainedModel) -> None:
    """PlanError, HealingError or UnsupportedModel where one cannot be healed after the other."""
    if getattr(student.config, MASKED_ENTRY, None) is not None:
        raise PlanError(
            "The heads of a masked twin are zeroed and would come back in training; heal what apply_plan gave."
        )
    for what, one, other in zip(
        ("family", "hidden size", "layers", "vocabulary"), _of(student), _of(teacher), strict=True
    ):
        if one != other:
            raise HealingError(
                f"A model is healed after the one that it came from: the student has the {what} {one}, the "
                f"teacher {other}."
            )
    if student.dtype in _HALF:
        raise UnsupportedModel(
            f"The weights of the student are {str(student.dtype).removeprefix('torch.')}, in which small steps are "
            f"lost; load it in float32."
        )


def _of(model: PreTrainedModel) -> tuple[str, int, int, int]:
    network = network_of(model)
    table: Any = network.get_input_embeddings()
    family = "gpt2" if family_of(model) == "gpt_bigcode" else family_of(model)  # which a GPT-2 can become
    return family, network.config.hidden_size, len(attention_sites(network)), table.num_embeddings


def check_bf16(recipe: Recipe, student: PreTrainedModel) -> None:
    """UnsupportedModel where bfloat16 is asked for and cannot be had."""
    if not recipe.bf16:
        return
    kind = student.device.type
    has = torch.cuda.is_bf16_supported() if kind == "cuda" else torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if not has or student.dtype != torch.float32:
        raise UnsupportedModel(
            f"bf16 needs a device that multiplies in bfloat16 and a model in float32, and this is "
            f"{str(student.dtype).removeprefix('torch.')} on {kind}; leave out bf16."
        )
