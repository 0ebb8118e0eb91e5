"""What models gave on the same tasks, as lines for a terminal: tables, and differences in words. No torch here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headlens.numbers import aligned, amount

if TYPE_CHECKING:
    from headlens.evaluating import Answered, Evaluation
    from headlens.evaluation import Difference


def lines_of(found: Evaluation) -> Iterator[str]:
    """Line by line, for `typer.echo`: tasks, sizes, speed, notes."""
    yield from aligned(list(_task_rows(found)))
    if any(model.lm_eval for model in found.models):
        yield ""
        yield from aligned(list(_harness_rows(found.models)))
    yield ""
    yield from aligned(list(_size_rows(found)))
    for model in found.models:
        yield from (f"{model.name}: {speed_in_words(speed.to_dict(), found.against or '')}" for speed in model.speeds)
    yield from dict.fromkeys(f"Note: {note}" for model in found.models for note in model.notes)
    yield from found.hints


def difference_in_words(difference: Difference) -> str:
    """ "lower by 0.0381 (0.0157 to 0.0657), worse"; or that nothing is beyond chance, which is not that nothing is."""
    value, low, high = difference.value, difference.low, difference.high
    if math.isnan(low) or math.isnan(high):
        return f"{signed(value)}, and no interval to tell it from chance"
    if value == low == high == 0:
        return "the same"
    if not (difference.is_better or difference.is_worse):
        return f"no difference beyond chance ({signed(value)}, {signed(low)} to {signed(high)})"
    direction, verdict = ("higher" if value > 0 else "lower"), ("better" if difference.is_better else "worse")
    near, far = sorted((abs(low), abs(high)))
    return f"{direction} by {figure(abs(value))} ({figure(near)} to {figure(far)}), {verdict}"


def difference_line(difference: Difference, other: str) -> str:
    """What was asked, and how far it lies from `other`."""
    return f"{difference.task}, {difference.metric}, less {_THE.get(other, other)}: {difference_in_words(difference)}"


_THE = {"original": "the original"}


def speed_in_words(speed: Mapping[str, Any], other: str) -> str:
    """How many times as fast, over rounds in which both took turns, as `measure.Speed.to_dict` tells it.

    Where one lies between the quartiles, at least a quarter of the rounds say faster and a quarter slower.
    """
    ratio = f"{speed['ratio']:.2f} times as fast as {other}"
    reach = f"quartiles of {amount(speed['rounds'], 'paired run')} {speed['low']:.2f} to {speed['high']:.2f}"
    rate = f"{speed['median']:.0f} {speed['unit']}"
    if speed["low"] <= 1 <= speed["high"]:
        return f"{speed['workload']}: no difference beyond noise ({ratio}, {reach}; {rate})"
    return f"{speed['workload']}: {ratio} ({reach}; {rate})"


def figure(value: float) -> str:
    """A value of a task: four decimals below ten, and the fewer the larger it is."""
    if math.isnan(value):
        return "not defined"
    digits = next((digits for limit, digits in ((10, 4), (100, 2), (1000, 1)) if abs(value) < limit), 0)
    return f"{value:,.{digits}f}"


def signed(value: float) -> str:
    return figure(value) if value < 0 else f"+{figure(value)}"


# -------------------------------------------------------------------------------------------------------------- tables


def _task_rows(found: Evaluation) -> Iterator[Sequence[str]]:
    """Of every task the metric that it is named for, and another one where only that can be compared."""
    compared = [] if found.against is None else [f"less {found.against}"]
    yield ["task", "asked", "model", "value", "95% interval", *compared]
    for place, task in enumerate(found.models[0].results):
        differences = [model.differences[place] if model.differences else None for model in found.models]
        for metric in dict.fromkeys([task.metric, *(one.metric for one in differences if one is not None)]):
            label, told = f"{task.task}, {metric}", ""
            for model, difference in zip(found.models, differences, strict=True):
                own = model.results[place].figure(metric)
                reach = "none" if math.isnan(own.low) else f"{figure(own.low)} to {figure(own.high)}"
                is_told = difference is not None and difference.metric == metric
                words = difference_in_words(difference) if difference is not None and is_told else ""
                extent = model.results[place].extent(metric)  # with other tokenizers of fewer words, or more
                asked = "" if extent == told else extent
                yield [label, asked, model.name, figure(own.value), reach, *([words] if compared else [])]
                label, told = "", extent


def _harness_rows(models: Sequence[Answered]) -> Iterator[Sequence[str]]:
    yield ["lm-evaluation-harness", "measure", *(model.name for model in models)]
    for task, values in models[0].lm_eval.items():
        for measure in values:
            cells = [model.lm_eval.get(task, {}).get(measure, math.nan) for model in models]
            yield [task, measure, *map(figure, cells)]


def _size_rows(found: Evaluation) -> Iterator[Sequence[str]]:
    first = found.models[0]
    has_cache = any(model.cache is not None for model in found.models)
    cache = [f"cache of {amount(first.cache.tokens, 'token')}"] if has_cache and first.cache is not None else []
    shared = [_kv_heads(model.facts) for model in found.models]
    differ = len({*shared}) > 1
    yield ["model", "parameters", "of attention", "weights on disk", *cache, *(["key/value heads"] if differ else [])]
    for model, kv_heads in zip(found.models, shared, strict=True):
        base = None if found.against is None or model is first else first
        yield [
            model.name,
            _count(model.parameters.total, None if base is None else base.parameters.total),
            _count(model.parameters.attention, None if base is None else base.parameters.attention),
            _count(model.disk.weights, None if base is None else base.disk.weights, " bytes"),
            *([] if not cache else [_cache(model, base)]),
            *([kv_heads] if differ else []),
        ]


def _kv_heads(facts: Mapping[str, Any]) -> str:
    """In every layer, or layer by layer where that is not one number; empty where it is not known."""
    plan = facts.get("plan")
    counts = [facts.get("kv_heads")] if plan is None else [len(groups) for groups in plan["groups"]]
    if len({*counts}) > 1:
        return " ".join(map(str, counts))
    return "" if counts[0] is None else f"{counts[0]:,} a layer"


def _cache(model: Answered, base: Answered | None) -> str:
    if model.cache is None:
        return "none"
    return _count(model.cache.total, None if base is None or base.cache is None else base.cache.total, " bytes")


def _count(value: int, base: int | None, unit: str = "") -> str:
    """With the share of the base, where there is one to take a share of."""
    return f"{value:,}{unit}" + (f" ({value / base:.2f})" if base else "")
