"""What a scorer must know of every input: its words, which of them can be chosen, and from where."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ScoredInput:
    """One input as the model read it. `present` [word] marks the words that have a token.

    `sink` is the word that a causal model rests on for want of a special token in front, the first with a token
    (Xiao et al. 2024); it can be chosen from nowhere, and nothing is asked about it.
    """

    present: Bools
    is_causal: bool
    has_sink: bool = False

    @property
    def asked(self) -> Bools:
        """[word]: words that decisions are about: those with a token, but for the sink."""
        asked = self.present.copy()
        if self.has_sink and asked.any():
            asked[int(asked.argmax())] = False
        return asked

    @property
    def candidates(self) -> Bools:
        """[from, to]: words that can be chosen from each word: all but itself; in a causal model the earlier ones."""
        asked = self.asked
        pairs = asked[:, None] & asked[None, :]
        return np.tril(pairs, -1) if self.is_causal else pairs & ~np.eye(asked.size, dtype=bool)
