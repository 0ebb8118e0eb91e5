"""What heads take from where they look: attention weighted by the size of what it brings.

A head that attends to key j with the weight a_ij adds a_ij f(x_j) to the residual stream, f(x) = (x W_V + b_V) W_O.
The weight alone tells where a head looks; the norm of the product tells what it takes from there (Kobayashi et al.
2020, "Attention is Not Only a Weight"). W_O's own bias belongs to no head, and norms are taken before any
normalisation that follows the layer.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headlens.analyzers.base import Analyzer, Sums
from headlens.analyzers.surface import CLASSES, kinds_of_tokens, sinks
from headlens.arch import Site, attention_sites, is_transposed, output_projection, output_weight
from headlens.attention import MultiHeadAttention
from headlens.errors import UnsupportedModel
from headlens.models import head_counts
from headlens.records import Batch, LayerAttention, Stack
from headlens.scores import Metric

# A head has a sink that does nothing where over SINK_WEIGHT of its attention goes to sinks (Gu et al. 2025: .3 on the
# first token) and their share of the norms is under NO_OP_RATIO of that (our choice, after Kobayashi et al. 2020).
SINK_WEIGHT = 0.3
NO_OP_RATIO = 1 / 3

NEIGHBOURS = {0: ("self", "the token itself"), -1: ("previous", "the previous token"), 1: ("next", "the next token")}
_KINDS = tuple(CLASSES.values())
_SINK, _OTHER = len(_KINDS), len(_KINDS) + 1  # columns behind those of the kinds
_PLAIN = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class Contribution(Analyzer):
    """Where what a head writes comes from, whether its sinks do nothing, and how much it writes.

    Rows are the tokens that are neither special nor padding, kinds of tokens and sinks those of Surface. A share of
    keys is their part of sum_j ||a_ij f(x_j)||, row by row, then the mean over rows; a row in which a head takes
    nothing at all has no shares and is left out. By chance all f(x_j) are of one size, so that the shares are those of
    uniform attention, ratios are 1, and all heads of a layer write alike: those of the original model, also where some
    were removed.

    Parameters
    ----------
    network
        The model that will be run, with the weights that it will have: its W_O is read here and once.

    Raises
    ------
    UnsupportedModel
        Where W_O is in this family is not known, or it is not kept as a plain matrix (quantised weights).
    """

    name = "contribution"
    metrics = (
        *(
            Metric(
                f"contribution.{metric}",
                f"Contribution of {words}",
                f"Mean share of what a row takes, by norm, that comes from {words}.",
                "share",
            )
            for metric, words in (*_KINDS, *NEIGHBOURS.values())
        ),
        Metric(
            "contribution.norm_of_sink",
            "Size of sinks",
            "Mean norm of what the first token and special tokens offer to the head, over the mean of other tokens.",
            "ratio",
        ),
        Metric(
            "contribution.sink_weight",
            "Mass on sinks",
            "Mean share of a row's attention that goes to the first token and special tokens together.",
            "share",
        ),
        Metric(
            "contribution.sink_share",
            "Contribution of sinks",
            "Mean share of what a row takes, by norm, that comes from the first token and special tokens together.",
            "share",
        ),
        Metric(
            "contribution.sink_ratio",
            "Contribution of sinks over their mass",
            f"Contribution of sinks over mass on sinks; under {NO_OP_RATIO:.2f}, in a head with over {SINK_WEIGHT:.2f} "
            "of its mass there, the head looks there to do nothing.",
            "ratio",
        ),
        Metric(
            "contribution.size",
            "Share of what the layer writes",
            "Norm of the head's output, summed over rows, as a share of the same sum over all heads of its layer.",
            "share",
        ),
    )

    def __init__(self, network: nn.Module) -> None:
        self._factors = output_factors(network)
        self._heads = attention_sites(network)[0].heads_before or len(next(iter(self._factors.values())))
        self._latest = _Latest()

    def observe(self, attention: LayerAttention, batch: Batch) -> Sums:
        probs, start, keys = attention.probs, attention.query_start, attention.probs.shape[-1]
        own = slice(start, start + probs.shape[2])  # the tokens of these rows: each comes in one slice only
        rows = batch.rows[:, own]
        norms = self._norms_of_keys(attention, batch)
        sizes = (norms[:, :, None] @ probs.mT).squeeze(2)  # [batch, head, query]: sum over keys of ||a f||
        counted = rows[:, None] & (sizes > torch.finfo(sizes.dtype).tiny)
        weight = counted / sizes.where(counted, 1)
        by_key = torch.stack([weight, rows[:, None].to(weight).expand_as(weight)], dim=2) @ probs
        by_key[:, :, 0] *= norms
        marks = batch.derived("contribution.marks", _marks).to(probs.dtype)
        taken, paid = (by_key.flatten(1, 2) @ marks[:, :keys]).unflatten(1, (-1, 2)).unbind(dim=2)
        return {
            "rows": rows.sum(dim=-1)[:, None],
            "counted": counted.sum(dim=-1),
            "tokens": marks[:, own].sum(dim=1)[:, None],
            "offered": norms[:, :, own] @ marks[:, own],
            "taken": taken,
            "paid": paid,
            "neighbours": _at_neighbours(probs, weight, norms, start),
            "size": (self._norms_of_outputs(attention) * rows[:, None]).sum(dim=-1),
        }

    def score(self, sums: Sums) -> dict[str, Tensor]:
        taken, paid = sums["taken"] / sums["counted"][..., None], sums["paid"] / sums["rows"][..., None]
        neighbours, offered = sums["neighbours"] / sums["counted"][..., None], sums["offered"] / sums["tokens"]
        scores = {f"contribution.{metric}": taken[..., i] for i, (metric, _) in enumerate(_KINDS)}
        scores |= {f"contribution.{metric}": neighbours[..., i] for i, (metric, _) in enumerate(NEIGHBOURS.values())}
        return scores | {
            "contribution.norm_of_sink": _ratio(offered[..., _SINK], offered[..., _OTHER]),
            "contribution.sink_weight": paid[..., _SINK],
            "contribution.sink_share": taken[..., _SINK],
            "contribution.sink_ratio": _ratio(taken[..., _SINK], paid[..., _SINK]),
            "contribution.size": sums["size"] / sums["size"].sum(dim=-1, keepdim=True),
        }

    def support(self, sums: Sums) -> dict[str, Tensor]:
        rows, counted, tokens = sums["rows"], sums["counted"], sums["tokens"]
        occurring = torch.where(tokens > 0, counted[..., None], 0)
        supports = {f"contribution.{metric}": occurring[..., i] for i, (metric, _) in enumerate(_KINDS)}
        supports |= {
            "contribution.norm_of_sink": torch.where(sums["offered"][..., _OTHER] > 0, tokens[..., _SINK], 0),
            "contribution.sink_weight": rows,
            "contribution.sink_ratio": torch.where(sums["paid"][..., _SINK] > 0, counted, 0),
            "contribution.size": torch.where(sums["size"].sum(dim=-1, keepdim=True) > 0, rows, 0),
        }
        return {metric.name: supports.get(metric.name, counted) for metric in self.metrics}

    def chance(self, uniform: Sums) -> dict[str, Tensor]:
        scores = self.score(uniform)
        size = scores["contribution.size"]
        return scores | {"contribution.size": torch.where(size.isfinite(), 1 / self._heads, size)}

    def _norms_of_keys(self, attention: LayerAttention, batch: Batch) -> Float[Tensor, "batch head key"]:
        """||f(x_j)|| of every key, 0 for padding."""
        if not _is_uniform(attention):
            return self._latest.norms(attention, batch, self._factors[attention.stack, attention.layer])
        batches, heads, _, keys = attention.probs.shape
        return batch.attention_mask[:, None, :keys].to(attention.probs).expand(batches, heads, keys)

    def _norms_of_outputs(self, attention: LayerAttention) -> Float[Tensor, "batch head query"]:
        if _is_uniform(attention):
            return attention.probs.new_ones(attention.probs.shape[:3])
        return norms_after(attention.context, self._factors[attention.stack, attention.layer])


def output_factors(network: nn.Module) -> dict[tuple[Stack, int], Float[Tensor, "head dim rank"]]:
    """By stack and layer a small stand-in for each head's W_O: ||v @ factor|| = ||v @ W_O|| for every v.

    W_O^T = QR, and Q turns vectors without changing their norms, so that R^T stands for W_O. (A Gram matrix would be
    as small, but v G v^T loses half of the digits where W_O lets little of v through, as with sinks.) Layers that have
    lost all their heads have none.
    """
    sites = [site for site in attention_sites(network) if not site.is_empty]
    return {(site.stack, site.layer): _factor(network, site) for site in sites}


def norms_after(
    values: Float[Tensor, "batch kv token dim"], factor: Float[Tensor, "head dim rank"]
) -> Float[Tensor, "batch head token"]:
    """Norms of values, or of contexts, behind each head's W_O; head h reads from key/value head h // (head / kv)."""
    factor = factor.to(values.device)
    grouped = factor.unflatten(0, (values.shape[1], -1))  # [kv, group, dim, rank]
    written = torch.einsum("bktd,kgdr->bkgtr", values.to(factor.dtype), grouped)
    return torch.linalg.vector_norm(written, dim=-1).flatten(1, 2)


class _Latest:
    """Norms of the layer that is being observed: its slices share their values, causal ones the first of them.

    They are computed once and forgotten with the last row. To hold on to the values keeps their memory from being
    given away, so that until then the same address means the same values.
    """

    _values: Tensor
    _factor: Tensor
    _norms: Tensor
    _rows: int

    def __init__(self) -> None:
        self._forget()

    def norms(self, attention: LayerAttention, batch: Batch, factor: Tensor) -> Float[Tensor, "batch head key"]:
        keys = attention.v.shape[2]
        if self._factor is not factor or not _is_start_of(attention.v, self._values):
            self._forget()
            norms = norms_after(attention.v, factor).to(attention.probs.dtype)
            self._norms = norms.masked_fill(~batch.attention_mask[:, None, :keys], 0)
            self._values, self._factor = attention.v, factor
        norms = self._norms[:, :, :keys]
        self._rows += attention.probs.shape[2]
        if self._rows >= batch.attention_mask.shape[1]:
            self._forget()
        return norms

    def _forget(self) -> None:
        self._values = self._factor = self._norms = torch.zeros(0)
        self._rows = 0


def _is_start_of(part: Tensor, whole: Tensor) -> bool:
    """Whether `part` [batch, kv, key, dim] is a view of the first keys of `whole`."""
    is_same_memory = part.data_ptr() == whole.data_ptr() and part.stride() == whole.stride()
    return is_same_memory and part.shape[:2] == whole.shape[:2] and part.shape[2] <= whole.shape[2]


def _factor(network: nn.Module, site: Site) -> Float[Tensor, "head dim rank"]:
    projection = output_projection(network, site)
    heads, dim = _sizes(network, site)
    weight = _plain_weight(projection, site)
    width = weight.shape[0 if is_transposed(projection) else 1]
    if width != heads * dim:
        raise UnsupportedModel(
            f"The output projection of {site} should take {dim} numbers from each of {heads} heads, {heads * dim} in "
            f"all, and takes {width}; contributions of heads are known only where they go there directly."
        )
    out = output_weight(projection, heads).detach().double()
    triangular = torch.linalg.qr(out.mT, mode="r").R  # [head, rank, dim]
    return triangular.mT.to(torch.promote_types(weight.dtype, torch.float32)).contiguous()


def _plain_weight(projection: nn.Module, site: Site) -> Tensor:
    """Not of a layer that computes with more than its matrix: with scales of quantised weights, or with an adapter."""
    is_linear = isinstance(projection, nn.Linear) or is_transposed(projection)
    weight = getattr(projection, "weight", None) if is_linear else None
    if not isinstance(weight, Tensor) or weight.dtype not in _PLAIN:
        raise UnsupportedModel(
            f"The output projection of {site} ({type(projection).__name__}) is not just a plain matrix of weights; "
            f"contributions of heads need a model without quantisation, and with adapters merged."
        )
    return weight


def _sizes(network: nn.Module, site: Site) -> tuple[int, int]:
    """Heads of a layer, and how many numbers each of them hands to W_O."""
    if isinstance(site.module, MultiHeadAttention):
        return site.module.num_heads, site.module.head_dim
    counts = head_counts(network.config)
    return counts["heads"] if site.heads is None else len(site.heads), counts["head_dim"]


def _is_uniform(attention: LayerAttention) -> bool:
    """The head that chance levels are taken from has probabilities, and no values."""
    return attention.v.shape[-1] == 0


def _marks(batch: Batch) -> Float[Tensor, "batch token mark"]:
    """1 where a token is of a kind, or a sink, or neither a sink nor padding."""
    sink = sinks(batch)
    return torch.cat([kinds_of_tokens(batch), sink[..., None], (batch.attention_mask & ~sink)[..., None]], dim=-1)


def _at_neighbours(probs: Tensor, weight: Tensor, norms: Tensor, start: int) -> Float[Tensor, "batch head neighbour"]:
    """Shares of the keys at each offset of NEIGHBOURS, summed over rows; a row without such a key adds nothing."""
    found = []
    for offset in NEIGHBOURS:
        paid = probs.diagonal(start + offset, dim1=-2, dim2=-1)  # [batch, head, pair]
        row, key = max(0, -start - offset), max(0, start + offset)
        pairs = paid.shape[-1]
        found.append((paid * weight[..., row : row + pairs] * norms[..., key : key + pairs]).sum(dim=-1))
    return torch.stack(found, dim=-1)


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    return torch.where(whole > 0, part / whole, torch.nan)
