"""Second order: what a distortion rises by without a head, from first derivatives of the output at the model as it is.

A distortion is flat there (its gradient is zero), and what it does next is the curvature of a squared distance: half
the diagonal of J^T M J, where J is how the output moves with the gates and M the metric that the distortion measures
by. Random directions v with E v v^T = M give it without J: the mean over draws of (d<v, output>/dxi_h)^2 / 2. One
forward pass, and a backward pass a draw.

cosine   v Gaussian over the unit vector of the text
hidden   v Gaussian over the last hidden states, over their variance (no half: that distortion has none)
KL       M is the Fisher information: v the gradient of log p of tokens that the model itself draws
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.errors import PlanError
from headlens.importance.ablated import WholeRunner
from headlens.importance.gradients import Say, derivatives, each_batch, gated_hidden, weights_frozen
from headlens.importance.inputs import TextBatch
from headlens.importance.leave_one_out import by_head
from headlens.importance.objectives import (
    CosineDistortion,
    HiddenDistortion,
    KLDistortion,
    Objective,
    mean_pooled,
)
from headlens.importance.result import Importance
from headlens.importance.units import Kind, plan_now, units_of

DRAWS = 8
_TOKENS = 256  # whose logits are there at once


def gauss_newton(
    network: PreTrainedModel,
    objective: Objective,
    *,
    draws: int = DRAWS,
    unit: Kind = "head",
    seed: int = 0,
    say: Say = lambda _what: None,
) -> Importance:
    """The rise of a distortion without each head, to second order in its gate: ranks like leave-one-out by zero.

    Parameters
    ----------
    draws
        Random directions for each example; they depend on `seed` and the example, not on the batches.
    unit
        "group" has one gate for a key/value head with all its query heads.

    Raises
    ------
    PlanError
        The objective is a loss, which has a gradient of its own; or no draws.
    UnsupportedModel
        As from `leave_one_out`.
    """
    if not isinstance(objective, CosineDistortion | HiddenDistortion | KLDistortion):
        raise PlanError(
            f"gauss_newton is the second order of a distortion, and {objective.name} is none: at the model as it is a "
            f"loss has a gradient; use gradient, taylor or loo_zero."
        )
    if draws < 1:
        raise PlanError(f"gauss_newton needs at least one draw, got {draws}.")
    runner, plan, units = WholeRunner(network), plan_now(network), units_of(network, unit)
    rises = np.zeros((len(units), objective.examples))
    like = {"dtype": torch.promote_types(network.dtype, torch.float32), "device": network.device}
    with weights_frozen(network):
        for batch in each_batch(runner, objective, say):
            gates = torch.ones(len(batch), plan.layers, plan.heads, **like).requires_grad_()
            hidden = gated_hidden(runner, batch, gates)
            probes, examples = _Probes(objective, hidden, batch, draws, seed), batch.example.cpu().numpy()
            for draw in range(draws):
                moved = derivatives(probes.along(draw), [gates], again=draw < draws - 1)[0]
                for place, own in enumerate(units):
                    rises[place, examples] += moved[:, own.layer, list(own.heads)].sum(axis=-1) ** 2
            rises[:, examples] *= probes.weight / draws
    return Importance.of_examples(
        "gauss_newton",
        by_head(network, units, rises),
        unit=objective.unit,
        meaning=f"By how much {objective.name.replace('_', ' ')} rises without the head, to second order; larger "
        f"matters more.",
        facts={"objective": objective.name, "unit": unit, "draws": draws, "seed": seed},
    )


class _Probes:
    """Numbers of which the squared derivatives by gates are, on average, what the distortion's curvature is."""

    def __init__(self, objective: Any, hidden: Tensor, batch: TextBatch, draws: int, seed: int) -> None:
        self.objective, self.hidden, self.batch = objective, hidden, batch
        self.real = batch.attention_mask.bool()
        lengths = batch.lengths.cpu().double().numpy()
        self.rngs = [np.random.default_rng([seed, example]) for example in batch.example.tolist()]
        if isinstance(objective, CosineDistortion):
            self.weight = np.full(len(batch), 0.5)
            self.output = nn.functional.normalize(mean_pooled(hidden, batch.attention_mask), dim=-1)
        elif isinstance(objective, HiddenDistortion):
            self.weight = 1 / (lengths * objective.variance)
            self.output = hidden
        else:
            self.weight = 0.5 / lengths

    def along(self, draw: int) -> Float[Tensor, " row"]:
        """<v, output> of every row, along the next random direction."""
        if isinstance(self.objective, CosineDistortion):
            return torch.linalg.vecdot(self._gaussian(1)[:, 0], self.output)
        if isinstance(self.objective, HiddenDistortion):
            towards = self._gaussian(self.hidden.shape[1])
            return (towards * self.output).sum(dim=-1).where(self.real, 0).sum(dim=-1)
        return self._log_probabilities()

    def _gaussian(self, tokens: int) -> Float[Tensor, "row token hidden"]:
        """As many numbers for each example as it has tokens, so that its padding draws none."""
        found = torch.zeros(len(self.batch), tokens, self.hidden.shape[-1], dtype=torch.float64)
        for row, (rng, length) in enumerate(zip(self.rngs, self.batch.lengths.tolist(), strict=True)):
            own = min(tokens, length)
            found[row, :own] = torch.from_numpy(rng.standard_normal((own, found.shape[-1])))
        return found.to(self.output)

    def _log_probabilities(self) -> Float[Tensor, " row"]:
        """Of tokens that are drawn from the model's own distributions, one a position, summed over each row."""
        uniform = np.concatenate(
            [rng.random(length) for rng, length in zip(self.rngs, self.batch.lengths.tolist(), strict=True)]
        )
        at = torch.from_numpy(uniform).to(self.hidden.device)
        found = []
        for some, place in zip(self.hidden[self.real].split(_TOKENS), at.split(_TOKENS), strict=True):
            logits = self.objective.logits(some)
            log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)
            chosen = _drawn(log_probs.detach(), place)
            found.append(log_probs.gather(-1, chosen[:, None])[:, 0])
        spread = self.hidden.new_zeros(self.real.shape, dtype=found[0].dtype)
        return spread.masked_scatter(self.real, torch.cat(found)).sum(dim=-1)


def _drawn(log_probs: Float[Tensor, "token vocabulary"], uniform: Float[Tensor, " token"]) -> Tensor:
    """For each position the id at which the summed probabilities pass the uniform number."""
    summed = log_probs.double().exp().cumsum(dim=-1)
    passed = torch.searchsorted(summed, uniform[:, None] * summed[:, -1:], right=True)
    return passed[:, 0].clamp_max(log_probs.shape[-1] - 1)
