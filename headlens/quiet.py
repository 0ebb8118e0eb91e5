"""Hold back what transformers says while it loads or saves."""

from __future__ import annotations

import io
import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

from huggingface_hub import utils as hub
from transformers.utils import logging as transformers_logging

_SETTINGS = threading.RLock()  # the settings and stderr belong to all threads


@contextmanager
def quiet() -> Iterator[None]:
    """Keep reports, warnings and progress bars of transformers from the user, and put all settings back. One thread at
    a time: of two, the second would put back what the first has set."""
    with _SETTINGS, _hushed():
        yield


@contextmanager
def _hushed() -> Iterator[None]:
    level, hub_level = transformers_logging.get_verbosity(), hub.logging.get_verbosity()
    has_bars, hub_has_bars = transformers_logging.is_progress_bar_enabled(), not hub.are_progress_bars_disabled()
    # stderr as well: the progress bar of .gguf files asks no setting
    with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        transformers_logging.set_verbosity(logging.CRITICAL)
        hub.logging.set_verbosity(logging.CRITICAL)
        transformers_logging.disable_progress_bar()
        try:
            yield
        finally:
            transformers_logging.set_verbosity(level)
            hub.logging.set_verbosity(hub_level)
            if has_bars:
                transformers_logging.enable_progress_bar()  # those of the hub too
            if not hub_has_bars:
                hub.disable_progress_bars()
