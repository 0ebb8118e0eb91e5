"""The page that comes with a checkpoint out of surgery, for people: what it is, how it loads, where it comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headlens.manifest import kv_heads_before, kv_heads_in_words
from headlens.numbers import amount
from headlens.surgery.card_tables import beside, differences, entry, escaped, in_code, listed, sizes, speed, table


def model_card(facts: Mapping[str, Any]) -> str:
    """Markdown, from what the manifest says; names from outside cannot break out of their place."""
    parts = [
        _front_matter(facts),
        _title(facts),
        _shared(facts),
        _heads(facts),
        _loading(facts),
        beside(facts),
        differences(facts),
        sizes(facts),
        speed(facts),
        _origin(facts),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


# ------------------------------------------------------------------------------------------------------- what it is

_TAGS = {"pruned": "head-pruning", "masked": "head-masking", "converted": "grouped-query-attention"}
_HUB_ID = r"[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9_.-]+"


def _front_matter(facts: Mapping[str, Any]) -> str:
    """For the model hub; of a base model only what is a name there, and not a folder. Of a licence nothing is known."""
    name, kind = entry(facts, "source", "name"), _kind(facts)
    is_of_hub = isinstance(name, str) and re.fullmatch(_HUB_ID, name) and entry(facts, "source", "revision")
    lines = [
        "library_name: transformers",
        *([f"base_model: {name}"] if is_of_hub else []),
        "tags:",
        "- headlens",
        "- attention-heads",
        f"- {_TAGS[kind]}",
        *([f"- {_TAGS['converted']}"] if kind == "pruned" and "groups" in facts else []),
    ]
    return "\n".join(["---", *lines, "---"])


def _kind(facts: Mapping[str, Any]) -> str:
    return str(facts["schema"]).removeprefix("headlens.").partition("/")[0]


def _source_name(facts: Mapping[str, Any]) -> str:
    source = facts.get("source")
    name = source.get("name") if isinstance(source, Mapping) else source
    return escaped(name) if name else f"a {facts['family']} model"


def _title(facts: Mapping[str, Any]) -> str:
    name, whole = _source_name(facts), facts["heads_of_original"]
    gone = whole - sum(map(len, facts["heads_kept"]))
    if _kind(facts) == "masked":
        return (
            f"# {name} with {amount(gone, 'attention head')} masked\n\n"
            f"The part of {gone} of {whole} heads in the output projections is zero. The model has its full "
            f"size and speed: this tells what the heads are worth, and saves nothing."
        )
    size = f"{facts['parameters']:,} parameters, {facts['dtype']}."
    shared = _kv_heads(facts)
    if _kind(facts) == "converted":
        return (
            f"# {name} with {shared}\n\nThis is {name} after headlens converted its attention: all {whole} attention "
            f"heads are there, and share keys and values in another way than before. {_trained(facts)} {size}"
        )
    was = "head was" if gone == 1 else "heads were"
    also = f" What is left has {shared}: it was converted, too." if shared else ""
    return (
        f"# {name} with {whole - gone} of {whole} attention heads\n\n"
        f"{gone} {was} taken out by headlens: the weights are gone.{also} {_trained(facts)} {size}"
    )


def _trained(facts: Mapping[str, Any]) -> str:
    steps = entry(facts, "method", "healed_steps")
    if isinstance(steps, int):
        return f"Then it was trained for {amount(steps, 'step')} to give what the model before gives."
    return "Nothing was trained."


def _kv_heads(facts: Mapping[str, Any]) -> str:
    """How many key/value heads there are of those before; empty where the same heads share them."""
    before = kv_heads_before(facts)
    return kv_heads_in_words(before, facts["kv_heads"]) if "groups" in facts and before else ""


_MERGED = {
    "mean": "Each is the mean of the weights and biases of those that it stands for.",
    "first": "Each is the first of those that it stands for.",
    "random": "Each is one of those that it stands for, by lot.",
    "medoid": "Each is that one of those it stands for whose keys and values are nearest to the others'.",
    "weighted": "Each is a mean of those that it stands for, by the size of their keys and of their values.",
    "aligned": "Those that became one were rotated towards each other, which changes nothing, and then averaged.",
    "svd": "Each is the factor that those it stands for share best on calibration text; what is a query head's own is "
    "in its part of the query and output projections.",
    "copies": "They are copies of those before, which is exact.",
}
_GROUPED = {
    "contiguous": "Neighbours share.",
    "similar": "Those share that were near to each other after rotation.",
    "cheapest": "Those share that lose least by it on calibration text.",
    "random": "Which share was drawn by lot.",
}


def _shared(facts: Mapping[str, Any]) -> str:
    """Of every layer the key/value heads before and after, and the query heads on each; empty of other surgery."""
    if "groups" not in facts:
        return ""
    merged, grouping = entry(facts, "method", "merged_by"), entry(facts, "method", "grouping")
    how = [_MERGED.get(str(merged), ""), _GROUPED.get(str(grouping), "") if merged in _MERGED else ""]
    if merged and entry(facts, "method", "repair") is True:
        how.append("The output projections were then fitted anew, layer by layer, to what the model before gives.")
    told = (
        "Query heads have the numbers of the original model, from 0; the checkpoint holds them in the order of this "
        "table. Those that share keys and values stand between two bars."
    )
    before: Sequence[object] = kv_heads_before(facts) or ["–"] * len(facts["groups"])
    rows = [
        [str(layer), str(was), str(len(groups)), " \\| ".join(map(_numbers, groups)) or "none"]
        for layer, (was, groups) in enumerate(zip(before, facts["groups"], strict=True))
    ]
    return "\n\n".join(
        [
            "## Key/value heads",
            *([sentences] if (sentences := " ".join(filter(None, how))) else []),
            told,
            table(["layer", "before", "now", "query heads that share one"], rows),
        ]
    )


def _heads(facts: Mapping[str, Any]) -> str:
    if "groups" in facts:  # they stand with those that they share with
        return ""
    title = "Heads that are not masked" if _kind(facts) == "masked" else "Heads that are there"
    rows = [[str(layer), _numbers(kept)] for layer, kept in enumerate(facts["heads_kept"])]
    return f"## {title}\n\nNumbers count from 0, as in the original model.\n\n{table(['layer', 'heads'], rows)}"


def _numbers(kept: Sequence[int]) -> str:
    return " ".join(map(str, kept)) if kept else "none"


# ------------------------------------------------------------------------------------------------------------- loading

_INSTALL = "```sh\npip install headlens\n```"


def _loading(facts: Mapping[str, Any]) -> str:
    auto = facts.get("auto_class") or "AutoModel"
    plain = f'model = {auto}.from_pretrained("FOLDER")  # this folder, or its name on the hub'
    begin = f"from transformers import {auto}"
    with_headlens = [begin, "", "import headlens.models  # tells transformers the classes of such models", "", plain]
    trusting = plain.replace('"FOLDER"', '"FOLDER", trust_remote_code=True')
    told = {
        "transformers": ["Plain transformers loads it.", _code(begin, "", plain)],
        "headlens": ["transformers loads it where headlens is installed:", _INSTALL, _code(*with_headlens)],
        "transformers with trust_remote_code": [
            "transformers loads it with `trust_remote_code=True`, which runs `modeling_headlens.py` of this folder:",
            _code(begin, "", trusting),
            "Where headlens is installed, no code of the folder is needed:",
            _INSTALL,
            _code(*with_headlens),
        ],
    }[facts["loads_in"]]
    return "\n\n".join(["## Loading", f"The class is `{facts['class']}`. {told[0]}", *told[1:]])


def _code(*lines: str) -> str:
    return "\n".join(["```python", *lines, "```"])


# ----------------------------------------------------------------------------------------------------- where it is from


def _origin(facts: Mapping[str, Any]) -> str:
    parts = [_source(facts), _how(facts), _texts(facts), _with(facts)]
    return "\n\n".join(
        [
            "## Where it comes from",
            *(part for part in parts if part),
            f"No licence is named here: that of {_source_name(facts)} applies.",
            "All of this, for programs: `headlens.json`.",
        ]
    )


def _source(facts: Mapping[str, Any]) -> str:
    name, made, revision, digest = (
        entry(facts, "source", key) for key in ("name", "source", "revision", "weights_sha256")
    )
    more = [
        *([f"from {escaped(made)}"] if made and made != name else []),
        *([f"revision {escaped(revision)}"] if revision else []),
        *([f"weights with the SHA-256 {escaped(digest)}"] if digest else []),
    ]
    return f"Made from {_source_name(facts)}{' (' + ', '.join(more) + ')' if more else ''}."


def _how(facts: Mapping[str, Any]) -> str:
    method = facts.get("method")
    command = facts.get("command")
    told = [f"How: {escaped(method)}."] if isinstance(method, str) else list(_steps(method))
    return " ".join([*told, *([f"The command was {in_code(command)}."] if command else [])])


_FILLS = {"mean": "They still give their mean output, from a bias.", "zero": "They give nothing any more."}


def _steps(method: object) -> Iterator[str]:
    ranked, merged, objective = (entry(method, key) for key in ("ranked_by", "merged_by", "objective"))
    judge = f", judged by {escaped(objective).replace('_', ' ')}" if objective else ""
    if ranked:
        by_hand = "The heads to go were chosen by hand" if ranked == "by hand" else None
        yield f"{by_hand or f'The heads to go were ranked by {escaped(ranked)}'}{judge}."
    if entry(method, "fill") in _FILLS:
        yield _FILLS[entry(method, "fill")]
    if merged and (tried := listed(entry(method, "tried"))) and len(tried) > 1:
        grouping = entry(method, "grouping")
        groups = f" with {escaped(grouping)} groups" if grouping else ""
        yield (
            f"{len(tried)} ways to merge key/value heads were tried{judge} on text that nothing was fitted on, and the "
            f"best was taken: {escaped(merged)}{groups}."
        )
    elif merged:
        yield f"Key/value heads were merged by {escaped(merged)}{judge}."
    if isinstance(budget := entry(method, "budget", "kv_heads"), int):
        yield f"A budget of {amount(budget, 'key/value head')} went to the layers that would lose most."
    if ranked and entry(method, "repair") is True:
        yield "The output projections were then fitted anew."


def _texts(facts: Mapping[str, Any]) -> str:
    healing = _files(entry(facts, "healing", "data"))
    trained = f" Trained on: {healing}." if healing else ""
    files = _files(facts.get("data"))
    if not files:
        return trained.strip()
    kind = {"texts": "text", "windows": "window"}.get(str(entry(facts, "data", "reads")), "text")
    counts = [
        f"{number:,} {words}"
        for name, words in (("fitted_on", "fitted on"), ("chosen_on", "chosen on"), ("held_out", "held out"))
        if isinstance(number := entry(facts, "data", name), int)
    ]
    return f"Calibration text: {files}{f' ({kind}s: ' + ', '.join(counts) + ')' if counts else ''}.{trained}"


def _files(data: object) -> str:
    named = [file for file in listed(entry(data, "files")) if entry(file, "name")]
    return ", ".join(
        f"made-up English of the headlens grammar, {escaped(entry(file, 'name'))}"
        if entry(file, "kind") == "grammar"
        else escaped(entry(file, "name"))
        for file in named
    )


def _with(facts: Mapping[str, Any]) -> str:
    versions = facts.get("versions")
    if not isinstance(versions, Mapping):
        return ""
    return f"Made with {', '.join(f'{name} {escaped(version)}' for name, version in versions.items())}."
