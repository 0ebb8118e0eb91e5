"""The one way to score heads: sums over rows of attention, and a reading of the sums."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from headlens.records import Batch, LayerAttention, WordAttention
from headlens.scores import Metric

Sums = Mapping[str, Tensor]


class Scorer(ABC):
    """Scores of heads that are computed from sums.

    A subclass of one of the two kinds below says what to add up (`observe`) and how to read the totals (`score`). It
    keeps no state. Because it only sums, any split of a corpus into batches, slices of rows or processes gives the
    same totals, one input alone gives the score of that input, and resampled totals give an error bar.
    """

    name: str
    metrics: tuple[Metric, ...]  # what `score` returns, in this order
    without_macro: frozenset[str] = frozenset()  # metrics that mean nothing for a single input
    pooled: ClassVar[frozenset[str]] = frozenset()  # sums that are kept for the whole corpus only, not by fold

    @abstractmethod
    def score(self, sums: Sums) -> dict[str, Tensor]:
        """Scores by metric name from sums of shape [..., head, ...]; NaN where nothing was there to score."""

    @abstractmethod
    def support(self, sums: Sums) -> dict[str, Tensor]:
        """By metric name, how many rows a score rests on, 0 where there was nothing to score; shapes as in `score`."""

    def chance(self, uniform: Sums) -> dict[str, Tensor]:
        """Scores expected by chance, from the sums of a head that attends to all visible keys alike."""
        return self.score(uniform)


class Analyzer(Scorer):
    """Scores from attention between tokens. It is shown slices of query rows, in any order."""

    @abstractmethod
    def observe(self, attention: LayerAttention, batch: Batch) -> Sums:
        """What the rows of `attention` add to each input's sums.

        Every tensor is [batch, head, ...], or [batch, 1, ...] where it is the same for every head. Only rows with
        `batch.rows` count. Means are not allowed: a mean of means depends on how the corpus was batched.
        """


class WordAnalyzer(Scorer):
    """Scores from attention between the annotated words of a corpus. It is shown all rows of a layer at once."""

    @abstractmethod
    def observe(self, attention: WordAttention, batch: Batch) -> Sums:
        """What a layer adds to each input's sums; shapes and rules as for tokens. `batch.input_index` names them."""


class DecisionAnalyzer(WordAnalyzer):
    """Scores that count right decisions: which candidate gets the most attention, and whether it is the right one.

    Its sums hold "correct" [batch, head, label], "total" and "by_chance" [batch, 1, label] (decisions, and how many of
    them a random choice gets right) and the sums of `word_profile`; `membership` adds labels up to `counted` metrics.
    """

    counted: tuple[str, ...]
    membership: Float[Tensor, "label metric"]

    @abstractmethod
    def correct(self, attention: WordAttention, batch: Batch) -> Float[Tensor, "batch head label"]:
        """How many decisions of each input every head gets right."""
