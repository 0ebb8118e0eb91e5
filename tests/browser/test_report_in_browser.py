"""The report in a browser: it looks as it should, answers to mouse and keyboard, and needs nothing but itself."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browsing import EVIL, Judge, Visit, paper, sideways
from pages import annotated_page, failed_page, large_page, page_without_roles, plain_page

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

WHITE, LIGHT, DARK = "rgb(255, 255, 255)", "rgb(252, 252, 250)", "rgb(21, 24, 27)"
PREVIOUS = "Title of position.mass[-1]"
pages = pytest.mark.parametrize(
    "html", [annotated_page, page_without_roles, failed_page], ids=["annotated", "empty", "failed"]
)


def cell(page: Page, name: str) -> Locator:
    return page.get_by_role("grid").get_by_role("link", name=re.compile(rf"^{name}: "))


def card(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name, exact=True)


def background(of: Locator) -> str:
    return of.evaluate("(element) => getComputedStyle(element).backgroundColor")


def press(page: Page, key: str) -> str:
    """The head whose cell has the focus after a key; empty if none has."""
    page.keyboard.press(key)
    focused = page.locator(":focus")
    label = focused.get_attribute("aria-label") if focused.count() else None
    return (label or "").partition(":")[0]


# ---------------------------------------------------------------------------------------------------------- every page


@pages
def test_nothing_stands_in_the_way_of_a_reader(visit: Visit, violations: Judge, html: Callable[[], str]) -> None:
    page = visit(html(), "#L0H2")
    page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
    assert violations(page) == []


def test_words_can_be_read_on_a_dark_screen(visit: Visit, violations: Judge) -> None:
    page = visit(annotated_page(), "#L0H2", color_scheme="dark")
    heads_and_relations = "header, main > section:nth-of-type(-n+3)"  # the rest is of the same kinds, and takes long
    assert violations(page, "color-contrast", within=heads_and_relations) == []


def test_scores_are_folded_until_a_link_leads_to_one(visit: Visit) -> None:
    page = visit(annotated_page())
    metric = page.locator("article.metric").last
    assert not metric.is_visible()
    page.evaluate("(id) => { location.hash = id }", metric.get_attribute("id"))
    metric.wait_for(state="visible")
    assert page.locator("details.metrics[open]").count() == 1


def test_folded_scores_are_on_paper(visit: Visit) -> None:
    page = visit(annotated_page())
    page.emulate_media(media="print")
    assert page.locator("article.metric").last.evaluate("(article) => article.getBoundingClientRect().height") > 100


def test_on_paper_headings_repeat_and_nothing_asks_to_be_pointed_at(visit: Visit) -> None:
    page = visit(annotated_page())
    page.emulate_media(media="print")
    # a button has a box of its own, and a heading that holds one is left blank on the pages after the first
    displays = page.locator(".ev .sort").evaluate_all("(all) => all.map((one) => getComputedStyle(one).display)")
    assert set(displays) == {"contents"}
    assert "Point at a word" not in page.locator("main").inner_text()


@pages
def test_the_page_fits_its_window(visit: Visit, html: Callable[[], str]) -> None:
    page = visit(html(), "#L0H2")
    assert [sideways(page, width) for width in (400, 1280, 3840)] == [0, 0, 0]


@pages
def test_without_scripts_the_page_can_be_read(visit: Visit, html: Callable[[], str]) -> None:
    from playwright.sync_api import expect

    page = visit(html(), java_script_enabled=False)
    wanted = ("Findings at a glance", "Head map", "Position", "Methods", "Provenance")
    assert [name for name in page.get_by_role("heading", level=2).all_inner_texts() if name in wanted] == [*wanted]
    expect(page.get_by_role("grid").get_by_role("link")).to_have_count(12)
    expect(page.locator("noscript > p")).to_contain_text("need scripts")
    expect(page.locator("noscript > p")).to_be_visible()
    expect(page.locator("select:visible, button:visible:enabled")).to_have_count(0)


def test_on_paper_there_is_what_was_open_but_nothing_to_press(visit: Visit) -> None:
    from playwright.sync_api import expect

    page = visit(annotated_page(), "#L0H2", color_scheme="dark")
    assert paper(page) == WHITE
    expect(card(page, "L0H2")).to_be_visible()
    expect(page.locator("select:visible, button:visible:not(th button)")).to_have_count(0)  # in a th they are its words


@pytest.mark.parametrize("preferred", ["light", "dark"])
def test_the_switch_goes_over_what_the_system_prefers(visit: Visit, preferred: str) -> None:
    page = visit(plain_page(), color_scheme=preferred)
    body, switch = page.locator("body"), page.get_by_role("group", name="Colours of the page")
    own = {"light": LIGHT, "dark": DARK}[preferred]
    seen = [background(body)]
    for name in ("Dark", "Light", "Auto"):
        switch.get_by_role("button", name=name).click()
        seen.append(background(body))
    assert seen == [own, DARK, LIGHT, own]
    assert switch.get_by_role("button", pressed=True).all_inner_texts() == ["Auto"]


def test_a_page_that_was_made_dark_is_printed_dark_on_white(visit: Visit, violations: Judge) -> None:
    page = visit(plain_page())
    page.get_by_role("button", name="Dark").click()
    assert paper(page) == WHITE
    assert violations(page, "color-contrast", within="section[aria-labelledby=findings]") == []


# --------------------------------------------------------------------------------------------------------- the head map


def test_the_map_is_one_stop_of_the_tab_key_and_arrows_move_in_it(visit: Visit) -> None:
    page = visit(plain_page())
    page.get_by_label("Colour by").focus()
    assert press(page, "Tab") == "L0H0"
    keys = "ArrowRight ArrowRight ArrowDown ArrowLeft End ArrowRight ArrowDown ArrowDown Home ArrowLeft ArrowUp".split()
    walk = [press(page, key) for key in keys]
    assert walk == "L0H1 L0H2 L1H2 L1H1 L1H3 L1H3 L2H3 L2H3 L2H0 L2H0 L1H0".split()
    assert press(page, "Tab") == ""
    assert press(page, "Shift+Tab") == "L1H0"


def test_enter_opens_the_card_and_escape_leads_back(visit: Visit) -> None:
    from playwright.sync_api import expect

    page = visit(plain_page())
    cell(page, "L1H3").focus()
    page.keyboard.press("Enter")
    expect(card(page, "L1H3")).to_be_visible()
    expect(card(page, "L1H3").get_by_role("heading", name="L1H3")).to_be_focused()
    assert page.url.endswith("#L1H3")
    page.keyboard.press("Escape")
    expect(card(page, "L1H3")).to_have_count(0)
    expect(cell(page, "L1H3")).to_be_focused()


def test_a_click_opens_the_card_and_back_opens_the_one_before(visit: Visit) -> None:
    from playwright.sync_api import expect

    page = visit(plain_page())
    cell(page, "L0H2").click()
    expect(card(page, "L0H2")).to_be_visible()
    cell(page, "L2H0").click()
    expect(card(page, "L2H0")).to_be_visible()
    expect(card(page, "L0H2")).to_have_count(0)
    page.go_back()
    expect(card(page, "L0H2")).to_be_visible()


def test_labels_name_head_role_and_strength(visit: Visit) -> None:
    from playwright.sync_api import expect

    page = visit(plain_page())
    expect(cell(page, "L0H2")).to_have_accessible_name("L0H2: previous token, firm")
    expect(cell(page, "L2H1")).to_have_accessible_name("L2H1: [SEP], tentative")
    expect(cell(page, "L1H2")).to_have_accessible_name("L1H2: no role")


def test_the_map_shows_any_score_and_roles_again(visit: Visit) -> None:
    from playwright.sync_api import expect

    page = visit(plain_page())
    choice = page.get_by_label("Colour by")
    choice.select_option(label=PREVIOUS)
    expect(cell(page, "L0H2")).to_have_accessible_name(f"L0H2: {PREVIOUS} .997, chance .050")
    expect(cell(page, "L1H0")).to_have_accessible_name(f"L1H0: {PREVIOUS} .710, chance .050")
    expect(cell(page, "L2H0")).to_have_accessible_name(re.compile(r" \.041, chance \.050, not above chance$"))
    assert cell(page, "L1H0").inner_text() == ".71"
    choice.select_option(label="roles")
    expect(cell(page, "L0H2")).to_have_accessible_name("L0H2: previous token, firm")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_numbers_can_be_read_on_every_colour_of_the_scale(visit: Visit, violations: Judge, scheme: str) -> None:
    page = visit(plain_page(), color_scheme=scheme)
    page.get_by_label("Colour by").select_option(label="Title of surface.breadth")
    assert cell(page, "L1H1").inner_text() == "0.96"  # as on the bar below the map
    assert violations(page, "color-contrast", within="table[role=grid]") == []


def test_a_role_is_singled_out_until_it_is_pressed_again(visit: Visit) -> None:
    from playwright.sync_api import expect

    def opacity() -> list[float]:
        """Of the head with the role and of one without."""
        places = (cell(page, name).locator("..") for name in ("L0H2", "L2H0"))
        return [float(place.evaluate("(element) => getComputedStyle(element).opacity")) for place in places]

    page = visit(plain_page(), reduced_motion="reduce")
    button = page.get_by_role("button", name=re.compile("previous token"))
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    own, other = opacity()
    assert own == 1
    assert other < 0.5
    button.click()
    expect(button).to_have_attribute("aria-pressed", "false")
    assert opacity() == [1, 1]


# ------------------------------------------------------------------------------------------------------------ the card


def test_an_address_opens_a_card_and_its_buttons_lead_around(visit: Visit) -> None:
    from playwright.sync_api import expect

    page = visit(plain_page(), "#L2H3")
    expect(card(page, "L2H3")).to_be_visible()
    page.get_by_role("button", name="Next head").click()
    expect(card(page, "L0H0")).to_be_visible()
    expect(page.get_by_role("button", name="Next head")).to_be_focused()
    page.get_by_role("button", name="Previous head").click()
    expect(card(page, "L2H3")).to_be_visible()
    page.get_by_role("button", name="Close").click()
    expect(card(page, "L2H3")).to_have_count(0)


@pytest.mark.parametrize("address", ["#L3H0", "#L0H4", "#L99999999999999999999H0", "#L0H2x"])
def test_an_address_of_no_head_opens_nothing(visit: Visit, address: str) -> None:
    from playwright.sync_api import expect

    page = visit(plain_page(), address)
    expect(page.get_by_role("region", name=re.compile(r"^L\d"))).to_have_count(0)
    cell(page, "L0H2").click()
    expect(card(page, "L0H2")).to_be_visible()


def test_a_card_tells_roles_scores_neighbours_and_effects(visit: Visit) -> None:
    from playwright.sync_api import expect

    page = visit(annotated_page(), "#L0H2")
    own = card(page, "L0H2")
    expect(own).to_contain_text(".997")
    expect(own).to_contain_text("rises by .250 [.125, .375] nats a token")
    expect(own.get_by_role("link", name="L0H1")).to_be_visible()
    expect(own.get_by_role("link", name="L0H3")).to_be_visible()


def test_a_card_draws_every_share_of_its_texts_and_corpus_words_stay_words(visit: Visit) -> None:
    from playwright.sync_api import expect

    page = visit(annotated_page(), "#L0H2")
    texts = page.get_by_role("region", name="Texts on which L0H2 is strongest")
    assert texts.get_by_role("listitem").all_inner_texts() == [
        "the → the .90",
        "dog → the .42",
        "bar\u2028ks → dog .50",
        f"bar\u2028ks → {EVIL} .25",
    ]
    boxes = texts.locator("svg path").evaluate_all("(paths) => paths.map((path) => path.getBoundingClientRect().width)")
    assert len(boxes) == 4
    assert min(boxes) > 5
    beside = texts.locator("svg g").evaluate_all("(arcs) => arcs.map((arc) => arc.classList.contains('arcs-beside'))")
    assert beside == [True, True, True, False]  # what the role is about lies on top
    expect(texts).to_contain_text("Previous token in 1 of 2 places: .50 of the attention goes there on average.")
    expect(texts.get_by_text(EVIL, exact=True)).to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_contain_text(EVIL)


def test_a_head_whose_role_no_text_shows_says_so(visit: Visit) -> None:
    from playwright.sync_api import expect

    page = visit(annotated_page(), "#L0H1")
    expect(card(page, "L0H1").get_by_role("region", name="On words of the corpus")).to_contain_text(
        "31 have a place for the role coreference, and none shows it"
    )
    expect(page.get_by_role("region", name="Texts on which L0H1 is strongest")).to_have_count(0)


@pytest.mark.parametrize(("name", "is_near"), [("L0H2", True), ("L2H3", False)])
def test_the_nearest_heads_are_said_not_to_be_near_where_they_are_not(visit: Visit, name: str, is_near: bool) -> None:
    from playwright.sync_api import expect

    own = card(visit(annotated_page(), f"#{name}"), name)
    expect(own.get_by_role("heading", name="Nearest heads")).to_be_visible()
    expect(own.get_by_text("None is near, which would be under .231.")).to_have_count(0 if is_near else 1)


def test_a_head_without_a_role_says_so(visit: Visit) -> None:
    from playwright.sync_api import expect

    expect(card(visit(plain_page(), "#L1H2"), "L1H2")).to_contain_text("No role")


# -------------------------------------------------------------------------------------------------------------- tables


def relations(page: Page) -> Locator:
    return page.get_by_role("table", name="Relations", exact=True)


def numbers(page: Page) -> list[str]:
    """Of the relations how often each was asked, from top to bottom; folded subtypes are not shown."""
    cells = relations(page).locator("td[data-label=Decisions]:visible")
    return [re.split(r"\s", text)[0] for text in cells.all_inner_texts()]


def test_a_heading_sorts_its_table_by_number_and_gives_the_first_order_back(visit: Visit) -> None:
    from playwright.sync_api import expect

    page = visit(annotated_page())
    heading = relations(page).get_by_role("columnheader", name="Decisions")
    first = numbers(page)
    heading.get_by_role("button").click()
    expect(heading).to_have_attribute("aria-sort", "descending")
    assert numbers(page) == ["1,200", "700", "690", "500", "6,000"]  # of all relations together last
    heading.get_by_role("button").press("Enter")
    expect(heading).to_have_attribute("aria-sort", "ascending")
    assert numbers(page) == ["500", "690", "700", "1,200", "6,000"]
    heading.get_by_role("button").press("Space")
    expect(heading).not_to_have_attribute("aria-sort", re.compile("ending"))
    assert numbers(page) == first


def test_a_subtype_stays_with_its_relation(visit: Visit) -> None:
    page = visit(annotated_page())
    relations(page).get_by_role("columnheader", name="Decisions").get_by_role("button").click()
    rows = relations(page).locator("tbody > tr").all_inner_texts()
    (folded,) = [place for place, text in enumerate(rows) if "subtype" in text]
    assert "690" in rows[folded - 1]


def test_on_a_phone_a_menu_sorts(visit: Visit) -> None:
    page = visit(annotated_page(), viewport={"width": 400, "height": 800})
    page.get_by_label("Sort by").first.select_option(label="Decisions, lowest first")
    assert numbers(page) == ["500", "690", "700", "1,200", "6,000"]


def test_a_table_is_taken_along_as_csv(visit: Visit) -> None:
    page = visit(annotated_page())
    with page.expect_download() as download:
        page.get_by_role("button", name="Download as CSV: Relations", exact=True).click()
    assert download.value.suggested_filename == "relations.csv"
    rows = list(csv.DictReader(Path(download.value.path()).read_text(encoding="utf-8").splitlines()))
    (row,) = [row for row in rows if row["metric"] == "syntax.dep_to_head[obj]"]
    told = {"decisions": "500", "documents": "40", "head": "L2H0", "held_out": "0.72", "chance": "0.08"}
    assert {name: row[name] for name in told} == told
    assert float(row["low"]) == pytest.approx(0.69)
    assert sorted(row["decisions"] for row in rows) == sorted(["1200", "700", "690", "90", "500", "6000"])


# ------------------------------------------------------------------------------------------------ when things are amiss


def test_a_page_that_found_nothing_says_so_first(visit: Visit) -> None:
    from playwright.sync_api import expect

    page = visit(page_without_roles())
    expect(page.get_by_text("No head has a role")).to_be_visible()
    labels = [link.get_attribute("aria-label") for link in page.get_by_role("grid").get_by_role("link").all()]
    assert [(label or "").partition(": ")[2] for label in labels] == ["no role"] * 12


def test_after_a_failed_self_check_scores_are_shown_and_roles_are_not(visit: Visit) -> None:
    from playwright.sync_api import expect

    page = visit(failed_page(), "#L0H2")
    expect(page.get_by_role("definition").filter(has_text="1 of 12 heads differs")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("previous token"))).to_have_count(0)
    expect(card(page, "L0H2")).to_contain_text(".997")
    expect(card(page, "L0H2")).not_to_contain_text("attends to")
    page.get_by_label("Colour by").select_option(label=PREVIOUS)
    expect(cell(page, "L0H2")).to_have_accessible_name(f"L0H2: {PREVIOUS} .997, chance .050")


# ------------------------------------------------------------------------------------------------------- a large model


@pytest.mark.slow
def test_a_large_model_is_a_page_of_modest_size_that_answers_soon(visit: Visit) -> None:
    """Seconds are of the processor, by all threads of the page: by the clock a busy machine takes longer."""
    page = visit(large_page(), "#L47H62")  # the three are one test, since the page takes long to make
    assert len(large_page().encode()) < 15e6
    card(page, "L47H62").wait_for()
    page.locator("#L47H62 a").focus()
    assert press(page, "ArrowRight") == "L47H63"
    page.keyboard.press("Enter")
    card(page, "L47H63").wait_for()
    assert processor_seconds(page) < 3
    assert sideways(page, 400) == 0


def processor_seconds(page: Page) -> float:
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    return next(m["value"] for m in session.send("Performance.getMetrics")["metrics"] if m["name"] == "ProcessTime")
