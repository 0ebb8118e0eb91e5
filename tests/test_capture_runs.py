"""Captures of all kinds of runs: padding, caches, precisions, headlens's own layers, compiled models."""

from __future__ import annotations

import copy
import inspect
import subprocess
import sys
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention
from watching import (
    IDS,
    ROW_BYTES,
    SIZE,
    TWO_STACKS,
    WATCHED,
    drawn,
    eager_output,
    generating,
    inputs_of,
    model_of,
    replaced,
    scale_heads,
    watched,
)

from headlens.attention import MultiHeadAttention
from headlens.capture import Way, capture
from headlens.errors import CaptureError, UnsupportedModel
from headlens.records import LayerAttention, Stack
from headlens.testing import LENGTHS, padded_inputs, tiny_model

# ------------------------------------------------------------------------------------------------- padding, positions

PADDED_LEFT = [family for family in WATCHED if family not in ("vit", "bart")]


@pytest.mark.parametrize("family", [*PADDED_LEFT, "roberta_prelayernorm", "with a head"])
def test_left_padding_gives_what_right_padding_gives(family: str) -> None:
    if family == "roberta_prelayernorm":  # finds its positions in the ids, and is in no list of ours
        model: Any = drawn(hf.RobertaPreLayerNormModel(hf.RobertaPreLayerNormConfig(**SIZE, **IDS)))
    else:
        model = generating("gpt2") if family == "with a head" else model_of(family)
    right, left = padded_inputs(), padded_inputs(side="left")
    if family in TWO_STACKS:
        right, left = (x | {f"decoder_{name}": values for name, values in x.items()} for x in (right, left))
    (a, output), (b, found) = watched(model, right), watched(model, left)
    for one, other in zip(a, b, strict=True):
        real, moved = right["attention_mask"].bool(), left["attention_mask"].bool()
        torch.testing.assert_close(
            other.context.transpose(1, 2)[moved], one.context.transpose(1, 2)[real], rtol=0, atol=5e-6
        )  # rotary angles and some softmaxes are in float32
    torch.testing.assert_close(found[moved], output[real], rtol=0, atol=5e-5)


def test_left_padding_with_a_cache_and_no_positions() -> None:
    model, inputs = model_of("gpt2"), padded_inputs(side="left")
    _, full = watched(model, inputs)
    starts: list[int] = []
    with torch.no_grad(), capture(model, lambda a: starts.append(a.query_start)):
        start = model(input_ids=inputs["input_ids"][:, :9], attention_mask=inputs["attention_mask"][:, :9])
        name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        rest = model(input_ids=inputs["input_ids"][:, 9:], attention_mask=inputs["attention_mask"], **{name: start[1]})[
            0
        ]
    torch.testing.assert_close(rest, full[:, 9:], rtol=0, atol=1e-10)
    assert starts == [0, 0, 0, 9, 9, 9]


def test_left_padding_is_refused_where_positions_cannot_be_given() -> None:
    inputs = padded_inputs(side="left")
    with pytest.raises(CaptureError, match=r"BartModel counts positions.*pad its batches on the right"):
        watched(model_of("bart"), inputs)
    right = padded_inputs()
    decoder = {f"decoder_{name}": values for name, values in inputs.items()}
    with pytest.raises(CaptureError, match=r"BartDecoder counts positions.*on the right"):
        watched(model_of("bart"), right | decoder)


@pytest.mark.parametrize("family", ["bart", "gpt2", "bert"])
def test_a_row_of_nothing_but_padding_harms_no_other(family: str) -> None:
    model, inputs = model_of(family), padded_inputs()
    emptied = inputs | {"attention_mask": inputs["attention_mask"] * torch.tensor([[1], [1], [0]])}
    (a, _), (b, _) = watched(model, inputs), watched(model, emptied)
    for one, other in zip(a, b, strict=True):
        assert other.probs.isfinite().all()
        if one.stack != "cross":
            assert torch.equal(one.probs[:2], other.probs[:2])


def test_positions_that_are_given_are_used() -> None:
    model, inputs = model_of("gpt2"), padded_inputs(side="left")
    inputs["position_ids"] = torch.arange(20, 32).expand(3, -1)
    real = inputs["attention_mask"].bool()
    assert torch.equal(watched(model, inputs)[1][real], eager_output(model, inputs)[real])


@pytest.mark.parametrize("way", ["exact", "fast"])
def test_packed_sequences_do_not_see_each_other(way: Way) -> None:
    model = model_of("llama")
    ids = padded_inputs()["input_ids"][:1]
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]])
    inputs: dict[str, Any] = {"input_ids": ids, "position_ids": positions, "use_cache": False}
    seen, found = watched(model, inputs, way=way, slice_bytes=5 * ROW_BYTES)
    assert all((s.probs[:, :, max(0, 5 - s.query_start) :, :5] == 0).all() for s in seen)
    torch.testing.assert_close(found, eager_output(model, inputs), rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["bert", "gpt2", "mistral"])
def test_masks_of_four_axes_are_taken_as_they_are(family: str) -> None:
    model, inputs = model_of(family), padded_inputs()
    real = inputs["attention_mask"].bool()
    seen = real[:, None, None] & torch.ones(12, 12, dtype=torch.bool).tril(3).triu(-6) & real[:, None, :, None]
    added = torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, torch.finfo(torch.float32).min)
    expected = eager_output(model, {"input_ids": inputs["input_ids"], "attention_mask": added})[real]
    for mask in (added, seen):  # eager attention would add 0 and 1 of the latter
        for way in ("exact", "fast"):
            given = {"input_ids": inputs["input_ids"], "attention_mask": mask}
            _, found = watched(model, given, way=way, slice_bytes=5 * ROW_BYTES)
            torch.testing.assert_close(found[real], expected, rtol=0, atol=1e-5 if family == "mistral" else 1e-10)


@pytest.mark.parametrize("family", [family for family in WATCHED if family != "vit"])
def test_one_sentence_of_one_token(family: str) -> None:
    model, inputs = model_of(family), {name: values[:1, :1] for name, values in inputs_of(family).items()}
    expected = eager_output(model, inputs)
    for way in ("exact", "fast"):
        seen, found = watched(model, inputs, way=way)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
        assert all(torch.equal(a.probs, torch.ones(1, 4, 1, 1, dtype=a.probs.dtype)) for a in seen)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("way", ["exact", "fast"])
def test_every_grad_mode(mode: Any, way: Way) -> None:
    model, inputs = model_of("llama"), inputs_of("llama")
    seen: list[LayerAttention] = []
    expected = watched(model, inputs, way=way)[1]
    with mode(), capture(model, seen.append, way=way, gates=torch.ones(3, 4)):
        assert torch.equal(model(**inputs)[0].detach(), expected)
    assert seen[0].probs.requires_grad == (mode is torch.enable_grad)


# -------------------------------------------------------------------------------------------------------- generate()


@pytest.mark.parametrize(("kind", "way"), [("dynamic", "exact"), ("dynamic", "fast"), ("static", "exact")])
@pytest.mark.parametrize("family", ["gpt2", "llama", "t5", "bart"])
def test_generation_gives_the_same_tokens_and_the_rows_of_one_full_pass(family: str, kind: str, way: Way) -> None:
    model = generating(family)
    ids = padded_inputs()["input_ids"][:1]
    options: dict[str, Any] = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    if kind == "static":
        options |= {"cache_implementation": "static", "disable_compile": True}
    plain = model.generate(ids, **options)
    seen: list[LayerAttention] = []
    with capture(model, seen.append, way=way):
        found = model.generate(ids, **options)
    assert torch.equal(found, plain)
    full_inputs = {"input_ids": found[:, :-1]}
    if family in TWO_STACKS:
        full_inputs = {"input_ids": ids, "decoder_input_ids": found[:, :-1]}
    for whole in watched(model, full_inputs)[0]:
        steps = [s for s in seen if (s.stack, s.layer) == (whole.stack, whole.layer)]
        if whole.stack == "cross":  # keys are the encoder's, and counted by themselves
            assert {s.query_start for s in steps} == {0}
            assert torch.cat([s.probs for s in steps], dim=2).sub(whole.probs).abs().max() < 1e-6
            continue
        starts = [s.query_start for s in steps]
        assert starts == [sum(s.probs.shape[2] for s in steps[:i]) for i in range(len(steps))]
        for step in steps:
            rows = slice(step.query_start, step.query_start + step.probs.shape[2])
            keys = min(step.probs.shape[-1], whole.probs.shape[-1])  # a static cache has room behind
            torch.testing.assert_close(step.probs[..., :keys], whole.probs[:, :, rows, :keys], rtol=0, atol=1e-5)
            torch.testing.assert_close(step.context, whole.context[:, :, rows], rtol=0, atol=1e-5)
            assert (step.probs[..., keys:] == 0).all()


def test_beam_search_gives_the_same_tokens() -> None:
    model = generating("gpt2")
    options = {"max_new_tokens": 3, "num_beams": 2, "do_sample": False}
    plain = model.generate(**padded_inputs(side="left"), **options)
    with capture(model, way="fast", slice_bytes=5 * ROW_BYTES):
        assert torch.equal(model.generate(**padded_inputs(side="left"), **options), plain)


# ----------------------------------------------------------------------------------------------------- derived classes


class OwnAttention(GPT2Attention):
    """Of a file without an eager attention function: its forward, and what that falls back on, are GPT-2's."""


class OwnRoberta(hf.RobertaModel):
    """Of a file that does not find positions in the ids: RoBERTa's does."""


def test_classes_derived_in_other_files() -> None:
    model, inputs = copy.deepcopy(model_of("gpt2")), inputs_of("gpt2")
    for block in model.h:
        block.attn.__class__ = OwnAttention
    assert torch.equal(watched(model, inputs)[1], watched(model_of("gpt2"), inputs)[1])

    derived, left = copy.deepcopy(model_of("roberta")), padded_inputs(side="left")
    derived.__class__ = OwnRoberta
    assert torch.equal(watched(derived, left)[1], watched(model_of("roberta"), left)[1])


def test_a_module_without_an_eager_function_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("transformers.models.gpt2.modeling_gpt2.eager_attention_forward")
    with pytest.raises(UnsupportedModel, match=r"decoder layer 0 \(h.0.attn\) has no eager attention function"):
        watched(model_of("gpt2"), inputs_of("gpt2"))


# ----------------------------------------------------------------------------------------------------- half precision


def masses(model: nn.Module, way: Way) -> Tensor:
    """[layer, kind, head]: mean attention to the previous and to the first token."""
    inputs = padded_inputs()
    real = inputs["attention_mask"].bool()
    found: list[Tensor] = []
    seen, _ = watched(model, inputs, way=way)
    for attention in seen:
        probs = attention.probs.float() * real[:, None, :, None]
        previous, first = probs.diagonal(-1, dim1=-2, dim2=-1).sum((0, 2)), probs[..., 0].sum((0, 2))
        found.append(torch.stack([previous / (sum(LENGTHS) - 3), first / sum(LENGTHS)]))
    return torch.stack(found)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 1e-2), (torch.float16, 1.5e-3)], ids=["bf16", "f16"])
@pytest.mark.parametrize("family", [family for family in WATCHED if family not in ("vit", *TWO_STACKS)])
def test_half_precision_scores_are_near_those_of_float32(family: str, dtype: torch.dtype, tolerance: float) -> None:
    model = tiny_model(family, dtype=dtype)
    # The same rounded weights in float32. bfloat16 rounds by up to 0.4% at every step, float16 by an eighth of that; a
    # mass is a mean of 20 probabilities of at most 1, after three layers of such steps.
    expected = masses(copy.deepcopy(model).float(), "exact")
    for way in ("exact", "fast"):
        torch.testing.assert_close(masses(model, way), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("way", ["exact", "fast"])
def test_autocast(way: Way) -> None:
    model, inputs = model_of("llama", torch.float32), inputs_of("llama")
    real = inputs["attention_mask"].bool()
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = watched(model, inputs, way=way)[1][real], eager_output(model, inputs)[real]
    if way == "exact":
        assert torch.equal(found, expected)
    assert (found - expected).norm() / expected.norm() < 0.1  # bfloat16 through three layers of peaked attention


# --------------------------------------------------------------------------------------------------- headlens's layers


class Reader(nn.Module):
    """A model of nobody's library: two layers of self-attention, the second also reads a memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first = MultiHeadAttention(16, 4, 2, is_causal=True)
        self.second = MultiHeadAttention(16, 4, is_causal=True)
        self.crossattention = MultiHeadAttention(16, 4, kdim=8, vdim=8)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        x = x + self.first(x, x, x)
        x = x + self.second(x, x, x)
        return x + self.crossattention(x, memory, memory)


@pytest.mark.parametrize("way", ["exact", "fast"])
def test_a_model_of_own_layers(way: Way) -> None:
    model = drawn(Reader())
    x, memory = torch.randn(2, 5, 16, dtype=torch.float64), torch.randn(2, 7, 8, dtype=torch.float64)
    seen: list[LayerAttention] = []
    with torch.no_grad():
        trace = model.first.explain(x, x, x)
        with capture(model, seen.append, way=way):
            found = model(x, memory)
        assert torch.equal(found, model(x, memory))
    shapes = [(a.stack, a.layer, a.is_causal, a.k.shape[1], a.query_start) for a in seen]
    assert shapes == [("decoder", 0, True, 2, 0), ("decoder", 1, True, 4, 0), ("cross", 0, False, 4, 0)]
    assert all(
        torch.equal(getattr(seen[0], name), getattr(trace, name)) for name in ("q", "k", "v", "probs", "context")
    )

    gates: dict[Stack, Tensor] = {
        "decoder": torch.tensor([[1.0, 0, 1, 1], [0, 1, 1, 1]]),
        "cross": torch.tensor([[1.0, 1, 1, 0]]),
    }
    scaled = copy.deepcopy(model)
    scale_heads(scaled, gates)
    with torch.no_grad(), capture(model, gates=gates, way=way):
        torch.testing.assert_close(model(x, memory), scaled(x, memory), rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_a_model_of_replaced_layers_reports_what_the_original_does(family: str) -> None:
    original, model, inputs = model_of(family), replaced(family), inputs_of(family)
    (expected, output), (seen, found) = watched(original, inputs), watched(model, inputs)
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(found[real], output[real], rtol=0, atol=1e-6)
    assert [(a.stack, a.layer, a.is_causal) for a in seen] == [(a.stack, a.layer, a.is_causal) for a in expected]
    for one, other in zip(expected, seen, strict=True):
        for name in ("q", "k", "v", "probs", "context"):
            rows = real if name not in ("k", "v") else torch.ones_like(real)
            a, b = (getattr(x, name).transpose(1, 2) for x in (one, other))
            if name in ("k", "v"):  # keys of padding come from rows of padding, which nobody reads
                a, b, rows = a * real[..., None, None], b * real[..., None, None], torch.ones_like(real)
            torch.testing.assert_close(b[rows], a[rows], rtol=0, atol=1e-6)
    gates = torch.rand(3, 4, dtype=torch.float64)
    a, b = (watched(m, inputs, gates=gates)[1] for m in (original, model))
    torch.testing.assert_close(b[real], a[real], rtol=0, atol=1e-6)


# --------------------------------------------------------------------------------------------------------- compilation


COMPILED = """
import torch
from headlens.capture import capture
from headlens.testing import padded_inputs, tiny_model

inputs = padded_inputs()
real = inputs["attention_mask"].bool()
compiled = torch.compile(tiny_model("gpt2", layers=1), backend="eager")
with torch.no_grad():
    plain = compiled(**inputs)[0][real]
    for _ in range(2):  # the second capture must not hand its layers to the first one's observer
        seen = []
        with capture(compiled, seen.append):
            found = compiled(**inputs)[0][real]
        assert [a.layer for a in seen] == [0]
        torch.testing.assert_close(found, plain, rtol=0, atol=1e-10)
    assert torch.equal(compiled(**inputs)[0][real], plain)
"""


@pytest.mark.slow
def test_compiled_models() -> None:
    # in a process without the run-time checks of shapes, which torch.compile cannot trace
    run = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
