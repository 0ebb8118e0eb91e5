"""Documents become batches of token ids. What the tokenizer adds is told from the text by position, never by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from headlens.corpora import texts
from headlens.documents import Document
from headlens.errors import CorpusError, UnsupportedModel
from headlens.records import Batch

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

Ids = NDArray[np.int32]

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
    _check_fast(tokenizer)
    _check_limits(tokenizer, max_length, batch_tokens)
    with _kept_as_it_is(tokenizer):
        first_text, rows = _ordinary_ids(documents, tokenizer)
        frame = _frame(first_text, tokenizer)
    inputs = _windows(rows, max_length - frame.size)
    per_document = np.bincount([item.document for item in inputs], minlength=len(rows))
    classes = _class_ids(tokenizer, inputs)
    pad = _id_of(tokenizer, "pad_token") or 0
    batches = [_batch(group, frame, classes, pad) for group in _groups(inputs, frame, batch_tokens)]
    scored = sum(item.ids.size for item in inputs)
    unknown = -1 if (found := _id_of(tokenizer, "unk_token")) is None else found
    return Encoded(
        batches=batches,
        max_length=max_length,
        documents=len(rows),
        empty=int((per_document == 0).sum()),
        cut_documents=int((per_document > 1).sum()),
        windows=int(per_document[per_document > 1].sum()),
        inputs=len(inputs),
        tokens=scored + frame.size * len(inputs),
        scored_tokens=scored,
        unknown=sum(int((item.ids == unknown).sum()) for item in inputs),
    )


def encode_texts(
    strings: Iterable[str], tokenizer: PreTrainedTokenizerBase, *, max_length: int, batch_tokens: int = 4096
) -> Encoded:
    """`encode` for bare strings."""
    return encode(texts(strings), tokenizer, max_length=max_length, batch_tokens=batch_tokens)


def check_vocabulary(encoded: Encoded, model: PreTrainedModel, name: str) -> None:
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
    limits = [limit for limit in (_position_limit(config), tokenizer.model_max_length) if limit is not None]
    return min((limit for limit in limits if 0 < limit <= _LARGEST_SANE_LENGTH), default=DEFAULT_MAX_LENGTH)


def token_strings(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int] | Int[Tensor, " token"]) -> list[str]:
    """Each token as a person reads it: " world" with its space, "##ing", "。"; "�" for a part of a character."""
    _check_fast(tokenizer)
    numbers = [int(token) for token in ids]
    names = tokenizer.convert_ids_to_tokens(numbers)
    decoded = _decoded(tokenizer, numbers)
    # SentencePiece's decoder drops the space in front of a text's first token, and here every token is the first
    spaced = [f" {text}" if name.startswith("▁") else text for name, text in zip(names, decoded, strict=True)]
    return [text or name for name, text in zip(names, spaced, strict=True)]


def _position_limit(config: PreTrainedConfig) -> int | None:
    names = ("max_position_embeddings", "n_positions", "max_seq_len")
    limit = next((value for name in names if (value := getattr(config, name, None)) is not None), None)
    if limit is not None and config.model_type in _POSITIONS_AFTER_PADDING:
        return limit - _padding_idx(config) - 1
    return limit


def _padding_idx(config: PreTrainedConfig) -> int:
    # MPNet has 1 in its code whatever the config says
    return 1 if config.model_type == "mpnet" or config.pad_token_id is None else config.pad_token_id


def _check_fast(tokenizer: Any) -> None:
    if not getattr(tokenizer, "is_fast", False):
        raise UnsupportedModel(
            f"Expected a fast tokenizer of transformers, got {type(tokenizer).__name__}, which does not tell the "
            "tokens it adds from the text; load one with a tokenizer.json, or wrap yours in PreTrainedTokenizerFast."
        )


def _check_limits(tokenizer: PreTrainedTokenizerBase, max_length: int, batch_tokens: int) -> None:
    added = tokenizer.num_special_tokens_to_add(pair=False)
    if max_length <= added:
        raise CorpusError(
            f"max_length must leave room for {added} special tokens and one of the text, so at least {added + 1}; "
            f"got {max_length}."
        )
    if batch_tokens < 1:
        raise CorpusError(f"batch_tokens must be at least 1; got {batch_tokens}.")


@contextmanager
def _kept_as_it_is(tokenizer: PreTrainedTokenizerBase) -> Iterator[None]:
    """A call leaves truncation, padding and the treatment of special tokens set on the backend; this restores them."""
    backend = tokenizer.backend_tokenizer
    truncation, padding, split = backend.truncation, backend.padding, backend.encode_special_tokens
    try:
        yield
    finally:
        backend.encode_special_tokens = split
        backend.no_truncation() if truncation is None else backend.enable_truncation(**truncation)
        backend.no_padding() if padding is None else backend.enable_padding(**padding)


def _ordinary_ids(documents: Iterable[Document], tokenizer: PreTrainedTokenizerBase) -> tuple[str, list[Ids]]:
    """The first text that has a token, and of every document the ids of its text, without special tokens."""
    as_text = _LookAlikes(tokenizer)
    remaining, first_text, rows = iter(documents), None, list[Ids]()
    while chunk := list(islice(remaining, _TEXTS_PER_CALL)):
        called = _call(tokenizer, [_encodable(document) for document in chunk], add_special_tokens=False)["input_ids"]
        if first_text is None:
            first_text = next((document.text for document, row in zip(chunk, called, strict=True) if row), None)
        rows += [as_text(np.array(row, dtype=np.int32)) for row in called]
    if not rows:
        raise CorpusError("The corpus holds no document; give at least one.")
    if first_text is None:
        raise CorpusError(f"The tokenizer makes no token of any of the {len(rows)} documents; give text it can read.")
    return first_text, rows


def _call(tokenizer: PreTrainedTokenizerBase, strings: list[str], *, add_special_tokens: bool) -> Any:
    return tokenizer(
        strings,
        add_special_tokens=add_special_tokens,
        split_special_tokens=True,
        padding=False,
        truncation=False,
        return_token_type_ids=False,
        return_attention_mask=False,
        return_special_tokens_mask=add_special_tokens,
        verbose=False,  # says otherwise that a text is longer than the model takes: windows are cut later
    )


def _encodable(document: Document) -> str:
    try:
        document.text.encode()
    except UnicodeEncodeError as error:
        code = ord(document.text[error.start])
        raise CorpusError(
            f"{document.id}: character {error.start + 1} (U+{code:04X}) is half of a surrogate pair, which no UTF-8 "
            "text holds; decode the text anew."
        ) from error
    return document.text


class _LookAlikes:
    """Takes apart the words of a text that a tokenizer makes a special token of in spite of split_special_tokens.

    Unigram vocabularies (T5, XLM-R, ALBERT) hold "</s>" with the best score there is, and whole words are looked up
    in a WordPiece vocabulary. The first character is tokenized apart from the rest, so that the whole cannot match.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._model = tokenizer.backend_tokenizer.model
        unknown = _id_of(tokenizer, "unk_token")
        added = tokenizer.added_tokens_decoder.items()
        self._specials = {token: str(entry) for token, entry in added if entry.special and token != unknown}
        self._ids = np.array(list(self._specials), dtype=np.int32)

    def __call__(self, ids: Ids) -> Ids:
        if not np.isin(ids, self._ids).any():
            return ids
        return np.array([piece for token in ids.tolist() for piece in self._pieces(token)], dtype=np.int32)

    def _pieces(self, token: int) -> list[int]:
        name = self._specials.get(token)
        if name is None:
            return [token]
        parts = [part for part in (name[:1], name[1:]) if part]
        return [piece.id for part in parts for piece in self._model.tokenize(part)] or [token]


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


def _frame(text: str, tokenizer: PreTrainedTokenizerBase) -> _Frame:
    called = _call(tokenizer, [text], add_special_tokens=True)
    ids, special = np.array(called["input_ids"][0], dtype=np.int32), np.array(called["special_tokens_mask"][0], bool)
    ordinary = np.flatnonzero(~special)
    frame = _Frame(before=ids[: ordinary[0]], after=ids[ordinary[-1] + 1 :])
    plain = _call(tokenizer, [text], add_special_tokens=False)["input_ids"][0]
    if ids[ordinary].tolist() != plain or frame.size != special.sum():
        raise UnsupportedModel(
            f"Expected {type(tokenizer).__name__} to put its special tokens before and after the text, but they stand "
            "within it or change it; use a tokenizer whose post-processor only adds at the ends."
        )
    return frame


@dataclass(frozen=True)
class _Input:
    """The part of one document's text that fits into one row."""

    document: int
    ids: Ids


def _windows(rows: list[Ids], room: int) -> list[_Input]:
    return [
        _Input(document, ids[start : start + room])
        for document, ids in enumerate(rows)
        for start in range(0, ids.size, room)
    ]


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
        cls=_id_of(tokenizer, "cls_token"),
        sep=_id_of(tokenizer, "sep_token"),
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
    )


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


def _id_of(tokenizer: PreTrainedTokenizerBase, name: str) -> int | None:
    # tokenizer.cls_token_id complains aloud where there is none
    token = tokenizer.special_tokens_map.get(name)
    return None if token is None else int(tokenizer.convert_tokens_to_ids(str(token)))
