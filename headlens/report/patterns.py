"""The classes of Kovaleva et al. 2019 as they follow from roles: how many heads of each layer are of each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headlens.numbers import number
from headlens.report.tables import NOTHING, Cell, Column, Row, Table
from headlens.roles import Roles
from headlens.roles.table import PATTERN_CLASSES
from headlens.scores import ScoreTable

INTRODUCTION = (
    "Kovaleva et al. 2019 (section 4.1) sort heads by the look of their attention maps. Here the class of a head "
    "follows from its roles: vertical, if it attends to [CLS], [SEP], the first token or punctuation; diagonal, if it "
    "attends by position; both; or heterogeneous, if neither. Their fifth class, block, is attention within one "
    "of two joined texts; inputs here are single texts, so it is not measured."
)
_MEANINGS = {
    "vertical": "a role of resting place or punctuation",
    "diagonal": "a role of position",
    "vertical and diagonal": "roles of either kind",
    "heterogeneous": "no role of either kind",
}


def patterns_table(scores: ScoreTable, roles: Roles | None) -> Table | None:
    """Heads of each class by layer, all layers last; None unless roles of both kinds were asked for."""
    if roles is None or not {"sink", "position"} <= {role.kind for role in roles.asked}:
        return None
    columns = (
        Column("Layer", is_number=False, names=("layer",)),
        *(Column(name.capitalize(), _MEANINGS[name], names=(name.replace(" ", "_"),)) for name in PATTERN_CLASSES),
    )
    there = np.isfinite(scores.values).any(axis=0)  # [layer, head]
    counts = np.zeros((scores.n_layers, len(PATTERN_CLASSES)), dtype=int)
    for layer, head in np.argwhere(there).tolist():
        counts[layer, PATTERN_CLASSES.index(roles.pattern_class(layer, head))] += 1
    rows = [_row(layer, of_layer) for layer, of_layer in enumerate(counts.tolist())]
    return Table("Classes of patterns", columns, (*rows, _all_row(counts.sum(axis=0).tolist())))


def _row(layer: int, counts: Sequence[int]) -> Row:
    name = f"L{layer}"
    cells = (Cell(f"{count:,}" if count else NOTHING, values=(count,)) for count in counts)
    return Row((Cell(name, values=(name,), order=float(layer)), *cells))


def _all_row(counts: Sequence[int]) -> Row:
    heads = max(sum(counts), 1)
    cells = (
        Cell(f"{count:,}", note=number(count / heads, "share", digits=2), is_strong=True, values=(count,))
        for count in counts
    )
    return Row((Cell("All layers", note="share of all heads", values=("all",)), *cells), is_last=True)
