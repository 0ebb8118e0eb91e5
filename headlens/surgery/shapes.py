"""The shapes of attention layers that have lost heads, or share keys and values. One entry of FAMILIES a family.

The attention modules of transformers read the number of their heads off their tensors, so smaller weights and a few
numbers beside them are all that a layer with fewer heads takes: the classes stay those of transformers. Three things
do not come by themselves:

- A layer of no heads computes nothing, and kernels need not be asked what attention of no heads is: its module keeps
  its place and its class, and gives the bias of its output projection. In a key/value cache it leaves one number a
  token, because caches and positions take the length of the text from the tensors of the first layers.
- T5 computes its position bias in the first layer, for its heads, and hands it to the others. Where layers may have
  different heads, each has its own table of position biases and does not look at what it is handed.
- Where a family knows of no shared keys and values, a module that has them gets a class of `forwards`.

This file goes behind `forwards` into checkpoints that are to load without headlens, and imports nothing else of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from headlens.surgery.forwards import forward_of_neox, forward_of_opt, forward_without_heads, share_keys

PREFIX = "headlens_"  # of the model_type of pruned checkpoints


def resize(
    model: nn.Module,
    heads: Sequence[int],
    kv_heads: Sequence[int],
    *,
    output_bias: bool = False,
    stack: str | None = None,
) -> None:
    """Give the self-attention layers of a stock model, in place, the shapes of so many heads each.

    Weights whose shape changes are left uninitialised; they keep their dtype and device, which may be "meta".

    Parameters
    ----------
    heads, kv_heads
        Query heads and key/value heads, one number a layer; 0 and 0 for a layer without heads.
    output_bias
        Add a bias to the output projections where the family has none.
    stack
        "encoder" or "decoder" of a model that has both; None is the encoder.

    Raises
    ------
    ValueError
        A family that is not in FAMILIES, numbers that its layers cannot have, or a layer that has been changed.
    """
    layout = layout_of(model)
    layers = attention_layers(model, stack)
    if not len(layers) == len(heads) == len(kv_heads):
        raise ValueError(f"The model has {len(layers)} layers, got heads of {len(heads)} and {len(kv_heads)}.")
    given: dict[str, tuple[int, int]] = {}
    for number, ((name, attention), pair) in enumerate(zip(layers, zip(heads, kv_heads, strict=True), strict=True)):
        if given.setdefault(name, pair) != pair:
            raise ValueError(f"Layer {number} shares its weights with an earlier one, and must have as many heads.")
        layout.check(number, *pair)
        _resize_layer(layout, model, name, attention, *pair, output_bias)


@dataclass(frozen=True)
class Part:
    """A linear layer that makes queries, keys or values, or all of them."""

    path: str
    blocks: tuple[str, ...]  # what its outputs are, in order: "q" or "kv" for each stretch of all such heads
    is_by_head: bool = False  # of several blocks: not stretch by stretch, but head by head

    def size(self, heads: int, kv_heads: int, dim: int) -> int:
        return dim * sum(heads if block == "q" else kv_heads for block in self.blocks)

    def places(self, heads: int, kv_heads: int, dim: int) -> list[Tensor]:
        """Where each block stands among its outputs, [head, dim] or [kv, dim]; shared keys never stand by head."""
        if self.is_by_head and heads == kv_heads:
            return list(rows_of(range(heads * len(self.blocks)), dim).view(heads, len(self.blocks), dim).unbind(1))
        counts = [heads if block == "q" else kv_heads for block in self.blocks]
        return [place.view(-1, dim) for place in torch.arange(sum(counts) * dim).split([dim * n for n in counts])]

    def rows(self, present: tuple[int, int], heads: Sequence[int], kv_heads: Sequence[int], dim: int) -> Tensor:
        """Which of its outputs belong to some heads, of `present` query heads and key/value heads."""
        blocks = zip(self.blocks, self.places(*present, dim), strict=True)
        found = [place[list(heads if block == "q" else kv_heads)] for block, place in blocks]
        if self.is_by_head and len(heads) == len(kv_heads):
            return torch.stack(found, dim=1).flatten()
        return torch.cat(found).flatten()


@dataclass(frozen=True)
class Layout:
    """Where a family keeps the heads of a layer. Paths go from the attention module; a leading ^. up to its parent."""

    attention: str  # what the names of self-attention modules end with
    parts: tuple[Part, ...]
    out: str  # the projection that the outputs of the heads go through
    dim: str  # the attribute with the width of a head
    set_counts: Callable[[Any, int, int], None]
    finish: Callable[[Any, Tensor, Tensor, Tensor | None], tuple[Any, ...]]  # what the module returns, without heads
    is_grouped: bool = False  # the classes of transformers may have fewer key/value heads than query heads
    may_share: bool = False  # those of `forwards` may, in their place
    forward: Callable[..., Any] | None = None  # with shared keys, where the code of the module's own cannot be used
    is_shared: bool = False  # one module serves several layers
    has_position_bias: bool = False

    def check(self, layer: int, heads: int, kv_heads: int) -> None:
        fits = heads % kv_heads == 0 if heads and kv_heads else heads == kv_heads
        if min(heads, kv_heads) < 0 or not fits or (heads != kv_heads and not (self.is_grouped or self.may_share)):
            raise ValueError(f"Layer {layer} cannot have {heads} heads and {kv_heads} key/value heads.")

    def head_dim(self, attention: Any) -> int:
        return int(getattr(attention, self.dim))


def rows_of(heads: Sequence[int], dim: int) -> Tensor:
    """The places of some heads among the outputs of all, `dim` a head."""
    return (torch.tensor(list(heads), dtype=torch.long)[:, None] * dim + torch.arange(dim)).flatten()


def family_of(model: nn.Module) -> str:
    return str(getattr(getattr(model, "config", None), "model_type", type(model).__name__)).removeprefix(PREFIX)


def layout_of(model: nn.Module) -> Layout:
    """ValueError where the family has no entry."""
    family = family_of(model)
    if family not in FAMILIES:
        raise ValueError(f"Heads of {family!r} cannot be taken out; they can of: {', '.join(FAMILIES)}.")
    return FAMILIES[family]


def attention_layers(model: nn.Module, stack: str | None = None) -> list[tuple[str, nn.Module]]:
    """Name and module of the self-attention of every layer; a module that serves several layers stands there often."""
    layout = layout_of(model)
    ending = re.compile(rf"(^|\.){layout.attention}$")
    found = [(name, module) for name, module in model.named_modules() if ending.search(name)]
    halves = {half: [pair for pair in found if half in pair[0].split(".")] for half in ("encoder", "decoder")}
    has_two = layout.has_position_bias and all(halves.values())  # the only family of two stacks
    if stack is not None and not (has_two and stack in halves):
        raise ValueError(f"{type(model).__name__} has no two stacks of which {stack!r} is one.")
    if has_two:
        found = halves[stack or "encoder"]
    return _in_order_of_calls(found, getattr(model, "config", None)) if layout.is_shared else found


def projection_of(model: nn.Module, name: str, path: str) -> nn.Module:
    """The linear layer at `path` from the attention module of that name; ValueError where it is no plain one."""
    while path.startswith("^."):
        name, path = name.rpartition(".")[0], path.removeprefix("^.")
    name = f"{name}.{path}" if name else path
    found = model.get_submodule(name)
    if type(found) not in (nn.Linear, Conv1D):
        raise ValueError(
            f"{name} is a {type(found).__name__}, not a plain linear layer: merge its adapters, or load the model "
            f"unquantized."
        )
    return found


def counts_of(model: nn.Module, stack: str | None = None) -> list[tuple[int, int]]:
    """Query heads and key/value heads of every layer, as its weights have them."""
    layout = layout_of(model)
    counts = []
    for name, attention in attention_layers(model, stack):
        dim = layout.head_dim(attention)
        widths = [_width(projection_of(model, name, part.path)) // dim for part in layout.parts]
        heads = _width(projection_of(model, name, layout.out), 1) // dim
        counts.append((heads, widths[1] if len(widths) > 1 else (widths[0] - heads) // 2))
    return counts


# -------------------------------------------------------------------------------------------------------------- layers


def _resize_layer(
    layout: Layout, model: nn.Module, name: str, attention: Any, heads: int, kv_heads: int, output_bias: bool
) -> None:
    if not heads:
        attention.forward = partial(forward_without_heads, attention, layout.finish)
    elif "forward" in vars(attention):
        raise ValueError(f"{name} has no heads any more, and cannot get {heads} again.")
    dim = layout.head_dim(attention)
    for part in layout.parts:
        _set_shape(projection_of(model, name, part.path), outputs=part.size(heads, kv_heads, dim))
    out = projection_of(model, name, layout.out)
    if not heads and isinstance(out, Conv1D):  # a Conv1D cannot view an input of no columns
        out = _linear_in_place_of(out)
        setattr(attention, layout.out, out)
    _set_shape(out, inputs=heads * dim)
    if output_bias and out.bias is None:
        out.bias = _empty_like(out.weight, out.weight.shape[0])
    layout.set_counts(attention, heads, kv_heads)
    if layout.may_share:
        share_keys(attention, heads, kv_heads, layout.forward)
    if layout.has_position_bias:
        _give_own_position_bias(model, attention, heads)


def _set_shape(projection: Any, outputs: int | None = None, inputs: int | None = None) -> None:
    is_transposed = isinstance(projection, Conv1D)
    now = projection.weight.shape[::-1] if is_transposed else projection.weight.shape
    wanted = (now[0] if outputs is None else outputs, now[1] if inputs is None else inputs)
    if wanted == tuple(now):
        return
    projection.weight = _empty_like(projection.weight, *(wanted[::-1] if is_transposed else wanted))
    if projection.bias is not None and len(projection.bias) != wanted[0]:
        projection.bias = _empty_like(projection.bias, wanted[0])
    if is_transposed:
        projection.nf, projection.nx = wanted
    else:
        projection.out_features, projection.in_features = wanted


def _empty_like(weight: nn.Parameter, *shape: int) -> nn.Parameter:
    return nn.Parameter(weight.new_empty(shape), requires_grad=weight.requires_grad)


def _linear_in_place_of(conv: Any) -> nn.Linear:
    linear = nn.Linear(1, 1, device="meta").train(conv.training)  # of no inputs at once it would warn
    linear.weight, linear.bias = _empty_like(conv.weight, conv.nf, 0), conv.bias
    linear.in_features, linear.out_features = 0, conv.nf
    return linear


def _width(projection: Any, axis: int = 0) -> int:
    """Outputs of a projection, or its inputs."""
    return int(projection.weight.shape[1 - axis if isinstance(projection, Conv1D) else axis])


def _in_order_of_calls(found: list[tuple[str, nn.Module]], config: Any) -> list[tuple[str, nn.Module]]:
    """ALBERT calls every group of layers for a stretch of the layers before it goes on to the next."""
    size = len(found) // config.num_hidden_groups
    groups = [found[start : start + size] for start in range(0, len(found), size)]
    stretch = config.num_hidden_layers / config.num_hidden_groups
    return [member for layer in range(config.num_hidden_layers) for member in groups[int(layer / stretch)]]


# ------------------------------------------------------------------------------------------- what modules give back


def _finish(out: str, attention: Any, hidden: Tensor, context: Tensor, probs: Tensor | None) -> tuple[Any, ...]:
    return getattr(attention, out)(context), probs


def _finish_bert(attention: Any, hidden: Tensor, context: Tensor, probs: Tensor | None) -> tuple[Any, ...]:
    return context, probs  # the projection stands outside


def _finish_albert(attention: Any, hidden: Tensor, context: Tensor, probs: Tensor | None) -> tuple[Any, ...]:
    return attention.LayerNorm(hidden + attention.output_dropout(attention.dense(context))), probs


def _finish_gpt2(attention: Any, hidden: Tensor, context: Tensor, probs: Tensor | None) -> tuple[Any, ...]:
    return attention.resid_dropout(attention.c_proj(context)), probs


def _finish_t5(attention: Any, hidden: Tensor, context: Tensor, probs: Tensor | None) -> tuple[Any, ...]:
    return attention.o(context), None, probs


# ------------------------------------------------------------------------------------------- position bias of T5


def _give_own_position_bias(model: nn.Module, attention: Any, heads: int) -> None:
    if attention.has_relative_attention_bias:
        table = attention.relative_attention_bias
    else:
        table = nn.Embedding(1, 1, device="meta").train(attention.training)
        table.weight = _empty_like(attention.q.weight, attention.relative_attention_num_buckets, 0)
        table.num_embeddings = attention.relative_attention_num_buckets
        attention.relative_attention_bias = table
        attention.has_relative_attention_bias = True
    if table.weight.shape[1] != heads or not heads:
        table.weight = _empty_like(table.weight, table.weight.shape[0], heads)
        table.embedding_dim = heads
    if _with_own_position_bias not in attention._forward_pre_hooks.values():
        attention.register_forward_pre_hook(_with_own_position_bias, with_kwargs=True)


def _with_own_position_bias(attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args, {**kwargs, "position_bias": None}


# ------------------------------------------------------------------------------------------------------------ families


def _count(name: str, attention: Any, heads: int, kv_heads: int) -> None:
    setattr(attention, name, heads)


def _count_bert(attention: Any, heads: int, kv_heads: int) -> None:
    attention.num_attention_heads = heads
    attention.all_head_size = heads * attention.attention_head_size


def _count_gpt2(attention: Any, heads: int, kv_heads: int) -> None:
    attention.num_heads = heads
    sizes = [count * attention.head_dim for count in (heads, kv_heads, kv_heads)]
    attention.split_size = sizes[0] if heads == kv_heads else sizes


def _count_t5(attention: Any, heads: int, kv_heads: int) -> None:
    attention.n_heads = heads
    attention.inner_dim = heads * attention.key_value_proj_dim


def _count_llama(attention: Any, heads: int, kv_heads: int) -> None:
    attention.num_key_value_groups = heads // kv_heads if kv_heads else 1
    attention.num_attention_heads, attention.num_key_value_heads = heads, kv_heads  # for those who ask the module


def _three(q: str, k: str, v: str) -> tuple[Part, ...]:
    return Part(q, ("q",)), Part(k, ("kv",)), Part(v, ("kv",))


_BERT = Layout(
    r"attention\.self",
    _three("query", "key", "value"),
    "^.output.dense",
    "attention_head_size",
    _count_bert,
    _finish_bert,
    may_share=True,
)
_LLAMA = Layout(
    "self_attn",
    _three("q_proj", "k_proj", "v_proj"),
    "o_proj",
    "head_dim",
    _count_llama,
    partial(_finish, "o_proj"),
    is_grouped=True,
)
_FUSED = Part("c_attn", ("q", "kv", "kv"))
_GPT2 = Layout("attn", (_FUSED,), "c_proj", "head_dim", _count_gpt2, _finish_gpt2, may_share=True)
FAMILIES = {
    **dict.fromkeys(["bert", "roberta", "xlm-roberta", "camembert", "electra"], _BERT),
    "distilbert": Layout(
        "attention",
        _three("q_lin", "k_lin", "v_lin"),
        "out_lin",
        "attention_head_size",
        partial(_count, "n_heads"),
        partial(_finish, "out_lin"),
        may_share=True,
    ),
    "albert": Layout(
        "attention",
        _three("query", "key", "value"),
        "dense",
        "attention_head_size",
        _count_bert,
        _finish_albert,
        is_shared=True,
    ),
    "gpt2": _GPT2,
    "gpt_neox": Layout(
        "attention",
        (Part("query_key_value", ("q", "kv", "kv"), is_by_head=True),),
        "dense",
        "head_size",
        partial(_count, "num_attention_heads"),  # for those who ask the module; the stock one has none
        partial(_finish, "dense"),
        may_share=True,
        forward=forward_of_neox,
    ),
    "opt": Layout(
        "self_attn",
        _three("q_proj", "k_proj", "v_proj"),
        "out_proj",
        "head_dim",
        partial(_count, "num_heads"),
        partial(_finish, "out_proj"),
        may_share=True,
        forward=forward_of_opt,
    ),
    **dict.fromkeys(["llama", "mistral", "qwen2", "qwen3"], _LLAMA),
    "t5": Layout(
        "SelfAttention",
        _three("q", "k", "v"),
        "o",
        "key_value_proj_dim",
        _count_t5,
        _finish_t5,
        has_position_bias=True,
    ),
}
