"""A budget is spread as well as it can be: against every way there is to spread it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headlens.conversion.allocate import allocated, predicted
from headlens.errors import PlanError

Layers = Sequence[dict[int, float]]

# whole numbers, whose sums are exact in any order, and few of them, so that equal sums are common
COUNTS = st.sampled_from([1, 2, 3, 4, 6, 8, 12])
LAYERS = st.lists(st.dictionaries(COUNTS, st.integers(0, 6).map(float), min_size=1, max_size=5), min_size=1, max_size=5)


def ways(layers: Layers) -> list[tuple[float, int, tuple[int, ...]]]:
    """Damage, heads and counts of every combination."""
    return [
        (sum(own[count] for own, count in zip(layers, counts, strict=True)), sum(counts), counts)
        for counts in product(*layers)
    ]


@given(LAYERS, st.integers(0, 40))
def test_no_way_within_the_budget_loses_less_or_as_much_with_fewer_heads(layers: Layers, more: int) -> None:
    budget = min(heads for _, heads, _ in ways(layers)) + more
    counts = allocated(layers, budget)
    damage, heads, _ = min(way for way in ways(layers) if way[1] <= budget)
    assert sum(counts) <= budget
    assert all(count in own for count, own in zip(counts, layers, strict=True))
    assert (predicted(layers, counts), sum(counts)) == (damage, heads)


@given(LAYERS)
def test_a_budget_for_all_leaves_every_layer_what_it_does_best_with(layers: Layers) -> None:
    counts = allocated(layers, sum(map(max, layers)))
    assert [own[count] for own, count in zip(layers, counts, strict=True)] == [min(own.values()) for own in layers]


@given(LAYERS, st.integers(1, 9))
def test_less_than_the_fewest_heads_of_every_layer_is_refused(layers: Layers, short: int) -> None:
    least = sum(map(min, layers))
    with pytest.raises(PlanError, match=f"^{len(layers)} layers need {least} key/value heads at least, so a budget of"):
        allocated(layers, least - short)
    assert allocated(layers, least) == tuple(map(min, layers))


def test_the_layer_that_needs_heads_gets_them() -> None:
    needs, needs_none = {1: 5.0, 2: 3.0, 4: 0.0}, {1: 0.5, 2: 0.25, 4: 0.0}
    assert allocated([needs, needs_none, needs_none], 8) == (4, 2, 2)
    assert allocated([needs_none, needs, needs_none], 6) == (1, 4, 1)
    assert predicted([needs_none, needs, needs_none], (1, 4, 1)) == 1.0


def test_the_greedy_way_can_be_worse() -> None:
    """The first step down costs layer 0 least, and the second one costs it everything."""
    layers = [{1: 9.0, 2: 1.0, 4: 0.0}, {1: 3.0, 2: 2.0, 4: 0.0}]
    assert allocated(layers, 6) == (2, 4)
    assert allocated(layers, 3) == (2, 1)


def test_of_equal_sums_the_one_with_fewer_heads() -> None:
    assert allocated([{1: 1.0, 2: 1.0, 4: 1.0}, {1: 0.0, 8: 0.0}], 12) == (1, 1)
    assert allocated([{4: 1.0, 2: 1.0, 1: 1.0}, {8: 0.0, 1: 0.0}], 12) == (1, 1)


def test_layers_without_heads_cost_nothing() -> None:
    assert allocated([{0: 0.0}, {1: 2.0, 2: 1.0}], 2) == (0, 2)
