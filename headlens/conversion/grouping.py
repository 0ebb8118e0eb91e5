"""Which key/value heads of a layer are to be shared: neighbours, those that are alike, or those named by hand."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, combinations

import torch
from jaxtyping import Float
from torch import Tensor

from headlens.conversion.align import Part, key_parts, value_part
from headlens.conversion.moments import Moments
from headlens.conversion.weights import LayerWeights
from headlens.errors import PlanError
from headlens.plan import Groups

Cost = Callable[[tuple[int, ...]], float]  # of sharing these heads, in rising order; groups add up
_EXACT_HEADS = 16  # above, and with more possible groups than the next number, groups are searched by swaps
_EXACT_GROUPS = 1000
_SWAP_GAIN = 1e-12  # of all costs; less is rounding, on which swaps could go round for ever


def contiguous_groups(kv_heads: int, into: int) -> Groups:
    """Neighbours: heads 0, 1, ... share the first one, as plain mean pooling has it (Ainslie et al. 2023)."""
    return _cut(range(kv_heads), into)


def random_groups(kv_heads: int, into: int, seed: int = 0) -> Groups:
    """Groups by lot, as a control."""
    return _cut(random.Random(seed).sample(range(kv_heads), kv_heads), into)


def cheapest_groups(kv_heads: int, into: int, cost: Cost, *, seed: int = 0, restarts: int = 20) -> Groups:
    """Groups of one size with the least sum of costs.

    Exact with up to 16 heads and 1,000 possible groups; otherwise the best of a descent by swaps of two heads, from
    the contiguous groups and from `restarts` random ones.
    """
    check_count(kv_heads, into)
    remembered, size = cache(cost), kv_heads // into
    if into == 1 or size == 1:
        return contiguous_groups(kv_heads, into)
    if kv_heads <= _EXACT_HEADS and math.comb(kv_heads, size) <= _EXACT_GROUPS:
        return _exact(kv_heads, size, remembered)
    starts = [contiguous_groups(kv_heads, into)]
    starts += [random_groups(kv_heads, into, seed + number) for number in range(restarts)]
    return min((_by_swaps(start, remembered) for start in starts), key=lambda found: sum(map(remembered, found)))


def similar_groups(layer: LayerWeights, into: int, moments: Moments, *, seed: int = 0) -> Groups:
    """The groups whose heads are nearest to each other, summed over pairs, after rotations (`aligned_distances`)."""
    distances = aligned_distances(layer, moments)
    return cheapest_groups(len(layer.k), into, pair_cost(distances), seed=seed)


def aligned_distances(layer: LayerWeights, moments: Moments) -> Float[Tensor, "kv kv"]:
    """Mean squared distance of keys and of values after the best rotation of each pair of heads, 0 for the same head.

    Keys and values each as a part of their mean energy, and added: two heads of the mean energy that have nothing in
    common are at 4.
    """
    return _distances(key_parts(layer, moments)) + _distances([value_part(layer, moments)])


def pair_cost(distances: Float[Tensor, "kv kv"]) -> Cost:
    """The sum of the distances of all pairs of a group."""
    table = distances.tolist()
    return lambda group: sum(table[one][other] for one, other in combinations(group, 2))


def check_groups(groups: Sequence[Sequence[int]], kv_heads: int) -> None:
    """PlanError where groups named by hand are not of one size, or do not hold each key/value head once."""
    if sorted(chain.from_iterable(groups)) != list(range(kv_heads)):
        raise PlanError(
            f"Groups must hold each of the key/value heads 0 to {kv_heads - 1} once, got {_in_words(groups)}."
        )
    sizes = sorted({len(group) for group in groups})
    if len(sizes) != 1:
        raise PlanError(f"Groups of key/value heads must be of one size, got sizes {sizes} in {_in_words(groups)}.")


def check_count(kv_heads: int, into: int) -> None:
    """PlanError where that many heads cannot be shared as so many, in groups of one size."""
    if into < 1 or kv_heads % into:
        possible = ", ".join(str(count) for count in range(1, kv_heads + 1) if kv_heads % count == 0)
        raise PlanError(
            f"{kv_heads} key/value heads cannot become {into} in groups of one size; choose one of {possible}."
        )


def with_contiguous_groups(layer: LayerWeights) -> LayerWeights:
    """The same layer with its query heads in the order of their groups, as grouped attention counts them."""
    order = layer.order
    return replace(
        layer,
        q=layer.q[order],
        o=layer.o[order],
        q_bias=None if layer.q_bias is None else layer.q_bias[order],
        groups=_cut(range(len(order)), len(layer.groups)) if order else (),
    )


def divided(layer: LayerWeights, into: int) -> LayerWeights:
    """The same attention with more key/value heads, each a copy of one that there is: exact.

    The query heads of a key/value head are cut, in their order, into as many groups as it gets copies.
    """
    kv_heads, heads = len(layer.k), len(layer.q)
    if into % kv_heads or heads % into:
        possible = ", ".join(
            str(count) for count in range(kv_heads, heads + 1) if count % kv_heads == 0 and heads % count == 0
        )
        raise PlanError(
            f"{kv_heads} key/value heads of {heads} heads cannot become {into}, as each is copied as often; choose one "
            f"of {possible}."
        )
    copies, size = into // kv_heads, heads // into
    owners = [kv for kv in range(kv_heads) for _ in range(copies)]
    return replace(
        layer,
        k=layer.k[owners],
        v=layer.v[owners],
        k_bias=None if layer.k_bias is None else layer.k_bias[owners],
        v_bias=None if layer.v_bias is None else layer.v_bias[owners],
        groups=tuple(group[start : start + size] for group in layer.groups for start in range(0, len(group), size)),
    )


# -------------------------------------------------------------------------------------------------------------- search


def _cut(heads: Sequence[int], into: int) -> Groups:
    check_count(len(heads), into)
    size = len(heads) // into
    return _in_order(heads[start : start + size] for start in range(0, len(heads), size))


def _in_order(groups: Iterable[Iterable[int]]) -> Groups:
    return tuple(sorted(tuple(sorted(group)) for group in groups))


def _exact(heads: int, size: int, cost: Cost) -> Groups:
    """The lowest head that is left chooses its group, and what follows depends only on those left after it."""

    @cache
    def cheapest(left: tuple[int, ...]) -> tuple[float, Groups]:
        if not left:
            return 0.0, ()
        return min(with_first(left, rest) for rest in combinations(left[1:], size - 1))

    def with_first(left: tuple[int, ...], rest: tuple[int, ...]) -> tuple[float, Groups]:
        group = (left[0], *rest)
        below, groups = cheapest(tuple(head for head in left if head not in group))
        return cost(group) + below, (group, *groups)

    return cheapest(tuple(range(heads)))[1]


def _by_swaps(groups: Groups, cost: Cost) -> Groups:
    least = _SWAP_GAIN * sum(abs(cost(group)) for group in groups)
    while (better := _first_better(groups, cost, least)) is not None:
        groups = better
    return groups


def _first_better(groups: Groups, cost: Cost, least: float) -> Groups | None:
    for one, other in combinations(groups, 2):
        now = cost(one) + cost(other)
        for place in one:
            for there in other:
                swapped = _in_order(
                    [
                        (*(head for head in one if head != place), there),
                        (*(head for head in other if head != there), place),
                    ]
                )
                if sum(map(cost, swapped)) < now - least:
                    return _in_order([*(group for group in groups if group not in (one, other)), *swapped])
    return None


def _distances(parts: Sequence[Part]) -> Float[Tensor, "kv kv"]:
    """|a|^2 + |b|^2 - 2 max_R <a, R b>, and the maximum over unitary R is the nuclear norm of the cross moments."""
    distances, energies = [], []
    for part in parts:
        grams = part.grams()
        energy = grams.diagonal(dim1=1, dim2=2).diagonal(dim1=1, dim2=2).real.sum(dim=(0, -1))  # [kv]
        in_common = torch.linalg.svdvals(grams).sum(dim=(0, -1))
        distances.append(energy[:, None] + energy[None, :] - 2 * in_common)
        energies.append(energy)
    mean = torch.stack(energies).sum(dim=0).mean().clamp(min=torch.finfo(torch.float64).tiny)
    relative = (torch.stack(distances).sum(dim=0) / mean).clamp(min=0.0)
    return relative.fill_diagonal_(0.0)


def _in_words(groups: Sequence[Sequence[int]]) -> str:
    return " | ".join(" ".join(map(str, group)) for group in groups)
