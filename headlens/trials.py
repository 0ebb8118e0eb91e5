"""From the sums of a pass to what statistics weigh: every head's right decisions beside those of its rivals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from headlens.analyzers import DecisionAnalyzer
from headlens.annotated import Reading
from headlens.evidence import Rival, Trials
from headlens.null_model import correct_by_position
from headlens.tally import Tally


def trials_of(tally: Tally, reading: Reading, analyzer: DecisionAnalyzer, *, is_causal: bool) -> Trials:
    """Decisions that `analyzer` counted in a pass over all batches of `reading`, by fold of documents.

    NaN for heads that were removed from the model.
    """
    sums = tally.model[analyzer.name].sums
    membership = analyzer.membership

    def by_metric(labels: Tensor) -> np.ndarray:
        return (labels.cpu().float() @ membership).numpy()

    def of_heads(name: str) -> np.ndarray | None:
        return tally.counts_of_heads(by_metric(sums[name])) if name in sums else None

    by_position = correct_by_position(tally, analyzer, reading.encoded.batches, is_causal=is_causal)
    fold_of = reading.document_of % tally.folds
    return Trials(
        names=analyzer.counted,
        total=by_metric(sums["total"][:, 0, 0]),
        correct=tally.counts_of_heads(by_metric(sums["correct"])),
        chance=by_metric(sums["by_chance"][:, 0, 0]),
        profile=tally.counts_of_heads(by_metric(by_position)),
        expected=of_heads("expected_by_distance"),
        expected_by_word=of_heads("expected_by_word"),
        rivals=reading.rivals[analyzer.name](fold_of, tally.folds),
        relation_of=tuple(relation_of(name) for name in analyzer.counted),
    )


def joined(listed: Sequence[Trials]) -> Trials:
    """Several families of metrics as one, so that they are tested together. Folds must be the same documents."""
    rivals = dict.fromkeys(name for trials in listed for name in trials.rivals)
    return Trials(
        names=tuple(name for trials in listed for name in trials.names),
        total=np.concatenate([trials.total for trials in listed], axis=-1),
        correct=np.concatenate([trials.correct for trials in listed], axis=-1),
        chance=np.concatenate([trials.chance for trials in listed], axis=-1),
        profile=np.concatenate([_or_unknown(trials.profile, trials.correct) for trials in listed], axis=-1),
        expected=np.concatenate([_or_unknown(trials.expected, trials.correct) for trials in listed], axis=-1),
        expected_by_word=np.concatenate(
            [_or_unknown(trials.expected_by_word, trials.correct) for trials in listed], axis=-1
        ),
        rivals={name: _joined_rival([(trials, trials.rivals.get(name)) for trials in listed]) for name in rivals},
        relation_of=tuple(relation for trials in listed for relation in trials.relation_of),
    )


def _joined_rival(listed: Sequence[tuple[Trials, Rival | None]]) -> Rival:
    """The same baseline for all families; unknown where a family does not have it."""
    (options,) = {rival.options for _, rival in listed if rival is not None}
    parts = [
        np.full((*trials.total.shape, len(options)), np.nan) if rival is None else rival.correct
        for trials, rival in listed
    ]
    is_informed = any(rival is not None and rival.is_informed for _, rival in listed)
    return Rival(options, np.concatenate(parts, axis=1), is_informed)


def _or_unknown(counts: np.ndarray | None, like: np.ndarray) -> np.ndarray:
    return np.full_like(like, np.nan) if counts is None else counts


def relation_of(metric: str) -> str:
    """What a metric is about: both directions of a relation together; "nsubj", "subject_verb", "coref[pronoun]"."""
    stem, bracket, relation = metric.partition("[")
    if stem.startswith("syntax."):
        return relation.rstrip("]")
    return metric if bracket else stem.partition(".")[0]
