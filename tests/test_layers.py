"""Imports go downwards only, and the light modules never import torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "headlens"

# From low to high: a module imports only what stands before it. A folder is one entry. New files are placed here.
ORDER = [
    "errors",
    "files",
    "spreadsheets",
    "manifest",
    "numbers",
    "documents",
    "scores",
    "plan",
    "effects",
    "wording",
    "records",
    "attention",
    "significance",
    "evidence_table",
    "evidence",
    "gold",
    "rivals",
    "corpora",
    "arch",
    "quiet",
    "sizes",
    "words",
    "encode",
    "measure",
    "checkpoints",
    "gates",
    "positions",
    "slices",
    "capture",
    "replace",
    "selfcheck",
    "surgery",
    "conversion",
    "model_facts",
    "models",
    "pooling",
    "analyzers",
    "annotated",
    "tally",
    "analyze",
    "behaviour",
    "importance",
    "evaluation",
    "null_model",
    "trials",
    "word_pass",
    "probe",
    "ensembles",
    "controls",
    "passes",
    "further",
    "roles",
    "plans",
    "examples",
    "differences",
    "comparison",
    "role_files",
    "exports",
    "report",
    "role_targets",
    "find_examples",
    "show",
    "notebook",
    "profile_file",
    "results",
    "on_roles",
    "provenance",
    "profiling",
    "calibration",
    "healing",
    "evaluating",
    "evaluating_words",
    "arms",
    "arms_words",
    "pruning",
    "pruning_words",
    "recipe_trials",
    "converting",
    "converting_words",
    "heal_pruned",
    "heal_pruned_words",
    "rankings",
    "sweeping",
    "collect",
    "testing",
    "cli",
    "__main__",
]
LIGHT = [
    *("errors", "files", "spreadsheets", "documents", "scores", "corpora", "significance", "report"),
    *("numbers", "wording", "evidence_table", "evidence", "gold", "rivals", "roles"),
    *("manifest", "effects", "plan", "plans", "examples", "differences", "comparison", "role_files", "exports"),
]
HEAVY = {"torch", "transformers"}

# Imports that may point upwards, and why; they stand inside functions (at the top they would be circular).
UPWARD = {
    ("attention", "replace"): "the constructors from other libraries' weights are methods of the layer",
}


def test_imports_go_downwards() -> None:
    assert broken_rules(PACKAGE) == []


def test_every_exception_is_needed() -> None:
    upward = {(here, there) for here, there, _ in internal_imports(PACKAGE) if is_upward(here, there)}
    assert upward == set(UPWARD)


@pytest.mark.parametrize(
    ("file", "source", "message"),
    [
        ("errors.py", "from headlens.scores import ScoreTable", "errors imports scores, which stands above it"),
        ("errors.py", "from .scores import ScoreTable", "errors imports scores, which stands above it"),
        ("errors.py", "def f():\n    import headlens.scores", "errors imports scores, which stands above it"),
        ("errors.py", "from headlens import scores", "errors imports scores, which stands above it"),
        ("corpora/text.py", "from .. import analyze", "corpora imports analyze, which stands above it"),
        ("cli.py", "from headlens import load_model", "cli imports load_model, which has no place in ORDER"),
        ("newcomer.py", "", "newcomer has no place in ORDER"),
        ("scores.py", "def f():\n    import torch.nn", "scores must stay light and imports torch"),
        ("report/html.py", "from transformers import BertModel", "report must stay light and imports transformers"),
    ],
)
def test_a_planted_import_is_found(tmp_path: Path, file: str, source: str, message: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(source)
    assert broken_rules(tmp_path) == [message]


def test_allowed_imports_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "corpora").mkdir()
    (tmp_path / "corpora" / "text.py").write_text("from .other import a\nfrom ..documents import Document\nimport csv")
    (tmp_path / "corpora" / "__init__.py").write_text(
        "from .text import b\nfrom headlens import documents, __version__"
    )
    (tmp_path / "__init__.py").write_text("from headlens.cli import main")
    assert broken_rules(tmp_path) == []


def test_importing_headlens_imports_nothing_heavy() -> None:
    assert loaded_by("import headlens", "torch", "transformers", "numpy", "pandas", "scipy") == []


def test_the_light_modules_work_without_torch() -> None:
    modules = [f"headlens.{name}" for name in LIGHT if (PACKAGE / name).exists() or (PACKAGE / f"{name}.py").exists()]
    assert loaded_by(f"import {', '.join(modules)}", *sorted(HEAVY)) == []


# ------------------------------------------------------------------------------------------------------------- helpers


def broken_rules(package: Path) -> list[str]:
    broken = [f"{here} has no place in ORDER" for here in rooms(package) if here not in ORDER]
    for here, there, _ in internal_imports(package):
        if there not in ORDER:
            broken.append(f"{here} imports {there}, which has no place in ORDER")
        elif is_upward(here, there) and (here, there) not in UPWARD:
            broken.append(f"{here} imports {there}, which stands above it")
    for here, file in rooms_and_files(package):
        heavy = {target.split(".")[0] for target in imports(file, package)} & HEAVY if here in LIGHT else set()
        broken += [f"{here} must stay light and imports {name}" for name in sorted(heavy)]
    return sorted(set(broken))


def is_upward(here: str, there: str) -> bool:
    return here in ORDER and there in ORDER and ORDER.index(there) > ORDER.index(here)


def rooms(package: Path) -> set[str]:
    return {room for room, _ in rooms_and_files(package)}


def rooms_and_files(package: Path) -> Iterator[tuple[str, Path]]:
    """Every file with the entry of ORDER that it belongs to, but for the front door, which may import anything."""
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(package).parts
        if parts != ("__init__.py",):
            yield parts[0].removesuffix(".py"), file


def internal_imports(package: Path) -> Iterator[tuple[str, str, Path]]:
    for here, file in rooms_and_files(package):
        for target in imports(file, package):
            parts = target.split(".")
            if parts[0] == "headlens" and len(parts) > 1 and parts[1] not in (here, "__version__"):
                yield here, parts[1], file


def imports(file: Path, package: Path) -> Iterator[str]:
    """Absolute dotted names of all that a file imports, inside functions too."""
    folder = ["headlens", *file.relative_to(package).parts[:-1]]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = folder[: len(folder) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def loaded_by(statement: str, *modules: str) -> list[str]:
    """Those of `modules` that are imported after a statement in a fresh process."""
    code = f"{statement}\nimport sys\nprint(*[name for name in {modules!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
