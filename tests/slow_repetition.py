"""Scores on repeated random tokens from their definitions: plain loops over what transformers itself reports."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.testing import slow_attentions

Scores = dict[str, list[list[float]]]  # by name, [layer][head]


def slow_two_copies(
    model: PreTrainedModel, ids: Tensor, *, first: int, period: int, both_ways: bool, repeated: bool = True
) -> Scores:
    """`ids` [sequence, token] is what the model reads, special tokens included."""
    end = "" if repeated else "_control"
    found: Scores = {}
    for name, pairs in _pairs(first, period, both_ways).items():
        found[f"repetition.{name}{end}"] = _each(model, ids, lambda row, pairs=pairs: _mass(row, pairs))
        if repeated:
            found[f"repetition.{name}_argmax"] = _each(model, ids, lambda row, pairs=pairs: _strongest(row, pairs))
    return found


def slow_prefix_matching(model: PreTrainedModel, ids: Tensor, *, first: int) -> list[list[float]]:
    """By the tokens themselves, not by position: all keys whose predecessor is the same token as the row's."""
    paid: dict[tuple[int, int], list[float]] = {}
    for number, sequence in enumerate(ids.tolist()):
        for layer, patterns in enumerate(_patterns(model, ids)):
            for head, pattern in enumerate(patterns[number]):
                for i, token in enumerate(sequence):
                    keys = [j for j in range(first + 1, i + 1) if sequence[j - 1] == token and j - 1 < i]
                    if i >= first and keys:
                        paid.setdefault((layer, head), []).append(sum(float(pattern[i, j]) for j in keys))
    return _table({place: sum(values) / len(values) for place, values in paid.items()})


@torch.no_grad()
def slow_copying(model: PreTrainedModel, matrix: Tensor, ids: Tensor, *, first: int) -> tuple[list[list[float]], ...]:
    """(copying, copying_share), through the logits of the whole vocabulary; ids [sequence, token]."""
    attended: dict[tuple[int, int], float] = {}
    others: dict[tuple[int, int], float] = {}
    everything: dict[tuple[int, int], float] = {}
    for number, sequence in enumerate(ids.tolist()):
        values = _values(model, ids[number : number + 1])
        for layer, patterns in enumerate(_patterns(model, ids)):
            for head, pattern in enumerate(patterns[number]):
                place = (layer, head)
                for j in range(first, len(sequence)):
                    written = _w_out(model, layer, head).T @ values[layer][head][j]
                    logits = matrix @ _through_norm(model, written)
                    risen = (logits - logits.mean()).clamp_min(0)
                    own = float(risen[sequence[j]])
                    rest = [float(risen[token]) for k, token in enumerate(sequence) if k >= first and k != j]
                    for i in range(j, len(sequence)):
                        weight = float(pattern[i, j])
                        attended[place] = attended.get(place, 0.0) + weight * own
                        others[place] = others.get(place, 0.0) + weight * sum(rest) / len(rest)
                        everything[place] = everything.get(place, 0.0) + weight * (own + sum(rest))
    scaled = {place: (a - others[place]) / (a + others[place]) for place, a in attended.items()}
    return _table(scaled), _table({place: a / everything[place] for place, a in attended.items()})


def _pairs(first: int, period: int, both_ways: bool) -> dict[str, list[tuple[int, int]]]:
    """Rows, and the key that is looked at from each."""
    one = range(first, first + period)
    other = range(first + period, first + 2 * period)
    back = [(j, i) for i, j in zip(one, other, strict=True)]
    pairs = {
        "previous": [(i, i - 1) for i in (*one, *other) if i > 0],
        "duplicate": back + [(i, j) for j, i in back] if both_ways else back,
    }
    return pairs if both_ways else {**pairs, "induction": [(j, i + 1) for j, i in back]}


def _mass(pattern: Tensor, pairs: list[tuple[int, int]]) -> list[float]:
    return [float(pattern[i, j]) for i, j in pairs]


def _strongest(pattern: Tensor, pairs: list[tuple[int, int]]) -> list[float]:
    rows = {i: pattern[i].tolist() for i, _ in pairs}
    return [float(rows[i].index(max(rows[i])) == j) for i, j in pairs]


def _each(model: PreTrainedModel, ids: Tensor, read: Callable[[Tensor], list[float]]) -> list[list[float]]:
    means = {}
    for layer, patterns in enumerate(_patterns(model, ids)):
        for head in range(len(patterns[0])):
            found = [value for pattern in patterns for value in read(pattern[head])]
            means[layer, head] = sum(found) / len(found)
    return _table(means)


_LATEST: list[tuple[PreTrainedModel, Tensor, list[list[Tensor]]]] = []


def _patterns(model: PreTrainedModel, ids: Tensor) -> list[list[Tensor]]:
    """[layer][sequence], each [head, query, key]; those of the latest model and ids are kept."""
    if not _LATEST or _LATEST[0][0] is not model or _LATEST[0][1] is not ids:
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        _LATEST[:] = [(model, ids, next(iter(slow_attentions(model, inputs).values())))]
    return _LATEST[0][2]


def _table(by_place: dict[tuple[int, int], float]) -> list[list[float]]:
    layers, heads = (max(place[axis] for place in by_place) + 1 for axis in (0, 1))
    return [[by_place[layer, head] for head in range(heads)] for layer in range(layers)]


# --------------------------------------------------------------------- weights, as each family's own file lays them out

_VALUES = {
    "gpt2": lambda layer: layer.attn.c_attn,
    "gpt_neox": lambda layer: layer.attention.query_key_value,
    "opt": lambda layer: layer.self_attn.v_proj,
    "llama": lambda layer: layer.self_attn.v_proj,
}


def _layers(model: PreTrainedModel) -> nn.ModuleList:
    family = model.config.model_type
    return model.h if family == "gpt2" else model.decoder.layers if family == "opt" else model.layers


def _values(model: PreTrainedModel, ids: Tensor) -> list[list[Tensor]]:
    """[layer][head], [token, dim]: what the value projections of a run give, each for all heads that share it."""
    family, heads = model.config.model_type, model.config.num_attention_heads
    seen: list[Tensor] = []
    hooks = [
        _VALUES[family](layer).register_forward_hook(lambda _module, _inputs, output: seen.append(output[0]))
        for layer in _layers(model)
    ]
    model(ids)
    for hook in hooks:
        hook.remove()
    dim = model.config.hidden_size // heads
    found = []
    for output in seen:
        if family == "gpt2":  # queries of all heads, keys of all heads, values of all heads
            parts = output[:, -heads * dim :].split(dim, dim=-1)
        elif family == "gpt_neox":  # head by head: its query, its key, its value
            parts = [part[:, -dim:] for part in output.split(3 * dim, dim=-1)]
        else:
            own = output.split(dim, dim=-1)
            parts = [own[head * len(own) // heads] for head in range(heads)]
        found.append(list(parts))
    return found


def _w_out(model: PreTrainedModel, layer: int, head: int) -> Tensor:
    """[dim, hidden]."""
    family, module = model.config.model_type, _layers(model)[layer]
    if family == "gpt2":
        whole = module.attn.c_proj.weight
    elif family == "gpt_neox":
        whole = module.attention.dense.weight.T
    else:
        whole = (module.self_attn.out_proj if family == "opt" else module.self_attn.o_proj).weight.T
    dim = len(whole) // model.config.num_attention_heads
    return whole[head * dim : (head + 1) * dim]


def _through_norm(model: PreTrainedModel, written: Tensor) -> Tensor:
    """The final norm's linear part."""
    family = model.config.model_type
    if family == "llama":
        return written * model.norm.weight
    norms = {"gpt2": "ln_f", "gpt_neox": "final_layer_norm", "opt": "decoder.final_layer_norm"}
    return (written - written.mean()) * model.get_submodule(norms[family]).weight
