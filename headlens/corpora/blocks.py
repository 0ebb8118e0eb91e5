"""Files of words, one a line, whose sentences end at blank lines. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from headlens.corpora.text import CONTROL, decoded_line, open_file, without_bom
from headlens.errors import CorpusError

LONGEST_LINE = 1 << 20  # bytes; a longer line is no row of a table
MOST_LINES = 20_000  # of one sentence; without a blank line a whole file would be read into memory

_READ_AT_ONCE = LONGEST_LINE + 4  # what is cut off is still too long without a byte order mark

RawLine = tuple[int, bytes]  # 1-based number, and the line with its end


@dataclass(frozen=True)
class Block:
    """Consecutive lines without a blank one, as they stand in the file."""

    file: Path
    lines: tuple[RawLine, ...]

    def decoded(self) -> list[tuple[int, str]]:
        """Raises CorpusError for a line that is not UTF-8, is binary, or is too long, and for too many of them."""
        if len(self.lines) > MOST_LINES:
            raise CorpusError(
                f"{self.file}, line {self.lines[0][0]}: expected a blank line after every sentence, "
                f"got {MOST_LINES:,} lines without one; mend the file."
            )
        for number, raw in self.lines:
            if len(raw) > LONGEST_LINE:
                raise CorpusError(
                    f"{self.file}, line {number}: the line has more than {LONGEST_LINE:,} bytes, "
                    "so this is no file of words, one a line; name another file."
                )
        return self._at_once() or [decoded_line(self.file, number, raw) for number, raw in self.lines]

    def _at_once(self) -> list[tuple[int, str]] | None:
        """The lines, decoded together because that takes less time; None where one of them is bad."""
        try:
            text = b"".join(raw for _, raw in self.lines).decode("utf-8")
        except UnicodeDecodeError:
            return None
        text = text.replace("\r\n", "\n").removesuffix("\n")
        if CONTROL.search(text):
            return None
        return [(number, line) for (number, _), line in zip(self.lines, text.split("\n"), strict=True)]


def blocks(file: Path) -> Iterator[Block]:
    """The stretches of a file between its blank lines, read as they are asked for.

    Of a line or a block that is too long no more is kept than tells so. Raises CorpusError where the file cannot be
    opened or is UTF-16.
    """
    lines = list[RawLine]()
    with open_file(file) as handle:
        for number, raw in _lines(file, handle):
            if raw.strip(b" \r\n"):
                if len(lines) <= MOST_LINES:
                    lines.append((number, raw))
            elif lines:
                yield Block(file, tuple(lines))
                lines = []
    if lines:
        yield Block(file, tuple(lines))


def _lines(file: Path, handle: BinaryIO) -> Iterator[RawLine]:
    number = 0
    while raw := handle.readline(_READ_AT_ONCE):
        number += 1
        yield number, without_bom(file, raw) if number == 1 else raw
        while len(raw) == _READ_AT_ONCE and not raw.endswith(b"\n"):  # the rest of the line, which nobody wants
            raw = handle.readline(_READ_AT_ONCE)
