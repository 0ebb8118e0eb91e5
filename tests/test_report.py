"""The report, read back from its HTML: every number against the scores, every sentence against the rules."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_pages import (
    HEADS,
    LAYERS,
    NAN,
    PROVENANCE,
    UNITS,
    Node,
    at,
    cells,
    full_size,
    metric_sections,
    one_metric,
    planted,
    printed,
    read,
    table,
)

from headlens.errors import OutputError
from headlens.report import render_report, render_summary, write_report
from headlens.report.findings import findings
from headlens.report.sections import own_place
from headlens.roles.catalogue import RULES
from headlens.scores import SCHEMA, Metric, ScoreTable

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def scores() -> ScoreTable:
    return planted()


@pytest.fixture(scope="module")
def page(scores: ScoreTable) -> Node:
    return read(render_report(scores, PROVENANCE))


@pytest.fixture(scope="module")
def large_html() -> str:
    return render_report(full_size(), PROVENANCE)


@pytest.fixture(scope="module")
def large_page(large_html: str) -> Node:
    return read(large_html)


def test_the_head_of_the_page_tells_what_was_run(page: Node) -> None:
    assert page.one("h1").text == "What the 12 heads of Tiny attend to"
    about = page.one("dl", class_="meta")
    lines = [(term.text, words.text) for term, words in zip(about.all("dt"), about.all("dd"), strict=True)]
    assert lines == [
        ("Model", "Tiny, bidirectional, 3 layers × 4 heads, 2 key/value heads a layer, 22,713,216 parameters, float32"),
        ("Corpus", "text.txt, 1 document, 10,158 tokens, 9,031 of them scored"),
        ("Date", "30 November 2026, 10:12 UTC"),
        ("Note", "Two documents were empty."),
        ("Self-check", "✓ passed: all 12 heads recomputed"),
    ]


def test_the_findings_are_what_was_planted(scores: ScoreTable, page: Node) -> None:
    told = [item.text for item in page.one("ul", class_="find").all("li")]
    assert told == [
        "L0H2 attends to the previous token: 1.00 of its mass on average (chance .05); so does L1H0 (.71).",
        "L1H3 attends to the next token: .66 of its mass on average (chance .05).",
        "L2H0 attends to [CLS]: .92 of its mass on average (chance .05).",
        "L2H1 attends to [SEP]: .61 of its mass on average (chance .05; tentative).",
        "L1H1 attends broadly: .96 of the entropy of uniform attention; so does L1H0 (.90).",
    ]
    assert [finding.text for finding in findings(scores)] == told


def test_a_table_without_a_finding_says_so_and_names_the_nearest() -> None:
    flat = {"position.mass[-1]": at(0.1, {(1, 2): 0.498}), "position.mass[1]": at(0.2, {}), "surface.sep": at(0.1, {})}
    told = [finding.text for finding in findings(table(flat))]
    assert told == [
        "No head has a role: none passes a threshold of the 3 rules.",
        "No head attends to the previous token: that takes over .50 of its mass on average; L1H2 comes nearest with "
        ".498 (chance .050).",
        "No head attends to the next token: that takes over .50 of its mass on average; L2H3 comes nearest with .201 "
        "(chance .050).",
    ]
    page = read(render_report(table(flat), {}))
    assert [item.text for item in page.one("ul", class_="find").all("li")] == told
    assert {cell.text for cell in page.one("table", class_="map").one("tbody").all("td")} == {"·"}


def test_sentences_say_attends_and_never_uses(page: Node) -> None:
    assert all(rule.claim.startswith(("attends ", "has weights ")) for rule in RULES)
    assert not re.search(r"\buses?\b", page.text.replace("The heads in", ""))


def test_the_head_map_has_a_letter_for_each_head(page: Node) -> None:
    # [CLS] is always the first token of this table: L0H1's .41 on it is read by the rule of [CLS] alone (over .60)
    grid = page.one("table", class_="map")
    letters = [[cell.text for cell in row.all("td")] for row in grid.one("tbody").all("tr")]
    assert letters == [["·", "·", "P", "·"], ["PB", "B", "·", "N"], ["C", "E", "·", "·"]]
    titles = {cell.attributes["id"]: cell.one("a").attributes["title"] for cell in grid.one("tbody").all("td")}
    assert titles["L0H2"] == "L0H2: attends to the previous token: 1.00 [.98, 1.01] of its mass on average (chance .05)"
    assert titles["L1H0"] == (
        "L1H0: attends to the previous token: .71 [.69, .72] of its mass on average (chance .05); attends broadly: .90 "
        "[.88, .92] of the entropy of uniform attention"
    )
    assert titles["L2H0"] == "L2H0: attends to [CLS]: .92 [.90, .94] of its mass on average (chance .05)"
    assert titles["L0H0"] == "L0H0: no role; nearest broad .500, threshold .85"
    assert [header.text for header in grid.all("th", scope="col")] == ["0", "1", "2", "3"]
    assert [header.text for header in grid.all("th", scope="row")] == ["L0", "L1", "L2"]


def test_a_head_is_outlined_unless_its_whole_interval_passes(page: Node) -> None:
    tentative = {cell.attributes["id"] for cell in page.all("td", class_="tentative")}
    assert tentative == {"L2H1"}  # .61 with an interval from .59


def test_the_heads_of_every_role_are_counted_firm_and_tentative(page: Node) -> None:
    rows = [cells(row) for row in page.one("table", class_="counts").one("tbody").all("tr")]
    assert rows == [
        ["Pprevious token", "2", "0", "L0H2, L1H0"],
        ["Nnext token", "1", "0", "L1H3"],
        ["C[CLS]", "1", "0", "L2H0"],
        ["E[SEP]", "0", "1", "tentative L2H1"],
        ["Bbroad", "2", "0", "L1H0, L1H1"],
        ["·no role", "6", "no score beyond a threshold, which is no proof that the head does nothing"],
    ]
    assert "Looked for and not found: comma." in page.text
    glosses = {button.text: button.attributes["title"] for button in page.all("button", class_="role")}
    assert glosses["Pprevious token"] == "over .50 of its mass on average"


@pytest.mark.parametrize(("holders", "ending"), [(14, "L13H0"), (15, "L11H0 and 3 more")])
def test_one_or_two_heads_of_a_role_are_not_hidden(holders: int, ending: str) -> None:
    mass = np.where(np.arange(20) < holders, 0.9, 0.1)[:, None] - np.arange(20)[:, None] / 1e4
    page = read(render_report(table({"position.mass[-1]": mass}), {}))
    first, *_ = page.one("table", class_="counts").one("tbody").all("tr")
    assert cells(first)[:2] == ["Pprevious token", str(holders)]
    assert cells(first)[3].endswith(ending)


def test_every_number_in_the_tables_of_heads_is_that_of_the_scores(scores: ScoreTable, page: Node) -> None:
    sections = metric_sections(page)
    assert list(sections) == [metric.name for metric in scores.metrics if not metric.is_macro]
    for name, section in sections.items():
        index, macro = scores.index(name), scores[f"{name}.macro"]
        share = name not in UNITS
        for best in section.all("table", class_="tbl"):
            values = []
            for row in best.one("tbody").all("tr"):
                head, *numbers = cells(row)
                place = tuple(int(digits) for digits in re.findall(r"\d+", head))
                ends = [scores.low[index][place], scores.high[index][place]]
                expected = [scores[name][place], *ends, scores.chance[index], macro[place]]
                value, low, high, chance, by_input = (printed(x, 3 if share else 2, zero=not share) for x in expected)
                assert numbers == [value, f"{low} to {high}", chance, by_input, "9,031"], (name, head)
                values.append(scores[name][place])
            is_lowest = best.one("caption").text == "Lowest heads"
            ranked = np.sort(scores[name], axis=None) if is_lowest else -np.sort(-scores[name], axis=None)
            assert values == list(ranked[: len(values)]), name


def test_heads_at_both_ends_are_listed_where_chance_is_no_floor(page: Node) -> None:
    captions = {
        name: [caption.text for caption in section.all("caption") if "heads" in caption.text.split()[-1]]
        for name, section in metric_sections(page).items()
    }
    assert captions["surface.cls"] == ["Highest heads"]
    assert captions["position.distance"] == captions["surface.breadth"] == ["Highest heads", "Lowest heads"]


def test_all_values_stand_on_the_page(scores: ScoreTable, page: Node) -> None:
    for name, section in metric_sections(page).items():
        rows = section.one("table", class_="values").one("tbody").all("tr")
        share = name not in UNITS
        found = [[cell.text for cell in row.all("td")] for row in rows]
        assert found == [[printed(x, 3 if share else 2, zero=not share) for x in layer] for layer in scores[name]], name


def test_facts_of_a_metric_count_the_heads_above_chance(page: Node) -> None:
    section = metric_sections(page)["position.mass[-1]"]
    assert section.one("h3").text == "Title of position.mass[-1]"
    assert section.one("p", class_="meaning").text == "Meaning of position.mass[-1]."
    assert "Chance .050; 2 heads above it; the mean of inputs lies at most .010 away (L0H2)." in section.text


def test_a_macro_metric_alone_gets_a_section() -> None:
    alone = one_metric(Metric("x_y.z.macro", "Z", "M.", "share"))
    page = read(render_report(alone, {}))
    assert list(metric_sections(page)) == ["x_y.z.macro"]
    assert "X y" in [heading.text for heading in page.all("h2")]


def test_a_score_that_all_heads_have_alike_gets_a_line_in_place_of_a_map() -> None:
    ahead = {f"position.mass[{offset}]": np.zeros((LAYERS, HEADS)) for offset in (1, 2)}
    page = read(render_report(table({"position.mass[-1]": at(0.1, {(1, 2): 0.9}), **ahead}), {}))
    assert list(metric_sections(page)) == ["position.mass[-1]"]
    assert (
        "All heads have the same number, so there is no map: .000 for Title of "
        "position.mass[1], Title of position.mass[2]." in page.text
    )
    data = json.loads(page.one("script", id="data").text)
    scales = {metric["name"]: metric["scale"] for metric in data["metrics"]}
    assert scales == {"position.mass[-1]": "chance", "position.mass[1]": "none", "position.mass[2]": "none"}


def test_what_the_first_token_tells_is_not_told_again_of_special_ones() -> None:
    first = at(0.1, {(1, 2): 0.9})
    names = ("contribution.first", "contribution.special", "surface.first", "surface.special")
    scores = table(dict.fromkeys(names, first))
    assert [metric.name for metric in own_place(scores)] == ["contribution.first", "surface.first"]
    apart = table(dict.fromkeys(names, first) | {"surface.special": at(0.1, {(1, 2): 0.8})})
    assert "surface.special" in [metric.name for metric in own_place(apart)]


def test_what_is_not_defined_is_blank_and_said_so() -> None:
    with_gap = at(0.3, {(1, 1): NAN})
    nothing = np.full((LAYERS, HEADS), NAN)
    scores = table({"position.mass[-1]": with_gap, "surface.cls": nothing})
    page = read(render_report(scores, {}))
    sections = metric_sections(page)
    assert "There is no map: the score is not defined for any head." in sections["surface.cls"].text
    assert sections["surface.cls"].all("svg") == sections["surface.cls"].all("table") == []
    assert "defined for 11 of 12 heads" in sections["position.mass[-1]"].text
    assert "Crossed out: not defined for that head." in sections["position.mass[-1]"].text
    values = sections["position.mass[-1]"].one("table", class_="values").one("tbody").all("td")
    assert values[5].text == "not defined"
    assert values[5].one("span").attributes["class"] == "vh"  # for those who hear the page; the eye sees a blank
    gap = page.one("td", id="L1H1")
    assert gap.attributes["class"] == "gap"
    assert gap.one("a").attributes["aria-label"] == gap.one("a").attributes["title"] == "L1H1: not defined"
    assert gap.text == ""
    assert "nan" not in page.text.lower().split()


def test_no_chance_level_and_no_interval_are_said_in_words() -> None:
    one = np.full((1, 1, 1), 0.7)
    none = np.full((1, 1, 1), NAN)
    scores = ScoreTable((Metric("position.mass[-1]", "P", "M.", "share"),), one, 100 * one, none, none, none[0, 0])
    page = read(render_report(scores, {}))
    assert cells(page.one("table", class_="map").one("tbody").one("tr"))[1] == "P"
    section = metric_sections(page)["position.mass[-1]"]
    highest = section.all("table", class_="tbl")[0]
    assert cells(highest.one("tbody").one("tr")) == [
        "L0H0",
        ".700",
        "none",
        "not defined",
        "70",
    ]
    assert "No chance level is known" in section.text
    assert (
        page.one("ul", class_="find").one("li").text
        == "L0H0 attends to the previous token: .70 of its mass on average (tentative)."
    )
    assert page.one("h1").text == "What the one head attends to"


def test_a_very_large_table_renders() -> None:
    rng = np.random.default_rng(1)
    html = render_report(
        table({"position.mass[-1]": rng.beta(1, 9, (48, 64)), "surface.cls": rng.random((48, 64))}), {}
    )
    page = read(html)
    assert len(page.one("table", class_="map").one("tbody").all("td")) == 48 * 64
    drawings = page.all("svg", class_="heat")
    assert len(drawings) == 2
    assert all(len(drawing.all("path")) < 30 for drawing in drawings)  # one a cell would be far too many
    assert all(section.all("details") == [] for section in metric_sections(page).values())


def test_the_page_reaches_for_nothing_outside(large_html: str, large_page: Node) -> None:
    without_names = large_html.replace("http://www.w3.org/2000/svg", "")  # a name space, never asked for
    assert "://" not in without_names
    for node in large_page.walk():
        for name in ("src", "href", "xlink:href", "srcset", "data", "action"):
            assert node.attributes.get(name, "#").startswith("#"), node.attributes
    assert re.findall(r"url\((?!#)|@import", large_html) == []
    assert not {"link", "iframe", "object", "img"} & {node.tag for node in large_page.walk()}


def test_no_script_runs_but_those_of_the_page(large_html: str, large_page: Node) -> None:
    policy = large_page.one("meta", **{"http-equiv": "Content-Security-Policy"}).attributes["content"]
    others, _, allowed = policy.partition("; script-src ")
    assert others == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    scripts = re.findall(r"<script>(.*?)</script>", large_html, flags=re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert allowed.split() == [f"'sha256-{digest}'" for digest in hashes]
    assert len(scripts) >= 2
    assert not re.search(r"\beval\b|new Function|innerHTML|insertAdjacentHTML|document\.write", "".join(scripts))
    assert not re.search(r"\bfetch\(|XMLHttpRequest|localStorage|sessionStorage", "".join(scripts))
    assert [node for node in large_page.walk() if any(name.startswith("on") for name in node.attributes)] == []


def test_the_page_is_small(large_html: str) -> None:
    assert len(large_html.encode()) < 3_000_000


def test_names_from_outside_are_shown_as_text() -> None:
    evil = Metric("evil.</style><script>", EVIL, f"{EVIL} & more", "share")
    scores = one_metric(evil)
    provenance = {
        "headlens": EVIL,
        "created": EVIL,
        "command": EVIL,
        "model": {"name": EVIL, "dtype": EVIL, EVIL: 1},
        "corpus": {"files": [{"name": EVIL}], "tokens": EVIL},
        "selfcheck": {"passed": True, "line": EVIL, "laws": [{"law": EVIL, "error": EVIL, "tolerance": EVIL}]},
        "notes": [EVIL],
    }
    for html in (render_report(scores, provenance), render_summary(scores, provenance)):
        page = read(html)
        assert EVIL not in html
        assert "alert(1)" not in "".join(re.findall(r"<script>(.*?)</script>", html, flags=re.DOTALL))
        assert f"What the 4 heads of {EVIL} attend to" in page.text
        assert page.all("svg", class_="heat")[0].attributes["aria-label"].startswith(f"Heat map of {EVIL}, 2 layers")


@pytest.mark.parametrize(
    "provenance",
    [
        {},
        *({key: value for key, value in PROVENANCE.items() if key != missing} for missing in PROVENANCE),
        dict.fromkeys(PROVENANCE),
        {key: {} for key in PROVENANCE},
        {key: [] for key in PROVENANCE},
        dict.fromkeys(PROVENANCE, 7),
        {"corpus": {"files": [{}, None, "x"], "documents": "many"}, "model": {"parameters": None, "kv_heads": "?"}},
        {"selfcheck": {"passed": True, "laws": [None, {}]}, "created": "yesterday"},
    ],
    ids=lambda provenance: f"{len(provenance)} keys",
)
def test_no_part_of_the_provenance_is_needed(provenance: dict[str, Any]) -> None:
    scores = table({"surface.cls": np.full((1, 1), 0.7)}, with_macro=False)
    page = read(render_report(scores, provenance))
    read(render_summary(scores, provenance))
    assert "None" not in page.text
    terms = [term.text for term in page.all("dt")]
    assert terms.count("Model") == 1  # its layers and heads are known from the scores
    assert ("Date" in terms) == isinstance(provenance.get("created"), str)


def test_everything_that_is_known_stands_at_the_bottom(page: Node) -> None:
    assert page.one("pre").text == "headlens profile tiny text.txt"
    rows = dict(map(cells, page.one("table", class_="prov").all("tr")[1:]))
    assert rows["model.kv_heads"] == "2"
    assert rows["model.is_causal"] == "no"
    assert rows["corpus.files[0].sha256"] == "ab12"
    assert rows["run.seconds.load"] == "1.25"
    assert rows["versions.torch"] == "2.13.0"
    assert rows["selfcheck.laws[0].error"] == "1.1e-07"
    for rule in RULES:
        assert rule.source in page.text
    for column, meaning in SCHEMA.items():
        assert f"{column}{meaning}" in page.text


def test_after_a_failed_self_check_nothing_is_claimed() -> None:
    scores = table({"position.mass[-1]": at(0.04, {(0, 2): 0.997})})
    laws = [
        {"law": "rows sum to one", "error": 1e-7, "tolerance": 1e-5},
        {"law": "outputs agree", "error": 0.3, "tolerance": 1e-4, "where": "encoder layer 1"},
    ]
    failed = {**PROVENANCE, "selfcheck": {"passed": False, "line": "L1 differs by .3", "laws": laws}}
    page = read(render_report(scores, failed))
    assert page.all("dd")[0].text == "✕ failed: L1 differs by .3"  # before all else
    assert page.all("ul", class_="find") == page.all("table", class_="counts") == []
    assert "No head is said to attend to anything" in page.text
    assert [line.text for line in page.one("ul", class_="broken").all("li")] == [
        "outputs agree: error 0.3, 0.0001 allowed, in encoder layer 1"
    ]
    assert {cell.text for cell in page.one("table", class_="map").one("tbody").all("td")} == {"·"}
    labels = {cell.attributes["aria-label"] for cell in page.one("table", class_="map").all("a")}
    assert labels == {f"L{layer}H{head}: roles withheld" for layer in range(LAYERS) for head in range(HEADS)}
    assert not any("title" in cell.attributes for cell in page.one("table", class_="map").all("a"))
    checks = next(found for found in page.all("table", class_="tbl") if "Laws of" in found.one("caption").text)
    assert [cells(row)[0] for row in checks.one("tbody").all("tr")] == ["outputs agree", "rows sum to one"]
    assert ".997" in page.text  # the scores are shown
    assert "attends to" not in render_summary(scores, failed)


@pytest.mark.parametrize("selfcheck", [None, {}, {"laws": []}])
def test_a_self_check_that_was_not_run_is_not_passed(selfcheck: dict[str, Any] | None) -> None:
    page = read(render_report(table({"surface.cls": at(0.1, {})}), {"selfcheck": selfcheck}))
    lines = dict(zip([term.text for term in page.all("dt")], [words.text for words in page.all("dd")], strict=True))
    assert lines["Self-check"] == "not run"


def test_the_page_can_be_read_with_a_screen_reader(large_page: Node) -> None:
    page = large_page
    assert page.one("html").attributes["lang"] == "en"
    levels = [int(node.tag[1]) for node in page.walk() if re.fullmatch(r"h\d", node.tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    for grid in page.all("table"):
        assert grid.one("caption").text
        assert all(header.attributes.get("scope") in {"col", "row"} for header in grid.all("th"))
    for drawing in page.all("svg"):
        is_decoration = drawing.attributes.get("aria-hidden") == "true"
        assert is_decoration or (drawing.attributes["role"] == "img" and drawing.attributes["aria-label"])


def test_every_link_leads_to_one_place(large_page: Node) -> None:
    page = large_page
    names = [node.attributes["id"] for node in page.walk() if "id" in node.attributes]
    assert len(names) == len(set(names))
    targets = {link.attributes["href"] for link in page.all("a")}
    assert targets <= {f"#{name}" for name in names}
    described = {node.attributes["aria-labelledby"] for node in page.walk() if "aria-labelledby" in node.attributes}
    assert described <= set(names)


def test_the_contents_list_every_metric_by_its_offset(large_page: Node) -> None:
    contents = large_page.one("nav").text
    assert "mass −3 −2 −1 0 +1 +2 +3" in contents
    assert "mass valid −3" in contents


def test_the_same_scores_give_the_same_page() -> None:
    scores = table({"surface.cls": at(0.1, {}), "position.distance": at(4, {})})
    assert render_report(scores, PROVENANCE) == render_report(scores, PROVENANCE)


def test_the_report_is_written_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = table({"surface.cls": np.full((1, 1), 0.7)})
    path = tmp_path / "out" / "report.html"
    write_report(scores, PROVENANCE, path)
    before = path.read_text(encoding="utf-8")
    assert before == render_report(scores, PROVENANCE)

    def half(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:99])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(OutputError, match=r"report.html cannot be written \(No space left"):
        write_report(scores, {}, path)
    assert path.read_text(encoding="utf-8") == before
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]


def test_a_file_name_that_is_no_text_does_not_stop_the_report(tmp_path: Path) -> None:
    scores = table({"surface.cls": np.full((1, 1), 0.7)})
    write_report(scores, {"corpus": {"files": [{"name": "caf\udce9.txt"}]}}, tmp_path / "report.html")
    assert "caf\\udce9.txt" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_summary_stands_alone(scores: ScoreTable) -> None:
    html = render_summary(scores, PROVENANCE)
    page = read(html)
    assert [item.text for item in page.all("li")] == [finding.text for finding in findings(scores)]
    assert [drawing.attributes["aria-label"].split(",")[0] for drawing in page.all("svg")] == [
        "Heat map of Title of position.mass[-1]",
        "Heat map of Title of position.mass[1]",
        "Heat map of Title of surface.cls",
    ]
    assert not {"style", "script", "html", "link"} & {node.tag for node in page.walk()}
    assert "://" not in html
    for node in page.all("p") + page.all("li"):
        assert "color:" in node.attributes["style"] or "color:" in node.parent.attributes["style"]  # type: ignore[union-attr]
