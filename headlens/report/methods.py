"""What the section on methods needs beside the scores: every role with its numbers, and which parts the page has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headlens.effects import ALPHA as ALPHA_OF_EFFECTS
from headlens.examples import LEAST_SHOWN, SMALLEST_SHARE
from headlens.numbers import number
from headlens.report.facts import Provenance, at
from headlens.report.similar import WEAK
from headlens.roles import ALPHA
from headlens.roles.catalogue import CLAIMS, RULES, FromEvidence
from headlens.roles.role import MOST_ERRORS
from headlens.roles.rules import CLEARLY, LEAST_SUPPORT, Rule

_FAMILIES = {
    "coref": "coref[{}]",
    "choice": "choice[all]",
    "subject_verb": "subject_verb.*",
    "syntax": "syntax.*[{}]",
}


@dataclass(frozen=True)
class RoleRow:
    """A role in the table of all roles, as text."""

    letter: str
    title: str
    kind: str
    scores: tuple[str, ...]
    threshold: str
    null: str
    further: str
    source: str


@dataclass(frozen=True)
class Methods:
    """Which parts of the page there are to tell of, and the numbers that decide."""

    roles: tuple[RoleRow, ...]
    has_similarity: bool = False
    has_examples: bool = False
    has_ablation: bool = False
    alpha: float = ALPHA
    alpha_of_effects: float = ALPHA_OF_EFFECTS
    support: int = LEAST_SUPPORT
    most_errors: float = MOST_ERRORS
    smallest_share: float = SMALLEST_SHARE
    least_shown: float = LEAST_SHOWN
    weak: float = WEAK


def methods_of(provenance: Provenance, *, has_similarity: bool = False, has_examples: bool = False) -> Methods:
    """What methods tell of this page; the roles are all of the catalogue, whether their scores are there or not."""
    rows = (*map(_of_rule, RULES), *map(_of_claim, CLAIMS))
    return Methods(rows, has_similarity, has_examples, has_ablation=bool(at(provenance, "ablation")))


def _of_rule(rule: Rule) -> RoleRow:
    return RoleRow(
        letter=rule.letter,
        title=rule.title,
        kind=rule.kind,
        scores=(rule.metric,),
        threshold=f"{'under' if rule.is_below else 'over'} {rule.number(rule.threshold, digits=2)} {rule.measure}",
        null=_null(rule),
        further="; ".join(_further(rule)),
        source=rule.source,
    )


def _null(rule: Rule) -> str:
    if rule.floor is not None:
        return f"a fixed offset, {number(rule.floor, 'share', digits=2)}"
    if rule.control:
        return f"{rule.control_name} ({rule.control}) or chance, whichever is higher"
    return "chance" if rule.has_null else "none: uniform attention is as broad as can be"


def _further(rule: Rule) -> Iterator[str]:
    """What else must hold."""
    if rule.floor is not None:
        yield f"the whole interval over {number(rule.floor, 'share', digits=2)}"
    if rule.control:
        yield f"the whole interval over {CLEARLY:g} times its null"
    for condition in rule.also:
        ends = ", by the upper end of its interval" if condition.by == "high" else ""
        yield f"{condition.gloss} ({condition.metric}{ends}{', where there is one' if condition.if_unknown else ''})"
    if not rule.has_interval:
        yield "weights have no interval, so the value decides alone"


def _of_claim(claim: FromEvidence) -> RoleRow:
    kinds = ", ".join(claim.kinds) if claim.kinds else "any"
    scores = tuple(_FAMILIES.get(family, f"{family}[{{}}]").format(kinds) for family in claim.families)
    return RoleRow(
        letter=claim.role.letter,
        title=claim.role.title,
        kind=claim.role.kind,
        scores=scores,
        threshold=claim.role.gloss,
        null="the strongest baseline that a head must be above; rules that read parts of speech are not among them",
        further="",
        source=claim.role.source,
    )
