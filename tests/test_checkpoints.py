"""Finding: a name, a folder or an id of the hub leads to one checkpoint, or to a sentence that says why not."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from headlens.checkpoints import find_checkpoint, read_json
from headlens.errors import UnsupportedModel
from headlens.models import load_model


def cached(folder: Path, cache: Path, name: str, commit: str) -> None:
    """What a download of `name` leaves behind."""
    home = cache / f"models--{name.replace('/', '--')}"
    shutil.copytree(folder, home / "snapshots" / commit)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(commit)


def test_a_downloaded_model_loads_offline_with_its_commit(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    cached(tiny_bert, tmp_path / "cache", "acme/tiny-bert", "a" * 40)
    provenance = load_model("acme/tiny-bert").provenance
    assert (provenance["source"], provenance["revision"]) == ("acme/tiny-bert", "a" * 40)
    with pytest.raises(UnsupportedModel, match="the model hub has no such model"):
        load_model("acme/tiny-bert", revision="v2")


def test_only_safetensors_are_fetched(monkeypatch: pytest.MonkeyPatch, tiny_bert: Path) -> None:
    asked = {}

    def download(name: str, **options: object) -> str:
        asked.update(options)
        return str(tiny_bert)

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
def test_the_hub_and_the_package_hold_the_same_minilm(minilm_path: Path) -> None:
    hub, package = load_model("sentence-transformers/all-MiniLM-L6-v2"), load_model("minilm")
    assert hub.provenance["weights_sha256"] == package.provenance["weights_sha256"]


@pytest.mark.parametrize("name", ["acme/no-such-model", "no such model", "", "x//y", "/no/such/folder"])
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedModel, match="no folder here and not one of minilm, smollm2") as caught:
        load_model(name)
    assert ("HF_HUB_OFFLINE is set" in str(caught.value)) is huggingface_hub.constants.HF_HUB_OFFLINE


def test_a_file_is_refused(tiny_bert: Path) -> None:
    with pytest.raises(UnsupportedModel, match="is a file: give the folder"):
        load_model(str(tiny_bert / "model.safetensors"))


@pytest.mark.parametrize(
    ("name", "why"),
    [("~nosuchuser/x", r"home directory\."), ("x" * 300, r"name too long\.")],
    ids=["unknown user", "long name"],
)
def test_a_name_that_no_folder_can_have_is_refused(name: str, why: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"cannot be looked up as a folder: .*{why}$|no folder here"):
        find_checkpoint(name)


def test_a_folder_that_may_not_be_entered_is_refused(tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # by its answers only: who runs the tests as root may enter all
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tiny_bert or not mode & os.X_OK)
    with pytest.raises(UnsupportedModel, match="is a folder that you may not read"):
        find_checkpoint(str(tiny_bert))


def test_a_folder_within_one_that_may_not_be_entered_is_refused(
    tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", locked)
    with pytest.raises(UnsupportedModel, match=r"cannot be looked up as a folder: Permission denied\.$"):
        find_checkpoint(str(tiny_bert))


def test_json_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"of 'a model' cannot be read: Is a directory\.$"):
        read_json(tmp_path, "a model")
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(UnsupportedModel, match=r"config\.json of 'a model' is not JSON: .*recursion"):
        read_json(tmp_path / "config.json", "a model")


@pytest.mark.parametrize(
    "content", ["[1]", "5", '{"a": 5}', '{"a": ["x"]}'], ids=["list", "number", "of numbers", "of lists"]
)
def test_a_broken_weight_map_is_refused(tiny_bert: Path, content: str) -> None:
    (tiny_bert / "model.safetensors").unlink()
    (tiny_bert / "model.safetensors.index.json").write_text(f'{{"weight_map": {content}}}')
    with pytest.raises(UnsupportedModel, match="must give a weight_map from weights to file names"):
        load_model(str(tiny_bert))


def test_weights_that_may_not_be_read_are_not_called_missing(tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(path: Path, *args: Any, **options: Any) -> Any:
        if path.suffix == ".safetensors":
            raise PermissionError(13, "Permission denied")
        return unlocked(path, *args, **options)

    unlocked = Path.open
    monkeypatch.setattr(Path, "open", locked)  # who runs the tests as root may open all
    with pytest.raises(UnsupportedModel, match=r"model\.safetensors of .* cannot be read: Permission denied\."):
        load_model(str(tiny_bert))


def test_a_folder_has_no_revisions(tiny_bert: Path) -> None:
    with pytest.raises(UnsupportedModel, match="has no revisions; leave revision='v2' out"):
        load_model(str(tiny_bert), revision="v2")


@pytest.mark.parametrize("name", ["minilm", "smollm2"])
def test_a_missing_package_is_named_with_its_install_line(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    with pytest.raises(UnsupportedModel, match=f"'{name}' comes with the package .*: pip install"):
        load_model(name)
