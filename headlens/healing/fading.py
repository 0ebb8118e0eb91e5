"""Own heads that fade: while a converted model is trained, the original's attention stands beside its own.

What a layer gives is `(1 - share) * original + share * own`, both of the stream as the student has it. At a share of 0
it is the function of the original, at 1 that of the student: the way from own keys and values to shared ones is gone
step by step, where it is a leap otherwise. (Of keys and values themselves: DHA, Chen et al. 2024; of whole modules, by
lot: BERT-of-Theseus, Xu et al. 2020. Outputs can be mixed whatever became of the basis of a head.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.arch import family_of
from headlens.errors import HealingError
from headlens.surgery.passes import without_caches
from headlens.surgery.present import Layer, layers_of, present_plan


@dataclass(eq=False)
class Fading:
    """How much of the student's own attention counts, from 0 to 1."""

    share: float = 1.0


@contextmanager
def original_beside(student: PreTrainedModel, teacher: PreTrainedModel) -> Iterator[Fading]:
    """The teacher's attention in every layer whose heads share keys and values in another way than the teacher's.

    HealingError where there is no such layer. The teacher's weights want no gradients meanwhile.
    """
    if family_of(student) != family_of(teacher):
        raise HealingError(
            f"Attention cannot fade from {family_of(teacher)} into {family_of(student)}, which is another class; leave "
            f"progressive out."
        )
    changed = present_plan(student).layers_that_share_otherwise(present_plan(teacher))
    if not changed:
        raise HealingError(
            "No layer of this model shares keys and values anew, so nothing can fade; leave progressive out."
        )
    own, originals, fading = layers_of(student), layers_of(teacher), Fading()
    with ExitStack() as stack:
        stack.enter_context(_frozen(teacher))
        for number in changed:
            _mix(own[number], originals[number], fading, stack)
        yield fading


def _mix(own: Layer, original: Layer, fading: Fading, stack: ExitStack) -> None:
    called: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        called[:] = [without_caches(args, kwargs)]

    def after(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        if fading.share >= 1 or not called:
            return output
        return fading.share * output + (1 - fading.share) * _attention_of(original, *called.pop())

    stack.callback(own.attention.register_forward_pre_hook(before, with_kwargs=True).remove)
    stack.callback(own.out.register_forward_hook(after).remove)


def _attention_of(layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """What comes out of W_O, which some families have inside the attention module and some behind it."""
    found: list[Tensor] = []
    handle = layer.out.register_forward_hook(lambda _module, _args, output: found.append(output))
    try:
        context = layer.attention(*args, **kwargs)[0]
    finally:
        handle.remove()
    if found:
        return found[0]
    given: Tensor = layer.out(context)
    return given


@contextmanager
def _frozen(model: PreTrainedModel) -> Iterator[None]:
    wanted = [(weight, weight.requires_grad) for weight in model.parameters()]
    model.requires_grad_(False)
    try:
        yield
    finally:
        for weight, wants in wanted:
            weight.requires_grad_(wants)


def share_at(step: int, steps: int, progressive: float) -> float:
    """The student's share in step 1, 2, ... of a training: rising in a line over the progressive part of its steps."""
    fade = progressive * steps
    return min(1.0, step / fade) if fade > 0 else 1.0
