"""How far scores are apart, with intervals: the arithmetic of a comparison of two score tables. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headlens.scores import Floats, Metric, ScoreTable

BY_CHANCE = 0.05  # of 95% intervals of differences that are 0, those that lie beyond it


class Estimate(NamedTuple):
    """Values and the ends of their 95% intervals, arrays of one shape; NaN where not known."""

    value: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class Change:
    """One number before and after, with the 95% interval of the difference; NaN where not known."""

    metric: Metric
    before: float
    after: float
    low: float
    high: float

    @property
    def difference(self) -> float:
        return self.after - self.before

    @property
    def is_beyond_zero(self) -> bool:
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, eq=False)
class Differences:
    """Scores of two models of the same shape, head by head; the arrays are [metric, layer, head]."""

    metrics: tuple[Metric, ...]
    before: Floats
    after: Floats
    low: Floats  # of the 95% interval of after minus before; NaN where a side has no interval
    high: Floats

    @cached_property
    def value(self) -> Floats:
        """After minus before; NaN where the head is absent from a side."""
        return self.after - self.before

    @cached_property
    def has_interval(self) -> npt.NDArray[np.bool_]:
        return np.isfinite(self.low) & np.isfinite(self.high)

    @cached_property
    def is_beyond_zero(self) -> npt.NDArray[np.bool_]:
        """Whether the whole interval lies on one side of 0."""
        return (self.low > 0) | (self.high < 0)  # NaN is on neither

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(metric.name for metric in self.metrics)

    def of(self, metric: str, layer: int, head: int) -> Change:
        place = (self.names.index(metric), layer, head)
        numbers = (float(array[place]) for array in (self.before, self.after, self.low, self.high))
        return Change(self.metrics[place[0]], *numbers)


def differences_of(before: ScoreTable, after: ScoreTable, metrics: Sequence[Metric]) -> Differences:
    """Differences of the scores `metrics`, which both tables must have, for the same heads."""
    old, new = (_estimate(scores, metrics) for scores in (before, after))
    return Differences(tuple(metrics), old.value, new.value, *difference_interval(old, new))


def difference_interval(before: Estimate, after: Estimate) -> tuple[Floats, Floats]:
    """Ends of the 95% interval of after minus before, from the two intervals; NaN where one is not known.

    The method of variance estimates recovery (Zou and Donner 2008, Statistics in Medicine 27:1693). It takes the two
    as independent: on the same documents they go up and down together, so the interval is wider than it need be.
    """
    difference = after.value - before.value
    down = np.hypot(after.value - after.low, before.high - before.value)
    up = np.hypot(after.high - after.value, before.value - before.low)
    return np.asarray(difference - down), np.asarray(difference + up)


def _estimate(scores: ScoreTable, metrics: Sequence[Metric]) -> Estimate:
    places = [scores.index(metric.name) for metric in metrics]
    return Estimate(scores.values[places], scores.low[places], scores.high[places])
