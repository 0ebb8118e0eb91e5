"""Random controls, ensembles and the probe on the page, from what the provenance holds of them."""

from __future__ import annotations

import numpy as np
import pytest
from report_annotated import annotated_evidence, annotated_scores, grid, headings, own, row_of, rows_of, section
from report_pages import cells, read, table

from headlens.evidence_table import Evidence
from headlens.report import render_report
from headlens.report.further import further
from headlens.scores import ScoreTable


@pytest.fixture(scope="module")
def scores() -> ScoreTable:
    return annotated_scores()


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return annotated_evidence()


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
        "of": 1234,
    }
    page = read(render_report(scores, {"ensembles": [ensemble]}, evidence))
    ensembles = grid(section(page, "Relations"), "Ensembles of heads")
    assert rows_of(ensembles) == [
        ["Direct object → verbsyntax.dep_to_head[obj]", "500", "L2H0, L1H2, L9H9", ".780", ".720", "+.060.020 to .090"]
    ]
    assert next(cell for cell in ensembles.all("td") if cell.text == "500").attributes["title"] == "drawn from 1,234"
    row = next(row for row in own(ensembles, "tbody").all("tr"))
    values = [cell.attributes["data-value"] for cell in (*row.all("th"), *row.all("td"))]
    assert values[1:] == ["500", "L2H0 L1H2 L9H9", "0.78", "0.72", "0.06"]
    assert row.all("td")[-1].attributes["data-more"] == '["0.02", "0.09"]'
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
    assert said.endswith("for .500 of the words, on documents that it was not fitted on. Beside it: next word .250.")


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
