"""Figures show what roles, scores and distances say, in the colours of the page, small, quick and always the same."""

from __future__ import annotations

import io
import re
import tempfile
import time
from collections import Counter
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from report_pages import NAN, at, table

from headlens.behaviour.similarity import Similarity
from headlens.files import Write
from headlens.report import plots
from headlens.report.plots import cluster_letter, draw_figures, figure_writers, key_scores
from headlens.report.sheets import KINDS
from headlens.roles.catalogue import CLAIMS, RULES
from headlens.roles.role import HeadRole, Role
from headlens.roles.table import Roles
from headlens.scores import Metric, ScoreTable

STYLE = Path(plots.__file__).parent / "templates" / "style.css"
SVG = "{http://www.w3.org/2000/svg}"

PREVIOUS = Role("previous_token", "P", "previous token", "position", 10, "g", "s")
COMMA = Role("comma", ",", "comma & <co>", "punctuation", 8, "g", "s")
SINK = Role("cls", "C", "[CLS]", "sink", 14, "g", "s")
BROAD = Role("broad", "B", "broad", "broad", 15, "g", "s")


def held(role: Role, layer: int, head: int, metric: str, *, is_firm: bool = True, excess: float = 3.0) -> HeadRole:
    numbers = {"value": 0.9, "low": 0.8, "high": 1.0, "chance": 0.1, "null": 0.1, "q": 0.01, "support": 10.0}
    return HeadRole(
        role, layer, head, metric, **numbers, null_name="chance", excess=excess, is_firm=is_firm, sentence="s"
    )


def scores() -> ScoreTable:
    """3 x 4 heads; L2H3 is absent."""
    values = {
        "position.mass[-1]": at(0.04, {(0, 1): 0.9, (2, 3): NAN}),
        "surface.comma": at(0.02, {(1, 0): 0.7, (2, 3): NAN}),
        "surface.cls": at(0.1, {(1, 2): 0.8, (2, 3): NAN}),
    }
    return table(values, with_macro=False)


def roles() -> Roles:
    return Roles(
        3,
        4,
        (COMMA, PREVIOUS, SINK, BROAD),
        (
            held(PREVIOUS, 0, 1, "position.mass[-1]"),
            held(SINK, 0, 1, "surface.cls"),  # L0H1 is a previous-token head all the same
            held(COMMA, 1, 0, "surface.comma", is_firm=False),
            held(SINK, 1, 2, "surface.cls"),
            held(SINK, 1, 3, "surface.cls", is_firm=False, excess=1.0),
        ),
    )


def similarity(heads: int = 6, clusters: int = 2) -> Similarity:
    place = np.random.default_rng(0).normal(size=(heads, 2))
    cluster = np.arange(heads) % clusters
    return Similarity(
        tuple((0, head) for head in range(heads)), np.zeros((heads, heads)), place, cluster, 100, 9, 0.25, 0.5
    )


@cache
def all_files() -> dict[str, bytes]:
    return contents(figure_writers(scores(), roles(), similarity(), model="Tiny"))


def contents(files: dict[str, Write]) -> dict[str, bytes]:
    """What the writers write."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, write in files.items():
            write(Path(folder) / name)
            found[name] = (Path(folder) / name).read_bytes()
    return found


def drawn(name: str) -> str:
    return all_files()[f"{name}.svg"].decode()


def role_map(of: Roles, *, given: ScoreTable | None = None, model: str = "") -> dict[str, bytes]:
    return contents(figure_writers(given or scores(), of, model=model))


def texts(svg: str) -> Counter[str]:
    return Counter(
        (element.text or "").strip() for element in ElementTree.fromstring(svg).iter(f"{SVG}text") if element.text
    )


def looks(svg: str) -> dict[str, str]:
    """The style of each class."""
    return dict(re.findall(r"\.(s\d+)\{(.*?)\}", svg))


def boxes(svg: str, colour: str, *, what: str = "fill") -> int:
    """How many rectangles of a colour there are, however many share a path."""
    classes = looks(svg)
    count = 0
    for path in ElementTree.fromstring(svg).iter(f"{SVG}path"):
        look = path.get("style") or classes.get(path.get("class", ""), "")
        if re.search(rf"(?:^|[\s;]){what}:\s*{colour}", look):
            count += len(re.findall("z", path.get("d", "")))
    return count


def filled_path(svg: str, colour: str) -> str:
    """Outlines of everything that is filled with a colour."""
    classes = looks(svg)
    paths = ElementTree.fromstring(svg).iter(f"{SVG}path")
    styles = ((path.get("d", ""), path.get("style") or classes.get(path.get("class", ""), "")) for path in paths)
    return "".join(outline for outline, style in styles if re.search(rf"fill:\s*{colour}", style))


# ---------------------------------------------------------------------------------------------------------- the colours


def test_colours_are_those_of_the_page() -> None:
    light = STYLE.read_text(encoding="utf-8").partition("@media")[0]
    variables = dict(re.findall(r"--([\w-]+):(#[0-9a-f]{6})", light))
    text = STYLE.read_text(encoding="utf-8")
    for kind, tone in KINDS.items():
        (lent,) = set(re.findall(rf"\.t-{kind}\{{--f:var\(--(\w+)\)", text))
        assert (tone.fill, tone.line, tone.text) == tuple(variables[f"{lent}{end}"] for end in ("", "-line", "-text"))


def test_every_kind_of_role_has_a_colour() -> None:
    kinds = {rule.role.kind for rule in RULES} | {claim.role.kind for claim in CLAIMS}
    assert kinds <= KINDS.keys()


# ---------------------------------------------------------------------------------------------------------- the figures


def test_the_role_map_shows_labels_firm_filled_and_tentative_outlined() -> None:
    svg = drawn("role-map")
    # a box on the map and one in the legend, for those that are the label of a head
    assert boxes(svg, KINDS["position"].fill) == 2
    assert boxes(svg, KINDS["sink"].fill) == 2
    assert boxes(svg, KINDS["sink"].line, what="stroke") == 1
    assert boxes(svg, KINDS["punctuation"].fill) == 1
    assert boxes(svg, KINDS["punctuation"].line, what="stroke") == 1
    assert boxes(svg, KINDS["broad"].fill) == 0
    assert boxes(svg, plots.PALETTE["rule"], what="stroke") == 12 - 4 - 1  # without a role, and there
    seen = texts(svg)
    assert {letter: seen[letter] for letter in "P,CB"} == {"P": 2, ",": 2, "C": 3, "B": 1}
    assert (seen["1 firm"], seen["1 tentative"], seen["1 firm, 1 tentative"], seen["none"]) == (1, 1, 1, 1)
    assert seen["no such head"] == 1
    assert seen["comma & <co>"] == 1
    assert all(seen[number] == 1 for number in ("L0", "L1", "L2", "0", "1", "2", "3"))


def test_letters_stand_in_their_cells() -> None:
    svg = drawn("role-map")
    root = ElementTree.fromstring(svg)
    at_letter = [
        (float(text.get("x", "")), float(text.get("y", ""))) for text in root.iter(f"{SVG}text") if text.text == "C"
    ]
    corners = re.findall(r"M([\d.]+) ([\d.]+)", filled_path(svg, KINDS["sink"].fill))
    cells = [(float(left), float(top)) for left, top in corners]
    filled = [(x, y) for x, y in at_letter if any(0 < x - left < 40 and 0 < y - top < 28 for left, top in cells)]
    assert len(filled) == len(cells) == 2


def test_the_counts_are_of_heads_by_role_and_layer() -> None:
    svg = drawn("roles-by-layer")
    seen = texts(svg)
    # previous: 1 in L0; cls: 1 in L0 and 2 in L1; comma: 1 in L1
    assert (seen["1"], seen["2"]) == (3, 1)
    assert (seen["1 head, 1 firm"], seen["1 head, 0 firm"], seen["3 heads, 2 firm"], seen["none"]) == (1, 1, 1, 1)
    assert boxes(svg, plots.PALETTE["q6"]) == 0  # those cells are paths without an end
    darkest = [name for name, look in looks(svg).items() if f"fill:{plots.PALETTE['q6']}" in look]
    in_class = len(re.findall(rf'class="{darkest[0]}"', svg)) if darkest else 0
    assert in_class + len(re.findall(rf'style="fill:\s*{plots.PALETTE["q6"]}', svg)) == 1  # the 2 is the most


def test_a_head_with_a_role_by_two_metrics_counts_once() -> None:
    twice = Roles(3, 4, (SINK,), (held(SINK, 0, 0, "surface.novel"), held(SINK, 0, 0, "surface.first")))
    assert texts(role_map(twice)["roles-by-layer.svg"].decode())["1 head, 1 firm"] == 1


def test_scores_behind_the_roles_have_a_map() -> None:
    assert key_scores(scores(), roles()) == ["surface.comma", "position.mass[-1]", "surface.cls"]
    figures = ("role-map", "roles-by-layer", "heat-surface.comma", "heat-position.mass_-1", "heat-surface.cls")
    assert list(all_files()) == [f"{name}.{end}" for name in (*figures, "similarity-map") for end in ("svg", "png")]
    seen = texts(drawn("heat-position.mass_-1"))
    assert seen["Tiny · position.mass[-1]"] == 1
    assert any(text.startswith("chance ") for text in seen)
    assert seen[".900"] >= 1


def test_a_metric_that_is_not_in_the_table_has_no_map() -> None:
    other = Roles(3, 4, (PREVIOUS,), (held(PREVIOUS, 0, 0, "position.novel"),))
    assert key_scores(scores(), other) == []


def test_there_are_six_maps_at_most() -> None:
    names = [f"position.mass[{offset}]" for offset in range(9)]
    many = [Role(f"r{place}", "A", "r", "position", place, "g", "s") for place in range(9)]
    one_each = tuple(held(role, 0, place % 4, name) for place, (role, name) in enumerate(zip(many, names, strict=True)))
    given = table({name: at(0.1, {}) for name in names}, with_macro=False)
    assert key_scores(given, Roles(3, 4, tuple(many), one_each)) == names[:6]


def test_names_of_files_are_safe_and_no_two_are_the_same() -> None:
    names = ["syntax.dep_to_head[a:b]", "syntax.dep_to_head[a/b]", f"syntax.dep_to_head[{'x' * 300}]"]
    kinds = [Role(f"r{place}", "A", "r", "syntax", place, "g", "s") for place in range(3)]
    of = Roles(3, 4, tuple(kinds), tuple(held(role, 0, 0, name) for role, name in zip(kinds, names, strict=True)))
    files = figure_writers(table({name: at(0.1, {}) for name in names}, with_macro=False), of)
    heats = [name for name in files if name.startswith("heat-") and name.endswith(".svg")]
    assert heats[:2] == ["heat-syntax.dep_to_head_a_b.svg", "heat-syntax.dep_to_head_a_b-2.svg"]
    assert len(heats[2]) < 100


def test_the_map_of_heads_names_them_and_their_clusters() -> None:
    svg = drawn("similarity-map")
    seen = texts(svg)
    assert all(seen[f"L0H{head}"] == 1 for head in range(6))
    assert (seen["a: 3 heads"], seen["b: 3 heads"]) == (1, 1)
    assert len(re.findall("<use ", svg)) == 6 + 2
    assert any("0.25" in text for text in seen)


def test_many_heads_have_no_names_and_more_than_five_clusters_come_hollow() -> None:
    svg = contents(figure_writers(scores(), None, similarity(201, 7)))["similarity-map.svg"].decode()
    assert not any(text.startswith("L0H") for text in texts(svg))
    hollow = {name: look for name, look in looks(svg).items() if f"fill:{plots.PALETTE['bg']}" in look}
    assert {re.search("stroke:(#\\w+)", look)[1] for look in hollow.values()} == {  # type: ignore[index]
        KINDS["syntax"].line,
        KINDS["punctuation"].line,
    }


def test_distances_are_drawn_on_one_scale() -> None:
    square = Similarity(
        ((0, 0), (0, 1), (0, 2)),
        np.zeros((3, 3)),
        np.array([[0, 0], [3, 0], [0, 4.0]]),
        np.zeros(3, int),
        9,
        9,
        0.1,
        0.5,
    )
    svg = contents(figure_writers(scores(), None, square))["similarity-map.svg"].decode()
    marks = [(float(x), float(y)) for x, y in re.findall(r'<use [^>]*x="([\d.]+)" y="([\d.]+)"', svg)][:3]
    (origin, right, below) = (np.array(mark) for mark in marks)
    assert (right - origin)[0] / 3 == pytest.approx((below - origin)[1] / 4, rel=1e-3)
    assert (right - origin)[1] == pytest.approx(0, abs=0.02)


def test_what_is_not_given_is_not_drawn() -> None:
    assert figure_writers(scores(), None) == {}
    assert list(figure_writers(scores(), None, similarity())) == ["similarity-map.svg", "similarity-map.png"]
    assert list(figure_writers(scores(), Roles(3, 4, (), ()))) == ["role-map.svg", "role-map.png"]


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (1, 40), (40, 1)])
def test_any_shape_is_drawn(layers: int, heads: int) -> None:
    values = np.full((1, layers, heads), 0.5)
    given = ScoreTable((Metric("surface.cls", "t", "m", "share"),), values, values, values, values, np.array([NAN]))
    of = Roles(layers, heads, (SINK,), (held(SINK, layers - 1, heads - 1, "surface.novel"),))
    files = role_map(of, given=given)
    assert texts(files["role-map.svg"].decode())["C"] == 2
    assert texts(files["roles-by-layer.svg"].decode())["1"] >= 1


# ---------------------------------------------------------------------------------------------------------------- files


def test_the_folder_holds_each_figure_twice_and_nothing_of_an_earlier_profile(tmp_path: Path) -> None:
    (tmp_path / "heat-old.svg").write_text("old")
    (tmp_path / "heat-mine.txt").write_text("mine")
    (tmp_path / "notes.svg").write_text("mine")
    written = draw_figures(scores(), Roles(3, 4, (), ()), None, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in written} | {
        "heat-mine.txt",
        "notes.svg",
    }
    assert [path.name for path in written] == ["role-map.svg", "role-map.png"]
    for path in written:
        start = path.read_bytes()[:8]
        assert start == b"\x89PNG\r\n\x1a\n" if path.suffix == ".png" else start.startswith(b"<?xml")


def test_bytes_are_the_same_at_any_time_under_any_setting_of_the_user_and_no_trace_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import matplotlib.pyplot as plt

    first, before = all_files(), dict(plt.rcParams)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    with plt.rc_context({"axes.grid": True, "font.family": "monospace", "lines.marker": "x", "path.sketch": (1, 9, 2)}):
        inside = dict(plt.rcParams)
        paths = draw_figures(scores(), roles(), similarity(), tmp_path, model="Tiny")
        assert dict(plt.rcParams) == inside
    assert {path.name: path.read_bytes() for path in paths} == first
    assert dict(plt.rcParams) == before
    assert plt.get_fignums() == []


def test_no_date_or_program_is_told() -> None:
    for name, content in all_files().items():
        words = (b"tIME", b"tEXt") if name.endswith(".png") else (b"<metadata", b"date", b"matplotlib")
        assert [word for word in words if word in content] == []


@pytest.mark.parametrize("model", ["<script>alert(1)</script>", "a $x$ & b", "模型", "a\x00\nb\udcff", "x" * 500])
def test_any_name_of_a_model_is_drawn_as_text(model: str) -> None:
    svg = role_map(Roles(3, 4, (), ()), model=model)["role-map.svg"].decode()
    (line,) = [text for text in texts(svg) if "filled: firm" in text]
    shown = line.removesuffix(" · filled: firm, outlined: tentative, empty: no role")
    assert shown == {"a\x00\nb\udcff": "a□□b□", "x" * 500: "x" * 89 + "…"}.get(model, model)
    assert "<script" not in svg


def test_svg_is_plain_and_has_a_title() -> None:
    svg = drawn("role-map")
    root = ElementTree.fromstring(svg)
    assert root.find(f"{SVG}title").text == "What each head attends to"  # type: ignore[union-attr]
    assert root.get("role") == "img"
    referenced = set(re.findall(r"#([\w-]+)[\")]", svg)) - set(re.findall(r"#[0-9a-f]{6}", svg))
    there = {element.get("id") for element in root.iter()}
    assert {name for name in referenced if not re.fullmatch("[0-9a-f]{6}", name)} <= there
    assert "http" not in re.sub(r'xmlns[:\w]*="[^"]*"', "", svg)
    assert "@import" not in svg


def test_png_and_svg_are_of_one_size() -> None:
    from PIL import Image

    for name, picture in all_files().items():
        if name.endswith(".png"):
            width, height = Image.open(io.BytesIO(picture)).size
            box = ElementTree.fromstring(drawn(name.removesuffix(".png"))).get("viewBox", "").split()
            assert (width / 2, height / 2) == pytest.approx((float(box[2]), float(box[3])), abs=1)


def test_letters_are_drawn_in_the_png_too() -> None:
    """A filled cell of the map: most of it is of its colour, and some is of the letter's."""
    from PIL import Image

    image = np.asarray(Image.open(io.BytesIO(all_files()["role-map.png"])).convert("RGB")).astype(int)
    ((left, top, right, bottom), *_) = re.findall(
        r"M(\d+) (\d+)L(\d+) \2L\3 (\d+)L\1 \4(?:L\1 \2)?z", filled_path(drawn("role-map"), KINDS["position"].fill)
    )
    cell = image[2 * int(top) : 2 * int(bottom), 2 * int(left) : 2 * int(right)]
    blue = tuple(int(KINDS["position"].fill[place : place + 2], 16) for place in (1, 3, 5))
    assert 0.7 < (cell == blue).all(axis=-1).mean() < 0.98
    assert 0.01 < (cell > 240).all(axis=-1).mean() < 0.3


def large() -> tuple[ScoreTable, Roles, Similarity]:
    """48 x 64 heads, each with a role."""
    generator = np.random.default_rng(0)
    names = [rule.metric for rule in RULES[:8]]
    names = list(dict.fromkeys(names))
    values = generator.beta(1, 4, (len(names), 48, 64))
    metrics = tuple(Metric(name, name, "m", "share") for name in names)
    given = ScoreTable(metrics, values, values, values, values, np.full(len(names), 0.1))
    asked = tuple(rule.role for rule in RULES)
    each = tuple(
        held(asked[place % len(asked)], *divmod(place, 64), names[place % len(names)], is_firm=place % 3 > 0)
        for place in range(48 * 64)
    )
    heads = tuple(divmod(place, 64) for place in range(48 * 64))
    distance = np.zeros((len(heads), len(heads)))
    place = generator.normal(size=(len(heads), 2))
    return given, Roles(48, 64, asked, each), Similarity(heads, distance, place, np.arange(3072) % 10, 9, 9, 0.1, 0.5)


def test_a_large_model_is_quick_and_small() -> None:
    given, of, alike = large()
    all_files()  # what is imported and cached counts once
    start = time.process_time()
    files = figure_writers(given, of, alike)
    # under 3 s on a machine of its own; shared cores and the checks of the tests take their part
    assert time.process_time() - start < 8
    written = contents(files)
    assert [name for name, content in written.items() if name.endswith(".svg") and len(content) > 300_000] == []
    seen = texts(written["role-map.svg"].decode())
    letters = Counter(rule.letter for rule in RULES)
    assert sum(seen[letter] for letter in letters) == 48 * 64 + len(RULES)


@pytest.mark.parametrize(("cluster", "letter"), [(0, "a"), (25, "z"), (26, "26")])
def test_clusters_have_letters(cluster: int, letter: str) -> None:
    assert cluster_letter(cluster) == letter
