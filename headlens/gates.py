"""Gates multiply the output of heads before W_O: made, and matched with the layers of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from headlens.arch import Site
from headlens.errors import CaptureError
from headlens.records import Stack


def gates_without(shape: tuple[int, int], off: Iterable[tuple[int, int]]) -> Float[Tensor, "layer head"]:
    """1 for every head but those that are taken out, which get 0."""
    gates = torch.ones(shape)
    for layer, head in off:
        gates[layer, head] = 0
    return gates


def gates_by_stack(gates: Tensor | Mapping[Stack, Tensor] | None, sites: list[Site]) -> dict[Stack, Tensor]:
    """Gates [layer, head] or [batch, layer, head] of every stack that has some; CaptureError where they do not fit.

    Heads are those of the original model, also where some were removed.
    """
    if gates is None:
        return {}
    tensors = list(gates.values()) if isinstance(gates, Mapping) else [gates]
    if not all(isinstance(tensor, Tensor) and not tensor.is_complex() for tensor in tensors):
        kinds = ", ".join(sorted({type(tensor).__name__ for tensor in tensors}))
        raise CaptureError(f"Gates are a tensor of real numbers, or a dict of such by stack; got {kinds}.")
    layers = Counter(site.stack for site in sites)
    if isinstance(gates, Tensor):
        if len(layers) > 1:
            raise CaptureError(f"The model has the stacks {sorted(layers)}: pass gates as a dict, one tensor a stack.")
        gates = {next(iter(layers)): gates}
    for stack, tensor in gates.items():
        if stack not in layers:
            raise CaptureError(f"There are gates for the stack {stack!r}; the model has {sorted(layers)}.")
        heads = _heads_of(next(site for site in sites if site.stack == stack))
        if tensor.dim() not in (2, 3) or tensor.shape[-2] != layers[stack] or (heads and tensor.shape[-1] != heads):
            raise CaptureError(
                f"Gates must be [layer, head] or [batch, layer, head] with {layers[stack]} layers"
                f"{f' and {heads} heads' if heads else ''}, got {tuple(tensor.shape)}."
            )
    return dict(gates)


def _heads_of(site: Site) -> int | None:
    if site.heads_before is not None:
        return site.heads_before
    module = site.module
    names = ("num_heads", "num_attention_heads", "n_heads")
    own = next((getattr(module, name) for name in names if isinstance(getattr(module, name, None), int)), None)
    return own or getattr(getattr(module, "config", None), "num_attention_heads", None)
