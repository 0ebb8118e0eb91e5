"""Pruned tiny models, and what they return."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from headlens.surgery import Means, apply_plan, full_plan
from headlens.testing import padded_inputs, tiny_model

SOURCE = {"source": {"name": "tiny", "revision": "abc", "weights_sha256": "1f"}}
HEADS = 4  # a layer of the tiny models, and 3 layers
# what is removed: a part of a layer, another part, a whole layer; of shared layers the same everywhere, of grouped ones
# whole groups of two heads
SINGLE = [(0, 1), (1, 0), (1, 2), (1, 3), *((2, head) for head in range(HEADS))]
GROUPED = [(1, 0), (1, 1), *((2, head) for head in range(HEADS))]
SHARED = [(layer, head) for layer in range(3) for head in (1, 3)]
UNIFORM = [(0, 0), (0, 1), (1, 2), (1, 3), (2, 0), (2, 1)]  # one group of every layer


def off_in(model: PreTrainedModel) -> list[tuple[int, int]]:
    if model.config.model_type == "albert":
        return SHARED
    whole = full_plan(model)
    return SINGLE if whole.heads == whole.kv_heads else GROUPED


def pruned(model: PreTrainedModel, off: list[tuple[int, int]] | None = None, fill: Means | None = None) -> Any:
    return apply_plan(model, full_plan(model).without(off_in(model) if off is None else off), fill=fill)


def means(model: PreTrainedModel, dim: int) -> Means:
    whole = full_plan(model)
    draw = torch.Generator().manual_seed(5)
    shape = (whole.heads, dim)
    return Means([torch.randn(shape, generator=draw, dtype=torch.float64) for _ in range(whole.layers)], 100)


def with_head(family: str, auto: str, **entries: Any) -> PreTrainedModel:
    """A tiny model of another Auto class, in float32, with all weights drawn widely."""
    config = tiny_model(family, **entries).config
    model = getattr(transformers, auto).from_config(config)
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for _, weight in sorted(model.named_parameters()):
            weight.copy_(0.3 * torch.randn(weight.shape, generator=draw))
    return model.eval()


@torch.no_grad()
def outputs(model: PreTrainedModel, inputs: Mapping[str, Tensor] | None = None) -> list[Tensor]:
    """All that a model returns for three sentences with padding."""
    given = dict(padded_inputs() if inputs is None else inputs)
    if model.config.is_encoder_decoder:
        given |= {"decoder_input_ids": given["input_ids"]}
    return [value for value in model(**given, return_dict=True).values() if isinstance(value, Tensor)]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) > 0 and all(map(torch.equal, one, other))


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
