"""How alike heads are: the Jensen-Shannon distance between where any two of them look, a map of it, and clusters.

Reading a saved table needs no torch, so what runs a model is imported where it is used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from headlens.errors import CaptureError, CorpusError, OutputError, in_words
from headlens.files import Write, write_together
from headlens.scores import WAY_OUT, head_name, read_arrow
from headlens.spreadsheets import csv_writer

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from headlens.capture import Way
    from headlens.records import Batch, LayerAttention

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Head = tuple[int, int]  # layer, head

SCHEMA_VERSION = "headlens.behaviour.similarity/1"
ROWS = 2000
ROWS_OF_INPUT = 16  # taken of one input as long as other inputs have some left
MOST_CLUSTERS = 10
LARGE = 2 / 3  # share of the heads in one cluster from which on it tells little
AS_GOOD = 0.8  # of the largest silhouette, which is given up for clusters none of which is LARGE; our choice

_PASS_BYTES = 256 << 20  # of the rows of all heads that are in memory at a time
_BLOCK_BYTES = 1 << 20  # of those that are compared at a time: they stay in a core's cache


@dataclass(frozen=True, eq=False)
class Similarity:
    """Distances between all heads of a model, in the order of layers and heads. The arrays are copied and read-only.

    Heads that were removed from the model are not among them.
    """

    heads: tuple[Head, ...]
    distance: Floats  # [head, head], nats: 0 = the same attention in every row, ln 2 = no key in common in any
    place: Floats  # [head, 2] on a map whose distances are as near to `distance` as a plane allows
    cluster: Ints  # [head], numbered from 0 in the order in which the heads come
    rows: int  # rows of attention that were compared
    inputs: int  # that they come from
    stress: float  # Kruskal's stress-1 of the map; 0 = exact, over .2 = take only what is far apart at its word
    silhouette: float  # of the clusters, -1..1; NaN where there is only one, or every head is one

    def __post_init__(self) -> None:
        n = len(self.heads)
        object.__setattr__(self, "heads", tuple((int(layer), int(head)) for layer, head in self.heads))
        for name, shape in (("distance", (n, n)), ("place", (n, 2)), ("cluster", (n,))):
            array = np.array(getattr(self, name), dtype=np.int64 if name == "cluster" else np.float64)
            array.flags.writeable = False
            object.__setattr__(self, name, array)
            if array.shape != shape or n == 0:
                raise OutputError(f"{name} of {n} heads must have the shape {shape}, got {array.shape}.")

    def nearest(self, layer: int, head: int, n: int = 5) -> list[tuple[Head, float]]:
        """The `n` other heads whose attention is most like that of a head, with their distances, the nearest first."""
        here = self._index(layer, head)
        order = [other for other in np.argsort(self.distance[here], kind="stable").tolist() if other != here]
        return [(self.heads[other], float(self.distance[here, other])) for other in order[:n]]

    @cached_property
    def within_layers(self) -> float:
        """Mean distance of two heads of one layer, nats; NaN where no layer has two."""
        return self._mean_of_pairs(same_layer=True)

    @cached_property
    def between_layers(self) -> float:
        """Mean distance of two heads of different layers, nats; NaN where there is one layer only."""
        return self._mean_of_pairs(same_layer=False)

    def to_frame(self) -> pd.DataFrame:
        """One row a head: layer, head, cluster, its place x, y on the map, its nearest other head, and how near."""
        import pandas as pd

        nearest = [self.nearest(*head, n=1) for head in self.heads]
        columns: dict[str, Any] = {
            "layer": [layer for layer, _ in self.heads],
            "head": [head for _, head in self.heads],
            "cluster": self.cluster,
            "x": self.place[:, 0],
            "y": self.place[:, 1],
            "nearest": [head_name(*found[0][0]) if found else "" for found in nearest],
            "nearest_distance": [found[0][1] if found else np.nan for found in nearest],
        }
        return pd.DataFrame(columns)

    def distance_frame(self) -> pd.DataFrame:
        """The distances with the names of the heads on both axes."""
        import pandas as pd

        names = [head_name(*head) for head in self.heads]
        return pd.DataFrame(self.distance, index=names, columns=names)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write similarity.parquet (all there is) and similarity.csv (one row a head)."""
        write_together({Path(folder) / name: write for name, write in self.writers().items()})

    def writers(self) -> dict[str, Write]:
        """What `save` writes, by file name: for those who write more files in the same step."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        frame = self.to_frame()
        whole = frame.join(self.distance_frame().reset_index(drop=True))
        facts = {name: getattr(self, name) for name in _FACTS}
        metadata = {"headlens.schema": SCHEMA_VERSION, "headlens.behaviour.similarity": json.dumps(facts)}
        table = pa.Table.from_pandas(whole, preserve_index=False).replace_schema_metadata(metadata)
        return {
            "similarity.parquet": lambda path: pq.write_table(table, path),
            "similarity.csv": csv_writer(frame),
        }

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Similarity:
        """Read what `save` wrote, given its folder or similarity.parquet; an OutputError says what is wrong."""
        path = Path(folder)
        path = path if path.is_file() else path / "similarity.parquet"
        table = read_arrow(path, SCHEMA_VERSION)
        try:
            frame = table.to_pandas(ignore_metadata=True)
            heads = tuple(zip(frame["layer"].tolist(), frame["head"].tolist(), strict=True))
            names = [head_name(*head) for head in heads]
            if missing := set(names) - set(frame.columns):
                raise OutputError(f"the distances of {', '.join(sorted(missing))} are missing")
            return cls(
                heads,
                distance=frame[names].to_numpy(np.float64),
                place=frame[["x", "y"]].to_numpy(np.float64),
                cluster=frame["cluster"].to_numpy(np.int64),
                **{name: json.loads(table.schema.metadata[b"headlens.behaviour.similarity"])[name] for name in _FACTS},
            )
        except (KeyError, TypeError, ValueError, OutputError) as reason:
            said = in_words(reason)
            raise OutputError(f"{path} does not hold distances that are whole{said}; {WAY_OUT}.") from reason

    def __repr__(self) -> str:
        return f"<Similarity of {len(self.heads)} heads in {len(set(self.cluster.tolist()))} clusters>"

    def _index(self, layer: int, head: int) -> int:
        if (layer, head) not in self.heads:
            raise OutputError(
                f"There are distances of {len(self.heads)} heads, {head_name(*self.heads[0])} to "
                f"{head_name(*self.heads[-1])}, and none of {head_name(layer, head)}."
            )
        return self.heads.index((layer, head))

    def _mean_of_pairs(self, *, same_layer: bool) -> float:
        layers = np.array([layer for layer, _ in self.heads])
        first, second = np.triu_indices(len(layers), k=1)
        pairs = self.distance[first, second][(layers[first] == layers[second]) == same_layer]
        return float(pairs.mean()) if pairs.size else float("nan")


_FACTS = ("rows", "inputs", "stress", "silhouette")


def similarity(
    network: nn.Module,
    batches: Sequence[Batch],
    *,
    rows: int = ROWS,
    clusters: int | None = None,
    seed: int = 0,
    way: Way = "fast",
) -> Similarity:
    """Compare where all heads of a model look, on a sample of the rows of a corpus.

    The distance of two heads is the Jensen-Shannon divergence of their rows of attention, in nats, averaged over rows
    (Clark et al. 2019, sec. 6, sum it instead, and smooth the rows before, which 0 log 0 = 0 makes unnecessary). Its
    square root, a metric, is not taken. Compared are rows of tokens that are neither special nor padding, special
    tokens among the keys.

    Parameters
    ----------
    network
        A model of one attention stack (for an encoder-decoder model pass its encoder), in eval mode.
    batches
        Of one corpus; how it is cut into batches does not matter. Only inputs with a row of the sample are run.
    rows
        How many rows to compare, at most. The sample takes ROWS_OF_INPUT random rows from inputs in random order, then
        as many more from each, and so on, so that long texts do not outweigh short ones.
    clusters
        How many clusters; None takes the number from 2 to MOST_CLUSTERS with the largest mean silhouette
        (Rousseeuw 1987), but a number with AS_GOOD of it where so no cluster is LARGE, and no number that merely sets
        single heads apart from all others if there is another. Clusters are agglomerative, by the mean distance of
        their heads.
    seed
        Of the sample. The map is that of scikit-learn's SMACOF, started from the classical scaling.
    way
        How attention is computed: "fast" (slices) or "exact"; see `capture`.

    Raises
    ------
    CorpusError
        `rows` or `clusters` are out of range, or there is no row to compare.
    CaptureError
        Several attention stacks, a layer that reported nothing, or NaN.
    """
    if rows < 1:
        raise CorpusError(f"At least one row of attention must be compared, got rows={rows}.")
    if clusters is not None and clusters < 1:
        raise CorpusError(f"There must be at least one cluster of heads, got clusters={clusters}.")
    chosen = choose_rows([batch.rows.sum(dim=-1).tolist() for batch in batches], rows, seed)
    sums: _Sums | None = None
    for batch, wanted in zip(batches, chosen, strict=True):
        for heads, probs in _rows_of_batch(network, batch, wanted, way):
            sums = sums or _Sums(len({layer for layer, _ in heads}), len(heads))
            sums.add(probs)
    if sums is None:
        raise CorpusError("The corpus has no token whose attention could be compared; give text with a word in it.")
    distance = sums.distance()
    place, stress = map_of(distance)
    cluster, silhouette = clusters_of(distance, clusters)
    return Similarity(
        heads=heads,
        distance=distance,
        place=place,
        cluster=cluster,
        rows=sums.rows,
        inputs=sum(len(np.unique(wanted.input)) for wanted in chosen),
        stress=stress,
        silhouette=silhouette,
    )


# --------------------------------------------------------------------------------------------------- sample of rows


class Rows(NamedTuple):
    """Rows of one batch: which of its inputs, and which of the input's scored tokens, counted from 0."""

    input: Ints
    rank: Ints


def choose_rows(scored: Sequence[Sequence[int]], rows: int, seed: int) -> list[Rows]:
    """The sample of each batch, given how many scored tokens every input of it has."""
    rng = np.random.default_rng(seed)
    counts = np.array([count for batch in scored for count in batch], dtype=np.int64)
    quota = _quotas(counts, rows, rng)
    ranks = [
        np.sort(rng.permutation(count)[:most]) for count, most in zip(counts.tolist(), quota.tolist(), strict=True)
    ]
    found, start = list[Rows](), 0
    for batch in scored:
        own = ranks[start : start + len(batch)]
        lengths = [len(rank) for rank in own]
        rank = np.concatenate(own) if own else np.zeros(0, np.int64)
        found.append(Rows(np.repeat(np.arange(len(own)), lengths), rank))
        start += len(batch)
    return found


def _quotas(counts: Ints, rows: int, rng: np.random.Generator) -> Ints:
    """How many rows of each input: rounds of ROWS_OF_INPUT, the last one in random order until there are enough."""
    order = rng.permutation(len(counts))
    quota = np.zeros_like(counts)
    while (missing := rows - int(quota.sum())) > 0 and (quota < counts).any():
        more = np.minimum(counts - quota, ROWS_OF_INPUT)[order]
        before = np.cumsum(more) - more
        quota[order] += np.clip(missing - before, 0, more)
    return quota


# ------------------------------------------------------------------------------------------------ attention of the rows


class _Enough(Exception):
    """Raised in the last attention layer: nothing after it is asked for."""


def _rows_of_batch(
    network: nn.Module, batch: Batch, wanted: Rows, way: Way
) -> Iterator[tuple[tuple[Head, ...], Float[np.ndarray, "row head key"]]]:
    """The heads, and rows of all of them, in portions that fit into memory."""
    places = np.stack([np.zeros(0, np.int64)] * 2, axis=1)
    if wanted.input.size:
        tokens = [batch.rows[row].nonzero()[:, 0].cpu().numpy() for row in wanted.input.tolist()]
        token = np.array([own[rank] for own, rank in zip(tokens, wanted.rank.tolist(), strict=True)])
        places = np.stack([wanted.input, token], axis=1)[np.argsort(token, kind="stable")]
    while len(places):
        collector = _Collector(places, batch.input_ids.shape[1])
        collector.run(network, batch, way)
        yield collector.heads, collector.probs
        places = places[len(collector.probs) :]


class _Collector:
    """Takes the rows at some places [row, (input, token)] of a batch from a running model: as many as fit."""

    def __init__(self, places: Ints, tokens: int) -> None:
        self._places, self._tokens = places, tokens
        self._seen = self._layers = 0
        self._numbers: list[tuple[int, ...] | None] = []  # of the heads of every layer; None: as they come
        self._starts: list[int] = []  # of every layer its first head's place among all heads
        self.heads: tuple[Head, ...] = ()
        self.probs: NDArray[Any] = np.zeros((0, 0, tokens))  # [row, head of any layer, key]

    def run(self, network: nn.Module, batch: Batch, way: Way) -> None:
        import torch

        from headlens.capture import capture

        inputs, where = np.unique(self._places[:, 0], return_inverse=True)
        self._places = np.stack([where, self._places[:, 1]], axis=1)
        device = next(network.parameters()).device
        chosen = torch.from_numpy(inputs)
        ids, mask = batch.input_ids[chosen.to(batch.input_ids.device)], batch.attention_mask[chosen]
        cache = {"use_cache": False} if getattr(getattr(network, "config", None), "use_cache", None) is not None else {}
        with torch.inference_mode(), capture(network, self._observe, way=way) as sites:
            if len({site.stack for site in sites}) > 1:
                raise CaptureError("The model has several attention stacks; run one, such as model.get_encoder().")
            self._numbers = [site.heads for site in sorted(sites, key=lambda site: site.layer)]
            self._layers = sum(not site.is_empty for site in sites)
            if not self._layers:
                raise CaptureError("All heads of the model were removed, so there are none to compare.")
            with suppress(_Enough):
                network(input_ids=ids.to(device), attention_mask=mask.long().to(device), **cache)
        if self._seen == 0 or self._seen != self._layers * len(self.probs):
            raise CaptureError(f"Not all of {self._layers} attention layers reported all their rows to headlens.")
        if not np.isfinite(self.probs).all():
            document = batch.document[chosen[self._places[int(np.argwhere(~np.isfinite(self.probs))[0, 0]), 0]]]
            raise CaptureError(
                f"A layer gave NaN or infinite attention on document {int(document)} (0-based); the weights may be "
                f"damaged, or a narrow dtype such as float16 may overflow."
            )

    def _observe(self, attention: LayerAttention) -> None:
        probs = attention.in_single_precision().probs
        if self._seen == 0:
            self._make_room(probs.shape[1], probs.dtype.itemsize)
        at = self._places[:, 1] - attention.query_start
        here = np.flatnonzero((at >= 0) & (at < probs.shape[2]))
        found = probs[self._places[here, 0], :, at[here]]  # [row, head, key]
        if attention.head_ids is not None:  # a checkpoint may hold them in another order
            found = found[:, np.argsort(attention.head_ids)]
        start = self._starts[attention.layer]
        self.probs[here, start : start + found.shape[1], : found.shape[-1]] = found.cpu().numpy()
        self._seen += len(here)
        if self._seen == self._layers * len(self.probs):
            raise _Enough

    def _make_room(self, heads: int, itemsize: int) -> None:
        numbers = [range(heads) if own is None else sorted(own) for own in self._numbers]
        self.heads = tuple((layer, head) for layer, own in enumerate(numbers) for head in own)
        self._starts = np.cumsum([0, *map(len, numbers)]).tolist()
        most = _PASS_BYTES // (len(self.heads) * self._tokens * itemsize)
        self._places = self._places[: max(1, most)]
        shape = (len(self._places), len(self.heads), self._tokens)
        self.probs = np.zeros(shape, np.float64 if itemsize == 8 else np.float32)


# ----------------------------------------------------------------------------------------------------------- distances


class _Sums:
    """Adds up the divergences of all pairs of heads over rows."""

    def __init__(self, layers: int, heads: int) -> None:
        self.layers, self.rows = layers, 0
        self._total = np.zeros((heads, heads))

    def add(self, probs: Float[np.ndarray, "row head key"]) -> None:
        self.rows += len(probs)
        size = max(1, _BLOCK_BYTES // probs[0].nbytes)
        for start in range(0, len(probs), size):
            self._total += divergences(probs[start : start + size])

    def distance(self) -> Floats:
        """[head, head]: the mean over rows."""
        return (self._total + self._total.T) / self.rows


def divergences(probs: Float[np.ndarray, "row head key"]) -> Float[np.ndarray, "head head"]:
    """Jensen-Shannon divergence of all pairs of heads, nats, summed over rows; the upper triangle, 0 elsewhere.

    With s = p + q: 2 JS = sum p log p + sum q log q - sum s log s + ln 2 sum s. Rows need not sum to 1 exactly.
    """
    probs = probs[:, :, : int(np.flatnonzero(probs.any(axis=(0, 1))).max()) + 1]
    heads = probs.shape[1]
    own, mass = _sum_x_log_x(probs, np.empty_like(probs)), probs.sum(axis=-1, dtype=np.float64)
    pairs, logs = np.empty_like(probs), np.empty_like(probs)
    found = np.zeros((heads, heads))
    for head in range(heads - 1):
        others = slice(head + 1, heads)
        both = np.add(probs[:, head : head + 1], probs[:, others], out=pairs[:, others])
        shared = _sum_x_log_x(both, logs[:, others])
        mass_of_both = mass[:, head : head + 1] + mass[:, others]
        twice = own[:, head : head + 1] + own[:, others] - shared + np.log(2) * mass_of_both
        found[head, others] = np.maximum(twice, 0).sum(axis=0) / 2  # below 0 by rounding only
    return found


def _sum_x_log_x(
    values: Float[np.ndarray, "row head key"], logs: Float[np.ndarray, "row head key"]
) -> Float[np.ndarray, "row head"]:
    """`logs` is room to work in."""
    np.log(np.maximum(values, np.finfo(values.dtype).tiny, out=logs), out=logs)
    return np.einsum("rhk,rhk->rh", values, logs).astype(np.float64)


# ---------------------------------------------------------------------------------------------------- map and clusters


def map_of(distance: Floats) -> tuple[Floats, float]:
    """Places [head, 2] by metric multidimensional scaling, and their stress-1: sqrt(sum (d - distance)^2 / sum d^2).

    The same distances give the same map: SMACOF (de Leeuw 1977) starts from the classical scaling.
    """
    from sklearn.manifold import smacof

    start = _classical(distance)
    if len(distance) < 3 or not distance.any():  # exact as it is
        return start, 0.0
    place, _ = smacof(distance, metric=True, init=start, n_init=1, eps=1e-10, max_iter=1000, normalized_stress=False)
    between = np.linalg.norm(place[:, None] - place[None], axis=-1)
    return place, float(np.sqrt(((between - distance) ** 2).sum() / (between**2).sum()))


def _classical(distance: Floats) -> Floats:
    """Torgerson's scaling in two dimensions; each axis points to where its largest coordinate is positive."""
    n = len(distance)
    centring = np.eye(n) - 1 / n
    values, axes = np.linalg.eigh(-centring @ distance**2 @ centring / 2)
    place = np.zeros((n, 2))
    largest = min(2, n)
    place[:, :largest] = (axes * np.sqrt(np.maximum(values, 0)))[:, ::-1][:, :largest]
    farthest = place[np.abs(place).argmax(axis=0), [0, 1]]
    return place * np.where(farthest < 0, -1, 1)


def clusters_of(distance: Floats, clusters: int | None = None) -> tuple[Int[np.ndarray, " head"], float]:
    """The cluster of each head, and the mean silhouette of all; as `similarity`."""
    heads = len(distance)
    if clusters is not None and clusters > heads:
        raise CorpusError(f"{heads} heads make at most {heads} clusters, got clusters={clusters}.")
    if clusters is not None:
        labels = _merged(distance, clusters)
        return labels, _silhouette(distance, labels)
    options = [_merged(distance, number) for number in range(2, min(MOST_CLUSTERS, heads - 1) + 1)]
    if not options:
        return np.zeros(heads, np.int64), float("nan")
    return _best_of([(labels, _silhouette(distance, labels)) for labels in options])


def _best_of(options: Sequence[tuple[Ints, float]]) -> tuple[Ints, float]:
    """A head that is like no other makes two clusters, it and the rest, whose silhouette is high but tells no more."""
    grouped = [option for option in options if (np.bincount(option[0]) > 1).sum() > 1] or list(options)
    largest = max(silhouette for _, silhouette in grouped)
    near = [option for option in grouped if option[1] >= largest - (1 - AS_GOOD) * abs(largest)]
    even = [option for option in near if np.bincount(option[0]).max() <= LARGE * len(option[0])]
    return max(even or near, key=lambda option: option[1])


def _merged(distance: Floats, clusters: int) -> Ints:
    """Labels numbered in the order in which the heads come."""
    from sklearn.cluster import AgglomerativeClustering

    if clusters == 1:
        return np.zeros(len(distance), np.int64)
    found = AgglomerativeClustering(n_clusters=clusters, metric="precomputed", linkage="average").fit_predict(distance)
    _, first, labels = np.unique(found, return_index=True, return_inverse=True)
    return first.argsort().argsort()[labels].astype(np.int64)


def _silhouette(distance: Floats, labels: Ints) -> float:
    from sklearn.metrics import silhouette_score

    if not 2 <= len(np.unique(labels)) < len(labels):
        return float("nan")
    return float(silhouette_score(distance, labels, metric="precomputed"))
