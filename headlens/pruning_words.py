"""What pruning did, as lines for a terminal: a table of what is held against what, and sentences. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from headlens.numbers import amount, number

if TYPE_CHECKING:
    from headlens.evaluation import Difference
    from headlens.pruning import Arm, Pruned

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
    yield from _table(_rows(result.arms))
    for difference in result.differences():
        yield _told(difference)
    yield from _sizes(result.facts["measured"])
    for speed in result.facts["speed"]:
        yield (
            f"{speed['workload']}: {speed['ratio']:.2f} times as fast as the original "
            f"({speed['low']:.2f} to {speed['high']:.2f}; {speed['median']:.0f} {speed['unit']})"
        )


def _rows(arms: Sequence[Arm]) -> list[list[str]]:
    order = ["original", "masked", "repaired", "pruned", "random, same layers", "random", "no heads"]
    heading = ["", "distortion", *(f"{result.task}" for result in arms[0].results)]
    rows = [heading]
    for name in order:
        group = [arm for arm in arms if arm.name == name]
        if group:
            columns = [[arm.distortion for arm in group]]
            columns += [[arm.results[task].value for arm in group] for task in range(len(arms[0].results))]
            rows.append([_NAMES.get(name, name), *(_spread(values) for values in columns)])
    return rows


def _spread(values: Sequence[float]) -> str:
    """One value, or the mean of several and where they lie."""
    if len(values) == 1:
        return _figure(values[0])
    mean = sum(values) / len(values)
    return f"{_figure(mean)} ({_figure(min(values))} to {_figure(max(values))})"


def _figure(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.4g}"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _told(difference: Difference) -> str:
    reach = f"[{difference.low:+.4f}, {difference.high:+.4f}]"
    verdict = "worse" if difference.is_worse else "better" if difference.is_better else "no difference beyond chance"
    return f"{difference.task}, less the original: {difference.value:+.4f} {reach}: {verdict}"


def _sizes(measured: dict[str, dict[str, Any]]) -> Iterator[str]:
    for name in ("parameters", "parameters of attention"):
        before, after = measured[name]["before"], measured[name]["after"]
        yield f"{name.capitalize()}: {after:,} of {before:,} ({number(after / before, 'share', digits=2)})"
    for name in (name for name in measured if name.startswith("bytes of the cache")):
        yield f"{name.capitalize()}: {measured[name]['after']:,} of {measured[name]['before']:,}"
