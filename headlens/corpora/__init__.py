"""Where documents come from. No torch here."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable
from itertools import chain, islice
from pathlib import Path

from headlens.corpora.text import UNITS, Unit, existing_file, open_file, read_text
from headlens.documents import Document
from headlens.errors import CorpusError
from headlens.files import printable

__all__ = ["UNITS", "Unit", "describe_files", "read_corpus", "read_text", "sample_path", "texts"]

StrPath = str | os.PathLike[str]


def read_corpus(paths: StrPath | Iterable[StrPath], *, unit: str = "line", limit: int | None = None) -> list[Document]:
    """The documents of one text file or of several in the given order, at most `limit` of them (None = all).

    All files are looked up before the first is read, and none is read beyond `limit`.
    Raises CorpusError as `read_text` does, for a limit below 1, and where no file is named.
    """
    if limit is not None and limit < 1:
        raise CorpusError(f"The limit on documents is at least 1 (leave it out to read all of them); got {limit}.")
    documents = [read_text(path, unit=unit) for path in _listed(paths)]
    return list(islice(chain.from_iterable(documents), None if limit is None else min(limit, sys.maxsize)))


def texts(strings: str | Iterable[str]) -> list[Document]:
    """Documents out of bare strings, or of one; messages call them "text 1", "text 2", ...

    Raises CorpusError for a blank one.
    """
    listed = [strings] if isinstance(strings, str) else strings
    return [Document(string, f"text {number}") for number, string in enumerate(listed, start=1)]


def sample_path() -> Path:
    """The English sample that comes with headlens: one document a line, described in README.md beside it."""
    return Path(__file__).with_name("sample.txt")


def describe_files(paths: StrPath | Iterable[StrPath]) -> list[dict[str, str | int]]:
    """What a report needs to name the very same data again: of every file `name`, `sha256` and `bytes` (its size)."""
    return [_description(existing_file(path)) for path in _listed(paths)]


def _listed(paths: StrPath | Iterable[StrPath]) -> list[StrPath]:
    listed: list[StrPath] = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not listed:
        raise CorpusError("A corpus needs at least one text file; none was named.")
    return listed


def _description(file: Path) -> dict[str, str | int]:
    if not file.is_file():  # it is read for its text as well, and a pipe can be read once only
        raise CorpusError(f"{file}: expected a regular file, this is a pipe or a device; write it to a file first.")
    digest, size = hashlib.sha256(), 0
    with open_file(file) as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
            size += len(block)
    return {"name": printable(file.name), "sha256": digest.hexdigest(), "bytes": size}
