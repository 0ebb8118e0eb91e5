"""Baselines that look at no attention: how often each option of a baseline is right, by fold. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from headlens.documents import Sentence
from headlens.evidence import Rival
from headlens.gold.arcs import Arcs
from headlens.gold.scored_input import ScoredInput
from headlens.gold.shortlists import Shortlists

OFFSET, BY_POS = "constant offset", "part of speech"
FARTHEST = 10  # words: constant offsets are searched from -10 to 10 (Clark et al. 2019 search -3 to 2)
NTH = 3  # the first, second or third word of a part of speech on one side
FREQUENT = 0.05  # of a relation's decisions: options that are right less often in every relation are left out


def constant_offset(arcs: Arcs, fold_of: NDArray[np.int64], folds: int) -> Rival:
    """The head stands always at the same distance from its dependent; `fold_of` [input]."""
    offsets = [offset for offset in range(-FARTHEST, FARTHEST + 1) if offset]
    place = {offset: number for number, offset in enumerate(offsets)}
    distance = arcs.target - arcs.word
    option = np.array([place.get(int(step), -1) for step in distance], dtype=np.int64)
    return Rival(
        options=tuple(f"{offset:+d}" for offset in offsets),
        correct=_counted(option, len(offsets), arcs, fold_of, folds),
    )


def by_part_of_speech(
    arcs: Arcs,
    sentences: Sequence[Sentence],
    scored: Mapping[int, ScoredInput],
    fold_of: NDArray[np.int64],
    folds: int,
    *,
    minimum: int,
) -> Rival | None:
    """The answer is the n-th word of one part of speech to the left, or to the right (after Limisiewicz et al. 2020).

    Only options that are right in over a twentieth of the decisions of some metric with `minimum` decisions are kept;
    None where there is no such metric, or parts of speech are not annotated.
    """
    keys = [_nth_of_its_kind(arcs, place, sentences, scored) for place in range(len(arcs))]
    names = sorted({key for key in keys if key})
    number = {name: place for place, name in enumerate(names)}
    option = np.array([number.get(key, -1) for key in keys], dtype=np.int64)
    kept = _frequent(option, len(names), arcs, minimum)
    if not kept.size:
        return None
    renumbered = np.full(len(names) + 1, -1)
    renumbered[kept] = np.arange(kept.size)
    return Rival(
        options=tuple(names[place] for place in kept),
        correct=_counted(renumbered[option], kept.size, arcs, fold_of, folds),
        is_informed=True,
    )


def of_shortlists(shortlists: Shortlists, fold_of: NDArray[np.int64], folds: int) -> dict[str, Rival]:
    """The baselines that every decision comes with, each of one option."""
    return {
        name: Rival(
            options=(name,),
            correct=_by_fold(
                shortlists.counts_for * right[:, None], fold_of[shortlists.input], folds
            )[:, :, None],
        )
        for name, right in shortlists.baselines.items()
    }  # fmt: skip


def _nth_of_its_kind(arcs: Arcs, place: int, sentences: Sequence[Sentence], scored: Mapping[int, ScoredInput]) -> str:
    """ "2nd NOUN to the left"; empty where parts of speech are not annotated or it is further than the third."""
    number, word, target = int(arcs.input[place]), int(arcs.word[place]), int(arcs.target[place])
    upos = sentences[number].upos
    if upos is None:
        return ""
    step = 1 if target > word else -1
    asked = scored[number].asked
    nth = sum(bool(asked[other]) and upos[other] == upos[target] for other in range(word + step, target + step, step))
    return f"{nth}. {upos[target]} {'after' if step > 0 else 'before'}" if nth <= NTH else ""


def _frequent(option: NDArray[np.int64], options: int, arcs: Arcs, minimum: int) -> NDArray[np.int64]:
    of_metric = arcs.membership[arcs.label].astype(np.float64)  # [decision, metric]
    chosen = np.zeros((options + 1, of_metric.shape[1]))
    np.add.at(chosen, option, of_metric)  # -1 falls into the last row
    total = of_metric.sum(axis=0)
    share = chosen[:options, total >= minimum] / total[total >= minimum]
    return np.flatnonzero((share > FREQUENT).any(axis=1))


def _counted(
    option: NDArray[np.int64], options: int, arcs: Arcs, fold_of: NDArray[np.int64], folds: int
) -> NDArray[np.float64]:
    """[fold, metric, option]: how often each option is right."""
    labels = len(arcs.labels)
    answered = option >= 0
    cell = (fold_of[arcs.input] * labels + arcs.label) * options + option
    counts = np.bincount(cell[answered], minlength=folds * labels * options)
    by_label = counts.reshape(folds, labels, options)
    return np.einsum("flo,lm->fmo", by_label, arcs.membership.astype(np.float64), optimize=True)


def _by_fold(values: NDArray[np.bool_], fold: NDArray[np.int64], folds: int) -> NDArray[np.float64]:
    totals = np.zeros((folds, values.shape[1]))
    np.add.at(totals, fold, values)
    return totals
