"""Whole models are converted: without loss where there is nothing to lose, and refused where it cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from converted import language_model
from test_conversion_align import NONE, WHOLE, difference, drawn_moments, layer_of, with_turned_copies
from test_repair import texts
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from headlens.conversion import align as aligning
from headlens.conversion.carriers import converted
from headlens.conversion.grouping import divided
from headlens.conversion.merging import METHODS
from headlens.conversion.moments import Moments, moments_of
from headlens.conversion.recipes import (
    GROUPINGS,
    MEAN_POOLING,
    Recipe,
    change_of_all,
    converted_layer,
    converted_layers,
    usual_recipe,
)
from headlens.conversion.weights import LayerWeights, read_layers, write_layers
from headlens.errors import PlanError, UnsupportedModel
from headlens.plan import Groups
from headlens.testing import padded_inputs, tiny_model

pytestmark = pytest.mark.slow  # many models; CI runs them as its own step

FAMILIES = ("bert", "gpt2", "llama", "opt", "gpt_neox")
EACH = pytest.mark.parametrize("family", FAMILIES)
DIM = 8  # of the tiny models, which have 4 heads in 3 layers
TOLERANCE = 1e-9  # of float64, after three layers and the vocabulary with weights around 0.3
PAIRS: Groups = ((0, 2), (1, 3))  # no neighbours
OWN: Groups = ((0,), (1,), (2,), (3,))
ORDERLESS = [method for method in METHODS if method not in ("first", "random")]  # those two go by the order
Layers = Sequence[LayerWeights]


@cache
def model_of(family: str) -> PreTrainedModel:
    """With four key/value heads, and the vocabulary head that the family has; to be left as it is."""
    if family != "bert":
        return language_model(family) if family != "llama" else own_heads(family)
    return drawn_widely(transformers.BertForMaskedLM(tiny_model("bert").config))


def own_heads(family: str, **entries: Any) -> PreTrainedModel:
    config = tiny_model(family, **{"num_key_value_heads": 4, **entries}).config
    return drawn_widely(transformers.AutoModelForCausalLM.from_config(config))


@torch.no_grad()
def drawn_widely(model: PreTrainedModel) -> PreTrainedModel:
    draw = torch.Generator().manual_seed(3)
    for _, weight in sorted(model.named_parameters()):
        centre = 1.0 if weight.dim() == 1 and bool((weight == 1).all()) else 0.0  # scales of norms
        weight.copy_(centre + 0.3 * torch.randn(weight.shape, generator=draw, dtype=torch.float64))
    return model.double().eval()


@torch.no_grad()
def logits(model: PreTrainedModel) -> Tensor:
    """Of the real tokens of three sentences with padding."""
    inputs = padded_inputs()
    return model(**inputs).logits[inputs["attention_mask"].bool()]


def moved(one: PreTrainedModel, other: PreTrainedModel) -> float:
    return float((logits(one) - logits(other)).abs().max())


@cache
def moments(model: PreTrainedModel) -> list[Moments]:
    return moments_of(model, texts())


def convert(model: PreTrainedModel, kv_heads: int, recipe: Recipe, groups: Groups | None = None) -> PreTrainedModel:
    layers = read_layers(model)
    own = moments(model) if recipe.reads_text else None
    found = converted_layers(layers, [kv_heads] * 3, recipe, own, groups=[groups] * 3)
    assert [len(layer.k) for layer in found] == [kv_heads] * 3
    return converted(model, found, stock=False)


def rewritten(model: PreTrainedModel, layers: Layers) -> PreTrainedModel:
    """A copy of the same class, no config of which is touched."""
    copy = converted(model, read_layers(model), stock=False)
    write_layers(copy, layers)
    return copy


# ------------------------------------------------------------------------------------------------ nothing is to be done


@pytest.mark.parametrize("recipe", [MEAN_POOLING, *map(Recipe, METHODS)], ids=str)
@EACH
def test_as_many_heads_as_before_are_the_very_same_function(family: str, recipe: Recipe) -> None:
    model = model_of(family)
    layers = converted_layers(read_layers(model), [4, 4, 4], recipe, None)
    assert torch.equal(logits(converted(model, layers)), logits(model))


@EACH
def test_layers_that_keep_their_heads_are_the_same_objects(family: str) -> None:
    layers = read_layers(model_of(family))
    found = converted_layers(layers, [4, 2, 4], MEAN_POOLING, None)
    assert found[0] is layers[0]
    assert found[2] is layers[2]
    assert len(found[1].k) == 2


# ---------------------------------------------------------------------------------------------- nothing is to be lost


@cache
def with_equal_heads(family: str) -> PreTrainedModel:
    """Heads 2 and 3 have the keys and values of heads 0 and 1."""
    model = model_of(family)

    def equal(part: Tensor | None) -> Tensor | None:
        return None if part is None else part[[0, 1, 0, 1]]

    layers = read_layers(model)
    changed: list[dict[str, Any]] = [
        {name: equal(getattr(layer, name)) for name in ("k", "v", "k_bias", "v_bias")} for layer in layers
    ]
    return rewritten(model, [replace(layer, **parts) for layer, parts in zip(layers, changed, strict=True)])


@cache
def with_turned_heads(family: str) -> PreTrainedModel:
    """Heads 2 and 3 have the keys and values of heads 0 and 1, turned as a layer of that kind allows."""
    layers = []
    for number, layer in enumerate(read_layers(model_of(family))):
        parts = {name: getattr(layer, name) for name in ("k", "v", "k_bias", "v_bias")}
        pairs = 0 if layer.rotary is None else layer.rotary.pairs
        for name in parts:
            if parts[name] is None:
                continue
            part = parts[name].clone()
            for to, of in ((2, 0), (3, 1)):
                turn = a_turn(pairs if name.startswith("k") else 0, seed=10 * number + to + 100 * name.startswith("k"))
                part[to] = turn @ part[of]
            parts[name] = part
        layers.append(replace(layer, **parts))
    return rewritten(model_of(family), layers)


def a_turn(pairs: int, seed: int) -> Tensor:
    """Orthogonal; entries i and i + pairs by an angle, those behind them in any way."""
    draw = torch.Generator().manual_seed(seed)
    turn = torch.zeros(DIM, DIM, dtype=torch.float64)
    for pair in range(pairs):
        angle = 6.28 * torch.rand((), generator=draw, dtype=torch.float64)
        places = torch.tensor([pair, pair + pairs])
        turn[places[:, None], places] = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()]).view(2, 2)
    rest = DIM - 2 * pairs
    if rest:
        turn[2 * pairs :, 2 * pairs :] = torch.linalg.qr(torch.randn(rest, rest, generator=draw).double()).Q
    return turn


BY_NEIGHBOURS = [Recipe(method, "contiguous") for method in METHODS]
BY_NEIGHBOURS += [Recipe(method, "contiguous", absorbed=False) for method in ("mean", "svd")]


@pytest.mark.parametrize("recipe", BY_NEIGHBOURS, ids=lambda recipe: f"{recipe.method}-{recipe.absorbed}")
@EACH
def test_equal_heads_merge_without_loss_by_every_method(family: str, recipe: Recipe) -> None:
    model = with_equal_heads(family)
    assert moved(convert(model, 2, recipe, PAIRS), model) < TOLERANCE
    assert moved(convert(model, 2, recipe), model) > 0.01  # neighbours are not equal


@pytest.mark.parametrize(
    ("recipe", "is_lossless"),
    [(Recipe("aligned", "similar"), True), (Recipe("svd", "cheapest"), True), (Recipe("mean", "contiguous"), False)],
    ids=["aligned", "svd", "mean"],
)
@EACH
def test_turned_heads_merge_without_loss_once_aligned_or_factored(
    family: str, recipe: Recipe, is_lossless: bool
) -> None:
    model = with_turned_heads(family)
    change = moved(convert(model, 2, recipe, PAIRS), model)
    assert change < TOLERANCE if is_lossless else change > 0.1


@pytest.mark.parametrize("recipe", [Recipe("aligned", "similar"), Recipe("svd", "cheapest")], ids=str)
@EACH
def test_heads_that_are_the_same_but_for_a_turn_are_found(family: str, recipe: Recipe) -> None:
    assert moved(convert(with_turned_heads(family), 2, recipe), with_turned_heads(family)) < TOLERANCE


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_a_turn_that_positions_do_not_allow_is_a_loss(family: str) -> None:
    model = model_of(family)
    layers = []
    for layer in read_layers(model):
        k = layer.k.clone()
        k[2], k[3] = a_turn(0, seed=1) @ k[0], a_turn(0, seed=2) @ k[1]
        layers.append(replace(layer, k=k))
    changed = rewritten(model, layers)
    for recipe in (Recipe("aligned", "similar"), Recipe("svd", "cheapest")):
        assert moved(convert(changed, 2, recipe, PAIRS), changed) > 0.1


# ------------------------------------------------------------------------------------------------------ groups by hand


@pytest.mark.parametrize("other", [((1, 3), (0, 2)), ((2, 0), (3, 1))], ids=["groups", "members"])
@pytest.mark.parametrize("method", ORDERLESS)
@EACH
def test_the_order_of_groups_and_of_their_members_is_nothing(family: str, method: str, other: Groups) -> None:
    model, recipe = model_of(family), Recipe(method, "contiguous")
    found, same = (convert(model, 2, recipe, groups) for groups in (PAIRS, other))
    assert moved(found, same) < TOLERANCE
    assert moved(found, model) > 1e-3
    assert moved(found, convert(model, 2, recipe, ((0, 3), (1, 2)))) > 1e-3  # other groups are another model


def test_groups_by_hand_go_before_those_of_the_recipe() -> None:
    layer = layer_of(NONE, sharing=2)
    for grouping in GROUPINGS:
        found = converted_layer(layer, 2, Recipe("mean", grouping), None, groups=PAIRS)
        torch.testing.assert_close(found.k[0], (layer.k[0] + layer.k[2]) / 2, rtol=0, atol=1e-15)


# -------------------------------------------------------------------------------------------------------- mean pooling


def key_and_value(model: PreTrainedModel, layer: int, kv_heads: int) -> list[np.ndarray]:
    """Weights [kv, dim, hidden] and biases [kv, dim] of keys, then of values, as the family's own file has them."""
    own: Any = model.base_model
    width = kv_heads * DIM
    kind = model.config.model_type
    if kind == "gpt2":  # queries, keys and values side by side, each as [in, out]
        fused = own.h[layer].attn.c_attn
        weights = fused.weight.T.split([32, width, width])[1:]
        biases = fused.bias.split([32, width, width])[1:]
    else:
        attention = {
            "bert": lambda: own.encoder.layer[layer].attention.self,
            "llama": lambda: own.layers[layer].self_attn,
            "opt": lambda: own.decoder.layers[layer].self_attn,
        }[kind]()
        names = ("key", "value") if kind == "bert" else ("k_proj", "v_proj")
        projections = [getattr(attention, name) for name in names]
        weights = [each.weight for each in projections]
        biases = [each.bias for each in projections if each.bias is not None]
    shapes = [*[(kv_heads, DIM, 32)] * 2, *[(kv_heads, DIM)] * 2]
    parts = [*weights, *biases]
    return [part.detach().numpy().reshape(shape) for part, shape in zip(parts, shapes[: len(parts)], strict=True)]


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "opt"])
def test_mean_pooling_is_the_mean_of_weights_and_biases_of_neighbours(family: str, kv_heads: int) -> None:
    model = model_of(family)
    found = convert(model, kv_heads, MEAN_POOLING)
    for layer in range(3):
        before, after = key_and_value(model, layer, 4), key_and_value(found, layer, kv_heads)
        assert len(before) == (2 if family == "llama" else 4)
        for old, new in zip(before, after, strict=True):
            size = 4 // kv_heads
            expected = np.stack([old[size * kv : size * (kv + 1)].mean(axis=0) for kv in range(kv_heads)])
            np.testing.assert_allclose(new, expected, rtol=0, atol=1e-15)
    for old, new in zip(read_layers(model), read_layers(found), strict=True):
        for name in ("q", "o", "q_bias", "o_bias"):  # are left as they are
            one, other = getattr(old, name), getattr(new, name)
            assert one is other is None or torch.equal(one, other)


def test_mean_pooling_and_the_method_of_that_name_are_one() -> None:
    assert usual_recipe("mean") == MEAN_POOLING
    assert not MEAN_POOLING.reads_text
    assert usual_recipe("svd").reads_text


# ------------------------------------------------------------------------------------------------ more heads, of copies

DIVIDED = [(4, 8), (2, 4), (2, 8), (1, 2), (1, 8), (8, 8)]


@pytest.mark.parametrize(("present", "into"), DIVIDED)
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_more_key_value_heads_are_exact(family: str, present: int, into: int) -> None:
    model = own_heads(family, num_key_value_heads=present, num_attention_heads=8, hidden_size=64)
    found = converted(model, converted_layers(read_layers(model), [into] * 3, MEAN_POOLING, None))
    assert found.config.num_key_value_heads == into
    assert moved(found, model) < 1e-10
    assert change_of_all(read_layers(model), read_layers(found)) < 1e-12


@pytest.mark.parametrize("into", [4, 8, 16])
def test_each_query_head_keeps_the_keys_and_values_that_it_had(into: int) -> None:
    """Four key/value heads with four query heads on each, which stand in an order of no system."""
    layer = layer_of(WHOLE, sharing=4)
    found = divided(layer, into)
    of = {head: kv for kv, group in enumerate(layer.groups) for head in group}
    assert len(found.k) == into
    assert {len(group) for group in found.groups} == {16 // into}
    for kv, group in enumerate(found.groups):
        for head in group:
            for name in ("k", "v", "k_bias", "v_bias"):
                assert torch.equal(getattr(found, name)[kv], getattr(layer, name)[of[head]])
    assert difference(layer, found) == 0.0


def test_copies_in_turns_would_be_another_layer() -> None:
    """0 1 2 3 0 1 2 3 is not 0 0 1 1 2 2 3 3."""
    layer = layer_of(WHOLE, sharing=2)
    found = divided(layer, 8)
    in_turns = [kv % 4 for kv in range(8)]
    parts: dict[str, Any] = {name: getattr(layer, name)[in_turns] for name in ("k", "v", "k_bias", "v_bias")}
    assert difference(layer, found) == 0.0
    assert difference(layer, replace(found, **parts)) > 0.1


@pytest.mark.parametrize(("into", "told"), [(2, "4, 8, 16"), (6, "4, 8, 16"), (12, "4, 8, 16"), (32, "4, 8, 16")])
def test_what_copies_cannot_make_is_refused(into: int, told: str) -> None:
    with pytest.raises(PlanError, match=f"4 key/value heads of 16 heads cannot become {into}, .* choose one of {told}"):
        divided(layer_of(sharing=4), into)


def test_heads_that_were_shared_can_be_copied_and_shared_again() -> None:
    layer = layer_of(WHOLE, sharing=4)
    more = converted_layer(layer, 16, MEAN_POOLING, None)
    groups = tuple(tuple(range(4 * kv, 4 * kv + 4)) for kv in range(4))
    assert difference(converted_layer(more, 4, MEAN_POOLING, None, groups=groups), layer) < 1e-12


# --------------------------------------------------------------------------------------------------------------- cache


@pytest.mark.parametrize("recipe", [Recipe("svd", "cheapest"), Recipe("aligned", "similar"), MEAN_POOLING], ids=str)
@pytest.mark.parametrize("family", ["llama", "gpt_neox", "gpt2"])
def test_decoding_step_by_step_is_the_full_forward(family: str, recipe: Recipe) -> None:
    made = convert(model_of(family), 2, recipe, PAIRS if recipe != MEAN_POOLING else None)
    ids, cache = padded_inputs()["input_ids"][:1], DynamicCache()
    with torch.no_grad():
        full = made(input_ids=ids, use_cache=False).logits
        steps = [made(input_ids=ids[:, step : step + 1], cache=cache).logits for step in range(ids.shape[1])]
    torch.testing.assert_close(torch.cat(steps, dim=1), full, rtol=0, atol=1e-10)
    assert [tuple(layer.keys.shape) for layer in cache.layers] == [(1, 2, 12, DIM)] * 3


# ------------------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ((4, 3, 2), "Layer 1: 4 key/value heads cannot become 3 in groups of one size; choose one of 1, 2, 4."),
        ((2, 2, 0), "Layer 2: 4 key/value heads cannot become 0 in groups of one size"),
        ((8, 4, 4), "Layer 0: 4 key/value heads of 4 heads cannot become 8, as each is copied as often"),
    ],
)
def test_a_number_that_cannot_be_names_the_layer(counts: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(PlanError, match=f"^{sentence}"):
        converted_layers(read_layers(model_of("bert")), counts, MEAN_POOLING, None)


def test_groups_that_cannot_be_name_the_layer() -> None:
    layers = read_layers(model_of("bert"))

    def with_groups(groups: Groups, count: int = 2) -> None:
        converted_layers(layers, [4, 4, count], MEAN_POOLING, None, groups=[None, None, groups])

    with pytest.raises(PlanError, match=r"^Layer 2: Groups of key/value heads must be of one size, got sizes \[1, 3\]"):
        with_groups(((0,), (1, 2, 3)))
    with pytest.raises(PlanError, match=r"^Layer 2: Groups must hold each of the key/value heads 0 to 3 once"):
        with_groups(((0, 1), (1, 2)))
    with pytest.raises(PlanError, match=r"^Layer 2: 4 groups of key/value heads were named, and 2 are to be left"):
        with_groups(OWN)


@pytest.mark.parametrize("grouping", ["similar", "cheapest"])
def test_groups_that_text_tells_need_text(grouping: str) -> None:
    with pytest.raises(PlanError, match=f"^Layer 0: Groups of {grouping} heads are told by calibration text"):
        converted_layers(read_layers(model_of("bert")), [2, 2, 2], Recipe("mean", grouping), None)


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ({"method": "median"}, "The method of a conversion is one of mean, first, .*; got 'median'"),
        ({"grouping": "best"}, "The grouping of a conversion is one of contiguous, similar, .*; got 'best'"),
        ({"scale": "large"}, "The scale of a conversion is one of plain, restored, fitted; got 'large'"),
        ({"method": "svd", "scale": "fitted"}, "Heads merged by svd are fitted as they are: leave out the scale"),
    ],
)
def test_recipes_that_there_are_not(entries: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        Recipe(**entries)


@pytest.mark.parametrize("rotary", [NONE, WHOLE], ids=["none", "rotary"])
@pytest.mark.parametrize("by", [1.001, float("nan")])
def test_an_alignment_that_changes_the_layer_is_refused(
    rotary: Any, by: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = with_turned_copies(layer_of(rotary, sharing=2), PAIRS)
    converted_layer(layer, 2, Recipe("aligned", "contiguous"), drawn_moments(), groups=PAIRS)
    rotations = aligning._rotations
    monkeypatch.setattr(aligning, "_rotations", lambda part, groups: by * rotations(part, groups))
    with pytest.raises(
        UnsupportedModel, match=r"changed what the layer computes by (\d\.\de-\d\d|nan) of it, and must"
    ):
        converted_layer(layer, 2, Recipe("aligned", "contiguous"), drawn_moments(), groups=PAIRS)


# ----------------------------------------------------------------------------------------------------------- in words


def test_a_recipe_says_what_it_does() -> None:
    assert str(MEAN_POOLING) == "mean, contiguous groups"
    assert str(Recipe("aligned", "similar", "fitted")) == "aligned, similar groups, fitted scale, W_O refitted"
    assert Recipe().to_dict() == {
        "method": "svd",
        "grouping": "cheapest",
        "scale": "plain",
        "biases_absorbed": True,
        "repair": True,
    }


def test_the_change_of_all_layers_is_the_largest() -> None:
    layers = [layer_of(WHOLE, seed=seed) for seed in (0, 20, 40)]
    larger = [replace(layers[0], v=1.1 * layers[0].v, v_bias=1.1 * layers[0].v_bias), layers[1]]  # type: ignore[operator]
    assert change_of_all(layers, [*larger, layers[2]]) == pytest.approx(0.1, rel=1e-9)
    assert change_of_all(layers, layers) < 1e-14
    assert change_of_all([], []) == 0.0
