"""How a role is read from scores: one score beyond a threshold, clear of chance and control, and what must hold beside.

Which roles there are, with which numbers, is in `catalogue`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from headlens.numbers import number
from headlens.roles.role import HeadRole, Role
from headlens.scores import Floats, HeadScore, ScoreTable, Unit

CLEARLY = 2.0  # times the control and chance: our choice
LEAST_SUPPORT = 30  # rows or decisions that a score must rest on, as for evidence


@dataclass(frozen=True)
class Condition:
    """What a further score of the same head must be: over a limit, or under it."""

    metric: str
    words: str
    limit: float | None = None  # None: the chance level of the metric, 0 where that is unknown
    is_below: bool = False
    by: Literal["value", "high"] = "value"  # "high": what the upper end of the interval says, where there is one
    if_unknown: bool = False  # whether it holds where there is no such score

    @property
    def gloss(self) -> str:
        limit = "chance" if self.limit is None else number(self.limit, "share", digits=2)
        return f"{self.words} {'under' if self.is_below else 'over'} {limit}"

    def holds(self, score: HeadScore | None) -> bool:
        if score is None:
            return self.if_unknown
        is_by_high = self.by == "high" and np.isfinite(score.high)
        return self.passes(score.high if is_by_high else score.value, score.chance)

    def is_firm(self, score: HeadScore | None) -> bool:
        """It holds in the whole interval, not for the value alone."""
        if score is None:
            return self.if_unknown
        return self.passes(score.low, score.chance) and self.passes(score.high, score.chance)

    def passes(self, value: float, chance: float) -> bool:
        limit = self.limit if self.limit is not None else chance if np.isfinite(chance) else 0.0
        return value < limit if self.is_below else value > limit


@dataclass(frozen=True)
class Rule:
    """A head has the role if its score is above `threshold`, or below it; `claim` and `measure` make the sentence."""

    id: str
    letter: str  # on the head map
    title: str
    kind: str  # of Role
    rank: int  # of Role
    metric: str
    threshold: float
    claim: str  # "attends to the previous token"
    measure: str  # "of its mass on average"
    source: str
    unit: Unit = "share"
    is_below: bool = False
    floor: float | None = None  # the whole interval must lie above it, too: what a head gets without the role
    control: str = ""  # a score without the thing looked for: the interval must lie CLEARLY above it and chance
    control_name: str = ""  # "unrepeated tokens"
    also: tuple[Condition, ...] = ()  # all must hold, too
    has_null: bool = True  # uniform attention is as broad as can be, so it is no null of broad heads
    has_interval: bool = True  # weights have none: there the value decides alone

    @property
    def gloss(self) -> str:
        side = "under" if self.is_below else "over"
        more = "".join(f", {condition.gloss}" for condition in self.also)
        return f"{side} {self.number(self.threshold, digits=2)} {self.measure}{more}"

    @property
    def role(self) -> Role:
        return Role(self.id, self.letter, self.title, self.kind, self.rank, self.gloss, self.source)

    def number(self, value: float, *, digits: int | None = None) -> str:
        return number(value, self.unit, digits=digits)

    def passes(self, value: float) -> bool:
        return value < self.threshold if self.is_below else value > self.threshold

    def passing(self, values: Floats) -> list[tuple[int, int]]:
        """(layer, head) of the values [layer, head] that pass."""
        places = np.argwhere(values < self.threshold if self.is_below else values > self.threshold)
        return [(layer, head) for layer, head in places.tolist()]

    def nearness(self, value: float) -> float:
        """How near a value is to the threshold, 1 at the threshold, more beyond it."""
        if not self.is_below:
            floor = self.floor or 0.0
            return (value - floor) / (self.threshold - floor)
        return self.threshold / value if value > 0 else np.inf

    def can_read(self, scores: ScoreTable) -> bool:
        """The score is in the table and defined for at least one head, and so are those of conditions that need one."""
        needed = [self.metric, *(condition.metric for condition in self.also if not condition.if_unknown)]
        return all(metric in scores and bool(np.isfinite(scores[metric]).any()) for metric in needed)

    def nulls(self, scores: ScoreTable) -> Floats:
        """[layer, head]: what each head would have without the role, NaN where that is not known."""
        values = scores[self.metric]
        if self.floor is not None:
            return np.full(values.shape, self.floor)
        chance = np.full(values.shape, scores.chance[scores.index(self.metric)] if self.has_null else np.nan)
        return np.fmax(chance, scores[self.control]) if self.control in scores else chance

    def read(self, scores: ScoreTable, layer: int, head: int) -> Reading:
        """What the scores of one head say."""
        return Reading(
            self,
            scores.score(self.metric, layer, head),
            _known(scores, self.control, layer, head),
            tuple(_known(scores, condition.metric, layer, head) for condition in self.also),
        )


@dataclass(frozen=True)
class Reading:
    """A rule read for one head. Scores that are not known are None."""

    rule: Rule
    score: HeadScore
    control: HeadScore | None = None
    also: tuple[HeadScore | None, ...] = ()  # of the rule's conditions

    @property
    def holds(self) -> bool:
        is_clear = self.floor is None or self.score.low > self.floor
        return self.rule.passes(self.score.value) and is_clear and self.meets_conditions

    @property
    def meets_conditions(self) -> bool:
        enough = self.score.support >= LEAST_SUPPORT
        return enough and all(
            condition.holds(score) for condition, score in zip(self.rule.also, self.also, strict=True)
        )

    @property
    def floor(self) -> float | None:
        """What the whole interval must lie above; None where there is no such thing."""
        if not self.rule.control:
            return self.rule.floor
        control = np.nan if self.control is None else self.control.value
        return float(CLEARLY * np.nanmax([0.0, control, self.score.chance]))

    @property
    def is_firm(self) -> bool:
        """The whole interval lies beyond the threshold, not the value alone, and so do those of the conditions."""
        if not self.rule.has_interval:
            return self.holds
        firm = [condition.is_firm(score) for condition, score in zip(self.rule.also, self.also, strict=True)]
        return self.rule.passes(self.score.low) and self.rule.passes(self.score.high) and all(firm)

    @property
    def words(self) -> str:
        return f"{self.rule.title} {self.rule.number(self.score.value)}{self.beside(digits=3)}"

    @property
    def nearness(self) -> float:
        return self.rule.nearness(self.score.value)

    def beside(self, *, digits: int = 2, last: str = "") -> str:
        """Chance, the conditions' scores and what else there is to say, in brackets.

        Chance is left out where it is unknown or, as for broad heads, 1 by definition.
        """
        is_told = self.score.chance < 1 - 1e-6  # of rounding
        told = [f"chance {number(self.score.chance, 'share', digits=digits)}"] if is_told else []
        for condition, score in zip(self.rule.also, self.also, strict=True):
            told += [] if score is None else [f"{condition.words} {number(score.value, 'share', digits=digits)}"]
        told += [last] if last else []
        return f" ({'; '.join(told)})" if told else ""

    def head_role(self, *, null: float, excess: float, q: float) -> HeadRole:
        score = self.score
        value = self.rule.number(score.value, digits=2)
        reach = ""
        if np.isfinite([score.low, score.high]).all():
            ends = [self.rule.number(end, digits=2) for end in (score.low, score.high)]
            reach = f" [{ends[0]}, {ends[1]}]"
        return HeadRole(
            self.rule.role,
            score.layer,
            score.head,
            self.rule.metric,
            value=score.value,
            low=score.low,
            high=score.high,
            chance=score.chance,
            null=null,
            null_name=self._null_name(null),
            excess=excess,
            q=q,
            support=score.support,
            is_firm=self.is_firm,
            sentence=f"{self.rule.claim}: {value}{reach} {self.rule.measure}{self._opponents()}",
        )

    def _null_name(self, null: float) -> str:
        if np.isnan(null):
            return ""
        if self.rule.floor is not None:
            return "a fixed offset"
        return self.rule.control_name if self.control is not None and null == self.control.value else "chance"

    def _opponents(self) -> str:
        told = self.beside()
        if self.control is None:
            return told
        control = f"{self.rule.control_name} {number(self.control.value, 'share', digits=2)}"
        return f"{told[:-1]}; {control})" if told else f" ({control})"


def _known(scores: ScoreTable, metric: str, layer: int, head: int) -> HeadScore | None:
    score = scores.score(metric, layer, head) if metric in scores else None
    return score if score is not None and np.isfinite(score.value) else None
