"""Halves, tests and their correction: by hand, against textbook code, and calibrated on data without any effect."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from headlens.significance import (
    benjamini_hochberg,
    excess_by_fold,
    halves,
    max_statistic_p,
    paired_t_p,
    permutation_p,
)

NAN = float("nan")
# t of the differences 10, 20, 30: mean 20, standard deviation 10, so t = 20 / (10 / sqrt(3)) on 2 degrees of freedom,
# whose distribution function is 1/2 + t / (2 sqrt(2 + t^2))
T = 2 * math.sqrt(3)
P_OF_T = 0.5 - T / (2 * math.sqrt(2 + T**2))


def one_head(*by_fold: float) -> np.ndarray:
    """[fold, layer, head, metric] of one head and metric."""
    return np.array(by_fold, dtype=np.float64)[:, None, None, None]


def one_metric(*by_fold: float) -> np.ndarray:
    return np.array(by_fold, dtype=np.float64)[:, None]


# -------------------------------------------------------------------------------------------------------------- halves


@pytest.mark.parametrize(("folds", "size"), [(1, 0), (2, 1), (3, 1), (10, 5), (11, 5)])
def test_a_half_holds_half_of_the_folds(folds: int, size: int) -> None:
    first = halves(folds, 50, seed=3)
    assert first.shape == (50, folds)
    assert first.dtype == bool
    np.testing.assert_array_equal(first.sum(axis=1), size)


def test_all_halves_are_as_frequent() -> None:
    drawn = [tuple(np.flatnonzero(row)) for row in halves(4, 6000, seed=0)]
    pairs = list(itertools.combinations(range(4), 2))
    assert stats.chisquare([drawn.count(pair) for pair in pairs]).pvalue > 0.01


def test_halves_follow_from_the_seed() -> None:
    np.testing.assert_array_equal(halves(9, 5, seed=1), halves(9, 5, seed=1))
    assert (halves(9, 5, seed=1) != halves(9, 5, seed=2)).any()


# --------------------------------------------------------------------------------------------------------- differences


def test_rounding_is_no_difference() -> None:
    total = one_metric(100, 100, 100)
    found = excess_by_fold(one_head(90, 90, 90), one_head(90.0004, 89.9996, 89.99), total)
    np.testing.assert_allclose(found.ravel(), [0, 0, 0.01], atol=1e-9)
    assert (found.ravel()[:2] == 0).all()


# ------------------------------------------------------------------------------------------------------ permutation p


def test_documents_that_differ_much_decide() -> None:
    p = permutation_p(one_head(60, 70, 80), one_head(50, 50, 50), one_metric(100, 100, 100))
    np.testing.assert_allclose(p, [[[P_OF_T]]], rtol=1e-12)


def test_rare_events_are_left_to_the_binomial() -> None:
    p = permutation_p(one_head(1, 1, 1), one_head(0.5, 0.5, 0.5), one_metric(1, 1, 1))
    np.testing.assert_allclose(p, [[[0.125]]], rtol=1e-12)  # three coins, all heads


def test_a_fold_without_a_decision_does_not_matter() -> None:
    p = permutation_p(one_head(60, 0, 70, 80), one_head(50, 0, 50, 50), one_metric(100, 0, 100, 100))
    np.testing.assert_allclose(p, [[[P_OF_T]]], rtol=1e-12)


@pytest.mark.parametrize(
    ("correct", "expected", "total", "p"),
    [
        ([20], [2], [20], 1.0),  # a single document
        ([20, 0], [2, 0], [20, 0], 1.0),
        ([9, 9, 8], [9 + 1e-6, 9 - 1e-6, 8 - 2e-6], [10, 10, 10], 1.0),  # a head that heeds position alone
        ([0, 0], [0, 0], [0, 0], NAN),
        ([NAN, NAN], [1, 1], [9, 9], NAN),
        ([3, 4], [NAN, NAN], [9, 9], NAN),
        ([0, 0, 0], [1, 1, 1], [9, 9, 9], 1.0),
    ],
)
def test_where_nothing_can_be_said(correct: Any, expected: Any, total: Any, p: float) -> None:
    found = permutation_p(one_head(*correct), one_head(*expected), one_metric(*total))
    np.testing.assert_array_equal(found, [[[p]]])


def test_every_head_and_metric_is_tested_as_by_scipy() -> None:
    rng = np.random.default_rng(5)
    total = rng.integers(1, 30, (7, 3))
    expected = total[:, None, None] * rng.uniform(0.1, 0.4, (7, 2, 4, 3))
    correct = rng.binomial(total[:, None, None], 0.4, (7, 2, 4, 3))
    found = permutation_p(correct, expected, total)
    assert found.shape == (2, 4, 3)
    for layer, head, metric in np.ndindex(2, 4, 3):
        right, null, asked = correct[:, layer, head, metric], expected[:, layer, head, metric], total[:, metric]
        by_fold = stats.ttest_1samp(right - null, 0, alternative="greater").pvalue
        pooled = stats.binomtest(right.sum(), asked.sum(), null.sum() / asked.sum(), alternative="greater").pvalue
        assert found[layer, head, metric] == pytest.approx(max(by_fold, pooled), rel=1e-9)


# ------------------------------------------------------------------------------------------------------------ paired p


@pytest.mark.parametrize(
    ("correct", "baseline", "p"),
    [
        ([60, 70, 80], [50, 50, 50], P_OF_T),
        ([50, 50, 50], [60, 70, 80], 1.0),
        ([3, 4], [2, 3], 0.25),  # two more are right: as two coins, both heads
        ([5, 5], [5, 5], 1.0),
        ([50, 50], [NAN, NAN], NAN),
    ],
)
def test_a_head_against_a_baseline(correct: Any, baseline: Any, p: float) -> None:
    found = paired_t_p(one_head(*correct), one_metric(*baseline), one_metric(*[100] * len(correct)))
    np.testing.assert_allclose(found, [[[p]]], rtol=1e-12)


def test_each_metric_has_its_own_baseline() -> None:
    correct = np.stack([np.tile([60.0, 70.0, 80.0], (2, 1)).T, np.full((3, 2), 50.0)], axis=-1)[:, None]
    baseline = np.array([[50.0, 50.0], [50.0, 50.0], [50.0, 50.0]])
    found = paired_t_p(correct, baseline, np.full((3, 2), 100.0))
    np.testing.assert_allclose(found, [[[P_OF_T, 1.0], [P_OF_T, 1.0]]], rtol=1e-12)


# ---------------------------------------------------------------------------------------------------------- correction


def test_benjamini_hochberg_by_hand() -> None:
    p = np.array([[0.01, 0.04, NAN], [0.03, 0.005, NAN]])
    # in order .005 .01 .03 .04, times 4 / rank: .02 .02 .04 .04
    np.testing.assert_allclose(benjamini_hochberg(p), [[0.02, 0.04, NAN], [0.04, 0.02, NAN]], rtol=1e-12)


def test_an_empty_family_has_no_adjusted_p() -> None:
    np.testing.assert_array_equal(benjamini_hochberg(np.array([NAN, NAN])), [NAN, NAN])


# ------------------------------------------------------------------------------------------------------- max statistic


def within(p: float, exact: float) -> bool:
    """Within four standard errors of 2000 draws, and the 1 that both parts of the fraction carry."""
    return abs(p - exact) < 4 * math.sqrt(exact * (1 - exact) / 2000) + 1 / 2000


def test_one_head_that_is_always_above() -> None:
    assert within(max_statistic_p(np.ones((4, 1, 1))), 1 / 16)  # only if all four coins fall alike


def test_no_p_is_smaller_than_the_draws_can_tell() -> None:
    assert max_statistic_p(np.ones((60, 2)), replicates=500) == pytest.approx(1 / 501)


def test_heads_that_depend_on_one_another_count_once() -> None:
    assert within(max_statistic_p(np.ones((4, 3, 5))), 1 / 16)


def test_heads_that_differ_count_each() -> None:
    up, down = np.ones((4, 1)), -np.ones((4, 1))
    assert within(max_statistic_p(np.concatenate([up, down], axis=1)), 2 / 16)


def test_a_loud_head_does_not_drown_a_quiet_one() -> None:
    loud = np.array([[1e6], [-1e6], [1e6], [-1e6], [1e6], [-1e6]])
    assert max_statistic_p(np.concatenate([loud, np.ones((6, 1))], axis=1)) < 0.1


def test_against_all_patterns_of_signs() -> None:
    differences = np.random.default_rng(3).normal(0.1, 1, (8, 5))
    size = np.sqrt((differences**2).sum(axis=0))
    patterns = np.array(list(itertools.product([-1, 1], repeat=8)))
    largest = (patterns @ differences / size).max(axis=1)
    exact = (largest >= (differences.sum(axis=0) / size).max() - 1e-9).mean()
    assert 0.02 < exact < 0.5
    assert within(max_statistic_p(differences), exact)


@pytest.mark.parametrize("differences", [np.zeros((5, 2)), np.full((5, 2), NAN), np.zeros((5, 0))])
def test_no_head_that_moves_is_no_evidence(differences: np.ndarray) -> None:
    assert max_statistic_p(differences) == 1.0


def test_an_absent_head_is_left_out() -> None:
    differences = np.ones((4, 2))
    differences[0, 0] = NAN
    assert max_statistic_p(differences) == max_statistic_p(np.ones((4, 1)))


def test_below_the_null_is_no_evidence() -> None:
    assert max_statistic_p(-np.ones((6, 3))) == 1.0


# --------------------------------------------------------------------------------------------------------- calibration

HEADS = (4, 36)


def noise(
    seed: int, folds: int, items: int, rate: float, *, spread: float = 0.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Right, expected and all decisions of heads without a skill, in documents of unequal length.

    `spread` is the standard deviation of a document's own rate, in units of the rate.
    """
    rng = np.random.default_rng(seed)
    total = rng.multinomial(items, rng.dirichlet(np.full(folds, 2.0)))[:, None]
    shape = (folds, *HEADS, 1)
    own = np.clip(rate * (1 + spread * rng.uniform(-math.sqrt(3), math.sqrt(3), shape)), 0, 1)
    correct = rng.binomial(total[:, None, None], own)
    return correct, np.broadcast_to(total[:, None, None] * rate, shape), total


@pytest.mark.parametrize("spread", [0.0, 0.5])
@pytest.mark.parametrize("folds", [10, 50, 200])
def test_random_heads_are_rarely_significant(folds: int, spread: float) -> None:
    cases = itertools.product([30, 150, 600, 2000], [0.03, 0.1, 0.25, 0.5])
    found = [
        permutation_p(*noise(seed, folds, items, rate, spread=spread)) < 0.05
        for seed, (items, rate) in enumerate(cases)
    ]
    assert 0.02 < np.mean(found) < 0.065
    assert max(np.mean(case) for case in found) < 0.10


def test_attention_without_structure_is_rarely_significant() -> None:
    drawn = [random_choices(documents=40, sentences=5, words=12, heads=100, seed=seed) for seed in range(20)]
    assert 0.02 < np.mean([permutation_p(*case) < 0.05 for case in drawn]) < 0.065


def test_a_head_with_a_skill_beyond_position_is_significant() -> None:
    correct, expected, total = random_choices(documents=60, sentences=5, words=12, heads=300, seed=1, skill=0.2)
    assert (benjamini_hochberg(permutation_p(correct, expected, total)) < 0.05).mean() > 0.95


@pytest.mark.parametrize(("folds", "rate"), [(10, 0.1), (40, 0.03), (40, 0.3), (200, 0.1)])
def test_the_max_statistic_holds_its_level(folds: int, rate: float) -> None:
    drawn = [noise(seed, folds, 300, rate, spread=0.5) for seed in range(120)]
    p = np.array([max_statistic_p(excess_by_fold(*case), replicates=300, seed=0) for case in drawn])
    assert stats.binomtest(int((p <= 0.05).sum()), len(p), 0.05, alternative="greater").pvalue > 0.01
    assert p.min() < 0.3  # and is no constant


def test_corrected_finds_among_random_heads_are_rare() -> None:
    seeds_with_finds = 0
    for seed in range(20):
        shapes = [(30, 0.03), (100, 0.1), (300, 0.3), (1000, 0.5), (2000, 0.1)]
        p = [permutation_p(*noise(100 * seed + i, 60, n, rate, spread=0.3)) for i, (n, rate) in enumerate(shapes)]
        seeds_with_finds += bool((benjamini_hochberg(np.stack(p)) < 0.05).any())
    assert seeds_with_finds <= 1


def random_choices(
    documents: int, sentences: int, words: int, heads: int, seed: int, skill: float = 0.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every word of a sentence chooses another, with a taste for short distances; one word of each has a gold target.

    Where in the sentence a gold pair of some distance stands is drawn evenly, as the null has it.
    Expected under the permutation null: of the words that have a word at the distance of the target, the share that
    choose it. `skill`: how often the word with the target chooses it, come what may.
    """
    rng = np.random.default_rng(seed)
    place = np.arange(words)
    taste = np.exp(-np.abs(place[:, None] - place) / 2) * (1 - np.eye(words))
    edges = (taste / taste.sum(axis=1, keepdims=True)).cumsum(axis=1)
    shape = (documents, sentences)
    step = rng.choice([-3, -2, -1, 1, 2, 3], shape)
    dependent = rng.integers(np.maximum(0, -step), np.minimum(words, words - step))
    target = dependent + step
    choice = (rng.random((*shape, heads, words, 1)) > edges).sum(axis=-1).clip(max=words - 1)
    knows = rng.random((*shape, heads)) < skill
    own = np.take_along_axis(choice, dependent[:, :, None, None], axis=3)[..., 0]
    own = np.where(knows, target[..., None], own)
    np.put_along_axis(choice, dependent[:, :, None, None], own[..., None], axis=3)
    share = (choice - place == step[..., None, None]).sum(axis=-1) / (words - np.abs(step))[..., None]
    correct = (own == target[..., None]).sum(axis=1)
    total = np.full((documents, 1), sentences)
    return correct[:, None, :, None], share.sum(axis=1)[:, None, :, None], total
