"""Decisions of syntax: which word is the head of a dependent, the verb of a subject. No torch here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlens.documents import ROOT, Sentence
from headlens.gold.by_input import ByInput
from headlens.gold.scored_input import ScoredInput

NOT_SCORED = frozenset({"root", "punct"})  # relations without a partner to find
SUBJECTS = frozenset({"nsubj", "csubj", "nsubjpass", "csubjpass"})  # the last two in parses by spaCy
VERBS = frozenset({"VERB", "AUX"})
ALL = "ALL"

TO_HEAD, FROM_HEAD = "syntax.dep_to_head", "syntax.head_to_dep"
TO_VERB, TO_SUBJECT = "subject_verb.subject_to_verb", "subject_verb.verb_to_subject"


@dataclass(frozen=True, eq=False)
class Arcs:
    """Decisions, one entry each, those of one input next to one another and inputs in ascending order.

    A decision asks the row of `word`, or where `is_column` its column, for the strongest candidate, and is right if
    that is `target`. `label` says what it counts for: an index into `labels`, which keep subtypes apart;
    `membership` adds labels up to metrics.
    """

    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    membership: NDArray[np.bool_]  # [label, metric]
    input: NDArray[np.int64]
    word: NDArray[np.int64]
    target: NDArray[np.int64]
    label: NDArray[np.int64]
    is_column: NDArray[np.bool_]
    chance: NDArray[np.float64]  # 1 / candidates

    def __len__(self) -> int:
        return self.input.size

    @cached_property
    def by_input(self) -> ByInput:
        return ByInput(self.input)


def syntax_arcs(sentences: Sequence[Sentence], scored: Mapping[int, ScoredInput]) -> Arcs:
    """Decisions of all sentences that have dependencies; `scored` tells which of them the model reads, and how.

    dep_to_head asks the row of every dependent for its head, head_to_dep its column: the word that attends most to it
    (Clark et al. 2019, section 4.2). A decision whose answer is no candidate (without a token; in a causal model not
    visible, or the sink) is not asked.
    """
    decisions = [
        (number, decision) for number in sorted(scored) for decision in _decisions(sentences[number], scored[number])
    ]
    names = sorted({decision.label for _, decision in decisions})
    place = {name: index for index, name in enumerate(names)}
    metrics, membership = _metrics(names)
    return Arcs(
        labels=tuple(names),
        metrics=metrics,
        membership=membership,
        input=np.array([number for number, _ in decisions], dtype=np.int64),
        word=np.array([d.word for _, d in decisions], dtype=np.int64),
        target=np.array([d.target for _, d in decisions], dtype=np.int64),
        label=np.array([place[d.label] for _, d in decisions], dtype=np.int64),
        is_column=np.array([d.is_column for _, d in decisions], dtype=bool),
        chance=np.array([d.chance for _, d in decisions], dtype=np.float64),
    )


def dependencies(sentence: Sentence) -> Iterator[tuple[int, int, str]]:
    """(dependent, head, relation) of every word that has a head to be found."""
    if sentence.heads is None or sentence.relations is None:
        return
    for word, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True)):
        if head != ROOT and collapsed(relation) not in NOT_SCORED:
            yield word, head, relation


def collapsed(relation: str) -> str:
    return relation.partition(":")[0]


def verb_of(sentence: Sentence, subject: int) -> int | None:
    """The verb of a subject: its head, or beside a predicate that is no verb the copula; None where neither is."""
    assert sentence.heads is not None
    assert sentence.relations is not None
    head = sentence.heads[subject]
    if sentence.upos is not None and sentence.upos[head] in VERBS:
        return head
    return next(
        (
            word
            for word, (its_head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True))
            if its_head == head and collapsed(relation) == "cop"
        ),
        None,
    )


class _Decision(NamedTuple):
    word: int
    target: int
    label: str
    is_column: bool
    chance: float


def _decisions(sentence: Sentence, scored: ScoredInput) -> Iterator[_Decision]:
    candidates = scored.candidates
    row_size, column_size = candidates.sum(axis=1), candidates.sum(axis=0)
    for word, head, relation in dependencies(sentence):
        if candidates[word, head]:
            yield _Decision(word, head, f"{TO_HEAD}[{relation}]", False, 1 / row_size[word])
        if candidates[head, word]:
            yield _Decision(word, head, f"{FROM_HEAD}[{relation}]", True, 1 / column_size[word])
        if collapsed(relation) in SUBJECTS and sentence.upos is not None:
            verb = verb_of(sentence, word)
            if verb is None or verb == word:
                continue
            if candidates[word, verb]:
                yield _Decision(word, verb, TO_VERB, False, 1 / row_size[word])
            if candidates[verb, word]:
                yield _Decision(verb, word, TO_SUBJECT, False, 1 / row_size[verb])


def _metrics(labels: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.bool_]]:
    """Every label counts for itself, for its relation without subtype, and for ALL of its direction."""
    of_label = [list(dict.fromkeys(_metrics_of(label))) for label in labels]
    metrics = _in_order({metric for own in of_label for metric in own})
    membership = np.array([[metric in own for metric in metrics] for own in of_label], dtype=bool)
    return metrics, membership.reshape(len(labels), len(metrics))


def _metrics_of(label: str) -> Iterator[str]:
    stem, bracket, relation = label.partition("[")
    if not bracket:
        yield label
        return
    relation = relation.rstrip("]")
    yield f"{stem}[{ALL}]"
    yield f"{stem}[{collapsed(relation)}]"
    if ":" in relation:
        yield label


def _in_order(metrics: Iterable[str]) -> tuple[str, ...]:
    """Subject and verb first, then by direction: all relations together, then each by name."""
    stems = (TO_VERB, TO_SUBJECT, TO_HEAD, FROM_HEAD)

    def key(metric: str) -> tuple[int, bool, str]:
        stem, _, relation = metric.rstrip("]").partition("[")
        return stems.index(stem), relation != ALL, relation

    return tuple(sorted(metrics, key=key))
