"""Classification and regression with the model's own head: its labels must be those of the file, in a known order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from transformers import PreTrainedModel

from headlens.checkpoints import find_checkpoint
from headlens.encode import max_length_of
from headlens.errors import CorpusError, UnsupportedModel
from headlens.evaluation.language import Ints, padded
from headlens.evaluation.results import Metric, fingerprint, mean, pearson, spearman
from headlens.evaluation.task import BATCH_TOKENS, Answers, Task
from headlens.models import LoadedModel
from headlens.significance import Floats
from headlens.words import check_fast, encodable, id_of, kept_as_it_is

TEXT = ("text", "sentence", "sentence1", "premise", "question1")
SECOND = ("sentence2", "hypothesis", "question2")
LABEL = ("label", "labels", "category", "class", "gold_label")
SCORE = ("score", "label", "labels", "rating")

_CLASS = "ForSequenceClassification"
_DEFAULT_LABEL = re.compile(r"LABEL_(\d+)")


@dataclass(frozen=True)
class Labelled:
    text: str
    second: str | None  # of tasks of two texts
    label: str  # of regression: the number as a string
    id: str


class Classification(Task):
    """Share of texts, or pairs of texts, whose label has the largest logit.

    `names` maps labels of the file to those of the model where they differ.
    """

    metrics = (Metric("accuracy", mean("right"), higher_is_better=True),)

    def __init__(
        self,
        rows: Sequence[Labelled],
        *,
        name: str = "classification",
        names: Mapping[str, str] | None = None,
        sources: Sequence[Any] = (),
    ) -> None:
        if not rows:
            raise CorpusError(f"{name}: there is no row; give at least one.")
        self.rows, self.name, self.names, self.sources = tuple(rows), name, dict(names or {}), tuple(sources)
        self.items = tuple(row.id for row in rows)
        self.fingerprint = _fingerprint("classification", rows)

    def ask(self, loaded: LoadedModel, *, batch_tokens: int = BATCH_TOKENS) -> Answers:
        _check_head(loaded)
        places = label_places(loaded, {row.label for row in self.rows}, self.names)
        logits, cut = _logits(loaded, self.rows, batch_tokens)
        gold, chosen = np.array([places[row.label] for row in self.rows]), logits.argmax(axis=1)
        right = (gold == chosen).astype(np.float64)
        best = _best_order(gold, chosen, logits.shape[1])
        notes = list(_notes(cut))
        if best > right.mean() and best - right.mean() > 2 * np.sqrt(best * (1 - best) / len(gold)):
            notes.append(
                f"With its labels in another order the model would be right in {best:.3f} instead of "
                f"{right.mean():.3f}: check that config.json names them in the order of training."
            )
        facts = {
            "labels": {label: int(place) for label, place in sorted(places.items())},
            "best_of_all_orders": best,
            "most_frequent_label": float(np.bincount(gold).max() / len(gold)),  # what always saying the same would get
            "cut_texts": cut,
            "sources": [dict(source) for source in self.sources],
        }
        return Answers({"right": right}, facts, tuple(notes))


class Regression(Task):
    """Spearman and Pearson correlation of the one logit with the scores of the file."""

    metrics = (
        Metric("spearman", spearman("predicted", "score"), higher_is_better=True, alike=("score",)),
        Metric("pearson", pearson("predicted", "score"), higher_is_better=True, alike=("score",)),
    )

    def __init__(self, rows: Sequence[Labelled], *, name: str = "regression", sources: Sequence[Any] = ()) -> None:
        if len({row.label for row in rows}) < 2:
            raise CorpusError(f"{name}: a correlation needs rows of different scores; got {len(rows)} rows of one.")
        self.rows, self.name, self.sources = tuple(rows), name, tuple(sources)
        self.items = tuple(row.id for row in rows)
        self.fingerprint = _fingerprint("regression", rows)

    def ask(self, loaded: LoadedModel, *, batch_tokens: int = BATCH_TOKENS) -> Answers:
        _check_head(loaded)
        logits, cut = _logits(loaded, self.rows, batch_tokens)
        if logits.shape[1] != 1:
            raise UnsupportedModel(
                f"{loaded.name!r} gives {logits.shape[1]} numbers a text, regression needs one; use classification."
            )
        score = np.array([float(row.label) for row in self.rows])
        facts = {"cut_texts": cut, "sources": [dict(source) for source in self.sources]}
        return Answers({"predicted": logits[:, 0], "score": score}, facts, tuple(_notes(cut)))


def label_places(loaded: LoadedModel, labels: set[str], names: Mapping[str, str]) -> dict[str, int]:
    """Which logit stands for each label of the file.

    A label is looked up in config.label2id under the name that `names` gives, else under its own, else without regard
    to capitals. Numbers are taken for places only where the config leaves its labels unnamed (LABEL_0, LABEL_1, ...).

    Raises UnsupportedModel where the two lists of the config contradict each other, CorpusError where a label cannot
    be told: nothing is guessed from an order.
    """
    own = _labels_of(loaded)
    if unknown := sorted(set(names.values()) - set(own)):
        raise CorpusError(f"{loaded.name!r} has the labels {_listed(own)}, not {', '.join(unknown)}.")
    folded = {name.casefold(): place for name, place in own.items()}
    is_unnamed = all(_DEFAULT_LABEL.fullmatch(name) for name in own)
    found = {}
    for label in sorted(labels):
        name = names.get(label, label)
        if name in own:
            found[label] = own[name]
        elif len(folded) == len(own) and name.casefold() in folded:
            found[label] = folded[name.casefold()]
        elif is_unnamed and name.isdecimal() and int(name) < len(own):
            found[label] = int(name)
        else:
            raise CorpusError(
                f"The file has the labels {_listed(sorted(labels))}, and {loaded.name!r} has {_listed(own)}: it is not "
                f"certain which of these {label!r} is; say so, as --labels {label}={next(iter(own))}."
            )
    if len(set(found.values())) < len(found):
        raise CorpusError(f"Several labels of the file are one label of {loaded.name!r}: {found}; name them apart.")
    return found


def _labels_of(loaded: LoadedModel) -> dict[str, int]:
    """The model's labels in the order of its logits."""
    config = loaded.model.config
    by_place = {int(place): str(name) for place, name in (config.id2label or {}).items()}
    by_name = {str(name): int(place) for name, place in (config.label2id or {}).items()}
    if {name: place for place, name in by_place.items()} != by_name or sorted(by_place) != list(range(len(by_place))):
        raise UnsupportedModel(
            f"The config of {loaded.name!r} contradicts itself about its labels: id2label is {by_place}, label2id is "
            f"{by_name}; mend config.json."
        )
    return {by_place[place]: place for place in sorted(by_place)}


def _listed(names: Sequence[str] | Mapping[str, int]) -> str:
    shown = [str(name) for name in names]
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "")


def _check_head(loaded: LoadedModel) -> None:
    """Refuse a model without a head for texts as a whole, and one whose head was never trained."""
    model = loaded.model
    names = {kind.__name__ for kind in type(model).__mro__}
    if not any(name.endswith(_CLASS) for name in names):
        raise UnsupportedModel(
            f"{loaded.name!r} is a {type(model).__name__}, which has no head for labels; load a checkpoint whose "
            f"architecture ends in {_CLASS}, with its head."
        )
    if getattr(model.config, "problem_type", None) == "multi_label_classification":
        raise UnsupportedModel(f"{loaded.name!r} gives a text several labels at once, which is not measured here.")
    if missing := _untrained(loaded):
        raise UnsupportedModel(
            f"The checkpoint of {loaded.name!r} lacks {missing[0]}, so the head of this model is random and its "
            f"answers say nothing; fine-tune it and load what was saved."
        )


def _untrained(loaded: LoadedModel) -> list[str]:
    """Weights of the head that the files do not hold; none where the model came from no files."""
    if loaded.provenance.get("weights_sha256") is None:
        return []
    checkpoint = find_checkpoint(loaded.name, revision=loaded.provenance.get("revision"))
    if checkpoint.gguf:
        return []
    stored = set[str]()
    for file in checkpoint.weight_files:
        with safe_open(file, framework="pt") as found:
            stored |= set(found.keys())
    base = f"{loaded.model.base_model_prefix}."
    return [name for name, _ in loaded.model.named_parameters() if not name.startswith(base) and name not in stored]


def _best_order(gold: Ints, chosen: Ints, labels: int) -> float:
    """The accuracy if the labels of the model were renamed as suits it best."""
    from scipy.optimize import linear_sum_assignment

    confusion = np.zeros((labels, labels))
    np.add.at(confusion, (gold, chosen), 1)
    return float(confusion[linear_sum_assignment(confusion, maximize=True)].sum() / len(gold))


def _notes(cut: int) -> Iterator[str]:
    if cut:
        yield f"{cut} texts are longer than the model takes and were cut at their end."


def _fingerprint(kind: str, rows: Sequence[Labelled]) -> str:
    return fingerprint(kind, [(row.text, row.second, row.label) for row in rows])


# ------------------------------------------------------------------------------------------------------------- running


def _logits(loaded: LoadedModel, rows: Sequence[Labelled], batch_tokens: int) -> tuple[Floats, int]:
    """[item, label], and how many texts were cut."""
    model = loaded.model
    encoded, cut = _encoded(loaded, rows)
    order = sorted(range(len(rows)), key=lambda number: len(encoded[number]["input_ids"]))
    found: dict[int, Floats] = {}
    for group in _groups(order, encoded, batch_tokens, alone=getattr(model.config, "pad_token_id", None) is None):
        logits = model(**_inputs(loaded, [encoded[number] for number in group])).logits
        found.update(zip(group, logits.double().cpu().numpy(), strict=True))
    return np.stack([found[number] for number in range(len(rows))]), cut


def _encoded(loaded: LoadedModel, rows: Sequence[Labelled]) -> tuple[list[dict[str, list[int]]], int]:
    """What the tokenizer makes of every row; special tokens written out in a text are text."""
    tokenizer = loaded.require_tokenizer()
    check_fast(tokenizer)
    most = max_length_of(loaded.model.config, tokenizer)
    found, cut = [], 0
    with kept_as_it_is(tokenizer):
        for row in rows:
            texts = [encodable(text, row.id) for text in (row.text, row.second) if text is not None]
            called = tokenizer(*texts, split_special_tokens=True, verbose=False)
            if len(called["input_ids"]) > most:
                called, cut = tokenizer(*texts, split_special_tokens=True, truncation=True, max_length=most), cut + 1
            found.append(dict(called))
    return found, cut


def _groups(
    order: Sequence[int], encoded: Sequence[Mapping[str, list[int]]], batch_tokens: int, *, alone: bool
) -> Iterator[list[int]]:
    """Rows that share a batch, shortest first; one by one where the model does not know padding when it sees it."""
    group = list[int]()
    for number in order:
        if group and (alone or (len(group) + 1) * len(encoded[number]["input_ids"]) > batch_tokens):
            yield group
            group = []
        group.append(number)
    yield group


def _inputs(loaded: LoadedModel, rows: Sequence[Mapping[str, list[int]]]) -> dict[str, torch.Tensor]:
    model: PreTrainedModel = loaded.model
    pad = getattr(model.config, "pad_token_id", None)
    if pad is None:
        pad = id_of(loaded.require_tokenizer(), "pad_token") or 0
    ids, mask = padded([np.array(row["input_ids"], np.int64) for row in rows], pad)
    known = model.get_input_embeddings().num_embeddings
    if int(ids.max()) >= known:
        raise UnsupportedModel(
            f"The tokenizer is not that of {loaded.name!r}: it gives the token id {int(ids.max())}, the model knows "
            f"{known} tokens."
        )
    inputs = {"input_ids": ids, "attention_mask": mask}
    if "token_type_ids" in rows[0] and getattr(model.config, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = padded([np.array(row["token_type_ids"], np.int64) for row in rows], 0)[0]
    return {name: values.to(model.device) for name, values in inputs.items()}
