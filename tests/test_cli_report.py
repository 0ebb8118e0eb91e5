"""Commands that read the folder of a profile, `headlens report`, `compare` and `export`: what they print and write."""

from __future__ import annotations

import copy
import errno
import json
import shutil
import subprocess
import sys
import webbrowser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from report_pages import PROVENANCE, at, planted, read
from typer.testing import CliRunner, Result

import headlens
from headlens.cli import app
from headlens.cli.compare import names_of
from headlens.errors import OutputError
from headlens.results import Profile
from headlens.scores import ScoreTable
from headlens.testing.planted import planted_gpt2


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)])


def said_by(*arguments: object) -> list[str]:
    """Lines of a command that does what it is asked."""
    done = run(*arguments)
    assert done.exit_code == 0, (done.stderr, done.exception)
    assert not done.stderr
    return done.stdout.splitlines()


def refusal(*arguments: object) -> str:
    """The one sentence of a command that does not."""
    done = run(*arguments)
    assert isinstance(done.exception, SystemExit), done.exception
    assert (done.exit_code, done.stdout) == (1, "")
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def save(folder: Path, scores: ScoreTable) -> Path:
    Profile(scores, copy.deepcopy(PROVENANCE)).save(folder)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def change_facts(folder: Path, **facts: object) -> None:
    """In profile.json; None takes an entry out."""
    path = folder / "profile.json"
    changed = json.loads(path.read_text(encoding="utf-8")) | facts
    path.write_text(json.dumps({key: value for key, value in changed.items() if value is not None}), encoding="utf-8")


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two profiles. In the second L0H2 no longer attends to the previous token; all else is alike."""
    place = tmp_path_factory.mktemp("profiles")
    changed = planted(**{"position.mass[-1]": at(0.04, {(1, 0): 0.71})})
    return save(place / "before", planted()), save(place / "after", changed)


@pytest.fixture
def folder(saved: tuple[Path, Path], tmp_path: Path) -> Path:
    """A profile to be damaged."""
    return Path(shutil.copytree(saved[0], tmp_path / "before"))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    addresses: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: bool(addresses.append(address)) or True)
    return addresses


# -------------------------------------------------------------------------------------------------------------- report


def test_the_report_made_again_is_the_same_and_nothing_else_changes(folder: Path) -> None:
    before = contents(folder)
    for file in ("report.html", "roles.json", "figures/role-map.svg"):
        (folder / file).write_text("damaged", encoding="utf-8")
    (folder / "figures" / "similarity-map.png").touch()  # of an earlier profile
    assert said_by("report", folder) == [f"Report: {folder / 'report.html'}"]
    assert contents(folder) == before


def test_a_report_that_is_gone_comes_back(folder: Path) -> None:
    before = contents(folder)
    (folder / "report.html").unlink()
    said_by("report", folder)
    assert contents(folder) == before


def test_the_report_is_made_of_what_the_folder_holds(folder: Path) -> None:
    change_facts(folder, model={"name": "Renamed"})
    said_by("report", folder)
    assert "Renamed" in read((folder / "report.html").read_text(encoding="utf-8")).one("title").text


def test_the_method_gives_the_page_and_makes_the_folder(folder: Path, tmp_path: Path) -> None:
    page = Profile.load(folder).write_report(tmp_path / "new" / "place")
    assert page == tmp_path / "new" / "place" / "report.html"
    assert page.read_bytes() == (folder / "report.html").read_bytes()


def test_a_profile_that_says_little_still_gets_its_report(folder: Path) -> None:
    """As of an earlier version, which wrote fewer facts and files."""
    change_facts(folder, **dict.fromkeys(PROVENANCE), has_evidence=None, has_similarity=None)
    for file in contents(folder):
        if file not in ("profile.json", "scores.parquet"):
            (folder / file).unlink()
    said_by("report", folder)
    assert "L0H2" in (folder / "report.html").read_text(encoding="utf-8")
    assert {"roles.json", "figures/role-map.svg"} < contents(folder).keys()


def test_another_schema_names_the_version_that_is_needed(folder: Path) -> None:
    before = contents(folder)["report.html"]
    change_facts(folder, schema="headlens.profile/7", headlens="3.2.1")
    said = refusal("report", folder)
    assert "'headlens.profile/7'" in said
    assert f"headlens {headlens.__version__} reads 'headlens.profile/1'" in said
    assert "use headlens 3.2.1, which wrote it, or run the profile again" in said
    assert contents(folder)["report.html"] == before


def test_a_schema_of_an_unknown_version_is_refused_all_the_same(folder: Path) -> None:
    change_facts(folder, schema="headlens.profile/7", headlens=None)
    assert "use the headlens that wrote it" in refusal("report", folder)


@pytest.mark.parametrize("command", ["report", "compare", "export"])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("no folder", "profile.json is not there; give the folder that `headlens profile --out` wrote"),
        ("a file", "profile.json is not there; give the folder"),
        ("an empty folder", "profile.json is not there; give the folder"),
        ("no text", "profile.json cannot be read"),
        ("half a file", "profile.json cannot be read"),
        ("too deep", "profile.json cannot be read"),
        ("a folder in its place", "profile.json cannot be read (Is a directory)"),
        ("no scores", "scores.parquet is not there"),
        ("broken scores", "scores.parquet cannot be read"),
    ],
)
def test_what_is_no_profile_is_refused(folder: Path, tmp_path: Path, command: str, kind: str, message: str) -> None:
    bad = tmp_path / "bad"
    if kind == "a file":
        bad.write_text("x", encoding="utf-8")
    elif kind != "no folder":
        bad.mkdir()
    broken = {"no text": b"\xff\xfe{", "half a file": b'{"schema": ', "too deep": b"[" * 100_000}
    if kind in broken:
        (bad / "profile.json").write_bytes(broken[kind])
    elif kind == "a folder in its place":
        (bad / "profile.json").mkdir()
    elif kind.endswith("scores"):
        (bad / "profile.json").write_bytes((folder / "profile.json").read_bytes())
        if kind == "broken scores":
            (bad / "scores.parquet").write_bytes(b"PAR1")
    more = {"report": [], "compare": [folder, "--out", tmp_path / "out"], "export": ["--to", "csv"]}[command]
    assert message in refusal(command, bad, *more)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("trouble", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted; the report that was there stays."),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "cannot be written (No space left on device)"),
    ],
)
def test_a_write_that_fails_leaves_the_old_report(
    folder: Path, monkeypatch: pytest.MonkeyPatch, trouble: BaseException, code: int, message: str
) -> None:
    def fail(_: Path) -> None:
        raise trouble

    (folder / "report.html").write_text("old", encoding="utf-8")
    before = contents(folder)
    monkeypatch.setattr("headlens.files._flush_to_disk", fail)
    done = run("report", folder)
    assert done.exit_code == code
    assert message in done.stderr
    assert contents(folder) == before


def test_the_report_needs_no_torch(folder: Path) -> None:
    code = (
        f"import sys; sys.argv = ['headlens', 'report', {str(folder)!r}]\n"
        "from headlens.cli import app\napp(standalone_mode=False)\n"
        "print('torch' in sys.modules, 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False False"


def test_the_page_is_opened_on_request(folder: Path, opened: list[str]) -> None:
    said_by("report", folder)
    assert opened == []
    said_by("report", folder, "--open")
    assert opened == [(folder / "report.html").as_uri()]


def test_without_a_browser_the_report_is_made_and_it_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda _: False)
    (folder / "report.html").unlink()
    done = run("report", folder, "--open")
    assert (done.exit_code, (folder / "report.html").exists()) == (0, True)
    assert done.stderr == f"No browser was found; open {folder / 'report.html'} yourself.\n"


# ------------------------------------------------------------------------------------------------------------- compare


@pytest.fixture
def after(saved: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved[1], tmp_path / "after"))


def test_what_changed_is_told_and_written(
    folder: Path, after: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = said_by("compare", folder, after)
    assert lines[0] == "before and after"
    assert lines[-1] == f"Comparison: {Path('comparisons/before-after/comparison.html')}"
    (told,) = [line for line in lines if "L0H2" in line]
    assert told.startswith("- Previous token: ")
    assert "from .997 to .040" in told
    assert {path.name for path in (tmp_path / "comparisons" / "before-after").iterdir()} == {
        "comparison.html",
        "comparison.csv",
        "roles.csv",
    }
    roles = pd.read_csv(tmp_path / "comparisons" / "before-after" / "roles.csv")
    lost = roles[(roles["of"] == "head") & (roles["fate"] == "lost")]
    assert {(row.before, row.after, row.role, row.layer, row.head) for row in lost.itertuples()} == {
        ("before", "after", "previous_token", 0, 2)
    }


def test_each_profile_is_compared_with_the_first(folder: Path, after: Path, tmp_path: Path, opened: list[str]) -> None:
    third = shutil.copytree(folder, tmp_path / "third")
    lines = said_by("compare", folder, after, third, "--out", tmp_path / "out", "--open")
    assert [line for line in lines if not line.startswith(("- ", "Note: ", "Comparison: "))] == [
        "before and after",
        "before and third",
    ]
    assert opened == [(tmp_path / "out" / "comparison.html").as_uri()]


def test_what_stands_in_the_way_of_a_comparison_is_noted(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "other")
    files = [{"name": "other.txt", "sha256": "cd34", "bytes": 9}]
    change_facts(tmp_path / "other", corpus=PROVENANCE["corpus"] | {"files": files})
    notes = [
        line for line in said_by("compare", folder, tmp_path / "other", "--out", tmp_path / "out") if "Note" in line
    ]
    assert any("other.txt" in note for note in notes)


def test_the_same_folder_twice_is_refused(folder: Path, tmp_path: Path) -> None:
    detour = folder / ".." / folder.name
    assert refusal("compare", folder, detour) == (
        f"headlens: {folder} and {detour} are the same folder; name two that differ."
    )
    (tmp_path / "link").symlink_to(folder)
    assert "are the same folder" in refusal("compare", folder, tmp_path / "link")


def test_a_single_profile_is_no_comparison(folder: Path, tmp_path: Path) -> None:
    assert "at least two profiles, got 1" in refusal("compare", folder, "--out", tmp_path / "out")


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (["runs/a", "runs/b"], ["a", "b"]),
        (["one/minilm", "two/minilm"], ["one/minilm", "two/minilm"]),
        (["one/x/minilm", "two/x/minilm", "c"], ["one/x/minilm", "two/x/minilm", "{}/c"]),
        (["a", "a/b/.."], None),
    ],
)
def test_a_profile_is_called_by_as_much_of_its_path_as_is_needed(
    tmp_path: Path, folders: list[str], names: list[str] | None
) -> None:
    paths = [tmp_path / folder for folder in folders]
    if names is None:
        with pytest.raises(OutputError, match="same folder"):
            names_of(paths)
    else:
        above = f"{tmp_path.parent.name}/{tmp_path.name}"
        assert names_of(paths) == [name.format(above) for name in names]


def test_a_comparison_that_cannot_be_written_is_refused_first(folder: Path, after: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept", encoding="utf-8")
    assert "choose another place with --out" in refusal("compare", folder, after, "--out", tmp_path / "file" / "x")


# -------------------------------------------------------------------------------------------------------------- export


def test_formats_may_be_repeated_or_listed(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    lines = said_by("export", folder, "--to", "csv,roles", "--to", "json", "--to", "csv", "--out", out)
    assert sorted(lines) == sorted(str(path) for path in out.iterdir())
    assert {path.name for path in out.iterdir()} == {
        "head-scores.csv",
        "head-roles.csv",
        "head-scores.json",
        "head-roles.json",
        "roles.json",
    }
    written = pd.read_csv(out / "head-scores.csv")
    (value,) = written[(written["metric"] == "position.mass[-1]") & (written["layer"] == 0) & (written["head"] == 2)][
        "value"
    ]
    assert value == pytest.approx(0.997, abs=1e-12)


def test_without_out_it_stands_beside_the_scores(folder: Path) -> None:
    assert said_by("export", folder, "--to", "roles") == [str(folder / "roles.json")]
    assert json.loads((folder / "roles.json").read_text(encoding="utf-8"))["schema"] == "headlens.roles/1"


@pytest.fixture(scope="module")
def planted_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A GPT-2 whose head L0H1 attends to the previous token and L0H5 to the first, and a text for it."""
    made = planted_gpt2()
    path = tmp_path_factory.mktemp("planted")
    made.model.save_pretrained(path)
    made.tokenizer.save_pretrained(path)
    return path, " ".join(made.tokenizer.convert_ids_to_tokens([5, 6, 7]))


def test_bertviz_gets_the_attention_of_the_texts(folder: Path, planted_model: tuple[Path, str], tmp_path: Path) -> None:
    path, text = planted_model
    out = tmp_path / "out"
    said_by("export", folder, "--to", "bertviz", "--model", path, "--text", text, "--text", text[:4], "--out", out)
    listed = json.loads((out / "bertviz.json").read_text(encoding="utf-8"))
    assert [entry["text"] for entry in listed] == [text, text[:4]]
    tokens = listed[0]["tokens"]
    assert tokens[-3:] == text.split()
    with np.load(out / "bertviz.npz") as arrays:
        attention = arrays[listed[0]["array"]]
    assert attention.shape == (2, 1, 6, len(tokens), len(tokens))
    assert (np.diagonal(attention[0, 0, 1], offset=-1) > 0.99).all()
    assert (attention[0, 0, 5, :, 0] > 0.99).all()


def test_the_model_is_the_one_that_the_profile_names(folder: Path, planted_model: tuple[Path, str]) -> None:
    path, text = planted_model
    change_facts(folder, model={"name": str(path)})
    assert said_by("export", folder, "--to", "bertviz", "--text", text)[-1] == str(folder / "bertviz.json")


def test_a_model_with_other_weights_is_refused(folder: Path, planted_model: tuple[Path, str], tmp_path: Path) -> None:
    path, text = planted_model
    change_facts(folder, model={"name": str(path), "weights_sha256": "00"})
    said = refusal("export", folder, "--to", "bertviz", "--text", text, "--out", tmp_path / "out")
    assert "has other weights than the model of the profile; name that one with --model" in said
    assert not (tmp_path / "out").exists()


def test_a_model_that_is_not_found_can_be_named(folder: Path) -> None:
    change_facts(folder, model={"name": "gone-for-good"})
    said = refusal("export", folder, "--to", "bertviz", "--text", "a")
    assert "gone-for-good" in said
    assert "--model" in said
    change_facts(folder, model={})
    assert "--model" in refusal("export", folder, "--to", "bertviz", "--text", "a")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--to", "xlsx"], "exported to parquet, csv, json, roles, bertviz; got 'xlsx'"),
        (["--to", "csv,"], "got an empty name"),
        (["--to", ","], "got an empty name"),
        (["--to", "bertviz"], "give one with --text"),
        (["--to", "csv", "--text", "a"], "--text and --model are for --to bertviz"),
        (["--to", "csv", "--model", "minilm"], "--text and --model are for --to bertviz"),
    ],
)
def test_an_export_that_makes_no_sense_is_refused(folder: Path, options: list[str], message: str) -> None:
    before = contents(folder)
    assert message in refusal("export", folder, *options)
    assert contents(folder) == before


def test_an_export_needs_a_place_to_write(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept", encoding="utf-8")
    assert "choose another place with --out" in refusal("export", folder, "--to", "csv", "--out", tmp_path / "file")


# -------------------------------------------------------------------------------------------------------------- usage


@pytest.mark.parametrize(
    "arguments",
    [
        ["export", "DIR", "--to", "csv", "--out", ""],
        ["export", "DIR"],
        ["compare", "DIR", "DIR", "--out", " "],
        ["compare"],
        ["report"],
        ["report", "DIR", "more"],
        ["report", "DIR", "--colour"],
        ["profile", "minilm", "--out", ""],
        ["show", "minilm", "a b", "--head", "L0H0", "--html", ""],
        ["reprot", "DIR"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_told_with_code_two(folder: Path, arguments: list[str]) -> None:
    before = contents(folder)
    done = run(*[str(folder) if argument == "DIR" else argument for argument in arguments])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Usage: " in done.stderr
    assert "Traceback" not in done.stderr
    assert contents(folder) == before
