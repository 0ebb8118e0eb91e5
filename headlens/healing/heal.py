"""Heal a pruned model, and random ones of the same size on the same budget: what it is worth shows beside them."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import is_accelerate_available

from headlens.calibration import judged, objective_for
from headlens.documents import Document
from headlens.errors import HealingError, PlanError
from headlens.healing.fading import original_beside, share_at
from headlens.healing.fitness import check_bf16, check_pair
from headlens.healing.folder import fingerprint, open_folder
from headlens.healing.reading import Labels, Reading, length_for, read
from headlens.healing.recipe import Recipe
from headlens.healing.surroundings import random_states_kept, watching
from headlens.healing.what_is_trained import default_parts, losses_for, only_training, trained_names
from headlens.models import LoadedModel, network_of
from headlens.plan import HeadPlan, plan_of
from headlens.plans import drawn_like
from headlens.surgery import present_plan

Progress = Callable[[str, int, int], None]
Texts = Iterable[str | Document]


@dataclass(frozen=True, eq=False)
class Healed:
    """A healed model, in eval mode, and what it gave on held-out text before and after."""

    model: PreTrainedModel
    plan: HeadPlan | None  # None of a model that no head was taken out of
    recipe: Recipe
    objective: str  # the distortion that `before` and `after` are of: 0 is the original
    before: float
    after: float
    log: tuple[dict[str, float], ...]  # of every step: loss, its parts, learning_rate, grad_norm, step
    draw: int | None = None  # of random plans

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; of the log only the last step."""
        return {
            "heads": None if self.plan is None else self.plan.n_kept,
            "draw": self.draw,
            "recipe": self.recipe.to_dict(),
            "objective": self.objective,
            "before": self.before,
            "after": self.after,
            "last_step": dict(self.log[-1]),
        }


def heal(
    student: PreTrainedModel,
    teacher: PreTrainedModel,
    texts: Texts,
    tokenizer: PreTrainedTokenizerBase,
    *,
    steps: int = 300,
    batch: int = 32,
    lr: float = 4e-4,
    parts: Mapping[str, float] | None = None,
    labels: Labels | None = None,
    held_out: Texts | None = None,
    max_length: int | None = None,
    seed: int = 0,
    progressive: float = 0.0,
    train_embeddings: bool = False,
    bf16: bool = False,
    out: str | os.PathLike[str] | None = None,
    save_every: int = 50,
    resume: bool = True,
    progress: Progress = lambda _what, _done, _of: None,
) -> Healed:
    """A trained copy of a pruned model, brought nearer to the original by distillation; both are left as they are.

    The layers are trained, with AdamW (betas .9 and .98, no weight decay), the learning rate rising over the first
    tenth of the steps and falling to 0 along a cosine, gradients clipped to a norm of 1, and no dropout. Embeddings,
    pooler and task head stay as they are. The same call gives the same weights on the same processor, also when it was
    interrupted and goes on from its folder.

    Parameters
    ----------
    student
        What `apply_plan` or `refit` gave, in single or double precision; no head comes back.
    teacher
        The model before surgery; of the same class as the student where the loss asks for logits.
    texts
        A corpus or a list; language models read windows of them, see `calibrate`. Without `held_out`, some are not
        trained on: up to 256, of language models half, and with the same seed those that `calibrate` holds out, too.
    steps, batch, lr, parts, max_length, seed, progressive, train_embeddings, bf16, save_every
        See `Recipe`, and `headlens.healing.fading` of progressive. Of parts None is hidden and logits, each with weight
        1, for language models, else hidden and embedding; and the task where there are labels. Of max_length None is
        128 of a text and 256 of a window, or what the model takes.
    labels
        One a text, for the model's own head: whole numbers are classes, other numbers are to be met.
    held_out
        Texts to be judged on. They are not trained on, even where `texts` has them.
    out
        Folder for checkpoints; the last one stays. None: nothing is written.
    resume
        Go on with what is in the folder; where that is another request, it is refused.
    progress
        Called after every step with "healing", its number and how many there are.

    Raises
    ------
    HealingError
        A recipe or pair of models that cannot be healed, or a loss that is no number any more.
    CorpusError
        Too little text, or none.
    UnsupportedModel
        Weights in half precision, a part of the loss that the model has no head for, or a device without bfloat16.
    PlanError
        A masked twin: training would bring its heads back.
    OutputError
        The folder is another one's, or checkpoints cannot be written or read.
    """
    loaded = _as_loaded(teacher, tokenizer)
    recipe = Recipe(
        steps=steps,
        batch=batch,
        lr=lr,
        parts=default_parts(loaded, labels) if parts is None else dict(parts),
        max_length=length_for(loaded, max_length, by_text=labels is not None),
        seed=seed,
        progressive=progressive,
        train_embeddings=train_embeddings,
        bf16=bf16,
        save_every=save_every,
    )
    check_pair(student, teacher)
    if progressive:
        with original_beside(student, teacher):  # says so where nothing can fade, before anything is read
            pass
    reading = read(loaded, texts, held_out, labels, max_length=recipe.max_length, seed=seed)
    folder = None if out is None else Path(out)
    return _heal(student, loaded, reading, recipe, folder, resume, lambda done: progress("healing", done, steps))


def heal_with_random(
    healed: Healed,
    teacher: PreTrainedModel,
    texts: Texts,
    tokenizer: PreTrainedTokenizerBase,
    *,
    make: Callable[[HeadPlan], PreTrainedModel],
    draws: int = 5,
    same_layers: bool = True,
    labels: Labels | None = None,
    held_out: Texts | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = True,
    progress: Progress = lambda _what, _done, _of: None,
) -> Iterator[Healed]:
    """Random plans of as many heads as a healed model has lost, healed by its recipe on the same text, one by one.

    After training, random heads are often as good to lose as chosen ones (Prasanna et al. 2020; Budhraja et al. 2020):
    what a ranking is worth for compression shows beside these.

    Parameters
    ----------
    healed
        What `heal` gave for the plan that random ones are held against; texts, labels and held_out are those of that
        call.
    make
        Surgery as it was done for that plan, with its fill and repair:
        `lambda plan: apply_plan(teacher, plan, fill=means)`.
    same_layers
        As many heads from every layer as that plan takes; otherwise from anywhere.
    out
        A folder for the folders of all draws, random-0, random-1, ...
    """
    if healed.plan is None:
        raise PlanError("The healed model has lost no head, so there is nothing to draw at random in its place.")
    loaded, recipe = _as_loaded(teacher, tokenizer), healed.recipe
    check_pair(healed.model, teacher)
    reading = read(loaded, texts, held_out, labels, max_length=recipe.max_length, seed=recipe.seed)
    base = present_plan(teacher)
    for draw in range(draws):
        plan = drawn_like(healed.plan, base, np.random.default_rng([recipe.seed, draw]), same_layers=same_layers)
        folder = None if out is None else Path(out) / f"random-{draw}"
        tell = _told(progress, f"healing: random {draw + 1} of {draws}", recipe.steps)
        yield _heal(make(plan), loaded, reading, recipe, folder, resume, tell, draw)


def heal_alike(
    healed: Healed,
    teacher: PreTrainedModel,
    texts: Texts,
    tokenizer: PreTrainedTokenizerBase,
    student: PreTrainedModel,
    name: str,
    *,
    labels: Labels | None = None,
    held_out: Texts | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = True,
    progress: Progress = lambda _what, _done, _of: None,
) -> Healed:
    """Another student of the same teacher, healed by the recipe of one that was, on the same text: the same budget.

    `out` is a folder for the folder of this training, which has the student's name.
    """
    loaded, recipe = _as_loaded(teacher, tokenizer), healed.recipe
    check_pair(student, teacher)
    reading = read(loaded, texts, held_out, labels, max_length=recipe.max_length, seed=recipe.seed)
    folder = None if out is None else Path(out) / name.replace(" ", "-")
    return _heal(student, loaded, reading, recipe, folder, resume, _told(progress, f"healing: {name}", recipe.steps))


def _told(progress: Progress, what: str, steps: int) -> Callable[[int], None]:
    return lambda done: progress(what, done, steps)


def check_trainable() -> None:
    """HealingError where nothing can be trained, whatever it is: before models are loaded, not after."""
    if not is_accelerate_available():
        raise HealingError(
            "Healing trains with transformers' Trainer, which needs accelerate (the extra heal of headlens): pip "
            "install accelerate."
        )


# -------------------------------------------------------------------------------------------------------- one training


def _heal(
    student: PreTrainedModel,
    loaded: LoadedModel,
    reading: Reading,
    recipe: Recipe,
    folder: Path | None,
    resume: bool,
    progress: Callable[[int], None],
    draw: int | None = None,
) -> Healed:
    check_trainable()
    check_pair(student, loaded.model)
    check_bf16(recipe, student)
    with watching(loaded.model), random_states_kept(student.device):
        return _trained_copy(student, loaded, reading, recipe, folder, resume, progress, draw)


def _trained_copy(
    student: PreTrainedModel,
    loaded: LoadedModel,
    reading: Reading,
    recipe: Recipe,
    folder: Path | None,
    resume: bool,
    progress: Callable[[int], None],
    draw: int | None,
) -> Healed:
    from headlens.healing.trainer import train

    teacher, model = loaded.model, copy.deepcopy(student).eval()
    losses = losses_for(model, teacher, reading, recipe)
    objective = objective_for(loaded, reading.held_out)
    before = judged(network_of(model), objective)
    request = {} if folder is None else _request(student, teacher, reading, recipe)
    checkpoint = None if folder is None else open_folder(folder, request, resume=resume)
    with ExitStack() as stack:
        stack.enter_context(only_training(model, trained_names(model, recipe.train_embeddings)))
        begin = stack.enter_context(_fading(model, teacher, recipe))
        log = train(
            network_of(model),
            network_of(teacher),
            losses,
            reading.drawn(recipe.steps, recipe.batch, recipe.seed),
            recipe,
            folder=folder,
            checkpoint=checkpoint,
            progress=progress,
            begin=begin,
        )
    after = judged(network_of(model.to(student.device)), objective)
    if not math.isfinite(after):
        raise HealingError(
            f"The healed model gives no numbers any more: take a smaller learning rate than {recipe.lr:g}."
        )
    return Healed(model, plan_of(model.config), recipe, objective.name, before, after, log, draw)


@contextmanager
def _fading(student: PreTrainedModel, teacher: PreTrainedModel, recipe: Recipe) -> Iterator[Callable[[int], None]]:
    """What is to be told the number of every step."""
    if not recipe.progressive:
        yield lambda _step: None
        return
    with original_beside(student, teacher) as fading:

        def begin(step: int) -> None:
            fading.share = share_at(step, recipe.steps, recipe.progressive)

        yield begin


def _as_loaded(teacher: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
    return LoadedModel(teacher, tokenizer, type(teacher).__name__, "", {})


def _request(student: PreTrainedModel, teacher: PreTrainedModel, reading: Reading, recipe: Recipe) -> dict[str, Any]:
    return {
        **recipe.to_dict(),
        "texts": reading.digest(),
        "student": fingerprint(student),
        "teacher": fingerprint(teacher),
    }
