"""Rows of the tables of a comparison, in words: roles, heads, scores, and what annotated words confirmed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headlens.comparison import Fate, HeadChange, Pair, RoleChange, Side, share, strength
from headlens.differences import Change, Estimate, difference_interval
from headlens.evidence_table import POSITIVE, MetricEvidence
from headlens.numbers import NOT_DEFINED, number
from headlens.report.compare_words import difference_words, role_value
from headlens.roles.role import HeadRole
from headlens.scores import Floats, Metric, ScoreTable, Unit, head_name
from headlens.wording import way_of

if TYPE_CHECKING:
    from markupsafe import Markup

_ORDER: tuple[Fate, ...] = ("lost", "moved", "gained", "no longer named", "named elsewhere", "newly named", "kept")


@dataclass(frozen=True)
class RoleRow:
    change: RoleChange
    before: str  # "12 (9 firm)"
    after: str
    best_before: str
    best_after: str
    stayed: str  # score of the best head before, after
    difference: str
    picture: Markup | None
    lost: str  # heads that lost it / that are no longer named, though their score did not change beyond its interval
    gained: str  # heads that gained it / that are newly named
    share_before: str
    share_after: str


@dataclass(frozen=True)
class HeadRow:
    one: HeadChange
    metric: str
    before: str
    after: str
    difference: str
    picture: Markup | None


@dataclass(frozen=True)
class ScoreRow:
    metric: Metric
    best_before: str
    best_after: str
    median_before: str
    median_after: str
    chance: str
    rise: str
    fall: str
    beyond: str


@dataclass(frozen=True)
class EvidenceRow:
    verdict: str  # "above every baseline → chance"
    way: str
    metric: str
    before: str
    after: str
    difference: str
    picture: Markup | None


def role_rows(pair: Pair) -> list[RoleRow]:
    """Of a pair of one shape by fate, else in the order of the catalogue; roles that no head has are left out."""
    held = [change for change in pair.roles if change.is_held]
    if pair.differences is not None:
        held.sort(key=lambda change: _place(change.fate))
    return [_role_row(pair, change) for change in held]


def _place(fate: Fate | None) -> int:
    return _ORDER.index(fate) if fate is not None else len(_ORDER)


def _role_row(pair: Pair, change: RoleChange) -> RoleRow:
    score = change.best.change if change.best is not None else None
    return RoleRow(
        change,
        before=_counted(change.before),
        after=_counted(change.after),
        best_before=_best(pair.before, change.before),
        best_after=_best(pair.after, change.after),
        stayed=_stayed(change),
        difference="" if score is None or np.isnan(score.difference) else difference_words(score),
        picture=None if score is None else _picture(score, *_chances(pair, score.metric.name)),
        lost=_both(change, "lost", "no longer named"),
        gained=_both(change, "gained", "newly named"),
        share_before=number(share(change.before, pair.before), "share"),
        share_after=number(share(change.after, pair.after), "share"),
    )


def _both(change: RoleChange, *fates: Fate) -> str:
    return " / ".join(f"{change.count(fate):,}" for fate in fates)


def _counted(heads: tuple[HeadRole, ...]) -> str:
    return f"{len(heads):,} ({sum(one.is_firm for one in heads):,} firm)" if heads else "0"


def _best(side: Side, heads: tuple[HeadRole, ...]) -> str:
    if not heads:
        return "none"
    best = heads[0]
    metric = best.metric
    unit = side.scores.metrics[side.scores.index(metric)].unit if metric in side.scores else "share"
    return f"{best.name} {number(role_value(side, best), unit)} ({strength(best)})"


def _stayed(change: RoleChange) -> str:
    """Of the head that was best before."""
    best = change.best
    if best is None or not change.before:
        return ""
    if best.is_removed:
        return f"{best.name} removed"
    return "" if best.change is None else f"{best.name} {number(best.change.after, best.change.metric.unit)}"


def head_rows(pair: Pair) -> list[HeadRow]:
    """Every head with a role on either side, by fate; none of models of different shape."""
    heads = [one for change in pair.roles for one in change.heads]
    return [_head_row(one) for one in sorted(heads, key=lambda one: _ORDER.index(one.fate))]


def _head_row(one: HeadChange) -> HeadRow:
    change = one.change
    unit = change.metric.unit if change else "share"
    is_known = change is not None and not np.isnan(change.difference)
    values = (change.before, change.after) if change else (np.nan, np.nan)
    ends = [
        "removed" if is_after and one.is_removed else _value_of(value, unit, strength(held))
        for value, held, is_after in zip(values, (one.before, one.after), (False, True), strict=True)
    ]
    return HeadRow(
        one,
        metric=one.metric,
        before=ends[0],
        after=ends[1],
        difference=difference_words(change) if change and is_known else "",
        picture=_picture(change, np.nan, np.nan) if change else None,
    )


def _value_of(value: float, unit: Unit, word: str | None) -> str:
    return f"{number(value, unit)} ({word or 'no role'})"


# -------------------------------------------------------------------------------------------------------------- scores


def score_rows(pair: Pair) -> list[ScoreRow]:
    return [_score_row(pair, metric) for metric in pair.metrics if _is_told(pair, metric)]


def _is_told(pair: Pair, metric: Metric) -> bool:
    """Means of inputs are left to the table on disk, and so is what no head of either side has."""
    tables = (pair.before.scores, pair.after.scores)
    return not metric.is_macro and any(bool(np.isfinite(scores[metric.name]).any()) for scores in tables)


def _score_row(pair: Pair, metric: Metric) -> ScoreRow:
    old, new = pair.before.scores, pair.after.scores
    chances = [number(chance, metric.unit) for chance in _chances(pair, metric.name)]
    rise, fall, beyond = _extremes(pair, metric) if pair.differences is not None else ("", "", "")
    return ScoreRow(
        metric,
        best_before=_highest(old, metric),
        best_after=_highest(new, metric),
        median_before=_median(old[metric.name], metric),
        median_after=_median(new[metric.name], metric),
        chance=chances[0] if chances[0] == chances[1] else f"{chances[0]}, {chances[1]}",
        rise=rise,
        fall=fall,
        beyond=beyond,
    )


def _extremes(pair: Pair, metric: Metric) -> tuple[str, str, str]:
    """The head that rose most, the one that fell most, and how many intervals lie beyond 0."""
    differences = pair.differences
    assert differences is not None
    place = differences.names.index(metric.name)
    value, ends = differences.value[place], []
    for sign in (1, -1):
        signed_values = np.where(np.isnan(value), -np.inf, sign * value)
        layer, head = (int(axis) for axis in np.unravel_index(int(signed_values.argmax()), value.shape))
        change = differences.of(metric.name, layer, head)
        is_there = signed_values[layer, head] > 0
        ends.append(f"{head_name(layer, head)} {difference_words(change)}" if is_there else "none")
    every = int(differences.has_interval[place].sum())
    beyond = f"{int(differences.is_beyond_zero[place].sum()):,} of {every:,}" if every else "no interval"
    return ends[0], ends[1], beyond


def _highest(scores: ScoreTable, metric: Metric) -> str:
    best = scores.best(metric.name, 1)
    return f"{best[0].name} {number(best[0].value, metric.unit)}" if best else NOT_DEFINED


def _median(values: Floats, metric: Metric) -> str:
    seen = values[np.isfinite(values)]
    return number(float(np.median(seen)), metric.unit) if len(seen) else NOT_DEFINED


def _chances(pair: Pair, metric: str) -> tuple[float, float]:
    old, new = (float(side.scores.chance[side.scores.index(metric)]) for side in (pair.before, pair.after))
    return old, new


# ------------------------------------------------------------------------------------------------------------ evidence


def evidence_rows(pair: Pair) -> list[EvidenceRow]:
    """What annotated words confirmed on either side, of the metrics that both weighed."""
    old, new = pair.before.evidence, pair.after.evidence
    if old is None or new is None:
        return []
    both = [(old[name], new[name]) for name in old.names if name in new.names]
    held = [ends for ends in both if any(row.verdict in POSITIVE for row in ends)]
    held.sort(key=lambda ends: _VERDICTS.index((ends[0].verdict in POSITIVE, ends[1].verdict in POSITIVE)))
    return [_evidence_row(*ends, is_by_head=pair.differences is not None) for ends in held]


_VERDICTS = ((True, False), (False, True), (True, True))  # confirmed before and after


def _evidence_row(was: MetricEvidence, now: MetricEvidence, *, is_by_head: bool) -> EvidenceRow:
    low, high = difference_interval(*(_estimate(row) for row in (was, now)))
    metric = Metric(was.metric, "", "", "share")
    change = Change(metric, was.held_out, now.held_out, float(low), float(high))
    has_moved = is_by_head and was.name != now.name and {was.verdict, now.verdict} <= set(POSITIVE)
    verdict = f"{was.verdict} in both" if was.verdict == now.verdict else f"{was.verdict} → {now.verdict}"
    return EvidenceRow(
        f"{verdict}; of another head" if has_moved else verdict,
        way_of(was.metric).arrow,
        was.metric,
        before=_held_out(was),
        after=_held_out(now),
        difference="" if np.isnan(change.difference) else difference_words(change),
        picture=_picture(change, was.chance, now.chance),
    )


def _estimate(row: MetricEvidence) -> Estimate:
    return Estimate(*(np.asarray(value, dtype=np.float64) for value in (row.held_out, row.low, row.high)))


def _held_out(row: MetricEvidence) -> str:
    return f"{row.name} {number(row.held_out, 'share')}"


# ------------------------------------------------------------------------------------------------------------- picture


def _picture(change: Change, chance_before: float, chance_after: float) -> Markup | None:
    """A ring at the value before and a dot at that after, on a line from 0 to 1; chance dashed where both agree."""
    from markupsafe import Markup

    ends = [value for value in (change.before, change.after) if 0 <= value <= 1]
    if len(ends) < sum(not np.isnan(value) for value in (change.before, change.after)) or not ends:
        return None

    def at(value: float) -> str:
        return f"{5 + 90 * value:.1f}"

    has_chance = chance_before == chance_after and 0 <= chance_before <= 1
    dashes = f'<path class="chance" d="M{at(chance_before)} 2v12"/>' if has_chance else ""
    line = f'<path class="way" d="M{at(change.before)} 8H{at(change.after)}"/>' if len(ends) == 2 else ""
    ring, dot = (
        f'<circle class="{name}" cx="{at(value)}" cy="8" r="{radius}"/>' if not np.isnan(value) else ""
        for name, value, radius in (("ring", change.before, 4), ("dot", change.after, 2.6))
    )
    return Markup(
        '<svg class="change" width="100" height="16" viewBox="0 0 100 16" aria-hidden="true">'
        f'<path class="axis" d="M5 8h90"/>{dashes}{line}{ring}{dot}</svg>'
    )
