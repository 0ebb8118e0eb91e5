"""Quality against heads kept, for several rankings beside random ones; and which roles die when.

Every point is a model from which the heads were really taken out, their mean outputs kept, and that was asked on
held-out text. A ranking is made once, of the whole model; "greedy" looks again after every choice.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headlens.arms_words import measure_in_words
from headlens.calibration import ObjectiveName, calibrate, judged, objective_for
from headlens.corpora import Corpus
from headlens.errors import PlanError
from headlens.evaluation import Task, evaluate
from headlens.files import Write, write_together
from headlens.importance.methods import Setting, check_methods, check_objective, ranked
from headlens.importance.units import Kind
from headlens.models import LoadedModel, network_of
from headlens.numbers import aligned, amount, four_digits, number
from headlens.plan import Head, HeadPlan
from headlens.plans import drawn_like, lowest
from headlens.provenance import circumstances, corpus_facts
from headlens.roles import Roles
from headlens.scores import head_name
from headlens.spreadsheets import csv_writer
from headlens.surgery import apply_plan, mean_contexts, present_plan

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = "headlens.sweep/1"
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # of heads removed
RANDOM = "random"  # the band: drawn anew for every point
DRAWS = 5
TOLD_SHARES = (0.25, 0.5, 0.75)  # removed, at which survival is told in a terminal

_OWN = re.compile(r"survival\.csv|(?:sweep-\d+|survival-\w+)\.(?:svg|png)")  # what `save` may write beside the rest

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Point:
    """One model: so many heads removed in the order of a method."""

    method: str
    draw: int | None  # of the random band
    removed: int
    plan: HeadPlan
    distortion: float
    tasks: Mapping[str, float]  # by "task: metric"


@dataclass(frozen=True, eq=False)
class Sweep:
    """All points, the whole model first."""

    points: tuple[Point, ...]
    roles: Roles | None
    facts: dict[str, Any]

    def __repr__(self) -> str:
        methods = dict.fromkeys(point.method for point in self.points[1:])
        whole = self.points[0].plan
        heads = f"{amount(whole.n_kept, 'head')} of {self.facts.get('model', {}).get('name', 'a model')}"
        return f"<Sweep over {heads}: {amount(len(self.points), 'point')}, {', '.join(methods)}>"

    def to_frame(self) -> pd.DataFrame:
        """One row a point and quantity: method, draw, removed, kept, quantity, value."""
        import pandas as pd

        total = self.points[0].plan.layers * self.points[0].plan.heads
        rows = [
            {
                "method": point.method,
                "draw": -1 if point.draw is None else point.draw,
                "removed": point.removed,
                "kept": total - point.removed,
                "quantity": quantity,
                "value": value,
            }
            for point in self.points
            for quantity, value in {"distortion": point.distortion, **point.tasks}.items()
        ]
        return pd.DataFrame(rows, columns=["method", "draw", "removed", "kept", "quantity", "value"])

    def survival(self) -> pd.DataFrame:
        """Of every role and method, how many of its heads are left at each point: method, removed, role, heads, left.

        A role is that of the whole model: what the heads that are left do after others are gone, a profile of the
        pruned model tells. Empty where no roles were given.
        """
        import pandas as pd

        columns = ["method", "removed", "role", "heads", "left"]
        held = self._held()
        rows = [
            [point.method, point.removed, role, len(heads), len(heads & set(point.plan))]
            for point in self.points
            if point.draw is None
            for role, heads in held.items()
        ]
        return pd.DataFrame(rows, columns=columns)

    def _held(self) -> dict[str, set[Head]]:
        """By the id of each role, the heads that have it."""
        held: dict[str, set[Head]] = {}
        for one in self.roles or ():
            held.setdefault(one.role.id, set()).add((one.layer, one.head))
        return held

    def save(self, folder: str | os.PathLike[str]) -> None:
        """sweep.csv, survival.csv (where roles were given), sweep.json, and pictures of both as SVG and PNG.

        What an earlier sweep has beside these is removed.
        """
        from headlens.report.sweep_plots import draw_survival, draw_sweep

        place, survival = Path(folder), self.survival()
        told = {
            "schema": SCHEMA_VERSION,
            **self.facts,
            "points": [
                {
                    "method": point.method,
                    "draw": point.draw,
                    "removed": [head_name(*head) for head in point.plan.removed],
                }
                for point in self.points
            ],
        }
        writers: dict[str, Write] = {
            "sweep.csv": csv_writer(self.to_frame()),
            "sweep.json": lambda path: path.write_text(
                json.dumps(told, ensure_ascii=False, indent=1), encoding="utf-8"
            ),
            **draw_sweep(self.to_frame()),
        }
        if len(survival):
            writers |= {"survival.csv": csv_writer(survival), **draw_survival(survival)}
        write_together({place / name: write for name, write in writers.items()})
        for old in place.iterdir():
            if _OWN.fullmatch(old.name) and old.name not in writers:
                old.unlink()


def sweep(
    loaded: LoadedModel,
    corpus: Corpus,
    methods: Sequence[str] = ("greedy", "loo_mean", "norm"),
    *,
    shares: Sequence[float] = SHARES,
    objective: ObjectiveName | None = None,
    unit: Kind | None = None,
    tasks: Sequence[Task] = (),
    roles: Roles | None = None,
    draws: int = DRAWS,
    texts: int | None = None,
    max_length: int | None = None,
    seed: int = 0,
    progress: Progress = lambda _what, _done, _of: None,
) -> Sweep:
    """Remove more and more heads in the order of each method, and ask every model the same.

    Parameters
    ----------
    shares
        Of the original model's heads that are removed, each from 0 to 1.
    roles
        Of a profile of the whole model: then `survival` tells which of them die when.
    draws
        Random plans at every share.

    Other arguments are as of `pruning.prune`.
    """
    methods = list(dict.fromkeys(methods))
    check_methods(methods)
    if not shares or not all(0 < share <= 1 for share in shares):
        raise PlanError(f"A sweep removes shares above 0 and up to 1 of the heads, got {list(shares)}.")
    network = network_of(loaded.model)
    base = present_plan(network)
    if roles is not None and (roles.n_layers, roles.n_heads) != (base.layers, base.heads):
        raise PlanError(
            f"The roles are of {roles.n_layers} x {roles.n_heads} heads, and the model has {base.layers} x "
            f"{base.heads}; take the profile of this model."
        )
    unit = unit or ("group" if base.is_grouped else "head")
    plans = _random_plans(base, shares, unit, seed)
    calibration = calibrate(loaded, corpus, texts=texts, max_length=max_length, seed=seed)
    means = mean_contexts(network, calibration.fitted)
    chosen = objective_for(loaded, calibration.chosen, objective, seed=seed)
    held_out = objective_for(loaded, calibration.held_out, objective, seed=seed)
    for method in methods:
        check_objective(method, chosen)
    of = 1 + len(plans) * (len(methods) + draws)
    points: list[Point] = []

    def ask(method: str, plan: HeadPlan, draw: int | None = None) -> None:
        progress(f"measuring: {method}", len(points), of)
        model = apply_plan(loaded.model, plan, fill=means) if plan != base else loaded.model
        results = [evaluate(replace(loaded, model=model), task) for task in tasks]
        scores = {f"{result.task}: {result.metric}": result.value for result in results}
        removed = base.layers * base.heads - plan.n_kept
        points.append(Point(method, draw, removed, plan, judged(network_of(model), held_out), scores))

    ask("whole model", base)
    most = base.n_kept - min(plan.n_kept for plan in plans.values())
    for method in methods:
        progress(f"ranking by {method}", len(points), of)
        setting = Setting(
            network,
            chosen,
            unit,
            means,
            remove=most,
            seed=seed,
            say=lambda what: progress(what, len(points), of),
        )
        values = ranked(method, setting).values
        for share in plans:
            ask(method, lowest(values, base, remove=float(share), unit=unit))
    for place, plan in enumerate(plans.values()):
        for draw in range(draws):
            ask(RANDOM, drawn_like(plan, base, np.random.default_rng([seed, place, draw]), same_layers=False), draw)
    facts = {
        **circumstances(loaded.name, corpus, seed, caller="headlens.sweeping.sweep"),
        "model": dict(loaded.provenance),
        "data": {**corpus_facts(corpus, limit=None), **calibration.facts},
        "objective": held_out.name,
        "methods": list(methods),
        "shares": list(plans),
        "shares_left_out": [share for share in dict.fromkeys(shares) if share not in plans],
        "unit": unit,
        "draws": draws,
    }
    return Sweep(tuple(points), roles, facts)


def lines_of(found: Sweep) -> Iterator[str]:
    """For a terminal: every quantity by heads removed, and how many heads of each role are left at some points."""
    if left_out := found.facts.get("shares_left_out"):
        shares = ", ".join(f"{share:g}" for share in left_out)
        yield f"Left out, as they come to no other number of heads: shares {shares}."
    removed = sorted({point.removed for point in found.points})
    for quantity in ("distortion", *found.points[0].tasks):
        words = measure_in_words(found.facts.get("objective", "")) if quantity == "distortion" else quantity
        yield f"{words}, by heads removed (of random draws the median and the range):"
        yield from aligned(
            [["", *map(str, removed)], *([name, *row] for name, row in _quantity_rows(found, quantity, removed))]
        )
    if held := found._held():
        yield "Heads of each role that are left, by heads removed (of random draws the median and the range):"
        yield from aligned(list(_survival_rows(found, held)))


def _quantity_rows(found: Sweep, quantity: str, removed: Sequence[int]) -> Iterator[tuple[str, list[str]]]:
    for name, points in _by_row(found.points).items():
        values = {
            count: [
                point.distortion if quantity == "distortion" else point.tasks[quantity]
                for point in points
                if point.removed == count
            ]
            for count in removed
        }
        yield name, [_middle(values[count], four_digits) for count in removed]


def _survival_rows(found: Sweep, held: Mapping[str, set[Head]]) -> Iterator[list[str]]:
    """A row a role and ranking, at the points nearest to TOLD_SHARES of the heads that were there."""
    total = found.points[0].plan.layers * found.points[0].plan.heads
    there = {point.removed for point in found.points[1:]}
    counts = sorted({min(there, key=lambda count: (abs(count - share * total), count)) for share in TOLD_SHARES})
    columns = [f"{count} ({number(count / total, 'share', digits=2)})" for count in counts]
    yield ["role", "ranked by", "of", *columns]
    for role, heads in held.items():
        label = [role.replace("_", " "), str(len(heads))]
        for name, points in _by_row(found.points[1:]).items():
            left = [[float(len(heads & set(one.plan))) for one in points if one.removed == count] for count in counts]
            yield [label[0], name, label[1], *(_middle(values, "{:g}".format) for values in left)]
            label = ["", ""]


def _by_row(points: Sequence[Point]) -> dict[str, list[Point]]:
    """Points of each ranking, and those of all random draws, which "random" as a ranking is none of."""
    rows: dict[str, list[Point]] = {}
    draws = 1 + max((point.draw for point in points if point.draw is not None), default=0)
    for point in points:
        name = point.method if point.draw is None else amount(draws, "random draw")
        rows.setdefault(name, []).append(point)
    return rows


def _middle(values: Sequence[float], written: Callable[[float], str]) -> str:
    """The median of several values and where they lie; nothing of none."""
    if len(values) < 2:
        return "".join(map(written, values))
    return f"{written(float(np.median(values)))} ({written(min(values))} to {written(max(values))})"


def _random_plans(base: HeadPlan, shares: Sequence[float], unit: Kind, seed: int) -> dict[float, HeadPlan]:
    """By share, smallest first; of shares that come to the same number of heads only the first, none of no head."""
    random = np.random.default_rng(seed).permutation(base.layers * base.heads).reshape(base.layers, base.heads)
    found: dict[float, HeadPlan] = {}
    counts = {base.n_kept}
    for share in sorted(shares):
        plan = lowest(random.astype(np.float64), base, remove=float(share), unit=unit)
        if plan.n_kept not in counts:
            counts.add(plan.n_kept)
            found[share] = plan
    if not found:
        raise PlanError(f"Shares of {list(shares)} come to no head of {base.layers * base.heads}; give larger ones.")
    return found
