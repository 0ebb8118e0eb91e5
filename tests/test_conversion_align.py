"""Biases go and heads turn without a change of any score at any distance, and as near to each other as they can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from scipy.linalg import orthogonal_procrustes
from torch import Tensor

from headlens.conversion.absorb import absorb
from headlens.conversion.align import align, largest_change, white_moments
from headlens.conversion.moments import Moments
from headlens.conversion.weights import LayerWeights, Rotary
from headlens.plan import Groups

HIDDEN, DIM, KV_HEADS = 11, 6, 4
NONE, WHOLE, NEIGHBOURS, PARTIAL = None, Rotary(3), Rotary(3, interleaved=True), Rotary(2)
KINDS = pytest.mark.parametrize("rotary", [NONE, WHOLE, NEIGHBOURS, PARTIAL], ids=["none", "whole", "pairs", "partial"])
PAIRS: Groups = ((0, 2), (1, 3))
TURNED = (0.9, 0.31, 0.07)  # radians a position, of each frequency pair


def drawn(*shape: int, seed: int) -> Tensor:
    return 0.4 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer_of(rotary: Rotary | None = None, *, sharing: int = 1, biases: bool = True, seed: int = 0) -> LayerWeights:
    """Four key/value heads, with `sharing` query heads on each, which stand in an order of no system."""
    heads = KV_HEADS * sharing
    order = torch.randperm(heads, generator=torch.Generator().manual_seed(seed + 9)).tolist()
    groups = tuple(tuple(order[start : start + sharing]) for start in range(0, heads, sharing))
    layer = LayerWeights(
        drawn(heads, DIM, HIDDEN, seed=seed),
        drawn(KV_HEADS, DIM, HIDDEN, seed=seed + 1),
        drawn(KV_HEADS, DIM, HIDDEN, seed=seed + 2),
        drawn(heads, DIM, HIDDEN, seed=seed + 3),
        drawn(heads, DIM, seed=seed + 4),
        drawn(KV_HEADS, DIM, seed=seed + 5),
        drawn(KV_HEADS, DIM, seed=seed + 6),
        drawn(HIDDEN, seed=seed + 7),
        groups,
        rotary,
        DIM**-0.5,
    )
    return layer if biases else replace(layer, q_bias=None, k_bias=None, v_bias=None, o_bias=None)


def inputs(tokens: int = 9, seed: int = 70) -> Tensor:
    """Rows of dependent numbers around a mean that is not 0. [token, hidden]"""
    return drawn(tokens, HIDDEN, seed=seed) @ drawn(HIDDEN, HIDDEN, seed=72) * 1.5 + drawn(HIDDEN, seed=73)


def samples() -> tuple[Tensor, Tensor, Tensor]:
    """Inputs of queries, of keys (those of them that are attended to) and of values, each with a 1 behind it."""
    plain, mixed = inputs(60), inputs(60, seed=71)
    return with_ones(plain), with_ones(plain[:40]), with_ones(mixed)


def with_ones(rows: Tensor) -> Tensor:
    return torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1)


def drawn_moments() -> Moments:
    """Those of `samples`."""
    plain, keyed, mixed = (part.T @ part / len(part) for part in samples())
    return Moments(plain, keyed, mixed, torch.ones(1, 1, dtype=torch.float64), tokens=60)


def turned(states: Tensor, rotary: Rotary | None) -> Tensor:
    """[token, dim], every pair of entries turned by its angle times the place of the token."""
    out = states.clone()
    for pair in range(0 if rotary is None else rotary.pairs):
        one, other = (2 * pair, 2 * pair + 1) if rotary.interleaved else (pair, pair + rotary.pairs)  # type: ignore[union-attr]
        angles = TURNED[pair] * torch.arange(len(states), dtype=torch.float64)
        out[:, one] = states[:, one] * angles.cos() - states[:, other] * angles.sin()
        out[:, other] = states[:, one] * angles.sin() + states[:, other] * angles.cos()
    return out


def projected(hidden: Tensor, weight: Tensor, bias: Tensor | None, head: int) -> Tensor:
    return hidden @ weight[head].T + (0.0 if bias is None else bias[head])


def patterns(layer: LayerWeights, hidden: Tensor) -> dict[int, Tensor]:
    """Probabilities of every query head [query, key]."""
    found = {}
    for kv, group in enumerate(layer.groups):
        keys = turned(projected(hidden, layer.k, layer.k_bias, kv), layer.rotary)
        for head in group:
            queries = turned(projected(hidden, layer.q, layer.q_bias, head), layer.rotary)
            found[head] = (layer.scaling * queries @ keys.T).softmax(dim=-1)
    return found


def output(layer: LayerWeights, hidden: Tensor) -> Tensor:
    """What the layer computes, head by head. [token, hidden]"""
    total = torch.zeros_like(hidden) if layer.o_bias is None else layer.o_bias.expand_as(hidden).clone()
    probs = patterns(layer, hidden)
    for kv, group in enumerate(layer.groups):
        values = projected(hidden, layer.v, layer.v_bias, kv)
        for head in group:
            total += probs[head] @ values @ layer.o[head]
    return total


def difference(one: LayerWeights, other: LayerWeights) -> float:
    return float((output(one, inputs()) - output(other, inputs())).abs().max())


def orthogonal(seed: int, size: int = DIM) -> Tensor:
    return torch.linalg.qr(drawn(size, size, seed=seed)).Q


def allowed_turn(rotary: Rotary | None, seed: int) -> Tensor:
    """A matrix that a key may be turned by: any orthogonal one, or an angle a pair and the rest by any."""
    if rotary is None:
        return orthogonal(seed)
    turn = torch.zeros(DIM, DIM, dtype=torch.float64)
    for pair in range(rotary.pairs):
        one, other = (2 * pair, 2 * pair + 1) if rotary.interleaved else (pair, pair + rotary.pairs)
        cos, sin = drawn(1, seed=seed + pair).mul(9).cos().item(), drawn(1, seed=seed + pair).mul(9).sin().item()
        turn[one, one], turn[one, other], turn[other, one], turn[other, other] = cos, -sin, sin, cos
    rest = DIM - 2 * rotary.pairs
    turn[DIM - rest :, DIM - rest :] = orthogonal(seed, rest) if rest else 0.0
    return turn


def with_turned_copies(layer: LayerWeights, groups: Sequence[Sequence[int]], *, size: float = 1.0) -> LayerWeights:
    """Key/value heads of each group are the first one, turned as their kind allows, and `size` times as large each."""
    k, v, k_bias, v_bias = (part.clone() for part in (layer.k, layer.v, layer.k_bias, layer.v_bias))  # type: ignore[union-attr]
    for group in groups:
        for number, kv in enumerate(group):
            by_k, by_v = (allowed_turn(layer.rotary, 80 + kv), orthogonal(90 + kv)) if number else [torch.eye(DIM)] * 2
            by_k, by_v = by_k.double() * size**number, by_v.double() * size**number
            k[kv], k_bias[kv] = by_k @ layer.k[group[0]], by_k @ layer.k_bias[group[0]]  # type: ignore[index]
            v[kv], v_bias[kv] = by_v @ layer.v[group[0]], by_v @ layer.v_bias[group[0]]  # type: ignore[index]
    return replace(layer, k=k, v=v, k_bias=k_bias, v_bias=v_bias)


# -------------------------------------------------------------------------------------------------------------- biases


@KINDS
def test_absorbing_biases_changes_nothing(rotary: Rotary | None) -> None:
    layer = layer_of(rotary, sharing=2)
    assert difference(layer, absorb(layer)) < 1e-12


def test_without_positions_no_bias_of_keys_and_values_is_left() -> None:
    found = absorb(layer_of())
    assert found.k_bias is None
    assert found.v_bias is None


def test_key_biases_stay_where_they_turn() -> None:
    layer = layer_of(PARTIAL)
    found = absorb(layer)
    assert torch.equal(found.k_bias[:, :4], layer.k_bias[:, :4])  # type: ignore[index]
    assert not found.k_bias[:, 4:].any()  # type: ignore[index]
    assert difference(layer, replace(found, k_bias=None)) > 1e-2  # they matter


def test_value_biases_stay_where_the_output_has_none() -> None:
    layer = replace(layer_of(WHOLE), o_bias=None)
    assert torch.equal(absorb(layer).v_bias, layer.v_bias)  # type: ignore[arg-type]
    assert absorb(layer).o_bias is None


# ------------------------------------------------------------------------------------------------- nothing may change


@KINDS
@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("sharing", [1, 2])
def test_alignment_changes_no_output(rotary: Rotary | None, biases: bool, sharing: int) -> None:
    layer = layer_of(rotary, sharing=sharing, biases=biases)
    found = align(layer, [[0, 3, 1], [2]], drawn_moments())
    assert difference(layer, found) < 1e-11
    assert largest_change(layer, found) < 1e-12
    assert (found.k - layer.k).abs().max() > 0.1
    assert (found.v - layer.v).abs().max() > 0.1
    assert torch.equal(found.v[2], layer.v[2])
    assert (found.k_bias is None) == (not biases)


def test_change_of_outputs_is_told_relative_to_the_head() -> None:
    layer = layer_of(WHOLE, sharing=2)
    o = layer.o.clone()
    o[5] *= 1.25
    assert largest_change(layer, replace(layer, o=o)) == pytest.approx(0.25, rel=1e-12)


def test_turning_a_pair_of_keys_alone_is_a_change() -> None:
    """One of three pairs by an angle a: |e^ia - 1| = 2 sin(a / 2) of that pair's part of the product."""
    layer = layer_of(WHOLE, biases=False)
    k, angle = layer.k.clone(), torch.tensor(0.3, dtype=torch.float64)
    k[:, 1] = angle.cos() * layer.k[:, 1] - angle.sin() * layer.k[:, 4]
    k[:, 4] = angle.sin() * layer.k[:, 1] + angle.cos() * layer.k[:, 4]
    expected = 0.0
    for kv, (head,) in enumerate(layer.groups):
        energy = [
            float(layer.k[kv, [pair, pair + 3]].square().sum() * layer.q[head, [pair, pair + 3]].square().sum())
            for pair in range(3)
        ]
        expected = max(expected, float(2 * (angle / 2).sin()) * (energy[1] / sum(energy)) ** 0.5)
    assert largest_change(layer, replace(layer, k=k)) == pytest.approx(expected, rel=1e-10)


def test_a_free_rotation_of_keys_and_queries_is_a_change_with_rotary_positions_only() -> None:
    layer, by = layer_of(biases=False), orthogonal(3)
    both = replace(layer, q=by @ layer.q, k=by @ layer.k)
    assert largest_change(layer, both) < 1e-12
    assert largest_change(replace(layer, rotary=WHOLE), replace(both, rotary=WHOLE)) > 0.3
    assert difference(replace(layer, rotary=WHOLE), replace(both, rotary=WHOLE)) > 0.01


# ---------------------------------------------------------------------------------------------------- nearer than ever


@KINDS
def test_turned_copies_fall_together(rotary: Rotary | None) -> None:
    layer = with_turned_copies(layer_of(rotary, sharing=2), [[0, 1, 2, 3]])
    found = align(layer, [[0, 1, 2, 3]], drawn_moments())
    for part in (found.k, found.v):
        torch.testing.assert_close(part, part[:1].expand_as(part), rtol=0, atol=1e-9)
    assert difference(layer, found) < 1e-11


@pytest.mark.parametrize("part", ["k", "v"])
def test_two_heads_are_as_near_as_scipy_brings_them(part: str) -> None:
    """Values in the metric of the mixed inputs, keys in that of their deviations from the mean key."""
    _, keys, values = samples()
    layer, rows = layer_of(), {"k": keys - keys.mean(dim=0), "v": values}[part]

    def seen(layer: LayerWeights, kv: int) -> Tensor:
        bias = getattr(layer, f"{part}_bias")
        return rows @ torch.cat([getattr(layer, part), bias[..., None]], dim=-1)[kv].T

    one, other = seen(layer, 0), seen(layer, 2)
    expected = float((one @ torch.tensor(orthogonal_procrustes(one, other)[0]) - other).norm())
    found = align(layer, PAIRS, drawn_moments())
    assert float((seen(found, 0) - seen(found, 2)).norm()) == pytest.approx(expected, rel=1e-9)


def test_rotary_pairs_are_as_near_as_one_angle_brings_them() -> None:
    _, keys, _ = samples()
    layer = layer_of(WHOLE)

    def seen(layer: LayerWeights, kv: int) -> Tensor:
        states = keys @ torch.cat([layer.k, layer.k_bias[..., None]], dim=-1)[kv].T  # type: ignore[index]
        return torch.complex(states[:, :3], states[:, 3:])

    one, other = seen(layer, 0), seen(layer, 2)
    nearest = one.abs().square().sum(0) + other.abs().square().sum(0) - 2 * (one.conj() * other).sum(0).abs()
    found = align(layer, PAIRS, drawn_moments())
    distances = (seen(found, 0) - seen(found, 2)).abs().square().sum(0)
    torch.testing.assert_close(distances, nearest, rtol=1e-9, atol=0)


def spread(layer: LayerWeights) -> float:
    values = samples()[2] @ torch.cat([layer.v, layer.v_bias[..., None]], dim=-1).mT  # type: ignore[index]
    return float((values - values.mean(dim=0)).square().sum())


def test_no_small_turn_brings_four_heads_nearer() -> None:
    found = align(layer_of(), [[0, 1, 2, 3]], drawn_moments())
    reached, tries = spread(found), []
    for seed in range(40):
        skew = drawn(KV_HEADS, DIM, DIM, seed=seed) * 0.05
        by = torch.linalg.matrix_exp(skew - skew.mT)
        tries.append(spread(replace(found, v=by @ found.v, v_bias=(by @ found.v_bias[..., None])[..., 0])))  # type: ignore[index]
    assert reached < spread(layer_of())
    assert min(tries) > reached


def test_white_moments_measure_the_weights() -> None:
    layer = with_turned_copies(layer_of(WHOLE), PAIRS)
    found = align(layer, PAIRS, white_moments(layer))
    torch.testing.assert_close(found.k[0], found.k[2], rtol=0, atol=1e-9)
    torch.testing.assert_close(found.v[1], found.v[3], rtol=0, atol=1e-9)
