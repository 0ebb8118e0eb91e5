"""Roles that annotated words show: what evidence confirmed is firm, what only its tests single out is tentative."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headlens.evidence_table import POSITIVE, Claim, Evidence, MetricEvidence
from headlens.roles.catalogue import claim_of
from headlens.roles.role import HeadRole, excess_of
from headlens.scores import ScoreTable
from headlens.wording import rival_words, way_of

NAN = float("nan")


def roles_from(evidence: Evidence, scores: ScoreTable) -> Iterator[HeadRole]:
    """One for each head and metric, firm ones first."""
    told = set()
    spare = _subtypes_alone(evidence)
    for row in (*evidence.relations, *evidence.metrics):
        place = (row.metric, row.layer, row.head)
        is_asked = claim_of(row.metric) is not None and row.metric not in spare
        if row.verdict in POSITIVE and place not in told and is_asked:
            told.add(place)
            yield _confirmed(row)
    for claim in evidence.claims():
        place = (claim.metric, claim.layer, claim.head)
        if place not in told and claim_of(claim.metric) is not None and claim.metric not in spare:
            yield _singled_out(claim, evidence[claim.metric], scores)


def _subtypes_alone(evidence: Evidence) -> set[str]:
    """Subtypes that are all there is of their relation, so that it tells the same."""
    decisions = {row.metric: row.decisions for row in evidence.metrics}
    subtypes = [(name, f"{name.partition(':')[0]}]") for name in decisions if ":" in name]
    return {name for name, whole in subtypes if decisions.get(whole) == decisions[name]}


def _confirmed(row: MetricEvidence) -> HeadRole:
    role = claim_of(row.metric)
    assert role is not None
    rival = row.baselines.get(row.rival)
    null, name = (rival.held_out, rival_words(row.rival).phrase) if rival else (row.chance, "chance")
    # the interval of the difference knows that head and baseline were right on the same words
    low, high = (rival.low, rival.high) if rival else (row.low - row.chance, row.high - row.chance)
    return HeadRole(
        role.role,
        row.layer,
        row.head,
        row.metric,
        value=row.held_out,
        low=row.low,
        high=row.high,
        chance=row.chance,
        null=null,
        null_name=name,
        excess=_excess(row.held_out - null, 0.0, low, high),
        q=row.q,
        support=float(row.decisions),
        is_firm=True,
        sentence=(
            f"attends {way_of(row.metric).sentence} in {_percent(row.held_out)} of {row.decisions:,} cases on held-out "
            f"documents [{_percent(row.low)}, {_percent(row.high)}]; {name} {_percent(null)}"
        ),
    )


def _singled_out(claim: Claim, row: MetricEvidence, scores: ScoreTable) -> HeadRole:
    role = claim_of(claim.metric)
    assert role is not None
    score = scores.score(claim.metric, claim.layer, claim.head) if claim.metric in scores else None
    low, high = (score.low, score.high) if score is not None else (NAN, NAN)
    has_baseline = claim.baseline >= 0
    null, name = (claim.baseline, "best baseline") if has_baseline else (row.chance, "chance")
    return HeadRole(
        role.role,
        claim.layer,
        claim.head,
        claim.metric,
        value=claim.value,
        low=low,
        high=high,
        chance=row.chance,
        null=null,
        null_name=name,
        excess=_excess(claim.value, null, low, high),
        q=claim.q,
        support=float(row.decisions),
        is_firm=False,
        sentence=(
            f"attends {way_of(claim.metric).sentence} in {_percent(claim.value)} of {row.decisions:,} cases, counting "
            f"documents that it was found on; {name} {_percent(null)}"
        ),
    )


def _excess(*numbers: float) -> float:
    return float(excess_of(*(np.array(number) for number in numbers)))


def _percent(value: float) -> str:
    return "an unknown share" if np.isnan(value) else f"{value:.0%}"
