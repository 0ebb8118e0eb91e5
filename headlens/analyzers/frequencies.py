"""How often words occur: in a corpus, or by a list that a user brings. No torch here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real

import numpy as np
from numpy.typing import NDArray

from headlens.documents import Sentence
from headlens.errors import CorpusError

FREQUENT_FORMS = 500  # Voita et al. 2019: the rarest word of a sentence that is asked about lies outside of these


@dataclass(frozen=True)
class Frequencies:
    """Counts, or relative frequencies, of words by their lower-cased form; a word that is not listed has 0."""

    counts: Mapping[str, float]

    @classmethod
    def of_sentences(cls, sentences: Iterable[Sentence]) -> Frequencies:
        """Counted in the sentences themselves."""
        return cls.listed(Counter(word for sentence in sentences for word in sentence.words))

    @classmethod
    def listed(cls, counts: Mapping[str, object]) -> Frequencies:
        """Of a list that a user brings: numbers by form, in whatever letters; those of "The" and "the" add up.

        Raises CorpusError where nothing is listed, and for a count that is no number from 0 on.
        """
        if not counts:
            raise CorpusError("Frequencies need at least one word; give a mapping of words to counts.")
        lowered = dict[str, float]()
        for form, count in counts.items():
            if not isinstance(count, Real) or not 0 <= float(count) < math.inf:
                raise CorpusError(
                    f"The frequency of a word is a finite number from 0 on, got {count!r} for {form!r}; mend the list."
                )
            lowered[form.lower()] = lowered.get(form.lower(), 0.0) + float(count)
        return cls(lowered)

    def of(self, words: Sequence[str]) -> NDArray[np.float64]:
        """[word]: the count of each."""
        return np.array([self.counts.get(word.lower(), 0.0) for word in words], dtype=np.float64)

    @cached_property
    def most_of_rare(self) -> float:
        """The largest count of a rare word: one that is not of the 500 most frequent forms.

        Where fewer than 1,000 forms are listed, the more frequent half of them takes the place of the 500. Forms that
        are as frequent as the first one outside are rare all of them.
        """
        counts = sorted(self.counts.values(), reverse=True)
        return counts[min(FREQUENT_FORMS, len(counts) // 2)]
