"""Lexical analyzers: scores of drawn attention known by hand, and whole passes equal to a plain loop."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
import torch
from drawn_words import bare, between, heads, looking, of_tokens, parsed, random_heads, seen, tokens_of, whole_words
from torch import Tensor

from headlens.analyze import analyze
from headlens.analyzers.base import Scorer, WordAnalyzer
from headlens.analyzers.frequencies import Frequencies
from headlens.analyzers.lexical import (
    FEWEST_OF_TAG,
    OTHER_FORM,
    RAREST,
    SAME_LEMMA,
    SAME_LEMMA_STRONGEST,
    TWO_RAREST,
    PartsOfSpeech,
    RareWords,
    SameLemma,
    content_words,
    frequent_tags,
    lexical,
    numbered_tags,
    rare_word_rivals,
)
from headlens.analyzers.subwords import MERGE, PREVIOUS, Subwords
from headlens.documents import Sentence
from headlens.errors import CorpusError, MissingAnnotation
from headlens.gold.scored_input import ScoredInput
from headlens.records import Batch, WordAttention
from headlens.scores import ScoreTable
from headlens.testing import draw, slow_attentions, tiny_model


def totals(analyzer: WordAnalyzer, attention: WordAttention, batch: Batch) -> dict[str, Tensor]:
    """[head, ...]: the sums of all inputs together."""
    return {key: value.double().sum(dim=0) for key, value in analyzer.observe(attention, batch).items()}


def plain(values: Mapping[str, Tensor]) -> dict[str, list[float]]:
    return {name: [round(x, 10) for x in value.tolist()] for name, value in values.items()}


def scores_of(analyzer: WordAnalyzer, attention: WordAttention, batch: Batch) -> dict[str, list[float]]:
    """By metric, a number for each head."""
    return plain(analyzer.score(totals(analyzer, attention, batch)))


def support_of(analyzer: WordAnalyzer, attention: WordAttention, batch: Batch) -> dict[str, float]:
    found = plain(analyzer.support(totals(analyzer, attention, batch)))
    return {name: value for name, (value,) in found.items()}


# ---------------------------------------------------------------------------------------------------------- rare words


def rare(*frequencies: float, most: float) -> RareWords:
    return RareWords({0: np.array(frequencies, dtype=float)}, float(most))


def test_the_rarest_word_and_one_of_the_two_rarest() -> None:
    batch, analyzer = whole_words(4), rare(9, 1, 3, 2, most=2)
    # rarest: 1 from 0, 2 and 3, and 3 from 1 itself; the two rarest: 1 3, 3 2, 1 3, 1 2
    attention = between(batch, looking((1, 3, 1, 1), (3, 2, 0, 2), (2, 0, 0, 0)))
    assert scores_of(analyzer, attention, batch) == {RAREST: [1, 0, 0], TWO_RAREST: [1, 0.75, 0]}
    assert support_of(analyzer, attention, batch) == {RAREST: 4, TWO_RAREST: 4}


def test_words_are_not_asked_if_all_that_they_see_is_frequent() -> None:
    batch, analyzer = whole_words(4), rare(9, 1, 3, 2, most=1)
    attention = between(batch, looking((1, 0, 1, 0)))
    assert support_of(analyzer, attention, batch) == {RAREST: 3, TWO_RAREST: 3}  # from 1 the rarest has 2
    assert scores_of(analyzer, attention, batch) == {RAREST: [round(2 / 3, 10)], TWO_RAREST: [round(2 / 3, 10)]}


def test_equally_rare_words_are_all_right() -> None:
    batch, analyzer = whole_words(4), rare(5, 1, 1, 3, most=1)
    # rarest: 1 2, 2, 1, 1 2; the two rarest: 1 2, 2 3, 1 3, 1 2
    attention = between(batch, looking((2, 2, 1, 1), (1, 3, 3, 2), (3, 0, 0, 0)))
    assert scores_of(analyzer, attention, batch) == {RAREST: [1, 0.5, 0], TWO_RAREST: [1, 1, 0]}


def test_words_are_not_asked_if_every_candidate_is_right() -> None:
    batch, analyzer = whole_words(3), rare(5, 1, 1, most=1)
    assert support_of(analyzer, between(batch, looking((1, 2, 1))), batch) == {RAREST: 2, TWO_RAREST: 0}


def test_a_word_of_a_decoder_is_asked_about_earlier_words() -> None:
    batch, analyzer = tokens_of("S 0 1 2 3"), rare(1, 9, 4, 7, most=4)
    # from 1 there is 0 alone; from 2 the rarest of 0 and 1 is 0, and both are the two rarest; from 3: 0, and 0 2
    attention = between(batch, looking((None, 0, 0, 2), (None, 0, 1, 0)), is_causal=True)
    assert scores_of(analyzer, attention, batch) == {RAREST: [0.5, 0.5], TWO_RAREST: [1, 1]}
    assert support_of(analyzer, between(batch, looking((None, 0, 0, 2)), is_causal=True), batch) == {
        RAREST: 2,
        TWO_RAREST: 1,
    }


def test_the_sink_of_a_decoder_is_no_rare_word() -> None:
    batch, analyzer = whole_words(4), rare(1, 9, 4, 7, most=4)
    attention = between(batch, looking((None, 0, 0, 2)), is_causal=True)
    assert scores_of(analyzer, attention, batch)[RAREST] == [1]  # only 3 has a choice: of 1 and 2
    assert support_of(analyzer, attention, batch)[RAREST] == 1


def test_a_word_without_a_token_is_no_rare_word() -> None:
    batch, analyzer = tokens_of("S 0 2 3 S"), rare(9, 1, 3, 2, most=3)
    attention = between(batch, looking((3, None, 3, 2)))
    assert scores_of(analyzer, attention, batch)[RAREST] == [1]
    assert support_of(analyzer, attention, batch)[RAREST] == 3


def test_chance_is_a_draw_among_the_words_of_most_tokens() -> None:
    batch, analyzer = tokens_of("S 0 1 1 2 2 3 S"), rare(9, 1, 3, 2, most=2)
    uniform = between(batch, heads([".1 .2 .2 .1"] * 4))
    # from 0: 1 or 2; from 1: 2; from 2: 1; from 3: 1 or 2. rarest: 1/2 + 0 + 1 + 1/2; two rarest: 1/2 + 1 + 1 + 1
    chance = plain(analyzer.chance(totals(analyzer, uniform, batch)))
    assert chance == {RAREST: [0.5], TWO_RAREST: [0.875]}


def test_chance_where_no_word_is_split_is_the_share_of_candidates() -> None:
    batch, analyzer = whole_words(4), rare(5, 1, 1, 3, most=1)
    # rarest: 1 2, 2, 1, 1 2 of three each
    chance = plain(analyzer.chance(totals(analyzer, between(batch, torch.ones(1, 4, 4).double()), batch)))
    assert chance == {RAREST: [round(6 / 12, 10)], TWO_RAREST: [round(8 / 12, 10)]}


def test_rivals_that_know_nothing_of_frequency() -> None:
    sentence = parsed("a X 0 root", "bbb X 1 x", "cc X 1 x", "d X 1 x")
    batch, analyzer = whole_words(4), rare(9, 1, 3, 2, most=2)
    found = rare_word_rivals(analyzer, [batch], [sentence], is_causal=False)
    # answers 1, 3, 1, 1. longest: 1, 2, 1, 1; previous: (1: the first of equals), 0, 1, 2; next: 1, 2, 3, (0);
    # first: (1), 0, 0, 0
    assert {rule: scores[RAREST] for rule, scores in found.items()} == {
        "longest word": 0.75,
        "previous word": 0.5,
        "next word": 0.25,
        "first word": 0.25,
    }
    # answers 1 3, 3 2, 1 3, 1 2
    assert {rule: scores[TWO_RAREST] for rule, scores in found.items()} == {
        "longest word": 1,
        "previous word": 0.75,
        "next word": 0.75,
        "first word": 0.25,
    }


def test_rivals_of_several_batches_are_pooled_and_a_decoder_has_no_next_word() -> None:
    sentences = [parsed("a X 0 root", "b X 1 x", "cc X 1 x"), parsed("a X 0 root", "bb X 1 x", "c X 1 x", "d X 1 x")]
    analyzer = RareWords({0: np.array([2.0, 1, 3]), 1: np.array([2.0, 3, 1, 1])}, 2.0)
    drawn = [tokens_of("S 0 1 2", inputs=[0]), tokens_of("S 0 1 2 3", inputs=[1])]
    found = rare_word_rivals(analyzer, drawn, sentences, is_causal=True)
    # asked of the first: 2 about 1; of the second: 2 about 0, 3 about 2. longest: 0, 1, 1; previous: 1, 1, 2
    assert {rule: round(scores[RAREST], 10) for rule, scores in found.items()} == {
        "longest word": 0,
        "previous word": round(2 / 3, 10),
        "first word": round(1 / 3, 10),
    }


# --------------------------------------------------------------------------------------------------------- frequencies


def test_forms_are_counted_in_whatever_letters() -> None:
    found = Frequencies.of_sentences([bare("The dog and the cat"), bare("THE end")])
    assert found.of(["the", "Dog", "mouse"]).tolist() == [3, 1, 0]


def test_a_list_of_frequencies_may_tell_upper_from_lower_case() -> None:
    assert Frequencies.listed({"Turkey": 0.25, "turkey": 0.5}).of(["TURKEY", "x"]).tolist() == [0.75, 0]


@pytest.mark.parametrize(
    ("counts", "most"),
    [
        ({f"w{n}": n for n in range(1, 1201)}, 700),  # 1,200 down to 701 are 500 forms
        ({f"w{n}": min(n, 690) for n in range(1, 1201)}, 690),  # eleven of 511 alike are outside, so they all are
        ({f"w{n}": n for n in range(1, 1001)}, 500),
        ({f"w{n}": n for n in range(1, 1000)}, 500),  # half of 999: 999 to 501 are 499 forms
        ({"a": 5, "b": 3, "c": 3, "d": 1}, 3),
        ({"a": 5, "b": 4, "c": 1}, 4),
        ({"a": 7}, 7),
    ],
)
def test_what_is_rare_is_outside_the_500_most_frequent_forms_or_of_the_less_frequent_half(
    counts: dict[str, float], most: float
) -> None:
    assert Frequencies.listed(counts).most_of_rare == most


@pytest.mark.parametrize("count", [-1, math.nan, math.inf, "3", None])
def test_a_count_is_a_number_from_0(count: object) -> None:
    with pytest.raises(CorpusError, match=r"finite number from 0 on, got .* for 'b'"):
        Frequencies.listed({"a": 1, "b": count})


def test_an_empty_list_of_frequencies_is_refused() -> None:
    with pytest.raises(CorpusError, match="at least one word"):
        Frequencies.listed({})


# ----------------------------------------------------------------------------------------------------- parts of speech

DRAWN = heads([".5 .2 .1", ".3 .6 .1", ".2 .4 .4"])


def tagged(*tags: int) -> PartsOfSpeech:
    return PartsOfSpeech(("A", "B"), {0: np.array(tags)})


def test_attention_divides_by_tag_of_both_words() -> None:
    batch, analyzer = whole_words(3), tagged(0, 1, 0)
    # between words .3 + .4 + .6 = 1.3; to the second .2 + .4, from it .4
    assert scores_of(analyzer, between(batch, DRAWN), batch) == {
        "lexical.to_upos[A]": [round(0.7 / 1.3, 10)],
        "lexical.to_upos[B]": [round(0.6 / 1.3, 10)],
        "lexical.from_upos[A]": [round(0.9 / 1.3, 10)],
        "lexical.from_upos[B]": [round(0.4 / 1.3, 10)],
    }
    assert support_of(analyzer, between(batch, DRAWN), batch) == {
        "lexical.to_upos[A]": 3,
        "lexical.to_upos[B]": 2,
        "lexical.from_upos[A]": 2,
        "lexical.from_upos[B]": 1,
    }


def test_words_of_other_tags_are_in_the_whole() -> None:
    batch, analyzer = whole_words(3), tagged(0, 1, -1)
    scores = scores_of(analyzer, between(batch, DRAWN), batch)
    assert scores["lexical.to_upos[A]"] == [round(0.5 / 1.3, 10)]
    assert scores["lexical.from_upos[B]"] == [round(0.4 / 1.3, 10)]


def test_inputs_without_tags_are_in_no_whole() -> None:
    batch, analyzer = whole_words(3, 3), tagged(0, 1, 0)
    both = totals(analyzer, between(batch, DRAWN, DRAWN), batch)
    alone = totals(analyzer, between(whole_words(3), DRAWN), whole_words(3))
    for key, value in alone.items():
        torch.testing.assert_close(both[key], value)


def test_a_decoder_without_a_special_token_has_no_attention_to_its_sink() -> None:
    batch, analyzer = whole_words(3), tagged(0, 1, 0)
    attention = between(batch, DRAWN.tril(), is_causal=True)
    assert list(scores_of(analyzer, attention, batch).values()) == [[0], [1], [1], [0]]  # from 2 to 1 alone
    assert list(support_of(analyzer, attention, batch).values()) == [0, 1, 1, 0]


def test_chance_of_a_tag_is_its_share_by_tokens() -> None:
    batch, analyzer = tokens_of("S 0 1 1 2 S"), tagged(0, 1, 0)
    uniform = between(batch, heads([".1 .2 .1"] * 3))
    chance = plain(analyzer.chance(totals(analyzer, uniform, batch)))
    # between words .3 + .2 + .3; to the second .4, from it .2
    assert list(chance.values()) == [[0.5], [0.5], [0.75], [0.25]]


def test_tags_of_30_words_with_a_token_are_scored() -> None:
    first = parsed(*["a NOUN 0 root"] * FEWEST_OF_TAG, *["b VERB 1 x"] * (FEWEST_OF_TAG - 1), *["c _ 1 x"] * 40)
    second = parsed("c VERB 0 root", "d ADJ 1 x")
    words = len(first.words)
    sentences = [first, second, bare("no tags")]
    scored = {0: seen(words), 1: seen(2), 2: seen(2)}
    assert frequent_tags(sentences, scored) == ("NOUN", "VERB")
    assert frequent_tags(sentences, scored | {1: seen(2, without=(0,))}) == ("NOUN",)
    assert frequent_tags(sentences, {1: seen(2)}) == ()
    assert FEWEST_OF_TAG == 30


def test_tags_are_numbered_in_the_inputs_that_have_them() -> None:
    sentences = [parsed("a X 0 root", "b NOUN 1 x"), bare("no tags"), parsed("c VERB 0 root", "d NOUN 1 x")]
    scored = {0: seen(2), 1: seen(2), 2: seen(2)}
    found = numbered_tags(sentences, scored, ("NOUN", "VERB"))
    assert {number: row.tolist() for number, row in found.items()} == {0: [-1, 0], 2: [1, 0]}


# ---------------------------------------------------------------------------------------------------------- same lemma

DOGS = parsed(
    "Dog NOUN 2 nsubj dog",
    "see VERB 0 root",
    "dog NOUN 2 obj DOG",
    "the DET 2 det",
    "saw VERB 2 x see",
    "the DET 2 det",
)
LEMMAS = heads(
    [".1 .4 .3 . . .", ".1 . . .1 .2 .", ".5 .1 . .3 . .", ". . . . . 1", ".1 .7 . . .1 .", ". . . 1 . ."],
)


def same_lemma(*sentences: Sentence) -> SameLemma:
    return SameLemma(*content_words(sentences, {n: seen(len(s.words)) for n, s in enumerate(sentences)}))


def test_attention_to_the_same_lemma() -> None:
    batch, analyzer = whole_words(6), same_lemma(DOGS)
    attention = between(batch, LEMMAS)
    # dog to dog .3 and .5, see to saw .2, saw to see .7; "the" is no content word; the first dog prefers "see"
    assert scores_of(analyzer, attention, batch) == {
        SAME_LEMMA: [round(1.7 / 4, 10)],
        OTHER_FORM: [round(0.9 / 2, 10)],
        SAME_LEMMA_STRONGEST: [0.75],
    }
    assert support_of(analyzer, attention, batch) == {SAME_LEMMA: 4, OTHER_FORM: 2, SAME_LEMMA_STRONGEST: 4}


def test_a_decoder_is_asked_where_the_lemma_came_before() -> None:
    batch, analyzer = tokens_of("S 0 1 2 3 4 5"), same_lemma(DOGS)
    attention = between(batch, LEMMAS.tril(), is_causal=True)
    assert scores_of(analyzer, attention, batch) == {
        SAME_LEMMA: [0.6],
        OTHER_FORM: [0.7],
        SAME_LEMMA_STRONGEST: [1],
    }
    assert support_of(analyzer, attention, batch) == {SAME_LEMMA: 2, OTHER_FORM: 1, SAME_LEMMA_STRONGEST: 2}


def test_chance_of_the_same_lemma() -> None:
    batch, analyzer = tokens_of("S 0 1 2 3 4 4 5 S"), same_lemma(DOGS)
    uniform = between(batch, heads([".1 .1 .1 .1 .2 .1"] * 6))
    chance = plain(analyzer.chance(totals(analyzer, uniform, batch)))
    # "saw" has most tokens: from see it is the strongest; from saw itself all five others are alike
    assert chance == {SAME_LEMMA: [0.125], OTHER_FORM: [0.15], SAME_LEMMA_STRONGEST: [round((1 + 1 / 5) / 4, 10)]}


def test_content_words_are_told_apart_by_lemma_and_form_in_whatever_letters() -> None:
    found = content_words([DOGS, bare("dog dog")], {0: seen(6), 1: seen(2)})
    lemma_of, form_of = ({number: row.tolist() for number, row in rows.items()} for rows in found)
    assert list(lemma_of) == list(form_of) == [0]
    lemmas, forms = lemma_of[0], form_of[0]
    assert lemmas[0] == lemmas[2] != lemmas[1] == lemmas[4]
    assert lemmas[3] == lemmas[5] == -1
    assert forms[0] == forms[2]
    assert len(set(forms)) == 4


def test_a_lemma_that_is_not_annotated_is_that_of_no_other_word() -> None:
    analyzer, batch = same_lemma(parsed("a NOUN 0 root _", "a NOUN 1 x _", "b NOUN 1 x b")), whole_words(3)
    assert set(support_of(analyzer, between(batch, DRAWN), batch).values()) == {0}


# ------------------------------------------------------------------------------------------------------------ subwords


def subwords(rows: list[str], drawing: str, *, is_causal: bool = False, start: int = 0) -> dict[str, Tensor]:
    """[head]: the sums of one input with one head."""
    sums = Subwords().observe(of_tokens(draw(rows)[None, None], is_causal=is_causal, start=start), tokens_of(drawing))
    return {key: value.sum(dim=0) for key, value in sums.items()}


PIECES = "S 0 0 0 1 - 2 2 S"
OF_PIECES = [
    "1 . . . . . . . .",
    ".9 .1 . . . . . . .",  # the first token of a word behind a special one is asked about nothing
    ". .4 .5 .1 . . . . .",  # its own weight and that of the pieces behind it do not count
    ". .2 .3 .5 . . . . .",
    ". . .5 .25 .25 . . . .",
    ". . . . . 1 . . .",
    ". . . . . .8 .2 . .",  # in front of the word is a token of no word
    ". . . . . .1 .6 .3 .",
    ". . . . . . . . 1",
]


def test_attention_to_earlier_pieces_of_the_same_word_and_across_words() -> None:
    sums = subwords(OF_PIECES, PIECES)
    assert plain(Subwords().score(sums)) == {MERGE: [0.5], PREVIOUS: [0.25]}  # (.4 + .5 + .6) / 3
    assert plain(Subwords().support(sums)) == {MERGE: [3], PREVIOUS: [1]}


@pytest.mark.parametrize("stops", [[4, 9], [1, 2, 3, 4, 5, 6, 7, 8, 9], [8, 9]])
def test_slices_of_rows_add_up(stops: list[int]) -> None:
    expected, found = subwords(OF_PIECES, PIECES), dict[str, Tensor]()
    for start, stop in zip([0, *stops], stops, strict=False):
        for key, value in subwords(OF_PIECES[start:stop], PIECES, start=start).items():
            found[key] = found.get(key, torch.zeros(())) + value
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value)


def test_keys_may_end_with_the_last_row_of_a_slice() -> None:
    rows = ["1 . . . .", ".2 .8 . . .", ".1 .5 .4 . .", ". .3 .6 .1 .", ". . .2 .7 .1"]
    drawing = "S 0 0 0 1"
    whole = subwords(rows, drawing, is_causal=True)
    first = subwords([" ".join(row.split()[:3]) for row in rows[:3]], drawing, is_causal=True)
    rest = subwords(rows[3:], drawing, is_causal=True, start=3)
    for key, value in whole.items():
        torch.testing.assert_close(first[key] + rest[key], value)
    assert plain(Subwords().score(whole)) == {MERGE: [0.7], PREVIOUS: [0.7]}  # (.5 + .9) / 2, and .7


CAUSAL = ["1 . . . .", ".9 .1 . . .", ".2 .7 .1 . .", ".3 . .6 .1 .", ".1 .1 .1 .5 .2"]


@pytest.mark.parametrize("padding", ["", ". . "])
def test_the_first_token_of_a_decoder_is_no_piece_of_a_word(padding: str) -> None:
    pads = len(padding.split())
    rows = ["1 " + ". " * (4 + pads)] * pads + [". " * pads + row for row in CAUSAL]
    # of "0 0" nothing is asked; from the third to the second, from the fourth to the third, from the last to the fourth
    sums = subwords(rows, f"{padding}0 0 1 1 2", is_causal=True)
    assert plain(Subwords().score(sums)) == {MERGE: [0.6], PREVIOUS: [0.6]}
    assert plain(Subwords().support(sums)) == {MERGE: [1], PREVIOUS: [2]}
    # the second word stands behind the first token, which is the resting place
    sums = subwords(rows, f"{padding}0 1 2 2 3", is_causal=True)
    assert plain(Subwords().score(sums)) == {MERGE: [0.6], PREVIOUS: [0.6]}
    assert plain(Subwords().support(sums)) == {MERGE: [1], PREVIOUS: [2]}


def test_the_first_token_of_an_encoder_is_a_token_like_others() -> None:
    sums = subwords(CAUSAL, "0 0 1 1 2")
    assert plain(Subwords().score(sums)) == {MERGE: [0.75], PREVIOUS: [0.6]}
    assert plain(Subwords().support(sums)) == {MERGE: [2], PREVIOUS: [2]}


def test_without_a_split_word_there_is_no_score() -> None:
    sums = subwords(CAUSAL, "S 0 1 2 3", is_causal=True)
    assert plain(Subwords().support(sums)) == {MERGE: [0], PREVIOUS: [0]}
    assert sums["rows"].tolist() == [[0, 3]]


def test_words_on_the_same_tokens_count_once() -> None:
    batch = tokens_of("S 0 0 2 S")
    batch.words[0, 1] = batch.words[0, 0]
    drawn = draw(["1 . . . .", ". 1 . . .", ". .3 .7 . .", ". .1 .4 .5 .", "1 . . . ."])
    sums = {key: value.sum(dim=0) for key, value in Subwords().observe(of_tokens(drawn[None, None]), batch).items()}
    assert plain(Subwords().score(sums)) == {MERGE: [0.3], PREVIOUS: [0.4]}
    assert plain(Subwords().support(sums)) == {MERGE: [1], PREVIOUS: [1]}


def test_text_without_words_is_refused() -> None:
    batch = tokens_of("S 0 0 S")
    text = Batch(batch.input_ids, batch.attention_mask, batch.special, batch.document)
    with pytest.raises(MissingAnnotation, match="encode_words"):
        Subwords().observe(of_tokens(torch.full((1, 1, 4, 4), 0.25)), text)


# -------------------------------------------------------------------------------------------- whole passes of a model

SENTENCES = (
    parsed("The DET 2 det", "dogs NOUN 3 nsubj dog", "saw VERB 0 root see", "a DET 5 det", "Dog NOUN 3 obj dog"),
    parsed("See VERB 0 root see", "cats NOUN 1 obj cat"),
    parsed(
        "Cats NOUN 2 nsubj cat",
        "see VERB 0 root see",
        "what PRON 2 obj",
        "dogs NOUN 5 nsubj dog",
        "see VERB 3 acl see",
        "in ADP 7 case",
        "cats NOUN 5 obl cat",
        "seen VERB 7 acl see",
    ),
    parsed("one NUM 0 root", "of ADP 3 case", "dogs NOUN 1 nmod dog", "saw VERB 1 acl see", "dogs NOUN 4 obj dog"),
    bare("not annotated at all"),
)
# word 1 of the fourth sentence has no token
TOKENS = {
    False: [
        "S 0 1 1 2 3 4 4 S",
        "S 0 0 1 S",
        "S 0 1 1 2 3 3 3 4 - 5 6 7 7 S",
        "S 0 2 2 3 4 4 S",
        "S 0 1 1 2 3 S",
    ],
    True: ["0 1 1 2 3 4 4", "0 0 1", "0 0 1 2 3 3 3 4 - 5 6 7 7", "- 0 2 2 3 4 4", "0 1 1 2 3"],
}
WITHOUT = {3: (1,)}
COUNTS = {"the": 90, "a": 80, "of": 70, "in": 60, "see": 50, "dogs": 8, "cats": 8, "saw": 4, "dog": 3, "what": 30}
MOST = 8.0  # of eleven forms and more, see Frequencies: tested above
TAGS = ("NOUN", "VERB")


def scored_inputs(is_causal: bool) -> dict[int, ScoredInput]:
    return {
        number: seen(len(s.words), is_causal=is_causal, has_sink=is_causal, without=WITHOUT.get(number, ()))
        for number, s in enumerate(SENTENCES)
    }


def analyzers_of(is_causal: bool) -> list[Scorer]:
    scored = scored_inputs(is_causal)
    frequencies = Frequencies.listed(COUNTS)
    return [
        Subwords(),
        RareWords({number: frequencies.of(SENTENCES[number].words) for number in scored}, MOST),
        PartsOfSpeech(TAGS, numbered_tags(SENTENCES, scored, TAGS)),
        SameLemma(*content_words(SENTENCES, scored)),
    ]


def batches(is_causal: bool, how: str) -> Iterator[Batch]:
    orders = {"together": [[0, 1, 2, 3, 4]], "shuffled": [[4, 1], [2, 0, 3]], "alone": [[3], [1], [4], [0], [2]]}
    for order in orders[how]:
        drawn = [TOKENS[is_causal][number].split() for number in order]
        width = max(map(len, drawn))
        rows = [" ".join(cells + ["."] * (width - len(cells))) for cells in drawn]
        yield tokens_of(*rows, inputs=order)


Sums = dict[str, list]  # by metric: what is added up (an array of heads), how often, and how much of it by chance


def add(found: Sums, name: str, value: object, by_chance: float = math.nan, weight: float = 1) -> None:
    entry = found.setdefault(name, [0.0, 0.0, 0.0])
    entry[0] = entry[0] + np.asarray(value, dtype=float)
    entry[1] += weight
    entry[2] += by_chance


def slow_input(found: Sums, probs: np.ndarray, number: int, is_causal: bool) -> None:
    """Add an input; `probs` [head, query, key], with a uniform head at the end."""
    sentence, cells = SENTENCES[number], TOKENS[is_causal][number].split()
    members = [[place for place, cell in enumerate(cells) if cell == str(word)] for word in range(len(sentence.words))]
    paid = np.zeros((len(probs), len(members), len(members)))
    for word, rows in enumerate(members):
        for to, columns in enumerate(members):
            if rows:
                paid[:, word, to] = probs[:, rows][:, :, columns].sum(axis=2).mean(axis=1)
    words = [word for word, places in enumerate(members) if places]
    words = words[1:] if is_causal else words  # the first is the sink
    for word in words:
        others = [other for other in words if (other < word if is_causal else other != word)]
        if others:
            slow_rare(found, paid, sentence, word, others, members)
            slow_lemma(found, paid, sentence, word, others, members)
            slow_tags(found, paid, sentence, word, others)
    slow_pieces(found, probs, cells, is_causal)


def hits(paid: np.ndarray, word: int, others: list[int], right: list[int], members: list) -> tuple[np.ndarray, float]:
    chosen = [max(others, key=lambda other, h=h: paid[h, word, other]) in right for h in range(len(paid))]
    most = max(len(members[other]) for other in others)
    drawn = [other for other in others if len(members[other]) == most]
    return np.array(chosen), sum(other in right for other in drawn) / len(drawn)


def slow_rare(
    found: Sums, paid: np.ndarray, sentence: Sentence, word: int, others: list[int], members: list
) -> None:  # fmt: skip
    count = {other: COUNTS.get(sentence.words[other].lower(), 0) for other in others}
    ranked = sorted(count.values())
    if ranked[0] > MOST:
        return
    for name, place in ((RAREST, 0), (TWO_RAREST, 1)):
        right = [other for other in others if place < len(ranked) and count[other] <= ranked[place]]
        if 0 < len(right) < len(others):
            add(found, name, *hits(paid, word, others, right, members))


def slow_lemma(
    found: Sums, paid: np.ndarray, sentence: Sentence, word: int, others: list[int], members: list
) -> None:  # fmt: skip
    if sentence.lemmas is None or sentence.upos[word] not in ("NOUN", "VERB"):
        return
    same = [other for other in others if sentence.lemmas[other] == sentence.lemmas[word]]
    unlike = [other for other in same if sentence.words[other].lower() != sentence.words[word].lower()]
    if same:
        add(found, SAME_LEMMA, paid[:, word, same].sum(axis=1))
        add(found, SAME_LEMMA_STRONGEST, *hits(paid, word, others, same, members))
    if unlike:
        add(found, OTHER_FORM, paid[:, word, unlike].sum(axis=1))


def slow_tags(found: Sums, paid: np.ndarray, sentence: Sentence, word: int, others: list[int]) -> None:
    if sentence.upos is None:
        return
    whole = paid[:, word, others].sum(axis=1)
    for tag in TAGS:
        to = [other for other in others if sentence.upos[other] == tag]
        add(found, f"lexical.to_upos[{tag}]", paid[:, word, to].sum(axis=1), weight=bool(to))
        add(found, f"lexical.from_upos[{tag}]", whole * (sentence.upos[word] == tag), weight=sentence.upos[word] == tag)
    add(found, "between", whole)


def slow_pieces(found: Sums, probs: np.ndarray, cells: list[str], is_causal: bool) -> None:
    for token in range(1, len(cells)):
        if not cells[token].isdigit():
            continue
        since = cells.index(cells[token]) if cells[token - 1] == cells[token] else token - 1
        if cells[since].isdigit() and not (is_causal and since == 0):
            name = MERGE if cells[token - 1] == cells[token] else PREVIOUS
            add(found, name, probs[:, token, since:token].sum(axis=1))


@pytest.fixture(scope="module", params=["bert", "gpt2"])
def slow(request: pytest.FixtureRequest) -> tuple[str, list[Sums]]:
    """A family, and of each layer of its tiny model the sums of all sentences."""
    is_causal, model = request.param == "gpt2", tiny_model(request.param)
    found: list[Sums] = [{} for _ in range(3)]
    for number, drawing in enumerate(TOKENS[is_causal]):
        batch = tokens_of(drawing, inputs=[number])
        inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask.long()}
        (layers,) = slow_attentions(model, inputs).values()
        count = batch.input_ids.shape[1]
        uniform = np.tril(np.ones((count, count))) if is_causal else np.ones((count, count))
        uniform /= uniform.sum(axis=1, keepdims=True)
        for sums, layer in zip(found, layers, strict=True):
            slow_input(sums, np.concatenate([layer[0].numpy(), uniform[None]]), number, is_causal)
    return request.param, found


def passed(family: str, how: str) -> ScoreTable:
    is_causal = family == "gpt2"
    return analyze(
        tiny_model(family), batches(is_causal, how), analyzers_of(is_causal), documents=5
    ).scores()  # fmt: skip


@pytest.mark.parametrize("how", ["together", "shuffled", "alone"])
def test_a_pass_equals_a_plain_loop(slow: tuple[str, list[Sums]], how: str) -> None:
    family, layers = slow
    table = passed(family, how)
    assert set(table.names) == set(layers[0]) - {"between"}
    for name in table.names:
        place = table.index(name)
        for layer, sums in enumerate(layers):
            total, count, drawn = sums[name]
            whole = sums["between"][0] if "upos" in name else count
            scores = total / whole
            np.testing.assert_allclose(table.values[place, layer], scores[:-1], rtol=1e-9, err_msg=name)
            assert set(table.support[place, layer]) == {count}, name
            expected = scores[-1] if math.isnan(drawn) else drawn / count
            assert table.chance[place] == pytest.approx(expected, rel=1e-9), name


def test_the_loop_asks_about_enough_for_a_mistake_to_show(slow: tuple[str, list[Sums]]) -> None:
    _, (sums, *_) = slow
    assert all(count >= 2 for _, count, _ in sums.values()), {name: entry[1] for name, entry in sums.items()}


# ------------------------------------------------------------------------------------------------------------ contract


def words_analyzers() -> list[WordAnalyzer]:
    return [one for one in analyzers_of(False) if isinstance(one, WordAnalyzer)]


@pytest.mark.parametrize("which", range(3), ids=["rare words", "parts of speech", "same lemma"])
def test_analyzers_change_nothing_that_they_are_shown(which: int) -> None:
    analyzer, batch = words_analyzers()[which], whole_words(5, 2)
    attention = between(batch, *random_heads(3, 5, 2))
    before = (attention.probs.clone(), attention.candidates.clone(), batch.words.clone())
    first = {key: value.clone() for key, value in analyzer.observe(attention, batch).items()}
    second = analyzer.observe(attention, batch)
    assert all(torch.equal(first[key], second[key]) for key in first)
    for kept, now in zip(before, (attention.probs, attention.candidates, batch.words), strict=True):
        assert torch.equal(kept, now)


@pytest.mark.parametrize("which", range(3), ids=["rare words", "parts of speech", "same lemma"])
def test_names_of_scores_supports_and_metrics_agree_and_none_has_a_mean_of_inputs(which: int) -> None:
    analyzer, batch = words_analyzers()[which], whole_words(5)
    sums = totals(analyzer, between(batch, *random_heads(2, 5)), batch)
    names = [metric.name for metric in analyzer.metrics]
    assert list(analyzer.score(sums)) == names
    assert set(analyzer.support(sums)) == set(analyzer.chance(sums)) == analyzer.without_macro == set(names)


def test_all_analyzers_of_a_corpus() -> None:
    sentence = parsed(*["dogs NOUN 0 root dog"] * 29, "Dogs NOUN 1 x dog", "bark VERB 1 x", "Bark VERB 1 x bark")
    subwords_, rare_words, tags, lemmas = lexical([sentence, bare("dogs dogs bark")], {0: seen(32)})
    assert isinstance(subwords_, Subwords)
    assert isinstance(rare_words, RareWords)
    assert rare_words.frequency_of[0].tolist() == [32] * 30 + [3] * 2  # in sentences that are not read, too
    assert rare_words.most == 3
    assert [metric.name for metric in tags.metrics] == ["lexical.to_upos[NOUN]", "lexical.from_upos[NOUN]"]
    assert isinstance(lemmas, SameLemma)
    assert list(lemmas.lemma_of) == [0]


def test_without_annotation_only_forms_are_scored() -> None:
    assert [one.name for one in lexical([bare("dogs bark")], {0: seen(2)})] == ["subwords", "rare_words"]


def test_frequencies_may_come_from_elsewhere() -> None:
    counts = {"Dogs": 0.5, "bark": 0.25, "the": 2.0}
    _, rare_words, *_ = lexical([bare("dogs bark aloud")], {0: seen(3)}, counts=counts)
    assert isinstance(rare_words, RareWords)
    assert rare_words.frequency_of[0].tolist() == [0.5, 0.25, 0]
    assert rare_words.most == 0.5
