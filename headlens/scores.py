"""Scores of every head: one table of metric by layer by head, with support, interval and chance. No torch here."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np
import numpy.typing as npt

from headlens.errors import OutputError, in_words
from headlens.files import Write, write_together
from headlens.numbers import Unit as Unit
from headlens.numbers import amount, layers_of_heads
from headlens.spreadsheets import csv_writer

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Floats = npt.NDArray[np.float64]

SCHEMA_VERSION = "headlens.scores/1"

SCHEMA: dict[str, str] = {
    "metric": "name of the score, such as position.mass[-1]; with .macro at the end it is the mean of each input's own",
    "layer": "layer of the head, counted from 0",
    "head": "head within its layer, counted from 0",
    "value": "the score, in the metric's unit; empty where the head is absent or the score not defined",
    "support": "what the score rests on: how many rows of attention (or other items) went into it",
    "low": "lower end of the 95% interval of the value, from resampling documents; empty where there is none",
    "high": "upper end of that interval",
    "chance": "the score of a head that attends to all visible tokens alike; the same for all heads of a metric",
}
"""Columns of scores.parquet and scores.csv in their order, one row for each (metric, layer, head)."""

_KEY = ["metric", "layer", "head"]
_NUMBERS = ["value", "support", "low", "high", "chance"]
_ARRAYS = ("values", "support", "low", "high", "chance")
_MACRO = ".macro"
WAY_OUT = "run the profile again"


@dataclass(frozen=True)
class Metric:
    """What one score is: `family.name`, or `family.name[offset]`, with `.macro` at the end for means of inputs."""

    name: str
    title: str  # a few words for a heading
    meaning: str  # one sentence for a reader
    unit: Unit

    def __post_init__(self) -> None:
        if self.unit not in get_args(Unit):
            raise OutputError(f"metric {self.name}: the unit must be one of {get_args(Unit)}, got {self.unit!r}.")

    @property
    def is_macro(self) -> bool:
        return self.name.endswith(_MACRO)

    @property
    def family(self) -> str:
        return self.name.split(".", 1)[0]


@dataclass(frozen=True)
class HeadScore:
    """One number of a ScoreTable with all that belongs to it."""

    layer: int
    head: int
    value: float
    low: float
    high: float
    chance: float
    support: float

    @property
    def name(self) -> str:
        return head_name(self.layer, self.head)


def head_name(layer: int, head: int) -> str:
    return f"L{layer}H{head}"


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """Scores of all heads of a model. The arrays are copied and read-only; compare tables with `equals`.

    NaN in `values` says that the head is absent or the metric not defined for it; NaN in `low` and `high` that there
    is no interval; NaN in `chance` that no chance level is known. An interval need not hold its value: a percentile
    interval of a skewed ratio may lie beside it.
    """

    metrics: tuple[Metric, ...]
    values: Floats  # [metric, layer, head]
    support: Floats  # [metric, layer, head]
    low: Floats  # [metric, layer, head]
    high: Floats  # [metric, layer, head]
    chance: Floats  # [metric]

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics", tuple(self.metrics))
        for field in _ARRAYS:
            array = np.array(getattr(self, field), dtype=np.float64)
            array.flags.writeable = False
            object.__setattr__(self, field, array)
        self._check_names()
        self._check_shapes()
        self._check_numbers()

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(metric.name for metric in self.metrics)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.names)}

    @property
    def n_layers(self) -> int:
        return self.values.shape[1]

    @property
    def n_heads(self) -> int:
        """Heads of a layer, absent ones included."""
        return self.values.shape[2]

    @property
    def n_present(self) -> int:
        """Heads for which at least one metric is defined."""
        return int(np.isfinite(self.values).any(axis=0).sum())

    def __contains__(self, metric: object) -> bool:
        return metric in self._places

    def __iter__(self) -> Iterator[Metric]:
        return iter(self.metrics)

    def __getitem__(self, metric: str) -> Floats:
        """Values [layer, head] of a metric, by its name."""
        return self.values[self.index(metric)]

    def index(self, metric: str) -> int:
        """Place of a metric on the first axis of the arrays."""
        if metric not in self._places:
            close = difflib.get_close_matches(metric, self.names, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(close)}?" if close else f"it has {', '.join(self.names)}."
            raise OutputError(f"The table has no metric {metric!r}; {hint}")
        return self._places[metric]

    def score(self, metric: str, layer: int, head: int) -> HeadScore:
        if not (0 <= layer < self.n_layers and 0 <= head < self.n_heads):
            raise OutputError(
                f"The table has {layers_of_heads(self.n_layers, self.n_heads)}, no {head_name(layer, head)}."
            )
        place = (self.index(metric), layer, head)
        return HeadScore(
            layer,
            head,
            value=float(self.values[place]),
            low=float(self.low[place]),
            high=float(self.high[place]),
            chance=float(self.chance[place[0]]),
            support=float(self.support[place]),
        )

    def best(self, metric: str, n: int = 5, *, smallest: bool = False) -> list[HeadScore]:
        """The `n` heads with the largest (or smallest) values, in order; of equal ones the earlier. NaN is left out."""
        values = self[metric].ravel()
        order = np.argsort(values if smallest else -values, kind="stable")  # NaN sorts last
        chosen = order[: int(np.isfinite(values).sum())][:n]
        return [self.score(metric, *divmod(int(place), self.n_heads)) for place in chosen]

    def to_frame(self) -> pd.DataFrame:
        """Long form: the columns of SCHEMA, one row for each (metric, layer, head)."""
        import pandas as pd

        metric, layer, head = (axis.ravel() for axis in np.indices(self.values.shape))
        columns: dict[str, npt.NDArray[np.generic]] = {
            "metric": np.array(self.names, dtype=object)[metric],
            "layer": layer.astype(np.int64),
            "head": head.astype(np.int64),
            "value": self.values.ravel(),
            "support": self.support.ravel(),
            "low": self.low.ravel(),
            "high": self.high.ravel(),
            "chance": self.chance[metric],
        }
        return pd.DataFrame({name: columns[name] for name in SCHEMA})

    @classmethod
    def from_frame(cls, frame: pd.DataFrame, metrics: Sequence[Metric]) -> ScoreTable:
        """The table of a long form, whose rows may come in any order; `metrics` gives the order, titles and units.

        Raises
        ------
        OutputError
            A column is missing or of the wrong type, a (metric, layer, head) is there twice or not at all, a metric is
            not in `metrics`, or its chance level differs between rows.
        """
        _check_frame(frame, metrics)
        names = [metric.name for metric in metrics]
        shape = (len(names), int(frame["layer"].max()) + 1, int(frame["head"].max()) + 1)
        if len(frame) != shape[0] * shape[1] * shape[2]:
            raise OutputError(
                f"{amount(shape[0], 'metric')} of {layers_of_heads(*shape[1:])} need "
                f"{shape[0] * shape[1] * shape[2]} rows, one for each (metric, layer, head), got {len(frame)}."
            )
        metric = frame["metric"].map({name: place for place, name in enumerate(names)}).to_numpy(np.int64)
        place = (metric, frame["layer"].to_numpy(np.int64), frame["head"].to_numpy(np.int64))
        arrays = {name: np.empty(shape) for name in _NUMBERS}
        for name, array in arrays.items():
            array[place] = frame[name].to_numpy(np.float64, na_value=np.nan)
        chance = arrays.pop("chance")
        _check_one_chance(chance, names)
        values = arrays.pop("value")
        return cls(tuple(metrics), values=values, chance=chance[:, 0, 0], **arrays)

    @classmethod
    def joined(cls, tables: Sequence[ScoreTable]) -> ScoreTable:
        """The metrics of several tables of the same heads, one table after the other."""
        return cls(
            metrics=tuple(metric for table in tables for metric in table.metrics),
            **{name: np.concatenate([getattr(table, name) for table in tables]) for name in _ARRAYS},
        )

    def __repr__(self) -> str:
        return f"<ScoreTable of {len(self.metrics)} metrics x {self.n_layers} layers x {self.n_heads} heads>"

    def equals(self, other: ScoreTable) -> bool:
        """Same metrics and exactly the same numbers; NaN equals NaN."""
        pairs = ((getattr(self, name), getattr(other, name)) for name in _ARRAYS)
        return self.metrics == other.metrics and all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write scores.parquet (all there is) and scores.csv (the numbers, digits enough to read them back exactly)."""
        write_together({Path(folder) / name: write for name, write in self.writers().items()})

    def writers(self) -> dict[str, Write]:
        """What `save` writes, by file name: for those who write more files in the same step."""
        import pyarrow.parquet as pq

        frame = self.to_frame()
        table = _to_arrow(frame, self.metrics)
        return {
            "scores.parquet": lambda path: pq.write_table(table, path),
            "scores.csv": csv_writer(frame),
        }

    def fingerprint(self) -> str:
        """The same for tables with the same metrics and numbers, and for no others."""
        digest = hashlib.sha256("\n".join(self.names).encode())
        for array in (self.values, self.support, self.low, self.high, self.chance):
            digest.update(np.where(np.isnan(array), np.nan, array).tobytes())  # one NaN for all
        return digest.hexdigest()

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> ScoreTable:
        """Read what `save` wrote, given its folder or scores.parquet; an OutputError says what is wrong, and where."""
        path = Path(folder)
        path = path if path.is_file() else path / "scores.parquet"
        table = read_arrow(path, SCHEMA_VERSION)
        try:
            return cls.from_frame(table.to_pandas(ignore_metadata=True), _read_metrics(table))
        except OutputError as reason:
            raise OutputError(f"{path} does not hold a table of scores{in_words(reason)}; {WAY_OUT}.") from reason

    def _check_names(self) -> None:
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        if twice:
            raise OutputError(f"Every metric needs a name of its own, got {', '.join(twice)} more than once.")

    def _check_shapes(self) -> None:
        shape = self.values.shape
        if len(shape) != 3 or 0 in shape or shape[0] != len(self.metrics):
            raise OutputError(
                f"values must be [metric, layer, head] with {len(self.metrics)} metrics and at least one of each, "
                f"got shape {shape}."
            )
        for field, expected in (("support", shape), ("low", shape), ("high", shape), ("chance", shape[:1])):
            found = getattr(self, field).shape
            if found != expected:
                raise OutputError(f"{field} must have shape {expected} to go with values, got {found}.")

    def _check_numbers(self) -> None:
        for field in _ARRAYS:
            endless = np.isinf(getattr(self, field))
            self._refuse(endless, f"{field} must be finite, or NaN where not defined, got an infinite number")
        self._refuse(self.low > self.high, "low must not be above high")
        self._refuse(self.support < 0, "support must not be negative")

    def _refuse(self, broken: npt.NDArray[np.bool_], rule: str) -> None:
        if broken.any():
            raise OutputError(f"{rule} (metric {self.names[np.argwhere(broken)[0, 0]]}).")


def _check_frame(frame: pd.DataFrame, metrics: Sequence[Metric]) -> None:
    missing = [column for column in SCHEMA if column not in frame.columns]
    if missing:
        raise OutputError(f"The column {', '.join(missing)} is missing; a table of scores has {', '.join(SCHEMA)}.")
    for column in SCHEMA:
        kinds = {"metric": "OUTS", "layer": "iu", "head": "iu"}.get(column, "fiu")
        if frame[column].dtype.kind not in kinds:
            raise OutputError(f"The column {column} has the wrong type, {frame[column].dtype}.")
    if frame.empty or (frame[["layer", "head"]] < 0).any(axis=None):
        raise OutputError("Layers and heads are counted from 0 and there must be at least one row.")
    twice = frame.duplicated(_KEY)
    if twice.any():
        metric, layer, head = frame.loc[twice, _KEY].iloc[0]
        raise OutputError(f"{metric} of {head_name(int(layer), int(head))} is there more than once.")
    odd = set(frame["metric"]) ^ {metric.name for metric in metrics}
    if odd:
        raise OutputError(f"Rows and list of metrics differ in {', '.join(sorted(map(str, odd)))}.")


def _check_one_chance(chance: Floats, names: Sequence[str]) -> None:
    for name, levels in zip(names, chance, strict=True):
        if not np.array_equal(levels, np.broadcast_to(levels[0, 0], levels.shape), equal_nan=True):
            raise OutputError(f"{name} must have one chance level, got several.")


def _to_arrow(frame: pd.DataFrame, metrics: Sequence[Metric]) -> pa.Table:
    import pyarrow as pa

    metadata = {
        "headlens.schema": SCHEMA_VERSION,
        "headlens.metrics": json.dumps([asdict(metric) for metric in metrics], ensure_ascii=False),
    }
    return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(metadata)


def read_arrow(path: Path, version: str) -> pa.Table:
    """A parquet file of ours, of the one schema version that can be read. Raises OutputError, with the way out."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with path.open("rb") as file:
            table = pq.read_table(file)
    except FileNotFoundError as reason:
        raise OutputError(f"{path} is not there; give the folder of a profile, or {WAY_OUT}.") from reason
    except (pa.ArrowException, OSError) as reason:
        why = f" ({reason.strerror})" if isinstance(reason, OSError) and reason.strerror else ""
        raise OutputError(f"{path} cannot be read as a parquet file{why}; {WAY_OUT}.") from reason
    found = (table.schema.metadata or {}).get(b"headlens.schema", b"none").decode("utf-8", "replace")
    if found != version:
        raise OutputError(
            f"{path} has the schema {found!r}, this headlens reads {version!r}; read it with the headlens "
            f"that wrote it, or {WAY_OUT}."
        )
    return table


def _read_metrics(table: pa.Table) -> list[Metric]:
    try:
        return [Metric(**entry) for entry in json.loads(table.schema.metadata[b"headlens.metrics"])]
    except (KeyError, TypeError, ValueError) as reason:
        raise OutputError("Its list of metrics (headlens.metrics) is broken.") from reason
