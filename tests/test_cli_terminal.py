"""What every command does with its terminal: an interrupt that waits for imports, and the command as it was typed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from headlens.cli.terminal import command_line, interrupts_held


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
