"""Gates are scaled heads: in the output, in the gradient, in every family and both ways."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from watching import (
    FLOAT32_SOFTMAX,
    ROW_BYTES,
    TWO_STACKS,
    WATCHED,
    gates_for,
    inputs_of,
    is_untouched,
    model_of,
    queries_of,
    real_part,
    scale_heads,
    watched,
)

from headlens.capture import Way, capture
from headlens.errors import CaptureError
from headlens.records import Stack
from headlens.testing import tiny_model


@pytest.mark.parametrize("family", WATCHED)
def test_gates_are_scaled_rows_of_the_output_projection(family: str) -> None:
    model, inputs = model_of(family), inputs_of(family)
    levels = torch.tensor([0.0, 0.5, 1.0, 0.0], dtype=torch.float64)
    gates = gates_for(
        model, lambda layers, _: torch.stack([levels.roll(i * (family != "albert")) for i in range(layers)])
    )
    scaled = copy.deepcopy(model)
    scale_heads(scaled, gates)
    given = gates if len(gates) > 1 else next(iter(gates.values()))
    _, expected = watched(scaled, inputs)
    assert (expected - watched(model, inputs)[1]).abs().max() > 0.1
    real = queries_of(inputs, "decoder" if family in TWO_STACKS else "encoder")
    for way in ("exact", "fast"):
        _, found = watched(model, inputs, gates=given, way=way, slice_bytes=5 * ROW_BYTES)
        a, b = real_part(found, real), real_part(expected, real)
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5 if family in FLOAT32_SOFTMAX else 1e-10)


@pytest.mark.parametrize("way", ["exact", "fast"])
def test_a_gate_of_zero_is_exactly_a_zeroed_row(way: Way) -> None:
    model, inputs = model_of("gpt2"), inputs_of("gpt2")
    gates = torch.ones(3, 4, dtype=torch.float64)
    gates[0, 1] = gates[2, 3] = 0
    scaled = copy.deepcopy(model)
    scale_heads(scaled, {"decoder": gates})
    assert torch.equal(watched(model, inputs, gates=gates, way=way)[1], watched(scaled, inputs, way=way)[1])


@pytest.mark.parametrize("way", ["exact", "fast"])
def test_gates_may_differ_within_a_batch(way: Way) -> None:
    model, inputs = model_of("llama"), inputs_of("llama", padded=False)
    gates = torch.rand(3, 3, 4, dtype=torch.float64)
    _, found = watched(model, inputs, gates=gates, way=way, slice_bytes=5 * ROW_BYTES)
    for row in range(3):
        alone = {name: values[row : row + 1] for name, values in inputs.items()}
        _, expected = watched(model, alone, gates=gates[row], way=way)
        torch.testing.assert_close(found[row : row + 1], expected, rtol=0, atol=1e-6)
    with pytest.raises(CaptureError, match=r"batch of 3.*batch of 1"):
        watched(model, alone, gates=gates, way=way)


@pytest.mark.parametrize("way", ["exact", "fast"])
def test_what_is_observed_is_the_context_before_its_gate(way: Way) -> None:
    model, inputs = model_of("bert"), inputs_of("bert")
    (first, *_), _ = watched(model, inputs, way=way)
    (gated, *_), _ = watched(model, inputs, way=way, gates=torch.zeros(3, 4))
    assert torch.equal(first.context, gated.context)


@pytest.mark.parametrize("way", ["exact", "fast"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "bart"])  # all in float64; T5 has norms in float32
def test_gradients_of_gates_are_central_differences(family: str, way: Way) -> None:
    model, inputs = model_of(family), inputs_of(family)
    gates = gates_for(model, lambda layers, heads: torch.rand(layers, heads, dtype=torch.float64) + 0.5)

    def loss(values: Mapping[Stack, Tensor]) -> Tensor:
        with capture(model, gates=dict(values), way=way, slice_bytes=5 * ROW_BYTES):
            output = model(**inputs)[0]
        return output[inputs.get("decoder_attention_mask", inputs["attention_mask"]).bool()].sin().sum()

    leaves = {stack: values.clone().requires_grad_() for stack, values in gates.items()}
    found = dict(zip(leaves, torch.autograd.grad(loss(leaves), list(leaves.values())), strict=True))
    step = 1e-5
    for stack, layer, head in [(stack, 1, head) for stack in gates for head in (0, 3)]:
        ends = []
        for sign in (1, -1):
            moved = {name: values.clone() for name, values in gates.items()}
            moved[stack][layer, head] += sign * step
            with torch.no_grad():
                ends.append(loss(moved))
        slope = (ends[0] - ends[1]) / (2 * step)
        torch.testing.assert_close(found[stack][layer, head], slope, rtol=1e-6, atol=1e-6)  # step^2 times curvature


def test_gradients_of_weights_are_those_of_the_model_itself() -> None:
    inputs = inputs_of("llama")
    grads = []
    for way in (None, "exact", "fast"):
        model = copy.deepcopy(model_of("llama"))
        with capture(model, way=way, slice_bytes=5 * ROW_BYTES) if way else torch.enable_grad():
            model(**inputs)[0][inputs["attention_mask"].bool()].sin().sum().backward()
        grads.append(model.layers[0].self_attn.k_proj.weight.grad)
    scale = grads[0].abs().max()
    for found in grads[1:]:
        torch.testing.assert_close(found / scale, grads[0] / scale, rtol=0, atol=1e-5)  # softmax in float32


@pytest.mark.parametrize("way", ["exact", "fast"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_gates_of_another_precision_than_the_model(dtype: torch.dtype, way: Way) -> None:
    model = tiny_model("gpt2", dtype=dtype)
    _, plain = watched(model, inputs_of("gpt2"), way=way)
    _, found = watched(model, inputs_of("gpt2"), way=way, gates=torch.ones(3, 4, dtype=torch.float64))
    assert found.dtype == dtype
    assert torch.equal(found, plain)


@pytest.mark.parametrize(
    ("family", "gates", "message"),
    [
        ("bert", torch.ones(4), r"\[layer, head\].*3 layers and 4 heads, got \(4,\)"),
        ("bert", torch.ones(2, 4), r"got \(2, 4\)"),
        ("bert", torch.ones(3, 5), r"got \(3, 5\)"),
        ("llama", torch.ones(3, 2), r"3 layers and 4 heads"),
        ("bert", torch.ones(1, 1, 3, 4), r"got \(1, 1, 3, 4\)"),
        ("bert", {"decoder": torch.ones(3, 4)}, r"stack 'decoder'; the model has \['encoder'\]"),
        ("t5", torch.ones(3, 4), r"\['cross', 'decoder', 'encoder'\]: pass gates as a dict"),
        ("t5", {"cross": torch.ones(3, 3)}, r"3 layers and 4 heads"),
    ],
)
def test_gates_of_the_wrong_shape_are_refused(family: str, gates: Any, message: str) -> None:
    model = model_of(family)
    with pytest.raises(CaptureError, match=message), capture(model, gates=gates):
        pass
    assert is_untouched(model)


def test_complex_gates_are_refused() -> None:
    gates = torch.ones(3, 4, dtype=torch.complex64)
    with pytest.raises(CaptureError, match="tensor of real numbers"), capture(tiny_model("bert"), gates=gates):
        pass
