"""Which evidence is told in a sentence at the top of the report, and in which words."""

from __future__ import annotations

from collections.abc import Sequence

from headlens.evidence_table import ABOVE, POSITIVE, Evidence, MetricEvidence
from headlens.numbers import number
from headlens.report.evidence_rows import rivals_of
from headlens.wording import ALL, SUBJECT_VERB, SYNTAX, family_of, is_part_of, is_subtype, rival_words, way_of

MOST_CLAIMS = 4  # sentences
_REFERENCE = ("coref[pronoun]", "choice[all]")  # told second, after the subject and its verb
_EVERY = ("and not better than every baseline", "and better than every baseline")
_TOLD = ("coref[all]", "coref[proper]", "coref[nominal]", *_REFERENCE)  # groups within these are not told again


def told(evidence: Evidence) -> list[MetricEvidence]:
    """At most four rows with a positive verdict: subject and verb, pronouns, then those that gain most.

    Rows that are above an informed rule, too, come before those that are not; all relations together come last.
    """
    relations = [row for row in evidence.relations if family_of(row.metric) in SYNTAX and not is_subtype(row.relation)]
    others = [row for row in evidence.metrics if row.metric in _TOLD]
    return sorted(_positive([*relations, *others]), key=_rank)[:MOST_CLAIMS]


def further_claims(evidence: Evidence) -> str:
    """How many relations and kinds of reference with a positive verdict are told in no sentence; empty for none."""
    rows = [row for row in _positive(evidence.distinct_relations) if not _is_told(row, told(evidence))]
    if not rows:
        return ""
    above = sum(row.verdict == ABOVE for row in rows)
    every = f"{above or 'none'} of them better than every baseline" if len(rows) > 1 else _EVERY[above]
    what = "relation or kind of reference has" if len(rows) == 1 else "relations and kinds of reference have"
    return (
        f"{len(rows):,} more {what} a head that does better than position explains, {every}: see the tables of the "
        "report."
    )


def sentence(row: MetricEvidence) -> str:
    """All of a sentence but for the head, which stands before it."""
    defined = [name for name in rivals_of([row]) if row.baselines[name].held_out >= 0]
    names = sorted(defined, key=lambda name: row.baselines[name].is_informed)
    rivals = [f"{rival_words(name).phrase} {_short(row.baselines[name].held_out)}" for name in names]
    beside = f"; {', '.join(rivals)}" if rivals else f" (chance {_short(row.chance)})"
    reach = f"[{_short(row.low)}, {_short(row.high)}]"
    return f" attends {way_of(row.metric).sentence}: {_short(row.held_out)} held out {reach}{beside}."


def _is_told(row: MetricEvidence, sentences: Sequence[MetricEvidence]) -> bool:
    """By itself, or as a part of what is told."""
    of_all = {name for one in sentences if one.relation != ALL for name in (one.relation, one.metric)}
    return row.metric in of_all or any(is_part_of(row.relation, name) for name in of_all)


def _positive(rows: Sequence[MetricEvidence]) -> list[MetricEvidence]:
    found = [row for row in rows if row.verdict in POSITIVE]
    if any(row.relation == SUBJECT_VERB for row in found):
        return [row for row in found if row.relation != "nsubj"]  # nearly the same decisions
    return found


def _rank(row: MetricEvidence) -> tuple[int, bool, float]:
    first = 0 if row.relation == SUBJECT_VERB else 1 if row.metric in _REFERENCE else 3 if row.relation == ALL else 2
    return first, row.verdict != ABOVE, -row.gain


def _short(value: float) -> str:
    return number(value, "share", digits=2)
