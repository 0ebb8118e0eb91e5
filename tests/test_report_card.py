"""What a card tells, and that every sentence a machine made has the numbers of the table it came from."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from report_annotated import BY_POS, OFFSET, evidence_of, known, of_relation
from report_pages import HEADS, LAYERS, NAN, at, table

from headlens.evidence_table import ABOVE, INFORMED, PROFILE, UNDECIDED, Evidence, MetricEvidence
from headlens.examples import Unshown
from headlens.numbers import number
from headlens.report.card import MOST_TELLING, OF_A_FAMILY, telling, unshown_words
from headlens.report.findings import Finding, findings
from headlens.report.sections import own_place
from headlens.roles import HeadRole, Rule, roles_of, rules_for
from headlens.roles.catalogue import RULES
from headlens.scores import ScoreTable

# ----------------------------------------------------------------------------------------------------- telling scores


def told(scores: ScoreTable, head: int) -> list[str]:
    metrics = own_place(scores)
    return [metrics[place].name for place in telling(scores, metrics)[head]]


def one_layer(**values: list[float]) -> ScoreTable:
    """Scores a_b=[...] of the metrics a.b, one layer, chance .05 (see report_pages.table)."""
    return table({name.replace("_", ".", 1): np.array([row]) for name, row in values.items()})


def test_scores_that_set_a_head_apart_are_told_strongest_first() -> None:
    scores = one_layer(
        surface_x=[0.9, 0.1, 0.1, 0.1, 0.1],  # two standard deviations and a half from the median
        word_y=[0.5, 0.4, 0.3, 0.2, 0.1],  # one and a half
        word_z=[0.3, 0.4, 0.3, 0.2, 0.1],  # at the median
    )
    assert told(scores, 0) == ["surface.x", "word.y", "word.z"]
    assert told(scores, 1) == ["word.z", "word.y", "surface.x"]  # one, 0.7, at the median


def test_means_of_inputs_and_controls_are_not_told() -> None:
    scores = table({"repetition.induction_control": at(0.1, {(0, 0): 0.9}), "surface.cls": at(0.1, {(0, 0): 0.9})})
    assert "surface.cls.macro" in scores
    assert told(scores, 0) == ["surface.cls"]


def test_below_chance_nothing_is_told_but_where_chance_is_no_floor() -> None:
    scores = one_layer(
        surface_cls=[0.01, 0.9, 0.9, 0.9],  # far from the others, yet under chance
        position_distance=[1.0, 9.0, 9.0, 9.0],  # tokens
        position_variability=[0.01, 0.9, 0.9, 0.9],  # low is telling
    )
    assert told(scores, 0) == ["position.distance", "position.variability"]
    assert told(scores, 1)[-1] == "position.variability"


@pytest.mark.parametrize(
    ("unshown", "words"),
    [
        (
            Unshown(1, 2, "pronoun_reference", run=1200, able=31, strength=0.0875),
            "Of 1,200 short texts of the corpus that were run, 31 have a place for the role pronoun reference, and "
            "none shows it. That takes half of the places right and .15 of the attention there; the most that goes "
            "there is .09.",
        ),
        (
            Unshown(1, 2, "induction", run=64, able=1, strength=0.16),
            "Of 64 short texts of the corpus that were run, 1 has a place for the role induction, and none shows it. "
            "That takes half of the places right and .15 of the attention there; the most that goes there is .16. It "
            "was found on random tokens written twice.",
        ),
        (
            Unshown(1, 2, "comma", run=64, able=0, strength=0.0),
            "None of the 64 texts of the corpus that were run has a place for the role comma.",
        ),
        (
            Unshown(1, 2, "copying_weights", run=64, able=0, strength=0.0),
            "This role is read from the weights alone: no text shows it.",
        ),
        (
            Unshown(1, 2, "retrieval", run=64, able=0, strength=0.0),
            "This role was found on needles in texts made for it: no text of the corpus shows it.",
        ),
    ],
)
def test_a_head_without_examples_says_why(unshown: Unshown, words: str) -> None:
    assert unshown_words(unshown) == words


def test_what_is_not_defined_is_not_told() -> None:
    scores = one_layer(surface_cls=[NAN, 0.9, 0.1], surface_sep=[NAN, NAN, NAN], surface_comma=[0.3, 0.2, 0.1])
    assert told(scores, 0) == ["surface.comma"]
    assert told(one_layer(surface_sep=[NAN, NAN]), 0) == []


def test_what_rests_on_little_is_not_told() -> None:
    scores = one_layer(surface_cls=[0.9, 0.1, 0.1], surface_sep=[0.8, 0.1, 0.1])
    support = np.full_like(scores.support, 30.0)
    support[scores.index("surface.cls")] = 29.0
    assert told(dataclasses.replace(scores, support=support), 0) == ["surface.sep"]
    weights = one_layer(circuits_q=[0.9, 0.1, 0.1])
    assert told(dataclasses.replace(weights, support=np.ones_like(weights.support)), 0) == ["circuits.q"]


def test_one_family_does_not_fill_the_card() -> None:
    many = {f"syntax.dep_to_head[r{n}]": at(0.1, {(0, 0): 0.9}) for n in range(9)}
    few = {f"{family}.x": at(0.1, {(0, 0): 0.2}) for family in ("a", "b", "c", "d", "e")}
    chosen = told(table(many | few), 0)
    assert [name.startswith("syntax") for name in chosen].count(True) == OF_A_FAMILY
    families = {f"f{n}.x": at(0.1, {(0, 0): 0.9}) for n in range(20)}
    assert len(told(table(families), 0)) == MOST_TELLING


def test_a_model_of_one_head_has_scores_to_tell() -> None:
    assert told(one_layer(surface_cls=[0.7], surface_sep=[0.01]), 0) == ["surface.cls"]


# ------------------------------------------------------------------------------- numbers of sentences, in their tables


def numbers_in(text: str) -> set[str]:
    """Every number but for those in the names of heads."""
    return set(re.findall(r"[<−]?\d*\.\d+|\d[\d,]*%?", re.sub(r"L\d+H\d+", "", text)))


def random_scores(seed: int) -> ScoreTable:
    """All scores that rules read, many beyond their thresholds; intervals of different widths, some without any."""
    draw = np.random.default_rng(seed)
    names = dict.fromkeys(
        name for rule in RULES for name in (rule.metric, rule.control, *(one.metric for one in rule.also)) if name
    )
    scores = table({name: draw.beta(0.6, 0.9, (LAYERS, HEADS)) for name in names}, with_macro=False)
    local = scores.index("position.local")
    values = scores.values.copy()
    values[local] *= 6
    width = draw.uniform(0, 0.1, values.shape) * np.where(draw.random(values.shape) < 0.1, NAN, 1)
    return dataclasses.replace(
        scores, values=values, low=values - width, high=values + 0.7 * width, chance=draw.uniform(0, 0.1, len(names))
    )


def random_evidence(seed: int) -> Evidence:
    draw = np.random.default_rng(seed + 100)
    rows = []
    for place, relation in enumerate(("obj", "nsubj", "det", "amod", "case", "advmod")):
        held_out, offset, pos, own = draw.uniform(0.1, 0.9, 4)
        verdict = (ABOVE, INFORMED, UNDECIDED)[place % 3]
        row = known(
            f"syntax.dep_to_head[{relation}]",
            (int(draw.integers(LAYERS)), int(draw.integers(HEADS))),
            float(held_out),
            verdict,
            decisions=int(draw.integers(30, 20_000)),
            relation=relation,
            offset=("+1", float(offset)),
            pos=("1. VERB before", float(pos)),
            profile=("", float(own)),
        )
        rows.append(dataclasses.replace(row, chance=float(draw.uniform(0.01, 0.1))))
    claimed = {
        (row.metric, int(draw.integers(LAYERS)), int(draw.integers(HEADS))): tuple(draw.uniform(0.3, 0.9, 2).tolist())
        for row in rows
    }
    return evidence_of(rows, [of_relation(row) for row in rows], claimed)


def printed_of(scores: ScoreTable, rule: Rule, layer: int, head: int, *, digits: int) -> set[str]:
    """All that a sentence may tell of one head by one rule, from the arrays of the table."""
    told = set()
    for name in (rule.metric, rule.control, *(one.metric for one in rule.also)):
        if name and name in scores:
            place, unit = scores.index(name), rule.unit if name == rule.metric else "share"
            found = [array[place, layer, head] for array in (scores.values, scores.low, scores.high)]
            told |= {number(float(value), unit, digits=digits) for value in found}
            told.add(number(float(scores.chance[place]), "share", digits=digits))
    return told


def percent(value: float) -> str:
    return f"{100 * value:.0f}%"


def printed_of_evidence(evidence: Evidence, one: HeadRole) -> set[str]:
    """Of the row of the metric where the role is confirmed, else of the arrays of all heads."""
    row = next(row for row in evidence.metrics if row.metric == one.metric)
    place = (evidence.metrics.index(row), one.layer, one.head)
    rivals = [baseline.held_out for baseline in row.baselines.values()]
    shares = [row.held_out, row.low, row.high, *rivals]
    if not one.is_firm:
        full = [baseline.full for name, baseline in row.baselines.items() if name != PROFILE]
        shares = [evidence.value[place], evidence.profile[place], *full]
    return {percent(share) for share in shares} | {f"{row.decisions:,}"}


@pytest.mark.parametrize("seed", range(4))
def test_numbers_in_the_sentences_of_roles_are_those_of_the_table(seed: int) -> None:
    scores, evidence = random_scores(seed), random_evidence(seed)
    roles = roles_of(scores, evidence)
    by_id = {rule.id: rule for rule in RULES}
    assert len(roles) > 20
    for one in roles:
        rule = by_id.get(one.role.id)
        if rule is None:
            allowed = printed_of_evidence(evidence, one)
            assert percent(one.value) in numbers_in(one.sentence)
        else:
            allowed = printed_of(scores, rule, one.layer, one.head, digits=2)
            assert rule.number(float(scores[rule.metric][one.layer, one.head]), digits=2) in numbers_in(one.sentence)
        assert numbers_in(one.sentence) <= allowed, one.sentence
    assert {one.is_firm for one in roles if one.role.id not in by_id} == {True, False}


def allowed_in(finding: Finding, scores: ScoreTable, holders: int) -> set[str]:
    """All that a finding may tell: of its evidence, or of the heads that it names and of its rule."""
    row: MetricEvidence | None = finding.evidence
    if row is not None:
        rivals = [baseline.held_out for baseline in row.baselines.values()]
        return {number(share, "share", digits=2) for share in (row.held_out, row.low, row.high, row.chance, *rivals)}
    rule = finding.rule
    assert rule is not None
    heads = [part for part in finding.parts if not isinstance(part, str)]
    allowed = {str(holders - len(heads))}
    for head in heads:
        for digits in (2,) if finding.passes else (2, 3):
            allowed |= printed_of(scores, rule, head.layer, head.head, digits=digits)
    return allowed if finding.passes else allowed | numbers_in(rule.gloss)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("with_evidence", [True, False])
def test_numbers_in_the_findings_are_those_of_the_table(seed: int, with_evidence: bool) -> None:
    scores = random_scores(seed)
    evidence = random_evidence(seed) if with_evidence else None
    roles = roles_of(scores, evidence)
    found = findings(scores, evidence)
    assert 3 <= len(found) <= 7
    assert any(finding.evidence for finding in found) == with_evidence
    for finding in found:
        holders = len(roles.heads(finding.rule.id)) if finding.rule else 1
        assert numbers_in(finding.text), finding.text
        assert numbers_in(finding.text) <= allowed_in(finding, scores, holders), finding.text


@pytest.mark.parametrize("seed", range(3))
def test_numbers_in_the_nearest_misses_are_those_of_the_table(seed: int) -> None:
    scores = random_scores(seed)
    thresholds = {rule.metric: rule.threshold for rule in RULES}
    values = scores.values.copy()
    for name, threshold in thresholds.items():  # nothing passes, though much comes near
        place = scores.index(name)
        share = values[place] / values[place].max()
        values[place] = threshold * (2 - share) if name == "position.variability" else 0.999 * threshold * share
    flat = dataclasses.replace(scores, values=values, low=values - 0.01, high=values + 0.01)
    misses = [finding for finding in findings(flat) if finding.rule]
    assert misses
    assert not any(finding.passes for finding in misses)
    for finding in misses:
        assert numbers_in(finding.text) <= allowed_in(finding, flat, 1), finding.text


def test_a_score_that_may_be_chance_among_all_is_no_finding() -> None:
    # .61 passes .60 of an interval that reaches below chance, so that its q is over .05
    scores = table({"surface.cls": at(0.3, {(1, 2): 0.61})}, with_macro=False)
    wide = dataclasses.replace(scores, low=scores.values - 0.6, high=scores.values + 0.3, chance=np.array([0.25]))
    assert len(roles_of(wide)) == 0
    assert [rule.id for rule in rules_for(wide)] == ["cls"]
    assert findings(wide)[1].text == (
        "No head attends to [CLS]: that takes over .60 of its mass on average; L1H2 comes nearest with .610 (chance "
        ".250), which among all heads and rules may be chance."
    )


def test_names_of_baselines_are_those_of_the_tests() -> None:
    assert {OFFSET, BY_POS, PROFILE} <= set(random_evidence(0).metrics[0].baselines)
