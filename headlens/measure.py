"""What a model takes: parameters, bytes on disk, key/value cache, time. Measured on the model as it is, never computed
from its config, so that it holds for layers of different heads and for layers of none.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.arch import attention_sites, output_projection
from headlens.encode import position_limit
from headlens.errors import OutputError, UnsupportedModel

Clock = Callable[[], float]  # in seconds

ROUNDS, WARM_UP = 7, 2
CACHED_TOKENS = 32  # that every model can read, however small
_WEIGHTS = (".safetensors", ".gguf", ".bin")
_SEED = 0  # of the token ids, which mean nothing


@dataclass(frozen=True)
class Parameters:
    """Numbers that were learnt. What is used twice, as tied embeddings are, counts once."""

    total: int
    attention: int  # of attention layers with their output projections
    without_embeddings: int  # all but those of embedding tables, tied vocabulary heads among them


@dataclass(frozen=True)
class DiskBytes:
    weights: int
    total: int  # of all files of the folder


@dataclass(frozen=True)
class CacheBytes:
    """Keys and values that are there after so many tokens of each of `batch` texts were read."""

    total: int
    tokens: int
    batch: int

    @property
    def per_token(self) -> float:
        """Of one text; over the whole length, so less than at its start where layers forget (sliding windows)."""
        return self.total / (self.tokens * self.batch)


def parameters(model: nn.Module) -> Parameters:
    """How many parameters there are.

    Raises UnsupportedModel where the attention layers cannot be told.
    """
    attention: dict[int, int] = {}
    for site in attention_sites(model):
        for part in (site.module, output_projection(model, site)):
            attention |= _sizes(part.parameters())
    embeddings: dict[int, int] = {}
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            embeddings |= _sizes(module.parameters())
    sizes = _sizes(model.parameters())
    total = sum(sizes.values())
    tables = sum(
        size for weight, size in embeddings.items() if weight not in attention
    )  # T5 keeps one in its attention
    return Parameters(total, sum(attention.values()), total - tables)


def bytes_on_disk(folder: str | os.PathLike[str]) -> DiskBytes:
    """Sizes of the files of a checkpoint.

    Raises OutputError where there is no such folder.
    """
    path = Path(folder)
    if not path.is_dir():
        raise OutputError(f"{path} is no folder; give the one that a model was saved to.")
    files = [file for file in path.rglob("*") if file.is_file()]
    sizes = {file: file.stat().st_size for file in files}
    return DiskBytes(sum(sizes[file] for file in files if file.suffix in _WEIGHTS), sum(sizes.values()))


def cache_bytes(model: PreTrainedModel, tokens: int, batch: int = 1) -> CacheBytes | None:
    """Run the model on `batch` texts of `tokens` random tokens and weigh the cache that it leaves; None of an encoder.

    Raises UnsupportedModel where the model cannot read so many tokens.
    """
    if not _decodes(model):
        return None
    _check_size(model, tokens, batch)
    with torch.inference_mode():
        cache = _cache_of(model(**_inputs(model, _ids(model, batch, tokens)), use_cache=True))
    return CacheBytes(sum(tensor.numel() * tensor.element_size() for tensor in _tensors(cache)), tokens, batch)


def sizes_of(model: PreTrainedModel) -> tuple[Parameters, CacheBytes | None]:
    """Parameters, and the cache that a real run of CACHED_TOKENS tokens leaves; None of an encoder."""
    return parameters(model), cache_bytes(model, CACHED_TOKENS)


def sizes_before_and_after(original: PreTrainedModel, kept: PreTrainedModel) -> dict[str, dict[str, int]]:
    """By what was counted, the numbers "before" and "after", as a manifest tells them; the cache of decoders only."""
    (before, cache_before), (after, cache_after) = sizes_of(original), sizes_of(kept)
    found = {
        "parameters": {"before": before.total, "after": after.total},
        "parameters of attention": {"before": before.attention, "after": after.attention},
    }
    if cache_before is not None and cache_after is not None:
        name = f"bytes of the cache after {CACHED_TOKENS} tokens"
        found[name] = {"before": cache_before.total, "after": cache_after.total}
    return found


# ---------------------------------------------------------------------------------------------------------------- time


@dataclass(frozen=True)
class Workload:
    """ "prefill": reading `tokens` tokens of each text into the cache; "decode": `new` more of each, one by one, with
    the cache; "encode": reading texts of `tokens` tokens, special ones included."""

    kind: Literal["prefill", "decode", "encode"]
    batch: int
    tokens: int
    new: int = 0

    def __post_init__(self) -> None:
        if self.batch < 1 or self.tokens < 1 or (self.new < 1) == (self.kind == "decode"):
            raise UnsupportedModel(f"A workload reads at least one token, and only decoding writes new ones: {self}.")

    @property
    def units(self) -> int:
        """What is done in one round: tokens, or sentences of an encoder."""
        return self.batch * {"prefill": self.tokens, "decode": self.new, "encode": 1}[self.kind]

    @property
    def unit(self) -> str:
        return "sentences/s" if self.kind == "encode" else "tokens/s"

    def __str__(self) -> str:
        new = f" then {self.new} new" if self.new else ""
        return f"{self.kind}, batch {self.batch}, {self.tokens} tokens{new}"


@dataclass(frozen=True)
class Speed:
    """`median` of the model and `of_other` are units a second; `ratio` is the median over rounds of how many times as
    fast the model is as the other one, `low` and `high` the quartiles. None where there was no other."""

    workload: Workload
    median: float
    rounds: int
    of_other: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with the workload in words and its unit."""
        return {**asdict(self), "workload": str(self.workload), "unit": self.workload.unit}


def workloads_of(model: PreTrainedModel) -> tuple[Workload, ...]:
    """Of a decoder prefill and decoding at batch 1 and 16, of an encoder sentences of 32 and 128 tokens."""
    if _decodes(model):
        prefill = [Workload("prefill", batch, 128) for batch in (1, 16)]
        return (*prefill, *(Workload("decode", batch, 32, 32) for batch in (1, 16)))
    return Workload("encode", 16, 32), Workload("encode", 16, 128)


def measure_speed(
    model: PreTrainedModel,
    other: PreTrainedModel | None = None,
    *,
    workloads: Sequence[Workload] | None = None,
    rounds: int = ROUNDS,
    warm_up: int = WARM_UP,
    clock: Clock = time.perf_counter,
) -> list[Speed]:
    """Time the model, and another one in turns with it: what slows the machine down for a while slows down both.

    Every round runs both models once on the same tokens, and which of them goes first alternates. Models run as they
    are given: with a vocabulary head its time is part of it.

    Parameters
    ----------
    workloads
        None: those of `workloads_of`.
    rounds
        That are counted.
    warm_up
        Rounds before, that are not.

    Raises
    ------
    UnsupportedModel
        A model in train mode, a workload that it cannot do, or the two of them on different devices.
    """
    models = [model] if other is None else [model, other]
    if rounds < 1 or warm_up < 0:
        raise UnsupportedModel(f"Timing needs at least one round and no negative warm-up, got {rounds} and {warm_up}.")
    for one in models:
        if one.training:
            raise UnsupportedModel(f"{type(one).__name__} is in train mode, which takes other time; call model.eval().")
    if len({one.device.type for one in models}) > 1:
        raise UnsupportedModel(f"One model is on {model.device}, the other is not; move both to one device.")
    chosen = workloads_of(model) if workloads is None else workloads
    for workload in chosen:
        for one in models:
            _check_workload(one, workload)
    with torch.inference_mode():
        return [_speed(models, workload, rounds, warm_up, clock) for workload in chosen]


def _speed(models: Sequence[PreTrainedModel], workload: Workload, rounds: int, warm_up: int, clock: Clock) -> Speed:
    ids = _ids(models[0], workload.batch, workload.tokens + workload.new, known=min(map(_known_tokens, models)))
    taken = np.empty((warm_up + rounds, len(models)))  # seconds
    for number in range(warm_up + rounds):
        places = list(range(len(models)))
        for place in places if number % 2 == 0 else reversed(places):
            taken[number, place] = _seconds(models[place], workload, ids, clock)
    taken = taken[warm_up:]
    median, *others = (workload.units / np.median(taken, axis=0)).tolist()
    if not others:
        return Speed(workload, median, rounds)
    low, ratio, high = np.percentile(taken[:, 1] / taken[:, 0], [25, 50, 75]).tolist()
    return Speed(workload, median, rounds, others[0], ratio, low, high)


def _seconds(model: PreTrainedModel, workload: Workload, ids: Int[Tensor, "batch token"], clock: Clock) -> float:
    prompt = _inputs(model, ids[:, : workload.tokens])
    if workload.kind == "encode":
        return _timed(model, lambda: model(**prompt), clock)
    if workload.kind == "prefill":
        return _timed(model, lambda: model(**prompt, use_cache=True), clock)
    cache = _cache_of(model(**prompt, use_cache=True))  # anew each round: decoding writes into it

    def decode() -> None:
        for place in range(workload.tokens, workload.tokens + workload.new):
            mask = torch.ones(workload.batch, place + 1, dtype=torch.long, device=ids.device)
            step = {"input_ids": ids[:, place : place + 1], "attention_mask": mask, _cache_name(model): cache}
            model(**step, use_cache=True)

    return _timed(model, decode, clock)


def _timed(model: PreTrainedModel, run: Callable[[], object], clock: Clock) -> float:
    _finish(model.device)
    start = clock()
    run()
    _finish(model.device)
    return clock() - start


def _finish(device: torch.device) -> None:
    """Wait for what the device has been told to do."""
    if device.type in ("cuda", "mps"):
        getattr(torch, device.type).synchronize()


# -------------------------------------------------------------------------------------------------------------- inside


def _sizes(weights: Iterable[nn.Parameter]) -> dict[int, int]:
    return {id(weight): weight.numel() for weight in weights}


def _decodes(model: PreTrainedModel) -> bool:
    return any(site.stack == "decoder" for site in attention_sites(model))


def _inputs(model: PreTrainedModel, ids: Int[Tensor, "batch token"]) -> dict[str, Tensor]:
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if model.config.is_encoder_decoder and _decodes(model):
        inputs["decoder_input_ids"] = ids
    return inputs


def _ids(model: PreTrainedModel, batch: int, tokens: int, known: int | None = None) -> Int[Tensor, "batch token"]:
    generator = torch.Generator().manual_seed(_SEED)
    return torch.randint(known or _known_tokens(model), (batch, tokens), generator=generator).to(model.device)


def _known_tokens(model: PreTrainedModel) -> int:
    return int(model.get_input_embeddings().num_embeddings)


def _cache_of(output: Any) -> Any:
    """The cache has had two names in transformers 5."""
    found = next((cache for name in ("cache", "past_key_values") if (cache := getattr(output, name, None))), None)
    if found is None:
        raise UnsupportedModel(f"{type(output).__name__} brings no key/value cache, though it was asked for.")
    return found


def _cache_name(model: PreTrainedModel) -> str:
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _tensors(cache: Any) -> list[Tensor]:
    """Keys and values of all layers, of both caches of an encoder-decoder."""
    parts = [getattr(cache, name) for name in ("self_attention_cache", "cross_attention_cache") if hasattr(cache, name)]
    layers = [layer for part in parts or [cache] for layer in part.layers]
    found = [getattr(layer, name, None) for layer in layers for name in ("keys", "values")]
    return [tensor for tensor in found if isinstance(tensor, Tensor)]


def _check_workload(model: PreTrainedModel, workload: Workload) -> None:
    if workload.kind != "encode" and not _decodes(model):
        raise UnsupportedModel(f"{type(model).__name__} is an encoder and keeps no cache; measure it by sentences.")
    if workload.kind == "decode" and model.config.is_encoder_decoder:
        raise UnsupportedModel(f"Decoding of a {type(model).__name__}, which has two stacks, is not measured.")
    _check_size(model, workload.tokens + workload.new, workload.batch)


def _check_size(model: PreTrainedModel, tokens: int, batch: int) -> None:
    most = position_limit(model.config)
    if tokens < 1 or batch < 1 or (most is not None and tokens > most):
        raise UnsupportedModel(
            f"{type(model).__name__} takes {f'1 to {most}' if most else 'at least 1'} tokens of at least one text; got "
            f"{tokens} tokens of {batch} texts."
        )
