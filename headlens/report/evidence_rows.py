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
from headlens.report.tables import NOTHING, Cell, Column, Row, Table
from headlens.wording import (
    ALL,
    BASELINES,
    SUBJECT_VERB,
    SYNTAX,
    capital,
    family_of,
    is_subtype,
    rival_words,
    title_of,
    way_of,
)

if TYPE_CHECKING:
    from markupsafe import Markup

Known = TypeVar("Known", bound=MetricEvidence)

_MARKS = {ABOVE: "●", INFORMED: "◐", SLIGHT: "◐"}
_VERDICTS = tuple(VERDICTS)  # the best first


@dataclass(frozen=True)
class Controls:
    """The best head of each copy of the model with random weights, by metric."""

    copies: int
    best: Mapping[str, tuple[float, ...]]


def relations_table(evidence: Evidence, controls: Controls | None) -> Table | None:
    """One row a relation of syntax, the best verdicts first, all relations together last; None where there is none."""
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
        rows.append(layout.row(row, inner))
    return Table("Relations", layout.columns, tuple(rows), _too_few(relations, evidence.settings.minimum))


def directions_table(evidence: Evidence, controls: Controls | None) -> Table | None:
    """One row a metric of syntax, so both directions of every relation."""
    return _metrics_table("Directions", _of_families(evidence, SYNTAX), controls, evidence.settings.minimum)


def coreference_table(evidence: Evidence, controls: Controls | None = None) -> Table | None:
    """One row a type of mention."""
    return _metrics_table("Mentions", _of_families(evidence, ("coref",)), controls, evidence.settings.minimum)


def pronouns_table(evidence: Evidence, controls: Controls | None = None) -> Table | None:
    """One row a group of pronouns."""
    return _metrics_table("Pronouns", _of_families(evidence, ("choice",)), controls, evidence.settings.minimum)


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
    shown = _in_order(_enough(rows))
    layout = _Layout.of(shown, controls, has_any=False)
    return Table(caption, layout.columns, tuple(layout.row(row) for row in shown), _too_few(rows, minimum))


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


def _in_order(rows: Sequence[Known]) -> list[Known]:
    """By verdict, then by gain and by decisions; all together last."""
    return sorted(rows, key=_precedence)


def _precedence(row: MetricEvidence) -> tuple[bool, int, float, int, str]:
    gain = round(row.gain, 6) if math.isfinite(row.gain) else -math.inf  # rounded, or errors of the last digit decide
    return _is_of_all(row), _place(row.verdict), -gain, -row.decisions, _name(row)


def _place(verdict: str) -> int:
    return _VERDICTS.index(verdict) if verdict in _VERDICTS else len(_VERDICTS)


def _is_of_all(row: MetricEvidence) -> bool:
    return row.metric.partition("[")[2].rstrip("]").lower() == ALL.lower()


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
        return (
            Column("What attends to what", is_number=False, names=("what", "metric")),
            Column("Decisions", "how often it was asked", width="w-count", names=("decisions", "documents")),
            Column(
                "Head",
                "chosen most often; below, the share of the halves that chose it",
                False,
                "w-head",
                ("head", "share_of_halves"),
            ),
            Column(
                "Held out",
                "accuracy on documents that had no say in the choice; its 95% interval",
                width="w-reach",
                names=("held_out", "low", "high", "on_all_documents"),
            ),
            Column("0 to 1", "the same as a picture, with the baselines", False, "w-picture"),
            Column("Chance", "accuracy of a random choice among the candidates", width="w-short", names=("chance",)),
            *map(_rival_column, self.rivals),
            *([self._control_column()] if self.controls else []),
            Column(
                "Gain",
                "over the baseline in bold, the strongest that a head must be above; its 95% interval",
                width="w-reach",
                names=("gain", "gain_low", "gain_high", "over"),
            ),
            *([self._any_column()] if self.has_any else []),
            Column(
                "q head",
                "of this head among all heads and metrics tested (Benjamini and Hochberg)",
                width="w-short",
                names=("q",),
                is_low_first=True,
            ),
            Column("Verdict", "what it says is told in Methods", False, width="w-verdict", names=("verdict",)),
        )

    def row(self, row: MetricEvidence, inner: Sequence[RelationEvidence] = ()) -> Row:
        subtypes = tuple(Row(self._cells(subtype)) for subtype in inner)
        return Row(self._cells(row), subtypes, _fold(inner), is_last=_is_of_all(row))

    def _cells(self, row: MetricEvidence) -> tuple[Cell, ...]:
        return (
            _name_cell(row),
            Cell(
                f"{row.decisions:,}",
                hover=f"in {amount(row.documents, 'document')}",
                values=(row.decisions, row.documents),
            ),
            Cell("", note=_chosen(row.share), heads=(row.name,), values=(row.name, row.share)),
            _held_out_cell(row),
            Cell("", picture=_strip(row)),
            Cell(_share(row.chance), values=(row.chance,)),
            *(_baseline_cell(row.baselines.get(name), name == row.rival) for name in self.rivals),
            *([self._control_cell(row.metric)] if self.controls else []),
            _gain_cell(row),
            *([_any_cell(row)] if self.has_any else []),
            Cell(_p(row.q), values=(row.q,)),
            _verdict_cell(row.verdict),
        )

    def _control_column(self) -> Column:
        assert self.controls is not None
        copies = "one copy" if self.controls.copies == 1 else f"{self.controls.copies:,} copies"
        meaning = f"the best head of {copies} of the model with random weights"
        return Column("Best random head", meaning, width="w-rival", names=("best_random_head",))

    @staticmethod
    def _any_column() -> Column:
        return Column("p any", "that any head attends this way", width="w-short", names=("p_any",), is_low_first=True)

    def _control_cell(self, metric: str) -> Cell:
        assert self.controls is not None
        values = [value for value in self.controls.best.get(metric, ()) if not math.isnan(value)]
        if not values:
            return Cell(NOTHING, values=(math.nan,))
        told = ", ".join(_share(value) for value in values)
        return Cell(_share(max(values)), hover=f"by copy: {told}", values=(max(values),))


def _rival_column(name: str) -> Column:
    words = rival_words(name)
    fields = ("held_out", "option", "difference", "low", "high")
    return Column(words.title, words.meaning, width="w-rival", names=tuple(f"{name}.{field}" for field in fields))


def _name_cell(row: MetricEvidence) -> Cell:
    def cell(text: str, note: str, hover: str = "") -> Cell:
        return Cell(text, note, hover, values=(text, row.metric))

    if not isinstance(row, RelationEvidence) and family_of(row.metric) not in SYNTAX:
        return cell(title_of(row.metric), row.metric)
    arrow = way_of(row.metric).arrow
    if not isinstance(row, RelationEvidence):
        return cell(capital(arrow), row.metric)
    if row.relation in (SUBJECT_VERB, ALL):
        return cell(title_of(row.relation), arrow, row.metric)
    return cell(capital(arrow), "" if f"({row.relation})" in arrow else row.relation, row.metric)


def _chosen(share: float) -> str:
    return f"chosen {number(share, 'share', digits=2)}" if not math.isnan(share) else ""


def _held_out_cell(row: MetricEvidence) -> Cell:
    on_all = f"on all documents {_share(row.value)}"
    values = (row.held_out, row.low, row.high, row.value)
    if math.isnan(row.held_out):
        return Cell(NOTHING, note=on_all, values=values)
    reach = interval(row.low, row.high, "share")
    return Cell(_share(row.held_out), note=reach, hover=on_all, is_strong=True, values=values)


def _baseline_cell(baseline: Baseline | None, is_strongest: bool) -> Cell:
    if baseline is None or math.isnan(baseline.held_out):
        return Cell(NOTHING, values=(math.nan, "", *[math.nan] * 3))
    option = baseline.option if baseline.option not in BASELINES else ""  # of one option: named by its column
    gain = f"the head gains {signed(baseline.difference, 'share')} ({interval(baseline.low, baseline.high, 'share')})"
    values = (baseline.held_out, option, baseline.difference, baseline.low, baseline.high)
    note = option.replace("-", "−", 1)
    return Cell(_share(baseline.held_out), note=note, hover=gain, is_strong=is_strongest, values=values)


def _gain_cell(row: MetricEvidence) -> Cell:
    if not row.rival:
        return Cell(NOTHING, values=(math.nan, math.nan, math.nan, ""))
    rival = row.baselines[row.rival]
    values = (rival.difference, rival.low, rival.high, row.rival)
    return Cell(signed(rival.difference, "share"), note=interval(rival.low, rival.high, "share"), values=values)


def _any_cell(row: MetricEvidence) -> Cell:
    p_any = row.p_any if isinstance(row, RelationEvidence) else math.nan
    return Cell(_p(p_any), values=(p_any,))


def _verdict_cell(verdict: str) -> Cell:
    told = f"{_MARKS.get(verdict, '○')} {verdict}"
    return Cell(told, hover=VERDICTS.get(verdict, ""), values=(verdict,), order=float(_place(verdict)))


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
