"""For the tests in a browser: reports of tables drawn by hand, each rendered once in a process."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
from browsing import EVIL
from report_annotated import annotated_rows, annotated_scores, evidence_of
from report_pages import HEADS, LAYERS, PROVENANCE, at, planted, table

from headlens.behaviour.similarity import Similarity
from headlens.effects import Ablation, Effect
from headlens.evidence_table import Evidence
from headlens.examples import Example, Examples, Unshown
from headlens.report import render_report

LAYERS_OF_LARGE, HEADS_OF_LARGE = 48, 64
WORDS = ("the", "dog", EVIL, "</script>", "bar\u2028ks")
# the -> the .9, dog -> the .42, barks -> dog .5, barks -> <script> .25
ARCS = ((0, 0, 0.9), (1, 0, 0.42), (4, 1, 0.5), (4, 2, 0.25))


@cache
def plain_page() -> str:
    """3 x 4 heads with scores of position and surface tokens; L0H2 at the previous token, L2H0 on [CLS]."""
    return render_report(planted(), PROVENANCE, None, alike(), examples())


@cache
def annotated_page() -> str:
    """3 x 4 heads with all that an annotated corpus gives, and names that are no good markup."""
    effect = Effect(0, 2, "text", intact=3.0, change=0.25, low=0.125, high=0.375, q=0.001, documents=40)
    named = PROVENANCE | {"model": PROVENANCE["model"] | {"name": EVIL}, "ablation": Ablation((effect,)).to_dict()}
    return render_report(annotated_scores(), named, evidence(), alike(), examples())


@cache
def page_without_roles() -> str:
    return render_report(table({"position.mass[-1]": at(0.04, {}), "surface.cls": at(0.1, {})}), PROVENANCE)


@cache
def failed_page() -> str:
    law = {"law": "rows sum to one", "error": 0.5, "tolerance": 1e-5}
    check = {"passed": False, "line": "1 of 12 heads differs", "laws": [law]}
    return render_report(planted(), PROVENANCE | {"selfcheck": check}, None, alike(), examples())


@cache
def large_page() -> str:
    """48 x 64 heads, 60 metrics; L47H63 is at the previous token."""
    rng = np.random.default_rng(0)
    offsets = [f"position.{kind}[{offset}]" for kind in ("mass", "mass_valid", "argmax") for offset in range(-8, 9)]
    surface = [
        f"surface.{kind}" for kind in "first cls sep special full_stop comma sink_rows confidence breadth".split()
    ]
    values = {name: rng.beta(0.7, 4, (LAYERS_OF_LARGE, HEADS_OF_LARGE)) for name in offsets + surface}
    values["position.mass[-1]"][-1, -1] = 0.984
    return render_report(table(values, with_macro=False), PROVENANCE)


def evidence() -> Evidence:
    """Of the annotated corpus; `case` was asked 1,200 times, which as a text would stand before 500."""
    metrics, relations = (
        [replace(row, decisions=1200) if row.relation == "case" else row for row in rows] for rows in annotated_rows()
    )
    return evidence_of(metrics, relations)


def examples() -> Examples:
    text = Example(
        layer=0,
        head=2,
        text_id="a.conllu:3",
        words=WORDS,
        arcs=ARCS,
        rest=(0.1, 0.58, 1.0, 1.0, 0.25),
        unknown=(2,),
        direction="ltr",
        strength=0.5,
        why="previous_token",
        shown=(1,),
        asked=2,
        right=1,
    )
    return Examples((text,), (Unshown(0, 1, "coreference", run=200, able=31, strength=0.0875),))


def alike() -> Similarity:
    """Heads on a line, .05 apart, the last one .4; the first and the last six are clusters."""
    n = LAYERS * HEADS
    heads = tuple((layer, head) for layer in range(LAYERS) for head in range(HEADS))
    line = 0.05 * np.arange(n)
    line[-1] = line[-2] + 0.4
    return Similarity(
        heads,
        distance=np.abs(line[:, None] - line),
        place=np.stack([line, np.zeros(n)], axis=1),
        cluster=np.repeat([0, 1], n // 2),
        rows=1000,
        inputs=20,
        stress=0.01,
        silhouette=0.6,
    )
