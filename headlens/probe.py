"""How much syntax all heads together hold: a probe that knows nothing but their attention finds the head of every word.

Clark et al. 2019, section 5, the attention-only probe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from headlens.documents import Sentence
from headlens.errors import CaptureError, CorpusError
from headlens.gold.arcs import dependencies
from headlens.gold.scored_input import ScoredInput
from headlens.records import Batch, WordAttention
from headlens.significance import bootstrap_weights, halves, percentile_interval

MOST_SENTENCES = 1000
MOST_BYTES = 1 << 30  # of attention that is kept
PENALTY = 1e-3  # times half the sum of the squared weights, beside the mean loss of a word
LEAST_SPREAD = 1e-6  # attention that differs by less is rounding
FARTHEST = 10  # words; offsets are searched from -10 to 10
STEPS = 300  # of the optimiser, at most

NEXT, PREVIOUS, OFFSET = "next word", "previous word", "best fixed offset"

Attention: TypeAlias = Iterable[tuple[Batch, Sequence[WordAttention]]]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Beside:
    """What stands beside the probe, on the same words, and by how much the probe is above it."""

    uas: float
    gain: float
    low: float  # of the 95% interval of the gain, from resampling documents
    high: float


@dataclass(frozen=True)
class ProbeResult:
    """UAS is the share of words whose head is found, on documents that the probe was not fitted on."""

    uas: float
    low: float  # of its 95% interval, from resampling documents
    high: float
    baselines: Mapping[str, Beside]  # attention is of no use to them; "best fixed offset" is fitted as the probe is
    offsets: tuple[int, int]  # the best on either half; +1 is the next word
    random_model: Beside | None  # the same probe on the attention of another model
    words: int  # that are scored
    sentences: int  # drawn
    of: int  # that there are
    documents: int  # folds that hold them
    is_converged: bool  # both fits came to rest

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the provenance of a profile."""
        plain = ("uas", "low", "high", "words", "sentences", "of", "documents", "is_converged")
        return {
            **{name: getattr(self, name) for name in plain},
            "baselines": {name: beside.uas for name, beside in self.baselines.items()},
            "offsets": list(self.offsets),
            "random_model": None if self.random_model is None else self.random_model.uas,
        }


def probe(
    attention: Attention,
    sentences: Sequence[Sentence],
    scored: Mapping[int, ScoredInput],
    fold_of: Ints,
    *,
    control: Attention | None = None,
    seed: int = 0,
    most_sentences: int = MOST_SENTENCES,
    most_bytes: int = MOST_BYTES,
    penalty: float = PENALTY,
) -> ProbeResult:
    """Fit the probe on one half of the documents, let it find heads in the other, and the same with halves exchanged.

    The head of word j is i with probability proportional to exp(sum over attention heads k of w_k a_k(i to j) +
    u_k a_k(j to i)), among all other words of the sentence that have a token, the first of a causal model, too, where
    one of the two directions is always 0. Clark et al. 2019 take one pass of Adam without a penalty and learn to find
    the root, too; here the loss, which is convex, is minimised, and words that are the root or punctuation are not
    scored.

    Beside it stand the next word, the previous word (one of them is called right-branching, by some this one, by
    others that), and the offset that is right most often on the half that the probe is fitted on.

    Parameters
    ----------
    attention
        As from `word_attention`; `Batch.input_index` is an index into `sentences`.
    scored
        Which of the sentences the model reads, and which of their words have a token.
    fold_of
        [sentence]: the document, or fold of documents, of each.
    control
        Attention of a model with random weights over the same sentences.
    most_sentences, most_bytes
        Sentences are drawn at random up to this number, and as long as their attention needs no more memory.
    penalty
        Times half the sum of the squared weights is added to the mean loss of a word. A weight is that of attention
        in units of its spread among the candidates of a word, so that heads with nearly even attention have their say.

    Raises
    ------
    CorpusError
        No dependencies, or none in a second document, or a limit below 1.
    CaptureError
        The attention lacks a sentence.
    """
    if most_sentences < 1:
        raise CorpusError(f"A probe needs at least one sentence, got a limit of {most_sentences}.")
    heads, attention = _peeked(attention)
    arcs = {number: own for number in sorted(scored) if (own := _arcs_of(sentences[number], scored[number]))}
    drawn = _drawn(sentences, list(arcs), seed, most_sentences, most_bytes // (4 * heads))
    parsed = [_Parsed(number, scored[number].present, arcs[number], int(fold_of[number])) for number in drawn]
    sides, folds = _sides(parsed, seed)
    tallied = _Tallied(sides, folds, seed)
    found, is_converged = tallied.held_out(attention, penalty)
    random_model = None if control is None else tallied.held_out(control, penalty)[0]
    first, second = (_best_offset(side) for side in sides)
    return ProbeResult(
        **tallied.interval(found),
        baselines={
            NEXT: tallied.beside(found, tallied.by_offset((1, 1))),
            PREVIOUS: tallied.beside(found, tallied.by_offset((-1, -1))),
            OFFSET: tallied.beside(found, tallied.by_offset((second, first))),
        },
        offsets=(first, second),
        random_model=None if random_model is None else tallied.beside(found, random_model),
        words=int(tallied.words.sum()),
        sentences=len(drawn),
        of=len(arcs),
        documents=folds.size,
        is_converged=is_converged,
    )


# ------------------------------------------------------------------------------------------------- what is looked for


def _arcs_of(sentence: Sentence, scored: ScoredInput) -> list[tuple[int, int]]:
    """(dependent, head) where both have a token."""
    present = scored.present
    return [(word, head) for word, head, _ in dependencies(sentence) if present[word] and present[head]]


class _Parsed(NamedTuple):
    number: int
    present: Bools
    arcs: list[tuple[int, int]]  # dependent, head
    fold: int


def _drawn(
    sentences: Sequence[Sentence], numbers: Sequence[int], seed: int, most_sentences: int, most_pairs: int
) -> list[int]:
    """Some of the numbers, in ascending order: as many as the limits allow, of sentences and of pairs of words."""
    order = np.random.default_rng(seed).permutation(np.array(numbers, dtype=np.int64))[:most_sentences]
    pairs = np.array([len(sentences[number].words) ** 2 for number in order], dtype=np.int64)
    return np.sort(order[pairs.cumsum() <= most_pairs]).tolist()


def _sides(parsed: Sequence[_Parsed], seed: int) -> tuple[tuple[_Side, _Side], Ints]:
    """Both halves, and the folds that there are."""
    folds = np.unique(np.array([one.fold for one in parsed], dtype=np.int64))
    if folds.size < 2:
        raise CorpusError(
            f"A probe is fitted on some documents and judged on others, so it needs dependencies in two at least; got "
            f"{len(parsed)} sentences of {folds.size} within the limits."
        )
    first = set(folds[halves(folds.size, 1, seed)[0]].tolist())
    return (
        _Side([one for one in parsed if one.fold in first]),
        _Side([one for one in parsed if one.fold not in first]),
    ), folds


@dataclass(frozen=True, eq=False)
class _Side:
    """The sentences of one half. Pairs of words are numbered through, row by row, sentence after sentence."""

    parsed: Sequence[_Parsed]
    start: dict[int, int] = field(init=False)  # number of each sentence's first pair
    pairs: int = field(init=False)

    def __post_init__(self) -> None:
        ends = np.cumsum([one.present.size**2 for one in self.parsed]).tolist()
        object.__setattr__(self, "start", dict(zip([one.number for one in self.parsed], [0, *ends], strict=False)))
        object.__setattr__(self, "pairs", ends[-1])

    @cached_property
    def offset(self) -> Ints:
        """[word]: from each word that is scored to its head."""
        return np.array([head - word for one in self.parsed for word, head in one.arcs], dtype=np.int64)

    @cached_property
    def fold(self) -> Ints:
        """[word]"""
        return np.array([one.fold for one in self.parsed for _ in one.arcs], dtype=np.int64)

    @cached_property
    def options(self) -> _Options:
        return _Options.of(self)


class _Options(NamedTuple):
    """All candidates of all words that are scored, those of one word next to one another."""

    word: Ints  # [option]
    towards: Ints  # [option]: the pair (candidate, word)
    back: Ints  # [option]: the pair (word, candidate)
    first: Ints  # [word]: its first option
    right: Ints  # [word]: the option that is its head

    @classmethod
    def of(cls, side: _Side) -> _Options:
        towards, back, sizes, right = list[Ints](), list[Ints](), list[int](), list[int]()
        for one in side.parsed:
            start, n = side.start[one.number], one.present.size
            for word, head in one.arcs:
                others = np.flatnonzero(one.present)
                others = others[others != word]
                towards.append(start + others * n + word)
                back.append(start + word * n + others)
                right.append(int(np.searchsorted(others, head)))
                sizes.append(others.size)
        first = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
        of_word = np.repeat(np.arange(len(sizes)), sizes)
        return cls(of_word, np.concatenate(towards), np.concatenate(back), first, first + np.array(right))


def _best_offset(side: _Side) -> int:
    """The first of equals, from the left."""
    offsets = [offset for offset in range(-FARTHEST, FARTHEST + 1) if offset]
    return max(offsets, key=lambda offset: int((side.offset == offset).sum()))


# ---------------------------------------------------------------------------------------------------------- the probe


def _peeked(attention: Attention) -> tuple[int, Attention]:
    """How many heads all layers have together, and the attention as it was."""
    remaining = iter(attention)
    first = next(remaining, None)
    if first is None:
        raise CaptureError("There is no attention to probe; give at least one batch.")
    return sum(layer.probs.shape[1] for layer in first[1]), chain([first], remaining)


def _kept(attention: Attention, sides: Sequence[_Side]) -> list[NDArray[np.float32]]:
    """[pair, head] of each side."""
    heads, attention = _peeked(attention)
    kept = [np.zeros((side.pairs, heads), dtype=np.float32) for side in sides]
    missing = {one.number: (place, one) for place, side in enumerate(sides) for one in side.parsed}
    for batch, layers in attention:
        assert batch.input_index is not None
        for row, number in enumerate(batch.input_index.tolist()):
            if number not in missing:
                continue
            place, one = missing.pop(number)
            start, n = sides[place].start[number], one.present.size
            probs = torch.cat([layer.probs[row, :, :n, :n] for layer in layers]).flatten(1)  # [head, pair]
            # what all candidates of a word have in common makes no difference, and costs digits
            kept[place][start : start + n * n] = (probs - probs.mean(dim=1, keepdim=True)).T.float().cpu().numpy()
    if missing:
        raise CaptureError(
            f"The attention lacks {len(missing)} sentences, e.g. number {min(missing)}; run all of them."
        )
    return kept


def _fitted(pairs: NDArray[np.float32], options: _Options, penalty: float) -> tuple[Floats, bool]:
    """Weights [direction, head], of a candidate to the word and back, and whether the optimiser came to rest."""
    from scipy.optimize import minimize

    scale = 1 / np.maximum(_spread(pairs, options), LEAST_SPREAD)
    words = options.first.size

    def loss_and_slope(flat: Floats) -> tuple[float, Floats]:
        scores = _scores(pairs, options, flat.reshape(scale.shape) * scale)
        largest = np.maximum.reduceat(scores, options.first)
        shares = np.exp(scores - largest[options.word])
        sums = np.add.reduceat(shares, options.first)
        loss = np.mean(np.log(sums) + largest - scores[options.right]) + penalty / 2 * (flat**2).sum()
        shares /= sums[options.word]
        shares[options.right] -= 1
        by_pair = np.zeros((2, len(pairs)), dtype=np.float32)
        by_pair[0, options.towards] = by_pair[1, options.back] = shares / words  # no pair comes twice in a direction
        slope = (by_pair @ pairs).astype(np.float64) * scale
        return float(loss), slope.reshape(-1) + penalty * flat

    # sums of float32 attention are good for seven digits, so that the loss cannot be followed further
    limits = {"maxiter": STEPS, "ftol": 1e-9, "gtol": 1e-6}
    found = minimize(loss_and_slope, np.zeros(scale.size), jac=True, method="L-BFGS-B", options=limits)
    return found.x.reshape(scale.shape) * scale, bool(found.nit < STEPS)


def _spread(pairs: NDArray[np.float32], options: _Options) -> Floats:
    """[direction, head]: by how much attention differs between the candidates of a word, root mean square."""
    sizes = np.diff(np.append(options.first, options.word.size))
    squares = np.zeros((2, pairs.shape[1]))
    for direction, of_option in enumerate((options.towards, options.back)):
        for head in range(pairs.shape[1]):
            paid = pairs[of_option, head].astype(np.float64)
            means = np.add.reduceat(paid, options.first) / sizes
            squares[direction, head] = np.mean((paid - means[options.word]) ** 2)
    return np.sqrt(squares)


def _scores(pairs: NDArray[np.float32], options: _Options, weights: Floats) -> Floats:
    """[option]"""
    by_pair = (pairs @ weights.T.astype(np.float32)).astype(np.float64)
    return by_pair[options.towards, 0] + by_pair[options.back, 1]


def _chosen(scores: Floats, options: _Options) -> Ints:
    """[word]: the option with the largest score, the first of equals."""
    largest = np.maximum.reduceat(scores, options.first)
    best = np.flatnonzero(scores == largest[options.word])
    _, first = np.unique(options.word[best], return_index=True)
    return best[first]


# ---------------------------------------------------------------------------------------------------------- judgement


class _Tallied:
    """Counts of words by fold of documents, and what they say."""

    def __init__(self, sides: Sequence[_Side], folds: Ints, seed: int) -> None:
        self._sides, self._folds = sides, folds
        self._weights = bootstrap_weights(folds.size, seed=seed)
        self.words = self._by_fold([np.ones(side.fold.size, dtype=bool) for side in sides])

    def held_out(self, attention: Attention, penalty: float) -> tuple[Floats, bool]:
        """[fold]: words whose head the probe fitted on the other half finds; and whether both fits came to rest."""
        kept = _kept(attention, self._sides)
        options = [side.options for side in self._sides]
        right, rested = [], []
        for here, there in ((0, 1), (1, 0)):
            weights, is_converged = _fitted(kept[there], options[there], penalty)
            right.append(_chosen(_scores(kept[here], options[here], weights), options[here]) == options[here].right)
            rested.append(is_converged)
        return self._by_fold(right), all(rested)

    def by_offset(self, offsets: tuple[int, int]) -> Floats:
        """[fold]: words whose head stands at a distance, one for each side."""
        return self._by_fold([side.offset == offset for side, offset in zip(self._sides, offsets, strict=True)])

    def interval(self, right: Floats) -> dict[str, float]:
        low, high = percentile_interval((self._weights @ right / (self._weights @ self.words))[:, None])
        return {"uas": float(right.sum() / self.words.sum()), "low": float(low[0]), "high": float(high[0])}

    def beside(self, right: Floats, other: Floats) -> Beside:
        gain = self.interval(right - other)
        return Beside(self.interval(other)["uas"], gain["uas"], gain["low"], gain["high"])

    def _by_fold(self, right: Sequence[Bools]) -> Floats:
        fold = np.concatenate([side.fold for side in self._sides])
        counts = np.bincount(np.searchsorted(self._folds, fold), np.concatenate(right), self._folds.size)
        return counts.astype(np.float64)
