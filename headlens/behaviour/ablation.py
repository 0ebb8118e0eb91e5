"""Does the model use a head? Gate each to 0, one at a time, and see whether its loss rises.

This is zero ablation: what the head adds before W_O becomes 0, and all else stays. It asks for more than the removal of
what a head does for this input, as its mean output goes, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headlens.arch import attention_sites, heads_present
from headlens.behaviour.losses import Question, about_repeats, about_text
from headlens.effects import Ablation, Effect, Head, Task
from headlens.errors import CorpusError, UnsupportedModel
from headlens.gates import gates_without
from headlens.models import LoadedModel, head_counts, network_of
from headlens.numbers import layers_of_heads
from headlens.records import Batch
from headlens.scores import head_name
from headlens.significance import benjamini_hochberg, bootstrap_weights, percentile_interval

PERMUTATIONS = 10_000  # so that the smallest p stays below .05 when corrected for some 500 heads

Say = Callable[[str], None]  # told what is being done
Floats = NDArray[np.float64]


def ablate_heads(
    model: LoadedModel,
    batches: Sequence[Batch],
    heads: Mapping[Head, Task],
    *,
    seed: int = 0,
    say: Say = lambda _what: None,
) -> Ablation:
    """Gate each head to 0, alone, and compare the model with itself as it is, token by token.

    The change is the mean over all tokens (of "output", inputs); its 95% interval is from resampling documents. p is
    that of a paired permutation test: the changes of each document keep their size and get a random sign, one-sided.
    q is over all heads together, after Benjamini and Hochberg.

    Parameters
    ----------
    batches
        Of the corpus. Some 4,000 tokens are read: the first documents, and of long ones only the first tokens.
    heads
        What each (layer, head) is asked; see `effects.task_of`. "text" is the model's own training task: the next
        token, or masked ones (15% of each input, the same for all heads). Where it has no vocabulary head, the change
        is that of its output. "repeats" is the second copy of random tokens written twice.
    seed
        Of masks, random tokens, bootstrap and permutations.
    say
        Told which head is being taken out.

    Raises
    ------
    CorpusError
        No head, one that is not there or was removed, a task of another name, or nothing to ask the model for.
    UnsupportedModel
        The model reads no text, or is asked for repeats without predicting next tokens.
    """
    network = network_of(model.model)
    counts = head_counts(network.config)
    shape = counts["layers"], counts["heads"]
    _check(heads, shape, heads_present(attention_sites(network)))
    effects, asked = dict[Head, Effect](), {}
    for task in get_args(Task):
        chosen = [head for head in sorted(heads) if heads[head] == task]
        if not chosen:
            continue
        question = about_text(model, batches, seed=seed) if task == "text" else about_repeats(model, seed=seed)
        asked[question.measure] = len(question.documents)
        changes = _Changes.of(question, shape)
        for place, head in enumerate(chosen, start=1):
            say(f"taking heads out, {place} of {len(chosen)}" + (" on repeated tokens" if task == "repeats" else ""))
            changes.add(head, seed)
        effects |= changes.effects()
    q = benjamini_hochberg(np.array([effects[head].p for head in sorted(effects)]))
    found = [replace(effects[head], q=float(corrected)) for head, corrected in zip(sorted(effects), q, strict=True)]
    return Ablation(tuple(found), asked, seed)


def _check(heads: Mapping[Head, Task], shape: tuple[int, int], present: Tensor | None) -> None:
    if not heads:
        raise CorpusError("Name at least one head to take out.")
    for (layer, head), task in heads.items():
        if not (0 <= layer < shape[0] and 0 <= head < shape[1]):
            raise CorpusError(f"The model has {layers_of_heads(*shape)}, no {head_name(layer, head)}.")
        if present is not None and not present[layer, head]:
            raise CorpusError(f"{head_name(layer, head)} was removed from the model: take out one that is there.")
        if task not in get_args(Task):
            raise CorpusError(
                f"{head_name(layer, head)}: the task is one of {', '.join(get_args(Task))}, got {task!r}."
            )


@dataclass(frozen=True, eq=False)
class _Changes:
    """One question, asked of the model as it is and without each of several heads."""

    question: Question
    shape: tuple[int, int]
    intact: Tensor
    fold: NDArray[np.int64]  # [answer]: documents, counted from 0
    found: dict[Head, Effect]

    @classmethod
    def of(cls, question: Question, shape: tuple[int, int]) -> _Changes:
        intact = question.answers(gates_without(shape, []))
        if not intact.isfinite().all():
            raise UnsupportedModel(
                "The model's own output is not finite on this corpus, so heads cannot be taken out; run it in float32."
            )
        _, fold = np.unique(question.documents.numpy(), return_inverse=True)
        return cls(question, shape, intact, fold, {})

    def add(self, head: Head, seed: int) -> None:
        answers = self.question.answers(gates_without(self.shape, [head]))
        changes = self.question.changes(self.intact, answers).double().numpy()
        sums, count = (np.bincount(self.fold, each).astype(np.float64) for each in (changes, None))
        low, high = interval(sums, count, seed)
        is_loss = self.question.measure != "output"  # a distance is never below 0, so there is nothing to test
        self.found[head] = Effect(
            *head,
            task=self.question.measure,
            intact=float(self.intact.mean(dtype=torch.float64)) if is_loss else float("nan"),
            change=float(changes.mean()),
            low=low,
            high=high,
            q=float("nan"),
            documents=len(count),
            p=sign_flip_p(sums, seed) if is_loss else float("nan"),
        )

    def effects(self) -> dict[Head, Effect]:
        """With the median change by the other heads beside each."""
        return {head: replace(effect, median_of_heads=self._median(head)) for head, effect in self.found.items()}

    def _median(self, head: Head) -> float:
        others = [effect.change for other, effect in self.found.items() if other != head]
        return float(np.median(others)) if others else float("nan")


def interval(sums: Floats, count: Floats, seed: int) -> tuple[float, float]:
    """95% interval of sums over counts, both [document], from resampling documents; NaN of a single one."""
    if len(sums) == 1:
        return float("nan"), float("nan")
    weights = bootstrap_weights(len(sums), seed=seed)
    low, high = percentile_interval((weights @ sums / (weights @ count))[:, None])
    return float(low[0]), float(high[0])


def sign_flip_p(sums: Floats, seed: int) -> float:
    """One-sided p that a sum over documents is above 0, if each could as well have had the other sign.

    (1 + draws of signs whose sum is as large) / (1 + draws); so few documents as that chance alone often gives this
    can therefore show nothing.
    """
    signs = 2 * np.random.default_rng(seed).integers(0, 2, (PERMUTATIONS, len(sums)), dtype=np.int8) - 1
    rounding = 1e-12 * np.abs(sums).sum()
    as_large = (signs @ sums >= sums.sum() - rounding).sum()
    return float((1 + as_large) / (1 + PERMUTATIONS))
