"""Block by block is the whole model, and a block that is changed on the way changes what follows and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headlens.errors import CaptureError
from headlens.surgery.shapes import FAMILIES, attention_layers, projection_of
from headlens.surgery.walk import Reach, Walk
from headlens.testing import padded_inputs, tiny_model

KNOWN = (
    *(("bert", "right"), ("gpt2", "right"), ("gpt2", "left"), ("llama", "right"), ("mistral", "right")),
    *(("t5", "right"), ("distilbert", "right")),
)

pytestmark = pytest.mark.slow  # many models; CI runs them as its own step
EACH = pytest.mark.parametrize(("family", "side"), KNOWN)
MORE: dict[str, dict[str, Any]] = {"gpt2": {"use_cache": True}, "llama": {"use_cache": True}}


@dataclass(frozen=True)
class Text:
    input_ids: Tensor
    attention_mask: Tensor


def model_of(family: str) -> Any:
    return tiny_model(family, **MORE.get(family, {}))


def texts(side: Any = "right") -> list[Text]:
    """Two batches of different shapes, both with padding."""
    inputs = padded_inputs(side=side)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    near = slice(0, 9) if side == "right" else slice(3, 12)
    return [Text(ids, mask), Text(ids[1:, near], mask[1:, near])]


def stack(model: Any) -> Any:
    return model.get_encoder() if model.config.is_encoder_decoder else model


def blocks(model: Any) -> list[Any]:
    """The list of blocks by the names of each family's own file."""
    places = {
        "bert": lambda: model.encoder.layer,
        "gpt2": lambda: model.h,
        "llama": lambda: model.layers,
        "mistral": lambda: model.layers,
        "t5": lambda: model.encoder.block,
        "distilbert": lambda: model.transformer.layer,
    }
    return list(places[model.config.model_type]())


@torch.no_grad()
def whole(model: PreTrainedModel, batch: Text) -> list[Reach]:
    """What every attention layer has before it and makes of it, in one pass that transformers makes on its own."""
    context: list[Tensor] = []
    output: list[Tensor] = []
    hooks = [
        projection_of(model, name, FAMILIES[model.config.model_type].out).register_forward_hook(
            lambda module, args, given: (context.append(args[0]), output.append(given))[0]
        )
        for name, _ in attention_layers(model)
    ]
    positions = {} if model.config.model_type != "gpt2" else {"position_ids": _counted(batch.attention_mask)}
    said = stack(model)(
        input_ids=batch.input_ids, attention_mask=batch.attention_mask, output_hidden_states=True, **positions
    )
    for hook in hooks:
        hook.remove()
    mask = batch.attention_mask.bool()
    streams = said.hidden_states[:-1]  # the last one stands behind the final norm
    return [Reach(*(part[mask] for part in parts)) for parts in zip(streams, context, output, strict=True)]


def _counted(mask: Tensor) -> Tensor:
    """Positions that count real tokens, on whichever side the padding is."""
    return (mask.cumsum(dim=-1) - 1).clamp(min=0)


def walked(model: PreTrainedModel, batches: list[Text]) -> list[list[Reach]]:
    walk, found = Walk(model, batches), []
    for _ in walk.layers:
        found.append(list(walk.reaches()))
        walk.go_on()
    return found


def assert_same(found: Reach, wanted: Reach, tolerance: float = 1e-10) -> None:
    for part in ("stream", "context", "output"):
        torch.testing.assert_close(getattr(found, part), getattr(wanted, part), rtol=0, atol=tolerance)


def hooks_of(model: PreTrainedModel) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


# ---------------------------------------------------------------------------------------------------- block by block


@EACH
def test_block_by_block_is_the_whole_model(family: str, side: str) -> None:
    model, batches = model_of(family), texts(side)
    found = walked(model, batches)
    assert len(found) == 3
    for number, batch in enumerate(batches):
        for layer, wanted in enumerate(whole(model, batch)):
            assert len(wanted.stream) == int(batch.attention_mask.sum())
            assert_same(found[layer][number], wanted)


@EACH
def test_the_last_block_is_gone_through_too(family: str, side: str) -> None:
    """One layer more on top leaves all below as it is, so that what goes into it is what the last one gives."""
    short, tall = model_of(family), tiny_model(family, layers=4, **MORE.get(family, {}))
    tall.load_state_dict({**tall.state_dict(), **short.state_dict()})
    found = walked(tall, texts(side))[3]
    for number, batch in enumerate(texts(side)):
        assert_same(found[number], whole(tall, batch)[3])


def test_a_window_shorter_than_the_text_is_kept_to() -> None:
    wide, narrow = (walked(tiny_model("mistral", sliding_window=size), texts())[1][0].stream for size in (40, 5))
    assert (wide - narrow).abs().max() > 0.1


def test_streams_of_single_precision_are_told_in_double() -> None:
    found = walked(tiny_model("bert", dtype=torch.float32), texts())
    assert {part.dtype for layer in found for reach in layer for part in vars(reach).values()} == {torch.float64}


# --------------------------------------------------------------------------------------------------- changed on the way


@EACH
@pytest.mark.parametrize("changed", [0, 1])
def test_a_block_that_is_changed_changes_what_follows_and_nothing_before(family: str, side: str, changed: int) -> None:
    model, batches = model_of(family), texts(side)
    before = [whole(model, batch) for batch in batches]
    walk, found = Walk(model, batches), []
    for layer in range(3):
        found.append(list(walk.reaches()))
        if layer == changed:
            with torch.no_grad():
                for name, weight in blocks(model)[layer].named_parameters():
                    if "relative_attention_bias" not in name:  # T5's blocks are given it, as it is at the start
                        weight.mul_(-0.7)
        walk.go_on()
    after = [whole(model, batch) for batch in batches]
    for number in range(len(batches)):
        for layer in range(3):
            assert_same(found[layer][number], (before if layer <= changed else after)[number][layer])
        moved = after[number][changed + 1].stream - before[number][changed + 1].stream
        assert moved.abs().max() > 0.1


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_what_comes_later_may_change_before_it_is_reached(family: str) -> None:
    model, batches = model_of(family), texts()
    walk = Walk(model, batches)
    with torch.no_grad():
        for weight in blocks(model)[0].parameters():
            weight.mul_(0.5)
    walk.go_on()
    for found, batch in zip(walk.reaches(), batches, strict=True):
        assert_same(found, whole(model, batch)[1])


# ------------------------------------------------------------------------------------------------------ nothing is left


@EACH
def test_asked_twice_a_layer_says_the_same(family: str, side: str) -> None:
    """Of GPT-2 and Llama with a cache, to which a second call would add its keys."""
    model = model_of(family)
    walk = Walk(model, texts(side))
    for _ in range(3):
        once, again, thrice = (list(walk.reaches()) for _ in range(3))
        for one, *others in zip(once, again, thrice, strict=True):
            for other in others:
                assert_same(other, one, tolerance=0.0)
        walk.go_on()
    assert walk.at == 3


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_models_own_passes_do_fill_caches(family: str) -> None:
    """Or the test above would ask nothing."""
    assert model_of(family)(**padded_inputs()).past_key_values is not None


@EACH
def test_no_hook_is_left(family: str, side: str) -> None:
    model = model_of(family)
    before = hooks_of(model)
    walk = Walk(model, texts(side))
    assert hooks_of(model) == before
    reaches = walk.reaches()
    next(reaches)
    assert hooks_of(model) == before  # also while the others are still to come
    list(reaches)
    walk.go_on()
    assert hooks_of(model) == before


def test_the_model_is_left_as_it_was() -> None:
    model = model_of("gpt2")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    walked(model, texts())
    assert model.config.use_cache is True
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("family", ["gpt2", "bert", "t5"])
def test_train_mode_is_refused_and_leaves_no_hook(family: str) -> None:
    model = model_of(family).train()
    before = hooks_of(model)
    with pytest.raises(CaptureError, match=r"in train mode, .* call model\.eval\(\)"):
        Walk(model, texts())
    assert hooks_of(model) == before


def test_no_text_reaches_nothing() -> None:
    walk = Walk(model_of("bert"), [])
    assert list(walk.reaches()) == []
    walk.go_on()
    assert walk.at == 1
