"""What surgery is held against: models that were asked the same, and what they said."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from transformers import PreTrainedModel

from headlens.arch import is_causal_model
from headlens.encode import max_length_of
from headlens.errors import CorpusError, UnsupportedModel
from headlens.evaluation import Difference, Repeat, Task, TaskResult, evaluate, paired_difference, read_task
from headlens.measure import measure_speed, workloads_of
from headlens.models import LoadedModel, network_of
from headlens.plan import HeadPlan
from headlens.scores import head_name

ORIGINAL = "original"
COPYING = "repeat:8"  # asked of every decoder: perplexity on text hardly shows that copying was lost


@dataclass(frozen=True, eq=False)
class Arm:
    """One model among those that are compared: what was asked of it, and what it said."""

    name: str  # "original", "pruned", "repaired", "random, same layers", "random", "no heads"
    plan: HeadPlan
    distortion: float  # on held-out text
    results: tuple[TaskResult, ...] = ()  # one a task
    draw: int | None = None  # of random ones

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "name": self.name,
            "draw": self.draw,
            "heads": self.plan.n_kept,
            "kv_heads": [len(groups) for groups in self.plan.groups],
            "removed": [head_name(*head) for head in self.plan.removed],
            "distortion": self.distortion,
            "tasks": [result.to_dict() for result in self.results],
        }


def differences_between(arm: Arm, other: Arm) -> tuple[Difference, ...]:
    """Of every task, one less another, paired over items."""
    return tuple(paired_difference(*pair) for pair in zip(arm.results, other.results, strict=True))


def differences_told(arms: Sequence[Arm]) -> dict[str, list[dict[str, Any]]]:
    """Of the model that is kept, the first one, less the original: plain values for a manifest; None is no interval."""
    original = next(arm for arm in arms if arm.name == ORIGINAL)
    told = [asdict(difference) for difference in differences_between(arms[0], original)]
    return {ORIGINAL: [{name: _or_none(value) for name, value in one.items()} for one in told]}


def _or_none(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def measured_before_and_after(before: Arm, after: Arm, objective: str) -> dict[str, dict[str, float]]:
    """By what was measured, the figures "before" and "after", as a manifest tells them."""
    found = {f"{objective} (held out)": {"before": before.distortion, "after": after.distortion}}
    for one, other in zip(before.results, after.results, strict=True):
        found[f"{one.task}: {one.metric}"] = {"before": one.value, "after": other.value}
    return found


def speeds_beside(model: PreTrainedModel, loaded: LoadedModel) -> list[dict[str, Any]]:
    """Of the workloads that have room in the model."""
    room = max_length_of(network_of(loaded.model).config, loaded.require_tokenizer())
    fitting = [one for one in workloads_of(loaded.model) if one.tokens + one.new <= room]
    return [one.to_dict() for one in measure_speed(model, loaded.model, workloads=fitting)]


def copying_of(original: LoadedModel, tasks: Sequence[Task]) -> tuple[Task, TaskResult] | None:
    """The task COPYING and what the original says, of decoders with a vocabulary head; None where it was asked already,
    or cannot be."""
    if any(isinstance(task, Repeat) for task in tasks) or not is_causal_model(network_of(original.model)):
        return None
    if original.model.get_output_embeddings() is None:
        return None
    task = read_task(COPYING)
    try:
        return task, evaluate(original, task)
    except (CorpusError, UnsupportedModel):  # too short for two copies, or no tokens to draw
        return None
