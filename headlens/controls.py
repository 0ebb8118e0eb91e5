"""The same model with random weights: how well the best of its heads does by luck and by architecture alone.

Htut et al. 2019 hold heads of BERT against a randomly initialised one; the best of all its heads is the level that the
best of all heads of the trained model has to pass.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedConfig, PreTrainedModel

from headlens.errors import OutputError, UnsupportedModel
from headlens.models import head_counts
from headlens.plan import CONFIG_ENTRY, plan_of
from headlens.scores import ScoreTable, head_name
from headlens.surgery import Means, apply_plan
from headlens.tally import Tally

COPIES = 3

Run: TypeAlias = Callable[[PreTrainedModel], Tally | ScoreTable]
Floats: TypeAlias = NDArray[np.float64]


def reinitialised(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """A model of the same class and config with weights drawn anew, as its class draws them before any training.

    It has the device, dtypes, mode and attention implementation of `model`, and shares nothing with it. Weights are
    drawn on the CPU in the default dtype, so a seed gives the same ones everywhere; torch's global random state stays
    as it is. A part that the class makes but `model` was stripped of, such as a pooler, is there again.

    Of a pruned model the same heads are removed from the copy. Raises UnsupportedModel where the class does not make
    such a model from its config: of other sizes, or quantised.
    """
    fresh = _drawn(model, copy.deepcopy(model.config), seed)
    plan = plan_of(model.config)
    if plan is not None and _unlike(fresh, model):  # of its full size: not all configs tell how many heads there are
        config = copy.deepcopy(model.config)
        delattr(config, CONFIG_ENTRY)
        whole = _drawn(model, config, seed)
        fresh = apply_plan(whole, plan)
        if _unlike(fresh, model):  # an output bias that the family does not give, for what removed heads go on giving
            nothing = torch.zeros(plan.heads, head_counts(config)["head_dim"], dtype=torch.float64)
            fresh = apply_plan(whole, plan, fill=Means([nothing] * plan.layers, 0))
    _check_alike(fresh, model)
    _place_alike(fresh, model)
    return fresh.train(model.training)


class Best(NamedTuple):
    """The best head of one copy on one metric."""

    value: float
    layer: int
    head: int

    @property
    def name(self) -> str:
        return head_name(self.layer, self.head)


@dataclass(frozen=True)
class ControlEvidence:
    """How the best head of every copy with random weights does, to stand beside the best head of the real model.

    The best head has the largest value. It is chosen and scored on the same documents, so these values are somewhat
    too high, which bars more claims, not fewer.
    """

    seeds: tuple[int, ...]  # of the copies
    best: Mapping[str, tuple[Best, ...]]  # by metric, one entry a copy

    @property
    def copies(self) -> int:
        return len(self.seeds)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the provenance of a profile."""
        return {
            "copies": self.copies,
            "seeds": list(self.seeds),
            "best": {metric: [one.value for one in found] for metric, found in self.best.items()},
            "heads": {metric: [one.name for one in found] for metric, found in self.best.items()},
        }


def controls(model: PreTrainedModel, run: Run, copies: int = COPIES, seed: int = 0) -> ControlEvidence:
    """Scores of `copies` of `model` with random weights, one after the other.

    Parameters
    ----------
    run
        Scores one model on the corpus, as `analyze` does: a Tally, of which the pooled scores are read, or a
        ScoreTable. It must not keep the model.
    seed
        The copies' own seeds are drawn from it; more copies of one seed begin with the same ones.

    Raises
    ------
    OutputError
        No copy is asked for, or copies were scored on different metrics.
    UnsupportedModel
        As `reinitialised`.
    """
    if copies < 1:
        raise OutputError(f"Controls need at least one copy of the model with random weights, got {copies}.")
    seeds = tuple(int(own) for own in np.random.SeedSequence(seed).generate_state(copies))
    found = [_best_heads(run(reinitialised(model, own))) for own in seeds]
    for other in found[1:]:
        if other.keys() != found[0].keys():
            unlike = ", ".join(sorted(other.keys() ^ found[0].keys()))
            raise OutputError(f"Not all copies were scored on {unlike}; run all of them on the same documents.")
    return ControlEvidence(seeds, {metric: tuple(one[metric] for one in found) for metric in found[0]})


def _best_heads(scored: Tally | ScoreTable) -> dict[str, Best]:
    """By metric that has a score at all."""
    values = _pooled_scores(scored) if isinstance(scored, Tally) else {name: scored[name] for name in scored.names}
    return {name: _best_of(of_heads) for name, of_heads in values.items() if not np.isnan(of_heads).all()}


def _best_of(values: Floats) -> Best:
    """Of [layer, head]; the first of equals."""
    layer, head = np.unravel_index(int(np.nanargmax(values)), values.shape)
    return Best(float(values[layer, head]), int(layer), int(head))


def _pooled_scores(tally: Tally) -> dict[str, Floats]:
    """[layer, head] by metric: those of `Tally.scores`, without the intervals that take its time."""
    found: dict[str, Floats] = {}
    for analyzer in tally.analyzers:
        totals = {key: value.double().sum(dim=0).cpu() for key, value in tally.model[analyzer.name].sums.items()}
        support = analyzer.support(totals)
        scores = analyzer.score(totals)
        found |= {name: tally.where_present(value.numpy()) for name, value in scores.items() if support[name].max() > 0}
    return found


def _drawn(model: PreTrainedModel, config: PreTrainedConfig, seed: int) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the accelerators, too
        return type(model)(config)


def _unlike(fresh: PreTrainedModel, model: PreTrainedModel) -> list[str]:
    """Weights of the model that the new one lacks, or has in another shape."""
    made = {name: weight.shape for name, weight in fresh.named_parameters()}
    return [name for name, weight in model.named_parameters() if made.get(name) != weight.shape]


def _check_alike(fresh: PreTrainedModel, model: PreTrainedModel) -> None:
    unlike = _unlike(fresh, model)
    if unlike:
        raise UnsupportedModel(
            f"A new {type(model).__name__} of the same config differs in {len(unlike)} of "
            f"{len([*model.parameters()])} weights, e.g. {unlike[0]}, so there is no control with random weights; use "
            f"the model as it was before."
        )


@torch.no_grad()
def _place_alike(fresh: PreTrainedModel, model: PreTrainedModel) -> None:
    """Every weight and buffer gets the device and dtype of its namesake.

    One by one: a model in a narrow dtype has buffers that are not, such as the frequencies of rotary positions.
    """
    namesakes = dict([*model.named_parameters(), *model.named_buffers()])
    for name, tensor in [*fresh.named_parameters(), *fresh.named_buffers()]:
        like = namesakes.get(name)
        dtype = like.dtype if like is not None else model.dtype if tensor.is_floating_point() else tensor.dtype
        tensor.data = tensor.data.to(device=model.device if like is None else like.device, dtype=dtype)
        if like is not None:
            tensor.requires_grad_(like.requires_grad)
