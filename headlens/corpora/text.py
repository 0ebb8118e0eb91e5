"""Plain text: one document a line, or one a paragraph."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal, get_args

from headlens.documents import Document
from headlens.errors import CorpusError

Unit = Literal["line", "paragraph"]
UNITS: tuple[str, ...] = get_args(Unit)

_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
_CONTROL = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\r]")  # tab and form feed are white space, a line's end is cut before


def read_text(path: str | os.PathLike[str], *, unit: str = "line") -> Iterator[Document]:
    """The documents of a UTF-8 file in their order, read as they are asked for; ids are "file.txt:12" (first line).

    unit="line": every line that is not blank. unit="paragraph": lines up to a blank one, joined by a space.
    A byte order mark and CRLF line ends are dropped, as is white space around a line.

    Raises CorpusError: at once where there is no such file or `unit` is unknown; while reading, where the file
    cannot be opened, is not UTF-8, is binary, or holds nothing but white space.
    """
    if unit not in UNITS:
        raise CorpusError(f"The unit of a text corpus is one of {', '.join(UNITS)}; got {unit!r}.")
    file = existing_file(path)
    return _documents(file, unit)


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


def open_file(file: Path) -> BinaryIO:
    """The file, open for reading bytes. Raises CorpusError where the system refuses."""
    try:
        return file.open("rb")
    except OSError as error:
        reason = error.strerror or str(error)
        raise CorpusError(f"{file}: cannot be opened ({reason}); make it readable or name another file.") from error


def _documents(file: Path, unit: str) -> Iterator[Document]:
    lines = _lines(file)
    found = False
    for number, text in lines if unit == "line" else _paragraphs(lines):
        if text:
            found = True
            yield Document(text, f"{file.name}:{number}")
    if not found:
        raise CorpusError(f"{file}: expected text, the file is empty or only white space; name a file with text.")


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """(1-based number, text without white space around it) of every line, the blank ones too."""
    with open_file(file) as handle:
        for number, raw in enumerate(handle, start=1):
            if number == 1:
                raw = _without_bom(file, raw)
            text = _decode(file, number, raw).removesuffix("\n").removesuffix("\r")
            if control := _CONTROL.search(text):
                raise CorpusError(
                    f"{file}, line {number}: character {control.start() + 1} is the control character "
                    f"U+{ord(control[0]):04X}, so this is no plain text; export it as UTF-8 text with line feeds."
                )
            yield number, text.strip()


def _without_bom(file: Path, raw: bytes) -> bytes:
    if raw.startswith(_UTF16_BOMS):
        raise CorpusError(f"{file}: expected UTF-8, this is UTF-16 by its first two bytes; save it as UTF-8.")
    return raw.removeprefix(_BOM)


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
