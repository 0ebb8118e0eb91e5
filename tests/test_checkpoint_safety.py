"""Whatever fails while a pruned model is saved, no good checkpoint and nobody's file is lost."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pruned_models import SINGLE, SOURCE, content, outputs, pruned, same
from transformers import AutoModel, PreTrainedModel

from headlens.errors import OutputError
from headlens.plan import HeadPlan
from headlens.surgery import checkpoint, new_folder
from headlens.surgery.checkpoint import save_pruned
from headlens.testing import tiny_model

pytestmark = pytest.mark.slow  # many models; CI runs them as its own step

# ------------------------------------------------------------------------------------ nothing that is good is destroyed


@pytest.fixture(scope="module")
def two_models() -> tuple[PreTrainedModel, PreTrainedModel]:
    bert = tiny_model("bert")
    return pruned(bert), pruned(bert, SINGLE[:2])


@pytest.fixture
def old(two_models: tuple[PreTrainedModel, PreTrainedModel], tmp_path: Path) -> Path:
    """A good checkpoint."""
    return save_pruned(two_models[0], tmp_path / "here" / "checkpoint", manifest=SOURCE)


def test_a_folder_that_holds_something_is_refused(two_models: Any, old: Path) -> None:
    before = content(old)
    with pytest.raises(
        OutputError, match=r"holds something already \(README.md\); give a new folder, or let it be replaced"
    ):
        save_pruned(two_models[1], old, manifest=SOURCE)
    assert content(old) == before


def test_an_old_checkpoint_is_replaced_when_asked(two_models: Any, old: Path) -> None:
    save_pruned(two_models[1], old, manifest=SOURCE, overwrite=True)
    assert same(outputs(AutoModel.from_pretrained(old, dtype="auto")), outputs(two_models[1]))
    assert os.listdir(old.parent) == ["checkpoint"]


def test_a_model_replaces_the_folder_that_it_was_loaded_from(two_models: Any, old: Path) -> None:
    loaded = AutoModel.from_pretrained(old, dtype="auto")
    further = pruned(loaded, [*SINGLE, (0, 0)])
    expected = outputs(further)
    save_pruned(further, old, manifest=SOURCE, overwrite=True)
    assert same(outputs(AutoModel.from_pretrained(old, dtype="auto")), expected)
    assert same(outputs(loaded), outputs(two_models[0]))


@pytest.mark.parametrize(
    ("name", "message"),
    [("my notes.txt", "holds my notes.txt, which is no part of the checkpoint"), ("runs/", "holds runs, which is no")],
)
def test_what_others_have_put_into_a_checkpoint_is_not_lost(
    two_models: Any, old: Path, name: str, message: str
) -> None:
    (old / name).mkdir() if name.endswith("/") else (old / name).write_text("mine")
    names = sorted(os.listdir(old))
    with pytest.raises(OutputError, match=message):
        save_pruned(two_models[1], old, manifest=SOURCE, overwrite=True)
    assert sorted(os.listdir(old)) == names
    assert same(outputs(AutoModel.from_pretrained(old, dtype="auto")), outputs(two_models[0]))


def test_another_folder_is_never_replaced(two_models: Any, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter 1").write_text("mine")
    with pytest.raises(OutputError, match="holds chapter 1 and is no checkpoint of headlens, so it is not replaced"):
        save_pruned(two_models[0], tmp_path / "thesis", manifest=SOURCE, overwrite=True)
    assert (tmp_path / "thesis" / "chapter 1").read_text() == "mine"


def test_a_file_is_never_replaced(two_models: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match="file is a file; give the path of a new folder"):
        save_pruned(two_models[0], tmp_path / "file", manifest=SOURCE, overwrite=True)
    assert (tmp_path / "file").read_text() == "mine"


def test_an_empty_folder_and_a_link_to_one_are_filled(two_models: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    assert save_pruned(two_models[0], tmp_path / "link", manifest=SOURCE) == tmp_path / "empty"
    assert (tmp_path / "link").is_symlink()
    assert same(outputs(AutoModel.from_pretrained(tmp_path / "link", dtype="auto")), outputs(two_models[0]))


def test_a_folder_that_came_meanwhile_is_not_replaced(two_models: Any, tmp_path: Path, monkeypatch: Any) -> None:
    def other_one_is_faster(*arguments: Any) -> None:
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "config.json").write_text("theirs")

    monkeypatch.setattr(checkpoint, "prove", other_one_is_faster)
    with pytest.raises(OutputError, match="cannot be written"):
        save_pruned(two_models[0], tmp_path / "new", manifest=SOURCE)
    assert content(tmp_path / "new") == {"config.json": b"theirs"}
    assert os.listdir(tmp_path) == ["new"]


FULL = OSError(errno.ENOSPC, "No space left on device")
STEPS = {
    "weights": (PreTrainedModel, "save_pretrained"),
    "plan": (HeadPlan, "save"),
    "alignment": (checkpoint, "align_weights"),
    "card": (checkpoint, "model_card"),
    "proof": (checkpoint, "prove"),
    "flush": (new_folder, "_flush"),
    "exchange": (new_folder, "_exchange_in_one_step"),
}


@pytest.mark.parametrize("error", [FULL, KeyboardInterrupt(), MemoryError()], ids=["full disk", "Ctrl-C", "memory"])
@pytest.mark.parametrize("step", STEPS)
def test_whatever_fails_the_old_checkpoint_stays(
    step: str, error: BaseException, two_models: Any, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise error

    before = content(old)
    monkeypatch.setattr(*STEPS[step], fail)
    with pytest.raises(OutputError if error is FULL else type(error)):
        save_pruned(two_models[1], old, manifest=SOURCE, overwrite=True)
    assert content(old) == before
    assert os.listdir(old.parent) == ["checkpoint"]


def test_an_interrupt_while_the_old_one_is_removed_leaves_the_new_one(
    two_models: Any, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_pruned(two_models[1], old, manifest=SOURCE, overwrite=True)
    monkeypatch.undo()
    assert same(outputs(AutoModel.from_pretrained(old, dtype="auto")), outputs(two_models[1]))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for a checkpoint and a half."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=280k", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a file system")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_disk_that_gets_full(two_models: Any, small_disk: Path) -> None:
    folder = save_pruned(two_models[0], small_disk / "checkpoint", manifest=SOURCE)
    before = content(folder)
    size = sum(map(len, before.values()))
    assert 140_000 < size < 280_000, size
    with pytest.raises(OutputError, match="No space left on device"):
        save_pruned(two_models[1], folder, manifest=SOURCE, overwrite=True)
    assert content(folder) == before
    assert os.listdir(small_disk) == ["checkpoint"]


# ------------------------------------------------------------------------------------------------- the step itself


class Killed(BaseException):
    """Stands for a signal that comes between two lines."""


def replace_old(target: Path) -> None:
    with new_folder.new_folder(target, replace=True) as folder:
        (folder / "a").write_text("new")
        (folder / "b").write_text("new")


def is_whole(target: Path) -> bool:
    return content(target) in ({"a": b"old", "b": b"old", "c": b"old"}, {"a": b"new", "b": b"new"})


def old_folder(target: Path) -> Path:
    target.mkdir(parents=True)
    for name in "abc":
        (target / name).write_text("old")
    return target


def stop_at(line: int, stop: Callable[[], None]) -> Callable[..., Any]:
    """A trace function that calls `stop` before the line of that number, of those of new_folder.py in order."""
    left = line

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith("surgery/new_folder.py"):
            return None
        if event == "line":
            left -= 1
            if left < 0:
                sys.settrace(None)
                stop()
        return trace

    return trace


def lines_run(target: Path) -> int:
    count = 0

    def one_more() -> None:
        nonlocal count
        count += 1

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.endswith("surgery/new_folder.py"):
            return None
        if event == "line":
            one_more()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        replace_old(old_folder(target))
    finally:
        sys.settrace(before)
    return count


def interrupt() -> None:
    raise Killed


def cannot(*arguments: Any) -> None:
    raise OSError(errno.EINVAL, "Invalid argument")


@pytest.mark.parametrize("way", ["one step", "two steps"])
def test_an_interrupt_between_any_two_lines_leaves_a_whole_folder(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "two steps":
        monkeypatch.setattr(new_folder, "_exchange_in_one_step", cannot)
    lines = lines_run(tmp_path / "counted")
    assert lines > 20
    broken, outcomes = [], set()
    for line in range(lines):
        target = old_folder(tmp_path / str(line) / "folder")
        before = sys.gettrace()
        sys.settrace(stop_at(line, interrupt))
        try:
            replace_old(target)
        except Killed:
            pass
        finally:
            sys.settrace(before)
        if not target.exists() or not is_whole(target):
            broken.append(line)
        else:
            outcomes.add((target / "a").read_text())
    assert broken == []
    assert outcomes == {"old", "new"}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs fork and an exchange in one step")
def test_a_process_that_is_killed_between_any_two_lines_leaves_a_whole_folder(tmp_path: Path) -> None:
    lines = lines_run(tmp_path / "counted")
    broken, outcomes = [], set()
    for line in range(lines):
        target = old_folder(tmp_path / str(line) / "folder")
        child = os.fork()
        if child == 0:
            sys.settrace(stop_at(line, lambda: os._exit(9)))
            replace_old(target)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        if not target.exists() or not is_whole(target):
            broken.append(line)
        else:
            outcomes.add((target / "a").read_text())
    assert broken == []
    assert outcomes == {"old", "new"}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks files up in /proc")
def test_all_of_a_new_folder_is_on_the_disk_before_it_is_put_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[tuple[str, bool]] = []

    def note(number: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{number}"))
        flushed.append((path.name, (tmp_path / "folder").exists()))

    monkeypatch.setattr(os, "fsync", note)
    with new_folder.new_folder(tmp_path / "folder") as folder:
        (folder / "a").write_text("new")
        (folder / "inner").mkdir()
        (folder / "inner" / "b").write_text("new")
    before = {name for name, is_there in flushed if not is_there}
    assert before == {"a", "b", "inner", folder.name}
    assert [name for name, is_there in flushed if is_there] == [tmp_path.name]


def test_a_system_that_cannot_exchange_folders_replaces_them_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_folder, "_exchange_in_one_step", cannot)
    target = old_folder(tmp_path / "folder")
    replace_old(target)
    assert content(target) == {"a": b"new", "b": b"new"}
    assert os.listdir(tmp_path) == ["folder"]
