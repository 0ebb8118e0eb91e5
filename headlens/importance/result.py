"""How much every head matters, and how far that can be trusted: intervals, halves, agreement of methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headlens.errors import OutputError
from headlens.scores import Metric, ScoreTable, Unit
from headlens.significance import REPLICATES, bootstrap_weights, halves, percentile_interval

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]

REPEATS = 20  # random halves; the mean of their correlations is reported


def unchanged(values: Floats) -> Floats:
    """[..., layer, head] as it is."""
    return values


def layer_l2(values: Floats) -> Floats:
    """[..., layer, head] over the l2 norm of its layer, as Michel et al. 2019 do; a layer of zeros stays zero."""
    size = np.sqrt(np.nansum(values**2, axis=-1, keepdims=True))
    return values / np.where(size > 0, size, 1)


@dataclass(frozen=True)
class Reliability:
    """How well two random halves of the examples agree on the order of heads; NaN where there are fewer than two."""

    halves: float  # Spearman's rho between halves, the mean over repeats: that of half as many examples
    whole: float  # what the whole set can then be expected to reach: 2 rho / (1 + rho) (Spearman 1910, Brown 1910)


@dataclass(frozen=True, eq=False)
class Importance:
    """What each head matters by one method: the larger, the more. Heads have the numbers of the original model.

    NaN in `values` says that the head is not there. Where single examples can be told, `values` is `finish` of their
    mean; intervals and halves come from resampling them.
    """

    method: str
    values: Floats  # [layer, head]
    per_example: Floats | None = None  # [example, layer, head]
    support: int = 0  # examples that it rests on
    unit: Unit = "ratio"
    meaning: str = ""  # one sentence for a reader
    facts: Mapping[str, Any] = field(default_factory=dict)  # plain values: what was done, and with what
    finish: Callable[[Floats], Floats] = unchanged  # of [..., layer, head]

    def __post_init__(self) -> None:
        if self.values.ndim != 2:
            raise OutputError(f"Importance by {self.method} must be [layer, head], got {self.values.shape}.")
        if self.per_example is None:
            return
        if self.per_example.ndim != 3 or self.per_example.shape[1:] != self.values.shape:
            raise OutputError(
                f"Importance by {self.method}: examples must be [example, layer, head] with {self.values.shape} heads, "
                f"got {self.per_example.shape}."
            )

    @classmethod
    def of_examples(
        cls,
        method: str,
        per_example: Floats,
        *,
        unit: Unit = "ratio",
        meaning: str = "",
        facts: Mapping[str, Any] | None = None,
        finish: Callable[[Floats], Floats] = unchanged,
    ) -> Importance:
        """The mean over examples, finished."""
        values = finish(per_example.mean(axis=0))
        return cls(method, values, per_example, len(per_example), unit, meaning, facts or {}, finish)

    @property
    def present(self) -> NDArray[np.bool_]:
        """[layer, head]: whether the head is there."""
        return ~np.isnan(self.values)

    def replicates(self, weights: Floats) -> Floats:
        """Importance [replicate, head that is there] if examples counted as `weights` [replicate, example] say."""
        if self.per_example is None:
            return np.broadcast_to(self.values[self.present], (len(weights), int(self.present.sum())))
        examples = np.where(self.present, self.per_example, 0).reshape(len(self.per_example), -1)
        means = weights @ examples / weights.sum(axis=1, keepdims=True)
        shaped = np.where(self.present, means.reshape(-1, *self.values.shape), np.nan)
        return self.finish(shaped)[:, self.present]

    def intervals(self, *, seed: int = 0) -> tuple[Floats, Floats]:
        """Ends of the 95% intervals [layer, head] from resampling examples; NaN where there is nothing to resample."""
        low, high = np.full(self.values.shape, np.nan), np.full(self.values.shape, np.nan)
        if self.per_example is not None and len(self.per_example) > 1 and self.present.any():
            draws = self.replicates(bootstrap_weights(len(self.per_example), seed=seed))
            low[self.present], high[self.present] = percentile_interval(draws)
        return low, high

    def split_half(self, *, repeats: int = REPEATS, seed: int = 0) -> Reliability:
        """Rank correlation of the heads between random halves of the examples."""
        if self.per_example is None or len(self.per_example) < 2 or self.present.sum() < 2:
            return Reliability(float("nan"), float("nan"))
        first = halves(len(self.per_example), repeats, seed).astype(np.float64)
        found = float(np.mean(spearman(self.replicates(first), self.replicates(1 - first))))
        return Reliability(found, 2 * found / (1 + found) if found > -1 else float("nan"))

    def table(self, *, seed: int = 0) -> ScoreTable:
        """One metric, `importance.<method>`, with intervals; chance is not known."""
        low, high = self.intervals(seed=seed)
        title = f"Importance by {self.method.replace('_', ' ')}"
        metric = Metric(f"importance.{self.method}", title, self.meaning or f"{title}; larger matters more.", self.unit)
        support = np.where(self.present, float(self.support), 0.0)
        return ScoreTable((metric,), self.values[None], support[None], low[None], high[None], np.array([np.nan]))


def agreement(results: Sequence[Importance], *, replicates: int = REPLICATES, seed: int = 0) -> pd.DataFrame:
    """Spearman's rho of every pair of methods over the heads that both have, with its 95% interval.

    Columns: first, second, spearman, low, high, heads. Methods that were judged on equally many examples are resampled
    together; those without single examples stand still. OutputError where the models have not the same heads.
    """
    import pandas as pd

    if len({result.values.shape for result in results}) > 1:
        shapes = ", ".join(f"{result.method} {result.values.shape}" for result in results)
        raise OutputError(f"Methods can be compared on the same heads only, got [layer, head] of {shapes}.")
    rows = [
        {"first": one.method, "second": other.method, **_pair(one, other, replicates, seed)}
        for place, one in enumerate(results)
        for other in results[place + 1 :]
    ]
    return pd.DataFrame(rows, columns=["first", "second", "spearman", "low", "high", "heads"])


def spearman(first: Floats, second: Floats) -> Floats:
    """Rank correlation along the last axis; equal values share their rank; NaN where one side is constant."""
    from scipy.stats import rankdata

    ranks = [rankdata(values, axis=-1) for values in (first, second)]
    centred = [rank - rank.mean(axis=-1, keepdims=True) for rank in ranks]
    size = np.sqrt((centred[0] ** 2).sum(axis=-1) * (centred[1] ** 2).sum(axis=-1))
    together = (centred[0] * centred[1]).sum(axis=-1)
    return np.where(size > 0, together / np.where(size > 0, size, 1), np.nan)


def _pair(one: Importance, other: Importance, replicates: int, seed: int) -> dict[str, float]:
    both = one.present & other.present
    value = float(spearman(one.values[both], other.values[both])) if both.sum() > 1 else float("nan")
    found = {"spearman": value, "low": float("nan"), "high": float("nan"), "heads": int(both.sum())}
    counts = [0 if each.per_example is None else len(each.per_example) for each in (one, other)]
    if max(counts) > 1 and both.sum() > 1:
        draws = [
            each.replicates(_weights(count, replicates, seed))[:, both[each.present]]
            for each, count in zip((one, other), counts, strict=True)
        ]
        low, high = percentile_interval(spearman(*draws)[:, None])
        found |= {"low": float(low[0]), "high": float(high[0])}
    return found


def _weights(examples: int, replicates: int, seed: int) -> Floats:
    return bootstrap_weights(max(examples, 1), replicates=replicates, seed=seed)
