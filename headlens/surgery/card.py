"""The page that comes with a checkpoint out of surgery, for people: what it is, how it loads, what was measured."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headlens.numbers import amount, four_digits


def model_card(facts: Mapping[str, Any]) -> str:
    """Markdown, from what the manifest says; names from outside cannot break out of their place."""
    parts = [
        _front_matter(facts),
        _title(facts),
        _heads(facts),
        _loading(facts),
        _measured(facts),
        _beside(facts),
        _speed(facts),
        _origin(facts),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


# ------------------------------------------------------------------------------------------------------- what it is


def _kind(facts: Mapping[str, Any]) -> str:
    return str(facts["schema"]).removeprefix("headlens.").partition("/")[0]


def _source_name(facts: Mapping[str, Any]) -> str:
    source = facts.get("source")
    name = source.get("name") if isinstance(source, Mapping) else source
    return _text(name) if name else f"a {facts['family']} model"


def _front_matter(facts: Mapping[str, Any]) -> str:
    """For the model hub; of a base model only what is a name there, and not a folder."""
    name = _at(facts, "source", "name")
    is_of_hub = isinstance(name, str) and re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not name.startswith((".", "/"))
    is_loaded = facts["loads_in"] != "headlens"
    lines = [
        *(["library_name: transformers"] if is_loaded else ["library_name: headlens"]),
        *([f"base_model: {name}"] if is_of_hub and _at(facts, "source", "revision") else []),
        "tags:",
        f"- {_kind(facts)}-attention",
        "- headlens",
    ]
    return "\n".join(["---", *lines, "---"])


def _title(facts: Mapping[str, Any]) -> str:
    name, kind = _source_name(facts), _kind(facts)
    left, whole = sum(map(len, facts["heads_kept"])), facts["heads_of_original"]
    if kind == "masked":
        return (
            f"# {name} with {whole - left} attention heads masked\n\n"
            f"The part of {whole - left} of {whole} heads in the output projections is zero. The model has its full "
            f"size and speed: this tells what the heads are worth, and saves nothing."
        )
    size = f"{facts['parameters']:,} parameters, {facts['dtype']}. The license of {name} holds for it."
    if kind == "converted":
        return (
            f"# {name} with {_key_values(facts)}\n\nQuery heads share keys and values otherwise than in {name}: the "
            f"key/value cache is {_cache(facts)} in size, and all {whole} query heads are there. {size}"
        )
    gone = f"{amount(whole - left, 'head')} {'was' if whole - left == 1 else 'were'} taken out by headlens"
    shared = f" What is left has {_key_values(facts)}." if _is_shared_anew(facts) else ""
    return f"# {name} with {left} of {whole} attention heads\n\n{gone}: their weights are gone.{shared} {size}"


def _key_values(facts: Mapping[str, Any]) -> str:
    """ "2 of 8 key/value heads in every layer"."""
    counts, whole = facts["kv_heads"], facts["kv_heads_of_original"]
    if len({*counts}) == 1:
        return f"{counts[0]} key/value {'head' if counts[0] == 1 else 'heads'} a layer instead of {whole}"
    return f"{sum(counts)} key/value heads in {len(counts)} layers instead of {whole * len(counts)}"


def _cache(facts: Mapping[str, Any]) -> str:
    share = sum(facts["kv_heads"]) / (facts["kv_heads_of_original"] * len(facts["kv_heads"]))
    return f"{share:.0%}"


def _is_shared_anew(facts: Mapping[str, Any]) -> bool:
    share = facts["heads_of_original"] // len(facts["heads_kept"]) // facts.get("kv_heads_of_original", 1)
    groups = [group for layer in facts.get("groups", []) for group in layer]
    return any(len({head // share for head in group}) > 1 for group in groups)


def _heads(facts: Mapping[str, Any]) -> str:
    title = "Heads that are not masked" if _kind(facts) == "masked" else "Heads that are there"
    told = "Numbers count from 0, as in the original model."
    rows = [f"| {layer} | {_numbers(kept)} |" for layer, kept in enumerate(facts["heads_kept"])]
    if _kind(facts) == "converted" or _is_shared_anew(facts):
        title, told = "Heads that share keys and values", f"{told} Between bars stand those that share."
        rows = [f"| {layer} | {_shared(groups)} |" for layer, groups in enumerate(facts["groups"])]
    return "\n".join([f"## {title}", "", told, "", "| layer | heads |", "|---|---|", *rows])


def _numbers(kept: Sequence[int]) -> str:
    return " ".join(map(str, kept)) if kept else "none"


def _shared(groups: Sequence[Sequence[int]]) -> str:
    return " \\| ".join(map(_numbers, groups)) if groups else "none"


# ------------------------------------------------------------------------------------------------------------- loading

_AUTO = {
    "CausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "MaskedLM": "AutoModelForMaskedLM",
    "SequenceClassification": "AutoModelForSequenceClassification",
    "TokenClassification": "AutoModelForTokenClassification",
    "QuestionAnswering": "AutoModelForQuestionAnswering",
    "ConditionalGeneration": "AutoModelForSeq2SeqLM",
}


def _loading(facts: Mapping[str, Any]) -> str:
    auto = next((auto for end, auto in _AUTO.items() if facts["class"].endswith(end)), "AutoModel")
    needs, lines = {
        "transformers": ("plain transformers", [f'model = {auto}.from_pretrained("FOLDER")']),
        "headlens": (
            "transformers with headlens installed",
            [
                "import headlens.models  # tells transformers the classes of these models",
                "",
                f'model = {auto}.from_pretrained("FOLDER")',
            ],
        ),
        "transformers with trust_remote_code": (
            "transformers with trust_remote_code, which runs modeling_headlens.py of this folder",
            [
                f'model = {auto}.from_pretrained("FOLDER", trust_remote_code=True)',
                "",
                "# with headlens installed, no code of the folder is needed:",
                "import headlens.models",
                "",
                f'model = {auto}.from_pretrained("FOLDER")',
            ],
        ),
    }[facts["loads_in"]]
    code = "\n".join([f"from transformers import {auto}", "", *lines])
    return f"## Loading\n\nLoads in {needs}. The class is `{facts['class']}`.\n\n```python\n{code}\n```"


# ------------------------------------------------------------------------------------------------------------ measured

UNITS = {"kl_distortion": "nats a token", "cosine_distortion": "1 - cosine"}


def _measured(facts: Mapping[str, Any]) -> str:
    pairs = facts.get("measured")
    if not isinstance(pairs, Mapping) or not pairs:
        return ""
    rows = [
        f"| {_text(name)} | {_number(value.get('before'))} | {_number(value.get('after'))} |"
        for name, value in pairs.items()
        if isinstance(value, Mapping)
    ]
    return "\n".join(["## Measured", "", "| | before | after |", "|---|---|---|", *rows])


ARMS = {
    "original": "the original",
    "converted": "this model",
    "pruned": "pruned",
    "masked": "this model",
    "repaired": "pruned and repaired",
    "healed": "healed",
    "converted, not refitted": "the same before its refit",
    "mean pooling": "plain mean pooling",
    "mean pooling, healed": "plain mean pooling, healed alike",
    "random, same layers": "random heads, as many in each layer",
    "random": "random heads, of any layer",
    "random, healed": "random heads, healed alike",
    "no heads": "no heads at all",
}


def _beside(facts: Mapping[str, Any]) -> str:
    arms = [arm for arm in _listed(_at(facts, "healing", "arms") or facts.get("arms")) if isinstance(arm, Mapping)]
    if len(arms) < 2:
        return ""
    objective = str(_at(facts, "method", "objective") or _at(facts, "healing", "objective") or "")
    unit = f", {UNITS[objective]}" if objective in UNITS else ""
    tasks = [str(task.get("task")) for task in _listed(arms[0].get("tasks")) if isinstance(task, Mapping)]
    head = ["", f"distortion{unit}", *map(_text, tasks)]
    rows = [_row(name, [arm for arm in arms if arm.get("name") == name]) for name in ARMS]
    return "\n".join(
        [
            "## Beside what it is held against",
            "",
            "How far the output moved from the original's, on text that nothing was fitted on or chosen by, and what "
            "tasks gave; of several draws the mean.",
            "",
            f"| {' | '.join(head)} |",
            "|---" * len(head) + "|",
            *(row for row in rows if row),
        ]
    )


def _row(name: str, arms: Sequence[Mapping[str, Any]]) -> str:
    if not arms:
        return ""
    columns = [[arm.get("distortion") for arm in arms]]
    for place in range(len(_listed(arms[0].get("tasks")))):
        columns.append([_at(_listed(arm.get("tasks"))[place], "figures", 0, "value") for arm in arms])
    cells = [_mean([value for value in column if isinstance(value, int | float)]) for column in columns]
    draws = f" ({len(arms)} draws)" if len(arms) > 1 else ""
    return f"| {ARMS[name]}{draws} | {' | '.join(cells)} |"


def _mean(values: Sequence[float]) -> str:
    return four_digits(sum(values) / len(values)) if values else "–"


def _speed(facts: Mapping[str, Any]) -> str:
    lines = list(_speeds(facts))
    if not lines:
        return ""
    told = "Times as fast as the original: the median of paired runs, and their quartiles."
    return "\n".join(["## Speed", "", told, "", *lines])


def _speeds(facts: Mapping[str, Any]) -> Iterator[str]:
    for one in _listed(facts.get("speed")):
        ratio, low, high = (_at(one, key) for key in ("ratio", "low", "high"))
        if all(isinstance(value, int | float) for value in (ratio, low, high)):
            yield f"- {_text(_at(one, 'workload'))}: {ratio:.2f} ({low:.2f} to {high:.2f})"


# ----------------------------------------------------------------------------------------------------- where it is from


def _origin(facts: Mapping[str, Any]) -> str:
    lines = [*_from(facts), *_how(facts), *_text_it_read(facts), *_with(facts)]
    return "\n".join(["## Where it comes from", "", *lines, "", "All of this, for programs: `headlens.json`."])


def _from(facts: Mapping[str, Any]) -> Iterator[str]:
    digest, revision = (_at(facts, "source", key) for key in ("weights_sha256", "revision"))
    more = [
        *([f"revision {_text(revision)}"] if revision else []),
        *([f"weights with the SHA-256 {_text(digest)}"] if digest else []),
    ]
    yield f"- Made from {_source_name(facts)}{': ' + ', '.join(more) if more else ''}."


def _how(facts: Mapping[str, Any]) -> Iterator[str]:
    method = facts.get("method")
    if isinstance(method, str):
        yield f"- How: {_text(method)}."
    elif isinstance(method, Mapping):
        names = {
            "ranked_by": "heads ranked by",
            "merged_by": "key/value heads merged by",
            "grouping": "groups:",
            "objective": "judged by",
            "fill": "what removed heads go on giving:",
            "healed_steps": "steps of healing:",
        }
        told = [f"{words} {_text(method[name])}" for name, words in names.items() if method.get(name) not in (None, "")]
        told += ["output projections fitted anew"] if method.get("repair") is True else []
        if told:
            yield f"- How: {'; '.join(told)}."
    if command := facts.get("command"):
        yield f"- Command: `{_code(command)}`"


def _text_it_read(facts: Mapping[str, Any]) -> Iterator[str]:
    files = [_text(_at(file, "name")) for file in _listed(_at(facts, "data", "files")) if _at(file, "name")]
    if not files:
        return
    counts = {name: _at(facts, "data", name) for name in ("fitted_on", "chosen_on", "held_out")}
    known = [f"{number:,} {name.replace('_', ' ')}" for name, number in counts.items() if isinstance(number, int)]
    kind = _text(_at(facts, "data", "reads") or "texts")
    counted = f" ({kind}: {', '.join(known)})" if known else ""
    yield f"- Calibration text: {', '.join(files)}{counted}."


def _with(facts: Mapping[str, Any]) -> Iterator[str]:
    versions = facts.get("versions")
    if isinstance(versions, Mapping):
        yield f"- Made with {', '.join(f'{name} {_text(version)}' for name, version in versions.items())}."


# -------------------------------------------------------------------------------------------------------------- inside


def _at(value: object, *path: str | int) -> Any:
    """What stands there, or None."""
    for key in path:
        if isinstance(value, Mapping) and isinstance(key, str):
            value = value.get(key)
        elif isinstance(value, list | tuple) and isinstance(key, int) and key < len(value):
            value = value[key]
        else:
            return None
    return value


def _listed(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _number(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else _text(value)


def _text(value: object) -> str:
    """On one line, with nothing that Markdown or HTML would act on."""
    line = " ".join(str(value).split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", line) if re.search(r"[`*\[\]|#\\]", line) else line


def _code(value: object) -> str:
    return " ".join(str(value).split()).replace("`", "'")
