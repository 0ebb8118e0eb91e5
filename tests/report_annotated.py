"""For the tests of the report of an annotated corpus: evidence by hand, and readers of its tables."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from report_pages import HEADS, LAYERS, NAN, PROVENANCE, Node, at, cells, full_size, read, table

from headlens.evidence_table import (
    ABOVE,
    CHANCE,
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
from headlens.report import render_report
from headlens.scores import ScoreTable

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
        known("choice[anti]", (2, 2), 0.5, CHANCE, first=(FIRST, 0.5)),
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


NOTES: dict[str, Any] = {"notes": ["The parses are silver: made by a parser, not checked by people."]}


@cache
def annotated_page() -> Node:
    return read(render_report(annotated_scores(), {**PROVENANCE, **NOTES}, annotated_evidence()))


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


def section(page: Node, title: str) -> Node:
    (found,) = [node for node in page.all("section") if node.all("h2") and node.all("h2")[0].text == title]
    return found


def grid(node: Node, caption: str) -> Node:
    (found,) = [one for one in node.all("table", class_="ev") if own(one, "caption").text == caption]
    return found


def own(node: Node, tag: str) -> Node:
    (found,) = [child for child in node.children if isinstance(child, Node) and child.tag == tag]
    return found


def rows_of(grid: Node) -> list[list[str]]:
    """Texts of the cells of a table's own rows, those of folded tables left out; a picture is empty."""
    rows = [row for row in own(grid, "tbody").children if isinstance(row, Node)]
    return [cells(row) for row in rows if "fold" not in row.attributes.get("class", "").split()]


def row_of(grid: Node, start: str) -> list[str]:
    (found,) = [row for row in rows_of(grid) if row[0].startswith(start)]
    return found


def headings(grid: Node) -> list[str]:
    return [heading.text for heading in own(grid, "thead").all("th")]


def rows_of_nodes(grid: Node) -> list[Node]:
    rows = [row for row in own(grid, "tbody").children if isinstance(row, Node)]
    return [row for row in rows if "fold" not in row.attributes.get("class", "").split()]
