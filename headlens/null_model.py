"""Heads that know nothing but position: each head's own profile of relative positions, scored as the head is."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from headlens.analyzers import DecisionAnalyzer
from headlens.analyzers.word_profile import profile_attention, relative_profile
from headlens.records import Batch
from headlens.tally import Tally


def correct_by_position(
    tally: Tally, analyzer: DecisionAnalyzer, batches: Iterable[Batch], *, is_causal: bool
) -> Float[Tensor, "fold layer head label"]:
    """What `analyzer` counts as right if every head attends by rho alone, its mean attention at each distance in words.

    The model is not run again. Needs the tally of a whole pass over the same batches.
    """
    rho = relative_profile(tally.model[analyzer.name].pooled).cpu()
    totals = torch.zeros(tally.folds, rho.shape[0], rho.shape[1], len(analyzer.membership))
    for batch in batches:
        fold = batch.document.cpu() % tally.folds
        for layer, of_layer in enumerate(rho):
            attention = profile_attention(of_layer, layer, batch, is_causal=is_causal)
            totals[:, layer].index_add_(0, fold, analyzer.correct(attention, batch))
    return totals
