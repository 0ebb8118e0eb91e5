"""What can be asked of a conversion, and one sentence for everything that cannot be."""

from __future__ import annotations

import re

import pytest

from headlens.conversion.kv_heads import KVHeads
from headlens.errors import PlanError
from headlens.plan import HeadPlan

EIGHT = HeadPlan.full(3, 8)  # plain multi-head attention
GROUPED = HeadPlan.full(3, 8, 4)
SINGLE = HeadPlan.full(3, 8, 1)
TWELVE = HeadPlan.full(2, 12)
PRUNED = HeadPlan(8, 8, (EIGHT.groups[0], ((0,), (2,), (3,), (5,), (6,), (7,)), ()))  # 8, 6 and no heads
RAGGED = HeadPlan(8, 4, (GROUPED.groups[0], ((0, 1), (2,), (4, 5)), GROUPED.groups[2]))
PAIRS = ((0, 2), (1, 3), (4, 6), (5, 7))
TWO = ((0, 1, 2, 3), (4, 5, 6, 7))


def sizes(*counts: int) -> tuple[tuple[int, ...], ...]:
    """One number of key/value heads for each layer."""
    return tuple((count,) for count in counts)


# ---------------------------------------------------------------------------------------------------- what is refused

WHOLE = "8 key/value heads cannot become {} in groups of one size; choose one of 1, 2, 4, 8."
REFUSED: dict[str, tuple[KVHeads, HeadPlan, str]] = {
    "neither": (
        KVHeads(),
        EIGHT,
        "Say how many key/value heads a layer shall have (--kv-heads), or how many all layers together (--budget).",
    ),
    "both": (
        KVHeads(2, 6),
        EIGHT,
        "Key/value heads of a layer (--kv-heads) and of all layers (--budget) are given; leave one out.",
    ),
    # numbers
    "zero": (KVHeads(0), EIGHT, f"Layer 0: {WHOLE.format(0)}"),
    "negative": (KVHeads(-2), EIGHT, f"Layer 0: {WHOLE.format(-2)}"),
    "not dividing": (KVHeads(3), EIGHT, f"Layer 0: {WHOLE.format(3)}"),
    "more than heads": (
        KVHeads(16),
        EIGHT,
        "Layer 0 has 8 query heads, so no more key/value heads than that; got 16.",
    ),
    "more, not dividing": (
        KVHeads(6),
        GROUPED,
        "Layer 0: 4 key/value heads of 8 heads cannot become 6: each is copied as often.",
    ),
    "more, not dividing the heads": (
        KVHeads((4, 3)),
        HeadPlan.full(2, 4, 1),
        "Layer 1: 1 key/value heads of 4 heads cannot become 3: each is copied as often.",
    ),
    "nothing changes": (KVHeads(8), EIGHT, "Every layer that is named has 8 key/value heads already."),
    "nothing changes, by layer": (
        KVHeads((8, 6, 0)),
        PRUNED,
        "Every layer that is named has 8, 6, 0 key/value heads already.",
    ),
    # numbers by layer
    "too few numbers": (KVHeads((2, 2)), EIGHT, "The model has 3 layers, and 2 numbers of key/value heads are given."),
    "too many numbers": (
        KVHeads((2, 2, 2, 2)),
        EIGHT,
        "The model has 3 layers, and 4 numbers of key/value heads are given.",
    ),
    "numbers and layers": (
        KVHeads((2, 2, 2), layers=[0, 1]),
        EIGHT,
        "Where every layer has its own number, leave out which layers change.",
    ),
    "one number not dividing": (KVHeads((2, 8, 5)), EIGHT, f"Layer 2: {WHOLE.format(5)}"),
    "one number of zero": (KVHeads((2, 0, 4)), EIGHT, f"Layer 1: {WHOLE.format(0)}"),
    "groups that change no number": (
        KVHeads(8, groups=PAIRS),
        EIGHT,
        "Every layer that is named has 8 key/value heads already.",
    ),
    "not a number": (
        KVHeads(budget=float("nan")),
        EIGHT,
        "Key/value heads are counted by whole numbers or a share; got nan.",
    ),
    "no end": (
        KVHeads(budget=float("inf")),
        EIGHT,
        "Key/value heads are counted by whole numbers or a share; got inf.",
    ),
    "yes": (KVHeads(True), EIGHT, "Key/value heads are counted by whole numbers or a share; got True."),
    "a budget over groups of unlike sizes": (
        KVHeads(budget=3),
        HeadPlan(4, 2, (((0, 1), (2, 3)), ((0,), (2, 3)))),
        "Layer 1 has groups of unlike sizes, and grouped attention needs them alike.",
    ),
    # layers
    "unknown layer": (KVHeads(2, layers=[0, 3]), EIGHT, "The model has layers 0 to 2, no layer 3."),
    "negative layer": (KVHeads(2, layers=[-1]), EIGHT, "The model has layers 0 to 2, no layer -1."),
    "unknown layer of a budget": (KVHeads(budget=20, layers=[7]), EIGHT, "The model has layers 0 to 2, no layer 7."),
    "no layer": (KVHeads(2, layers=[]), EIGHT, "No layer is named, so there is nothing to convert."),
    "no layer of a budget": (
        KVHeads(budget=20, layers=()),
        EIGHT,
        "No layer is named, so there is nothing to convert.",
    ),
    # pruned models
    "layer without heads": (
        KVHeads((4, 3, 1)),
        PRUNED,
        "Layer 2 has lost all its heads, so it can have no key/value head.",
    ),
    "ragged": (
        KVHeads(1),
        RAGGED,
        "Layer 1 has groups of unlike sizes, and grouped attention needs them alike.",
    ),
    "pruned, not dividing": (
        KVHeads(4),
        PRUNED,
        "Layer 1: 6 key/value heads cannot become 4 in groups of one size; choose one of 1, 2, 3, 6.",
    ),
    # budgets
    "budget too small": (
        KVHeads(budget=2),
        EIGHT,
        "A budget of 2 key/value heads cannot be spread: the model has 24, and its layers need 3 at least.",
    ),
    "budget of zero": (
        KVHeads(budget=0),
        EIGHT,
        "A budget of 0 key/value heads cannot be spread: the model has 24, and its layers need 3 at least.",
    ),
    "budget of present": (
        KVHeads(budget=24),
        EIGHT,
        "A budget of 24 key/value heads cannot be spread: the model has 24, and its layers need 3 at least.",
    ),
    "budget too large": (
        KVHeads(budget=25),
        EIGHT,
        "A budget of 25 key/value heads cannot be spread: the model has 24, and its layers need 3 at least.",
    ),
    "share too small": (
        KVHeads(budget=0.05),
        EIGHT,
        "A budget of 5% of 24 key/value heads cannot be spread: the model has 24, and its layers need 3 at least.",
    ),
    "share of all": (
        KVHeads(budget=1.0),
        EIGHT,
        "A budget of 100% of 24 key/value heads cannot be spread: the model has 24, and its layers need 3 at least.",
    ),
    "negative share": (
        KVHeads(budget=-0.5),
        EIGHT,
        "A budget of -50% of 24 key/value heads cannot be spread: the model has 24, and its layers need 3 at least.",
    ),
    "budget less than what stays": (
        KVHeads(budget=16, layers=[1]),
        EIGHT,
        "A budget of 16 key/value heads cannot be spread: the model has 24, and its layers need 17 at least.",
    ),
    # groups by hand
    "groups with a budget": (
        KVHeads(budget=12, groups=PAIRS),
        EIGHT,
        "Groups by hand fix the number of key/value heads, so no budget can be spread; use one.",
    ),
    "groups of unlike sizes": (
        KVHeads(2, groups=((0, 1, 2), (3, 4, 5, 6, 7))),
        EIGHT,
        "Groups of key/value heads must be of one size, got sizes [3, 5] in 0 1 2 | 3 4 5 6 7.",
    ),
    "groups with a head twice": (
        KVHeads(4, groups=((0, 1), (1, 2), (4, 5), (6, 7))),
        EIGHT,
        "Groups must hold each of the key/value heads 0 to 7 once, got 0 1 | 1 2 | 4 5 | 6 7.",
    ),
    "groups of other heads": (
        KVHeads(2, groups=PAIRS),
        GROUPED,
        "Groups must hold each of the key/value heads 0 to 3 once, got 0 2 | 1 3 | 4 6 | 5 7.",
    ),
    "groups of another number": (
        KVHeads(2, groups=PAIRS),
        EIGHT,
        "4 groups are named, and 2 key/value heads are asked for.",
    ),
    "groups of a pruned layer": (
        KVHeads((4, 3, 0), groups=PAIRS),
        PRUNED,
        "Groups must hold each of the key/value heads 0 to 5 once, got 0 2 | 1 3 | 4 6 | 5 7.",
    ),
}


@pytest.mark.parametrize(("wish", "plan", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused_in_one_sentence(wish: KVHeads, plan: HeadPlan, sentence: str) -> None:
    with pytest.raises(PlanError, match=f"^{re.escape(sentence)}$"):
        wish.counts(plan)


def test_the_number_of_a_budget_is_refused_as_the_budget_is() -> None:
    with pytest.raises(PlanError, match="A budget of 2 key/value heads cannot be spread"):
        KVHeads(budget=2).heads_of_budget(EIGHT)


# ---------------------------------------------------------------------------------------------------- what is allowed

DIVISORS = (1, 2, 4, 8)
ALLOWED: dict[str, tuple[KVHeads, HeadPlan, tuple[tuple[int, ...], ...]]] = {
    "one number": (KVHeads(2), EIGHT, sizes(2, 2, 2)),
    "one head": (KVHeads(1), EIGHT, sizes(1, 1, 1)),
    "of grouped": (KVHeads(2), GROUPED, sizes(2, 2, 2)),
    "more": (KVHeads(8), GROUPED, sizes(8, 8, 8)),
    "more of one": (KVHeads(4), SINGLE, sizes(4, 4, 4)),
    "by layer": (KVHeads((8, 4, 1)), EIGHT, sizes(8, 4, 1)),
    "by layer, as a list": (KVHeads([2, 8, 8]), EIGHT, sizes(2, 8, 8)),
    "fewer and more": (KVHeads((8, 4, 2)), GROUPED, sizes(8, 4, 2)),
    "twelve": (KVHeads(3), TWELVE, sizes(3, 3)),
    "some layers": (KVHeads(2, layers=[0, 2]), EIGHT, sizes(2, 8, 2)),
    "one layer": (KVHeads(4, layers={1}), EIGHT, sizes(8, 4, 8)),
    "pruned": (KVHeads(2), PRUNED, sizes(2, 2, 0)),  # a layer without heads stays without
    "pruned by layer": (KVHeads((4, 3, 0)), PRUNED, sizes(4, 3, 0)),
    "around ragged": (KVHeads(2, layers=[0, 2]), RAGGED, sizes(2, 3, 2)),
    "groups": (KVHeads(4, groups=PAIRS), EIGHT, sizes(4, 4, 4)),
    "groups of some layers": (KVHeads(2, layers=[1], groups=TWO), EIGHT, sizes(8, 2, 8)),
    "groups beside a pruned layer": (KVHeads(4, layers=[0], groups=PAIRS), PRUNED, sizes(4, 6, 0)),
    "budget": (KVHeads(budget=12), EIGHT, (DIVISORS,) * 3),
    "budget of some layers": (KVHeads(budget=20, layers=[0, 1]), EIGHT, (DIVISORS, DIVISORS, (8,))),
    "budget of twelve": (KVHeads(budget=5), TWELVE, ((1, 2, 3, 4, 6, 12),) * 2),
    "budget of pruned": (KVHeads(budget=7), PRUNED, (DIVISORS, (1, 2, 3, 6), (0,))),
}


@pytest.mark.parametrize(("wish", "plan", "counts"), ALLOWED.values(), ids=ALLOWED)
def test_what_each_layer_may_end_with(wish: KVHeads, plan: HeadPlan, counts: tuple[tuple[int, ...], ...]) -> None:
    assert wish.counts(plan) == counts


@pytest.mark.parametrize(
    ("budget", "plan", "layers", "heads"),
    [
        (12, EIGHT, None, 12),
        (3, EIGHT, None, 3),
        (23, EIGHT, None, 23),
        (0.5, EIGHT, None, 12),
        (0.125, EIGHT, None, 3),
        (0.3, EIGHT, None, 7),  # 7.2
        (0.32, EIGHT, None, 8),  # 7.68
        (0.5, GROUPED, None, 6),  # of key/value heads, not of query heads
        (17, EIGHT, [1], 17),  # 8 and 8 that stay, and one
        (0.75, EIGHT, [1], 18),
        (0.5, PRUNED, None, 7),  # 8 and 6 of them
        (2, PRUNED, None, 2),
    ],
)
def test_a_budget_is_a_number_or_a_share(budget: float, plan: HeadPlan, layers: list[int] | None, heads: int) -> None:
    assert KVHeads(budget=budget, layers=layers).heads_of_budget(plan) == heads
