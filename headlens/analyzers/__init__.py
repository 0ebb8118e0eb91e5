"""The analyzers that a profile runs. A new one is a class in a file of its own, and a line here."""

from headlens.analyzers.base import Analyzer, Sums
from headlens.analyzers.position import Position
from headlens.analyzers.surface import Surface

ANALYZERS: dict[str, type[Analyzer]] = {
    "position": Position,
    "surface": Surface,
}

__all__ = ["ANALYZERS", "Analyzer", "Position", "Sums", "Surface"]
