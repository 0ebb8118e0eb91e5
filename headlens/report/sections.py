"""One metric on the page: its map, the heads at its ends, and what can be said of it in a line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headlens.numbers import NOT_DEFINED, amount, count, interval, number
from headlens.report.figures import heat_map, is_signed, starts_at_chance
from headlens.scores import Floats, HeadScore, Metric, ScoreTable, head_name

if TYPE_CHECKING:
    from markupsafe import Markup

_UNITS = {"share": "share, 0 to 1", "nats": "nats", "tokens": "tokens", "ratio": "ratio"}
# Where the only special token is the first one, the two are one; and every token has itself
_TWINS = {
    "surface.special": "surface.first",
    "contribution.special": "contribution.first",
    "position.mass_valid[0]": "position.mass[0]",
}
_BEST, _ENDS = 5, 3  # heads listed where high is notable; heads listed at each end where both are
_MOST_VALUES = 400  # heads up to which every value stands on the page; beyond, scores.csv has them


@dataclass(frozen=True)
class _Row:
    """A head in one of a metric's tables, as text."""

    head: str
    value: str
    interval: str
    chance: str
    macro: str
    support: str


@dataclass(frozen=True)
class Section:
    """One metric on the page."""

    metric: Metric
    anchor: str
    unit: str
    facts: tuple[str, ...]
    figure: Markup | None  # None where no head has a value
    caption: str
    tables: tuple[tuple[str, list[_Row]], ...]
    has_macro: bool
    values: list[list[str]] | None  # [layer, head]


def own_place(scores: ScoreTable) -> list[Metric]:
    """Metrics but for means of inputs that stand beside the mean of rows, and those that tell what another tells."""
    alone = [m for m in scores.metrics if not (m.is_macro and m.name.removesuffix(".macro") in scores)]
    return [metric for metric in alone if not _is_twin(scores, metric.name)]


def is_one_number(values: Floats) -> bool:
    """Whether several heads have a value and all of them the same, as where a causal model cannot look ahead."""
    known = values[np.isfinite(values)]
    return known.size > 1 and bool(np.ptp(known) == 0)


def _is_twin(scores: ScoreTable, name: str) -> bool:
    other = _TWINS.get(name, "")
    return other in scores and np.allclose(scores[name], scores[other], rtol=0, atol=1e-9, equal_nan=True)


def section_of(scores: ScoreTable, metric: Metric) -> Section:
    values = scores[metric.name]
    has_values = bool(np.isfinite(values).any())
    macro = _macro_of(scores, metric)
    highest, lowest = _ends(scores, metric) if has_values else ([], [])
    tables = [("Highest heads", highest), ("Lowest heads", lowest)]
    return Section(
        metric=metric,
        anchor=f"m{scores.index(metric.name)}-{re.sub('[^a-z0-9]+', '-', metric.name.lower()).strip('-')}",
        unit="difference of shares, −1 to 1" if ".difference[" in metric.name else _UNITS[metric.unit],
        facts=tuple(_metric_facts(scores, metric, macro)),
        figure=figure_of(scores, metric, [*highest, *lowest]) if has_values else None,
        caption=_figure_caption(scores, metric) if has_values else "",
        tables=tuple((title, _rows(heads, metric, macro)) for title, heads in tables if heads),
        has_macro=macro is not None,
        values=_all_values(values, metric) if has_values and values.size <= _MOST_VALUES else None,
    )


def _macro_of(scores: ScoreTable, metric: Metric) -> Floats | None:
    name = f"{metric.name}.macro"
    if name not in scores:
        return None
    return scores[name]


def _ends(scores: ScoreTable, metric: Metric) -> tuple[list[HeadScore], list[HeadScore]]:
    """The highest heads and, where low is as telling as high, the lowest, lowest first; no head is in both."""
    index = scores.index(metric.name)
    if starts_at_chance(metric, scores[metric.name], float(scores.chance[index])):
        return scores.best(metric.name, _BEST), []
    highest, smallest = scores.best(metric.name, _ENDS), scores.best(metric.name, _ENDS, smallest=True)
    return highest, [head for head in smallest if head not in highest]


def notable(scores: ScoreTable, metric: Metric) -> list[HeadScore]:
    highest, lowest = _ends(scores, metric)
    return [*highest, *lowest]


def _metric_facts(scores: ScoreTable, metric: Metric, macro: Floats | None) -> Iterator[str]:
    values, chance = scores[metric.name], float(scores.chance[scores.index(metric.name)])
    defined = int(np.isfinite(values).sum())
    yield f"Chance {number(chance, metric.unit)}" if np.isfinite(chance) else "No chance level is known"
    if not defined:
        yield f"{NOT_DEFINED} for any head"
        return
    if defined < values.size:
        yield f"defined for {defined:,} of {values.size:,} heads"
    if np.isfinite(chance):
        above = int((values > chance).sum())
        yield f"{amount(above, 'head') if above else 'no head'} above it"
    apart = np.abs(macro - values) if macro is not None else np.full(values.shape, np.nan)
    if np.isfinite(apart).any():
        layer, head = np.unravel_index(int(np.nanargmax(apart)), apart.shape)
        largest = number(float(apart[layer, head]), metric.unit)
        yield f"the mean of inputs lies at most {largest} away ({head_name(int(layer), int(head))})"


def figure_of(scores: ScoreTable, metric: Metric, marked: Sequence[HeadScore]) -> Markup:
    from markupsafe import Markup

    best = marked[0]
    label = (
        f"Heat map of {metric.title}, {amount(scores.n_layers, 'layer')} by {amount(scores.n_heads, 'head')}. "
        f"Highest: {best.name} with {number(best.value, metric.unit)}; chance {number(best.chance, metric.unit)}."
    )
    return Markup(heat_map(scores, metric.name, marked=marked, label=label))


def _figure_caption(scores: ScoreTable, metric: Metric) -> str:
    values, chance = scores[metric.name], float(scores.chance[scores.index(metric.name)])
    if is_signed(metric):
        is_direction = metric.name.endswith("_signed")
        later, earlier = (", towards later tokens", ", towards earlier ones") if is_direction else ("", "")
        words = f"Blue: above 0{later}. Ochre: below 0{earlier}."
    elif not starts_at_chance(metric, values, chance):
        words = "The stronger the colour, the higher the value."
    elif np.nanmax(values) <= chance:
        words = "No head is above chance, so every cell stays empty."
    else:
        words = "Colour starts above chance; a head at or below it stays empty."
    return words + (" Crossed out: not defined for that head." if np.isnan(values).any() else "")


def _rows(heads: Sequence[HeadScore], metric: Metric, macro: Floats | None) -> list[_Row]:
    return [
        _Row(
            head=head.name,
            value=number(head.value, metric.unit),
            interval=interval(head.low, head.high, metric.unit),
            chance=number(head.chance, metric.unit),
            macro=number(float(macro[head.layer, head.head]), metric.unit) if macro is not None else "",
            support=count(head.support),
        )
        for head in heads
    ]


def _all_values(values: Floats, metric: Metric) -> list[list[str]]:
    return [[number(value, metric.unit) for value in layer] for layer in values.tolist()]
