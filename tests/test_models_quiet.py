"""Loading says nothing, whether it works out or not, and leaves every setting as it was, in threads too."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import transformers
from safetensors.torch import load_file, save_file
from transformers.utils import logging as transformers_logging

from headlens.errors import UnsupportedModel
from headlens.models import load_model


def a_weight_missing(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.1.attention.self.query.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def other_sizes(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 40}))


@pytest.mark.parametrize("damage", [None, a_weight_missing, other_sizes], ids=["loads", "refused", "raises"])
@pytest.mark.parametrize(("bars", "hub_bars"), [(True, True), (True, False), (False, False)])
def test_loading_is_silent_and_gives_the_settings_back(
    tiny_bert: Path,
    messages: list[logging.LogRecord],
    capfd: pytest.CaptureFixture[str],
    damage: Callable[[Path], None] | None,
    bars: bool,
    hub_bars: bool,
) -> None:
    if damage:
        damage(tiny_bert)
    level = transformers_logging.get_verbosity()
    set_bars(bars, hub_bars)
    with nullcontext() if damage is None else pytest.raises(UnsupportedModel):
        load_model(str(tiny_bert))
    assert capfd.readouterr() == ("", "")
    assert messages == []
    assert transformers_logging.get_verbosity() == level
    assert bars_shown() == (bars, hub_bars)


def test_what_asks_no_setting_is_silent_too(
    tiny_bert: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shown = []

    def noisy(*args: object, **options: object) -> object:
        shown.append(bars_shown())
        sys.stderr.write("50%")  # as the reader of .gguf files does
        warnings.warn("no setting stops me", UserWarning, stacklevel=2)
        return load(*args, **options)

    load = transformers.AutoModel.from_pretrained
    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", noisy)
    load_model(str(tiny_bert))
    assert capfd.readouterr() == ("", "")
    assert shown == [(False, False)]


def test_threads_give_the_settings_back(tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, has_begun = [0.1, 0.4], threading.Event()  # seconds: the second begins within the first, and ends after it

    def slow(*args: Any, **options: Any) -> Any:
        has_begun.set()
        time.sleep(waits.pop(0))
        return load(*args, **options)

    load = transformers.AutoModel.from_pretrained
    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", slow)
    stderr, level, filters = sys.stderr, transformers_logging.get_verbosity(), list(warnings.filters)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(load_model, str(tiny_bert), check=False)
        assert has_begun.wait(10)
        second = pool.submit(load_model, str(tiny_bert), check=False)
    left = sys.stderr
    sys.stderr = stderr  # put back, so that a failure does not silence the tests that come after it
    assert left is stderr
    assert (transformers_logging.get_verbosity(), warnings.filters) == (level, filters)
    assert first.result().provenance == second.result().provenance


def set_bars(bars: bool, hub_bars: bool) -> None:
    transformers_logging.enable_progress_bar() if bars else transformers_logging.disable_progress_bar()
    if not hub_bars:
        huggingface_hub.utils.disable_progress_bars()


def bars_shown() -> tuple[bool, bool]:
    """Whether transformers, and the hub, would show progress bars."""
    return transformers_logging.is_progress_bar_enabled(), not huggingface_hub.utils.are_progress_bars_disabled()
