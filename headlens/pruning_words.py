"""What pruning did, as lines for a terminal: a table of what is held against what, and sentences. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headlens.arms_words import note_lines, rows_of, size_lines, speed_lines
from headlens.evaluating_words import difference_line, signed
from headlens.numbers import aligned, amount

if TYPE_CHECKING:
    from headlens.pruning import Pruned

_ORDER = ("original", "masked", "repaired", "pruned", "random, same layers", "random", "no heads")
_NAMES = {"random, same layers": "random heads, as many in each layer", "random": "random heads, of any layer"}


def lines_of(result: Pruned) -> Iterator[str]:
    """Line by line, for `typer.echo`."""
    total, kept = result.plan.layers * result.plan.heads, result.plan.n_kept
    method = result.facts["method"]
    what = "masked, so that nothing got smaller" if result.arms[0].name == "masked" else "taken out"
    yield (
        f"{result.original.name}: {kept} of {amount(total, 'head')} kept, {total - kept} {what} "
        f"({method['ranked_by']}, judged by {result.objective.replace('_', ' ')})"
    )
    yield f"Heads by layer: {' '.join(str(len(layer)) for layer in result.plan.kept)}"
    yield from aligned(rows_of(result.arms, _ORDER, _NAMES, result.objective))
    yield from (difference_line(difference, "original") for difference in result.differences())
    for name, words in _NAMES.items():
        yield from _beside_random(result, name, words)
    yield from size_lines(result.facts["measured"])
    yield from speed_lines(result.facts["speed"])
    yield from note_lines(result.arms)


def _beside_random(result: Pruned, name: str, words: str) -> Iterator[str]:
    """Whether the choice paid: the interval is over items, and how far the draws lie apart stands behind it."""
    draws = result.random(name)
    for place, difference in enumerate(result.differences_to_random(name)):
        line = difference_line(difference, words if len(draws) == 1 else f"{words} (mean of {len(draws)})")
        own = [result.arms[0].results[place].value - draw.results[place].value for draw in draws]
        yield line if len(draws) == 1 else f"{line}; draw by draw {signed(min(own))} to {signed(max(own))}"
