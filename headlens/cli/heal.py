"""`headlens heal`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headlens.cli.options import Device, path_of
from headlens.cli.pruning_options import (
    MaxLength,
    Overwrite,
    Seed,
    SelfContained,
    Tasks,
    calibration_corpus,
    tasks_of,
)
from headlens.cli.terminal import check_writable, command_line, interrupts_held, plain_errors, progress_bar
from headlens.errors import HealingError, OutputError, UnsupportedModel
from headlens.files import printable
from headlens.manifest import read_manifest, source_of

if TYPE_CHECKING:
    from headlens.models import LoadedModel


def heal(
    pruned: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="A checkpoint that `headlens prune` or `convert` wrote.", show_default=False
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", parser=path_of, help="Folder for the healed checkpoint.")],
    original: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="The model before surgery. Default: the one that DIR names.", show_default=False
        ),
    ] = None,
    files: Annotated[
        list[str] | None,
        typer.Option(
            "--corpus",
            metavar="KIND:FILE",
            help="Text to train on, as after --corpus of `headlens profile`; part of it is held out and judges. "
            "Without any, the bundled English sample; for tiny-gpt2 and tiny-bert their own grammar. May be repeated.",
            show_default=False,
        ),
    ] = None,
    evals: Tasks = None,
    steps: Annotated[int, typer.Option(min=1, help="Of training.")] = 300,
    batch: Annotated[int, typer.Option(min=1, help="Texts (of language models: windows) of a step.")] = 32,
    lr: Annotated[float, typer.Option(help="The highest learning rate.")] = 4e-4,
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="PART=WEIGHT,...",
            help="Parts of the loss: hidden, embedding, logits, task. Default: hidden=1,logits=1 for language models, "
            "else hidden=1,embedding=1.",
            show_default=False,
        ),
    ] = None,
    draws: Annotated[
        int,
        typer.Option(
            "--random",
            min=0,
            help="Random plans that are healed on the same budget, each as long; of a converted "
            "model plain mean pooling, once. 0: none.",
        ),
    ] = 3,
    progressive: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="Of a converted model: the share of the steps over which attention with own keys and values fades "
            "into attention with shared ones. 0: at once.",
        ),
    ] = 0.0,
    max_length: MaxLength = None,
    resume: Annotated[bool, typer.Option(help="Go on with an interrupted healing, or start over.")] = True,
    self_contained: SelfContained = False,
    overwrite: Overwrite = False,
    device: Device = "cpu",
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    seed: Seed = 0,
) -> None:
    """Train a pruned or converted checkpoint for a short while to say again what its original says.

    Beside it stand random plans of the same size, or plain mean pooling, healed on the same budget: what the choice of
    heads, or the conversion, was worth.

    Examples: headlens heal pruned --out healed --steps 100; headlens heal pruned --eval grammar:400 --random 1 --out
    healed
    """
    work = out.with_name(f"{out.name}.healing")
    with plain_errors(f"the same command goes on from the last checkpoint in {printable(work)}, if there is one"):
        check_writable(out)
        parts = parts_of(loss)
        with progress_bar() as progress:
            with interrupts_held():
                from headlens.heal_pruned import heal_pruned
                from headlens.healing.heal import check_trainable
                from headlens.models import load_whole
                from headlens.surgery.checkpoint import check_free

            check_trainable()
            check_free(out, overwrite=overwrite)
            manifest = read_manifest(pruned)
            name = original or source_of(manifest)
            if name is None:
                raise HealingError(f"{printable(pruned)} does not name its original; give it with --original.")
            tasks, corpus = tasks_of(evals), calibration_corpus(files, name)
            if not resume:
                clear(work)
            progress("loading the models", 0, 1)
            teacher = _original(name, pruned, is_told=original is None, device=device, dtype=dtype)
            if original is None:
                _check_source(manifest, teacher)
            result = heal_pruned(
                load_whole(str(pruned), device=device, dtype=dtype, check=False),
                teacher,
                corpus,
                manifest=manifest,
                tasks=tasks,
                draws=draws,
                steps=steps,
                batch=batch,
                lr=lr,
                parts=parts,
                max_length=max_length,
                seed=seed,
                progressive=progressive,
                work=work,
                resume=resume,
                progress=progress,
            )
            result.facts["command"] = command_line()
            progress("writing the checkpoint", 0, 1)
            folder = result.save(out, self_contained=self_contained, overwrite=overwrite)
            clear(work)
        from headlens.heal_pruned_words import lines_of

        for line in lines_of(result):
            typer.echo(line)
        typer.echo(f"Saved: {printable(folder)}")


def parts_of(loss: str | None) -> dict[str, float] | None:
    """ "hidden=1,logits=0.5" as weights."""
    if loss is None:
        return None
    pairs = [part.partition("=") for part in loss.split(",")]
    try:
        found = {name.strip(): float(weight) for name, _, weight in pairs}
    except ValueError:
        raise HealingError(f"--loss takes PART=WEIGHT, several with commas between them; got {loss!r}.") from None
    if len(found) < len(pairs):
        raise HealingError(f"--loss names a part twice; give each one weight: {loss!r}.")
    return found


def clear(work: Path) -> None:
    """Remove the checkpoints of a healing. OutputError where the folder holds anything else; then it stays."""
    from headlens.healing.folder import FILE

    if not work.exists():
        return
    inside = sorted(work.iterdir()) if work.is_dir() else [work]
    others = [path for path in inside if not (path / FILE).is_file()]
    if others:
        raise OutputError(f"{printable(others[0])} is no healing, so it is not removed; move it elsewhere.")
    try:
        shutil.rmtree(work)
    except OSError as reason:
        raise OutputError(f"{printable(work)} cannot be removed ({reason.strerror}); remove it yourself.") from None


def _original(name: str, pruned: Path, *, is_told: bool, device: str, dtype: str) -> LoadedModel:
    from headlens.models import load_whole

    try:
        return load_whole(name, device=device, dtype=dtype, check=False)
    except UnsupportedModel as reason:
        if not is_told:
            raise
        raise HealingError(
            f"{printable(pruned)} came from {printable(name)}, which cannot be loaded; give its place with "
            f"--original. ({reason})"
        ) from None


def _check_source(manifest: dict[str, Any], teacher: LoadedModel) -> None:
    from headlens.heal_pruned import other_source

    if (reason := other_source(manifest, teacher)) is not None:
        raise HealingError(f"{reason} Name the right one with --original.")
