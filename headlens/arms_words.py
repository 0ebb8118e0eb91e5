"""Models that were asked the same beside each other, as lines for a terminal. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headlens.evaluating_words import speed_in_words
from headlens.numbers import four_digits, number

if TYPE_CHECKING:
    from headlens.arms import Arm

_MEASURES = {
    "kl_distortion": "distortion (kl, nats a token)",
    "cosine_distortion": "distortion (1 - cosine)",
    "hidden_distortion": "distortion (squared distance over variance)",
    "next_token_loss": "next token loss (nats a token)",
    "masked_token_loss": "masked token loss (nats a token)",
}


def measure_in_words(objective: str) -> str:
    """What models are judged by on held-out text, with its unit; an objective that is not known is a distortion."""
    return _MEASURES.get(objective, "distortion")


def rows_of(
    arms: Sequence[Arm], order: Sequence[str], names: Mapping[str, str], objective: str = ""
) -> list[list[str]]:
    """A heading, and a row for every name of `order` that there is, several draws in one."""
    measures = [f"{result.task}, {result.metric}" for result in arms[0].results]
    rows = [["", measure_in_words(objective), *measures]]
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


def size_lines(measured: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Parameters, and bytes of the cache, as they are and as they were."""
    for name in ("parameters", "parameters of attention"):
        before, after = measured[name]["before"], measured[name]["after"]
        yield f"{name.capitalize()}: {after:,} of {before:,} ({number(after / before, 'share', digits=2)})"
    for name in (name for name in measured if name.startswith("bytes of the cache")):
        yield f"{name.capitalize()}: {measured[name]['after']:,} of {measured[name]['before']:,}"


def speed_lines(speeds: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One a workload."""
    yield from (speed_in_words(speed, "the original") for speed in speeds)


def note_lines(arms: Sequence[Arm]) -> Iterator[str]:
    """Those of the tasks: what holds of the original once, and what only the model that is kept has."""
    original = next(arm for arm in arms if arm.name == "original")
    of_original, own = (
        [f"{one.task}: {note}" for one in arm.results for note in one.notes] for arm in (original, arms[0])
    )
    yield from dict.fromkeys(f"Note: {note}" for note in of_original)
    yield from dict.fromkeys(f"Note ({arms[0].name}): {note}" for note in own if note not in of_original)
