"""What a comparison found, in sentences, and what a reader must know before believing them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headlens.comparison import Fate, HeadChange, Pair, RoleChange, Side, share
from headlens.differences import BY_CHANCE, Change
from headlens.numbers import amount, count, number, signed
from headlens.report import facts
from headlens.report.surgery import is_of, surgery_sentence
from headlens.roles.role import HeadRole
from headlens.scores import head_name
from headlens.wording import family_of

MOST_ROLES = 6  # sentences, the telling ones first
_NAMED = 6  # heads or scores that a sentence names
_FATES: tuple[Fate, ...] = ("lost", "moved", "gained", "no longer named", "named elsewhere", "newly named", "kept")
_BEYOND_INTERVAL = 3  # so many of them, the first, say that a score changed beyond its interval
_AS_BY_CHANCE = 2  # times as many differences as by chance, below which most of them may be accidents

# What must be the same for scores to differ only by the models: words, and where the provenance has it
_SETTINGS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("version of headlens", ("headlens",)),
    ("schema", ("schema",)),
    ("longest input", ("corpus", "max_length")),
    ("unit of documents", ("corpus", "unit")),
    ("number format", ("model", "dtype")),
    ("way of capture", ("run", "capture")),
    ("seed", ("seed",)),
)
_OF_EVIDENCE = ("repeats", "minimum", "alpha", "margin")


THRESHOLDS = (
    "A role is a threshold: a head just above it before and just below it now is no longer named, however little "
    "changed. Lost and gained are said only where the score changed beyond its interval, too."
)
_THRESHOLDS_OF_SHAPES = (
    "A role is a threshold: heads just above it and just below it may hardly differ, and the counts turn on that."
)


def is_reliable(pair: Pair) -> bool:
    """No self-check failed; else nothing must be claimed."""
    return all(facts.may_claim(side.provenance) for side in (pair.before, pair.after))


def notices(pair: Pair) -> list[str]:
    """In what the two profiles differ besides the model's attention, and what cannot be compared, worst first."""
    return [*_failed(pair), *_models(pair), *_corpora(pair), *_settings(pair), *_one_sided(pair)]


def sentences(pair: Pair) -> list[str]:
    """What changed in the roles, at most MOST_ROLES of them, and how many scores; nothing after a failed self-check."""
    if not is_reliable(pair):
        return []
    if pair.differences is None:
        return _of_shapes(pair)
    changed = [change for change in pair.roles if change.is_held and _has_changed(change)]
    same = [change for change in pair.roles if change.is_held and not _has_changed(change)]
    changed.sort(key=_urgency)
    told = [*_of_differences(pair), *([THRESHOLDS] if changed else []), *_removal(pair)]
    told += [*(_of_role(change, pair.after) for change in changed[:MOST_ROLES])]
    if len(changed) > MOST_ROLES:
        told.append(f"Of {amount(len(changed) - MOST_ROLES, 'further role')} the heads changed, too: see the table.")
    if same:
        held = "; ".join(f"{change.role.title} ({len(change.before)})" for change in same)
        told.append(f"Kept by all heads that had {'them' if len(same) > 1 else 'it'}, and by no other: {held}.")
    if not changed and not same:
        told.append("No head of either side has any of the roles that both were asked for.")
    return told


def role_value(side: Side, head: HeadRole) -> float:
    """The score that a role rests on, on all documents; a role of evidence has a held-out value of its own."""
    metric = head.metric
    return float(side.scores[metric][head.layer, head.head]) if metric in side.scores else head.value


def difference_words(change: Change) -> str:
    """`−.390 [−.450, −.330]`, or without brackets where there is no interval."""
    unit = change.metric.unit
    words = signed(change.difference, unit)
    if change.low != change.low or change.high != change.high:
        return words
    return f"{words} [{signed(change.low, unit)}, {signed(change.high, unit)}]"


def tally(pair: Pair) -> tuple[int, int, float]:
    """Intervals beyond 0, intervals in all, and how many would lie beyond 0 by chance; means of inputs left out."""
    if pair.differences is None:
        return 0, 0, 0.0
    told = [not metric.is_macro for metric in pair.metrics]
    every = int(pair.differences.has_interval[told].sum())
    return int(pair.differences.is_beyond_zero[told].sum()), every, BY_CHANCE * every


# ----------------------------------------------------------------------------------------------------------- sentences


def _urgency(change: RoleChange) -> tuple[int, int, int]:
    """What the best head lost or gained, then what other heads did, and last what no interval stands behind."""
    fate = _FATES.index(change.fate) if change.fate is not None else len(_FATES)
    return min(fate, _BEYOND_INTERVAL), -change.count("lost") - change.count("gained"), fate


def _has_changed(change: RoleChange) -> bool:
    return any(one.fate != "kept" for one in change.heads)


def _removal(pair: Pair) -> Iterator[str]:
    for places, verb in ((pair.removed, "removed"), (pair.added, "added")):
        if places:
            whole = pair.before.scores.n_present if verb == "removed" else pair.after.scores.n_present
            was = "was" if len(places) == 1 else "were"
            names = _listed([head_name(*place) for place in places])
            yield f"{len(places):,} of {amount(whole, 'head')} {was} {verb}: {names}."


def _of_role(change: RoleChange, after: Side) -> str:
    title = change.role.title[:1].upper() + change.role.title[1:]
    if not change.before:
        new = [f"{one.name} ({_value(after, one)})" for one in change.after]
        counted = "".join(_counts(change, "gained", "newly named"))
        return f"{title}: no head before, {amount(len(new), 'head')} now ({counted.lstrip(', ')}): {_listed(new)}."
    others = "".join(_counts(change, "lost", "no longer named", "gained", "newly named"))
    whole = f"{amount(len(change.before), 'head')} ({_firm(change.before)})"
    parts = [f"{title}: {change.count('kept'):,} of {whole} kept{others}"]
    if removed := [one.name for one in change.heads if one.fate == "lost" and one.is_removed]:
        parts.append(f"{_listed(removed)} {'was' if len(removed) == 1 else 'were'} removed")
    most = _most_changed(change)
    if most is not None and most.change is not None:
        parts.append(f"{most.name}'s score {_course(most.change)}")
    if change.fate in ("moved", "named elsewhere"):
        best = change.after[0]
        parts.append(f"the best is now {best.name} ({_value(after, best)})")
    return f"{'; '.join(parts)}."


def _counts(change: RoleChange, *fates: Fate) -> Iterator[str]:
    """`, 2 lost`"""
    for fate in fates:
        if change.count(fate):
            yield f", {change.count(fate):,} {fate}"


def _firm(heads: Sequence[HeadRole]) -> str:
    return f"{sum(one.is_firm for one in heads):,} firm"


def _course(change: Change) -> str:
    """`fell from .710 to .320 (−.390 [−.450, −.330])`; that it fell or rose is said only where the interval says so."""
    ends = [number(value, change.metric.unit) for value in (change.before, change.after)]
    numbers = f"from {ends[0]} to {ends[1]} ({difference_words(change)})"
    if change.is_beyond_zero:
        return f"{'fell' if change.difference < 0 else 'rose'} {numbers}"
    if change.low != change.low or change.high != change.high:
        return f"went {numbers}, without an interval to tell that from an accident"
    return f"went {numbers}, which may be an accident"


def _most_changed(change: RoleChange) -> HeadChange | None:
    """Of the heads that lost the role and are still there, with a score; where there is none, of those not named."""
    for fate in ("lost", "no longer named"):
        if gone := [one for one in change.heads if one.fate == fate and _size(one) >= 0]:
            return max(gone, key=_size)
    return None


def _size(one: HeadChange) -> float:
    return abs(one.change.difference) if one.change is not None else float("nan")


def _value(side: Side, head: HeadRole) -> str:
    metric = head.metric
    unit = side.scores.metrics[side.scores.index(metric)].unit if metric in side.scores else "share"
    return number(role_value(side, head), unit)


def _of_differences(pair: Pair) -> list[str]:
    beyond, every, chance = tally(pair)
    if not every:
        return ["No score has an interval on both sides, so none tells a difference from an accident."]
    verb = "lies" if beyond == 1 else "lie"
    return [
        f"Of {amount(every, 'difference')} with an interval, {beyond:,} {verb} beyond 0; by chance about "
        f"{count(round(chance))} would{_what_follows(beyond, chance)}."
    ]


def _what_follows(beyond: int, chance: float) -> str:
    if beyond <= chance:
        return ": as a whole the scores tell no difference, and any single one may be an accident"
    if beyond < _AS_BY_CHANCE * chance:
        return ", so most of them may be accidents"
    return ", so some of them may be accidents, but most are not"


def _of_shapes(pair: Pair) -> list[str]:
    """By share of heads, the roles that differ most."""
    held = [change for change in pair.roles if change.is_held]
    apart = sorted(held, key=lambda one: -abs(share(one.before, pair.before) - share(one.after, pair.after)))
    told = [_THRESHOLDS_OF_SHAPES] if apart else []
    for change in apart[:MOST_ROLES]:
        title = change.role.title[:1].upper() + change.role.title[1:]
        ends = [_in_model(heads, side) for heads, side in ((change.before, pair.before), (change.after, pair.after))]
        told.append(f"{title}: {ends[0]}; {ends[1]}.")
    return told or ["No head of either model has any of the roles that both were asked for."]


def _in_model(heads: Sequence[HeadRole], side: Side) -> str:
    whole = side.scores.n_present
    if not heads:
        return f"none of {amount(whole, 'head')} of {side.name}"
    best = f"best {heads[0].name} with {_value(side, heads[0])}"
    part = number(share(heads, side), "share")
    return f"{len(heads):,} of {amount(whole, 'head')} of {side.name} ({_firm(heads)}; {part}; {best})"


# ------------------------------------------------------------------------------------------------------------- notices


def _failed(pair: Pair) -> Iterator[str]:
    for side in (pair.before, pair.after):
        check = facts.selfcheck(side.provenance)
        if check is not None and not check[0]:
            yield (
                f"The self-check of {side.name} failed: what was captured is not what the model computed, so no role "
                f"is compared and its scores must not be relied on."
            )


def _models(pair: Pair) -> Iterator[str]:
    if pair.differences is None:
        shapes = [f"{side.name} has {side.shape[0]} × {side.shape[1]} heads" for side in (pair.before, pair.after)]
        yield f"Not the same shape: {', '.join(shapes)}, so roles and scores are compared as a whole, not head by head."
        return
    models = [facts.at(side.provenance, "model") for side in (pair.before, pair.after)]
    if is_of(models[1], models[0]):
        yield f"{pair.after.name} came out of surgery on {pair.before.name}: {surgery_sentence(pair.after.provenance)}."
        return
    old, new = (facts.at(model, "name") for model in models)
    if old and new and old != new:
        yield (
            f"Not the same model: {_each(pair, old, new)}. Heads are matched by their place; where models were "
            f"trained apart, two heads in one place need have nothing in common."
        )


def _corpora(pair: Pair) -> Iterator[str]:
    old, new = (facts.at(side.provenance, "corpus", "files") for side in (pair.before, pair.after))
    counts = [facts.at(side.provenance, "corpus", "documents") for side in (pair.before, pair.after)]
    if not old or not new:
        yield "Nothing tells whether the corpora are the same."
    elif _identity(old) != _identity(new) or (None not in counts and counts[0] != counts[1]):
        words = [_corpus(side) for side in (pair.before, pair.after)]
        yield f"Not the same corpus: {_each(pair, *words)}."


def _corpus(side: Side) -> str:
    names = facts.corpus_sources(side.provenance) or ["a file without a name"]
    documents = facts.at(side.provenance, "corpus", "documents")
    counted = f" ({amount(documents, 'document')})" if isinstance(documents, int) else ""
    return f"{_listed(names)}{counted}"


def _identity(files: Sequence[Any]) -> list[str]:
    """By their content where that is known, whatever they are called, in any order."""
    return sorted(str(facts.at(file, "sha256") or file) for file in files)


def _settings(pair: Pair) -> Iterator[str]:
    for words, path in _SETTINGS:
        old, new = (facts.at(side.provenance, *path) for side in (pair.before, pair.after))
        if old is not None and new is not None and old != new:
            yield f"Not the same {words}: {_each(pair, old, new)}."
    old, new = pair.before.evidence, pair.after.evidence
    if old is not None and new is not None:
        for name in _OF_EVIDENCE:
            ends = getattr(old.settings, name), getattr(new.settings, name)
            if ends[0] != ends[1]:
                yield f"Not the same {name} where evidence was weighed: {_each(pair, *ends)}."


def _one_sided(pair: Pair) -> Iterator[str]:
    for side, names in ((pair.before, pair.only_before), (pair.after, pair.only_after)):
        if names:
            families = list(dict.fromkeys(family_of(name) for name in names))
            yield f"Left out, because only {side.name} has them: {amount(len(names), 'score')} ({_listed(families)})."
    if pair.unasked:
        titles = _listed([role.title for role in pair.unasked], between="; ")
        roles = f"{amount(len(pair.unasked), 'role')} ({titles})"
        yield f"Not compared, because one side lacks the scores for them: {roles}."


def _each(pair: Pair, old: object, new: object) -> str:
    return f"{pair.before.name} has {old}, {pair.after.name} has {new}"


def _listed(names: Sequence[str], *, between: str = ", ") -> str:
    more = len(names) - _NAMED
    return between.join(names[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")
