"""Arrays of a few texts: what a slow run of one text at a time gives, in the order of the texts, without padding."""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from headlens.arch import attention_sites, output_projection
from headlens.collect import Collected, bytes_needed
from headlens.collect import collect as collect_arrays
from headlens.errors import CaptureError, CorpusError
from headlens.records import Stack
from headlens.replace import replace_attention
from headlens.testing import slow_attentions, tiny_model

WORDS = ["the", "cat", "sat", "on", "mat", "and", "a", "dog", "ran", "far", "away", "from", "here"]
TEXTS = [
    "the cat sat on the mat and a dog ran far",
    "a dog",
    "the cat ran away from a dog and sat on a mat here",
    "cat",
]
collect: Any = collect_arrays  # what was not asked for is None, and the type checker knows not what was
EVERYTHING: Any = ("q", "k", "v", "probs", "context", "contribution")


def assert_near(found: Any, expected: Any) -> None:
    """Equal up to float32 sums in another order, as sentences of another length have them."""
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@lru_cache
def tokenizer() -> PreTrainedTokenizerFast:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(special + WORDS)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.Replace("#", "")
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece()
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    backend.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


@lru_cache
def model_of(family: str) -> PreTrainedModel:
    return tiny_model(family, dtype=torch.float32, std=0.2)


def ids_of(text: str) -> dict[str, Tensor]:
    return {"input_ids": tokenizer()(text, return_tensors="pt")["input_ids"]}


def outputs_of(modules: list[nn.Module], model: nn.Module, text: str) -> list[Tensor]:
    """What each of the modules returns for one text."""
    found: dict[nn.Module, Tensor] = {}
    handles = [m.register_forward_hook(lambda m, _, out: found.__setitem__(m, out[0])) for m in modules]
    with torch.no_grad():
        model(**ids_of(text))
    for handle in handles:
        handle.remove()
    return [found[module] for module in modules]


def heads_of(projected: list[Tensor], heads: int) -> NDArray[np.float32]:
    """[layer, head, token, dim] of projections [token, width]."""
    return torch.stack(projected).unflatten(-1, (heads, -1)).transpose(1, 2).numpy()


@pytest.mark.parametrize("family", ["bert", "llama", "mistral", "albert", "gpt2", "gemma2", "t5", "bart"])
def test_probabilities_are_those_of_single_runs_in_the_order_of_the_texts(family: str) -> None:
    model = model_of(family)
    stack: Stack = "encoder" if family in ("bert", "albert", "t5", "bart") else "decoder"
    found = collect(model, tokenizer(), TEXTS, ["probs"])
    assert [item.text for item in found] == TEXTS
    for item in found:
        inputs = ids_of(item.text)
        if family in ("t5", "bart"):
            inputs |= {"decoder_input_ids": inputs["input_ids"]}
        layers = slow_attentions(model, inputs)[stack]
        expected = torch.stack([layer[0] for layer in layers]).numpy()
        assert_near(item.probs, expected)
        assert item.probs.dtype == np.float32
        assert item.q is item.k is item.v is item.context is item.contribution is None


def test_queries_keys_values_and_contexts_are_those_of_single_runs() -> None:
    model = model_of("bert")
    layers = [site.module for site in attention_sites(model)]
    found = collect(model, tokenizer(), TEXTS, EVERYTHING)
    for item in found:
        for name, part in (("q", "query"), ("k", "key"), ("v", "value")):
            projected = outputs_of([getattr(layer, part) for layer in layers], model, item.text)
            assert_near(getattr(item, name), heads_of(projected, 4))
        assert_near(item.probs @ item.v, item.context)


def test_grouped_heads_keep_their_own_number_and_rotation_is_in() -> None:
    model = model_of("llama")
    attention = model.layers[1].self_attn
    for item in collect(model, tokenizer(), TEXTS):
        assert item.q.shape[:2] == item.context.shape[:2] == (3, 4)
        assert item.k.shape[:2] == item.v.shape[:2] == (3, 2)
        (values, keys) = outputs_of([attention.v_proj, attention.k_proj], model, item.text)
        assert_near(item.v[1], heads_of([values], 2)[0])
        assert_near(item.k[1, :, 0], heads_of([keys], 2)[0][:, 0])  # position 0 is not turned
        assert np.abs(item.k[1] - heads_of([keys], 2)[0]).max() > 0.1 or item.text == "cat"
        scores = item.q @ np.repeat(item.k, 2, axis=1).swapaxes(-1, -2) * attention.scaling
        scores[:, :, np.triu(np.ones(scores.shape[-2:], dtype=bool), 1)] = -np.inf
        assert_near(item.probs, torch.from_numpy(scores).softmax(-1).numpy())


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2", "llama", "modernbert", "t5", "bart", "replaced"])
def test_contributions_and_the_bias_are_what_the_layer_writes(family: str) -> None:
    model = copy.deepcopy(model_of("gpt2" if family == "replaced" else family))
    if family == "replaced":
        replace_attention(model)
    network = model.get_encoder() if family in ("t5", "bart") else model
    projections = [output_projection(network, site) for site in attention_sites(network)]
    for item in collect(model, tokenizer(), TEXTS, "contribution"):
        for layer, written in enumerate(outputs_of(projections, network, item.text)):
            bias = getattr(projections[layer], "bias", None)
            total = item.contribution[layer].sum(axis=0) + (0 if bias is None else bias.detach().numpy())
            np.testing.assert_allclose(total, written.numpy(), rtol=1e-4, atol=1e-4)  # a sum of sums of 32 products


def test_cross_attention_layers_that_have_nothing_to_read_do_not_shift_the_others() -> None:
    sizes = {"vocab_size": 99, "n_layer": 3, "n_head": 4, "n_embd": 32, "n_positions": 40}
    config = hf.GPT2Config(**sizes, bos_token_id=1, eos_token_id=2, add_cross_attention=True)
    model = hf.GPT2Model(config).eval()
    projections = [block.attn.c_proj for block in model.h]
    for weight in model.parameters():
        weight.data.normal_(0, 0.2)
    (item,) = collect(model, tokenizer(), TEXTS[0], "contribution")
    for layer, written in enumerate(outputs_of(projections, model, TEXTS[0])):
        total = item.contribution[layer].sum(axis=0) + projections[layer].bias.detach().numpy()
        np.testing.assert_allclose(total, written.numpy(), rtol=1e-4, atol=1e-4)


def test_tokens_stand_beside() -> None:
    found = collect(model_of("bert"), tokenizer(), ["a cat ran", "the dog"], "probs")
    assert [item.tokens for item in found] == [["[CLS]", "a", "cat", "ran", "[SEP]"], ["[CLS]", "the", "dog", "[SEP]"]]
    assert found[1].special.tolist() == [True, False, False, True]
    assert [item.probs.shape for item in found] == [(3, 4, 5, 5), (3, 4, 4, 4)]


def test_one_text_and_many_and_batches_of_few() -> None:
    (alone,) = collect(model_of("bert"), tokenizer(), TEXTS[2], EVERYTHING)
    many = collect(model_of("bert"), tokenizer(), TEXTS * 100, EVERYTHING)
    assert isinstance(alone, Collected)
    assert [item.text for item in many] == TEXTS * 100
    for name in EVERYTHING:
        assert_near(getattr(many[2], name), getattr(alone, name))
        assert_near(getattr(many[398], name), getattr(alone, name))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_comes_as_float32(dtype: torch.dtype) -> None:
    model = tiny_model("bert", dtype=dtype)
    (item,) = collect(model, tokenizer(), TEXTS[0], EVERYTHING)
    assert all(getattr(item, name).dtype == np.float32 for name in EVERYTHING)
    np.testing.assert_allclose(item.probs.sum(-1), 1, atol=1e-2)  # bfloat16 rounds every one of them by up to 0.4%


def test_a_model_with_a_head_gives_the_layers_of_its_body() -> None:
    masked = hf.BertForMaskedLM(copy.deepcopy(model_of("bert").config)).eval()
    masked.bert.load_state_dict(model_of("bert").state_dict(), strict=False)
    (item,), (expected,) = (collect(model, tokenizer(), TEXTS[0]) for model in (masked, model_of("bert")))
    np.testing.assert_array_equal(item.probs, expected.probs)


@pytest.mark.parametrize("family", ["bert", "llama", "gemma2", "t5", "bart"])
def test_the_memory_that_is_reckoned_is_the_memory_that_is_taken(family: str) -> None:
    model = model_of(family)
    network = model.get_encoder() if family in ("t5", "bart") else model
    found = collect(model, tokenizer(), TEXTS, EVERYTHING)
    lengths = [len(item.tokens) for item in found]
    for name in EVERYTHING:
        assert bytes_needed(network, lengths, [name]) == sum(getattr(item, name).nbytes for item in found)


def test_more_memory_than_the_limit_is_refused_with_the_figure() -> None:
    texts = [" ".join(WORDS * 5)] * 30  # 67 tokens: 4 bytes x 3 layers x 4 heads x 67 x 67 x 30 = 6.2 MiB
    message = r"probs of 30 texts take 6 MiB, more than the limit of 2 MiB.*raise limit_bytes"
    with pytest.raises(CaptureError, match=message):
        collect(model_of("bert"), tokenizer(), texts, ["probs"], limit_bytes=2 << 20)
    needed = 4 * 3 * 4 * 67 * 67 * 30
    assert len(collect(model_of("bert"), tokenizer(), texts, ["probs"], limit_bytes=needed)) == 30
    with pytest.raises(CaptureError):
        collect(model_of("bert"), tokenizer(), texts, ["probs"], limit_bytes=needed - 1)


def test_mistakes_are_named() -> None:
    model = model_of("bert")
    unknown, checked = ["probs", "patterns"], collect
    with pytest.raises(CaptureError, match=r"collect knows q, k, v, probs, context, contribution, got patterns"):
        checked.__wrapped__(model, tokenizer(), TEXTS, unknown)  # past the run-time check of types
    with pytest.raises(CorpusError, match=r"1 of 2 texts are longer than the 80 tokens that the model takes"):
        collect(model, tokenizer(), ["a cat", " ".join(WORDS * 7)])
    with pytest.raises(CorpusError, match=r"1 of 2 texts have no token"):
        collect(model, tokenizer(), ["a cat", "#"])
    with pytest.raises(CorpusError):
        collect(model, tokenizer(), [])
    with pytest.raises(CaptureError, match="train mode"):
        collect(tiny_model("bert", dtype=torch.float32).train(), tokenizer(), TEXTS)
