"""The folder of a healing: what was asked for, and the last checkpoint, from which it can go on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from headlens.errors import OutputError
from headlens.files import atomic_write, printable

SCHEMA_VERSION = "headlens.healing/1"
FILE = "healing.json"
STATE = "trainer_state.json"  # of a checkpoint of transformers' Trainer, the file that is written last
_PREFIX = "checkpoint-"
_NOT_WRITTEN = (OSError, SafetensorError, RuntimeError)  # torch says RuntimeError when a disk is full
_NOT_READ = (*_NOT_WRITTEN, ValueError, KeyError, EOFError, UnpicklingError)


def open_folder(folder: Path, request: dict[str, Any], *, resume: bool) -> Path | None:
    """The checkpoint to go on from, None to start; the folder is made and says from now on what it is for.

    Raises
    ------
    OutputError
        The folder holds another healing, or something else; or it cannot be read or written.
    """
    request = json.loads(json.dumps({"schema": SCHEMA_VERSION, **request}))
    name = printable(folder)
    try:
        inside = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    except OSError as reason:
        raise OutputError(f"{name} cannot be read ({reason.strerror}); give another folder.") from None
    if not inside:
        atomic_write(folder / FILE, lambda file: file.write_text(json.dumps(request, indent=2) + "\n", "utf-8"))
        return None
    if FILE not in inside:
        raise OutputError(f"{name} holds {inside[0]} and no healing; give a new folder.")
    if not resume:
        raise OutputError(f"{name} holds a healing already; give a new folder, or resume=True to go on with it.")
    _check_same(_request_in(folder / FILE), request, name)
    return _last_checkpoint(folder)


def fingerprint(model: nn.Module) -> str:
    """A hash of all weights with their names."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode())
        digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def says_unwritable(folder: str | os.PathLike[str]) -> Iterator[None]:
    """OutputError for what goes wrong when a checkpoint is written."""
    try:
        yield
    except _NOT_WRITTEN as reason:
        raise OutputError(
            f"A checkpoint cannot be written to {printable(folder)} ({_first_line(reason)}); make room on its disk, "
            f"and go on from the last one with the same call."
        ) from reason


@contextmanager
def says_damaged(checkpoint: str | os.PathLike[str] | None) -> Iterator[None]:
    """OutputError for what goes wrong when a checkpoint is read."""
    try:
        yield
    except _NOT_READ as reason:
        raise OutputError(
            f"{printable(checkpoint or '')} cannot be read ({_first_line(reason)}); remove it to start over."
        ) from reason


def _first_line(reason: BaseException) -> str:
    return str(getattr(reason, "strerror", None) or reason).strip().split("\n")[0].rstrip(".") or type(reason).__name__


def _request_in(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as reason:
        raise OutputError(f"{printable(file)} cannot be read ({_first_line(reason)}); give a new folder.") from None
    return found if isinstance(found, dict) else {}


def _check_same(found: dict[str, Any], wanted: dict[str, Any], name: str) -> None:
    for entry, value in wanted.items():
        if found.get(entry) != value:
            values = f" ({found.get(entry)!r:.40}, now {value!r:.40})" if not _is_hash(value) else ""
            raise OutputError(
                f"{name} holds a healing that was begun with other settings: {entry}{values}. Ask for the same again, "
                f"start over (--no-resume), or give a new folder."
            )


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64


def _last_checkpoint(folder: Path) -> Path | None:
    """The latest that was written to its end."""
    numbers = {
        int(path.name.removeprefix(_PREFIX)): path
        for path in folder.glob(f"{_PREFIX}*")
        if path.name.removeprefix(_PREFIX).isdigit() and _is_whole(path)
    }
    return numbers[max(numbers)] if numbers else None


def _is_whole(checkpoint: Path) -> bool:
    try:
        json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True
