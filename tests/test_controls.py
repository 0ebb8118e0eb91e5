"""Copies with random weights: like the model in everything but its weights, and the same for the same seed."""

from __future__ import annotations

import copy
import gc
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertModel, PreTrainedModel

from headlens.analyze import analyze
from headlens.analyzers import Position, Surface
from headlens.controls import Best, ControlEvidence, controls, reinitialised
from headlens.errors import OutputError, UnsupportedModel
from headlens.records import Batch
from headlens.scores import Metric, ScoreTable
from headlens.tally import Tally
from headlens.testing import FAMILIES, padded_inputs, tiny_model


def matrices(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight for name, weight in model.named_parameters() if weight.dim() == 2}


def storages(model: nn.Module) -> set[int]:
    """Where all weights and buffers lie, but for those that hold nothing."""
    tensors = [*model.parameters(), *model.buffers()]
    return {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()}


def run(model: PreTrainedModel) -> Tally:
    inputs = padded_inputs()
    mask = inputs["attention_mask"].bool()
    batch = Batch(inputs["input_ids"], mask, torch.zeros_like(mask), torch.arange(3))
    return analyze(model, [batch], [Position(), Surface()], documents=3)


def table(values: dict[str, list[list[float]]]) -> ScoreTable:
    stacked = np.array(list(values.values()))
    metrics = tuple(Metric(name, name, name, "share") for name in values)
    return ScoreTable(metrics, stacked, np.ones_like(stacked), stacked, stacked, np.zeros(len(stacked)))


# ------------------------------------------------------------------------------------------------------- random copies


@pytest.mark.parametrize("family", FAMILIES)
def test_a_copy_of_every_family(family: str) -> None:
    model = tiny_model(family)
    before = copy.deepcopy(model.state_dict())
    fresh = reinitialised(model, 1)
    assert type(fresh) is type(model)
    assert fresh.config.to_dict() == model.config.to_dict()
    assert fresh.config._attn_implementation == model.config._attn_implementation
    assert not fresh.training
    assert fresh.config is not model.config
    assert not storages(fresh) & storages(model)
    assert {n: (w.shape, w.dtype) for n, w in fresh.named_parameters()} == {
        name: (weight.shape, weight.dtype) for name, weight in model.named_parameters()
    }
    for name, weight in matrices(fresh).items():
        assert not torch.equal(weight, model.get_parameter(name)), name
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name]), name


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_told_by_the_seed(family: str) -> None:
    model = tiny_model(family)
    one, again, other = reinitialised(model, 4), reinitialised(model, 4), reinitialised(model, 5)
    for name, weight in one.named_parameters():
        assert torch.equal(weight, again.get_parameter(name)), name
    drawn = [name for name, weight in matrices(one).items() if weight.std() > 0]
    assert drawn
    for name in drawn:
        assert not torch.equal(one.get_parameter(name), other.get_parameter(name)), name


def test_weights_are_drawn_as_the_class_draws_them() -> None:
    model = tiny_model("bert", heads=8, initializer_range=0.05)
    fresh = reinitialised(model, 0)
    query = torch.cat([layer.attention.self.query.weight.flatten() for layer in fresh.encoder.layer])
    # 12,288 draws: the standard deviation of a sample is off by 0.6%, four of these are 2.6%
    assert query.std().item() == pytest.approx(0.05, rel=0.026)
    assert abs(query.mean().item()) < 4 * 0.05 / 12_288**0.5
    assert (fresh.embeddings.LayerNorm.weight == 1).all()
    assert (fresh.encoder.layer[0].attention.self.query.bias == 0).all()


def test_the_global_random_state_stays() -> None:
    model = tiny_model("gpt2")
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    reinitialised(model, 9)
    assert torch.equal(torch.rand(2), expected)


def test_the_global_random_state_has_no_say() -> None:
    model = tiny_model("gpt2")
    torch.manual_seed(1)
    one = reinitialised(model, 9)
    torch.manual_seed(2)
    other = reinitialised(model, 9)
    assert torch.equal(one.h[0].attn.c_attn.weight, other.h[0].attn.c_attn.weight)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_the_attention_implementation_stays(implementation: str) -> None:
    model = tiny_model("llama")
    model.set_attn_implementation(implementation)
    assert reinitialised(model, 0).config._attn_implementation == implementation


def test_mode_and_frozen_weights_stay() -> None:
    model = tiny_model("bert").train()
    model.embeddings.requires_grad_(False)
    fresh = reinitialised(model, 0)
    assert fresh.training
    assert [w.requires_grad for w in fresh.parameters()] == [w.requires_grad for w in model.parameters()]


def test_every_weight_and_buffer_has_a_dtype_of_its_own() -> None:
    model = tiny_model("llama", dtype=torch.bfloat16)
    exact = 1 / 10000 ** (torch.arange(0, 8, 2) / 8)  # of rotary positions, by their definition; dim is 8
    model.rotary_emb.inv_freq = exact.clone()
    model.norm.float()
    fresh = reinitialised(model, 0)
    torch.testing.assert_close(fresh.rotary_emb.inv_freq, exact, atol=1e-7, rtol=1e-6)  # bfloat16 is off by 0.4%
    assert fresh.norm.weight.dtype == torch.float32
    assert fresh.layers[0].self_attn.q_proj.weight.dtype == torch.bfloat16


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_the_encoder_of_two_stacks(family: str) -> None:
    encoder = tiny_model(family).get_encoder()
    fresh = reinitialised(encoder, 0)
    assert type(fresh) is type(encoder)
    found, real = run(fresh).scores(), run(encoder).scores()
    assert found.names == real.names
    assert not found.equals(real)


def test_a_part_that_was_left_out_does_no_harm() -> None:
    model = BertModel(tiny_model("bert").config, add_pooling_layer=False).double().eval()
    fresh = reinitialised(model, 0)
    assert {weight.dtype for weight in fresh.parameters()} == {torch.float64}
    assert run(fresh).scores().names == run(model).scores().names


def test_a_model_of_other_sizes_is_refused() -> None:
    model = tiny_model("bert")
    model.encoder.layer[1].attention.self.query = nn.Linear(32, 24).double()
    with pytest.raises(UnsupportedModel, match=r"A new BertModel .* 2 of 55 weights, e\.g\. encoder\.layer\.1\.att"):
        reinitialised(model, 0)


# ------------------------------------------------------------------------------------------------------------ controls


def test_the_best_head_of_every_copy() -> None:
    tables = iter(
        [
            table({"a": [[0.1, 0.4], [0.3, 0.2]], "b": [[0.5, float("nan")], [0.9, 0.9]]}),
            table({"a": [[0.1, 0.1], [0.0, 0.6]], "b": [[float("nan"), 0.2], [0.1, 0.1]]}),
        ]
    )
    found = controls(tiny_model("bert"), lambda _: next(tables), copies=2)
    assert found.best == {
        "a": (Best(0.4, 0, 1), Best(0.6, 1, 1)),
        "b": (Best(0.9, 1, 0), Best(0.2, 0, 1)),
    }
    assert found.to_dict() == {
        "copies": 2,
        "seeds": list(found.seeds),
        "best": {"a": [0.4, 0.6], "b": [0.9, 0.2]},
        "heads": {"a": ["L0H1", "L1H1"], "b": ["L1H0", "L0H1"]},
    }


def test_a_metric_without_a_score_is_left_out() -> None:
    nan = float("nan")
    found = controls(tiny_model("bert"), lambda _: table({"a": [[nan, nan]], "b": [[nan, 0.0]]}), copies=1)
    assert found.best == {"b": (Best(0.0, 0, 1),)}


def test_copies_are_the_models_with_these_seeds() -> None:
    model = tiny_model("bert", initializer_range=0.5)
    found = controls(model, run, copies=2, seed=7)
    assert len(set(found.seeds)) == 2
    for number, seed in enumerate(found.seeds):
        scores = run(reinitialised(model, seed)).scores()
        pooled = [name for name in scores.names if not name.endswith(".macro")]
        assert sorted(found.best) == sorted(pooled)
        for name in pooled:
            best = found.best[name][number]
            assert best.value == pytest.approx(np.nanmax(scores[name]), abs=1e-12), name
            assert scores[name][best.layer, best.head] == pytest.approx(best.value, abs=1e-12), name


def test_tables_and_tallies_give_the_same() -> None:
    model = tiny_model("bert", initializer_range=0.5)
    by_tally = controls(model, run, copies=1).best
    by_table = controls(model, lambda copy: run(copy).scores(), copies=1).best
    assert by_tally == {name: best for name, best in by_table.items() if not name.endswith(".macro")}


def test_reproducible_by_seed() -> None:
    model = tiny_model("gpt2", initializer_range=0.5)
    one, again, other = (controls(model, run, copies=2, seed=seed) for seed in (0, 0, 1))
    assert one == again
    assert not set(one.seeds) & set(other.seeds)
    assert all(one.best[name] != other.best[name] for name in ("position.mass[-1]", "surface.entropy"))


def test_more_copies_begin_with_the_same_ones() -> None:
    model = tiny_model("bert")
    few, many = (controls(model, lambda _: table({"a": [[1.0]]}), copies=n, seed=2).seeds for n in (2, 5))
    assert many[:2] == few


def test_one_copy_is_in_memory_at_a_time() -> None:
    alive: list[weakref.ref[PreTrainedModel]] = []

    def watch(model: PreTrainedModel) -> ScoreTable:
        gc.collect()
        assert [ref() for ref in alive] == [None] * len(alive)
        alive.append(weakref.ref(model))
        return table({"a": [[0.0]]})

    assert controls(tiny_model("bert"), watch, copies=3).copies == 3


@pytest.mark.parametrize("copies", [0, -1])
def test_no_copies_are_refused(copies: int) -> None:
    with pytest.raises(OutputError, match=f"at least one copy of the model with random weights, got {copies}"):
        controls(tiny_model("bert"), run, copies=copies)


def test_copies_scored_on_different_metrics_are_refused() -> None:
    tables = iter([table({"a": [[1.0]], "b": [[1.0]]}), table({"a": [[1.0]]})])
    with pytest.raises(OutputError, match="Not all copies were scored on b; run all of them on the same documents"):
        controls(tiny_model("bert"), lambda _: next(tables), copies=2)


def test_a_name_of_a_head() -> None:
    assert Best(0.5, 3, 11).name == "L3H11"
    assert ControlEvidence((1, 2), {}).copies == 2
