"""Attention between tokens becomes attention between words, slice by slice of query rows."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headlens.records import Batch, LayerAttention, WordAttention


class WordPooling:
    """Adds up the slices of one layer; `whole` is there once all query rows have come, in whatever order.

    To a word the sum over its tokens, from a word the mean over them (Clark et al. 2019, section 4.1).
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._rows = 0
        self._sum: Tensor | None = None  # [batch, word, head, to]

    def add(self, attention: LayerAttention) -> WordAttention | None:
        """The attention between words after the last slice; None before."""
        start, queries = attention.query_start, attention.probs.shape[2]
        part = _pooled(attention, self._batch, start, start + queries)
        self._sum = part if self._sum is None else self._sum.add_(part)
        self._rows += queries
        return self._whole(attention) if self._rows == self._batch.input_ids.shape[1] else None

    def _whole(self, attention: LayerAttention) -> WordAttention:
        assert self._sum is not None
        between = self._sum.transpose(1, 2)  # [batch, head, word, to]
        words = between.shape[2]
        return WordAttention(
            layer=attention.layer,
            probs=between[..., :words],
            to_special=between[..., words:],
            candidates=candidates(self._batch, attention.is_causal),
            is_causal=attention.is_causal,
            head_ids=attention.head_ids,
        )


def _pooled(attention: LayerAttention, batch: Batch, start: int, stop: int) -> Float[Tensor, "batch word head to"]:
    """What the query rows from `start` to `stop` add."""
    probs = attention.probs
    size, heads, queries, keys = probs.shape
    to = batch.derived(f"pooling.to {probs.dtype}", lambda b: _columns(b, probs.dtype))[:, :keys]
    rows = batch.derived(f"pooling.from {probs.dtype}", lambda b: _means(b, probs.dtype))[:, :, start:stop]
    by_column = (probs.reshape(size, heads * queries, keys) @ to).view(size, heads, queries, -1)
    by_row = rows @ by_column.transpose(1, 2).reshape(size, queries, -1)
    return by_row.view(size, rows.shape[1], heads, -1)


def word_members(batch: Batch) -> Bool[Tensor, "batch word token"]:
    """Which tokens each word has."""
    assert batch.words is not None
    position = torch.arange(batch.input_ids.shape[1], device=batch.words.device)
    return (position >= batch.words[..., :1]) & (position < batch.words[..., 1:])


def _columns(batch: Batch, dtype: torch.dtype) -> Float[Tensor, "batch token to"]:
    """1 where a token is of a word; then a column for each special token that an input has."""
    specials = batch.special & batch.attention_mask
    order = specials.long().cumsum(dim=-1) - 1
    most = int(specials.sum(dim=-1).max())
    one_each = specials[..., None] & (order[..., None] == torch.arange(most, device=order.device))
    return torch.cat([word_members(batch).transpose(1, 2), one_each], dim=-1).to(dtype)


def _means(batch: Batch, dtype: torch.dtype) -> Float[Tensor, "batch word token"]:
    """Weights that make the mean over the tokens of each word; 0 for a word without one."""
    members = word_members(batch).to(dtype)
    return members / members.sum(dim=-1, keepdim=True).clamp_min(1)


def candidates(batch: Batch, is_causal: bool) -> Bool[Tensor, "batch word word_to"]:
    """Words that can be chosen from each word: all but itself; in a causal model the earlier ones, without the sink.

    A causal model without a special token in front rests on the first token (Xiao et al. 2024): its word is the sink.
    """
    return batch.derived(f"pooling.candidates {is_causal}", lambda b: _candidates(b, is_causal))


def _candidates(batch: Batch, is_causal: bool) -> Bool[Tensor, "batch word word_to"]:
    assert batch.words is not None
    asked = batch.words[..., 1] > batch.words[..., 0]
    if is_causal:
        sink = asked & (asked.long().cumsum(dim=-1) == 1) & ~_special_in_front(batch)[:, None]
        asked = asked & ~sink
    pairs = asked[:, :, None] & asked[:, None, :]
    if is_causal:
        return pairs.tril(-1)
    return pairs & ~torch.eye(asked.shape[1], dtype=torch.bool, device=asked.device)


def _special_in_front(batch: Batch) -> Bool[Tensor, " batch"]:
    return batch.special.gather(1, batch.first[:, None])[:, 0]
