"""What the report claims, and by which rule: a score above a named threshold, each with its source.

Only words about where attention goes ("attends to"): attention scores alone do not show what a head is good for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headlens.report.numbers import amount, number
from headlens.scores import HeadScore, ScoreTable, head_name

MOST_SENTENCES, FEWEST_SENTENCES = 6, 3
NAMED_HEADS = 4  # heads named in one sentence; the rest are counted

_CLARK_POSITION = "Clark et al. 2019, section 3.1: more than half of the attention"
_CLARK_TOKEN = "Clark et al. 2019, labels of their figure of head clusters: .6"


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

    def holds(self, value: float) -> bool:
        return value < self.threshold if self.is_below else value > self.threshold

    def nearness(self, value: float) -> float:
        """How near a value is to the threshold, 1 at the threshold, more beyond it."""
        if not self.is_below:
            return value / self.threshold
        return self.threshold / value if value > 0 else np.inf


# In order of precedence: the first that holds gives the letter of a head, so that attention to a resting place
# ([CLS], [SEP], the first token) or to everything never hides a more telling trait.
RULES: tuple[Rule, ...] = (
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


@dataclass(frozen=True)
class Trait:
    rule: Rule
    score: HeadScore

    @property
    def holds(self) -> bool:
        return self.rule.holds(self.score.value)

    @property
    def is_firm(self) -> bool:
        """The whole interval lies beyond the threshold, not the value alone."""
        return self.rule.holds(self.score.low) and self.rule.holds(self.score.high)

    @property
    def nearness(self) -> float:
        return self.rule.nearness(self.score.value)


@dataclass(frozen=True)
class HeadTraits:
    """Traits of a head that have a letter: those that hold, the one that names the head first, and the nearest one."""

    layer: int
    head: int
    held: tuple[Trait, ...]
    nearest: Trait | None  # nearest to its threshold, as a share of the threshold; None where nothing is defined

    @property
    def name(self) -> str:
        return head_name(self.layer, self.head)


@dataclass(frozen=True)
class Finding:
    """One sentence: text with heads in between, so that a page can link them. `rule` is None for a plain remark."""

    parts: tuple[str | HeadScore, ...]
    rule: Rule | None = None
    passes: bool = False

    @property
    def text(self) -> str:
        return "".join(part if isinstance(part, str) else part.name for part in self.parts)

    @property
    def head(self) -> HeadScore | None:
        """The head that the sentence is about."""
        return next((part for part in self.parts if not isinstance(part, str)), None)


def rules_for(scores: ScoreTable) -> tuple[Rule, ...]:
    """The rules whose score is in the table and defined for at least one head.

    Where the first token is always [CLS], the two scores are one, and only the rule of [CLS] reads it.
    """
    spare = "surface.first" if _cls_comes_first(scores) else None
    return tuple(
        rule
        for rule in RULES
        if rule.metric in scores and rule.metric != spare and np.isfinite(scores[rule.metric]).any()
    )


def head_traits(scores: ScoreTable) -> list[HeadTraits]:
    """What can be said about every head, layer by layer."""
    rules = [rule for rule in rules_for(scores) if rule.letter]
    places = np.ndindex(scores.n_layers, scores.n_heads)
    return [_traits_of(scores, layer, head, rules) for layer, head in places]


def findings(scores: ScoreTable) -> list[Finding]:
    """Three to six sentences: what passes a threshold in the order of RULES, then the nearest misses."""
    rules = rules_for(scores)
    if not rules:
        return [Finding(("No finding: the table holds none of the scores that the rules read.",))]
    hits = [rule for rule in rules if _best(scores, rule).holds]
    misses = sorted(set(rules) - set(hits), key=lambda rule: (-_best(scores, rule).nearness, rules.index(rule)))
    opening = [] if hits else [Finding((f"No head passes any threshold of the {amount(len(rules), 'rule')}.",))]
    sentences = opening + [_hit(scores, rule) for rule in hits[:MOST_SENTENCES]]
    missing = max(FEWEST_SENTENCES - len(sentences), 0)
    return sentences + [_miss(scores, rule) for rule in misses[:missing]]


def _traits_of(scores: ScoreTable, layer: int, head: int, rules: list[Rule]) -> HeadTraits:
    measured = [Trait(rule, scores.score(rule.metric, layer, head)) for rule in rules]
    defined = [trait for trait in measured if np.isfinite(trait.score.value)]
    held = tuple(trait for trait in defined if trait.holds)
    return HeadTraits(layer, head, held, max(defined, key=lambda trait: trait.nearness, default=None))


def _cls_comes_first(scores: ScoreTable) -> bool:
    if "surface.cls" not in scores or "surface.first" not in scores:
        return False
    return np.allclose(scores["surface.cls"], scores["surface.first"], atol=1e-6, equal_nan=True)


def _best(scores: ScoreTable, rule: Rule) -> Trait:
    return Trait(rule, scores.best(rule.metric, 1, smallest=rule.is_below)[0])


def _hit(scores: ScoreTable, rule: Rule) -> Finding:
    ranked = scores.best(rule.metric, scores.n_layers * scores.n_heads, smallest=rule.is_below)
    count = sum(rule.holds(head.value) for head in ranked)
    first, *others = ranked[: min(count, NAMED_HEADS)]
    parts: list[str | HeadScore] = [first, f" {rule.claim}: {_short(first.value)} {rule.measure}{_chance(first)}"]
    for place, head in enumerate(others):
        joint = ("; so does " if count == 2 else "; so do ") if place == 0 else _joint(place, others, count)
        parts += [joint, head, f" ({_short(head.value)})"]
    if count > NAMED_HEADS:
        parts.append(f" and {count - NAMED_HEADS} more")
    return Finding((*parts, "."), rule, passes=True)


def _joint(place: int, others: list[HeadScore], count: int) -> str:
    is_last_of_all = place == len(others) - 1 and count <= NAMED_HEADS
    return " and " if is_last_of_all else ", "


def _miss(scores: ScoreTable, rule: Rule) -> Finding:
    best = _best(scores, rule).score
    # three decimals: with two, a near miss would print as the threshold itself
    text = f" comes nearest with {number(best.value, 'share')}{_chance(best, digits=3)}."
    threshold = number(rule.threshold, "share", digits=2)
    side = "under" if rule.is_below else "over"
    return Finding((f"No head {rule.claim} with {side} {threshold} {rule.measure}; ", best, text), rule)


def _short(value: float) -> str:
    return number(value, "share", digits=2)


def _chance(score: HeadScore, *, digits: int = 2) -> str:
    """Chance in brackets, left out where it is unknown or, as for broad heads, 1 by definition."""
    if not score.chance < 1:
        return ""
    return f" (chance {number(score.chance, 'share', digits=digits)})"
