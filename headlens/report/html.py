"""One page that tells what the heads attend to: self-contained, readable without network and without scripts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from headlens.files import atomic_write
from headlens.report import facts
from headlens.report.facts import Provenance
from headlens.report.figures import heat_map, is_signed, sparkline, starts_at_chance
from headlens.report.findings import RULES, Finding, HeadTraits, Rule, findings, head_traits, rules_for
from headlens.report.numbers import NOT_DEFINED, amount, count, interval, number
from headlens.scores import SCHEMA, Floats, HeadScore, Metric, ScoreTable, head_name

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

FAMILIES: dict[str, tuple[str, str]] = {
    "position": ("Position", "Where a head looks, counted from the token whose row it is: −1 is the token before it."),
    "surface": ("Surface", "What kind of token a head looks at, and how widely it spreads its attention."),
}
"""Titles and introductions of the families of metrics that have one; others go by their name."""

_UNITS = {"share": "share, 0 to 1", "nats": "nats", "tokens": "tokens", "ratio": "ratio"}
_BEST, _ENDS = 5, 3  # heads listed where high is notable; heads listed at each end where both are
_MOST_VALUES = 400  # heads up to which every value stands on the page; beyond, scores.csv has them
_SUMMARY_MAPS = 3


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
class _Section:
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


@dataclass(frozen=True)
class _Family:
    name: str
    title: str
    introduction: str
    groups: list[tuple[str, list[tuple[str, str]]]]  # for the contents: words, then (link text, anchor)
    sections: list[_Section]


@dataclass(frozen=True)
class _Legend:
    rule: Rule
    heads: list[str]


def render_report(scores: ScoreTable, provenance: Provenance) -> str:
    """The whole report as an HTML page; what the provenance does not say is left out."""
    checked = facts.selfcheck(provenance)
    may_claim = checked is None or checked[0]
    traits = head_traits(scores) if may_claim else []
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            title=facts.title(scores, provenance),
            version=facts.at(provenance, "headlens"),
            facts=facts.header_facts(scores, provenance),
            selfcheck=checked,
            findings=_findings_with_pictures(scores) if may_claim else [],
            layers=[traits[start : start + scores.n_heads] for start in range(0, len(traits), scores.n_heads)],
            legend=_legend(scores, traits),
            plain_heads=sum(not head.held and head.nearest is not None for head in traits),
            families=_families(scores),
            rules=RULES,
            schema=SCHEMA,
            command=facts.at(provenance, "command"),
            laws=facts.laws(provenance),
            provenance=_provenance_groups(provenance),
            scores=scores,
        )
    )


def render_summary(scores: ScoreTable, provenance: Provenance) -> str:
    """A fragment for notebooks: title, findings and three heat maps, all style inline, always on a light card."""
    checked = facts.selfcheck(provenance)
    may_claim = checked is None or checked[0]
    found = findings(scores) if may_claim else []
    return (
        _environment()
        .get_template("summary.html.j2")
        .render(
            title=facts.title(scores, provenance),
            facts=facts.header_facts(scores, provenance),
            selfcheck=checked,
            findings=found,
            maps=[
                (metric, _figure(scores, metric, _notable(scores, metric))) for metric in _key_metrics(scores, found)
            ],
        )
    )


def write_report(scores: ScoreTable, provenance: Provenance, path: str | os.PathLike[str]) -> None:
    """Render the report and put it at `path` in one step; an OutputError says why it cannot be written."""
    page = render_report(scores, provenance)
    # a file name that is no proper text reaches here with lone surrogates, which UTF-8 cannot hold
    content = page.encode("utf-8", "backslashreplace")
    atomic_write(path, lambda temporary: temporary.write_bytes(content))


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("headlens.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(number=number, amount=amount, cell_title=_cell_title, NOT_DEFINED=NOT_DEFINED)
    return environment


def _findings_with_pictures(scores: ScoreTable) -> list[tuple[Finding, Markup | None]]:
    from markupsafe import Markup

    def picture(finding: Finding) -> Markup | None:
        if finding.rule is None or finding.head is None:
            return None
        return Markup(sparkline(scores[finding.rule.metric], finding.head.value, finding.head.chance))

    return [(finding, picture(finding)) for finding in findings(scores)]


def _cell_title(head: HeadTraits) -> str:
    """All traits of a head with their numbers; without any, the one that it comes nearest to."""
    if head.nearest is None:
        return f"{head.name}: {NOT_DEFINED}"
    told = head.held or (head.nearest,)
    words = [f"{trait.rule.trait} {number(trait.score.value, 'share')}{_beside(trait.score)}" for trait in told]
    if head.held:
        return f"{head.name}: {', '.join(words)}"
    return (
        f"{head.name}: no trait; nearest {words[0]}, threshold {number(head.nearest.rule.threshold, 'share', digits=2)}"
    )


def _beside(score: HeadScore) -> str:
    return f" (chance {number(score.chance, 'share')})" if score.chance < 1 else ""


def _legend(scores: ScoreTable, traits: Sequence[HeadTraits]) -> list[_Legend]:
    def heads(rule: Rule) -> list[str]:
        return [head.name for head in traits if any(trait.rule == rule for trait in head.held)]

    return [_Legend(rule, heads(rule)) for rule in rules_for(scores) if rule.letter]


def _families(scores: ScoreTable) -> list[_Family]:
    families: dict[str, list[Metric]] = {}
    for metric in scores.metrics:
        # a mean of inputs stands beside the mean of rows; alone it gets a section of its own
        if not (metric.is_macro and metric.name.removesuffix(".macro") in scores):
            families.setdefault(metric.family, []).append(metric)
    return [_family(scores, name, metrics) for name, metrics in families.items()]


def _family(scores: ScoreTable, name: str, metrics: Sequence[Metric]) -> _Family:
    title, introduction = FAMILIES.get(name, (name.replace("_", " ").capitalize(), ""))
    sections = [_section(scores, metric) for metric in metrics]
    return _Family(name, title, introduction, _groups(sections), sections)


def _groups(sections: Sequence[_Section]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Contents of a family: metrics that differ only in their offset share one entry."""

    def stem(section: _Section) -> str:
        return section.metric.name.partition("[")[0]

    def entry(section: _Section) -> tuple[str, str]:
        offset = section.metric.name.partition("[")[2].rstrip("]")
        return (
            f"{int(offset):+d}".replace("-", "−").replace("+0", "0") if _is_whole(offset) else offset
        ), section.anchor

    return [
        (name.partition(".")[2].replace("_", " ") or name, [entry(section) for section in members])
        for name, members in groupby(sections, key=stem)
    ]


def _is_whole(text: str) -> bool:
    return re.fullmatch(r"-?\d+", text) is not None


def _section(scores: ScoreTable, metric: Metric) -> _Section:
    values = scores[metric.name]
    has_values = bool(np.isfinite(values).any())
    macro = _macro_of(scores, metric)
    highest, lowest = _ends(scores, metric) if has_values else ([], [])
    tables = [("Highest heads", highest), ("Lowest heads", lowest)]
    return _Section(
        metric=metric,
        anchor=f"m{scores.index(metric.name)}-{re.sub('[^a-z0-9]+', '-', metric.name.lower()).strip('-')}",
        unit=_UNITS[metric.unit],
        facts=tuple(_metric_facts(scores, metric, macro)),
        figure=_figure(scores, metric, [*highest, *lowest]) if has_values else None,
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


def _notable(scores: ScoreTable, metric: Metric) -> list[HeadScore]:
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


def _figure(scores: ScoreTable, metric: Metric, marked: Sequence[HeadScore]) -> Markup:
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
        words = "Blue: above 0, towards later tokens. Ochre: below 0, towards earlier ones."
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


def _key_metrics(scores: ScoreTable, found: Sequence[Finding]) -> list[Metric]:
    """Metrics of the findings first, then those that rules read, then any other that has values."""
    told = [finding.rule.metric for finding in found if finding.rule is not None]
    names = dict.fromkeys([*told, *(rule.metric for rule in rules_for(scores)), *scores.names])
    drawn = [scores.metrics[scores.index(name)] for name in names if np.isfinite(scores[name]).any()]
    return drawn[:_SUMMARY_MAPS]


def _provenance_groups(provenance: Provenance) -> list[tuple[str, list[tuple[str, str]]]]:
    lines = facts.flat(provenance)
    return [
        (group, list(members)) for group, members in groupby(lines, key=lambda line: re.split(r"[.\[]", line[0])[0])
    ]
