"""For the tests of comparisons: two models of 2 x 3 heads, drawn by hand, before and after one head was removed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headlens.evidence_table import Evidence, MetricEvidence, Settings
from headlens.roles.role import HeadRole, Role
from headlens.roles.table import Roles
from headlens.scores import Metric, ScoreTable

NAN = float("nan")
Drawn = dict[str, list[str]]  # by metric, one string for each layer; "." is a head without the score

INDUCTION = Role("induction", "I", "induction", "repetition", 0, "", "")
PREVIOUS = Role("previous_token", "P", "previous token", "position", 7, "", "")
COMMA = Role("comma", ",", "comma", "punctuation", 6, "", "")
CLS = Role("cls", "C", "[CLS]", "sink", 9, "", "")
BROAD = Role("broad", "B", "broad", "broad", 10, "", "")
METRICS = {
    "induction": "repetition.induction",
    "previous_token": "position.mass[-1]",
    "comma": "surface.comma",
    "cls": "surface.cls",
    "broad": "surface.breadth",
}

# L0H0 is removed; L0H1 falls; L1H0 takes up induction; the previous token moves from L0H2 to L1H1
BEFORE: Drawn = {
    "repetition.induction": [".80 .70 .10", ".20 .10 .50"],
    "position.mass[-1]": [".10 .20 .90", ".10 .30 .10"],
    "surface.comma": [".10 .10 .10", ".10 .10 .65"],
    "surface.cls": [".20 .20 .20", ".20 .20 .20"],
}
AFTER: Drawn = {
    "repetition.induction": [". .30 .10", ".60 .10 .55"],
    "position.mass[-1]": [". .20 .40", ".10 .75 .10"],
    "surface.comma": [". .10 .10", ".10 .10 .15"],
    "surface.cls": [". .20 .20", ".20 .20 .80"],
}
PROVENANCE: dict[str, Any] = {
    "headlens": "0.1.0",
    "seed": 0,
    "model": {"name": "Tiny", "dtype": "float32"},
    "corpus": {"files": [{"name": "text.txt", "sha256": "ab12"}], "documents": 12, "max_length": 128},
}


@dataclass
class Given:
    """What a comparison takes of a profile."""

    scores: ScoreTable
    roles: Roles
    provenance: Mapping[str, Any] = field(default_factory=lambda: PROVENANCE)
    evidence: Evidence | None = None


def scores_of(
    drawn: Drawn, *, below: float = 0.03, above: float = 0.04, unit: Any = "share", with_macro: bool = True
) -> ScoreTable:
    """Intervals reach from `below` under each value to `above` over it; the macro score is the same."""
    arrays = {name: _array(rows) for name, rows in drawn.items()}
    arrays |= {f"{name}.macro": array for name, array in arrays.items()} if with_macro else {}
    values = np.stack(list(arrays.values()))
    metrics = tuple(Metric(name, f"Title of {name}", "Meaning.", unit) for name in arrays)
    support = np.where(np.isnan(values), 0.0, 100.0)
    return ScoreTable(metrics, values, support, values - below, values + above, np.full(len(metrics), 0.05))


def held(role: Role, layer: int, head: int, value: float, *, is_firm: bool = True, metric: str = "") -> HeadRole:
    return HeadRole(
        role,
        layer,
        head,
        metric or METRICS[role.id],
        value,
        value - 0.03,
        value + 0.04,
        chance=0.05,
        null=0.05,
        null_name="chance",
        excess=10 * value,
        q=0.001,
        support=100.0,
        is_firm=is_firm,
        sentence="",
    )


def roles_of(*heads: HeadRole, asked: tuple[Role, ...] = (INDUCTION, COMMA, PREVIOUS, CLS, BROAD)) -> Roles:
    return Roles(2, 3, asked, heads)


def before(**changed: Any) -> Given:
    roles = roles_of(
        held(INDUCTION, 0, 0, 0.8),
        held(INDUCTION, 0, 1, 0.7),
        held(INDUCTION, 1, 2, 0.5, is_firm=False),
        held(PREVIOUS, 0, 2, 0.9),
        held(COMMA, 1, 2, 0.65),
    )
    return Given(**({"scores": scores_of(BEFORE), "roles": roles} | changed))


def after(**changed: Any) -> Given:
    roles = roles_of(
        held(INDUCTION, 1, 2, 0.55),
        held(INDUCTION, 1, 0, 0.6),
        held(PREVIOUS, 1, 1, 0.75),
        held(CLS, 1, 2, 0.8, is_firm=False),
    )
    return Given(**({"scores": scores_of(AFTER, below=0.03, above=0.12), "roles": roles} | changed))


def larger() -> Given:
    """Of one layer more, all heads alike but one."""
    drawn: Drawn = {"position.mass[-1]": [".10 .10 .10", ".10 .60 .10", ".10 .10 .10"]}
    return Given(scores_of(drawn), roles_of(held(PREVIOUS, 1, 1, 0.6)), {"model": {"name": "Large"}})


def evidence_of(*rows: MetricEvidence, seed: int = 0, minimum: int = 50) -> Evidence:
    empty = np.full((len(rows), 2, 3), NAN)
    settings = Settings(seed=seed, repeats=10, minimum=minimum, alpha=0.05, margin=0.1, folds=12)
    return Evidence(rows, (), settings, empty, empty, empty, empty, empty)


def weighed(metric: str, layer: int, head: int, held_out: float, verdict: str) -> MetricEvidence:
    return MetricEvidence(
        metric,
        metric.partition("[")[2].rstrip("]"),
        decisions=200,
        documents=12,
        chance=0.1,
        layer=layer,
        head=head,
        share=1.0,
        value=held_out,
        held_out=held_out,
        low=held_out - 0.03,
        high=held_out + 0.04,
        baselines={},
        p=0.001,
        q=0.01,
        verdict=verdict,
    )


def _array(rows: list[str]) -> np.ndarray:
    return np.array([[NAN if cell == "." else float(cell) for cell in row.split()] for row in rows])
