"""The one loop over a corpus: run the model, let the analyzers sum, read the sums once at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headlens.analyzers import Analyzer, Scorer, Sums, WordAnalyzer
from headlens.arch import Site, heads_present
from headlens.capture import Way, capture
from headlens.errors import CaptureError, CorpusError
from headlens.pooling import WordPooling
from headlens.records import Batch, LayerAttention
from headlens.tally import Tally

MAX_FOLDS = 1000
_UNIFORM_ROWS_BYTES = 4 << 20


def analyze(
    model: nn.Module,
    batches: Iterable[Batch],
    analyzers: Sequence[Scorer],
    *,
    documents: int,
    way: Way = "fast",
    progress: Callable[[int], None] | None = None,
) -> Tally:
    """Run `model` once over `batches` and sum what every analyzer observes, by layer and by fold of documents.

    Of a pruned model the sums of every head stand in the place that it has in the original; see `Tally.present`.

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
        A layer reported nothing, or gave NaN, or the model has no heads left.
    """
    tally = Tally(analyzers, min(documents, MAX_FOLDS))
    ran = False
    device = next(model.parameters()).device
    for batch in batches:
        observed = _observe_batch(model, batch.to(device), analyzers, way)
        tally.present = observed.present
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
    present: Tensor | None  # [layer, head] of the original model; None: no head is missing


class _Enough(Exception):
    """Raised in the last attention layer: nothing after it is asked for."""


def _observe_batch(model: nn.Module, batch: Batch, analyzers: Sequence[Scorer], way: Way) -> _Observed:
    by_layer: dict[int, _LayerSums] = {}
    causal: list[bool] = []

    def observe(attention: LayerAttention) -> None:
        causal.append(attention.is_causal)
        layer = by_layer.setdefault(attention.layer, _LayerSums(analyzers, batch))
        layer.add(attention.in_single_precision())
        if attention.layer == last and layer.is_complete:
            raise _Enough

    with torch.inference_mode(), capture(model, observe, way=way) as sites:
        if len({site.stack for site in sites}) > 1:
            raise CaptureError("The model has several attention stacks; analyze one, such as model.get_encoder().")
        with_heads = [site.layer for site in sites if not site.is_empty]
        if not with_heads:
            raise CaptureError("All heads of the model were removed, so there is none to score.")
        last = max(with_heads)
        with suppress(_Enough):
            model(input_ids=batch.input_ids, attention_mask=batch.attention_mask.long(), **_without_cache(model))
        if sorted(by_layer) != sorted(with_heads):
            raise CaptureError(f"Of {len(with_heads)} attention layers only {sorted(by_layer)} reported to headlens.")
        uniform = _LayerSums(analyzers, batch)
        for attention in _uniform_head(batch, causal[0]):
            uniform.add(attention)
    layers = {layer: by_layer[layer].sums for layer in sorted(with_heads)}
    _refuse_nan(layers, batch)
    present = heads_present(sites)
    if present is not None:
        layers = {site.layer: _in_original_places(site, layers) for site in sites}
    return _Observed(_stacked(list(layers.values()), analyzers), _stacked([uniform.sums], analyzers), present)


class _LayerSums:
    """What all analyzers add up for one layer and one batch, slice by slice of query rows."""

    def __init__(self, analyzers: Sequence[Scorer], batch: Batch) -> None:
        self.sums: dict[tuple[str, str], Tensor] = {}
        self._batch = batch
        self._of_tokens = [analyzer for analyzer in analyzers if isinstance(analyzer, Analyzer)]
        self._of_words = [analyzer for analyzer in analyzers if isinstance(analyzer, WordAnalyzer)]
        self._pooling = WordPooling(batch) if self._of_words else None
        self._rows = 0

    @property
    def is_complete(self) -> bool:
        """All query rows have come."""
        return self._rows == self._batch.input_ids.shape[1]

    def add(self, attention: LayerAttention) -> None:
        self._rows += attention.probs.shape[2]
        for analyzer in self._of_tokens:
            self._add(analyzer.name, analyzer.observe(attention, self._batch))
        if self._pooling is not None and (words := self._pooling.add(attention)) is not None:
            for of_words in self._of_words:
                found = of_words.observe(words, self._batch)
                self.sums |= {(of_words.name, key): value for key, value in found.items()}

    def _add(self, name: str, sums: Sums) -> None:
        for key, value in sums.items():
            if (name, key) in self.sums:
                self.sums[name, key].add_(value)
            else:
                self.sums[name, key] = value.to(torch.float64, copy=True)


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


def _in_original_places(site: Site, layers: dict[int, dict[tuple[str, str], Tensor]]) -> dict[tuple[str, str], Tensor]:
    """The sums of a layer with its heads where they are in the original model, and 0 for those that were removed.

    Sums that are single in all layers stay so, and stand for all heads: those that a layer's heads have in common, and
    where no layer has two heads those of its only one. A layer without heads gets the common sums of another layer.
    """
    found = layers.get(site.layer, {})
    placed = {}
    for name, like in next(iter(layers.values())).items():
        if all(sums[name].shape[1] == 1 for sums in layers.values()):
            placed[name] = found.get(name, like)
            continue
        placed[name] = like.new_zeros(len(like), site.heads_before or 0, *like.shape[2:])
        if name in found:
            placed[name][:, list(site.heads or ())] = found[name]
    return placed


def _refuse_nan(layers: dict[int, dict[tuple[str, str], Tensor]], batch: Batch) -> None:
    for layer, sums in layers.items():
        for value in sums.values():
            broken = ~value.flatten(1).isfinite().all(dim=1)
            if broken.any():
                raise CaptureError(
                    f"Layer {layer} gave NaN or infinite attention on {_whose(broken, batch)} (0-based); "
                    f"the weights may be damaged, or a narrow dtype such as float16 may overflow."
                )


def _whose(broken: Tensor, batch: Batch) -> str:
    """The document of the first broken row; sums that are kept for a whole batch do not tell it."""
    documents = batch.document.tolist()
    if len(broken) == len(documents):
        return f"document {documents[int(broken.nonzero()[0])]}"
    return f"one of the documents {min(documents)} to {max(documents)}"


def _stacked(layers: list[dict[tuple[str, str], Tensor]], analyzers: Sequence[Scorer]) -> dict[str, dict[str, Tensor]]:
    found: dict[str, dict[str, Tensor]] = {analyzer.name: {} for analyzer in analyzers}
    for name, key in layers[0]:
        found[name][key] = torch.stack([layer[name, key] for layer in layers], dim=1)
    return found
