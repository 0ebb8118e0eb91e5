"""Which neighbouring words belong to one phrase, and where the borders are. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headlens.documents import Sentence
from headlens.gold.arcs import collapsed, dependencies
from headlens.gold.scored_input import ScoredInput

INTERNAL = frozenset({"det", "amod", "nummod", "compound", "flat", "fixed", "case", "clf", "goeswith", "aux"})
INTERNAL_SUBTYPES = frozenset({"nmod:poss"})
MODIFIED = frozenset({"ADJ", "ADV"})  # their adverbs are of their phrase: "very old"


@dataclass(frozen=True, eq=False)
class Phrasing:
    """Marks on the words of one sentence."""

    with_left: NDArray[np.bool_]  # of one phrase with the word before
    is_punctuation: NDArray[np.bool_]

    @property
    def annotated(self) -> NDArray[np.bool_]:
        return np.ones_like(self.with_left)

    @property
    def is_final(self) -> NDArray[np.bool_]:
        """The last word, if it is punctuation."""
        return self.is_punctuation & (np.arange(self.with_left.size) == self.with_left.size - 1)

    @property
    def is_first(self) -> NDArray[np.bool_]:
        return np.arange(self.with_left.size) == 0


def phrasings(sentences: Sequence[Sentence], scored: Mapping[int, ScoredInput]) -> dict[int, Phrasing]:
    """Of every sentence with dependencies and parts of speech that the model reads, by input."""
    return {
        number: Phrasing(_with_left(sentence), np.array([tag == "PUNCT" for tag in sentence.upos]))
        for number in sorted(scored)
        if (sentence := sentences[number]).heads is not None
        and sentence.relations is not None
        and sentence.upos is not None
    }


def _with_left(sentence: Sentence) -> NDArray[np.bool_]:
    """Phrases are the words that are linked, directly or over others, by the relations that hold a phrase together."""
    phrase = list(range(len(sentence.words)))

    def name(word: int) -> int:
        while phrase[word] != word:
            word = phrase[word]
        return word

    for word, head, relation in dependencies(sentence):
        if _is_internal(sentence, head, relation):
            phrase[name(word)] = name(head)
    names = np.array([name(word) for word in range(len(sentence.words))])
    return np.concatenate([[False], names[1:] == names[:-1]])


def _is_internal(sentence: Sentence, head: int, relation: str) -> bool:
    if collapsed(relation) in INTERNAL or relation in INTERNAL_SUBTYPES:
        return True
    return collapsed(relation) == "advmod" and sentence.upos is not None and sentence.upos[head] in MODIFIED
