"""`headlens convert`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from headlens.cli.options import Device, DType, ModelName, Revision, path_of
from headlens.cli.pruning_options import (
    CalibrationFiles,
    MaxLength,
    Overwrite,
    Seed,
    SelfContained,
    Tasks,
    amount_of,
    calibration_corpus,
    check_name,
    names_in,
    tasks_of,
)
from headlens.cli.terminal import check_writable, command_line, interrupts_held, plain_errors, progress_bar
from headlens.errors import PlanError
from headlens.files import printable

if TYPE_CHECKING:
    from headlens.conversion.recipes import Recipe


def convert(
    model: ModelName,
    out: Annotated[Path, typer.Option(metavar="DIR", parser=path_of, help="Folder for the checkpoint.")],
    kv_heads: Annotated[
        str | None,
        typer.Option(
            metavar="N or N,N,...",
            help="Key/value heads of every layer, or of each of them in turn. 1 is multi-query attention; as many as "
            "heads, or a multiple of what there is, are exact copies.",
            show_default=False,
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Key/value heads of all layers together instead, as a share (0.5, 50%) or a number: layers that lose "
            "more by it keep more.",
            show_default=False,
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(metavar="0-3,7", help="Only these layers change. Default: all.", show_default=False),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="best (tries the sensible ones, repairs the most promising, keeps what moves the output least on text "
            "that nothing was fitted on), or one: mean (plain mean pooling of neighbours), first, random, medoid, "
            "weighted, aligned (rotated towards each other, then the mean), svd (a shared factor, and maps to it in "
            "queries and outputs)."
        ),
    ] = "best",
    repair: Annotated[
        bool | None,
        typer.Option(
            "--repair/--no-repair",
            help="Refit the output projection of a named method by least squares. Default: no; best tries both.",
            show_default=False,
        ),
    ] = None,
    grouping: Annotated[
        str | None,
        typer.Option(
            help="Which heads share: contiguous, similar (near after rotation), cheapest (that lose least by a shared "
            "factor), random. Default: what suits the method.",
            show_default=False,
        ),
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(
            metavar="0,3|1,2",
            help="Key/value heads to share, by hand, alike in every layer that changes.",
            show_default=False,
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            help="Of means: plain, restored (to the mean size of the members) or fitted. Default: plain.",
            show_default=False,
        ),
    ] = None,
    calibration: CalibrationFiles = None,
    tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of calibration text to fit on; other text chooses, other text judges.")
    ] = 100_000,
    objective: Annotated[
        str | None,
        typer.Option(
            help="How far the output moved: cosine (of sentence vectors), kl (of next-token distributions) or hidden. "
            "Default: kl for language models, else cosine.",
            show_default=False,
        ),
    ] = None,
    evals: Tasks = None,
    texts: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Texts (of language models: windows) that choose, and as many that judge. Default: 256 or 8.",
            show_default=False,
        ),
    ] = None,
    max_length: MaxLength = None,
    speed: Annotated[bool, typer.Option(help="Time the model beside the original.")] = True,
    self_contained: SelfContained = False,
    overwrite: Overwrite = False,
    device: Device = "cpu",
    dtype: DType = "float32",
    revision: Revision = None,
    seed: Seed = 0,
) -> None:
    """Let the heads of MODEL share keys and values (grouped-query, multi-query), measure what that did, and save it.

    Nothing is trained. Beside the result stand the original, plain mean pooling, and no heads at all.

    Examples: headlens convert minilm --kv-heads 4 --out minilm-4kv; headlens convert tiny-gpt2 --budget 50% --eval
    grammar:400 --out half
    """
    with plain_errors("nothing was written"):
        check_writable(out)
        share = amount_of(budget, "--budget")
        counts, chosen, by_hand = counts_of(kv_heads), layers_in(layers), groups_in(groups)
        with progress_bar() as progress:
            with interrupts_held():
                from headlens.calibration import ObjectiveName
                from headlens.conversion.kv_heads import KVHeads
                from headlens.converting import convert
                from headlens.models import load_whole
                from headlens.surgery.checkpoint import check_free

            check_free(out, overwrite=overwrite)
            check_name(objective, [name for name in get_args(ObjectiveName) if name != "loss"], "--objective")
            wish, recipe = (
                KVHeads(counts, share, chosen, by_hand),
                _recipe(method, grouping, scale, by_hand=by_hand is not None),
            )
            tasks, corpus = tasks_of(evals), calibration_corpus(calibration, model)
            progress("loading the model", 0, 1)
            loaded = load_whole(model, device=device, dtype=dtype, revision=revision)
            result = convert(
                loaded,
                corpus,
                wish,
                method=recipe,
                repair=repair,
                tokens=tokens,
                objective=cast(Any, objective),
                tasks=tasks,
                speed=speed,
                texts=texts,
                max_length=max_length,
                seed=seed,
                progress=progress,
            )
            result.facts["command"] = command_line()
            progress("writing the checkpoint", 0, 1)
            folder = result.save(out, self_contained=self_contained, overwrite=overwrite)
        from headlens.converting_words import lines_of

        for line in lines_of(result):
            typer.echo(line)
        typer.echo(f"Saved: {printable(folder)}")


def counts_of(text: str | None) -> int | tuple[int, ...] | None:
    """ "4", or "4,4,2,2" by layer."""
    if text is None:
        return None
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise PlanError(
            f"--kv-heads takes a number of key/value heads, or one for every layer with commas between them; got "
            f"{text!r}."
        ) from None
    return found[0] if len(found) == 1 else found


def layers_in(text: str | None) -> tuple[int, ...] | None:
    """ "0-3,7"."""
    if text is None:
        return None
    found: list[int] = []
    for part in names_in(text):
        first, dash, last = part.partition("-")
        if not _is_number(first) or (dash and not (_is_number(last) and int(first) <= int(last))):
            raise PlanError(f"--layers takes numbers and rising ranges of layers, as 0-3,7; got {text!r}.")
        found.extend(range(int(first), int(last if dash else first) + 1))
    return tuple(found)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 4


def groups_in(text: str | None) -> tuple[tuple[int, ...], ...] | None:
    """ "0,3|1,2"."""
    if text is None:
        return None
    try:
        return tuple(tuple(int(head) for head in group.split(",")) for group in text.split("|"))
    except ValueError:
        raise PlanError(f"--groups takes key/value heads by number, as '0,3|1,2'; got {text!r}.") from None


def _recipe(method: str, grouping: str | None, scale: str | None, *, by_hand: bool) -> str | Recipe:
    """A method by name, or with what it is to do differently."""
    from dataclasses import replace

    from headlens.conversion.merging import METHODS
    from headlens.conversion.recipes import usual_recipe
    from headlens.converting import BEST

    check_name(method, [BEST, *METHODS], "--method")
    if grouping is None and scale is None:
        return method
    if method == BEST:
        raise PlanError("The best conversion chooses grouping and scale itself; name a --method to set them.")
    if grouping is not None and by_hand:
        raise PlanError("--groups names the heads that share, and --grouping how they are found; give one of the two.")
    usual = usual_recipe(method)
    return replace(usual, grouping=grouping or usual.grouping, scale=scale or usual.scale)
