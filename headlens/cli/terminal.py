"""What every command does with its terminal: a bar, errors in one sentence, and a look at the disk before the work."""

from __future__ import annotations

import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import typer

from headlens.errors import HeadlensError, OutputError
from headlens.files import printable

Progress: TypeAlias = Callable[[str, int, int], None]  # what is being done, done so far, of how many


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar with the time left, on the error stream so that output can be piped; silent where there is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=None)

        def show(what: str, done: int, of: int) -> None:
            bar.update(task, description=what, completed=done, total=of if done else None)

        yield show


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
