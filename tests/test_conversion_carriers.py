"""Models with shared key/value heads compute what models with copies of them do: in every class, cache, checkpoint."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from converted import ALL, DECODERS, FAMILIES, PAIRS, PER_LAYER, language_model, spread, with_shared
from pruned_models import SOURCE, outputs, same
from transformers import AutoModel, AutoModelForCausalLM, DynamicCache, PreTrainedModel

from headlens.arch import attention_sites
from headlens.capture import capture
from headlens.conversion.carriers import as_bigcode, converted
from headlens.conversion.weights import read_layers
from headlens.errors import PlanError, UnsupportedModel
from headlens.manifest import read_manifest
from headlens.models import load_model, load_whole
from headlens.plan import Groups, HeadPlan, plan_of
from headlens.surgery import apply_plan, expand_to_multi_head, full_plan
from headlens.surgery.checkpoint import save_pruned
from headlens.surgery.shapes import counts_of
from headlens.testing import padded_inputs, tiny_model

pytestmark = pytest.mark.slow  # many models; CI runs them as its own step

TOLERANCE = 1e-10  # of float64
GROUPINGS = {"pairs": (PAIRS,) * 3, "all": (ALL,) * 3, "per layer": PER_LAYER}


def shared(model: PreTrainedModel, groups: tuple[Groups, ...], **options: Any) -> PreTrainedModel:
    return converted(model, with_shared(read_layers(model), groups), **options)


def copied(model: PreTrainedModel, groups: tuple[Groups, ...]) -> PreTrainedModel:
    """The multi-head model that `shared` must equal; of grouped families expanded to heads of their own."""
    return converted(model, spread(with_shared(read_layers(model), groups)))


def planned(model: PreTrainedModel) -> HeadPlan:
    plan = plan_of(model.config)
    assert plan is not None
    return plan


@torch.no_grad()
def on_real_tokens(model: PreTrainedModel, implementation: str = "sdpa") -> torch.Tensor:
    inputs = padded_inputs()
    model.set_attn_implementation(implementation)
    return model(**inputs)[0][inputs["attention_mask"].bool()]


# -------------------------------------------------------------------------------------------------------------- forward


@pytest.mark.parametrize("groups", GROUPINGS.values(), ids=GROUPINGS)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_shared_heads_are_copies_without_the_copies(
    family: str, implementation: str, groups: tuple[Groups, ...]
) -> None:
    if (family, implementation) == ("mistral", "eager"):
        pytest.skip("in float64 the eager mask of its file makes rows of padding NaN, of the stock model too")
    model = tiny_model(family)
    made = shared(model, groups, stock=False)
    assert counts_of(made) == [(4, len(layer)) for layer in groups]
    wanted = on_real_tokens(copied(model, groups), implementation)
    torch.testing.assert_close(on_real_tokens(made, implementation), wanted, rtol=0, atol=TOLERANCE)
    assert (wanted - on_real_tokens(model, implementation)).abs().max() > 0.1  # not the model as it was


@pytest.mark.parametrize("family", FAMILIES)
def test_a_models_own_weights_give_the_model(family: str) -> None:
    model = tiny_model(family)
    before = outputs(model)
    made = converted(model, read_layers(model))
    assert type(made) is type(model)
    assert same(outputs(made), before)
    assert full_plan(made) == plan_of(made.config)
    assert plan_of(model.config) is None


def test_other_keys_in_a_group_are_another_model() -> None:
    model = tiny_model("gpt2")
    other = copied(model, (((0, 1), (3, 2)),) * 3)
    assert (on_real_tokens(shared(model, (PAIRS,) * 3)) - on_real_tokens(other)).abs().max() > 0.1


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_grouped_sources_are_made_smaller_and_larger(family: str) -> None:
    model = tiny_model(family)  # 4 heads, 2 key/value heads
    assert [len(layer.k) for layer in read_layers(model)] == [2, 2, 2]
    larger = converted(model, spread(read_layers(model)))
    assert larger.config.num_key_value_heads == 4
    torch.testing.assert_close(on_real_tokens(larger), on_real_tokens(model), rtol=0, atol=TOLERANCE)
    smaller = shared(model, (ALL,) * 3)
    assert smaller.config.num_key_value_heads == 1
    assert planned(smaller).groups == (ALL,) * 3


def test_gpt2_upcast_attention_shares_keys_too() -> None:
    model = tiny_model("gpt2", dtype=torch.float32, reorder_and_upcast_attn=True)  # which takes no float64
    made, wanted = shared(model, (PAIRS,) * 3), copied(model, (PAIRS,) * 3)
    torch.testing.assert_close(on_real_tokens(made, "eager"), on_real_tokens(wanted, "eager"), rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "opt", "gpt_neox", "bert"])
def test_gradients_and_dropout_go_on(family: str) -> None:
    more: dict[str, Any] = {"attention_dropout": 0.1} if family == "gpt_neox" else {}
    made = shared(tiny_model(family, **more), (PAIRS,) * 3).train()
    inputs = padded_inputs()
    first, second = (made(**inputs)[0] for _ in range(2))
    assert not torch.equal(first, second)
    first.square().mean().backward()
    assert all(weight.grad is not None for name, weight in made.named_parameters() if "pooler" not in name)


def test_an_output_bias_gets_a_place(tmp_path: Path) -> None:
    model = tiny_model("llama")
    layers = [replace(layer, o_bias=torch.full((32,), 0.25).double()) for layer in read_layers(model)]
    made = converted(model, layers)
    assert all(layer.o_bias is not None and set(layer.o_bias.tolist()) == {0.25} for layer in read_layers(made))
    assert (on_real_tokens(made) - on_real_tokens(model)).abs().max() > 0.01
    folder = save_pruned(made, tmp_path / "new", manifest=SOURCE)
    assert same(outputs(AutoModel.from_pretrained(folder, dtype="auto")), outputs(made))


# ---------------------------------------------------------------------------------------------------------------- cache


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("groups", GROUPINGS.values(), ids=GROUPINGS)
@pytest.mark.parametrize("family", DECODERS)
def test_decoding_is_the_full_forward_with_a_smaller_cache(
    family: str, groups: tuple[Groups, ...], implementation: str
) -> None:
    made = shared(language_model(family), groups, stock=False)
    made.set_attn_implementation(implementation)
    ids = padded_inputs()["input_ids"][:1]
    cache = DynamicCache()
    with torch.no_grad():
        full = made(input_ids=ids, use_cache=False).logits
        steps = [made(input_ids=ids[:, step : step + 1], cache=cache).logits for step in range(ids.shape[1])]
    # the eager attention of Llama's file takes its softmax in float32, also in float64
    near = 1e-5 if implementation == "eager" and family not in ("gpt2", "gpt_neox") else TOLERANCE
    torch.testing.assert_close(torch.cat(steps, dim=1), full, rtol=0, atol=near)
    assert [layer.keys.shape[1] for layer in cache.layers] == [len(layer) for layer in groups]


@pytest.mark.parametrize("family", DECODERS)
def test_generation_is_that_of_the_copies(family: str) -> None:
    model = language_model(family)
    asked = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    inputs = padded_inputs(side="left")
    made, wanted = (build(model, PER_LAYER).generate(**inputs, **asked) for build in (shared, copied))
    assert torch.equal(made, wanted)
    assert len(set(made[:, -6:].flatten().tolist())) > 1


# ------------------------------------------------------------------------------------------------------------- captured


@pytest.mark.parametrize("way", ["exact", "fast"])
@pytest.mark.parametrize("family", ["bert", "distilbert", "gpt2", "opt", "gpt_neox", "llama"])
def test_the_heads_are_watched_by_their_original_numbers(family: str, way: Any) -> None:
    model, inputs = tiny_model(family), padded_inputs()
    made, wanted = shared(model, PER_LAYER), copied(model, PER_LAYER)
    real = inputs["attention_mask"].bool()

    def patterns(one: PreTrainedModel) -> dict[int, torch.Tensor]:
        seen: dict[int, torch.Tensor] = {}

        def observe(attention: Any) -> None:
            heads = list(attention.head_ids or range(4))
            probs = torch.zeros_like(attention.probs)
            probs[:, heads] = attention.probs
            seen[attention.layer] = probs.transpose(1, 2)[real]

        with torch.no_grad(), capture(one, observe, way=way):
            one(**inputs)
        return seen

    found, expected = patterns(made), patterns(wanted)
    assert [site.heads for site in attention_sites(made)] == [(0, 2, 3, 1), (0, 1, 2, 3), (0, 1, 2, 3)]
    assert found.keys() == expected.keys() == {0, 1, 2}
    for layer in found:
        torch.testing.assert_close(found[layer], expected[layer], rtol=0, atol=1e-6)  # Llama's softmax is in float32


# ----------------------------------------------------------------------------------------------- checkpoints, copies


@pytest.mark.parametrize("family", FAMILIES)
def test_a_converted_model_comes_back_bit_for_bit(family: str, tmp_path: Path) -> None:
    made = shared(tiny_model(family), PER_LAYER)
    before = outputs(made)
    folder = save_pruned(made, tmp_path / "new", manifest=SOURCE)
    again = load_model(str(folder), dtype="auto")
    assert same(outputs(again.model), before)
    assert plan_of(again.model.config) == plan_of(made.config)
    assert again.check is not None
    assert again.check.passed
    assert same(outputs(AutoModel.from_pretrained(folder, dtype="auto")), before)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2"])
def test_llama_like_checkpoints_are_stock(family: str, tmp_path: Path) -> None:
    made = shared(language_model(family), (ALL,) * 3)
    folder = save_pruned(made, tmp_path / "new", manifest=SOURCE)
    entries = json.loads((folder / "config.json").read_text())
    assert (entries["model_type"], entries["num_key_value_heads"]) == (family, 1)
    assert read_manifest(folder)["loads_in"] == "transformers"
    again = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert type(again).__module__.startswith("transformers.")
    assert same(outputs(again), outputs(made))
    assert load_whole(str(folder)).model.config.num_key_value_heads == 1


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox"])
def test_a_self_contained_checkpoint_loads_without_headlens(family: str, tmp_path: Path) -> None:
    made = shared(language_model(family, dtype=torch.float32), PER_LAYER)
    folder = save_pruned(made, tmp_path / "new", manifest=SOURCE, self_contained=True)
    code = f"""
import sys
sys.modules["headlens"] = None
import torch, transformers
torch.set_num_threads(1)  # as here: sums of more threads round otherwise
model = transformers.AutoModelForCausalLM.from_pretrained({str(folder)!r}, trust_remote_code=True)
torch.save(model(torch.arange(5, 15)[None]).logits.detach(), {str(tmp_path / "logits.pt")!r})
"""
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        wanted = made(torch.arange(5, 15)[None]).logits
    assert torch.equal(torch.load(tmp_path / "logits.pt"), wanted)


@pytest.mark.parametrize("family", ["bert", "gpt2", "opt", "gpt_neox"])
def test_copies_and_pickles_are_the_same(family: str) -> None:
    made = shared(tiny_model(family), PER_LAYER)
    before = outputs(made)
    assert same(outputs(copy.deepcopy(made)), before)
    assert same(outputs(pickle.loads(pickle.dumps(made))), before)


# ----------------------------------------------------------------------------------------------------- with pruning


@pytest.mark.parametrize("family", FAMILIES)
def test_expanding_gives_every_head_its_own_again(family: str) -> None:
    made = shared(tiny_model(family), PER_LAYER)
    expanded = expand_to_multi_head(made)
    assert counts_of(expanded) == [(4, 4)] * 3
    torch.testing.assert_close(on_real_tokens(expanded), on_real_tokens(made), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("family", ["bert", "gpt2", "opt", "gpt_neox"])
def test_a_converted_model_is_pruned_like_its_copies(family: str, tmp_path: Path) -> None:
    model = tiny_model(family)
    off = [(0, 0), (0, 2), (1, 1), *((2, head) for head in range(4))]  # a whole group, one of four, a layer
    made, wanted = shared(model, PER_LAYER), copied(model, PER_LAYER)
    pruned = apply_plan(made, planned(made).without(off))
    assert counts_of(pruned) == [(2, 1), (3, 1), (0, 0)]
    expected = on_real_tokens(apply_plan(wanted, full_plan(wanted).without(off)))
    torch.testing.assert_close(on_real_tokens(pruned), expected, rtol=0, atol=TOLERANCE)
    folder = save_pruned(pruned, tmp_path / "new", manifest=SOURCE)
    assert same(outputs(AutoModel.from_pretrained(folder, dtype="auto")), outputs(pruned))


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox"])
def test_one_head_left_of_every_group_is_plain_attention(family: str) -> None:
    model = tiny_model(family)
    off = [(layer, head) for layer in range(3) for head in (2, 1)]
    made, wanted = shared(model, (PAIRS,) * 3), copied(model, (PAIRS,) * 3)
    pruned = apply_plan(made, planned(made).without(off))
    assert counts_of(pruned) == [(2, 2)] * 3
    assert type(attention_sites(pruned)[0].module) is type(attention_sites(model)[0].module)
    expected = on_real_tokens(apply_plan(wanted, full_plan(wanted).without(off)))
    torch.testing.assert_close(on_real_tokens(pruned), expected, rtol=0, atol=TOLERANCE)


def test_a_pruned_model_is_converted_by_its_original_numbers() -> None:
    model = tiny_model("bert")
    pruned = apply_plan(model, full_plan(model).without([(0, 1), (0, 3), *((2, head) for head in range(4))]))
    groups: tuple[Groups, ...] = (((0, 1),), PAIRS, ())
    made, wanted = shared(pruned, groups), copied(pruned, groups)
    assert planned(made).groups == (((0, 2),), PAIRS, ())
    torch.testing.assert_close(on_real_tokens(made), on_real_tokens(wanted), rtol=0, atol=TOLERANCE)


# ----------------------------------------------------------------------------------------------------------- GPTBigCode


def test_gpt2_as_bigcode_is_bit_equal_before_merging() -> None:
    model = language_model("gpt2", dtype=torch.float32)
    made = as_bigcode(model)
    assert type(made).__name__ == "GPTBigCodeForCausalLM"
    assert made.config.multi_query is False
    for implementation in ("sdpa", "eager"):
        assert torch.equal(on_real_tokens(made, implementation), on_real_tokens(model, implementation))


def test_gpt2_with_one_key_value_head_is_bigcode(tmp_path: Path) -> None:
    model = language_model("gpt2")
    made, wanted = shared(model, (ALL,) * 3), copied(model, (ALL,) * 3)
    assert type(made).__name__ == "GPTBigCodeForCausalLM"
    torch.testing.assert_close(on_real_tokens(made), on_real_tokens(wanted), rtol=0, atol=TOLERANCE)
    # its eager attention takes the softmax in float32, whose rounding three layers and the vocabulary enlarge
    torch.testing.assert_close(on_real_tokens(made, "eager"), on_real_tokens(wanted, "eager"), rtol=0, atol=1e-4)
    made.set_attn_implementation("sdpa")
    folder = save_pruned(made, tmp_path / "new", manifest=SOURCE)
    assert read_manifest(folder)["loads_in"] == "transformers"
    again = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert type(again) is transformers.GPTBigCodeForCausalLM
    assert same(outputs(again), outputs(made))
    check = load_whole(str(folder), dtype="auto").check
    assert check is not None
    assert check.passed


def test_bigcode_decodes_with_one_key_a_token() -> None:
    made = shared(language_model("gpt2"), (ALL,) * 3)
    ids, cache = padded_inputs()["input_ids"][:1], DynamicCache()
    with torch.no_grad():
        full = made(input_ids=ids, use_cache=False).logits
        steps = [made(input_ids=ids[:, step : step + 1], cache=cache).logits for step in range(ids.shape[1])]
    torch.testing.assert_close(torch.cat(steps, dim=1), full, rtol=0, atol=TOLERANCE)
    assert [tuple(layer.keys.shape) for layer in cache.layers] == [(1, 1, 12, 8)] * 3


@pytest.mark.parametrize("entry", ["scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"])
def test_what_bigcode_does_not_compute_stays_gpt2(entry: str) -> None:
    entries: dict[str, Any] = {entry: True}
    model = tiny_model("gpt2", **entries)
    made, wanted = shared(model, (ALL,) * 3), copied(model, (ALL,) * 3)
    assert type(made).__name__ == "GPT2Model"
    torch.testing.assert_close(on_real_tokens(made), on_real_tokens(wanted), rtol=0, atol=TOLERANCE)


# --------------------------------------------------------------------------------------------------------------- errors


def test_another_number_of_layers_is_refused() -> None:
    model = tiny_model("bert")
    with pytest.raises(PlanError, match="has 3 layers, got weights for 2"):
        converted(model, read_layers(model)[:2])


def test_another_number_of_heads_is_refused() -> None:
    model = tiny_model("bert", heads=2)
    with pytest.raises(PlanError, match="Layer 0 of BertModel has 4 query heads, and the weights are of 2"):
        converted(tiny_model("bert"), read_layers(model))


@pytest.mark.parametrize("family", ["qwen3", "albert", "t5", "vit", "gpt_bigcode"])
def test_families_that_cannot_be_converted(family: str) -> None:
    model = tiny_model(family) if family != "gpt_bigcode" else as_bigcode(tiny_model("gpt2"))
    with pytest.raises(UnsupportedModel, match=f"Key/value heads of '{family}' cannot be converted"):
        converted(model, [])
