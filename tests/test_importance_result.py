"""Intervals, halves and agreement of importance, against drawings and against an independent bootstrap."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from headlens.errors import OutputError
from headlens.importance.result import Importance, agreement, layer_l2, spearman


def drawn(seed: int = 0, examples: int = 40, noise: float = 1.0) -> np.ndarray:
    """[example, layer, head]: heads that matter 0 to 5, and noise."""
    rng = np.random.default_rng(seed)
    return np.arange(6.0).reshape(2, 3) + noise * rng.standard_normal((examples, 2, 3))


def test_the_mean_over_examples_is_the_importance() -> None:
    found = Importance.of_examples("loo_zero", np.array([[[1.0, 2.0], [np.nan, -4.0]], [[3.0, 2.0], [np.nan, 0.0]]]))
    assert found.values == pytest.approx(np.array([[2.0, 2.0], [np.nan, -2.0]]), nan_ok=True)
    assert found.present.tolist() == [[True, True], [False, True]]
    assert found.support == 2


def test_intervals_are_those_of_an_independent_bootstrap() -> None:
    examples = drawn() ** 3
    low, high = Importance.of_examples("loo_zero", examples).intervals(seed=1)
    rng = np.random.default_rng(7)
    means = np.stack([examples[rng.integers(0, 40, 40)].mean(axis=0) for _ in range(20_000)])
    expected = np.percentile(means, [2.5, 97.5], axis=0)
    # a percentile of 2,000 replicates has a standard error of some 3% of the interval's width
    assert (np.abs(np.stack([low, high]) - expected) < 0.12 * (expected[1] - expected[0])).all()


def test_what_is_done_to_the_mean_is_done_to_every_replicate() -> None:
    """With two layers of one head each, layer_l2 gives 1 whatever is drawn."""
    examples = np.random.default_rng(0).random((10, 2, 1)) + 1
    found = Importance.of_examples("gradient", examples, finish=layer_l2)
    assert found.values.tolist() == [[1.0], [1.0]]
    assert found.intervals() == (pytest.approx(np.ones((2, 1))), pytest.approx(np.ones((2, 1))))


def test_layer_l2_by_hand() -> None:
    values = np.array([[3.0, 4.0, np.nan], [0.0, 0.0, 0.0]])
    assert layer_l2(values) == pytest.approx(np.array([[0.6, 0.8, np.nan], [0, 0, 0]]), nan_ok=True)


def test_heads_that_are_not_there_have_no_interval_and_no_support() -> None:
    examples = drawn()
    examples[:, 1, 0] = np.nan
    found = Importance.of_examples("loo_zero", examples)
    low, high = found.intervals()
    gone = np.array([[False] * 3, [True, False, False]])
    assert np.array_equal(np.isnan(low), gone)
    assert np.array_equal(np.isnan(high), gone)
    table = found.table()
    assert np.array_equal(np.isnan(table["importance.loo_zero"]), gone)
    assert table.support[0].tolist() == [[40, 40, 40], [0, 40, 40]]


def test_one_example_has_no_interval_and_no_halves() -> None:
    found = Importance.of_examples("loo_zero", drawn(examples=1))
    assert np.isnan(found.intervals()).all()
    assert np.isnan([found.split_half().halves, found.split_half().whole]).all()


def test_halves_of_equal_examples_agree_and_of_noise_do_not() -> None:
    same = Importance.of_examples("loo_zero", drawn(noise=0)).split_half()
    assert (same.halves, same.whole) == (pytest.approx(1), pytest.approx(1))
    noise = np.random.default_rng(3).standard_normal((60, 12, 12))
    assert abs(Importance.of_examples("loo_zero", noise).split_half().halves) < 0.2


def test_halves_by_hand() -> None:
    """Two examples are two halves: ranks 1 2 3 4 against 2 1 3 4, rho = 1 - 6 * 2 / (4 * 15)."""
    examples = np.array([[[1.0, 2.0], [3.0, 4.0]], [[20.0, 10.0], [30.0, 40.0]]])
    found = Importance.of_examples("loo_zero", examples).split_half()
    assert found.halves == pytest.approx(0.8)
    assert found.whole == pytest.approx(2 * 0.8 / 1.8)


def test_a_table_can_be_read_as_any_other() -> None:
    found = Importance.of_examples("loo_mean", drawn(), unit="nats", meaning="What it says.")
    table = found.table(seed=2)
    assert table.names == ("importance.loo_mean",)
    assert (table.metrics[0].unit, table.metrics[0].meaning) == ("nats", "What it says.")
    best = table.best("importance.loo_mean", 1)[0]
    assert (best.name, best.value) == ("L1H2", found.values[1, 2])
    assert best.low < best.value < best.high
    assert np.isnan(best.chance)


@pytest.mark.parametrize(
    ("first", "second"),
    [([1, 2, 3, 4, 5], [2, 1, 3, 5, 4]), ([1, 1, 2, 3, 3], [1, 2, 2, 2, 9]), ([3, 2, 1, 0, -1], [1, 2, 3, 4, 5])],
)
def test_rank_correlation_is_that_of_scipy(first: list[float], second: list[float]) -> None:
    found = spearman(np.array(first, dtype=float), np.array(second, dtype=float))
    assert float(found) == pytest.approx(spearmanr(first, second).statistic)


def test_rank_correlation_of_what_stands_still_is_not_defined() -> None:
    assert np.isnan(spearman(np.ones(4), np.arange(4.0)))


def test_agreement_of_methods() -> None:
    one, other = drawn(0, noise=3), drawn(1, noise=3)
    methods = [Importance.of_examples(name, values) for name, values in (("a", one), ("b", other), ("c", -one))]
    frame = agreement(methods, seed=0)
    assert frame[["first", "second", "heads"]].values.tolist() == [["a", "b", 6], ["a", "c", 6], ["b", "c", 6]]
    assert frame.spearman[0] == pytest.approx(spearmanr(one.mean(axis=0).ravel(), other.mean(axis=0).ravel()).statistic)
    # both are resampled alike, so that a method and its opposite never agree
    assert frame.loc[1, ["spearman", "low", "high"]].tolist() == pytest.approx([-1, -1, -1])
    rng, rhos = np.random.default_rng(5), []
    for _ in range(5000):
        chosen = rng.integers(0, 40, 40)
        rhos.append(spearmanr(one[chosen].mean(axis=0).ravel(), other[chosen].mean(axis=0).ravel()).statistic)
    # rho of six heads moves in steps of 1/35
    assert [frame.low[0], frame.high[0]] == pytest.approx(np.percentile(rhos, [2.5, 97.5]).tolist(), abs=0.06)


def test_agreement_is_over_heads_that_both_have() -> None:
    values = np.arange(6.0).reshape(2, 3)
    less = values.copy()
    less[0, 0] = np.nan
    less[1, 2] = -1
    frame = agreement([Importance("a", values), Importance("b", less)])
    assert frame.heads[0] == 5
    assert frame.spearman[0] == pytest.approx(spearmanr([1, 2, 3, 4, 5], [1, 2, 3, 4, -1]).statistic)
    assert np.isnan([frame.low[0], frame.high[0]]).all()


def test_methods_of_other_models_cannot_be_compared() -> None:
    with pytest.raises(OutputError, match=r"a \(2, 3\), b \(3, 2\)"):
        agreement([Importance("a", np.zeros((2, 3))), Importance("b", np.zeros((3, 2)))])


@pytest.mark.parametrize("shape", [(4, 3, 2), (2, 3)])
def test_examples_of_other_heads_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(OutputError, match="with \\(2, 3\\) heads"):
        Importance("a", np.zeros((2, 3)), np.zeros(shape))
