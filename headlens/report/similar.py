"""Which heads look alike: a map of all heads, and their clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headlens.numbers import number
from headlens.report.evidence_rows import NOTHING, Cell, Column, Row, Table
from headlens.scores import head_name

if TYPE_CHECKING:
    from headlens.behaviour.similarity import Similarity

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
        marks.append(_mark(cluster, x[index], y[index], f"{head_name(*head)}, cluster {_letter(cluster)}"))
        if named:
            marks.append(f'<text x="{x[index] + 7:.1f}" y="{y[index] + 3.5:.1f}">{head_name(*head)}</text>')
    label = f"Map of {len(similarity.heads)} heads by the similarity of their attention; the table has the clusters."
    return (
        f'<svg class="similar" role="img" aria-label="{label}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}">{"".join(marks)}</svg>'
    )


def clusters_table(similarity: Similarity) -> Table:
    """Clusters with their heads and how far these are from one another."""
    rows = []
    for cluster in range(int(similarity.cluster.max()) + 1):
        members = np.flatnonzero(similarity.cluster == cluster)
        between = similarity.distance[np.ix_(members, members)][np.triu_indices(len(members), 1)]
        rows.append(
            Row(
                (
                    Cell(_letter(cluster)),
                    Cell(f"{len(members):,}"),
                    Cell(number(float(between.mean()), "nats") if len(between) else NOTHING),
                    Cell(NOTHING, heads=tuple(head_name(*similarity.heads[member]) for member in members)),
                )
            )
        )
    columns = (
        Column("Cluster", is_number=False),
        Column("Heads"),
        Column("Mean distance", "Jensen-Shannon divergence of two of its heads, nats; ln 2 = .69 is the largest"),
        Column("Which", is_number=False),
    )
    return Table("Clusters of heads", columns, tuple(rows))


def similarity_line(similarity: Similarity) -> str:
    return (
        f"Compared on {similarity.rows:,} rows of attention: two heads of one layer are "
        f"{number(similarity.within_layers, 'nats')} nats apart on average, of different layers "
        f"{number(similarity.between_layers, 'nats')}. The map draws distances as well as a plane can (stress "
        f"{number(similarity.stress, 'ratio')}); similarity.parquet has them all."
    )


def _on_sheet(similarity: Similarity) -> tuple[list[float], list[float]]:
    place = similarity.place - similarity.place.min(axis=0)
    room = np.array([_WIDTH - 2 * _MARGIN - 34, _HEIGHT - 2 * _MARGIN])  # names stand on the right
    scale = float(np.min(room / np.maximum(place.max(axis=0), 1e-9)))  # one for both: distances are what is drawn
    across, down = (place * scale + _MARGIN).T
    return across.tolist(), down.tolist()


def _letter(cluster: int) -> str:
    return chr(ord("a") + cluster) if cluster < 26 else str(cluster)


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
