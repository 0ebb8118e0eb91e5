"""Take heads out one after the other, each time the one that is missed least, given all that are gone already.

Heads stand in for one another, so what one alone does is not what several do together: scored once, a ranking takes out
both of a pair. Here every choice is made in the network as it is by then.

To score all heads again for every choice takes some (L x H)² / 2 passes, most of them for nothing: the fewer heads are
left, the more each of them is missed, so that an old score is a lower bound, and only the heads at the front of the
queue are scored again (lazy evaluation: Minoux 1978). That is so in trained models and not by proof, so `refresh` has
all heads scored again now and then.

The passes run in bfloat16 where the processor multiplies it faster. It moves the rise of an objective by less than one
in a hundred, and only decides which head goes next: what is reported of a model is measured in its own dtype.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.arch import attention_sites
from headlens.errors import PlanError, UnsupportedModel
from headlens.importance.ablated import ROW_TOKENS, Fill, Runner, runner_of, weight_in_out
from headlens.importance.inputs import TextBatch
from headlens.importance.leave_one_out import constant_fills, damages
from headlens.importance.objectives import Objective
from headlens.importance.result import Floats, Importance
from headlens.importance.units import Kind, Unit, plan_now, units_of
from headlens.scores import head_name
from headlens.surgery.fills import Means

Fold = Literal["zero", "mean"]

CANDIDATES = 6  # that are scored again at a time
EXAMPLES = 256  # on which they are scored


def greedy(
    network: PreTrainedModel,
    objective: Objective,
    *,
    remove: int | None = None,
    ablation: Fold = "mean",
    unit: Kind = "head",
    means: Means | None = None,
    every: int = 1,
    candidates: int = CANDIDATES,
    refresh: int | None = None,
    examples: int | None = EXAMPLES,
    in_bfloat16: bool | None = None,
    seed: int = 0,
    row_tokens: int = ROW_TOKENS,
    say: Callable[[str], None] = lambda _what: None,
) -> Importance:
    """The order in which heads can go: the first to go gets 1, and those that stay are ranked behind by their scores.

    `facts` holds the `order` by name, the `rise` of the objective after each choice (on the examples that chose it),
    and the number of `evaluations` (heads scored).

    Parameters
    ----------
    remove
        How many heads (or groups) to take out; None: all. What stays is ranked by what it did when last looked at.
    ablation
        What stands in for a head that is gone: nothing, or its mean output.
    means
        Of "mean": E[z] of every head of the network as it is; None takes that over the objective's own texts.
    every
        How many are taken out before the next scoring.
    candidates
        How many heads at the front of the queue are scored again at a time; all of them make the search exact.
    refresh
        After so many choices all heads are scored again; None: never. On MiniLM 8 takes 1.6 times as long and lowers
        the distortion without half of the heads from .0900 to .0875.
    examples
        How many of the objective's examples are used, drawn by `seed`; None: all.
    in_bfloat16
        Whether passes run so; None: where that is faster and the network is in float32.

    Raises
    ------
    UnsupportedModel
        Layers that share their weights: a head cannot go from one of them alone.
    PlanError
        Not so many heads, or an ablation or unit of another name.
    """
    if ablation not in get_args(Fold):
        raise PlanError(f"The ablation of a search is one of {', '.join(get_args(Fold))}, got {ablation!r}.")
    units = units_of(network, unit)
    remove = len(units) if remove is None else remove
    _check(network, units, remove, every, candidates)
    if in_bfloat16 is None:
        in_bfloat16 = network.dtype == torch.float32 and bfloat16_is_fast(network.device)
    drawn = _drawn(objective, examples, seed)
    search = _Search(network, objective, units, ablation, means, drawn, row_tokens, in_bfloat16)
    order: list[int] = []
    rises: list[float] = []
    while len(order) < remove:
        say(f"taking heads out, {len(order) + 1} of {remove}")
        is_due = not order or (refresh is not None and len(order) // every % refresh == 0)
        search.look(len(search.left) if is_due else candidates, every)
        chosen = search.front()[: min(every, remove - len(order))]
        rises += search.take_out(chosen)
        order += chosen
    stay = search.front()
    values = np.full((len(plan_now(network).groups), plan_now(network).heads), np.nan)
    for rank, place in enumerate([*order, *stay], start=1):
        values[units[place].layer, list(units[place].heads)] = rank
    return Importance(
        "greedy",
        values,
        support=search.examples,
        unit="ratio",
        meaning=f"When the head goes, of all heads one after the other ({ablation} in its place); later matters more.",
        facts={
            "ablation": ablation,
            "unit": unit,
            "objective": objective.name,
            "removed": len(order),
            "order": [_name(units[place]) for place in order],
            "rise": rises,
            "evaluations": search.evaluations,
            "passes_in": "bfloat16" if in_bfloat16 else str(network.dtype).removeprefix("torch."),
        },
    )


class _Search:
    """A copy of the network in which heads go, and what is known of those that are left."""

    def __init__(
        self,
        network: PreTrainedModel,
        objective: Objective,
        units: Sequence[Unit],
        ablation: Fold,
        means: Means | None,
        batches: Sequence[TextBatch],
        row_tokens: int,
        in_bfloat16: bool,
    ) -> None:
        self.objective, self.units, self.batches, self.row_tokens = objective, units, batches, row_tokens
        self.in_bfloat16 = in_bfloat16
        self.runner: Runner = runner_of(copy.deepcopy(network), batches[0].to(network.device))
        self.fill = constant_fills(self.runner, objective, ablation, means)
        self.left = set(range(len(units)))
        self.score = np.zeros(len(units))  # by how much the objective rose without each, when it was last looked at
        self.rise = 0.0  # of the objective, from the intact network on
        self.examples = sum(len(batch) for batch in batches)
        self.evaluations = 0

    def front(self) -> list[int]:
        """Units that are left, the one that is missed least first; of equals the earlier."""
        return sorted(self.left, key=lambda place: (self.score[place], place))

    def look(self, at_a_time: int, wanted: int) -> None:
        """Score units again, from the front on, until the first `wanted` in the queue have been."""
        fresh: set[int] = set()
        while stale := [place for place in self.front()[:wanted] if place not in fresh]:
            behind = [place for place in self.front() if place not in fresh]
            some = sorted({*stale, *behind[:at_a_time]})
            self.score[some] = self._rises([self.units[place] for place in some])
            fresh.update(some)
            self.evaluations += len(some)

    def take_out(self, chosen: Sequence[int]) -> list[float]:
        """Remove units for good; by how much the objective has risen in all, after each, as far as it was looked at."""
        rises = []
        for place in chosen:
            _remove(self.runner, self.units[place], self.fill[self.units[place].layer])
            self.left.discard(place)
            self.rise += float(self.score[place])
            rises.append(self.rise)
        return rises

    def _rises(self, units: Sequence[Unit]) -> Floats:
        rises = damages(
            self.runner,
            self.objective,
            units,
            lambda _intact: self.fill,
            batches=self.batches,
            row_tokens=self.row_tokens,
            in_bfloat16=self.in_bfloat16,
        )
        return np.asarray(np.nanmean(rises, axis=1))


def bfloat16_is_fast(device: torch.device) -> bool:
    """Whether this device has instructions that multiply bfloat16; without them a CPU is slower than in float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    known = torch.cpu.get_capabilities() if device.type == "cpu" and hasattr(torch.cpu, "get_capabilities") else {}
    return bool(known.get("avx512_bf16") or known.get("amx_bf16"))


@torch.no_grad()
def _remove(runner: Runner, unit: Unit, fill: Fill) -> None:
    """What reads the unit's context becomes 0, and what stands in for it goes into the bias: the head is gone."""
    projection, columns = runner.projections[unit.layer], runner.columns(unit)
    weight = weight_in_out(projection)  # a view
    if fill is not None:
        added = fill[columns].double() @ weight[columns].double()
        if projection.bias is None:
            projection.bias = nn.Parameter(weight.new_zeros(weight.shape[1]))
        assert isinstance(projection.bias, Tensor)
        projection.bias += added.to(projection.bias)
    weight[columns] = 0


def _drawn(objective: Objective, examples: int | None, seed: int) -> list[TextBatch]:
    """Batches of that many examples; all of them where there are no more."""
    if examples is None or examples >= objective.examples:
        return list(objective.batches)
    chosen = np.random.default_rng(seed).permutation(objective.examples)[: max(1, examples)]
    found = []
    for batch in objective.batches:
        rows = torch.isin(batch.example, torch.from_numpy(chosen).to(batch.example.device)).nonzero().flatten()
        if len(rows):
            some = batch.take(rows)
            longest = int(some.lengths.max())
            found.append(TextBatch(some.input_ids[:, :longest], some.attention_mask[:, :longest], some.example))
    return found


def _check(network: PreTrainedModel, units: Sequence[Unit], remove: int, every: int, candidates: int) -> None:
    if not 1 <= remove <= len(units):
        raise PlanError(f"There are {len(units)} to take out, so remove must be from 1 to {len(units)}, got {remove}.")
    if every < 1 or candidates < 1:
        raise PlanError(f"every and candidates must be at least 1, got {every} and {candidates}.")
    if any(site.is_shared for site in attention_sites(network)):
        raise UnsupportedModel(
            f"The layers of {type(network).__name__} share their weights, so a head cannot go from one of them alone; "
            f"rank its heads with leave_one_out."
        )


def _name(unit: Unit) -> str:
    return "+".join(head_name(unit.layer, head) for head in unit.heads)
