"""Text through a model, and what its attention layers are given and give on the way. Nothing of it is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Bool, Float
from torch import Tensor
from transformers import Cache, PreTrainedModel

from headlens.errors import CaptureError
from headlens.positions import with_positions
from headlens.surgery.present import Layer


@runtime_checkable
class TokenBatch(Protocol):
    """Sentences of one forward pass, padded on either side."""

    @property
    def input_ids(self) -> Tensor: ...  # [batch, token]

    @property
    def attention_mask(self) -> Tensor: ...  # [batch, token]; 0 or False is padding


See = Callable[[Layer, Float[Tensor, "batch token features"], Float[Tensor, "batch token hidden"]], None]


def run(model: PreTrainedModel, batch: TokenBatch) -> None:
    """One forward pass, of two stacks through the encoder, without a task head."""
    if model.training:
        raise CaptureError("The model is in train mode, where dropout changes what heads give; call model.eval().")
    base = model.base_model
    network = base.get_encoder() if base.config.is_encoder_decoder else base
    handle = network.register_forward_pre_hook(with_positions, with_kwargs=True)
    try:
        network(input_ids=batch.input_ids.to(model.device), attention_mask=real_tokens(model, batch).long())
    finally:
        handle.remove()


def real_tokens(model: PreTrainedModel, batch: TokenBatch) -> Bool[Tensor, "batch token"]:
    return batch.attention_mask.to(model.device).bool()


def without_caches(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a module was called with, to call it again: a cache holds the keys of the first call, and would get more."""

    def kept(value: Any) -> Any:
        return None if isinstance(value, Cache) else value

    return tuple(map(kept, args)), {name: kept(value) for name, value in kwargs.items()}


@contextmanager
def projections_seen(layers: Sequence[Layer], see: See) -> Iterator[None]:
    """`see` gets what goes into W_O of each layer, the outputs of its heads side by side, and what comes out of it."""
    by_module: dict[Any, list[Layer]] = {}
    for layer in layers:
        by_module.setdefault(layer.out, []).append(layer)
    calls: Counter[Any] = Counter()

    def after(module: Any, args: tuple[Any, ...], output: Tensor) -> None:
        served = by_module[module]  # several, one after the other, where layers share their weights
        layer = served[calls[module] % len(served)]
        calls[module] += 1
        see(layer, args[0], output)

    with ExitStack() as stack:
        for module in by_module:
            stack.callback(module.register_forward_hook(after).remove)
        yield
