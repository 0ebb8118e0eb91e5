"""The classes of pruned checkpoints: those of transformers, whose attention layers get their sizes when they are built.

`pruned_config` and `pruned_model` also go, as they stand here, into the Python file of a self-contained checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import transformers
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from headlens.arch import FAMILY_PREFIX, family_of
from headlens.errors import UnsupportedModel
from headlens.surgery.shapes import FAMILIES, resize

PRUNED_CLASS = "Headlens"  # what the names of these classes start with

Built = Callable[[PreTrainedConfig], None]


def pruned_config(stock: type[PreTrainedConfig], built: Built = lambda config: None) -> type[PreTrainedConfig]:
    """A config class whose entries are those of the original model, and which tells how many heads each layer has left.

    `built` is called with every config that is made.
    """

    def tell_when_built(self: PreTrainedConfig, **entries: Any) -> None:
        stock.__post_init__(self, **entries)
        built(self)

    entries = {
        "model_type": f"headlens_{stock.model_type}",
        "heads_per_layer": None,
        "kv_heads_per_layer": None,
        "output_bias": False,  # True: W_O has a bias that the family does not give it
        "headlens_plan": None,
        "__post_init__": tell_when_built,
        "__module__": __name__,
    }
    return type(f"Headlens{stock.__name__}", (stock,), entries)


def pruned_model(stock: type[PreTrainedModel], config_type: type[PreTrainedConfig]) -> type[PreTrainedModel]:
    """A stock model class whose attention layers are resized to the config's heads before any weight is loaded."""

    class Pruned(stock):
        config_class = config_type

        def __init__(self, config: PreTrainedConfig, *inputs: Any, **kwargs: Any) -> None:
            super().__init__(config, *inputs, **kwargs)
            if config.heads_per_layer is not None:
                resize(self, config.heads_per_layer, config.kv_heads_per_layer, output_bias=config.output_bias)
                for module in self.modules():  # or those with new weights would pass for initialised
                    vars(module).pop("_is_hf_initialized", None)
                self.init_weights()

        @classmethod
        def _can_set_attn_implementation(cls) -> bool:
            return stock._can_set_attn_implementation()  # transformers looks for it in the file of the class

    Pruned.__name__ = Pruned.__qualname__ = f"Headlens{stock.__name__}"
    return Pruned


# ------------------------------------------------------------------------------------------- in the installed package


def register_configs() -> None:
    """Let AutoConfig know the config of every family that can be pruned. A config that is made then does the same for
    the models of its family: their files take long to import."""
    for family in FAMILIES:
        AutoConfig.register(FAMILY_PREFIX + family, config_class(family), exist_ok=True)


def is_pruned_type(model_type: object) -> bool:
    """Whether a model_type is that of a checkpoint of these classes."""
    return isinstance(model_type, str) and model_type.removeprefix(FAMILY_PREFIX) in FAMILIES.keys() - {model_type}


@cache
def config_class(family: str) -> type[PreTrainedConfig]:
    """Of pruned models of a family; UnsupportedModel where it cannot be pruned."""
    if family not in FAMILIES:
        raise UnsupportedModel(f"{family!r} cannot be pruned, so it has no pruned checkpoints; {_known()} can.")
    return _here(pruned_config(CONFIG_MAPPING[family], _when_built))


def model_class(stock: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """The class of pruned models that are `stock` otherwise."""
    made = globals().get(PRUNED_CLASS + stock.__name__)
    return made or _here(pruned_model(stock, config_class(family_of(stock.config_class))))


def stock_class(model: PreTrainedModel) -> type[PreTrainedModel]:
    """The class of transformers that a model, pruned or not, is of."""
    found = next((kind for kind in type(model).__mro__ if kind.__module__.startswith("transformers.models.")), None)
    if found is None:
        raise UnsupportedModel(f"{type(model).__name__} is no model of transformers; {_known()} can be saved.")
    return found


def class_names(family: str) -> dict[str, tuple[str, ...]]:
    """What every Auto class, by its name, makes models of a family from."""
    autos = {name: kind for name, kind in vars(modeling_auto).items() if name.startswith("AutoModel")}
    mappings = {name: kind._model_mapping for name, kind in autos.items() if getattr(kind, "_model_mapping", None)}
    found = {name: mapping._model_mapping.get(family) for name, mapping in mappings.items()}
    return {auto: (name,) if isinstance(name, str) else tuple(name) for auto, name in found.items() if name}


def prunable_classes(family: str) -> dict[str, tuple[type[PreTrainedModel], ...]]:
    """The classes of `class_names` that are of this family alone: of several it would not be clear what is pruned."""
    config = CONFIG_MAPPING[family]
    kinds = {
        auto: tuple(kind for name in names if getattr(kind := getattr(transformers, name), "config_class", 0) is config)
        for auto, names in class_names(family).items()
    }
    return {auto: found for auto, found in kinds.items() if found}


def _when_built(config: PreTrainedConfig) -> None:
    if hasattr(config, "auto_map"):  # the Python file of a self-contained checkpoint is not needed here, and not run
        del config.auto_map
    _register_models(family_of(config))


@cache
def _register_models(family: str) -> None:
    config = config_class(family)
    for auto, kinds in prunable_classes(family).items():
        pruned = tuple(map(model_class, kinds))
        getattr(modeling_auto, auto).register(config, pruned if len(pruned) > 1 else pruned[0], exist_ok=True)


def _here(kind: type) -> type:
    globals()[kind.__name__] = kind  # where pickle looks for it
    return kind


def _known() -> str:
    return ", ".join(FAMILIES)
