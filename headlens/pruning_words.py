"""What pruning did, as lines for a terminal: a table of what is held against what, and sentences. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headlens.arms_words import rows_of, size_lines, speed_lines, told
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
    yield from aligned(rows_of(result.arms, _ORDER, _NAMES))
    yield from (told(difference, "original") for difference in result.differences())
    yield from size_lines(result.facts["measured"])
    yield from speed_lines(result.facts["speed"])
