"""What a conversion did, as lines for a terminal: a table of what it is held against, and sentences. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headlens.arms_words import note_lines, rows_of, size_lines, speed_lines
from headlens.evaluating_words import difference_line
from headlens.numbers import aligned, four_digits

if TYPE_CHECKING:
    from headlens.converting import Converted

_NAMES = {"mean pooling": "plain mean pooling", "no heads": "no attention heads at all"}
_ORDER = ("original", "converted", "converted, not refitted", "mean pooling", "no heads")


def lines_of(result: Converted) -> Iterator[str]:
    """Line by line, for `typer.echo`."""
    before, after = (" ".join(str(len(groups)) for groups in plan.groups) for plan in (result.base, result.plan))
    how = "copies, which is exact" if result.recipe is None else str(result.recipe)
    judge = result.objective.replace("_", " ")
    yield f"{result.original.name}: key/value heads by layer {before} -> {after} ({how})"
    if len(result.tried) > 1:
        yield f"Tried, judged by {judge} on text that nothing was fitted on:"
        yield from aligned([[f"  {one.recipe}", four_digits(one.distortion)] for one in result.tried])
    if budget := result.facts["method"].get("budget"):
        yield (
            f"Budget of {budget['kv_heads']} key/value heads: layers one by one lose "
            f"{four_digits(budget['sum_of_layers'])} together, all at once "
            f"{four_digits(budget['whole'])} (before any repair)"
        )
    yield from aligned(rows_of(result.arms, _ORDER, _NAMES, result.objective))
    for other in ("original", "mean pooling"):
        if any(arm.name == other for arm in result.arms):
            yield from (difference_line(difference, other) for difference in result.differences(other))
    yield from size_lines(result.facts["measured"])
    yield from speed_lines(result.facts["speed"])
    yield from note_lines(result.arms)
    yield from _copying(result)
    yield from (f"Warning: {warning}" for warning in result.warnings)


def _copying(result: Converted) -> Iterator[str]:
    """Of what the original gains by a first copy, how much is left."""
    second = "loss on the second copy"
    for place, own in enumerate(result.arms[0].results):
        if own.metric != second:
            continue
        original = result.arm("original").results[place]
        gains = [one.figure("loss on the first copy").value - one.value for one in (original, own)]
        if gains[0] > 0:
            left = max(gains[1], 0) / gains[0]
            told = f"f the {gains[0]:.2f} nats that the original gains on what it has read before, {left:.0%} are left"
            if left >= 0.5:
                yield f"O{told}."
            else:
                yield f"Warning: o{told}: copying was lost, which text hardly shows. Keep more heads, or heal it."
