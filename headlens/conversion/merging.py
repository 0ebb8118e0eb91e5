"""Several key/value heads of a layer into one, with nothing trained: means, single members, and shared factors."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from headlens.conversion.align import Maps, Part, align, key_parts, put_back, value_part, white_moments
from headlens.conversion.grouping import Cost, check_groups
from headlens.conversion.moments import Moments
from headlens.conversion.weights import LayerWeights
from headlens.errors import PlanError
from headlens.plan import Groups

METHODS = ("mean", "first", "random", "medoid", "weighted", "aligned", "svd")
SCALES = ("plain", "restored", "fitted")
_NOTHING = 1e-13  # of the largest; directions with less energy are rounding, and are not divided by


def merge(
    layer: LayerWeights,
    groups: Sequence[Sequence[int]],
    method: str,
    moments: Moments | None = None,
    *,
    scale: str = "plain",
    seed: int = 0,
) -> LayerWeights:
    """The layer with one key/value head for each of `groups` of those it has; its query heads follow, in their order.

    Parameters
    ----------
    method
        `mean`, `first` and `random` (by `seed`) of weights and biases as they are; `medoid`, the member whose keys and
        values are nearest to the others'; `weighted`, a mean by the size of the keys, and of the values; `aligned`, the
        mean after rotations (`align`); `svd`, a factor that is shared, and free maps to it (`share_factors`).
    moments
        Of the layer's inputs. None measures by the weights alone, as if inputs were white noise.
    scale
        Of each merged head's keys and of its values: `plain` as they come; `restored` to the mean size of the members';
        `fitted` by least squares to what the members add to scores and to outputs. Not of `svd`, which fits all.

    Raises
    ------
    PlanError
        Groups that are not of one size or do not hold each key/value head once, or an unknown method or scale.
    """
    check_groups(groups, len(layer.k))
    _check_names(method, scale)
    moments = white_moments(layer) if moments is None else moments
    if method == "svd":
        return share_factors(layer, groups, moments)
    layer = align(layer, groups, moments) if method == "aligned" else layer
    merged = _combined(layer, groups, *_shares(layer, groups, method, moments, seed))
    return merged if scale == "plain" else _scaled(layer, merged, groups, moments, scale)


def weighted_mean(layer: LayerWeights, groups: Sequence[Sequence[int]], weights: Float[Tensor, " kv"]) -> LayerWeights:
    """Means with weights from elsewhere, say the importance of the heads; positive ones, of any sum."""
    check_groups(groups, len(layer.k))
    if not (weights > 0).all():
        raise PlanError(f"The weights of key/value heads must be positive, got {weights.tolist()}.")
    shares = _normed(weights, groups)
    return _combined(layer, groups, shares, shares)


def share_factors(layer: LayerWeights, groups: Sequence[Sequence[int]], moments: Moments) -> LayerWeights:
    """Reduced-rank regression: heads of a group share keys and values, and each reads them through a map of its own.

    The maps go into the queries and into the output's weights. Of all that share so, it has the least squared error:
    of the values' contributions to the output, in the metric of the inputs as the patterns mix them; of the scores, in
    the metrics of queries and of attended keys (Eckart and Young 1936). With rotary positions maps are complex numbers
    per frequency pair, members weighted by the energy of their queries, as only those commute with the rotation.
    Rotary biases and those of values are taken with the weights. Heads that are alone in their group stay as they are.
    """
    check_groups(groups, len(layer.k))
    keys = [_with_shared_factor(part, groups) for part in key_parts(layer, moments)]
    value = _with_shared_factor(value_part(layer, moments), groups)
    return put_back(layer, keys, value, _followers(layer, groups))


def discarded_energy(layer: LayerWeights, moments: Moments) -> Cost:
    """What `share_factors` loses by a group, for `cheapest_groups`.

    The mean squared error of scores as a part of all their energy, and that of outputs as a part of all theirs, added.
    """
    kinds = [_seen_grams(key_parts(layer, moments)), _seen_grams([value_part(layer, moments)])]
    totals = [sum(float(_flat(grams).diagonal(dim1=1, dim2=2).real.sum()) for grams in kind) for kind in kinds]
    tiny = torch.finfo(torch.float64).tiny

    def cost(group: tuple[int, ...]) -> float:
        lost = [sum(_beyond_rank(_among(grams, group)) for grams in kind) for kind in kinds]
        return sum(part / max(total, tiny) for part, total in zip(lost, totals, strict=True))

    return cost


# --------------------------------------------------------------------------------------------- means and single members


def _check_names(method: str, scale: str) -> None:
    if method not in METHODS:
        raise PlanError(f"No method {method!r} to merge heads; choose one of {', '.join(METHODS)}.")
    if scale not in SCALES:
        raise PlanError(f"No scale {scale!r} of merged heads; choose one of {', '.join(SCALES)}.")
    if method == "svd" and scale != "plain":
        raise PlanError(f"Heads merged by svd are fitted as they are: leave out the scale {scale!r}.")


def _shares(
    layer: LayerWeights, groups: Sequence[Sequence[int]], method: str, moments: Moments, seed: int
) -> tuple[Tensor, Tensor]:
    """[group, kv] for keys, and for values: rows that sum to 1."""
    if method == "weighted":
        kinds = (key_parts(layer, moments), [value_part(layer, moments)])
        keys, values = (_normed(_energies(parts).sqrt(), groups) for parts in kinds)
        return keys, values
    if method in ("mean", "aligned"):
        even = _normed(layer.k.new_ones(len(layer.k)), groups)
        return even, even
    chosen = layer.k.new_zeros(len(groups), len(layer.k))
    draw = random.Random(seed)
    for row, group in zip(chosen, groups, strict=True):
        if method == "medoid":
            row[_medoid(layer, group, moments)] = 1.0
        else:
            row[group[0] if method == "first" else draw.choice(list(group))] = 1.0
    return chosen, chosen


def _normed(weights: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
    shares = weights.new_zeros(len(groups), len(weights))
    for row, group in zip(shares, groups, strict=True):
        places = list(group)
        total = weights[places].sum()
        row[places] = weights[places] / total if total > 0 else 1.0 / len(places)
    return shares


def _medoid(layer: LayerWeights, group: Sequence[int], moments: Moments) -> int:
    members = sorted(group)  # of two, which are as far from each other, the first one
    distances = layer.k.new_zeros(len(members))
    for parts in (key_parts(layer, moments), [value_part(layer, moments)]):
        products = sum(_traces(part.grams()) for part in parts)
        among = torch.as_tensor(products)[members][:, members]
        sizes = among.diagonal()
        mean = sizes.mean().clamp(min=torch.finfo(sizes.dtype).tiny)
        distances += (sizes[:, None] + sizes[None, :] - 2 * among).sum(dim=1) / mean
    return members[int(distances.argmin())]


def _traces(grams: Tensor) -> Tensor:
    """[kv, kv]: E k_g . k_h, over all blocks."""
    return grams.diagonal(dim1=-2, dim2=-1).real.sum(dim=(0, -1))


def _energies(parts: Sequence[Part]) -> Tensor:
    return torch.as_tensor(sum(_traces(part.grams()) for part in parts)).diagonal().clamp(min=0.0)


def _combined(layer: LayerWeights, groups: Sequence[Sequence[int]], keys: Tensor, values: Tensor) -> LayerWeights:
    return replace(
        layer,
        k=torch.einsum("gk,kdx->gdx", keys, layer.k),
        v=torch.einsum("gk,kdx->gdx", values, layer.v),
        k_bias=None if layer.k_bias is None else keys @ layer.k_bias,
        v_bias=None if layer.v_bias is None else values @ layer.v_bias,
        groups=_followers(layer, groups),
    )


def _followers(layer: LayerWeights, groups: Sequence[Sequence[int]]) -> Groups:
    return tuple(tuple(sorted(head for kv in group for head in layer.groups[kv])) for group in groups)


def _scaled(
    layer: LayerWeights, merged: LayerWeights, groups: Sequence[Sequence[int]], moments: Moments, scale: str
) -> LayerWeights:
    find = _restoring if scale == "restored" else _fitting
    keys = find(key_parts(layer, moments), key_parts(merged, moments), groups)
    values = find([value_part(layer, moments)], [value_part(merged, moments)], groups)
    return replace(
        merged,
        k=keys[:, None, None] * merged.k,
        v=values[:, None, None] * merged.v,
        k_bias=None if merged.k_bias is None else keys[:, None] * merged.k_bias,
        v_bias=None if merged.v_bias is None else values[:, None] * merged.v_bias,
    )


def _restoring(parts: Sequence[Part], merged: Sequence[Part], groups: Sequence[Sequence[int]]) -> Tensor:
    members = torch.stack([_energies(parts).sqrt()[list(group)].mean() for group in groups])
    return _ratio(members, _energies(merged).sqrt())


def _fitting(parts: Sequence[Part], merged: Sequence[Part], groups: Sequence[Sequence[int]]) -> Tensor:
    """argmin_c sum_h E |p_h^H (k_h - c m)|^2, with the partners p_h of each member."""
    above = torch.stack([_products(parts, parts, merged, place, group) for place, group in enumerate(groups)])
    below = torch.stack([_products(parts, None, merged, place, group) for place, group in enumerate(groups)])
    return _ratio(above, below)


def _products(
    parts: Sequence[Part], one: Sequence[Part] | None, merged: Sequence[Part], place: int, group: Sequence[int]
) -> Tensor:
    """E (p_h^H k_h) (p_h^H m)^*, summed over the members of a group; None has m in the place of k_h."""
    total = merged[0].metric.new_zeros(())
    for part, new in zip(parts, merged, strict=True):
        mine = new.maps[:, place]  # [block, dim, input]
        for member in group:
            theirs = mine if one is None else part.maps[:, member]
            cross = theirs @ part.metric.to(theirs) @ mine.mH
            total = total + (part.outgoing[:, member] @ cross).diagonal(dim1=1, dim2=2).real.sum()
    return total


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    return torch.where(below > 0, above / below.clamp(min=torch.finfo(below.dtype).tiny), 1.0)


# ------------------------------------------------------------------------------------------------------ shared factors


def _with_shared_factor(part: Part, groups: Sequence[Sequence[int]]) -> Part:
    grams, roots = part.grams(), _roots(part.outgoing)
    through = torch.eye(grams.shape[-1], dtype=grams.dtype).repeat(*grams.shape[:2], 1, 1)
    maps = []
    for group in groups:
        places = list(group)
        if len(places) == 1:
            maps.append(part.maps[:, places[0]])
            continue
        among = _among(grams, places)
        common, through[:, places] = _factors(part.maps[:, places], among, roots[:, places])
        maps.append(common)
    return part.shared(torch.stack(maps, dim=1), through, groups)


def _factors(
    maps: Maps,
    grams: Inexact[Tensor, "block head head dim dim"],
    roots: Inexact[Tensor, "block head dim dim"],
) -> tuple[Inexact[Tensor, "block dim input"], Inexact[Tensor, "block head dim dim"]]:
    """The shared map s, and each head's map `B_h`, so that `B_h s` is as near to it as can be where it is looked at.

    s are the first principal components of what the partners see of all members, and `B_h` the regression on them.
    """
    heads, dim = roots.shape[1:3]
    energies, vectors = torch.linalg.eigh(_flat(_seen(grams, roots)))
    energies, vectors = energies[:, -dim:], vectors[..., -dim:].unflatten(1, (heads, dim))
    loads = roots @ vectors  # [block, head, dim, component]
    shared = torch.einsum("bhdc,bhdx->bcx", loads.conj(), maps)
    seen = energies > _NOTHING * energies[:, -1:].clamp(min=torch.finfo(energies.dtype).tiny)
    inverse = torch.where(seen, energies.where(seen, 1.0).reciprocal(), 0.0)
    through = torch.einsum("bghij,bhjc->bgic", grams, loads) * inverse[:, None, None]
    size = _own_size(grams, torch.where(seen, energies, 0.0).sum(dim=1))[:, None, None]
    return shared * size, through / size[:, None]


def _own_size(grams: Tensor, energy: Tensor) -> Tensor:
    """[block]: what brings the shared map to the mean energy of the members, so that weights keep their size."""
    of_members = grams.diagonal(dim1=1, dim2=2).diagonal(dim1=1, dim2=2).real.sum(dim=-1).mean(dim=-1)
    ratio = of_members / energy.clamp(min=torch.finfo(energy.dtype).tiny)
    return torch.where((energy > 0) & (of_members > 0), ratio, 1.0).sqrt()


def _seen_grams(parts: Sequence[Part]) -> list[Tensor]:
    return [_seen(part.grams(), _roots(part.outgoing)) for part in parts]


def _seen(grams: Tensor, roots: Tensor) -> Tensor:
    """E of the members' products with each other, as their partners look at them."""
    return roots[:, :, None] @ grams @ roots[:, None].mH


def _roots(squares: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(squares)
    return (vectors * values.clamp(min=0.0).sqrt()[..., None, :]) @ vectors.mH


def _among(grams: Tensor, group: Sequence[int]) -> Tensor:
    return grams[:, list(group)][:, :, list(group)]


def _flat(grams: Tensor) -> Tensor:
    """[block, head x dim, head x dim]"""
    return grams.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def _beyond_rank(grams: Tensor) -> float:
    energies = torch.linalg.eigvalsh(_flat(grams))
    return float(energies[:, : -grams.shape[-1]].clamp(min=0.0).sum())
