"""Tiny models with weights of key/value heads that some of their query heads share, drawn by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from headlens.conversion.weights import LayerWeights
from headlens.plan import Groups
from headlens.testing import tiny_model

FAMILIES = ("bert", "roberta", "distilbert", "gpt2", "opt", "gpt_neox", "llama", "mistral", "qwen2")
DECODERS = ("gpt2", "opt", "gpt_neox", "llama", "qwen2")
SHARED = ("k", "v", "k_bias", "v_bias")
PAIRS: Groups = ((0, 2), (3, 1))
ALL: Groups = ((0, 1, 2, 3),)
OWN: Groups = ((0,), (1,), (2,), (3,))
PER_LAYER = (PAIRS, ALL, OWN)


def language_model(family: str, *, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    """A tiny model with its vocabulary head, all weights drawn widely."""
    model = transformers.AutoModelForCausalLM.from_config(tiny_model(family).config).to(dtype)
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for _, weight in sorted(model.named_parameters()):
            weight.copy_(0.3 * torch.randn(weight.shape, generator=draw, dtype=torch.float64))
    return model.eval()


def with_shared(layers: Sequence[LayerWeights], groups: Sequence[Groups], seed: int = 5) -> list[LayerWeights]:
    """The same layers with new key/value heads, one for every group."""
    draw = torch.Generator().manual_seed(seed)

    def new(like: Tensor | None, count: int) -> Tensor | None:
        return None if like is None else 0.3 * torch.randn(count, *like.shape[1:], generator=draw, dtype=like.dtype)

    def in_groups(layer: LayerWeights, shared: Groups) -> LayerWeights:
        parts: dict[str, Any] = {name: new(getattr(layer, name), len(shared)) for name in SHARED}
        return replace(layer, **parts, groups=shared)

    return [in_groups(layer, shared) for layer, shared in zip(layers, groups, strict=True)]


def spread(layers: Sequence[LayerWeights]) -> list[LayerWeights]:
    """The same layers with copies of shared key/value heads, so that every query head has its own."""
    return [_spread(layer) for layer in layers]


def _spread(layer: LayerWeights) -> LayerWeights:
    holder = {head: kv for kv, group in enumerate(layer.groups) for head in group}
    places = [holder[head] for head in range(len(layer.q))]

    def copies(shared: Tensor | None) -> Tensor | None:
        return None if shared is None else shared[places]

    parts: dict[str, Any] = {name: copies(getattr(layer, name)) for name in SHARED}
    return replace(layer, **parts, groups=tuple((head,) for head in range(len(layer.q))))
