"""What heads do on repeated tokens, in their weights, and when they are taken out, in tables and sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from headlens.numbers import amount, number, probability, signed
from headlens.report.evidence_rows import NOTHING, Cell, Column, Row, Table
from headlens.report.facts import Provenance, at
from headlens.scores import ScoreTable, head_name

KEYS = ("repetition", "circuits", "retrieval", "agreement")
"""Entries of the provenance that are read here; profile.json has them whole."""

_BEST = 4  # heads of a table for each of the scores that choose them
_REPETITION = {  # score -> title of its column, and of that of its control
    "repetition.previous": "Previous token",
    "repetition.duplicate": "Same token",
    "repetition.induction": "Induction",
}
_FURTHER = {"repetition.prefix_matching": "Prefix matching", "repetition.copying": "Copying"}
_COMPOSITIONS = {"q": "queries", "k": "keys", "v": "values"}


def repetition_table(scores: ScoreTable) -> Table | None:
    """The best heads on repeated tokens, each score beside the same one where nothing is repeated."""
    there = [name for name in _REPETITION if name in scores]
    further = [name for name in _FURTHER if name in scores]
    if not there:
        return None
    heads = dict.fromkeys((one.layer, one.head) for name in reversed(there) for one in scores.best(name, _BEST))
    columns = [Column("Head", is_number=False)]
    for name in there:
        columns += [Column(_REPETITION[name]), Column("Control", "the same where no token comes twice")]
    columns += [Column(_FURTHER[name]) for name in further]
    rows = []
    for head in heads:
        cells = [Cell(NOTHING, heads=(head_name(*head),))]
        for name in there:
            cells += [_cell(scores, name, head, is_strong=True), _cell(scores, f"{name}_control", head)]
        cells += [_cell(scores, name, head) for name in further]
        rows.append(Row(tuple(cells)))
    return Table("The strongest heads on repeated tokens", tuple(columns), tuple(rows))


def _cell(scores: ScoreTable, name: str, head: tuple[int, int], *, is_strong: bool = False) -> Cell:
    value = float(scores[name][head]) if name in scores else math.nan
    return Cell(number(value, "share") if np.isfinite(value) else NOTHING, is_strong=is_strong)


def pairs_table(provenance: Provenance) -> Table | None:
    """The pairs of heads whose weights compose most."""
    kinds = at(provenance, "circuits", "pairs")
    rows = []
    for kind, words in _COMPOSITIONS.items():
        pairs = [pair for pair in _listed(at(kinds, kind)) if isinstance(pair, Mapping)]
        for pair in pairs[:_BEST]:
            first, _, second = str(pair.get("pair", "")).partition(" to ")
            value = pair.get("value")
            told = signed(float(value), "share") if isinstance(value, int | float) else NOTHING
            rows.append(
                Row(
                    (
                        Cell(words[:1].upper() + words[1:]),
                        Cell(NOTHING, heads=(first,)),
                        Cell(NOTHING, heads=(second,)),
                        Cell(told, is_strong=True),
                    )
                )
            )
    if not rows:
        return None
    columns = (
        Column("Read through", is_number=False),
        Column("What is written by", is_number=False),
        Column("Is read by", is_number=False),
        Column("Composition", "beyond that of matrices with the same singular values, turned at random"),
    )
    return Table("Pairs of heads that compose most", columns, tuple(rows))


def reasons(provenance: Provenance, key: str) -> Iterator[str]:
    """Why scores of a family are not there; one sentence for all that share a reason."""
    left_out = at(provenance, key, "left_out")
    names: dict[str, list[str]] = {}
    for metric, reason in left_out.items() if isinstance(left_out, Mapping) else ():
        names.setdefault(str(reason), []).append(str(metric))
    for reason, metrics in names.items():
        yield f"Not scored: {', '.join(metrics)}. {reason}"


def retrieval_line(provenance: Provenance) -> str:
    """How often the model itself went on with what was hidden."""
    texts, reproduced, recalled = (at(provenance, "retrieval", key) for key in ("texts", "reproduced", "recalled"))
    if not all(isinstance(value, int | float) for value in (texts, reproduced, recalled)):
        return ""
    return (
        f"In {texts:,} texts the model wrote {number(recalled, 'share')} of the hidden tokens in their place, and the "
        f"whole needle in {number(reproduced, 'share')} of the texts."
    )


def agreement_line(provenance: Provenance) -> str:
    """What taking out the heads that are named for subject and verb does to agreement; empty where nobody asked."""
    found = at(provenance, "agreement")
    if not isinstance(found, Mapping) or not _has_numbers(found):
        return ""
    heads = [str(head) for head in _listed(found.get("heads"))]
    named = f"{', '.join(heads[:6])}{f' and {len(heads) - 6} more' if len(heads) > 6 else ''}"
    taken = "is taken out" if len(heads) == 1 else "are taken out together"
    random, random_across = ([float(share) for share in _listed(found.get(key))] for key in ("random", "random_across"))
    before, after = number(found["intact"], "share"), number(found["ablated"], "share")
    across = ""
    if isinstance(found.get("across"), int) and found["across"]:
        shares = " and ".join(number(found[key], "share") for key in ("intact_across", "ablated_across"))
        beside = f", and {_middle(random_across)} at the median of these sets" if random_across else ""
        across = f" Across a noun of the other number ({found['across']:,} verbs) it is {shares}{beside}."
    harm = (
        "That is more harm than 95% of the other sets do: the model uses them for agreement"
        if found.get("does_harm")
        else "That is no more harm than other sets may do, so nothing is said of what the model uses them for"
        if found["ablated"] < found["intact"]
        else "That is no harm, so nothing is said of what the model uses them for"
    )
    return (
        f"Of {found['verbs']:,} verbs, the model prefers the right form in {before}, and in {after} when the "
        f"{amount(len(heads), 'head')} named for subject and verb ({named}) {taken} (gated to 0). Without another set "
        f"of as many heads ({len(random):,} of them) it is {_middle(random)} at the median, "
        f"{number(min(random, default=math.nan), 'share')} at the least.{across} {harm} (p {probability(found['p'])}, "
        "on texts that had no say in naming the heads)."
    )


def _middle(shares: Sequence[float]) -> str:
    return number(float(np.median(shares)), "share") if shares else NOTHING


def _has_numbers(found: Mapping[str, Any]) -> bool:
    return all(isinstance(found.get(key), int | float) for key in ("verbs", "intact", "ablated", "p"))


def _listed(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []
