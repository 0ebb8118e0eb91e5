"""The Python file that lets transformers read a pruned checkpoint where headlens is not installed."""

from __future__ import annotations

import inspect

from headlens.surgery import classes, forwards, shapes

FILE = "modeling_headlens.py"
_IMPORTS = """
from collections.abc import Callable
from typing import Any

import transformers
from transformers import PreTrainedConfig, PreTrainedModel

Built = Callable[[PreTrainedConfig], None]
"""


def write_source(family: str) -> str:
    """What goes into the file: how layers are resized, and the classes of one family. It imports torch and transformers
    alone."""
    shared = [inspect.getsource(forwards), _without_links(inspect.getsource(shapes)), _IMPORTS]
    shared += [inspect.getsource(part) for part in (classes.pruned_config, classes.pruned_model)]
    return "\n\n\n".join(part.strip("\n") for part in [*shared, _class_lines(family)]) + "\n"


def _without_links(source: str) -> str:
    """The source without what stands only at the head of a file, and without its imports from headlens."""
    lines = source.splitlines()
    return "\n".join(line for line in lines if not line.startswith(("from __future__", "from headlens")))


def auto_map(family: str) -> dict[str, str]:
    """The entry of config.json that tells every Auto class where to look."""
    module = FILE.removesuffix(".py")
    models = {auto: kinds[0].__name__ for auto, kinds in classes.prunable_classes(family).items()}
    names = {"AutoConfig": classes.config_class(family).__name__.removeprefix("Headlens"), **models}
    return {auto: f"{module}.Headlens{name}" for auto, name in names.items()}


def _class_lines(family: str) -> str:
    config = classes.config_class(family).__name__
    models = sorted({kind.__name__ for kinds in classes.prunable_classes(family).values() for kind in kinds})
    stock = config.removeprefix("Headlens")
    return "\n".join(
        [
            f"{config} = pruned_config(transformers.{stock})",
            *(f"Headlens{name} = pruned_model(transformers.{name}, {config})" for name in models),
        ]
    )
