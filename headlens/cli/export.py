"""`headlens export`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headlens.cli.options import ProfileFolder, formats_of, path_of
from headlens.cli.terminal import check_writable, interrupts_held, plain_errors, progress_bar
from headlens.errors import OutputError, UnsupportedModel
from headlens.files import printable

if TYPE_CHECKING:
    from headlens.collect import Collected
    from headlens.models import LoadedModel
    from headlens.results import Profile


def export(
    folder: ProfileFolder,
    to: Annotated[
        list[str],
        typer.Option(
            metavar="FORMAT",
            help="parquet, csv or json (tables of scores, roles and evidence), roles (a small file of the roles of "
            "every head), bertviz (attention on texts). May be repeated, or several with commas.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", parser=path_of, help="Folder to write to. Default: that of the profile.", show_default=False
        ),
    ] = None,
    texts: Annotated[
        list[str] | None,
        typer.Option("--text", help="For bertviz: a text to run the model on. May be repeated.", show_default=False),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="For bertviz: where the model is, if its name in the profile does not tell.", show_default=False
        ),
    ] = None,
) -> None:
    """Write a profile for other tools: tables, the roles of every head, or attention for BertViz.

    Examples: headlens export profiles/minilm --to csv,roles; headlens export profiles/minilm --to bertviz --text "A dog
    barked."
    """
    with plain_errors("nothing was written"):
        formats = formats_of(to)
        _check_texts(formats, texts or [], model)
        folder = folder.expanduser()
        target = out or folder
        from headlens.exports import export as write_export
        from headlens.results import Profile

        profile = Profile.load(folder)
        check_writable(target)
        collected = _attention(profile, texts, model) if texts else []
        for path in write_export(profile, target, formats, texts=collected):
            typer.echo(printable(path))


def _check_texts(formats: Sequence[str], texts: Sequence[str], model: str | None) -> None:
    if "bertviz" in formats and not texts:
        raise OutputError("BertViz shows the attention of texts, which a profile does not keep; give one with --text.")
    if "bertviz" not in formats and (texts or model is not None):
        raise OutputError("--text and --model are for --to bertviz.")


def _attention(profile: Profile, texts: Sequence[str], name: str | None) -> list[Collected]:
    """Of the model that the profile is of, run again."""
    with progress_bar() as progress:
        progress("loading the model", 0, 1)
        with interrupts_held():
            from headlens.collect import collect
            from headlens.report.facts import at

        loaded = _load(profile, name)
        if at(profile.provenance, "model", "weights_sha256") not in (None, loaded.provenance["weights_sha256"]):
            raise OutputError(
                f"{loaded.name!r} has other weights than the model of the profile; name that one with --model."
            )
        progress("reading the texts", 0, 1)
        return collect(loaded.model, loaded.require_tokenizer(), texts, "probs")


def _load(profile: Profile, name: str | None) -> LoadedModel:
    from headlens.models import load_model
    from headlens.report.facts import at

    if name is not None:
        return load_model(name)
    named = at(profile.provenance, "model", "name")
    if not isinstance(named, str):
        raise OutputError("The profile does not name its model; name it with --model.")
    try:
        return load_model(named, revision=at(profile.provenance, "model", "revision"))
    except UnsupportedModel as reason:
        raise UnsupportedModel(f"{reason} A profile does not keep where a model is; name it with --model.") from None
