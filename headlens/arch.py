"""Where the attention of a model sits, and where its output projections are. One entry of SPECS a family.

Watching needs no entry: the modules that call transformers' attention interface are found by their code. What reads
weights (the contribution of a head, its removal) needs one.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headlens.attention import MultiHeadAttention
from headlens.errors import PlanError, UnsupportedModel
from headlens.plan import plan_of
from headlens.records import Stack

FAMILY_PREFIX = "headlens_"  # of the model_type of a pruned checkpoint, before that of the original


@dataclass(frozen=True)
class ArchSpec:
    """Paths are relative to the attention module; a leading ^ goes up to its parent."""

    out: str  # the projection W_O that the heads' outputs go through
    is_shared: bool = False  # one module serves several layers


_BERT = ArchSpec("^.output.dense")
_LLAMA = ArchSpec("o_proj")
_OUT_PROJ = ArchSpec("out_proj")
_T5 = ArchSpec("o")

SPECS = {
    **dict.fromkeys(["bert", "roberta", "xlm-roberta", "camembert", "electra", "ernie", "data2vec-text"], _BERT),
    "distilbert": ArchSpec("out_lin"),
    "albert": ArchSpec("dense", is_shared=True),
    "modernbert": ArchSpec("Wo"),
    **dict.fromkeys(["gpt2", "gpt_bigcode"], ArchSpec("c_proj")),
    **dict.fromkeys(["gpt_neox", "phi"], ArchSpec("dense")),
    **dict.fromkeys(["opt", "gptj", "biogpt"], _OUT_PROJ),
    **dict.fromkeys(["llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "phi3"], _LLAMA),
    **dict.fromkeys(["gemma", "gemma2", "gemma3_text", "olmo", "olmo2", "cohere", "granite"], _LLAMA),
    **dict.fromkeys(["stablelm", "starcoder2", "smollm3", "gpt_oss", "vit"], _LLAMA),
    **dict.fromkeys(["t5", "mt5", "umt5"], _T5),
    **dict.fromkeys(["bart", "mbart", "marian", "pegasus", "whisper"], _OUT_PROJ),
}


@dataclass(frozen=True, eq=False)
class Site:
    """One attention layer of a model."""

    name: str  # dotted path of the module
    module: nn.Module
    stack: Stack
    layer: int  # 0-based within the stack
    is_shared: bool = False  # the module serves the following layers of its stack too
    heads: tuple[int, ...] | None = None  # those that are there, by their original numbers; None: all of them
    heads_before: int | None = None  # of the layer of the original model, where `heads` is not None

    @property
    def is_empty(self) -> bool:
        """All heads were removed: nothing is captured here, and the layer adds its output bias alone."""
        return self.heads == ()

    def __str__(self) -> str:
        return f"{self.stack} layer {self.layer} ({self.name})"


def attention_sites(model: Any) -> list[Site]:
    """Every attention layer of `model`, in the order of its modules, those that have lost all heads included.

    Raises
    ------
    UnsupportedModel
        No module of the model calls transformers' attention interface.
    PlanError
        The config holds a plan for another number of layers than the model has.
    """
    if not isinstance(model, nn.Module):
        raise UnsupportedModel(f"Expected a model, got {type(model).__name__}; of what load_model gave, pass `.model`.")
    found = [(name, module) for name, module in model.named_modules() if _is_attention(module)]
    if not found:
        raise UnsupportedModel(_why_not(model))
    config = getattr(model, "config", None)
    shared = SPECS.get(family_of(model), _LLAMA).is_shared
    counts: Counter[Stack] = Counter()
    sites = []
    for name, module in _in_order_of_calls(found, config) if shared else found:
        stack = _stack_of(name, module, bool(getattr(config, "is_encoder_decoder", False)))
        sites.append(Site(name, module, stack, counts[stack], shared))
        counts[stack] += 1
    return _as_pruned(sites, config)


def heads_present(sites: Sequence[Site]) -> Bool[Tensor, "layer head"] | None:
    """Which heads of the original model are there, of the sites of one stack; None where none is missing."""
    if any(site.heads is None or site.heads_before is None for site in sites):
        return None
    present = torch.zeros(len(sites), sites[0].heads_before or 0, dtype=torch.bool)
    for site in sites:
        present[site.layer, list(site.heads or ())] = True
    return present


def is_causal_model(network: Any) -> bool:
    """Whether no token sees those that follow; of two stacks the encoder tells, as its modules come first.

    Raises UnsupportedModel where no module calls transformers' attention interface.
    """
    return attention_sites(network)[0].stack == "decoder"


def family_of(model: Any) -> str:
    """The model_type of a model or config; of a pruned one that of the original."""
    config = getattr(model, "config", model)
    return str(getattr(config, "model_type", type(model).__name__)).removeprefix(FAMILY_PREFIX)


def output_projection(model: nn.Module, site: Site) -> nn.Module:
    """The module that holds W_O of a layer.

    Raises
    ------
    UnsupportedModel
        The family has no entry in SPECS, or the entry does not fit the model.
    """
    if isinstance(site.module, MultiHeadAttention):
        return site.module.o_proj
    family = family_of(model)
    if family not in SPECS:
        raise UnsupportedModel(
            f"Where {family!r} keeps its output projections is not known (known: {', '.join(sorted(SPECS))}). "
            f"Add one line to SPECS in headlens/arch.py."
        )
    path = SPECS[family].out
    start = site.name
    while path.startswith("^."):
        start, path = start.rpartition(".")[0], path.removeprefix("^.")
    try:
        return model.get_submodule(f"{start}.{path}" if start else path)
    except AttributeError:
        raise UnsupportedModel(
            f"{family!r} should have an output projection at {start}.{path}, and has none."
        ) from None


def output_weight(projection: nn.Module, heads: int) -> Float[Tensor, "head dim hidden"]:
    """W_O cut into the part of every head, so that head h adds `context_h @ W[h]` to the layer's output."""
    weight = projection.weight if is_transposed(projection) else projection.weight.T  # [in, out]
    assert isinstance(weight, Tensor)
    return weight.reshape(heads, weight.shape[0] // max(heads, 1), weight.shape[1])


def output_bias(projection: nn.Module) -> Float[Tensor, " hidden"] | None:
    """The bias that the layer adds to the sum of its heads; it belongs to no head."""
    bias = getattr(projection, "bias", None)
    return bias if isinstance(bias, torch.Tensor) else None


def is_transposed(projection: nn.Module) -> bool:
    """transformers' Conv1D keeps its weight as [in, out], nn.Linear as [out, in]."""
    return type(projection).__name__ == "Conv1D"


def eager_function(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor]] | None:
    """The attention function of the model's own file, which the module gives the interface to fall back on."""
    forward = type(module).forward
    name = _fallback_of(forward)
    return None if name is None else inspect.unwrap(forward).__globals__.get(name)


# from the module to the interface: "attention = ALL_ATTENTION_FUNCTIONS.get_interface(name, eager_attention_forward)"
_DISPATCH = re.compile(r"ALL_ATTENTION_FUNCTIONS\.get_interface\(\s*[\w.]+,\s*(\w+)")


def _is_attention(module: nn.Module) -> bool:
    return isinstance(module, MultiHeadAttention) or _fallback_of(type(module).forward) is not None


@lru_cache(maxsize=1024)  # reading source is slow, and a model has hundreds of modules
def _fallback_of(forward: Callable[..., Any]) -> str | None:
    try:
        found = _DISPATCH.search(inspect.getsource(forward))
    except (OSError, TypeError):
        return None
    return None if found is None else found[1]


def _as_pruned(sites: list[Site], config: Any) -> list[Site]:
    """With the heads that a plan in the config has left. It is for the stack that comes first: of two the encoder."""
    plan = plan_of(config)
    if plan is None or all(kept == tuple(range(plan.heads)) for kept in plan.kept):
        return sites
    own = [site for site in sites if site.stack == sites[0].stack]
    if len(own) != plan.layers:
        raise PlanError(
            f"The plan in the config is for {plan.layers} layers of heads and the model has {len(own)}: it is that of "
            f"another model; take the checkpoint as it was saved."
        )
    kept = {(site.stack, site.layer): plan.kept[site.layer] for site in own}
    return [
        replace(site, heads=kept[site.stack, site.layer], heads_before=plan.heads) if site in own else site
        for site in sites
    ]


def _stack_of(name: str, module: nn.Module, is_encoder_decoder: bool) -> Stack:
    parts = name.split(".")
    if getattr(module, "is_cross_attention", False) or {"crossattention", "encoder_attn", "EncDecAttention"} & {*parts}:
        return "cross"
    halves = [part for part in parts if part in ("encoder", "decoder")] if is_encoder_decoder else []
    if halves:  # the outermost tells: a BERT that decodes has an "encoder" inside
        return "encoder" if halves[0] == "encoder" else "decoder"
    return "decoder" if getattr(module, "is_causal", False) else "encoder"


def _in_order_of_calls(found: list[tuple[str, nn.Module]], config: Any) -> list[tuple[str, nn.Module]]:
    """ALBERT's groups of layers, each called for a stretch of the layers before the next one is."""
    size = len(found) // config.num_hidden_groups
    groups = [found[start : start + size] for start in range(0, len(found), size)]
    stretch = config.num_hidden_layers / config.num_hidden_groups
    return [member for layer in range(config.num_hidden_layers) for member in groups[int(layer / stretch)]]


def _why_not(model: nn.Module) -> str:
    return (
        f"{type(model).__name__} (model_type {family_of(model)!r}) computes its attention in code of its own instead "
        f"of transformers' attention interface, so its heads cannot be watched; models such as BERT, RoBERTa, GPT-2, "
        f"GPT-NeoX, OPT, Llama, Mistral, Qwen, Gemma, T5 or BART can."
    )
