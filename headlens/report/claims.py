"""Which evidence is told in a sentence at the top of the report, and in which words."""

from __future__ import annotations

from headlens.evidence_table import ABOVE, POSITIVE, Evidence, MetricEvidence
from headlens.numbers import number
from headlens.report.evidence_rows import rivals_of
from headlens.wording import ALL, SUBJECT_VERB, SYNTAX, family_of, is_subtype, rival_words, way_of

MOST_CLAIMS = 4  # sentences
_REFERENCE = ("coref[pronoun]", "choice[all]")  # told second, after the subject and its verb
_TOLD = ("coref[all]", "coref[proper]", "coref[nominal]", *_REFERENCE)  # groups within these are not told again


def told(evidence: Evidence) -> list[MetricEvidence]:
    """At most four rows with a positive verdict: subject and verb, pronouns, then those that gain most.

    Rows that are above an informed rule, too, come before those that are not; all relations together come last.
    """
    relations = [row for row in evidence.relations if family_of(row.metric) in SYNTAX and not is_subtype(row.relation)]
    others = [row for row in evidence.metrics if row.metric in _TOLD]
    rows: list[MetricEvidence] = [row for row in (*relations, *others) if row.verdict in POSITIVE]
    if any(row.relation == SUBJECT_VERB for row in rows):
        rows = [row for row in rows if row.relation != "nsubj"]  # nearly the same decisions
    return sorted(rows, key=_rank)[:MOST_CLAIMS]


def sentence(row: MetricEvidence) -> str:
    """All of a sentence but for the head, which stands before it."""
    defined = [name for name in rivals_of([row]) if row.baselines[name].held_out >= 0]
    names = sorted(defined, key=lambda name: row.baselines[name].is_informed)
    rivals = [f"{rival_words(name).phrase} {_short(row.baselines[name].held_out)}" for name in names]
    beside = f"; {', '.join(rivals)}" if rivals else f" (chance {_short(row.chance)})"
    reach = f"[{_short(row.low)}, {_short(row.high)}]"
    return f" attends {way_of(row.metric).sentence}: {_short(row.held_out)} held out {reach}{beside}."


def _rank(row: MetricEvidence) -> tuple[int, bool, float]:
    first = 0 if row.relation == SUBJECT_VERB else 1 if row.metric in _REFERENCE else 3 if row.relation == ALL else 2
    return first, row.verdict != ABOVE, -row.gain


def _short(value: float) -> str:
    return number(value, "share", digits=2)
