"""Decisions of syntax on drawn sentences: what is asked, of which word, and what it counts for."""

from __future__ import annotations

import numpy as np
import pytest
from drawn_words import bare, parsed, seen

from headlens.documents import Sentence
from headlens.gold.arcs import Arcs, collapsed, dependencies, syntax_arcs, verb_of
from headlens.gold.by_input import ByInput
from headlens.gold.scored_input import ScoredInput

DOG = parsed("The DET 3 det", "old ADJ 3 amod", "dog NOUN 4 nsubj", "barks VERB 0 root", ". PUNCT 4 punct")
SEEN = parsed("Cats NOUN 3 nsubj:pass", "were AUX 3 aux:pass", "seen VERB 0 root")
COPULA = parsed("She PRON 3 nsubj", "is AUX 3 cop", "tall ADJ 0 root")
NO_VERB = parsed("She PRON 2 nsubj", "tall ADJ 0 root")

TO_HEAD, FROM_HEAD = "syntax.dep_to_head", "syntax.head_to_dep"
TO_VERB, TO_SUBJECT = "subject_verb.subject_to_verb", "subject_verb.verb_to_subject"


def listed(arcs: Arcs) -> list[tuple[str, int, int, str, float]]:
    """(label, word, target, what is asked, number of candidates), in order."""
    return [
        (arcs.labels[label], word, target, "column" if is_column else "row", round(1 / chance))
        for label, word, target, is_column, chance in zip(
            arcs.label.tolist(), arcs.word.tolist(), arcs.target.tolist(), arcs.is_column, arcs.chance, strict=True
        )
    ]


def asked_of(sentence: Sentence, scored: ScoredInput) -> set[tuple[str, int, int, str, float]]:
    found = listed(syntax_arcs([sentence], {0: scored}))
    assert len(found) == len(set(found))
    return set(found)


# ----------------------------------------------------------------------------------------------------- scored inputs


@pytest.mark.parametrize(
    ("scored", "asked"),
    [
        (seen(3), [True, True, True]),
        (seen(3, without=(0,)), [False, True, True]),
        (seen(3, is_causal=True), [True, True, True]),
        (seen(3, is_causal=True, has_sink=True), [False, True, True]),
        (seen(4, is_causal=True, has_sink=True, without=(0,)), [False, False, True, True]),
        (seen(2, is_causal=True, has_sink=True, without=(0, 1)), [False, False]),
    ],
)
def test_words_that_are_asked_have_a_token_and_are_not_the_sink(scored: ScoredInput, asked: list[bool]) -> None:
    assert scored.asked.tolist() == asked


def test_asking_leaves_the_marks_as_they_are() -> None:
    scored = seen(3, is_causal=True, has_sink=True)
    assert scored.asked.tolist() == [False, True, True]
    assert scored.present.tolist() == [True, True, True]


def test_every_other_word_is_a_candidate() -> None:
    expected = [[0, 1, 1, 0], [1, 0, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]]
    assert seen(4, without=(3,)).candidates.astype(int).tolist() == expected


def test_candidates_of_a_causal_model_are_the_earlier_words_without_the_sink() -> None:
    assert seen(3, is_causal=True).candidates.astype(int).tolist() == [[0, 0, 0], [1, 0, 0], [1, 1, 0]]
    with_sink = seen(4, is_causal=True, has_sink=True)
    assert with_sink.candidates.astype(int).tolist() == [[0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0]]


# ---------------------------------------------------------------------------------------------------------- by input


@pytest.mark.parametrize(
    ("inputs", "places", "indices"),
    [
        ([0], [0, 0], [0, 1]),
        ([3], [0], [2]),
        ([3, 0], [0, 1, 1], [2, 0, 1]),
        ([1], [], []),
        ([7, 4, 1, 0], [1, 1, 1, 3, 3], [3, 4, 5, 0, 1]),
        ([5, 99], [], []),
        ([], [], []),
    ],
)
def test_decisions_are_found_by_input(inputs: list[int], places: list[int], indices: list[int]) -> None:
    found = ByInput(np.array([0, 0, 3, 4, 4, 4])).of(inputs)
    assert [part.tolist() for part in found] == [places, indices]


def test_without_decisions_none_is_found() -> None:
    assert [part.tolist() for part in ByInput(np.zeros(0, np.int64)).of([0, 2])] == [[], []]


# --------------------------------------------------------------------------------------------- dependencies and verbs


def test_root_and_punctuation_have_no_head_to_be_found() -> None:
    assert list(dependencies(DOG)) == [(0, 2, "det"), (1, 2, "amod"), (2, 3, "nsubj")]


def test_subtypes_of_punctuation_and_of_root_are_left_out_too() -> None:
    odd = parsed("a X 2 punct:x", "b X 3 root:y", "c X 0 nsubj", "d X 3 nmod:poss")
    assert list(dependencies(odd)) == [(3, 2, "nmod:poss")]


def test_a_sentence_without_dependencies_has_none() -> None:
    assert list(dependencies(bare("no heads here"))) == []


@pytest.mark.parametrize(("relation", "whole"), [("nsubj:pass", "nsubj"), ("obl", "obl"), ("nmod:poss:x", "nmod")])
def test_a_relation_without_its_subtype(relation: str, whole: str) -> None:
    assert collapsed(relation) == whole


@pytest.mark.parametrize(
    ("sentence", "subject", "verb"),
    [
        (DOG, 2, 3),
        (SEEN, 0, 2),
        (COPULA, 0, 1),
        (NO_VERB, 0, None),
        (parsed("It PRON 2 nsubj", "is AUX 0 root", "so ADV 2 advmod"), 0, 1),
        # the copula of another predicate does not count
        (parsed("She PRON 2 nsubj", "tall ADJ 0 root", "he PRON 5 nsubj", "is AUX 5 cop", "old ADJ 2 conj"), 0, None),
        (parsed("She PRON 2 nsubj", "tall ADJ 0 root", "he PRON 5 nsubj", "is AUX 5 cop", "old ADJ 2 conj"), 2, 3),
        (parsed("She PRON 3 nsubj", "is AUX 3 cop:own", "tall ADJ 0 root"), 0, 1),
    ],
)
def test_the_verb_of_a_subject(sentence: Sentence, subject: int, verb: int | None) -> None:
    assert verb_of(sentence, subject) == verb


# ---------------------------------------------------------------------------------------------------------- decisions


def test_every_dependency_is_asked_both_ways_and_the_subject_of_its_verb() -> None:
    assert asked_of(DOG, seen(5)) == {
        (f"{TO_HEAD}[det]", 0, 2, "row", 4),  # all other words are candidates, punctuation too
        (f"{TO_HEAD}[amod]", 1, 2, "row", 4),
        (f"{TO_HEAD}[nsubj]", 2, 3, "row", 4),
        (f"{FROM_HEAD}[det]", 0, 2, "column", 4),
        (f"{FROM_HEAD}[amod]", 1, 2, "column", 4),
        (f"{FROM_HEAD}[nsubj]", 2, 3, "column", 4),
        (TO_VERB, 2, 3, "row", 4),
        (TO_SUBJECT, 3, 2, "row", 4),
    }


def test_a_causal_model_is_asked_what_it_can_see() -> None:
    assert asked_of(DOG, seen(5, is_causal=True)) == {
        (f"{FROM_HEAD}[det]", 0, 2, "column", 4),  # the words after it
        (f"{FROM_HEAD}[amod]", 1, 2, "column", 3),
        (f"{FROM_HEAD}[nsubj]", 2, 3, "column", 2),
        (TO_SUBJECT, 3, 2, "row", 3),
    }


def test_nothing_is_asked_about_the_sink() -> None:
    assert asked_of(DOG, seen(5, is_causal=True, has_sink=True)) == {
        (f"{FROM_HEAD}[amod]", 1, 2, "column", 3),
        (f"{FROM_HEAD}[nsubj]", 2, 3, "column", 2),
        (TO_SUBJECT, 3, 2, "row", 2),
    }


def test_in_a_causal_model_heads_before_their_dependents_are_asked_for() -> None:
    sees = parsed("See VERB 0 root", "the DET 3 det", "dog NOUN 1 obj")
    assert asked_of(sees, seen(3, is_causal=True)) == {
        (f"{TO_HEAD}[obj]", 2, 0, "row", 2),
        (f"{FROM_HEAD}[det]", 1, 2, "column", 1),
    }


def test_words_without_a_token_are_neither_asked_nor_candidates() -> None:
    assert asked_of(DOG, seen(5, without=(2,))) == set()
    assert asked_of(DOG, seen(5, without=(0,))) == {
        (f"{TO_HEAD}[amod]", 1, 2, "row", 3),
        (f"{TO_HEAD}[nsubj]", 2, 3, "row", 3),
        (f"{FROM_HEAD}[amod]", 1, 2, "column", 3),
        (f"{FROM_HEAD}[nsubj]", 2, 3, "column", 3),
        (TO_VERB, 2, 3, "row", 3),
        (TO_SUBJECT, 3, 2, "row", 3),
    }


def test_the_copula_stands_for_a_predicate_that_is_no_verb() -> None:
    found = asked_of(COPULA, seen(3))
    assert {(TO_VERB, 0, 1, "row", 2), (TO_SUBJECT, 1, 0, "row", 2)} <= found
    assert (f"{TO_HEAD}[nsubj]", 0, 2, "row", 2) in found


def test_without_a_verb_only_the_dependency_is_asked() -> None:
    assert asked_of(NO_VERB, seen(2)) == {
        (f"{TO_HEAD}[nsubj]", 0, 1, "row", 1),
        (f"{FROM_HEAD}[nsubj]", 0, 1, "column", 1),
    }


@pytest.mark.parametrize(("relation", "is_subject"), [("csubj", True), ("nsubj:outer", True), ("obj", False)])
def test_which_relations_are_subjects(relation: str, is_subject: bool) -> None:
    labels = {label for label, *_ in asked_of(parsed(f"x X 2 {relation}", "goes VERB 0 root"), seen(2))}
    assert (labels & {TO_VERB, TO_SUBJECT} == {TO_VERB, TO_SUBJECT}) is is_subject


def test_without_parts_of_speech_no_subject_is_asked_for() -> None:
    untagged = Sentence(DOG.words, DOG.text, DOG.spans, heads=DOG.heads, relations=DOG.relations)
    labels = [label for label, *_ in asked_of(untagged, seen(5))]
    assert len(labels) == 6
    assert not {TO_VERB, TO_SUBJECT} & set(labels)


# ------------------------------------------------------------------------------------------------ labels and metrics


def test_inputs_come_in_order_and_only_those_that_are_read() -> None:
    arcs = syntax_arcs([DOG, COPULA, NO_VERB, bare("no heads")], {2: seen(2), 3: seen(2), 0: seen(5)})
    assert arcs.input.tolist() == [0] * 8 + [2] * 2
    assert len(arcs) == 10
    assert arcs.by_input.of([2])[1].tolist() == [8, 9]


def test_relations_hold_their_subtypes_and_all_holds_every_one() -> None:
    arcs = syntax_arcs([DOG, SEEN], {0: seen(5), 1: seen(3)})
    assert arcs.labels == tuple(sorted(arcs.labels))
    members = {
        metric: {label for label, own in zip(arcs.labels, arcs.membership[:, place], strict=True) if own}
        for place, metric in enumerate(arcs.metrics)
    }
    relations = ("amod", "aux:pass", "det", "nsubj", "nsubj:pass")
    assert members == {
        TO_VERB: {TO_VERB},
        TO_SUBJECT: {TO_SUBJECT},
        **{
            f"{way}[{name}]": {f"{way}[{relation}]" for relation in held}
            for way in (TO_HEAD, FROM_HEAD)
            for name, held in {
                "ALL": relations,
                "amod": ("amod",),
                "aux": ("aux:pass",),
                "aux:pass": ("aux:pass",),
                "det": ("det",),
                "nsubj": ("nsubj", "nsubj:pass"),
                "nsubj:pass": ("nsubj:pass",),
            }.items()
        },
    }


def test_metrics_stand_in_a_fixed_order() -> None:
    arcs = syntax_arcs([SEEN], {0: seen(3)})
    relations = ("ALL", "aux", "aux:pass", "nsubj", "nsubj:pass")
    expected = [TO_VERB, TO_SUBJECT, *(f"{way}[{name}]" for way in (TO_HEAD, FROM_HEAD) for name in relations)]
    assert list(arcs.metrics) == expected


def test_nothing_to_ask_gives_empty_arcs() -> None:
    arcs = syntax_arcs([bare("no heads")], {0: seen(2)})
    assert (len(arcs), arcs.labels, arcs.metrics, arcs.membership.shape) == (0, (), (), (0, 0))
