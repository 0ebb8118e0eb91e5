"""What the report claims: what the rules say of each head, and the sentences at the top.

Only words about where attention goes ("attends to"): attention scores alone do not show what a head is good for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headlens.effects import Ablation
from headlens.evidence_table import Evidence, MetricEvidence
from headlens.numbers import amount, number
from headlens.report.claims import further_claims, sentence, told
from headlens.report.uses import use_of_heads
from headlens.roles import HeadRole, Reading, Roles, Rule, roles_of, rules_for
from headlens.scores import HeadScore, ScoreTable, head_name

MOST_SENTENCES, FEWEST_SENTENCES = 6, 3  # beside claims from evidence, rules get the rest, and the fewest in any case
_OF_EVIDENCE = ("coreference", "syntax")  # kinds of roles
NAMED_HEADS = 4  # heads named in one sentence; the rest are counted


@dataclass(frozen=True)
class HeadTraits:
    """The roles of a head, its label first, and the rule whose threshold is nearest."""

    layer: int
    head: int
    held: tuple[HeadRole, ...]
    nearest: Reading | None  # nearest to its threshold, as a share of the threshold; None where none is defined
    is_absent: bool = False  # no score is defined for it

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


def head_traits(scores: ScoreTable, roles: Roles) -> list[HeadTraits]:
    """What can be said about every head, layer by layer."""
    rules = rules_for(scores)
    n_defined = np.isfinite(scores.values).sum(axis=0)
    return [
        HeadTraits(
            layer,
            head,
            roles.of(layer, head),
            _nearest(scores, layer, head, rules),
            is_absent=bool(n_defined[layer, head] == 0),
        )
        for layer, head in np.ndindex(scores.n_layers, scores.n_heads)
    ]


def findings(
    scores: ScoreTable,
    evidence: Evidence | None = None,
    roles: Roles | None = None,
    ablation: Ablation | None = None,
) -> list[Finding]:
    """What evidence shows of syntax and coreference, in up to four sentences; then what passes a threshold in the order
    of RULES, then the nearest misses. From rules come three to six, fewer beside sentences from evidence. Last, where
    heads were taken out, which of them the model uses.
    """
    found = _of_attention(scores, evidence, roles)
    named = [part for finding in found for part in finding.parts if isinstance(part, HeadScore)]
    uses = use_of_heads(ablation, named) if ablation is not None else ()
    return [*found, *([Finding(uses)] if uses else [])]


def _of_attention(scores: ScoreTable, evidence: Evidence | None, roles: Roles | None) -> list[Finding]:
    claimed = [_claimed(row) for row in told(evidence)] if evidence is not None else []
    rules = rules_for(scores)
    roles = roles if roles is not None else roles_of(scores, evidence)
    if not rules:
        nothing = Finding(("No finding: the table holds none of the scores that the rules read.",))
        return claimed or [nothing]
    hits = [rule for rule in rules if roles.heads(rule.id)]
    misses = sorted(set(rules) - set(hits), key=lambda rule: (_distance(scores, rule), rules.index(rule)))
    opening = [] if any(not rule.role.is_rest for rule in hits) else [_nothing(rules, roles)]
    room = max(MOST_SENTENCES - len(claimed), FEWEST_SENTENCES)
    sentences = claimed + opening + [_hit(scores, rule, roles) for rule in hits[:room]]
    if evidence is not None and (more := further_claims(evidence)):
        sentences.insert(len(claimed), Finding((more,)))
    missing = max(FEWEST_SENTENCES - len(sentences), 0)
    return sentences + [_miss(scores, rule) for rule in misses[:missing]]


def _nothing(rules: Sequence[Rule], roles: Roles) -> Finding:
    counted = amount(len(rules), "rule")
    if any(not one.role.is_rest for one in roles):
        return Finding((f"No head passes any threshold of the {counted}.",))
    by_evidence = _not_by_evidence(roles)
    if len(roles):
        found = f"of the {counted}, only those of broad attention and resting places have one that passes{by_evidence}"
        return Finding((f"No head has a role that says what it looks for: {found}.",))
    return Finding((f"No head has a role: none passes a threshold of the {counted}{by_evidence}.",))


def _not_by_evidence(roles: Roles) -> str:
    asked = any(role.kind in _OF_EVIDENCE for role in roles.asked)
    return ", and annotated words single none out" if asked else ""


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


def _nearest(scores: ScoreTable, layer: int, head: int, rules: Sequence[Rule]) -> Reading | None:
    measured = [rule.read(scores, layer, head) for rule in rules]
    defined = [reading for reading in measured if np.isfinite(reading.score.value)]
    return max(defined, key=lambda reading: (reading.meets_conditions, reading.nearness), default=None)


def _ranked(scores: ScoreTable, rule: Rule) -> list[Reading]:
    """The rule read for all heads, those that meet its conditions first, and of them the best."""
    heads = scores.best(rule.metric, scores.n_layers * scores.n_heads, smallest=rule.is_below)
    return sorted((rule.read(scores, head.layer, head.head) for head in heads), key=lambda t: not t.meets_conditions)


def _holding(scores: ScoreTable, rule: Rule, roles: Roles) -> list[tuple[Reading, bool]]:
    """Readings of the heads that have the role, and whether they have it firmly."""
    is_firm = {one.name: one.is_firm for one in roles.heads(rule.id)}
    ranked = [(reading, reading.score.name) for reading in _ranked(scores, rule)]
    return [(reading, is_firm[name]) for reading, name in ranked if name in is_firm]


def _distance(scores: ScoreTable, rule: Rule) -> tuple[bool, float]:
    """For sorting rules that no head passes, the nearest first."""
    best = _ranked(scores, rule)[0]
    return not best.meets_conditions, -best.nearness


def _hit(scores: ScoreTable, rule: Rule, roles: Roles) -> Finding:
    holding = _holding(scores, rule, roles)
    count = len(holding)
    (first, is_firm), *others = holding[:NAMED_HEADS]
    value = rule.number(first.score.value, digits=2)
    beside = first.beside(last="" if is_firm else "tentative")
    parts: list[str | HeadScore] = [first.score, f" {rule.claim}: {value} {rule.measure}{beside}"]
    for place, (reading, is_firm) in enumerate(others):
        joint = ("; so does " if count == 2 else "; so do ") if place == 0 else _joint(place, len(others), count)
        value = rule.number(reading.score.value, digits=2)
        parts += [joint, reading.score, f" ({value}{'' if is_firm else ', tentative'})"]
    if count > NAMED_HEADS:
        parts.append(f" and {count - NAMED_HEADS} more")
    return Finding((*parts, "."), rule, passes=True)


def _joint(place: int, others: int, count: int) -> str:
    is_last_of_all = place == others - 1 and count <= NAMED_HEADS
    return " and " if is_last_of_all else ", "


def _miss(scores: ScoreTable, rule: Rule) -> Finding:
    best = _ranked(scores, rule)[0]
    if not best.meets_conditions:
        return Finding((f"No head {rule.claim}: that takes {rule.gloss}.",), rule)
    score = best.score
    # three decimals: with two, a near miss would print as the threshold itself
    text = f" comes nearest with {rule.number(score.value)}{best.beside(digits=3)}"
    if best.holds:
        text += ", which among all heads and rules may be chance"
    elif rule.passes(score.value):
        text += f", but its interval {_reach(best)}"
    return Finding((f"No head {rule.claim}: that takes {rule.gloss}; ", score, f"{text}."), rule)


def _reach(reading: Reading) -> str:
    low = reading.score.low
    if not low >= 0:
        return "is not known"
    wanted = f", not above {_short(reading.floor or 0.0)}, twice its control or chance" if reading.rule.control else ""
    return f"reaches down to {reading.rule.number(low)}{wanted}"


def _short(value: float) -> str:
    return number(value, "share", digits=2)
