"""Plans of heads, and how they come from importance, names and roles."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from headlens.errors import OutputError, PlanError
from headlens.plan import HeadPlan, plan_of
from headlens.plans import from_gates, lowest, named, with_roles
from headlens.roles import roles_of
from headlens.scores import Metric, ScoreTable

PLAIN = HeadPlan.full(2, 4)
GROUPED = HeadPlan.full(2, 4, 2)
IMPORTANCE = np.array([[4.0, 1.0, 3.0, 8.0], [2.0, 7.0, 6.0, 5.0]])


# ------------------------------------------------------------------------------------------------------------ the plan


def test_a_full_plan_keeps_every_head_in_its_group() -> None:
    assert PLAIN.groups == (((0,), (1,), (2,), (3,)),) * 2
    assert GROUPED.groups == (((0, 1), (2, 3)),) * 2
    assert GROUPED.is_full
    assert GROUPED.is_uniform
    assert GROUPED.n_kept == 8
    assert GROUPED.removed == ()


def test_a_group_goes_with_its_last_head() -> None:
    plan = GROUPED.without([(0, 2), (0, 3), (1, 0)])
    assert plan.groups == (((0, 1),), ((1,), (2, 3)))
    assert plan.kept == ((0, 1), (1, 2, 3))
    assert plan.removed == ((0, 2), (0, 3), (1, 0))
    assert not plan.is_even
    assert not plan.is_uniform
    assert not plan.is_full
    assert list(plan) == [(0, 0), (0, 1), (1, 1), (1, 2), (1, 3)]


def test_a_layer_may_lose_all_its_heads() -> None:
    plan = PLAIN.without([(1, head) for head in range(4)])
    assert plan.groups[1] == ()
    assert plan.layers == 2
    assert plan.is_even
    assert not plan.is_uniform


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ((((0,), (4,)),), "has 4 heads a layer, no L0H4"),
        ((((0,), (0,)),), "L0H0 stands in the plan more than once"),
        ((((0,), ()),), "Layer 0 has an empty group"),
        ((), "at least one layer"),
    ],
)
def test_a_plan_that_no_model_has_is_refused(groups: tuple[tuple[tuple[int, ...], ...], ...], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        HeadPlan(4, 4, groups)


def test_heads_that_are_not_there_cannot_be_removed() -> None:
    with pytest.raises(PlanError, match="2 layers of 4 heads, no L2H0"):
        PLAIN.without([(2, 0)])


def test_a_plan_is_read_back_from_its_file_and_folder(tmp_path: Path) -> None:
    plan = GROUPED.without([(0, 0), (0, 1)])
    plan.save(tmp_path / "plan.json")
    assert HeadPlan.load(tmp_path) == HeadPlan.load(tmp_path / "plan.json") == plan
    assert json.loads((tmp_path / "plan.json").read_text())["groups"] == [[[2, 3]], [[0, 1], [2, 3]]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "Not a plan"),
        ('{"schema": "headlens.plan/2"}', "Not a plan"),
        ('{"schema": "headlens.plan/1", "heads": 4, "kv_heads": 4, "groups": [[["0"]]]}', "lists of lists of lists"),
        ('{"schema": "headlens.plan/1", "heads": true, "kv_heads": 4, "groups": [[[0]]]}', "whole numbers"),
        ('{"schema": "headlens.plan/1", "heads": 4, "kv_heads": 4, "groups": [[[7]]]}', "no L0H7"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "broken.json").write_text(text)
    with pytest.raises(PlanError, match=rf"broken\.json.*{message}"):
        HeadPlan.load(tmp_path / "broken.json")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"plan\.json cannot be read"):
        HeadPlan.load(tmp_path / "plan.json")


def test_a_config_tells_the_plan_of_its_model() -> None:
    plan = PLAIN.without([(0, 1)])
    assert plan_of(SimpleNamespace(headlens_plan=plan.to_dict())) == plan
    assert plan_of(SimpleNamespace()) is None


# ----------------------------------------------------------------------------------------------------- from importance


def removed(importance: np.ndarray, base: HeadPlan, **how: object) -> tuple[tuple[int, int], ...]:
    return lowest(importance, base, **how).removed  # type: ignore[arg-type]


def test_the_lowest_of_all_layers_go() -> None:
    assert removed(IMPORTANCE, PLAIN, remove=3) == ((0, 1), (0, 2), (1, 0))
    assert removed(IMPORTANCE, PLAIN, keep=5) == ((0, 1), (0, 2), (1, 0))
    assert removed(IMPORTANCE, PLAIN, keep=0.6) == removed(IMPORTANCE, PLAIN, remove=0.4)


@pytest.mark.parametrize(("share", "count"), [(0.1, 7), (0.2, 14), (0.3, 22), (0.4, 29), (0.6, 43), (0.8, 58)])
def test_shares_are_rounded_to_whole_heads(share: float, count: int) -> None:
    assert len(removed(np.arange(72.0).reshape(6, 12), HeadPlan.full(6, 12), remove=share)) == count


def test_the_same_number_goes_from_every_layer() -> None:
    assert removed(IMPORTANCE, PLAIN, remove=4, per_layer=True) == ((0, 1), (0, 2), (1, 0), (1, 3))
    with pytest.raises(PlanError, match=r"3 heads cannot be taken evenly from 2 layers: remove 2 or 4"):
        removed(IMPORTANCE, PLAIN, remove=3, per_layer=True)


def test_of_equal_heads_the_earlier_goes() -> None:
    assert removed(np.zeros((2, 4)), PLAIN, remove=3) == ((0, 0), (0, 1), (0, 2))


def test_every_layer_keeps_its_floor() -> None:
    low_layer = np.array([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]])
    assert removed(low_layer, PLAIN, remove=4) == ((0, 0), (0, 1), (0, 2), (0, 3))
    assert removed(low_layer, PLAIN, remove=4, floor=2) == ((0, 0), (0, 1), (1, 0), (1, 1))
    with pytest.raises(PlanError, match="Only 4 of 5 heads can be removed"):
        removed(low_layer, PLAIN, remove=5, floor=2)


def test_protected_heads_stay() -> None:
    assert removed(IMPORTANCE, PLAIN, remove=3, protected={(0, 1)}) == ((0, 0), (0, 2), (1, 0))


def test_a_group_goes_by_the_sum_of_its_heads() -> None:
    # sums: 5, 11; 9, 11
    assert removed(IMPORTANCE, GROUPED, remove=2) == ((0, 0), (0, 1))
    assert removed(IMPORTANCE, GROUPED, remove=4) == ((0, 0), (0, 1), (1, 0), (1, 1))
    with pytest.raises(PlanError, match=r"3 heads cannot be removed exactly.* 2 at a time: remove 2 or 4"):
        removed(IMPORTANCE, GROUPED, remove=3)
    assert len(removed(IMPORTANCE, GROUPED, remove=0.4)) == 4  # 3.2 heads: nearer to two groups than to one


def test_one_head_of_every_group_goes_at_once() -> None:
    # weakest of each group: 1 + 3 in layer 0, 2 + 5 in layer 1
    assert removed(IMPORTANCE, GROUPED, remove=2, unit="even") == ((0, 1), (0, 2))
    assert removed(IMPORTANCE, GROUPED, remove=4, unit="even") == ((0, 1), (0, 2), (1, 0), (1, 3))


def test_the_second_of_a_group_never_goes_before_the_first() -> None:
    odd = np.array([[9.0, 9.0, 0.0, 0.0], [5.0, 5.0, 5.0, 5.0]])  # steps of layer 0: 9 + 0, then 9 + 0
    assert lowest(odd, GROUPED, remove=2, unit="even").is_even


def test_single_heads_of_a_group_cannot_go() -> None:
    with pytest.raises(PlanError, match=r"2 heads share a key/value head here.*whole groups"):
        removed(IMPORTANCE, GROUPED, remove=1, unit="head")


def test_what_is_gone_is_not_asked_for_and_counts() -> None:
    base = PLAIN.without([(0, 3)])
    absent = IMPORTANCE.copy()
    absent[0, 3] = np.nan
    assert removed(absent, base, keep=0.5) == ((0, 1), (0, 2), (0, 3), (1, 0))
    with pytest.raises(PlanError, match="Only 7 of 8 heads are left"):
        removed(absent, base, keep=8)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({}, "either how many heads to keep or how many to remove"),
        ({"keep": 1, "remove": 1}, "either how many"),
        ({"keep": 1.5}, "from 0 to 1, got 1.5"),
        ({"remove": 9}, "has 8 heads, got 9"),
        ({"remove": -1}, "has 8 heads, got -1"),
    ],
)
def test_what_cannot_be_asked_is_refused(how: dict[str, object], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        removed(IMPORTANCE, PLAIN, **how)


def test_importance_must_be_known_and_of_this_model() -> None:
    broken = IMPORTANCE.copy()
    broken[1, 2] = np.nan
    with pytest.raises(PlanError, match="L1H2 has no importance"):
        removed(broken, PLAIN, remove=1)
    with pytest.raises(PlanError, match="of 1 x 4 heads, the model has 2 x 4"):
        removed(IMPORTANCE[:1], PLAIN, remove=1)


# ---------------------------------------------------------------------------------------------- by hand, role and gate


@pytest.mark.parametrize(
    ("patterns", "heads"),
    [
        ("L0H2", {(0, 2)}),
        ("L0H2, l1h*", {(0, 2), (1, 0), (1, 1), (1, 2), (1, 3)}),
        ("L1", {(1, 0), (1, 1), (1, 2), (1, 3)}),
        (["L*H3"], {(0, 3), (1, 3)}),
    ],
)
def test_heads_are_named_by_hand(patterns: str | list[str], heads: set[tuple[int, int]]) -> None:
    assert named(patterns, PLAIN) == heads


@pytest.mark.parametrize(
    ("patterns", "message"), [("3.2", "like L3H2"), ("L2H0", "from 0 to 1, there is no 2"), ("", "like L3H2")]
)
def test_a_name_of_no_head_is_refused(patterns: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        named(patterns, PLAIN)


def test_heads_are_named_by_role() -> None:
    values = np.array([[[0.9, 0.1], [0.1, 0.7]]])
    scores = ScoreTable(
        (Metric("position.mass[-1]", "previous token", "Mass on the previous token.", "share"),),
        values=values,
        support=np.full((1, 2, 2), 100.0),
        low=values - 0.05,
        high=values + 0.05,
        chance=np.array([0.1]),
    )
    roles = roles_of(scores)
    assert with_roles(roles, ["previous_token"]) == with_roles(roles, ["position"]) == {(0, 0), (1, 1)}
    with pytest.raises(PlanError, match=r"no role or kind 'subject'.*previous_token"):
        with_roles(roles, ["subject"])


def test_gates_above_the_threshold_stay() -> None:
    gates = np.array([[1.0, 0.5, 0.51, 0.0], [0.9, 0.9, 0.9, 0.9]])
    assert from_gates(gates, PLAIN).removed == ((0, 1), (0, 3))


def test_heads_that_share_what_they_did_not_share() -> None:
    grouped = HeadPlan.full(1, 4, 2)
    assert not grouped.merges
    assert not grouped.apart.merges
    assert not grouped.without([(0, 0)]).merges
    assert HeadPlan(4, 2, (((0, 1, 2, 3),),)).merges
    assert HeadPlan(4, 4, (((0, 2), (1,)),)).merges
    assert not HeadPlan(4, 4, (((0,), (2,)),)).merges
