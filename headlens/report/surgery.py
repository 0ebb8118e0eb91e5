"""What surgery on the model cost, as the manifest of its checkpoint tells it, beside what it was held against."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headlens.manifest import kv_heads_before, kv_heads_in_words, measure_in_words
from headlens.numbers import amount, four_digits, number
from headlens.report.facts import Provenance, at
from headlens.report.tables import NOTHING, Cell, Column, Row, Table

# Arms of a comparison in the order in which they are read, and what they are called
ARMS = {
    "original": "the original",
    "converted": "converted",
    "converted, not refitted": "converted, not refitted",
    "pruned": "pruned",
    "masked": "masked",
    "repaired": "pruned and repaired",
    "healed": "healed",
    "mean pooling": "plain mean pooling",
    "mean pooling, healed": "plain mean pooling, healed alike",
    "random, same layers": "random heads, as many in each layer",
    "random": "random heads, of any layer",
    "random, healed": "random heads, healed alike",
    "no heads": "no heads at all",
}
_OF_SURGERY = ("pruned", "masked", "repaired", "healed", "converted")
_FILLS = {"mean": "their mean outputs kept in the bias", "zero": "nothing in their place"}


def is_of(model: object, other: object) -> bool:
    """Whether the first came out of surgery on the second; by the hash of the weights where both are known."""
    old, new = at(model, "surgery", "source"), other
    hashes = at(old, "weights_sha256"), at(new, "weights_sha256")
    if all(hashes):
        return bool(hashes[0] == hashes[1])
    return bool(at(old, "name")) and at(old, "name") == at(new, "name")


def surgery_sentence(provenance: Provenance) -> str:
    """Which model was operated on, which heads went or share keys and values anew, and how that was chosen; empty of
    models as they were."""
    model = at(provenance, "model")
    surgery = at(model, "surgery")
    if not isinstance(surgery, Mapping):
        return ""
    source = at(surgery, "source", "name") or "another model"
    if at(surgery, "kind") == "masked":
        done = "with heads set to 0; nothing in it is smaller"
    elif at(surgery, "kind") == "converted":
        done = f"with {_key_values(surgery)}"
    else:
        done = _without(model, surgery)
    method = at(surgery, "method")
    chosen = [
        *([f"chosen {_by(at(method, 'ranked_by'))}"] if at(method, "ranked_by") else []),
        *([_merged(at(method, "merged_by"))] if at(method, "merged_by") else []),
        *([f"{at(method, 'grouping')} groups"] if at(method, "grouping") else []),
        *([_FILLS[at(method, "fill")]] if at(method, "fill") in _FILLS else []),
        *(["output projections refitted"] if at(method, "repair") else []),
        *([f"healed in {amount(steps, 'step')}"] if isinstance(steps := at(method, "healed_steps"), int) else []),
    ]
    how = f" ({'; '.join(chosen)})" if chosen else ""
    return f"{source} {done}{how}"


def _without(model: object, surgery: Mapping[str, Any]) -> str:
    """How many heads are gone, of all that the first of several originals had, and what the others share, if anew."""
    whole, kept = _heads(model)
    counted = "" if whole is None or kept is None else f"{whole - kept:,} of its {amount(whole, 'head')}"
    gone = f"without {counted}" if counted else "pruned"
    if not at(surgery, "shares_anew"):
        return gone
    of_source = next((arm.get("heads") for arm in _arms(surgery) if arm.get("name") == "original"), None)
    if counted and kept == of_source:
        return f"with {_key_values(surgery)}; {counted} were gone before"
    return f"{gone} and with {_key_values(surgery)}"


def _key_values(surgery: Mapping[str, Any]) -> str:
    before, after = kv_heads_before(surgery), at(surgery, "kv_heads")
    if before is None or not isinstance(after, list):
        return "other key/value heads"
    return kv_heads_in_words(before, after)


def _arms(surgery: object) -> list[Mapping[str, Any]]:
    return [arm for arm in at(surgery, "arms") or [] if isinstance(arm, Mapping)]


def _merged(method: object) -> str:
    return "in exact copies" if method == "copies" else f"merged by {method}"


def surgery_table(provenance: Provenance) -> Table | None:
    """One row for each kind of model that was asked the same; None where nobody asked."""
    surgery = at(provenance, "model", "surgery")
    arms = _arms(surgery)
    named = {name: [arm for arm in arms if arm.get("name") == name] for name in ARMS}
    rows = {name: some for name, some in named.items() if some}
    if not rows:
        return None
    shares = at(surgery, "kind") == "converted" or bool(at(surgery, "shares_anew"))
    tasks = list(dict.fromkeys(task for arm in arms for task in at(arm, "tasks") or {}))
    columns = [
        Column("Model", is_number=False, names=("model",)),
        Column("Heads", names=("heads",)),
        *([Column("Key/value heads", names=("kv_heads",))] if shares else []),
        Column("Distortion", _distortion(surgery), names=("distortion", "lowest", "highest"), is_low_first=True),
        *(Column(task, names=("value", "lowest", "highest")) for task in tasks),
    ]
    return Table(
        "The model beside what it is held against",
        tuple(columns),
        tuple(_row(*row, tasks, shares) for row in rows.items()),
    )


def _distortion(surgery: object) -> str:
    measure = measure_in_words(at(surgery, "method", "objective"))
    unit = f" ({measure})" if measure else ""
    return (
        f"How far the output moved from that of the original{unit}, on text that had no say in the choice; 0 is none. "
        f"Of several random draws the mean, and the lowest and highest"
    )


def surgery_lines(provenance: Provenance) -> Iterator[str]:
    """Sizes before and after, and speed."""
    surgery = at(provenance, "model", "surgery")
    measured = at(surgery, "measured")
    for name, ends in measured.items() if isinstance(measured, Mapping) else ():
        before, after = at(ends, "before"), at(ends, "after")
        if isinstance(before, int) and isinstance(after, int) and before:
            share = number(after / before, "share", digits=2)
            yield f"{str(name).capitalize()}: {after:,}; {before:,} in the original ({share} of it)."
    for one in at(surgery, "speed") or []:
        ratio, low, high = (at(one, key) for key in ("ratio", "low", "high"))
        if all(isinstance(value, int | float) for value in (ratio, low, high)):
            yield (
                f"Speed, {at(one, 'workload')}: {ratio:.2f} times that of the original "
                f"(quartiles of paired runs {low:.2f} to {high:.2f})."
            )


def _row(name: str, arms: Sequence[Mapping[str, Any]], tasks: Sequence[str], shares: bool) -> Row:
    heads = arms[0].get("heads")
    known = heads if isinstance(heads, int) else math.nan
    draws = f"{len(arms)} draws" if len(arms) > 1 else ""
    cells = [
        Cell(ARMS[name], note=draws, values=(name,), is_strong=name in _OF_SURGERY),
        Cell(f"{heads:,}" if isinstance(heads, int) else NOTHING, values=(known,)),
        *([_kv_heads(arms[0].get("kv_heads"))] if shares else []),
        _spread([arm.get("distortion") for arm in arms]),
        *(_spread([at(arm, "tasks", task) for arm in arms]) for task in tasks),
    ]
    return Row(tuple(cells))


def _kv_heads(counts: object) -> Cell:
    total = sum(counts) if isinstance(counts, list) and all(isinstance(one, int) for one in counts) else None
    return Cell(NOTHING, values=(math.nan,)) if total is None else Cell(f"{total:,}", values=(total,))


def _spread(values: Sequence[object]) -> Cell:
    """One figure, or the mean of several and where they lie."""
    found = [float(value) for value in values if isinstance(value, int | float) and math.isfinite(value)]
    if not found:
        return Cell(NOTHING, values=(math.nan,) * 3)
    mean, low, high = sum(found) / len(found), min(found), max(found)
    note = f"{four_digits(low)} to {four_digits(high)}" if len(found) > 1 else ""
    return Cell(four_digits(mean), note=note, values=(mean, low, high))


def _heads(model: object) -> tuple[int | None, int | None]:
    layers, heads, kept = (at(model, key) for key in ("layers", "heads", "heads_kept"))
    whole = layers * heads if isinstance(layers, int) and isinstance(heads, int) else None
    return whole, kept if isinstance(kept, int) else None


def _by(method: object) -> str:
    return "by hand" if method == "by hand" else f"by {method}"
