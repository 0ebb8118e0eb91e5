"""SyntaxGym suites (Gauthier et al. 2020): where in a sentence a model is surprised, and whether it should be."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headlens.corpora.text import existing_file, text_lines
from headlens.documents import Document
from headlens.encode import max_length_of
from headlens.errors import CorpusError
from headlens.evaluation.formulas import WHOLE, Formula, Surprisals, parse_formula
from headlens.evaluation.language import (
    Asked,
    LanguageModel,
    TokenText,
    causal_model,
    check_length,
    next_tokens,
    start_ids,
    token_texts,
)
from headlens.evaluation.results import Metric, fingerprint, mean
from headlens.evaluation.task import BATCH_TOKENS, Answers, Task
from headlens.models import LoadedModel
from headlens.words import Aligned, WordInput, align


@dataclass(frozen=True)
class Condition:
    """One sentence of an item: its regions by number, in their order. A region may be empty."""

    name: str
    regions: tuple[tuple[str, str], ...]  # number and content


@dataclass(frozen=True)
class Item:
    conditions: tuple[Condition, ...]
    id: str  # "suite.json, item 3"


class SyntaxGym(Task):
    """Mean over items of the share of a suite's predictions that hold.

    The surprisal of a region is the sum over its tokens, in bits; regions are joined by spaces, and a token belongs to
    the region on which its first character that is no space stands. Sentences begin as in `MinimalPairs`.
    """

    metrics = (Metric("accuracy", mean("right"), higher_is_better=True),)

    def __init__(
        self,
        items: Sequence[Item],
        formulas: Sequence[Formula],
        *,
        name: str = "syntaxgym",
        sources: Sequence[Any] = (),
    ) -> None:
        if not items or not formulas:
            raise CorpusError(f"{name}: a suite has at least one item and one prediction.")
        for item in items:
            for formula in formulas:
                _check_regions(item, formula)
        self.suite, self.formulas, self.name, self.sources = tuple(items), tuple(formulas), name, tuple(sources)
        self.items = tuple(item.id for item in items)
        content = [[(condition.name, condition.regions) for condition in item.conditions] for item in items]
        self.fingerprint = fingerprint("syntaxgym", content, [formula.text for formula in formulas])

    def ask(self, loaded: LoadedModel, *, batch_tokens: int = BATCH_TOKENS) -> Answers:
        model = causal_model(loaded)
        surprisals = self._surprisals(model, max_length_of(loaded.model.config, model.tokenizer), batch_tokens)
        holds = np.array([[formula.holds(own) for formula in self.formulas] for own in surprisals], np.float64)
        facts = {
            "predictions": {formula.text: float(holds[:, place].mean()) for place, formula in enumerate(self.formulas)},
            "sources": [dict(source) for source in self.sources],
        }
        return Answers({"right": holds.mean(axis=1)}, facts)

    def _surprisals(self, model: LanguageModel, most: int, batch_tokens: int) -> list[Surprisals]:
        """Of every item, by condition and region, in bits."""
        owners = [(number, condition) for number, item in enumerate(self.suite) for condition in item.conditions]
        inputs = [_word_input(condition, number, self.items[number]) for number, condition in owners]
        aligned = align(inputs, model.tokenizer)
        # what stands in front of a text is the same for all, and only whole texts tell it
        frame = token_texts([Document(inputs[0].text, inputs[0].id)], model.tokenizer)[0]
        asked = [
            _asked(place, found, frame, model, most, inputs[place].id) for place, found in enumerate(aligned)
        ]  # fmt: skip
        found: list[dict[tuple[str, str], float]] = [{} for _ in self.suite]
        for said in model.say(sorted(asked, key=lambda one: len(one.ids)), batch_tokens=batch_tokens):
            number, condition = owners[said.item]
            own = aligned[said.item]
            bits = np.zeros(len(own.ids))
            bits[len(bits) - len(said.log_probs) :] = -said.log_probs / math.log(2)
            filled = iter(own.ranges.tolist())
            for region, content in condition.regions:
                start, stop = next(filled) if content else (0, 0)
                found[number][condition.name, region] = float(bits[start:stop].sum())
        return list(found)


def read_suite(path: str | os.PathLike[str], *, limit: int | None = None) -> tuple[list[Item], list[Formula]]:
    """The items and predictions of a SyntaxGym suite in JSON.

    Raises CorpusError with the file, and the line or the item, where it is no suite.
    """
    file = existing_file(path)
    text = "\n".join(line for _, line in text_lines(file))
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise CorpusError(f"{file}{line}: this is not JSON ({error}); name a suite of SyntaxGym.") from None
    place = str(file)
    metric = _entry(_entry(found, "meta", dict, place), "metric", str, place)
    if metric != "sum":
        raise CorpusError(f"{place}: regions are scored by their sum, this suite asks for {metric!r}.")
    formulas = []
    for number, prediction in enumerate(_entry(found, "predictions", list, place), start=1):
        try:
            formulas.append(parse_formula(_entry(prediction, "formula", str, place)))
        except CorpusError as error:
            raise CorpusError(f"{place}, prediction {number}: {error}") from None
    items = [
        _item(item, f"{file.name}, item {number}")
        for number, item in enumerate(_entry(found, "items", list, place)[:limit], start=1)
    ]
    return items, formulas


def _item(found: Any, place: str) -> Item:
    conditions = []
    for condition in _entry(found, "conditions", list, place):
        regions = tuple(
            (str(_entry(region, "region_number", int | str, place)), _entry(region, "content", str, place).strip())
            for region in _entry(condition, "regions", list, place)
        )
        conditions.append(Condition(_entry(condition, "condition_name", str, place), regions))
        if not any(content for _, content in regions):
            raise CorpusError(f"{place}: the condition {conditions[-1].name} has no region with text; mend the suite.")
    return Item(tuple(conditions), place)


def _entry(found: Any, name: str, kind: Any, place: str) -> Any:
    if not isinstance(found, dict) or not isinstance(found.get(name), kind):
        got = f"got {type(found.get(name)).__name__}" if isinstance(found, dict) else f"in {type(found).__name__}"
        expected = {dict: "an object", list: "a list", str: "a string"}.get(kind, "a number")
        raise CorpusError(f"{place}: a suite of SyntaxGym has {expected} called {name} here, {got}; mend the file.")
    return found[name]


def _check_regions(item: Item, formula: Formula) -> None:
    there: Mapping[str, set[str]] = {
        condition.name: {number for number, _ in condition.regions} for condition in item.conditions
    }
    for region in sorted(formula.regions, key=str):
        if region.condition not in there:
            raise CorpusError(f"{item.id}: the formula asks for {region}, the conditions are {', '.join(there)}.")
        if region.number != WHOLE and region.number not in there[region.condition]:
            numbers = ", ".join(sorted(there[region.condition]))
            raise CorpusError(f"{item.id}: the formula asks for {region}, the regions are {numbers}.")


def _word_input(condition: Condition, item: int, place: str) -> WordInput:
    """Regions with text as words, a space between them."""
    text, spans, contents = "", list[tuple[int, int]](), [content for _, content in condition.regions if content]
    for content in contents:
        text += " " if text else ""
        spans.append((len(text), len(text) + len(content)))
        text += content
    return WordInput(tuple(contents), text, tuple(spans), item, f"{place}, {condition.name}")


def _asked(place: int, found: Aligned, frame: TokenText, model: LanguageModel, most: int, name: str) -> Asked:
    one = next_tokens(place, start_ids(frame, model.tokenizer), found.ids.astype(np.int64))
    check_length(len(one.ids), most, name)
    return one
