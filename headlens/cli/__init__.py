"""The command line: every command is one function of the library, its progress, and its errors in one sentence.

Nothing heavy is imported before a command runs, so that help is there at once.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from headlens import __version__
from headlens.cli import (
    check,
    compare,
    convert,
    corpus,
    evaluate,
    export,
    heal,
    importance,
    profile,
    prune,
    report,
    show,
    sweep,
)
from headlens.cli.terminal import plain_errors

__all__ = ["app", "main"]

app = typer.Typer(
    help="See what each attention head of a pretrained transformer does.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    *(profile.profile, report.report, show.show, compare.compare, export.export),
    *(importance.importance, prune.prune, convert.convert, sweep.sweep, evaluate.evaluate, heal.heal, check.check),
):
    app.command(command.__name__)(command)
app.add_typer(corpus.corpora_app, name="corpus")


def main() -> None:
    """Entry point of the `headlens` command."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal may not have all letters of a name
    with plain_errors("nothing was written"):
        app()


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        typer.echo(f"headlens {__version__}")
        raise typer.Exit
