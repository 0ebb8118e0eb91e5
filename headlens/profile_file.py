"""profile.json: what goes into it, and what is checked once when it comes back. No torch here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headlens import __version__
from headlens.effects import Ablation
from headlens.errors import OutputError, in_words
from headlens.files import Write
from headlens.numbers import layers_of_heads
from headlens.scores import WAY_OUT, head_name

FILE = "profile.json"
PROFILE_SCHEMA = "headlens.profile/1"
HASHES = "sha256"  # entry: of the files beside it that are read again, by their names

_TEXT, _WHOLE, _NUMBER, _TRUTH = "a text", "a whole number", "a number", "true or false"
_TYPES = {_TEXT: (str,), _WHOLE: (int,), _NUMBER: (int, float), _TRUTH: (bool,)}

_SOURCE = dict.fromkeys(("kind", "name", "sha256", "revision", "config", "split"), _TEXT)
_LAW = {"law": _TEXT, "error": _NUMBER, "tolerance": _NUMBER, "where": _TEXT}
_PAIRS = [{"pair": _TEXT, "value": _NUMBER}]
_ENSEMBLE = {
    "metric": _TEXT,
    "heads": [_TEXT],
    **dict.fromkeys(("held_out", "single", "gain", "low", "high"), _NUMBER),
    **dict.fromkeys(("decisions", "of", "documents"), _WHOLE),
}
_ENTRIES: Mapping[str, Any] = {
    "scores": _TEXT,
    HASHES: {},
    **dict.fromkeys(("has_evidence", "has_similarity", "has_examples"), _TRUTH),
    **dict.fromkeys(("headlens", "created", "command"), _TEXT),
    "seed": _WHOLE,
    "versions": {},
    "model": {
        **dict.fromkeys(("name", "source", "revision", "weights_sha256", "family", "class", "dtype"), _TEXT),
        **dict.fromkeys(("layers", "heads", "kv_heads", "head_dim", "hidden", "parameters"), _WHOLE),
        **dict.fromkeys(("is_encoder_decoder", "is_causal"), _TRUTH),
    },
    "corpus": {
        "files": [_SOURCE | dict.fromkeys(("bytes", "sentences", "seed"), _WHOLE)],
        "unit": _TEXT,
        **dict.fromkeys(("limit", "skipped", "documents", "inputs", "words", "tokens", "scored_tokens"), _WHOLE),
        **dict.fromkeys(("cut_documents", "windows", "unknown", "max_length"), _WHOLE),
        "left_out": {},
        "syntax": {},
        "coreference": {},
    },
    "run": {"device": _TEXT, "capture": _TEXT, "batch_tokens": _WHOLE, "folds": _WHOLE, "seconds": {}},
    "selfcheck": {"passed": _TRUTH, "line": _TEXT, "laws": [_LAW], "unchecked": [_TEXT]},
    "repetition": {"left_out": {}},
    "circuits": {"left_out": {}, "pairs": {"q": _PAIRS, "k": _PAIRS, "v": _PAIRS}},
    "retrieval": {"left_out": {}, "texts": _WHOLE, **dict.fromkeys(("reproduced", "recalled", "enough"), _NUMBER)},
    "agreement": {
        "heads": [_TEXT],
        **dict.fromkeys(("verbs", "across"), _WHOLE),
        **dict.fromkeys(("intact", "ablated", "p", "intact_across", "ablated_across"), _NUMBER),
        "random": [_NUMBER],
        "random_across": [_NUMBER],
        "does_harm": _TRUTH,
    },
    "controls": {"copies": _WHOLE, "best": {}},
    "ensembles": [_ENSEMBLE],
    "probe": {"baselines": {}, **dict.fromkeys(("uas", "low", "high", "random_model"), _NUMBER), "sentences": _WHOLE},
    "ablation": {},
    "notes": [_TEXT],
}
"""The kind of each entry that is read: {} is an object, [kind] a list. Any may be missing or null, others be there."""


def noting_hash(name: str, write: Write, hashes: dict[str, str]) -> Write:
    """The same writing, after which `hashes` has what was written under `name`."""

    def write_and_note(path: Path) -> None:
        write(path)
        hashes[name] = _hash_of(path)

    return write_and_note


def json_of(facts: Mapping[str, Any]) -> bytes:
    return (json.dumps(facts, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace")


def read_facts(folder: Path) -> dict[str, Any]:
    """The entries of a profile.json but for its schema, each of its kind; else OutputError."""
    path = folder / FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise OutputError(f"{path} is not there; give the folder that `headlens profile --out` wrote.") from None
    except (OSError, ValueError, RecursionError) as reason:
        why = getattr(reason, "strerror", None) or reason
        raise OutputError(f"{path} cannot be read ({why}); {WAY_OUT}.") from None
    facts = found if isinstance(found, dict) else {}
    schema = facts.pop("schema", None)
    if schema != PROFILE_SCHEMA:
        raise OutputError(
            f"{path} has the schema {schema!r:.80}, and headlens {__version__} reads {PROFILE_SCHEMA!r}; "
            f"use {_writer(facts)}, or {WAY_OUT}."
        )
    try:
        _check(facts, _ENTRIES, "")
    except OutputError as reason:
        raise OutputError(f"{path} is not as headlens writes it{in_words(reason)}; {WAY_OUT}.") from None
    return facts


def check_effects(folder: Path, facts: Mapping[str, Any], shape: tuple[int, int]) -> None:
    """OutputError unless the effects are whole and of heads of a model of so many layers and heads."""
    try:
        effects = Ablation.from_dict(facts["ablation"]).effects if facts.get("ablation") else ()
    except OutputError as reason:
        raise OutputError(f"{folder / FILE}: {reason}") from None
    for effect in effects:
        if effect.layer >= shape[0] or effect.head >= shape[1]:
            raise OutputError(
                f"{folder / FILE} has an effect of {head_name(effect.layer, effect.head)}, and its model has "
                f"{layers_of_heads(*shape)}; {WAY_OUT}."
            )


def check_same_run(file: Path, hashes: Mapping[str, Any], *, belongs: bool) -> None:
    """OutputError unless a file is the one that was written with profile.json, as its hash and `belongs` tell."""
    expected = hashes.get(file.name)  # earlier versions kept none
    if not belongs or (expected is not None and expected != _hash_of(file)):
        raise OutputError(f"{file} is of another run than {FILE} beside it, or was changed; {WAY_OUT}.")


def _hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _check(found: Any, kind: Any, where: str) -> None:
    if isinstance(kind, Mapping):
        _expect(isinstance(found, Mapping), "an object", found, where)
        for name, inner in kind.items():
            if found.get(name) is not None:
                _check(found[name], inner, f"{where}.{name}" if where else name)
    elif isinstance(kind, list):
        _expect(isinstance(found, list), "a list", found, where)
        for place, entry in enumerate(found):
            _check(entry, kind[0], f"{where}[{place}]")
    else:
        _expect(type(found) in _TYPES[kind], kind, found, where)


def _expect(holds: bool, expected: str, found: object, where: str) -> None:
    if not holds:
        raise OutputError(f"{where} must be {expected}, got {found!r:.80}")


def _writer(facts: Mapping[str, Any]) -> str:
    """Which headlens wrote these facts, as far as they tell."""
    version = facts.get("headlens")
    return f"headlens {version}, which wrote it" if isinstance(version, str) else "the headlens that wrote it"
