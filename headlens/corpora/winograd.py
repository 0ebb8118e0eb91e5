"""Winograd schemas, as the XWinograd data writes them. No torch here."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headlens.corpora.surface_words import surface_words, words_within
from headlens.corpora.text import OnBad, at_least_one, existing_file, read_each, text_lines
from headlens.documents import Candidate, Choice, Document, Sentence, Span
from headlens.errors import CorpusError

COLUMNS = 7  # language, set, English reference, sentence, tokens, pronoun, candidates
UNSEGMENTED = frozenset({"zh", "ja", "jp"})  # their tokens are phrases, cut where the annotation needs it
_PENN = {"``": '"', "''": '"', "-LRB-": "(", "-RRB-": ")"}  # tokens that stand for another string of the text


def read_winograd(path: str | os.PathLike[str], *, on_bad: OnBad | None = None) -> Iterator[Document]:
    """A document a row of an XWinograd file (Tikhonov and Ryabinin 2021): one sentence with one choice.

    The file has no header and seven columns, separated by tabs: language, set, English reference, sentence, and as
    JSON the tokens, the pronoun `[text, [start, stop], tokens]` and the candidates `[text, [start, stop], tokens, is
    right]`, counted in tokens. Words are the tokens, written as the sentence has them; in UNSEGMENTED languages those
    of `surface_words`, cut at the pronoun and the candidates. What is marked as the pronoun is taken as it is.
    Group: "winograd". Ids are "file.tsv:12".

    Raises CorpusError: at once where there is no such file; while reading, for a file without a row that can be read,
    and for a row with a wrong number of columns, broken JSON, tokens that are not those of the sentence, a stretch
    that does not hold its own tokens, or not exactly one right candidate: with `on_bad` such a row is left out.
    """
    return _documents(existing_file(path), on_bad)


@dataclass(frozen=True)
class _Marked:
    """A stretch of tokens: the pronoun or a candidate."""

    tokens: Span
    is_right: bool = False


def _documents(file: Path, on_bad: OnBad | None) -> Iterator[Document]:
    rows = ((number, line) for number, line in text_lines(file, on_bad=on_bad) if line.strip())
    yield from at_least_one(
        read_each(rows, lambda row: _document(file, *row), on_bad),
        f"{file}: expected rows of XWinograd, found none that can be read; name a file that holds some.",
    )


def _document(file: Path, number: int, line: str) -> Document:
    place, id = f"{file}, line {number}", f"{file.name}:{number}"
    cells = line.split("\t")
    if len(cells) != COLUMNS:
        raise CorpusError(f"{place}: expected {COLUMNS} columns separated by tabs, got {len(cells)}; mend the row.")
    text = cells[3].strip()
    tokens = _tokens(place, cells[4])
    pronoun = _marked(place, "the pronoun", _json(place, "the pronoun", cells[5]), tokens)
    candidates = _candidates(place, cells[6], tokens)
    spans = _spans(place, text, tokens)
    if cells[0] in UNSEGMENTED:
        return _cut_anew(text, id, spans, pronoun, candidates)
    sentence = Sentence(tuple(text[start:stop] for start, stop in spans), text, spans, id=id)
    return _of(sentence, id, pronoun.tokens, [(mark.tokens, mark.is_right) for mark in candidates])


def _cut_anew(text: str, id: str, spans: Sequence[Span], pronoun: _Marked, candidates: Sequence[_Marked]) -> Document:
    def characters(mark: _Marked) -> Span:
        return spans[mark.tokens[0]][0], spans[mark.tokens[1] - 1][1]

    borders = [edge for mark in (pronoun, *candidates) for edge in characters(mark)]
    sentence = surface_words(text, borders=borders, id=id)
    return _of(
        sentence,
        id,
        words_within(sentence, *characters(pronoun)),
        [(words_within(sentence, *characters(mark)), mark.is_right) for mark in candidates],
    )


def _of(sentence: Sentence, id: str, pronoun: Span, candidates: Sequence[tuple[Span, bool]]) -> Document:
    choice = Choice(
        *pronoun,
        candidates=tuple(Candidate(*words, is_right=is_right) for words, is_right in candidates),
        groups=("winograd",),
    )
    return Document.of_sentences([sentence], id, choices=[choice])


def _json(place: str, what: str, cell: str) -> Any:
    try:
        return json.loads(cell)
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{place}: {what} cannot be read as JSON ({error}); mend the row.") from error


def _tokens(place: str, cell: str) -> list[str]:
    tokens = _json(place, "the tokens", cell)
    if not isinstance(tokens, list) or not all(isinstance(token, str) and token.strip() for token in tokens):
        raise CorpusError(f"{place}: the tokens are a JSON list of strings that are not blank; mend the row.")
    return tokens


def _candidates(place: str, cell: str, tokens: list[str]) -> list[_Marked]:
    listed = _json(place, "the candidates", cell)
    if not isinstance(listed, list) or len(listed) < 2:
        raise CorpusError(f"{place}: the candidates are a JSON list of two or more; mend the row.")
    candidates = [_marked(place, f"candidate {n}", value, tokens) for n, value in enumerate(listed, start=1)]
    if (right := sum(candidate.is_right for candidate in candidates)) != 1:
        raise CorpusError(f"{place}: exactly one candidate is right, got {right}; mend the row.")
    return candidates


def _marked(place: str, what: str, value: Any, tokens: list[str]) -> _Marked:
    match value:
        case [str(), [int(start), int(stop)], list(own), *rest] if rest in ([], [True], [False]):
            pass
        case _:
            shape = "[text, [start, stop], tokens]" + (", with true or false" if what != "the pronoun" else "")
            raise CorpusError(f"{place}: {what} is written as {shape}; mend the row.")
    if not 0 <= start < stop <= len(tokens) or tokens[start:stop] != own:
        raise CorpusError(
            f"{place}: {what} should be {own} at tokens {start} to {stop}, where "
            f"{tokens[max(start, 0) : stop]} stands; mend the row."
        )
    return _Marked((start, stop), bool(rest and rest[0]))


def _spans(place: str, text: str, tokens: list[str]) -> tuple[Span, ...]:
    """The characters that each token stands on, found one after the other."""
    spans, at = list[Span](), 0
    for token in tokens:
        at += len(text[at:]) - len(text[at:].lstrip())
        written = next((s for s in (token.strip(), _PENN.get(token, token)) if text.startswith(s, at)), None)
        if written is None:
            raise CorpusError(
                f"{place}: the token {token!r} should stand at character {at} of the sentence, where "
                f"{text[at : at + 20]!r} stands; mend the row."
            )
        spans.append((at, at + len(written)))
        at += len(written)
    if text[at:].strip():
        raise CorpusError(f"{place}: the tokens end before the sentence does, at {text[at : at + 20]!r}; mend the row.")
    return tuple(spans)
