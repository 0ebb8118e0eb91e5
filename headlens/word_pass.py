"""Attention between the annotated words of a corpus, batch by batch: for analyses that need more than sums."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TypeAlias

import torch
from torch import nn

from headlens.capture import Way, capture
from headlens.errors import CaptureError, MissingAnnotation
from headlens.pooling import WordPooling
from headlens.records import Batch, LayerAttention, WordAttention

WordLayers: TypeAlias = tuple[Batch, list[WordAttention]]


def word_attention(model: nn.Module, batches: Iterable[Batch], *, way: Way = "fast") -> Iterator[WordLayers]:
    """Run `model` over `batches` and give each, on the model's device, with the attention between words of all layers.

    Layers are in order, probabilities in float32 at least. One batch is in memory at a time, as long as the one who
    asks does not keep them. Of a pruned model layers that have lost all their heads are left out, and
    `WordAttention.head_ids` names the heads of the others.

    Parameters
    ----------
    model
        A model of one attention stack (for an encoder-decoder model pass its encoder), in eval mode.
    way
        How attention is computed: "fast" (slices) or "exact"; see `capture`.

    Raises
    ------
    MissingAnnotation
        A batch that does not know its words.
    CaptureError
        Several attention stacks, a layer that reported nothing, a model without any heads, or NaN.
    """
    device = next(model.parameters()).device
    for batch in batches:
        if batch.words is None or batch.input_index is None:
            raise MissingAnnotation(
                "A batch does not say where its words stand; make batches of annotated words with encode_words."
            )
        here = batch.to(device)
        layers = _layers(model, here, way)
        for layer in layers:
            _refuse_nan(layer, here)
        yield here, layers


class _Enough(Exception):
    """Raised in the last attention layer: nothing after it is asked for."""


def _layers(model: nn.Module, batch: Batch, way: Way) -> list[WordAttention]:
    poolings: dict[int, WordPooling] = {}
    whole: dict[int, WordAttention] = {}

    def observe(attention: LayerAttention) -> None:
        pooling = poolings.setdefault(attention.layer, WordPooling(batch))
        words = pooling.add(attention.in_single_precision())
        if words is not None:
            whole[attention.layer] = words
        if len(whole) == with_heads:
            raise _Enough

    # no_grad, not inference_mode: one who asks for attention may go on to fit weights to it
    with torch.no_grad(), capture(model, observe, way=way) as sites:
        if len({site.stack for site in sites}) > 1:
            raise CaptureError("The model has several attention stacks; run one, such as model.get_encoder().")
        with_heads = sum(not site.is_empty for site in sites)
        if not with_heads:
            raise CaptureError("All heads of the model were removed, so there is no attention.")
        has_cache = getattr(getattr(model, "config", None), "use_cache", None) is not None
        with suppress(_Enough):
            model(
                input_ids=batch.input_ids,
                attention_mask=batch.attention_mask.long(),
                **({"use_cache": False} if has_cache else {}),
            )
    if len(whole) != with_heads:
        raise CaptureError(f"Of {with_heads} attention layers only {sorted(whole)} reported to headlens.")
    return [whole[layer] for layer in sorted(whole)]


def _refuse_nan(attention: WordAttention, batch: Batch) -> None:
    finite = attention.probs.isfinite().flatten(1).all(dim=1)
    if not finite.all():
        row = int((~finite).nonzero()[0])
        raise CaptureError(
            f"Layer {attention.layer} gave NaN or infinite attention on document {int(batch.document[row])} (0-based); "
            f"the weights may be damaged, or a narrow dtype such as float16 may overflow."
        )
