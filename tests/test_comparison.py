"""Comparisons of profiles, against tables drawn by hand: intervals of differences, and what becomes of roles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from compared import AFTER, BEFORE, CLS, COMMA, INDUCTION, NAN, PREVIOUS, Given, after, before, held, larger, roles_of
from compared import scores_of as scores_of_drawn

from headlens.comparison import Comparison, Pair, RoleChange, compare
from headlens.differences import Estimate, difference_interval
from headlens.errors import OutputError
from headlens.files import write_together
from headlens.report.compare import comparison_writers
from headlens.roles import Role
from headlens.roles import roles_of as roles_by_rule


@pytest.fixture(scope="module")
def found() -> Comparison:
    return compare([before(), after()], ["old", "new"])


@pytest.fixture(scope="module")
def pair(found: Comparison) -> Pair:
    return found.pairs[0]


def role(pair: Pair, name: str) -> RoleChange:
    return next(change for change in pair.roles if change.role.id == name)


# ------------------------------------------------------------------------------------------------------------ intervals


def estimate(value: float, low: float, high: float) -> Estimate:
    return Estimate(np.array([value]), np.array([low]), np.array([high]))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        # down: hypot(.03 below the new, .04 above the old) = .05; up: hypot(.05 above the new, .12 below the old) = .13
        ((0.70, 0.58, 0.74), (0.30, 0.27, 0.35), (-0.45, -0.27)),
        # the other way round, the ends change sides
        ((0.30, 0.27, 0.35), (0.70, 0.58, 0.74), (0.27, 0.45)),
        # a side that is known exactly leaves the interval of the other
        ((0.50, 0.50, 0.50), (0.60, 0.55, 0.70), (0.05, 0.20)),
        ((0.50, NAN, NAN), (0.60, 0.55, 0.70), (NAN, NAN)),
        ((0.50, 0.45, 0.55), (NAN, NAN, NAN), (NAN, NAN)),
    ],
)
def test_the_interval_of_a_difference_is_that_of_zou_and_donner(
    old: tuple[float, float, float], new: tuple[float, float, float], expected: tuple[float, float]
) -> None:
    low, high = difference_interval(estimate(*old), estimate(*new))
    np.testing.assert_allclose([low[0], high[0]], expected, atol=1e-12)


def test_of_normal_estimates_the_interval_is_the_usual_one() -> None:
    # of symmetric intervals both ends are the root of the sum of squares away, as of two independent normal values
    se = np.array([0.02, 0.05])
    ends = [estimate(x, x - 1.96 * s, x + 1.96 * s) for x, s in zip((0.4, 0.7), se, strict=True)]
    low, high = difference_interval(*ends)
    reach = 1.96 * float(np.sqrt((se**2).sum()))
    np.testing.assert_allclose([low[0], high[0]], [0.3 - reach, 0.3 + reach], atol=1e-12)


def test_a_head_is_compared_with_itself(pair: Pair) -> None:
    assert pair.differences is not None
    change = pair.differences.of("repetition.induction", 0, 1)
    # before .70 [.67, .74], after .30 [.27, .42]: down hypot(.03, .04), up hypot(.12, .03)
    assert (change.before, change.after) == (0.7, 0.3)
    assert change.difference == pytest.approx(-0.4, abs=1e-12)
    assert (change.low, change.high) == (pytest.approx(-0.45, abs=1e-12), pytest.approx(-0.4 + 0.0153**0.5, abs=1e-12))
    assert change.is_beyond_zero
    same = pair.differences.of("surface.cls", 0, 1)
    assert same.low < 0 < same.high
    assert not same.is_beyond_zero


def test_differences_beyond_zero_are_told_from_the_others(pair: Pair) -> None:
    assert pair.differences is not None
    place = pair.differences.names.index("repetition.induction")
    # L1H2 rose by .05 with an interval of 0 and more: .05 - hypot(.03, .04) = 0
    expected = [[False, True, False], [True, False, False]]
    assert pair.differences.is_beyond_zero[place].tolist() == expected
    assert pair.differences.has_interval[place].tolist() == [[False, True, True], [True, True, True]]


# ---------------------------------------------------------------------------------------------------------------- roles


def test_what_becomes_of_each_role(pair: Pair) -> None:
    fates = {change.role.id: change.fate for change in pair.roles}
    assert fates == {
        "induction": "moved",  # the best, L0H0, was removed
        "comma": "lost",
        "previous_token": "moved",
        "cls": "gained",
        "broad": None,
    }


def test_what_becomes_of_each_head_of_a_role(pair: Pair) -> None:
    heads = {one.name: (one.fate, one.is_removed) for one in role(pair, "induction").heads}
    assert heads == {
        "L0H0": ("lost", True),
        "L0H1": ("lost", False),
        "L1H0": ("gained", False),
        "L1H2": ("kept", False),
    }
    assert [role(pair, "induction").count(fate) for fate in ("kept", "lost", "gained")] == [1, 2, 1]


@pytest.mark.parametrize(
    ("old", "new", "fate"),
    [
        (
            [(0, 0, 0.8), (0, 1, 0.7)],
            [(0, 0, 0.6), (0, 1, 0.9)],
            "kept",
        ),  # another is better now, but it is still there
        ([(0, 0, 0.8), (0, 1, 0.7)], [(0, 1, 0.7)], "named elsewhere"),  # all scores are the same on both sides
        ([(0, 0, 0.7), (0, 1, 0.8)], [(0, 1, 0.7)], "kept"),
        ([(0, 0, 0.8)], [], "no longer named"),
        ([], [(0, 0, 0.8)], "newly named"),
        ([], [], None),
    ],
)
def test_a_role_is_kept_if_its_best_head_keeps_it(
    old: list[tuple[int, int, float]], new: list[tuple[int, int, float]], fate: str | None
) -> None:
    def given(places: list[tuple[int, int, float]]) -> Given:
        return Given(scores_of_drawn(BEFORE), roles_of(*(held(INDUCTION, *place) for place in places)))

    assert role(compare([given(old), given(new)]).pairs[0], "induction").fate == fate


def test_a_firm_head_goes_before_a_tentative_one_that_scores_more() -> None:
    old = roles_of(held(INDUCTION, 0, 0, 0.9, is_firm=False), held(INDUCTION, 0, 1, 0.6))
    new = roles_of(held(INDUCTION, 0, 0, 0.9, is_firm=False))
    scores = scores_of_drawn(BEFORE)
    assert role(compare([Given(scores, old), Given(scores, new)]).pairs[0], "induction").fate == "named elsewhere"


LOW = Role("position_alone", "=", "position alone", "position", 12, "", "")  # a score under .05


@pytest.mark.parametrize(
    ("named", "was", "now", "fates"),
    [
        (
            INDUCTION,
            0.7,
            0.5,
            ("lost", "gained"),
        ),  # intervals reach .03 down and .04 up, so .05 is how far a fall may reach
        (INDUCTION, 0.7, 0.66, ("no longer named", "newly named")),
        (
            INDUCTION,
            0.5,
            0.7,
            ("no longer named", "newly named"),
        ),  # the score went the other way: it is the null that rose
        (LOW, 0.02, 0.3, ("lost", "gained")),
        (LOW, 0.3, 0.02, ("no longer named", "newly named")),
    ],
)
def test_a_head_has_lost_a_role_only_if_its_score_moved_away_from_it_beyond_the_interval(
    named: Role, was: float, now: float, fates: tuple[str, str]
) -> None:
    metric = "position.variability"
    one, other = (scores_of_drawn({metric: [f"{value} .1 .1", ".1 .1 .1"]}) for value in (was, now))
    having, lacking = roles_of(held(named, 0, 0, was, metric=metric), asked=(named,)), roles_of(asked=(named,))
    for given, fate in zip(
        ([Given(one, having), Given(other, lacking)], [Given(other, lacking), Given(one, having)]), fates, strict=True
    ):
        (change,) = compare(given).pairs[0].roles
        assert (change.fate, [head.fate for head in change.heads]) == (fate, [fate])


def test_without_an_interval_nothing_is_lost() -> None:
    one, other = (scores_of_drawn(drawn, below=NAN, above=NAN) for drawn in (BEFORE, AFTER))
    pair = compare([Given(one, roles_of(held(COMMA, 1, 2, 0.65))), Given(other, roles_of())]).pairs[0]
    assert role(pair, "comma").fate == "no longer named"


def test_the_best_head_is_followed(pair: Pair) -> None:
    best = role(pair, "previous_token").best
    assert best is not None
    assert best.change is not None
    assert (best.name, best.fate) == ("L0H2", "lost")
    assert (best.change.before, best.change.after) == (0.9, 0.4)
    gained = role(pair, "cls").best
    assert gained is not None
    assert (gained.name, gained.fate, gained.before) == ("L1H2", "gained", None)
    assert role(pair, "broad").best is None


def test_a_role_of_two_metrics_is_followed_by_the_first_sides() -> None:
    old = roles_of(held(INDUCTION, 0, 1, 0.7))
    new = roles_of(held(INDUCTION, 0, 1, 0.2, metric="position.mass[-1]"))
    found = compare([Given(scores_of_drawn(BEFORE), old), Given(scores_of_drawn(AFTER), new)]).pairs[0]
    (head,) = role(found, "induction").heads
    assert (head.fate, head.metric) == ("kept", "repetition.induction")
    assert head.change is not None
    assert (head.change.before, head.change.after) == (0.7, 0.3)


def test_a_role_whose_score_is_in_no_table_has_no_difference() -> None:
    given = Given(scores_of_drawn(BEFORE), roles_of(held(INDUCTION, 0, 1, 0.7, metric="elsewhere.score")))
    (head,) = role(compare([given, given]).pairs[0], "induction").heads
    assert (head.fate, head.metric, head.change) == ("kept", "elsewhere.score", None)


def test_nothing_is_said_of_a_role_that_one_side_was_not_asked_for() -> None:
    other = after(roles=roles_of(held(CLS, 1, 2, 0.8), asked=(PREVIOUS, CLS)))
    found = compare([before(roles=roles_of(held(COMMA, 1, 2, 0.65), asked=(COMMA, PREVIOUS))), other]).pairs[0]
    assert [change.role.id for change in found.roles] == ["previous_token"]
    assert [one.id for one in found.unasked] == ["comma", "cls"]


# ------------------------------------------------------------------------------------------------------- heads that go


def test_a_head_without_any_score_was_removed(pair: Pair) -> None:
    assert (pair.removed, pair.added) == ([(0, 0)], [])
    back = compare([after(), before()]).pairs[0]
    assert (back.removed, back.added) == ([], [(0, 0)])


def test_a_head_that_was_added_gains_its_roles_and_is_not_removed() -> None:
    heads = {one.name: one for one in role(compare([after(), before()]).pairs[0], "induction").heads}
    assert (heads["L0H0"].fate, heads["L0H0"].is_removed) == ("gained", False)


def test_a_head_that_lacks_one_score_is_still_there() -> None:
    drawn = AFTER | {"surface.cls": [".10 .20 .20", ".20 .20 .80"]}
    assert compare([before(), after(scores=scores_of_drawn(drawn))]).pairs[0].removed == []


def test_a_head_that_is_absent_from_both_sides_is_not_removed() -> None:
    assert compare([after(), after()]).pairs[0].removed == []


# ----------------------------------------------------------------------------------------------- shapes, scores, names


def test_models_of_different_shape_are_not_compared_head_by_head() -> None:
    pair = compare([before(), larger()]).pairs[0]
    assert pair.differences is None
    assert (pair.removed, pair.added) == ([], [])
    assert [one.name for one in role(pair, "previous_token").after] == ["L1H1"]
    assert all(change.heads == () and change.best is None for change in pair.roles)


def test_every_profile_is_compared_with_the_first() -> None:
    found = compare([before(), after(), larger()], ["a", "b", "c"])
    assert [(pair.before.name, pair.after.name) for pair in found.pairs] == [("a", "b"), ("a", "c")]
    assert [pair.differences is None for pair in found.pairs] == [False, True]


def test_only_common_scores_are_compared() -> None:
    old = scores_of_drawn({"a.x": BEFORE["surface.cls"], "a.y": BEFORE["surface.cls"]}, with_macro=False)
    new = scores_of_drawn({"a.z": BEFORE["surface.cls"], "a.y": BEFORE["surface.cls"]}, with_macro=False)
    pair = compare([before(scores=old), after(scores=new)]).pairs[0]
    assert [metric.name for metric in pair.metrics] == ["a.y"]
    assert (pair.only_before, pair.only_after) == (("a.x",), ("a.z",))


def test_scores_are_matched_by_name_not_by_place() -> None:
    order = dict(reversed(AFTER.items()))
    pair = compare([before(), after(scores=scores_of_drawn(order))]).pairs[0]
    assert pair.differences is not None
    change = pair.differences.of("surface.cls", 1, 2)
    assert (change.before, change.after) == (0.2, 0.8)


@pytest.mark.parametrize("unit", ["share", "nats"])
def test_no_common_score_is_an_error(unit: str) -> None:
    old = scores_of_drawn({"a.x": BEFORE["surface.cls"]})
    new = scores_of_drawn({"a.x" if unit == "nats" else "b.y": BEFORE["surface.cls"]}, unit=unit)
    with pytest.raises(OutputError, match=r"old and new have no score in common \(a\.x, a\.x\.macro; .*profile both"):
        compare([before(scores=old), after(scores=new)], ["old", "new"])


def test_one_profile_is_not_a_comparison() -> None:
    with pytest.raises(OutputError, match="needs at least two profiles, got 1"):
        compare([before()])


@pytest.mark.parametrize("names", [["a"], ["a", "a"], ["a", "b", "c"], []])
def test_names_that_do_not_fit_are_an_error(names: list[str]) -> None:
    with pytest.raises(OutputError, match="Each of the 2 profiles needs a name of its own"):
        compare([before(), after()], names)


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        (("Tiny", "Large"), ["Tiny", "Large"]),
        (("Tiny", "Tiny"), ["Tiny (1)", "Tiny (2)"]),
        ((None, None), ["model (1)", "model (2)"]),
    ],
)
def test_without_names_those_of_the_models_are_taken(
    models: tuple[str | None, str | None], expected: list[str]
) -> None:
    given = [
        one(provenance={"model": {"name": name}} if name else {})
        for one, name in zip((before, after), models, strict=True)
    ]
    assert [side.name for side in compare(given).sides] == expected


# ---------------------------------------------------------------------------------------------------------------- files


def test_the_table_has_a_row_for_each_head_and_score(found: Comparison) -> None:
    frame = found.to_frame()
    assert len(frame) == 8 * 6
    assert set(frame["of"]) == {"head"}
    row = frame[(frame.metric == "repetition.induction") & (frame.layer == 0) & (frame["head"] == 1)].iloc[0]
    assert (row.before, row.after) == ("old", "new")
    numbers = row[["value_before", "value_after", "difference", "low", "high", "chance_before", "chance_after"]]
    expected = [0.7, 0.3, -0.4, -0.45, -0.4 + 0.0153**0.5, 0.05, 0.05]
    np.testing.assert_allclose(numbers.astype(float), expected, atol=1e-12)


def test_of_different_shapes_the_table_has_the_highest_and_the_median() -> None:
    frame = compare([before(), larger()]).to_frame()
    rows = frame[frame.metric == "position.mass[-1]"].set_index("of")
    assert len(frame) == 2 * 2
    assert rows[["layer", "head", "low", "high"]].isna().all(axis=None)
    # before .1 .1 .1 .2 .3 .9; after eight of .1 and one of .6
    np.testing.assert_allclose(
        rows.loc["highest", ["value_before", "value_after", "difference"]].astype(float), [0.9, 0.6, -0.3]
    )
    np.testing.assert_allclose(
        rows.loc["median", ["value_before", "value_after", "difference"]].astype(float), [0.15, 0.1, -0.05]
    )


def test_absent_heads_count_in_no_highest_and_no_median() -> None:
    frame = compare([after(), larger()]).to_frame()
    # of .1 .1 .2 .4 .75 and an absent one
    np.testing.assert_allclose(frame[frame.metric == "position.mass[-1]"].value_before, [0.75, 0.2])


def test_the_table_of_roles_has_roles_and_heads(found: Comparison) -> None:
    frame = found.roles_frame()
    roles = frame[frame.of == "role"].set_index("role")
    assert roles.fate.dropna().to_dict() == {
        "induction": "moved",
        "comma": "lost",
        "previous_token": "moved",
        "cls": "gained",
    }
    assert roles.loc["induction", ["heads_before", "heads_after"]].tolist() == [3, 2]
    # of six heads before, of five after
    np.testing.assert_allclose(roles.loc["induction", ["share_before", "share_after"]].astype(float), [0.5, 0.4])
    heads = frame[(frame.of == "head") & (frame.role == "induction")]
    columns = ["layer", "head", "fate", "is_removed", "strength_before", "strength_after", "metric"]
    assert heads[columns].astype(object).where(heads[columns].notna(), None).to_numpy().tolist() == [
        [0, 0, "lost", True, "firm", None, "repetition.induction"],
        [0, 1, "lost", False, "firm", None, "repetition.induction"],
        [1, 0, "gained", False, None, "firm", "repetition.induction"],
        [1, 2, "kept", False, "tentative", "firm", "repetition.induction"],
    ]
    np.testing.assert_allclose(heads.difference.astype(float), [NAN, -0.4, 0.4, 0.05], atol=1e-12)


def test_roles_of_different_shapes_have_no_fate() -> None:
    frame = compare([before(), larger()]).roles_frame().set_index("role")
    assert set(frame.of) == {"role"}
    assert frame.fate.isna().all()
    assert frame.loc["previous_token", ["heads_before", "heads_after"]].tolist() == [1, 1]
    np.testing.assert_allclose(
        frame.loc["previous_token", ["share_before", "share_after"]].astype(float), [1 / 6, 1 / 9]
    )


def test_the_files_can_be_read_back(found: Comparison, tmp_path: Path) -> None:
    write_together({tmp_path / name: write for name, write in comparison_writers(found).items()})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["comparison.csv", "comparison.html", "roles.csv"]
    scores = pd.read_csv(tmp_path / "comparison.csv")
    for name in ("value_before", "value_after", "difference", "low", "high"):
        np.testing.assert_array_equal(scores[name], found.to_frame()[name])
    assert pd.read_csv(tmp_path / "roles.csv").role.tolist() == found.roles_frame().role.tolist()
    assert (tmp_path / "comparison.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_name_that_is_no_proper_text_can_be_written(tmp_path: Path) -> None:
    files = comparison_writers(compare([before(), after()], ["old", "new\udcff"]))
    write_together({tmp_path / name: write for name, write in files.items()})
    assert set(pd.read_csv(tmp_path / "comparison.csv").after) == {"new?"}
    assert "<h1>old and new? compared</h1>" in (tmp_path / "comparison.html").read_text(encoding="utf-8")


def test_a_profile_against_itself_keeps_all_its_roles() -> None:
    scores = scores_of_drawn(BEFORE)
    given = Given(scores, roles_by_rule(scores))
    pair = compare([given, given]).pairs[0]
    assert pair.differences is not None
    np.testing.assert_array_equal(pair.differences.value, 0)
    assert not pair.differences.is_beyond_zero.any()
    assert {change.role.id: change.fate for change in pair.roles}["previous_token"] == "kept"
    assert {change.fate for change in pair.roles} == {"kept", None}
