"""Predictions of SyntaxGym suites: formulas over the surprisal of regions.

    [(6;%match_sing%) < (6;%mismatch_sing%)] & [(6;%match_plural%) < (6;%mismatch_plural%)]

(6;%match_sing%) is the surprisal of region 6 in the condition match_sing, (*;%match_sing%) that of the whole sentence.
From tight to loose: + and -, then < > and =, then & and |. Round and square brackets mean the same. Two values are
equal (=) within 1e-3 bits and 1e-5 of the second, as in syntaxgym-core (syntaxgym/prediction.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from headlens.errors import CorpusError

WHOLE = "*"  # in place of a region's number

Surprisals: TypeAlias = Mapping[tuple[str, str], float]  # by condition and number of the region, in bits
Value: TypeAlias = "float | bool"

_TOKEN = re.compile(
    r"\s*(?:\(\s*(?P<region>\d+|\*)\s*;\s*%(?P<condition>[\w-]+)%\s*\)|(?P<number>\d+(?:\.\d+)?)|(?P<sign>[-+<>=&|()\[\]]))"
)
_CLOSING = {"(": ")", "[": "]"}
_MOST_BRACKETS = 50  # inside one another


def _are_close(first: float, second: float) -> bool:
    return abs(first - second) <= 1e-3 + 1e-5 * abs(second)


_NUMERIC: dict[str, Callable[[float, float], Value]] = {
    "+": lambda first, second: first + second,
    "-": lambda first, second: first - second,
    "<": lambda first, second: first < second,
    ">": lambda first, second: first > second,
    "=": _are_close,
}
_LOGICAL: dict[str, Callable[[bool, bool], bool]] = {
    "&": lambda first, second: first and second,
    "|": lambda first, second: first or second,
}
_LEVELS = ("&|", "<>=", "+-")  # from loose to tight


@dataclass(frozen=True)
class Region:
    condition: str
    number: str  # or WHOLE

    def __str__(self) -> str:
        return f"({self.number};%{self.condition}%)"


@dataclass(frozen=True)
class _Number:
    value: float


@dataclass(frozen=True)
class _Operation:
    sign: str
    first: _Node
    second: _Node


_Node: TypeAlias = "Region | _Number | _Operation"


@dataclass(frozen=True)
class Formula:
    """A formula that was read; `regions` are those it asks for."""

    text: str
    root: _Operation

    @property
    def regions(self) -> frozenset[Region]:
        return frozenset(_regions(self.root))

    def holds(self, surprisals: Surprisals) -> bool:
        """Whether it is true of one item."""
        return bool(_value(self.root, surprisals))


def parse_formula(text: str) -> Formula:
    """Read a formula; nothing in it is run as code.

    Raises CorpusError with the place of what was not expected: also where a value stands for a claim or the other way
    round, where claims of < > = come in a row, and where & and |, or + and -, are mixed without brackets.
    """
    root = _Parser(text).whole()
    if not isinstance(root, _Operation) or not _is_claim(root):
        raise CorpusError(f"The formula {text!r} claims nothing; it should compare values with <, > or =.")
    return Formula(text, root)


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth = text, 0, 0

    def whole(self) -> _Node:
        found = self.level(0)
        if self.text[self.at :].strip():
            raise self.unexpected("the end")
        return found

    def level(self, number: int) -> _Node:
        """What is held together by the operators of this level or of tighter ones."""
        if number == len(_LEVELS):
            return self.atom()
        found, before = self.level(number + 1), ""
        while (sign := self.sign()) and sign in _LEVELS[number]:
            if before and (sign != before or sign in "<>="):
                raise CorpusError(
                    f"The formula {self.text!r} has {before} and {sign} side by side at character {self.at + 1}, which "
                    f"can be read in two ways; put brackets around one of them."
                )
            self.take()
            second = self.level(number + 1)
            for side in (found, second):
                if _is_claim(side) != (sign in _LOGICAL):
                    what = "claims" if sign in _LOGICAL else "values"
                    raise CorpusError(
                        f"The formula {self.text!r}: {sign} stands between two {what}, and here it does not."
                    )
            found, before = _Operation(sign, found, second), sign
        return found

    def atom(self) -> _Node:
        found = self.take()
        if found is not None and found["region"]:
            return Region(found["condition"], found["region"])
        if found is not None and found["number"]:
            return _Number(float(found["number"]))
        if found is None or found["sign"] not in _CLOSING:
            self.at -= 0 if found is None else len(found[0])
            raise self.unexpected("a region such as (6;%condition%), a number or a bracket")
        self.depth += 1
        if self.depth > _MOST_BRACKETS:
            raise CorpusError(
                f"A formula has more than {_MOST_BRACKETS} brackets inside one another: {self.text!r:.80}."
            )
        inner, closing = self.level(0), self.peek()
        if closing is None or closing["sign"] != _CLOSING[found["sign"]]:
            raise self.unexpected(_CLOSING[found["sign"]])
        self.take()
        self.depth -= 1
        return inner

    def sign(self) -> str | None:
        """The operator or bracket that comes next, if one does."""
        found = self.peek()
        return None if found is None else found["sign"]

    def peek(self) -> re.Match[str] | None:
        return _TOKEN.match(self.text, self.at)

    def take(self) -> re.Match[str] | None:
        found = self.peek()
        if found is not None:
            self.at = found.end()
        return found

    def unexpected(self, expected: str) -> CorpusError:
        rest = self.text[self.at :].strip()
        what = repr(rest[:20]) if rest else "the end"
        return CorpusError(
            f"The formula {self.text!r}: expected {expected} at character {self.at + 1}, got {what}; mend the formula."
        )


def _is_claim(node: _Node) -> bool:
    return isinstance(node, _Operation) and node.sign not in "+-"


def _value(node: _Node, surprisals: Surprisals) -> Value:
    if isinstance(node, Region):
        if node.number == WHOLE:
            return math.fsum(value for (condition, _), value in surprisals.items() if condition == node.condition)
        return surprisals[node.condition, node.number]
    if isinstance(node, _Number):
        return node.value
    first, second = _value(node.first, surprisals), _value(node.second, surprisals)
    return (
        _LOGICAL[node.sign](bool(first), bool(second)) if node.sign in _LOGICAL else _NUMERIC[node.sign](first, second)
    )


def _regions(node: _Node) -> Iterator[Region]:
    if isinstance(node, Region):
        yield node
    elif isinstance(node, _Operation):
        yield from _regions(node.first)
        yield from _regions(node.second)
