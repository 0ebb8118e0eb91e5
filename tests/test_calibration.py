"""Texts that choose and texts that judge stay apart, and what judges gives what plain torch gives."""

from __future__ import annotations

import copy
import string
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from pruned_models import with_head
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from headlens.calibration import (
    Calibration,
    calibrate,
    calibrate_to_fit,
    judged,
    objective_for,
    reads_windows,
    tokens_of,
)
from headlens.corpora import Corpus, read_corpus, texts
from headlens.documents import Document, Sentence
from headlens.errors import CorpusError, UnsupportedModel
from headlens.importance.inputs import TextBatch
from headlens.models import LoadedModel, load_whole, network_of

HEAD_DIM = 24  # of the bundled models
WORDS = "goat old dog river queen small farmer wise".split()
Batches = Sequence[TextBatch]


@cache
def tiny(name: str = "tiny-bert") -> LoadedModel:
    return load_whole(name, check=False)


@cache
def own_texts(count: int = 12) -> Corpus:
    """Of different lengths, and no two alike."""
    return Corpus(
        texts([" ".join(["the", *WORDS[: 1 + place % 8], *WORDS[: 1 + place // 8]]) for place in range(count)])
    )


@cache
def calibration(name: str = "tiny-bert", count: int = 5) -> Calibration:
    return calibrate(tiny(name), own_texts(), texts=count)


def rows(batches: Batches) -> list[tuple[int, ...]]:
    return sorted(
        tuple(ids[mask.bool()].tolist())
        for batch in batches
        for ids, mask in zip(batch.input_ids, batch.attention_mask, strict=True)
    )


def silenced(model: PreTrainedModel, heads: Sequence[tuple[int, int]]) -> Any:
    """A copy of a bundled model in which nothing reads these heads."""
    quiet: Any = copy.deepcopy(model)
    for layer, head in heads:
        columns = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
        if model.config.model_type == "bert":
            quiet.bert.encoder.layer[layer].attention.output.dense.weight.data[:, columns] = 0
        else:
            quiet.transformer.h[layer].attn.c_proj.weight.data[columns] = 0
    return quiet


@torch.no_grad()
def singly(model: Any, batches: Batches) -> list[tuple[Tensor, Tensor]]:
    """Last hidden states and logits of every row, alone and without padding, in float64."""
    wide = copy.deepcopy(model).double()
    found = []
    for batch in batches:
        for ids, mask in zip(batch.input_ids, batch.attention_mask, strict=True):
            said = wide(ids[mask.bool()][None], output_hidden_states=True)
            found.append((said.hidden_states[-1][0], said.logits[0]))
    return found


def cosine_by_hand(before: Any, after: Any, batches: Batches) -> list[float]:
    """1 - cosine of mean-pooled last hidden states, row by row."""
    pairs = zip(singly(before, batches), singly(after, batches), strict=True)
    return [1 - float(torch.cosine_similarity(one[0].mean(0), two[0].mean(0), dim=0)) for one, two in pairs]


def kl_by_hand(before: Any, after: Any, batches: Batches) -> list[float]:
    found = []
    for (_, old), (_, new) in zip(singly(before, batches), singly(after, batches), strict=True):
        p, q = old.log_softmax(-1), new.log_softmax(-1)
        found.append(float((p.exp() * (p - q)).sum(-1).mean()))
    return found


def hidden_by_hand(before: Any, after: Any, batches: Batches) -> list[float]:
    old, new = ([hidden for hidden, _ in singly(model, batches)] for model in (before, after))
    together = torch.cat(old)
    variance = (together - together.mean(0)).square().sum(-1).mean()
    return [float((one - two).square().sum(-1).mean() / variance) for one, two in zip(old, new, strict=True)]


def loss_by_hand(_: Any, after: Any, batches: Batches) -> list[float]:
    pairs = zip(singly(after, batches), (row for batch in batches for row in _ids(batch)), strict=True)
    return [float(torch.nn.functional.cross_entropy(logits[:-1], ids[1:])) for (_, logits), ids in pairs]


def _ids(batch: TextBatch) -> list[Tensor]:
    return [ids[mask.bool()] for ids, mask in zip(batch.input_ids, batch.attention_mask, strict=True)]


# ---------------------------------------------------------------------------------------------------------------- texts


@pytest.mark.parametrize(
    ("of", "asked", "chosen", "fitted", "held_out"),
    [(12, 5, 5, 7, 5), (12, 2, 2, 10, 2), (7, 100, 4, 4, 3), (2, 1, 1, 1, 1), (11, None, 6, 6, 5)],
)
def test_as_many_texts_judge_as_choose_but_never_more_than_half(
    of: int, asked: int | None, chosen: int, fitted: int, held_out: int
) -> None:
    found = calibrate(tiny(), own_texts(of), texts=asked)
    assert [len(rows(part)) for part in (found.chosen, found.fitted, found.held_out)] == [chosen, fitted, held_out]
    told = [found.facts[name] for name in ("reads", "chosen_on", "fitted_on", "held_out")]
    assert told == ["texts", chosen, fitted, held_out]


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_what_is_held_out_neither_chooses_nor_is_fitted(seed: int) -> None:
    found = calibrate(tiny(), own_texts(), texts=4, seed=seed)
    assert not set(rows(found.held_out)) & set(rows(found.fitted))
    assert set(rows(found.chosen)) < set(rows(found.fitted))
    everything = tiny().require_tokenizer()([document.text for document in own_texts()])["input_ids"]
    assert rows(found.held_out) + rows(found.fitted) != []
    assert sorted(rows(found.held_out) + rows(found.fitted)) == sorted(map(tuple, everything))


def test_the_seed_says_which_texts_are_held_out() -> None:
    drawn = [rows(calibrate(tiny(), own_texts(), texts=5, seed=seed).held_out) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    in_file_order = tiny().require_tokenizer()([document.text for document in list(own_texts())[:5]])["input_ids"]
    assert drawn[0] != sorted(map(tuple, in_file_order))


@pytest.mark.parametrize(("asked", "expected"), [(3, 3), (9999, 256), (None, 128)])
def test_a_text_is_cut_where_it_is_asked_or_where_the_model_ends(asked: int | None, expected: int) -> None:
    corpus = Corpus(texts(["the goat " * 200, "the dog " * 200]))
    found = calibrate(tiny(), corpus, max_length=asked)
    assert {len(row) for row in rows(found.held_out) + rows(found.chosen)} == {expected}
    assert found.facts["max_length"] == expected


@pytest.mark.parametrize(("count", "words"), [(0, "0 different texts"), (1, "1 different text")])
def test_without_two_texts_nothing_can_be_judged(count: int, words: str) -> None:
    corpus = Corpus(tuple(own_texts())[:count])
    with pytest.raises(CorpusError, match=f"corpus has {words}; give at least two"):
        calibrate(tiny(), corpus)


# -------------------------------------------------------------------------------------------------------------- windows


def letters() -> LoadedModel:
    """A language model of bytes, which knows the end of a paragraph."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_ = Tokenizer(models.BPE({one: number for number, one in enumerate(alphabet)}, []))
    bytes_.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_.decoder = decoders.ByteLevel()
    model = with_head("gpt2", "AutoModelForCausalLM", vocab_size=len(alphabet), n_positions=64)
    return LoadedModel(model, PreTrainedTokenizerFast(tokenizer_object=bytes_), "letters", "letters", {})


def written_in(loaded: LoadedModel, batches: Batches) -> set[str]:
    return set("".join(loaded.require_tokenizer().decode(list(row)) for row in rows(batches))) - {"\n"}


def test_a_language_model_reads_windows_of_documents_that_others_do_not_see() -> None:
    loaded = letters()
    assert reads_windows(loaded)
    corpus = Corpus(texts([letter * 30 for letter in string.ascii_lowercase]))
    found = calibrate(loaded, corpus, texts=3, max_length=20)
    assert {len(row) for part in (found.chosen, found.fitted, found.held_out) for row in rows(part)} == {20}
    held, chosen, fitted = (written_in(loaded, part) for part in (found.held_out, found.chosen, found.fitted))
    assert held
    assert not held & fitted
    assert chosen < fitted
    # 13 letters of 30 and 12 times two line ends between them are 414 tokens
    assert [found.facts[name] for name in ("reads", "chosen_on", "fitted_on", "held_out")] == ["windows", 3, 20, 3]


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-gpt2"])
def test_encoders_and_models_without_paragraphs_read_texts(name: str) -> None:
    assert not reads_windows(tiny(name))


def test_too_little_text_for_a_window_on_both_sides_is_refused() -> None:
    with pytest.raises(CorpusError):
        calibrate(letters(), Corpus(texts(["abc", "def"])), max_length=20)


# ------------------------------------------------------------------------------------------------- where much is fitted


def parts_of(found: Calibration) -> list[Batches]:
    return [found.held_out, found.chosen, found.fitted]


def counted(batches: Batches) -> int:
    return sum(map(len, rows(batches)))


@pytest.mark.parametrize("texts", [None, 3])
@pytest.mark.parametrize("tokens", [1, 40, 10_000])
@pytest.mark.parametrize("seed", [0, 5])
def test_the_three_parts_share_no_text(texts: int | None, tokens: int, seed: int) -> None:
    found = calibrate_to_fit(tiny(), own_texts(40), tokens, texts=texts, seed=seed)
    of_each = [rows(part) for part in parts_of(found)]
    assert all(of_each)
    assert len({*of_each[0], *of_each[1], *of_each[2]}) == sum(map(len, of_each))
    known = {tuple(ids) for ids in tiny().require_tokenizer()([text.text for text in own_texts(40)])["input_ids"]}
    assert {*of_each[0], *of_each[1], *of_each[2]} <= known
    if tokens == 10_000:
        assert {*of_each[0], *of_each[1], *of_each[2]} == known


@pytest.mark.parametrize(
    ("of", "asked", "held_out", "chosen"),
    [(40, None, 10, 5), (40, 3, 3, 3), (40, 7, 7, 5), (9, None, 2, 1), (5, None, 1, 1), (4, 100, 1, 1), (4, 1, 1, 1)],
)
def test_a_quarter_at_most_is_held_out_and_an_eighth_chooses(
    of: int, asked: int | None, held_out: int, chosen: int
) -> None:
    found = calibrate_to_fit(tiny(), own_texts(of), 10_000, texts=asked)
    sizes = [held_out, chosen, of - held_out - chosen]
    assert [len(rows(part)) for part in parts_of(found)] == sizes
    assert [found.facts[name] for name in ("held_out", "chosen_on", "fitted_on")] == sizes
    assert found.facts["reads"] == "texts"


@pytest.mark.parametrize("tokens", [1, 10, 57, 100, 150])
def test_the_last_text_that_is_fitted_reaches_the_budget(tokens: int) -> None:
    found = calibrate_to_fit(tiny(), own_texts(40), tokens)
    longest = max(map(len, rows(found.fitted)))
    assert tokens <= counted(found.fitted) < tokens + longest
    assert tokens_of(found.fitted) == found.facts["tokens_fitted_on"] == counted(found.fitted)


def test_more_tokens_than_there_are_is_all_that_is_left() -> None:
    found, everything = calibrate_to_fit(tiny(), own_texts(40), 10_000), own_texts(40)
    ids = tiny().require_tokenizer()([document.text for document in everything])["input_ids"]
    assert sum(counted(part) for part in parts_of(found)) == sum(map(len, ids))


def test_a_budget_counts_what_is_read_of_a_text() -> None:
    """Of each text only 5 tokens, two of them special."""
    corpus = Corpus(texts([" ".join([word] * 50) for word in WORDS]))
    found = calibrate_to_fit(tiny(), corpus, 11, max_length=5)
    assert {len(row) for part in parts_of(found) for row in rows(part)} == {5}
    assert tokens_of(found.fitted) == 15


def test_what_chooses_and_judges_does_not_depend_on_the_budget() -> None:
    few, many = (calibrate_to_fit(tiny(), own_texts(40), tokens) for tokens in (10, 10_000))
    assert rows(few.held_out) == rows(many.held_out)
    assert rows(few.chosen) == rows(many.chosen)
    assert set(rows(few.fitted)) < set(rows(many.fitted))


def test_the_same_seed_gives_the_same_parts() -> None:
    drawn = [
        [rows(part) for part in parts_of(calibrate_to_fit(tiny(), own_texts(40), 60, seed=seed))] for seed in (3, 3, 4)
    ]
    assert drawn[0] == drawn[1]
    assert all(one != other for one, other in zip(drawn[0], drawn[2], strict=True))


@pytest.mark.parametrize(("count", "words"), [(0, "0 different texts"), (1, "1 different text"), (3, "3 different")])
def test_without_four_texts_nothing_can_be_fitted(count: int, words: str) -> None:
    with pytest.raises(CorpusError, match=f"corpus has {words}.* give at least four"):
        calibrate_to_fit(tiny(), Corpus(tuple(own_texts())[:count]), 100)


def test_a_text_that_stands_twice_counts_once() -> None:
    with pytest.raises(CorpusError, match="corpus has 3 different texts"):
        calibrate_to_fit(tiny(), Corpus([*tuple(own_texts())[:3], *tuple(own_texts())[:3]]), 100)


@pytest.mark.parametrize(("asked", "tokens"), [(None, 200), (1, 40), (2, 90)])
def test_windows_of_the_three_parts_come_from_documents_of_their_own(asked: int | None, tokens: int) -> None:
    corpus = Corpus(texts([letter * 30 for letter in string.ascii_letters]))
    found = calibrate_to_fit(letters(), corpus, tokens, texts=asked, max_length=20)
    assert {len(row) for part in parts_of(found) for row in rows(part)} == {20}
    of_each = [written_in(letters(), part) for part in parts_of(found)]
    assert all(of_each)
    assert len(of_each[0] | of_each[1] | of_each[2]) == sum(map(len, of_each))
    assert tokens - 20 < counted(found.fitted) <= tokens  # whole windows only
    assert found.facts["reads"] == "windows"
    # 6 of 52 documents choose at most: 180 letters and 5 times two line ends are 9 windows
    chosen = {None: 8, 1: 1, 2: 2}[asked]
    assert [found.facts[name] for name in ("chosen_on", "held_out")] == [chosen, chosen]


def test_documents_that_no_window_of_choice_needs_are_fitted() -> None:
    corpus = Corpus(texts([letter * 30 for letter in string.ascii_letters]))
    found = calibrate_to_fit(letters(), corpus, 100_000, texts=1, max_length=20)
    # one document is held out and one chooses; 50 of 30 letters with 49 times two line ends between them are fitted
    assert found.facts["fitted_on"] == (50 * 30 + 49 * 2) // 20
    assert len(written_in(letters(), found.fitted)) == 50


def test_small_corpora_of_running_text() -> None:
    found = calibrate_to_fit(letters(), Corpus(texts([letter * 30 for letter in "abcd"])), 1000, max_length=20)
    assert [len(rows(part)) for part in parts_of(found)] == [1, 1, 3]
    with pytest.raises(CorpusError, match="fill no window of 20"):
        calibrate_to_fit(letters(), Corpus(texts([letter * 10 for letter in "abcd"])), 1000, max_length=20)


# ----------------------------------------------------------------------------------------------------------- objectives


@pytest.mark.parametrize(
    ("model", "asked", "expected"),
    [
        ("tiny-bert", None, "cosine_distortion"),
        ("tiny-gpt2", None, "kl_distortion"),
        ("tiny-gpt2", "cosine", "cosine_distortion"),
        ("tiny-bert", "kl", "kl_distortion"),
        ("tiny-bert", "hidden", "hidden_distortion"),
        ("tiny-bert", "loss", "masked_token_loss"),
        ("tiny-gpt2", "loss", "next_token_loss"),
    ],
)
def test_what_judges_is_chosen_by_model_and_name(model: str, asked: Any, expected: str) -> None:
    assert objective_for(tiny(model), calibration(model).chosen, asked).name == expected


@pytest.mark.parametrize(
    ("model", "name", "by_hand"),
    [
        ("tiny-bert", "cosine", cosine_by_hand),
        ("tiny-bert", "hidden", hidden_by_hand),
        ("tiny-bert", "kl", kl_by_hand),
        ("tiny-gpt2", "kl", kl_by_hand),
        ("tiny-gpt2", "cosine", cosine_by_hand),
        ("tiny-gpt2", "loss", loss_by_hand),
    ],
)
def test_a_silenced_model_is_judged_as_plain_torch_judges_it(model: str, name: Any, by_hand: Any) -> None:
    loaded, batches = tiny(model), calibration(model).held_out
    objective = objective_for(loaded, batches, name)
    quiet = silenced(loaded.model, [(0, 1), (1, 4), (2, 7), (3, 0), (3, 5)])
    expected = float(np.mean(by_hand(loaded.model, quiet, batches)))
    assert expected > 1e-3
    # float32 against float64
    assert judged(network_of(quiet), objective) == pytest.approx(expected, rel=1e-4)
    whole = float(np.mean(by_hand(loaded.model, loaded.model, batches)))
    assert judged(network_of(loaded.model), objective) == pytest.approx(whole, rel=1e-4, abs=1e-6)


def test_without_a_mask_token_none_can_be_asked_for() -> None:
    tokenizer = copy.deepcopy(tiny().require_tokenizer())
    tokenizer.mask_token = None
    with pytest.raises(UnsupportedModel, match="'tiny-bert' has no mask token to ask for; use the objective cosine"):
        objective_for(replace(tiny(), tokenizer=tokenizer), calibration().chosen, "loss")


@pytest.mark.parametrize("name", ["kl", "loss"])
def test_without_a_vocabulary_head_there_are_no_logits(name: Any) -> None:
    bare = replace(tiny("tiny-gpt2"), model=network_of(tiny("tiny-gpt2").model))
    with pytest.raises(UnsupportedModel, match=f"no vocabulary head, which the objective {name} asks for"):
        objective_for(bare, calibration("tiny-gpt2").chosen, name)
    assert objective_for(bare, calibration("tiny-gpt2").chosen).name == "cosine_distortion"


def test_the_bundled_grammar_repeats_no_text_on_the_other_side() -> None:
    found = calibrate(tiny(), read_corpus(["grammar:300"]), texts=20)
    assert not set(rows(found.held_out)) & set(rows(found.chosen))


def test_a_sentence_that_comes_twice_is_on_one_side_of_the_fit_only() -> None:
    """Documents that differ, and have a sentence in common; letters of another case are the same to the tokenizer."""
    loaded = load_whole("tiny-bert", check=False)
    sentences = [
        f"the {one} sees the {other} ." for one in ("dog", "cat", "boy") for other in ("girl", "king", "queen")
    ]

    def sentence(text: str) -> Sentence:
        words = text.split()
        starts = [sum(len(word) + 1 for word in words[:place]) for place in range(len(words))]
        spans = tuple((start, start + len(word)) for start, word in zip(starts, words, strict=True))
        return Sentence(tuple(words), text, spans)

    documents = [
        Document.of_sentences([sentence("the dog sleeps ."), sentence(text)], f"document {number}")
        for number, text in enumerate(sentences)
    ]
    found = calibrate_to_fit(loaded, Corpus(documents), 1000)
    rows = [
        tuple(ids[mask.bool()].tolist())
        for batches in (found.held_out, found.chosen, found.fitted)
        for batch in batches
        for ids, mask in zip(batch.input_ids, batch.attention_mask, strict=True)
    ]
    assert len(rows) == len(set(rows)) == len(sentences) + 1
