"""Prune a model and say honestly what it cost: rank, plan, surgery, and the same questions to all it is held against.

Beside the pruned model always stand the original, random heads in the same number (drawn per layer as the plan has
them, and freely), and the model without any head: a task that does not suffer there says nothing of the plan.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from transformers import PreTrainedModel

from headlens.arch import attention_sites
from headlens.arms import (
    ORIGINAL,
    Arm,
    copying_of,
    differences_between,
    differences_told,
    measured_before_and_after,
    speeds_beside,
)
from headlens.calibration import ObjectiveName, calibrate, judged, objective_for
from headlens.corpora import Corpus
from headlens.errors import PlanError
from headlens.evaluation import (
    Difference,
    Task,
    difference_to_mean,
    evaluate,
)
from headlens.importance.inputs import TextBatch
from headlens.importance.methods import Setting, check_methods, ranked
from headlens.importance.objectives import Objective
from headlens.importance.result import Floats, Importance
from headlens.measure import parameters, sizes_before_and_after
from headlens.models import LoadedModel, network_of
from headlens.numbers import amount
from headlens.plan import Head, HeadPlan
from headlens.plans import Unit, drawn_like, lowest
from headlens.provenance import circumstances, corpus_facts, source_facts
from headlens.surgery import Means, apply_plan, expand_to_multi_head, masked_twin, mean_contexts, present_plan, refit
from headlens.surgery.checkpoint import save_pruned

SEARCHED = 30_000_000  # parameters of layers up to which heads are searched by default: it takes some minutes
RANDOM_DRAWS = 5

Fill = Literal["mean", "zero"]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Pruned:
    """A pruned model, how it came about, and what it was held against."""

    original: LoadedModel
    model: PreTrainedModel
    plan: HeadPlan
    importance: Importance | None  # None where the heads were named
    objective: str
    arms: tuple[Arm, ...]
    facts: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        kept, total = self.plan.n_kept, self.plan.layers * self.plan.heads
        measure, (arm, *_) = self.objective.replace("_", " "), self.arms
        return (
            f"<Pruned {self.original.name}: {arm.name}, {kept} of {total} heads kept, {measure} {arm.distortion:.4f}, "
            f"held against {amount(len(self.arms) - 1, 'other')}>"
        )

    @property
    def loaded(self) -> LoadedModel:
        """The pruned model as `load_whole` would give it, under the name of the original."""
        return replace(self.original, model=self.model, check=None)

    def arm(self, name: str) -> Arm:
        """The first arm of that name."""
        return next(arm for arm in self.arms if arm.name == name)

    def random(self, name: str = "random") -> tuple[Arm, ...]:
        """All draws of "random" or "random, same layers"."""
        return tuple(arm for arm in self.arms if arm.name == name)

    def differences(self) -> tuple[Difference, ...]:
        """Of every task, the model that is kept less the original, paired over items."""
        return differences_between(self.arms[0], self.arm(ORIGINAL))

    def differences_to_random(self, name: str = "random") -> tuple[Difference, ...]:
        """Of every task, the model that is kept less the mean over draws of `name`: whether the choice paid.

        Paired over items; see `evaluation.difference_to_mean`.
        """
        draws = [arm.results for arm in self.random(name)]
        drawn = zip(self.arms[0].results, *draws, strict=True)
        return tuple(difference_to_mean(own, others) for own, *others in drawn)

    def save(self, folder: str | os.PathLike[str], *, self_contained: bool = False, overwrite: bool = False) -> Path:
        """The checkpoint, with plan, manifest, model card and tokenizer; see `surgery.checkpoint.save_pruned`."""
        return save_pruned(
            self.model,
            folder,
            tokenizer=self.original.tokenizer,
            manifest=self.facts,
            self_contained=self_contained,
            overwrite=overwrite,
        )


@dataclass(frozen=True)
class Wish:
    """How many heads go, and which may not: the arguments of `plans.lowest`."""

    keep: float | int | None = None
    remove: float | int | None = None
    unit: Unit | None = None
    per_layer: bool = False
    floor: int = 0
    protected: frozenset[Head] = frozenset()

    def plan(self, importance: Floats, base: HeadPlan) -> HeadPlan:
        return lowest(
            importance,
            base,
            keep=self.keep,
            remove=self.remove,
            unit=self.unit,
            per_layer=self.per_layer,
            floor=self.floor,
            protected=self.protected,
        )

    def count(self, base: HeadPlan) -> int:
        """How many heads go, whatever their ranking. PlanError for a share to keep that comes to no head."""
        left = self.plan(np.zeros((base.layers, base.heads)), base).n_kept
        if isinstance(self.keep, float) and self.keep > 0 and not left:
            total = base.layers * base.heads
            raise PlanError(
                f"A share of {self.keep:g} comes to none of {total} heads; keep more, or remove all of them."
            )
        return base.n_kept - left


def prune(
    loaded: LoadedModel,
    corpus: Corpus,
    wish: Wish | HeadPlan,
    *,
    method: str | None = None,
    every: int | None = None,
    objective: ObjectiveName | None = None,
    fill: Fill = "mean",
    repair: bool = False,
    masked: bool = False,
    expand: bool = False,
    tasks: Sequence[Task] = (),
    draws: int = RANDOM_DRAWS,
    speed: bool = False,
    texts: int | None = None,
    max_length: int | None = None,
    seed: int = 0,
    progress: Progress = lambda _what, _done, _of: None,
) -> Pruned:
    """Take heads out of a model, and measure what that did.

    Parameters
    ----------
    loaded
        What `load_whole` gave: with its head, which tasks and the objective of language models need.
    corpus
        Calibration text: some of it ranks the heads, other text of it is held out for the distortion.
    wish
        How many heads go; or the plan itself, and nothing is ranked.
    method
        One of `importance.methods.METHODS`; None is `usual_method`.
    every
        Of iterative methods ("greedy"): how many heads, or groups, go before the next scoring; None is 1.
    objective
        What heads are judged by: "cosine", "kl", "hidden" or "loss"; None is "kl" for language models, else "cosine".
    fill
        "mean": removed heads go on giving their mean output, from the bias of W_O; "zero": nothing.
    repair
        Refit W_O of the heads that stay, by least squares on calibration text. It brings the model nearer to the
        original, and can lower the score of a task: both are reported.
    masked
        Zero the heads instead of taking them out: a model of the old size and speed, and never called pruned.
    expand
        First give every head keys and values of its own (grouped models), so that single heads can go; what the model
        is held against stays as it was.
    tasks
        What the models are asked, beside the distortion. Decoders that have the room are asked COPYING, too, unless a
        task of that kind is among these.
    draws
        Random plans of each kind that the pruned model is held against.
    speed
        Time the model beside the original, in turns, at the workloads of `measure.workloads_of` that it has room for.
    texts, max_length, seed
        Of the calibration.

    Raises
    ------
    PlanError, CorpusError, UnsupportedModel
        Each with a sentence that says what to do.
    """
    if repair and masked:
        raise PlanError("A masked model keeps its weights, so there is nothing to repair; leave one of the two out.")
    if fill not in get_args(Fill):
        raise PlanError(f"Removed heads go on giving {' or '.join(get_args(Fill))}, got fill {fill!r}.")
    original = loaded
    if expand:
        loaded = replace(loaded, model=expand_to_multi_head(loaded.model), check=None)
    network = network_of(loaded.model)
    base = present_plan(network)
    if isinstance(wish, Wish):
        ranked_by = method or usual_method(network, every)
        check_methods([ranked_by], every)
        gone = wish.count(base)
    else:
        ranked_by = "by hand"
        _check_plan(wish, base, every)
        gone = base.n_kept - wish.n_kept
    if gone < 1:
        raise PlanError(_nothing_to_do(base, by_number=isinstance(wish, Wish)))
    calibration = calibrate(loaded, corpus, texts=texts, max_length=max_length, seed=seed)
    means = mean_contexts(network, calibration.fitted) if fill == "mean" else None
    held_out = objective_for(loaded, calibration.held_out, objective, seed=seed)
    progress("measuring: original", 0, 1)  # before a search that takes minutes: not every model can be asked everything
    answers = [evaluate(original, task) for task in tasks]
    if copying := copying_of(original, tasks):
        tasks, answers = [*tasks, copying[0]], [*answers, copying[1]]
    importance, plan = None, wish
    if isinstance(wish, Wish):
        chosen = objective_for(loaded, calibration.chosen, objective, seed=seed)
        unit = wish.unit or ("group" if base.is_grouped else "head")
        importance = rank(
            network, chosen, ranked_by, unit=unit, means=means, remove=gone, every=every, seed=seed, progress=progress
        )
        plan = wish.plan(importance.values, base)
    assert isinstance(plan, HeadPlan)
    arms = _Arms(
        loaded,
        held_out,
        tuple(tasks),
        means,
        calibration.fitted if repair else None,
        masked,
        progress,
        of=2 + repair + (2 * draws + 1),
        original=Arm("original", base, judged(network, held_out), tuple(answers)),
    )
    model = arms.compare(plan, base, draws, seed)
    if speed:
        progress("measuring: speed", 0, 1)
    facts = {
        **circumstances(loaded.name, corpus, seed, caller="headlens.pruning.prune"),
        "source": source_facts(loaded),
        "data": {**corpus_facts(corpus, limit=None), **calibration.facts},
        "method": {
            "ranked_by": ranked_by,
            "objective": arms.objective.name,
            "fill": fill,
            "repair": repair,
            "expand": expand,
            **(dict(importance.facts) if importance is not None else {}),
        },
        "measured": {
            **measured_before_and_after(arms.original, arms.found[0], arms.objective.name),
            **sizes_before_and_after(original.model, model),
        },
        "differences": differences_told(arms.found),
        "speed": speeds_beside(model, original) if speed else [],
        "arms": [arm.to_dict() for arm in arms.found],
    }
    return Pruned(original, model, plan, importance, arms.objective.name, tuple(arms.found), facts)


def usual_method(network: PreTrainedModel, every: int | None = None) -> str:
    """ "greedy" where the search takes minutes, else one look at every head."""
    if every is not None:
        return "greedy"
    sizes = parameters(network)
    is_small = sizes.without_embeddings <= SEARCHED
    return "greedy" if is_small and not any(site.is_shared for site in attention_sites(network)) else "loo_mean"


def rank(
    network: PreTrainedModel,
    objective: Objective,
    method: str,
    *,
    unit: Unit = "head",
    means: Means | None = None,
    remove: int | None = None,
    every: int | None = None,
    seed: int = 0,
    progress: Progress = lambda _what, _done, _of: None,
) -> Importance:
    """How much every head matters, by a method of METHODS. Raises PlanError for another name."""
    check_methods([method], every)
    together: Literal["head", "group"] = "group" if unit == "group" else "head"
    setting = Setting(
        network,
        objective,
        together,
        means,
        remove=remove,
        every=every,
        seed=seed,
        say=lambda what: progress(what, 0, 1),
    )
    return ranked(method, setting)


def _nothing_to_do(base: HeadPlan, *, by_number: bool) -> str:
    if not base.n_kept:
        return "The model has no heads left to take out."
    if by_number:
        return f"The model has {base.n_kept} heads and none is to go; ask for fewer to be kept."
    return f"All heads that are to go are gone already: the model has {base.n_kept} of {base.layers * base.heads}."


def _check_plan(plan: HeadPlan, base: HeadPlan, every: int | None) -> None:
    sizes = [(one.layers, one.heads, one.kv_heads) for one in (plan, base)]
    if sizes[0] != sizes[1]:
        told = [f"{layers} x {heads} heads ({kv_heads} of keys and values)" for layers, heads, kv_heads in sizes]
        raise PlanError(f"The plan is for {told[0]}, and the model has {told[1]}; take one that was made for it.")
    if every is not None:
        raise PlanError("Where the plan is given no head is scored, so none is scored again; leave `every` out.")


# ---------------------------------------------------------------------------------------------------- what is compared


@dataclass(eq=False)
class _Arms:
    """The models that are compared, one after the other: only one is in memory beside the original."""

    loaded: LoadedModel
    objective: Objective
    tasks: tuple[Task, ...]
    means: Means | None
    fitted: Sequence[TextBatch] | None  # what a repair is fitted on; None: no repair
    masked: bool
    progress: Progress
    of: int
    original: Arm
    found: list[Arm] = field(default_factory=list)

    def compare(self, plan: HeadPlan, base: HeadPlan, draws: int, seed: int) -> PreTrainedModel:
        """Ask all of them; returns the model that is kept."""
        original = self.loaded.model
        if self.masked:
            model = kept = masked_twin(original, plan, fill=self.means)
            self._ask("masked", kept, plan)
        else:
            model = kept = apply_plan(original, plan, fill=self.means)
            if self.fitted is not None:
                self.progress("fitting what is left", len(self.found), self.of)
                kept = refit(model, original, self.fitted)
                self._ask("repaired", kept, plan)
            self._ask("pruned", model, plan)
        self.found.append(self.original)
        for draw in range(draws):
            rng = np.random.default_rng([seed, draw])
            for name, other in (
                ("random, same layers", drawn_like(plan, base, rng)),
                ("random", drawn_like(plan, base, rng, same_layers=False)),
            ):
                same = next((arm for arm in self.found if arm.draw is not None and arm.plan == other), None)
                if same is not None:  # where few plans are possible, several draws are one
                    self.found.append(replace(same, name=name, draw=draw))
                    continue
                self._ask(name, apply_plan(original, other, fill=self.means), other, draw)
        nothing = base.without(base)
        self._ask("no heads", apply_plan(original, nothing, fill=self.means), nothing)
        return kept

    def _ask(self, name: str, model: PreTrainedModel, plan: HeadPlan, draw: int | None = None) -> None:
        self.progress(f"measuring: {name}", len(self.found), self.of)
        results = tuple(evaluate(replace(self.loaded, model=model), task) for task in self.tasks)
        self.found.append(Arm(name, plan, judged(network_of(model), self.objective), results, draw))
