"""For the tests of the report: tables of scores with planted heads, and a reader that turns a page into a tree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import numpy as np

from headlens.scores import Metric, ScoreTable

NAN = float("nan")
LAYERS, HEADS = 3, 4

PROVENANCE: dict[str, Any] = {
    "headlens": "0.1.0",
    "created": "2026-11-30T10:12:00+00:00",
    "command": "headlens profile tiny text.txt",
    "seed": 0,
    "model": {
        "name": "Tiny",
        "source": "bundled",
        "layers": LAYERS,
        "heads": HEADS,
        "kv_heads": 2,
        "parameters": 22713216,
        "dtype": "float32",
        "is_causal": False,
    },
    "corpus": {
        "files": [{"name": "text.txt", "sha256": "ab12", "bytes": 9}],
        "documents": 1,
        "tokens": 10158,
        "scored_tokens": 9031,
        "cut_documents": 0,
    },
    "run": {"device": "cpu", "folds": 20, "seconds": {"load": 1.25}},
    "versions": {"torch": "2.13.0"},
    "selfcheck": {
        "passed": True,
        "line": "all 12 heads recomputed",
        "laws": [{"law": "rows sum to one", "error": 1.1e-7, "tolerance": 1e-5}],
    },
    "notes": ["Two documents were empty."],
}


def planted(**changed: np.ndarray) -> ScoreTable:
    """3 x 4 heads: L0H2 previous, L1H3 next, L2H0 [CLS] (which is the first token), L2H1 barely [SEP], L1H1 broad."""
    values = {
        "position.mass[-1]": at(0.04, {(0, 2): 0.997, (1, 0): 0.71}),
        "position.mass[1]": at(0.03, {(1, 3): 0.66}),
        "position.distance": at(4.0, {(0, 0): 9.25, (2, 3): 0.5}),
        "position.distance_signed": at(0.0, {(0, 1): 3.5, (2, 2): -3.0}),
        "surface.cls": at(0.1, {(2, 0): 0.92, (0, 1): 0.41}),
        "surface.first": at(0.1, {(2, 0): 0.92, (0, 1): 0.41}),
        "surface.sep": at(0.02, {(2, 1): 0.61}),
        "surface.comma": at(0.01, {}),
        "surface.breadth": at(0.5, {(1, 1): 0.96, (1, 0): 0.9}),
    }
    return table(values | changed)


def at(rest: float, heads: dict[tuple[int, int], float]) -> np.ndarray:
    """The same value for every head but for those named; a little apart, so that no two heads are equal."""
    array = rest + 0.001 * np.arange(LAYERS * HEADS).reshape(LAYERS, HEADS) / (LAYERS * HEADS)
    for head, value in heads.items():
        array[head] = value
    return array


CHANCE = {"position.distance": 4.2, "position.distance_signed": 0.0, "surface.breadth": 1.0}
UNITS = {"position.distance": "tokens", "position.distance_signed": "tokens", "surface.breadth": "ratio"}


def table(values: dict[str, np.ndarray], *, with_macro: bool = True) -> ScoreTable:
    metrics: list[Metric] = []
    arrays: list[np.ndarray] = []
    for name, array in values.items():
        unit: Any = UNITS.get(name, "share")
        metrics.append(Metric(name, f"Title of {name}", f"Meaning of {name}.", unit))
        arrays.append(array)
        if with_macro:
            metrics.append(Metric(f"{name}.macro", f"Title of {name}, by input", "Macro.", unit))
            arrays.append(array * 1.01)
    stacked = np.stack(arrays).astype(float)
    chance = np.array([CHANCE.get(metric.name.removesuffix(".macro"), 0.05) for metric in metrics])
    support = np.where(np.isnan(stacked), 0.0, 9031.0)
    return ScoreTable(tuple(metrics), stacked, support, stacked - 0.02, stacked + 0.015, chance)


def one_metric(metric: Metric) -> ScoreTable:
    half = np.full((1, 2, 2), 0.5)
    return ScoreTable((metric,), np.array([[[0.5, 0.5], [0.4, 0.5]]]), half, half, half, np.array([0.1]))


def full_size() -> ScoreTable:
    """12 x 12 heads, 35 metrics and their macro forms, as of an encoder."""
    rng = np.random.default_rng(0)
    offsets = [f"position.{kind}[{o}]" for kind in ("mass", "mass_valid", "argmax") for o in range(-3, 4)]
    kinds = ("first", "cls", "sep", "special", "full_stop", "comma", "sink_rows", "confidence", "breadth")
    surface = [f"surface.{kind}" for kind in kinds]
    others = ["position.distance", "position.distance_signed", "position.local", "position.variability", "surface.x"]
    return table({name: rng.beta(0.7, 4, (12, 12)) for name in offsets + surface + others})


VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


@dataclass
class Node:
    tag: str
    attributes: dict[str, str]
    parent: Node | None = None
    children: list[Node | str] = field(default_factory=list)

    def walk(self) -> Iterator[Node]:
        yield self
        for child in self.children:
            if isinstance(child, Node):
                yield from child.walk()

    def all(self, tag: str, **attributes: str) -> list[Node]:
        wanted = {key.rstrip("_"): value for key, value in attributes.items()}
        return [
            node
            for node in self.walk()
            if node.tag == tag and all(value in node.attributes.get(k, "").split() for k, value in wanted.items())
        ]

    def one(self, tag: str, **attributes: str) -> Node:
        found = self.all(tag, **attributes)
        assert len(found) == 1, f"{len(found)} of <{tag} {attributes}>"
        return found[0]

    @property
    def text(self) -> str:
        """What is read: all but scripts."""
        read = [child for child in self.children if isinstance(child, str) or child.tag != "script"]
        parts = [child if isinstance(child, str) else child.text for child in read]
        return re.sub(r"\s+", " ", "".join(parts)).strip()


class Reader(HTMLParser):
    """A tree of the page; an end tag without its start tag is an error."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.here = self.root = Node("root", {})

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, {key: value or "" for key, value in attrs}, self.here)
        self.here.children.append(node)
        if tag not in VOID:
            self.here = node

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.here.children.append(Node(tag, {key: value or "" for key, value in attrs}, self.here))

    def handle_endtag(self, tag: str) -> None:
        assert self.here.tag == tag, f"</{tag}> closes <{self.here.tag}>"
        assert self.here.parent is not None
        self.here = self.here.parent

    def handle_data(self, data: str) -> None:
        self.here.children.append(data)


def read(html: str) -> Node:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.here is reader.root, f"<{reader.here.tag}> is never closed"
    return reader.root


def metric_sections(page: Node) -> dict[str, Node]:
    return {article.one("p", class_="name").one("code").text: article for article in page.all("article")}


def cells(row: Node) -> list[str]:
    return [cell.text for cell in row.children if isinstance(cell, Node)]


def printed(value: float, decimals: int, *, zero: bool = True) -> str:
    """Written apart from the report's own code: .731 or 0.73, with a true minus."""
    text = f"{value:.{decimals}f}".replace("-", "−")
    return text if zero else re.sub(r"^(−?)0\.", r"\1.", text)
