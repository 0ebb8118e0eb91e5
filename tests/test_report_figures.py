"""The pictures of the report, its colours in both themes, and how numbers are printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_pages import NAN, at, table

from headlens.numbers import count, interval, number, probability, signed
from headlens.report.figures import PALETTE, Scale, heat_map, scale_of, sparkline, strip
from headlens.scores import Metric


def test_drawing_is_the_same_each_time() -> None:
    scores = table({"surface.cls": at(0.1, {})})
    assert heat_map(scores, "surface.cls", label="x") == heat_map(scores, "surface.cls", label="x")


def test_what_a_picture_shows_is_escaped() -> None:
    svg = heat_map(table({"surface.cls": at(0.1, {})}), "surface.cls", label='<b>"x" & y')
    assert 'aria-label="&lt;b&gt;&quot;x&quot; &amp; y"' in svg


def cell_colours(svg: str, layers: int, heads: int) -> list[list[str]]:
    """The colour of each cell [layer, head], read off the boxes of all paths; no cell may be drawn twice."""
    (cells,) = re.findall(r"<g transform=[^>]*>(.*?)</g>", svg)
    found = [[""] * heads for _ in range(layers)]
    for boxes, fill in re.findall(r'<path d="([^"]*)" fill="([^"]*)"', cells):
        for start, layer, width in re.findall(r"M(\d+) (\d+)h(\d+)v1H\1z", boxes):
            for head in range(int(start), int(start) + int(width)):
                assert found[int(layer)][head] == ""
                found[int(layer)][head] = re.sub(r"var\(--hl-(\w+),#\w+\)", r"\1", fill)
    return found


def test_cells_at_or_below_chance_are_blank_and_the_highest_is_darkest() -> None:
    values = np.array([[0.05, 0.04, 0.0501], [0.9, 0.5, 0.0]])
    svg = heat_map(table({"surface.cls": values}), "surface.cls", label="x")
    assert cell_colours(svg, 2, 3) == [["bg", "bg", "q0"], ["q6", "q3", "bg"]]
    assert re.search(r">chance \.050</text>", svg)


def test_a_signed_score_has_two_ends_around_zero() -> None:
    values = np.array([[-3.0, -1.9, -0.4, 0.2, 0.5]])  # steps of 6/7 from -3 to 3
    svg = heat_map(table({"position.distance_signed": values}), "position.distance_signed", label="x")
    assert cell_colours(svg, 1, 5) == [["d0", "d1", "d3", "d3", "d4"]]


def test_a_score_below_its_chance_level_keeps_its_colours() -> None:
    values = np.array([[0.2, 0.6, 0.9]])
    svg = heat_map(table({"surface.breadth": values}), "surface.breadth", label="x")
    assert cell_colours(svg, 1, 3) == [["q0", "q3", "q6"]]  # from .2 to chance, 1


def test_a_head_without_a_value_is_crossed_out() -> None:
    svg = heat_map(table({"surface.cls": np.array([[0.5, NAN], [0.7, 0.6]])}), "surface.cls", label="x")
    assert cell_colours(svg, 2, 2)[0][1] == "none"
    (crosses,) = re.findall(r'<path class="absent" d="([^"]*)"', svg)
    left, top, size = 36, 22, (40, 28)
    assert crosses == f"M{left + size[0]} {top + size[1]}L{left + 2 * size[0]} {top}"
    whole = heat_map(table({"surface.cls": np.array([[0.5, 0.1], [0.7, 0.6]])}), "surface.cls", label="x")
    assert "absent" not in whole


def test_cells_of_one_colour_side_by_side_are_one_box_where_there_are_many() -> None:
    values = np.full((20, 64), 0.01)
    values[3, 10:20], values[3, 30] = 0.9, 0.9
    svg = heat_map(table({"surface.cls": values}), "surface.cls", label="x")
    colours = cell_colours(svg, 20, 64)
    assert [place for place, colour in enumerate(colours[3]) if colour == "q6"] == [*range(10, 20), 30]
    assert {colour for layer, row in enumerate(colours) if layer != 3 for colour in row} == {"bg"}
    assert "M10 3h10v1H10zM30 3h1v1H30z" in svg


def test_a_map_of_3072_heads_is_small() -> None:
    """The worst case: no two heads side by side have one colour, and every half pixel of the bar has its tick."""
    svg = heat_map(table({"surface.cls": np.random.default_rng(0).random((48, 64))}), "surface.cls", label="x")
    assert len(svg) < 60_000


def test_the_colour_bar_has_a_tick_for_each_head_and_its_ends_in_numbers() -> None:
    svg = heat_map(table({"surface.cls": np.array([[0.1, 0.5], [0.9, 0.5]])}), "surface.cls", label="x")
    (ticks,) = re.findall(r'<path class="ticks" d="([^"]*)"', svg)
    assert re.fullmatch(r"M[\d.]+ [\d.]+v9(m[\d.]+-9v9)*", ticks)  # from tick to tick
    places = np.cumsum([float(step) for step in re.findall(r"[Mm]([\d.]+)", ticks)])
    # 0 to .9 are 240 pixels from the 36th; equal heads fall together
    assert places == pytest.approx([36 + 240 * value / 0.9 for value in (0.1, 0.5, 0.9)], abs=0.25)
    (dashes,) = re.findall(r'<path class="chance" d="M([\d.]+)', svg)
    assert float(dashes) == pytest.approx(36 + 240 * 0.05 / 0.9, abs=0.06)
    numbers = re.findall(r">([^<>]*)</text>", svg)
    assert numbers == ["0", "1", "L0", "L1", ".000", ".900", "chance .050"]


def test_the_numbers_of_the_listed_heads_stand_in_their_cells() -> None:
    scores = table({"surface.cls": np.array([[0.1, 0.72], [0.3, 0.2]])})
    svg = heat_map(scores, "surface.cls", marked=scores.best("surface.cls", 2), label="x")
    texts = [
        (float(x), float(y), words) for x, y, words in re.findall(r'x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*)</text>', svg)
    ]
    (top,) = [text for text in texts if text[2] == ".720" and text[1] < 60]
    (second,) = [text for text in texts if text[2] == ".300"]
    assert top[0] > second[0]  # head 1 stands right of head 0
    assert top[1] < second[1]  # layer 0 above layer 1


@pytest.mark.parametrize(
    ("values", "chance"),
    [([0.3], 0.3), ([0.0], 0.0), ([-0.2, 0.1], 0.0), ([0.1, 0.2], 0.9), ([0.5, 0.5], NAN), ([0.0, 1.0], 0.0)],
)
def test_the_edges_of_a_scale_rise(values: list[float], chance: float) -> None:
    for unit in ("share", "ratio", "nats", "tokens"):
        metric = Metric("a.b", "", "", unit)
        scale = scale_of(metric, np.array([values]), chance)
        assert (np.diff(scale.edges) > 0).all()
        assert len(scale.edges) == len(scale.colours) + 1


def test_a_value_on_an_edge_is_of_the_step_above_it_and_the_highest_of_the_last() -> None:
    scale = Scale(np.array([0.0, 1.0, 2.0, 3.0]), ("bg", "q0", "q1"))
    assert scale.steps(np.array([-1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0])).tolist() == [0, 0, 0, 1, 2, 2, 2]
    assert scale.colour(1.0) == "q0"


def test_a_small_plot_has_a_tick_for_each_value_and_points_at_one() -> None:
    svg = sparkline(np.array([[0.0, 0.5], [1.0, NAN]]), 0.5, 0.25)
    assert re.findall(r"M([\d.]+) 5v9", svg) == ["2.0", "50.0", "98.0"]
    assert re.findall(r'class="me" d="M([\d.]+)', svg) == ["50.0"]
    assert re.findall(r'class="chance" d="M([\d.]+)', svg) == ["26.0"]


def test_a_small_plot_may_have_a_baseline() -> None:
    assert 'class="rival"' not in sparkline(np.array([[0.0, 1.0]]), 0.5, 0.25)
    svg = sparkline(np.array([[0.0, 1.0]]), 0.5, 0.25, rival=0.75)
    assert re.findall(r'class="rival" d="M([\d.]+)', svg) == ["74.0"]


def test_a_strip_shows_a_share_with_its_interval_beside_its_baselines() -> None:
    svg = strip(0.5, 0.4, 0.65, chance=0.1, others=[0.25, NAN, 1.0])  # 0 to 1 are 94 pixels from the third
    assert re.findall(r'class="dot" cx="([\d.]+)"', svg) == ["50.0"]
    assert re.findall(r'class="reach" d="M([\d.]+) 9H([\d.]+)"', svg) == [("40.6", "64.1")]
    assert re.findall(r"M([\d.]+) 3v12", svg) == ["26.5", "97.0"]
    assert re.findall(r'class="chance" d="M([\d.]+)', svg) == ["12.4"]
    bare = strip(0.5, NAN, NAN, chance=NAN, others=[])
    assert "nan" not in bare
    assert "reach" not in bare
    assert "chance" not in bare


def themes() -> dict[str, dict[str, str]]:
    import headlens.report

    style = (Path(headlens.report.__file__).parent / "templates" / "style.css").read_text()
    light, dark = re.findall(r":root\{(.*?)\}", style, re.DOTALL)[:2]
    colours = [dict(re.findall(r"--([\w-]+):(#[0-9a-f]{6})", block)) for block in (light, dark)]
    return {"light": colours[0], "dark": colours[0] | colours[1]}


TRAITS = ("position", "punctuation", "sink", "broad", "coreference", "syntax", "phrase")


def contrast(one: str, other: str) -> float:
    """Of two colours by the rule of WCAG 2.1."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_figures_and_style_sheet_have_one_palette() -> None:
    light = themes()["light"]
    assert {name: light[f"hl-{name}"] for name in PALETTE} == PALETTE
    assert len(set(PALETTE.values())) == len(PALETTE)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(theme: str) -> None:
    colours = themes()[theme]
    pairs = [(ink, "hl-bg") for ink in ("hl-ink", "hl-ink2", "ink3", "link", "hl-mark")]
    pairs += [(ink, "wash") for ink in ("hl-ink", "ink3")]
    pairs += [(f"{trait}-text", trait) for trait in TRAITS]
    pairs += [("hl-qlo", f"hl-{step}") for step in ("q0", "q1", "q2", "q3", "d1", "d2", "d3", "d4", "d5")]
    pairs += [("hl-qhi", f"hl-{step}") for step in ("q4", "q5", "q6", "d0", "d6")]
    weak = {pair: contrast(colours[pair[0]], colours[pair[1]]) for pair in pairs}
    assert {pair: ratio for pair, ratio in weak.items() if ratio < 4.5} == {}


@pytest.mark.parametrize(
    ("value", "unit", "digits", "text"),
    [
        (0.7311, "share", None, ".731"),
        (1.0, "share", 2, "1.00"),
        (0.0, "share", None, ".000"),
        (0.0004, "share", None, "<.001"),
        (0.004, "share", 2, "<.01"),
        (-0.0004, "share", None, ".000"),
        (-0.25, "share", 2, "−.25"),
        (0.5, "ratio", None, "0.50"),
        (-1.034, "tokens", None, "−1.03"),
        (-0.001, "tokens", None, "0.00"),
        (3.0, "nats", None, "3.00"),
        (NAN, "share", None, "not defined"),
    ],
)
def test_numbers_are_printed_as_the_design_says(value: float, unit: Any, digits: int | None, text: str) -> None:
    assert number(value, unit, digits=digits) == text


def test_counts_and_intervals_are_printed_as_the_design_says() -> None:
    assert (count(9031.0), count(2.5), count(10158), count(NAN)) == ("9,031", "2.5", "10,158", "not defined")
    assert (interval(-0.1, 0.25, "share"), interval(NAN, NAN, "share")) == ("−.100 to .250", "none")


def test_differences_carry_their_sign_and_probabilities_end_at_a_thousandth() -> None:
    found = [signed(value, "share") for value in (0.31, -0.12, 0.0, 0.0002, -0.0002)]
    assert found == ["+.310", "−.120", ".000", "<.001", ".000"]
    assert [probability(p) for p in (0.0, 0.0009, 0.001, 0.05, 1.0)] == ["<.001", "<.001", ".001", ".050", "1.000"]
