"""Attention of the original that fades: the two ends are the two models, and what lies between is drawn by hand."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from converted import FAMILIES, PER_LAYER, with_shared
from torch import Tensor
from transformers import PreTrainedModel

from headlens.conversion.carriers import converted
from headlens.conversion.recipes import MEAN_POOLING, converted_layers
from headlens.conversion.weights import read_layers
from headlens.errors import HealingError
from headlens.healing import Recipe
from headlens.healing.fading import original_beside, share_at
from headlens.surgery import apply_plan, full_plan
from headlens.surgery.present import layers_of
from headlens.testing import padded_inputs, tiny_model


def pair(family: str) -> tuple[PreTrainedModel, PreTrainedModel]:
    """A model and its like with other keys and values in its first two layers; the third keeps its own."""
    teacher = tiny_model(family)
    layers = read_layers(teacher)
    student = converted(teacher, [*with_shared(layers[:2], PER_LAYER[:2]), layers[2]])
    return student, teacher


def hidden(model: PreTrainedModel) -> Tensor:
    found: Tensor = model(**padded_inputs()).last_hidden_state
    return found


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("mistral", "qwen2", "roberta")])
def test_its_ends_are_the_original_and_the_student(family: str) -> None:
    student, teacher = pair(family)
    with torch.no_grad():
        own, original = hidden(student), hidden(teacher)
        real = padded_inputs()["attention_mask"].bool()
        assert (own - original)[real].abs().max() > 0.05
        with original_beside(student, teacher) as fading:
            fading.share = 0.0
            torch.testing.assert_close(hidden(student)[real], original[real], rtol=0, atol=1e-11)
            fading.share = 1.0
            assert torch.equal(hidden(student), own)
        assert torch.equal(hidden(student), own)


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_between_them_outputs_of_attention_are_mixed(family: str) -> None:
    """Of the first layer, whose input no mixing below has changed."""
    student, teacher = pair(family)
    outputs: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        return lambda _module, _args, output: outputs.__setitem__(name, output)

    with torch.no_grad():
        for name, model in (("own", student), ("original", teacher)):
            handle = layers_of(model)[0].out.register_forward_hook(keep(name))
            hidden(model)
            handle.remove()
        with original_beside(student, teacher) as fading:
            fading.share = 0.25
            handle = layers_of(student)[0].out.register_forward_hook(keep("mixed"))
            hidden(student)
            handle.remove()
    expected = 0.25 * outputs["own"] + 0.75 * outputs["original"]
    torch.testing.assert_close(outputs["mixed"], expected, rtol=0, atol=1e-12)


def test_the_students_weights_are_trained_and_the_originals_are_not() -> None:
    student, teacher = pair("bert")
    next(teacher.parameters()).requires_grad_(False)
    wanted = [weight.requires_grad for weight in teacher.parameters()]
    with original_beside(student, teacher) as fading:
        fading.share = 0.5
        hidden(student).square().sum().backward()
    assert all(weight.grad is None for weight in teacher.parameters())
    assert [weight.requires_grad for weight in teacher.parameters()] == wanted
    assert all(layer.out.weight.grad.abs().max() > 0 for layer in layers_of(student))
    for model in (student, teacher):
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_gradients_reach_what_lies_below_through_both() -> None:
    """The embeddings of a student whose own attention counts for nothing get the gradient of the original."""
    student, teacher = pair("gpt2")
    expected = copy.deepcopy(teacher)
    hidden(expected).square().sum().backward()
    with original_beside(student, teacher) as fading:
        fading.share = 0.0
        hidden(student).square().sum().backward()
    torch.testing.assert_close(student.wte.weight.grad, expected.wte.weight.grad, rtol=1e-9, atol=1e-9)


def test_only_layers_that_share_anew_are_mixed() -> None:
    student, teacher = pair("llama")
    with torch.no_grad():
        layers_of(teacher)[2].out.weight.mul_(3)  # of a layer that was not converted
        own = hidden(student)
        with original_beside(student, teacher) as fading:
            fading.share = 0.0
            started = hidden(student)
    with torch.no_grad():
        layers_of(teacher)[2].out.weight.div_(3)
        real = padded_inputs()["attention_mask"].bool()
        torch.testing.assert_close(started[real], hidden(teacher)[real], rtol=0, atol=1e-11)
        assert not torch.equal(started, own)


def test_a_model_that_shares_nothing_anew_is_refused() -> None:
    teacher = tiny_model("bert")
    with pytest.raises(HealingError, match="nothing can fade"), original_beside(copy.deepcopy(teacher), teacher):
        pass


@pytest.mark.parametrize(
    ("step", "progressive", "share"),
    [(1, 0.5, 0.02), (25, 0.5, 0.5), (50, 0.5, 1.0), (51, 0.5, 1.0), (1, 0.0, 1.0), (100, 1.0, 1.0), (30, 1.0, 0.3)],
)
def test_the_share_rises_in_a_line(step: int, progressive: float, share: float) -> None:
    assert share_at(step, 100, progressive) == pytest.approx(share)


@pytest.mark.parametrize("progressive", [-0.1, 1.1, float("nan")])
def test_a_share_of_the_steps(progressive: float) -> None:
    with pytest.raises(HealingError, match="from 0 to 1"):
        Recipe(10, 2, 1e-3, {"hidden": 1.0}, 16, 0, progressive=progressive)


def test_heads_that_are_gone_are_no_reason_to_fade() -> None:
    teacher = tiny_model("bert")
    student = apply_plan(teacher, full_plan(teacher).without([(0, 0), (1, 2)]))
    with pytest.raises(HealingError, match="nothing can fade"), original_beside(student, teacher):
        pass


def test_another_class_cannot_fade() -> None:
    teacher = tiny_model("gpt2")
    layers = read_layers(teacher)
    student = converted(teacher, converted_layers(layers, [1] * 3, MEAN_POOLING, None))
    with pytest.raises(HealingError, match="from gpt2 into gpt_bigcode"), original_beside(student, teacher):
        pass
