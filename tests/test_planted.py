"""Planted heads do what is written down, as the stock model reports it; headlens names them and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModel, GPT2LMHeadModel

import headlens
from headlens.analyze import analyze
from headlens.analyzers import Position, Surface
from headlens.analyzers.contribution import Contribution
from headlens.behaviour.repetition import repetition
from headlens.errors import UnsupportedModel
from headlens.records import Batch
from headlens.roles import roles_of
from headlens.scores import ScoreTable
from headlens.selfcheck import check_model
from headlens.testing import Planted, planted_bert, planted_gpt2
from headlens.testing.planted import GPT2_ROLES

Place = tuple[int, int]
Side = Literal["left", "right"]
MAKERS: dict[str, Callable[..., Planted]] = {"gpt2": planted_gpt2, "bert": planted_bert}
KINDS = ("word", "position", "token_type")
WORDS_FROM = 5  # smaller ids are of special tokens, and of two words of GPT-2 that the tests leave out
LENGTHS = (120, 75, 40)  # words of the inputs, drawn with repetition from 60
WITH_BOTH = {**GPT2_ROLES, (1, 5): "anti-induction"}
SEEDS = [0, 1, 2]


@pytest.fixture(scope="module")
def planted() -> dict[str, Planted]:
    return {family: make() for family, make in MAKERS.items()} | {"both": planted_gpt2(roles=WITH_BOTH, seed=3)}


def special_of(model: Planted) -> tuple[list[int], list[int]]:
    """Ids that stand before and after every text."""
    framed = model.tokenizer("baba")["input_ids"]
    place = framed.index(model.tokenizer.convert_tokens_to_ids("baba"))
    return framed[:place], framed[place + 1 :]


def drawn_inputs(
    model: Planted, seed: int, side: Side = "right", lengths: tuple[int, ...] = LENGTHS
) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    before, after = special_of(model)
    known = len(model.tokenizer)
    pool = torch.randperm(known - 5, generator=generator)[:60] + 5
    rows = [
        torch.tensor([*before, *pool[torch.randint(60, (length,), generator=generator)].tolist(), *after])
        for length in lengths
    ]
    longest = max(len(row) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        real = slice(0, len(row)) if side == "right" else slice(longest - len(row), longest)
        ids[number, real], mask[number, real] = row, 1
    return {"input_ids": ids, "attention_mask": mask}


def padded_patterns(model: Planted, inputs: dict[str, Tensor]) -> Tensor:
    """What the stock model reports of a padded batch, [layer, batch, head, query, key]."""
    network = AutoModel.from_config(model.model.config, attn_implementation="eager").eval()
    network.load_state_dict(model.model.base_model.state_dict())
    with torch.no_grad():
        return torch.stack(network(**inputs, output_attentions=True).attentions)


def expected_keys(role: str, ids: list[int], is_causal: bool) -> list[set[int]]:
    """For each token the keys that a head with the role attends to, by the words of the docstring; empty: not said."""
    everywhere = range(len(ids))
    seen = [set(range(i)) if is_causal else set(everywhere) - {i} for i in everywhere]
    same = [{j for j in seen[i] if ids[j] == ids[i]} for i in everywhere]
    match role:
        case "previous token":
            return [{i - 1} & seen[i] for i in everywhere]
        case "next token":
            return [{i + 1} & seen[i] for i in everywhere]
        case "first token":
            return [{0} for _ in everywhere]
        case "duplicate token":
            return [(same[i] or {i}) if ids[i] >= WORDS_FROM else set() for i in everywhere]
        case "induction" | "anti-induction":
            return [{j + 1 for j in same[i]} or {0} for i in everywhere]
    raise AssertionError(role)


def least_paid(pattern: Tensor, role: str, ids: list[int], *, is_causal: bool) -> float:
    """The least that a row [key] pays to the keys that it should attend to; all rows but two must have such keys."""
    wanted = expected_keys(role, ids, is_causal)
    paid = [float(pattern[i, list(keys)].sum()) for i, keys in enumerate(wanted) if keys]
    assert len(paid) >= len(ids) - 2
    return min(paid)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", ["gpt2", "bert", "both"])
def test_planted_heads_attend_where_they_should(
    planted: dict[str, Planted], family: str, seed: int, side: Side
) -> None:
    model = planted[family]
    inputs = drawn_inputs(model, seed, side)
    patterns = padded_patterns(model, inputs)
    assert set(model.roles.values()) >= {"previous token", "first token", "uniform", "duplicate token"}
    for (layer, head), role in model.roles.items():
        for row, mask in enumerate(inputs["attention_mask"].bool()):
            pattern = patterns[layer, row, head][mask][:, mask]
            if role == "uniform":
                seen = torch.ones_like(pattern) if family == "bert" else torch.ones_like(pattern).tril()
                torch.testing.assert_close(pattern, seen / seen.sum(-1, keepdim=True), rtol=0, atol=1e-6)
                continue
            ids = inputs["input_ids"][row][mask].tolist()
            assert least_paid(pattern, role, ids, is_causal=family != "bert") > 0.99, (layer, head, role)


@pytest.mark.parametrize(("vocab", "positions"), [(9, 160), (64, 24), (400, 300)])
@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_other_sizes_are_as_exact(family: str, vocab: int, positions: int) -> None:
    model = MAKERS[family](vocab=vocab, positions=positions)
    before, after = special_of(model)
    words = torch.randint(5, vocab, (positions - len(before) - len(after),)).tolist()
    ids = [*before, *words, *after]
    patterns = padded_patterns(model, {"input_ids": torch.tensor([ids])})
    for (layer, head), role in model.roles.items():
        if role != "uniform":
            pattern = patterns[layer, 0, head]
            assert least_paid(pattern, role, ids, is_causal=family == "gpt2") > 0.99, (layer, head, role)


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_the_first_token_need_not_be_a_special_one(planted: dict[str, Planted], family: str) -> None:
    model = planted[family]
    ids = torch.arange(5, 60)[None]
    (layer, head) = next(place for place, role in model.roles.items() if role == "first token")
    assert padded_patterns(model, {"input_ids": ids})[layer, 0, head, :, 0].min() > 0.99


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("role", ["previous token", "first token", "uniform", "duplicate token"])
def test_a_role_may_stand_in_any_layer(role: str, layer: int) -> None:
    roles = {(0, 0): "previous token", (0, 2): "previous token", (layer, 3): role, (1, 4): "induction"}
    model = planted_gpt2(roles=roles, seed=7)
    assert model.roles == roles
    inputs = drawn_inputs(model, 0, lengths=(90,))
    patterns = padded_patterns(model, inputs)
    ids = inputs["input_ids"][0].tolist()
    for (at_layer, head), name in roles.items():
        if name != "uniform":
            assert least_paid(patterns[at_layer, 0, head], name, ids, is_causal=True) > 0.99, (at_layer, head, name)


@pytest.mark.parametrize("seed", SEEDS)
def test_induction_continues_what_came_before(planted: dict[str, Planted], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    words = torch.randperm(120, generator=generator)[:50] + 3
    ids = torch.cat([torch.tensor([1]), words, words])[None]
    with torch.no_grad():
        predicted = planted["gpt2"].model(ids).logits[0].argmax(dim=-1)
    assert torch.equal(predicted[51:-1], ids[0, 52:])  # from the second copy's first token on
    without = planted_gpt2(roles={place: role for place, role in GPT2_ROLES.items() if role != "induction"}).model
    with torch.no_grad():
        assert not (without(ids).logits[0].argmax(dim=-1)[51:-1] == ids[0, 52:]).any()


def test_anti_induction_lowers_what_came_before() -> None:
    model = planted_gpt2(roles={(0, 0): "previous token", (1, 1): "anti-induction"}).model
    words = torch.randperm(120)[:50] + 3
    ids = torch.cat([torch.tensor([1]), words, words])[None]
    with torch.no_grad():
        lowest = model(ids).logits[0].argmin(dim=-1)
    assert torch.equal(lowest[51:-1], ids[0, 52:])


# ------------------------------------------------------------------------------------------------- what headlens says


def text_scores(model: Planted, seed: int, side: Side = "right", *, contribution: bool = False) -> ScoreTable:
    """Of 30 random texts without a word that comes twice; a batch on either side padded by hand."""
    generator = torch.Generator().manual_seed(seed)
    before, after = special_of(model)
    lengths = torch.randint(20, 100, (30,), generator=generator).tolist()
    longest = max(lengths) + len(before) + len(after)
    batches = []
    for start in range(0, 30, 10):
        ids, mask, special = (torch.zeros(10, longest, dtype=kind) for kind in (torch.long, torch.bool, torch.bool))
        for row, length in enumerate(lengths[start : start + 10]):
            words = torch.randperm(len(model.tokenizer) - 5, generator=generator)[:length] + 5
            text = torch.tensor([*before, *words.tolist(), *after])
            real = slice(0, len(text)) if side == "right" else slice(longest - len(text), longest)
            ids[row, real], mask[row, real] = text, True
            special[row, real.start or 0], special[row, real.stop - 1] = True, bool(after)
        first = torch.zeros_like(mask)
        first[torch.arange(10), mask.int().argmax(dim=-1)] = True
        document = torch.arange(start, start + 10)
        batches.append(Batch(ids, mask, special, document, {"first": first}))
    network = model.model.base_model
    analyzers = [Position(), Surface(), *([Contribution(network)] if contribution else [])]
    return analyze(network, batches, analyzers, documents=30).scores()


def named(scores: ScoreTable, role: str) -> set[Place]:
    """The heads that have a role, by its title."""
    return {(one.layer, one.head) for one in roles_of(scores) if one.role.title == role}


def with_role(model: Planted, *roles: str) -> set[Place]:
    return {place for place, role in model.roles.items() if role in roles}


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", ["gpt2", "bert", "both"])
def test_on_text_position_and_surface_name_each_head_and_nothing_else(
    planted: dict[str, Planted], family: str, seed: int, side: Side
) -> None:
    model = planted[family]
    scores = text_scores(model, seed, side)
    # nothing is repeated, so that a duplicate-token head rests on the token itself, and an induction head on the first
    expected = {
        "previous token": with_role(model, "previous token"),
        "next token": with_role(model, "next token"),
        "the token itself": with_role(model, "duplicate token"),
        "first token": with_role(model, "first token", "induction", "anti-induction"),
        "broad": with_role(model, "uniform"),
    }
    assert {trait: named(scores, trait) for trait in expected} == expected
    others = set().union(*expected.values())
    assert {(one.layer, one.head) for one in roles_of(scores)} == others == set(model.roles)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", ["gpt2", "both"])
def test_on_repeated_tokens_each_head_is_named_and_nothing_else(
    planted: dict[str, Planted], family: str, seed: int
) -> None:
    model = planted[family]
    table, _ = repetition(model.model.base_model, model.tokenizer, seed=seed, model=model.model)
    expected = {
        "induction": with_role(model, "induction"),
        "anti-induction": with_role(model, "anti-induction"),
        "duplicate token": with_role(model, "duplicate token"),
        "previous token of random ones": with_role(model, "previous token"),
    }
    assert {trait: named(table, trait) for trait in expected} == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_on_repeated_tokens_an_encoder_has_duplicate_token_heads(planted: dict[str, Planted], seed: int) -> None:
    model = planted["bert"]
    table, _ = repetition(model.model, model.tokenizer, seed=seed)
    assert named(table, "duplicate token") == with_role(model, "duplicate token")
    assert named(table, "previous token of random ones") == with_role(model, "previous token")


@pytest.mark.parametrize("seed", SEEDS)
def test_heads_at_rest_take_nothing(planted: dict[str, Planted], seed: int) -> None:
    model = planted["gpt2"]
    found = named(text_scores(model, seed, contribution=True), "sink of small values")
    assert found == with_role(model, "first token", "induction")


@pytest.mark.parametrize("seed", SEEDS)
def test_the_label_is_the_role(seed: int) -> None:
    model = planted_gpt2(roles=WITH_BOTH, seed=seed)
    repeated, _ = repetition(model.model.base_model, model.tokenizer, seed=seed, model=model.model)
    scores = ScoreTable.joined([text_scores(model, seed), repeated])
    letters = {
        "previous token": "P",
        "duplicate token": "D",
        "first token": "F",
        "uniform": "B",
        "induction": "I",
        "anti-induction": "X",
    }
    roles = roles_of(scores)
    labels = {place: roles.label(*place) for place in np.ndindex(scores.n_layers, scores.n_heads)}
    found = {place: label.role.letter for place, label in labels.items() if label is not None}
    assert found == {place: letters[role] for place, role in model.roles.items()}


# ----------------------------------------------------------------------------------------- as any model of its class


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_a_profile_runs_on_texts(planted: dict[str, Planted], family: str) -> None:
    model = planted[family]
    words = [word for word in model.tokenizer.get_vocab() if word.isalpha()]
    texts = [" ".join(words[start : start + 40]) for start in range(0, 80, 8)]
    profile = headlens.profile(model.model, headlens.texts(texts), tokenizer=model.tokenizer)
    assert profile.provenance["selfcheck"]["passed"]
    assert named(profile.scores, "previous token") == with_role(model, "previous token")
    assert profile.provenance["corpus"]["unknown"] == 0


@pytest.mark.parametrize("family", ["gpt2", "bert", "both"])
def test_what_is_captured_is_what_the_model_computes(planted: dict[str, Planted], family: str) -> None:
    assert check_model(planted[family].model.base_model).passed


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_it_is_saved_and_loaded_by_transformers(planted: dict[str, Planted], family: str, tmp_path: Path) -> None:
    model = planted[family]
    model.model.save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    loaded = type(model.model).from_pretrained(tmp_path)
    inputs = drawn_inputs(model, 0)
    assert all(parameter.dtype == torch.float32 for parameter in loaded.parameters())
    pairs = zip(loaded.state_dict().items(), model.model.state_dict().items(), strict=True)
    assert all(name == other and torch.equal(one, two) for (name, one), (other, two) in pairs)
    again = replace(model, model=loaded)
    assert torch.equal(padded_patterns(again, inputs), padded_patterns(model, inputs))
    assert (
        headlens.load_model(str(tmp_path)).require_tokenizer()("baba")["input_ids"]
        == model.tokenizer("baba")["input_ids"]
    )


def test_the_vocabulary_head_is_tied_and_stays(planted: dict[str, Planted]) -> None:
    model = planted["gpt2"].model
    assert isinstance(model, GPT2LMHeadModel)
    assert not model.training
    assert model.lm_head.weight is model.transformer.wte.weight


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_layer_norm_finds_what_it_would_make(planted: dict[str, Planted], family: str) -> None:
    """Every token at every position enters the first layer with mean 0 and variance 1."""
    weights = dict(planted[family].model.base_model.named_parameters())
    if family == "gpt2":
        everything = (weights["wte.weight"][:, None] + weights["wpe.weight"]).detach()
    else:
        tokens, positions, types = (weights[f"embeddings.{kind}_embeddings.weight"] for kind in KINDS)
        everything = (tokens[:, None] + positions + types[0]).detach()
    torch.testing.assert_close(everything.mean(-1), torch.zeros(128, 160), rtol=0, atol=1e-6)
    torch.testing.assert_close(everything.var(-1, correction=0), torch.ones(128, 160), rtol=0, atol=1e-5)


def test_a_head_without_a_role_looks_at_words_alone(planted: dict[str, Planted]) -> None:
    model = planted["gpt2"]
    ids = torch.tensor([[1, 10, 20, 30, 10, 40]])
    patterns = padded_patterns(model, {"input_ids": ids})
    for layer, head in {(layer, head) for layer in range(2) for head in range(6)} - set(model.roles):
        last = patterns[layer, 0, head, 5]
        # the same word at two positions, and the words that a head cannot tell from itself or from <s>: the same share
        torch.testing.assert_close(last[1], last[4], rtol=2e-2, atol=0)  # scratch changes lengths in layer 1 a little
        torch.testing.assert_close(last[0], last[5], rtol=2e-2, atol=0)
        assert last.max() > 1.5 * last.min()


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_heads_without_a_role_differ(planted: dict[str, Planted], family: str) -> None:
    model = planted[family]
    patterns = padded_patterns(model, drawn_inputs(model, 0, lengths=(40,)))
    plain = sorted({(layer, head) for layer in range(2) for head in range(6)} - set(model.roles))
    found = [patterns[layer, 0, head] for layer, head in plain]
    assert all((one - other).abs().max() > 0.2 for one, other in combinations(found, 2))


@pytest.mark.parametrize("layer", [0, 1])
def test_scores_are_as_strong_in_either_layer(layer: int) -> None:
    """Every place further on gets .002 of the attention of the one before, whatever LayerNorm has to shrink."""
    model = planted_gpt2(roles={(0, 0): "previous token", (layer, 1): "first token"})
    pattern = padded_patterns(model, {"input_ids": torch.arange(1, 60)[None]})[layer, 0, 1]
    ratio = pattern[1:, 1] / pattern[1:, 0]
    # what heads write to scratch makes tokens of layer 1 up to 1.5% longer
    torch.testing.assert_close(ratio, torch.full_like(ratio, 0.002), rtol=0.01 if layer == 0 else 0.1, atol=0)


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_feed_forward_layers_add_nothing(planted: dict[str, Planted], family: str) -> None:
    last = {"gpt2": "mlp.c_proj", "bert": "output.dense"}[family]
    weights = {name: weight for name, weight in planted[family].model.base_model.named_parameters() if last in name}
    of_layers = [w for name, w in weights.items() if "attention" not in name]
    assert len(of_layers) == 4  # weight and bias of two layers
    assert not any(weight.any() for weight in of_layers)


def test_models_of_a_seed_are_the_same_and_of_others_not() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    one = planted_gpt2(seed=4).model.state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    two, other = planted_gpt2(seed=4).model.state_dict(), planted_gpt2(seed=5).model.state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["transformer.h.0.attn.c_attn.weight"], other["transformer.h.0.attn.c_attn.weight"])


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("gpt2", {"roles": {(0, 0): "next token"}}, "L0H0: there is no role 'next token' here; there are: previous"),
        ("bert", {"roles": {(1, 0): "induction"}}, "L1H0: there is no role 'induction' here"),
        ("gpt2", {"roles": {(2, 0): "uniform"}}, "L2H0: 'uniform' needs a head of the 2 layers of 6 heads"),
        ("bert", {"roles": {(0, 6): "uniform"}}, "L0H6: 'uniform' needs a head of the 2 layers"),
        ("bert", {"roles": {(0, -1): "uniform"}}, "'uniform' needs a head of the 2 layers"),
        ("gpt2", {"roles": {(0, 0): "previous token", (0, 1): "induction"}}, "L0H1: 'induction' rests on what a head"),
        (
            "gpt2",
            {"roles": {(1, 1): "anti-induction"}},
            "L1H1: 'anti-induction' needs a 'previous token' head in layer 0",
        ),
        (
            "gpt2",
            {"roles": {(1, 0): "previous token", (1, 1): "induction"}},
            "needs a 'previous token' head in layer 0",
        ),
        ("gpt2", {"vocab": 4}, "at least 5 tokens, 3 of them special, and 2 positions, got 4 and 160"),
        ("bert", {"positions": 1}, "at least 7 tokens, 5 of them special, and 2 positions, got 128 and 1"),
        ("gpt2", {"vocab": 30_000}, "29997 words are too many to be told apart"),
        ("bert", {"positions": 4096}, "4096 positions are too many to be told apart"),
    ],
)
def test_what_cannot_be_planted_is_refused(family: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        MAKERS[family](**options)
