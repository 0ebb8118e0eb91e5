"""The tools that other tests rest on: weights that tell heads apart, inputs with padding, a reference, drawings."""

from __future__ import annotations

import logging

import jaxtyping
import pytest
import torch
from torch import Tensor

from headlens.errors import InvalidAttention, UnsupportedModel
from headlens.records import Batch
from headlens.testing import FAMILIES, LENGTHS, draw, padded_inputs, slow_attentions, tiny_model

WATCHED = [family for family in FAMILIES if family != "falcon"]


def inputs_of(family: str) -> dict[str, Tensor]:
    if family == "vit":
        return {"pixel_values": torch.randn(3, 3, 16, 16, dtype=torch.float64)}
    inputs = padded_inputs()
    decoder = {f"decoder_{name}": value for name, value in inputs.items()} if family in ("t5", "bart") else {}
    return inputs | decoder


def evenness(pattern: Tensor) -> float:
    """Mean entropy of the rows over that of a uniform row, of rows that may see several keys."""
    seen = (pattern > 0).sum(-1)
    entropy = torch.special.entr(pattern).sum(-1)
    return float((entropy[seen > 1] / seen[seen > 1].log()).mean())


# ---------------------------------------------------------------------------------------------------------- tiny models


@pytest.mark.parametrize("family", WATCHED)
def test_attention_is_far_from_uniform(family: str) -> None:
    stacks = slow_attentions(tiny_model(family), inputs_of(family))
    found = [evenness(pattern) for layers in stacks.values() for layer in layers for pattern in layer]
    # qwen3 norms its queries and keys, so its scores can only spread by about one
    assert sum(found) / len(found) < (0.9 if family == "qwen3" else 0.8)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_is_drawn(family: str) -> None:
    model = tiny_model(family)
    assert not model.training
    spread = {name: float(weight.detach().std()) for name, weight in model.named_parameters()}
    assert {name for name, std in spread.items() if not 0.1 < std < 0.6} == set()  # of 8 numbers at least, around 0.3
    norms = [weight for name, weight in model.named_parameters() if "norm" in name.lower() and name.endswith("weight")]
    centre = 0.0 if family == "gemma2" else 1.0  # which scales by 1 + weight
    assert all(abs(float(weight.detach().mean()) - centre) < 0.4 for weight in norms)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_family_makes_transformers_complain(family: str, messages: list[logging.LogRecord]) -> None:
    tiny_model(family)  # of special tokens beyond the vocabulary, for one
    assert [record.getMessage() for record in messages if record.levelno >= logging.WARNING] == []


def test_the_draw_depends_on_the_seed_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = tiny_model("gpt2").state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    again, single, other = tiny_model("gpt2"), tiny_model("gpt2", dtype=torch.float32), tiny_model("gpt2", seed=1)
    for name, weight in again.named_parameters():
        assert torch.equal(weight, first[name])
        assert torch.equal(single.get_parameter(name), first[name].float())
        assert not torch.equal(other.get_parameter(name), first[name])


def test_layers_heads_and_overrides_reach_the_config() -> None:
    config = tiny_model("llama", layers=2, heads=6, num_key_value_heads=1, head_dim=4).config
    assert (config.num_hidden_layers, config.num_attention_heads) == (2, 6)
    assert (config.num_key_value_heads, config.head_dim, config.hidden_size) == (1, 4, 48)


@pytest.mark.parametrize(
    ("family", "overrides", "message"),
    [
        ("perceptron", {}, "no tiny model of 'perceptron'; there are: bert, "),
        ("gpt2", {"head_size": 3}, "The config of 'gpt2' has no entry of the name 'head_size'"),
    ],
)
def test_what_a_family_does_not_have_is_refused(family: str, overrides: dict[str, int], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        tiny_model(family, **overrides)


@pytest.mark.parametrize("family", ["mistral", "gemma2", "modernbert"])
def test_windows_are_shorter_than_the_longest_sentence(family: str) -> None:
    stacks = slow_attentions(tiny_model(family), padded_inputs())
    distance = (torch.arange(12)[:, None] - torch.arange(12)).abs()
    narrow = [layer for layers in stacks.values() for layer in layers if layer[0][:, distance > 5].max() == 0]
    assert len(narrow) == {"mistral": 3, "gemma2": 2, "modernbert": 2}[family]


# --------------------------------------------------------------------------------------------------------------- inputs


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_is_on_the_side_asked_for(side: str) -> None:
    inputs = padded_inputs(side=side)
    ids, mask = inputs["input_ids"], inputs["attention_mask"].bool()
    assert mask.sum(-1).tolist() == list(LENGTHS)
    assert mask[:, 0 if side == "right" else -1].all()
    assert (ids[~mask] == 0).all()
    assert ((ids[mask] >= 5) & (ids[mask] < 99)).all()
    assert torch.equal(ids[mask], padded_inputs()["input_ids"][padded_inputs()["attention_mask"].bool()])


# ------------------------------------------------------------------------------------------------------------ reference


def test_the_reference_is_softmax_of_scaled_scores() -> None:
    model, inputs = tiny_model("bert"), padded_inputs()
    pattern = slow_attentions(model, inputs)["encoder"][0]
    own = model.encoder.layer[0].attention.self
    for sentence, length in enumerate(LENGTHS):
        x = model.embeddings(inputs["input_ids"][sentence : sentence + 1, :length])[0]
        q, k = (layer(x).view(length, 4, 8).transpose(0, 1) for layer in (own.query, own.key))
        expected = (q @ k.transpose(1, 2) / 8**0.5).softmax(-1)
        torch.testing.assert_close(pattern[sentence], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", WATCHED)
def test_the_reference_has_a_pattern_for_every_sentence_and_no_padding(family: str) -> None:
    stacks = slow_attentions(tiny_model(family), inputs_of(family))
    causal = {"gpt2", "gpt_neox", "opt", "llama", "mistral", "qwen2", "qwen3", "gemma2", "gpt_neo", "bloom"}
    both = {"encoder", "decoder", "cross"}
    assert set(stacks) == (both if family in ("t5", "bart") else {"decoder"} if family in causal else {"encoder"})
    lengths = [17, 17, 17] if family == "vit" else list(LENGTHS)
    for layers in stacks.values():
        assert [[tuple(pattern.shape) for pattern in layer] for layer in layers] == [[(4, n, n) for n in lengths]] * 3
        for pattern in (pattern for layer in layers for pattern in layer):
            # transformers takes the softmax of some families in float32, whatever the weights are
            torch.testing.assert_close(pattern.sum(-1), torch.ones_like(pattern[..., 0]), rtol=0, atol=1e-6)


def test_the_reference_leaves_the_model_as_it_was() -> None:
    model = tiny_model("gpt2")
    slow_attentions(model, padded_inputs(side="left"))
    assert model.config._attn_implementation == "sdpa"
    assert not any(module._forward_hooks for module in model.modules())


def test_a_family_that_cannot_be_switched_gives_no_reference() -> None:
    with pytest.raises(UnsupportedModel, match="FalconModel cannot be switched to eager attention"):
        slow_attentions(tiny_model("falcon"), padded_inputs())


# ------------------------------------------------------------------------------------------------------------- drawings


def test_a_drawing_is_a_matrix() -> None:
    expected = torch.tensor([[1, 0, 0], [0.25, 0.75, 0]], dtype=torch.float64)
    assert torch.equal(draw(["1 . .", ".25 .75  ."]), expected)


@pytest.mark.parametrize(
    ("rows", "message"),
    [(["1 .", "1"], r"one length, got \[2, 1\]"), (["1 x"], "numbers and dots"), ([], "one length")],
)
def test_a_crooked_drawing_is_refused(rows: list[str], message: str) -> None:
    with pytest.raises(InvalidAttention, match=message):
        draw(rows)


# --------------------------------------------------------------------------------------------- what tests run under


def test_shapes_are_checked_at_run_time() -> None:
    ids, mask = torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 4, dtype=torch.bool)
    with pytest.raises(jaxtyping.TypeCheckError):
        Batch(input_ids=ids, attention_mask=mask, special=~mask, document=torch.arange(2))
