"""Every score of contribution again, the slow way: the vectors a_ij f(x_j) themselves, one sentence at a time.

Values are taken from the projections of transformers' own modules, W_O from their weights, by the names that each
family's file gives them; not a line of headlens's analyzers, capture or map of families is used.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

KINDS = ("first", "cls", "sep", "special", "full_stop", "comma")
NEIGHBOURS = {"self": 0, "previous": -1, "next": 1}


@dataclass
class Written:
    """One sentence: attention [layer, head, query, key], f(x_j) [layer, head, key, hidden], what its tokens are."""

    probs: np.ndarray
    offers: np.ndarray
    special: list[bool]
    kinds: dict[str, list[bool]]  # by name of KINDS


@dataclass
class Layer:
    """Where a family keeps what the values come from: its output [token, out] to values [kv, token, dim]; W_O."""

    projection: nn.Module
    values: Callable[[Tensor], Tensor]
    w_out: Tensor  # [in, out]


def layers_of(family: str, model: Any, heads: int, kv_heads: int) -> list[Layer]:
    def cut(out: Tensor) -> Tensor:
        return out.unflatten(-1, (kv_heads, -1)).transpose(0, 1)

    def fused(out: Tensor) -> Tensor:  # GPT-NeoX: query, key and value of the first head, then of the second, ...
        return out.unflatten(-1, (heads, 3, -1))[:, :, 2].transpose(0, 1)

    if family == "gpt2":
        return [Layer(b.attn.c_attn, lambda out: cut(out.chunk(3, dim=-1)[2]), b.attn.c_proj.weight) for b in model.h]
    if family == "bert":
        parts = [block.attention for block in model.encoder.layer]
        return [Layer(a.self.value, cut, a.output.dense.weight.T) for a in parts]
    if family == "gpt_neox":
        parts = [block.attention for block in model.layers]
        return [Layer(a.query_key_value, fused, a.dense.weight.T) for a in parts]
    if family == "opt":
        parts = [block.self_attn for block in model.decoder.layers]
        return [Layer(a.v_proj, cut, a.out_proj.weight.T) for a in parts]
    if family in ("llama", "gemma2", "qwen3"):
        parts = [block.self_attn for block in model.layers]
        return [Layer(a.v_proj, cut, a.o_proj.weight.T) for a in parts]
    assert family == "t5"
    parts = [block.layer[0].SelfAttention for block in model.block]
    return [Layer(a.v, cut, a.o.weight.T) for a in parts]


@torch.no_grad()
def offers_of(family: str, model: Any, text: Tensor, heads: int, kv_heads: int) -> np.ndarray:
    """f(x_j) of every layer and head, [layer, head, key, hidden], of one sentence."""
    model = copy.deepcopy(model)
    model.set_attn_implementation("eager")  # which many a file does in float32 whatever the model's precision is
    seen: list[Tensor] = []
    layers = layers_of(family, model, heads, kv_heads)
    for layer in layers:
        layer.projection.register_forward_hook(lambda _module, _args, out: seen.append(out[0]))
    model(input_ids=text[None], attention_mask=torch.ones(1, len(text), dtype=torch.long))
    found = []
    for layer, out in zip(layers, seen, strict=True):
        values, dim = layer.values(out), layer.w_out.shape[0] // heads
        own = [values[h // (heads // kv_heads)] @ layer.w_out[h * dim : (h + 1) * dim] for h in range(heads)]
        found.append(torch.stack(own))
    return torch.stack(found).double().numpy()


def slow_scores(sentences: list[Written]) -> dict[str, np.ndarray]:
    """[layer, head] by metric, micro and macro."""
    tallies = [[[_tally(s, i, j) for j in range(s.probs.shape[1])] for i in range(s.probs.shape[0])] for s in sentences]
    layers, heads = sentences[0].probs.shape[:2]
    found: dict[str, np.ndarray] = defaultdict(lambda: np.full((layers, heads), np.nan))
    for layer in range(layers):
        alone = [_read(tally[layer]) for tally in tallies]
        together = _read([_added([tally[layer][head] for tally in tallies]) for head in range(heads)])
        for head in range(heads):
            for name, value in together[head].items():
                found[name][layer, head] = value
                values = [scores[head][name] for scores in alone if not math.isnan(scores[head][name])]
                found[f"{name}.macro"][layer, head] = sum(values) / len(values) if values else math.nan
    return dict(found)


def _tally(s: Written, layer: int, head: int) -> dict[str, float]:
    probs, offers = s.probs[layer, head], s.offers[layer, head]
    t: dict[str, float] = defaultdict(float)
    is_sink = [special or first for special, first in zip(s.special, s.kinds["first"], strict=True)]
    for j, offer in enumerate(offers):
        place = "sink" if is_sink[j] else "other"
        t[f"{place} tokens"] += 1
        t[f"{place} norm"] += float(np.linalg.norm(offer))
    for i, row in enumerate(probs):
        if s.special[i]:
            continue
        vectors = [p * offer for p, offer in zip(row, offers, strict=True)]
        norms = [float(np.linalg.norm(vector)) for vector in vectors]
        total = sum(norms)
        t["rows"] += 1
        t["written"] += float(np.linalg.norm(sum(vectors)))
        t["sink weight"] += sum(float(p) for j, p in enumerate(row) if is_sink[j])
        if total == 0:
            continue
        t["counted"] += 1
        t["sink share"] += sum(n for j, n in enumerate(norms) if is_sink[j]) / total
        for kind in KINDS:
            t[kind] += sum(n for j, n in enumerate(norms) if s.kinds[kind][j]) / total
        for name, offset in NEIGHBOURS.items():
            t[name] += norms[i + offset] / total if 0 <= i + offset < len(norms) else 0.0
    return t


def _added(tallies: list[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = defaultdict(float)
    for tally in tallies:
        for key, value in tally.items():
            total[key] += value
    return total


def _read(heads: list[dict[str, float]]) -> list[dict[str, float]]:
    """Scores of all heads of one layer."""
    written = sum(t["written"] for t in heads)
    return [{f"contribution.{name}": value for name, value in _scores(t, written).items()} for t in heads]


def _scores(t: dict[str, float], written: float) -> dict[str, float]:
    weight, share = _ratio(t["sink weight"], t["rows"]), _ratio(t["sink share"], t["counted"])
    return {
        **{name: _ratio(t[name], t["counted"]) for name in (*KINDS, *NEIGHBOURS)},
        "norm_of_sink": _ratio(_ratio(t["sink norm"], t["sink tokens"]), _ratio(t["other norm"], t["other tokens"])),
        "sink_weight": weight,
        "sink_share": share,
        "sink_ratio": _ratio(share, weight),
        "size": _ratio(t["written"], written),
    }


def _ratio(a: float, b: float) -> float:
    return a / b if b else math.nan
