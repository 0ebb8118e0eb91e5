"""What the weights alone say of heads: do they copy what they read, and do later heads read what they write?

W_OV = W_V W_O is what a head writes of a token that it attends to, W_QK = W_Q W_K^T what attends to what (Elhage et al.
2021, "A Mathematical Framework for Transformer Circuits"). All matrices are hidden x hidden of rank `dim`, so nothing
here is larger than that rank asks for: eig(A B) = eig(B A), and norms of products come from small factors.

The weights are those of the residual stream itself: gains of norms are folded into what reads through them, and where
norms subtract the mean, so is that. The division by the size of the stream is left out, as it is no matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from headlens.arch import attention_sites
from headlens.behaviour.head_weights import (
    HeadWeights,
    at_least_float32,
    embeddings_after_mlp,
    final_norm,
    input_norms,
    is_rotary,
    stream_room,
    stream_weights,
)
from headlens.behaviour.unembedding import unembedding
from headlens.errors import UnsupportedModel
from headlens.models import LoadedModel, head_counts, network_of
from headlens.scores import Floats, Metric, ScoreTable, head_name

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["q", "k", "v"]

TOP = 5  # a token is copied if it is among so many largest of its own logits: Wang et al. 2023, copy score
BOTTOM = 10  # and suppressed if it is among so many smallest: McDougall et al. 2023

_SIDES: dict[Kind, str] = {"q": "queries", "k": "keys", "v": "values"}
_METRICS = (
    Metric(
        "circuits.ov_eigenvalue",
        "Copying, by eigenvalues of W_OV",
        "Sum of the eigenvalues from what the head reads to what it writes, over the sum of their sizes; 1 = it writes "
        "what it reads, -1 = its negative.",
        "ratio",
    ),
    Metric(
        "circuits.ov_full",
        "Copying, by eigenvalues from token to token",
        "The same for the way from the embedding of a token through the head to the logits of all tokens.",
        "ratio",
    ),
    Metric(
        "circuits.ov_effective",
        "Copying, by eigenvalues from token to token, after the first MLP",
        "The same between sampled tokens, with what the MLP of layer 0 makes of a token in place of its embedding.",
        "ratio",
    ),
    Metric(
        "circuits.copy_top5",
        "Tokens that the head copies",
        f"Share of sampled tokens that are among the {TOP} whose logits the head raises most when it attends to them.",
        "share",
    ),
    Metric(
        "circuits.copy_suppression",
        "Tokens that the head suppresses",
        f"Share of sampled tokens that are among the {BOTTOM} whose logits the head lowers most when it attends to "
        "them.",
        "share",
    ),
    *(
        Metric(
            f"circuits.{kind}_composition",
            f"Largest {kind.upper()}-composition",
            f"How much of what an earlier head writes ends up in this head's {side}, above what matrices turned at "
            f"random give; of all earlier heads the largest.",
            "ratio",
        )
        for kind, side in _SIDES.items()
    ),
)
METRICS = {metric.name: metric for metric in _METRICS}
_OF_VOCABULARY = ("circuits.ov_full", "circuits.ov_effective", "circuits.copy_top5", "circuits.copy_suppression")


@dataclass(frozen=True)
class HeadPair:
    """An earlier head and a later one that reads from it."""

    from_layer: int
    from_head: int
    layer: int
    head: int
    value: float

    def __str__(self) -> str:
        return f"{head_name(self.from_layer, self.from_head)} to {head_name(self.layer, self.head)}"


@dataclass(frozen=True, eq=False)
class Composition:
    """How much the queries, keys or values of each head read of what each earlier head writes.

    norm(W_A W_B) / (norm(W_A) norm(W_B)) less `baseline`, with Frobenius norms: W_A is the earlier head's W_OV, W_B the
    later one's W_QK, its transpose, or its W_OV. NaN where the first head stands in no earlier layer, and where one of
    the two was removed.
    """

    kind: Kind
    values: Floats  # [layer, head, layer, head]: from, to
    baseline: float  # what two matrices of the same singular values give, turned at random against each other

    def best(self, n: int = 5) -> list[HeadPair]:
        """The `n` pairs with the largest values, in order; of equal ones the earlier."""
        flat = self.values.ravel()
        order = np.argsort(-flat, kind="stable")[: int(np.isfinite(flat).sum())][:n]  # NaN sorts last
        columns = (*np.unravel_index(order, self.values.shape), flat[order])
        return list(map(HeadPair, *(column.tolist() for column in columns)))

    def to_frame(self) -> pd.DataFrame:
        """Long form: one row for each pair, with the columns kind, from_layer, from_head, layer, head, value."""
        import pandas as pd

        there = np.nonzero(np.isfinite(self.values))
        places = dict(zip(("from_layer", "from_head", "layer", "head"), there, strict=True))
        return pd.DataFrame({"kind": self.kind, **places, "value": self.values[there]})

    def largest(self) -> Floats:
        """Of every head [layer, head] the largest value with an earlier one; NaN in layer 0."""
        reading = np.where(np.isfinite(self.values), self.values, -np.inf).max(axis=(0, 1))
        return np.where(np.isfinite(reading), reading, np.nan)


@dataclass(frozen=True, eq=False)
class Circuits:
    """Scores of every head, compositions of every pair of heads, and by name what is not there, with the reason."""

    scores: ScoreTable
    compositions: dict[Kind, Composition]
    left_out: dict[str, str]


@torch.no_grad()
def circuits(model: PreTrainedModel | LoadedModel, *, seed: int = 0, sample: int = 1000) -> Circuits:
    """Scores from the weights alone: no text is run, so there are no intervals.

    Chance levels are those of a head whose W_OV has the same singular values and is turned at random (Haar). Turned
    matrices come in pairs of opposite sign, so their eigenvalue scores have mean 0; what they write has no preferred
    direction, so of V tokens `TOP / V` are copied and `BOTTOM / V` are suppressed.

    Heads that were removed from the model have no scores.

    Parameters
    ----------
    model
        What `load_model` gave, or a model of transformers; best with its vocabulary head.
    seed, sample
        How many tokens are drawn for what is asked of single tokens, and the seed of the draw.

    Raises
    ------
    UnsupportedModel
        A family that `head_weights` does not know, a model that has lost all its heads, or a sample of less than one
        token.
    """
    if sample < 1:
        raise UnsupportedModel(f"A sample of tokens needs at least one, got sample={sample}.")
    network = network_of(model.model if isinstance(model, LoadedModel) else model)
    layers, places = stream_weights(network), _Places.of(network)
    if not any(places.heads):
        raise UnsupportedModel("All heads of the model were removed, so there are no weights to read.")
    rank = layers[0].o.shape[1]
    eigenvalues = [eigenvalue_score(layer.o @ layer.of_each_head(layer.v)) for layer in layers]
    rows = {"circuits.ov_eigenvalue": _Row(places.by_head(eigenvalues), rank, 0.0)}
    left_out: dict[str, str] = {}
    try:
        rows |= _rows_of_vocabulary(layers, places, _vocabulary(model, network, seed, sample))
    except UnsupportedModel as reason:
        left_out |= dict.fromkeys(_OF_VOCABULARY, str(reason))
    reasons = _why_not_composed(network, layers)
    left_out |= {f"circuits.{kind}_composition": reason for kind, reason in reasons.items()}
    found = {kind: _composition(kind, layers, places, stream_room(network)) for kind in _SIDES if kind not in reasons}
    for kind, composition in found.items():
        pairs = np.isfinite(composition.values).sum(axis=(0, 1)).astype(float)
        rows[f"circuits.{kind}_composition"] = _Row(composition.largest(), pairs, np.nan)
    return Circuits(_table(rows, places), found, left_out)


def eigenvalue_score(matrices: Float[Tensor, "head dim dim"]) -> Float[Tensor, " head"]:
    """Sum of the eigenvalues over the sum of their sizes, -1..1; NaN where all are 0. Elhage et al. 2021, on
    detecting copying."""
    eigenvalues = torch.linalg.eigvals(matrices.cpu().double())
    return eigenvalues.real.sum(dim=-1) / eigenvalues.abs().sum(dim=-1)


def own_token_shares(
    read: Float[Tensor, "head token dim"],
    write: Float[Tensor, "head dim hidden"],
    unembed: Float[Tensor, "vocabulary hidden"],
    own: Int[Tensor, " token"],
) -> tuple[Float[Tensor, " head"], Float[Tensor, " head"]]:
    """Shares of tokens that are among the TOP largest, and the BOTTOM smallest, of their logits `read write unembed^T`.

    `own` is the row of each token in `unembed`; of equal logits its own comes last on either side. Exact: a token is
    dropped only once it has been seen that it is neither.
    """
    logit = torch.stack([((r @ w) * unembed[own]).sum(dim=-1) for r, w in zip(read, write, strict=True)])
    above, below = (torch.zeros(logit.shape, dtype=torch.long, device=logit.device) for _ in range(2))
    is_open = torch.ones_like(above, dtype=torch.bool)
    start, width = 0, _FIRST_RIVALS
    while start < len(unembed) and is_open.any():
        rivals = unembed[start : start + width]
        for some, logits in _against(rivals, read, write, is_open):
            column = (own - start).expand_as(some)[some]
            is_here = (column >= 0) & (column < len(rivals))
            logits[is_here, column[is_here]] = torch.nan  # no token is its own rival
            above[some] += (logits >= logit[some][:, None]).sum(dim=-1)
            below[some] += (logits <= logit[some][:, None]).sum(dim=-1)
        is_open &= (above < TOP) | (below < BOTTOM)
        start += len(rivals)
        width = max(_FIRST_RIVALS, min(3 * start, _CELLS // max(int(is_open.sum()), 1)))
    return (above < TOP).double().mean(dim=-1), (below < BOTTOM).double().mean(dim=-1)


def _against(
    rivals: Float[Tensor, "rival hidden"],
    read: Float[Tensor, "head token dim"],
    write: Float[Tensor, "head dim hidden"],
    is_open: Bool[Tensor, "head token"],
) -> Iterator[tuple[Bool[Tensor, "head token"], Float[Tensor, "open rival"]]]:
    """Logits of open tokens for the rivals, in the cheaper order: by head where many are open, else of all heads."""
    is_crowded = is_open.sum(dim=-1) > 2 * read.shape[-1]
    for head in is_crowded.nonzero().flatten().tolist():
        alone = torch.zeros_like(is_open)
        alone[head] = is_open[head]
        yield alone, read[head, is_open[head]] @ (write[head] @ rivals.T)
    few = is_open & ~is_crowded[:, None]
    yield few, torch.cat([r[open_] @ w for r, open_, w in zip(read, few, write, strict=True)]) @ rivals.T


def squared_products(
    left: Float[Tensor, "left dim hidden"], right: Float[Tensor, "right hidden dim_too"]
) -> Float[Tensor, "left right"]:
    """Squared Frobenius norm of every `left[i] @ right[j]`.

    It is the inner product of left^T left and right right^T. Of those, hidden x hidden for every head, a few rows are
    in memory at a time, and of these symmetric matrices only the upper halves.
    """
    hidden = left.shape[2]
    total = left.new_zeros(len(left), len(right))
    rows = max(1, _CELLS // ((len(left) + len(right)) * hidden))
    for start in range(0, hidden, rows):
        from_left = left[:, :, start : start + rows].mT @ left[:, :, start:]  # [left, row, hidden from start on]
        from_right = right[:, start : start + rows] @ right[:, start:].mT
        from_left[:, :, rows:] *= 2  # for the lower half
        total += from_left.flatten(1) @ from_right.flatten(1).T
    return total


_FIRST_RIVALS = 64  # tokens that a token is held against at first; most drop out
_CELLS = 1 << 24  # numbers in memory at a time

# -------------------------------------------------------------------------------------------------------------- tables


class _Row(NamedTuple):
    """One metric of a ScoreTable."""

    values: Floats  # [layer, head]
    support: Floats | int  # [layer, head], or the same for all
    chance: float


@dataclass(frozen=True)
class _Places:
    """Which heads of the original model the weights of each layer are of."""

    heads: tuple[tuple[int, ...], ...]
    of_layer: int  # heads of a layer of the original model

    @classmethod
    def of(cls, network: PreTrainedModel) -> _Places:
        of_layer = head_counts(network.config)["heads"]
        sites = attention_sites(network)
        return cls(tuple(tuple(range(of_layer)) if site.heads is None else site.heads for site in sites), of_layer)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.heads), self.of_layer

    @property
    def flat(self) -> list[int]:
        """Heads numbered through all layers, in the order of the weights."""
        return [layer * self.of_layer + head for layer, heads in enumerate(self.heads) for head in heads]

    def by_head(self, of_layers: Sequence[Tensor]) -> Floats:
        """[layer, head], from a tensor [head] of each layer that has heads, or of all; NaN for those not there."""
        found = np.full(self.shape, np.nan)
        found.flat[self.flat] = torch.cat([*of_layers]).double().numpy()
        return found


def _table(rows: dict[str, _Row], places: _Places) -> ScoreTable:
    values = np.stack([row.values for row in rows.values()])
    no_interval = np.full_like(values, np.nan)
    is_there = np.zeros(places.shape, dtype=bool)
    is_there.flat[places.flat] = True
    return ScoreTable(
        metrics=tuple(METRICS[name] for name in rows),
        values=values,
        support=np.stack([np.where(is_there, row.support, 0).astype(float) for row in rows.values()]),
        low=no_interval,
        high=no_interval,
        chance=np.array([row.chance for row in rows.values()]),
    )


# ------------------------------------------------------------------------------------------------------- the vocabulary


@dataclass(frozen=True, eq=False)
class _Vocabulary:
    """What is read of tokens at the start of the residual stream, and how its end is turned into logits."""

    unembed: Float[Tensor, "vocabulary hidden"]  # with the final norm, and without what it gives to all tokens alike
    loop: Float[Tensor, "hidden hidden"]  # W_U W_E: from the end of the stream back to its start
    own: Int[Tensor, " sampled"]  # rows of the sampled tokens in `unembed`, whose order is not that of the ids
    embed: Float[Tensor, "sampled hidden"]  # what layer 0 reads of them
    effective: Float[Tensor, "sampled hidden"]  # and what later layers do, after the MLP of layer 0


def _vocabulary(model: PreTrainedModel | LoadedModel, network: PreTrainedModel, seed: int, sample: int) -> _Vocabulary:
    if input_norms(network) is None:
        raise UnsupportedModel(
            f"{type(network).__name__} normalises the residual stream again after every layer, so no matrix leads from "
            f"the embeddings through one head to the logits; only pre-norm models such as GPT-2 or Llama have one."
        )
    unembed = at_least_float32(unembedding(model))
    embed = at_least_float32(network.get_input_embeddings().weight)
    if embed.shape != unembed.shape:
        raise UnsupportedModel(
            f"The embeddings of {type(network).__name__} are {list(embed.shape)} and its vocabulary head is "
            f"{list(unembed.shape)}, so which token is which is not known; they must be of one shape [token, hidden]."
        )
    if not (unembed.isfinite().all() and embed.isfinite().all()):
        raise UnsupportedModel("The embeddings or the vocabulary head hold no finite numbers; take another checkpoint.")
    norm = final_norm(network)
    unembed = unembed if norm is None else norm.fold(unembed.T).T
    unembed = unembed - unembed.mean(dim=0)
    loop = unembed.T @ embed
    drawn = torch.randperm(len(unembed), generator=torch.Generator().manual_seed(seed))[:sample]
    ids = drawn.sort().values.to(unembed.device)
    # large ones first: tokens that they leave behind are dropped early
    order = unembed.norm(dim=-1).argsort(descending=True)
    return _Vocabulary(unembed[order], loop, order.argsort()[ids], embed[ids], embeddings_after_mlp(network, ids))


def _rows_of_vocabulary(layers: Sequence[HeadWeights], places: _Places, vocabulary: _Vocabulary) -> dict[str, _Row]:
    starts = (vocabulary.embed, vocabulary.effective)
    loops = [vocabulary.unembed[vocabulary.own].T @ start for start in starts]
    scores = []
    for number, layer in enumerate(layers):
        if not layer.q.shape[0]:
            continue
        which = min(number, 1)  # layer 0 reads before its own MLP
        v = layer.of_each_head(layer.v)
        full, effective = (eigenvalue_score(layer.o @ loop @ v) for loop in (vocabulary.loop, loops[which]))
        copied, suppressed = own_token_shares(starts[which] @ v, layer.o, vocabulary.unembed, vocabulary.own)
        scores.append((full, effective, copied.cpu(), suppressed.cpu()))
    rank, tokens, sampled = layers[0].o.shape[1], len(vocabulary.unembed), len(vocabulary.own)
    support = (rank, rank, sampled, sampled)
    chance = (0.0, 0.0, min(1.0, TOP / tokens), min(1.0, BOTTOM / tokens))
    rows = map(_Row, map(places.by_head, zip(*scores, strict=True)), support, chance)
    return dict(zip(_OF_VOCABULARY, rows, strict=True))


# --------------------------------------------------------------------------------------------------------- compositions


def _why_not_composed(network: PreTrainedModel, layers: Sequence[HeadWeights]) -> dict[Kind, str]:
    name = type(network).__name__
    if input_norms(network) is None:
        return dict.fromkeys(
            _SIDES,
            f"{name} normalises the residual stream again after every layer, so what a head writes does not reach "
            f"later heads by their weights alone; only pre-norm models such as GPT-2 or Llama have compositions.",
        )
    if len(layers) == 1:
        return dict.fromkeys(_SIDES, f"{name} has one layer, and heads compose with heads of earlier layers only.")
    if is_rotary(network):
        turned: tuple[Kind, ...] = ("q", "k")
        return dict.fromkeys(
            turned,
            f"{name} turns queries and keys by their positions (rotary embedding), so no one matrix W_QK says what "
            f"attends to what; V-composition does not need it.",
        )
    return {}


def _composition(kind: Kind, layers: Sequence[HeadWeights], places: _Places, room: int) -> Composition:
    # E norm(A R B)^2 = norm(A)^2 norm(B)^2 / room for a rotation R at random, since E R^T X R = tr(X) / room
    baseline = room**-0.5
    written = torch.cat([_scaled_to_one(_written(layer)) for layer in layers])
    read = torch.cat([_scaled_to_one(_read(layer, kind)) for layer in layers])
    ratio = squared_products(written, read).clamp_min(0).sqrt().cpu().double().numpy() - baseline
    values = np.full((*places.shape, *places.shape), np.nan)
    values.reshape(len(layers) * places.of_layer, -1)[np.ix_(places.flat, places.flat)] = ratio
    depth = np.arange(len(layers))
    is_earlier = (depth[:, None] < depth)[:, None, :, None]
    return Composition(kind, np.where(is_earlier, values, np.nan), baseline)


def _written(layer: HeadWeights) -> Float[Tensor, "head dim hidden"]:
    """W_OV up to a rotation from the left, which no norm of `W_OV X` sees: W_V = (rotation) R."""
    return _right_factor(layer.of_each_head(layer.v)) @ layer.o


def _read(layer: HeadWeights, kind: Kind) -> Float[Tensor, "head hidden dim"]:
    """W_QK, its transpose or W_OV, up to a rotation from the right."""
    q, k, v = layer.q, layer.of_each_head(layer.k), layer.of_each_head(layer.v)
    reading, rest = {"q": (q, k), "k": (k, q), "v": (v, layer.o.mT)}[kind]
    return reading @ _right_factor(rest).mT


def _right_factor(tall: Float[Tensor, "head hidden dim"]) -> Float[Tensor, "head dim dim"]:
    return torch.linalg.qr(tall, mode="r").R


def _scaled_to_one(matrices: Float[Tensor, "head rows columns"]) -> Float[Tensor, "head rows columns"]:
    return matrices / torch.linalg.matrix_norm(matrices, keepdim=True)
