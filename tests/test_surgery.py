"""Heads taken out for good: what is left computes what the whole model computes with the others silenced."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    BertLMHeadModel,
    LlamaConfig,
    LlamaModel,
    PreTrainedModel,
    T5ForConditionalGeneration,
)
from transformers.pytorch_utils import Conv1D

from headlens.arch import attention_sites, output_projection
from headlens.capture import capture
from headlens.errors import PlanError, UnsupportedModel
from headlens.plan import HeadPlan, plan_of
from headlens.positions import with_positions
from headlens.surgery import Means, apply_plan, expand_to_multi_head, full_plan, present_plan, resize
from headlens.surgery.shapes import FAMILIES, attention_layers, counts_of, projection_of
from headlens.testing import FAMILIES as TINY
from headlens.testing import padded_inputs, tiny_model

pytestmark = pytest.mark.slow  # many models; CI runs them as its own step

LAYERS, HEADS, DIM, HIDDEN = 3, 4, 8, 32  # of tiny models; some families have another width of a head
GROUPED = ("llama", "mistral", "qwen2", "qwen3")
CAUSAL_LM = ("gpt2", "gpt_neox", "opt", *GROUPED)

# by kind of family, what is removed: a part of a layer, a whole layer, and the first layer, from which caches take
# the length of the text
REMOVED = {
    "some": {
        "single": [(0, 1), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 3)],
        "grouped": [(0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 3)],
        "shared": [(layer, head) for layer in range(3) for head in (1, 3)],
    },
    "first layer": {
        "single": [(0, 0), (0, 1), (0, 2), (0, 3), (2, 2)],
        "grouped": [(0, 0), (0, 1), (0, 2), (0, 3), (2, 0), (2, 1)],
        "shared": [(layer, head) for layer in range(3) for head in range(4)],
    },
}
# of families with a bias in q, k and v, one in W_O, and another width of a head
QKV_BIAS = (*("bert", "roberta", "xlm-roberta", "camembert", "electra", "distilbert", "albert"), "gpt2", "gpt_neox")
QKV_BIAS += ("opt", "qwen2")
DIMS = {"qwen3": 10, "t5": 6}


def kind(family: str) -> str:
    return "grouped" if family in GROUPED else "shared" if family == "albert" else "single"


def removed(family: str, which: str) -> list[tuple[int, int]]:
    return REMOVED[which][kind(family)]


def _roberta_entries() -> dict[str, Any]:
    entries = tiny_model("roberta").config.to_dict()
    return {name: value for name, value in entries.items() if name != "model_type"}


def built(family: str, dtype: torch.dtype = torch.float64, **entries: Any) -> PreTrainedModel:
    if family in TINY:
        return tiny_model(family, dtype=dtype, **entries)
    config = AutoConfig.for_model(family, **_roberta_entries())
    return drawn(AutoModel.from_config(config).to(dtype))


def with_vocabulary(family: str, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    return drawn(AutoModelForCausalLM.from_config(tiny_model(family).config).to(dtype))


@torch.no_grad()
def drawn(model: PreTrainedModel, std: float = 0.3) -> PreTrainedModel:
    generator = torch.Generator().manual_seed(3)
    for _, weight in sorted(model.named_parameters()):
        weight.copy_((weight.dim() == 1) * 1.0 + std * torch.randn(weight.shape, generator=generator))
    return model.eval()


def network(model: PreTrainedModel) -> PreTrainedModel:
    return model.get_encoder() if model.config.is_encoder_decoder else model


def silenced(family: str, which: str) -> Tensor:
    gates = torch.ones(LAYERS, HEADS)
    for layer, head in removed(family, which):
        gates[layer, head] = 0
    return gates


def plan_without(model: PreTrainedModel, off: list[tuple[int, int]]) -> HeadPlan:
    return full_plan(model).without(off)


@torch.no_grad()
def hidden(model: PreTrainedModel, inputs: dict[str, Tensor], implementation: str) -> Tensor:
    """Last hidden states of the real tokens [token, hidden]."""
    runs = network(model)
    runs.set_attn_implementation(implementation)
    handle = runs.register_forward_pre_hook(with_positions, with_kwargs=True)
    found = runs(**inputs).last_hidden_state[inputs["attention_mask"].bool()]
    handle.remove()
    return found


@torch.no_grad()
def zeroed(model: PreTrainedModel, off: list[tuple[int, int]]) -> PreTrainedModel:
    """A copy of full size with zeros in W_O, written by hand."""
    twin = copy.deepcopy(model)
    runs = network(twin)
    for site in attention_sites(runs):
        out: Any = output_projection(runs, site)
        rows = out.weight if type(out).__name__ == "Conv1D" else out.weight.T
        dim = rows.shape[0] // HEADS
        for layer, head in off:
            if layer == site.layer:
                rows[head * dim : (head + 1) * dim] = 0
    return twin


def cache_name(output: Any) -> str:
    return "cache" if "cache" in output else "past_key_values"  # until transformers 5.23


def parameters(model: PreTrainedModel) -> int:
    return sum(weight.numel() for weight in model.parameters())


# ------------------------------------------------------------------------------------------- the same as silenced heads


@pytest.fixture
def sums_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linear layers that add one product after the other. A processor's own matrix product takes other ways through the
    same sums for other sizes, and the last bit of a result depends on the way."""

    def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        total = inputs.new_zeros(*inputs.shape[:-1], weight.shape[0])
        for column, feature in zip(weight.unbind(dim=1), inputs.unbind(dim=-1), strict=True):
            total = total + feature[..., None] * column
        return total if bias is None else total + bias

    monkeypatch.setattr(nn.functional, "linear", linear)
    monkeypatch.setattr(Conv1D, "forward", lambda self, inputs: linear(inputs, self.weight.T, self.bias))


@pytest.mark.usefixtures("sums_in_order")
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("which", REMOVED)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_pruned_model_is_the_gated_one_bit_for_bit(family: str, which: str, side: Any) -> None:
    if family == "distilbert" and side == "left":
        pytest.skip("DistilBERT takes no positions, so its batches are padded on the right")
    # not in float64: there transformers' own masks become infinite in the softmax, which many families take in float32
    model, inputs = built(family, torch.float32), padded_inputs(side=side)
    pruned = apply_plan(model, plan_without(model, removed(family, which)))
    runs = network(model)
    with torch.no_grad(), capture(runs, gates=silenced(family, which)):
        expected = runs(**inputs).last_hidden_state[inputs["attention_mask"].bool()]
    assert torch.equal(hidden(pruned, inputs, "eager"), expected)
    assert (expected - hidden(model, inputs, "eager")).abs().max() > 0.1  # the heads do matter


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_pruned_model_under_sdpa(family: str, dtype: torch.dtype, tolerance: float, side: Any) -> None:
    if family == "distilbert" and side == "left":
        pytest.skip("DistilBERT takes no positions, so its batches are padded on the right")
    model, inputs, which = built(family, dtype), padded_inputs(side=side), "some"
    pruned = apply_plan(model, plan_without(model, removed(family, which)))
    expected = hidden(zeroed(model, removed(family, which)), inputs, "sdpa")
    # float32 keeps 7 digits: of numbers above 1, the tolerance is a share of the largest
    assert (hidden(pruned, inputs, "sdpa") - expected).abs().max() <= tolerance * max(1, expected.abs().max())


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_of_the_gated_model(family: str) -> None:
    model, ids = built(family), padded_inputs()["input_ids"][:1]
    runs, pruned = network(model), network(apply_plan(model, plan_without(model, removed(family, "some"))))
    pruned.set_attn_implementation("eager")
    pruned(ids).last_hidden_state.square().mean().backward()
    with capture(runs, gates=silenced(family, "some")):
        runs(ids).last_hidden_state.square().mean().backward()
    found, expected = (each.get_input_embeddings().weight.grad for each in (pruned, runs))
    assert found is not None
    assert expected is not None
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    for name, _ in attention_layers(pruned):
        for part in FAMILIES[family].parts:
            weight: Any = projection_of(pruned, name, part.path).weight
            assert not weight.numel() or weight.grad.abs().max() > 0


def test_the_model_itself_is_left_as_it_was() -> None:
    model = built("llama")
    before, entries = {name: value.clone() for name, value in model.state_dict().items()}, model.config.to_dict()
    apply_plan(model, plan_without(model, removed("llama", "some")))
    assert model.config.to_dict() == entries
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "t5"])
def test_what_else_is_true_of_weights_and_modules_stays(family: str) -> None:
    model = built(family, torch.bfloat16).requires_grad_(False).train()
    pruned = apply_plan(model, plan_without(model, removed(family, "first layer")))
    assert {weight.dtype for weight in pruned.parameters()} == {torch.bfloat16}
    assert not any(weight.requires_grad for weight in pruned.parameters())
    assert all(module.training for module in pruned.modules())


@pytest.mark.parametrize("family", ["bert", "gpt2", "gpt_neox", "opt"])
def test_heads_may_stand_in_another_order(family: str) -> None:
    model = built(family)
    plan = HeadPlan(HEADS, HEADS, ((((2,), (0,))), ((3,), (1,), (2,)), ((0,),)))
    off = [(0, 1), (0, 3), (1, 0), (2, 1), (2, 2), (2, 3)]
    found = hidden(apply_plan(model, plan), padded_inputs(), "sdpa")
    torch.testing.assert_close(found, hidden(zeroed(model, off), padded_inputs(), "sdpa"), rtol=0, atol=1e-12)


# ------------------------------------------------------------------------------------------- requested equals achieved


@pytest.mark.parametrize("which", REMOVED)
@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_fewer_by_what_the_heads_had(family: str, which: str) -> None:
    model = built(family)
    plan = plan_without(model, removed(family, which))
    pruned = apply_plan(model, plan)
    dim, share = DIMS.get(family, DIM), full_plan(model).kv_heads
    layers = plan.groups[:1] if family == "albert" else plan.groups
    heads = sum(HEADS - sum(map(len, groups)) for groups in layers)
    kv_heads = sum(share - len(groups) for groups in layers)
    fewer = 2 * (heads + kv_heads) * dim * HIDDEN + (family in QKV_BIAS) * (heads + 2 * kv_heads) * dim
    if family == "t5":  # 8 buckets of distances: a table for each layer, in the place of one for all
        fewer -= 8 * (plan.n_kept - HEADS)
    assert parameters(model) - parameters(pruned) == fewer
    assert fewer > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_the_plan_is_in_the_config_and_true_of_the_weights(family: str) -> None:
    model = built(family)
    plan = plan_without(model, removed(family, "some"))
    pruned = apply_plan(model, plan)
    assert plan_of(pruned.config) == plan == present_plan(pruned)
    assert plan_of(network(pruned).config) == plan  # a stack of T5 has a config of its own
    assert counts_of(pruned) == [(len(kept), len(groups)) for kept, groups in zip(plan.kept, plan.groups, strict=True)]
    assert full_plan(pruned) == full_plan(model)
    entries = pruned.config.to_dict()
    assert entries.pop("headlens_plan") == plan.to_dict()
    assert entries == model.config.to_dict()


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("bert", {"num_attention_heads": [3, 0, 2], "all_head_size": [24, 0, 16], "attention_head_size": [8, 8, 8]}),
        ("distilbert", {"n_heads": [3, 0, 2], "attention_head_size": [8, 8, 8]}),
        ("albert", {"num_attention_heads": [2, 2, 2], "all_head_size": [16, 16, 16]}),
        ("gpt2", {"num_heads": [3, 0, 2], "split_size": [24, 0, 16], "head_dim": [8, 8, 8]}),
        ("opt", {"num_heads": [3, 0, 2], "head_dim": [8, 8, 8]}),
        ("gpt_neox", {"num_attention_heads": [3, 0, 2], "head_size": [8, 8, 8]}),
        ("t5", {"n_heads": [3, 0, 2], "inner_dim": [18, 0, 12]}),
        ("llama", {"num_attention_heads": [2, 0, 2], "num_key_value_heads": [1, 0, 2]}),
        ("llama", {"num_key_value_groups": [2, 1, 1], "head_dim": [8, 8, 8]}),
    ],
)
def test_attributes_of_head_counts_stay_true(family: str, expected: dict[str, list[int]]) -> None:
    model = built(family)
    pruned = apply_plan(model, plan_without(model, removed(family, "some")))
    found = {name: [getattr(module, name) for _, module in attention_layers(pruned)] for name in expected}
    assert found == expected
    for module in pruned.modules():
        if isinstance(module, nn.Linear):
            assert (module.out_features, module.in_features) == tuple(module.weight.shape)
        elif type(module).__name__ == "Conv1D":
            assert (module.nx, module.nf) == tuple(module.weight.shape)  # type: ignore[arg-type]


@pytest.mark.parametrize("family", FAMILIES)
def test_three_rounds_are_one(family: str) -> None:
    model = built(family)
    everything = removed(family, "some")
    rounds = [everything[:1], everything[:4], everything]
    if family == "albert":
        rounds = [[pair for pair in everything if pair[1] == 1], everything, everything]
    if family in GROUPED:
        rounds = [everything[:2], everything[:6], everything]
    found = model
    for off in rounds:
        found = apply_plan(found, plan_without(model, off))
    once = apply_plan(model, plan_without(model, everything))
    assert found.state_dict().keys() == once.state_dict().keys()
    assert all(torch.equal(value, once.state_dict()[name]) for name, value in found.state_dict().items())
    assert torch.equal(hidden(found, padded_inputs(), "sdpa"), hidden(once, padded_inputs(), "sdpa"))
    assert found.config.to_dict() == once.config.to_dict()


def test_the_sizes_in_the_config_of_a_loaded_pruned_model_stay_true() -> None:
    model = built("llama")
    model.config.heads_per_layer, model.config.kv_heads_per_layer = [4, 4, 4], [2, 2, 2]
    model.config.output_bias = False
    plan = plan_without(model, removed("llama", "some"))
    pruned = apply_plan(model, plan)
    assert pruned.config.heads_per_layer == [2, 0, 2]
    assert pruned.config.kv_heads_per_layer == [1, 0, 2]
    assert not pruned.config.output_bias
    means = Means([torch.zeros(HEADS, DIM, dtype=torch.float64)] * LAYERS, 1)
    filled = apply_plan(pruned, plan, fill=means)
    assert filled.config.output_bias
    assert apply_plan(filled, plan).config.output_bias


# ------------------------------------------------------------------------------------------------- layers without heads


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in ("t5", *GROUPED)])
def test_a_layer_without_heads_gives_its_output_bias(family: str) -> None:
    model = built(family)
    pruned = apply_plan(model, plan_without(model, removed(family, "first layer")))
    name = attention_layers(pruned)[0][0]
    out: Any = projection_of(pruned, name, FAMILIES[family].out)
    bias: Any = projection_of(model, name, FAMILIES[family].out).bias
    seen = []
    out.register_forward_hook(lambda module, args, output: seen.append(output))
    hidden(pruned, padded_inputs(), "sdpa")
    assert torch.equal(seen[0], bias.expand_as(seen[0]))
    assert bias.abs().max() > 0.1


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_may_lose_all_heads(family: str) -> None:
    model = built(family)
    pruned = apply_plan(model, HeadPlan(HEADS, full_plan(model).kv_heads, ((),) * LAYERS))
    expected = hidden(
        zeroed(model, [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]), padded_inputs(), "sdpa"
    )
    torch.testing.assert_close(hidden(pruned, padded_inputs(), "sdpa"), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize("family", ["bert", "gpt2", "opt", "t5"])
def test_a_copy_without_heads_reads_its_own_weights(family: str, copied: Callable[[Any], Any]) -> None:
    model = built(family)
    pruned = apply_plan(model, plan_without(model, removed(family, "first layer")))
    before = hidden(pruned, padded_inputs(), "eager")
    second = copied(pruned)
    assert torch.equal(hidden(second, padded_inputs(), "eager"), before)
    for parameter in pruned.parameters():
        parameter.data.zero_()
    assert torch.equal(hidden(second, padded_inputs(), "eager"), before)


def test_attentions_are_reported_for_every_layer() -> None:
    model = built("bert")
    pruned = apply_plan(model, plan_without(model, removed("bert", "some")))
    pruned.set_attn_implementation("eager")
    attentions = pruned(**padded_inputs(), output_attentions=True).attentions
    assert [tuple(each.shape) for each in attentions] == [(3, 3, 12, 12), (3, 0, 12, 12), (3, 2, 12, 12)]


# ------------------------------------------------------------------------------------------------------------- decoding


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("which", REMOVED)
@pytest.mark.parametrize("family", CAUSAL_LM)
def test_generating_with_a_cache_is_running_without(family: str, which: str, cache: str) -> None:
    model = with_vocabulary(family)
    pruned = apply_plan(model, plan_without(model, removed(family, which)))
    inputs = padded_inputs(side="left")
    options = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    wanted = pruned.generate(**inputs, **options, use_cache=False, output_logits=True, return_dict_in_generate=True)
    found = pruned.generate(
        **inputs, **options, cache_implementation=cache, output_logits=True, return_dict_in_generate=True
    )
    assert torch.equal(found.sequences, wanted.sequences)
    for step, expected in zip(found.logits, wanted.logits, strict=True):
        torch.testing.assert_close(step, expected, rtol=0, atol=1e-5)  # generate() hands logits on in float32


@pytest.mark.parametrize("which", REMOVED)
@pytest.mark.parametrize("family", CAUSAL_LM)
def test_generate_says_what_the_full_forward_passes_say(family: str, which: str) -> None:
    model = with_vocabulary(family)
    pruned = apply_plan(model, plan_without(model, removed(family, which)))
    ids = padded_inputs()["input_ids"][:1]
    pruned.generation_config.eos_token_id = None
    written = pruned.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0)
    with torch.no_grad():
        said = zeroed(model, removed(family, which))(written).logits.argmax(dim=-1)
    assert torch.equal(written[:, 12:], said[:, 11:-1])


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_cache_holds_no_more_than_the_heads_that_are_left(family: str) -> None:
    model = with_vocabulary(family)
    pruned = apply_plan(model, plan_without(model, removed(family, "some")))
    output = pruned(padded_inputs()["input_ids"], use_cache=True)
    cache = output[cache_name(output)]
    kv_heads = [len(groups) for groups in plan_without(model, removed(family, "some")).groups]
    assert [layer.keys.shape[1] * layer.keys.shape[3] for layer in cache.layers] == [
        DIM * kv_heads[0],
        1,
        DIM * kv_heads[2],
    ]
    assert cache.layers[1].values.numel() == 0


def test_a_bert_that_decodes_keeps_the_length_in_its_cache() -> None:
    config = tiny_model("bert", is_decoder=True).config
    model = drawn(BertLMHeadModel(config).double())
    pruned = apply_plan(model, plan_without(model, removed("bert", "first layer")))
    ids = padded_inputs()["input_ids"][:1]
    with torch.no_grad():
        first = pruned(ids[:, :7], use_cache=True)
        name = cache_name(first)
        found = pruned(ids[:, 7:], **{name: first[name]}).logits
        torch.testing.assert_close(found, pruned(ids).logits[:, 7:], rtol=0, atol=1e-10)


# ---------------------------------------------------------------------------------------------------- T5 and its table


def test_a_translating_t5_with_a_pruned_encoder() -> None:
    model = drawn(T5ForConditionalGeneration(tiny_model("t5").config).double())
    pruned = apply_plan(model, plan_without(model, removed("t5", "first layer")))
    inputs = padded_inputs()
    options = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    expected = zeroed(model, removed("t5", "first layer")).generate(**inputs, **options)
    assert torch.equal(pruned.generate(**inputs, **options), expected)
    assert torch.equal(pruned.generate(**inputs, **options, cache_implementation="static"), expected)
    assert not torch.equal(model.generate(**inputs, **options), expected)


def test_every_layer_of_t5_has_its_heads_position_bias() -> None:
    model = built("t5")
    pruned = apply_plan(model, plan_without(model, removed("t5", "some")))
    table: Any = attention_layers(model)[0][1]
    found: list[Any] = [module for _, module in attention_layers(pruned)]
    columns = [[0, 2, 3], [], [1, 2]]
    for module, kept in zip(found, columns, strict=True):
        assert torch.equal(module.relative_attention_bias.weight, table.relative_attention_bias.weight[:, kept])


@pytest.mark.parametrize("cache", [None, "static"])
def test_a_stack_of_t5_that_decodes_can_be_resized(cache: str | None) -> None:
    model = drawn(T5ForConditionalGeneration(tiny_model("t5").config).double())
    resize(model, [2, 0, 3], [2, 0, 3], stack="decoder")
    assert counts_of(model, "decoder") == [(2, 2), (0, 0), (3, 3)]
    assert counts_of(model) == [(4, 4)] * 3
    drawn(model)
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    expected = model.generate(**padded_inputs(), **options, use_cache=False)
    assert torch.equal(model.generate(**padded_inputs(), **options, cache_implementation=cache), expected)


# --------------------------------------------------------------------------------------------------------------- resize


@pytest.mark.parametrize("family", FAMILIES)
def test_resize_gives_the_shapes_of_a_pruned_model_without_its_weights(family: str) -> None:
    model = built(family)
    plan = plan_without(model, removed(family, "some"))
    pruned = apply_plan(model, plan)
    with torch.device("meta"):
        empty = type(model)(model.config)
    resize(empty, [len(kept) for kept in plan.kept], [len(groups) for groups in plan.groups])
    assert all(weight.is_meta for weight in empty.parameters())
    found = {name: tuple(weight.shape) for name, weight in empty.state_dict().items()}
    assert found == {name: tuple(weight.shape) for name, weight in pruned.state_dict().items()}
    loaded = type(model)(model.config).double()
    resize(loaded, [len(kept) for kept in plan.kept], [len(groups) for groups in plan.groups])
    loaded.load_state_dict(pruned.state_dict())
    assert torch.equal(hidden(loaded.eval(), padded_inputs(), "sdpa"), hidden(pruned, padded_inputs(), "sdpa"))


@pytest.mark.parametrize("family", ["llama", "t5", "qwen2"])
def test_resize_can_add_an_output_bias(family: str) -> None:
    model = built(family, torch.float32)
    resize(model, [4, 2, 0], [full_plan(model).kv_heads, 2, 0], output_bias=True)
    outs: list[Any] = [projection_of(model, name, FAMILIES[family].out) for name, _ in attention_layers(model)]
    assert [tuple(out.bias.shape) for out in outs] == [(HIDDEN,)] * 3
    assert all(out.bias.dtype == torch.float32 for out in outs)


@pytest.mark.parametrize(
    ("family", "heads", "kv_heads", "message"),
    [
        ("bert", [4, 4], [4, 4], "The model has 3 layers, got heads of 2 and 2"),
        ("t5", [4, 4, 2], [4, 4, 1], "Layer 2 cannot have 2 heads and 1 key/value heads"),
        ("llama", [4, 3, 2], [2, 2, 2], "Layer 1 cannot have 3 heads and 2 key/value heads"),
        ("llama", [4, 0, 2], [2, 2, 2], "Layer 1 cannot have 0 heads and 2 key/value heads"),
        ("albert", [4, 4, 2], [4, 4, 2], "Layer 2 shares its weights with an earlier one"),
        ("vit", [4, 4, 4], [4, 4, 4], "Heads of 'vit' cannot be taken out"),
    ],
)
def test_shapes_that_cannot_be(family: str, heads: list[int], kv_heads: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resize(tiny_model(family), heads, kv_heads)


def test_heads_that_are_gone_do_not_come_back() -> None:
    model = built("gpt2")
    resize(model, [0, 4, 4], [0, 4, 4])
    with pytest.raises(ValueError, match="has no heads any more"):
        resize(model, [1, 4, 4], [1, 4, 4])


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_are_where_the_rest_of_headlens_finds_them(family: str) -> None:
    runs = network(built(family))
    sites = attention_sites(runs)
    assert [(site.name, site.module) for site in sites] == attention_layers(runs)
    assert [output_projection(runs, site) for site in sites] == [
        projection_of(runs, site.name, FAMILIES[family].out) for site in sites
    ]


# ------------------------------------------------------------------------------------------------------- grouped models


def test_groups_of_seven_lose_one_head_each_or_go_whole() -> None:
    sizes = {"hidden_size": 56, "num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 16}
    model = drawn(LlamaModel(LlamaConfig(vocab_size=99, num_hidden_layers=1, **sizes)).double())
    one_each = full_plan(model).without([(0, 3), (0, 13)])
    whole = full_plan(model).without([(0, head) for head in range(7)])
    assert counts_of(apply_plan(model, one_each)) == [(12, 2)]
    assert counts_of(apply_plan(model, whole)) == [(7, 1)]
    with pytest.raises(PlanError, match=r"Layer 0 would have 6 and 7 query heads .*expand_to_multi_head"):
        apply_plan(model, full_plan(model).without([(0, 3)]))


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("family", GROUPED)
def test_an_expanded_model_computes_the_same(family: str, implementation: str) -> None:
    model = built(family, torch.float32)
    expanded = expand_to_multi_head(model)
    assert counts_of(expanded) == [(HEADS, HEADS)] * LAYERS
    found = hidden(expanded, padded_inputs(), implementation)
    assert torch.equal(found, hidden(model, padded_inputs(), implementation))


@pytest.mark.parametrize("family", GROUPED)
def test_any_head_of_an_expanded_model_can_go(family: str) -> None:
    model, off = built(family), [(0, 1), (1, 0), (1, 2), (1, 3), (2, 3)]
    ragged = plan_without(model, off)
    with pytest.raises(PlanError, match="expand_to_multi_head"):
        apply_plan(model, ragged)
    pruned = apply_plan(expand_to_multi_head(model), ragged)
    assert counts_of(pruned) == [(3, 3), (1, 1), (3, 3)]
    found = hidden(pruned, padded_inputs(), "sdpa")
    torch.testing.assert_close(found, hidden(zeroed(model, off), padded_inputs(), "sdpa"), rtol=0, atol=1e-12)
    assert plan_of(pruned.config).kept == ragged.kept  # type: ignore[union-attr]


def test_a_pruned_model_can_be_expanded() -> None:
    model = built("llama")
    pruned = apply_plan(model, plan_without(model, removed("llama", "some")))
    expanded = expand_to_multi_head(pruned)
    assert torch.equal(hidden(expanded, padded_inputs(), "eager"), hidden(pruned, padded_inputs(), "eager"))
    assert counts_of(expanded) == [(2, 2), (0, 0), (2, 2)]


# ----------------------------------------------------------------------------------------------------- plans refused


@pytest.mark.parametrize(
    ("family", "plan", "message"),
    [
        ("bert", HeadPlan.full(2, 4), "The plan is for 2 layers of 4 heads and 4 .* BertModel has 3 layers of 4 heads"),
        ("bert", HeadPlan.full(3, 6), "3 layers of 6 heads"),
        ("llama", HeadPlan.full(3, 4), "4 heads and 4 key/value heads, and LlamaModel has 3 layers of 4 heads and 2"),
        ("bert", HeadPlan(4, 4, (((0, 1),),) * 3), "L0H0 and L0H1 have key/value heads of their own"),
        ("llama", HeadPlan(4, 2, (((0, 2),),) * 3), "L0H0 and L0H2 have key/value heads of their own"),
        ("albert", HeadPlan.full(3, 4).without([(1, 2)]), "Layers 0 and 1 of AlbertModel share their weights"),
    ],
)
def test_plans_that_a_model_cannot_follow(family: str, plan: HeadPlan, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        apply_plan(built(family), plan)


def test_a_plan_cannot_bring_heads_back() -> None:
    model = built("bert")
    pruned = apply_plan(model, full_plan(model).without([(1, 2)]))
    with pytest.raises(PlanError, match="L1H2 has been taken out of this model already"):
        apply_plan(pruned, full_plan(model).without([(0, 0)]))


def test_what_shared_a_head_before_may_not_share_it_after_expansion_with_others() -> None:
    model = expand_to_multi_head(built("llama"))
    with pytest.raises(PlanError, match="L2H1 and L2H2 have key/value heads of their own"):
        apply_plan(model, HeadPlan(4, 2, (((0, 1), (2, 3)), ((0, 1), (2, 3)), ((1, 2),))))


@pytest.mark.parametrize("family", ["vit", "gemma2"])
def test_families_that_are_not_known(family: str) -> None:
    with pytest.raises(UnsupportedModel, match=rf"Heads of '{family}' cannot be taken out; they can of: bert"):
        apply_plan(tiny_model(family), HeadPlan.full(3, 4))


def test_a_layer_that_was_pruned_by_other_means() -> None:
    model = built("bert")
    resize(model, [4, 3, 4], [4, 3, 4])
    with pytest.raises(UnsupportedModel, match=r"different numbers of heads \(4, 3, 4\)"):
        full_plan(model)
    model.config.headlens_plan = HeadPlan.full(3, 4).to_dict()
    with pytest.raises(UnsupportedModel, match=r"leaves it 4, 4, 4 heads .* and its weights are of 4, 3, 4"):
        present_plan(model)


def test_adapters_and_weights_on_disk_are_refused() -> None:
    model = built("bert")
    plan = plan_without(model, [(0, 1)])
    layer = model.encoder.layer[1].attention.self
    layer.key = nn.Sequential(layer.key)
    with pytest.raises(
        UnsupportedModel, match=r"encoder\.layer\.1\.attention\.self\.key is a Sequential, not a plain linear layer"
    ):
        apply_plan(model, plan)
    with torch.device("meta"):
        away = type(model)(model.config)
    with pytest.raises(UnsupportedModel, match="weights of layer 0 are not in memory"):
        apply_plan(away, plan)
