"""The pictures of a report: inline SVG that takes its colours from the page's style sheet, so it is light or dark.

Every colour is drawn as the literal of the light palette and handed out as `var(--hl-name, literal)`: without the
style sheet, as in a notebook, the light palette is what shows.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from headlens.numbers import number
from headlens.scores import Floats, HeadScore, Metric, ScoreTable

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
_MANY_CELLS = 1000  # more than this and cells of one colour side by side are drawn as one
_LEFT, _TOP, _RIGHT, _LEGEND = 36, 22, 8, 62  # px around the cells: layer names, head numbers, margin, colour bar
_BAR, _THICK = 240, 8  # px, the least width of the colour bar, and its height
_THIN = 'vector-effect="non-scaling-stroke"'  # which no group hands down to what is in it
_DROP = 4  # px from the middle of a line of text down to its base line


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

    def steps(self, values: Floats) -> npt.NDArray[np.intp]:
        """Places among the colours, of values of any shape without NaN."""
        return np.clip(np.searchsorted(self.edges, values, side="right") - 1, 0, len(self.colours) - 1)

    def colour(self, value: float) -> str:
        return self.colours[int(self.steps(np.array([value]))[0])]


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

    All cells of one colour are one path, so that a page can hold a map of every metric.

    Parameters
    ----------
    name
        The metric; at least one of its values must not be NaN.
    marked
        Heads whose number is written into their cell, where there is room; the first one is outlined.
    label
        What the picture shows, for readers who cannot see it.
    """
    index = scores.index(name)
    metric, values, chance = scores.metrics[index], scores[name], float(scores.chance[index])
    scale = scale_of(metric, values, chance)
    sheet = _Sheet(scores.n_layers, scores.n_heads)
    drawn = [
        *_cells(sheet, values, scale),
        *_numbers_of_cells(sheet),
        *_marks(sheet, marked, metric, scale),
        *_bar(sheet, values, scale, metric, chance),
    ]
    size = f'width="{sheet.width:g}" height="{sheet.height:g}" viewBox="0 0 {sheet.width:g} {sheet.height:g}"'
    letters = f'text-anchor="middle" font-size="11" fill="{_colour("ink2")}"'  # inherited, as a page has many of them
    return f'<svg class="heat" role="img" aria-label="{html.escape(label)}" {size} {letters}>{"".join(drawn)}</svg>'


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


@dataclass(frozen=True)
class _Sheet:
    """Where things stand, in pixels from the left upper corner."""

    layers: int
    heads: int

    @property
    def cell(self) -> tuple[float, float]:
        """Width and height."""
        return _between(480 / self.heads, (9, 40)), _between(336 / self.layers, (9, 28))

    @property
    def across(self) -> float:
        """Width of the colour bar, which is that of the cells, unless these are too few."""
        return max(self.cell[0] * self.heads, float(_BAR))

    @property
    def bottom(self) -> float:
        """Of the cells."""
        return _TOP + self.cell[1] * self.layers

    @property
    def bar(self) -> float:
        """Upper edge of the colour bar."""
        return self.bottom + 22

    @property
    def width(self) -> float:
        return _LEFT + self.across + _RIGHT

    @property
    def height(self) -> float:
        return self.bottom + _LEGEND


def _between(value: float, ends: tuple[int, int]) -> float:
    return float(min(max(value, ends[0]), ends[1]))


def _cells(sheet: _Sheet, values: Floats, scale: Scale) -> Iterator[str]:
    """A path for each colour, in units of cells: what is drawn in it is one unit wide and high."""
    is_known = np.isfinite(values)
    steps = np.where(is_known, scale.steps(np.where(is_known, values, 0.0)), -1)
    width, height = sheet.cell
    joins = values.size > _MANY_CELLS
    own = 'shape-rendering="crispEdges"' if joins else _THIN  # lines between many cells would be all that there is
    line = "" if joins else f' stroke="{_colour("rule")}"'
    yield f'<g transform="translate({_LEFT} {_TOP}) scale({width:g} {height:g})"{line}>'
    for step in np.unique(steps):
        colour = "none" if step < 0 else _colour(scale.colours[step])
        yield f'<path d="{_boxes(steps == step, joins=joins)}" fill="{colour}" {own}/>'
    if joins:
        frame = f"M0 0h{sheet.heads}v{sheet.layers}h-{sheet.heads}z"
        yield f'<path d="{frame}" fill="none" stroke="{_colour("rule")}" {_THIN}/>'
    yield "</g>"
    if crosses := "".join(_cross(sheet, *place) for place in np.argwhere(np.isnan(values)).tolist()):
        style = f'fill="none" stroke="{_colour("ink2")}" stroke-width=".8" stroke-opacity=".6"'
        yield f'<path class="absent" d="{crosses}" {style}/>'


def _cross(sheet: _Sheet, layer: int, head: int) -> str:
    """A slanting line through a cell, from its lower left to its upper right corner."""
    width, height = sheet.cell
    left, top = _LEFT + head * width, _TOP + layer * height
    return f"M{left:g} {top + height:g}L{left + width:g} {top:g}"


def _boxes(where: npt.NDArray[np.bool_], *, joins: bool) -> str:
    """Boxes [layer, head] one unit high, those side by side joined or each by itself."""
    found = []
    for layer, row in enumerate(where):
        if joins:
            edges = np.flatnonzero(np.diff([0, *row.astype(int), 0])).reshape(-1, 2).tolist()
        else:
            edges = [[head, head + 1] for head in np.flatnonzero(row).tolist()]
        found += [f"M{start} {layer}h{end - start}v1H{start}z" for start, end in edges]
    return "".join(found)


def _numbers_of_cells(sheet: _Sheet) -> Iterator[str]:
    width, height = sheet.cell
    for head in range(0, sheet.heads, _stride(20 / width)):
        yield _text(_LEFT + (head + 0.5) * width, _TOP - 6.0, str(head))
    for layer in range(0, sheet.layers, _stride(13 / height)):
        yield _text(_LEFT - 8.0, _TOP + (layer + 0.5) * height + _DROP, f"L{layer}", "end")


def _stride(least: float) -> int:
    return next((stride for stride in (1, 2, 4, 8) if stride >= least), 16)


def _marks(sheet: _Sheet, marked: Sequence[HeadScore], metric: Metric, scale: Scale) -> Iterator[str]:
    width, height = sheet.cell
    digits = None if width >= 34 else 2 if width >= 24 and metric.unit == "share" else -1
    for head in marked if digits != -1 else ():
        across, down = _LEFT + (head.head + 0.5) * width, _TOP + (head.layer + 0.5) * height + _DROP
        yield _text(
            across, down, number(head.value, metric.unit, digits=digits), "middle", _tone(scale.colour(head.value))
        )
    for head in marked[:1]:
        place = f'x="{_LEFT + head.head * width:g}" y="{_TOP + head.layer * height:g}"'
        style = f'fill="none" stroke="{_colour("mark")}" stroke-width="2"'
        yield f'<rect {place} width="{width:g}" height="{height:g}" {style}/>'


def _tone(colour: str) -> str:
    return "qhi" if colour in {"q4", "q5", "q6", "d0", "d6"} else "qlo"


def _bar(sheet: _Sheet, values: Floats, scale: Scale, metric: Metric, chance: float) -> Iterator[str]:
    """The colours from the lowest to the highest head, with a tick for each head above, and chance."""
    low, high, top = scale.low, scale.high, sheet.bar

    def at(value: float) -> float:
        return _LEFT + sheet.across * (value - low) / (high - low)

    for start, end, colour in zip(scale.edges[:-1], scale.edges[1:], scale.colours, strict=True):
        box = f"M{at(start):.1f} {top:g}H{at(end):.1f}v{_THICK}H{at(start):.1f}z"
        yield f'<path d="{box}" fill="{_colour(colour)}"/>'
    frame = f"M{_LEFT} {top:g}h{sheet.across:g}v{_THICK}h-{sheet.across:g}z"
    yield f'<path d="{frame}" fill="none" stroke="{_colour("rule")}"/>'
    # those on one half pixel fall together
    seen = values[np.isfinite(values)]
    places = (np.unique(np.round(2 * (_LEFT + sheet.across * (seen - low) / (high - low)))) / 2).tolist()
    steps = [f"m{there - here:g}-9v9" for here, there in pairwise(places)]
    ticks = "".join([f"M{places[0]:g} {top - 11:g}v9", *steps])
    yield f'<path class="ticks" d="{ticks}" stroke="{_colour("ink2")}" stroke-width=".8"/>'
    below = top + _THICK + 13
    if not chance <= low:  # the dashed line would cross a number at its own end
        yield _text(float(_LEFT), below, number(low, metric.unit), "start")
    if not chance >= high:
        yield _text(_LEFT + sheet.across, below, number(high, metric.unit), "end")
    if low <= chance <= high:
        dashes = f'stroke="{_colour("ink")}" stroke-width="1.2" stroke-dasharray="2 1.5"'
        yield f'<path class="chance" d="M{at(chance):.1f} {top - 11:g}V{top + _THICK + 3:g}" {dashes}/>'
        side, beside = ("start", -3) if chance < (low + high) / 2 else ("end", 3)
        words = f"chance {number(chance, metric.unit)}"
        yield _text(at(chance) + beside, below + 13, words, side, "ink")


def _text(x: float, y: float, words: str, anchor: str = "middle", colour: str = "ink2") -> str:
    side = f' text-anchor="{anchor}"' if anchor != "middle" else ""
    tone = f' fill="{_colour(colour)}"' if colour != "ink2" else ""
    return f'<text x="{x:g}" y="{y:g}"{side}{tone}>{words}</text>'


def _colour(name: str) -> str:
    return f"var(--hl-{name},{PALETTE[name]})"
