"""Load a checkpoint that was just written, and compare it with the model that it was written from."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headlens.errors import OutputError
from headlens.surgery.self_contained import FILE

TOKENS = 12  # of the random text; every model takes so many


def prove(model: PreTrainedModel, kind: type[PreTrainedModel], folder: Path) -> None:
    """OutputError unless every class that is to read the folder gives the weights and the outputs of `model`, bit for
    bit: `kind`, and the class of the folder's own Python file where it has one."""
    _compare(model, kind, folder)
    if (folder / FILE).exists():
        with _module(folder / FILE) as module:
            _compare(model, getattr(module, kind.__name__), folder)


def _compare(model: PreTrainedModel, kind: type[PreTrainedModel], folder: Path) -> None:
    again, report = kind.from_pretrained(
        folder,
        dtype="auto",
        local_files_only=True,
        use_safetensors=True,
        output_loading_info=True,
        attn_implementation=model.config._attn_implementation,
    )
    astray = sorted(str(name) for keys in report.values() for name in keys)
    if astray:
        raise OutputError(f"What was written does not load as a {kind.__name__}: {astray[0]} has no place. Not saved.")
    again = again.to(model.device)
    weights = again.state_dict()
    for name, weight in model.state_dict().items():
        if name not in weights or not _equal(weight, weights[name]):
            raise OutputError(f"The weight {name} loads as another one than was saved, as {kind.__name__}. Not saved.")
    _cast_computed(model, again)
    if not all(map(_equal, _outputs(model), _outputs(again))):
        raise OutputError(f"What was written gives other outputs than the model, as {kind.__name__}. Not saved.")


def _cast_computed(model: PreTrainedModel, again: PreTrainedModel) -> None:
    """What is computed instead of saved (the frequencies of rotary positions) is float32 in a loaded model; where
    `model` was moved to another dtype, that went with it."""
    buffers = dict(model.named_buffers())
    for name, buffer in again.named_buffers():
        if name in buffers:
            buffer.data = buffer.data.to(buffers[name].dtype)


def _equal(one: Tensor, other: Tensor) -> bool:
    """Bit for bit; NaN equals NaN."""
    same = one.dtype == other.dtype and one.shape == other.shape
    return same and bool(((one == other) | (one.isnan() & other.isnan())).all())


@torch.no_grad()
def _outputs(model: PreTrainedModel) -> list[Tensor]:
    """All tensors that the model returns for one random text."""
    config = model.config.get_text_config()
    ids = torch.randint(0, config.vocab_size, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    if isinstance(config.eos_token_id, int):  # some classes take their answer from where the text ends
        ids[:, -1] = config.eos_token_id
    if "MultipleChoice" in type(model).__name__:
        ids = ids[:, None]  # [batch, choice, token]
    inputs: dict[str, Any] = {"input_ids": ids.to(model.device)}
    if config.is_encoder_decoder and "decoder_input_ids" in signature(model.forward).parameters:
        inputs["decoder_input_ids"] = inputs["input_ids"]
    with _in_eval_mode(model):
        returned = model(**inputs, return_dict=True)
    return [value for value in returned.values() if isinstance(value, Tensor)]


@contextmanager
def _in_eval_mode(model: PreTrainedModel) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def _module(path: Path) -> Iterator[ModuleType]:
    """The file as a module, for the time of the context; nothing is written beside it."""
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # type hints are looked up there
    try:
        exec(compile(path.read_text(encoding="utf-8"), path, "exec"), vars(module))
        yield module
    finally:
        del sys.modules[module.__name__]
