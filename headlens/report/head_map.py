"""The head map as it stands in the page before any script runs: a cell for each head, and the heads of each role."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headlens.numbers import NOT_DEFINED
from headlens.report.findings import HeadTraits
from headlens.roles import HeadRole, Role, Roles

WIDE = 16  # heads of a layer; more of them get narrow cells with the letter alone
NAMED = 3  # roles of a head that are told when its cell is pointed at
LISTED = 12  # heads of a role that are listed; the rest are counted


@dataclass(frozen=True)
class MapCell:
    """One head: the letter of its label, a small one of a further role, and both in words."""

    name: str
    kind: str  # of its label; empty without one
    letter: str
    further: str
    is_firm: bool
    is_absent: bool
    label: str  # for those who hear the page: role and strength
    title: str  # its numbers, when it is pointed at


@dataclass(frozen=True)
class RoleHeads:
    """Who has a role: the firm ones and the tentative ones, by name."""

    role: Role
    firm: tuple[str, ...]
    tentative: tuple[str, ...]

    @property
    def is_held(self) -> bool:
        return bool(self.firm or self.tentative)


def map_of(traits: Sequence[HeadTraits], n_heads: int, *, may_claim: bool = True) -> list[list[MapCell]]:
    """Cells [layer, head]. Where nothing may be claimed, no head has a letter."""
    cells = [_cell(head, may_claim=may_claim) for head in traits]
    return [cells[start : start + n_heads] for start in range(0, len(cells), n_heads)]


def heads_by_role(roles: Roles) -> list[RoleHeads]:
    """For every role that was asked for, in the order of the catalogue, the heads that have it, best first."""
    counted = []
    for role in roles.asked:
        heads = roles.heads(role.id)
        firm = tuple(one.name for one in heads if one.is_firm)
        counted.append(RoleHeads(role, firm, tuple(one.name for one in heads if not one.is_firm)))
    return counted


def once(held: Sequence[HeadRole]) -> list[HeadRole]:
    """Of roles that a head has by several metrics the first, in the same order."""
    first: dict[str, HeadRole] = {}
    for one in held:
        first.setdefault(one.role.id, one)
    return list(first.values())


def _cell(head: HeadTraits, *, may_claim: bool) -> MapCell:
    roles = once(head.held)
    label = roles[0] if roles else None
    return MapCell(
        name=head.name,
        kind=label.role.kind if label else "",
        letter=label.role.letter if label else "",
        further=roles[1].role.letter if len(roles) > 1 else "",
        is_firm=label is not None and label.is_firm,
        is_absent=head.is_absent,
        label=f"{head.name}: {_label(head, roles, may_claim=may_claim)}",
        title=f"{head.name}: {_title(head)}" if may_claim else "",
    )


def _label(head: HeadTraits, roles: Sequence[HeadRole], *, may_claim: bool) -> str:
    if head.is_absent:
        return NOT_DEFINED
    if not may_claim:
        return "roles withheld"
    told = [f"{one.role.title}, {'firm' if one.is_firm else 'tentative'}" for one in roles]
    return "; also ".join([told[0], "; ".join(told[1:])]) if len(told) > 1 else "".join(told) or "no role"


def _title(head: HeadTraits) -> str:
    """The roles of a head with their evidence; without any, the one that it comes nearest to."""
    if head.held:
        more = f" and {len(head.held) - NAMED} more" if len(head.held) > NAMED else ""
        return "; ".join(one.sentence for one in head.held[:NAMED]) + more
    if head.nearest is None:
        return NOT_DEFINED if head.is_absent else "no role"
    rule = head.nearest.rule
    return f"no role; nearest {head.nearest.words}, threshold {rule.number(rule.threshold, digits=2)}"
