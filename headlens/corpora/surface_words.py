"""The words of plain text, as far as characters tell them. No torch here."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise

from headlens.documents import Sentence, Span
from headlens.errors import CorpusError

_INNER = frozenset("'\u2019-\u2010\u2011")  # apostrophes and hyphens
_NON_JOINER = "\u200c"  # stands between letters of one word in Persian and in Indic scripts
# Han characters, hiragana and katakana, by the blocks of Unicode 15
_CJK = re.compile(
    "[\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3041-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af]"
)
_JOINER = "\u200d"  # so does this one; between emoji it makes one of them, as a family of three people
_FLAG_LETTERS = range(0x1F1E6, 0x1F200)  # two of them are a flag
_SKIN_TONES = range(0x1F3FB, 0x1F400)
# In the kinds of characters. A joiner is a mark but between two emoji
_WORD = re.compile("L[MZ]*(?:(?:I[MZ]*)?L[MZ]*)*|FM*FM*|EM*(?:ZEM*)*[MZ]*|[^ ][MZ]*")


def surface_words(text: str, *, borders: Iterable[int] = (), id: str = "a sentence") -> Sentence:
    """A text as one sentence of words without annotation.

    A word is a run of letters and digits, with apostrophes and hyphens inside of it ("doesn't", "mother-in-law"); a
    Han character or a kana, each by itself; or any other character that is not white space. Combining marks belong to
    the character before them, and emoji that are joined are one. `borders` are offsets in characters at which a word
    ends in any case: the text on either side is cut into words by itself.

    Raises CorpusError for a text that is blank and for a border outside of it.
    """
    cuts = sorted({0, len(text), *borders})
    if cuts[0] < 0 or cuts[-1] > len(text):
        raise CorpusError(f"{id}: words cannot end at {cuts[0]} or {cuts[-1]} in a text of {len(text)} characters.")
    spans = tuple(span for start, stop in pairwise(cuts) for span in _words(text, start, stop))
    return Sentence(tuple(text[start:stop] for start, stop in spans), text, spans, id=id)


def words_within(sentence: Sentence, start: int, stop: int) -> Span:
    """First and last-plus-one of the words that stand on characters `start` to `stop` and nowhere else.

    Raises CorpusError where there is none.
    """
    inside = [number for number, (first, last) in enumerate(sentence.spans) if start <= first < last <= stop]
    if not inside:
        raise CorpusError(f"{sentence.id}: no word stands on characters {start} to {stop}.")
    return inside[0], inside[-1] + 1


def _words(text: str, start: int, stop: int) -> Iterator[Span]:
    """Characters of every word between two offsets."""
    kinds = "".join(map(_kind, text[start:stop]))
    for word in _WORD.finditer(kinds):
        yield start + word.start(), start + word.end()


@lru_cache(maxsize=10_000)
def _kind(character: str) -> str:
    """space, Zero-width joiner, Mark, Inner punctuation, cjK, Letter or digit, Flag letter, Emoji or sign, Other."""
    if character.isspace():
        return " "
    if character == _JOINER:
        return "Z"
    if ord(character) in _FLAG_LETTERS:
        return "F"
    if character == _NON_JOINER or ord(character) in _SKIN_TONES or unicodedata.category(character).startswith("M"):
        return "M"
    if character in _INNER:
        return "I"
    if _CJK.match(character):
        return "K"
    if character.isalnum():
        return "L"
    return "E" if unicodedata.category(character) == "So" else "O"
