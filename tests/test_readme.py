"""The README's code runs, says what it claims to say, and names files that exist."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from headlens.behaviour.unembedding import vocabulary_head
from headlens.models import load_model
from headlens.show import attention_of, parse_head, targets_of

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def printed(minilm_path: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """All Python blocks, in order and in one namespace; what they write lies elsewhere."""
    written = tmp_path_factory.mktemp("examples") / "pruned"
    names: dict[str, object] = {}
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        for block in blocks("python"):
            exec(compile(block.replace('"pruned-by-norm"', repr(str(written))), "README.md", "exec"), names)
    assert (written / "model.safetensors").is_file()
    return out.getvalue()


def test_python_examples_run(printed: str) -> None:
    assert re.search(r"^L0H2 1\.00 \[", printed, flags=re.MULTILINE)
    assert "<LayerAttention of encoder layer 5, rows from 0: probs 1 x 12 x 12 x 12>" in printed
    assert "(6, 12, 7, 7) (6, 12, 7, 384)" in printed


def test_comments_show_what_is_printed(printed: str) -> None:
    claims = re.findall(r"print\(mha.*?\)  # (torch\.Size\(.*?\))$", README, flags=re.MULTILINE)
    assert len(claims) == 3
    assert all(claim in printed for claim in claims)


def test_the_tree_is_the_one_that_exists() -> None:
    tree = next(block for block in re.findall(r"^```\n(headlens/.*?)^```", README, flags=re.MULTILINE | re.DOTALL))
    named = {line.split()[0] for line in tree.splitlines() if line.startswith("  ")}
    package = ROOT / "headlens"
    there = {f"{p.name}/" if p.is_dir() else p.name for p in package.iterdir()}
    hidden = {"__init__.py", "__main__.py", "__pycache__/", "py.typed"}
    assert named == there - hidden


def test_links_and_pictures_exist() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert targets
    missing = [target for target in targets if not target.startswith("http") and not (ROOT / target).exists()]
    assert missing == []


def test_the_text_that_is_shown_shows_what_its_comment_says(minilm_path: Path) -> None:
    (line,) = [line for block in blocks("bash") for line in block.splitlines() if line.startswith("headlens show")]
    _, _, model, text, _, head, *_ = shlex.split(line)
    word, _, target = line.partition("# ")[2].partition(";")[0].split()
    shown = attention_of(load_model(model), text, *parse_head(head, 6, 12))
    (best, share), *_ = targets_of(shown, shown.words.index(word))
    assert shown.words[best] == target
    assert share > 0.5


def test_a_model_that_is_ablated_has_a_loss() -> None:
    (line,) = [line for block in blocks("bash") for line in block.splitlines() if "--ablate" in line]
    loaded = load_model(shlex.split(line)[2])
    assert vocabulary_head(loaded)  # raises for a model without one


def test_profiles_that_are_compared_have_been_made_before() -> None:
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    (place,) = [place for place, line in enumerate(lines) if line.startswith("headlens compare")]
    folders = lines[place].split()[2:4]
    assert all(any(f"--out {folder}" in line for line in lines[:place]) for folder in folders)


def test_the_install_line_takes_the_tested_versions() -> None:
    (install,) = [line for block in blocks("bash") for line in block.splitlines() if "-e" in line.split()]
    assert install == "pip install -c constraints.txt -e '.[demo,dev]'"
