"""Analyzers of annotated words: scores of drawn attention known by hand, and whole passes equal to a plain loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from drawn_words import bare, between, heads, looking, parsed, random_heads, seen, tokens_of, whole_words
from torch import Tensor

from headlens.analyze import analyze
from headlens.analyzers import Phrases, Shortlisted, Surface, Syntax, WordAnalyzer
from headlens.analyzers.syntactic import ABSTENTION
from headlens.capture import Way, capture
from headlens.documents import Sentence
from headlens.errors import CaptureError
from headlens.gold.arcs import syntax_arcs
from headlens.gold.phrases import phrasings
from headlens.gold.scored_input import ScoredInput
from headlens.gold.shortlists import Question, Shortlists
from headlens.records import Batch, WordAttention
from headlens.tally import Tally
from headlens.testing import slow_attentions, tiny_model

DOG = parsed("The DET 3 det", "old ADJ 3 amod", "dog NOUN 4 nsubj", "barks VERB 0 root", ". PUNCT 4 punct")
CAT = parsed("See VERB 0 root", "the DET 3 det", "cat NOUN 1 obj:x")
SAW = parsed("She PRON 2 nsubj", "saw VERB 0 root", "it PRON 2 obj", ", PUNCT 5 punct", "too ADV 2 advmod")
LISTED = (DOG, CAT, SAW, bare("no heads"))

TO_HEAD, FROM_HEAD = "syntax.dep_to_head", "syntax.head_to_dep"


def syntax(
    *sentences: Sentence, is_causal: bool = False, scored: dict[int, ScoredInput] | None = None
) -> Syntax:  # fmt: skip
    inputs = scored or {n: seen(len(s.words), is_causal=is_causal) for n, s in enumerate(sentences)}
    arcs = syntax_arcs(sentences, inputs)
    return Syntax(arcs, max(len(s.words) for s in sentences), is_causal=is_causal)


def phrases(*sentences: Sentence, is_causal: bool = False) -> Phrases:
    inputs = {n: seen(len(s.words), is_causal=is_causal) for n, s in enumerate(sentences)}
    return Phrases(phrasings(sentences, inputs), is_causal=is_causal)


def totals(analyzer: WordAnalyzer, attention: WordAttention, batch: Batch) -> dict[str, Tensor]:
    """[head, ...]: the sums of all inputs together."""
    return {key: value.double().sum(dim=0) for key, value in analyzer.observe(attention, batch).items()}


def scores_of(analyzer: WordAnalyzer, attention: WordAttention, batch: Batch) -> dict[str, list[float]]:
    """By metric, a number for each head."""
    scores = analyzer.score(totals(analyzer, attention, batch))
    assert list(scores) == [metric.name for metric in analyzer.metrics]
    return {name: [round(x, 10) for x in value.tolist()] for name, value in scores.items()}


def by_metric(analyzer: Syntax, key: str, attention: WordAttention, batch: Batch) -> dict[str, list[float]]:
    """A sum by label, added up to metrics."""
    found = totals(analyzer, attention, batch)[key] @ analyzer.membership.double()
    return {name: [round(x, 6) for x in found[:, place].tolist()] for place, name in enumerate(analyzer.counted)}


# -------------------------------------------------------------------------------------------------------------- syntax


def test_a_head_that_looks_at_the_next_word() -> None:
    scores = scores_of(syntax(DOG), between(whole_words(5), looking((1, 2, 3, 4, 3))), whole_words(5))
    assert scores[f"{TO_HEAD}[det]"] == [0]
    assert scores[f"{TO_HEAD}[amod]"] == [1]
    assert scores[f"{TO_HEAD}[nsubj]"] == [1]
    assert scores[f"{TO_HEAD}[ALL]"] == [round(2 / 3, 10)]
    assert scores[f"{FROM_HEAD}[ALL]"] == [0]
    assert scores["subject_verb.subject_to_verb"] == [1]
    assert scores["subject_verb.verb_to_subject"] == [0]


def test_a_head_that_looks_from_heads_to_dependents() -> None:
    drawn = heads([". . . . .", ". . . . .", ".3 .4 . .1 .", ". .2 .3 . .", ". . .2 . ."])
    scores = scores_of(syntax(DOG), between(whole_words(5), drawn), whole_words(5))
    # a word with several dependents is right about each; ".": its look at "dog" is weaker than that of "barks"
    assert scores[f"{FROM_HEAD}[ALL]"] == [1]
    assert scores[f"{TO_HEAD}[ALL]"] == [0]
    assert scores["subject_verb.verb_to_subject"] == [1]  # the row of the verb, not the column of the subject
    assert scores["subject_verb.subject_to_verb"] == [0]


def test_punctuation_is_a_candidate_and_the_word_itself_is_not() -> None:
    own = heads([". . . . .", ". .9 .2 . .", ". . .9 .1 .3", ". . . . .", ". . . . ."])
    scores = scores_of(syntax(DOG), between(whole_words(5), own), whole_words(5))
    assert scores[f"{TO_HEAD}[amod]"] == [1]
    assert scores[f"{TO_HEAD}[nsubj]"] == [0]


def test_the_first_of_equal_words_is_chosen() -> None:
    alike = torch.full((1, 5, 5), 0.2, dtype=torch.float64)
    scores = scores_of(syntax(DOG, CAT), between(whole_words(5, 3), alike, alike[:, :3, :3]), whole_words(5, 3))
    # every word chooses word 0, or word 1 where it is word 0: right for the object of CAT only
    assert scores[f"{TO_HEAD}[obj]"] == [1]
    assert scores[f"{TO_HEAD}[ALL]"] == [0.2]
    assert scores[f"{FROM_HEAD}[ALL]"] == [0.2]


def test_heads_and_relations_are_scored_apart() -> None:
    attention = between(whole_words(5), looking((2, None, None, None, None), (None, 2, 3, None, None)))
    scores = scores_of(syntax(DOG), attention, whole_words(5))
    assert scores[f"{TO_HEAD}[det]"] == [1, 0]
    assert scores[f"{TO_HEAD}[amod]"] == [0, 1]
    assert scores[f"{TO_HEAD}[ALL]"] == [round(1 / 3, 10), round(2 / 3, 10)]


def test_a_relation_is_the_share_of_all_its_items_with_their_subtypes() -> None:
    twice = parsed("A NOUN 4 obj", "b NOUN 4 obj", "c NOUN 4 obj:x", "d VERB 0 root")
    attention = between(whole_words(4), looking((3, 0, 3, None)))
    analyzer = syntax(twice)
    scores = scores_of(analyzer, attention, whole_words(4))
    assert scores[f"{TO_HEAD}[obj]"] == [round(2 / 3, 10)]
    assert scores[f"{TO_HEAD}[obj:x]"] == [1]
    support = analyzer.support(totals(analyzer, attention, whole_words(4)))
    assert support[f"{TO_HEAD}[obj]"].tolist() == [3]
    assert support[f"{TO_HEAD}[obj:x]"].tolist() == [1]
    assert support[f"{FROM_HEAD}[ALL]"].tolist() == [3]


def test_a_metric_without_an_item_in_these_inputs_is_nan_with_support_0() -> None:
    analyzer, batch = syntax(DOG, CAT), whole_words(3, inputs=[1])
    sums = totals(analyzer, between(batch, looking((1, 2, 0))), batch)
    assert analyzer.score(sums)[f"{TO_HEAD}[nsubj]"].isnan().all()
    assert analyzer.support(sums)[f"{TO_HEAD}[nsubj]"].tolist() == [0]
    assert analyzer.score(sums)[f"{TO_HEAD}[ALL]"].tolist() == [1]


def test_a_causal_head_is_asked_what_it_can_see() -> None:
    batch = tokens_of("S 0 1 2 3 4")
    analyzer = syntax(DOG, is_causal=True)
    # .9 to the word itself, the rest to the word before: "dog" looks at "old", "barks" at "dog"
    drawn = heads([".9 . . . .", ".1 .9 . . .", ". .1 .9 . .", ". . .1 .9 .", ". . . .1 .9"])
    scores = scores_of(analyzer, between(batch, drawn, is_causal=True), batch)
    assert scores["subject_verb.verb_to_subject"] == [1]
    assert scores[f"{FROM_HEAD}[amod]"] == scores[f"{FROM_HEAD}[nsubj]"] == [1]
    assert scores[f"{FROM_HEAD}[det]"] == [0]
    assert f"{TO_HEAD}[ALL]" not in scores


def test_decisions_of_another_kind_of_attention_are_refused() -> None:
    attention = between(whole_words(5), looking((1, 2, 3, 4, 3)), is_causal=True)
    with pytest.raises(CaptureError, match="another kind of attention"):
        syntax(DOG).observe(attention, whole_words(5))


def test_chance_is_the_mean_of_one_over_the_candidates() -> None:
    analyzer, batch = syntax(DOG, CAT), whole_words(5, 3)
    uniform = between(batch, torch.full((1, 5, 5), 0.2).double(), torch.full((1, 3, 3), 1 / 3).double())
    chance = analyzer.chance(totals(analyzer, uniform, batch))
    assert chance[f"{TO_HEAD}[nsubj]"].tolist() == [1 / 4]
    assert chance[f"{TO_HEAD}[obj:x]"].tolist() == [1 / 2]
    assert chance[f"{TO_HEAD}[det]"].tolist() == [(1 / 4 + 1 / 2) / 2]
    assert chance[f"{FROM_HEAD}[ALL]"].tolist() == [(3 / 4 + 2 / 2) / 5]
    assert chance[ABSTENTION].isnan().all()
    # of 20 / 5 + 6 / 3 = 6 between words, 3 / 5 + 2 / 3 to heads
    assert chance["syntax.mass[to_head]"].tolist() == pytest.approx([(3 / 5 + 2 / 3) / 6])


def test_mass_along_dependencies_is_a_share_of_that_between_words() -> None:
    drawn = heads(["1 . .2 . .", ". .5 .1 .3 .", ".4 . . .1 .3", ". . .2 .6 .1", ". . . .3 ."])
    scores = scores_of(syntax(DOG), between(whole_words(5), drawn), whole_words(5))
    # between words: .2 + .4 + .8 + .3 + .3; to heads .2 + .1 + .1, to dependents .4 + .2; "." has no part in it
    assert scores["syntax.mass[to_head]"] == [round(0.4 / 2, 10)]
    assert scores["syntax.mass[to_dependent]"] == [round(0.6 / 2, 10)]
    assert scores["syntax.mass[either]"] == [round(1 / 2, 10)]


def test_a_word_abstains_if_a_special_token_gets_more_than_every_candidate() -> None:
    batch = tokens_of("S 0 1 2 S")
    drawn = heads([". .2 .1", ".3 . .2", ".2 .1 .5"])
    # word 0 rests on the second, word 1 has a candidate of the same weight, word 2 rests on neither: itself is no rest
    to_special = heads([".1 .6", ".3 .2", ".1 .1"])[None]
    analyzer = syntax(CAT)
    attention = between(batch, drawn, to_special=to_special)
    assert scores_of(analyzer, attention, batch)[ABSTENTION] == [round(1 / 3, 10)]
    assert analyzer.support(totals(analyzer, attention, batch))[ABSTENTION].tolist() == [3]


def test_a_word_of_a_causal_model_abstains_by_the_first_word() -> None:
    batch = whole_words(4)
    scored = {0: seen(4, is_causal=True, has_sink=True)}
    rows = parsed("a X 0 root", "b X 0 root", "c X 2 obj", "d X 2 obj")
    analyzer = syntax(rows, is_causal=True, scored=scored)
    drawn = heads(["1 . . .", ".9 .1 . .", ".5 .2 .3 .", ".3 .4 .2 .1"])
    # b has no candidate and is not asked; c rests on a, d prefers b
    assert scores_of(analyzer, between(batch, drawn, is_causal=True), batch)[ABSTENTION] == [0.5]
    # the same beside a special token of little weight
    beside = between(batch, drawn, is_causal=True, to_special=torch.full((1, 1, 4, 1), 0.05, dtype=torch.float64))
    assert scores_of(analyzer, beside, batch)[ABSTENTION] == [0.5]


# ----------------------------------------------------------------------------------------------- expected by chance

PAIRS = parsed("a X 2 obj", "b X 0 root", "c X 2 iobj", "d X 1 det")


def test_expected_is_the_share_of_words_that_choose_at_the_distance_of_an_item() -> None:
    attention = between(whole_words(4), looking((1, 2, 3, 2)))
    found = by_metric(syntax(PAIRS), "expected_by_distance", attention, whole_words(4))
    assert found[f"{TO_HEAD}[obj]"] == [1]  # the three words with a next one all choose it
    assert found[f"{TO_HEAD}[iobj]"] == [round(1 / 3, 6)]  # of b, c, d only d chooses the previous
    assert found[f"{TO_HEAD}[det]"] == [0]  # three back: d alone could, and does not
    assert found[f"{TO_HEAD}[ALL]"] == [round(4 / 3, 6)]


def test_expected_by_column_counts_words_that_are_attended_to_from_the_distance() -> None:
    # to each word the one that attends most: b to a, c to b, d to c, and nobody to d: the first of equals, a
    attention = between(whole_words(4), looking((None, 0, 1, 2)))
    found = by_metric(syntax(PAIRS), "expected_by_distance", attention, whole_words(4))
    assert found[f"{FROM_HEAD}[obj]"] == [1]  # a, b, c are all attended to by the next word
    assert found[f"{FROM_HEAD}[iobj]"] == [0]
    assert found[f"{FROM_HEAD}[det]"] == [1]


def test_expected_by_word_is_the_share_of_words_that_choose_the_answer() -> None:
    attention = between(whole_words(4), looking((1, 0, 1, 2)))
    found = by_metric(syntax(PAIRS), "expected_by_word", attention, whole_words(4))
    assert found[f"{TO_HEAD}[obj]"] == found[f"{TO_HEAD}[iobj]"] == [round(2 / 3, 6)]  # of a, c, d two choose b
    assert found[f"{TO_HEAD}[det]"] == [round(1 / 3, 6)]
    # columns: b attends to a; a and c to b alike, the first counts; d to c; nobody to d, the first counts
    assert found[f"{FROM_HEAD}[obj]"] == [round(1 / 3, 6)]  # b is strongest to a alone
    assert found[f"{FROM_HEAD}[det]"] == [round(2 / 3, 6)]  # a to b, and to d


def test_expected_counts_only_words_that_could_choose() -> None:
    # c has no token: from a and d nobody can look at it, and c looks nowhere
    batch = tokens_of("S 0 1 3 S")
    analyzer = syntax(PAIRS, scored={0: seen(4, without=(2,))})
    attention = between(batch, looking((1, 0, None, 1)))
    by_distance = by_metric(analyzer, "expected_by_distance", attention, batch)
    assert by_distance[f"{TO_HEAD}[obj]"] == [1]  # a alone could look at the next word
    assert by_distance[f"{TO_HEAD}[det]"] == [0]
    by_word = by_metric(analyzer, "expected_by_word", attention, batch)
    assert by_word[f"{TO_HEAD}[obj]"] == [1]  # a and d
    assert by_word[f"{TO_HEAD}[det]"] == [0.5]  # b, and not d


def test_expected_of_a_causal_head_leaves_out_the_sink() -> None:
    batch = whole_words(4)
    rows = parsed("a X 0 root", "b X 0 root", "c X 2 obj", "d X 2 iobj")
    analyzer = syntax(rows, is_causal=True, scored={0: seen(4, is_causal=True, has_sink=True)})
    attention = between(batch, looking((0, 0, 1, 1)), is_causal=True)
    by_distance = by_metric(analyzer, "expected_by_distance", attention, batch)
    assert by_distance[f"{TO_HEAD}[obj]"] == [0.5]  # of c and d, c chooses the previous word
    assert by_distance[f"{TO_HEAD}[iobj]"] == [1]  # d alone has a word two back
    by_word = by_metric(analyzer, "expected_by_word", attention, batch)
    assert by_word[f"{TO_HEAD}[obj]"] == by_word[f"{TO_HEAD}[iobj]"] == [1]


@pytest.mark.parametrize("offset", [-2, -1, 1, 2])
def test_a_head_of_a_fixed_offset_is_right_as_often_as_expected(offset: int) -> None:
    batch = whole_words(5, 3, 5)
    # a word without one at that distance looks at a word at a distance that no item has
    probs = [torch.diag_embed(torch.full((n - abs(offset),), 0.5).double(), offset)[None] for n in (5, 3, 5)]
    analyzer, attention = syntax(DOG, CAT, SAW), between(batch, *probs)
    sums = analyzer.observe(attention, batch)
    place, word, target, label, is_column = analyzer._arcs_of(batch).unbind()
    at_offset = (target - word) == torch.where(is_column.bool(), -offset, offset)
    expected = torch.zeros_like(sums["correct"])
    for item in at_offset.nonzero()[:, 0].tolist():
        expected[place[item], 0, label[item]] += 1
    assert expected.sum() > 0
    kept = expected > 0
    torch.testing.assert_close(sums["correct"][kept], expected[kept])
    torch.testing.assert_close(sums["expected_by_distance"][kept], expected[kept])


def test_a_previous_word_head_is_right_where_expected_on_every_item() -> None:
    """Of a causal model, where every word has a previous one or none at all."""
    batch = tokens_of("S 0 1 2 3 4", "S 0 1 2 . .", "S 0 1 2 3 4")
    analyzer = syntax(DOG, CAT, SAW, is_causal=True)
    previous = [torch.diag_embed(torch.full((n - 1,), 0.5).double(), -1)[None] for n in (5, 3, 5)]
    sums = analyzer.observe(between(batch, *previous, is_causal=True), batch)
    assert sums["correct"].sum() > 0
    assert torch.equal(sums["correct"], sums["expected_by_distance"])


def test_a_head_that_looks_at_one_word_from_everywhere_is_right_where_expected_by_word() -> None:
    # the second row can only be what the first of all equals is: b
    attention = between(whole_words(4), looking((1, 0, 1, 1)))
    sums = syntax(PAIRS).observe(attention, whole_words(4))
    labels = syntax(PAIRS).arcs.labels
    for relation in ("obj", "iobj"):
        place = labels.index(f"{TO_HEAD}[{relation}]")
        assert sums["correct"][0, 0, place] == sums["expected_by_word"][0, 0, place] == 1


# --------------------------------------------------------------------------------------------------------- shortlists


def question(
    number: int,
    word: int,
    candidates: tuple[int, ...],
    right: set[int],
    metrics: tuple[str, ...] = ("choice[all]",),
) -> Question:
    marks = tuple(candidate in right for candidate in candidates)
    return Question(number, word, candidates, marks, len(right) / len(candidates), metrics, {})


def shortlisted(*questions: Question, name: str = "choice") -> Shortlisted:
    metrics = dict.fromkeys(metric for one in questions for metric in one.metrics)
    return Shortlisted(name, Shortlists.of(questions, list(metrics)), 6)


def test_the_strongest_of_the_listed_words_decides() -> None:
    analyzer = shortlisted(question(0, 3, (0, 1), {1}))
    drawn = heads(
        [". . . .", ". . . .", ". . . .", ".2 .3 .9 ."],  # word 2 is on no list
        [". . . .", ". . . .", ". . . .", ".3 .2 .9 ."],
        [". . . .", ". . . .", ". . . .", ".3 .3 . ."],  # of equals the first
        [". . . .9", ". . . .9", ". . . .", ". .1 . ."],  # the row, not the column
    )
    assert scores_of(analyzer, between(whole_words(4), drawn), whole_words(4)) == {"choice[all]": [1, 0, 0, 1]}


def test_lists_of_several_lengths_in_one_batch() -> None:
    analyzer = shortlisted(
        question(0, 4, (0, 1, 2), {2}),
        question(0, 1, (0,), {0}),
        question(1, 2, (0, 1), {0}),
        question(2, 1, (0,), {0}),
    )
    batch = whole_words(5, 3, inputs=[0, 1])
    # nothing is paid to any word of the lists of the second input: its first candidate is chosen
    attention = between(batch, looking((None, None, None, None, 2)), looking((None, None, None)))
    sums = analyzer.observe(attention, batch)
    assert sums["correct"][:, 0, 0].tolist() == [2, 1]
    assert sums["total"][:, 0, 0].tolist() == [2, 1]
    assert sums["by_chance"][:, 0, 0].tolist() == [pytest.approx(4 / 3), 0.5]


def test_several_right_words_are_all_right() -> None:
    analyzer = shortlisted(question(0, 3, (0, 1, 2), {0, 2}), name="coref")
    drawn = looking((None, None, None, 0), (None, None, None, 1), (None, None, None, 2))
    assert scores_of(analyzer, between(whole_words(4), drawn), whole_words(4))["choice[all]"] == [1, 0, 1]


PRO_ANTI = [
    question(0, 3, (0, 1), {0}, ("choice[all]", "choice[pro]")),
    question(0, 2, (0, 1), {0}, ("choice[all]", "choice[pro]")),
    question(0, 3, (0, 1, 2), {1}, ("choice[all]", "choice[anti]")),
]


def test_groups_and_their_difference() -> None:
    analyzer = shortlisted(*PRO_ANTI)
    batch = whole_words(4)
    drawn = heads([". . . .", ". . . .", ".5 . . .", ".5 . . ."], [". . . .", ". . . .", ".5 . . .", ". .5 . ."])
    sums = totals(analyzer, between(batch, drawn), batch)
    assert scores_of(analyzer, between(batch, drawn), batch) == {
        "choice[all]": [round(2 / 3, 10)] * 2,
        "choice[pro]": [1, 0.5],
        "choice[anti]": [0, 1],
        "choice.difference[pro-anti]": [1, -0.5],
    }
    support = {name: value.tolist() for name, value in analyzer.support(sums).items()}
    assert support == {
        "choice[all]": [3],
        "choice[pro]": [2],
        "choice[anti]": [1],
        "choice.difference[pro-anti]": [3],
    }


def test_chance_of_shortlists_is_the_mean_of_their_own() -> None:
    analyzer, batch = shortlisted(*PRO_ANTI), whole_words(4)
    chance = analyzer.chance(totals(analyzer, between(batch, torch.full((1, 4, 4), 0.25).double()), batch))
    assert {name: [round(x, 10) for x in value.tolist()] for name, value in chance.items()} == {
        "choice[all]": [round((0.5 + 0.5 + 1 / 3) / 3, 10)],
        "choice[pro]": [0.5],
        "choice[anti]": [round(1 / 3, 10)],
        "choice.difference[pro-anti]": [round(1 / 6, 10)],
    }


@pytest.mark.parametrize(
    ("groups", "differences"),
    [
        (("feminine", "masculine"), ["choice.difference[feminine-masculine]"]),
        (("pro",), []),
        (("pro", "masculine"), []),
        (
            ("anti", "pro", "feminine", "masculine"),
            ["choice.difference[pro-anti]", "choice.difference[feminine-masculine]"],
        ),
    ],
)
def test_a_difference_needs_both_groups(groups: tuple[str, ...], differences: list[str]) -> None:
    analyzer = shortlisted(*[question(0, 2, (0, 1), {0}, (f"choice[{group}]",)) for group in groups])
    assert [metric.name for metric in analyzer.metrics if "difference" in metric.name] == differences


def test_inputs_without_a_question_add_nothing() -> None:
    analyzer, batch = shortlisted(*PRO_ANTI), whole_words(4, 2, inputs=[5, 3])
    sums = analyzer.observe(between(batch, *random_heads(2, 4, 2)), batch)
    assert sums["correct"].tolist() == [[[0] * 3] * 2] * 2
    assert sums["total"].tolist() == sums["by_chance"].tolist() == [[[0] * 3]] * 2
    assert analyzer.score({key: value.sum(dim=0) for key, value in sums.items()})["choice[all]"].isnan().all()


def test_without_any_question_there_is_nothing_to_be_right_about() -> None:
    batch = whole_words(4)
    sums = shortlisted().observe(between(batch, *random_heads(2, 4)), batch)
    assert sums["correct"].shape == (1, 2, 0)
    assert sums["total"].shape == sums["by_chance"].shape == (1, 1, 0)


# ------------------------------------------------------------------------------------------------------------- phrases

#                 her        very       old        cat        saw         the        dog        !
MIAOW = parsed(
    "her PRON 4 nmod:poss",
    "very ADV 3 advmod",
    "old ADJ 4 amod",
    "cat NOUN 5 nsubj",
    "saw VERB 0 root",
    "the DET 7 det",
    "dog NOUN 5 obj",
    "! PUNCT 5 punct",
)
# phrases: her very old cat | saw | the dog | !   words with a neighbour of their own on one side only: cat, dog (left),
# the (right); "her" has no neighbour on the left
FORWARDS, BACKWARDS = (1, 2, 3, 4, 5, 6, 7, None), (None, 0, 1, 2, 3, 4, 5, 6)


@pytest.mark.parametrize("choices", [FORWARDS, BACKWARDS])
def test_a_head_of_a_fixed_offset_gets_one_half(choices: tuple[int | None, ...]) -> None:
    scores = scores_of(phrases(MIAOW), between(whole_words(8), looking(choices)), whole_words(8))
    assert scores["phrase.neighbour"] == [0.5]


def test_a_head_that_keeps_to_the_phrase() -> None:
    kept = looking((1, 0, 1, 2, 3, 6, 5, 6), (1, 0, 1, 4, 3, 4, 5, 6), (1, 0, 1, 2, 3, 4, 7, 6))
    analyzer = phrases(MIAOW)
    scores = scores_of(analyzer, between(whole_words(8), kept), whole_words(8))
    # of cat and dog both, one and one look left; of "the" the first alone looks right
    assert scores["phrase.neighbour"] == [1, 0.25, 0.25]
    sums = totals(analyzer, between(whole_words(8), kept), whole_words(8))
    assert sums["hits"].tolist() == [[2, 1], [1, 0], [1, 0]]
    assert analyzer.support(sums)["phrase.neighbour"].tolist() == [3]


def test_equal_attention_to_both_neighbours_is_no_hit() -> None:
    alike = torch.full((1, 8, 8), 0.1, dtype=torch.float64)
    assert scores_of(phrases(MIAOW), between(whole_words(8), alike), whole_words(8))["phrase.neighbour"] == [0]


def test_a_neighbour_without_a_token_is_none() -> None:
    batch = tokens_of("0 1 2 3 5 6 7")  # "saw" has none, so that cat and "the" stand between no two neighbours
    sums = totals(phrases(MIAOW), between(batch, looking(FORWARDS)), batch)
    assert sums["cases"].tolist() == [[1, 0]]
    assert phrases(MIAOW).support(sums)["phrase.neighbour"].tolist() == [0]  # both sides are needed


def test_previous_words_of_the_phrase_against_others() -> None:
    drawn = torch.zeros(1, 8, 8, dtype=torch.float64)
    for word, paid in enumerate((0.1, 0.2, 0.6, 0.4, 0.3, 0.5, 0.1), start=1):
        drawn[0, word, word - 1] = paid
    analyzer = phrases(MIAOW)
    scores = scores_of(analyzer, between(whole_words(8), drawn), whole_words(8))
    # very, old, cat, dog: (.1 + .2 + .6 + .5) / 4; saw, the, "!": (.4 + .3 + .1) / 3
    assert scores["phrase.difference[previous]"] == [round(1.4 / 4 - 0.8 / 3, 10)]
    support = analyzer.support(totals(analyzer, between(whole_words(8), drawn), whole_words(8)))
    assert support["phrase.difference[previous]"].tolist() == [7]


def test_a_causal_model_has_previous_words_and_no_neighbours_to_choose_between() -> None:
    analyzer, batch = phrases(MIAOW, is_causal=True), whole_words(8)
    drawn = torch.zeros(1, 8, 8, dtype=torch.float64)
    for word, paid in enumerate((0.9, 0.2, 0.6, 0.4, 0.3, 0.5, 0.1), start=1):
        drawn[0, word, word - 1] = paid
    attention = between(batch, drawn, is_causal=True)
    # "her" is the sink, and the pair of "very" and "her" does not count
    assert scores_of(analyzer, attention, batch)["phrase.difference[previous]"] == [round(1.3 / 3 - 0.8 / 3, 10)]
    support = analyzer.support(totals(analyzer, attention, batch))
    assert support["phrase.neighbour"].tolist() == [0]
    assert support["phrase.difference[previous]"].tolist() == [6]


def test_attention_to_punctuation_and_borders() -> None:
    marked = parsed("Yes INTJ 0 root", ", PUNCT 1 punct", "so ADV 1 advmod", ". PUNCT 1 punct")
    drawn = heads([".2 .1 .3 .4", ".5 .1 .2 .2", ".1 .6 .1 .2", ".3 .2 .4 .1"])
    analyzer = phrases(marked)
    scores = scores_of(analyzer, between(whole_words(4), drawn), whole_words(4))
    # never from a word to itself: (.1 + .4) + .2 + (.6 + .2) + .2 of four rows
    assert scores["border.punctuation"] == [round(1.7 / 4, 10)]
    assert scores["border.final"] == [round((0.4 + 0.2 + 0.2) / 3, 10)]  # of the three words that are not it
    assert scores["border.first_word"] == [round((0.5 + 0.1 + 0.3) / 3, 10)]
    # "." for yes, yes for ",", "," for so, so for "."
    assert scores["border.strongest"] == [0.5]
    support = analyzer.support(totals(analyzer, between(whole_words(4), drawn), whole_words(4)))
    found = {name: value.tolist() for name, value in support.items() if name.startswith("border")}
    assert found == {
        "border.punctuation": [4],
        "border.final": [3],
        "border.first_word": [3],
        "border.strongest": [4],
    }


def test_a_sentence_that_ends_in_a_word_has_no_final_punctuation() -> None:
    marked = parsed(", PUNCT 2 punct", "so ADV 0 root")
    analyzer = phrases(marked)
    sums = totals(analyzer, between(whole_words(2), looking((1, 0))), whole_words(2))
    assert analyzer.support(sums)["border.final"].tolist() == [0]
    assert analyzer.score(sums)["border.final"].isnan().all()
    assert analyzer.score(sums)["border.punctuation"].tolist() == [0.25]


def test_chance_of_phrases() -> None:
    marked = parsed("Yes INTJ 0 root", ", PUNCT 1 punct", "so ADV 1 advmod", ". PUNCT 1 punct")
    analyzer, batch = phrases(marked), whole_words(4)
    uniform = between(batch, torch.full((1, 4, 4), 0.25).double())
    chance = {name: value.tolist() for name, value in analyzer.chance(totals(analyzer, uniform, batch)).items()}
    assert chance["phrase.neighbour"] == [0.5]
    assert chance["border.strongest"] == pytest.approx([(2 / 3 + 1 / 3 + 2 / 3 + 1 / 3) / 4])
    assert chance["border.punctuation"] == [(0.5 + 0.25 + 0.5 + 0.25) / 4]


def test_sentences_without_marks_count_for_nothing() -> None:
    analyzer, batch = phrases(MIAOW, bare("a b c")), whole_words(8, 3)
    both = totals(analyzer, between(batch, *random_heads(2, 8, 3)), batch)
    alone = totals(analyzer, between(whole_words(8), random_heads(2, 8, 3)[0]), whole_words(8))
    for key, value in alone.items():
        torch.testing.assert_close(both[key], value)


# ------------------------------------------------------------------------------------------------------------ contract


def every_analyzer() -> list[WordAnalyzer]:
    lists = [question(0, 3, (0, 1), {0}), question(0, 4, (0, 1, 3), {1}), question(2, 4, (0, 2), {0, 2})]
    return [syntax(*LISTED), phrases(*LISTED), shortlisted(*lists)]


@pytest.mark.parametrize("which", range(3), ids=["syntax", "phrases", "shortlisted"])
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 1, 0, 2]])
def test_padded_batches_in_any_order_equal_single_sentences(which: int, order: list[int]) -> None:
    analyzer, counts = every_analyzer()[which], [len(sentence.words) for sentence in LISTED]
    probs = random_heads(3, *counts)
    batch = whole_words(*[counts[number] for number in order], inputs=order)
    together = analyzer.observe(between(batch, *[probs[number] for number in order]), batch)
    alone = []
    for number in order:
        single = whole_words(counts[number], inputs=[number])
        alone.append(analyzer.observe(between(single, probs[number]), single))
    for key, value in together.items():
        expected = torch.cat([sums[key] for sums in alone])
        if key in analyzer.pooled:
            expected = expected.sum(dim=0, keepdim=True)
        torch.testing.assert_close(value, expected, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("which", range(3), ids=["syntax", "phrases", "shortlisted"])
def test_analyzers_change_nothing_that_they_are_shown(which: int) -> None:
    analyzer, batch = every_analyzer()[which], whole_words(5, 3)
    attention = between(batch, *random_heads(3, 5, 3))
    before = (attention.probs.clone(), attention.candidates.clone(), batch.words.clone())
    first = {key: value.clone() for key, value in analyzer.observe(attention, batch).items()}
    second = analyzer.observe(attention, batch)
    assert all(torch.equal(first[key], second[key]) for key in first)
    for kept, now in zip(before, (attention.probs, attention.candidates, batch.words), strict=True):
        assert torch.equal(kept, now)


@pytest.mark.parametrize("which", range(3), ids=["syntax", "phrases", "shortlisted"])
def test_names_of_scores_supports_and_metrics_agree_and_none_has_a_mean_of_inputs(which: int) -> None:
    analyzer, batch = every_analyzer()[which], whole_words(5)
    sums = totals(analyzer, between(batch, *random_heads(2, 5)), batch)
    names = [metric.name for metric in analyzer.metrics]
    assert list(analyzer.score(sums)) == names
    assert set(analyzer.support(sums)) == set(analyzer.chance(sums)) == analyzer.without_macro == set(names)


# -------------------------------------------------------------------------------------------- whole passes of a model

MAYOR = parsed(
    "The DET 2 det",
    "mayor NOUN 8 nsubj",
    "of ADP 5 case",
    "New PROPN 5 compound",
    "York PROPN 2 nmod",
    "did AUX 8 aux",
    ", PUNCT 8 punct",
    "sleep VERB 0 root",
    ". PUNCT 8 punct",
)
SENTENCES = (DOG, CAT, MAYOR, SAW, MIAOW)
DRAWN = {  # word 1 of CAT and word 2 of SAW have no token
    False: [
        "S 0 1 1 2 3 3 3 4 S",
        "S 0 2 2 S",
        "S 0 1 1 2 3 4 4 - 5 6 7 8 S",
        "S 0 1 1 3 4 S",
        "S 0 1 2 3 4 4 5 6 7 S",
    ],
    True: ["0 1 1 2 3 3 3 4", "0 0 2 2", "0 1 1 2 3 4 4 - 5 6 7 8", "- 0 1 1 3 4", "0 1 2 3 4 4 5 6 7"],
}
WITHOUT = {1: (1,), 3: (2,)}
LISTS = [
    question(0, 3, (0, 1, 2), {1}, ("choice[all]", "choice[pro]")),
    question(2, 7, (1, 4, 5), {1, 4}, ("choice[all]", "choice[anti]")),
    question(2, 8, (2, 3), {3}, ("choice[all]",)),
    question(4, 6, (1, 2, 3, 5), {2}, ("choice[all]", "choice[pro]")),
]


def scored_inputs(is_causal: bool) -> dict[int, ScoredInput]:
    return {
        number: seen(len(s.words), is_causal=is_causal, has_sink=is_causal, without=WITHOUT.get(number, ()))
        for number, s in enumerate(SENTENCES)
    }


def analyzers_of(is_causal: bool) -> tuple[Syntax, Shortlisted, Phrases]:
    scored = scored_inputs(is_causal)
    arcs = syntax_arcs(SENTENCES, scored)
    lists = Shortlists.of(LISTS, ["choice[all]", "choice[pro]", "choice[anti]"])
    return (
        Syntax(arcs, 9, is_causal=is_causal),
        Shortlisted("choice", lists, 9),
        Phrases(phrasings(SENTENCES, scored), is_causal=is_causal),
    )


def batches(is_causal: bool, how: str) -> list[Batch]:
    rows = DRAWN[is_causal]
    orders = {"together": [[0, 1, 2, 3, 4]], "shuffled": [[4, 1], [2, 0, 3]], "alone": [[3], [1], [4], [0], [2]]}
    found = []
    for order in orders[how]:
        width = max(len(rows[number].split()) for number in order)
        missing = [[". "] * (width - len(rows[number].split())) for number in order]
        drawn = [f"{rows[number]} {''.join(dots)}" for number, dots in zip(order, missing, strict=True)]
        found.append(tokens_of(*drawn, inputs=order))
    return found


Words = tuple[np.ndarray, np.ndarray]  # [head, word, word_to] and [head, word, special]


def slow_words(probs: Tensor, drawing: str, words: int) -> Words:
    """Pooled by plain sums; `probs` [head, query, key] of a sentence without padding."""
    cells = drawing.split()
    members = [[place for place, cell in enumerate(cells) if cell == str(word)] for word in range(words)]
    specials = [place for place, cell in enumerate(cells) if cell == "S"]
    between_words, to_special = np.zeros((len(probs), words, words)), np.zeros((len(probs), words, len(specials)))
    for head, pattern in enumerate(probs.tolist()):
        for word, rows in enumerate(members):
            for row in rows:
                for to, columns in enumerate(members):
                    between_words[head, word, to] += sum(pattern[row][column] for column in columns) / len(rows)
                for place, column in enumerate(specials):
                    to_special[head, word, place] += pattern[row][column] / len(rows)
    return between_words, to_special


def slow_candidates(number: int, is_causal: bool) -> list[list[int]]:
    """Of each word those that it can choose."""
    words = [word for word in range(len(SENTENCES[number].words)) if word not in WITHOUT.get(number, ())]
    if is_causal:
        words = words[1:]
        return [
            [other for other in words if other < word] if word in words else []
            for word in range(len(SENTENCES[number].words))
        ]
    return [
        [other for other in words if other != word] if word in words else []
        for word in range(len(SENTENCES[number].words))
    ]


Item = tuple[str, int, int, bool]  # label, word, answer, whether the column is asked


def slow_items(sentence: Sentence) -> Iterator[Item]:
    heads_of, relations, tags = sentence.heads, sentence.relations, sentence.upos
    for word, head in enumerate(heads_of):
        if head < 0 or relations[word] in ("punct", "root"):
            continue
        yield f"{TO_HEAD}[{relations[word]}]", word, head, False
        yield f"{FROM_HEAD}[{relations[word]}]", word, head, True
        if relations[word] == "nsubj" and tags[head] in ("VERB", "AUX"):
            yield "subject_verb.subject_to_verb", word, head, False
            yield "subject_verb.verb_to_subject", head, word, False


def slow_choice(paid: np.ndarray, can: list[list[int]], word: int, is_column: bool) -> int | None:
    """Of one head, [word, word_to]: what it chooses from the word, or who attends to it most; None: no candidate."""
    if is_column:
        others = [other for other in range(len(can)) if word in can[other]]
        return max(others, key=lambda other: paid[other, word]) if others else None
    return max(can[word], key=lambda other: paid[word, other]) if can[word] else None


def slow_syntax(analyzer: Syntax, number: int, words: Words, is_causal: bool) -> dict[str, np.ndarray]:
    """The sums of one sentence, [head, ...]."""
    paid, to_special = words
    can, labels, count = slow_candidates(number, is_causal), analyzer.arcs.labels, len(SENTENCES[number].words)
    found = {key: np.zeros((len(paid), len(labels))) for key in ("correct", "expected_by_distance", "expected_by_word")}
    found |= {"total": np.zeros((1, len(labels))), "by_chance": np.zeros((1, len(labels)))}
    found |= {"along": np.zeros((len(paid), 3)), "between": np.zeros(len(paid)), "abstained": np.zeros(len(paid))}
    found |= {"profile": np.zeros((len(paid), 17)), "pairs": np.zeros((1, 17)), "rows": np.zeros(1)}
    pairs_of_heads = set()
    for label, word, answer, is_column in slow_items(SENTENCES[number]):
        rule = [(a, b) for a, b in product(range(count), repeat=2) if (a in can[b] if is_column else b in can[a])]
        if (word, answer) not in rule:
            continue
        place = labels.index(label)
        found["total"][0, place] += 1
        found["by_chance"][0, place] += 1 / sum(chooser == word for chooser, _ in rule)
        at_distance = [chooser for chooser, other in rule if other - chooser == answer - word]
        could = [chooser for chooser, other in rule if other == answer]
        if "subject_verb" not in label:
            pairs_of_heads.add((word, answer))
        for head, one in enumerate(paid):
            choices = {chooser: slow_choice(one, can, chooser, is_column) for chooser, _ in rule}
            found["correct"][head, place] += choices[word] == answer
            hits = [choices[chooser] - chooser == answer - word for chooser in at_distance]
            found["expected_by_distance"][head, place] += np.mean(hits)
            found["expected_by_word"][head, place] += np.mean([choices[chooser] == answer for chooser in could])
    for head, one in enumerate(paid):
        to_head = sum(one[word, other] for word, other in pairs_of_heads)
        to_dependent = sum(one[other, word] for word, other in pairs_of_heads)
        found["along"][head] = to_head, to_dependent, to_head + to_dependent
        found["between"][head] = one.sum() - np.trace(one)
        for word, others in enumerate(can):
            for other in others:
                found["profile"][head, other - word + 8] += one[word, other]
            rests = [one[word, to] for to in range(count) if to != word and to not in others]
            rests += to_special[head, word].tolist()
            if others and rests:
                found["abstained"][head] += max(rests) > max(one[word, other] for other in others)
    for word, others in enumerate(can):
        found["rows"][0] += bool(others)
        for other in others:
            found["pairs"][0, other - word + 8] += 1
    return found


def slow_shortlisted(analyzer: Shortlisted, number: int, words: Words, is_causal: bool) -> dict[str, np.ndarray]:
    paid, names = words[0], analyzer.shortlists.metrics
    correct, total, chance = np.zeros((len(paid), len(names))), np.zeros((1, len(names))), np.zeros((1, len(names)))
    for one in LISTS:
        for metric in one.metrics if one.input == number else ():
            place = names.index(metric)
            total[0, place] += 1
            chance[0, place] += one.chance
            for head in range(len(paid)):
                best = max(range(len(one.candidates)), key=lambda i, h=head, q=one: paid[h, q.word, q.candidates[i]])
                correct[head, place] += one.right[best]
    return {"correct": correct, "total": total, "by_chance": chance}


# phrases of every sentence, a letter each
PHRASES = {0: "aaabc", 1: "abb", 2: "aabbbcdce", 3: "abcde", 4: "aaaabccd"}


def slow_phrases(analyzer: Phrases, number: int, words: Words, is_causal: bool) -> dict[str, np.ndarray]:
    paid, names, can = words[0], PHRASES[number], slow_candidates(number, is_causal)
    punctuation = [word for word, tag in enumerate(SENTENCES[number].upos) if tag == "PUNCT"]
    last = len(names) - 1
    found = {"hits": np.zeros((len(paid), 2)), "previous": np.zeros((len(paid), 2)), "paid": np.zeros((len(paid), 3))}
    found |= {"cases": np.zeros((1, 2)), "previous_cases": np.zeros((1, 2)), "paying": np.zeros((1, 3))}
    found |= {"strongest": np.zeros(len(paid)), "by_chance": np.zeros(1)}
    for word, others in enumerate(can):
        left, right = (names[word] == names[n] if n in others else None for n in (word - 1, word + 1))
        if left is not None:
            found["previous_cases"][0, 0 if left else 1] += 1
            found["previous"][:, 0 if left else 1] += paid[:, word, word - 1]
        if left is not None and right is not None and left != right:
            own, other = (word - 1, word + 1) if left else (word + 1, word - 1)
            found["cases"][0, 0 if left else 1] += 1
            found["hits"][:, 0 if left else 1] += paid[:, word, own] > paid[:, word, other]
        marks = [[to for to in group if to in others] for group in (punctuation, [last] * (last in punctuation), [0])]
        for kind, group in enumerate(marks):
            found["paid"][:, kind] += paid[:, word, group].sum(axis=-1)
            found["paying"][0, kind] += bool(others) if kind == 0 else bool(group)
        if others:
            found["by_chance"][0] += len(marks[0]) / len(others)
            found["strongest"] += [slow_choice(one, can, word, False) in punctuation for one in paid]
    return found


SLOW = {"syntax": slow_syntax, "choice": slow_shortlisted, "phrases": slow_phrases}


def passed(family: str, how: str, way: Way = "fast") -> Tally:
    is_causal = family == "gpt2"
    return analyze(tiny_model(family), batches(is_causal, how), analyzers_of(is_causal), documents=5, way=way)


@pytest.fixture(scope="module", params=["bert", "gpt2"])
def slow(request: pytest.FixtureRequest) -> tuple[str, dict[str, dict[str, np.ndarray]]]:
    """A family, and by analyzer the sums of its tiny model, [input, layer, head, ...]."""
    is_causal, model = request.param == "gpt2", tiny_model(request.param)
    found: dict[str, list[list[dict[str, np.ndarray]]]] = {name: [] for name in SLOW}
    for number, drawing in enumerate(DRAWN[is_causal]):
        batch = tokens_of(drawing, inputs=[number])
        (layers,) = slow_attentions(
            model, {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask.long()}
        ).values()
        words = [slow_words(layer[0], drawing, len(SENTENCES[number].words)) for layer in layers]
        for analyzer in analyzers_of(is_causal):
            found[analyzer.name].append([SLOW[analyzer.name](analyzer, number, each, is_causal) for each in words])
    return request.param, {
        name: {key: np.array([[layer[key] for layer in one] for one in inputs]) for key in inputs[0][0]}
        for name, inputs in found.items()
    }


@pytest.mark.parametrize("way", ["fast", "exact"])
@pytest.mark.parametrize("how", ["together", "shuffled", "alone"])
def test_a_pass_equals_a_plain_loop(slow: tuple[str, dict[str, dict[str, np.ndarray]]], how: str, way: Way) -> None:
    family, expected = slow
    tally = passed(family, how, way)
    for name, of_analyzer in expected.items():
        totals_of = tally.model[name]
        for key, value in of_analyzer.items():
            if key in ("profile", "pairs"):
                found, by_hand = totals_of.pooled[key], value.sum(axis=0)
            else:
                found, by_hand = totals_of.sums[key], value
            # shares of words are divided in float32
            atol = 1e-5 if key.startswith("expected") else 1e-10
            np.testing.assert_allclose(found.double().numpy(), by_hand, rtol=0, atol=atol, err_msg=f"{name} {key}")
            if not (family == "gpt2" and key in ("hits", "cases")):  # of causal models no neighbour on the right
                assert found.numpy().any(), f"{name} {key} is empty, so that nothing was compared"


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_slices_of_few_rows_change_nothing(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = passed(family, "together")
    monkeypatch.setattr("headlens.analyze.capture", partial(capture, slice_bytes=5000))  # some two rows
    sliced = passed(family, "together")
    for name, totals_of in whole.model.items():
        for key, value in totals_of.sums.items():
            torch.testing.assert_close(sliced.model[name].sums[key], value, rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_chance_is_the_same_in_slices_of_few_rows(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = passed(family, "together")
    monkeypatch.setattr("headlens.analyze._UNIFORM_ROWS_BYTES", 1)
    sliced = passed(family, "together")
    for analyzer in analyzers_of(family == "gpt2"):
        levels = [
            analyzer.chance(
                {key: value.double().sum(dim=0) for key, value in tally.uniform[analyzer.name].sums.items()}
            )
            for tally in (whole, sliced)
        ]
        assert list(levels[0]) == list(levels[1]) == [metric.name for metric in analyzer.metrics]
        for name, level in levels[0].items():
            torch.testing.assert_close(levels[1][name], level, rtol=0, atol=1e-10, equal_nan=True)


def test_a_table_of_a_pass_has_chance_support_and_no_mean_of_inputs() -> None:
    is_causal, tally = False, passed("bert", "shuffled")
    table = tally.scores()
    names = [metric.name for metric in table.metrics]
    assert not any(name.endswith(".macro") for name in names)
    sizes = {0: 5, 1: 2, 2: 9, 3: 4, 4: 8}
    items = [
        (number, label)
        for number, s in enumerate(SENTENCES)
        for label, word, answer, _ in slow_items(s)
        if answer in slow_candidates(number, is_causal)[word]
    ]
    to_head = [number for number, label in items if label.startswith(TO_HEAD)]
    place = names.index(f"{TO_HEAD}[ALL]")
    assert table.support[place].tolist() == [[len(to_head)] * 4] * 3
    assert table.chance[place] == pytest.approx(np.mean([1 / (sizes[number] - 1) for number in to_head]))
    assert table.chance[names.index("phrase.neighbour")] == 0.5
    assert table.chance[names.index("choice[pro]")] == pytest.approx((1 / 3 + 1 / 4) / 2)


def test_tokens_and_words_are_observed_in_one_pass() -> None:
    batch_list = batches(False, "shuffled")
    both = analyze(tiny_model("bert"), batch_list, [Surface(), *analyzers_of(False)], documents=5)
    tokens = analyze(tiny_model("bert"), batches(False, "shuffled"), [Surface()], documents=5)
    words = passed("bert", "shuffled")
    for alone in (tokens, words):
        for name, totals_of in alone.model.items():
            for key, value in totals_of.sums.items():
                assert torch.equal(both.model[name].sums[key], value)
    assert any(metric.name.endswith(".macro") for metric in both.scores().metrics)
    assert all(metric.name.startswith("surface") for metric in both.scores().metrics if metric.is_macro)


def test_pooled_sums_are_kept_for_the_corpus_and_not_by_fold() -> None:
    tally = passed("bert", "shuffled")
    kept = tally.model["syntax"]
    assert set(kept.pooled) == {"profile", "pairs"}
    assert not {"profile", "pairs"} & set(kept.sums)
    assert kept.pooled["profile"].shape == (3, 4, 17)
    assert kept.macro == {}


def test_documents_of_several_sentences_share_a_fold() -> None:
    by_document = [replace(batch, document=batch.document % 2) for batch in batches(False, "shuffled")]
    tally = analyze(tiny_model("bert"), by_document, analyzers_of(False), documents=2)
    alone = passed("bert", "alone").model["syntax"].sums["correct"]
    expected = torch.stack([alone[[0, 2, 4]].sum(dim=0), alone[[1, 3]].sum(dim=0)])
    assert torch.equal(tally.model["syntax"].sums["correct"], expected)


@pytest.mark.parametrize("which", range(3), ids=["syntax", "shortlisted", "phrases"])
def test_nan_is_refused_by_every_analyzer_of_words(which: int) -> None:
    model = tiny_model("bert")
    with torch.no_grad():
        model.encoder.layer[1].attention.self.query.weight[0, 0] = float("nan")
    with pytest.raises(CaptureError, match="Layer 1 gave NaN"):
        analyze(model, batches(False, "shuffled"), [analyzers_of(False)[which]], documents=5)


@pytest.mark.parametrize(
    ("which", "named"),
    [(0, "document 3 "), (1, "one of the documents 0 to 4 "), (2, "document 3 ")],
    ids=["syntax", "shortlisted", "phrases"],
)
def test_nan_is_refused_with_its_document(which: int, named: str) -> None:
    # only the sentence of document 3 has a token of this id
    (batch,) = batches(False, "together")
    batch.input_ids[3, 2] = 98
    assert int((batch.input_ids == 98).sum()) == 1
    model = tiny_model("bert")
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[98] = float("nan")
    with pytest.raises(CaptureError, match=f"Layer 0 gave NaN or infinite attention on {named}"):
        analyze(model, [batch], [analyzers_of(False)[which]], documents=5)


def test_intervals_resample_documents_of_words_too() -> None:
    """A metric that is the same in every document has an interval of no width, and others have it around the value."""
    table = passed("bert", "together").scores(seed=1)
    names = [metric.name for metric in table.metrics]
    place = names.index("syntax.mass[either]")
    assert (table.low[place] < table.values[place]).all()
    assert (table.values[place] < table.high[place]).all()
