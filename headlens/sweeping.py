"""Quality against heads kept, for several rankings beside random ones; and which roles die when.

Every point is a model from which the heads were really taken out, their mean outputs kept, and that was asked on
held-out text. A ranking is made once, of the whole model; "greedy" looks again after every choice.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headlens.calibration import ObjectiveName, calibrate, judged, objective_for
from headlens.corpora import Corpus
from headlens.errors import PlanError
from headlens.evaluation import Task, evaluate
from headlens.files import Write, write_together
from headlens.importance.methods import Setting, check_methods, check_objective, ranked
from headlens.importance.units import Kind
from headlens.models import LoadedModel, network_of
from headlens.plan import HeadPlan
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
        held: dict[str, set[tuple[int, int]]] = {}
        for one in self.roles or ():
            held.setdefault(one.role.id, set()).add((one.layer, one.head))
        rows = [
            [point.method, point.removed, role, len(heads), len(heads & set(point.plan))]
            for point in self.points
            if point.draw is None
            for role, heads in held.items()
        ]
        return pd.DataFrame(rows, columns=columns)

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
        "unit": unit,
        "draws": draws,
    }
    return Sweep(tuple(points), roles, facts)


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
