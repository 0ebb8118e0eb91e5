"""Which heads keep to the phrase of a word, and which look at punctuation and the borders of a sentence."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from headlens.analyzers.base import Sums, WordAnalyzer
from headlens.gold.phrases import Phrasing
from headlens.pooling import candidates
from headlens.records import Batch, WordAttention
from headlens.scores import Metric

NEIGHBOUR, PREVIOUS = "phrase.neighbour", "phrase.difference[previous]"
PUNCTUATION, FINAL, FIRST = "border.punctuation", "border.final", "border.first_word"
STRONGEST = "border.strongest"


class Phrases(WordAnalyzer):
    """A word and the neighbour in its own phrase against the neighbour outside it; punctuation and sentence borders."""

    name = "phrases"
    metrics = (
        Metric(
            NEIGHBOUR,
            "The neighbour in the same phrase",
            "Share of words between two neighbours that attend more to the one in their own phrase; the mean of words "
            "whose phrase goes on to the left and to the right, so that a fixed offset gets one half.",
            "share",
        ),
        Metric(
            PREVIOUS,
            "Attention to the previous word: in the same phrase, minus not",
            "Mean attention to the previous word where it is in the same phrase, minus the mean where it is not.",
            "share",
        ),
        Metric(PUNCTUATION, "Attention to punctuation", "Mean share of a word's attention to punctuation.", "share"),
        Metric(
            FINAL,
            "Attention to the final punctuation",
            "Mean share of a word's attention that goes to the punctuation at the end of its sentence.",
            "share",
        ),
        Metric(
            FIRST,
            "Attention to the first word",
            "Mean share of a word's attention that goes to the first word of its sentence.",
            "share",
        ),
        Metric(STRONGEST, "Punctuation is strongest", "Share of words whose strongest word is punctuation.", "share"),
    )
    without_macro = frozenset(metric.name for metric in metrics)

    def __init__(self, phrasings: Mapping[int, Phrasing], *, is_causal: bool) -> None:
        self.phrasings, self.is_causal = phrasings, is_causal

    def observe(self, attention: WordAttention, batch: Batch) -> Sums:
        left, right = _neighbours(attention.probs)
        own_left, own_right, same, other = batch.derived("phrases.neighbours", self._neighbourhoods).unbind()
        borders = batch.derived("phrases.borders", self._borders)  # [batch, kind, word, word_to]
        rows = batch.derived("phrases.rows", self._rows)  # [batch, kind, word]
        chosen = attention.row_choice[..., None]
        to_punctuation = borders[:, :1].expand(-1, chosen.shape[1], -1, -1).gather(-1, chosen).squeeze(-1)
        return {
            "hits": _count((left > right) & own_left[:, None], (right > left) & own_right[:, None]),
            "cases": _count(own_left[:, None], own_right[:, None]),
            "previous": torch.stack([(left * same[:, None]).sum(-1), (left * other[:, None]).sum(-1)], -1).double(),
            "previous_cases": _count(same[:, None], other[:, None]),
            "paid": torch.einsum("bhij,bkij->bhk", attention.probs, borders.to(attention.probs.dtype)).double(),
            "paying": rows.sum(dim=-1)[:, None].double(),
            "strongest": to_punctuation.sum(dim=-1).double(),
            "by_chance": batch.derived("phrases.by_chance", self._by_chance),
        }

    def score(self, sums: Sums) -> dict[str, Tensor]:
        previous = sums["previous"] / sums["previous_cases"]
        paid = sums["paid"] / sums["paying"]
        return {
            NEIGHBOUR: (sums["hits"] / sums["cases"]).mean(dim=-1),
            PREVIOUS: previous[..., 0] - previous[..., 1],
            PUNCTUATION: paid[..., 0],
            FINAL: paid[..., 1],
            FIRST: paid[..., 2],
            STRONGEST: sums["strongest"] / sums["paying"][..., 0],
        }

    def support(self, sums: Sums) -> dict[str, Tensor]:
        return {
            NEIGHBOUR: _if_both(sums["cases"]),
            PREVIOUS: _if_both(sums["previous_cases"]),
            PUNCTUATION: sums["paying"][..., 0],
            FINAL: sums["paying"][..., 1],
            FIRST: sums["paying"][..., 2],
            STRONGEST: sums["paying"][..., 0],
        }

    def chance(self, uniform: Sums) -> dict[str, Tensor]:
        scores = self.score(uniform)
        one_of_two = torch.full_like(scores[NEIGHBOUR], 0.5)
        return scores | {NEIGHBOUR: one_of_two, STRONGEST: uniform["by_chance"] / uniform["paying"][..., 0]}

    def _neighbourhoods(self, batch: Batch) -> Bool[Tensor, "kind batch word"]:
        """Words between a neighbour of their phrase on the left only, on the right only; words whose previous word is
        of their phrase, and is not."""
        previous, following = _neighbours(candidates(batch, self.is_causal))
        annotated, with_left = self._marks(batch, "annotated"), self._marks(batch, "with_left")
        with_right = F.pad(with_left[:, 1:], (0, 1))
        between = previous & following & annotated
        return torch.stack(
            [
                between & with_left & ~with_right,
                between & with_right & ~with_left,
                previous & annotated & with_left,
                previous & annotated & ~with_left,
            ]
        )

    def _borders(self, batch: Batch) -> Bool[Tensor, "batch kind word word_to"]:
        """From each word its candidates that are punctuation, that end the sentence so, and that begin it."""
        kinds = [self._marks(batch, name) for name in ("is_punctuation", "is_final", "is_first")]
        return candidates(batch, self.is_causal)[:, None] & torch.stack(kinds, dim=1)[:, :, None, :]

    def _rows(self, batch: Batch) -> Bool[Tensor, "batch kind word"]:
        """Words that are asked: about punctuation in general all, about a border those that it is a candidate for."""
        rows = batch.derived("phrases.borders", self._borders).any(dim=-1)
        every = candidates(batch, self.is_causal).any(dim=-1) & self._marks(batch, "annotated")
        return torch.cat([every[:, None], rows[:, 1:]], dim=1)

    def _by_chance(self, batch: Batch) -> Float[Tensor, "batch head=1"]:
        """Sum over words of the share of their candidates that is punctuation."""
        possible = candidates(batch, self.is_causal).sum(dim=-1).clamp_min(1)
        marks = batch.derived("phrases.borders", self._borders)[:, 0].sum(dim=-1)
        return (marks.double() / possible).sum(dim=-1, keepdim=True)

    def _marks(self, batch: Batch, name: str) -> Bool[Tensor, "batch word"]:
        """A field of the annotation; False for inputs without it."""
        assert batch.words is not None
        assert batch.input_index is not None
        marks = torch.zeros(batch.words.shape[:2], dtype=torch.bool)
        for row, number in enumerate(batch.input_index.tolist()):
            if number in self.phrasings:
                of_words = getattr(self.phrasings[number], name)
                marks[row, : of_words.size] = torch.from_numpy(of_words)
        return marks.to(batch.words.device)


def _neighbours(pairs: Shaped[Tensor, "*lead word word_to"]) -> tuple[Tensor, Tensor]:
    """At each word the entry of the word before it, and of the word after it; 0 where there is none."""
    return (
        F.pad(pairs.diagonal(-1, dim1=-2, dim2=-1), (1, 0)),
        F.pad(pairs.diagonal(1, dim1=-2, dim2=-1), (0, 1)),
    )


def _count(*cases: Bool[Tensor, "*lead word"]) -> Float[Tensor, "*lead case"]:
    return torch.stack([case.sum(dim=-1) for case in cases], dim=-1).double()


def _if_both(cases: Tensor) -> Tensor:
    """All cases of two kinds; 0 where one of them does not occur."""
    return torch.where((cases > 0).all(dim=-1), cases.sum(dim=-1), 0)
