"""Which sentences the scores give, by which rules."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from report_pages import HEADS, LAYERS, NAN, at, one_metric, planted, read, table

from headlens.effects import Ablation, Effect
from headlens.report import render_summary
from headlens.report.findings import findings, head_traits
from headlens.roles import roles_of
from headlens.roles.catalogue import RULES
from headlens.scores import Metric


def test_many_heads_are_named_up_to_four_and_then_counted() -> None:
    mass = np.full((LAYERS, HEADS), 0.1)
    mass[0] = [0.9, 0.8, 0.7, 0.6]
    assert findings(table({"position.mass[-1]": mass}))[0].text.endswith(
        "; so do L0H1 (.80), L0H2 (.70) and L0H3 (.60)."
    )
    mass[1, :2] = 0.55
    assert findings(table({"position.mass[-1]": mass}))[0].text.endswith(
        "; so do L0H1 (.80), L0H2 (.70), L0H3 (.60) and 2 more."
    )


def test_of_every_head_that_is_named_it_is_told_if_it_is_tentative() -> None:
    scores = table({"position.mass[-1]": at(0.1, {(1, 2): 0.9, (0, 1): 0.51})})  # whose interval begins at .49
    assert findings(scores)[0].text == (
        "L1H2 attends to the previous token: .90 of its mass on average (chance .05); so does L0H1 (.51, tentative)."
    )


def taken_out(**changes: tuple[float, bool]) -> Ablation:
    """By how much the loss rises without each head, and whether beyond chance."""
    return Ablation(
        tuple(
            Effect(
                int(name[1]),
                int(name[3]),
                "text",
                3.2,
                change,
                change - 0.1,
                change + 0.1,
                0.01 if is_used else 0.5,
                40,
            )
            for name, (change, is_used) in changes.items()
        )
    )


@pytest.mark.parametrize(
    ("ablation", "words"),
    [
        (
            taken_out(L0H0=(6.712, True), L1H2=(0.5, True), L0H1=(0.2, False), L2H3=(0.1, False)),
            "The model uses 2 of the 4 heads that were taken out one by one: without each of them its loss rises "
            "beyond chance, the most without L0H0 (+6.712 nats a token, from 3.20). Of the heads named above it uses "
            "L1H2; no rise beyond chance is to be seen without L0H1.",
        ),
        (
            taken_out(L1H2=(0.5, True), L0H1=(0.2, True)),
            "the most without L1H2 (+.500 nats a token, from 3.20). It uses all of the heads named above.",
        ),
        (
            taken_out(L0H0=(0.5, True), L0H1=(0.2, False)),
            "from 3.20). No rise is to be seen without any of the heads named above.",
        ),
        (
            taken_out(L0H0=(0.5, False), L0H1=(0.0, False)),
            "The loss does not rise beyond chance without any of the 2 heads that were taken out one by one.",
        ),
        (
            Ablation((Effect(0, 1, "output", NAN, 0.1, NAN, NAN, NAN, 4),)),
            "this model has no loss that could rise, so of no head is it said that the model uses it.",
        ),
    ],
)
def test_which_heads_the_model_uses_is_told_last(ablation: Ablation, words: str) -> None:
    scores = table({"position.mass[-1]": at(0.1, {(1, 2): 0.9, (0, 1): 0.8})})
    assert findings(scores, ablation=ablation)[-1].text.endswith(words)


def test_a_value_at_the_threshold_is_no_finding() -> None:
    exactly = table({"position.mass[-1]": at(0.1, {(1, 2): 0.5})})
    assert not any(finding.passes for finding in findings(exactly))
    assert not any(head.held for head in head_traits(exactly, roles_of(exactly)))


def test_a_rule_with_a_floor_wants_the_whole_interval_above_it() -> None:
    # the table draws intervals from .02 below the value; .61 passes .60, but .46 does not pass .50
    clear = table({"phrase.neighbour": at(0.3, {(1, 2): 0.61})})
    assert findings(clear)[0].text == (
        "L1H2 attends to the neighbour in the same phrase: .61 of the words between one inside and one outside (chance "
        ".05; tentative)."
    )
    wide = dataclasses.replace(clear, low=clear.values - 0.15)
    assert [finding.text for finding in findings(wide)][1] == (
        "No head attends to the neighbour in the same phrase: that takes over .60 of the words between one inside and "
        "one outside; L1H2 comes nearest with .610 (chance .050), but its interval reaches down to .460."
    )
    unknown = dataclasses.replace(clear, low=np.full_like(clear.values, NAN), high=np.full_like(clear.values, NAN))
    assert findings(unknown)[1].text.endswith("(chance .050), but its interval is not known.")
    assert [head.held for head in head_traits(wide, roles_of(wide)) if head.held] == []


def test_a_score_at_its_floor_is_nowhere_near_the_threshold() -> None:
    # half of the way from .5 to .6, against .4 of .5
    scores = table({"phrase.neighbour": at(0.5, {(1, 2): 0.55}), "position.mass[-1]": at(0.2, {})})
    near = head_traits(scores, roles_of(scores))
    nearest = {head.name: head.nearest.rule.title for head in near if head.nearest}
    assert nearest["L1H2"] == "adjacent phrase"
    assert nearest["L0H0"] == "previous token"


def test_without_a_score_that_rules_read_there_is_nothing_to_find() -> None:
    assert [f.text for f in findings(table({"surface.confidence": at(0.9, {})}))] == [
        "No finding: the table holds none of the scores that the rules read."
    ]


def test_a_rule_may_look_below_its_threshold() -> None:
    found = findings(table({"position.variability": at(0.4, {(2, 2): 0.012})}))[0]
    assert found.passes
    assert found.text.startswith("L2H2 attends by relative position whatever the words: .01 of the variance")


def test_there_are_three_to_six_sentences_where_there_are_rules_enough() -> None:
    assert len(findings(planted())) == 5
    everything = {rule.metric: at(0.99, {}) for rule in RULES if not rule.is_below}
    readable = [rule for rule in RULES if all(condition.if_unknown for condition in rule.also)]
    assert [finding.rule for finding in findings(table(everything))] == readable[:6]


def test_the_first_token_is_not_told_twice_where_it_is_cls() -> None:
    told = [finding.rule.metric for finding in findings(planted()) if finding.rule]
    assert "surface.cls" in told
    assert "surface.first" not in told
    apart = planted(**{"surface.first": at(0.1, {(0, 0): 0.8})})
    assert "surface.first" in [finding.rule.metric for finding in findings(apart) if finding.rule]


@pytest.mark.parametrize("line", ["passed: 7 laws hold", "7 laws hold"])
def test_the_verdict_of_the_self_check_is_said_once(line: str) -> None:
    provenance = {"selfcheck": {"passed": True, "line": line}}
    page = read(render_summary(one_metric(Metric("a.b", "", "", "share")), provenance))
    assert "Self-check: ✓ passed: 7 laws hold" in [words.text for words in page.all("p")]
