"""Repetition, weights, retrieval, agreement and similarity on the page."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from report_annotated import annotated_evidence, annotated_scores, grid, headings, row_of, rows_of, section
from report_pages import HEADS, LAYERS, NAN, PROVENANCE, read

from headlens.behaviour.similarity import Similarity
from headlens.report import render_report
from headlens.report.behaviour import agreement_line, reasons, retrieval_line
from headlens.report.figures import is_signed
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
            "repetition.induction_control": {(2, 3): 0.03},
            "repetition.copying": {(2, 3): 0.8, (2, 2): -0.6},
        }
    )


def test_the_strongest_heads_stand_with_their_controls(repeated: ScoreTable) -> None:
    page = read(render_report(repeated, PROVENANCE))
    found = grid(section(page, "Repetition"), "The strongest heads on repeated tokens")
    assert headings(found) == [
        *("Head", "Previous token", "Control", "Same token", "Control", "Induction", "Control", "Copying"),
    ]
    assert row_of(found, "L2H3") == ["L2H3", ".010", ".010", ".010", ".010", ".920", ".030", ".800"]
    assert row_of(found, "L0H1")[1:3] == [".990", ".980"]
    assert rows_of(found)[0][0] == "L2H3"  # induction first


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
        "Of 320 verbs, the model prefers the right form in .980, and in .810 when the 2 heads named for subject and "
        "verb (L1H2, L2H0) are taken out together (gated to 0). Without another set of as many heads (3 of them) it is "
        ".950 at the median, .900 at the least. Across a noun of the other number (40 verbs) it is .950 and .400. That "
        "is more harm than 95% of the other sets do: the model uses them for agreement (p .010, on texts that had no "
        "say in naming the heads)."
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"random_across": [0.9, 0.7, 0.8]}, "it is .950 and .400, and .800 at the median of these sets. That"),
        ({"does_harm": False, "p": 0.3}, "no more harm than other sets may do, so nothing is said of what the model"),
        ({"ablated": 0.98, "does_harm": False}, "That is no harm, so nothing is said"),
        ({"heads": ["L1H2"]}, "when the 1 head named for subject and verb (L1H2) is taken out (gated to 0)"),
        ({"heads": [f"L0H{head}" for head in range(8)]}, "L0H4, L0H5 and 2 more)"),
    ],
)
def test_what_is_not_shown_is_not_said(changed: dict[str, Any], words: str) -> None:
    line = agreement_line({"agreement": AGREEMENT | changed})
    assert words in line
    assert ("uses them for agreement" in line) is bool((AGREEMENT | changed)["does_harm"])


def test_agreement_stands_with_the_findings_and_is_missing_where_nobody_asked() -> None:
    scores, evidence = annotated_scores(), annotated_evidence()
    with_it = section(read(render_report(scores, {"agreement": AGREEMENT}, evidence)), "Findings at a glance")
    without = section(read(render_report(scores, {}, evidence)), "Findings at a glance")
    assert "another set of as many heads" in with_it.text
    assert "another set of as many heads" not in without.text
    assert agreement_line({}) == agreement_line({"agreement": {"heads": []}}) == ""


def test_retrieval_tells_how_often_the_model_went_on_at_all() -> None:
    facts = {"retrieval": {"texts": 60, "reproduced": 0.25, "recalled": 0.5}}
    assert retrieval_line(facts) == (
        "In 60 texts the model wrote .500 of the hidden tokens in their place, and the whole needle in .250 of the "
        "texts."
    )
    assert retrieval_line({}) == ""


# ---------------------------------------------------------------------------------------------------------- similarity


@pytest.fixture(scope="module")
def similarity() -> Similarity:
    """L0H0 and L0H1 alike, L1H0 and L1H1 alike, the pairs far apart."""
    distance = np.array([[0, 0.1, 0.6, 0.6], [0.1, 0, 0.6, 0.6], [0.6, 0.6, 0, 0.2], [0.6, 0.6, 0.2, 0]])
    place = np.array([[0.0, 0.0], [0.1, 0.0], [0.6, 0.1], [0.6, 0.3]])
    heads = ((0, 0), (0, 1), (1, 0), (1, 1))
    return Similarity(heads, distance, place, np.array([0, 0, 1, 1]), 1234, 20, 0.05, 0.8)


def test_clusters_have_a_table_and_every_head_a_mark(similarity: Similarity) -> None:
    scores = table_of({"surface.first": {(0, 0): 0.5}})
    part = section(read(render_report(scores, {}, None, similarity)), "Similarity")
    assert rows_of(grid(part, "Clusters of heads")) == [
        ["a", "2", "0.10", "L0H0, L0H1"],
        ["b", "2", "0.20", "L1H0, L1H1"],
    ]
    (picture,) = [svg for svg in part.all("svg") if svg.attributes["class"] == "similar"]
    assert [title.text for title in picture.all("title")] == [
        *("L0H0, cluster a", "L0H1, cluster a", "L1H0, cluster b", "L1H1, cluster b"),
    ]
    assert "Compared on 1,234 rows of attention" in part.text
    assert "of one layer are 0.15 nats apart on average, of different layers 0.60" in part.text


def test_distances_on_the_map_keep_their_proportions(similarity: Similarity) -> None:
    page = read(render_report(table_of({"surface.first": {}}), {}, None, similarity))
    texts = [text for text in page.all("text") if text.text in ("L0H0", "L0H1", "L1H0")]
    x = {text.text: float(text.attributes["x"]) for text in texts}
    assert (x["L1H0"] - x["L0H0"]) / (x["L0H1"] - x["L0H0"]) == pytest.approx(6, rel=0.02)


def test_one_head_can_be_drawn() -> None:
    alone = Similarity(((0, 0),), np.zeros((1, 1)), np.zeros((1, 2)), np.array([0]), 5, 1, 0.0, NAN)
    assert "Clusters of heads" in render_report(table_of({"surface.first": {}}), {}, None, alone)
