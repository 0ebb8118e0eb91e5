"""Coreference on drawn documents: chunks, head words, candidates, and what every mention counts for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from drawn_words import bare, parsed, seen

from headlens.documents import Document, Mention, Sentence
from headlens.gold.coreference import CHUNK_WORDS, NEAREST, SAME_LEMMA, Chunk, _Words, antecedents, chunks, head_word
from headlens.gold.scored_input import ScoredInput
from headlens.gold.shortlists import Shortlists


def document(*counts: int, mentions: tuple[Mention, ...] | None = ()) -> Document:
    """Sentences of so many words; the words are numbered through."""
    starts = np.cumsum([0, *counts]).tolist()
    sentences = [
        bare(" ".join(f"w{start + word}" for word in range(count)))
        for start, count in zip(starts, counts, strict=False)
    ]
    return Document.of_sentences(sentences, "drawn", mentions=mentions)


def sizes(*counts: int, most: int = 10) -> list[list[int]]:
    """Words of each sentence, chunk by chunk."""
    return [[len(s.words) for s in chunk.sentences] for chunk in chunks([document(*counts)], most=most)]


# -------------------------------------------------------------------------------------------------------------- chunks


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((4, 4, 4), [[4, 4], [4]]),
        ((4, 6), [[4, 6]]),  # exactly full
        ((4, 7), [[4], [7]]),
        ((4, 12, 4, 4), [[4], [12], [4, 4]]),  # a longer one stands alone
        ((12,), [[12]]),
        ((1, 8, 1, 1), [[1, 8, 1], [1]]),
    ],
)
def test_chunks_are_filled_with_whole_sentences(counts: tuple[int, ...], expected: list[list[int]]) -> None:
    assert sizes(*counts) == expected


def test_a_chunk_holds_120_words() -> None:
    assert CHUNK_WORDS == 120
    assert [len(chunk.sentences) for chunk in chunks([document(*[1] * 121)])] == [120, 1]


def test_a_chunk_is_of_one_document_that_has_mentions() -> None:
    found = chunks([document(2, 2), document(2, mentions=None), document(3)])
    assert [(chunk.document, len(chunk.sentences)) for chunk in found] == [(0, 2), (2, 1)]


def test_mentions_are_counted_from_the_first_word_of_their_chunk() -> None:
    marked = (
        Mention(0, 1, "a"),
        Mention(3, 5, "b"),
        Mention(4, 6, "c"),  # reaches over the border of two chunks, so that it is in neither
        Mention(5, 7, "a"),
        Mention(8, 10, "d"),
        Mention(10, 11, "b"),
    )
    found = chunks([document(5, 5, 5, mentions=marked)], most=6)
    assert [chunk.mentions for chunk in found] == [
        (Mention(0, 1, "a"), Mention(3, 5, "b")),
        (Mention(0, 2, "a"), Mention(3, 5, "d")),
        (Mention(0, 1, "b"),),
    ]
    assert [chunk.sentences[0].words[0] for chunk in found] == ["w0", "w5", "w10"]


# ---------------------------------------------------------------------------------------------------------- head words

MAYOR = parsed(
    "the DET 2 det",
    "mayor NOUN 6 nsubj",
    "of ADP 5 case",
    "New PROPN 5 compound",
    "York PROPN 2 nmod",
    "sleeps VERB 0 root",
)


@pytest.mark.parametrize(
    ("start", "stop", "head"),
    [
        (0, 5, 1),  # the mayor of New York
        (3, 5, 4),  # New York
        (2, 5, 4),
        (0, 2, 1),
        (0, 1, 0),
        (2, 4, 2),  # "of New": both have their head outside, the first counts
        (0, 6, 5),  # the root has its head nowhere
    ],
)
def test_the_head_word_has_its_head_outside(start: int, stop: int, head: int) -> None:
    assert head_word(Mention(start, stop, "x"), _Words.of([MAYOR])) == head


def test_heads_are_counted_through_the_sentences_of_a_chunk() -> None:
    words = _Words.of([MAYOR, MAYOR])
    assert words.heads is not None
    assert words.heads[6:] == (7, 11, 10, 10, 7, -1)
    assert head_word(Mention(6, 11, "x"), words) == 7


def test_without_heads_for_every_sentence_there_are_none() -> None:
    words = _Words.of([MAYOR, bare("Of The Rings")])
    assert (words.heads, words.upos) == (None, None)
    assert words.lemmas[-3:] == ("of", "the", "rings")  # forms stand for lemmas


@pytest.mark.parametrize(
    ("text", "head"),
    [
        ("the big house", 2),
        ("the house of cards", 1),
        ("the House Of cards", 1),
        ("the man who left , late", 1),
        ("a dog , old", 1),
        ("of cards", 1),  # the first word cuts nothing
        ("it", 0),
    ],
)
def test_without_heads_the_head_word_stands_before_the_first_modifier(text: str, head: int) -> None:
    words = _Words.of([bare(f"x {text}")])
    assert head_word(Mention(1, 1 + len(text.split()), "x"), words) == 1 + head


# ----------------------------------------------------------------------------------------------------------- decisions


class Item(NamedTuple):
    word: int
    candidates: list[int]
    right: list[int]
    metrics: set[str]
    nearest: bool
    same_lemma: bool


def items(found: Shortlists) -> list[Item]:
    return [
        Item(
            int(found.word[i]),
            [int(word) for word in found.candidates[i] if word >= 0],
            found.candidates[i][found.right[i]].tolist(),
            {metric[6:-1] for metric, own in zip(found.metrics, found.counts_for[i], strict=True) if own},
            bool(found.baselines[NEAREST][i]),
            bool(found.baselines[SAME_LEMMA][i]),
        )
        for i in range(len(found))
    ]


def asked(sentence: Sentence, *mentions: tuple[int, int, str], scored: ScoredInput | None = None) -> list[Item]:
    chunk = Chunk(0, (sentence,), tuple(Mention(*mention) for mention in mentions))
    return items(antecedents([chunk], {0: scored or seen(len(sentence.words))}))


def flat(*words: str) -> Sentence:
    """Words "form/UPOS" or "form/UPOS/lemma" that all hang on the last."""
    cells = [word.split("/") for word in words]
    rows = [f"{c[0]} {c[1]} {len(words)} dep {c[2] if len(c) > 2 else c[0]}" for c in cells[:-1]]
    return parsed(*rows, f"{cells[-1][0]} {cells[-1][1]} 0 root")


#            0           1           2           3              4           5         6
STORY = flat("Ann/PROPN", "dog/NOUN", "she/PRON", "Dogs/NOUN/dog", "Ann/PROPN", "her/PRON", "runs/VERB")


def test_candidates_are_the_earlier_mentions_singletons_included() -> None:
    found = asked(STORY, (0, 1, "ann"), (1, 2, "single"), (2, 3, "ann"), (4, 5, "ann"), (5, 6, "ann"))
    assert [(item.word, item.candidates, item.right) for item in found] == [
        (2, [0, 1], [0]),
        (4, [0, 1, 2], [0, 2]),
        (5, [0, 1, 2, 4], [0, 2, 4]),
    ]


def test_mentions_that_come_later_are_no_candidates() -> None:
    found = asked(STORY, (0, 1, "ann"), (2, 3, "ann"), (3, 4, "dogs"), (4, 5, "x"))
    assert [(item.word, item.candidates) for item in found] == [(2, [0])]


def test_chance_is_the_share_of_candidates_that_are_right() -> None:
    chunk = Chunk(0, (STORY,), (Mention(0, 1, "a"), Mention(1, 2, "b"), Mention(2, 3, "b"), Mention(4, 5, "b")))
    assert antecedents([chunk], {0: seen(7)}).chance.tolist() == [1 / 2, 2 / 3]


def test_a_mention_without_a_right_candidate_is_no_item() -> None:
    assert asked(STORY, (0, 1, "a"), (1, 2, "b"), (2, 3, "c")) == []


def test_mentions_with_one_head_word_are_one_candidate_that_is_right_for_both_entities() -> None:
    named = parsed("old ADJ 2 amod", "Ann PROPN 4 nsubj", "her PRON 4 obj", "sees VERB 0 root", "it PRON 4 obj")
    marked = ((0, 2, "old ann"), (1, 2, "ann"), (2, 3, "ann"), (4, 5, "old ann"))
    found = asked(named, *marked)
    assert [(item.word, item.candidates, item.right) for item in found] == [(2, [1], [1]), (4, [1, 2], [1])]


def test_a_mention_inside_another_is_no_candidate_for_its_own_word() -> None:
    named = parsed("old ADJ 2 amod", "Ann PROPN 3 nsubj", "sees VERB 0 root")
    assert asked(named, (0, 2, "ann"), (1, 2, "ann")) == []


def test_types_go_by_the_part_of_speech_of_the_head_word() -> None:
    marked = ((0, 1, "x"), (1, 2, "x"), (2, 3, "x"), (3, 4, "x"), (4, 5, "x"), (5, 6, "x"))
    kinds = {item.word: item.metrics & {"all", "pronoun", "proper", "nominal"} for item in asked(STORY, *marked)}
    assert kinds == {
        1: {"all", "nominal"},
        2: {"all", "pronoun"},
        3: {"all", "nominal"},
        4: {"all", "proper"},
        5: {"all", "pronoun"},
    }


def test_unmatched_items_have_no_candidate_of_their_lemma() -> None:
    found = asked(STORY, (0, 1, "x"), (1, 2, "y"), (2, 3, "x"), (3, 4, "x"), (4, 5, "x"))
    assert {item.word: item.metrics for item in found} == {
        2: {"all", "all_unmatched", "pronoun", "pronoun_unmatched", "pronoun_noun"},
        3: {"all", "nominal"},  # "dog" is a candidate with its lemma, though a wrong one
        4: {"all", "proper"},
    }


def test_lemmas_are_compared_in_lower_case() -> None:
    shouted = flat("DOG/NOUN/Dog", "dog/NOUN/DOG", "runs/VERB")
    (item,) = asked(shouted, (0, 1, "x"), (1, 2, "x"))
    assert item.metrics == {"all", "nominal"}


def test_a_pronoun_of_a_noun_has_no_right_candidate_that_is_a_pronoun() -> None:
    found = asked(STORY, (1, 2, "dog"), (2, 3, "ann"), (4, 5, "ann"), (5, 6, "dog"))
    # "her" goes back to "dog" alone; the pronoun among its candidates is wrong
    assert {item.word: "pronoun_noun" in item.metrics for item in found} == {4: False, 5: True}
    (_, her) = asked(STORY, (1, 2, "dog"), (2, 3, "dog"), (5, 6, "dog"))
    assert "pronoun_noun" not in her.metrics


def test_the_nearest_mention_and_the_same_lemma_as_baselines() -> None:
    marked = ((0, 1, "ann"), (1, 2, "dog"), (2, 3, "ann"), (3, 4, "dogs"), (4, 5, "ann"), (5, 6, "ann"))
    found = {item.word: (item.nearest, item.same_lemma) for item in asked(STORY, *marked)}
    assert found == {
        2: (False, False),  # the nearest is "dog", and no candidate has the lemma "she"
        4: (False, True),  # "dogs" is nearest; the other "Ann" has the lemma
        5: (True, True),  # no other "her": the nearest
    }


def test_the_nearest_of_several_with_the_lemma_counts() -> None:
    dogs = flat("dog/NOUN", "dog/NOUN", "cat/NOUN", "dog/NOUN", "run/VERB")
    right_last = asked(dogs, (0, 1, "a"), (1, 2, "b"), (2, 3, "c"), (3, 4, "b"))
    right_first = asked(dogs, (0, 1, "b"), (1, 2, "a"), (2, 3, "c"), (3, 4, "b"))
    assert [(item.nearest, item.same_lemma) for item in (*right_last, *right_first)] == [(False, True), (False, False)]


def test_the_sink_and_words_without_a_token_are_no_candidates() -> None:
    marked = ((0, 1, "x"), (1, 2, "x"), (2, 3, "x"))
    sink = asked(STORY, *marked, scored=seen(7, is_causal=True, has_sink=True))
    assert [(item.word, item.candidates) for item in sink] == [(2, [1])]
    missing = asked(STORY, *marked, scored=seen(7, without=(1,)))
    assert [(item.word, item.candidates) for item in missing] == [(2, [0])]
    assert asked(STORY, *marked, scored=seen(7, without=(2,)))[0].word == 1


def test_only_mentions_before_are_candidates_in_a_causal_model_and_in_any_other() -> None:
    marked = ((0, 1, "x"), (1, 2, "x"), (2, 3, "x"))
    assert asked(STORY, *marked, scored=seen(7, is_causal=True)) == asked(STORY, *marked)


def test_without_parts_of_speech_only_all_is_counted() -> None:
    (item,) = asked(bare("the dog saw the dog"), (0, 2, "x"), (3, 5, "x"))
    assert (item.word, item.candidates, item.metrics, item.same_lemma) == (4, [1], {"all"}, True)


def test_metrics_have_one_order_and_inputs_too() -> None:
    listed = [Chunk(n, (STORY,), tuple(Mention(w, w + 1, "x") for w in range(6))) for n in range(3)]
    found = antecedents(listed, {2: seen(7), 0: seen(7)})
    assert found.input.tolist() == [0] * 5 + [2] * 5
    assert found.metrics == (
        "coref[all]",
        "coref[pronoun]",
        "coref[proper]",
        "coref[nominal]",
        "coref[all_unmatched]",
        "coref[pronoun_unmatched]",
        "coref[nominal_unmatched]",
        "coref[pronoun_noun]",
    )
