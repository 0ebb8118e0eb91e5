"""Whether one model does better than another, or than several, on the same items: a paired bootstrap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headlens.errors import CorpusError
from headlens.evaluation.results import Metric, TaskResult, interval


@dataclass(frozen=True)
class Difference:
    """A metric of one result less that of another (or the mean over others), with the 95% interval when all are asked
    the same drawn items."""

    task: str
    metric: str
    value: float
    low: float
    high: float
    higher_is_better: bool

    @property
    def is_better(self) -> bool:
        """Beyond what the choice of items explains."""
        return self.low > 0 if self.higher_is_better else self.high < 0

    @property
    def is_worse(self) -> bool:
        """Beyond what the choice of items explains."""
        return self.high < 0 if self.higher_is_better else self.low > 0


def paired_difference(result: TaskResult, other: TaskResult, *, metric: str | None = None, seed: int = 0) -> Difference:
    """`result` less `other`, of the metric that the task is named for or of another one (2,000 replicates).

    Raises CorpusError where the two were not asked the same items, or where the metric says nothing between them.
    """
    return difference_to_mean(result, [other], metric=metric, seed=seed)


def difference_to_mean(
    result: TaskResult, others: Sequence[TaskResult], *, metric: str | None = None, seed: int = 0
) -> Difference:
    """`result` less the mean over `others` of the metric, as `paired_difference`.

    The interval is that of other items, asked of the same models: how far the others lie apart is not in it.
    """
    chosen = result.metric_named(result.metric if metric is None else metric)
    for other in others:
        _check_same_items(result, other)
        _check_alike(chosen, result, other)
    everything = np.ones((1, len(result.items)))
    own, *values = (float(chosen.compute(one.columns, everything)[0]) for one in (result, *others))
    low, high = interval(chosen.compute, [result.columns, *(other.columns for other in others)], seed=seed)
    return Difference(result.task, chosen.name, own - float(np.mean(values)), low, high, chosen.higher_is_better)


def _check_same_items(result: TaskResult, other: TaskResult) -> None:
    way_out = "evaluate both models on the same task to compare them"
    if len(result.items) != len(other.items):
        raise CorpusError(
            f"{result.task} has {len(result.items)} items and {other.task} has {len(other.items)}: {way_out}."
        )
    for one, another in zip(result.items, other.items, strict=True):
        if one != another:
            raise CorpusError(f"{result.task} asks {one} where {other.task} asks {another}: {way_out}.")
    if result.fingerprint != other.fingerprint:
        raise CorpusError(
            f"{result.task} and {other.task} have items of the same names that are not the same: {way_out}."
        )


def _check_alike(metric: Metric, result: TaskResult, other: TaskResult) -> None:
    for name in metric.alike:
        if not np.array_equal(result.columns[name], other.columns[name]):
            raise CorpusError(
                f"{result.task}: {metric.name} cannot be compared, because the {name} of the two models differ (they "
                f"have different tokenizers); compare another metric ({', '.join(one.name for one in result.metrics)})."
            )
