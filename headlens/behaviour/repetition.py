"""Heads on repeated random tokens: previous-token, duplicate-token and induction heads, and whether they copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headlens.analyze import analyze
from headlens.analyzers import Analyzer
from headlens.arch import is_causal_model
from headlens.behaviour.copying import Copying, copying
from headlens.behaviour.on_repeats import SEVERAL_COPIES, TWO_COPIES, Repetition
from headlens.behaviour.repeated import (
    FEWEST_TOKENS,
    Repeated,
    Source,
    TokenIds,
    fitting_period,
    given_sample,
    random_sample,
    written,
)
from headlens.behaviour.unembedding import unembedding
from headlens.capture import Way
from headlens.errors import CorpusError, UnsupportedModel
from headlens.models import LoadedModel
from headlens.scores import ScoreTable

PERIOD, BATCH = 50, 10  # as TransformerLens' demonstrations
OLSSON_PERIOD, OLSSON_COPIES = 25, 4

_SEES_AHEAD = (
    "The model sees the tokens that follow, so that the next token need not be found by what followed an earlier copy."
)
_WRITES_NO_LOGITS = "The model is no decoder: what its heads write does not go straight to the logits of a next token."
_LEFT_OUT_OF_ENCODERS = {
    **{f"repetition.induction{end}": _SEES_AHEAD for end in ("", "_argmax", "_control")},
    "repetition.prefix_matching": _SEES_AHEAD,
    **{metric.name: _WRITES_NO_LOGITS for metric in Copying.metrics},
}


def repetition(
    network: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    ids: TokenIds | None = None,
    period: int = PERIOD,
    batch: int = BATCH,
    seed: int = 0,
    model: PreTrainedModel | LoadedModel | None = None,
    way: Way = "fast",
) -> tuple[ScoreTable, dict[str, Any]]:
    """Score all heads on random tokens written twice, four times, and once, with intervals over the sequences.

    Parameters
    ----------
    network
        A base model in eval mode, of one attention stack.
    ids
        What is written twice, [batch, period] or [period]; None draws `batch` times `period` tokens, none of them twice
        in a row. `period` shrinks where the model or the vocabulary is too small, and the facts say so.
    seed
        Of the random tokens and of the bootstrap.
    model
        What the unembedding is read from, where that is not `network`: what `load_model` gave, or the model with its
        vocabulary head.
    way
        How attention is computed; see `capture`.

    Returns
    -------
    The metrics `repetition.*`, and the facts that they rest on as plain values: `ids` and the other samples, `period`,
    `batch`, `seed`, `bos` (None where the tokenizer has none), `first` (position of the first random token), `notes`,
    and in `left_out` by metric the reason why there is none.

    Raises
    ------
    CorpusError
        Options or ids that cannot be run, and models or vocabularies too small for any period.
    """
    _check_options(period, batch, seed)
    is_causal = is_causal_model(network)
    source = Source.of(network, tokenizer, is_causal=is_causal)
    run = _Run(network, source, model if model is not None else network, is_causal, seed, way)
    tables, facts = run.two_copies(ids, period, batch)
    if not is_causal:
        facts["left_out"] |= _LEFT_OUT_OF_ENCODERS
        return ScoreTable.joined(tables), facts
    of_copying = [metric.name for metric in Copying.metrics]
    for names, score in ((["repetition.prefix_matching"], run.prefix_matching), (of_copying, run.copying)):
        try:
            table, more = score(facts["batch"])
        except (CorpusError, UnsupportedModel) as reason:
            facts["left_out"] |= dict.fromkeys(names, str(reason))
        else:
            tables.append(table)
            facts["notes"] += more.pop("notes")
            facts |= more
    return ScoreTable.joined(tables), facts


@dataclass(frozen=True, eq=False)
class _Run:
    """One model, and what its random tokens are drawn from."""

    network: PreTrainedModel
    source: Source
    model: PreTrainedModel | LoadedModel
    is_causal: bool
    seed: int
    way: Way

    def two_copies(self, ids: TokenIds | None, period: int, batch: int) -> tuple[list[ScoreTable], dict[str, Any]]:
        """A sample written twice, and as a control as many tokens that are not repeated."""
        source = self.source
        if ids is None:
            sample = self._draw(fitting_period(source, period, 2), batch, stream=0)
        else:
            sample = given_sample(source, ids, 2)
        batch, found = sample.shape
        control = self._draw(2 * found, batch, stream=1)
        kinds = TWO_COPIES if self.is_causal else TWO_COPIES[:2]
        twice = written(source, sample, 2)
        analyzer = Repetition(twice.layout, kinds, is_causal=self.is_causal)
        beside = Repetition(twice.layout, kinds, is_causal=self.is_causal, is_control=True)
        tables = [self._scores(twice, analyzer), self._scores(written(source, control, 1), beside)]
        return tables, {
            "ids": sample.tolist(),
            "control_ids": control.tolist(),
            "period": found,
            "batch": batch,
            "seed": self.seed,
            "bos": source.before,
            "eos": source.after,
            "first": twice.layout.first,
            "left_out": {},
            "notes": self._notes(found, found if ids is not None else period),
        }

    def prefix_matching(self, batch: int) -> tuple[ScoreTable, dict[str, Any]]:
        period = fitting_period(self.source, OLSSON_PERIOD, OLSSON_COPIES)
        sample = self._draw(period, batch, stream=2)
        several = written(self.source, sample, OLSSON_COPIES)
        table = self._scores(several, Repetition(several.layout, SEVERAL_COPIES, is_causal=True))
        notes = self._shrunk("Prefix matching is scored on", period, OLSSON_PERIOD)
        facts = {"prefix_ids": sample.tolist(), "prefix_period": period, "prefix_copies": OLSSON_COPIES}
        return table, {**facts, "notes": notes}

    def copying(self, batch: int) -> tuple[ScoreTable, dict[str, Any]]:
        matrix = unembedding(self.model)
        period = fitting_period(self.source, OLSSON_PERIOD, 1)
        sample = self._draw(period, batch, stream=3)
        once = written(self.source, sample, 1)
        table = self._scores(once, copying(self.network, matrix, once.batches))
        notes = self._shrunk("Copying is scored on", period, OLSSON_PERIOD)
        return table, {"copying_ids": sample.tolist(), "copying_period": period, "notes": notes}

    def _draw(self, period: int, batch: int, *, stream: int) -> Tensor:
        return random_sample(self.source, period=period, batch=batch, seed=self.seed, stream=stream)

    def _scores(self, inputs: Repeated, analyzer: Analyzer) -> ScoreTable:
        documents = sum(len(batch.document) for batch in inputs.batches)
        tally = analyze(self.network, inputs.batches, [analyzer], documents=documents, way=self.way)
        return tally.scores(seed=self.seed)

    def _notes(self, period: int, asked: int) -> list[str]:
        source, notes = self.source, list[str]()
        if source.before is None:
            notes.append("The tokenizer has no token that begins a text, so none stands before the random tokens.")
        notes += self._shrunk("Duplicates and induction are scored on", period, asked)
        if len(source.ordinary) < 2 * period:
            notes.append(
                f"There are only {len(source.ordinary)} ordinary tokens to draw, so that some of the {2 * period} "
                f"tokens of the control come more than once."
            )
        return notes

    def _shrunk(self, what: str, period: int, asked: int) -> list[str]:
        if period == asked:
            return []
        return [
            f"{what} periods of {period} tokens, not {asked}: the model takes {self.source.max_length} tokens, special "
            f"ones included, and {len(self.source.ordinary)} ordinary ones can be drawn."
        ]


def _check_options(period: int, batch: int, seed: int) -> None:
    for name, number, least in (("period", period, FEWEST_TOKENS), ("batch", batch, 1), ("seed", seed, 0)):
        if number < least:
            raise CorpusError(f"{name} must be at least {least}, got {number}.")
