"""How much each head writes: the norm of what it adds to the residual stream. One pass, no head is taken out.

raw        E |z_h W_O,h| over the tokens of an example; the value bias is part of z_h
centred    the same after the mean over all tokens is taken off: a head that always gives the same can stay in the bias
relative   raw, over the median norm of the stream that the layer adds to

In pre-norm models the stream grows from layer to layer (SmolLM2: from 3.5 to 800), and a norm read beside that of
another layer says little; there "relative" is the default.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.arch import family_of
from headlens.behaviour.upper_layers import layers_of
from headlens.errors import PlanError, UnsupportedModel
from headlens.importance.ablated import Runner, WholeRunner, weight_in_out
from headlens.importance.inputs import TextBatch, examples_of
from headlens.importance.leave_one_out import by_head, mean_contexts_of
from headlens.importance.objectives import Objective, mean_by_row
from headlens.importance.result import Importance
from headlens.importance.units import Kind, Unit, units_of

Norm = Literal["raw", "centred", "relative"]

# Families that normalise behind the sum, so that the stream has one size in all layers (OPT 350m is told by its config)
_POST_NORM = frozenset(
    "bert roberta xlm-roberta camembert electra ernie data2vec-text distilbert albert bart marian".split()
)
_MEANING = {
    "raw": "Mean norm of what the head adds to the stream",
    "centred": "Mean norm of what the head adds to the stream, its mean over all tokens taken off",
    "relative": "Mean norm of what the head adds to the stream, over the median norm of the stream",
}


def output_norm(
    network: PreTrainedModel, objective: Objective, *, norm: Norm | None = None, unit: Kind = "head"
) -> Importance:
    """How much each head writes on the texts of an objective, whose values are not asked for.

    Parameters
    ----------
    norm
        As above; None is "relative" for pre-norm models and "raw" for the others.
    unit
        "group" gives each head the sum over the heads that share its key/value head.

    Raises
    ------
    UnsupportedModel
        Where W_O is in this family is not known, or "relative" is asked where layers cannot be told apart.
    PlanError
        A norm or a unit of another name.
    """
    norm = norm or ("relative" if is_pre_norm(network) else "raw")
    if norm not in get_args(Norm):
        raise PlanError(f"The norm is one of {', '.join(get_args(Norm))}, got {norm!r}.")
    runner, units = WholeRunner(network), units_of(network, unit)
    means = mean_contexts_of(runner, objective.batches) if norm == "centred" else None
    sizes = _mean_norms(runner, objective.batches, units, means)
    if norm == "relative":
        streams = median_stream_norms(runner, objective.batches)
        sizes /= np.array([streams[unit.layer] for unit in units])[:, None]
    return Importance.of_examples(
        f"norm_{norm}",
        by_head(network, units, sizes),
        meaning=f"{_MEANING[norm]}; larger matters more.",
        facts={"norm": norm, "unit": unit},
    )


def is_pre_norm(network: PreTrainedModel) -> bool:
    """Whether layers add to a stream that nothing normalises, so that it grows."""
    return family_of(network) not in _POST_NORM and getattr(network.config, "do_layer_norm_before", True)


@torch.inference_mode()
def median_stream_norms(runner: Runner, batches: Sequence[TextBatch]) -> list[float]:
    """Median over all real tokens of the norm of what goes into each layer."""
    layers = layers_of(runner.network)
    if not layers:
        raise UnsupportedModel(
            f"The layers of {type(runner.network).__name__} cannot be told apart, so their streams have no norms; use "
            f"the norm 'raw' or 'centred'."
        )
    found: list[list[Tensor]] = [[] for _ in layers]
    for batch in batches:
        own = batch.to(runner.network.device)
        with ExitStack() as stack:
            for layer, norms in zip(layers, found, strict=True):
                keep = _keep_norms(norms, own.attention_mask.bool())
                stack.callback(layer.register_forward_pre_hook(keep, with_kwargs=True).remove)
            runner.hidden(own)
    return [float(torch.cat(norms).median()) for norms in found]


@torch.inference_mode()
def _mean_norms(
    runner: Runner, batches: Sequence[TextBatch], units: Sequence[Unit], means: Sequence[Tensor] | None
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """[unit, example]: the sum over the heads of a unit of the mean over tokens of |z_h W_O,h|."""
    sizes = np.zeros((len(units), examples_of(batches)))
    grams: dict[tuple[int, int], Tensor] = {}
    for batch in batches:
        intact = runner.intact(batch)
        real, examples = intact.batch.attention_mask.bool(), batch.example.cpu().numpy()
        for place, unit in enumerate(units):
            for at in unit.places:
                one = Unit(unit.layer, (at,), (at,))
                columns = runner.columns(one)
                context = intact.context[unit.layer][..., columns].double()
                if means is not None:
                    context = context - means[unit.layer][columns]
                key = unit.layer, at
                if key not in grams:
                    grams[key] = _gram(weight_in_out(runner.projections[unit.layer])[columns])
                norms = torch.linalg.vecdot(context @ grams[key], context).clamp_min(0).sqrt()
                sizes[place, examples] += mean_by_row(norms[real], real).cpu().numpy()
    return sizes


def _gram(weight: Float[Tensor, "dim hidden"]) -> Float[Tensor, "dim dim"]:
    """W W^T: |z W|^2 = z W W^T z^T, without the [token, hidden] that z W would take."""
    wide = weight.double()
    return wide @ wide.T


def _keep_norms(norms: list[Tensor], real: Tensor) -> Any:
    def keep(_layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        stream = args[0] if args else kwargs["hidden_states"]
        norms.append(stream[real].double().norm(dim=-1))

    return keep
