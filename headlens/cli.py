"""The command line: every subcommand is one function of the library, its progress, and its errors in one sentence."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headlens import __version__
from headlens.errors import HeadlensError, OutputError
from headlens.files import printable

if TYPE_CHECKING:
    from headlens.profiling import Profile, Progress

app = typer.Typer(
    help="See what each attention head of a pretrained transformer does.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ModelName = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="A hub id, a folder, or a bundled name: minilm, smollm2.", show_default=False),
]
Device = Annotated[str, typer.Option(help="Where the model runs: cpu, cuda, cuda:1, mps.")]
DType = Annotated[str, typer.Option(help="float32, float64, bfloat16, float16, or auto (that of the checkpoint).")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.", show_default=False)]


def main() -> None:
    """Entry point of the `headlens` command."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal may not have all letters of a name
    with _plain_errors("nothing was written"):
        app()


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        typer.echo(f"headlens {__version__}")
        raise typer.Exit


@app.command("profile")
def _profile(
    model: ModelName,
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE", help="Text files, as after --corpus.", show_default=False)
    ] = None,
    corpus: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE...", help="Text files; without any, the bundled English sample.", show_default=False
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to write to. Default: profiles/MODEL.", show_default=False),
    ] = None,
    unit: Annotated[str, typer.Option(help="What is a document of a text file: a line, or a paragraph.")] = "line",
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N documents.", show_default=False)] = None,
    max_length: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of one input; default: as many as the model takes.", show_default=False),
    ] = None,
    batch_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of one forward pass; results do not depend on it.")
    ] = 4096,
    dtype: DType = "float32",
    device: Device = "cpu",
    revision: Revision = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the resampling behind the intervals.")] = 0,
    exact: Annotated[bool, typer.Option("--exact", help="Run the model file's own eager attention (slower).")] = False,
) -> None:
    """Score every head of MODEL on a corpus and write a report.

    Writes scores.parquet, scores.csv, profile.json and report.html to the folder given by --out.

    Example: headlens profile minilm --corpus notes.txt --out reports/minilm
    """
    with _plain_errors("nothing was written"):
        folder = _folder(out, model)
        _check_writable(folder)
        with _progress() as progress:
            from headlens.profiling import profile

            result = profile(
                model,
                [*(corpus or []), *(files or [])] or None,  # `--corpus a b`: b comes as an argument
                device=device,
                dtype=dtype,
                revision=revision,
                unit=unit,
                limit=limit,
                max_length=max_length,
                batch_tokens=batch_tokens,
                seed=seed,
                way="exact" if exact else "fast",
                progress=progress,
            )
            result.provenance["command"] = printable(shlex.join(["headlens", *sys.argv[1:]]))
            progress("writing the report", 0, 1)
            report = result.save(folder)
        _tell(result, report)


@app.command("check")
def _check(model: ModelName, dtype: DType = "float32", device: Device = "cpu", revision: Revision = None) -> None:
    """Check that what headlens captures of MODEL is what the model computes."""
    with _plain_errors("the check did not finish"):
        with _progress() as progress:
            progress("loading the model", 0, 1)
            from headlens.models import load_model
            from headlens.selfcheck import check_model

            loaded = load_model(model, device=device, dtype=dtype, revision=revision, check=False)
            progress("checking the model against itself", 0, 1)
            check = check_model(loaded.model)
        typer.echo(f"Self-check {check.line}")


def _folder(out: Path | None, model: str) -> Path:
    if out is None:
        name = Path(model).expanduser().resolve().name if Path(model).expanduser().is_dir() else Path(model).name
        return Path("profiles") / (name or "model")
    if not str(out).strip():
        raise HeadlensError("--out is empty; name a folder.")
    return out.expanduser()


def _check_writable(folder: Path) -> None:
    """Before minutes of work, not after."""
    import tempfile

    try:
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not existing.is_dir():
            raise NotADirectoryError(f"{existing} is a file")
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as reason:
        raise OutputError(
            f"{folder} cannot be written to ({reason.strerror or reason}); choose another folder with --out."
        ) from None


@contextmanager
def _progress() -> Iterator[Progress]:
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
def _plain_errors(if_interrupted: str) -> Iterator[None]:
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


def _tell(result: Profile, report: Path) -> None:
    from headlens.report.findings import findings

    model, corpus = result.provenance["model"], result.provenance["corpus"]
    typer.echo(f"{model['name']}: {result.scores.n_layers} layers x {result.scores.n_heads} heads")
    typer.echo(f"Corpus: {corpus['documents']:,} documents, {corpus['scored_tokens']:,} tokens scored")
    typer.echo(f"Self-check {result.provenance['selfcheck']['line']}")
    for note in result.provenance["notes"]:
        typer.echo(f"Note: {note}")
    for finding in findings(result.scores):
        typer.echo(f"- {finding.text}")
    typer.echo(f"Report: {report}")
