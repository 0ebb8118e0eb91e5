"""What a capture delivers is what the model computed, and a capture changes nothing else."""

from __future__ import annotations

import copy
import inspect
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from headlens.arch import attention_sites, is_transposed, output_projection
from headlens.attention import MultiHeadAttention, repeat_kv
from headlens.capture import capture
from headlens.errors import CaptureError, UnsupportedModel
from headlens.records import LayerAttention
from headlens.replace import replace_attention
from headlens.testing import FAMILIES, LENGTHS, padded_inputs, slow_attentions, tiny_model

capture_file = sys.modules["headlens.capture"]  # as a name of the package it is the function
REFUSED = ("deberta_v2", "gpt_neo", "falcon", "bloom")
WATCHED = tuple(family for family in FAMILIES if family not in REFUSED)
CAUSAL = ("gpt2", "gpt_neox", "opt", "llama", "mistral", "qwen2", "qwen3", "gemma2")
TWO_STACKS = ("t5", "bart")
GROUPED = ("llama", "mistral", "qwen2", "qwen3", "gemma2")
# Their files take the softmax in float32 in float64, too: no more exact than that, and rows of padding are NaN in
# transformers' own eager attention (its lowest float64 is -inf in float32) where they are the queries of a window.
FLOAT32_SOFTMAX = ("modernbert", "gpt_neox", "opt", "vit", *GROUPED)
NAN_WHEN_PADDED = ("modernbert", "mistral", "gemma2")
WHOLE = ("gemma2", "t5")  # softcap, position_bias: nothing but the model's own function knows them
ROW_BYTES = 3 * 4 * 12 * 8  # of one query row of probabilities: batch, heads, keys, float64


@lru_cache
def model_of(family: str, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    """Shared between tests, so never to be changed."""
    return tiny_model(family, dtype=dtype)


def inputs_of(family: str, dtype: torch.dtype = torch.float64, *, padded: bool = True) -> dict[str, Tensor]:
    if family == "vit":
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(2)).to(dtype)}
    inputs = padded_inputs()
    if family in TWO_STACKS:  # other lengths in the decoder than in the encoder
        inputs |= {f"decoder_{name}": values.flip(0) for name, values in inputs.items()}
    if not padded:
        return {name: values % 40 + 5 for name, values in inputs.items() if name.endswith("ids")}
    return inputs


def queries_of(inputs: Mapping[str, Tensor], stack: str) -> Tensor | None:
    """The real tokens that a stack's rows stand for."""
    decoding = stack != "encoder" and "decoder_input_ids" in inputs
    mask = inputs.get("decoder_attention_mask" if decoding else "attention_mask")
    return None if mask is None else mask.bool()


def watched(model: nn.Module, inputs: Mapping[str, Tensor], **options: Any) -> tuple[list[LayerAttention], Tensor]:
    seen: list[LayerAttention] = []
    with torch.no_grad(), capture(model, seen.append, **options):
        output = model(**inputs)
    return seen, output[0]


@lru_cache
def eager_twin(model: PreTrainedModel) -> PreTrainedModel:
    twin = copy.deepcopy(model)
    twin.set_attn_implementation("eager")
    return twin


@torch.no_grad()
def eager_output(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Tensor:
    return eager_twin(model)(**inputs)[0]


def drawn(model: nn.Module, std: float = 0.3) -> Any:
    """Another model than those of tiny_model, with weights as wide, in float64."""
    random = torch.Generator().manual_seed(3)
    for weight in model.double().parameters():
        centre = float(weight.dim() == 1 and bool((weight == 1).all()))
        weight.data = centre + std * torch.randn(weight.shape, generator=random, dtype=weight.dtype)
    return model.eval()


def real_part(values: Tensor, real: Tensor | None) -> Tensor:
    return values if real is None else values[real]


SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
IDS = {"vocab_size": 99, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT2_SIZE = {"vocab_size": 99, "n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 40, **IDS}


def _memory(**more: Any) -> dict[str, Tensor]:
    states = torch.randn(3, 15, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    return {"encoder_hidden_states": states, **more}


def _gpt_oss() -> hf.PreTrainedModel:
    grouped = {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 5}
    rotary = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    return hf.GptOssModel(hf.GptOssConfig(**SIZE, **IDS, **grouped, **rotary, num_local_experts=2, num_experts_per_tok=1))


def _albert(**sizes: int) -> hf.PreTrainedModel:
    return hf.AlbertModel(hf.AlbertConfig(**{**SIZE, "num_hidden_layers": 4}, **IDS, embedding_size=16, **sizes))


# Less common models: what they bring beside the usual
VARIANTS: dict[str, Callable[[], PreTrainedModel]] = {
    "gpt2, scores scaled by layer": lambda: hf.GPT2Model(
        hf.GPT2Config(**GPT2_SIZE, scale_attn_by_inverse_layer_idx=True)
    ),
    "gpt2, scores in float32": lambda: hf.GPT2Model(hf.GPT2Config(**GPT2_SIZE, reorder_and_upcast_attn=True)),
    "gpt2 that reads an encoder": lambda: hf.GPT2Model(hf.GPT2Config(**GPT2_SIZE, add_cross_attention=True)),
    "bert that decodes": lambda: hf.BertModel(hf.BertConfig(**SIZE, **IDS, is_decoder=True)),
    "bert that reads an encoder": lambda: hf.BertModel(
        hf.BertConfig(**SIZE, **IDS, is_decoder=True, add_cross_attention=True)
    ),
    "gpt_bigcode, multi-query": lambda: hf.GPTBigCodeModel(hf.GPTBigCodeConfig(**GPT2_SIZE, multi_query=True)),
    "gpt_oss, sinks": _gpt_oss,
    "albert of two groups": lambda: _albert(num_hidden_groups=2),
    "albert of two layers a group": lambda: _albert(num_hidden_groups=2, inner_group_num=2),
    "llama that looks ahead": lambda: hf.LlamaModel(hf.LlamaConfig(**SIZE, **IDS, is_causal=False)),
    # its modules do not say whether they are causal, and their mask is missing where nothing is padded
    "splinter": lambda: hf.SplinterModel(hf.SplinterConfig(**SIZE, **IDS, question_token_id=3)),
    # its eager function cannot do without a mask
    "modernbert-decoder": lambda: hf.ModernBertDecoderModel(
        hf.ModernBertDecoderConfig(**SIZE, **IDS, cls_token_id=1, sep_token_id=2, local_attention=10)
    ),
}


ONLY_FLOAT32 = ("gpt2, scores in float32", "gpt_oss, sinks")  # transformers refuses float64


@lru_cache
def variant(name: str) -> PreTrainedModel:
    model = drawn(VARIANTS[name]())
    return model.float() if name in ONLY_FLOAT32 else model


def variant_inputs(name: str, *, padded: bool = True) -> dict[str, Tensor]:
    inputs = inputs_of("bert", padded=padded)
    if "reads an encoder" not in name:
        return inputs
    mask = torch.arange(15) < torch.tensor([[15], [9], [2]])
    return inputs | (_memory(encoder_attention_mask=mask.long()) if padded else _memory())


# ------------------------------------------------------------------------------------------- the exact way is the model


@pytest.mark.parametrize("padded", [True, False], ids=["padded", "unpadded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("family", WATCHED)
def test_outputs_are_those_of_eager_attention_bit_for_bit(family: str, dtype: torch.dtype, padded: bool) -> None:
    model, inputs = model_of(family, dtype), inputs_of(family, dtype, padded=padded)
    _, found = watched(model, inputs)
    expected = eager_output(model, inputs)
    real = queries_of(inputs, "decoder" if family in TWO_STACKS else "encoder")
    if padded and dtype == torch.float64 and family in NAN_WHEN_PADDED:
        assert expected.isnan().any()
        assert found.isfinite().all()
        real = torch.tensor([[True], [False], [False]]).expand(real.shape)  # the sentence without padding
    assert torch.equal(real_part(found, real), real_part(expected, real))


@pytest.mark.parametrize("padded", [True, False], ids=["padded", "unpadded"])
@pytest.mark.parametrize("name", VARIANTS)
def test_less_common_models_in_both_ways(name: str, padded: bool) -> None:
    model, inputs = variant(name), variant_inputs(name, padded=padded)
    expected = eager_output(model, inputs)
    exact, found = watched(model, inputs)
    fast, near = watched(model, inputs, way="fast", slice_bytes=5 * ROW_BYTES)
    known = expected.isfinite()  # gpt_oss and modernbert-decoder: NaN_WHEN_PADDED
    assert known[0].all()
    assert found.isfinite().all()
    real = (queries_of(inputs, "encoder") if padded else torch.ones(3, 12, dtype=torch.bool))[..., None] & known
    assert torch.equal(found[real], expected[real])
    torch.testing.assert_close(near[real], expected[real], rtol=0, atol=5e-6)  # llama, ... : softmax in float32
    assert [(a.stack, a.layer) for a in exact] == [(s.stack, s.layer) for s in attention_sites(model)]
    for attention in exact:
        whole = assembled(fast, attention)
        rows = queries_of(inputs, "encoder") if padded else torch.ones(3, 12, dtype=torch.bool)
        for name_of in ("probs", "context"):
            a, b = (getattr(x, name_of).transpose(1, 2)[rows] for x in (attention, whole))
            torch.testing.assert_close(b, a, rtol=0, atol=5e-6)


def test_a_single_token_without_cache_in_a_family_that_needs_a_mask() -> None:
    model = variant("modernbert-decoder")
    inputs = {"input_ids": torch.tensor([[7]])}
    assert torch.equal(watched(model, inputs)[1], eager_output(model, inputs))


@pytest.mark.parametrize("family", WATCHED)
def test_probabilities_are_those_that_transformers_reports(family: str) -> None:
    model, inputs = model_of(family), inputs_of(family)
    slow = slow_attentions(model, inputs)
    seen, _ = watched(model, inputs)
    assert {stack: len(layers) for stack, layers in slow.items()} == {
        stack: sum(a.stack == stack for a in seen) for stack in slow
    }
    for stack, layers in slow.items():
        found = [a for a in seen if a.stack == stack]
        assert [a.layer for a in found] == list(range(len(layers)))
        queries, keys = queries_of(inputs, stack), queries_of(inputs, "encoder" if stack == "cross" else stack)
        tolerance = 1e-6 if family in FLOAT32_SOFTMAX else 1e-10
        for attention, patterns in zip(found, layers, strict=True):
            for row, expected in enumerate(patterns):
                probs = attention.probs[row] if queries is None else attention.probs[row][:, queries[row]]
                if keys is not None:
                    assert (probs[..., ~keys[row]] == 0).all()
                    probs = probs[..., keys[row]]
                torch.testing.assert_close(probs, expected, rtol=0, atol=tolerance)
                assert stack != "decoder" or (probs.triu(1) == 0).all()


@pytest.mark.parametrize("family", WATCHED)
def test_queries_keys_and_values_are_what_the_probabilities_and_the_context_came_from(family: str) -> None:
    model, inputs = model_of(family), inputs_of(family)
    seen, _ = watched(model, inputs)
    for attention in seen:
        kv = 2 if family in GROUPED else 4
        assert attention.k.shape[1] == attention.v.shape[1] == kv
        keys, values = (repeat_kv(x, 4 // kv) for x in (attention.k, attention.v))
        assert torch.equal(attention.probs @ values, attention.context)
        assert attention.is_causal == (attention.stack == "decoder")
        if family in WHOLE:
            continue
        scaling = attention.q.shape[-1] ** -0.5 if attention.scaling is None else attention.scaling
        scores = (attention.q @ keys.mT * scaling).masked_fill(attention.probs == 0, -torch.inf)
        queries = queries_of(inputs, attention.stack)
        a, b = (real_part(x.transpose(1, 2), queries) for x in (scores.softmax(-1), attention.probs))
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6 if family in FLOAT32_SOFTMAX else 1e-10)


def test_queries_and_keys_are_after_rotary_embedding() -> None:
    model, inputs = model_of("llama"), inputs_of("llama")
    projected: list[Tensor] = []
    hook = model.layers[0].self_attn.q_proj.register_forward_hook(lambda _m, _i, out: projected.append(out))
    try:
        (first, *_), _ = watched(model, inputs)
    finally:
        hook.remove()
    before = projected[0].unflatten(-1, (4, -1)).transpose(1, 2)
    assert torch.equal(first.q[:, :, 0], before[:, :, 0])  # position 0 is not turned
    assert (first.q[:, :, 1:] - before[:, :, 1:]).abs().amax() > 0.1
    torch.testing.assert_close(first.q.norm(dim=-1), before.norm(dim=-1), rtol=1e-6, atol=0)  # cos and sin are float32


def test_without_the_mask_function_these_tests_would_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(AttentionMaskInterface._global_mapping, capture_file.NAME, lambda *a, **k: None)
    model, inputs = model_of("bert"), inputs_of("bert")
    seen, _ = watched(model, inputs)
    assert (seen[0].probs[1, :, :, 7:] > 0).any()


# ---------------------------------------------------------------------------------------------------------- the fast way


def assembled(slices: list[LayerAttention], like: LayerAttention) -> LayerAttention:
    """The slices of one layer put together; keys that a causal slice does not see are 0."""
    parts = [s for s in slices if (s.stack, s.layer) == (like.stack, like.layer)]
    parts.sort(key=lambda s: s.query_start)  # they may come in any order
    starts = [s.query_start for s in parts]
    assert starts == [sum(s.probs.shape[2] for s in parts[:i]) for i in range(len(parts))]
    keys = like.probs.shape[-1]
    assert all(s.k.shape[2] == s.v.shape[2] == s.probs.shape[-1] for s in parts)
    probs = torch.cat([nn.functional.pad(s.probs, (0, keys - s.probs.shape[-1])) for s in parts], dim=2)
    context = torch.cat([s.context for s in parts], dim=2)
    q = torch.cat([s.q for s in parts], dim=2)
    return LayerAttention(like.layer, q, like.k, like.v, probs, context, 0, like.stack, parts[0].is_causal)


@pytest.mark.parametrize(("rows", "padded"), [(1, True), (5, True), (5, False)], ids=str)
@pytest.mark.parametrize("family", WATCHED)
def test_slices_put_together_are_the_exact_way(family: str, rows: int, padded: bool) -> None:
    model, inputs = model_of(family), inputs_of(family, padded=padded)
    exact, output = watched(model, inputs)
    limit = rows * ROW_BYTES
    fast, near = watched(model, inputs, way="fast", slice_bytes=limit)
    tolerance = 1e-6 if family in FLOAT32_SOFTMAX else 1e-10
    for attention in exact:
        parts = [s for s in fast if (s.stack, s.layer) == (attention.stack, attention.layer)]
        assert (len(parts) == 1) == (family in WHOLE)
        assert all(s.probs.numel() * 8 <= limit for s in parts) or family in WHOLE or (family == "vit" and rows == 1)
        whole, queries = assembled(fast, attention), queries_of(inputs, attention.stack)
        assert whole.is_causal == attention.is_causal
        for name in ("probs", "context"):
            a, b = (real_part(getattr(x, name).transpose(1, 2), queries) for x in (attention, whole))
            torch.testing.assert_close(b, a, rtol=0, atol=10 * tolerance if name == "context" else tolerance)
    real = queries_of(inputs, exact[-1].stack)
    torch.testing.assert_close(real_part(near, real), real_part(output, real), rtol=0, atol=10 * tolerance)


@pytest.mark.parametrize("family", WATCHED)
def test_fast_and_exact_probabilities_agree_in_float32(family: str) -> None:
    model, inputs = model_of(family, torch.float32), inputs_of(family, torch.float32)
    exact, _ = watched(model, inputs)
    fast, _ = watched(model, inputs, way="fast", slice_bytes=5 * ROW_BYTES)
    queries = queries_of(inputs, exact[0].stack)
    a, b = (real_part(x.probs.transpose(1, 2), queries) for x in (exact[0], assembled(fast, exact[0])))
    # the first layer alone: later ones start from inputs that differ by rounding already
    torch.testing.assert_close(b, a, rtol=0, atol=1e-6)


def eager_attention_forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Tensor]:
    """Of the model below, as every model file of transformers has one."""
    probs = (query @ key.mT * kwargs["scaling"] + kwargs.get("bend", 0.0)).softmax(-1)
    return (probs @ value).transpose(1, 2), probs


class Bending(nn.Module):
    """Attention with a keyword that nobody has heard of."""

    def __init__(self, bend: Tensor | None) -> None:
        super().__init__()
        self.config, self.bend = hf.PreTrainedConfig(attn_implementation="eager"), bend

    def forward(self, x: Tensor) -> Tensor:
        ALL_ATTENTION_FUNCTIONS = AttentionInterface()  # noqa: N806
        function = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        more = {} if self.bend is None else {"bend": self.bend}
        return function(self, x, x, x, None, scaling=0.5, dropout=0.0, **more)[0]


@pytest.mark.parametrize("bend", [None, torch.tensor([0.0, 1.0, 4.0])], ids=["without", "with"])
def test_an_unknown_keyword_is_never_swallowed(bend: Tensor | None) -> None:
    model, x = Bending(bend).eval(), torch.randn(2, 4, 3, 5)
    seen: list[LayerAttention] = []
    with capture(model, seen.append, way="fast", slice_bytes=1):
        found = model(x)
    assert len(seen) == (3 if bend is None else 1)
    torch.testing.assert_close(found, model(x), rtol=0, atol=1e-6)


def test_both_ways_at_once_for_the_self_check() -> None:
    seen, output = watched(model_of("gpt2"), inputs_of("gpt2"), way="both", slice_bytes=5 * ROW_BYTES)
    exact, same = watched(model_of("gpt2"), inputs_of("gpt2"))
    assert torch.equal(output, same)
    for attention in exact:
        *slices, whole = (a for a in seen if a.layer == attention.layer)
        assert torch.equal(whole.probs, attention.probs)
        assert len(slices) == 3
        torch.testing.assert_close(assembled(slices, whole).context, whole.context, rtol=0, atol=1e-10)


def test_output_attentions_come_in_the_exact_way_and_are_refused_in_the_fast_one() -> None:
    model, inputs = copy.deepcopy(model_of("gpt2")), inputs_of("gpt2")
    seen: list[LayerAttention] = []
    with torch.no_grad(), capture(model, seen.append):
        output = model(**inputs, output_attentions=True)
    assert all(torch.equal(a, b.probs) for a, b in zip(output.attentions, seen, strict=True))
    with capture(model, way="fast"), pytest.raises(CaptureError, match='way="exact"'):
        model(**inputs, output_attentions=True)


# --------------------------------------------------------------------------------------------------------------- gates


def gates_for(model: nn.Module, values: Callable[[int, int], Tensor]) -> dict[str, Tensor]:
    sites = attention_sites(model)
    return {stack: values(sum(s.stack == stack for s in sites), 4) for stack in sorted({s.stack for s in sites})}


@torch.no_grad()
def scale_heads(model: nn.Module, gates: Mapping[str, Tensor]) -> None:
    """The same by hand: the rows (or columns) of W_O that a head's output goes through."""
    done = set()
    for site in attention_sites(model):
        projection = output_projection(model, site)
        if id(projection) in done:
            continue
        done.add(id(projection))
        weight = projection.weight if is_transposed(projection) else projection.weight.T
        for head, part in enumerate(weight.chunk(4)):
            part.mul_(gates[site.stack][site.layer, head])


@pytest.mark.parametrize("family", WATCHED)
def test_gates_are_scaled_rows_of_the_output_projection(family: str) -> None:
    model, inputs = model_of(family), inputs_of(family)
    levels = torch.tensor([0.0, 0.5, 1.0, 0.0], dtype=torch.float64)
    gates = gates_for(model, lambda layers, _: torch.stack([levels.roll(i * (family != "albert")) for i in range(layers)]))
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
def test_a_gate_of_zero_is_exactly_a_zeroed_row(way: str) -> None:
    model, inputs = model_of("gpt2"), inputs_of("gpt2")
    gates = torch.ones(3, 4, dtype=torch.float64)
    gates[0, 1] = gates[2, 3] = 0
    scaled = copy.deepcopy(model)
    scale_heads(scaled, {"decoder": gates})
    assert torch.equal(watched(model, inputs, gates=gates, way=way)[1], watched(scaled, inputs, way=way)[1])


@pytest.mark.parametrize("way", ["exact", "fast"])
def test_gates_may_differ_within_a_batch(way: str) -> None:
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
def test_what_is_observed_is_the_context_before_its_gate(way: str) -> None:
    model, inputs = model_of("bert"), inputs_of("bert")
    (first, *_), _ = watched(model, inputs, way=way)
    (gated, *_), _ = watched(model, inputs, way=way, gates=torch.zeros(3, 4))
    assert torch.equal(first.context, gated.context)


@pytest.mark.parametrize("way", ["exact", "fast"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "bart"])  # all in float64; T5 has norms in float32
def test_gradients_of_gates_are_central_differences(family: str, way: str) -> None:
    model, inputs = model_of(family), inputs_of(family)
    gates = gates_for(model, lambda layers, heads: torch.rand(layers, heads, dtype=torch.float64) + 0.5)

    def loss(values: Mapping[str, Tensor]) -> Tensor:
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
def test_gates_of_another_precision_than_the_model(dtype: torch.dtype, way: str) -> None:
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


# -------------------------------------------------------------------------------------------------------- generate()


def generating(family: str) -> PreTrainedModel:
    auto = hf.AutoModelForSeq2SeqLM if family in TWO_STACKS else hf.AutoModelForCausalLM
    return drawn(auto.from_config(copy.deepcopy(model_of(family).config)))


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "t5", "bart"])
def test_generation_gives_the_same_tokens_and_the_rows_of_one_full_pass(family: str, kind: str) -> None:
    model = generating(family)
    ids = padded_inputs()["input_ids"][:1]
    options: dict[str, Any] = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    if kind == "static":
        options |= {"cache_implementation": "static", "disable_compile": True}
    plain = model.generate(ids, **options)
    seen: list[LayerAttention] = []
    with capture(model, seen.append):
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
            torch.testing.assert_close(step.probs[..., :keys], whole.probs[:, :, rows, :keys], rtol=0, atol=1e-6)
            torch.testing.assert_close(step.context, whole.context[:, :, rows], rtol=0, atol=1e-5)
            assert (step.probs[..., keys:] == 0).all()


def test_beam_search_gives_the_same_tokens() -> None:
    model = generating("gpt2")
    options = {"max_new_tokens": 3, "num_beams": 2, "do_sample": False}
    plain = model.generate(**padded_inputs(side="left"), **options)
    with capture(model, way="fast", slice_bytes=5 * ROW_BYTES):
        assert torch.equal(model.generate(**padded_inputs(side="left"), **options), plain)


# ----------------------------------------------------------------------------------------------- refused, and put back


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("deberta_v2", "DebertaV2Model"),
        ("gpt_neo", "GPTNeoModel"),
        ("falcon", "FalconModel"),
        ("bloom", "BloomModel"),
    ],
)
def test_families_off_the_interface_are_refused_by_name_and_reason(family: str, name: str) -> None:
    with (
        pytest.raises(UnsupportedModel, match=rf"{name}.*attention in code of its own instead of transformers' attention"),
        capture(tiny_model(family, layers=1)),
    ):
        pass


def is_untouched(model: nn.Module) -> bool:
    """No hook is left, no tap, and no config is on headlens's attention."""
    hooks = any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
    taps = any(m in capture_file._TAPS or getattr(m, "tap", None) for m in model.modules())
    configs = [m.config for m in model.modules() if hasattr(m, "config")]
    return not hooks and not taps and all(c._attn_implementation != capture_file.NAME for c in configs)


class Stumble(Exception):
    pass


def stumble(_: LayerAttention) -> None:
    raise Stumble


def leave_normally(model: nn.Module, inputs: Mapping[str, Tensor]) -> None:
    watched(model, inputs)


def fail_in_observe(model: nn.Module, inputs: Mapping[str, Tensor]) -> None:
    with pytest.raises(Stumble), capture(model, stumble):
        model(**inputs)


def fail_in_the_model(model: nn.Module, inputs: Mapping[str, Tensor]) -> None:
    with pytest.raises(IndexError), capture(model):
        model(**(dict(inputs) | {"input_ids": torch.full((1, 3), 100000), "attention_mask": torch.ones(1, 3)}))


def fail_at_entry(model: nn.Module, inputs: Mapping[str, Tensor]) -> None:
    with pytest.raises(CaptureError), capture(model, gates={"cross": torch.ones(1, 1)}):
        pass


@pytest.mark.parametrize("ending", [leave_normally, fail_in_observe, fail_in_the_model, fail_at_entry])
@pytest.mark.parametrize("family", ["bert", "albert", "t5", "replaced"])
def test_everything_is_put_back(family: str, ending: Callable[[nn.Module, Mapping[str, Tensor]], None]) -> None:
    model = replaced("gpt2") if family == "replaced" else copy.deepcopy(model_of(family))
    inputs, weights = inputs_of(family), model.state_dict().keys()
    with torch.no_grad():
        before = model(**inputs)[0]
        ending(model, inputs)
        assert is_untouched(model)
        assert torch.equal(model(**inputs)[0], before)
    assert model.state_dict().keys() == weights
    assert capture_file._SWITCHED == {}


@pytest.mark.parametrize("own", ["eager", "sdpa", "flex_attention", "somebody_elses"])
def test_the_name_of_the_attention_implementation_is_put_back(own: str) -> None:
    AttentionInterface.register("somebody_elses", lambda *a, **k: (_ for _ in ()).throw(Stumble()))
    model = copy.deepcopy(model_of("t5"))
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation_internal = own
    try:
        assert len(watched(model, inputs_of("t5"))[0]) == 9
        assert {m.config._attn_implementation for m in model.modules() if hasattr(m, "config")} == {own}
    finally:
        AttentionInterface._global_mapping.pop("somebody_elses")


@contextmanager
def two_models_of_one_config() -> Iterator[tuple[PreTrainedModel, PreTrainedModel]]:
    config = copy.deepcopy(model_of("gpt2").config)
    first, second = (drawn(hf.GPT2Model(config), std) for std in (0.3, 0.25))
    assert first.config is second.config
    yield first, second
    assert is_untouched(first)
    assert is_untouched(second)
    assert config._attn_implementation == "sdpa"
    assert capture_file._SWITCHED == {}


def test_another_model_of_the_same_config_computes_what_it_did_and_is_not_reported() -> None:
    inputs = inputs_of("gpt2")
    with two_models_of_one_config() as (model, other), torch.no_grad():
        before, seen = other(**inputs)[0], []
        with capture(model, seen.append, gates=torch.zeros(3, 4)):
            during = other(**inputs)[0]
            assert seen == []
            model(**inputs)
        real = inputs["attention_mask"].bool()
        assert len(seen) == 3
        torch.testing.assert_close(during[real], before[real], rtol=0, atol=1e-10)
        assert torch.equal(other(**inputs)[0], before)


@pytest.mark.parametrize("first_out", [0, 1])
def test_captures_of_two_models_of_one_config_end_in_any_order(first_out: int) -> None:
    inputs, seen = inputs_of("gpt2"), ([], [])
    with two_models_of_one_config() as models, torch.no_grad():
        alone = [watched(model, inputs)[0] for model in models]
        captures = [capture(model, found.append) for model, found in zip(models, seen, strict=True)]
        for running in captures:
            running.__enter__()
        for model in models:
            model(**inputs)
        captures[first_out].__exit__(None, None, None)
        for model in models:
            model(**inputs)
        captures[1 - first_out].__exit__(None, None, None)
        for place in (0, 1):
            times = 1 if place == first_out else 2
            assert [a.layer for a in seen[place]] == [0, 1, 2] * times
            assert all(torch.equal(a.probs, b.probs) for a, b in zip(seen[place], alone[place] * times, strict=True))


def test_two_threads_capture_two_models_at_once() -> None:
    inputs, seen = inputs_of("gpt2"), ([], [])
    meet = threading.Barrier(2, timeout=20)
    with two_models_of_one_config() as models:
        alone = [watched(model, inputs)[0] for model in models]

        def run(place: int) -> None:
            def observe(attention: LayerAttention) -> None:
                meet.wait()  # each layer of the one waits for the same layer of the other
                seen[place].append(attention)

            with torch.no_grad(), capture(models[place], observe):
                models[place](**inputs)

        threads = [threading.Thread(target=run, args=(place,)) for place in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        for place in (0, 1):
            assert [a.layer for a in seen[place]] == [0, 1, 2]
            assert all(torch.equal(a.probs, b.probs) for a, b in zip(seen[place], alone[place], strict=True))


def test_the_users_hooks_stay_and_fire() -> None:
    model, fired = copy.deepcopy(model_of("bert")), []
    layer = model.encoder.layer[0].attention.self
    model.register_forward_pre_hook(lambda m, args, kwargs: fired.append("model"), with_kwargs=True)
    layer.register_forward_pre_hook(lambda m, args: fired.append("before"))
    layer.register_forward_hook(lambda m, args, out: fired.append("after"))
    watched(model, inputs_of("bert"))
    assert fired == ["model", "before", "after"]
    model(**inputs_of("bert"))
    assert fired == ["model", "before", "after"] * 2


def test_a_capture_inside_a_capture_of_the_same_model_is_refused() -> None:
    model, seen = generating("gpt2"), []
    with torch.no_grad(), capture(model, seen.append):
        for part in (model, model.transformer, model.transformer.h[1]):
            with pytest.raises(CaptureError, match="captured already"), capture(part):
                pass
        model(**inputs_of("gpt2"))
        assert [a.layer for a in seen] == [0, 1, 2]
    assert is_untouched(model)


@pytest.mark.parametrize("family", ["gpt2", "replaced"])
def test_a_copy_made_during_a_capture_is_not_captured(family: str) -> None:
    model = replaced("gpt2") if family == "replaced" else copy.deepcopy(model_of("gpt2"))
    inputs, seen = inputs_of("gpt2"), []
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad(), capture(model, seen.append, gates=torch.zeros(3, 4)):
        assert model.state_dict().keys() == weights.keys()
        twin = copy.deepcopy(model)
        output = twin(**inputs)[0]
        assert seen == []
    with torch.no_grad():
        expected = model(**inputs)[0]
    real = inputs["attention_mask"].bool()
    for found in (output, twin(**inputs)[0]):
        torch.testing.assert_close(found[real], expected[real], rtol=0, atol=1e-10)
    assert seen == []
    assert all(torch.equal(value, weights[name]) for name, value in twin.state_dict().items())
    assert len(watched(twin, inputs)[0]) == 3


@pytest.mark.parametrize("way", ["exact", "fast"])
def test_a_capture_keeps_nothing(way: str) -> None:
    alive: list[weakref.ref[Tensor]] = []

    def observe(attention: LayerAttention) -> None:
        assert all(ref() is None for ref in alive[:-1])  # the slice before may go only when its name is taken
        alive.append(weakref.ref(attention.probs))

    with torch.no_grad(), capture(model_of("bert"), observe, way=way, slice_bytes=5 * ROW_BYTES):
        model_of("bert")(**inputs_of("bert"))
    assert len(alive) == (3 if way == "exact" else 9)
    assert all(ref() is None for ref in alive)


# ------------------------------------------------------------------------------------------------- train mode, padding


@pytest.mark.parametrize("kind", ["model", "part", "own layer"])
def test_train_mode_is_refused(kind: str) -> None:
    model = MultiHeadAttention(8, 2, dropout=0.5).eval() if kind == "own layer" else copy.deepcopy(model_of("bert"))
    changed = model.encoder.layer[1].attention.self if kind == "part" else model
    x = torch.randn(1, 3, 8)
    run = (lambda: model(x, x, x)) if kind == "own layer" else (lambda: model(**inputs_of("bert")))
    changed.train()
    with pytest.raises(CaptureError, match=r"train mode.*call model.eval\(\)"), capture(model):
        pass
    model.eval()
    with capture(model):
        changed.train()
        with pytest.raises(CaptureError, match="went into train mode"):
            run()
    assert is_untouched(model.eval())


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
    with torch.no_grad(), capture(model):
        start = model(input_ids=inputs["input_ids"][:, :9], attention_mask=inputs["attention_mask"][:, :9])
        name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        rest = model(input_ids=inputs["input_ids"][:, 9:], attention_mask=inputs["attention_mask"], **{name: start[1]})[0]
    torch.testing.assert_close(rest, full[:, 9:], rtol=0, atol=1e-10)


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
def test_packed_sequences_do_not_see_each_other(way: str) -> None:
    model = model_of("llama")
    ids = padded_inputs()["input_ids"][:1]
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]])
    inputs: dict[str, Any] = {"input_ids": ids, "position_ids": positions, "use_cache": False}
    seen, found = watched(model, inputs, way=way, slice_bytes=5 * ROW_BYTES)
    assert all((s.probs[:, :, max(0, 5 - s.query_start) :, :5] == 0).all() for s in seen)
    torch.testing.assert_close(found, eager_output(model, inputs), rtol=0, atol=1e-5)


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
def test_every_grad_mode(mode: Any, way: str) -> None:
    model, inputs, seen = model_of("llama"), inputs_of("llama"), []
    expected = watched(model, inputs, way=way)[1]
    with mode(), capture(model, seen.append, way=way, gates=torch.ones(3, 4)):
        assert torch.equal(model(**inputs)[0].detach(), expected)
    assert seen[0].probs.requires_grad == (mode is torch.enable_grad)


# ----------------------------------------------------------------------------------------------------- half precision


def masses(model: nn.Module, way: str) -> Tensor:
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
def test_autocast(way: str) -> None:
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
def test_a_model_of_own_layers(way: str) -> None:
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
    assert all(torch.equal(getattr(seen[0], name), getattr(trace, name)) for name in ("q", "k", "v", "probs", "context"))

    gates = {"decoder": torch.tensor([[1.0, 0, 1, 1], [0, 1, 1, 1]]), "cross": torch.tensor([[1.0, 1, 1, 0]])}
    scaled = copy.deepcopy(model)
    scale_heads(scaled, gates)
    with torch.no_grad(), capture(model, gates=gates, way=way):
        torch.testing.assert_close(model(x, memory), scaled(x, memory), rtol=0, atol=1e-10)


def replaced(family: str) -> PreTrainedModel:
    model = copy.deepcopy(model_of(family))
    replace_attention(model)
    return model


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
