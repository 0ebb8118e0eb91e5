"""What is asked of a model once its heads have roles: where each is strongest, and whether the model uses it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from headlens.arch import attention_sites, heads_present, is_causal_model
from headlens.behaviour.ablation import ablate_heads
from headlens.corpora import Corpus
from headlens.effects import task_of
from headlens.errors import CorpusError, UnsupportedModel
from headlens.examples import Examples
from headlens.find_examples import find_examples
from headlens.models import LoadedModel, network_of
from headlens.records import Batch
from headlens.roles import Roles

MOST_ABLATED = 400  # heads of which all are taken out; of larger models only those with a role

Say = Callable[[str], None]  # told what is being done


@dataclass
class OnRoles:
    """Examples, facts for the provenance, and remarks."""

    examples: Examples | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def on_roles(
    loaded: LoadedModel,
    corpus: Corpus,
    batches: Sequence[Batch],
    roles: Roles,
    parts: Collection[str],
    *,
    seed: int,
    say: Say,
) -> OnRoles:
    """The parts "examples" and "ablation" of a profile; what a model cannot be asked for is left out with a note."""
    found = OnRoles()
    network = network_of(loaded.model)
    is_causal = is_causal_model(network)
    if "examples" in parts:
        say("choosing examples")
        try:
            found.examples = find_examples(
                network, loaded.require_tokenizer(), corpus, roles, is_causal=is_causal, seed=seed
            )
        except (UnsupportedModel, CorpusError) as reason:
            found.notes.append(f"There are no examples: {reason}")
    if "ablation" in parts:
        try:
            heads = {
                head: task_of({one.role.id for one in roles.of(*head)}, is_causal=is_causal)
                for head in _asked(roles, network)
            }
            found.facts["ablation"] = ablate_heads(loaded, batches, heads, seed=seed, say=say).to_dict()
        except (UnsupportedModel, CorpusError) as reason:
            found.notes.append(f"No head was taken out: {reason}")
    return found


def _asked(roles: Roles, network: PreTrainedModel) -> list[tuple[int, int]]:
    present = heads_present(attention_sites(network))
    every = [
        (layer, head)
        for layer, head in np.ndindex(roles.n_layers, roles.n_heads)
        if present is None or present[layer, head]
    ]
    return every if len(every) <= MOST_ABLATED else [head for head in every if roles.of(*head)]
