"""Rules that read several scores of a head: controls, conditions, and which letter comes first."""

from __future__ import annotations

import dataclasses
import re
from importlib.resources import files

import numpy as np
import pytest
from report_annotated import evidence_of, known
from report_pages import NAN, at, read, table

from headlens.evidence_table import ABOVE, Evidence
from headlens.report import render_report
from headlens.report.claims import KINDS
from headlens.report.findings import findings, head_traits
from headlens.report.rules import CLEARLY, RULES, rules_for
from headlens.scores import ScoreTable

INDUCTION, CONTROL = "repetition.induction", "repetition.induction_control"
COPYING, PREFIX = "repetition.copying", "repetition.prefix_matching"
HEAD = (1, 2)


def with_chance(scores: ScoreTable, **chance: float) -> ScoreTable:
    """`chance` by the last part of the metric's name."""
    levels = [chance.get(name.split(".")[-1], 0.014) for name in scores.names]
    return dataclasses.replace(scores, chance=np.array(levels))


def of_head(**values: float) -> ScoreTable:
    """Scores of L1H2 by the last part of their name; other heads have .01 of all. Intervals reach .02 down, .015 up."""
    family = {"sink_weight": "contribution", "sink_ratio": "contribution"}
    arrays = {f"{family.get(name, 'repetition')}.{name}": at(0.01, {HEAD: value}) for name, value in values.items()}
    return with_chance(table(arrays), copying=-0.9)


def letters(scores: ScoreTable, evidence: Evidence | None = None) -> str:
    """Of L1H2, in their order; no other head has any."""
    found = {head.name: "".join(held.letter for held in head.held) for head in head_traits(scores, evidence)}
    assert not any(held for name, held in found.items() if name != "L1H2")
    return found["L1H2"]


def test_no_two_rules_or_claims_have_one_letter() -> None:
    used = [rule.letter for rule in RULES if rule.letter] + [kind.letter for kind in KINDS]
    assert len(set(used)) == len(used)


def test_every_colour_is_in_the_style_sheet() -> None:
    css = files("headlens.report").joinpath("templates/style.css").read_text(encoding="utf-8")
    assert {rule.colour for rule in RULES if rule.colour} <= set(re.findall(r"^\.(t-\w+)\{", css, flags=re.MULTILINE))
    named = set(re.findall(r"var\((--[\w-]+)\)", css))
    light, dark = css.split("prefers-color-scheme:dark")[0], css.split("prefers-color-scheme:dark")[1].split("\n}}")[0]
    tones = {name for name in named if name.startswith("--repetition")}
    assert len(tones) == 3
    assert all(f"{tone}:" in part for tone in tones for part in (light, dark))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"induction": 0.41}, "I"),
        ({"induction": 0.40}, ""),  # at the threshold
        ({"induction": 0.60, "induction_control": 0.10}, "I"),
        ({"induction": 0.60, "induction_control": 0.28}, "I"),  # .58 is the lower end, twice the control .56
        ({"induction": 0.60, "induction_control": 0.30}, ""),
        ({"induction": 0.60, "induction_control": NAN}, "I"),
        ({"induction": 0.60, "prefix_matching": 0.41}, "I"),
        ({"induction": 0.60, "prefix_matching": 0.39}, ""),
        ({"induction": 0.60, "copying": -0.80}, "I"),  # chance is -.9
        ({"induction": 0.60, "copying": -0.91}, "I"),  # not clearly under chance: the interval ends at -.895
        ({"induction": 0.60, "copying": -0.96}, "X"),
        ({"induction": 0.60, "copying": NAN}, "I"),
        ({"induction": 0.30, "copying": -0.96}, ""),
        ({"induction": 0.60, "prefix_matching": 0.39, "copying": -0.96}, ""),
        ({"duplicate": 0.41}, "D"),
        ({"duplicate": 0.39}, ""),
        ({"duplicate": 0.60, "duplicate_control": 0.30}, ""),
        ({"duplicate": 0.60, "induction": 0.60}, "ID"),
        ({"previous": 0.51}, "V"),
        ({"previous": 0.49}, ""),
        ({"sink_weight": 0.31, "sink_ratio": 0.33}, "Z"),
        ({"sink_weight": 0.29, "sink_ratio": 0.01}, ""),
        ({"sink_weight": 0.90, "sink_ratio": 0.34}, ""),
        ({"sink_weight": 0.90, "sink_ratio": NAN}, ""),
        ({"sink_weight": 0.90}, ""),  # without the other half there is no such rule
    ],
)
def test_a_head_is_named_by_all_its_scores_together(values: dict[str, float], expected: str) -> None:
    assert letters(of_head(**values)) == expected


def test_a_rule_without_a_score_that_it_needs_is_not_there() -> None:
    without = of_head(induction=0.6, sink_weight=0.9)
    assert [rule.letter for rule in rules_for(without)] == ["I"]
    undefined = of_head(induction=0.6, copying=0.1)
    is_copying = np.array([name == "repetition.copying" for name in undefined.names])[:, None, None]
    undefined = dataclasses.replace(undefined, values=np.where(is_copying, NAN, undefined.values))
    assert [rule.letter for rule in rules_for(undefined)] == ["I"]


def test_induction_must_lie_clearly_above_chance() -> None:
    scores = of_head(induction=0.6)
    assert letters(with_chance(scores, induction=0.28)) == "I"
    assert letters(with_chance(scores, induction=0.30)) == ""


def test_without_an_interval_nothing_is_clear() -> None:
    scores = of_head(induction=0.6)
    assert letters(dataclasses.replace(scores, low=np.full_like(scores.low, NAN))) == ""


def test_where_chance_of_copying_is_unknown_it_is_nought() -> None:
    scores = of_head(induction=0.6, copying=-0.2)
    assert letters(scores) == "I"
    assert letters(with_chance(scores, copying=NAN)) == "X"


@pytest.mark.parametrize(
    ("values", "is_firm"),
    [
        ({"induction": 0.41}, False),  # the interval begins at .39
        ({"induction": 0.43}, True),
        ({"induction": 0.60, "copying": -0.89}, False),  # over chance, but the interval begins at -.91
        ({"induction": 0.60, "copying": -0.87}, True),
        ({"induction": 0.60, "prefix_matching": 0.41}, False),
        ({"sink_weight": 0.60, "sink_ratio": 0.32}, False),  # the interval ends at .335
        ({"sink_weight": 0.60, "sink_ratio": 0.31}, True),
    ],
)
def test_a_trait_is_firm_where_every_interval_lies_beyond_its_limit(values: dict[str, float], is_firm: bool) -> None:
    (held,) = next(head.held for head in head_traits(of_head(**values)) if head.name == "L1H2")
    assert held.is_firm is is_firm


def test_a_trait_is_told_with_the_scores_beside_it() -> None:
    traits = {head.name: head for head in head_traits(of_head(induction=0.92, copying=0.35, prefix_matching=0.88))}
    assert traits["L1H2"].held[0].words == "induction .920 (chance .014; prefix matching .880; copying .350)"
    assert traits["L1H2"].held[0].gloss == (
        "over .40 of its mass, in random tokens written twice, prefix matching over .40, copying over chance"
    )


def test_sentences_of_repetition() -> None:
    values = {INDUCTION: at(0.01, {(1, 2): 0.92, (0, 0): 0.5}), CONTROL: at(0.01, {(0, 0): 0.4})}
    found = findings(with_chance(table(values | {COPYING: at(0.3, {})}), copying=-0.9))
    assert [finding.text for finding in found] == [
        "L1H2 attends to what followed the same token before (induction): .92 of its mass, in random tokens written "
        "twice (chance .01; copying .30).",
        "No head attends to what followed the same token before without copying it with over .40 of its mass, in "
        "random tokens written twice, prefix matching over .40, copying under chance.",
    ]


def test_a_miss_names_the_nearest_of_the_heads_that_meet_the_conditions() -> None:
    weight = at(0.01, {(0, 1): 0.9, (1, 2): 0.2})
    ratio = at(0.9, {(1, 2): 0.1})
    found = findings(table({"contribution.sink_weight": weight, "contribution.sink_ratio": ratio}))
    assert found[1].text.endswith("; L1H2 comes nearest with .200 (chance .050; contribution over mass .100).")
    nearest = {head.name: head.nearest for head in head_traits(of_head(sink_weight=0.9, sink_ratio=0.9, previous=0.1))}
    assert nearest["L1H2"] is not None
    assert nearest["L1H2"].rule.letter == "V"


def test_a_rule_whose_conditions_no_head_meets_is_the_last_miss() -> None:
    names = {"contribution.sink_weight": 0.9, "contribution.sink_ratio": 0.9, "repetition.previous": 0.1}
    found = findings(table({name: at(value, {}) for name, value in names.items()}))
    assert [finding.rule.letter for finding in found if finding.rule] == ["V", "Z"]


def test_a_control_that_is_as_high_is_told() -> None:
    found = findings(of_head(induction=0.6, induction_control=0.5))
    assert found[1].text.endswith(
        "L1H2 comes nearest with .600 (chance .014), but its interval reaches down to .580, not above 1.00, twice "
        "its control or chance."
    )


def test_repetition_is_told_before_coreference_and_that_before_duplicates() -> None:
    evidence = evidence_of([known("coref[all]", HEAD, 0.6, ABOVE, nearest=("", 0.3))], [])
    assert letters(of_head(induction=0.6, duplicate=0.6), evidence) == "IRD"


def test_a_sink_of_small_values_is_told_before_the_sink() -> None:
    scores = ScoreTable.joined(
        [of_head(sink_weight=0.9, sink_ratio=0.1), table({"surface.first": at(0.1, {HEAD: 0.9})})]
    )
    assert letters(scores) == "ZF"


def test_the_page_has_a_colour_and_a_legend_for_them() -> None:
    page = read(render_report(of_head(induction=0.9, copying=-0.99, duplicate=0.5), {}))
    cell = next(cell for cell in page.all("td") if cell.attributes.get("id") == "L1H2")
    assert cell.attributes["class"] == "t-repetition"
    assert cell.text == "XD"
    rows = page.one("table", class_="counts").one("tbody").all("tr")
    traits = [(row.one("span", class_="sw").text, row.one("b").text) for row in rows[:3]]
    assert traits == [("I", "induction"), ("X", "anti-induction"), ("D", "duplicate token")]


def test_numbers_that_decide_are_those_of_the_analyzer() -> None:
    from headlens.analyzers import contribution  # reports do without torch, so that the numbers stand there twice

    sink = next(rule for rule in RULES if rule.letter == "Z")
    assert (sink.threshold, sink.also[0].limit) == (contribution.SINK_WEIGHT, contribution.NO_OP_RATIO) == (0.3, 1 / 3)
    assert CLEARLY == 2.0
