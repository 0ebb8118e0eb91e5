"""What was found out about heads on a family of metrics: rows for people, tests of all heads, files. No torch here."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headlens.errors import OutputError, in_words
from headlens.files import Write, write_together
from headlens.scores import WAY_OUT, head_name, read_arrow
from headlens.spreadsheets import csv_writer
from headlens.wording import is_part_of

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]

SCHEMA_VERSION = "headlens.evidence/1"

ABOVE = "above every baseline"
INFORMED = "above position, not above an informed rule"
SLIGHT = "above position, but by little"
UNDECIDED = "undecided"
EXPLAINED = "a baseline does as well"
CHANCE = "not above chance"
TOO_FEW = "too few"
ONE_DOCUMENT = "one document"
NOT_TESTED = "not tested"

VERDICTS: dict[str, str] = {
    ABOVE: "the held-out accuracy lies above every baseline by the margin, the intervals of the differences lie above "
    "0, and the head stands out from its null among all heads and metrics tested",
    INFORMED: "the same over the baselines that know positions only, and not over a rule that reads the annotated "
    "parts of speech, which no head is given: that rule comes close or does better, be it by far",
    SLIGHT: "certain, but above the baselines that know positions by less than the margin",
    UNDECIDED: "above every baseline by the margin, but an interval holds 0 or the test does not single the head out",
    EXPLAINED: "above chance, but a baseline, or where the head looks on average, comes as close",
    CHANCE: "the interval of the held-out accuracy reaches down to the level of chance",
    TOO_FEW: "fewer decisions than the minimum",
    ONE_DOCUMENT: "all decisions are of one document, so nothing can be held out",
    NOT_TESTED: "left out of the family of tests",
}
"""Every verdict and what it says."""

POSITIVE = (ABOVE, INFORMED)  # the head is above all that it must be above, and that is no accident

PROFILE = "profile"  # name among the baselines
TESTS = ["value", "expected", "profile", "p", "q"]
_KEY = ["metric", "layer", "head"]


@dataclass(frozen=True)
class Baseline:
    """How the chosen head stands against one baseline. All are shares of decisions; NaN where nothing is held out."""

    option: str  # chosen most often on the selection halves; empty where there is nothing to choose
    held_out: float  # accuracy of the baseline on the other halves
    difference: float  # held-out accuracy of the heads minus that of the baseline
    low: float  # of the 95% interval of the difference
    high: float
    full: float  # accuracy on all documents, of the best option there
    is_informed: bool = False  # knows annotation that no head is told: shown, but no bar to a claim


@dataclass(frozen=True)
class MetricEvidence:
    """What is known of one metric and of the head that was chosen for it most often."""

    metric: str
    relation: str
    decisions: int
    documents: int  # folds with a decision
    chance: float  # accuracy of a random choice
    layer: int
    head: int
    share: float  # of the selections that chose this head
    value: float  # accuracy of this head on all documents, so on those it was chosen by, too
    held_out: float  # accuracy on documents that had no say in the choice; NaN where nothing is held out
    low: float  # of its 95% interval
    high: float
    baselines: Mapping[str, Baseline]
    p: float  # of this head
    q: float  # of this head among all heads and metrics of the family; NaN outside of it
    verdict: str

    @property
    def name(self) -> str:
        return head_name(self.layer, self.head)

    @property
    def strongest(self) -> str:
        """Name of the baseline with the largest held-out accuracy; empty where there is none."""
        defined = {name: baseline.held_out for name, baseline in self.baselines.items() if baseline.held_out >= 0}
        return max(defined, key=defined.__getitem__, default="")

    @property
    def rival(self) -> str:
        """The baseline with the largest held-out accuracy of those that a head must be above; empty without any."""
        return self._strongest_of(informed=False)

    @property
    def informed(self) -> str:
        """The baseline with the largest held-out accuracy of those that know what no head is given; empty without."""
        return self._strongest_of(informed=True)

    def _strongest_of(self, *, informed: bool) -> str:
        found = {
            name: b.held_out for name, b in self.baselines.items() if b.held_out >= 0 and b.is_informed == informed
        }
        return max(found, key=found.__getitem__, default="")

    @property
    def gain(self) -> float:
        """Held-out accuracy beyond that of the rival; without any, beyond chance."""
        return self.baselines[self.rival].difference if self.rival else self.held_out - self.chance


@dataclass(frozen=True)
class RelationEvidence(MetricEvidence):
    """The same of a relation, where the metric (the direction) is chosen together with the head.

    `metric` is the one chosen most often; decisions, documents, value, p and q are of that metric.
    """

    metrics: tuple[str, ...]  # that were there to choose from
    p_any: float  # that any head has any of the directions


@dataclass(frozen=True)
class Settings:
    seed: int
    repeats: int  # random halves
    minimum: int  # decisions that a metric needs
    alpha: float  # share of false finds among the claims
    margin: float  # by which a head is above a baseline, relative to the baseline
    folds: int  # with a decision

    def __post_init__(self) -> None:
        if self.repeats < 1 or self.minimum < 1:
            raise OutputError(
                f"There must be at least one repeat and a minimum of at least one decision; got {self.repeats} and "
                f"{self.minimum}."
            )


@dataclass(frozen=True)
class Claim:
    """A head whose excess on a metric is no accident, at the level of all tests. Accuracies are on all documents."""

    metric: str
    layer: int
    head: int
    value: float
    baseline: float  # the largest of all baselines, the head's own profile included
    q: float

    @property
    def name(self) -> str:
        return head_name(self.layer, self.head)


@dataclass(frozen=True, eq=False)
class Evidence:
    """What `weigh` found. The arrays are [metric, layer, head], read-only, in shares of decisions on all documents."""

    metrics: tuple[MetricEvidence, ...]
    relations: tuple[RelationEvidence, ...]
    settings: Settings
    value: Floats
    expected: Floats  # under the permutation null; NaN where there is none
    profile: Floats  # of a head that looks where this one looks on average; NaN where there is none
    p: Floats
    q: Floats  # Benjamini-Hochberg over the family; NaN outside of it

    def __post_init__(self) -> None:
        shape = self.value.shape
        for field in TESTS:
            array = np.array(getattr(self, field), dtype=np.float64)
            array.flags.writeable = False
            object.__setattr__(self, field, array)
            if array.ndim != 3 or array.shape != shape or len(array) != len(self.metrics):
                raise OutputError(
                    f"{field} must be [metric, layer, head] with {len(self.metrics)} metrics and of the shape of "
                    f"value, {shape}; got {array.shape}."
                )

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(row.metric for row in self.metrics)

    def __getitem__(self, metric: str) -> MetricEvidence:
        """The row of a metric, by its name."""
        if metric not in self.names:
            raise OutputError(f"There is no evidence on the metric {metric!r}; there is on {', '.join(self.names)}.")
        return self.metrics[self.names.index(metric)]

    @cached_property
    def distinct_relations(self) -> tuple[RelationEvidence, ...]:
        """Without those that are all there is of another one, so that they would tell the same decisions twice."""
        return tuple(row for row in self.relations if not any(_is_all_of(row, other) for other in self.relations))

    @cached_property
    def best_rival(self) -> Floats:
        """[metric]: accuracy on all documents of the best baseline that is no profile and not informed, else NaN."""
        found = (
            [b.full for name, b in row.baselines.items() if name != PROFILE and not b.is_informed]
            for row in self.metrics
        )
        return np.array([max(values, default=np.nan) for values in found])

    @cached_property
    def excess(self) -> Floats:
        """[metric, layer, head]: accuracy beyond the permutation null; where there is none, beyond the best rival."""
        null = np.where(np.isnan(self.expected), self.best_rival[:, None, None], self.expected)
        return self.value - null

    def claims(self) -> list[Claim]:
        """All heads that hold on a metric, by metric and then by accuracy, the largest first.

        A head holds if its q is below alpha and its accuracy above its own profile and above every rival by the
        margin. Accuracies here are not held out: they flatter the heads, the choice of which is what was tested.
        """
        rival = np.broadcast_to(self.best_rival[:, None, None], self.value.shape)
        baseline = np.fmax(rival, self.profile)
        enough = ~(self.value < (1 + self.settings.margin) * baseline)  # without a baseline, the test alone decides
        found = np.argwhere((self.q < self.settings.alpha) & enough)
        claims = [
            Claim(
                self.names[metric],
                int(layer),
                int(head),
                value=float(self.value[metric, layer, head]),
                baseline=float(baseline[metric, layer, head]),
                q=float(self.q[metric, layer, head]),
            )
            for metric, layer, head in found
        ]
        return sorted(claims, key=lambda claim: (self.names.index(claim.metric), -claim.value))

    def to_frame(self) -> pd.DataFrame:
        """One row a metric: the fields of MetricEvidence, and those of each baseline as columns `baseline.field`."""
        return _frame_of(self.metrics)

    def relations_frame(self) -> pd.DataFrame:
        """One row a relation, as `to_frame`."""
        return _frame_of(self.relations)

    def tests_frame(self) -> pd.DataFrame:
        """One row for each (metric, layer, head)."""
        import pandas as pd

        metric, layer, head = (axis.ravel() for axis in np.indices(self.value.shape))
        columns: dict[str, npt.NDArray[np.generic]] = {
            "metric": np.array(self.names, dtype=object)[metric],
            "layer": layer.astype(np.int64),
            "head": head.astype(np.int64),
            **{field: getattr(self, field).ravel() for field in TESTS},
        }
        return pd.DataFrame(columns)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write tests.parquet (all there is) and evidence.csv (one row a metric)."""
        write_together({Path(folder) / name: write for name, write in self.writers().items()})

    def writers(self) -> dict[str, Write]:
        """What `save` writes, by file name: for those who write more files in the same step."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = self.to_frame()
        metadata = {
            "headlens.schema": SCHEMA_VERSION,
            "headlens.shape": json.dumps(self.value.shape),
            "headlens.settings": json.dumps(asdict(self.settings)),
            "headlens.evidence": json.dumps([asdict(row) for row in self.metrics], ensure_ascii=False),
            "headlens.relations": json.dumps([asdict(row) for row in self.relations], ensure_ascii=False),
        }
        table = pa.Table.from_pandas(self.tests_frame(), preserve_index=False).replace_schema_metadata(metadata)
        return {
            "tests.parquet": lambda path: pq.write_table(table, path),
            "evidence.csv": csv_writer(rows),
        }

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Evidence:
        """Read what `save` wrote, given its folder or tests.parquet; an OutputError says what is wrong, and where."""
        path = Path(folder)
        path = path if path.is_file() else path / "tests.parquet"
        table = read_arrow(path, SCHEMA_VERSION)
        try:
            metadata = {key.decode(): json.loads(text) for key, text in table.schema.metadata.items() if _is_json(key)}
            shape = tuple(metadata["headlens.shape"])
            evidence = cls(
                metrics=tuple(MetricEvidence(**_row(entry)) for entry in metadata["headlens.evidence"]),
                relations=tuple(RelationEvidence(**_row(entry)) for entry in metadata["headlens.relations"]),
                settings=Settings(**metadata["headlens.settings"]),
                **{field: table[field].to_numpy().reshape(shape) for field in TESTS},
            )
            if not evidence.tests_frame()[_KEY].equals(table.select(_KEY).to_pandas(ignore_metadata=True)):
                raise OutputError("the rows are not in the order in which they were written")
        except (KeyError, TypeError, ValueError, AttributeError, OutputError) as reason:
            raise OutputError(f"{path} does not hold evidence that is whole{in_words(reason)}; {WAY_OUT}.") from reason
        return evidence

    def __repr__(self) -> str:
        _, layers, heads = self.value.shape
        return f"<Evidence on {len(self.metrics)} metrics x {layers} layers x {heads} heads>"


def verdict_of(row: Mapping[str, Any], settings: Settings, *, tested: bool) -> str:
    """One of VERDICTS, from the fields of a row; `tested`: its metric is of the family."""
    if row["decisions"] < settings.minimum:
        return TOO_FEW
    if np.isnan(row["held_out"]):
        return ONE_DOCUMENT
    if not tested:
        return NOT_TESTED
    if row["low"] <= row["chance"]:
        return CHANCE
    informed = [baseline for baseline in row["baselines"].values() if baseline.is_informed]
    others = [baseline for baseline in row["baselines"].values() if not baseline.is_informed]

    def is_by_margin(baseline: Baseline) -> bool:
        return bool(row["held_out"] >= (1 + settings.margin) * baseline.held_out)

    by_margin = all(map(is_by_margin, others))
    if not (row["q"] < settings.alpha and all(baseline.low > 0 for baseline in others)):
        return UNDECIDED if by_margin else EXPLAINED
    if not by_margin:
        return SLIGHT
    return ABOVE if all(is_by_margin(baseline) and baseline.low > 0 for baseline in informed) else INFORMED


def _is_all_of(part: MetricEvidence, whole: MetricEvidence) -> bool:
    is_one_direction = part.metric.partition("[")[0] == whole.metric.partition("[")[0]
    return is_part_of(part.relation, whole.relation) and is_one_direction and part.decisions == whole.decisions > 0


def _frame_of(rows: Sequence[MetricEvidence]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame([_flat(row) for row in rows])


def _flat(row: MetricEvidence) -> dict[str, Any]:
    flat: dict[str, Any] = {
        field.name: getattr(row, field.name) for field in fields(row) if field.name not in ("baselines", "metrics")
    }
    for name, baseline in row.baselines.items():
        flat |= {
            f"{name}.{key}": value for key, value in asdict(baseline).items() if name != PROFILE or key != "option"
        }
    return flat


def _row(entry: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a row from JSON, which knows neither tuples nor our classes."""
    entry["baselines"] = {name: Baseline(**baseline) for name, baseline in entry["baselines"].items()}
    if "metrics" in entry:
        entry["metrics"] = tuple(entry["metrics"])
    return entry


def _is_json(key: bytes) -> bool:
    return key.startswith(b"headlens.") and key != b"headlens.schema"
