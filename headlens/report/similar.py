"""Which heads look alike: a map of all heads, their distances to each other, and their clusters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from headlens.behaviour.similarity import LARGE
from headlens.numbers import number
from headlens.report.tables import NOTHING, Cell, Column, Row, Table
from headlens.roles import Roles
from headlens.scores import head_name

if TYPE_CHECKING:
    from headlens.behaviour.similarity import Similarity

WEAK = 0.25  # mean silhouette below which Kaufman and Rousseeuw (1990) find no substantial structure
NAMED_LABELS = 4  # labels that the heads of a cluster share most; the rest are counted

_WIDTH, _HEIGHT, _MARGIN = 640, 400, 22  # px
_MOST_LABELS = 200  # heads that are named on the map; more of them would cover one another
_SHAPES = ("circle", "square", "diamond", "triangle", "cross")  # clusters are told apart without colour, too


def map_of_heads(similarity: Similarity) -> str:
    """Every head as a mark of its cluster's shape, near to those that look alike, as inline SVG."""
    x, y = _on_sheet(similarity)
    named = len(similarity.heads) <= _MOST_LABELS
    marks = []
    for index, head in enumerate(similarity.heads):
        cluster = int(similarity.cluster[index])
        marks.append(_mark(cluster, x[index], y[index], f"{head_name(*head)}, cluster {letter_of(cluster)}"))
        if named:
            marks.append(f'<text x="{x[index] + 7:.1f}" y="{y[index] + 3.5:.1f}">{head_name(*head)}</text>')
    label = f"Map of {len(similarity.heads)} heads by the similarity of their attention; the table has the clusters."
    return (
        f'<svg class="similar" role="img" aria-label="{label}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}">{"".join(marks)}</svg>'
    )


def clusters_table(similarity: Similarity, roles: Roles | None = None) -> Table:
    """Clusters with their heads, how far these are from one another, and which labels they share."""
    rows = []
    for cluster in range(int(similarity.cluster.max()) + 1):
        members = np.flatnonzero(similarity.cluster == cluster)
        heads = [similarity.heads[member] for member in members]
        names = tuple(head_name(*head) for head in heads)
        between = similarity.distance[np.ix_(members, members)][np.triu_indices(len(members), 1)]
        mean = float(between.mean()) if len(between) else float("nan")
        layers = sorted({layer for layer, _ in heads})
        labels = _labels(heads, roles) if roles is not None else ""
        rows.append(
            Row(
                (
                    Cell(letter_of(cluster), values=(letter_of(cluster),), order=float(cluster)),
                    Cell(f"{len(heads):,}", values=(len(heads),)),
                    Cell(number(mean, "nats") if len(between) else NOTHING, values=(mean,)),
                    Cell(_layers(layers), values=(" ".join(f"L{layer}" for layer in layers),), order=float(layers[0])),
                    *([Cell(labels, values=(labels,))] if roles is not None else []),
                    Cell(NOTHING, heads=names, values=(" ".join(names),)),
                )
            )
        )
    columns = (
        Column("Cluster", is_number=False, width="w-count", names=("cluster",)),
        Column("Heads", width="w-count", names=("heads",)),
        Column(
            "Mean distance",
            "Jensen-Shannon divergence of two of its heads, nats; ln 2 = .69 is the largest",
            width="w-reach",
            names=("mean_distance",),
        ),
        Column("Layers", is_number=False, width="w-verdict", names=("layers",)),
        *(
            [Column("In common", "labels of its heads on the map", False, names=("labels",))]
            if roles is not None
            else []
        ),
        Column("Which", is_number=False, names=("which",)),
    )
    return Table("Clusters of heads", columns, tuple(rows))


def similarity_lines(similarity: Similarity) -> Iterator[str]:
    """What was compared, and how far the clusters can be trusted."""
    yield (
        f"Compared on {similarity.rows:,} rows of attention: two heads of one layer are "
        f"{number(similarity.within_layers, 'nats')} nats apart on average, of different layers "
        f"{number(similarity.between_layers, 'nats')}. The map draws distances as well as a plane can (stress "
        f"{number(similarity.stress, 'ratio')}); similarity.parquet has them all."
    )
    sizes = np.bincount(similarity.cluster)
    heads = len(similarity.heads)
    if len(sizes) > 1 and sizes.max() > LARGE * heads:
        largest = letter_of(int(sizes.argmax()))
        yield (
            f"Cluster {largest} holds {sizes.max():,} of {heads:,} heads: most heads look alike, or lie so evenly that "
            f"they fall into no groups. The clusters say which heads stand apart, and little of the others."
        )
    if np.isfinite(similarity.silhouette):
        silhouette = number(similarity.silhouette, "share", digits=2)
        weak = f", below {number(WEAK, 'share', digits=2)}: no more than a way to put heads in order"
        yield (
            f"Mean silhouette of the clusters {silhouette} (1: far apart, 0: none; Rousseeuw 1987)"
            f"{weak if similarity.silhouette < WEAK else ''}."
        )


def letter_of(cluster: int) -> str:
    return chr(ord("a") + cluster) if cluster < 26 else str(cluster)


def _labels(heads: Sequence[tuple[int, int]], roles: Roles) -> str:
    """`previous token 5, [CLS] 3; 2 without a role`"""
    found = [label.role.title if (label := roles.label(*head)) is not None else "" for head in heads]
    counted = Counter(title for title in found if title)
    told = [f"{title} {times:,}" for title, times in counted.most_common(NAMED_LABELS)]
    rest = sum(counted.values()) - sum(times for _, times in counted.most_common(NAMED_LABELS))
    parts = [", ".join([*told, *([f"others {rest:,}"] if rest else [])])] if told else []
    without = found.count("")
    return "; ".join([*parts, *([f"{without:,} without a role"] if without else [])])


def _layers(layers: Sequence[int]) -> str:
    """`L0–L3, L5`"""
    runs = [[layer for _, layer in run] for _, run in groupby(enumerate(layers), key=lambda pair: pair[1] - pair[0])]
    return ", ".join(f"L{run[0]}" if len(run) == 1 else f"L{run[0]}–L{run[-1]}" for run in runs)


def _on_sheet(similarity: Similarity) -> tuple[list[float], list[float]]:
    place = similarity.place - similarity.place.min(axis=0)
    room = np.array([_WIDTH - 2 * _MARGIN - 34, _HEIGHT - 2 * _MARGIN])  # names stand on the right
    scale = float(np.min(room / np.maximum(place.max(axis=0), 1e-9)))  # one for both: distances are what is drawn
    across, down = (place * scale + _MARGIN).T
    return across.tolist(), down.tolist()


def _mark(cluster: int, x: float, y: float, title: str) -> str:
    shape = _SHAPES[cluster % len(_SHAPES)]
    paths = {
        "circle": f"M{x - 4:.1f} {y:.1f}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
        "square": f"M{x - 3.6:.1f} {y - 3.6:.1f}h7.2v7.2h-7.2z",
        "diamond": f"M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z",
        "triangle": f"M{x:.1f} {y - 4.6:.1f}l4.6 8.4h-9.2z",
        "cross": f"M{x - 1.4:.1f} {y - 4.4:.1f}h2.8v3h3v2.8h-3v3h-2.8v-3h-3v-2.8h3z",
    }
    return f'<path class="c{cluster % 10}" d="{paths[shape]}"><title>{title}</title></path>'
