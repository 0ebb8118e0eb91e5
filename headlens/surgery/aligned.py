"""Let the numbers of a safetensors file begin where a processor likes them to."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

BYTES = 64  # what torch aligns its own memory to
_BLOCK = 1 << 22


def align_weights(file: Path) -> None:
    """Pad the header of a file with spaces, which the format allows, so that its numbers start at a multiple of BYTES.

    Weights are used where they lie in the file. Products of a matrix with a single row take another order of summing
    when the matrix begins at an odd place, so that a model which is loaded from such a file is off from the one that
    was saved by the last digit. The file is changed where it is, as there may be no room for a second one.
    """
    with file.open("r+b") as opened:
        header = opened.read(int.from_bytes(opened.read(8), "little"))
        padding = -(8 + len(header)) % BYTES
        _move_on(opened, 8 + len(header), padding)
        header += b" " * padding
        opened.seek(0)
        opened.write(len(header).to_bytes(8, "little") + header)


def _move_on(opened: BinaryIO, start: int, places: int) -> None:
    """Move what stands from `start` to the end by some places, the last block first."""
    end = opened.seek(0, 2)
    while end > start:
        begin = max(start, end - _BLOCK)
        opened.seek(begin)
        block = opened.read(end - begin)
        opened.seek(begin + places)
        opened.write(block)
        end = begin
