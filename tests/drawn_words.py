"""Sentences, batches and attention between words, drawn by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headlens.documents import Sentence
from headlens.gold.scored_input import ScoredInput
from headlens.pooling import candidates
from headlens.records import Batch, LayerAttention, WordAttention
from headlens.testing import draw

SPECIAL, OF_NO_WORD, PADDING = "S", "-", "."


def parsed(*rows: str, id: str = "drawn") -> Sentence:
    """A sentence of one row a word: "dogs NOUN 2 nsubj", with the lemma at the end where it is not the form.

    Heads are counted from 1, and 0 is no head, as in CoNLL-U.
    """
    cells = [row.split() for row in rows]
    forms = [cell[0] for cell in cells]
    starts = np.cumsum([0, *(len(form) + 1 for form in forms)]).tolist()
    return Sentence(
        words=tuple(forms),
        text=" ".join(forms),
        spans=tuple((start, start + len(form)) for start, form in zip(starts, forms, strict=False)),
        upos=tuple(cell[1] for cell in cells),
        lemmas=tuple(cell[4] if len(cell) > 4 else cell[0] for cell in cells),
        heads=tuple(int(cell[2]) - 1 for cell in cells),
        relations=tuple(cell[3] for cell in cells),
        id=id,
    )


def bare(text: str) -> Sentence:
    """A sentence of words between spaces, without annotation."""
    words = text.split()
    starts = np.cumsum([0, *(len(word) + 1 for word in words)]).tolist()
    spans = tuple((start, start + len(word)) for start, word in zip(starts, words, strict=False))
    return Sentence(tuple(words), " ".join(words), spans)


def seen(
    words: int, *, is_causal: bool = False, has_sink: bool = False, without: tuple[int, ...] = ()
) -> ScoredInput:  # fmt: skip
    """An input of so many words, of which those in `without` have no token."""
    present = np.array([word not in without for word in range(words)])
    return ScoredInput(present, is_causal, has_sink)


def tokens_of(
    *rows: str, inputs: Sequence[int] | None = None, documents: Sequence[int] | None = None, words: int = 0
) -> Batch:
    """A batch from drawings of one cell a token: "S 0 0 1 - S ." has two tokens of word 0, one of word 1 and one of
    no word between special tokens, and padding at the end. `words` is the width, if more words than those drawn."""
    cells = [row.split() for row in rows]
    real = torch.tensor([[cell != PADDING for cell in row] for row in cells])
    special = torch.tensor([[cell == SPECIAL for cell in row] for row in cells])
    width = max([words, *(int(cell) + 1 for row in cells for cell in row if cell.isdigit())])
    ranges = torch.zeros(len(rows), width, 2, dtype=torch.long)
    for row, drawn in enumerate(cells):
        for word in {int(cell) for cell in drawn if cell.isdigit()}:
            first = drawn.index(str(word))
            ranges[row, word] = torch.tensor([first, first + drawn.count(str(word))])
    numbers = list(inputs or range(len(rows)))
    place = real.long().cumsum(dim=1)  # an input has the same ids however it is padded
    ids = torch.where(real, 5 + (7 * place + place**2 + 13 * torch.tensor(numbers)[:, None]) % 90, 0)
    return Batch(
        ids,
        real,
        special,
        torch.tensor(documents or numbers),
        input_index=torch.tensor(numbers),
        words=ranges,
    )


def whole_words(*counts: int, inputs: Sequence[int] | None = None, documents: Sequence[int] | None = None) -> Batch:
    """A batch of inputs of so many words, each of one token, padded on the right; no special tokens."""
    rows = [" ".join([*map(str, range(count)), *[PADDING] * (max(counts) - count)]) for count in counts]
    return tokens_of(*rows, inputs=inputs, documents=documents)


def heads(*patterns: Sequence[str]) -> Tensor:
    """[head, word, word_to] from a drawing of each head."""
    return torch.stack([draw(rows) for rows in patterns])


def looking(*choices: Sequence[int | None]) -> Tensor:
    """[head, word, word_to]: word i of a head pays .5 to `choices[head][i]`, and nothing else; None pays nothing."""
    count = len(choices[0])
    probs = torch.zeros(len(choices), count, count, dtype=torch.float64)
    for head, row in enumerate(choices):
        for word, to in enumerate(row):
            if to is not None:
                probs[head, word, to] = 0.5
    return probs


def between(
    batch: Batch, *probs: Tensor, is_causal: bool = False, to_special: Tensor | None = None
) -> WordAttention:  # fmt: skip
    """Attention between words; `probs` [head, word, word_to] of each input of the batch, without its padding."""
    assert batch.words is not None
    width = batch.words.shape[1]
    padded = probs[0].new_zeros(len(probs), len(probs[0]), width, width)
    for row, of_input in enumerate(probs):
        count = of_input.shape[-1]
        padded[row, :, :count, :count] = of_input
    none = padded.new_zeros(*padded.shape[:3], 0)
    return WordAttention(0, padded, none if to_special is None else to_special, candidates(batch, is_causal), is_causal)


def of_tokens(probs: Tensor, *, start: int = 0, is_causal: bool = False, layer: int = 0) -> LayerAttention:
    """Attention between tokens, [batch, head, query, key]."""
    size, count, queries, keys = probs.shape
    query, key = probs.new_zeros(size, count, queries, 1), probs.new_zeros(size, count, keys, 1)
    return LayerAttention(layer, query, key, key, probs, query, start, "encoder", is_causal)


def random_heads(count: int, *words: int, seed: int = 0) -> list[Tensor]:
    """For each number of words the attention of `count` heads, [head, word, word_to], in float64; rows sum to 1."""
    generator = torch.Generator().manual_seed(seed)
    scores = [torch.randn(count, n, n, generator=generator, dtype=torch.float64) for n in words]
    return [(3 * score).softmax(dim=-1) for score in scores]
