"""The page of a comparison: self-contained, readable without network, scripts and colour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from headlens.comparison import Comparison, Fate, Pair, Side, strength
from headlens.files import Write
from headlens.numbers import amount, count
from headlens.report import facts
from headlens.report.compare_rows import (
    EvidenceRow,
    HeadRow,
    RoleRow,
    ScoreRow,
    evidence_rows,
    head_rows,
    role_rows,
    score_rows,
)
from headlens.report.compare_words import is_reliable, notices, sentences, tally
from headlens.report.environment import new_environment
from headlens.report.surgery import is_of, surgery_lines, surgery_table
from headlens.report.tables import Table
from headlens.roles.role import HeadRole, Role
from headlens.scores import head_name
from headlens.spreadsheets import csv_writer

if TYPE_CHECKING:
    from jinja2 import Environment

MARKS: dict[Fate, str] = {
    "kept": "●",
    "moved": "▲",
    "named elsewhere": "△",
    "lost": "✕",
    "no longer named": "○",
    "gained": "+",
    "newly named": "⊕",
}
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class _Cell:
    """A head on a map of roles."""

    name: str
    role: Role | None
    is_firm: bool
    mark: str  # what became of it: "+", "✕", or nothing
    is_gone: bool
    title: str


class _Count(NamedTuple):
    """How many roles have one fate."""

    number: int
    mark: str
    words: str


@dataclass(frozen=True)
class _Part:
    """All that the page says of one pair."""

    pair: Pair
    letters: tuple[str, str]
    is_by_head: bool
    is_reliable: bool
    notices: list[str]
    sentences: list[str]
    fates: list[tuple[str, list[_Count]]]  # of roles, and of the roles of single heads
    maps: list[tuple[str, list[list[_Cell]]]]
    legend: list[Role]
    roles: list[RoleRow]
    changed: list[HeadRow]
    kept: list[HeadRow]
    scores: list[ScoreRow]
    total: str
    evidence: list[EvidenceRow]
    surgery: Table | None  # what surgery on the one cost, where the other came of that
    sizes: list[str]


def comparison_writers(comparison: Comparison) -> dict[str, Write]:
    """What writes the page and the two tables, by file name; hand them to `files.write_together`."""
    page = render_comparison(comparison).encode("utf-8", "replace")
    scores, roles = comparison.to_frame(), comparison.roles_frame()
    return {
        "comparison.html": lambda path: path.write_bytes(page),
        "comparison.csv": csv_writer(scores),
        "roles.csv": csv_writer(roles),
    }


def render_comparison(comparison: Comparison) -> str:
    """The whole page as HTML: for each pair what changed in short, maps, roles, heads and scores.

    After a failed self-check of a side its roles are not shown.
    """
    letters = [_LETTERS[place] if place < len(_LETTERS) else f"#{place + 1}" for place in range(len(comparison.sides))]
    return (
        _environment()
        .get_template("compare.html.j2")
        .render(
            title=_title(comparison),
            version=facts.at(comparison.sides[0].provenance, "headlens"),
            sides=[(letter, side, _about(side)) for letter, side in zip(letters, comparison.sides, strict=True)],
            parts=[
                _part(pair, (letters[0], letter)) for pair, letter in zip(comparison.pairs, letters[1:], strict=True)
            ],
        )
    )


@cache
def _environment() -> Environment:
    return new_environment(MARKS=MARKS, count=count, amount=amount)


def _title(comparison: Comparison) -> str:
    first, *others = (side.name for side in comparison.sides)
    return f"{first} and {others[0]} compared" if len(others) == 1 else f"{first} compared with {len(others)} others"


def _about(side: Side) -> str:
    told = dict(facts.header_facts(side.scores, side.provenance))
    lines = [told[term] for term in ("Model", "Corpus", "Date") if term in told]
    if check := facts.selfcheck(side.provenance):
        lines.append(f"self-check {check[1]}")
    return " · ".join(lines)


def _part(pair: Pair, letters: tuple[str, str]) -> _Part:
    may_claim = is_reliable(pair)
    heads = head_rows(pair) if may_claim else []
    beyond, every, chance = tally(pair)
    return _Part(
        pair=pair,
        letters=letters,
        is_by_head=pair.differences is not None,
        is_reliable=may_claim,
        notices=notices(pair),
        sentences=sentences(pair),
        fates=_fates(pair) if may_claim and pair.differences is not None else [],
        maps=_maps(pair, letters) if may_claim and pair.differences is not None else [],
        legend=_legend(pair),
        roles=role_rows(pair) if may_claim else [],
        changed=[row for row in heads if row.one.fate != "kept"],
        kept=[row for row in heads if row.one.fate == "kept"],
        scores=score_rows(pair),
        total=f"{beyond:,} of {every:,} (by chance about {count(round(chance))})" if every else "",
        evidence=evidence_rows(pair) if may_claim else [],
        **_surgery(pair),
    )


def _surgery(pair: Pair) -> dict[str, Any]:
    models = [facts.at(side.provenance, "model") for side in (pair.before, pair.after)]
    if not is_of(models[1], models[0]):
        return {"surgery": None, "sizes": []}
    told = pair.after.provenance
    return {"surgery": surgery_table(told), "sizes": list(surgery_lines(told))}


# --------------------------------------------------------------------------------------------------------------- roles


def _fates(pair: Pair) -> list[tuple[str, list[_Count]]]:
    """By the head that has a role most, and of every head that has it."""
    of_roles = Counter(change.fate for change in pair.roles if change.fate is not None)
    of_heads = Counter(one.fate for change in pair.roles for one in change.heads)
    return [
        ("Roles, by the head that has them most", [*_counts(of_roles), *_gone(pair)]),
        ("Roles of single heads", list(_counts(of_heads))),
    ]


def _counts(fates: Counter[Fate]) -> Iterator[_Count]:
    """What is kept and lost in any case, further ones where there are some."""
    for fate, mark in MARKS.items():
        if fates[fate] or fate in ("kept", "lost"):
            yield _Count(fates[fate], mark, fate)


def _gone(pair: Pair) -> Iterator[_Count]:
    for places, side, word in ((pair.removed, pair.before, "removed"), (pair.added, pair.after, "added")):
        if places:
            yield _Count(len(places), "", f"of {amount(side.scores.n_present, 'head')} {word}")


def _maps(pair: Pair, letters: tuple[str, str]) -> list[tuple[str, list[list[_Cell]]]]:
    layers, heads = pair.before.shape
    return [
        (
            f"{letter}: {side.name}",
            [[_cell(pair, layer, head, is_after=is_after) for head in range(heads)] for layer in range(layers)],
        )
        for letter, side, is_after in zip(letters, (pair.before, pair.after), (False, True), strict=True)
    ]


def _cell(pair: Pair, layer: int, head: int, *, is_after: bool) -> _Cell:
    there = pair.after if is_after else pair.before
    was, now = (_held(pair, side, layer, head) for side in (pair.before, pair.after))
    held = now if is_after else was
    label, mark = next(iter(held.values()), None), ""
    is_gone = not there.present[layer, head]
    words = "absent" if is_gone else ", ".join(f"{one.role.title} ({strength(one)})" for one in held.values())
    if is_after and not is_gone and was and not now:
        label = next(iter(was.values()))
        mark, words = MARKS[_fate(pair, label, "lost")], f"no role; before {label.role.title}"
    elif is_after and label is not None and label.role.id not in was:
        mark = MARKS[_fate(pair, label, "gained")]
    name = head_name(layer, head)
    return _Cell(
        name,
        label.role if label else None,
        is_firm=label is not None and label.is_firm,
        mark=mark,
        is_gone=is_gone,
        title=f"{name}: {words or 'no role'}",
    )


def _fate(pair: Pair, held: HeadRole, strongest: Fate) -> Fate:
    """Of a role that a head has on one side: `strongest`, or the weaker word where no interval stands behind it."""
    changes = [one for change in pair.roles if change.role.id == held.role.id for one in change.heads]
    return next((one.fate for one in changes if one.name == held.name), strongest)


def _held(pair: Pair, side: Side, layer: int, head: int) -> dict[str, HeadRole]:
    """Roles of a head by their id, of those that both sides were asked for; its label first."""
    asked = {change.role.id for change in pair.roles}
    held: dict[str, HeadRole] = {}
    for one in side.roles.of(layer, head):
        if one.role.id in asked:
            held.setdefault(one.role.id, one)
    return held


def _legend(pair: Pair) -> list[Role]:
    return [change.role for change in pair.roles if change.is_held]
