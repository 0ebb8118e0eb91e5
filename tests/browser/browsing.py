"""For the tests in a browser: what its fixtures give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from playwright.sync_api import Page

PATIENCE = 30_000  # ms; how long a busy machine may take, not how long the page does
EVIL = "<script>alert(1)</script>"


class Visit(Protocol):
    def __call__(self, html: str, place: str = "", **options: Any) -> Page: ...


class Judge(Protocol):
    def __call__(self, page: Page, *rules: str, within: str = "html") -> list[str]: ...


def sideways(page: Page, width: int) -> int:
    """By how many pixels the document is wider than a window of this width."""
    page.set_viewport_size({"width": width, "height": 800})
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def paper(page: Page) -> str:
    """The colour that the page would be printed on."""
    page.emulate_media(media="print")
    return page.evaluate("getComputedStyle(document.body).backgroundColor")
