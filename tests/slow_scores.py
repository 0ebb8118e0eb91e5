"""Every score of position and surface again, the slow way: plain Python over one unpadded sentence at a time.

Written from the definitions, without a line of headlens's analyzers: what the fast code must equal.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

OFFSETS = range(-3, 4)
KINDS = ("first", "cls", "sep", "special", "full_stop", "comma")


@dataclass
class Sentence:
    """Attention of one sentence, [layer, head, query, key], and what its tokens are."""

    probs: np.ndarray
    special: list[bool]
    kinds: dict[str, list[bool]]  # by name of KINDS


def slow_scores(sentences: list[Sentence], *, is_causal: bool) -> dict[str, np.ndarray]:
    """[layer, head] by metric, micro and macro."""
    layers, heads = sentences[0].probs.shape[:2]
    found: dict[str, np.ndarray] = defaultdict(lambda: np.full((layers, heads), np.nan))
    for layer in range(layers):
        for head in range(heads):
            tallies = [_tally(s.probs[layer, head], s, is_causal) for s in sentences]
            for name, value in _read(_added(tallies)).items():
                found[name][layer, head] = value
            alone = [_read(t) for t in tallies]
            for name in alone[0]:
                values = [scores[name] for scores in alone if not math.isnan(scores[name])]
                found[f"{name}.macro"][layer, head] = sum(values) / len(values) if values else math.nan
    return dict(found)


def near_ties(sentences: list[Sentence], tolerance: float = 1e-6) -> int:
    """Rows whose two largest probabilities differ by less than the rounding of float32."""
    count = 0
    for s in sentences:
        top = np.sort(s.probs[:, :, [not x for x in s.special]], axis=-1)
        if top.shape[-1] > 1:
            count += int((top[..., -1] - top[..., -2] < tolerance).sum())
    return count


def _tally(probs: np.ndarray, sentence: Sentence, is_causal: bool) -> dict[str, float]:
    tokens = len(probs)
    t: dict[str, float] = defaultdict(float)
    for i in range(tokens):
        if sentence.special[i]:
            continue
        row = [float(p) for p in probs[i]]
        visible = [j for j in range(tokens) if j <= i or not is_causal]
        largest = max(row)
        t["rows"] += 1
        t["entropy"] -= sum(p * math.log(p) for p in row if p > 0)
        t["uniform entropy"] += math.log(len(visible))
        t["confidence"] += largest
        for o in OFFSETS:
            inside = 0 <= i + o < tokens
            t[f"mass {o}"] += row[i + o] if inside else 0.0
            t[f"argmax {o}"] += row.index(largest) == i + o
            if inside and not sentence.special[i + o]:
                t[f"valid {o}"] += row[i + o]
                t[f"valid rows {o}"] += 1
        t["distance"] += sum(p * abs(i - j) for j, p in enumerate(row))
        t["signed"] += sum(p * (j - i) for j, p in enumerate(row))
        t["near"] += sum(p for j, p in enumerate(row) if abs(i - j) <= 2)
        t["near by chance"] += sum(abs(i - j) <= 2 for j in visible) / len(visible)
        for kind in KINDS:
            t[kind] += sum(p for j, p in enumerate(row) if sentence.kinds[kind][j])
        sinks = sum(p for j, p in enumerate(row) if sentence.special[j] or sentence.kinds["first"][j])
        t["resting"] += sinks > 0.5
        for j in visible:
            t["square"] += row[j] ** 2
            t[f"bin {_bin(j - i)}"] += row[j]
            t[f"pairs {_bin(j - i)}"] += 1
    return t


def _bin(distance: int) -> tuple[bool, int]:
    size, edge = abs(distance), 8
    if size <= edge:
        return distance < 0, size
    number = edge
    while size > edge:  # 9-16, 17-32, 33-64, ...
        number, edge = number + 1, edge * 2
    return distance < 0, number


def _added(tallies: list[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = defaultdict(float)
    for tally in tallies:
        for key, value in tally.items():
            total[key] += value
    return total


def _read(t: dict[str, float]) -> dict[str, float]:
    rows = t["rows"]
    scores = {}
    for o in OFFSETS:
        scores[f"position.mass[{o}]"] = _ratio(t[f"mass {o}"], rows)
        scores[f"position.mass_valid[{o}]"] = _ratio(t[f"valid {o}"], t[f"valid rows {o}"])
        scores[f"position.argmax[{o}]"] = _ratio(t[f"argmax {o}"], rows)
    scores["position.local"] = _ratio(t["near"], t["near by chance"])
    scores["position.distance"] = _ratio(t["distance"], rows)
    scores["position.distance_signed"] = _ratio(t["signed"], rows)
    scores["position.variability"] = _variability(t)
    for kind in KINDS:
        scores[f"surface.{kind}"] = _ratio(t[kind], rows)
    scores["surface.sink_rows"] = _ratio(t["resting"], rows)
    scores["surface.entropy"] = _ratio(t["entropy"], rows)
    scores["surface.breadth"] = _ratio(t["entropy"], t["uniform entropy"])
    scores["surface.confidence"] = _ratio(t["confidence"], rows)
    return scores


def _variability(t: dict[str, float]) -> float:
    """Variance within bins of relative position, over all variance."""
    bins = [key.removeprefix("pairs ") for key in t if key.startswith("pairs ")]
    pairs, mass = sum(t[f"pairs {b}"] for b in bins), sum(t[f"bin {b}"] for b in bins)
    total = t["square"] - mass**2 / pairs
    within = t["square"] - sum(t[f"bin {b}"] ** 2 / t[f"pairs {b}"] for b in bins)
    return within / total if total > 1e-12 * t["square"] else math.nan


def _ratio(a: float, b: float) -> float:
    return a / b if b else math.nan
