"""What the whole chain claims: nothing of noise or of a head of fixed offset, and what was planted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import headlens
from headlens.analyzers import Syntax
from headlens.annotated import Reading, scored_inputs
from headlens.documents import ROOT, Sentence
from headlens.encode import EncodedWords
from headlens.evidence import weigh
from headlens.evidence_table import ABOVE, INFORMED, Evidence
from headlens.gold.arcs import syntax_arcs
from headlens.pooling import candidates
from headlens.records import Batch, WordAttention
from headlens.rivals import OFFSET, constant_offset
from headlens.tally import Tally
from headlens.trials import trials_of

HEADS = 6
PREVIOUS, SUBJECT = 0, 1  # heads that are planted; the others are noise
RELATIONS = ("nsubj", "obj", "det", "amod", "case", "obl")


def random_sentence(random: np.random.Generator) -> Sentence:
    """Words under random heads; a determiner stands in front of its noun, all else anywhere."""
    size = int(random.integers(6, 15))
    heads = [int(head) for head in random.integers(0, size - 1, size)]
    heads = [head + (head >= word) for word, head in enumerate(heads)]  # any word but itself
    heads[0] = ROOT
    relations = [str(relation) for relation in random.choice(RELATIONS, size)]
    relations[0] = "root"
    for word in range(1, size):
        if relations[word] == "det":
            heads[word] = word - 1  # where a head of the previous word finds it
    words = tuple(f"w{number}" for number in range(size))
    spans = tuple((3 * number, 3 * number + 2) for number in range(size))
    return Sentence(words, " " * 3 * size, spans, None, None, tuple(heads), tuple(relations))


@dataclass
class Planted:
    """A corpus of sentences that are documents, and attention between their words."""

    sentences: list[Sentence]
    batch: Batch

    @classmethod
    def of(cls, sentences: list[Sentence]) -> Planted:
        width = max(len(sentence.words) for sentence in sentences)
        real = torch.zeros(len(sentences), width, dtype=torch.bool)
        words = torch.zeros(len(sentences), width, 2, dtype=torch.long)
        for row, sentence in enumerate(sentences):
            size = len(sentence.words)
            real[row, :size] = True
            words[row, :size] = torch.stack([torch.arange(size), torch.arange(1, size + 1)], dim=-1)
        index = torch.arange(len(sentences))
        return cls(sentences, Batch(real.long(), real, torch.zeros_like(real), index, {}, index, words))

    def evidence(self, probs: Tensor) -> Evidence:
        present = {row: np.ones(len(sentence.words), dtype=bool) for row, sentence in enumerate(self.sentences)}
        encoded = EncodedWords([self.batch], 99, *[0] * 11, present=present)
        arcs = syntax_arcs(self.sentences, scored_inputs(encoded, is_causal=False))
        syntax = Syntax(arcs, self.batch.input_ids.shape[1], is_causal=False)
        tally = Tally([syntax], len(self.sentences))
        attention = WordAttention(0, probs, probs[..., :0], candidates(self.batch, False))
        sums = {key: value[:, None] for key, value in syntax.observe(attention, self.batch).items()}
        tally.add({"syntax": sums}, {"syntax": sums}, self.batch.document)
        rivals = {"syntax": lambda fold_of, folds: {OFFSET: constant_offset(arcs, fold_of, folds)}}
        reading = Reading(encoded, np.arange(len(self.sentences)), (syntax,), rivals)
        return weigh(trials_of(tally, reading, syntax, is_causal=False))

    def noise(self, seed: int) -> Tensor:
        """[sentence, head, word, word]: rows that sum to less than 1."""
        size, width = self.batch.input_ids.shape
        drawn = torch.rand(size, HEADS, width, width, generator=torch.Generator().manual_seed(seed))
        real = self.batch.attention_mask
        drawn = drawn * real[:, None, :, None] * real[:, None, None, :]
        return drawn / (drawn.sum(dim=-1, keepdim=True) + 0.1)


@pytest.fixture(scope="module")
def planted() -> Planted:
    random = np.random.default_rng(5)
    return Planted.of([random_sentence(random) for _ in range(150)])


@pytest.mark.parametrize("seed", range(6))
def test_noise_gets_no_claim(planted: Planted, seed: int) -> None:
    evidence = planted.evidence(planted.noise(seed))
    assert evidence.claims() == []
    assert not [row.metric for row in evidence.metrics if row.verdict in (ABOVE, INFORMED)]
    p = evidence.p[np.isfinite(evidence.p)]
    assert 0 < (p < 0.05).mean() < 0.08  # two nulls must be beaten, so it is rather less than 5%


def test_a_head_of_the_previous_word_gets_no_claim(planted: Planted) -> None:
    probs = planted.noise(1)
    probs[:, PREVIOUS] *= 0.01
    probs[:, PREVIOUS].diagonal(-1, dim1=-2, dim2=-1).add_(0.9 * planted.batch.attention_mask[:, 1:])
    evidence = planted.evidence(probs)
    row = evidence["syntax.dep_to_head[det]"]
    assert (row.name, row.value) == ("L0H0", pytest.approx(1, abs=0.1))  # it does find the heads of determiners
    assert row.verdict not in (ABOVE, INFORMED)
    assert evidence.claims() == []


def test_a_head_of_subjects_is_found_with_its_relation_and_direction(planted: Planted) -> None:
    probs = planted.noise(2)
    for row, sentence in enumerate(planted.sentences):
        assert sentence.heads is not None
        assert sentence.relations is not None
        for word, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True)):
            if relation == "nsubj":
                probs[row, SUBJECT, word, head] = 0.9
    evidence = planted.evidence(probs)
    row = evidence["syntax.dep_to_head[nsubj]"]
    assert (row.name, row.value, row.verdict) == ("L0H1", 1.0, ABOVE)
    assert row.held_out == 1.0
    found = {(claim.metric, claim.name) for claim in evidence.claims()}
    assert ("syntax.dep_to_head[nsubj]", "L0H1") in found
    assert {name for _, name in found} == {"L0H1"}
    about = {metric for metric, _ in found}
    assert about <= {"syntax.dep_to_head[nsubj]", "syntax.head_to_dep[nsubj]", "syntax.dep_to_head[ALL]",
                     "syntax.head_to_dep[ALL]"}  # fmt: skip
    relation = next(one for one in evidence.relations if one.relation == "nsubj")
    assert (relation.metric, relation.name) == ("syntax.dep_to_head[nsubj]", "L0H1")


@pytest.mark.parametrize("seed", range(2))
def test_a_model_with_random_weights_gets_no_claim(seed: int, minilm_path: Path, data_folder: Path) -> None:
    """Its heads prefer some words to others whoever asks, which a null of position alone takes for syntax."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    tokenizer = AutoTokenizer.from_pretrained(minilm_path)
    torch.manual_seed(seed)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "intermediate_size": 64}
    model = BertModel(BertConfig(**sizes)).eval()
    corpus = headlens.read_corpus(f"conllu:{data_folder / 'ud' / 'en_ewt-ud-test.conllu'}", limit=60)
    evidence = headlens.profile(model, corpus, tokenizer=tokenizer).evidence
    assert evidence is not None
    assert evidence.claims() == []
    p = evidence.p[np.isfinite(evidence.q)]
    assert (p < 0.05).mean() < 0.08
