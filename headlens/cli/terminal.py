"""What every command does with its terminal: a bar, errors in one sentence, and a look at the disk before the work."""

from __future__ import annotations

import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import typer

from headlens.errors import HeadlensError, OutputError
from headlens.files import printable

Progress: TypeAlias = Callable[[str, int, int], None]  # what is being done, done so far, of how many

SECONDS_BETWEEN = 30  # lines of progress, where there is no terminal


@contextmanager
def progress_bar(clock: Callable[[], float] = time.monotonic) -> Iterator[Progress]:
    """A bar with the time left, on the error stream so that output can be piped.

    Where that is no terminal, as in a log, a line now and then says what is being done; short commands say nothing.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _in_lines(clock)
        return
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def show(what: str, done: int, of: int) -> None:
            bar.update(task, description=what, completed=done, total=of if done else None)

        yield show


def _in_lines(clock: Callable[[], float]) -> Progress:
    """A line at a step, if SECONDS_BETWEEN have passed since the last one; the first as long after the start."""
    start = last = clock()

    def show(what: str, done: int, of: int) -> None:
        nonlocal last
        now = clock()
        if now - last >= SECONDS_BETWEEN:
            last = now
            place = f" ({done} of {of})" if done else ""
            typer.echo(f"headlens: {what}{place}, {_duration(now - start)}", err=True)

    return show


def _duration(seconds: float) -> str:
    """`45 s`, `1 min 30 s`, `2 h 5 min`."""
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


@contextmanager
def plain_errors(if_interrupted: str) -> Iterator[None]:
    """One sentence and a non-zero exit code, for everything that a user can cause."""
    try:
        yield
    except HeadlensError as error:
        typer.echo(f"headlens: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        typer.echo(f"headlens: interrupted; {if_interrupted}.", err=True)
        sys.exit(130)
    except (MemoryError, RuntimeError, ImportError) as error:
        # torch raises RuntimeErrors of its own for both; an interrupt inside an import comes wrapped in another
        if isinstance(error.__cause__, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt):
            typer.echo(f"headlens: interrupted; {if_interrupted}.", err=True)
            sys.exit(130)
        if not (isinstance(error, MemoryError) or re.search("out of memory|allocate memory", str(error))):
            raise
        typer.echo("headlens: out of memory; try a smaller --batch-tokens or --max-length.", err=True)
        sys.exit(1)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Let Ctrl-C wait until the imports inside are done: in the midst of torch it is lost, or aborts the process."""
    came: list[int] = []

    def note(number: int, _: object) -> None:
        if not came:
            typer.echo("headlens: interrupted; it stops as soon as its libraries are loaded.", err=True)
        came.append(number)

    usual = signal.getsignal(signal.SIGINT)
    # in the background of a shell it is ignored, and only the main thread may say what a signal does
    if usual is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if came:
            raise KeyboardInterrupt


def check_writable(folder: Path, option: str = "--out") -> None:
    """Before minutes of work, not after."""
    import tempfile

    try:
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not existing.is_dir():
            raise NotADirectoryError(f"{printable(existing)} is a file")
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as reason:
        raise OutputError(
            f"{printable(folder)} cannot be written to ({reason.strerror or reason}); choose another place with "
            f"{option}."
        ) from None


def command_line() -> str:
    """The command as it was typed, for the facts of what it writes."""
    return printable(shlex.join(["headlens", *sys.argv[1:]]))


def show_in_browser(page: Path) -> None:
    """A page that was written stands, whether or not there is a browser."""
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        typer.echo(f"No browser was found; open {printable(page)} yourself.", err=True)
