"""From right and wrong decisions to evidence: heads chosen on one half of the documents, judged on the other.

The best of hundreds of heads looks good by luck alone, so what chooses a head, a direction or an offset never judges
it. No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headlens.errors import OutputError
from headlens.evidence_table import (
    PROFILE,
    Baseline,
    Evidence,
    Floats,
    MetricEvidence,
    RelationEvidence,
    Settings,
    verdict_of,
)
from headlens.significance import (
    benjamini_hochberg,
    bootstrap_weights,
    excess_by_fold,
    halves,
    max_statistic_p,
    paired_t_p,
    percentile_interval,
    permutation_p,
)

Array = npt.NDArray[Any]

_NULLS = ("expected", "expected_by_word")

REPEATS = 20  # random halves; both of each choose once
MINIMUM = 30  # decisions; of fewer, a share has a standard error of up to 9 points
ALPHA = 0.05  # share of false finds, Benjamini & Hochberg 1995
MARGIN = 0.10  # Voita et al. 2019, section 5.2: "at least 10% higher" than the baseline; taken as relative to it


@dataclass(frozen=True, eq=False)
class Rival:
    """A family of baselines, of which the best is chosen as heads are. NaN for a metric that it has no answer to."""

    options: tuple[str, ...]
    correct: Array  # [fold, metric, option]: right decisions
    is_informed: bool = False  # knows annotation that no head is told: it is shown, but heads need not be above it

    def __post_init__(self) -> None:
        object.__setattr__(self, "correct", np.asarray(self.correct, dtype=np.float32))


@dataclass(frozen=True, eq=False)
class Trials:
    """Decisions of every head on a family of metrics, by fold of documents. A decision is right or wrong.

    `expected` counts the right decisions under a permutation null: gold targets are shuffled within the sentence
    among pairs of the same distance, so that a head that heeds position alone gets what is expected. So do those of
    `expected_by_word`, where who asks is shuffled: a head that looks at certain words whoever asks. `profile` counts
    those of a head that looks where this one looks on average. NaN there: the metric has no such null. NaN in
    `correct`: the head is absent. Counts are kept in float32, exact up to 2 ** 24.

    Raises OutputError where shapes or names do not go together, or more decisions are right than there are.
    """

    names: tuple[str, ...]
    total: Array  # [fold, metric]: decisions, the same for all heads
    correct: Array  # [fold, layer, head, metric]
    chance: Array  # [fold, metric]: sum over decisions of 1 / candidates
    profile: Array | None = None  # [fold, layer, head, metric]
    expected: Array | None = None  # [fold, layer, head, metric]
    expected_by_word: Array | None = None  # [fold, layer, head, metric]; only beside `expected`
    rivals: Mapping[str, Rival] = field(default_factory=dict)
    relation_of: tuple[str, ...] = ()  # what each metric is about: the directions of a relation share it

    def __post_init__(self) -> None:
        if not self.relation_of:
            object.__setattr__(self, "relation_of", self.names)
        for name in ("total", "chance"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))
        for name in ("correct", "profile", "expected", "expected_by_word"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float32))
        self._check_names()
        self._check_shapes()
        self._check_counts()

    def _check_names(self) -> None:
        if not self.names or len(set(self.names)) != len(self.names):
            raise OutputError(f"Trials need at least one metric, each with a name of its own; got {self.names}.")
        if len(self.relation_of) != len(self.names):
            raise OutputError(f"Every metric needs a relation: {len(self.names)} metrics, {len(self.relation_of)}.")
        if PROFILE in self.rivals:
            raise OutputError(f"A rival cannot be called {PROFILE!r}, the name of each head's own; call it otherwise.")

    def _check_shapes(self) -> None:
        shape = self.correct.shape
        if len(shape) != 4 or 0 in shape or shape[-1] != len(self.names):
            raise OutputError(
                f"correct must be [fold, layer, head, metric] with {len(self.names)} metrics and at least one of each, "
                f"got shape {shape}."
            )
        by_fold = (shape[0], shape[-1])
        wanted = {"total": by_fold, "chance": by_fold, **dict.fromkeys(("profile", *_NULLS), shape)}
        found = {name: getattr(self, name) for name in wanted}
        for name, rival in self.rivals.items():
            wanted[f"rival {name}"], found[f"rival {name}"] = (*by_fold, len(rival.options)), rival.correct
            if not rival.options:
                raise OutputError(f"rival {name} must have at least one option.")
        for name, array in found.items():
            if array is not None and array.shape != wanted[name]:
                raise OutputError(f"{name} must have shape {wanted[name]} to go with correct, got {array.shape}.")

    def _check_counts(self) -> None:
        broken = (self.total < 0) | (self.correct > self.total[:, None, None]).any(axis=(1, 2))
        if broken.any() or np.isnan(self.total).any():
            name = self.names[int(np.argwhere(broken | np.isnan(self.total))[0, 1])]
            raise OutputError(f"{name}: there cannot be more right decisions than decisions, nor fewer than none.")


def weigh(
    trials: Trials,
    *,
    family: Sequence[str] | None = None,
    seed: int = 0,
    repeats: int = REPEATS,
    minimum: int = MINIMUM,
    alpha: float = ALPHA,
    margin: float = MARGIN,
) -> Evidence:
    """Which heads have which of the metrics, and how sure that is.

    Documents are halved at random, `repeats` times. Each half chooses the best head and the best option of each rival
    for the other, so every document is judged by a choice that it had no say in; held-out accuracies are over all
    documents, averaged over repeats. Their 95% intervals are from resampling documents, the choices as they were.

    The p of a head is that of its excess over the permutation null that it excels least; where a metric has none, over
    such a rival. Informed rivals are shown and bar no claim. `family` names the metrics that are tested together, all
    by default: leave out those that count the same decisions again. Those with fewer than `minimum` decisions are
    never part of it.

    Raises OutputError where no document holds a decision, or `family` names an unknown metric.
    """
    unknown = sorted(set(family or ()) - set(trials.names))
    if unknown:
        raise OutputError(f"The family names {', '.join(unknown)}; the metrics are {', '.join(trials.names)}.")
    trials = _filled(trials)
    decisions = trials.total.sum(axis=0)
    tests = _tests(trials, decisions >= minimum, family)
    settings = Settings(seed, repeats, minimum, alpha, margin, folds=len(trials.total))
    judge = _Judge(trials, tests, settings)
    relations = []
    for relation in dict.fromkeys(trials.relation_of):
        members = [place for place, name in enumerate(trials.relation_of) if name == relation]
        members = [place for place in members if decisions[place] >= minimum] or members
        row = judge.row(members)
        names = tuple(trials.names[place] for place in members)
        relations.append(RelationEvidence(**row, metrics=names, p_any=_p_any(trials, tests, members, seed)))
    return Evidence(
        metrics=tuple(MetricEvidence(**judge.row([place])) for place in range(len(trials.names))),
        relations=tuple(relations),
        settings=settings,
        value=tests.value,
        expected=tests.expected,
        profile=tests.profile,
        p=tests.p,
        q=tests.q,
    )


def _filled(trials: Trials) -> Trials:
    """Without the folds that hold no decision."""
    kept = trials.total.any(axis=1)
    if not kept.any():
        raise OutputError("No document holds a decision, so there is nothing to weigh; annotate more text.")
    if kept.all():
        return trials
    rivals = {name: replace(rival, correct=rival.correct[kept]) for name, rival in trials.rivals.items()}
    arrays = {name: getattr(trials, name) for name in ("total", "correct", "chance", "profile", *_NULLS)}
    shorter = {name: None if array is None else array[kept] for name, array in arrays.items()}
    return replace(trials, rivals=rivals, **shorter)  # type: ignore[arg-type]


class _Tests(NamedTuple):
    """Over all documents; [metric, layer, head] but for the last two."""

    value: Floats
    expected: Floats
    profile: Floats
    p: Floats
    q: Floats
    tested: npt.NDArray[np.bool_]  # [metric]
    best: dict[str, npt.NDArray[np.intp]]  # rival -> [metric], its best option


def _tests(trials: Trials, enough: npt.NDArray[np.bool_], family: Sequence[str] | None) -> _Tests:
    tested = enough & np.array([family is None or name in family for name in trials.names])
    best = {name: _best_option(rival.correct.sum(axis=0, dtype=np.float64)) for name, rival in trials.rivals.items()}
    value = _shares(trials.correct, trials.total)
    p = np.full_like(value, np.nan)
    for name, rival in _uninformed(trials).items():
        p = np.fmax(p, _metric_first(paired_t_p(trials.correct, _of_option(rival, best[name]), trials.total)))
    nothing = np.full_like(value, np.nan)
    expected, by_null = nothing, nothing
    for null in _nulls(trials):  # a head must be above all of them, so that the largest p counts
        expected = np.fmax(expected, _shares(null, trials.total))
        by_null = np.fmax(by_null, _metric_first(permutation_p(trials.correct, null, trials.total)))
    p = np.where(_has_null(expected)[:, None, None], by_null, p)
    return _Tests(
        value=value,
        expected=expected,
        profile=nothing if trials.profile is None else _shares(trials.profile, trials.total),
        p=p,
        q=benjamini_hochberg(np.where(tested[:, None, None], p, np.nan)),
        tested=tested,
        best=best,
    )


def _p_any(trials: Trials, tests: _Tests, members: list[int], seed: int) -> float:
    """p that any head has any of the metrics, the largest over the permutation nulls; without one, over the rivals."""
    if _has_null(tests.expected[members]).all():
        nulls = [null[..., members] for null in _nulls(trials)]
    else:
        rivals = _uninformed(trials).items()
        baselines = [_of_option(rival, tests.best[name])[:, members] for name, rival in rivals]
        nulls = [by_fold[:, None, None] for by_fold in baselines if not np.isnan(by_fold).any()]
    correct, total = trials.correct[..., members], trials.total[:, members]
    found = [max_statistic_p(excess_by_fold(correct, null, total), seed=seed) for null in nulls]
    return max(found, default=float("nan"))


class _Choice(NamedTuple):
    """What the halves chose. A repeat is usable if both its halves hold decisions."""

    usable: npt.NDArray[np.bool_]  # [repeat]
    metric: npt.NDArray[np.intp]  # [usable repeat, side]
    head: npt.NDArray[np.intp]  # [usable repeat, side], over all layers
    named: tuple[int, int]  # metric and head chosen most often; without a usable repeat the best on all documents
    share: float  # of the choices that fell on them


class _Entry(NamedTuple):
    """A baseline before it is compared."""

    option: str
    right: Floats  # [fold], held out
    full: float  # share on all documents


class _Judge:
    """Chooses on halves and judges on the others. Side 0 of a repeat chooses on the folds of `first`, 1 on the rest."""

    def __init__(self, trials: Trials, tests: _Tests, settings: Settings) -> None:
        self.trials, self.tests, self.settings = trials, tests, settings
        folds, layers, heads, metrics = trials.correct.shape
        self.heads = heads
        self.first = halves(folds, settings.repeats, settings.seed)  # [repeat, fold]
        self.weights = bootstrap_weights(folds, seed=settings.seed)
        self.correct = trials.correct.reshape(folds, layers * heads, metrics)
        self.profile = None if trials.profile is None else trials.profile.reshape(self.correct.shape)
        self.accuracy = _on_halves(self.first, self.correct, trials.total)  # [repeat, side, head, metric]
        self.options = {
            name: _on_halves(self.first, rival.correct.transpose(0, 2, 1), trials.total).argmax(axis=2)
            for name, rival in trials.rivals.items()
        }  # [repeat, side, metric]

    def row(self, members: list[int]) -> dict[str, Any]:
        """Fields of a MetricEvidence, of the best head on the best of the metrics `members`."""
        trials, tests = self.trials, self.tests
        choice = self._choose(members)
        metric, head = choice.named
        layer, head = divmod(head, self.heads)
        total = trials.total[:, metric]
        row: dict[str, Any] = {
            "metric": trials.names[metric],
            "relation": trials.relation_of[metric],
            "decisions": int(total.sum()),
            "documents": int((total > 0).sum()),
            "chance": _ratio(trials.chance[:, metric].sum(), total.sum()),
            "layer": layer,
            "head": head,
            "share": choice.share,
            "value": float(tests.value[metric, layer, head]),
            "p": float(tests.p[metric, layer, head]),
            "q": float(tests.q[metric, layer, head]),
            **self._held_out(choice),
        }
        return row | {"verdict": verdict_of(row, self.settings, tested=bool(tests.tested[metric]))}

    def _choose(self, members: list[int]) -> _Choice:
        heads = self.correct.shape[1]
        by_metric = self.accuracy[..., members].swapaxes(2, 3).reshape(*self.accuracy.shape[:2], -1)
        usable = (by_metric.max(axis=2) >= 0).all(axis=1)
        if usable.any():
            best = by_metric[usable].argmax(axis=2)  # ties to the first
            named = _most_frequent(best)
            share = float((best == named).mean())
        else:
            best = np.zeros((0, 2), dtype=np.intp)
            named = int(np.nan_to_num(self.tests.value[members], nan=-1).argmax())
            share = float("nan")
        member, head = np.divmod(best, heads)
        first, place = divmod(named, heads)
        return _Choice(usable, np.array(members)[member], head, (members[first], place), share)

    def _held_out(self, choice: _Choice) -> dict[str, Any]:
        """Held-out accuracy with its interval, and the baselines, for the metrics and heads chosen."""
        fold = np.arange(self.first.shape[1])
        metric, head = self._judging(choice, choice.metric), self._judging(choice, choice.head)  # [repeat, fold]
        asked = _over_repeats(self.trials.total[fold, metric])
        right = _over_repeats(self.correct[fold, head, metric])
        entries = {name: entry for name, entry in self._baselines(choice, head).items() if not np.isnan(entry.full)}
        gained = [right - entry.right for entry in entries.values()]
        intervals = self._intervals(np.stack([right, *gained], axis=1), asked)
        baselines = {
            name: Baseline(
                entry.option,
                _ratio(entry.right.sum(), asked.sum()),
                _ratio(gain.sum(), asked.sum()),
                *ends,
                entry.full,
                is_informed=name != PROFILE and self.trials.rivals[name].is_informed,
            )
            for (name, entry), gain, ends in zip(entries.items(), gained, intervals[1:], strict=True)
        }
        low, high = intervals[0]
        return {"held_out": _ratio(right.sum(), asked.sum()), "low": low, "high": high, "baselines": baselines}

    def _baselines(self, choice: _Choice, head: npt.NDArray[np.intp]) -> dict[str, _Entry]:
        """The profile of the heads that judge ([repeat, fold]), and the rivals as the halves chose them."""
        fold, metric = np.arange(self.first.shape[1]), self._judging(choice, choice.metric)
        named, place = choice.named
        entries = {}
        if self.profile is not None:
            full = float(self.tests.profile[(named, *divmod(place, self.heads))])
            entries[PROFILE] = _Entry("", _over_repeats(self.profile[fold, head, metric]), full)
        for name, rival in self.trials.rivals.items():
            chosen = self.options[name][choice.usable]  # [repeat, side, metric]
            best = int(self.tests.best[name][named])
            most = _most_frequent(chosen[..., named]) if len(chosen) else best
            option = np.take_along_axis(chosen, choice.metric[..., None], axis=2)[..., 0]
            right = _over_repeats(rival.correct[fold, metric, self._judging(choice, option)])
            full = _ratio(rival.correct[:, named, best].sum(dtype=np.float64), self.trials.total[:, named].sum())
            entries[name] = _Entry(rival.options[most], right, full)
        return entries

    def _judging(self, choice: _Choice, chosen: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """For every fold what the half without it chose, [repeat, fold]; `chosen` is [repeat, side]."""
        return np.where(self.first[choice.usable], chosen[:, 1:], chosen[:, :1])

    def _intervals(self, counts: Floats, asked: Floats) -> list[tuple[float, float]]:
        """95% intervals of ratios of sums over folds; `counts` is [fold, ratio], `asked` [fold]."""
        sums = self.weights @ np.column_stack([counts, asked])
        with np.errstate(invalid="ignore", divide="ignore"):
            low, high = percentile_interval(sums[:, :-1] / sums[:, -1:])
        return list(zip(low.tolist(), high.tolist(), strict=True))


def _on_halves(first: npt.NDArray[np.bool_], correct: Array, total: Array) -> Floats:
    """Accuracy on both halves of every repeat, [repeat, side, column, metric]; -1 where not defined.

    `correct` is [fold, column, metric], `total` [fold, metric].
    """
    sides = np.stack([first, ~first], axis=1).reshape(-1, first.shape[1]).astype(np.float32)
    right = sides @ correct.reshape(len(correct), -1).astype(np.float32, copy=False)
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = right.reshape(len(sides), *correct.shape[1:]) / (sides @ total)[:, None]
    return np.where(np.isnan(shares), -1, shares).reshape(-1, 2, *correct.shape[1:])


def _over_repeats(counts: Array) -> Floats:
    """[fold]: mean over the first axis; NaN where that is empty."""
    return counts.sum(axis=0, dtype=np.float64) / (len(counts) or np.nan)


def _most_frequent(places: npt.NDArray[np.intp]) -> int:
    return int(np.bincount(places.ravel()).argmax())


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole else float("nan")


def _shares(correct: Array, total: Array) -> Floats:
    """[metric, layer, head] over all folds."""
    with np.errstate(invalid="ignore"):
        return _metric_first(correct.sum(axis=0, dtype=np.float64) / total.sum(axis=0))


def _metric_first(of_heads: Floats) -> Floats:
    return np.ascontiguousarray(np.moveaxis(of_heads, -1, 0))


def _best_option(correct: Floats) -> npt.NDArray[np.intp]:
    """[metric]: place of the largest; `correct` is [metric, option]."""
    return np.where(np.isnan(correct), -1, correct).argmax(axis=1)


def _of_option(rival: Rival, option: npt.NDArray[np.intp]) -> Array:
    """[fold, metric]: right decisions of one option for each metric."""
    return np.take_along_axis(rival.correct, option[None, :, None], axis=2)[..., 0]


def _nulls(trials: Trials) -> list[Array]:
    return [null for name in _NULLS if (null := getattr(trials, name)) is not None]


def _uninformed(trials: Trials) -> dict[str, Rival]:
    return {name: rival for name, rival in trials.rivals.items() if not rival.is_informed}


def _has_null(expected: Floats) -> npt.NDArray[np.bool_]:
    """[metric]: whether there is a permutation null; `expected` is [metric, layer, head]."""
    return np.asarray(~np.isnan(expected).all(axis=(1, 2)))
