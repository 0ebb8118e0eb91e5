"""Tables of sentences: local files and sets of the hub, through the `datasets` library. No torch here."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

from headlens.corpora.table_rows import Row, RowReader
from headlens.corpora.text import OnBad, at_least_one, existing_file, read_each
from headlens.documents import Document, Sentence
from headlens.errors import CorpusError

# What a column is here, and the names under which it is recognised
FIELDS: dict[str, tuple[str, ...]] = {
    "text": ("text", "sentence"),
    "words": ("words", "tokens", "form", "forms"),
    "upos": ("upos",),
    "lemmas": ("lemmas", "lemma"),
    "heads": ("heads", "head"),
    "relations": ("relations", "relation", "deprels", "deprel"),
    "document": ("document", "document_id", "doc_id", "doc"),
    "ids": ("ids", "id"),
}
# By ending: the builder of `datasets` and its options. Without na_filter the word "NA" stays a word.
FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    ".parquet": ("parquet", {}),
    ".json": ("json", {}),
    ".jsonl": ("json", {}),
    ".ndjson": ("json", {}),
    ".csv": ("csv", {"na_filter": False}),
    ".tsv": ("csv", {"na_filter": False, "sep": "\t"}),
}
EXAMPLE = "--columns words=tokens,heads=head"

_OF_WORDS = ("upos", "lemmas", "heads", "relations", "ids")
HUB_NAME = re.compile(r"(?P<id>[\w.-]+/[\w.-]+)(:(?P<config>[^@]+))?(@(?P<split>[\w.-]+))?")


def read_table(
    path: str | os.PathLike[str], *, columns: Mapping[str, str] | None = None, on_bad: OnBad | None = None
) -> Iterator[Document]:
    """The documents of a local parquet, JSON, JSON lines, CSV or TSV file, whose rows are sentences; read as a stream.

    `columns` maps our names to those of the file, {"words": "tokens"}; an empty name says that there is none. What it
    leaves out is recognised by name, as FIELDS lists.

    text: the sentence as it is written; by itself it makes documents of plain text.
    words, upos, lemmas, relations: a list with one entry a word; in a CSV file written as JSON. "_" throughout means
        not annotated.
    heads: 1 is the first word and 0 the root, as in Universal Dependencies; numbers or strings.
    ids: as in CoNLL-U; rows of multiword tokens ("1-2") and empty nodes ("8.1") are no words then. Words of a
        multiword token that do not spell it share its characters.
    document: consecutive rows with one value are one document; without it each row is one.

    Where a row has no text, or one that its words do not spell, the text is the words with spaces between them.
    Ids are "file.parquet:12" (the row, counted from 1), or "name (file.parquet:12)" with a document's first row.

    Raises CorpusError: at once where there is no such file, its ending is none of FORMATS, or `columns` has an unknown
    name; while reading, where the file is broken or has no row, or columns are missing or not told apart, and for a
    row that is no sentence: with `on_bad` such a row is left out.
    """
    file = existing_file(path)
    ending = Path(file.name.lower().removesuffix(".gz")).suffix
    if ending not in FORMATS:
        raise CorpusError(f"{file}: a table's name ends in {', '.join(FORMATS)}, got {ending!r}; rename or convert it.")
    _check_names(columns or {})
    builder, options = FORMATS[ending]
    # load_dataset takes the path for a pattern
    request = {"path": builder, "data_files": glob.escape(str(file)), "split": "train", **options}
    return _documents(_Source(str(file), file.name, columns or {}), request, on_bad)


def read_hub(
    spec: str,
    *,
    columns: Mapping[str, str] | None = None,
    revision: str | None = None,
    split: str = "test",
    limit: int | None = None,
    on_bad: OnBad | None = None,
) -> tuple[Iterator[Document], dict[str, str | None]]:
    """Documents of a data set of the hub, at most `limit` (None = all), and what names the very same data again.

    `spec` is "owner/name", "owner/name:config" or "owner/name:config@split", which goes before `split`. The data are
    streamed, and rows are read as by `read_table`. `revision` is a branch, tag or commit (None = the newest); the
    dictionary has `name`, `config`, `split` and as `revision` the hash of the commit that was read. Code that comes
    with a data set is never run.

    Raises CorpusError as `read_table` does; at once for a spec that is none, and where the hub cannot be reached or
    has no such data.
    """
    match = HUB_NAME.fullmatch(spec)
    if match is None:
        raise CorpusError(f"A data set of the hub is named as owner/name:config@split, got {spec!r}.")
    if limit is not None and limit < 1:
        raise CorpusError(f"The limit on documents is at least 1 (leave it out to read all of them); got {limit}.")
    _check_names(columns or {})
    name, config, split = match["id"], match["config"], match["split"] or split
    if Path(name).exists():  # load_dataset would read it in place of the hub's
        raise CorpusError(f"{spec}: there is a folder {name} here, which hides the hub's; start from another folder.")
    commit = commit_of(spec, name, revision)
    request = {"path": name, "name": config, "split": split, "revision": commit}
    documents = _documents(_Source(spec, spec, columns or {}), request, on_bad)
    first = list(islice(documents, 1))  # so that what is not there is told at once
    rest = documents if limit is None else islice(documents, limit - 1)
    provenance = {"name": name, "config": config, "split": split, "revision": commit}
    return (document for part in (first, rest) for document in part), provenance


class _Source(NamedTuple):
    place: str  # for messages
    name: str  # for ids
    columns: Mapping[str, str]


def _documents(source: _Source, request: Mapping[str, Any], on_bad: OnBad | None) -> Iterator[Document]:
    rows, label_names = _opened(source, request)
    rows = at_least_one(rows, f"{source.place}: expected a table with rows, found none; name one that holds some.")
    first = next(rows)
    reader = RowReader(source.place, source.name, _fields(source, first), label_names)
    read = read_each(enumerate(chain([first], rows), start=1), lambda row: reader.read(*row), on_bad)
    found = at_least_one(read, f"{source.place}: no row can be read as a sentence; name another file or its columns.")
    for _, group in groupby(found, key=lambda row: (row.document, row.number if row.document is None else 0)):
        yield _document(source, list(group))


def _document(source: _Source, rows: Sequence[Row]) -> Document:
    id = f"{source.name}:{rows[0].number}"
    if rows[0].document is not None:
        id = f"{rows[0].document} ({id})"
    if sentences := [row.content for row in rows if isinstance(row.content, Sentence)]:
        return Document.of_sentences(sentences, id)
    return Document(" ".join(row.content for row in rows if isinstance(row.content, str)), id)


def _check_names(columns: Mapping[str, str]) -> None:
    if unknown := sorted(set(columns) - set(FIELDS)):
        raise CorpusError(
            f"A column is one of {', '.join(FIELDS)} here, not {', '.join(unknown)}; write ours=theirs, as {EXAMPLE}."
        )


def _opened(source: _Source, request: Mapping[str, Any]) -> tuple[Iterator[dict[str, Any]], dict[str, Sequence[str]]]:
    """The rows, and for columns of numbers that stand for names, those names."""
    from datasets import load_dataset

    try:
        with datasets_quiet():
            dataset = load_dataset(**request, streaming=True)
    except Exception as error:  # whatever pyarrow, pandas and the network raise
        raise _unreadable(source, error) from error
    entries = {name: getattr(feature, "feature", None) for name, feature in (dataset.features or {}).items()}
    return _streamed(source, dataset), {name: getattr(entry, "names", ()) for name, entry in entries.items()}


def _streamed(source: _Source, dataset: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    rows = iter(dataset)
    while True:
        try:
            with datasets_quiet():
                row = next(rows, None)
        except Exception as error:
            raise _unreadable(source, error) from error
        if row is None:
            return
        yield row


def _unreadable(source: _Source, error: Exception) -> CorpusError:
    return CorpusError(
        f"{source.place}: cannot be read ({reason_of(error)}); check that it is there and a whole table."
    )


def reason_of(error: Exception) -> str:
    """The first line of what a library says went wrong."""
    return (str(error).strip().splitlines() or ["there is nothing in it"])[0].rstrip(".: ")


@contextmanager
def datasets_quiet() -> Iterator[None]:
    """datasets also logs what it raises; here the error says it."""
    from datasets.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(level)


def commit_of(spec: str, name: str, revision: str | None) -> str:
    """The commit at which a data set of the hub is read; CorpusError where the hub does not tell."""
    from huggingface_hub import HfApi

    try:
        commit = HfApi().dataset_info(name, revision=revision).sha
    except Exception as error:  # whatever the network raises
        raise CorpusError(
            f"{spec}: cannot be looked up on the hub ({reason_of(error)}); check the name, the revision and the "
            "connection, or read a local file as data:FILE."
        ) from error
    if not commit:
        raise CorpusError(f"{spec}: the hub names no commit for it, so it cannot be pinned; give a revision.")
    return commit


def _fields(source: _Source, row: Mapping[str, Any]) -> dict[str, str]:
    """The columns of this table by our names: those that were given, then those that one name alone fits."""
    there = ", ".join(row)
    if missing := sorted(theirs for theirs in source.columns.values() if theirs and theirs not in row):
        raise CorpusError(f"{source.place}: there is no column {', '.join(missing)}; the columns are {there}.")
    fields = {ours: theirs for ours, theirs in source.columns.items() if theirs}
    for ours, names in FIELDS.items():
        fitting = [name for name in names if name in row and (ours not in _OF_WORDS or _may_be_list(row[name]))]
        if ours in source.columns or not fitting:
            continue
        if len(fitting) > 1:
            raise CorpusError(
                f"{source.place}: {' and '.join(fitting)} could both be the column {ours}; the columns are {there}: "
                f"say which, as --columns {ours}={fitting[0]}."
            )
        fields[ours] = fitting[0]
    if "words" not in fields and "text" not in fields:
        raise CorpusError(
            f"{source.place}: no column is surely the words or the text; the columns are {there}: say which, "
            f"as {EXAMPLE}."
        )
    if "words" not in source.columns and "words" not in fields and (alone := [c for c in fields if c in _OF_WORDS]):
        raise CorpusError(
            f"{source.place}: {', '.join(alone)} cannot be read without words; the columns are {there}: say which, as "
            f"{EXAMPLE}, or words= for none."
        )
    return fields


def _may_be_list(value: Any) -> bool:
    return value is None or isinstance(value, list) or (isinstance(value, str) and value.lstrip().startswith("["))
