"""Pruned checkpoints in fresh processes: with headlens, and where it cannot be imported."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from pruned_models import SINGLE, SOURCE, UNIFORM, means, outputs, pruned, same, with_head
from transformers import PreTrainedModel

from headlens.models import load_model, load_whole
from headlens.surgery import full_plan, masked_twin
from headlens.surgery.checkpoint import save_pruned
from headlens.testing import padded_inputs, tiny_model

pytestmark = pytest.mark.slow  # processes of their own; CI runs them as its own step

# ----------------------------------------------------------------------------------------------------- fresh processes

ASK = """
import json, sys
import torch
torch.set_num_threads(1)

def outputs(model, given):
    if model.config.is_encoder_decoder:
        given = given | {"decoder_input_ids": given["input_ids"]}
    with torch.no_grad():
        return [value for value in model(**given, return_dict=True).values() if isinstance(value, torch.Tensor)]

def error_of(action):
    try:
        action()
    except BaseException as error:
        return [type(error).__name__, str(error)]

task = json.load(open(sys.argv[1]))
inputs = torch.load(task["inputs"])
answer = {}
"""
WITH_HEADLENS = (
    ASK
    + """
import headlens.models
heavy = [name for name in sys.modules if name.startswith("transformers.models.") and ".modeling_" in name]
answer["imported"] = [name for name in heavy if ".auto." not in name]
import transformers
for name, (folder, auto) in task["folders"].items():
    ids = inputs[name]
    by_class = getattr(transformers, auto).from_pretrained(folder, dtype="auto")
    answer[name] = {
        "auto": outputs(by_class, ids),
        "whole": outputs(headlens.models.load_whole(folder, dtype="auto", check=False).model, ids),
        "class": type(by_class).__name__,
        "base": type(headlens.models.load_model(folder, dtype="auto").model).__name__,
    }
torch.save(answer, task["answer"])
"""
)
WITHOUT_HEADLENS = (
    """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("headlens", "jaxtyping"):
            raise ImportError("not installed here: " + name)
sys.meta_path.insert(0, Blocker())
"""
    + ASK
    + """
import transformers
from transformers import AutoTokenizer
for name, (folder, auto) in task["folders"].items():
    model = getattr(transformers, auto).from_pretrained(folder, dtype="auto", trust_remote_code=True)
    base = transformers.AutoModel.from_pretrained(folder, dtype="auto", trust_remote_code=True)
    answer[name] = {"auto": outputs(model, inputs[name]), "class": type(model).__name__, "base": type(base).__name__}
    model.set_attn_implementation("eager")
    answer[name]["eager"] = outputs(model, inputs[name])
    model.save_pretrained(folder + " again")
    again = getattr(transformers, auto).from_pretrained(folder + " again", dtype="auto", trust_remote_code=True)
    answer[name]["again"] = outputs(again, inputs[name])
for name, (folder, auto) in task["stock"].items():
    model = getattr(transformers, auto).from_pretrained(folder, dtype="auto")
    answer[name] = {"auto": outputs(model, inputs[name]), "class": type(model).__name__}
for name, (folder, kind) in task["refused"].items():
    answer[name] = {
        "auto": error_of(lambda: transformers.AutoModel.from_pretrained(folder)),
        "class": error_of(lambda: getattr(transformers, kind).from_pretrained(folder)),
    }
answer["headlens"] = [name for name in sys.modules if name.split(".")[0] == "headlens"]
torch.save(answer, task["answer"])
"""
)


def ask(code: str, task: dict[str, Any], inputs: dict[str, Any], place: Path, *flags: str) -> dict[str, Any]:
    """What a fresh process answers."""
    place.mkdir()
    torch.save(inputs, place / "inputs")
    task = {"folders": {}, "stock": {}, "refused": {}, **task}
    (place / "task").write_text(json.dumps({**task, "inputs": f"{place}/inputs", "answer": f"{place}/answer"}))
    (place / "code.py").write_text(code)
    settings = {**os.environ, "HF_MODULES_CACHE": f"{place}/modules"}
    done = subprocess.run(
        [sys.executable, *flags, str(place / "code.py"), str(place / "task")],
        capture_output=True,
        text=True,
        check=False,
        env=settings,
        cwd=place,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(place / "answer")


@pytest.fixture(scope="module")
def models() -> dict[str, tuple[PreTrainedModel, str]]:
    """Pruned models by name, with the Auto class of each."""
    gpt2 = load_whole("tiny-gpt2").model
    llama = with_head("llama", "AutoModelForCausalLM")
    bert = with_head("bert", "AutoModelForSequenceClassification")
    t5 = with_head("t5", "AutoModelForSeq2SeqLM")
    return {
        "gpt2": (pruned(gpt2, [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3)]), "AutoModelForCausalLM"),
        "llama": (pruned(llama, fill=means(llama, 8)), "AutoModelForCausalLM"),
        "bert": (pruned(bert), "AutoModelForSequenceClassification"),
        "t5": (pruned(t5), "AutoModelForSeq2SeqLM"),
        "albert": (pruned(tiny_model("albert")), "AutoModel"),
    }


@pytest.fixture(scope="module")
def stock_models() -> dict[str, tuple[PreTrainedModel, str]]:
    llama = with_head("llama", "AutoModelForCausalLM")
    bert = with_head("bert", "AutoModelForMaskedLM")
    return {
        "uniform llama": (pruned(llama, UNIFORM), "AutoModelForCausalLM"),
        "masked bert": (masked_twin(bert, full_plan(bert).without(SINGLE)), "AutoModelForMaskedLM"),
    }


@pytest.fixture(scope="module")
def inputs(models: Mapping[str, Any], stock_models: Mapping[str, Any]) -> dict[str, Any]:
    """Sentences within every vocabulary, so that a row alone and rows together are tried."""
    several, single = padded_inputs(60), {name: ids[:1] for name, ids in padded_inputs(60).items()}
    return {name: single if name == "gpt2" else several for name in (*models, *stock_models)}


def test_a_fresh_process_that_imports_headlens_models_loads_them(
    models: dict[str, tuple[PreTrainedModel, str]], inputs: dict[str, Any], tmp_path: Path
) -> None:
    folders = {
        name: (str(save_pruned(model, tmp_path / name, manifest=SOURCE)), auto)
        for name, (model, auto) in models.items()
    }
    answer = ask(WITH_HEADLENS, {"folders": folders}, inputs, tmp_path / "asked")
    assert answer["imported"] == []  # files of models are imported when one is loaded
    for name, (model, _) in models.items():
        expected = outputs(model, inputs[name])
        assert same(answer[name]["auto"], expected), name
        assert same(answer[name]["whole"], expected), name
        assert answer[name]["class"] == f"Headlens{type(model).__name__}"
    bases = {name: answer[name]["base"].removeprefix("Headlens") for name in models}
    assert bases == {
        "gpt2": "GPT2Model",
        "llama": "LlamaModel",
        "bert": "BertModel",
        "t5": "T5Model",
        "albert": "AlbertModel",
    }


def test_where_headlens_is_not_installed(
    models: dict[str, tuple[PreTrainedModel, str]],
    stock_models: dict[str, tuple[PreTrainedModel, str]],
    inputs: dict[str, Any],
    tmp_path: Path,
) -> None:
    own_code = {
        name: (str(save_pruned(model, tmp_path / name, manifest=SOURCE, self_contained=True)), auto)
        for name, (model, auto) in models.items()
    }
    stock = {
        name: (str(save_pruned(model, tmp_path / name, manifest=SOURCE, self_contained=True)), auto)
        for name, (model, auto) in stock_models.items()
    }
    refused = {
        f"refused {name}": (
            str(save_pruned(model, tmp_path / f"refused {name}", manifest=SOURCE)),
            type(model).__name__,
        )
        for name, (model, _) in models.items()
    }
    task = {"folders": own_code, "stock": stock, "refused": refused}
    answer = ask(WITHOUT_HEADLENS, task, inputs, tmp_path / "asked", "-I")
    assert answer["headlens"] == []
    for name, (model, _) in models.items():
        assert same(answer[name]["auto"], outputs(model, inputs[name])), name
        assert same(answer[name]["again"], outputs(model, inputs[name])), name
        assert answer[name]["class"] == f"Headlens{type(model).__name__}"
        eager = copy.deepcopy(model)
        eager.set_attn_implementation("eager")
        assert same(answer[name]["eager"], outputs(eager, inputs[name])), name
        unknown, mismatch = answer[f"refused {name}"]["auto"], answer[f"refused {name}"]["class"]
        assert unknown is not None, name
        assert f"model type `headlens_{name}`" in unknown[1]
        assert mismatch is not None, name
        assert mismatch[0] == "RuntimeError"
        assert "size mismatch" in mismatch[1] or "mismatched" in mismatch[1]
    for name, (model, _) in stock_models.items():
        assert same(answer[name]["auto"], outputs(model, inputs[name])), name
    assert answer["uniform llama"]["class"] == "MistralForCausalLM"
    assert answer["masked bert"]["class"] == "BertForMaskedLM"


@pytest.mark.parametrize("trust_remote_code", [False, True])
def test_headlens_never_runs_the_code_of_a_folder(trust_remote_code: bool, tmp_path: Path) -> None:
    model = pruned(tiny_model("bert"))
    folder = save_pruned(model, tmp_path / "new", manifest=SOURCE, self_contained=True)
    (folder / "modeling_headlens.py").write_text("raise SystemExit('was run')")
    for load in (load_model, load_whole):
        again = load(str(folder), dtype="auto", trust_remote_code=trust_remote_code).model
        assert same(outputs(again), outputs(model))
        assert type(again).__module__ == "headlens.surgery.classes"


def test_a_pruned_minilm_comes_back(minilm_path: Path, tmp_path: Path) -> None:
    loaded = load_model(str(minilm_path))
    off = [(layer, head) for layer in range(5) for head in range(layer, 12, 2)] + [(5, head) for head in range(12)]
    model = pruned(loaded.model, off, means(loaded.model, 32))
    folder = save_pruned(model, tmp_path / "new", tokenizer=loaded.tokenizer, manifest={"source": loaded.provenance})
    told = ask(
        WITH_HEADLENS,
        {"folders": {"minilm": (str(folder), "AutoModel")}},
        {"minilm": padded_inputs(30000)},
        tmp_path / "asked",
    )
    assert same(told["minilm"]["auto"], outputs(model, padded_inputs(30000)))
    again = load_model(str(folder))
    text = "Heads that nobody needs are gone."
    assert again.require_tokenizer()(text) == loaded.require_tokenizer()(text)
