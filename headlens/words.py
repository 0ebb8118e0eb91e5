"""Annotated words and the tokens that a tokenizer makes of them. What looks like a special token is text here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headlens.documents import Sentence, Span, joined
from headlens.errors import CorpusError, UnsupportedModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Ids: TypeAlias = NDArray[np.int32]
Ints: TypeAlias = NDArray[np.int64]

_INPUTS_PER_CALL = 1000
_BY_WORDS = frozenset({"WordPiece", "WordLevel"})  # models of `tokenizers` whose tokens never reach across a space
_SHOWN = 30  # characters of a text that a message quotes


@dataclass(frozen=True)
class WordInput:
    """Words that a model reads as one input, and the text that they stand in.

    `spans` says which characters of `text` each word stands on, in order; neighbours share all of their characters
    ("in" + "dem" on "im") or none. Raises CorpusError for any others.
    """

    words: tuple[str, ...]
    text: str
    spans: tuple[Span, ...]
    document: int  # index of the document that it is cut from
    id: str = "an input"  # where it came from, for messages

    def __post_init__(self) -> None:
        if not self.words or len(self.words) != len(self.spans):
            raise CorpusError(
                f"{self.id}: an input has words and as many spans; got {len(self.words)} and {len(self.spans)}."
            )
        before = (0, 0)
        for word, span in zip(self.words, self.spans, strict=True):
            start, stop = span
            if not 0 <= start <= stop <= len(self.text) or (start < before[1] and span != before and start < stop):
                raise CorpusError(
                    f"{self.id}: the word {word!r} stands on characters {start} to {stop} of {len(self.text)}, after a "
                    f"word on {before[0]} to {before[1]}; words stand in order and share all characters or none."
                )
            before = span if start < stop else before


def sentence_input(sentence: Sentence, document: int) -> WordInput:
    """One sentence as an input."""
    return WordInput(sentence.words, sentence.text, sentence.spans, document, sentence.id)


def chunk_input(sentences: Sequence[Sentence], document: int) -> WordInput:
    """Consecutive sentences of one document as one input."""
    text, spans = joined(sentences)
    words = tuple(word for sentence in sentences for word in sentence.words)
    ids = [sentence.id for sentence in sentences]
    return WordInput(words, text, spans, document, f"{ids[0]} to {ids[-1]}" if len(ids) > 1 else "".join(ids))


@dataclass(frozen=True, eq=False)
class Aligned:
    """The tokens of one input, without special ones, and those of each word."""

    ids: Ids
    ranges: Ints  # [word, 2]: first token and the one after the last; 0, 0 where the word has none

    @property
    def present(self) -> NDArray[np.bool_]:
        """[word]: whether it has a token."""
        return self.ranges[:, 1] > self.ranges[:, 0]

    @property
    def split(self) -> NDArray[np.bool_]:
        """[word]: whether it has several tokens."""
        return self.ranges[:, 1] - self.ranges[:, 0] > 1


def align(inputs: Sequence[WordInput], tokenizer: PreTrainedTokenizerBase) -> list[Aligned]:
    """Token ids of every input, and which of them are each word's: a stretch without a gap.

    WordPiece and WordLevel tokenizers get the words one by one. All others get the text as it stands, and a token
    belongs to the word on whose characters its first one stands that is no white space; a token of white space alone
    belongs to the word that it is in or that begins where it ends, else to none. Of two words that one token covers,
    the first has it. Words on the same characters have the same tokens. The tokenizer stays as it was.

    Raises UnsupportedModel where the tokenizer loses characters, or gives places that are out of order; CorpusError
    for a token that stands on no word, and for text that is no Unicode.
    """
    check_fast(tokenizer)
    place = _by_words if takes_words(tokenizer) else _by_characters
    apart = LookAlikes(tokenizer)
    with kept_as_it_is(tokenizer):
        return [
            found
            for start in range(0, len(inputs), _INPUTS_PER_CALL)
            for found in place(inputs[start : start + _INPUTS_PER_CALL], tokenizer, apart)
        ]


def takes_words(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether `align` gives words to the tokenizer, and not text."""
    return type(tokenizer.backend_tokenizer.model).__name__ in _BY_WORDS


def split_counts(sentences: Iterable[Sentence], tokenizer: PreTrainedTokenizerBase) -> tuple[int, int, int]:
    """Of all words of the sentences: how many there are, how many have several tokens, how many have none."""
    remaining, words, split, without_token = iter(sentences), 0, 0, 0
    while chunk := list(islice(remaining, _INPUTS_PER_CALL)):
        for found in align([sentence_input(sentence, 0) for sentence in chunk], tokenizer):
            words += len(found.ranges)
            split += int(found.split.sum())
            without_token += int((~found.present).sum())
    return words, split, without_token


# ------------------------------------------------------------------------------------------------------ word by word


def _by_words(inputs: Sequence[WordInput], tokenizer: PreTrainedTokenizerBase, apart: LookAlikes) -> Iterator[Aligned]:
    forms = [[encodable(word, item.id) for word in item.words] for item in inputs]
    called = call(tokenizer, forms)
    for number, item in enumerate(inputs):
        found = called.word_ids(number)
        if None in found or any(after < before for before, after in pairwise(found)):
            raise UnsupportedModel(
                f"{item.id}: {type(tokenizer).__name__} should give the tokens of one word after the other, but gives "
                f"those of the words {_listed(found)}; use a tokenizer that keeps their order."
            )
        owner = np.array(found, np.int64)
        ids, places = apart.with_places(_ids(called, number), np.stack([owner, owner + 1], axis=-1))
        yield Aligned(ids, _ranges(places[:, 0], len(item.words)))


def _listed(found: Sequence[int | None]) -> str:
    return ", ".join("none" if word is None else str(word + 1) for word in found[:_SHOWN])


# ------------------------------------------------------------------------------------------------------ by characters


def _by_characters(
    inputs: Sequence[WordInput], tokenizer: PreTrainedTokenizerBase, apart: LookAlikes
) -> Iterator[Aligned]:
    called = call(tokenizer, [encodable(item.text, item.id) for item in inputs], return_offsets_mapping=True)
    _check_spelling(inputs, tokenizer)
    for number, item in enumerate(inputs):
        offsets = np.array(called["offset_mapping"][number], np.int64).reshape(-1, 2)
        ids, offsets = apart.with_places(_ids(called, number), offsets)
        solid = np.array([not character.isspace() for character in item.text], bool)
        _check_order(item, ids, offsets, tokenizer)
        _check_coverage(item, solid, offsets, tokenizer)
        owner = _owners(item, solid, offsets)
        yield Aligned(ids, _ranges(owner, len(item.words))[_first_on_same_characters(item.spans)])


def _owners(item: WordInput, solid: NDArray[np.bool_], offsets: Ints) -> Ints:
    """[token]: the word of each; -1 for none. Of words on the same characters, the first."""
    size = len(item.text)
    word_at = np.full(size + 1, -1)
    for word, (start, stop) in reversed(list(enumerate(item.spans))):
        word_at[start:stop] = word
    upwards = np.append(np.where(solid, np.arange(size), size), size)
    next_solid = np.minimum.accumulate(upwards[::-1])[::-1]
    starts, stops = offsets.T
    first = next_solid[starts]
    is_solid = first < stops
    inside, touching = word_at[starts], word_at[stops]
    owner = np.where(is_solid, word_at[first], np.where(inside >= 0, inside, touching))
    if (stray := is_solid & (owner < 0)).any():
        place = int(first[stray.argmax()])
        raise CorpusError(
            f"{item.id}: no word stands on character {place + 1} of its text, {_character(item, place)}; the words "
            "must hold all of the text but its white space."
        )
    # a word that the tokenizer deletes is not there for the space in front of it
    return np.where(np.isin(owner, owner[is_solid]), owner, -1)


def _first_on_same_characters(spans: Sequence[Span]) -> list[int]:
    """For each word the first of the words in a row that share its span."""
    leaders: list[int] = []
    for word, span in enumerate(spans):
        leaders.append(leaders[-1] if word and span == spans[word - 1] else word)
    return leaders


def _check_spelling(inputs: Sequence[WordInput], tokenizer: PreTrainedTokenizerBase) -> None:
    backend, spelled = tokenizer.backend_tokenizer, set[str]()
    # only these leave out what they cannot spell, and all offsets behind it are short by as much
    if type(backend.model).__name__ != "BPE" or backend.model.unk_token is not None:
        return
    for item in inputs:
        text = item.text if backend.normalizer is None else backend.normalizer.normalize_str(item.text)
        whole = [(text, (0, len(text)))]
        for piece, (start, stop) in backend.pre_tokenizer.pre_tokenize_str(text) if backend.pre_tokenizer else whole:
            if piece not in spelled and not _is_spelled(piece, backend.model):
                raise UnsupportedModel(
                    f"{item.id}: {type(tokenizer).__name__} makes no token of a part of {text[start:stop]!r}, and "
                    "loses count of the characters after it; use a tokenizer that has a token for the unknown."
                )
            spelled.add(piece)


def _is_spelled(piece: str, model: Any) -> bool:
    tokens = model.tokenize(piece) if piece else []
    return (tokens[-1].offsets[1] if tokens else 0) == len(piece.encode())


def _check_order(item: WordInput, ids: Ids, offsets: Ints, tokenizer: PreTrainedTokenizerBase) -> None:
    starts, stops = offsets.T
    wrong = (starts > stops) | (starts < 0) | (stops > len(item.text))
    wrong[1:] |= (np.diff(starts) < 0) | (np.diff(stops) < 0)
    if wrong.any():
        place = int(wrong.argmax())
        raise UnsupportedModel(
            f"{item.id}: {type(tokenizer).__name__} says that token {place + 1}, "
            f"{tokenizer.convert_ids_to_tokens(int(ids[place]))!r}, stands on characters {starts[place]} to "
            f"{stops[place]} of {len(item.text)}, before its predecessor or outside the text; use a tokenizer whose "
            "offsets ascend."
        )


def _check_coverage(
    item: WordInput, solid: NDArray[np.bool_], offsets: Ints, tokenizer: PreTrainedTokenizerBase
) -> None:
    edges = np.zeros(len(item.text) + 1, np.int64)
    np.add.at(edges, offsets[:, 0], 1)
    np.add.at(edges, offsets[:, 1], -1)
    bare = np.flatnonzero(solid & (edges.cumsum()[:-1] == 0))
    for run in np.split(bare, np.flatnonzero(np.diff(bare) > 1) + 1):
        if run.size and not _is_normalized_away(item.text, int(run[0]), int(run[-1]) + 1, tokenizer):
            raise UnsupportedModel(
                f"{item.id}: {type(tokenizer).__name__} makes no token of character {run[0] + 1} of the text, "
                f"{_character(item, int(run[0]))}; use a tokenizer that can spell it, or has a token for the unknown."
            )


def _is_normalized_away(text: str, start: int, stop: int, tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether characters are deleted, as control characters, or become one with the character in front of them."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    if normalizer is None:
        return False
    alone, followed = (
        normalizer.normalize_str(part) for part in (text[max(start - 1, 0) : start], text[max(start - 1, 0) : stop])
    )
    return _solid_length(followed) <= _solid_length(alone)


def _solid_length(text: str) -> int:
    return len("".join(text.replace("▁", " ").split()))


def _character(item: WordInput, place: int) -> str:
    around = item.text[max(place - _SHOWN // 2, 0) : place + _SHOWN // 2]
    return f"{item.text[place]!r} (U+{ord(item.text[place]):04X}) in {around!r}"


def _ranges(owner: Ints, words: int) -> Ints:
    """First token of each word and the one after its last; `owner` [token] ascends, but for -1: no word."""
    tokens = np.flatnonzero(owner >= 0)
    assert (np.diff(owner[tokens]) >= 0).all()
    present, first, count = np.unique(owner[tokens], return_index=True, return_counts=True)
    ranges = np.zeros((words, 2), np.int64)
    ranges[present, 0] = tokens[first]
    ranges[present, 1] = tokens[first + count - 1] + 1
    assert (ranges[present, 1] - ranges[present, 0] == count).all()
    return ranges


# ----------------------------------------------------------------------------------------------- calling a tokenizer


def check_fast(tokenizer: Any) -> None:
    """Refuse a tokenizer that is not built on the `tokenizers` library: UnsupportedModel."""
    if not getattr(tokenizer, "is_fast", False):
        raise UnsupportedModel(
            f"Expected a fast tokenizer of transformers, got {type(tokenizer).__name__}, which does not tell the "
            "tokens it adds from the text; load one with a tokenizer.json, or wrap yours in PreTrainedTokenizerFast."
        )


@contextmanager
def kept_as_it_is(tokenizer: PreTrainedTokenizerBase) -> Iterator[None]:
    """A call leaves truncation, padding and the treatment of special tokens set on the backend; this restores them."""
    backend = tokenizer.backend_tokenizer
    truncation, padding, split = backend.truncation, backend.padding, backend.encode_special_tokens
    try:
        yield
    finally:
        backend.encode_special_tokens = split
        backend.no_truncation() if truncation is None else backend.enable_truncation(**truncation)
        backend.no_padding() if padding is None else backend.enable_padding(**padding)


def call(tokenizer: PreTrainedTokenizerBase, inputs: Sequence[str | list[str]], **options: bool) -> Any:
    """The tokenizer's own output for texts or for lists of words; without special tokens unless asked for."""
    settings = {"add_special_tokens": False, "return_token_type_ids": False, "return_attention_mask": False}
    return tokenizer(
        inputs,
        is_split_into_words=bool(inputs) and not isinstance(inputs[0], str),
        split_special_tokens=True,
        padding=False,
        truncation=False,
        verbose=False,  # says otherwise that a text is longer than the model takes: that is dealt with later
        **(settings | options),
    )


def encodable(text: str, id: str) -> str:
    """The text, if it can be written as UTF-8. Raises CorpusError."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise CorpusError(
            f"{id}: character {error.start + 1} (U+{code:04X}) is half of a surrogate pair, which no UTF-8 "
            "text holds; decode the text anew."
        ) from error
    return text


def id_of(tokenizer: PreTrainedTokenizerBase, name: str) -> int | None:
    """Id of a special token by its role, "cls_token"; None where the tokenizer has none."""
    # tokenizer.cls_token_id complains aloud where there is none
    token = tokenizer.special_tokens_map.get(name)
    return None if token is None else int(tokenizer.convert_tokens_to_ids(str(token)))


class LookAlikes:
    """Takes apart the words of a text that a tokenizer makes a special token of in spite of split_special_tokens.

    Unigram vocabularies (T5, XLM-R, ALBERT) hold "</s>" with the best score there is, and whole words are looked up
    in a WordPiece vocabulary. The first character is tokenized apart from the rest, so that the whole cannot match.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._model = tokenizer.backend_tokenizer.model
        unknown = id_of(tokenizer, "unk_token")
        added = tokenizer.added_tokens_decoder.items()
        self._specials = {token: str(entry) for token, entry in added if entry.special and token != unknown}
        self._ids = np.array(list(self._specials), dtype=np.int32)

    def __call__(self, ids: Ids) -> Ids:
        return self.with_places(ids, np.zeros((ids.size, 2), np.int64))[0]

    def with_places(self, ids: Ids, places: Ints) -> tuple[Ids, Ints]:
        """`places` [token, 2] is where each token starts and stops; its pieces divide them where they are its letters,
        and else have them in common."""
        if not np.isin(ids, self._ids).any():
            return ids, places
        pieces = [
            piece
            for token, (start, stop) in zip(ids.tolist(), places.tolist(), strict=True)
            for piece in self._pieces(token, start, stop)
        ]
        return np.array([piece[0] for piece in pieces], np.int32), np.array([piece[1:] for piece in pieces], np.int64)

    def _pieces(self, token: int, start: int, stop: int) -> list[tuple[int, int, int]]:
        name = self._specials.get(token, "")
        pieces = [
            (piece.id, first + _letters(part, piece.offsets[0]), first + _letters(part, piece.offsets[1]))
            for first, part in ((0, name[:1]), (1, name[1:]))
            if part
            for piece in self._model.tokenize(part)
        ]
        if not pieces:
            return [(token, start, stop)]
        if stop - start != len(name):
            return [(piece, start, stop) for piece, _, _ in pieces]
        return [(piece, start + first, start + last) for piece, first, last in pieces]


def _letters(text: str, count: int) -> int:
    """Whole characters in the first `count` bytes: the models of `tokenizers` count in bytes."""
    return len(text.encode()[:count].decode(errors="ignore"))


def _ids(called: Any, number: int) -> Ids:
    return np.array(called["input_ids"][number], np.int32)
