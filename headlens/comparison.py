"""Two or more profiles side by side: which roles stay, move or go, and how far every score changes. No torch here.

from headlens.comparison import compare

found = compare([before, after])
found.pairs[0].roles, found.to_frame()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from headlens.differences import Change, Differences, differences_of
from headlens.errors import OutputError
from headlens.evidence_table import Evidence
from headlens.roles.catalogue import RULES
from headlens.roles.role import HeadRole, Role
from headlens.roles.table import Roles
from headlens.scores import Floats, Metric, ScoreTable, head_name

if TYPE_CHECKING:
    import pandas as pd

# Lost and gained: the score changed beyond its interval, too, or the head itself went or came
Fate = Literal["kept", "moved", "named elsewhere", "lost", "no longer named", "gained", "newly named"]
Place = tuple[int, int]  # layer, head

_LOW_IS_TELLING = frozenset(rule.id for rule in RULES if rule.is_below)  # roles of scores under a threshold

COLUMNS = "before after of metric layer head value_before value_after difference low high chance_before chance_after"
ROLE_COLUMNS = (
    "before after role of layer head fate is_removed strength_before strength_after heads_before heads_after "
    "share_before share_after metric value_before value_after difference low high"
)


@runtime_checkable
class HasScores(Protocol):
    """What a comparison takes of a profile; `headlens.Profile` has it all."""

    @property
    def scores(self) -> ScoreTable: ...
    @property
    def roles(self) -> Roles: ...
    @property
    def provenance(self) -> Mapping[str, Any]: ...
    @property
    def evidence(self) -> Evidence | None: ...


@dataclass(frozen=True, eq=False)
class Side:
    """One profile of a comparison, under the name that it goes by there."""

    name: str
    scores: ScoreTable
    roles: Roles
    provenance: Mapping[str, Any]
    evidence: Evidence | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Layers, and heads of a layer."""
        return self.scores.n_layers, self.scores.n_heads

    @cached_property
    def present(self) -> npt.NDArray[np.bool_]:
        """[layer, head]: whether any score of the head is defined; a head that was removed has none."""
        return np.asarray(np.isfinite(self.scores.values).any(axis=0))


@dataclass(frozen=True)
class HeadChange:
    """A role and a head that has it before, after, or both."""

    role: Role
    layer: int
    head: int
    before: HeadRole | None
    after: HeadRole | None
    metric: str  # that the role rests on before, else after
    is_removed: bool  # the head itself is absent after
    change: Change | None  # of that score, where both sides have it
    is_added: bool = False  # the head itself is absent before

    @property
    def fate(self) -> Fate:
        """Named no longer, or newly: a threshold lies between two scores that no interval tells apart."""
        if self.before is None:
            return "gained" if self.is_added or self._moves(1) else "newly named"
        if self.after is None:
            return "lost" if self.is_removed or self._moves(-1) else "no longer named"
        return "kept"

    def _moves(self, way: int) -> bool:
        """The score changed beyond its interval, toward the role (1) or away from it (-1)."""
        if self.change is None or not self.change.is_beyond_zero:
            return False
        toward = -1 if self.role.id in _LOW_IS_TELLING else 1
        return bool(np.sign(self.change.difference) == toward * way)

    @property
    def name(self) -> str:
        return head_name(self.layer, self.head)


@dataclass(frozen=True)
class RoleChange:
    """A role that was asked of both sides, and who has it: the best head first."""

    role: Role
    before: tuple[HeadRole, ...]
    after: tuple[HeadRole, ...]
    heads: tuple[HeadChange, ...]  # all that have it on a side; empty where models differ in shape

    @property
    def fate(self) -> Fate | None:
        """None where neither side has it, or no head can be followed, since the models differ in shape.

        Kept: the best head before still has it, though another may be better now. Moved: that head has lost it, and
        another one has it. Named elsewhere: so it is, though the score of that head did not change beyond its interval.
        """
        best = self.best
        if best is None:
            return None
        if not self.before or not self.after or best.fate == "kept":
            return best.fate
        return "moved" if best.fate == "lost" else "named elsewhere"

    @property
    def is_held(self) -> bool:
        """Whether any head of either side has it."""
        return bool(self.before or self.after)

    @property
    def best(self) -> HeadChange | None:
        """What became of the best head before; where no head had the role, of the best one after."""
        first = next(iter(self.before or self.after), None)
        return next((one for one in self.heads if first and one.name == first.name), None)

    def count(self, fate: Fate) -> int:
        """How many heads have this fate."""
        return sum(one.fate == fate for one in self.heads)


@dataclass(frozen=True, eq=False)
class Pair:
    """One profile against the reference. `differences` is None where the models differ in shape."""

    before: Side
    after: Side
    metrics: tuple[Metric, ...]  # that both have, in the order of `before`
    roles: tuple[RoleChange, ...]
    differences: Differences | None

    @property
    def only_before(self) -> tuple[str, ...]:
        """Scores that the other side lacks or has in another unit."""
        return _without(self.before.scores, self.metrics)

    @property
    def only_after(self) -> tuple[str, ...]:
        return _without(self.after.scores, self.metrics)

    @property
    def unasked(self) -> tuple[Role, ...]:
        """Roles that only one side has the scores for: nothing is said of them."""
        both = {change.role.id for change in self.roles}
        asked = (*self.before.roles.asked, *self.after.roles.asked)
        return tuple({role.id: role for role in asked if role.id not in both}.values())

    @property
    def removed(self) -> list[Place]:
        """Heads that are absent after; empty where the models differ in shape."""
        return self._gone(self.before, self.after)

    @property
    def added(self) -> list[Place]:
        return self._gone(self.after, self.before)

    def _gone(self, there: Side, not_there: Side) -> list[Place]:
        if self.differences is None:
            return []
        return [(int(layer), int(head)) for layer, head in np.argwhere(there.present & ~not_there.present)]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Profiles side by side. The first is the reference; each of the others makes a pair with it."""

    sides: tuple[Side, ...]
    pairs: tuple[Pair, ...]

    def to_frame(self) -> pd.DataFrame:
        """Scores in long form, the columns of comparison.csv.

        One row for each head and metric (`of` is "head"); for models of different shape one row each for the largest
        value and the median of a metric ("highest", "median"), without an interval.
        """
        return _frame((row for pair in self.pairs for row in _score_rows(pair)), COLUMNS)

    def roles_frame(self) -> pd.DataFrame:
        """Roles in long form, the columns of roles.csv: one row for a role, and one for each head that has it."""
        return _frame((row for pair in self.pairs for row in _role_rows(pair)), ROLE_COLUMNS)


def compare(profiles: Sequence[HasScores], names: Sequence[str] | None = None) -> Comparison:
    """Set profiles side by side: the first is the reference, each of the others is compared with it.

    Models of the same number of layers and heads are compared head by head, all others as a whole.

    Parameters
    ----------
    names
        What each profile is called, all different. Without: the name of its model, numbered where names are alike.

    Raises
    ------
    OutputError
        Fewer than two profiles, names that do not fit, or two profiles that have no score in common.
    """
    if len(profiles) < 2:
        raise OutputError(f"A comparison needs at least two profiles, got {len(profiles)}; give one more.")
    given = _model_names(profiles) if names is None else names
    # a folder's name may hold bytes that are no text, which neither page nor table could hold
    names = [name.encode("utf-8", "replace").decode("utf-8") for name in given]
    if len(names) != len(profiles) or len(set(names)) < len(names):
        raise OutputError(
            f"Each of the {len(profiles)} profiles needs a name of its own, got {', '.join(names) or 'none'}; "
            f"give as many different names."
        )
    sides = tuple(
        Side(name, one.scores, one.roles, one.provenance, one.evidence)
        for name, one in zip(names, profiles, strict=True)
    )
    return Comparison(sides, tuple(_pair(sides[0], side) for side in sides[1:]))


def _model_names(profiles: Sequence[HasScores]) -> list[str]:
    """Those of the models; of names that are alike each has its place behind it, and none is taken twice."""
    models = [one.provenance.get("model") for one in profiles]
    names = [str(model.get("name") or "model") if isinstance(model, Mapping) else "model" for model in models]
    if len(set(names)) == len(names):
        return names
    return [f"{name} ({place})" for place, name in enumerate(names, start=1)]


def _pair(before: Side, after: Side) -> Pair:
    metrics = tuple(
        metric
        for metric in before.scores
        if metric.name in after.scores and after.scores.metrics[after.scores.index(metric.name)].unit == metric.unit
    )
    if not metrics:
        raise OutputError(
            f"{before.name} and {after.name} have no score in common ({_some(before.scores)}; "
            f"{_some(after.scores)}); profile both models with the same parts, on the same kind of corpus."
        )
    differences = differences_of(before.scores, after.scores, metrics) if before.shape == after.shape else None
    asked = {role.id for role in after.roles.asked}
    roles = tuple(_role(role, before, after, differences) for role in before.roles.asked if role.id in asked)
    return Pair(before, after, metrics, roles, differences)


def _some(scores: ScoreTable) -> str:
    return ", ".join(scores.names[:3]) + (", ..." if len(scores.names) > 3 else "")


def _without(scores: ScoreTable, metrics: Sequence[Metric]) -> tuple[str, ...]:
    common = {metric.name for metric in metrics}
    return tuple(name for name in scores.names if name not in common)


def _role(role: Role, before: Side, after: Side, differences: Differences | None) -> RoleChange:
    old, new = (tuple(side.roles.heads(role.id)) for side in (before, after))
    if differences is None:
        return RoleChange(role, old, new, ())
    by_place = [{(one.layer, one.head): one for one in heads} for heads in (old, new)]
    heads = []
    for layer, head in sorted({*by_place[0], *by_place[1]}):
        was, now = (held.get((layer, head)) for held in by_place)
        metric = next(one.metric for one in (was, now) if one is not None)
        is_removed = bool(before.present[layer, head] and not after.present[layer, head])
        change = differences.of(metric, layer, head) if metric in differences.names else None
        is_added = bool(after.present[layer, head] and not before.present[layer, head])
        heads.append(HeadChange(role, layer, head, was, now, metric, is_removed, change, is_added))
    return RoleChange(role, old, new, tuple(heads))


def _frame(rows: Iterator[dict[str, Any]], columns: str) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(list(rows), columns=columns.split())


def _score_rows(pair: Pair) -> Iterator[dict[str, Any]]:
    old, new = pair.before.scores, pair.after.scores
    for metric in pair.metrics:
        row = {
            **_names(pair),
            "metric": metric.name,
            "chance_before": old.chance[old.index(metric.name)],
            "chance_after": new.chance[new.index(metric.name)],
        }
        if pair.differences is None:
            for kind, pick in (("highest", np.max), ("median", np.median)):
                was, now = (_of_defined(scores[metric.name], pick) for scores in (old, new))
                numbers = {"value_before": was, "value_after": now, "difference": now - was}
                yield {**row, "of": kind, **numbers}
            continue
        for layer, head in np.ndindex(pair.before.shape):
            numbers = _numbers(pair.differences.of(metric.name, layer, head))
            yield {**row, "of": "head", "layer": layer, "head": head, **numbers}


def _of_defined(values: Floats, pick: Any) -> float:
    seen = values[np.isfinite(values)]
    return float(pick(seen)) if len(seen) else float("nan")


def _role_rows(pair: Pair) -> Iterator[dict[str, Any]]:
    for change in pair.roles:
        yield {
            **_names(pair),
            "role": change.role.id,
            "of": "role",
            "fate": change.fate,
            "heads_before": len(change.before),
            "heads_after": len(change.after),
            "share_before": share(change.before, pair.before),
            "share_after": share(change.after, pair.after),
        }
        for head in change.heads:
            yield {
                **_names(pair),
                "role": change.role.id,
                "of": "head",
                "layer": head.layer,
                "head": head.head,
                "fate": head.fate,
                "is_removed": head.is_removed,
                "strength_before": strength(head.before),
                "strength_after": strength(head.after),
                "metric": head.metric,
                **(_numbers(head.change) if head.change else {}),
            }


def share(heads: Sequence[HeadRole], side: Side) -> float:
    """Of all heads that the model has; NaN where it has none."""
    return len(heads) / side.scores.n_present if side.scores.n_present else float("nan")


def strength(head: HeadRole | None) -> str | None:
    return None if head is None else "firm" if head.is_firm else "tentative"


def _names(pair: Pair) -> dict[str, str]:
    return {"before": pair.before.name, "after": pair.after.name}


def _numbers(change: Change) -> dict[str, float]:
    return {
        "value_before": change.before,
        "value_after": change.after,
        "difference": change.difference,
        "low": change.low,
        "high": change.high,
    }
