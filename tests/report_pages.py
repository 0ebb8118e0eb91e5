"""For the tests of the report: scores with planted heads, evidence by hand, a reader that turns a page into a tree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import numpy as np

from headlens.evidence_table import (
    ABOVE,
    EXPLAINED,
    INFORMED,
    PROFILE,
    TOO_FEW,
    UNDECIDED,
    Baseline,
    Evidence,
    MetricEvidence,
    RelationEvidence,
    Settings,
)
from headlens.evidence_table import (
    CHANCE as NOT_ABOVE_CHANCE,
)
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
    return ScoreTable((metric,), half, half, half, half, np.array([0.1]))


def full_size() -> ScoreTable:
    """12 x 12 heads, 35 metrics and their macro forms, as of an encoder."""
    rng = np.random.default_rng(0)
    offsets = [f"position.{kind}[{o}]" for kind in ("mass", "mass_valid", "argmax") for o in range(-3, 4)]
    kinds = ("first", "cls", "sep", "special", "full_stop", "comma", "sink_rows", "confidence", "breadth")
    surface = [f"surface.{kind}" for kind in kinds]
    others = ["position.distance", "position.distance_signed", "position.local", "position.variability", "surface.x"]
    return table({name: rng.beta(0.7, 4, (12, 12)) for name in offsets + surface + others})


SETTINGS = Settings(seed=0, repeats=20, minimum=30, alpha=0.05, margin=0.1, folds=41)
OFFSET, BY_POS, NEAREST, LEMMA, FIRST = (
    "constant offset",
    "part of speech",
    "nearest mention",
    "same lemma, else nearest",
    "first candidate",
)


def rival(held_out: float, of: float, *, option: str = "", is_informed: bool = False) -> Baseline:
    """A baseline beside a head of accuracy `of`; the interval of the difference reaches .03 to both sides."""
    gain = of - held_out
    return Baseline(option, held_out, gain, gain - 0.03, gain + 0.03, full=held_out + 0.01, is_informed=is_informed)


def known(
    metric: str,
    head: tuple[int, int],
    held_out: float,
    verdict: str,
    *,
    decisions: int = 700,
    q: float = 0.002,
    relation: str = "",
    **rivals: tuple[str, float],
) -> MetricEvidence:
    """A row of evidence; `rivals`: option and held-out accuracy of offset, pos, profile, nearest, lemma, first."""
    names = {"offset": OFFSET, "pos": BY_POS, "nearest": NEAREST, "lemma": LEMMA, "first": FIRST, "profile": PROFILE}
    return MetricEvidence(
        metric=metric,
        relation=relation or metric,
        decisions=decisions,
        documents=40,
        chance=0.08,
        layer=head[0],
        head=head[1],
        share=0.95,
        value=held_out + 0.01,
        held_out=held_out,
        low=held_out - 0.03,
        high=held_out + 0.03,
        baselines={
            names[key]: rival(accuracy, held_out, option=option, is_informed=key == "pos")
            for key, (option, accuracy) in rivals.items()
        },
        p=0.0004,
        q=q,
        verdict=verdict,
    )


def of_relation(row: MetricEvidence, *metrics: str, p_any: float = 0.0005) -> RelationEvidence:
    return RelationEvidence(**vars(row), metrics=metrics or (row.metric,), p_any=p_any)


def annotated_rows() -> tuple[list[MetricEvidence], list[RelationEvidence]]:
    """Two directions of some relations, a subtype, one with too few decisions, coreference, pronouns; by hand."""
    to, back = "syntax.dep_to_head", "syntax.head_to_dep"
    sv = known(
        "subject_verb.subject_to_verb",
        (1, 2),
        0.61,
        ABOVE,
        relation="subject_verb",
        offset=("+1", 0.41),
        pos=("1. VERB after", 0.55),
        profile=("", 0.38),
    )
    vs = known("subject_verb.verb_to_subject", (1, 2), 0.3, EXPLAINED, relation="subject_verb", offset=("-1", 0.33))
    obj = known(
        f"{to}[obj]",
        (2, 0),
        0.72,
        ABOVE,
        decisions=500,
        relation="obj",
        offset=("-2", 0.41),
        pos=("1. VERB before", 0.5),
        profile=("", 0.38),
    )
    obj_back = known(f"{back}[obj]", (2, 3), 0.2, UNDECIDED, decisions=500, relation="obj", offset=("+2", 0.15))
    nsubj = known(f"{to}[nsubj]", (1, 2), 0.6, ABOVE, decisions=690, relation="nsubj", offset=("+1", 0.4))
    passive = known(
        f"{to}[nsubj:pass]", (0, 1), 0.5, UNDECIDED, decisions=90, relation="nsubj:pass", offset=("+2", 0.44)
    )
    every = known(
        f"{to}[ALL]",
        (2, 1),
        0.45,
        INFORMED,
        decisions=6000,
        relation="ALL",
        offset=("+1", 0.3),
        pos=("1. NOUN after", 0.44),
        profile=("", 0.31),
    )
    case = known(
        f"{back}[case]", (0, 2), 0.4, EXPLAINED, decisions=900, relation="case", offset=("+1", 0.42), profile=("", 0.3)
    )
    clf = known(f"{to}[clf]", (0, 0), 0.9, TOO_FEW, decisions=12, q=NAN, relation="clf", offset=("+1", 0.5))
    mentions = [
        known("coref[all]", (1, 0), 0.63, EXPLAINED, nearest=("", 0.24), lemma=("", 0.66), profile=("", 0.22)),
        known("coref[pronoun]", (1, 1), 0.73, ABOVE, nearest=("", 0.23), lemma=("", 0.64), profile=("", 0.32)),
        known(
            "coref[pronoun_unmatched]", (1, 1), 0.62, ABOVE, nearest=("", 0.27), lemma=("", 0.27), profile=("", 0.31)
        ),
    ]
    choices = [
        known("choice[all]", (2, 2), 0.7, ABOVE, first=(FIRST, 0.5), profile=("", 0.52)),
        known("choice[anti]", (2, 2), 0.5, NOT_ABOVE_CHANCE, first=(FIRST, 0.5)),
        known("choice[pro]", (2, 2), 0.9, ABOVE, first=(FIRST, 0.5)),
    ]
    metrics = [sv, vs, every, obj, obj_back, nsubj, passive, case, clf, *mentions, *choices]
    relations = [
        of_relation(case, p_any=0.21),
        of_relation(clf, p_any=NAN),
        of_relation(every),
        of_relation(obj, obj.metric, obj_back.metric),
        of_relation(nsubj),
        of_relation(passive),
        of_relation(sv, sv.metric, vs.metric),
        *(of_relation(row) for row in (*mentions, *choices)),
    ]
    return metrics, relations


def evidence_of(
    metrics: list[MetricEvidence],
    relations: list[RelationEvidence],
    claimed: dict[tuple[str, int, int], tuple[float, float]] | None = None,
    *,
    heads: tuple[int, int] = (LAYERS, HEADS),
) -> Evidence:
    """`claimed`: accuracy and own profile of the heads whose q is below alpha; all others have nothing to show."""
    shape = (len(metrics), *heads)
    arrays = {name: np.full(shape, 0.1) for name in ("value", "expected", "profile")}
    q = np.ones(shape)
    for (metric, layer, head), (value, profile) in (claimed or {}).items():
        place = ([row.metric for row in metrics].index(metric), layer, head)
        arrays["value"][place], arrays["profile"][place], q[place] = value, profile, 0.001
    return Evidence(tuple(metrics), tuple(relations), SETTINGS, **arrays, p=q / 2, q=q)


def annotated_evidence() -> Evidence:
    """Claims beside the verdicts: L2H0 (obj), L0H3 (case, from its noun), L1H1 (pronouns)."""
    claimed = {
        ("syntax.dep_to_head[obj]", 2, 0): (0.74, 0.39),
        ("syntax.head_to_dep[case]", 0, 3): (0.91, 0.2),
        ("coref[pronoun]", 1, 1): (0.75, 0.3),
    }
    return evidence_of(*annotated_rows(), claimed)


def annotated_scores() -> ScoreTable:
    """Scores of the same metrics and of those that come with them, and L0H2 at the previous token."""
    metrics, _ = annotated_rows()
    rest = ["syntax.mass[to_head]", "syntax.abstention", "phrase.neighbour", "border.punctuation"]
    values = {name: at(0.1, {}) for name in [*(row.metric for row in metrics), *rest]}
    values["phrase.neighbour"] = at(0.5, {(0, 1): 0.71})
    values["choice.difference[pro-anti]"] = at(0.0, {(2, 2): 0.4, (0, 0): -0.55})
    values["phrase.difference[previous]"] = at(0.02, {(0, 1): -0.2})
    words = table(values, with_macro=False)
    return ScoreTable.joined([words, table({"position.mass[-1]": at(0.04, {(0, 2): 0.997})})])


def full_annotated() -> tuple[ScoreTable, Evidence]:
    """12 x 12 heads, 100 metrics of syntax beside 35 others; 49 relations, all above every baseline."""
    rng = np.random.default_rng(1)
    relations = ["ALL", *(f"rel{number}" for number in range(49))]
    names = [(r, f"syntax.{way}[{r}]") for r in relations for way in ("dep_to_head", "head_to_dep")]
    rows = [
        known(
            name,
            (place % 12, place % 7),
            0.6,
            ABOVE,
            relation=relation,
            decisions=1000 - place,
            offset=("+1", 0.2 + place / 1000),
            pos=("1. VERB after", 0.55),
            profile=("", 0.15),
        )
        for place, (relation, name) in enumerate(names)
    ]
    evidence = evidence_of(rows, [of_relation(row) for row in rows[::2]], heads=(12, 12))
    words = table({name: rng.beta(0.7, 4, (12, 12)) for _, name in names}, with_macro=False)
    return ScoreTable.joined([words, full_size()]), evidence


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
        parts = [child if isinstance(child, str) else child.text for child in self.children]
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
