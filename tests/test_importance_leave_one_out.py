"""Leaving heads out, against networks in which a hook puts something else in the place of each head's context."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.arch import attention_sites, output_projection
from headlens.errors import CorpusError, PlanError, UnsupportedModel
from headlens.importance.ablated import UpperRunner, WholeRunner, runner_of
from headlens.importance.inputs import TextBatch, padded_batches
from headlens.importance.leave_one_out import Ablation, damages, fills_of, leave_one_out
from headlens.importance.objectives import Objective, cosine_distortion, hidden_distortion
from headlens.importance.units import units_of
from headlens.testing import tiny_model

pytestmark = pytest.mark.slow  # many models; CI runs them as its own step

TEXTS = [
    [7, 31, 5, 88, 64, 12, 9, 40, 41, 77],
    [90, 6, 13],
    [55, 18, 23, 61, 70, 8],
    [19, 20, 21, 5],
    [33, 34, 35, 36, 37, 38, 39],
]
FAMILIES = "bert gpt2 llama opt gpt_neox t5 distilbert modernbert electra roberta mistral qwen3 gemma2".split()
ABLATIONS: list[Ablation] = ["zero", "mean", "resample", "uniform"]


def network_of(family: str) -> PreTrainedModel:
    # transformers' Gemma gives NaN for a text that is shorter than its batch by more than the window
    model = tiny_model(family, **({"sliding_window": 16} if family == "gemma2" else {}))
    return model.get_encoder() if family == "t5" else model


def batches() -> list[TextBatch]:
    return padded_batches(TEXTS, batch_tokens=22)  # of 3 and 2 rows, both with padding


# ----------------------------------------------------------------------------------------------- against plain networks


@pytest.mark.parametrize("family", [*FAMILIES, "albert"])
def test_zero_and_mean_are_those_of_contexts_that_a_hook_replaces(family: str) -> None:
    network = network_of(family)
    objective = hidden_distortion(network, batches())
    sites, heads = attention_sites(network), 4
    means = [np.concatenate(contexts).mean(axis=0) for contexts in contexts_by_layer(network)]
    zero, mean = (leave_one_out(network, objective, ablation=each) for each in ("zero", "mean"))
    assert zero.values.shape == (len(sites), heads)
    for found, fill in ((zero, [np.zeros_like(one) for one in means]), (mean, means)):
        expected = [
            [distances(network, objective, layer, head, fill[layer]) for head in range(heads)]
            for layer in range(len(sites))
        ]
        assert found.per_example == pytest.approx(np.array(expected).transpose(2, 0, 1), rel=1e-8, abs=1e-12)
        assert found.values == pytest.approx(np.array(expected).mean(axis=-1), rel=1e-8)
    assert (zero.values > 1e-4).all()


def test_groups_lose_all_their_heads() -> None:
    network = network_of("llama")  # 4 heads, 2 key/value heads
    objective = hidden_distortion(network, batches())
    found = leave_one_out(network, objective, unit="group")
    off = np.zeros(32)
    expected = [
        [np.mean(distances(network, objective, layer, kv, off, heads=2)) for kv in (0, 1)] for layer in range(3)
    ]
    assert found.values == pytest.approx(np.repeat(expected, 2, axis=1), rel=1e-8)
    assert found.facts["unit"] == "group"


@pytest.mark.parametrize(
    ("family", "window"), [("bert", None), ("gpt2", None), ("llama", None), ("mistral", 5), ("opt", None)]
)
def test_uniform_is_the_mean_of_the_values_of_visible_keys(family: str, window: int | None) -> None:
    network = network_of(family)
    objective = hidden_distortion(network, batches())
    runner = runner_of(network, batches()[0])
    fill = fills_of(runner, objective, "uniform")
    for batch in batches():
        found = fill(runner.intact(batch))
        for layer, values in enumerate(values_by_layer(network, batch)):
            expected = uniform_by_hand(values, batch.lengths.tolist(), family != "bert", window)
            real = batch.attention_mask.bool()
            assert torch.allclose(found[layer][real], expected[real], rtol=0, atol=1e-12)


@pytest.mark.parametrize("batch_tokens", [22, 1000])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_resampling_takes_another_example_at_the_same_kind_of_place(batch_tokens: int, seed: int) -> None:
    network, texts = network_of("gpt2"), padded_batches(TEXTS, batch_tokens=batch_tokens)
    objective, runner = hidden_distortion(network, texts), runner_of(network, texts[0])
    contexts = {
        example: contexts[row]
        for batch in texts
        for contexts in [contexts_of(network, batch)[1]]
        for row, example in enumerate(batch.example.tolist())
    }
    fill, chosen = fills_of(runner, objective, "resample", seed=seed), []
    for batch in texts:
        found = fill(runner.intact(batch))[1]
        for row, example in enumerate(batch.example.tolist()):
            own, length = found[row], len(TEXTS[example])
            others = [other for other in contexts if torch.allclose(own[0], contexts[other][0])]
            assert len(others) == 1
            other, last = others[0], len(TEXTS[others[0]]) - 1
            chosen.append((example, other))
            assert torch.allclose(own[length - 1], contexts[other][last], atol=1e-12)
            inner = [1 + place % (last - 1) for place in range(length - 2)]
            assert torch.allclose(own[1 : length - 1], contexts[other][inner], atol=1e-12)
    assert all(example != other for example, other in chosen)
    assert sorted(other for _, other in chosen) == [0, 1, 2, 3, 4]


def test_resampling_follows_its_seed() -> None:
    network = network_of("bert")
    objective = cosine_distortion(network, batches())
    one, again, other = (leave_one_out(network, objective, ablation="resample", seed=seed).values for seed in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.allclose(one, other)


# ------------------------------------------------------------------------------------------------------ the cheaper way


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ablation", ABLATIONS)
def test_upper_layers_alone_give_what_all_layers_give(family: str, ablation: Ablation) -> None:
    network = network_of(family)
    objective, units = hidden_distortion(network, batches()), units_of(network, "head")
    runner = runner_of(network, batches()[0])
    assert isinstance(runner, UpperRunner)
    cheap, whole = (
        damages(each, objective, units, fills_of(each, objective, ablation), row_tokens=50)
        for each in (runner, WholeRunner(network))
    )
    assert cheap == pytest.approx(whole, rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("ablation", ABLATIONS)
def test_layers_of_one_module_are_run_whole(ablation: Ablation) -> None:
    network = network_of("albert")
    assert isinstance(runner_of(network, batches()[0]), WholeRunner)
    values = leave_one_out(network, hidden_distortion(network, batches()), ablation=ablation).values
    assert len(np.unique(values.round(9))) == values.size  # layers share their weights, not what they do


def test_a_network_that_reads_more_than_its_layers_give_is_run_whole() -> None:
    network, seen = network_of("gpt2"), list[Tensor]()
    network.register_forward_pre_hook(lambda *_: seen.clear())
    network.h[0].mlp.register_forward_hook(lambda _layer, _inputs, output: seen.append(output))
    network.ln_f.register_forward_hook(lambda _layer, _inputs, output: output + sum(seen))
    assert isinstance(runner_of(network, batches()[0]), WholeRunner)


@pytest.mark.parametrize("row_tokens", [1, 60, 10_000])
def test_how_many_rows_go_together_changes_nothing(row_tokens: int) -> None:
    network = network_of("llama")
    objective = cosine_distortion(network, batches())
    expected = leave_one_out(network, objective, row_tokens=40).per_example
    assert leave_one_out(network, objective, row_tokens=row_tokens).per_example == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("batch_tokens", [1, 1000])
def test_how_texts_are_batched_changes_nothing(batch_tokens: int) -> None:
    network = network_of("bert")
    expected, found = (
        leave_one_out(network, cosine_distortion(network, padded_batches(TEXTS, batch_tokens=size)), ablation="mean")
        for size in (22, batch_tokens)
    )
    assert found.per_example == pytest.approx(expected.per_example, abs=1e-11)


def test_lower_layers_do_not_run_again() -> None:
    network, calls = network_of("bert"), [0] * 6

    def count(place: int) -> Callable[..., None]:
        return lambda *_: calls.__setitem__(place, calls[place] + 1)

    runner, objective = runner_of(network, batches()[0]), _OneBatch(cosine_distortion(network, batches()))
    for layer, block in enumerate(network.encoder.layer):
        block.attention.self.query.register_forward_hook(count(2 * layer))
        block.intermediate.dense.register_forward_hook(count(2 * layer + 1))
    damages(runner, objective, units_of(network, "head"), fills_of(runner, objective, "zero"), row_tokens=10_000)
    # one intact pass; then for each layer one pass of all its heads: its feed-forward part and all above it
    assert calls == [1, 1 + 1, 1 + 1, 1 + 2, 1 + 2, 1 + 3]


@pytest.mark.parametrize("family", ["bert", "llama", "albert", "t5"])
def test_the_network_is_left_as_it_was(family: str) -> None:
    network = network_of(family)
    before = {name: weight.clone() for name, weight in network.state_dict().items()}
    leave_one_out(network, cosine_distortion(network, batches()), ablation="mean")
    assert not any("forward" in part.__dict__ or part._forward_hooks for part in network.modules())
    assert not any(part._forward_pre_hooks for part in network.modules())
    assert all(torch.equal(before[name], weight) for name, weight in network.state_dict().items())
    assert network.config._attn_implementation == "sdpa"


def test_a_pass_that_breaks_off_leaves_the_network_as_it_was() -> None:
    network = network_of("bert")
    runner = runner_of(network, batches()[0])
    intact = runner.intact(batches()[0])
    handle = network.encoder.layer[2].register_forward_pre_hook(_interrupt)
    with pytest.raises(KeyboardInterrupt):
        runner.without(intact, 1, units_of(network, "head")[4:5], None)
    handle.remove()
    assert not any("forward" in part.__dict__ for part in network.modules())


# ------------------------------------------------------------------------------------------------------------- refusals


def test_a_network_whose_output_is_not_finite_is_refused() -> None:
    network = network_of("bert")
    objective = cosine_distortion(network, batches())
    network.encoder.layer[1].output.dense.bias.data[0] = torch.nan
    with pytest.raises(UnsupportedModel, match="not finite"):
        leave_one_out(network, objective)


def test_an_unknown_ablation_is_refused() -> None:
    network = network_of("bert")
    with pytest.raises(PlanError, match="one of zero, mean, resample, uniform, got 'noise'"):
        leave_one_out.__wrapped__(network, cosine_distortion(network, batches()), ablation="noise")


def test_one_example_cannot_be_resampled() -> None:
    network = network_of("bert")
    with pytest.raises(CorpusError, match="only one"):
        leave_one_out(network, cosine_distortion(network, padded_batches(TEXTS[:1])), ablation="resample")


def test_two_stacks_are_refused_with_the_way_out() -> None:
    with pytest.raises(UnsupportedModel, match=r"get_encoder\(\)"):
        runner_of(tiny_model("bart"), batches()[0])


# -------------------------------------------------------------------------------------------------------------- helpers


class _OneBatch(Objective):
    """The first batch of another objective."""

    def __init__(self, whole: Objective) -> None:
        self.name, self.is_distortion, self.unit = whole.name, whole.is_distortion, whole.unit
        self.batches, self.examples, self.whole = whole.batches[:1], whole.examples, whole

    def values(self, hidden: Tensor, batch: TextBatch, rows: Tensor | None = None) -> Tensor:
        return self.whole.values(hidden, batch, rows)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def projection_calls(network: PreTrainedModel) -> list[nn.Module]:
    return [output_projection(network, site) for site in attention_sites(network)]


@contextmanager
def contexts_seen(network: PreTrainedModel, see: Callable[[int, Tensor], Tensor | None]) -> Iterator[None]:
    """`see(layer, context)` before every output projection; what it returns is projected instead."""
    calls, handles = iter(range(1000)), []
    for projection in {id(one): one for one in projection_calls(network)}.values():
        handles.append(projection.register_forward_pre_hook(lambda _module, inputs: see(next(calls), inputs[0])))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def contexts_of(network: PreTrainedModel, batch: TextBatch) -> list[Tensor]:
    found: list[Tensor] = []
    with contexts_seen(network, lambda _layer, context: found.append(context)):
        network(input_ids=batch.input_ids, attention_mask=batch.attention_mask)
    return found


def contexts_by_layer(network: PreTrainedModel) -> list[list[np.ndarray[Any, Any]]]:
    """Of every layer, contexts [token, head * dim] of each text, run alone."""
    alone = [contexts_of(network, padded_batches([text])[0]) for text in TEXTS]
    return [[contexts[layer][0].numpy() for contexts in alone] for layer in range(len(alone[0]))]


@torch.no_grad()
def distances(
    network: PreTrainedModel, objective: Objective, layer: int, head: int, fill: np.ndarray[Any, Any], heads: int = 1
) -> list[float]:
    """hidden_distortion of every text, run alone, with a head's context replaced by `fill` [head * dim]."""
    intact = [last(network, text) for text in TEXTS]
    everything = np.concatenate(intact)
    variance = ((everything - everything.mean(axis=0)) ** 2).sum(axis=-1).mean()
    width = len(fill) // 4 * heads
    columns = slice(head * width, (head + 1) * width)

    def replaced(at: int, context: Tensor) -> Tensor | None:
        if at != layer:
            return None
        context = context.clone()
        context[..., columns] = torch.from_numpy(fill[columns])
        return (context,)

    found = []
    for text, before in zip(TEXTS, intact, strict=True):
        with contexts_seen(network, replaced):
            found.append(float(((last(network, text) - before) ** 2).sum(axis=-1).mean() / variance))
    return found


@torch.no_grad()
def last(network: PreTrainedModel, text: list[int]) -> np.ndarray[Any, Any]:
    return network(input_ids=torch.tensor([text]), attention_mask=torch.ones(1, len(text))).last_hidden_state[0].numpy()


def values_by_layer(network: PreTrainedModel, batch: TextBatch) -> list[Tensor]:
    """What each family's own projection gives as values: [batch, token, query head, dim]."""
    ending = {"bert": ".self.value", "gpt2": ".c_attn", "llama": ".v_proj", "mistral": ".v_proj", "opt": ".v_proj"}
    family, found, handles = network.config.model_type, list[Tensor](), []
    for name, module in network.named_modules():
        if name.endswith(ending[family]):
            handles.append(module.register_forward_hook(lambda _module, _inputs, out: found.append(out)))
    with torch.no_grad():
        network(input_ids=batch.input_ids, attention_mask=batch.attention_mask)
    for handle in handles:
        handle.remove()
    if family == "gpt2":
        found = [out[..., 64:] for out in found]  # queries, keys, values of 32 each
    kv = 2 if family in ("llama", "mistral") else 4
    return [out.unflatten(-1, (kv, 8))[:, :, [head * kv // 4 for head in range(4)]] for out in found]


def uniform_by_hand(values: Tensor, lengths: list[int], is_causal: bool, window: int | None) -> Tensor:
    found = torch.zeros(*values.shape[:2], 32, dtype=values.dtype)
    for row, length in enumerate(lengths):
        for query in range(length):
            first = max(0, query + 1 - window) if window else 0
            keys = values[row, first : query + 1] if is_causal else values[row, :length]
            found[row, query] = keys.mean(dim=0).flatten()
    return found
