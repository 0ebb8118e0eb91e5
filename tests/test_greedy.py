"""Greedy search, against one that tries every head at every step in networks with hooks, and against surgery."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headlens.arch import attention_sites, output_projection
from headlens.errors import PlanError, UnsupportedModel
from headlens.importance.greedy import greedy
from headlens.importance.inputs import TextBatch, padded_batches
from headlens.importance.leave_one_out import leave_one_out
from headlens.importance.objectives import Objective, hidden_distortion
from headlens.surgery.apply import apply_plan
from headlens.surgery.fills import mean_contexts
from headlens.surgery.present import full_plan
from headlens.testing import tiny_model

pytestmark = pytest.mark.slow  # many models; CI runs them as its own step

TEXTS = [[7, 31, 5, 88, 64, 12, 9], [90, 6, 13], [55, 18, 23, 61], [19, 20, 21, 5, 66]]
EVERYTHING = {"candidates": 12, "examples": None}  # the search is exact


def batches() -> list[TextBatch]:
    return padded_batches(TEXTS, batch_tokens=15)


@pytest.mark.parametrize(("family", "heads"), [("bert", 1), ("gpt2", 1), ("llama", 1), ("llama", 2), ("gpt_neox", 1)])
@pytest.mark.parametrize("ablation", ["zero", "mean"])
def test_the_order_is_that_of_a_search_that_tries_everything(family: str, heads: int, ablation: str) -> None:
    network = tiny_model(family)
    objective = hidden_distortion(network, batches())
    unit = "group" if heads == 2 else "head"
    found = greedy(network, objective, remove=5, ablation=ablation, unit=unit, **EVERYTHING)
    order, rises = slow_search(network, objective, ablation, heads, steps=5)
    assert [name.split("+")[0] for name in found.facts["order"]] == [f"L{layer}H{at * heads}" for layer, at in order]
    assert found.facts["rise"] == pytest.approx(rises, rel=1e-8)
    ranks = [found.values[layer, at * heads] for layer, at in order]
    assert ranks == [1, 2, 3, 4, 5]
    assert np.unique(found.values).tolist() == list(range(1, 12 // heads + 1))


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_the_rise_is_that_of_the_pruned_model(family: str) -> None:
    network = tiny_model(family)
    objective, means = hidden_distortion(network, batches()), mean_contexts(network, batches())
    unit = "group" if family == "llama" else "head"
    found = greedy(network, objective, remove=4, means=means, unit=unit, examples=None, candidates=2)
    gone = [(int(one[1]), int(one[3])) for name in found.facts["order"] for one in name.split("+")]
    pruned = apply_plan(network, full_plan(network).without(gone), fill=means)
    with torch.no_grad():
        values = [objective.values(pruned(**inputs(batch)).last_hidden_state, batch) for batch in objective.batches]
    assert found.facts["rise"][-1] == pytest.approx(float(torch.cat(values).mean()), rel=1e-9)


def test_a_lazy_search_scores_fewer_heads() -> None:
    network = tiny_model("bert", heads=6)
    objective = hidden_distortion(network, batches())
    exact = greedy(network, objective, remove=9, candidates=18, examples=None)
    lazy = greedy(network, objective, remove=9, candidates=2, examples=None)
    assert exact.facts["evaluations"] == sum(range(10, 19))
    assert lazy.facts["evaluations"] < exact.facts["evaluations"] / 2


@pytest.mark.parametrize("family", ["gpt2", "bert", "opt"])
def test_no_head_goes_on_an_old_score(family: str) -> None:
    """One candidate at a time is scored again, and another one where it falls behind."""
    network = tiny_model(family)
    objective = hidden_distortion(network, batches())
    found = greedy(network, objective, remove=6, candidates=1, examples=None)
    assert found.facts["evaluations"] >= 12 + 5
    gone: list[tuple[int, int]] = []
    fill = mean_fill(network)
    for name, rise in zip(found.facts["order"], found.facts["rise"], strict=True):
        gone.append((int(name[1]), int(name[3])))
        assert rise == pytest.approx(distortion(network, objective, gone, fill), rel=1e-8)


def test_all_are_scored_again_when_it_is_due() -> None:
    network = tiny_model("bert")
    objective = hidden_distortion(network, batches())
    found = greedy(network, objective, remove=4, candidates=1, refresh=1, examples=None)
    assert found.facts["evaluations"] == 12 + 11 + 10 + 9


def test_several_go_on_one_scoring() -> None:
    network = tiny_model("bert")
    objective = hidden_distortion(network, batches())
    alone = leave_one_out(network, objective, ablation="mean").values
    found = greedy(network, objective, remove=3, every=3, **EVERYTHING)
    first = [divmod(int(place), 4) for place in np.argsort(alone, axis=None)[:3]]
    assert found.facts["order"] == [f"L{layer}H{head}" for layer, head in first]
    assert found.facts["evaluations"] == 12


def test_a_heads_twin_stays() -> None:
    """Of two heads that do the same, either can go, but not both: what each does alone does not tell."""
    network = tiny_model("bert", std=0.2)
    attention, out = network.encoder.layer[2].attention.self, network.encoder.layer[2].attention.output.dense
    with torch.no_grad():
        for part in (attention.query, attention.key, attention.value):
            part.weight[8:16], part.bias[8:16] = part.weight[:8], part.bias[:8]
        out.weight[:, 8:16] = out.weight[:, :8] = 3 * out.weight[:, :8]
        out.weight[:, 16:] *= 2
    objective = hidden_distortion(network, batches())
    found = greedy(network, objective, ablation="zero", **EVERYTHING)
    order, _ = slow_search(network, objective, "zero", 1, steps=12)
    assert found.facts["order"] == [f"L{layer}H{head}" for layer, head in order]
    places = sorted(found.values[2, :2])
    assert places[1] - places[0] > 1


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_the_network_is_left_as_it_was(family: str) -> None:
    network = tiny_model(family)
    before = {name: weight.clone() for name, weight in network.state_dict().items()}
    greedy(network, hidden_distortion(network, batches()), remove=3)
    after = network.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_pruned_network_is_searched_in_the_numbers_of_the_original() -> None:
    network = tiny_model("bert")
    pruned = apply_plan(network, full_plan(network).without([(0, 0), (0, 2), (1, 0), (1, 1), (1, 2), (1, 3)]))
    found = greedy(pruned, hidden_distortion(pruned, batches()), **EVERYTHING)
    here = {"L0H1", "L0H3", "L2H0", "L2H1", "L2H2", "L2H3"}
    assert set(found.facts["order"]) == here
    assert {f"L{layer}H{head}" for layer, head in np.argwhere(found.present)} == here


def test_the_examples_that_are_used_are_whole() -> None:
    network = tiny_model("bert")
    objective = hidden_distortion(network, batches())
    alone = leave_one_out(network, objective, ablation="zero").per_example
    assert alone is not None
    least = {pair: alone[list(pair)].mean(axis=0).min() for pair in itertools.combinations(range(4), 2)}
    found = greedy(network, objective, remove=1, ablation="zero", examples=2, seed=0).facts["rise"][0]
    assert sum(found == pytest.approx(one, rel=1e-8) for one in least.values()) == 1


def test_only_some_examples_are_used() -> None:
    network = tiny_model("bert")
    whole = hidden_distortion(network, batches())
    found = greedy(network, whole, remove=2, examples=2, seed=1)
    assert found.support == 2
    assert greedy(network, whole, remove=2, examples=2, seed=1).facts == found.facts
    others = {tuple(greedy(network, whole, remove=2, examples=2, seed=seed).facts["rise"]) for seed in range(4)}
    assert len(others) > 1


@pytest.mark.parametrize("remove", [0, 13])
def test_a_number_that_cannot_go_is_refused(remove: int) -> None:
    network = tiny_model("bert")
    with pytest.raises(PlanError, match=f"from 1 to 12, got {remove}"):
        greedy(network, hidden_distortion(network, batches()), remove=remove)


def test_shared_layers_are_refused_with_the_way_out() -> None:
    network = tiny_model("albert")
    with pytest.raises(UnsupportedModel, match=r"share their weights.*leave_one_out"):
        greedy(network, hidden_distortion(network, batches()), remove=1)


# -------------------------------------------------------------------------------------------------------------- helpers


def inputs(batch: TextBatch) -> dict[str, Tensor]:
    return {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}


@contextmanager
def contexts_replaced(network: PreTrainedModel, fill: list[Tensor | None]) -> Iterator[None]:
    """Columns of a layer's context are replaced by `fill` [head * dim] where that is not NaN."""
    handles = []
    for site, own in zip(attention_sites(network), fill, strict=True):
        if own is None:
            continue

        def replace(_module: object, args: tuple[Tensor, ...], own: Tensor = own) -> tuple[Tensor, ...]:
            return (torch.where(own.isnan(), args[0], own),)

        handles.append(output_projection(network, site).register_forward_pre_hook(replace))
    yield
    for handle in handles:
        handle.remove()


@torch.no_grad()
def mean_fill(network: PreTrainedModel) -> list[Tensor]:
    """The mean context of each layer over all tokens, text by text."""
    seen: list[list[Tensor]] = [[] for _ in attention_sites(network)]
    handles = [
        output_projection(network, site).register_forward_pre_hook(
            lambda _module, args, own=own: own.append(args[0][0]) and None
        )
        for site, own in zip(attention_sites(network), seen, strict=True)
    ]
    for text in TEXTS:
        network(input_ids=torch.tensor([text]))
    for handle in handles:
        handle.remove()
    return [torch.cat(own).mean(dim=0) for own in seen]


@torch.no_grad()
def distortion(
    network: PreTrainedModel, objective: Objective, gone: list[tuple[int, int]], means: list[Tensor], heads: int = 1
) -> float:
    fill = [torch.full_like(mean, torch.nan) for mean in means]
    for layer, at in gone:
        width = len(means[layer]) // 4 * heads
        fill[layer][at * width : (at + 1) * width] = means[layer][at * width : (at + 1) * width]
    with contexts_replaced(network, fill):
        values = [objective.values(network(**inputs(batch)).last_hidden_state, batch) for batch in objective.batches]
    return float(torch.cat(values).mean())


def slow_search(
    network: PreTrainedModel, objective: Objective, ablation: str, heads: int, steps: int
) -> tuple[list[tuple[int, int]], list[float]]:
    means = mean_fill(network)
    means = means if ablation == "mean" else [torch.zeros_like(mean) for mean in means]
    left = [(layer, at) for layer in range(3) for at in range(4 // heads)]
    gone: list[tuple[int, int]] = []
    rises = []
    for _ in range(steps):
        scores = {one: distortion(network, objective, [*gone, one], means, heads) for one in left}
        best = min(left, key=lambda one: scores[one])
        left.remove(best)
        gone.append(best)
        rises.append(scores[best])
    return gone, rises
