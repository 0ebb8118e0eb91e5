"""The example reports under reports/: each page is what its numbers give, and the smallest can be made again."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headlens import Profile
from headlens.role_files import RoleFile

ROOT = Path(__file__).parents[1]
NAMES = ("tiny-gpt2", "tiny-bert", "minilm")
MOST_BYTES = 4 << 20  # of a folder


@pytest.fixture(scope="module")
def script() -> Iterator[Any]:
    sys.path.insert(0, str(ROOT / "scripts"))
    yield importlib.import_module("make_reports")
    sys.path.remove(str(ROOT / "scripts"))


@pytest.mark.parametrize("name", NAMES)
def test_the_page_is_what_its_numbers_give(name: str) -> None:
    """Else: python scripts/make_reports.py --pages"""
    folder = ROOT / "reports" / name
    assert (folder / "report.html").read_text(encoding="utf-8") == Profile.load(folder).report().html


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_is_small_and_has_its_roles(name: str) -> None:
    folder = ROOT / "reports" / name
    assert sum(path.stat().st_size for path in folder.rglob("*")) < MOST_BYTES
    assert RoleFile.load(folder).model.name == name
    assert (folder / "figures" / "role-map.png").exists()


@pytest.mark.slow
def test_the_smallest_can_be_made_again(script: Any, tmp_path: Path) -> None:
    script.make("tiny-bert", tmp_path)
    made, there = Profile.load(tmp_path), Profile.load(ROOT / "reports" / "tiny-bert")
    assert made.scores.names == there.scores.names
    np.testing.assert_allclose(made.scores.values, there.scores.values, atol=1e-4)  # float32, on another machine
    labels = [[of.label(*head) for head in np.ndindex(4, 8)] for of in (made.roles, there.roles)]
    ids = [[one.role.id if one else "" for one in of] for of in labels]
    assert ids[0] == ids[1]
