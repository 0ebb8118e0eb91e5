"""`headlens evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headlens.cli.options import Device, DType, path_of
from headlens.cli.pruning_options import Seed, Tasks, names_in
from headlens.cli.terminal import check_writable, command_line, interrupts_held, plain_errors, progress_bar
from headlens.errors import CorpusError
from headlens.files import check_replaceable, printable

if TYPE_CHECKING:
    from headlens.evaluation import Task


def evaluate(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...", help="Hub ids, bundled names, folders; pruned checkpoints, too.", show_default=False
        ),
    ],
    evals: Tasks = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="The model that all are held against, item by item.", show_default=False),
    ] = None,
    lm_eval: Annotated[
        str | None,
        typer.Option(
            "--lm-eval",
            metavar="TASK,...",
            help="Tasks of lm-evaluation-harness, which must be installed.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only the first N items of each task.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", parser=path_of, help="All figures, for programs.", show_default=False),
    ] = None,
    speed: Annotated[bool, typer.Option("--speed", help="Time every model in turns with that of --against.")] = False,
    device: Device = "cpu",
    dtype: DType = "float32",
    seed: Seed = 0,
) -> None:
    """Ask one MODEL or several the same tasks: figures with intervals, differences, sizes, speed.

    Examples: headlens evaluate tiny-gpt2 --eval grammar:400; headlens evaluate pruned --against tiny-gpt2 --eval
    grammar:400 --speed --out evaluation.json
    """
    with plain_errors("nothing was written"):
        if out is not None:
            check_writable(out.absolute().parent)
            check_replaceable(out)
        with progress_bar() as progress:
            with interrupts_held():
                from headlens.evaluating import evaluate_models
                from headlens.evaluating_words import lines_of

            harness = names_in(lm_eval or "")
            if not evals and not harness and not speed:
                raise CorpusError("Say what the models are asked: --eval KIND:FILE, --lm-eval TASK, or --speed.")
            found = evaluate_models(
                models,
                limited_tasks(evals or [], limit, is_used=bool(harness)),
                against=against,
                lm_eval=harness,
                limit=limit,
                speed=speed,
                device=device,
                dtype=dtype,
                seed=seed,
                progress=progress,
            )
            found.facts["command"] = command_line()
            if out is not None:
                found.save(out)
        for line in lines_of(found):
            typer.echo(line)
        if out is not None:
            typer.echo(f"Saved: {printable(out)}")


def limited_tasks(specs: list[str], limit: int | None, *, is_used: bool = False) -> list[Task]:
    """Tasks, each with the limit where its kind takes one; where none does, and nothing else, it is refused."""
    from headlens.evaluation import TASKS, TaskOptions, read_task

    kinds = [TASKS.get(spec.partition(":")[0]) for spec in specs]
    takes = [kind is not None and "limit" in kind.takes for kind in kinds]
    is_refused = not any(takes) and not is_used
    return [
        read_task(spec, TaskOptions(limit=limit if own or is_refused else None))
        for spec, own in zip(specs, takes, strict=True)
    ]
