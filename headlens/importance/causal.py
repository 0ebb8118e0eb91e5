"""Causal head gating (Nam et al. 2025): which heads a task needs, which it would be better off without, which neither.

Gates sigmoid(w) in 0..1 are learned in two stages. First freely, to lower the objective. From there twice again: with a
small reward for every open gate, after which a gate stays closed only where the head does harm (G+); and with the same
reward for closed ones, after which it stays open only where the head is needed (G-).

facilitating  G-            interfering  1 - G+            irrelevant  G+ (1 - G-)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.optim import Adam
from transformers import PreTrainedModel

from headlens.errors import PlanError
from headlens.importance.gradients import Say
from headlens.importance.hard_concrete import learn, learned_importance, rise_without
from headlens.importance.objectives import Objective
from headlens.importance.result import Floats, Importance
from headlens.importance.units import Kind, Unit, units_of

REWARD = 0.1  # for a unit of a gate's logit (Nam et al. 2025)
STEPS = 500  # of each stage (Nam et al. 2025)
RATE = 0.1  # our choice
LIMIT = 5.0  # the logits that are rewarded end here, at gates of .007 and .993: our choice
SPREAD = 1.0  # of the logits at the start


@dataclass(frozen=True, eq=False)
class CausalGates:
    """Gates [unit] after the second stage."""

    units: tuple[Unit, ...]
    rewarded_open: Floats  # G+
    rewarded_closed: Floats  # G-

    @property
    def facilitating(self) -> Floats:
        """How far the task needs each head, 0..1."""
        return self.rewarded_closed

    @property
    def interfering(self) -> Floats:
        """How far the task is better off without it, 0..1."""
        return 1 - self.rewarded_open

    @property
    def irrelevant(self) -> Floats:
        """How far it makes no difference, 0..1."""
        return self.rewarded_open * (1 - self.rewarded_closed)


def causal_gates(
    network: PreTrainedModel,
    objective: Objective,
    *,
    unit: Kind = "head",
    steps: int = STEPS,
    rate: float = RATE,
    reward: float = REWARD,
    seed: int = 0,
    say: Say = lambda _what: None,
) -> CausalGates:
    """Learn all three sets of gates.

    Parameters
    ----------
    steps
        Of each of the three runs, a forward and a backward pass of a batch each.
    reward
        For a unit of a gate's logit, in nats. An objective of another unit is scaled first, so that losing all heads
        costs one for each: a head is needed when it costs more than four times the reward.
    seed
        Of the gates at the start and of the order of batches; run several, as heads can stand in for one another.

    Raises
    ------
    PlanError
        Fewer than two steps, a reward that is not above 0, or a unit of another name.
    UnsupportedModel
        As from `leave_one_out`.
    """
    if reward <= 0:
        raise PlanError(f"The reward must be above 0, got {reward}: without one the classes cannot be told apart.")
    units = units_of(network, unit)
    scale = 1.0 if objective.unit == "nats" else len(units) / rise_without(network, objective, units)

    def stage(start: Tensor, sign: int) -> Tensor:
        logits = start.clone().requires_grad_()
        learn(
            network,
            objective,
            units,
            Adam([logits], lr=rate),
            lambda rows, _progress: logits.sigmoid().expand(rows, -1),
            lambda _progress: -sign * reward * logits.clamp(-LIMIT, LIMIT).sum(),
            steps=steps,
            scale=scale,
            seed=seed,
            say=say,
        )
        return logits.detach()

    noise = torch.Generator().manual_seed(seed)
    free = stage(SPREAD * torch.randn(len(units), generator=noise, dtype=torch.float64), 0)
    opened, closed = (stage(free, sign).sigmoid().numpy() for sign in (1, -1))
    return CausalGates(tuple(units), opened, closed)


def causal(
    network: PreTrainedModel,
    objective: Objective,
    *,
    unit: Kind = "head",
    steps: int = STEPS,
    rate: float = RATE,
    reward: float = REWARD,
    seed: int = 0,
    say: Say = lambda _what: None,
) -> Importance:
    """How far the task needs each head (facilitating, 0..1); `facts` holds all three classes [layer][head].

    A diagnosis rather than a ranking: most heads are at one of the ends. Arguments and errors as of `causal_gates`.
    """
    gates = causal_gates(network, objective, unit=unit, steps=steps, rate=rate, reward=reward, seed=seed, say=say)

    def by_head(values: Floats) -> Floats:
        return learned_importance("causal", network, objective, gates.units, values, "", {}).values

    return learned_importance(
        "causal",
        network,
        objective,
        gates.units,
        gates.facilitating,
        "How far the task needs the head, by gates with a reward for being closed; larger matters more.",
        {
            "unit": unit,
            "steps": steps,
            "rate": rate,
            "reward": reward,
            "seed": seed,
            "facilitating": _plain(by_head(gates.facilitating)),
            "interfering": _plain(by_head(gates.interfering)),
            "irrelevant": _plain(by_head(gates.irrelevant)),
        },
    )


def _plain(values: Floats) -> list[list[float | None]]:
    return [[None if np.isnan(value) else float(value) for value in row] for row in values]
