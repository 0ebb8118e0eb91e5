"""The report of an annotated corpus, read back from its HTML and held against evidence that was drawn by hand."""

from __future__ import annotations

import dataclasses
import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from report_pages import (
    HEADS,
    LAYERS,
    NAN,
    PROVENANCE,
    SETTINGS,
    Node,
    annotated_evidence,
    annotated_rows,
    annotated_scores,
    at,
    cells,
    evidence_of,
    full_annotated,
    known,
    metric_sections,
    of_relation,
    printed,
    read,
    rival,
    table,
)

from headlens.evidence import Rival, Trials, weigh
from headlens.evidence_table import ABOVE, ONE_DOCUMENT, TOO_FEW, VERDICTS, Evidence
from headlens.report import render_report, render_summary
from headlens.report.further import further
from headlens.report.themes import drawn_relations
from headlens.report.wording import title_of, way_of
from headlens.scores import ScoreTable

EVIL = "<script>alert(1)</script>"
PLACED: dict[str, Any] = {"notes": ["The parses are silver: made by a parser, not checked by people."]}


@pytest.fixture(scope="module")
def scores() -> ScoreTable:
    return annotated_scores()


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return annotated_evidence()


@pytest.fixture(scope="module")
def page(scores: ScoreTable, evidence: Evidence) -> Node:
    return read(render_report(scores, {**PROVENANCE, **PLACED}, evidence))


@pytest.fixture(scope="module")
def large() -> tuple[str, Node]:
    html = render_report(*(lambda pair: (pair[0], PROVENANCE, pair[1]))(full_annotated()))
    return html, read(html)


def section(page: Node, title: str) -> Node:
    (found,) = [node for node in page.all("section") if node.all("h2") and node.all("h2")[0].text == title]
    return found


def grid(node: Node, caption: str) -> Node:
    (found,) = [one for one in node.all("table", class_="ev") if own(one, "caption").text == caption]
    return found


def own(node: Node, tag: str) -> Node:
    (found,) = [child for child in node.children if isinstance(child, Node) and child.tag == tag]
    return found


def rows_of(grid: Node) -> list[list[str]]:
    """Texts of the cells of a table's own rows, those of folded tables left out; a picture is empty."""
    rows = [row for row in own(grid, "tbody").children if isinstance(row, Node)]
    return [cells(row) for row in rows if "fold" not in row.attributes.get("class", "").split()]


def row_of(grid: Node, start: str) -> list[str]:
    (found,) = [row for row in rows_of(grid) if row[0].startswith(start)]
    return found


def headings(grid: Node) -> list[str]:
    return [heading.text for heading in own(grid, "thead").all("th")]


# ------------------------------------------------------------------------------------------------------------- tables


def test_a_relation_stands_beside_everything_it_must_be_held_against(page: Node) -> None:
    relations = grid(section(page, "Relations"), "Relations")
    assert headings(relations) == [
        "What attends to what",
        "Decisions",
        "Head",
        "Held out",
        "0 to 1",
        "Chance",
        "Constant offset",
        "Part of speech",
        "Own profile",
        "Gain",
        "p",
        "q",
        "Verdict",
    ]
    assert row_of(relations, "Direct object") == [
        "Direct object → verbobj",
        "500",
        "L2H0chosen .95",
        ".720.690 to .750",
        "",
        ".080",
        ".410−2",
        ".5001. VERB before",
        ".380",
        "+.310.280 to .340",
        "<.001",
        ".002",
        "● above every baseline",
    ]


def test_relations_come_by_what_people_look_for_first_and_then_by_decisions(page: Node) -> None:
    relations = grid(section(page, "Relations"), "Relations")
    assert [(row[0], row[1]) for row in rows_of(relations)] == [
        ("Subject and verbsubject → verb", "700"),
        ("All relationsdependent → syntactic head", "6,000"),
        ("Noun → adposition or case markercase", "900"),
        ("Subject → predicatensubj", "690"),
        ("Direct object → verbobj", "500"),
    ]


def test_subtypes_are_folded_away_below_their_relation(page: Node) -> None:
    relations = grid(section(page, "Relations"), "Relations")
    (fold,) = own(relations, "tbody").all("details")
    assert fold.one("summary").text == "1 subtype: nsubj:pass"
    rows = [row for row in own(relations, "tbody").children if isinstance(row, Node)]
    at_fold = next(place for place, row in enumerate(rows) if row.all("details"))
    assert cells(rows[at_fold - 1])[0] == "Subject → predicatensubj"
    assert [row[0] for row in rows_of(fold.one("table"))] == ["Subject (nsubj:pass) → predicate"]


def test_a_subtype_without_its_relation_stands_by_itself() -> None:
    row = known("syntax.dep_to_head[nmod:poss]", (0, 0), 0.5, ABOVE, relation="nmod:poss", offset=("+1", 0.3))
    page = read(render_report(table({row.metric: at(0.1, {})}), {}, evidence_of([row], [of_relation(row)])))
    assert row_of(grid(page, "Relations"), "Nominal modifier (nmod:poss)")[2] == "L0H0chosen .95"


def test_what_has_too_few_decisions_is_listed_in_one_line(page: Node) -> None:
    relations = section(page, "Relations")
    assert "clf" not in "".join(row[0] for row in rows_of(grid(relations, "Relations")))
    lines = [line.text for line in relations.all("p", class_="few")]
    assert lines[0] == "Under the minimum of 30 decisions, so not weighed: clf (12)."


def test_each_direction_has_a_row_that_opens_on_request(page: Node) -> None:
    (fold,) = section(page, "Relations").all("details", class_="more")
    directions = grid(fold, "Directions")
    assert [row[0] for row in rows_of(directions)] == [
        "Subject → verbsubject_verb.subject_to_verb",
        "Verb → subjectsubject_verb.verb_to_subject",
        "Dependent → syntactic headsyntax.dep_to_head[ALL]",
        "Direct object → verbsyntax.dep_to_head[obj]",
        "Verb → direct objectsyntax.head_to_dep[obj]",
        "Subject → predicatesyntax.dep_to_head[nsubj]",
        "Subject (nsubj:pass) → predicatesyntax.dep_to_head[nsubj:pass]",
        "Noun → adposition or case markersyntax.head_to_dep[case]",
    ]
    assert "p" not in headings(directions)
    assert row_of(directions, "Verb → direct object")[6:] == [
        ".150+2",
        "–",
        "–",
        "+.050.020 to .080",
        ".002",
        "○ undecided",
    ]


def test_every_accuracy_in_the_tables_is_that_of_the_evidence(page: Node) -> None:
    metrics, relations = annotated_rows()
    listed = [(grid(section(page, "Relations"), "Directions"), row) for row in metrics if row.metric[0] == "s"]
    listed += [(grid(section(page, "Coreference"), "Mentions"), row) for row in metrics if row.metric[:5] == "coref"]
    listed += [(grid(section(page, "Pronouns"), "Pronouns"), row) for row in metrics if row.metric[:6] == "choice"]
    shown = [(found, row) for found, row in listed if row.verdict != TOO_FEW]
    assert len(shown) == len(metrics) - 1
    for found, row in shown:
        (cells_of,) = [cells for cells in rows_of(found) if cells[0].endswith(row.metric)]
        assert cells_of[2] == f"{row.name}chosen .95"
        ends = [printed(end, 3, zero=False) for end in (row.held_out, row.low, row.high)]
        assert cells_of[3] == f"{ends[0]}{ends[1]} to {ends[2]}"
        expected = {name: printed(baseline.held_out, 3, zero=False) for name, baseline in row.baselines.items()}
        titles = [title.lower().replace("own profile", "profile") for title in headings(found)]
        for name, accuracy in expected.items():
            assert cells_of[titles.index(name)].startswith(accuracy), (row.metric, name)
        assert cells_of[-1].endswith(row.verdict)


def test_the_strongest_baseline_that_a_head_must_be_above_is_bold(page: Node) -> None:
    relations = grid(section(page, "Relations"), "Relations")
    every = next(row for row in own(relations, "tbody").all("tr") if row.text.startswith("All relations"))
    bold = [cell.text for cell in every.all("td", class_="strong")]
    assert bold == [".450.420 to .480", ".310"]  # the profile, not the rule that knows parts of speech, .440
    assert row_of(relations, "All relations")[9] == "+.140.110 to .170"
    informed = next(cell for cell in every.all("td") if cell.attributes["data-label"] == "Part of speech")
    assert informed.attributes["title"] == "the head gains +.010 (−.020 to .040)"


def test_coreference_has_a_row_for_each_type_of_mention(page: Node) -> None:
    mentions = grid(section(page, "Coreference"), "Mentions")
    assert headings(mentions)[5:10] == ["Chance", "Nearest mention", "Same lemma, else nearest", "Own profile", "Gain"]
    assert [row[0] for row in rows_of(mentions)] == [
        "Mentionscoref[all]",
        "Pronounscoref[pronoun]",
        "Pronouns whose lemma no candidate sharescoref[pronoun_unmatched]",
    ]


def test_pronouns_have_their_groups_and_the_difference_between_them(page: Node) -> None:
    pronouns = section(page, "Pronouns")
    assert [row[0] for row in rows_of(grid(pronouns, "Pronouns"))] == [
        "All pronounschoice[all]",
        "Anti-stereotypicalchoice[anti]",
        "Pro-stereotypicalchoice[pro]",
    ]
    assert row_of(grid(pronouns, "Pronouns"), "All")[6:8] == [".500", ".520"]  # no option: its column names it
    # the table of scores draws its intervals from .02 below to .015 above
    assert (
        "Accuracy on pro-stereotypical minus anti-stereotypical: L2H2 +.400 (.380 to .415), the best head on all "
        "pronouns; largest at L0H0 −.550 (−.570 to −.535)."
    ) in [line.text for line in pronouns.all("p")]


def test_every_verdict_is_explained_on_the_spot_and_in_methods(page: Node) -> None:
    for found in page.all("table", class_="ev"):
        for row in rows_of_nodes(found):
            verdict = row.all("td")[-1]
            assert verdict.attributes["title"] == VERDICTS[verdict.text[2:]]
    methods = section(page, "Methods")
    told = dict(map(cells, methods.all("table", class_="tbl")[0].one("tbody").all("tr")))
    assert told == VERDICTS


def rows_of_nodes(grid: Node) -> list[Node]:
    rows = [row for row in own(grid, "tbody").children if isinstance(row, Node)]
    return [row for row in rows if "fold" not in row.attributes.get("class", "").split()]


@pytest.mark.parametrize(
    "said",
    [
        "41 documents",
        "20 times",
        "30 decisions",
        "10% of the baseline’s accuracy",
        "below .05",
        "Clark et al. 2019",
        "Voita et al. 2019",
        "Limisiewicz et al. 2020",
        "Vig and Belinkov 2019",
        "Benjamini and Hochberg 1995",
        "Constant offset: always the word so many places away",
        "Same lemma, else nearest: the last mention before",
    ],
)
def test_methods_say_how_evidence_is_weighed(page: Node, said: str) -> None:
    assert said in section(page, "Methods").text


def test_methods_of_plain_text_stay_as_short_as_they_were() -> None:
    page = read(render_report(table({"surface.cls": at(0.1, {})}), {}))
    assert "How evidence is weighed" not in page.text
    assert "Attention between words" not in page.text


def test_one_document_leaves_nothing_to_hold_out() -> None:
    row = dataclasses.replace(
        known("syntax.dep_to_head[obj]", (2, 0), NAN, ONE_DOCUMENT, q=NAN, relation="obj", offset=("-2", NAN)),
        value=0.72,
        share=NAN,
        low=NAN,
        high=NAN,
    )
    page = read(render_report(table({row.metric: at(0.1, {})}), {}, evidence_of([row], [of_relation(row, p_any=1.0)])))
    assert row_of(grid(page, "Relations"), "Direct object") == [
        "Direct object → verbobj",
        "700",
        "L2H0",
        "–on all documents .720",
        "",
        ".080",
        "–",
        "–",
        "1.000",
        "–",
        "○ one document",
    ]
    assert "nan" not in page.text.lower()


# ------------------------------------------------------------------------------------------- controls, ensembles, probe


def test_random_controls_have_a_column_of_their_own(scores: ScoreTable, evidence: Evidence) -> None:
    controls = {"copies": 3, "best": {"syntax.dep_to_head[obj]": [0.21, 0.27, 0.25]}}
    page = read(render_report(scores, {"controls": controls}, evidence))
    relations = grid(section(page, "Relations"), "Relations")
    column = headings(relations).index("Best random head")
    assert row_of(relations, "Direct object")[column] == ".270"
    assert row_of(relations, "Subject and verb")[column] == "–"
    (cell,) = [cell for cell in relations.all("td") if cell.text == ".270"]
    assert cell.attributes["title"] == "by copy: .210, .270, .250"
    heading = own(relations, "thead").all("th")[column]
    assert heading.attributes["title"] == "the best head of 3 copies of the model with random weights"
    assert "Best random head: the best head of a copy" in section(page, "Methods").text


def test_ensembles_have_a_small_table(scores: ScoreTable, evidence: Evidence) -> None:
    ensemble = {
        "metric": "syntax.dep_to_head[obj]",
        "heads": ["L2H0", "L1H2", "L9H9"],
        "held_out": 0.78,
        "single": 0.72,
        "gain": 0.06,
        "low": 0.02,
        "high": 0.09,
        "decisions": 500,
    }
    page = read(render_report(scores, {"ensembles": [ensemble]}, evidence))
    ensembles = grid(section(page, "Relations"), "Ensembles of heads")
    assert rows_of(ensembles) == [
        ["Direct object → verbsyntax.dep_to_head[obj]", "500", "L2H0, L1H2, L9H9", ".780", ".720", "+.060.020 to .090"]
    ]
    # the model has no L9H9, so there is nothing to link to
    assert [link.text for link in own(ensembles, "tbody").all("a")] == ["L2H0", "L1H2"]


def test_the_probe_has_a_paragraph(scores: ScoreTable, evidence: Evidence) -> None:
    probe = {
        "uas": 0.61,
        "low": 0.59,
        "high": 0.63,
        "baselines": {"next word": 0.25, "best offset": 0.34},
        "random_model": 0.31,
        "sentences": 1000,
    }
    page = read(render_report(scores, {"probe": probe}, evidence))
    assert page.one("p", class_="probe").text == (
        "All heads together: a probe that weighs their attention to find the syntactic head of every word (Clark et "
        "al. 2019, section 5) is right for .610 (.590 to .630) of the words on 1,000 sentences, on documents that it "
        "was not fitted on. Beside it: next word .250, best offset .340, the same probe on the model with random "
        "weights .310."
    )


def test_a_probe_without_a_random_model_says_nothing_of_one() -> None:
    said = further({"probe": {"uas": 0.5, "random_model": None, "baselines": {"next word": 0.25}}}).probe
    assert said.endswith(
        "is right for .500 of the words, on documents that it was not fitted on. Beside it: next word .250."
    )


@pytest.mark.parametrize(
    "value", [None, {}, [], 7, "x", {"best": None}, {"uas": "high"}, [None, 3], [{}], {"best": {"m": 2}}]
)
def test_no_part_of_the_further_analyses_is_needed(scores: ScoreTable, evidence: Evidence, value: object) -> None:
    words = table({"syntax.dep_to_head[obj]": np.full((1, 1), 0.5)}, with_macro=False)
    page = read(render_report(words, dict.fromkeys(("controls", "ensembles", "probe"), value)))
    assert "None" not in page.text
    assert "nan" not in page.text.lower().split()


def test_further_analyses_are_not_listed_again_in_the_provenance(scores: ScoreTable, evidence: Evidence) -> None:
    page = read(render_report(scores, {"probe": {"uas": 0.5}, "seed": 3}, evidence))
    assert [cells(row)[0] for row in page.one("table", class_="prov").all("tr")[1:]] == ["seed"]


# ------------------------------------------------------------------------------------------------ findings and head map


def test_findings_come_from_evidence_in_the_order_that_people_ask(page: Node) -> None:
    told = [item.text for item in page.one("ul", class_="find").all("li")]
    assert told == [
        "L1H2 attends from a subject to its verb: .61 held out [.58, .64]; best constant offset .41, its own position "
        "profile .38, a rule that knows parts of speech .55.",
        "L1H1 attends from a pronoun to an earlier mention of the same entity: .73 held out [.70, .76]; nearest mention "
        ".23, same lemma (else nearest) .64, its own position profile .32.",
        "L2H2 attends from a pronoun to its referent: .70 held out [.67, .73]; first candidate .50, its own position "
        "profile .52.",
        "L2H0 attends from a direct object to its verb: .72 held out [.69, .75]; best constant offset .41, its own "
        "position profile .38, a rule that knows parts of speech .50.",
        "L0H1 attends to the neighbour in the same phrase: .71 of the words between one inside and one outside (chance "
        ".05).",
        "L0H2 attends to the previous token: 1.00 of its mass on average (chance .05).",
    ]


def test_the_small_plot_has_the_strongest_baseline(page: Node) -> None:
    plots = [item.one("svg", class_="spark") for item in page.one("ul", class_="find").all("li")[:5]]
    # accuracies .61 and .41 on a line from 2 to 98
    assert plots[0].one("path", class_="me").attributes["d"].startswith("M60.6 ")
    assert plots[0].one("path", class_="rival").attributes["d"].startswith("M41.4 ")
    assert plots[4].all("path", class_="rival") == []
    assert "the tall line is the strongest baseline" in page.text


@pytest.mark.parametrize("verdict", [verdict for verdict in VERDICTS if not verdict.startswith("above")])
def test_no_sentence_is_made_of_other_verdicts(verdict: str) -> None:
    from headlens.report.findings import findings

    row = known("syntax.dep_to_head[obj]", (2, 0), 0.72, verdict, relation="obj", offset=("-2", 0.7))
    found = findings(table({"position.mass[-1]": at(0.1, {})}), evidence_of([row], [of_relation(row)]))
    assert not any("direct object" in finding.text for finding in found)


def test_a_head_above_position_alone_is_told_with_the_rule_that_does_as_well() -> None:
    from headlens.report.findings import findings

    row = annotated_rows()[0][2]
    (told,) = findings(table({"surface.confidence": at(0.1, {})}), evidence_of([row], [of_relation(row)]))
    assert told.text == (
        "L2H1 attends from a dependent to its syntactic head: .45 held out [.42, .48]; best constant offset .30, its own "
        "position profile .31, a rule that knows parts of speech .44."
    )


def test_at_most_four_sentences_come_from_evidence_those_that_gain_most(large: tuple[str, Node]) -> None:
    told = [item.text for item in large[1].one("ul", class_="find").all("li")]
    # offsets rise from .2 by .001 a metric; ALL, the first, comes last
    assert [text.split(":")[0] for text in told[:4]] == [
        f"L{2 * place}H{2 * place} attends from a dependent (rel{place - 1}) to its syntactic head"
        if 2 * place < 7
        else f"L{2 * place}H{2 * place % 7} attends from a dependent (rel{place - 1}) to its syntactic head"
        for place in (1, 2, 3, 4)
    ]
    assert "(rel" not in "".join(told[4:])


def test_claims_have_letters_firm_where_held_out_documents_confirm_them(page: Node) -> None:
    found = {cell.attributes["id"]: cell for cell in page.one("table", class_="map").one("tbody").all("td")}
    letters = [[found[f"L{layer}H{head}"].text for head in range(HEADS)] for layer in range(LAYERS)]
    assert letters == [["·", "A", "P", "Y"], ["·", "R", "Y", "·"], ["Y", "Y", "R", "·"]]
    assert {name for name, cell in found.items() if "tentative" in cell.attributes["class"]} == {"L0H3"}
    assert found["L0H3"].attributes["class"] == "t-syntax tentative"
    assert found["L2H2"].attributes["class"] == "t-coreference"


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ("L2H0", "syntax: from a direct object to its verb .720 held out"),
        ("L0H3", "syntax: from a noun to its adposition or case marker .910 (best baseline .430)"),
        (
            "L1H1",
            "coreference: from a pronoun to an earlier mention of the same entity .730 held out; from a pronoun whose "
            "lemma no candidate shares to an earlier mention of the same entity .620 held out",
        ),
        ("L1H2", "syntax: from a subject to its verb .610 held out; from a subject to its predicate .600 held out"),
    ],
)
def test_pointing_at_a_letter_says_which(page: Node, head: str, words: str) -> None:
    (cell,) = page.all("td", id=head)
    assert cell.attributes["title"] == f"{head}: {words}"


def test_the_legend_has_the_letters_of_claims(page: Node) -> None:
    rows = [cells(row) for row in page.one("table", class_="counts").one("tbody").all("tr")]
    what = "above every baseline but informed rules, and no accident among all tests"
    assert rows[:3] == [
        [f"Rcoreference{what}", "2", "L1H1, L2H2"],
        [f"Ysyntax{what}", "4", "L0H3, L1H2, L2H0, L2H1"],
        ["Aadjacent phraseover .60 of the words between one inside and one outside", "1", "L0H1"],
    ]
    letters = {cell.text[0] for cell in page.one("table", class_="map").one("tbody").all("td")}
    assert letters <= {row[0][0] for row in rows}


def test_what_is_confirmed_names_a_head_before_what_is_not() -> None:
    obj = known("syntax.dep_to_head[obj]", (1, 1), 0.7, ABOVE, relation="obj", offset=("-2", 0.4))
    mention = known("coref[all]", (0, 0), 0.5, "undecided", nearest=("", 0.4))
    evidence = evidence_of([obj, mention], [of_relation(obj)], {("coref[all]", 1, 1): (0.6, 0.1)})
    page = read(render_report(table({"position.mass[-1]": at(0.1, {})}), {}, evidence))
    (cell,) = page.all("td", id="L1H1")
    assert cell.text == "YR"
    assert cell.attributes["title"] == (
        "L1H1: syntax: from a direct object to its verb .700 held out, coreference: from a mention to an earlier mention "
        "of the same entity .600 (best baseline .410)"
    )


def test_a_cell_names_three_claims_and_counts_the_rest() -> None:
    rows = [
        known(f"syntax.dep_to_head[r{n}]", (1, 1), 0.5, "undecided", relation=f"r{n}", offset=("+1", 0.2))
        for n in range(5)
    ]
    claimed = {(row.metric, 0, 2): (0.5 + n / 10, 0.1) for n, row in enumerate(rows)}
    page = read(render_report(table({"position.mass[-1]": at(0.1, {})}), {}, evidence_of(rows, [], claimed)))
    (cell,) = page.all("td", id="L0H2")
    ways = [f"from a dependent (r{n}) to its syntactic head .{5 + n}00 (best baseline .210)" for n in (4, 3, 2)]
    assert cell.attributes["title"] == f"L0H2: syntax: {'; '.join(ways)} and 2 more"


def test_after_a_failed_self_check_evidence_claims_nothing(scores: ScoreTable, evidence: Evidence) -> None:
    failed = {"selfcheck": {"passed": False, "line": "L1 differs by .3"}}
    page = read(render_report(scores, failed, evidence))
    assert page.all("table", class_="ev") == page.all("table", class_="map") == []
    assert "held out [" not in page.text
    assert "attends from" not in render_summary(scores, failed, evidence)


def test_the_summary_has_the_same_findings(scores: ScoreTable, evidence: Evidence, page: Node) -> None:
    summary = read(render_summary(scores, {}, evidence))
    told = [item.text for item in summary.all("li")]
    assert told == [item.text for item in page.one("ul", class_="find").all("li")]
    drawn = [svg.attributes["aria-label"].split(",")[0] for svg in summary.all("svg")]
    assert drawn[:2] == [
        "Heat map of Title of subject_verb.subject_to_verb",
        "Heat map of Title of coref[pronoun]",
    ]


# ------------------------------------------------------------------------------------------------- maps, notes, safety


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
        "Maps are drawn of 7 of the 12 metrics; every metric with enough decisions has its row in the tables above, and "
        "the numbers of all heads are in scores.csv."
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
    assert any("--hl-d0" in path.attributes.get("style", "") for path in svg.all("path"))


def test_silver_parses_are_told_at_the_top(page: Node) -> None:
    notes = [words.text for term, words in zip(page.all("dt"), page.all("dd"), strict=True) if term.text == "Note"]
    assert notes == PLACED["notes"]


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
        assert "<script" not in html
        assert read(html).all("script") == []
        assert f"attends from a dependent ({EVIL}) to its syntactic head" in read(html).text


def test_the_page_says_attends_and_never_uses(page: Node) -> None:
    assert not re.search(r"\b[Uu]se[sd]?\b", page.text)


def test_the_page_reaches_for_nothing_outside(large: tuple[str, Node]) -> None:
    html, page = large
    assert "://" not in html
    assert not {"script", "link", "iframe", "object", "img"} & {node.tag for node in page.walk()}
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


# ------------------------------------------------------------------------------------------------ from trials to a page


def planted_trials() -> Trials:
    """40 documents with 10 decisions each; L1H2 knows the objects (.8), L0H1 sits at an offset that is right for .5."""
    rng = np.random.default_rng(7)
    names = ("syntax.dep_to_head[obj]", "syntax.head_to_dep[obj]", "syntax.dep_to_head[case]")
    total = np.full((40, 3), 10)
    correct = rng.binomial(10, 0.1, (40, LAYERS, HEADS, 3))
    correct[:, 1, 2, 0] = rng.binomial(10, 0.8, 40)
    offset = rng.binomial(10, [[0.3, 0.2, 0.5]] * 40)
    correct[:, 0, 1, 2] = offset[:, 2]
    expected = np.full(correct.shape, 1.0)
    expected[:, 0, 1, 2] = offset[:, 2]
    return Trials(
        names=names,
        total=total,
        correct=correct,
        chance=total * 0.1,
        profile=expected,
        expected=expected,
        rivals={"constant offset": Rival(("+1",), offset[:, :, None])},
        relation_of=("obj", "obj", "case"),
    )


def test_a_planted_head_is_told_and_an_offset_is_not() -> None:
    trials = planted_trials()
    evidence = weigh(trials)
    scores = table({name: evidence.value[place] for place, name in enumerate(trials.names)}, with_macro=False)
    page = read(render_report(scores, {}, evidence))
    told = [item.text for item in page.one("ul", class_="find").all("li")]
    assert told[0].startswith("L1H2 attends from a direct object to its verb: .8")
    assert not any("case marker" in text for text in told)
    found = {cell.attributes["id"]: cell.text for cell in page.one("table", class_="map").one("tbody").all("td")}
    assert {name for name, letter in found.items() if letter == "Y"} == {"L1H2"}
    assert row_of(grid(page, "Relations"), "Adposition")[-1] == "○ a baseline does as well"


# -------------------------------------------------------------------------------------------------------------- wording


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("subject_verb.subject_to_verb", "from a subject to its verb"),
        ("subject_verb.verb_to_subject", "from a verb to its subject"),
        ("syntax.dep_to_head[obl]", "from an oblique to its verb"),
        ("syntax.head_to_dep[obl]", "from a verb to its oblique"),
        ("syntax.dep_to_head[nsubj:pass]", "from a subject (nsubj:pass) to its predicate"),
        ("syntax.dep_to_head[xyz]", "from a dependent (xyz) to its syntactic head"),
        ("syntax.head_to_dep[ALL]", "from a syntactic head to its dependent"),
        ("coref[proper]", "from a proper name to an earlier mention of the same entity"),
        (
            "coref[all_unmatched]",
            "from a mention whose lemma no candidate shares to an earlier mention of the same entity",
        ),
        ("choice[type_one]", "from a pronoun (type one) to its referent"),
    ],
)
def test_metrics_in_words(metric: str, words: str) -> None:
    assert way_of(metric).sentence == words


@pytest.mark.parametrize(
    ("relation", "title"),
    [
        ("subject_verb", "Subject and verb"),
        ("ALL", "All relations"),
        ("det", "Determiner"),
        ("det:poss", "det:poss"),
        ("coref[nominal_unmatched]", "Common nouns whose lemma no candidate shares"),
        ("choice[feminine]", "Feminine pronouns"),
        ("choice[type_one]", "Type one"),
    ],
)
def test_titles_of_rows(relation: str, title: str) -> None:
    assert title_of(relation) == title


def test_the_settings_on_the_page_are_those_of_the_evidence() -> None:
    row = known("syntax.dep_to_head[obj]", (2, 0), 0.72, ABOVE, relation="obj", offset=("-2", 0.41))
    settings = dataclasses.replace(SETTINGS, folds=1234, repeats=7, minimum=55, margin=0.2, alpha=0.01)
    evidence = dataclasses.replace(evidence_of([row], [of_relation(row)]), settings=settings)
    methods = section(read(render_report(table({row.metric: at(0.1, {})}), {}, evidence)), "Methods").text
    for said in ("1,234 documents", "7 times", "needs 55 decisions", "20% of", "below .01"):
        assert said in methods
