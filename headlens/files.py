"""Writing files so that a reader never meets half of one. No torch here."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from headlens.errors import OutputError

Write = Callable[[Path], object]


def atomic_write(path: str | os.PathLike[str], write: Write) -> None:
    """Let `write` fill a temporary file beside `path`, then put it in the place of `path` in one step.

    As `write_together`, for a single file.
    """
    write_together({path: write})


def write_together(files: Mapping[str | os.PathLike[str], Write]) -> None:
    """Fill a temporary file beside each path; when all are complete, put them in place, in the given order.

    Missing folders are made. Whatever goes wrong before all are complete, every old file stays as it was, and the
    temporary ones are removed, as are the folders that were made. A symbolic link is followed, so the file that it
    points at is replaced and the link stays.

    Raises
    ------
    OutputError
        A file cannot be written: the disk is full, the folder read-only, the path a folder or a device.
    """
    written: list[tuple[Path, Path]] = []
    made: list[Path] = []
    target = Path()
    try:
        for path, write in files.items():
            target = Path(path)
            final = target.resolve()
            check_replaceable(final)
            _make_folders(final.parent, made)
            written.append((_write_beside(final, write), final))
        for temporary, final in written:
            os.replace(temporary, final)
    except (OSError, UnicodeError) as reason:
        why = getattr(reason, "strerror", None) or reason
        raise OutputError(
            f"{printable(target)} cannot be written ({why}); choose a place that can be written to, "
            f"with enough room on its disk."
        ) from reason
    finally:
        for temporary, _ in written:
            temporary.unlink(missing_ok=True)
        for folder in reversed(made):
            with suppress(OSError):  # it holds what was written
                folder.rmdir()


def check_replaceable(path: Path) -> None:
    """OutputError where something stands that a file cannot take the place of: a folder, a device."""
    # os.replace would put a plain file in the place of a device such as /dev/null
    if path.exists() and not path.is_file():
        raise OutputError(f"{printable(path)} is not a plain file, so it cannot be replaced; give the path of a file.")


def printable(path: str | os.PathLike[str]) -> str:
    """A path as text that any file can hold; bytes that are no UTF-8 become a question mark in a box."""
    return os.fsencode(path).decode("utf-8", "replace")


def _make_folders(folder: Path, made: list[Path]) -> None:
    """Notes in `made` those that were not there, the outer ones first."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        made.append(path)


def _write_beside(target: Path, write: Write) -> Path:
    """The temporary file, complete."""
    # the same folder: a rename is one step only within one file system
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        write(temporary)
        _flush_to_disk(temporary)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _flush_to_disk(path: Path) -> None:
    with path.open("r+b") as file:
        os.fsync(file.fileno())
