"""What is told of a model wherever it was used: which it is, what it consists of, and what surgery it went through."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from headlens.arch import family_of
from headlens.checkpoints import BUNDLES, Checkpoint
from headlens.errors import OutputError
from headlens.manifest import has_manifest, read_manifest, surgery_facts
from headlens.plan import plan_of
from headlens.sizes import head_counts


def provenance_of(checkpoint: Checkpoint, model: PreTrainedModel) -> dict[str, Any]:
    """Which model it is, where it came from, and what it consists of: plain values, ready for JSON."""
    return {
        "name": checkpoint.name if checkpoint.name in BUNDLES else checkpoint.source,
        "source": checkpoint.source,
        "revision": checkpoint.revision,
        "weights_sha256": _digest(checkpoint.weight_files),
        **facts_of(model),
        **_surgery(checkpoint.folder),
    }


def _surgery(folder: Path) -> dict[str, Any]:
    """Of a checkpoint that came out of surgery what that was; a file of the same name may be another tool's."""
    try:
        return {"surgery": surgery_facts(read_manifest(folder))} if has_manifest(folder) else {}
    except OutputError:
        return {}


def facts_of(model: PreTrainedModel) -> dict[str, Any]:
    """What a model says of itself, as plain values: family, class, sizes, dtype.

    Sizes are those of the original model. Of a pruned one `heads_kept` counts the heads that are there, and `plan`
    says which; of a converted one `plan` says which share keys and values.
    """
    return {
        "family": family_of(model),
        "class": type(model).__name__,
        **head_counts(model.config),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "dtype": str(model.dtype).removeprefix("torch."),
        "is_encoder_decoder": bool(model.config.is_encoder_decoder),
        **_pruned_facts(model),
    }


def _pruned_facts(model: PreTrainedModel) -> dict[str, Any]:
    plan = plan_of(model.config)
    if plan is None or plan.is_full:
        return {}
    return {**({"heads_kept": plan.n_kept} if plan.removed else {}), "plan": plan.to_dict()}


def _digest(files: list[Path]) -> str:
    """What `sha256sum` prints for a single file; for several, the hash of their hashes in order of their names."""
    digests = [_file_digest(file) for file in files]
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def _file_digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
