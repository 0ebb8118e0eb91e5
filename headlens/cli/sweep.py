"""`headlens sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer

from headlens.cli.options import Device, DType, ModelName, Revision, path_of
from headlens.cli.pruning_options import (
    CalibrationFiles,
    Draws,
    MaxLength,
    Objective,
    Seed,
    Tasks,
    Texts,
    UnitOfHeads,
    calibration_corpus,
    check_name,
    names_in,
    tasks_of,
)
from headlens.cli.terminal import check_writable, command_line, interrupts_held, plain_errors, progress_bar
from headlens.errors import PlanError
from headlens.files import printable


def sweep(
    model: ModelName,
    out: Annotated[Path, typer.Option(metavar="DIR", parser=path_of, help="Folder for tables and pictures.")],
    methods: Annotated[
        str, typer.Option(help="Rankings, with commas; `headlens importance --help` lists them.")
    ] = "greedy,loo_mean,norm",
    shares: Annotated[
        str,
        typer.Option(
            help="Shares of the heads that are removed, with commas. Default: .1,.2 and so on to .9.",
            show_default=False,
        ),
    ] = "0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9",
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", parser=path_of, help="A profile of MODEL: which of its roles die when?", show_default=False
        ),
    ] = None,
    objective: Objective = None,
    unit: UnitOfHeads = None,
    calibration: CalibrationFiles = None,
    evals: Tasks = None,
    draws: Draws = 5,
    texts: Texts = None,
    max_length: MaxLength = None,
    device: Device = "cpu",
    dtype: DType = "float32",
    revision: Revision = None,
    seed: Seed = 0,
) -> None:
    """Remove more and more heads of MODEL by several rankings, beside random ones, and draw what that does.

    Examples: headlens sweep minilm --eval sts:pairs.csv --out sweep; headlens sweep tiny-gpt2 --profile
    reports/tiny-gpt2 --out sweep
    """
    with plain_errors("nothing was written"):
        check_writable(out)
        removed = _shares(shares)
        with progress_bar() as progress:
            with interrupts_held():
                from headlens.calibration import ObjectiveName
                from headlens.importance.methods import check_methods
                from headlens.importance.units import Kind
                from headlens.models import load_whole
                from headlens.results import Profile
                from headlens.sweeping import lines_of, sweep

            named = names_in(methods)
            check_methods(named)
            check_name(objective, get_args(ObjectiveName), "--objective")
            check_name(unit, get_args(Kind), "--heads-as")
            roles = None if profile is None else Profile.load(profile).roles
            tasks, corpus = tasks_of(evals), calibration_corpus(calibration, model)
            progress("loading the model", 0, 1)
            loaded = load_whole(model, device=device, dtype=dtype, revision=revision)
            found = sweep(
                loaded,
                corpus,
                named,
                shares=removed,
                objective=cast(Any, objective),
                unit=cast(Any, unit),
                tasks=tasks,
                roles=roles,
                draws=draws,
                texts=texts,
                max_length=max_length,
                seed=seed,
                progress=progress,
            )
            found.facts["command"] = command_line()
            found.save(out)
        for line in lines_of(found):
            typer.echo(line)
        typer.echo(f"Tables and pictures: {printable(out)}")


def _shares(text: str) -> list[float]:
    try:
        return [float(share) for share in names_in(text)]
    except ValueError:
        raise PlanError(f"--shares takes numbers with commas, 0.1,0.5; got {text!r}.") from None
