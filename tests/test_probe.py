"""The probe of attention: it finds what was planted, holds out what it must, and equals a fit by other means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import Any

import numpy as np
import pytest
import torch
from drawn_words import between, parsed, random_heads, seen, tokens_of
from torch import Tensor

from headlens.documents import Sentence
from headlens.errors import CaptureError, CorpusError
from headlens.gold.scored_input import ScoredInput
from headlens.probe import NEXT, OFFSET, PREVIOUS, ProbeResult, probe
from headlens.records import Batch, WordAttention
from headlens.significance import bootstrap_weights, halves

Given = list[tuple[Batch, list[WordAttention]]]


def trees(count: int, *, least: int = 3, most: int = 8, seed: int = 0) -> list[Sentence]:
    """Words that hang on some other word; the root hangs on nothing, and some words are punctuation."""
    rng = np.random.default_rng(seed)
    sentences = []
    for size in rng.integers(least, most, count).tolist():
        root = int(rng.integers(size))
        heads = [int(rng.choice([other for other in range(size) if other != word])) + 1 for word in range(size)]
        heads[root] = 0
        relations = ["punct" if rng.random() < 0.1 else "obj" for _ in range(size)]
        relations[root], relations[root - 1] = "root", "nsubj"
        sentences.append(parsed(*(f"w X {head} {rel}" for head, rel in zip(heads, relations, strict=True))))
    return sentences


def all_seen(sentences: Sequence[Sentence], *, without: int | None = None) -> dict[int, ScoredInput]:
    missing = () if without is None else (without,)
    return {n: seen(len(sentence.words), without=missing) for n, sentence in enumerate(sentences)}


def arcs_of(sentence: Sentence, without: int | None = None) -> list[tuple[int, int]]:
    assert sentence.heads is not None
    assert sentence.relations is not None
    return [
        (word, head)
        for word, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True))
        if relation not in ("root", "punct") and without not in (word, head)
    ]


def attention_of(
    probs: Sequence[Tensor], *, layers: int = 1, size: int = 4, is_causal: bool = False, without: int | None = None
) -> Given:
    """Batches of so many inputs; `probs` [layer and head, word, word_to] of each input."""
    given: Given = []
    for start in range(0, len(probs), size):
        numbers = list(range(len(probs)))[start : start + size]
        drawn = [[str(word) for word in range(len(probs[n][0])) if word != without] for n in numbers]
        most = max(map(len, drawn))
        rows = [" ".join([*cells, *["."] * (most - len(cells))]) for cells in drawn]
        batch = tokens_of(*rows, inputs=numbers, words=max(len(probs[n][0]) for n in numbers))
        by_layer = zip(*(probs[n].chunk(layers) for n in numbers), strict=True)
        found = [replace(between(batch, *of, is_causal=is_causal), layer=n) for n, of in enumerate(by_layer)]
        given.append((batch, found))
    return given


def nothing(sentences: Sequence[Sentence], heads: int = 2) -> list[Tensor]:
    return [torch.zeros(heads, len(s.words), len(s.words), dtype=torch.float64) for s in sentences]


def planted(sentences: Sequence[Sentence], *, head: int = 0, heads: int = 2, back: bool = False) -> list[Tensor]:
    """One attention head looks from every dependent to its head, or back; the others look nowhere."""
    probs = nothing(sentences, heads)
    for one, sentence in zip(probs, sentences, strict=True):
        for word, to in arcs_of(sentence):
            one[(head, to, word) if back else (head, word, to)] = 0.5
    return probs


def probed(sentences: Sequence[Sentence], probs: Sequence[Tensor], **options: Any) -> ProbeResult:
    fold_of = np.arange(len(sentences)) // 3
    return probe(attention_of(probs), sentences, all_seen(sentences), fold_of, **options)


# ------------------------------------------------------------------------------------------------------------- planted


@pytest.mark.parametrize("back", [False, True])
def test_perfect_attention_is_found(back: bool) -> None:
    sentences = trees(30)
    found = probed(sentences, planted(sentences, head=1, back=back))
    assert (found.uas, found.low, found.high) == (1, 1, 1)
    assert found.words == sum(len(arcs_of(sentence)) for sentence in sentences)
    assert (found.sentences, found.of, found.documents) == (30, 30, 10)
    assert found.is_converged


def test_heads_that_each_know_some_words_find_all_together() -> None:
    sentences = trees(30)
    probs = planted(sentences)
    for one, sentence in zip(probs, sentences, strict=True):  # head 0 keeps the words to the right, head 1 gets others
        for word, to in arcs_of(sentence):
            if to < word:
                one[0, word, to], one[1, to, word] = 0, 0.2
    assert probed(sentences, probs).uas == 1


def test_a_head_that_looks_away_is_of_use() -> None:
    sentences = trees(30)
    probs = [0.5 - one for one in planted(sentences)]
    assert probed(sentences, probs).uas == 1


def test_without_attention_the_first_word_is_chosen() -> None:
    sentences = trees(30)
    arcs = [arc for sentence in sentences for arc in arcs_of(sentence)]
    first = sum(head == (1 if word == 0 else 0) for word, head in arcs)
    found = probed(sentences, nothing(sentences))
    assert found.uas == pytest.approx(first / len(arcs))
    assert found.low < found.uas < found.high


def test_what_a_causal_model_sees_back_is_used() -> None:
    # every word hangs on the next, and is what the next one looks at; the first of all is the sink, and asked, too
    sentences = [parsed("a X 2 obj", "b X 3 obj", "c X 4 obj", "d X 5 obj", "e X 0 root")] * 30
    probs = planted(sentences, back=True)
    scored = {n: seen(5, is_causal=True, has_sink=True) for n in range(30)}
    found = probe(attention_of(probs, is_causal=True), sentences, scored, np.arange(30) // 3)
    assert (found.uas, found.words) == (1, 120)


# ------------------------------------------------------------------------------------------- choosing is not judging


def test_documents_are_judged_by_the_other_half() -> None:
    # in one document head 0 looks at the head of every word and head 1 at another word, in the other they change roles
    sentences = trees(2, least=30, most=31)
    fold_of = np.arange(2)
    probs = nothing(sentences)
    for number, sentence in enumerate(sentences):
        for word, to in arcs_of(sentence):
            other = next(one for one in (10, 11, 12) if one not in (word, to))
            probs[number][number, word, to] = probs[number][1 - number, word, other] = 0.5
    found = probe(attention_of(probs), sentences, all_seen(sentences), fold_of)
    assert found.uas == 0
    assert (found.low, found.high) == (0, 0)


def test_baselines_by_hand() -> None:
    left = parsed("a X 2 det", "b X 3 obj", "c X 4 obj", "d X 0 root")  # offsets +1 +1 +1
    right = parsed("a X 0 root", "b X 1 obj", "c X 2 obj", "d X 3 punct", "e X 3 obj")  # -1 -1 (punct) -2
    sentences = [left, right]
    found = probe(attention_of(planted(sentences)), sentences, all_seen(sentences), np.arange(2))
    assert (found.words, found.uas) == (6, 1)
    assert {name: beside.uas for name, beside in found.baselines.items()} == {
        NEXT: pytest.approx(3 / 6),
        PREVIOUS: pytest.approx(2 / 6),
        OFFSET: 0,  # one document chooses +1, the other -1, and neither is ever right in the other
    }
    assert sorted(found.offsets) == [-1, 1]
    # resampled, one of the documents may come alone, in a quarter each: 3 of 3, or none
    assert astuple(found.baselines[NEXT]) == pytest.approx((0.5, 0.5, 0, 1))
    assert astuple(found.baselines[PREVIOUS]) == pytest.approx((2 / 6, 4 / 6, 1 - 2 / 3, 1))


def test_the_offset_of_the_other_half_is_right_where_documents_agree() -> None:
    one = parsed("a X 3 obj", "b X 0 root", "c X 5 obj", "d X 5 obj", "e X 2 obj")  # +2 +2 +1 -3
    found = probed([one] * 6, planted([one] * 6))
    assert found.offsets == (2, 2)
    assert found.baselines[OFFSET].uas == pytest.approx(0.5)


# ------------------------------------------------------------------------------------------------------ slow reference


def weak_signal(sentences: Sequence[Sentence], heads: int = 6, seed: int = 0) -> list[Tensor]:
    """Random attention with some more of it along dependencies in two of the heads."""
    probs = random_heads(heads, *(len(sentence.words) for sentence in sentences), seed=seed)
    for one, sentence in zip(probs, sentences, strict=True):
        for word, to in arcs_of(sentence):
            one[1, word, to] += 0.3
            one[4, to, word] += 0.2
    return probs


def slow_loss(
    weights: Tensor, probs: Sequence[Tensor], sentences: Sequence[Sentence], numbers: Sequence[int], without: int | None
) -> tuple[Tensor, list[tuple[int, bool]]]:
    """Mean loss of a word, and for each word its sentence and whether its head has the largest score."""
    losses, right = [], []
    for number in numbers:
        a = probs[number]
        for word, head in arcs_of(sentences[number], without):
            others = [other for other in range(a.shape[1]) if other not in (word, without)]
            scores = torch.stack([weights[0] @ a[:, i, word] + weights[1] @ a[:, word, i] for i in others])
            losses.append(scores.logsumexp(0) - scores[others.index(head)])
            right.append((number, others[int(scores.detach().argmax())] == head))
    return torch.stack(losses).mean(), right


def slow_spread(
    probs: Sequence[Tensor], sentences: Sequence[Sentence], numbers: Sequence[int], without: int | None
) -> Tensor:
    """[direction, head]: root mean square of attention about its mean over the candidates of each word."""
    deviations = []
    for number in numbers:
        a = probs[number]
        for word, _ in arcs_of(sentences[number], without):
            others = [other for other in range(a.shape[1]) if other not in (word, without)]
            both = torch.stack([a[:, others, word], a[:, word, others]])
            deviations.append(both - both.mean(dim=-1, keepdim=True))
    return torch.cat(deviations, dim=-1).square().mean(dim=-1).sqrt()


@pytest.mark.parametrize(("without", "penalty"), [(None, 1e-2), (1, 1e-2), (None, 0.3), (None, 3.0)])
def test_equal_to_a_fit_by_other_means(without: int | None, penalty: float) -> None:
    sentences = trees(24, seed=3)
    probs, fold_of = weak_signal(sentences), np.arange(24) % 6
    scored = all_seen(sentences, without=without)
    given = attention_of(probs, layers=2, without=without)
    found = probe(given, sentences, scored, fold_of, penalty=penalty, seed=4)

    first = halves(6, 1, 4)[0][fold_of]
    sides = [np.flatnonzero(first).tolist(), np.flatnonzero(~first).tolist()]
    right: list[tuple[int, bool]] = []
    for here, there in ((0, 1), (1, 0)):
        spread = slow_spread(probs, sentences, sides[there], without)
        weights = torch.zeros(2, 6, dtype=torch.float64, requires_grad=True)
        optimiser = torch.optim.LBFGS([weights], max_iter=60, line_search_fn="strong_wolfe", tolerance_grad=1e-9)

        def closure(weights: Tensor = weights, side: list[int] = sides[there], spread: Tensor = spread) -> Tensor:
            weights.grad = None
            loss, _ = slow_loss(weights, probs, sentences, side, without)
            loss = loss + penalty / 2 * (weights * spread).square().sum()
            loss.backward()
            return loss

        optimiser.step(closure)
        right += slow_loss(weights, probs, sentences, sides[here], without)[1]
    by_fold = np.array([[sum(fold_of[n] == fold for n, _ in right), 0] for fold in range(6)], dtype=float)
    for number, is_right in right:
        by_fold[fold_of[number], 1] += is_right
    assert found.words == len(right)
    assert found.uas == pytest.approx(by_fold[:, 1].sum() / len(right), abs=1e-12)
    assert 0.3 < found.uas < 0.95
    weights_of = bootstrap_weights(6, seed=4)
    low, high = np.percentile((weights_of @ by_fold[:, 1]) / (weights_of @ by_fold[:, 0]), [2.5, 97.5])
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-12)


@pytest.mark.parametrize("size", [1, 5, 24])
def test_batches_make_no_difference(size: int) -> None:
    sentences = trees(24, seed=3)
    probs, fold_of = weak_signal(sentences), np.arange(24) % 6
    whole = probe(attention_of(probs), sentences, all_seen(sentences), fold_of)
    given = attention_of(probs, layers=3, size=size)[::-1]
    assert probe(given, sentences, all_seen(sentences), fold_of) == whole


def test_the_scale_of_attention_makes_no_difference() -> None:
    sentences = trees(24, seed=3)
    probs, fold_of = weak_signal(sentences), np.arange(24) % 6
    faint = [0.2 + one * torch.tensor([1e-3, 1e-3, 1, 1, 1e-3, 1])[:, None, None] for one in probs]
    found, other = (probe(attention_of(p), sentences, all_seen(sentences), fold_of) for p in (probs, faint))
    assert other.uas == found.uas


# ------------------------------------------------------------------------------------------------------- random models


def test_a_model_with_random_weights_stands_beside() -> None:
    sentences = trees(60)
    found = probed(sentences, planted(sentences), control=attention_of(nothing(sentences)))
    alone = probed(sentences, nothing(sentences))
    assert found.random_model is not None
    expected = (alone.uas, 1 - alone.uas, 1 - alone.high, 1 - alone.low)
    assert astuple(found.random_model) == pytest.approx(expected)
    assert probed(sentences, planted(sentences)).random_model is None


def test_attention_that_knows_nothing_finds_no_more_than_chance() -> None:
    sentences = trees(200, least=6, most=7)
    found = probed(sentences, random_heads(10, *(6 for _ in sentences), seed=1))
    error = (1 / 5 * 4 / 5 / found.words) ** 0.5
    assert found.uas == pytest.approx(1 / 5, abs=3 * error)


# -------------------------------------------------------------------------------------------------------------- limits


def test_sentences_are_drawn_by_the_seed() -> None:
    sentences = trees(60)
    one, again, other = (probed(sentences, weak_signal(sentences), most_sentences=25, seed=s) for s in (0, 0, 1))
    assert (one.sentences, one.of) == (25, 60)
    assert one == again
    assert one.words != other.words


def test_sentences_without_dependencies_are_not_drawn() -> None:
    bare = parsed("a X 0 root", "b X 1 punct")
    sentences = [*trees(9), *[bare] * 40]
    found = probed(sentences, planted(sentences), most_sentences=9)
    assert (found.sentences, found.of) == (9, 9)


def test_sentences_that_the_model_does_not_read_are_left_out() -> None:
    sentences = trees(30)
    scored = {n: one for n, one in all_seen(sentences).items() if n % 2}
    probs = planted(sentences)
    found = probe(attention_of(probs), sentences, scored, np.arange(30) // 3)
    assert (found.sentences, found.of) == (15, 15)
    assert found.words == sum(len(arcs_of(sentence)) for sentence in sentences[1::2])


def test_memory_is_bounded() -> None:
    sentences = trees(60, least=5, most=6)
    found = probed(sentences, planted(sentences, heads=3), most_bytes=10 * 4 * 3 * 25 + 299)
    assert (found.sentences, found.of) == (10, 60)


def test_plain_values_for_the_provenance() -> None:
    found = probed(trees(6), planted(trees(6)), control=attention_of(planted(trees(6))))
    assert found.to_dict() == {
        "uas": 1.0,
        "low": 1.0,
        "high": 1.0,
        "words": found.words,
        "sentences": 6,
        "of": 6,
        "documents": 2,
        "is_converged": True,
        "baselines": {name: found.baselines[name].uas for name in ("next word", "previous word", "best fixed offset")},
        "offsets": list(found.offsets),
        "random_model": 1.0,
    }


def test_one_document_is_refused() -> None:
    sentences = trees(6)
    with pytest.raises(CorpusError, match="dependencies in two at least; got 6 sentences of 1 within the limits"):
        probe(attention_of(planted(sentences)), sentences, all_seen(sentences), np.zeros(6, dtype=np.int64))


def test_a_corpus_without_dependencies_is_refused() -> None:
    sentences = [parsed("a X 0 root", "b X 1 punct")] * 6
    with pytest.raises(CorpusError, match="got 0 sentences of 0 within the limits"):
        probed(sentences, nothing(sentences))


def test_no_sentences_are_refused() -> None:
    with pytest.raises(CorpusError, match="at least one sentence, got a limit of 0"):
        probed(trees(6), planted(trees(6)), most_sentences=0)


def test_no_attention_is_refused() -> None:
    with pytest.raises(CaptureError, match="no attention to probe; give at least one batch"):
        probe([], trees(6), all_seen(trees(6)), np.arange(6))


def test_attention_that_lacks_sentences_is_refused() -> None:
    sentences = trees(12)
    with pytest.raises(CaptureError, match=r"lacks 4 sentences, e\.g\. number 8; run all of them"):
        probe(attention_of(planted(sentences))[:2], sentences, all_seen(sentences), np.arange(12))
