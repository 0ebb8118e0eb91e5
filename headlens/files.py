"""Writing files so that a reader never meets half of one. No torch here."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from headlens.errors import OutputError


def atomic_write(path: str | os.PathLike[str], write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, then put it in the place of `path` in one step.

    Missing folders are made. Whatever goes wrong, an old file at `path` stays as it was and the temporary one is
    removed. A symbolic link is followed, so the file that it points at is replaced and the link stays.

    Raises
    ------
    OutputError
        The file cannot be written: the disk is full, the folder read-only, `path` a folder or a device.
    """
    target = Path(path)
    try:
        _write_and_swap(target.resolve(), write)
    except OSError as reason:
        raise OutputError(
            f"{target} cannot be written ({reason.strerror or reason}); choose a place that can be written to, "
            "with enough room on its disk."
        ) from reason


def _write_and_swap(target: Path, write: Callable[[Path], object]) -> None:
    # os.replace would put a plain file in the place of a device such as /dev/null
    if target.exists() and not target.is_file():
        raise OutputError(f"{target} is not a plain file, so it cannot be replaced; give the path of a file.")
    target.parent.mkdir(parents=True, exist_ok=True)
    # the same folder: a rename is one step only within one file system
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        write(temporary)
        _flush_to_disk(temporary)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _flush_to_disk(path: Path) -> None:
    with path.open("r+b") as file:
        os.fsync(file.fileno())
