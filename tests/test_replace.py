"""Layers of torch and of transformers, read and replaced: equal to the originals, and six bugs that would show.

Weights have std 0.2 and more: with transformers' own 0.02 attention is nearly uniform and wrong scores pass unseen.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from headlens import attention
from headlens.attention import MultiHeadAttention
from headlens.errors import InvalidAttention, UnsupportedModel
from headlens.replace import record_calls, replace_attention

SIZES: dict[str, Any] = {"hidden_size": 48, "num_hidden_layers": 2, "intermediate_size": 32, "vocab_size": 50}
GPT2: dict[str, Any] = {"n_embd": 48, "n_head": 6, "n_layer": 2, "vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2}
BERT, GROUPED = {**SIZES, "num_attention_heads": 6}, {**SIZES, "num_attention_heads": 4, "num_key_value_heads": 2}
CONFIGS = {
    "bert": transformers.BertConfig(**BERT),
    "gpt2": transformers.GPT2Config(**GPT2),
    "gpt2 by layer": transformers.GPT2Config(**GPT2, scale_attn_by_inverse_layer_idx=True),
    "gpt2 unscaled": transformers.GPT2Config(**GPT2, scale_attn_weights=False),
    "gpt2 upcast": transformers.GPT2Config(**GPT2, reorder_and_upcast_attn=True),
    "llama": transformers.LlamaConfig(**GROUPED, head_dim=16, attention_bias=True),
    "bert decoder": transformers.BertConfig(**BERT, is_decoder=True),
    "roberta": transformers.RobertaConfig(**BERT, pad_token_id=0),
    "xlm-roberta": transformers.XLMRobertaConfig(**BERT, pad_token_id=0),
    "camembert": transformers.CamembertConfig(**BERT, pad_token_id=0),
    "electra": transformers.ElectraConfig(**BERT, embedding_size=24),
    "mistral": transformers.MistralConfig(**GROUPED, sliding_window=5),
    "qwen2": transformers.Qwen2Config(**GROUPED),
}
DTYPES = FLOAT32, FLOAT64, BFLOAT16, FLOAT16 = torch.float32, torch.float64, torch.bfloat16, torch.float16
# Against sdpa, which sums in another order; for outputs below 8. Llama's eager softmax is float32 in float64 too.
TOLERANCES = {FLOAT32: 1e-5, FLOAT64: 1e-13, BFLOAT16: 5e-2, FLOAT16: 5e-3}


def randomize(module: nn.Module) -> Any:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator) * 0.2
            parameter.copy_(noise if parameter.dim() > 1 else parameter + noise)
    return module.eval()


def base(name: str, dtype: torch.dtype = FLOAT32) -> Any:
    return randomize(transformers.AutoModel.from_config(copy.deepcopy(CONFIGS[name]))).to(dtype)


def language_model(name: str) -> Any:
    kind = transformers.AutoModelForMaskedLM if name == "bert" else transformers.AutoModelForCausalLM
    return randomize(kind.from_config(copy.deepcopy(CONFIGS[name])))


def batch() -> dict[str, Tensor]:
    ids = torch.randint(3, 50, (3, 17), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "attention_mask": (torch.arange(17) < torch.tensor([17, 9, 4])[:, None]).long()}


def layers_of(model: Any, implementation: str) -> list[tuple[Tensor, Tensor]]:
    """Outputs of every layer at the real tokens: transformers' and MultiHeadAttention's from the same hidden states."""
    model.set_attn_implementation(implementation)
    real = batch()["attention_mask"].bool()
    pairs = []
    with torch.no_grad():
        # no cache: it lays keys out anew in memory, and with another layout a product may differ in its last bit
        for layer, call in enumerate(record_calls(model, **batch(), use_cache=False)):
            mha = MultiHeadAttention.from_huggingface(model, layer)
            ours = mha(call.hidden, call.hidden, call.hidden, real[:, None, None, :], rotary=call.rotary)
            pairs.append((call.output[real], ours[real]))
    return pairs


def all_equal(pairs: list[tuple[Tensor, Tensor]]) -> bool:
    return all(torch.equal(theirs, ours) for theirs, ours in pairs)


# -------------------------------------------------------------------------------------------------------- equality


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["bert", "gpt2", "gpt2 by layer", "gpt2 unscaled", "llama"])
def test_layers_are_those_of_eager_attention_bit_for_bit(name, dtype):
    assert all_equal(layers_of(base(name, dtype), "eager"))


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16, FLOAT16], ids=str)  # transformers refuses it in float64
def test_upcast_layers_too(dtype):
    name = "gpt2 upcast"
    assert all_equal(layers_of(base(name, dtype), "eager"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["bert", "gpt2", "gpt2 by layer", "llama"])
def test_layers_are_those_of_sdpa_up_to_rounding(name, dtype):
    tolerance = 1e-6 if (name, dtype) == ("llama", FLOAT64) else TOLERANCES[dtype]
    for theirs, ours in layers_of(base(name, dtype), "sdpa"):
        assert theirs.abs().max() < 8
        torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ["bert decoder", "roberta", "xlm-roberta", "camembert", "electra", "qwen2"])
def test_the_other_families_too(name):
    assert all_equal(layers_of(base(name), "eager"))


def test_a_sliding_window_comes_in_the_mask():
    model, position = base("mistral"), torch.arange(17)
    model.set_attn_implementation("eager")
    call = record_calls(model, input_ids=batch()["input_ids"], use_cache=False)[1]
    mha = MultiHeadAttention.from_huggingface(model, 1)
    window = position[:, None] - position < 5
    assert torch.equal(mha(call.hidden, call.hidden, call.hidden, window, rotary=call.rotary), call.output)
    assert not torch.equal(mha(call.hidden, call.hidden, call.hidden, rotary=call.rotary), call.output)


def plant(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    scores, probs, merge = attention.attention_scores, attention.attention_probs, attention.merge_heads
    change: dict[str, tuple[str, Any]] = {
        "uniform attention": ("attention_scores", lambda q, k, scaling: scores(q, k, scaling) * 0),
        "no 1/sqrt(d)": ("attention_scores", lambda q, k, scaling: scores(q, k, 1.0)),
        "q and k swapped": ("attention_scores", lambda q, k, scaling: scores(k, q, scaling)),
        "mask dropped": ("attention_probs", lambda scores, mask, dtype: probs(scores, None, dtype)),
        "heads rotated": ("merge_heads", lambda context: merge(context.roll(1, dims=1))),
        "kv tiled": ("repeat_kv", lambda x, groups: x.repeat(1, groups, 1, 1)),
    }
    monkeypatch.setattr(attention, *change[bug])


BUGS = ["uniform attention", "no 1/sqrt(d)", "q and k swapped", "mask dropped", "heads rotated"]


@pytest.mark.parametrize(
    ("name", "bug"), [("llama", "kv tiled"), *((name, bug) for name in ("bert", "gpt2", "llama") for bug in BUGS)]
)
def test_each_planted_bug_is_caught(monkeypatch, name, bug):
    model = base(name)
    assert all_equal(layers_of(model, "eager"))
    plant(monkeypatch, bug)
    for theirs, ours in layers_of(model, "eager"):
        assert (theirs - ours).abs().max() > 0.1  # beyond every tolerance that is used here


# ------------------------------------------------------------------------------------------------------------ torch


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 10, "vdim": 14}], ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(FLOAT32, 1e-5), (FLOAT64, 1e-13)], ids=str)
def test_torchs_layer(batch_first, options, dtype, tolerance):
    theirs = randomize(nn.MultiheadAttention(24, 6, batch_first=batch_first, **options)).to(dtype)
    query = torch.randn(3, 5, 24, dtype=dtype)
    key, value = torch.randn(3, 7, theirs.kdim, dtype=dtype), torch.randn(3, 7, theirs.vdim, dtype=dtype)
    real = torch.arange(7) < torch.tensor([7, 4, 2])[:, None]
    inputs = (
        (query, key, value)
        if batch_first
        else (query.mT.permute(2, 0, 1), key.mT.permute(2, 0, 1), value.mT.permute(2, 0, 1))
    )
    expected, weights = theirs(*inputs, key_padding_mask=~real, average_attn_weights=False)
    trace = MultiHeadAttention.from_torch(theirs).explain(query, key, value, real[:, None, None, :])
    torch.testing.assert_close(
        trace.output, expected if batch_first else expected.transpose(0, 1), rtol=0, atol=tolerance
    )
    torch.testing.assert_close(trace.probs, weights, rtol=0, atol=tolerance)


def test_torchs_weights_are_copied_and_its_mode_kept():
    theirs = nn.MultiheadAttention(24, 6, dropout=0.25)
    assert not MultiHeadAttention.from_torch(copy.deepcopy(theirs).eval()).training
    theirs.out_proj.weight.requires_grad_(False)
    ours = MultiHeadAttention.from_torch(theirs)
    assert ours.training
    assert ours.dropout == 0.25
    assert not ours.o_proj.weight.requires_grad
    assert ours.q_proj.weight.requires_grad
    theirs.in_proj_weight.data.zero_()
    assert ours.q_proj.weight.abs().max() > 0


@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_torchs_keys_that_are_no_tokens_are_refused(option):
    with pytest.raises(InvalidAttention, match="attends to a key that is no token"):
        MultiHeadAttention.from_torch(nn.MultiheadAttention(24, 6, **{option: True}))


@pytest.mark.parametrize("is_training", [False, True])
def test_modes_are_kept(is_training):
    for name in ("bert", "gpt2", "llama"):
        model = base(name).train(is_training)
        replace_attention(model)
        assert {module.training for module in model.modules()} == {is_training}


def test_gpt2s_weights_stay_stored_by_columns():
    mha = MultiHeadAttention.from_huggingface(base("gpt2"), 0)  # with another layout a product may round differently
    assert all(p.weight.T.is_contiguous() for p in (mha.q_proj, mha.k_proj, mha.v_proj, mha.o_proj))


def test_reading_draws_no_random_numbers():
    model, before = base("llama"), torch.get_rng_state()
    MultiHeadAttention.from_huggingface(model, 0)
    MultiHeadAttention.from_torch(nn.MultiheadAttention(24, 6, device="meta"))
    replace_attention(model)
    assert torch.equal(torch.get_rng_state(), before)


# --------------------------------------------------------------------------------------------------- replaced models


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_replaced_model_gives_the_same_outputs(name, is_padded, implementation):
    theirs, inputs = base(name), batch() if is_padded else {"input_ids": batch()["input_ids"]}
    ours = copy.deepcopy(theirs)
    replace_attention(ours)
    real = batch()["attention_mask"].bool() if is_padded else torch.ones(3, 17, dtype=torch.bool)
    for model in (theirs, ours):
        model.set_attn_implementation(implementation)
    with torch.no_grad():
        expected, found = (model(**inputs).last_hidden_state[real] for model in (theirs, ours))
    if implementation == "eager":
        assert torch.equal(found, expected)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def own_layout(name: str, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients by the original's names and shapes, from those of a replaced model."""
    if name == "gpt2":
        parts = {"q_proj": "c_attn", "k_proj": "c_attn", "v_proj": "c_attn", "o_proj": "c_proj"}
    elif name == "bert":
        parts = {"q_proj": "self.query", "k_proj": "self.key", "v_proj": "self.value", "o_proj": "output.dense"}
    else:
        parts = {part: part for part in ("q_proj", "k_proj", "v_proj", "o_proj")}
    found: dict[str, list[Tensor]] = {}
    for path, gradient in gradients.items():
        before, is_replaced, after = path.partition("mha.")
        part, _, kind = after.partition(".")
        own = f"{before}{parts[part]}.{kind}" if is_replaced else path
        is_transposed = is_replaced and name == "gpt2" and kind == "weight"
        found.setdefault(own, []).append(gradient.T if is_transposed else gradient)
    return {path: torch.cat(pieces, dim=-1) if len(pieces) > 1 else pieces[0] for path, pieces in found.items()}


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_a_replaced_model_gives_the_same_gradients(name):
    theirs, inputs = language_model(name).double(), batch()
    ours = copy.deepcopy(theirs)
    replace_attention(ours)
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    losses = [model(**inputs, labels=labels).loss for model in (theirs, ours)]
    for loss in losses:
        loss.backward()
    expected = {path: p.grad for path, p in theirs.named_parameters() if p.grad is not None}
    found = own_layout(name, {path: p.grad for path, p in ours.named_parameters() if p.grad is not None})
    assert expected.keys() == found.keys()
    # Llama computes its softmax in float32 in eager code, which we follow, and in float64 under sdpa
    tolerance = 1e-6 if name == "llama" else 1e-10
    for path, gradient in expected.items():
        torch.testing.assert_close(found[path], gradient, rtol=0, atol=tolerance, msg=path)


@pytest.mark.parametrize(("implementation", "is_padded"), [("eager", True), ("sdpa", True), ("sdpa", False)])
@pytest.mark.parametrize(
    ("name", "cache"),
    [("bert decoder", "dynamic")]  # it has no static one
    + [(name, cache) for name in ("gpt2", "llama", "mistral", "qwen2") for cache in ("dynamic", "static")],
)
def test_a_replaced_model_generates_the_same_with_a_cache(name, cache, implementation, is_padded):
    theirs, inputs = language_model(name), batch()
    ours = copy.deepcopy(theirs)
    replace_attention(ours)
    # without padding sdpa is given no mask at all, for the prompt in a static cache too
    inputs["attention_mask"] = inputs["attention_mask"].flip(1) if is_padded else torch.ones(3, 17, dtype=torch.long)
    options = {
        "max_new_tokens": 6,
        "min_new_tokens": 6,
        "do_sample": False,
        "pad_token_id": 0,
        "cache_implementation": cache,
    }
    found = []
    for model in (theirs, ours):
        model.set_attn_implementation(implementation)
        out = model.generate(**inputs, **options, output_logits=True, return_dict_in_generate=True)
        found.append((out.sequences, torch.stack(out.logits)))
    assert torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[1][1], found[0][1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "electra"])
def test_a_replaced_model_returns_its_attentions(name):
    theirs = base(name)
    ours = copy.deepcopy(theirs)
    replace_attention(ours)
    for model in (theirs, ours):
        model.set_attn_implementation("eager")
    expected, found = (model(**batch(), output_attentions=True).attentions for model in (theirs, ours))
    assert len(found) == len(expected) == 2
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_replaced_model_copies_and_trains():
    model = language_model("gpt2")
    replace_attention(model)
    twin = copy.deepcopy(model)
    assert torch.equal(twin(**batch()).logits, model(**batch()).logits)
    before = twin(**batch(), labels=batch()["input_ids"]).loss
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        twin(**batch(), labels=batch()["input_ids"]).loss.backward()
        optimizer.step()
    assert twin(**batch(), labels=batch()["input_ids"]).loss < before
    assert not torch.equal(twin.transformer.h[0].attn.mha.q_proj.weight, model.transformer.h[0].attn.mha.q_proj.weight)


# --------------------------------------------------------------------------------------------------------- refusals


def test_a_layer_that_does_not_exist():
    for layer in (2, -1):
        with pytest.raises(InvalidAttention, match=f"Layer {layer} does not exist: the model has 2, from 0 to 1"):
            MultiHeadAttention.from_huggingface(base("bert"), layer)


def test_another_family_is_named_with_the_known_ones():
    model = transformers.AutoModel.from_config(transformers.OPTConfig(**BERT, ffn_dim=32, word_embed_proj_dim=48))
    for act in (replace_attention, lambda model: MultiHeadAttention.from_huggingface(model, 0)):
        with pytest.raises(
            UnsupportedModel, match=r"'opt' .* \(known: bert, roberta, .* gpt2, llama, mistral, qwen2\)"
        ):
            act(model)


def test_cross_attention_is_refused_but_self_attention_beside_it_is_read():
    model = randomize(transformers.GPT2Model(transformers.GPT2Config(**GPT2, add_cross_attention=True)))
    with pytest.raises(UnsupportedModel, match="cross-attention"):
        replace_attention(model)
    assert torch.equal(MultiHeadAttention.from_huggingface(model, 1).o_proj.weight, model.h[1].attn.c_proj.weight.T)


def test_replacing_twice_is_refused():
    model = base("llama")
    replace_attention(model)
    with pytest.raises(UnsupportedModel, match="has been replaced or changed"):
        replace_attention(model)


def test_a_changed_layer_is_refused_and_the_model_left_alone():
    model = base("gpt2")
    model.h[1].attn.c_attn = nn.Sequential(model.h[1].attn.c_attn)
    before = model(**batch()).last_hidden_state
    with pytest.raises(UnsupportedModel, match="c_attn is a Sequential, not a plain linear layer"):
        replace_attention(model)
    assert torch.equal(model(**batch()).last_hidden_state, before)
    model.h[0].attn.q_norm = nn.Identity()
    with pytest.raises(
        UnsupportedModel, match=r"a GPT2Attention of attn_dropout, c_attn, c_proj, q_norm, resid_dropout"
    ):
        MultiHeadAttention.from_huggingface(model, 0)


def test_weights_that_are_not_in_memory_are_refused():
    with torch.device("meta"):
        model = transformers.LlamaModel(CONFIGS["llama"])
    with pytest.raises(UnsupportedModel, match="q_proj are not in memory"):
        MultiHeadAttention.from_huggingface(model, 0)


def test_recorders_on_the_old_layers_are_refused():
    model = base("bert")
    model(**batch(), output_hidden_states=True)
    with pytest.raises(UnsupportedModel, match="before the first such call"):
        replace_attention(model)


def test_masks_of_flash_and_flex_attention_are_refused():
    model = base("llama")
    replace_attention(model)
    for name in ("flash_attention_2", "flex_attention"):
        model.config._attn_implementation_internal = name
        with pytest.raises(UnsupportedModel, match=f"{name}' cannot be read"):
            model.layers[0].self_attn(torch.ones(1, 3, 48), position_embeddings=(torch.ones(1, 3, 16),) * 2)


@pytest.mark.parametrize(("name", "layer"), [("bert", "encoder.layer.0.attention"), ("gpt2", "h.0.attn")])
def test_what_a_replaced_layer_does_not_know_is_refused(name, layer):
    model = base(name)
    replace_attention(model)
    with pytest.raises(UnsupportedModel, match="what to do with encoder_hidden_states, softcap"):
        model.get_submodule(layer)(torch.ones(1, 3, 48), encoder_hidden_states=torch.ones(1, 3, 48), softcap=30.0)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_loss_over_all_tokens_of_several_batches_is_that_of_the_original(name):
    """Trainer tells a model by how many tokens it will divide, and GPT-2 hands that down to its layers."""
    original = language_model(name)
    replaced = copy.deepcopy(original)
    replace_attention(replaced)
    ids = torch.randint(3, 50, (2, 9), generator=torch.Generator().manual_seed(0))
    losses = [model(input_ids=ids, labels=ids, num_items_in_batch=29).loss for model in (original, replaced)]
    alone = original(input_ids=ids, labels=ids).loss
    assert torch.allclose(losses[0], losses[1], rtol=0, atol=1e-5)
    assert torch.allclose(losses[0], alone * 16 / 29, rtol=1e-5)  # 2 x 8 tokens are predicted
