"""What evidence lets the report claim: sentences of findings, and the heads with a letter for syntax or coreference."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from headlens.evidence_table import ABOVE, Claim, Evidence, MetricEvidence
from headlens.numbers import number
from headlens.report.evidence_rows import POSITIVE, SYNTAX, gain, rival_words, rivals_of
from headlens.wording import ALL, SUBJECT_VERB, family_of, is_subtype, way_of

MOST_CLAIMS = 4  # sentences
_REFERENCE = ("coref[pronoun]", "choice[all]")  # told second, after the subject and its verb
_TOLD = ("coref[all]", "coref[proper]", "coref[nominal]", *_REFERENCE)  # groups within these are not told again
Found = TypeVar("Found", MetricEvidence, Claim)

_NAMED = 3  # ways of attending that are named when a cell of the head map is pointed at


@dataclass(frozen=True)
class Held:
    """What a head is found to attend to, on the head map: a letter, and words with numbers for its hover."""

    letter: str
    trait: str
    colour: str  # class of the style sheet
    gloss: str  # what it takes, for the legend
    words: str
    is_firm: bool


@dataclass(frozen=True)
class _Kind:
    letter: str
    trait: str
    colour: str
    families: tuple[str, ...]
    gloss: str = "above every baseline but informed rules, and no accident among all tests"

    def has(self, metric: str) -> bool:
        """A group of pronouns alone does not tell: who looks at one kind of name is right on every second group."""
        return family_of(metric) in self.families and (family_of(metric) != "choice" or metric == "choice[all]")


# More specific first: coreference is about entities, syntax about a word and its neighbours
KINDS = (
    _Kind("R", "coreference", "t-coreference", ("coref", "choice")),
    _Kind("Y", "syntax", "t-syntax", SYNTAX),
)


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


def letters(evidence: Evidence) -> dict[tuple[int, int], list[Held]]:
    """By (layer, head): what is held of it, firm where the head was confirmed on documents that did not choose it.

    What is firm comes first.
    """
    claims = evidence.claims()
    rows: list[MetricEvidence] = [row for row in (*evidence.relations, *evidence.metrics) if row.verdict in POSITIVE]
    found: dict[tuple[int, int], list[Held]] = {}
    for kind in KINDS:
        firm = _by_head(row for row in rows if kind.has(row.metric))
        tentative = _by_head(claim for claim in claims if kind.has(claim.metric))
        for place in sorted({*firm, *tentative}):
            confirmed = sorted(firm.get(place, []), key=lambda row: -row.held_out)
            words = {row.metric: _held_out(row) for row in confirmed}
            for claim in _by_excess(tentative.get(place, [])):
                words.setdefault(claim.metric, _on_all(claim))
            held = Held(kind.letter, kind.trait, kind.colour, kind.gloss, _words(kind, words), place in firm)
            found.setdefault(place, []).append(held)
    return {place: sorted(of_head, key=lambda held: not held.is_firm) for place, of_head in found.items()}


def _rank(row: MetricEvidence) -> tuple[int, bool, float]:
    first = 0 if row.relation == SUBJECT_VERB else 1 if row.metric in _REFERENCE else 3 if row.relation == ALL else 2
    return first, row.verdict != ABOVE, -gain(row)


def _by_head(found: Iterable[Found]) -> dict[tuple[int, int], list[Found]]:
    by_head: dict[tuple[int, int], list[Found]] = {}
    for one in found:
        by_head.setdefault((one.layer, one.head), []).append(one)
    return by_head


def _by_excess(claims: Iterable[Claim]) -> list[Claim]:
    return sorted(claims, key=lambda claim: -(claim.value - (claim.baseline if claim.baseline >= 0 else 0)))


def _held_out(row: MetricEvidence) -> str:
    return f"{way_of(row.metric).sentence} {number(row.held_out, 'share')} held out"


def _on_all(claim: Claim) -> str:
    baseline = f" (best baseline {number(claim.baseline, 'share')})" if claim.baseline >= 0 else ""
    return f"{way_of(claim.metric).sentence} {number(claim.value, 'share')}{baseline}"


def _words(kind: _Kind, found: dict[str, str]) -> str:
    named = list(found.values())[:_NAMED]
    more = f" and {len(found) - len(named)} more" if len(found) > len(named) else ""
    return f"{kind.trait}: {'; '.join(named)}{more}"


def _short(value: float) -> str:
    return number(value, "share", digits=2)
