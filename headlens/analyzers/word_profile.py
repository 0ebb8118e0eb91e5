"""How a head spreads its attention by distance in words: the null model that knows nothing but position."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from headlens.analyzers.base import Sums
from headlens.pooling import candidates
from headlens.records import Batch, WordAttention

PROFILE_SUMS = frozenset({"profile", "pairs"})


def profile_sums(attention: WordAttention, batch: Batch, longest: int) -> dict[str, Tensor]:
    """Attention summed over all pairs of a word and a candidate, by their distance, and how many pairs there are.

    [1, head, distance] and [1, 1, distance] for all inputs together; distance d stands at index d + longest - 1, where
    `longest` is the number of words of the longest input of the corpus.
    """
    distance = _distances(attention.probs.shape[-1], longest, attention.probs.device).flatten()
    paid = (attention.probs * attention.candidates[:, None]).sum(dim=0).flatten(1).double()  # [head, pair]
    summed = paid.new_zeros(paid.shape[0], 2 * longest - 1).index_add_(1, distance, paid)

    def count(batch: Batch) -> Tensor:
        pairs = candidates(batch, attention.is_causal).sum(dim=0).flatten().double()
        return pairs.new_zeros(2 * longest - 1).index_add_(0, distance, pairs)[None, None]

    name = f"word_profile.pairs {attention.is_causal} {longest}"
    return {"profile": summed[None], "pairs": batch.derived(name, count)}


def relative_profile(sums: Sums) -> Float[Tensor, "layer head distance"]:
    """rho: mean attention at every distance in words, from the sums of a corpus; 0 where no pair has the distance."""
    return sums["profile"] / sums["pairs"].clamp_min(1)


def profile_attention(
    rho: Float[Tensor, "head distance"], layer: int, batch: Batch, *, is_causal: bool
) -> WordAttention:
    """Attention of heads that know nothing but position: from word i to word j always rho at j - i."""
    assert batch.words is not None
    words = batch.words.shape[1]
    longest = (rho.shape[-1] + 1) // 2
    probs = rho[:, _distances(words, longest, rho.device)].expand(batch.words.shape[0], -1, -1, -1)
    return WordAttention(
        layer=layer,
        probs=probs,
        to_special=probs.new_zeros(*probs.shape[:3], 0),
        candidates=candidates(batch, is_causal),
        is_causal=is_causal,
    )


def _distances(words: int, longest: int, device: torch.device) -> Tensor:
    """[word, word_to]: index on the axis of distances."""
    position = torch.arange(words, device=device)
    return position[None, :] - position[:, None] + longest - 1
