"""Streamed moments are the means that a plain loop over tokens, heads and queries gives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from converted import FAMILIES, PER_LAYER, spread, with_shared
from torch import Tensor
from transformers import PreTrainedModel

from headlens.conversion.carriers import converted
from headlens.conversion.moments import Moments, moments_of
from headlens.conversion.weights import read_layer, read_layers
from headlens.errors import CaptureError, CorpusError, UnsupportedModel
from headlens.replace import record_calls
from headlens.surgery import apply_plan, full_plan
from headlens.testing import padded_inputs, slow_attentions, tiny_model

PARTS = ("plain", "keyed", "mixed", "queries")


@dataclass(frozen=True, eq=False)
class Text:
    input_ids: Tensor
    attention_mask: Tensor


def text(rows: slice = slice(None), side: Any = "right") -> Text:
    inputs = padded_inputs(side=side)
    return Text(inputs["input_ids"][rows], inputs["attention_mask"][rows])


@torch.no_grad()
def slow_moments(model: PreTrainedModel, layer: int) -> dict[str, Tensor]:
    """Sentence by sentence without padding, token by token."""
    (patterns,) = slow_attentions(model, padded_inputs()).values()
    plain: Any = 0
    keyed, mixed, queries, tokens = plain, plain, plain, 0
    weights = read_layer(model, layer)
    for sentence, pattern in enumerate(patterns[layer]):
        count = pattern.shape[-1]
        ids = padded_inputs()["input_ids"][sentence : sentence + 1, :count]
        hidden = record_calls(model, input_ids=ids)[layer].hidden[0]
        inputs = torch.cat([hidden, torch.ones(count, 1).double()], dim=1)
        heads = len(pattern)
        for token in range(count):
            plain = plain + torch.outer(inputs[token], inputs[token])
            mass = sum(pattern[head, query, token] for head in range(heads) for query in range(count)) / heads
            keyed = keyed + mass * torch.outer(inputs[token], inputs[token])
            for head in range(heads):
                seen = pattern[head, token].double() @ inputs
                mixed = mixed + torch.outer(seen, seen) / heads
            query = torch.einsum("hdi,i->hd", weights.q, hidden[token])
            queries = queries + (query if weights.q_bias is None else query + weights.q_bias).square()
        tokens += count
    if weights.rotary is not None:
        pairs = weights.rotary.pairs
        queries = torch.cat([queries[:, :pairs] + queries[:, pairs : 2 * pairs], queries[:, 2 * pairs :]], dim=1)
    return {"plain": plain / tokens, "keyed": keyed / tokens, "mixed": mixed / tokens, "queries": queries / tokens}


def parts(moments: Moments) -> dict[str, Tensor]:
    return {name: getattr(moments, name) for name in PARTS}


@pytest.mark.parametrize("family", FAMILIES)
def test_moments_are_those_of_a_plain_loop(family: str) -> None:
    model = tiny_model(family)
    found = moments_of(model, [text()])
    assert [each.tokens for each in found] == [23, 23, 23]  # 12 + 7 + 4
    for layer, moments in enumerate(found):
        # the eager attention of many model files takes its softmax in float32
        torch.testing.assert_close(parts(moments), slow_moments(model, layer), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ["bert", "gpt2", "opt", "llama"])
def test_batches_and_padding_make_no_difference(family: str) -> None:
    model = tiny_model(family)
    whole = moments_of(model, [text()])
    apart = moments_of(model, [text(slice(2, 3)), text(slice(0, 2))])
    left = moments_of(model, [text(side="left")])
    for one, other, third in zip(whole, apart, left, strict=True):
        torch.testing.assert_close(parts(one), parts(other), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(parts(one), parts(third), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["plain", "keyed", "mixed"])
def test_the_constant_has_moment_one(name: str) -> None:
    for moments in moments_of(tiny_model("bert"), [text()]):
        found = getattr(moments, name)
        assert found[-1, -1].item() == pytest.approx(1, abs=1e-12)
        torch.testing.assert_close(found, found.T, rtol=0, atol=1e-10)
        assert torch.linalg.eigvalsh(found)[0] > -1e-10


def test_a_shared_model_has_the_moments_of_its_layers() -> None:
    model = tiny_model("gpt2")
    layers = with_shared(read_layers(model), PER_LAYER)
    shared, copied = (moments_of(converted(model, some), [text()]) for some in (layers, spread(layers)))
    for one, other, layer in zip(shared, copied, layers, strict=True):
        ordered = replace(other, queries=other.queries[layer.order])
        torch.testing.assert_close(parts(one), parts(ordered), rtol=0, atol=1e-10)


def test_a_layer_without_heads_has_plain_moments_alone() -> None:
    model = tiny_model("bert")
    pruned = apply_plan(model, full_plan(model).without([(0, 1), *((1, head) for head in range(4))]))
    first, empty, _ = moments_of(pruned, [text()])
    assert first.queries.shape == (3, 8)
    assert empty.plain[-1, -1] == 1
    assert empty.queries.shape == (0, 8)
    assert not empty.keyed.any()
    assert not empty.mixed.any()


def test_progress_is_told() -> None:
    said: list[str] = []
    moments_of(tiny_model("bert"), [text(), text(slice(0, 1))], say=said.append)
    assert said == ["moments of 23 tokens", "moments of 35 tokens"]


def test_nothing_is_left_on_the_model() -> None:
    model = tiny_model("gpt2")
    moments_of(model, [text()])
    assert not any(module._forward_pre_hooks for module in model.modules())
    with pytest.raises(CaptureError, match="train mode"):
        moments_of(model.train(), [text()])
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("batches", [[], [Text(torch.zeros(1, 3).long(), torch.zeros(1, 3).long())]])
def test_no_text_is_refused(batches: list[Text]) -> None:
    with pytest.raises(CorpusError, match="not one token"):
        moments_of(tiny_model("bert"), batches)


def test_inputs_that_are_not_finite_are_refused() -> None:
    model = tiny_model("gpt2")
    with torch.no_grad():
        model.wte.weight[padded_inputs()["input_ids"][0, 0]] = torch.inf
    with pytest.raises(CorpusError, match="Layer 0 reads numbers that are not finite"):
        moments_of(model, [text()])


def test_other_families_are_refused_before_any_work() -> None:
    with pytest.raises(UnsupportedModel, match="'albert' cannot be converted"):
        moments_of(tiny_model("albert"), [])
