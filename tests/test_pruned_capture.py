"""Captures of pruned models: every head under the number that it has in the original, and nothing of those removed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, RobertaConfig

from headlens.arch import Site, attention_sites, family_of, heads_present, output_projection, output_weight
from headlens.capture import capture
from headlens.encode import max_length_of
from headlens.errors import CaptureError, PlanError, SelfCheckFailed, UnsupportedModel
from headlens.gates import gates_without
from headlens.model_facts import facts_of
from headlens.models import head_counts
from headlens.plan import CONFIG_ENTRY, HeadPlan, plan_of
from headlens.records import LayerAttention
from headlens.replace import replace_attention
from headlens.selfcheck import check_model
from headlens.surgery import apply_plan, expand_to_multi_head, full_plan
from headlens.testing import padded_inputs, tiny_model

LAYERS, HEADS = 3, 4
# whole key/value groups of a grouped model; layer 1 loses all its heads
REMOVED = [(0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1)]
KEPT = [(0, 1), (), (2, 3)]
SHARED = [(layer, head) for layer in range(LAYERS) for head in (0, 2)]  # of one module that serves all layers
UNEVEN = [(0, 0), (1, 0), (1, 1), (1, 2)]  # every layer keeps a head
FAMILIES = ["bert", "roberta", "distilbert", "gpt2", "gpt_neox", "opt", "llama", "qwen3", "t5", "albert"]

# These take their softmax in float32 whatever the dtype, so that a last digit of float64 moves one of float32.
IN_SINGLE_PRECISION = ("gpt_neox", "opt", "llama", "qwen3")


def tolerance(family: str) -> Any:
    return {"rtol": 0, "atol": 5e-6 if family in IN_SINGLE_PRECISION else 1e-12}


def removed_of(family: str) -> list[tuple[int, int]]:
    return SHARED if family == "albert" else REMOVED


def kept_of(family: str) -> list[tuple[int, ...]]:
    return [(1, 3)] * LAYERS if family == "albert" else list(KEPT)


def encoder_of(model: PreTrainedModel) -> Any:
    return model.get_encoder() if model.config.is_encoder_decoder else model


def pruned(model: PreTrainedModel, removed: list[tuple[int, int]]) -> PreTrainedModel:
    return apply_plan(model, full_plan(model).without(removed))


def reported(model: nn.Module, gates: Tensor | None = None, **options: Any) -> tuple[list[LayerAttention], Tensor]:
    """What a capture delivers, and the last hidden states of the tokens that are no padding."""
    seen: list[LayerAttention] = []
    inputs = padded_inputs()
    with torch.no_grad(), capture(model, seen.append, gates, **options):
        hidden = model(**inputs)[0]
    return seen, hidden[inputs["attention_mask"].bool()]


# ------------------------------------------------------------------------------------------------------------- layers


@pytest.mark.parametrize("family", FAMILIES)
def test_sites_name_the_heads_that_are_there(family: str) -> None:
    sites = attention_sites(encoder_of(pruned(tiny_model(family), removed_of(family))))
    assert [site.heads for site in sites] == kept_of(family)
    assert {site.heads_before for site in sites} == {HEADS}
    assert [site.is_empty for site in sites] == [heads == () for heads in kept_of(family)]


def test_the_plan_of_two_stacks_is_for_the_encoder() -> None:
    sites = attention_sites(pruned(tiny_model("t5"), REMOVED))
    assert [site.heads for site in sites if site.stack == "encoder"] == KEPT
    assert {site.heads for site in sites if site.stack != "encoder"} == {None}


def test_present_heads_stand_where_they_were() -> None:
    present = heads_present(attention_sites(pruned(tiny_model("bert"), REMOVED)))
    expected = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1]], dtype=torch.bool)
    assert present is not None
    torch.testing.assert_close(present, expected)


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_where_no_head_is_missing_nothing_is_said(family: str) -> None:
    model = tiny_model(family)
    whole = [model, apply_plan(model, full_plan(model)), expand_to_multi_head(model)]
    for sites in map(attention_sites, whole):
        assert {site.heads for site in sites} == {None}
        assert heads_present(sites) is None


def test_a_plan_for_another_model_is_refused() -> None:
    model = tiny_model("bert")
    setattr(model.config, CONFIG_ENTRY, HeadPlan.full(2, HEADS).without([(0, 0)]).to_dict())
    with pytest.raises(PlanError, match="for 2 layers of heads and the model has 3"):
        attention_sites(model)


@pytest.mark.parametrize("way", ["exact", "fast"])
def test_a_plan_that_the_weights_do_not_follow_is_refused(way: Any) -> None:
    model = tiny_model("bert")
    setattr(model.config, CONFIG_ENTRY, HeadPlan.full(LAYERS, HEADS).without([(0, 0)]).to_dict())
    with pytest.raises(CaptureError, match=r"layer 0 \(.*\) computes 4 heads and the plan .* leaves it 3"):
        reported(model, way=way)


# ---------------------------------------------------------------------------------------------------------- attention


@pytest.mark.parametrize("way", ["exact", "fast"])
@pytest.mark.parametrize("family", FAMILIES)
def test_heads_do_what_they_do_in_the_original_with_the_others_silenced(family: str, way: Any) -> None:
    model, off = tiny_model(family), removed_of(family)
    network = encoder_of(pruned(model, off))
    found, hidden = reported(network, way=way, slice_bytes=1 << 20)
    gates = gates_without((LAYERS, HEADS), off).double()
    whole, expected = reported(encoder_of(model), gates, way=way, slice_bytes=1 << 20)
    torch.testing.assert_close(hidden, expected, **tolerance(family))
    assert [(one.layer, one.head_ids) for one in found] == [
        (layer, heads) for layer, heads in enumerate(kept_of(family)) if heads
    ]
    real = padded_inputs()["attention_mask"].bool()
    for one in found:
        for name in ("q", "probs", "context"):
            before = getattr(whole[one.layer], name)[:, list(one.head_ids or ())]
            of_rows = [values.transpose(1, 2)[real] for values in (getattr(one, name), before)]
            torch.testing.assert_close(*of_rows, **tolerance(family))


def test_the_order_in_which_a_checkpoint_holds_its_heads_is_followed() -> None:
    model = tiny_model("bert")
    plan = HeadPlan(HEADS, HEADS, (((2,), (0,)), ((1,),), ((3,), (1,), (0,))))
    found, _ = reported(apply_plan(model, plan))
    assert [one.head_ids for one in found] == [(2, 0), (1,), (3, 1, 0)]
    whole, _ = reported(model)
    torch.testing.assert_close(found[0].probs, whole[0].probs[:, [2, 0]], rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_a_model_without_any_heads_can_be_run(family: str) -> None:
    model = tiny_model(family)
    everything = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
    for way in ("exact", "fast", "both"):
        seen, hidden = reported(pruned(model, everything), way=way)
        assert seen == []
        _, expected = reported(model, torch.zeros(LAYERS, HEADS, dtype=torch.float64))
        torch.testing.assert_close(hidden, expected, **tolerance(family))


@pytest.mark.parametrize("way", ["exact", "fast"])
def test_a_layer_of_no_heads_that_calls_the_interface_is_let_pass(way: Any) -> None:
    model = pruned(tiny_model("bert"), REMOVED)
    del model.encoder.layer[1].attention.self.forward  # surgery's own, which asks nobody
    found, hidden = reported(model, way=way)
    assert [one.layer for one in found] == [0, 2]
    _, expected = reported(pruned(tiny_model("bert"), REMOVED))
    torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-12)


def test_replaced_layers_are_numbered_as_those_that_they_replace() -> None:
    model = pruned(tiny_model("bert"), UNEVEN)
    before, hidden = reported(model)
    replace_attention(model)
    after, again = reported(model)
    assert [one.head_ids for one in after] == [one.head_ids for one in before] == [(1, 2, 3), (3,), (0, 1, 2, 3)]
    torch.testing.assert_close(again, hidden, rtol=0, atol=1e-12)
    gates = torch.ones(LAYERS, HEADS, dtype=torch.float64)
    gates[1, 3] = 0
    silenced, expected = (reported(one, gates)[1] for one in (model, pruned(tiny_model("bert"), [*UNEVEN, (1, 3)])))
    torch.testing.assert_close(silenced, expected, rtol=0, atol=1e-12)


def test_a_layer_without_heads_cannot_be_replaced() -> None:
    with pytest.raises(UnsupportedModel, match=r"layer 1 .* has lost all its heads"):
        replace_attention(pruned(tiny_model("bert"), REMOVED))


# -------------------------------------------------------------------------------------------------------------- gates


@pytest.mark.parametrize("way", ["exact", "fast"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "albert"])
def test_gates_name_heads_by_their_original_numbers(family: str, way: Any) -> None:
    model, off = tiny_model(family), removed_of(family)
    gates = torch.linspace(0.2, 1.4, LAYERS * HEADS, dtype=torch.float64).view(LAYERS, HEADS)
    _, found = reported(pruned(model, off), gates, way=way)
    _, expected = reported(model, gates * gates_without((LAYERS, HEADS), off), way="exact")
    torch.testing.assert_close(found, expected, **tolerance(family))


def test_gates_of_removed_heads_do_nothing_and_get_no_gradient() -> None:
    model = pruned(tiny_model("bert"), REMOVED)
    gates = torch.full((3, LAYERS, HEADS), 0.7, dtype=torch.float64, requires_grad=True)  # one set for each sentence
    with capture(model, gates=gates):
        model(**padded_inputs())[0][:, 0].square().sum().backward()
    is_there = heads_present(attention_sites(model))
    assert gates.grad is not None
    assert is_there is not None
    assert torch.equal(gates.grad != 0, is_there.expand_as(gates))


@pytest.mark.parametrize("shape", [(LAYERS, 2), (2, HEADS), (LAYERS, HEADS + 1)])
def test_gates_are_as_many_as_the_original_has_heads(shape: tuple[int, int]) -> None:
    with pytest.raises(CaptureError, match=r"with 3 layers and 4 heads, got"):
        reported(pruned(tiny_model("bert"), REMOVED), torch.ones(shape))


# --------------------------------------------------------------------------------------------------------- self-check


@pytest.mark.parametrize("family", FAMILIES)
def test_pruned_models_pass_the_self_check(family: str) -> None:
    check = check_model(encoder_of(pruned(tiny_model(family), removed_of(family))))
    assert check.passed
    assert check.layers == len([heads for heads in kept_of(family) if heads])
    assert len(check.laws) == 7


def test_a_model_without_heads_passes_the_self_check() -> None:
    everything = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
    check = check_model(pruned(tiny_model("gpt2"), everything))
    assert check.passed
    assert check.layers == 0


@pytest.mark.parametrize("removed", [REMOVED, [(0, 0)]])
def test_a_fault_in_a_pruned_layer_is_found(removed: list[tuple[int, int]]) -> None:
    model = pruned(tiny_model("bert"), removed)
    projection = output_projection(model, attention_sites(model)[2])
    projection.register_forward_hook(lambda module, inputs, output: output * 1.01)
    with pytest.raises(SelfCheckFailed, match=r"heads' contributions .* encoder layer 2"):
        check_model(model)


def test_a_fault_in_a_layer_without_heads_is_found() -> None:
    model = pruned(tiny_model("bert"), REMOVED)
    own = model.encoder.layer[1].attention.self.forward

    def only_watched(hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        context, probs = own(hidden, *args, **kwargs)
        if model.config._attn_implementation == "headlens":
            hidden.mul_(1.01)
        return context, probs

    model.encoder.layer[1].attention.self.forward = only_watched
    with pytest.raises(SelfCheckFailed, match="watching changes nothing"):
        check_model(model)


# -------------------------------------------------------------------------------------------------------------- facts


class PrunedRobertaConfig(RobertaConfig):
    model_type = "headlens_roberta"


def test_families_of_pruned_models_are_those_of_the_original() -> None:
    assert family_of(RobertaConfig()) == family_of(PrunedRobertaConfig()) == "roberta"
    assert family_of(tiny_model("t5").get_encoder()) == "t5"
    assert family_of(nn.Linear(2, 2)) == "Linear"
    assert family_of(None) == "NoneType"


def test_pruned_models_take_texts_of_the_same_length(grammar_tokenizer: Any) -> None:
    sizes = {"max_position_embeddings": 40, "pad_token_id": 1}
    found = [max_length_of(kind(**sizes), grammar_tokenizer) for kind in (RobertaConfig, PrunedRobertaConfig)]
    assert found == [38, 38]  # positions are counted from the place after that of padding


def test_sizes_are_those_of_the_original_and_what_is_there_is_told() -> None:
    model = tiny_model("llama")
    few = pruned(model, REMOVED)
    assert head_counts(few.config) == head_counts(model.config)
    facts = facts_of(few)
    assert facts["heads_kept"] == 4
    assert HeadPlan.from_dict(facts["plan"]) == plan_of(few.config)
    assert "heads_kept" not in facts_of(model)
    assert "heads_kept" not in facts_of(apply_plan(model, full_plan(model)))


def test_sizes_of_a_config_that_counts_what_is_there_are_those_of_the_original_too() -> None:
    config = copy.deepcopy(tiny_model("mistral").config)
    plan = HeadPlan.full(LAYERS, HEADS, 2).without([(layer, head) for layer in range(LAYERS) for head in (0, 1)])
    setattr(config, CONFIG_ENTRY, plan.to_dict())
    config.head_dim, config.num_attention_heads, config.num_key_value_heads = 8, 2, 1
    assert head_counts(config) == head_counts(tiny_model("mistral").config)


def test_the_output_weight_of_no_heads_is_empty() -> None:
    model = pruned(tiny_model("gpt2"), REMOVED)
    weights = [output_weight(output_projection(model, site), len(site.heads or ())) for site in attention_sites(model)]
    assert [tuple(weight.shape) for weight in weights] == [(2, 8, 32), (0, 0, 32), (2, 8, 32)]


def test_a_site_of_a_model_that_was_never_pruned_is_not_empty() -> None:
    assert not Site("attention", nn.Linear(1, 1), "encoder", 0).is_empty
