"""Biases that attention does not need: keys' where positions are not in them, and values' where the output has one."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from headlens.conversion.weights import LayerWeights


def absorb(layer: LayerWeights) -> LayerWeights:
    """The same attention, with as little as possible in the biases of keys and values.

    A key's bias adds the same to all scores of a query, which the softmax does not see, unless it turns with the
    position: there it is kept. A value's bias comes out of every head as it went in, as the rows of the attention sum
    to 1, so that it goes into the output's bias; it is kept where the output has none, as a checkpoint of that family
    has no place for it.
    """
    return _without_value_bias(replace(layer, k_bias=_needed_key_bias(layer)))


def _needed_key_bias(layer: LayerWeights) -> Float[Tensor, "kv dim"] | None:
    if layer.k_bias is None or layer.rotary is None:
        return None
    turns = torch.arange(layer.k.shape[1]) < 2 * layer.rotary.pairs
    return layer.k_bias * turns


def _without_value_bias(layer: LayerWeights) -> LayerWeights:
    if layer.v_bias is None or layer.o_bias is None:
        return layer
    folded = layer.o_bias.clone()
    for bias, heads in zip(layer.v_bias, layer.groups, strict=True):
        folded += bias @ layer.o[list(heads)].sum(dim=0)
    return replace(layer, v_bias=None, o_bias=folded)
