"""Watch, and gate, the heads of a running model. The only file that touches transformers' attention dispatch.

One attention function is registered with transformers, and a mask function beside it: transformers builds no mask at
all for an attention that it has no mask function for, and neither causality nor padding would hold. Inside `capture`
every attention layer of the model runs through that function, in one of two ways:

exact   the model file's own eager function computes; the outputs are those of attn_implementation="eager", bit for bit
fast    the same formula in slices of query rows, so that no [query, key] matrix of a long text is ever whole in memory

A third, "both", is for the self-check: each layer computes in both ways from the same inputs.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from headlens.arch import SPECS, Site, attention_sites, eager_function, family_of
from headlens.attention import MultiHeadAttention
from headlens.errors import CaptureError, UnsupportedModel
from headlens.gates import gates_by_stack
from headlens.positions import arguments_of, query_start, with_positions
from headlens.records import LayerAttention, Stack
from headlens.slices import causal_rows, mix_values, rows_of_mask, rows_per_slice, slice_scores

Observe = Callable[[LayerAttention], None]
Way = Literal["exact", "fast", "both"]

NAME = "headlens"
SLICE_BYTES = 4 << 20  # probabilities of one slice: small enough to stay in a core's cache while they are scored

# Keywords of attention calls that do not change q k^T * scaling + mask -> softmax -> v. Any other keyword that is not
# None (softcap, s_aux, position_bias, ...) sends the call to the model file's own eager function.
_HARMLESS = frozenset(
    "dropout scaling is_causal sliding_window position_ids cache_position use_cache output_attentions "
    "output_hidden_states return_dict deterministic cache past_key_values max_seqlen position_embeddings".split()
)


@contextmanager
def capture(
    model: nn.Module,
    observe: Observe | None = None,
    gates: Tensor | Mapping[Stack, Tensor] | None = None,
    *,
    way: Way = "exact",
    slice_bytes: int = SLICE_BYTES,
) -> Iterator[list[Site]]:
    """Within this context every forward pass of `model` hands its attention to `observe`, layer by layer.

    Nothing is kept: `observe` gets one LayerAttention per layer (per slice of query rows when `way` is "fast") and
    must take what it needs. Rows and keys of padding are delivered as the model computed them; leave them out by the
    attention mask. In the exact way `generate()` works too, each step bringing the rows of its new tokens.

    Of a pruned model `LayerAttention.head_ids` tells which heads of the original they are. A layer that has lost all
    its heads is among the sites, and nothing comes from it.

    Parameters
    ----------
    model
        A transformers model on the attention interface, or any module with headlens's MultiHeadAttention inside.
        It must be in eval mode: dropout would be part of the probabilities.
    observe
        Called once per attention layer, or once per slice.
    gates
        [layer, head] or [batch, layer, head]: multiplies every head's output before W_O, 0 silences the head.
        Heads count as in the original model; the gate of one that was removed does nothing. Gradients flow to them. A
        model of several stacks takes a dict by stack ("encoder", "decoder", "cross").
    way
        "exact" or "fast", as above. The scores of both agree to 1e-6 in float32. "both" delivers each layer's slices,
        if the fast way has any for it, and then the exact whole, with which the model goes on.
    slice_bytes
        How large the probabilities of one slice may be in the fast way.

    Yields
    ------
    The attention layers found, in order.

    Raises
    ------
    UnsupportedModel
        The model does not compute its attention through the interface.
    CaptureError
        Train mode, gates of the wrong shape, or a capture inside a capture of the same model.
    """
    sites = attention_sites(model)  # says so where it is no model
    _check_ready(model, sites)
    if way not in get_args(Way):
        raise CaptureError(f"The way of a capture is one of {', '.join(get_args(Way))}, got {way!r}.")
    tap = _Tap(observe, gates_by_stack(gates, sites), way, slice_bytes)
    with ExitStack() as stack:
        stack.enter_context(_tapped(tap, sites))
        stack.enter_context(switched(model, NAME))
        stack.enter_context(_prepared_forward(model, tap))
        yield sites


# ------------------------------------------------------------------------------------------- what runs inside a layer


@dataclass(eq=False)
class _Tap:
    """What one capture knows; found from inside a running layer by the layer's module."""

    observe: Observe | None
    gates: dict[Stack, Tensor]
    way: Way
    slice_bytes: int
    sites: dict[int, list[Site]] = field(default_factory=dict)  # by id of the module, in order of their calls
    calls: Counter[int] = field(default_factory=Counter)  # of modules that serve several layers
    thread: int = field(default_factory=threading.get_ident)

    def next_site(self, module: nn.Module) -> Site:
        if threading.get_ident() != self.thread:
            raise CaptureError("Another thread is capturing this model; run it when that is over, or run a copy.")
        sites = self.sites[id(module)]
        self.calls[id(module)] += 1
        return sites[(self.calls[id(module)] - 1) % len(sites)]

    def deliver(self, attention: LayerAttention) -> None:
        if self.observe is not None:
            self.observe(attention)

    def gate(self, site: Site, query: Tensor) -> Tensor | None:
        """[1 or batch, head, 1, 1], to be multiplied into a context [batch, head, query, dim]."""
        gates = self.gates.get(site.stack)
        if gates is None:
            return None
        if gates.dim() == 3 and gates.shape[0] != query.shape[0]:
            raise CaptureError(
                f"gates are for a batch of {gates.shape[0]}, the model runs a batch of {query.shape[0]}."
            )
        of_layer = gates[..., site.layer, :] if site.heads is None else gates[..., site.layer, list(site.heads)]
        return of_layer.reshape(-1, of_layer.shape[-1], 1, 1).to(query)


# By attention module, and by model with a forward of its own. What is hung on a model looks here and holds no tap, so
# that a copy made during a capture is not captured.
_TAPS: WeakKeyDictionary[nn.Module, _Tap] = WeakKeyDictionary()
_SWITCHED: dict[int, tuple[Any, str | None, int]] = {}  # config id -> config, its own implementation, captures in force
_LOCK = threading.Lock()


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """The function that transformers calls. Returns the context [batch, query, head, dim] and the probabilities."""
    is_causal = _is_causal(module, kwargs)
    tap = _TAPS.get(module)
    if tap is None:  # another model that shares a switched config: it must compute what it always computes
        return _eager(module, query, key, value, attention_mask, is_causal, kwargs)
    _refuse_training(module)
    site = tap.next_site(module)
    if site.heads is not None:
        _check_count(site, query)
    if site.is_empty:
        return _of_no_heads(query, key, value)
    if tap.way != "exact" and _is_plain(module, kwargs):
        sliced = _attend_in_slices(tap, site, query, key, value, attention_mask, is_causal, kwargs.get("scaling"))
        if tap.way == "fast":
            return sliced
    context, probs = _eager(module, query, key, value, attention_mask, is_causal, kwargs)
    start = query_start(site.stack, query, key, attention_mask)
    attention = LayerAttention(
        site.layer,
        query,
        key,
        value,
        probs,
        context.transpose(1, 2),
        start,
        site.stack,
        is_causal,
        kwargs.get("scaling"),
        head_ids=site.heads,
    )
    tap.deliver(attention)
    gate = tap.gate(site, query)
    return (context if gate is None else context * gate.transpose(1, 2)), probs


def _check_count(site: Site, query: Tensor) -> None:
    if query.shape[1] != len(site.heads or ()):
        raise CaptureError(
            f"{site} computes {query.shape[1]} heads and the plan in the model's config leaves it "
            f"{len(site.heads or ())}: which head is which is not known; take the checkpoint as it was saved."
        )


def _of_no_heads(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    batch, _, queries, _ = query.shape
    return query.new_zeros(batch, queries, 0, value.shape[-1]), query.new_zeros(batch, 0, queries, key.shape[2])


def _refuse_training(module: nn.Module) -> None:
    if module.training:
        raise CaptureError("The model went into train mode during capture; call model.eval().")


def _eager(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    kwargs: dict[str, Any],
) -> tuple[Tensor, Tensor]:
    mask = _additive(mask, query, key.shape[2], is_causal)
    if getattr(module, "reorder_and_upcast_attn", False):  # GPT-2 takes this branch only under the literal name "eager"
        return module._upcast_and_reordered_attn(query, key, value, mask)
    function = eager_function(module)
    assert function is not None  # seen to at entry
    return function(module, query, key, value, mask, **kwargs)


def _attend_in_slices(
    tap: _Tap,
    site: Site,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scaling: float | None,
) -> tuple[Tensor, None]:
    batch, heads, queries, dim = query.shape
    scale = dim**-0.5 if scaling is None else scaling
    start = query_start(site.stack, query, key, mask)
    gate = tap.gate(site, query)
    rows = rows_per_slice(queries, tap.slice_bytes // (batch * heads * key.shape[2] * query.element_size()))
    context = query.new_empty(batch, queries, heads, value.shape[-1])
    causal = is_causal and mask is None and queries > 1
    wide = query.new_empty(0, dtype=torch.promote_types(query.dtype, torch.float32))  # of the scores
    mask = _additive(mask, wide, key.shape[2], False)
    query, key, value = query.contiguous(), key.contiguous(), value.contiguous()  # else every slice copies all keys
    # From the end: causal slices get smaller, so each fits into the memory that the one before it has left.
    for first in reversed(range(0, queries, rows)):
        last = min(first + rows, queries)
        keys = last if causal else key.shape[2]  # what no row of the slice may see need not be computed
        seen = causal_rows(first, last, wide) if causal else rows_of_mask(mask, first, last)
        q, k, v = query[:, :, first:last], key[:, :, :keys], value[:, :, :keys]
        scores = slice_scores(q, k, seen, scale)
        probs = scores.softmax(dim=-1)
        part = mix_values(probs, v)
        tap.deliver(
            LayerAttention(
                site.layer, q, k, v, probs, part, start + first, site.stack, is_causal, scale, scores, site.heads
            ),
        )
        context[:, first:last] = (part if gate is None else part * gate).transpose(1, 2)
    return context, None


# ------------------------------------------------------------------------------------------------------- mask reading


def _mask(*args: Any, config: Any = None, allow_is_causal_skip: bool = True, **kwargs: Any) -> Tensor | None:
    """True where a key may be seen; None where all may, or where the module knows by itself that it is causal.

    Only of the families in SPECS is it known that their modules say so. The others get every causal mask written out.
    """
    known = family_of(config) in SPECS
    return sdpa_mask(*args, config=config, allow_is_causal_skip=allow_is_causal_skip and known, **kwargs)


def _is_causal(module: nn.Module, kwargs: dict[str, Any]) -> bool:
    """The keyword wins over the module, as in transformers' own sdpa function. What says nothing is not causal."""
    told = kwargs.get("is_causal")
    return bool(getattr(module, "is_causal", False) if told is None else told)


def _additive(mask: Tensor | None, query: Tensor, keys: int, is_causal: bool) -> Tensor | None:
    """What eager attention adds to the scores: 0 where a key may be seen, the lowest number elsewhere."""
    if mask is None and is_causal and query.shape[2] > 1:
        mask = torch.ones(query.shape[2], keys, dtype=torch.bool, device=query.device).tril()[None, None]
    if mask is None or mask.dtype != torch.bool:
        return mask
    # Many model files take the softmax in float32 even in float64, where float64's lowest number would be -inf and a
    # row of padding NaN; float32's lowest hides a key just as well.
    lowest = max(torch.finfo(query.dtype).min, torch.finfo(torch.float32).min)
    return torch.where(mask, torch.zeros((), device=mask.device, dtype=query.dtype), lowest)


def _is_plain(module: nn.Module, kwargs: dict[str, Any]) -> bool:
    if getattr(module, "reorder_and_upcast_attn", False):
        return False
    return all(value is None or name in _HARMLESS for name, value in kwargs.items())


# --------------------------------------------------------------------------------------------- entering and leaving


def _check_ready(model: nn.Module, sites: list[Site]) -> None:
    if model.training or any(site.module.training for site in sites):
        raise CaptureError("The model is in train mode, where dropout is part of the probabilities; call model.eval().")
    for site in sites:
        if not isinstance(site.module, MultiHeadAttention) and eager_function(site.module) is None:
            raise UnsupportedModel(f"{site} has no eager attention function in its file, so it cannot be watched.")


@contextmanager
def _tapped(tap: _Tap, sites: list[Site]) -> Iterator[None]:
    modules = list({id(site.module): site.module for site in sites}.values())
    with _LOCK:
        if any(module in _TAPS for module in modules):
            raise CaptureError("This model is being captured already; give one capture both observe and gates.")
        for site in sites:
            tap.sites.setdefault(id(site.module), []).append(site)
        for module in modules:
            _TAPS[module] = tap
            if isinstance(module, MultiHeadAttention):
                module.tap = partial(_own_layer, module)
    try:
        yield
    finally:
        with _LOCK:
            for module in modules:
                _TAPS.pop(module, None)
                if isinstance(module, MultiHeadAttention):
                    module.tap = None


def _own_layer(module: MultiHeadAttention, q: Tensor, k: Tensor, v: Tensor, probs: Tensor, context: Tensor) -> Tensor:
    tap = _TAPS.get(module)
    if tap is None:
        return context
    _refuse_training(module)
    site = tap.next_site(module)
    if site.heads is not None:
        _check_count(site, q)
    start = 0 if site.stack == "cross" else max(0, k.shape[2] - q.shape[2])
    attention = LayerAttention(
        site.layer, q, k, v, probs, context, start, site.stack, module.is_causal, module.scaling, head_ids=site.heads
    )
    tap.deliver(attention)
    gate = tap.gate(site, q)
    return context if gate is None else context * gate


@contextmanager
def switched(model: nn.Module, implementation: str) -> Iterator[None]:
    """Put every config of the model on an attention implementation, and back. Configs may be shared between models."""
    configs = _configs_of(model)
    with _LOCK:
        for config in configs:
            _, own, users = _SWITCHED.get(id(config), (config, config._attn_implementation_internal, 0))
            _SWITCHED[id(config)] = (config, own, users + 1)
            if users == 0 or implementation == NAME:
                config._attn_implementation_internal = implementation
    try:
        yield
    finally:
        with _LOCK:
            for config in configs:
                _, own, users = _SWITCHED.pop(id(config))
                if users > 1:
                    _SWITCHED[id(config)] = (config, own, users - 1)
                else:
                    config._attn_implementation_internal = own


def _configs_of(model: nn.Module) -> list[Any]:
    found: dict[int, Any] = {}
    waiting = [config for module in model.modules() if (config := getattr(module, "config", None)) is not None]
    while waiting:
        config = waiting.pop()
        if id(config) in found or not hasattr(config, "_attn_implementation_internal"):
            continue
        found[id(config)] = config
        waiting += [getattr(config, name, None) for name in getattr(config, "sub_configs", {})]
    return list(found.values())


@contextmanager
def _prepared_forward(model: nn.Module, tap: _Tap) -> Iterator[None]:
    """Before every forward pass: count the calls of shared layers anew, and give a left-padded batch its positions."""
    models = [module for module in model.modules() if isinstance(module, PreTrainedModel)] or [model]
    handles = [module.register_forward_pre_hook(_before_forward, with_kwargs=True) for module in models]
    with _LOCK:
        _TAPS.update(dict.fromkeys(models, tap))
    try:
        yield
    finally:
        with _LOCK:
            for module, handle in zip(models, handles, strict=True):
                handle.remove()
                _TAPS.pop(module, None)


def _before_forward(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tap = _TAPS.get(model)
    if tap is None:
        return None
    tap.calls.clear()
    if tap.way == "fast" and arguments_of(model, args, kwargs).get("output_attentions"):
        raise CaptureError('The fast way has no whole matrices for output_attentions=True: capture with way="exact".')
    return with_positions(model, args, kwargs)


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, _mask)
