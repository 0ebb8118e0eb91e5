"""Heads that are alike merge without loss, each method does what it says, and shared factors are the best there are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from test_conversion_align import (
    KINDS,
    KV_HEADS,
    NEIGHBOURS,
    PAIRS,
    PARTIAL,
    WHOLE,
    difference,
    drawn,
    drawn_moments,
    layer_of,
    samples,
    with_turned_copies,
)
from torch import Tensor

from headlens.conversion.absorb import absorb
from headlens.conversion.align import align
from headlens.conversion.grouping import with_contiguous_groups
from headlens.conversion.merging import METHODS, discarded_energy, merge, share_factors, weighted_mean
from headlens.conversion.weights import LayerWeights, Rotary
from headlens.errors import PlanError
from headlens.plan import Groups

OWN: Groups = ((0,), (1,), (2,), (3,))
ALL: Groups = ((0, 1, 2, 3),)
EVERY = pytest.mark.parametrize("method", METHODS)
ORDERLESS = [method for method in METHODS if method not in ("first", "random")]  # those two go by the order
MEANS = pytest.mark.parametrize("method", ["mean", "weighted", "aligned"])
ROTARY = pytest.mark.parametrize("rotary", [WHOLE, NEIGHBOURS, PARTIAL], ids=["whole", "pairs", "partial"])


def with_equal_heads(layer: LayerWeights, groups: Groups) -> LayerWeights:
    of = {kv: group[0] for group in groups for kv in group}
    places = [of[kv] for kv in range(len(layer.k))]
    parts: dict[str, Any] = {name: getattr(layer, name)[places] for name in ("k", "v", "k_bias", "v_bias")}
    return replace(layer, **parts)


# ---------------------------------------------------------------------------------------------------------------- laws


@EVERY
@KINDS
def test_as_many_heads_as_before_are_the_same_heads(method: str, rotary: Rotary | None) -> None:
    layer = layer_of(rotary, sharing=2)
    found = merge(layer, OWN, method, drawn_moments())
    for name in ("q", "k", "v", "o", "q_bias", "k_bias", "v_bias", "o_bias"):
        assert torch.equal(getattr(found, name), getattr(layer, name)), name
    assert found.groups == tuple(tuple(sorted(group)) for group in layer.groups)


@EVERY
@KINDS
@pytest.mark.parametrize("sharing", [1, 2])
def test_equal_heads_merge_without_loss(method: str, rotary: Rotary | None, sharing: int) -> None:
    layer = with_equal_heads(layer_of(rotary, sharing=sharing), PAIRS)
    found = merge(layer, PAIRS, method, drawn_moments())
    assert len(found.k) == len(found.v) == 2
    assert difference(layer, found) < 1e-9
    assert difference(layer, with_contiguous_groups(found)) < 1e-9


@MEANS
@pytest.mark.parametrize("scale", ["restored", "fitted"])
@KINDS
def test_no_scale_changes_equal_heads(method: str, scale: str, rotary: Rotary | None) -> None:
    layer = with_equal_heads(layer_of(rotary, sharing=2), PAIRS)
    assert difference(layer, merge(layer, PAIRS, method, drawn_moments(), scale=scale)) < 1e-9


@KINDS
@pytest.mark.parametrize("groups", [PAIRS, ALL], ids=["two", "one"])
def test_turned_heads_merge_without_loss_once_aligned_or_factored(rotary: Rotary | None, groups: Groups) -> None:
    layer = with_turned_copies(layer_of(rotary, sharing=2), groups)
    assert difference(layer, merge(layer, groups, "aligned", drawn_moments())) < 1e-9
    assert difference(layer, merge(layer, groups, "svd", drawn_moments())) < 1e-9
    assert difference(layer, merge(layer, groups, "mean", drawn_moments())) > 0.1


@KINDS
def test_only_factors_bear_heads_of_different_sizes(rotary: Rotary | None) -> None:
    layer = with_turned_copies(layer_of(rotary, sharing=2), PAIRS, size=1.7)
    assert difference(layer, merge(layer, PAIRS, "svd", drawn_moments())) < 1e-9
    assert difference(layer, merge(layer, PAIRS, "aligned", drawn_moments())) > 0.05


@pytest.mark.parametrize("method", ORDERLESS)
@KINDS
def test_the_order_of_groups_and_members_is_nothing(method: str, rotary: Rotary | None) -> None:
    layer = layer_of(rotary, sharing=2)
    found = merge(layer, PAIRS, method, drawn_moments())
    other = merge(layer, ((3, 1), (2, 0)), method, drawn_moments())
    assert difference(found, other) < 1e-6  # where an ascent has stopped
    assert difference(layer, found) > 0.01


@EVERY
def test_query_heads_follow_their_key_value_heads(method: str) -> None:
    layer = replace(layer_of(sharing=2), groups=((5, 0), (2, 7), (1, 3), (6, 4)))
    assert merge(layer, PAIRS, method, drawn_moments()).groups == ((0, 1, 3, 5), (2, 4, 6, 7))


@EVERY
@KINDS
def test_absent_biases_stay_absent(method: str, rotary: Rotary | None) -> None:
    layer = layer_of(rotary, biases=False)
    found = merge(layer, PAIRS, method, drawn_moments())
    assert found.q_bias is found.k_bias is found.v_bias is found.o_bias is None


@pytest.mark.parametrize("method", ["aligned", "svd"])
def test_absorbed_biases_merge_without_loss(method: str) -> None:
    layer = with_turned_copies(layer_of(sharing=2), PAIRS)
    assert difference(layer, merge(absorb(layer), PAIRS, method, drawn_moments())) < 1e-9


# ------------------------------------------------------------------------------------------- means and single members


def by_hand(*numbers: float) -> LayerWeights:
    """Key/value heads of one entry, which read one input, `numbers` times; the biases are a tenth of that."""
    column = torch.tensor(numbers, dtype=torch.float64)[:, None, None]
    ones = torch.ones_like(column)
    groups = tuple((head,) for head in range(len(numbers)))
    return LayerWeights(
        ones, column, -column, ones, None, column[..., 0] / 10, -column[..., 0] / 10, torch.zeros(1), groups, None, 1.0
    )


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("mean", [4.0, 4.0]),
        ("first", [1.0, 3.0]),
        ("medoid", [2.0, 4.0]),  # of 1, 2, 9: 1 + 49 from 2, less than from others; of 3, 4, 5 the middle one
        ("weighted", [(1 + 4 + 81) / 12, (9 + 16 + 25) / 12]),
    ],
)
def test_merged_weights_by_hand(method: str, expected: list[float]) -> None:
    found = merge(by_hand(1, 2, 3, 4, 5, 9), ((0, 1, 5), (2, 3, 4)), method)
    assert found.k.flatten().tolist() == pytest.approx(expected, rel=1e-12)
    assert found.v.flatten().tolist() == pytest.approx([-number for number in expected], rel=1e-12)
    assert found.k_bias.flatten().tolist() == pytest.approx([number / 10 for number in expected], rel=1e-12)  # type: ignore[union-attr]
    assert found.v_bias.flatten().tolist() == pytest.approx([-number / 10 for number in expected], rel=1e-12)  # type: ignore[union-attr]


def test_weights_from_elsewhere() -> None:
    weights = torch.tensor([3.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    found = weighted_mean(by_hand(1, 2, 3, 4), ((0, 1), (2, 3)), weights)
    assert found.k.flatten().tolist() == pytest.approx([1.25, 3.5])
    assert found.v.flatten().tolist() == pytest.approx([-1.25, -3.5])


def test_random_members_follow_the_seed() -> None:
    layer = by_hand(1, 2, 3, 4)
    drawn_members = {tuple(merge(layer, PAIRS, "random", seed=seed).k.flatten().tolist()) for seed in range(30)}
    assert drawn_members == {(1.0, 2.0), (1.0, 4.0), (3.0, 2.0), (3.0, 4.0)}
    again = [merge(layer, PAIRS, "random", seed=3).k for _ in range(2)]
    assert torch.equal(*again)


def test_a_medoid_is_one_head_for_keys_and_values() -> None:
    layer = layer_of()
    found = merge(layer, ALL, "medoid", drawn_moments())
    (place,) = [kv for kv in range(KV_HEADS) if torch.equal(found.k[0], layer.k[kv])]
    assert torch.equal(found.v[0], layer.v[place])


@KINDS
def test_aligned_is_the_mean_of_what_is_aligned(rotary: Rotary | None) -> None:
    layer = layer_of(rotary, sharing=2)
    expected = merge(align(layer, PAIRS, drawn_moments()), PAIRS, "mean")
    assert difference(merge(layer, PAIRS, "aligned", drawn_moments()), expected) < 1e-12


def test_restored_heads_have_the_mean_size_of_their_members() -> None:
    """In the metric of the weights: without keys' biases, which are not seen, and with those of values."""
    layer = layer_of()
    found = merge(layer, PAIRS, "mean", scale="restored")
    plain = merge(layer, PAIRS, "mean")
    v, new_v = (torch.cat([each.v, each.v_bias[..., None]], dim=-1) for each in (layer, found))  # type: ignore[index]
    for place, group in enumerate(PAIRS):
        assert float(found.k[place].norm()) == pytest.approx(
            float(sum(layer.k[kv].norm() for kv in group)) / 2, rel=1e-12
        )
        assert float(new_v[place].norm()) == pytest.approx(float(sum(v[kv].norm() for kv in group)) / 2, rel=1e-12)
        ratio = found.k[place] / plain.k[place]
        torch.testing.assert_close(ratio, ratio[:1, :1].expand_as(ratio))


def value_error(layer: LayerWeights, found: LayerWeights) -> float:
    """Of what the heads write for the sampled inputs of values, each apart."""
    rows, total = samples()[2], 0.0
    for heads, kv in ((group, kv) for kv, group in enumerate(layer.groups)):
        for head in heads:
            new = next(place for place, group in enumerate(found.groups) if head in group)
            total += float((written(layer, rows, kv, head) - written(found, rows, new, head)).square().sum())
    return total


def written(layer: LayerWeights, rows: Tensor, kv: int, head: int) -> Tensor:
    values = rows[:, :-1] @ layer.v[kv].T + (0.0 if layer.v_bias is None else layer.v_bias[kv])
    return values @ layer.o[head]


def scores(layer: LayerWeights, kv: int, head: int) -> Tensor:
    """Of all sampled queries with all sampled keys, less their mean over keys, which the softmax does not see."""
    asking, keys, _ = samples()
    queries = asking[:, :-1] @ layer.q[head].T + (0.0 if layer.q_bias is None else layer.q_bias[head])
    found = queries @ (keys[:, :-1] @ layer.k[kv].T).T
    return found - found.mean(dim=1, keepdim=True)


def score_error(layer: LayerWeights, found: LayerWeights) -> float:
    total = 0.0
    for kv, heads in enumerate(layer.groups):
        for head in heads:
            new = next(place for place, group in enumerate(found.groups) if head in group)
            total += float((scores(layer, kv, head) - scores(found, new, head)).square().sum())
    return total


def test_fitted_scales_have_the_least_error() -> None:
    layer = layer_of(sharing=2)
    fitted = merge(layer, ALL, "mean", drawn_moments(), scale="fitted")
    plain = merge(layer, ALL, "mean", drawn_moments())
    for error, names in ((value_error, ("v", "v_bias")), (score_error, ("k", "k_bias"))):
        best = error(layer, fitted)
        assert best < error(layer, plain)
        for factor in (0.99, 1.01):
            moved: dict[str, Any] = {name: factor * getattr(fitted, name) for name in names}
            assert error(layer, replace(fitted, **moved)) > best


# ------------------------------------------------------------------------------------------------------ shared factors


def beyond_rank(matrix: np.ndarray[Any, Any], rank: int) -> float:
    return float((np.linalg.svd(matrix, compute_uv=False)[rank:] ** 2).sum())


@pytest.mark.parametrize("sharing", [1, 2])
@pytest.mark.parametrize("groups", [PAIRS, ALL], ids=["two", "one"])
def test_no_shared_values_could_be_better(groups: Groups, sharing: int) -> None:
    """Eckart and Young: of all matrices of rank 6, the truncated singular value decomposition is nearest."""
    layer, rows, least = layer_of(sharing=sharing), samples()[2], 0.0
    for group in groups:
        beside = [written(layer, rows, kv, head) for kv in group for head in layer.groups[kv]]
        least += beyond_rank(torch.cat(beside, dim=1).numpy(), layer.v.shape[1])
    found = merge(layer, groups, "svd", drawn_moments())
    assert value_error(layer, found) == pytest.approx(least, rel=1e-8)
    assert least > 1.0
    assert value_error(layer, merge(layer, groups, "aligned", drawn_moments())) > least


@pytest.mark.parametrize("sharing", [1, 2])
@pytest.mark.parametrize("groups", [PAIRS, ALL], ids=["two", "one"])
def test_no_shared_keys_could_be_better(groups: Groups, sharing: int) -> None:
    layer, least = layer_of(sharing=sharing), 0.0
    for group in groups:
        above = [scores(layer, kv, head) for kv in group for head in layer.groups[kv]]
        least += beyond_rank(torch.cat(above, dim=0).numpy(), layer.k.shape[1])
    found = merge(layer, groups, "svd", drawn_moments())
    assert score_error(layer, found) == pytest.approx(least, rel=1e-8)
    assert least > 1.0
    assert score_error(layer, merge(layer, groups, "aligned", drawn_moments())) > least


def pairs_of(states: Tensor, rotary: Rotary) -> Tensor:
    """[sample, pair] of complex numbers."""
    count = rotary.pairs
    if rotary.interleaved:
        return torch.complex(states[:, 0 : 2 * count : 2], states[:, 1 : 2 * count : 2])
    return torch.complex(states[:, :count], states[:, count : 2 * count])


def rotary_products(layer: LayerWeights, kv: int, head: int) -> Tensor:
    """conj(k) q of each pair, for all sampled keys and queries: its real part is the score at any distance, turned."""
    asking, keys, _ = samples()
    queries = asking[:, :-1] @ layer.q[head].T + layer.q_bias[head]  # type: ignore[index]
    states = keys[:, :-1] @ layer.k[kv].T + layer.k_bias[kv]  # type: ignore[index]
    rotary = layer.rotary
    assert rotary is not None
    return pairs_of(states, rotary).conj().T[:, :, None] * pairs_of(queries, rotary).T[:, None, :]  # [pair, key, query]


@ROTARY
@pytest.mark.parametrize("sharing", [1, 2])
def test_no_shared_rotary_keys_could_be_better(rotary: Rotary, sharing: int) -> None:
    """Key beside query, each pair is a matrix of rank one for a head, and of rank one for a group is the best."""
    layer, least, reached, aligned = layer_of(rotary, sharing=sharing), 0.0, 0.0, 0.0
    found, other = (merge(layer, ALL, method, drawn_moments()) for method in ("svd", "aligned"))
    members = [(kv, head) for kv, group in enumerate(layer.groups) for head in group]
    beside = torch.cat([rotary_products(layer, kv, head) for kv, head in members], dim=2)
    for pair in beside:
        least += beyond_rank(pair.numpy(), 1)
    for kv, head in members:
        before = rotary_products(layer, kv, head)
        reached += float((before - rotary_products(found, 0, head)).abs().square().sum())
        aligned += float((before - rotary_products(other, 0, head)).abs().square().sum())
    assert reached == pytest.approx(least, rel=1e-8)
    assert least > 1.0
    assert aligned > least


@pytest.mark.parametrize("rotary", [None, WHOLE, PARTIAL], ids=["none", "whole", "partial"])
def test_discarded_energy_is_the_error_of_what_is_shared(rotary: Rotary | None) -> None:
    layer = layer_of(rotary, sharing=2)
    cost = discarded_energy(layer, drawn_moments())
    assert cost((1,)) == pytest.approx(0, abs=1e-12)
    assert cost((0, 1, 2, 3)) > cost((0, 1)) > 0.01
    nothing = replace(layer, v=0 * layer.v, v_bias=None)
    alone = [value_error(layer, replace(layer, v=0 * layer.v, v_bias=None)), 0.0]
    kept = share_factors(layer, ALL, drawn_moments())
    keys_only = discarded_energy(nothing, drawn_moments())
    expected = value_error(layer, kept) / alone[0]
    assert cost((0, 1, 2, 3)) - keys_only((0, 1, 2, 3)) == pytest.approx(expected, rel=1e-8)


def test_discarded_energy_of_keys_is_that_of_scores() -> None:
    layer = replace(layer_of(sharing=2), v=torch.zeros_like(layer_of().v), v_bias=None)
    mute = replace(layer, k=0 * layer.k)
    expected = score_error(layer, share_factors(layer, ALL, drawn_moments())) / score_error(layer, mute)
    assert discarded_energy(layer, drawn_moments())((0, 1, 2, 3)) == pytest.approx(expected, rel=1e-8)


@KINDS
def test_shared_weights_keep_their_size(rotary: Rotary | None) -> None:
    layer = layer_of(rotary, sharing=2)
    found = merge(layer, PAIRS, "svd", drawn_moments())
    for before, after in ((layer.k, found.k), (layer.v, found.v), (layer.q, found.q), (layer.o, found.o)):
        assert 1 / 3 < float(after.square().mean().sqrt() / before.square().mean().sqrt()) < 3


@EVERY
@pytest.mark.parametrize("name", ["o", "v", "q", "k"])
@pytest.mark.parametrize("rotary", [None, WHOLE], ids=["none", "whole"])
@pytest.mark.parametrize("silent", [[1], [0, 1, 2, 3]], ids=["one", "all"])
def test_heads_of_nothing_do_no_harm(method: str, name: str, rotary: Rotary | None, silent: list[int]) -> None:
    layer = layer_of(rotary, biases=False)
    weight = getattr(layer, name).clone()
    weight[silent] = 0.0
    parts: dict[str, Any] = {name: weight}
    found = merge(replace(layer, **parts), PAIRS, method, drawn_moments())
    for part in (found.q, found.k, found.v, found.o):
        assert part.isfinite().all()
    if len(silent) == KV_HEADS and name in ("o", "v"):
        assert not (found.v.any() and found.o.any())


# ------------------------------------------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("method", "scale", "message"),
    [
        ("average", "plain", r"'average' to merge heads; choose one of mean, first"),
        ("mean", "double", r"'double' of merged heads; choose one of plain, restored, fitted"),
        ("svd", "fitted", r"leave out the scale 'fitted'"),
    ],
)
def test_unknown_names_are_told(method: str, scale: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        merge(layer_of(), PAIRS, method, scale=scale)


@EVERY
def test_groups_are_checked_before_anything(method: str) -> None:
    with pytest.raises(PlanError, match="of one size"):
        merge(layer_of(), ((0, 1, 2), (3,)), method, drawn_moments())


def test_weights_must_be_positive() -> None:
    with pytest.raises(PlanError, match="must be positive, got"):
        weighted_mean(layer_of(), PAIRS, drawn(4, seed=1) * 0)
