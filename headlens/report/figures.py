"""The pictures of a report: inline SVG that takes its colours from the page's style sheet, so it is light or dark.

Every colour is drawn as the literal of the light palette and handed out as `var(--hl-name, literal)`: without the
style sheet, as in a notebook, the light palette is what shows.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt

from headlens.numbers import number
from headlens.scores import Floats, HeadScore, Metric, ScoreTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE: dict[str, str] = {
    "bg": "#fcfcfa",
    "ink": "#1a1d20",
    "ink2": "#555b61",
    "rule": "#dcdcd6",
    "mark": "#b3261e",
    "q0": "#e6edf2",
    "q1": "#cbdbe6",
    "q2": "#a6c4d8",
    "q3": "#78a7c6",
    "q4": "#3c78a4",
    "q5": "#276192",
    "q6": "#123c62",
    "d0": "#8a4b08",
    "d1": "#d39b4a",
    "d2": "#f0ddbf",
    "d3": "#f3f3ef",
    "d4": "#cbdce8",
    "d5": "#79a8c7",
    "d6": "#286293",
    "qlo": "#14171a",  # text on light cells
    "qhi": "#ffffff",  # text on dark cells
}
"""Names of the style sheet's variables (`--hl-...`) and their colours in the light palette, each there once."""

SIGNED = frozenset(
    {
        *("repetition.copying", "circuits.ov_eigenvalue", "circuits.ov_full", "circuits.ov_effective"),
        *("circuits.q_composition", "circuits.k_composition", "circuits.v_composition"),
    }
)
"""Metrics of which 0 is the middle."""

LOW_IS_TELLING = frozenset({"position.variability"})  # metrics of which a low value is the remarkable one

_STEPS = 7
_MANY_CELLS = 1000  # more than this and the cells become one picture: a page of vector cells would not load
_LEFT, _TOP, _RIGHT, _LEGEND = 36, 22, 8, 62  # px around the cells: layer names, head numbers, margin, colour bar
_BAR = 240  # px, the least width of the colour bar


@dataclass(frozen=True)
class Scale:
    """Edges of the colour steps of a metric. Cells below `start` stay blank; `colours` has a name for each step."""

    edges: Floats
    colours: tuple[str, ...]

    @property
    def low(self) -> float:
        return float(self.edges[0])

    @property
    def high(self) -> float:
        return float(self.edges[-1])

    def colour(self, value: float) -> str:
        step = int(np.searchsorted(self.edges, value, side="right")) - 1
        return self.colours[min(max(step, 0), len(self.colours) - 1)]


def is_signed(metric: Metric) -> bool:
    """The sign of the score says which way, so that the scale has two ends and 0 in its middle."""
    name = metric.name.removesuffix(".macro")
    return name in SIGNED or name.endswith("_signed") or ".difference[" in name


def starts_at_chance(metric: Metric, values: Floats, chance: float) -> bool:
    """Chance is the floor of shares and of ratios that exceed it; of entropy and breadth it is the ceiling."""
    if np.isnan(chance) or is_signed(metric) or metric.name.removesuffix(".macro") in LOW_IS_TELLING:
        return False
    return metric.unit == "share" or (metric.unit == "ratio" and bool(np.nanmax(values) > chance * (1 + 1e-6)))


def scale_of(metric: Metric, values: Floats, chance: float) -> Scale:
    """Colour steps for the values [layer, head] of a metric, of which at least one is not NaN."""
    steps = tuple(f"q{step}" for step in range(_STEPS))
    seen = values[np.isfinite(values)]
    if is_signed(metric):
        reach = float(np.abs(seen).max()) or 1.0
        return Scale(np.linspace(-reach, reach, _STEPS + 1), tuple(f"d{step}" for step in range(_STEPS)))
    if not starts_at_chance(metric, values, chance):
        ends = np.append(seen, chance) if np.isfinite(chance) else seen
        low, high = float(ends.min()), float(ends.max())
        return Scale(np.linspace(low, high if high > low else low + 1, _STEPS + 1), steps)
    floor, high = min(0.0, float(seen.min())), float(seen.max())
    if high <= chance:
        return Scale(np.array([floor, chance if chance > floor else floor + 1]), ("bg",))
    # chance itself still counts as blank, hence the next number above it
    rising = np.linspace(np.nextafter(chance, np.inf), high, _STEPS + 1)
    return Scale(np.append(floor, rising), ("bg", *steps)) if floor < rising[0] else Scale(rising, steps)


def heat_map(scores: ScoreTable, name: str, *, marked: Sequence[HeadScore] = (), label: str) -> str:
    """A layer by head map of one metric as inline SVG, its colour bar marked with chance and a tick for each head.

    Parameters
    ----------
    name
        The metric; at least one of its values must not be NaN.
    marked
        Heads whose number is written into their cell, where there is room; the first one is outlined.
    label
        What the picture shows, for readers who cannot see it.
    """
    import matplotlib

    index = scores.index(name)
    metric, values, chance = scores.metrics[index], scores[name], float(scores.chance[index])
    with matplotlib.rc_context({"svg.fonttype": "none", "text.usetex": False, "axes.grid": False}):
        figure, cells, bar = _sheet(scores.n_layers, scores.n_heads)
        _draw_cells(cells, bar, values, scale := scale_of(metric, values, chance))
        _draw_marks(cells, marked, metric, scale)
        _draw_bar(bar, values, metric, chance)
        file = io.BytesIO()
        figure.savefig(file, format="svg")
    return _inline(file.getvalue(), label, has_theme=values.size <= _MANY_CELLS)


def sparkline(values: Floats, pointed: float, chance: float, *, rival: float = np.nan) -> str:
    """A tick for each head, a pointer at the value `pointed`, chance dashed; decoration for a sentence beside it.

    `rival`: accuracy of a baseline, a tall line; NaN for none.
    """
    seen = values[np.isfinite(values)]
    low, high = min(0.0, float(seen.min())), max(1.0, float(seen.max()))

    def at(value: float) -> str:
        return f"{2 + 96 * (value - low) / (high - low):.1f}"

    ticks = "".join(f"M{place} 5v9" for place in sorted({at(value) for value in seen}))
    dashes = f'<path class="chance" d="M{at(chance)} 3v12"/>' if low <= chance < high else ""
    tall = f'<path class="rival" d="M{at(rival)} 2v12.5"/>' if np.isfinite(rival) else ""
    pointer = f'<path class="me" d="M{at(pointed)} 14V5"/><path class="tip" d="M{at(pointed)} 6l-3-5h6z"/>'
    return (
        '<svg class="spark" width="100" height="16" viewBox="0 0 100 16" aria-hidden="true">'
        f'<path class="axis" d="M2 14.5h96"/><path class="ticks" d="{ticks}"/>{dashes}{tall}{pointer}</svg>'
    )


def strip(value: float, low: float, high: float, *, chance: float, others: Sequence[float]) -> str:
    """A share with its interval on a line from 0 to 1, baselines as tall lines, chance dashed; its numbers stand by."""

    def at(share: float) -> str:
        return f"{3 + 94 * min(max(share, 0.0), 1.0):.1f}"

    dashes = f'<path class="chance" d="M{at(chance)} 2v14"/>' if np.isfinite(chance) else ""
    lines = "".join(f"M{at(other)} 3v12" for other in others if np.isfinite(other))
    bar = f'<path class="reach" d="M{at(low)} 9H{at(high)}"/>' if np.isfinite([low, high]).all() else ""
    return (
        '<svg class="strip" width="100" height="18" viewBox="0 0 100 18" aria-hidden="true">'
        f'<path class="axis" d="M3 9h94"/>{dashes}<path class="rival" d="{lines}"/>{bar}'
        f'<circle class="dot" cx="{at(value)}" cy="9" r="3.2"/></svg>'
    )


def _sheet(layers: int, heads: int) -> tuple[Figure, Axes, Axes]:
    from matplotlib.figure import Figure

    cell_width, cell_height = _cell_size(layers, heads)
    across, down = cell_width * heads, cell_height * layers
    width, height = _LEFT + max(across, _BAR) + _RIGHT, _TOP + down + _LEGEND
    figure = Figure(figsize=(width / 72, height / 72), dpi=72, facecolor=PALETTE["bg"])  # so a point is a pixel
    cells = figure.add_axes((_LEFT / width, _LEGEND / height, across / width, down / height))
    bar = figure.add_axes((_LEFT / width, 32 / height, max(across, _BAR) / width, 8 / height))
    return figure, cells, bar


def _cell_size(layers: int, heads: int) -> tuple[float, float]:
    return float(np.clip(480 / heads, 9, 40)), float(np.clip(336 / layers, 9, 28))


def _draw_cells(cells: Axes, bar: Axes, values: Floats, scale: Scale) -> None:
    import seaborn
    from matplotlib.colors import BoundaryNorm, ListedColormap

    layers, heads = values.shape
    has_many = values.size > _MANY_CELLS
    seaborn.heatmap(
        values,
        ax=cells,
        cbar_ax=bar,
        cmap=ListedColormap([PALETTE[colour] for colour in scale.colours]),
        norm=BoundaryNorm(scale.edges, len(scale.colours)),
        cbar_kws={"orientation": "horizontal", "spacing": "proportional", "ticks": []},
        linewidths=0.3 if has_many else 1,
        linecolor=PALETTE["rule"],
        xticklabels=False,
        yticklabels=False,
        rasterized=has_many,
    )
    cells.set_axis_off()
    bar.set_axis_off()
    _cross_out(cells, np.argwhere(np.isnan(values)))
    _number_cells(cells, layers, heads)


def _cross_out(cells: Axes, places: npt.NDArray[np.intp]) -> None:
    """A slanting line through every cell [place, (layer, head)], all of them one path."""
    layer, head = places.T
    gap = np.full(len(places), np.nan)
    across, down = (np.stack(ends, axis=1).ravel() for ends in ((head, head + 1, gap), (layer + 1, layer, gap)))
    cells.plot(across, down, color=PALETTE["ink2"], linewidth=0.8, alpha=0.6, scalex=False, scaley=False)


def _number_cells(cells: Axes, layers: int, heads: int) -> None:
    # plain text: the ticks of an axis take half of the time of the whole drawing
    cell_width, cell_height = _cell_size(layers, heads)
    style: dict[str, Any] = {"fontsize": 11, "color": PALETTE["ink2"]}
    for head in range(0, heads, _stride(20 / cell_width)):
        cells.text(head + 0.5, -6 / cell_height, str(head), ha="center", **style)
    for layer in range(0, layers, _stride(13 / cell_height)):
        cells.text(-8 / cell_width, layer + 0.5, f"L{layer}", ha="right", va="center_baseline", **style)


def _stride(least: float) -> int:
    return next((stride for stride in (1, 2, 4, 8) if stride >= least), 16)


def _draw_marks(cells: Axes, marked: Sequence[HeadScore], metric: Metric, scale: Scale) -> None:
    from matplotlib.patches import Rectangle

    width = cells.get_window_extent().width / (cells.get_xlim()[1] - cells.get_xlim()[0])
    digits = None if width >= 34 else 2 if width >= 24 and metric.unit == "share" else -1
    for head in marked if digits != -1 else ():
        text = number(head.value, metric.unit, digits=digits)
        tone = PALETTE[_tone(scale.colour(head.value))]
        cells.text(head.head + 0.5, head.layer + 0.5, text, ha="center", va="center_baseline", fontsize=11, color=tone)
    for head in marked[:1]:
        frame = Rectangle((head.head, head.layer), 1, 1, fill=False, linewidth=2, edgecolor=PALETTE["mark"])
        frame.set_clip_on(False)
        cells.add_patch(frame)


def _tone(colour: str) -> str:
    return "qhi" if colour in {"q4", "q5", "q6", "d0", "d6"} else "qlo"


def _draw_bar(bar: Axes, values: Floats, metric: Metric, chance: float) -> None:
    low, high = bar.get_xlim()
    _draw_ticks(bar, values[np.isfinite(values)])
    style: dict[str, Any] = {"fontsize": 11, "color": PALETTE["ink2"], "va": "top"}
    if not chance <= low:  # the dashed line would cross a number at its own end
        bar.text(low, -0.5, number(low, metric.unit), ha="left", **style)
    if not chance >= high:
        bar.text(high, -0.5, number(high, metric.unit), ha="right", **style)
    if low <= chance <= high:
        bar.vlines([chance], -1.9, 2.4, color=PALETTE["ink"], linewidth=1.2, linestyle=(0, (2, 1.5)), clip_on=False)
        side = "left" if chance < (low + high) / 2 else "right"
        text = f" chance {number(chance, metric.unit)} "
        bar.text(chance, -2.1, text, ha=side, **(style | {"color": PALETTE["ink"]}))
    bar.plot([low, high, high, low, low], [0, 0, 1, 1, 0], color=PALETTE["rule"], linewidth=1, clip_on=False)
    bar.set(xlim=(low, high), ylim=(0, 1))


def _draw_ticks(bar: Axes, seen: Floats) -> None:
    """One short line above the bar for each head, drawn as a single path; those on one half pixel fall together."""
    low, high = bar.get_xlim()
    half_pixel = (high - low) / (2 * bar.get_window_extent().width)
    places = low + half_pixel * np.unique(np.round((seen - low) / half_pixel))
    across = np.repeat(places, 3)
    down = np.tile([1.2, 2.4, np.nan], len(places))
    bar.plot(across, down, color=PALETTE["ink2"], linewidth=0.8, clip_on=False, alpha=0.6, solid_capstyle="butt")


def _inline(svg: bytes, label: str, *, has_theme: bool) -> str:
    """The drawing as an element of an HTML page: no names that could clash, no name spaces, colours by name."""
    root = ElementTree.fromstring(svg)
    drawing = ElementTree.Element("svg", {"class": "heat", "role": "img", "aria-label": label})
    drawing.attrib["viewBox"] = box = root.attrib["viewBox"]
    drawing.attrib["width"], drawing.attrib["height"] = box.split()[2:]
    drawing.extend(shape for child in root for shape in _shapes(child))
    text = ElementTree.tostring(drawing, encoding="unicode")
    if not has_theme:
        return text
    names = {literal: name for name, literal in PALETTE.items()}
    return re.sub(r"#[0-9a-f]{6}", lambda hit: _variable(hit[0], names), text)


def _variable(literal: str, names: dict[str, str]) -> str:
    return f"var(--hl-{names[literal]},{literal})" if literal in names else literal


def _shapes(element: ElementTree.Element) -> list[ElementTree.Element]:
    """The visible shapes below an element, flat and in order, with only the attributes that matter."""
    tag = element.tag.rpartition("}")[2]
    if tag == "g":
        return [shape for child in element for shape in _shapes(child)]
    if tag not in {"path", "text", "image"}:
        return []
    shape = ElementTree.Element(tag)
    shape.text = (element.text or "").strip() or None
    for key, value in element.attrib.items():
        name = key.rpartition("}")[2]
        if name not in {"id", "clip-path"} and not value.startswith("rotate(-0 "):
            shape.attrib[name] = _tidy(name, value)
    return [shape]


def _tidy(name: str, value: str) -> str:
    if name == "d":
        return re.sub(r"\s*\n?\s*([MLCQz])\s*", r"\1", value).strip()
    if name == "style":
        return re.sub(r"\s*font-family:[^;]*;?|(?<=[:;])\s+", "", value)
    return value
