"""Load a model and its tokenizer from a folder, the model hub or an installed package, or say plainly why not.

What loads silently and wrongly elsewhere is refused here: weights that the checkpoint lacks (they would be random),
weights of other sizes than the config says, pickle files, and Python code that comes with a checkpoint.
"""

from __future__ import annotations

import hashlib
import io
import logging
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import utils as hub
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES
from transformers.utils import logging as transformers_logging

from headlens.checkpoints import BUNDLES, Checkpoint, find_checkpoint, read_json
from headlens.checkpoints import bundled_path as bundled_path  # for those who load models
from headlens.errors import UnsupportedModel
from headlens.selfcheck import SelfCheck, check_model

DTYPES = ("auto", "float32", "float64", "bfloat16", "float16")


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A base model (no vocabulary head) in eval mode, and all that tells later which model it was."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None  # None where the checkpoint brings none, as for images
    name: str  # as it was asked for
    source: str  # hub id, folder name or package: no absolute path
    provenance: dict[str, Any]  # plain values, ready for JSON
    check: SelfCheck | None = None  # None where it was not asked for

    def __repr__(self) -> str:
        facts = self.provenance
        return (
            f"<LoadedModel {self.name}: {facts['class']}, {facts['layers']} x {facts['heads']} heads, {facts['dtype']}>"
        )

    def require_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer; UnsupportedModel where the checkpoint brings none, or the model reads no text."""
        reads = self.model.main_input_name
        if reads != "input_ids":
            raise UnsupportedModel(f"{self.name!r} reads {reads} and no text: give it a model of text instead.")
        if self.tokenizer is None:
            raise UnsupportedModel(
                f"{self.name!r} has no tokenizer, so it cannot read text: put the files of its tokenizer "
                f"(tokenizer.json, tokenizer_config.json) beside its weights."
            )
        return self.tokenizer


def load_model(
    name: str,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    revision: str | None = None,
    trust_remote_code: bool = False,
    check: bool = True,
) -> LoadedModel:
    """Load the base model of a checkpoint, with its tokenizer, and check that its attention can be trusted.

    Parameters
    ----------
    name
        A name of BUNDLES, a folder with config.json and model.safetensors, or an id of the model hub; looked up in
        this order.
    device
        As torch writes it: "cpu", "cuda", "cuda:1", "mps".
    dtype
        One of DTYPES; "auto" keeps that of the checkpoint.
    revision
        Branch, tag or commit; only for hub ids.
    trust_remote_code
        Run Python code that comes with the checkpoint. Never by default.
    check
        Run the self-check (`check_model`, under two seconds), and keep its result in `LoadedModel.check`.

    Raises
    ------
    UnsupportedModel
        Nothing of that name, not loadable, or not all of its weights are there; with `check`, also a model whose
        attention cannot be watched.
    SelfCheckFailed
        What is captured is not what the model computes.
    """
    if dtype not in DTYPES:
        raise UnsupportedModel(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}.")
    _check_device(device, dtype)
    with quiet():
        checkpoint = find_checkpoint(name, revision=revision, with_code=trust_remote_code)
        model = _load_weights(checkpoint, dtype, trust_remote_code)
        tokenizer = load_tokenizer(checkpoint, trust_remote_code)
        model = model.to(device).eval()
    proof = check_model(model) if check else None
    return LoadedModel(model, tokenizer, name, checkpoint.source, _provenance(checkpoint, model), proof)


def network_of(model: PreTrainedModel) -> PreTrainedModel:
    """What is run: no task head (nobody asks for its logits), and of two stacks the encoder."""
    base = model.base_model
    return base.get_encoder() if base.config.is_encoder_decoder else base


def head_counts(config: PreTrainedConfig) -> dict[str, int]:
    """`layers`, `heads`, `kv_heads`, `head_dim` and `hidden`, whatever the family calls them; of the encoder of two.

    Raises
    ------
    UnsupportedModel
        The config does not give one of them as one whole number.
    """
    try:
        text = config.get_text_config()
    except ValueError as error:
        raise UnsupportedModel(f"{config.model_type!r} holds several text models: {error}") from None
    if not isinstance(text, PreTrainedConfig):
        raise UnsupportedModel(f"The config of {config.model_type!r} should hold that of a text model, got {text!r}.")
    layers = _whole(text, "num_hidden_layers", "num_layers", "n_layer", "n_layers")
    heads = _whole(text, "num_attention_heads", "num_heads", "n_head", "n_heads")
    hidden = _whole(text, "hidden_size", "d_model", "n_embd", "dim")
    sizes = {"kv_heads": _key_value_heads(text, heads), "head_dim": _head_dim(text, hidden, heads)}
    return {"layers": layers, "heads": heads, **sizes, "hidden": hidden}


def local_head_counts(name: str) -> dict[str, int] | None:
    """`head_counts` of a bundled model or one in a folder, from its config alone; None for any other name."""
    checkpoint = find_checkpoint(name) if name in BUNDLES or Path(name).expanduser().is_dir() else None
    if checkpoint is None or not (checkpoint.folder / "config.json").is_file():  # of a GGUF file it is in the file
        return None
    return head_counts(_load_config(checkpoint, trust_remote_code=False))


# ------------------------------------------------------------------------------------------------------------- loading

# What is raised about a checkpoint that cannot be read, or whose config fits neither its weights nor its class.
_UNREADABLE = (OSError, ImportError, RuntimeError, SafetensorError)
_UNFIT = (ValueError, LookupError, TypeError, AttributeError, AssertionError, StrictDataclassError)
_LOADING_ERRORS = (*_UNREADABLE, *_UNFIT)


def _load_weights(checkpoint: Checkpoint, dtype: str, trust_remote_code: bool) -> PreTrainedModel:
    options: dict[str, Any] = {"gguf_file": checkpoint.gguf}
    if checkpoint.gguf is None:
        config = _load_config(checkpoint, trust_remote_code)
        head_counts(config)  # before gigabytes are read
        _check_weight_files(checkpoint)
        options = {"config": config, "use_safetensors": True, "trust_remote_code": trust_remote_code}
    try:
        model, report = AutoModel.from_pretrained(
            checkpoint.folder, dtype=dtype, output_loading_info=True, local_files_only=True, **options
        )
    except _LOADING_ERRORS as error:
        raise UnsupportedModel(f"{checkpoint.name!r} cannot be loaded: {_why(error)}") from error
    _check_complete(checkpoint, model, report["missing_keys"])
    _check_all_used(checkpoint, model, report["unexpected_keys"])
    return model


def _load_config(checkpoint: Checkpoint, trust_remote_code: bool) -> PreTrainedConfig:
    path = checkpoint.folder / "config.json"
    if not path.is_file():
        raise UnsupportedModel(
            f"{checkpoint.name!r} is a folder without config.json, so it holds no model (a folder "
            f"here goes before the model hub)."
        )
    raw = read_json(path, checkpoint.name)
    if not trust_remote_code:
        _check_family(raw.get("model_type"), "auto_map" in raw, checkpoint.name)
    try:
        return AutoConfig.from_pretrained(checkpoint.folder, trust_remote_code=trust_remote_code, local_files_only=True)
    except _LOADING_ERRORS as error:
        raise UnsupportedModel(f"config.json of {checkpoint.name!r} cannot be used: {_why(error)}") from error


def _check_family(family: object, has_code: bool, name: str) -> None:
    is_known = isinstance(family, str) and family in CONFIG_MAPPING
    if is_known and family in MODEL_MAPPING_NAMES:
        return
    if has_code and not is_known:
        raise UnsupportedModel(
            f"{name!r} brings Python code of its own, which is not run unless trust_remote_code is set."
        )
    what = "has no base model class for" if is_known else "does not know"
    raise UnsupportedModel(
        f"config.json of {name!r} has the model_type {family!r}, which transformers {transformers.__version__} {what}."
    )


def _check_weight_files(checkpoint: Checkpoint) -> None:
    files = checkpoint.weight_files
    absent = [file.name for file in files if not file.is_file()]
    if absent:
        raise UnsupportedModel(
            f"{checkpoint.name!r} lacks {len(absent)} of {len(files)} weight files, e.g. {absent[0]}."
        )
    for file in files:
        _check_readable(file, checkpoint.name)  # the reader of safetensors calls missing what it may not open
    if files:
        return
    pickles = sorted(file.name for file in checkpoint.folder.glob("*.bin"))
    if pickles:
        raise UnsupportedModel(
            f"{checkpoint.name!r} has its weights as pickle only ({pickles[0]}), which can run any code when it is "
            f"read: where you trust it, convert it to safetensors with transformers' save_pretrained()."
        )
    raise UnsupportedModel(f"{checkpoint.name!r} has no weights: expected model.safetensors beside config.json.")


def _check_readable(file: Path, name: str) -> None:
    try:
        file.open("rb").close()
    except OSError as error:
        raise UnsupportedModel(f"{file.name} of {name!r} cannot be read: {error.strerror}.") from None


def _check_complete(checkpoint: Checkpoint, model: PreTrainedModel, missing_keys: set[str]) -> None:
    # a pooler comes after all attention, and many checkpoints have none
    missing = sorted(key for key in missing_keys if "pooler" not in key.split("."))
    if missing:
        raise UnsupportedModel(
            f"{checkpoint.name!r} as a {type(model).__name__}: {len(missing)} of {len(model.state_dict())} weights are "
            f"missing from the checkpoint, e.g. {missing[0]}; they would be random."
        )


# What older versions of transformers saved in every layer, and newer ones compute.
_COMPUTED = {"masked_bias", "inv_freq", "position_ids"}


def _check_all_used(checkpoint: Checkpoint, model: PreTrainedModel, unexpected_keys: set[str]) -> None:
    lists = [re.escape(name) for name, part in model.named_modules() if isinstance(part, torch.nn.ModuleList)]
    in_layers = re.compile(rf"({re.escape(model.base_model_prefix)}\.)?({'|'.join(lists)})\.\d+\.")
    unused = sorted(key for key in unexpected_keys if in_layers.match(key) and key.split(".")[-1] not in _COMPUTED)
    if lists and unused:
        raise UnsupportedModel(
            f"{checkpoint.name!r}: {len(unused)} weights of the checkpoint have no place in a {type(model).__name__} "
            f"of its config, e.g. {unused[0]}: it would be another model."
        )


# Any of these in a folder means that a tokenizer was saved there. transformers builds one without them, too, out of
# nothing: with five entries for BERT, where every word is unknown.
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "*.model", "*.tiktoken")


def load_tokenizer(checkpoint: Checkpoint, trust_remote_code: bool) -> PreTrainedTokenizerBase | None:
    if not checkpoint.gguf and not any(any(checkpoint.folder.glob(name)) for name in _TOKENIZER_FILES):
        return None
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            checkpoint.folder,
            trust_remote_code=trust_remote_code,
            local_files_only=True,
            **({"gguf_file": checkpoint.gguf} if checkpoint.gguf else {}),
        )
    except _LOADING_ERRORS as error:
        raise UnsupportedModel(f"The tokenizer of {checkpoint.name!r} cannot be loaded: {_why(error)}") from error
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise UnsupportedModel(
            f"The tokenizer of {checkpoint.name!r} has no vocabulary: its vocabulary file is missing."
        )
    return tokenizer


# ---------------------------------------------------------------------------------------------------------- provenance


def _provenance(checkpoint: Checkpoint, model: PreTrainedModel) -> dict[str, Any]:
    return {
        "name": checkpoint.name if checkpoint.name in BUNDLES else checkpoint.source,
        "source": checkpoint.source,
        "revision": checkpoint.revision,
        "weights_sha256": _digest(checkpoint.weight_files),
        **facts_of(model),
    }


def facts_of(model: PreTrainedModel) -> dict[str, Any]:
    """What a model says of itself, as plain values: family, class, sizes, dtype."""
    return {
        "family": model.config.model_type,
        "class": type(model).__name__,
        **head_counts(model.config),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "dtype": str(model.dtype).removeprefix("torch."),
        "is_encoder_decoder": bool(model.config.is_encoder_decoder),
    }


def _digest(files: list[Path]) -> str:
    """What `sha256sum` prints for a single file; for several, the hash of their hashes in order of their names."""
    digests = [_file_digest(file) for file in files]
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def _file_digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


# ------------------------------------------------------------------------------------------------- reading of a config


def _whole(config: PreTrainedConfig, *names: str) -> int:
    value = next((value for name in names if (value := getattr(config, name, None)) is not None), None)
    if not isinstance(value, int) or value < 1:
        raise UnsupportedModel(
            f"The config of {config.model_type!r} must give {names[0]} as a whole number, got {value!r}."
        )
    return value


def _key_value_heads(config: PreTrainedConfig, heads: int) -> int:
    if getattr(config, "multi_query", False) and not getattr(config, "new_decoder_architecture", False):
        return 1  # GPTBigCode and the first Falcon
    if all(getattr(config, name, None) is None for name in ("num_key_value_heads", "num_kv_heads")):
        return heads
    return _whole(config, "num_key_value_heads", "num_kv_heads")


def _head_dim(config: PreTrainedConfig, hidden: int, heads: int) -> int:
    if getattr(config, "qk_nope_head_dim", None) and getattr(config, "qk_rope_head_dim", None):
        # latent attention, where head_dim names only one part of it
        return int(config.qk_nope_head_dim) + int(config.qk_rope_head_dim)
    if getattr(config, "head_dim", None) is not None:
        return _whole(config, "head_dim")
    if hidden % heads:
        raise UnsupportedModel(f"The config of {config.model_type!r} has {heads} heads for a hidden size of {hidden}.")
    return hidden // heads


def _check_device(device: str, dtype: str) -> None:
    wanted = torch.float32 if dtype == "auto" else getattr(torch, dtype)
    try:
        torch.zeros(1, dtype=wanted, device=device).item()
    # an unknown word, a device that is not there, a torch built without it, a number type that it does not have, a
    # device whose package is not installed
    except (RuntimeError, AssertionError, TypeError, ImportError):
        cuda = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
        known = ["cpu", *cuda, *(["mps"] if torch.backends.mps.is_available() else [])]
        raise UnsupportedModel(
            f"The device {device!r} does not exist here, or it has no {dtype}; torch {torch.__version__} finds: "
            f"{', '.join(known)}."
        ) from None


_SETTINGS = threading.RLock()  # the settings and stderr belong to all threads


@contextmanager
def quiet() -> Iterator[None]:
    """Keep reports, warnings and progress bars of transformers from the user, and put all settings back. One thread at
    a time: of two, the second would put back what the first has set."""
    with _SETTINGS, _hushed():
        yield


@contextmanager
def _hushed() -> Iterator[None]:
    level, hub_level = transformers_logging.get_verbosity(), hub.logging.get_verbosity()
    has_bars, hub_has_bars = transformers_logging.is_progress_bar_enabled(), not hub.are_progress_bars_disabled()
    # stderr as well: the progress bar of .gguf files asks no setting
    with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        transformers_logging.set_verbosity(logging.CRITICAL)
        hub.logging.set_verbosity(logging.CRITICAL)
        transformers_logging.disable_progress_bar()
        try:
            yield
        finally:
            transformers_logging.set_verbosity(level)
            hub.logging.set_verbosity(hub_level)
            if has_bars:
                transformers_logging.enable_progress_bar()  # those of the hub too
            if not hub_has_bars:
                hub.disable_progress_bars()


def _why(error: BaseException) -> str:
    """The first sentence of a message; transformers' own can run over a page."""
    if isinstance(error, SafetensorError):
        return f"its weight file is damaged ({error}); copy or download it again."
    if isinstance(error, KeyError) and not re.search(r"\s", str(error)):
        return f"a piece called {error} is missing in its files."
    if isinstance(error, AttributeError):
        return f"an entry in its files is of another kind than expected ({error})."
    if "ignore_mismatched_sizes" in str(error):
        return "its weights have other sizes than config.json says."
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if lines[0].startswith("Couldn't instantiate the backend tokenizer"):
        return "none of its files holds a vocabulary; copy tokenizer.json again."
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
