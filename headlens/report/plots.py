"""Figures of a profile as files, for papers and slides: SVG with its text as text, and PNG; the same bytes every time.

The letter and the border of a cell say what its colour says, so that no figure rests on colour alone.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headlens.files import Write, write_together
from headlens.numbers import amount, number
from headlens.report.figures import LOW_IS_TELLING, PALETTE, Scale, scale_of
from headlens.report.sheets import (
    GAP,
    KINDS,
    LEGEND,
    MARGIN,
    NUMBERS,
    ROW,
    SIZE,
    TITLE,
    Box,
    Mark,
    Sheet,
    cross_out,
    draw_boxes,
    draw_cells,
    draw_kind,
    drawing,
    new_sheet,
    number_grid,
    put_letter,
    put_role,
    put_text,
    put_title,
    stride_of,
    tone_on,
)
from headlens.roles.role import Role
from headlens.roles.table import Roles
from headlens.scores import Floats, ScoreTable, Unit, head_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from headlens.behaviour.similarity import Similarity

MOST_MAPS = 6  # heat maps of scores

_CLUSTERS = ("syntax", "punctuation", "repetition", "position", "sink")  # kinds that lend clusters their colour
_MARKERS = ("o", "s", "D", "^", "P")
_MOST_NAMES = 200  # heads that are named on the map of heads; more of them would cover one another


def draw_figures(
    scores: ScoreTable,
    roles: Roles | None,
    similarity: Similarity | None,
    folder: str | os.PathLike[str],
    *,
    model: str = "",
) -> list[Path]:
    """Write all figures into a folder, all or none, and remove those of an earlier profile; gives their paths.

    As `figure_writers`. Raises OutputError where the folder cannot be written to.
    """
    folder = Path(folder)
    files = figure_writers(scores, roles, similarity, model=model)
    write_together({folder / name: write for name, write in files.items()})
    remove_others(folder, files)
    return [folder / name for name in files]


def remove_others(folder: Path, kept: Collection[str]) -> None:
    """Remove figures of ours, as of an earlier profile, that are not among the names to keep."""
    for path in [path for path in folder.glob("*.*") if _is_ours(path.name) and path.name not in kept]:
        path.unlink(missing_ok=True)


def figure_writers(
    scores: ScoreTable, roles: Roles | None, similarity: Similarity | None = None, *, model: str = ""
) -> dict[str, Write]:
    """What `draw_figures` writes, by file name; they are drawn at once.

    Parameters
    ----------
    roles
        None, as after a failed self-check, leaves out the figures of roles.
    similarity
        None leaves out the map of heads.
    model
        Its name, for the line below each title.
    """
    drawn: dict[str, bytes] = {}
    with drawing():
        for name, sheet in _sheets(scores, roles, similarity, _printable(model)):
            drawn |= sheet.files(name)
    return {name: _writer(content) for name, content in drawn.items()}


def key_scores(scores: ScoreTable, roles: Roles) -> list[str]:
    """Metrics that are worth a map: of each role that a head has the one of its best head, the most specific first."""
    best = [roles.heads(role.id)[:1] for role in roles.asked]
    names = dict.fromkeys(heads[0].metric for heads in best if heads and heads[0].metric in scores)
    return [name for name in names if np.isfinite(scores[name]).any()][:MOST_MAPS]


# ---------------------------------------------------------------------------------------------------------- the figures


def _sheets(
    scores: ScoreTable, roles: Roles | None, similarity: Similarity | None, model: str
) -> Iterator[tuple[str, Sheet]]:
    if roles is not None:
        yield "role-map", _role_map(scores, roles, model)
        if roles.asked:
            yield "roles-by-layer", _roles_by_layer(roles, model)
        taken: set[str] = set()
        for metric in key_scores(scores, roles):
            name = _file_name(metric, taken)
            taken.add(name)
            yield name, _heat_map(scores, metric, model)
    if similarity is not None:
        yield "similarity-map", _similarity_map(similarity, model)


def _role_map(scores: ScoreTable, roles: Roles, model: str) -> Sheet:
    layers, heads = roles.n_layers, roles.n_heads
    across, down = float(np.clip(520 / heads, 13, 40)), float(np.clip(340 / layers, 12, 28))
    left, top = MARGIN + NUMBERS, MARGIN + TITLE + NUMBERS / 2
    beside = left + across * heads + GAP
    height = max(top + down * layers, MARGIN + TITLE + ROW * (len(roles.asked) + 1)) + MARGIN
    title = "What each head attends to"
    sheet = new_sheet(beside + LEGEND + MARGIN, height, title)
    page = sheet.page
    put_title(sheet, model, "filled: firm, outlined: tentative, empty: no role")
    gap = 2.0 if across > 20 else 1.0
    boxes: dict[tuple[str, bool], list[Box]] = {}
    shown: Counter[tuple[str, bool]] = Counter()
    empty: list[Box] = []
    absent: list[Box] = []
    is_present = np.asarray(np.isfinite(scores.values).any(axis=0))
    for layer, head in np.ndindex(layers, heads):
        box = (left + head * across, top + layer * down, across - gap, down - gap)
        label = roles.label(layer, head)
        if label is None:
            (empty if is_present[layer, head] else absent).append(box)
            continue
        shown[label.role.id, label.is_firm] += 1
        boxes.setdefault((label.role.kind, label.is_firm), []).append(box)
        sheet.marks.append(put_letter(box, label.role, size=min(SIZE + 1, down - 3), is_filled=label.is_firm))
    for (kind, is_firm), members in boxes.items():
        draw_kind(page, members, kind, is_firm=is_firm)
    draw_boxes(page, empty, edgecolor=PALETTE["rule"], linewidth=0.8, facecolor="none")
    cross_out(page, absent)
    number_grid(page, (left, top, across, down), layers, heads)
    _role_legend(sheet, beside, MARGIN + TITLE, roles.asked, shown, has_absent=bool(absent))
    return sheet


def _role_legend(
    sheet: Sheet, left: float, top: float, asked: Sequence[Role], shown: Counter[tuple[str, bool]], *, has_absent: bool
) -> None:
    page = sheet.page
    for row, role in enumerate(asked):
        counts = [(shown[role.id, True], "firm"), (shown[role.id, False], "tentative")]
        words = ", ".join(f"{number:,} {strength}" for number, strength in counts if number)
        put_role(sheet, left, top + row * ROW, role, is_muted=not words)
        put_text(page, left + LEGEND, top + (row + 0.5) * ROW, words or "none", ha="right", color=PALETTE["ink2"])
    if has_absent:
        place = top + len(asked) * ROW
        cross_out(page, [(left, place + 2, 15.0, 15.0)])
        put_text(page, left + 23, place + ROW / 2, "no such head", color=PALETTE["ink2"])


def _roles_by_layer(roles: Roles, model: str) -> Sheet:
    counts, firm = _counts(roles)
    across = float(np.clip(480 / roles.n_layers, 14, 40))
    left, top = MARGIN + 210, MARGIN + TITLE + NUMBERS / 2
    wide, high = across * roles.n_layers, ROW * len(roles.asked)
    sheet = new_sheet(left + wide + 150 + MARGIN, top + high + MARGIN, "Heads that have each role, by layer")
    put_title(sheet, model, "firm or tentative; a head may have several roles")
    rising = np.linspace(0.5, max(counts.max(), 1), 8)
    scale = Scale(np.append(-0.5, rising), ("bg", *(f"q{step}" for step in range(7))))
    draw_cells(sheet, (left, top, wide, high), counts.astype(np.float64), scale)
    for row, layer in np.argwhere(counts):
        place = left + (layer + 0.5) * across, top + (row + 0.5) * ROW
        number_of = int(counts[row, layer])
        sheet.marks.append(Mark(*place, f"{number_of:,}", tone_on(scale.colour(float(number_of))), SIZE))
    for layer in range(0, roles.n_layers, stride_of(24 / across)):
        put_text(sheet.page, left + (layer + 0.5) * across, top - 8, f"L{layer}", PALETTE["ink2"], ha="center")
    for row, role in enumerate(roles.asked):
        put_role(sheet, MARGIN, top + row * ROW, role, is_muted=not counts[row].any())
        words = f"{amount(int(counts[row].sum()), 'head')}, {firm[row]:,} firm" if counts[row].any() else "none"
        put_text(sheet.page, left + wide + 10, top + (row + 0.5) * ROW, words, PALETTE["ink2"])
    return sheet


def _counts(roles: Roles) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Heads that have each role: by layer [role, layer], and the firm ones of all layers [role]."""
    counts = np.zeros((len(roles.asked), roles.n_layers), dtype=np.int64)
    firm = np.zeros(len(roles.asked), dtype=np.int64)
    for row, role in enumerate(roles.asked):
        heads = roles.heads(role.id)
        np.add.at(counts[row], [one.layer for one in heads], 1)
        firm[row] = sum(one.is_firm for one in heads)
    return counts, firm


def _heat_map(scores: ScoreTable, name: str, model: str) -> Sheet:
    """The map of the page with a title above it."""
    index = scores.index(name)
    metric, values, chance = scores.metrics[index], scores[name], float(scores.chance[index])
    layers, heads = values.shape
    across, down = float(np.clip(480 / heads, 9, 40)), float(np.clip(336 / layers, 9, 28))
    left, top = MARGIN + NUMBERS, MARGIN + TITLE + NUMBERS / 2
    wide = max(across * heads, 240.0)
    sheet = new_sheet(left + wide + MARGIN, top + down * layers + 72, _printable(metric.title))
    put_title(sheet, model, _printable(name))
    scale = scale_of(metric, values, chance)
    draw_cells(sheet, (left, top, across * heads, down * layers), values, scale)
    number_grid(sheet.page, (left, top, across, down), layers, heads)
    missing = np.argwhere(np.isnan(values)).tolist()
    cross_out(sheet.page, [(left + head * across, top + layer * down, across, down) for layer, head in missing])
    digits = None if across >= 34 else 2 if across >= 24 and metric.unit == "share" else -1
    best = scores.best(name, 5, smallest=name.removesuffix(".macro") in LOW_IS_TELLING)
    for one in best if digits != -1 else ():
        place = left + (one.head + 0.5) * across, top + (one.layer + 0.5) * down
        words = number(one.value, metric.unit, digits=digits)
        sheet.marks.append(Mark(*place, words, tone_on(scale.colour(one.value)), SIZE))
    for one in best[:1]:
        box = (left + one.head * across, top + one.layer * down, across, down)
        draw_boxes(sheet.page, [box], facecolor="none", edgecolor=PALETTE["mark"], linewidth=2)
    _draw_bar(sheet.page, (left, top + down * layers + 24, wide, 8.0), values, scale, metric.unit, chance)
    return sheet


def _draw_bar(page: Axes, bar: Box, values: Floats, scale: Scale, unit: Unit, chance: float) -> None:
    """The colours from the lowest to the highest head, a tick for each head above, and chance dashed."""
    left, top, wide, high = bar
    low, span = scale.low, scale.high - scale.low

    def at(value: float) -> float:
        return left + wide * (value - low) / span

    for start, end, colour in zip(scale.edges[:-1], scale.edges[1:], scale.colours, strict=True):
        draw_boxes(page, [(at(start), top, at(end) - at(start), high)], facecolor=PALETTE[colour], linewidth=0)
    draw_boxes(page, [bar], facecolor="none", edgecolor=PALETTE["rule"], linewidth=1)
    # those on one half pixel fall together
    places = np.unique([round(2 * at(value)) / 2 for value in values[np.isfinite(values)].tolist()])
    down = np.tile([top - 11, top - 2, np.nan], len(places))
    page.plot(np.repeat(places, 3), down, color=PALETTE["ink2"], linewidth=0.8, alpha=0.6, solid_capstyle="butt")
    below = top + high + 9
    if not chance <= scale.low:  # the dashed line would cross a number at its own end
        put_text(page, left, below, number(scale.low, unit), PALETTE["ink2"])
    if not chance >= scale.high:
        put_text(page, left + wide, below, number(scale.high, unit), PALETTE["ink2"], ha="right")
    if scale.low <= chance <= scale.high:
        page.vlines([at(chance)], top - 11, below + 6, color=PALETTE["ink"], linewidth=1.2, linestyle=(0, (2, 1.5)))
        side, beside = ("left", 4) if chance < (scale.low + scale.high) / 2 else ("right", -4)
        put_text(page, at(chance) + beside, below + 14, f"chance {number(chance, unit)}", ha=side)


def _similarity_map(similarity: Similarity, model: str) -> Sheet:
    import seaborn

    place = similarity.place - similarity.place.min(axis=0)
    # one scale for both axes: distances are what is drawn
    x, y = (place * min(np.array([590.0, 420.0]) / np.maximum(place.max(axis=0), 1e-9)) + [26, MARGIN + TITLE + 10]).T
    beside = max(float(x.max()), 420.0) + 40 + GAP  # names stand on the right of their heads
    sheet = new_sheet(
        beside + 110 + MARGIN, max(float(y.max()), 290.0) + 10 + MARGIN, "Heads that attend alike stand close"
    )
    page = sheet.page
    put_title(sheet, model, f"Jensen-Shannon divergence, drawn with a stress of {similarity.stress:.2f}")
    is_named = len(similarity.heads) <= _MOST_NAMES
    for cluster in range(int(similarity.cluster.max()) + 1):
        mine = similarity.cluster == cluster
        row = MARGIN + TITLE + 10 + cluster * ROW
        tone, marker = KINDS[_CLUSTERS[cluster % 5]].line, _MARKERS[cluster % 5]
        look = {"marker": marker, "color": tone, "linewidth": 0.6, "edgecolor": PALETTE["bg"], "legend": False}
        for across, down, area in ((x[mine], y[mine], 34 if is_named else 18), ([beside], [row], 34)):
            seaborn.scatterplot(x=across, y=down, s=area, ax=page, clip_on=False, **look)
            if cluster >= len(_CLUSTERS):  # colours and shapes come again, hollow
                page.collections[-1].set(facecolor=PALETTE["bg"], edgecolor=tone, linewidth=1.2)
        put_text(
            page, beside + 12, row, f"{cluster_letter(cluster)}: {amount(int(mine.sum()), 'head')}", PALETTE["ink2"]
        )
    for index, head in enumerate(similarity.heads if is_named else ()):
        put_text(page, x[index] + 6, y[index], head_name(*head), PALETTE["ink2"], fontsize=8)
    page.set_axis_off()
    return sheet


def cluster_letter(cluster: int) -> str:
    """As on the page: a, b, ...; numbers after z."""
    return chr(ord("a") + cluster) if cluster < 26 else str(cluster)


def _writer(content: bytes) -> Write:
    return lambda path: path.write_bytes(content)


def _file_name(metric: str, taken: set[str]) -> str:
    """`heat-position.mass_-1`: letters, digits and what is safe in a name of a file, and no name twice."""
    name = "heat-" + re.sub(r"[^a-z0-9.+-]+", "_", metric.lower()).strip("_.")[:80]
    return next(name for name in (name, *(f"{name}-{again}" for again in range(2, 99))) if name not in taken)


def _is_ours(name: str) -> bool:
    return re.fullmatch(r"(role-map|roles-by-layer|similarity-map|heat-.+)\.(svg|png)", name) is not None


def _printable(text: str) -> str:
    """In one line of 90 characters at most, without what XML cannot hold."""
    safe = "".join(letter if letter.isprintable() else "□" for letter in text)
    return safe if len(safe) <= 90 else f"{safe[:89]}…"
