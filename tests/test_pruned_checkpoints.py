"""Pruned models are saved and come back bit for bit, in a class that says what it is."""

from __future__ import annotations

import copy
import json
import os
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from pruned_models import GROUPED, SINGLE, SOURCE, UNIFORM, means, off_in, outputs, pruned, same, with_head
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from headlens.arch import FAMILY_PREFIX, attention_sites
from headlens.capture import capture
from headlens.errors import HeadlensError, OutputError, PlanError, UnsupportedModel
from headlens.models import load_model, load_whole
from headlens.plan import HeadPlan, plan_of
from headlens.surgery import aligned, apply_plan, checkpoint, full_plan, masked_twin, stock
from headlens.surgery.checkpoint import read_manifest, save_pruned
from headlens.surgery.classes import config_class, prunable_classes
from headlens.surgery.shapes import FAMILIES, counts_of
from headlens.testing import FAMILIES as TINY
from headlens.testing import padded_inputs, tiny_model

pytestmark = pytest.mark.slow  # many models; CI runs them as its own step

# ----------------------------------------------------------------------------------------------- every family and head


def tiny(family: str) -> PreTrainedModel:
    """Families of BERT's classes that have no tiny model of their own get one of their config."""
    if family in TINY:
        return tiny_model(family)
    entries = {name: value for name, value in tiny_model("roberta").config.to_dict().items() if name != "model_type"}
    model = AutoModel.from_config(transformers.AutoConfig.for_model(family, **entries)).double().eval()
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(0.3 * torch.randn(weight.shape, generator=draw, dtype=weight.dtype))
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_comes_back_bit_for_bit(family: str, tmp_path: Path) -> None:
    model = pruned(tiny(family))
    before = outputs(model)
    folder = save_pruned(model, tmp_path / "new", manifest=SOURCE)
    again = load_model(str(folder), dtype="auto")
    assert same(outputs(again.model), before)
    assert same(outputs(model), before)  # the model itself was left alone
    assert again.model.config.model_type == FAMILY_PREFIX + family
    assert plan_of(again.model.config) == plan_of(model.config)
    assert counts_of(again.model) == counts_of(model)
    assert again.check is not None
    assert again.check.passed


@pytest.mark.parametrize(
    ("family", "auto"),
    [
        *(("bert", auto) for auto in prunable_classes("bert")),
        *(("llama", auto) for auto in prunable_classes("llama")),
        ("gpt2", "AutoModelForCausalLM"),
        ("roberta", "AutoModelForSequenceClassification"),
        ("t5", "AutoModelForSeq2SeqLM"),
        ("t5", "AutoModelForTextEncoding"),
    ],
)
def test_every_head_comes_back(family: str, auto: str, tmp_path: Path) -> None:
    model = pruned(with_head(family, auto))
    folder = save_pruned(model, tmp_path / "new", manifest=SOURCE)
    again = getattr(transformers, auto).from_pretrained(folder)
    assert type(again).__name__ == f"Headlens{type(model).__name__}"
    weights, saved = model.state_dict(), again.state_dict()
    assert weights.keys() == saved.keys()
    assert all(torch.equal(weights[name], saved[name]) for name in weights)


@pytest.mark.parametrize(("family", "dim"), [("bert", 8), ("llama", 8), ("t5", 6)])
def test_a_bias_of_means_comes_back(family: str, dim: int, tmp_path: Path) -> None:
    model = tiny_model(family)
    model = pruned(model, fill=means(model, dim))
    folder = save_pruned(model, tmp_path / "new", manifest=SOURCE)
    again = AutoModel.from_pretrained(folder, dtype="auto")
    assert again.config.output_bias is (family != "bert")  # which has one anyway
    assert same(outputs(again), outputs(model))


def test_rounds_of_pruning_saving_and_loading_are_one_pruning(tmp_path: Path) -> None:
    original = with_head("llama", "AutoModelForCausalLM")
    model = original
    for number, off in enumerate([GROUPED[:2], GROUPED[:4], GROUPED]):
        folder = save_pruned(pruned(model, off), tmp_path / f"round {number}", manifest=SOURCE)
        model = load_whole(str(folder)).model
    assert same(outputs(model), outputs(pruned(original)))


def test_a_loaded_one_is_saved_again_as_it_is(tmp_path: Path) -> None:
    model = pruned(tiny_model("bert"))
    once = save_pruned(model, tmp_path / "once", manifest=SOURCE, self_contained=True)
    loaded = AutoModel.from_pretrained(once, dtype="auto")
    twice = save_pruned(loaded, tmp_path / "twice", manifest=SOURCE)
    assert not hasattr(loaded.config, "auto_map")
    assert "auto_map" not in json.loads((twice / "config.json").read_text())
    assert same(outputs(AutoModel.from_pretrained(twice, dtype="auto")), outputs(model))


def test_a_plain_save_pretrained_of_a_loaded_one_loads(tmp_path: Path) -> None:
    model = pruned(tiny_model("gpt2"))
    loaded = AutoModel.from_pretrained(save_pruned(model, tmp_path / "once", manifest=SOURCE), dtype="auto")
    loaded.save_pretrained(tmp_path / "twice")
    assert same(outputs(AutoModel.from_pretrained(tmp_path / "twice", dtype="auto")), outputs(model))


def test_copies_and_pickles_of_a_loaded_one_are_the_same(tmp_path: Path) -> None:
    model = pruned(tiny_model("gpt2"))
    loaded = AutoModel.from_pretrained(save_pruned(model, tmp_path / "new", manifest=SOURCE), dtype="auto")
    assert same(outputs(copy.deepcopy(loaded)), outputs(model))
    assert same(outputs(pickle.loads(pickle.dumps(loaded))), outputs(model))


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_setting_the_attention_reaches_every_layer(family: str, tmp_path: Path) -> None:
    model = pruned(tiny_model(family), off_in(tiny_model(family))[:2])
    loaded = AutoModel.from_pretrained(save_pruned(model, tmp_path / "new", manifest=SOURCE), dtype="auto")
    loaded.set_attn_implementation("eager")
    assert {site.module.config._attn_implementation for site in attention_sites(loaded)} == {"eager"}
    model.set_attn_implementation("eager")
    assert same(outputs(loaded), outputs(model))


def test_the_loaded_one_is_watched_by_its_original_numbers(tmp_path: Path) -> None:
    model = pruned(tiny_model("gpt2"))
    loaded = load_model(str(save_pruned(model, tmp_path / "new", manifest=SOURCE)), dtype="auto")
    seen: dict[int, Any] = {}
    with torch.no_grad(), capture(loaded.model, lambda layer: seen.update({layer.layer: layer.head_ids})):
        loaded.model(**padded_inputs())
    assert seen == {0: (0, 2, 3), 1: (1,)}
    facts = loaded.provenance
    assert (facts["family"], facts["heads"], facts["layers"], facts["heads_kept"]) == ("gpt2", 4, 3, 4)


def test_generation_is_that_of_the_model(tmp_path: Path) -> None:
    model = pruned(with_head("llama", "AutoModelForCausalLM"))
    model.generation_config.eos_token_id = None
    model.generation_config.max_new_tokens = 6
    loaded = load_whole(str(save_pruned(model, tmp_path / "new", manifest=SOURCE))).model
    inputs = padded_inputs(side="left")
    expected = model.generate(**inputs, do_sample=False)
    assert expected.shape == (3, 18)
    assert torch.equal(loaded.generate(**inputs, do_sample=False), expected)
    assert torch.equal(loaded.generate(**inputs, do_sample=False, cache_implementation="static"), expected)


@pytest.fixture
def unset_memory_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("unset_memory_is_nan")
def test_a_fresh_model_of_the_config_has_numbers_for_weights() -> None:
    sizes = {"heads_per_layer": [3, 1, 0], "kv_heads_per_layer": [3, 1, 0], "output_bias": False}
    model = AutoModel.from_config(config_class("gpt2")(**TINY["gpt2"](3, 4), **sizes))
    assert counts_of(model) == [(3, 3), (1, 1), (0, 0)]
    assert [name for name, weight in model.named_parameters() if not weight.isfinite().all()] == []


# ------------------------------------------------------------------------------------------- stock classes that hold it


@pytest.mark.parametrize(
    ("family", "auto", "holder"),
    [
        ("llama", "AutoModel", "MistralModel"),
        ("llama", "AutoModelForCausalLM", "MistralForCausalLM"),
        ("llama", "AutoModelForSequenceClassification", "MistralForSequenceClassification"),
        ("mistral", "AutoModelForCausalLM", "MistralForCausalLM"),
        ("qwen2", "AutoModelForCausalLM", "Qwen2ForCausalLM"),
        ("qwen3", "AutoModelForCausalLM", "Qwen3ForCausalLM"),
    ],
)
@pytest.mark.parametrize("off", [UNIFORM, [(layer, head) for layer in range(3) for head in (0, 2)]], ids=["kv", "q"])
def test_what_is_even_is_saved_in_a_stock_class(
    family: str, auto: str, holder: str, off: list[tuple[int, int]], tmp_path: Path
) -> None:
    model = pruned(with_head(family, auto), off)
    folder = save_pruned(model, tmp_path / "new", manifest=SOURCE, self_contained=True)
    again = getattr(transformers, holder).from_pretrained(folder)
    assert same(outputs(again), outputs(model))
    counts = {"num_attention_heads": 2, "num_key_value_heads": 1 if off == UNIFORM else 2}
    config = json.loads((folder / "config.json").read_text())
    assert {name: config[name] for name in counts} == counts
    assert config["architectures"] == [holder]
    assert not (folder / "modeling_headlens.py").exists()
    assert read_manifest(folder)["loads_in"] == "transformers"


def test_a_stock_checkpoint_goes_on_by_the_numbers_of_the_original(tmp_path: Path) -> None:
    original = with_head("llama", "AutoModelForCausalLM")
    folder = save_pruned(pruned(original, UNIFORM), tmp_path / "once", manifest=SOURCE)
    loaded = load_whole(str(folder))
    assert (loaded.provenance["heads"], loaded.provenance["heads_kept"]) == (4, 6)
    further = apply_plan(loaded.model, full_plan(original).without([*UNIFORM, (2, 2), (2, 3)]))
    again = load_whole(str(save_pruned(further, tmp_path / "twice", manifest=SOURCE))).model
    assert same(outputs(again), outputs(pruned(original, [*UNIFORM, (2, 2), (2, 3)])))


@pytest.mark.parametrize(
    ("entries", "off", "filled"),
    [
        ({"attention_bias": True}, UNIFORM, False),
        ({"mlp_bias": True}, UNIFORM, False),
        ({}, GROUPED, False),
        ({}, [(0, head) for head in range(4)], False),
        ({}, UNIFORM, True),
        ({}, [(layer, head) for layer in range(3) for head in range(4)], False),
    ],
    ids=["bias in attention", "bias in between", "uneven", "first layer", "means", "no heads"],
)
def test_what_mistral_cannot_hold_is_not_saved_as_one(
    entries: dict[str, Any], off: list[tuple[int, int]], filled: bool, tmp_path: Path
) -> None:
    model = with_head("llama", "AutoModelForCausalLM", **entries)
    model = pruned(model, off, means(model, 8) if filled else None)
    folder = save_pruned(model, tmp_path / "new", manifest=SOURCE)
    again = AutoModelForCausalLM.from_pretrained(folder)
    assert type(again).__name__ == "HeadlensLlamaForCausalLM"
    assert same(outputs(again), outputs(model))


def test_a_masked_twin_is_never_called_pruned(tmp_path: Path) -> None:
    bert = tiny_model("bert")
    plan = full_plan(bert).without(SINGLE)
    twin = masked_twin(bert, plan)
    folder = save_pruned(twin, tmp_path / "twin", manifest=SOURCE, self_contained=True)
    again = transformers.BertModel.from_pretrained(folder, dtype="auto")
    assert same(outputs(again), outputs(twin))
    facts = read_manifest(folder)
    assert (facts["schema"], facts["loads_in"], facts["class"]) == ("headlens.masked/1", "transformers", "BertModel")
    assert HeadPlan.load(folder) == plan
    card = (folder / "README.md").read_text()
    assert "8 attention heads masked" in card
    for file in ("README.md", "config.json", "headlens.json"):
        assert "pruned" not in (folder / file).read_text()


def test_a_plan_that_removes_nothing_is_saved_in_the_class_of_the_model(tmp_path: Path) -> None:
    model = pruned(tiny_model("gpt2"), [])
    folder = save_pruned(model, tmp_path / "new", manifest=SOURCE)
    assert same(outputs(transformers.GPT2Model.from_pretrained(folder, dtype="auto")), outputs(model))


# ------------------------------------------------------------------------------------------------------ what is written


def test_the_manifest_and_the_card_tell_what_was_done(tmp_path: Path) -> None:
    told = {**SOURCE, "method": "by hand", "measured": {"perplexity": {"before": 12.25, "after": 13.5}}}
    folder = save_pruned(pruned(tiny_model("gpt2")), tmp_path / "new", manifest=told)
    facts = read_manifest(folder)
    assert {name: facts[name] for name in told} == told
    assert facts["schema"] == "headlens.pruned/1"
    assert facts["loads_in"] == "headlens"
    assert (facts["family"], facts["class"], facts["dtype"]) == ("gpt2", "HeadlensGPT2Model", "float64")
    assert (facts["heads_kept"], facts["heads_of_original"]) == ([[0, 2, 3], [1], []], 12)
    # by hand: hidden 32, heads 8 wide. A whole block: two norms 128, attention 3168 + 1056, inner layers 4224 + 4128;
    # a head of it: 3 x 33 x 8 + 32 x 8 = 1048
    whole = 3 * (128 + 3168 + 1056 + 4224 + 4128) + 64 + 99 * 32 + 80 * 32
    assert facts["parameters"] == whole - 8 * 1048
    assert set(facts["versions"]) == {"headlens", "torch", "transformers"}
    assert sorted([*facts["files"], "headlens.json"]) == sorted(os.listdir(folder))
    card = (folder / "README.md").read_text()
    assert "# tiny with 4 of 12 attention heads" in card
    assert "| perplexity | 12.25 | 13.5 |" in card
    assert "| 0 | 0 2 3 |\n| 1 | 1 |\n| 2 | none |" in card
    assert "import headlens.models" in card


@pytest.mark.parametrize("value", [float("nan"), object()])
def test_a_manifest_that_json_cannot_hold_is_refused(value: object, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="plain values that JSON has"):
        save_pruned(pruned(tiny_model("bert")), tmp_path / "new", manifest={"measured": value})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"), [("{", "is not JSON"), ("[]", "is no manifest"), ('{"schema": "other/1"}', "is no manifest")]
)
def test_another_file_is_no_manifest(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "headlens.json").write_text(text)
    with pytest.raises(OutputError, match=message):
        read_manifest(tmp_path)


def test_a_folder_without_a_manifest_is_told(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"headlens.json cannot be read \(No such file"):
        read_manifest(tmp_path)


def test_the_tokenizer_comes_along(tiny_bert: Path, tmp_path: Path) -> None:
    loaded = load_model(str(tiny_bert))
    folder = save_pruned(pruned(loaded.model), tmp_path / "new", tokenizer=loaded.tokenizer, manifest=SOURCE)
    assert AutoTokenizer.from_pretrained(folder)("a c b").input_ids == [1, 3, 2]
    assert load_model(str(folder)).require_tokenizer()("a c b").input_ids == [1, 3, 2]


@pytest.mark.parametrize("block", [1, 7, 1 << 22])
def test_weights_begin_at_a_multiple_of_64_bytes(block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aligned, "_BLOCK", block)
    file = tmp_path / "model.safetensors"
    numbers = {"a": torch.arange(24.0).reshape(4, 6), "b": torch.arange(3)}
    save_file(numbers, file, metadata={"format": "pt"})
    size = int.from_bytes(file.read_bytes()[:8], "little")
    assert (8 + size) % 64 != 0, "the header fits by itself: rename a tensor"
    aligned.align_weights(file)
    assert (8 + int.from_bytes(file.read_bytes()[:8], "little")) % 64 == 0
    again = load_file(file)
    assert again.keys() == numbers.keys()
    assert all(torch.equal(again[name], number) for name, number in numbers.items())
    with safe_open(file, "pt") as opened:
        assert opened.metadata() == {"format": "pt"}
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_the_weights_of_a_checkpoint_begin_there(tmp_path: Path) -> None:
    folder = save_pruned(pruned(tiny_model("bert")), tmp_path / "new", manifest=SOURCE)
    size = int.from_bytes((folder / "model.safetensors").read_bytes()[:8], "little")
    assert (8 + size) % 64 == 0


def test_tied_weights_are_saved_and_counted_once(tmp_path: Path) -> None:
    model = pruned(with_head("gpt2", "AutoModelForCausalLM"))
    assert model.lm_head.weight is model.transformer.wte.weight
    folder = save_pruned(model, tmp_path / "new", manifest=SOURCE)
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    assert read_manifest(folder)["parameters"] == sum(weight.numel() for weight in model.parameters())
    again = AutoModelForCausalLM.from_pretrained(folder)
    assert again.lm_head.weight is again.transformer.wte.weight


def test_the_dtype_stays(tmp_path: Path) -> None:
    model = pruned(tiny_model("llama", dtype=torch.bfloat16))
    again = AutoModel.from_pretrained(save_pruned(model, tmp_path / "new", manifest=SOURCE), dtype="auto")
    assert {weight.dtype for weight in again.parameters()} == {torch.bfloat16}
    again.to(torch.bfloat16)  # as `model` was, whose rotary frequencies are no float32 any more
    assert same(outputs(again), outputs(model))


def test_a_lost_entry_of_rotary_positions_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = stock.plain_entries
    monkeypatch.setattr(stock, "plain_entries", lambda config: {**plain(config), "rope_parameters": None})
    rope = {"rope_type": "default", "rope_theta": 50.0}
    model = pruned(with_head("llama", "AutoModelForCausalLM", rope_parameters=rope), UNIFORM)
    with pytest.raises(OutputError, match="gives other outputs"):
        save_pruned(model, tmp_path / "new", manifest=SOURCE)


def test_saving_leaves_train_mode_and_gradients_alone(tmp_path: Path) -> None:
    model = pruned(tiny_model("bert")).train()
    model.encoder.layer[0].eval()
    model.encoder.layer[1].requires_grad_(False)
    modes = [module.training for module in model.modules()]
    wanted = [weight.requires_grad for weight in model.parameters()]
    save_pruned(model, tmp_path / "new", manifest=SOURCE)
    assert [module.training for module in model.modules()] == modes
    assert [weight.requires_grad for weight in model.parameters()] == wanted


# ---------------------------------------------------------------------------------------------------------- what is not


def test_a_model_that_lost_no_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        PlanError, match="has lost no head and shares keys and values as it always did; prune or convert it first"
    ):
        save_pruned(tiny_model("bert"), tmp_path / "new", manifest=SOURCE)


def test_weights_that_are_not_those_of_the_plan_are_refused(tmp_path: Path) -> None:
    model = pruned(tiny_model("bert"))
    model.extra = torch.nn.Linear(2, 2)
    with pytest.raises(UnsupportedModel, match="are not those that the plan in its config leaves"):
        save_pruned(model, tmp_path / "new", manifest=SOURCE)


def test_a_class_that_nothing_could_load_is_refused(tmp_path: Path) -> None:
    config = tiny_model("gpt2").config
    model = pruned(transformers.GPT2DoubleHeadsModel(config).eval())
    with pytest.raises(UnsupportedModel, match="No Auto class of transformers makes a GPT2DoubleHeadsModel"):
        save_pruned(model, tmp_path / "new", manifest=SOURCE)


def test_a_model_of_another_making_is_refused(tmp_path: Path) -> None:
    model = tiny_model("bert")
    model.config.headlens_plan = full_plan(model).without([(0, 0)]).to_dict()
    entries = {"config_class": type(model.config), "_supports_sdpa": True}
    own = type("OwnModel", (transformers.PreTrainedModel,), entries)(model.config)
    with pytest.raises(UnsupportedModel, match="OwnModel is no model of transformers"):
        save_pruned(own, tmp_path / "new", manifest=SOURCE)


@pytest.mark.parametrize("what", ["a weight", "an output"])
def test_what_does_not_come_back_bit_for_bit_is_not_put_in_place(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damage(file: Path) -> None:
        weights = load_file(file)
        weights["encoder.layer.1.output.dense.weight"][0, 0] += 1e-12
        save_file(weights, file, metadata={"format": "pt"})

    def forget(config: Any) -> dict[str, Any]:
        return {**plain(config), "layer_norm_eps": 1e-11}

    plain = checkpoint.plain_entries
    patches: dict[str, Any] = {"a weight": ("align_weights", damage), "an output": ("plain_entries", forget)}
    monkeypatch.setattr(checkpoint, *patches[what])
    message = {"a weight": "output.dense.weight loads as another one", "an output": "gives other outputs"}
    with pytest.raises(OutputError, match=message[what]):
        save_pruned(pruned(tiny_model("bert")), tmp_path / "new", manifest=SOURCE)
    assert list(tmp_path.iterdir()) == []


def test_the_code_of_the_folder_is_proven_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = checkpoint.write_source
    monkeypatch.setattr(
        checkpoint, "write_source", lambda family: whole(family).replace("torch.arange(dim)", "torch.arange(dim + 1)")
    )
    monkeypatch.setattr(
        checkpoint, "write_source", lambda family: whole(family).replace("    layers = ", "    return\n    layers = ")
    )
    with pytest.raises((OutputError, RuntimeError)):
        save_pruned(pruned(tiny_model("bert")), tmp_path / "new", manifest=SOURCE, self_contained=True)
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------- damaged pruned checkpoints


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"heads_per_layer": [2, 1, 0], "kv_heads_per_layer": [2, 1, 0]}, "other sizes than config.json says"),
        ({"heads_per_layer": [3, 1], "kv_heads_per_layer": [3, 1]}, "3 layers, got heads of 2"),
        ({"heads_per_layer": ["a", "b", "c"]}, "cannot be loaded"),
        ({"heads_per_layer": None, "kv_heads_per_layer": None}, "other sizes than config.json says"),
        ({"headlens_plan": {"schema": "other"}}, "Not a plan of heads"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(entries: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = save_pruned(pruned(tiny_model("bert")), tmp_path / "new", manifest=SOURCE)
    config = {**json.loads((folder / "config.json").read_text()), **entries}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(HeadlensError, match=message):
        load_model(str(folder), dtype="auto")


def test_sizes_that_do_not_match_are_never_ignored() -> None:
    package = Path(checkpoint.__file__).parents[1]
    uses = [file.name for file in package.rglob("*.py") if re.search(r"ignore_mismatched_sizes\s*=", file.read_text())]
    assert uses == []


def _with_plan(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda config: config.pop("headlens_plan"), "lost its plan"),
        (lambda config: config["headlens_plan"]["groups"].__setitem__(0, [[1], [2], [3]]), "not that of plan.json"),
        (lambda config: config["headlens_plan"]["groups"].__setitem__(0, [[2], [2], [3]]), "'.*new'.*more than once"),
    ],
    ids=["none", "another", "impossible"],
)
def test_a_config_that_names_other_heads_is_refused(
    change: Callable[[dict[str, Any]], object], message: str, tmp_path: Path
) -> None:
    folder = save_pruned(pruned(tiny_model("gpt2")), tmp_path / "new", manifest=SOURCE)
    with pytest.raises(UnsupportedModel, match=message):
        load_model(str(_with_plan(folder, change)), check=False)
