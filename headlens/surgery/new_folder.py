"""Put a folder of files in place in one step, so that there is a whole one at every moment: the old or the new."""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HERE = -100  # AT_FDCWD of Linux: paths count from the working folder
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux's renameat2, and RENAME_SWAP of macOS's renamex_np
# said by systems and file systems that cannot exchange two folders
_CANNOT_EXCHANGE = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EXDEV}


@contextmanager
def new_folder(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """An empty folder beside `target`, which takes its place when the block ends well; OSError where it cannot.

    Until then nothing at `target` is touched, whatever goes wrong. An old folder there is refused if anything is in it,
    also one that came meanwhile. With `replace` it is exchanged for the new one in a single step of the file system,
    and removed after that. Where a file system has no such step, the old one is moved aside first and put back if
    anything fails; only a process killed in between leaves it under its other name, `.NAME.XXXX.old`.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.mkdir()
        yield temporary
        _flush(temporary)
        if replace and target.exists():
            _exchange(temporary, target)
        else:
            os.rename(temporary, target)  # takes the place of an empty folder, and of no other
        _flush_entry(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # a part of the new one, or the old one after the exchange


def _exchange(new: Path, old: Path) -> None:
    try:
        _exchange_in_one_step(new, old)
    except OSError as reason:
        if reason.errno not in _CANNOT_EXCHANGE:
            raise
        _exchange_in_two_steps(new, old)


def _exchange_in_one_step(new: Path, old: Path) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    first, second = os.fsencode(new), os.fsencode(old)
    if sys.platform == "linux" and hasattr(library, "renameat2"):
        failed = library.renameat2(_HERE, first, _HERE, second, _EXCHANGE)
    elif sys.platform == "darwin" and hasattr(library, "renamex_np"):
        failed = library.renamex_np(first, second, _EXCHANGE)
    else:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(old))


def _exchange_in_two_steps(new: Path, old: Path) -> None:
    aside = new.with_suffix(".old")
    try:
        os.rename(old, aside)
        os.rename(new, old)
    finally:
        if aside.exists() and not old.exists():
            os.rename(aside, old)
    shutil.rmtree(aside, ignore_errors=True)


def _flush(folder: Path) -> None:
    """Have a folder and all in it on the disk, so that a power cut after the exchange finds no empty files."""
    for path in sorted(folder.rglob("*"), reverse=True):
        _flush_entry(path)
    _flush_entry(folder)


def _flush_entry(path: Path) -> None:
    if path.is_dir() and sys.platform == "win32":  # a folder cannot be opened there
        return
    number = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(number)
    finally:
        os.close(number)
