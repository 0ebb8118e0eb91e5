"""The page beside a checkpoint: true to the manifest, safe against names from outside, and its code runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import transformers
from converted import PER_LAYER, language_model, with_shared
from transformers import PreTrainedModel

from headlens.conversion.carriers import converted
from headlens.conversion.recipes import MEAN_POOLING, converted_layers
from headlens.conversion.weights import read_layers
from headlens.manifest import read_manifest, surgery_facts
from headlens.surgery import apply_plan, full_plan, present_plan
from headlens.surgery.card import model_card
from headlens.surgery.checkpoint import save_pruned
from headlens.testing import tiny_model

SOURCE: dict[str, Any] = {"source": {"name": "tiny", "weights_sha256": "c0ffee"}}


def arm(name: str, distortion: float, value: float) -> dict[str, Any]:
    return {"name": name, "distortion": distortion, "tasks": [{"task": "pairs", "figures": [{"value": value}]}]}


def facts(**changed: Any) -> dict[str, Any]:
    """Of a model of two layers with four heads, whose keys and values were four and are two."""
    return {
        **SOURCE,
        "schema": "headlens.converted/1",
        "loads_in": "transformers",
        "family": "llama",
        "class": "LlamaForCausalLM",
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
    assert "# tiny with 2 key/value heads a layer instead of 4" in card
    assert "the key/value cache is 50% in size, and all 8 query heads are there. 1,234,567 parameters" in card
    assert "| 0 | 0 2 \\| 1 3 |\n| 1 | 0 1 \\| 2 3 |" in card
    assert "taken out" not in card
    assert "pruned" not in card


def test_layers_of_their_own_numbers() -> None:
    card = model_card(facts(kv_heads=[1, 4], groups=[[[0, 1, 2, 3]], [[0], [1], [2], [3]]]))
    assert "# tiny with 5 key/value heads in 2 layers instead of 8" in card
    assert "the key/value cache is 62% in size" in card


def test_a_model_that_lost_heads_and_shares_says_both() -> None:
    left = {"heads_kept": [[0, 2], [0, 1, 2, 3]], "groups": [[[0, 2]], [[0, 1], [2, 3]]], "kv_heads": [1, 2]}
    card = model_card(facts(schema="headlens.pruned/1", **left))
    assert "# tiny with 6 of 8 attention heads" in card
    assert "2 heads were taken out by headlens" in card
    assert "What is left has 3 key/value heads in 2 layers instead of 8" in card
    assert "| 0 | 0 2 |\n" in card


def test_it_stands_beside_what_it_is_held_against() -> None:
    arms = [arm("converted", 0.5, 0.875), arm("original", 0.0, 1.0), arm("mean pooling", 3.25, 0.5)]
    arms += [arm("random", 1.0, 0.25), arm("random", 3.0, 0.75), arm("no heads", 12.5, 0.125)]
    card = model_card(facts(arms=arms, method={"objective": "kl_distortion"}))
    rows = [
        "|  | distortion, nats a token | pairs |",
        "|---|---|---|",
        "| the original | 0.0000 | 1.0000 |",
        "| this model | 0.5000 | 0.8750 |",
        "| plain mean pooling | 3.2500 | 0.5000 |",
        "| random heads, of any layer (2 draws) | 2.0000 | 0.5000 |",
        "| no heads at all | 12.5 | 0.1250 |",
    ]
    assert "\n".join(rows) in card


def test_speed_says_what_its_brackets_are() -> None:
    speed = [{"workload": "decode, batch 1", "ratio": 1.25, "low": 1.2, "high": 1.3}, {"workload": "prefill"}]
    card = model_card(facts(speed=speed))
    assert "the median of paired runs, and their quartiles.\n\n- decode, batch 1: 1.25 (1.20 to 1.30)\n" in card
    assert "prefill" not in card


def test_where_it_comes_from_is_told_in_sentences() -> None:
    data = {"files": [{"name": "a.txt"}, {"name": "b.txt"}], "reads": "windows", "fitted_on": 1200, "held_out": 8}
    method = {"merged_by": "svd", "grouping": "cheapest", "repair": True, "objective": "kl_distortion"}
    card = model_card(facts(data=data, method=method, command="headlens convert tiny --kv-heads 2"))
    assert "- Made from tiny: weights with the SHA-256 c0ffee." in card
    assert "merged by svd; groups: cheapest; judged by kl\\_distortion" not in card
    assert "merged by svd; groups: cheapest; judged by kl_distortion; output projections fitted anew." in card
    assert "- Calibration text: a.txt, b.txt (windows: 1,200 fitted on, 8 held out)." in card
    assert "- Command: `headlens convert tiny --kv-heads 2`" in card


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


# -------------------------------------------------------------------------------------------------------- what it loads


@pytest.mark.parametrize(
    ("model", "loads_in"),
    [
        (lambda: pooled(language_model("gpt2"), 2), "headlens"),
        (lambda: pooled(language_model("gpt2"), 1), "transformers"),
        (lambda: pooled(language_model("llama"), 1), "transformers"),
        (lambda: pooled(tiny_model("bert"), 2), "headlens"),
        (lambda: apply_plan(tiny_model("bert"), full_plan(tiny_model("bert")).without([(0, 1)])), "headlens"),
    ],
    ids=["gpt2", "bigcode", "llama", "bert", "pruned"],
)
def test_its_code_loads_the_model(model: Any, loads_in: str, tmp_path: Path) -> None:
    made = model()
    folder = save_pruned(made, tmp_path / "new", manifest=SOURCE)
    card = (folder / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", card, flags=re.S)
    names: dict[str, Any] = {}
    exec(code.replace("FOLDER", str(folder)), names)
    found = names["model"]
    manifest = read_manifest(folder)
    assert type(found).__name__ == manifest["class"]
    assert manifest["loads_in"] == loads_in
    assert f"Loads in {'plain transformers' if loads_in == 'transformers' else 'transformers with headlens'}" in card
    wanted = made.state_dict()
    assert all(weight.equal(wanted[name].to(weight.dtype)) for name, weight in found.state_dict().items())


def test_the_manifest_tells_which_kind_it_is(tmp_path: Path) -> None:
    model = language_model("gpt2")
    layers = with_shared(read_layers(model), PER_LAYER)
    shared = converted(model, layers)
    told = read_manifest(save_pruned(shared, tmp_path / "converted", manifest=SOURCE))
    assert (told["schema"], told["kv_heads"], told["kv_heads_of_original"]) == ("headlens.converted/1", [2, 1, 4], 4)
    assert told["groups"] == [[[0, 2], [3, 1]], [[0, 1, 2, 3]], [[0], [1], [2], [3]]]
    assert surgery_facts(told)["kind"] == "converted"
    assert surgery_facts(told)["kv_heads"] == [2, 1, 4]
    both = apply_plan(shared, present_plan(shared).without([(1, 0), (1, 3)]))
    told = read_manifest(save_pruned(both, tmp_path / "both", manifest=SOURCE))
    assert (told["schema"], told["kv_heads"]) == ("headlens.pruned/1", [2, 1, 4])
    assert "What is left has" in (tmp_path / "both" / "README.md").read_text()
    assert isinstance(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "both"), PreTrainedModel)
