"""A task asks a model about items that are always the same, and keeps one number or more for each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from headlens.errors import UnsupportedModel
from headlens.evaluation.results import Columns, Metric, TaskResult
from headlens.models import LoadedModel

BATCH_TOKENS = 4096


@dataclass(frozen=True, eq=False)
class Answers:
    """What a model said: `columns` by name, one number an item, in the order of the task's items."""

    columns: Columns
    facts: Mapping[str, Any] = field(default_factory=dict)  # plain values, ready for JSON
    notes: tuple[str, ...] = ()  # what a reader of the figures must know


class Task(ABC):
    """Items are read once; then any model can be asked about them. `metrics` are computed from what `ask` gives."""

    metrics: ClassVar[tuple[Metric, ...]]
    item: ClassVar[str] = "item"  # what one is: "document"
    name: str  # as it was asked for: "sts:pairs.csv"
    items: tuple[str, ...]  # names, for messages and for pairing
    fingerprint: str  # of the content of all items and of the settings

    @abstractmethod
    def ask(self, loaded: LoadedModel, *, batch_tokens: int = BATCH_TOKENS) -> Answers:
        """Run the model on every item. The same for any `batch_tokens`, up to rounding."""


def evaluate(loaded: LoadedModel, task: Task, *, batch_tokens: int = BATCH_TOKENS, seed: int = 0) -> TaskResult:
    """The figures of a model on a task, with intervals over items.

    Parameters
    ----------
    loaded
        Its `model` is what runs, as it is: gated, pruned or whole. It may be a base model where the task needs no more,
        or where its checkpoint holds the vocabulary head.
    batch_tokens
        Tokens of a batch, padding included; memory goes by it, the figures do not.
    seed
        Of the bootstrap.

    Raises
    ------
    UnsupportedModel
        The model lacks what the task asks for, such as a vocabulary head, or is in train mode.
    CorpusError
        The items do not fit the model.
    """
    if loaded.model.training:
        raise UnsupportedModel(
            f"{loaded.name!r} is in train mode, where dropout would change its answers; call model.eval()."
        )
    if batch_tokens < 1:
        raise UnsupportedModel(f"batch_tokens must be at least 1; got {batch_tokens}.")
    with torch.inference_mode():
        answers = task.ask(loaded, batch_tokens=batch_tokens)
    return TaskResult(
        task.name,
        task.metrics,
        answers.columns,
        task.items,
        task.fingerprint,
        answers.facts,
        answers.notes,
        seed,
        task.item,
    )
