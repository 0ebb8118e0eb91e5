"""The page of one head on one's own text, and the arcs that it draws, in a browser."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from browsing import EVIL, Judge, Visit, paper, sideways

from headlens.examples import Example
from headlens.report.own_text import render_own_text

if TYPE_CHECKING:
    from playwright.sync_api import Page

# the -> barks .12, dog -> the .42, barks -> dog .5, barks -> barks .25; the third word pays nothing to words
DOG = Example(
    layer=1,
    head=2,
    text_id="your text",
    words=("the", "dog", EVIL, "barks"),
    arcs=((0, 3, 0.12), (1, 0, 0.42), (3, 1, 0.5), (3, 3, 0.25)),
    rest=(0.88, 0.58, 1.0, 0.25),
    unknown=(2,),
    direction="ltr",
    strength=0.5,
    why="",
)
HEBREW = replace(DOG, words=("הכלב", "הגדול", "של", "נובח"), direction="rtl")
LONG = replace(DOG, words=("Donaudampfschifffahrtsgesellschaft",) * 4)


def page_of(example: Example) -> str:
    return render_own_text(example, "Tiny, L1H2")


@pytest.mark.parametrize("example", [DOG, HEBREW, LONG], ids=["short", "right to left", "long"])
def test_nothing_stands_in_the_way_of_a_reader(visit: Visit, violations: Judge, example: Example) -> None:
    page = visit(page_of(example))
    assert violations(page) == []
    page.emulate_media(color_scheme="dark")
    assert violations(page, "color-contrast") == []


@pytest.mark.parametrize("example", [DOG, HEBREW, LONG], ids=["short", "right to left", "long"])
def test_the_page_fits_a_phone(visit: Visit, example: Example) -> None:
    assert sideways(visit(page_of(example)), 400) == 0


def test_every_share_is_an_arc_and_a_line_of_the_list(visit: Visit) -> None:
    page = visit(page_of(DOG))
    assert page.get_by_role("listitem").all_inner_texts() == [
        "the → barks .12",
        "dog → the .42",
        "barks → dog .50",
        "barks → barks .25",
    ]
    assert len(ends(page)) == 4


def test_arcs_to_earlier_words_are_above_the_line_and_others_below(visit: Visit) -> None:
    page = visit(page_of(DOG))
    line = page.get_by_text("dog", exact=True).first.bounding_box()
    assert line is not None
    middle = line["y"] + line["height"] / 2
    tops = [box["top"] < middle for box in ends(page)]
    assert tops == [False, True, True, True]


def test_keys_single_out_a_word(visit: Visit) -> None:
    page = visit(page_of(DOG))
    page.get_by_text("the", exact=True).first.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    said = page.locator("[aria-live]").inner_text()
    assert said.replace("\u2068", "").replace("\u2069", "") == "barks → dog .50, barks .25, special tokens .25"


@pytest.mark.parametrize(("example", "order"), [(DOG, [0, 1, 2, 3]), (HEBREW, [3, 2, 1, 0])], ids=["ltr", "rtl"])
def test_words_run_the_way_they_are_read(visit: Visit, example: Example, order: list[int]) -> None:
    page = visit(page_of(example))
    lefts = page.locator("[data-word]").evaluate_all(
        "(words) => words.map((word) => word.getBoundingClientRect().left)"
    )
    assert sorted(range(4), key=lefts.__getitem__) == order


def test_without_scripts_every_share_is_in_a_table(visit: Visit) -> None:
    page = visit(page_of(DOG), java_script_enabled=False)
    page.get_by_text("All of these shares in words").click()
    rows = page.get_by_role("table").get_by_role("row").all_inner_texts()
    assert [row.split() for row in rows[1:]] == [
        ["the", "barks", ".12", ".88"],
        ["dog", "the", ".42", ".58"],
        [*EVIL.split(), "1.00"],
        ["barks", "dog", ".50", ".25"],
        ["barks", ".25"],
    ]


def test_a_print_is_on_white_paper(visit: Visit) -> None:
    assert paper(visit(page_of(DOG), color_scheme="dark")) == "rgb(255, 255, 255)"


def ends(page: Page) -> list[dict[str, float]]:
    """Where each arc stands, in the order of its words."""
    script = "(arcs) => arcs.map((arc) => { const {top, bottom} = arc.getBoundingClientRect(); return {top, bottom}; })"
    return page.locator("svg path").evaluate_all(script)
