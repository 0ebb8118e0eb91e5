"""Several models, whole or pruned, asked the same: figures, differences to one of them, sizes and speed."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import huggingface_hub

from headlens.checkpoints import BUNDLES, find_checkpoint
from headlens.errors import CorpusError, OutputError, UnsupportedModel
from headlens.evaluation import Difference, Task, TaskResult, evaluate, paired_difference, run_lm_eval
from headlens.evaluation.harness import lm_eval_package
from headlens.files import atomic_write
from headlens.manifest import has_manifest, read_manifest, source_of
from headlens.measure import (
    CacheBytes,
    DiskBytes,
    Parameters,
    Speed,
    Workload,
    bytes_on_disk,
    measure_speed,
    sizes_of,
)
from headlens.models import LoadedModel, load_whole
from headlens.provenance import circumstances

SCHEMA_VERSION = "headlens.evaluation/1"

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Answered:
    """One model: what it said, and what it takes. Differences and speeds are to the model that all are held against;
    they are empty of that model itself."""

    name: str
    facts: dict[str, Any]  # source, revision, hash of the weights, class, heads
    results: tuple[TaskResult, ...]  # one a task
    lm_eval: dict[str, dict[str, float]]  # by task of lm-evaluation-harness
    parameters: Parameters
    disk: DiskBytes
    cache: CacheBytes | None  # None of encoders
    made_from: str | None = None  # as the manifest of a checkpoint that came out of surgery has it
    differences: tuple[Difference | None, ...] = ()  # one a task; None where no metric says anything between the two
    speeds: tuple[Speed, ...] = ()
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "name": self.name,
            **self.facts,
            "made_from": self.made_from,
            "tasks": [result.to_dict() for result in self.results],
            "lm_eval": self.lm_eval,
            "parameters": asdict(self.parameters),
            "bytes_on_disk": asdict(self.disk),
            "bytes_of_cache": None if self.cache is None else asdict(self.cache),
            "differences": [None if one is None else asdict(one) for one in self.differences],
            "speed": [speed.to_dict() for speed in self.speeds],
            "notes": list(self.notes),
        }


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The models in the order in which they were named, after the one that they are held against."""

    models: tuple[Answered, ...]
    against: str | None = None
    hints: tuple[str, ...] = ()  # what could be asked next
    facts: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        tasks = ", ".join(result.task for result in self.models[0].results) or "no task"
        against = "" if self.against is None else f", held against {self.against}"
        return f"<Evaluation of {', '.join(model.name for model in self.models)}: {tasks}{against}>"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what is no number, as intervals over a single item, becomes None."""
        found = {
            "schema": SCHEMA_VERSION,
            **self.facts,
            "against": self.against,
            "models": [model.to_dict() for model in self.models],
        }
        return {name: _plain(value) for name, value in found.items()}

    def save(self, file: str | os.PathLike[str]) -> None:
        """As JSON; OutputError where it cannot be written, and then what was there stays."""
        text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        atomic_write(file, lambda path: path.write_text(text, encoding="utf-8"))


def evaluate_models(
    names: Sequence[str],
    tasks: Sequence[Task],
    *,
    against: str | None = None,
    lm_eval: Sequence[str] = (),
    limit: int | None = None,
    speed: bool = False,
    workloads: Sequence[Workload] | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    seed: int = 0,
    progress: Progress = lambda _what, _done, _of: None,
) -> Evaluation:
    """Ask models the same tasks, one model in memory at a time.

    Parameters
    ----------
    names
        Names, hub ids, folders, pruned checkpoints among them; as `load_whole` takes them.
    tasks
        Read once; every model is asked the same items.
    against
        The model that each of the others is held against, pair by pair over items; it is asked first.
    lm_eval, limit
        Tasks of lm-evaluation-harness, and how many examples of each; it gives no items, so no differences.
    speed
        Time every model in turns with `against`, which stays in memory for that.
    workloads
        None: those of `measure.workloads_of`.
    seed
        Of the bootstrap.

    Raises
    ------
    UnsupportedModel, CorpusError
        A model that cannot be loaded or lacks what a task asks for; speed without a model to hold it against;
        lm-evaluation-harness is not installed.
    """
    listed = list(dict.fromkeys([*([] if against is None else [against]), *names]))
    if not names:
        raise UnsupportedModel("Name at least one model to evaluate.")
    if speed and (against is None or len(listed) < 2):
        raise UnsupportedModel("Speed is measured in turns with another model; name one to hold the model against.")
    if lm_eval:
        lm_eval_package()
    asking = _Asking(
        tuple(tasks), tuple(lm_eval), limit, seed, progress, len(listed) * (1 + len(tasks) + bool(lm_eval))
    )
    found: list[Answered] = []
    kept: LoadedModel | None = None
    for name in listed:
        asking.tell(f"loading {name}")
        loaded = load_whole(name, device=device, dtype=dtype, check=False)
        one = asking.ask(loaded)
        if against is not None and found:
            one = replace(one, **_held_against(one, found[0], seed))
        if kept is not None:
            asking.tell(f"timing {name}", 0)
            one = replace(one, speeds=tuple(measure_speed(loaded.model, kept.model, workloads=workloads)))
        elif speed:
            kept = loaded
        found.append(one)
        del loaded  # before the next one is loaded
    hints = () if against is not None else tuple(_hints(found))
    return Evaluation(
        tuple(found),
        against,
        hints,
        {**circumstances(names[0], None, seed, caller="headlens.evaluating.evaluate_models"), "device": device},
    )


def is_here(name: str) -> bool:
    """Whether a model can be loaded without asking the network for it."""
    try:
        if name in BUNDLES:
            return find_checkpoint(name).folder.is_dir()
        if (folder := Path(name).expanduser()).is_dir():
            return (folder / "config.json").is_file()
        return isinstance(huggingface_hub.try_to_load_from_cache(name, "config.json"), str)
    except (UnsupportedModel, OSError, RuntimeError, ValueError):
        return False


# -------------------------------------------------------------------------------------------------------------- inside


@dataclass(eq=False)
class _Asking:
    """What all models are asked, and how far it has come."""

    tasks: tuple[Task, ...]
    harness_tasks: tuple[str, ...]
    limit: int | None
    seed: int
    progress: Progress
    of: int
    done: int = 0

    def tell(self, what: str, steps: int = 1) -> None:
        self.progress(what, self.done, self.of)
        self.done += steps

    def ask(self, loaded: LoadedModel) -> Answered:
        results = []
        for task in self.tasks:
            self.tell(f"{loaded.name}: {task.name}")
            results.append(evaluate(loaded, task, seed=self.seed))
        harness: dict[str, dict[str, float]] = {}
        if self.harness_tasks:
            self.tell(f"{loaded.name}: lm-evaluation-harness")
            harness = run_lm_eval(loaded, self.harness_tasks, limit=self.limit)
        facts = {key: value for key, value in loaded.provenance.items() if key != "name"}
        sizes, cache = sizes_of(loaded.model)
        folder, disk = _on_disk(loaded)
        made_from, damage = _made_from(folder)
        notes = (*damage, *(f"{result.task}: {note}" for result in results for note in result.notes))
        return Answered(loaded.name, facts, tuple(results), harness, sizes, disk, cache, made_from, notes=notes)


def _on_disk(loaded: LoadedModel) -> tuple[Path, DiskBytes]:
    """The folder of the checkpoint and the bytes in it; of a .gguf file, which may lie among others, its own."""
    revision = loaded.provenance.get("revision")  # of the hub: that which was loaded, so nothing is looked up anew
    checkpoint = find_checkpoint(loaded.name, revision=revision)
    if checkpoint.gguf is None:
        return checkpoint.folder, bytes_on_disk(checkpoint.folder)
    size = (checkpoint.folder / checkpoint.gguf).stat().st_size
    return checkpoint.folder, DiskBytes(size, size)


def _made_from(folder: Path) -> tuple[str | None, tuple[str, ...]]:
    """The name of the original; and a note where a manifest is there that cannot be read."""
    if not has_manifest(folder):
        return None, ()
    try:
        return source_of(read_manifest(folder)), ()
    except OutputError as reason:  # the model was loaded all the same
        return None, (f"{reason} So it is not known what this model was made from.",)


def _held_against(one: Answered, other: Answered, seed: int) -> dict[str, Any]:
    pairs = [_difference(*pair, seed) for pair in zip(one.results, other.results, strict=True)]
    differences = tuple(found if isinstance(found, Difference) else None for found in pairs)
    return {"differences": differences, "notes": one.notes + tuple(found for found in pairs if isinstance(found, str))}


def _difference(result: TaskResult, other: TaskResult, seed: int) -> Difference | str:
    """Of the first metric that says something between the two models; else why there is none."""
    reasons = []
    for metric in result.metrics:
        try:
            return paired_difference(result, other, metric=metric.name, seed=seed)
        except CorpusError as reason:
            reasons.append(str(reason))
    return reasons[0]


def _hints(found: Sequence[Answered]) -> Iterator[str]:
    named = {one.name for one in found}
    for one in found:
        if one.made_from is not None and one.made_from not in named and is_here(one.made_from):
            surgery = one.facts.get("surgery") or {}
            yield (
                f"{one.name} was {surgery.get('kind') or 'made'} from {one.made_from}, which is here: --against "
                f"{one.made_from} shows what that cost."
            )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
