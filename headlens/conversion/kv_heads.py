"""What a user asks of a conversion: how many key/value heads, in which layers. Checked before any work."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from headlens.conversion.grouping import check_count, check_groups
from headlens.errors import PlanError
from headlens.plan import Groups, HeadPlan


@dataclass(frozen=True)
class KVHeads:
    """One of `kv_heads` and `budget`.

    `kv_heads`: of every layer, or one number for each. `budget`: of all layers together, as a number or as a share of
    those that there are; how they are spread follows from what each layer loses. `layers`: those that change; None is
    all that have heads. `groups`: key/value heads that are to be shared, the same in every layer, in the place of those
    that a recipe finds.
    """

    kv_heads: int | Sequence[int] | None = None
    budget: float | int | None = None
    layers: Collection[int] | None = None
    groups: Groups | None = None

    def counts(self, plan: HeadPlan) -> tuple[tuple[int, ...], ...]:
        """Numbers of key/value heads that each layer may end with: one where that is asked for, else all within the
        budget.

        Raises PlanError in one sentence for what the model cannot have.
        """
        if self.kv_heads is None and self.budget is None:
            raise PlanError(
                "Say how many key/value heads a layer shall have (--kv-heads), or how many all layers together "
                "(--budget)."
            )
        if self.kv_heads is not None and self.budget is not None:
            raise PlanError(
                "Key/value heads of a layer (--kv-heads) and of all layers (--budget) are given; leave one out."
            )
        self._check_numbers()
        present = tuple(len(groups) for groups in plan.groups)
        chosen = self._layers(plan)
        if self.budget is None:
            counts = self._named(plan, present, chosen)
            _check(plan, present, counts)
            self._check_groups(present, counts)
            if counts == present:
                raise PlanError(f"Every layer that is named has {_listed(counts)} key/value heads already.")
            return tuple((count,) for count in counts)
        if self.groups is not None:
            raise PlanError("Groups by hand fix the number of key/value heads, so no budget can be spread; use one.")
        self.heads_of_budget(plan)
        _check(plan, present, [min(own, 1) if layer in chosen else own for layer, own in enumerate(present)])
        return tuple(_divisors(own) if layer in chosen and own else (own,) for layer, own in enumerate(present))

    def heads_of_budget(self, plan: HeadPlan) -> int:
        """The budget as a number of key/value heads."""
        assert self.budget is not None
        present = [len(groups) for groups in plan.groups]
        total, chosen = sum(present), self._layers(plan)
        is_share = isinstance(self.budget, float)
        found = round(self.budget * total) if is_share else int(self.budget)
        least = sum(min(own, 1) if layer in chosen else own for layer, own in enumerate(present))
        if not least <= found < total:
            told = f"{100 * self.budget:g}% of {total} key/value heads" if is_share else f"{found} key/value heads"
            raise PlanError(
                f"A budget of {told} cannot be spread: the model has {total}, and its layers need {least} at least."
            )
        return found

    def _check_numbers(self) -> None:
        numbers = [self.budget] if self.kv_heads is None else self.kv_heads
        for number in numbers if isinstance(numbers, Sequence) else [numbers]:
            if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
                raise PlanError(f"Key/value heads are counted by whole numbers or a share; got {number!r}.")

    def _layers(self, plan: HeadPlan) -> frozenset[int]:
        if isinstance(self.layers, str) or not all(isinstance(layer, int) for layer in self.layers or ()):
            raise PlanError(f"Layers are given by their numbers, [0, 3, 7]; got {self.layers!r}.")
        chosen = frozenset(range(plan.layers)) if self.layers is None else frozenset(self.layers)
        if unknown := sorted(layer for layer in chosen if not 0 <= layer < plan.layers):
            raise PlanError(f"The model has layers 0 to {plan.layers - 1}, no layer {unknown[0]}.")
        if not chosen:
            raise PlanError("No layer is named, so there is nothing to convert.")
        return chosen

    def _named(self, plan: HeadPlan, present: Sequence[int], chosen: frozenset[int]) -> tuple[int, ...]:
        wanted = self.kv_heads
        assert wanted is not None
        if isinstance(wanted, int):
            return tuple(wanted if layer in chosen and own else own for layer, own in enumerate(present))
        if len(wanted) != plan.layers:
            raise PlanError(
                f"The model has {plan.layers} layers, and {len(wanted)} numbers of key/value heads are given."
            )
        if self.layers is not None:
            raise PlanError("Where every layer has its own number, leave out which layers change.")
        return tuple(wanted)

    def _check_groups(self, present: Sequence[int], counts: Sequence[int]) -> None:
        if self.groups is None:
            return
        for own, count in zip(present, counts, strict=True):
            if count != own:
                check_groups(self.groups, own)
                if len(self.groups) != count:
                    raise PlanError(f"{len(self.groups)} groups are named, and {count} key/value heads are asked for.")


def _check(plan: HeadPlan, present: Sequence[int], counts: Sequence[int]) -> None:
    for layer, (kept, own, count) in enumerate(zip(plan.kept, present, counts, strict=True)):
        if count == own:
            continue
        if not own:
            raise PlanError(f"Layer {layer} has lost all its heads, so it can have no key/value head.")
        if count > len(kept):
            raise PlanError(
                f"Layer {layer} has {len(kept)} query heads, so no more key/value heads than that; got {count}."
            )
        if len({*map(len, plan.groups[layer])}) > 1:
            raise PlanError(f"Layer {layer} has groups of unlike sizes, and grouped attention needs them alike.")
        try:
            if count < own:
                check_count(own, count)
            elif count % own or len(kept) % count:
                raise PlanError(
                    f"{own} key/value heads of {len(kept)} heads cannot become {count}: each is copied as often."
                )
        except PlanError as reason:
            raise PlanError(f"Layer {layer}: {reason}") from None


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(count for count in range(1, number + 1) if number % count == 0)


def _listed(counts: Sequence[int]) -> str:
    return str(counts[0]) if len({*counts}) == 1 else ", ".join(map(str, counts))
