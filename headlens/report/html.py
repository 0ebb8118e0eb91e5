"""One page that tells what the heads attend to: self-contained, readable without network and without scripts."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from headlens.evidence_table import VERDICTS, Evidence
from headlens.files import atomic_write
from headlens.numbers import NOT_DEFINED, number
from headlens.report import behaviour, facts
from headlens.report.evidence_rows import Controls, rivals_of
from headlens.report.facts import Provenance
from headlens.report.figures import sparkline
from headlens.report.findings import Finding, HeadTraits, findings, head_traits
from headlens.report.further import KEYS, further
from headlens.report.sections import figure_of, notable
from headlens.report.themes import themes
from headlens.roles import Roles, roles_of, rules_for
from headlens.roles.catalogue import RULES
from headlens.scores import SCHEMA, Metric, ScoreTable
from headlens.wording import SYNTAX, family_of, rival_words

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from headlens.behaviour.similarity import Similarity

_SUMMARY_MAPS = 3
_NAMED = 3  # roles of a head that are told when a cell of the map is pointed at


@dataclass(frozen=True)
class _Legend:
    """A letter of the head map and the heads that have it."""

    letter: str
    trait: str
    colour: str
    gloss: str
    heads: list[str]


def render_report(
    scores: ScoreTable,
    provenance: Provenance,
    evidence: Evidence | None = None,
    similarity: Similarity | None = None,
) -> str:
    """The whole report as an HTML page; what the provenance does not say is left out.

    With `similarity` it has a map of all heads. With `evidence`, of an annotated corpus, the page also has tables of
    relations and coreference, each accuracy beside its baselines, and claims that rest on them. After a failed
    self-check nothing is claimed.
    """
    checked = facts.selfcheck(provenance)
    may_claim = checked is None or checked[0]
    roles = roles_of(scores, evidence)
    traits = head_traits(scores, roles) if may_claim else []
    found = further(provenance)
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            title=facts.title(scores, provenance),
            version=facts.at(provenance, "headlens"),
            facts=facts.header_facts(scores, provenance),
            selfcheck=checked,
            findings=_findings_with_pictures(scores, evidence) if may_claim else [],
            agreement=behaviour.agreement_line(provenance) if may_claim else "",
            layers=[traits[start : start + scores.n_heads] for start in range(0, len(traits), scores.n_heads)],
            linked={head.name for head in traits},
            legend=_legend(roles if may_claim else None),
            plain_heads=sum(not head.held and head.nearest is not None for head in traits),
            themes=themes(scores, evidence if may_claim else None, found, provenance if may_claim else {}, similarity),
            rules=RULES,
            schema=SCHEMA,
            settings=evidence.settings if evidence is not None else None,
            methods=_methods(scores, evidence),
            verdicts=VERDICTS,
            baselines=_baselines(evidence, found.controls),
            command=facts.at(provenance, "command"),
            laws=facts.laws(provenance),
            provenance=_provenance_groups(provenance),
            scores=scores,
        )
    )


def render_summary(scores: ScoreTable, provenance: Provenance, evidence: Evidence | None = None) -> str:
    """A fragment for notebooks: title, findings and three heat maps, all style inline, always on a light card."""
    checked = facts.selfcheck(provenance)
    may_claim = checked is None or checked[0]
    found = findings(scores, evidence) if may_claim else []
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
) -> None:
    """Render the report and put it at `path` in one step; an OutputError says why it cannot be written."""
    page = render_report(scores, provenance, evidence, similarity)
    # a file name that is no proper text reaches here with lone surrogates, which UTF-8 cannot hold
    content = page.encode("utf-8", "backslashreplace")
    atomic_write(path, lambda temporary: temporary.write_bytes(content))


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("headlens.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(number=number, cell_title=_cell_title, NOT_DEFINED=NOT_DEFINED)
    return environment


def _findings_with_pictures(scores: ScoreTable, evidence: Evidence | None) -> list[tuple[Finding, Markup | None]]:
    from markupsafe import Markup

    def picture(finding: Finding) -> Markup | None:
        head = finding.head
        if head is None or finding.metric not in scores or not np.isfinite(scores[finding.metric]).any():
            return None
        row = finding.evidence
        rival = row.baselines[row.rival].held_out if row is not None and row.rival else np.nan
        return Markup(sparkline(scores[finding.metric], head.value, head.chance, rival=rival))

    return [(finding, picture(finding)) for finding in findings(scores, evidence)]


def _cell_title(head: HeadTraits) -> str:
    """All roles of a head with their evidence; without any, the one that it comes nearest to."""
    if head.held:
        more = f" and {len(head.held) - _NAMED} more" if len(head.held) > _NAMED else ""
        return f"{head.name}: {'; '.join(one.sentence for one in head.held[:_NAMED])}{more}"
    if head.nearest is None:
        return f"{head.name}: {NOT_DEFINED}"
    rule = head.nearest.rule
    return f"{head.name}: no role; nearest {head.nearest.words}, threshold {rule.number(rule.threshold, digits=2)}"


def _legend(roles: Roles | None) -> list[_Legend]:
    if roles is None:
        return []
    return [
        _Legend(role.letter, role.title, f"t-{role.kind}", role.gloss, [one.name for one in roles.heads(role.id)])
        for role in roles.asked
    ]


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
    lines = facts.flat({key: value for key, value in provenance.items() if key not in (*KEYS, *behaviour.KEYS)})
    return [
        (group, list(members)) for group, members in groupby(lines, key=lambda line: re.split(r"[.\[]", line[0])[0])
    ]
