"""Error bars, halves, tests and their correction for many tests. No torch here.

The unit of resampling is the document: the tokens of one text depend on one another (METHODS of Clark et al. 2019 and
Voita et al. 2019 count tokens; Berg-Kirkpatrick et al. 2012 show why the text is the safe unit). Documents come as
folds, on the first axis of every array.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float64]

REPLICATES = 2000
CONFIDENCE = 0.95

ROUNDING = 1e-5  # per decision; sums of shares in float32 are off by less, and no effect of this size matters
_CONSTANT = 1e-6  # standard error over mean below which the differences of all folds are one number


def bootstrap_weights(folds: int, *, replicates: int = REPLICATES, seed: int = 0) -> Floats:
    """How often each fold is drawn in each replicate, [replicate, fold]: folds are drawn with replacement."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(folds, np.full(folds, 1 / folds), size=replicates).astype(np.float64)


def percentile_interval(replicates: Floats, *, confidence: float = CONFIDENCE) -> tuple[Floats, Floats]:
    """Lower and upper percentile over the first axis.

    Replicates that are NaN (a draw of few documents may hold no case of a rare kind) are left out.
    """
    tail = 50 * (1 - confidence)
    low, high = np.percentile(replicates, [tail, 100 - tail], axis=0)
    some = np.isnan(replicates).any(axis=0) & ~np.isnan(replicates).all(axis=0)
    if some.any():
        low[some], high[some] = np.nanpercentile(replicates[:, some], [tail, 100 - tail], axis=0)
    return low, high


def halves(folds: int, repeats: int, seed: int = 0) -> NDArray[np.bool_]:
    """Random halves, [repeat, fold]: True for folds // 2 of the folds, False for the others."""
    order = np.random.default_rng(seed).random((repeats, folds)).argsort(axis=1)
    return order < folds // 2


def excess_by_fold(correct: Array, null: Array, total: Array) -> Array:
    """Right decisions beyond those under a null, [fold, ..., metric]; what is no more than rounding is exactly 0.

    `correct` and `null` are [fold, ..., metric], `total` (decisions) [fold, metric].
    """
    difference = correct - null
    smallest = ROUNDING * _beside(total, difference.ndim)
    difference[np.abs(difference) <= smallest] = 0
    return difference


def permutation_p(correct: Array, expected: Array, total: Array) -> Floats:
    """One-sided p of every head and metric, [..., metric]: more decisions are right than the permutation null expects.

    `correct` and `expected` are [fold, ..., metric], `total` [fold, metric]; NaN where there is no decision.

    The larger of two: the binomial tail of the pooled counts, which holds for rare events (the tail of decisions of
    unequal chances is no heavier beyond the mean, Hoeffding 1956, theorem 4), and a t test of the folds' differences,
    which holds where decisions of a document depend on one another. With fewer than two folds that is 1.
    """
    from scipy import stats

    decisions = total.sum(axis=0, dtype=np.float64)
    right, null = (counts.sum(axis=0, dtype=np.float64) for counts in (correct, expected))
    with np.errstate(invalid="ignore"):
        tail = stats.binom.sf(right - 1, decisions, np.clip(null / decisions, 0, 1))
    return np.maximum(tail, _folds_p(correct, expected, total))


def paired_t_p(correct: Array, baseline: Array, total: Array) -> Floats:
    """One-sided p of every head and metric, [..., metric]: more decisions are right than a baseline gets right.

    `correct` is [fold, ..., metric], `baseline` and `total` [fold, metric]; NaN where there is no decision or no
    baseline. The larger of two: a t test of the folds' differences, and the smallest p that a sign test of single
    decisions can give when `n` more of them are right (McNemar 1947), 0.5 ** n.
    """
    aligned = _beside(baseline, correct.ndim)
    gained = correct.sum(axis=0, dtype=np.float64) - aligned.sum(axis=0, dtype=np.float64)
    floor = 0.5 ** np.maximum(gained, 0)
    return np.maximum(floor, _folds_p(correct, aligned, total))


def benjamini_hochberg(p: Floats) -> Floats:
    """Adjusted p, of any shape: below q, they hold a share of at most q of false finds (Benjamini & Hochberg 1995).

    All p that are not NaN are one family; NaN stays NaN.
    """
    from scipy import stats

    adjusted = np.full(p.shape, np.nan)
    tested = ~np.isnan(p)
    if tested.any():
        adjusted[tested] = stats.false_discovery_control(p[tested], method="bh")
    return adjusted


def max_statistic_p(differences: Array, *, replicates: int = REPLICATES, seed: int = 0) -> float:
    """p that any head is above its null, one-sided: holds for all heads together, however they depend on one another.

    `differences` is [fold, ...], as from `excess_by_fold`; heads with a NaN are left out. The largest studentised sum
    is held against the largest after the differences of each fold are multiplied by a random sign, the same for all
    heads (Westfall & Young 1993): p = (1 + #{as large or larger}) / (1 + replicates).
    """
    columns = differences.reshape(len(differences), -1).astype(np.float32)
    size = np.sqrt((columns.astype(np.float64) ** 2).sum(axis=0))
    moving = size > 0  # False for NaN
    if not moving.any():
        return 1.0
    # the sum over the root of the sum of squares: it orders as the t statistic does, and signs leave its base as it is
    scaled = columns[:, moving] / size[moving].astype(np.float32)
    coins = np.random.default_rng(seed).integers(0, 2, (replicates, len(scaled)), dtype=np.int8)
    largest = ((2 * coins - 1).astype(np.float32) @ scaled).max(axis=1)
    as_large = largest >= scaled.sum(axis=0).max() - 1e-4  # of float32, where sums of up to 1e6 terms agree
    return float((1 + as_large.sum()) / (1 + replicates))


def _folds_p(correct: Array, null: Array, total: Array) -> Floats:
    """p of one-sided t tests over the folds that hold decisions; [..., metric].

    In slices of the second axis, so that only one is held in float64.
    """
    if correct.ndim == 2:
        return _slice_p(correct, null, total)
    null = np.broadcast_to(null, correct.shape)
    return np.stack([_slice_p(correct[:, place], null[:, place], total) for place in range(correct.shape[1])])


def _slice_p(correct: Array, null: Array, total: Array) -> Floats:
    from scipy import stats

    difference = excess_by_fold(correct.astype(np.float64), null.astype(np.float64), total)
    asked = _beside(total > 0, difference.ndim)
    folds = (total > 0).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = difference.sum(axis=0) / folds
        squares = (np.where(asked, difference - mean, 0) ** 2).sum(axis=0)
        error = np.sqrt(squares / (folds - 1) / folds)
        constant = error <= _CONSTANT * np.abs(mean)
        p = stats.t.sf(mean / error, folds - 1)
    p = np.where(constant, np.where(mean > 0, 0.0, 1.0), p)
    p = np.where(folds == 1, 1.0, p)
    return np.where((folds == 0) | np.isnan(mean), np.nan, p)


def _beside(by_fold: Array, axes: int) -> Array:
    """[fold, metric] with axes of length 1 between, to stand beside an array of so many axes."""
    return np.expand_dims(by_fold, tuple(range(1, axes - 1)))
