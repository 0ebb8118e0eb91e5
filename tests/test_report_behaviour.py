"""Repetition, contribution, weights, retrieval, agreement, heads taken out and classes of patterns on the page."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from report_annotated import annotated_evidence, annotated_scores, grid, own, row_of, rows_of, section
from report_pages import HEADS, LAYERS, NAN, PROVENANCE, read

from headlens.effects import Ablation, Effect
from headlens.errors import OutputError
from headlens.report import render_report
from headlens.report.behaviour import agreement_line, has_recalled, reasons, retrieval_line
from headlens.report.best_heads import contribution_table, repetition_table
from headlens.report.figures import is_signed
from headlens.report.patterns import patterns_table
from headlens.report.tables import Table
from headlens.report.taken_out import taken_out_introduction, taken_out_lines, taken_out_table
from headlens.roles import HeadRole, Role, Roles, roles_of
from headlens.scores import Metric, ScoreTable

AGREEMENT = {
    "heads": ["L1H2", "L2H0"],
    "verbs": 320,
    "intact": 0.98,
    "ablated": 0.81,
    "random": [0.95, 0.97, 0.9],
    "across": 40,
    "intact_across": 0.95,
    "ablated_across": 0.4,
    "p": 0.0099,
    "does_harm": True,
}


def table_of(values: dict[str, dict[tuple[int, int], float]], chance: float = 0.01) -> ScoreTable:
    """3 x 4 heads; all that are not named have the chance level."""
    grids = np.full((len(values), LAYERS, HEADS), chance)
    for number, named in enumerate(values.values()):
        for head, value in named.items():
            grids[(number, *head)] = value
    metrics = tuple(Metric(name, name.partition(".")[2], "A meaning.", "share") for name in values)
    support = np.full(grids.shape, 100.0)
    return ScoreTable(metrics, grids, support, grids - 0.01, grids + 0.01, np.full(len(values), chance))


@pytest.fixture(scope="module")
def repeated() -> ScoreTable:
    return table_of(
        {
            "repetition.previous": {(0, 1): 0.99, (0, 2): 0.4},
            "repetition.previous_control": {(0, 1): 0.98},
            "repetition.duplicate": {(1, 0): 0.7},
            "repetition.duplicate_control": {(1, 0): 0.02},
            "repetition.induction": {(2, 3): 0.92, (2, 2): 0.5},
            "repetition.induction_argmax": {(2, 3): 0.99},
            "repetition.induction_control": {(2, 3): 0.03, (1, 1): 0.5},
            "repetition.copying": {(2, 3): 0.8, (2, 2): -0.6},
        }
    )


def told(table: Table | None) -> list[list[str]]:
    """Texts of the cells, heads in place of text; the notes behind them."""
    assert table is not None
    return [
        [f"{', '.join(cell.heads) or cell.text}{cell.note and ' ' + cell.note}" for cell in row.cells]
        for row in table.rows
    ]


def test_the_best_head_of_each_score_on_repeated_tokens_stands_with_its_control(repeated: ScoreTable) -> None:
    found = repetition_table(repeated)
    assert found is not None
    assert [column.title for column in found.columns] == ["Score", "Head", "Value", "Control", "Chance", "Support"]
    assert told(found) == [
        ["induction repetition.induction", "L2H3", ".920 .910 to .930", ".030", ".010", "100"],
        ["duplicate repetition.duplicate", "L1H0", ".700 .690 to .710", ".020", ".010", "100"],
        ["previous repetition.previous", "L0H1", ".990 .980 to 1.000", ".980", ".010", "100"],
        ["copying repetition.copying", "L2H3", ".800 .790 to .810", "–", ".010", "100"],
    ]
    induction, *_, copying = found.rows
    assert induction.fold == "3 more heads: L2H2, L0H0, L0H1"  # of equal ones those that come first
    assert [row.cells[1].heads for row in copying.inner][-1] == ("L2H2",)  # the lowest, where the sign says which way


def test_the_table_of_repetition_is_on_the_page_with_links(repeated: ScoreTable) -> None:
    page = read(render_report(repeated, PROVENANCE))
    found = grid(section(page, "Repetition"), "The strongest heads on repeated tokens")
    assert row_of(found, "induction")[:5] == [
        "inductionrepetition.induction",
        "L2H3",
        ".920.910 to .930",
        ".030",
        ".010",
    ]
    assert own(found, "tbody").all("a")[0].attributes["href"] == "#L2H3"


def test_what_a_head_takes_stands_beside_what_it_pays() -> None:
    scores = table_of(
        {
            "contribution.first": {(1, 2): 0.4},
            "contribution.previous": {(0, 1): 0.8},
            "contribution.size": {(2, 2): 0.3},
            "surface.first": {(1, 2): 0.9},
            "position.mass[-1]": {(0, 1): 0.7},
        }
    )
    found = contribution_table(scores)
    assert found is not None
    assert found.columns[3].title == "Its attention"
    assert [row[:4] for row in told(found)] == [
        ["first contribution.first", "L1H2", ".400 .390 to .410", ".900"],
        ["previous contribution.previous", "L0H1", ".800 .790 to .810", ".700"],
        ["size contribution.size", "L2H2", ".300 .290 to .310", "–"],
    ]
    assert contribution_table(table_of({"surface.first": {}})) is None


@pytest.mark.parametrize("value", [0.0, NAN])
def test_a_score_that_no_head_can_have_is_in_no_table(value: float) -> None:
    """As what a causal model takes from the next token."""
    scores = table_of({"contribution.next": {}, "contribution.self": {(0, 0): 0.5}})
    values = scores.values.copy()
    values[0] = value
    found = contribution_table(dataclasses.replace(scores, values=values))
    assert [row[0] for row in told(found)] == ["self contribution.self"]


def test_the_label_of_a_head_stands_beside_its_score() -> None:
    scores = table_of({"repetition.previous": {(0, 1): 0.99, (0, 2): 0.4}})
    found = repetition_table(scores, roles_of(scores))
    assert found is not None
    (row,) = found.rows
    assert [row.cells[-1].text for row in (row, *row.inner)] == ["previous token of random ones", "–", "–", "–"]


def test_maps_are_drawn_of_scores_and_not_of_their_controls(repeated: ScoreTable) -> None:
    part = section(read(render_report(repeated, PROVENANCE)), "Repetition")
    drawn = [code.text for code in part.all("code")]
    assert drawn == ["repetition.previous", "repetition.duplicate", "repetition.induction", "repetition.copying"]
    assert "Maps are drawn of 4 of the 8 metrics" in part.text


def test_copying_and_eigenvalues_have_zero_in_the_middle() -> None:
    names = ["repetition.copying", "circuits.ov_eigenvalue", "circuits.k_composition", "repetition.induction"]
    signed = [is_signed(Metric(name, "a title", "A meaning.", "share")) for name in names]
    assert signed == [True, True, True, False]


def test_pairs_of_heads_have_a_table_by_what_they_are_read_through() -> None:
    pairs = {
        "k": [{"pair": "L0H1 to L2H3", "value": 0.31}, {"pair": "L0H2 to L2H3", "value": 0.12}],
        "v": [{"pair": "L1H0 to L2H2", "value": -0.01}],
    }
    scores = table_of({"circuits.copy_top5": {(2, 3): 0.9}})
    facts = {"circuits": {"pairs": pairs, "left_out": {}}}
    found = grid(section(read(render_report(scores, facts)), "Weights"), "Pairs of heads that compose most")
    assert rows_of(found) == [
        ["Keys", "L0H1", "L2H3", "+.310"],
        ["Keys", "L0H2", "L2H3", "+.120"],
        ["Values", "L1H0", "L2H2", "−.010"],
    ]


def test_what_was_left_out_is_told_once_for_each_reason() -> None:
    left_out = {"circuits.q_composition": "It rotates.", "circuits.k_composition": "It rotates.", "circuits.x": "No."}
    found = list(reasons({"circuits": {"left_out": left_out}}, "circuits"))
    assert found == [
        "Not scored: circuits.q_composition, circuits.k_composition. It rotates.",
        "Not scored: circuits.x. No.",
    ]


def test_ids_of_random_tokens_are_in_no_list_of_the_page(repeated: ScoreTable) -> None:
    facts = {**PROVENANCE, "repetition": {"ids": [[4711, 4712]], "left_out": {}}}
    assert "4711" not in render_report(repeated, facts)


def test_parts_of_speech_that_some_head_prefers_are_drawn() -> None:
    tags = ["ADJ", "ADP", "AUX", "DET", "NOUN", "VERB"]
    values = {f"lexical.to_upos[{tag}]": {(0, 0): 0.1 + 0.1 * number} for number, tag in enumerate(tags)}
    values |= {f"lexical.from_upos[{tag}]": {} for tag in tags}
    part = section(read(render_report(table_of(values, chance=0.1), {})), "Words")
    assert [code.text for code in part.all("code")] == [
        f"lexical.to_upos[{tag}]" for tag in ("VERB", "NOUN", "DET", "AUX")
    ]


# ----------------------------------------------------------------------------------------------------------- agreement


def test_harm_beyond_that_of_random_sets_is_told_with_its_numbers() -> None:
    assert agreement_line({"agreement": AGREEMENT}) == (
        "Taken out together (gated to 0), the 2 heads named for subject and verb (L1H2, L2H0) change the share of "
        "verbs that the model prefers in the right form from .980 to .810. Sets of as many others, drawn at random, "
        "leave .950 at the median, and none of 3 such draws as little or less (p .010). Hardly a draw does as much "
        "harm: the model uses the named heads for agreement. Of the 40 verbs with a noun of the other number before "
        "them, it is .950 and .400. Asked were 320 verbs of texts that had no say in naming the heads."
    )


def test_heads_that_are_only_tentative_are_said_to_be() -> None:
    of_verbs = Role("subject_verb", "S", "subject and verb", "syntax", 3, "", "")
    firm, tentative = (
        HeadRole(of_verbs, layer, head, "m", 0.5, NAN, NAN, NAN, NAN, "", 1.0, NAN, 100.0, layer == 1, "")
        for layer, head in ((1, 2), (2, 0))
    )
    roles = Roles(LAYERS, HEADS, (of_verbs,), (firm, tentative))
    line = agreement_line({"agreement": AGREEMENT}, roles)
    assert "named for subject and verb (firmly L1H2; tentatively L2H0) change" in line
    assert "(tentatively L1H2, L2H0)" in agreement_line(
        {"agreement": AGREEMENT}, dataclasses.replace(roles, held=(dataclasses.replace(firm, is_firm=False), tentative))
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"random_across": [0.9, 0.7, 0.8]}, "it is .950 and .400 (.800 at the median draw). Asked"),
        ({"does_harm": False, "p": 0.3}, "no more harm than any heads may do, so nothing is said of what the model"),
        ({"random": [0.95, 0.81, 0.8]}, "2 of 3 such draws as little or less (p .010)"),
        ({"ablated": 0.98, "does_harm": False}, "That is no harm, so nothing is said"),
        ({"heads": ["L1H2"]}, "Taken out (gated to 0), the head named for subject and verb (L1H2) changes the share"),
        ({"heads": [f"L0H{head}" for head in range(9)]}, "L0H4, L0H5 and 3 more)"),
    ],
)
def test_what_is_not_shown_is_not_said(changed: dict[str, Any], words: str) -> None:
    line = agreement_line({"agreement": AGREEMENT | changed})
    assert words in line
    assert ("uses the named heads for agreement" in line) is bool((AGREEMENT | changed)["does_harm"])


def test_agreement_stands_with_the_findings_and_is_missing_where_nobody_asked() -> None:
    scores, evidence = annotated_scores(), annotated_evidence()
    with_it = section(read(render_report(scores, {"agreement": AGREEMENT}, evidence)), "Findings at a glance")
    without = section(read(render_report(scores, {}, evidence)), "Findings at a glance")
    assert "Sets of as many others" in with_it.text
    assert "Sets of as many others" not in without.text
    assert agreement_line({}) == agreement_line({"agreement": {"heads": []}}) == ""


def test_nothing_is_drawn_of_retrieval_where_no_needle_was_recalled() -> None:
    scores = table_of({"retrieval.copy": {(0, 1): 0.02}, "retrieval.needle": {(0, 0): 0.2}})
    facts = {"texts": 18, "reproduced": 0.0, "recalled": 0.02, "enough": 0}
    part = section(read(render_report(scores, {"retrieval": facts})), "Retrieval")
    assert (
        "wrote half of a needle or more in no text: so no head can be seen to retrieve, and nothing is drawn"
        in part.text
    )
    assert part.all("svg") == part.all("article") == []
    assert "Maps are drawn" not in part.text
    some = section(read(render_report(scores, {"retrieval": facts | {"enough": 1}})), "Retrieval")
    assert len(some.all("article")) == 2


@pytest.mark.parametrize(
    ("facts", "recalled"),
    [({}, True), ({"recalled": 0.0}, False), ({"recalled": 0.1}, True), ({"recalled": 0.3, "enough": 0}, False)],
)
def test_whether_a_needle_was_recalled(facts: dict[str, Any], recalled: bool) -> None:
    assert has_recalled({"retrieval": facts}) is recalled


def test_retrieval_tells_how_often_the_model_went_on_at_all() -> None:
    facts = {"retrieval": {"texts": 60, "reproduced": 0.25, "recalled": 0.5}}
    assert retrieval_line(facts) == (
        "In 60 texts the model wrote .500 of the hidden tokens in their place, and the whole needle in .250 of the "
        "texts."
    )
    assert retrieval_line({}) == ""


# ----------------------------------------------------------------------------------------------------- heads taken out


def effect(layer: int, head: int, change: float, **more: Any) -> Effect:
    entries: dict[str, Any] = {
        "task": "text",
        "intact": 2.5,
        "low": change - 0.1,
        "high": change + 0.1,
        "q": 0.01,
        "documents": 30,
    }
    return Effect(layer, head, change=change, **(entries | {"p": 0.004, "median_of_heads": 0.02} | more))


def facts_of(*effects: Effect) -> dict[str, Any]:
    return {"ablation": Ablation(effects).to_dict()}


def test_heads_that_the_model_uses_come_first_each_with_its_role() -> None:
    scores = table_of({"repetition.previous": {(0, 1): 0.99}})
    facts = facts_of(
        effect(0, 0, 0.5, q=0.2),  # a larger change, but among so many heads it may be chance
        effect(0, 1, 0.3),
        effect(1, 0, 0.01, task="output", intact=float("nan"), q=float("nan"), p=float("nan")),
    )
    assert told(taken_out_table(facts, roles_of(scores))) == [
        ["L0H1", "previous token of random ones", "text", "+.300 .200 to .400", "2.50", "+.020", "30", ".004", ".010",
         "● the model uses it"],
        ["L0H0", "–", "text", "+.500 .400 to .600", "2.50", "+.020", "30", ".004", ".200", "○ no rise beyond chance"],
        ["L1H0", "–", "sentence vectors", "+.010 −.090 to .110", "–", "+.020", "30", "–", "–", "○ the vectors move"],
    ]  # fmt: skip


def test_one_document_has_no_interval() -> None:
    facts = facts_of(effect(0, 0, 0.5, low=float("nan"), high=float("nan"), documents=1))
    assert told(taken_out_table(facts, None))[0][3] == "+.500"


def test_effects_stand_on_the_page_and_are_not_listed_again_in_the_provenance() -> None:
    scores = table_of({"surface.first": {(0, 1): 0.9}})
    page = read(render_report(scores, {**facts_of(effect(0, 1, 0.3)), "seed": 3}))
    found = grid(section(page, "Heads taken out"), "Heads taken out")
    assert row_of(found, "L0H1")[3] == "+.300.200 to .400"
    assert "ablation" not in section(page, "Provenance").text


BEGIN = "Attention tells where a head looks, not what it is for. The output of one head at a time is set to 0, and "
USED = " Only where that loss rises, beyond chance, is the model said to use the head."
TEXT, REPEATS = effect(0, 0, 0.5), effect(0, 1, 0.3, task="repeats", documents=40)
OUTPUT = effect(1, 0, 0.01, task="output", intact=float("nan"), q=float("nan"), p=float("nan"), documents=12)


@pytest.mark.parametrize(
    ("effects", "words"),
    [
        ([TEXT], f"{BEGIN}the loss on the same texts of the corpus is compared.{USED}"),
        (
            [REPEATS, TEXT],
            f"{BEGIN}the loss on the same texts of the corpus is compared; of heads named for repetition the loss on "
            f"random tokens written twice.{USED}",
        ),
        (
            [OUTPUT],
            f"{BEGIN}since the model has no vocabulary head, and so no loss, it is compared how far the mean of "
            "its last hidden states turns, which knows no better or worse: of no head does this say that the model "
            "uses it.",
        ),
        ([], ""),
    ],
)
def test_what_was_compared_is_what_is_told(effects: list[Effect], words: str) -> None:
    assert taken_out_introduction(facts_of(*effects)) == words


def test_on_how_much_the_effects_rest_stands_beside_them() -> None:
    reason = (
        "At most some 4,000 tokens of a corpus are run again without each head, of its first documents and of long "
        "ones the beginning, since that takes as many passes as there are heads."
    )
    asked = {"text": 3912, "repeats": 2000, "output": 80}
    facts = {"ablation": Ablation((TEXT, REPEATS), asked).to_dict(), "corpus": {"documents": 1200}}
    assert list(taken_out_lines(facts)) == [
        "The loss is that of 3,912 tokens in 30 of 1,200 documents of the corpus.",
        reason,
        "The loss on random tokens written twice is that of 2,000 tokens in 40 sequences.",
    ]
    facts["corpus"]["documents"] = 30
    assert next(taken_out_lines(facts)) == "The loss is that of 3,912 tokens in all 30 documents of the corpus."
    without_corpus = {"ablation": Ablation((OUTPUT,), asked).to_dict()}
    assert list(taken_out_lines(without_corpus)) == ["The vectors are those of 80 inputs in 12 documents.", reason]
    assert list(taken_out_lines(facts_of(TEXT))) == list(taken_out_lines({})) == []


def test_nothing_is_said_of_heads_that_were_not_taken_out() -> None:
    assert taken_out_table({}, None) is taken_out_table(facts_of(), None) is None
    page = read(render_report(table_of({"surface.first": {(0, 1): 0.9}}), {}))
    assert "Heads taken out" not in [heading.text for heading in page.all("h2")]


def test_effects_that_are_not_whole_are_refused() -> None:
    with pytest.raises(OutputError, match="run the profile again"):
        taken_out_table({"ablation": {"effects": [{"layer": 0}]}}, None)


# -------------------------------------------------------------------------------------------------- classes of patterns


def test_classes_of_patterns_are_counted_by_layer() -> None:
    scores = table_of(
        {
            "surface.first": {(0, 0): 0.9, (0, 1): 0.9, (1, 0): 0.9},
            "position.mass[-1]": {(0, 1): 0.9, (0, 2): 0.9, (2, 3): 0.9},
        }
    )
    found = patterns_table(scores, roles_of(scores))
    assert found is not None
    # the roles of position here are not exclusive of those of sinks, as in L0H1
    assert [column.title for column in found.columns] == [
        *("Layer", "Heterogeneous", "Vertical", "Diagonal", "Vertical and diagonal"),
    ]
    assert told(found) == [
        ["L0", "1", "1", "1", "1"],
        ["L1", "3", "1", "–", "–"],
        ["L2", "3", "–", "1", "–"],
        ["All layers share of all heads", "7 .58", "2 .17", "2 .17", "1 .08"],
    ]
    assert [row.is_last for row in found.rows] == [False, False, False, True]


def test_heads_that_are_not_there_are_of_no_class() -> None:
    values = {"surface.first": {(0, 0): float("nan")}, "position.mass[-1]": {(0, 0): float("nan")}}
    scores = table_of(values)
    assert told(patterns_table(scores, roles_of(scores)))[0] == ["L0", "3", "–", "–", "–"]


def test_without_roles_of_both_kinds_there_are_no_classes() -> None:
    scores = table_of({"surface.first": {(0, 0): 0.9}})
    assert patterns_table(scores, roles_of(scores)) is None
    assert patterns_table(scores, None) is None
