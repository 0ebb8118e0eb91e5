"""A budget of key/value heads over the layers of a model: each gets as many as the damage of having fewer is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headlens.errors import PlanError

Damages = Mapping[int, float]  # of one layer: number of key/value heads -> what the model loses by it


def allocated(damages: Sequence[Damages], budget: int) -> tuple[int, ...]:
    """Numbers of key/value heads by layer, of those that are named, with the least sum of damages within the budget.

    Damages of layers are taken to add up, which single-layer ones nearly do; the sum is to be checked against the
    whole. Exact, by dynamic programming over layers and heads. Of equal sums the one with fewer heads.

    Raises PlanError where the budget does not suffice for the fewest heads of every layer.
    """
    least = sum(min(own) for own in damages)
    if budget < least:
        raise PlanError(
            f"{len(damages)} layers need {least} key/value heads at least, so a budget of {budget} is too small."
        )
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}  # by heads spent
    for own in damages:
        longer: dict[int, tuple[float, tuple[int, ...]]] = {}
        for spent, (damage, counts) in best.items():
            for count, more in own.items():
                total = spent + count
                if total <= budget and (total not in longer or damage + more < longer[total][0]):
                    longer[total] = damage + more, (*counts, count)
        best = longer
    spent = min(best, key=lambda total: (best[total][0], total))
    return best[spent][1]


def predicted(damages: Sequence[Damages], counts: Sequence[int]) -> float:
    """The sum of the damages of single layers: what the whole would lose if they added up."""
    return sum(own[count] for own, count in zip(damages, counts, strict=True))
