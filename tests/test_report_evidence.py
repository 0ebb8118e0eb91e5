"""The tables of evidence, read back from the page and held against evidence that was drawn by hand."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from report_annotated import (
    SETTINGS,
    annotated_evidence,
    annotated_page,
    annotated_rows,
    evidence_of,
    grid,
    headings,
    known,
    of_relation,
    own,
    row_of,
    rows_of,
    rows_of_nodes,
    section,
)
from report_pages import NAN, Node, at, cells, printed, read, table

from headlens.evidence_table import ABOVE, ONE_DOCUMENT, TOO_FEW, VERDICTS
from headlens.report import render_report


@pytest.fixture(scope="module")
def page() -> Node:
    return annotated_page()


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
        "p any",
        "q head",
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


def test_relations_come_by_verdict_and_then_by_gain_all_together_last(page: Node) -> None:
    relations = grid(section(page, "Relations"), "Relations")
    assert [(row[0], row[1], row[-1]) for row in rows_of(relations)] == [
        ("Direct object → verbobj", "500", "● above every baseline"),  # gains .31
        ("Subject and verbsubject → verb", "700", "● above every baseline"),  # gains .20
        ("Subject → predicatensubj", "690", "● above every baseline"),  # .20, too, of fewer decisions
        ("Noun → adposition or case markercase", "900", "○ a baseline does as well"),
        ("All relationsdependent → syntactic head", "6,000", "◐ above position, not above an informed rule"),
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
        "Direct object → verbsyntax.dep_to_head[obj]",
        "Subject → verbsubject_verb.subject_to_verb",
        "Subject → predicatesyntax.dep_to_head[nsubj]",
        "Subject (nsubj:pass) → predicatesyntax.dep_to_head[nsubj:pass]",  # undecided, gains .06
        "Verb → direct objectsyntax.head_to_dep[obj]",  # undecided, gains .05
        "Noun → adposition or case markersyntax.head_to_dep[case]",  # explained, falls short by .02
        "Verb → subjectsubject_verb.verb_to_subject",  # by .03
        "Dependent → syntactic headsyntax.dep_to_head[ALL]",
    ]
    assert "p any" not in headings(directions)
    assert row_of(directions, "Verb → direct object")[6:] == [
        ".150+2",
        "–",
        "–",
        "+.050.020 to .080",
        ".002",
        "○ undecided",
    ]


def test_every_accuracy_in_the_tables_is_that_of_the_evidence(page: Node) -> None:
    metrics, _ = annotated_rows()
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
        "Pronouns whose lemma no candidate sharescoref[pronoun_unmatched]",  # gains .31
        "Pronounscoref[pronoun]",  # gains .09
        "Mentionscoref[all]",
    ]


def test_pronouns_have_their_groups_and_the_difference_between_them(page: Node) -> None:
    pronouns = section(page, "Pronouns")
    assert [row[0] for row in rows_of(grid(pronouns, "Pronouns"))] == [
        "Pro-stereotypicalchoice[pro]",
        "Anti-stereotypicalchoice[anti]",
        "All pronounschoice[all]",
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
    assert "nan" not in page.text.lower().split()


def test_the_settings_on_the_page_are_those_of_the_evidence() -> None:
    row = known("syntax.dep_to_head[obj]", (2, 0), 0.72, ABOVE, relation="obj", offset=("-2", 0.41))
    settings = dataclasses.replace(SETTINGS, folds=1234, repeats=7, minimum=55, margin=0.2, alpha=0.01)
    evidence = dataclasses.replace(evidence_of([row], [of_relation(row)]), settings=settings)
    methods = section(read(render_report(table({row.metric: at(0.1, {})}), {}, evidence)), "Methods").text
    for said in ("1,234 documents", "7 times", "needs 55 decisions", "20% of", "below .01"):
        assert said in methods


def test_the_documentation_names_every_column_of_the_files() -> None:
    told = (Path(__file__).parents[1] / "docs" / "scores.md").read_text(encoding="utf-8")
    evidence = annotated_evidence()
    columns = {column.rpartition(".")[2] for column in [*evidence.to_frame(), *evidence.tests_frame()]}
    assert {column for column in columns if not re.search(rf"`(?:BASELINE)?\.?{column}`", told)} == set()
    baselines = {column.partition(".")[0] for column in evidence.to_frame() if "." in column}
    assert {name for name in baselines if f"`{name}`" not in told} == set()
