"""The weights of every head under the names of the formulas, and the norms that heads read through.

Families write the same four matrices in many ways: apart or fused, interleaved by head or not, grouped, transposed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.arch import Site, attention_sites, family_of, output_projection
from headlens.errors import UnsupportedModel
from headlens.models import head_counts, network_of
from headlens.replace import read_huggingface


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """What one layer does to its input x, in the model's dtype: head h has `x @ q[h]` for its queries, and so on.

    Without biases, and without what some families do to queries and keys afterwards (rotary embedding, Qwen 3's norms).
    With grouped heads, head h uses the keys and values of group `h // (heads / groups)`.
    """

    q: Float[Tensor, "head hidden dim"]
    k: Float[Tensor, "kv hidden dim"]
    v: Float[Tensor, "kv hidden dim"]
    o: Float[Tensor, "head dim hidden"]

    def of_each_head(self, grouped: Float[Tensor, "kv hidden dim"]) -> Float[Tensor, "head hidden dim"]:
        """`k` or `v`, once for every head that uses it."""
        return grouped.repeat_interleave(self.q.shape[0] // max(grouped.shape[0], 1), dim=0)

    def seen_through(self, norm: Norm) -> HeadWeights:
        """The same heads, reading from the residual stream itself rather than from what `norm` makes of it.

        A norm that subtracts the mean makes what heads write along (1, 1, ...) invisible, so that is taken off `o`.
        """
        o = self.o - self.o.mean(dim=-1, keepdim=True) if norm.is_centring else self.o
        return HeadWeights(norm.fold(self.q), norm.fold(self.k), norm.fold(self.v), o)

    def in_single_precision(self) -> HeadWeights:
        """The same in float32 at least."""
        return HeadWeights(*(at_least_float32(part) for part in (self.q, self.k, self.v, self.o)))


@dataclass(frozen=True, eq=False)
class Norm:
    """A LayerNorm (which subtracts the mean) or RMSNorm, without its bias and its division by the size of the input."""

    gain: Float[Tensor, " hidden"]
    is_centring: bool

    def fold(self, weight: Float[Tensor, "*lead hidden out"]) -> Float[Tensor, "*lead hidden out"]:
        """`x @ norm.fold(W)` is `norm(x) @ W`, up to the size of x and a constant: what reads x without the norm."""
        scaled = self.gain.to(weight)[:, None] * weight
        return scaled - scaled.mean(dim=-2, keepdim=True) if self.is_centring else scaled


def at_least_float32(values: Tensor) -> Tensor:
    return values if values.dtype.itemsize >= 4 else values.float()


@torch.no_grad()
def head_weights(model: PreTrainedModel) -> list[HeadWeights]:
    """Weights of all heads, layer by layer, in the model's dtype and on its device.

    Of a pruned model those of the heads that are there, in the order of `Site.heads`.

    Raises
    ------
    UnsupportedModel
        A family whose layout is not known, cross-attention, layers that were changed (adapters, quantized weights) or
        pruned to different numbers of heads by other tools, weights that are not finite.
    """
    network, layout = _network_and_layout(model)
    sites = _sites(network)
    layers = [_read(network, layout, site) for site in sites]
    counts = sorted({layer.q.shape[0] for layer in layers})
    if len(counts) > 1 and any(site.heads is None for site in sites):
        raise UnsupportedModel(
            f"The layers of {type(network).__name__} have different numbers of heads ({', '.join(map(str, counts))}), "
            f"as if heads had been pruned; which ones is not known, so take the model as it was loaded."
        )
    for number, layer in enumerate(layers):
        if not all(part.isfinite().all() for part in (layer.q, layer.k, layer.v, layer.o)):
            raise UnsupportedModel(
                f"Layer {number} of {type(network).__name__} has weights that are no finite numbers; its file is "
                f"damaged or its training diverged: take another checkpoint."
            )
    return layers


def stream_weights(model: PreTrainedModel) -> list[HeadWeights]:
    """Weights in float32 at least, as they read from the residual stream itself and write to it; as `head_weights`."""
    layers, norms = [layer.in_single_precision() for layer in head_weights(model)], input_norms(model)
    return layers if norms is None else [layer.seen_through(norm) for layer, norm in zip(layers, norms, strict=True)]


def stream_room(model: PreTrainedModel) -> int:
    """Dimensions of the residual stream that the heads of a pre-norm model can see."""
    norms = input_norms(model)
    assert norms, "heads of post-norm models read what a norm has made of the stream"
    return len(norms[0].gain) - norms[0].is_centring


def input_norms(model: PreTrainedModel) -> list[Norm] | None:
    """The norm that each layer's heads read the residual stream through.

    None for families that normalise the stream itself after every layer (BERT and the like): their heads read it as
    it is.
    """
    network, layout = _network_and_layout(model)
    if not _is_pre_norm(network, layout):
        return None
    return [_norm(_block(network, site).get_submodule(layout.norm_in)) for site in _sites(network)]


def final_norm(model: PreTrainedModel) -> Norm | None:
    """The norm between the last layer and the vocabulary head; None where there is none."""
    network, layout = _network_and_layout(model)
    module: Any = network
    for part in layout.norm_out.split("."):  # not get_submodule: OPT's may be None
        module = getattr(module, part, None)
    return None if module is None else _norm(module)


def is_rotary(model: PreTrainedModel) -> bool:
    """Whether queries and keys are turned by their positions before they meet."""
    return _network_and_layout(model)[1].is_rotary


@torch.no_grad()
def embeddings_after_mlp(model: PreTrainedModel, ids: Int[Tensor, " token"]) -> Float[Tensor, "token hidden"]:
    """Embeddings of tokens plus what layer 0's MLP adds to them, in float32 at least: what later heads find of a token.

    The "effective embedding" of McDougall et al. 2023: attention and positions are left out. Pre-norm
    models only.
    """
    network, layout = _network_and_layout(model)
    assert layout.mlp is not None, "post-norm models have no residual stream that could be read so"
    block = copy.deepcopy(_block(network, _sites(network)[0])).eval()  # in train mode dropout would make noise
    embeddings = network.get_input_embeddings().weight[ids]
    added = [layout.mlp(block, chunk) for chunk in embeddings.split(_TOKENS_AT_ONCE)]
    return at_least_float32(embeddings) + at_least_float32(torch.cat(added))


_TOKENS_AT_ONCE = 1024  # through an MLP, whose inner width is several times that of the model


# ------------------------------------------------------------------------------------------------------------- layouts


@dataclass(frozen=True)
class _Layout:
    """Where a family keeps things. Paths of norms: from the layer, and from the base model."""

    read: Callable[[nn.Module, Site], tuple[Tensor, Tensor, Tensor, Tensor]]  # q, k, v, o, each [out, in]
    norm_in: str = ""  # empty: the stream is normalised after every layer instead
    norm_out: str = ""
    mlp: Callable[[Any, Tensor], Tensor] | None = None  # what a layer adds beside its attention
    is_rotary: bool = False


def _known_to_replace(network: nn.Module, site: Site) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    mha = read_huggingface(network, site.layer)
    return mha.q_proj.weight, mha.k_proj.weight, mha.v_proj.weight, mha.o_proj.weight


def _named(*names: str) -> Callable[[nn.Module, Site], tuple[Tensor, Tensor, Tensor, Tensor]]:
    def read(network: nn.Module, site: Site) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        q, k, v = (_weight(getattr(site.module, name), f"{site.name}.{name}") for name in names)
        return q, k, v, _weight(output_projection(network, site), f"the output projection of {site.name}")

    return read


def _neox(network: Any, site: Site) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    fused = _weight(site.module.query_key_value, f"{site.name}.query_key_value")
    dim = head_counts(network.config)["head_dim"]
    by_head = fused.unflatten(0, (-1, 3, dim))  # the rows of each head: its q, its k, its v
    q, k, v = (part.flatten(0, 1) for part in by_head.unbind(1))
    return q, k, v, _weight(output_projection(network, site), f"the output projection of {site.name}")


def _opt_mlp(block: Any, hidden: Tensor) -> Tensor:
    return block.fc2(block.activation_fn(block.fc1(block.final_layer_norm(hidden))))


def _gpt2_mlp(block: Any, hidden: Tensor) -> Tensor:
    return block.mlp(block.ln_2(hidden))


def _llama_mlp(block: Any, hidden: Tensor) -> Tensor:
    return block.mlp(block.post_attention_layernorm(hidden))


_LLAMA_PARTS: dict[str, Any] = {"norm_in": "input_layernorm", "norm_out": "norm", "mlp": _llama_mlp, "is_rotary": True}
_QKV = _named("q_proj", "k_proj", "v_proj")
_LAYOUTS = {
    **dict.fromkeys(["bert", "roberta", "xlm-roberta", "camembert", "electra"], _Layout(_known_to_replace)),
    **dict.fromkeys(["ernie", "data2vec-text"], _Layout(_named("query", "key", "value"))),
    "distilbert": _Layout(_named("q_lin", "k_lin", "v_lin")),
    "gpt2": _Layout(_known_to_replace, "ln_1", "ln_f", _gpt2_mlp),
    "opt": _Layout(_QKV, "self_attn_layer_norm", "decoder.final_layer_norm", _opt_mlp),
    "gpt_neox": _Layout(_neox, "input_layernorm", "final_layer_norm", _llama_mlp, is_rotary=True),
    **dict.fromkeys(["llama", "mistral", "qwen2"], _Layout(_known_to_replace, **_LLAMA_PARTS)),
    "qwen3": _Layout(_QKV, **_LLAMA_PARTS),
}


def _network_and_layout(model: PreTrainedModel) -> tuple[PreTrainedModel, _Layout]:
    family = family_of(model)
    if family not in _LAYOUTS:
        raise UnsupportedModel(
            f"Where {family!r} keeps the weights of its heads is not known (known: {', '.join(_LAYOUTS)}); choose a "
            f"model of one of those families."
        )
    return network_of(model), _LAYOUTS[family]


def _sites(network: PreTrainedModel) -> list[Site]:
    sites = attention_sites(network)
    if any(site.stack == "cross" for site in sites):
        raise UnsupportedModel(
            f"{type(network).__name__} has cross-attention layers, whose heads read from two streams; choose a model "
            f"with self-attention only."
        )
    return sites


def _is_pre_norm(network: PreTrainedModel, layout: _Layout) -> bool:
    return bool(layout.norm_in) and getattr(network.config, "do_layer_norm_before", True)  # OPT 350m is post-norm


def _block(network: PreTrainedModel, site: Site) -> nn.Module:
    return network.get_submodule(site.name.rpartition(".")[0])


def _read(network: PreTrainedModel, layout: _Layout, site: Site) -> HeadWeights:
    dim = head_counts(network.config)["head_dim"]
    if site.is_empty:
        weight = next(network.parameters())
        nothing = weight.new_zeros(0, head_counts(network.config)["hidden"], dim)
        return HeadWeights(nothing, nothing, nothing, nothing.mT)
    q, k, v, o = (weight.detach() for weight in layout.read(network, site))
    q, k, v = (weight.unflatten(0, (-1, dim)).mT for weight in (q, k, v))
    return HeadWeights(q, k, v, o.T.unflatten(0, (-1, dim)))


def _weight(projection: object, name: str) -> Tensor:
    if type(projection) is not nn.Linear:
        raise UnsupportedModel(
            f"{name} is a {type(projection).__name__}, not a plain linear layer: merge its adapters or load the model "
            f"unquantized."
        )
    if projection.weight.is_meta:
        raise UnsupportedModel(f"The weights of {name} are not in memory: load the model without offloading it.")
    return projection.weight


def _norm(module: nn.Module) -> Norm:
    is_layer_norm = isinstance(module, nn.LayerNorm)
    if not is_layer_norm and not type(module).__name__.endswith("RMSNorm"):
        raise UnsupportedModel(
            f"A {type(module).__name__} stands where a LayerNorm or RMSNorm was expected; take the "
            f"model as it was loaded."
        )
    gain = module.weight
    if gain is None:
        assert isinstance(module, nn.LayerNorm)
        gain = torch.ones(module.normalized_shape)
    assert isinstance(gain, Tensor)
    return Norm(gain.detach(), is_layer_norm)
