"""What heads do in their weights, with what is hidden in a text, and when they are taken out; tables and sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from headlens.numbers import amount, number, probability, signed
from headlens.report.facts import Provenance, at
from headlens.report.tables import NOTHING, Cell, Column, Row, Table
from headlens.roles import Roles

KEYS = ("repetition", "circuits", "retrieval", "agreement", "ablation")
"""Entries of the provenance that are read here; profile.json has them whole."""

_BEST = 4  # pairs of heads of each kind
_COMPOSITIONS = {"q": "queries", "k": "keys", "v": "values"}


def pairs_table(provenance: Provenance) -> Table | None:
    """The pairs of heads whose weights compose most."""
    kinds = at(provenance, "circuits", "pairs")
    rows = []
    for kind, words in _COMPOSITIONS.items():
        pairs = [pair for pair in _listed(at(kinds, kind)) if isinstance(pair, Mapping)]
        rows += [_pair(words, pair) for pair in pairs[:_BEST]]
    if not rows:
        return None
    columns = (
        Column("Read through", is_number=False, names=("read_through",)),
        Column("What is written by", is_number=False, names=("writer",)),
        Column("Is read by", is_number=False, names=("reader",)),
        Column(
            "Composition",
            "beyond that of matrices with the same singular values, turned at random",
            names=("composition",),
        ),
    )
    return Table("Pairs of heads that compose most", columns, tuple(rows))


def _pair(words: str, pair: Mapping[str, Any]) -> Row:
    first, _, second = str(pair.get("pair", "")).partition(" to ")
    found = pair.get("value")
    value = float(found) if isinstance(found, int | float) else math.nan
    return Row(
        (
            Cell(words[:1].upper() + words[1:], values=(words,)),
            Cell(NOTHING, heads=(first,), values=(first,)),
            Cell(NOTHING, heads=(second,), values=(second,)),
            Cell(signed(value, "share") if math.isfinite(value) else NOTHING, is_strong=True, values=(value,)),
        )
    )


def reasons(provenance: Provenance, key: str) -> Iterator[str]:
    """Why scores of a family are not there; one sentence for all that share a reason."""
    left_out = at(provenance, key, "left_out")
    names: dict[str, list[str]] = {}
    for metric, reason in left_out.items() if isinstance(left_out, Mapping) else ():
        names.setdefault(str(reason), []).append(str(metric))
    for reason, metrics in names.items():
        yield f"Not scored: {', '.join(metrics)}. {reason}"


def retrieval_line(provenance: Provenance) -> str:
    """How often the model itself went on with what was hidden; without that, there is nothing to draw."""
    texts, reproduced, recalled = (at(provenance, "retrieval", key) for key in ("texts", "reproduced", "recalled"))
    if not all(isinstance(value, int | float) for value in (texts, reproduced, recalled)):
        return ""
    line = (
        f"In {texts:,} texts the model wrote {number(recalled, 'share')} of the hidden tokens in their place, and the "
        f"whole needle in {number(reproduced, 'share')} of the texts."
    )
    if has_recalled(provenance):
        return line
    return (
        f"{line} It wrote half of a needle or more in no text: so no head can be seen to retrieve, and nothing is "
        f"drawn. That does not say that no head could."
    )


def has_recalled(provenance: Provenance) -> bool:
    """Whether the model went on with half of a needle at least once; so it is taken to be where nothing is known."""
    enough, recalled = (at(provenance, "retrieval", key) for key in ("enough", "recalled"))
    told = enough if isinstance(enough, int | float) else recalled
    return not (isinstance(told, int | float) and told == 0)


def agreement_line(provenance: Provenance, roles: Roles | None = None) -> str:
    """What taking out the heads that are named for subject and verb does to agreement; empty where nobody asked.

    With `roles` it says which of them are named firmly.
    """
    found = at(provenance, "agreement")
    if not isinstance(found, Mapping) or not _has_numbers(found):
        return ""
    heads = [str(head) for head in _listed(found.get("heads"))]
    random = [float(share) for share in _listed(found.get("random"))]
    taken, others = (
        ("Taken out", "Another head") if len(heads) == 1 else ("Taken out together", "Sets of as many others")
    )
    before, after = number(found["intact"], "share"), number(found["ablated"], "share")
    return (
        f"{taken} (gated to 0), {_named(heads, roles)} {_verb('change', heads)} the share of verbs that the model "
        f"prefers in the right form from {before} to {after}. {others}, drawn at random, {_verb('leave', heads)} "
        f"{_middle(random)} at the median, and {_as_harmful(found, random)}. {_harm(found)}{_across(found)} Asked were "
        f"{found['verbs']:,} verbs of texts that had no say in naming the heads."
    )


def _verb(stem: str, heads: Sequence[str]) -> str:
    return f"{stem}s" if len(heads) == 1 else stem


def _named(heads: Sequence[str], roles: Roles | None) -> str:
    counted = f"the {len(heads):,} heads" if len(heads) > 1 else "the head"
    of_all = roles.heads("subject_verb") if roles is not None and roles.asks("subject_verb") else []
    by_strength = {
        words: [head for head in heads if head in names]
        for words, names in (
            ("firmly", {one.name for one in of_all if one.is_firm}),
            ("tentatively", {one.name for one in of_all if not one.is_firm}),
        )
    }
    told = [f"{words} {_few(names)}" for words, names in by_strength.items() if names]
    return f"{counted} named for subject and verb ({'; '.join(told) or _few(heads)})"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:6])} and {len(names) - 6} more"


def _as_harmful(found: Mapping[str, Any], random: Sequence[float]) -> str:
    """p counts the named set among the others."""
    count = sum(share <= found["ablated"] for share in random)
    return f"{count or 'none'} of {len(random):,} such draws as little or less (p {probability(found['p'])})"


def _across(found: Mapping[str, Any]) -> str:
    if not isinstance(found.get("across"), int) or not found["across"]:
        return ""
    before, after = (number(found[key], "share") for key in ("intact_across", "ablated_across"))
    random = [float(share) for share in _listed(found.get("random_across"))]
    beside = f" ({_middle(random)} at the median draw)" if random else ""
    verbs = amount(found["across"], "verb")
    return f" Of the {verbs} with a noun of the other number before them, it is {before} and {after}{beside}."


def _harm(found: Mapping[str, Any]) -> str:
    if found.get("does_harm"):
        return "Hardly a draw does as much harm: the model uses the named heads for agreement."
    if found["ablated"] < found["intact"]:
        return "That is no more harm than any heads may do, so nothing is said of what the model uses these for."
    return "That is no harm, so nothing is said of what the model uses these for."


def _middle(shares: Sequence[float]) -> str:
    return number(float(np.median(shares)), "share") if shares else NOTHING


def _has_numbers(found: Mapping[str, Any]) -> bool:
    return all(isinstance(found.get(key), int | float) for key in ("verbs", "intact", "ablated", "p"))


def _listed(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []
