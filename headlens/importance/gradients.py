"""Importance from gradients of gates: how the objective changes when a head's output is scaled.

Every example has gates of its own, xi[example, layer, head] = 1, which multiply the contexts of heads before W_O. One
backward pass a batch gives all their derivatives, and what else is in the batch changes nothing:

gradient        E_x |dL_x/dxi_h|                               (Michel et al. 2019, section 4.1)
gradient_token  E_x sum_t |dL_x/dxi_h,t|                       a gate for each token: effects of tokens do not cancel
gradient_batch  1/N sum_b |sum_{x in b} dL_x/dxi_h|            what code with one gate a batch computes
taylor          E_x -xi_h dL_x/dxi_h                           the rise without the head, to first order
integrated      E_x -integral_0^1 dL_x/dxi_h (all xi = a) da   integrated gradients (Sundararajan et al. 2017), no heads
                                                               to all heads: sums to the rise without any head

A distortion is 0 at the model as it is, and so is its gradient: only `integrated` takes one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.capture import capture
from headlens.errors import PlanError, UnsupportedModel
from headlens.importance.ablated import Runner, WholeRunner, in_features
from headlens.importance.inputs import TextBatch
from headlens.importance.leave_one_out import by_head
from headlens.importance.objectives import Objective
from headlens.importance.result import Floats, Importance, layer_l2, unchanged
from headlens.importance.units import Kind, Unit, plan_now, units_of

Normalize = Literal["layer"]
Say = Callable[[str], None]

POINTS = 12  # of the integral


def gradient(
    network: PreTrainedModel,
    objective: Objective,
    *,
    normalize: Normalize | None = None,
    unit: Kind = "head",
    say: Say = lambda _what: None,
) -> Importance:
    """E_x |dL_x/dxi_h|, of each example by itself, so that no batch size or order changes it.

    Parameters
    ----------
    network
        What is run: no task head, one stack of layers, in eval mode. It is left as it was.
    normalize
        "layer" divides by the l2 norm of the layer, as Michel et al. do; every layer then loses about as many heads,
        also one that matters as a whole, which hurts where most heads go. The method is then named gradient_l2.
    unit
        "group" has one gate for a key/value head with all its query heads.

    Raises
    ------
    PlanError
        The objective is a distortion, whose gradient is zero here; or another normalisation or unit.
    UnsupportedModel
        As from `leave_one_out`.
    """
    _refuse_distortion("gradient", objective)
    signed = _by_unit(network, gate_gradients(network, objective, say=say), unit)
    return _finished("gradient", np.abs(signed), objective, normalize, unit, "How much {} changes with the head's gate")


def gradient_token(
    network: PreTrainedModel,
    objective: Objective,
    *,
    normalize: Normalize | None = None,
    unit: Kind = "head",
    say: Say = lambda _what: None,
) -> Importance:
    """E_x sum_t |dL_x/dxi_h,t|: a gate for every token, padding counts nothing; else as `gradient`."""
    _refuse_distortion("gradient_token", objective)
    per_example = by_head(network, *_token_sizes(network, objective, unit, say))
    meaning = "How much {} changes with the head's gates at single tokens, in sum over tokens"
    return _finished("gradient_token", per_example, objective, normalize, unit, meaning)


def gradient_batch(
    network: PreTrainedModel,
    objective: Objective,
    *,
    normalize: Normalize | None = None,
    unit: Kind = "head",
    say: Say = lambda _what: None,
) -> Importance:
    """1/N sum_b |sum_{x in b} dL_x/dxi_h|: DEPENDS ON THE BATCHES, as gradients of single examples cancel in them.

    For comparison with numbers of code that has one gate for a whole batch; of batches of one text it is `gradient`.
    There are no intervals: it has no value of a single example. Else as `gradient`.
    """
    _refuse_distortion("gradient_batch", objective)
    signed = _by_unit(network, gate_gradients(network, objective, say=say), unit)
    sums = [np.abs(signed[batch.example.cpu().numpy()].sum(axis=0)) for batch in objective.batches]
    name, finish = _normalized("gradient_batch", normalize)
    return Importance(
        name,
        finish(np.sum(sums, axis=0) / objective.examples),
        support=objective.examples,
        unit=objective.unit,
        meaning=_meaning("How much {} of a batch changes with the head's gate", objective),
        facts={**_facts(objective, normalize, unit), "batches": len(objective.batches)},
    )


def taylor(
    network: PreTrainedModel, objective: Objective, *, unit: Kind = "head", say: Say = lambda _what: None
) -> Importance:
    """E_x -xi_h dL_x/dxi_h: by how much the objective would rise without the head if it were linear in the gate.

    Signed: below 0 where the model does better without the head. Errors as from `gradient`.
    """
    _refuse_distortion("taylor", objective)
    signed = _by_unit(network, gate_gradients(network, objective, say=say), unit)
    return _finished("taylor", -signed, objective, None, unit, "By how much {} rises without the head, to first order")


def integrated(
    network: PreTrainedModel,
    objective: Objective,
    *,
    points: int = POINTS,
    unit: Kind = "head",
    say: Say = lambda _what: None,
) -> Importance:
    """The head's part of what the objective rises by without any head, from gradients on the way there; signed.

    All gates move together from 0 to 1, by midpoints. Takes distortions too; PlanError for fewer than one point.
    """
    if points < 1:
        raise PlanError(f"The integral needs at least one point, got {points}.")
    total: Floats = np.zeros(())
    for point in range(points):
        say(f"gradients at gates of {(point + 0.5) / points:.2f}")
        total = total - gate_gradients(network, objective, at=(point + 0.5) / points)
    per_example = _by_unit(network, total / points, unit)
    meaning = "The head's part of what {} rises by without any head"
    found = _finished("integrated", per_example, objective, None, unit, meaning)
    return Importance.of_examples(
        "integrated",
        per_example,
        unit=found.unit,
        meaning=found.meaning,
        facts={**found.facts, "points": points},
    )


# --------------------------------------------------------------------------------------------------- passes with gates


def gate_gradients(
    network: PreTrainedModel, objective: Objective, *, at: float = 1.0, say: Say = lambda _what: None
) -> Floats:
    """dL_x/dxi [example, layer, head] with all gates at one value; 0 for heads that are not there."""
    runner, plan = WholeRunner(network), plan_now(network)
    found = np.zeros((objective.examples, plan.layers, plan.heads))
    with weights_frozen(network):
        for batch in each_batch(runner, objective, say):
            gates = torch.full((len(batch), plan.layers, plan.heads), at, **_like(network)).requires_grad_()
            values = objective.values(gated_hidden(runner, batch, gates), batch)
            found[batch.example.cpu().numpy()] = derivatives(values, [gates])[0]
    return found


def gated_hidden(
    runner: Runner, batch: TextBatch, gates: Float[Tensor, "row layer head"]
) -> Float[Tensor, "row token hidden"]:
    """Last hidden states under the gates, to which gradients flow."""
    with capture(runner.network, gates=gates, way="fast"):
        return runner.hidden(batch)


def derivatives(values: Float[Tensor, " row"], gates: Sequence[Tensor], *, again: bool = False) -> list[Floats]:
    """Of each row's value by its own gates [row, ...], in float64; `again` keeps what another backward pass needs."""
    found = torch.autograd.grad(values.sum(), gates, retain_graph=again)
    if not all(slope.isfinite().all() for slope in found):
        raise UnsupportedModel(
            "The gradients of the heads' gates are not finite on these texts: run the model in float32, and with "
            "batches of texts of one length (some models with sliding windows give NaN where there is padding)."
        )
    return [np.asarray(slope.double().cpu().numpy()) for slope in found]


@contextmanager
def weights_frozen(network: nn.Module) -> Iterator[None]:
    """Gradients flow, but to no weight of the network: nothing below the first gate is kept for them."""
    learned = [weight for weight in network.parameters() if weight.requires_grad]
    for weight in learned:
        weight.requires_grad_(False)
    try:
        with torch.enable_grad():
            yield
    finally:
        for weight in learned:
            weight.requires_grad_(True)


def each_batch(runner: Runner, objective: Objective, say: Say) -> Iterator[TextBatch]:
    for number, batch in enumerate(objective.batches, start=1):
        say(f"gradients of gates, batch {number} of {len(objective.batches)}")
        yield batch.to(runner.network.device)


def gates_of_units(
    network: PreTrainedModel, units: Sequence[Unit], values: Float[Tensor, "row unit"]
) -> Float[Tensor, "row layer head"]:
    """Every head of a unit gets the unit's gate; heads that are not there get 1."""
    return torch.cat([values, torch.ones_like(values[:, :1])], dim=-1)[:, places_of_units(network, units)]


def places_of_units(network: PreTrainedModel, units: Sequence[Unit]) -> Int[Tensor, "layer head"]:
    """Which unit each head belongs to; one after the last where it is not there."""
    plan = plan_now(network)
    places = torch.full((plan.layers, plan.heads), len(units))
    for place, unit in enumerate(units):
        places[unit.layer, list(unit.heads)] = place
    return places


def _like(network: PreTrainedModel) -> dict[str, Any]:
    return {"dtype": torch.promote_types(network.dtype, torch.float32), "device": network.device}


# ------------------------------------------------------------------------------------------------------ gates of tokens


def _token_sizes(
    network: PreTrainedModel, objective: Objective, kind: Kind, say: Say
) -> tuple[list[Unit], Float[np.ndarray, "unit example"]]:
    runner, units = WholeRunner(network), units_of(network, kind)
    sizes = np.zeros((len(units), objective.examples))
    with weights_frozen(network):
        for batch in each_batch(runner, objective, say):
            gates = [torch.ones(*batch.input_ids.shape, count, **_like(network)) for count in runner.heads]
            with _tokens_gated(runner, [gate.requires_grad_() for gate in gates]):
                values = objective.values(runner.hidden(batch), batch)
            layers = [layer for layer, count in enumerate(runner.heads) if count]
            found = dict(zip(layers, derivatives(values, [gates[layer] for layer in layers]), strict=True))
            for place, unit in enumerate(units):  # of padding the derivatives are 0: no real token sees it
                own = found[unit.layer][..., list(unit.places)].sum(axis=-1)  # [row, token]
                sizes[place, batch.example.cpu().numpy()] = np.abs(own).sum(axis=-1)
    return units, sizes


@contextmanager
def _tokens_gated(runner: Runner, gates: Sequence[Tensor]) -> Iterator[None]:
    """Multiply what each W_O gets by the gates [row, token, head] of its layer; of several layers, in turn."""
    turns = defaultdict[nn.Module, list[Tensor]](list)
    for projection, gate in zip(runner.projections, gates, strict=True):
        turns[projection].append(gate)
    with ExitStack() as stack:
        for projection, own in turns.items():
            stack.callback(projection.register_forward_pre_hook(_multiply(iter(own))).remove)
        yield


def _multiply(gates: Iterator[Tensor]) -> Any:
    def multiply(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        gate = next(gates)
        if not gate.numel():
            return inputs
        wide = gate.repeat_interleave(in_features(module) // gate.shape[-1], dim=-1)
        return inputs[0] * wide.to(inputs[0]), *inputs[1:]

    return multiply


# -------------------------------------------------------------------------------------------------------------- shared


def _by_unit(network: PreTrainedModel, signed: Floats, kind: Kind) -> Floats:
    """The gate of a unit scales all its heads, so its derivative is the sum of theirs; NaN of heads not there."""
    units = units_of(network, kind)
    return by_head(network, units, np.stack([signed[:, unit.layer, list(unit.heads)].sum(axis=-1) for unit in units]))


def _refuse_distortion(method: str, objective: Objective) -> None:
    if objective.is_distortion:
        raise PlanError(
            f"{method} cannot rank heads by {objective.name}: a distortion is 0, its minimum, at the model as it is, "
            f"so its gradient is zero there by construction; use gauss_newton, integrated or loo_mean, or a loss."
        )


def _finished(
    method: str, per_example: Floats, objective: Objective, normalize: str | None, unit: Kind, meaning: str
) -> Importance:
    name, finish = _normalized(method, normalize)
    return Importance.of_examples(
        name,
        per_example,
        unit=objective.unit if normalize is None else "ratio",
        meaning=_meaning(meaning, objective),
        facts=_facts(objective, normalize, unit),
        finish=finish,
    )


def _normalized(method: str, normalize: str | None) -> tuple[str, Callable[[Floats], Floats]]:
    if normalize is None:
        return method, unchanged
    if normalize != "layer":
        raise PlanError(f"Gradients are normalised by 'layer', or not (None), got {normalize!r}.")
    return f"{method}_l2", layer_l2


def _meaning(meaning: str, objective: Objective) -> str:
    return f"{meaning.format(objective.name.replace('_', ' '))}; larger matters more."


def _facts(objective: Objective, normalize: str | None, unit: Kind) -> dict[str, Any]:
    return {"objective": objective.name, "unit": unit, "normalize": normalize}
