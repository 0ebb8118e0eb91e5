"""Decisions between two names or nouns that a pronoun may refer to: GAP, WinoBias, Winograd. No torch here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from headlens.documents import Choice, Document
from headlens.gold.scored_input import ScoredInput
from headlens.gold.shortlists import Question, Shortlists

FIRST, NEAREST = "first candidate", "nearest candidate"
NONE_RIGHT, NOT_VISIBLE = "no candidate or every candidate is right", "a candidate stands where the model cannot look"


def pronoun_choices(documents: Mapping[int, Document], scored: Mapping[int, ScoredInput]) -> Shortlists:
    """A decision for every pronoun with exactly one right candidate; both maps go by input.

    The row of the pronoun's first word chooses among all words of the candidates, and is right if the word that it
    attends to most belongs to the right one. Counted under "all" and under every group of the pronoun. A pronoun with
    a candidate that has no visible word (in a causal model every name after the pronoun) is left out and counted.
    """
    questions, left_out = list[Question](), Counter[str]()
    for number in sorted(scored):
        for choice in documents[number].choices:
            found = _question(choice, number, scored[number])
            if isinstance(found, Question):
                questions.append(found)
            else:
                left_out[found] += 1
    return Shortlists.of(questions, metrics_of([question.metrics for question in questions]), left_out=left_out)


def metrics_of(groups: Sequence[Sequence[str]]) -> list[str]:
    """All of them first, then each group in alphabetical order."""
    named = sorted({metric for own in groups for metric in own} - {"choice[all]"})
    return ["choice[all]", *named]


def _question(choice: Choice, number: int, scored: ScoredInput) -> Question | str:
    if sum(candidate.is_right for candidate in choice.candidates) != 1 or len(choice.candidates) < 2:
        return NONE_RIGHT
    visible = scored.candidates[choice.start]
    spans = [
        [word for word in range(candidate.start, candidate.stop) if visible[word]] for candidate in choice.candidates
    ]
    if not all(spans):
        return NOT_VISIBLE
    slots = sorted(
        (word, candidate.is_right)
        for candidate, span in zip(choice.candidates, spans, strict=True)
        for word in span
    )  # fmt: skip
    return Question(
        input=number,
        word=choice.start,
        candidates=tuple(word for word, _ in slots),
        right=tuple(is_right for _, is_right in slots),
        chance=1 / len(choice.candidates),
        metrics=("choice[all]", *(f"choice[{group}]" for group in choice.groups)),
        baselines={
            FIRST: min(choice.candidates, key=lambda candidate: candidate.start).is_right,
            NEAREST: min(choice.candidates, key=lambda c: _distance(choice, c.start, c.stop)).is_right,
        },
    )


def _distance(choice: Choice, start: int, stop: int) -> int:
    return choice.start - stop if stop <= choice.start else start - choice.stop
