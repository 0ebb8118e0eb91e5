"""Tables of heads: for each score the best one, beside chance and what it is held against; the next ones folded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from headlens.numbers import amount, count, interval, number
from headlens.report.figures import is_signed
from headlens.report.tables import NOTHING, Cell, Column, Row, Table
from headlens.roles import Roles
from headlens.scores import HeadScore, Metric, ScoreTable

BEST = 4  # heads of each score; of a score with two ends, half of them from either

_REPETITION = {  # score -> the same where nothing is repeated
    "repetition.induction": "repetition.induction_control",
    "repetition.duplicate": "repetition.duplicate_control",
    "repetition.previous": "repetition.previous_control",
    "repetition.prefix_matching": "",
    "repetition.copying": "",
}
_CONTRIBUTION = {  # what a head takes -> what it pays
    "contribution.first": "surface.first",
    "contribution.cls": "surface.cls",
    "contribution.sep": "surface.sep",
    "contribution.special": "surface.special",
    "contribution.full_stop": "surface.full_stop",
    "contribution.comma": "surface.comma",
    "contribution.self": "position.mass[0]",
    "contribution.previous": "position.mass[-1]",
    "contribution.next": "position.mass[1]",
    "contribution.sink_share": "contribution.sink_weight",
    "contribution.size": "",
}
_CONTROL = Column("Control", "the same score of the head where no token comes twice", names=("control",))
_ATTENTION = Column("Its attention", "the attention that the head pays to the same", names=("attention",))


def repetition_table(scores: ScoreTable, roles: Roles | None = None) -> Table | None:
    """The best heads on repeated tokens, each score beside the same one where nothing is repeated."""
    return _table("The strongest heads on repeated tokens", scores, _REPETITION, _CONTROL, roles)


def contribution_table(scores: ScoreTable, roles: Roles | None = None) -> Table | None:
    """The heads that take most from what they look at, each share beside that of their attention."""
    return _table("The heads that take most", scores, _CONTRIBUTION, _ATTENTION, roles)


def _table(
    caption: str, scores: ScoreTable, beside: Mapping[str, str], column: Column, roles: Roles | None
) -> Table | None:
    known = [name for name in beside if name in scores and np.nan_to_num(scores[name]).any()]  # not 0 everywhere
    if not known:
        return None
    columns = (
        Column("Score", is_number=False, names=("score", "metric")),
        Column("Head", is_number=False, names=("head",)),
        Column("Value", "of this head; its 95% interval", names=("value", "low", "high")),
        column,
        Column("Chance", "of a head that attends to all visible tokens alike", names=("chance",)),
        Column("Support", "rows or decisions that the value rests on", names=("support",)),
        *([Column("Role", "that stands for the head on the map", False, names=("role",))] if roles is not None else []),
    )

    def row(name: str, head: HeadScore) -> Row:
        return Row(_cells(scores, scores.metrics[scores.index(name)], head, beside[name], roles))

    rows = []
    for name in known:
        first, *others = (row(name, head) for head in _ends(scores, scores.metrics[scores.index(name)]))
        rows.append(Row(first.cells, tuple(others), _fold(others)))
    return Table(caption, columns, tuple(rows))


def _ends(scores: ScoreTable, metric: Metric) -> list[HeadScore]:
    """The highest heads; where the sign says which way, as many of the lowest, the lowest last."""
    if not is_signed(metric):
        return scores.best(metric.name, BEST)
    highest = scores.best(metric.name, BEST // 2)
    lowest = scores.best(metric.name, BEST // 2, smallest=True)
    return [*highest, *(head for head in reversed(lowest) if head not in highest)]


def _cells(scores: ScoreTable, metric: Metric, head: HeadScore, beside: str, roles: Roles | None) -> tuple[Cell, ...]:
    other = float(scores[beside][head.layer, head.head]) if beside in scores else math.nan
    reach = interval(head.low, head.high, metric.unit) if np.isfinite([head.low, head.high]).all() else ""
    cells = (
        Cell(metric.title, note=metric.name, values=(metric.title, metric.name)),
        Cell(NOTHING, heads=(head.name,), values=(head.name,)),
        Cell(number(head.value, metric.unit), reach, is_strong=True, values=(head.value, head.low, head.high)),
        Cell(_or_nothing(other, metric), values=(other,)),
        Cell(_or_nothing(head.chance, metric), values=(head.chance,)),
        Cell(count(head.support), values=(head.support,)),
    )
    return cells if roles is None else (*cells, _role_cell(roles, head))


def _role_cell(roles: Roles, head: HeadScore) -> Cell:
    label = roles.label(head.layer, head.head)
    if label is None:
        return Cell(NOTHING, values=("",))
    return Cell(label.role.title, note="" if label.is_firm else "tentative", values=(label.role.title,))


def _or_nothing(value: float, metric: Metric) -> str:
    return number(value, metric.unit) if math.isfinite(value) else NOTHING


def _fold(rows: Sequence[Row]) -> str:
    return f"{amount(len(rows), 'more head')}: {', '.join(row.cells[1].heads[0] for row in rows)}" if rows else ""
