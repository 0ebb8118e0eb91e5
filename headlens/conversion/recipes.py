"""How the key/value heads of a layer become fewer, or more: which ones are shared, how they are merged, what is fitted.

A recipe needs nothing but weights and moments; what calibration costs is spent before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headlens.conversion.absorb import absorb
from headlens.conversion.align import largest_change
from headlens.conversion.grouping import (
    cheapest_groups,
    check_count,
    contiguous_groups,
    divided,
    random_groups,
    similar_groups,
)
from headlens.conversion.merging import METHODS, SCALES, discarded_energy, merge
from headlens.conversion.moments import Moments
from headlens.conversion.weights import LayerWeights
from headlens.errors import PlanError, UnsupportedModel
from headlens.plan import Groups

GROUPINGS = ("contiguous", "similar", "cheapest", "random")
BY_HAND = "named"  # groups that the user names, in the place of those that are found
_AS_THEY_ARE = ("mean", "first", "random")  # methods that look at no text, and at no other head
_TRIED_SIZE = 1024  # numbers of all keys of a token, up to which it takes seconds to try all groups of heads


@dataclass(frozen=True)
class Recipe:
    """A way to convert attention layers.

    `grouping`: "contiguous" are neighbours; "similar" heads are near to each other after rotations; "cheapest" are
    those that lose least by a shared factor; "random" by lot. `absorbed`: biases that attention does not need go
    before anything is merged. `repaired`: W_O is fitted anew on text, layer by layer (`surgery.repair`).
    """

    method: str = "svd"
    grouping: str = "cheapest"
    scale: str = "plain"
    absorbed: bool = True
    repaired: bool = True

    def __post_init__(self) -> None:
        for what, value, known in (
            ("method", self.method, METHODS),
            ("grouping", self.grouping, (*GROUPINGS, BY_HAND)),
            ("scale", self.scale, SCALES),
        ):
            if value not in known:
                raise PlanError(f"The {what} of a conversion is one of {', '.join(known)}; got {value!r}.")
        if self.method == "svd" and self.scale != "plain":
            raise PlanError(f"Heads merged by svd are fitted as they are: leave out the scale {self.scale!r}.")

    @property
    def reads_text(self) -> bool:
        """Whether moments change what comes out, before any repair."""
        return self.method not in _AS_THEY_ARE or self.grouping in ("similar", "cheapest") or self.scale == "fitted"

    def __str__(self) -> str:
        parts = [
            self.method,
            "groups by hand" if self.grouping == BY_HAND else f"{self.grouping} groups",
            *([] if self.scale == "plain" else [f"{self.scale} scale"]),
            *(["W_O refitted"] if self.repaired else []),
        ]
        return ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "method": self.method,
            "grouping": self.grouping,
            "scale": self.scale,
            "biases_absorbed": self.absorbed,
            "repair": self.repaired,
        }


MEAN_POOLING = Recipe("mean", "contiguous", absorbed=False, repaired=False)
"""What is done everywhere: neighbours, the mean of weights and biases, nothing else (Ainslie et al. 2023, 2.1)."""


def usual_recipe(method: str) -> Recipe:
    """What suits a method: plain mean pooling for "mean", for others groups of heads that go together."""
    if method == "mean":
        return MEAN_POOLING
    grouping = {"svd": "cheapest", "aligned": "similar"}.get(method, "contiguous")
    return Recipe(method, grouping, repaired=False)


def converted_layer(
    layer: LayerWeights,
    kv_heads: int,
    recipe: Recipe,
    moments: Moments | None,
    *,
    groups: Groups | None = None,
    seed: int = 0,
) -> LayerWeights:
    """The layer with that many key/value heads, and all its query heads in their places.

    As many as it has are the same layer; more of them are copies, and exact.

    Parameters
    ----------
    moments
        Of what the layer reads; None measures by the weights alone.
    groups
        Key/value heads that are to be shared, named by hand, in the place of the recipe's.

    Raises
    ------
    PlanError
        A number that does not divide the heads, or is not divided by the present ones; groups of unlike sizes.
    """
    present = len(layer.k)
    if groups is None and kv_heads == present:
        return layer
    if kv_heads > present:
        return divided(layer, kv_heads)
    check_count(present, kv_heads)
    layer = absorb(layer) if recipe.absorbed else layer
    if recipe.grouping == BY_HAND and groups is None:
        raise PlanError("Groups by hand are to be named, and none are.")
    chosen = _groups(layer, kv_heads, recipe, moments, seed) if groups is None else groups
    if len(chosen) != kv_heads:
        raise PlanError(f"{len(chosen)} groups of key/value heads were named, and {kv_heads} are to be left.")
    return merge(layer, chosen, recipe.method, moments, scale=recipe.scale, seed=seed)


def converted_layers(
    layers: Sequence[LayerWeights],
    counts: Sequence[int],
    recipe: Recipe,
    moments: Sequence[Moments] | None,
    *,
    groups: Sequence[Groups | None] | None = None,
    seed: int = 0,
) -> list[LayerWeights]:
    """`converted_layer` of all layers, with a number of key/value heads for each."""
    found = []
    for number, (layer, count) in enumerate(zip(layers, counts, strict=True)):
        own = None if moments is None else moments[number]
        named = None if groups is None else groups[number]
        try:
            found.append(converted_layer(layer, count, recipe, own, groups=named, seed=seed + number))
        except (PlanError, UnsupportedModel) as reason:
            raise type(reason)(f"Layer {number}: {reason}") from None
    return found


def change_of_all(before: Sequence[LayerWeights], after: Sequence[LayerWeights]) -> float:
    """The largest `largest_change` of any layer that has heads."""
    return max((largest_change(*pair) for pair in zip(before, after, strict=True) if len(pair[0].q)), default=0.0)


def _groups(layer: LayerWeights, kv_heads: int, recipe: Recipe, moments: Moments | None, seed: int) -> Groups:
    present = len(layer.k)
    if recipe.grouping == "contiguous" or kv_heads == 1:
        return contiguous_groups(present, kv_heads)
    if recipe.grouping == "random":
        return random_groups(present, kv_heads, seed)
    if moments is None:
        raise PlanError(f"Groups of {recipe.grouping} heads are told by calibration text; give some.")
    if recipe.grouping == "similar" or present * layer.k.shape[1] > _TRIED_SIZE:
        return similar_groups(layer, kv_heads, moments, seed=seed)
    return cheapest_groups(present, kv_heads, discarded_energy(layer, moments), seed=seed)
