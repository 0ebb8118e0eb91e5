"""Heads ranked by several methods: the numbers behind the order, who agrees with whom, and who cannot be asked."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import spearmanr
from test_calibration import calibration, cosine_by_hand, own_texts, silenced, tiny

from headlens.errors import PlanError, UnsupportedModel
from headlens.importance.methods import METHODS, Setting
from headlens.importance.result import Importance, Reliability
from headlens.rankings import Ranking, Rankings, lines_of, rank_by
from headlens.scores import ScoreTable

pytestmark = pytest.mark.slow  # many models; CI runs them as its own step

LAYERS, HEADS = 4, 8  # of the bundled models


@cache
def ranked(*methods: str, **options: Any) -> Rankings:
    return rank_by(tiny(), own_texts(), methods, texts=5, **options)


def values_of(found: Rankings, method: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    return found.by_method[method].importance.values


def not_run(_: Setting) -> Importance:
    pytest.fail("a method that has no meaning here was run")


def made_up(values: list[list[float]]) -> Ranking:
    return Ranking(Importance("norm", np.array(values)), Reliability(float("nan"), float("nan")), 0.5)


# ---------------------------------------------------------------------------------------------------------- the numbers


@pytest.mark.parametrize("head", [(0, 0), (1, 3), (3, 7)])
def test_a_head_matters_as_much_as_the_model_without_it_is_worse(head: tuple[int, int]) -> None:
    expected = np.mean(cosine_by_hand(tiny().model, silenced(tiny().model, [head]), calibration().chosen))
    found = values_of(ranked("loo_zero", "norm"), "loo_zero")[head]
    assert found == pytest.approx(expected, rel=1e-3)  # some 1e-4 of rounding in float32
    assert expected > 1e-5


def test_the_norm_of_a_head_is_that_of_what_it_writes() -> None:
    contexts: list[torch.Tensor] = []
    attention = tiny().model.bert.encoder.layer[2].attention
    hook = attention.output.dense.register_forward_pre_hook(lambda _, given: contexts.append(given[0]))
    by_example = []
    with torch.no_grad():
        for batch in calibration().chosen:
            for ids, mask in zip(batch.input_ids, batch.attention_mask, strict=True):
                tiny().model(ids[mask.bool()][None])
                written = contexts[-1][0][:, 72:96] @ attention.output.dense.weight[:, 72:96].T  # head 3
                by_example.append(float(written.norm(dim=-1).mean()))
    hook.remove()
    assert values_of(ranked("loo_zero", "norm"), "norm")[2, 3] == pytest.approx(np.mean(by_example), rel=1e-5)


def test_the_least_important_head_comes_first_and_one_that_is_gone_not_at_all() -> None:
    nan = float("nan")
    found = made_up([[0.3, -1.0, 0.2], [nan, 0.2, 9.0]])
    assert found.order == [(0, 1), (0, 2), (1, 1), (0, 0), (1, 2)]


def test_agreement_is_that_of_scipy() -> None:
    found = ranked("loo_zero", "norm")
    (row,) = found.agreement.to_dict("records")
    assert (row["first"], row["second"], row["heads"]) == ("loo_zero", "norm", LAYERS * HEADS)
    expected = spearmanr(values_of(found, "loo_zero").ravel(), values_of(found, "norm").ravel()).statistic
    assert row["spearman"] == pytest.approx(expected, abs=1e-12)
    assert -1 <= row["low"] < row["high"] <= 1


def test_all_heads_at_once_go_in_the_order_of_leaving_one_out() -> None:
    """Scored a single time, with the same means, a search is leave-one-out; in float64, which it never narrows."""
    wide = replace(tiny(), model=copy.deepcopy(tiny().model).double())
    together, singly = (
        rank_by(wide, own_texts(), ["greedy", "loo_mean"], texts=5, every=every) for every in (LAYERS * HEADS, None)
    )
    assert together.by_method["greedy"].order == together.by_method["loo_mean"].order
    assert together.by_method["greedy"].importance.facts["evaluations"] == LAYERS * HEADS
    assert singly.by_method["greedy"].importance.facts["evaluations"] > LAYERS * HEADS


def test_by_default_heads_are_scored_again_after_each() -> None:
    first, second = (found.by_method["greedy"].importance for found in (ranked("greedy"), ranked("greedy", every=1)))
    assert first.facts == second.facts


def test_the_table_names_metrics_by_the_methods_that_were_asked_for() -> None:
    found = ranked("norm", "norm_raw", "random")
    assert [metric.name for metric in found.table.metrics] == [
        "importance.norm",
        "importance.norm_raw",
        "importance.random",
    ]
    np.testing.assert_array_equal(found.table.values[0], found.table.values[1])  # what norm is of a post-norm model
    assert sorted(found.table.values[2].ravel()) == list(range(1, LAYERS * HEADS + 1))


def test_a_method_named_twice_is_asked_once() -> None:
    assert list(ranked("norm", "random", "norm").by_method) == ["norm", "random"]


# --------------------------------------------------------------------------------------------------- who can be asked


@pytest.mark.parametrize(
    ("objective", "senseless", "reason"),
    [
        (None, ["gradient", "gradient_token", "gradient_batch", "taylor"], "gradient, and that of cosine_distortion"),
        ("loss", ["gauss_newton"], "and masked_token_loss is none; the objective must be cosine, kl or hidden"),
    ],
)
def test_what_the_objective_makes_meaningless_is_left_out_and_not_run(
    monkeypatch: pytest.MonkeyPatch, objective: Any, senseless: list[str], reason: str
) -> None:
    for name in senseless:
        monkeypatch.setitem(METHODS, name, replace(METHODS[name], run=not_run))
    found = rank_by(tiny(), own_texts(), [*senseless, "norm"], objective=objective, texts=3)
    assert list(found.by_method) == ["norm"]
    assert list(found.refused) == senseless
    assert all(reason in said for said in found.refused.values())
    told = [line for line in lines_of(found) if "left out: " in line]
    assert [line.split()[0] for line in told] == senseless
    with pytest.raises(PlanError, match=reason):
        rank_by(tiny(), own_texts(), senseless[:1], objective=objective, texts=3)


def test_of_a_loss_gradients_rank() -> None:
    found = ranked("gradient", "taylor", objective="loss")
    assert not found.refused
    assert found.facts["objective"] == "masked_token_loss"


def test_where_no_method_can_be_asked_the_first_reason_is_given() -> None:
    with pytest.raises(UnsupportedModel, match="No method can be asked of this model: taylor cannot be asked"):
        rank_by(tiny(), own_texts(), ["taylor", "gradient"], texts=3)


@pytest.mark.parametrize(
    ("methods", "every", "message"),
    [
        ([], None, "Heads are ranked by greedy, .*; name at least one"),
        (["norm", "magic"], None, "got 'magic'"),
        (["norm", "random"], 4, r"\(greedy\), not for norm, random; leave that option out"),
        (["greedy"], 0, "At least one head goes before the next scoring, got 0"),
    ],
)
def test_bad_wishes_are_refused_before_any_text_is_read(methods: list[str], every: int | None, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        rank_by(tiny(), own_texts(1), methods, every=every)  # a single text would be refused later


# ------------------------------------------------------------------------------------------------------ what is written


def test_facts_say_how_it_came_about() -> None:
    facts = ranked("loo_zero", "norm").facts
    assert facts["command"] == "headlens.rankings.rank_by('tiny-bert', ...)"
    assert (facts["objective"], facts["unit"], facts["seed"]) == ("cosine_distortion", "head", 0)
    assert (facts["data"]["chosen_on"], facts["data"]["held_out"]) == (5, 5)
    assert facts["model"]["name"] == "tiny-bert"


def test_the_folder_holds_what_was_found(tmp_path: Path) -> None:
    found = ranked("loo_zero", "random")
    found.save(tmp_path / "deep" / "out")
    folder = tmp_path / "deep" / "out"
    assert {path.name for path in folder.iterdir()} == {
        "scores.parquet",
        "scores.csv",
        "agreement.csv",
        "importance.json",
    }
    told = json.loads((folder / "importance.json").read_text())
    assert told["schema"] == "headlens.importance/1"
    lowest = np.unravel_index(values_of(found, "loo_zero").argmin(), (LAYERS, HEADS))
    assert told["methods"]["loo_zero"]["order"][0] == "L{}H{}".format(*lowest)
    assert len(set(told["methods"]["loo_zero"]["order"])) == LAYERS * HEADS
    assert told["methods"]["random"]["split_half"] is None
    assert -1 <= told["methods"]["loo_zero"]["split_half"] <= 1
    assert "Michel" in told["methods"]["loo_zero"]["source"]
    np.testing.assert_array_equal(ScoreTable.load(folder).values[0], values_of(found, "loo_zero"))
    row = pd.read_csv(folder / "agreement.csv").iloc[0]
    expected = spearmanr(values_of(found, "loo_zero").ravel(), values_of(found, "random").ravel()).statistic
    assert row["spearman"] == pytest.approx(expected)


def test_the_terminal_gets_both_ends_of_each_order() -> None:
    values = np.arange(12.0).reshape(2, 6) + 0.5
    ranking = replace(made_up(values.tolist()), reliability=Reliability(0.5, 2 / 3))
    ranking = replace(ranking, importance=replace(ranking.importance, meaning="How big it is; larger matters more."))
    assert list(lines_of(Rankings({"norm": ranking}, {}, {}), ends=2)) == [
        "norm: How big it is; larger matters more. (halves agree 0.50, 0.5 s)",
        "  the least   the most",
        "  L0H0 0.500  L1H5 11.5",
        "  L0H1 1.50   L1H4 10.5",
    ]


def test_no_head_is_at_both_ends() -> None:
    lines = list(lines_of(Rankings({"norm": made_up([[3.0, 1.0, 2.0]])}, {}, {})))[1:]
    assert [line.split() for line in lines] == [
        ["the", "least", "the", "most"],
        ["L0H1", "1", "L0H0", "3"],
        ["L0H2", "2"],
    ]


def test_every_head_in_the_terminal_has_its_interval() -> None:
    """That of examples which are all alike has no width, however small the value."""
    per_example = np.broadcast_to([[0.0123, 4.5e-9, 0.0]], (5, 1, 3))
    importance = Importance.of_examples("loo_zero", per_example, meaning="How much kl distortion rises.")
    found = Rankings({"loo_zero": Ranking(importance, importance.split_half(), 1.0)}, {}, {})
    lines = list(lines_of(found))
    assert lines[0].startswith("loo_zero: How much kl distortion rises. (halves agree 1.00, ")
    assert [line.strip() for line in lines[2:]] == [
        "L0H2 0 [0, 0]                       L0H0 0.0123 [0.0123, 0.0123]",
        "L0H1 4.50e-09 [4.50e-09, 4.50e-09]",
    ]
    assert repr(found) == "<Rankings of 3 heads of a model: loo_zero>"


def test_intervals_in_the_terminal_are_those_of_the_table() -> None:
    found = ranked("loo_zero", "norm")
    table, line = found.table, list(lines_of(found))[2].split("  ")
    name = line[1].split()[0]
    layer, head = int(name[1]), int(name[3])
    told = [float(word.strip("[],")) for word in line[1].split()[1:]]
    expected = [float(part[0, layer, head]) for part in (table.values, table.low, table.high)]
    assert told == pytest.approx(expected, rel=0.02, abs=1e-6)  # three digits are told
    assert expected[1] < expected[0] < expected[2]
