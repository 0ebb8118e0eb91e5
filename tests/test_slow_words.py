"""The slow reference itself: treebanks of a few words and drawn attention whose scores are known by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from slow_words import (
    LeftOut,
    Passage,
    Seen,
    Tallies,
    Tokens,
    baseline_counts,
    candidates_of,
    choose,
    chunks,
    coreference_counts,
    encode,
    expected_counts,
    head_word,
    joined,
    load_treebank,
    model_limit,
    null_counts,
    phrase_accuracy,
    phrases,
    profile_of,
    slow_baselines,
    slow_coreference,
    slow_expected,
    slow_profile_null,
    slow_syntax,
    syntax_counts,
    watch,
    word_attention,
)
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, PreTrainedTokenizerFast, RobertaConfig

# -------------------------------------------------------------------------------------------------------------- drawing


def passage(rows: str, **more: Any) -> Passage:
    """One word a line: form, part of speech, head (counted from 1), relation, and the lemma where it matters."""
    words = [line.split() for line in rows.strip().splitlines()]
    forms, upos, heads, relations, *lemmas = zip(*words, strict=True)
    text = " ".join(forms)
    starts = [len(" ".join(forms[:number])) + (number > 0) for number in range(len(forms))]
    return Passage(
        forms=list(forms),
        upos=list(upos),
        heads=[int(head) - 1 for head in heads],
        relations=list(relations),
        lemmas=list(lemmas[0]) if lemmas else [form.lower() for form in forms],
        **{
            "text": text,
            "spans": [(start, start + len(form)) for start, form in zip(starts, forms, strict=True)],
            **more,
        },
    )


def draw(rows: str) -> np.ndarray:
    """Attention of one head, [word, word]; a dot is 0."""
    return np.array([[0.0 if value == "." else float(value) for value in line.split()] for line in rows.splitlines()])


def seen(words: Passage, *heads: np.ndarray, of_word: list[list[int]] | None = None, is_causal: bool = False) -> Seen:
    """Heads of one layer; every word has one token, and a special token stands in front, unless told otherwise."""
    tokens = Tokens({}, of_word or [[place + 1] for place in range(len(words.forms))])
    return Seen(words, np.stack(heads)[None], candidates_of(tokens, is_causal=is_causal))


def told(tallies: Tallies) -> dict[str, tuple[list[float], int]]:
    """Right answers of the one layer, by head, and all items."""
    return {name: (np.atleast_2d(tally.right)[0].tolist(), tally.total) for name, tally in tallies.items()}


def only(tallies: Tallies, start: str) -> dict[str, tuple[list[float], int]]:
    """The metrics of one kind, by what stands in their brackets."""
    return {name[len(start) + 1 : -1]: found for name, found in told(tallies).items() if name.startswith(f"{start}[")}


# ------------------------------------------------------------------------------------------------------------ treebanks

TREEBANK = """\
# newdoc id = first
# text = Wir geh'n im Wald.
1	Wir	wir	PRON	_	_	2	nsubj	_	Entity=(7-person-new-x)
2-3	geh'n	_	_	_	_	_	_	_	SpaceAfter=No
2	geh'	gehen	VERB	_	_	0	root	0:root	_
3	n	ein	DET	_	_	6	det	_	_
3.1	etwas	_	_	_	_	_	_	9:x	Entity=(99-x
4-5	im	_	_	_	_	_	_	_	_
4	in	in	ADP	_	_	6	case	_	_
5	dem	der	DET	_	_	6	det	_	_
6	Wald	Wald	NOUN	_	_	2	obl:arg	_	Note=a b|SpaceAfter=No
7	.	.	PUNCT	_	_	2	punct	_	_

# sent_id = 2
1	Ja	ja	INTJ	_	_	0	root	_	SpaceAfter=No

# newdoc id = second
1	Nein	nein	INTJ	_	_	0	root	_	_

"""


@pytest.fixture
def treebank(tmp_path: Path) -> list[Passage]:
    path = tmp_path / "a.conllu"
    path.write_text(TREEBANK, encoding="utf-8")
    return load_treebank(path)


def test_words_are_the_rows_with_whole_numbers(treebank: list[Passage]) -> None:
    first = treebank[0]
    assert first.forms == ["Wir", "geh'", "n", "in", "dem", "Wald", "."]
    assert first.heads == [1, -1, 5, 5, 5, 1, 1]
    assert first.relations == ["nsubj", "root", "det", "case", "det", "obl:arg", "punct"]
    assert first.upos == ["PRON", "VERB", "DET", "ADP", "DET", "NOUN", "PUNCT"]
    assert first.lemmas == ["wir", "gehen", "ein", "in", "der", "Wald", "."]
    assert first.mentions == [(0, 1, "7")]


def test_words_that_do_not_spell_their_token_share_its_characters(treebank: list[Passage]) -> None:
    assert treebank[0].text == "Wir geh'nim Wald."
    assert treebank[0].spans == [(0, 3), (4, 8), (8, 9), (9, 11), (9, 11), (12, 16), (16, 17)]


def test_documents_and_spaces(treebank: list[Passage]) -> None:
    assert [sentence.document for sentence in treebank] == ["first", "first", "second"]
    assert [sentence.space_after for sentence in treebank] == [True, False, True]


@pytest.mark.parametrize(
    ("entities", "expected"),
    [
        ({"1": "(3-x(3-x)", "2": "3)"}, [(0, 1, "3"), (0, 2, "3")]),
        ({"1": "(3-x", "2": "(3-x", "3": "3)", "4": "3)"}, [(0, 4, "3"), (1, 3, "3")]),  # the last opened closes first
        ({"1": "(1-x-a%2Db(2-x", "2": "2)1)"}, [(0, 2, "1"), (0, 2, "2")]),
        ({"1": "(1-x", "2": "1)(2-x", "3": "2)(4-x)"}, [(0, 2, "1"), (1, 3, "2"), (2, 3, "4")]),
        ({"2-3": "(5-x)"}, [(1, 3, "5")]),
        ({"1": "(5-x", "2-3": "5)"}, [(0, 3, "5")]),
        ({"2-3": "(5-x", "3": "(5-x)", "4": "5)"}, [(1, 4, "5"), (2, 3, "5")]),
        # both open before word 2: that of the multiword token is the outer one
        ({"2-3": "(5-x", "2": "(5-x", "3": "5)", "4": "5)"}, [(1, 3, "5"), (1, 4, "5")]),
        ({"2": "(5-x", "2-3": "6)", "3": "5)", "1": "(6-x"}, [(0, 3, "6"), (1, 3, "5")]),
    ],
)
def test_brackets_of_entities(tmp_path: Path, entities: dict[str, str], expected: list[tuple[int, int, str]]) -> None:
    def row(number: str) -> str:
        misc = f"Bridge=1<2|Entity={entities[number]}" if number in entities else "_"
        return "\t".join([number, "ab" if "-" in number else "a", "_", "X", "_", "_", "0", "dep", "_", misc])

    path = tmp_path / "a.conllu"
    path.write_text("\n".join(row(number) for number in ("1", "2-3", "2", "3", "4")) + "\n\n", encoding="utf-8")
    assert load_treebank(path)[0].mentions == expected


@pytest.mark.parametrize(
    ("sizes", "documents", "expected"),
    [
        ([60, 60, 1], "aaa", [120, 1]),
        ([60, 61, 59, 130, 5], "aaaaa", [60, 120, 130, 5]),
        ([1, 2, 3], "aab", [3, 3]),
    ],
)
def test_chunks_are_whole_sentences_of_one_document(sizes: list[int], documents: str, expected: list[int]) -> None:
    sentences = [passage("a X 0 root\n" * size, document=name) for size, name in zip(sizes, documents, strict=True)]
    assert [len(chunk.forms) for chunk in chunks(sentences)] == expected


def test_joined_sentences_count_words_and_characters_on() -> None:
    first = passage("so ADV 2 advmod\nbe AUX 0 root", mentions=[(1, 2, "1")], space_after=False)
    second = passage("it PRON 2 nsubj\nis AUX 0 root", mentions=[(0, 2, "1")])
    whole = joined([first, second, second])
    assert whole.text == "so beit is it is"
    assert [whole.text[start:stop] for start, stop in whole.spans] == whole.forms == "so be it is it is".split()
    assert whole.heads == [1, -1, 3, -1, 5, -1]
    assert whole.mentions == [(1, 2, "1"), (2, 4, "1"), (4, 6, "1")]
    assert first.forms == ["so", "be"]


# ----------------------------------------------------------------------------------------------- words and their tokens

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##happy", "dog"]


@pytest.fixture
def word_pieces() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordPiece({piece: id for id, piece in enumerate(PIECES)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    )


@pytest.fixture
def spaced_words() -> PreTrainedTokenizerFast:
    """Tokens begin with the space before them, as those of GPT-2; nothing special is added."""
    vocabulary = {word: id for id, word in enumerate(["?", "im", "Ġdog", "Ġ", "s", "cannot", "Ġ."])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?")


def test_word_piece_tokenizers_get_the_words(word_pieces: PreTrainedTokenizerFast) -> None:
    # the text would be cut at other places; the tokenizer drops a zero-width space
    words = passage("Unhappy ADJ 3 amod\n\u200b X 3 dep\nundog NOUN 0 root\ndog NOUN 3 flat", text="dog", spans=[])
    tokens = encode(word_pieces, words)
    assert tokens.inputs["input_ids"] == [2, 4, 5, 1, 6, 3]
    assert tokens.of_word == [[1, 2], [], [3], [4]]


def test_other_tokenizers_get_the_text(spaced_words: PreTrainedTokenizerFast) -> None:
    words = passage(
        "in ADP 3 case\ndem DET 3 det\ndog NOUN 0 root\n. PUNCT 3 punct",
        text="im dog .",
        spans=[(0, 2), (0, 2), (3, 6), (7, 8)],
    )
    tokens = encode(spaced_words, words)
    assert tokens.inputs["input_ids"] == [1, 2, 6]
    assert tokens.of_word == [[0], [0], [1], [2]]


def test_a_token_belongs_to_the_word_it_begins_in(spaced_words: PreTrainedTokenizerFast) -> None:
    words = passage(
        "can AUX 3 aux\nnot PART 3 advmod\ndog X 0 root", text="cannot   dog", spans=[(0, 3), (3, 6), (9, 12)]
    )
    tokens = encode(spaced_words, words)
    assert tokens.inputs["input_ids"][0] == 5
    assert tokens.of_word == [[0], [], [2]]  # token 1 is made of spaces


def test_words_without_a_space_between_them(spaced_words: PreTrainedTokenizerFast) -> None:
    words = passage("im X 0 root\n. PUNCT 1 punct\ndog X 1 dep", text="im. dog", spans=[(0, 2), (2, 3), (4, 7)])
    assert encode(spaced_words, words).of_word == [[0], [1], [2]]


def test_attention_between_words() -> None:
    # tokens: special, a, a, b, special; the second word has none
    tokens = draw(
        """9 1 2 3 9
9 1 2 4 9
9 3 8 6 9
9 5 7 1 9
9 1 1 1 1"""
    )
    expected = draw(
        """7 . 5
. . .
12 . 1"""
    )
    stacked = np.stack([[tokens, 2 * tokens]])
    assert np.array_equal(word_attention(stacked, [[1, 2], [], [3]]), np.stack([[expected, 2 * expected]]))


def test_candidates_of_an_encoder_are_all_other_words_with_tokens() -> None:
    expected = [[0, 0, 1, 1], [0, 0, 0, 0], [1, 0, 0, 1], [1, 0, 1, 0]]
    found = candidates_of(Tokens({}, [[0], [], [1, 2], [3]]), is_causal=False)
    assert found.astype(int).tolist() == expected


@pytest.mark.parametrize(
    ("of_word", "expected"),
    [
        ([[1], [2], [3], [4]], [[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]]),  # a special token in front
        ([[0], [1], [2], [3]], [[0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0]]),
        ([[0], [0], [1], [2]], [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0]]),  # both words are the sink
        ([[1], [2], [], [4]], [[0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0]]),
    ],
)
def test_candidates_of_a_decoder_are_earlier_and_no_sink(of_word: list[list[int]], expected: list[list[int]]) -> None:
    assert candidates_of(Tokens({}, of_word), is_causal=True).astype(int).tolist() == expected


def tiny_bert() -> BertModel:
    config = BertConfig(
        vocab_size=len(PIECES),
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=6,
        initializer_range=0.5,
        attn_implementation="eager",
    )
    return BertModel(config).double().eval()


def test_words_of_a_model(word_pieces: PreTrainedTokenizerFast) -> None:
    """The same from the model's own attention, summed one number after the other."""
    model = tiny_bert()
    words = passage("Unhappy ADJ 2 amod\ndog NOUN 0 root")
    with torch.no_grad():
        layers = model(torch.tensor([[2, 4, 5, 6, 3]]), output_attentions=True).attentions
    (one,) = watch(model, word_pieces, [words])
    assert one.words.shape == (2, 2, 2, 2)
    of_word = [[1, 2], [3]]
    for layer, head, word, other in np.ndindex(one.words.shape):
        paid = [float(layers[layer][0, head, i, j]) for i in of_word[word] for j in of_word[other]]
        assert one.words[layer, head, word, other] == pytest.approx(sum(paid) / len(of_word[word]), rel=1e-12)


def test_what_is_left_out_is_counted(word_pieces: PreTrainedTokenizerFast) -> None:
    sentences = [passage("dog X 0 root\n" * count) for count in (1, 4, 5, 2, 1)]  # the model reads 6 tokens
    left_out = LeftOut()
    found = list(watch(tiny_bert(), word_pieces, sentences, left_out=left_out))
    assert [len(one.passage.forms) for one in found] == [4, 2]
    assert left_out == LeftOut(one_word=2, too_long=1)


def test_given_attention_takes_the_place_of_the_model(word_pieces: PreTrainedTokenizerFast) -> None:
    sentences = [passage("dog X 0 root"), passage("dog X 2 dep\ndog X 0 root")]
    drawn = draw("1 2 3 4\n5 6 7 8\n9 1 2 3\n4 5 6 7")[None, None]
    (one,) = watch(None, word_pieces, sentences, attention=[np.zeros((1, 1, 3, 3)), drawn])
    assert one.words.tolist() == [[[[6, 7], [1, 2]]]]


def test_limits_of_models() -> None:
    from transformers import RobertaModel

    sizes: dict[str, Any] = {"vocab_size": 9, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
    roberta = RobertaModel(RobertaConfig(**sizes, intermediate_size=4, max_position_embeddings=18, pad_token_id=1))
    gpt2 = GPT2Model(GPT2Config(vocab_size=9, n_embd=4, n_layer=1, n_head=1, n_positions=16))
    assert [model_limit(model) for model in (roberta, gpt2, tiny_bert())] == [16, 16, 6]


# -------------------------------------------------------------------------------------------------------------- choices


@pytest.mark.parametrize(
    ("direction", "words", "near"),
    [("row", [2, 0, 0], [False, True, False]), ("column", [2, 0, 1], [True, False, False])],
)
def test_first_of_the_largest_candidates(direction: Any, words: list[int], near: list[bool]) -> None:
    drawn = draw("9 1 4\n5 9 5\n5.000001 3 9")  # the diagonal is no candidate
    found = choose(drawn[None, None], ~np.eye(3, dtype=bool), direction)
    assert found.word.tolist() == [[words if direction == "row" else [2, 2, 1]]]
    assert found.near.tolist() == [[near]]


def test_words_without_candidates_choose_nothing() -> None:
    found = choose(draw("1 2\n3 4")[None, None], np.zeros((2, 2), dtype=bool), "row")
    assert found.word.tolist() == [[[-1, -1]]]
    assert not found.near.any()


# --------------------------------------------------------------------------------------------------------------- syntax

CHASED = passage(
    """
    The    DET   2 det
    dog    NOUN  4 nsubj:pass
    was    AUX   4 aux:pass
    chased VERB  0 root
    .      PUNCT 4 punct
    """
)
CHASED_ATTENTION = draw(
    """9 7 1 1 1
2 9 1 6 .
1 5 9 3 .
3 1 4 9 .
. 2 1 5 9"""
)


def test_right_heads_and_right_dependents() -> None:
    counts = syntax_counts([seen(CHASED, CHASED_ATTENTION, CHASED_ATTENTION.T)])
    # rows choose dog, chased, dog; columns chased, The, chased: the transpose does the one with the other
    assert only(counts, "syntax.dep_to_head") == {
        "ALL": ([2, 1], 3),
        "det": ([1, 0], 1),
        "nsubj": ([1, 0], 1),
        "nsubj:pass": ([1, 0], 1),
        "aux": ([0, 1], 1),
        "aux:pass": ([0, 1], 1),
    }
    assert only(counts, "syntax.head_to_dep") == {
        "ALL": ([1, 2], 3),
        "det": ([0, 1], 1),
        "nsubj": ([0, 1], 1),
        "nsubj:pass": ([0, 1], 1),
        "aux": ([1, 0], 1),
        "aux:pass": ([1, 0], 1),
    }


def test_near_ties_are_counted_with_their_metrics() -> None:
    drawn = CHASED_ATTENTION.copy()
    drawn[2] = [1, 3, 9, 3 + 1e-9, 0]  # was: dog and chased
    counts = syntax_counts([seen(CHASED, drawn, CHASED_ATTENTION)])
    assert counts["syntax.dep_to_head[ALL]"].near.tolist() == [[1, 0]]
    assert counts["syntax.dep_to_head[aux]"].near.tolist() == [[1, 0]]
    assert counts["syntax.dep_to_head[det]"].near.tolist() == [[0, 0]]


def test_words_without_a_token_are_in_no_item_and_chosen_by_none() -> None:
    of_word = [[1], [2], [], [3], [4]]  # was
    counts = syntax_counts([seen(CHASED, CHASED_ATTENTION, of_word=of_word)])
    assert set(only(counts, "syntax.dep_to_head")) == {"ALL", "det", "nsubj", "nsubj:pass"}
    drawn = CHASED_ATTENTION.copy()
    drawn[1, 2] = 8
    counts = syntax_counts([seen(CHASED, drawn, of_word=of_word)])
    assert only(counts, "syntax.dep_to_head")["nsubj"] == ([1], 1)


FRIENDS = passage(
    """
    We      PRON 2 nsubj
    saw     VERB 0 root
    old     ADJ  4 amod
    friends NOUN 2 obj
    there   ADV  2 advmod
    """
)
FRIENDS_ATTENTION = draw(
    """9 . . . .
9 1 . . .
8 1 1 . .
5 2 3 . .
5 3 1 1 ."""
)


def test_decoders_look_back_and_leave_the_sink_out() -> None:
    one = seen(FRIENDS, FRIENDS_ATTENTION, of_word=[[0], [1], [2], [3], [4]], is_causal=True)
    counts = syntax_counts([one])
    assert told(counts) == {
        "syntax.dep_to_head[ALL]": ([1], 2),
        "syntax.dep_to_head[obj]": ([0], 1),
        "syntax.dep_to_head[advmod]": ([1], 1),
        "syntax.head_to_dep[ALL]": ([1], 1),
        "syntax.head_to_dep[amod]": ([1], 1),
    }
    chance, _ = baseline_counts([one])
    assert told(chance)["syntax.dep_to_head[ALL]"] == ([pytest.approx(1 / 2 + 1 / 3)], 2)
    assert told(chance)["syntax.head_to_dep[ALL]"] == ([0.5], 1)


def test_decoders_with_a_special_first_token_have_no_sink() -> None:
    counts = syntax_counts([seen(FRIENDS, FRIENDS_ATTENTION, is_causal=True)])
    assert told(counts) == {
        "syntax.dep_to_head[ALL]": ([0], 2),
        "syntax.dep_to_head[obj]": ([0], 1),
        "syntax.dep_to_head[advmod]": ([0], 1),
        "syntax.head_to_dep[ALL]": ([2], 2),
        "syntax.head_to_dep[amod]": ([1], 1),
        "syntax.head_to_dep[nsubj]": ([1], 1),
        "subject_verb.verb_to_subject": ([1], 1),
    }


def test_chance_and_constant_offsets() -> None:
    chance, offsets = baseline_counts([seen(CHASED, CHASED_ATTENTION, of_word=[[1], [2], [3], [4], []])])
    assert told(chance)["syntax.dep_to_head[ALL]"] == ([1.0], 3)  # each of three has three candidates
    assert told(chance)["syntax.head_to_dep[det]"] == ([pytest.approx(1 / 3)], 1)
    by_offset = {offset: told(found)["syntax.dep_to_head[ALL]"] for offset, found in offsets.items()}
    assert by_offset == {offset: ([{1: 2, 2: 1}.get(offset, 0)], 3) for offset in [*range(-10, 0), *range(1, 11)]}
    assert told(offsets[2])["syntax.head_to_dep[nsubj:pass]"] == ([1], 1)


def test_expectation_deals_the_choices_of_a_sentence_anew() -> None:
    counts = expected_counts([seen(CHASED, CHASED_ATTENTION)])
    # rows choose dog, chased, dog, was, chased: of the words 0 to 3 only the first its neighbour on the right; of
    # the words 0 to 2 only the second the word after that
    assert only(counts, "syntax.dep_to_head") == {
        "ALL": ([pytest.approx(1 / 4 + 1 / 3 + 1 / 4)], 3),
        "det": ([0.25], 1),
        "nsubj": ([pytest.approx(1 / 3)], 1),
        "nsubj:pass": ([pytest.approx(1 / 3)], 1),
        "aux": ([0.25], 1),
        "aux:pass": ([0.25], 1),
    }
    # columns choose chased, The, chased, dog, The
    assert only(counts, "syntax.head_to_dep")["ALL"] == ([0.5], 3)
    assert only(counts, "syntax.head_to_dep")["nsubj"] == ([0], 1)


def test_expectation_asks_only_words_that_could_choose_so() -> None:
    counts = expected_counts([seen(CHASED, CHASED_ATTENTION, of_word=[[1], [2], [3], [4], []])])
    assert only(counts, "syntax.dep_to_head")["det"] == ([pytest.approx(1 / 3)], 1)  # not chased: no candidate after it


# ------------------------------------------------------------------------------------------------- profile of positions

THREE = passage("a NOUN 3 nsubj\nb NOUN 3 obj\nc VERB 0 root")
TWO = passage("d VERB 0 root\ne NOUN 1 obj")
THREE_ATTENTION = draw("9 2 4\n6 9 1\n3 5 9")
TWO_ATTENTION = draw("9 8\n1 9")


def test_profile_is_the_mean_over_the_pairs_of_the_corpus() -> None:
    profile = profile_of([seen(THREE, THREE_ATTENTION), seen(TWO, TWO_ATTENTION)])
    found = {distance: float(mean[0, 0]) for distance, mean in profile.items()}
    assert found == pytest.approx({1: (2 + 1 + 8) / 3, 2: 4, -1: (6 + 5 + 1) / 3, -2: 3})


def test_profile_of_a_decoder_has_what_it_sees_but_for_the_sink() -> None:
    drawn = draw("9 . . .\n8 1 . .\n8 3 1 .\n8 5 4 1")
    words = passage("a X 0 root\n" * 4)
    found = profile_of([seen(words, drawn, of_word=[[0], [1], [2], [3]], is_causal=True)])
    assert {distance: float(mean[0, 0]) for distance, mean in found.items()} == {-1: 3.5, -2: 5}


def test_profile_counts_distance_in_words_over_those_without_a_token() -> None:
    found = profile_of([seen(THREE, THREE_ATTENTION, of_word=[[1], [], [2]])])
    assert {distance: float(mean[0, 0]) for distance, mean in found.items()} == {2: 4, -2: 3}


def test_null_chooses_by_distance_alone() -> None:
    corpus = [
        seen(THREE, THREE_ATTENTION, THREE_ATTENTION.T),
        seen(TWO, TWO_ATTENTION, TWO_ATTENTION.T),
    ]
    # by the profile above the rows of three words choose c, a, b and the columns b, c, a; the transpose swaps them
    counts = null_counts(corpus, profile_of(corpus))
    assert told(counts) == {
        "syntax.dep_to_head[ALL]": ([2, 2], 3),
        "syntax.dep_to_head[nsubj]": ([1, 0], 1),
        "syntax.dep_to_head[obj]": ([1, 2], 2),
        "syntax.head_to_dep[ALL]": ([2, 2], 3),
        "syntax.head_to_dep[nsubj]": ([0, 1], 1),
        "syntax.head_to_dep[obj]": ([2, 1], 2),
        "subject_verb.subject_to_verb": ([1, 0], 1),
        "subject_verb.verb_to_subject": ([0, 1], 1),
    }


# --------------------------------------------------------------------------------------------------- subjects and verbs


@pytest.mark.parametrize(
    ("rows", "verb"),
    [
        ("she PRON 3 nsubj\nis AUX 3 cop\nsees VERB 0 root", 2),
        ("it PRON 3 nsubj\nis AUX 3 cop\ncan AUX 0 root", 2),
        ("she PRON 3 nsubj:outer\nis AUX 3 cop\ntall ADJ 0 root", 1),
        ("tall ADJ 0 root\nis AUX 1 cop:x\nbe AUX 1 cop\neating VERB 1 csubj", 1),
        ("she PRON 2 nsubj\ntall ADJ 0 root\nit PRON 2 expl", None),
        ("she PRON 2 obj\nsees VERB 0 root\nnow ADV 2 advmod", None),
        ("she PRON 3 nsubj\nwas AUX 2 cop\ntall ADJ 0 root", None),  # the copula of another word
    ],
)
def test_the_verb_of_a_subject(rows: str, verb: int | None) -> None:
    words = passage(rows)
    subject = 3 if "csubj" in rows else 0
    drawn = np.zeros((len(words.forms),) * 2)
    other = next(word for word in range(len(drawn)) if word not in (subject, verb))
    if verb is not None:
        drawn[other] = drawn[:, other] = 0.5
        drawn[subject, verb] = 1
    in_rows = drawn.T.copy()
    in_rows[other, subject] = 2  # it likes the subject more than the verb does
    counts = told(syntax_counts([seen(words, drawn, in_rows)]))
    names = ("subject_verb.subject_to_verb", "subject_verb.verb_to_subject")
    if verb is None:
        assert not set(names) & set(counts)
    else:
        expected = {name: (right, 1) for name, right in zip(names, ([1, 0], [0, 1]), strict=True)}
        assert {name: counts[name] for name in names} == expected


# -------------------------------------------------------------------------------------------------------------- phrases

HOUSE = passage(
    """
    the   DET  4 det
    very  ADV  3 advmod
    old   ADJ  4 amod
    house NOUN 7 nsubj
    of    ADP  6 case
    stone NOUN 4 nmod
    stood VERB 0 root
    """
)


def test_phrases_are_words_connected_inside() -> None:
    numbers = phrases(HOUSE)
    assert [[other == number for other in numbers] for number in numbers] == [
        [a == b for b in "aaaabbc"] for a in "aaaabbc"
    ]


@pytest.mark.parametrize(
    ("rows", "are_one"),
    [
        ("his PRON 2 nmod:poss\nbook NOUN 0 root", True),
        ("book NOUN 0 root\nParis NOUN 1 nmod", False),
        ("such DET 2 det:predet\nbook NOUN 0 root", True),
        ("was AUX 2 aux:pass\nseen VERB 0 root", True),
        ("give VERB 0 root\nup ADP 1 compound:prt", True),
        ("well ADV 2 advmod\nseen VERB 0 root", False),
        ("very ADV 2 advmod\nwell ADV 0 root", True),
        ("a X 0 root\nb X 1 conj", False),
    ],
)
def test_relations_inside_a_phrase(rows: str, are_one: bool) -> None:
    first, second = phrases(passage(rows))
    assert (first == second) is are_one


def test_words_under_one_head_are_one_phrase_though_no_arc_joins_them() -> None:
    assert len(set(phrases(passage("the DET 3 det\nold ADJ 3 amod\nhouse NOUN 0 root")))) == 1


def test_a_head_of_constant_offset_is_right_for_half_of_the_phrases() -> None:
    previous, following = np.eye(7, k=-1), np.eye(7, k=1)
    inside = np.zeros((7, 7))
    inside[3, 2], inside[3, 4] = 2, 1  # house: its own neighbour on the left, of on the right
    inside[4, 3], inside[4, 5] = 1, 3  # of: its own on the right
    inside[5, 4], inside[5, 6] = 1, 1  # stone: its own on the left; no difference is not right
    counts = syntax_counts([seen(HOUSE, previous, following, inside)])
    assert told(counts)["phrase.neighbour.left"] == ([2, 0, 1], 2)
    assert told(counts)["phrase.neighbour.right"] == ([0, 1, 1], 1)
    assert counts["phrase.neighbour.left"].near.tolist() == [[0, 0, 1]]
    assert phrase_accuracy(counts).tolist() == [[0.5, 0.5, 0.75]]


def test_phrases_need_the_tokens_of_all_three_words() -> None:
    counts = syntax_counts([seen(HOUSE, np.eye(7), of_word=[[1], [2], [3], [4], [5], [6], []])])
    assert told(counts)["phrase.neighbour.left"][1] == 1
    counts = syntax_counts([seen(HOUSE, np.eye(7), is_causal=True)])
    assert not any(name.startswith("phrase") for name in counts)


# ---------------------------------------------------------------------------------------------------------- coreference

STORY = passage(
    """
    Ann     PROPN 2  nsubj  Ann
    saw     VERB  0  root   see
    Bob     PROPN 2  obj    Bob
    .       PUNCT 2  punct  .
    He      PRON  6  nsubj  he
    greeted VERB  0  root   greet
    Ann     PROPN 6  obj    Ann
    and     CCONJ 10 cc     and
    her     PRON  10 poss   she
    dog     NOUN  7  conj   dog
    .       PUNCT 6  punct  .
    He      PRON  13 nsubj  He
    smiled  VERB  0  root   smile
    """,
    mentions=[(0, 1, "a"), (2, 3, "b"), (4, 5, "b"), (6, 7, "a"), (8, 9, "a"), (8, 10, "d"), (11, 12, "b")],
)


def story_attention() -> np.ndarray:
    drawn = np.zeros((13, 13))
    drawn[4, [0, 2, 3]] = 3, 5, 9  # He: Bob; the full stop is no candidate
    drawn[6, [0, 4]] = 4, 4  # Ann: the first of equals is right
    drawn[8, [0, 4, 6]] = 1, 2, 1  # her: He
    drawn[11, [4, 8, 9]] = 3, 2, 1  # He: He
    return drawn


def story_counts(*heads: np.ndarray, **more: Any) -> dict[str, Any]:
    profile = {-distance: np.full((1, len(heads)), 9.0 if distance == 2 else 1 / distance) for distance in range(1, 13)}
    counts = coreference_counts([seen(STORY, *heads, **more)], profile)
    return {name: only(tallies, "coref") for name, tallies in counts.items()}


def test_coreference_by_kind_of_mention() -> None:
    away = -story_attention()  # it likes least what the other likes most
    away[11, [0, 9]] = 1, 2
    # her: the first of Ann, Bob and Ann that gets nothing is Bob; Ann: nothing at all goes to Bob
    assert story_counts(story_attention(), away)["heads"] == {
        "all": ([3, 0], 4),
        "pronoun": ([2, 0], 3),
        "proper": ([1, 0], 1),
        "all_unmatched": ([1, 0], 2),
        "pronoun_unmatched": ([1, 0], 2),
        "pronoun_noun": ([1, 0], 2),
    }


def test_near_ties_of_coreference() -> None:
    profile = {-distance: np.full((1, 1), float(distance)) for distance in range(1, 13)}
    heads = coreference_counts([seen(STORY, story_attention())], profile)["heads"]
    assert heads["coref[proper]"].near.tolist() == [[1]]
    assert heads["coref[pronoun]"].near.tolist() == [[0]]


def test_baselines_of_coreference() -> None:
    counts = story_counts(story_attention())
    # the nearest candidates are Bob, He, Ann and dog
    assert counts["nearest"]["all"] == ([2], 4)
    assert counts["nearest"]["proper"] == ([0], 1)
    assert counts["lemma"]["all"] == ([4], 4)
    # two words to the left: Bob, He, Ann, dog
    assert counts["profile"]["all"] == ([2], 4)
    assert counts["profile"]["pronoun"] == ([2], 3)
    assert counts["chance"]["all"] == ([pytest.approx(1 / 2 + 1 / 3 + 2 / 4 + 2 / 6)], 4)
    assert counts["chance"]["pronoun_noun"] == ([1.0], 2)


def test_a_sink_is_no_candidate() -> None:
    counts = story_counts(story_attention(), of_word=[[place] for place in range(13)], is_causal=True)
    assert counts["heads"]["all"] == ([2], 3)  # the second Ann has no right candidate left
    assert counts["chance"]["all"] == ([pytest.approx(1 + 1 / 3 + 2 / 5)], 3)


def test_mentions_without_a_token_are_nowhere() -> None:
    of_word = [[place + 1] for place in range(13)]
    of_word[4] = []  # He
    counts = story_counts(story_attention(), np.ones((13, 13)) * np.arange(13), of_word=of_word)
    assert counts["chance"]["all"] == ([pytest.approx(1 / 2 + 2 / 3 + 1 / 5)], 3)


def test_the_nearest_of_the_candidates_with_the_same_lemma() -> None:
    words = passage(
        "Dog NOUN 0 root dog\nDog NOUN 1 dep DOG\ncat NOUN 1 dep cat\nDog NOUN 1 dep Dog",
        mentions=[(0, 1, "1"), (1, 2, "2"), (2, 3, "3"), (3, 4, "2")],
    )
    profile = {-distance: np.ones((1, 1)) for distance in range(1, 4)}
    counts = coreference_counts([seen(words, np.zeros((4, 4)))], profile)
    assert told(counts["lemma"]) == {"coref[all]": ([1], 1), "coref[nominal]": ([1], 1)}
    assert told(counts["nearest"])["coref[all]"] == ([0], 1)
    assert counts["chance"]["coref[all]"].total == 1


def test_candidates_are_head_words_in_their_order() -> None:
    words = passage(
        "her DET 3 det she\nold NOUN 3 amod old\ndog NOUN 0 root dog\nDog NOUN 3 dep dog",
        mentions=[(0, 3, "1"), (1, 2, "2"), (2, 3, "3"), (3, 4, "2")],  # two of them have the head word "dog"
    )
    profile = {-distance: np.full((1, 1), float(distance)) for distance in range(1, 4)}
    counts = coreference_counts([seen(words, np.zeros((4, 4)))], profile)
    # not unmatched: a wrong candidate has the lemma
    assert told(counts["heads"]) == {"coref[all]": ([1], 1), "coref[nominal]": ([1], 1)}
    assert told(counts["profile"])["coref[all]"] == ([1], 1)
    assert told(counts["lemma"])["coref[all]"] == ([0], 1)
    assert told(counts["chance"])["coref[all]"] == ([0.5], 1)


@pytest.mark.parametrize(("start", "stop", "expected"), [(0, 3, 2), (0, 2, 0), (1, 3, 2), (2, 4, 2), (3, 4, 3)])
def test_head_word_of_a_span(start: int, stop: int, expected: int) -> None:
    words = passage("the DET 3 det\nold ADJ 3 amod\nhouse NOUN 0 root\nstood VERB 3 acl")
    assert head_word(words, start, stop) == expected


# ------------------------------------------------------------------------------------------------- from model to scores


def test_from_a_model_to_all_scores(word_pieces: PreTrainedTokenizerFast) -> None:
    """Two words have one candidate each, so that every head is right and the expectation and chance are 1."""
    model = tiny_bert()
    words = passage("un X 2 nsubj\ndog VERB 0 root", mentions=[(0, 1, "1"), (1, 2, "1")])
    syntax = slow_syntax(model, word_pieces, [words, words])
    names = ["syntax.dep_to_head[ALL]", "syntax.head_to_dep[nsubj]", "subject_verb.verb_to_subject"]
    for found in (
        syntax,
        slow_expected(model, word_pieces, [words, words]),
        slow_profile_null(model, word_pieces, [words, words]),
    ):
        assert {name: (found[name].right.tolist(), found[name].total) for name in names} == {
            name: ([[2, 2], [2, 2]], 2) for name in names
        }
    assert told(slow_baselines(model, word_pieces, [words])[0])[names[0]] == ([1], 1)
    coreference = slow_coreference(model, word_pieces, [words, words])  # one chunk of four words
    assert coreference["heads"]["coref[all]"].total == 3
    assert told(coreference["nearest"])["coref[all]"] == ([3], 3)
