"""What the report claims, and by which rule: a score above a named threshold, each with its source.

Only words about where attention goes ("attends to"): attention scores alone do not show what a head is good for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headlens.evidence_table import Evidence, MetricEvidence
from headlens.report.claims import Held, letters, sentence, told
from headlens.report.numbers import amount, number
from headlens.scores import HeadScore, ScoreTable, head_name

MOST_SENTENCES, FEWEST_SENTENCES = 6, 3  # beside claims from evidence, rules get the rest, and the fewest in any case
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
    floor: float | None = None  # the whole interval must lie above it, too: what a head gets without the trait

    @property
    def gloss(self) -> str:
        side = "under" if self.is_below else "over"
        return f"{side} {number(self.threshold, 'share', digits=2)} {self.measure}"

    def holds(self, score: HeadScore) -> bool:
        is_clear = self.floor is None or score.low > self.floor
        return self.passes(score.value) and is_clear

    def passes(self, value: float) -> bool:
        return value < self.threshold if self.is_below else value > self.threshold

    def nearness(self, value: float) -> float:
        """How near a value is to the threshold, 1 at the threshold, more beyond it."""
        if not self.is_below:
            floor = self.floor or 0.0
            return (value - floor) / (self.threshold - floor)
        return self.threshold / value if value > 0 else np.inf


# In order of precedence, behind claims from evidence: the first that holds gives the letter of a head, so that
# attention to a resting place ([CLS], [SEP], the first token) or to everything never hides a more telling trait.
RULES: tuple[Rule, ...] = (
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
        return self.rule.holds(self.score)

    @property
    def is_firm(self) -> bool:
        """The whole interval lies beyond the threshold, not the value alone."""
        return self.rule.passes(self.score.low) and self.rule.passes(self.score.high)

    @property
    def words(self) -> str:
        return f"{self.rule.trait} {number(self.score.value, 'share')}{_chance(self.score, digits=3)}"

    @property
    def held(self) -> Held:
        rule = self.rule
        return Held(rule.letter, rule.trait, rule.colour, rule.gloss, self.words, self.is_firm)

    @property
    def nearness(self) -> float:
        return self.rule.nearness(self.score.value)


@dataclass(frozen=True)
class HeadTraits:
    """What a head is found to attend to, the letter that names it first, and the rule whose threshold is nearest."""

    layer: int
    head: int
    held: tuple[Held, ...]
    nearest: Trait | None  # nearest to its threshold, as a share of the threshold; None where nothing is defined

    @property
    def name(self) -> str:
        return head_name(self.layer, self.head)


@dataclass(frozen=True)
class Finding:
    """One sentence: text with heads in between, so that a page can link them.

    It comes from a `rule` or from a row of `evidence`; a plain remark has neither.
    """

    parts: tuple[str | HeadScore, ...]
    rule: Rule | None = None
    passes: bool = False
    evidence: MetricEvidence | None = None

    @property
    def metric(self) -> str:
        """The score that the sentence is about; empty for a plain remark."""
        if self.evidence is not None:
            return self.evidence.metric
        return self.rule.metric if self.rule is not None else ""

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


def head_traits(scores: ScoreTable, evidence: Evidence | None = None) -> list[HeadTraits]:
    """What can be said about every head, layer by layer."""
    rules = [rule for rule in rules_for(scores) if rule.letter]
    claimed = letters(evidence) if evidence is not None else {}
    places = np.ndindex(scores.n_layers, scores.n_heads)
    return [_traits_of(scores, layer, head, rules, claimed.get((layer, head), [])) for layer, head in places]


def findings(scores: ScoreTable, evidence: Evidence | None = None) -> list[Finding]:
    """What evidence shows of syntax and coreference, in up to four sentences; then what passes a threshold in the order
    of RULES, then the nearest misses. From rules come three to six, fewer beside sentences from evidence.
    """
    claimed = [_claimed(row) for row in told(evidence)] if evidence is not None else []
    rules = rules_for(scores)
    if not rules:
        nothing = Finding(("No finding: the table holds none of the scores that the rules read.",))
        return claimed or [nothing]
    hits = [rule for rule in rules if _holding(scores, rule)]
    misses = sorted(set(rules) - set(hits), key=lambda rule: (-_best(scores, rule).nearness, rules.index(rule)))
    opening = [] if hits else [Finding((f"No head passes any threshold of the {amount(len(rules), 'rule')}.",))]
    room = max(MOST_SENTENCES - len(claimed), FEWEST_SENTENCES)
    sentences = claimed + opening + [_hit(scores, rule) for rule in hits[:room]]
    missing = max(FEWEST_SENTENCES - len(sentences), 0)
    return sentences + [_miss(scores, rule) for rule in misses[:missing]]


def _claimed(row: MetricEvidence) -> Finding:
    head = HeadScore(
        row.layer,
        row.head,
        value=row.held_out,
        low=row.low,
        high=row.high,
        chance=row.chance,
        support=float(row.decisions),
    )
    return Finding((head, sentence(row)), passes=True, evidence=row)


def _traits_of(scores: ScoreTable, layer: int, head: int, rules: list[Rule], claimed: list[Held]) -> HeadTraits:
    measured = [Trait(rule, scores.score(rule.metric, layer, head)) for rule in rules]
    defined = [trait for trait in measured if np.isfinite(trait.score.value)]
    held = tuple(trait.held for trait in defined if trait.holds)
    return HeadTraits(layer, head, (*claimed, *held), max(defined, key=lambda trait: trait.nearness, default=None))


def _cls_comes_first(scores: ScoreTable) -> bool:
    if "surface.cls" not in scores or "surface.first" not in scores:
        return False
    return np.allclose(scores["surface.cls"], scores["surface.first"], atol=1e-6, equal_nan=True)


def _holding(scores: ScoreTable, rule: Rule) -> list[HeadScore]:
    ranked = scores.best(rule.metric, scores.n_layers * scores.n_heads, smallest=rule.is_below)
    return [head for head in ranked if rule.holds(head)]


def _best(scores: ScoreTable, rule: Rule) -> Trait:
    return Trait(rule, scores.best(rule.metric, 1, smallest=rule.is_below)[0])


def _hit(scores: ScoreTable, rule: Rule) -> Finding:
    holding = _holding(scores, rule)
    count = len(holding)
    first, *others = holding[:NAMED_HEADS]
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
    text = f" comes nearest with {number(best.value, 'share')}{_chance(best, digits=3)}"
    if rule.passes(best.value):
        reach = f"reaches down to {number(best.low, 'share')}" if best.low >= 0 else "is not known"
        text += f", but its interval {reach}"
    return Finding((f"No head {rule.claim} with {rule.gloss}; ", best, f"{text}."), rule)


def _short(value: float) -> str:
    return number(value, "share", digits=2)


def _chance(score: HeadScore, *, digits: int = 2) -> str:
    """Chance in brackets, left out where it is unknown or, as for broad heads, 1 by definition."""
    if not score.chance < 1 - 1e-6:  # of rounding
        return ""
    return f" (chance {number(score.chance, 'share', digits=digits)})"
