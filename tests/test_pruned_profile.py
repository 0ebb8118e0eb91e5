"""Profiles of pruned models: every head in its old place, with the scores that it has in a model whose others are mute.

The reference is the masked twin, a stock model of full size in which the removed heads' part of W_O is zero.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from grammar_words import VOCABULARY, grammar_words
from test_collect import TEXTS, tokenizer
from transformers import BertConfig, BertForMaskedLM, GPT2LMHeadModel, PreTrainedModel

import headlens
from headlens.analyze import analyze
from headlens.analyzers import ANALYZERS
from headlens.analyzers.contribution import Contribution
from headlens.behaviour.ablation import ablate_heads
from headlens.behaviour.agreement import ablate_agreement
from headlens.behaviour.circuits import circuits
from headlens.behaviour.losses import about_text
from headlens.behaviour.parts import PARTS
from headlens.behaviour.repetition import repetition
from headlens.behaviour.similarity import similarity
from headlens.behaviour.unembedding import unembedding
from headlens.capture import capture
from headlens.collect import bytes_needed, collect
from headlens.comparison import compare
from headlens.controls import controls, reinitialised
from headlens.corpora.grammar import grammar_texts
from headlens.encode import encode_texts, encode_words
from headlens.errors import CaptureError, CorpusError, OutputError, UnsupportedModel
from headlens.model_facts import facts_of
from headlens.models import LoadedModel
from headlens.plan import HeadPlan
from headlens.records import Batch
from headlens.replace import replace_attention
from headlens.results import Profile
from headlens.scores import ScoreTable, head_name
from headlens.show import attention_of
from headlens.surgery import apply_plan, expand_to_multi_head, full_plan, masked_twin, mean_contexts
from headlens.tally import Tally
from headlens.testing import padded_inputs, tiny_model
from headlens.word_pass import word_attention
from headlens.words import chunk_input

pytestmark = pytest.mark.slow  # many models; CI runs them as its own step

LAYERS, HEADS = 3, 4
# layer 1 loses all its heads; and the same of a grouped model, of which whole key/value groups go
REMOVED = [(0, 0), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]
GROUPS = [(0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1)]
ONE_AND_TWO = [(0, 0), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 2)]
ONE_A_LAYER = [(layer, head) for layer in range(LAYERS) for head in range(HEADS) if head != layer + 1]
TWO_LEFT = [(layer, head) for layer in range(LAYERS) for head in range(HEADS) if (layer, head) not in [(0, 1), (2, 3)]]
EVERYTHING = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
CASES = {
    "an empty layer": REMOVED,
    "one head a layer": ONE_A_LAYER,
    "one head or none": TWO_LEFT,
    "one and two": ONE_AND_TWO,
}
EXACT: Any = {"rtol": 1e-9, "atol": 1e-9}  # float64; the softmax of Llama is in float32, see SINGLE
SINGLE: Any = {"rtol": 1e-5, "atol": 1e-5}


def pruned(model: PreTrainedModel, removed: Sequence[tuple[int, int]] = REMOVED) -> PreTrainedModel:
    return apply_plan(model, full_plan(model).without(removed))


def muted(model: PreTrainedModel, removed: Sequence[tuple[int, int]] = REMOVED) -> PreTrainedModel:
    return masked_twin(model, full_plan(model).without(removed))


def is_there(removed: Sequence[tuple[int, int]]) -> Any:
    present = np.ones((LAYERS, HEADS), dtype=bool)
    present[tuple(np.array(removed).T)] = False
    return present


def assert_same_where_present(
    found: ScoreTable, whole: ScoreTable, removed: Sequence[tuple[int, int]], **near: Any
) -> None:
    """The heads that are there have the scores of `whole`, and the others have none."""
    there = is_there(removed)
    assert found.metrics == whole.metrics
    np.testing.assert_allclose(found.chance, whole.chance, **EXACT)
    for name in ("values", "low", "high", "support"):
        now, before = getattr(found, name), getattr(whole, name)
        np.testing.assert_allclose(now[:, there], before[:, there], err_msg=name, **near)
        absent = now[:, ~there]
        assert (absent == 0).all() if name == "support" else np.isnan(absent).all()


def batches() -> list[Batch]:
    return encode_texts(TEXTS, tokenizer(), max_length=64, batch_tokens=40).batches


# -------------------------------------------------------------------------------------------------- scores of any text


@pytest.mark.parametrize("removed", CASES.values(), ids=CASES)
@pytest.mark.parametrize(("family", "near"), [("bert", EXACT), ("gpt2", EXACT), ("llama", SINGLE)])
def test_scores_are_those_of_a_model_whose_other_heads_are_mute(family: str, near: Any, removed: Any) -> None:
    model = tiny_model(family)
    removed = GROUPS if family == "llama" and removed == REMOVED else removed
    if family == "llama" and removed != GROUPS:
        model = tiny_model(family, num_key_value_heads=HEADS)

    def scores(one: PreTrainedModel) -> ScoreTable:
        scorers = [*(make() for make in ANALYZERS.values()), Contribution(one)]
        return analyze(one, batches(), scorers, documents=len(TEXTS)).scores()

    assert_same_where_present(scores(pruned(model, removed)), scores(muted(model, removed)), removed, **near)


def test_the_order_in_which_a_checkpoint_holds_its_heads_makes_no_difference() -> None:
    model = tiny_model("gpt2")
    orders = [(((2,), (0,)), ((1,),), ((3,), (1,), (0,))), (((0,), (2,)), ((1,),), ((0,), (1,), (3,)))]
    one, other = (apply_plan(model, HeadPlan(HEADS, HEADS, order)) for order in orders)
    tables = [
        (
            analyze(each, batches(), [ANALYZERS["position"](), Contribution(each)], documents=len(TEXTS)).scores(),
            circuits(each).scores,
            similarity(each, batches()),
            collect(each, tokenizer(), TEXTS[:1], ("context",)),
        )
        for each in (one, other)
    ]
    mixed, ordered = tables
    np.testing.assert_allclose(mixed[0].values, ordered[0].values, **EXACT)
    np.testing.assert_allclose(mixed[1].values, ordered[1].values, **EXACT)
    np.testing.assert_allclose(mixed[2].distance, ordered[2].distance, **EXACT)
    np.testing.assert_allclose(mixed[3][0].context, ordered[3][0].context, **SINGLE)
    assert mixed[2].heads == ordered[2].heads == ((0, 0), (0, 2), (1, 1), (2, 0), (2, 1), (2, 3))


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_below_the_removed_heads_nothing_changes_but_their_share_of_the_layer(family: str) -> None:
    model = tiny_model(family)
    before, after = (
        headlens.profile(one, headlens.texts(TEXTS), tokenizer=tokenizer(), parts=("contribution", "circuits")).scores
        for one in (model, pruned(model))
    )
    for name in before.names:
        place = before.index(name)
        was, now = (table.values[place, 0, 1:3] for table in (before, after))
        if name.startswith("contribution.size"):
            assert (now > was).all()  # of what the two that are left write together
            assert now.sum() == pytest.approx(1)
        else:
            np.testing.assert_allclose(now, was, err_msg=name, **EXACT)
    changed = before["position.mass[-1]"][2] - after["position.mass[-1]"][2]
    assert (np.abs(changed[[0, 3]]) > 1e-3).all()


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_a_plan_that_removes_nothing_changes_no_byte(family: str, tmp_path: Path) -> None:
    model = tiny_model(family)
    for side, one in (("before", model), ("after", apply_plan(model, full_plan(model)))):
        found = headlens.profile(
            one, headlens.texts(TEXTS), tokenizer=tokenizer(), parts=("contribution", "similarity")
        )
        assert found.similarity is not None
        (tmp_path / side).mkdir()
        for name, write in (found.scores.writers() | found.similarity.writers()).items():
            write(tmp_path / side / name)
    for before in (tmp_path / "before").iterdir():
        assert before.read_bytes() == (tmp_path / "after" / before.name).read_bytes()


def test_a_plan_is_told_in_the_provenance() -> None:
    model = tiny_model("bert")
    told = headlens.profile(pruned(model), headlens.texts(TEXTS), tokenizer=tokenizer(), parts=()).provenance["model"]
    assert told["heads_kept"] == 4
    assert HeadPlan.from_dict(told["plan"]) == HeadPlan.full(LAYERS, HEADS).without(REMOVED)
    assert (told["layers"], told["heads"], told["family"]) == (LAYERS, HEADS, "bert")


# ----------------------------------------------------------------------------------------- everything at once, on words


@pytest.fixture(scope="module")
def model() -> GPT2LMHeadModel:
    base = tiny_model("gpt2", vocab_size=len(VOCABULARY), n_positions=128, std=0.5)
    whole = GPT2LMHeadModel(base.config).double().eval()
    whole.transformer.load_state_dict(base.state_dict())
    whole.tie_weights()
    return whole


@pytest.fixture(scope="module")
def profiles(model: GPT2LMHeadModel) -> tuple[Profile, Profile]:
    """Of the pruned model and of its masked twin, with all that there is."""
    options: dict[str, Any] = {"parts": PARTS, "ensembles": True, "probe": True, "controls": 1}
    found, whole = (
        headlens.profile(one, "grammar:40", tokenizer=grammar_words(), **options)
        for one in (pruned(model), muted(model))
    )
    return found, whole


def test_all_scores_are_those_of_a_model_whose_other_heads_are_mute(profiles: tuple[Profile, Profile]) -> None:
    found, whole = (one.scores for one in profiles)
    # weights are read as they are, whatever the others write: the largest of fewer pairs is no more than of all
    of_pairs = [name for name in found.names if name.endswith("_composition")]
    assert len(of_pairs) == 3
    kept = [place for place, name in enumerate(found.names) if name not in of_pairs]
    tables = [
        ScoreTable(
            tuple(table.metrics[place] for place in kept),
            **{name: getattr(table, name)[kept] for name in ("values", "support", "low", "high", "chance")},
        )
        for table in (found, whole)
    ]
    assert_same_where_present(*tables, REMOVED, **EXACT)
    assert found.n_present == 4


def test_evidence_is_of_heads_that_are_there(profiles: tuple[Profile, Profile]) -> None:
    found, whole = (one.evidence for one in profiles)
    assert found is not None
    assert whole is not None
    there = is_there(REMOVED)
    for name in ("value", "expected", "profile", "p"):
        now, before = getattr(found, name), getattr(whole, name)
        np.testing.assert_allclose(now[:, there], before[:, there], err_msg=name, **EXACT)
    for name in ("value", "expected", "profile", "p", "q"):
        assert np.isnan(getattr(found, name)[:, ~there]).all()
    for row in (*found.metrics, *found.relations):
        assert there[row.layer, row.head]


def test_evidence_of_single_heads_is_that_of_a_model_whose_other_heads_are_mute(model: GPT2LMHeadModel) -> None:
    found, whole = (
        headlens.profile(one, "grammar:40", tokenizer=grammar_words(), parts=()).evidence
        for one in (pruned(model, TWO_LEFT), muted(model, TWO_LEFT))
    )
    assert found is not None
    assert whole is not None
    there = is_there(TWO_LEFT)
    for name in ("value", "expected", "profile", "p"):
        now, before = getattr(found, name), getattr(whole, name)
        np.testing.assert_allclose(now[:, there], before[:, there], err_msg=name, **EXACT)
        assert np.isnan(now[:, ~there]).all()


def test_only_heads_that_are_there_are_tested(profiles: tuple[Profile, Profile]) -> None:
    evidence = profiles[0].evidence
    assert evidence is not None
    enough = [row.decisions >= evidence.settings.minimum for row in evidence.metrics]
    p = np.sort(evidence.p[enough][:, is_there(REMOVED)].ravel())
    assert p.size == 4 * sum(enough) > 0
    # Benjamini and Hochberg 1995: the smallest of p times tests over rank, from each on
    adjusted = np.minimum.accumulate((p * p.size / np.arange(1, p.size + 1))[::-1])[::-1].clip(max=1)
    np.testing.assert_allclose(np.sort(evidence.q[np.isfinite(evidence.q)]), adjusted, **EXACT)


def test_roles_examples_and_effects_are_of_heads_that_are_there(profiles: tuple[Profile, Profile]) -> None:
    found, whole = profiles
    there = {tuple(head) for head in np.argwhere(is_there(REMOVED)).tolist()}
    assert {(one.layer, one.head) for one in found.roles} <= there
    assert found.examples is not None
    assert {(one.layer, one.head) for one in found.examples} == there
    effects = {one["name"]: one["change"] for one in found.provenance["ablation"]["effects"]}
    expected = {one["name"]: one["change"] for one in whole.provenance["ablation"]["effects"]}
    assert effects.keys() == {head_name(*head) for head in there}
    for name, change in effects.items():
        assert change == pytest.approx(expected[name], abs=1e-9)


def test_examples_are_those_of_a_model_whose_other_heads_are_mute(profiles: tuple[Profile, Profile]) -> None:
    found, whole = (one.examples for one in profiles)
    assert found is not None
    assert whole is not None
    for place in np.argwhere(is_there(REMOVED)).tolist():
        assert {one.words for one in found.of(*place)} <= {one.words for one in whole}
        for one in found.of(*place):
            same = [other for other in whole.of(*place) if other.words == one.words]
            assert all(other.arcs == one.arcs for other in same)
        assert found.of(*place)


def test_ensembles_are_of_heads_that_are_there(profiles: tuple[Profile, Profile]) -> None:
    names = {head_name(*head) for head in np.argwhere(is_there(REMOVED)).tolist()}
    found = profiles[0].provenance["ensembles"]
    assert found
    for one in found:
        assert {*one["heads"], *(name for half in one["halves"] for name in half)} <= names


def test_controls_have_lost_the_same_heads(profiles: tuple[Profile, Profile]) -> None:
    found = profiles[0].provenance["controls"]
    named = {name for names in found["heads"].values() for name in names}
    assert named <= {head_name(*head) for head in np.argwhere(is_there(REMOVED)).tolist()}
    assert found["best"]


def test_heads_are_as_alike_as_those_of_a_model_whose_other_heads_are_mute(profiles: tuple[Profile, Profile]) -> None:
    found, whole = (one.similarity for one in profiles)
    assert found is not None
    assert whole is not None
    assert found.heads == ((0, 1), (0, 2), (2, 0), (2, 3))
    places = [whole.heads.index(head) for head in found.heads]
    np.testing.assert_allclose(found.distance, whole.distance[np.ix_(places, places)], **EXACT)


def test_a_saved_profile_of_a_pruned_model_is_loaded_and_shown(profiles: tuple[Profile, Profile], tmp_path: Path):
    found = profiles[0]
    page = found.save(tmp_path).read_text()
    assert "L1H2: not defined" in page
    loaded = Profile.load(tmp_path)
    assert loaded.scores.equals(found.scores)
    assert loaded.roles.held == found.roles.held
    assert loaded.heads("L1H2").lines == ["no role"]


def test_a_comparison_tells_what_was_removed(model: GPT2LMHeadModel, profiles: tuple[Profile, Profile]) -> None:
    whole = headlens.profile(model, "grammar:40", tokenizer=grammar_words(), parts=())
    (pair,) = compare([whole, profiles[0]], ["whole", "pruned"]).pairs
    assert pair.removed == REMOVED
    assert pair.added == []
    lost = [one for change in pair.roles for one in change.heads if one.fate == "lost" and one.is_removed]
    had = {(one.role.id, one.layer, one.head) for one in whole.roles if (one.layer, one.head) in REMOVED}
    assert {(one.role.id, one.layer, one.head) for one in lost} == had
    assert had


# ------------------------------------------------------------------------------------------------- what reads weights


def test_what_weights_say_of_a_head_does_not_depend_on_the_others(model: GPT2LMHeadModel) -> None:
    found, whole = circuits(pruned(model)), circuits(model)
    there = is_there(REMOVED)
    for name in whole.scores.names[:5]:
        np.testing.assert_allclose(found.scores[name][there], whole.scores[name][there], err_msg=name, **EXACT)
    assert np.isnan(found.scores.values[:, ~there]).all()
    assert (found.scores.support[:, ~there] == 0).all()
    pairs = np.ix_(there.ravel(), there.ravel())
    for kind in ("q", "k", "v"):
        now, before = (one.compositions[kind] for one in (found, whole))
        flat = [one.values.reshape(LAYERS * HEADS, -1) for one in (now, before)]
        np.testing.assert_allclose(flat[0][pairs], flat[1][pairs], **EXACT)
        assert np.isfinite(flat[0]).sum() == np.isfinite(flat[1][pairs]).sum() == 4  # of the first layer to the last
        np.testing.assert_allclose(now.largest()[2, [0, 3]], before.values[0, 1:3, 2][:, [0, 3]].max(axis=0), **EXACT)
        assert found.scores.support[found.scores.index(f"circuits.{kind}_composition")].tolist() == [
            [0, 0, 0, 0],
            [0, 0, 0, 0],
            [2, 0, 0, 2],
        ]


@pytest.mark.parametrize(("family", "removed"), [("bert", REMOVED), ("gpt_neox", REMOVED), ("llama", GROUPS)])
def test_weights_of_other_layouts_are_those_of_the_original(family: str, removed: Any) -> None:
    one = tiny_model(family)
    there = is_there(removed)
    found, whole = (circuits(each).scores["circuits.ov_eigenvalue"] for each in (pruned(one, removed), one))
    np.testing.assert_allclose(found[there], whole[there], **EXACT)
    assert np.isnan(found[~there]).all()


@pytest.mark.parametrize("removed", CASES.values(), ids=CASES)
def test_copying_is_that_of_a_model_whose_other_heads_are_mute(model: GPT2LMHeadModel, removed: Any) -> None:
    def scores(one: GPT2LMHeadModel) -> ScoreTable:
        return repetition(one.base_model, grammar_words(), model=one, period=12, batch=3)[0]

    found = scores(pruned(model, removed))
    assert "repetition.copying" in found
    assert_same_where_present(found, scores(muted(model, removed)), removed, **EXACT)


def test_random_weights_are_drawn_for_the_heads_that_are_there(model: GPT2LMHeadModel) -> None:
    few = pruned(model).base_model
    fresh = reinitialised(few, 3)
    assert {name: one.shape for name, one in fresh.named_parameters()} == {
        name: one.shape for name, one in few.named_parameters()
    }
    assert not torch.equal(fresh.h[0].attn.c_attn.weight, few.h[0].attn.c_attn.weight)
    whole = reinitialised(model.base_model, 3).h[0].attn.c_attn.weight
    rows = torch.cat([torch.arange(8, 24) + start for start in (0, 32, 64)])  # of heads 1 and 2, in q, k and v
    assert torch.equal(fresh.h[0].attn.c_attn.weight, whole[:, rows])


def test_the_best_of_random_heads_is_one_that_is_there() -> None:
    def run(copy: PreTrainedModel) -> Tally:
        scorers = [ANALYZERS["surface"](), ANALYZERS["position"]()]
        return Tally.joined([analyze(copy, batches(), [scorer], documents=len(TEXTS)) for scorer in scorers])

    best = controls(pruned(tiny_model("gpt2")), run, copies=1).best
    assert best["position.distance_signed"][0].value < 0  # where a head that is not there would have 0
    assert all(is_there(REMOVED)[one.layer, one.head] for (one,) in best.values())


def test_random_weights_are_drawn_for_a_model_that_got_an_output_bias() -> None:
    model = tiny_model("llama")
    few = apply_plan(model, full_plan(model).without(GROUPS), fill=mean_contexts(model, batches()))
    fresh = reinitialised(few, 3)
    assert few.layers[1].self_attn.o_proj.bias.abs().min() > 0
    assert {name: one.shape for name, one in fresh.named_parameters()} == {
        name: one.shape for name, one in few.named_parameters()
    }
    assert torch.equal(fresh.layers[1].self_attn.o_proj.bias, torch.zeros(32, dtype=torch.float64))


# -------------------------------------------------------------------------------------------------- one head, one text


def test_attention_between_words_is_of_the_heads_that_are_there(model: GPT2LMHeadModel) -> None:
    one, other = (list(word_attention(each.base_model, word_batches())) for each in (pruned(model), muted(model)))
    for (_, found), (_, whole) in zip(one, other, strict=True):
        assert [(layer.layer, layer.head_ids) for layer in found] == [(0, (1, 2)), (2, (0, 3))]
        for layer in found:
            for name in ("probs", "to_special"):
                before = getattr(whole[layer.layer], name)[:, list(layer.head_ids or ())]
                torch.testing.assert_close(getattr(layer, name), before, rtol=0, atol=1e-12)


def word_batches() -> list[Batch]:
    texts = islice(grammar_texts(3), 3)
    inputs = [chunk_input(text.document.sentences, number) for number, text in enumerate(texts)]
    return encode_words(inputs, grammar_words(), max_length=128).batches


def test_one_head_on_a_text_is_the_one_that_is_asked_for(model: GPT2LMHeadModel) -> None:
    loaded = loaded_as(pruned(model))
    shown = attention_of(loaded, "the dog sees the cat", 2, 3)
    expected = attention_of(loaded_as(muted(model)), "the dog sees the cat", 2, 3)
    assert shown == expected
    assert shown != dataclasses.replace(attention_of(loaded, "the dog sees the cat", 2, 0), head=3)


@pytest.mark.parametrize("head", [(0, 3), (1, 1)])
def test_a_removed_head_is_not_shown(model: GPT2LMHeadModel, head: tuple[int, int]) -> None:
    with pytest.raises(OutputError, match=rf"{head_name(*head)} was removed from 'a model'"):
        attention_of(loaded_as(pruned(model)), "the dog sees the cat", *head)


def loaded_as(model: PreTrainedModel) -> LoadedModel:
    facts = {"weights_sha256": None, **facts_of(model)}
    return LoadedModel(model, grammar_words(), "a model", "memory", facts)


def test_a_removed_head_cannot_be_taken_out(model: GPT2LMHeadModel) -> None:
    given = encode_texts(["the dog sees the cat ."], grammar_words(), max_length=64).batches
    with pytest.raises(CorpusError, match="L0H3 was removed from the model"):
        ablate_heads(loaded_as(pruned(model)), given, {(0, 1): "text", (0, 3): "text"})


def test_random_sets_of_heads_hold_none_that_was_removed(model: GPT2LMHeadModel) -> None:
    texts = list(islice(grammar_texts(3), 6))
    few, twin = pruned(model), muted(model)
    found = ablate_agreement(few, grammar_words(), texts, [(0, 1)])
    alone = [ablate_agreement(twin, grammar_words(), texts, [head], sets=1) for head in [(0, 2), (2, 0), (2, 3)]]
    assert found.random == tuple(one.ablated for one in alone)
    assert found.intact == alone[0].intact
    with pytest.raises(CorpusError, match="L1H0 was removed from the model"):
        ablate_agreement(few, grammar_words(), texts, [(1, 0)])


# ------------------------------------------------------------------------------------------------------------- arrays


@pytest.mark.parametrize(("family", "removed"), [("bert", REMOVED), ("llama", GROUPS)])
def test_arrays_hold_heads_in_their_old_places(family: str, removed: Any) -> None:
    model = tiny_model(family)
    what: Any = ("q", "k", "v", "probs", "context", "contribution")
    found, whole = (
        collect(one, tokenizer(), TEXTS[:2], what) for one in (pruned(model, removed), muted(model, removed))
    )
    there = is_there(removed)
    for now, before in zip(found, whole, strict=True):
        for name in what:
            some = (
                there[:, ::2] if family == "llama" and name in ("k", "v") else there
            )  # a group of two shares its keys
            arrays: list[Any] = [getattr(one, name) for one in (now, before)]
            assert arrays[0].shape == arrays[1].shape
            np.testing.assert_allclose(arrays[0][some], arrays[1][some], err_msg=name, **SINGLE)
            assert np.isnan(arrays[0][~some]).all()


def test_keys_of_a_model_whose_groups_were_taken_apart_are_by_head() -> None:
    model = tiny_model("llama")
    apart = expand_to_multi_head(model)
    removed = [(0, 0), (1, 2), (2, 3)]
    (found,), (whole,) = (collect(one, tokenizer(), TEXTS[1], ("k",)) for one in (pruned(apart, removed), model))
    assert found.k is not None
    assert whole.k is not None
    there = is_there(removed)
    assert found.k.shape[:2] == (LAYERS, HEADS)
    np.testing.assert_allclose(found.k[0][there[0]], whole.k[0].repeat(2, axis=0)[there[0]], **SINGLE)
    assert np.isnan(found.k[~there]).all()
    assert bytes_needed(apart, [5], ("k",)) == 2 * bytes_needed(model, [5], ("k",))


# ----------------------------------------------------------------------------------- classes of a type of their own


def named(model: PreTrainedModel) -> PreTrainedModel:
    """With the model_type that pruned checkpoints have."""
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and not part.config.model_type.startswith("headlens_"):
            part.config.model_type = f"headlens_{part.config.model_type}"
    return model


def test_weights_are_found_where_the_original_family_keeps_them(model: GPT2LMHeadModel) -> None:
    found, whole = named(pruned(model)), pruned(model)
    assert torch.equal(unembedding(found), unembedding(whole))
    assert circuits(found).scores.equals(circuits(whole).scores)
    tables = [repetition(one.base_model, grammar_words(), model=one, period=12, batch=3)[0] for one in (found, whole)]
    assert "repetition.copying" in tables[0]
    assert tables[0].equals(tables[1])
    replace_attention(named(pruned(model, [(0, 0)])))


class HeadlensBertForMaskedLM(BertForMaskedLM):
    """As the class of a pruned checkpoint is called."""


def test_the_vocabulary_head_of_an_encoder_is_found_in_a_class_of_another_name() -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
    whole = HeadlensBertForMaskedLM(BertConfig(vocab_size=40, **sizes)).double().eval()
    few = named(pruned(whole))
    reader = copy.deepcopy(tokenizer())
    reader.mask_token = "[UNK]"
    loaded = LoadedModel(few, reader, "a model", "memory", {"weights_sha256": None, **facts_of(few)})
    assert about_text(loaded, batches(), seed=0).measure == "text"


def test_a_pruned_model_without_positions_takes_a_batch_that_is_padded_on_the_left() -> None:
    network: Any = named(pruned(tiny_model("t5"))).get_encoder()
    seen: list[Any] = []
    with torch.no_grad(), capture(network, seen.append):
        network(**padded_inputs(side="left"))
    assert [one.head_ids for one in seen] == [(1, 2), (0, 3)]


# ------------------------------------------------------------------------------------------------- no heads whatsoever

NO_HEADS: dict[str, tuple[Callable[[PreTrainedModel], object], type[Exception]]] = {
    "analyze": (lambda one: analyze(one, batches(), [ANALYZERS["position"]()], documents=4), CaptureError),
    "similarity": (lambda one: similarity(one, batches()), CaptureError),
    "circuits": (circuits, UnsupportedModel),
    "collect": (lambda one: collect(one, tokenizer(), TEXTS), CaptureError),
    "profile": (lambda one: headlens.profile(one, headlens.texts(TEXTS), tokenizer=tokenizer()), CaptureError),
}


@pytest.mark.parametrize("asked", NO_HEADS)
def test_a_model_without_heads_is_refused_in_a_sentence(asked: str) -> None:
    ask, error = NO_HEADS[asked]
    with pytest.raises(error, match="All heads of the model were removed"):
        ask(pruned(tiny_model("bert"), EVERYTHING))


def test_words_of_a_model_without_heads_are_refused(model: GPT2LMHeadModel) -> None:
    with pytest.raises(CaptureError, match="All heads of the model were removed"):
        list(word_attention(pruned(model, EVERYTHING).base_model, word_batches()))
