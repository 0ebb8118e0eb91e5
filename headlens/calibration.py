"""The texts on which heads are judged, and others on which the outcome is: nothing is reported on what it chose.

A language model reads windows of running text; everything else reads text by text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headlens.arch import is_causal_model
from headlens.corpora import Corpus
from headlens.documents import Document
from headlens.encode import max_length_of
from headlens.errors import CorpusError, UnsupportedModel
from headlens.importance.inputs import TextBatch, text_batches, token_windows
from headlens.importance.objectives import (
    Logits,
    Objective,
    cosine_distortion,
    hidden_distortion,
    kl_distortion,
    masked_token_loss,
    next_token_loss,
    token_logits,
)
from headlens.models import LoadedModel, network_of
from headlens.numbers import amount

ObjectiveName = Literal["cosine", "kl", "hidden", "loss"]

TEXTS, FITTED_TEXTS, TEXT_TOKENS = 256, 1500, 128  # that choose (as many are held out); that repair; of each
WINDOWS, FITTED_WINDOWS, WINDOW_TOKENS = 8, 118, 256  # the same of running text


@dataclass(frozen=True, eq=False)
class Calibration:
    """Batches of one model. `held_out` has no text of the others; `fitted` has those of `chosen` and more, or none."""

    chosen: tuple[TextBatch, ...]  # on which heads are ranked
    fitted: tuple[TextBatch, ...]  # on which mean outputs are taken, and repairs fitted
    held_out: tuple[TextBatch, ...]  # on which distortions are reported
    facts: dict[str, Any]


def calibrate(
    loaded: LoadedModel, corpus: Corpus, *, texts: int | None = None, max_length: int | None = None, seed: int = 0
) -> Calibration:
    """Documents in a random order: the first ones are held out, the next ones choose, these and more are for fitting.

    Parameters
    ----------
    texts
        How many texts (of language models: windows) choose; None is 256 texts or 8 windows. As many are held out, but
        never more than half of all.
    max_length
        Tokens of a text or window; None is 128 of a text and 256 of a window, or what the model takes.

    Raises
    ------
    CorpusError
        Fewer than two documents, or too little text to fill a window on both sides.
    """
    tokenizer, shuffled = loaded.require_tokenizer(), _shuffled(corpus, seed, least=2)
    room = max_length_of(network_of(loaded.model).config, tokenizer)
    if reads_windows(loaded):
        return _of_windows(shuffled, tokenizer, texts or WINDOWS, min(max_length or WINDOW_TOKENS, room), seed)
    return _of_texts(shuffled, tokenizer, texts or TEXTS, min(max_length or TEXT_TOKENS, room), seed)


def calibrate_to_fit(
    loaded: LoadedModel,
    corpus: Corpus,
    tokens: int,
    *,
    texts: int | None = None,
    max_length: int | None = None,
    seed: int = 0,
) -> Calibration:
    """Where much is fitted: what chooses is no part of `fitted`, which has about `tokens` tokens or all that is left.

    At most a quarter of the documents is held out, and at most an eighth chooses; where a document has sentences, each
    is a text, for what stands behind the first `max_length` tokens of a text is not read. Other arguments are as in
    `calibrate`; CorpusError for fewer than four documents, or too little text to fill a window in each part.
    """
    tokenizer, documents = loaded.require_tokenizer(), _shuffled(corpus, seed, least=4)
    room, windows = max_length_of(network_of(loaded.model).config, tokenizer), reads_windows(loaded)
    usual, of_each = (WINDOWS, WINDOW_TOKENS) if windows else (TEXTS, TEXT_TOKENS)
    most, length = texts or usual, min(max_length or of_each, room)

    def texts_of(document: Document) -> list[str]:
        return [document.text] if windows else _sentences(document)

    def read(document: Document) -> int:
        """Tokens that are read of it."""
        ids = tokenizer(texts_of(document), add_special_tokens=not windows, verbose=False)["input_ids"]
        return sum(len(own) if windows else min(len(own), length) for own in ids)

    seen: set[tuple[int, ...]] = set()

    def new(every: Iterable[str]) -> Iterator[str]:
        """Texts of which no other one was read, here or in a part before: two may differ in letters only."""
        for text in every:
            ids = tuple(tokenizer(text, truncation=True, max_length=length)["input_ids"])
            if ids not in seen:
                seen.add(ids)
                yield text

    def batches(own: Sequence[Document], most: int) -> tuple[TextBatch, ...]:
        every = [text for document in own for text in texts_of(document)]
        if windows:
            return tuple(token_windows(every, tokenizer, length=length, most=most))
        found = list(islice(new(every), most))
        if not found:
            raise CorpusError("All texts of one part of the calibration stand in another, too; give more text.")
        return tuple(text_batches(found, tokenizer, max_length=length))

    def enough(own: Sequence[Document]) -> Sequence[Document]:
        return _first(own, read, most * length) if windows else _first(own, lambda one: len(texts_of(one)), most)

    parts, rest = [], documents
    for share in (4, 8):
        taken = enough(rest[: max(1, len(documents) // share)])
        parts.append(batches(taken, most))
        rest = rest[len(taken) :]
    held_out, chosen = parts
    fitted = batches(_first(rest, read, tokens), max(1, tokens // length) if windows else tokens)
    counts = [sum(map(len, part)) for part in (chosen, fitted, held_out)]
    facts = _facts("windows" if windows else "texts", counts[0], counts[1], counts[2], length, seed)
    return Calibration(chosen, fitted, held_out, {**facts, "tokens_fitted_on": tokens_of(fitted)})


def tokens_of(batches: Iterable[TextBatch]) -> int:
    """Real ones, special ones among them."""
    return sum(int(batch.attention_mask.sum()) for batch in batches)


def objective_for(
    loaded: LoadedModel, batches: Sequence[TextBatch], name: ObjectiveName | None = None, *, seed: int = 0
) -> Objective:
    """What a model is judged by, by name; None is "kl" for language models, else "cosine".

    Raises
    ------
    UnsupportedModel
        No such objective, or the model has no vocabulary head for it.
    """
    network = network_of(loaded.model)
    name = name or ("kl" if is_causal_model(network) and _has_vocabulary_head(loaded) else "cosine")
    if name == "cosine":
        return cosine_distortion(network, batches)
    if name == "hidden":
        return hidden_distortion(network, batches)
    if name not in get_args(ObjectiveName):
        raise UnsupportedModel(f"The objective is one of {', '.join(get_args(ObjectiveName))}, got {name!r}.")
    logits = _logits(loaded, name)
    if name == "kl":
        return kl_distortion(network, batches, logits)
    if is_causal_model(network):
        return next_token_loss(batches, logits)
    tokenizer = loaded.require_tokenizer()
    if tokenizer.mask_token_id is None:
        raise UnsupportedModel(
            f"The tokenizer of {loaded.name!r} has no mask token to ask for; use the objective cosine."
        )
    return masked_token_loss(batches, logits, tokenizer.mask_token_id, special=tokenizer.all_special_ids, seed=seed)


def judged(network: PreTrainedModel, objective: Objective) -> float:
    """The mean of an objective over its examples, of a network that may be another than the one it was made of."""
    return float(judged_one_by_one(network, objective).mean())


@torch.no_grad()
def judged_one_by_one(network: PreTrainedModel, objective: Objective) -> Float[Tensor, " example"]:
    """The same of every example, in float64 on the CPU."""
    found = torch.zeros(objective.examples, dtype=torch.float64)
    for batch in objective.batches:
        own = batch.to(network.device)
        hidden = network(input_ids=own.input_ids, attention_mask=own.attention_mask).last_hidden_state
        found[batch.example] = objective.values(hidden, own).double().cpu()
    return found


def reads_windows(loaded: LoadedModel) -> bool:
    """Whether it is a model of running text: causal, with a tokenizer that knows the end of a paragraph."""
    tokenizer = loaded.require_tokenizer()
    between = tokenizer("\n\n", add_special_tokens=False)["input_ids"]
    return is_causal_model(network_of(loaded.model)) and bool(between) and tokenizer.unk_token_id not in between


def _shuffled(corpus: Corpus, seed: int, least: int) -> list[Document]:
    """Each text once, as the same one must not stand on two sides."""
    documents = list({text: document for document in corpus if (text := document.text.strip())}.values())
    words = {2: "two", 4: "four"}
    if len(documents) < least:
        raise CorpusError(
            f"Some texts choose and others judge the choice, and the calibration corpus has "
            f"{amount(len(documents), 'different text')}; give at least {words[least]} (one a line, or --unit "
            f"paragraph)."
        )
    return [documents[place] for place in np.random.default_rng(seed).permutation(len(documents)).tolist()]


def _sentences(document: Document) -> list[str]:
    return [sentence.text for sentence in document.sentences if sentence.text.strip()] or [document.text]


def _first(documents: Sequence[Document], size: Callable[[Document], int], enough: int) -> Sequence[Document]:
    """So many of the first ones that their sizes come to `enough`, or all."""
    total = 0
    for number, document in enumerate(documents):
        if total >= enough:
            return documents[:number]
        total += size(document)
    return documents


def _of_texts(
    documents: Sequence[Document], tokenizer: PreTrainedTokenizerBase, texts: int, max_length: int, seed: int
) -> Calibration:
    held = documents[: min(texts, len(documents) // 2)]
    rest = documents[len(held) :]

    def batches(chosen: Sequence[Document]) -> tuple[TextBatch, ...]:
        return tuple(text_batches(chosen, tokenizer, max_length=max_length))

    chosen, fitted = rest[:texts], rest[: max(texts, FITTED_TEXTS)]
    facts = _facts("texts", len(chosen), len(fitted), len(held), max_length, seed)
    return Calibration(batches(chosen), batches(fitted), batches(held), facts)


def _of_windows(
    documents: Sequence[Document], tokenizer: PreTrainedTokenizerBase, windows: int, length: int, seed: int
) -> Calibration:
    half = len(documents) // 2
    rest = token_windows(documents[half:], tokenizer, length=length, most=max(windows, FITTED_WINDOWS))
    held = token_windows(documents[:half], tokenizer, length=length, most=windows)
    chosen = token_windows(documents[half:], tokenizer, length=length, most=windows)
    counts = [sum(map(len, batches)) for batches in (chosen, rest, held)]
    facts = _facts("windows", counts[0], counts[1], counts[2], length, seed)
    return Calibration(tuple(chosen), tuple(rest), tuple(held), facts)


def _facts(kind: str, chosen: int, fitted: int, held_out: int, length: int, seed: int) -> dict[str, Any]:
    return {
        "reads": kind,
        "chosen_on": chosen,
        "fitted_on": fitted,
        "held_out": held_out,
        "max_length": length,
        "seed": seed,
    }


def _has_vocabulary_head(loaded: LoadedModel) -> bool:
    return loaded.model.get_output_embeddings() is not None


def _logits(loaded: LoadedModel, name: str) -> Logits:
    if not _has_vocabulary_head(loaded):
        raise UnsupportedModel(
            f"{loaded.name!r} has no vocabulary head, which the objective {name} asks for; use cosine or hidden."
        )
    return token_logits(loaded.model)
