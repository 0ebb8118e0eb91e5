"""Heads on repeated random tokens: drawn attention, closed forms, a slow loop, and the inputs themselves."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from slow_repetition import Scores, slow_prefix_matching, slow_two_copies
from test_analyzers import attention_of
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from headlens.behaviour.on_repeats import SEVERAL_COPIES, TWO_COPIES, Repetition
from headlens.behaviour.repeated import (
    FEWEST_TOKENS,
    LARGE_VOCABULARY,
    MIDDLE,
    Layout,
    Source,
    fitting_period,
    given_sample,
    ordinary_ids,
    random_sample,
    written,
)
from headlens.behaviour.repetition import OLSSON_COPIES, repetition
from headlens.errors import CorpusError
from headlens.models import LoadedModel
from headlens.records import Batch, LayerAttention
from headlens.scores import ScoreTable
from headlens.testing import VOCAB, draw, tiny_model

DECODER = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
ENCODER = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}


def words(names: dict[str, str], size: int = VOCAB, odd: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """A tokenizer with special tokens first, then `odd` entries, then words, `size` in all."""
    entries = [*names.values(), *odd]
    entries += [f"word{number}" for number in range(len(entries), size)]
    backend = Tokenizer(WordLevel({entry: token for token, entry in enumerate(entries)}, unk_token=entries[0]))
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def source(**given: Any) -> Source:
    ordinary = np.arange(3, 99)
    return Source(**{"ordinary": ordinary, "before": 1, "after": None, "max_length": 80, "known": 99, **given})


def batch_of(tokens: int, special: tuple[int, ...] = (0,)) -> Batch:
    marks = torch.tensor([[i in special for i in range(tokens)]])
    return Batch(torch.arange(tokens)[None], torch.ones_like(marks), marks, torch.zeros(1, dtype=torch.long))


def scores_of(analyzer: Repetition, attention: LayerAttention, batch: Batch) -> dict[str, list[float]]:
    sums = {key: value.double() for key, value in analyzer.observe(attention, batch).items()}
    return {name: [round(x, 10) for x in value[0].tolist()] for name, value in analyzer.score(sums).items()}


# ----------------------------------------------------------------------------------------------------- drawn attention


def test_previous_duplicate_and_induction_of_drawn_heads() -> None:
    # <s> a b c a b c
    back = draw(["1 . . . . . ."] * 2 + [f"{'. ' * i}1{' .' * (6 - i)}" for i in range(1, 6)])
    same = draw(["1 . . . . . ."] * 4 + [f"{'. ' * i}1{' .' * (6 - i)}" for i in range(1, 4)])
    after = draw(["1 . . . . . ."] * 4 + [f"{'. ' * i}1{' .' * (6 - i)}" for i in range(2, 5)])
    analyzer = Repetition(Layout(1, 3, 2), TWO_COPIES, is_causal=True)
    scores = scores_of(analyzer, attention_of(back, same, after, is_causal=True), batch_of(7))
    one_of_six = round(1 / 6, 10)  # the row of the first "a" looks at <s>, which is its previous token
    assert scores == {
        "repetition.previous": [1.0, one_of_six, one_of_six],
        "repetition.previous_argmax": [1.0, one_of_six, one_of_six],
        "repetition.duplicate": [0.0, 1.0, 0.0],
        "repetition.duplicate_argmax": [0.0, 1.0, 0.0],
        "repetition.induction": [0.0, 0.0, 1.0],
        "repetition.induction_argmax": [0.0, 0.0, 1.0],
    }


def test_mass_is_a_mean_and_the_strongest_key_a_count() -> None:
    # <s> a b c a b c; only the rows of the second copy differ
    rows = ["1 . . . . . ."] * 4 + [". .6 .4 . . . .", ". .3 .3 .4 . . .", ". . . .1 .8 .1 ."]
    analyzer = Repetition(Layout(1, 3, 2), ("duplicate", "induction"), is_causal=True)
    scores = scores_of(analyzer, attention_of(draw(rows), is_causal=True), batch_of(7))
    assert scores["repetition.duplicate"] == [round((0.6 + 0.3 + 0.1) / 3, 10)]
    assert scores["repetition.duplicate_argmax"] == [round(1 / 3, 10)]
    assert scores["repetition.induction"] == [round((0.4 + 0.4 + 0.8) / 3, 10)]
    assert scores["repetition.induction_argmax"] == [round(2 / 3, 10)]


def test_without_a_special_token_the_first_row_has_no_previous_token() -> None:
    # a b c a b c
    head = draw(["1 . . . . .", ".5 .5 . . . .", ". .5 .5 . . .", ". . .5 .5 . .", ". . . .5 .5 .", ". . . .4 .5 .1"])
    analyzer = Repetition(Layout(0, 3, 2), TWO_COPIES, is_causal=True)
    scores = scores_of(analyzer, attention_of(head, is_causal=True), batch_of(6, special=()))
    assert scores["repetition.previous"] == [0.5]
    assert scores["repetition.induction"] == [round(0.4 / 3, 10)]  # after the first c comes the second a


def test_a_model_that_sees_both_ways_finds_the_other_copy_from_both() -> None:
    # [CLS] a b c a b c [SEP]
    rows = ["1 . . . . . . .", ". . . . .2 . . .8", ". . . . . .4 . .6", "1 . . . . . . ."]
    rows += [". .9 . . . . . .1", "1 . . . . . . .", ". . . .3 . . . .7", ". . . . . . . 1"]
    analyzer = Repetition(Layout(1, 3, 2), TWO_COPIES[:2], is_causal=False)
    scores = scores_of(analyzer, attention_of(draw(rows)), batch_of(8, special=(0, 7)))
    assert scores["repetition.duplicate"] == [round((0.2 + 0.4 + 0.0 + 0.9 + 0.0 + 0.3) / 6, 10)]
    assert scores["repetition.duplicate_argmax"] == [round(1 / 6, 10)]


def test_prefix_matching_adds_up_what_followed_all_earlier_copies() -> None:
    # <s> a b c a b c a b c: rows 4 to 6 look at 2, 3, 4, rows 7 to 9 at 2 and 5, 3 and 6, 4 and 7
    rows = ["1 . . . . . . . . ."] * 4
    rows += [". .5 .5 . . . . . . .", ". . . . 1 . . . . .", ". . . .2 .8 . . . . ."]
    rows += [". . .3 . . .4 .3 . . .", ". . . .1 . . .2 .7 . .", ". . . . .5 . . .5 . ."]
    analyzer = Repetition(Layout(1, 3, 3), SEVERAL_COPIES, is_causal=True)
    scores = scores_of(analyzer, attention_of(draw(rows), is_causal=True), batch_of(10))
    assert scores == {"repetition.prefix_matching": [round((0.5 + 0.0 + 0.8 + 0.7 + 0.3 + 1.0) / 6, 10)]}


# -------------------------------------------------------------------------------------------------------- the contract


def random_case(is_causal: bool, layout: Layout, inputs: int = 2, heads: int = 3) -> tuple[LayerAttention, Batch]:
    tokens = layout.stop + 1
    seen = torch.ones(tokens, tokens, dtype=torch.bool).tril() if is_causal else torch.tensor(True)
    probs = torch.randn(inputs, heads, tokens, tokens, dtype=torch.float64).masked_fill(~seen, -torch.inf).softmax(-1)
    one = batch_of(tokens, special=(*range(layout.first), tokens - 1))
    batch = Batch(
        one.input_ids.expand(inputs, -1),
        one.attention_mask.expand(inputs, -1),
        one.special.expand(inputs, -1),
        torch.arange(inputs),
    )
    empty = torch.zeros(inputs, heads, tokens, 1, dtype=torch.float64)
    return LayerAttention(0, empty, empty, empty, probs, empty, 0, "encoder", is_causal), batch


@pytest.mark.parametrize("rows", [1, 4, 5])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("kinds", [TWO_COPIES[:2], TWO_COPIES, SEVERAL_COPIES])
def test_slices_of_rows_add_up_in_any_order(kinds: tuple[str, ...], is_causal: bool, rows: int) -> None:
    layout = Layout(1, 4, 3 if kinds == SEVERAL_COPIES else 2)
    attention, batch = random_case(is_causal, layout)
    analyzer = Repetition(layout, kinds, is_causal=is_causal)
    whole = analyzer.observe(attention, batch)
    tokens = attention.probs.shape[2]
    added: dict[str, Tensor] = {}
    for start in reversed(range(0, tokens, rows)):
        stop = min(start + rows, tokens)
        keys = stop if is_causal else tokens  # no row of a causal slice sees further
        probs = attention.probs[:, :, start:stop, :keys]
        read, seen = attention.q[:, :, start:stop], attention.k[:, :, :keys]
        part = LayerAttention(0, read, seen, seen, probs, read, start, "encoder", is_causal)
        for key, value in analyzer.observe(part, batch).items():
            added[key] = added.get(key, 0) + value
    assert whole["rows"].sum() > 0
    for key, value in whole.items():
        torch.testing.assert_close(added[key].double(), value.double(), rtol=0, atol=1e-12, msg=key)


def test_padding_and_special_tokens_are_no_rows_and_padding_is_no_key() -> None:
    attention, batch = random_case(False, Layout(1, 4, 2))
    short = Batch(
        batch.input_ids,
        torch.arange(10).expand(2, -1) < torch.tensor([[10], [7]]),
        batch.special,
        batch.document,
    )
    analyzer = Repetition(Layout(1, 4, 2), TWO_COPIES[:2], is_causal=False)
    sums = analyzer.observe(attention, short)
    # of the second input the second copy has two tokens left, at 5 and 6, so that their duplicates are 1 and 2
    assert sums["rows"].tolist() == [[[8, 8]], [[6, 4]]]
    pairs = [(5, 1), (6, 2), (1, 5), (2, 6)]
    expected = sum(attention.probs[1, :, i, j] for i, j in pairs)
    torch.testing.assert_close(sums["mass"][1, :, 1], expected, rtol=0, atol=1e-12)


# --------------------------------------------------------------------------------------------------------------- chance


def harmonic(number: int) -> float:
    return sum(1 / k for k in range(1, number + 1))


@pytest.mark.parametrize(("names", "first"), [(DECODER, 1), ({"pad_token": "<pad>"}, 0)])
def test_chance_of_a_causal_model_in_closed_form(names: dict[str, str], first: int) -> None:
    table, facts = repetition(tiny_model("gpt2", layers=1), words(names), period=20, batch=2)
    period, prefix = facts["period"], facts["prefix_period"]
    assert (facts["first"], period, prefix) == (first, 20, 19 if first else 20)
    chance = dict(zip(table.names, table.chance, strict=True))
    # position p sees p + 1 keys
    in_second = (harmonic(first + 2 * period) - harmonic(first + period)) / period
    for name in ("duplicate", "induction"):
        for end in ("", "_argmax", "_control"):
            assert chance[f"repetition.{name}{end}"] == pytest.approx(in_second, abs=1e-12)
    rows = 2 * period - (first == 0)
    assert chance["repetition.previous"] == pytest.approx((harmonic(first + 2 * period) - 1) / rows, abs=1e-12)
    several = sum(
        copy * (harmonic(first + (copy + 1) * prefix) - harmonic(first + copy * prefix)) for copy in (1, 2, 3)
    )
    assert chance["repetition.prefix_matching"] == pytest.approx(several / (3 * prefix), abs=1e-12)


def test_chance_of_a_long_period_is_near_ln_2_over_it() -> None:
    bare = words({"pad_token": "<pad>"}, 200)
    table, _ = repetition(tiny_model("gpt2", layers=1, n_positions=110, vocab_size=200), bare, batch=1)
    found = table.chance[table.index("repetition.induction")]
    # the sum of 1 / k from 51 to 100 is ln 2 - 1 / 200 up to 1 / 40,000
    assert found == pytest.approx((math.log(2) - 1 / 200) / 50, abs=1 / 40_000 / 50)


def test_chance_of_an_encoder_is_one_of_all_keys() -> None:
    table, _ = repetition(tiny_model("bert", layers=1), words(ENCODER), period=20, batch=2)
    assert table.chance.tolist() == pytest.approx([1 / 42] * len(table.names), abs=1e-12)


# ------------------------------------------------------------------------------------------------- equal to a slow loop


def assert_equal(table: ScoreTable, expected: Scores) -> None:
    for name, values in expected.items():
        np.testing.assert_allclose(table[name], values, rtol=0, atol=1e-6, err_msg=name)


def read_ids(facts: dict[str, Any], name: str, copies: int) -> Tensor:
    """What the model read, put together from the facts."""
    ends = [[end] if end is not None else [] for end in (facts["bos"], facts["eos"])]
    return torch.tensor([[*ends[0], *(row * copies), *ends[1]] for row in facts[name]])


@pytest.mark.parametrize(
    ("family", "seed", "period"),
    [("gpt2", 0, 20), ("gpt2", 1, 7), ("gpt2", 2, 39), ("llama", 3, 12), ("gpt_neox", 4, 5), ("opt", 5, 9)],
)
def test_a_decoder_equals_a_slow_loop(family: str, seed: int, period: int) -> None:
    model = tiny_model(family, seed=seed, layers=2)
    table, facts = repetition(model, words(DECODER), period=period, batch=3, seed=seed)
    options: dict[str, Any] = {"first": 1, "period": period, "both_ways": False}
    expected = slow_two_copies(model, read_ids(facts, "ids", 2), **options)
    expected |= slow_two_copies(model, read_ids(facts, "control_ids", 1), **options, repeated=False)
    several = read_ids(facts, "prefix_ids", OLSSON_COPIES)
    expected["repetition.prefix_matching"] = slow_prefix_matching(model, several, first=1)
    assert set(table.names) - {"repetition.copying", "repetition.copying.macro"} - set(expected) <= {
        "repetition.copying_share",
        "repetition.copying_share.macro",
    }
    assert_equal(table, expected)


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
def test_an_encoder_equals_a_slow_loop(family: str) -> None:
    model = tiny_model(family, layers=2)
    table, facts = repetition(model, words(ENCODER), period=11, batch=3)
    assert (facts["bos"], facts["eos"], facts["first"]) == (1, 2, 1)
    options: dict[str, Any] = {"first": 1, "period": 11, "both_ways": True}
    expected = slow_two_copies(model, read_ids(facts, "ids", 2), **options)
    expected |= slow_two_copies(model, read_ids(facts, "control_ids", 1), **options, repeated=False)
    assert set(expected) == set(table.names)
    assert_equal(table, expected)


def test_given_ids_are_what_is_repeated() -> None:
    model = tiny_model("gpt2", seed=3, layers=2)
    ids = torch.tensor([[9, 30, 31, 5], [8, 7, 98, 70]])
    table, facts = repetition(model, words(DECODER), ids=ids)
    assert facts["ids"] == ids.tolist()
    assert (facts["period"], facts["batch"]) == (4, 2)
    read = torch.tensor([[1, 9, 30, 31, 5, 9, 30, 31, 5], [1, 8, 7, 98, 70, 8, 7, 98, 70]])
    assert_equal(table, slow_two_copies(model, read, first=1, period=4, both_ways=False))


@pytest.mark.slow
def test_the_bundled_smollm2_has_its_induction_head(smollm2: LoadedModel) -> None:
    table, facts = repetition(smollm2.model, smollm2.require_tokenizer(), batch=4, model=smollm2)
    # .92 in a plain loop over output_attentions, with ids drawn from 1,000 to 10,000
    assert table["repetition.induction"][18, 6] == pytest.approx(0.92, abs=0.05)
    assert [score.name for score in table.best("repetition.induction", 1)] == ["L18H6"]
    assert [score.name for score in table.best("repetition.prefix_matching", 1)] == ["L18H6"]
    assert table["repetition.induction_control"].max() < 0.05
    assert facts["left_out"] == {}


# --------------------------------------------------------------------------------------------------------------- inputs


def test_the_sample_stands_twice_behind_the_first_token() -> None:
    repeated = written(source(), torch.tensor([[5, 6, 7], [8, 9, 10]]), 2)
    (batch,) = repeated.batches
    assert repeated.layout == Layout(first=1, period=3, copies=2)
    assert batch.input_ids.tolist() == [[1, 5, 6, 7, 5, 6, 7], [1, 8, 9, 10, 8, 9, 10]]
    assert batch.special.tolist() == [[True] + [False] * 6] * 2
    assert bool(batch.attention_mask.all())
    assert batch.document.tolist() == [0, 1]


def test_an_encoder_reads_it_between_its_special_tokens() -> None:
    repeated = written(source(before=1, after=2), torch.tensor([[5, 6, 7]]), 2)
    assert repeated.batches[0].input_ids.tolist() == [[1, 5, 6, 7, 5, 6, 7, 2]]
    assert repeated.batches[0].special.tolist() == [[True] + [False] * 6 + [True]]


def test_without_a_first_token_the_sample_stands_first() -> None:
    repeated = written(source(before=None), torch.tensor([[5, 6, 7]]), 4)
    assert repeated.layout == Layout(first=0, period=3, copies=4)
    assert repeated.batches[0].input_ids.tolist() == [[5, 6, 7] * 4]
    assert not repeated.batches[0].special.any()


def test_many_sequences_come_in_batches() -> None:
    sample = torch.arange(3, 93).reshape(1, 90).repeat(200, 1)
    batches = written(source(max_length=1000), sample, 2).batches
    assert [len(batch.document) for batch in batches] == [22] * 9 + [2]  # 4096 // 181
    assert torch.cat([batch.document for batch in batches]).tolist() == list(range(200))


def test_a_sample_holds_no_token_twice_as_long_as_there_are_enough() -> None:
    sample = random_sample(source(), period=96, batch=5, seed=0)
    assert [sorted(row) for row in sample.tolist()] == [list(range(3, 99))] * 5
    assert len({tuple(row) for row in sample.tolist()}) == 5
    beyond = random_sample(source(ordinary=np.arange(3, 8)), period=7, batch=4, seed=0)
    assert [sorted(row[:5]) for row in beyond.tolist()] == [[3, 4, 5, 6, 7]] * 4
    assert [len(set(row[5:])) for row in beyond.tolist()] == [2] * 4


def test_a_seed_and_a_stream_tell_the_sample() -> None:
    def sample(seed: int, stream: int) -> list[list[int]]:
        return random_sample(source(), period=10, batch=2, seed=seed, stream=stream).tolist()

    assert sample(3, 1) == sample(3, 1)
    assert sample(3, 1) != sample(3, 2)
    assert sample(3, 1) != sample(4, 1)


def test_ordinary_ids_are_neither_special_nor_added_nor_in_reserve_nor_unknown_to_the_model() -> None:
    odd = ("[unused0]", "<unused1>", "<extra_id_0>", "<|reserved_special_token_7|>", "<0x0A>", "unused", "<b>")
    tokenizer = words(DECODER, 20, odd)
    tokenizer.add_tokens(["newcomer"])  # 20
    tokenizer.add_special_tokens({"mask_token": "<mask>"})  # 21
    assert ordinary_ids(tokenizer, known=100).tolist() == [8, 9, *range(10, 20)]  # "unused" and "<b>" are words
    assert ordinary_ids(tokenizer, known=15).tolist() == [8, 9, *range(10, 15)]


def test_of_a_large_vocabulary_the_most_and_the_least_common_are_left_out() -> None:
    small = ordinary_ids(words(DECODER, LARGE_VOCABULARY + 3), known=10**6)
    assert small.tolist() == list(range(3, LARGE_VOCABULARY + 3))
    large = ordinary_ids(words(DECODER, 10_003), known=10**6)
    assert MIDDLE == (0.05, 0.2)
    assert large.tolist() == list(range(503, 2003))


@pytest.mark.parametrize(
    ("given", "asked", "copies", "expected"),
    [
        ({}, 30, 2, 30),
        ({}, 50, 2, 39),  # 79 positions behind the first token
        ({"after": 2}, 50, 2, 39),  # 78
        ({"before": None}, 50, 2, 40),
        ({}, 25, 4, 19),
        ({"ordinary": np.arange(3, 10)}, 25, 2, 7),
        ({"max_length": 7}, 25, 2, 3),
    ],
)
def test_a_period_shrinks_to_what_there_is_room_for(
    given: dict[str, Any], asked: int, copies: int, expected: int
) -> None:
    assert fitting_period(source(**given), asked, copies) == expected


@pytest.mark.parametrize("given", [{"max_length": 6}, {"ordinary": np.arange(3, 5)}])
def test_no_period_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(CorpusError, match=r"written 2 times need 3 ordinary tokens and 6 positions at least, but"):
        fitting_period(source(**given), 50, 2)


def test_the_facts_say_when_a_period_shrank() -> None:
    table, facts = repetition(tiny_model("gpt2", layers=1), words(DECODER), batch=2)
    assert facts["period"] == 39
    why = "the model takes 80 tokens, special ones included, and 96 ordinary ones can be drawn."
    assert facts["notes"] == [
        f"Duplicates and induction are scored on periods of 39 tokens, not 50: {why}",
        f"Prefix matching is scored on periods of 19 tokens, not 25: {why}",
    ]
    assert "repetition.induction" in table


def test_the_facts_say_what_there_is_too_little_of() -> None:
    few = words({"pad_token": "<pad>"}, 8)
    _, facts = repetition(tiny_model("gpt2", layers=1), few, period=7, batch=2)
    assert facts["bos"] is None
    assert facts["notes"][0].startswith("The tokenizer has no token that begins a text")
    assert facts["notes"][1] == (
        "There are only 7 ordinary tokens to draw, so that some of the 14 tokens of the control come more than once."
    )


def test_the_facts_are_plain_and_make_the_scores_again() -> None:
    model, tokenizer = tiny_model("gpt2", layers=1), words(DECODER)
    table, facts = repetition(model, tokenizer, period=10, batch=3, seed=5)
    assert json.loads(json.dumps(facts)) == facts
    assert (facts["seed"], facts["batch"], facts["bos"], facts["left_out"]) == (5, 3, 1, {})
    assert all(len(set(row)) == 20 for row in facts["control_ids"])
    again, _ = repetition(model, tokenizer, ids=facts["ids"], seed=5, period=10, batch=3)
    np.testing.assert_array_equal(again["repetition.induction"], table["repetition.induction"])
    other, _ = repetition(model, tokenizer, period=10, batch=3, seed=6)
    assert (other["repetition.induction"] != table["repetition.induction"]).all()


def test_there_are_intervals_over_the_sequences() -> None:
    table, _ = repetition(tiny_model("gpt2", layers=1), words(DECODER), period=10, batch=4)
    place = table.index("repetition.induction")
    assert (table.low[place] < table.high[place]).all()
    assert table.support[place].tolist() == [[40.0] * 4]
    assert table.support[table.index("repetition.previous")].tolist() == [[80.0] * 4]


def test_an_encoder_has_no_induction_and_the_facts_say_why() -> None:
    table, facts = repetition(tiny_model("bert", layers=1), words(ENCODER), period=10, batch=2)
    assert not [name for name in table.names if "induction" in name or "prefix" in name or "copying" in name]
    assert set(facts["left_out"]) == {
        *(f"repetition.induction{end}" for end in ("", "_argmax", "_control")),
        "repetition.prefix_matching",
        "repetition.copying",
        "repetition.copying_share",
    }
    assert "sees the tokens that follow" in facts["left_out"]["repetition.induction"]
    assert "no decoder" in facts["left_out"]["repetition.copying"]


def test_too_few_positions_for_four_copies_leave_out_prefix_matching() -> None:
    table, facts = repetition(tiny_model("gpt2", layers=1, n_positions=11), words(DECODER), batch=2)
    assert facts["period"] == 5
    assert list(facts["left_out"]) == ["repetition.prefix_matching"]
    assert "written 4 times need 3 ordinary tokens and 12 positions" in facts["left_out"]["repetition.prefix_matching"]
    assert "repetition.copying" in table


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[5, 6, 7], [5, 6]], "ids must be whole numbers in rows of one length"),
        (
            torch.tensor([[0.5, 6.0, 7.0]]),
            r"ids must be whole numbers \[batch, period\], one copy of each sequence; got torch.float",
        ),
        (np.array([[[5, 6, 7]]]), r"ids must be whole numbers \[batch, period\].* \[1, 1, 3\]"),
        ([], "ids must be whole numbers"),
        ([[5, 6, 99]], "ids holds 99, and the model knows the tokens 0 to 98"),
        ([[5, 6, -1]], "ids holds -1"),
        ([[5, 6]], "ids has 2 tokens in a row"),
        ([list(range(5, 45))], "ids has 40 tokens in a row, .* must fit the 80 tokens .* give 3 to 39 tokens a row"),
    ],
)
def test_ids_that_cannot_be_run_are_refused(ids: Any, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        given_sample(source(), ids, 2)


@pytest.mark.parametrize("ids", [[5, 6, 7], np.array([[5, 6, 7]]), torch.tensor([5, 6, 7], dtype=torch.int32)])
def test_ids_come_in_any_form(ids: Any) -> None:
    sample = given_sample(source(), ids, 2)
    assert sample.tolist() == [[5, 6, 7]]
    assert sample.dtype == torch.long


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"period": 0}, "period must be at least 3, got 0"),
        ({"period": FEWEST_TOKENS - 1}, "period must be at least 3, got 2"),
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_options_that_cannot_be_run_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        repetition(tiny_model("gpt2", layers=1), words(DECODER), **options)


def test_a_tokenizer_of_another_model_is_refused() -> None:
    far = words({"pad_token": "<pad>"}, VOCAB)
    far.add_special_tokens({"bos_token": "<s>"})  # 99
    with pytest.raises(CorpusError, match="its special token has the id 99, the model knows 99 tokens"):
        repetition(tiny_model("gpt2", layers=1), far)


def test_a_vocabulary_without_words_is_refused_also_beside_given_ids() -> None:
    with pytest.raises(CorpusError, match="holds no ordinary token to draw"):
        repetition(tiny_model("gpt2", layers=1), words(DECODER, 3), ids=[[5, 6, 7]])


def test_the_model_stays_as_it_was() -> None:
    model: PreTrainedModel = tiny_model("gpt2", layers=1)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    state = torch.get_rng_state()
    repetition(model, words(DECODER), period=5, batch=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
