"""A profile: one model over one corpus, every score of every head, and all that tells how it came about."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import headlens
from headlens.analyze import analyze
from headlens.analyzers import ANALYZERS
from headlens.arch import attention_sites
from headlens.capture import Way
from headlens.corpora import UNITS, describe_files, read_corpus, sample_path
from headlens.documents import Document
from headlens.encode import Encoded, check_vocabulary, encode, max_length_of
from headlens.errors import CaptureError, CorpusError, OutputError, UnsupportedModel
from headlens.files import Write, write_together
from headlens.models import LoadedModel, facts_of, load_model, network_of
from headlens.scores import ScoreTable
from headlens.selfcheck import check_model
from headlens.tally import Tally

PROFILE_SCHEMA = "headlens.profile/1"
BATCH_TOKENS = 4096
FEW_TOKENS = 1000  # below this many scored tokens a profile warns
UNKNOWN_SHARE = 0.02  # of the scored tokens: from here on a profile tells

Corpus: TypeAlias = str | os.PathLike[str] | Document | Iterable[str | os.PathLike[str] | Document] | None
Progress = Callable[[str, int, int], None]  # what is being done, done so far, of how many


@dataclass(frozen=True, eq=False)
class Profile:
    """Scores of every head of a model, and their provenance (plain values, as in profile.json)."""

    scores: ScoreTable
    provenance: dict[str, Any]

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write scores.parquet, scores.csv, report.html and profile.json, and put them in place when all are complete.

        Raises
        ------
        OutputError
            The folder cannot be written to. What was there stays.
        """
        from headlens.report import render_report

        folder = Path(folder)
        start = time.perf_counter()
        page = render_report(self.scores, self.provenance).encode("utf-8", "replace")
        run = self.provenance.setdefault("run", {})
        run.setdefault("seconds", {})["report"] = time.perf_counter() - start
        facts = {"schema": PROFILE_SCHEMA, "scores": self.scores.fingerprint(), **self.provenance}
        text = (json.dumps(facts, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace")
        files: dict[str, Write] = {
            **self.scores.writers(),
            "report.html": lambda path: path.write_bytes(page),
            "profile.json": lambda path: path.write_bytes(text),
        }
        write_together({folder / name: write for name, write in files.items()})
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
        return cls(scores, provenance)

    def __repr__(self) -> str:
        model, corpus = self.provenance["model"], self.provenance["corpus"]
        return (
            f"<Profile of {model['name']}: {self.scores.n_layers} x {self.scores.n_heads} heads, "
            f"{len(self.scores.names)} scores, {corpus['documents']:,} documents>"
        )

    def _repr_html_(self) -> str:
        from headlens.report import render_summary

        return render_summary(self.scores, self.provenance)


def profile(
    model: str | LoadedModel | PreTrainedModel,
    corpus: Corpus = None,
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
    progress: Progress | None = None,
) -> Profile:
    """Score every attention head of a model on a corpus.

    Parameters
    ----------
    model
        A hub id, a folder, a bundled name ("minilm"), what `load_model` gave, or a transformers model with its
        `tokenizer`. Of a model with a task head the base model is run, of an encoder-decoder model the encoder.
    corpus
        A text file or several, or a list of Documents (see `headlens.texts`); None takes the bundled English sample.
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

    Raises
    ------
    UnsupportedModel, CorpusError, SelfCheckFailed, CaptureError
        Each with a sentence that says what to do.
    """
    _check_options(way, unit, limit, max_length, batch_tokens, seed)
    clock = _Clock()
    report = progress or (lambda _what, _done, _of: None)
    documents, files = _read(corpus, unit, limit)
    report("loading the model", 0, 1)
    loaded = _loaded(model, tokenizer, device=device, dtype=dtype, revision=revision)
    network = network_of(loaded.model)
    clock.lap("load")
    report("checking the model against itself", 0, 1)
    check = loaded.check or check_model(loaded.model.base_model)
    clock.lap("selfcheck")
    words = loaded.require_tokenizer()
    room = max_length_of(network.config, words)
    if max_length is not None and max_length > room:
        raise CorpusError(f"max_length is {max_length}, and {loaded.name!r} takes at most {room} tokens.")
    encoded = encode(documents, words, max_length=max_length or room, batch_tokens=batch_tokens)
    check_vocabulary(encoded, network, loaded.name)
    clock.lap("encode")
    tally = _run(network, encoded, way, report)
    clock.lap("pass")
    scores = tally.scores(seed=seed)
    clock.lap("statistics")
    provenance = {
        **_circumstances(loaded.name, corpus, seed),
        "model": {**loaded.provenance, "is_causal": attention_sites(network)[0].stack == "decoder"},
        "corpus": _corpus_facts(files, encoded, unit, limit),
        "run": {
            "device": str(network.device),
            "batch_tokens": batch_tokens,
            "capture": way,
            "folds": tally.folds,
            "threads": torch.get_num_threads(),
            "seconds": clock.laps,
        },
        "selfcheck": check.to_dict(),
        "notes": _notes(encoded, loaded),
    }
    return Profile(scores, provenance)


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


def _read(corpus: Corpus, unit: str, limit: int | None) -> tuple[list[Document], list[dict[str, Any]]]:
    if corpus is None:
        corpus = sample_path()
    given = [corpus] if isinstance(corpus, str | os.PathLike | Document) else list(corpus)
    documents = [item for item in given if isinstance(item, Document)]
    paths = [item for item in given if isinstance(item, str | os.PathLike)]
    if len(documents) == len(given) > 0:
        return documents[:limit], []
    if len(paths) < len(given):
        raise CorpusError("A corpus is text files or Documents (headlens.texts makes them of strings), not a mixture.")
    facts = describe_files(paths)
    return read_corpus(paths, unit=unit, limit=limit), facts


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


def _run(network: PreTrainedModel, encoded: Encoded, way: Way, report: Progress) -> Tally:
    done = 0

    def count(tokens: int) -> None:
        nonlocal done
        done += tokens
        report("scoring heads", done, encoded.tokens)

    analyzers = [make() for make in ANALYZERS.values()]
    return analyze(network, encoded.batches, analyzers, documents=encoded.documents, way=way, progress=count)


class _Clock:
    """Seconds of each part of a run."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._start = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = now - self._start
        self._start = now


def _circumstances(name: str, corpus: Corpus, seed: int) -> dict[str, Any]:
    """When, with what, and how it was asked for; the command line puts its own words in place of `command`."""
    return {
        "headlens": headlens.__version__,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": f"headlens.profile({name!r}{'' if corpus is None else ', ...'})",
        "seed": seed,
        "versions": _versions(),
    }


def _corpus_facts(files: list[dict[str, Any]], encoded: Encoded, unit: str, limit: int | None) -> dict[str, Any]:
    counts = "documents empty cut_documents windows inputs tokens scored_tokens unknown max_length".split()
    return {"files": files, "unit": unit, "limit": limit, **{name: getattr(encoded, name) for name in counts}}


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("torch", "transformers", "tokenizers", "numpy", "scipy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # a build of torch may come under another name
            found[package] = "unknown"
    return found


def _notes(encoded: Encoded, loaded: LoadedModel) -> list[str]:
    notes = []
    if encoded.cut_documents:
        notes.append(
            f"Longer than {encoded.max_length} tokens, so cut into windows: {encoded.cut_documents} of "
            f"{encoded.documents} documents, into {encoded.windows} windows."
        )
    if encoded.empty:
        notes.append(f"Without a token, so left out: {encoded.empty} of {encoded.documents} documents.")
    if encoded.scored_tokens < FEW_TOKENS:
        notes.append(
            f"Only {encoded.scored_tokens:,} tokens were scored: too few to say what a head does. Some thousand tell."
        )
    if encoded.documents == 1:
        notes.append("There is only one document, and intervals come from resampling documents: there are none.")
    if encoded.unknown > UNKNOWN_SHARE * encoded.scored_tokens:
        notes.append(
            f"{encoded.unknown / encoded.scored_tokens:.0%} of the tokens are unknown to the tokenizer; "
            f"the model may not be made for this language or script."
        )
    if loaded.provenance["is_encoder_decoder"]:
        notes.append("The model has an encoder and a decoder; the scores are those of the encoder's self-attention.")
    return notes
