"""What a healing consists of: how long, how fast, and after what."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from headlens.errors import HealingError

Part = Literal["hidden", "embedding", "logits", "task"]


@dataclass(frozen=True)
class Recipe:
    """The same recipe on the same text is the same budget.

    `parts` are weights of the parts of the loss. "hidden": mean over layers of the squared distance of hidden states
    over their variance; "embedding": 1 - cosine of mean-pooled last hidden states; "logits": KL divergence of
    distributions over the vocabulary, in nats a token; "task": the loss of the task itself, of the next token for
    language models, or of labels.
    """

    steps: int
    batch: int  # texts or windows
    lr: float  # the highest, at the end of the warm-up
    parts: Mapping[str, float]
    max_length: int  # tokens of a text or window
    seed: int
    progressive: float = 0.0  # share of the steps over which the original's attention fades; converted models only
    train_embeddings: bool = False
    bf16: bool = False  # multiply in bfloat16; weights stay as they are
    save_every: int = 50  # steps between two checkpoints

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "max_length", "save_every"):
            if getattr(self, name) < 1:
                raise HealingError(f"Healing needs {name} of at least 1, got {getattr(self, name)}.")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise HealingError(f"The learning rate must be a positive number, got {self.lr}.")
        if not 0 <= self.progressive <= 1:
            raise HealingError(f"progressive is a share of the steps, from 0 to 1; got {self.progressive}.")
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
