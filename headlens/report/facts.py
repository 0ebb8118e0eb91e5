"""Provenance in words. It comes from JSON and any key may be missing: then its words are left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from headlens.numbers import count
from headlens.scores import ScoreTable

Provenance = Mapping[str, Any]

_NAMED_FILES = 3
_GRAMMAR = "grammar"  # kind of a corpus


def at(provenance: object, *path: str) -> Any:
    """The entry at a path of keys; None where it or anything on the way to it is missing."""
    for key in path:
        if not isinstance(provenance, Mapping):
            return None
        provenance = provenance.get(key)
    return provenance


def title(scores: ScoreTable, provenance: Provenance) -> str:
    heads = scores.n_present
    whose = f" of {name}" if (name := at(provenance, "model", "name")) else ""
    return f"What the {f'{heads:,} heads' if heads != 1 else 'one head'}{whose} attend{'s' if heads == 1 else ''} to"


def header_facts(scores: ScoreTable, provenance: Provenance) -> list[tuple[str, str]]:
    """Lines (term, words) for the top of a page: model, corpus, date, notes. The self-check has a place of its own."""
    lines = [
        ("Model", ", ".join(_model_words(scores, provenance))),
        ("Corpus", ", ".join(corpus_words(provenance))),
        ("Date", _date(at(provenance, "created"))),
        *(("Note", str(note)) for note in _listed(at(provenance, "notes"))),
    ]
    return [(term, words) for term, words in lines if words]


def selfcheck(provenance: Provenance) -> tuple[bool, str] | None:
    """Whether the self-check passed and its line; None where nothing is said about it."""
    passed = at(provenance, "selfcheck", "passed")
    if passed is None:
        return None
    verdict = "passed" if passed else "failed"
    line = str(at(provenance, "selfcheck", "line") or verdict)
    return bool(passed), line if line.startswith(verdict) else f"{verdict}: {line}"


def may_claim(provenance: Provenance) -> bool:
    """Unless the self-check failed; then nothing must be said of any head."""
    checked = selfcheck(provenance)
    return checked is None or checked[0]


def laws(provenance: Provenance) -> list[tuple[str, str, str]]:
    """Law, error and tolerance of every check that was made, those that failed first."""
    rows = sorted(_listed(at(provenance, "selfcheck", "laws")), key=lambda row: not _is_broken(row))
    return [(_plain(at(row, "law")), _plain(at(row, "error")), _plain(at(row, "tolerance"))) for row in rows]


def broken_laws(provenance: Provenance) -> list[str]:
    """A line for each check that failed: its law, the error, what is allowed, and where."""
    lines = []
    for row in filter(_is_broken, _listed(at(provenance, "selfcheck", "laws"))):
        where = f", in {at(row, 'where')}" if at(row, "where") else ""
        error, tolerance = _plain(at(row, "error")), _plain(at(row, "tolerance"))
        lines.append(f"{_plain(at(row, 'law'))}: error {error}, {tolerance} allowed{where}")
    return lines


def _is_broken(row: object) -> bool:
    error, tolerance = at(row, "error"), at(row, "tolerance")
    is_known = all(isinstance(value, int | float) for value in (error, tolerance))
    return is_known and not error <= tolerance


def flat(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Everything in the provenance, one line for each leaf: `model.heads`, `corpus.files[0].name`."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from flat(entry, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for place, entry in enumerate(value):
            yield from flat(entry, f"{path}[{place}]")
    elif value is not None:
        yield path, _plain(value)


def corpus_sources(provenance: Provenance) -> list[str]:
    """What the corpus was read from, by name; of sentences that a grammar made it is said that they are made up."""
    files = [file for file in _listed(at(provenance, "corpus", "files")) if at(file, "name")]
    return [
        f"made-up English of the headlens grammar ({name})" if at(file, "kind") == _GRAMMAR else str(name)
        for file in files
        for name in [at(file, "name")]
    ]


def _model_words(scores: ScoreTable, provenance: Provenance) -> Iterator[str]:
    model = at(provenance, "model")
    if name := at(model, "name"):
        yield str(name)
    if kind := at(model, "surgery", "kind"):
        yield f"{kind} from {at(model, 'surgery', 'source', 'name') or 'another model'}"
    is_causal = at(model, "is_causal")
    if is_causal is not None:
        yield "causal" if is_causal else "bidirectional"
    yield f"{scores.n_layers} {_of('layer', scores.n_layers)} × {scores.n_heads} {_of('head', scores.n_heads)}"
    if words := _key_value_words(model):
        yield words
    if parameters := at(model, "parameters"):
        yield f"{_amount(parameters)} parameters"
    if dtype := at(model, "dtype"):
        yield str(dtype)


def _key_value_words(model: object) -> str:
    """Empty where every head has keys and values of its own; of a pruned model those of the original."""
    kv_heads = at(model, "kv_heads")
    if at(model, "heads_kept") is None and (groups := at(model, "plan", "groups")):  # no head is gone: converted
        counts = [len(layer) for layer in groups]
        if len({*counts}) > 1:
            return f"{' '.join(map(str, counts))} key/value heads by layer"
        kv_heads = counts[0]
    if kv_heads is None or kv_heads == at(model, "heads"):
        return ""
    return f"{_plain(kv_heads)} key/value {'head' if kv_heads == 1 else 'heads'} a layer"


def corpus_words(provenance: Provenance) -> Iterator[str]:
    """What was read, and how much of it."""
    corpus = at(provenance, "corpus")
    if files := corpus_sources(provenance):
        more = len(files) - _NAMED_FILES
        yield " + ".join(files[:_NAMED_FILES]) + (f" and {more} more" if more > 0 else "")
    for key, words in _CORPUS_COUNTS.items():
        number = at(corpus, key)
        if number:  # no documents cut, no windows: nothing to tell
            is_cut = key == "documents" and number == at(corpus, "limit")
            yield f"{'the first ' if is_cut else ''}{_amount(number)} {words[0] if number == 1 else words[1]}"


_CORPUS_COUNTS = {
    "documents": ("document", "documents"),
    "tokens": ("token", "tokens"),
    "scored_tokens": ("of them scored", "of them scored"),
    "cut_documents": ("document cut", "documents cut"),
    "windows": ("window", "windows"),
}


def _date(created: object) -> str:
    if not isinstance(created, str):
        return ""
    try:
        moment = datetime.fromisoformat(created.replace("Z", "+00:00"))
    except ValueError:
        return created
    return f"{moment.day} {moment:%B %Y, %H:%M %Z}".strip()


def _amount(value: object) -> str:
    return count(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _plain(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _listed(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _of(noun: str, number: int) -> str:
    return noun if number == 1 else f"{noun}s"
