"""Circuits from weights: closed forms, dense matrices beside the fast ways, the running model beside its weights.

The dense references are hidden x hidden and vocabulary x vocabulary, written out from the formulas with numpy.
"""

from __future__ import annotations

import copy
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedModel

from headlens.behaviour import circuits as module
from headlens.behaviour.circuits import (
    BOTTOM,
    TOP,
    Composition,
    circuits,
    eigenvalue_score,
    own_token_shares,
    squared_products,
)
from headlens.behaviour.head_weights import (
    HeadWeights,
    Norm,
    embeddings_after_mlp,
    final_norm,
    head_weights,
    input_norms,
    stream_weights,
)
from headlens.capture import capture
from headlens.errors import UnsupportedModel
from headlens.models import load_model, network_of
from headlens.records import LayerAttention
from headlens.replace import LayerCall, record_calls
from headlens.testing import VOCAB, padded_inputs, tiny_model

ENCODERS = ["bert", "roberta", "electra", "distilbert"]
DECODERS = ["gpt2", "opt", "gpt_neox", "llama", "mistral", "qwen2"]
DENSE = ["gpt2", "opt", "gpt_neox", "llama", "qwen3"]
BLOCKS = {"gpt2": "h", "opt": "decoder.layers"}  # elsewhere "layers"
INPUT_NORMS = {"gpt2": "ln_1", "opt": "self_attn_layer_norm"}  # elsewhere "input_layernorm"
FINAL_NORMS = {
    "gpt2": "ln_f",
    "opt": "decoder.final_layer_norm",
    "gpt_neox": "final_layer_norm",
    **dict.fromkeys(["llama", "qwen3"], "norm"),
}
POSITIONS = {"gpt2": "wpe", "opt": "decoder.embed_positions"}
CLOSE: dict[str, Any] = {"rtol": 0, "atol": 1e-10}
HIDDEN, DIM = 32, 8  # of the tiny models


def with_head(family: str, *, layers: int = 3, heads: int = 4, **more: Any) -> PreTrainedModel:
    """A model with a vocabulary head, its weights drawn as tiny_model draws them."""
    base = tiny_model(family, layers=layers, heads=heads, **more)
    kind = AutoModelForMaskedLM if family in ENCODERS else AutoModelForCausalLM
    model = kind.from_config(base.config).double().eval()
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            centre = 1.0 if parameter.dim() == 1 and bool((parameter == 1).all()) else 0.0
            parameter.copy_(centre + 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def blocks(network: nn.Module, family: str) -> list[nn.Module]:
    return list(network.get_submodule(BLOCKS.get(family, "layers")).children())


def observed(model: PreTrainedModel) -> tuple[list[LayerAttention], list[LayerCall]]:
    seen: list[LayerAttention] = []
    with torch.no_grad(), capture(model, seen.append):
        calls = record_calls(model, **padded_inputs())
    return seen, calls


def dense_parts(model: PreTrainedModel) -> tuple[list[dict[str, np.ndarray]], np.ndarray, np.ndarray]:
    """Of every layer q, k, v, o [head, ...] that read the stream itself; of the model the embeddings and the
    unembedding that reads the end of the stream, up to a constant for all tokens."""
    family, network = model.config.model_type, network_of(model)
    layers = []
    for layer, block in zip(head_weights(model), blocks(network, family), strict=True):
        through = matrix_of(block.get_submodule(INPUT_NORMS.get(family, "input_layernorm")))
        own = {name: getattr(layer, name).numpy() for name in "qkvo"}
        heads, groups = len(own["q"]), len(own["k"])
        group = [head * groups // heads for head in range(heads)]
        is_layer_norm = isinstance(block.get_submodule(INPUT_NORMS.get(family, "input_layernorm")), nn.LayerNorm)
        seen = centring() if is_layer_norm else np.eye(HIDDEN)
        layers.append(
            {
                "q": through @ own["q"],
                "k": through @ own["k"][group],
                "v": through @ own["v"][group],
                "o": own["o"] @ seen,
            }
        )
    embed = model.get_input_embeddings().weight.detach().numpy()
    unembed = (
        matrix_of(network.get_submodule(FINAL_NORMS[family])) @ model.get_output_embeddings().weight.detach().numpy().T
    )
    return layers, embed, unembed - unembed.mean(axis=1, keepdims=True)


def centring() -> np.ndarray:
    return np.eye(HIDDEN) - 1 / HIDDEN


def matrix_of(norm: nn.Module) -> np.ndarray:
    gain = np.ones(HIDDEN) if norm.weight is None else norm.weight.detach().numpy()
    return (centring() if isinstance(norm, nn.LayerNorm) else np.eye(HIDDEN)) @ np.diag(gain)


def eigen(matrix: np.ndarray) -> float:
    values = np.linalg.eigvals(matrix)
    return values.real.sum() / np.abs(values).sum()


def each_head(layers: list[dict[str, np.ndarray]], score: Any) -> np.ndarray:
    return np.array([[score(number, layer, head) for head in range(4)] for number, layer in enumerate(layers)])


# ------------------------------------------------------------------------------ weights are what the running model uses


@pytest.mark.parametrize("family", ENCODERS + DECODERS)
def test_queries_keys_and_values_are_the_input_times_the_weights(family: str) -> None:
    model = tiny_model(family)
    for layer, seen, call in zip(head_weights(model), *observed(model), strict=True):
        first = call.hidden[:, 0]  # position 0 is not turned by rotary embedding
        q = seen.q * DIM**0.5 if family == "opt" else seen.q  # OPT scales its queries instead of the scores
        for found, weight in ((q, layer.q), (seen.k, layer.k), (seen.v, layer.v)):
            computed = torch.einsum("bi,hid->bhd", first, weight)
            # against the first sentence, as the bias is in both
            torch.testing.assert_close(computed - computed[0], found[:, :, 0] - found[0, :, 0], **CLOSE)


def test_qwen3_norms_its_queries_and_keys_after_the_weights() -> None:
    model = tiny_model("qwen3")
    for block, layer, seen, call in zip(model.layers, head_weights(model), *observed(model), strict=True):
        q, k, v = (torch.einsum("bi,hid->bhd", call.hidden[:, 0], w) for w in (layer.q, layer.k, layer.v))
        torch.testing.assert_close(block.self_attn.q_norm(q), seen.q[:, :, 0], **CLOSE)
        torch.testing.assert_close(block.self_attn.k_norm(k), seen.k[:, :, 0], **CLOSE)
        torch.testing.assert_close(v, seen.v[:, :, 0], **CLOSE)


@pytest.mark.parametrize("family", [*ENCODERS, *DECODERS, "qwen3"])
def test_heads_add_up_to_the_output_of_the_layer(family: str) -> None:
    model = tiny_model(family)
    for layer, seen, call in zip(head_weights(model), *observed(model), strict=True):
        written = torch.einsum("bhqd,hdo->bqo", seen.context, layer.o)
        torch.testing.assert_close(written - written[0, 0], call.output - call.output[0, 0], **CLOSE)


def test_each_head_has_the_values_of_its_group() -> None:
    layer = head_weights(tiny_model("llama"))[0]
    assert layer.v.shape[0] == 2
    assert torch.equal(layer.of_each_head(layer.v), layer.v[[0, 0, 1, 1]])


@pytest.mark.parametrize("family", DENSE)
def test_folded_norms_are_the_norms_up_to_size_and_bias(family: str) -> None:
    model = tiny_model(family)
    inputs: list[Tensor] = []
    for block in blocks(model, family):
        block.register_forward_pre_hook(lambda _, args, kwargs: inputs.append(args[0]), with_kwargs=True)
    norms = input_norms(model)
    assert norms is not None
    _, calls = observed(model)
    for stream, norm, call, layer, block in zip(
        inputs, norms, calls, head_weights(model), blocks(model, family), strict=True
    ):
        its = block.get_submodule(INPUT_NORMS.get(family, "input_layernorm"))
        check_fold(norm, its, stream, call.hidden, layer.q[1])


@pytest.mark.parametrize("family", DENSE)
def test_the_final_norm_too(family: str) -> None:
    model, ends = tiny_model(family), []
    blocks(model, family)[-1].register_forward_hook(
        lambda _, args, output: ends.append(output[0] if isinstance(output, tuple) else output)
    )
    with torch.no_grad():
        normed = model(**padded_inputs()).last_hidden_state
    norm = final_norm(model)
    assert norm is not None
    weight = model.get_input_embeddings().weight.detach().T
    check_fold(norm, model.get_submodule(FINAL_NORMS[family]), ends[0], normed, weight)


def check_fold(norm: Norm, its: Any, stream: Tensor, normed: Tensor, weight: Tensor) -> None:
    is_layer_norm = isinstance(its, nn.LayerNorm)
    away = stream - stream.mean(dim=-1, keepdim=True) if is_layer_norm else stream
    size = (away.pow(2).mean(dim=-1, keepdim=True) + (its.eps if is_layer_norm else its.variance_epsilon)).sqrt()
    constant = its.bias.detach() @ weight if is_layer_norm else 0
    close = CLOSE if is_layer_norm else {"rtol": 0, "atol": 1e-5}  # transformers' RMSNorms divide in float32
    torch.testing.assert_close(stream / size @ norm.fold(weight) + constant, normed @ weight, **close)


def test_layer_norm_without_a_gain() -> None:
    norms = input_norms(tiny_model("opt", layer_norm_elementwise_affine=False))
    assert norms is not None
    assert all(norm.is_centring and torch.equal(norm.gain, torch.ones(HIDDEN)) for norm in norms)


@pytest.mark.parametrize("family", ENCODERS)
def test_encoders_read_the_stream_as_it_is(family: str) -> None:
    model = tiny_model(family)
    assert input_norms(model) is None
    assert all(
        torch.equal(getattr(here, part), getattr(there, part))
        for here, there in zip(stream_weights(model), head_weights(model), strict=True)
        for part in "qkvo"
    )


@pytest.mark.parametrize("family", DENSE)
def test_embeddings_after_the_mlp_are_the_stream_of_a_first_layer_without_attention(family: str) -> None:
    model = with_head(family)
    ids = torch.tensor([7, 3, 98])
    found = embeddings_after_mlp(model, ids)
    muted = copy.deepcopy(network_of(model))
    silenced = [
        parameter for name, parameter in muted.named_parameters() if name.startswith(POSITIONS.get(family, "-"))
    ]
    first = blocks(muted, family)[0]
    out = next(part for name, part in first.named_modules() if name.rpartition(".")[2] in OUT[family])
    with torch.no_grad():
        for parameter in [*silenced, *out.parameters()]:
            parameter.zero_()
        stream = muted(input_ids=ids[:, None], output_hidden_states=True).hidden_states[1]
    torch.testing.assert_close(found, stream[:, 0], **CLOSE)


OUT = {"gpt2": ["c_proj"], "opt": ["out_proj"], "gpt_neox": ["dense"], "llama": ["o_proj"], "qwen3": ["o_proj"]}


def test_embeddings_after_the_mlp_have_no_dropout() -> None:
    model = with_head("gpt2", resid_pdrop=0.5)
    ids = torch.arange(VOCAB)
    expected = embeddings_after_mlp(model, ids)
    model.train()
    assert torch.equal(embeddings_after_mlp(model, ids), expected)
    assert all(part.training for part in model.modules())


# --------------------------------------------------------------------------------------------------------- closed forms


@pytest.mark.parametrize(
    ("matrix", "score"),
    [
        (torch.eye(3), 1.0),
        (-torch.eye(3), -1.0),
        (torch.diag(torch.tensor([3.0, -1.0])), 0.5),
        (torch.tensor([[0.0, 1.0], [-1.0, 0.0]]), 0.0),  # a quarter turn: +i and -i
        (torch.tensor([[1.0, 1.0], [-1.0, 1.0]]), 0.5**0.5),  # 1 + i and 1 - i
        (torch.zeros(2, 2), float("nan")),
    ],
)
def test_eigenvalue_score(matrix: Tensor, score: float) -> None:
    np.testing.assert_allclose(eigenvalue_score(matrix[None]).item(), score, atol=1e-12)


def one_hot_gpt2(writes: list[Tensor]) -> PreTrainedModel:
    """32 tokens, each with a direction of its own, and one head a layer that reads all of the stream; no MLP."""
    model = with_head("gpt2", layers=len(writes), heads=1, n_embd=32, vocab_size=32)
    with torch.no_grad():
        model.transformer.wte.weight.copy_(torch.eye(32))
        model.transformer.ln_f.weight.fill_(1.0)
        for block, write in zip(model.transformer.h, writes, strict=True):
            block.ln_1.weight.fill_(1.0)
            block.attn.c_attn.weight[:, 64:].copy_(torch.eye(32))
            block.attn.c_proj.weight.copy_(write)
            block.mlp.c_proj.weight.zero_()
            block.mlp.c_proj.bias.zero_()
    return model


def test_heads_that_copy_suppress_and_do_each_to_half_of_the_tokens() -> None:
    half = torch.diag(torch.tensor([1.0] * 16 + [-1.0] * 16))
    scores = circuits(one_hot_gpt2([torch.eye(32), -torch.eye(32), half])).scores
    for name in ("ov_eigenvalue", "ov_full", "ov_effective"):
        np.testing.assert_allclose(scores[f"circuits.{name}"][:, 0], [1, -1, 0], atol=1e-10)
    assert scores["circuits.copy_top5"][:, 0].tolist() == [1, 0, 0.5]
    assert scores["circuits.copy_suppression"][:, 0].tolist() == [0, 1, 0.5]


def test_a_head_that_writes_nothing_has_no_eigenvalue_score_and_copies_nothing() -> None:
    scores = circuits(one_hot_gpt2([torch.zeros(32, 32), torch.eye(32)])).scores
    assert np.isnan(scores["circuits.ov_eigenvalue"][0, 0])
    assert np.isnan(scores["circuits.ov_full"][0, 0])
    assert scores["circuits.copy_top5"][:, 0].tolist() == [0, 1]
    assert scores["circuits.copy_suppression"][:, 0].tolist() == [0, 0]


@pytest.mark.parametrize("kind", ["q", "k", "v"])
def test_a_planted_pair_comes_first_and_has_its_closed_form(kind: Any) -> None:
    model = with_head("gpt2")
    frame = torch.linalg.qr(torch.cat([torch.ones(HIDDEN, 1), torch.randn(HIDDEN, 2 * DIM)], dim=1).double()).Q
    meeting, elsewhere = frame[:, 1:9], frame[:, 9:]  # what LayerNorm lets through, of equal singular values
    writer, reader = model.transformer.h[0], model.transformer.h[2]
    with torch.no_grad():
        for block in (writer, reader):
            block.ln_1.weight.fill_(1.0)
        writer.attn.c_attn.weight[:, 64 + 8 : 64 + 16] = elsewhere  # values of head 1
        writer.attn.c_proj.weight[8:16] = meeting.T
        for name in "qkv":
            start = 32 * "qkv".index(name) + 24  # of head 3
            reader.attn.c_attn.weight[:, start : start + 8] = meeting if name == kind else elsewhere
        reader.attn.c_proj.weight[24:] = elsewhere.T
    composition = circuits(model).compositions[kind]
    best = composition.best(2)
    assert str(best[0]) == "L0H1 to L2H3"
    # of 8 equal singular values all meet: sqrt(8) / (sqrt(8) sqrt(8)), less what chance gives in the 31 dimensions left
    np.testing.assert_allclose(best[0].value, 8**-0.5 - 31**-0.5, **CLOSE)
    assert best[1].value < best[0].value - 0.05


# --------------------------------------------------------------------------------------------- dense and fast, the same


@pytest.mark.parametrize("family", DENSE)
def test_eigenvalue_scores_are_those_of_dense_matrices(family: str) -> None:
    model = with_head(family)
    layers, embed, unembed = dense_parts(model)
    effective = embeddings_after_mlp(model, torch.arange(VOCAB)).numpy()
    scores = circuits(model).scores
    expected = {
        "ov_eigenvalue": lambda _, layer, head: eigen(layer["v"][head] @ layer["o"][head]),
        "ov_full": lambda _, layer, head: eigen(embed @ layer["v"][head] @ layer["o"][head] @ unembed),
        "ov_effective": lambda number, layer, head: eigen(
            (effective if number else embed) @ layer["v"][head] @ layer["o"][head] @ unembed
        ),
    }
    for name, score in expected.items():
        np.testing.assert_allclose(scores[f"circuits.{name}"], each_head(layers, score), rtol=0, atol=1e-8)


@pytest.mark.parametrize("family", DENSE)
def test_copied_and_suppressed_tokens_are_those_of_dense_logits(family: str) -> None:
    model = with_head(family)
    layers, embed, unembed = dense_parts(model)
    effective = embeddings_after_mlp(model, torch.arange(VOCAB)).numpy()

    def ranks(number: int, layer: dict[str, np.ndarray], head: int) -> np.ndarray:
        logits = (effective if number else embed) @ layer["v"][head] @ layer["o"][head] @ unembed
        return (logits < logits.diagonal()[:, None]).sum(axis=1)  # 0: the smallest of all

    scores = circuits(model).scores
    top = each_head(layers, lambda *place: (ranks(*place) >= VOCAB - TOP).mean())
    bottom = each_head(layers, lambda *place: (ranks(*place) < BOTTOM).mean())
    assert 0 < top.max() < 1
    np.testing.assert_allclose(scores["circuits.copy_top5"], top, **CLOSE)
    np.testing.assert_allclose(scores["circuits.copy_suppression"], bottom, **CLOSE)


@pytest.mark.parametrize(("family", "kind"), [*product(["gpt2", "opt"], "qkv"), *product(["gpt_neox", "llama"], "v")])
def test_compositions_are_those_of_dense_matrices(family: str, kind: Any) -> None:
    model = with_head(family)
    layers, _, _ = dense_parts(model)

    def reading(layer: dict[str, np.ndarray], head: int) -> np.ndarray:
        q, k, v, o = (layer[name][head] for name in "qkvo")
        return {"q": q @ k.T, "k": k @ q.T, "v": v @ o}[kind]

    composition = circuits(model).compositions[kind]
    baseline = (31 if family != "llama" else 32) ** -0.5
    assert composition.baseline == pytest.approx(baseline, rel=1e-12)
    expected = np.full((3, 4, 3, 4), np.nan)
    for a, i, b, j in product(range(3), range(4), range(3), range(4)):
        if a < b:
            written, read = layers[a]["v"][i] @ layers[a]["o"][i], reading(layers[b], j)
            norms = np.linalg.norm(written) * np.linalg.norm(read)
            expected[a, i, b, j] = np.linalg.norm(written @ read) / norms - baseline
    np.testing.assert_allclose(composition.values, expected, rtol=0, atol=1e-8)
    largest = circuits(model).scores[f"circuits.{kind}_composition"]
    assert np.isnan(largest[0]).all()
    for b, j in product((1, 2), range(4)):
        assert largest[b, j] == pytest.approx(max(expected[a, i, b, j] for a in range(b) for i in range(4)), abs=1e-8)


def random_heads() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Five heads that read 70 of 3000 tokens: random, copying, suppressing, copying some of them, writing nothing."""
    vocabulary = torch.randn(3000, 24, dtype=torch.float64) * torch.linspace(0.2, 2, 3000)[:, None].double()
    own = torch.randperm(3000)[:70]
    read, write = torch.randn(5, 70, 6, dtype=torch.float64), torch.randn(5, 6, 24, dtype=torch.float64)
    toward = torch.linalg.lstsq(write.mT, vocabulary[own].T.expand(5, -1, -1)).solution.mT
    read[1], read[2] = toward[1], -toward[2]
    read[3, ::9] = toward[3, ::9]
    write[4] = 0
    return read, write, vocabulary, own


@pytest.mark.parametrize("cells", [1, 5000, 1 << 24])
def test_early_dropping_loses_no_token(monkeypatch: pytest.MonkeyPatch, cells: int) -> None:
    monkeypatch.setattr(module, "_CELLS", cells)
    read, write, vocabulary, own = random_heads()
    logits = (read @ write @ vocabulary.T).numpy()
    mine = np.take_along_axis(logits, own.numpy()[None, :, None].repeat(5, axis=0), axis=2)
    top = ((logits > mine).sum(axis=2) < TOP).mean(axis=1)
    bottom = ((logits < mine).sum(axis=2) < BOTTOM).mean(axis=1)
    top[4] = bottom[4] = 0  # of equal logits its own comes last
    assert top[1] > top[3] > top[0]
    assert bottom[2] > 0.1
    found = own_token_shares(read, write, vocabulary, own)
    np.testing.assert_allclose(found[0].numpy(), top, **CLOSE)
    np.testing.assert_allclose(found[1].numpy(), bottom, **CLOSE)


@pytest.mark.parametrize("cells", [1, 1100, 1 << 24])  # one row at a time, several and a rest, all
def test_squared_products_are_squared_norms(monkeypatch: pytest.MonkeyPatch, cells: int) -> None:
    monkeypatch.setattr(module, "_CELLS", cells)
    left, right = torch.randn(5, 3, 17, dtype=torch.float64), torch.randn(4, 17, 2, dtype=torch.float64)
    expected = torch.linalg.matrix_norm(left[:, None] @ right[None]) ** 2
    torch.testing.assert_close(squared_products(left, right), expected, rtol=1e-12, atol=0)


# --------------------------------------------------------------------------------------------------------------- chance


def rotations(count: int, size: int) -> Tensor:
    q, r = torch.linalg.qr(torch.randn(count, size, size, dtype=torch.float64))
    return q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]  # Haar: Mezzadri 2007


def within_four_errors(values: Tensor, expected: float) -> bool:
    error = values.std().item() / len(values) ** 0.5
    assert error < 0.01
    return abs(values.mean().item() - expected) < 4 * error


def test_baseline_is_what_random_rotations_give() -> None:
    model = with_head("gpt2")
    first, second = stream_weights(model)[:2]
    written, read = first.v[0] @ first.o[0], second.k[1] @ second.q[1].T
    # rotations of all directions but (1, 1, ...), which no LayerNorm lets through
    frame = torch.linalg.qr(torch.cat([torch.ones(HIDDEN, 1), torch.randn(HIDDEN, HIDDEN - 1)], 1).double()).Q[:, 1:]
    turned = frame @ rotations(4000, HIDDEN - 1) @ frame.T
    squares = torch.linalg.matrix_norm(written @ turned @ read) ** 2 / (written.norm() * read.norm()) ** 2
    baseline = circuits(model).compositions["k"].baseline
    assert within_four_errors(squares / baseline**2, 1.0)
    assert not within_four_errors(squares * HIDDEN, 1.0)  # and it tells 31 dimensions from 32


def test_chance_is_what_random_rotations_give() -> None:
    model = with_head("llama")
    layer = stream_weights(model)[0]
    values, written = layer.of_each_head(layer.v)[1], layer.o[1]
    # tokens of very different sizes, read and written in one basis
    embed = torch.randn(60, HIDDEN, dtype=torch.float64) * torch.logspace(-1, 1, 60, dtype=torch.float64)[:, None]
    turned = written @ rotations(600, HIDDEN)
    top, bottom = own_token_shares((embed @ values).expand(600, -1, -1), turned, embed, torch.arange(60))
    assert within_four_errors(top, TOP / 60)
    assert within_four_errors(bottom, BOTTOM / 60)
    assert within_four_errors(eigenvalue_score(turned @ values), 0.0)


def test_chance_levels_of_the_table() -> None:
    scores = circuits(with_head("gpt2"), sample=40).scores
    chance = dict(zip(scores.names, scores.chance.tolist(), strict=True))
    assert {name: chance[f"circuits.{name}"] for name in ("ov_eigenvalue", "ov_full", "ov_effective")} == {
        "ov_eigenvalue": 0,
        "ov_full": 0,
        "ov_effective": 0,
    }
    assert chance["circuits.copy_top5"] == 5 / 99
    assert chance["circuits.copy_suppression"] == 10 / 99
    assert all(np.isnan(chance[f"circuits.{kind}_composition"]) for kind in "qkv")


# ------------------------------------------------------------------------------------------------ the whole, and limits


def test_table_says_what_the_scores_rest_on() -> None:
    result = circuits(with_head("gpt2"))
    scores = result.scores
    assert {metric.family for metric in scores} == {"circuits"}
    assert scores.values.shape == (8, 3, 4)
    assert np.isnan(scores.low).all()
    assert np.isnan(scores.high).all()
    assert result.left_out == {}
    for name, support in [("ov_eigenvalue", DIM), ("ov_full", DIM), ("copy_top5", VOCAB), ("copy_suppression", VOCAB)]:
        assert (scores.support[scores.index(f"circuits.{name}")] == support).all()
    pairs = scores.support[scores.index("circuits.v_composition")]
    assert pairs.tolist() == [[0] * 4, [4] * 4, [8] * 4]


def test_a_sample_is_the_same_for_the_same_seed_and_leaves_the_rest_alone() -> None:
    model = with_head("gpt2")
    whole, one, same, other = (
        circuits(model, sample=n, seed=s).scores for n, s in [(99, 0), (40, 1), (40, 1), (40, 2)]
    )
    assert one.equals(same)
    top = "circuits.copy_top5"
    assert not np.array_equal(one[top], other[top])
    assert (one.support[one.index(top)] == 40).all()
    np.testing.assert_allclose((one[top] * 40) % 1, 0, atol=1e-9)
    for name in ("circuits.ov_eigenvalue", "circuits.ov_full", "circuits.k_composition"):
        assert np.array_equal(one[name], whole[name], equal_nan=True)


def test_nothing_of_the_model_changes() -> None:
    model = with_head("gpt2")
    before = copy.deepcopy(model.state_dict())
    circuits(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_loaded_checkpoint_gives_what_the_model_with_its_head_gives(tmp_path: Path) -> None:
    model = with_head("gpt_neox", tie_word_embeddings=False)
    model.save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path), dtype="float64", check=False)
    assert circuits(loaded).scores.equals(circuits(model).scores)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])  # 24 and 8 bits
def test_lower_precision(dtype: torch.dtype, tolerance: float) -> None:
    exact, rounded = (circuits(with_head("gpt2").to(kind)).scores for kind in (torch.float64, dtype))
    for name in ("circuits.ov_eigenvalue", "circuits.ov_full", "circuits.k_composition"):
        np.testing.assert_allclose(rounded[name], exact[name], rtol=0, atol=tolerance)


def test_rotary_models_have_v_composition_only() -> None:
    result = circuits(with_head("llama"))
    assert set(result.compositions) == {"v"}
    assert set(result.left_out) == {"circuits.q_composition", "circuits.k_composition"}
    assert "turns queries and keys by their positions (rotary" in result.left_out["circuits.k_composition"]


@pytest.mark.parametrize(
    ("family", "more"), [("bert", {}), ("distilbert", {}), ("opt", {"do_layer_norm_before": False})]
)
def test_post_norm_models_have_the_eigenvalue_score_only(family: str, more: dict[str, Any]) -> None:
    model = with_head(family, **more)
    result = circuits(model)
    assert result.scores.names == ("circuits.ov_eigenvalue",)
    layers = [{"v": layer.v.numpy(), "o": layer.o.numpy()} for layer in head_weights(model)]
    expected = each_head(layers, lambda _, layer, head: eigen(layer["v"][head] @ layer["o"][head]))
    np.testing.assert_allclose(result.scores["circuits.ov_eigenvalue"], expected, rtol=0, atol=1e-8)
    assert result.compositions == {}
    assert len(result.left_out) == 7
    assert all("normalises the residual stream again after every layer" in why for why in result.left_out.values())


def test_without_a_vocabulary_head_the_rest_is_there() -> None:
    result = circuits(tiny_model("gpt_neox", tie_word_embeddings=False))
    assert result.scores.names == ("circuits.ov_eigenvalue", "circuits.v_composition")
    assert "without a vocabulary head" in result.left_out["circuits.copy_top5"]


def test_one_layer_has_nothing_to_compose_with() -> None:
    result = circuits(with_head("gpt2", layers=1))
    assert result.compositions == {}
    assert "has one layer" in result.left_out["circuits.k_composition"]
    assert len(result.scores.metrics) == 5


def test_embeddings_of_another_vocabulary_are_not_matched() -> None:
    model = with_head("gpt_neox", tie_word_embeddings=False)
    model.set_output_embeddings(nn.Linear(HIDDEN, 110, bias=False).double())
    assert "[99, 32] and its vocabulary head is [110, 32]" in circuits(model).left_out["circuits.ov_full"]


def test_broken_embeddings_are_named() -> None:
    model = with_head("gpt2")
    with torch.no_grad():
        model.transformer.wte.weight[5, 5] = torch.inf
    assert "no finite numbers" in circuits(model).left_out["circuits.ov_full"]


def with_a_broken_weight(model: Any) -> None:
    with torch.no_grad():
        model.decoder.layers[1].self_attn.k_proj.weight[0, 0] = torch.nan


def with_an_adapter(model: Any) -> None:
    class Adapted(nn.Linear):
        pass

    model.decoder.layers[1].self_attn.q_proj = Adapted(HIDDEN, HIDDEN)


def with_offloaded_weights(model: Any) -> None:
    model.decoder.layers[1].self_attn.v_proj.to("meta")


def with_fewer_heads(model: Any) -> None:
    attention = model.decoder.layers[1].self_attn
    for name in ("q_proj", "k_proj", "v_proj"):
        setattr(attention, name, nn.Linear(HIDDEN, 3 * DIM).double())
    attention.out_proj = nn.Linear(3 * DIM, HIDDEN).double()


def with_another_norm(model: Any) -> None:
    model.decoder.layers[1].self_attn_layer_norm = nn.BatchNorm1d(HIDDEN)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_a_broken_weight, "Layer 1 of OPTModel has weights that are no finite numbers"),
        (with_an_adapter, "layers.1.self_attn.q_proj is a Adapted, not a plain linear layer: merge"),
        (with_offloaded_weights, "layers.1.self_attn.v_proj are not in memory"),
        (with_fewer_heads, r"different numbers of heads \(3, 4\)"),
        (with_another_norm, "A BatchNorm1d stands where a LayerNorm or RMSNorm was expected"),
    ],
)
def test_changed_models_are_refused(change: Any, message: str) -> None:
    model = tiny_model("opt")
    change(model)
    with pytest.raises(UnsupportedModel, match=message):
        circuits(model)


@pytest.mark.parametrize("family", ["bloom", "gemma2", "t5", "albert"])
def test_unknown_families_are_refused_by_name(family: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"Where '{family}' keeps the weights of its heads is not known"):
        circuits(tiny_model(family))


def test_cross_attention_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="cross-attention layers, whose heads read from two streams"):
        circuits(tiny_model("gpt2", add_cross_attention=True))


def test_a_sample_of_no_tokens_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="needs at least one, got sample=0"):
        circuits(with_head("gpt2"), sample=0)


# --------------------------------------------------------------------------------------------------------- compositions


def drawn_composition() -> Composition:
    values = np.full((3, 1, 3, 1), np.nan)
    values[0, 0, 1, 0], values[0, 0, 2, 0], values[1, 0, 2, 0] = -0.1, 0.3, 0.2
    return Composition("k", values, 0.25)


def test_best_pairs_come_in_order() -> None:
    best = drawn_composition().best(2)
    assert [str(pair) for pair in best] == ["L0H0 to L2H0", "L1H0 to L2H0"]
    assert [pair.value for pair in best] == [0.3, 0.2]
    assert len(drawn_composition().best(10)) == 3
    assert drawn_composition().best(0) == []


def test_largest_is_of_the_head_that_reads() -> None:
    np.testing.assert_array_equal(drawn_composition().largest(), [[np.nan], [-0.1], [0.3]])


def test_frame_has_a_row_for_each_pair() -> None:
    frame = drawn_composition().to_frame()
    assert frame.columns.tolist() == ["kind", "from_layer", "from_head", "layer", "head", "value"]
    assert frame.values.tolist() == [["k", 0, 0, 1, 0, -0.1], ["k", 0, 0, 2, 0, 0.3], ["k", 1, 0, 2, 0, 0.2]]


def test_what_a_layer_norm_hides_is_taken_off_what_heads_write() -> None:
    shapes = [(1, 4, 2), (1, 4, 2), (1, 4, 2), (1, 2, 4)]
    weights = HeadWeights(*(torch.arange(8.0).reshape(shape) for shape in shapes))
    seen = weights.seen_through(Norm(torch.ones(4), is_centring=True))
    assert seen.o[0].tolist() == [[-1.5, -0.5, 0.5, 1.5], [-1.5, -0.5, 0.5, 1.5]]
    assert seen.v[0].tolist() == [[-3, -3], [-1, -1], [1, 1], [3, 3]]
    assert torch.equal(weights.seen_through(Norm(torch.ones(4), is_centring=False)).o, weights.o)
