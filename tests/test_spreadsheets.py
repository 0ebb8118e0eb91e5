"""Tables as CSV: what a spreadsheet would run is told to be text, and all can be had back."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from headlens.spreadsheets import csv_writer, safe_cell


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("=1+1", "'=1+1"),
        ("+cmd", "'+cmd"),
        ("-2+3", "'-2+3"),
        ("@sum", "'@sum"),
        ("\tx", "'\tx"),
        ("\rx", "'\rx"),
        ("-", "'-"),
        ("-1", "-1"),
        ("+0.5", "+0.5"),
        ("-1\n=2", "'-1\n=2"),
        ("-1e5", "'-1e5"),
        ("'=1", "''=1"),
        ("'twas", "'twas"),
        ("a=b", "a=b"),
        ("", ""),
        (-1.5, -1.5),
        (None, None),
    ],
)
def test_no_cell_is_a_formula(cell: object, expected: object) -> None:
    assert safe_cell(cell) == expected


def written(table: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """Read by another program, every text as it stands there."""
    csv_writer(table)(folder / "table.csv")
    return pd.read_csv(folder / "table.csv", keep_default_na=False)


def test_numbers_and_common_texts_read_back_as_they_were(tmp_path: Path) -> None:
    table = pd.DataFrame({"metric": ["position.mass[-1]", "a,b"], "value": [-0.1, 1 / 3], "head": [0, -7]})
    pd.testing.assert_frame_equal(written(table, tmp_path), table)


def test_the_way_back_is_to_take_one_apostrophe_off(tmp_path: Path) -> None:
    texts = ["=CMD", "'=CMD", "''=CMD", "@x", "-a", "'-", "plain", "'plain"]
    found = written(pd.DataFrame({"relation": texts}), tmp_path)["relation"].tolist()
    assert found == ["'=CMD", "''=CMD", "'''=CMD", "'@x", "'-a", "''-", "plain", "'plain"]


def test_names_of_columns_are_guarded_too(tmp_path: Path) -> None:
    assert written(pd.DataFrame({"=A1.value": [1]}), tmp_path).columns.tolist() == ["'=A1.value"]
