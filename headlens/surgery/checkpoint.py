"""Save a pruned or converted model, or a masked twin, as a folder that gives the same model again, bit for bit."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from headlens import __version__
from headlens.arch import family_of
from headlens.errors import OutputError, PlanError, UnsupportedModel
from headlens.files import printable
from headlens.manifest import MANIFEST, SCHEMAS, read_manifest
from headlens.plan import FILE as PLAN_FILE
from headlens.plan import HeadPlan, plan_of
from headlens.quiet import quiet
from headlens.surgery.aligned import align_weights
from headlens.surgery.card import model_card
from headlens.surgery.classes import config_class, model_class, prunable_classes, stock_class
from headlens.surgery.masked import MASKED_ENTRY
from headlens.surgery.new_folder import new_folder
from headlens.surgery.proof import prove
from headlens.surgery.self_contained import FILE as CODE_FILE
from headlens.surgery.self_contained import auto_map, write_source
from headlens.surgery.shapes import counts_of
from headlens.surgery.stock import plain_entries, stock_form

LOADS_IN = ("transformers", "headlens", "transformers with trust_remote_code")


def save_pruned(
    model: PreTrainedModel,
    folder: str | os.PathLike[str],
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    manifest: Mapping[str, Any],
    self_contained: bool = False,
    overwrite: bool = False,
) -> Path:
    """Write weights, config, plan, manifest, model card and tokenizer; returns the folder.

    Everything is written beside the folder first, flushed to the disk, loaded again and compared with `model`, weights
    and outputs bit for bit. Only then it is put in place, in one step: at every moment the folder is the old one or
    the new one. Where a class of transformers can hold the model as it is, the checkpoint is of that class; the
    manifest says in "loads_in" what can load it, one of LOADS_IN.

    Parameters
    ----------
    model
        What `apply_plan`, `masked_twin` or `conversion.carriers.converted` gave, or a loaded checkpoint of it; with or
        without a task head.
    manifest
        Plain values: "source" (name, revision, hash), "data", "method", "measured" (by name, with "before" and
        "after") and what else should be told. The facts that follow from the model are added.
    self_contained
        Add a Python file with which transformers reads the folder where headlens is not installed
        (`trust_remote_code=True`). Not written where transformers can read it anyway.
    overwrite
        Replace a checkpoint that `save_pruned` wrote. Other folders that hold something are never replaced.

    Raises
    ------
    OutputError
        The folder holds something, or it cannot be written; it is as it was before.
    PlanError
        The model is neither pruned nor converted nor a masked twin.
    UnsupportedModel
        No checkpoint can hold this model.
    """
    target = Path(folder).expanduser().resolve()
    _check_place(target, overwrite)
    with quiet():
        form, loads_in = _in_a_form(model, self_contained)
        facts = _as_plain({**manifest, **_facts(model, form, loads_in)})
        try:
            with new_folder(target, replace=overwrite) as temporary:
                _write(temporary, form, tokenizer, facts)
                prove(model, type(form), temporary)
        except (OSError, SafetensorError) as reason:
            raise OutputError(
                f"{printable(target)} cannot be written ({getattr(reason, 'strerror', None) or reason}); choose a "
                f"place that can be written to, with enough room on its disk. What was there is unchanged."
            ) from reason
    return target


# ------------------------------------------------------------------------------------------------- where it may be put


def check_free(folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Whether `save_pruned` may write there: before minutes of work, not after. Raises OutputError where it may not."""
    _check_place(Path(folder).expanduser().resolve(), overwrite)


def _check_place(target: Path, overwrite: bool) -> None:
    name = printable(target)
    if target.exists() and not target.is_dir():
        raise OutputError(f"{name} is a file; give the path of a new folder.")
    inside = sorted(path.name for path in target.iterdir()) if target.exists() else []
    if not inside:
        return
    if not overwrite:
        raise OutputError(
            f"{name} holds something already ({inside[0]}); give a new folder, or let it be replaced (--overwrite, or "
            f"overwrite=True)."
        )
    if MANIFEST not in inside:
        raise OutputError(f"{name} holds {inside[0]} and is no checkpoint of headlens, so it is not replaced.")
    others = sorted({*inside} - {*read_manifest(target).get("files", [])} - {MANIFEST})
    if others:
        raise OutputError(
            f"{name} holds {others[0]}, which is no part of the checkpoint and would be lost; move it elsewhere first."
        )


# ------------------------------------------------------------------------------------------------------ what is written


Form = tuple[type[PreTrainedModel], PreTrainedConfig]


def _in_a_form(model: PreTrainedModel, with_code: bool) -> tuple[PreTrainedModel, str]:
    """The model in the class that the checkpoint is of, around the same weights, and what can load it."""
    if plan_of(model.config) is None and getattr(model.config, MASKED_ENTRY, None) is None:
        raise PlanError(
            f"This {type(model).__name__} has lost no head and shares keys and values as it always did; prune or "
            f"convert it first, with apply_plan(model, plan) or headlens.convert."
        )
    stock = stock_form(model)
    if stock is not None and (form := _around(model, *stock)) is not None:
        return form, LOADS_IN[0]
    for has_new_bias in (False, True):
        if (form := _around(model, *_pruned_form(model, has_new_bias, with_code))) is not None:
            return form, LOADS_IN[2 if with_code else 1]
    raise UnsupportedModel(
        f"The weights of this {type(model).__name__} are not those that the plan in its config leaves; save what "
        f"apply_plan gave, without adapters and unquantized."
    )


def _pruned_form(model: PreTrainedModel, has_new_bias: bool, with_code: bool) -> Form:
    family, stock = family_of(model), stock_class(model)
    if not any(stock in kinds for kinds in prunable_classes(family).values()):
        raise UnsupportedModel(f"No Auto class of transformers makes a {stock.__name__}, so nothing could load it.")
    heads, kv_heads = zip(*counts_of(model), strict=True)
    sizes = {"heads_per_layer": list(heads), "kv_heads_per_layer": list(kv_heads), "output_bias": has_new_bias}
    config = config_class(family).from_dict({**plain_entries(model.config), **sizes})
    if with_code:
        config.auto_map = auto_map(family)
    return model_class(stock), config


def _around(model: PreTrainedModel, kind: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel | None:
    """A model of another class with the weights of `model`; None where they do not fit."""
    with torch.device("meta"):
        form = kind(config)
    weights = model.state_dict()
    if _shapes(form.state_dict()) != _shapes(weights):
        return None
    form.load_state_dict(weights, assign=True)
    form.tie_weights()
    if form.can_generate():
        form.generation_config = model.generation_config
    return form.eval()


def _shapes(weights: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: weight.shape for name, weight in weights.items()}


def _write(
    folder: Path, form: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, facts: Mapping[str, Any]
) -> None:
    form.save_pretrained(folder)
    for file in folder.glob("*.safetensors"):
        align_weights(file)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    plan_in(form.config).save(folder / PLAN_FILE)
    if facts["loads_in"] == LOADS_IN[2]:
        (folder / CODE_FILE).write_text(write_source(family_of(form)), encoding="utf-8")
    (folder / "README.md").write_text(model_card(facts), encoding="utf-8")
    files = sorted(path.name for path in folder.iterdir())
    text = json.dumps({**facts, "files": files}, indent=2, ensure_ascii=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def _as_plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    try:
        plain: dict[str, Any] = json.loads(json.dumps(facts, allow_nan=False))
    except (TypeError, ValueError) as reason:
        raise OutputError(f"The manifest must hold plain values that JSON has: {reason}.") from None
    return plain


def plan_in(config: PreTrainedConfig) -> HeadPlan:
    """Of a pruned model, or of a masked twin: the heads that are not zeroed."""
    return plan_of(config) or HeadPlan.from_dict(getattr(config, MASKED_ENTRY))


def _kind(model: PreTrainedModel) -> str:
    plan = plan_of(model.config)
    if plan is None:
        return "masked"
    return "pruned" if plan.removed or not shares_anew(plan) else "converted"


def shares_anew(plan: HeadPlan) -> bool:
    """Whether the heads that are left share keys and values with others than they did in the original model."""
    return bool(plan.layers_that_share_otherwise(HeadPlan.full(plan.layers, plan.heads, plan.kv_heads)))


def _facts(model: PreTrainedModel, form: PreTrainedModel, loads_in: str) -> dict[str, Any]:
    plan = plan_in(model.config)
    kind = _kind(model)
    return {
        "schema": SCHEMAS[kind],
        "loads_in": loads_in,
        "family": family_of(model),
        "class": type(form).__name__,
        "auto_class": _auto_class(form),
        "heads_kept": [list(kept) for kept in plan.kept],
        "heads_of_original": plan.heads * plan.layers,
        # nothing of a masked twin is gone
        "kv_heads": [plan.kv_heads if kind == "masked" else len(groups) for groups in plan.groups],
        "kv_heads_of_original": plan.kv_heads,
        **({"groups": _as_lists(plan)} if kind != "masked" and shares_anew(plan) else {}),
        "parameters": sum(weight.numel() for weight in form.parameters()),
        "dtype": str(form.dtype).removeprefix("torch."),
        "versions": {"headlens": __version__, "torch": torch.__version__, "transformers": transformers.__version__},
    }


def _auto_class(model: PreTrainedModel) -> str | None:
    """The Auto class that makes models of this class; of several the one that is named for a task, or the plain one."""
    kind = stock_class(model)
    made_by = [auto for auto, kinds in prunable_classes(family_of(model)).items() if kind in kinds]
    return min(made_by, key=lambda auto: auto in _LESS_USUAL, default=None)


_LESS_USUAL = ("AutoModelForPreTraining", "AutoModelForTextEncoding")


def _as_lists(plan: HeadPlan) -> list[list[list[int]]]:
    return [[list(group) for group in groups] for groups in plan.groups]
