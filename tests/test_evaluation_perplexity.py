"""Perplexity beside a loop over single tokens, and masked tokens beside a loop over single masks."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from evaluated import (
    HEADED,
    SENTENCES,
    VOCABULARY,
    as_loaded,
    ids_of,
    log_probs_at,
    masked_log_prob,
    next_log_prob,
    whole_model,
    word_tokenizer,
)
from transformers import PreTrainedModel

from headlens.capture import capture
from headlens.corpora import texts
from headlens.documents import Document, Sentence
from headlens.errors import CorpusError, UnsupportedModel
from headlens.evaluation import TaskResult, evaluate
from headlens.evaluation.language import Asked, language_model
from headlens.evaluation.masked_words import MaskedWords
from headlens.evaluation.perplexity import Perplexity
from headlens.models import LoadedModel
from headlens.surgery import apply_plan, full_plan
from headlens.testing import tiny_model

CAUSAL = [family for family, kind in HEADED.items() if kind.endswith(("CausalLM", "LMHeadModel"))]
MASKED = [family for family, kind in HEADED.items() if kind.endswith("ForMaskedLM")]


def slow_losses(model: PreTrainedModel, text: str, window: int, stride: int, start: list[int]) -> list[float]:
    """In nats, one forward pass a token: what it sees is told from the first window that it is in."""
    ids, room = ids_of(text), window - len(start)
    losses = []
    for place in range(0 if start else 1, len(ids)):
        number = max(0, math.ceil((place + 1 - room) / stride))  # of that window
        end = min(room + number * stride, len(ids))
        seen = ids[max(0, end - room) : place]
        losses.append(-next_log_prob(model, [*start, *seen], ids[place]))
    return losses


@pytest.mark.parametrize("frame", ["<s> $A", "$A", "<s> $A </s>"])
@pytest.mark.parametrize(("window", "stride"), [(6, 1), (6, 2), (6, 4), (9, 5), (40, 20), (2, 1)])
def test_perplexity_equals_a_loop_over_single_tokens(frame: str, window: int, stride: int) -> None:
    model = whole_model("llama")
    found = evaluate(
        as_loaded(model, word_tokenizer(frame=frame)), Perplexity(texts(SENTENCES), window=window, stride=stride)
    )
    start = [VOCABULARY.index("<s>")] if "<s>" in frame else []
    expected = [slow_losses(model, text, window, stride, start) for text in SENTENCES]
    assert found.columns["tokens"].tolist() == [len(losses) for losses in expected]
    assert found.columns["loss"] == pytest.approx([sum(losses) for losses in expected], abs=1e-10)
    flat = np.concatenate(expected)
    assert found.value == pytest.approx(math.exp(flat.mean()), rel=1e-12)
    words = sum(len(text.split()) for text in SENTENCES)
    assert found.figure("perplexity per word").value == pytest.approx(math.exp(flat.sum() / words), rel=1e-12)
    assert found.facts["unscored_tokens"] == (0 if start else len(SENTENCES))


def test_the_stride_changes_what_is_seen() -> None:
    """Else the loop above could not tell strides apart."""
    loaded = as_loaded(whole_model("llama"), word_tokenizer())
    values = [evaluate(loaded, Perplexity(texts(SENTENCES), window=6, stride=stride)).value for stride in (1, 2, 4)]
    assert len({round(value, 6) for value in values}) == 3


@pytest.mark.parametrize("batch_tokens", [1, 17, 60])
def test_batches_change_nothing(batch_tokens: int) -> None:
    loaded, task = as_loaded(whole_model("gpt2"), word_tokenizer()), Perplexity(texts(SENTENCES), window=9)
    whole, parts = evaluate(loaded, task), evaluate(loaded, task, batch_tokens=batch_tokens)
    assert parts.columns["loss"] == pytest.approx(whole.columns["loss"], abs=1e-10)


def test_logits_of_a_few_tokens_at_a_time_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, task = as_loaded(whole_model("gpt2"), word_tokenizer()), Perplexity(texts(SENTENCES), window=9)
    whole = evaluate(loaded, task)
    monkeypatch.setattr("headlens.evaluation.language._ROWS", 3)
    assert evaluate(loaded, task).columns["loss"] == pytest.approx(whole.columns["loss"], abs=1e-10)


def test_hidden_states_that_are_projected_first_are_followed() -> None:
    """As of OPT 350m, whose logits are no product of hidden states and embeddings."""
    model = whole_model("opt", word_embed_proj_dim=16)
    found = evaluate(as_loaded(model, word_tokenizer()), Perplexity(texts(SENTENCES)))
    expected = [sum(slow_losses(model, text, 40, 20, [2])) for text in SENTENCES]
    assert found.columns["loss"] == pytest.approx(expected, abs=1e-9)


def test_a_model_that_knows_nothing_has_the_perplexity_of_its_vocabulary() -> None:
    model = whole_model("llama")
    with torch.no_grad():
        model.lm_head.weight.zero_()
    found = evaluate(as_loaded(model, word_tokenizer()), Perplexity(texts(SENTENCES)))
    assert found.value == pytest.approx(len(VOCABULARY))
    assert found.figure("perplexity per token").low == pytest.approx(len(VOCABULARY))


def test_words_are_those_of_the_annotation_where_there_is_one() -> None:
    sentence = Sentence(("the", "cat", "sleeps"), "the catsleeps", ((0, 3), (4, 7), (7, 13)))
    task = Perplexity([Document.of_sentences([sentence], "one"), *texts(["the dog is good"])])
    found = evaluate(as_loaded(whole_model("gpt2"), word_tokenizer()), task)
    assert found.columns["words"].tolist() == [3, 4]


def test_a_base_model_is_asked_with_its_tied_embeddings() -> None:
    base = tiny_model("gpt2", vocab_size=len(VOCABULARY))
    whole = whole_model("gpt2")
    task = Perplexity(texts(SENTENCES))
    found = [evaluate(as_loaded(model, word_tokenizer()), task).value for model in (base, whole)]
    assert found[0] == pytest.approx(found[1], rel=1e-12)


@pytest.mark.parametrize("family", CAUSAL + MASKED)
def test_logits_are_those_of_the_model_itself(family: str) -> None:
    model = whole_model(family)
    if family == "gemma2":  # transformers' own code makes NaN of padding outside of a sliding window in float64
        model = model.float()
    rows = [np.array(ids_of(text)) for text in SENTENCES]
    asked = [Asked(item, ids, np.arange(len(ids)), ids) for item, ids in enumerate(rows)]
    loaded = as_loaded(model, word_tokenizer())
    with torch.inference_mode():
        found = list(language_model(loaded).rows(asked, batch_tokens=60))
    assert [one.item for one, _ in found] == list(range(len(rows)))
    for one, logits in found:
        expected = torch.stack([log_probs_at(model, one.ids.tolist(), place) for place in one.read])
        assert torch.allclose(logits.log_softmax(dim=-1), expected, atol=1e-4 if family == "gemma2" else 1e-9, rtol=0)


def gated(loaded: LoadedModel, task: Perplexity | MaskedWords) -> TaskResult:
    gates = torch.ones(3, 4)
    gates[1, 2] = gates[0, 0] = 0
    with capture(loaded.model, gates=gates):
        return evaluate(loaded, task)


# a base encoder that was passed as an object has no vocabulary head
@pytest.mark.parametrize(("family", "with_head"), [("gpt2", True), ("gpt2", False), ("bert", True)])
def test_what_runs_is_the_model_given(family: str, with_head: bool) -> None:
    task = Perplexity(texts(SENTENCES)) if family == "gpt2" else MaskedWords(texts(SENTENCES))
    tokenizer = word_tokenizer()
    model = whole_model(family) if with_head else tiny_model(family, vocab_size=len(VOCABULARY))
    pruned = apply_plan(model, full_plan(model).without([(1, 2), (0, 0)]))
    intact, silent, gone = (
        evaluate(as_loaded(model, tokenizer), task),
        gated(as_loaded(model, tokenizer), task),
        evaluate(as_loaded(pruned, tokenizer), task),
    )
    assert gone.columns["loss"] == pytest.approx(silent.columns["loss"], abs=1e-9)
    assert np.abs(gone.columns["loss"] - intact.columns["loss"]).max() > 0.1


# -------------------------------------------------------------------------------------------------------- masked words


@pytest.mark.parametrize("family", ["bert", "distilbert", "albert"])
@pytest.mark.parametrize("batch_tokens", [1, 50, 4096])
def test_masked_tokens_equal_a_loop_over_single_masks(family: str, batch_tokens: int) -> None:
    model = whole_model(family)
    tokenizer = word_tokenizer(frame="<s> $A </s>")
    found = evaluate(as_loaded(model, tokenizer), MaskedWords(texts(SENTENCES)), batch_tokens=batch_tokens)
    loss, right = [], []
    for text in SENTENCES:
        ids = [2, *ids_of(text), 3]
        places = range(1, len(ids) - 1)
        loss.append(-sum(masked_log_prob(model, ids, place) for place in places))
        mask = VOCABULARY.index("<mask>")
        best = [int(log_probs_at(model, [*ids[:place], mask, *ids[place + 1 :]], place).argmax()) for place in places]
        right.append(sum(token == ids[place] for token, place in zip(best, places, strict=True)))
    tokens = sum(len(text.split()) for text in SENTENCES)
    assert found.columns["loss"] == pytest.approx(loss, abs=1e-9)
    assert found.columns["right"].tolist() == right
    assert found.value == sum(right) / tokens
    assert found.figure("pseudo-perplexity per token").value == pytest.approx(math.exp(sum(loss) / tokens))


def test_long_documents_are_cut_and_counted() -> None:
    model = whole_model("bert")
    tokenizer = word_tokenizer(frame="<s> $A </s>")
    long = " ".join(["the cat sees a dog ."] * 9)  # 54 tokens, of which 38 fit
    found = evaluate(as_loaded(model, tokenizer), MaskedWords(texts([long])))
    ids = ids_of(long)
    parts = [[2, *ids[:38], 3], [2, *ids[38:], 3]]
    expected = -sum(masked_log_prob(model, part, place) for part in parts for place in range(1, len(part) - 1))
    assert found.columns["loss"] == pytest.approx([expected], abs=1e-9)
    assert found.facts["cut_documents"] == 1


# -------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 41}, "the window is 41 tokens, the model takes 40"),
        ({"window": 1}, "the window must hold at least 2 tokens; got 1"),
        ({"window": 9, "stride": 9}, "a stride of 9 tokens leaves some unscored in a window of 9; take at most 8"),
    ],
)
def test_windows_that_do_not_fit_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        evaluate(as_loaded(whole_model("gpt2"), word_tokenizer(frame="$A")), Perplexity(texts(SENTENCES), **options))


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(CorpusError, match="the stride is a number of tokens from 1 on; got 0"):
        Perplexity(texts(SENTENCES), stride=0)


def test_single_tokens_ask_for_nothing() -> None:
    with pytest.raises(CorpusError, match="every document is a single token"):
        evaluate(as_loaded(whole_model("gpt2"), word_tokenizer(frame="$A")), Perplexity(texts(["cat", "dog"])))


def test_an_encoder_has_no_perplexity() -> None:
    with pytest.raises(UnsupportedModel, match="'tiny' sees the tokens that follow"):
        evaluate(as_loaded(whole_model("bert"), word_tokenizer()), Perplexity(texts(SENTENCES)))


def test_a_decoder_fills_no_gaps() -> None:
    with pytest.raises(UnsupportedModel, match="'tiny' is no encoder"):
        evaluate(as_loaded(whole_model("gpt2"), word_tokenizer()), MaskedWords(texts(SENTENCES)))


def test_an_encoder_without_a_head_for_masks_is_refused() -> None:
    base = tiny_model("bert", vocab_size=len(VOCABULARY))
    with pytest.raises(UnsupportedModel, match="'tiny' has no trained head for masked tokens"):
        evaluate(as_loaded(base, word_tokenizer()), MaskedWords(texts(SENTENCES)))


def test_a_model_in_train_mode_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="'tiny' is in train mode"):
        evaluate(as_loaded(whole_model("gpt2").train(), word_tokenizer()), Perplexity(texts(SENTENCES)))


def test_ids_that_the_model_does_not_know_are_refused() -> None:
    small = replace(as_loaded(tiny_model("gpt2", vocab_size=9), word_tokenizer()), name="small")
    with pytest.raises(UnsupportedModel, match="the model knows 9 tokens"):
        evaluate(small, Perplexity(texts(SENTENCES)))
