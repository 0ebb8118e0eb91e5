"""Analyzers on drawn attention: each score known by hand, and the contract that all analyzers keep."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from headlens.analyzers import ANALYZERS, Analyzer, Position, Surface
from headlens.analyzers.position import offset_profile
from headlens.records import Batch, LayerAttention
from headlens.testing import draw


def attention_of(*patterns: Tensor, is_causal: bool = False, start: int = 0) -> LayerAttention:
    """One layer; each pattern [query, key] is a head, of a single sentence."""
    probs = torch.stack(patterns)[None]
    empty = torch.zeros(1, len(patterns), probs.shape[2], 1, dtype=probs.dtype)
    keys = torch.zeros(1, len(patterns), probs.shape[3], 1, dtype=probs.dtype)
    return LayerAttention(0, empty, keys, keys, probs, empty, start, "encoder", is_causal)


def batch_of(tokens: int, special: tuple[int, ...] = (), **classes: tuple[int, ...]) -> Batch:
    """One sentence; `special` and the classes give positions."""

    def marks(where: tuple[int, ...]) -> Tensor:
        return torch.tensor([[i in where for i in range(tokens)]])

    members = {"first": (0,), **classes}
    ids = torch.arange(tokens)[None]
    real = torch.ones(1, tokens, dtype=torch.bool)
    named = {name: marks(where) for name, where in members.items()}
    return Batch(ids, real, marks(special), torch.zeros(1, dtype=torch.long), named)


def scores_of(analyzer: Analyzer, attention: LayerAttention, batch: Batch) -> dict[str, list[float]]:
    scores = analyzer.score({key: value.double() for key, value in analyzer.observe(attention, batch).items()})
    return {name: [round(x, 10) for x in value[0].tolist()] for name, value in scores.items()}


def test_a_previous_token_head() -> None:
    head = draw(["1 . . .", "1 . . .", ". 1 . .", ". . 1 ."])
    scores = scores_of(Position(), attention_of(head), batch_of(4))
    # the first token has no previous one: it counts 0 in the mass, and is no case of mass_valid
    assert scores["position.mass[-1]"] == [0.75]
    assert scores["position.mass_valid[-1]"] == [1.0]
    assert scores["position.argmax[-1]"] == [0.75]
    assert scores["position.mass[0]"] == [0.25]
    assert scores["position.mass[1]"] == [0.0]
    assert scores["position.distance"] == [0.75]
    assert scores["position.distance_signed"] == [-0.75]


def test_a_next_token_head_is_not_a_previous_token_head() -> None:
    head = draw([". 1 . .", ". . 1 .", ". . . 1", ". . . 1"])
    scores = scores_of(Position(), attention_of(head), batch_of(4))
    assert scores["position.mass[1]"] == [0.75]
    assert scores["position.mass[-1]"] == [0.0]
    assert scores["position.distance_signed"] == [0.75]


def test_special_tokens_are_targets_but_no_rows() -> None:
    # [CLS] a b [SEP]: row a looks back at [CLS], row b at a; the rows of [CLS] and [SEP] would look ahead
    head = draw([". . . 1", "1 . . .", ". 1 . .", "1 . . ."])
    scores = scores_of(Position(), attention_of(head), batch_of(4, special=(0, 3)))
    assert scores["position.mass[-1]"] == [1.0]
    assert scores["position.mass_valid[-1]"] == [1.0]  # of b only: the target of a is special
    assert scores["position.mass[3]"] == [0.0]
    assert scores["position.distance"] == [1.0]


def test_mass_valid_leaves_out_rows_whose_target_is_special() -> None:
    # [CLS] a b: a puts .2 on [CLS], b puts .6 on a
    head = draw(["1 . .", ".2 .8 .", ".4 .6 ."])
    scores = scores_of(Position(), attention_of(head), batch_of(3, special=(0,)))
    assert scores["position.mass[-1]"] == [0.4]
    assert scores["position.mass_valid[-1]"] == [0.6]


def test_the_first_of_equal_keys_is_the_strongest() -> None:
    head = draw([".5 .5 .", ".5 . .5", ". .5 .5"])
    scores = scores_of(Position(), attention_of(head), batch_of(3))
    assert scores["position.argmax[0]"] == [round(1 / 3, 10)]
    assert scores["position.argmax[-1]"] == [round(2 / 3, 10)]
    assert scores["position.argmax[1]"] == [0.0]


def test_local_is_over_its_chance() -> None:
    # 6 tokens, uniform: exactly chance; all mass on oneself: each row holds 1, chance is (3+4+5+5+4+3)/6/6
    uniform, own = torch.full((6, 6), 1 / 6, dtype=torch.float64), torch.eye(6, dtype=torch.float64)
    scores = scores_of(Position(), attention_of(uniform, own), batch_of(6))
    assert scores["position.local"] == [1.0, 1.5]


def test_local_of_a_causal_model_counts_what_is_visible() -> None:
    # 4 tokens: the neighbourhood holds 1/1, 2/2, 3/3, 3/4 of the visible keys
    own = torch.eye(4, dtype=torch.float64)
    scores = scores_of(Position(), attention_of(own, is_causal=True), batch_of(4))
    assert scores["position.local"] == [round(4 / 3.75, 10)]


def test_variability_is_zero_for_a_fixed_distance_and_one_for_a_fixed_key() -> None:
    shift = torch.roll(torch.eye(9, dtype=torch.float64), 1, dims=0)
    shift[0] = 0  # the first row has no previous token
    # each distance is met once by row 4 only: a row that moves its choice about has no distance of its own
    scores = scores_of(Position(), attention_of(shift), batch_of(9))
    assert scores["position.variability"] == [0.0]
    mixed = draw([". 1 .", "1 . .", ". 1 ."])  # offsets +1, -1, -1
    # pairs by distance: -2: 1, -1: 2, 0: 3, 1: 2, 2: 1; mass 0, 2, 0, 1, 0; squares 3; mean mass 1/3
    # variance about the mean 3 - 9/9 = 2, explained 2*2/2 + 1*1/2 - 1 = 1.5
    scores = scores_of(Position(), attention_of(mixed), batch_of(3))
    assert scores["position.variability"] == [0.25]


def test_mass_on_kinds_of_tokens() -> None:
    # [CLS] a , b . [SEP]; rows a , b .
    rows = ["1 . . . . ."] + [".1 .1 .2 .1 .3 .2"] * 2 + [". . 1 . . .", "1 . . . . ."] + ["1 . . . . ."]
    batch = batch_of(6, special=(0, 5), cls=(0,), sep=(5,), comma=(2,), full_stop=(4,))
    scores = scores_of(Surface(), attention_of(draw(rows)), batch)
    assert scores["surface.first"] == scores["surface.cls"] == [0.3]
    assert scores["surface.sep"] == [0.1]
    assert scores["surface.comma"] == [0.35]
    assert scores["surface.full_stop"] == [0.15]
    assert scores["surface.special"] == [0.0]
    assert scores["surface.sink_rows"] == [0.25]  # .3, .3, 0 and 1 on [CLS] and [SEP] together


def test_entropy_breadth_confidence() -> None:
    sharp, even = torch.eye(4, dtype=torch.float64), torch.full((4, 4), 0.25, dtype=torch.float64)
    scores = scores_of(Surface(), attention_of(sharp, even), batch_of(4))
    assert scores["surface.entropy"] == [0.0, round(math.log(4), 10)]
    assert scores["surface.breadth"] == [0.0, 1.0]
    assert scores["surface.confidence"] == [1.0, 0.25]


def test_breadth_of_a_causal_model_is_over_the_visible_keys() -> None:
    head = draw(["1 . .", ".5 .5 .", "1 . ."])
    scores = scores_of(Surface(), attention_of(head, is_causal=True), batch_of(3))
    assert scores["surface.breadth"] == [round(math.log(2) / (math.log(2) + math.log(3)), 10)]


@pytest.mark.parametrize("start", [0, 3])
def test_offset_profile_is_the_sum_along_diagonals(start: int) -> None:
    probs = torch.rand(2, 3, 4, 9, dtype=torch.float64)
    rows = torch.tensor([[True, False, True, True], [True, True, True, False]])
    profile, distance = offset_profile(probs, rows, start)
    for place, d in enumerate(distance.tolist()):
        for b in range(2):
            along = [probs[b, :, i, i + start + d] for i in range(4) if rows[b, i] and 0 <= i + start + d < 9]
            expected = torch.stack(along).sum(dim=0) if along else torch.zeros(3, dtype=torch.float64)
            torch.testing.assert_close(profile[b, :, place], expected, rtol=0, atol=1e-12)


# ------------------------------------------------------------------------------------- the contract of every analyzer


def random_case(is_causal: bool) -> tuple[LayerAttention, Batch]:
    """Two sentences of 9 and 6 tokens, three heads, [CLS] and [SEP]; rubbish in the rows of padding."""
    real = torch.arange(9) < torch.tensor([[9], [6]])
    special = (torch.arange(9) == 0) | (torch.arange(9) == torch.tensor([[8], [5]]))
    seen = real[:, None, None] & (torch.ones(9, 9, dtype=torch.bool).tril() if is_causal else torch.tensor(True))
    probs = torch.randn(2, 3, 9, 9, dtype=torch.float64).masked_fill(~seen, -torch.inf).mul(3).softmax(dim=-1)
    probs = torch.where(real[:, None, :, None], probs, torch.rand_like(probs))
    classes = {"first": torch.arange(9).expand(2, 9) == 0, "comma": torch.arange(9).expand(2, 9) == 3}
    batch = Batch(torch.arange(18).view(2, 9), real, special & real, torch.tensor([0, 1]), classes)
    empty = torch.zeros(2, 3, 9, 1, dtype=torch.float64)
    return LayerAttention(0, empty, empty, empty, probs, empty, 0, "encoder", is_causal), batch


def part_of(attention: LayerAttention, batch: Batch, row: slice, tokens: int) -> tuple[LayerAttention, Batch]:
    cut = {name: getattr(attention, name)[row, :, :tokens] for name in ("q", "k", "v", "context")}
    attention = dataclasses.replace(attention, **cut, probs=attention.probs[row, :, :tokens, :tokens])
    tensors = (t[row, :tokens] for t in (batch.input_ids, batch.attention_mask, batch.special))
    classes = {name: member[row, :tokens] for name, member in batch.token_classes.items()}
    return attention, Batch(*tensors, batch.document[row], classes)


@pytest.fixture(params=[make() for make in ANALYZERS.values()], ids=list(ANALYZERS))
def analyzer(request: pytest.FixtureRequest) -> Analyzer:
    return request.param


@pytest.mark.parametrize("is_causal", [False, True])
def test_padding_does_not_count(analyzer: Analyzer, is_causal: bool) -> None:
    attention, batch = random_case(is_causal)
    together = analyzer.observe(attention, batch)
    alone = analyzer.observe(*part_of(attention, batch, slice(1, 2), 6))
    for key, sums in together.items():
        torch.testing.assert_close(sums[1:].double(), alone[key].double(), rtol=0, atol=1e-12, msg=key)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("rows", [1, 4])
def test_slices_of_rows_add_up(analyzer: Analyzer, is_causal: bool, rows: int) -> None:
    attention, batch = random_case(is_causal)
    whole = analyzer.observe(attention, batch)
    per_batch = {"keys"}  # facts about the input, not sums over its rows
    total: dict[str, Tensor] = {}
    for start in range(0, 9, rows):
        stop = min(start + rows, 9)
        keys = stop if is_causal else 9  # a causal slice ends where no row may look further
        part = dataclasses.replace(
            attention,
            **{name: getattr(attention, name)[:, :, start:stop] for name in ("q", "context")},
            **{name: getattr(attention, name)[:, :, :keys] for name in ("k", "v")},
            probs=attention.probs[:, :, start:stop, :keys],
            query_start=start,
        )
        for key, value in analyzer.observe(part, batch).items():
            total[key] = total.get(key, torch.zeros(())) + value.double()
    for key, sums in whole.items():
        if key not in per_batch:
            torch.testing.assert_close(total[key], sums.double(), rtol=0, atol=1e-12, msg=key)


def test_padding_on_the_left_changes_nothing(analyzer: Analyzer) -> None:
    attention, batch = part_of(*random_case(False), slice(1, 2), 9)
    moved = dataclasses.replace(attention, probs=attention.probs.roll((3, 3), dims=(2, 3)))
    tensors = (t.roll(3, dims=1) for t in (batch.input_ids, batch.attention_mask, batch.special))
    classes = {name: member.roll(3, dims=1) for name, member in batch.token_classes.items()}
    left = analyzer.observe(moved, Batch(*tensors, batch.document, classes))
    for key, sums in analyzer.observe(attention, batch).items():
        torch.testing.assert_close(left[key].double(), sums.double(), rtol=0, atol=1e-12, msg=key)


def test_heads_do_not_leak_and_nothing_is_changed(analyzer: Analyzer) -> None:
    attention, batch = random_case(False)
    before = attention.probs.clone()
    sums = analyzer.observe(attention, batch)
    assert torch.equal(attention.probs, before)
    turned = analyzer.observe(dataclasses.replace(attention, probs=attention.probs[:, [2, 0, 1]]), batch)
    for key, value in sums.items():
        if value.shape[1] == 3:
            torch.testing.assert_close(turned[key], value[:, [2, 0, 1]], rtol=0, atol=1e-12, msg=key)


def test_metrics_are_what_score_and_support_return(analyzer: Analyzer) -> None:
    sums = analyzer.observe(*random_case(False))
    names = [metric.name for metric in analyzer.metrics]
    assert list(analyzer.score(sums)) == names
    assert set(analyzer.support(sums)) == set(names)
    assert set(analyzer.chance(sums)) == set(names)
    assert all(value.shape == (2, 3) for value in analyzer.score(sums).values())
    assert all(name.startswith(f"{analyzer.name}.") for name in names)
