"""Heal a checkpoint that came out of surgery after its original, beside others that are healed on the same budget.

Beside a pruned model stand random plans of its size; beside a converted one, plain mean pooling to as many key/value
heads: what the surgery was worth once both are trained.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from headlens.arms import Arm, differences_between, measured_before_and_after
from headlens.calibration import calibrate
from headlens.conversion.carriers import converted
from headlens.conversion.recipes import MEAN_POOLING, converted_layers
from headlens.conversion.weights import read_layers
from headlens.corpora import Corpus
from headlens.errors import HealingError
from headlens.evaluation import Difference, Task, TaskResult, evaluate
from headlens.healing import Healed, heal, heal_alike, heal_with_random
from headlens.measure import sizes_before_and_after
from headlens.models import LoadedModel, network_of
from headlens.plan import HeadPlan, plan_of
from headlens.provenance import circumstances, corpus_facts, source_facts
from headlens.surgery import Means, apply_plan, mean_contexts, present_plan, refit
from headlens.surgery.checkpoint import plan_in, save_pruned

RANDOM_DRAWS = 3
ORIGINAL, PRUNED, CONVERTED, HEALED = "original", "pruned", "converted", "healed"
RANDOM, RANDOM_HEALED = "random", "random, healed"
POOLED, POOLED_HEALED = "mean pooling", "mean pooling, healed"

Progress = Callable[[str, int, int], None]

_OF_THE_SURGERY = ("command", "created", "measured", "speed", "arms")


@dataclass(frozen=True, eq=False)
class HealedPruned:
    """A healed model, the model that it was healed from, the original, and what others came to on the same budget."""

    original: LoadedModel
    pruned: LoadedModel
    healed: Healed
    arms: tuple[Arm, ...]  # healed, as it was, original; then the others, before and after their healing
    facts: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def arm(self, name: str) -> Arm:
        """The first arm of that name."""
        return next(arm for arm in self.arms if arm.name == name)

    def random(self, name: str = RANDOM_HEALED) -> tuple[Arm, ...]:
        """All draws, as they were healed or as they were before."""
        return tuple(arm for arm in self.arms if arm.name == name)

    def differences(self, other: str = ORIGINAL) -> tuple[Difference, ...]:
        """Of every task, the healed model less another one, paired over items."""
        return differences_between(self.arms[0], self.arm(other))

    def save(self, folder: str | os.PathLike[str], *, self_contained: bool = False, overwrite: bool = False) -> Path:
        """The checkpoint, as `save_pruned` writes it; its manifest tells the pruning and the healing."""
        return save_pruned(
            self.healed.model,
            folder,
            tokenizer=self.original.tokenizer,
            manifest=self.facts,
            self_contained=self_contained,
            overwrite=overwrite,
        )


def heal_pruned(
    pruned: LoadedModel,
    original: LoadedModel,
    corpus: Corpus,
    *,
    manifest: Mapping[str, Any],
    tasks: Sequence[Task] = (),
    draws: int = RANDOM_DRAWS,
    steps: int = 300,
    batch: int = 32,
    lr: float = 4e-4,
    parts: Mapping[str, float] | None = None,
    max_length: int | None = None,
    seed: int = 0,
    progressive: float = 0.0,
    work: str | os.PathLike[str] | None = None,
    resume: bool = True,
    progress: Progress = lambda _what, _done, _of: None,
) -> HealedPruned:
    """Heal a pruned or converted model, and ask it, the original and its mirrors the same before and after.

    Parameters
    ----------
    pruned, original
        As `load_whole` gives them.
    corpus
        Text to train on; some of it is held out and judges.
    manifest
        Of the pruned checkpoint (`read_manifest`): random plans get the surgery that it tells, its fill and repair.
    draws
        Random plans with as many heads in every layer; each is a training of its own. 0: none. Of a model that was
        converted and has lost no head, any number is one training more, of plain mean pooling.
    steps, batch, lr, parts, max_length, seed, progressive
        The recipe; see `heal`.
    work
        Folder for checkpoints of the trainings, from which an interrupted call goes on; None: nothing is written.

    Raises
    ------
    HealingError, PlanError, CorpusError, UnsupportedModel, OutputError
        As from `heal`; HealingError also for a model that was neither pruned nor converted.
    """
    plan = plan_of(pruned.model.config)
    if plan is None:
        raise HealingError(
            f"{pruned.name} has lost no head and shares no keys and values anew, so there is nothing to heal; name a "
            f"checkpoint that was pruned or converted."
        )
    is_converted = plan.merges or not plan.removed
    tokenizer, folder = original.require_tokenizer(), None if work is None else Path(work)
    asking = _Asking(original, tuple(tasks), progress)
    healed = heal(
        pruned.model,
        original.model,
        corpus,
        tokenizer,
        steps=steps,
        batch=batch,
        lr=lr,
        parts=parts,
        max_length=max_length,
        seed=seed,
        progressive=progressive,
        out=None if folder is None else folder / HEALED,
        resume=resume,
        progress=progress,
    )
    arms = list(asking.arms_of(pruned.model, healed, CONVERTED if is_converted else PRUNED))
    if is_converted:
        if draws:
            base = present_plan(network_of(original.model))
            gone, start = set(base) - set(plan), original.model
            if gone:  # it was pruned, too: the same heads go first
                surgery = _Surgery.as_told(manifest, original, corpus, max_length, seed, is_asked=True)
                start = surgery.model(base.without(gone))
            pooled = mean_pooled_like(plan, start)
            before = asking.results(POOLED, pooled)
            one = heal_alike(
                healed, original.model, corpus, tokenizer, pooled, POOLED, out=folder, resume=resume, progress=progress
            )
            arms.append(Arm(POOLED, plan_in(pooled.config), one.before, before))
            arms.append(Arm(POOLED_HEALED, plan_in(pooled.config), one.after, asking.results(POOLED_HEALED, one.model)))
        facts = _facts(pruned, original, corpus, manifest, healed, arms)
        notes = tuple(note for note in (other_source(manifest, original),) if note)
        return HealedPruned(original, pruned, healed, tuple(arms), facts, notes)
    surgery = _Surgery.as_told(manifest, original, corpus, max_length, seed, is_asked=draws > 0)
    students: list[tuple[TaskResult, ...]] = []

    def make(plan: HeadPlan) -> PreTrainedModel:
        model = surgery.model(plan)
        students.append(asking.results(RANDOM, model))
        return model

    randoms = heal_with_random(
        healed, original.model, corpus, tokenizer, make=make, draws=draws, out=folder, resume=resume, progress=progress
    )
    for one in randoms:
        assert one.plan is not None
        arms.append(Arm(RANDOM, one.plan, one.before, students[-1], one.draw))
        arms.append(Arm(RANDOM_HEALED, one.plan, one.after, asking.results(RANDOM_HEALED, one.model), one.draw))
    notes = tuple(note for note in (surgery.note, other_source(manifest, original)) if note)
    facts = _facts(pruned, original, corpus, manifest, healed, arms)
    return HealedPruned(original, pruned, healed, tuple(arms), facts, notes)


def other_source(manifest: Mapping[str, Any], original: LoadedModel) -> str | None:
    """A sentence where the manifest of a pruned checkpoint tells of other weights than the original has, else None."""
    source = manifest.get("source")
    told = source.get("weights_sha256") if isinstance(source, Mapping) else None
    found = original.provenance.get("weights_sha256")
    if not told or not found or told == found:
        return None
    return (
        f"The weight files of {original.name} have the hash {str(found)[:12]}, and the checkpoint came from one "
        f"with {str(told)[:12]}: it may be another model."
    )


def mean_pooled_like(plan: HeadPlan, original: PreTrainedModel) -> PreTrainedModel:
    """The original with as many key/value heads in every layer, each the mean of neighbours (Ainslie et al. 2023)."""
    counts = [len(groups) for groups in plan.groups]
    return converted(original, converted_layers(read_layers(original), counts, MEAN_POOLING, None))


# -------------------------------------------------------------------------------------------------------------- inside


@dataclass(frozen=True, eq=False)
class _Asking:
    original: LoadedModel
    tasks: tuple[Task, ...]
    progress: Progress

    def results(self, name: str, model: PreTrainedModel) -> tuple[TaskResult, ...]:
        loaded = replace(self.original, model=model)
        found = []
        for number, task in enumerate(self.tasks):
            self.progress(f"measuring: {name}", number, len(self.tasks))
            found.append(evaluate(loaded, task))
        return tuple(found)

    def arms_of(self, pruned: PreTrainedModel, healed: Healed, name: str) -> Iterator[Arm]:
        """Healed, pruned, original; the distortion is held against the original, so its own is 0."""
        assert healed.plan is not None
        base = present_plan(network_of(self.original.model))
        yield Arm(HEALED, healed.plan, healed.after, self.results(HEALED, healed.model))
        yield Arm(name, healed.plan, healed.before, self.results(name, pruned))
        yield Arm(ORIGINAL, base, 0.0, self.results(ORIGINAL, self.original.model))


@dataclass(frozen=True, eq=False)
class _Surgery:
    """What was done to the checkpoint, to be done to other plans."""

    original: LoadedModel
    means: Means | None  # None: removed heads give nothing
    fitted: Sequence[Any] | None  # batches that a repair is fitted on; None: no repair
    note: str | None = None

    @classmethod
    def as_told(
        cls,
        manifest: Mapping[str, Any],
        original: LoadedModel,
        corpus: Corpus,
        max_length: int | None,
        seed: int,
        *,
        is_asked: bool,
    ) -> _Surgery:
        if not is_asked:
            return cls(original, None, None)
        method = manifest.get("method")
        told = method if isinstance(method, Mapping) else {}
        note = None
        if told.get("fill") not in ("mean", "zero"):
            note = "The manifest does not tell what removed heads give; of the random plans it is their mean output."
        fitted = calibrate(original, corpus, max_length=max_length, seed=seed).fitted
        means = None if told.get("fill") == "zero" else mean_contexts(network_of(original.model), fitted)
        return cls(original, means, fitted if told.get("repair") is True else None, note)

    def model(self, plan: HeadPlan) -> PreTrainedModel:
        model = apply_plan(self.original.model, plan, fill=self.means)
        return model if self.fitted is None else refit(model, self.original.model, self.fitted)


def _facts(
    pruned: LoadedModel,
    original: LoadedModel,
    corpus: Corpus,
    manifest: Mapping[str, Any],
    healed: Healed,
    arms: Sequence[Arm],
) -> dict[str, Any]:
    kept, before, whole = arms[:3]
    method = manifest.get("method")
    return {
        **circumstances(original.name, corpus, healed.recipe.seed, caller="headlens.heal_pruned.heal_pruned"),
        "source": source_facts(original),
        "data": manifest.get("data"),
        "method": {**_as_mapping(method), "healed_steps": healed.recipe.steps},
        "measured": {
            **measured_before_and_after(whole, kept, healed.objective),
            **sizes_before_and_after(original.model, healed.model),
        },
        "surgery": {name: manifest[name] for name in _OF_THE_SURGERY if name in manifest},
        "healing": {
            **healed.to_dict(),
            "pruned": source_facts(pruned),
            "data": corpus_facts(corpus, limit=None),
            "measured": measured_before_and_after(before, kept, healed.objective),
            "arms": [arm.to_dict() for arm in arms],
        },
    }


def _as_mapping(method: Any) -> dict[str, Any]:
    """What a manifest says of its method, which may be a sentence."""
    if isinstance(method, Mapping):
        return dict(method)
    return {} if method is None else {"pruned_by": method}
