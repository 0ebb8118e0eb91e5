"""Ensembles of heads: do a few heads together find the partner of a word more often than the best of them alone?

After Limisiewicz, Rosa & Mareček 2020: the attention of some heads is averaged, and the average chooses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headlens.errors import CaptureError, OutputError
from headlens.gold.arcs import ALL, Arcs
from headlens.records import Batch, WordAttention
from headlens.scores import head_name
from headlens.significance import bootstrap_weights, halves, percentile_interval

REPEATS = 5  # random halves; both of each choose once
MOST = 4  # heads; Limisiewicz et al. 2020
SHORTLIST = 25  # heads that are tried; Limisiewicz et al. 2020
MINIMUM = 30  # decisions
MOST_DECISIONS = 2000  # of one metric
MOST_BYTES = 512 << 20  # of attention that is kept

Head: TypeAlias = tuple[int, int]  # layer and head, counted from 0
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True)
class EnsembleEvidence:
    """The ensemble of one metric. Accuracies are shares of `decisions`, on documents that had no say in the choice."""

    metric: str
    heads: tuple[Head, ...]  # chosen on all documents, in the order in which they came in; one alone: none helps it
    held_out: float  # accuracy of the ensembles that the halves chose
    single: float  # accuracy of the best single heads that the same halves chose
    gain: float  # of the first over the second
    low: float  # of the 95% interval of the gain, from resampling documents
    high: float
    decisions: int  # drawn
    of: int  # that there are
    documents: int  # folds that hold the decisions drawn
    halves: tuple[tuple[Head, ...], ...]  # the ensemble that each half chose; both halves of a repeat in turn

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(head_name(*head) for head in self.heads)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the provenance of a profile."""
        numbers = ("held_out", "single", "gain", "low", "high", "decisions", "of", "documents")
        return {
            "metric": self.metric,
            "heads": list(self.names),
            **{name: getattr(self, name) for name in numbers},
            "halves": [[head_name(*head) for head in chosen] for chosen in self.halves],
        }


def ensembles(
    attention: Iterable[tuple[Batch, Sequence[WordAttention]]],
    arcs: Arcs,
    fold_of: Ints,
    correct: NDArray[np.floating[Any]],
    *,
    seed: int = 0,
    repeats: int = REPEATS,
    most: int = MOST,
    shortlist: int = SHORTLIST,
    minimum: int = MINIMUM,
    most_decisions: int = MOST_DECISIONS,
    most_bytes: int = MOST_BYTES,
) -> list[EnsembleEvidence]:
    """The best ensembles for every relation in both directions, and for subject and verb.

    Documents are halved at random, `repeats` times. Each half ranks the heads by their accuracy on it and begins with
    the best; of the best `shortlist` the one that raises the accuracy of the average most comes in, as long as one
    does and there are fewer than `most`. The other half judges. Limisiewicz et al. 2020 go through the heads by rank
    instead, exchange heads once the ensemble is full, and renormalise attention over words; here rows are as they
    are, so that a head that rests on special tokens weighs little.

    Only the attention of decisions is kept, of heads that some half has on its shortlist, in float32. Of a metric with
    more than `most_decisions`, as many are drawn at random; of fewer still, where more than `most_bytes` would be
    kept. Heads are ranked on all decisions.

    Parameters
    ----------
    attention
        As from `word_attention`, of all inputs that `arcs` asks about.
    fold_of
        [input]: the document, or fold of documents, of each.
    correct
        [fold, layer, head, metric]: right decisions of every single head, metrics as in `arcs`, as the pass before
        counted them; NaN: the head is absent.

    Returns
    -------
    One entry a metric, in the order of `arcs`. Left out are all relations together, subtypes, metrics with fewer than
    `minimum` decisions, and those whose decisions are all of one fold.

    Raises
    ------
    OutputError
        A limit below 1, or `correct` of another shape.
    CaptureError
        Attention that lacks decisions, or in which an answer is no candidate.
    """
    limits = {"repeats": repeats, "most": most, "shortlist": shortlist, "minimum": minimum}
    _check(arcs, fold_of, correct, limits | {"most_decisions": most_decisions})
    plans = _affordable_plans(
        _Asked(arcs, fold_of, np.nan_to_num(correct, nan=-1.0), seed, repeats, shortlist, minimum),
        most_decisions,
        most_bytes,
    )
    kept = _kept(attention, arcs, plans)
    return [_evidence(plan, rows, most=most, seed=seed) for plan, rows in zip(plans, kept, strict=True)]


# ------------------------------------------------------------------------------------------------------------- plans


@dataclass(frozen=True, eq=False)
class _Asked:
    arcs: Arcs
    fold_of: Ints
    correct: NDArray[np.floating[Any]]  # -1: the head is absent
    seed: int
    repeats: int
    shortlist: int
    minimum: int


@dataclass(frozen=True, eq=False)
class _Plan:
    """What is kept for one metric. Heads are numbered through all layers; `heads` are those that some half ranks.

    The first `2 * repeats` of `ranked` are of the halves, both of a repeat in turn, the last of all documents.
    """

    metric: str
    decisions: Ints  # indices into the arcs, ascending
    of: int
    fold: Ints  # [decision], counted from 0 without gaps
    first: Bools  # [repeat, fold]: the first half
    ranked: tuple[Ints, ...]  # places in `heads`, best first
    heads: Ints
    heads_per_layer: int

    def named(self, chosen: Sequence[int]) -> tuple[Head, ...]:
        places = [divmod(int(self.heads[place]), self.heads_per_layer) for place in chosen]
        return tuple((layer, head) for layer, head in places)


def _affordable_plans(asked: _Asked, most_decisions: int, most_bytes: int) -> list[_Plan]:
    while True:
        plans = [plan for metric in _metrics(asked.arcs) if (plan := _plan(asked, metric, most_decisions))]
        needed = sum(4 * plan.heads.size * float((1 / asked.arcs.chance[plan.decisions]).sum()) for plan in plans)
        if needed <= most_bytes or most_decisions <= asked.minimum:
            return plans
        most_decisions = max(asked.minimum, most_decisions * 3 // 4)


def _metrics(arcs: Arcs) -> Iterator[int]:
    """Relations without subtypes, and subject and verb. No decision counts for two of them."""
    for metric, name in enumerate(arcs.metrics):
        relation = name.partition("[")[2].rstrip("]")
        if relation != ALL and ":" not in relation:
            yield metric


def _plan(asked: _Asked, metric: int, most_decisions: int) -> _Plan | None:
    arcs = asked.arcs
    members = np.flatnonzero(arcs.membership[arcs.label, metric])
    if members.size < asked.minimum:
        return None
    order = np.random.default_rng([asked.seed, metric]).permutation(members)
    decisions = np.sort(order[:most_decisions])
    folds, fold = np.unique(asked.fold_of[arcs.input[decisions]], return_inverse=True)
    if folds.size < 2:
        return None
    first = halves(folds.size, asked.repeats, asked.seed)
    counts = asked.correct[folds, ..., metric].reshape(folds.size, -1).astype(np.float64)
    sides = [side for half in first for side in (half, ~half)]
    ranked = [_ranked(counts[side].sum(axis=0), asked.shortlist) for side in (*sides, np.ones_like(first[0]))]
    heads = np.unique(np.concatenate(ranked))
    return _Plan(
        metric=arcs.metrics[metric],
        decisions=decisions,
        of=members.size,
        fold=fold.reshape(-1).astype(np.int64),
        first=first,
        ranked=tuple(np.searchsorted(heads, best) for best in ranked),
        heads=heads,
        heads_per_layer=asked.correct.shape[2],
    )


def _ranked(counts: NDArray[np.float64], most: int) -> Ints:
    """The heads with the most right decisions, the first of equals first; none that is absent."""
    best = np.argsort(-counts, kind="stable")[:most]
    return best[counts[best] >= 0].astype(np.int64)


# ------------------------------------------------------------------------------------------------- attention to keep


@dataclass(frozen=True, eq=False)
class _Block:
    """Decisions of one metric in one batch."""

    place: Ints  # [decision]: which of the plan's
    values: NDArray[np.float32]  # [decision, head, candidate]; -1 beyond a decision's last candidate
    answer: Ints  # [decision]: place of the answer among its candidates


def _kept(
    attention: Iterable[tuple[Batch, Sequence[WordAttention]]], arcs: Arcs, plans: Sequence[_Plan]
) -> list[list[_Block]]:
    """For each plan, the blocks of all batches."""
    plan_of = np.full(len(arcs), -1)
    for number, plan in enumerate(plans):
        plan_of[plan.decisions] = number
    kept: list[list[_Block]] = [[] for _ in plans]
    for batch, layers in attention:
        assert batch.input_index is not None
        row, index = arcs.by_input.of(batch.input_index.tolist())
        for number in np.unique(plan_of[index]):
            if number >= 0:
                here = plan_of[index] == number
                kept[number].append(_block(layers, arcs, plans[number], row[here], index[here]))
    for plan, blocks in zip(plans, kept, strict=True):
        came = np.concatenate([block.place for block in blocks]) if blocks else np.zeros(0, np.int64)
        if not np.array_equal(np.sort(came), np.arange(plan.decisions.size)):
            raise CaptureError(
                f"{plan.metric}: of {plan.decisions.size} decisions the attention holds {np.unique(came).size}, and "
                f"{came.size - np.unique(came).size} twice; give every input that they were made from, once."
            )
    return kept


def _block(layers: Sequence[WordAttention], arcs: Arcs, plan: _Plan, row: Ints, index: Ints) -> _Block:
    device = layers[0].probs.device
    place, word, target = (
        torch.from_numpy(numbers).to(device) for numbers in (row, arcs.word[index], arcs.target[index])
    )
    is_column = bool(arcs.is_column[index[0]])  # the same for all decisions of a metric
    candidates = layers[0].candidates.transpose(1, 2) if is_column else layers[0].candidates
    mask = candidates[place, word]  # [decision, word]
    if not mask.gather(1, target[:, None]).all():
        raise CaptureError(f"{plan.metric}: the decisions were made for another kind of attention: causal and not.")
    order = mask.int().argsort(dim=1, descending=True, stable=True)[:, : int(mask.sum(dim=1).max())]
    values = torch.cat(list(_of_heads(layers, plan, place, word, is_column=is_column)), dim=1)
    values = values.masked_fill(~mask[:, None], -1.0)
    packed = values.gather(2, order[:, None].expand(-1, values.shape[1], -1))
    answer = mask.long().cumsum(dim=1).gather(1, target[:, None])[:, 0] - 1
    return _Block(np.searchsorted(plan.decisions, index), packed.cpu().numpy(), answer.cpu().numpy())


def _of_heads(
    layers: Sequence[WordAttention], plan: _Plan, place: Tensor, word: Tensor, *, is_column: bool
) -> Iterator[Tensor]:
    """[decision, head, word] of the plan's heads in each layer: their rows, or columns."""
    for attention in layers:
        inside = plan.heads[plan.heads // plan.heads_per_layer == attention.layer] % plan.heads_per_layer
        if inside.size:
            head = torch.tensor(_places_of(inside.tolist(), attention), device=place.device)[None, :]
            probs = attention.probs.transpose(-1, -2) if is_column else attention.probs
            yield probs[place[:, None], head, word[:, None]].float()


def _places_of(heads: Sequence[int], attention: WordAttention) -> list[int]:
    """Where these heads stand in what a layer reports."""
    return [*heads] if attention.head_ids is None else [attention.head_ids.index(head) for head in heads]


# --------------------------------------------------------------------------------------------------- choose and judge


def _evidence(plan: _Plan, blocks: Sequence[_Block], *, most: int, seed: int) -> EnsembleEvidence:
    together, alone = np.zeros(plan.fold.size), np.zeros(plan.fold.size)
    repeats, chosen_by = len(plan.first), []
    for number, ranked in enumerate(plan.ranked[:-1]):
        chooses = plan.first[number // 2][plan.fold] ^ bool(number % 2)  # [decision]
        chosen = _chosen(plan, blocks, ranked, chooses, most)
        chosen_by.append(plan.named(chosen))
        together += ~chooses * _right(plan, blocks, chosen[:-1], chosen[-1:])[:, 0] / repeats
        alone += ~chooses * _right(plan, blocks, [], ranked[:1])[:, 0] / repeats
    everywhere = np.ones(plan.fold.size, dtype=bool)
    low, high = _interval(together - alone, plan.fold, seed)
    return EnsembleEvidence(
        metric=plan.metric,
        heads=plan.named(_chosen(plan, blocks, plan.ranked[-1], everywhere, most)),
        held_out=float(together.mean()),
        single=float(alone.mean()),
        gain=float((together - alone).mean()),
        low=low,
        high=high,
        decisions=plan.decisions.size,
        of=plan.of,
        documents=plan.first.shape[1],
        halves=tuple(chosen_by),
    )


def _chosen(plan: _Plan, blocks: Sequence[_Block], ranked: Ints, chooses: Bools, most: int) -> list[int]:
    """Places in `plan.heads`, in the order in which they come in."""
    chosen = [int(ranked[0])]
    best = int(_right(plan, blocks, [], ranked[:1])[chooses].sum())
    while len(chosen) < most:
        others = ranked[~np.isin(ranked, chosen)]
        counts = _right(plan, blocks, chosen, others)[chooses].sum(axis=0)
        if counts.max(initial=0) <= best:
            break
        best = int(counts.max())
        chosen.append(int(others[counts.argmax()]))
    return chosen


def _right(plan: _Plan, blocks: Sequence[_Block], chosen: Sequence[int], others: Sequence[int] | Ints) -> Bools:
    """[decision, other]: whether the sum of the heads `chosen` and one other finds the answer."""
    right = np.zeros((plan.decisions.size, len(others)), dtype=bool)
    for block in blocks:
        together = block.values[:, np.asarray(others, np.int64)]
        if len(chosen):
            together = together + block.values[:, np.asarray(chosen, np.int64)].sum(axis=1, keepdims=True)
        right[block.place] = together.argmax(axis=-1) == block.answer[:, None]
    return right


def _interval(gained: NDArray[np.float64], fold: Ints, seed: int) -> tuple[float, float]:
    by_fold = np.bincount(fold, weights=gained)
    weights = bootstrap_weights(by_fold.size, seed=seed)
    low, high = percentile_interval((weights @ by_fold / (weights @ np.bincount(fold)))[:, None])
    return float(low[0]), float(high[0])


def _check(arcs: Arcs, fold_of: Ints, correct: NDArray[np.floating[Any]], limits: dict[str, int]) -> None:
    for name, limit in limits.items():
        if limit < 1:
            raise OutputError(f"Ensembles: {name} must be at least 1, got {limit}.")
    folds = int(fold_of.max(initial=-1)) + 1
    if correct.ndim != 4 or len(correct) < folds or correct.shape[-1] != len(arcs.metrics):
        raise OutputError(
            f"Ensembles: correct must be [fold, layer, head, metric] with {folds} folds and {len(arcs.metrics)} "
            f"metrics, got shape {correct.shape}."
        )
    if arcs.input.max(initial=-1) >= fold_of.size:
        raise OutputError(
            f"Ensembles: fold_of must name the fold of each input; decisions are about input {arcs.input.max()}, and "
            f"it has {fold_of.size} entries."
        )
