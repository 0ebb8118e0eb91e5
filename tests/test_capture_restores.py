"""A capture that ends leaves nothing behind, however it ends and whatever else runs beside it."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from watching import ROW_BYTES, capture_file, drawn, generating, inputs_of, is_untouched, model_of, replaced, watched

from headlens.attention import MultiHeadAttention
from headlens.capture import Way, capture
from headlens.errors import CaptureError, UnsupportedModel
from headlens.records import LayerAttention
from headlens.testing import padded_inputs, tiny_model


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("deberta_v2", "DebertaV2Model"),
        ("gpt_neo", "GPTNeoModel"),
        ("falcon", "FalconModel"),
        ("bloom", "BloomModel"),
    ],
)
def test_families_off_the_interface_are_refused_by_name_and_reason(family: str, name: str) -> None:
    with (
        pytest.raises(
            UnsupportedModel, match=rf"{name}.*attention in code of its own instead of transformers' attention"
        ),
        capture(tiny_model(family, layers=1)),
    ):
        pass


class StumbleError(Exception):
    pass


def stumble(_: LayerAttention) -> None:
    raise StumbleError


def leave_normally(model: nn.Module, inputs: Mapping[str, Tensor]) -> None:
    watched(model, inputs)


def fail_in_observe(model: nn.Module, inputs: Mapping[str, Tensor]) -> None:
    with pytest.raises(StumbleError), capture(model, stumble):
        model(**inputs)


def fail_in_the_model(model: nn.Module, inputs: Mapping[str, Tensor]) -> None:
    with pytest.raises(IndexError), capture(model):
        model(**(dict(inputs) | {"input_ids": torch.full((1, 3), 100000), "attention_mask": torch.ones(1, 3)}))


def fail_at_entry(model: nn.Module, inputs: Mapping[str, Tensor]) -> None:
    with pytest.raises(CaptureError), capture(model, gates={"cross": torch.ones(1, 1)}):
        pass


@pytest.mark.parametrize("ending", [leave_normally, fail_in_observe, fail_in_the_model, fail_at_entry])
@pytest.mark.parametrize("family", ["bert", "albert", "t5", "replaced"])
def test_everything_is_put_back(family: str, ending: Callable[[nn.Module, Mapping[str, Tensor]], None]) -> None:
    model = replaced("gpt2") if family == "replaced" else copy.deepcopy(model_of(family))
    inputs, weights = inputs_of(family), model.state_dict().keys()
    with torch.no_grad():
        before = model(**inputs)[0]
        ending(model, inputs)
        assert is_untouched(model)
        assert torch.equal(model(**inputs)[0], before)
    assert model.state_dict().keys() == weights
    assert capture_file._SWITCHED == {}


@pytest.mark.parametrize("family", ["albert", "bert"])
def test_a_run_that_broke_off_does_not_shift_the_layers_of_the_next_one(family: str) -> None:
    layers: list[int] = []

    def stumble_once(attention: LayerAttention) -> None:
        layers.append(attention.layer)
        if layers == [0, 1]:
            raise StumbleError

    with torch.no_grad(), capture(model_of(family), stumble_once):
        with pytest.raises(StumbleError):
            model_of(family)(**inputs_of(family))
        model_of(family)(**inputs_of(family))
    assert layers == [0, 1, 0, 1, 2]


@pytest.mark.parametrize("own", ["eager", "sdpa", "flex_attention", "somebody_elses"])
def test_the_name_of_the_attention_implementation_is_put_back(own: str) -> None:
    AttentionInterface.register("somebody_elses", lambda *a, **k: (_ for _ in ()).throw(StumbleError()))
    model = copy.deepcopy(model_of("t5"))
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation_internal = own
    try:
        assert len(watched(model, inputs_of("t5"))[0]) == 9
        assert {m.config._attn_implementation for m in model.modules() if hasattr(m, "config")} == {own}
    finally:
        AttentionInterface._global_mapping.pop("somebody_elses")


@contextmanager
def two_models_of_one_config() -> Iterator[tuple[PreTrainedModel, PreTrainedModel]]:
    config = copy.deepcopy(model_of("gpt2").config)
    first, second = (drawn(hf.GPT2Model(config), std) for std in (0.3, 0.25))
    assert first.config is second.config
    yield first, second
    assert is_untouched(first)
    assert is_untouched(second)
    assert config._attn_implementation == "sdpa"
    assert capture_file._SWITCHED == {}


def test_another_model_of_the_same_config_computes_what_it_did_and_is_not_reported() -> None:
    inputs = inputs_of("gpt2")
    with two_models_of_one_config() as (model, other), torch.no_grad():
        before = other(**inputs)[0]
        seen: list[LayerAttention] = []
        with capture(model, seen.append, gates=torch.zeros(3, 4)):
            during = other(**inputs)[0]
            assert seen == []
            model(**inputs)
        real = inputs["attention_mask"].bool()
        assert len(seen) == 3
        torch.testing.assert_close(during[real], before[real], rtol=0, atol=1e-10)
        assert torch.equal(other(**inputs)[0], before)


@pytest.mark.parametrize("first_out", [0, 1])
def test_captures_of_two_models_of_one_config_end_in_any_order(first_out: int) -> None:
    inputs = inputs_of("gpt2")
    seen: tuple[list[LayerAttention], list[LayerAttention]] = ([], [])
    with two_models_of_one_config() as models, torch.no_grad():
        alone = [watched(model, inputs)[0] for model in models]
        captures = [capture(model, found.append) for model, found in zip(models, seen, strict=True)]
        for running in captures:
            running.__enter__()
        for model in models:
            model(**inputs)
        captures[first_out].__exit__(None, None, None)
        for model in models:
            model(**inputs)
        captures[1 - first_out].__exit__(None, None, None)
        for place in (0, 1):
            times = 1 if place == first_out else 2
            assert [a.layer for a in seen[place]] == [0, 1, 2] * times
            assert all(torch.equal(a.probs, b.probs) for a, b in zip(seen[place], alone[place] * times, strict=True))


def test_two_threads_capture_two_models_at_once() -> None:
    inputs = inputs_of("gpt2")
    seen: tuple[list[LayerAttention], list[LayerAttention]] = ([], [])
    meet = threading.Barrier(2, timeout=20)
    with two_models_of_one_config() as models:
        alone = [watched(model, inputs)[0] for model in models]

        def run(place: int) -> None:
            def observe(attention: LayerAttention) -> None:
                meet.wait()  # each layer of the one waits for the same layer of the other
                seen[place].append(attention)

            with torch.no_grad(), capture(models[place], observe):
                models[place](**inputs)

        threads = [threading.Thread(target=run, args=(place,)) for place in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        for place in (0, 1):
            assert [a.layer for a in seen[place]] == [0, 1, 2]
            assert all(torch.equal(a.probs, b.probs) for a, b in zip(seen[place], alone[place], strict=True))


def test_the_users_hooks_stay_and_fire() -> None:
    model = copy.deepcopy(model_of("bert"))
    fired: list[str] = []
    layer = model.encoder.layer[0].attention.self
    model.register_forward_pre_hook(lambda m, args, kwargs: fired.append("model"), with_kwargs=True)
    layer.register_forward_pre_hook(lambda m, args: fired.append("before"))
    layer.register_forward_hook(lambda m, args, out: fired.append("after"))
    watched(model, inputs_of("bert"))
    assert fired == ["model", "before", "after"]
    model(**inputs_of("bert"))
    assert fired == ["model", "before", "after"] * 2


def test_a_capture_inside_a_capture_of_the_same_model_is_refused() -> None:
    model = generating("gpt2")
    seen: list[LayerAttention] = []
    with torch.no_grad(), capture(model, seen.append):
        for part in (model, model.transformer, model.transformer.h[1]):
            with pytest.raises(CaptureError, match="captured already"), capture(part):
                pass
        model(**inputs_of("gpt2"))
        assert [a.layer for a in seen] == [0, 1, 2]
    assert is_untouched(model)


@pytest.mark.parametrize("family", ["gpt2", "replaced"])
def test_a_copy_made_during_a_capture_is_not_captured(family: str) -> None:
    model = replaced("gpt2") if family == "replaced" else copy.deepcopy(model_of("gpt2"))
    inputs = inputs_of("gpt2")
    seen: list[LayerAttention] = []
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad(), capture(model, seen.append, gates=torch.zeros(3, 4)):
        assert model.state_dict().keys() == weights.keys()
        twin = copy.deepcopy(model)
        output = twin(**inputs)[0]
        assert seen == []
    with torch.no_grad():
        expected = model(**inputs)[0]
    real = inputs["attention_mask"].bool()
    for found in (output, twin(**inputs)[0]):
        torch.testing.assert_close(found[real], expected[real], rtol=0, atol=1e-10)
    assert seen == []
    assert all(torch.equal(value, weights[name]) for name, value in twin.state_dict().items())
    assert len(watched(twin, inputs)[0]) == 3


@pytest.mark.parametrize("way", ["exact", "fast"])
def test_a_capture_keeps_nothing(way: Way) -> None:
    alive: list[weakref.ref[Tensor]] = []

    def observe(attention: LayerAttention) -> None:
        assert all(ref() is None for ref in alive[:-1])  # the slice before may go only when its name is taken
        alive.append(weakref.ref(attention.probs))

    with torch.no_grad(), capture(model_of("bert"), observe, way=way, slice_bytes=5 * ROW_BYTES):
        model_of("bert")(**inputs_of("bert"))
    assert len(alive) == (3 if way == "exact" else 9)
    assert all(ref() is None for ref in alive)


@pytest.mark.parametrize("kind", ["model", "part", "own layer"])
def test_train_mode_is_refused(kind: str) -> None:
    model: Any = (
        MultiHeadAttention(8, 2, dropout=0.5).eval() if kind == "own layer" else copy.deepcopy(model_of("bert"))
    )
    changed = model.encoder.layer[1].attention.self if kind == "part" else model
    x = torch.randn(1, 3, 8)
    run = (lambda: model(x, x, x)) if kind == "own layer" else (lambda: model(**inputs_of("bert")))
    changed.train()
    with pytest.raises(CaptureError, match=r"train mode.*call model.eval\(\)"), capture(model):
        pass
    model.eval()
    with capture(model):
        changed.train()
        with pytest.raises(CaptureError, match="went into train mode"):
            run()
    assert is_untouched(model.eval())


def test_another_thread_that_runs_the_captured_model_is_refused() -> None:
    model, seen, errors = tiny_model("bert"), [], []

    def intrude() -> None:
        try:
            model(**padded_inputs())
        except CaptureError as error:
            errors.append(str(error))

    with capture(model, seen.append):
        thread = threading.Thread(target=intrude)
        thread.start()
        thread.join()
        model(**padded_inputs())
    assert len(seen) == 3  # of this thread's pass alone
    assert "Another thread is capturing this model" in errors[0]


@pytest.mark.slow
def test_wrong_words_are_refused_where_no_types_are_checked() -> None:
    """In a process of its own: here every call is checked against its annotations first."""
    code = """
from headlens import capture
from headlens.testing import tiny_model
for wrong in ({"way": "nope"}, {"gates": [[1.0] * 4] * 3}):
    try:
        with capture(tiny_model("bert"), **wrong):
            print("entered")
    except Exception as error:
        print(type(error).__name__, error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[0] == "CaptureError The way of a capture is one of exact, fast, both, got 'nope'."
    assert said[1].startswith("CaptureError Gates are a tensor of real numbers")
