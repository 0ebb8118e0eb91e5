"""WinoBias: two occupations, and a pronoun that refers to one of them. No torch here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headlens.corpora.gap import FEMININE, MASCULINE, gender_groups
from headlens.corpora.surface_words import surface_words, words_within
from headlens.corpora.text import OnBad, at_least_one, existing_file, read_each, text_lines
from headlens.documents import Candidate, Choice, Document, Span
from headlens.errors import CorpusError

PRONOUNS = FEMININE | MASCULINE | {"they", "them", "their", "theirs", "themself", "themselves"}

_LINE = re.compile(r"\d+\s+(\S.*)")
_BRACKETED = re.compile(r"\[([^][]*)\]")
_DETERMINER = r"(?:(?:the|an|a)\s+)?"


def read_winobias(path: str | os.PathLike[str], *, on_bad: OnBad | None = None) -> Iterator[Document]:
    """A document a line of a WinoBias file (Zhao et al. 2018), with a choice for every pronoun.

    A line is a number and a sentence; brackets mark the right candidate and the pronoun or pronouns. The other
    candidate is not marked: it is the one other occupation in the sentence, with its determiner, where it is named
    first. Occupations are what the brackets of the whole file hold beside pronouns, so the file is read to its end
    first. Words are those of `surface_words`. Groups: "pro" or "anti" and "type1" or "type2" where the file's name
    says so ("pro_stereotyped", "type1"), and "feminine" or "masculine" by the pronoun. Ids are "file.dev:12".

    Raises CorpusError: at once where there is no such file; while reading, for a file without a line that can be read,
    and for a line without a number, without a pronoun or one right candidate in brackets, or with no or several
    occupations beside the right one: with `on_bad` such a line is left out.
    """
    return _documents(existing_file(path), on_bad)


def groups_of_name(name: str) -> tuple[str, ...]:
    """What the name of a file says about its sentences: ("pro", "type1"), or less."""
    stereotype = re.search(r"(?<![a-z])(pro|anti)[-_ ]?stereotype", name, re.IGNORECASE)
    form = re.search(r"(?<![a-z])type[-_ ]?([12])(?!\d)", name, re.IGNORECASE)
    return (*([stereotype[1].lower()] if stereotype else []), *([f"type{form[1]}"] if form else []))


@dataclass(frozen=True)
class _Marked:
    """A sentence without its brackets, and the characters that stood in them."""

    place: str  # for messages: "file.dev, line 12"
    id: str
    text: str
    right: Span
    pronouns: tuple[Span, ...]

    @property
    def occupation(self) -> str:
        return _without_determiner(self.text[slice(*self.right)])


def _documents(file: Path, on_bad: OnBad | None) -> Iterator[Document]:
    lines = ((number, line.strip()) for number, line in text_lines(file, on_bad=on_bad) if line.strip())
    marked = list(read_each(lines, lambda line: _marked(file, *line), on_bad))
    occupations = {sentence.occupation for sentence in marked}
    groups = groups_of_name(file.name)
    yield from at_least_one(
        read_each(marked, lambda sentence: _document(sentence, occupations, groups), on_bad),
        f"{file}: expected lines of WinoBias, found none that can be read; name a file that holds some.",
    )


def _marked(file: Path, number: int, line: str) -> _Marked:
    place = f"{file}, line {number}"
    numbered = _LINE.fullmatch(line)
    if numbered is None:
        raise CorpusError(f"{place}: a line of WinoBias is a number and a sentence, got {line[:60]!r}; mend the line.")
    text, spans = _without_brackets(numbered[1])
    if "[" in text or "]" in text:
        raise CorpusError(f"{place}: every bracket that opens closes again, and none stands inside another; mend it.")
    pronouns = tuple(span for span in spans if text[slice(*span)].lower() in PRONOUNS)
    others = [span for span in spans if span not in pronouns]
    if len(others) != 1 or not pronouns:
        raise CorpusError(
            f"{place}: brackets mark one candidate and at least one pronoun, "
            f"got {len(others)} and {len(pronouns)}; mend the line."
        )
    return _Marked(place, f"{file.name}:{number}", text, others[0], pronouns)


def _without_brackets(line: str) -> tuple[str, list[Span]]:
    """The text, and the characters of it that stood in brackets, less white space at their ends."""
    text, spans, at = "", list[Span](), 0
    for bracketed in _BRACKETED.finditer(line):
        text += line[at : bracketed.start()]
        inner = bracketed[1]
        start = len(text) + len(inner) - len(inner.lstrip())
        spans.append((start, start + len(inner.strip())))
        text += inner
        at = bracketed.end()
    return text + line[at:], spans


def _without_determiner(phrase: str) -> str:
    """An occupation as it is compared: in lower case, single spaces, no determiner."""
    return re.sub(rf"^{_DETERMINER}", "", " ".join(phrase.lower().split()))


def _document(marked: _Marked, occupations: Iterable[str], groups: Sequence[str]) -> Document:
    other = _other_candidate(marked, occupations)
    sentence = surface_words(
        marked.text, borders=[*marked.right, *other, *(edge for span in marked.pronouns for edge in span)], id=marked.id
    )
    candidates = sorted(
        [
            Candidate(*words_within(sentence, *marked.right), is_right=True),
            Candidate(*words_within(sentence, *other), is_right=False),
        ],
        key=lambda candidate: candidate.start,
    )
    choices = [
        Choice(
            *words_within(sentence, *span),
            candidates=tuple(candidates),
            groups=(*groups, *gender_groups(marked.text[slice(*span)])),
        )
        for span in marked.pronouns
    ]
    return Document.of_sentences([sentence], marked.id, choices=choices)


def _other_candidate(marked: _Marked, occupations: Iterable[str]) -> Span:
    # the longest first: in "the construction worker" there is no "worker" by itself
    names = sorted(set(occupations) - {marked.occupation}, key=lambda name: (-len(name), name))
    pattern = "|".join(re.escape(name).replace(r"\ ", r"\s+") for name in names)
    found = [
        match.span()
        for match in re.finditer(rf"\b{_DETERMINER}(?:{pattern})\b", marked.text, re.IGNORECASE)
        if names and (match.end() <= marked.right[0] or match.start() >= marked.right[1])
    ]
    if len({_without_determiner(marked.text[slice(*span)]) for span in found}) != 1:
        seen = ", ".join(repr(marked.text[slice(*span)]) for span in found) or "none"
        raise CorpusError(
            f"{marked.place}: expected one occupation beside {marked.text[slice(*marked.right)]!r} of those that the "
            f"file's brackets name, found {seen}; mend the line or leave it out."
        )
    return found[0]
