"""How numbers are printed: shares without a leading zero (.731), a true minus sign, groups of three digits, columns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

Unit = Literal["share", "nats", "tokens", "ratio"]

NOT_DEFINED = "not defined"


def number(value: float, unit: Unit, *, digits: int | None = None) -> str:
    """A score as it stands in tables and sentences; shares have three decimals, other units two."""
    if math.isnan(value):
        return NOT_DEFINED
    if digits is None:
        digits = 3 if unit == "share" else 2
    text = f"{abs(value):.{digits}f}"
    is_zero = float(text) == 0
    if unit == "share":
        text = text.removeprefix("0")
        if is_zero and value > 0:  # ".000" would deny that there is anything
            return "<" + f"{10**-digits:.{digits}f}".removeprefix("0")
    return text if value >= 0 or is_zero else "−" + text


def interval(low: float, high: float, unit: Unit) -> str:
    if math.isnan(low) or math.isnan(high):
        return "none"
    return f"{number(low, unit)} to {number(high, unit)}"


def signed(value: float, unit: Unit) -> str:
    """A difference with its sign: +.310, −.120."""
    text = number(value, unit)
    return f"+{text}" if value > 0 and text[0] != "<" else text


def probability(value: float) -> str:
    """Of a test; what is below a thousandth is no longer told apart."""
    return "<.001" if value < 0.001 else number(value, "share")


def four_digits(value: float) -> str:
    """Of measures of any unit: four decimals below ten, then four significant digits."""
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.4g}"


def count(value: int | float) -> str:
    """A whole number with its thousands set apart; what is not whole keeps one decimal."""
    if math.isnan(value):
        return NOT_DEFINED
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def amount(number_of: int, noun: str) -> str:
    """`1 head`, `12 heads`."""
    return f"{number_of:,} {noun}" if number_of == 1 else f"{number_of:,} {noun}s"


def layers_of_heads(layers: int, heads: int) -> str:
    """`4 layers of 8 heads`."""
    return f"{amount(layers, 'layer')} of {amount(heads, 'head')}"


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Cells of a column below one another."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
