"""Copying: drawn values with known scores, laws of the direct path, a slow loop through all logits, and refusals."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from slow_repetition import slow_copying
from test_repetition import DECODER, read_ids, words
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedModel

from headlens.analyze import analyze
from headlens.behaviour.copying import FINAL_NORMS, Copying, copying, directions, final_norm, projections_by_layer
from headlens.behaviour.repetition import repetition
from headlens.errors import UnsupportedModel
from headlens.records import Batch, LayerAttention
from headlens.testing import VOCAB, draw, tiny_model

TOKENS = 4  # <s> a b c
NAMES = ["repetition.copying", "repetition.copying_share"]


def one_input(tokens: int = TOKENS, inputs: int = 1) -> Batch:
    ids = torch.arange(tokens).expand(inputs, -1)
    special = (torch.arange(tokens) == 0).expand(inputs, -1)
    return Batch(ids, torch.ones_like(special), special, torch.arange(inputs))


def heads_of(*rises: Tensor, attention: Tensor) -> tuple[LayerAttention, Copying]:
    """Heads that attend alike; `rises` [key, token] is by how much each value of a head raises each token's logit."""
    values = torch.stack(rises)[None]  # the values are the logits: W_O is one, and the directions are the tokens'
    probs = attention.expand(1, len(rises), -1, -1)
    layer = LayerAttention(0, values, values, values, probs, values, is_causal=True)
    tokens = torch.eye(TOKENS, dtype=torch.float64).index_fill(0, torch.tensor([0]), 0.0)
    return layer, Copying([torch.eye(TOKENS, dtype=torch.float64).expand(len(rises), -1, -1)], tokens[None])


def scores_of(layer: LayerAttention, analyzer: Copying, batch: Batch | None = None) -> list[list[float]]:
    sums = {name: value.double() for name, value in analyzer.observe(layer, batch or one_input()).items()}
    scores = analyzer.score(sums)
    assert list(scores) == NAMES
    return [[round(x, 10) for x in scores[name][0].tolist()] for name in NAMES]


SPREAD = ["1 . . .", ".4 .6 . .", ".2 .3 .5 .", ".1 .2 .3 .4"]


def test_a_head_that_raises_only_the_token_attended_to_has_one() -> None:
    own = draw(["9 9 9 9", ". 2 . .", ". . 1 .", ". . . 5"])  # what <s> brings is of no matter
    copying, share = scores_of(*heads_of(own, attention=draw(SPREAD)))
    assert copying == [1.0]
    assert share == [1.0]


def test_a_head_that_raises_only_others_has_minus_one() -> None:
    others = draw([". . . .", ". -2 1 .", ". . -1 1", ". 3 . ."])
    copying, share = scores_of(*heads_of(others, attention=draw(SPREAD)))
    assert copying == [-1.0]
    assert share == [0.0]


def test_a_head_that_raises_all_alike_has_zero() -> None:
    alike = draw(["1 1 1 1", ". 2 2 2", ". 7 7 7", ". 1 1 1"])
    copying, share = scores_of(*heads_of(alike, attention=draw(SPREAD)))
    assert copying == [0.0]
    assert share == [round(1 / 3, 10)]


def test_tokens_count_by_the_attention_that_they_get_and_falls_by_nothing() -> None:
    # a: 2 on itself, 1 on the others (one falls instead); b: 0 and 4 in all; c: 6 and 2 in all
    rise = draw([". . . .", "9 2 1 -5", "9 3 . 1", "9 1 1 6"])
    copying, share = scores_of(*heads_of(rise, attention=draw(SPREAD)))
    paid = (0.6 + 0.3 + 0.2, 0.5 + 0.3, 0.4)  # to a, b, c by the rows a, b, c
    own = paid[0] * 2 + paid[1] * 0 + paid[2] * 6
    others = paid[0] * 1 + paid[1] * 4 + paid[2] * 2
    assert share == [round(own / (own + others), 10)]
    assert copying == [round((own - others / 2) / (own + others / 2), 10)]


def test_heads_are_apart_and_spread_attention_does_not_matter() -> None:
    own, others = torch.eye(TOKENS, dtype=torch.float64), 1 - torch.eye(TOKENS, dtype=torch.float64)
    sharp = draw(["1 . . .", ". 1 . .", ". 1 . .", ". . 1 ."])
    even = draw(["1 . . .", ".5 .5 . .", ".4 .3 .3 .", ".25 .25 .25 .25"])
    for attention in (sharp, even):
        copying, _ = scores_of(*heads_of(own, others, attention=attention))
        assert copying == [1.0, -1.0]


def test_special_tokens_are_neither_rows_nor_attended_to_nor_of_the_sample() -> None:
    # <s> a b </s>: row </s> would put all on a, whose value raises b
    batch = dataclasses.replace(one_input(), special=torch.tensor([[True, False, False, True]]))
    rise = draw([". 9 9 9", ". 1 3 .", ". . 1 .", ". 9 9 ."])
    layer, analyzer = heads_of(rise, attention=draw(["1 . . .", ".4 .6 . .", ".2 .3 .5 .", ". 1 . ."]))
    analyzer.directions[0, 3] = 0
    paid_a, paid_b = 0.6 + 0.3, 0.5
    _, share = scores_of(layer, analyzer, batch)
    assert share == [round((paid_a + paid_b) / (4 * paid_a + paid_b), 10)]


def test_a_head_that_raises_nothing_has_no_score() -> None:
    layer, analyzer = heads_of(-torch.ones(TOKENS, TOKENS, dtype=torch.float64), attention=draw(SPREAD))
    sums = analyzer.observe(layer, one_input())
    assert analyzer.score(sums)["repetition.copying"].isnan().all()
    assert {name: value.tolist() for name, value in analyzer.support(sums).items()} == {name: [[0]] for name in NAMES}


def test_key_value_heads_are_shared_by_neighbours() -> None:
    rise = [draw([f". . . {n}", ". 2 . .", ". . 1 .", ". . . 5"]) for n in (1, 2)]
    layer, _ = heads_of(*rise, *rise, attention=draw(SPREAD))
    swapped = torch.eye(TOKENS, dtype=torch.float64)[[0, 2, 3, 1]]  # W_O of heads 1 and 3: another token rises
    w_out = torch.stack([torch.eye(TOKENS, dtype=torch.float64), swapped] * 2)
    shared = dataclasses.replace(layer, k=layer.k[:, :2], v=torch.stack([rise[0], -rise[1]])[None])
    directions = torch.eye(TOKENS, dtype=torch.float64).index_fill(0, torch.tensor([0]), 0.0)[None]
    scores = scores_of(shared, Copying([w_out], directions))[0]
    assert scores[:2] == [1.0, -1.0]
    assert np.isnan(scores[2:]).all()  # the values of the second key/value head raise nothing


@pytest.mark.parametrize("rows", [1, 3])
def test_slices_of_rows_add_up_in_any_order(rows: int) -> None:
    rise = torch.randn(2, TOKENS, TOKENS, dtype=torch.float64)
    layer, analyzer = heads_of(*rise, attention=draw(SPREAD))
    whole = analyzer.observe(layer, one_input())
    added: dict[str, Tensor] = {}
    for start in reversed(range(0, TOKENS, rows)):
        stop = min(start + rows, TOKENS)
        part = dataclasses.replace(
            layer,
            q=layer.q[:, :, start:stop],
            k=layer.k[:, :, :stop],
            v=layer.v[:, :, :stop],
            context=layer.context[:, :, start:stop],
            probs=layer.probs[:, :, start:stop, :stop],
            query_start=start,
        )
        for key, value in analyzer.observe(part, one_input()).items():
            added[key] = added.get(key, 0) + value
    for key, value in whole.items():
        torch.testing.assert_close(added[key].double(), value.double(), rtol=0, atol=1e-12, msg=key)


# ---------------------------------------------------------------------------------------------------------- directions


def test_directions_give_logits_less_their_mean() -> None:
    matrix = torch.randn(30, 6, dtype=torch.float64)
    change = torch.randn(6, dtype=torch.float64)
    ids = torch.tensor([[3, 29], [0, 7]])
    logits = matrix @ change
    torch.testing.assert_close(directions(matrix, None, ids) @ change, (logits - logits.mean())[ids])


@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm", "GemmaRMSNorm"])
def test_directions_see_through_the_final_norm_whose_scale_is_held(kind: str) -> None:
    hidden, matrix = torch.randn(6, dtype=torch.float64), torch.randn(30, 6, dtype=torch.float64)
    norm = nn.LayerNorm(6) if kind == "LayerNorm" else type(kind, (nn.Module,), {})()
    norm.weight = nn.Parameter(torch.randn(6))
    norm.double()

    def of(stream: Tensor, scale: Tensor) -> Tensor:
        """The norm with a scale of its own; with that of `hidden` it is the norm."""
        if kind == "LayerNorm":
            return (stream - stream.mean()) / scale * norm.weight + norm.bias
        return stream / scale * (norm.weight + (kind == "GemmaRMSNorm"))

    centred = hidden - hidden.mean() if kind == "LayerNorm" else hidden
    scale = centred.square().mean().sqrt()
    if kind == "LayerNorm":
        torch.testing.assert_close(of(hidden, (scale.square() + norm.eps).sqrt()), norm(hidden))
    change = torch.randn(6, dtype=torch.float64)
    moved = matrix @ (of(hidden + change, scale) - of(hidden, scale))
    found = directions(matrix, norm, torch.arange(30)[None]) @ change
    torch.testing.assert_close(found[0] / scale, (moved - moved.mean()).detach())


def test_what_raises_all_logits_alike_is_no_direction() -> None:
    matrix, ids = torch.randn(30, 6, dtype=torch.float64), torch.tensor([[3, 29, 4]])
    shifted = matrix + torch.randn(6, dtype=torch.float64)
    norm = tiny_model("gpt2", layers=1, n_embd=8, n_head=2).ln_f
    norm.weight = nn.Parameter(torch.randn(6, dtype=torch.float64))
    torch.testing.assert_close(directions(matrix, norm, ids), directions(shifted, norm, ids))


def test_narrow_numbers_are_widened() -> None:
    matrix, ids = torch.randn(30, 6), torch.tensor([[3, 29]])
    narrow = directions(matrix.bfloat16(), None, ids)
    assert narrow.dtype == torch.float32
    torch.testing.assert_close(narrow, directions(matrix.bfloat16().float(), None, ids))


# ------------------------------------------------------------------------------------------------- equal to a slow loop


@pytest.mark.parametrize(("family", "seed"), [("gpt2", 0), ("gpt2", 1), ("llama", 2), ("gpt_neox", 3), ("opt", 4)])
def test_equal_to_a_loop_over_all_logits(family: str, seed: int) -> None:
    model = tiny_model(family, seed=seed, layers=2)
    matrix = torch.randn(VOCAB, 32, dtype=torch.float64)
    ids = torch.stack([torch.tensor([1, *(3 + torch.randperm(96)[:7]).tolist()]) for _ in range(3)])
    batches = [
        Batch(part, torch.ones_like(part, dtype=torch.bool), torch.arange(8).expand_as(part) == 0, numbers)
        for part, numbers in ((ids[:2], torch.tensor([0, 1])), (ids[2:], torch.tensor([2])))
    ]
    table = analyze(model, batches, [copying(model, matrix, batches)], documents=3).scores()
    for name, expected in zip(NAMES, slow_copying(model, matrix, ids, first=1), strict=True):
        np.testing.assert_allclose(table[name], expected, rtol=0, atol=1e-6, err_msg=name)


def test_repetition_scores_copying_by_the_models_own_unembedding() -> None:
    model = tiny_model("gpt2", seed=6, layers=2)  # whose head is tied to the embeddings
    table, facts = repetition(model, words(DECODER), period=5, batch=2, seed=1)
    ids = read_ids(facts, "copying_ids", 1)
    assert ids.shape == (2, 26)
    assert all(len(set(row)) == 25 for row in facts["copying_ids"])
    for name, expected in zip(NAMES, slow_copying(model, model.wte.weight, ids, first=1), strict=True):
        np.testing.assert_allclose(table[name], expected, rtol=0, atol=1e-6, err_msg=name)
    assert table.support[table.index(NAMES[0])].tolist() == [[50.0] * 4] * 2


def test_chance_is_zero_and_one_of_the_sample() -> None:
    table, _ = repetition(tiny_model("gpt2", layers=1), words(DECODER), period=5, batch=2)
    chance = [table.chance[table.index(name)] for name in NAMES]
    assert chance == pytest.approx([0, 1 / 25], abs=1e-12)


def test_a_head_whose_values_are_the_embeddings_copies_and_its_negative_does_not() -> None:
    """One layer, whose heads hand on parts of what they read: W_V W_O is the identity on the dimensions of a head."""
    model = tiny_model("gpt2", layers=1)
    with torch.no_grad():
        model.wte.weight.copy_(torch.randn(VOCAB, 32, dtype=torch.float64))
        model.wpe.weight.zero_()
        for norm in (model.h[0].ln_1, model.ln_f):
            norm.weight.fill_(1)
            norm.bias.zero_()
        model.h[0].attn.c_attn.weight[:, 64:] = torch.eye(32)
        model.h[0].attn.c_attn.bias.zero_()
        model.h[0].attn.c_proj.weight.copy_(torch.eye(32))
        model.h[0].attn.c_proj.weight[8:16] *= -1  # the second head
    table, _ = repetition(model, words(DECODER), period=5, batch=4)
    scores = table["repetition.copying"][0]
    assert (scores[[0, 2, 3]] > 0.5).all()
    assert scores[1] < -0.95


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("family", sorted(FINAL_NORMS))
def test_the_final_norm_of_every_known_family_is_found(family: str) -> None:
    with torch.device("meta"):
        model = AutoModel.from_config(AutoConfig.for_model(family, **small(family)))
    found = {name for name, part in model.named_modules() if part is final_norm(model)}
    assert found == {FINAL_NORMS[family]}
    assert projections_by_layer(model)[0].dim() == 3


def small(family: str) -> dict[str, object]:
    sizes: dict[str, object] = {"num_hidden_layers": 1, "n_layer": 1, "layer_types": None, "vocab_size": VOCAB}
    sizes |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # or transformers warns
    known = AutoConfig.for_model(family).to_dict()
    return {name: value for name, value in sizes.items() if name in known}


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("gemma2", "'gemma2' normalises what its heads write before it is added"),
        ("bert", "Where 'bert' keeps its final norm is not known"),
    ],
)
def test_families_without_a_direct_path_are_refused(family: str, reason: str) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        final_norm(tiny_model(family, layers=1))


def test_an_opt_that_normalises_within_its_stream_is_refused() -> None:
    model = tiny_model("opt", layers=1, do_layer_norm_before=False)
    with pytest.raises(UnsupportedModel, match="has no norm behind its last layer"):
        final_norm(model)


def test_packed_weights_are_refused() -> None:
    model: PreTrainedModel = tiny_model("llama", layers=1)
    packed = nn.Linear(32, 32)
    packed.weight = nn.Parameter(torch.zeros(32, 32, dtype=torch.uint8), requires_grad=False)
    model.layers[0].self_attn.o_proj = packed
    with pytest.raises(UnsupportedModel, match="a Linear without a plain matrix of weights"):
        projections_by_layer(model)


def test_a_model_without_its_unembedding_has_no_copying_and_the_facts_say_why() -> None:
    model = tiny_model("llama", layers=1, tie_word_embeddings=False)
    table, facts = repetition(model, words(DECODER), period=5, batch=2)
    assert set(facts["left_out"]) == set(NAMES)
    assert "base model without a vocabulary head" in facts["left_out"]["repetition.copying"]
    assert "copying_ids" not in facts
    assert "repetition.prefix_matching" in table
