"""Models that were asked the same beside each other, as lines for a terminal. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headlens.numbers import four_digits, number

if TYPE_CHECKING:
    from headlens.arms import Arm
    from headlens.evaluation import Difference


def rows_of(arms: Sequence[Arm], order: Sequence[str], names: Mapping[str, str]) -> list[list[str]]:
    """A heading, and a row for every name of `order` that there is, several draws in one."""
    rows = [["", "distortion", *(result.task for result in arms[0].results)]]
    for name in order:
        group = [arm for arm in arms if arm.name == name]
        if group:
            columns = [[arm.distortion for arm in group]]
            columns += [[arm.results[task].value for arm in group] for task in range(len(arms[0].results))]
            rows.append([names.get(name, name), *map(spread, columns)])
    return rows


def spread(values: Sequence[float]) -> str:
    """One value, or the mean of several and where they lie."""
    if len(values) == 1:
        return four_digits(values[0])
    return f"{four_digits(sum(values) / len(values))} ({four_digits(min(values))} to {four_digits(max(values))})"


def told(difference: Difference, other: str) -> str:
    """A difference with its interval, and what it says."""
    reach = f"[{difference.low:+.4f}, {difference.high:+.4f}]"
    verdict = "worse" if difference.is_worse else "better" if difference.is_better else "no difference beyond chance"
    return f"{difference.task}, less {_THE.get(other, other)}: {difference.value:+.4f} {reach}: {verdict}"


_THE = {"original": "the original"}


def size_lines(measured: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Parameters, and bytes of the cache, as they are and as they were."""
    for name in ("parameters", "parameters of attention"):
        before, after = measured[name]["before"], measured[name]["after"]
        yield f"{name.capitalize()}: {after:,} of {before:,} ({number(after / before, 'share', digits=2)})"
    for name in (name for name in measured if name.startswith("bytes of the cache")):
        yield f"{name.capitalize()}: {measured[name]['after']:,} of {measured[name]['before']:,}"


def speed_lines(speeds: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One a workload."""
    for speed in speeds:
        yield (
            f"{speed['workload']}: {speed['ratio']:.2f} times as fast as the original "
            f"({speed['low']:.2f} to {speed['high']:.2f}; {speed['median']:.0f} {speed['unit']})"
        )
