"""Baselines without attention, counted by hand on drawn sentences."""

from __future__ import annotations

import numpy as np
import pytest
from drawn_words import bare, parsed, seen

from headlens.documents import Sentence
from headlens.evidence import Rival
from headlens.gold.arcs import Arcs, syntax_arcs
from headlens.gold.scored_input import ScoredInput
from headlens.gold.shortlists import Question, Shortlists
from headlens.rivals import by_part_of_speech, constant_offset, of_shortlists

DOG = parsed("The DET 3 det", "old ADJ 3 amod", "dog NOUN 4 nsubj", "barks VERB 0 root")
CAT = parsed("A DET 2 det", "cat NOUN 3 nsubj:pass", "seen VERB 0 root")


def arcs_of(*sentences: Sentence) -> Arcs:
    return syntax_arcs(sentences, {number: seen(len(s.words)) for number, s in enumerate(sentences)})


def counts(rival: Rival, arcs: Arcs, metric: str) -> list[dict[str, int]]:
    """By fold, how often each option is right; those that never are left out."""
    by_fold = rival.correct[:, arcs.metrics.index(metric)]
    return [{o: int(n) for o, n in zip(rival.options, fold, strict=True) if n} for fold in by_fold]


# ----------------------------------------------------------------------------------------------------- constant offset


def test_offsets_reach_ten_words_both_ways() -> None:
    arcs = arcs_of(DOG)
    rival = constant_offset(arcs, np.array([0]), 1)
    assert rival.options == (
        *(f"-{n}" for n in range(10, 0, -1)),
        *(f"+{n}" for n in range(1, 11)),
    )
    assert rival.correct.shape == (1, len(arcs.metrics), 20)
    assert not rival.is_informed


def test_offsets_are_counted_by_fold_and_metric() -> None:
    arcs = arcs_of(DOG, CAT, CAT)
    rival = constant_offset(arcs, np.array([1, 0, 1]), 3)
    assert counts(rival, arcs, "syntax.dep_to_head[ALL]") == [{"+1": 2}, {"+1": 4, "+2": 1}, {}]
    assert counts(rival, arcs, "syntax.head_to_dep[det]") == [{"+1": 1}, {"+1": 1, "+2": 1}, {}]
    assert counts(rival, arcs, "syntax.dep_to_head[nsubj]") == [{"+1": 1}, {"+1": 2}, {}]
    assert counts(rival, arcs, "syntax.dep_to_head[nsubj:pass]") == [{"+1": 1}, {"+1": 1}, {}]
    # asked of the verb, the answer stands on the other side
    assert counts(rival, arcs, "subject_verb.verb_to_subject") == [{"-1": 1}, {"-1": 2}, {}]


def test_no_offset_is_right_about_a_head_that_is_further_than_ten_words() -> None:
    rows = ["far NOUN {} obj", *["x X 0 root"] * 11]
    arcs = arcs_of(*(parsed(*[row.format(head) for row in rows]) for head in (11, 12)))
    rival = constant_offset(arcs, np.array([0, 1]), 2)
    assert counts(rival, arcs, "syntax.dep_to_head[obj]") == [{"+10": 1}, {}]


# ------------------------------------------------------------------------------------------------------ part of speech

PAIR = parsed("a DET 3 det", "b NOUN 3 compound", "c NOUN 0 root", "d ADV 3 advmod", "e NOUN 2 dep")


def by_kind(*sentences: Sentence, minimum: int = 0, scored: dict[int, ScoredInput] | None = None) -> tuple[Arcs, Rival]:
    inputs = scored or {number: seen(len(s.words)) for number, s in enumerate(sentences)}
    arcs = syntax_arcs(sentences, inputs)
    fold_of = np.arange(len(sentences))
    return arcs, by_part_of_speech(arcs, sentences, inputs, fold_of, len(sentences), minimum=minimum)


def test_the_answer_is_the_nth_word_of_its_kind_on_one_side() -> None:
    arcs, rival = by_kind(PAIR)
    assert rival.is_informed
    assert counts(rival, arcs, "syntax.dep_to_head[det]") == [{"2. NOUN after": 1}]  # b comes between a and c
    assert counts(rival, arcs, "syntax.dep_to_head[compound]") == [{"1. NOUN after": 1}]
    assert counts(rival, arcs, "syntax.dep_to_head[advmod]") == [{"1. NOUN before": 1}]
    assert counts(rival, arcs, "syntax.dep_to_head[dep]") == [{"2. NOUN before": 1}]
    assert counts(rival, arcs, "syntax.head_to_dep[ALL]") == [
        {"1. NOUN after": 1, "2. NOUN after": 1, "1. NOUN before": 1, "2. NOUN before": 1}
    ]


def test_subject_and_verb_are_asked_from_both_ends() -> None:
    arcs, rival = by_kind(DOG)
    assert counts(rival, arcs, "subject_verb.subject_to_verb") == [{"1. VERB after": 1}]
    assert counts(rival, arcs, "subject_verb.verb_to_subject") == [{"1. NOUN before": 1}]


@pytest.mark.parametrize(("between", "expected"), [(1, [{"2. NOUN after": 1}]), (2, [{"3. NOUN after": 1}])])
def test_only_the_first_three_of_a_kind_are_options(between: int, expected: list[dict[str, int]]) -> None:
    rows = ["a DET {} det", *["n NOUN 0 root"] * (between + 1)]
    arcs, rival = by_kind(parsed(*[row.format(between + 2) for row in rows]))
    assert counts(rival, arcs, "syntax.dep_to_head[det]") == expected


def test_the_fourth_of_a_kind_is_no_option() -> None:
    _, rival = by_kind(parsed("a DET 5 det", *["n NOUN 0 root"] * 4))
    assert rival is None


def test_words_that_cannot_be_chosen_are_not_counted() -> None:
    arcs, rival = by_kind(PAIR, scored={0: seen(5, without=(1,))})
    assert counts(rival, arcs, "syntax.dep_to_head[det]") == [{"1. NOUN after": 1}]


def test_answers_are_counted_by_fold() -> None:
    arcs, rival = by_kind(PAIR, DOG)
    assert counts(rival, arcs, "syntax.dep_to_head[det]") == [{"2. NOUN after": 1}, {"1. NOUN after": 1}]


def test_without_parts_of_speech_there_is_no_option() -> None:
    bare_dog = Sentence(DOG.words, DOG.text, DOG.spans, heads=DOG.heads, relations=DOG.relations)
    _, rival = by_kind(bare_dog)
    assert rival is None
    beside, rival = by_kind(bare_dog, DOG)
    assert counts(rival, beside, "syntax.dep_to_head[det]") == [{}, {"1. NOUN after": 1}]


def test_options_that_are_right_in_a_twentieth_of_every_metric_are_left_out() -> None:
    # of 40 decisions of obj, two are "1. PRON after": a twentieth, and not over it; of 39 it is kept
    noun, pron = parsed("x VERB 2 obj", "y NOUN 0 root"), parsed("x VERB 2 obj", "y PRON 0 root")
    _, at_the_limit = by_kind(*[noun] * 38, *[pron] * 2)
    _, over_it = by_kind(*[noun] * 37, *[pron] * 2)
    assert at_the_limit.options == ("1. NOUN after",)
    assert over_it.options == ("1. NOUN after", "1. PRON after")


def test_rare_options_are_dropped_without_mixing_up_the_others() -> None:
    # "1. NOUN after" comes before the others in order and is dropped
    noun, pron = parsed("x VERB 2 obj", "y NOUN 0 root"), parsed("x VERB 2 obj", "y PRON 0 root")
    arcs, rival = by_kind(
        noun, *[pron] * 30, parsed("y VERB 0 root", "x VERB 1 obj"), *[parsed("y VERB 0 root", "x VERB 1 obj")] * 9
    )
    assert rival.options == ("1. PRON after", "1. VERB before")
    found = rival.correct[:, arcs.metrics.index("syntax.dep_to_head[obj]")]
    assert found.sum(axis=0).tolist() == [30, 10]
    assert found[0].tolist() == [0, 0]
    assert found[1].tolist() == [1, 0]
    assert found[31].tolist() == [0, 1]


@pytest.mark.parametrize(("minimum", "kept"), [(2, True), (3, False)])
def test_only_metrics_with_enough_decisions_keep_an_option(minimum: int, kept: bool) -> None:
    # "1. ADJ after" is right in two of two of amod, but in two of 50 of all
    rare = [parsed("x X 2 amod", "y ADJ 0 root")] * 2
    _, rival = by_kind(*rare, *[parsed("x X 2 obj", "y NOUN 0 root")] * 48, minimum=minimum)
    assert ("1. ADJ after" in rival.options) is kept
    assert "1. NOUN after" in rival.options


def test_without_a_metric_of_enough_decisions_there_is_no_option() -> None:
    _, rival = by_kind(DOG, minimum=10)
    assert rival is None


def test_sentences_without_annotation_are_passed_over() -> None:
    arcs, rival = by_kind(bare("no heads"), DOG)
    assert counts(rival, arcs, "syntax.dep_to_head[det]") == [{}, {"1. NOUN after": 1}]


# ---------------------------------------------------------------------------------------------------------- shortlists


def test_baselines_of_shortlists_are_counted_by_fold_and_metric() -> None:
    def question(number: int, metrics: tuple[str, ...], first: bool, nearest: bool) -> Question:
        return Question(number, 5, (1, 2), (True, False), 0.5, metrics, {"first": first, "nearest": nearest})

    listed = Shortlists.of(
        [
            question(0, ("all",), True, True),
            question(1, ("all", "pro"), True, False),
            question(2, ("all", "pro"), True, False),
            question(3, ("all",), False, True),
            question(3, ("all",), True, True),
        ],
        ["all", "pro"],
    )
    found = of_shortlists(listed, np.array([1, 0, 1, 1]), 3)
    assert {name: rival.options for name, rival in found.items()} == {"first": ("first",), "nearest": ("nearest",)}
    assert found["first"].correct[:, :, 0].tolist() == [[1, 1], [3, 1], [0, 0]]
    assert found["nearest"].correct[:, :, 0].tolist() == [[0, 0], [3, 0], [0, 0]]
    assert not found["first"].is_informed
