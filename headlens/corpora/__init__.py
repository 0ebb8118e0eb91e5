"""Where documents come from. No torch here."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, overload

from headlens.corpora.kinds import CORPORA, GRAMMAR, HUB, Options, Spec, open_hub, parse_spec, size_of_grammar
from headlens.corpora.parsed import DEFAULT_PARSER, silver_note
from headlens.corpora.text import UNITS, Unit, check_regular, existing_file, open_file, read_text
from headlens.documents import Document
from headlens.errors import CorpusError
from headlens.files import printable
from headlens.numbers import amount

__all__ = [
    "CORPORA",
    "UNITS",
    "Corpus",
    "Unit",
    "describe_files",
    "read_corpus",
    "read_text",
    "sample_path",
    "texts",
]

StrPath = str | os.PathLike[str]

SHOWN = 5  # messages about what was skipped


@dataclass(frozen=True)
class Corpus(Sequence[Document]):
    """Documents, in their order, and where they came from.

    `sources` has one entry a corpus that was named: `kind`, `name`, `sha256` and `bytes` of a file; `kind`, `name` and
    `revision` of a data set of the hub; `kind`, `name`, `sentences` and `seed` of the grammar. `unit_of_documents` says
    what the documents are: "line" or "paragraph" of text, "document", "sentence" where a corpus marks no documents,
    "item" of a set of pronouns to resolve, "row" of a table of texts, "mixed" of several, "" where nobody said.
    """

    documents: Sequence[Document]
    sources: Sequence[Mapping[str, Any]] = ()
    skipped: int = 0  # sentences, items, lines or documents' mentions that could not be read
    skipped_examples: Sequence[str] = ()  # the first messages
    notes: Sequence[str] = ()  # what a reader of results must know
    unit_of_documents: str = ""
    limit: int | None = None  # of documents that were to be read

    @overload
    def __getitem__(self, index: int) -> Document: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Document]: ...
    def __getitem__(self, index: int | slice) -> Document | Sequence[Document]:
        return self.documents[index]

    def __len__(self) -> int:
        return len(self.documents)

    def __repr__(self) -> str:
        names = ", ".join(str(source["name"]) for source in self.sources) or "memory"
        return f"<Corpus of {amount(len(self), 'document')} from {names}>"


def read_corpus(
    specs: StrPath | Iterable[StrPath],
    *,
    unit: str = "line",
    limit: int | None = None,
    skip_bad: bool = False,
    columns: Mapping[str, str] | None = None,
    parser: Any = DEFAULT_PARSER,
    revision: str | None = None,
) -> Corpus:
    """The documents of one corpus or of several in the given order, at most `limit` of them (None = all).

    A corpus is named as "KIND:PATH", with one of CORPORA for its kind; of a mere path the file tells its kind, and is
    plain text where it looks like nothing else. All files are looked up before the first is read, and none is read
    beyond `limit`.

    Parameters
    ----------
    specs
        One name or several. Several must hold the same: plain text, treebanks, tables, ...
    unit
        What is a document of plain text: a "line", or a "paragraph".
    skip_bad
        Leave out what cannot be read, a sentence or an item, and count it.
    columns
        Of data and hub: names of columns, ours to theirs, as for `read_table`.
    parser
        Of parse: the name of a spaCy pipeline, or one that is loaded.
    revision
        Of hub: branch, tag or commit.

    Raises
    ------
    CorpusError
        As the readers do; for a limit below 1, an unknown kind, a file of an uncertain kind, corpora that do not go
        together, options that no corpus takes, and where no corpus is named.
    """
    if limit is not None and limit < 1:
        raise CorpusError(f"The limit on documents is at least 1 (leave it out to read all of them); got {limit}.")
    parsed = [parse_spec(spec) for spec in _listed(specs)]
    _check_together(parsed)
    _check_options(parsed, columns=columns, revision=revision)
    skipped = _Skipped()
    options = Options(unit, columns, parser, revision, limit, skipped if skip_bad else None)
    opened = [_opened(spec, options) for spec in parsed]
    documents, units = list[Document](), dict[str, list[str]]()
    for spec, (its_documents, facts) in zip(parsed, opened, strict=True):
        found = list(islice(its_documents, None if limit is None else min(limit - len(documents), sys.maxsize)))
        if found:
            units.setdefault(_unit_of(spec.kind, found, unit), []).append(str(facts["name"]))
        documents += found
    return Corpus(
        documents,
        [facts for _, facts in opened],
        skipped.count,
        skipped.examples,
        [*_notes(parsed, parser), *_notes_on_units(units)],
        "mixed" if len(units) > 1 else next(iter(units)),
        limit,
    )


def texts(strings: str | Iterable[str]) -> list[Document]:
    """Documents out of bare strings, or of one; messages call them "text 1", "text 2", ...

    Raises CorpusError for a blank one.
    """
    listed = [strings] if isinstance(strings, str) else strings
    return [Document(string, f"text {number}") for number, string in enumerate(listed, start=1)]


def sample_path() -> Path:
    """The English sample that comes with headlens: one document a line, described in README.md beside it."""
    return Path(__file__).with_name("sample.txt")


def describe_files(paths: StrPath | Iterable[StrPath]) -> list[dict[str, str | int]]:
    """What a report needs to name the very same data again: of every file `name`, `sha256` and `bytes` (its size)."""
    return [_description(existing_file(path)) for path in _listed(paths)]


@dataclass
class _Skipped:
    """Takes what could not be read."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def __call__(self, error: CorpusError) -> None:
        self.count += 1
        if len(self.examples) < SHOWN:
            self.examples.append(str(error))


def _listed(paths: StrPath | Iterable[StrPath]) -> list[StrPath]:
    listed: list[StrPath] = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not listed:
        raise CorpusError("A corpus needs at least one file or Document; none was given.")
    return listed


def _check_together(specs: Sequence[Spec]) -> None:
    first = specs[0]
    for spec in specs:
        if CORPORA[spec.kind].holds != CORPORA[first.kind].holds:
            raise CorpusError(
                f"{first.path} holds {CORPORA[first.kind].holds} ({first.kind}) and {spec.path} "
                f"{CORPORA[spec.kind].holds} ({spec.kind}), which do not go together; read them one by one."
            )


def _check_options(specs: Sequence[Spec], *, columns: Mapping[str, str] | None, revision: str | None) -> None:
    kinds = {spec.kind for spec in specs}
    if columns and not kinds & {"data", HUB}:
        raise CorpusError(f"Only tables (data, hub) have columns to name; this is {', '.join(sorted(kinds))}.")
    if revision is not None and HUB not in kinds:
        raise CorpusError(f"Only data sets of the hub have a revision; this is {', '.join(sorted(kinds))}.")


def _opened(spec: Spec, options: Options) -> tuple[Iterator[Document], dict[str, Any]]:
    if spec.kind == HUB:
        documents, facts = open_hub(spec.path, options)
        return documents, {"kind": spec.kind, **facts}
    if spec.kind == GRAMMAR:
        sentences, seed = size_of_grammar(spec.path)
        facts = {"name": f"{sentences:,} sentences, seed {seed}", "sentences": sentences, "seed": seed}
    else:
        facts = _description(Path(spec.path))
    return CORPORA[spec.kind].read(spec.path, options), {"kind": spec.kind, **facts}


def _description(file: Path) -> dict[str, str | int]:
    check_regular(file)  # it is read for its text as well
    digest, size = hashlib.sha256(), 0
    with open_file(file) as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
            size += len(block)
    return {"name": printable(file.name), "sha256": digest.hexdigest(), "bytes": size}


def _unit_of(kind: str, documents: Sequence[Document], unit: str) -> str:
    holds = CORPORA[kind].holds
    if holds in ("plain text", "parsed text"):
        return unit
    if holds == "pronouns and candidates":
        return "item"
    if not any(document.sentences for document in documents):
        return "row"
    # a sentence that is a document by itself has its own id, one of a marked document that of the document's mark
    is_alone = all(document.id == document.sentences[0].id for document in documents)
    return "sentence" if is_alone else "document"


def _notes(specs: Sequence[Spec], parser: Any) -> list[str]:
    return [silver_note(parser)] if any(spec.kind == "parse" for spec in specs) else []


def _notes_on_units(units: Mapping[str, Sequence[str]]) -> list[str]:
    if len(units) < 2:
        return []
    return [f"What counts as a document: in {', '.join(names)} a {unit}." for unit, names in units.items()]
