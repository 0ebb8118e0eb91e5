"""The one loop over a corpus: run the model, let the analyzers sum, read the sums once at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headlens.analyzers import Analyzer, Sums
from headlens.capture import Way, capture
from headlens.errors import CaptureError, CorpusError
from headlens.records import Batch, LayerAttention
from headlens.scores import Metric, ScoreTable
from headlens.significance import bootstrap_weights, percentile_interval

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
    tally = Tally(tuple(analyzers), min(documents, MAX_FOLDS))
    device = next(model.parameters()).device
    for batch in batches:
        tally.add(_observe_batch(model, batch.to(device), analyzers, way), batch.document.to(device))
        if progress is not None:
            progress(int(batch.attention_mask.sum()))
    if not tally.sums:
        raise CorpusError("The corpus gave no input to run; it needs at least one document with a word in it.")
    return tally


@dataclass(frozen=True)
class Tally:
    """Totals of all analyzers, and how to read them.

    `sums[analyzer, key]` is [fold, layer, head, ...] in float64; `uniform` holds the same of a head that attends to all
    visible keys alike; `macro` holds, per metric, the sum over inputs of each input's own score, and their number.
    """

    analyzers: tuple[Analyzer, ...]
    folds: int
    sums: dict[tuple[str, str], Tensor] = field(default_factory=dict)
    uniform: dict[tuple[str, str], Tensor] = field(default_factory=dict)
    macro: dict[tuple[str, str], Tensor] = field(default_factory=dict)
    uniform_macro: dict[tuple[str, str], Tensor] = field(default_factory=dict)

    def add(self, observed: _Observed, document: Tensor) -> None:
        fold = document % self.folds
        for analyzer in self.analyzers:
            for sums, totals, macros in (
                (observed.model[analyzer.name], self.sums, self.macro),
                (observed.uniform[analyzer.name], self.uniform, self.uniform_macro),
            ):
                for key, value in sums.items():  # [batch, layer, head, ...]
                    _accumulate(totals, (analyzer.name, key), value, fold, self.folds)
                read = analyzer.score if totals is self.sums else analyzer.chance
                own = read(sums)
                scores = torch.stack([own[metric.name] for metric in analyzer.metrics], dim=-1)
                defined = scores.isfinite()
                _accumulate(macros, (analyzer.name, "value"), scores.where(defined, 0), fold, self.folds)
                _accumulate(macros, (analyzer.name, "count"), defined.double(), fold, self.folds)

    def scores(self, *, seed: int = 0) -> ScoreTable:
        """All scores, micro and macro, with their 95% intervals over documents and their chance levels."""
        tables = [self._table(analyzer, seed) for analyzer in self.analyzers]
        kept = [m for table in tables for m in table if m.support.max() > 0]
        return ScoreTable(
            metrics=tuple(m.metric for m in kept),
            values=np.stack([m.value for m in kept]),
            support=np.stack([m.support for m in kept]),
            low=np.stack([m.low for m in kept]),
            high=np.stack([m.high for m in kept]),
            chance=np.array([m.chance for m in kept]),
        )

    def _table(self, analyzer: Analyzer, seed: int) -> list[_MetricScores]:
        sums, macro = self._of(self.sums, analyzer), self._of(self.macro, analyzer)
        micro = analyzer.score(_total(sums))
        support = analyzer.support(_total(sums))
        chance = analyzer.chance(_total(self._of(self.uniform, analyzer)))
        low, high = self._interval(lambda s: analyzer.score(s), sums, seed)
        macro_low, macro_high = self._interval(lambda s: _macro_scores(analyzer, s), macro, seed)
        macro_value, macro_chance = (
            _macro_scores(analyzer, _total(self._of(m, analyzer))) for m in (self.macro, self.uniform_macro)
        )
        inputs = dict(zip(micro, _total(macro)["count"].unbind(-1), strict=True))
        table = []
        for metric in analyzer.metrics:
            name, shape = metric.name, micro[metric.name].shape
            defined = support[name].expand(shape)
            table.append(_MetricScores(metric, micro[name], defined, low[name], high[name], chance[name]))
            if name not in analyzer.without_macro:
                count = torch.where(defined > 0, inputs[name], 0)
                table.append(
                    _MetricScores(
                        replace(metric, name=f"{name}.macro", title=f"{metric.title}, mean of inputs"),
                        *(macro_value[name], count, macro_low[name], macro_high[name], macro_chance[name]),
                    )
                )
        return table

    def _of(self, totals: dict[tuple[str, str], Tensor], analyzer: Analyzer) -> dict[str, Tensor]:
        return {key: value for (name, key), value in totals.items() if name == analyzer.name}

    def _interval(
        self, score: Callable[[Sums], dict[str, Tensor]], sums: dict[str, Tensor], seed: int
    ) -> tuple[dict[str, NDArray[np.float64]], dict[str, NDArray[np.float64]]]:
        """Percentile intervals, layer by layer so that the replicates of one layer only are in memory."""
        weights = torch.from_numpy(bootstrap_weights(self.folds, seed=seed))
        layers = []
        for layer in range(next(iter(sums.values())).shape[1]):
            of_layer = {key: _resampled(weights, value[:, layer].cpu()) for key, value in sums.items()}
            scores = score(of_layer)
            layers.append(percentile_interval(torch.stack(list(scores.values())).movedim(1, 0).numpy()))
        low, high = (np.stack(bound, axis=1) for bound in zip(*layers, strict=True))  # [metric, layer, head]
        if self.folds == 1:
            low, high = np.full_like(low, np.nan), np.full_like(high, np.nan)
        return dict(zip(scores, low, strict=True)), dict(zip(scores, high, strict=True))


class _MetricScores:
    """One metric's arrays on their way into a ScoreTable."""

    def __init__(self, metric: Metric, value: Any, support: Any, low: Any, high: Any, chance: Any) -> None:
        self.metric = metric
        self.value, self.support, self.low, self.high = (
            np.asarray(x, dtype=np.float64) for x in (value, support, low, high)
        )
        self.chance = float(np.asarray(chance).reshape(-1)[0])


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
        _add_into(sums, attention, batch, analyzers)
        if attention.layer == last:
            rows_of_last.append(attention.probs.shape[2])
            if sum(rows_of_last) == tokens:
                raise _Enough

    with torch.inference_mode(), capture(model, observe, way=way) as sites:
        last = max(site.layer for site in sites)
        if len({site.stack for site in sites}) > 1:
            raise CaptureError("The model has several attention stacks; analyze one, such as model.get_encoder().")
        with suppress(_Enough):
            model(input_ids=batch.input_ids, attention_mask=batch.attention_mask.long(), **_quiet(model))
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


def _quiet(model: nn.Module) -> dict[str, bool]:
    """A cache is of no use in a single pass."""
    return {"use_cache": False} if getattr(getattr(model, "config", None), "use_cache", None) is not None else {}


def _refuse_nan(by_layer: dict[int, dict[tuple[str, str], Tensor]], batch: Batch) -> None:
    for layer in sorted(by_layer):
        for value in by_layer[layer].values():
            if not value.isfinite().all():
                row = int((~value.flatten(1).isfinite()).any(dim=1).nonzero()[0])
                raise CaptureError(
                    f"Layer {layer} gave NaN or infinite attention on document {int(batch.document[row])} (0-based); "
                    f"the weights may be damaged, or float16 may be too narrow: try --dtype float32."
                )


def _stacked(
    layers: list[dict[tuple[str, str], Tensor]], analyzers: Sequence[Analyzer]
) -> dict[str, dict[str, Tensor]]:
    found: dict[str, dict[str, Tensor]] = {analyzer.name: {} for analyzer in analyzers}
    for name, key in layers[0]:
        found[name][key] = torch.stack([layer[name, key] for layer in layers], dim=1)
    return found


def _accumulate(
    totals: dict[tuple[str, str], Tensor], place: tuple[str, str], value: Tensor, fold: Tensor, folds: int
) -> None:
    if place not in totals:
        totals[place] = value.new_zeros(folds, *value.shape[1:])
    totals[place].index_add_(0, fold, value)


def _total(sums: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value.sum(dim=0).cpu() for key, value in sums.items()}


def _resampled(weights: Tensor, sums: Tensor) -> Tensor:
    return (weights @ sums.flatten(1)).unflatten(1, sums.shape[1:])


def _macro_scores(analyzer: Analyzer, sums: Sums) -> dict[str, Tensor]:
    means = (sums["value"] / sums["count"]).unbind(-1)
    return dict(zip((metric.name for metric in analyzer.metrics), means, strict=True))
