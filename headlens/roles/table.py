"""All roles of all heads of a model. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from headlens.errors import OutputError
from headlens.numbers import layers_of_heads
from headlens.roles.role import HeadRole, Role
from headlens.scores import head_name

if TYPE_CHECKING:
    import pandas as pd

PATTERN_CLASSES = ("heterogeneous", "vertical", "diagonal", "vertical and diagonal")


@dataclass(frozen=True)
class Roles:
    """Every role that a head has, and the roles that were asked for: those whose scores are there."""

    n_layers: int
    n_heads: int
    asked: tuple[Role, ...]  # in the order of the catalogue
    held: tuple[HeadRole, ...]

    @cached_property
    def _by_head(self) -> dict[tuple[int, int], tuple[HeadRole, ...]]:
        by_head: dict[tuple[int, int], list[HeadRole]] = {}
        for one in self.held:
            by_head.setdefault((one.layer, one.head), []).append(one)
        return {place: tuple(sorted(of_head, key=lambda one: one.precedence)) for place, of_head in by_head.items()}

    def __iter__(self) -> Iterator[HeadRole]:
        """Head by head, and of a head the one first that is its label."""
        for place in sorted(self._by_head):
            yield from self._by_head[place]

    def __len__(self) -> int:
        return len(self.held)

    def of(self, layer: int, head: int) -> tuple[HeadRole, ...]:
        """Roles of a head, its label first; empty where it has none. OutputError for a head that is not there."""
        if not (0 <= layer < self.n_layers and 0 <= head < self.n_heads):
            raise OutputError(
                f"The model has {layers_of_heads(self.n_layers, self.n_heads)}, counted from 0; there is no "
                f"{head_name(layer, head)}."
            )
        return self._by_head.get((layer, head), ())

    def label(self, layer: int, head: int) -> HeadRole | None:
        """The role that stands for the head where there is room for one."""
        return next(iter(self.of(layer, head)), None)

    def heads(self, role: str) -> list[HeadRole]:
        """Who has a role, by its id: the firm ones first, then those most in excess; of a head its best metric.

        OutputError for a role that was not asked for.
        """
        if not self.asks(role):
            known = ", ".join(one.id for one in self.asked) or "none"
            raise OutputError(f"The role {role!r} was not asked for here; those that were: {known}.")
        best: dict[tuple[int, int], HeadRole] = {}
        for one in self:
            if one.role.id == role:
                best.setdefault((one.layer, one.head), one)
        return sorted(best.values(), key=lambda one: (one.precedence[1:], one.layer, one.head))

    def asks(self, role: str) -> bool:
        """Whether a role was asked for, by its id: its scores are there, whether or not a head has it."""
        return any(one.id == role for one in self.asked)

    def pattern_class(self, layer: int, head: int) -> str:
        """One of PATTERN_CLASSES, from the roles of the head: the classes of Kovaleva et al. 2019, section 4.1.

        Their block pattern, attention within one of two joined texts, is not told apart: inputs here are single texts.
        """
        kinds = {one.role.kind for one in self.of(layer, head)}
        is_vertical, is_diagonal = bool(kinds & {"sink", "punctuation"}), "position" in kinds
        return PATTERN_CLASSES[2 * is_diagonal + is_vertical]

    def to_frame(self) -> pd.DataFrame:
        """One row for each role of each head and metric."""
        import pandas as pd

        columns = ["role", "strength", "layer", "head", "metric", "value", "low", "high", "chance", "null"]
        columns += ["null_name", "informed", "informed_name", "excess", "q", "support", "is_label", "sentence"]
        rows = [
            {
                **{name: getattr(one, name, None) for name in columns},
                "role": one.role.id,
                "strength": "firm" if one.is_firm else "tentative",
                "is_label": one is self.label(one.layer, one.head),
            }
            for one in self
        ]
        return pd.DataFrame(rows, columns=columns)
