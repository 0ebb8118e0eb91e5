"""Multi-head attention, written once and written out. Every name of the formulas is a name in the code:

    q, k, v = x W_Q, x W_K, x W_V            cut into heads of `dim` numbers
    scores  = q k^T * scaling                how well each query matches each key
    probs   = softmax(scores + mask)         how much of each key each query takes; a row sums to 1
    context = probs v                        what a head has read
    output  = sum_h context_h W_O^h + b_O    what all heads write, one sum

Vaswani et al. 2017, sec. 3.2. With fewer key/value heads than heads it is grouped-query attention (Ainslie et al.
2023), with one of them multi-query attention (Shazeer 2019). Results are those of transformers' eager attention, bit
for bit on a CPU (scripts/verify_attention.py): the same operations, in the same order and the same precision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.nn.functional import dropout as drop_out

from headlens.errors import InvalidAttention

Rotary = tuple[Tensor, Tensor]  # cos and sin, each [batch, token, dim]; batch may be 1
Weights = tuple[Tensor, Tensor | None]  # of one projection: [out, in] and [out]
Tap = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class AttentionTrace:
    """Every quantity of one call. `q` and `k` are after rotary embedding, `scores` before mask and softmax."""

    q: Float[Tensor, "batch head query dim"]
    k: Float[Tensor, "batch kv key dim"]
    v: Float[Tensor, "batch kv key dim"]
    scores: Float[Tensor, "batch head query key"]
    probs: Float[Tensor, "batch head query key"]
    context: Float[Tensor, "batch head query dim"]
    contributions: Float[Tensor, "batch head query hidden"]  # what each head adds to the output
    output: Float[Tensor, "batch query hidden"]  # the sum of the contributions, plus the bias of o_proj


class MultiHeadAttention(nn.Module):
    """Attention of queries over keys and values: `mha(x, x, x)` attends to itself, `mha(x, memory, memory)` to another.

    Parameters
    ----------
    d_model
        Width of the queries and of the output.
    num_heads, num_kv_heads
        Heads, and how many key/value heads they share (None: one each; 1: multi-query). Head h reads from key/value
        head `h // (num_heads // num_kv_heads)`.
    head_dim
        Width of one head; None means d_model / num_heads.
    bias, out_bias
        Whether q, k, v, and whether o, have a bias. `out_bias=None` follows `bias`.
    kdim, vdim
        Widths of the keys and values that are passed in; None means d_model.
    is_causal
        A query sees no later key. With more keys than queries, the queries are the last of the positions.
    dropout
        Share of the probabilities set to zero in train mode.
    scaling
        What the scores are multiplied by; None means 1 / sqrt(head_dim).
    softmax_dtype, scores_dtype
        Precision of the softmax (Llama: float32), and of the scores and the softmax (GPT-2's reorder_and_upcast_attn:
        float32). None means that of the input. The probabilities come back in the precision of the values.

    Attributes
    ----------
    tap
        None, or a function of (q, k, v, probs, context) that is called once the context is known; the layer goes on
        with the context that it returns. `k` and `v` keep their own number of heads. headlens.capture sets it.

    Raises
    ------
    InvalidAttention
        Sizes that do not divide, masks that do not fit.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        *,
        head_dim: int | None = None,
        bias: bool = True,
        out_bias: bool | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        is_causal: bool = False,
        dropout: float = 0.0,
        scaling: float | None = None,
        softmax_dtype: torch.dtype | None = None,
        scores_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        _check_sizes(d_model, num_heads, num_kv_heads, head_dim)
        if not 0.0 <= dropout <= 1.0:
            raise InvalidAttention(f"dropout is a share from 0 to 1, and came as {dropout}.")
        self.d_model, self.num_heads, self.num_kv_heads = d_model, num_heads, num_kv_heads
        self.head_dim = d_model // num_heads if head_dim is None else head_dim
        self.scaling = self.head_dim**-0.5 if scaling is None else scaling
        self.is_causal, self.dropout = is_causal, dropout
        self.softmax_dtype, self.scores_dtype = softmax_dtype, scores_dtype
        self.tap: Tap | None = None

        self.q_proj = nn.Linear(d_model, num_heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(d_model if kdim is None else kdim, num_kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(d_model if vdim is None else vdim, num_kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(num_heads * self.head_dim, d_model, bias=bias if out_bias is None else out_bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        *,
        rotary: Rotary | None = None,
    ) -> Float[Tensor, "batch query hidden"]:
        """The layer's output, for queries [batch, query, d_model], keys [batch, key, kdim], values [batch, key, vdim].

        `mask` is bool or 0/1 (True and 1 mean: attend), or any other floating numbers, which are added to the scores;
        its shapes are those of `as_additive_mask`. `rotary` (cos, sin) turns q and k by their positions.
        """
        q, k, v = self.project(query, key, value, rotary)
        _, _, context = self.attend(q, k, v, self._full_mask(mask, q, k))
        return self.o_proj(merge_heads(context))

    def explain(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        *,
        rotary: Rotary | None = None,
    ) -> AttentionTrace:
        """The same computation with everything shown. Contributions add up best in float32 or float64."""
        q, k, v = self.project(query, key, value, rotary)
        scores, probs, context = self.attend(q, k, v, self._full_mask(mask, q, k))
        contributions = head_contributions(context, self.w_out)
        return AttentionTrace(q, k, v, scores, probs, context, contributions, self.o_proj(merge_heads(context)))

    def project(
        self, query: Tensor, key: Tensor, value: Tensor, rotary: Rotary | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q [batch, head, query, dim], k and v [batch, kv, key, dim]."""
        self._check_inputs(query, key, value)
        q = split_heads(self.q_proj(query), self.head_dim)
        k = split_heads(self.k_proj(key), self.head_dim)
        v = split_heads(self.v_proj(value), self.head_dim)
        if rotary is not None:
            q, k = rotate(q, *rotary), rotate(k, *rotary)
        return q, k, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, probabilities and context of projected heads. `mask` is additive; is_causal is up to the caller."""
        groups = self.num_heads // self.num_kv_heads
        keys, values = repeat_kv(k, groups), repeat_kv(v, groups)
        if self.scores_dtype is None:
            scores = attention_scores(q, keys, self.scaling)
        else:
            scores = upcast_scores(q, keys, self.scaling, self.scores_dtype)
        probs = attention_probs(scores, mask, self.softmax_dtype).to(v.dtype)
        probs = drop_out(probs, self.dropout, self.training)
        context = probs @ values
        if self.tap is not None:
            context = self.tap(q, k, v, probs, context)
        return scores, probs, context

    @property
    def w_out(self) -> Float[Tensor, "head dim hidden"]:
        """W_O cut into the part of every head."""
        return self.o_proj.weight.T.reshape(self.num_heads, self.head_dim, self.d_model)

    def set_weights(self, q: Weights, k: Weights, v: Weights, o: Weights) -> None:
        """Put copies of these weights in place of the layer's own; precision, device and memory layout come along.

        The layout matters: a matrix product in float16 or float64 may differ in the last bit between a matrix stored
        by rows and its transpose stored by columns.
        """
        for name, (weight, bias) in zip(("q_proj", "k_proj", "v_proj", "o_proj"), (q, k, v, o), strict=True):
            own = getattr(self, name)
            here, given = _described(own.weight, own.bias), _described(weight, bias)
            if here != given:
                raise InvalidAttention(f"{name} of this layer is {here}, and the weights given for it are {given}.")
            own.weight = _copied(weight)
            own.bias = None if bias is None else _copied(bias)

    @staticmethod
    def from_torch(module: nn.MultiheadAttention) -> MultiHeadAttention:
        """The same layer as torch's, with copies of its weights.

        Two customs differ: this one takes [batch, token, hidden] whatever `batch_first` was, and True in its masks
        means attend where torch's means blocked. InvalidAttention for add_bias_kv and add_zero_attn.
        """
        from headlens.replace import read_torch  # it knows how others lay out their weights, and is built on this file

        return read_torch(module)

    @staticmethod
    def from_huggingface(model: nn.Module, layer: int) -> MultiHeadAttention:
        """The self-attention of layer `layer` of a BERT-like, GPT-2 or Llama-style model, with copies of its weights.

        A rotary embedding and a sliding window are computed by the model around its layers: pass the one as `rotary`
        and the other in the mask. UnsupportedModel names the families known.
        """
        from headlens.replace import read_huggingface

        return read_huggingface(model, layer)

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, is_causal={self.is_causal}"

    def _full_mask(self, mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
        causal = causal_mask(q.shape[-2], k.shape[-2], q.device) if self.is_causal else None
        if mask is None:
            return None if causal is None else as_additive_mask(causal, q.dtype)
        _check_mask_shape(mask, (*q.shape[:-1], k.shape[-2]))
        additive = as_additive_mask(mask, q.dtype)
        return additive if causal is None else additive.masked_fill(~causal, torch.finfo(q.dtype).min)

    def _check_inputs(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        for name, x, projection in (
            ("query", query, self.q_proj),
            ("key", key, self.k_proj),
            ("value", value, self.v_proj),
        ):
            if x.dim() != 3 or x.shape[-1] != projection.in_features:
                raise InvalidAttention(
                    f"{name} must be [batch, token, {projection.in_features}], and came as {list(x.shape)}."
                )
        if key.shape[:2] != value.shape[:2] or query.shape[0] != key.shape[0]:
            raise InvalidAttention(
                f"key and value must agree in batch and tokens, and query with them in batch; query came as "
                f"{list(query.shape)}, key as {list(key.shape)}, value as {list(value.shape)}."
            )


def split_heads(x: Float[Tensor, "batch token width"], dim: int) -> Float[Tensor, "batch head token dim"]:
    """Cut the last axis into heads of `dim` numbers."""
    return x.unflatten(-1, (-1, dim)).transpose(-3, -2)


def merge_heads(context: Float[Tensor, "batch head token dim"]) -> Float[Tensor, "batch token width"]:
    """Put the heads side by side again, head 0 first."""
    return context.transpose(-3, -2).flatten(-2)


def repeat_kv(x: Float[Tensor, "batch kv key dim"], groups: int) -> Float[Tensor, "batch head key dim"]:
    """Each key/value head `groups` times in a row (0 0 1 1, not 0 1 0 1), so that every head has one."""
    return x if groups == 1 else x.repeat_interleave(groups, dim=-3)


def rotate(
    x: Float[Tensor, "batch head token dim"], cos: Float[Tensor, "*position"], sin: Float[Tensor, "*position"]
) -> Float[Tensor, "batch head token dim"]:
    """Rotary embedding (Su et al. 2021) in Llama's pairing: number i of a head turns together with i + dim / 2."""
    if (
        cos.dim() != 3
        or cos.shape != sin.shape
        or cos.shape[-2:] != x.shape[-2:]
        or cos.shape[0] not in (1, x.shape[0])
    ):
        raise InvalidAttention(
            f"cos and sin must be [1 or {x.shape[0]}, {x.shape[-2]}, {x.shape[-1]}] (batch, token, dim) for queries "
            f"and keys of that many tokens, and came as {list(cos.shape)} and {list(sin.shape)}."
        )
    first, second = x.chunk(2, dim=-1)
    quarter_turn = torch.cat((-second, first), dim=-1)
    return x * cos[:, None] + quarter_turn * sin[:, None]


def attention_scores(
    q: Float[Tensor, "batch head query dim"], k: Float[Tensor, "batch head key dim"], scaling: float
) -> Float[Tensor, "batch head query key"]:
    """Scaled dot product of every query with every key."""
    return q @ k.transpose(-1, -2) * scaling


def upcast_scores(
    q: Float[Tensor, "batch head query dim"], k: Float[Tensor, "batch head key dim"], scaling: float, dtype: torch.dtype
) -> Float[Tensor, "batch head query key"]:
    """The same in another precision. baddbmm scales inside the product, which rounds differently from scaling after."""
    batch_of_heads, flat_k = q.flatten(0, 1).to(dtype), k.flatten(0, 1).to(dtype).transpose(-1, -2)
    unused = batch_of_heads.new_empty(batch_of_heads.shape[0], q.shape[-2], k.shape[-2])
    scores = torch.baddbmm(unused, batch_of_heads, flat_k, beta=0, alpha=scaling)
    return scores.unflatten(0, q.shape[:2])


def attention_probs(
    scores: Float[Tensor, "batch head query key"],
    mask: Float[Tensor, "*shape"] | None = None,
    softmax_dtype: torch.dtype | None = None,
) -> Float[Tensor, "batch head query key"]:
    """Softmax over the keys of `scores + mask`. A query that may see no key shares itself out over all, never NaN."""
    if mask is not None:
        # float16 runs over to -inf when it adds a negative score to its lowest number, and a row of -inf gives NaN
        scores = (scores + mask).clamp(min=torch.finfo(scores.dtype).min)
    return scores.softmax(dim=-1, dtype=softmax_dtype)


def causal_mask(queries: int, keys: int, device: torch.device | None = None) -> Bool[Tensor, "query key"]:
    """True where a query may look: at itself and before. The last query stands at the last key."""
    if queries > keys:
        raise InvalidAttention(
            f"Causal attention needs at least as many keys as queries, got {keys} keys, {queries} queries."
        )
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def as_additive_mask(mask: Shaped[Tensor, "*shape"], dtype: torch.dtype) -> Float[Tensor, "*shape"]:
    """What is added to the scores: 0 where a key may be seen, the lowest number of `dtype` where it may not.

    Shapes broadcast from the right: [key], [query, key], or four axes that are 1 or [batch, head, query, key] (padding
    is `padding[:, None, None, :]`). Three axes are refused by the layer unless the first is 1: they could mean batch or
    head.

    Values are bool or integer 0/1 (True and 1: attend); floating numbers that are all 0 or 1, with a 1 among them, are
    taken as 0/1 too; any other floating numbers are added as they are.
    """
    if mask.is_complex():
        raise InvalidAttention(f"A mask is bool, integer 0/1 or floating numbers, and came as {mask.dtype}.")
    if mask.is_floating_point() and not _holds_only_zeros_and_ones(mask):
        added = mask.to(dtype)
        if bool((added.isnan() | (added == torch.inf)).any()):
            raise InvalidAttention(
                f"The mask holds NaN or +inf in {dtype}: add finite numbers, or -inf where a key is out of sight."
            )
        return added
    if mask.dtype != torch.bool and bool(((mask != 0) & (mask != 1)).any()):
        raise InvalidAttention(
            f"An integer mask must hold only 1 (attend) and 0, and goes from {int(mask.min())} to {int(mask.max())}; "
            f"numbers to be added to the scores must be floating."
        )
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask == 0, torch.finfo(dtype).min)


def head_contributions(
    context: Float[Tensor, "batch head query dim"], w_out: Float[Tensor, "head dim hidden"]
) -> Float[Tensor, "batch head query hidden"]:
    """What each head adds to the output: context_h W_O^h. The bias of the projection belongs to no head."""
    return context @ w_out


def _holds_only_zeros_and_ones(mask: Tensor) -> bool:
    return bool((mask == 1).any()) and bool(((mask == 0) | (mask == 1)).all())


def _check_mask_shape(mask: Tensor, shape: tuple[int, ...]) -> None:
    if mask.dim() == 3 and mask.shape[0] != 1:
        raise InvalidAttention(
            f"A mask of shape {list(mask.shape)} could be one per batch or one per head: write mask[:, None] for "
            f"[batch, 1, query, key], or mask[None] for [1, head, query, key]."
        )
    padded = (1,) * (4 - mask.dim()) + tuple(mask.shape)
    if mask.dim() not in (1, 2, 3, 4) or any(own not in (1, full) for own, full in zip(padded, shape, strict=True)):
        raise InvalidAttention(
            f"A mask of shape {list(mask.shape)} does not broadcast to [batch, head, query, key] = {list(shape)}; "
            f"padding of shape [batch, key] goes in as padding[:, None, None, :]."
        )


def _check_sizes(d_model: int, num_heads: int, num_kv_heads: int, head_dim: int | None) -> None:
    for name, size in (("d_model", d_model), ("num_heads", num_heads), ("num_kv_heads", num_kv_heads)):
        if size < 1:
            raise InvalidAttention(f"{name} must be at least 1, got {size}.")
    if head_dim is None and d_model % num_heads != 0:
        raise InvalidAttention(
            f"d_model={d_model} cannot be cut into num_heads={num_heads} equal heads: take a divisor, or give head_dim."
        )
    if num_heads % num_kv_heads != 0:
        raise InvalidAttention(
            f"num_heads={num_heads} heads cannot share num_kv_heads={num_kv_heads} key/value heads: take a divisor."
        )


def _described(weight: Tensor, bias: Tensor | None) -> str:
    return f"{list(weight.shape)} {'without' if bias is None else 'with'} bias"


def _copied(parameter: Tensor) -> nn.Parameter:
    return nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad)
