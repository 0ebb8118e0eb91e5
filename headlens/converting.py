"""Convert a model to fewer key/value heads and say honestly what it cost: calibrate, merge, choose, measure.

Beside the converted model always stand the original, plain mean pooling to as many key/value heads, and the model
without any head: a conversion that is worse than no attention at all is none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from headlens.arms import (
    ORIGINAL,
    Arm,
    copying_of,
    differences_between,
    differences_told,
    measured_before_and_after,
    speeds_beside,
)
from headlens.calibration import Calibration, ObjectiveName, calibrate_to_fit, judged, objective_for, tokens_of
from headlens.conversion.allocate import allocated, predicted
from headlens.conversion.carriers import converted, in_stock_class
from headlens.conversion.kv_heads import KVHeads
from headlens.conversion.recipes import MEAN_POOLING, Recipe, usual_recipe
from headlens.conversion.weights import check_readable
from headlens.corpora import Corpus
from headlens.errors import CorpusError, PlanError
from headlens.evaluation import Difference, Task, evaluate, paired_difference
from headlens.importance.objectives import Objective
from headlens.measure import sizes_before_and_after
from headlens.models import LoadedModel, network_of
from headlens.plan import HeadPlan
from headlens.provenance import circumstances, corpus_facts, source_facts
from headlens.recipe_trials import Choosing, Try
from headlens.surgery import apply_plan, mean_contexts, present_plan
from headlens.surgery.checkpoint import save_pruned

TOKENS = 100_000  # that are fitted on
BEST = "best"
CONVERTED, AS_MERGED, POOLED, NO_HEADS = "converted", "converted, not refitted", "mean pooling", "no heads"

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Converted:
    """A converted model, how it came about, and what it was held against."""

    original: LoadedModel
    model: PreTrainedModel
    base: HeadPlan  # of the original
    plan: HeadPlan
    recipe: Recipe | None  # None where key/value heads were only copied
    objective: str
    arms: tuple[Arm, ...]  # the converted one first
    tried: tuple[Try, ...] = ()  # on text that nothing was fitted on; the one that was taken first
    warnings: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        counts = "/".join(str(len(groups)) for groups in self.plan.groups)
        measure, arm = self.objective.replace("_", " "), self.arms[0]
        how = "copies" if self.recipe is None else str(self.recipe)
        return f"<Converted {self.original.name}: {counts} key/value heads, {how}, {measure} {arm.distortion:.4f}>"

    @property
    def loaded(self) -> LoadedModel:
        """The converted model as `load_whole` would give it, under the name of the original."""
        return replace(self.original, model=self.model, check=None)

    def arm(self, name: str) -> Arm:
        """The arm of that name."""
        return next(arm for arm in self.arms if arm.name == name)

    def differences(self, other: str = ORIGINAL) -> tuple[Difference, ...]:
        """Of every task, the converted model less another one, paired over items."""
        return differences_between(self.arms[0], self.arm(other))

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


def convert(
    loaded: LoadedModel,
    corpus: Corpus,
    wish: KVHeads | int,
    *,
    method: str | Recipe = BEST,
    repair: bool | None = None,
    tokens: int = TOKENS,
    objective: ObjectiveName | None = None,
    tasks: Sequence[Task] = (),
    speed: bool = False,
    texts: int | None = None,
    max_length: int | None = None,
    seed: int = 0,
    progress: Progress = lambda _what, _done, _of: None,
) -> Converted:
    """Give a model fewer key/value heads (or more), and measure what that did.

    Parameters
    ----------
    loaded
        What `load_whole` gave: with its head, which tasks and the objective of language models need.
    corpus
        Calibration text: most of it is fitted on, some of it chooses between methods, some is held out and judges.
    wish
        How many key/value heads, of each layer or all together; a number is that many in every layer.
    method
        "best" tries shared factors and aligned means, repairs the most promising and keeps what moves the output
        least; or one of `conversion.merging.METHODS`, or a whole Recipe.
    repair
        Refit W_O on calibration text, layer by layer. None: as the recipe says, which is only "best" of those by name.
    tokens
        That are fitted on, special ones included; as many as there are, if there are fewer.
    objective
        How far the output moved: "cosine", "kl" or "hidden"; None is "kl" for language models, else "cosine".
    tasks
        What the models are asked, beside the distortion. Decoders that have the room are asked `arms.COPYING`, too,
        unless one of that kind is among them.
    speed
        Time the model beside the original, in turns.
    texts, max_length, seed
        Of the calibration: `texts` choose, and as many are held out.

    Raises
    ------
    PlanError, CorpusError, UnsupportedModel
        Each with a sentence that says what to do, before any long work.
    """
    wish = KVHeads(wish) if isinstance(wish, int) else wish
    network = network_of(loaded.model)
    check_readable(network)
    base = present_plan(network)
    possible = wish.counts(base)
    recipe = _named(method, repair)
    if objective == "loss":
        raise PlanError(
            "A conversion is judged by how far the output moves; choose the objective cosine, kl or hidden."
        )
    grows = all(max(own) >= len(groups) for own, groups in zip(possible, base.groups, strict=True)) and not wish.budget
    calibration = calibrate_to_fit(loaded, corpus, tokens, texts=texts, max_length=max_length, seed=seed)
    if not grows:
        _check_rank(calibration, network, recipe, tokens)
    chosen = objective_for(loaded, calibration.chosen, objective, seed=seed)
    held_out = objective_for(loaded, calibration.held_out, objective, seed=seed)
    choosing = Choosing(loaded, calibration.fitted, chosen, wish.groups, seed, progress)
    progress("measuring: original", 0, 1)  # before minutes of work: not every model can be asked everything
    answers = [(task, evaluate(loaded, task)) for task in tasks]
    if (copying := copying_of(loaded, tasks)) is not None:
        answers.append(copying)
    original = Arm(ORIGINAL, base, judged(network, held_out), tuple(result for _, result in answers))
    asking = _Asking(loaded, held_out, tuple(task for task, _ in answers), progress)
    counts, spread = _spread(choosing, wish, base, possible, recipe)
    tried = [] if grows else choosing.tried(counts, recipe)
    if tried:
        used, model = tried[0].recipe, choosing.model_of(tried[0])
        arms = [asking.arm(CONVERTED, model)]
        if used.repaired:
            arms.append(asking.arm(AS_MERGED, converted(loaded.model, tried[0].layers, stock=False)))
        arms.append(original)
        if used != MEAN_POOLING or wish.groups is not None:
            arms.append(asking.arm(POOLED, choosing.pooled(counts)))
        means = mean_contexts(network, calibration.fitted)
        arms.append(asking.arm(NO_HEADS, apply_plan(loaded.model, base.without(base), fill=means)))
    else:
        used, model = None, choosing.pooled(counts)  # more heads than there are: copies
        arms = [asking.arm(CONVERTED, model), original]
    model = in_stock_class(model)
    facts = {
        **circumstances(loaded.name, corpus, seed, caller="headlens.converting.convert"),
        "source": source_facts(loaded),
        "data": {**corpus_facts(corpus, limit=None), **calibration.facts},
        "method": {
            **({"merged_by": "copies"} if used is None else {"merged_by": used.method, **used.to_dict()}),
            "objective": held_out.name,
            "kv_heads": list(counts),
            **spread,
            "tried": [one.to_dict() for one in tried],
        },
        "measured": {
            **measured_before_and_after(original, arms[0], held_out.name),
            **sizes_before_and_after(loaded.model, model),
        },
        "differences": differences_told(arms),
        "speed": speeds_beside(model, loaded) if speed else [],
        "arms": [arm.to_dict() for arm in arms],
    }
    warnings = tuple(_warnings(arms, calibration, network, used))
    return Converted(loaded, model, base, arms[0].plan, used, held_out.name, tuple(arms), tuple(tried), warnings, facts)


# ------------------------------------------------------------------------------------------------ before the long work


def _named(method: str | Recipe, repair: bool | None) -> Recipe | None:
    """The recipe that is asked for; None is a choice among the sensible ones."""
    if method == BEST:
        if repair is not None:
            raise PlanError(
                "The best conversion is found with and without a repair; name a method to have one or none."
            )
        return None
    recipe = method if isinstance(method, Recipe) else usual_recipe(method)
    return recipe if repair is None else replace(recipe, repaired=repair)


def _spread(
    choosing: Choosing,
    wish: KVHeads,
    base: HeadPlan,
    possible: Sequence[Sequence[int]],
    recipe: Recipe | None,
) -> tuple[tuple[int, ...], dict[str, Any]]:
    """How many key/value heads each layer gets, and what is to be told of a budget."""
    if wish.budget is None:
        return tuple(own[0] for own in possible), {}
    damages = choosing.damages(possible, recipe)
    counts = allocated(damages, wish.heads_of_budget(base))
    told = {
        "kv_heads": sum(counts),
        "sum_of_layers": predicted(damages, counts),
        "whole": choosing.damage_of(counts, recipe),
        "damages": [{str(count): loss for count, loss in own.items()} for own in damages],
    }
    return counts, {"budget": told}


def _check_rank(calibration: Calibration, network: PreTrainedModel, recipe: Recipe | None, asked: int) -> None:
    """CorpusError where there are fewer tokens than moments have directions: all else would be fitted to noise."""
    found, needed = tokens_of(calibration.fitted), int(network.config.hidden_size) + 1
    if (recipe is None or recipe.reads_text or recipe.repaired) and found < needed:
        way = "ask for more (--tokens)" if asked < needed else "give more text"
        raise CorpusError(
            f"There are {found:,} tokens to fit on, and moments of {needed - 1} dimensions need {needed:,} at least "
            f"({TOKENS:,} are usual); {way}, or take the method mean, which reads none."
        )


# ---------------------------------------------------------------------------------------------------- what is compared


@dataclass(frozen=True, eq=False)
class _Asking:
    loaded: LoadedModel
    objective: Objective
    tasks: tuple[Task, ...]
    progress: Progress

    def arm(self, name: str, model: PreTrainedModel) -> Arm:
        self.progress(f"measuring: {name}", 0, 1)
        results = tuple(evaluate(replace(self.loaded, model=model), task) for task in self.tasks)
        network = network_of(model)
        return Arm(name, present_plan(network), judged(network, self.objective), results)


# ----------------------------------------------------------------------------------------------------------- warnings


def _warnings(
    arms: Sequence[Arm], calibration: Calibration, network: PreTrainedModel, recipe: Recipe | None
) -> list[str]:
    found = []
    named = {arm.name: arm for arm in arms}
    kept, nothing = arms[0], named.get(NO_HEADS)
    if nothing is not None:
        if kept.distortion >= nothing.distortion:
            found.append(
                "The converted model is further from the original than the model without any head: it is no use as it "
                "is; keep more key/value heads, convert fewer layers, or heal it."
            )
        for one, floor in zip(kept.results, nothing.results, strict=True):
            if paired_difference(one, floor).is_worse:
                found.append(f"On {one.task} the converted model does worse than the model without any head.")
    tokens, wanted = tokens_of(calibration.fitted), 20 * int(network.config.hidden_size)
    if recipe is not None and (recipe.reads_text or recipe.repaired) and tokens < wanted:
        found.append(
            f"Only {tokens:,} tokens were fitted on, and {wanted:,} or more are advisable for a width of "
            f"{network.config.hidden_size} ({TOKENS:,} are usual): more calibration text may do better."
        )
    return found
