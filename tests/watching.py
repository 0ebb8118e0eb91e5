"""Models, inputs and runs under capture that several tests share."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.arch import attention_sites, is_transposed, output_projection
from headlens.capture import capture
from headlens.records import LayerAttention, Stack
from headlens.replace import replace_attention
from headlens.testing import FAMILIES, padded_inputs, tiny_model

capture_file = sys.modules["headlens.capture"]  # as a name of the package it is the function

REFUSED = ("deberta_v2", "gpt_neo", "falcon", "bloom")
WATCHED = tuple(family for family in FAMILIES if family not in REFUSED)
CAUSAL = ("gpt2", "gpt_neox", "opt", "llama", "mistral", "qwen2", "qwen3", "gemma2")
TWO_STACKS = ("t5", "bart")
GROUPED = ("llama", "mistral", "qwen2", "qwen3", "gemma2")
# Their files take the softmax in float32 in float64, too: no more exact than that, and rows of padding are NaN in
# transformers' own eager attention (its lowest float64 is -inf in float32) where they are the queries of a window.
FLOAT32_SOFTMAX = ("modernbert", "gpt_neox", "opt", "vit", *GROUPED)
NAN_WHEN_PADDED = ("modernbert", "mistral", "gemma2")
WHOLE = ("gemma2", "t5")  # softcap, position_bias: nothing but the model's own function knows them
ROW_BYTES = 3 * 4 * 12 * 8  # of one query row of probabilities: batch, heads, keys, float64


@lru_cache
def model_of(family: str, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    """Shared between tests, so never to be changed."""
    return tiny_model(family, dtype=dtype)


def inputs_of(family: str, dtype: torch.dtype = torch.float64, *, padded: bool = True) -> dict[str, Tensor]:
    if family == "vit":
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(2)).to(dtype)}
    inputs = padded_inputs()
    if family in TWO_STACKS:  # other lengths in the decoder than in the encoder
        inputs |= {f"decoder_{name}": values.flip(0) for name, values in inputs.items()}
    if not padded:
        return {name: values % 40 + 5 for name, values in inputs.items() if name.endswith("ids")}
    return inputs


def queries_of(inputs: Mapping[str, Tensor], stack: Stack) -> Tensor | None:
    """The real tokens that a stack's rows stand for."""
    decoding = stack != "encoder" and "decoder_input_ids" in inputs
    mask = inputs.get("decoder_attention_mask" if decoding else "attention_mask")
    return None if mask is None else mask.bool()


def watched(model: nn.Module, inputs: Mapping[str, Tensor], **options: Any) -> tuple[list[LayerAttention], Tensor]:
    seen: list[LayerAttention] = []
    with torch.no_grad(), capture(model, seen.append, **options):
        output = model(**inputs)
    return seen, output[0]


@lru_cache
def eager_twin(model: PreTrainedModel) -> PreTrainedModel:
    twin = copy.deepcopy(model)
    twin.set_attn_implementation("eager")
    return twin


@torch.no_grad()
def eager_output(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Tensor:
    return eager_twin(model)(**inputs)[0]


def drawn(model: nn.Module, std: float = 0.3) -> Any:
    """Another model than those of tiny_model, with weights as wide, in float64."""
    random = torch.Generator().manual_seed(3)
    for weight in model.double().parameters():
        centre = float(weight.dim() == 1 and bool((weight == 1).all()))
        weight.data = centre + std * torch.randn(weight.shape, generator=random, dtype=weight.dtype)
    return model.eval()


def real_part(values: Tensor, real: Tensor | None) -> Tensor:
    return values if real is None else values[real]


def assembled(slices: list[LayerAttention], like: LayerAttention) -> LayerAttention:
    """The slices of one layer put together; keys that a causal slice does not see are 0."""
    parts = [s for s in slices if (s.stack, s.layer) == (like.stack, like.layer)]
    parts.sort(key=lambda s: s.query_start)  # they may come in any order
    starts = [s.query_start for s in parts]
    assert starts == [sum(s.probs.shape[2] for s in parts[:i]) for i in range(len(parts))]
    keys = like.probs.shape[-1]
    assert all(s.k.shape[2] == s.v.shape[2] == s.probs.shape[-1] for s in parts)
    probs = torch.cat([nn.functional.pad(s.probs, (0, keys - s.probs.shape[-1])) for s in parts], dim=2)
    context = torch.cat([s.context for s in parts], dim=2)
    q = torch.cat([s.q for s in parts], dim=2)
    return LayerAttention(like.layer, q, like.k, like.v, probs, context, 0, like.stack, parts[0].is_causal)


def generating(family: str) -> PreTrainedModel:
    auto = hf.AutoModelForSeq2SeqLM if family in TWO_STACKS else hf.AutoModelForCausalLM
    return drawn(auto.from_config(copy.deepcopy(model_of(family).config)))


def replaced(family: str) -> PreTrainedModel:
    model = copy.deepcopy(model_of(family))
    replace_attention(model)
    return model


def is_untouched(model: nn.Module) -> bool:
    """No hook is left, no tap, and no config is on headlens's attention."""
    hooks = any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
    taps = any(m in capture_file._TAPS or getattr(m, "tap", None) for m in model.modules())
    configs: list[Any] = [m.config for m in model.modules() if hasattr(m, "config")]
    return not hooks and not taps and all(c._attn_implementation != capture_file.NAME for c in configs)


def gates_for(model: nn.Module, values: Callable[[int, int], Tensor]) -> dict[Stack, Tensor]:
    sites = attention_sites(model)
    return {stack: values(sum(s.stack == stack for s in sites), 4) for stack in sorted({s.stack for s in sites})}


@torch.no_grad()
def scale_heads(model: nn.Module, gates: Mapping[Stack, Tensor]) -> None:
    """The same by hand: the rows (or columns) of W_O that a head's output goes through."""
    done = set()
    for site in attention_sites(model):
        projection: Any = output_projection(model, site)
        if id(projection) in done:
            continue
        done.add(id(projection))
        weight: Any = projection.weight if is_transposed(projection) else projection.weight.T
        for head, part in enumerate(weight.chunk(4)):
            part.mul_(gates[site.stack][site.layer, head])


SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
IDS = {"vocab_size": 99, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT2_SIZE = {"vocab_size": 99, "n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 40, **IDS}


def _memory(**more: Any) -> dict[str, Tensor]:
    states = torch.randn(3, 15, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    return {"encoder_hidden_states": states, **more}


def _gpt_oss() -> hf.PreTrainedModel:
    grouped = {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 5}
    rotary = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    return hf.GptOssModel(
        hf.GptOssConfig(**SIZE, **IDS, **grouped, **rotary, num_local_experts=2, num_experts_per_tok=1)
    )


def _albert(**sizes: int) -> hf.PreTrainedModel:
    return hf.AlbertModel(hf.AlbertConfig(**{**SIZE, "num_hidden_layers": 4}, **IDS, embedding_size=16, **sizes))


# Less common models: what they bring beside the usual
VARIANTS: dict[str, Callable[[], PreTrainedModel]] = {
    "gpt2, scores scaled by layer": lambda: hf.GPT2Model(
        hf.GPT2Config(**GPT2_SIZE, scale_attn_by_inverse_layer_idx=True)
    ),
    "gpt2, scores in float32": lambda: hf.GPT2Model(hf.GPT2Config(**GPT2_SIZE, reorder_and_upcast_attn=True)),
    "gpt2 that reads an encoder": lambda: hf.GPT2Model(hf.GPT2Config(**GPT2_SIZE, add_cross_attention=True)),
    "bert that decodes": lambda: hf.BertModel(hf.BertConfig(**SIZE, **IDS, is_decoder=True)),
    "bert that reads an encoder": lambda: hf.BertModel(
        hf.BertConfig(**SIZE, **IDS, is_decoder=True, add_cross_attention=True)
    ),
    "gpt_bigcode, multi-query": lambda: hf.GPTBigCodeModel(hf.GPTBigCodeConfig(**GPT2_SIZE, multi_query=True)),
    "gpt_oss, sinks": _gpt_oss,
    "albert of two groups": lambda: _albert(num_hidden_groups=2),
    "albert of two layers a group": lambda: _albert(num_hidden_groups=2, inner_group_num=2),
    "llama that looks ahead": lambda: hf.LlamaModel(hf.LlamaConfig(**SIZE, **IDS, is_causal=False)),
    # its modules do not say whether they are causal, and their mask is missing where nothing is padded
    "splinter": lambda: hf.SplinterModel(hf.SplinterConfig(**SIZE, **IDS, question_token_id=3)),
    # its eager function cannot do without a mask
    "modernbert-decoder": lambda: hf.ModernBertDecoderModel(
        hf.ModernBertDecoderConfig(**SIZE, **IDS, cls_token_id=1, sep_token_id=2, local_attention=10)
    ),
}


ONLY_FLOAT32 = ("gpt2, scores in float32", "gpt_oss, sinks")  # transformers refuses float64


@lru_cache
def variant(name: str) -> PreTrainedModel:
    model = drawn(VARIANTS[name]())
    return model.float() if name in ONLY_FLOAT32 else model


def variant_inputs(name: str, *, padded: bool = True) -> dict[str, Tensor]:
    inputs = inputs_of("bert", padded=padded)
    if "reads an encoder" not in name:
        return inputs
    mask = torch.arange(15) < torch.tensor([[15], [9], [2]])
    return inputs | (_memory(encoder_attention_mask=mask.long()) if padded else _memory())
