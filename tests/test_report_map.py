"""The head map and its data: what stands in the page before scripts run, and what they paint from."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from typing import Any

import numpy as np
import pytest
from report_annotated import annotated_evidence, annotated_scores, full_annotated
from report_pages import HEADS, LAYERS, NAN, PROVENANCE, Node, at, one_metric, planted, read, table

from headlens.behaviour.similarity import Similarity
from headlens.effects import Ablation, Effect
from headlens.examples import Example, Examples
from headlens.report import render_report
from headlens.report.findings import head_traits
from headlens.report.head_map import heads_by_role, map_of
from headlens.report.page_data import as_script, compact, page_data
from headlens.roles import roles_of
from headlens.scores import Metric, ScoreTable

EVIL = "</script><script>alert(1)</script><!-- '\" &amp; \u2028"


def data_of(html: str) -> dict[str, Any]:
    """The data as a browser finds it: the text up to the first end tag."""
    block = html.partition('<script id="data" type="application/json">')[2].partition("</script")[0]
    found: dict[str, Any] = json.loads(block)
    return found


def scripted(scores: ScoreTable, **known: Any) -> dict[str, Any]:
    roles = roles_of(scores, known.pop("evidence", None))
    return page_data(scores, head_traits(scores, roles), roles, **known)


def metric_of(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(metric for metric in data["metrics"] if metric["name"] == name)
    return found


def to_fixed(value: float, decimals: int) -> str:
    """As ECMAScript prints: exactly, and halves up."""
    return f"{Decimal(abs(value)).quantize(Decimal(1).scaleb(-decimals), rounding=ROUND_HALF_UP):f}"


def similarity_of(n: int) -> Similarity:
    """Heads of one layer on a line, an eighth of a nat apart."""
    line = np.arange(n) / 8
    return Similarity(
        heads=tuple((0, head) for head in range(n)),
        distance=np.abs(line[:, None] - line),
        place=np.stack([line, line], axis=1),
        cluster=np.zeros(n, dtype=np.int64),
        rows=40,
        inputs=4,
        stress=0.0,
        silhouette=NAN,
    )


def example_of(layer: int, head: int, words: tuple[str, ...], *, why: str = "", text_id: str = "t:1") -> Example:
    rest = (0.1,) * len(words)
    return Example(layer, head, text_id, words, ((1, 0, 0.84),), rest, (), "ltr", strength=0.84, why=why)


def effect_of(layer: int, head: int, *, change: float, low: float, high: float, q: float) -> Effect:
    return Effect(layer, head, "text", intact=2.125, change=change, low=low, high=high, q=q, documents=40)


@cache
def annotated() -> Node:
    return read(render_report(annotated_scores(), PROVENANCE, annotated_evidence()))


# ------------------------------------------------------------------------------------------------------- in the page


def test_every_cell_names_head_role_and_strength() -> None:
    labels = [link.attributes["aria-label"] for link in annotated().one("table", id="heads").all("a")]
    assert labels == [
        "L0H0: no role",
        "L0H1: adjacent phrase, firm",
        "L0H2: previous token, firm",
        "L0H3: other syntax, tentative",
        "L1H0: no role",
        "L1H1: pronoun reference, firm",
        "L1H2: subject and verb, firm",
        "L1H3: no role",
        "L2H0: other syntax, firm",
        "L2H1: other syntax, firm",
        "L2H2: pronoun reference, firm",
        "L2H3: no role",
    ]


def test_the_map_is_one_stop_of_the_tab_key() -> None:
    grid = annotated().one("table", id="heads")
    assert grid.attributes["role"] == "grid"
    assert [link.attributes["tabindex"] for link in grid.all("a")] == ["0", *["-1"] * (LAYERS * HEADS - 1)]
    for cell in grid.one("tbody").all("td"):
        assert cell.one("a").attributes["href"] == f"#{cell.attributes['id']}"


@pytest.mark.parametrize(("heads", "is_wide"), [(16, False), (17, True)])
def test_more_than_sixteen_heads_make_narrow_cells(heads: int, is_wide: bool) -> None:
    page = read(render_report(table({"surface.cls": np.full((1, heads), 0.1)}, with_macro=False), {}))
    assert ("wide" in page.one("table", id="heads").attributes["class"].split()) == is_wide


def test_controls_that_need_scripts_are_hidden_without_them() -> None:
    page = annotated()
    themes = [button for button in page.all("button") if "data-theme" in button.attributes]
    assert [button.text for button in themes] == ["Auto", "Light", "Dark"]
    assert all("scripted" in _above(control) for control in (page.one("select", id="paint"), *themes))
    assert all("disabled" in button.attributes for button in page.all("button", class_="role"))
    (said,) = page.all("noscript")
    assert "scores.csv" in said.text


def _above(node: Node) -> list[str]:
    classes: list[str] = []
    here: Node | None = node
    while here is not None:
        classes += here.attributes.get("class", "").split()
        here = here.parent
    return classes


def test_a_role_by_several_metrics_is_one_role() -> None:
    scores, evidence = annotated_scores(), annotated_evidence()
    roles = roles_of(scores, evidence)
    (cell,) = [cell for layer in map_of(head_traits(scores, roles), HEADS) for cell in layer if cell.name == "L1H1"]
    assert len(roles.of(1, 1)) == 2  # coref[pronoun] and coref[pronoun_unmatched]
    assert (cell.letter, cell.further) == ("R", "")
    counted = {entry.role.id: (entry.firm, entry.tentative) for entry in heads_by_role(roles)}
    assert counted["pronoun_reference"] == (("L1H1", "L2H2"), ())
    assert counted["syntax"] == (("L2H0", "L2H1"), ("L0H3",))


def test_where_nothing_is_found_the_page_says_so_first() -> None:
    rng = np.random.default_rng(0)
    scores = table({name: at(0.05, {}) + 0.01 * rng.random((LAYERS, HEADS)) for name in ("surface.cls", "surface.sep")})
    page = read(render_report(scores, {}))
    assert page.one("ul", class_="find").all("li")[0].text == (
        "No head has a role: none passes a threshold of the 2 rules."
    )
    assert {cell.text for cell in page.one("table", id="heads").one("tbody").all("td")} == {"·"}
    rows = [row.text for row in page.one("table", class_="counts").one("tbody").all("tr")]
    assert rows == ["·no role12no score beyond a threshold, which is no proof that the head does nothing"]


def test_where_annotated_words_show_nothing_that_is_said_too() -> None:
    evidence = annotated_evidence()
    rows = tuple(dataclasses.replace(row, verdict="undecided") for row in evidence.metrics)
    relations = tuple(dataclasses.replace(row, verdict="undecided") for row in evidence.relations)
    nothing = dataclasses.replace(evidence, metrics=rows, relations=relations, q=np.ones_like(evidence.q))
    page = read(render_report(table({"surface.cls": at(0.05, {})}), {}, nothing))
    assert page.one("ul", class_="find").all("li")[0].text == (
        "No head has a role: none passes a threshold of the 1 rule, and annotated words single none out."
    )


# ---------------------------------------------------------------------------------------------------------- its data


def test_every_value_is_there_in_the_order_of_the_heads() -> None:
    scores = planted()
    data = scripted(scores)
    assert (data["layers"], data["heads"]) == (LAYERS, HEADS)
    assert [metric["name"] for metric in data["metrics"]] == [m.name for m in scores.metrics if not m.is_macro]
    for metric in data["metrics"]:
        place = scores.index(metric["name"])
        for mine, theirs in (("values", scores.values), ("low", scores.low), ("high", scores.high)):
            np.testing.assert_allclose(metric[mine], theirs[place].ravel(), rtol=6e-4, atol=1e-9)
        assert metric["chance"] == pytest.approx(scores.chance[place], rel=6e-4)


def test_what_is_not_a_number_is_null() -> None:
    gap = at(0.3, {(1, 1): NAN})
    scores = table({"surface.cls": gap, "surface.sep": np.full((LAYERS, HEADS), NAN)}, with_macro=False)
    scores = dataclasses.replace(scores, chance=np.array([NAN, 0.1]))
    data = scripted(scores)
    cls, sep = data["metrics"]
    assert cls["chance"] is None
    assert cls["values"][5] is None
    assert cls["steps"][5] == "-"
    assert sep["values"] == [None] * 12
    assert (sep["low"], sep["scale"]) == (None, "none")
    assert data["absent"] == [5]
    assert "NaN" not in as_script(data)


@pytest.mark.parametrize("decimals", [2, 3])
def test_a_rounded_number_is_printed_as_the_number_itself(decimals: int) -> None:
    rng = np.random.default_rng(7)
    spread = [rng.random(3000), -rng.random(300), 40 * rng.random(300), 10.0 ** rng.uniform(-6, 0, 1000)]
    # what lies just beside a half of the last digit, or on it, as .0625 does
    beside = [np.array([0.73149, 0.73151, 0.0625, 0.125, 0.375, 2.675, 0.99949, 0.9995, 0.00049, 0.0005, 0.0, -0.0005])]
    values = np.concatenate(spread + beside)
    for value, short in zip(values.tolist(), compact(values, decimals), strict=True):
        assert short is not None
        assert to_fixed(short, decimals) == f"{abs(value):.{decimals}f}", value
        assert short == pytest.approx(value, rel=6e-4, abs=1e-12)
        assert (short > 0) == (value > 0)  # .0004 is printed as <.001, 0 as .000


def test_steps_of_colour_are_those_of_the_drawn_maps() -> None:
    # chance .05; seven steps from there to .75 are .1 wide
    mass = np.full((LAYERS, HEADS), 0.04)
    mass[0] = [0.05, 0.051, 0.149, 0.151]
    mass[1] = [0.75, 0.66, 0.2501, NAN]
    data = scripted(table({"surface.cls": mass}, with_macro=False))
    cls = metric_of(data, "surface.cls")
    assert cls["scale"] == "chance"
    assert cls["steps"] == " 001662-    "
    assert (cls["top"], cls["end"]) == (4, "highest")
    assert cls["edges"][0] == 0
    np.testing.assert_allclose(cls["edges"][1:], np.linspace(0.05, 0.75, 8), rtol=1e-5)


def test_a_value_between_two_steps_has_the_upper_one() -> None:
    values = np.arange(8.0).reshape(1, 2, 4)
    entropy = Metric("surface.entropy", "T", "M.", "nats")
    scores = ScoreTable((entropy,), values, values * 0 + 99, values, values, np.array([3.0]))
    (metric,) = scripted(scores)["metrics"]
    assert metric["edges"] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert metric["steps"] == "01234566"


@pytest.mark.parametrize(
    ("name", "unit", "scale", "end", "top"),
    [
        ("surface.entropy", "nats", "plain", "highest", 11),
        ("position.distance_signed", "tokens", "signed", "highest", 11),
        ("position.variability", "share", "plain", "lowest", 0),
    ],
)
def test_other_scores_have_their_own_scale(name: str, unit: Any, scale: str, end: str, top: int) -> None:
    values = np.linspace(-1, 2, 12).reshape(1, 3, 4)
    scores = ScoreTable((Metric(name, "T", "M.", unit),), values, values * 0 + 99, values, values, np.array([0.5]))
    (metric,) = scripted(scores)["metrics"]
    assert (metric["scale"], metric["end"], metric["top"]) == (scale, end, top)


def test_roles_have_their_numbers_and_sentences() -> None:
    scores, evidence = annotated_scores(), annotated_evidence()
    data = scripted(scores, evidence=evidence)
    (obj,) = data["held"][str(2 * HEADS + 0)]
    assert data["metrics"][obj.pop("metric")]["name"] == "syntax.dep_to_head[obj]"
    assert obj == {
        "value": 0.72,
        "low": 0.69,
        "high": 0.75,
        "chance": 0.08,
        "null": 0.41,
        "nullName": "best constant offset",
        "role": "syntax",
        "firm": True,
        "sentence": "attends from a direct object to its verb in 72% of 500 cases on held-out documents [69%, 75%]; "
        "best constant offset 41%",
    }
    assert {role["id"] for role in data["roles"]} >= {"syntax", "subject_verb", "previous_token"}
    assert data["classes"][2] == "diagonal"  # L0H2, previous token


def test_a_head_without_a_role_has_the_one_that_comes_nearest() -> None:
    data = scripted(table({"position.mass[-1]": at(0.1, {(1, 2): 0.498}), "surface.sep": at(0.1, {})}))
    near = data["nearest"][str(1 * HEADS + 2)]
    assert data["metrics"][near["metric"]]["name"] == "position.mass[-1]"
    assert near["words"] == (
        "Nearest is previous token: .498 of its mass on average (chance .050); it takes over .50 of its mass on "
        "average."
    )
    assert data["held"] == {}


def test_a_head_with_a_role_comes_nearest_to_none() -> None:
    data = scripted(planted())
    assert {int(place) for place in data["held"]} == {2, 4, 5, 7, 8, 9}
    assert {int(place) for place in data["nearest"]} == {0, 1, 3, 6, 10, 11}


def test_what_passes_a_threshold_but_not_its_null_is_told_apart() -> None:
    scores = table({"phrase.neighbour": at(0.3, {(1, 2): 0.61})})
    wide = dataclasses.replace(scores, low=scores.values - 0.15)
    words = scripted(wide)["nearest"][str(1 * HEADS + 2)]["words"]
    assert words.endswith(" outside, clear of what a head gets without it.")


def test_the_heads_that_look_alike_have_their_distances() -> None:
    scores = table({"surface.cls": np.full((1, 4), 0.1)}, with_macro=False)
    assert scripted(scores, similarity=similarity_of(4))["alike"] == {
        "0": [(1, 0.125), (2, 0.25), (3, 0.375)],
        "1": [(0, 0.125), (2, 0.125), (3, 0.25)],
        "2": [(1, 0.125), (3, 0.125), (0, 0.25)],
        "3": [(2, 0.125), (1, 0.25), (0, 0.375)],
    }


def test_a_head_that_was_taken_out_has_its_effect() -> None:
    ablation = Ablation((effect_of(1, 3, change=0.5, low=0.4, high=0.6, q=0.001),))
    html = render_report(planted(), {**PROVENANCE, "ablation": ablation.to_dict()})
    assert data_of(html)["effects"] == {
        str(1 * HEADS + 3): "without it the loss rises by .500 [.400, .600] nats a token (from 2.12): the model uses it"
    }


def test_examples_come_as_their_file_has_them() -> None:
    examples = Examples((example_of(0, 2, ("the", "cat"), why="previous_token"),))
    data = data_of(render_report(planted(), {}, examples=examples))
    assert data["examples"] == examples.to_dict()


def test_after_a_failed_self_check_the_data_has_scores_and_no_claims() -> None:
    failed = {**PROVENANCE, "selfcheck": {"passed": False, "line": "L1 differs"}}
    failed |= {"ablation": Ablation((effect_of(1, 3, change=0.5, low=0.4, high=0.6, q=0.001),)).to_dict()}
    examples = Examples((example_of(0, 2, ("the", "cat"), why="previous_token"),))
    data = data_of(render_report(planted(), failed, examples=examples))
    assert (data["roles"], data["held"], data["nearest"], data["classes"]) == (None, {}, {}, None)
    assert (data["effects"], data["examples"]) == ({}, None)
    assert metric_of(data, "position.mass[-1]")["values"][2] == 0.997


# ------------------------------------------------------------------------------------------- what comes from outside


def test_data_cannot_close_its_tag() -> None:
    evil = Metric("evil.</script>", f"{EVIL} title", EVIL, "share")
    examples = Examples((example_of(0, 1, (EVIL, "</SCRIPT x>"), why=EVIL, text_id=EVIL),))
    html = render_report(one_metric(evil), {"model": {"name": EVIL}, "notes": [EVIL]}, examples=examples)
    block = html.partition('<script id="data" type="application/json">')[2].partition("</script>")[0]
    assert "<" not in block
    data = data_of(html)
    assert data["metrics"][0]["meaning"] == EVIL
    assert data["examples"]["texts"][0]["words"] == [EVIL, "</SCRIPT x>"]
    assert data["examples"]["texts"][0]["id"] == EVIL
    page = read(html)  # every tag is closed, so no text has opened or closed one
    assert re.sub(r"\s+", " ", f"What the 4 heads of {EVIL} attend to") in page.text
    scripts = [script for script in page.all("script") if script.attributes.get("type") != "application/json"]
    assert "alert(1)" not in "".join(str(script.children) for script in scripts)


def test_a_word_that_is_no_proper_text_can_be_written() -> None:
    examples = Examples((example_of(0, 1, ("caf\udce9", "x")),))
    html = render_report(planted(), {}, examples=examples).encode("utf-8", "backslashreplace").decode()
    assert data_of(html)["examples"]["texts"][0]["words"] == ["caf\udce9", "x"]


# ------------------------------------------------------------------------------------------------------------- sizes


def test_the_data_of_a_base_model_is_small() -> None:
    scores, evidence = full_annotated()
    assert len(as_script(scripted(scores, evidence=evidence)).encode()) < 1_500_000


def test_the_data_of_a_large_model_is_small() -> None:
    rng = np.random.default_rng(1)
    large = table({f"x.score{n}": rng.beta(1, 6, (48, 64)) for n in range(60)}, with_macro=False)
    assert len(as_script(scripted(large)).encode()) < 8_000_000
