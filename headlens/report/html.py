"""One page that tells what the heads attend to: self-contained, and readable without scripts."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from headlens.effects import Ablation
from headlens.evidence_table import VERDICTS, Evidence
from headlens.examples import Examples
from headlens.files import atomic_write
from headlens.numbers import NOT_DEFINED, number
from headlens.report import behaviour, facts
from headlens.report.environment import new_environment
from headlens.report.evidence_rows import Controls, rivals_of
from headlens.report.facts import Provenance
from headlens.report.figures import sparkline
from headlens.report.findings import Finding, findings, head_traits
from headlens.report.further import KEYS, further
from headlens.report.head_map import LISTED, WIDE, heads_by_role, map_of
from headlens.report.methods import methods_of
from headlens.report.page_data import as_script, page_data
from headlens.report.sections import figure_of, notable
from headlens.report.themes import themes
from headlens.roles import Roles, roles_of, rules_for
from headlens.scores import SCHEMA, Metric, ScoreTable
from headlens.wording import SYNTAX, family_of, rival_words

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from headlens.behaviour.similarity import Similarity

_SUMMARY_MAPS = 3
_PAGE = ("dom.js", "plots.js", "map.js", "card.js", "page.js")  # in one scope, in this order


def render_report(
    scores: ScoreTable,
    provenance: Provenance,
    evidence: Evidence | None = None,
    similarity: Similarity | None = None,
    examples: Examples | None = None,
    roles: Roles | None = None,
) -> str:
    """The whole report as an HTML page; what the provenance does not say is left out.

    With `similarity` it has a map of all heads, with `examples` the card of a head shows texts of the corpus. With
    `evidence`, of an annotated corpus, the page also has tables of relations and coreference, each accuracy beside its
    baselines, and claims that rest on them. What taking heads out does is read from the provenance. After a failed
    self-check nothing is claimed. `roles` are those of scores and evidence, if they are at hand.

    Raises
    ------
    OutputError
        The provenance has effects of heads that are not whole.
    """
    checked = facts.selfcheck(provenance)
    may_claim = facts.may_claim(provenance)
    roles = roles if roles is not None else roles_of(scores, evidence)
    traits = head_traits(scores, roles if may_claim else _no_roles(roles))
    found = further(provenance)
    ablation = Ablation.of_provenance(provenance)
    data = page_data(
        scores,
        traits,
        roles if may_claim else None,
        similarity=similarity,
        examples=examples if may_claim else None,
        ablation=ablation,
    )
    scripts = _scripts()
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            title=facts.title(scores, provenance),
            version=facts.at(provenance, "headlens"),
            facts=facts.header_facts(scores, provenance),
            selfcheck=checked,
            broken=facts.broken_laws(provenance),
            may_claim=may_claim,
            findings=_findings_with_pictures(scores, evidence, roles, ablation) if may_claim else [],
            agreement=behaviour.agreement_line(provenance, roles) if may_claim else "",
            layers=map_of(traits, scores.n_heads, may_claim=may_claim),
            is_wide=scores.n_heads > WIDE,
            listed=LISTED,
            linked={head.name for head in traits},
            counts=heads_by_role(roles) if may_claim else [],
            plain_heads=sum(not head.held and not head.is_absent for head in traits),
            themes=themes(
                scores,
                evidence if may_claim else None,
                found,
                provenance if may_claim else {},
                similarity,
                roles if may_claim else None,
            ),
            schema=SCHEMA,
            settings=evidence.settings if evidence is not None else None,
            methods=_methods(scores, evidence),
            method=methods_of(provenance, has_similarity=similarity is not None, has_examples=examples is not None),
            verdicts=VERDICTS,
            baselines=_baselines(evidence, found.controls),
            command=facts.at(provenance, "command"),
            laws=facts.laws(provenance),
            provenance=_provenance_groups(provenance),
            scores=scores,
            data=_markup(as_script(data)),
            scripts=scripts,
            policy=_policy(scripts),
        )
    )


def render_summary(
    scores: ScoreTable, provenance: Provenance, evidence: Evidence | None = None, roles: Roles | None = None
) -> str:
    """A fragment for notebooks: title, findings and three heat maps, all style inline, always on a light card."""
    checked = facts.selfcheck(provenance)
    may_claim = facts.may_claim(provenance)
    found = findings(scores, evidence, roles, Ablation.of_provenance(provenance)) if may_claim else []
    return (
        _environment()
        .get_template("summary.html.j2")
        .render(
            title=facts.title(scores, provenance),
            facts=facts.header_facts(scores, provenance),
            selfcheck=checked,
            findings=found,
            maps=[
                (metric, figure_of(scores, metric, notable(scores, metric))) for metric in _key_metrics(scores, found)
            ],
        )
    )


def write_report(
    scores: ScoreTable,
    provenance: Provenance,
    path: str | os.PathLike[str],
    evidence: Evidence | None = None,
    similarity: Similarity | None = None,
    examples: Examples | None = None,
) -> None:
    """Render the report and put it at `path` in one step; an OutputError says why it cannot be written."""
    page = render_report(scores, provenance, evidence, similarity, examples)
    # a file name that is no proper text reaches here with lone surrogates, which UTF-8 cannot hold
    content = page.encode("utf-8", "backslashreplace")
    atomic_write(path, lambda temporary: temporary.write_bytes(content))


@cache
def _environment() -> Environment:
    return new_environment(number=number, NOT_DEFINED=NOT_DEFINED)


@cache
def _scripts() -> list[Markup]:
    """The scripts of the page, each as it stands between its tags: arcs, the page itself, tables."""
    parts = [source for name in _PAGE if (source := _source(name))]
    page = "(() => {\n" + "\n".join(['"use strict";', *parts]) + "\n})();"
    return [_markup(text) for text in (_source("arcs.js"), page, _source("tables.js")) if text]


def _source(name: str) -> str:
    """A file of the templates, not read as a template; empty where it is missing."""
    file = resources.files("headlens.report").joinpath("templates", name)
    return file.read_text(encoding="utf-8").strip() if file.is_file() else ""


def _policy(scripts: Sequence[str]) -> str:
    """Nothing from outside, and no script but those that are written here, by their hashes."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {allowed}"


def _markup(text: str) -> Markup:
    from markupsafe import Markup

    return Markup(text)


def _no_roles(roles: Roles) -> Roles:
    return replace(roles, held=())


def _findings_with_pictures(
    scores: ScoreTable, evidence: Evidence | None, roles: Roles, ablation: Ablation | None
) -> list[tuple[Finding, Markup | None]]:
    def picture(finding: Finding) -> Markup | None:
        head = finding.head
        if head is None or finding.metric not in scores or not np.isfinite(scores[finding.metric]).any():
            return None
        row = finding.evidence
        rival = row.baselines[row.rival].held_out if row is not None and row.rival else np.nan
        return _markup(sparkline(scores[finding.metric], head.value, head.chance, rival=rival))

    return [(finding, picture(finding)) for finding in findings(scores, evidence, roles, ablation)]


def _methods(scores: ScoreTable, evidence: Evidence | None) -> set[str]:
    """What the section on methods tells of: families of metrics, and "words" where there is any of them."""
    weighed = [row.metric for row in evidence.metrics] if evidence is not None else []
    families = {family_of(name) for name in (*scores.names, *weighed)}
    told = families & {"coref", "choice", "phrase"} | ({"syntax"} if families & set(SYNTAX) else set())
    return told | {"words"} if told else told


def _baselines(evidence: Evidence | None, controls: Controls | None) -> list[tuple[str, str]]:
    """Every baseline on the page and what it is."""
    rows = evidence.metrics if evidence is not None else ()
    words = [rival_words(name) for name in rivals_of(rows)]
    named = [(rival.title, rival.meaning) for rival in words if rival.meaning]
    random = "the best head of a copy of the model with random weights, chosen and judged on all documents; the highest"
    return [*named, ("Best random head", f"{random} of {controls.copies:,}")] if controls and evidence else named


def _key_metrics(scores: ScoreTable, found: Sequence[Finding]) -> list[Metric]:
    """Metrics of the findings first, then those that rules read, then any other that has values."""
    told = [finding.metric for finding in found if finding.metric in scores]
    names = dict.fromkeys([*told, *(rule.metric for rule in rules_for(scores)), *scores.names])
    drawn = [scores.metrics[scores.index(name)] for name in names if np.isfinite(scores[name]).any()]
    return drawn[:_SUMMARY_MAPS]


def _provenance_groups(provenance: Provenance) -> list[tuple[str, list[tuple[str, str]]]]:
    lines = facts.flat(
        {key: value for key, value in provenance.items() if key not in (*KEYS, *behaviour.KEYS, "ablation")}
    )
    return [
        (group, list(members)) for group, members in groupby(lines, key=lambda line: re.split(r"[.\[]", line[0])[0])
    ]
