"""Batches of texts to judge heads on."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from headlens.documents import Document
from headlens.errors import CorpusError
from headlens.importance.inputs import TextBatch, examples_of, padded_batches, text_batches, token_windows


@pytest.fixture(scope="module")
def words() -> PreTrainedTokenizerFast:
    """A word a token; every text begins with [S] and ends with [E]."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing

    one = Tokenizer(WordLevel({"[P]": 0, "[S]": 1, "[E]": 2, "a": 3, "b": 4, "c": 5, "[U]": 6}, unk_token="[U]"))
    one.pre_tokenizer = Whitespace()
    one.post_processor = TemplateProcessing(single="[S] $A [E]", special_tokens=[("[S]", 1), ("[E]", 2)])
    return PreTrainedTokenizerFast(tokenizer_object=one, pad_token="[P]", unk_token="[U]")


def rows(batches: list[TextBatch]) -> list[tuple[list[list[int]], list[list[int]], list[int]]]:
    return [(one.input_ids.tolist(), one.attention_mask.tolist(), one.example.tolist()) for one in batches]


def test_texts_are_sorted_by_length_padded_on_the_right_and_cut(words: PreTrainedTokenizerFast) -> None:
    found = text_batches(["a b c", Document("b"), "c c c c c c"], words, max_length=6, batch_tokens=10)
    assert rows(found) == [
        ([[1, 4, 2, 0, 0], [1, 3, 4, 5, 2]], [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], [1, 0]),
        ([[1, 5, 5, 5, 5, 2]], [[1] * 6], [2]),
    ]


def test_a_text_of_more_tokens_than_a_batch_may_have_goes_alone(words: PreTrainedTokenizerFast) -> None:
    found = text_batches(["a b c", "a"], words, batch_tokens=4)
    assert [one.example.tolist() for one in found] == [[1], [0]]


def test_windows_run_over_the_ends_of_texts_and_have_no_special_tokens(words: PreTrainedTokenizerFast) -> None:
    found = token_windows(["a b c a", "b b b c c"], words, length=3, batch_tokens=6)
    assert rows(found) == [
        ([[3, 4, 5], [3, 4, 4]], [[1] * 3] * 2, [0, 1]),
        ([[4, 5, 5]], [[1] * 3], [2]),
    ]
    assert [one.input_ids.tolist() for one in token_windows(["a b c a b"], words, length=2, most=1)] == [[[3, 4]]]


def test_rows_are_taken_as_often_as_they_are_named() -> None:
    batch = padded_batches([[5, 6], [7]])[0]
    taken = batch.take(torch.tensor([1, 0, 1]))
    assert rows([taken]) == [([[5, 6], [7, 0], [5, 6]], [[1, 1], [1, 0], [1, 1]], [0, 1, 0])]
    assert (len(taken), taken.lengths.tolist()) == (3, [2, 1, 2])


@pytest.mark.parametrize(
    ("texts", "message"),
    [([], "no text"), (["a", " "], "text 2: a document needs at least one character")],
)
def test_texts_that_say_nothing_are_refused(words: PreTrainedTokenizerFast, texts: list[str], message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        text_batches(texts, words)


def test_too_little_text_for_a_window_is_refused(words: PreTrainedTokenizerFast) -> None:
    with pytest.raises(CorpusError, match="have 2 tokens and fill no window of 3"):
        token_windows(["a b"], words, length=3)


@pytest.mark.parametrize("mask", [[[0, 1, 1]], [[1, 0, 1]], [[0, 0, 0]]])
def test_padding_on_the_left_or_within_is_refused(mask: list[list[int]]) -> None:
    with pytest.raises(CorpusError, match="padded on the right"):
        TextBatch(torch.ones(1, 3, dtype=torch.long), torch.tensor(mask), torch.zeros(1, dtype=torch.long))


@pytest.mark.parametrize("numbers", [[0, 2], [0, 0, 1], []])
def test_examples_are_numbered_without_gaps(numbers: list[int]) -> None:
    one = torch.ones(1, 2, dtype=torch.long)
    with pytest.raises(CorpusError, match="every example from 0 on"):
        examples_of([TextBatch(one, one, torch.tensor([number])) for number in numbers])
