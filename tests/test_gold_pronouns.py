"""Pronouns and what they may refer to, drawn by hand; and the lists that all such decisions are kept in."""

from __future__ import annotations

import numpy as np
import pytest
from drawn_words import bare, seen

from headlens.documents import Candidate, Choice, Document
from headlens.gold.pronouns import FIRST, NEAREST, NONE_RIGHT, NOT_VISIBLE, metrics_of, pronoun_choices
from headlens.gold.scored_input import ScoredInput
from headlens.gold.shortlists import Question, Shortlists

#        0    1  2   3   4    5    6    7   8
TEXT = "Ann Lee saw Eve when she was with Pam"
ANN, EVE, PAM = (0, 2), (3, 4), (8, 9)


def choice(right: tuple[int, int], *spans: tuple[int, int], groups: tuple[str, ...] = ()) -> Choice:
    return Choice(5, 6, tuple(Candidate(*span, span == right) for span in spans), groups)


def choices_of(*choices: Choice, scored: ScoredInput | None = None) -> Shortlists:
    document = Document.of_sentences([bare(TEXT)], "drawn", choices=choices)
    return pronoun_choices({0: document}, {0: scored or seen(9)})


def test_a_pronoun_chooses_among_all_words_of_its_candidates() -> None:
    found = choices_of(choice(ANN, EVE, ANN))
    assert found.word.tolist() == [5]
    assert found.candidates.tolist() == [[0, 1, 3]]  # in the order of the text
    assert found.right.tolist() == [[True, True, False]]
    assert found.chance.tolist() == [0.5]  # by candidates, not by their words
    assert found.left_out == {}


def test_a_pronoun_of_several_words_asks_its_first() -> None:
    long = Choice(5, 7, (Candidate(*ANN, True), Candidate(*EVE, False)))
    assert choices_of(long).word.tolist() == [5]
    assert choices_of(long, scored=seen(9, without=(6,))).word.tolist() == [5]
    assert choices_of(long, scored=seen(9, without=(5,))).left_out == {NOT_VISIBLE: 1}


def test_chance_is_one_of_the_candidates() -> None:
    assert choices_of(choice(ANN, ANN, EVE, PAM)).chance.tolist() == [1 / 3]


@pytest.mark.parametrize(
    ("right", "spans", "first", "nearest"),
    [
        (ANN, (EVE, ANN), True, False),
        (EVE, (EVE, ANN), False, True),
        (PAM, (PAM, EVE), False, False),  # Eve is one word away, Pam two
        (PAM, (PAM, ANN), False, True),  # Pam is two words away, Lee three
    ],
)
def test_baselines(right: tuple[int, int], spans: tuple[tuple[int, int], ...], first: bool, nearest: bool) -> None:
    baselines = choices_of(choice(right, *spans)).baselines
    assert {name: values.tolist() for name, values in baselines.items()} == {FIRST: [first], NEAREST: [nearest]}


@pytest.mark.parametrize(
    "candidates",
    [
        (Candidate(*ANN, False), Candidate(*EVE, False)),
        (Candidate(*ANN, True), Candidate(*EVE, True)),
        (Candidate(*ANN, True),),
        (),
    ],
    ids=["none right", "both right", "a single one", "none"],
)
def test_only_pronouns_with_one_right_candidate_among_several_are_asked(candidates: tuple[Candidate, ...]) -> None:
    found = choices_of(Choice(5, 6, candidates))
    assert len(found) == 0
    assert found.left_out == {NONE_RIGHT: 1}


def test_a_candidate_after_the_pronoun_leaves_it_out_of_a_causal_model() -> None:
    asked = (choice(ANN, ANN, PAM), choice(ANN, ANN, EVE), choice(PAM, PAM, ANN))
    found = choices_of(*asked, scored=seen(9, is_causal=True))
    assert found.candidates.tolist() == [[0, 1, 3]]
    assert found.left_out == {NOT_VISIBLE: 2}
    assert len(choices_of(*asked)) == 3


def test_the_sink_is_no_word_of_a_candidate() -> None:
    found = choices_of(choice(ANN, ANN, EVE), scored=seen(9, is_causal=True, has_sink=True))
    assert found.candidates.tolist() == [[1, 3]]
    assert found.right.tolist() == [[True, False]]


def test_a_candidate_that_is_nothing_but_the_sink_leaves_the_pronoun_out() -> None:
    only_first = choice((0, 1), (0, 1), EVE)
    assert choices_of(only_first, scored=seen(9, is_causal=True, has_sink=True)).left_out == {NOT_VISIBLE: 1}
    assert len(choices_of(only_first, scored=seen(9, is_causal=True))) == 1


@pytest.mark.parametrize("without", [(5,), (3,)], ids=["the pronoun", "a candidate"])
def test_words_without_a_token_leave_the_pronoun_out(without: tuple[int, ...]) -> None:
    assert choices_of(choice(ANN, ANN, EVE), scored=seen(9, without=without)).left_out == {NOT_VISIBLE: 1}


def test_choices_count_for_all_and_for_their_groups() -> None:
    found = choices_of(
        choice(ANN, ANN, EVE, groups=("pro", "type1")),
        choice(EVE, ANN, EVE, groups=("anti", "type1")),
        choice(ANN, ANN, PAM),
    )
    assert found.metrics == ("choice[all]", "choice[anti]", "choice[pro]", "choice[type1]")
    assert found.counts_for.astype(int).tolist() == [[1, 0, 1, 1], [1, 1, 0, 1], [1, 0, 0, 0]]


def test_all_comes_before_the_groups() -> None:
    assert metrics_of([("choice[all]", "choice[b]"), ("choice[all]", "choice[a]")]) == [
        "choice[all]",
        "choice[a]",
        "choice[b]",
    ]


def test_choices_are_kept_by_input_and_only_of_those_that_are_read() -> None:
    document = Document.of_sentences([bare(TEXT)], "drawn", choices=[choice(ANN, ANN, EVE), choice(EVE, ANN, EVE)])
    found = pronoun_choices({4: document, 2: document, 3: document}, {4: seen(9), 2: seen(9)})
    assert found.input.tolist() == [2, 2, 4, 4]
    assert found.by_input.of([4])[1].tolist() == [2, 3]


# --------------------------------------------------------------------------------------------------------- shortlists


def question(number: int, candidates: tuple[int, ...], metrics: tuple[str, ...], is_hit: bool = True) -> Question:
    right = tuple(place == 0 for place in range(len(candidates)))
    return Question(number, 9, candidates, right, 1 / len(candidates), metrics, {"a": is_hit})


def test_lists_of_several_lengths_are_filled_up() -> None:
    found = Shortlists.of([question(1, (4, 6, 7), ("m",), False), question(0, (2,), ("n", "m"))], ["n", "o", "m"])
    assert found.input.tolist() == [0, 1]
    assert found.candidates.tolist() == [[2, -1, -1], [4, 6, 7]]
    assert found.right.tolist() == [[True, False, False], [True, False, False]]
    assert found.metrics == ("n", "m")  # in the order given, without those that nothing counts for
    assert found.counts_for.tolist() == [[True, True], [False, True]]
    assert found.chance.tolist() == [1, 1 / 3]
    assert found.baselines["a"].tolist() == [True, False]
    assert (len(found), found.left_out) == (2, {})


def test_questions_of_one_input_keep_their_order() -> None:
    found = Shortlists.of([question(1, (5,), ("m",)), question(0, (3,), ("m",)), question(1, (4,), ("m",))], ["m"])
    assert found.candidates[:, 0].tolist() == [3, 5, 4]


def test_without_questions_the_lists_are_empty() -> None:
    found = Shortlists.of([], ["m"], left_out={"why": 2})
    assert (len(found), found.metrics, found.left_out) == (0, (), {"why": 2})
    assert found.candidates.shape == (0, 0)
    assert found.counts_for.shape == (0, 0)
    assert [part.tolist() for part in found.by_input.of([0])] == [[], []]
    assert found.right.dtype == np.bool_
