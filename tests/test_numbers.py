"""Numbers as they are printed."""

from __future__ import annotations

import pytest

from headlens.numbers import four_digits


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.0, "0.0000"),
        (-0.00004, "-0.0000"),
        (0.12345, "0.1235"),
        (-9.9, "-9.9000"),
        (10.0, "10"),
        (-12.3456, "-12.35"),
        (12345.6, "1.235e+04"),
    ],
)
def test_four_digits(value: float, said: str) -> None:
    assert four_digits(value) == said
