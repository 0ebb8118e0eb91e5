"""Models that hold converted layers: of the same class where it can have fewer key/value heads, of another otherwise.

- Llama-like models take any number of key/value heads that divides the heads; where all layers agree it is in the
  config, and the checkpoint is a stock one.
- GPT-2 with one key/value head is GPTBigCode, which transformers has (Allal et al. 2023, "SantaCoder").
- All else stays in its class, with attention modules that share keys and values (`headlens.surgery.forwards`) and a
  plan that says which heads do; such models are saved and loaded like pruned ones.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import GPTBigCodeConfig, PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from headlens.conversion.weights import LayerWeights, check_readable, write_layers
from headlens.errors import PlanError
from headlens.plan import CONFIG_ENTRY, HeadPlan
from headlens.surgery.classes import stock_class
from headlens.surgery.present import configs_above, known_layout, layers_of, present_plan
from headlens.surgery.shapes import family_of, resize


@torch.no_grad()
def converted(model: PreTrainedModel, layers: Sequence[LayerWeights], *, stock: bool = True) -> PreTrainedModel:
    """A copy of the model with these weights in its attention layers; the model itself is left as it is.

    Its config has a plan of which query heads share a key/value head, in the numbers of the original model. A model
    that was pruned may be converted, and a converted one may be pruned.

    Parameters
    ----------
    layers
        One for each layer of the model, with all its query heads, in the places that `read_layer` gave them. Numbers of
        key/value heads may be larger or smaller than those of the model, and differ between layers.
    stock
        Return a GPTBigCode for a GPT-2 that has one key/value head in every layer, where there is one that computes
        the same; False keeps the class.

    Raises
    ------
    PlanError
        Another number of layers, heads or dimensions than the model has, or groups that it cannot have.
    UnsupportedModel
        A family that cannot be converted.
    """
    check_readable(model)
    plan = _plan(model, layers)
    made = copy.deepcopy(model)
    counts = [len(kept) for kept in plan.kept], [len(groups) for groups in plan.groups]
    has_new_bias = _has_new_bias(model, layers)
    resize(made, *counts, output_bias=has_new_bias)
    for config in configs_above(made, layers_of(model)[0].name):
        _tell(config, plan, *counts, has_new_bias)
    write_layers(made, layers)
    return in_stock_class(made) if stock else made


def in_stock_class(model: PreTrainedModel) -> PreTrainedModel:
    """A GPT-2 with one key/value head in every layer as GPTBigCode, which gives the same; any other model as it is."""
    return as_bigcode(model) if _is_bigcode(model, present_plan(model)) else model


def _plan(model: PreTrainedModel, layers: Sequence[LayerWeights]) -> HeadPlan:
    present = present_plan(model)
    if len(layers) != present.layers:
        raise PlanError(f"{type(model).__name__} has {present.layers} layers, got weights for {len(layers)}.")
    for layer, (kept, weights) in enumerate(zip(present.kept, layers, strict=True)):
        if len(weights.q) != len(kept):
            raise PlanError(
                f"Layer {layer} of {type(model).__name__} has {len(kept)} query heads, and the weights are of "
                f"{len(weights.q)}: a conversion keeps them all."
            )
    groups = tuple(
        tuple(tuple(kept[place] for place in group) for group in weights.groups)
        for kept, weights in zip(present.kept, layers, strict=True)
    )
    return HeadPlan(present.heads, present.kv_heads, groups)


def _has_new_bias(model: PreTrainedModel, layers: Sequence[LayerWeights]) -> bool:
    return any(
        weights.o_bias is not None and layer.out.bias is None
        for layer, weights in zip(layers_of(model), layers, strict=True)
    )


def _tell(config: Any, plan: HeadPlan, heads: list[int], kv_heads: list[int], has_new_bias: bool) -> None:
    setattr(config, CONFIG_ENTRY, plan.to_dict())
    if hasattr(config, "heads_per_layer"):  # of a model that was loaded from a checkpoint of its own class
        config.heads_per_layer, config.kv_heads_per_layer = heads, kv_heads
        config.output_bias = config.output_bias or has_new_bias
    if hasattr(config, "num_key_value_heads") and set(heads) == {config.num_attention_heads} and len({*kv_heads}) == 1:
        config.num_key_value_heads = kv_heads[0]  # caches of a fixed size ask the config


# --------------------------------------------------------------------------------------------------------- GPTBigCode


_BIGCODE = {
    "GPT2Model": "GPTBigCodeModel",
    "GPT2LMHeadModel": "GPTBigCodeForCausalLM",
    "GPT2ForSequenceClassification": "GPTBigCodeForSequenceClassification",
    "GPT2ForTokenClassification": "GPTBigCodeForTokenClassification",
}
_NOT_OF_GPT2 = {"model_type", "architectures", "transformers_version", "multi_query", "num_key_value_heads"}


def _is_bigcode(model: PreTrainedModel, plan: HeadPlan) -> bool:
    """Whether a GPTBigCode computes what this GPT-2 does: it has none of GPT-2's other ways to scale scores."""
    config = model.config
    return (
        family_of(model) == "gpt2"
        and stock_class(model).__name__ in _BIGCODE
        and all(len(groups) == 1 for groups in plan.groups)
        and not plan.removed
        and not (config.scale_attn_by_inverse_layer_idx or config.reorder_and_upcast_attn)
    )


@torch.no_grad()
def as_bigcode(model: PreTrainedModel) -> PreTrainedModel:
    """A GPT-2 with one key/value head in every layer, or with as many as query heads, as a GPTBigCode.

    It gives the same logits, bit for bit under sdpa. GPTBigCode's eager attention takes its softmax in float32.
    """
    plan = present_plan(model)
    counts = {len(groups) for groups in plan.groups}
    assert not plan.removed
    assert counts in ({1}, {plan.heads})
    kind = getattr(transformers, _BIGCODE[stock_class(model).__name__])
    with torch.random.fork_rng(devices=[]):
        made: PreTrainedModel = kind(_bigcode_config(model.config, multi_query=counts == {1}))
    made.load_state_dict(_bigcode_weights(model), assign=True)
    made.tie_weights()
    made.set_attn_implementation(model.config._attn_implementation)
    if made.can_generate():
        made.generation_config = copy.deepcopy(model.generation_config)
    return made.train(model.training)


def _bigcode_config(config: PreTrainedConfig, multi_query: bool) -> PreTrainedConfig:
    known = (GPTBigCodeConfig().to_dict().keys() | {CONFIG_ENTRY, "id2label", "label2id"}) - _NOT_OF_GPT2
    entries = {name: value for name, value in config.to_dict().items() if name in known}
    return GPTBigCodeConfig(**entries, multi_query=multi_query)


def _bigcode_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """GPT-2's weights as [out, in], those of queries, keys and values head by head where every head has its own."""
    weights = {name: weight.detach().clone() for name, weight in model.state_dict().items()}
    for name, module in model.named_modules():
        if isinstance(module, Conv1D):
            weights[f"{name}.weight"] = weights[f"{name}.weight"].T.contiguous()
    (part,) = known_layout(model).parts
    for layer, groups in zip(layers_of(model), present_plan(model).groups, strict=True):
        if len(groups) == len(layer.heads):
            by_head = torch.stack(part.places(len(layer.heads), len(groups), layer.dim), dim=1).flatten()
            for kind in ("weight", "bias"):
                name = f"{layer.name}.{part.path}.{kind}"
                weights[name] = weights[name][by_head.to(weights[name].device)]
    return weights
