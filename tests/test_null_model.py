"""Heads that know nothing but position: their profile, and what it gets right, drawn by hand."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from drawn_words import between, heads, looking, parsed, random_heads, seen, whole_words
from torch import Tensor

from headlens.analyzers import DecisionAnalyzer, Shortlisted, Syntax
from headlens.analyzers.word_profile import profile_attention, profile_sums, relative_profile
from headlens.gold.arcs import syntax_arcs
from headlens.gold.shortlists import Question, Shortlists
from headlens.null_model import correct_by_position
from headlens.records import Batch
from headlens.tally import Tally

DOG = parsed("The DET 3 det", "old ADJ 3 amod", "dog NOUN 4 nsubj", "barks VERB 0 root", ". PUNCT 4 punct")
CAT = parsed("See VERB 0 root", "the DET 3 det", "cat NOUN 1 obj")


def syntax(*, is_causal: bool = False) -> Syntax:
    arcs = syntax_arcs([DOG, CAT], {0: seen(5, is_causal=is_causal), 1: seen(3, is_causal=is_causal)})
    return Syntax(arcs, 5, is_causal=is_causal)


def tally_of(analyzer: DecisionAnalyzer, batch: Batch, layers: list[list[Tensor]], *, folds: int = 2) -> Tally:
    """A tally of drawn attention: `layers[layer][input]` is [head, word, word_to]."""
    of_layers = [analyzer.observe(between(batch, *probs), batch) for probs in layers]
    sums = {analyzer.name: {key: torch.stack([of[key] for of in of_layers], dim=1) for key in of_layers[0]}}
    tally = Tally([analyzer], folds)
    of_nothing = {name: {key: torch.zeros_like(value) for key, value in own.items()} for name, own in sums.items()}
    tally.add(sums, of_nothing, batch.document)
    return tally


# ------------------------------------------------------------------------------------------------------------- profile


def test_the_profile_is_the_mean_over_all_pairs_at_a_distance() -> None:
    batch = whole_words(3, 2)
    three = heads([".9 .1 .2", ".3 .9 .5", ".1 .7 .9"])
    two = heads([".9 .6", ".2 .9"])
    sums = profile_sums(between(batch, three, two), batch, 4)
    # -3 .. 3; a word and itself are no pair, and no pair is three words apart
    torch.testing.assert_close(sums["profile"], torch.tensor([[[0, 0.1, 1.2, 0, 1.2, 0.2, 0]]], dtype=torch.float64))
    assert sums["pairs"].tolist() == [[[0, 1, 3, 0, 3, 1, 0]]]
    rho = relative_profile(sums)
    torch.testing.assert_close(rho[0, 0], torch.tensor([0, 0.1, 0.4, 0, 0.4, 0.2, 0], dtype=torch.float64))


def test_the_profile_is_of_pairs_that_can_be_chosen() -> None:
    batch = whole_words(3)
    drawn = heads(["1 . .", ".6 .4 .", ".5 .2 .3"])
    sums = profile_sums(between(batch, drawn, is_causal=True), batch, 3)
    # word 0 is the sink, so that a single pair is left: word 2 and word 1
    assert sums["pairs"].tolist() == [[[0, 1, 0, 0, 0]]]
    torch.testing.assert_close(sums["profile"][0, 0], torch.tensor([0, 0.2, 0, 0, 0], dtype=torch.float64))
    # the same batch asked for another kind of attention
    assert profile_sums(between(batch, drawn), batch, 3)["pairs"].tolist() == [[[1, 2, 0, 2, 1]]]


def test_profiles_of_heads_are_apart_and_in_double_precision() -> None:
    batch = whole_words(2)
    one, other = heads([". .5", ". ."], [". .", ".25 ."]).float()
    sums = profile_sums(between(batch, torch.stack([one, other])), batch, 2)
    assert sums["profile"].tolist() == [[[0, 0, 0.5], [0.25, 0, 0]]]
    assert sums["profile"].dtype == torch.float64


@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_by_profile_is_rho_at_the_distance(is_causal: bool) -> None:
    batch = whole_words(3, 2)
    rho = torch.tensor([[0.1, 0.2, 0.3, 0.0, 0.5, 0.6, 0.7], [1, 2, 3, 4, 5, 6, 7]])
    found = profile_attention(rho, 5, batch, is_causal=is_causal)
    assert (found.layer, found.is_causal, found.to_special.shape) == (5, is_causal, (2, 2, 3, 0))
    assert found.probs[0, 1].tolist() == found.probs[1, 1].tolist() == [[4, 5, 6], [3, 4, 5], [2, 3, 4]]
    torch.testing.assert_close(found.probs[0, 0], torch.tensor([[0, 0.5, 0.6], [0.3, 0, 0.5], [0.2, 0.3, 0]]))
    expected = [[0, 0, 0], [0, 0, 0], [0, 1, 0]] if is_causal else [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
    assert found.candidates[0].int().tolist() == expected


# ---------------------------------------------------------------------------------------------------------- null model

NEXT = [(1, 2, 3, 4, None), (1, 2, None)]
PREVIOUS = [(None, 0, 1, 2, 3), (None, 0, 1)]


def test_a_head_of_a_fixed_offset_is_its_own_null_model() -> None:
    analyzer, batch = syntax(), whole_words(5, 3)
    layers = [[looking(choices) for choices in kind] for kind in (NEXT, PREVIOUS)]
    tally = tally_of(analyzer, batch, layers)
    by_position = correct_by_position(tally, analyzer, [batch], is_causal=False)
    correct = tally.model["syntax"].sums["correct"]
    assert by_position.shape == correct.shape == (2, 2, 1, len(analyzer.arcs.labels))
    assert correct.sum() > 0
    assert torch.equal(by_position, correct)


def test_what_position_alone_gets_right_is_counted_by_fold_and_layer() -> None:
    analyzer, batch = syntax(), whole_words(5, 3, documents=[1, 0])
    mixed = [looking((1, 2, 0, 0, None)), looking((2, 0, None))]
    back = [looking((None, 0, 1, None, None)), looking((None, 0, None))]
    tally = tally_of(analyzer, batch, [mixed, back])
    by_position = correct_by_position(tally, analyzer, [batch], is_causal=False)[..., 0, :] @ analyzer.membership
    found = {name: by_position[..., place].tolist() for place, name in enumerate(analyzer.counted)}
    # rho of layer 0: .5/2 at -3, .5/4 at -2, .5/6 at -1, 1/6 at +1, .5/4 at +2. So words 0 to 2 of DOG and "the" of
    # CAT look at the next word, "cat" two words back though it looked nowhere
    assert found["syntax.dep_to_head[nsubj]"] == [[0, 0], [1, 0]]  # [fold, layer]
    assert found["syntax.dep_to_head[amod]"] == [[0, 0], [1, 0]]
    assert found["syntax.dep_to_head[obj]"] == [[1, 0], [0, 0]]
    assert found["syntax.dep_to_head[det]"] == [[1, 0], [0, 0]]
    # rho of layer 1 is at -1 alone: the previous word, which attends back to nothing, is the head of none
    assert found["syntax.dep_to_head[ALL]"] == [[2, 0], [2, 0]]


def test_the_split_into_batches_is_of_no_matter() -> None:
    analyzer, together = syntax(), whole_words(5, 3)
    tally = tally_of(analyzer, together, [random_heads(3, 5, 3), random_heads(3, 5, 3, seed=1)])
    apart = [whole_words(3, inputs=[1]), whole_words(5, inputs=[0])]
    one = correct_by_position(tally, analyzer, [together], is_causal=False)
    assert one.sum() > 0
    assert torch.equal(one, correct_by_position(tally, analyzer, apart, is_causal=False))


def test_inputs_of_one_fold_add_up() -> None:
    analyzer, batch = syntax(), whole_words(5, 3)
    layers = [random_heads(3, 5, 3)]
    apart = correct_by_position(tally_of(analyzer, batch, layers), analyzer, [batch], is_causal=False)
    together = correct_by_position(tally_of(analyzer, batch, layers, folds=1), analyzer, [batch], is_causal=False)
    assert (apart.sum(dim=(1, 2, 3)) > 0).all()
    assert torch.equal(together[0], apart.sum(dim=0))


def test_equal_to_a_plain_loop() -> None:
    analyzer, batch = syntax(), whole_words(5, 3)
    layers = [random_heads(4, 5, 3, seed=seed) for seed in (5, 6)]
    found = correct_by_position(tally_of(analyzer, batch, layers), analyzer, [batch], is_causal=False)
    arcs = analyzer.arcs
    expected = torch.zeros_like(found)
    for layer, head in product(range(2), range(4)):
        at: dict[int, list[float]] = {}
        for probs in layers[layer]:
            for i, j in product(range(probs.shape[1]), repeat=2):
                at.setdefault(j - i, []).append(float(probs[head, i, j]))
        rho = {distance: np.mean(paid) for distance, paid in at.items()}
        for number, word, target, label, is_column in zip(
            arcs.input, arcs.word, arcs.target, arcs.label, arcs.is_column, strict=True
        ):
            others = [other for other in range((5, 3)[number]) if other != word]
            sign = -1 if is_column else 1
            choice = max(others, key=lambda other, w=word, s=sign: rho[s * (other - w)])
            expected[number, layer, head, label] += float(choice == target)
    assert torch.equal(found, expected)


def test_shortlists_are_decided_by_position_too() -> None:
    listed = Shortlists.of([Question(0, 4, (0, 1, 3), (False, True, False), 1 / 3, ("m",), {})], ["m"])
    analyzer, batch = Shortlisted("coref", listed, 5), whole_words(5)
    three_back = looking((None, 0, None, 0, 3))
    one_back = looking((None, 0, 1, 2, 1))
    tally = tally_of(analyzer, batch, [[torch.cat([three_back, one_back])]], folds=1)
    assert tally.model["coref"].sums["correct"][0, 0, :, 0].tolist() == [0, 1]
    found = correct_by_position(tally, analyzer, [batch], is_causal=False)
    # rho of head 0: 1/4 at -1, .5/2 at -3, equal, and word 1 comes first; of head 1: 1.5/4 at -1, .5/2 at -3
    assert found[0, 0, :, 0].tolist() == [1, 0]
