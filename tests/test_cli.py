"""The command line as a person meets it: in a process of its own, by its output and exit code."""

from __future__ import annotations

import copy
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.core
import typer.main
from report_pages import PROVENANCE, planted
from typer.testing import CliRunner

from headlens.cli import app
from headlens.errors import HeadlensError
from headlens.results import Profile
from headlens.scores import ScoreTable

HEADLENS = [sys.executable, "-m", "headlens"]


def run(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*HEADLENS, *map(str, arguments)], capture_output=True, text=True, timeout=120, cwd=cwd)


def refusal(*arguments: str | Path) -> str:
    """The one sentence of a command that fails, run in this process: a new one would import torch each time."""
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 1
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, done.stderr
    return lines[0]


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory, minilm_path: Path) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("profile")
    (folder / "a.txt").write_text("The dog saw the cat.\nShe slept, and he ran.\n", encoding="utf-8")
    (folder / "b.txt").write_text("A long day ended.\n", encoding="utf-8")
    done = run("profile", "minilm", "--corpus", folder / "a.txt", folder / "b.txt", "--out", folder / "out")
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_profile_writes_its_files_and_says_what_it_found(first_run: tuple[Path, str]) -> None:
    folder, said = first_run
    assert {p.name for p in (folder / "out").iterdir()} == {
        "scores.parquet",
        "scores.csv",
        "profile.json",
        "roles.json",
        "report.html",
        "figures",
        "examples.json",
        "similarity.parquet",
        "similarity.csv",
    }
    facts = json.loads((folder / "out" / "profile.json").read_text(encoding="utf-8"))
    assert facts["corpus"]["documents"] == 3  # both files
    assert facts["command"].startswith("headlens profile minilm --corpus")
    assert "Self-check passed" in said
    assert "L0H2 attends to the previous token" in said
    assert "report.html" in said


def test_a_failed_run_leaves_the_last_good_result(first_run: tuple[Path, str]) -> None:
    folder, _ = first_run
    before = contents(folder / "out")
    refusal("profile", "minilm", "--corpus", folder / "none.txt", "--out", folder / "out")
    assert contents(folder / "out") == before


def test_ctrl_c_says_so_and_writes_nothing(tmp_path: Path, minilm_path: Path) -> None:
    corpus = tmp_path / "long.txt"
    corpus.write_text("The dog that chased the cat slept in the sun all day long.\n" * 30_000, encoding="utf-8")
    command = [*HEADLENS, "profile", "minilm", "--corpus", str(corpus), "--out", str(tmp_path / "out")]
    # a shell starts background jobs with SIGINT ignored, and children inherit that
    restore = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **restore) as process:
        time.sleep(8)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    *held, last = said.splitlines()
    assert (last, process.returncode) == ("headlens: interrupted; nothing was written.", 130)
    assert held in ([], ["headlens: interrupted; it stops as soon as its libraries are loaded."])  # on a slow machine
    assert not (tmp_path / "out").exists()


def test_an_unknown_model() -> None:
    said = refusal("profile", "no-such-model")
    assert "no-such-model" in said
    assert "minilm" in said


def test_an_error_in_a_process_of_its_own_is_one_line_without_traceback() -> None:
    done = run("profile", "no-such-model")
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert not done.stdout


def test_a_folder_without_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    assert "no weights" in refusal("profile", tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\x00\x01\x02", "no plain text"), (b"", "empty"), (b" \n\n", "empty"), (b"caf\xe9\n", "UTF-8"), (None, "x.txt")],
)
def test_a_corpus_that_is_none(tmp_path: Path, minilm_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "x.txt"
    if content is not None:
        file.write_bytes(content)
    said = refusal("profile", "minilm", "--corpus", file, "--out", tmp_path / "out")
    assert "x.txt" in said
    assert message in said
    assert not (tmp_path / "out").exists()


def test_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept", encoding="utf-8")
    said = refusal("profile", "minilm", "--out", tmp_path / "file" / "out")
    assert "cannot be written" in said
    assert (tmp_path / "file").read_text(encoding="utf-8") == "kept"


@pytest.mark.slow
def test_a_text_longer_than_the_model_takes_is_cut_and_said_once(tmp_path: Path, minilm_path: Path) -> None:
    file = tmp_path / "long.txt"
    file.write_text("word " * 1100 + "\nshort one\n", encoding="utf-8")
    without = [word for part in ("circuits", "similarity", "repetition") for word in ("--without", part)]
    done = run("profile", "minilm", "--corpus", file, "--out", tmp_path / "out", *without)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("1 of 2 documents, into 3 windows") == 1
    assert not done.stderr.strip()


def test_wrong_words_are_named(tmp_path: Path) -> None:
    assert "float12" in refusal("profile", "minilm", "--dtype", "float12")
    assert "line, paragraph" in refusal("profile", "minilm", "--unit", "page")
    assert "also.txt" in refusal("profile", "minilm", "also.txt")
    assert "nodevice" in refusal("profile", "minilm", "--device", "nodevice")


def test_where_it_writes_without_out(tmp_path: Path) -> None:
    from headlens.cli.profile import folder_for

    (tmp_path / "mine").mkdir()
    assert folder_for(None, "org/name") == Path("profiles/name")
    assert folder_for(None, str(tmp_path / "mine" / "..")) == Path("profiles") / tmp_path.name
    assert folder_for(Path("~/x"), "m") == Path.home() / "x"


def test_running_out_of_memory_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import headlens.profiling

    def full(*_: object, **__: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")

    monkeypatch.setattr(headlens.profiling, "profile", full)
    assert "--batch-tokens" in refusal("profile", "minilm")


def test_ctrl_c_inside_an_import_is_still_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    import headlens.profiling

    def importing(*_: object, **__: object) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as interrupt:
            raise ModuleNotFoundError("Could not import module 'PreTrainedModel'") from interrupt

    monkeypatch.setattr(headlens.profiling, "profile", importing)
    done = CliRunner().invoke(app, ["profile", "minilm"])
    assert (done.exit_code, done.stderr.strip()) == (130, "headlens: interrupted; nothing was written.")


def test_check(minilm_path: Path) -> None:
    done = run("check", "minilm")
    assert done.returncode == 0
    assert done.stdout.startswith("Self-check passed: 7 laws over 6 layers")


def test_help_answers_at_once() -> None:
    start = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime  # of the processor: other programs do not stretch it
    done = run("profile", "--help")
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - start
    assert "--corpus" in done.stdout
    assert "--batch-tokens" in done.stdout
    # a third of a second; the bound only has to tell it from a start with torch, which takes seconds
    assert seconds < 1.5
    heavy = ("torch", "transformers", "pandas", "numpy", "rich", "jinja2", "seaborn")
    imported = run_python(f"import sys, headlens.cli; print(*[name for name in {heavy} if name in sys.modules])")
    assert imported.split() == []


def test_version_is_that_of_the_package() -> None:
    import headlens

    assert run("--version").stdout.strip() == f"headlens {headlens.__version__}"


def run_python(code: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONSTARTUP"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    ).stdout


def test_parts_can_be_left_out_and_unknown_ones_are_refused(tmp_path: Path, minilm_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The dog sleeps near the river.\nShe sees it.\n")
    left_out = [word for part in ("repetition", "circuits", "similarity") for word in ("--without", part)]
    result = CliRunner().invoke(app, ["profile", "minilm", str(text), "--out", str(tmp_path / "out"), *left_out])
    assert result.exit_code == 0
    families = {metric.family for metric in ScoreTable.load(tmp_path / "out")}
    assert families == {"position", "surface", "contribution"}
    assert not (tmp_path / "out" / "similarity.parquet").exists()
    refused = refusal("profile", "minilm", text, "--out", tmp_path / "out", "--with", "magic")
    assert "no part of a profile called magic" in refused


def commands_of(group: typer.core.TyperGroup, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if isinstance(command, typer.core.TyperGroup):
            yield from commands_of(command, (*path, name))
        else:
            yield (*path, name)


@pytest.mark.parametrize("command", list(commands_of(typer.main.get_group(app))), ids=" ".join)
def test_the_help_of_every_command_has_an_example_of_it(command: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, [*command, "--help"])
    assert done.exit_code == 0
    said = " ".join(done.stdout.split())
    assert re.search(rf"Examples?: headlens {' '.join(command)} ", said)


@pytest.mark.parametrize(
    ("given", "is_asked"),
    [([], False), (["--ablate"], True), (["--with", "ablation"], True), (["--ablate", "--with", "ablation"], True)],
)
def test_taking_heads_out_is_a_part_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: list[str], is_asked: bool
) -> None:
    import headlens.profiling

    asked: list[set[str]] = []

    def note(*_: object, parts: set[str], **__: object) -> None:
        asked.append(parts)
        raise HeadlensError("That is enough.")

    monkeypatch.setattr(headlens.profiling, "profile", note)
    assert refusal("profile", "minilm", "--out", tmp_path / "out", *given) == "headlens: That is enough."
    assert ["ablation" in parts for parts in asked] == [is_asked]


def test_a_profile_can_be_exported_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import headlens.profiling

    monkeypatch.setattr(headlens.profiling, "profile", lambda *_, **__: Profile(planted(), copy.deepcopy(PROVENANCE)))
    plain = CliRunner().invoke(app, ["profile", "minilm", "--out", str(tmp_path / "plain")])
    more = CliRunner().invoke(app, ["profile", "minilm", "--out", str(tmp_path / "more"), "--export", "csv,roles"])
    assert (plain.exit_code, more.exit_code) == (0, 0)
    files, of_both = ({path.name for path in (tmp_path / name).iterdir()} for name in ("plain", "more"))
    assert "head-scores.csv" not in files
    assert of_both == files | {"head-scores.csv", "head-roles.csv", "roles.json"}


@pytest.mark.parametrize(
    ("wanted", "message"), [("xlsx", "got 'xlsx'"), ("csv,bertviz", "use `headlens export DIR --to bertviz --text`")]
)
def test_an_export_that_cannot_be_is_refused_before_the_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wanted: str, message: str
) -> None:
    import headlens.profiling

    monkeypatch.setattr(headlens.profiling, "profile", lambda *_, **__: pytest.fail("the model was run"))
    assert message in refusal("profile", "minilm", "--out", tmp_path / "out", "--export", wanted)
