"""GAP: a pronoun, two names, and which of them it refers to. No torch here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from headlens.corpora.surface_words import surface_words, words_within
from headlens.corpora.text import OnBad, at_least_one, existing_file, read_each, text_lines
from headlens.documents import Candidate, Choice, Document, Span
from headlens.errors import CorpusError

FEMININE = frozenset({"she", "her", "hers", "herself"})
MASCULINE = frozenset({"he", "him", "his", "himself"})

COLUMNS = ("Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "A-coref", "B", "B-offset", "B-coref")
_BOOLEANS = {"TRUE": True, "FALSE": False}


def read_gap(path: str | os.PathLike[str], *, on_bad: OnBad | None = None) -> Iterator[Document]:
    """A document a row of a GAP file (Webster et al. 2018): one sentence, the whole text, with one choice.

    The file is tab-separated with a header; quotes are ordinary characters. Offsets count characters. Words are those
    of `surface_words`, cut at the pronoun and the names. Candidates are A and B; where neither is right both are wrong.
    Groups: "feminine" or "masculine" by the pronoun. Ids are "file.tsv:12".

    Raises CorpusError: at once where there is no such file; while reading, for a header without COLUMNS and a file
    without a row that can be read, and for a row with a wrong number of cells, an offset or a truth value that is
    none, or a text that has something else where the pronoun or a name should stand: with `on_bad` such a row is
    left out.
    """
    return _documents(existing_file(path), on_bad)


def gender_groups(pronoun: str) -> tuple[str, ...]:
    """("feminine",), ("masculine",), or nothing for a pronoun that is neither."""
    word = pronoun.lower()
    return ("feminine",) if word in FEMININE else ("masculine",) if word in MASCULINE else ()


def _documents(file: Path, on_bad: OnBad | None) -> Iterator[Document]:
    lines = text_lines(file, on_bad=on_bad)
    header = _header(file, next(lines, (1, ""))[1])
    rows = ((number, line) for number, line in lines if line.strip())
    yield from at_least_one(
        read_each(rows, lambda row: _Row(file, row[0], header, row[1]).document(), on_bad),
        f"{file}: expected rows of GAP, found none that can be read; name a file that holds some.",
    )


def _header(file: Path, line: str) -> list[str]:
    names = line.split("\t")
    if missing := [name for name in COLUMNS if name not in names]:
        raise CorpusError(
            f"{file}, line 1: the header of a GAP file names {', '.join(COLUMNS)}, separated by tabs; "
            f"{', '.join(missing)} is missing: name a file of GAP."
        )
    return names


class _Row:
    """One row, and where it stands."""

    def __init__(self, file: Path, number: int, header: list[str], line: str) -> None:
        cells = line.split("\t")
        self.place = f"{file}, line {number}"
        self.id = f"{file.name}:{number}"
        if len(cells) != len(header):
            raise CorpusError(
                f"{self.place}: expected {len(header)} cells separated by tabs, as in the header, got {len(cells)}; "
                "mend the row."
            )
        self.cells = dict(zip(header, cells, strict=True))

    def document(self) -> Document:
        pronoun, first, second = (self.stretch(name) for name in ("Pronoun", "A", "B"))
        text = self.cells["Text"]
        sentence = surface_words(text, borders=[*pronoun, *first, *second], id=self.id)
        choice = Choice(
            *words_within(sentence, *pronoun),
            candidates=(
                Candidate(*words_within(sentence, *first), self.is_true("A-coref")),
                Candidate(*words_within(sentence, *second), self.is_true("B-coref")),
            ),
            groups=gender_groups(self.cells["Pronoun"]),
        )
        return Document.of_sentences([sentence], self.id, choices=[choice])

    def stretch(self, name: str) -> Span:
        """Characters of the text that a name or the pronoun stands on."""
        offset, expected = self.cells[f"{name}-offset"], self.cells[name]
        if not (offset.isascii() and offset.isdigit()):
            raise CorpusError(f"{self.place}: {name}-offset counts characters from 0, got {offset!r}; mend the row.")
        start, stop = int(offset), int(offset) + len(expected)
        found = self.cells["Text"][start:stop]
        if found != expected or not expected.strip():
            raise CorpusError(
                f"{self.place}: {name} should be {expected!r} at character {start} of the text, where {found!r} "
                "stands; mend the row (offsets count characters, not bytes)."
            )
        return start, stop

    def is_true(self, name: str) -> bool:
        cell = self.cells[name]
        if cell.upper() not in _BOOLEANS:
            raise CorpusError(f"{self.place}: {name} is TRUE or FALSE, got {cell!r}; mend the row.")
        return _BOOLEANS[cell.upper()]
