"""The analyzers that a profile runs. A new one is a class in a file of its own, and a line here."""

from headlens.analyzers.base import Analyzer, DecisionAnalyzer, Scorer, Sums, WordAnalyzer
from headlens.analyzers.phrases import Phrases
from headlens.analyzers.position import Position
from headlens.analyzers.shortlisted import Shortlisted
from headlens.analyzers.surface import Surface
from headlens.analyzers.syntactic import Syntax

# Of any text. Those of annotated words are made of the annotation, in annotated.py.
ANALYZERS: dict[str, type[Analyzer]] = {
    "position": Position,
    "surface": Surface,
}

__all__ = [
    "ANALYZERS",
    "Analyzer",
    "DecisionAnalyzer",
    "Phrases",
    "Position",
    "Scorer",
    "Shortlisted",
    "Sums",
    "Surface",
    "Syntax",
    "WordAnalyzer",
]
