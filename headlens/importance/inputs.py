"""The texts on which heads are judged, as batches of token ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from headlens.corpora import texts as documents_of
from headlens.documents import Document
from headlens.errors import CorpusError

MAX_LENGTH = 128  # tokens of a text, special ones included
BATCH_TOKENS = 1024  # padding included; more rows at once are no faster on a processor


@dataclass(frozen=True, eq=False)
class TextBatch:
    """Inputs of one forward pass, padded on the right. Importance is a mean over examples."""

    input_ids: Int[Tensor, "batch token"]
    attention_mask: Int[Tensor, "batch token"]  # 1 = a real token
    example: Int[Tensor, " batch"]  # which example each row is, from 0 on

    def __post_init__(self) -> None:
        real = self.attention_mask.bool()
        if not real[:, 0].all() or (real[:, 1:] & ~real[:, :-1]).any():
            raise CorpusError("Importance is judged on batches padded on the right, each row with a real token.")

    def __len__(self) -> int:
        return len(self.example)

    @property
    def lengths(self) -> Int[Tensor, " batch"]:
        return self.attention_mask.sum(dim=-1)

    def take(self, rows: Int[Tensor, " row"]) -> TextBatch:
        """These rows, any of them as often as it is named."""
        return TextBatch(self.input_ids[rows], self.attention_mask[rows], self.example[rows])

    def to(self, device: torch.device | str) -> TextBatch:
        return TextBatch(self.input_ids.to(device), self.attention_mask.to(device), self.example.to(device))


def text_batches(
    texts: Iterable[str | Document],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int = MAX_LENGTH,
    batch_tokens: int = BATCH_TOKENS,
) -> list[TextBatch]:
    """One row a text, sorted by length; of longer ones only the first `max_length` tokens.

    Parameters
    ----------
    texts
        Strings, documents or a Corpus; example i is the i-th of them.
    batch_tokens
        Most tokens of a batch, padding included; a single text may have more.

    Raises
    ------
    CorpusError
        No text, a blank one, or one of which the tokenizer makes no token.
    """
    listed = [text.text if isinstance(text, Document) else text for text in texts]
    if not listed:
        raise CorpusError("There is no text to judge heads on; give at least one.")
    documents_of(listed)  # says which one is blank
    ids: list[list[int]] = tokenizer(listed, truncation=True, max_length=max_length)["input_ids"]
    for number, own in enumerate(ids, start=1):
        if not own:
            raise CorpusError(f"The tokenizer makes no token of text {number}; leave it out.")
    return padded_batches(ids, batch_tokens=batch_tokens)


def token_windows(
    texts: Iterable[str | Document],
    tokenizer: PreTrainedTokenizerBase,
    *,
    length: int = 256,
    most: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> list[TextBatch]:
    """Texts joined by an empty line and cut into windows of `length` tokens without special ones: for language models.

    What is left over at the end is dropped; CorpusError where the texts fill no window. `most` keeps the first ones.
    """
    joined = "\n\n".join(text.text if isinstance(text, Document) else text for text in texts)
    ids: list[int] = tokenizer(joined, add_special_tokens=False, verbose=False)["input_ids"]
    windows = [ids[start : start + length] for start in range(0, len(ids) - length + 1, length)][:most]
    if not windows:
        raise CorpusError(f"The texts have {len(ids)} tokens and fill no window of {length}; give more text.")
    return padded_batches(windows, batch_tokens=batch_tokens)


def padded_batches(ids: Sequence[Sequence[int]], *, batch_tokens: int = BATCH_TOKENS) -> list[TextBatch]:
    """Rows of token ids, sorted by length into batches of up to `batch_tokens` tokens; padding has the id 0."""
    order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
    return [_padded([ids[row] for row in rows], rows) for rows in _in_batches(order, ids, batch_tokens)]


def examples_of(batches: Iterable[TextBatch]) -> int:
    """How many examples there are; CorpusError unless each number from 0 on is there once."""
    numbers = sorted(number for batch in batches for number in batch.example.tolist())
    if not numbers or numbers != list(range(len(numbers))):
        raise CorpusError("Batches to judge heads on must hold every example from 0 on, and each of them once.")
    return len(numbers)


def _in_batches(order: Sequence[int], ids: Sequence[Sequence[Any]], batch_tokens: int) -> Iterator[list[int]]:
    rows: list[int] = []
    for row in order:
        if rows and len(ids[row]) * (len(rows) + 1) > batch_tokens:
            yield rows
            rows = []
        rows.append(row)
    yield rows


def _padded(ids: Sequence[Sequence[int]], example: Sequence[int]) -> TextBatch:
    shape = len(ids), max(map(len, ids))
    padded, mask = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    for row, own in enumerate(ids):
        padded[row, : len(own)], mask[row, : len(own)] = torch.tensor(own), 1
    return TextBatch(padded, mask, torch.tensor(example))
