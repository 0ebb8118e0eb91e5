"""Where tokens stand: in a batch padded on the left, and among the keys of a cache.

A batch padded on the left needs position_ids, and most models count from the left edge without a word.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from headlens.arch import family_of
from headlens.errors import CaptureError
from headlens.records import Stack

# Families whose forward pass works out positions from the mask, or needs none; RoBERTa and its kin do so from the ids.
_SELF_POSITIONED = frozenset({"opt", "biogpt", "t5", "mt5", "umt5"})
_FROM_IDS = "create_position_ids_from_input_ids"


def with_positions(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A forward pre-hook: the arguments with position_ids, if a batch padded on the left comes without; else None."""
    given = arguments_of(model, args, kwargs)
    mask = given.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.dim() != 2 or not _is_left_padded(mask):
        return None
    if given.get("position_ids") is not None or _finds_positions(model):
        return None
    if "position_ids" in inspect.signature(model.forward).parameters:
        positions = (mask.long().cumsum(dim=-1) - 1).clamp_min(0)
        return args, {**kwargs, "position_ids": positions[:, -_tokens(given, mask) :]}
    if any(given.get(name) is not None for name in ("cache", "past_key_values")):
        return None  # the padded text is encoded already, and was looked at then
    raise CaptureError(f"{type(model).__name__} counts positions from the left edge: pad its batches on the right.")


def _is_left_padded(mask: Tensor) -> bool:
    return bool(((mask[:, 0] == 0) & (mask != 0).any(dim=-1)).any())


def _finds_positions(model: nn.Module) -> bool:
    return family_of(model) in _SELF_POSITIONED or any(
        _FROM_IDS in _source(cls.__module__) for cls in type(model).__mro__
    )


@lru_cache
def _source(module: str) -> str:
    try:
        return inspect.getsource(sys.modules[module])
    except (OSError, TypeError):  # a notebook, or written in C
        return ""


def _tokens(given: Mapping[str, Any], mask: Tensor) -> int:
    """How many tokens this call brings; with a cache the mask covers the earlier ones too."""
    tensors = (given.get(name) for name in ("input_ids", "inputs_embeds"))
    return next((tensor.shape[1] for tensor in tensors if tensor is not None), mask.shape[1])


def arguments_of(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name."""
    given = inspect.signature(model.forward).bind_partial(*args, **kwargs).arguments
    return {**given, **given.pop("kwargs", {})}


def query_start(stack: Stack, query: Tensor, key: Tensor, mask: Tensor | None) -> int:
    """Position of the first query row among the keys: with a cache, the rows of earlier tokens do not come again."""
    past = key.shape[2] - query.shape[2]
    if stack == "cross" or past <= 0:
        return 0
    if mask is None:  # several queries without a mask are the first ones; a static cache has room behind them
        return past if query.shape[2] == 1 else 0
    if mask.shape[2] != query.shape[2]:
        return past
    allowed = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    seen = allowed[:, :, 0].any(dim=0).any(dim=0)  # [key]; a static cache has room beyond the present token
    return int(seen.nonzero().max()) if seen.any() else past
