"""The page of a comparison in a browser."""

from __future__ import annotations

import pytest
from browsing import EVIL, Judge, Visit, paper, sideways
from compared import after, before, larger

from headlens.comparison import compare
from headlens.report.compare import render_comparison


@pytest.fixture(scope="module", params=["of the same heads", "of other sizes"])
def html(request: pytest.FixtureRequest) -> str:
    other = after() if request.param == "of the same heads" else larger()
    return render_comparison(compare([before(), other], ["old", EVIL]))


def test_nothing_stands_in_the_way_of_a_reader(visit: Visit, violations: Judge, html: str) -> None:
    page = visit(html)
    assert violations(page) == []
    page.emulate_media(color_scheme="dark")
    assert violations(page, "color-contrast") == []


def test_the_page_fits_its_window(visit: Visit, html: str) -> None:
    page = visit(html)
    assert [sideways(page, width) for width in (400, 1280, 3840)] == [0, 0, 0]


def test_a_name_is_text(visit: Visit, html: str) -> None:
    assert EVIL in visit(html).get_by_role("heading", level=1).inner_text()


def test_a_print_is_on_white_paper(visit: Visit, html: str) -> None:
    assert paper(visit(html, color_scheme="dark")) == "rgb(255, 255, 255)"
