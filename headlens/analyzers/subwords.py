"""Which heads put the pieces of a split word together."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

from headlens.analyzers.base import Analyzer, Sums
from headlens.errors import MissingAnnotation
from headlens.pooling import word_members
from headlens.records import Batch, LayerAttention
from headlens.scores import Metric

MERGE, PREVIOUS = "lexical.subword", "lexical.subword_previous"


class Subwords(Analyzer):
    """Attention from the later tokens of a word to its earlier ones, and beside it the same question across words.

    A head that always looks at the previous token has both scores high, one that merges the pieces of words the first
    alone. The first token of a causal model, unless it is a special one, is a resting place (Xiao et al. 2024): what
    could be attention to it is not asked. Without a split word there is no score.
    """

    name = "subwords"
    metrics = (
        Metric(
            MERGE,
            "Attention to earlier pieces of the same word",
            "Mean attention from every token of a word but its first to the tokens of the word before it.",
            "share",
        ),
        Metric(
            PREVIOUS,
            "Attention to the previous token where a word begins",
            "Mean attention from the first token of a word to the token before it, the last of another word: what a "
            "head gets that looks at the previous token whatever the words.",
            "share",
        ),
    )
    without_macro = frozenset(metric.name for metric in metrics)

    def observe(self, attention: LayerAttention, batch: Batch) -> Sums:
        start, (size, heads, queries, keys) = attention.query_start, attention.probs.shape
        causal = attention.is_causal
        since = batch.derived(f"subwords.since {causal}", lambda b: _since(b, causal))[..., start : start + queries]
        kind, place, query = (since >= 0).nonzero().unbind(dim=-1)
        key = torch.arange(keys, device=since.device)
        earlier = (key >= since[kind, place, query][:, None]) & (key < start + query[:, None])
        rows = attention.probs[place, :, query]  # [row, head, key]
        paid = torch.einsum("rhk,rk->rh", rows, earlier.to(rows)).double()
        summed = paid.new_zeros(len(since) * size, heads).index_add_(0, kind * size + place, paid)
        return {
            "paid": summed.view(-1, size, heads).movedim(0, -1),
            "rows": (since >= 0).sum(dim=-1).T[:, None].double(),
        }

    def score(self, sums: Sums) -> dict[str, Tensor]:
        shares = sums["paid"] / sums["rows"]
        return {MERGE: shares[..., 0], PREVIOUS: shares[..., 1]}

    def support(self, sums: Sums) -> dict[str, Tensor]:
        pieces, beginnings = sums["rows"].unbind(dim=-1)
        return {MERGE: pieces, PREVIOUS: torch.where(pieces > 0, beginnings, 0)}


def _since(batch: Batch, is_causal: bool) -> Int[Tensor, "kind batch token"]:
    """Up to each token the first one that it is asked about, -1 where it is not asked: within a word, across words."""
    if batch.words is None:
        raise MissingAnnotation(
            "A batch does not say where its words stand; make batches of annotated words with encode_words."
        )
    members = word_members(batch)
    position = torch.arange(members.shape[-1], device=members.device)
    has_word = members.any(dim=1)
    first = (members * batch.words[..., :1]).amax(dim=1)  # [batch, token]: where the token's word begins
    behind_a_word = F.pad(has_word[:, :-1], (1, 0))
    within = first.where(has_word & (position > first), -1)
    across = (position - 1).where(has_word & (position == first) & behind_a_word, -1)
    since = torch.stack([within, across])
    # a special token in front is of no word, so nothing is asked about it in any case
    return since.masked_fill(since == batch.first[:, None], -1) if is_causal else since
