"""The parts of a profile beside a corpus: each by name, and none that a model cannot be asked for stops the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from grammar_words import VOCABULARY
from transformers import PreTrainedTokenizerFast

from headlens import Profile, profile, texts
from headlens.behaviour.parts import PARTS, USUAL, chosen_parts
from headlens.corpora.grammar import read_grammar
from headlens.effects import Ablation
from headlens.errors import OutputError
from headlens.testing import tiny_model

TEXTS = texts(["The dog sees Anna near the river. She sleeps.", "Peter has sold the old books.", "They often sing!"])


def small(family: str = "gpt2", **more: Any) -> Any:
    sizes = {"vocab_size": len(VOCABULARY), "layers": 2, "heads": 2}
    positions = {"n_positions": 128} if family == "gpt2" else {"max_position_embeddings": 128}
    return tiny_model(family, **{**sizes, **positions, **more})


@pytest.fixture(scope="module")
def found(grammar_tokenizer: PreTrainedTokenizerFast) -> Profile:
    return profile(small(), TEXTS, tokenizer=grammar_tokenizer, parts=PARTS)


def families(found: Profile) -> set[str]:
    return {metric.family for metric in found.scores}


def test_all_parts_have_their_scores(found: Profile) -> None:
    assert families(found) == {"position", "surface", "contribution", "repetition", "circuits", "retrieval"}
    assert found.similarity is not None
    assert found.similarity.distance.shape == (4, 4)


def test_usual_parts_are_all_but_retrieval(grammar_tokenizer: PreTrainedTokenizerFast) -> None:
    usual = profile(small(), TEXTS, tokenizer=grammar_tokenizer)
    assert set(PARTS) - set(USUAL) == {"retrieval", "ablation"}
    assert families(usual) == {"position", "surface", "contribution", "repetition", "circuits"}


def test_examples_and_ablation_come_after_the_roles(found: Profile) -> None:
    assert found.examples is not None
    assert {(example.layer, example.head) for example in found.examples} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    effects = Ablation.from_dict(found.provenance["ablation"]).effects
    assert {(effect.layer, effect.head) for effect in effects} == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_without_their_parts_no_examples_are_looked_for_and_no_head_is_taken_out(
    grammar_tokenizer: PreTrainedTokenizerFast,
) -> None:
    found = profile(small(), TEXTS, tokenizer=grammar_tokenizer, parts=())
    assert found.examples is None
    assert "ablation" not in found.provenance


@pytest.mark.parametrize("left_out", ["contribution", "repetition", "circuits", "similarity"])
def test_a_part_can_be_left_out(
    grammar_tokenizer: PreTrainedTokenizerFast,
    left_out: str,
) -> None:
    found = profile(small(), TEXTS, tokenizer=grammar_tokenizer, parts=set(USUAL) - {left_out})
    assert left_out not in families(found)
    assert (found.similarity is None) is (left_out == "similarity")


def test_lexical_scores_come_with_annotated_words_and_can_be_left_out(
    grammar_tokenizer: PreTrainedTokenizerFast,
) -> None:
    documents = read_grammar(40, seed=1)
    with_them = profile(small(), documents, tokenizer=grammar_tokenizer, parts={"lexical"})
    without = profile(small(), documents, tokenizer=grammar_tokenizer, parts=set())
    assert families(with_them) - families(without) == {"lexical"}


def test_unknown_parts_are_refused_before_anything_is_run(
    grammar_tokenizer: PreTrainedTokenizerFast,
) -> None:
    with pytest.raises(OutputError, match="no part of a profile called magic; there are: contribution"):
        profile(small(), TEXTS, tokenizer=grammar_tokenizer, parts={"magic"})


def test_what_a_model_cannot_be_asked_is_told_and_stops_nothing_else(
    grammar_tokenizer: PreTrainedTokenizerFast,
) -> None:
    found = profile(small("bert"), TEXTS, tokenizer=grammar_tokenizer, parts=PARTS)
    assert {"repetition", "contribution", "circuits"} <= families(found)
    (note,) = [note for note in found.provenance["notes"] if note.startswith("There are no scores of retrieval: ")]
    assert len(note) > 50


def test_the_facts_name_the_random_tokens_and_the_pairs(found: Profile) -> None:
    facts = found.provenance
    ids = np.array(facts["repetition"]["ids"])
    assert ids.shape == (facts["repetition"]["batch"], facts["repetition"]["period"])
    assert set(facts["circuits"]["pairs"]) == {"q", "k", "v"}
    assert facts["circuits"]["pairs"]["k"][0]["pair"].startswith("L0H")


def test_a_profile_is_read_back_with_its_similarity(found: Profile, tmp_path: Any) -> None:
    found.save(tmp_path)
    again = Profile.load(tmp_path)
    assert again.scores.equals(found.scores)
    assert again.similarity is not None
    assert found.similarity is not None
    assert np.array_equal(again.similarity.distance, found.similarity.distance)
    assert again.provenance == found.provenance


def test_files_of_an_earlier_profile_are_taken_away(found: Profile, tmp_path: Any) -> None:
    found.save(tmp_path)
    replace(found, similarity=None).save(tmp_path)
    assert not list(tmp_path.glob("similarity.*"))
    assert Profile.load(tmp_path).similarity is None


def test_parts_are_the_usual_ones_with_some_and_without_others():
    assert chosen_parts((), ()) == set(USUAL)
    assert chosen_parts(["retrieval"], ["circuits"]) == {*USUAL, "retrieval"} - {"circuits"}


@pytest.mark.parametrize(
    ("also", "without", "message"),
    [
        ((), ["circuit"], "There is no part of a profile called circuit; there are: "),
        (["induction"], (), "There is no part of a profile called induction; there are: "),
        (["retrieval", "circuits"], ["circuits"], "either wanted or left out, not both: circuits"),
    ],
)
def test_parts_that_are_not_there_or_named_twice_are_refused(also, without, message):
    with pytest.raises(OutputError, match=message):
        chosen_parts(also, without)
