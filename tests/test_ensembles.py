"""Ensembles of heads: planted ones are found and gain what they must, luck gains nothing, and halves never judge
themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from drawn_words import between, parsed, random_heads, seen, tokens_of
from torch import Tensor

from headlens.analyze import analyze
from headlens.analyzers import Syntax
from headlens.documents import Sentence
from headlens.ensembles import EnsembleEvidence, ensembles
from headlens.errors import CaptureError, OutputError
from headlens.gold.arcs import Arcs, syntax_arcs
from headlens.records import Batch, WordAttention
from headlens.significance import bootstrap_weights, halves
from headlens.testing import tiny_model
from headlens.word_pass import word_attention

TO_HEAD, FROM_HEAD = "syntax.dep_to_head[nsubj]", "syntax.head_to_dep[nsubj]"
WORDS, DEPENDENT, HEAD = 5, 1, 3

Given = list[tuple[Batch, list[WordAttention]]]


def subject(words: int = WORDS, dependent: int = DEPENDENT, head: int = HEAD) -> Sentence:
    """A sentence with a single decision each way: the subject and its head, the root; the rest is punctuation."""
    rows = [f"w{word} NOUN {head + 1} punct" for word in range(words)]
    rows[dependent], rows[head] = f"w NOUN {head + 1} nsubj", "w NOUN 0 root"
    return parsed(*rows)


def tree(words: int, rng: np.random.Generator) -> Sentence:
    """Words that hang on some other word, by some relation, but for the root; all have parts of speech."""
    heads = [int(rng.choice([other for other in range(words) if other != word])) + 1 for word in range(words)]
    relations = rng.choice(["nsubj", "nsubj", "nsubj:pass", "obj", "punct"], words).tolist()
    kinds = rng.choice(["NOUN", "VERB"], words)
    root = int(rng.integers(words))
    heads[root], relations[root] = 0, "root"
    return parsed(
        *(f"w {kind} {head} {relation}" for kind, head, relation in zip(kinds, heads, relations, strict=True))
    )


def attention_of(
    probs: Sequence[Tensor], *, layers: int = 1, size: int = 4, is_causal: bool = False, without: int | None = None
) -> Given:
    """Batches of so many inputs; `probs` [layer and head, word, word_to] of each input. `without`: a word's number."""
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


def candidates_of(arcs: Arcs, place: int, words: int, *, is_causal: bool, without: int | None) -> list[int]:
    word, is_column = int(arcs.word[place]), bool(arcs.is_column[place])
    found = []
    for other in range(words):
        allowed = other != word and without not in (other, word)
        if is_causal:
            earlier = word < other if is_column else other < word
            allowed = allowed and earlier and 0 not in (other, word)  # the first word is the sink
        if allowed:
            found.append(other)
    return found


def is_right(
    probs: Sequence[Tensor],
    heads: Sequence[int],
    arcs: Arcs,
    place: int,
    *,
    is_causal: bool = False,
    without: int | None = None,
) -> bool:
    """Whether the average of the heads chooses the answer of a decision."""
    mean = probs[arcs.input[place]][list(heads)].numpy().astype(np.float64).mean(axis=0)
    word = arcs.word[place]
    paid = mean[:, word] if arcs.is_column[place] else mean[word]
    best = max(candidates_of(arcs, place, len(paid), is_causal=is_causal, without=without), key=lambda c: paid[c])
    return bool(best == arcs.target[place])


def counted(probs: Sequence[Tensor], arcs: Arcs, fold_of: np.ndarray, layers: int = 1, **kind: Any) -> np.ndarray:
    """[fold, layer, head, metric]: right decisions of single heads."""
    heads = len(probs[0])
    found = np.zeros((fold_of.max() + 1, heads, len(arcs.metrics)))
    for place in range(len(arcs)):
        for head in range(heads):
            right = is_right(probs, [head], arcs, place, **kind)
            found[fold_of[arcs.input[place]], head] += right * arcs.membership[arcs.label[place]]
    return found.reshape(len(found), layers, heads // layers, -1)


def of(found: Iterable[EnsembleEvidence], metric: str) -> EnsembleEvidence:
    (row,) = [row for row in found if row.metric == metric]
    return row


def planted(knowing: Sequence[Sequence[int]], inputs: int) -> list[Tensor]:
    """Attention of heads that look from the subject to its head, and back, in the inputs that each knows, else nowhere.

    A head that looks nowhere chooses the first word, which is never right.
    """
    probs = [torch.zeros(len(knowing), WORDS, WORDS, dtype=torch.float64) for _ in range(inputs)]
    for head, known in enumerate(knowing):
        for number in known:
            probs[number][head, DEPENDENT, HEAD] = probs[number][head, HEAD, DEPENDENT] = 0.5
    return probs


def weighed(
    knowing: Sequence[Sequence[int]], fold_of: Sequence[int], *, layers: int = 1, **options: Any
) -> list[EnsembleEvidence]:
    probs, folds = planted(knowing, len(fold_of)), np.array(fold_of)
    arcs = syntax_arcs([subject()] * len(fold_of), {number: seen(WORDS) for number in range(len(fold_of))})
    correct = counted(probs, arcs, folds, layers)
    return ensembles(attention_of(probs, layers=layers), arcs, folds, correct, **{"minimum": 1, **options})


# ------------------------------------------------------------------------------------------------------------- planted


@pytest.mark.parametrize("metric", [TO_HEAD, FROM_HEAD])
def test_two_heads_that_each_know_half_of_the_subjects(metric: str) -> None:
    even, odd = range(0, 40, 2), range(1, 40, 2)  # one of each in every document
    row = of(weighed([[], even, [], odd], np.repeat(range(20), 2).tolist(), layers=2), metric)
    assert row.heads == ((0, 1), (1, 1))
    assert row.names == ("L0H1", "L1H1")
    assert (row.held_out, row.single, row.gain, row.low, row.high) == pytest.approx((1, 0.5, 0.5, 0.5, 0.5))
    assert (row.decisions, row.of, row.documents) == (40, 40, 20)
    assert row.halves == (((0, 1), (1, 1)),) * 10


def test_heads_that_know_the_same_do_not_join() -> None:
    row = of(weighed([range(0, 40, 2)] * 2, np.repeat(range(20), 2).tolist()), TO_HEAD)
    assert row.heads == ((0, 0),)
    assert (row.held_out, row.single, row.gain, row.low, row.high) == pytest.approx((0.5, 0.5, 0, 0, 0))


def test_the_head_that_adds_most_comes_first() -> None:
    tens = [range(start, 100, 10) for start in range(10)]  # of ten inputs in each document
    first, second, third = ([n for some in picked for n in tens[some]] for picked in ([0, 1, 2, 3], [4, 5, 6], [7, 8]))
    fold_of = np.repeat(range(10), 10).tolist()
    row = of(weighed([third, second, first], fold_of), TO_HEAD)
    assert row.heads == ((0, 2), (0, 1), (0, 0))
    assert (row.held_out, row.single) == pytest.approx((0.9, 0.4))
    row = of(weighed([third, second, first], fold_of, most=2), TO_HEAD)
    assert row.heads == ((0, 2), (0, 1))
    assert (row.held_out, row.single) == pytest.approx((0.7, 0.4))


def test_a_head_may_add_more_than_one_that_is_better_alone() -> None:
    tens = [range(start, 100, 10) for start in range(10)]
    first, alike, other = ([n for some in picked for n in tens[some]] for picked in ([0, 1, 2, 3], [0, 1, 2], [4, 5]))
    row = of(weighed([first, alike, other], np.repeat(range(10), 10).tolist()), TO_HEAD)
    assert row.heads == ((0, 0), (0, 2))
    assert row.held_out == pytest.approx(0.6)


def test_at_most_four_heads() -> None:
    knowing = [range(start, 60, 6) for start in range(6)]
    row = of(weighed(knowing, np.repeat(range(10), 6).tolist()), TO_HEAD)
    assert len(row.heads) == 4
    assert (row.held_out, row.single) == pytest.approx((4 / 6, 1 / 6))


def test_heads_beyond_the_shortlist_are_not_tried() -> None:
    tens = [range(start, 100, 10) for start in range(10)]
    first, alike, other = ([n for some in picked for n in tens[some]] for picked in ([0, 1, 2, 3], [0, 1, 2], [4, 5]))
    row = of(weighed([first, alike, other], np.repeat(range(10), 10).tolist(), shortlist=2), TO_HEAD)
    assert row.heads == ((0, 0),)
    assert row.held_out == pytest.approx(0.4)


def test_attention_is_averaged_not_counted() -> None:
    # head 0 is sure of the answer where it knows it (1 of 2), head 1 has the answer second (.4 to .45) elsewhere and
    # a wrong word first everywhere; together: 1 > .45 there, and .4 + 0 < .45 here
    probs = planted([range(0, 40, 2)], 40)
    second = torch.zeros(1, WORDS, WORDS, dtype=torch.float64)
    second[0, DEPENDENT, HEAD], second[0, DEPENDENT, 2] = 0.4, 0.45
    probs = [torch.cat([one, second]) for one in probs]
    probs = [torch.cat([one, 0.2 * second.flip(2)]) for one in probs]  # .08 on word 1, itself: no candidate; .09 on 2
    fold_of = np.repeat(range(20), 2)
    arcs = syntax_arcs([subject()] * 40, {number: seen(WORDS) for number in range(40)})
    row = of(ensembles(attention_of(probs), arcs, fold_of, counted(probs, arcs, fold_of), minimum=1), TO_HEAD)
    assert row.heads == ((0, 0),)
    third = torch.zeros(1, WORDS, WORDS, dtype=torch.float64)
    third[0, DEPENDENT, HEAD], third[0, DEPENDENT, 4] = 0.1, 0.12  # wrong alone; with head 1 .5 to .45
    probs = [torch.cat([one[1:2], third]) for one in probs]
    row = of(ensembles(attention_of(probs), arcs, fold_of, counted(probs, arcs, fold_of), minimum=1), TO_HEAD)
    assert row.heads == ((0, 0), (0, 1))
    assert (row.held_out, row.single) == pytest.approx((1, 0))


# ------------------------------------------------------------------------------------------- choosing is not judging


def test_a_half_chooses_and_the_other_judges() -> None:
    # in document 0 head 0 is always right, in document 1 head 1: each half chooses one that is wrong in the other
    row = of(weighed([range(5), range(5, 10)], [0] * 5 + [1] * 5), TO_HEAD)
    assert (row.held_out, row.single, row.gain) == (0, 0, 0)
    assert row.heads == ((0, 0), (0, 1))  # on both documents
    assert {row.halves[n : n + 2] for n in range(0, 10, 2)} <= {(((0, 0),), ((0, 1),)), (((0, 1),), ((0, 0),))}


def test_documents_of_unlike_size_weigh_by_their_decisions() -> None:
    # document 0 (8 decisions): heads 0 and 1 know half each; document 1 (2): only head 0 knows half.
    # Document 0 chooses both, right in 1 of 2 there, as is the single; document 1 chooses head 0: 4 of 8, both times.
    row = of(weighed([[0, 1, 2, 3, 8], [4, 5, 6, 7]], [0] * 8 + [1] * 2), TO_HEAD)
    assert (row.held_out, row.single, row.gain) == pytest.approx((0.5, 0.5, 0))


def test_the_interval_resamples_documents() -> None:
    # documents of 4 decisions: in the last one the heads know the same, so that the ensemble gains nothing there
    even, odd = range(0, 36, 2), range(1, 36, 2)
    row = of(weighed([[*even, 36, 37], [*odd, 36, 37]], np.repeat(range(10), 4).tolist()), TO_HEAD)
    assert row.gain == pytest.approx(0.9 * 0.5)
    drawn = np.random.default_rng(1).binomial(10, 0.1, 200_000)  # how often the last document is drawn
    low, high = np.percentile((10 - drawn) / 10 * 0.5, [2.5, 97.5])
    assert (row.low, row.high) == pytest.approx((low, high))


@pytest.mark.parametrize("seed", [0, 1])
def test_luck_gains_nothing_on_held_out_documents(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sentences = [subject(5, 1 + n % 2, 4 - n % 2) for n in range(120)]
    probs = [torch.from_numpy(rng.random((30, 5, 5))) for _ in sentences]
    arcs = syntax_arcs(sentences, {number: seen(5) for number in range(120)})
    fold_of = np.arange(120) % 30
    row = of(ensembles(attention_of(probs, size=50), arcs, fold_of, counted(probs, arcs, fold_of)), TO_HEAD)
    members = [place for place in range(len(arcs)) if arcs.metrics.index(TO_HEAD) in membership(arcs, place)]
    heads = [head for _, head in row.heads]
    inside = [np.mean([is_right(probs, some, arcs, place) for place in members]) for some in (heads, heads[:1])]
    assert inside[0] > inside[1] + 0.01 > 1 / 4 + 0.05  # on the documents that chose, it seems to gain
    assert row.low < 0 < row.high
    assert row.held_out == pytest.approx(1 / 4, abs=2 * (1 / 4 * 3 / 4 / 120) ** 0.5)  # two standard errors


def membership(arcs: Arcs, place: int) -> list[int]:
    return np.flatnonzero(arcs.membership[arcs.label[place]]).tolist()


# ------------------------------------------------------------------------------------------------------ slow reference


KINDS: dict[str, dict[str, Any]] = {
    "both ways": {"is_causal": False, "without": None},
    "causal": {"is_causal": True, "without": None},
    "a word without a token": {"is_causal": False, "without": 2},
}


def random_corpus(
    kind: dict[str, Any], seed: int = 0
) -> tuple[list[Tensor], Arcs, np.ndarray, np.ndarray]:  # fmt: skip
    """Attention of 2 x 6 heads, decisions, folds and counts of 45 trees."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(3, 9, 45).tolist()
    sentences = [tree(size, rng) for size in sizes]
    is_causal, without = kind["is_causal"], kind["without"]
    missing = () if without is None else (without,)
    scored = {n: seen(size, is_causal=is_causal, has_sink=is_causal, without=missing) for n, size in enumerate(sizes)}
    arcs = syntax_arcs(sentences, scored)
    probs = random_heads(12, *sizes, seed=seed)
    fold_of = rng.integers(0, 9, 45)
    return probs, arcs, fold_of, counted(probs, arcs, fold_of, 2, **kind)


def slow_ensemble(
    probs: list[Tensor], arcs: Arcs, fold_of: np.ndarray, metric: str, kind: dict[str, Any], repeats: int
) -> dict[str, Any]:
    """The same in plain Python, from the definition: four heads at most, of the best seven."""
    members = [place for place in range(len(arcs)) if arcs.metrics.index(metric) in membership(arcs, place)]
    folds = sorted({int(fold_of[arcs.input[place]]) for place in members})
    side_of = [{f: bool(half[n]) for n, f in enumerate(folds)} for half in halves(len(folds), repeats, 0)]

    def right(heads: Sequence[int], place: int) -> bool:
        return is_right(probs, heads, arcs, place, **kind)

    def chosen(places: list[int]) -> list[int]:
        count = {head: sum(right([head], place) for place in places) for head in range(12)}
        ranked = sorted(range(12), key=lambda head: -count[head])[:7]
        heads, best = ranked[:1], count[ranked[0]]
        while len(heads) < 4:
            gained = {h: sum(right([*heads, h], place) for place in places) for h in ranked if h not in heads}
            other = max(gained, key=gained.__getitem__)
            if gained[other] <= best:
                break
            heads, best = [*heads, other], gained[other]
        return heads

    together, alone, sides = dict.fromkeys(members, 0.0), dict.fromkeys(members, 0.0), []
    for half in side_of:
        for side in (True, False):
            heads = chosen([place for place in members if half[fold_of[arcs.input[place]]] == side])
            sides.append(tuple(divmod(head, 6) for head in heads))
            for place in members:
                if half[fold_of[arcs.input[place]]] != side:
                    together[place] += right(heads, place) / repeats
                    alone[place] += right(heads[:1], place) / repeats
    gains = np.array([sum(together[p] - alone[p] for p in members if fold_of[arcs.input[p]] == f) for f in folds])
    sizes = np.array([sum(fold_of[arcs.input[p]] == f for p in members) for f in folds])
    weights = bootstrap_weights(len(folds), seed=0)
    return {
        "heads": tuple(divmod(head, 6) for head in chosen(members)),
        "held_out": np.mean(list(together.values())),
        "single": np.mean(list(alone.values())),
        "gain": gains.sum() / sizes.sum(),
        "interval": np.percentile([(w * gains).sum() / (w * sizes).sum() for w in weights], [2.5, 97.5]),
        "halves": tuple(sides),
        "of": len(members),
        "documents": len(folds),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_equal_to_a_slow_loop(kind: str) -> None:
    probs, arcs, fold_of, correct = random_corpus(KINDS[kind])
    given = attention_of(probs, layers=2, size=10, **KINDS[kind])
    found = ensembles(given, arcs, fold_of, correct, minimum=8, shortlist=7, repeats=2)
    assert {row.metric for row in found} >= {TO_HEAD, FROM_HEAD, "syntax.dep_to_head[obj]"}
    assert any(len(row.heads) > 1 for row in found)
    for row in found:
        slow = slow_ensemble(probs, arcs, fold_of, row.metric, KINDS[kind], 2)
        assert row.heads == slow["heads"], row.metric
        assert row.halves == slow["halves"], row.metric
        assert (row.of, row.decisions, row.documents) == (slow["of"], slow["of"], slow["documents"])
        assert (row.held_out, row.single) == pytest.approx((slow["held_out"], slow["single"]), abs=1e-12)
        assert (row.gain, row.low, row.high) == pytest.approx((slow["gain"], *slow["interval"]), abs=1e-12)


@pytest.mark.parametrize("size", [1, 7, 45])
def test_batches_make_no_difference(size: int) -> None:
    probs, arcs, fold_of, correct = random_corpus(KINDS["causal"])
    whole = ensembles(attention_of(probs, layers=2, is_causal=True), arcs, fold_of, correct, minimum=8)
    given = attention_of(probs, layers=2, size=size, is_causal=True)[::-1]
    assert ensembles(given, arcs, fold_of, correct, minimum=8) == whole


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_single_heads_are_right_as_often_as_the_pass_before_counted(family: str) -> None:
    rng, is_causal = np.random.default_rng(2), family == "gpt2"
    sentences = [tree(9, rng) for _ in range(24)]
    arcs = syntax_arcs(sentences, {n: seen(9, is_causal=is_causal) for n in range(24)})
    fold_of = np.arange(24) % 2
    drawing = "S 0 0 1 2 3 3 3 4 5 6 7 7 8 S"
    batches = [tokens_of(*[drawing] * 8, inputs=range(start, start + 8)) for start in (0, 8, 16)]
    batches = [
        replace(batch, input_ids=torch.from_numpy(rng.integers(5, 99, batch.input_ids.shape))) for batch in batches
    ]
    model = tiny_model(family)
    sums = analyze(model, batches, [Syntax(arcs, 9, is_causal=is_causal)], documents=2).model["syntax"].sums
    membership = torch.from_numpy(arcs.membership).to(sums["correct"].dtype)
    correct = (sums["correct"] @ membership).numpy()
    total = (sums["total"].to(membership.dtype) @ membership)[:, 0, 0].numpy()
    rows = ensembles(word_attention(model, batches), arcs, fold_of, correct, most=1, minimum=10, repeats=1)
    assert len(rows) >= 4
    for row in rows:
        counts = correct[..., arcs.metrics.index(row.metric)].reshape(2, -1)
        right = counts[1, counts[0].argmax()] + counts[0, counts[1].argmax()]
        assert row.of == total[:, arcs.metrics.index(row.metric)].sum()
        assert row.held_out == row.single == pytest.approx(right / row.of, abs=1e-12)


# ---------------------------------------------------------------------------------------------- what is weighed at all


def test_relations_in_both_directions_and_subject_and_verb() -> None:
    probs, arcs, fold_of, correct = random_corpus(KINDS["both ways"])
    assert {"syntax.dep_to_head[ALL]", "syntax.dep_to_head[nsubj:pass]"} <= set(arcs.metrics)
    found = ensembles(attention_of(probs, layers=2), arcs, fold_of, correct, minimum=8)
    assert [row.metric for row in found] == [
        "subject_verb.subject_to_verb",
        "subject_verb.verb_to_subject",
        TO_HEAD,
        "syntax.dep_to_head[obj]",
        FROM_HEAD,
        "syntax.head_to_dep[obj]",
    ]


def test_too_few_decisions_are_left_out() -> None:
    fold_of = [0] * 6 + [1] * 6
    assert {row.metric for row in weighed([range(12)], fold_of, minimum=12)} == {TO_HEAD, FROM_HEAD}
    assert weighed([range(12)], fold_of, minimum=13) == []


def test_decisions_of_one_document_are_left_out() -> None:
    assert weighed([range(12)], [1] * 12) == []


def test_a_head_that_is_absent_is_never_chosen() -> None:
    probs, fold_of = planted([range(20), range(0, 20, 2)], 20), np.repeat(range(10), 2)
    arcs = syntax_arcs([subject()] * 20, {number: seen(WORDS) for number in range(20)})
    correct = counted(probs, arcs, fold_of)
    correct[:, 0, 0] = np.nan
    row = of(ensembles(attention_of(probs), arcs, fold_of, correct, minimum=1), TO_HEAD)
    assert row.heads == ((0, 1),)
    assert {heads for side in row.halves for heads in side} == {(0, 1)}


def test_decisions_are_drawn_by_the_seed() -> None:
    rng = np.random.default_rng(0)
    known = np.flatnonzero(rng.random(200) < 0.5).tolist()
    fold_of = (np.arange(200) // 10).tolist()
    one, again, other = (
        of(weighed([known], fold_of, most_decisions=50, seed=seed), TO_HEAD) for seed in (0, 0, 1)
    )  # fmt: skip
    assert (one.decisions, one.of) == (50, 200)
    assert one == again
    assert one.held_out != other.held_out
    error = (0.25 / 50 * 150 / 199) ** 0.5  # of a draw without replacement
    assert one.held_out == pytest.approx(len(known) / 200, abs=3 * error)


def test_heads_are_ranked_on_all_decisions() -> None:
    # of 200 decisions head 1 knows one in two, head 0 a few more; drawn decisions alone would rank by luck
    knowing = [range(0, 200, 2), [*range(0, 200, 2), *range(1, 200, 20)]]
    row = of(weighed(knowing, np.repeat(range(20), 10).tolist(), most_decisions=30, most=1), TO_HEAD)
    assert row.heads == ((0, 1),)
    assert set(row.halves) == {((0, 1),)}


@pytest.mark.parametrize("most_bytes", [4000, 2000])
def test_memory_is_bounded(most_bytes: int) -> None:
    rows = weighed([range(0, 100, 2), range(1, 100, 2)], np.repeat(range(20), 5).tolist(), most_bytes=most_bytes)
    kept = [4 * row.decisions * 2 * (WORDS - 1) for row in rows]  # bytes of float32: decisions, heads, candidates
    assert most_bytes / 2 < sum(kept) <= most_bytes
    assert {row.of for row in rows} == {100}


def test_memory_does_not_go_below_the_minimum_of_decisions() -> None:
    rows = weighed([range(100)], np.repeat(range(20), 5).tolist(), most_bytes=10, minimum=40)
    assert {row.decisions for row in rows} == {40}


def test_plain_values_for_the_provenance() -> None:
    row = of(weighed([range(0, 8, 2), range(1, 8, 2)], [0, 0, 0, 0, 1, 1, 1, 1], repeats=1), TO_HEAD)
    assert row.to_dict() == {
        "metric": TO_HEAD,
        "heads": ["L0H0", "L0H1"],
        "held_out": 1.0,
        "single": 0.5,
        "gain": 0.5,
        "low": 0.5,
        "high": 0.5,
        "decisions": 8,
        "of": 8,
        "documents": 2,
        "halves": [["L0H0", "L0H1"], ["L0H0", "L0H1"]],
    }


# -------------------------------------------------------------------------------------------------------------- errors


def test_attention_that_lacks_decisions_is_refused() -> None:
    probs, arcs, fold_of, correct = random_corpus(KINDS["both ways"])
    with pytest.raises(CaptureError, match=r"of \d+ decisions the attention holds \d+, and 0 twice; give every input"):
        ensembles(attention_of(probs, layers=2)[1:], arcs, fold_of, correct, minimum=8)


def test_attention_that_comes_twice_is_refused() -> None:
    probs, arcs, fold_of, correct = random_corpus(KINDS["both ways"])
    given = attention_of(probs, layers=2)
    with pytest.raises(CaptureError, match=r"of (\d+) decisions the attention holds \1, and [1-9]\d* twice"):
        ensembles([*given, given[0]], arcs, fold_of, correct, minimum=8)


def test_attention_of_another_kind_is_refused() -> None:
    probs, arcs, fold_of, correct = random_corpus(KINDS["both ways"])
    with pytest.raises(CaptureError, match="made for another kind of attention: causal and not"):
        ensembles(attention_of(probs, layers=2, is_causal=True), arcs, fold_of, correct, minimum=8)


@pytest.mark.parametrize("name", ["repeats", "most", "shortlist", "minimum", "most_decisions"])
def test_limits_below_one_are_refused(name: str) -> None:
    with pytest.raises(OutputError, match=f"Ensembles: {name} must be at least 1, got 0"):
        weighed([range(4)], [0, 0, 1, 1], **{name: 0})


@pytest.mark.parametrize("place", [0, 3])
def test_counts_of_another_shape_are_refused(place: int) -> None:
    _, arcs, fold_of, correct = random_corpus(KINDS["both ways"])
    with pytest.raises(OutputError, match=r"must be \[fold, layer, head, metric\] with 9 folds and 10 metrics, got"):
        ensembles([], arcs, fold_of, np.delete(correct, 0, axis=place))


def test_inputs_without_a_fold_are_refused() -> None:
    _, arcs, fold_of, correct = random_corpus(KINDS["both ways"])
    with pytest.raises(OutputError, match="decisions are about input 44, and it has 40 entries"):
        ensembles([], arcs, fold_of[:40], correct)
