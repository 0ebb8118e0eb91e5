"""What a healing did, as lines for a terminal: a table of what is held against what, and sentences. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from headlens.evaluating_words import difference_in_words, figure
from headlens.numbers import aligned, amount

if TYPE_CHECKING:
    from headlens.arms import Arm
    from headlens.heal_pruned import HealedPruned

_NAMES = {
    "random": "random heads",
    "random, healed": "random heads, healed",
    "mean pooling": "plain mean pooling",
    "mean pooling, healed": "plain mean pooling, healed",
}
_ORDER = ("original", "pruned", "converted", "healed", *_NAMES)


def lines_of(found: HealedPruned) -> Iterator[str]:
    """Line by line, for `typer.echo`."""
    recipe, kept = found.healed.recipe, found.arms[0].plan
    loss = ", ".join(f"{name} {weight:g}" for name, weight in recipe.parts.items())
    has = f"{kept.n_kept} of {kept.layers * kept.heads} heads"
    if not kept.removed:
        has = f"key/value heads by layer {' '.join(str(len(groups)) for groups in kept.groups)}"
    yield (
        f"{found.pruned.name}: {has}, healed after {found.original.name} "
        f"in {amount(recipe.steps, 'step')} of {recipe.batch} (loss: {loss})"
    )
    yield from aligned(list(_rows(found.arms, found.healed.objective.replace("_", " "))))
    before = found.arms[1].name
    for other in (before, "original"):
        for difference in found.differences(other):
            yield f"{difference.task}, {difference.metric}, less the {other}: {difference_in_words(difference)}"
    yield from _farther(found)
    yield from _beside_random(found)
    yield from _beside_pooling(found)
    yield from (f"Note: {note}" for note in found.notes)


def _farther(found: HealedPruned) -> Iterator[str]:
    if found.arms[0].distortion > found.arms[1].distortion:
        yield (
            "Warning: the healed model is farther from the original than before; heal it for more steps, or with a "
            "smaller --lr."
        )


def _rows(arms: Sequence[Arm], objective: str) -> Iterator[list[str]]:
    yield ["", f"{objective} (held out)", *(f"{result.task}, {result.metric}" for result in arms[0].results)]
    for name in _ORDER:
        group = [arm for arm in arms if arm.name == name]
        if group:
            columns = [[arm.distortion for arm in group]]
            columns += [[arm.results[task].value for arm in group] for task in range(len(arms[0].results))]
            yield [_NAMES.get(name, name), *map(_spread, columns)]


def _spread(values: Sequence[float]) -> str:
    """One value, or the mean of several and where they lie."""
    if len(values) == 1:
        return figure(values[0])
    return f"{figure(sum(values) / len(values))} ({figure(min(values))} to {figure(max(values))})"


def _beside_pooling(found: HealedPruned) -> Iterator[str]:
    pooled = found.random("mean pooling, healed")
    if pooled:
        ends = figure(pooled[0].distortion), figure(found.arms[0].distortion)
        yield f"Plain mean pooling comes to {ends[0]} on the same budget; this model to {ends[1]}."


def _beside_random(found: HealedPruned) -> Iterator[str]:
    """What the choice of heads was worth after training."""
    draws = found.random()
    if draws:
        nearer = sum(arm.distortion <= found.arms[0].distortion for arm in draws)
        yield (
            f"Of {amount(len(draws), 'random plan')} healed on the same budget, {nearer} came as near to the original "
            f"or nearer."
        )
