"""What the card of a head tells beside its roles: its most telling scores, and the role that it comes nearest to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from headlens.examples import LEAST_SHOWN, Unshown
from headlens.numbers import amount, number
from headlens.report.figures import LOW_IS_TELLING, starts_at_chance
from headlens.roles import Reading
from headlens.roles.catalogue import CLAIMS, RULES
from headlens.roles.rules import LEAST_SUPPORT
from headlens.scores import Floats, Metric, ScoreTable
from headlens.wording import family_of

MOST_TELLING = 10  # scores of a head that stand on its card; the others are folded
OF_A_FAMILY = 3  # of those at most, so that one family does not fill the card

_TITLES = {role.id: role.title for role in (*(rule.role for rule in RULES), *(claim.role for claim in CLAIMS))}
_FROM_WEIGHTS = "This role is read from the weights alone: no text shows it."
_NO_TEXT = {  # roles that no text of a corpus can show, and why
    "retrieval": "This role was found on needles in texts made for it: no text of the corpus shows it.",
    "copying_weights": _FROM_WEIGHTS,
    "suppressing_weights": _FROM_WEIGHTS,
}
_REPETITION = frozenset(rule.id for rule in RULES if family_of(rule.metric) == "repetition")
_ON_RANDOM = " It was found on random tokens written twice."
_WEIGHTS = "circuits"  # whose scores rest on weights, not on rows
_CONTROLS = frozenset(rule.control for rule in RULES if rule.control)


def telling(scores: ScoreTable, metrics: Sequence[Metric]) -> list[list[int]]:
    """For every head, layer by layer, places in `metrics` of the scores by which it differs most from other heads.

    By distance from the median of all heads in their standard deviations. A score with chance as its floor tells
    something above chance only. Controls tell nothing, nor do scores that are not defined or rest on less than a role
    must rest on.
    """
    strength = np.stack([_strength(scores, metric).ravel() for metric in metrics])
    families = [family_of(metric.name) for metric in metrics]
    return [_chosen(of_head, families) for of_head in strength.T]


def nearest_words(reading: Reading) -> str:
    """Of a head without a role: what it comes nearest to, and what that takes."""
    rule = reading.rule
    words = (
        f"Nearest is {rule.title}: {rule.number(reading.score.value)} {rule.measure}{reading.beside(digits=3)}; it "
        f"takes {rule.gloss}"
    )
    is_beyond = rule.passes(reading.score.value) and reading.meets_conditions
    return f"{words}, clear of what a head gets without it." if is_beyond else f"{words}."


def unshown_words(one: Unshown) -> str:
    """Of a head whose role no text shows that was run: why there are no examples."""
    if words := _NO_TEXT.get(one.why):
        return words
    title, verb = _TITLES.get(one.why, one.why.replace("_", " ")), "has" if one.able == 1 else "have"
    if not one.able:
        return f"None of the {amount(one.run, 'text')} of the corpus that were run has a place for the role {title}."
    return (
        f"Of {amount(one.run, 'short text')} of the corpus that were run, {one.able:,} {verb} a place for the role "
        f"{title}, and none shows it. That takes half of the places right and {number(LEAST_SHOWN, 'share', digits=2)} "
        f"of the attention there; the most that goes there is {number(one.strength, 'share', digits=2)}."
        f"{_ON_RANDOM if one.why in _REPETITION else ''}"
    )


def _strength(scores: ScoreTable, metric: Metric) -> Floats:
    """[layer, head]; −inf where the score tells nothing."""
    values, chance = scores[metric.name], float(scores.chance[scores.index(metric.name)])
    nothing = np.full(values.shape, -np.inf)
    if metric.name in _CONTROLS or not np.isfinite(values).any():
        return nothing
    spread = float(np.nanstd(values))
    distance = (values - float(np.nanmedian(values))) / spread if spread > 0 else np.zeros_like(values)
    if starts_at_chance(metric, values, chance):
        distance = np.where(values > chance, distance, -np.inf)
    elif metric.name in LOW_IS_TELLING:
        distance = -distance
    else:
        distance = np.abs(distance)
    enough = scores.support[scores.index(metric.name)] >= LEAST_SUPPORT
    enough |= family_of(metric.name) == _WEIGHTS
    return np.where(np.isfinite(values) & enough, distance, nothing)


def _chosen(strength: Floats, families: Sequence[str]) -> list[int]:
    chosen: list[int] = []
    told: Counter[str] = Counter()
    for place in np.argsort(-strength, kind="stable").tolist():
        if len(chosen) == MOST_TELLING or strength[place] == -np.inf:
            break
        if told[families[place]] < OF_A_FAMILY:
            told[families[place]] += 1
            chosen.append(place)
    return chosen
