"""The page beside a checkpoint: true to the manifest, safe against names from outside, and its code runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import transformers
import yaml
from converted import PER_LAYER, language_model, with_shared
from pruned_models import pruned, with_head
from transformers import PreTrainedModel

from headlens.conversion.carriers import converted
from headlens.conversion.merging import METHODS
from headlens.conversion.recipes import GROUPINGS, MEAN_POOLING, converted_layers
from headlens.conversion.weights import read_layers
from headlens.manifest import read_manifest, surgery_facts
from headlens.plan import Groups, HeadPlan
from headlens.surgery import apply_plan, full_plan, masked_twin, present_plan
from headlens.surgery.card import model_card
from headlens.surgery.checkpoint import save_pruned, shares_anew
from headlens.testing import tiny_model

SOURCE: dict[str, Any] = {"source": {"name": "tiny", "weights_sha256": "c0ffee"}}


def arm(name: str, distortion: float, value: float, **figure: float) -> dict[str, Any]:
    figures = [{"metric": "accuracy", "value": value, **figure}]
    return {"name": name, "distortion": distortion, "tasks": [{"task": "pairs", "figures": figures}]}


def facts(**changed: Any) -> dict[str, Any]:
    """Of a model of two layers with four heads, whose keys and values were four and are two."""
    return {
        **SOURCE,
        "schema": "headlens.converted/1",
        "loads_in": "transformers",
        "family": "llama",
        "class": "LlamaForCausalLM",
        "auto_class": "AutoModelForCausalLM",
        "heads_kept": [[0, 2, 1, 3], [0, 1, 2, 3]],
        "heads_of_original": 8,
        "kv_heads": [2, 2],
        "kv_heads_of_original": 4,
        "groups": [[[0, 2], [1, 3]], [[0, 1], [2, 3]]],
        "parameters": 1234567,
        "dtype": "float32",
        "versions": {"headlens": "0.1.0"},
        **changed,
    }


def pooled(model: PreTrainedModel, count: int) -> PreTrainedModel:
    layers = read_layers(model)
    return converted(model, converted_layers(layers, [count] * len(layers), MEAN_POOLING, None))


# -------------------------------------------------------------------------------------------------------- what it says


def test_a_converted_model_has_lost_no_head() -> None:
    card = model_card(facts())
    assert "# tiny with 2 of 4 key/value heads a layer\n" in card
    assert "all 8 attention heads are there, and share keys and values in another way than before. Nothing was" in card
    assert "1,234,567 parameters, float32." in card
    assert "| 0 | 4 | 2 | 0 2 \\| 1 3 |\n| 1 | 4 | 2 | 0 1 \\| 2 3 |" in card
    assert "taken out" not in card
    assert "pruned" not in card


def test_layers_of_their_own_numbers() -> None:
    card = model_card(facts(kv_heads=[1, 4], groups=[[[0, 1, 2, 3]], [[0], [1], [2], [3]]]))
    assert "# tiny with 5 of 8 key/value heads (1 4 by layer)\n" in card
    assert "| 0 | 4 | 1 | 0 1 2 3 |\n| 1 | 4 | 4 | 0 \\| 1 \\| 2 \\| 3 |" in card


def test_a_second_conversion_is_told_from_what_the_first_left() -> None:
    arms = [{"name": "converted", "kv_heads": [2, 2]}, {"name": "original", "kv_heads": [3, 4]}]
    card = model_card(facts(arms=arms))
    assert "# tiny with 4 of 7 key/value heads (2 2 by layer)\n" in card
    assert "| 0 | 3 | 2 | 0 2 \\| 1 3 |" in card


def test_copies_are_more_than_there_were() -> None:
    card = model_card(facts(kv_heads_of_original=1, method={"merged_by": "copies"}))
    assert "# tiny with 2 key/value heads a layer instead of 1\n" in card
    assert "They are copies of those before, which is exact." in card


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("grouping", GROUPINGS)
def test_every_way_to_merge_is_told_in_words(method: str, grouping: str) -> None:
    plain = model_card(facts(method={"merged_by": method}))
    card = model_card(facts(method={"merged_by": method, "grouping": grouping}))
    assert len(plain.split("## Key/value heads\n\n")[1].split(".")[0]) > 20
    assert len(card) > len(plain) + 10
    assert "The output projections were then fitted anew" not in card
    refitted = model_card(facts(method={"merged_by": method, "grouping": grouping, "repair": True}))
    assert "The output projections were then fitted anew, layer by layer" in refitted


def test_a_model_that_lost_heads_and_shares_says_both() -> None:
    left = {"heads_kept": [[0, 2], [0, 1, 2, 3]], "groups": [[[0, 2]], [[0, 1], [2, 3]]], "kv_heads": [1, 2]}
    card = model_card(facts(schema="headlens.pruned/1", **left))
    assert "# tiny with 6 of 8 attention heads" in card
    assert "2 heads were taken out by headlens" in card
    assert "What is left has 3 of 8 key/value heads (1 2 by layer): it was converted, too." in card
    assert "| 0 | 4 | 1 | 0 2 |\n" in card
    assert "- head-pruning\n- grouped-query-attention\n---" in card


def test_a_pruned_model_lists_its_heads_and_no_key_value_heads() -> None:
    whole = facts(schema="headlens.pruned/1", heads_kept=[[0, 2, 3], []], kv_heads=[3, 0])
    del whole["groups"]
    card = model_card(whole)
    assert "5 heads were taken out by headlens: the weights are gone. Nothing was trained." in card
    assert "| layer | heads |\n| --- | --- |\n| 0 | 0 2 3 |\n| 1 | none |" in card
    assert "key/value" not in card
    assert "- head-pruning\n---" in card


def test_a_healed_model_was_trained() -> None:
    arms = [arm("healed", 0.25, 1.0), arm("converted", 0.5, 0.5)]
    healing = {"arms": arms, "data": {"files": [{"name": "b.txt"}]}}
    card = model_card(facts(method={"merged_by": "svd", "healed_steps": 100}, healing=healing))
    assert "Then it was trained for 100 steps to give what the model before gives. 1,234,567 parameters" in card
    assert "Nothing was trained" not in card
    assert "| **this model** (healed) | 0.2500 | 1.0000 |\n| converted, and no more | 0.5000 | 0.5000 |" in card
    assert "Trained on: b.txt." in card


def test_it_stands_beside_what_it_is_held_against() -> None:
    arms = [
        arm("converted", 0.5, 0.875, low=0.75, high=0.9375),
        arm("original", 0.0, 1.0),
        arm("mean pooling", 3.25, 0.5),
    ]
    arms += [arm("random", 1.0, 0.25), arm("random", 3.0, 0.75), arm("no heads", 12.5, 0.125)]
    card = model_card(facts(arms=arms, method={"objective": "kl_distortion"}))
    rows = [
        "|  | distortion (KL divergence, nats a token) | pairs, accuracy |",
        "| --- | --- | --- |",
        "| the original | 0.0000 | 1.0000 |",
        "| **this model** (converted) | 0.5000 | 0.8750 [0.7500, 0.9375] |",
        "| plain mean pooling | 3.2500 | 0.5000 |",
        "| random heads, of any layer (2 draws) | 2.0000 [1.0000, 3.0000] | 0.5000 [0.2500, 0.7500] |",
        "| no heads at all | 12.5 | 0.1250 |",
    ]
    assert "\n".join(rows) in card


def test_speed_says_what_its_brackets_are() -> None:
    speed = [{"workload": "decode, batch 1", "ratio": 1.25, "low": 1.2, "high": 1.3}, {"workload": "prefill"}]
    card = model_card(facts(speed=speed))
    assert "the median of paired runs, and in brackets their quartiles." in card
    assert "\n\n- decode, batch 1: 1.25 [1.20, 1.30]\n" in card
    assert "prefill" not in card


def test_sizes_have_their_share_and_scores_stand_in_one_table_only() -> None:
    measured = {"parameters": {"before": 1000, "after": 750}, "pairs: accuracy": {"before": 0.9, "after": 0.85}}
    arms = [arm("converted", 0.5, 0.875), arm("original", 0.0, 1.0)]
    assert "| original | this model |\n| --- | --- | --- |\n| parameters | 1,000 | 750 (75%) |\n" in model_card(
        facts(measured=measured, arms=arms)
    )
    assert "| pairs: accuracy | 0.9 | 0.85 |" in model_card(facts(measured=measured))
    assert "pairs: accuracy" not in model_card(facts(measured=measured, arms=arms))


@pytest.mark.parametrize(
    ("low", "high", "better", "words"),
    [
        (-0.0657, -0.0157, True, "−0.0381 [−0.0657, −0.0157], worse"),
        (-0.0657, -0.0157, False, "−0.0381 [−0.0657, −0.0157], better"),
        (-0.0657, 0.0157, True, "−0.0381 [−0.0657, +0.0157], no difference beyond chance"),
        (None, None, True, "−0.0381\n"),
    ],
)
def test_differences_have_their_interval(low: float | None, high: float | None, better: bool, words: str) -> None:
    one = {"task": "pairs", "metric": "accuracy", "value": -0.0381, "low": low, "high": high}
    card = model_card(facts(differences={"mean pooling": [{**one, "higher_is_better": better}]}))
    assert f"- pairs, accuracy, less plain mean pooling: {words}" in card
    assert "## Differences" not in model_card(facts())


def test_where_it_comes_from_is_told_in_sentences() -> None:
    data = {"files": [{"name": "a.txt"}, {"name": "b.txt"}], "reads": "windows", "fitted_on": 1200, "held_out": 8}
    method = {"merged_by": "svd", "grouping": "cheapest", "repair": True, "objective": "kl_distortion"}
    card = model_card(facts(data=data, method=method, command="headlens convert tiny --kv-heads 2"))
    assert "\nMade from tiny (weights with the SHA-256 c0ffee).\n" in card
    assert "\nKey/value heads were merged by svd, judged by kl distortion. The command was `headlens convert" in card
    assert "\nCalibration text: a.txt, b.txt (windows: 1,200 fitted on, 8 held out).\n" in card
    assert "No licence is named here: that of tiny applies." in card


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("by hand", "How: by hand."),
        ({"ranked_by": "by hand", "fill": "zero"}, "The heads to go were chosen by hand. They give nothing any more."),
        (
            {"ranked_by": "greedy", "objective": "kl_distortion", "fill": "mean", "repair": True},
            "The heads to go were ranked by greedy, judged by kl distortion. They still give their mean output, from a "
            "bias. The output projections were then fitted anew.",
        ),
        (
            {"merged_by": "svd", "grouping": "similar", "tried": [{}, {}, {}], "budget": {"kv_heads": 12}},
            "3 ways to merge key/value heads were tried on text that nothing was fitted on, and the best was taken: "
            "svd with similar groups. A budget of 12 key/value heads went to the layers that would lose most.",
        ),
    ],
)
def test_how_it_was_made(method: object, words: str) -> None:
    assert f"\n\n{words}\n\n" in model_card(facts(method=method))


@pytest.mark.parametrize(
    ("source", "is_base"),
    [
        ({"name": "openai-community/gpt2", "revision": "abc"}, True),
        ({"name": "openai-community/gpt2", "revision": None}, False),  # a folder of that name
        ({"name": "../up", "revision": "abc"}, False),
        ({"name": "a/b\nlicense: mit", "revision": "abc"}, False),
        ({"name": "minilm", "revision": "abc"}, False),
    ],
)
def test_only_a_name_of_the_hub_is_a_base_model(source: dict[str, Any], is_base: bool) -> None:
    front = model_card(facts(source=source)).split("---")[1]
    assert ("base_model: openai-community/gpt2\n" in front) == is_base
    assert "license" not in front
    assert ("base_model" in front) == is_base


def test_names_from_outside_stay_in_their_place() -> None:
    evil = "<img src=x onerror=alert(1)>\n# big | `code` [link](javascript:alert(1))"
    told = facts(
        source={"name": evil},
        data={"files": [{"name": evil}]},
        method=evil,
        command=f"headlens convert {evil}",
        measured={evil: {"before": evil, "after": 1}},
        arms=[arm("converted", 0.5, 1.0), {**arm("original", 0.0, 1.0), "tasks": [{"task": evil}]}],
    )
    card = model_card(told)
    outside_code = re.sub(r"`[^`\n]*`", "", card.replace("\\`", ""))
    assert "<img" not in outside_code
    assert not re.search(r"^# big", card, re.M)
    assert "[link](" not in outside_code
    for line in card.splitlines():
        if line.startswith("| &lt;img"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 4
    assert yaml.safe_load(card.split("---")[1])["tags"] == ["headlens", "attention-heads", "grouped-query-attention"]


# -------------------------------------------------------------------------------------------------------- what it loads


@pytest.mark.parametrize(
    ("model", "loads_in"),
    [
        (lambda: pooled(language_model("gpt2"), 2), "headlens"),
        (lambda: pooled(language_model("gpt2"), 1), "transformers"),
        (lambda: pooled(language_model("llama"), 1), "transformers"),
        (lambda: pooled(tiny_model("bert"), 2), "headlens"),
        (lambda: pruned(with_head("bert", "AutoModelForPreTraining")), "headlens"),
        (lambda: pruned(with_head("t5", "AutoModelForTextEncoding")), "headlens"),
        (lambda: apply_plan(tiny_model("bert"), full_plan(tiny_model("bert")).without([(0, 1)])), "headlens"),
    ],
    ids=["gpt2", "bigcode", "llama", "bert", "two heads", "one stack", "pruned"],
)
def test_its_code_loads_the_model(model: Any, loads_in: str, tmp_path: Path) -> None:
    made = model()
    folder = save_pruned(made, tmp_path / "new", manifest=SOURCE)
    card = (folder / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", card, flags=re.S)
    assert ("pip install headlens" in card) == (loads_in == "headlens")
    names: dict[str, Any] = {}
    exec(code.replace("FOLDER", str(folder)), names)
    found = names["model"]
    manifest = read_manifest(folder)
    assert type(found).__name__ == manifest["class"]
    assert manifest["loads_in"] == loads_in
    assert (f"`{manifest['class']}`. Plain transformers loads it." in card) == (loads_in == "transformers")
    wanted = made.state_dict()
    assert all(weight.equal(wanted[name].to(weight.dtype)) for name, weight in found.state_dict().items())


def test_the_manifest_tells_which_kind_it_is(tmp_path: Path) -> None:
    model = language_model("gpt2")
    layers = with_shared(read_layers(model), PER_LAYER)
    shared = converted(model, layers)
    told = read_manifest(save_pruned(shared, tmp_path / "converted", manifest=SOURCE))
    assert (told["schema"], told["kv_heads"], told["kv_heads_of_original"]) == ("headlens.converted/1", [2, 1, 4], 4)
    assert told["groups"] == [[[0, 2], [3, 1]], [[0, 1, 2, 3]], [[0], [1], [2], [3]]]
    assert told["auto_class"] == "AutoModelForCausalLM"
    assert surgery_facts(told)["kind"] == "converted"
    assert surgery_facts(told)["kv_heads"] == [2, 1, 4]
    both = apply_plan(shared, present_plan(shared).without([(1, 0), (1, 3)]))
    told = read_manifest(save_pruned(both, tmp_path / "both", manifest=SOURCE))
    assert (told["schema"], told["kv_heads"]) == ("headlens.pruned/1", [2, 1, 4])
    assert "What is left has" in (tmp_path / "both" / "README.md").read_text()
    assert isinstance(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "both"), PreTrainedModel)


@pytest.mark.parametrize(
    ("groups", "is_anew"),
    [
        (((0, 1), (2, 3)), False),
        (((2, 3), (1, 0)), False),  # another order is no other sharing
        (((0, 2), (1, 3)), True),
        (((0,), (1,), (2,), (3,)), True),
        (((0, 1, 2, 3),), True),
        (((0,), (2, 3)), False),  # L0H1 is gone
        (((0,), (2,), (3,)), True),
        ((), False),
    ],
)
def test_who_shares_anew(groups: Groups, is_anew: bool) -> None:
    same: Groups = ((0, 1), (2, 3))
    assert shares_anew(HeadPlan(4, 2, (groups, same))) == is_anew
    assert shares_anew(HeadPlan(4, 2, (same, groups))) == is_anew


def test_a_masked_twin_has_all_its_key_value_heads(tmp_path: Path) -> None:
    bert = tiny_model("bert")
    twin = masked_twin(bert, full_plan(bert).without([(0, 1), (2, 0)]))
    told = read_manifest(save_pruned(twin, tmp_path / "twin", manifest=SOURCE))
    assert (told["kv_heads"], "groups" in told) == ([4, 4, 4], False)
    card = (tmp_path / "twin" / "README.md").read_text()
    assert "# tiny with 2 attention heads masked" in card
    assert "- head-masking" in card
