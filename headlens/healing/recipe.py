"""What a healing consists of: how long, how fast, and after what."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from headlens.errors import HeadlensError

Part = Literal["hidden", "embedding", "logits", "task"]


class HealingError(HeadlensError):
    """A healing that cannot be done as it was asked for, or that came to nothing."""


@dataclass(frozen=True)
class Recipe:
    """The same recipe on the same text is the same budget; see `heal` for what the entries mean."""

    steps: int
    batch: int
    lr: float
    parts: Mapping[str, float]  # weight of every part of the loss
    max_length: int
    seed: int
    train_embeddings: bool = False
    bf16: bool = False
    save_every: int = 50

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "max_length", "save_every"):
            if getattr(self, name) < 1:
                raise HealingError(f"Healing needs {name} of at least 1, got {getattr(self, name)}.")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise HealingError(f"The learning rate must be a positive number, got {self.lr}.")
        if self.seed < 0:
            raise HealingError(f"The seed must be 0 or more, got {self.seed}.")
        known = get_args(Part)
        if unknown := [name for name in self.parts if name not in known]:
            raise HealingError(f"The loss has the parts {', '.join(known)}; got {unknown[0]!r}.")
        weights = list(self.parts.values())
        if not weights or not all(math.isfinite(weight) and weight > 0 for weight in weights):
            raise HealingError(
                f"Every part of the loss needs a positive weight, and there must be one; got {dict(self.parts)}."
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "parts": dict(self.parts)}
