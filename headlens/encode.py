"""Documents and annotated words become batches of token ids. What the tokenizer adds is told by position, not name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from headlens.arch import family_of
from headlens.corpora import texts
from headlens.documents import Document
from headlens.errors import CorpusError, UnsupportedModel
from headlens.records import Batch
from headlens.words import (
    Ids,
    Ints,
    LookAlikes,
    WordInput,
    align,
    call,
    check_fast,
    encodable,
    id_of,
    kept_as_it_is,
    takes_words,
)

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

FULL_STOPS = frozenset(".。．")
COMMAS = frozenset(",，、")
DEFAULT_MAX_LENGTH = 512  # tokens; for a model and a tokenizer that both name no limit

_TEXTS_PER_CALL = 1000
_LARGEST_SANE_LENGTH = 10_000_000  # transformers writes "no limit" as 1e30

# Their positions start at padding_idx + 1, and the table of position embeddings counts the unused rows
_POSITIONS_AFTER_PADDING = frozenset(
    {"camembert", "data2vec-text", "esm", "ibert", "lilt", "longformer", "luke", "markuplm", "mpnet", "roberta"}
    | {"roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"}
)


@dataclass(frozen=True)
class Encoded:
    """A corpus as a model reads it, with the counts that a report states.

    Always inputs == documents - empty - cut_documents + windows.
    """

    batches: list[Batch]  # shortest inputs first
    max_length: int  # tokens an input may have, special ones included
    documents: int  # as many as were given
    empty: int  # of them: left out, because the tokenizer makes no token of their text
    cut_documents: int  # of them: longer than max_length, so cut into windows
    windows: int  # inputs that those became
    inputs: int  # rows of all batches
    tokens: int  # real tokens, special ones included
    scored_tokens: int  # real tokens that come from the text
    unknown: int  # of them: the tokenizer's unknown token


@dataclass(frozen=True, eq=False)
class EncodedWords:
    """Inputs of annotated words as a model reads them, with the counts that a report states.

    As many inputs were given as inputs + single_word + too_long + empty; every other count is of those that are kept.
    """

    batches: list[Batch]  # shortest inputs first
    max_length: int  # tokens an input may have, special ones included
    inputs: int  # rows of all batches
    single_word: int  # inputs left out, because there is nothing to choose between
    too_long: int  # inputs left out, because they have more than max_length tokens
    empty: int  # inputs left out, because the tokenizer makes no token of their words
    documents: int  # that the inputs come from
    words: int
    words_without_token: int  # of them
    split_words: int  # of them: with several tokens
    tokens: int  # real tokens, special ones included
    scored_tokens: int  # real tokens that come from the text
    unknown: int  # of them: the tokenizer's unknown token
    present: dict[int, NDArray[np.bool_]]  # for each input, by its index as given: [word], whether the word has a token


def encode(
    documents: Iterable[Document], tokenizer: PreTrainedTokenizerBase, *, max_length: int, batch_tokens: int = 4096
) -> Encoded:
    """Every document as one input, or as consecutive windows where it has more than `max_length` tokens.

    Nothing is lost at the cuts, and each window has its own special tokens. A special token written out in the text
    ("[SEP]") is text. Inputs are sorted by length (stable), padded on the right, and share a batch as long as
    rows x longest <= batch_tokens; a longer input stands alone. `Batch.document` counts the documents as given.
    `Batch.token_classes`: "first", "cls", "sep", "other_special", "full_stop", "comma". The tokenizer stays as it was.

    Raises CorpusError for limits that leave no room and for a corpus without a token; UnsupportedModel for a
    tokenizer that does not come from the `tokenizers` library.
    """
    check_fast(tokenizer)
    _check_limits(tokenizer, max_length, batch_tokens)
    with kept_as_it_is(tokenizer):
        first_text, rows = _ordinary_ids(documents, tokenizer)
        frame = _frame(first_text, tokenizer)
    inputs = _windows(rows, max_length - frame.size)
    batches, counts = _batches(inputs, frame, tokenizer, batch_tokens)
    per_document = np.bincount([item.document for item in inputs], minlength=len(rows))
    return Encoded(
        batches=batches,
        max_length=max_length,
        documents=len(rows),
        empty=int((per_document == 0).sum()),
        cut_documents=int((per_document > 1).sum()),
        windows=int(per_document[per_document > 1].sum()),
        **counts,
    )


def encode_texts(
    strings: Iterable[str], tokenizer: PreTrainedTokenizerBase, *, max_length: int, batch_tokens: int = 4096
) -> Encoded:
    """`encode` for bare strings."""
    return encode(texts(strings), tokenizer, max_length=max_length, batch_tokens=batch_tokens)


def encode_words(
    inputs: Sequence[WordInput], tokenizer: PreTrainedTokenizerBase, *, max_length: int, batch_tokens: int = 4096
) -> EncodedWords:
    """Every input as one row, whole or not at all, with the tokens of each word as `words.align` finds them.

    Left out, and counted: inputs of a single word, inputs longer than `max_length` tokens, special ones included, and
    inputs of which the tokenizer makes no token. Batches are made as by `encode`. `Batch.input_index` is an index into
    `inputs`, `Batch.document` their own; `Batch.words` counts the special tokens in front.

    Raises CorpusError for limits that leave no room and where no input is left; UnsupportedModel and CorpusError as
    `words.align`.
    """
    check_fast(tokenizer)
    _check_limits(tokenizer, max_length, batch_tokens)
    several = [index for index, item in enumerate(inputs) if len(item.words) > 1]
    aligned = dict(zip(several, align([inputs[index] for index in several], tokenizer), strict=True))
    legible = {index: found for index, found in aligned.items() if found.ids.size}
    frame = _frame_of_words([inputs[index] for index in legible], tokenizer)
    kept = {index: found for index, found in legible.items() if found.ids.size + frame.size <= max_length}
    single_word, too_long, empty = len(inputs) - len(several), len(legible) - len(kept), len(several) - len(legible)
    if not kept:
        raise CorpusError(
            f"None of the {len(inputs)} inputs is left: {single_word} have a single word, {too_long} are longer than "
            f"{max_length} tokens, and of {empty} the tokenizer makes no token; give sentences of several words that "
            "fit the model."
        )
    rows = [_Input(inputs[index].document, found.ids, index, found.ranges) for index, found in kept.items()]
    batches, counts = _batches(rows, frame, tokenizer, batch_tokens)
    present = {index: found.present for index, found in kept.items()}
    return EncodedWords(
        batches=batches,
        max_length=max_length,
        present=present,
        single_word=single_word,
        too_long=too_long,
        empty=empty,
        documents=len({row.document for row in rows}),
        words=sum(known.size for known in present.values()),
        words_without_token=sum(int((~known).sum()) for known in present.values()),
        split_words=sum(int(found.split.sum()) for found in kept.values()),
        **counts,
    )


def check_vocabulary(encoded: Encoded | EncodedWords, model: PreTrainedModel, name: str) -> None:
    """Refuse ids that the model has no embedding for: UnsupportedModel."""
    known = model.get_input_embeddings().num_embeddings
    largest = max(int(batch.input_ids.max()) for batch in encoded.batches)
    if largest >= known:
        raise UnsupportedModel(
            f"The tokenizer is not that of {name!r}: it gives the token id {largest}, the model knows {known} tokens."
        )


def max_length_of(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """The most tokens that the model takes, special ones included: its own limit or the tokenizer's, if smaller.

    Models with relative positions only (T5) have none of their own. Where neither says, DEFAULT_MAX_LENGTH.
    """
    limits = [limit for limit in (position_limit(config), tokenizer.model_max_length) if limit is not None]
    return min((limit for limit in limits if 0 < limit <= _LARGEST_SANE_LENGTH), default=DEFAULT_MAX_LENGTH)


def token_strings(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int] | Int[Tensor, " token"]) -> list[str]:
    """Each token as a person reads it: " world" with its space, "##ing", "。"; "�" for a part of a character."""
    check_fast(tokenizer)
    numbers = [int(token) for token in ids]
    names = tokenizer.convert_ids_to_tokens(numbers)
    decoded = _decoded(tokenizer, numbers)
    # SentencePiece's decoder drops the space in front of a text's first token, and here every token is the first
    spaced = [f" {text}" if name.startswith("▁") else text for name, text in zip(names, decoded, strict=True)]
    return [text or name for name, text in zip(names, spaced, strict=True)]


def position_limit(config: PreTrainedConfig) -> int | None:
    """The most tokens that the positions of a model reach; None where its config does not say."""
    names = ("max_position_embeddings", "n_positions", "max_seq_len")
    limit = next((value for name in names if (value := getattr(config, name, None)) is not None), None)
    if limit is not None and family_of(config) in _POSITIONS_AFTER_PADDING:
        return limit - _padding_idx(config) - 1
    return limit


def _padding_idx(config: PreTrainedConfig) -> int:
    # MPNet has 1 in its code whatever the config says
    return 1 if family_of(config) == "mpnet" or config.pad_token_id is None else config.pad_token_id


def _check_limits(tokenizer: PreTrainedTokenizerBase, max_length: int, batch_tokens: int) -> None:
    added = tokenizer.num_special_tokens_to_add(pair=False)
    if max_length <= added:
        raise CorpusError(
            f"max_length must leave room for {added} special tokens and one of the text, so at least {added + 1}; "
            f"got {max_length}."
        )
    if batch_tokens < 1:
        raise CorpusError(f"batch_tokens must be at least 1; got {batch_tokens}.")


def _ordinary_ids(documents: Iterable[Document], tokenizer: PreTrainedTokenizerBase) -> tuple[str, list[Ids]]:
    """The first text that has a token, and of every document the ids of its text, without special tokens."""
    as_text = LookAlikes(tokenizer)
    remaining, first_text, rows = iter(documents), None, list[Ids]()
    while chunk := list(islice(remaining, _TEXTS_PER_CALL)):
        called = call(tokenizer, [encodable(document.text, document.id) for document in chunk])["input_ids"]
        if first_text is None:
            first_text = next((document.text for document, row in zip(chunk, called, strict=True) if row), None)
        rows += [as_text(np.array(row, dtype=np.int32)) for row in called]
    if not rows:
        raise CorpusError("The corpus holds no document; give at least one.")
    if first_text is None:
        raise CorpusError(f"The tokenizer makes no token of any of the {len(rows)} documents; give text it can read.")
    return first_text, rows


@dataclass(frozen=True)
class _Frame:
    """What the tokenizer puts before and after the tokens of every text."""

    before: Ids
    after: Ids

    @property
    def size(self) -> int:
        return self.before.size + self.after.size

    def around(self, ids: Ids) -> tuple[Ids, Ids, Ids]:
        return self.before, ids, self.after


def _frame_of_words(legible: list[WordInput], tokenizer: PreTrainedTokenizerBase) -> _Frame:
    """Told from the first of some inputs that have a token; empty where there is none."""
    if not legible:
        return _Frame(np.zeros(0, np.int32), np.zeros(0, np.int32))
    with kept_as_it_is(tokenizer):
        return _frame(list(legible[0].words) if takes_words(tokenizer) else legible[0].text, tokenizer)


def _frame(text: str | list[str], tokenizer: PreTrainedTokenizerBase) -> _Frame:
    """Told from a text, or a list of words, that has a token."""
    called = call(tokenizer, [text], add_special_tokens=True, return_special_tokens_mask=True)
    ids, special = np.array(called["input_ids"][0], dtype=np.int32), np.array(called["special_tokens_mask"][0], bool)
    ordinary = np.flatnonzero(~special)
    frame = _Frame(before=ids[: ordinary[0]], after=ids[ordinary[-1] + 1 :])
    plain = call(tokenizer, [text])["input_ids"][0]
    if ids[ordinary].tolist() != plain or frame.size != special.sum():
        raise UnsupportedModel(
            f"Expected {type(tokenizer).__name__} to put its special tokens before and after the text, but they stand "
            "within it or change it; use a tokenizer whose post-processor only adds at the ends."
        )
    return frame


@dataclass(frozen=True, eq=False)
class _Input:
    """What fits into one row: a part of one document's text, or annotated words."""

    document: int
    ids: Ids
    index: int | None = None  # which of the inputs; only of annotated words
    ranges: Ints | None = None  # [word, 2], as in Aligned


def _windows(rows: list[Ids], room: int) -> list[_Input]:
    return [
        _Input(document, ids[start : start + room])
        for document, ids in enumerate(rows)
        for start in range(0, ids.size, room)
    ]


def _batches(
    inputs: list[_Input], frame: _Frame, tokenizer: PreTrainedTokenizerBase, batch_tokens: int
) -> tuple[list[Batch], dict[str, int]]:
    """The batches, and the counts of tokens that both kinds of corpora have."""
    classes = _class_ids(tokenizer, inputs)
    pad = id_of(tokenizer, "pad_token") or 0
    scored = sum(item.ids.size for item in inputs)
    unknown = -1 if (found := id_of(tokenizer, "unk_token")) is None else found
    return [_batch(group, frame, classes, pad) for group in _groups(inputs, frame, batch_tokens)], {
        "inputs": len(inputs),
        "tokens": scored + frame.size * len(inputs),
        "scored_tokens": scored,
        "unknown": sum(int((item.ids == unknown).sum()) for item in inputs),
    }


def _groups(inputs: list[_Input], frame: _Frame, batch_tokens: int) -> Iterator[list[_Input]]:
    """Inputs of like length; the last one of a group is its longest."""
    group: list[_Input] = []
    for item in sorted(inputs, key=lambda item: item.ids.size):
        if group and (len(group) + 1) * (item.ids.size + frame.size) > batch_tokens:
            yield group
            group = []
        group.append(item)
    yield group


@dataclass(frozen=True)
class _ClassIds:
    """The token ids that make up the classes of `Batch.token_classes`."""

    full_stop: Tensor
    comma: Tensor
    cls: int | None
    sep: int | None


def _class_ids(tokenizer: PreTrainedTokenizerBase, inputs: list[_Input]) -> _ClassIds:
    """By what the tokens of the corpus stand for; a sign that byte-level BPE spells with several tokens is in none."""
    present = np.unique(np.concatenate([item.ids for item in inputs]))
    bare = _without_markers(tokenizer, _decoded(tokenizer, present.tolist()))
    return _ClassIds(
        full_stop=torch.from_numpy(present[[text in FULL_STOPS for text in bare]]),
        comma=torch.from_numpy(present[[text in COMMAS for text in bare]]),
        cls=id_of(tokenizer, "cls_token"),
        sep=id_of(tokenizer, "sep_token"),
    )


def _decoded(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    return tokenizer.backend_tokenizer.decode_batch([[token] for token in ids], skip_special_tokens=False)


def _without_markers(tokenizer: PreTrainedTokenizerBase, strings: list[str]) -> list[str]:
    """Without white space and without the signs for it and for the inside of a word ("##.", "▁.", ".</w>")."""
    model = tokenizer.backend_tokenizer.model
    inside = getattr(model, "continuing_subword_prefix", None) or ""
    end = getattr(model, "end_of_word_suffix", None) or ""
    return [text.strip().removeprefix(inside).removesuffix(end).strip("▁Ġ") for text in strings]


def _batch(group: list[_Input], frame: _Frame, classes: _ClassIds, pad: int) -> Batch:
    lengths = torch.tensor([item.ids.size + frame.size for item in group])
    position = torch.arange(int(lengths.max()))
    mask = position < lengths[:, None]
    special = mask & ((position < frame.before.size) | (position >= lengths[:, None] - frame.after.size))
    ids = torch.full(mask.shape, pad)
    ids[mask] = torch.from_numpy(np.concatenate([part for item in group for part in frame.around(item.ids)])).long()
    return Batch(
        input_ids=ids,
        attention_mask=mask,
        special=special,
        document=torch.tensor([item.document for item in group]),
        token_classes=_token_classes(ids, mask, special, classes),
        input_index=None if group[0].index is None else torch.tensor([item.index for item in group]),
        words=None if group[0].ranges is None else _words(group, frame),
    )


def _words(group: list[_Input], frame: _Frame) -> Int[Tensor, "batch word 2"]:
    ranges = [item.ranges for item in group if item.ranges is not None]
    words = np.zeros((len(ranges), max(len(found) for found in ranges), 2), np.int64)
    for row, found in zip(words, ranges, strict=True):
        row[: len(found)] = found + frame.before.size * (found[:, 1:] > found[:, :1])
    return torch.from_numpy(words)


def _token_classes(ids: Tensor, mask: Tensor, special: Tensor, classes: _ClassIds) -> dict[str, Tensor]:
    rows = mask & ~special
    cls = special & (ids == classes.cls) if classes.cls is not None else torch.zeros_like(mask)
    sep = special & (ids == classes.sep) if classes.sep is not None else torch.zeros_like(mask)
    return {
        "first": (torch.arange(ids.shape[-1]) == 0).expand_as(mask).clone(),
        "cls": cls,
        "sep": sep,
        "other_special": special & ~cls & ~sep,
        "full_stop": rows & torch.isin(ids, classes.full_stop),
        "comma": rows & torch.isin(ids, classes.comma),
    }
