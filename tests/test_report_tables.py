"""The values behind the cells of tables, and, in a browser, what the script makes of them: order and CSV files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from report_annotated import annotated_evidence, annotated_page, annotated_scores, grid, headings, own, rows_of_nodes
from report_pages import NAN, Node, read

import headlens.report
from headlens.evidence_table import VERDICTS
from headlens.report import render_report
from headlens.report.tables import Cell, Column, Row, Table, exact

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TEMPLATES = Path(headlens.report.__file__).parent / "templates"
CONTROLS = {"copies": 2, "best": {"syntax.dep_to_head[obj]": [0.21, 1 / 3], "coref[pronoun]": [0.3, 0.25]}}


@pytest.fixture(scope="module")
def page() -> Node:
    return annotated_page()


def named_values(table: Node) -> list[dict[str, str]]:
    """Of each own row of a table the values behind its cells, by their names."""
    names = [json.loads(heading.attributes.get("data-names", "[]")) for heading in own(table, "thead").all("th")]
    found = []
    for row in rows_of_nodes(table):
        cells = [cell for cell in row.children if isinstance(cell, Node)]
        values: dict[str, str] = {}
        for of_column, cell in zip(names, cells, strict=True):
            given = [cell.attributes.get("data-value", ""), *json.loads(cell.attributes.get("data-more", "[]"))]
            values |= dict(zip(of_column, given, strict=True)) if of_column else {}
        found.append(values)
    return found


# --------------------------------------------------------------------------------------------------------- in the page


def test_whole_numbers_stand_behind_the_printed_ones(page: Node) -> None:
    (found,) = [row for row in named_values(grid(page, "Relations")) if row["metric"] == "syntax.dep_to_head[obj]"]
    known = annotated_evidence()["syntax.dep_to_head[obj]"]
    offset = known.baselines["constant offset"]
    assert found["head"] == "L2H0"
    assert found["verdict"] == "above every baseline"
    assert found["constant offset.option"] == "-2"
    assert found["over"] == "constant offset"
    numbers = {
        "decisions": known.decisions,
        "documents": known.documents,
        "share_of_halves": known.share,
        "held_out": known.held_out,
        "low": known.low,
        "high": known.high,
        "on_all_documents": known.value,
        "chance": known.chance,
        "constant offset.held_out": offset.held_out,
        "constant offset.difference": offset.difference,
        "constant offset.low": offset.low,
        "constant offset.high": offset.high,
        "gain": offset.difference,
        "gain_low": offset.low,
        "gain_high": offset.high,
        "p_any": 0.0005,
        "q": known.q,
    }
    assert {name: float(found[name]) for name in numbers} == numbers  # to the last digit


def test_what_is_not_known_is_empty(page: Node) -> None:
    (found,) = [row for row in named_values(grid(page, "Relations")) if row["metric"] == "syntax.head_to_dep[case]"]
    of_rule = {name: value for name, value in found.items() if name.startswith("part of speech.")}
    assert of_rule == dict.fromkeys(of_rule, "")
    assert len(of_rule) == 5


def test_names_of_columns_are_told_once(page: Node) -> None:
    for table in page.all("table", class_="ev"):
        names = [
            name
            for heading in own(table, "thead").all("th")
            for name in json.loads(heading.attributes.get("data-names", "[]"))
        ]
        assert len(names) == len(set(names))


def test_verdicts_are_sorted_by_how_good_they_are(page: Node) -> None:
    order = list(VERDICTS)
    for row in rows_of_nodes(grid(page, "Relations")):
        verdict = row.all("td")[-1].attributes
        assert order[int(verdict["data-order"])] == verdict["data-value"]


def test_headings_say_what_is_looked_for_first(page: Node) -> None:
    relations = grid(page, "Relations")
    first = {heading.text: heading.attributes.get("data-first") for heading in own(relations, "thead").all("th")}
    assert first["Decisions"] == first["Held out"] == first["Gain"] == "descending"
    assert first["p any"] == first["q head"] == first["Verdict"] == first["What attends to what"] == "ascending"
    assert first["0 to 1"] is None  # a picture


def test_only_the_row_of_all_stays_last(page: Node) -> None:
    for caption, last in (("Relations", "All relations"), ("Mentions", "Mentions"), ("Pronouns", "All pronouns")):
        rows = rows_of_nodes(grid(page, caption))
        assert ["data-last" in row.attributes for row in rows] == [False] * (len(rows) - 1) + [True]
        assert rows[-1].text.startswith(last)


def test_every_table_of_decisions_shows_its_controls() -> None:
    found = read(render_report(annotated_scores(), {"controls": CONTROLS}, annotated_evidence()))
    mentions = grid(found, "Mentions")
    column = headings(mentions).index("Best random head")
    by_metric = {row["metric"]: row["best_random_head"] for row in named_values(mentions)}
    assert by_metric == {"coref[all]": "", "coref[pronoun]": "0.3", "coref[pronoun_unmatched]": ""}
    assert [row.all("td")[column - 1].text for row in rows_of_nodes(mentions)] == ["–", ".300", "–"]


def test_columns_are_explained_for_those_who_cannot_point(page: Node) -> None:
    told = [fold for fold in page.all("details", class_="columns") if "Constant offset" in fold.text]
    assert "q headof this head among all heads and metrics tested (Benjamini and Hochberg)" in told[0].text


def test_without_scripts_there_is_no_button_in_a_table(page: Node) -> None:
    assert [button for table in page.all("table", class_="ev") for button in table.all("button")] == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1 + 0.2, "0.30000000000000004"),
        (500, "500"),
        (3.0, "3"),
        (NAN, ""),
        (float("inf"), ""),
        ("=1+1", "=1+1"),
        (-0.25, "-0.25"),
    ],
)
def test_values_keep_all_their_digits(value: float | str, text: str) -> None:
    assert exact(value) == text
    assert exact(np.float64(value) if isinstance(value, float) else value) == text


def test_a_cell_without_its_values_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError):
        Table("x", (Column("a", names=("a", "b")),), (Row((Cell("1", values=(1.0,)),)),))


# -------------------------------------------------------------------------------------------------------- in a browser

HEADER = ("what", "metric", "n", "low", "high", "verdict")
COLUMNS = (
    Column("What", is_number=False, names=("what", "metric")),
    Column("Number", names=("n", "low", "high")),
    Column("Picture", is_number=False),
    Column("Verdict", is_number=False, names=("verdict",)),
)


def drawn_row(what: str, n: float, verdict: str, order: int, **more: Any) -> Row:
    cells = (
        Cell(what, values=(what, f"m[{what}]")),
        Cell(f"{n:.1f}", values=(n, n - 1, n + 1)),
        Cell(""),
        Cell(verdict, values=(verdict,), order=float(order)),
    )
    return Row(cells, **more)


ROWS = (
    drawn_row("ten", 10, "undecided", 3),
    drawn_row(
        "nine",
        9.25,
        "above",
        0,
        inner=(drawn_row("nine:b", 1, "undecided", 3), drawn_row("nine:a", 2, "above", 0)),
        fold="2 subtypes",
    ),
    drawn_row("none", NAN, "chance", 5),
    drawn_row("=cmd()", -3, "above", 0),
    drawn_row("all", 99, "slight", 2, is_last=True),
)


def page_of(table: Table) -> str:
    """A page with nothing but this table, its script and the style sheets."""
    from headlens.report.html import _environment

    template = _environment().from_string(
        '{% import "macros.html.j2" as m with context %}<!doctype html><html lang="en"><meta charset="utf-8">'
        '<title>x</title><style>{% include "style.css" %}{% include "tables.css" %}</style>'
        "<main>{{ m.evidence_table(table) }}</main>"
    )
    script = (TEMPLATES / "tables.js").read_text(encoding="utf-8")
    return f"{template.render(table=table, linked=set())}<script>{script}</script></html>"


@pytest.fixture
def opened(chromium: Browser) -> Iterator[Page]:
    context = chromium.new_context(offline=True, viewport={"width": 1280, "height": 900}, accept_downloads=True)
    page = context.new_page()
    page.set_content(page_of(Table("Drawn: 1 & 2", COLUMNS, ROWS)))
    yield page
    context.close()


def order(page: Page, of: str = "table[data-table] > tbody") -> list[str | None]:
    rows = page.locator(f"{of} > tr:not(.fold)")
    return [rows.nth(place).locator("th").first.text_content() for place in range(rows.count())]


def sort_marks(page: Page) -> list[str | None]:
    headings = page.locator("table[data-table] > thead th")
    return [headings.nth(place).get_attribute("aria-sort") for place in range(headings.count())]


AS_AT_FIRST = ["ten", "nine", "none", "=cmd()", "all"]


def test_a_heading_sorts_numbers_then_the_other_way_then_as_at_first(opened: Page) -> None:
    number = opened.get_by_role("button", name="Number", exact=True)
    number.click()
    assert order(opened) == ["ten", "nine", "=cmd()", "none", "all"]
    assert sort_marks(opened) == [None, "descending", None, None]
    number.click()
    assert order(opened) == ["=cmd()", "nine", "ten", "none", "all"]  # nothing and all stay last
    assert sort_marks(opened) == [None, "ascending", None, None]
    number.click()
    assert order(opened) == AS_AT_FIRST
    assert sort_marks(opened) == [None] * 4


def test_verdicts_are_sorted_by_their_order_and_texts_by_the_alphabet(opened: Page) -> None:
    opened.get_by_role("button", name="Verdict", exact=True).click()
    assert order(opened) == ["nine", "=cmd()", "ten", "none", "all"]  # equal ones as at first
    opened.get_by_role("button", name="What", exact=True).click()
    assert order(opened) == ["=cmd()", "nine", "none", "ten", "all"]
    assert sort_marks(opened) == ["ascending", None, None, None]


def test_headings_answer_to_the_keyboard(opened: Page) -> None:
    opened.get_by_role("button", name="Number", exact=True).focus()
    opened.keyboard.press("Enter")
    opened.keyboard.press("Space")
    assert sort_marks(opened) == [None, "ascending", None, None]


def test_what_is_folded_below_a_row_stays_with_it_and_is_sorted_too(opened: Page) -> None:
    opened.get_by_role("button", name="Number", exact=True).click()
    below = opened.locator("table[data-table] > tbody > tr:has(+ tr.fold) > th")
    assert below.inner_text() == "nine"
    assert order(opened, "table table > tbody") == ["nine:a", "nine:b"]
    opened.get_by_role("button", name="Verdict", exact=True).click()
    opened.get_by_role("button", name="Verdict", exact=True).click()
    assert order(opened, "table table > tbody") == ["nine:b", "nine:a"]


def test_a_picture_has_no_order(opened: Page) -> None:
    assert opened.get_by_role("button", name="Picture").count() == 0


def test_narrow_screens_have_a_menu_that_sorts(opened: Page) -> None:
    menu = opened.get_by_label("Sort by")
    assert not menu.is_visible()
    opened.set_viewport_size({"width": 400, "height": 900})
    assert menu.is_visible()
    assert menu.locator("option").all_inner_texts() == [
        "as at first",
        *("What, A to Z", "What, Z to A"),
        *("Number, highest first", "Number, lowest first"),
        *("Verdict, first to last", "Verdict, last to first"),
    ]
    menu.select_option("Number, lowest first")
    assert order(opened) == ["=cmd()", "nine", "ten", "none", "all"]
    menu.select_option("as at first")
    assert order(opened) == AS_AT_FIRST


def downloaded(page: Page) -> tuple[str, str]:
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download as CSV: Drawn: 1 & 2").click()
    return waiting.value.suggested_filename, Path(waiting.value.path()).read_text(encoding="utf-8")


def test_a_table_is_downloaded_with_all_its_values(opened: Page) -> None:
    name, text = downloaded(opened)
    assert name == "drawn-1-2.csv"
    header, *rows = csv.reader(io.StringIO(text, newline=""))
    assert tuple(header) == HEADER
    assert rows == [
        ["ten", "m[ten]", "10", "9", "11", "undecided"],
        ["nine", "m[nine]", "9.25", "8.25", "10.25", "above"],
        ["nine:b", "m[nine:b]", "1", "0", "2", "undecided"],
        ["nine:a", "m[nine:a]", "2", "1", "3", "above"],
        ["none", "m[none]", "", "", "", "chance"],
        ["'=cmd()", "m[=cmd()]", "-3", "-4", "-2", "above"],  # a text, not a formula; and a number is a number
        ["all", "m[all]", "99", "98", "100", "slight"],
    ]


def test_what_is_sorted_is_downloaded_as_it_stands(opened: Page) -> None:
    opened.get_by_role("button", name="Number", exact=True).click()
    rows = list(csv.reader(io.StringIO(downloaded(opened)[1], newline="")))
    assert [row[0] for row in rows[1:]] == ["ten", "nine", "nine:a", "nine:b", "'=cmd()", "none", "all"]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("+1", "+1"),
        ("-2", "-2"),
        ("-1e-5", "-1e-5"),
        ("+SUM(A1)", "'+SUM(A1)"),
        ("-x", "'-x"),
        ("@x", "'@x"),
        ("\t=1", "'\t=1"),
        ("-", "'-"),
        ('a "b", c\nd', 'a "b", c\nd'),
    ],
)
def test_texts_that_a_spreadsheet_would_run_are_told_to_be_texts(chromium: Browser, text: str, kept: str) -> None:
    context = chromium.new_context(offline=True, accept_downloads=True)
    page = context.new_page()
    page.set_content(
        page_of(Table("Drawn: 1 & 2", (Column("Text", names=("t",)),), (Row((Cell("x", values=(text,)),)),)))
    )
    found = list(csv.reader(io.StringIO(downloaded(page)[1], newline="")))
    context.close()
    assert found == [["t"], [kept]]


def test_a_table_of_one_row_cannot_be_sorted_but_taken_along(chromium: Browser) -> None:
    context = chromium.new_context(offline=True)
    page = context.new_page()
    page.set_content(page_of(Table("Drawn: 1 & 2", COLUMNS, ROWS[:1])))
    names = [button.inner_text() for button in page.get_by_role("button").all()]
    context.close()
    assert names == ["Download as CSV"]


def test_printed_tables_have_no_controls(opened: Page) -> None:
    opened.emulate_media(media="print")
    assert not opened.get_by_role("button", name="Download as CSV").is_visible()
    assert opened.get_by_role("columnheader", name="Number").is_visible()
    assert opened.locator("table[data-table] > thead .sort").nth(1).is_visible()  # its heading, not a control alone
