"""The kinds of corpora, how each is read, and how a file tells which it is. No torch here."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from headlens.corpora.conll2012 import LITBANK_COLUMNS, read_conll2012, read_litbank
from headlens.corpora.conllu import read_conllu, read_gum
from headlens.corpora.conllu_rows import COLUMNS
from headlens.corpora.gap import COLUMNS as GAP_COLUMNS
from headlens.corpora.gap import read_gap
from headlens.corpora.grammar import read_grammar
from headlens.corpora.parsed import DEFAULT_PARSER, read_parsed
from headlens.corpora.tabular import read_hub, read_table
from headlens.corpora.text import OnBad, check_regular, existing_file, open_file, read_text
from headlens.corpora.winobias import read_winobias
from headlens.corpora.winograd import read_winograd
from headlens.documents import Document
from headlens.errors import CorpusError

HUB, GRAMMAR = "hub", "grammar"  # the kinds whose corpora are no files

_HEAD = 1 << 16  # bytes by which a file is judged
_LINES = 50  # lines of them


@dataclass(frozen=True)
class Options:
    """What readers may be told; each takes what concerns it."""

    unit: str = "line"
    columns: Mapping[str, str] | None = None
    parser: Any = DEFAULT_PARSER
    revision: str | None = None
    limit: int | None = None  # on documents, for a reader that can fetch fewer
    on_bad: OnBad | None = None


class Kind(NamedTuple):
    """How a kind of file is read, and what it holds: only files that hold the same make one corpus."""

    read: Callable[[str, Options], Iterator[Document]]
    holds: str


class Spec(NamedTuple):
    """A corpus as it was asked for. Of hub, `path` is the name of a data set; of grammar, how much is wanted."""

    kind: str
    path: str


def _plain(read: Callable[..., Iterator[Document]]) -> Callable[[str, Options], Iterator[Document]]:
    """A reader that needs to be told nothing but what to do with what is bad."""
    return lambda path, options: read(path, on_bad=options.on_bad)


def _text(path: str, options: Options) -> Iterator[Document]:
    return read_text(path, unit=options.unit, on_bad=options.on_bad)


def _parse(path: str, options: Options) -> Iterator[Document]:
    return read_parsed(path, unit=options.unit, parser=options.parser, on_bad=options.on_bad)


def _data(path: str, options: Options) -> Iterator[Document]:
    return read_table(path, columns=options.columns, on_bad=options.on_bad)


def _hub(path: str, options: Options) -> Iterator[Document]:
    return open_hub(path, options)[0]


def _grammar(size: str, _options: Options) -> Iterator[Document]:
    sentences, seed = size_of_grammar(size)
    return iter(read_grammar(sentences, seed=seed))


CORPORA: dict[str, Kind] = {
    "text": Kind(_text, "plain text"),
    "conllu": Kind(_plain(read_conllu), "a treebank"),
    "gum": Kind(_plain(read_gum), "a treebank"),
    "conll2012": Kind(_plain(read_conll2012), "coreference"),
    "litbank": Kind(_plain(read_litbank), "coreference"),
    "gap": Kind(_plain(read_gap), "pronouns and candidates"),
    "winobias": Kind(_plain(read_winobias), "pronouns and candidates"),
    "winograd": Kind(_plain(read_winograd), "pronouns and candidates"),
    "parse": Kind(_parse, "parsed text"),
    GRAMMAR: Kind(_grammar, "a treebank"),
    "data": Kind(_data, "a table"),
    HUB: Kind(_hub, "a table"),
}


def open_hub(name: str, options: Options) -> tuple[Iterator[Document], dict[str, Any]]:
    """The documents of a data set of the hub, and what names the very same data again."""
    return read_hub(
        name, columns=options.columns, revision=options.revision, limit=options.limit, on_bad=options.on_bad
    )


def size_of_grammar(size: str) -> tuple[int, int]:
    """Sentences and seed of "SENTENCES" or "SENTENCES@SEED"."""
    match = re.fullmatch(r"([0-9]{1,9})(?:@([0-9]{1,9}))?", size.strip())
    if not match or not int(match[1]):
        raise CorpusError(
            "A corpus of the grammar is named by its sentences, grammar:2000, or by these and a seed, grammar:2000@1, "
            f"each of nine digits at most; got {GRAMMAR}:{size}."
        )
    return int(match[1]), int(match[2] or 0)


def parse_spec(spec: str | os.PathLike[str]) -> Spec:
    """Which kind "KIND:PATH" or a mere path is of; a file whose kind is not named is looked into.

    "KIND:" goes before a file whose name begins so ("./text:a" is such a file). Raises CorpusError for an unknown
    kind, where no path is given or no file is there, and for a file whose kind is not certain.
    """
    named = os.fspath(spec)
    if not named.strip():
        raise CorpusError("A corpus is named as KIND:FILE or as a file; got an empty name.")
    kind, colon, path = named.partition(":")
    if colon and kind in CORPORA:
        if not path.strip():
            what = "number of sentences; write grammar:2000" if kind == GRAMMAR else f"file; write {kind}:FILE"
            raise CorpusError(f"{named!r} names a kind and no {what}.")
        if kind == GRAMMAR:
            size_of_grammar(path)
        return Spec(kind, path if kind in (HUB, GRAMMAR) else str(existing_file(path)))
    if colon and re.fullmatch(r"[A-Za-z][\w-]*", kind) and not os.path.lexists(named):
        raise CorpusError(
            f"{named!r} begins with no kind of corpus{_did_you_mean(kind)}; write KIND:FILE with one of {_KINDS}, or "
            f"./{named} for a file of that name."
        )
    file = existing_file(named)
    return Spec(guessed_kind(file), str(file))


def _did_you_mean(kind: str) -> str:
    close = difflib.get_close_matches(kind.lower(), CORPORA, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


_KINDS = ", ".join(CORPORA)


# --------------------------------------------------------------------------------------------------- by what it holds


def guessed_kind(file: Path) -> str:
    """The kind that a file is by its first lines, whatever its name; "text" where it is ordinary text, or none at all.

    Raises CorpusError for one that looks like a table, JSON, XML or a treebank and is none of the kinds for certain.
    """
    check_regular(file)
    with open_file(file) as handle:
        head = handle.read(_HEAD)
    if head.startswith(b"PAR1"):
        raise _ask(file, "a parquet file", "data")
    lines = _first_lines(head)
    if lines is None or not lines:
        return "text"  # whose reader says what is wrong with it
    for kind, is_of_kind in _SIGNS.items():
        if is_of_kind(lines):
            return kind
    for what, (suggestion, looks_so) in _LIKENESSES.items():
        if looks_so(lines):
            raise _ask(file, what, suggestion)
    return "text"


def _ask(file: Path, what: str, suggestion: str) -> CorpusError:
    examples = " or ".join(f"{kind}:{file}" for kind in dict.fromkeys([suggestion, "text"]))
    return CorpusError(
        f"{file}: it looks like {what}, and what it holds is not certain; say which kind it is, as in {examples} "
        f"(kinds: {_KINDS})."
    )


def _first_lines(head: bytes) -> list[str] | None:
    """The first lines that are not blank; None where they are no UTF-8. The last one may be cut off."""
    whole = head if len(head) < _HEAD else head[: head.rfind(b"\n") + 1]
    try:
        text = (whole or head).decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    lines = (line.removesuffix("\r") for line in text.split("\n"))
    return [line for line in lines if line.strip()][:_LINES]


_FIRST_ID = re.compile(r"1(-[0-9]+)?|0\.[0-9]+")
_HEAD_CELL = re.compile(r"[0-9]+|_")


def _is_conllu(lines: list[str]) -> bool:
    return _has_ten_columns(lines, "\t")


def _has_ten_columns(lines: list[str], separator: str | None) -> bool:
    """Of the first row; what is wrong further down is for the reader to say."""
    cells = next((line.split(separator) for line in lines if not line.startswith("#")), [])
    return len(cells) == COLUMNS and bool(_FIRST_ID.fullmatch(cells[0]) and _HEAD_CELL.fullmatch(cells[6]))


def _is_gum(lines: list[str]) -> bool:
    return _is_conllu(lines) and any(re.match(r"#\s*global\.Entity\s*=", line) for line in lines)


def _coreference(lines: list[str]) -> set[str]:
    """What stands in the last column of a file with #begin document: "-", "" or brackets."""
    if not lines[0].startswith("#begin document"):
        return set()
    return {line.split("\t")[-1].split(" ")[-1].strip() for line in lines if not line.startswith("#")}


def _is_litbank(lines: list[str]) -> bool:
    rows = [line for line in lines if not line.startswith("#")]
    return "" in _coreference(lines) and all(row.count("\t") == LITBANK_COLUMNS - 1 for row in rows)


def _is_conll2012(lines: list[str]) -> bool:
    return "-" in (last := _coreference(lines)) and "" not in last


def _is_gap(lines: list[str]) -> bool:
    return set(GAP_COLUMNS) <= set(lines[0].split("\t"))


def _is_winobias(lines: list[str]) -> bool:
    return all(re.fullmatch(r"[0-9]+\s+[^][]*\[[^][]+\][^][]*\[[^][]+\].*", line) for line in lines)


_SIGNS: dict[str, Callable[[list[str]], bool]] = {
    "gum": _is_gum,
    "conllu": _is_conllu,
    "litbank": _is_litbank,
    "conll2012": _is_conll2012,
    "gap": _is_gap,
    "winobias": _is_winobias,
}


_COMMENT = re.compile(r"#\s*(newdoc|newpar|(sent_id|text|newdoc id|newpar id|global\.\w+)\s*=.*)")


def _looks_like_treebank(lines: list[str]) -> bool:
    has_comment = _COMMENT.fullmatch(lines[0]) is not None
    return len(lines) > 1 and (has_comment or _has_ten_columns(lines, None))


def _looks_like_json(lines: list[str]) -> bool:
    try:
        return isinstance(json.loads(lines[0]), dict | list)
    except (ValueError, RecursionError):
        return re.match(r'\s*(\{\s*("|$)|\[\s*(\{|$))', lines[0]) is not None


def _looks_like_markup(lines: list[str]) -> bool:
    return (
        re.match(r"\s*<(\?xml\b|!DOCTYPE\b|!--|[A-Za-z][\w:-]*(\s[^<>]*)?/?>\s*$)", lines[0], re.IGNORECASE) is not None
    )


def _looks_like_tabs(lines: list[str]) -> bool:
    tabs = {line.count("\t") for line in lines}
    return len(lines) > 1 and len(tabs) == 1 and tabs != {0}


def _looks_like_commas(lines: list[str]) -> bool:
    return len(lines) > 1 and re.fullmatch(r"\w+(,\w+)+", lines[0]) is not None and all("," in line for line in lines)


_LIKENESSES: dict[str, tuple[str, Callable[[list[str]], bool]]] = {
    "a treebank": ("conllu", _looks_like_treebank),
    "coreference in columns": ("conll2012", lambda lines: lines[0].startswith("#begin document")),
    "JSON": ("data", _looks_like_json),
    "XML or HTML": ("text", _looks_like_markup),
    "a table with tabs": ("data", _looks_like_tabs),
    "a table with commas": ("data", _looks_like_commas),
}
