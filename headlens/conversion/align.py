"""Rotations of key/value heads towards each other, within what a layer allows without a change of what it computes.

A layer depends on keys and values through products only: of a key with a query, of a value with the output's weights.
What turns both turns nothing. Where positions turn the keys, the entries of a frequency pair are one complex number,
and only complex factors commute with the rotation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from headlens.conversion.moments import Moments
from headlens.conversion.weights import LayerWeights, Rotary
from headlens.errors import UnsupportedModel
from headlens.plan import Groups

Maps = Inexact[Tensor, "block head dim input"]  # of complex numbers where positions turn them
MOST_CHANGE = 1e-4  # that rotations may make, relative: they are exact but for rounding
_SWEEPS = 200
_GAIN = 1e-8  # of a sweep, as a part of all that can be gained; below it the rotations stand
_STARTS = 4  # members that are tried as the first one that the others are turned to


@dataclass(frozen=True, eq=False)
class Part:
    """A part of keys or values that can be turned on its own, and what it meets: `E (partner^H map x)` counts.

    One part are the values, one the keys, or two: a block for each frequency pair, and one of what does not turn.
    Inputs are those of the layer with a 1 behind them; partners are the maps of queries, or the output's weights.
    """

    maps: Maps  # [block, kv, dim, input]
    partners: Inexact[Tensor, "block query dim other"]
    metric: Float[Tensor, "input input"]
    outgoing: Inexact[Tensor, "block kv dim dim"]  # second moments of the partners, over the query heads of each
    owners: tuple[int, ...]  # the key/value head of every query head

    def grams(self, maps: Maps | None = None) -> Inexact[Tensor, "block kv kv dim dim"]:
        """E k_g k_h^H of all pairs of heads."""
        maps = self.maps if maps is None else maps
        return torch.einsum("bgix,xy,bhjy->bghij", maps, self.metric.to(maps), maps.conj())

    def turned(self, by: Inexact[Tensor, "block kv dim dim"]) -> Part:
        """Keys and their queries alike, which changes no product if `by` is unitary."""
        outgoing = by @ self.outgoing @ by.mH
        return replace(self, maps=by @ self.maps, partners=by[:, list(self.owners)] @ self.partners, outgoing=outgoing)

    def shared(
        self, maps: Maps, through: Inexact[Tensor, "block kv dim dim"], members: Sequence[Sequence[int]]
    ) -> Part:
        """Fewer maps: head g is taken to be `through[g] @ ` the map of its members, which goes into the partners."""
        to = {kv: place for place, group in enumerate(members) for kv in group}
        partners = through.mH[:, list(self.owners)] @ self.partners
        return replace(self, maps=maps, partners=partners, owners=tuple(to[kv] for kv in self.owners))


def key_parts(layer: LayerWeights, moments: Moments) -> list[Part]:
    """Keys with their queries. The metric is of the keys' deviations where a constant key would not be seen."""
    keys = _split(_with_bias(layer.k, layer.k_bias), layer.rotary)
    queries = _split(_with_bias(layer.q, layer.q_bias), layer.rotary)
    mean, owners = moments.keyed[-1], _owners(layer)
    centred = moments.keyed - torch.outer(mean, mean)
    return [
        Part(
            key,
            query,
            moments.keyed if key.is_complex() else centred,
            _outgoing(query, moments.plain, owners, len(layer.k)),
            owners,
        )
        for key, query in zip(keys, queries, strict=True)
    ]


def value_part(layer: LayerWeights, moments: Moments) -> Part:
    """Values with the output's weights."""
    out, owners = layer.o[None], _owners(layer)
    white = torch.eye(out.shape[-1], dtype=out.dtype)
    outgoing = _outgoing(out, white, owners, len(layer.v))
    return Part(_with_bias(layer.v, layer.v_bias)[None], out, moments.mixed, outgoing, owners)


def put_back(layer: LayerWeights, keys: Sequence[Part], value: Part, groups: Groups) -> LayerWeights:
    """The layer with other parts; a bias that it has not got it does not get."""
    k = _joined([part.maps for part in keys], layer.rotary)
    q = _joined([part.partners for part in keys], layer.rotary)
    v = value.maps[0]
    return replace(
        layer,
        q=q[..., :-1],
        k=k[..., :-1],
        v=v[..., :-1],
        o=value.partners[0],
        q_bias=None if layer.q_bias is None else q[..., -1],
        k_bias=None if layer.k_bias is None else k[..., -1],
        v_bias=None if layer.v_bias is None else v[..., -1],
        groups=groups,
    )


def align(layer: LayerWeights, groups: Sequence[Sequence[int]], moments: Moments) -> LayerWeights:
    """The same attention with the key/value heads of each group as near to each other as rotations bring them.

    Generalised Procrustes analysis (Gower 1975) in the metric of the moments: values and keys without positions get
    one orthogonal matrix a head, keys with rotary positions an angle per frequency pair, and an orthogonal matrix for
    what does not turn. UnsupportedModel where it is not the same attention to MOST_CHANGE.
    """
    keys = [part.turned(_rotations(part, groups)) for part in key_parts(layer, moments)]
    value = value_part(layer, moments)
    aligned = put_back(layer, keys, value.turned(_rotations(value, groups)), layer.groups)
    change = largest_change(layer, aligned)
    if not change <= MOST_CHANGE:
        raise UnsupportedModel(
            f"Rotating key/value heads towards each other changed what the layer computes by {change:.1e} of it, and "
            f"must not; its weights or the moments of its text are too ill-conditioned: take another method."
        )
    return aligned


def largest_change(before: LayerWeights, after: LayerWeights) -> float:
    """How far any head's products of query and key, or of value and output, have moved, relative to their size.

    Frobenius norms over inputs and outputs, the largest over heads, and over frequency pairs where these turn: there
    each pair must keep its product, for all distances to keep their scores. 0 is no change, 1 one as large as the head.
    """
    white = white_moments(before)
    old, new = ([*key_parts(layer, white), value_part(layer, white)] for layer in (before, after))
    return max(_change(a, b) for a, b in zip(old, new, strict=True))


def white_moments(layer: LayerWeights) -> Moments:
    """As if the inputs were white noise of mean 0, so that distances are those of the weights."""
    white = torch.eye(layer.q.shape[-1] + 1, dtype=layer.q.dtype)
    parts = layer.q.shape[1] - (0 if layer.rotary is None else layer.rotary.pairs)
    return Moments(white, white, white, layer.q.new_ones(len(layer.q), parts), tokens=0)


# --------------------------------------------------------------------------------------------------------------- parts


def _with_bias(
    weight: Float[Tensor, "head dim hidden"], bias: Float[Tensor, "head dim"] | None
) -> Float[Tensor, "head dim input"]:
    bias = torch.zeros_like(weight[..., 0]) if bias is None else bias
    return torch.cat([weight, bias[..., None]], dim=-1)


def _split(maps: Float[Tensor, "head dim input"], rotary: Rotary | None) -> list[Tensor]:
    """Each [block, head, dim, input]: complex blocks of one entry for the pairs, a real one for what does not turn."""
    if rotary is None:
        return [maps[None]]
    turning, still = maps.split([2 * rotary.pairs, maps.shape[1] - 2 * rotary.pairs], dim=1)
    halves = (turning[:, 0::2], turning[:, 1::2]) if rotary.interleaved else turning.chunk(2, dim=1)
    pairs = torch.complex(*halves).movedim(1, 0)[:, :, None]
    return [pairs, still[None]] if still.shape[1] else [pairs]


def _joined(parts: Sequence[Tensor], rotary: Rotary | None) -> Float[Tensor, "head dim input"]:
    if rotary is None:
        return parts[0][0]
    pairs = parts[0][:, :, 0].movedim(0, 1)  # [head, pair, input]
    turning = (
        torch.stack([pairs.real, pairs.imag], dim=2).flatten(1, 2)
        if rotary.interleaved
        else torch.cat([pairs.real, pairs.imag], dim=1)
    )
    return torch.cat([turning, *(part[0] for part in parts[1:])], dim=1)


def _owners(layer: LayerWeights) -> tuple[int, ...]:
    of = {head: kv for kv, group in enumerate(layer.groups) for head in group}
    return tuple(of[head] for head in range(len(layer.q)))


def _outgoing(partners: Tensor, metric: Tensor, owners: Sequence[int], kv_heads: int) -> Tensor:
    each = partners @ metric.to(partners) @ partners.mH  # [block, query, dim, dim]
    sums = each.new_zeros(len(each), kv_heads, *each.shape[2:])
    return sums.index_add(1, torch.tensor(owners, dtype=torch.long), each)


# ----------------------------------------------------------------------------------------------------------- rotations


def _rotations(part: Part, groups: Sequence[Sequence[int]]) -> Tensor:
    """[block, kv, dim, dim]: unitary, of the kind of the part's numbers."""
    grams = part.grams()
    found = torch.eye(grams.shape[-1], dtype=grams.dtype).repeat(*grams.shape[:2], 1, 1)
    for group in groups:
        if len(group) > 1:
            places = list(group)
            found[:, places] = _common_rotations(grams[:, places][:, :, places])
    return found


def _common_rotations(grams: Inexact[Tensor, "block member member dim dim"]) -> Tensor:
    """Those with the largest `sum_gh tr(R_g G_gh R_h^H)`, of ascents from several starts, block by block."""
    best, highest = _ascent(grams, 0)
    for start in range(1, min(grams.shape[1], _STARTS)):
        rotations, height = _ascent(grams, start)
        better = height > highest + _GAIN * highest.abs()
        best = torch.where(better[:, None, None, None], rotations, best)
        highest = torch.where(better, height, highest)
    return best


def _ascent(grams: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """The rotations, one member after the other turned to the others; and what they reach in every block."""
    rotations, size = _nearest_unitary(grams[:, :, start]).mH, grams.shape[1]
    height = _height(grams, rotations)
    for _ in range(_SWEEPS):
        for member in range(size):
            others = [other for other in range(size) if other != member]
            towards = (grams[:, member, others] @ rotations[:, others].mH).sum(dim=1)
            rotations[:, member] = _nearest_unitary(towards).mH
        before, height = height, _height(grams, rotations)
        if (height - before <= _GAIN * height.abs()).all():
            break
    return rotations, height


def _height(grams: Tensor, rotations: Tensor) -> Tensor:
    return torch.einsum("bgij,bghjk,bhik->b", rotations, grams, rotations.conj()).real


def _nearest_unitary(matrices: Tensor) -> Tensor:
    if matrices.shape[-1] == 1 and matrices.is_complex():  # thousands of them: a phase needs no decomposition
        sizes = matrices.abs()
        return torch.where(sizes > 0, matrices / sizes.clamp(min=torch.finfo(sizes.dtype).tiny), 1.0)
    left, _, right = torch.linalg.svd(matrices)
    return left @ right


def _change(old: Part, new: Part) -> float:
    """Of the products map^H partner, whose rank is small: their difference as one product, and its norm by QR."""
    of_old, of_new = (part.maps[:, list(part.owners)] for part in (old, new))
    keys = torch.linalg.qr(torch.cat([of_old, of_new], dim=2).mH).R
    partners = torch.linalg.qr(torch.cat([old.partners, -new.partners], dim=2).mH).R
    moved = torch.linalg.matrix_norm(keys @ partners.mH).square().sum(dim=0)
    size = (
        torch.linalg.matrix_norm(torch.linalg.qr(of_old.mH).R @ torch.linalg.qr(old.partners.mH).R.mH)
        .square()
        .sum(dim=0)
    )
    return float((moved / size.clamp(min=torch.finfo(size.dtype).tiny)).sqrt().max())
