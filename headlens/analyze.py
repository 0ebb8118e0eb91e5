"""The one loop over a corpus: run the model, let the analyzers sum, read the sums once at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headlens.analyzers import Analyzer
from headlens.capture import Way, capture
from headlens.errors import CaptureError, CorpusError
from headlens.records import Batch, LayerAttention
from headlens.tally import Tally

MAX_FOLDS = 1000
_UNIFORM_ROWS_BYTES = 4 << 20


def analyze(
    model: nn.Module,
    batches: Iterable[Batch],
    analyzers: Sequence[Analyzer],
    *,
    documents: int,
    way: Way = "fast",
    progress: Callable[[int], None] | None = None,
) -> Tally:
    """Run `model` once over `batches` and sum what every analyzer observes, by layer and by fold of documents.

    Parameters
    ----------
    model
        A model of one attention stack (for an encoder-decoder model pass its encoder), in eval mode.
    documents
        How many documents the batches come from. Document i goes to fold i mod min(documents, 1000).
    way
        How attention is computed: "fast" (slices) or "exact"; see `capture`.
    progress
        Called after each batch with the number of its real tokens.

    Raises
    ------
    CorpusError
        There is no batch.
    CaptureError
        A layer reported nothing, or gave NaN.
    """
    tally = Tally(analyzers, min(documents, MAX_FOLDS))
    ran = False
    device = next(model.parameters()).device
    for batch in batches:
        observed = _observe_batch(model, batch.to(device), analyzers, way)
        tally.add(observed.model, observed.uniform, batch.document.to(device))
        if progress is not None:
            progress(int(batch.attention_mask.sum()))
        ran = True
    if not ran:
        raise CorpusError("The corpus gave no input to run; it needs at least one document with a word in it.")
    return tally


@dataclass(frozen=True)
class _Observed:
    """Sums of one batch by analyzer; every tensor is [batch, layer, head, ...] in float64."""

    model: dict[str, dict[str, Tensor]]
    uniform: dict[str, dict[str, Tensor]]


class _Enough(Exception):
    """Raised in the last attention layer: nothing after it is asked for."""


def _observe_batch(model: nn.Module, batch: Batch, analyzers: Sequence[Analyzer], way: Way) -> _Observed:
    by_layer: dict[int, dict[tuple[str, str], Tensor]] = {}
    tokens = batch.input_ids.shape[1]
    causal: list[bool] = []
    rows_of_last: list[int] = []

    def observe(attention: LayerAttention) -> None:
        causal.append(attention.is_causal)
        sums = by_layer.setdefault(attention.layer, {})
        _add_into(sums, attention.in_single_precision(), batch, analyzers)
        if attention.layer == last:
            rows_of_last.append(attention.probs.shape[2])
            if sum(rows_of_last) == tokens:
                raise _Enough

    with torch.inference_mode(), capture(model, observe, way=way) as sites:
        last = max(site.layer for site in sites)
        if len({site.stack for site in sites}) > 1:
            raise CaptureError("The model has several attention stacks; analyze one, such as model.get_encoder().")
        with suppress(_Enough):
            model(input_ids=batch.input_ids, attention_mask=batch.attention_mask.long(), **_without_cache(model))
        if sorted(by_layer) != list(range(len(sites))):
            raise CaptureError(f"Of {len(sites)} attention layers only {sorted(by_layer)} reported to headlens.")
        uniform: dict[tuple[str, str], Tensor] = {}
        for attention in _uniform_head(batch, causal[0]):
            _add_into(uniform, attention, batch, analyzers)
    _refuse_nan(by_layer, batch)
    layers = [by_layer[layer] for layer in range(len(sites))]
    return _Observed(_stacked(layers, analyzers), _stacked([uniform], analyzers))


def _add_into(
    sums: dict[tuple[str, str], Tensor], attention: LayerAttention, batch: Batch, analyzers: Sequence[Analyzer]
) -> None:
    for analyzer in analyzers:
        for key, value in analyzer.observe(attention, batch).items():
            place = (analyzer.name, key)
            if place in sums:
                sums[place].add_(value)
            else:
                sums[place] = value.to(torch.float64, copy=True)


def _uniform_head(batch: Batch, is_causal: bool) -> Iterable[LayerAttention]:
    """A layer of one head that attends to all visible keys alike, in slices of rows: the chance level of all scores."""
    size, tokens = batch.input_ids.shape
    device = batch.input_ids.device
    keys = batch.attention_mask[:, None, None].double()  # [batch, head, query, key]
    nothing = keys.new_zeros(size, 1, tokens, 0)
    rows = max(1, _UNIFORM_ROWS_BYTES // (8 * size * tokens))
    for start in range(0, tokens, rows):
        stop = min(start + rows, tokens)
        seen = keys.expand(-1, -1, stop - start, -1)
        if is_causal:
            seen = seen * torch.ones(stop - start, tokens, device=device).tril(start)
        probs = seen / seen.sum(dim=-1, keepdim=True).clamp_min(1)
        empty = nothing[:, :, start:stop]
        yield LayerAttention(0, empty, nothing, nothing, probs, empty, start, "encoder", is_causal)


def _without_cache(model: nn.Module) -> dict[str, bool]:
    """A cache is of no use in a single pass."""
    return {"use_cache": False} if getattr(getattr(model, "config", None), "use_cache", None) is not None else {}


def _refuse_nan(by_layer: dict[int, dict[tuple[str, str], Tensor]], batch: Batch) -> None:
    for layer in sorted(by_layer):
        for value in by_layer[layer].values():
            if not value.isfinite().all():
                row = int((~value.flatten(1).isfinite()).any(dim=1).nonzero()[0])
                raise CaptureError(
                    f"Layer {layer} gave NaN or infinite attention on document {int(batch.document[row])} (0-based); "
                    f"the weights may be damaged, or a narrow dtype such as float16 may overflow."
                )


def _stacked(
    layers: list[dict[tuple[str, str], Tensor]], analyzers: Sequence[Analyzer]
) -> dict[str, dict[str, Tensor]]:
    found: dict[str, dict[str, Tensor]] = {analyzer.name: {} for analyzer in analyzers}
    for name, key in layers[0]:
        found[name][key] = torch.stack([layer[name, key] for layer in layers], dim=1)
    return found
