"""MultiHeadAttention against hand-drawn cases, closed forms, a slow loop in NumPy, and torch's own layer."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from headlens.attention import (
    MultiHeadAttention,
    as_additive_mask,
    attention_probs,
    attention_scores,
    causal_mask,
    head_contributions,
    merge_heads,
    repeat_kv,
    rotate,
    split_heads,
    upcast_scores,
)
from headlens.errors import InvalidAttention

HEADS = [(1, 1), (6, 6), (6, 2), (6, 1)]  # one head, many, grouped, multi-query
LENGTHS = (7, 4, 2)


def layer(
    heads: int = 6, kv_heads: int | None = None, dtype: torch.dtype = torch.float64, **options
) -> MultiHeadAttention:
    """A layer of width 24 with weights of std 0.4."""
    mha = MultiHeadAttention(24, heads, kv_heads, **options).to(dtype).eval()
    generator = torch.Generator().manual_seed(heads)
    with torch.no_grad():
        for parameter in mha.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    return mha


def states(tokens: int = 7, width: int = 24, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(3, tokens, width, generator=torch.Generator().manual_seed(seed)).to(dtype)


def padding(tokens: int = 7) -> torch.Tensor:
    return torch.arange(tokens) < torch.tensor(LENGTHS)[:, None]


def loop(mha: MultiHeadAttention, query, key, value, allowed) -> np.ndarray:
    """Attention one query at a time; `allowed` is a boolean array [batch, head, query, key]."""
    query, key, value = (t.detach().numpy() for t in (query, key, value))
    w = {name: parameter.detach().numpy() for name, parameter in mha.named_parameters()}
    q, k, v = (
        x @ w[f"{name}_proj.weight"].T + w.get(f"{name}_proj.bias", 0.0)
        for name, x in (("q", query), ("k", key), ("v", value))
    )
    dim, output = mha.head_dim, np.zeros((*query.shape[:2], mha.d_model))
    for batch, head, row in np.ndindex(query.shape[0], mha.num_heads, query.shape[1]):
        kv = slice(head * mha.num_kv_heads // mha.num_heads * dim, (head * mha.num_kv_heads // mha.num_heads + 1) * dim)
        keys = np.flatnonzero(allowed[batch, head, row])
        scores = k[batch, keys, kv] @ q[batch, row, head * dim : (head + 1) * dim] / math.sqrt(dim)
        probs = np.exp(scores - scores.max())
        context = probs / probs.sum() @ v[batch, keys, kv]
        output[batch, row] += w["o_proj.weight"][:, head * dim : (head + 1) * dim] @ context
    return output + w.get("o_proj.bias", 0.0)


# ------------------------------------------------------------------------------------------------- what is computed


def test_the_readme_call():
    x, mask = torch.randn(2, 10, 512), torch.tril(torch.ones(10, 10))
    assert MultiHeadAttention(512, 8)(x, x, x, mask).shape == torch.Size([2, 10, 512])


def test_a_case_done_by_hand():
    mha = MultiHeadAttention(1, 1, bias=False)
    with torch.no_grad():
        for parameter in mha.parameters():
            parameter.fill_(1.0)
    query, key, value = (torch.tensor(x)[None, :, None] for x in ([1.0], [0.0, math.log(3)], [0.0, 4.0]))
    # softmax of (0, log 3) is (1/4, 3/4), and 3/4 of 4 is 3
    assert mha(query, key, value).item() == pytest.approx(3.0, abs=1e-6)


@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_self_attention_equals_the_loop(heads, kv_heads, is_causal, bias):
    mha, x = layer(heads, kv_heads, is_causal=is_causal, bias=bias), states()
    allowed = np.broadcast_to(padding()[:, None, None, :].numpy(), (3, heads, 7, 7))
    allowed = allowed & np.tri(7, dtype=bool) if is_causal else allowed
    output = mha(x, x, x, padding()[:, None, None, :]).detach().numpy()
    np.testing.assert_allclose(output, loop(mha, x, x, x, allowed), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
def test_cross_attention_equals_the_loop(heads, kv_heads):
    mha = layer(heads, kv_heads, kdim=10, vdim=14, head_dim=5)
    query, key, value = states(5), states(7, 10, seed=1), states(7, 14, seed=2)
    allowed = np.broadcast_to(padding()[:, None, None, :].numpy(), (3, heads, 5, 7))
    output = mha(query, key, value, padding()[:, None, None, :]).detach().numpy()
    np.testing.assert_allclose(output, loop(mha, query, key, value, allowed), rtol=0, atol=1e-10)


def test_queries_of_a_causal_layer_are_the_last_positions():
    mha, x = layer(is_causal=True), states()
    torch.testing.assert_close(mha(x[:, 4:], x, x), mha(x, x, x)[:, 4:], rtol=0, atol=1e-10)


def test_more_queries_than_keys_cannot_be_causal():
    with pytest.raises(InvalidAttention, match="at least as many keys as queries, got 3 keys, 7 queries"):
        layer(is_causal=True)(states(7), states(3), states(3))


def test_scaling_multiplies_the_scores():
    x = states()
    plain, scaled = layer().explain(x, x, x), layer(scaling=0.1).explain(x, x, x)
    torch.testing.assert_close(scaled.scores, plain.scores * 0.1 * math.sqrt(4), rtol=0, atol=1e-10)


def test_softmax_dtype_is_the_precision_of_the_softmax_alone():
    x = states()
    exact, rounded = layer().explain(x, x, x), layer(softmax_dtype=torch.float32).explain(x, x, x)
    assert torch.equal(exact.scores, rounded.scores)
    assert torch.equal(rounded.probs, exact.scores.softmax(-1, dtype=torch.float32).double())


def test_upcast_scores_are_products_in_the_other_precision():
    q, k = torch.randn(2, 3, 5, 4).half(), torch.randn(2, 3, 7, 4).half()
    scores = upcast_scores(q, k, 0.3, torch.float32)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, attention_scores(q.float(), k.float(), 0.3), rtol=0, atol=1e-5)


def test_dropout_zeroes_probabilities_in_train_mode_only():
    mha, x = layer(dropout=0.5), states(40)
    assert torch.equal(mha.explain(x, x, x).probs.sum(-1).round(decimals=9), torch.ones(3, 6, 40, dtype=torch.float64))
    share = (mha.train().explain(x, x, x).probs == 0).double().mean()
    assert share == pytest.approx(0.5, abs=0.05)  # of 28,800 draws; five standard deviations are 0.015


# ----------------------------------------------------------------------------------------------- heads and parameters


def test_heads_are_cut_and_joined_in_order():
    x = torch.arange(6.0).reshape(1, 1, 6)
    assert split_heads(x, 2)[0, :, 0].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert torch.equal(merge_heads(split_heads(x, 2)), x)


def test_key_value_heads_are_repeated_not_tiled():
    assert repeat_kv(torch.tensor([[[[1.0]], [[2.0]]]]), 2).flatten().tolist() == [1, 1, 2, 2]


def test_parameters_do_not_depend_on_the_number_of_heads():
    sizes = {sum(p.numel() for p in MultiHeadAttention(24, heads).parameters()) for heads in (1, 2, 3, 4, 6, 8, 12, 24)}
    assert sizes == {4 * 24 * 24 + 4 * 24}


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
def test_parameters_fall_with_the_key_value_heads(kv_heads):
    parameters = sum(p.numel() for p in MultiHeadAttention(24, 6, kv_heads).parameters())
    assert parameters == 2 * (24 * 24 + 24) + 2 * kv_heads * 4 * (24 + 1)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((512, 7), "d_model=512 .* num_heads=7"),
        ((512, 8, 3), "num_heads=8 .* num_kv_heads=3"),
        ((512, 2, 4), "num_heads=2 .* num_kv_heads=4"),
        ((512, 0), "num_heads must be at least 1, got 0"),
        ((512, 8, -1), "num_kv_heads must be at least 1, got -1"),
    ],
)
def test_sizes_that_do_not_divide_are_named(sizes, words):
    with pytest.raises(InvalidAttention, match=words):
        MultiHeadAttention(*sizes)


def test_dropout_is_a_share():
    with pytest.raises(InvalidAttention, match=r"dropout .* came as 1\.5"):
        MultiHeadAttention(24, 6, dropout=1.5)


def test_inputs_of_another_shape_are_named():
    x = states()
    with pytest.raises(InvalidAttention, match=r"key must be \[batch, token, 24\], and came as \[3, 7, 23\]"):
        layer()(x, x[..., :23], x)
    with pytest.raises(InvalidAttention, match=r"query must be .* came as \[7, 24\]"):
        layer()(x[0], x, x)
    with pytest.raises(InvalidAttention, match=r"must agree in batch and tokens"):
        layer()(x, x[:, :5], x)


def test_weights_of_another_shape_are_named():
    square, bias = torch.ones(24, 24), torch.ones(24)
    with pytest.raises(InvalidAttention, match=r"v_proj .* \[24, 24\] with bias, .* are \[24, 24\] without bias"):
        layer().set_weights((square, bias), (square, bias), (square, None), (square, bias))


# ---------------------------------------------------------------------------------------------------------- explain


@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
def test_contributions_and_bias_sum_to_the_output(heads, kv_heads):
    mha, x = layer(heads, kv_heads), states()
    mask = padding()[:, None, None, :]
    trace = mha.explain(x, x, x, mask)
    assert torch.equal(trace.output, mha(x, x, x, mask))
    torch.testing.assert_close(trace.contributions.sum(1) + mha.o_proj.bias, trace.output, rtol=0, atol=1e-10)
    assert trace.k.shape == trace.v.shape == (3, kv_heads, 7, 24 // heads)


def test_a_contribution_is_what_the_head_alone_would_write():
    mha, x = layer(out_bias=False), states()
    trace = mha.explain(x, x, x)
    mha.tap = lambda q, k, v, probs, context: context * torch.eye(6)[2][:, None, None]
    torch.testing.assert_close(mha(x, x, x), trace.contributions[:, 2], rtol=0, atol=1e-10)
    assert torch.equal(trace.contributions, head_contributions(trace.context, mha.w_out))


def test_a_trace_holds_scores_before_the_mask_and_cannot_be_changed():
    mha, x = layer(), states()
    masked, plain = mha.explain(x, x, x, padding()[:, None, None, :]), mha.explain(x, x, x)
    assert torch.equal(masked.scores, plain.scores)
    assert (masked.probs[~padding()[:, None, None, :].expand_as(masked.probs)] == 0).all()
    with pytest.raises(dataclasses.FrozenInstanceError):
        plain.probs = plain.scores


def test_the_tap_sees_every_tensor_and_decides_the_context():
    mha, x, seen = layer(6, 2), states(), []
    trace = mha.explain(x, x, x)

    def silence(*tensors):
        seen.extend(tensors)
        return torch.zeros_like(tensors[-1])

    mha.tap = silence
    assert torch.equal(mha(x, x, x), mha.o_proj.bias.expand(3, 7, 24))
    for tensor, expected in zip(seen, (trace.q, trace.k, trace.v, trace.probs, trace.context), strict=True):
        assert torch.equal(tensor, expected)


# ------------------------------------------------------------------------------------------------------------ masks


def test_masks_of_all_kinds_mean_the_same():
    mha, x, seen = layer(), states(), torch.tril(torch.ones(7, 7, dtype=torch.bool))
    expected = mha(x, x, x, seen)
    blocked = torch.zeros(7, 7).masked_fill(~seen, -torch.inf)
    for mask in (seen.int(), seen.to(torch.uint8), seen.float(), seen.double(), blocked, blocked.clamp(min=-1e30)):
        assert torch.equal(mha(x, x, x, mask), expected)
    assert torch.equal(layer(is_causal=True)(x, x, x), expected)


def test_other_numbers_are_added_to_the_scores():
    mha, x, bias = layer(), states(), torch.randn(1, 6, 7, 7, dtype=torch.float64)
    expected = (mha.explain(x, x, x).scores + bias).softmax(-1)
    torch.testing.assert_close(mha.explain(x, x, x, bias).probs, expected, rtol=0, atol=1e-10)


def test_zeros_that_float_are_added_and_zeros_that_count_are_refused_rows():
    mha, x = layer(), states()
    assert torch.equal(mha(x, x, x, torch.zeros(7, 7)), mha(x, x, x))
    probs = mha.explain(x, x, x, torch.zeros(7, 7, dtype=torch.long)).probs
    torch.testing.assert_close(probs, torch.full_like(probs, 1 / 7), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "shape", [(7,), (5, 7), (1, 7), (1, 5, 7), (3, 1, 1, 7), (1, 6, 5, 7), (3, 6, 5, 1), (1, 1, 1, 1)]
)
def test_masks_broadcast_from_the_right(shape):
    mha, query, x = layer(), states(5), states()
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(3)) > 0.3
    full = mask.expand(3, 6, 5, 7).contiguous()
    assert torch.equal(mha(query, x, x, mask), mha(query, x, x, full))


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (torch.ones(3, 5, 7), r"\[3, 5, 7\] could be one per batch or one per head: write mask\[:, None\]"),
        (torch.ones(3, 7), r"\[3, 7\] does not broadcast to .* = \[3, 6, 5, 7\]; padding"),
        (torch.ones(3, 2, 5, 7), r"\[3, 2, 5, 7\] does not broadcast"),
        (torch.ones(2, 1, 5, 7), r"\[2, 1, 5, 7\] does not broadcast"),
        (torch.ones(1, 1, 1, 5, 7), r"\[1, 1, 1, 5, 7\] does not broadcast"),
        (torch.ones(()), r"\[\] does not broadcast"),
        (torch.full((5, 7), 2), r"only 1 \(attend\) and 0, and goes from 2 to 2"),
        (torch.full((5, 7), -10000), r"goes from -10000 to -10000; numbers to be added .* floating"),
        (torch.full((5, 7), torch.nan), "NaN"),
        (torch.full((5, 7), torch.inf), r"\+inf"),
        (torch.full((5, 7), 1e300, dtype=torch.float64), r"\+inf in torch\.float32"),
        (torch.zeros(5, 7, dtype=torch.complex64), "complex64"),
    ],
)
def test_masks_that_cannot_be_meant_are_refused(mask, words):
    with pytest.raises(InvalidAttention, match=words):
        layer(dtype=torch.float32)(*(states(tokens, dtype=torch.float32) for tokens in (5, 7, 7)), mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kind", ["bool", "lowest", "-inf"])
def test_a_query_that_sees_no_key_is_no_nan(dtype, is_causal, kind):
    mha, x = layer(dtype=dtype, is_causal=is_causal, scaling=-4.0), states(dtype=dtype).abs()
    left = padding().flip(1)[:, None, None, :]
    fill = {"bool": None, "lowest": torch.finfo(dtype).min, "-inf": -torch.inf}[kind]
    mask = left if fill is None else torch.zeros(left.shape, dtype=dtype).masked_fill(~left, fill)
    mask = mask.clone()
    mask[0] = False if fill is None else fill
    trace = mha.explain(x, x, x, mask)
    assert trace.scores.min() < -40  # float16 would run over to -inf
    assert trace.output.isfinite().all()
    torch.testing.assert_close(trace.probs.sum(-1), torch.ones_like(trace.probs.sum(-1)), rtol=0, atol=1e-2)
    assert (trace.probs[1, :, -1, :3] == 0).all()  # four real tokens, on the right


def test_a_row_of_minus_infinity_is_shared_equally():
    probs = attention_probs(torch.randn(1, 1, 2, 4), torch.full((2, 4), -torch.inf))
    torch.testing.assert_close(probs, torch.full((1, 1, 2, 4), 0.25), rtol=0, atol=1e-6)


def test_masks_as_numbers():
    lowest = torch.finfo(torch.float16).min
    assert as_additive_mask(torch.tensor([True, False]), torch.float16).tolist() == [0.0, lowest]
    assert as_additive_mask(torch.tensor([1.0, 0.5]), torch.float32).tolist() == [1.0, 0.5]
    assert causal_mask(2, 3).tolist() == [[True, True, False], [True, True, True]]


# ----------------------------------------------------------------------------------------------------------- rotary


def test_rotary_turns_pairs_by_an_angle():
    cos, sin = (torch.tensor(f(math.pi / 2)).expand(1, 1, 2) for f in (math.cos, math.sin))
    turned = rotate(torch.tensor([[[[3.0, 4.0]]]]), cos, sin)
    assert turned.flatten().tolist() == pytest.approx([-4.0, 3.0], abs=1e-6)


def test_rotary_is_that_of_llama():
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    mha, x = layer(6, 2), states()
    angles = torch.randn(3, 7, 2, dtype=torch.float64).repeat(1, 1, 2)
    q, k, _ = mha.project(x, x, x)
    expected = apply_rotary_pos_emb(q, k, angles.cos(), angles.sin())
    trace = mha.explain(x, x, x, rotary=(angles.cos(), angles.sin()))
    assert torch.equal(trace.q, expected[0])
    assert torch.equal(trace.k, expected[1])


@pytest.mark.parametrize("shape", [(1, 5, 4), (2, 7, 4), (1, 7, 2), (7, 4)])
def test_rotary_of_another_shape_is_refused(shape):
    x = states()
    with pytest.raises(InvalidAttention, match=r"must be \[1 or 3, 7, 4\] \(batch, token, dim\)"):
        layer()(x, x, x, rotary=(torch.ones(shape), torch.ones(shape)))
