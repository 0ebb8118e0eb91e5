"""Least squares for the heads that are left, against NumPy's, and what it must do to the stream."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headlens.errors import CaptureError, CorpusError, PlanError, UnsupportedModel
from headlens.surgery import apply_plan, full_plan, mean_contexts, refit
from headlens.surgery.shapes import FAMILIES, attention_layers, projection_of
from headlens.testing import padded_inputs, tiny_model

pytestmark = pytest.mark.slow  # many models; CI runs them as its own step

KNOWN = ("bert", "distilbert", "gpt2", "gpt_neox", "opt", "llama", "qwen3", "t5")
OFF = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3), (2, 2), (2, 3)]  # whole groups of grouped families
RIDGE = 0.03


@dataclass(frozen=True)
class Text:
    input_ids: Tensor
    attention_mask: Tensor


def texts(rows: int = 24, side: str = "right") -> list[Text]:
    """Some 300 tokens in two batches: more of them than inputs of W_O."""
    generator = torch.Generator().manual_seed(5)
    mask = torch.ones(rows, 15, dtype=torch.long)
    mask[::2, 11:] = 0
    ids = torch.randint(5, 99, (rows, 15), generator=generator) * mask
    if side == "left":
        ids, mask = ids.flip(1), mask.flip(1)
    return [Text(ids[:9], mask[:9]), Text(ids[9:], mask[9:])]


def pruned_pair(family: str, *, filled: bool = True) -> tuple[PreTrainedModel, PreTrainedModel]:
    original = tiny_model(family)
    fill = mean_contexts(original, texts()) if filled else None
    return apply_plan(original, full_plan(original).without(OFF), fill=fill), original


def network(model: PreTrainedModel) -> PreTrainedModel:
    return model.get_encoder() if model.config.is_encoder_decoder else model


@dataclass
class Seen:
    """Of one layer, for all real tokens of a text: the stream, what goes into W_O, and what comes out of it."""

    stream: np.ndarray
    context: np.ndarray
    output: np.ndarray


def seen(model: PreTrainedModel, layer: int, batches: list[Text]) -> Seen:
    runs = network(model)
    name, _ = attention_layers(model)[layer]
    found: dict[str, list[Tensor]] = {"stream": [], "context": [], "output": []}
    block: Any = model.get_submodule(name.rpartition(".")[0])
    out = projection_of(model, name, FAMILIES[model.config.model_type].out)
    hooks = [
        block.register_forward_pre_hook(
            lambda module, args, kwargs: found["stream"].append(args[0] if args else kwargs["hidden_states"]),
            with_kwargs=True,
        ),
        out.register_forward_hook(
            lambda module, args, output: (found["context"].append(args[0]), found["output"].append(output))[0]
        ),
    ]
    with torch.no_grad():
        for batch in batches:
            runs(input_ids=batch.input_ids, attention_mask=batch.attention_mask)
    for hook in hooks:
        hook.remove()
    masks = [batch.attention_mask.bool() for batch in batches]
    return Seen(
        *(torch.cat([each[mask] for each, mask in zip(found[name], masks, strict=True)]).numpy() for name in found)
    )


def weights(model: PreTrainedModel, layer: int) -> tuple[np.ndarray, np.ndarray | None]:
    out: Any = projection_of(model, attention_layers(model)[layer][0], FAMILIES[model.config.model_type].out)
    weight = out.weight if type(out).__name__ == "Conv1D" else out.weight.T
    return weight.detach().numpy(), None if out.bias is None else out.bias.detach().numpy()


def output_name(model: PreTrainedModel, layer: int) -> str:
    out = projection_of(model, attention_layers(model)[layer][0], FAMILIES[model.config.model_type].out)
    return next(name for name, module in model.named_modules() if module is out)


def parts_of(model: PreTrainedModel, layer: int) -> list[str]:
    """What can be fitted: no weight of a layer without heads, no bias where there is none."""
    weight, bias = weights(model, layer)
    return [name for name, part in (("weight", weight), ("bias", bias)) if part is not None and part.size]


def stream_errors(model: PreTrainedModel, original: PreTrainedModel, batches: list[Text]) -> list[float]:
    """By layer, the mean squared distance of the streams after attention."""
    errors = []
    for layer in range(3):
        new, old = seen(model, layer, batches), seen(original, layer, batches)
        errors.append(float(np.square(new.stream + new.output - old.stream - old.output).mean()))
    return errors


def ridge_regression(new: Seen, old: Seen, present: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """W_O with the stream of `new` as near to that of `old` as it can be, held to the present one."""
    inputs, targets = new.context, old.stream + old.output - new.stream
    if bias is not None:  # a free intercept is a regression of what is centred
        inputs, targets = inputs - inputs.mean(axis=0), targets - targets.mean(axis=0)
    if not inputs.size:
        return present  # a layer without heads
    # rows that say "stay as you are" make ridge regression an ordinary least squares
    hold = np.sqrt(RIDGE * np.square(inputs).sum(axis=0).mean()) * np.eye(inputs.shape[1])
    return np.linalg.lstsq(np.vstack([inputs, hold]), np.vstack([targets, hold @ present]), rcond=None)[0]


@pytest.mark.parametrize("filled", [True, False])
@pytest.mark.parametrize("family", KNOWN)
def test_every_layer_is_the_ridge_regression_of_numpy(family: str, filled: bool) -> None:
    pruned, original = pruned_pair(family, filled=filled)
    fitted = refit(pruned, original, texts(), ridge=RIDGE)
    for layer in (0, 2):
        new, old = seen(fitted, layer, texts()), seen(original, layer, texts())
        present, bias = weights(pruned, layer)
        expected = ridge_regression(new, old, present, bias)
        weight, found_bias = weights(fitted, layer)
        np.testing.assert_allclose(weight, expected, rtol=0, atol=1e-9)
        if bias is not None:
            missing = (old.stream + old.output - new.stream).mean(axis=0) - new.context.mean(axis=0) @ expected
            np.testing.assert_allclose(found_bias, missing, atol=1e-9)


@pytest.mark.parametrize("family", KNOWN)
def test_the_stream_comes_nearer_in_every_layer(family: str) -> None:
    pruned, original = pruned_pair(family)
    before = stream_errors(pruned, original, texts())
    after = stream_errors(refit(pruned, original, texts()), original, texts())
    assert all(new < old for new, old in zip(after, before, strict=True))


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5"])
def test_a_layer_without_heads_gets_the_mean_of_what_is_missing(family: str) -> None:
    pruned, original = pruned_pair(family)
    fitted = refit(pruned, original, texts())
    new, old = seen(fitted, 1, texts()), seen(original, 1, texts())
    _, bias = weights(fitted, 1)
    np.testing.assert_allclose(bias, (old.stream + old.output - new.stream).mean(axis=0), rtol=0, atol=1e-10)


@pytest.mark.parametrize("layers", [[1], [2, 0], {0}, [0, 1, 2]])
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "t5"])
def test_only_the_layers_that_are_named_are_fitted(family: str, layers: Collection[int]) -> None:
    """Those to what stands below them as it is: fitted, or left as it was."""
    pruned, original = pruned_pair(family)
    fitted = refit(pruned, original, texts(), layers=layers, ridge=RIDGE)
    before, after = (dict(model.named_parameters()) for model in (pruned, fitted))
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert changed == {f"{output_name(pruned, layer)}.{part}" for layer in layers for part in parts_of(pruned, layer)}
    for layer in layers:
        new, old = seen(fitted, layer, texts()), seen(original, layer, texts())
        weight, bias = weights(fitted, layer)
        expected = ridge_regression(new, old, *weights(pruned, layer))
        np.testing.assert_allclose(weight, expected, rtol=0, atol=1e-9)
        if bias is not None:
            missing = (old.stream + old.output - new.stream - new.context @ expected).mean(axis=0)
            np.testing.assert_allclose(bias, missing, rtol=0, atol=1e-9)


def test_no_layer_named_is_a_copy() -> None:
    pruned, original = pruned_pair("bert")
    fitted = refit(pruned, original, texts(), layers=[])
    assert fitted is not pruned
    assert all(torch.equal(value, pruned.state_dict()[name]) for name, value in fitted.state_dict().items())


@pytest.mark.parametrize(("layers", "unknown"), [([0, 3], 3), ([-1], -1), ([1, 99], 99)])
def test_layers_that_the_model_does_not_have(layers: list[int], unknown: int) -> None:
    pruned, original = pruned_pair("bert", filled=False)
    with pytest.raises(PlanError, match=f"BertModel has layers 0 to 2, no layer {unknown} to refit"):
        refit(pruned, original, texts(), layers=layers)


def test_it_says_which_layer_is_fitted() -> None:
    pruned, original = pruned_pair("bert", filled=False)
    said: list[str] = []
    refit(pruned, original, texts(), layers=[2, 1], say=said.append)
    assert said == ["fitting layer 1", "fitting layer 2"]


def test_nothing_removed_is_nothing_to_repair() -> None:
    original = tiny_model("bert")
    fitted = refit(original, original, texts())
    for name, value in fitted.state_dict().items():
        torch.testing.assert_close(value, original.state_dict()[name], rtol=0, atol=1e-10)


def test_heads_that_can_be_made_up_for_are() -> None:
    """Two heads of one layer are the same; without one of them, W_O of the other can do the work of both."""
    original = tiny_model("bert", layers=1)
    attention = original.encoder.layer[0].attention
    with torch.no_grad():
        for part in (attention.self.query, attention.self.key, attention.self.value):
            part.weight[8:16], part.bias[8:16] = part.weight[:8], part.bias[:8]
    pruned = apply_plan(original, full_plan(original).without([(0, 1)]))
    fitted = refit(pruned, original, texts(), ridge=1e-9)
    both = attention.output.dense.weight[:, :8] + attention.output.dense.weight[:, 8:16]
    torch.testing.assert_close(fitted.encoder.layer[0].attention.output.dense.weight[:, :8], both, rtol=0, atol=1e-5)


@pytest.mark.parametrize("ridge", [0.01, 100.0])
def test_the_ridge_holds_weights_where_they_are(ridge: float) -> None:
    pruned, original = pruned_pair("gpt2")
    moved = [
        np.abs(weights(refit(pruned, original, texts(), ridge=strength), 2)[0] - weights(pruned, 2)[0]).max()
        for strength in (ridge, 10 * ridge)
    ]
    assert moved[1] < moved[0]


def test_fewer_tokens_than_inputs_are_no_trouble() -> None:
    pruned, original = pruned_pair("bert")
    few = [Text(padded_inputs()["input_ids"][2:, :4], padded_inputs()["attention_mask"][2:, :4])]  # 4 tokens
    fitted = refit(pruned, original, few)
    assert all(value.isfinite().all() for value in fitted.state_dict().values())
    assert sum(stream_errors(fitted, original, few)) < sum(stream_errors(pruned, original, few))


@pytest.mark.parametrize("family", ["gpt2", "llama", "opt"])
def test_padding_on_either_side_is_the_same(family: str) -> None:
    pruned, original = pruned_pair(family)
    (first, second), rolled = texts(), []
    for batch in (first, second):
        shifts = (1 - batch.attention_mask).sum(dim=1)
        pairs = [
            [torch.roll(row, int(shift)) for row, shift in zip(each, shifts, strict=True)]
            for each in (batch.input_ids, batch.attention_mask)
        ]
        rolled.append(Text(*map(torch.stack, pairs)))
    right, left = (refit(pruned, original, batches) for batches in ([first, second], rolled))
    for name, value in right.state_dict().items():
        torch.testing.assert_close(value, left.state_dict()[name], rtol=0, atol=1e-9)


def test_both_models_are_left_as_they_were() -> None:
    pruned, original = pruned_pair("t5")
    before = [{name: value.clone() for name, value in each.state_dict().items()} for each in (pruned, original)]
    refit(pruned, original, texts())
    for state, model in zip(before, (pruned, original), strict=True):
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
        assert not any(module._forward_hooks for module in model.modules())
    assert not any(module._forward_pre_hooks for module in original.modules())


def test_what_cannot_be_refitted() -> None:
    pruned, original = pruned_pair("bert")
    for ridge in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(PlanError, match="must be a positive number"):
            refit(pruned, original, texts(), ridge=ridge)
    with pytest.raises(PlanError, match="needs the model that was pruned"):
        refit(pruned, tiny_model("bert", layers=4), texts())
    with pytest.raises(CorpusError, match="not one token"):
        refit(pruned, original, [])
    albert = tiny_model("albert")
    with pytest.raises(UnsupportedModel, match="AlbertModel share their weights"):
        refit(albert, albert, texts())
    with pytest.raises(CaptureError, match="train mode"):
        refit(pruned, original.train(), texts())
