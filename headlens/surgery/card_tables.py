"""What was measured, as tables and lines of Markdown for the card of a checkpoint; names from outside are escaped."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headlens.manifest import arms_of, measure_in_words
from headlens.numbers import amount, four_digits

# In the order in which they are read; the one of the checkpoint is called by its own words
_ARMS = {
    "original": "the original",
    "healed": "healed",
    "repaired": "repaired",
    "pruned": "pruned, and no more",
    "masked": "masked",
    "converted": "converted, and no more",
    "converted, not refitted": "converted, not refitted",
    "mean pooling": "plain mean pooling",
    "mean pooling, healed": "plain mean pooling, healed alike",
    "random, same layers": "random heads, as many in each layer",
    "random": "random heads, of any layer",
    "random, healed": "random heads, healed alike",
    "no heads": "no heads at all",
}
Numbers = Sequence[object]


def beside(facts: Mapping[str, Any]) -> str:
    """The model among those that it is held against; empty where there is none."""
    arms = [arm for arm in arms_of(facts) if arm.get("name") in _ARMS]
    if len(arms) < 2:
        return ""
    measure = measure_in_words(entry(facts, "method", "objective") or entry(facts, "healing", "objective"))
    tasks = [_task(task) for task in listed(arms[0].get("tasks"))]
    names = sorted({str(arm["name"]) for arm in arms}, key=list(_ARMS).index)
    rows = [_row(name, [arm for arm in arms if arm["name"] == name], len(tasks), arms[0]) for name in names]
    told = (
        "Distortion is how far the output moved from that of the original, on text that nothing was fitted on or "
        "chosen by; 0 is none. In brackets stand 95% intervals over the items of a task; of several random draws, "
        "whose mean is given, the lowest and the highest."
    )
    heading = ["", f"distortion ({measure})" if measure else "distortion", *tasks]
    return "\n\n".join(["## Beside what it is held against", told, table(heading, rows)])


def differences(facts: Mapping[str, Any]) -> str:
    """Of every task, by what the model is held against; empty where none were taken."""
    told = facts.get("differences")
    lines = list(_differences(told)) if isinstance(told, Mapping) else []
    if not lines:
        return ""
    meaning = "Paired over the same items, with 95% intervals in brackets; none beyond chance where 0 lies between."
    return "\n\n".join(["## Differences", meaning, "\n".join(lines)])


def sizes(facts: Mapping[str, Any]) -> str:
    """What was counted before and after, and all that was measured where no other models were asked."""
    pairs = facts.get("measured")
    has_arms = len(arms_of(facts)) > 1
    rows = [
        [escaped(name), *_ends(value.get("before"), value.get("after"))]
        for name, value in (pairs.items() if isinstance(pairs, Mapping) else ())
        if isinstance(value, Mapping) and not (has_arms and isinstance(value.get("after"), float))
    ]
    return f"## Measured\n\n{table(['', 'original', 'this model'], rows)}" if rows else ""


def speed(facts: Mapping[str, Any]) -> str:
    """One line for each workload that was timed beside the original."""
    lines = list(_speeds(facts))
    if not lines:
        return ""
    told = (
        "Times as fast as the original: the median of paired runs, and in brackets their quartiles. Where 1 lies "
        "between those, there is no difference beyond noise."
    )
    return "\n\n".join(["## Speed", told, "\n".join(lines)])


# ---------------------------------------------------------------------------------------------------- rows and lines


def _task(task: object) -> str:
    return escaped(", ".join(str(part) for part in (entry(task, "task"), entry(task, "figures", 0, "metric")) if part))


def _row(name: str, arms: Sequence[Mapping[str, Any]], tasks: int, own: Mapping[str, Any]) -> list[str]:
    label = f"**this model** ({name})" if name == own["name"] else _ARMS[name]
    draws = f" ({amount(len(arms), 'draw')})" if len(arms) > 1 else ""
    figures = [
        [entry(arm, "tasks", place, "figures", 0) for arm in arms]
        for place in range(tasks)  # the first is what it asks
    ]
    return [label + draws, _spread([arm.get("distortion") for arm in arms]), *map(_figure, figures)]


def _figure(figures: Sequence[object]) -> str:
    value, low, high = (entry(figures[0], name) for name in ("value", "low", "high"))
    if len(figures) == 1 and _is_number(value) and _is_number(low) and _is_number(high):
        return f"{four_digits(value)} [{four_digits(low)}, {four_digits(high)}]"
    return _spread([entry(figure, "value") for figure in figures])


def _spread(values: Numbers) -> str:
    known = [float(value) for value in values if isinstance(value, int | float)]
    if not known:
        return "–"
    mean = four_digits(sum(known) / len(known))
    return mean if len(known) == 1 else f"{mean} [{four_digits(min(known))}, {four_digits(max(known))}]"


def _differences(told: Mapping[str, Any]) -> Iterator[str]:
    for other, found in told.items():
        for one in listed(found):
            value, low, high = (entry(one, name) for name in ("value", "low", "high"))
            if not _is_number(value):
                continue
            reach, verdict = "", ""
            if _is_number(low) and _is_number(high):
                reach = f" [{_signed(low)}, {_signed(high)}]"
                verdict = ", no difference beyond chance" if low <= 0 <= high else _verdict(one, low)
            name = escaped(f"{entry(one, 'task')}, {entry(one, 'metric')}")
            yield f"- {name}, less {_ARMS.get(str(other), escaped(other))}: {_signed(value)}{reach}{verdict}"


def _verdict(one: object, low: float) -> str:
    return ", better" if (low > 0) == bool(entry(one, "higher_is_better")) else ", worse"


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else '−' if value < 0 else ''}{four_digits(abs(value))}"


def _ends(before: object, after: object) -> tuple[str, str]:
    are_counts = isinstance(before, int) and isinstance(after, int) and before > 0
    share = f" ({after / before:.0%})" if isinstance(before, int) and isinstance(after, int) and are_counts else ""
    return _number(before), f"{_number(after)}{share}"


def _number(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else escaped(value)


def _speeds(facts: Mapping[str, Any]) -> Iterator[str]:
    for one in listed(facts.get("speed")):
        ratio, low, high = (entry(one, key) for key in ("ratio", "low", "high"))
        if _is_number(ratio) and _is_number(low) and _is_number(high):
            yield f"- {escaped(entry(one, 'workload'))}: {ratio:.2f} [{low:.2f}, {high:.2f}]"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


# ------------------------------------------------------------------------------------------------------------ Markdown


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are Markdown already."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def escaped(value: object) -> str:
    """On one line, with nothing that Markdown or HTML would act on."""
    line = " ".join(str(value).split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = re.sub(r"([\\`*\[\]|#~$!])", r"\\\1", line)
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", line)  # between letters it is plain


def in_code(value: object) -> str:
    """As code on one line."""
    return f"`{' '.join(str(value).split()).replace('`', chr(39))}`"


def entry(value: object, *path: str | int) -> Any:
    """What stands there, or None."""
    for key in path:
        if isinstance(value, Mapping) and isinstance(key, str):
            value = value.get(key)
        elif isinstance(value, list | tuple) and isinstance(key, int) and key < len(value):
            value = value[key]
        else:
            return None
    return value


def listed(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()
