"""Maps that are drawn for an annotated corpus, what is said of what is missing, and that the page is safe and small."""

from __future__ import annotations

import dataclasses
import re
from itertools import pairwise

import numpy as np
import pytest
from report_annotated import (
    NOTES,
    annotated_page,
    evidence_of,
    full_annotated,
    grid,
    headings,
    known,
    of_relation,
    own,
    rival,
    rows_of,
    rows_of_nodes,
    section,
)
from report_pages import HEADS, LAYERS, PROVENANCE, Node, at, metric_sections, read, table

from headlens.evidence_table import ABOVE, TOO_FEW
from headlens.report import render_report, render_summary
from headlens.report.themes import drawn_relations

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def page() -> Node:
    return annotated_page()


@pytest.fixture(scope="module")
def large() -> tuple[str, Node]:
    scores, evidence = full_annotated()
    html = render_report(scores, PROVENANCE, evidence)
    return html, read(html)


def test_maps_are_drawn_of_what_stands_out(page: Node) -> None:
    drawn = list(metric_sections(section(page, "Relations")))
    assert drawn == [
        "subject_verb.subject_to_verb",
        "subject_verb.verb_to_subject",
        "syntax.dep_to_head[ALL]",
        "syntax.mass[to_head]",
        "syntax.abstention",
        "syntax.dep_to_head[obj]",  # gains .31
        "syntax.dep_to_head[nsubj]",  # gains .20
    ]
    assert list(metric_sections(section(page, "Coreference"))) == ["coref[all]", "coref[pronoun]"]
    assert list(metric_sections(section(page, "Phrases and borders"))) == [
        "phrase.neighbour",
        "border.punctuation",
        "phrase.difference[previous]",
    ]
    assert (
        "Maps are drawn of 7 of the 11 metrics; every metric with enough decisions has its row in the tables above, "
        "and the numbers of all heads are in scores.csv."
    ) in section(page, "Relations").text


def test_ten_relations_are_drawn_at_most_the_best_verdicts_first(large: tuple[str, Node]) -> None:
    drawn = [name for name in metric_sections(large[1]) if "[rel" in name]
    assert drawn == [f"syntax.dep_to_head[rel{number}]" for number in range(10)]


def test_without_evidence_the_relations_with_most_decisions_are_drawn() -> None:
    names = [f"syntax.{way}[r{n}]" for n in range(12) for way in ("dep_to_head", "head_to_dep")]
    scores = table({name: at(0.1, {(0, 0): 0.5 if "head_to" in name else 0.4}) for name in names}, with_macro=False)
    support = np.stack([np.full((LAYERS, HEADS), 100.0 + place) for place in range(len(names))])
    scores = dataclasses.replace(scores, support=support)
    assert drawn_relations(scores, None) == [f"syntax.head_to_dep[r{n}]" for n in range(11, 1, -1)]
    page = read(render_report(scores, {}))
    assert "Maps are drawn of 10 of the 24 metrics; the numbers of all heads are in scores.csv." in page.text


def test_a_difference_has_two_ends_around_zero(page: Node) -> None:
    difference = metric_sections(page)["choice.difference[pro-anti]"]
    assert "Blue: above 0. Ochre: below 0." in difference.text
    assert "difference of shares, −1 to 1" in difference.text
    captions = [caption.text for caption in difference.all("caption")]
    assert {"Highest heads", "Lowest heads"} <= set(captions)
    svg = difference.one("svg", class_="heat")
    boxes = {path.attributes["fill"][9:11]: path.attributes["d"] for path in svg.one("g").all("path")}
    # L0H0 has -.55, L2H2 .40; the steps of 1.1 / 7 from -.55 put .40 into the last, and 0 into the middle
    assert {colour: drawn.count("M") for colour, drawn in boxes.items()} == {"d0": 1, "d3": 10, "d6": 1}
    assert boxes["d0"].startswith("M0 0h1")
    assert boxes["d6"].startswith("M2 2h1")


def test_silver_parses_are_told_at_the_top(page: Node) -> None:
    notes = [words.text for term, words in zip(page.all("dt"), page.all("dd"), strict=True) if term.text == "Note"]
    assert notes == NOTES["notes"]


def test_a_treebank_without_coreference_says_so() -> None:
    row = known("syntax.dep_to_head[obj]", (2, 0), 0.72, ABOVE, relation="obj", offset=("-2", 0.41))
    page = read(render_report(table({row.metric: at(0.1, {})}), {}, evidence_of([row], [of_relation(row)])))
    lines = [line.text for line in section(page, "Coreference").all("p")]
    assert lines == ["The corpus marks no coreference, so nothing can be said about it."]
    assert "Pronouns" not in [heading.text for heading in page.all("h2")]


def test_coreference_without_dependencies_says_so() -> None:
    row = known("coref[all]", (2, 0), 0.72, ABOVE, nearest=("", 0.41))
    page = read(render_report(table({row.metric: at(0.1, {})}), {}, evidence_of([row], [of_relation(row)])))
    assert [line.text for line in section(page, "Relations").all("p")] == [
        "The corpus marks no dependencies, so nothing can be said about relations."
    ]


def test_what_a_corpus_marks_is_not_said_to_be_missing(page: Node) -> None:
    assert "marks no" not in page.text


@pytest.mark.parametrize("metric", ["coref[all]", "choice[all]"])
def test_either_kind_of_coreference_is_enough(metric: str) -> None:
    both = table({"syntax.abstention": at(0.1, {}), metric: at(0.1, {})}, with_macro=False)
    assert "marks no" not in read(render_report(both, {})).text


def test_plain_text_has_neither() -> None:
    page = read(render_report(table({"surface.cls": at(0.1, {})}), {}))
    assert [heading.text for heading in page.all("h2")][2:] == ["Surface", "Methods", "Provenance"]


def test_a_hundred_metrics_of_syntax_stay_small(large: tuple[str, Node]) -> None:
    html, page = large
    assert len(html.encode()) < 3_000_000
    assert len(rows_of(grid(page, "Directions"))) == 100
    assert len(rows_of(grid(page, "Relations"))) == 50


def test_names_from_a_corpus_are_shown_as_text() -> None:
    metric = f"syntax.dep_to_head[{EVIL}]"
    row = known(metric, (2, 0), 0.72, ABOVE, relation=EVIL, offset=(EVIL, 0.41))
    row = dataclasses.replace(row, baselines={**row.baselines, EVIL: rival(0.3, 0.72, option=EVIL)})
    few = known(f"syntax.dep_to_head[{EVIL}:x]", (2, 0), 0.7, TOO_FEW, decisions=3, relation=f"{EVIL}:x")
    mention = known(f"coref[{EVIL}]", (2, 1), 0.72, ABOVE)
    choice = known(f"choice[{EVIL}]", (2, 1), 0.72, ABOVE)
    rows = [row, few, mention, choice]
    values = {one.metric: at(0.1, {}) for one in rows}
    scores = table({**values, f"choice.difference[{EVIL}-x]": at(0.1, {})}, with_macro=False)
    provenance = {
        "controls": {"copies": 2, "best": {metric: [0.1, 0.2]}},
        "ensembles": [{"metric": metric, "heads": [EVIL], "held_out": EVIL, "decisions": 3}],
        "probe": {"uas": 0.5, "baselines": {EVIL: 0.2}},
    }
    evidence = evidence_of(rows, [of_relation(one) for one in rows], {(metric, 1, 1): (0.9, 0.1)})
    for html in (render_report(scores, provenance, evidence), render_summary(scores, provenance, evidence)):
        assert EVIL not in html
        assert "alert(1)" not in "".join(re.findall(r"<script>(.*?)</script>", html, flags=re.DOTALL))
        assert f"attends from a dependent ({EVIL}) to its syntactic head" in read(html).text


def test_the_page_says_attends_and_never_uses(page: Node) -> None:
    assert not re.search(r"\b[Uu]se[sd]?\b", page.text)


def test_the_page_reaches_for_nothing_outside(large: tuple[str, Node]) -> None:
    html, page = large
    assert "://" not in html.replace("http://www.w3.org/2000/svg", "")  # a name space, never asked for
    assert not {"link", "iframe", "object", "img"} & {node.tag for node in page.walk()}
    names = [node.attributes["id"] for node in page.walk() if "id" in node.attributes]
    assert len(names) == len(set(names))
    assert {link.attributes["href"] for link in page.all("a")} <= {f"#{name}" for name in names}


def test_the_tables_can_be_read_with_a_screen_reader_also_where_they_are_stacked(page: Node) -> None:
    levels = [int(node.tag[1]) for node in page.walk() if re.fullmatch(r"h\d", node.tag)]
    assert all(after <= before + 1 for before, after in pairwise(levels))
    for found in page.all("table", class_="ev"):
        assert found.attributes["role"] == "table"
        assert own(found, "caption").text
        titles = headings(found)
        for row in rows_of_nodes(found):
            assert row.attributes["role"] == "row"
            assert [cell.attributes["scope"] for cell in row.all("th")] == ["row"]
            assert [cell.attributes["data-label"] for cell in row.all("td")] == titles[1:]
    for drawing in page.all("svg", class_="strip"):
        assert drawing.attributes["aria-hidden"] == "true"
