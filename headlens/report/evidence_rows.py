"""Tables of evidence: one row a relation or metric, with everything that its accuracy must be held against."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from headlens.evidence_table import (
    ABOVE,
    INFORMED,
    PROFILE,
    SLIGHT,
    TOO_FEW,
    VERDICTS,
    Baseline,
    Evidence,
    MetricEvidence,
    RelationEvidence,
)
from headlens.numbers import amount, interval, number, probability, signed
from headlens.report.figures import strip
from headlens.wording import ALL, BASELINES, SUBJECT_VERB, SYNTAX, family_of, is_subtype, rival_words, title_of, way_of

if TYPE_CHECKING:
    from markupsafe import Markup

Known = TypeVar("Known", bound=MetricEvidence)

NOTHING = "–"


_MARKS = {ABOVE: "●", INFORMED: "◐", SLIGHT: "◐"}


@dataclass(frozen=True)
class Controls:
    """The best head of each copy of the model with random weights, by metric."""

    copies: int
    best: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class Column:
    title: str
    meaning: str = ""  # shown on hover
    is_number: bool = True
    width: str = ""  # class of the style sheet


@dataclass(frozen=True)
class Cell:
    text: str
    note: str = ""  # small, below
    hover: str = ""
    heads: tuple[str, ...] = ()  # names of heads that stand in place of the text, as links
    is_strong: bool = False
    picture: Markup | None = None


@dataclass(frozen=True)
class Row:
    cells: tuple[Cell, ...]
    inner: tuple[Row, ...] = ()  # folded away below it: the subtypes of a relation
    fold: str = ""  # what is folded away


@dataclass(frozen=True)
class Table:
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    remarks: tuple[str, ...] = ()


def relations_table(evidence: Evidence, controls: Controls | None) -> Table | None:
    """One row a relation of syntax: subject and verb, all relations, then by decisions; None where there is none."""
    relations = [row for row in evidence.relations if family_of(row.metric) in SYNTAX]
    if not relations:
        return None
    shown = _in_order(_enough(relations))
    layout = _Layout.of(shown, controls, has_any=True)
    above = {row.relation for row in shown if not is_subtype(row.relation)}
    rows = []
    for row in shown:
        base, _, subtype = row.relation.partition(":")
        if subtype and base in above:
            continue
        inner = [sub for sub in shown if not subtype and sub.relation.startswith(f"{base}:")]
        rows.append(Row(layout.cells(row), tuple(Row(layout.cells(sub)) for sub in inner), _fold(inner)))
    return Table("Relations", layout.columns, tuple(rows), _too_few(relations, evidence.settings.minimum))


def directions_table(evidence: Evidence, controls: Controls | None) -> Table | None:
    """One row a metric of syntax, so both directions of every relation."""
    return _metrics_table("Directions", _of_families(evidence, SYNTAX), controls, evidence.settings.minimum)


def coreference_table(evidence: Evidence) -> Table | None:
    """One row a type of mention."""
    return _metrics_table("Mentions", _of_families(evidence, ("coref",)), None, evidence.settings.minimum)


def pronouns_table(evidence: Evidence) -> Table | None:
    """One row a group of pronouns."""
    return _metrics_table("Pronouns", _of_families(evidence, ("choice",)), None, evidence.settings.minimum)


def rivals_of(rows: Iterable[MetricEvidence]) -> list[str]:
    """Names of all baselines of the rows, in the order of their columns."""
    found = dict.fromkeys(name for row in rows for name in row.baselines)
    known = [name for name in BASELINES if name in found]
    others = [name for name in found if name not in BASELINES]
    return [*(name for name in known if name != PROFILE), *others, *(name for name in known if name == PROFILE)]


def _of_families(evidence: Evidence, families: Sequence[str]) -> list[MetricEvidence]:
    return [row for row in evidence.metrics if family_of(row.metric) in families]


def _metrics_table(
    caption: str, rows: Sequence[MetricEvidence], controls: Controls | None, minimum: int
) -> Table | None:
    if not rows:
        return None
    shown = _enough(rows)
    layout = _Layout.of(shown, controls, has_any=False)
    return Table(caption, layout.columns, tuple(Row(layout.cells(row)) for row in shown), _too_few(rows, minimum))


def _enough(rows: Sequence[Known]) -> list[Known]:
    return [row for row in rows if row.verdict != TOO_FEW]


def _fold(subtypes: Sequence[RelationEvidence]) -> str:
    names = ", ".join(row.relation for row in subtypes)
    return f"{amount(len(subtypes), 'subtype')}: {names}" if subtypes else ""


def _too_few(rows: Sequence[MetricEvidence], minimum: int) -> tuple[str, ...]:
    names = {_name(row): row.decisions for row in rows if row.verdict == TOO_FEW}
    if not names:
        return ()
    listed = ", ".join(f"{name} ({decisions:,})" for name, decisions in names.items())
    return (f"Under the minimum of {amount(minimum, 'decision')}, so not weighed: {listed}.",)


def _name(row: MetricEvidence) -> str:
    return row.relation if isinstance(row, RelationEvidence) else row.metric


def _in_order(rows: Sequence[RelationEvidence]) -> list[RelationEvidence]:
    """Subject and verb, all relations, then by decisions."""
    first = {SUBJECT_VERB: 0, ALL: 1}
    return sorted(rows, key=lambda row: (first.get(row.relation, len(first)), -row.decisions, row.relation))


@dataclass(frozen=True)
class _Layout:
    """Which columns the rows of one table have."""

    rivals: tuple[str, ...]
    controls: Controls | None
    has_any: bool  # a column for p_any

    @classmethod
    def of(cls, rows: Sequence[MetricEvidence], controls: Controls | None, *, has_any: bool) -> _Layout:
        return cls(tuple(rivals_of(rows)), controls, has_any)

    @property
    def columns(self) -> tuple[Column, ...]:
        rivals = [rival_words(name) for name in self.rivals]
        return (
            Column("What attends to what", is_number=False),
            Column("Decisions", width="w-count"),
            Column("Head", "chosen most often; below, the share of the halves that chose it", False, "w-head"),
            Column(
                "Held out", "accuracy on documents that had no say in the choice; its 95% interval", width="w-reach"
            ),
            Column("0 to 1", "the same as a picture, with the baselines", False, "w-picture"),
            Column("Chance", "accuracy of a random choice among the candidates", width="w-short"),
            *(Column(rival.title, rival.meaning, width="w-rival") for rival in rivals),
            *([self._control_column()] if self.controls else []),
            Column(
                "Gain",
                "over the baseline in bold, the strongest that a head must be above; its 95% interval",
                width="w-reach",
            ),
            *([Column("p any", "that any head attends this way", width="w-short")] if self.has_any else []),
            Column(
                "q head", "of this head among all heads and metrics tested (Benjamini and Hochberg)", width="w-short"
            ),
            Column("Verdict", is_number=False, width="w-verdict"),
        )

    def cells(self, row: MetricEvidence) -> tuple[Cell, ...]:
        return (
            _name_cell(row),
            Cell(f"{row.decisions:,}", hover=f"in {amount(row.documents, 'document')}"),
            Cell("", note=_chosen(row.share), heads=(row.name,)),
            _held_out_cell(row),
            Cell("", picture=_strip(row)),
            Cell(_share(row.chance)),
            *(_baseline_cell(row.baselines.get(name), name == row.rival) for name in self.rivals),
            *([self._control_cell(row.metric)] if self.controls else []),
            _gain_cell(row),
            *([Cell(_p(row.p_any))] if isinstance(row, RelationEvidence) and self.has_any else []),
            Cell(_p(row.q)),
            _verdict_cell(row.verdict),
        )

    def _control_column(self) -> Column:
        assert self.controls is not None
        copies = "one copy" if self.controls.copies == 1 else f"{self.controls.copies:,} copies"
        return Column(
            "Best random head", f"the best head of {copies} of the model with random weights", width="w-rival"
        )

    def _control_cell(self, metric: str) -> Cell:
        assert self.controls is not None
        values = [value for value in self.controls.best.get(metric, ()) if not math.isnan(value)]
        if not values:
            return Cell(NOTHING)
        return Cell(_share(max(values)), hover=f"by copy: {', '.join(_share(value) for value in values)}")


def _name_cell(row: MetricEvidence) -> Cell:
    if not isinstance(row, RelationEvidence) and family_of(row.metric) not in SYNTAX:
        return Cell(title_of(row.metric), note=row.metric)
    arrow = way_of(row.metric).arrow
    if not isinstance(row, RelationEvidence):
        return Cell(_capital(arrow), note=row.metric)
    if row.relation in (SUBJECT_VERB, ALL):
        return Cell(title_of(row.relation), note=arrow, hover=row.metric)
    return Cell(_capital(arrow), note="" if f"({row.relation})" in arrow else row.relation, hover=row.metric)


def _chosen(share: float) -> str:
    return f"chosen {number(share, 'share', digits=2)}" if not math.isnan(share) else ""


def _held_out_cell(row: MetricEvidence) -> Cell:
    on_all = f"on all documents {_share(row.value)}"
    if math.isnan(row.held_out):
        return Cell(NOTHING, note=on_all)
    return Cell(_share(row.held_out), note=interval(row.low, row.high, "share"), hover=on_all, is_strong=True)


def _baseline_cell(baseline: Baseline | None, is_strongest: bool) -> Cell:
    if baseline is None or math.isnan(baseline.held_out):
        return Cell(NOTHING)
    option = baseline.option if baseline.option not in BASELINES else ""  # of one option: named by its column
    gain = f"the head gains {signed(baseline.difference, 'share')} ({interval(baseline.low, baseline.high, 'share')})"
    return Cell(_share(baseline.held_out), note=option.replace("-", "−", 1), hover=gain, is_strong=is_strongest)


def _gain_cell(row: MetricEvidence) -> Cell:
    if not row.rival:
        return Cell(NOTHING)
    rival = row.baselines[row.rival]
    return Cell(signed(rival.difference, "share"), note=interval(rival.low, rival.high, "share"))


def _verdict_cell(verdict: str) -> Cell:
    return Cell(f"{_MARKS.get(verdict, '○')} {verdict}", hover=VERDICTS.get(verdict, ""))


def _strip(row: MetricEvidence) -> Markup | None:
    from markupsafe import Markup

    if math.isnan(row.held_out):
        return None
    others = [baseline.held_out for baseline in row.baselines.values()]
    return Markup(strip(row.held_out, row.low, row.high, chance=row.chance, others=others))


def _share(value: float) -> str:
    return number(value, "share") if not math.isnan(value) else NOTHING


def _p(value: float) -> str:
    return probability(value) if not math.isnan(value) else NOTHING


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
