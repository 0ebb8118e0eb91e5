"""Converting from model to folder: what is tried, what it is held against, and that every figure is true."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from converted import language_model
from pruned_models import outputs, same
from test_calibration import letters
from torch import Tensor
from transformers import GPT2LMHeadModel, GPTBigCodeForCausalLM, LlamaForCausalLM, PreTrainedModel

from headlens.calibration import Calibration, calibrate_to_fit
from headlens.conversion.carriers import converted
from headlens.conversion.kv_heads import KVHeads
from headlens.conversion.recipes import MEAN_POOLING, Recipe, converted_layers
from headlens.conversion.weights import read_layers
from headlens.converting import Converted, convert
from headlens.corpora import Corpus, read_corpus, texts
from headlens.errors import CorpusError, PlanError, UnsupportedModel
from headlens.evaluation import evaluate, read_task
from headlens.importance.inputs import TextBatch
from headlens.manifest import read_manifest
from headlens.models import LoadedModel, load_model, load_whole, network_of
from headlens.plan import plan_of
from headlens.recipe_trials import REFITTED, SENSIBLE
from headlens.surgery import present_plan

slow = pytest.mark.slow
HOW: dict[str, Any] = {"tokens": 1200, "texts": 15}  # hidden states of 192 dimensions, so more than 193 tokens


@cache
def tiny(name: str = "tiny-gpt2") -> LoadedModel:
    return load_whole(name, check=False)


@cache
def llama() -> LoadedModel:
    """Four query heads on two key/value heads in three layers, in float64; it reads what tiny-bert's tokenizer says."""
    model = language_model("llama")
    model.resize_token_embeddings(len(tiny("tiny-bert").require_tokenizer()), mean_resizing=False)
    facts = {"class": "LlamaForCausalLM", "layers": 3, "heads": 4, "dtype": "float64"}
    return LoadedModel(model, tiny("tiny-bert").tokenizer, "llama", "llama", facts)


@cache
def grammar() -> Corpus:
    return read_corpus(["grammar:160"])


@cache
def calibration(loaded: LoadedModel) -> Calibration:
    return calibrate_to_fit(loaded, grammar(), HOW["tokens"], texts=HOW["texts"])


@cache
def best() -> Converted:
    return convert(tiny(), grammar(), 2, tasks=[read_task("grammar:60")], **HOW)


@cache
def of_few_heads(name: str = "tiny-gpt2", method: str = "mean", kv_heads: int = 1) -> Converted:
    return convert(tiny(name), grammar(), kv_heads, method=method, **HOW)


def distortion(loaded: LoadedModel, model: PreTrainedModel, batches: tuple[TextBatch, ...]) -> float:
    """By hand: of language models KL, of others 1 - cosine of the mean last hidden states; a mean over texts."""
    find = kl_of if "CausalLM" in type(loaded.model).__name__ or "LMHead" in type(loaded.model).__name__ else cosine_of
    found = [find(loaded.model, model, ids) for batch in batches for ids in rows_of(batch)]
    return sum(found) / len(found)


def rows_of(batch: TextBatch) -> list[Tensor]:
    return [ids[mask.bool()][None] for ids, mask in zip(batch.input_ids, batch.attention_mask, strict=True)]


@torch.no_grad()
def kl_of(before: Any, after: Any, ids: Tensor) -> float:
    old, new = (model(ids).logits[0].double().log_softmax(-1) for model in (before, after))
    return float((old.exp() * (old - new)).sum(-1).mean())


@torch.no_grad()
def cosine_of(before: Any, after: Any, ids: Tensor) -> float:
    old, new = (
        model(ids, output_hidden_states=True).hidden_states[-1][0].double().mean(0) for model in (before, after)
    )
    return 1 - float(torch.cosine_similarity(old, new, dim=0))


def kv_heads_of(model: PreTrainedModel) -> list[int]:
    return [len(groups) for groups in (plan_of(model.config) or present_plan(model)).groups]


# --------------------------------------------------------------------------------------------- what it is held against


@slow
def test_the_best_conversion_stands_beside_all_that_it_must_beat() -> None:
    found = best()
    assert found.recipe is not None
    expected = ["converted", "converted, not refitted", "original", "mean pooling", "no heads"]
    assert [arm.name for arm in found.arms] == [
        name for name in expected if found.recipe.repaired or name != expected[1]
    ]
    assert [arm["name"] for arm in found.facts["arms"]] == [arm.name for arm in found.arms]
    assert found.arm("no heads").plan.n_kept == 0
    assert found.arm("original").plan == found.base == present_plan(tiny().model)
    assert found.arm("converted").plan == found.plan == present_plan(found.model)
    assert [len(groups) for groups in found.arm("mean pooling").plan.groups] == kv_heads_of(found.model) == [2] * 4


@slow
def test_distortions_are_in_the_order_that_they_must_have() -> None:
    distortions = {arm.name: arm.distortion for arm in best().arms}
    assert distortions["original"] == pytest.approx(0, abs=1e-6)
    assert 0 < distortions["converted"] < 0.1 * distortions["mean pooling"] < distortions["no heads"]


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-bert"])
def test_the_distortion_is_that_of_the_model_on_held_out_text(name: str) -> None:
    found, loaded = of_few_heads(name), tiny(name)
    expected = distortion(loaded, found.model, calibration(loaded).held_out)
    assert found.arm("converted").distortion == pytest.approx(expected, rel=1e-4)  # of float32
    assert expected > 0.1
    measured = found.facts["measured"][f"{found.objective} (held out)"]
    assert measured == {"before": found.arm("original").distortion, "after": found.arm("converted").distortion}


@slow
def test_every_arm_is_the_model_that_it_is_called() -> None:
    found, loaded, held_out = best(), tiny(), calibration(tiny()).held_out
    layers = read_layers(loaded.model)
    pooled = converted(loaded.model, converted_layers(layers, [2] * 4, MEAN_POOLING, None))
    assert found.arm("mean pooling").distortion == pytest.approx(distortion(loaded, pooled, held_out), rel=1e-4)
    assert found.arm("converted").distortion == pytest.approx(distortion(loaded, found.model, held_out), rel=1e-4)
    expected = distortion(loaded, without_attention(loaded), held_out)
    assert found.arm("no heads").distortion == pytest.approx(expected, rel=1e-4)


@torch.no_grad()
def without_attention(loaded: LoadedModel) -> Any:
    """A tiny-gpt2 whose layers add their mean over the text that is fitted on, whatever they read."""
    model: Any = load_whole(loaded.name, check=False).model
    for number, block in enumerate(model.transformer.h):
        seen: list[Tensor] = []
        hook = loaded.model.transformer.h[number].attn.register_forward_hook(
            lambda module, args, given, seen=seen: seen.append(given[0][0])
        )
        for batch in calibration(loaded).fitted:
            for ids in rows_of(batch):
                loaded.model(ids)
        hook.remove()
        block.attn.c_proj.weight.zero_()
        block.attn.c_proj.bias.copy_(torch.cat(seen).mean(dim=0))
    return model


@slow
def test_tasks_are_asked_of_every_arm() -> None:
    found, task = best(), read_task("grammar:60")
    assert all([one.task for one in arm.results] == ["grammar:60", "repeat:8"] for arm in found.arms)
    expected = evaluate(replace(tiny(), model=found.model), task)
    assert found.arms[0].results[0].value == pytest.approx(expected.value)
    difference, _ = found.differences("no heads")
    assert difference.value == pytest.approx(expected.value - found.arm("no heads").results[0].value)


# ---------------------------------------------------------------------------------------------------- what is tried


@slow
@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-bert"])
def test_the_best_is_the_lowest_of_all_that_was_tried(name: str) -> None:
    found = best() if name == "tiny-gpt2" else convert(tiny(name), grammar(), 2, **HOW)
    told = [one.distortion for one in found.tried]
    assert told == sorted(told)
    assert found.recipe == found.tried[0].recipe
    assert sum(one.recipe.repaired for one in found.tried) == REFITTED
    assert {replace(one.recipe, repaired=True) for one in found.tried} <= set(SENSIBLE)
    chosen = calibration(tiny(name)).chosen
    by_hand = []
    for one in found.tried:
        model = converted(tiny(name).model, one.layers) if one.repaired is None else one.repaired
        by_hand.append(distortion(tiny(name), model, chosen))
    assert told == pytest.approx(by_hand, rel=1e-3, abs=1e-6)  # float32, and cosines near 1
    assert distortion(tiny(name), found.model, chosen) == pytest.approx(min(by_hand), rel=1e-3, abs=1e-6)
    assert [one["distortion"] for one in found.facts["method"]["tried"]] == told


@slow
@pytest.mark.parametrize("repair", [True, False, None])
def test_a_method_by_name_is_repaired_if_it_is_asked_for(repair: bool | None) -> None:
    found = convert(tiny(), grammar(), 2, method="aligned", repair=repair, **HOW)
    assert found.recipe == Recipe("aligned", "similar", repaired=repair is True)
    names = [arm.name for arm in found.arms]
    assert ("converted, not refitted" in names) == (repair is True)
    assert [one.recipe.repaired for one in found.tried] == ([True, False] if repair else [False])
    assert (found.facts["method"]["merged_by"], found.facts["method"]["repair"]) == ("aligned", repair is True)
    if repair:
        assert found.arm("converted").distortion < found.arm("converted, not refitted").distortion
        held_out = calibration(tiny()).held_out
        merged = converted(tiny().model, found.tried[0].layers)
        expected = distortion(tiny(), merged, held_out)
        assert found.arm("converted, not refitted").distortion == pytest.approx(expected, rel=1e-4)


def test_mean_pooling_has_no_arm_beside_itself() -> None:
    assert [arm.name for arm in of_few_heads().arms] == ["converted", "original", "no heads"]
    assert of_few_heads().recipe == MEAN_POOLING
    pooled = converted(tiny().model, converted_layers(read_layers(tiny().model), [1] * 4, MEAN_POOLING, None))
    assert same(outputs(of_few_heads().model), outputs(pooled))


@slow
def test_groups_by_hand_are_those_of_the_model() -> None:
    groups = ((0, 2, 4, 6), (1, 3, 5, 7))
    found = convert(tiny(), grammar(), KVHeads(2, layers=[1], groups=groups), method="svd", **HOW)
    assert found.plan.groups[1] == groups
    assert [len(own) for own in found.plan.groups] == [8, 2, 8, 8]
    for number in (0, 2, 3):
        old, new = (model.transformer.h[number].attn for model in (tiny().model, found.model))
        assert all(torch.equal(value, new.state_dict()[name]) for name, value in old.state_dict().items())


@slow
def test_layers_that_are_not_named_are_left_also_by_a_repair() -> None:
    found = convert(tiny(), grammar(), KVHeads(2, layers=[1, 3]), method="svd", repair=True, **HOW)
    changed = [
        number
        for number, (old, new) in enumerate(zip(tiny().model.transformer.h, found.model.transformer.h, strict=True))
        if not torch.equal(old.attn.c_proj.weight, new.attn.c_proj.weight)
    ]
    assert changed == [1, 3]


# ------------------------------------------------------------------------------------------------------------- budgets


@slow
@pytest.mark.parametrize("budget", [0.5, 11])
def test_a_budget_goes_where_it_is_worth_most(budget: float) -> None:
    found = convert(tiny(), grammar(), KVHeads(budget=budget), method="mean", **HOW)
    told = found.facts["method"]["budget"]
    damages = [{int(count): loss for count, loss in own.items()} for own in told["damages"]]
    most = 16 if budget == 0.5 else budget
    counts = kv_heads_of(found.model)
    assert sum(counts) == told["kv_heads"] <= most
    assert found.facts["method"]["kv_heads"] == counts
    assert [sorted(own) for own in damages] == [[1, 2, 4, 8]] * 4
    sums = {
        ways: sum(own[count] for own, count in zip(damages, ways, strict=True))
        for ways in product((1, 2, 4, 8), repeat=4)
        if sum(ways) <= most
    }
    assert told["sum_of_layers"] == pytest.approx(min(sums.values())) == pytest.approx(sums[tuple(counts)])
    chosen = calibration(tiny()).chosen
    assert told["whole"] == pytest.approx(distortion(tiny(), found.model, chosen), rel=1e-4)
    layers = read_layers(tiny().model)
    alone = converted(tiny().model, converted_layers(layers, [8, 8, 1, 8], MEAN_POOLING, None))
    assert damages[2][1] == pytest.approx(distortion(tiny(), alone, chosen), rel=1e-4)
    assert [own[8] for own in damages] == [0.0] * 4


# ---------------------------------------------------------------------------------------------------------- more heads


def test_more_key_value_heads_are_copies_without_a_recipe() -> None:
    found = convert(llama(), Corpus(texts(["the goat was old .", "a dog .", "the river .", "a small farmer ."])), 4)
    assert [arm.name for arm in found.arms] == ["converted", "original"]
    assert abs(found.arm("converted").distortion) < 1e-9
    assert found.recipe is None
    assert found.tried == ()
    assert found.facts["method"]["merged_by"] == "copies"
    assert found.model.config.num_key_value_heads == 4
    assert found.warnings == ()
    for before, after in zip(llama().model.model.layers, found.model.model.layers, strict=True):
        for name in ("k_proj", "v_proj"):
            one, other = (getattr(layer.self_attn, name).weight.view(-1, 8, 32) for layer in (before, after))
            assert torch.equal(other, one[[0, 0, 1, 1]])


# ------------------------------------------------------------------------------------------------------------- refused


def that_cannot_run(loaded: LoadedModel) -> LoadedModel:
    """Its forward raises, so that what is refused is refused before any pass."""
    model = load_whole(loaded.name, check=False).model

    def forward(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a pass over the model")

    for part in (model, network_of(model)):
        part.forward = forward  # type: ignore[method-assign]
    return replace(loaded, model=model)


TOO_LITTLE = "tokens to fit on, and moments of 192 dimensions need 193 at least"


@pytest.mark.parametrize(
    ("wish", "how", "error", "sentence"),
    [
        (2, {"tokens": 100}, CorpusError, TOO_LITTLE),
        (2, {"tokens": 100, "method": "svd"}, CorpusError, TOO_LITTLE),
        (2, {"tokens": 100, "method": "mean", "repair": True}, CorpusError, TOO_LITTLE),
        (3, {}, PlanError, "Layer 0: 8 key/value heads cannot become 3"),
        (8, {}, PlanError, "has 8 key/value heads already"),
        (KVHeads(budget=0.01), {}, PlanError, "cannot be spread"),
        (2, {"method": "median"}, PlanError, "method of a conversion is one of mean, first"),
        (2, {"repair": True}, PlanError, "The best conversion is found with and without a repair"),
        (2, {"repair": False}, PlanError, "The best conversion is found with and without a repair"),
        (2, {"objective": "loss"}, PlanError, "choose the objective cosine, kl or hidden"),
    ],
)
@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-bert"])
def test_what_cannot_be_is_refused_before_any_pass(
    name: str, wish: KVHeads | int, how: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        convert(that_cannot_run(tiny(name)), grammar(), wish, **how)


def test_too_few_texts_are_refused_before_any_pass() -> None:
    with pytest.raises(CorpusError, match="give at least four"):
        convert(that_cannot_run(tiny()), Corpus(texts(["the goat .", "a dog .", "a river ."])), 2)


def test_a_family_that_cannot_be_converted_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="Key/value heads of 'gpt_bigcode' cannot be converted"):
        convert(replace(tiny(), model=of_few_heads().model), grammar(), 1)


def test_a_method_that_reads_no_text_needs_little() -> None:
    corpus = Corpus(texts(["the goat was old .", "a dog .", "the river .", "a small farmer ."]))
    found = convert(tiny("tiny-bert"), corpus, 4, method="mean")
    assert kv_heads_of(found.model) == [4] * 4
    assert not any("fitted on" in one for one in found.warnings)


# ------------------------------------------------------------------------------------------------------------ warnings


def test_worse_than_no_heads_is_said() -> None:
    found = of_few_heads("tiny-bert")
    assert found.arm("converted").distortion > found.arm("no heads").distortion
    assert [one for one in found.warnings if "further from the original than the model without any head" in one]


def test_better_than_no_heads_is_not_said() -> None:
    assert of_few_heads().arm("converted").distortion < of_few_heads().arm("no heads").distortion
    assert not any("further from the original" in warning for warning in of_few_heads().warnings)


@slow
def test_few_tokens_are_warned_of() -> None:
    (warning,) = (one for one in best().warnings if one.startswith("Only "))
    fitted = sum(int(batch.attention_mask.sum()) for batch in calibration(tiny()).fitted)
    assert warning.startswith(f"Only {fitted:,} tokens were fitted on, and 3,840 or more are advisable")


# ---------------------------------------------------------------------------------------------------------- the folder


def reloaded(found: Converted, folder: Path) -> PreTrainedModel:
    """What `load_model` gives, after it is the same bit for bit."""
    found.save(folder)
    base = load_model(str(folder), dtype="auto")
    assert same(outputs(base.model), outputs(network_of(found.model)))
    assert base.check is not None
    assert base.check.passed
    whole = load_whole(str(folder), dtype="auto", check=False).model
    assert same(outputs(whole), outputs(found.model))
    assert read_manifest(folder)["method"]["kv_heads"] == kv_heads_of(found.model) == kv_heads_of(whole)
    return whole


@slow
def test_a_gpt2_of_two_groups_comes_back_in_the_class_of_pruning(tmp_path: Path) -> None:
    whole = reloaded(best(), tmp_path / "new")
    assert isinstance(whole, GPT2LMHeadModel)
    assert type(whole).__module__.startswith("headlens.")
    assert read_manifest(tmp_path / "new")["loads_in"] == "headlens"
    assert [name for name in read_manifest(tmp_path / "new")["measured"] if "held out" in name]


def test_a_gpt2_of_one_group_comes_back_as_bigcode(tmp_path: Path) -> None:
    assert type(reloaded(of_few_heads(), tmp_path / "new")) is GPTBigCodeForCausalLM
    assert read_manifest(tmp_path / "new")["loads_in"] == "transformers"


def test_a_llama_comes_back_as_a_stock_one(tmp_path: Path) -> None:
    whole = reloaded(convert(llama(), grammar(), 1, method="svd", **HOW), tmp_path / "new")
    assert type(whole) is LlamaForCausalLM
    assert whole.config.num_key_value_heads == 1
    assert read_manifest(tmp_path / "new")["loads_in"] == "transformers"


# ---------------------------------------------------------------------------------------------------------- the whole


def test_a_model_of_running_text_is_converted_on_windows() -> None:
    corpus = Corpus(texts([" ".join(["the goat was old", word * 3]) * 3 for word in "abcdefghijklmnop"]))
    found = convert(letters(), corpus, 2, method="svd", tokens=600, max_length=20, texts=2)
    assert found.facts["data"]["reads"] == "windows"
    assert kv_heads_of(found.model) == [2, 2, 2]


def test_the_original_is_left_as_it_was() -> None:
    before = {name: value.clone() for name, value in llama().model.state_dict().items()}
    config = llama().model.config.to_dict()
    convert(llama(), grammar(), 1, method="aligned", repair=True, **HOW)
    assert all(torch.equal(value, before[name]) for name, value in llama().model.state_dict().items())
    assert llama().model.config.to_dict() == config


def test_the_same_seed_gives_the_same_model() -> None:
    one, other = (convert(llama(), grammar(), 1, method="svd", seed=4, **HOW) for _ in range(2))
    assert same(outputs(one.model), outputs(other.model))
    assert [arm.distortion for arm in one.arms] == [arm.distortion for arm in other.arms]
