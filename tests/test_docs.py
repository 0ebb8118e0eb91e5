"""The Python in the documents runs as it is written, block after block, in a folder that has what they name."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import headlens
from headlens.conversion.merging import METHODS as MERGING
from headlens.conversion.recipes import GROUPINGS
from headlens.corpora.grammar import grammar_texts
from headlens.importance.methods import METHODS

DOCS = Path(__file__).parents[1] / "docs"
DOCUMENTS = sorted(path.name for path in DOCS.glob("*.md"))


def blocks(name: str, language: str) -> list[str]:
    text = (DOCS / name).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the documents read: two profiles of a few texts, under the names that are used there, and roles.json."""
    room = tmp_path_factory.mktemp("docs")
    texts = [text.document for text, _ in zip(grammar_texts(seed=1), range(4), strict=False)]
    profile = headlens.profile("tiny-gpt2", texts, parts=())
    for name in ("tiny-gpt2", "a", "b"):
        profile.save(room / "reports" / name)
    (example,) = blocks("roles-file.md", "json")
    (room / "roles.json").write_text(example, encoding="utf-8")
    return room


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, list[str]]]:
    """What BertViz is given, which need not be installed."""
    shown: list[tuple[Any, list[str]]] = []
    bertviz = ModuleType("bertviz")
    bertviz.head_view = lambda attention, tokens: shown.append((attention, tokens))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bertviz", bertviz)
    return shown


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], str]:
    """All Python blocks of a document in one namespace; the namespace, and what they printed."""
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        for block in blocks(name, "python"):
            exec(compile(block, name, "exec"), names)
    return names, out.getvalue()


def test_every_document_is_looked_at() -> None:
    assert DOCUMENTS == ["conversion.md", "grammar.md", "pruning.md", "roles-file.md", "scores.md"]


def test_all_methods_of_ranking_and_of_merging_stand_in_their_documents() -> None:
    pruning, conversion = ((DOCS / name).read_text(encoding="utf-8") for name in ("pruning.md", "conversion.md"))
    told = {
        name: (help, source) for name, help, source in re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", pruning, re.M)
    }
    for name, method in METHODS.items():
        assert told.get(name) == (method.help, method.source)
    assert all(f"`{name}`" in conversion for name in (*MERGING, *GROUPINGS))


def test_the_grammar_prints_a_text_what_is_forced_in_it_and_the_bound(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, printed = run("grammar.md", folder, monkeypatch)
    text, forced, bound = printed.splitlines()
    assert text[-1] in ".!?"
    assert forced.startswith("Forced(")
    assert float(bound) > 1


def test_two_runs_are_laid_side_by_side(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names, _ = run("scores.md", folder, monkeypatch)
    assert len(names["both"]) == len(names["before"])
    assert names["both"]["change"].abs().max() == 0  # both are one profile


def test_exports_and_bertviz_get_what_the_document_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch, drawn: list[tuple[Any, list[str]]]
) -> None:
    names, _ = run("roles-file.md", folder, monkeypatch)
    assert names["roles"].with_role("previous_token", firm_only=True) == [(0, 0)]
    written = {path.name for path in (folder / "exported").iterdir()}
    assert {"head-scores.csv", "head-roles.json", "roles.json"} <= written
    (from_file, tokens), (from_memory, again) = drawn
    assert tokens == again == names["collected"][0].tokens
    assert [layer.shape for layer in from_file] == [(1, 8, len(tokens), len(tokens))] * 4
    assert all(one.equal(other) for one, other in zip(from_file, from_memory, strict=True))
