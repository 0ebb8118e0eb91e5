"""Copying of a decoder: its loss on random tokens that are written twice, which perplexity on text hardly shows."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from headlens.analyze import MAX_FOLDS, analyze
from headlens.behaviour.on_repeats import Repetition
from headlens.behaviour.repeated import FEWEST_TOKENS, Repeated, Source, fitting_period, random_sample, written
from headlens.errors import CaptureError, CorpusError, UnsupportedModel
from headlens.evaluation.language import Asked, LanguageModel, causal_model
from headlens.evaluation.results import Metric, fingerprint, mean, ratio
from headlens.evaluation.task import BATCH_TOKENS, Answers, Task
from headlens.models import LoadedModel
from headlens.scores import head_name
from headlens.significance import Floats

SEQUENCES, PERIOD = 16, 128  # random tokens of a copy
SECOND, FIRST = "loss on the second copy", "loss on the first copy"
INDUCTION = "induction score of the best head"

_STREAM = 5  # of the seed: heads are scored on 0 to 4, and a model is not asked on what its heads were chosen on
_DRAWN = "random tokens"


class Repeat(Task):
    """Mean loss in nats per token on the second of two copies of random tokens; items are sequences.

    Nothing but the first copy tells the second, so a model that copies has a low loss there and one that does not is no
    better than on the first copy. What tells nothing at all gives all tokens the same probability: `uniform_loss` of
    the facts. The first token of the second copy is not scored, as nothing says that the first copy ends there; nor is
    that of the first copy where the tokenizer has no BOS token to stand in front.

    The induction score is the mean attention from the second copy to the token that followed in the first, of the head
    that pays most over all sequences (Olsson et al. 2022). A head that is masked by its output still attends. The score
    is NaN where attention cannot be watched or no head is left, and a note says why.

    Tokens are those of `behaviour.repetition`, and the same for all models that share a tokenizer and have the room.
    """

    metrics = (
        *(
            Metric(
                copy,
                ratio(copy, f"tokens, {copy}"),
                higher_is_better=False,
                alike=(_DRAWN,),
                decisions=(f"tokens, {copy}", "token"),
            )
            for copy in (SECOND, FIRST)
        ),
        Metric(INDUCTION, mean(INDUCTION), higher_is_better=True, alike=(_DRAWN,)),
    )
    item = "sequence"

    def __init__(
        self,
        sequences: int = SEQUENCES,
        *,
        period: int = PERIOD,  # tokens of a copy; fewer where the model or the vocabulary is too small
        seed: int = 0,
        name: str = "repeat",
    ) -> None:
        most = MAX_FOLDS  # above it, analyze no longer keeps sequences apart
        if not 1 <= sequences <= most:
            raise CorpusError(f"{name}: the number of sequences must be from 1 to {most}; got {sequences}.")
        if period < FEWEST_TOKENS or seed < 0:
            raise CorpusError(
                f"{name}: the period must be at least {FEWEST_TOKENS} tokens and the seed at least 0; got {period} and "
                f"{seed}."
            )
        self.period, self.seed, self.name = period, seed, name
        self.items = tuple(f"sequence {number + 1}" for number in range(sequences))
        self.fingerprint = fingerprint("repeat", sequences, period, seed)

    @classmethod
    def of(cls, sequences: str, *, name: str = "repeat") -> Repeat:
        """Of a number that is written out."""
        if not (sequences.isascii() and sequences.isdecimal()):
            raise CorpusError(f"{name} is to name a number of sequences; write repeat:{SEQUENCES} or just repeat.")
        return cls(int(sequences), name=name)

    def ask(self, loaded: LoadedModel, *, batch_tokens: int = BATCH_TOKENS) -> Answers:
        model = causal_model(loaded)
        source = Source.of(model.network, model.tokenizer, is_causal=True)
        period = fitting_period(source, self.period, 2)
        drawn = random_sample(source, period=period, batch=len(self.items), seed=self.seed, stream=_STREAM)
        twice = written(source, drawn, 2)
        columns, vocabulary = _losses(model, twice, len(self.items), batch_tokens)
        watched = _best_head(model, twice, len(self.items))
        columns[INDUCTION] = watched.scores
        columns[_DRAWN] = np.array([float(zlib.crc32(row.numpy().tobytes())) for row in drawn])
        facts = {
            "period": period,
            "seed": self.seed,
            "bos": source.before,
            "vocabulary": vocabulary,
            "uniform_loss": math.log(vocabulary),
            "best_head": watched.head,
        }
        second = float(columns[SECOND].sum() / columns[f"tokens, {SECOND}"].sum())
        return Answers(columns, facts, tuple(self._notes(loaded.name, facts, second, source, watched)))

    def _notes(
        self, name: str, facts: dict[str, Any], second: float, source: Source, watched: _Watched
    ) -> Iterator[str]:
        uniform, period = facts["uniform_loss"], facts["period"]
        yield (
            f"All {facts['vocabulary']:,} tokens with the same probability would be a loss of {uniform:.4f} nats per "
            f"token."
        )
        if second > uniform:
            yield (f"With {second:.4f} on the second copy it does worse than equal probabilities, so it does not copy.")
        if period < self.period:
            yield (
                f"A copy has {period} tokens, not {self.period}: the model takes {source.max_length} tokens, special "
                f"ones included, and {len(source.ordinary)} ordinary ones can be drawn."
            )
        if watched.reason:
            yield f"{name} has no induction score: {watched.reason}"


def _losses(model: LanguageModel, twice: Repeated, sequences: int, batch_tokens: int) -> tuple[dict[str, Floats], int]:
    """Columns of summed losses and of how many tokens they are of, and the size of the vocabulary."""
    columns = {f"{what}{copy}": np.zeros(sequences) for copy in (FIRST, SECOND) for what in ("", "tokens, ")}
    second, vocabulary = twice.layout.first + twice.layout.period, 0
    for asked, logits in model.rows(_asked(twice), batch_tokens=batch_tokens):
        right = torch.from_numpy(asked.right).to(logits.device)
        losses = torch.nn.functional.cross_entropy(logits, right, reduction="none").double().cpu().numpy()
        is_second = asked.read >= second
        for copy, own in ((FIRST, losses[~is_second]), (SECOND, losses[is_second])):
            columns[copy][asked.item] += own.sum()
            columns[f"tokens, {copy}"][asked.item] += len(own)
        vocabulary = logits.shape[-1]
    return columns, vocabulary


def _asked(twice: Repeated) -> Iterator[Asked]:
    layout = twice.layout
    second = layout.first + layout.period
    places = np.array([*range(max(layout.first, 1), second), *range(second + 1, layout.stop)])
    for batch in twice.batches:
        for item, row in zip(batch.document.tolist(), batch.input_ids.numpy(), strict=True):
            yield Asked(item, row, places - 1, row[places])


class _Watched(NamedTuple):
    scores: Floats  # [sequence]: of the head that pays most over all of them
    head: str | None = None
    reason: str = ""  # why there is none


def _best_head(model: LanguageModel, twice: Repeated, sequences: int) -> _Watched:
    analyzer = Repetition(twice.layout, ("induction",), is_causal=True)
    try:
        tally = analyze(model.network, twice.batches, [analyzer], documents=sequences)
    except (CaptureError, UnsupportedModel) as reason:
        return _Watched(np.full(sequences, np.nan), reason=str(reason))
    sums = tally.model[analyzer.name].sums
    paid = (sums["mass"] / sums["rows"])[..., 0].cpu().numpy()  # [sequence, layer, head]
    means = tally.where_present(paid.mean(axis=0), -np.inf)
    layer, head = np.unravel_index(int(means.argmax()), means.shape)
    return _Watched(paid[:, layer, head], head_name(int(layer), int(head)))
