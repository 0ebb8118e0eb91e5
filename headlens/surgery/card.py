"""The page that comes with a pruned checkpoint, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def model_card(facts: Mapping[str, Any]) -> str:
    """Markdown, from what the manifest says."""
    parts = [_title(facts), _heads(facts), _loading(facts), _measured(facts), _origin(facts)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _is_masked(facts: Mapping[str, Any]) -> bool:
    return str(facts["schema"]).startswith("headlens.masked/")


def _source_name(facts: Mapping[str, Any]) -> str:
    source = facts.get("source")
    name = source.get("name") if isinstance(source, Mapping) else source
    return str(name) if name else f"a {facts['family']} model"


def _title(facts: Mapping[str, Any]) -> str:
    left = sum(map(len, facts["heads_kept"]))
    whole = facts["heads_of_original"]
    if _is_masked(facts):
        return (
            f"# {_source_name(facts)} with {whole - left} attention heads masked\n\n"
            f"The part of {whole - left} of {whole} heads in the output projections is zero. The model has its full "
            f"size and speed: this tells what the heads are worth, and saves nothing."
        )
    return (
        f"# {_source_name(facts)} with {left} of {whole} attention heads\n\n"
        f"{whole - left} heads were taken out by headlens: their weights are gone. "
        f"{facts['parameters']:,} parameters, {facts['dtype']}."
    )


def _heads(facts: Mapping[str, Any]) -> str:
    rows = [f"| {layer} | {_numbers(kept)} |" for layer, kept in enumerate(facts["heads_kept"])]
    title = "Heads that are not masked" if _is_masked(facts) else "Heads that are there"
    return "\n".join([f"## {title}", "", "Numbers count from 0, as in the original model.", "", *_table(rows)])


def _table(rows: list[str]) -> list[str]:
    return ["| layer | heads |", "|---|---|", *rows]


def _numbers(kept: list[int]) -> str:
    return " ".join(map(str, kept)) if kept else "none"


_HOW_TO_LOAD = {
    "transformers": "AutoModel.from_pretrained(FOLDER)  # or the Auto class of its task",
    "headlens": "import headlens.models  # tells transformers the classes of pruned models\n\n"
    "AutoModel.from_pretrained(FOLDER)  # or the Auto class of its task",
    "transformers with trust_remote_code": "AutoModel.from_pretrained(FOLDER, trust_remote_code=True)  # runs "
    "modeling_headlens.py\n\n"
    "import headlens.models  # with this, no code of the folder is needed\n\n"
    "AutoModel.from_pretrained(FOLDER)",
}


def _loading(facts: Mapping[str, Any]) -> str:
    return (
        f"## Loading\n\nLoads in {facts['loads_in']}. The class is `{facts['class']}`.\n\n```python\n"
        f"from transformers import AutoModel\n\n{_HOW_TO_LOAD[facts['loads_in']]}\n```"
    )


def _measured(facts: Mapping[str, Any]) -> str:
    pairs = facts.get("measured")
    if not isinstance(pairs, Mapping) or not pairs:
        return ""
    rows = [
        f"| {name} | {_number(value.get('before'))} | {_number(value.get('after'))} |"
        for name, value in pairs.items()
        if isinstance(value, Mapping)
    ]
    return "\n".join(["## Measured", "", "| | before | after |", "|---|---|---|", *rows])


def _number(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _origin(facts: Mapping[str, Any]) -> str:
    told = ("source", "data", "method", "versions")
    lines = [f"- {name}: {_plain(facts[name])}" for name in told if facts.get(name)]
    return "\n".join(["## Where it comes from", "", *lines, "", "All of this, for programs: `headlens.json`."])


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(part)}" for name, part in value.items() if part is not None)
    return ", ".join(map(_plain, value)) if isinstance(value, list | tuple) else _number(value)
