"""Output norms, against what a hook sees going into W_O, multiplied out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headlens.arch import attention_sites, output_projection
from headlens.errors import PlanError, UnsupportedModel
from headlens.importance.inputs import padded_batches
from headlens.importance.norms import is_pre_norm, output_norm
from headlens.importance.objectives import Objective, hidden_distortion
from headlens.surgery.apply import apply_plan
from headlens.surgery.present import full_plan
from headlens.testing import tiny_model

TEXTS = [[7, 31, 5, 88, 64, 12, 9], [90, 6, 13], [55, 18, 23, 61], [19, 20, 21, 5, 66]]


def objective_of(network: PreTrainedModel) -> Objective:
    return hidden_distortion(network, padded_batches(TEXTS, batch_tokens=15))


@torch.no_grad()
def outputs(network: PreTrainedModel) -> list[list[Tensor]]:
    """Of every layer what each head adds, text by text: [head, token, hidden]."""
    found: list[list[Tensor]] = []
    for site in attention_sites(network):
        projection, seen = output_projection(network, site), list[Tensor]()
        handle = projection.register_forward_pre_hook(lambda _module, args, seen=seen: seen.append(args[0][0]) and None)
        for text in TEXTS:
            network(input_ids=torch.tensor([text]))
        handle.remove()
        weight = projection.weight if type(projection).__name__ == "Conv1D" else projection.weight.T
        parts = [context.chunk(4, dim=-1) for context in seen]
        rows = weight.chunk(4, dim=0)
        found.append([torch.stack([part @ row for part, row in zip(own, rows, strict=True)]) for own in parts])
    return found


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "t5"])
@pytest.mark.parametrize("norm", ["raw", "centred", "relative"])
def test_norms_of_what_heads_add(family: str, norm: str) -> None:
    network = tiny_model(family)
    network = network.get_encoder() if family == "t5" else network
    found = output_norm(network, objective_of(network), norm=norm)
    for layer, own in enumerate(outputs(network)):
        mean = torch.cat(own, dim=1).mean(dim=1, keepdim=True) if norm == "centred" else 0
        expected = torch.stack([(one - mean).norm(dim=-1).mean(dim=-1) for one in own])  # [text, head]
        if norm == "relative":
            expected = expected / median_stream(network, layer)
        assert found.per_example[:, layer] == pytest.approx(expected.numpy(), rel=1e-9)
        assert found.values[layer] == pytest.approx(expected.mean(dim=0).numpy(), rel=1e-9)
    assert found.method == f"norm_{norm}"


@torch.no_grad()
def median_stream(network: PreTrainedModel, layer: int) -> float:
    streams = [
        network(input_ids=torch.tensor([text]), output_hidden_states=True).hidden_states[layer][0] for text in TEXTS
    ]
    return float(torch.cat(streams).norm(dim=-1).median())


def test_a_group_has_the_sum_of_its_heads() -> None:
    network = tiny_model("llama")
    alone = output_norm(network, objective_of(network), norm="raw").values
    found = output_norm(network, objective_of(network), norm="raw", unit="group").values
    assert found == pytest.approx(np.repeat(alone.reshape(3, 2, 2).sum(axis=-1), 2, axis=-1))


@pytest.mark.parametrize(
    ("family", "method"),
    [("bert", "norm_raw"), ("distilbert", "norm_raw"), ("gpt2", "norm_relative"), ("llama", "norm_relative")],
)
def test_pre_norm_models_are_measured_by_their_stream(family: str, method: str) -> None:
    network = tiny_model(family)
    assert output_norm(network, objective_of(network)).method == method


@pytest.mark.parametrize("before", [True, False])
def test_opt_says_where_it_normalises(before: bool) -> None:
    assert is_pre_norm(tiny_model("opt", do_layer_norm_before=before)) == before


def test_heads_that_are_gone_have_no_norm() -> None:
    network = tiny_model("bert")
    pruned = apply_plan(network, full_plan(network).without([(0, 1), (1, 0), (1, 1), (1, 2), (1, 3)]))
    whole, found = (output_norm(each, objective_of(each)) for each in (network, pruned))
    assert found.present.tolist() == [[True, False, True, True], [False] * 4, [True] * 4]
    assert found.values[0, [0, 2, 3]] == pytest.approx(whole.values[0, [0, 2, 3]])  # nothing below has changed


def test_shared_layers_have_norms_but_no_streams() -> None:
    network = tiny_model("albert")
    expected = [torch.stack([one.norm(dim=-1).mean(dim=-1) for one in own]).mean(dim=0) for own in shared(network)]
    assert output_norm(network, objective_of(network)).values == pytest.approx(np.stack(expected))
    with pytest.raises(UnsupportedModel, match="cannot be told apart"):
        output_norm(network, objective_of(network), norm="relative")


def shared(network: PreTrainedModel) -> list[list[Tensor]]:
    """`outputs` of a model of which one module is all layers."""
    by_text = list(zip(*outputs(network)[:1], strict=True))
    calls = len(by_text) // len(TEXTS)
    return [[by_text[text * calls + layer][0] for text in range(len(TEXTS))] for layer in range(calls)]


def test_an_unknown_norm_is_refused() -> None:
    network = tiny_model("bert")
    with pytest.raises(PlanError, match="one of raw, centred, relative, got 'l2'"):
        output_norm.__wrapped__(network, objective_of(network), norm="l2")
