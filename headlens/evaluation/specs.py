"""Tasks by their names: "sts:FILE", "perplexity:conllu:FILE", "blimp:FOLDER", "grammar:2000", "repeat"."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from headlens.corpora import Corpus, describe_files, read_corpus
from headlens.errors import CorpusError
from headlens.evaluation.grammar import Grammar
from headlens.evaluation.labels import LABEL, SCORE, SECOND, TEXT, Classification, Labelled, Regression
from headlens.evaluation.masked_words import MaskedWords
from headlens.evaluation.minimal_pairs import MinimalPairs, Pair
from headlens.evaluation.perplexity import Perplexity
from headlens.evaluation.repeat import Repeat
from headlens.evaluation.rows import HUB, Row, Table, read_rows
from headlens.evaluation.sts import COLUMNS, ScoredPair, Similarity
from headlens.evaluation.syntaxgym import SyntaxGym, read_suite
from headlens.evaluation.task import Task

_PAIR_FILES = (".jsonl", ".ndjson")
_GROUP = ("UID", "paradigm", "phenomenon")


@dataclass(frozen=True)
class TaskOptions:
    """What a task may be told beside its name; each takes what concerns it and refuses the others."""

    limit: int | None = None  # on documents, rows, or items; of each file
    unit: str = "line"  # of plain text
    columns: Mapping[str, str] | None = None  # ours to theirs
    labels: Mapping[str, str] | None = None  # of the file to those of the model
    revision: str | None = None  # of the hub
    window: int | None = None  # tokens
    stride: int | None = None  # tokens


class TaskKind(NamedTuple):
    read: Callable[[str, str, TaskOptions], Task]  # name, what stands behind the kind, options
    takes: frozenset[str]  # names of options
    example: str
    usual: str | None = None  # what is read where nothing stands behind the kind; None: something must


def task_of(spec: str, kinds: Mapping[str, TaskKind], options: TaskOptions) -> Task:
    """The task of a spec; CorpusError in one sentence, with file and line where there are any."""
    kind, colon, path = spec.partition(":")
    if kind not in kinds:
        close = difflib.get_close_matches(kind.lower(), kinds, n=1)
        meant = f" (did you mean {close[0]}?)" if close else ""
        raise CorpusError(
            f"{spec!r} begins with no kind of task{meant}; write KIND:FILE with one of {', '.join(kinds)}."
        )
    found = kinds[kind]
    name = f"{kind}:{_shown(path)}"
    if not colon and found.usual is not None:
        name, path = kind, found.usual
    if not path.strip():
        raise CorpusError(f"{spec!r} names a kind of task and nothing to read; write {found.example}.")
    _check_options(spec, found, options)
    return found.read(name, path, options)


def _shown(path: str) -> str:
    """What is read, without its folder."""
    before, colon, file = path.partition(":")
    if not os.path.lexists(path) and colon and os.path.lexists(file):
        return f"{before}:{Path(file).name}"
    return Path(path).name if os.path.lexists(path) else path


def _check_options(spec: str, kind: TaskKind, options: TaskOptions) -> None:
    if options.limit is not None and options.limit < 1:
        raise CorpusError(f"{spec}: the limit is at least 1 (leave it out to read all); got {options.limit}.")
    for field in fields(options):
        if getattr(options, field.name) != field.default and field.name not in kind.takes:
            raise CorpusError(f"{spec}: this kind of task has no {field.name}; leave it out.")


# ------------------------------------------------------------------------------------------------------------- reading


def read_perplexity(name: str, path: str, options: TaskOptions) -> Task:
    corpus = _corpus(path, options)
    return Perplexity(
        corpus.documents, name=name, window=options.window, stride=options.stride, sources=_plain(corpus.sources)
    )


def read_masked_words(name: str, path: str, options: TaskOptions) -> Task:
    corpus = _corpus(path, options)
    return MaskedWords(corpus.documents, name=name, sources=_plain(corpus.sources))


def read_pairs(name: str, path: str, options: TaskOptions) -> Task:
    """Of one file, of all .jsonl files of a folder, or of a data set of the hub."""
    pairs, sources = list[Pair](), []
    for file in [path] if path.startswith(HUB) else _files(path):
        table = read_rows(file, limit=options.limit, revision=options.revision)
        columns = table.pick({"good": ("sentence_good", "good"), "bad": ("sentence_bad", "bad")}, options.columns)
        group = next((column for column in _GROUP if column in table.columns), None)
        for row in table.rows:
            own = Path(file).stem if group is None else str(row.values[group])
            pairs.append(Pair(row.text(columns["good"]), row.text(columns["bad"]), row.place, own))
        sources.append(table.source)
    return MinimalPairs(pairs, name=name, sources=_plain(sources))


def read_syntaxgym(name: str, path: str, options: TaskOptions) -> Task:
    items, formulas = read_suite(path, limit=options.limit)
    return SyntaxGym(items, formulas, name=name, sources=_plain(describe_files(path)))


def read_similarity(name: str, path: str, options: TaskOptions) -> Task:
    table = read_rows(path, limit=options.limit, revision=options.revision)
    columns = table.pick(COLUMNS, options.columns)
    pairs = [
        ScoredPair(row.text(columns["first"]), row.text(columns["second"]), row.number(columns["score"]), row.place)
        for row in table.rows
    ]
    return Similarity(pairs, name=name, sources=_plain([table.source]))


def read_classification(name: str, path: str, options: TaskOptions) -> Task:
    table, rows = _labelled(path, options, LABEL, lambda row, column: str(row.values[column]))
    return Classification(rows, name=name, names=options.labels, sources=_plain([table.source]))


def read_regression(name: str, path: str, options: TaskOptions) -> Task:
    table, rows = _labelled(path, options, SCORE, lambda row, column: str(row.number(column)))
    return Regression(rows, name=name, sources=_plain([table.source]))


def read_grammar_task(name: str, path: str, options: TaskOptions) -> Task:
    return Grammar.of(path, name=name)


def read_repeat(name: str, path: str, options: TaskOptions) -> Task:
    return Repeat.of(path, name=name)


def _corpus(path: str, options: TaskOptions) -> Corpus:
    return read_corpus(path, unit=options.unit, limit=options.limit, columns=options.columns, revision=options.revision)


def _files(path: str) -> list[str]:
    if not Path(path).is_dir():
        return [path]
    found = sorted(str(file) for file in Path(path).iterdir() if file.suffix.lower() in _PAIR_FILES)
    if not found:
        raise CorpusError(f"{path}: the folder holds no file of pairs (*.jsonl); name one that does.")
    return found


def _labelled(
    path: str, options: TaskOptions, names: tuple[str, ...], label: Callable[[Row, str], str]
) -> tuple[Table, list[Labelled]]:
    table = read_rows(path, limit=options.limit, revision=options.revision)
    wanted = {"text": TEXT, "label": names}
    if "second" in (options.columns or {}) or any(column in table.columns for column in SECOND):
        wanted["second"] = SECOND
    columns = table.pick(wanted, options.columns)
    second = columns.get("second")
    rows = [
        Labelled(
            row.text(columns["text"]),
            None if second is None else row.text(second),
            label(row, columns["label"]),
            row.place,
        )
        for row in table.rows
    ]
    return table, rows


def _plain(sources: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [dict(source) for source in sources]
