"""What removed heads go on giving: their mean, folded into the output bias; and heads zeroed at full size."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headlens.arch import attention_sites, output_projection
from headlens.capture import capture
from headlens.errors import CaptureError, CorpusError, PlanError, UnsupportedModel
from headlens.plan import HeadPlan, plan_of
from headlens.records import LayerAttention
from headlens.surgery import MASKED_ENTRY, Means, apply_plan, full_plan, masked_twin, mean_contexts
from headlens.surgery.shapes import FAMILIES, attention_layers, counts_of, projection_of
from headlens.testing import FAMILIES as TINY
from headlens.testing import padded_inputs, tiny_model

LAYERS, HEADS = 3, 4
KNOWN = [family for family in FAMILIES if family in TINY]
GROUPED = ("llama", "mistral", "qwen2", "qwen3")
WITHOUT_BIAS = (*GROUPED, "t5")

# by kind of family, heads to take out; layer 1 loses all of its own
OFF = {
    "single": [(0, 1), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 3)],
    "grouped": [(0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 3)],
    "shared": [(layer, head) for layer in range(3) for head in (1, 3)],
}


def off(family: str) -> list[tuple[int, int]]:
    return OFF["grouped" if family in GROUPED else "shared" if family == "albert" else "single"]


@dataclass(frozen=True)
class Text:
    input_ids: Tensor
    attention_mask: Tensor


def texts(side: Any = "right") -> list[Text]:
    inputs = padded_inputs(side=side)
    return [Text(inputs["input_ids"], inputs["attention_mask"])]


def network(model: PreTrainedModel) -> PreTrainedModel:
    return model.get_encoder() if model.config.is_encoder_decoder else model


@torch.no_grad()
def hidden(model: PreTrainedModel) -> Tensor:
    """Last hidden states of the real tokens [token, hidden], under sdpa."""
    inputs = padded_inputs()
    return network(model)(**inputs).last_hidden_state[inputs["attention_mask"].bool()]


def slow_means(model: PreTrainedModel) -> Tensor:
    """[layer, head, dim]: what capture saw, sentence by sentence without padding, all in one mean at the end."""
    seen: dict[int, list[Tensor]] = {}

    def keep(attention: LayerAttention) -> None:
        seen.setdefault(attention.layer, []).append(attention.context[0].double())  # [head, token, dim]

    runs, inputs = network(model), padded_inputs()
    with torch.no_grad(), capture(runs, keep):
        for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"].bool(), strict=True):
            runs(ids[mask][None])
    return torch.stack([torch.cat(seen[layer], dim=1).mean(dim=1) for layer in range(LAYERS)])


def with_means_in_place(model: PreTrainedModel, means: Tensor, heads: list[tuple[int, int]]) -> PreTrainedModel:
    """A copy in which heads give their mean at every token, put there before W_O."""
    twin = copy.deepcopy(model)
    runs = network(twin)
    calls: dict[Any, int] = {}

    def replace(module: Any, args: tuple[Tensor, ...]) -> tuple[Tensor]:
        layer = layers[module][calls.get(module, 0) % len(layers[module])]
        calls[module] = calls.get(module, 0) + 1
        context = args[0].unflatten(-1, (HEADS, -1)).clone()
        for number, head in heads:
            if number == layer:
                context[..., head, :] = means[layer, head].to(context)
        return (context.flatten(-2),)

    layers: dict[Any, list[int]] = {}
    for site in attention_sites(runs):
        layers.setdefault(output_projection(runs, site), []).append(site.layer)
    for module in layers:
        module.register_forward_pre_hook(replace)
    return twin


# ---------------------------------------------------------------------------------------------------------------- means


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", KNOWN)
def test_means_are_over_real_tokens_of_every_head(family: str, side: Any) -> None:
    if family == "distilbert" and side == "left":
        pytest.skip("DistilBERT takes no positions, so its batches are padded on the right")
    model = tiny_model(family)
    found = mean_contexts(model, texts(side))
    # under sdpa; many families take the softmax of eager attention, as capture has it, in float32
    torch.testing.assert_close(torch.stack(found.values), slow_means(model), rtol=0, atol=2e-6)
    assert found.tokens == 12 + 7 + 4
    assert all(each.dtype == torch.float64 for each in found.values)


def test_means_of_any_split_into_batches_are_the_same() -> None:
    model, (whole,) = tiny_model("gpt2"), texts()
    parts = [Text(whole.input_ids[row : row + 1], whole.attention_mask[row : row + 1].bool()) for row in range(3)]
    first, second = mean_contexts(model, [whole]), mean_contexts(model, iter(parts))
    torch.testing.assert_close(torch.stack(first.values), torch.stack(second.values), rtol=0, atol=1e-14)


def test_means_of_a_pruned_model_have_the_numbers_of_the_original() -> None:
    model = tiny_model("bert")
    pruned = apply_plan(model, full_plan(model).without(off("bert")))
    found = mean_contexts(pruned, texts()).values
    gone = torch.stack(found).isnan().all(dim=-1)
    assert [tuple(pair) for pair in gone.nonzero().tolist()] == off("bert")
    kept = [0, 2, 3]  # nothing below layer 0 has changed
    torch.testing.assert_close(found[0][kept], mean_contexts(model, texts()).values[0][kept], rtol=0, atol=1e-13)


def test_nothing_is_left_on_the_model() -> None:
    model = tiny_model("t5")
    mean_contexts(model, texts())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_means_need_text_and_a_model_at_rest() -> None:
    model = tiny_model("bert")
    with pytest.raises(CorpusError, match="there is not one token"):
        mean_contexts(model, [])
    with pytest.raises(CaptureError, match=r"in train mode.*model\.eval"):
        mean_contexts(model.train(), texts())


# ----------------------------------------------------------------------------------------------------------------- fold


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("family", KNOWN)
def test_a_fold_is_the_mean_in_the_place_of_the_heads(family: str, dtype: torch.dtype, tolerance: float) -> None:
    model = tiny_model(family, dtype=dtype)
    means = mean_contexts(model, texts())
    used = torch.stack(means.values)
    if family == "albert":  # one bias serves all of its layers
        used = used.mean(dim=0, keepdim=True).expand_as(used)
    expected = hidden(with_means_in_place(model, used, off(family)))
    plan = full_plan(model).without(off(family))
    found = hidden(apply_plan(model, plan, fill=means))
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * max(1.0, float(expected.abs().max())))
    assert (found - hidden(apply_plan(model, plan))).abs().max() > 0.01  # zero is something else


@pytest.mark.parametrize("family", WITHOUT_BIAS)
def test_a_bias_is_made_where_there_is_none(family: str) -> None:
    model = tiny_model(family)
    means = mean_contexts(model, texts())
    layers = attention_layers(model)
    assert all(projection_of(model, name, FAMILIES[family].out).bias is None for name, _ in layers)
    full = apply_plan(model, full_plan(model), fill=means)
    outs: list[Any] = [projection_of(full, name, FAMILIES[family].out) for name, _ in attention_layers(full)]
    assert all(torch.equal(out.bias, torch.zeros(32, dtype=torch.float64)) for out in outs)


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "t5"])
def test_rounds_of_folding_are_one(family: str) -> None:
    model = tiny_model(family)
    means, everything = mean_contexts(model, texts()), off(family)
    rounds = [everything[:2], everything[:6], everything]
    found = model
    for heads in rounds:
        found = apply_plan(found, full_plan(model).without(heads), fill=means)
    once = apply_plan(model, full_plan(model).without(everything), fill=means)
    assert found.state_dict().keys() == once.state_dict().keys()
    for name, value in found.state_dict().items():  # the same addends in another order
        torch.testing.assert_close(value, once.state_dict()[name], rtol=0, atol=1e-14)


def test_later_rounds_keep_the_bias_of_earlier_ones() -> None:
    model = tiny_model("llama")
    filled = apply_plan(model, full_plan(model).without(off("llama")[:2]), fill=mean_contexts(model, texts()))
    again = apply_plan(filled, full_plan(model).without(off("llama")))
    biases: list[Any] = [
        [projection_of(each, name, "o_proj").bias for name, _ in attention_layers(each)] for each in (filled, again)
    ]
    assert all(torch.equal(first, second) for first, second in zip(*biases, strict=True))
    assert biases[0][0].abs().max() > 0.01


def test_means_that_do_not_fit() -> None:
    model = tiny_model("bert")
    plan, means = full_plan(model).without([(1, 2)]), mean_contexts(model, texts())
    with pytest.raises(PlanError, match="means are of 2 layers of 4 heads of 8 numbers, and the model has 3 layers"):
        apply_plan(model, plan, fill=Means(means.values[:2], 23))
    values = [each.clone() for each in means.values]
    values[1][2, 0] = torch.nan
    with pytest.raises(PlanError, match="There is no mean of L1H2"):
        apply_plan(model, plan, fill=Means(values, 23))
    values[1][2, 0], values[1][1] = 0, torch.nan
    apply_plan(model, plan, fill=Means(values, 23))  # of a head that stays, none is needed


# -------------------------------------------------------------------------------------------------------- masked twins


@pytest.mark.parametrize("family", KNOWN)
def test_a_masked_twin_computes_what_the_pruned_model_does(family: str) -> None:
    model = tiny_model(family)
    plan = full_plan(model).without(off(family))
    fill = None if family in WITHOUT_BIAS else mean_contexts(model, texts())
    twin = masked_twin(model, plan, fill=fill)
    torch.testing.assert_close(hidden(twin), hidden(apply_plan(model, plan, fill=fill)), rtol=0, atol=1e-12)
    assert type(twin) is type(model)
    before = {name: value.shape for name, value in model.state_dict().items()}
    assert {name: value.shape for name, value in twin.state_dict().items()} == before
    assert counts_of(twin) == counts_of(model)


def test_a_masked_twin_says_that_it_is_one() -> None:
    model = tiny_model("t5")
    plan = full_plan(model).without(off("t5"))
    twin = masked_twin(model, plan)
    assert plan_of(twin.config) is None
    assert getattr(twin.config, MASKED_ENTRY) == plan.to_dict() == getattr(network(twin).config, MASKED_ENTRY)
    assert not hasattr(model.config, MASKED_ENTRY)


def test_any_heads_of_a_grouped_model_can_be_masked() -> None:
    model = tiny_model("llama")
    ragged = full_plan(model).without([(0, 1), (2, 0), (2, 1), (2, 2)])
    gates = torch.ones(LAYERS, HEADS)
    gates[0, 1] = gates[2, 0] = gates[2, 1] = gates[2, 2] = 0
    inputs = padded_inputs()
    with torch.no_grad(), capture(model, gates=gates):
        expected = model(**inputs).last_hidden_state[inputs["attention_mask"].bool()]
    torch.testing.assert_close(hidden(masked_twin(model, ragged)), expected, rtol=0, atol=5e-6)  # sdpa and eager


def test_masking_more_of_a_masked_twin() -> None:
    model = tiny_model("bert")
    means, heads = mean_contexts(model, texts()), off("bert")
    first = masked_twin(model, full_plan(model).without(heads[:3]), fill=means)
    second = masked_twin(first, full_plan(model).without(heads), fill=means)
    once = masked_twin(model, full_plan(model).without(heads), fill=means)
    for name, value in second.state_dict().items():
        torch.testing.assert_close(value, once.state_dict()[name], rtol=0, atol=1e-14)
    with pytest.raises(PlanError, match="L0H1 has been taken out"):
        masked_twin(second, full_plan(model))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda model, plan, means: masked_twin(model, HeadPlan.full(2, 4, 2)), PlanError, "plan is for 2 layers"),
        (lambda model, plan, means: masked_twin(model, plan, fill=means), PlanError, "llama has no output bias"),
        (lambda model, plan, means: masked_twin(apply_plan(model, plan), plan), PlanError, "LlamaModel is pruned"),
        (lambda model, plan, means: masked_twin(tiny_model("vit"), plan), UnsupportedModel, "Heads of 'vit'"),
    ],
)
def test_what_cannot_be_masked(make: Callable[..., Any], error: type[Exception], message: str) -> None:
    model = tiny_model("llama")
    with pytest.raises(error, match=message):
        make(model, full_plan(model).without(off("llama")), mean_contexts(model, texts()))
