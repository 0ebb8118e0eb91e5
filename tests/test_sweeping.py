"""More and more heads taken out: every point is the model that it says it is, and survival is counted right."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from test_calibration import HEAD_DIM, calibration, cosine_by_hand, own_texts, silenced, tiny
from test_rankings import HEADS, LAYERS, not_run

from headlens.errors import PlanError
from headlens.importance.methods import METHODS
from headlens.plan import HeadPlan
from headlens.rankings import rank_by
from headlens.roles import HeadRole, Role, Roles
from headlens.sweeping import Point, Sweep, lines_of, sweep

pytestmark = pytest.mark.slow  # many models; CI runs them as its own step

SHARES = (0.5, 0.125, 0.75)
ALPHA, BETA = (Role(name, name[0], name, "syntax", 1, "", "") for name in ("alpha", "beta"))


def held(role: Role, layer: int, head: int) -> HeadRole:
    return HeadRole(role, layer, head, "m", 1.0, 1.0, 1.0, 0.0, 0.0, "chance", 5.0, 0.0, 100.0, True, "")


ROLES = Roles(LAYERS, HEADS, (ALPHA, BETA), (held(ALPHA, 0, 0), held(ALPHA, 0, 1), held(BETA, 0, 1), held(BETA, 3, 7)))


@cache
def swept() -> Sweep:
    return sweep(tiny(), own_texts(), ["norm", "loo_zero"], shares=SHARES, roles=ROLES, draws=3, texts=5)


def points(method: str) -> list[Point]:
    return [point for point in swept().points if point.method == method]


def mean_kept(heads: Sequence[tuple[int, int]]) -> Any:
    """The bundled encoder with these heads silenced, what they write on average in the bias of W_O."""
    model, sums, tokens = tiny().model, torch.zeros(LAYERS, HEADS * HEAD_DIM, dtype=torch.float64), 0
    contexts: list[torch.Tensor] = []
    hooks = [
        layer.attention.output.dense.register_forward_pre_hook(lambda _, given: contexts.append(given[0]))
        for layer in model.bert.encoder.layer
    ]
    with torch.no_grad():
        for batch in calibration().fitted:
            for ids, mask in zip(batch.input_ids, batch.attention_mask, strict=True):
                contexts.clear()
                model(ids[mask.bool()][None])
                sums += torch.stack([context[0].double().sum(0) for context in contexts])
                tokens += int(mask.sum())
    for hook in hooks:
        hook.remove()
    quiet = silenced(model, heads)
    for layer, head in heads:
        columns = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
        whole, out = (one.bert.encoder.layer[layer].attention.output.dense for one in (model, quiet))
        out.bias.data += (whole.weight[:, columns].double() @ (sums[layer, columns] / tokens)).float()
    return quiet


# ----------------------------------------------------------------------------------------------------------- the points


def test_there_is_a_point_for_every_share_and_ranking_and_draw() -> None:
    assert [(point.method, point.draw, point.removed) for point in swept().points] == [
        ("whole model", None, 0),
        *[(method, None, removed) for method in ("norm", "loo_zero") for removed in (4, 16, 24)],
        *[("random", draw, removed) for removed in (4, 16, 24) for draw in range(3)],
    ]


def test_as_many_heads_are_gone_as_the_point_says() -> None:
    assert [LAYERS * HEADS - point.plan.n_kept for point in swept().points] == [
        point.removed for point in swept().points
    ]
    random = points("random")
    assert len({point.plan for point in random}) == len(random)


@pytest.mark.parametrize("method", ["norm", "loo_zero"])
def test_those_that_matter_least_go_first(method: str) -> None:
    values = rank_by(tiny(), own_texts(), [method], texts=5).by_method[method].importance.values.ravel()
    for point in points(method):
        weakest = np.argsort(values)[: point.removed]
        assert set(point.plan.removed) == {(int(place) // HEADS, int(place) % HEADS) for place in weakest}


@pytest.mark.parametrize("place", [1, 5, -1])
def test_distortion_is_that_of_the_model_by_hand_on_text_that_chose_nothing(place: int) -> None:
    point = swept().points[place]
    expected = cosine_by_hand(tiny().model, mean_kept(point.plan.removed), calibration().held_out)
    assert point.distortion == pytest.approx(np.mean(expected), rel=1e-3)
    assert np.mean(expected) > 1e-4


def test_the_whole_model_is_not_moved() -> None:
    assert swept().points[0].plan.is_full
    assert swept().points[0].distortion == pytest.approx(0, abs=1e-6)


def test_random_plans_follow_the_seed() -> None:
    drawn = [
        [
            point.plan
            for point in sweep(tiny(), own_texts(), ["random"], shares=[0.5], draws=2, texts=2, seed=seed).points
        ]
        for seed in (3, 3, 4)
    ]
    assert drawn[0] == drawn[1]
    assert set(drawn[0][1:]).isdisjoint(drawn[2][1:])


def test_shares_that_come_to_the_same_heads_are_one_point() -> None:
    found = sweep(tiny(), own_texts(), ["norm"], shares=[0.26, 0.25, 0.25, 0.001], draws=1, texts=2, roles=ROLES)
    assert [(point.method, point.removed) for point in found.points] == [("whole model", 0), ("norm", 8), ("random", 8)]
    assert found.facts["shares"] == [0.25]
    assert found.facts["shares_left_out"] == [0.26, 0.001]


# ------------------------------------------------------------------------------------------------------------- survival


def test_survival_counts_the_heads_of_each_role_that_are_left() -> None:
    whole = HeadPlan.full(LAYERS, HEADS)
    plans = [whole, whole.without([(0, 1)]), whole.without([(0, 0), (0, 1), (2, 2)])]
    own = [Point("norm", None, LAYERS * HEADS - plan.n_kept, plan, 0.0, {}) for plan in plans]
    drawn = Point("random", 0, 1, plans[1], 0.0, {})
    found = Sweep((*own, drawn), ROLES, {}).survival()
    assert found.to_numpy().tolist() == [
        ["norm", 0, "alpha", 2, 2],
        ["norm", 0, "beta", 2, 2],
        ["norm", 1, "alpha", 2, 1],
        ["norm", 1, "beta", 2, 1],
        ["norm", 3, "alpha", 2, 0],
        ["norm", 3, "beta", 2, 1],
    ]


def test_without_roles_nothing_is_said_of_survival() -> None:
    assert Sweep(swept().points, None, {}).survival().empty


# -------------------------------------------------------------------------------------------------------- the terminal


def by_hand() -> Sweep:
    """Of 2 x 4 heads: by "norm" the first ones go, and in two draws the first or the last ones."""
    whole = HeadPlan.full(2, 4)
    order = list(whole)
    points = [Point("whole model", None, 0, whole, 0.0, {"task: right": 1.0})]
    for count in (1, 2, 4, 7):
        gone = {"norm": (None, order[:count]), "first": (0, order[:count]), "last": (1, order[-count:])}
        for place, (name, (draw, heads)) in enumerate(gone.items()):
            distortion, tasks = count + place / 10, {"task: right": 1 - count / 10 - place / 100}
            points.append(
                Point("norm" if name == "norm" else "random", draw, count, whole.without(heads), distortion, tasks)
            )
    roles = Roles(2, 4, (ALPHA, BETA), (held(ALPHA, 0, 0), held(ALPHA, 0, 1), held(ALPHA, 1, 3), held(BETA, 1, 0)))
    return Sweep(tuple(points), roles, {"objective": "kl_distortion", "shares_left_out": [0.01]})


def test_the_terminal_gets_medians_and_ranges_and_which_roles_die_when() -> None:
    """Points of 2 and 4 heads are a quarter and a half of 8; of those at 4 and 7, 7 is nearer to three quarters."""
    lines = list(lines_of(by_hand()))
    assert lines[0] == "Left out, as they come to no other number of heads: shares 0.01."
    assert lines[1].startswith("distortion (kl, nats a token), by heads removed")
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines[2:6]]
    assert cells == [
        ["0", "1", "2", "4", "7"],
        ["whole model", "0.0000"],
        ["norm", "1.0000", "2.0000", "4.0000", "7.0000"],
        [
            "2 random draws",
            *(f"{count}.1500 ({count}.1000 to {count}.2000)" for count in (1, 2, 4, 7)),
        ],
    ]
    assert lines[6].startswith("task: right, by heads removed")
    assert lines[11].startswith("Heads of each role that are left")
    told = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines[12:]]
    assert told == [
        ["role", "ranked by", "of", "2 (.25)", "4 (.50)", "7 (.88)"],
        ["alpha", "norm", "3", "1", "1", "1"],
        ["2 random draws", "1.5 (1 to 2)", "1.5 (1 to 2)", "1 (1 to 1)"],
        ["beta", "norm", "1", "1", "1", "0"],
        ["2 random draws", "1 (1 to 1)", "0.5 (0 to 1)", "0 (0 to 0)"],
    ]


def test_random_as_a_ranking_is_none_of_the_draws() -> None:
    found = by_hand()
    points = [replace(point, method="random") if point.method == "norm" else point for point in found.points]
    rows = [line.split()[0] for line in lines_of(replace(found, points=tuple(points)))][2:6]
    assert rows[1:] == ["whole", "random", "2"]


def test_without_roles_the_terminal_says_nothing_of_them() -> None:
    assert not any("role" in line for line in lines_of(replace(by_hand(), roles=None)))


def test_a_sweep_is_a_line() -> None:
    assert repr(by_hand()) == "<Sweep over 8 heads of a model: 13 points, norm, random>"


# ---------------------------------------------------------------------------------------------------------- the tables


def test_the_frame_has_a_row_for_each_quantity() -> None:
    whole = HeadPlan.full(1, 3)
    found = Sweep(
        (
            Point("whole model", None, 0, whole, 0.0, {"a: b": 0.9}),
            Point("random", 2, 1, whole.without([(0, 1)]), 0.5, {"a: b": 0.7}),
        ),
        None,
        {},
    ).to_frame()
    assert found.to_numpy().tolist() == [
        ["whole model", -1, 0, 3, "distortion", 0.0],
        ["whole model", -1, 0, 3, "a: b", 0.9],
        ["random", 2, 1, 2, "distortion", 0.5],
        ["random", 2, 1, 2, "a: b", 0.7],
    ]


def test_the_folder_holds_tables_and_pictures_and_nothing_of_an_earlier_sweep(tmp_path: Path) -> None:
    swept().save(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    pictures = {"sweep-0", "survival-norm", "survival-loo_zero"}
    assert names == {"sweep.csv", "sweep.json", "survival.csv"} | {
        f"{name}.{kind}" for name in pictures for kind in ("svg", "png")
    }
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "sweep.csv"), swept().to_frame())
    told = json.loads((tmp_path / "sweep.json").read_text())
    assert told["points"][1]["removed"] == ["L{}H{}".format(*head) for head in swept().points[1].plan.removed]
    drawn = (tmp_path / "sweep-0.svg").read_text()
    assert all(word in drawn for word in ("random, worst to best", "whole model", "norm", "loo_zero", "heads removed"))
    assert "alpha (2)" in (tmp_path / "survival-norm.svg").read_text()
    (tmp_path / "notes.txt").write_text("mine")
    replace(swept(), roles=None).save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        *("sweep.csv", "sweep.json", "sweep-0.svg", "sweep-0.png", "notes.txt")
    }


def test_pictures_are_the_same_every_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        swept().save(tmp_path / name)
    assert (tmp_path / "one" / "sweep-0.svg").read_bytes() == (tmp_path / "two" / "sweep-0.svg").read_bytes()


def test_facts_say_how_it_came_about() -> None:
    facts = swept().facts
    assert facts["command"] == "headlens.sweeping.sweep('tiny-bert', ...)"
    assert facts["shares"] == [0.125, 0.5, 0.75]
    assert (facts["draws"], facts["unit"], facts["objective"]) == (3, "head", "cosine_distortion")


# ------------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("methods", "options", "message"),
    [
        ([], {}, "name at least one"),
        (["magic"], {}, "got 'magic'"),
        (["norm"], {"shares": []}, r"A sweep removes shares above 0 and up to 1 of the heads, got \[\]"),
        (["norm"], {"shares": [0.5, 1.5]}, "above 0 and up to 1"),
        (["norm"], {"shares": [0.0]}, "above 0"),
        (["norm"], {"shares": [float("nan")]}, "above 0"),
        (["norm"], {"shares": [0.001]}, "come to no head of 32; give larger ones"),
        (["norm"], {"roles": Roles(6, 12, (ALPHA,), ())}, "The roles are of 6 x 12 heads, and the model has 4 x 8"),
    ],
)
def test_bad_wishes_are_refused_before_any_text_is_read(methods: list[str], options: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        sweep(tiny(), own_texts(1), methods, **options)  # a single text would be refused later


def test_a_method_that_the_objective_makes_meaningless_is_refused_before_any_model_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(METHODS, "norm", replace(METHODS["norm"], run=not_run))
    with pytest.raises(PlanError, match="taylor cannot be asked"):
        sweep(tiny(), own_texts(), ["norm", "taylor"], shares=[0.5], draws=1, texts=3)
