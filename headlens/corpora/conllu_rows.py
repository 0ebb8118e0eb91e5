"""The rows of one sentence in CoNLL-U. No torch here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from headlens.corpora.blocks import Block
from headlens.documents import ROOT, Sentence, Span
from headlens.errors import CorpusError

COLUMNS = 10  # ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC

_RANGE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
_EMPTY_NODE = re.compile(r"([0-9]{1,9})\.[0-9]+")
_HEAD = re.compile(r"[0-9]{1,9}")


class _Row(NamedTuple):
    line: int
    cells: list[str]


class _Token(NamedTuple):
    """A stretch of the text without a space in it, and its words: several of a multiword token."""

    form: str
    first: int
    stop: int
    space_after: bool


class Marked(NamedTuple):
    """What MISC says, and the words that it is about: none of an empty node."""

    line: int
    misc: str
    first: int
    stop: int

    @property
    def is_empty_node(self) -> bool:
        return self.first == self.stop


class Rows:
    """The rows of one sentence. Raises CorpusError where they are none."""

    def __init__(self, block: Block) -> None:
        self.file = block.file
        lines = [(number, line) for number, line in block.decoded() if not line.startswith("#")]
        self.first_line = lines[0][0]
        self.marked: list[Marked] = []
        self._words: list[_Row] = []
        self._tokens: list[_Token] = []
        self._end_of_token = 0  # the words up to here belong to a multiword token
        for number, line in lines:
            self._add(_Row(number, self._cells(number, line)))
        if not self._words:
            raise self._wrong(
                self.first_line, "a sentence needs at least one word, a row with a whole number for its id"
            )
        if self._end_of_token > len(self._words):
            raise self._wrong(
                lines[-1][0],
                f"a multiword token reaches to word {self._end_of_token}, and the last is {len(self._words)}",
            )

    def sentence(self, text: str | None) -> Sentence:
        """Raises CorpusError where the heads are no tree."""
        forms, spans = _spelled(self._tokens, text)
        words = [row.cells for row in self._words]
        return Sentence(
            words=tuple(cells[1] for cells in words),
            text=forms,
            spans=_of_words(self._tokens, spans, [cells[1] for cells in words]),
            upos=_annotated([cells[3] for cells in words]),
            lemmas=_annotated([cells[2] for cells in words]),
            heads=self._heads(),
            relations=_annotated([cells[7] for cells in words]),
            id=f"{self.file.name}:{self.first_line}",
            space_after=self._tokens[-1].space_after,
        )

    def place(self, number: int) -> str:
        return f"{self.file}, line {number}"

    def _wrong(self, number: int, what: str) -> CorpusError:
        return CorpusError(f"{self.place(number)}: {what}; mend the sentence.")

    def _cells(self, number: int, line: str) -> list[str]:
        cells = line.split("\t")
        if len(cells) == COLUMNS:
            return cells
        hint = "mend the row (a blank line ends a sentence)"
        if len(line.split()) >= COLUMNS > len(cells):
            hint = "here they are separated by spaces: put tabs in their place"
        raise CorpusError(
            f"{self.place(number)}: expected {COLUMNS} columns separated by tabs, got {len(cells)}; {hint}."
        )

    def _add(self, row: _Row) -> None:
        id, form, misc = row.cells[0], row.cells[1], row.cells[9]
        if not form.strip():
            raise self._wrong(row.line, f"the form of {id[:20]!r} is empty")
        next_word = len(self._words) + 1
        if id == str(next_word):
            self._words.append(row)
            if next_word > self._end_of_token:
                self._tokens.append(_Token(form, next_word - 1, next_word, _has_space_after(misc)))
            self.marked.append(Marked(row.line, misc, next_word - 1, next_word))
        elif of_range := _RANGE.fullmatch(id):
            first, last = int(of_range[1]), int(of_range[2])
            if first != next_word or last <= first or next_word <= self._end_of_token:
                raise self._wrong(row.line, f"the multiword token {id} does not fit in front of word {next_word}")
            self._end_of_token = last
            self._tokens.append(_Token(form, first - 1, last, _has_space_after(misc)))
            self.marked.append(Marked(row.line, misc, first - 1, last))
        elif (empty := _EMPTY_NODE.fullmatch(id)) and int(empty[1]) == len(self._words):
            self.marked.append(Marked(row.line, misc, len(self._words), len(self._words)))
        else:
            raise self._wrong(row.line, f"ids count the words from 1, so {next_word} is expected, got {id[:20]!r}")

    def _heads(self) -> tuple[int, ...] | None:
        if _annotated([row.cells[6] for row in self._words]) is None:
            return None
        heads = tuple(self._head(row) for row in self._words)
        roots = [row for row, head in zip(self._words, heads, strict=True) if head == ROOT]
        if len(roots) != 1:
            where, some = (roots[1].line, "a second word") if roots else (self.first_line, "no word")
            raise self._wrong(where, f"one word of a sentence has head 0, and {some} has it here")
        if (word := _on_a_cycle(heads)) is not None:
            raise self._wrong(
                self._words[word].line, f"the heads above word {word + 1} lead back to it, not to the root"
            )
        return heads

    def _head(self, row: _Row) -> int:
        head = row.cells[6]
        if not _HEAD.fullmatch(head):
            raise self._wrong(row.line, f"HEAD is the number of a word or 0, got {head[:20]!r}")
        if int(head) > len(self._words):
            raise self._wrong(row.line, f"HEAD is {head}, and the sentence has {len(self._words)} words")
        return int(head) - 1 if int(head) else ROOT


def _annotated(entries: Sequence[str]) -> tuple[str, ...] | None:
    return None if all(entry == "_" for entry in entries) else tuple(entries)


def _has_space_after(misc: str) -> bool:
    return "SpaceAfter=No" not in misc or "SpaceAfter=No" not in misc.split("|")


def _on_a_cycle(heads: Sequence[int]) -> int | None:
    """A word from which heads lead back to it; None where all lead to the root."""
    reaches_root = [False] * len(heads)
    for start in range(len(heads)):
        path, word = dict[int, None](), start
        while word != ROOT and not reaches_root[word]:
            if word in path:
                return word
            path[word] = None
            word = heads[word]
        for passed in path:
            reaches_root[passed] = True
    return None


def _spelled(tokens: Sequence[_Token], text: str | None) -> tuple[str, list[Span]]:
    """The text of a sentence, and where its tokens stand in it."""
    if text is not None and (spans := _found(tokens, text)):
        return text, spans
    rebuilt, spans = "", []
    for token in tokens:
        spans.append((len(rebuilt), len(rebuilt) + len(token.form)))
        rebuilt += token.form + " " * token.space_after
    return rebuilt[: spans[-1][1]], spans


def _found(tokens: Sequence[_Token], text: str) -> list[Span] | None:
    """Where the tokens stand in a text that is made of them and white space; None if it is not."""
    spans, at = list[Span](), 0
    for token in tokens:
        while at < len(text) and text[at].isspace():
            at += 1
        stop = at + len(token.form) if text.startswith(token.form, at) else _end_of(token.form, text, at)
        if stop is None:
            return None
        spans.append((at, stop))
        at = stop
    return None if text[at:].strip() else spans


def _end_of(form: str, text: str, start: int) -> int | None:
    """Where a form ends in the text that has white space of another kind in it; None where it does not stand there."""
    match = re.compile(r"\s+".join(map(re.escape, form.split()))).match(text, start)
    return match.end() if match else None


def _of_words(tokens: Sequence[_Token], spans: Sequence[Span], forms: Sequence[str]) -> tuple[Span, ...]:
    """Characters of each word, given those of the tokens."""
    found = list[Span]()
    for token, (start, stop) in zip(tokens, spans, strict=True):
        parts = forms[token.first : token.stop]
        if len(parts) > 1 and "".join(parts) == token.form and stop - start == len(token.form):
            for part in parts:
                found.append((start, start + len(part)))
                start += len(part)
        else:
            found += [(start, stop)] * len(parts)
    return tuple(found)
