"""Commands run in this process, where a new one would import torch each time, and what they say."""

from __future__ import annotations

import math
from unittest.mock import patch

from typer.testing import CliRunner

from headlens.cli import app


def invoke(*arguments: object) -> tuple[int, str, str]:
    """Exit code, output and error stream; what no command may raise is raised here."""
    with patch("headlens.cli.terminal.SECONDS_BETWEEN", math.inf):  # however slow the machine is
        done = CliRunner().invoke(app, [*map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr


def refusal(*arguments: object, code: int = 1) -> str:
    """The one sentence of a command that fails; usage errors, which the parser tells in a frame, have code 2."""
    found, said, errors = invoke(*arguments)
    assert (found, said) == (code, ""), errors
    lines = [line for line in errors.splitlines() if line.strip()]
    assert code == 2 or len(lines) == 1, errors
    return " ".join(errors.split())
