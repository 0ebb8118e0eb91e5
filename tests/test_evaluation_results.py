"""Figures, their intervals, and differences between two results."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from headlens.errors import CorpusError
from headlens.evaluation.pairing import Difference, difference_to_mean, paired_difference
from headlens.evaluation.results import (
    Metric,
    TaskResult,
    exponential,
    fingerprint,
    interval,
    mean,
    pearson,
    ratio,
    spearman,
)
from headlens.significance import bootstrap_weights

LOSS = Metric("perplexity", exponential("loss", "tokens"), higher_is_better=False, alike=("tokens",))
RIGHT = Metric("accuracy", mean("right"), higher_is_better=True)


def result(
    metric: Metric, content: str = "same", items: tuple[str, ...] | None = None, **columns: object
) -> TaskResult:
    arrays = {name: np.array(column, float) for name, column in columns.items()}
    count = len(next(iter(arrays.values())))
    return TaskResult(
        "task:file",
        (metric,),
        arrays,
        items or tuple(map(str, range(count))),
        fingerprint(content),
        {"a": 1},
        ("note",),
    )


ONCE = np.ones((1, 3))


def test_a_perplexity_is_e_to_the_mean_over_tokens_not_over_documents() -> None:
    columns = {"loss": np.array([1.0, 4.0, 1.0]), "tokens": np.array([1.0, 2.0, 3.0])}
    assert exponential("loss", "tokens")(columns, ONCE).tolist() == [math.e]
    assert exponential("loss", "tokens")(columns, np.array([[0.0, 2.0, 0.0]])).tolist() == [math.exp(2)]


def test_a_mean_counts_an_item_as_often_as_it_was_drawn() -> None:
    weights = np.array([[1.0, 1, 1], [3, 0, 0], [0, 1, 2]])
    assert mean("right")({"right": np.array([1.0, 0.5, 0.0])}, weights).tolist() == [0.5, 1.0, 0.5 / 3]


def test_a_ratio_without_anything_asked_is_not_a_number() -> None:
    assert np.isnan(ratio("right", "asked")({"right": np.zeros(3), "asked": np.zeros(3)}, ONCE)).all()


@pytest.mark.parametrize("by_hand", [(spearman, stats.spearmanr), (pearson, stats.pearsonr)], ids=["ranks", "values"])
def test_correlations_equal_scipy_on_the_drawn_items(by_hand) -> None:
    ours, theirs = by_hand
    rng = np.random.default_rng(3)
    columns = {"x": rng.integers(0, 6, 30).astype(float), "y": rng.normal(size=30)}  # with many ties
    weights = bootstrap_weights(30, replicates=5, seed=1)
    expected = [
        theirs(*(np.repeat(columns[name], times.astype(int)) for name in ("x", "y"))).statistic for times in weights
    ]
    assert ours("x", "y")(columns, weights) == pytest.approx(expected, abs=1e-12)


def test_a_correlation_with_a_constant_is_not_a_number() -> None:
    assert np.isnan(spearman("x", "y")({"x": np.ones(3), "y": np.arange(3.0)}, ONCE)).all()


def test_an_interval_of_a_share_is_that_of_the_binomial() -> None:
    found = result(RIGHT, right=[1] * 300 + [0] * 100)
    half = 1.96 * math.sqrt(0.75 * 0.25 / 400)
    assert found.value == 0.75
    assert found.low == pytest.approx(0.75 - half, abs=0.006)
    assert found.high == pytest.approx(0.75 + half, abs=0.006)


def test_an_interval_resamples_items_not_tokens() -> None:
    """Two kinds of documents; with tokens resampled the interval would be ten times narrower."""
    loss = np.array([100.0, 300.0] * 10)
    found = result(LOSS, loss=loss, tokens=np.full(20, 100))
    spread = 1.96 * 1.0 / math.sqrt(20)  # of the mean loss, nats a token
    assert math.log(found.high) - math.log(found.low) == pytest.approx(2 * spread, rel=0.1)


def test_blocks_of_draws_are_the_draws_of_significance(monkeypatch: pytest.MonkeyPatch) -> None:
    right = np.array([1.0, 0, 0, 1, 1, 1, 0])
    replicates = bootstrap_weights(7, seed=4) @ right / 7
    monkeypatch.setattr("headlens.evaluation.results._BLOCK", 7 * 300)
    low, high = interval(mean("right"), [{"right": right}], seed=4)
    assert (low, high) == pytest.approx(np.percentile(replicates, [2.5, 97.5]).tolist(), abs=1e-12)


def test_a_single_item_has_no_interval() -> None:
    found = result(RIGHT, right=[1])
    assert found.value == 1
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_a_result_is_written_as_plain_values() -> None:
    found = result(RIGHT, right=[1]).to_dict()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["items"] == 1
    assert found["figures"] == [
        {"metric": "accuracy", "value": 1.0, "low": None, "high": None, "higher_is_better": True, "decisions": 1}
    ]


def test_a_figure_says_how_many_decisions_it_rests_on() -> None:
    """Eight tokens of two documents are not two."""
    of_tokens = replace(LOSS, decisions=("tokens", "token"))
    found = replace(result(of_tokens, loss=[1, 2], tokens=[3, 5]), item="document")
    assert found.figures[0].decisions == 8
    assert found.extent("perplexity") == "8 tokens in 2 documents"
    assert repr(found).endswith(", 8 tokens in 2 documents>")
    plain = result(RIGHT, right=[1, 0, 1])
    assert (plain.figures[0].decisions, plain.extent("accuracy")) == (3, "3 items")


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(CorpusError, match=r"task:file has the metrics accuracy, not 'recall'\."):
        result(RIGHT, right=[1, 0]).figure("recall")


# --------------------------------------------------------------------------------------------------------- differences


def test_a_difference_that_is_the_same_for_every_item_has_no_width() -> None:
    before, after = result(RIGHT, right=[0.5, 0.25, 1, 0]), result(RIGHT, right=[0.75, 0.5, 1.25, 0.25])
    found = paired_difference(after, before)
    assert found == Difference("task:file", "accuracy", 0.25, 0.25, 0.25, True)
    assert (found.is_better, found.is_worse) == (True, False)


def test_a_difference_is_of_the_same_drawn_items() -> None:
    """Items differ much more among themselves than the two models do on any of them."""
    rng = np.random.default_rng(0)
    loss, more = rng.uniform(1, 9, 60), rng.uniform(0.05, 0.15, 60)
    before = result(LOSS, loss=loss, tokens=np.ones(60))
    after = result(LOSS, loss=loss + more, tokens=np.ones(60))
    found = paired_difference(after, before)
    assert found.value == pytest.approx(math.exp((loss + more).mean()) - math.exp(loss.mean()))
    assert found.low > 0
    assert (found.is_better, found.is_worse) == (False, True)
    back = paired_difference(before, after)
    assert (back.is_better, back.is_worse) == (True, False)
    assert before.low < after.value < before.high  # unpaired intervals would tell nothing


def test_a_difference_within_chance_is_neither_better_nor_worse() -> None:
    found = paired_difference(result(RIGHT, right=[1, 0, 1, 0]), result(RIGHT, right=[0, 1, 1, 0]))
    assert found.value == 0
    assert (found.is_better, found.is_worse) == (False, False)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (result(RIGHT, right=[1, 0]), "has 3 items and task:file has 2"),
        (result(RIGHT, items=("0", "7", "2"), right=[1, 0, 0]), "asks 1 where task:file asks 7"),
        (result(RIGHT, "else", right=[1, 0, 0]), "items of the same names that are not the same"),
    ],
)
def test_results_of_other_items_are_refused(other: TaskResult, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        paired_difference(result(RIGHT, right=[1, 0, 1]), other)


def test_perplexities_per_token_of_two_tokenizers_are_refused() -> None:
    one, other = (result(LOSS, loss=[1, 2], tokens=tokens) for tokens in ([3, 4], [3, 5]))
    with pytest.raises(CorpusError, match="perplexity cannot be compared, because the tokens of the two models differ"):
        paired_difference(one, other)


def test_beside_several_a_mean_over_items_is_held_against_the_mean_of_theirs() -> None:
    """Which is linear, so the items' own means are one result that says the same in every replicate."""
    own, first, second = ([1, 0.5, 0, 1, 0.25], [0, 0.5, 1, 0, 0.75], [1, 0, 0.5, 0.5, 0.25])
    found = difference_to_mean(result(RIGHT, right=own), [result(RIGHT, right=first), result(RIGHT, right=second)])
    middle = result(RIGHT, right=[(one + other) / 2 for one, other in zip(first, second, strict=True)])
    expected = paired_difference(result(RIGHT, right=own), middle)
    assert found.value == pytest.approx(0.55 - 0.45)
    assert [found.low, found.high] == pytest.approx([expected.low, expected.high])
    assert found.low < found.value < found.high


def test_beside_several_the_figures_are_averaged_and_not_the_columns() -> None:
    share = Metric("share", ratio("right", "asked"), higher_is_better=True)
    others = [result(share, right=[1, 0], asked=[1, 3]), result(share, right=[1, 1], asked=[1, 1])]
    assert difference_to_mean(result(share, right=[1, 1], asked=[1, 1]), others).value == 1 - (1 / 4 + 1) / 2


def test_beside_several_all_must_have_been_asked_the_same() -> None:
    one, other = result(RIGHT, right=[1, 0]), result(RIGHT, content="other", right=[1, 0])
    with pytest.raises(CorpusError, match="are not the same"):
        difference_to_mean(one, [one, other])
