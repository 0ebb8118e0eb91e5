"""Losses and induction scores on random tokens written twice, beside loops over a stock model's own outputs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from converted import PAIRS, language_model, spread, with_shared
from evaluated import VOCABULARY, WORDS, as_loaded, whole_model, word_tokenizer
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from headlens.behaviour.repeated import Source, random_sample
from headlens.capture import capture
from headlens.conversion.carriers import converted
from headlens.conversion.weights import read_layers
from headlens.errors import CorpusError, UnsupportedModel
from headlens.evaluating import evaluate_models
from headlens.evaluation import TaskOptions, TaskResult, evaluate, paired_difference, read_task
from headlens.evaluation.repeat import FIRST, INDUCTION, SECOND, Repeat
from headlens.models import load_whole
from headlens.surgery import apply_plan, full_plan
from headlens.testing import Planted, planted_bert, planted_gpt2, slow_attentions, tiny_model

BOS = VOCABULARY.index("<s>")
ROOM = 40  # tokens of the longest input of word_tokenizer
REMOVABLE = [(0, 0), (0, 2), (0, 3), (1, 1), (1, 4)]  # heads of planted_gpt2 that induction does not need


def watched(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, task: Repeat) -> tuple[TaskResult, list[Any]]:
    """What is found, and the inputs [batch, token] that the embeddings were given on the way."""
    inputs: list[Any] = []
    hook = model.get_input_embeddings().register_forward_hook(lambda _, given, __: inputs.extend(given[0].tolist()))
    found = evaluate(as_loaded(model, tokenizer), task)
    hook.remove()
    return found, inputs[: len(task.items)]  # then they come again, to be watched


@torch.no_grad()
def slow_losses(model: PreTrainedModel, ids: Sequence[int], places: Sequence[int]) -> list[float]:
    """Of the tokens at `places`, one forward pass a token, in nats."""
    found = []
    for place in places:
        logits = model(input_ids=torch.tensor([ids[:place]])).logits[0, -1].double()
        found.append(float(logits.logsumexp(dim=-1) - logits[ids[place]]))
    return found


def slow_induction(base: PreTrainedModel, ids: Sequence[int], first: int, period: int) -> np.ndarray[Any, Any]:
    """[layer, head]: of each head what transformers reports as its attention, row by row of the second copy."""
    inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
    layers = [layer[0].tolist() for layer in slow_attentions(base, inputs)["decoder"]]
    rows = range(first + period, first + 2 * period)
    return np.array([[sum(head[row][row - period + 1] for row in rows) / period for head in layer] for layer in layers])


def on_planted(model: PreTrainedModel, made: Planted, task: Repeat | None = None) -> TaskResult:
    return evaluate(as_loaded(model, made.tokenizer, "planted"), task or Repeat(4))


# --------------------------------------------------------------------------------------------------------------- losses


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("has_bos", [True, False])
def test_losses_and_induction_equal_loops_over_the_stock_model(family: str, has_bos: bool) -> None:
    model = whole_model(family)
    tokenizer = word_tokenizer(**({"bos_token": "<s>"} if has_bos else {}))
    found, inputs = watched(model, tokenizer, Repeat(5))
    first = int(has_bos)
    period = (ROOM - first) // 2
    second = first + period
    assert len(inputs) == 5
    induction = np.zeros((5, 3, 4))
    for item, ids in enumerate(inputs):
        assert len(ids) == first + 2 * period
        for copied, places in ((FIRST, range(1, second)), (SECOND, range(second + 1, len(ids)))):
            losses = slow_losses(model, ids, places)
            assert found.columns[f"tokens, {copied}"][item] == len(losses)
            assert found.columns[copied][item] == pytest.approx(sum(losses), abs=1e-9)
        induction[item] = slow_induction(model.base_model, ids, first, period)
    for copied in (FIRST, SECOND):
        expected = found.columns[copied].sum() / (5 * (period - (0 if has_bos and copied == FIRST else 1)))
        assert found.figure(copied).value == pytest.approx(expected)
    best = np.unravel_index(induction.mean(axis=0).argmax(), (3, 4))
    assert found.facts["best_head"] == "L{}H{}".format(*best)
    # float32 sums of slices of rows
    assert found.columns[INDUCTION] == pytest.approx(induction[:, best[0], best[1]], abs=1e-5)
    assert found.figure(INDUCTION).value == pytest.approx(induction.mean(axis=0).max(), abs=1e-5)


def test_what_is_asked_is_random_words_written_twice_behind_the_first_token() -> None:
    _, inputs = watched(whole_model("gpt2"), word_tokenizer(bos_token="<s>", eos_token="</s>"), Repeat(30))
    ordinary = set(range(len(VOCABULARY) - len(WORDS), len(VOCABULARY)))
    for ids in inputs:
        assert ids[0] == BOS
        assert ids[1:20] == ids[20:]
        assert len(set(ids[1:20])) == 19
        assert set(ids[1:]) <= ordinary
    assert len({tuple(ids) for ids in inputs}) == 30
    assert {token for ids in inputs for token in ids[1:]} == ordinary


def test_heads_are_not_asked_on_what_they_were_chosen_on() -> None:
    tokenizer, model = word_tokenizer(bos_token="<s>"), whole_model("gpt2")
    _, inputs = watched(model, tokenizer, Repeat(40))
    source = Source.of(model.base_model, tokenizer, is_causal=True)
    for stream in range(5):  # of `repetition`, and of the task "repeats" of importance
        others = random_sample(source, period=19, batch=40, seed=0, stream=stream).tolist()
        assert not {tuple(row) for row in others} & {tuple(ids[1:20]) for ids in inputs}


@pytest.mark.parametrize("batch_tokens", [1, 90])
def test_batches_change_nothing(batch_tokens: int) -> None:
    loaded = as_loaded(whole_model("gpt2"), word_tokenizer(bos_token="<s>"))
    whole, parts = evaluate(loaded, Repeat(5)), evaluate(loaded, Repeat(5), batch_tokens=batch_tokens)
    for name, column in whole.columns.items():
        assert parts.columns[name] == pytest.approx(column, abs=1e-10)


def test_logits_of_a_few_tokens_at_a_time_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = as_loaded(whole_model("gpt2"), word_tokenizer(bos_token="<s>"))
    whole = evaluate(loaded, Repeat(5))
    monkeypatch.setattr("headlens.evaluation.language._ROWS", 7)
    parts = evaluate(loaded, Repeat(5))
    for name, column in whole.columns.items():
        assert parts.columns[name] == pytest.approx(column, abs=1e-10)


def test_a_model_that_knows_nothing_has_the_uniform_loss() -> None:
    model = whole_model("llama")
    with torch.no_grad():
        model.lm_head.weight.zero_()
    found = evaluate(as_loaded(model, word_tokenizer()), Repeat(4))
    uniform = math.log(len(VOCABULARY))
    assert [found.figure(name).value for name in (SECOND, FIRST)] == pytest.approx([uniform, uniform])
    assert found.facts["vocabulary"] == len(VOCABULARY)
    assert found.facts["uniform_loss"] == pytest.approx(uniform)
    assert found.notes[0] == (
        "All 25 tokens with the same probability would be a loss of 3.2189 nats per token."  # ln 25
    )


# ---------------------------------------------------------------------------------------------------------- known heads


def test_a_planted_induction_head_copies() -> None:
    made = planted_gpt2()
    found = on_planted(made.model, made)
    assert found.facts["period"] == 79  # of 160 positions, one for <s>
    assert found.facts["best_head"] == "L1H3"
    assert found.figure(INDUCTION).value > 0.99
    assert found.value < 0.1
    assert found.figure(FIRST).value > found.facts["uniform_loss"]
    assert not any("worse" in note for note in found.notes)


def test_worse_than_uniform_is_said() -> None:
    made = planted_gpt2(roles={(0, 1): "previous token", (1, 3): "anti-induction"})
    found = on_planted(made.model, made)
    assert found.figure(INDUCTION).value > 0.99  # it attends, and speaks against what it finds
    assert found.value > found.facts["uniform_loss"]
    told = f"With {found.value:.4f} on the second copy it does worse than equal probabilities, so it does not copy."
    assert told in found.notes


def test_the_bundled_decoder_copies() -> None:
    found = evaluate(load_whole("tiny-gpt2", check=False), read_task("repeat"))
    assert len(found.items) == 16
    assert found.value < found.figure(FIRST).value / 2
    assert found.figure(INDUCTION).value > 0.3
    assert found.low < found.value < found.high


def test_a_head_of_a_pruned_model_has_the_name_that_it_had() -> None:
    made = planted_gpt2()
    whole = on_planted(made.model, made)
    smaller = on_planted(apply_plan(made.model, full_plan(made.model).without(REMOVABLE)), made)
    assert smaller.facts["best_head"] == "L1H3"
    assert smaller.columns[INDUCTION] == pytest.approx(whole.columns[INDUCTION], abs=1e-5)
    assert paired_difference(smaller, whole).value == pytest.approx(
        0, abs=1e-3
    )  # heads without a role add next to none


def test_without_its_induction_head_a_model_is_worse_beyond_chance() -> None:
    made = planted_gpt2()
    whole, without = (
        on_planted(model, made)
        for model in (made.model, apply_plan(made.model, full_plan(made.model).without([(1, 3)])))
    )
    assert without.facts["best_head"] != "L1H3"
    assert without.figure(INDUCTION).value < 0.5
    difference = paired_difference(without, whole)
    tokens = 4 * 78
    assert difference.value == pytest.approx((without.columns[SECOND] - whole.columns[SECOND]).sum() / tokens)
    assert difference.metric == SECOND
    assert difference.is_worse
    assert paired_difference(without, whole, metric=INDUCTION).is_worse


def test_a_converted_model_is_watched_too() -> None:
    model = language_model("llama")
    layers = with_shared(read_layers(model), (PAIRS,) * 3)
    tokenizer = word_tokenizer(bos_token="<s>")
    found, inputs = watched(converted(model, layers), tokenizer, Repeat(3))
    copies = converted(model, spread(layers))
    induction = np.stack([slow_induction(copies.base_model, ids, 1, 19) for ids in inputs])
    assert found.figure(INDUCTION).value == pytest.approx(induction.mean(axis=0).max(), abs=1e-5)
    losses = [loss for ids in inputs for loss in slow_losses(copies, ids, range(21, 39))]
    assert found.value == pytest.approx(sum(losses) / len(losses), abs=1e-9)


def test_a_model_without_heads_has_losses_and_no_induction_score() -> None:
    made = planted_gpt2()
    plan = full_plan(made.model)
    found = on_planted(apply_plan(made.model, plan.without(plan)), made)
    assert found.value > found.facts["uniform_loss"]
    assert math.isnan(found.figure(INDUCTION).value)
    assert found.facts["best_head"] is None
    assert found.notes[-1].startswith("planted has no induction score: All heads of the model were removed")
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_gated_model_is_asked_as_it_is() -> None:
    made = planted_gpt2()
    gates = torch.ones(2, 6)
    gates[1, 3] = 0
    with capture(made.model, gates=gates):
        gated = on_planted(made.model, made)
    without = on_planted(apply_plan(made.model, full_plan(made.model).without([(1, 3)])), made)
    assert gated.columns[SECOND] == pytest.approx(without.columns[SECOND], rel=1e-5)
    assert "planted has no induction score:" in gated.notes[-1]


# ------------------------------------------------------------------------------------------------------------- pairing


def test_models_of_other_tokenizers_are_not_compared() -> None:
    model = whole_model("gpt2")
    one, same, other = (
        evaluate(as_loaded(model, tokenizer), Repeat(3))
        for tokenizer in (word_tokenizer(), word_tokenizer(), word_tokenizer(bos_token="<s>", eos_token="cat"))
    )
    assert paired_difference(one, same).value == 0
    for metric in (SECOND, FIRST, INDUCTION):
        with pytest.raises(CorpusError, match="the random tokens of the two models differ"):
            paired_difference(one, other, metric=metric)


def test_the_seed_and_the_number_tell_the_task() -> None:
    tasks = [Repeat(3), Repeat(3, seed=1), Repeat(3, period=9), Repeat(4)]
    assert len({task.fingerprint for task in tasks}) == 4
    assert Repeat(3).fingerprint == Repeat(3, name="other").fingerprint


def test_models_stand_beside_each_other_in_an_evaluation() -> None:
    found = evaluate_models(["tiny-gpt2"], [read_task("repeat:2")])
    (task,) = found.to_dict()["models"][0]["tasks"]
    assert task["task"] == "repeat:2"
    assert [figure["metric"] for figure in task["figures"]] == [SECOND, FIRST, INDUCTION]
    assert any("would be a loss of 6.4329 nats" in note for note in found.models[0].notes)  # ln 622


# ---------------------------------------------------------------------------------------------------------------- room


def test_a_shorter_copy_is_taken_where_there_is_no_room_and_said() -> None:
    tokenizer = word_tokenizer(bos_token="<s>", eos_token="</s>")
    found = evaluate(as_loaded(whole_model("gpt2", n_positions=12), tokenizer), Repeat(3))
    assert found.facts["period"] == 5
    assert found.notes[-1] == (
        "A copy has 5 tokens, not 128: the model takes 12 tokens, special ones included, and 20 ordinary ones can be "
        "drawn."
    )
    enough = evaluate(as_loaded(whole_model("gpt2"), tokenizer), Repeat(3, period=5))
    assert enough.facts["period"] == 5
    assert len(enough.notes) == 1 + (enough.value > math.log(25))


def test_too_little_room_is_refused() -> None:
    loaded = as_loaded(whole_model("gpt2", n_positions=6), word_tokenizer(bos_token="<s>"))
    with pytest.raises(CorpusError, match="Random tokens written 2 times need 3 ordinary tokens and 6 positions"):
        evaluate(loaded, Repeat(3))


# ----------------------------------------------------------------------------------------------------- names and errors


def test_the_number_of_sequences_may_be_left_out() -> None:
    alone, told, few = (read_task(spec) for spec in ("repeat", "repeat:16", "repeat:3"))
    assert (alone.name, told.name) == ("repeat", "repeat:16")
    assert alone.fingerprint == told.fingerprint
    assert len(alone.items) == 16
    assert few.items == ("sequence 1", "sequence 2", "sequence 3")


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("repeat:", {}, "'repeat:' names a kind of task and nothing to read; write repeat:16 or just repeat"),
        ("repeat:many", {}, "repeat:many is to name a number of sequences; write repeat:16 or just repeat"),
        ("repeat:-1", {}, "is to name a number of sequences"),
        ("repeat:0", {}, "repeat:0: the number of sequences must be from 1 to 1000; got 0"),
        ("repeat:1001", {}, "from 1 to 1000; got 1001"),
        ("repeat", {"limit": 3}, "repeat: this kind of task has no limit; leave it out"),
        ("repat", {}, r"did you mean repeat\?"),
    ],
)
def test_names_that_name_nothing_are_one_sentence(spec: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(CorpusError, match=message) as error:
        read_task(spec, TaskOptions(**options))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("given", [{"period": 2}, {"seed": -1}])
def test_settings_that_cannot_be_run_are_refused(given: dict[str, int]) -> None:
    with pytest.raises(CorpusError, match="the period must be at least 3 tokens and the seed at least 0"):
        Repeat(2, **given)


def test_an_encoder_is_refused_before_it_runs() -> None:
    made = planted_bert()
    ran: list[Any] = []
    made.model.register_forward_hook(lambda *_: ran.append(1))
    with pytest.raises(UnsupportedModel, match=r"'tiny' sees the tokens that follow, .*this task is for decoders"):
        evaluate(as_loaded(made.model, made.tokenizer), read_task("repeat"))
    assert ran == []


def test_a_decoder_without_a_vocabulary_head_is_refused() -> None:
    base = tiny_model("llama", vocab_size=len(VOCABULARY), tie_word_embeddings=False)
    with pytest.raises(UnsupportedModel, match="vocabulary head"):
        evaluate(as_loaded(base, word_tokenizer()), Repeat(2))


def test_nan_is_told_as_in_other_tasks() -> None:
    model = whole_model("gpt2")
    with torch.no_grad():
        model.transformer.h[1].attn.c_proj.weight[0, 0] = math.nan
    with pytest.raises(UnsupportedModel, match="gives numbers that are not finite, so it cannot be evaluated"):
        evaluate(as_loaded(model, word_tokenizer()), Repeat(2))
