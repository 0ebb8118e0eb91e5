"""Pages in a browser, without network, and axe-core as a judge.

axe-core, under the MPL-2.0, comes inside of axe-playwright-python, of the extra `dev`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browsing import PATIENCE, Judge, Visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page


@pytest.fixture
def visit(chromium: Browser, tmp_path: Path) -> Iterator[Visit]:
    """visit(html, "#L1H2", **options of a browser context): the page, loaded from a file.

    The test fails afterwards if a page had anything to say on the console, or asked for anything beside itself.
    """
    from playwright.sync_api import expect

    expect.set_options(timeout=PATIENCE)
    complaints: list[str] = []
    with ExitStack() as closing:

        def open_page(html: str, place: str = "", **options: Any) -> Page:
            path = tmp_path / f"{len(chromium.contexts)}.html"
            path.write_text(html, encoding="utf-8")
            context = chromium.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
            closing.callback(context.close)
            _watch(context, path.as_uri(), complaints)
            page = context.new_page()
            page.goto(path.as_uri() + place)
            return page

        yield open_page
    assert complaints == []


@pytest.fixture(scope="session")
def violations() -> Judge:
    """violations(page, "color-contrast", within="main"): what axe-core holds against it by these rules, else by all.

    Impact, rule, and element of what it calls moderate, serious or critical. The size of targets is asked for besides.
    """
    package = pytest.importorskip("axe_playwright_python.base", reason="needs axe-core, of the extra dev")

    def judge(page: Page, *rules: str, within: str = "html") -> list[str]:
        if not page.evaluate("'axe' in window"):
            page.evaluate(package.AXE_SCRIPT)
        asked = {"runOnly": list(rules)} if rules else {"rules": {"target-size": {"enabled": True}}}
        options = {"resultTypes": ["violations"], **asked}
        found = page.evaluate("([within, options]) => axe.run(within, options)", [within, options])["violations"]
        return [
            f"{rule['impact']}: {rule['id']}: {node['html'][:200]}: {node['failureSummary']}"
            for rule in found
            for node in rule["nodes"]
            if rule["impact"] in ("moderate", "serious", "critical")
        ]

    return judge


def _watch(context: BrowserContext, address: str, complaints: list[str]) -> None:
    """No way out; what the page says and asks for is written down."""
    context.set_default_timeout(PATIENCE)
    context.set_offline(True)
    own = (address, "data:", "blob:", "about:")
    context.route(lambda url: not url.startswith(own), lambda route: route.abort())
    context.on("request", lambda asked: None if asked.url.startswith(own) else complaints.append(f"asks: {asked.url}"))
    context.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    context.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    context.on("weberror", lambda error: complaints.append(f"error: {error.error}"))
