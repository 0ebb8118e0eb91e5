"""How the page is divided: which metrics stand together, what evidence goes before, and which maps are drawn."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from headlens.evidence_table import ABOVE, INFORMED, SLIGHT, Evidence, RelationEvidence
from headlens.report.evidence_rows import (
    SYNTAX,
    Table,
    coreference_table,
    directions_table,
    gain,
    pronouns_table,
    relations_table,
)
from headlens.report.further import Further
from headlens.report.numbers import interval, signed
from headlens.report.sections import Section, section_of
from headlens.report.wording import ALL, family_of, is_subtype, title_of
from headlens.scores import HeadScore, Metric, ScoreTable

MOST_RELATIONS = 10  # of which maps are drawn: a page with a map for each of a hundred metrics would not load
_MAPS = frozenset(
    {
        "syntax.dep_to_head[ALL]",
        "syntax.head_to_dep[ALL]",
        "coref[all]",
        "coref[pronoun]",
        "coref[proper]",
        "coref[nominal]",
    }
)
_DRAWN = (ABOVE, INFORMED, SLIGHT)  # verdicts, the best first
_RELATION = re.compile(r"syntax\.(?:dep_to_head|head_to_dep)\[(.+)\]")


@dataclass(frozen=True)
class Theme:
    """A part of the page. `lines` are remarks; `folded` opens on request."""

    title: str
    introduction: str
    table: Table | None
    folded: Table | None
    lines: tuple[str, ...]
    ensembles: Table | None
    probe: str
    groups: list[tuple[str, list[tuple[str, str]]]]  # for the contents: words, then (link text, anchor)
    sections: list[Section]
    left_out: str  # which maps are not drawn, and where the numbers are

    @property
    def is_empty(self) -> bool:
        return not (self.table or self.lines or self.ensembles or self.probe or self.sections)


@dataclass(frozen=True)
class _Plan:
    title: str
    families: tuple[str, ...]
    introduction: str


_RELATIONS = _Plan(
    "Relations",
    SYNTAX,
    "Does a word attend to the word that it depends on, or the other way round? A head is right on a word if the "
    "syntactic partner is the word that it attends to most. Heads and baselines are chosen on one half of the "
    "documents and judged on the other.",
)
_COREFERENCE = _Plan(
    "Coreference",
    ("coref",),
    "Among the earlier mentions of a text, does a mention attend most to one of the same entity?",
)
_PRONOUNS = _Plan(
    "Pronouns",
    ("choice",),
    "Of the names or nouns that a pronoun may refer to, does it attend most to the right one?",
)
_PLANS = (
    _RELATIONS,
    _COREFERENCE,
    _PRONOUNS,
    _Plan(
        "Phrases and borders",
        ("phrase", "border"),
        "Whether a word attends to the neighbour in its own phrase, and to the marks that close a sentence or clause.",
    ),
    _Plan(
        "Position",
        ("position",),
        "Where a head looks, counted from the token whose row it is: −1 is the token before it.",
    ),
    _Plan("Surface", ("surface",), "What kind of token a head looks at, and how widely it spreads its attention."),
)


def themes(scores: ScoreTable, evidence: Evidence | None, further: Further) -> list[Theme]:
    """The parts of the page that have something to say; families without a plan come last, under their own names."""
    planned = {family for plan in _PLANS for family in plan.families}
    others = dict.fromkeys(family for metric in _metrics(scores) if (family := family_of(metric.name)) not in planned)
    plans = [*_PLANS, *(_Plan(name.replace("_", " ").capitalize(), (name,), "") for name in others)]
    found = [_theme(plan, scores, evidence, further) for plan in plans]
    return [theme for theme in found if not theme.is_empty]


def drawn_relations(scores: ScoreTable, evidence: Evidence | None) -> list[str]:
    """Metrics of at most ten relations, the best verdicts first; without evidence those with the most decisions.

    Subtypes are left out, and so are subject and verb and all relations together, which are drawn in any case.
    """
    if evidence is not None:
        rows = [row for row in evidence.relations if row.verdict in _DRAWN and _is_plain(row.relation)]
        rows = [row for row in rows if family_of(row.metric) == "syntax" and row.metric in scores]
        return [row.metric for row in sorted(rows, key=_rank)[:MOST_RELATIONS]]
    best: dict[str, tuple[float, str]] = {}  # relation -> decisions and metric, of the direction with the higher head
    for metric in scores.metrics:
        hit = _RELATION.fullmatch(metric.name)
        if hit and _is_plain(hit[1]) and np.isfinite(scores[metric.name]).any():
            support = float(scores.support[scores.index(metric.name)].max())
            other = best.get(hit[1])
            if other is None or np.nanmax(scores[metric.name]) > np.nanmax(scores[other[1]]):
                best[hit[1]] = (max(support, other[0] if other else 0.0), metric.name)
    return [name for _, name in sorted(best.values(), key=lambda entry: -entry[0])[:MOST_RELATIONS]]


def _rank(row: RelationEvidence) -> tuple[int, float]:
    return _DRAWN.index(row.verdict), -gain(row)


def _is_plain(relation: str) -> bool:
    return relation != ALL and not is_subtype(relation)


def _metrics(scores: ScoreTable) -> list[Metric]:
    """Those with a place of their own: a mean of inputs stands beside the mean of rows, if there is one."""
    return [m for m in scores.metrics if not (m.is_macro and m.name.removesuffix(".macro") in scores)]


def _theme(plan: _Plan, scores: ScoreTable, evidence: Evidence | None, further: Further) -> Theme:
    metrics = [metric for metric in _metrics(scores) if family_of(metric.name) in plan.families]
    chosen = _drawn(metrics, drawn_relations(scores, evidence) if plan is _RELATIONS else [])
    sections = [section_of(scores, metric) for metric in chosen]
    is_syntax = plan is _RELATIONS
    return Theme(
        title=plan.title,
        introduction=plan.introduction,
        table=_table(plan, evidence, further),
        folded=directions_table(evidence, further.controls) if evidence is not None and is_syntax else None,
        lines=tuple(_lines(plan, scores, evidence)),
        ensembles=further.ensembles if is_syntax else None,
        probe=further.probe if is_syntax else "",
        groups=_groups(sections),
        sections=sections,
        left_out=_left_out(len(chosen), len(metrics), has_table=evidence is not None),
    )


def _table(plan: _Plan, evidence: Evidence | None, further: Further) -> Table | None:
    if evidence is None:
        return None
    if plan is _RELATIONS:
        return relations_table(evidence, further.controls)
    return {_COREFERENCE: coreference_table, _PRONOUNS: pronouns_table}.get(plan, lambda _: None)(evidence)


def _drawn(metrics: Sequence[Metric], relations: Sequence[str]) -> list[Metric]:
    """Of syntax and coreference only some, the best relations in the order given."""
    by_name = {metric.name: metric for metric in metrics}
    return [*(metric for metric in metrics if _is_drawn(metric)), *(by_name[name] for name in relations)]


def _is_drawn(metric: Metric) -> bool:
    is_one_of_many = _RELATION.fullmatch(metric.name) is not None or family_of(metric.name) == "coref"
    return metric.name in _MAPS or not is_one_of_many


def _left_out(drawn: int, metrics: int, *, has_table: bool) -> str:
    if drawn == metrics:
        return ""
    where = "every metric with enough decisions has its row in the tables above, and " if has_table else ""
    return f"Maps are drawn of {drawn} of the {metrics} metrics; {where}the numbers of all heads are in scores.csv."


def _lines(plan: _Plan, scores: ScoreTable, evidence: Evidence | None) -> Iterator[str]:
    families = {family_of(metric.name) for metric in scores.metrics}
    if plan is _COREFERENCE and families & set(SYNTAX) and not families & {"coref", "choice"}:
        yield "The corpus marks no coreference, so nothing can be said about it."
    if plan is _RELATIONS and families & {"coref", "choice"} and not families & set(SYNTAX):
        yield "The corpus marks no dependencies, so nothing can be said about relations."
    if plan is _PRONOUNS:
        for metric in scores.metrics:
            if metric.name.startswith("choice.difference[") and np.isfinite(scores[metric.name]).any():
                yield _difference(metric, scores, evidence)


def _difference(metric: Metric, scores: ScoreTable, evidence: Evidence | None) -> str:
    """Of the head that is best on all pronouns, and of the one with the largest difference."""
    one, _, other = metric.name.partition("[")[2].rstrip("]").partition("-")
    values = scores[metric.name]
    layer, head = divmod(int(np.nanargmax(np.abs(values))), scores.n_heads)
    largest = scores.score(metric.name, layer, head)
    parts = [f"largest at {_signed_score(largest)}"]
    if evidence is not None and "choice[all]" in evidence.names:
        row = evidence["choice[all]"]
        parts.insert(
            0, f"{_signed_score(scores.score(metric.name, row.layer, row.head))}, the best head on all pronouns"
        )
    return f"Accuracy on {_title(one)} minus {_title(other)}: {'; '.join(parts)}."


def _title(group: str) -> str:
    title = title_of(f"choice[{group}]")
    return title[:1].lower() + title[1:]


def _signed_score(score: HeadScore) -> str:
    reach = f" ({interval(score.low, score.high, 'share')})" if np.isfinite([score.low, score.high]).all() else ""
    return f"{score.name} {signed(score.value, 'share')}{reach}"


def _groups(sections: Sequence[Section]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Contents of a theme: metrics that differ only in their offset share one entry."""

    def stem(section: Section) -> str:
        return section.metric.name.partition("[")[0]

    def entry(section: Section) -> tuple[str, str]:
        offset = section.metric.name.partition("[")[2].rstrip("]")
        words = f"{int(offset):+d}".replace("-", "−").replace("+0", "0") if _is_whole(offset) else offset
        return words, section.anchor

    return [
        (name.partition(".")[2].replace("_", " ") or name, [entry(section) for section in members])
        for name, members in groupby(sections, key=stem)
    ]


def _is_whole(text: str) -> bool:
    return re.fullmatch(r"-?\d+", text) is not None
