"""Plain text: one document a line, or one a paragraph."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias, TypeVar, get_args

from headlens.documents import Document
from headlens.errors import CorpusError

T = TypeVar("T")
Made = TypeVar("Made")

OnBad: TypeAlias = Callable[[CorpusError], object]  # is told what cannot be read; then reading goes on behind it
Unit = Literal["line", "paragraph"]
UNITS: tuple[str, ...] = get_args(Unit)

_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
CONTROL = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\r]")  # tab and form feed are white space, a line's end is cut before


def read_text(path: str | os.PathLike[str], *, unit: str = "line", on_bad: OnBad | None = None) -> Iterator[Document]:
    """The documents of a UTF-8 file in their order, read as they are asked for; ids are "file.txt:12" (first line).

    unit="line": every line that is not blank. unit="paragraph": lines up to a blank one, joined by a space.
    A byte order mark and CRLF line ends are dropped, as is white space around a line.

    Raises CorpusError: at once where there is no such file or `unit` is unknown; while reading, where the file
    cannot be opened or holds nothing but white space, and for a line that is not UTF-8 or is binary: with `on_bad`
    such a line is left out.
    """
    if unit not in UNITS:
        raise CorpusError(f"The unit of a text corpus is one of {', '.join(UNITS)}; got {unit!r}.")
    file = existing_file(path)
    lines = ((number, line.strip()) for number, line in text_lines(file, on_bad=on_bad))
    stretches = lines if unit == "line" else _paragraphs(lines)
    nothing = "found no line that can be read" if on_bad else "the file is empty or only white space"
    return at_least_one(
        (Document(text, f"{file.name}:{number}") for number, text in stretches if text),
        f"{file}: expected text, {nothing}; name a file with text.",
    )


def text_lines(file: Path, *, on_bad: OnBad | None = None) -> Iterator[tuple[int, str]]:
    """(1-based number, text without its line end) of every line of a UTF-8 file, the blank ones too.

    A byte order mark is dropped. Raises CorpusError where the file cannot be opened or is UTF-16, and without `on_bad`
    for a line that is not UTF-8 or is binary.
    """
    with open_file(file) as handle:
        yield from read_each(_raw_lines(file, handle), lambda line: decoded_line(file, *line), on_bad)


def read_each(items: Iterable[T], read: Callable[[T], Made], on_bad: OnBad | None) -> Iterator[Made]:
    """What `read` makes of every item. One that it raises CorpusError for ends the reading, or is left out where
    `on_bad` takes the error."""
    for item in items:
        try:
            made = read(item)
        except CorpusError as error:
            if on_bad is None:
                raise
            on_bad(error)
        else:
            yield made


def at_least_one(items: Iterable[T], otherwise: str) -> Iterator[T]:
    """The items; where there is none, CorpusError with the message `otherwise`."""
    found = False
    for item in items:
        found = True
        yield item
    if not found:
        raise CorpusError(otherwise)


def existing_file(path: str | os.PathLike[str]) -> Path:
    """The path, if it leads to something that can be opened as a file. Raises CorpusError."""
    file = Path(path)
    try:
        if file.is_dir():
            raise CorpusError(f"{file}: expected a text file, this is a folder; name the files in it one by one.")
        if not file.exists():
            raise CorpusError(
                f"{file}: there is no such file; check the path (it starts from {Path.cwd()}), "
                f"or pass texts that are in memory as headlens.texts([...])."
            )
    except (OSError, ValueError) as error:  # a name too long, a loop of links, a folder without permission, a NUL
        raise CorpusError(f"{file}: the path cannot be looked up ({error}); name another file.") from error
    return file


def check_regular(file: Path) -> None:
    """Refuse pipes and devices, which can be read once only, where a file is read several times. Raises CorpusError."""
    if not file.is_file():
        raise CorpusError(f"{file}: expected a regular file, this is a pipe or a device; write it to a file first.")


def open_file(file: Path) -> BinaryIO:
    """The file, open for reading bytes. Raises CorpusError where the system refuses."""
    try:
        return file.open("rb")
    except OSError as error:
        reason = error.strerror or str(error)
        raise CorpusError(f"{file}: cannot be opened ({reason}); make it readable or name another file.") from error


def decoded_line(file: Path, number: int, raw: bytes) -> tuple[int, str]:
    """The number and the text of a line without its end. Raises CorpusError where it is not UTF-8 or is binary."""
    text = _decode(file, number, raw).removesuffix("\n").removesuffix("\r")
    if control := CONTROL.search(text):
        raise CorpusError(
            f"{file}, line {number}: character {control.start() + 1} is the control character "
            f"U+{ord(control[0]):04X}, so this is no plain text; export it as UTF-8 text with line feeds."
        )
    return number, text


def without_bom(file: Path, raw: bytes) -> bytes:
    """The first line of a file without its byte order mark. Raises CorpusError for the mark of UTF-16."""
    if raw.startswith(_UTF16_BOMS):
        raise CorpusError(f"{file}: expected UTF-8, this is UTF-16 by its first two bytes; save it as UTF-8.")
    return raw.removeprefix(_BOM)


def _raw_lines(file: Path, handle: BinaryIO) -> Iterator[tuple[int, bytes]]:
    for number, raw in enumerate(handle, start=1):
        yield number, without_bom(file, raw) if number == 1 else raw


def _decode(file: Path, number: int, raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{file}, line {number}: byte {error.start + 1} of the line (0x{raw[error.start]:02X}) is not UTF-8; "
            "save the file as UTF-8."
        ) from error


def _paragraphs(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """(number of its first line, its lines joined by a space) of every paragraph."""
    first, parts = 0, list[str]()
    for number, text in lines:
        if text:
            first = first if parts else number
            parts.append(text)
        elif parts:
            yield first, " ".join(parts)
            parts = []
    if parts:
        yield first, " ".join(parts)
