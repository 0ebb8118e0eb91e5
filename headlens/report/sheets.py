"""A figure as a sheet with coordinates in px: cells, letters, outlines, and how it becomes SVG and PNG."""

from __future__ import annotations

import io
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree

import numpy as np

from headlens.report.figures import PALETTE, Scale
from headlens.roles.role import Role
from headlens.scores import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Box = tuple[float, float, float, float]  # left, top, width, height, in px from the upper left corner


@dataclass(frozen=True)
class Tone:
    """Colours of one kind of role."""

    fill: str
    line: str
    text: str  # on the fill


KINDS: dict[str, Tone] = {
    "position": Tone("#2a62a8", "#2a62a8", "#ffffff"),
    "punctuation": Tone("#5e4630", "#5e4630", "#ffffff"),
    "sink": Tone("#c9cdd2", "#868d95", "#14171a"),
    "broad": Tone("#7fbce8", "#3f8fc6", "#14171a"),
    "coreference": Tone("#2fa487", "#23886f", "#14171a"),
    "syntax": Tone("#eaa23a", "#b8740f", "#14171a"),
    "phrase": Tone("#a84c86", "#a84c86", "#ffffff"),
    "repetition": Tone("#6a55b5", "#6a55b5", "#ffffff"),
    "word": Tone("#a84c86", "#a84c86", "#ffffff"),
    "weights": Tone("#6a55b5", "#6a55b5", "#ffffff"),
}
"""Of every kind of role, as in the light palette of the style sheet."""

_MANY_CELLS = 1000  # more than this and the cells of an SVG are one picture
MARGIN, TITLE, GAP = 16.0, 52.0, 28.0  # px: around a figure, its title with the line below, between two parts
NUMBERS = 30.0  # px left of a grid for layers, and half of it above for heads
LEGEND, ROW = 330.0, 19.0  # px: width of a legend, height of its rows
SIZE = 11.0  # px of text
_FONTS = "'DejaVu Sans',Verdana,sans-serif"
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "headlens",
    "font.family": ["DejaVu Sans"],  # comes with matplotlib: PNGs are the same everywhere
    "text.parse_math": False,  # a name may hold dollars
    "figure.dpi": 72,  # so a point is a pixel
    "savefig.facecolor": PALETTE["bg"],
}


class Mark(NamedTuple):
    """A short text that stands in the middle of its place; there are thousands, too many for matplotlib's own texts."""

    x: float
    y: float
    text: str
    color: str
    size: float
    is_bold: bool = False

    @property
    def baseline(self) -> float:
        lift = 0.24 if self.text in ".," else 0.0  # they would lie on the border of their cell
        return self.y + (0.365 - lift) * self.size  # half of the height of a capital in DejaVu Sans


@dataclass(frozen=True)
class Sheet:
    """A figure whose coordinates are px from its upper left corner; `marks` are drawn last."""

    figure: Figure
    page: Axes
    title: str
    marks: list[Mark] = field(default_factory=list)

    def files(self, name: str) -> dict[str, bytes]:
        svg = self._printed("svg", dpi=144)
        _draw_marks(self.page, self.marks)
        png = self._printed("png", dpi=144, metadata={"Software": None})
        return {f"{name}.svg": _slim(svg, self.title, self.marks), f"{name}.png": png}

    def _printed(self, format: str, **options: Any) -> bytes:
        file = io.BytesIO()
        self.figure.savefig(file, format=format, **options)
        return file.getvalue()


def new_sheet(width: float, height: float, title: str) -> Sheet:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / 72, height / 72), dpi=72, facecolor=PALETTE["bg"])
    page = figure.add_axes((0, 0, 1, 1))
    page.set(xlim=(0, width), ylim=(height, 0), autoscale_on=False)
    page.set_axis_off()
    return Sheet(figure, page, title)


def draw_cells(sheet: Sheet, grid: Box, values: Floats, scale: Scale) -> None:
    """Coloured cells [row, column] in axes of their own, below the page."""
    import seaborn
    from matplotlib.colors import BoundaryNorm, ListedColormap

    left, top, wide, high = grid
    width, height = sheet.figure.get_size_inches() * 72
    axes = sheet.figure.add_axes((left / width, 1 - (top + high) / height, wide / width, high / height))
    has_many = values.size > _MANY_CELLS
    seaborn.heatmap(
        values,
        ax=axes,
        cmap=ListedColormap([PALETTE[colour] for colour in scale.colours]),
        norm=BoundaryNorm(scale.edges, len(scale.colours)),
        cbar=False,
        linewidths=0.3 if has_many else 1,
        linecolor=PALETTE["rule"],
        xticklabels=False,
        yticklabels=False,
        rasterized=has_many,
        clip_on=False,  # a word at each cell of the SVG, for nothing
    )
    axes.set_axis_off()
    axes.set_zorder(sheet.page.get_zorder() - 1)


def tone_on(colour: str) -> str:
    """Of text on a cell: white on dark ones."""
    light = [int(PALETTE[colour][place : place + 2], 16) for place in (1, 3, 5)]
    return PALETTE["qhi" if sum(light) < 420 else "qlo"]


def put_text(page: Axes, x: float, y: float, text: str, color: str = PALETTE["ink"], **style: Any) -> None:
    style = {"fontsize": SIZE, "va": "center_baseline", "color": color} | style
    page.text(x, y, text, None, **style)


def put_title(sheet: Sheet, *below: str) -> None:
    put_text(sheet.page, MARGIN, MARGIN + 8, sheet.title, fontsize=14)
    put_text(sheet.page, MARGIN, MARGIN + 28, " · ".join(filter(None, below)), PALETTE["ink2"])


def put_role(sheet: Sheet, left: float, top: float, role: Role, *, is_muted: bool) -> None:
    box = (left, top + 2, 15.0, 15.0)
    if not is_muted:
        draw_kind(sheet.page, [box], role.kind, is_firm=True)
    sheet.marks.append(put_letter(box, role, size=SIZE, is_filled=not is_muted))
    put_text(sheet.page, left + 23, top + ROW / 2, role.title, PALETTE["ink2" if is_muted else "ink"])


def put_letter(box: Box, role: Role, *, size: float, is_filled: bool) -> Mark:
    left, top, width, height = box
    tone = KINDS[role.kind].text if is_filled else PALETTE["ink"]
    return Mark(left + width / 2, top + height / 2, role.letter, tone, size, is_bold=True)


def _draw_marks(page: Axes, marks: Sequence[Mark]) -> None:
    """All marks of one colour as the outlines of their letters, in a single path."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    outlines: dict[tuple[str, float, bool], Outline] = {}
    by_colour: dict[str, list[Outline]] = {}
    for mark in marks:
        look = (mark.text, mark.size, mark.is_bold)
        glyphs = outlines[look] if look in outlines else outlines.setdefault(look, _outline(*look))
        placed = np.asarray(glyphs.vertices) + np.array([mark.x, mark.baseline])
        by_colour.setdefault(mark.color, []).append(Outline(placed, glyphs.codes))
    for colour, paths in by_colour.items():
        page.add_artist(PathPatch(Outline.make_compound_path(*paths), facecolor=colour, linewidth=0, clip_on=False))


def _outline(text: str, size: float, is_bold: bool) -> Any:
    """Of a text in the middle of x = 0, on the baseline y = 0, y downwards."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.path import Path as Outline
    from matplotlib.textpath import TextPath

    font = FontProperties(family="DejaVu Sans", weight="bold" if is_bold else "normal")
    glyphs = TextPath((0, 0), text, size=size, prop=font)
    middle = glyphs.get_extents().x0 / 2 + glyphs.get_extents().x1 / 2 if len(glyphs.vertices) else 0.0
    return Outline((glyphs.vertices - [middle, 0]) * [1, -1], glyphs.codes)


def draw_kind(page: Axes, boxes: Sequence[Box], kind: str, *, is_firm: bool) -> None:
    tone = KINDS[kind]
    if is_firm:
        draw_boxes(page, boxes, facecolor=tone.fill, linewidth=0)
    else:
        inner = [(left + 1, top + 1, width - 2, height - 2) for left, top, width, height in boxes]
        draw_boxes(page, inner, facecolor="none", edgecolor=tone.line, linewidth=2)


def draw_boxes(page: Axes, boxes: Sequence[Box], **style: Any) -> None:
    """All boxes of one look as a single path: thousands of patches would take seconds and a megabyte."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    if not boxes:
        return
    left, top, width, height = np.array(boxes).T
    right, bottom = left + width, top + height
    corners = np.stack([left, top, right, top, right, bottom, left, bottom, left, top], axis=1)
    codes = [Outline.MOVETO, Outline.LINETO, Outline.LINETO, Outline.LINETO, Outline.CLOSEPOLY]
    outline = Outline(corners.reshape(-1, 2), np.tile(codes, len(boxes)))
    page.add_artist(PathPatch(outline, clip_on=False, zorder=0.5, joinstyle="miter", **style))


def cross_out(page: Axes, boxes: Sequence[Box]) -> None:
    if not boxes:
        return
    left, top, width, height = np.array(boxes).T
    gap = np.full(len(boxes), np.nan)
    across = np.stack([left, left + width, gap], axis=1).ravel()
    down = np.stack([top + height, top, gap], axis=1).ravel()
    page.plot(across, down, color=PALETTE["ink2"], linewidth=0.8)


def number_grid(page: Axes, grid: Box, layers: int, heads: int) -> None:
    left, top, across, down = grid
    for head in range(0, heads, stride_of(20 / across)):
        put_text(page, left + (head + 0.5) * across, top - 8, str(head), PALETTE["ink2"], ha="center")
    for layer in range(0, layers, stride_of(13 / down)):
        put_text(page, left - 7, top + (layer + 0.5) * down, f"L{layer}", PALETTE["ink2"], ha="right")


def stride_of(least: float) -> int:
    return next((stride for stride in (1, 2, 4, 8) if stride >= least), 16)


@contextmanager
def drawing() -> Iterator[None]:
    """matplotlib's own defaults, whatever the user has set, and no word of characters that its font lacks."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


def _slim(svg: bytes, title: str, marks: Sequence[Mark]) -> bytes:
    """The same drawing in a fraction of the bytes: numbers with two decimals, one class for each look, no spare ids."""
    root = ElementTree.fromstring(svg)
    used = set(re.findall(rb"#([\w.-]+)", svg))
    looks = Counter(element.get("style", "") for element in root.iter())
    common = [look for look, times in looks.items() if look and times > 2]
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.text, element.tail = (text if text and text.strip() else None for text in (element.text, element.tail))
        element.attrib = {_short(key): value for key, value in element.attrib.items()}
        _shorten(element.attrib, used, common)
    for metadata in root.findall("metadata"):  # the date
        root.remove(metadata)
    name = ElementTree.Element("title")
    name.text = title
    rules = ElementTree.Element("style")
    rules.text = "".join(f".s{place}{{{_tidy(look)}}}" for place, look in enumerate(common))
    root[:0] = [name, rules]
    root.extend(_mark_groups(marks))
    root.attrib |= {"role": "img", "xmlns": "http://www.w3.org/2000/svg", "xmlns:xlink": "http://www.w3.org/1999/xlink"}
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def _mark_groups(marks: Sequence[Mark]) -> Iterator[ElementTree.Element]:
    """Marks as texts, in a group for each look."""
    looks = dict.fromkeys((mark.color, mark.size, mark.is_bold) for mark in marks)
    for colour, size, is_bold in looks:
        weight = "bold " if is_bold else ""
        style = f"font:{weight}{size:g}px {_FONTS};text-anchor:middle;fill:{colour}"
        group = ElementTree.Element("g", {"style": style})
        for mark in marks:
            if (mark.color, mark.size, mark.is_bold) == (colour, size, is_bold):
                place = {"x": f"{mark.x:.5g}", "y": f"{mark.baseline:.5g}"}
                ElementTree.SubElement(group, "text", place).text = mark.text
        yield group


def _tidy(style: str) -> str:
    return re.sub(r"(?<=[:;]) ", "", re.sub(r"font-family:[^;]*", f"font-family:{_FONTS}", style))


def _short(key: str) -> str:
    space, _, name = key.rpartition("}")
    return f"xlink:{name}" if space.endswith("xlink") else name


def _shorten(attributes: dict[str, str], used: set[bytes], common: Sequence[str]) -> None:
    if attributes.get("id", "").encode() not in used:
        attributes.pop("id", None)
    if attributes.get("style") in common:
        attributes["class"] = f"s{common.index(attributes.pop('style'))}"
    elif "style" in attributes:
        attributes["style"] = _tidy(attributes["style"])
    if attributes.get("transform", "").startswith("rotate(-0 "):
        del attributes["transform"]
    for name in {"d", "x", "y", "width", "height", "transform"} & attributes.keys():
        attributes[name] = re.sub(r"-?\d+\.\d+", _two_decimals, attributes[name])
    if "d" in attributes:
        attributes["d"] = re.sub(r"\s*([MLCQz])\s*", r"\1", attributes["d"])


def _two_decimals(hit: re.Match[str]) -> str:
    return f"{float(hit[0]):.2f}".rstrip("0").rstrip(".")
