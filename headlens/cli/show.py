"""`headlens show`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headlens.cli.options import Device, DType, ModelName, Open, Revision, path_of
from headlens.cli.terminal import check_writable, interrupts_held, plain_errors, progress_bar, show_in_browser
from headlens.errors import CorpusError, OutputError
from headlens.files import atomic_write, check_replaceable, printable

if TYPE_CHECKING:
    from headlens.examples import Example


def show(
    model: ModelName,
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="One sentence; - reads standard input.", show_default=False)
    ],
    head: Annotated[str, typer.Option(metavar="L7H9", help="Layer and head, each counted from 0.", show_default=False)],
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=path_of, help="Also draw it as arcs, into a page.", show_default=False),
    ] = None,
    open_it: Open = False,
    dtype: DType = "float32",
    device: Device = "cpu",
    revision: Revision = None,
) -> None:
    """Show what one head of MODEL attends to on a text of your own, word by word.

    A share is the part of a word's attention that goes to another word, from 0 to 1, over all tokens of both; what is
    under .10 is left out. Special tokens are those that the model adds to a text, such as [CLS], [SEP] or <s>: many
    heads rest there when they find nothing.

    Example: headlens show minilm "The dog saw the cat." --head L0H2 --html dog.html
    """
    with plain_errors("nothing was written"):
        page = _page_of(html, open_it)
        with progress_bar() as progress:
            from headlens.show import attention_of, parse_head, to_page

            _check_head(head, model)
            text = _read(text)
            progress("loading the model", 0, 1)
            with interrupts_held():
                from headlens.models import head_counts, load_model, network_of
                from headlens.scores import head_name

            loaded = load_model(model, device=device, dtype=dtype, revision=revision)
            counts = head_counts(network_of(loaded.model).config)
            layer, number = parse_head(head, counts["layers"], counts["heads"])
            example = attention_of(loaded, text, layer, number)
        _print(example)
        if page is not None:
            title = f"{head_name(layer, number)} of {loaded.provenance['name']}"  # that of a folder has no path
            content = to_page(example, title).encode("utf-8", "backslashreplace")
            atomic_write(page, lambda path: path.write_bytes(content))
            typer.echo(f"Page: {printable(page)}")
            if open_it:
                show_in_browser(page)


def _check_head(head: str, model: str) -> None:
    """Before the model is loaded, as far as can be told from what lies here."""
    from headlens.models import local_head_counts
    from headlens.show import named_place, parse_head

    counts = local_head_counts(model)
    if counts is None:
        named_place(head)
    else:
        parse_head(head, counts["layers"], counts["heads"])


def _page_of(html: Path | None, open_it: bool) -> Path | None:
    """Where the page goes, if there is to be one."""
    if html is None:
        if open_it:
            raise OutputError("--open shows a page, and there is none; name one with --html FILE.")
        return None
    if html.is_dir():
        raise OutputError(f"{printable(html)} is a folder; name a file in it with --html.")
    check_replaceable(html)
    check_writable(html.parent, "--html")
    return html


def _read(text: str) -> str:
    try:
        if text == "-":
            text = sys.stdin.read()
        text.encode()  # an argument that was no UTF-8 comes with halves of characters
    except UnicodeError:
        raise CorpusError("The text is not UTF-8; convert it first, for example with iconv.") from None
    return text


def _print(example: Example) -> None:
    from rich.console import Console

    from headlens.show import to_terminal

    Console(highlight=False).print(to_terminal(example))
