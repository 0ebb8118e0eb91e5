"""A whole text through a model block by block: each is left before the next one begins, so that it can be changed.

Of the text only the stream is kept, as it stands before the next block: one pass over the model in all, where going
to every block from the start would take as many as half the number of blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.errors import UnsupportedModel
from headlens.surgery.passes import TokenBatch, projections_seen, real_tokens, run, without_caches
from headlens.surgery.present import Layer, layers_of


@dataclass(frozen=True, eq=False)
class Reach:
    """What one attention layer has before it and makes of it, for the real tokens of a batch, in float64."""

    stream: Float[Tensor, "token hidden"]
    context: Float[Tensor, "token inputs"]  # the outputs of its heads side by side, which W_O reads
    output: Float[Tensor, "token hidden"]


@dataclass(frozen=True, eq=False)
class _Call:
    """What a block is called with, beside the stream."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self, block: nn.Module, stream: Tensor) -> Tensor:
        given = block(stream, *self.args, **self.kwargs)
        found: Tensor = given[0] if isinstance(given, tuple) else given
        return found


class Walk:
    """The streams of all batches of a text before one block of a model.

    What blocks are given beside the stream is that of the first pass, a bias of positions that the first block of a T5
    hands on, too.

    Raises
    ------
    CaptureError
        A model in train mode.
    UnsupportedModel
        A model whose blocks cannot be told.
    """

    @torch.no_grad()
    def __init__(self, model: PreTrainedModel, batches: Iterable[TokenBatch]) -> None:
        self.layers = layers_of(model)
        self._blocks = [_block_of(model, layer) for layer in self.layers]
        self._streams: list[Tensor] = []
        self._calls: list[list[_Call]] = []
        self._masks: list[Tensor] = []
        for batch in batches:
            stream, calls = _start(model, self._blocks, batch)
            self._streams.append(stream)
            self._calls.append(calls)
            self._masks.append(real_tokens(model, batch))
        self.at = 0  # the block that comes next

    def reaches(self) -> Iterator[Reach]:
        """Of the attention layer that comes next, batch by batch; the walk stays where it is."""
        block, layer = self._blocks[self.at], self.layers[self.at]
        for stream, calls, mask in zip(self._streams, self._calls, self._masks, strict=True):
            yield _reach(block, layer, stream, calls[self.at], mask)

    @torch.no_grad()
    def go_on(self) -> None:
        """Through the next block, as it is now."""
        block = self._blocks[self.at]
        for number, (stream, calls) in enumerate(zip(self._streams, self._calls, strict=True)):
            self._streams[number] = calls[self.at].run(block, stream)
        self.at += 1


class _Reached(Exception):
    """Ends a forward pass: what stands above is not needed."""


def _block_of(model: PreTrainedModel, layer: Layer) -> nn.Module:
    """The module in the list of all blocks that holds the attention layer."""
    parts = layer.name.split(".")
    place = next((number for number, part in enumerate(parts) if part.isdigit()), None)
    if place is None:
        raise UnsupportedModel(f"{type(model).__name__} keeps its layers in no list, so it cannot be walked through.")
    return model.get_submodule(".".join(parts[: place + 1]))


def _start(model: PreTrainedModel, blocks: Sequence[nn.Module], batch: TokenBatch) -> tuple[Tensor, list[_Call]]:
    """The stream before the first block, and how each block is called: a pass as the model itself makes it."""
    first: list[Tensor] = []
    calls: list[_Call] = []

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        kwargs = dict(kwargs)
        stream, *others = args or (kwargs.pop("hidden_states"),)
        if not first:
            first.append(stream)
        calls.append(_Call(*without_caches(others, kwargs)))

    with ExitStack() as stack:
        for block in blocks:
            stack.callback(block.register_forward_pre_hook(before, with_kwargs=True).remove)
        run(model, batch)
    return first[0], calls


@torch.no_grad()
def _reach(block: nn.Module, layer: Layer, stream: Tensor, call: _Call, mask: Tensor) -> Reach:
    found: list[Tensor] = []

    def see(_: Layer, context: Tensor, output: Tensor) -> None:
        found.extend([context, output])
        raise _Reached

    try:
        with projections_seen([layer], see):
            call.run(block, stream)
    except _Reached:
        pass
    return Reach(*(each[mask].double() for each in (stream, *found)))
