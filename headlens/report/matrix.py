"""The distances of all heads to each other as one small picture: heads by cluster, and by layer within a cluster."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headlens.numbers import number
from headlens.report.similar import letter_of

if TYPE_CHECKING:
    from headlens.behaviour.similarity import Similarity

MOST_PIXELS = 400  # on a side; of more heads, neighbours share a pixel, which has their mean distance

_SIDE, _LEFT, _TOP, _LEGEND, _RIGHT = 480, 64, 24, 44, 8  # px
_LEVELS = 32  # of alpha: the eye tells fewer
_INK = (60, 120, 164)  # in the middle between light and dark pages, so that one picture serves both
_ROOM = 11  # px that a label needs


def matrix(similarity: Similarity) -> str:
    """Distances [head, head] as inline SVG, the nearer the stronger; lines stand between clusters."""
    order = _order(similarity)
    distance = similarity.distance[np.ix_(order, order)]
    farthest = float(distance.max())
    nearness = 1 - distance / farthest if farthest > 0 else np.ones_like(distance)
    heads = len(order)
    borders = _borders([int(similarity.cluster[head]) for head in order])
    height, width = _TOP + _SIDE + _LEGEND, _LEFT + _SIDE + _RIGHT
    picture = base64.b64encode(_png(_shrunk(nearness))).decode()
    return (
        f'<svg class="matrix" role="img" aria-label="{_label(similarity)}" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">'
        f'<image x="{_LEFT}" y="{_TOP}" width="{_SIDE}" height="{_SIDE}" preserveAspectRatio="none" '
        f'style="image-rendering:pixelated" href="data:image/png;base64,{picture}"/>'
        f"{_lines([end / heads for _, _, end in borders])}{''.join(_names(similarity, order, borders))}"
        f"{_scale(farthest)}</svg>"
    )


def _order(similarity: Similarity) -> list[int]:
    """Places of the heads: by cluster, then by layer, as they come."""
    return sorted(range(len(similarity.heads)), key=lambda head: (similarity.cluster[head], similarity.heads[head]))


def _borders(clusters: Sequence[int]) -> list[tuple[int, int, int]]:
    """Cluster, first place and the place after its last, of places that are in the order of clusters."""
    runs, start = [], 0
    for cluster, run in groupby(clusters):
        end = start + len(list(run))
        runs.append((cluster, start, end))
        start = end
    return runs


def _shrunk(nearness: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    if len(nearness) <= MOST_PIXELS:
        return nearness
    starts = np.linspace(0, len(nearness), MOST_PIXELS, endpoint=False).astype(int)
    sums = np.add.reduceat(np.add.reduceat(nearness, starts, axis=0), starts, axis=1)
    sizes = np.diff([*starts, len(nearness)])
    return sums / np.outer(sizes, sizes)


def _png(shares: npt.NDArray[np.float64]) -> bytes:
    """A picture of one ink, the shares 0..1 as its alpha (PNG, ISO/IEC 15948: a palette and its transparency)."""
    height, width = shares.shape
    steps = np.round(shares * (_LEVELS - 1)).astype(np.uint8)
    rows = np.zeros((height, width + 1), np.uint8)  # each row begins with its filter: none
    rows[:, 1:] = steps
    alpha = np.round(np.linspace(0, 255, _LEVELS)).astype(np.uint8).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"PLTE", bytes(_INK) * _LEVELS), (b"tRNS", alpha)]
    chunks += [(b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _lines(ends: Sequence[float]) -> str:
    """Between clusters, across and down, and around the whole."""
    far = _SIDE
    inner = "".join(f"M{_LEFT + end * far:.1f} {_TOP}v{far}M{_LEFT} {_TOP + end * far:.1f}h{far}" for end in ends[:-1])
    return f'<path class="border" d="M{_LEFT} {_TOP}h{far}v{far}h-{far}z{inner}"/>'


def _names(similarity: Similarity, order: Sequence[int], borders: Sequence[tuple[int, int, int]]) -> Iterator[str]:
    """Clusters above, and at the left before their layers, each where there is room for it."""
    size = _SIDE / len(order)
    free_across = free_down = free_layer = -np.inf
    for cluster, start, end in borders:
        middle = (start + end) / 2 * size
        if middle - free_across >= _ROOM:
            free_across = middle
            yield f'<text class="cluster" x="{_LEFT + middle:.1f}" y="{_TOP - 8}">{letter_of(cluster)}</text>'
        if middle - free_down >= _ROOM:
            free_down = middle
            yield f'<text class="cluster" x="10" y="{_TOP + middle + 4:.1f}">{letter_of(cluster)}</text>'
        place = start
        for layer, run in groupby(order[start:end], key=lambda head: similarity.heads[head][0]):
            heads = len(list(run))
            centre = (place + heads / 2) * size
            place += heads
            if centre - free_layer >= _ROOM:
                free_layer = centre
                yield f'<text class="layer" x="{_LEFT - 6}" y="{_TOP + centre + 3.5:.1f}">L{layer}</text>'


def _scale(farthest: float) -> str:
    """A bar from the same attention to the farthest pair."""
    top, width = _TOP + _SIDE + 12, 160
    bar = base64.b64encode(_png(np.linspace(1, 0, _LEVELS)[None])).decode()
    return (
        f'<image x="{_LEFT}" y="{top}" width="{width}" height="8" preserveAspectRatio="none" '
        f'style="image-rendering:pixelated" href="data:image/png;base64,{bar}"/>'
        f'<path class="border" d="M{_LEFT} {top}h{width}v8h-{width}z"/>'
        f'<text x="{_LEFT}" y="{top + 22}">0 nats, alike</text>'
        f'<text class="end" x="{_LEFT + width + 44}" y="{top + 22}">{number(farthest, "nats")}, farthest</text>'
    )


def _label(similarity: Similarity) -> str:
    same = similarity.cluster[:, None] == similarity.cluster[None]
    pairs = np.triu(np.ones_like(same), 1)
    within, between = (similarity.distance[pairs & group] for group in (same, ~same))
    told = [
        f"{words} {number(float(found.mean()), 'nats')} nats"
        for words, found in (("within clusters", within), ("between clusters", between))
        if len(found)
    ]
    means = f" Mean distance {', '.join(told)}." if told else ""
    return (
        f"Distances of {len(similarity.heads)} heads to each other, the nearer the stronger, by cluster and then by "
        f"layer.{means}"
    )
