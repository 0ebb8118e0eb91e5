"""What every command does with its terminal: progress in a log, interrupts that wait for imports, the command."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from headlens.cli.terminal import command_line, interrupts_held, progress_bar


@pytest.fixture(autouse=True)
def _interrupts_raise() -> Iterator[None]:
    """As in a terminal; a shell starts background jobs with SIGINT ignored, and tests inherit that."""
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, usual)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def import_under_interrupts(done: list[str], *, fails: bool = False) -> None:
    with interrupts_held():
        interrupt()
        interrupt()
        if fails:
            raise ImportError("half a library")
        done.append("imported")


def test_an_interrupt_waits_until_the_imports_are_done(capsys: pytest.CaptureFixture[str]) -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        import_under_interrupts(done)
    assert done == ["imported"]
    assert capsys.readouterr().err == "headlens: interrupted; it stops as soon as its libraries are loaded.\n"
    with pytest.raises(KeyboardInterrupt):  # and afterwards it comes at once
        interrupt()


def test_an_interrupt_counts_where_an_import_fails_too() -> None:
    with pytest.raises(KeyboardInterrupt):
        import_under_interrupts([], fails=True)


def test_without_an_interrupt_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with interrupts_held():
        pass
    assert capsys.readouterr().err == ""
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_ignores_interrupts_still_does() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupts_held():
        interrupt()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_outside_of_the_main_thread_nothing_is_held() -> None:
    done = []

    def imports() -> None:
        with interrupts_held():
            done.append("imported")

    thread = threading.Thread(target=imports)
    thread.start()
    thread.join()
    assert done == ["imported"]


def test_a_command_can_be_typed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no UTF-8 is told all the same, so that every file can hold it."""
    monkeypatch.setattr("sys.argv", ["/somewhere/headlens", "prune", "a b", "--heads", "L0H*", "--out", "x\udcff"])
    assert command_line() == "headlens prune 'a b' --heads 'L0H*' --out 'x\ufffd'"


# ----------------------------------------------------------------------------------------------- progress without a bar


def lines_at(capsys: pytest.CaptureFixture[str], steps: list[tuple[float, str, int, int]]) -> list[str]:
    """What is said when the clock, which starts at 100, shows so many seconds more at each step."""
    times = iter([100.0, *(100 + seconds for seconds, *_ in steps)])
    with progress_bar(lambda: next(times)) as progress:
        for _, *step in steps:
            progress(*step)  # type: ignore[arg-type]
    said = capsys.readouterr()
    assert said.out == ""
    return said.err.splitlines()


def test_a_short_command_is_silent_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines_at(capsys, [(0, "loading", 0, 1), (12, "measuring", 1, 13), (29.9, "writing", 0, 1)]) == []


def test_a_long_command_says_in_a_log_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines_at(capsys, [(30, "measuring", 0, 1), (90, "fitting what is left", 2, 13)]) == [
        "headlens: measuring, 30 s",
        "headlens: fitting what is left (2 of 13), 1 min 30 s",
    ]


def test_a_log_gets_a_line_in_half_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    """Counted from the line before, whatever the steps are."""
    steps = [(float(seconds), "ranking", seconds, 7500) for seconds in (31, 32, 60, 61, 90, 91, 7499)]
    assert lines_at(capsys, steps) == [
        "headlens: ranking (31 of 7500), 31 s",
        "headlens: ranking (61 of 7500), 1 min 1 s",
        "headlens: ranking (91 of 7500), 1 min 31 s",
        "headlens: ranking (7499 of 7500), 2 h 4 min",
    ]
