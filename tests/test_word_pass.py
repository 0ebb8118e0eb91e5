"""Attention between words, batch by batch, equals sums and means over what transformers itself reports."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from drawn_words import tokens_of
from torch import Tensor

from headlens.capture import Way, capture
from headlens.errors import CaptureError, MissingAnnotation
from headlens.pooling import candidates
from headlens.records import Batch
from headlens.testing import slow_attentions, tiny_model
from headlens.word_pass import word_attention

DRAWN = ("S 0 0 1 - 2 2 2 3 S", "S 0 1 1 S . . . . .", "S 0 2 3 3 4 S . . .")  # word 1 of the last has no token


def batches() -> list[Batch]:
    return [tokens_of(*DRAWN, inputs=[7, 2, 5]), tokens_of("S 0 1 2 S", inputs=[3])]


def slow_words(probs: Tensor, words: Tensor) -> Tensor:
    """[head, word, word_to] of one input from [head, query, key]: to a word the sum, from a word the mean."""
    found = torch.zeros(len(probs), len(words), len(words), dtype=probs.dtype)
    for word, (start, stop) in enumerate(words.tolist()):
        for to, (first, end) in enumerate(words.tolist()):
            if stop > start and end > first:
                found[:, word, to] = probs[:, start:stop, first:end].sum(dim=2).mean(dim=1)
    return found


def from_transformers(model: torch.nn.Module, batch: Batch) -> list[list[Tensor]]:
    """By layer and input."""
    inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask.long()}
    (layers,) = slow_attentions(model, inputs).values()
    assert batch.words is not None
    return [[slow_words(probs, words) for probs, words in zip(layer, batch.words, strict=True)] for layer in layers]


@pytest.mark.parametrize("slice_bytes", [3000, 1 << 26])  # some two rows, or all
@pytest.mark.parametrize("way", ["fast", "exact"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "albert"])
def test_equal_to_what_transformers_reports(
    family: str, way: Way, slice_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headlens.word_pass.capture", partial(capture, slice_bytes=slice_bytes))
    model = tiny_model(family)
    given = batches()
    tolerance = 1e-6 if family == "llama" else 1e-10  # transformers takes the softmax of Llama in float32
    found = list(word_attention(model, given, way=way))
    assert [batch.input_index.tolist() for batch, _ in found] == [[7, 2, 5], [3]]
    for batch, (_, layers) in zip(given, found, strict=True):
        assert [layer.layer for layer in layers] == [0, 1, 2]
        for layer, expected in zip(layers, from_transformers(model, batch), strict=True):
            torch.testing.assert_close(layer.probs, torch.stack(expected), atol=tolerance, rtol=0)
            assert layer.is_causal == (family in ("gpt2", "llama"))
            assert torch.equal(layer.candidates, candidates(batch, layer.is_causal))


def test_narrow_dtypes_are_pooled_in_single_precision() -> None:
    ((_, layers), *_) = word_attention(tiny_model("bert", dtype=torch.bfloat16), batches())
    assert {layer.probs.dtype for layer in layers} == {torch.float32}


def test_no_batch_is_asked_for_before_its_turn() -> None:
    asked: list[int] = []

    def one_by_one() -> Iterator[Batch]:
        for number, batch in enumerate(batches()):
            asked.append(number)
            yield batch

    found = word_attention(tiny_model("bert"), one_by_one())
    assert asked == []
    next(found)
    assert asked == [0]


def test_nothing_after_the_last_attention_runs() -> None:
    model, ran = tiny_model("bert"), []
    for i, layer in enumerate(model.encoder.layer):
        layer.intermediate.register_forward_hook(lambda *_, i=i: ran.append(i))
    list(word_attention(model, batches()[:1]))
    assert ran == [0, 1]


def test_weights_can_be_fitted_to_what_was_found() -> None:
    (_, layers), *_ = word_attention(tiny_model("bert"), batches())
    weight = torch.ones(4, dtype=torch.float64, requires_grad=True)
    (weight[:, None, None] * layers[0].probs).sum().backward()
    torch.testing.assert_close(weight.grad, layers[0].probs.sum(dim=(0, 2, 3)), atol=1e-12, rtol=0)
    assert torch.is_grad_enabled()


def test_plain_text_is_refused() -> None:
    batch = batches()[0]
    plain = Batch(batch.input_ids, batch.attention_mask, batch.special, batch.document)
    with pytest.raises(MissingAnnotation, match="does not say where its words stand; make batches"):
        list(word_attention(tiny_model("bert"), [plain]))


def test_nan_is_refused_with_its_layer_and_document() -> None:
    model = tiny_model("bert")
    batch = batches()[0]
    with torch.no_grad():  # an id that only the second input has
        batch.input_ids[1, 1] = 97
        model.embeddings.word_embeddings.weight[97] = math.nan
    with pytest.raises(CaptureError, match=r"Layer 0 gave NaN or infinite attention on document 2 \(0-based\)"):
        list(word_attention(model, [batch]))


def test_several_stacks_are_refused() -> None:
    with pytest.raises(CaptureError, match="several attention stacks; run one"):
        list(word_attention(tiny_model("t5"), batches()))


def test_an_encoder_of_two_stacks_is_run_alone() -> None:
    model = tiny_model("bart").get_encoder()
    (_, layers), *_ = word_attention(model, batches()[1:])
    model.set_attn_implementation("eager")
    with torch.no_grad():
        reported = model(input_ids=batches()[1].input_ids, output_attentions=True).attentions
    for layer, probs in zip(layers, reported, strict=True):
        torch.testing.assert_close(layer.probs[0], probs[0, :, 1:4, 1:4], atol=1e-10, rtol=0)
