"""The table of scores: what it refuses, how it is ordered, and that nothing is lost on the way to a file and back."""

from __future__ import annotations

import csv
import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headlens.errors import OutputError
from headlens.files import atomic_write, write_together
from headlens.scores import SCHEMA, HeadScore, Metric, ScoreTable

NAN = float("nan")
PREVIOUS = Metric("position.mass[-1]", "Previous token", "Mass on the previous token.", "share")
DISTANCE = Metric("position.distance", "Distance", "Mean distance: “how far”.", "tokens")


def table(values: np.ndarray | None = None, **changes: object) -> ScoreTable:
    """Two metrics of two layers of three heads, by hand."""
    drawn = np.array([[[0.1, 0.9, 0.3], [NAN, 0.9, 1 / 3]], [[5e-324, -7.0, 1e300], [0.0, 2.5, 12.0]]])
    array = drawn if values is None else values
    arrays: dict[str, object] = {
        "metrics": (PREVIOUS, DISTANCE),
        "values": array,
        "support": np.full(array.shape, 41.0),
        "low": array - 0.125,
        "high": array + 0.125,
        "chance": np.array([0.05, NAN]),
    }
    return ScoreTable(**{**arrays, **changes})  # type: ignore[arg-type]


def test_the_arrays_are_copies_that_cannot_be_written_to() -> None:
    support = np.ones((2, 2, 3))
    scores = table(support=support)
    support[:] = 7
    assert (scores.support == 1).all()
    for name in ("values", "support", "low", "high", "chance"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(scores, name)[:] = 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metrics": (PREVIOUS, PREVIOUS)}, r"name of its own, got position.mass\[-1\] more than once"),
        ({"metrics": (PREVIOUS,)}, r"with 1 metrics and at least one of each, got shape \(2, 2, 3\)"),
        ({"values": np.ones((2, 3))}, r"values must be .* got shape \(2, 3\)"),
        ({"values": np.ones((2, 0, 3))}, r"at least one of each, got shape \(2, 0, 3\)"),
        ({"support": np.ones((2, 3, 2))}, r"support must have shape \(2, 2, 3\) to go with values, got \(2, 3, 2\)"),
        ({"low": np.ones((1, 2, 3))}, r"low must have shape"),
        ({"high": np.ones((2, 2))}, r"high must have shape"),
        ({"chance": np.ones((2, 1))}, r"chance must have shape \(2,\) to go with values, got \(2, 1\)"),
        ({"chance": np.array([0.1, np.inf])}, r"chance must be finite.*\(metric position.distance\)"),
        ({"high": np.full((2, 2, 3), -99.0)}, r"low must not be above high \(metric position.mass\[-1\]\)"),
        ({"support": np.full((2, 2, 3), -1.0)}, r"support must not be negative"),
    ],
)
def test_a_table_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OutputError, match=message):
        table(**changes)


def test_an_interval_may_lie_beside_its_value() -> None:
    assert table(low=np.full((2, 2, 3), 0.5), high=np.full((2, 2, 3), 0.6)).low[0, 0, 0] == 0.5


def test_a_unit_is_one_of_four() -> None:
    metric = dataclasses.replace(PREVIOUS)
    object.__setattr__(metric, "unit", "bits")  # not by the constructor, whose types the tests check
    with pytest.raises(OutputError, match=r"mass\[-1\]: the unit must be one of .*'nats'.*, got 'bits'"):
        metric.__post_init__()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("position.mass[1]", r"no metric 'position.mass\[1\]'; did you mean position.mass\[-1\]"),
        ("position.distances", "did you mean position.distance"),
        ("zzz", r"it has position.mass\[-1\], position.distance\."),
    ],
)
def test_an_unknown_metric_is_named_with_its_neighbours(asked: str, message: str) -> None:
    with pytest.raises(OutputError, match=message):
        table()[asked]


def test_values_come_by_name() -> None:
    scores = table()
    assert scores.names == ("position.mass[-1]", "position.distance")
    assert "position.distance" in scores
    assert "distance" not in scores
    np.testing.assert_array_equal(scores["position.distance"], [[5e-324, -7.0, 1e300], [0.0, 2.5, 12.0]])
    assert [metric.family for metric in scores] == ["position", "position"]


def test_present_heads_have_at_least_one_value() -> None:
    both = np.ones((2, 2, 3))
    both[0, 0, 1] = both[:, 1, 2] = NAN
    assert table(values=both).n_present == 5


def test_best_heads_come_first_and_equal_ones_in_the_order_of_the_model() -> None:
    found = table().best("position.mass[-1]", 4)
    assert [head.name for head in found] == ["L0H1", "L1H1", "L1H2", "L0H2"]
    assert found[2] == HeadScore(1, 2, 1 / 3, 1 / 3 - 0.125, 1 / 3 + 0.125, 0.05, 41.0)


def test_equal_heads_keep_their_order_however_many_they_are() -> None:
    half = np.full((1, 20, 20), 0.5)
    half[0, 7, 3] = 0.6
    scores = ScoreTable((PREVIOUS,), half, half, half, half, np.array([0.1]))
    names = [head.name for head in scores.best("position.mass[-1]", 400)]
    assert names == ["L7H3", *(f"L{place // 20}H{place % 20}" for place in range(400) if place != 143)]


def test_smallest_heads_come_first_when_asked_for() -> None:
    found = table().best("position.mass[-1]", 9, smallest=True)
    assert [head.name for head in found] == ["L0H0", "L0H2", "L1H2", "L0H1", "L1H1"]  # and never the NaN of L1H0


def test_the_long_form_has_one_row_for_each_metric_layer_and_head() -> None:
    frame = table().to_frame()
    assert list(frame.columns) == ["metric", "layer", "head", "value", "support", "low", "high", "chance"]
    assert list(frame.columns) == list(SCHEMA)
    assert frame["layer"].dtype == frame["head"].dtype == np.int64
    keys = list(zip(frame["metric"], frame["layer"], frame["head"], strict=True))
    expected = [
        (m, layer, head) for m in ("position.mass[-1]", "position.distance") for layer in (0, 1) for head in (0, 1, 2)
    ]
    assert keys == expected
    np.testing.assert_array_equal(frame["value"], [0.1, 0.9, 0.3, NAN, 0.9, 1 / 3, 5e-324, -7.0, 1e300, 0.0, 2.5, 12.0])
    np.testing.assert_array_equal(frame["chance"], [0.05] * 6 + [NAN] * 6)
    assert (frame["support"] == 41).all()


def test_a_long_form_in_any_order_gives_the_table_back() -> None:
    scores = table()
    shuffled = scores.to_frame().sample(frac=1, random_state=3)
    assert ScoreTable.from_frame(shuffled, scores.metrics).equals(scores)


def test_equality_sees_every_number_and_every_word() -> None:
    scores = table()
    assert scores.equals(table())
    for field in ("values", "support", "low", "high", "chance"):
        changed = getattr(scores, field).copy()
        changed.flat[0] = np.nextafter(changed.flat[0], 9)
        assert not scores.equals(dataclasses.replace(scores, **{field: changed})), field
    renamed = dataclasses.replace(DISTANCE, meaning="Another sentence.")
    assert not scores.equals(dataclasses.replace(scores, metrics=(PREVIOUS, renamed)))


def test_a_saved_table_comes_back_exactly(tmp_path: Path) -> None:
    scores = table()
    scores.save(tmp_path / "new" / "folder")
    assert sorted(os.listdir(tmp_path / "new" / "folder")) == ["scores.csv", "scores.parquet"]
    loaded = ScoreTable.load(tmp_path / "new" / "folder")
    assert loaded.equals(scores)
    assert loaded.metrics[1].meaning == "Mean distance: “how far”."


def test_other_programs_can_read_the_files(tmp_path: Path) -> None:
    scores = table()
    scores.save(tmp_path)
    frame = scores.to_frame()
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "scores.parquet"), frame, check_dtype=False)
    with (tmp_path / "scores.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["metric"] for row in rows] == list(frame["metric"])
    for column in SCHEMA:
        if column != "metric":  # every digit, and an empty field for what is not defined
            np.testing.assert_array_equal([float(row[column] or "nan") for row in rows], frame[column])
    assert rows[3]["value"] == rows[-1]["chance"] == ""
    metadata = pq.read_schema(tmp_path / "scores.parquet").metadata
    assert metadata[b"headlens.schema"] == b"headlens.scores/1"
    assert "“how far”".encode() in metadata[b"headlens.metrics"]


@pytest.mark.parametrize(
    ("break_frame", "message"),
    [
        (
            lambda f: f.drop(columns=["low", "chance"]),
            "The column low, chance is missing; a table of scores has metric, l",
        ),
        (lambda f: pd.concat([f, f.iloc[[4]]]), r"position.mass\[-1\] of L1H1 is there more than once"),
        (lambda f: f.drop(index=7), "2 metrics of 2 layers of 3 heads need 12 rows.*got 11"),
        (lambda f: f.assign(value=f["value"].astype(str)), "The column value has the wrong type"),
        (lambda f: f.assign(layer=f["layer"] * 1.0), "The column layer has the wrong type, float64"),
        (lambda f: f.assign(head=f["head"] - 1), "counted from 0"),
        (lambda f: f.iloc[:0], "at least one row"),
        (lambda f: f.assign(chance=np.arange(12.0)), r"position.mass\[-1\] must have one chance level"),
        (lambda f: f.assign(metric=f["metric"] + "x"), r"differ in position.distance, position.distancex, pos"),
        (lambda f: f.assign(high=f["low"] - 1), "low must not be above high"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_frame_or_file_that_is_no_table_is_refused(tmp_path: Path, break_frame: object, message: str) -> None:
    scores = table()
    broken = break_frame(scores.to_frame())  # type: ignore[operator]
    with pytest.raises(OutputError, match=message):
        ScoreTable.from_frame(broken, scores.metrics)
    scores.save(tmp_path)
    path = tmp_path / "scores.parquet"
    metadata = pq.read_schema(path).metadata
    pq.write_table(pa.Table.from_pandas(broken, preserve_index=False).replace_schema_metadata(metadata), path)
    with pytest.raises(
        OutputError,
        match=rf"scores.parquet does not hold a table of scores \(.*{message}.*\); run the profile again\.$",
    ):
        ScoreTable.load(tmp_path)


def test_a_missing_file_is_named_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(
        OutputError, match=r"scores.parquet is not there; give the folder of a profile, or run the profile"
    ):
        ScoreTable.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"metric,layer\n", b"PAR1 and then nothing PAR1"])
def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "scores.parquet").write_bytes(content)
    with pytest.raises(OutputError, match=r"scores.parquet cannot be read as a parquet file; run the profile again\.$"):
        ScoreTable.load(tmp_path)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, "has the schema 'none', this headlens reads 'headlens.scores/1'"),
        ({"headlens.schema": "headlens.scores/2"}, "has the schema 'headlens.scores/2'"),
        ({"headlens.schema": "headlens.scores/1"}, "list of metrics .* is broken"),
        ({"headlens.schema": "headlens.scores/1", "headlens.metrics": "[{"}, "list of metrics .* is broken"),
        (
            {"headlens.schema": "headlens.scores/1", "headlens.metrics": '[{"name": "x"}]'},
            "list of metrics .* is broken",
        ),
    ],
)
def test_a_parquet_of_another_kind_is_refused(tmp_path: Path, metadata: dict[str, str] | None, message: str) -> None:
    frame = pa.Table.from_pandas(table().to_frame(), preserve_index=False).replace_schema_metadata(metadata)
    pq.write_table(frame, tmp_path / "scores.parquet")
    with pytest.raises(OutputError, match=message):
        ScoreTable.load(tmp_path)


def test_a_full_disk_leaves_the_old_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table().save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def half_a_file(_: object, path: Path) -> None:
        path.write_bytes(b"PAR1 half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", half_a_file)
    with pytest.raises(OutputError, match=r"scores.parquet cannot be written \(No space left on device\)"):
        table(support=np.zeros((2, 2, 3))).save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")

    def write(temporary: Path) -> None:
        temporary.write_text("new")
        assert temporary.parent == tmp_path
        assert path.read_text() == "old"

    atomic_write(path, write)
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["page.html"]


def test_an_error_that_is_not_about_the_file_passes_through(tmp_path: Path) -> None:
    def write(temporary: Path) -> None:
        temporary.write_text("half")
        raise KeyboardInterrupt

    (tmp_path / "page.html").write_text("old")
    with pytest.raises(KeyboardInterrupt):
        atomic_write(tmp_path / "page.html", write)
    assert (tmp_path / "page.html").read_text() == "old"
    assert os.listdir(tmp_path) == ["page.html"]


def test_folders_that_were_made_go_with_what_could_not_be_written(tmp_path: Path) -> None:
    def write(temporary: Path) -> None:
        temporary.write_text("half")
        raise OSError(28, "No space left on device")

    (tmp_path / "old").mkdir()
    for folder in ("new/inner", "old/inner"):
        with pytest.raises(OutputError, match="No space left"):
            write_together(
                {tmp_path / folder / "a": lambda path: path.write_text("whole"), tmp_path / folder / "b": write}
            )
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["old"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    atomic_write(tmp_path / "link.txt", lambda temporary: temporary.write_text("new"))
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "new"


@pytest.mark.parametrize("place", ["folder", "file/below", "pipe"])
def test_a_place_that_holds_no_file_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")  # stands for /dev/null, which a test must not put at risk
    (tmp_path / "file").write_text("a file, not a folder")
    with pytest.raises(OutputError, match=place):
        atomic_write(tmp_path / place, lambda temporary: temporary.write_text("new"))
    assert sorted(os.listdir(tmp_path)) == ["file", "folder", "pipe"]
    assert (tmp_path / "pipe").is_fifo()


def test_importing_the_scores_costs_little() -> None:
    code = "import sys, headlens.scores; print([m for m in ('torch', 'pandas', 'pyarrow') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
