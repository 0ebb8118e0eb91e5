"""Finding the decisions of the inputs of a batch. No torch here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class ByInput:
    """`of(inputs)` for decisions whose inputs are in ascending order."""

    def __init__(self, input_of: NDArray[np.int64]) -> None:
        """`input_of` [decision]: the input that each belongs to."""
        self._starts = np.searchsorted(input_of, np.arange(input_of.max(initial=-1) + 2))

    def of(self, inputs: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Decisions of the given inputs: which place in `inputs` each belongs to, and its index."""
        parts = [self._of_one(number) for number in inputs]
        places = np.repeat(np.arange(len(inputs)), [part.size for part in parts])
        return places, np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def _of_one(self, number: int) -> NDArray[np.int64]:
        if number + 1 >= self._starts.size:
            return np.zeros(0, np.int64)
        return np.arange(self._starts[number], self._starts[number + 1])
