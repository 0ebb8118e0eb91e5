"""A profile for other tools: tables in three formats, the file of roles, arrays for BertViz. No torch here."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from headlens.errors import OutputError
from headlens.files import Write, write_together
from headlens.role_files import ProfileParts, RoleFile, reason_to_withhold
from headlens.roles.table import Roles
from headlens.spreadsheets import csv_writer

if TYPE_CHECKING:
    import pandas as pd

FORMATS = ("parquet", "csv", "json", "roles", "bertviz")
TABLES = ("head-scores", "head-roles", "head-evidence")  # names of the files that hold tables, without their ending


@runtime_checkable
class TextAttention(Protocol):
    """Attention of one text; what `collect` gives has it."""

    @property
    def text(self) -> str: ...
    @property
    def tokens(self) -> list[str]: ...
    @property
    def probs(self) -> NDArray[np.float32] | None: ...  # [layer, head, query, key]


def export(
    profile: ProfileParts,
    folder: str | os.PathLike[str],
    formats: Collection[str],
    *,
    texts: Sequence[TextAttention] = (),
) -> list[Path]:
    """Write a profile for other tools into a folder, all files or none; gives their paths.

    "parquet", "csv", "json" write a table of all scores (head-scores), one of the roles (head-roles) and, of annotated
    corpora, one of the evidence (head-evidence); "roles" writes roles.json; "bertviz" the attention of `texts`.

    Raises
    ------
    OutputError
        A format is not known, "bertviz" comes without texts, or the folder cannot be written to.
    """
    if isinstance(formats, str) or not formats or set(formats) - set(FORMATS):
        unknown = ", ".join(sorted(set(formats) - set(FORMATS))) if not isinstance(formats, str) else formats
        raise OutputError(f"A profile is exported to {', '.join(FORMATS)}, got {unknown or 'none of them'}.")
    files: dict[str, Write] = {}
    tables = _tables(profile)
    for ending in [ending for ending in ("parquet", "csv", "json") if ending in formats]:
        files |= {f"{name}.{ending}": _TABLE_WRITERS[ending](table) for name, table in tables.items()}
    if "roles" in formats:
        files |= RoleFile.of(profile).writers()
    if "bertviz" in formats:
        files |= bertviz_writers(texts)
    write_together({Path(folder) / name: write for name, write in files.items()})
    for name in set(TABLES) - tables.keys():  # of an earlier export, when there was more
        for ending in set(formats) & set(_TABLE_WRITERS):
            (Path(folder) / f"{name}.{ending}").unlink(missing_ok=True)
    return [Path(folder) / name for name in files]


def bertviz_arrays(collected: TextAttention) -> tuple[list[NDArray[np.float32]], list[str]]:
    """`attention` (of each layer [1, head, token, token]) and `tokens`, as BertViz's head_view and model_view take
    them, but for torch.from_numpy of each layer."""
    if collected.probs is None:
        raise OutputError('BertViz draws probabilities, which were not collected; collect with what="probs".')
    return [layer[None] for layer in collected.probs], list(collected.tokens)


def bertviz_writers(texts: Sequence[TextAttention]) -> dict[str, Write]:
    """bertviz.json, a list of texts with their tokens, and bertviz.npz with an array [layer, 1, head, token, token] for
    each of them."""
    if not texts:
        raise OutputError(
            "BertViz shows the attention of texts, which a profile does not keep; give at least one text."
        )
    arrays, entries = {}, []
    for place, one in enumerate(texts):
        attention, tokens = bertviz_arrays(one)
        arrays[f"text_{place}"] = np.stack(attention)
        entries.append({"array": f"text_{place}", "text": one.text, "tokens": tokens})
    listed = (json.dumps(entries, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "replace")

    def write_arrays(path: Path) -> None:
        with path.open("wb") as file:  # given a path, NumPy would add an ending of its own
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

    return {"bertviz.npz": write_arrays, "bertviz.json": lambda path: path.write_bytes(listed)}


def _tables(profile: ProfileParts) -> dict[str, pd.DataFrame]:
    scores = profile.scores
    long = scores.to_frame()
    for place, field in enumerate(("title", "unit"), start=1):
        of_metric = {metric.name: getattr(metric, field) for metric in scores}
        long.insert(place, field, long["metric"].map(of_metric))
    roles = profile.roles
    shown = roles if reason_to_withhold(profile.provenance) is None else Roles(roles.n_layers, roles.n_heads, (), ())
    held = shown.to_frame()
    held.insert(1, "title", held["role"].map({role.id: role.title for role in roles.asked}))
    tables = {"head-scores": long, "head-roles": held}
    return tables | ({} if profile.evidence is None else {"head-evidence": profile.evidence.to_frame()})


def _to_parquet(table: pd.DataFrame) -> Write:
    import pyarrow as pa
    import pyarrow.parquet as pq

    return lambda path: pq.write_table(pa.Table.from_pandas(table, preserve_index=False), path)


def _to_json(table: pd.DataFrame) -> Write:
    rows = table.astype(object).where(table.notna(), None).to_numpy().tolist()
    lines = ",\n".join(json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows)
    columns = json.dumps(list(table.columns), ensure_ascii=False)
    text = f'{{"columns": {columns},\n"data": [\n{lines}\n]}}\n'.encode("utf-8", "replace")
    return lambda path: path.write_bytes(text)


_TABLE_WRITERS = {"parquet": _to_parquet, "csv": csv_writer, "json": _to_json}
