"""What the report claims: what the rules say of each head, and the sentences at the top.

Only words about where attention goes ("attends to"): attention scores alone do not show what a head is good for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headlens.evidence_table import Evidence, MetricEvidence
from headlens.numbers import amount, number
from headlens.report.claims import Held, letters, sentence, told
from headlens.report.rules import RULES, Rule, Trait, rules_for
from headlens.scores import HeadScore, ScoreTable, head_name

__all__ = ["RULES", "Finding", "HeadTraits", "Rule", "Trait", "findings", "head_traits", "rules_for"]

MOST_SENTENCES, FEWEST_SENTENCES = 6, 3  # beside claims from evidence, rules get the rest, and the fewest in any case
NAMED_HEADS = 4  # heads named in one sentence; the rest are counted


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
    misses = sorted(set(rules) - set(hits), key=lambda rule: (_distance(scores, rule), rules.index(rule)))
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
    measured = [rule.read(scores, layer, head) for rule in rules]
    defined = [trait for trait in measured if np.isfinite(trait.score.value)]
    ahead = [trait.held for trait in defined if trait.holds and trait.rule.precedes_claims]
    behind = [trait.held for trait in defined if trait.holds and not trait.rule.precedes_claims]
    nearest = max(defined, key=lambda trait: (trait.meets_conditions, trait.nearness), default=None)
    return HeadTraits(layer, head, (*ahead, *claimed, *behind), nearest)


def _ranked(scores: ScoreTable, rule: Rule) -> list[Trait]:
    """The rule read for all heads, those that meet its conditions first, and of them the best."""
    heads = scores.best(rule.metric, scores.n_layers * scores.n_heads, smallest=rule.is_below)
    return sorted((rule.read(scores, head.layer, head.head) for head in heads), key=lambda t: not t.meets_conditions)


def _holding(scores: ScoreTable, rule: Rule) -> list[Trait]:
    return [trait for trait in _ranked(scores, rule) if trait.holds]


def _distance(scores: ScoreTable, rule: Rule) -> tuple[bool, float]:
    """For sorting rules that no head passes, the nearest first."""
    best = _ranked(scores, rule)[0]
    return not best.meets_conditions, -best.nearness


def _hit(scores: ScoreTable, rule: Rule) -> Finding:
    holding = _holding(scores, rule)
    count = len(holding)
    first, *others = holding[:NAMED_HEADS]
    value = _short(first.score.value)
    parts: list[str | HeadScore] = [first.score, f" {rule.claim}: {value} {rule.measure}{first.beside()}"]
    for place, trait in enumerate(others):
        joint = ("; so does " if count == 2 else "; so do ") if place == 0 else _joint(place, others, count)
        parts += [joint, trait.score, f" ({_short(trait.score.value)})"]
    if count > NAMED_HEADS:
        parts.append(f" and {count - NAMED_HEADS} more")
    return Finding((*parts, "."), rule, passes=True)


def _joint(place: int, others: list[Trait], count: int) -> str:
    is_last_of_all = place == len(others) - 1 and count <= NAMED_HEADS
    return " and " if is_last_of_all else ", "


def _miss(scores: ScoreTable, rule: Rule) -> Finding:
    best = _ranked(scores, rule)[0]
    if not best.meets_conditions:
        return Finding((f"No head {rule.claim} with {rule.gloss}.",), rule)
    score = best.score
    # three decimals: with two, a near miss would print as the threshold itself
    text = f" comes nearest with {number(score.value, 'share')}{best.beside(digits=3)}"
    if rule.passes(score.value):
        text += f", but its interval {_reach(best)}"
    return Finding((f"No head {rule.claim} with {rule.gloss}; ", score, f"{text}."), rule)


def _reach(trait: Trait) -> str:
    low = trait.score.low
    if not low >= 0:
        return "is not known"
    wanted = f", not above {_short(trait.floor or 0.0)}, twice its control or chance" if trait.rule.control else ""
    return f"reaches down to {number(low, 'share')}{wanted}"


def _short(value: float) -> str:
    return number(value, "share", digits=2)
