"""Where attention layers and their output projections are, proved by running the models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from headlens.arch import (
    SPECS,
    Site,
    attention_sites,
    is_causal_model,
    output_bias,
    output_projection,
    output_weight,
)
from headlens.attention import MultiHeadAttention, head_contributions
from headlens.capture import capture
from headlens.errors import UnsupportedModel
from headlens.records import LayerAttention
from headlens.replace import replace_attention
from headlens.testing import FAMILIES, padded_inputs, tiny_model

WATCHED = [family for family in FAMILIES if family not in ("deberta_v2", "gpt_neo", "falcon", "bloom")]
CAUSAL = ("gpt2", "gpt_neox", "opt", "llama", "mistral", "qwen2", "qwen3", "gemma2")
TWO_STACKS = ("t5", "bart")
ALBERT = {
    "vocab_size": 99,
    "embedding_size": 16,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "num_hidden_layers": 5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def inputs_of(family: str) -> dict[str, Tensor]:
    if family == "vit":
        return {"pixel_values": torch.randn(2, 3, 16, 16, dtype=torch.float64)}
    inputs = padded_inputs()
    return inputs | ({"decoder_input_ids": inputs["input_ids"]} if family in TWO_STACKS else {})


@contextmanager
def calls_noted(modules: list[nn.Module]) -> Iterator[list[nn.Module]]:
    """The modules in the order in which a forward pass calls them."""
    called: list[nn.Module] = []
    handles = [m.register_forward_pre_hook(lambda m, _: called.append(m)) for m in dict.fromkeys(modules)]
    try:
        yield called
    finally:
        for handle in handles:
            handle.remove()


def check_order(model: nn.Module, inputs: dict[str, Tensor], sites: list[Site]) -> None:
    with torch.no_grad(), calls_noted([site.module for site in sites]) as called:
        model(**inputs)
    for stack in {site.stack for site in sites}:
        own = [site for site in sites if site.stack == stack]
        assert [site.layer for site in own] == list(range(len(own)))
        assert [m for m in called if m in {site.module for site in own}] == [site.module for site in own]


@pytest.mark.parametrize("family", WATCHED)
def test_every_layer_is_found_once_in_the_order_of_the_calls(family: str) -> None:
    model = tiny_model(family, layers=4)
    sites = attention_sites(model)
    expected = {"encoder": 4} if family not in CAUSAL else {"decoder": 4}
    if family in TWO_STACKS:
        expected = {"encoder": 4, "decoder": 4, "cross": 4}
    assert {stack: sum(s.stack == stack for s in sites) for stack in expected} == expected
    assert len(sites) == sum(expected.values())
    assert all(model.get_submodule(site.name) is site.module for site in sites)
    assert all(site.is_shared == (family == "albert") for site in sites)
    check_order(model, inputs_of(family), sites)


@pytest.mark.parametrize(("groups", "inner", "count"), [(1, 1, 5), (2, 1, 5), (1, 2, 10), (2, 2, 10), (5, 1, 5)])
def test_shared_layers_are_counted_as_often_as_they_are_called(groups: int, inner: int, count: int) -> None:
    config = hf.AlbertConfig(**ALBERT, num_hidden_groups=groups, inner_group_num=inner)
    model = hf.AlbertModel(config).eval()
    sites = attention_sites(model)
    assert len(sites) == count
    assert len({site.module for site in sites}) == groups * inner
    check_order(model, padded_inputs(), sites)


@pytest.mark.parametrize("family", WATCHED)
def test_families_with_an_entry_say_whether_they_are_causal(family: str) -> None:
    # capture leaves the causal mask of such a family out where nothing is padded, and trusts the modules
    model = tiny_model(family, layers=1)
    assert model.config.model_type in SPECS
    for site in attention_sites(model):
        assert site.module.is_causal is (site.stack == "decoder")


@pytest.mark.parametrize("family", [family for family in WATCHED if family != "vit"])
def test_a_causal_model_never_looks_ahead(family: str) -> None:
    model = tiny_model(family)
    network = model.get_encoder() if family in TWO_STACKS else model
    first, second = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[5, 6, 7, 9]])
    with torch.no_grad():
        states = [network(input_ids=ids).last_hidden_state[:, :3] for ids in (first, second)]
    assert is_causal_model(network) is torch.equal(*states)
    assert is_causal_model(model) is is_causal_model(network)


@pytest.mark.parametrize("family", WATCHED)
def test_what_enters_the_output_projection_are_the_heads_side_by_side(family: str) -> None:
    model = tiny_model(family)
    sites = attention_sites(model)
    projections = [output_projection(model, site) for site in sites]
    went_in: dict[nn.Module, list[Tensor]] = {}
    came_out: dict[nn.Module, list[Tensor]] = {}

    def note(module: nn.Module, args: tuple[Tensor], output: Tensor) -> None:
        went_in.setdefault(module, []).append(args[0])
        came_out.setdefault(module, []).append(output)

    for projection in dict.fromkeys(projections):
        projection.register_forward_hook(note)
    seen: dict[tuple[str, int], LayerAttention] = {}
    with torch.no_grad(), capture(model, lambda a: seen.__setitem__((a.stack, a.layer), a)):
        model(**inputs_of(family))
    for site, projection in zip(sites, projections, strict=True):
        context = seen[site.stack, site.layer].context
        assert torch.equal(went_in[projection].pop(0), context.transpose(1, 2).flatten(-2))
        weight, bias = output_weight(projection, context.shape[1]), output_bias(projection)
        total = head_contributions(context, weight).sum(dim=1) + (0 if bias is None else bias)
        torch.testing.assert_close(total, came_out[projection].pop(0), rtol=0, atol=1e-10)
    assert not any(went_in.values())


def test_the_bias_is_none_where_there_is_none() -> None:
    for family, has_bias in (("llama", False), ("gpt2", True)):
        model = tiny_model(family, layers=1)
        projection = output_projection(model, attention_sites(model)[0])
        assert (output_bias(projection) is not None) == has_bias


@pytest.mark.parametrize("family", TWO_STACKS)
def test_a_half_of_an_encoder_decoder_model(family: str) -> None:
    model = tiny_model(family)
    encoder, decoder = attention_sites(model.get_encoder()), attention_sites(model.get_decoder())
    assert [(site.stack, site.layer) for site in encoder] == [("encoder", layer) for layer in range(3)]
    assert [site.stack for site in decoder] == ["decoder", "cross"] * 3


def test_two_models_joined_to_an_encoder_and_a_decoder() -> None:
    sizes = {"vocab_size": 99, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    reader, writer = hf.BertConfig(**sizes, num_hidden_layers=1), hf.BertConfig(**sizes, num_hidden_layers=2)
    model = hf.EncoderDecoderModel(hf.EncoderDecoderConfig.from_encoder_decoder_configs(reader, writer)).eval()
    sites = attention_sites(model)
    kinds = [("encoder", 0), ("decoder", 0), ("cross", 0), ("decoder", 1), ("cross", 1)]
    assert [(site.stack, site.layer) for site in sites] == kinds
    check_order(model, inputs_of("bert") | {"decoder_input_ids": inputs_of("bert")["input_ids"]}, sites)


def test_a_model_with_a_head() -> None:
    masked = hf.BertForMaskedLM(tiny_model("bert").config)
    sites = attention_sites(masked)
    assert sites[1].name == "bert.encoder.layer.1.attention.self"
    assert output_projection(masked, sites[1]) is masked.bert.encoder.layer[1].attention.output.dense
    assert str(sites[1]) == "encoder layer 1 (bert.encoder.layer.1.attention.self)"


@pytest.mark.parametrize(("family", "stack"), [("bert", "encoder"), ("gpt2", "decoder"), ("llama", "decoder")])
def test_replaced_layers_are_found_with_their_own_projection(family: str, stack: str) -> None:
    model = tiny_model(family)
    replace_attention(model)
    sites = attention_sites(model)
    assert [(site.stack, site.layer) for site in sites] == [(stack, layer) for layer in range(3)]
    for site in sites:
        assert isinstance(site.module, MultiHeadAttention)
        assert output_projection(model, site) is site.module.o_proj


def test_an_attention_layer_by_itself_is_a_model_of_one_layer() -> None:
    mha = MultiHeadAttention(8, 2)
    (site,) = attention_sites(mha)
    assert (site.name, site.module, site.stack, site.layer) == ("", mha, "encoder", 0)
    assert output_projection(mha, site) is mha.o_proj


@pytest.mark.parametrize("family", ["deberta_v2", "gpt_neo", "falcon", "bloom"])
def test_attention_off_the_interface_is_refused(family: str) -> None:
    model = tiny_model(family, layers=1)
    message = rf"{type(model).__name__} \(model_type '{model.config.model_type}'\).*models such as BERT"
    with pytest.raises(UnsupportedModel, match=message):
        attention_sites(model)


def test_what_is_no_transformer_is_refused() -> None:
    written_in_a_shell: dict[str, type] = {"Module": nn.Module}
    exec("class Odd(Module):\n    def forward(self, x): return x", written_in_a_shell)  # has no source to read
    with pytest.raises(UnsupportedModel, match=r"Sequential \(model_type 'Sequential'\)"):
        attention_sites(nn.Sequential(nn.Linear(2, 2), written_in_a_shell["Odd"]()))


def test_an_unknown_family_can_be_watched_but_its_projections_are_not_guessed() -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = hf.SplinterModel(hf.SplinterConfig(vocab_size=99, question_token_id=3, **sizes))
    (site,) = attention_sites(model)
    with pytest.raises(UnsupportedModel, match=r"'splinter' keeps.*known: albert, .*Add one line to SPECS"):
        output_projection(model, site)


def test_a_projection_that_is_not_where_its_family_has_it_is_named() -> None:
    model = tiny_model("bert", layers=1)
    (site,) = attention_sites(model)
    del model.encoder.layer[0].attention.output.dense
    with pytest.raises(UnsupportedModel, match=r"'bert' should have.*encoder.layer.0.attention.output.dense"):
        output_projection(model, site)
