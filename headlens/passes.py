"""The passes of a profile: a model over each set of inputs, then scores, and evidence where decisions were counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from headlens.analyze import MAX_FOLDS, analyze
from headlens.analyzers import ANALYZERS, Scorer
from headlens.analyzers.contribution import Contribution
from headlens.annotated import MINIMUM, Reading
from headlens.capture import Way
from headlens.encode import Encoded
from headlens.errors import UnsupportedModel
from headlens.evidence import weigh
from headlens.evidence_table import Evidence
from headlens.scores import ScoreTable
from headlens.tally import Tally
from headlens.trials import joined, trials_of

MOST_SUM_BYTES = 256 << 20  # of the largest sum that is kept by fold
FEWEST_FOLDS = 100

Count = Callable[[int], None]  # called with the number of tokens that were read


@dataclass(frozen=True)
class Passes:
    """Tallies of one pass for each reading, in their order."""

    readings: tuple[Reading, ...]
    tallies: tuple[Tally, ...]

    @property
    def folds(self) -> int:
        return self.tallies[0].folds

    def scores(self, *, seed: int) -> ScoreTable:
        return ScoreTable.joined([tally.scores(seed=seed) for tally in self.tallies])

    def evidence(self, *, is_causal: bool, seed: int) -> Evidence | None:
        """What the counted decisions of all readings show, tested together; None where none were counted."""
        trials = [
            trials_of(tally, reading, analyzer, is_causal=is_causal)
            for reading, tally in zip(self.readings, self.tallies, strict=True)
            for analyzer in reading.decisions
        ]
        return weigh(joined(trials), seed=seed, minimum=MINIMUM) if trials else None


def scorers_of_tokens(network: PreTrainedModel, *, with_contribution: bool) -> tuple[list[Scorer], list[str]]:
    """The analyzers of any text, and the reason why one of them cannot be made for this model."""
    scorers: list[Scorer] = [make() for make in ANALYZERS.values()]
    if not with_contribution:
        return scorers, []
    try:
        return [*scorers, Contribution(network)], []
    except UnsupportedModel as reason:
        return scorers, [f"There are no scores of contribution: {reason}"]


def read_text(
    network: PreTrainedModel, encoded: Encoded, scorers: Sequence[Scorer], *, way: Way, count: Count
) -> Tally:
    """One pass over plain text."""
    return analyze(network, encoded.batches, scorers, documents=encoded.documents, way=way, progress=count)


def read_words(
    network: PreTrainedModel,
    readings: Sequence[Reading],
    of_tokens: Sequence[Scorer],
    *,
    documents: int,
    heads: int,
    way: Way,
    count: Count,
) -> Passes:
    """One pass for each reading. The first, over sentences, serves `of_tokens` too; `heads` of the model."""
    folds = _folds(documents, heads, readings)
    tallies = []
    for number, reading in enumerate(readings):
        scorers = [*(of_tokens if number == 0 else []), *reading.analyzers]
        tallies.append(analyze(network, reading.encoded.batches, scorers, documents=folds, way=way, progress=count))
    return Passes(tuple(readings), tuple(tallies))


def _folds(documents: int, heads: int, readings: Sequence[Reading]) -> int:
    """One for each document, but no more than memory allows."""
    labels = max((len(a.membership) for reading in readings for a in reading.decisions), default=1)
    affordable = max(MOST_SUM_BYTES // (4 * heads * labels), FEWEST_FOLDS)
    return min(documents, MAX_FOLDS, affordable)
