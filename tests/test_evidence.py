"""Evidence from right and wrong decisions: planted heads are found, luck is not, and halves never judge themselves."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from scipy import stats

from headlens.errors import OutputError
from headlens.evidence import Rival, Trials, weigh
from headlens.evidence_table import (
    ABOVE,
    CHANCE,
    EXPLAINED,
    NOT_TESTED,
    ONE_DOCUMENT,
    SLIGHT,
    TOO_FEW,
    UNDECIDED,
    VERDICTS,
    Baseline,
    Evidence,
    Settings,
    verdict_of,
)
from headlens.significance import bootstrap_weights, halves

NAN = float("nan")
TO_HEAD, FROM_HEAD = "syntax.dep_to_head[nsubj]", "syntax.head_to_dep[nsubj]"


def noise(
    folds: int = 40,
    items: int = 10,
    metrics: int = 4,
    *,
    rate: float = 0.2,
    seed: int = 0,
    heads: tuple[int, int] = (4, 12),
) -> Trials:
    """Heads, profiles and offsets that are right by luck; metrics in pairs of one relation."""
    rng = np.random.default_rng(seed)
    total = rng.poisson(items, (folds, metrics))
    shape = (folds, *heads, metrics)
    return Trials(
        names=tuple(f"m{place}" for place in range(metrics)),
        total=total,
        correct=rng.binomial(total[:, None, None], rate, shape),
        chance=total * rate,
        profile=rng.binomial(total[:, None, None], rate, shape),
        expected=np.broadcast_to(total[:, None, None] * rate, shape),
        rivals={"offset": Rival(("-1", "+1"), rng.binomial(total[:, :, None], rate, (folds, metrics, 2)))},
        relation_of=tuple(f"r{place // 2}" for place in range(metrics)),
    )


def with_head(trials: Trials, metric: int, layer: int, head: int, accuracy: float, **nulls: float) -> Trials:
    """With one head of some accuracy in all documents; `nulls` gives the shares of its expected and its profile."""
    arrays = {"correct": accuracy, **nulls}
    changed = {name: np.array(getattr(trials, name)) for name in arrays}
    for name, share in arrays.items():
        right = trials.total[:, metric] * share
        changed[name][:, layer, head, metric] = right if name == "expected" else np.floor(right)
    return dataclasses.replace(trials, **changed)  # type: ignore[arg-type]


def by_hand() -> Trials:
    """Two documents, so every repeat has the same halves; two heads of one layer, two directions of one relation."""
    return Trials(
        names=(TO_HEAD, FROM_HEAD),
        total=np.array([[10, 10], [10, 10]]),
        correct=np.array([[[[8, 1], [5, 9]]], [[[3, 2], [6, 5]]]]),
        chance=np.array([[1, 1], [2, 1]]),
        profile=np.array([[[[4, 1], [1, 1]]], [[[2, 1], [3, 4]]]]),
        rivals={"offset": Rival(("-1", "+1"), np.array([[[4, 2], [3, 0]], [[1, 5], [0, 1]]]))},
        relation_of=("nsubj", "nsubj"),
    )


# ------------------------------------------------------------------------------------------------------- hand and loop


def test_a_half_chooses_and_the_other_judges() -> None:
    # document 0 chooses head 0 (8 of 10), which gets 3 of document 1; that chooses head 1, which gets 5 of document 0
    row = weigh(by_hand(), minimum=1)[TO_HEAD]
    assert (row.name, row.share, row.decisions, row.documents) == ("L0H0", 0.5, 20, 2)
    assert row.chance == pytest.approx(3 / 20)
    assert row.value == pytest.approx(11 / 20)
    assert row.held_out == pytest.approx((3 + 5) / 20)
    # resampled, the documents come as 0 0, 1 1 or both: 5/10, 3/10 or 8/20, the extremes in a quarter each
    assert (row.low, row.high) == (pytest.approx(0.3), pytest.approx(0.5))


def test_rivals_are_chosen_as_heads_are() -> None:
    # document 0 chooses -1, which gets 1 of document 1; that chooses +1, which gets 2 of document 0
    offset = weigh(by_hand(), minimum=1)[TO_HEAD].baselines["offset"]
    assert offset.option == "-1"
    assert offset.held_out == pytest.approx(3 / 20)
    assert offset.difference == pytest.approx((3 - 1 + 5 - 2) / 20)
    assert (offset.low, offset.high) == (pytest.approx(0.2), pytest.approx(0.3))
    assert offset.full == pytest.approx(7 / 20)  # of +1


def test_the_profile_is_that_of_the_chosen_head() -> None:
    profile = weigh(by_hand(), minimum=1)[TO_HEAD].baselines["profile"]
    assert profile.option == ""
    assert profile.held_out == pytest.approx((2 + 1) / 20)
    assert profile.full == pytest.approx(6 / 20)


def test_a_direction_is_chosen_with_the_head() -> None:
    # document 0 chooses head 1 the other way (9), which gets 5 of document 1; that chooses head 1 this way (6), which
    # gets 5 of document 0. The offsets for these: -1 the other way gets 0; +1 this way gets 2.
    (relation,) = weigh(by_hand(), minimum=1).relations
    assert (relation.relation, relation.metrics) == ("nsubj", (TO_HEAD, FROM_HEAD))
    assert (relation.metric, relation.name, relation.share) == (TO_HEAD, "L0H1", 0.5)
    assert relation.held_out == pytest.approx((5 + 5) / 20)
    assert relation.baselines["offset"].held_out == pytest.approx((0 + 2) / 20)
    assert relation.baselines["profile"].held_out == pytest.approx((4 + 1) / 20)


def test_directions_with_unlike_numbers_of_decisions() -> None:
    total = np.array([[10, 10], [10, 20]])  # the choices are as before, and 5 of 20 right where it was 5 of 10
    (relation,) = weigh(dataclasses.replace(by_hand(), total=total), minimum=1).relations
    assert relation.held_out == pytest.approx((5 + 5) / 30)
    assert relation.baselines["profile"].held_out == pytest.approx((4 + 1) / 30)
    # resampled, one document alone is judged by the choice of the other: 5 of 10, or 5 of 20
    assert (relation.low, relation.high) == (pytest.approx(0.25), pytest.approx(0.5))


def test_excess_and_best_rival() -> None:
    evidence = weigh(by_hand(), minimum=1)
    np.testing.assert_allclose(evidence.best_rival, [7 / 20, 3 / 20])
    np.testing.assert_allclose(evidence.excess, [[[4 / 20, 4 / 20]], [[0, 11 / 20]]], atol=1e-12)
    with_null = dataclasses.replace(by_hand(), expected=np.full((2, 1, 2, 2), [2.0, NAN]))
    np.testing.assert_allclose(weigh(with_null, minimum=1).excess, [[[7 / 20, 7 / 20]], [[0, 11 / 20]]], atol=1e-12)


@pytest.mark.parametrize("relation", [False, True])
@pytest.mark.parametrize("folds", [3, 8])
def test_equal_to_slow_loops(folds: int, relation: bool) -> None:
    trials = noise(folds, items=4, metrics=2, seed=folds, heads=(2, 3))
    evidence = weigh(trials, seed=7, repeats=5, minimum=1)
    rows = evidence.relations if relation else evidence.metrics
    for place, row in enumerate(rows):
        slow = slow_held_out(trials, [0, 1] if relation else [place], seed=7, repeats=5)
        found = {"": (row.held_out, row.low, row.high)}
        found |= {name: (b.difference, b.low, b.high) for name, b in row.baselines.items()}
        assert found.keys() == slow.keys()
        for name in slow:
            assert found[name] == pytest.approx(slow[name], abs=1e-12)


def slow_held_out(trials: Trials, members: list[int], seed: int, repeats: int) -> dict[str, tuple[float, float, float]]:
    """Held-out accuracy and differences with their intervals, document by document."""
    folds = len(trials.total)
    layers, heads = trials.correct.shape[1:3]
    cells = list(itertools.product(members, range(layers), range(heads)))
    assert trials.profile is not None

    def share(counts: np.ndarray, total: np.ndarray, group: list[int]) -> float:
        asked = sum(total[f] for f in group)
        return sum(float(counts[f]) for f in group) / asked if asked else -1.0

    terms: list[dict[str, tuple[int, float, float]]] = []  # name -> (document, what is summed, decisions)
    for first in halves(folds, repeats, seed):
        sides = ([f for f in range(folds) if first[f]], [f for f in range(folds) if not first[f]])
        used = []
        for choosing, judging in (sides, sides[::-1]):
            accuracy = [share(trials.correct[:, i, j, m], trials.total[:, m], choosing) for m, i, j in cells]
            if max(accuracy) < 0:
                break
            m, i, j = cells[accuracy.index(max(accuracy))]
            rival = trials.rivals["offset"].correct[:, m]
            offsets = [share(rival[:, o], trials.total[:, m], choosing) for o in range(2)]
            option = offsets.index(max(offsets))
            for f in judging:
                right, asked = float(trials.correct[f, i, j, m]), float(trials.total[f, m])
                used.append(
                    {
                        "": (f, right, asked),
                        "profile": (f, right - float(trials.profile[f, i, j, m]), asked),
                        "offset": (f, right - float(rival[f, option]), asked),
                    }
                )
        else:
            terms += used

    found = {}
    for name in ("", "profile", "offset"):
        values = []
        for weight in (np.ones(folds), *bootstrap_weights(folds, seed=seed)):
            summed = sum(weight[f] * value for f, value, _ in (term[name] for term in terms))
            asked = sum(weight[f] * n for f, _, n in (term[name] for term in terms))
            values.append(summed / asked if asked else NAN)
        low, high = np.nanpercentile(values[1:], [2.5, 97.5])
        found[name] = (values[0], float(low), float(high))
    return found


def test_documents_without_a_decision_do_not_matter() -> None:
    trials = noise(6, seed=3)
    put = np.array([0, 0, 1, 2, 0, 3, 4, 5, 0])
    filled = np.array([1, 0, 1, 1, 0, 1, 1, 1, 0])

    def spread(array: np.ndarray) -> np.ndarray:
        return array[put] * filled.reshape(-1, *[1] * (array.ndim - 1))

    arrays = {name: spread(getattr(trials, name)) for name in ("total", "correct", "chance", "profile", "expected")}
    rivals = {name: Rival(rival.options, spread(rival.correct)) for name, rival in trials.rivals.items()}
    longer = dataclasses.replace(trials, rivals=rivals, **arrays)
    assert same(weigh(longer), weigh(trials))


# -------------------------------------------------------------------------------------------------------- planted heads


def test_a_head_that_heeds_position_alone_proves_nothing() -> None:
    trials = with_head(noise(), 1, 2, 5, 0.9, expected=0.9, profile=0.9)
    trials.expected[:, 2, 5, 1] = trials.correct[:, 2, 5, 1] * (1 - 1e-6)  # type: ignore[index]
    trials.rivals["offset"].correct[:, 1, 0] = trials.correct[:, 2, 5, 1]
    evidence = weigh(trials)
    row = evidence["m1"]
    assert (row.name, row.share, row.p, row.verdict) == ("L2H5", 1.0, 1.0, EXPLAINED)
    assert row.held_out > 0.85
    assert row.baselines["profile"].difference == row.baselines["offset"].high == 0
    assert evidence.claims() == []
    assert evidence.relations[0].p_any > 0.05


def test_a_head_with_a_skill_is_found_with_its_direction() -> None:
    trials = with_head(noise(), 3, 1, 7, 0.8)
    evidence = weigh(trials)
    row = evidence["m3"]
    assert (row.name, row.share, row.verdict) == ("L1H7", 1.0, ABOVE)
    assert row.q < 1e-10
    assert row.held_out == pytest.approx(row.value)  # always chosen, so every document counts
    assert row.strongest in ("profile", "offset")
    assert [(claim.metric, claim.name) for claim in evidence.claims()] == [("m3", "L1H7")]
    relation = evidence.relations[1]
    assert (relation.relation, relation.metric, relation.name, relation.verdict) == ("r1", "m3", "L1H7", ABOVE)
    assert relation.p_any < 0.001 < evidence.relations[0].p_any
    assert {r.verdict for r in evidence.metrics} - {ABOVE} <= {CHANCE, EXPLAINED}


def test_a_head_no_better_than_a_rival_is_no_claim() -> None:
    trials = with_head(noise(), 3, 1, 7, 0.8)
    trials.rivals["offset"].correct[:, 3, 1] = np.ceil(trials.total[:, 3] * 0.78)
    evidence = weigh(trials)
    assert evidence["m3"].q < 1e-10
    assert (evidence["m3"].verdict, evidence["m3"].strongest) == (EXPLAINED, "offset")
    assert evidence.claims() == []


@pytest.mark.parametrize(("profile", "verdict"), [(0.8, EXPLAINED), (0.75, SLIGHT)])
def test_a_head_hardly_better_than_its_profile_is_no_claim(profile: float, verdict: str) -> None:
    evidence = weigh(with_head(noise(items=100), 3, 1, 7, 0.8, profile=profile))
    assert evidence["m3"].q < 1e-10
    assert (evidence["m3"].verdict, evidence["m3"].strongest) == (verdict, "profile")
    assert evidence.claims() == []


def test_claims_come_by_metric_and_then_by_accuracy() -> None:
    trials = noise(items=40)
    for metric, layer, head, accuracy in [(2, 0, 3, 0.6), (2, 3, 1, 0.8), (0, 1, 1, 0.5)]:
        trials = with_head(trials, metric, layer, head, accuracy)
    claims = weigh(trials).claims()
    assert [(claim.metric, claim.name) for claim in claims] == [("m0", "L1H1"), ("m2", "L3H1"), ("m2", "L0H3")]
    assert all(claim.q < 0.05 and claim.value > 1.1 * claim.baseline for claim in claims)


def test_the_winner_of_many_heads_is_cursed() -> None:
    """Without any skill the best head on all documents looks good, but not so on documents that did not choose it."""
    trials = noise(50, items=4, metrics=30, rate=0.3)
    evidence = weigh(trials)
    best = evidence.value.max(axis=(1, 2))
    held_out = np.array([row.held_out for row in evidence.metrics])
    error = math.sqrt(0.3 * 0.7 / 200)
    assert best.min() > 0.3 + 1.5 * error  # expected of the largest of 48: 2.2 standard errors
    assert abs(held_out.mean() - 0.3) < 0.25 * error


def test_without_skills_nothing_is_claimed() -> None:
    found = [weigh(noise(60, items=6, metrics=6, rate=rate, seed=seed), repeats=5) for seed, rate in seeds_and_rates()]
    assert sum(bool(evidence.claims()) for evidence in found) <= 1
    verdicts = [row.verdict for evidence in found for row in evidence.metrics]
    assert verdicts.count(ABOVE) == verdicts.count(SLIGHT) == 0
    p_any = np.array([row.p_any for evidence in found for row in evidence.relations])
    assert stats.binomtest(int((p_any < 0.05).sum()), len(p_any), 0.05, alternative="greater").pvalue > 0.05


def seeds_and_rates() -> list[tuple[int, float]]:
    return list(zip(range(20), itertools.cycle([0.03, 0.1, 0.3, 0.5]), strict=False))


# ------------------------------------------------------------------------------------------------- tests and the family


def test_without_a_permutation_null_the_nearest_rival_decides() -> None:
    # one head; against "far" the differences are 4, 5, 6, against "near" 1, 2, 3: t = 2 sqrt 3 on 2 degrees of freedom
    correct = np.array([14.0, 15, 16])
    trials = Trials(
        names=("coref[pronoun]",),
        total=np.full((3, 1), 20),
        correct=correct[:, None, None, None],
        chance=np.full((3, 1), 2),
        rivals={
            "far": Rival(("o",), np.full((3, 1, 1), 10)),
            "near": Rival(("a", "b"), np.stack([np.full((3, 1), 13), np.full((3, 1), 12)], axis=-1)),
            "silent": Rival(("o",), np.full((3, 1, 1), NAN)),
        },
    )
    t = 2 * math.sqrt(3)
    evidence = weigh(trials)
    (row,) = evidence.metrics
    assert row.p == pytest.approx(0.5 - t / (2 * math.sqrt(2 + t**2)))
    assert row.baselines.keys() == {"far", "near"}
    assert row.strongest == "near"
    assert evidence.relations[0].p_any == pytest.approx(1 / 8, abs=0.04)  # three coins alike


def test_a_relation_is_held_against_the_nearest_rival() -> None:
    trials = dataclasses.replace(noise(metrics=1, items=60, heads=(1, 1)), expected=None, profile=None)
    right = trials.correct[:, 0, 0]
    rivals = {"far": Rival(("o",), right[..., None] - 4), "near": Rival(("o",), right[::-1, :, None])}
    (relation,) = weigh(dataclasses.replace(trials, rivals=rivals)).relations
    assert relation.p_any > 0.1  # the near one gets as much right, in other documents
    (relation,) = weigh(dataclasses.replace(trials, rivals={"far": rivals["far"]})).relations
    assert relation.p_any < 0.001


def test_an_option_may_be_missing() -> None:
    trials = noise()
    correct = np.array(trials.rivals["offset"].correct)
    correct[:, 1, 0] = NAN
    evidence = weigh(dataclasses.replace(trials, rivals={"offset": Rival(("-1", "+1"), correct)}))
    offset = evidence["m1"].baselines["offset"]
    assert offset.option == "+1"
    assert offset.full == offset.held_out == pytest.approx(correct[:, 1, 1].sum() / trials.total[:, 1].sum())


def test_a_metric_may_lack_what_another_has() -> None:
    trials = with_head(noise(), 3, 1, 7, 0.8)
    expected, profile = np.array(trials.expected), np.array(trials.profile)
    expected[..., 2:], profile[..., 2:] = NAN, NAN
    evidence = weigh(dataclasses.replace(trials, expected=expected, profile=profile))
    full = weigh(trials)
    np.testing.assert_array_equal(evidence.p[:2], full.p[:2])
    assert evidence["m3"].baselines.keys() == {"offset"}
    assert (evidence["m3"].name, evidence["m3"].verdict) == ("L1H7", ABOVE)
    assert evidence["m1"].baselines.keys() == {"offset", "profile"}
    assert evidence.relations[1].p_any < 0.001


def test_without_any_null_there_is_no_p() -> None:
    evidence = weigh(dataclasses.replace(noise(), expected=None, profile=None, rivals={}))
    assert np.isnan(evidence.p).all()
    assert np.isnan(evidence.q).all()
    assert np.isnan(evidence.relations[0].p_any)
    assert evidence.claims() == []
    assert ABOVE not in {row.verdict for row in evidence.metrics}


def test_an_absent_head_is_never_chosen() -> None:
    trials = with_head(noise(), 3, 1, 7, 0.8)
    present, absent = weigh(trials), np.array(trials.correct)
    absent[:, 0, 0] = NAN
    evidence = weigh(dataclasses.replace(trials, correct=absent))
    assert np.isnan(evidence.p[:, 0, 0]).all()
    assert np.isnan(evidence.q[:, 0, 0]).all()
    assert evidence["m3"].held_out == present["m3"].held_out
    assert all((row.layer, row.head) != (0, 0) for row in evidence.metrics)


@pytest.mark.parametrize(("items", "verdict"), [(29, TOO_FEW), (30, CHANCE)])
def test_a_metric_needs_decisions(items: int, verdict: str) -> None:
    trials = noise(metrics=1, seed=1)
    total = np.zeros((40, 1))
    total[:10] = items // 10
    total[0] += items % 10
    less = {name: np.minimum(getattr(trials, name), total[:, None, None] // 4) for name in ("correct", "profile")}
    evidence = weigh(dataclasses.replace(trials, total=total, chance=total * 0.9, **less))
    assert evidence.metrics[0].decisions == items
    assert evidence.metrics[0].verdict == verdict
    assert np.isfinite(evidence.p).all()
    assert np.isnan(evidence.q).all() == (verdict == TOO_FEW)
    assert np.isfinite(evidence.metrics[0].held_out)


def test_a_metric_that_never_occurs_has_no_numbers() -> None:
    trials = noise()
    arrays = {name: np.array(getattr(trials, name)) for name in ("total", "correct", "chance", "profile", "expected")}
    for array in arrays.values():
        array[..., 2] = 0
    trials.rivals["offset"].correct[:, 2] = 0
    evidence = weigh(dataclasses.replace(trials, **arrays))
    row = evidence["m2"]
    assert (row.verdict, row.decisions, row.documents, row.baselines) == (TOO_FEW, 0, 0, {})
    assert np.isnan([row.value, row.held_out, row.low, row.p, row.q, row.chance]).all()
    assert evidence.relations[1].metrics == ("m3",)
    assert evidence.relations[1].held_out == evidence["m3"].held_out


@pytest.mark.parametrize("folds", [1, 2, 3])
def test_few_documents(folds: int) -> None:
    evidence = weigh(with_head(noise(folds, items=60), 3, 1, 7, 0.9))
    row = evidence["m3"]
    assert (row.name, evidence.settings.folds) == ("L1H7", folds)
    assert row.value > 0.85
    if folds == 1:
        assert np.isnan([row.share, row.held_out, row.low, row.high, row.baselines["offset"].difference]).all()
        assert np.isfinite(row.baselines["offset"].full)
        assert (row.verdict, evidence.relations[1].verdict) == (ONE_DOCUMENT, ONE_DOCUMENT)
        assert row.strongest == ""
        assert evidence.claims() == []
    else:
        assert row.held_out > 0.85
        assert row.verdict in (ABOVE, UNDECIDED)


def test_a_metric_of_one_document_among_many() -> None:
    trials = noise(items=60)
    arrays = {name: np.array(getattr(trials, name)) for name in ("total", "correct", "chance", "profile", "expected")}
    for array in arrays.values():
        array[1:, ..., 0] = 0
    trials.rivals["offset"].correct[1:, 0] = 0
    evidence = weigh(dataclasses.replace(trials, **arrays))
    assert (evidence["m0"].verdict, evidence["m0"].documents) == (ONE_DOCUMENT, 1)
    assert evidence["m1"].verdict != ONE_DOCUMENT


def test_the_family_is_what_is_tested_together() -> None:
    trials = with_head(noise(), 3, 1, 7, 0.8)
    evidence = weigh(trials, family=["m0", "m3"])
    tested = evidence.p[[0, 3]]
    np.testing.assert_allclose(evidence.q[[0, 3]], stats.false_discovery_control(tested.ravel()).reshape(tested.shape))
    assert np.isnan(evidence.q[[1, 2]]).all()
    assert [row.verdict for row in evidence.metrics][1:3] == [NOT_TESTED, NOT_TESTED]
    assert np.isfinite(evidence["m1"].held_out)


def test_equal_seeds_give_equal_evidence() -> None:
    assert same(weigh(noise(), seed=1), weigh(noise(), seed=1))
    assert not same(weigh(noise(), seed=1), weigh(noise(), seed=2))


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, ABOVE),
        ({"decisions": 29}, TOO_FEW),
        ({"held_out": NAN}, ONE_DOCUMENT),
        ({"tested": False}, NOT_TESTED),
        ({"low": 0.1}, CHANCE),
        ({"rival": 0.46}, SLIGHT),
        ({"profile": 0.46}, SLIGHT),
        ({"q": 0.05}, UNDECIDED),
        ({"q": NAN}, UNDECIDED),
        ({"rival_low": 0.0}, UNDECIDED),
        ({"profile_low": -0.1}, UNDECIDED),
        ({"profile": 0.5, "profile_low": -0.1}, EXPLAINED),
        ({"rival": 0.46, "q": 0.5}, EXPLAINED),
    ],
)
def test_verdicts(changes: dict[str, Any], verdict: str) -> None:
    numbers = {"rival": 0.4, "rival_low": 0.05, "profile": 0.3, "profile_low": 0.1, "tested": True} | changes
    baselines = {
        name: Baseline("", numbers[name], 0.5 - numbers[name], numbers[f"{name}_low"], 0.3, numbers[name])
        for name in ("rival", "profile")
    }
    row = {"decisions": 30, "held_out": 0.5, "low": 0.4, "chance": 0.1, "q": 0.01, "baselines": baselines} | changes
    settings = Settings(seed=0, repeats=20, minimum=30, alpha=0.05, margin=0.1, folds=9)
    assert verdict_of(row, settings, tested=numbers["tested"]) == verdict
    assert verdict in VERDICTS


# ------------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"names": ("a", "a")}, r"a name of its own; got \('a', 'a'\)"),
        ({"names": (), "relation_of": ()}, "at least one metric"),
        ({"relation_of": ("nsubj",)}, "2 metrics, 1"),
        ({"correct": np.ones((2, 2, 2))}, r"\[fold, layer, head, metric\] with 2 metrics .* got shape \(2, 2, 2\)"),
        ({"correct": np.ones((2, 1, 2, 3))}, r"got shape \(2, 1, 2, 3\)"),
        ({"total": np.ones((3, 2))}, r"total must have shape \(2, 2\) to go with correct, got \(3, 2\)"),
        ({"chance": np.ones(2)}, r"chance must have shape \(2, 2\)"),
        ({"profile": np.ones((2, 1, 1, 2))}, r"profile must have shape \(2, 1, 2, 2\)"),
        ({"expected": np.ones((2, 2))}, r"expected must have shape \(2, 1, 2, 2\)"),
        ({"rivals": {"x": Rival(("a",), np.ones((2, 2, 2)))}}, r"rival x must have shape \(2, 2, 1\)"),
        ({"rivals": {"x": Rival((), np.ones((2, 2, 0)))}}, "rival x must have at least one option"),
        ({"rivals": {"profile": Rival(("a",), np.ones((2, 2, 1)))}}, "cannot be called 'profile'"),
        ({"total": np.array([[10, 10], [10, 4]])}, r"head_to_dep\[nsubj\]: there cannot be more right"),
        ({"total": np.full((2, 2), NAN)}, r"dep_to_head\[nsubj\]: there cannot be"),
    ],
)
def test_trials_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OutputError, match=message):
        dataclasses.replace(by_hand(), **changes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"family": ["m0", "mx"]}, "names mx; the metrics are m0, m1"),
        ({"repeats": 0}, "at least one repeat .* got 0 and 30"),
        ({"minimum": 0}, "got 20 and 0"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OutputError, match=message):
        weigh(noise(), **options)


def test_no_decision_at_all_is_refused() -> None:
    nothing = {name: np.zeros_like(getattr(by_hand(), name)) for name in ("total", "correct", "chance", "profile")}
    with pytest.raises(OutputError, match="No document holds a decision"):
        weigh(dataclasses.replace(by_hand(), **nothing))


def test_a_metric_without_evidence_is_named() -> None:
    with pytest.raises(OutputError, match="no evidence on the metric 'm9'; there is on m0, m1, m2, m3"):
        weigh(noise())["m9"]


def test_arrays_of_evidence_go_together() -> None:
    evidence = weigh(noise())
    with pytest.raises(OutputError, match=r"q must be \[metric, layer, head\] with 4 metrics .* got \(4, 48\)"):
        dataclasses.replace(evidence, q=evidence.q.reshape(4, 48))
    with pytest.raises(ValueError, match="read-only"):
        evidence.p[:] = 0


# --------------------------------------------------------------------------------------------------------------- files


def same(one: Evidence, other: Evidence) -> bool:
    """Equal in all, NaN too; through text, in which NaN equals NaN."""
    rows = all(
        json.dumps([dataclasses.asdict(row) for row in getattr(one, name)])
        == json.dumps([dataclasses.asdict(row) for row in getattr(other, name)])
        for name in ("metrics", "relations")
    )
    arrays = ("value", "expected", "profile", "p", "q")
    equal = all(np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True) for name in arrays)
    return rows and equal and one.settings == other.settings


@pytest.fixture
def evidence() -> Evidence:
    trials = with_head(noise(6), 3, 1, 7, 0.8)
    expected = np.array(trials.expected)
    expected[..., 1] = NAN
    return weigh(dataclasses.replace(trials, expected=expected), family=["m0", "m1", "m3"])


def test_nothing_is_lost_on_the_way_to_a_file_and_back(evidence: Evidence, tmp_path: Path) -> None:
    evidence.save(tmp_path)
    assert same(Evidence.load(tmp_path), evidence)
    assert same(Evidence.load(tmp_path / "tests.parquet"), evidence)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evidence.csv", "tests.parquet"]


def test_the_table_of_metrics_has_a_row_each(evidence: Evidence, tmp_path: Path) -> None:
    evidence.save(tmp_path)
    rows = pd.read_csv(tmp_path / "evidence.csv")
    assert list(rows["metric"]) == ["m0", "m1", "m2", "m3"]
    fields = "metric relation decisions documents chance layer head share value held_out low high p q verdict".split()
    against = "held_out difference low high full is_informed".split()
    baselines = [f"profile.{name}" for name in against] + [f"offset.{name}" for name in ["option", *against]]
    assert sorted(rows.columns) == sorted(fields + baselines)
    last = rows.iloc[3]
    assert (last["layer"], last["head"], last["decisions"]) == (1, 7, evidence["m3"].decisions)
    assert last["offset.held_out"] == evidence["m3"].baselines["offset"].held_out
    assert list(evidence.relations_frame()["metric"]) == [row.metric for row in evidence.relations]
    assert list(evidence.relations_frame()["p_any"]) == [row.p_any for row in evidence.relations]


def test_the_table_of_tests_has_a_row_for_each_head(evidence: Evidence) -> None:
    frame = evidence.tests_frame()
    assert list(frame.columns) == ["metric", "layer", "head", "value", "expected", "profile", "p", "q"]
    assert len(frame) == 4 * 4 * 12
    row = frame[(frame["metric"] == "m3") & (frame["layer"] == 1) & (frame["head"] == 7)].iloc[0]
    assert (row["value"], row["p"], row["q"]) == (evidence.value[3, 1, 7], evidence.p[3, 1, 7], evidence.q[3, 1, 7])


def test_a_folder_without_evidence_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        OutputError, match=r"tests.parquet is not there; give the folder of a profile, or run the profile"
    ):
        Evidence.load(tmp_path)


def test_a_file_that_is_no_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "tests.parquet").write_text("no table")
    with pytest.raises(OutputError, match=r"tests.parquet cannot be read as a parquet file; run the profile again"):
        Evidence.load(tmp_path)


def test_another_schema_is_refused(evidence: Evidence, tmp_path: Path) -> None:
    evidence.save(tmp_path)
    path = tmp_path / "tests.parquet"
    pq.write_table(pq.read_table(path).replace_schema_metadata({"headlens.schema": "headlens.evidence/9"}), path)
    with pytest.raises(OutputError, match=r"has the schema 'headlens.evidence/9', this headlens reads"):
        Evidence.load(tmp_path)


def test_a_table_whose_rows_were_moved_is_refused(evidence: Evidence, tmp_path: Path) -> None:
    evidence.save(tmp_path)
    path = tmp_path / "tests.parquet"
    table = pq.read_table(path)
    pq.write_table(table.sort_by("p").replace_schema_metadata(table.schema.metadata), path)
    with pytest.raises(OutputError, match="not in the order in which they were written"):
        Evidence.load(tmp_path)


@pytest.mark.parametrize("key", ["headlens.settings", "headlens.evidence", "headlens.shape"])
def test_a_table_that_lost_a_part_is_refused(evidence: Evidence, tmp_path: Path, key: str) -> None:
    evidence.save(tmp_path)
    path = tmp_path / "tests.parquet"
    table = pq.read_table(path)
    kept = {name: text for name, text in table.schema.metadata.items() if name != key.encode()}
    pq.write_table(table.replace_schema_metadata(kept), path)
    with pytest.raises(OutputError, match=rf"does not hold evidence that is whole \({key} is missing\); run the"):
        Evidence.load(tmp_path)
