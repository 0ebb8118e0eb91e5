"""`headlens compare`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headlens.cli.options import Open, path_of
from headlens.cli.terminal import check_writable, plain_errors, show_in_browser
from headlens.errors import OutputError
from headlens.files import printable, write_together

if TYPE_CHECKING:
    from headlens.comparison import Comparison

PAGE = "comparison.html"


def compare(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR",
            help="Folders that `headlens profile` wrote; the first is compared to.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", parser=path_of, help="Folder to write to. Default: comparisons/A-B.", show_default=False
        ),
    ] = None,
    open_it: Open = False,
) -> None:
    """Set profiles side by side: which roles stay, move or go, and how far every score changes.

    Each profile is compared with the first. Writes comparison.html, comparison.csv and roles.csv.

    Example: headlens compare profiles/minilm profiles/minilm-pruned --out comparisons/pruning
    """
    with plain_errors("nothing was written"):
        paths = [folder.expanduser() for folder in folders]
        names = names_of(paths)
        target = out or Path("comparisons") / "-".join(names).replace("/", "-")
        check_writable(target)
        from headlens.comparison import compare as set_side_by_side
        from headlens.report.compare import comparison_writers
        from headlens.results import Profile

        found = set_side_by_side([Profile.load(path) for path in paths], names)
        write_together({target / name: write for name, write in comparison_writers(found).items()})
        _tell(found)
        page = target / PAGE
        typer.echo(f"Comparison: {printable(page)}")
        if open_it:
            show_in_browser(page)


def names_of(folders: Sequence[Path]) -> list[str]:
    """What each profile is called: its folder, with as many of the folders above it as tell all of them apart."""
    resolved = [folder.resolve() for folder in folders]
    if twice := [folder for folder, path in zip(folders, resolved, strict=True) if resolved.count(path) > 1]:
        raise OutputError(f"{printable(twice[0])} and {printable(twice[1])} are the same folder; name two that differ.")
    deepest = max(len(path.parts) for path in resolved)
    tails = (["/".join(path.parts[-depth:]) for path in resolved] for depth in range(1, deepest + 1))
    return [printable(name) for name in next(names for names in tails if len(set(names)) == len(names))]


def _tell(found: Comparison) -> None:
    from headlens.report.compare_words import notices, sentences

    for pair in found.pairs:
        typer.echo(f"{pair.before.name} and {pair.after.name}")
        for notice in notices(pair):
            typer.echo(f"Note: {notice}")
        for sentence in sentences(pair):
            typer.echo(f"- {sentence}")
