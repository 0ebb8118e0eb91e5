"""How much heads matter by several methods beside each other: values, reliability, agreement, and how long it took."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headlens.calibration import ObjectiveName, calibrate, objective_for
from headlens.corpora import Corpus
from headlens.errors import PlanError, UnsupportedModel
from headlens.files import write_together
from headlens.importance.methods import METHODS, Setting, check_methods, ranked
from headlens.importance.result import Importance, Reliability, agreement
from headlens.importance.units import Kind
from headlens.models import LoadedModel, network_of
from headlens.numbers import aligned, amount
from headlens.plan import Head
from headlens.provenance import circumstances, corpus_facts
from headlens.scores import ScoreTable, head_name
from headlens.spreadsheets import csv_writer
from headlens.surgery import mean_contexts, present_plan

if TYPE_CHECKING:
    import pandas as pd

Progress = Callable[[str, int, int], None]

SCHEMA_VERSION = "headlens.importance/1"
MOST_DECIMALS = 6  # of a value in a terminal; smaller ones are written with an exponent


@dataclass(frozen=True, eq=False)
class Ranking:
    """One method's word on every head."""

    importance: Importance
    reliability: Reliability
    seconds: float

    @property
    def order(self) -> list[tuple[int, int]]:
        """Heads that are there, the least important first."""
        values = self.importance.values
        there = [(layer, head) for layer, head in zip(*self.importance.present.nonzero(), strict=True)]
        return sorted(((int(layer), int(head)) for layer, head in there), key=lambda place: (values[place], place))


@dataclass(frozen=True, eq=False)
class Rankings:
    """By several methods, on the same texts."""

    by_method: dict[str, Ranking]
    refused: dict[str, str]  # methods that this model or objective cannot be asked by, with the reason
    facts: dict[str, Any]

    def __repr__(self) -> str:
        heads = max((len(ranking.order) for ranking in self.by_method.values()), default=0)
        name = self.facts.get("model", {}).get("name", "a model")
        return f"<Rankings of {amount(heads, 'head')} of {name}: {', '.join(self.by_method)}>"

    @property
    def table(self) -> ScoreTable:
        """All methods as metrics `importance.<method>`."""
        return ScoreTable.joined([ranking.importance.table() for ranking in self.by_method.values()])

    @property
    def agreement(self) -> pd.DataFrame:
        """Spearman's rho of every pair of methods, with intervals; see `importance.result.agreement`."""
        return agreement([ranking.importance for ranking in self.by_method.values()])

    def save(self, folder: str | os.PathLike[str]) -> None:
        """scores.parquet and scores.csv (all methods), agreement.csv, importance.json."""
        place, frame = Path(folder), self.agreement
        text = json.dumps({"schema": SCHEMA_VERSION, **self.facts, **self._told()}, ensure_ascii=False, indent=1)
        writers = {
            **self.table.writers(),
            "agreement.csv": csv_writer(frame),
            "importance.json": lambda path: path.write_text(text + "\n", encoding="utf-8"),
        }
        write_together({place / name: write for name, write in writers.items()})

    def _told(self) -> dict[str, Any]:
        return {
            "methods": {
                name: {
                    "help": METHODS[name].help,
                    "source": METHODS[name].source,
                    "seconds": ranking.seconds,
                    "split_half": _or_none(ranking.reliability.halves),
                    "split_half_whole": _or_none(ranking.reliability.whole),
                    "facts": dict(ranking.importance.facts),
                    "order": [head_name(*head) for head in ranking.order],
                }
                for name, ranking in self.by_method.items()
            },
            "refused": self.refused,
        }


def rank_by(
    loaded: LoadedModel,
    corpus: Corpus,
    methods: Sequence[str],
    *,
    objective: ObjectiveName | None = None,
    unit: Kind | None = None,
    every: int | None = None,
    texts: int | None = None,
    max_length: int | None = None,
    seed: int = 0,
    progress: Progress = lambda _what, _done, _of: None,
) -> Rankings:
    """Judge every head by several methods of METHODS, on the same calibration text.

    A method that the model or the objective cannot be asked by is left out with its reason, unless it is the only one.
    `every` is for those of the methods that are iterative; other arguments are as of `pruning.prune`.

    Raises
    ------
    PlanError, CorpusError, UnsupportedModel
        Each with a sentence that says what to do.
    """
    methods = list(dict.fromkeys(methods))
    check_methods(methods, every)
    network = network_of(loaded.model)
    base = present_plan(network)
    unit = unit or ("group" if base.is_grouped else "head")
    calibration = calibrate(loaded, corpus, texts=texts, max_length=max_length, seed=seed)
    means = mean_contexts(network, calibration.fitted)
    judge = objective_for(loaded, calibration.chosen, objective, seed=seed)
    found: dict[str, Ranking] = {}
    refused: dict[str, str] = {}
    for place, name in enumerate(methods):
        progress(f"ranking by {name}", place, len(methods))
        start = time.perf_counter()
        try:
            importance = ranked(name, Setting(network, judge, unit, means, every=every, seed=seed))
        except (PlanError, UnsupportedModel) as reason:
            if len(methods) == 1:
                raise
            refused[name] = str(reason)
            continue
        importance = replace(importance, method=name)  # a method may call itself by the variant that it chose
        found[name] = Ranking(importance, importance.split_half(seed=seed), time.perf_counter() - start)
    if not found:
        raise UnsupportedModel(f"No method can be asked of this model: {next(iter(refused.values()))}")
    facts = {
        **circumstances(loaded.name, corpus, seed, caller="headlens.rankings.rank_by"),
        "model": dict(loaded.provenance),
        "data": {**corpus_facts(corpus, limit=None), **calibration.facts},
        "objective": judge.name,
        "unit": unit,
    }
    return Rankings(found, refused, facts)


def lines_of(rankings: Rankings, *, ends: int = 4) -> Iterator[str]:
    """What was found, for a terminal: of each method both ends of its order, with values and 95% intervals."""
    for name, ranking in rankings.by_method.items():
        halves = ranking.reliability.halves
        told = f"halves agree {halves:.2f}" if halves == halves else "no single texts to halve"
        meaning = ranking.importance.meaning or f"{METHODS[name].help}; larger matters more."
        yield f"{name}: {meaning} ({told}, {ranking.seconds:.1f} s)"
        yield from (f"  {line}" for line in aligned(_ends(ranking, ends)))
    for name, reason in rankings.refused.items():
        yield f"{name}  left out: {reason}"
    if len(rankings.by_method) > 1:
        yield "Agreement (Spearman's rho, 95% interval over texts):"
        for row in rankings.agreement.to_dict("records"):
            reach = f" [{row['low']:.2f}, {row['high']:.2f}]" if row["low"] == row["low"] else ""
            yield f"  {row['first']} ~ {row['second']}: {row['spearman']:.2f}{reach}"


def _ends(ranking: Ranking, ends: int) -> list[list[str]]:
    """The least and the most important heads side by side, each from the outermost on; never a head twice."""
    order = ranking.order
    least = order[: min(ends, (len(order) + 1) // 2)]
    most = order[::-1][: min(ends, len(order) // 2)]
    low, high = ranking.importance.intervals()
    told = [
        [_cell(head, *(float(one[head]) for one in (ranking.importance.values, low, high))) for head in heads]
        for heads in (least, most)
    ]
    rows = zip_longest(*told, fillvalue="")
    return [["the least", "the most"], *map(list, rows)]


def _cell(head: Head, *figures: float) -> str:
    """`L1H2 0.0123 [0.0101, 0.0149]`: value and interval, three digits of the largest; NaN is no interval."""
    value, low, high = figures
    largest = max(abs(figure) for figure in figures if not math.isnan(figure))
    digits = 2 - math.floor(math.log10(largest)) if largest else 0
    written = "{:.2e}" if digits > MOST_DECIMALS else f"{{:.{max(digits, 0)}f}}"
    told = written.format(value) if not value.is_integer() else f"{value:.0f}"
    return f"{head_name(*head)} {told}" + (
        "" if math.isnan(low) else f" [{written.format(low)}, {written.format(high)}]"
    )


def _or_none(value: float) -> float | None:
    return None if value != value else value
