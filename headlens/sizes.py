"""How many layers and heads a model has, as its config tells, under whatever names."""

from __future__ import annotations

from transformers import PreTrainedConfig

from headlens.errors import UnsupportedModel
from headlens.plan import plan_of


def head_counts(config: PreTrainedConfig) -> dict[str, int]:
    """`layers`, `heads`, `kv_heads`, `head_dim` and `hidden`, whatever the family calls them; of the encoder of two.

    Of a pruned model those of the original.

    Raises
    ------
    UnsupportedModel
        The config does not give one of them as one whole number.
    """
    try:
        text = config.get_text_config()
    except ValueError as error:
        raise UnsupportedModel(f"{config.model_type!r} holds several text models: {error}") from None
    if not isinstance(text, PreTrainedConfig):
        raise UnsupportedModel(f"The config of {config.model_type!r} should hold that of a text model, got {text!r}.")
    layers = _whole(text, "num_hidden_layers", "num_layers", "n_layer", "n_layers")
    heads = _whole(text, "num_attention_heads", "num_heads", "n_head", "n_heads")
    hidden = _whole(text, "hidden_size", "d_model", "n_embd", "dim")
    sizes = {"heads": heads, "kv_heads": _key_value_heads(text, heads), "head_dim": _head_dim(text, hidden, heads)}
    if (plan := plan_of(config)) is not None:
        sizes |= {"heads": plan.heads, "kv_heads": plan.kv_heads}  # some configs of pruned models count what is there
    return {"layers": layers, **sizes, "hidden": hidden}


def _whole(config: PreTrainedConfig, *names: str) -> int:
    value = next((value for name in names if (value := getattr(config, name, None)) is not None), None)
    if not isinstance(value, int) or value < 1:
        raise UnsupportedModel(
            f"The config of {config.model_type!r} must give {names[0]} as a whole number, got {value!r}."
        )
    return value


def _key_value_heads(config: PreTrainedConfig, heads: int) -> int:
    if getattr(config, "multi_query", False) and not getattr(config, "new_decoder_architecture", False):
        return 1  # GPTBigCode and the first Falcon
    if all(getattr(config, name, None) is None for name in ("num_key_value_heads", "num_kv_heads")):
        return heads
    return _whole(config, "num_key_value_heads", "num_kv_heads")


def _head_dim(config: PreTrainedConfig, hidden: int, heads: int) -> int:
    if getattr(config, "qk_nope_head_dim", None) and getattr(config, "qk_rope_head_dim", None):
        # latent attention, where head_dim names only one part of it
        return int(config.qk_nope_head_dim) + int(config.qk_rope_head_dim)
    if getattr(config, "head_dim", None) is not None:
        return _whole(config, "head_dim")
    if hidden % heads:
        raise UnsupportedModel(f"The config of {config.model_type!r} has {heads} heads for a hidden size of {hidden}.")
    return hidden // heads
