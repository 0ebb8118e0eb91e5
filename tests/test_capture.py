"""What a capture delivers is what the model computed, and what the fast way delivers is the same."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface
from watching import (
    FLOAT32_SOFTMAX,
    GROUPED,
    NAN_WHEN_PADDED,
    ROW_BYTES,
    TWO_STACKS,
    VARIANTS,
    WATCHED,
    WHOLE,
    assembled,
    capture_file,
    eager_output,
    inputs_of,
    model_of,
    queries_of,
    real_part,
    variant,
    variant_inputs,
    watched,
)

from headlens.arch import attention_sites
from headlens.attention import repeat_kv
from headlens.capture import capture
from headlens.errors import CaptureError
from headlens.records import LayerAttention
from headlens.testing import slow_attentions

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
        real = torch.tensor([[True], [False], [False]]).expand(3, 12)  # the sentence without padding
    assert torch.equal(real_part(found, real), real_part(expected, real))


@pytest.mark.parametrize("padded", [True, False], ids=["padded", "unpadded"])
@pytest.mark.parametrize("name", VARIANTS)
def test_less_common_models_in_both_ways(name: str, padded: bool) -> None:
    model, inputs = variant(name), variant_inputs(name, padded=padded)
    expected = eager_output(model, inputs)
    exact, found = watched(model, inputs)
    fast, near = watched(model, inputs, way="fast", slice_bytes=5 * ROW_BYTES)
    known = expected.isfinite()  # modernbert-decoder in float64, as in NAN_WHEN_PADDED
    assert known[0].all()
    assert found.isfinite().all()
    rows = inputs.get("attention_mask", torch.ones(3, 12)).bool()
    real = rows[..., None] & known
    assert torch.equal(found[real], expected[real])
    torch.testing.assert_close(near[real], expected[real], rtol=0, atol=5e-6)  # llama, ... : softmax in float32
    assert [(a.stack, a.layer) for a in exact] == [(s.stack, s.layer) for s in attention_sites(model)]
    for attention in exact:
        whole = assembled(fast, attention)
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


# --------------------------------------------------------------------------------------------------------- the fast way


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
        ALL_ATTENTION_FUNCTIONS = AttentionInterface()
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
