"""Counts beside closed forms, the cache beside what generate() keeps, and timing by a clock that is told the time."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedModel

from headlens.errors import OutputError, UnsupportedModel
from headlens.measure import (
    DiskBytes,
    Speed,
    Workload,
    bytes_on_disk,
    cache_bytes,
    measure_speed,
    parameters,
    sizes_before_and_after,
    sizes_of,
    workloads_of,
)
from headlens.surgery import apply_plan, full_plan
from headlens.testing import VOCAB, padded_inputs, tiny_model

GONE = [(0, head) for head in range(4)] + [(1, 2), (1, 3)]  # a layer of none, and layers of 2 and 4


def pruned(family: str, gone: list[tuple[int, int]] = GONE, **config: Any) -> PreTrainedModel:
    model = tiny_model(family, **config)
    return apply_plan(model, full_plan(model).without(gone))


# ----------------------------------------------------------------------------------------------------------- parameters


def gpt2_heads(heads: int) -> int:
    """Of one layer of hidden size 32: q, k and v with biases, W_O; the bias of W_O belongs to no head."""
    return heads * (3 * (32 * 8 + 8) + 8 * 32)


def test_parameters_of_a_decoder() -> None:
    found, less = parameters(tiny_model("gpt2")), parameters(pruned("gpt2"))
    assert found.attention == 3 * (gpt2_heads(4) + 32)
    assert less.attention == gpt2_heads(0 + 2 + 4) + 3 * 32
    assert found.total - less.total == gpt2_heads(4 + 2) == less_of(found, less)
    assert found.total - found.without_embeddings == (VOCAB + 80) * 32


def less_of(found: Any, less: Any) -> int:
    assert found.attention - less.attention == found.without_embeddings - less.without_embeddings
    return found.attention - less.attention


def test_parameters_of_an_encoder_count_its_output_projection() -> None:
    found = parameters(tiny_model("bert"))
    assert found.attention == 3 * 4 * (32 * 32 + 32)
    assert found.total - found.without_embeddings == (VOCAB + 80 + 2) * 32


def test_grouped_heads_share_their_keys_and_values() -> None:
    found, less = parameters(tiny_model("llama")), parameters(pruned("llama"))
    assert found.attention == 3 * (2 * 32 * 32 + 2 * 32 * 16)  # q and o of 4 heads, k and v of 2
    assert less.attention == (0 + 2 + 4) * 2 * 32 * 8 + (0 + 1 + 2) * 2 * 32 * 8


def test_tied_weights_count_once_and_go_with_the_embeddings() -> None:
    base = tiny_model("gpt2")
    tied = transformers.GPT2LMHeadModel(base.config)
    assert parameters(tied) == parameters(base)
    base.config.tie_word_embeddings = False
    free = parameters(transformers.GPT2LMHeadModel(base.config))
    assert free.total == parameters(base).total + VOCAB * 32
    assert free.without_embeddings == parameters(base).without_embeddings + VOCAB * 32


def test_a_shared_layer_counts_once() -> None:
    assert parameters(tiny_model("albert")).attention == 4 * (32 * 32 + 32) + 2 * 32  # with its own norm


# ----------------------------------------------------------------------------------------------------------------- disk


def test_bytes_on_disk_are_those_of_the_files(tmp_path: Path) -> None:
    for name, size in {"model.safetensors": 70, "config.json": 5, "sub/more.safetensors": 8, "vocab.txt": 1}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)
    assert bytes_on_disk(tmp_path) == DiskBytes(weights=78, total=84)


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="none is no folder"):
        bytes_on_disk(tmp_path / "none")


# ---------------------------------------------------------------------------------------------------------------- cache

PER_HEAD = 2 * 8 * 8  # keys and values, 8 numbers each, 8 bytes a number


@pytest.mark.parametrize(("family", "kv_heads"), [("gpt2", 4), ("llama", 2), ("opt", 4), ("gpt_neox", 4)])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_cache_holds_keys_and_values_of_every_layer(family: str, kv_heads: int, batch: int) -> None:
    found = cache_bytes(tiny_model(family), tokens=20, batch=batch)
    assert found is not None
    assert found.total == 3 * kv_heads * PER_HEAD * 20 * batch
    assert found.per_token == 3 * kv_heads * PER_HEAD


def test_a_sliding_window_forgets() -> None:
    found = [cache_bytes(tiny_model("mistral"), tokens=tokens) for tokens in (3, 20)]
    totals = [one.total for one in found if one is not None]
    assert totals == [3 * 2 * PER_HEAD * 3, 3 * 2 * PER_HEAD * 4]  # the window of 5 counts the token that looks


@pytest.mark.parametrize(("family", "kv_heads"), [("gpt2", 0 + 2 + 4), ("llama", 0 + 1 + 2)])
def test_the_cache_of_a_pruned_model_is_smaller(family: str, kv_heads: int) -> None:
    found = cache_bytes(pruned(family), tokens=20)
    assert found is not None
    of_the_empty_layer = found.total - kv_heads * PER_HEAD * 20
    assert 0 <= of_the_empty_layer <= 2 * 8 * 20  # one number a token at most, so that its length is known


def test_the_cache_is_that_of_generation() -> None:
    model = tiny_model("llama")
    whole = transformers.LlamaForCausalLM(model.config).double().eval()
    generated = whole.generate(
        input_ids=padded_inputs()["input_ids"][:1], max_new_tokens=6, min_new_tokens=6, return_dict_in_generate=True
    )
    cache = getattr(generated, "cache", None) or generated.past_key_values
    kept = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    found = cache_bytes(whole, tokens=12 + 6 - 1)  # the last one was never read
    assert found is not None
    assert found.total == kept


def test_both_caches_of_two_stacks_count() -> None:
    found = cache_bytes(tiny_model("t5"), tokens=20)
    assert found is not None
    assert found.total == 2 * 3 * 4 * (2 * 6 * 8) * 20


def test_an_encoder_has_no_cache() -> None:
    assert cache_bytes(tiny_model("bert"), tokens=20) is None


@pytest.mark.parametrize("tokens", [0, 81])
def test_lengths_that_a_model_cannot_read_are_refused(tokens: int) -> None:
    with pytest.raises(UnsupportedModel, match=f"GPT2Model takes 1 to 80 tokens .* got {tokens} tokens of 1 texts"):
        cache_bytes(tiny_model("gpt2"), tokens=tokens)


# ----------------------------------------------------------------------------------------------------------------- time


# ----------------------------------------------------------------------------------------------------- before and after


def test_sizes_before_and_after() -> None:
    gone = [(0, 0), (1, 1), (1, 2)]  # every layer keeps a head, so that its cache holds nothing else
    original, kept = tiny_model("gpt2"), pruned("gpt2", gone)
    found = sizes_before_and_after(original, kept)
    assert list(found) == ["parameters", "parameters of attention", "bytes of the cache after 32 tokens"]
    assert found["parameters of attention"] == {
        "before": 3 * (gpt2_heads(4) + 32),
        "after": gpt2_heads(3 + 2 + 4) + 3 * 32,
    }
    assert found["parameters"]["before"] == sum(weight.numel() for weight in original.parameters())
    assert found["parameters"]["before"] - found["parameters"]["after"] == gpt2_heads(3)
    cache = {"before": 3 * 4 * PER_HEAD * 32, "after": (3 + 2 + 4) * PER_HEAD * 32}
    assert found["bytes of the cache after 32 tokens"] == cache


def test_of_encoders_no_cache_is_told() -> None:
    assert set(sizes_before_and_after(tiny_model("bert"), pruned("bert"))) == {"parameters", "parameters of attention"}
    assert sizes_of(tiny_model("bert"))[1] is None


def test_a_speed_as_plain_values() -> None:
    speed = Speed(Workload("decode", 2, 32, 8), median=8.0, rounds=3, of_other=4.0, ratio=2.0, low=1.5, high=2.5)
    assert speed.to_dict() == {
        "workload": "decode, batch 2, 32 tokens then 8 new",
        "unit": "tokens/s",
        "median": 8.0,
        "rounds": 3,
        "of_other": 4.0,
        "ratio": 2.0,
        "low": 1.5,
        "high": 2.5,
    }


class Watch:
    """Tells the time, which passes only while a model runs: `cost` seconds a call, by the number of its calls."""

    def __init__(self) -> None:
        self.now, self.calls = 0.0, list[tuple[str, tuple[int, ...]]]()

    def __call__(self) -> float:
        return self.now

    def on(self, model: PreTrainedModel, name: str, cost: Callable[[int], float]) -> PreTrainedModel:
        forward = model.forward

        @functools.wraps(forward)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.now += cost(sum(called == name for called, _ in self.calls))
            self.calls.append((name, tuple(kwargs["input_ids"].shape)))
            return forward(*args, **kwargs)

        model.forward = timed  # type: ignore[method-assign]
        return model


def test_two_models_run_in_turns_and_warm_up_first() -> None:
    watch = Watch()
    model = watch.on(tiny_model("bert"), "one", lambda number: 100.0 if number < 2 else 0.5)
    other = watch.on(tiny_model("bert", layers=1), "two", lambda number: 100.0 if number < 2 else 1.0)
    workload = Workload("encode", 4, 16)
    found = measure_speed(model, other, workloads=[workload], rounds=3, warm_up=2, clock=watch)
    assert "".join(name[0] for name, _ in watch.calls) == "ottoottoot"
    assert {shape for _, shape in watch.calls} == {(4, 16)}
    assert found == [Speed(workload, median=8.0, rounds=3, of_other=4.0, ratio=2.0, low=2.0, high=2.0)]


def test_ratios_are_of_the_same_round() -> None:
    """A slow moment of the machine slows both models down: the ratio of their medians would be 2, that of rounds 1."""
    watch = Watch()
    slow = [1.0, 4.0, 2.0, 8.0, 2.0]
    model = watch.on(tiny_model("bert"), "one", lambda number: slow[number])
    other = watch.on(tiny_model("bert"), "two", lambda number: slow[number] * [1, 1, 1, 0.5, 3][number])
    (found,) = measure_speed(model, other, workloads=[Workload("encode", 1, 8)], rounds=5, warm_up=0, clock=watch)
    assert found.median == 1 / 2  # seconds: 1, 2, 2, 4, 8
    assert found.of_other == 1 / 4  # 1, 2, 4, 4, 6
    assert (found.low, found.ratio, found.high) == (1, 1, 1)  # 0.5, 1, 1, 1, 3


def test_decoding_is_timed_without_the_prompt() -> None:
    watch = Watch()
    model = watch.on(tiny_model("gpt2"), "one", lambda number: 50.0 if number % 5 == 0 else 0.25)
    (found,) = measure_speed(model, workloads=[Workload("decode", 2, 8, 4)], rounds=2, warm_up=1, clock=watch)
    assert [shape for _, shape in watch.calls] == [(2, 8), (2, 1), (2, 1), (2, 1), (2, 1)] * 3
    assert found == Speed(Workload("decode", 2, 8, 4), median=2 * 4 / (4 * 0.25), rounds=2)
    assert found.workload.unit == "tokens/s"


def test_prefill_counts_the_tokens_of_all_texts() -> None:
    watch = Watch()
    model = watch.on(tiny_model("llama"), "one", lambda number: 2.0)
    (found,) = measure_speed(model, workloads=[Workload("prefill", 3, 10)], rounds=2, warm_up=0, clock=watch)
    assert found.median == 3 * 10 / 2.0


def test_a_cached_step_sees_the_prompt() -> None:
    """What is timed is decoding: the hidden states of the last step are those of the whole text."""
    model = tiny_model("gpt2")
    steps: list[torch.Tensor] = []
    forward = model.forward

    @functools.wraps(forward)
    def kept(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        steps.append(torch.cat([kwargs["input_ids"][0, -1:].double(), output.last_hidden_state[0, -1]]))
        tokens.append(kwargs["input_ids"])
        return output

    tokens: list[torch.Tensor] = []
    model.forward = kept  # type: ignore[method-assign]
    measure_speed(model, workloads=[Workload("decode", 1, 8, 4)], rounds=1, warm_up=0)
    with torch.no_grad():
        whole = forward(input_ids=torch.cat(tokens, dim=1)).last_hidden_state[0, -1]
    assert torch.allclose(steps[-1][1:], whole, atol=1e-10)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_layers_of_different_heads_and_of_none_are_timed(family: str) -> None:
    workloads = [Workload("prefill", 2, 16), Workload("decode", 2, 8, 4)]
    for speed in measure_speed(pruned(family), tiny_model(family), workloads=workloads, rounds=2, warm_up=1):
        assert speed.low is not None
        assert speed.high is not None
        assert 0 < speed.low <= speed.high < math.inf


def test_what_is_asked_for_by_default() -> None:
    decoder = [(one.kind, one.batch) for one in workloads_of(tiny_model("gpt2"))]
    assert decoder == [("prefill", 1), ("prefill", 16), ("decode", 1), ("decode", 16)]
    assert [(one.kind, one.tokens) for one in workloads_of(tiny_model("bert"))] == [("encode", 32), ("encode", 128)]


@pytest.mark.parametrize(
    ("make", "workload", "message"),
    [
        (lambda: tiny_model("bert"), Workload("decode", 1, 8, 4), "BertModel is an encoder and keeps no cache"),
        (lambda: tiny_model("t5"), Workload("decode", 1, 8, 4), "which has two stacks, is not measured"),
        (lambda: tiny_model("gpt2"), Workload("decode", 1, 78, 4), "takes 1 to 80 tokens .* got 82"),
        (lambda: tiny_model("gpt2").train(), Workload("prefill", 1, 8), "is in train mode"),
    ],
)
def test_what_cannot_be_timed_is_refused(make: Callable[[], PreTrainedModel], workload: Workload, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        measure_speed(make(), workloads=[workload])


@pytest.mark.parametrize("sizes", [("decode", 1, 8, 0), ("prefill", 1, 8, 3), ("encode", 0, 8, 0)])
def test_workloads_that_do_nothing_are_refused(sizes: tuple[Any, ...]) -> None:
    with pytest.raises(UnsupportedModel, match="only decoding writes new ones"):
        Workload(*sizes)


def test_rounds_are_at_least_one() -> None:
    with pytest.raises(UnsupportedModel, match="at least one round"):
        measure_speed(tiny_model("bert"), rounds=0)
