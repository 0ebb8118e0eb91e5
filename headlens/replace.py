"""Others' attention as MultiHeadAttention: read a layer of torch or of transformers, or replace the layers of a model.

A replaced model runs the code of headlens/attention.py in every layer, behind the call that its family's own modules
take, and gives the same logits and gradients. So what attention.py says about attention is what the model computes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import EncoderDecoderCache
from transformers.pytorch_utils import Conv1D

from headlens.arch import Site, attention_sites, family_of, output_projection
from headlens.attention import MultiHeadAttention, Rotary, Weights, as_additive_mask, merge_heads
from headlens.errors import InvalidAttention, UnsupportedModel

# What transformers hands down to every layer without changing what attention computes; the last one is Trainer's
_HARMLESS = frozenset(
    {"position_ids", "cache_position", "use_cache", "output_attentions", "output_hidden_states", "num_items_in_batch"}
)
# Implementations whose masks are objects of their own, or that mask inside their kernels
_UNREADABLE = ("flash", "flex", "paged")


def replace_attention(model: nn.Module) -> None:
    """Put MultiHeadAttention in the place of every attention layer of a BERT-like, GPT-2 or Llama-style model.

    The model keeps its class, its calls, its key/value cache and `generate()`; `output_attentions=True` returns the
    probabilities under sdpa too. Its parameters get other names and, for GPT-2, other shapes (q, k and v apart): make
    the optimizer afterwards, and save the weights of the model as it was. Hooks on the old layers go with them.

    Raises
    ------
    UnsupportedModel
        Another family, a model with cross-attention, or a layer that has been changed or has lost all its heads. The
        model is then untouched.
    """
    family = _family_of(model)
    sites = attention_sites(model)
    if any(site.stack == "cross" for site in sites):
        raise UnsupportedModel("A model with cross-attention layers cannot be replaced; only self-attention can.")
    if any(getattr(module, "_output_capturing_hooks_installed", False) for module in model.modules()):
        raise UnsupportedModel(
            "This model has been asked for attentions or hidden states, so transformers' recorders sit on its old "
            "layers; call replace_attention before the first such call."
        )
    layers = [_read(family, model, site) for site in sites]
    for site, mha in zip(sites, layers, strict=True):
        path = site.name.rpartition(".")[0] if family.adapter is _BertAttention else site.name
        model.set_submodule(path, _adapted(family.adapter, site, mha, model.get_submodule(path)))


def read_huggingface(model: nn.Module, layer: int) -> MultiHeadAttention:
    """The self-attention of layer `layer` of a BERT-like, GPT-2 or Llama-style model, with copies of its weights."""
    family = _family_of(model)
    sites = [site for site in attention_sites(model) if site.stack != "cross"]
    if not 0 <= layer < len(sites):
        raise InvalidAttention(f"Layer {layer} does not exist: the model has {len(sites)}, from 0 to {len(sites) - 1}.")
    return _read(family, model, sites[layer])


def read_torch(module: nn.MultiheadAttention) -> MultiHeadAttention:
    """torch's own layer, with copies of its weights."""
    if module.bias_k is not None or module.add_zero_attn:
        raise InvalidAttention(
            "An nn.MultiheadAttention with add_bias_kv or add_zero_attn attends to a key that is no token, which "
            "MultiHeadAttention does not; build it without them."
        )
    if module.in_proj_weight is not None:
        weights: tuple[Tensor, ...] = module.in_proj_weight.chunk(3)
    else:
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    biases = (None, None, None) if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    q, k, v = zip(weights, biases, strict=True)
    out = (module.out_proj.weight, module.out_proj.bias)
    mha = _built(q, k, v, out, head_dim=module.head_dim, dropout=module.dropout)
    return mha.train(module.training)


@dataclass(frozen=True)
class LayerCall:
    """What went into one attention layer of a running model, and what came out of its output projection."""

    hidden: Float[Tensor, "batch token hidden"]
    rotary: Rotary | None
    output: Float[Tensor, "batch token hidden"]


def record_calls(model: nn.Module, **inputs: Any) -> list[LayerCall]:
    """Run `model(**inputs)` and tell what each attention layer was given and gave: what a layer is checked against."""
    sites = attention_sites(model)
    given: list[tuple[Tensor, Rotary | None]] = []
    outputs: list[Tensor] = []

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given.append((args[0] if args else kwargs["hidden_states"], kwargs.get("position_embeddings")))

    def after(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        outputs.append(output)

    with ExitStack() as hooks:
        for site in sites:
            hooks.callback(site.module.register_forward_pre_hook(before, with_kwargs=True).remove)
            hooks.callback(output_projection(model, site).register_forward_hook(after).remove)
        model(**inputs)
    return [LayerCall(hidden, rotary, output) for (hidden, rotary), output in zip(given, outputs, strict=True)]


@dataclass(frozen=True)
class Family:
    """Models that write their attention alike."""

    read: Callable[[Any, nn.Module], MultiHeadAttention]  # from the attention module and its output projection
    adapter: type[_Adapter]
    parts: frozenset[str]  # submodules of the attention; with another one it computes something else


def _read(family: Family, model: nn.Module, site: Site) -> MultiHeadAttention:
    if site.is_empty:
        raise UnsupportedModel(f"{site} has lost all its heads, and MultiHeadAttention has one at least.")
    found = {name for name, _ in site.module.named_children()}
    if found != family.parts or isinstance(site.module, MultiHeadAttention):
        raise UnsupportedModel(
            f"{site} is a {type(site.module).__name__} of {', '.join(sorted(found))}, not of "
            f"{', '.join(sorted(family.parts))}: it has been replaced or changed; take the model as it was loaded."
        )
    return family.read(site.module, output_projection(model, site)).train(site.module.training)


def _read_bert(attention: Any, projection: nn.Module) -> MultiHeadAttention:
    return _built(
        *(_weights(getattr(attention, name), name) for name in ("query", "key", "value")),
        _weights(projection, "output.dense"),
        head_dim=attention.attention_head_size,
        is_causal=attention.is_causal,
        dropout=attention.dropout.p,
        scaling=attention.scaling,
    )


def _read_gpt2(attention: Any, projection: nn.Module) -> MultiHeadAttention:
    weight, bias = _weights(attention.c_attn, "c_attn")
    assert bias is not None
    parts = [
        part.T.contiguous().T for part in weight.split(attention.split_size)
    ]  # stored by columns, as the whole was
    return _built(
        *zip(parts, bias.split(attention.split_size), strict=True),
        _weights(projection, "c_proj"),
        head_dim=attention.head_dim,
        is_causal=attention.is_causal,
        dropout=attention.attn_dropout.p,
        scaling=attention.scaling,
        scores_dtype=torch.float32 if attention.reorder_and_upcast_attn else None,
    )


def _read_llama(attention: Any, projection: nn.Module) -> MultiHeadAttention:
    return _built(
        *(_weights(getattr(attention, name), name) for name in ("q_proj", "k_proj", "v_proj")),
        _weights(projection, "o_proj"),
        head_dim=attention.head_dim,
        is_causal=attention.is_causal,
        dropout=attention.attention_dropout,
        scaling=attention.scaling,
        softmax_dtype=torch.float32,
    )


def _built(*weights: Weights, head_dim: int, **options: Any) -> MultiHeadAttention:
    """A layer around the weights of q, k, v and o. Heads are counted in them, so pruned layers are read right."""
    q, k, v, o = weights
    with torch.device("meta"):  # the weights are there, so none are drawn at random
        mha = MultiHeadAttention(
            q[0].shape[1],
            q[0].shape[0] // head_dim,
            k[0].shape[0] // head_dim,
            head_dim=head_dim,
            bias=q[1] is not None,
            out_bias=o[1] is not None,
            kdim=k[0].shape[1],
            vdim=v[0].shape[1],
            **options,
        )
    mha.set_weights(q, k, v, o)
    return mha


def _weights(projection: nn.Module, name: str) -> Weights:
    if type(projection) not in (nn.Linear, Conv1D):
        raise UnsupportedModel(
            f"{name} is a {type(projection).__name__}, not a plain linear layer: merge its adapters or load the model "
            f"unquantized."
        )
    weight, bias = projection.weight, projection.bias
    assert isinstance(weight, Tensor)
    assert bias is None or isinstance(bias, Tensor)
    if weight.is_meta:
        raise UnsupportedModel(
            f"The weights of {name} are not in memory: load the model without offloading it to disk."
        )
    return (weight.T if isinstance(projection, Conv1D) else weight), bias


class _Adapter(nn.Module):
    """One layer behind its family's call. It returns the output and the probabilities, as the family's module does."""

    def __init__(self, site: Site, mha: MultiHeadAttention, original: Any) -> None:
        nn.Module.__init__(self)  # not super(): next in line is the family's own class, which would build its weights
        self.mha = mha
        self.config: Any = site.module.config  # read at every call: the implementation may be switched
        self.layer_idx = site.module.layer_idx
        self.is_causal = mha.is_causal

    def attend(
        self, hidden_states: Tensor, attention_mask: Tensor | None, cache: Any, rotary: Rotary | None = None
    ) -> tuple[Tensor, Tensor]:
        q, k, v = self.mha.project(hidden_states, hidden_states, hidden_states, rotary)
        if cache is not None:
            own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
            k, v = own.update(k, v, self.layer_idx)
        _, probs, context = self.mha.attend(q, k, v, self._additive(attention_mask, q, k))
        return self.mha.o_proj(merge_heads(context)), probs

    def _additive(self, mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
        """The mask that transformers built for the implementation in force: None, 4-D bool or 4-D additive."""
        implementation = self.config._attn_implementation or ""
        if any(word in implementation for word in _UNREADABLE):
            raise UnsupportedModel(
                f"The masks of {implementation!r} cannot be read: call set_attn_implementation with sdpa or eager."
            )
        if mask is None and self.is_causal and q.shape[-2] > 1:
            # the kernel that is told of causality by no mask counts keys from the first; a static cache has room behind
            mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()[None, None]
        if mask is None or mask.is_floating_point():
            return mask
        return as_additive_mask(mask, q.dtype)


class _BertAttention(_Adapter):
    """In the place of BertAttention, which holds the attention (`self`) and its output projection and LayerNorm."""

    def __init__(self, site: Site, mha: MultiHeadAttention, original: Any) -> None:
        super().__init__(site, mha, original)
        self.output = original.output
        self.output.dense = nn.Identity()  # done in mha; what stays is dropout, residual and LayerNorm

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        cache: Any = None,
        past_key_values: Any = None,
        **others: object,
    ) -> tuple[Tensor, Tensor]:
        _refuse(encoder_hidden_states=encoder_hidden_states, **others)
        out, probs = self.attend(hidden_states, attention_mask, _given(cache, past_key_values))
        return self.output(out, hidden_states), probs


class _Gpt2Attention(_Adapter):
    def __init__(self, site: Site, mha: MultiHeadAttention, original: Any) -> None:
        super().__init__(site, mha, original)
        self.resid_dropout = original.resid_dropout

    def forward(
        self,
        hidden_states: Tensor,
        cache: Any = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **others: object,
    ) -> tuple[Tensor, Tensor]:
        _refuse(**others)
        out, probs = self.attend(hidden_states, attention_mask, _given(cache, past_key_values))
        return self.resid_dropout(out), probs


class _LlamaAttention(_Adapter):
    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: Rotary | None = None,
        attention_mask: Tensor | None = None,
        cache: Any = None,
        past_key_values: Any = None,
        **others: object,
    ) -> tuple[Tensor, Tensor]:
        _refuse(**others)
        return self.attend(hidden_states, attention_mask, _given(cache, past_key_values), position_embeddings)


def _adapted(adapter: type[_Adapter], site: Site, mha: MultiHeadAttention, original: nn.Module) -> nn.Module:
    # transformers records output_attentions from instances of the family's own class, so the adapter is one too
    both = type(f"Headlens{type(site.module).__name__}", (adapter, type(site.module)), {})
    return both(site, mha, original).train(original.training)


def _given(cache: Any, past_key_values: Any) -> Any:
    """transformers 5.24 renamed past_key_values to cache."""
    return past_key_values if cache is None else cache


def _refuse(**others: object) -> None:
    unknown = [name for name, value in others.items() if value is not None and name not in _HARMLESS]
    if unknown:
        raise UnsupportedModel(
            f"Replaced attention does not know what to do with {', '.join(sorted(unknown))}; leave it out."
        )


def _family_of(model: nn.Module) -> Family:
    name = family_of(model)
    if name not in FAMILIES:
        raise UnsupportedModel(f"How {name!r} lays out its attention is not known here (known: {', '.join(FAMILIES)}).")
    return FAMILIES[name]


_BERT = Family(_read_bert, _BertAttention, frozenset({"query", "key", "value", "dropout"}))
_GPT2 = Family(_read_gpt2, _Gpt2Attention, frozenset({"c_attn", "c_proj", "attn_dropout", "resid_dropout"}))
_LLAMA = Family(_read_llama, _LlamaAttention, frozenset({"q_proj", "k_proj", "v_proj", "o_proj"}))
FAMILIES = {
    **dict.fromkeys(["bert", "roberta", "xlm-roberta", "camembert", "electra"], _BERT),
    "gpt2": _GPT2,
    **dict.fromkeys(["llama", "mistral", "qwen2"], _LLAMA),
}
