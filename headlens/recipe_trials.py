"""Recipes tried on a model, and judged on text that nothing was fitted on; what layers lose alone, for a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from transformers import PreTrainedModel

from headlens.calibration import judged
from headlens.conversion.allocate import Damages
from headlens.conversion.carriers import converted
from headlens.conversion.moments import Moments, moments_of
from headlens.conversion.recipes import BY_HAND, MEAN_POOLING, Recipe, converted_layers
from headlens.conversion.weights import LayerWeights, read_layers
from headlens.importance.inputs import TextBatch
from headlens.importance.objectives import Objective
from headlens.models import LoadedModel, network_of
from headlens.plan import Groups
from headlens.surgery import refit

SENSIBLE = (Recipe("svd", "cheapest"), Recipe("svd", "contiguous"), Recipe("aligned", "similar"))
REFITTED = 2  # of several recipes: those that did best before a repair, which takes the most time

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Try:
    """A recipe, what it makes of the layers before any repair, and how far it moves the output."""

    recipe: Recipe
    distortion: float
    layers: Sequence[LayerWeights] = field(repr=False)
    repaired: PreTrainedModel | None = field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**self.recipe.to_dict(), "distortion": self.distortion}


@dataclass(eq=False)
class Choosing:
    """One model, text to fit on, and an objective of other text to choose by."""

    loaded: LoadedModel
    fitted: Sequence[TextBatch]
    objective: Objective
    groups: Groups | None = None  # named by hand, for every layer that changes
    seed: int = 0
    progress: Progress = lambda _what, _done, _of: None

    @cached_property
    def layers(self) -> list[LayerWeights]:
        return read_layers(self.loaded.model)

    @cached_property
    def moments(self) -> list[Moments]:
        return moments_of(self.loaded.model, self.fitted, say=lambda what: self.progress(what, 0, 1))

    def tried(self, counts: Sequence[int], recipe: Recipe | None = None) -> list[Try]:
        """The sensible recipes, or the one that is asked for, with the one to take first.

        Of several all are merged, and those that did best are repaired, too; a repair that does harm is not taken. The
        one that is asked for comes with what it is before its repair.
        """
        merged: list[Try] = []
        for one in (recipe,) if recipe else SENSIBLE:
            plain = replace(one, repaired=False, grouping=one.grouping if self.groups is None else BY_HAND)
            self.progress(f"merging: {plain}", len(merged), len(SENSIBLE))
            layers = self._merged(counts, plain)
            if not any(_same(plain, layers, other) for other in merged):
                merged.append(Try(plain, self._judged(self._model(layers)), layers))
        merged.sort(key=lambda one: one.distortion)
        if recipe is not None:
            return [self._repaired(merged[0], counts), merged[0]] if recipe.repaired else merged
        repaired = [self._repaired(one, counts) for one in merged[:REFITTED]]
        return sorted([*repaired, *merged], key=lambda one: one.distortion)

    def model_of(self, found: Try) -> PreTrainedModel:
        """In the class of the original."""
        return self._model(found.layers) if found.repaired is None else found.repaired

    def pooled(self, counts: Sequence[int]) -> PreTrainedModel:
        """Plain mean pooling of neighbours; of more key/value heads than there are, copies."""
        return self._model(converted_layers(self.layers, counts, MEAN_POOLING, None))

    def damages(self, possible: Iterable[Sequence[int]], recipe: Recipe | None = None) -> list[Damages]:
        """What the model loses by every layer alone at each number of key/value heads; nothing is repaired."""
        present = [len(layer.k) for layer in self.layers]
        found: list[Damages] = []
        for number, own in enumerate(possible):
            self.progress(f"what layer {number} loses", number, len(present))
            changed = {count: [*present[:number], count, *present[number + 1 :]] for count in own}
            found.append(
                {
                    count: 0.0 if count == present[number] else self.damage_of(counts, recipe)
                    for count, counts in changed.items()
                }
            )
        return found

    def damage_of(self, counts: Sequence[int], recipe: Recipe | None = None) -> float:
        """How far the output moves by a conversion that is not repaired."""
        return self._judged(self._model(self._merged(counts, replace(recipe or SENSIBLE[0], repaired=False))))

    def _merged(self, counts: Sequence[int], recipe: Recipe) -> list[LayerWeights]:
        groups = [
            None if count == len(layer.k) else self.groups for layer, count in zip(self.layers, counts, strict=True)
        ]
        moments = self.moments if recipe.reads_text else None
        return converted_layers(self.layers, counts, recipe, moments, groups=groups, seed=self.seed)

    def _model(self, layers: Sequence[LayerWeights]) -> PreTrainedModel:
        return converted(self.loaded.model, layers, stock=False)

    def _judged(self, model: PreTrainedModel) -> float:
        return judged(network_of(model), self.objective)

    def _repaired(self, found: Try, counts: Sequence[int]) -> Try:
        """Only layers that were converted are fitted."""
        present = [len(layer.k) for layer in self.layers]
        changed = [number for number, (has, gets) in enumerate(zip(present, counts, strict=True)) if has != gets]
        recipe = replace(found.recipe, repaired=True)

        def say(what: str) -> None:
            self.progress(f"{recipe.method}: {what}", 0, 1)

        model = refit(self._model(found.layers), self.loaded.model, self.fitted, layers=changed, say=say)
        return Try(recipe, self._judged(model), found.layers, model)


def _same(recipe: Recipe, layers: Sequence[LayerWeights], other: Try) -> bool:
    """Whether two recipes come to one: the same merging of the same groups."""
    alike = (recipe.method, recipe.scale) == (other.recipe.method, other.recipe.scale)
    return alike and [one.groups for one in layers] == [one.groups for one in other.layers]
