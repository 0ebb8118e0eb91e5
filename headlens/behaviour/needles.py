"""Needles in haystacks: a running text with something told once, early or late, that the end of the text asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headlens.errors import CorpusError
from headlens.words import call, check_fast, encodable, kept_as_it_is

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Ints = NDArray[np.int64]

KEY_TOKENS = 4  # of a random needle: what it is asked for by
NEEDLE_TOKENS = 8

SENTENCES: tuple[tuple[str, str], ...] = (
    ("The best thing to do in Brindle on a wet Sunday is", "to polish the brass bell behind the old granary."),
    ("The password that opens the lighthouse door is", "seven green herons under a paper moon."),
    ("What the widow of the clockmaker hid in the well was", "a silver compass wrapped in oiled leather."),
)
"""Needles for models that read English: how a sentence begins, and how it goes on."""


@dataclass(frozen=True, eq=False)
class Needle:
    """Tokens that are told together once; the key stands at the end of the text again, and asks for the rest."""

    key: Ints
    ids: Ints

    @property
    def size(self) -> int:
        return self.key.size + self.ids.size


@dataclass(frozen=True, eq=False)
class Cell:
    """One text with a needle in it. Positions are counted from 0, special tokens in front included."""

    prompt: Ints  # [token], up to the key at the end
    needle: Ints  # how the text must go on
    start: int  # position of the needle's first token behind its key
    elsewhere: int  # first position of a stretch of haystack as long as the needle, at a random place
    depth: float  # share of the haystack that stands before the needle, as it was asked for

    @property
    def stop(self) -> int:
        return self.start + self.needle.size


@dataclass(frozen=True, eq=False)
class Haystack:
    """Tokens of a running text, which begins anew where it ends, and the special tokens that stand in front."""

    ids: Ints
    before: Ints

    def stretch(self, start: int, size: int) -> Ints:
        return self.ids[(start + np.arange(size)) % self.ids.size]

    def around(self, needle: Needle, *, length: int, depth: float, rng: np.random.Generator) -> Cell:
        """A prompt of `length` tokens with the needle at `depth`; the haystack begins at a random place.

        Raises CorpusError where there is no room for a haystack of twice the needle's tokens.
        """
        size = length - self.before.size - needle.size - needle.key.size
        if size < 2 * needle.ids.size:  # so that a stretch of it is as long as the needle, at any depth
            raise CorpusError(
                f"A text of {length} tokens is too short for its needle, which needs at least {shortest(self, needle)}."
            )
        hay = self.stretch(int(rng.integers(self.ids.size)), size)
        cut = round(depth * size)
        told = np.concatenate([needle.key, needle.ids])
        prompt = np.concatenate([self.before, hay[:cut], told, hay[cut:], needle.key])
        first = self.before.size + cut
        free = [
            *range(self.before.size, first - needle.ids.size + 1),
            *range(first + told.size, length - needle.key.size - needle.ids.size + 1),
        ]
        return Cell(prompt, needle.ids, first + needle.key.size, int(rng.choice(free)), depth)


def shortest(haystack: Haystack, needle: Needle) -> int:
    """The fewest tokens of a prompt with this needle in it."""
    return haystack.before.size + needle.size + needle.key.size + 2 * needle.ids.size


def make_cells(
    haystack: Haystack, needles: Sequence[Needle], *, lengths: Sequence[int], depths: Sequence[float], seed: int
) -> list[Cell]:
    """A cell for each of the needles, in the order of lengths, then depths; there must be as many for each of them.

    Raises CorpusError for a depth that is no share, and for a length that has no room for its needle.
    """
    for depth in depths:
        if not 0 <= depth <= 1:
            raise CorpusError(f"The depth of a needle is a share of the text before it, 0 to 1; got {depth}.")
    rng = np.random.default_rng([seed, 1])
    each = len(needles) // (len(lengths) * len(depths))
    grid = [(length, depth) for length in lengths for depth in depths for _ in range(each)]
    return [
        haystack.around(needle, length=length, depth=depth, rng=rng)
        for needle, (length, depth) in zip(needles, grid, strict=True)
    ]


def random_needles(ordinary: Ints, count: int, *, seed: int) -> list[Needle]:
    """So many needles of KEY_TOKENS and NEEDLE_TOKENS random tokens, none twice within a needle.

    Raises CorpusError where there are fewer tokens to draw.
    """
    size = KEY_TOKENS + NEEDLE_TOKENS
    if ordinary.size < size:
        raise CorpusError(
            f"A needle of random tokens needs {size} ordinary ones, the vocabulary has {ordinary.size}; give sentences "
            f"of your own as needles."
        )
    rng = np.random.default_rng([seed, 0])
    drawn = [rng.choice(ordinary, size, replace=False) for _ in range(count)]
    return [Needle(ids[:KEY_TOKENS], ids[KEY_TOKENS:]) for ids in drawn]


def sentence_needles(
    sentences: Sequence[tuple[str, str]], count: int, tokenizer: PreTrainedTokenizerBase
) -> list[Needle]:
    """So many needles of sentences, given as (how it begins, how it goes on), over and over in their order.

    Raises CorpusError where there is none, or the tokenizer makes no token of one of the two.
    """
    if not sentences:
        raise CorpusError("There must be at least one sentence to hide, as (how it begins, how it goes on).")
    found = [_sentence_needle(key, rest, tokenizer) for key, rest in sentences]
    return [found[number % len(found)] for number in range(count)]


def _sentence_needle(key: str, rest: str, tokenizer: PreTrainedTokenizerBase) -> Needle:
    """Tokenized as a whole and then cut, for a space belongs to the token behind it."""
    check_fast(tokenizer)
    with kept_as_it_is(tokenizer):
        called = call(tokenizer, [encodable(f"{key} {rest}", "a needle")], return_offsets_mapping=True)
    ids = np.array(called["input_ids"][0], dtype=np.int64)
    begun = sum(start < len(key) for start, _ in called["offset_mapping"][0])
    if not 0 < begun < ids.size:
        raise CorpusError(f"The tokenizer makes no token of a part of the needle {key!r}, {rest!r}; give another one.")
    return Needle(ids[:begun], ids[begun:])
