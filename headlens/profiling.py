"""A profile: one model over one corpus, every score of every head, and all that tells how it came about."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headlens.annotated import is_annotated, read_chunks, read_sentences
from headlens.arch import is_causal_model
from headlens.behaviour.agreement import agreement_of_claims
from headlens.behaviour.parts import USUAL, behaviour, check_parts
from headlens.capture import Way
from headlens.checkpoints import speaks_grammar
from headlens.corpora import UNITS, Corpus, read_corpus, sample_path
from headlens.corpora.kinds import GRAMMAR
from headlens.documents import Document
from headlens.encode import check_vocabulary, encode, max_length_of
from headlens.errors import CaptureError, CorpusError, UnsupportedModel
from headlens.evidence_table import Evidence
from headlens.further import Further, analyze_further
from headlens.model_facts import facts_of
from headlens.models import LoadedModel, head_counts, load_model, network_of
from headlens.on_roles import on_roles
from headlens.passes import read_text, read_words, scorers_of_tokens
from headlens.provenance import (
    circumstances,
    corpus_facts,
    notes_on_corpus,
    notes_on_model,
    notes_on_text,
    notes_on_words,
    text_facts,
    word_facts,
)
from headlens.records import Batch
from headlens.results import Profile
from headlens.roles import roles_of
from headlens.scores import ScoreTable
from headlens.selfcheck import check_model

BATCH_TOKENS = 4096
GRAMMAR_SENTENCES = 2000
NOT_ANNOTATED = "The corpus has no annotated words, so there are no controls, ensembles or probe."

CorpusLike: TypeAlias = str | os.PathLike[str] | Corpus | Document | Iterable[str | os.PathLike[str] | Document]
Progress = Callable[[str, int, int], None]  # what is being done, done so far, of how many


def profile(
    model: str | LoadedModel | PreTrainedModel,
    corpus: CorpusLike | None = None,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    revision: str | None = None,
    unit: str = "line",
    limit: int | None = None,
    max_length: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    seed: int = 0,
    way: Way = "fast",
    controls: int = 0,
    ensembles: bool = False,
    probe: bool = False,
    parts: Collection[str] = USUAL,
    progress: Progress | None = None,
) -> Profile:
    """Score every attention head of a model on a corpus.

    Parameters
    ----------
    model
        A hub id, a folder, a bundled name ("minilm"), what `load_model` gave, or a transformers model with its
        `tokenizer`. Of a model with a task head the base model is run, of an encoder-decoder model the encoder.
    corpus
        A file or several, each "KIND:PATH" or a path (see `headlens.read_corpus`, which also takes further options
        and whose result may be given here), or a list of Documents (see `headlens.texts`); None takes the grammar for
        the models that were trained on it, and the bundled English sample for all others. Annotated words are scored
        sentence by sentence, mentions in stretches of up to 120 words.
    device, dtype, revision
        As for `load_model`; only where `model` is a name.
    unit
        What is a document of a text file: a "line" or a "paragraph".
    limit
        Only the first documents.
    max_length
        Tokens of one input, special ones included; None means as many as the model takes. Longer documents are cut
        into windows.
    batch_tokens
        Tokens of one forward pass; results do not depend on it.
    seed
        Of the bootstrap.
    way
        "fast" or "exact"; see `capture`.
    controls, ensembles, probe
        Of annotated corpora, each at the price of further passes: the best heads of so many copies of the model with
        random weights; greedy ensembles of up to four heads; a dependency probe made of nothing but attention.
    parts
        What to score beside position, surface and what is annotated; of behaviour.PARTS. The usual ones are all but
        "retrieval" and "ablation", which takes heads out to see whether the model uses them. A part that this model
        cannot be asked for is left out with a note.

    Raises
    ------
    UnsupportedModel, CorpusError, SelfCheckFailed, CaptureError
        Each with a sentence that says what to do.
    """
    _check_options(way, unit, limit, max_length, batch_tokens, seed)
    check_parts(parts)
    clock = _Clock()
    report = progress or (lambda _what, _done, _of: None)
    read = _read(default_corpus(model) if corpus is None else corpus, unit=unit, limit=limit)
    report("loading the model", 0, 1)
    loaded = _loaded(model, tokenizer, device=device, dtype=dtype, revision=revision)
    network = network_of(loaded.model)
    clock.lap("load")
    report("checking the model against itself", 0, 1)
    check = loaded.check or check_model(loaded.model.base_model)
    clock.lap("selfcheck")
    is_causal = is_causal_model(network)
    request = _Request(
        network=network,
        tokenizer=loaded.require_tokenizer(),
        is_causal=is_causal,
        max_length=_room(network, loaded, max_length),
        batch_tokens=batch_tokens,
        seed=seed,
        way=way,
        further=Further(controls, ensembles, probe),
        parts=frozenset(parts),
    )
    found = (_score_words if is_annotated(read) else _score_text)(request, read, loaded.name, clock, report)

    def say(what: str) -> None:
        report(what, 0, 1)

    beside = behaviour(loaded, found.batches, request.parts, seed=seed, way=way, say=say)
    if found.evidence is not None:
        agreement, notes = agreement_of_claims(loaded, read, found.evidence, seed=seed, say=say)
        beside.facts |= agreement
        beside.notes += notes
    scores = ScoreTable.joined([found.scores, *beside.tables])
    clock.lap("behaviour")
    shown = on_roles(loaded, read, found.batches, roles_of(scores, found.evidence), request.parts, seed=seed, say=say)
    clock.lap("examples")
    provenance = {
        **circumstances(loaded.name, corpus, seed),
        "model": {**loaded.provenance, "is_causal": is_causal},
        "corpus": {**corpus_facts(read, limit=limit), **found.corpus},
        "run": {
            "device": str(network.device),
            "batch_tokens": batch_tokens,
            "capture": way,
            "folds": found.folds,
            "threads": torch.get_num_threads(),
            "seconds": clock.laps,
        },
        "selfcheck": check.to_dict(),
        **found.further,
        **beside.facts,
        **shown.facts,
        "notes": [*notes_on_corpus(read), *found.notes, *beside.notes, *shown.notes, *notes_on_model(loaded)],
    }
    return Profile(scores, provenance, found.evidence, beside.similarity, shown.examples, loaded)


@dataclass(frozen=True)
class _Request:
    """What is run on what, and how."""

    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    is_causal: bool
    max_length: int
    batch_tokens: int
    seed: int
    way: Way
    further: Further
    parts: frozenset[str]


@dataclass(frozen=True)
class _Found:
    scores: ScoreTable
    evidence: Evidence | None
    batches: list[Batch]
    folds: int
    corpus: dict[str, Any]
    notes: list[str]
    further: dict[str, Any] = field(default_factory=dict)


def _score_text(request: _Request, corpus: Corpus, name: str, clock: _Clock, report: Progress) -> _Found:
    encoded = encode(corpus, request.tokenizer, max_length=request.max_length, batch_tokens=request.batch_tokens)
    check_vocabulary(encoded, request.network, name)
    clock.lap("encode")
    scorers, notes = scorers_of_tokens(request.network, with_contribution="contribution" in request.parts)
    tally = read_text(request.network, encoded, scorers, way=request.way, count=_counter(report, encoded.tokens))
    clock.lap("pass")
    scores = tally.scores(seed=request.seed)
    clock.lap("statistics")
    notes = [*notes_on_text(encoded), *notes, *([NOT_ANNOTATED] if request.further else [])]
    return _Found(scores, None, encoded.batches, tally.folds, text_facts(encoded), notes)


def _score_words(request: _Request, corpus: Corpus, name: str, clock: _Clock, report: Progress) -> _Found:
    options: dict[str, Any] = {
        "is_causal": request.is_causal,
        "max_length": request.max_length,
        "batch_tokens": request.batch_tokens,
    }
    sentences = read_sentences(corpus, request.tokenizer, **options, with_lexical="lexical" in request.parts)
    chunks = read_chunks(corpus, request.tokenizer, **options)
    readings = [sentences] if chunks is None else [sentences, chunks]
    for reading in readings:
        check_vocabulary(reading.encoded, request.network, name)
    clock.lap("encode")
    heads = head_counts(request.network.config)
    scorers, notes_on_scorers = scorers_of_tokens(request.network, with_contribution="contribution" in request.parts)
    passes = read_words(
        request.network,
        readings,
        scorers,
        documents=len(corpus),
        heads=heads["layers"] * heads["heads"],
        way=request.way,
        count=_counter(report, sum(reading.encoded.tokens for reading in readings)),
    )
    clock.lap("pass")
    scores = passes.scores(seed=request.seed)
    report("weighing the evidence", 0, 1)
    evidence = passes.evidence(is_causal=request.is_causal, seed=request.seed)
    clock.lap("statistics")
    found, notes = analyze_further(
        request.network,
        passes,
        request.further,
        way=request.way,
        seed=request.seed,
        say=lambda what: report(what, 0, 1),
    )
    if request.further:
        clock.lap("further")
    notes = [*notes_on_words(corpus, readings), *notes_on_scorers, *notes]
    batches = sentences.encoded.batches
    return _Found(scores, evidence, batches, passes.folds, word_facts(corpus, readings), notes, found)


def _counter(report: Progress, tokens: int) -> Callable[[int], None]:
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        report("scoring heads", done, tokens)

    return count


def _room(network: PreTrainedModel, loaded: LoadedModel, max_length: int | None) -> int:
    room = max_length_of(network.config, loaded.require_tokenizer())
    if max_length is not None and max_length > room:
        raise CorpusError(f"max_length is {max_length}, and {loaded.name!r} takes at most {room} tokens.")
    return max_length or room


def _check_options(
    way: Way, unit: str, limit: int | None, max_length: int | None, batch_tokens: int, seed: int
) -> None:
    """Before minutes of work, not after."""
    if way not in ("fast", "exact"):
        raise CaptureError(f"A profile captures in the way 'fast' or 'exact', got {way!r}.")
    if unit not in UNITS:
        raise CorpusError(f"The unit of a corpus is one of {', '.join(UNITS)}, got {unit!r}.")
    for name, number, least in (("limit", limit, 1), ("max_length", max_length, 1), ("batch_tokens", batch_tokens, 1)):
        if number is not None and number < least:
            raise CorpusError(f"{name} must be at least {least}, got {number}.")
    if seed < 0:
        raise CorpusError(f"seed must not be negative, got {seed}.")


def default_corpus(model: object) -> str:
    """What a model is scored on where no corpus is named: the grammar for the models that were trained on it."""
    name = model.name if isinstance(model, LoadedModel) else str(model)
    return f"{GRAMMAR}:{GRAMMAR_SENTENCES}" if speaks_grammar(name) else str(sample_path())


def _read(given: CorpusLike, *, unit: str, limit: int | None) -> Corpus:
    if isinstance(given, Corpus):
        return given if limit is None else replace(given, documents=given.documents[:limit])
    listed = [given] if isinstance(given, str | os.PathLike | Document) else list(given)
    documents = [item for item in listed if isinstance(item, Document)]
    paths = [item for item in listed if isinstance(item, str | os.PathLike)]
    if len(documents) == len(listed) > 0:
        return Corpus(documents[:limit])
    if len(paths) < len(listed):
        raise CorpusError(
            "A corpus is files or Documents, not a mixture (headlens.texts makes Documents of strings, "
            "Document.of_sentences of Sentences)."
        )
    return read_corpus(paths, unit=unit, limit=limit)


def _loaded(
    model: str | LoadedModel | PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, **options: Any
) -> LoadedModel:
    if not isinstance(model, str | os.PathLike) and options != {"device": "cpu", "dtype": "float32", "revision": None}:
        raise UnsupportedModel("device, dtype and revision are for models given by name; this one is loaded already.")
    if isinstance(model, LoadedModel):
        return model if tokenizer is None else replace(model, tokenizer=tokenizer)
    if isinstance(model, str | os.PathLike):
        return load_model(str(model), check=False, **options)  # done next, to be timed by itself
    if not isinstance(model, PreTrainedModel):
        raise UnsupportedModel(f"Expected a model of transformers, its name, or a folder; got {type(model).__name__}.")
    if tokenizer is None:
        raise UnsupportedModel(
            "A model that is passed as an object needs its tokenizer: profile(model, tokenizer=...)."
        )
    name = Path(str(getattr(model, "name_or_path", "") or type(model).__name__)).name
    provenance = {
        "name": name,
        "source": "a model in memory",
        "revision": getattr(model.config, "_commit_hash", None),
        "weights_sha256": None,
        **facts_of(model),
    }
    return LoadedModel(model, tokenizer, name, "a model in memory", provenance)


class _Clock:
    """Seconds of each part of a run."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._start = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = now - self._start
        self._start = now
