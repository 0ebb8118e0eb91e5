"""How the page is divided: which metrics stand together, what evidence goes before, and which maps are drawn."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from headlens.evidence_table import ABOVE, INFORMED, SLIGHT, Evidence, RelationEvidence
from headlens.numbers import interval, number, signed
from headlens.report import patterns
from headlens.report.behaviour import has_recalled, pairs_table, reasons, retrieval_line
from headlens.report.best_heads import contribution_table, repetition_table
from headlens.report.evidence_rows import coreference_table, directions_table, pronouns_table, relations_table
from headlens.report.facts import Provenance
from headlens.report.further import Further
from headlens.report.matrix import matrix
from headlens.report.sections import Section, is_one_number, own_place, section_of
from headlens.report.similar import clusters_table, map_of_heads, similarity_lines
from headlens.report.surgery import surgery_lines, surgery_sentence, surgery_table
from headlens.report.tables import Table
from headlens.report.taken_out import taken_out_introduction, taken_out_lines, taken_out_table
from headlens.roles import Roles
from headlens.scores import HeadScore, Metric, ScoreTable
from headlens.wording import ALL, SYNTAX, family_of, is_subtype, title_of

if TYPE_CHECKING:
    from markupsafe import Markup

    from headlens.behaviour.similarity import Similarity

MOST_TAGS = 4  # parts of speech of which maps are drawn
MOST_RELATIONS = 10  # of which maps are drawn: a page with a map for each of a hundred metrics would not load
_MAPS = frozenset(
    {
        "syntax.dep_to_head[ALL]",
        "syntax.head_to_dep[ALL]",
        "coref[all]",
        "coref[pronoun]",
        "coref[proper]",
        "coref[nominal]",
    }
)
_OF_TAGS = ("lexical.to_upos[", "lexical.from_upos[")
_DRAWN = (ABOVE, INFORMED, SLIGHT)  # verdicts, the best first
_RELATION = re.compile(r"syntax\.(?:dep_to_head|head_to_dep)\[(.+)\]")


@dataclass(frozen=True)
class Picture:
    title: str
    drawing: Markup
    caption: str


@dataclass(frozen=True)
class Theme:
    """A part of the page. `lines` are remarks; `folded` opens on request."""

    title: str
    introduction: str
    table: Table | None = None
    has_verdicts: bool = False  # in the table
    is_narrow: bool = False  # a table of few short columns
    folded: Table | None = None
    lines: tuple[str, ...] = ()
    ensembles: Table | None = None
    probe: str = ""
    pictures: tuple[Picture, ...] = ()
    groups: tuple[tuple[str, list[tuple[str, str]]], ...] = ()  # for the contents: words, then (link text, anchor)
    sections: tuple[Section, ...] = ()
    left_out: str = ""  # which maps are not drawn, and where the numbers are
    alike: str = ""  # scores that all heads have alike

    @property
    def is_empty(self) -> bool:
        parts = self.table, self.lines, self.ensembles, self.probe, self.pictures, self.sections, self.alike
        return not any(parts)


@dataclass(frozen=True)
class _Plan:
    title: str
    families: tuple[str, ...]
    introduction: str


_RELATIONS = _Plan(
    "Relations",
    SYNTAX,
    "Does a word attend to the word that it depends on, or the other way round? From dependents to heads, and between "
    "subjects and verbs, a head is right on a word if the partner is the word that it attends to most; from heads to "
    "dependents, if the partner is the word that attends to it most, so the two may differ on the same words. Heads "
    "and baselines are chosen on one half of the documents and judged on the other.",
)
_COREFERENCE = _Plan(
    "Coreference",
    ("coref",),
    "Among the earlier mentions of a text, does a mention attend most to one of the same entity?",
)
_PRONOUNS = _Plan(
    "Pronouns",
    ("choice",),
    "Of the names or nouns that a pronoun may refer to, does it attend most to the right one?",
)
_CONTRIBUTION = _Plan(
    "Contribution",
    ("contribution",),
    "What a head takes from where it looks: attention times the norm of what the head would write if it looked there "
    "alone (Kobayashi et al. 2020). A head may look at a token and take nothing from it.",
)
_WORDS = _Plan(
    "Words",
    ("lexical",),
    "Which words a head looks at, whatever their place: rare ones, those of one part of speech, other forms of the "
    "same word, and other pieces of the same one.",
)
_REPETITION = _Plan(
    "Repetition",
    ("repetition",),
    "On random tokens written twice there is nothing to tell but what stood before (Olsson et al. 2022): a head may "
    "look at the previous token, at the same token in the first copy, or at the token that came after it there.",
)
_WEIGHTS = _Plan(
    "Weights",
    ("circuits",),
    "What the weights say without any text (Elhage et al. 2021): whether a head raises or lowers the token that it "
    "looks at, and which heads read what others write.",
)
_RETRIEVAL = _Plan(
    "Retrieval",
    ("retrieval",),
    "While the model goes on with something that stands far back in a text, which heads look at the very token that is "
    "written next (Wu et al. 2024)?",
)
_PLANS = (
    _RELATIONS,
    _COREFERENCE,
    _PRONOUNS,
    _Plan(
        "Phrases and borders",
        ("phrase", "border"),
        "Whether a word attends to the neighbour in its own phrase, and to the marks that close a sentence or clause.",
    ),
    _Plan(
        "Position",
        ("position",),
        "Where a head looks, counted from the token whose row it is: −1 is the token before it.",
    ),
    _Plan("Surface", ("surface",), "What kind of token a head looks at, and how widely it spreads its attention."),
    _CONTRIBUTION,
    _WORDS,
    _REPETITION,
    _WEIGHTS,
    _RETRIEVAL,
)


def themes(
    scores: ScoreTable,
    evidence: Evidence | None,
    further: Further,
    provenance: Provenance | None = None,
    similarity: Similarity | None = None,
    roles: Roles | None = None,
) -> list[Theme]:
    """The parts of the page that have something to say; families without a plan come last, under their own names.

    Without `roles`, tables of heads do not tell them, and there are no classes of patterns.
    """
    planned = {family for plan in _PLANS for family in plan.families}
    others = dict.fromkeys(family for metric in own_place(scores) if (family := family_of(metric.name)) not in planned)
    plans = [*_PLANS, *(_Plan(name.replace("_", " ").capitalize(), (name,), "") for name in others)]
    given = _Given(scores, evidence, further, provenance or {}, roles)
    found = [_theme(plan, given) for plan in plans]
    found += [_patterns(given), _taken_out(given), _surgery(given)]
    if similarity is not None:
        found.append(_similarity(similarity, roles))
    return [theme for theme in found if not theme.is_empty]


@dataclass(frozen=True)
class _Given:
    """What the page is made of."""

    scores: ScoreTable
    evidence: Evidence | None
    further: Further
    provenance: Provenance
    roles: Roles | None


def _patterns(given: _Given) -> Theme:
    table = patterns.patterns_table(given.scores, given.roles)
    return Theme("Classes of patterns", patterns.INTRODUCTION, table, is_narrow=True)


def _taken_out(given: _Given) -> Theme:
    return Theme(
        "Heads taken out",
        taken_out_introduction(given.provenance),
        taken_out_table(given.provenance, given.roles),
        lines=tuple(taken_out_lines(given.provenance)),
    )


def _surgery(given: _Given) -> Theme:
    told = surgery_sentence(given.provenance)
    return Theme(
        "Surgery",
        f"The model is {told}. What was measured when that was done:" if told else "",
        surgery_table(given.provenance),
        is_narrow=True,
        lines=tuple(surgery_lines(given.provenance)),
    )


def _similarity(similarity: Similarity, roles: Roles | None) -> Theme:
    from markupsafe import Markup

    pictures = [
        Picture(
            "Map of all heads",
            Markup(map_of_heads(similarity)),
            "Each mark is a head; marks of one shape are of one cluster.",
        ),
        Picture(
            "Distances of all heads",
            Markup(matrix(similarity)),
            "Every head beside every other, by cluster and then by layer: the stronger, the nearer. Lines part the "
            "clusters.",
        ),
    ]
    return Theme(
        title="Similarity",
        introduction="Heads that look at the same places in the same rows stand together.",
        table=clusters_table(similarity, roles),
        lines=tuple(similarity_lines(similarity)),
        pictures=tuple(pictures if len(similarity.heads) > 1 else pictures[:1]),
    )


def drawn_relations(scores: ScoreTable, evidence: Evidence | None) -> list[str]:
    """Metrics of at most ten relations, the best verdicts first; without evidence those with the most decisions.

    Subtypes are left out, and so are subject and verb and all relations together, which are drawn in any case.
    """
    if evidence is not None:
        rows = [row for row in evidence.relations if row.verdict in _DRAWN and _is_plain(row.relation)]
        rows = [row for row in rows if family_of(row.metric) == "syntax" and row.metric in scores]
        return [row.metric for row in sorted(rows, key=_rank)[:MOST_RELATIONS]]
    best: dict[str, tuple[float, str]] = {}  # relation -> decisions and metric, of the direction with the higher head
    for metric in scores.metrics:
        hit = _RELATION.fullmatch(metric.name)
        if hit and _is_plain(hit[1]) and np.isfinite(scores[metric.name]).any():
            support = float(scores.support[scores.index(metric.name)].max())
            other = best.get(hit[1])
            if other is None or np.nanmax(scores[metric.name]) > np.nanmax(scores[other[1]]):
                best[hit[1]] = (max(support, other[0] if other else 0.0), metric.name)
    return [name for _, name in sorted(best.values(), key=lambda entry: -entry[0])[:MOST_RELATIONS]]


def _rank(row: RelationEvidence) -> tuple[int, float]:
    return _DRAWN.index(row.verdict), -row.gain


def _is_plain(relation: str) -> bool:
    return relation != ALL and not is_subtype(relation)


def _theme(plan: _Plan, given: _Given) -> Theme:
    scores, evidence, further = given.scores, given.evidence, given.further
    metrics = [metric for metric in own_place(scores) if family_of(metric.name) in plan.families]
    if plan is _RETRIEVAL and not has_recalled(given.provenance):
        metrics = []  # maps of heads that had nothing to find
    relations = drawn_relations(scores, evidence) if plan is _RELATIONS else []
    alike = [metric for metric in metrics if is_one_number(scores[metric.name])]
    metrics = [metric for metric in metrics if metric not in alike]
    chosen = _drawn(metrics, [*relations, *_telling_tags(scores, metrics)])
    sections = tuple(section_of(scores, metric) for metric in chosen)
    is_syntax = plan is _RELATIONS
    table = _table(plan, given)
    return Theme(
        title=plan.title,
        introduction=plan.introduction,
        table=table,
        has_verdicts=table is not None and plan in (_RELATIONS, _COREFERENCE, _PRONOUNS),
        folded=directions_table(evidence, further.controls) if evidence is not None and is_syntax else None,
        lines=tuple(_lines(plan, scores, evidence, given.provenance)),
        ensembles=further.ensembles if is_syntax else None,
        probe=further.probe if is_syntax else "",
        groups=tuple(_groups(sections)),
        sections=sections,
        left_out=_left_out(len(chosen), len(metrics), has_table=evidence is not None and bool(relations)),
        alike=_alike(scores, alike),
    )


def _table(plan: _Plan, given: _Given) -> Table | None:
    if plan is _REPETITION:
        return repetition_table(given.scores, given.roles)
    if plan is _CONTRIBUTION:
        return contribution_table(given.scores, given.roles)
    if plan is _WEIGHTS:
        return pairs_table(given.provenance)
    of_evidence = {_RELATIONS: relations_table, _COREFERENCE: coreference_table, _PRONOUNS: pronouns_table}
    if given.evidence is None or plan not in of_evidence:
        return None
    return of_evidence[plan](given.evidence, given.further.controls)


def _drawn(metrics: Sequence[Metric], chosen: Sequence[str]) -> list[Metric]:
    """Of metrics of which there are many only those that are `chosen`, in their order."""
    by_name = {metric.name: metric for metric in metrics}
    return [*(metric for metric in metrics if _is_drawn(metric)), *(by_name[name] for name in chosen)]


def _is_drawn(metric: Metric) -> bool:
    is_one_of_many = _RELATION.fullmatch(metric.name) is not None or family_of(metric.name) == "coref"
    is_beside_another = metric.name.startswith("repetition.") and metric.name.endswith(("_argmax", "_control"))
    is_of_a_tag = metric.name.startswith(_OF_TAGS)
    return metric.name in _MAPS or not (is_one_of_many or is_beside_another or is_of_a_tag)


def _telling_tags(scores: ScoreTable, metrics: Sequence[Metric]) -> list[str]:
    """The parts of speech that some head prefers most, as a multiple of their share."""
    preferred = []
    for metric in metrics:
        chance = float(scores.chance[scores.index(metric.name)])
        if metric.name.startswith(_OF_TAGS[0]) and chance > 0 and np.isfinite(scores[metric.name]).any():
            preferred.append((float(np.nanmax(scores[metric.name])) / chance, metric.name))
    return [name for _, name in sorted(preferred, reverse=True)[:MOST_TAGS]]


def _left_out(drawn: int, metrics: int, *, has_table: bool) -> str:
    if drawn == metrics:
        return ""
    where = "every metric with enough decisions has its row in the tables above, and " if has_table else ""
    return f"Maps are drawn of {drawn} of the {metrics} metrics; {where}the numbers of all heads are in scores.csv."


def _alike(scores: ScoreTable, metrics: Sequence[Metric]) -> str:
    """One line for the scores of which a map would have one colour."""
    by_value: dict[str, list[str]] = {}
    for metric in metrics:
        by_value.setdefault(number(float(np.nanmax(scores[metric.name])), metric.unit), []).append(metric.title)
    told = [f"{value} for {', '.join(titles)}" for value, titles in by_value.items()]
    return f"All heads have the same number, so there is no map: {'; '.join(told)}." if told else ""


def _lines(plan: _Plan, scores: ScoreTable, evidence: Evidence | None, provenance: Provenance) -> Iterator[str]:
    families = {family_of(metric.name) for metric in scores.metrics}
    if plan is _COREFERENCE and families & set(SYNTAX) and not families & {"coref", "choice"}:
        yield "The corpus marks no coreference, so nothing can be said about it."
    if plan is _RELATIONS and families & {"coref", "choice"} and not families & set(SYNTAX):
        yield "The corpus marks no dependencies, so nothing can be said about relations."
    if plan is _RETRIEVAL and (line := retrieval_line(provenance)):
        yield line
    for family in plan.families:
        yield from reasons(provenance, family)
    if plan is _PRONOUNS:
        for metric in scores.metrics:
            if metric.name.startswith("choice.difference[") and np.isfinite(scores[metric.name]).any():
                yield _difference(metric, scores, evidence)


def _difference(metric: Metric, scores: ScoreTable, evidence: Evidence | None) -> str:
    """Of the head that is best on all pronouns, and of the one with the largest difference."""
    one, _, other = metric.name.partition("[")[2].rstrip("]").partition("-")
    values = scores[metric.name]
    layer, head = divmod(int(np.nanargmax(np.abs(values))), scores.n_heads)
    largest = scores.score(metric.name, layer, head)
    parts = [f"largest at {_signed_score(largest)}"]
    if evidence is not None and "choice[all]" in evidence.names:
        row = evidence["choice[all]"]
        parts.insert(
            0, f"{_signed_score(scores.score(metric.name, row.layer, row.head))}, the best head on all pronouns"
        )
    return f"Accuracy on {_title(one)} minus {_title(other)}: {'; '.join(parts)}."


def _title(group: str) -> str:
    title = title_of(f"choice[{group}]")
    return title[:1].lower() + title[1:]


def _signed_score(score: HeadScore) -> str:
    reach = f" ({interval(score.low, score.high, 'share')})" if np.isfinite([score.low, score.high]).all() else ""
    return f"{score.name} {signed(score.value, 'share')}{reach}"


def _groups(sections: Sequence[Section]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Contents of a theme: metrics that differ only in their offset share one entry."""

    def stem(section: Section) -> str:
        return section.metric.name.partition("[")[0]

    def entry(section: Section) -> tuple[str, str]:
        offset = section.metric.name.partition("[")[2].rstrip("]")
        words = f"{int(offset):+d}".replace("-", "−").replace("+0", "0") if _is_whole(offset) else offset
        return words, section.anchor

    return [
        (name.partition(".")[2].replace("_", " ") or name, [entry(section) for section in members])
        for name, members in groupby(sections, key=stem)
    ]


def _is_whole(text: str) -> bool:
    return re.fullmatch(r"-?\d+", text) is not None
