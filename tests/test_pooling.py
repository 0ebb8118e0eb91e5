"""From attention between tokens to attention between words, drawn by hand; and what a word can choose."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from drawn_words import heads, of_tokens, tokens_of
from torch import Tensor

from headlens.gold.scored_input import ScoredInput
from headlens.pooling import WordPooling, candidates, word_members
from headlens.records import Batch, WordAttention
from headlens.testing import draw

# [CLS] a1 a2 b - [SEP]; "-" is a token of no word
TOKENS = tokens_of("S 0 0 1 - S")
HEAD = draw(
    [
        ".5 .1 .1 .1 .1 .1",
        ".1 .2 .3 .1 .2 .1",
        ".3 .1 .1 .3 . .2",
        ". .25 .25 .125 .125 .25",
        ". . . . 1 .",
        "1 . . . . .",
    ]
)


def pooled(batch: Batch, probs: Tensor, *, is_causal: bool = False) -> WordAttention:
    found = WordPooling(batch).add(of_tokens(probs, is_causal=is_causal))
    assert found is not None
    return found


def random_probs(batch: Batch, count: int = 2, *, is_causal: bool = False) -> Tensor:
    """[batch, head, query, key] over the real tokens."""
    size, tokens = batch.input_ids.shape
    scores = torch.randn(size, count, tokens, tokens, dtype=torch.float64)
    visible = batch.attention_mask[:, None, None].expand_as(scores)
    if is_causal:
        visible = visible & torch.ones(tokens, tokens, dtype=torch.bool).tril()
    return scores.masked_fill(~visible, -1e9).softmax(dim=-1)


def test_to_a_word_the_sum_and_from_a_word_the_mean_over_its_tokens() -> None:
    found = pooled(TOKENS, HEAD[None, None])
    # from a to a: (.2 + .3 and .1 + .1) / 2; from a to b: (.1 and .3) / 2; b: .25 + .25 and .125
    torch.testing.assert_close(found.probs[0, 0], draw([".35 .2", ".5 .125"]))
    # (.1 and .3) / 2 to [CLS], (.1 and .2) / 2 to [SEP]; rows are not made to sum to 1
    torch.testing.assert_close(found.to_special[0, 0], draw([".2 .15", ". .25"]))


def test_what_pooling_passes_on() -> None:
    attention = replace(of_tokens(HEAD[None, None], layer=3), is_causal=True)
    found = WordPooling(TOKENS).add(attention)
    assert found is not None
    assert (found.layer, found.is_causal) == (3, True)
    assert found.candidates[0].tolist() == [[False, False], [True, False]]


def test_heads_are_pooled_apart() -> None:
    two = torch.stack([HEAD, HEAD.flip(-1)])[None]
    both = pooled(TOKENS, two)
    torch.testing.assert_close(both.probs[:, 1:], pooled(TOKENS, two[:, 1:]).probs)
    torch.testing.assert_close(both.probs[0, 1], draw([".3 .2", ".25 .25"]))


def test_padding_and_missing_words_have_rows_and_columns_of_zeros() -> None:
    batch = tokens_of("S 0 2 2 S", "S 0 S . .", ". . S 0 1")
    found = pooled(batch, random_probs(batch))
    present = torch.tensor([[True, False, True], [True, False, False], [True, True, False]])
    nothing = ~(present[:, :, None] & present[:, None, :])
    assert (found.probs.masked_select(nothing[:, None]) == 0).all()
    assert (found.probs.masked_select(~nothing[:, None]) > 0).all()
    assert found.to_special.shape[-1] == 2
    assert (found.to_special[2, ..., 1] == 0).all()  # it has one special token only


def test_without_special_tokens_there_is_nothing_special_to_attend_to() -> None:
    batch = tokens_of("0 1 1", "0 . .")
    assert pooled(batch, random_probs(batch)).to_special.shape == (2, 2, 2, 0)


def test_equal_to_a_plain_loop_over_tokens() -> None:
    batch = tokens_of("S 0 0 1 2 2 2 S", ". . S 0 - 2 3 S", "0 1 1 1 2 . . .")
    probs = random_probs(batch)
    found, words = pooled(batch, probs), batch.words
    assert words is not None
    for row, word, to in np.ndindex(3, 4, 4):
        of_word, of_to = (range(*words[row, which].tolist()) for which in (word, to))
        expected = sum(probs[row, :, i, j] / len(of_word) for i in of_word for j in of_to)
        torch.testing.assert_close(found.probs[row, :, word, to], expected + torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize("order", [[(0, 3), (3, 6), (6, 8)], [(6, 8), (0, 3), (3, 6)], [(7, 8), (1, 7), (0, 1)]])
def test_slices_of_query_rows_in_any_order_give_the_same(order: list[tuple[int, int]]) -> None:
    batch = tokens_of("S 0 0 1 2 2 2 S", "S 0 1 2 S . . .")
    probs = random_probs(batch)
    pooling = WordPooling(batch)
    found = [pooling.add(of_tokens(probs[:, :, start:stop], start=start)) for start, stop in order]
    assert found[:-1] == [None, None]
    assert found[-1] is not None
    torch.testing.assert_close(found[-1].probs, pooled(batch, probs).probs, rtol=0, atol=1e-14)
    torch.testing.assert_close(found[-1].to_special, pooled(batch, probs).to_special, rtol=0, atol=1e-14)


def test_slices_of_a_causal_model_may_end_at_the_last_key_that_they_see() -> None:
    batch = tokens_of("S 0 0 1 2 S", "S 0 1 S . .")
    probs = random_probs(batch, is_causal=True)
    pooling = WordPooling(batch)
    assert pooling.add(of_tokens(probs[:, :, 4:], start=4, is_causal=True)) is None
    found = pooling.add(of_tokens(probs[:, :, :4, :4], start=0, is_causal=True))
    assert found is not None
    torch.testing.assert_close(found.probs, pooled(batch, probs).probs, rtol=0, atol=1e-14)


def test_pooling_leaves_the_attention_as_it_is() -> None:
    batch = tokens_of("S 0 0 1 2 S")
    probs = random_probs(batch)
    before = probs.clone()
    pooling = WordPooling(batch)
    pooling.add(of_tokens(probs[:, :, :3]))
    pooling.add(of_tokens(probs[:, :, 3:], start=3))
    assert torch.equal(probs, before)


def test_single_precision_stays_single_precision() -> None:
    batch = tokens_of("S 0 1 S")
    assert pooled(batch, random_probs(batch).float()).probs.dtype == torch.float32
    assert pooled(batch, random_probs(batch)).probs.dtype == torch.float64  # of the same batch


def test_tokens_of_each_word() -> None:
    members = word_members(tokens_of("S 0 0 2 - S", "0 1 . . . ."))
    assert members.int().tolist() == [
        [[0, 1, 1, 0, 0, 0], [0] * 6, [0, 0, 0, 1, 0, 0]],
        [[1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0], [0] * 6],
    ]


def test_batches_keep_their_words_when_they_move() -> None:
    batch = tokens_of("S 0 0 S", inputs=[7])
    moved = batch.to("cpu")
    assert moved.words is not None
    assert moved.input_index is not None
    assert torch.equal(moved.words, torch.tensor([[[1, 3]]]))
    assert moved.input_index.tolist() == [7]


# ---------------------------------------------------------------------------------------------------------- candidates

# tokens, whether causal, whether the first word is a sink, present words, candidates from each word
CASES = [
    ("S 0 1 1 2 S", False, False, [1, 1, 1], [[0, 1, 1], [1, 0, 1], [1, 1, 0]]),
    ("0 1 2", False, False, [1, 1, 1], [[0, 1, 1], [1, 0, 1], [1, 1, 0]]),
    ("S 0 2 S", False, False, [1, 0, 1], [[0, 0, 1], [0, 0, 0], [1, 0, 0]]),
    ("S 0 1 2", True, False, [1, 1, 1], [[0, 0, 0], [1, 0, 0], [1, 1, 0]]),
    ("0 1 2 S", True, True, [1, 1, 1], [[0, 0, 0], [0, 0, 0], [0, 1, 0]]),
    (". . 0 1 2", True, True, [1, 1, 1], [[0, 0, 0], [0, 0, 0], [0, 1, 0]]),
    (". S 0 1 2", True, False, [1, 1, 1], [[0, 0, 0], [1, 0, 0], [1, 1, 0]]),
    ("1 2 3", True, True, [0, 1, 1, 1], [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0]]),
]


@pytest.mark.parametrize(("tokens", "is_causal", "has_sink", "present", "expected"), CASES)
def test_what_can_be_chosen_of_a_batch(
    tokens: str, is_causal: bool, has_sink: bool, present: list[int], expected: list[list[int]]
) -> None:
    batch = tokens_of(tokens)
    assert candidates(batch, is_causal)[0].int().tolist() == expected
    # what decisions are made of must say the same
    assert ScoredInput(np.array(present, dtype=bool), is_causal, has_sink).candidates.astype(int).tolist() == expected


def test_the_sink_is_found_row_by_row_and_padding_is_no_candidate() -> None:
    batch = tokens_of("0 1 2 .", "S 0 1 2", ". . 0 1")
    assert candidates(batch, True).int().tolist() == [
        [[0, 0, 0], [0, 0, 0], [0, 1, 0]],
        [[0, 0, 0], [1, 0, 0], [1, 1, 0]],
        [[0, 0, 0], [0, 0, 0], [0, 0, 0]],
    ]
    assert candidates(batch, False)[2].int().tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]  # asked of the same batch


# ------------------------------------------------------------------------------------------------------------- choices


def choosing(rows: list[str], tokens: str, *, is_causal: bool = False) -> WordAttention:
    probs = heads(rows)[None]
    mask = candidates(tokens_of(tokens), is_causal)
    return WordAttention(0, probs, probs.new_zeros(*probs.shape[:3], 0), mask, is_causal)


def test_a_word_chooses_the_candidate_that_it_attends_to_most() -> None:
    # itself never; the first of equals
    attention = choosing([".9 .1 .2", ".3 .1 .3", ".1 .2 .8"], "0 1 2")
    assert attention.row_choice[0, 0].tolist() == [2, 0, 1]


def test_a_column_is_asked_for_the_word_that_attends_most() -> None:
    attention = choosing([".9 .4 .3", ".3 .8 .3", ".1 .5 .8"], "0 1 2")
    assert attention.column_choice[0, 0].tolist() == [1, 2, 0]


def test_only_candidates_are_chosen_in_a_causal_model() -> None:
    # word 0 is the sink; nobody but word 3 can choose word 2
    attention = choosing(["1 . . .", ".9 .1 . .", ".9 .1 . .", ".9 . .1 ."], "0 1 2 3", is_causal=True)
    assert attention.row_choice[0, 0].tolist() == [0, 0, 1, 2]
    assert attention.column_choice[0, 0].tolist() == [0, 2, 3, 0]


def test_a_candidate_that_gets_nothing_is_chosen_before_a_word_that_is_none() -> None:
    attention = choosing([". . .", ".5 . .", ".5 . ."], "0 1 2", is_causal=True)
    assert attention.row_choice[0, 0].tolist() == [0, 0, 1]
