"""From importance, names or roles to a plan of the heads that stay. No torch here.

Heads are the original model's: shares are of all of its heads, also where some are gone already.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

import numpy as np

from headlens.errors import PlanError
from headlens.numbers import amount
from headlens.plan import Head, HeadPlan
from headlens.roles import Roles
from headlens.scores import Floats, head_name

Unit = Literal["head", "group", "even"]  # what goes together: a head; a key/value head with all its heads; one of each

_PATTERN = re.compile(r"L(\d{1,6}|\*)(?:H(\d{1,6}|\*))?", re.IGNORECASE | re.ASCII)


def lowest(
    importance: Floats,
    base: HeadPlan,
    *,
    keep: float | int | None = None,
    remove: float | int | None = None,
    unit: Unit | None = None,
    per_layer: bool = False,
    floor: int = 0,
    protected: Collection[Head] = (),
) -> HeadPlan:
    """Remove the heads that matter least.

    Parameters
    ----------
    importance
        [layer, head], the larger, the more a head matters; of heads that are gone from `base` it is not read.
    base
        What is there: `HeadPlan.full`, or the plan of a model that was pruned before.
    keep, remove
        One of the two: a number of those that are there (an int), or a share of the original model's heads (a float
        from 0 to 1), rounded to whole heads.
    unit
        "head" takes single heads. With grouped heads: "group" takes a key/value head and all its query heads, by their
        sum, which alone makes the cache smaller; "even" takes one head of every group of a layer at once. None means
        "head", or "group" with grouped heads.
    per_layer
        The same number from every layer, instead of the lowest of all.
    floor
        Query heads that every layer keeps; at 0 a layer may lose all of them.
    protected
        Heads that stay.

    Raises
    ------
    PlanError
        A number that cannot be reached exactly, a head without importance.
    """
    unit = unit or ("group" if base.is_grouped else "head")
    _check(importance, base, unit)
    units = _units(importance, base, unit)
    step = max((len(one) for one in units), default=1) * (base.layers if per_layer else 1)
    count = _heads_to_remove(base, keep, remove, step)
    free = [one for one in units if not set(one) & set(protected)]
    if not per_layer:
        return base.without(_taken(free, base, count, floor))
    if count % base.layers:
        below = count // base.layers * base.layers
        raise PlanError(
            f"{count} heads cannot be taken evenly from {base.layers} layers: remove {below} or {below + base.layers}, "
            f"or take the lowest of all layers."
        )
    by_layer = [[one for one in free if one[0][0] == layer] for layer in range(base.layers)]
    return base.without(head for own in by_layer for head in _taken(own, base, count // base.layers, floor))


def drawn_like(plan: HeadPlan, base: HeadPlan, rng: np.random.Generator, *, same_layers: bool = True) -> HeadPlan:
    """A random plan that takes as many heads from `base` as `plan` does: of every layer, or of all layers together.

    What goes together goes together here, too: heads, whole groups, or one head of every group of a layer.
    """
    importance = rng.permutation(base.layers * base.heads).reshape(base.layers, base.heads).astype(np.float64)
    units = _units(importance, base, _unit_of(plan, base))
    if not same_layers:
        return base.without(_taken(units, base, base.n_kept - plan.n_kept, 0))
    counts = [len(have) - len(stay) for have, stay in zip(base.kept, plan.kept, strict=True)]
    by_layer = [[one for one in units if one[0][0] == layer] for layer in range(base.layers)]
    return base.without(
        head for own, count in zip(by_layer, counts, strict=True) for head in _taken(own, base, count, 0)
    )


def named(patterns: str | Iterable[str], base: HeadPlan) -> frozenset[Head]:
    """Heads by hand: "L3H2, L7H*" or ["L3H2", "L7"]; L7H* and L7 are a whole layer, L*H0 is a head of every layer."""
    given = patterns.split(",") if isinstance(patterns, str) else list(patterns)
    found: set[Head] = set()
    for pattern in given:
        match = _PATTERN.fullmatch(pattern.strip())
        if match is None:
            raise PlanError(f"Heads are named like L3H2, L7H* (a whole layer) or L*H0; got {pattern.strip()!r}.")
        layers = _numbers(match[1], base.layers, pattern)
        found |= {(layer, head) for layer in layers for head in _numbers(match[2] or "*", base.heads, pattern)}
    return frozenset(found)


def with_roles(roles: Roles, wanted: Iterable[str], *, firm_only: bool = False) -> frozenset[Head]:
    """Heads that have one of the roles, named by id ("induction") or kind ("syntax", "coreference").

    Raises
    ------
    PlanError
        A name that no role of this profile has.
    """
    names = list(wanted)
    known = {role.id for role in roles.asked} | {role.kind for role in roles.asked}
    if unknown := [name for name in names if name not in known]:
        raise PlanError(
            f"There is no role or kind {unknown[0]!r} in this profile; it has {', '.join(sorted(known)) or 'none'}."
        )
    return frozenset(
        (one.layer, one.head)
        for one in roles
        if {one.role.id, one.role.kind} & set(names) and (one.is_firm or not firm_only)
    )


def from_gates(gates: Floats, base: HeadPlan, *, threshold: float = 0.5) -> HeadPlan:
    """Keep the heads whose gate, [layer, head] from 0 to 1, was learned to stay above the threshold."""
    if gates.shape != (base.layers, base.heads):
        raise PlanError(f"Gates must be [{base.layers}, {base.heads}], got {list(gates.shape)}.")
    return base.without(head for head in base if not gates[head] > threshold)


# ------------------------------------------------------------------------------------------------------------- details


def _check(importance: Floats, base: HeadPlan, unit: Unit) -> None:
    if importance.shape != (base.layers, base.heads):
        raise PlanError(
            f"The importance is of {' x '.join(map(str, importance.shape))} heads, the model has {base.layers} x "
            f"{base.heads}: take the one that was measured on this model."
        )
    if unit == "head" and base.is_grouped:
        raise PlanError(
            f"{_largest(base)} heads share a key/value head here, so single ones cannot go: take whole "
            f"groups (unit 'group') or one of every group of a layer (unit 'even'), or expand the model to multi-head "
            f"first."
        )
    for head in base:
        if not np.isfinite(importance[head]):
            raise PlanError(f"{head_name(*head)} has no importance ({importance[head]}), so it cannot be ranked.")


def _largest(base: HeadPlan) -> int:
    return max(len(group) for groups in base.groups for group in groups)


def _heads_to_remove(base: HeadPlan, keep: float | int | None, remove: float | int | None, step: int) -> int:
    """How many of those that are there; a share is rounded to whole steps."""
    total = base.layers * base.heads
    if (keep is None) == (remove is None):
        raise PlanError("Say either how many heads to keep or how many to remove.")
    asked = keep if keep is not None else remove
    assert asked is not None
    if isinstance(asked, float):
        if not 0 <= asked <= 1:
            raise PlanError(f"A share of heads is from 0 to 1, got {asked:g}; a number of heads is a whole number.")
        # .5 kept and .5 removed are one thing, so it is what goes that is rounded
        left = total - min(round(total * (asked if keep is None else 1 - asked) / step) * step, total)
    else:
        left = base.n_kept - asked if keep is None else asked
    if not 0 <= left <= total or (isinstance(asked, int) and asked < 0):
        raise PlanError(f"The model has {amount(base.n_kept, 'head')}, got {asked}.")
    if left > base.n_kept:
        raise PlanError(f"Only {base.n_kept} of {total} heads are left, so {left} cannot be kept.")
    return base.n_kept - left


def _unit_of(plan: HeadPlan, base: HeadPlan) -> Unit:
    """What went together when `plan` was made of `base`."""
    if not base.is_grouped:
        return "head"
    before = {group for layer in base.groups for group in layer}
    return "group" if all(group in before for layer in plan.groups for group in layer) else "even"


def _units(importance: Floats, base: HeadPlan, unit: Unit) -> list[tuple[Head, ...]]:
    """What can go at once, the least important first; the earlier of equals."""
    if unit == "even":
        return _even_units(importance, base)
    groups = [[(layer, head) for head in group] for layer, of_layer in enumerate(base.groups) for group in of_layer]
    units = [tuple(group) for group in groups] if unit == "group" else [(head,) for group in groups for head in group]
    return sorted(units, key=lambda one: (_sum(importance, one), min(one)))


def _even_units(importance: Floats, base: HeadPlan) -> list[tuple[Head, ...]]:
    """The weakest of every group of a layer, then the next weakest ...: a later one goes only after the earlier."""
    units = []
    for layer, of_layer in enumerate(base.groups):
        ranked = [sorted(group, key=lambda head: (importance[layer, head], head)) for group in of_layer]
        height = -np.inf
        for heads in zip(*ranked, strict=False):
            one = tuple((layer, head) for head in heads)
            height = max(height, _sum(importance, one))
            units.append((height, one))
    return [one for _, one in sorted(units, key=lambda pair: (pair[0], pair[1][0][0]))]


def _taken(units: Sequence[tuple[Head, ...]], base: HeadPlan, count: int, floor: int) -> list[Head]:
    left = [len(kept) for kept in base.kept]
    gone: list[Head] = []
    for one in units:
        layer = one[0][0]
        if len(gone) + len(one) > count or left[layer] - len(one) < floor:
            continue
        gone += one
        left[layer] -= len(one)
    if len(gone) != count:
        raise PlanError(_unreachable(units, count, len(gone), floor))
    return gone


def _unreachable(units: Sequence[tuple[Head, ...]], count: int, reached: int, floor: int) -> str:
    sizes = sorted({len(one) for one in units})
    if sizes and sizes != [1] and count % sizes[0]:
        below = count // sizes[0] * sizes[0]
        return (
            f"{count} heads cannot be removed exactly, because they go {' or '.join(map(str, sizes))} at a time: "
            f"remove {below} or {below + sizes[0]}."
        )
    kept = f", or the {floor} that every layer keeps (--floor)" if floor else ""
    return (
        f"Only {reached} of {count} heads can be removed: the others are protected{kept}; remove fewer, or protect "
        f"fewer."
    )


def _sum(importance: Floats, heads: Iterable[Head]) -> float:
    return float(sum(importance[head] for head in heads))


def _numbers(text: str, most: int, pattern: str) -> range:
    if text == "*":
        return range(most)
    if int(text) >= most:
        raise PlanError(f"{pattern.strip()}: the model counts from 0 to {most - 1}, there is no {int(text)}.")
    return range(int(text), int(text) + 1)
