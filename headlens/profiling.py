"""A profile: one model over one corpus, every score of every head, and all that tells how it came about."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headlens.annotated import is_annotated, read_chunks, read_sentences
from headlens.arch import attention_sites
from headlens.capture import Way
from headlens.corpora import UNITS, Corpus, read_corpus, sample_path
from headlens.documents import Document
from headlens.encode import check_vocabulary, encode, max_length_of
from headlens.errors import CaptureError, CorpusError, OutputError, UnsupportedModel
from headlens.evidence_table import Evidence
from headlens.files import Write, write_together
from headlens.further import Further, analyze_further
from headlens.models import LoadedModel, facts_of, head_counts, load_model, network_of
from headlens.passes import read_text, read_words
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
from headlens.scores import ScoreTable
from headlens.selfcheck import check_model

PROFILE_SCHEMA = "headlens.profile/1"
EVIDENCE_FILES = ("evidence.csv", "tests.parquet")
BATCH_TOKENS = 4096
NOT_ANNOTATED = "The corpus has no annotated words, so there are no controls, ensembles or probe."

CorpusLike: TypeAlias = str | os.PathLike[str] | Corpus | Document | Iterable[str | os.PathLike[str] | Document] | None
Progress = Callable[[str, int, int], None]  # what is being done, done so far, of how many


@dataclass(frozen=True, eq=False)
class Profile:
    """Scores of every head of a model, and their provenance (plain values, as in profile.json)."""

    scores: ScoreTable
    provenance: dict[str, Any]
    evidence: Evidence | None = None  # of annotated corpora

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write scores.parquet, scores.csv, report.html and profile.json, and put them in place when all are complete.

        Of annotated corpora also evidence.csv and tests.parquet; those of an earlier profile are removed else.

        Raises
        ------
        OutputError
            The folder cannot be written to. What was there stays.
        """
        from headlens.report import render_report

        folder = Path(folder)
        start = time.perf_counter()
        page = render_report(self.scores, self.provenance, self.evidence).encode("utf-8", "replace")
        run = self.provenance.setdefault("run", {})
        run.setdefault("seconds", {})["report"] = time.perf_counter() - start
        facts = {
            "schema": PROFILE_SCHEMA,
            "scores": self.scores.fingerprint(),
            "has_evidence": self.evidence is not None,
            **self.provenance,
        }
        text = (json.dumps(facts, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace")
        files: dict[str, Write] = {
            **self.scores.writers(),
            **(self.evidence.writers() if self.evidence is not None else {}),
            "report.html": lambda path: path.write_bytes(page),
            "profile.json": lambda path: path.write_bytes(text),
        }
        write_together({folder / name: write for name, write in files.items()})
        if self.evidence is None:
            for name in EVIDENCE_FILES:
                (folder / name).unlink(missing_ok=True)
        return folder / "report.html"

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Profile:
        """Read what `save` wrote.

        Raises
        ------
        OutputError
            There is no profile, or one of another schema.
        """
        path = Path(folder) / "profile.json"
        try:
            provenance = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise OutputError(f"{path} is not there; give the folder that `headlens profile --out` wrote.") from None
        except (OSError, ValueError) as reason:
            raise OutputError(f"{path} cannot be read ({reason}); run the profile again.") from None
        schema = provenance.pop("schema", None) if isinstance(provenance, dict) else None
        if schema != PROFILE_SCHEMA:
            raise OutputError(f"{path} has the schema {schema!r}, this headlens reads {PROFILE_SCHEMA!r}.")
        scores = ScoreTable.load(folder)
        if provenance.pop("scores", None) != scores.fingerprint():
            raise OutputError(f"{path} and scores.parquet beside it are of different runs; run the profile again.")
        has_evidence = provenance.pop("has_evidence", False)
        return cls(scores, provenance, Evidence.load(folder) if has_evidence else None)

    def __repr__(self) -> str:
        model, corpus = self.provenance["model"], self.provenance["corpus"]
        return (
            f"<Profile of {model['name']}: {self.scores.n_layers} x {self.scores.n_heads} heads, "
            f"{len(self.scores.names)} scores, {corpus['documents']:,} documents>"
        )

    def _repr_html_(self) -> str:
        from headlens.report import render_summary

        return render_summary(self.scores, self.provenance, self.evidence)


def profile(
    model: str | LoadedModel | PreTrainedModel,
    corpus: CorpusLike = None,
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
        and whose result may be given here), or a list of Documents (see `headlens.texts`); None takes the bundled
        English sample. Annotated words are scored sentence by sentence, mentions in stretches of up to 120 words.
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

    Raises
    ------
    UnsupportedModel, CorpusError, SelfCheckFailed, CaptureError
        Each with a sentence that says what to do.
    """
    _check_options(way, unit, limit, max_length, batch_tokens, seed)
    clock = _Clock()
    report = progress or (lambda _what, _done, _of: None)
    read = _read(corpus, unit=unit, limit=limit)
    report("loading the model", 0, 1)
    loaded = _loaded(model, tokenizer, device=device, dtype=dtype, revision=revision)
    network = network_of(loaded.model)
    clock.lap("load")
    report("checking the model against itself", 0, 1)
    check = loaded.check or check_model(loaded.model.base_model)
    clock.lap("selfcheck")
    is_causal = attention_sites(network)[0].stack == "decoder"
    request = _Request(
        network=network,
        tokenizer=loaded.require_tokenizer(),
        is_causal=is_causal,
        max_length=_room(network, loaded, max_length),
        batch_tokens=batch_tokens,
        seed=seed,
        way=way,
        further=Further(controls, ensembles, probe),
    )
    found = (_score_words if is_annotated(read) else _score_text)(request, read, loaded.name, clock, report)
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
        "notes": [*notes_on_corpus(read), *found.notes, *notes_on_model(loaded)],
    }
    return Profile(found.scores, provenance, found.evidence)


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


@dataclass(frozen=True)
class _Found:
    scores: ScoreTable
    evidence: Evidence | None
    folds: int
    corpus: dict[str, Any]
    notes: list[str]
    further: dict[str, Any] = field(default_factory=dict)


def _score_text(request: _Request, corpus: Corpus, name: str, clock: _Clock, report: Progress) -> _Found:
    encoded = encode(corpus, request.tokenizer, max_length=request.max_length, batch_tokens=request.batch_tokens)
    check_vocabulary(encoded, request.network, name)
    clock.lap("encode")
    tally = read_text(request.network, encoded, way=request.way, count=_counter(report, encoded.tokens))
    clock.lap("pass")
    scores = tally.scores(seed=request.seed)
    clock.lap("statistics")
    notes = notes_on_text(encoded) + ([NOT_ANNOTATED] if request.further else [])
    return _Found(scores, None, tally.folds, text_facts(encoded), notes)


def _score_words(request: _Request, corpus: Corpus, name: str, clock: _Clock, report: Progress) -> _Found:
    options: dict[str, Any] = {
        "is_causal": request.is_causal,
        "max_length": request.max_length,
        "batch_tokens": request.batch_tokens,
    }
    sentences = read_sentences(corpus, request.tokenizer, **options)
    chunks = read_chunks(corpus, request.tokenizer, **options)
    readings = [sentences] if chunks is None else [sentences, chunks]
    for reading in readings:
        check_vocabulary(reading.encoded, request.network, name)
    clock.lap("encode")
    heads = head_counts(request.network.config)
    passes = read_words(
        request.network,
        readings,
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
    notes = [*notes_on_words(corpus, readings), *notes]
    return _Found(scores, evidence, passes.folds, word_facts(corpus, readings), notes, found)


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


def _read(given: CorpusLike, *, unit: str, limit: int | None) -> Corpus:
    if isinstance(given, Corpus):
        return given if limit is None else replace(given, documents=given.documents[:limit])
    if given is None:
        given = sample_path()
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
