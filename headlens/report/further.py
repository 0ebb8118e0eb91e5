"""What further analyses left in the provenance: random controls, ensembles, a probe. Any part may be missing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headlens.numbers import interval, number, signed
from headlens.report.evidence_rows import Controls
from headlens.report.facts import Provenance, at
from headlens.report.tables import NOTHING, Cell, Column, Row, Table
from headlens.wording import ALL, way_of

KEYS = ("controls", "ensembles", "probe")
"""Entries of the provenance that are read here; they have a place of their own on the page."""


@dataclass(frozen=True)
class Further:
    controls: Controls | None
    ensembles: Table | None
    probe: str  # a paragraph; empty where there is none


def further(provenance: Provenance) -> Further:
    return Further(_controls(provenance), _ensembles(provenance), _probe(provenance))


def _controls(provenance: Provenance) -> Controls | None:
    best = at(provenance, "controls", "best")
    if not isinstance(best, Mapping) or not best:
        return None
    values = {str(metric): tuple(_number(value) for value in _listed(copies)) for metric, copies in best.items()}
    copies = at(provenance, "controls", "copies")
    most = max((len(of_copies) for of_copies in values.values()), default=0)
    return Controls(copies if isinstance(copies, int) else most, values)


def _ensembles(provenance: Provenance) -> Table | None:
    rows = tuple(_ensemble(entry) for entry in _listed(at(provenance, "ensembles")) if isinstance(entry, Mapping))
    if not rows:
        return None
    columns = (
        Column("What attends to what", is_number=False, names=("what", "metric")),
        Column("Decisions", names=("decisions", "of")),
        Column("Heads", "whose mean attention chooses", False, names=("heads",)),
        Column(
            "Together",
            "accuracy of the ensemble on documents that had no say in the choice of its heads",
            names=("together",),
        ),
        Column(
            "Best single head",
            "accuracy of the single head that the same documents choose",
            names=("single",),
        ),
        Column(
            "Gain",
            "of the ensemble over the single head; below, its 95% interval",
            names=("gain", "gain_low", "gain_high"),
        ),
    )
    return Table("Ensembles of heads", columns, rows)


def _ensemble(entry: Mapping[str, Any]) -> Row:
    metric = str(entry.get("metric", ""))
    way = way_of(metric).arrow if metric else NOTHING
    what = way[:1].upper() + way[1:]
    decisions, gain, every = (_number(entry.get(name)) for name in ("decisions", "gain", "of"))
    low, high, held_out, single = (_number(entry.get(name)) for name in ("low", "high", "held_out", "single"))
    heads = tuple(str(head) for head in _listed(entry.get("heads")))
    return Row(
        (
            Cell(what, note=metric, values=(what, metric)),
            Cell(
                f"{decisions:,.0f}" if math.isfinite(decisions) else NOTHING,
                hover=f"drawn from {every:,.0f}" if every > decisions else "",
                values=(decisions, every),
            ),
            Cell(NOTHING, heads=heads, values=(" ".join(heads),)),
            Cell(_share(held_out), is_strong=True, values=(held_out,)),
            Cell(_share(single), values=(single,)),
            Cell(
                signed(gain, "share") if math.isfinite(gain) else NOTHING,
                note=interval(low, high, "share"),
                values=(gain, low, high),
            ),
        ),
        is_last=metric.endswith(f"[{ALL}]"),
    )


def _probe(provenance: Provenance) -> str:
    uas = _number(at(provenance, "probe", "uas"))
    if not math.isfinite(uas):
        return ""
    low, high = (_number(at(provenance, "probe", end)) for end in ("low", "high"))
    sentences = _number(at(provenance, "probe", "sentences"))
    reach = f" ({interval(low, high, 'share')})" if math.isfinite(low + high) else ""
    where = f" on {sentences:,.0f} sentences" if math.isfinite(sentences) else ""
    baselines = at(provenance, "probe", "baselines")
    rivals = [f"{name} {_share(_number(v))}" for name, v in baselines.items()] if isinstance(baselines, Mapping) else []
    random_model = _number(at(provenance, "probe", "random_model"))
    if math.isfinite(random_model):
        rivals.append(f"the same probe on the model with random weights {_share(random_model)}")
    against = f" Beside it: {', '.join(rivals)}." if rivals else ""
    return (
        f"All heads together: a probe that weighs their attention to find the syntactic head of every word (Clark et "
        f"al. 2019, section 5) is right for {_share(uas)}{reach} of the words{where}, on documents that it was not "
        f"fitted on.{against}"
    )


def _listed(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _share(value: float) -> str:
    return number(value, "share") if math.isfinite(value) else NOTHING
