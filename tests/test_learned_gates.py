"""Learned gates keep the heads that a planted model needs; their formulas against draws and closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from headlens.capture import capture
from headlens.errors import PlanError
from headlens.importance.causal import CausalGates, causal, causal_gates
from headlens.importance.gradients import gates_of_units
from headlens.importance.hard_concrete import concrete, hard_concrete, open_probability, rise_without
from headlens.importance.inputs import TextBatch, padded_batches
from headlens.importance.methods import METHODS, Setting
from headlens.importance.objectives import Objective, hidden_distortion, next_token_loss, token_logits
from headlens.importance.result import Importance
from headlens.importance.subset import soft_top, subset
from headlens.importance.units import units_of
from headlens.models import network_of
from headlens.surgery.apply import apply_plan
from headlens.surgery.present import full_plan
from headlens.testing import planted_gpt2, tiny_model

pytestmark = pytest.mark.slow  # many models; CI runs them as its own step

Learns = Callable[..., Importance]

PREVIOUS, INDUCTION, AGAINST = (0, 1), (1, 3), (1, 2)
ROLES = {PREVIOUS: "previous token", INDUCTION: "induction", (0, 5): "first token"}
LEARNERS = [hard_concrete, subset, causal]


def repeated_words() -> list[TextBatch]:
    """<s> and 6 to 10 words, twice: what comes next is known in the second half, by induction alone."""
    rng, texts = np.random.default_rng(0), []
    for length in (8, 6, 10, 7, 9, 8, 6, 10):
        words = rng.permutation(np.arange(3, 64))[:length].tolist()
        texts.append([1, *words, *words])
    return padded_batches(texts, batch_tokens=80)


def planted(roles: dict[tuple[int, int], str]) -> tuple[PreTrainedModel, Objective]:
    model = planted_gpt2(vocab=64, positions=24, roles=roles).model
    return network_of(model), next_token_loss(repeated_words(), token_logits(model))


@pytest.fixture(scope="module")
def needy() -> tuple[PreTrainedModel, Objective]:
    """A model in which the task needs two heads and no other."""
    return planted(ROLES)


def tiny(family: str) -> tuple[PreTrainedModel, Objective]:
    network = tiny_model(family)
    texts = [[7, 31, 5, 88, 64], [90, 6, 13], [55, 18, 23, 61]]
    return network, hidden_distortion(network, padded_batches(texts, batch_tokens=10))


# ------------------------------------------------------------------------------------------------------- what is needed


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("learns", [hard_concrete, subset])
def test_the_heads_that_the_task_needs_are_kept(
    needy: tuple[PreTrainedModel, Objective], learns: Learns, seed: int
) -> None:
    found = learns(*needy, keep=2, steps=100, seed=seed)
    order = np.argsort(-found.values, axis=None)[:2].tolist()
    assert {divmod(place, 6) for place in order} == {PREVIOUS, INDUCTION}
    others = np.delete(found.values.ravel(), [1, 9])
    if learns is hard_concrete:
        assert min(found.values[PREVIOUS], found.values[INDUCTION]) > 0.5 > others.max()
        assert found.facts["expected_open"] == pytest.approx(2, abs=0.5)
    else:
        assert found.facts["kept"] == ["L0H1", "L1H3"]
        assert min(found.values[PREVIOUS], found.values[INDUCTION]) > others.max() + 5


def test_which_heads_help_and_which_harm() -> None:
    network, objective = planted({**ROLES, AGAINST: "anti-induction"})
    gates = causal_gates(network, objective, steps=100)
    facilitating, interfering, irrelevant = (
        {(unit.layer, unit.heads[0]): float(value) for unit, value in zip(gates.units, values, strict=True)}
        for values in (gates.facilitating, gates.interfering, gates.irrelevant)
    )
    # a gate that is half open is enough for an induction head, and half closed enough for its opponent
    assert {head for head, value in facilitating.items() if value > 0.4} == {PREVIOUS, INDUCTION}
    assert {head for head, value in interfering.items() if value > 0.4} == {AGAINST}
    rest = set(irrelevant) - {PREVIOUS, INDUCTION, AGAINST}
    assert all(irrelevant[head] > 0.95 for head in rest)
    assert all(facilitating[head] < 0.05 and interfering[head] < 0.05 for head in rest)


def test_the_three_classes() -> None:
    gates = CausalGates((), np.array([1.0, 0.0, 1.0, 0.8]), np.array([1.0, 0.0, 0.0, 0.3]))
    assert gates.facilitating.tolist() == [1, 0, 0, 0.3]
    assert gates.interfering == pytest.approx([0, 1, 0, 0.2])
    assert gates.irrelevant == pytest.approx([0, 0, 1, 0.56])


def test_causal_gating_tells_all_classes(needy: tuple[PreTrainedModel, Objective]) -> None:
    found, gates = causal(*needy, steps=10), causal_gates(*needy, steps=10)
    assert found.values == pytest.approx(gates.facilitating.reshape(2, 6))
    for name in ("facilitating", "interfering", "irrelevant"):
        assert np.array(found.facts[name]) == pytest.approx(getattr(gates, name).reshape(2, 6))


# ------------------------------------------------------------------------------------------------------------- formulas


def test_hard_concrete_gates_are_open_as_often_as_they_say() -> None:
    log_alpha = torch.tensor([-2.0, -0.5, 0.0, 1.0], dtype=torch.float64)
    uniform = (torch.arange(100_000, dtype=torch.float64) + 0.5)[:, None].expand(-1, 4) / 100_000
    gates = concrete(log_alpha, uniform)
    assert gates.min() == 0
    assert gates.max() == 1
    # both ends by hand: open where logit(u) > -log_alpha + T log(1 / 11), and wide open where the mirror image holds
    edge = 0.33 * math.log(11)
    opened, full = ((log_alpha + sign * edge).sigmoid() for sign in (1, -1))
    assert torch.allclose((gates > 0).double().mean(dim=0), opened, atol=2e-5)
    assert torch.allclose((gates == 1).double().mean(dim=0), full, atol=2e-5)
    assert torch.allclose(open_probability(log_alpha), opened)


def test_hard_concrete_gates_in_between() -> None:
    """At u = 1/2 and log_alpha = T log 3 the sigmoid is 3/4, and the gate 1.2 * 3/4 - .1."""
    gate = concrete(torch.tensor([0.33 * math.log(3)]).double(), torch.full((1, 1), 0.5).double())
    assert float(gate) == pytest.approx(0.8)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("temperature", [1000.0, 1.0, 1e-8])
def test_soft_subsets_have_their_size(count: int, temperature: float) -> None:
    scores = torch.randn(3, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    gates = soft_top(scores, count, temperature)
    assert gates.sum(dim=-1).tolist() == pytest.approx([count] * 3)
    if temperature == 1e-8:
        largest = [[int(one in row.topk(count).indices) for one in range(5)] for row in scores]
        assert gates.tolist() == largest
    if temperature == 1000:
        assert torch.allclose(gates, torch.full_like(gates, count / 5), atol=0.01)


def test_soft_subsets_by_hand() -> None:
    """Two of three of weights 3 : 2 : 1. First 1/2, 1/3, 1/6 are taken, then shares of 3/2 : 4/3 : 5/6 = 9 : 8 : 5."""
    gates = soft_top(torch.tensor([[3.0, 2.0, 1.0]]).double().log(), 2, 1.0)
    assert gates[0].tolist() == pytest.approx([1 / 2 + 9 / 22, 1 / 3 + 8 / 22, 1 / 6 + 5 / 22])


def test_gates_go_to_the_heads_of_their_units() -> None:
    network = tiny_model("llama")  # 4 heads, 2 key/value heads
    values = torch.arange(12.0).reshape(2, 6)
    gates = gates_of_units(network, units_of(network, "group"), values)
    assert gates[1].tolist() == [[6, 6, 7, 7], [8, 8, 9, 9], [10, 10, 11, 11]]
    pruned = tiny_model("bert")
    pruned = apply_plan(pruned, full_plan(pruned).without([(0, 1), (1, 0), (1, 1), (1, 2), (1, 3)]))
    gates = gates_of_units(pruned, units_of(pruned, "head"), torch.arange(2.0, 9.0)[None])
    assert gates[0].tolist() == [[2, 1, 3, 4], [1, 1, 1, 1], [5, 6, 7, 8]]


def test_the_rise_without_any_head() -> None:
    network, objective = tiny("gpt2")
    expected = []
    with torch.no_grad(), capture(network, gates=torch.zeros(3, 4)):
        for batch in objective.batches:
            hidden = network(input_ids=batch.input_ids, attention_mask=batch.attention_mask).last_hidden_state
            expected += objective.values(hidden, batch).tolist()
    assert rise_without(network, objective, units_of(network, "head")) == pytest.approx(np.mean(expected))


# --------------------------------------------------------------------------------------------------------- the learning


@pytest.mark.parametrize("learns", LEARNERS)
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_only_gates_learn(learns: Learns, family: str) -> None:
    network, objective = tiny(family)
    before = {name: weight.clone() for name, weight in network.state_dict().items()}
    learns(network, objective, steps=4)
    assert all(torch.equal(weight, before[name]) for name, weight in network.state_dict().items())
    assert all(weight.grad is None and weight.requires_grad for weight in network.parameters())


@pytest.mark.parametrize("learns", LEARNERS)
def test_a_seed_is_a_result(learns: Learns) -> None:
    one, again, other = (learns(*tiny("bert"), steps=6, seed=seed).values for seed in (3, 3, 4))
    assert np.array_equal(one, again)
    assert not np.allclose(one, other)


@pytest.mark.parametrize("learns", LEARNERS)
def test_a_group_has_one_gate(learns: Learns) -> None:
    found = learns(*tiny("llama"), unit="group", steps=6).values.reshape(3, 2, 2)
    assert np.array_equal(found[..., 0], found[..., 1])
    assert len(np.unique(found)) == 6


@pytest.mark.parametrize("learns", LEARNERS)
def test_heads_that_are_gone_have_no_gate(learns: Learns) -> None:
    network, _ = tiny("bert")
    pruned = apply_plan(network, full_plan(network).without([(0, 1), (1, 0), (1, 1), (1, 2), (1, 3)]))
    objective = hidden_distortion(pruned, padded_batches([[7, 31, 5, 88], [90, 6]]))
    found = learns(pruned, objective, steps=6)
    assert found.present.tolist() == [[True, False, True, True], [False] * 4, [True] * 4]


@pytest.mark.parametrize("learns", LEARNERS)
def test_every_step_is_told(learns: Learns) -> None:
    said: list[str] = []
    learns(*tiny("bert"), steps=3, say=said.append)
    one = [f"learning gates, step {step} of 3" for step in (1, 2, 3)]
    assert said == one * (3 if learns is causal else 1)


@pytest.mark.parametrize("learns", LEARNERS)
def test_it_works_where_gradients_are_off(learns: Learns) -> None:
    with torch.no_grad():
        assert learns(*tiny("bert"), steps=2).present.all()


@pytest.mark.parametrize("name", ["hard_concrete", "subset", "causal"])
def test_methods_of_these_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"headlens.importance.{name}.learn", lambda *_, **__: None)  # the settings are asked for
    method = METHODS[name]
    assert method.is_trained
    found = method.run(Setting(*tiny("llama"), unit="group", remove=4, seed=7))
    assert found.method == name
    assert (found.facts["unit"], found.facts["seed"]) == ("group", 7)
    assert found.facts.get("keep") == (None if name == "causal" else 4)  # of 6 groups of 2 heads, when 4 heads go


@pytest.mark.parametrize(
    ("learn", "message"),
    [
        (lambda one: hard_concrete(*one, keep=12), "There are 12 gates, so keep must be from 1 to 11, got 12"),
        (lambda one: subset(*one, keep=0), "keep must be from 1 to 11, got 0"),
        (lambda one: subset(*one, hot=1.0, cold=2.0), "The temperature must fall and stay above 0"),
        (lambda one: subset(*one, steps=1), "at least two steps to learn, got 1"),
        (lambda one: causal(*one, reward=0.0), "The reward must be above 0, got 0.0"),
    ],
)
def test_what_is_refused(learn: Callable[[tuple[PreTrainedModel, Objective]], Importance], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        learn(tiny("bert"))
