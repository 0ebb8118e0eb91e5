"""Pruned and converted models that a class of transformers can hold as it is, and the config that it needs for that.

It can where every layer has the same numbers of heads, and the family's config takes a head_dim of its own where heads
are gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from headlens.arch import family_of
from headlens.plan import HeadPlan, plan_of
from headlens.surgery.classes import prunable_classes, stock_class

# By family, the one whose classes read the same weights under the same names, and whose config does not ask that the
# heads divide the hidden size. Mistral without its window computes what Llama does.
_HOLDERS = {"llama": "mistral", "mistral": "mistral", "qwen2": "qwen2", "qwen3": "qwen3"}

# Entries of Llama alone. Where it has these biases, Mistral has no place for them, which the weights will tell.
_NOT_OF_MISTRAL = ("attention_bias", "mlp_bias", "pretraining_tp")
_OF_ITS_CLASS = (
    *("model_type", "architectures", "transformers_version", "auto_map"),
    *("heads_per_layer", "kv_heads_per_layer", "output_bias"),
)


def stock_form(model: PreTrainedModel) -> tuple[type[PreTrainedModel], PreTrainedConfig] | None:
    """The class of transformers, with its config, that may hold a pruned model or a masked twin; None: none can.

    It is told from the plan and the config; whether all weights have their place, the weights must tell.
    """
    plan = plan_of(model.config)
    if plan is None or plan.is_full or family_of(model) == "gpt_bigcode":  # which is made with the sizes that it has
        return stock_class(model), _same_family(model)
    holder = _HOLDERS.get(family_of(model))
    if holder is None or not plan.is_uniform or not plan.n_kept:
        return None
    if not plan.removed:
        return stock_class(model), _with_shared_keys(model, plan)
    kind = _same_head(stock_class(model), family_of(model), holder)
    return None if kind is None else (kind, _uniform(model.config, holder, plan))


def _same_family(model: PreTrainedModel) -> PreTrainedConfig:
    return CONFIG_MAPPING[family_of(model)].from_dict(plain_entries(model.config))


def _with_shared_keys(model: PreTrainedModel, plan: HeadPlan) -> PreTrainedConfig:
    entries = {**plain_entries(model.config), "num_key_value_heads": len(plan.groups[0])}
    return CONFIG_MAPPING[family_of(model)].from_dict(entries)


def plain_entries(config: PreTrainedConfig) -> dict[str, Any]:
    """What another config of the same family is made of: all but what names its class, its code and its sizes."""
    return {
        name: value for name, value in config.to_dict().items() if name not in _OF_ITS_CLASS and not _is_gguf(value)
    }


def _is_gguf(value: object) -> bool:
    """The entry of a model from a .gguf file, whose weights are plain numbers once it is loaded."""
    return isinstance(value, Mapping) and value.get("quant_method") == "gguf"


def _same_head(kind: type[PreTrainedModel], family: str, holder: str) -> type[PreTrainedModel] | None:
    """The class of the other family that the same Auto class makes."""
    others = prunable_classes(holder)
    return next(
        (others[auto][0] for auto, kinds in prunable_classes(family).items() if kind in kinds and auto in others), None
    )


def _uniform(config: PreTrainedConfig, holder: str, plan: HeadPlan) -> PreTrainedConfig:
    counts = {"num_attention_heads": len(plan.kept[0]), "num_key_value_heads": len(plan.groups[0])}
    entries = {**plain_entries(config), **counts, "head_dim": head_dim_of(config)}
    if holder != family_of(config):
        # "layer_types" would make a Ministral of it when it is loaded
        dropped = (*_NOT_OF_MISTRAL, "layer_types")
        entries = {name: value for name, value in entries.items() if name not in dropped} | {"sliding_window": None}
    return CONFIG_MAPPING[holder].from_dict(entries)


def head_dim_of(config: PreTrainedConfig) -> int:
    given = getattr(config, "head_dim", None)
    return int(given) if given is not None else config.hidden_size // config.num_attention_heads
