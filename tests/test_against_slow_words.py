"""Scores of annotated words, from the file to the table, equal a slow loop over single unpadded sentences."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import slow_words
from slow_words import Passage, Tallies

import headlens
from headlens.scores import ScoreTable

# Two documents: a sentence of one word, multiword tokens that spell their words and one that does not, subtypes,
# a copula, an empty node, and entities that are mentioned again in other sentences
TREEBANK = Path(__file__).with_name("treebank.conllu")

SENTENCES = 40  # of the real treebanks


@dataclass
class Case:
    table: ScoreTable
    evidence: Any
    model: Any
    tokenizer: Any
    sentences: list[Passage]


@pytest.fixture(
    scope="module", params=["written by hand", pytest.param("en_gum-ud-dev.conllu", marks=pytest.mark.slow)]
)
def case(request: pytest.FixtureRequest, minilm_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """MiniLM in float64 over a small treebank, by headlens and ready for the slow loop."""
    from transformers import AutoModel, AutoTokenizer

    if request.param == "written by hand":
        file = TREEBANK
    else:
        whole = request.getfixturevalue("data_folder") / "ud" / request.param
        file = tmp_path_factory.mktemp("cut") / request.param
        file.write_text(first_sentences(whole, SENTENCES), encoding="utf-8")
    model = AutoModel.from_pretrained(minilm_path, attn_implementation="eager").double().eval()
    tokenizer = AutoTokenizer.from_pretrained(minilm_path)
    profile = headlens.profile(headlens.load_model("minilm", dtype="float64"), f"gum:{file}")
    return Case(profile.scores, profile.evidence, model, tokenizer, slow_words.load_treebank(file))


def first_sentences(file: Path, count: int) -> str:
    return "\n\n".join(file.read_text(encoding="utf-8").split("\n\n")[:count]) + "\n\n"


def assert_same_counts(table: ScoreTable, slow: Tallies, names: list[str]) -> None:
    """Numbers of right decisions, but for near-ties: of those, one in a thousand decisions at most."""
    decisions = near = 0
    for name in names:
        right = table[name] * table.support[table.index(name)]
        assert np.all(table.support[table.index(name)] == slow[name].total), name
        np.testing.assert_allclose(right, np.rint(right), atol=1e-9, err_msg=name)
        assert np.all(np.abs(np.rint(right) - slow[name].right) <= slow[name].near), name
        decisions, near = decisions + slow[name].total * right.size, near + int(np.sum(slow[name].near))
    assert near <= decisions / 1000


def test_syntax(case: Case) -> None:
    slow = slow_words.slow_syntax(case.model, case.tokenizer, case.sentences)
    names = [n for n in case.table.names if n.startswith(("syntax.dep_to_head", "syntax.head_to_dep", "subject_verb"))]
    assert set(names) == {name for name in slow if not name.startswith("phrase")}
    assert_same_counts(case.table, slow, names)
    np.testing.assert_allclose(case.table["phrase.neighbour"], slow_words.phrase_accuracy(slow), atol=1e-10)


def test_coreference(case: Case) -> None:
    slow = slow_words.slow_coreference(case.model, case.tokenizer, case.sentences)
    names = [name for name in case.table.names if name.startswith("coref")]
    assert set(names) == set(slow["heads"])
    assert_same_counts(case.table, slow["heads"], names)
    for name in names:
        assert case.table.chance[case.table.index(name)] == pytest.approx(float(slow["chance"][name].accuracy))


def test_chance_and_constant_offsets(case: Case) -> None:
    chance, offsets = slow_words.slow_baselines(case.model, case.tokenizer, case.sentences)
    for name, tally in chance.items():
        assert case.table.chance[case.table.index(name)] == pytest.approx(float(tally.accuracy)), name
        best = max(float(of_offset[name].accuracy) for of_offset in offsets.values() if name in of_offset)
        assert case.evidence[name].baselines["constant offset"].full == pytest.approx(best), name


def test_profile_of_relative_positions(case: Case) -> None:
    slow = slow_words.slow_profile_null(case.model, case.tokenizer, case.sentences)
    names = [name for name in case.evidence.names if name in slow]
    assert len(names) > 10
    for name in names:
        profile = case.evidence.profile[case.evidence.names.index(name)]
        assert np.all(np.abs(profile * slow[name].total - slow[name].right) <= slow[name].near + 1e-3), name


def test_expectation_at_the_same_distance(case: Case) -> None:
    """The evidence shows the larger of two expectations, of which this is one."""
    slow = slow_words.slow_expected(case.model, case.tokenizer, case.sentences)
    names = [name for name in case.evidence.names if name in slow]
    assert len(names) > 10
    for name in names:
        shown = case.evidence.expected[case.evidence.names.index(name)] * slow[name].total
        assert np.all(shown >= slow[name].right - slow[name].near - 1e-3), name


@cache
def _causal_model(name: str) -> Any:
    from headlens.testing import tiny_model

    return tiny_model(name, vocab_size=30522)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_decoders(family: str, minilm_path: Path) -> None:
    """A random decoder on WordPiece: a special token in front, so no sink; only earlier words are candidates."""
    from transformers import AutoTokenizer

    model, tokenizer = _causal_model(family), AutoTokenizer.from_pretrained(minilm_path)
    tokenizer.model_input_names = ["input_ids", "attention_mask"]  # GPT-2 would embed the token types of a BERT
    table = headlens.profile(model, f"gum:{TREEBANK}", tokenizer=tokenizer).scores
    model.set_attn_implementation("eager")
    sentences = slow_words.load_treebank(TREEBANK)
    slow = slow_words.slow_syntax(model, tokenizer, sentences, is_causal=True)
    names = [n for n in table.names if n.startswith(("syntax.dep_to_head", "syntax.head_to_dep", "subject_verb"))]
    assert set(names) == set(slow)
    assert_same_counts(table, slow, names)
    heads = slow_words.slow_coreference(model, tokenizer, sentences, is_causal=True)["heads"]
    assert_same_counts(table, heads, [name for name in table.names if name.startswith("coref")])
