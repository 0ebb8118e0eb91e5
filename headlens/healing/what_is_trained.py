"""Which weights a healing trains, and on what losses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from transformers import PreTrainedModel

from headlens.arch import is_causal_model
from headlens.errors import UnsupportedModel
from headlens.healing.losses import Losses, label_task, layer_variances, next_token_task
from headlens.healing.reading import Labels, Reading
from headlens.healing.recipe import Recipe
from headlens.importance.inputs import padded_batches
from headlens.importance.objectives import own_head, token_logits
from headlens.models import LoadedModel, network_of

_SCALED_ON = 256  # rows that the variances of hidden states are taken from


@contextmanager
def only_training(model: PreTrainedModel, names: set[str]) -> Iterator[None]:
    """Let these weights alone want gradients, and leave none behind."""
    wanted = {name: weight.requires_grad for name, weight in model.named_parameters()}
    for name, weight in model.named_parameters():
        weight.requires_grad_(name in names)
    yield
    model.zero_grad(set_to_none=True)
    for name, weight in model.named_parameters():
        weight.requires_grad_(wanted[name])


def trained_names(model: PreTrainedModel, with_embeddings: bool) -> set[str]:
    """Names of the weights that are trained: those of the network, but for embeddings and a pooler."""
    network = network_of(model)
    off = {
        id(weight)
        for name, module in network.named_modules()
        if "pooler" in name.split(".") or (_is_embedding(name, module) and not with_embeddings)
        for weight in module.parameters()
    }
    on = {id(weight) for weight in network.parameters()} - off
    return {name for name, weight in model.named_parameters() if id(weight) in on}


def _is_embedding(name: str, module: nn.Module) -> bool:
    """Outside of the numbered layers: those of T5 have a table of their own, which belongs to attention."""
    path = name.split(".")
    in_layers = any(part.isdigit() for part in path)
    return not in_layers and ("embeddings" in path or isinstance(module, nn.Embedding))


def losses_for(model: PreTrainedModel, teacher: PreTrainedModel, reading: Reading, recipe: Recipe) -> Losses:
    """The losses of a recipe between two models; UnsupportedModel for a part that they have no head for."""
    variances = torch.ones(0)
    if "hidden" in recipe.parts:
        variances = layer_variances(network_of(teacher), padded_batches(reading.rows[:_SCALED_ON]))
    is_asked = {"logits", "task"} & set(recipe.parts)
    if is_asked and recipe.train_embeddings and _shares_embeddings(model):
        raise UnsupportedModel(
            f"The vocabulary head of {type(model).__name__} has the weights of its embeddings, and heads stay as they "
            f"are: leave out train_embeddings."
        )
    own = original = task = None
    if "logits" in recipe.parts:
        own, original = (token_logits(_with_vocabulary(one, "logits")) for one in (model, teacher))
    if "task" in recipe.parts and reading.labels is not None:
        task = label_task(own_head(model), reading.labels)
    elif "task" in recipe.parts:
        if not is_causal_model(network_of(model)):
            raise UnsupportedModel(
                f"{type(model).__name__} is no language model, so its task needs labels; give them, or leave out the "
                f"part task."
            )
        task = next_token_task(token_logits(_with_vocabulary(model, "task")))
    return Losses(recipe.parts, variances, own, original, task)


def default_parts(loaded: LoadedModel, labels: Labels | None) -> dict[str, float]:
    """The parts of the loss where none are named, each with the weight 1."""
    model = loaded.model
    is_language_model = is_causal_model(network_of(model)) and model.get_output_embeddings() is not None
    parts = {"hidden": 1.0, "logits" if is_language_model else "embedding": 1.0}
    return parts if labels is None else {**parts, "task": 1.0}


def _with_vocabulary(model: PreTrainedModel, part: str) -> PreTrainedModel:
    if model.get_output_embeddings() is None:
        raise UnsupportedModel(
            f"{type(model).__name__} has no vocabulary head, which the part {part} of the loss asks for; use hidden "
            f"and embedding."
        )
    return model


def _shares_embeddings(model: PreTrainedModel) -> bool:
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    return head is not None and head.weight is table.weight
