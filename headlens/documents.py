"""What a corpus is made of: texts, and what annotators wrote about their words. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from headlens.errors import CorpusError

Span: TypeAlias = tuple[int, int]  # start and stop, counted from 0; the stop is not part of it

ROOT = -1  # in `Sentence.heads`: the word has no head


@dataclass(frozen=True)
class Sentence:
    """The syntactic words of one sentence and their annotation, one entry a word.

    `spans` says which characters of `text` each word stands on. The words of a multiword token that do not spell it
    ("in" + "dem" for "im") share the characters of the whole token; a word of no characters has an empty span.
    What a corpus does not annotate is None.
    """

    words: tuple[str, ...]
    text: str
    spans: tuple[Span, ...]
    upos: tuple[str, ...] | None = None
    lemmas: tuple[str, ...] | None = None
    heads: tuple[int, ...] | None = None  # index of the head in this sentence, from 0; ROOT (-1): none
    relations: tuple[str, ...] | None = None  # of each word to its head, with subtypes: "nsubj:pass"
    id: str = "a sentence"  # where it came from, for messages: "file.conllu:12"
    space_after: bool = True  # whether white space follows it in its document

    def __post_init__(self) -> None:
        if not self.words:
            raise CorpusError(f"{self.id}: a sentence needs at least one word.")
        for name in ("spans", "upos", "lemmas", "heads", "relations"):
            entries = getattr(self, name)
            if entries is not None and len(entries) != len(self.words):
                raise CorpusError(f"{self.id}: {len(self.words)} words need as many {name}, got {len(entries)}.")
        for number, (start, stop) in enumerate(self.spans, start=1):
            if not 0 <= start <= stop <= len(self.text):
                raise CorpusError(
                    f"{self.id}: word {number} stands on characters {start} to {stop} of a text of {len(self.text)}."
                )
        if self.heads is not None and ROOT not in self.heads:
            raise CorpusError(
                f"{self.id}: no word is the root; heads are counted from 0, and the root's own is {ROOT} (in treebanks "
                "from 1, and it is 0)."
            )
        for number, head in enumerate(self.heads or (), start=1):
            if not (head == ROOT or 0 <= head < len(self.words)) or head == number - 1:
                raise CorpusError(f"{self.id}: word {number} has no word of this sentence for its head.")


@dataclass(frozen=True, order=True)
class Mention:
    """A stretch of words that refers to an entity; words are counted through the whole document."""

    start: int
    stop: int  # the first word after it
    entity: str


@dataclass(frozen=True)
class Candidate:
    """What a pronoun may refer to."""

    start: int
    stop: int
    is_right: bool


@dataclass(frozen=True)
class Choice:
    """A pronoun and its candidates, as in GAP, WinoBias and the Winograd schemas; words are counted through the
    whole document. `groups` names what the item is counted under: ("feminine",) or ("pro", "type1")."""

    start: int
    stop: int
    candidates: tuple[Candidate, ...]
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class Document:
    """One text of a corpus: the unit that error bars resample and that folds keep together.

    A document of plain text has no `sentences`. `mentions` is None where coreference is not annotated, and empty
    where it is and there is none.
    """

    text: str
    id: str = "a text"  # where it came from, for messages: "file.txt:12"
    sentences: tuple[Sentence, ...] = ()
    mentions: tuple[Mention, ...] | None = None
    choices: tuple[Choice, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise CorpusError(f"{self.id}: a document is made of a string, got {type(self.text).__name__}.")
        if not self.text.strip():
            raise CorpusError(f"{self.id}: a document needs at least one character that is not white space.")
        stretches = [(mention.start, mention.stop) for mention in self.mentions or ()]
        for choice in self.choices:
            stretches += [(choice.start, choice.stop), *((c.start, c.stop) for c in choice.candidates)]
        for start, stop in stretches:
            if not 0 <= start < stop <= self.n_words:
                raise CorpusError(f"{self.id}: words {start} to {stop} are no stretch of its {self.n_words} words.")

    @classmethod
    def of_sentences(
        cls,
        sentences: Sequence[Sentence],
        id: str,
        *,
        mentions: Sequence[Mention] | None = None,
        choices: Sequence[Choice] = (),
    ) -> Document:
        """A document whose text is that of its sentences, one after the other."""
        return cls(
            joined(sentences)[0],
            id,
            tuple(sentences),
            None if mentions is None else tuple(mentions),
            tuple(choices),
        )

    @cached_property
    def n_words(self) -> int:
        return sum(len(sentence.words) for sentence in self.sentences)


def joined(sentences: Sequence[Sentence]) -> tuple[str, tuple[Span, ...]]:
    """The text of consecutive sentences, and where each of their words stands in it."""
    text, spans = "", list[Span]()
    for number, sentence in enumerate(sentences):
        if number and sentences[number - 1].space_after:
            text += " "
        spans += [(len(text) + start, len(text) + stop) for start, stop in sentence.spans]
        text += sentence.text
    return text, tuple(spans)
