"""From the sums of a pass to what statistics weigh: every head's right decisions beside those of its rivals."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from headlens.analyzers import DecisionAnalyzer
from headlens.annotated import Reading
from headlens.evidence import Trials
from headlens.null_model import correct_by_position
from headlens.tally import Tally


def trials_of(tally: Tally, reading: Reading, analyzer: DecisionAnalyzer, *, is_causal: bool) -> Trials:
    """Decisions that `analyzer` counted in a pass over all batches of `reading`, by fold of documents."""
    sums = tally.model[analyzer.name].sums
    membership = analyzer.membership

    def by_metric(labels: Tensor) -> np.ndarray:
        return (labels.cpu().float() @ membership).numpy()

    by_position = correct_by_position(tally, analyzer, reading.encoded.batches, is_causal=is_causal)
    fold_of = reading.document_of % tally.folds
    return Trials(
        names=analyzer.counted,
        total=by_metric(sums["total"][:, 0, 0]),
        correct=by_metric(sums["correct"]),
        chance=by_metric(sums["by_chance"][:, 0, 0]),
        profile=by_metric(by_position),
        expected=by_metric(sums["expected"]) if "expected" in sums else None,
        rivals=reading.rivals[analyzer.name](fold_of, tally.folds),
        relation_of=tuple(relation_of(name) for name in analyzer.counted),
    )


def relation_of(metric: str) -> str:
    """What a metric is about: both directions of a relation together; "nsubj", "subject_verb", "coref[pronoun]"."""
    stem, bracket, relation = metric.partition("[")
    if stem.startswith("syntax."):
        return relation.rstrip("]")
    return metric if bracket else stem.partition(".")[0]
