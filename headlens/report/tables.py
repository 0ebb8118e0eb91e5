"""A table of the page: what is read in its cells, and the values that it is sorted by and that go into a CSV file."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markupsafe import Markup

Value = float | int | str  # NaN: not known

NOTHING = "–"


@dataclass(frozen=True)
class Column:
    title: str
    meaning: str = ""  # shown on hover, and listed below the table
    is_number: bool = True
    width: str = ""  # class of the style sheet
    names: tuple[str, ...] = ()  # of the values of its cells, in the CSV file; without any it is no column there
    is_low_first: bool = False  # the lowest are what one looks for: p, q

    @property
    def first_order(self) -> str:
        """How it is sorted at first, as `aria-sort` has it; empty: a picture, which has no order."""
        if not self.names:
            return ""
        return "descending" if self.is_number and not self.is_low_first else "ascending"

    @property
    def listed_names(self) -> str:
        return json.dumps(self.names)


@dataclass(frozen=True)
class Cell:
    text: str
    note: str = ""  # small, below
    hover: str = ""
    heads: tuple[str, ...] = ()  # names of heads that stand in place of the text, as links
    is_strong: bool = False
    picture: Markup | None = None
    values: tuple[Value, ...] = ()  # as many as the column has names; the first one sorts
    order: float = math.nan  # sorts in place of the first value, as of verdicts

    @property
    def value(self) -> str:
        """The first value, whole."""
        return exact(self.values[0]) if self.values else ""

    @property
    def further(self) -> str:
        """The other values as a JSON list of texts; empty where there is none."""
        return json.dumps([exact(value) for value in self.values[1:]], ensure_ascii=False) if self.values[1:] else ""

    @property
    def place(self) -> str:
        return exact(self.order)


@dataclass(frozen=True)
class Row:
    cells: tuple[Cell, ...]
    inner: tuple[Row, ...] = ()  # folded away below it: the subtypes of a relation
    fold: str = ""  # what is folded away
    is_last: bool = False  # however the table is sorted: the row of all


@dataclass(frozen=True)
class Table:
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            _check(self, (row, *row.inner))

    @property
    def explained(self) -> list[Column]:
        return [column for column in self.columns if column.meaning]

    @property
    def can_be_sorted(self) -> bool:
        return len(self.rows) > 1 and any(column.names for column in self.columns)


def exact(value: Value) -> str:
    """A value with all its digits, as a CSV file has it; empty where it is not known."""
    if isinstance(value, str):
        return value
    number = float(value)
    if not math.isfinite(number):
        return ""
    return str(int(number)) if number.is_integer() else repr(number)


def _check(table: Table, rows: Sequence[Row]) -> None:
    for row in rows:
        lengths = [len(cell.values) for cell in row.cells]
        assert lengths == [len(column.names) for column in table.columns], (table.caption, row)
