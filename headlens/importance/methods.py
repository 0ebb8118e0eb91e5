"""Every way to tell how much heads matter, under the name that the command line knows it by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from transformers import PreTrainedModel

from headlens.errors import PlanError
from headlens.importance.causal import causal
from headlens.importance.gauss_newton import gauss_newton
from headlens.importance.gradients import gradient, gradient_batch, gradient_token, integrated, taylor
from headlens.importance.greedy import greedy
from headlens.importance.hard_concrete import hard_concrete
from headlens.importance.leave_one_out import Ablation, leave_one_out
from headlens.importance.norms import Norm, output_norm
from headlens.importance.objectives import Objective
from headlens.importance.result import Importance
from headlens.importance.subset import subset
from headlens.importance.units import Kind, plan_now, units_of
from headlens.surgery.fills import Means

Say = Callable[[str], None]
Takes = Literal["any", "loss", "distortion"]  # objectives; of losses the gradient is not zero, distortions are curved


@dataclass(frozen=True, eq=False)
class Setting:
    """What heads are judged on, and how."""

    network: PreTrainedModel  # no task head, one stack of layers
    objective: Objective
    unit: Kind = "head"
    means: Means | None = None  # what a head gives on average; None: over the objective's own texts
    remove: int | None = None  # how many heads will go, for methods that choose one after the other; None: all
    every: int | None = None  # what goes (heads, or groups) before the next scoring, for iterative methods; None: 1
    seed: int = 0
    say: Say = lambda _what: None


@dataclass(frozen=True)
class Method:
    """One way to rank heads."""

    help: str  # in one line
    source: str
    run: Callable[[Setting], Importance]
    takes: Takes = "any"
    is_trained: bool = (
        False  # gates are learned: some hundred passes there and back, and a result that noise is part of
    )
    is_iterative: bool = False  # heads are scored again after some have gone: takes `every`

    def objection(self, objective: Objective) -> str | None:
        """Why heads cannot be ranked so by this objective, known without a pass; None where they can."""
        if self.takes == "loss" and objective.is_distortion:
            return (
                f"it ranks by a gradient, and that of {objective.name} is zero at the model as it is; the objective "
                f"must be a loss."
            )
        if self.takes == "distortion" and not objective.is_distortion:
            return (
                f"it ranks by the curvature of a distortion, and {objective.name} is none; the objective must be "
                f"cosine, kl or hidden."
            )
        return None


def ranked(name: str, setting: Setting) -> Importance:
    """Every head by the method of that name. PlanError, before any pass, where the objective makes it meaningless."""
    check_objective(name, setting.objective)
    return METHODS[name].run(setting)


def check_objective(name: str, objective: Objective) -> None:
    """PlanError where the method cannot rank by this objective; see `Method.objection`."""
    if reason := METHODS[name].objection(objective):
        raise PlanError(f"{name} cannot be asked: {reason}")


def check_methods(methods: Sequence[str], every: int | None = None) -> None:
    """PlanError for a name that METHODS lacks, for no name, and for `every` where no method scores heads again."""
    known = f"Heads are ranked by {', '.join(METHODS)}"
    if not methods:
        raise PlanError(f"{known}; name at least one.")
    if unknown := [name for name in methods if name not in METHODS]:
        raise PlanError(f"{known}; got {unknown[0]!r}.")
    if every is None:
        return
    iterative = [name for name, method in METHODS.items() if method.is_iterative]
    if not set(methods) & set(iterative):
        raise PlanError(
            f"Every so many heads is for methods that score again after some have gone ({', '.join(iterative)}), not "
            f"for {', '.join(methods)}; leave that option out."
        )
    if every < 1:
        raise PlanError(f"At least one head goes before the next scoring, got {every}.")


def _leave_one_out(ablation: Ablation) -> Callable[[Setting], Importance]:
    def run(setting: Setting) -> Importance:
        return leave_one_out(
            setting.network,
            setting.objective,
            ablation=ablation,
            unit=setting.unit,
            means=setting.means if ablation == "mean" else None,
            seed=setting.seed,
            say=setting.say,
        )

    return run


def _by_gradient(method: Callable[..., Importance]) -> Callable[[Setting], Importance]:
    return lambda setting: method(setting.network, setting.objective, unit=setting.unit, say=setting.say)


def _seeded(method: Callable[..., Importance]) -> Callable[[Setting], Importance]:
    return lambda setting: method(
        setting.network, setting.objective, unit=setting.unit, seed=setting.seed, say=setting.say
    )


def _keeping(method: Callable[..., Importance]) -> Callable[[Setting], Importance]:
    """For a method that is told how many heads stay; half of them where nothing is said."""

    def run(setting: Setting) -> Importance:
        units = units_of(setting.network, setting.unit)
        keep = None if setting.remove is None else len(units) - setting.remove // len(units[0].heads)
        return method(
            setting.network, setting.objective, keep=keep, unit=setting.unit, seed=setting.seed, say=setting.say
        )

    return run


def _norm(norm: Norm | None) -> Callable[[Setting], Importance]:
    return lambda setting: output_norm(setting.network, setting.objective, norm=norm, unit=setting.unit)


def _greedy(setting: Setting) -> Importance:
    units = units_of(setting.network, setting.unit)
    remove = None if setting.remove is None else setting.remove // len(units[0].heads)
    return greedy(
        setting.network,
        setting.objective,
        remove=remove,
        unit=setting.unit,
        means=setting.means,
        every=setting.every or 1,
        seed=setting.seed,
        say=setting.say,
    )


def _random(setting: Setting) -> Importance:
    """A number for each head, drawn by the seed; heads of a group get the same."""
    plan = plan_now(setting.network)
    values = np.full((plan.layers, plan.heads), np.nan)
    units = units_of(setting.network, setting.unit)
    for unit, drawn in zip(units, np.random.default_rng(setting.seed).permutation(len(units)), strict=True):
        values[unit.layer, list(unit.heads)] = drawn + 1
    return Importance(
        "random", values, facts={"seed": setting.seed}, meaning="A random order: what any other must beat."
    )


METHODS: dict[str, Method] = {
    "greedy": Method(
        "heads go one by one, each time the one that is missed least given all that are gone",
        "as leave-one-out",
        _greedy,
        is_iterative=True,
    ),
    "loo_mean": Method(
        "rise of the objective without the head, its mean output kept",
        "Voita et al. 2019, section 5; Michel et al. 2019, section 3",
        _leave_one_out("mean"),
    ),
    "loo_zero": Method(
        "rise of the objective when the head's output is 0", "Michel et al. 2019, section 3.2", _leave_one_out("zero")
    ),
    "loo_resample": Method(
        "rise of the objective when the head gives what it gives for another text",
        "Chan et al. 2022, causal scrubbing",
        _leave_one_out("resample"),
    ),
    "loo_uniform": Method(
        "rise of the objective when the head attends to all visible tokens alike",
        "Kovaleva et al. 2019, section 4.4",
        _leave_one_out("uniform"),
    ),
    "norm": Method(
        "norm of what the head writes; of pre-norm models over the norm of the stream",
        "Kobayashi et al. 2020; relative: our choice",
        _norm(None),
    ),
    "norm_raw": Method("norm of what the head writes", "Kobayashi et al. 2020", _norm("raw")),
    "norm_centred": Method("the same, its mean over all tokens taken off", "our choice", _norm("centred")),
    "gradient": Method(
        "size of the loss's gradient by the head's gate, text by text",
        "Michel et al. 2019, section 4.1",
        _by_gradient(gradient),
        "loss",
    ),
    "gradient_token": Method(
        "the same with a gate for every token, in sum over tokens", "our choice", _by_gradient(gradient_token), "loss"
    ),
    "gradient_batch": Method(
        "the same with a gate for a whole batch: depends on the batches",
        "code of Michel et al. 2019",
        _by_gradient(gradient_batch),
        "loss",
    ),
    "taylor": Method(
        "rise of the loss without the head, to first order; signed",
        "Molchanov et al. 2017, equation 8, with its sign",
        _by_gradient(taylor),
        "loss",
    ),
    "integrated": Method(
        "the head's part of the rise without any head, by gradients on the way",
        "Sundararajan et al. 2017",
        _by_gradient(integrated),
    ),
    "gauss_newton": Method(
        "rise of a distortion without the head, to second order",
        "diagonal of the Gauss-Newton matrix, by random directions",
        _seeded(gauss_newton),
        "distortion",
    ),
    "hard_concrete": Method(
        "how likely the head's gate is open, of gates learned for a share of heads to keep",
        "Louizos et al. 2018; Voita et al. 2019; Xia et al. 2022",
        _keeping(hard_concrete),
        is_trained=True,
    ),
    "subset": Method(
        "logit of the head's gate, of gates of which exactly so many are open",
        "Li, Cotterell and Sachan 2021",
        _keeping(subset),
        is_trained=True,
    ),
    "causal": Method(
        "how far the task needs the head (others interfere, or make no difference)",
        "Nam et al. 2025",
        _seeded(causal),
        is_trained=True,
    ),
    "random": Method("a random order: what any other must beat", "", _random),
}
