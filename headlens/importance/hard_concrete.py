"""Gates that are learned, the weights of the model frozen: hard concrete gates with a share of heads to keep.

A gate is drawn anew for every row: s = sigmoid((log u - log(1 - u) + log_alpha) / T), stretched to (-.1, 1.1) and cut
at 0 and 1, so that it is exactly 0 or 1 much of the time and still has a gradient (Louizos et al. 2018; for heads with
T = .33: Voita et al. 2019). The share of open gates is brought to its target by a Lagrangian whose multipliers climb,
not by a penalty that has to be tuned (CoFi: Xia et al. 2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Adam, Optimizer
from transformers import PreTrainedModel

from headlens.errors import PlanError
from headlens.importance.ablated import Runner, WholeRunner
from headlens.importance.gradients import Say, gated_hidden, gates_of_units, weights_frozen
from headlens.importance.inputs import TextBatch
from headlens.importance.objectives import Objective
from headlens.importance.result import Floats, Importance
from headlens.importance.units import Kind, Unit, plan_now, units_of

TEMPERATURE, LOW, HIGH = 0.33, -0.1, 1.1  # Voita et al. 2019, Louizos et al. 2018
START = 2.0  # of log_alpha: 94% open; those of Xia et al., at 10, take thousands of steps to move
STEPS = 300
RATE = 0.1  # of log_alpha, and of the multipliers
# with momentum the multipliers go on climbing when the share has long been reached, and far too many gates close
CLIMBING = {"maximize": True, "betas": (0.0, 0.9)}
WARM_UP = 0.5  # share of the steps in which the target goes from all heads to those that are to be kept


def hard_concrete(
    network: PreTrainedModel,
    objective: Objective,
    *,
    keep: int | None = None,
    unit: Kind = "head",
    steps: int = STEPS,
    rate: float = RATE,
    seed: int = 0,
    say: Say = lambda _what: None,
) -> Importance:
    """How likely each head's gate is open, 0..1, when about `keep` of all are.

    Parameters
    ----------
    keep
        How many heads (or groups) are to stay; None: half of them. The `keep` largest are those to keep.
    unit
        "group" has one gate for a key/value head with all its query heads.
    steps
        Batches that are learned from, a forward and a backward pass each.
    seed
        Of the noise and of the order of batches.

    Raises
    ------
    PlanError
        More heads to keep than there are, none, or all; fewer than two steps; a unit of another name.
    UnsupportedModel
        As from `leave_one_out`.
    """
    units = units_of(network, unit)
    keep = checked_count(units, keep)
    log_alpha = torch.full((len(units),), START, dtype=torch.float64, requires_grad=True)
    multipliers = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    noise = torch.Generator().manual_seed(seed)

    def draw(rows: int, _progress: float) -> Tensor:
        return concrete(log_alpha, torch.rand(rows, len(units), generator=noise, dtype=torch.float64))

    def price(progress: float) -> Tensor:
        wanted = 1 - (1 - keep / len(units)) * min(1.0, progress / WARM_UP)
        excess = open_probability(log_alpha).mean() - wanted
        return multipliers[0] * excess + multipliers[1] * excess.square()

    groups: list[dict[str, Any]] = [{"params": [log_alpha]}, {"params": [multipliers], **CLIMBING}]
    learn(
        network,
        objective,
        units,
        Adam(groups, lr=rate),
        draw,
        price,
        steps=steps,
        scale=1 / rise_without(network, objective, units),
        seed=seed,
        say=say,
    )
    probabilities = open_probability(log_alpha.detach())
    return learned_importance(
        "hard_concrete",
        network,
        objective,
        units,
        probabilities.numpy(),
        "How likely the head's gate is open, of gates that learned which heads can go; larger matters more.",
        {
            "unit": unit,
            "keep": keep,
            "steps": steps,
            "rate": rate,
            "seed": seed,
            "expected_open": float(probabilities.sum()),
        },
    )


def concrete(log_alpha: Float[Tensor, " unit"], uniform: Float[Tensor, "row unit"]) -> Float[Tensor, "row unit"]:
    """Gates 0..1 from numbers that are uniform in 0..1."""
    tiny = torch.finfo(uniform.dtype).eps
    even = uniform.clamp(tiny, 1 - tiny)
    soft = ((even.log() - (-even).log1p() + log_alpha) / TEMPERATURE).sigmoid()
    return (soft * (HIGH - LOW) + LOW).clamp(0, 1)


def open_probability(log_alpha: Float[Tensor, " unit"]) -> Float[Tensor, " unit"]:
    """That a gate is not 0 (Louizos et al. 2018, equation 12)."""
    return (log_alpha - TEMPERATURE * math.log(-LOW / HIGH)).sigmoid()


# ------------------------------------------------------------------------------------------- what learned gates share


def learn(
    network: PreTrainedModel,
    objective: Objective,
    units: Sequence[Unit],
    optimizer: Optimizer,
    draw: Callable[[int, float], Tensor],
    price: Callable[[float], Tensor],
    *,
    steps: int,
    scale: float = 1.0,
    seed: int = 0,
    say: Say = lambda _what: None,
) -> None:
    """Move the parameters of the optimizer, and nothing else, to lower the scaled objective plus the price.

    Parameters
    ----------
    draw
        From a number of rows and the progress 0..1: gates [row, unit].
    price
        From the progress: what the gates cost.
    """
    if steps < 2:
        raise PlanError(f"Gates need at least two steps to learn, got {steps}.")
    runner = WholeRunner(network)
    learned = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    with weights_frozen(network):
        for step, batch in enumerate(_in_random_order(runner, objective, steps, seed)):
            say(f"learning gates, step {step + 1} of {steps}")
            progress = step / (steps - 1)
            gates = gates_of_units(network, units, draw(len(batch), progress)).to(network.device)
            loss = scale * objective.values(gated_hidden(runner, batch, gates), batch).mean().double().cpu()
            found = torch.autograd.grad(loss + price(progress), learned, allow_unused=True)
            for parameter, slope in zip(learned, found, strict=True):
                parameter.grad = slope
            optimizer.step()


@torch.no_grad()
def rise_without(network: PreTrainedModel, objective: Objective, units: Sequence[Unit]) -> float:
    """By how much the objective rises without any head, the mean over examples; 1 where it does not rise."""
    runner, total = WholeRunner(network), 0.0
    for batch in objective.batches:
        own = batch.to(network.device)
        for sign, gate in ((1, 0.0), (-1, 1.0)):
            gates = gates_of_units(network, units, torch.full((len(own), len(units)), gate))
            total += sign * float(objective.values(gated_hidden(runner, own, gates), own).double().sum())
    return total / objective.examples if total > 0 else 1.0


def checked_count(units: Sequence[Unit], keep: int | None) -> int:
    """How many units stay; None is half of them."""
    keep = max(1, len(units) // 2) if keep is None else keep
    if not 1 <= keep < len(units):
        raise PlanError(f"There are {len(units)} gates, so keep must be from 1 to {len(units) - 1}, got {keep}.")
    return keep


def learned_importance(
    method: str,
    network: PreTrainedModel,
    objective: Objective,
    units: Sequence[Unit],
    values: Floats,
    meaning: str,
    facts: dict[str, object],
) -> Importance:
    """Values [unit] as those of their heads; there are none of single examples."""
    plan = plan_now(network)
    spread = np.full((plan.layers, plan.heads), np.nan)
    for unit, value in zip(units, values, strict=True):
        spread[unit.layer, list(unit.heads)] = value
    return Importance(
        method,
        spread,
        support=objective.examples,
        unit="ratio",
        meaning=meaning,
        facts={"objective": objective.name, **facts},
    )


def _in_random_order(runner: Runner, objective: Objective, steps: int, seed: int) -> Iterator[TextBatch]:
    """All batches in an order of their own, again and again."""
    rng = np.random.default_rng(seed)
    order: list[int] = []
    for _ in range(steps):
        order = order or rng.permutation(len(objective.batches)).tolist()
        yield objective.batches[order.pop()].to(runner.network.device)
