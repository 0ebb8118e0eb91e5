"""The text that a model is healed on, and other text on which it is judged."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headlens.calibration import TEXT_TOKENS, TEXTS, WINDOW_TOKENS, WINDOWS, reads_windows
from headlens.corpora import texts as documents_of
from headlens.documents import Document
from headlens.encode import max_length_of
from headlens.errors import CorpusError
from headlens.importance.inputs import TextBatch, padded_batches, text_batches, token_windows
from headlens.models import LoadedModel, network_of

Labels = Sequence[int] | Sequence[float]
_ALL = 1 << 60  # tokens of a batch: all rows in one


@dataclass(frozen=True, eq=False)
class Reading:
    """Rows of token ids to train on, each with its label where there are labels, and batches to be judged on."""

    rows: tuple[tuple[int, ...], ...]
    held_out: tuple[TextBatch, ...]
    labels: Tensor | None  # [row]

    def drawn(self, steps: int, batch: int, seed: int) -> Batches:
        """The batches of a training: all rows in a random order, then all in another, until there are enough."""
        rng = np.random.default_rng(seed)
        orders: list[int] = []
        while len(orders) < steps * batch:
            orders += rng.permutation(len(self.rows)).tolist()
        return Batches(self, orders[: steps * batch])

    def digest(self) -> str:
        held = [batch.input_ids.tolist() for batch in self.held_out]
        labels = None if self.labels is None else self.labels.tolist()
        return hashlib.sha256(repr((self.rows, held, labels)).encode()).hexdigest()


class Batches(torch.utils.data.Dataset[int]):
    """Which row comes when; `collated` makes a batch of some."""

    def __init__(self, reading: Reading, order: Sequence[int]) -> None:
        self.reading, self.order = reading, order

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, place: int) -> int:
        return self.order[place]

    def collated(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """`input_ids`, `attention_mask` [row, token], and `row`, the number of each among all rows."""
        (batch,) = padded_batches([self.reading.rows[row] for row in rows], batch_tokens=_ALL)
        return {
            "input_ids": batch.input_ids,
            "attention_mask": batch.attention_mask,
            "row": torch.tensor(rows)[batch.example],
        }


def length_for(loaded: LoadedModel, wanted: int | None, *, by_text: bool) -> int:
    """Tokens of a row: those asked for, or the default for such models, and never more than the model takes."""
    usual = WINDOW_TOKENS if is_in_windows(loaded, by_text) else TEXT_TOKENS
    return min(wanted or usual, max_length_of(network_of(loaded.model).config, loaded.require_tokenizer()))


def is_in_windows(loaded: LoadedModel, by_text: bool) -> bool:
    return not by_text and reads_windows(loaded)


def read(
    loaded: LoadedModel,
    texts: Iterable[str | Document],
    held_out: Iterable[str | Document] | None,
    labels: Labels | None,
    *,
    max_length: int,
    seed: int,
) -> Reading:
    """Token ids to train on and to be judged on. No text of the latter is trained on, wherever both came from.

    Texts are held out as `calibrate` does it: with the same seed, what a pruning was judged on is not trained on.

    Raises
    ------
    CorpusError
        Blank texts, too few of them, too little text to fill a window, labels for another number of texts, or a
        tokenizer of another model.
    """
    documents, tokenizer = _documents(texts), loaded.require_tokenizer()
    if labels is not None and len(labels) != len(documents):
        raise CorpusError(f"There are {len(documents)} texts and {len(labels)} labels; give each text its label.")
    windows = is_in_windows(loaded, labels is not None)
    numbers = list(range(len(documents)))
    if held_out is None:
        if len(documents) < 2:
            raise CorpusError(
                f"Some texts heal and others judge, and there are {len(documents)}; give at least "
                f"two, or held_out texts of their own."
            )
        numbers = np.random.default_rng(seed).permutation(len(documents)).tolist()
        count = len(numbers) // 2 if windows else min(TEXTS, len(numbers) // 2)
        held, numbers = [documents[number] for number in numbers[:count]], numbers[count:]
    else:
        held = _documents(held_out)
    known = {document.text for document in held}
    numbers = [number for number in numbers if documents[number].text not in known]
    if not numbers or not held:
        raise CorpusError(
            f"There are {len(numbers)} texts to train on and {len(held)} others to be judged on; give at least one of "
            f"each."
        )
    train = [documents[number] for number in numbers]
    if windows:
        batches = token_windows(train, tokenizer, length=max_length)
        judging = token_windows(held, tokenizer, length=max_length, most=WINDOWS)
    else:
        batches = text_batches(train, tokenizer, max_length=max_length)
        judging = text_batches(held, tokenizer, max_length=max_length)
    own = None if labels is None else torch.tensor([labels[number] for number in numbers])
    reading = Reading(tuple(_rows(batches)), tuple(judging), own)
    _check_vocabulary(reading, loaded)
    return reading


def _documents(texts: Iterable[str | Document]) -> list[Document]:
    """Strings as documents; CorpusError for a blank one."""
    if isinstance(texts, str):
        raise CorpusError("Healing needs a list of texts or a corpus, and got a single string.")
    listed = list(texts)
    strings = iter(documents_of(text for text in listed if isinstance(text, str)))
    return [text if isinstance(text, Document) else next(strings) for text in listed]


def _rows(batches: Sequence[TextBatch]) -> Iterator[tuple[int, ...]]:
    """Token ids of every example, in their order."""
    found = {
        example: tuple(ids[:length])
        for batch in batches
        for example, ids, length in zip(
            batch.example.tolist(), batch.input_ids.tolist(), batch.lengths.tolist(), strict=True
        )
    }
    return (found[example] for example in range(len(found)))


def _check_vocabulary(reading: Reading, loaded: LoadedModel) -> None:
    held = max(int(batch.input_ids.max()) for batch in reading.held_out)
    largest = max(held, max(map(max, reading.rows)))
    table: Any = network_of(loaded.model).get_input_embeddings()
    if largest >= table.num_embeddings:
        raise CorpusError(
            f"The tokenizer gives the id {largest}, and {loaded.name} has {table.num_embeddings} tokens: use the "
            f"tokenizer that belongs to the model."
        )
