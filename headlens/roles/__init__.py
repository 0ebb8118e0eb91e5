"""From scores to names: which roles each head has, by rules that stand in one place. No torch here.

from headlens.roles import roles_of

roles = roles_of(profile.scores, profile.evidence)  # or profile.roles
roles.label(7, 9), roles.of(7, 9), roles.heads("induction")
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headlens.evidence_table import Evidence
from headlens.roles.catalogue import CLAIMS, RULES, claim_of
from headlens.roles.claims import roles_from
from headlens.roles.role import HeadRole, Role, excess_of
from headlens.roles.rules import Reading, Rule
from headlens.roles.table import Roles
from headlens.scores import Floats, ScoreTable
from headlens.significance import benjamini_hochberg

__all__ = ["HeadRole", "Reading", "Role", "Roles", "Rule", "roles_of", "rules_for"]

ALPHA = 0.05  # false discovery rate among all heads and rules


def roles_of(scores: ScoreTable, evidence: Evidence | None = None) -> Roles:
    """Every role that every head has.

    A role of a threshold also wants its score clear of the null: q below .05 among all heads and rules, from the excess
    in standard errors taken as normal (Benjamini and Hochberg 1995). Where no interval or null is known, the threshold
    decides alone.
    """
    rules = rules_for(scores)
    found = [*_from_rules(scores, rules)]
    if evidence is not None:
        found += roles_from(evidence, scores)
    metrics = [row.metric for row in evidence.metrics] if evidence is not None else []
    claims = {claim.role.id: claim.role for name in metrics if (claim := claim_of(name)) is not None}
    asked = [*(rule.role for rule in rules), *(claim.role for claim in CLAIMS if claim.role.id in claims)]
    return Roles(scores.n_layers, scores.n_heads, tuple(sorted(asked, key=lambda role: role.rank)), tuple(found))


def rules_for(scores: ScoreTable) -> tuple[Rule, ...]:
    """The rules whose scores are in the table and defined for at least one head.

    Where the first token is always [CLS], the two scores are one, and only the rule of [CLS] reads it.
    """
    spare = "surface.first" if _cls_comes_first(scores) else None
    return tuple(rule for rule in RULES if rule.metric != spare and rule.can_read(scores))


def _from_rules(scores: ScoreTable, rules: tuple[Rule, ...]) -> Iterator[HeadRole]:
    from scipy.special import ndtr

    if not rules:
        return
    nulls = np.stack([rule.nulls(scores) for rule in rules])
    excess = np.stack([_excess(rule, scores, null) for rule, null in zip(rules, nulls, strict=True)])
    q = benjamini_hochberg(ndtr(-excess))
    for place, rule in enumerate(rules):
        for layer, head in rule.passing(scores[rule.metric]):
            reading, here = rule.read(scores, layer, head), (place, layer, head)
            if reading.holds and not q[here] >= ALPHA:
                yield reading.head_role(null=float(nulls[here]), excess=float(excess[here]), q=float(q[here]))


def _excess(rule: Rule, scores: ScoreTable, null: Floats) -> Floats:
    place = scores.index(rule.metric)
    return excess_of(scores[rule.metric], null, scores.low[place], scores.high[place], is_below=rule.is_below)


def _cls_comes_first(scores: ScoreTable) -> bool:
    if "surface.cls" not in scores or "surface.first" not in scores:
        return False
    return np.allclose(scores["surface.cls"], scores["surface.first"], atol=1e-6, equal_nan=True)
