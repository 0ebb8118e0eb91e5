"""Second moments of what attention layers read, as it is and as the attention sees it, over a text of any length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.capture import capture
from headlens.conversion.weights import LayerWeights, check_readable, read_layers
from headlens.errors import CorpusError
from headlens.records import LayerAttention
from headlens.surgery.passes import TokenBatch, real_tokens, run
from headlens.surgery.present import Layer, layers_of

Say = Callable[[str], None]
Square = Float[Tensor, "input input"]  # of the inputs of a layer and a 1 behind them


@dataclass(frozen=True, eq=False)
class Moments:
    """Of the attention input x of one layer, in float64 on the CPU; means over real tokens, special ones included.

    Every matrix is of (x, 1), so that biases can be handled like weights, and its last entry is 1. Where a model has a
    sink, the plain moments hardly contain the token that gets half of the attention; the other two do. Those are zero
    where a layer has lost all its heads.
    """

    plain: Square  # E (x,1)(x,1)^T
    keyed: (
        Square  # the same, each token weighted by the attention that it gets: the mean over heads, summed over queries
    )
    mixed: Square  # E (A_h x, 1)(A_h x, 1)^T, pooled over heads: what values are mixed from
    queries: Float[Tensor, "head part"]  # E |q|^2 of every rotary pair, then of every entry that is in none
    tokens: int


def moments_of(
    model: PreTrainedModel, batches: Iterable[TokenBatch], *, say: Say = lambda _what: None
) -> list[Moments]:
    """Moments of every layer, in one pass over the text. Only sums of the size of the moments are kept.

    Raises
    ------
    CorpusError
        No token at all, or a text of which the model makes numbers that are not finite.
    CaptureError
        A model in train mode.
    UnsupportedModel
        A family that cannot be converted.
    """
    check_readable(model)
    layers, weights = layers_of(model), read_layers(model)
    sums = [_Sums.empty(layer.q.shape[-1] + 1, len(layer.q)) for layer in weights]
    for batch in batches:
        _add(model, layers, sums, batch)
        say(f"moments of {sums[0].tokens} tokens")
    if not sums[0].tokens:
        raise CorpusError("Moments need text, and there is not one token of it.")
    found = [total.means(layer) for total, layer in zip(sums, weights, strict=True)]
    for number, each in enumerate(found):
        if not all(part.isfinite().all() for part in (each.plain, each.keyed, each.mixed)):
            raise CorpusError(f"Layer {number} reads numbers that are not finite on this text; take another text.")
    return found


@torch.no_grad()
def _add(model: PreTrainedModel, layers: Sequence[Layer], sums: Sequence[_Sums], batch: TokenBatch) -> None:
    real = real_tokens(model, batch)
    inputs: dict[int, Tensor] = {}

    def read(layer: Layer, hidden: Tensor) -> None:
        ones = hidden.new_ones(*hidden.shape[:-1], 1)
        inputs[layer.number] = torch.cat([hidden, ones], dim=-1).double() * real[..., None]
        sums[layer.number].add_plain(inputs[layer.number], int(real.sum()))

    def observe(attention: LayerAttention) -> None:
        sums[attention.layer].add_seen(inputs.pop(attention.layer), attention.in_single_precision().probs, real)

    with _inputs_seen(layers, read), capture(model, observe):
        run(model, batch)


@contextmanager
def _inputs_seen(layers: Sequence[Layer], read: Callable[[Layer, Tensor], None]) -> Iterator[None]:
    with ExitStack() as stack:
        for layer in layers:

            def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], layer: Layer = layer) -> None:
                read(layer, args[0] if args else kwargs["hidden_states"])

            stack.callback(layer.attention.register_forward_pre_hook(before, with_kwargs=True).remove)
        yield


@dataclass(eq=False)
class _Sums:
    """Over tokens; `mixed` and `keyed` over heads too."""

    plain: Tensor
    keyed: Tensor
    mixed: Tensor
    heads: int
    tokens: int = 0

    @classmethod
    def empty(cls, size: int, heads: int) -> _Sums:
        plain, keyed, mixed = torch.zeros(3, size, size, dtype=torch.float64)
        return cls(plain, keyed, mixed, heads)

    def add_plain(self, inputs: Float[Tensor, "batch token input"], tokens: int) -> None:
        flat = inputs.flatten(0, 1)
        self.plain += (flat.T @ flat).cpu()
        self.tokens += tokens

    def add_seen(
        self,
        inputs: Float[Tensor, "batch token input"],
        probs: Float[Tensor, "batch head token key"],
        real: Bool[Tensor, "batch token"],
    ) -> None:
        """sum_h (A_h x)^T (A_h x) is x^T (sum_h A_h^T A_h) x, whose middle is small where texts are short.

        The middle is a sum of products of probabilities, for which their own precision does.
        """
        rows = (probs * real[:, None, :, None]).flatten(1, 2)  # [batch, head x query, key]
        flat, among_keys = inputs.flatten(0, 1), (rows.mT @ rows).double()
        self.keyed += (flat.T @ (inputs * rows.sum(dim=1, dtype=torch.float64)[..., None]).flatten(0, 1)).cpu()
        self.mixed += (flat.T @ (among_keys @ inputs).flatten(0, 1)).cpu()

    def means(self, layer: LayerWeights) -> Moments:
        plain, per_head = self.plain / self.tokens, max(self.heads, 1) * self.tokens
        return Moments(plain, self.keyed / per_head, self.mixed / per_head, _queries(layer, plain), self.tokens)


def _queries(layer: LayerWeights, plain: Square) -> Float[Tensor, "head part"]:
    """Follow from the plain moments: a query is linear in (x, 1), and no rotation changes the size of a pair."""
    bias = layer.q.new_zeros(layer.q.shape[:2]) if layer.q_bias is None else layer.q_bias
    maps = torch.cat([layer.q, bias[..., None]], dim=-1)  # [head, dim, input]
    squares = torch.einsum("hdi,ij,hdj->hd", maps, plain, maps)
    if layer.rotary is None:
        return squares
    turning, still = squares.split([2 * layer.rotary.pairs, squares.shape[1] - 2 * layer.rotary.pairs], dim=1)
    pairs = turning.unflatten(1, (-1, 2)).sum(-1) if layer.rotary.interleaved else sum(turning.chunk(2, dim=1))
    return torch.cat([pairs, still], dim=1)
