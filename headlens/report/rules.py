"""By which rules the report says that a head has a trait: a score beyond a named threshold, each with its source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from headlens.numbers import number
from headlens.report.claims import Held
from headlens.scores import HeadScore, ScoreTable

CLEARLY = 2.0  # times the control and chance: our choice
NO_OP_RATIO = 1 / 3  # of what sinks bring, by norm, over what they are paid; our choice, after Kobayashi et al. 2020

_CLARK_POSITION = "Clark et al. 2019, section 3.1: more than half of the attention"
_CLARK_TOKEN = "Clark et al. 2019, labels of their figure of head clusters: .6"
_INDUCTION = "after Olsson et al. 2022, prefix matching and copying; .4 is our choice, and twice its control and chance"


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
    """A head has the trait if its score is above `threshold`, or below it; `claim` and `measure` make the sentence."""

    letter: str  # on the head map; empty for a trait that is only told in a sentence
    trait: str
    metric: str
    threshold: float
    claim: str  # "attends to the previous token"
    measure: str  # "of its mass on average"
    source: str
    colour: str  # class of the style sheet; traits of one kind share it, the letter tells them apart
    is_below: bool = False
    floor: float | None = None  # the whole interval must lie above it, too: what a head gets without the trait
    control: str = ""  # where there is no such trait to see: the whole interval must lie CLEARLY above it and chance
    also: tuple[Condition, ...] = ()  # all must hold, too
    precedes_claims: bool = False  # on the head map: more specific than syntax and coreference

    @property
    def gloss(self) -> str:
        side = "under" if self.is_below else "over"
        more = "".join(f", {condition.gloss}" for condition in self.also)
        return f"{side} {number(self.threshold, 'share', digits=2)} {self.measure}{more}"

    def passes(self, value: float) -> bool:
        return value < self.threshold if self.is_below else value > self.threshold

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

    def read(self, scores: ScoreTable, layer: int, head: int) -> Trait:
        """What the scores of one head say."""
        return Trait(
            self,
            scores.score(self.metric, layer, head),
            _known(scores, self.control, layer, head),
            tuple(_known(scores, condition.metric, layer, head) for condition in self.also),
        )


@dataclass(frozen=True)
class Trait:
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
        return all(condition.holds(score) for condition, score in zip(self.rule.also, self.also, strict=True))

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
        firm = [condition.is_firm(score) for condition, score in zip(self.rule.also, self.also, strict=True)]
        return self.rule.passes(self.score.low) and self.rule.passes(self.score.high) and all(firm)

    @property
    def words(self) -> str:
        return f"{self.rule.trait} {number(self.score.value, 'share')}{self.beside(digits=3)}"

    @property
    def held(self) -> Held:
        rule = self.rule
        return Held(rule.letter, rule.trait, rule.colour, rule.gloss, self.words, self.is_firm)

    @property
    def nearness(self) -> float:
        return self.rule.nearness(self.score.value)

    def beside(self, *, digits: int = 2) -> str:
        """Chance and the conditions' scores, in brackets.

        Chance is left out where it is unknown or, as for broad heads, 1 by definition.
        """
        is_told = self.score.chance < 1 - 1e-6  # of rounding
        told = [f"chance {number(self.score.chance, 'share', digits=digits)}"] if is_told else []
        for condition, score in zip(self.rule.also, self.also, strict=True):
            told += [] if score is None else [f"{condition.words} {number(score.value, 'share', digits=digits)}"]
        return f" ({'; '.join(told)})" if told else ""


def rules_for(scores: ScoreTable) -> tuple[Rule, ...]:
    """The rules whose scores are in the table and defined for at least one head.

    Where the first token is always [CLS], the two scores are one, and only the rule of [CLS] reads it.
    """
    spare = "surface.first" if _cls_comes_first(scores) else None
    return tuple(rule for rule in RULES if rule.metric != spare and rule.can_read(scores))


def _cls_comes_first(scores: ScoreTable) -> bool:
    if "surface.cls" not in scores or "surface.first" not in scores:
        return False
    return np.allclose(scores["surface.cls"], scores["surface.first"], atol=1e-6, equal_nan=True)


def _known(scores: ScoreTable, metric: str, layer: int, head: int) -> HeadScore | None:
    score = scores.score(metric, layer, head) if metric in scores else None
    return score if score is not None and np.isfinite(score.value) else None


_PREFIX = Condition("repetition.prefix_matching", "prefix matching", 0.4, if_unknown=True)

# In order of precedence, behind claims from evidence unless they say otherwise: the first that holds gives the letter
# of a head, so that attention to a resting place ([CLS], [SEP], the first token) or to everything never hides a more
# telling trait.
RULES: tuple[Rule, ...] = (
    Rule(
        letter="I",
        trait="induction",
        metric="repetition.induction",
        threshold=0.4,
        claim="attends to what followed the same token before (induction)",
        measure="of its mass, in random tokens written twice",
        source=_INDUCTION,
        colour="t-repetition",
        control="repetition.induction_control",
        also=(_PREFIX, Condition("repetition.copying", "copying", by="high", if_unknown=True)),
        precedes_claims=True,
    ),
    Rule(
        letter="X",
        trait="anti-induction",
        metric="repetition.induction",
        threshold=0.4,
        claim="attends to what followed the same token before without copying it",
        measure="of its mass, in random tokens written twice",
        source=f"{_INDUCTION}; their anti-copying prefix-search heads",
        colour="t-repetition",
        control="repetition.induction_control",
        also=(_PREFIX, Condition("repetition.copying", "copying", by="high", is_below=True)),
        precedes_claims=True,
    ),
    Rule(
        letter="A",
        trait="adjacent phrase",
        metric="phrase.neighbour",
        threshold=0.6,
        claim="attends to the neighbour in the same phrase",
        measure="of the words between one inside and one outside",
        source="our choice; a head that looks at a fixed offset gets .50, and the interval must lie above that",
        colour="t-phrase",
        floor=0.5,
    ),
    Rule(
        letter="D",
        trait="duplicate token",
        metric="repetition.duplicate",
        threshold=0.4,
        claim="attends to the same token elsewhere",
        measure="of its mass, in random tokens written twice",
        source="after Wang et al. 2023, duplicate token heads; .4 is our choice, and twice its control and chance",
        colour="t-repetition",
        control="repetition.duplicate_control",
    ),
    Rule(
        letter=".",
        trait="full stop",
        metric="surface.full_stop",
        threshold=0.6,
        claim="attends to full stops",
        measure="of its mass on average",
        source=_CLARK_TOKEN,
        colour="t-punctuation",
    ),
    Rule(
        letter=",",
        trait="comma",
        metric="surface.comma",
        threshold=0.6,
        claim="attends to commas",
        measure="of its mass on average",
        source=_CLARK_TOKEN,
        colour="t-punctuation",
    ),
    Rule(
        letter="M",
        trait="punctuation mark",
        metric="border.punctuation",
        threshold=0.5,
        claim="attends to punctuation",
        measure="of its mass on average",
        source="our choice, as for positions: more than half of the attention",
        colour="t-punctuation",
    ),
    Rule(
        letter="P",
        trait="previous token",
        metric="position.mass[-1]",
        threshold=0.5,
        claim="attends to the previous token",
        measure="of its mass on average",
        source=_CLARK_POSITION,
        colour="t-position",
    ),
    Rule(
        letter="N",
        trait="next token",
        metric="position.mass[1]",
        threshold=0.5,
        claim="attends to the next token",
        measure="of its mass on average",
        source=_CLARK_POSITION,
        colour="t-position",
    ),
    Rule(
        letter="S",
        trait="the token itself",
        metric="position.mass[0]",
        threshold=0.5,
        claim="attends to the token itself",
        measure="of its mass on average",
        source=_CLARK_POSITION,
        colour="t-position",
    ),
    Rule(
        letter="V",
        trait="previous token of random ones",
        metric="repetition.previous",
        threshold=0.5,
        claim="attends to the previous token whatever the words",
        measure="of its mass, in random tokens",
        source=f"{_CLARK_POSITION}; on random tokens, as in TransformerLens' demonstrations",
        colour="t-position",
    ),
    Rule(
        letter="Z",
        trait="sink of small values",
        metric="contribution.sink_weight",
        threshold=0.3,
        claim="attends to the first and special tokens, of which it takes little",
        measure="of its mass on average",
        source="after Kobayashi et al. 2020 and Gu et al. 2025; .3 as for the first token, a third is our choice",
        colour="t-sink",
        also=(Condition("contribution.sink_ratio", "contribution over mass", NO_OP_RATIO, is_below=True),),
    ),
    Rule(
        letter="C",
        trait="[CLS]",
        metric="surface.cls",
        threshold=0.6,
        claim="attends to [CLS]",
        measure="of its mass on average",
        source=_CLARK_TOKEN,
        colour="t-sink",
    ),
    Rule(
        letter="E",
        trait="[SEP]",
        metric="surface.sep",
        threshold=0.6,
        claim="attends to [SEP]",
        measure="of its mass on average",
        source=_CLARK_TOKEN,
        colour="t-sink",
    ),
    Rule(
        letter="F",
        trait="first token",
        metric="surface.first",
        threshold=0.3,
        claim="attends to the first token",
        measure="of its mass on average",
        source="Gu et al. 2025: an attention sink holds more than .3",
        colour="t-sink",
    ),
    Rule(
        letter="B",
        trait="broad",
        metric="surface.breadth",
        threshold=0.85,
        claim="attends broadly",
        measure="of the entropy of uniform attention",
        source="after Clark et al. 2019, whose broad heads lie above 3.8 of about 4.5 nats",
        colour="t-broad",
    ),
    Rule(
        letter="",
        trait="position alone",
        metric="position.variability",
        threshold=0.05,
        claim="attends by relative position whatever the words",
        measure="of the variance of its pattern left to explain",
        source="after Vig and Belinkov 2019: variability below .05",
        colour="",
        is_below=True,
    ),
)
