"""Weights of attention layers are read head by head and written back as they were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from converted import FAMILIES, OWN, PAIRS, language_model
from torch import Tensor, nn

from headlens.conversion.weights import LayerWeights, Rotary, read_layer, read_layers, write_layers
from headlens.errors import PlanError, UnsupportedModel
from headlens.plan import Groups
from headlens.replace import record_calls
from headlens.surgery import apply_plan, full_plan
from headlens.testing import padded_inputs, tiny_model

DIM = 8


def rotated(states: Tensor, cos: Tensor, sin: Tensor, pairs: int) -> Tensor:
    """Entry i turns with entry i + pairs; what is behind 2 * pairs does not. [token, dim]"""
    first, second, still = states.split([pairs, pairs, states.shape[-1] - 2 * pairs], dim=-1)
    cos, sin = cos[:, :pairs], sin[:, :pairs]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, still], dim=-1)


def by_the_formula(layer: LayerWeights, hidden: Tensor, is_causal: bool, rotary: Any) -> Tensor:
    """What the layer adds to the stream of one sentence [token, hidden], head by head."""
    total = torch.zeros_like(hidden) if layer.o_bias is None else layer.o_bias.expand_as(hidden).clone()
    for kv, group in enumerate(layer.groups):
        for head in group:
            q, k, v = hidden @ layer.q[head].T, hidden @ layer.k[kv].T, hidden @ layer.v[kv].T
            q = q if layer.q_bias is None else q + layer.q_bias[head]
            k = k if layer.k_bias is None else k + layer.k_bias[kv]
            v = v if layer.v_bias is None else v + layer.v_bias[kv]
            if layer.rotary is not None:
                q, k = (rotated(states, rotary[0], rotary[1], layer.rotary.pairs) for states in (q, k))
            scores = layer.scaling * q @ k.T
            if is_causal:
                scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
            total += scores.softmax(dim=-1) @ v @ layer.o[head]
    return total


@pytest.mark.parametrize("family", FAMILIES)
def test_the_formula_with_what_was_read_is_the_layer(family: str) -> None:
    more: dict[str, Any] = {"sliding_window": None} if family == "mistral" else {}
    model = tiny_model(family, **more)
    with torch.no_grad():
        calls = record_calls(model, input_ids=padded_inputs()["input_ids"][:1])
    for number, call in enumerate(calls):
        rotary = None if call.rotary is None else tuple(part[0] for part in call.rotary)
        is_causal = family not in ("bert", "roberta", "distilbert")
        found = by_the_formula(read_layer(model, number), call.hidden[0], is_causal, rotary)
        torch.testing.assert_close(found, call.output[0], rtol=0, atol=1e-10)


ROTARY = {"llama": Rotary(4), "mistral": Rotary(4), "qwen2": Rotary(4), "gpt_neox": Rotary(1)}  # a quarter of 8 entries


@pytest.mark.parametrize("family", FAMILIES)
def test_groups_and_rotary_pairs_are_those_of_the_family(family: str) -> None:
    layer = read_layer(tiny_model(family), 1)
    assert layer.groups == (((0, 1), (2, 3)) if family in ("llama", "mistral", "qwen2") else OWN)
    assert layer.rotary == ROTARY.get(family)
    assert {part.dtype for part in (layer.q, layer.k, layer.v, layer.o)} == {torch.float64}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_read_is_written_back_bit_for_bit(family: str, dtype: torch.dtype) -> None:
    model = tiny_model(family, dtype=dtype)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    layers = read_layers(model)
    write_layers(model, [replace(layer, q=layer.q + 1, k=-layer.k, v=2 * layer.v, o=layer.o - 1) for layer in layers])
    changed = [name for name, weight in model.state_dict().items() if not torch.equal(weight, before[name])]
    assert len(changed) == 3 * {"gpt2": 2, "gpt_neox": 2}.get(family, 4)
    write_layers(model, layers)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_what_is_read_is_a_copy() -> None:
    model = tiny_model("bert")
    layer = read_layer(model, 0)
    layer.q.zero_()
    assert read_layer(model, 0).q.abs().min() > 0


def test_query_heads_are_written_in_the_order_of_their_groups() -> None:
    model = tiny_model("llama")
    layers = read_layers(model)
    write_layers(model, [replace(layer, groups=PAIRS) for layer in layers])
    written = model.layers[0].self_attn
    assert torch.equal(written.q_proj.weight[DIM : 2 * DIM], layers[0].q[2])
    assert torch.equal(written.q_proj.weight[2 * DIM : 3 * DIM], layers[0].q[3])
    assert torch.equal(written.o_proj.weight[:, DIM : 2 * DIM].T, layers[0].o[2])
    assert torch.equal(written.k_proj.weight, layers[0].k.flatten(0, 1))


def test_a_bias_of_none_is_written_as_zeros() -> None:
    model = tiny_model("gpt2")
    write_layers(model, [replace(layer, k_bias=None) for layer in read_layers(model)])
    bias = model.h[1].attn.c_attn.bias
    assert bias[32:64].tolist() == [0.0] * 32
    assert bias[:32].abs().min() > 0
    assert bias[64:].abs().min() > 0


def test_a_pruned_model_is_read_by_places() -> None:
    model = tiny_model("bert")
    whole = read_layer(model, 0)
    pruned = apply_plan(model, full_plan(model).without([(0, 1), *((2, head) for head in range(4))]))
    layer, empty = read_layer(pruned, 0), read_layer(pruned, 2)
    assert layer.groups == ((0,), (1,), (2,))
    assert torch.equal(layer.k, whole.k[[0, 2, 3]])
    assert torch.equal(layer.o, whole.o[[0, 2, 3]])
    assert (empty.groups, empty.q.shape, empty.o.shape) == ((), (0, DIM, 32), (0, DIM, 32))


# --------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("qwen3", "normalises queries and keys"),
        ("albert", "share one set of weights"),
        ("t5", "adds a bias of every head"),
        ("modernbert", "is not known here"),
        ("vit", "is not known here"),
    ],
)
def test_families_that_cannot_be_expressed(family: str, why: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"'{family}' cannot be converted.*{why}"):
        read_layer(tiny_model(family), 0)


def test_cross_attention_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="GPT2Model has cross-attention"):
        read_layer(tiny_model("gpt2", add_cross_attention=True), 0)


@pytest.mark.parametrize("layer", [-1, 3])
def test_a_layer_that_is_not_there(layer: int) -> None:
    with pytest.raises(PlanError, match=f"BertModel has 3 layers, no layer {layer}"):
        read_layer(tiny_model("bert"), layer)


def test_changed_layers_are_refused() -> None:
    class Adapted(nn.Linear):
        pass

    model = tiny_model("llama")
    model.layers[0].self_attn.k_proj = Adapted(32, 16)
    with pytest.raises(UnsupportedModel, match="is a Adapted, not a plain linear layer"):
        read_layer(model, 0)


def test_weights_that_are_no_numbers_are_refused() -> None:
    model = tiny_model("bert")
    with torch.no_grad():
        model.encoder.layer[1].attention.self.value.weight[0, 0] = torch.nan
    assert read_layer(model, 0).groups == OWN
    with pytest.raises(UnsupportedModel, match="Layer 1 of BertModel has weights that are no finite numbers"):
        read_layer(model, 1)


def test_weights_elsewhere_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="weights of layer 0 are not in memory"):
        read_layer(tiny_model("bert").to("meta"), 0)


Change = Callable[[list[LayerWeights]], list[LayerWeights]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda layers: layers[:2], "has 3 layers, got weights for 2"),
        (
            lambda layers: [
                replace(layers[0], k=layers[0].k[:1], v=layers[0].v[:1], groups=((0, 1, 2, 3),)),
                *layers[1:],
            ],
            "has 4 heads and 2 key/value heads of 8 dimensions, and the weights are of 4, 1 and 8",
        ),
        (
            lambda layers: [replace(layer, q_bias=torch.ones(4, DIM).double()) for layer in layers],
            "Layer 0 has a bias to be written",
        ),
    ],
)
def test_weights_that_do_not_fit(change: Change, message: str) -> None:
    model = tiny_model("llama")
    with pytest.raises(PlanError, match=message):
        write_layers(model, change(read_layers(model)))


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (((0, 1), (2,)), "each of its 4 heads once"),
        (((0, 1), (2, 2, 3)), "each of its 4 heads once"),
        (((0, 1, 2, 3),), "one group for each of its 2 key/value heads"),
        (((0, 1, 2), (3,)), "must be of one size, got sizes \\[1, 3\\]"),
        (((0, 1, 2, 3), ()), "must be of one size, got sizes \\[0, 4\\]"),
    ],
)
def test_groups_that_cannot_be(groups: Groups, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        replace(read_layer(tiny_model("llama"), 0), groups=groups)


def test_task_heads_are_no_matter() -> None:
    model = language_model("gpt2")
    assert torch.equal(read_layer(model, 1).q, read_layer(model.transformer, 1).q)
