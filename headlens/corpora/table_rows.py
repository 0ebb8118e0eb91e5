"""A sentence out of one row of a table. No torch here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from headlens.documents import ROOT, Sentence, Span
from headlens.errors import CorpusError


@dataclass(frozen=True)
class Row:
    """What one row holds: a sentence, or a text without words."""

    document: str | None
    number: int
    content: Sentence | str


@dataclass(frozen=True)
class RowReader:
    """Makes sentences of rows, as `read_table` tells."""

    table: str  # for messages
    name: str  # of the table, for ids
    fields: Mapping[str, str]  # what the table calls each of our columns
    label_names: Mapping[str, Sequence[str]]  # of a column of numbers that stand for names, those names

    def read(self, number: int, row: Mapping[str, Any]) -> Row:
        """The row of that number, counted from 1. Raises CorpusError where it is no sentence."""
        place = f"{self.table}, row {number}"
        values = {ours: row.get(theirs) for ours, theirs in self.fields.items()}
        text = _text(place, values.get("text"))
        document = values.get("document")
        return Row(
            document=None if document in (None, "") else str(document),
            number=number,
            content=self._sentence(place, f"{self.name}:{number}", values, text)
            if "words" in values
            else _whole(place, text),
        )

    def _sentence(self, place: str, id: str, values: Mapping[str, Any], text: str | None) -> Sentence:
        words = self._strings(place, "words", values["words"])
        if not words or any(word is None or not word.strip() for word in words):
            raise CorpusError(f"{place}: a sentence is a list of words that are not blank, got {words}; mend the row.")
        forms = [word for word in words if word is not None]
        units = _units(place, _listed(place, "ids", values.get("ids")), forms)
        kept = [index for unit in units for index in unit.words]
        columns = {
            ours: _kept(place, ours, self._strings(place, ours, values.get(ours)), kept, len(forms))
            for ours in ("upos", "lemmas", "heads", "relations")
        }
        text, spans = _placed(text, units, forms)
        return Sentence(
            words=tuple(forms[index] for index in kept),
            text=text,
            spans=spans,
            upos=columns["upos"],
            lemmas=columns["lemmas"],
            heads=_heads(place, columns["heads"]),
            relations=columns["relations"],
            id=id,
        )

    def _strings(self, place: str, ours: str, value: Any) -> list[str | None] | None:
        """Entries of a list, names in the place of the numbers that stand for them; None where there is no list."""
        entries = _listed(place, ours, value)
        if entries is None:
            return None
        if names := self.label_names.get(self.fields[ours]):
            entries = [names[entry] if isinstance(entry, int) and entry >= 0 else None for entry in entries]
        for entry in entries:
            if not (entry is None or isinstance(entry, str) or (ours == "heads" and type(entry) is int)):
                raise CorpusError(f"{place}: the {ours} are strings, got {entry!r}; name another column.")
        return [None if entry is None else str(entry) for entry in entries]


def _whole(place: str, text: str | None) -> str:
    if text is None:
        raise CorpusError(f"{place}: the text is blank; mend the row.")
    return text


def _text(place: str, value: Any) -> str | None:
    """A text without white space around it; None where there is none."""
    if not (value is None or isinstance(value, str)):
        raise CorpusError(f"{place}: the text is a string, got {value!r}; name another column.")
    return (value or "").strip() or None


def _listed(place: str, ours: str, value: Any) -> list[Any] | None:
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise CorpusError(f"{place}: the {ours} cannot be read as a JSON list ({error}); mend the row.") from error
    if value in (None, ""):
        return None
    if not isinstance(value, list):
        raise CorpusError(f"{place}: the {ours} are a list with one entry a word, got {value!r}; name another column.")
    return value


class _Unit(NamedTuple):
    """What stands in the text as one piece, and the indices of the rows of its words."""

    surface: str
    words: tuple[int, ...]


def _units(place: str, ids: list[Any] | None, forms: Sequence[str]) -> list[_Unit]:
    if ids is None:
        return [_Unit(form, (index,)) for index, form in enumerate(forms)]
    if len(ids) != len(forms):
        raise CorpusError(f"{place}: {len(forms)} words need as many ids, got {len(ids)}; mend the row.")
    names = [str(id) for id in ids]
    plain = [index for index, name in enumerate(names) if name.isdecimal()]
    if [int(names[index]) for index in plain] != list(range(1, len(plain) + 1)) or not plain:
        raise CorpusError(f"{place}: the ids of words count 1, 2, 3, ..., got {', '.join(names)}; mend the row.")
    units, covered = list[_Unit](), 0
    for index, name in enumerate(names):
        if multiword := re.fullmatch(r"(\d+)-(\d+)", name):
            first, last = int(multiword[1]), int(multiword[2])
            if not covered < first <= last <= len(plain):
                raise CorpusError(f"{place}: the multiword token {name} covers no words of its own; mend the row.")
            units.append(_Unit(forms[index], tuple(plain[first - 1 : last])))
            covered = last
        elif name.isdecimal() and int(name) > covered:
            units.append(_Unit(forms[index], (index,)))
            covered = int(name)
        elif not name.isdecimal() and not re.fullmatch(r"\d+\.\d+", name):
            raise CorpusError(f"{place}: an id is like 8, 8-9 or 8.1, got {name!r}; mend the row.")
    return units


def _kept(
    place: str, ours: str, entries: list[str | None] | None, kept: Sequence[int], n_rows: int
) -> tuple[str, ...] | None:
    """The entries of the words; None where nothing is annotated."""
    if entries is None:
        return None
    if len(entries) != n_rows:
        raise CorpusError(f"{place}: {n_rows} words need as many {ours}, got {len(entries)}; mend the row.")
    own = [entries[index] for index in kept]
    if all(entry in (None, "", "_") for entry in own):
        return None
    if None in own:
        raise CorpusError(f"{place}: the {ours} of word {own.index(None) + 1} are missing; mend the row.")
    return tuple(entry for entry in own if entry is not None)


def _heads(place: str, entries: Sequence[str] | None) -> tuple[int, ...] | None:
    """Heads counted from 0, of strings counted from 1 with 0 for the root. One root, and every word leads to it."""
    if entries is None:
        return None
    for number, entry in enumerate(entries, start=1):
        if not (entry.isascii() and entry.isdigit() and int(entry) <= len(entries)):
            raise CorpusError(
                f"{place}: the head of word {number} is a number from 0 (the root) to {len(entries)}, got {entry!r}; "
                "mend the row, or name the column of ids if there are rows of multiword tokens."
            )
    heads = tuple(int(entry) - 1 if int(entry) else ROOT for entry in entries)
    if heads.count(ROOT) != 1:
        raise CorpusError(f"{place}: one word has the head 0 and is the root, got {heads.count(ROOT)}; mend the row.")
    reached, outer = {ROOT}, {ROOT}
    while outer:
        outer = {word for word, head in enumerate(heads) if head in outer}
        reached |= outer
    if lost := sorted(set(range(len(heads))) - reached):
        raise CorpusError(
            f"{place}: the heads of word {lost[0] + 1} lead in a circle and not to the root; mend the row."
        )
    return heads


def _placed(text: str | None, units: Sequence[_Unit], forms: Sequence[str]) -> tuple[str, tuple[Span, ...]]:
    """The text, and the characters of every word in it."""
    surfaces = [unit.surface for unit in units]
    places = None if text is None else _walked(text, surfaces)
    if text is None or places is None:
        text = " ".join(surfaces)
        places = _walked(text, surfaces)
    assert places is not None
    return text, tuple(span for unit, place in zip(units, places, strict=True) for span in _shared(unit, place, forms))


def _walked(text: str, surfaces: Sequence[str]) -> list[Span] | None:
    """The characters of each, one after the other; None where the text holds anything else but white space."""
    spans, at = list[Span](), 0
    for surface in surfaces:
        while text[at : at + 1].isspace() and not text.startswith(surface, at):
            at += 1
        if not text.startswith(surface, at):
            return None
        spans.append((at, at + len(surface)))
        at += len(surface)
    return None if text[at:].strip() else spans


def _shared(unit: _Unit, place: Span, forms: Sequence[str]) -> Iterator[Span]:
    """Each word on its own characters if the words spell the unit, else each on all of them."""
    start, stop = place
    words = [forms[index] for index in unit.words]
    if "".join(words) != unit.surface:
        yield from [place] * len(words)
        return
    for word in words:
        yield start, start + len(word)
        start += len(word)
    assert start == stop
