"""What attention modules compute when they have other heads than their class expects: none at all, or shared keys.

This file is copied as it stands into checkpoints that are to load without headlens, before that of the shapes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache as remember
from types import FunctionType
from typing import Any

from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

Finish = Callable[[Any, Tensor, Tensor, "Tensor | None"], tuple[Any, ...]]


def forward_without_heads(
    attention: Any, finish: Finish, hidden_states: Tensor, *args: Any, **kwargs: Any
) -> tuple[Any, ...]:
    """What a layer without heads does in the place of its module's own forward."""
    batch, tokens = hidden_states.shape[:2]
    keys = _leave_length(attention, hidden_states, kwargs)
    is_eager = attention.config._attn_implementation == "eager"
    probs = hidden_states.new_zeros(batch, 0, tokens, keys) if is_eager else None
    return finish(attention, hidden_states, hidden_states.new_zeros(batch, tokens, 0), probs)


def _leave_length(attention: Any, hidden_states: Tensor, kwargs: dict[str, Any]) -> int:
    """Tell the key/value cache, where there is one, how many tokens came; returns how many it holds now."""
    names = ("cache", "past_key_values", "layer_past")
    cache = next((kwargs[name] for name in names if kwargs.get(name) is not None), None)
    if cache is None:
        return hidden_states.shape[1]
    cache = getattr(cache, "self_attention_cache", cache)
    trace = hidden_states.new_zeros(hidden_states.shape[0], 1, hidden_states.shape[1], 1)
    keys, _ = cache.update(trace, trace[..., :0], attention.layer_idx)
    return int(keys.shape[-2])


# -------------------------------------------------------------------------------------------- shared key/value heads


def share_keys(attention: Any, heads: int, kv_heads: int, forward: Callable[..., Any] | None) -> None:
    """Let a module of multi-head attention run grouped attention, or multi-head attention again, in place.

    Its class becomes one of its own class with another forward: `forward`, or, where that is None, the code of its own
    forward, which must take the number of key/value heads off the tensors. Every implementation that can repeat or
    share key/value heads by `num_key_value_groups` (sdpa, flash) does so; the eager function repeats them.
    """
    own: Any = getattr(type(attention), "class_with_own_keys", type(attention))
    if heads == kv_heads:
        attention.__class__ = own
        vars(attention).pop("num_key_value_groups", None)
        return
    attention.__class__ = sharing_class(own, forward)
    attention.num_key_value_groups = heads // kv_heads


@remember
def sharing_class(own: Any, forward: Callable[..., Any] | None) -> type[nn.Module]:
    """A subclass of an attention class whose query heads share key/value heads."""
    stock = inspect.unwrap(own.forward)
    repeats = repeating(stock.__globals__["eager_attention_forward"])
    entries = {
        "class_with_own_keys": own,
        "forward": with_eager(stock if forward is None else inspect.unwrap(forward), repeats),
        "__reduce_ex__": lambda self, protocol: (_empty_of, (own, forward), dict(vars(self))),
        "__module__": __name__,
    }
    upcast = getattr(own, "_upcast_and_reordered_attn", None)
    if upcast is not None:  # GPT-2's other eager attention, with keys and values in the same places
        entries["_upcast_and_reordered_attn"] = repeating(upcast)
    return type(f"Shared{own.__name__}", (own,), entries)


def repeating(attend: Callable[..., Any]) -> Callable[..., Any]:
    """The same attention function for fewer key/value heads than query heads: each is repeated for its neighbours."""

    def attend_with_repeated(
        module: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        share = query.shape[1] // key.shape[1]
        return attend(
            module, query, key.repeat_interleave(share, 1), value.repeat_interleave(share, 1), *args, **kwargs
        )

    return attend_with_repeated


def with_eager(forward: Any, eager: Callable[..., Any]) -> FunctionType:
    """A forward whose eager attention is another one; the code, and so its place in its file, stays the same."""
    names = {**forward.__globals__, "eager_attention_forward": eager}
    changed = FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
    changed.__kwdefaults__ = forward.__kwdefaults__
    return changed


def _empty_of(own: Any, forward: Callable[..., Any] | None) -> nn.Module:
    """What copies and pickles are filled into: a class that is made while running cannot be looked up by its name."""
    kind: Any = sharing_class(own, forward)
    made: nn.Module = kind.__new__(kind)
    return made


def eager_attention_forward(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """Stands for that of the module's own file, which `sharing_class` puts in its place."""
    raise NotImplementedError


def forward_of_opt(
    self: Any, hidden_states: Tensor, cache: Any = None, attention_mask: Tensor | None = None, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """OPT's own forward asks for as many key/value heads as query heads."""
    kwargs.pop("output_attentions", None)
    shape = (*hidden_states.shape[:-1], -1, self.head_dim)
    query = (self.q_proj(hidden_states) * self.scaling).view(shape).transpose(1, 2)
    key = self.k_proj(hidden_states).view(shape).transpose(1, 2)
    value = self.v_proj(hidden_states).view(shape).transpose(1, 2)
    if cache is not None:
        key, value = cache.update(key, value, self.layer_idx)
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
    dropout = self.dropout if self.training else 0.0
    context, probs = attend(self, query, key, value, attention_mask, dropout=dropout, scaling=1.0, **kwargs)
    return self.out_proj(context.reshape(*hidden_states.shape[:-1], -1).contiguous()), probs


def forward_of_neox(
    self: Any,
    hidden_states: Tensor,
    attention_mask: Tensor | None,
    layer_past: Any = None,
    position_embeddings: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """GPT-NeoX's own forward asks for a query, a key and a value of every head; here come all queries, keys, values."""
    from transformers.models.gpt_neox.modeling_gpt_neox import apply_rotary_pos_emb  # long to import, for this family

    fused = self.query_key_value(hidden_states)
    fused = fused.view(*hidden_states.shape[:-1], -1, self.head_size).transpose(1, 2)
    kv_heads = fused.shape[1] // (self.num_key_value_groups + 2)
    query, key, value = fused.split([kv_heads * self.num_key_value_groups, kv_heads, kv_heads], dim=1)
    query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
    if layer_past is not None:
        key, value = layer_past.update(key, value, self.layer_idx)
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
    dropout = self.attention_dropout if self.training else 0.0
    context, probs = attend(self, query, key, value, attention_mask, dropout=dropout, scaling=self.scaling, **kwargs)
    return self.dense(context.reshape(*hidden_states.shape[:-1], -1).contiguous()), probs
