"""The tasks of lm-evaluation-harness, run by it on the model given."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from headlens.errors import CorpusError, UnsupportedModel
from headlens.models import LoadedModel

INSTALL = "pip install lm-eval"


def run_lm_eval(
    loaded: LoadedModel, tasks: Sequence[str], *, batch_size: int = 8, limit: int | None = None
) -> dict[str, dict[str, float]]:
    """What lm-evaluation-harness reports of its `tasks`: task -> "acc,none", "acc_stderr,none", ... -> number.

    `limit` is the number of examples of each task (None = all).

    Raises
    ------
    UnsupportedModel
        The package is not installed, or the model has no vocabulary head of its own.
    CorpusError
        No task is named, or the harness cannot run one.
    """
    if not tasks:
        raise CorpusError("Name at least one task of lm-evaluation-harness, such as lambada_openai.")
    lm_eval, wrapper = lm_eval_package()
    if loaded.model.get_output_embeddings() is None:
        raise UnsupportedModel(
            f"{loaded.name!r} was loaded as a {type(loaded.model).__name__}, without a vocabulary head; "
            f"lm-evaluation-harness needs the whole model."
        )
    wrapped = wrapper(pretrained=loaded.model, tokenizer=loaded.require_tokenizer(), batch_size=batch_size)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # tables and progress; what counts is returned
            found = lm_eval.simple_evaluate(model=wrapped, tasks=list(tasks), limit=limit)
    except Exception as reason:  # whatever the harness and the hub raise
        what = (str(reason).strip().splitlines() or [type(reason).__name__])[0].rstrip(".")
        raise CorpusError(
            f"lm-evaluation-harness could not run {', '.join(tasks)}: {what}; `lm-eval ls tasks` lists what it knows."
        ) from reason
    return {task: _numbers(values) for task, values in found["results"].items()}


def lm_eval_package() -> tuple[Any, Any]:
    """The package and its wrapper of models; UnsupportedModel where it is not installed."""
    try:
        return import_module("lm_eval"), import_module("lm_eval.models.huggingface").HFLM
    except ImportError as reason:
        raise UnsupportedModel(
            f"lm-evaluation-harness cannot be imported ({reason}), and its tasks need it: {INSTALL}"
        ) from None


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
