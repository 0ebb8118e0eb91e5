"""Heads taken out, beside stock models whose output projection lacks the head's rows."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_unembedding import with_head
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy
from transformers import (
    AutoModelForMaskedLM,
    BertForMaskedLM,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

import headlens.behaviour.losses as module
from headlens.arch import attention_sites, is_transposed, output_projection
from headlens.behaviour.ablation import ablate_heads, interval, sign_flip_p
from headlens.behaviour.losses import Loss, Output, about_repeats, about_text, sample
from headlens.behaviour.upper_layers import UpperLayers
from headlens.effects import Ablation
from headlens.encode import encode_texts
from headlens.errors import CorpusError, HeadlensError, UnsupportedModel
from headlens.models import LoadedModel, load_model
from headlens.records import Batch
from headlens.testing import padded_inputs, planted_bert, planted_gpt2, tiny_model

WORDS = 128  # ids of the planted models' tokenizers
LAYERS, HEADS, DIM = 3, 4, 8


@pytest.fixture(scope="module")
def gpt2_tokenizer() -> PreTrainedTokenizerFast:
    return planted_gpt2().tokenizer


@pytest.fixture(scope="module")
def bert_tokenizer() -> PreTrainedTokenizerFast:
    return planted_bert().tokenizer


def loaded(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast | None) -> LoadedModel:
    return LoadedModel(model, tokenizer, "tiny", "a model in memory", {"weights_sha256": None})


def drawn(whole: PreTrainedModel, base: PreTrainedModel) -> Any:
    """A model with a head: its network has the weights of `base`, its head wide ones."""
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for weight in whole.parameters():
            weight.copy_(0.4 * torch.randn(weight.shape, generator=generator))
    whole.base_model.load_state_dict(base.state_dict())
    whole.tie_weights()
    return whole.double().eval()


@pytest.fixture(scope="module")
def gpt2() -> GPT2LMHeadModel:
    base = tiny_model("gpt2", vocab_size=WORDS, std=0.4)
    return drawn(GPT2LMHeadModel(base.config), base)


@pytest.fixture(scope="module")
def bert() -> BertForMaskedLM:
    base = tiny_model("bert", vocab_size=WORDS, std=0.4)
    base.pooler = None  # as the model with its vocabulary head has it
    return drawn(BertForMaskedLM(base.config), base)


SENTENCES = (12, 7, 4, 9, 5, 10)  # tokens, special ones included; two a document


def batches(*, ends: int = 1, side: str = "right", sizes: Sequence[int] = (3, 1, 2)) -> list[Batch]:
    """Sentences of random tokens; the first is special, and the last if `ends` is 2. Padding holds a wrong token."""
    generator = torch.Generator().manual_seed(6)
    rows = [torch.randint(5, WORDS, (length,), generator=generator) for length in SENTENCES]
    found, start = list[Batch](), 0
    for size in sizes:
        own = rows[start : start + size]
        longest = max(map(len, own))
        ids, mask = torch.full((size, longest), 77), torch.zeros(size, longest, dtype=torch.bool)
        special = torch.zeros_like(mask)
        for row, tokens in enumerate(own):
            first = 0 if side == "right" else longest - len(tokens)
            ids[row, first : first + len(tokens)], mask[row, first : first + len(tokens)] = tokens, True
            special[row, [first, first + len(tokens) - 1][:ends]] = True
        found.append(Batch(ids, mask, special, torch.arange(start, start + size) // 2))
        start += size
    return found


def rows_of(given: Sequence[Batch]) -> list[tuple[Tensor, int]]:
    """Ids of each input without its padding, and its document."""
    return [
        (batch.input_ids[row][batch.attention_mask[row]], int(batch.document[row]))
        for batch in given
        for row in range(len(batch.document))
    ]


def alone(ids: Tensor) -> Batch:
    real = torch.ones(1, len(ids), dtype=torch.bool)
    return Batch(ids[None], real, ~real, torch.zeros(1, dtype=torch.long))


def without(model: PreTrainedModel, layer: int, head: int, dim: int = DIM) -> Any:
    """A copy in which nothing that the head says goes through W_O."""
    found = copy.deepcopy(model)
    network = getattr(found, found.base_model_prefix, found)
    projection = output_projection(network, attention_sites(network)[layer])
    with torch.no_grad():
        rows = projection.weight if is_transposed(projection) else projection.weight.T
        rows[head * dim : (head + 1) * dim] = 0
    return found


def everyone(task: Any, layers: int = LAYERS, heads: int = HEADS) -> dict[tuple[int, int], Any]:
    return dict.fromkeys(itertools.product(range(layers), range(heads)), task)


# ------------------------------------------------------------------------------------------------------- causal models


@torch.no_grad()
def next_token_losses(model: GPT2LMHeadModel, given: Sequence[Batch]) -> Tensor:
    """One sentence at a time."""
    logits = [(model(ids[None]).logits[0, :-1], ids[1:]) for ids, _ in rows_of(given)]
    return torch.cat([cross_entropy(found, right, reduction="none") for found, right in logits])


@pytest.mark.parametrize("side", ["right", "left"])
def test_change_of_the_next_token_loss_is_that_of_a_model_without_the_heads_rows_of_w_o(
    gpt2: GPT2LMHeadModel, gpt2_tokenizer: PreTrainedTokenizerFast, side: str
) -> None:
    given = batches(side=side)
    found = ablate_heads(loaded(gpt2, gpt2_tokenizer), given, everyone("text"))
    intact = next_token_losses(gpt2, given)
    assert found.asked == {"text": sum(SENTENCES) - len(SENTENCES)} == {"text": len(intact)}
    changes = [float((next_token_losses(without(gpt2, *head), given) - intact).mean()) for head in everyone("text")]
    assert [effect.change for effect in found.effects] == pytest.approx(changes, abs=1e-9)
    assert min(map(abs, changes)) > 1e-3  # else a gate that does nothing would pass
    assert [effect.intact for effect in found.effects] == pytest.approx([float(intact.mean())] * 12, abs=1e-9)
    assert {(effect.task, effect.documents) for effect in found.effects} == {("text", 3)}


def test_loss_is_the_one_that_the_stock_model_gives_for_labels(
    gpt2: GPT2LMHeadModel, gpt2_tokenizer: PreTrainedTokenizerFast
) -> None:
    given = batches()
    found = ablate_heads(loaded(gpt2, gpt2_tokenizer), given, {(1, 2): "text"}).effects[0]

    def mean_loss(model: Any) -> float:
        with torch.no_grad():
            losses = [(float(model(ids[None], labels=ids[None]).loss), len(ids) - 1) for ids, _ in rows_of(given)]
        return sum(loss * tokens for loss, tokens in losses) / sum(tokens for _, tokens in losses)

    # transformers takes this loss in float32
    assert found.intact == pytest.approx(mean_loss(gpt2), rel=1e-6)
    assert found.change == pytest.approx(mean_loss(without(gpt2, 1, 2)) - mean_loss(gpt2), abs=1e-5)


def test_special_tokens_are_read_but_not_asked_for(
    gpt2: GPT2LMHeadModel, gpt2_tokenizer: PreTrainedTokenizerFast
) -> None:
    given = batches(ends=2)
    found = ablate_heads(loaded(gpt2, gpt2_tokenizer), given, {(0, 1): "text"})
    losses = [next_token_losses(gpt2, [alone(ids)]) for ids, _ in rows_of(given)]
    assert found.effects[0].intact == pytest.approx(float(torch.cat([own[:-1] for own in losses]).mean()), abs=1e-9)


@pytest.mark.parametrize("sizes", [(6,), (1,) * 6, (2, 4)])
def test_batches_change_nothing(
    gpt2: GPT2LMHeadModel, gpt2_tokenizer: PreTrainedTokenizerFast, sizes: tuple[int, ...]
) -> None:
    model, heads = loaded(gpt2, gpt2_tokenizer), {(0, 1): "text", (2, 0): "text"}
    one, other = (ablate_heads(model, batches(sizes=own), heads).effects for own in ((3, 1, 2), sizes))
    for left, right in zip(one, other, strict=True):
        assert (left.change, left.low, left.p) == pytest.approx((right.change, right.low, right.p), abs=1e-12)


def test_pieces_of_logits_and_of_batches_change_nothing(
    gpt2: GPT2LMHeadModel, gpt2_tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ablate_heads(loaded(gpt2, gpt2_tokenizer), batches(), everyone("text"))
    monkeypatch.setattr(module, "_ROWS", 3)
    monkeypatch.setattr(module, "_BATCH_TOKENS", 20)
    pieces = ablate_heads(loaded(gpt2, gpt2_tokenizer), batches(), everyone("text"))
    assert [e.change for e in pieces.effects] == pytest.approx([e.change for e in whole.effects], abs=1e-12)


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("gpt2", {}),
        ("llama", {}),
        ("cohere", {"logit_scale": 0.25}),
        ("granite", {"logits_scaling": 8.0}),
        ("gemma2", {"final_logit_softcapping": 3.0}),
        ("gemma3_text", {"final_logit_softcapping": 3.0}),
    ],
)
def test_scaled_and_capped_logits_give_the_loss_of_the_stock_model(
    gpt2_tokenizer: PreTrainedTokenizerFast, family: str, more: dict[str, Any]
) -> None:
    model = with_head(family, **more).double()
    given = [
        Batch(batch.input_ids % 99, batch.attention_mask, batch.special, batch.document) for batch in batches()
    ]  # its vocabulary has 99 tokens
    question = about_text(loaded(model, gpt2_tokenizer), given, seed=0)
    losses = question.answers(torch.ones(2, 4)).mean()
    # some families take norms or the softmax in float32 whatever the dtype
    assert float(losses) == pytest.approx(float(next_token_losses(model, given).mean()), rel=1e-5)


# -------------------------------------------------------------------------------------------------------- planted roles

PLANTED = {(0, 1): "previous token", (0, 4): "duplicate token", (1, 0): "uniform", (1, 3): "induction"}


@pytest.fixture(scope="module")
def on_repeats() -> Ablation:
    planted = planted_gpt2(roles=PLANTED)
    return ablate_heads(loaded(planted.model, planted.tokenizer), [], everyone("repeats", 2, 6), seed=3)


def test_only_the_induction_head_and_the_one_that_it_reads_are_used_on_repeats(on_repeats: Ablation) -> None:
    assert {(effect.layer, effect.head) for effect in on_repeats.effects if effect.is_used} == {(0, 1), (1, 3)}
    used = on_repeats.of(1, 3)
    assert used is not None
    assert used.change > 3  # of about 5 nats that a random word of 125 takes
    assert used.change > 100 * abs(used.median_of_heads)


def test_repeats_ask_for_all_but_the_first_token_of_the_second_copy(on_repeats: Ablation) -> None:
    assert on_repeats.asked == {"repeats": 40 * 49}
    assert {effect.documents for effect in on_repeats.effects} == {40}


def test_repeats_are_the_second_copy_after_the_first(gpt2_tokenizer: PreTrainedTokenizerFast) -> None:
    question = about_repeats(loaded(planted_gpt2().model, gpt2_tokenizer), seed=1)
    assert isinstance(question, Loss)
    for asked in question.runs.asked:
        copies = asked.input_ids[:, 1:].unflatten(1, (2, 50))
        assert torch.equal(copies[:, 0], copies[:, 1])
        assert (asked.input_ids[:, 0] == gpt2_tokenizer.bos_token_id).all()
        assert asked.read.nonzero()[:, 1].unique().tolist() == list(range(51, 100))
        assert torch.equal(asked.right.view(-1, 49), copies[:, 0, 1:])


def test_the_seed_decides_the_random_tokens(gpt2_tokenizer: PreTrainedTokenizerFast) -> None:
    model = loaded(planted_gpt2().model, gpt2_tokenizer)
    one, same, other = (about_repeats(model, seed=seed) for seed in (1, 1, 2))
    ids = [question.runs.asked[0].input_ids for question in (one, same, other)]  # type: ignore[attr-defined]
    assert torch.equal(ids[0], ids[1])
    assert not torch.equal(ids[0], ids[2])


def test_the_median_is_that_of_the_other_heads(on_repeats: Ablation) -> None:
    changes = [effect.change for effect in on_repeats.effects]
    expected = [np.median(changes[:place] + changes[place + 1 :]) for place in range(len(changes))]
    assert [effect.median_of_heads for effect in on_repeats.effects] == pytest.approx(expected, abs=1e-15)


def test_q_is_over_both_tasks_together(gpt2: GPT2LMHeadModel, gpt2_tokenizer: PreTrainedTokenizerFast) -> None:
    heads: dict[tuple[int, int], Any] = {(0, 0): "text", (0, 1): "repeats", (1, 1): "repeats", (2, 3): "text"}
    found = ablate_heads(loaded(gpt2, gpt2_tokenizer), batches(), heads)
    assert [effect.task for effect in found.effects] == list(heads.values())
    assert set(found.asked) == {"text", "repeats"}
    p = np.array([effect.p for effect in found.effects])
    rank = p.argsort().argsort() + 1
    q = [min((p * 4 / rank)[p >= own].min(), 1) for own in p]
    assert [effect.q for effect in found.effects] == pytest.approx(q)
    alone = found.of(0, 1)
    assert alone is not None
    assert alone.median_of_heads == next(effect.change for effect in found.effects if effect.head == 1 == effect.layer)


def test_one_head_has_no_others_to_stand_beside(gpt2: GPT2LMHeadModel, gpt2_tokenizer: PreTrainedTokenizerFast) -> None:
    found = ablate_heads(loaded(gpt2, gpt2_tokenizer), batches(), {(1, 1): "text"})
    assert np.isnan(found.effects[0].median_of_heads)
    assert found.effects[0].q == found.effects[0].p


# ------------------------------------------------------------------------------------------------------------- encoders


def masked_question(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> Loss:
    question = about_text(loaded(model, tokenizer), batches(ends=2), seed=seed)
    assert isinstance(question, Loss)
    return question


def test_masks_take_some_of_the_ordinary_tokens_of_every_input(
    bert: BertForMaskedLM, bert_tokenizer: PreTrainedTokenizerFast
) -> None:
    rows = {tuple(ids[[0, -1]].tolist()): ids for ids, _ in rows_of(batches(ends=2))}  # by their special tokens
    seen = 0
    for asked in masked_question(bert, bert_tokenizer).runs.asked:
        right = iter(asked.right.tolist())
        for row, mask in enumerate(asked.attention_mask.bool()):
            ids, read = asked.input_ids[row][mask], asked.read[row]
            original = rows[tuple(ids[[0, -1]].tolist())]
            assert not read[[0, len(ids) - 1]].any()  # special
            assert not read[len(ids) :].any()  # padding
            read = read[: len(ids)]
            assert int(read.sum()) == max(1, round(0.15 * (len(ids) - 2)))
            assert (ids[read] == bert_tokenizer.mask_token_id).all()
            assert torch.equal(ids[~read], original[~read])
            assert original[read].tolist() == [next(right) for _ in range(int(read.sum()))]
            seen += 1
    assert seen == len(SENTENCES)


def test_masks_follow_the_seed(bert: BertForMaskedLM, bert_tokenizer: PreTrainedTokenizerFast) -> None:
    one, same, other = (masked_question(bert, bert_tokenizer, seed).runs.asked[0].read for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_change_of_the_masked_loss_is_that_of_a_model_without_the_heads_rows_of_w_o(
    bert: BertForMaskedLM, bert_tokenizer: PreTrainedTokenizerFast
) -> None:
    found = ablate_heads(loaded(bert, bert_tokenizer), batches(ends=2), everyone("text"))
    asked = masked_question(bert, bert_tokenizer).runs.asked

    @torch.no_grad()
    def mean_loss(model: Any) -> float:
        total, count = 0.0, 0
        for one in asked:
            labels = torch.full_like(one.input_ids, -100)
            labels[one.read] = one.right
            for row, mask in enumerate(one.attention_mask.bool()):
                loss = model(one.input_ids[row][mask][None], labels=labels[row][mask][None]).loss
                size = int(one.read[row].sum())
                total, count = total + float(loss) * size, count + size
        return total / count

    intact = mean_loss(bert)
    changes = [mean_loss(without(bert, *head)) - intact for head in everyone("text")]
    assert [effect.change for effect in found.effects] == pytest.approx(changes, abs=1e-9)
    assert min(map(abs, changes)) > 1e-4
    assert found.effects[0].intact == pytest.approx(intact, abs=1e-9)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "albert", "electra", "modernbert"])
def test_head_of_a_checkpoint_gives_the_logits_of_the_stock_model(
    bert_tokenizer: PreTrainedTokenizerFast, family: str, tmp_path: Path
) -> None:
    base = tiny_model(family, vocab_size=WORDS, dtype=torch.float32)
    whole = AutoModelForMaskedLM.from_config(base.config)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for weight in whole.parameters():
            weight.copy_(0.3 * torch.randn(weight.shape, generator=generator))
    whole.eval().save_pretrained(tmp_path)
    bert_tokenizer.save_pretrained(tmp_path)
    model = load_model(str(tmp_path), check=False)
    assert type(model.model) is not type(whole)
    question = about_text(model, batches(ends=2), seed=0)
    assert isinstance(question, Loss)
    losses = question.answers(torch.ones(LAYERS, HEADS))
    expected = []
    for asked in question.runs.asked:
        with torch.no_grad():
            logits = whole(asked.input_ids, attention_mask=asked.attention_mask).logits
        expected.append(cross_entropy(logits[asked.read], asked.right, reduction="none"))
    torch.testing.assert_close(losses, torch.cat(expected), atol=1e-4, rtol=1e-5)


def test_model_with_its_head_stays_as_it_is(bert: BertForMaskedLM, bert_tokenizer: PreTrainedTokenizerFast) -> None:
    inputs = padded_inputs()
    before = bert(**inputs).logits
    ablate_heads(loaded(bert, bert_tokenizer), batches(ends=2), everyone("text"))
    assert torch.equal(bert(**inputs).logits, before)
    assert not any("forward" in part.__dict__ or part._forward_hooks for part in bert.modules())


# ---------------------------------------------------------------------------------------------- models without a loss


@pytest.mark.parametrize("family", ["bert", "distilbert", "t5"])
def test_output_moves_as_far_as_that_of_a_model_without_the_heads_rows_of_w_o(
    bert_tokenizer: PreTrainedTokenizerFast, family: str
) -> None:
    whole = tiny_model(family, vocab_size=WORDS, std=0.4)
    base = whole.get_encoder() if family == "t5" else whole
    dim = 6 if family == "t5" else DIM
    given = batches(ends=2)
    found = ablate_heads(loaded(whole, bert_tokenizer), given, everyone("text"))

    @torch.no_grad()
    def vectors(model: Any) -> Tensor:
        return torch.stack([model(ids[None]).last_hidden_state[0].mean(dim=0) for ids, _ in rows_of(given)])

    intact = vectors(base)
    changes = [
        float((1 - cosine_similarity(vectors(without(base, *head, dim)), intact)).mean()) for head in everyone("text")
    ]
    assert [effect.change for effect in found.effects] == pytest.approx(changes, abs=1e-9)
    assert min(changes) > 1e-4
    assert found.asked == {"output": len(SENTENCES)}
    assert {effect.task for effect in found.effects} == {"output"}
    assert not any(effect.is_used or effect.is_loss for effect in found.effects)
    assert np.isnan([[effect.intact, effect.p, effect.q] for effect in found.effects]).all()
    assert all(effect.low <= effect.change <= effect.high for effect in found.effects)


def test_checkpoint_without_a_head_is_asked_for_its_output(
    bert_tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    tiny_model("bert", vocab_size=WORDS, dtype=torch.float32).save_pretrained(tmp_path)
    bert_tokenizer.save_pretrained(tmp_path)
    assert isinstance(about_text(load_model(str(tmp_path), check=False), batches(ends=2), seed=0), Output)


def test_decoder_without_a_head_is_asked_for_its_output(gpt2_tokenizer: PreTrainedTokenizerFast) -> None:
    base = tiny_model("llama", vocab_size=WORDS, tie_word_embeddings=False)
    assert isinstance(about_text(loaded(base, gpt2_tokenizer), batches(), seed=0), Output)


# --------------------------------------------------------------------------------------------------- only upper layers


@pytest.mark.parametrize(
    ("family", "layers"),
    [("gpt2", 3), ("bert", 3), ("distilbert", 3), ("modernbert", 3), ("llama", 3), ("gemma2", 3), ("albert", 0)],
)
def test_upper_layers_give_what_all_give(family: str, layers: int) -> None:
    network, inputs = tiny_model(family, dtype=torch.float32), padded_inputs()
    given, real = (inputs["input_ids"], inputs["attention_mask"]), inputs["attention_mask"].bool()
    upper = UpperLayers(network)
    with torch.no_grad():
        whole = network(**inputs).last_hidden_state[real]
        for below in (0, 0, 1, 2):
            assert torch.equal(upper.run(0, below, *given)[real], whole)
    assert len(upper.layers) == layers  # of ALBERT one module is all layers
    assert not any("forward" in part.__dict__ or part._forward_hooks for part in network.modules())


def test_layers_that_are_left_out_do_not_compute() -> None:
    network, inputs = tiny_model("gpt2"), padded_inputs()
    given = inputs["input_ids"], inputs["attention_mask"]
    upper = UpperLayers(network)
    with torch.no_grad():
        whole = upper.run(0, 0, *given)
        network.h[0].mlp.c_proj.weight.zero_()
        assert torch.equal(upper.run(0, 1, *given), whole)
        assert not torch.allclose(upper.run(0, 0, *given), whole)
        network.h[1].mlp.c_proj.weight.zero_()
        assert not torch.allclose(upper.run(0, 1, *given), whole)


def test_layers_below_a_head_are_run_for_the_intact_model_alone(
    gpt2: GPT2LMHeadModel, gpt2_tokenizer: PreTrainedTokenizerFast
) -> None:
    calls = [0, 0, 0]

    def count(layer: int) -> None:
        calls[layer] += 1

    handles = [
        block.mlp.register_forward_hook(lambda *_, layer=layer: count(layer))
        for layer, block in enumerate(gpt2.transformer.h)
    ]
    ablate_heads(loaded(gpt2, gpt2_tokenizer), batches(), {(1, 0): "text", (2, 0): "text", (2, 3): "text"})
    for handle in handles:
        handle.remove()
    assert calls == [1, 2, 5]  # one batch; the last layer once more, to see that the others can be left out


def test_a_network_that_needs_more_than_its_layers_give_is_run_whole() -> None:
    network, inputs = tiny_model("gpt2"), padded_inputs()
    given, seen = (inputs["input_ids"], inputs["attention_mask"]), list[Tensor]()
    network.register_forward_pre_hook(lambda *_: seen.clear())
    network.h[0].mlp.register_forward_hook(lambda _layer, _inputs, output: seen.append(output))
    network.ln_f.register_forward_hook(lambda _layer, _inputs, output: output + sum(seen))
    upper = UpperLayers(network)
    with torch.no_grad():
        whole = network(**inputs).last_hidden_state
        assert torch.equal(upper.run(0, 0, *given), whole)
        assert torch.equal(upper.run(0, 2, *given), whole)


# ----------------------------------------------------------------------------------------------------------- statistics


def test_interval_is_that_of_an_independent_bootstrap() -> None:
    draw = np.random.default_rng(8)
    count = draw.integers(3, 60, 25).astype(float)
    sums = count * (0.2 + 0.01 * count + draw.normal(0, 0.1, 25))  # longer documents change more, token by token
    low, high = interval(sums, count, seed=1)
    means = []
    for _ in range(20_000):
        chosen = draw.choice(25, 25)
        means.append(sums[chosen].sum() / count[chosen].sum())
    expected = np.percentile(means, [2.5, 97.5])
    # a percentile of 2,000 replicates has a standard error of some 3% of the interval's width
    assert np.abs(np.array([low, high]) - expected).max() < 0.1 * (expected[1] - expected[0])


def test_one_document_has_no_interval() -> None:
    assert np.isnan(interval(np.array([3.0]), np.array([10.0]), seed=0)).all()


@pytest.mark.parametrize(
    ("sums", "p"),
    [
        ([1.0, 2.0, 3.0, 4.0], 1 / 16),
        ([1.0, 2.0, 3.0, -0.5], 2 / 16),
        ([-1.0, -2.0, -3.0, -4.0], 1.0),
        ([0.0, 0.0, 0.0], 1.0),
        ([5.0], 1 / 2),
    ],
)
def test_p_is_the_share_of_signs_whose_sum_is_as_large(sums: list[float], p: float) -> None:
    flipped = [
        sum(s * x for s, x in zip(signs, sums, strict=True)) for signs in itertools.product([1, -1], repeat=len(sums))
    ]
    assert np.mean([total >= sum(sums) for total in flipped]) == p  # all of them
    assert sign_flip_p(np.array(sums), seed=2) == pytest.approx(p, abs=4 * 0.5 / 100)  # 10,000 drawn: 4 standard errors


def test_p_is_never_zero() -> None:
    assert sign_flip_p(np.full(40, 1.0), seed=0) == 1 / 10_001


def test_seed_decides_what_is_resampled() -> None:
    sums = np.random.default_rng(3).normal(0.1, 1.0, 25)
    for draw in (lambda seed: sign_flip_p(sums, seed), lambda seed: interval(sums, np.ones(25), seed)):
        assert draw(1) == draw(1) != draw(3)


def test_interval_and_p_are_by_document(gpt2: GPT2LMHeadModel, gpt2_tokenizer: PreTrainedTokenizerFast) -> None:
    given = batches()
    found = ablate_heads(loaded(gpt2, gpt2_tokenizer), given, {(1, 1): "text"}, seed=5).effects[0]
    sums, count = np.zeros(3), np.zeros(3)
    for ids, document in rows_of(given):
        row = [alone(ids)]
        sums[document] += float((next_token_losses(without(gpt2, 1, 1), row) - next_token_losses(gpt2, row)).sum())
        count[document] += len(ids) - 1
    assert (found.low, found.high) == pytest.approx(interval(sums, count, seed=5), abs=1e-9)
    assert found.p == sign_flip_p(sums, seed=5)


# --------------------------------------------------------------------------------------------------------------- sample


def documents(*lengths: Sequence[int]) -> list[Batch]:
    """Documents of inputs of so many ordinary tokens, each input filled with a number of its own, shortest first."""
    inputs = [(length, document) for document, own in enumerate(lengths) for length in own]
    numbered = sorted(enumerate(inputs), key=lambda one: one[1][0])
    return [
        Batch(
            torch.full((1, length + 1), number),
            torch.ones(1, length + 1, dtype=torch.bool),
            torch.tensor([[True] + [False] * length]),
            torch.tensor([document]),
            input_index=torch.tensor([number]),
        )
        for number, (length, document) in numbered
    ]


@pytest.mark.parametrize(
    ("lengths", "most", "chosen"),
    [
        ([[5, 3], [4], [6]], 100, [0, 1, 2, 3]),
        ([[5, 3], [4], [6]], 12, [0, 1, 2]),  # the first documents
        ([[5, 3], [4], [6]], 11, [0, 1]),
        ([[50], [4]], 10, [0]),  # one input is always there
        ([[150, 60, 90], [120, 110], [10]], 1000, [0, 1, 3, 4, 5, 2]),  # what goes beyond 200 tokens comes later
        ([[150, 60, 90], [120, 110], [10]], 460, [0, 1, 3, 4, 5]),
    ],
)
def test_sample_takes_the_first_documents_and_of_long_ones_a_share(
    lengths: list[list[int]], most: int, chosen: list[int]
) -> None:
    found = sample(documents(*lengths), most=most)
    assert [int(item.ids[0]) for item in found] == chosen


def test_sample_has_enough_documents_to_tell_chance() -> None:
    found = sample(documents(*([[40] * 50] * 30)))
    assert len({item.document for item in found}) == 20
    assert sum(int(item.is_scored.sum()) for item in found) == 4000


# --------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ({}, "Name at least one head to take out"),
        ({(3, 0): "text"}, "The model has 3 layers of 4 heads, no L3H0"),
        ({(0, 0): "text", (0, 4): "text"}, "no L0H4"),
        ({(0, -1): "text"}, "no L0H-1"),
        ({(0, 0): "text", (0, 1): "love"}, "L0H1: the task is one of text, repeats, got 'love'"),
    ],
)
def test_heads_that_are_not_there_are_refused(
    gpt2: GPT2LMHeadModel, gpt2_tokenizer: PreTrainedTokenizerFast, heads: Any, message: str
) -> None:
    with pytest.raises(CorpusError, match=message):
        ablate_heads(loaded(gpt2, gpt2_tokenizer), batches(), heads)


def test_no_batches_are_refused(gpt2: GPT2LMHeadModel, gpt2_tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(CorpusError, match="holds no token to ask the model for"):
        ablate_heads(loaded(gpt2, gpt2_tokenizer), [], {(0, 0): "text"})


def test_inputs_of_one_token_are_refused(gpt2: GPT2LMHeadModel, gpt2_tokenizer: PreTrainedTokenizerFast) -> None:
    one = torch.ones(2, 1, dtype=torch.bool)
    lonely = Batch(torch.full((2, 1), 9), one, ~one, torch.arange(2))
    with pytest.raises(CorpusError, match="is a single token, so no next one can be asked for"):
        ablate_heads(loaded(gpt2, gpt2_tokenizer), [lonely], {(0, 0): "text"})


def test_encoder_is_not_asked_about_repeats(bert: BertForMaskedLM, bert_tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(UnsupportedModel, match="sees the tokens that follow"):
        ablate_heads(loaded(bert, bert_tokenizer), batches(), {(0, 0): "repeats"})


def test_model_of_pictures_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="reads pixel_values and no text"):
        ablate_heads(loaded(tiny_model("vit"), None), batches(), {(0, 0): "text"})


def test_loss_that_is_no_number_is_refused(gpt2: GPT2LMHeadModel, gpt2_tokenizer: PreTrainedTokenizerFast) -> None:
    broken = copy.deepcopy(gpt2)
    with torch.no_grad():
        broken.transformer.ln_f.weight.fill_(float("nan"))
    with pytest.raises(HeadlensError, match="not finite"):
        ablate_heads(loaded(broken, gpt2_tokenizer), batches(), {(0, 0): "text"})


def test_progress_is_told(gpt2_tokenizer: PreTrainedTokenizerFast) -> None:
    planted = planted_gpt2()
    given = encode_texts(["baba bebe bibi", "bobo bubu"], planted.tokenizer, max_length=100).batches
    told = list[str]()
    heads: dict[tuple[int, int], Any] = {(0, 0): "text", (1, 3): "repeats", (0, 1): "text"}
    ablate_heads(loaded(planted.model, gpt2_tokenizer), given, heads, say=told.append)
    assert told == [
        "taking heads out, 1 of 2",
        "taking heads out, 2 of 2",
        "taking heads out, 1 of 1 on repeated tokens",
    ]
