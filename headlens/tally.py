"""What a corpus adds up to, fold by fold, and how the sums are read: scores, chance levels, error bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headlens.analyzers import Scorer, Sums
from headlens.scores import Floats, Metric, ScoreTable
from headlens.significance import REPLICATES, bootstrap_weights, percentile_interval

Read = Callable[[Sums], dict[str, Tensor]]


class Totals:
    """Sums of one analyzer over a corpus, and of every metric the sum over inputs of each input's own score.

    `sums[key]` is [fold, layer, head, ...]; `pooled[key]`, of sums that nothing is resampled from, [layer, head, ...];
    `macro` holds "value" and "count", [fold, layer, head, metric]. Sums keep the dtype that they come in, and merging
    is addition.
    """

    def __init__(self, folds: int, read: Read, scorer: Scorer) -> None:
        self.folds, self.read = folds, read
        self.metrics = tuple(metric for metric in scorer.metrics if metric.name not in scorer.without_macro)
        self._pooled = scorer.pooled
        self.sums: dict[str, Tensor] = {}
        self.pooled: dict[str, Tensor] = {}
        self.macro: dict[str, Tensor] = {}

    def add(self, sums: Mapping[str, Tensor], fold: Tensor) -> None:
        """Add the sums of a batch, [batch, layer, head, ...]; `fold` tells where each input belongs."""
        by_fold = {key: value for key, value in sums.items() if key not in self._pooled}
        self._accumulate(self.sums, by_fold, fold)
        for key in self._pooled & sums.keys():
            total = sums[key].sum(dim=0)
            self.pooled[key] = self.pooled[key] + total if key in self.pooled else total
        if self.metrics:
            scores = self.read(by_fold)
            own = torch.stack([scores[metric.name] for metric in self.metrics], dim=-1)
            defined = own.isfinite()
            self._accumulate(self.macro, {"value": own.where(defined, 0), "count": defined.double()}, fold)

    def _accumulate(self, totals: dict[str, Tensor], sums: Mapping[str, Tensor], fold: Tensor) -> None:
        for key, value in sums.items():
            if key not in totals:
                totals[key] = value.new_zeros(self.folds, *value.shape[1:])
            totals[key].index_add_(0, fold, value)


class Tally:
    """Totals of all analyzers: of the model's heads, and of a head that attends to all visible keys alike.

    Heads are those of the original model. Of a pruned one `present` [layer, head] tells which are there; the sums of
    the others are 0 or those that stand for all heads, and mean nothing. None: all are there.
    """

    def __init__(self, analyzers: Sequence[Scorer], folds: int, present: Tensor | None = None) -> None:
        self.analyzers, self.folds, self.present = tuple(analyzers), folds, present
        self.inputs = torch.zeros(folds, dtype=torch.long)
        self.model = {a.name: Totals(folds, a.score, a) for a in analyzers}
        self.uniform = {a.name: Totals(folds, a.chance, a) for a in analyzers}

    def add(self, model: Mapping[str, Sums], uniform: Mapping[str, Sums], document: Tensor) -> None:
        """Add a batch: by analyzer, sums [batch, layer, head, ...]; `document` [batch] tells each input's fold."""
        fold = document % self.folds
        self.inputs += torch.bincount(fold.cpu(), minlength=self.folds)
        for name in self.model:
            self.model[name].add(model[name], fold)
            self.uniform[name].add(uniform[name], fold)

    @classmethod
    def joined(cls, tallies: Sequence[Tally]) -> Tally:
        """Analyzers of several passes over the same documents as if they were of one."""
        analyzers = [analyzer for tally in tallies for analyzer in tally.analyzers]
        joined = cls(analyzers, tallies[0].folds, tallies[0].present)
        for tally in tallies:
            joined.inputs += tally.inputs
            joined.model |= tally.model
            joined.uniform |= tally.uniform
        return joined

    def scores(self, *, seed: int = 0) -> ScoreTable:
        """All scores, pooled and macro, with 95% intervals over documents and chance levels.

        A metric that nothing in the corpus supports is left out. Heads that were removed have no score and support 0.
        """
        weights = self._bootstrap(seed)
        rows = [row for analyzer in self.analyzers for row in self._rows(analyzer, weights) if row.support.max() > 0]
        return ScoreTable(
            metrics=tuple(row.metric for row in rows),
            values=self.where_present(np.stack([row.value for row in rows])),
            support=self.where_present(np.stack([row.support for row in rows]), 0.0),
            low=self.where_present(np.stack([row.low for row in rows])),
            high=self.where_present(np.stack([row.high for row in rows])),
            chance=np.array([row.chance for row in rows]),
        )

    def where_present(self, values: Floats, otherwise: float = np.nan) -> Floats:
        """Values [..., layer, head], with another number for heads that were removed."""
        return values if self.present is None else np.where(self.present.numpy(), values, otherwise)

    def counts_of_heads(self, counts: NDArray[Any]) -> NDArray[Any]:
        """Counts [fold, layer, head, ...] as they are, but NaN for heads that were removed."""
        if self.present is None:
            return counts
        of_head = self.present.numpy().reshape(*self.present.shape, *[1] * (counts.ndim - 3))
        return np.where(of_head, counts, np.nan)

    def _bootstrap(self, seed: int) -> Tensor:
        """Weights [replicate, fold]; a fold of documents without a token is never drawn."""
        filled = self.inputs > 0
        weights = torch.zeros(REPLICATES, self.folds, dtype=torch.float64)
        weights[:, filled] = torch.from_numpy(bootstrap_weights(int(filled.sum()), seed=seed))
        return weights

    def _rows(self, analyzer: Scorer, weights: Tensor) -> Iterator[_Row]:
        model, uniform = self.model[analyzer.name], self.uniform[analyzer.name]

        pooled, chance = _total(model.sums), analyzer.chance(_total(uniform.sums))
        value, support = analyzer.score(pooled), analyzer.support(pooled)
        interval = _intervals(analyzer.score, model.sums, weights)
        macro = self._macro_rows(analyzer, weights, support) if model.metrics else {}
        for metric in analyzer.metrics:
            name = metric.name
            rows = support[name].expand_as(value[name])
            yield _Row.of(metric, value[name], rows, *interval[name], chance[name])
            if name in macro:
                yield macro[name]

    def _macro_rows(self, analyzer: Scorer, weights: Tensor, support: Mapping[str, Tensor]) -> dict[str, _Row]:
        """By the metric that each row is the mean of inputs of."""
        model, uniform = self.model[analyzer.name], self.uniform[analyzer.name]

        def means_of_inputs(sums: Sums) -> dict[str, Tensor]:
            return _by_metric(model.metrics, sums["value"] / sums["count"])

        inputs = _total(model.macro)
        counts = _by_metric(model.metrics, inputs["count"])
        value, chance = means_of_inputs(inputs), means_of_inputs(_total(uniform.macro))
        interval = _intervals(means_of_inputs, model.macro, weights)
        rows = {}
        for metric in model.metrics:
            name = metric.name
            macro = replace(metric, name=f"{name}.macro", title=f"{metric.title}, mean of inputs")
            scored = torch.where(support[name].expand_as(value[name]) > 0, counts[name], 0)
            rows[name] = _Row.of(macro, value[name], scored, *interval[name], chance[name])
        return rows


class _Row(NamedTuple):
    """One metric of a ScoreTable; the arrays are [layer, head]."""

    metric: Metric
    value: NDArray[np.float64]
    support: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    chance: float

    @classmethod
    def of(
        cls,
        metric: Metric,
        value: Tensor,
        support: Tensor,
        low: NDArray[np.float64],
        high: NDArray[np.float64],
        chance: Tensor,
    ) -> _Row:
        return cls(metric, value.numpy(), support.double().numpy(), low, high, float(chance.flatten()[0]))


def _by_metric(metrics: Sequence[Metric], values: Tensor) -> dict[str, Tensor]:
    return dict(zip((metric.name for metric in metrics), values.unbind(-1), strict=True))


def _total(sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: value.double().sum(dim=0).cpu() for key, value in sums.items()}


def _intervals(
    read: Read, sums: Mapping[str, Tensor], weights: Tensor
) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Lower and upper ends [layer, head] by metric; layer by layer, so that the replicates of only one are in memory.

    A single filled fold cannot be resampled: its ends are NaN.
    """
    ends = []
    for layer in range(next(iter(sums.values())).shape[1]):
        scores = read({key: _resampled(weights, value[:, layer].cpu()) for key, value in sums.items()})
        replicates = torch.stack(list(scores.values()), dim=1).numpy()  # [replicate, metric, head]
        ends.append(percentile_interval(replicates))
    low, high = (np.stack(end, axis=1) for end in zip(*ends, strict=True))  # [metric, layer, head]
    if int((weights.sum(dim=0) > 0).sum()) == 1:
        low, high = np.full_like(low, np.nan), np.full_like(high, np.nan)
    return dict(zip(scores, zip(low, high, strict=True), strict=True))


def _resampled(weights: Tensor, sums: Tensor) -> Tensor:
    return (weights @ sums.double().flatten(1)).unflatten(1, sums.shape[1:])
