"""`headlens importance`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer

from headlens.cli.options import Device, DType, ModelName, Revision, path_of
from headlens.cli.pruning_options import (
    CalibrationFiles,
    Every,
    MaxLength,
    Objective,
    Seed,
    Texts,
    UnitOfHeads,
    calibration_corpus,
    check_name,
    names_in,
)
from headlens.cli.terminal import check_writable, command_line, interrupts_held, plain_errors, progress_bar
from headlens.files import printable


def importance(
    model: ModelName,
    methods: Annotated[
        str,
        typer.Option(
            help="Names with commas, or all (those that need no training and fit the objective): greedy, loo_mean, "
            "loo_zero, loo_resample, loo_uniform, norm, norm_raw, norm_centred, random, gradient, gradient_token, "
            "gradient_batch, integrated, taylor, gauss_newton; hard_concrete, subset, causal (trained gates)."
        ),
    ] = "loo_mean",
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", parser=path_of, help="Folder for tables and facts.", show_default=False),
    ] = None,
    objective: Objective = None,
    unit: UnitOfHeads = None,
    every: Every = None,
    calibration: CalibrationFiles = None,
    texts: Texts = None,
    max_length: MaxLength = None,
    device: Device = "cpu",
    dtype: DType = "float32",
    revision: Revision = None,
    seed: Seed = 0,
) -> None:
    """How much does every head of MODEL matter? By one method or several, with intervals and how far they agree.

    Examples: headlens importance minilm; headlens importance tiny-gpt2 --methods all --out importance
    """
    with plain_errors("nothing was written"):
        if out is not None:
            check_writable(out)
        with progress_bar() as progress:
            with interrupts_held():
                from headlens.calibration import ObjectiveName
                from headlens.importance.methods import METHODS, check_methods
                from headlens.importance.units import Kind
                from headlens.models import load_whole
                from headlens.rankings import lines_of, rank_by

            named = names_in(methods)
            if named == ["all"]:
                named = [name for name, method in METHODS.items() if not method.is_trained]
            check_methods(named, every)
            check_name(objective, get_args(ObjectiveName), "--objective")
            check_name(unit, get_args(Kind), "--heads-as")
            corpus = calibration_corpus(calibration, model)
            progress("loading the model", 0, 1)
            loaded = load_whole(model, device=device, dtype=dtype, revision=revision)
            found = rank_by(
                loaded,
                corpus,
                named,
                objective=cast(Any, objective),
                unit=cast(Any, unit),
                every=every,
                texts=texts,
                max_length=max_length,
                seed=seed,
                progress=progress,
            )
            found.facts["command"] = command_line()
            lines = list(lines_of(found))
            if out is not None:
                found.save(out)
        for line in lines:
            typer.echo(line)
        if out is not None:
            typer.echo(f"Tables: {printable(out)}")
