"""What the script of the page draws from: one block of JSON, compact, that cannot close its own tag."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headlens.effects import Ablation
from headlens.examples import Examples
from headlens.report.card import nearest_words, telling, unshown_words
from headlens.report.figures import LOW_IS_TELLING, Scale, is_signed, scale_of, starts_at_chance
from headlens.report.findings import HeadTraits
from headlens.report.sections import is_one_number, own_place
from headlens.roles import HeadRole, Roles
from headlens.scores import Floats, Metric, ScoreTable
from headlens.wording import SUBJECT_VERB, family_of

if TYPE_CHECKING:
    from headlens.behaviour.similarity import Similarity

DIGITS = 4  # of every number; the tables and scores.csv have more
NEAREST_HEADS = 5
NEAR = round(math.log(2) / 3, DIGITS)  # nats; heads further apart do not look alike: a third of the most, our choice

_FAMILIES = {
    SUBJECT_VERB: "Relations",
    "syntax": "Relations",
    "coref": "Coreference",
    "choice": "Pronouns",
    "phrase": "Phrases",
    "border": "Borders",
    "lexical": "Words",
    "circuits": "Weights",
}
_RESTS = {"[CLS]": "surface.cls", "[SEP]": "surface.sep"}  # beside the positions on a card
_FIRST = {"first": "surface.first"}


def page_data(
    scores: ScoreTable,
    traits: Sequence[HeadTraits],
    roles: Roles | None,
    *,
    similarity: Similarity | None = None,
    examples: Examples | None = None,
    ablation: Ablation | None = None,
) -> dict[str, Any]:
    """Plain values for JSON. Heads are counted layer by layer; None stands for NaN. Without `roles` none is claimed."""
    metrics = own_place(scores)
    places = {metric.name: place for place, metric in enumerate(metrics)}
    return {
        "layers": scores.n_layers,
        "heads": scores.n_heads,
        "absent": [place for place, head in enumerate(traits) if head.is_absent],
        "metrics": [_metric(scores, metric) for metric in metrics],
        "telling": telling(scores, metrics),
        "profile": _placed({_offset(offset): f"position.mass[{offset}]" for offset in range(-3, 4)}, places),
        "rests": _placed(_RESTS if "surface.cls" in scores else _FIRST, places),
        "roles": _roles(roles) if roles is not None else None,
        "held": _held(traits, places) if roles is not None else {},
        "nearest": _nearest_roles(traits, places) if roles is not None else {},
        "classes": [roles.pattern_class(head.layer, head.head) for head in traits] if roles is not None else None,
        "alike": _alike(similarity, scores) if similarity is not None else None,
        "near": NEAR,
        "effects": _effects(ablation, scores) if ablation is not None and roles is not None else {},
        "examples": examples.to_dict() if examples is not None else None,
        "unshown": _unshown(examples, scores) if examples is not None else {},
    }


def as_script(data: Mapping[str, Any]) -> str:
    """JSON for a `<script type="application/json">`: no text in it can end the element or begin a comment."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def compact(values: Floats, decimals: int) -> list[int | float | None]:
    """Values with DIGITS significant digits, and at least `decimals` after the point, as many as are printed.

    A value that would end in a 5 after the last printed digit would be rounded a second time, maybe to the other side;
    it gets one digit more, on the side on which the value itself is printed.
    """
    flat = np.asarray(values, dtype=np.float64).ravel()
    finite = np.isfinite(flat)
    known = np.where(finite, flat, 0.0)
    size = np.floor(np.log10(np.abs(known), where=known != 0, out=np.zeros_like(known)))
    digits = np.maximum(decimals, DIGITS - 1 - size).astype(np.int64)
    short = [round(value, places) for value, places in zip(known.tolist(), digits.tolist(), strict=True)]
    tie = np.abs(np.abs(short) * 10.0**decimals % 1 - 0.5) < 1e-6
    for place in np.flatnonzero(tie).tolist():
        places = int(digits[place]) + 1
        side = 1 if round(float(known[place]), decimals) > short[place] else -1
        short[place] = round(short[place] + side * 10.0**-places, places)
    return [_whole(value) if is_finite else None for value, is_finite in zip(short, finite.tolist(), strict=True)]


def decimals_of(unit: str) -> int:
    """How many decimals of a score are printed; see `numbers.number`."""
    return 3 if unit == "share" else 2


def _metric(scores: ScoreTable, metric: Metric) -> dict[str, Any]:
    index, decimals = scores.index(metric.name), decimals_of(metric.unit)
    values, chance = scores[metric.name], float(scores.chance[index])
    found: dict[str, Any] = {
        "name": metric.name,
        "title": metric.title,
        "meaning": metric.meaning,
        "family": _FAMILIES.get(family_of(metric.name), family_of(metric.name).replace("_", " ").capitalize()),
        "unit": metric.unit,
        "chance": compact(np.array([chance]), decimals)[0],
        "values": compact(values, decimals),
    }
    for side in ("low", "high"):
        ends = getattr(scores, side)[index]
        found[side] = compact(ends, decimals) if np.isfinite(ends).any() else None
    has_map = np.isfinite(values).any() and not is_one_number(values)
    return found | (_colours(metric, values, chance) if has_map else {"scale": "none"})


def _colours(metric: Metric, values: Floats, chance: float) -> dict[str, Any]:
    """`steps` has a character for each head: 0 to 6 of the colour scale, blank at or below chance, - if undefined."""
    scale = scale_of(metric, values, chance)
    is_low = metric.name in LOW_IS_TELLING
    kind = "signed" if is_signed(metric) else "chance" if starts_at_chance(metric, values, chance) else "plain"
    return {
        "scale": kind,
        "edges": [float(f"{edge:.6g}") for edge in scale.edges],
        "steps": _steps(scale, values),
        "end": "lowest" if is_low else "highest",
        "top": int(np.nanargmin(values) if is_low else np.nanargmax(values)),
    }


def _steps(scale: Scale, values: Floats) -> str:
    characters = np.array([" " if colour == "bg" else colour[1:] for colour in scale.colours])
    flat = values.ravel()
    place = np.searchsorted(scale.edges, flat, side="right") - 1
    of_values = characters[np.clip(place, 0, len(characters) - 1)]
    return "".join(np.where(np.isfinite(flat), of_values, "-").tolist())


def _placed(bars: Mapping[str, str], places: Mapping[str, int]) -> list[tuple[str, int]]:
    """What stands under a bar of the profile on a card, and the place of its metric."""
    return [(words, places[name]) for words, name in bars.items() if name in places]


def _offset(offset: int) -> str:
    return f"{offset:+d}".replace("-", "−") if offset else "0"


def _roles(roles: Roles) -> list[dict[str, str]]:
    return [{"id": role.id, "letter": role.letter, "title": role.title, "kind": role.kind} for role in roles.asked]


def _held(traits: Sequence[HeadTraits], places: Mapping[str, int]) -> dict[str, list[dict[str, Any]]]:
    return {
        str(place): [_head_role(one, places) for one in head.held] for place, head in enumerate(traits) if head.held
    }


def _head_role(one: HeadRole, places: Mapping[str, int]) -> dict[str, Any]:
    names = ("value", "low", "high", "chance", "null")
    numbers = compact(np.array([getattr(one, name) for name in names]), 3)
    found: dict[str, Any] = {name: value for name, value in zip(names, numbers, strict=True) if value is not None}
    found |= {"role": one.role.id, "firm": one.is_firm, "sentence": one.sentence}
    if one.metric in places:
        found["metric"] = places[one.metric]
    return found | ({"nullName": one.null_name} if "null" in found and one.null_name != "chance" else {})


def _nearest_roles(traits: Sequence[HeadTraits], places: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    return {
        str(place): {"metric": places.get(head.nearest.rule.metric), "words": nearest_words(head.nearest)}
        for place, head in enumerate(traits)
        if head.nearest is not None and not head.held
    }


def _alike(similarity: Similarity, scores: ScoreTable) -> dict[str, list[tuple[int, float]]]:
    """For each head the others that are most like it: place and distance in nats."""
    return {
        str(layer * scores.n_heads + head): [
            (other[0] * scores.n_heads + other[1], round(distance, DIGITS))
            for other, distance in similarity.nearest(layer, head, NEAREST_HEADS)
        ]
        for layer, head in similarity.heads
    }


def _effects(ablation: Ablation, scores: ScoreTable) -> dict[str, str]:
    return {str(effect.layer * scores.n_heads + effect.head): effect.sentence for effect in ablation.effects}


def _unshown(examples: Examples, scores: ScoreTable) -> dict[str, str]:
    return {str(one.layer * scores.n_heads + one.head): unshown_words(one) for one in examples.unshown}


def _whole(value: float) -> int | float:
    """12 for 12.0, which is shorter."""
    return int(value) if value == int(value) else value
