"""A profile of annotated words: what is in the folder, what the notes say, and what small corpora do to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

import headlens
from headlens import Choice, Document, HeadlensError, Profile, Sentence
from headlens.documents import Candidate
from headlens.testing import tiny_model

TREEBANK = Path(__file__).with_name("treebank.conllu")


@pytest.fixture(scope="module")
def tokenizer(minilm_path: Path) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(minilm_path)


@pytest.fixture(scope="module")
def run(tokenizer: PreTrainedTokenizerBase) -> Any:
    def profile(corpus: Any, family: str = "bert", **options: Any) -> Profile:
        model = tiny_model(family, vocab_size=30522)
        return headlens.profile(model, corpus, tokenizer=tokenizer, **options)

    return profile


def sentence(heads: tuple[int, ...] | None = (1, -1, 1), upos: tuple[str, ...] | None = None) -> Sentence:
    words = ("dogs", "chase", "cats")
    relations = None if heads is None else ("nsubj", "root", "obj")
    return Sentence(words, "dogs chase cats", ((0, 4), (5, 10), (11, 15)), upos, None, heads, relations)


def test_what_is_saved_is_loaded(run: Any, tmp_path: Path) -> None:
    profile = run(f"gum:{TREEBANK}")
    profile.save(tmp_path)
    names = {"scores.parquet", "scores.csv", "report.html", "profile.json", "evidence.csv", "tests.parquet"}
    names |= {"similarity.parquet", "similarity.csv", "roles.json", "examples.json", "figures"}
    assert {file.name for file in tmp_path.iterdir()} == names
    loaded = Profile.load(tmp_path)
    assert loaded.scores.equals(profile.scores)
    assert loaded.evidence is not None
    assert loaded.evidence.names == profile.evidence.names
    np.testing.assert_array_equal(loaded.evidence.q, profile.evidence.q)


def test_evidence_of_an_earlier_profile_does_not_stay(run: Any, tmp_path: Path) -> None:
    run(f"gum:{TREEBANK}").save(tmp_path)
    run(headlens.texts(["plain text of no treebank"])).save(tmp_path)
    assert not (tmp_path / "evidence.csv").exists()
    assert not (tmp_path / "tests.parquet").exists()
    assert Profile.load(tmp_path).evidence is None


def test_inputs_are_counted(run: Any) -> None:
    corpus = run(f"gum:{TREEBANK}").provenance["corpus"]
    assert (corpus["documents"], corpus["inputs"], corpus["single_word"]) == (2, 8, 1)
    assert corpus["files"][0]["kind"] == "gum"
    assert corpus["coreference"]["inputs"] == 2
    assert corpus["syntax"]["dep_to_head"] == corpus["syntax"]["head_to_dep"] == corpus["syntax"]["dependencies"]


def test_a_treebank_without_coreference_says_so(run: Any) -> None:
    profile = run(f"conllu:{TREEBANK}")
    assert not [name for name in profile.scores.names if name.startswith("coref")]
    assert "The corpus marks no coreference, so there are no scores of it." in profile.provenance["notes"]


def test_a_causal_model_is_asked_in_one_direction(run: Any) -> None:
    profile = run(f"gum:{TREEBANK}", "gpt2")
    asked = profile.provenance["corpus"]["syntax"]
    assert asked["dep_to_head"] + asked["head_to_dep"] == asked["dependencies"]
    assert any("dependencies" in note for note in profile.provenance["notes"])


@pytest.mark.parametrize("upos", [None, ("NOUN", "VERB", "NOUN")])
def test_one_sentence_is_enough(run: Any, upos: tuple[str, ...] | None) -> None:
    document = Document.of_sentences([sentence(upos=upos)], "by hand")
    profile = run([document])
    assert profile.scores.support[profile.scores.index("syntax.dep_to_head[nsubj]")].max() == 1
    assert {row.verdict for row in profile.evidence.metrics} == {"too few"}
    assert list(profile.evidence.metrics[0].baselines) == ["profile", "constant offset"]


@pytest.mark.parametrize("further", [{"controls": 1}, {"ensembles": True}, {"probe": True}])
@pytest.mark.parametrize("heads", [None, (1, -1, 1)])
def test_further_analyses_of_next_to_nothing_are_notes(run: Any, further: Any, heads: Any) -> None:
    profile = run([Document.of_sentences([sentence(heads)], "by hand")], **further)
    (name,) = further
    if heads is None:
        assert any("nothing that heads can be right" in note for note in profile.provenance["notes"])
    elif name == "controls":
        assert profile.provenance["controls"]["copies"] == 1
    elif name == "probe":
        assert any(note.startswith("No probe was fitted") for note in profile.provenance["notes"])
    else:
        assert profile.provenance["ensembles"] == []


def test_a_limit_is_written_down(run: Any) -> None:
    profile = run(headlens.read_corpus(f"gum:{TREEBANK}", limit=1))
    assert (profile.provenance["corpus"]["limit"], profile.provenance["corpus"]["documents"]) == (1, 1)


def test_choices_of_several_sentences_are_refused(run: Any) -> None:
    choice = Choice(3, 4, (Candidate(0, 1, True), Candidate(2, 3, False)))
    document = Document.of_sentences([sentence(), sentence()], "by hand", choices=[choice])
    with pytest.raises(HeadlensError, match="must be one Sentence"):
        run([document])


def test_heads_that_are_counted_from_one_are_refused() -> None:
    with pytest.raises(HeadlensError, match="counted from 0"):
        replace(sentence(), heads=(2, 0, 2))
