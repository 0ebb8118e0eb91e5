"""Agreement with heads taken out, beside an independent loop over a stock model with hooks."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from grammar_words import VOCABULARY
from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast

from headlens.behaviour.agreement import AgreementAblation, _sets, ablate_agreement
from headlens.corpora.grammar import GrammarText, grammar_texts
from headlens.errors import CorpusError, UnsupportedModel
from headlens.testing import tiny_model


@pytest.fixture(scope="module")
def texts() -> list[GrammarText]:
    return list(islice(grammar_texts(3), 14))


@pytest.fixture(scope="module")
def model() -> GPT2LMHeadModel:
    """Stock, with its vocabulary head; two layers of one head, so that there is one other head to draw."""
    base = tiny_model("gpt2", layers=2, heads=1, vocab_size=len(VOCABULARY), n_positions=128, n_embd=24, std=0.5)
    whole = GPT2LMHeadModel(base.config).double().eval()
    whole.transformer.load_state_dict(base.state_dict())
    whole.tie_weights()
    return whole


@torch.no_grad()
def slow_share(model: GPT2LMHeadModel, texts: list[GrammarText], silent: int | None, *, across: bool = False) -> float:
    """One text at a time, without headlens: a hook empties what goes into W_O of the silent layer."""
    hooks = []
    if silent is not None:
        projection = model.transformer.h[silent].attn.c_proj
        hooks.append(projection.register_forward_pre_hook(lambda _module, inputs: (torch.zeros_like(inputs[0]),)))
    right = []
    for text in texts:
        words = [word.lower() for sentence in text.document.sentences for word in sentence.words]
        ids = torch.tensor([[1, *(VOCABULARY.index(word) for word in words)]])
        logits = model(ids).logits[0]
        for forced in text.forced:
            if forced.kind == "verb number" and (forced.has_attractor or not across):
                before = logits[forced.word]  # of the token before the verb: <s> stands in front
                right.append(bool(before[VOCABULARY.index(forced.right)] > before[VOCABULARY.index(forced.wrong[0])]))
    for hook in hooks:
        hook.remove()
    return sum(right) / len(right)


@pytest.mark.parametrize("layer", [0, 1])
def test_shares_equal_those_of_a_stock_model_with_hooks(
    model: GPT2LMHeadModel, grammar_tokenizer: PreTrainedTokenizerFast, texts: list[GrammarText], layer: int
) -> None:
    found = ablate_agreement(model, grammar_tokenizer, texts, [(layer, 0)], sets=3)
    verbs = [forced for text in texts for forced in text.forced if forced.kind == "verb number"]
    assert found.verbs == len(verbs) > 25
    assert found.across == sum(forced.has_attractor for forced in verbs) > 1
    assert found.intact == slow_share(model, texts, None)
    assert found.ablated == slow_share(model, texts, layer)
    assert found.random == (slow_share(model, texts, 1 - layer),)  # the only other head, once
    assert found.intact_across == slow_share(model, texts, None, across=True)
    assert found.ablated_across == slow_share(model, texts, layer, across=True)
    assert found.random_across == (slow_share(model, texts, 1 - layer, across=True),)
    assert len({found.intact, found.ablated, *found.random}) == 3  # else the gates could do nothing


HEADS = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]


def test_random_sets_come_once_each_and_are_all_there_are_if_few():
    few = _sets(HEADS, 2, 10, np.random.default_rng(0))
    assert len(few) == len(set(few)) == 10  # five over two
    some = _sets(HEADS, 2, 9, np.random.default_rng(0))
    assert len({frozenset(heads) for heads in some}) == len(some) == 9
    assert all(len(set(heads)) == 2 and set(heads) <= set(HEADS) for heads in some)
    assert some == _sets(HEADS, 2, 9, np.random.default_rng(0)) != _sets(HEADS, 2, 9, np.random.default_rng(1))


def ablation(ablated: float, random: list[float]) -> AgreementAblation:
    return AgreementAblation(((0, 0),), 100, 0.9, ablated, tuple(random), 0, float("nan"), float("nan"))


@pytest.mark.parametrize(
    ("ablated", "random", "p", "does_harm"),
    [
        (0.5, [0.8] * 99, 0.01, True),
        (0.5, [0.8] * 95 + [0.5] * 4, 0.05, True),  # as bad counts as worse
        (0.5, [0.8] * 94 + [0.4] * 5, 0.06, False),
        (0.9, [0.95] * 99, 0.01, False),  # nothing was lost
        (0.5, [0.8] * 10, 1 / 11, False),  # too few sets to tell
    ],
)
def test_harm_is_more_than_nearly_all_random_sets_do(
    ablated: float, random: list[float], p: float, does_harm: bool
) -> None:
    found = ablation(ablated, random)
    assert found.p == pytest.approx(p)
    assert found.does_harm is does_harm
    assert found.to_dict()["heads"] == ["L0H0"]


@pytest.mark.parametrize(
    ("heads", "message"), [([], "Name at least one head"), ([(2, 0)], "no L2H0"), ([(0, 1)], "no L0H1")]
)
def test_heads_that_are_not_there_are_refused(
    model: GPT2LMHeadModel,
    grammar_tokenizer: PreTrainedTokenizerFast,
    texts: list[GrammarText],
    heads: list[tuple[int, int]],
    message: str,
) -> None:
    with pytest.raises(CorpusError, match=message):
        ablate_agreement(model, grammar_tokenizer, texts, heads)


def test_an_encoder_is_refused(grammar_tokenizer: PreTrainedTokenizerFast, texts: list[GrammarText]) -> None:
    bert = tiny_model("bert", vocab_size=len(VOCABULARY), max_position_embeddings=128)
    with pytest.raises(UnsupportedModel):
        ablate_agreement(bert, grammar_tokenizer, texts, [(0, 0)])


def test_texts_without_a_verb_to_ask_are_refused(
    model: GPT2LMHeadModel, grammar_tokenizer: PreTrainedTokenizerFast, texts: list[GrammarText], tmp_path: Path
) -> None:
    silent = [GrammarText(text.document, text.log_probability, ()) for text in texts]
    with pytest.raises(CorpusError, match="No verb of the texts"):
        ablate_agreement(model, grammar_tokenizer, silent, [(0, 0)])
