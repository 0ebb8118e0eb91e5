"""Decisions among listed words: which of the candidates does a word attend to most? No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlens.gold.by_input import ByInput


class Question(NamedTuple):
    """One decision: `word` chooses among `candidates` (words of its input, in order), each right or wrong."""

    input: int
    word: int
    candidates: tuple[int, ...]
    right: tuple[bool, ...]
    chance: float  # of a random choice to be right
    metrics: tuple[str, ...]  # what it counts for
    baselines: Mapping[str, bool]  # whether each of them gets it right


@dataclass(frozen=True, eq=False)
class Shortlists:
    """All such decisions of a corpus, by input in ascending order; lists are filled up with -1."""

    metrics: tuple[str, ...]
    input: NDArray[np.int64]  # [decision]
    word: NDArray[np.int64]  # [decision]
    candidates: NDArray[np.int64]  # [decision, place]
    right: NDArray[np.bool_]  # [decision, place]
    counts_for: NDArray[np.bool_]  # [decision, metric]
    chance: NDArray[np.float64]  # [decision]
    baselines: Mapping[str, NDArray[np.bool_]]  # by name [decision]
    left_out: Mapping[str, int] = field(default_factory=dict)  # reason -> how many could not be asked

    @classmethod
    def of(
        cls, questions: Sequence[Question], metrics: Sequence[str], *, left_out: Mapping[str, int] | None = None
    ) -> Shortlists:
        """`metrics` gives the order; those that no question counts for are dropped."""
        ordered = sorted(questions, key=lambda question: question.input)
        asked = {metric for question in ordered for metric in question.metrics}
        kept = tuple(metric for metric in metrics if metric in asked)
        most = max((len(question.candidates) for question in ordered), default=0)
        names = ordered[0].baselines.keys() if ordered else ()
        return cls(
            metrics=kept,
            input=np.array([question.input for question in ordered], dtype=np.int64),
            word=np.array([question.word for question in ordered], dtype=np.int64),
            candidates=_filled([question.candidates for question in ordered], most, -1).astype(np.int64),
            right=_filled([question.right for question in ordered], most, 0).astype(bool),
            counts_for=_membership([question.metrics for question in ordered], kept),
            chance=np.array([question.chance for question in ordered], dtype=np.float64),
            baselines={
                name: np.array([question.baselines[name] for question in ordered], dtype=bool) for name in names
            },
            left_out=dict(left_out or {}),
        )

    def __len__(self) -> int:
        return self.input.size

    @cached_property
    def by_input(self) -> ByInput:
        return ByInput(self.input)


def _membership(own: Sequence[Sequence[str]], metrics: Sequence[str]) -> NDArray[np.bool_]:
    """[decision, metric], also where there is none of either."""
    members = np.array([[metric in of_one for metric in metrics] for of_one in own], dtype=bool)
    return members.reshape(len(own), len(metrics))


def _filled(rows: Sequence[Sequence[int | bool]], width: int, filler: int) -> NDArray[np.int64]:
    filled = np.full((len(rows), width), filler, dtype=np.int64)
    for place, row in enumerate(rows):
        filled[place, : len(row)] = row
    return filled
