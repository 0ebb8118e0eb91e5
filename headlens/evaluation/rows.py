"""Rows of tables that a task is read from: CSV, TSV, JSON lines, JSON, parquet, or a data set of the hub."""

from __future__ import annotations

import csv
import glob
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from headlens.corpora import describe_files
from headlens.corpora.tabular import HUB_NAME, commit_of, datasets_quiet, reason_of
from headlens.corpora.text import existing_file, text_lines
from headlens.errors import CorpusError

HUB = "hub:"


@dataclass(frozen=True)
class Row:
    values: Mapping[str, Any]
    place: str  # "file.csv, line 3", for messages and as the item's name

    def text(self, column: str) -> str:
        """A string that is not blank."""
        found = self.values[column]
        if not isinstance(found, str) or not found.strip():
            raise CorpusError(f"{self.place}: expected text in the column {column}, got {found!r:.40}; mend the row.")
        return found

    def number(self, column: str) -> float:
        """A finite number, or a string that is one."""
        found = self.values[column]
        try:
            value = math.nan if isinstance(found, bool) else float(found)
        except (TypeError, ValueError):
            value = math.nan
        if not math.isfinite(value):
            raise CorpusError(
                f"{self.place}: expected a number in the column {column}, got {found!r:.40}; mend the row."
            )
        return value


@dataclass(frozen=True)
class Table:
    name: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    source: Mapping[str, Any]  # what names the very same data again

    def pick(self, wanted: Mapping[str, Sequence[str]], named: Mapping[str, str] | None = None) -> dict[str, str]:
        """The table's columns by our names: those that `named` gives, then the first of the names that we know it by.

        Raises CorpusError where one is not there.
        """
        named = named or {}
        if unknown := sorted(set(named) - set(wanted)):
            raise CorpusError(f"{self.name}: a column is one of {', '.join(wanted)} here, not {', '.join(unknown)}.")
        found = {}
        for ours, names in wanted.items():
            options = [named[ours]] if ours in named else [name for name in names if name in self.columns]
            if not options or options[0] not in self.columns:
                what = f"no column {named[ours]!r}" if ours in named else f"no column for {ours} ({', '.join(names)})"
                raise CorpusError(
                    f"{self.name}: there is {what}; the columns are {', '.join(self.columns)}: say which, as "
                    f"--columns {ours}={self.columns[0]}."
                )
            found[ours] = options[0]
        return found


def read_rows(spec: str | os.PathLike[str], *, limit: int | None = None, revision: str | None = None) -> Table:
    """The rows of a local file, or of "hub:owner/name:config@split" (split "test" where it is left out).

    Text files are told by their ending, .json, .jsonl and .ndjson, or else by their header: with a tab in it they are
    tab-separated without quotes, else comma-separated. `limit` is the number of rows to read (None = all), `revision`
    a branch, tag or commit of the hub.

    Raises CorpusError with file and line where something is no table.
    """
    name = os.fspath(spec)
    if name.startswith(HUB):
        return _hub_table(name.removeprefix(HUB), limit, revision)
    if revision is not None:
        raise CorpusError(f"{name}: only data sets of the hub have a revision; leave it out.")
    file = existing_file(name)
    ending = file.suffix.lower()
    if ending == ".parquet":
        request = {"path": "parquet", "data_files": glob.escape(str(file)), "split": "train"}
        return _table(file.name, _opened(str(file), request, limit), describe_files(file)[0])
    read = {".jsonl": _json_lines, ".ndjson": _json_lines, ".json": _json}.get(ending, _separated)
    return _table(file.name, islice(read(file), limit), describe_files(file)[0])


def _table(name: str, rows: Iterable[Row], source: Mapping[str, Any]) -> Table:
    found = tuple(rows)
    if not found:
        raise CorpusError(f"{name}: expected a table with rows, found none; name one that holds some.")
    columns = tuple(found[0].values)
    for row in found:
        if missing := [column for column in columns if column not in row.values]:
            raise CorpusError(f"{row.place}: there is no {missing[0]} here, as in the rows before; mend the row.")
    return Table(name, columns, found, source)


def _separated(file: Path) -> Iterator[Row]:
    lines = text_lines(file)
    number, header = next(((number, line) for number, line in lines if line.strip()), (0, ""))
    options: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if "\t" in header else {"strict": True}
    columns = next(csv.reader([header], **options), [])
    if len(set(columns)) < len(columns):
        raise CorpusError(f"{file}, line {number}: two columns have one name; give each its own.")
    reader = csv.reader((line + "\n" for _, line in lines), **options)
    while True:
        line = number + reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise CorpusError(f"{file}, line {line}: this is no row of a table ({error}); mend it.") from None
        if cells is None:
            return
        if not cells:
            continue
        if len(cells) != len(columns):
            raise CorpusError(
                f"{file}, line {line}: expected {len(columns)} cells ({', '.join(columns)}), got {len(cells)}; mend "
                f"the row."
            )
        yield Row(dict(zip(columns, cells, strict=True)), f"{file.name}, line {line}")


def _json_lines(file: Path) -> Iterator[Row]:
    for number, line in text_lines(file):
        if line.strip():
            yield Row(_object(line, f"{file}, line {number}"), f"{file.name}, line {number}")


def _json(file: Path) -> Iterator[Row]:
    """A list of objects, or one object a line under the wrong ending."""
    lines = list(text_lines(file))
    if next((line for _, line in lines if line.strip()), "").lstrip().startswith("{"):
        yield from _json_lines(file)
        return
    try:
        found = json.loads("\n".join(line for _, line in lines))
    except (ValueError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise CorpusError(f"{file}{line}: this is not JSON ({error}); mend the file.") from None
    for number, entry in enumerate(found if isinstance(found, list) else [], start=1):
        if not isinstance(entry, dict):
            raise CorpusError(f"{file}, entry {number}: expected an object, got {type(entry).__name__}; mend the file.")
        yield Row(entry, f"{file.name}, entry {number}")


def _object(line: str, place: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{place}: this is not JSON ({error}); mend the line.") from None
    if not isinstance(found, dict):
        raise CorpusError(f"{place}: expected a JSON object, got {type(found).__name__}; mend the line.")
    return found


def _hub_table(spec: str, limit: int | None, revision: str | None) -> Table:
    match = HUB_NAME.fullmatch(spec)
    if match is None:
        raise CorpusError(f"A data set of the hub is named as hub:owner/name:config@split, got {HUB}{spec}.")
    name, config, split = match["id"], match["config"], match["split"] or "test"
    if Path(name).exists():  # load_dataset would read it in place of the hub's
        raise CorpusError(f"{spec}: there is a folder {name} here, which hides the hub's; start from another folder.")
    commit = commit_of(spec, name, revision)
    request = {"path": name, "name": config, "split": split, "revision": commit}
    source = {"name": name, "config": config, "split": split, "revision": commit}
    return _table(spec, _opened(spec, request, limit), source)


def _opened(place: str, request: Mapping[str, Any], limit: int | None) -> Iterator[Row]:
    """Rows through `datasets`; numbers that stand for names become those names."""
    from datasets import load_dataset

    try:
        with datasets_quiet():
            data = load_dataset(**request, streaming=True)
            features = data.features or {}
            names = {column: found for column, kind in features.items() if (found := getattr(kind, "names", None))}
            for number, values in enumerate(islice(data, limit), start=1):
                yield Row(
                    {name: _named(value, names.get(name)) for name, value in values.items()}, f"{place}, row {number}"
                )
    except CorpusError:
        raise
    except Exception as error:  # whatever pyarrow, pandas and the network raise
        raise CorpusError(
            f"{place}: cannot be read ({reason_of(error)}); check that it is there and a whole table."
        ) from error


def _named(value: Any, names: Sequence[str] | None) -> Any:
    return names[value] if names and isinstance(value, int) and 0 <= value < len(names) else value
