"""Groups are of one size and the cheapest there are, and a layer with its heads put in their order is the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import pytest
import torch
from scipy.linalg import orthogonal_procrustes
from test_conversion_align import (
    KINDS,
    KV_HEADS,
    PAIRS,
    difference,
    drawn,
    drawn_moments,
    layer_of,
    output,
    samples,
    with_ones,
    with_turned_copies,
)
from torch import Tensor

from headlens.conversion.grouping import (
    aligned_distances,
    cheapest_groups,
    check_groups,
    contiguous_groups,
    divided,
    pair_cost,
    random_groups,
    similar_groups,
    with_contiguous_groups,
)
from headlens.conversion.weights import LayerWeights, Rotary
from headlens.errors import PlanError
from headlens.plan import Groups


def partitions(heads: tuple[int, ...], size: int) -> Iterator[Groups]:
    """All of them, by the definition."""
    if not heads:
        yield ()
        return
    for rest in combinations(heads[1:], size - 1):
        group = (heads[0], *rest)
        for others in partitions(tuple(head for head in heads if head not in group), size):
            yield (group, *others)


def drawn_distances(heads: int, seed: int) -> Tensor:
    half = drawn(heads, heads, seed=seed).abs()
    return (half + half.T).fill_diagonal_(0.0)


def test_contiguous_groups_are_neighbours() -> None:
    assert contiguous_groups(6, 2) == ((0, 1, 2), (3, 4, 5))
    assert contiguous_groups(6, 3) == ((0, 1), (2, 3), (4, 5))
    assert contiguous_groups(4, 4) == ((0,), (1,), (2,), (3,))


def test_random_groups_hold_each_head_once_and_follow_the_seed() -> None:
    found = {random_groups(12, 3, seed) for seed in range(10)}
    assert len(found) > 5
    for groups in found:
        check_groups(groups, 12)
        assert [len(group) for group in groups] == [4, 4, 4]
    assert random_groups(12, 3, 4) == random_groups(12, 3, 4)


@pytest.mark.parametrize(("heads", "into"), [(6, 3), (6, 2), (8, 2), (8, 4), (9, 3), (4, 1), (4, 4)])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_groups_of_a_few_heads_are_the_cheapest_of_all(heads: int, into: int, seed: int) -> None:
    distances = drawn_distances(heads, seed)
    every = list(partitions(tuple(range(heads)), heads // into))
    sums = [sum(float(distances[list(group)][:, list(group)].sum()) / 2 for group in groups) for groups in every]
    found = cheapest_groups(heads, into, pair_cost(distances))
    assert found == every[sums.index(min(sums))]


def test_costs_need_not_be_of_pairs() -> None:
    """Heads that are dear with each other two by two, and free as the three that they are."""
    free = {(0, 3, 5), (1, 2, 4)}
    assert cheapest_groups(6, 2, lambda group: 0.0 if group in free else 1.0) == ((0, 3, 5), (1, 2, 4))


@pytest.mark.parametrize("seed", [1, 2])
def test_swaps_find_the_groups_of_many_heads(seed: int) -> None:
    """20 heads in five groups of four at a distance of about 0.1, and of about 1 from all others."""
    order = torch.randperm(20, generator=torch.Generator().manual_seed(seed)).tolist()
    planted = tuple(sorted(tuple(sorted(order[start : start + 4])) for start in range(0, 20, 4)))
    noise = drawn_distances(20, seed) * 0.1
    distances = 1.0 + noise
    for group in planted:
        for one, other in combinations(group, 2):
            distances[one, other] = distances[other, one] = 0.1 + noise[one, other]
    assert cheapest_groups(20, 5, pair_cost(distances), seed=seed) == planted


@pytest.mark.parametrize("seed", [1, 2])
def test_no_swap_is_left_that_helps(seed: int) -> None:
    distances = drawn_distances(18, seed)
    cost = pair_cost(distances)
    found = cheapest_groups(18, 6, cost, restarts=2)
    check_groups(found, 18)
    assert sum(map(cost, found)) < sum(map(cost, contiguous_groups(18, 6)))
    for one, other in combinations(found, 2):
        for place in one:
            for there in other:
                first = tuple(there if head == place else head for head in one)
                second = tuple(place if head == there else head for head in other)
                assert cost(first) + cost(second) >= cost(one) + cost(other) - 1e-9


@KINDS
def test_similar_heads_are_found_however_they_are_turned(rotary: Rotary | None) -> None:
    layer = with_turned_copies(layer_of(rotary, sharing=2), PAIRS)
    assert similar_groups(layer, 2, drawn_moments()) == PAIRS
    distances = aligned_distances(layer, drawn_moments())
    assert distances[0, 2] == pytest.approx(0, abs=1e-9)
    assert distances[1, 3] == pytest.approx(0, abs=1e-9)
    assert distances[0, 1] > 0.3


def test_distances_are_those_that_scipy_leaves() -> None:
    _, keys, values = samples()
    layer = layer_of()
    expected = torch.zeros(KV_HEADS, KV_HEADS, dtype=torch.float64)
    for rows, weight, bias in ((keys - keys.mean(dim=0), layer.k, layer.k_bias), (values, layer.v, layer.v_bias)):
        states = [rows @ torch.cat([weight, bias[..., None]], dim=-1)[kv].T for kv in range(KV_HEADS)]  # type: ignore[index]
        mean = sum(float(state.square().sum()) for state in states) / KV_HEADS
        for one in range(KV_HEADS):
            for other in range(KV_HEADS):
                by = torch.tensor(orthogonal_procrustes(states[one], states[other])[0])
                expected[one, other] += float((states[one] @ by - states[other]).square().sum()) / mean
    torch.testing.assert_close(aligned_distances(layer, drawn_moments()), expected, rtol=0, atol=1e-9)


# ------------------------------------------------------------------------------------------------------ heads in order


@KINDS
def test_query_heads_in_the_order_of_their_groups_are_the_same_layer(rotary: Rotary | None) -> None:
    layer = layer_of(rotary, sharing=3)
    found = with_contiguous_groups(layer)
    assert found.groups == ((0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10, 11))
    assert layer.groups != found.groups
    assert difference(layer, found) < 1e-12


def as_grouped_attention_reads(layer: LayerWeights) -> LayerWeights:
    """Query head h uses key/value head h // sharing, whatever the groups say."""
    return replace(layer, groups=contiguous_groups(len(layer.q), len(layer.k)))


def test_heads_must_be_in_order_for_grouped_attention() -> None:
    layer = layer_of(sharing=3)
    assert difference(layer, as_grouped_attention_reads(with_contiguous_groups(layer))) < 1e-12
    assert difference(layer, as_grouped_attention_reads(layer)) > 0.1


@KINDS
def test_expansion_is_exact(rotary: Rotary | None) -> None:
    layer = layer_of(rotary, sharing=2)
    found = divided(layer, len(layer.q))
    assert found.groups == tuple((head,) for head in layer.order)
    assert len(found.k) == len(found.v) == 8
    inputs = with_ones(drawn(7, 10, seed=5))
    torch.testing.assert_close(output(found, inputs), output(layer, inputs), rtol=0, atol=1e-12)


def test_copies_go_round_heads_by_group_not_by_turns() -> None:
    layer = with_contiguous_groups(layer_of(sharing=2))
    assert torch.equal(divided(layer, len(layer.q)).k, layer.k.repeat_interleave(2, dim=0))
    tiled = replace(divided(layer, len(layer.q)), k=layer.k.tile(2, 1, 1), v=layer.v.tile(2, 1, 1))
    assert difference(layer, tiled) > 0.1


# ------------------------------------------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize("into", [0, -1, 5, 7, 24])
def test_counts_that_do_not_divide_the_heads_are_named(into: int) -> None:
    with pytest.raises(PlanError, match=rf"12 key/value heads cannot become {into} .* choose one of 1, 2, 3, 4, 6, 12"):
        cheapest_groups(12, into, lambda _group: 0.0)
    with pytest.raises(PlanError, match=f"cannot become {into}"):
        contiguous_groups(12, into)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([[0, 1], [2, 2]], r"each of the key/value heads 0 to 3 once, got 0 1 \| 2 2"),
        ([[0, 1], [2]], r"heads 0 to 3 once, got 0 1 \| 2\."),
        ([[0, 1, 2], [3]], r"of one size, got sizes \[1, 3\] in 0 1 2 \| 3"),
        ([[0, 1], [2, 3], []], r"of one size, got sizes \[0, 2\]"),
    ],
)
def test_groups_by_hand_are_checked(groups: Sequence[Sequence[int]], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        check_groups(groups, 4)
