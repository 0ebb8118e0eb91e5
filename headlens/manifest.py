"""The manifest of a checkpoint that came out of surgery: what it was made of, how, and what that did. No torch here."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headlens.errors import OutputError
from headlens.files import printable

MANIFEST = "headlens.json"
SCHEMAS = {
    "pruned": "headlens.pruned/1",
    "masked": "headlens.masked/1",
    "converted": "headlens.converted/1",  # no head is gone, and key/value heads are others than they were
}


def read_manifest(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What `save_pruned` wrote beside a model; OutputError where there is no such thing."""
    file = Path(folder) / MANIFEST
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as reason:
        raise OutputError(
            f"{printable(file)} cannot be read ({reason.strerror}); give a folder that `headlens prune` or `headlens "
            f"convert` wrote."
        ) from None
    except (ValueError, RecursionError) as reason:
        raise OutputError(f"{printable(file)} is not JSON: {reason}.") from None
    if not isinstance(found, dict) or found.get("schema") not in SCHEMAS.values():
        *others, last = SCHEMAS.values()
        raise OutputError(f"{printable(file)} is no manifest of the schema {', '.join(others)} or {last}.")
    return found


def has_manifest(folder: str | os.PathLike[str]) -> bool:
    """Whether `save_pruned` wrote this folder."""
    return (Path(folder) / MANIFEST).is_file()


def source_of(manifest: Mapping[str, Any]) -> str | None:
    """The name of the model that surgery was done on; None where the manifest does not say."""
    source = manifest.get("source")
    name = source.get("name") if isinstance(source, Mapping) else source
    return name if isinstance(name, str) and name else None


def first_source(name: str) -> str:
    """The model that a checkpoint comes from in the end, through any number of surgeries; `name` itself of others."""
    seen: set[str] = set()
    while name not in seen and has_manifest(folder := Path(name).expanduser()):
        seen.add(name)
        try:
            name = source_of(read_manifest(folder)) or name
        except OutputError:  # another tool's file of that name
            break
    return name


def surgery_facts(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What a profile of the checkpoint tells of its surgery: short, with every measured figure."""
    kinds = {schema: kind for kind, schema in SCHEMAS.items()}
    method = manifest.get("method")
    asked = {} if not isinstance(method, Mapping) else {name: method[name] for name in _METHOD if name in method}
    return {
        "kind": kinds.get(str(manifest.get("schema"))),
        "source": manifest.get("source"),
        "method": asked,
        **{name: manifest[name] for name in _KV_HEADS if name in manifest},
        "shares_anew": "groups" in manifest,
        "measured": manifest.get("measured") or {},
        "speed": [dict(one) for one in _mappings(manifest.get("speed"))],
        "arms": [_arm(one) for one in arms_of(manifest)],
    }


def arms_of(manifest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Models that were asked the same, the one of the checkpoint first; where it was healed, after that."""
    healing = manifest.get("healing")
    healed = healing.get("arms") if isinstance(healing, Mapping) else None
    return list(_mappings(healed or manifest.get("arms")))


def kv_heads_before(facts: Mapping[str, Any]) -> list[int] | None:
    """Key/value heads of every layer of the model that surgery was done on, from a manifest or from `surgery_facts`."""
    told = [_counts(arm.get("kv_heads")) for arm in arms_of(facts) if arm.get("name") == "original"]
    if told and told[0]:
        return told[0]
    after, each = (facts.get(name) for name in _KV_HEADS)
    return [each] * len(_counts(after)) or None if isinstance(each, int) else None


def kv_heads_in_words(before: Sequence[int], after: Sequence[int]) -> str:
    """`2 of 8 key/value heads a layer`, `12 of 32 key/value heads (4 4 2 2 by layer)`."""
    if len({*before}) == len({*after}) == 1:
        words, was, now = "key/value heads a layer", before[0], after[0]
    else:
        words, was, now = f"key/value heads ({' '.join(map(str, after))} by layer)", sum(before), sum(after)
    if now == was:
        return f"{now:,} {words}, which other heads share than before"
    return f"{now:,} of {was:,} {words}" if now < was else f"{now:,} {words} instead of {was:,}"


def measure_in_words(objective: object) -> str:
    """Of what a distortion counts, with its unit; empty where that is not known."""
    return _MEASURES.get(str(objective), "")


_MEASURES = {
    "kl_distortion": "KL divergence, nats a token",
    "cosine_distortion": "1 − cosine of sentence vectors",
    "hidden_distortion": "squared distance of hidden states over their variance",
}
_METHOD = (
    *("ranked_by", "objective", "fill", "repair", "expand"),
    *("merged_by", "grouping", "scale", "kv_heads", "budget", "healed_steps"),
)
_KV_HEADS = ("kv_heads", "kv_heads_of_original")  # by layer, and of each layer


def _arm(arm: Mapping[str, Any]) -> dict[str, Any]:
    figures = {
        f"{task.get('task')}: {figure.get('metric')}": figure.get("value")
        for task in _mappings(arm.get("tasks"))
        for figure in list(_mappings(task.get("figures")))[:1]  # the first is what the task is about
    }
    counts = {"kv_heads": arm["kv_heads"]} if "kv_heads" in arm else {}
    return {name: arm.get(name) for name in ("name", "draw", "heads", "distortion")} | counts | {"tasks": figures}


def _counts(value: object) -> list[int]:
    """Empty where it is no list of whole numbers."""
    listed = list(value) if isinstance(value, list | tuple) else []
    return listed if all(isinstance(one, int) for one in listed) else []


def _mappings(listed: object) -> Iterator[Mapping[str, Any]]:
    return (one for one in listed if isinstance(one, Mapping)) if isinstance(listed, list | tuple) else iter(())
