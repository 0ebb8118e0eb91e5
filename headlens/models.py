"""Load a model and its tokenizer from a folder, the model hub or an installed package, or say plainly why not.

What loads silently and wrongly elsewhere is refused here: weights that the checkpoint lacks (they would be random),
weights of other sizes than the config says, pickle files, and Python code that comes with a checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from headlens.arch import family_of
from headlens.checkpoints import BUNDLES, Checkpoint, find_checkpoint, read_json
from headlens.checkpoints import bundled_path as bundled_path  # for those who load models
from headlens.errors import PlanError, UnsupportedModel
from headlens.model_facts import provenance_of
from headlens.plan import FILE as PLAN_FILE
from headlens.plan import HeadPlan, plan_of
from headlens.quiet import quiet as quiet
from headlens.selfcheck import SelfCheck, check_model
from headlens.sizes import head_counts as head_counts
from headlens.surgery.classes import PRUNED_CLASS, class_names, is_pruned_type, register_configs

register_configs()  # so that AutoModel finds pruned checkpoints once this module is imported

DTYPES = ("auto", "float32", "float64", "bfloat16", "float16")


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model in eval mode (without a task head unless `load_whole` gave it), and all that tells later which it was."""

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


AutoClass = Any  # one of transformers: AutoModel, AutoModelForCausalLM, ...
ChooseClass = Callable[[Checkpoint, PreTrainedConfig | None], AutoClass]  # no config of a .gguf file


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
    return _load(name, _base_class, device, dtype, revision, trust_remote_code, check)


def load_whole(
    name: str,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    revision: str | None = None,
    trust_remote_code: bool = False,
    check: bool = True,
) -> LoadedModel:
    """Load a checkpoint as the class that its config names, with its task head; everything else is as in `load_model`.

    Raises
    ------
    UnsupportedModel
        As from `load_model`; the config names no class, or none that an Auto class of transformers makes; or weights of
        the head are missing: they would be random.
    SelfCheckFailed
        What is captured is not what the model computes.
    """
    return _load(name, _named_class, device, dtype, revision, trust_remote_code, check)


def _load(
    name: str,
    choose: ChooseClass,
    device: str,
    dtype: str,
    revision: str | None,
    trust_remote_code: bool,
    check: bool,
) -> LoadedModel:
    if dtype not in DTYPES:
        raise UnsupportedModel(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}.")
    _check_device(device, dtype)
    with quiet():
        checkpoint = find_checkpoint(name, revision=revision, with_code=trust_remote_code)
        model = _load_weights(checkpoint, choose, dtype, trust_remote_code)
        tokenizer = load_tokenizer(checkpoint, trust_remote_code)
        model = model.to(device).eval()
    proof = check_model(model) if check else None
    return LoadedModel(model, tokenizer, name, checkpoint.source, provenance_of(checkpoint, model), proof)


def network_of(model: PreTrainedModel) -> PreTrainedModel:
    """What is run: no task head (nobody asks for its logits), and of two stacks the encoder."""
    base = model.base_model
    return base.get_encoder() if base.config.is_encoder_decoder else base


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


def _load_weights(checkpoint: Checkpoint, choose: ChooseClass, dtype: str, trust_remote_code: bool) -> PreTrainedModel:
    config: PreTrainedConfig | None = None
    options: dict[str, Any] = {"gguf_file": checkpoint.gguf}
    if checkpoint.gguf is None:
        config = _load_config(checkpoint, trust_remote_code)
        head_counts(config)  # before gigabytes are read
        _check_weight_files(checkpoint)
        options = {"config": config, "use_safetensors": True, "trust_remote_code": trust_remote_code}
    auto = choose(checkpoint, config)
    try:
        model, report = auto.from_pretrained(
            checkpoint.folder, dtype=dtype, output_loading_info=True, local_files_only=True, **options
        )
    except _LOADING_ERRORS as error:
        raise UnsupportedModel(f"{checkpoint.name!r} cannot be loaded: {_why(error)}") from error
    _check_complete(checkpoint, model, report["missing_keys"])
    _check_all_used(checkpoint, model, report["unexpected_keys"])
    return model


def _base_class(checkpoint: Checkpoint, config: PreTrainedConfig | None) -> AutoClass:
    return AutoModel


def _named_class(checkpoint: Checkpoint, config: PreTrainedConfig | None) -> AutoClass:
    """The Auto class that makes the class which the config names."""
    if config is None:
        return AutoModelForCausalLM  # what .gguf files hold
    names = config.architectures or []
    if len(names) != 1:
        raise UnsupportedModel(
            f"config.json of {checkpoint.name!r} must name one class in architectures, got {config.architectures!r}; "
            f"so it is not known which head the model has."
        )
    auto = next((auto for auto, made in _classes_made(config).items() if names[0] in made), None)
    if auto is None:
        raise UnsupportedModel(
            f"config.json of {checkpoint.name!r} names the class {names[0]}, which no Auto class of transformers "
            f"{transformers.__version__} makes of a {family_of(config)!r}."
        )
    return getattr(modeling_auto, auto)


def _classes_made(config: PreTrainedConfig) -> dict[str, tuple[str, ...]]:
    """By Auto class the names of the classes that it makes from a config, its own code included."""
    prefix = PRUNED_CLASS if is_pruned_type(config.model_type) else ""
    known = {auto: tuple(prefix + name for name in names) for auto, names in class_names(family_of(config)).items()}
    paths = getattr(config, "auto_map", None) or {}
    own = {auto: (path.split(".")[-1],) for auto, path in paths.items() if auto.startswith("AutoModel")}
    return {auto: names for auto, names in {**known, **own}.items() if hasattr(modeling_auto, auto)}


def _load_config(checkpoint: Checkpoint, trust_remote_code: bool) -> PreTrainedConfig:
    path = checkpoint.folder / "config.json"
    if not path.is_file():
        raise UnsupportedModel(
            f"{checkpoint.name!r} is a folder without config.json, so it holds no model (a folder "
            f"here goes before the model hub)."
        )
    raw = read_json(path, checkpoint.name)
    if is_pruned_type(raw.get("model_type")):
        trust_remote_code = False  # headlens has these classes itself, whatever code comes with the checkpoint
    if not trust_remote_code:
        _check_family(raw.get("model_type"), "auto_map" in raw, checkpoint.name)
    try:
        config = AutoConfig.from_pretrained(
            checkpoint.folder, trust_remote_code=trust_remote_code, local_files_only=True
        )
        _check_plan(checkpoint, config)
    except (*_LOADING_ERRORS, PlanError) as error:
        raise UnsupportedModel(f"config.json of {checkpoint.name!r} cannot be used: {_why(error)}") from error
    return config


def _check_plan(checkpoint: Checkpoint, config: PreTrainedConfig) -> None:
    """Of a pruned checkpoint: heads would go by wrong numbers where the config had another plan than was saved."""
    plan = plan_of(config)
    if plan is None and is_pruned_type(config.model_type):
        raise PlanError("it has lost its plan, which heads these are; take the checkpoint as it was saved")
    if plan is not None and (checkpoint.folder / PLAN_FILE).is_file() and HeadPlan.load(checkpoint.folder) != plan:
        raise PlanError(f"its plan is not that of {PLAN_FILE}; take the checkpoint as it was saved")


def _check_family(family: object, has_code: bool, name: str) -> None:
    is_known = isinstance(family, str) and family in CONFIG_MAPPING
    if is_known and (family in modeling_auto.MODEL_MAPPING_NAMES or is_pruned_type(family)):
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
    # a pooler comes after all attention, and many checkpoints have none; but a head may read it
    may_lack_pooler = model.base_model is model
    missing = sorted(key for key in missing_keys if not (may_lack_pooler and "pooler" in key.split(".")))
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
