"""Phrases of drawn sentences: which neighbours belong together, and where the borders are."""

from __future__ import annotations

import pytest
from drawn_words import bare, parsed, seen

from headlens.documents import Sentence
from headlens.gold.phrases import Phrasing, phrasings

MAYOR = parsed(
    "The DET 2 det",
    "mayor NOUN 8 nsubj",
    "of ADP 5 case",
    "New PROPN 5 compound",
    "York PROPN 2 nmod",
    "did AUX 8 aux",
    "not PART 8 advmod",
    "sleep VERB 0 root",
    ". PUNCT 8 punct",
)


def phrasing_of(sentence: Sentence) -> Phrasing:
    return phrasings([sentence], {0: seen(len(sentence.words))})[0]


def with_left(sentence: Sentence) -> str:
    """A drawing: + where a word is of one phrase with the word before it."""
    return "".join("+" if marked else "." for marked in phrasing_of(sentence).with_left)


def test_neighbours_are_of_one_phrase_if_relations_link_them_directly_or_over_others() -> None:
    # "of" and "New" are linked over "York"; "did" and "sleep" are linked, but "not" stands between them
    assert with_left(MAYOR) == ".+.++...."


@pytest.mark.parametrize(
    ("relation", "is_internal"),
    [
        *((name, True) for name in ("det", "amod", "nummod", "compound", "flat", "fixed", "case", "clf", "goeswith")),
        *((name, True) for name in ("aux", "aux:pass", "det:predet", "nmod:poss")),
        *((name, False) for name in ("nmod", "nmod:tmod", "obj", "nsubj", "punct", "cop", "mark", "conj", "advmod")),
    ],
)
def test_relations_that_hold_a_phrase_together(relation: str, is_internal: bool) -> None:
    assert with_left(parsed(f"x X 2 {relation}", "y NOUN 0 root")) == (".+" if is_internal else "..")


@pytest.mark.parametrize(("tag", "is_internal"), [("ADJ", True), ("ADV", True), ("VERB", False), ("NOUN", False)])
def test_an_adverb_is_of_the_phrase_of_an_adjective_or_adverb(tag: str, is_internal: bool) -> None:
    assert with_left(parsed("very ADV 2 advmod", f"old {tag} 0 root")) == (".+" if is_internal else "..")


def test_a_chain_of_relations_is_one_phrase() -> None:
    # very -> old -> cat; her -> cat; four words that no single relation links
    chain = parsed("her PRON 4 nmod:poss", "very ADV 3 advmod", "old ADJ 4 amod", "cat NOUN 0 root", "and CCONJ 4 cc")
    assert with_left(chain) == ".+++."


def test_a_head_on_the_left_holds_its_phrase_together_too() -> None:
    assert (
        with_left(parsed("Anna PROPN 0 root", "Maria PROPN 1 flat", "Berg PROPN 1 flat", "left VERB 1 acl")) == ".++."
    )


def test_punctuation_and_borders() -> None:
    marks = phrasing_of(
        parsed("( PUNCT 2 punct", "Yes INTJ 0 root", ", PUNCT 2 punct", "so ADV 2 advmod", "! PUNCT 2 punct")
    )
    assert marks.is_punctuation.tolist() == [True, False, True, False, True]
    assert marks.is_final.tolist() == [False, False, False, False, True]
    assert marks.is_first.tolist() == [True, False, False, False, False]
    assert marks.annotated.tolist() == [True] * 5


def test_a_last_word_that_is_no_punctuation_ends_nothing() -> None:
    assert phrasing_of(parsed("! PUNCT 2 punct", "Yes INTJ 0 root")).is_final.tolist() == [False, False]


def test_only_sentences_that_are_read_and_annotated_have_marks() -> None:
    untagged = Sentence(MAYOR.words, MAYOR.text, MAYOR.spans, heads=MAYOR.heads, relations=MAYOR.relations)
    unrelated = Sentence(MAYOR.words, MAYOR.text, MAYOR.spans, upos=MAYOR.upos, heads=MAYOR.heads)
    headless = Sentence(MAYOR.words, MAYOR.text, MAYOR.spans, upos=MAYOR.upos, relations=MAYOR.relations)
    listed = [MAYOR, bare("a b"), MAYOR, untagged, unrelated, headless, MAYOR]
    scored = {number: seen(len(listed[number].words)) for number in (6, 0, 1, 3, 4, 5)}
    assert list(phrasings(listed, scored)) == [0, 6]
