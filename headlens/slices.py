"""Attention of a slice of query rows: the formula of attention.py for speed, sharing key/value heads without copies."""

from __future__ import annotations

import torch
from torch import Tensor


def rows_per_slice(queries: int, most: int) -> int:
    """At most `most` rows (at least one), and as many in each slice as the number of slices allows."""
    slices = -(-queries // max(1, most))
    return -(-queries // slices)


def slice_scores(query: Tensor, key: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Scores [batch, head, query, key] before the softmax, scaled and masked, in float32 at least.

    `mask` is additive, as for eager attention. Key/value heads are shared, not copied.
    """
    batch, heads, queries, dim = query.shape
    grouped = query.reshape(batch, key.shape[1], -1, dim)  # query heads of one key/value head are neighbours
    scores = (grouped @ key.transpose(-1, -2)).view(batch, heads, queries, -1)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32)).mul_(scale)
    return scores if mask is None else scores.add_(mask)  # ten times faster than filling by a bool mask


def mix_values(probs: Tensor, value: Tensor) -> Tensor:
    """Context [batch, head, query, dim]: the values that each row attends to, weighted."""
    batch, heads, queries, keys = probs.shape
    grouped = probs.to(value.dtype).reshape(batch, value.shape[1], -1, keys)
    return (grouped @ value).view(batch, heads, queries, -1)


def rows_of_mask(mask: Tensor | None, first: int, last: int) -> Tensor | None:
    return mask if mask is None or mask.shape[2] == 1 else mask[:, :, first:last]


def causal_rows(first: int, last: int, like: Tensor) -> Tensor:
    """Additive mask [query, key] of rows `first` to `last` of causal attention, up to the last key that one sees."""
    hidden = torch.full((last - first, last), torch.finfo(like.dtype).min, dtype=like.dtype, device=like.device)
    return hidden.triu_(first + 1)
