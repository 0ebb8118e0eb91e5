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
    from headlens.comparison import compare
    from headlens.conversion.kv_heads import KVHeads
    from headlens.converting import convert
    from headlens.corpora import Corpus, read_corpus, texts
    from headlens.documents import Choice, Document, Mention, Sentence
    from headlens.errors import HeadlensError
    from headlens.evaluating import evaluate_models
    from headlens.evaluation import read_task
    from headlens.models import load_model, load_whole
    from headlens.plan import HeadPlan
    from headlens.profiling import profile
    from headlens.pruning import Wish, prune
    from headlens.rankings import rank_by
    from headlens.replace import replace_attention
    from headlens.results import Profile
    from headlens.scores import ScoreTable
    from headlens.selfcheck import check_model
    from headlens.sweeping import sweep

__version__ = "0.1.0"

_HOMES = {
    "Choice": "documents",
    "Corpus": "corpora",
    "Document": "documents",
    "HeadPlan": "plan",
    "HeadlensError": "errors",
    "KVHeads": "conversion.kv_heads",
    "Mention": "documents",
    "MultiHeadAttention": "attention",
    "Profile": "results",
    "ScoreTable": "scores",
    "Sentence": "documents",
    "Wish": "pruning",
    "capture": "capture",
    "check_model": "selfcheck",
    "collect": "collect",
    "compare": "comparison",
    "convert": "converting",
    "evaluate_models": "evaluating",
    "load_model": "models",
    "load_whole": "models",
    "profile": "profiling",
    "prune": "pruning",
    "rank_by": "rankings",
    "read_corpus": "corpora",
    "read_task": "evaluation",
    "replace_attention": "replace",
    "sweep": "sweeping",
    "texts": "corpora",
}

__all__ = [
    "Choice",
    "Corpus",
    "Document",
    "HeadPlan",
    "HeadlensError",
    "KVHeads",
    "Mention",
    "MultiHeadAttention",
    "Profile",
    "ScoreTable",
    "Sentence",
    "Wish",
    "__version__",
    "capture",
    "check_model",
    "collect",
    "compare",
    "convert",
    "evaluate_models",
    "load_model",
    "load_whole",
    "profile",
    "prune",
    "rank_by",
    "read_corpus",
    "read_task",
    "replace_attention",
    "sweep",
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
