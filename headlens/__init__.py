"""headlens: see what each attention head of a pretrained transformer does, prove it, and act on it.

The names below are loaded when they are first used, so that `import headlens` costs nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headlens.attention import MultiHeadAttention
    from headlens.capture import capture
    from headlens.collect import collect
    from headlens.corpora import Corpus, read_corpus, texts
    from headlens.documents import Choice, Document, Mention, Sentence
    from headlens.errors import HeadlensError
    from headlens.models import load_model
    from headlens.profiling import profile
    from headlens.replace import replace_attention
    from headlens.results import Profile
    from headlens.scores import ScoreTable
    from headlens.selfcheck import check_model

__version__ = "0.1.0"

_HOMES = {
    "Choice": "documents",
    "Corpus": "corpora",
    "Document": "documents",
    "HeadlensError": "errors",
    "Mention": "documents",
    "MultiHeadAttention": "attention",
    "Profile": "results",
    "ScoreTable": "scores",
    "Sentence": "documents",
    "capture": "capture",
    "check_model": "selfcheck",
    "collect": "collect",
    "load_model": "models",
    "profile": "profiling",
    "read_corpus": "corpora",
    "replace_attention": "replace",
    "texts": "corpora",
}

__all__ = [
    "Choice",
    "Corpus",
    "Document",
    "HeadlensError",
    "Mention",
    "MultiHeadAttention",
    "Profile",
    "ScoreTable",
    "Sentence",
    "__version__",
    "capture",
    "check_model",
    "collect",
    "load_model",
    "profile",
    "read_corpus",
    "replace_attention",
    "texts",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headlens' has no attribute {name!r}")
    value = getattr(import_module(f"headlens.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Importing headlens.capture (the module) must not hide headlens.capture (the function)."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
