"""Tables as CSV that no spreadsheet runs: a text that it would take for a formula is told to be text. No torch here."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headlens.files import Write

if TYPE_CHECKING:
    import pandas as pd

# What spreadsheets take for the start of a formula (OWASP, CSV injection). With apostrophes in front a text is none,
# and gets one more all the same: so the way back is to take one off.
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_PLAIN_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)")


def csv_writer(table: pd.DataFrame) -> Write:
    """What writes a table as CSV, without its index, with digits enough to read every number back exactly."""
    texts = table.select_dtypes(exclude=["number", "bool"]).columns
    safe = table.assign(**{name: table[name].map(safe_cell) for name in texts})
    safe.columns = safe.columns.map(safe_cell)
    return lambda path: safe.to_csv(path, index=False, lineterminator="\n", errors="replace")


def safe_cell(cell: object) -> object:
    """A text that a spreadsheet would run as a formula gets an apostrophe in front."""
    if isinstance(cell, str) and _FORMULA.match(cell) and not _PLAIN_NUMBER.fullmatch(cell):
        return f"'{cell}"
    return cell
