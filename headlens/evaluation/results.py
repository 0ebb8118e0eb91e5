"""What an evaluation found: figures with intervals over items, and the items themselves, so that two can be paired.

A metric is computed from columns, one number an item, and from how often each item counts. With every item once it is
the figure; with items drawn with replacement it is a replicate of the bootstrap.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from headlens.errors import CorpusError
from headlens.numbers import amount
from headlens.significance import REPLICATES, Floats, percentile_interval

Columns: TypeAlias = Mapping[str, Floats]  # by name: [item]
Compute: TypeAlias = Callable[[Columns, Floats], Floats]  # columns and weights [replicate, item] -> [replicate]

_BLOCK = 1 << 22  # weights that are there at once


@dataclass(frozen=True)
class Metric:
    """`alike` names the columns that two results must have in common before the metric of one is held against that
    of the other: perplexity per token says nothing between two tokenizers. `decisions` names the column that counts
    what was decided in each item, and what that is ("word"); None: every item is one decision."""

    name: str
    compute: Compute
    higher_is_better: bool
    alike: tuple[str, ...] = ()
    decisions: tuple[str, str] | None = None


@dataclass(frozen=True)
class Figure:
    """A metric of one model, with the 95% bootstrap interval over items; NaN where there is a single item."""

    metric: str
    value: float
    low: float
    high: float
    higher_is_better: bool
    decisions: int  # that the value rests on: as many as items, or more


@dataclass(frozen=True, eq=False)
class TaskResult:
    """The first of `metrics` is the one that the task is named for.

    `items` names every item ("file.csv, line 3"), `fingerprint` what was asked of all of them; both are the same for
    two models that were asked the same. `facts` are plain values, ready for JSON.
    """

    task: str
    metrics: tuple[Metric, ...]
    columns: Columns
    items: tuple[str, ...]
    fingerprint: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seed: int = 0
    item: str = "item"  # what one is: "document"

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self.columns.items()}
        assert self.items, f"{self.task}: a result has at least one item"
        assert set(lengths.values()) == {len(self.items)}, f"{self.task}: {len(self.items)} items, columns of {lengths}"

    def __repr__(self) -> str:
        figure = f"{self.metric} {self.value:.4f} ({self.low:.4f} to {self.high:.4f})"
        return f"<{self.task}: {figure}, {self.extent(self.metric)}>"

    @cached_property
    def figures(self) -> tuple[Figure, ...]:
        return tuple(self._figure(metric) for metric in self.metrics)

    @property
    def metric(self) -> str:
        return self.metrics[0].name

    @property
    def value(self) -> float:
        return self.figures[0].value

    @property
    def low(self) -> float:
        return self.figures[0].low

    @property
    def high(self) -> float:
        return self.figures[0].high

    @property
    def higher_is_better(self) -> bool:
        return self.metrics[0].higher_is_better

    @property
    def per_item(self) -> Columns:
        return self.columns

    def figure(self, metric: str) -> Figure:
        """The figure of that name; CorpusError where the task has none."""
        self.metric_named(metric)
        return next(figure for figure in self.figures if figure.metric == metric)

    def extent(self, metric: str) -> str:
        """What a metric rests on: "159 items"; "450 words in 159 documents" where an item holds several decisions."""
        items, decisions = amount(len(self.items), self.item), self.metric_named(metric).decisions
        return items if decisions is None else f"{amount(self.figure(metric).decisions, decisions[1])} in {items}"

    def metric_named(self, name: str) -> Metric:
        """The metric of that name; CorpusError where the task has none."""
        found = next((metric for metric in self.metrics if metric.name == name), None)
        if found is None:
            raise CorpusError(
                f"{self.task} has the metrics {', '.join(metric.name for metric in self.metrics)}, not {name!r}."
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values without the columns; NaN becomes None."""
        return {
            "task": self.task,
            "items": len(self.items),
            "fingerprint": self.fingerprint,
            "figures": [_plain(asdict(figure)) for figure in self.figures],
            "facts": dict(self.facts),
            "notes": list(self.notes),
        }

    def _figure(self, metric: Metric) -> Figure:
        value = float(metric.compute(self.columns, np.ones((1, len(self.items))))[0])
        low, high = interval(metric.compute, [self.columns], seed=self.seed)
        decisions = len(self.items) if metric.decisions is None else int(self.columns[metric.decisions[0]].sum())
        return Figure(metric.name, value, low, high, metric.higher_is_better, decisions)


def interval(compute: Compute, columns: list[Columns], *, seed: int = 0) -> tuple[float, float]:
    """The 95% bootstrap interval of a metric; of several sets of columns, that of the first less the mean of the
    others, the same items drawn for all. NaN where there is a single item."""
    items = len(next(iter(columns[0].values())))
    if items < 2:
        return math.nan, math.nan
    found = []
    for weights in _drawn(items, seed):
        first, *others = (compute(one, weights) for one in columns)
        found.append(first - np.mean(others, axis=0) if others else first)
    low, high = percentile_interval(np.concatenate(found)[:, None])
    return float(low[0]), float(high[0])


def fingerprint(*parts: object) -> str:
    """A hash of what was asked: plain values, in their order."""
    return hashlib.sha256(json.dumps(parts, ensure_ascii=True).encode()).hexdigest()


def _drawn(items: int, seed: int) -> Iterator[Floats]:
    """`significance.bootstrap_weights` in blocks [replicate, item]: the same draws, few of them in memory."""
    rng = np.random.default_rng(seed)
    left, block = REPLICATES, max(1, _BLOCK // items)
    while left:
        size = min(block, left)
        yield rng.multinomial(items, np.full(items, 1 / items), size=size).astype(np.float64)
        left -= size


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: None if value != value else value for name, value in values.items()}


# ------------------------------------------------------------------------------------------------------------- metrics


def ratio(top: str, bottom: str) -> Compute:
    """Sum of one column over the sum of another: a share of what was asked, whatever item it belongs to."""

    def compute(columns: Columns, weights: Floats) -> Floats:
        with np.errstate(invalid="ignore", divide="ignore"):
            return (weights @ columns[top]) / (weights @ columns[bottom])

    return compute


def exponential(top: str, bottom: str) -> Compute:
    """e to the ratio: a perplexity, of losses in nats."""
    inner = ratio(top, bottom)

    def compute(columns: Columns, weights: Floats) -> Floats:
        with np.errstate(over="ignore"):
            return np.exp(inner(columns, weights))

    return compute


def mean(column: str) -> Compute:
    """Mean over items."""

    def compute(columns: Columns, weights: Floats) -> Floats:
        return (weights @ columns[column]) / weights.sum(axis=1)

    return compute


def pearson(first: str, second: str) -> Compute:
    """Correlation over items; NaN where one of the columns is constant."""

    def compute(columns: Columns, weights: Floats) -> Floats:
        shape = weights.shape
        return _correlation(np.broadcast_to(columns[first], shape), np.broadcast_to(columns[second], shape), weights)

    return compute


def spearman(first: str, second: str) -> Compute:
    """Rank correlation over items, ties by their mean rank; NaN where one of the columns is constant."""

    def compute(columns: Columns, weights: Floats) -> Floats:
        return _correlation(_ranks(columns[first], weights), _ranks(columns[second], weights), weights)

    return compute


def _ranks(column: Floats, weights: Floats) -> Floats:
    """Rank of every item when each stands there as often as its weight says, [replicate, item]."""
    order = np.argsort(column, kind="stable")
    starts = np.flatnonzero(np.diff(column[order], prepend=np.nan) != 0)  # of runs of equal values
    size = np.add.reduceat(weights[:, order], starts, axis=1)  # [replicate, run]
    middle = size.cumsum(axis=1) - (size - 1) / 2
    ranks = np.empty_like(weights)
    ranks[:, order] = np.repeat(middle, np.diff([*starts, len(column)]), axis=1)
    return ranks


def _correlation(first: Floats, second: Floats, weights: Floats) -> Floats:
    total = weights.sum(axis=1, keepdims=True)
    a = first - (weights * first).sum(axis=1, keepdims=True) / total
    b = second - (weights * second).sum(axis=1, keepdims=True) / total
    spread = (weights * a * a).sum(axis=1) * (weights * b * b).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(spread > 0, (weights * a * b).sum(axis=1) / np.sqrt(spread), np.nan)
