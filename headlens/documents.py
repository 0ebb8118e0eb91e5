"""What a corpus is made of. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from headlens.errors import CorpusError


@dataclass(frozen=True)
class Document:
    """One text of a corpus: the unit that error bars resample and that folds keep together."""

    text: str
    id: str = "a text"  # where it came from, for messages: "file.txt:12"

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise CorpusError(f"{self.id}: a document is made of a string, got {type(self.text).__name__}.")
        if not self.text.strip():
            raise CorpusError(f"{self.id}: a document needs at least one character that is not white space.")
