"""Tiny models and inputs for tests: of this project and of plug-in authors. Nothing here needs a network.

At the weights a model is born with, attention is nearly uniform, and an implementation that forgets a mask, a scale or
a head passes. The models of `tiny_model` draw every weight widely, biases and norms included; those of `planted_gpt2`
and `planted_bert` have heads that do what is written down.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import AutoConfig, AutoModel, PreTrainedModel

from headlens.errors import InvalidAttention, UnsupportedModel
from headlens.records import Stack
from headlens.testing.planted import Planted, planted_bert, planted_gpt2

__all__ = [
    "FAMILIES",
    "LENGTHS",
    "VOCAB",
    "Planted",
    "draw",
    "padded_inputs",
    "planted_bert",
    "planted_gpt2",
    "slow_attentions",
    "tiny_model",
]

VOCAB = 99
LENGTHS = (12, 7, 4)  # of the sentences of padded_inputs


def tiny_model(
    family: str,
    *,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    std: float = 0.3,
    layers: int = 3,
    heads: int = 4,
    **config_overrides: Any,
) -> PreTrainedModel:
    """A base model (no vocabulary head) of a family, in eval mode, with all weights drawn from N(0, std).

    The scales of norms are drawn around the value they are born with. The draw is the same on every machine and in
    every dtype (up to its rounding), and leaves torch's global random state alone.

    Parameters
    ----------
    family
        One of FAMILIES. Grouped families get `heads // 2` key/value heads; sliding windows are 5 tokens.
    config_overrides
        Entries of the family's own config, by the names that the config class itself uses.

    Raises
    ------
    UnsupportedModel
        A family that is not in FAMILIES, or an override that its config does not have.
    """
    if family not in FAMILIES:
        raise UnsupportedModel(f"There is no tiny model of {family!r}; there are: {', '.join(FAMILIES)}.")
    model_type = family.replace("deberta_v2", "deberta-v2")
    unknown = sorted(set(config_overrides) - set(AutoConfig.for_model(model_type).to_dict()))
    if unknown:
        raise UnsupportedModel(f"The config of {family!r} has no entry of the name {', '.join(map(repr, unknown))}.")
    entries = {**FAMILIES[family](layers, heads), **config_overrides}
    with torch.random.fork_rng(devices=[]):
        model = AutoModel.from_config(AutoConfig.for_model(model_type, **entries))
    _draw_weights(model.to(dtype), seed, std)
    return model.eval()


def padded_inputs(vocab: int = VOCAB, side: Literal["left", "right"] = "right") -> dict[str, Tensor]:
    """`input_ids` and `attention_mask` [batch, token] of three sentences of 12, 7 and 4 tokens.

    Padding has id 0, real tokens have ids from 5 on, so that no family takes one for a special token.
    """
    generator = torch.Generator().manual_seed(1)
    ids = torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(LENGTHS):
        real = {"right": slice(0, length), "left": slice(-length, None)}[side]
        ids[row, real] = torch.randint(5, vocab, (length,), generator=generator)
        mask[row, real] = 1
    return {"input_ids": ids, "attention_mask": mask}


@torch.no_grad()
def slow_attentions(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> dict[Stack, list[list[Tensor]]]:
    """The patterns that transformers itself reports, `result[stack][layer][sentence]` of shape [head, query, key].

    The reference for what a capture must give: eager attention, `output_attentions=True`, one sentence at a time
    without its padding. A model that never looks ahead is the stack "decoder", another one "encoder"; an
    encoder-decoder has "encoder", "decoder" and "cross". The model is copied first: asking for attentions leaves
    transformers' hooks on it for good.

    Parameters
    ----------
    inputs
        What the model is called with: `input_ids` with `attention_mask`, `decoder_input_ids` with
        `decoder_attention_mask`, or `pixel_values`.

    Raises
    ------
    UnsupportedModel
        A family that transformers cannot switch to eager attention.
    """
    reference = copy.deepcopy(model)
    for part in reference.modules():
        if isinstance(part, PreTrainedModel):  # in transformers 5.17 the switch does not reach the stacks of T5
            part.set_attn_implementation("eager")
    if reference.config._attn_implementation != "eager":
        raise UnsupportedModel(
            f"{type(model).__name__} cannot be switched to eager attention, so it reports no patterns."
        )
    count = next(iter(inputs.values())).shape[0]
    outputs = [reference(**_sentence(inputs, row), output_attentions=True) for row in range(count)]
    names: dict[Stack, str] = {"cross": "cross_attentions"}
    if model.config.is_encoder_decoder:
        names |= {"encoder": "encoder_attentions", "decoder": "decoder_attentions"}
    else:
        names["decoder" if _never_looks_ahead(outputs[0].attentions) else "encoder"] = "attentions"
    found: dict[Stack, list[list[Tensor]]] = {}
    for stack, name in names.items():
        layers = zip(*(output.get(name) or () for output in outputs), strict=True)
        found[stack] = [[pattern[0] for pattern in layer] for layer in layers]
    return {stack: patterns for stack, patterns in found.items() if patterns}


def draw(rows: Sequence[str]) -> Float[Tensor, "query key"]:
    """A matrix from a drawing: `["1 . .", "1 . .", ". 1 ."]` is a head that attends to the previous token. A dot is 0.

    Raises
    ------
    InvalidAttention
        Rows of different lengths, or something that is no number.
    """
    cells = [row.split() for row in rows]
    if len({len(row) for row in cells}) != 1:
        raise InvalidAttention(f"The rows of a drawing must be of one length, got {[len(row) for row in cells]}.")
    try:
        return torch.tensor(
            [[0.0 if cell == "." else float(cell) for cell in row] for row in cells], dtype=torch.float64
        )
    except ValueError as error:
        raise InvalidAttention(f"A drawing is made of numbers and dots: {error}.") from None


# -------------------------------------------------------------------------------------------------- configs by family

# Special tokens have ids inside the small vocabulary, or transformers warns; 0 pads everywhere, as in padded_inputs.
_TEXT = {"vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_WINDOW = 5  # shorter than the longest sentence, so that a forgotten window shows


def _bert(layers: int, heads: int, **more: Any) -> dict[str, Any]:
    size = {"hidden_size": 8 * heads, "intermediate_size": 12 * heads, "max_position_embeddings": 80}
    return {**_TEXT, "num_hidden_layers": layers, "num_attention_heads": heads, **size, **more}


def _llama(layers: int, heads: int, **more: Any) -> dict[str, Any]:
    return _bert(layers, heads, num_key_value_heads=heads // 2 if heads % 2 == 0 else 1, **more)


def _distilbert(layers: int, heads: int) -> dict[str, Any]:
    return {
        **_TEXT,
        "n_layers": layers,
        "n_heads": heads,
        "dim": 8 * heads,
        "hidden_dim": 12 * heads,
        "max_position_embeddings": 80,
    }


def _modernbert(layers: int, heads: int) -> dict[str, Any]:
    ends = {"cls_token_id": 1, "sep_token_id": 2}
    return _bert(layers, heads, local_attention=2 * _WINDOW, **ends)


def _gpt2(layers: int, heads: int) -> dict[str, Any]:
    return {**_TEXT, "n_layer": layers, "n_head": heads, "n_embd": 8 * heads, "n_positions": 80}


def _opt(layers: int, heads: int) -> dict[str, Any]:
    entries = _bert(layers, heads, ffn_dim=12 * heads, word_embed_proj_dim=8 * heads)
    del entries["intermediate_size"]
    return entries


def _gemma2(layers: int, heads: int) -> dict[str, Any]:
    # a cap that the scores do reach, and heads that are narrower than hidden / heads
    caps = {"attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 6}
    return _llama(layers, heads, head_dim=6, sliding_window=_WINDOW, **caps)


def _t5(layers: int, heads: int) -> dict[str, Any]:
    depth = {"num_layers": layers, "num_decoder_layers": layers, "num_heads": heads}
    width = {"d_model": 8 * heads, "d_kv": 6, "d_ff": 12 * heads}
    buckets = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 16}
    return {**_TEXT, **depth, **width, **buckets, "decoder_start_token_id": 0}


def _bart(layers: int, heads: int) -> dict[str, Any]:
    depth = {"encoder_layers": layers, "decoder_layers": layers}
    width = {"encoder_attention_heads": heads, "decoder_attention_heads": heads, "d_model": 8 * heads}
    inner = {"encoder_ffn_dim": 12 * heads, "decoder_ffn_dim": 12 * heads, "max_position_embeddings": 80}
    return {**_TEXT, **depth, **width, **inner, "decoder_start_token_id": 2, "forced_eos_token_id": None}


def _vit(layers: int, heads: int) -> dict[str, Any]:
    depth = {"num_hidden_layers": layers, "num_attention_heads": heads}
    return {**depth, "hidden_size": 8 * heads, "intermediate_size": 12 * heads, "image_size": 16, "patch_size": 4}


def _deberta_v2(layers: int, heads: int) -> dict[str, Any]:
    return _bert(layers, heads, relative_attention=True, pos_att_type=["p2c", "c2p"])


def _gpt_neo(layers: int, heads: int) -> dict[str, Any]:
    kinds = [["global", "local"][layer % 2] for layer in range(layers)]
    depth = {"num_layers": layers, "num_heads": heads, "attention_types": [[kinds, 1]], "window_size": _WINDOW}
    return {**_TEXT, **depth, "hidden_size": 8 * heads, "max_position_embeddings": 80}


def _falcon(layers: int, heads: int) -> dict[str, Any]:
    entries = _bert(layers, heads)
    del entries["intermediate_size"]
    return entries


def _bloom(layers: int, heads: int) -> dict[str, Any]:
    return {**_TEXT, "n_layer": layers, "n_head": heads, "hidden_size": 8 * heads}


FAMILIES: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "bert": _bert,
    "roberta": _bert,
    "electra": lambda layers, heads: _bert(layers, heads, embedding_size=16),
    "distilbert": _distilbert,
    "albert": lambda layers, heads: _bert(layers, heads, embedding_size=16),
    "modernbert": _modernbert,
    "gpt2": _gpt2,
    "gpt_neox": _bert,
    "opt": _opt,
    "llama": _llama,
    "mistral": lambda layers, heads: _llama(layers, heads, sliding_window=_WINDOW),
    "qwen2": _llama,
    "qwen3": lambda layers, heads: _llama(layers, heads, head_dim=10),
    "gemma2": _gemma2,
    "t5": _t5,
    "bart": _bart,
    "vit": _vit,
    # attention in code of their own, outside transformers' interface: to be refused
    "deberta_v2": _deberta_v2,
    "gpt_neo": _gpt_neo,
    "falcon": _falcon,
    "bloom": _bloom,
}

# ------------------------------------------------------------------------------------------------------------ helpers


@torch.no_grad()
def _draw_weights(model: PreTrainedModel, seed: int, std: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _, weight in sorted(model.named_parameters()):
        # Gemma scales by 1 + weight and starts at 0, other norms start at 1: either way the scale is around 1
        centre = 1.0 if weight.dim() == 1 and bool((weight == 1).all()) else 0.0
        weight.copy_(centre + std * torch.randn(weight.shape, generator=generator, dtype=torch.float64))


def _sentence(inputs: Mapping[str, Tensor], row: int) -> dict[str, Tensor]:
    """The inputs of one row [1, token], without the columns that its mask leaves out."""
    one = {}
    for name, values in inputs.items():
        prefix = "decoder_" if name.startswith("decoder_") else ""
        mask = inputs.get(f"{prefix}attention_mask")
        one[name] = values[row : row + 1] if mask is None else values[row : row + 1, mask[row].bool()]
    return one


def _never_looks_ahead(attentions: Sequence[Tensor]) -> bool:
    return all(bool((pattern.triu(1) == 0).all()) for pattern in attentions)
