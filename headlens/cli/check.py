"""`headlens check`."""

from __future__ import annotations

import typer

from headlens.cli.options import Device, DType, ModelName, Revision
from headlens.cli.terminal import interrupts_held, plain_errors, progress_bar


def check(model: ModelName, dtype: DType = "float32", device: Device = "cpu", revision: Revision = None) -> None:
    """Check that what headlens captures of MODEL is what the model computes.

    Example: headlens check minilm --dtype float64
    """
    with plain_errors("the check did not finish"):
        with progress_bar() as progress:
            progress("loading the model", 0, 1)
            with interrupts_held():
                from headlens.models import load_model
                from headlens.selfcheck import check_model

            loaded = load_model(model, device=device, dtype=dtype, revision=revision, check=False)
            progress("checking the model against itself", 0, 1)
            found = check_model(loaded.model)
        typer.echo(f"Self-check {found.line}")
