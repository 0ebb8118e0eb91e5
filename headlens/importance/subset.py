"""Gates that are learned under the condition that exactly so many are open (Li, Cotterell and Sachan 2021).

Each head has a logit. Gumbel noise is added and the K largest are taken, softly: K times a softmax at a temperature,
each time with what was taken lowered by log(1 - p) (Xie and Ermon 2019). The gates sum to K at every temperature, and
as it falls they become 0 and 1.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Adam
from transformers import PreTrainedModel

from headlens.errors import PlanError
from headlens.importance.gradients import Say
from headlens.importance.hard_concrete import checked_count, learn, learned_importance
from headlens.importance.objectives import Objective
from headlens.importance.result import Importance
from headlens.importance.units import Kind, units_of
from headlens.scores import head_name

HOT, COLD = 1000.0, 1e-8  # temperatures at the start and at the end, falling by the same factor a step (Li et al.)
RATE = 0.5  # of the logits (Li et al., MNLI)
STEPS = 300


def subset(
    network: PreTrainedModel,
    objective: Objective,
    *,
    keep: int | None = None,
    unit: Kind = "head",
    steps: int = STEPS,
    rate: float = RATE,
    hot: float = HOT,
    cold: float = COLD,
    seed: int = 0,
    say: Say = lambda _what: None,
) -> Importance:
    """The learned logit of each head: the `keep` largest are the heads to keep, named in `facts`.

    Parameters
    ----------
    keep
        How many heads (or groups) stay, exactly; None: half of them.
    unit
        "group" has one gate for a key/value head with all its query heads.
    steps
        Batches that are learned from, a forward and a backward pass each.
    hot, cold
        Temperatures at the first and at the last step.
    seed
        Of the noise and of the order of batches.

    Raises
    ------
    PlanError
        More heads to keep than there are, none, or all; fewer than two steps; temperatures that do not fall.
    UnsupportedModel
        As from `leave_one_out`.
    """
    if not 0 < cold <= hot:
        raise PlanError(f"The temperature must fall and stay above 0, got {hot} at the start and {cold} at the end.")
    units = units_of(network, unit)
    keep = checked_count(units, keep)
    logits = torch.zeros(len(units), dtype=torch.float64, requires_grad=True)
    noise = torch.Generator().manual_seed(seed)

    def draw(rows: int, progress: float) -> Tensor:
        uniform = torch.rand(rows, len(units), generator=noise, dtype=torch.float64)
        gumbel = -(-uniform.clamp_min(torch.finfo(uniform.dtype).tiny).log()).clamp_min(1e-300).log()
        return soft_top(logits + gumbel, keep, hot * (cold / hot) ** progress)

    # the gradients shrink with the temperature: what Adam adds to their size must not drown them
    learn(
        network,
        objective,
        units,
        Adam([logits], lr=rate, eps=1e-30),
        draw,
        lambda _progress: torch.zeros((), dtype=torch.float64),
        steps=steps,
        seed=seed,
        say=say,
    )
    values = logits.detach()
    kept = sorted(values.argsort(descending=True, stable=True)[:keep].tolist())
    names = [head_name(units[place].layer, head) for place in kept for head in units[place].heads]
    return learned_importance(
        "subset",
        network,
        objective,
        units,
        values.numpy(),
        f"Logit of the head's gate, of gates of which {keep} are open; larger matters more.",
        {
            "unit": unit,
            "keep": keep,
            "kept": names,
            "steps": steps,
            "rate": rate,
            "hot": hot,
            "cold": cold,
            "seed": seed,
        },
    )


def soft_top(scores: Float[Tensor, "row unit"], count: int, temperature: float) -> Float[Tensor, "row unit"]:
    """Gates 0..1 that sum to `count` in every row; at a temperature near 0 exactly the `count` largest are 1."""
    total = torch.zeros_like(scores)
    lowest = torch.finfo(scores.dtype).tiny
    left = scores
    for _ in range(count):
        taken = (left / temperature).softmax(dim=-1)
        total = total + taken
        left = left + (1 - taken).clamp_min(lowest).log()
    return total
