"""Roles that annotated words show: what evidence confirmed is firm, what only its tests single out is tentative."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from headlens.evidence_table import ABOVE, POSITIVE, Claim, Evidence, MetricEvidence
from headlens.roles.catalogue import claim_of
from headlens.roles.role import HeadRole, excess_of
from headlens.scores import ScoreTable
from headlens.wording import rival_words, way_of

NAN = float("nan")


def roles_from(evidence: Evidence, scores: ScoreTable) -> Iterator[HeadRole]:
    """One for each head and metric, firm ones first."""
    told = set()
    spare = _told_twice(evidence)
    for row in (*evidence.relations, *evidence.metrics):
        place = (row.metric, row.layer, row.head)
        is_asked = claim_of(row.metric) is not None and row.metric not in spare
        if row.verdict in POSITIVE and place not in told and is_asked:
            told.add(place)
            yield _confirmed(row)
    for claim in evidence.claims():
        place = (claim.metric, claim.layer, claim.head)
        if place not in told and claim_of(claim.metric) is not None and claim.metric not in spare:
            yield _singled_out(claim, evidence[claim.metric], scores, margin=evidence.settings.margin)


def _told_twice(evidence: Evidence) -> set[str]:
    """Metrics whose decisions are those of another one: of a relation its subtype goes; of mentions that are all
    pronouns, the metric of all mentions, or pronoun reference would be told as coreference beyond it."""
    decisions = {row.metric: row.decisions for row in evidence.metrics}
    subtypes = {name: f"{name.partition(':')[0]}]" for name in decisions if ":" in name}
    pronouns = {name.replace("[pronoun", "[all"): name for name in decisions if name.startswith("coref[pronoun")}
    return {name for name, other in (subtypes | pronouns).items() if decisions.get(name, -1) == decisions.get(other)}


def _confirmed(row: MetricEvidence) -> HeadRole:
    role = claim_of(row.metric)
    assert role is not None
    rival = row.baselines.get(row.rival)
    null, name = (rival.held_out, rival_words(row.rival).phrase) if rival else (row.chance, "chance")
    informed = _Informed.held_out(row)
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
            f"documents [{_percent(row.low)}, {_percent(row.high)}]; {name} {_percent(null)}{informed.words}"
        ),
        **informed.fields,
    )


def _singled_out(claim: Claim, row: MetricEvidence, scores: ScoreTable, *, margin: float) -> HeadRole:
    role = claim_of(claim.metric)
    assert role is not None
    score = scores.score(claim.metric, claim.layer, claim.head) if claim.metric in scores else None
    low, high = (score.low, score.high) if score is not None else (NAN, NAN)
    has_baseline = claim.baseline >= 0
    null, name = (claim.baseline, "best baseline") if has_baseline else (row.chance, "chance")
    informed = _Informed.on_all_documents(row, claim.value, margin)
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
            f"documents that it was found on; {name} {_percent(null)}{informed.words}"
        ),
        **informed.fields,
    )


@dataclass(frozen=True)
class _Informed:
    """The best rule that reads annotation which no head is given, beside a head; without a name there is none."""

    name: str = ""
    value: float = NAN
    is_beaten: bool = True  # by the head, by the margin

    @classmethod
    def held_out(cls, row: MetricEvidence) -> _Informed:
        if not row.informed:
            return cls()
        return cls(rival_words(row.informed).phrase, row.baselines[row.informed].held_out, row.verdict == ABOVE)

    @classmethod
    def on_all_documents(cls, row: MetricEvidence, value: float, margin: float) -> _Informed:
        if not row.informed:
            return cls()
        full = row.baselines[row.informed].full
        return cls(rival_words(row.informed).phrase, full, value >= (1 + margin) * full)

    @property
    def words(self) -> str:
        return "" if self.is_beaten else f"; {self.name} {_percent(self.value)}"

    @property
    def fields(self) -> dict[str, Any]:
        return {"informed": self.value, "informed_name": self.name, "is_above_informed": self.is_beaten}


def _excess(*numbers: float) -> float:
    return float(excess_of(*(np.array(number) for number in numbers)))


def _percent(value: float) -> str:
    return "an unknown share" if np.isnan(value) else f"{value:.0%}"
