"""Options and arguments that several commands share, and what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from headlens.errors import CorpusError, OutputError

ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A hub id, a folder, or a bundled name: tiny-gpt2, tiny-bert, minilm, smollm2.",
        show_default=False,
    ),
]
Device = Annotated[str, typer.Option(help="Where the model runs: cpu, cuda, cuda:1, mps.")]
DType = Annotated[str, typer.Option(help="float32, float64, bfloat16, float16, or auto (that of the checkpoint).")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.", show_default=False)]

# How a corpus is read, the same for all that read one
Unit = Annotated[str, typer.Option(help="What is a document of a text file: a line, or a paragraph.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first N documents.", show_default=False)]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Go on past what cannot be read, and count it.")]
Columns = Annotated[
    str | None,
    typer.Option(metavar="OURS=THEIRS,...", help="Columns of a table: words=tokens,heads=head.", show_default=False),
]
Parser = Annotated[str, typer.Option(help="The spaCy pipeline that parses text (parse:FILE).")]
CorpusRevision = Annotated[
    str | None, typer.Option(help="Branch, tag or commit of a data set of the hub.", show_default=False)
]

# What an earlier `headlens profile` wrote
ProfileFolder = Annotated[
    Path, typer.Argument(metavar="DIR", help="A folder that `headlens profile` wrote.", show_default=False)
]
Open = Annotated[bool, typer.Option("--open", help="Show the page in the browser.")]


def path_of(given: str) -> Path:
    """For options that name a place to write to: `--out ""` is a slip, and no name of the current folder."""
    if not given.strip():
        raise typer.BadParameter("it is empty; name a place to write to.")
    return Path(given).expanduser()


def columns_of(given: str | None) -> dict[str, str] | None:
    """ "words=tokens,heads=head" as a mapping."""
    if given is None:
        return None
    pairs = [part.partition("=") for part in given.split(",")]
    if not all(ours.strip() and equals for ours, equals, _ in pairs):  # "text=": there is no such column
        raise CorpusError(f"--columns takes OURS=THEIRS, several with commas between them; got {given!r}.")
    named = [ours.strip() for ours, _, _ in pairs]
    if twice := [name for name in named if named.count(name) > 1]:
        raise CorpusError(f"--columns names {twice[0]} twice; give each of our columns one of theirs.")
    return {ours.strip(): theirs.strip() for ours, _, theirs in pairs}


def formats_of(given: Sequence[str], *, without: str = "") -> list[str]:
    """Formats of an export but for one, each once: of an option that may be repeated, or hold several with commas."""
    from headlens.exports import FORMATS

    named = [name.strip() for entry in given for name in entry.split(",")]
    known = [name for name in FORMATS if name != without]
    if unknown := [name for name in named if name not in known]:
        got = repr(unknown[0]) if unknown[0] else "an empty name"
        raise OutputError(f"A profile is exported to {', '.join(known)}; got {got}.")
    return list(dict.fromkeys(named))
