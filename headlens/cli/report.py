"""`headlens report`."""

from __future__ import annotations

import typer

from headlens.cli.options import Open, ProfileFolder
from headlens.cli.terminal import plain_errors, show_in_browser
from headlens.files import printable


def report(folder: ProfileFolder, open_it: Open = False) -> None:
    """Make the report of a profile again, from its folder and without the model.

    Writes report.html and what belongs to it beside the scores in DIR. Profiles of earlier versions of headlens get the
    page of this one; what they did not keep is left out.

    Example: headlens report profiles/minilm --open
    """
    with plain_errors("the report that was there stays"):
        from headlens.results import Profile

        folder = folder.expanduser()
        page = Profile.load(folder).write_report(folder)
        typer.echo(f"Report: {printable(page)}")
        if open_it:
            show_in_browser(page)
