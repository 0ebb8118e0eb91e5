"""What tells how a profile came about: circumstances, corpus, and remarks that a reader must not miss."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import headlens
from headlens.annotated import Reading
from headlens.corpora import Corpus
from headlens.documents import Document
from headlens.encode import Encoded, EncodedWords
from headlens.models import LoadedModel

FEW_TOKENS = 1000  # below this many scored tokens a profile warns
UNKNOWN_SHARE = 0.02  # of the scored tokens: from here on a profile tells

_OF_TEXT = "documents empty cut_documents windows inputs tokens scored_tokens unknown max_length".split()
_OF_WORDS = (
    "inputs single_word too_long empty words words_without_token split_words tokens scored_tokens unknown max_length"
)


def circumstances(name: str, corpus: object, seed: int, *, caller: str = "headlens.profile") -> dict[str, Any]:
    """When, with what, and by which function it was asked for; the command line puts its own words for `command`."""
    return {
        "headlens": headlens.__version__,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": f"{caller}({name!r}{'' if corpus is None else ', ...'})",
        "seed": seed,
        "versions": _versions(),
    }


def corpus_facts(corpus: Corpus, *, limit: int | None) -> dict[str, Any]:
    """Files, and how documents were told apart."""
    return {
        "files": [dict(source) for source in corpus.sources],
        "unit": corpus.unit_of_documents,
        "limit": corpus.limit if limit is None else limit,
        "skipped": corpus.skipped,
    }


def source_facts(loaded: LoadedModel) -> dict[str, Any]:
    """Which model it is, for what is made from it; None for what is not known."""
    return {name: loaded.provenance.get(name) for name in ("name", "source", "revision", "weights_sha256")}


def text_facts(encoded: Encoded) -> dict[str, Any]:
    return {name: getattr(encoded, name) for name in _OF_TEXT}


def word_facts(documents: Sequence[Document], readings: Sequence[Reading]) -> dict[str, Any]:
    """Counts of the sentences, and of the chunks for coreference where there are such."""
    sentences, *chunks = readings
    facts = {"documents": len(documents), **_counts(sentences.encoded), "left_out": dict(sentences.counts)}
    facts |= {"syntax": dict(sentences.asked)} if sentences.asked.get("dependencies") else {}
    return facts | ({"coreference": _counts(chunks[0].encoded)} if chunks else {})


def notes_on_text(encoded: Encoded) -> list[str]:
    notes = []
    if encoded.cut_documents:
        notes.append(
            f"Longer than {encoded.max_length} tokens, so cut into windows: {encoded.cut_documents} of "
            f"{encoded.documents} documents, into {encoded.windows} windows."
        )
    if encoded.empty:
        notes.append(f"Without a token, so left out: {encoded.empty} of {encoded.documents} documents.")
    if encoded.documents == 1:
        notes.append("There is only one document, and intervals come from resampling documents: there are none.")
    return notes + _notes_on_tokens(encoded)


def notes_on_words(documents: Sequence[Document], readings: Sequence[Reading]) -> list[str]:
    notes = []
    sentences, *others = (reading.encoded for reading in readings)
    notes += _left_out("sentences", sentences)
    for chunks in others:
        notes += _left_out("stretches of text for coreference", chunks)
    if sentences.words_without_token:
        count = f"{sentences.words_without_token:,} of {sentences.words:,} words"
        notes.append(f"Without a token of their own, so left out: {count}.")
    notes += [f"Pronouns left out, because {reason}: {count:,}." for reason, count in readings[0].counts.items()]
    scored = {analyzer.name for reading in readings for analyzer in reading.analyzers}
    asked = readings[0].asked
    if "syntax" in scored and asked["dep_to_head"] < asked["dependencies"]:
        both = f"{asked['dep_to_head']:,} are asked from the dependent to its head and {asked['head_to_dep']:,} back"
        has_others = asked["dependencies"] > asked["dep_to_head"] + asked["head_to_dep"]
        end = (
            "; the answers of the others cannot be chosen" if has_others else ", because only earlier words can be seen"
        )
        notes.append(f"Of {asked['dependencies']:,} dependencies, {both}{end}.")
    if "syntax" not in scored:
        notes.append(
            f"None of the {asked['dependencies']:,} dependencies can be asked of this model, so there are no scores of "
            "syntax."
            if asked.get("dependencies")
            else "The corpus marks no dependencies (heads and relations), so there are no scores of syntax."
        )
    if not scored & {"coref", "choice"}:
        is_marked = any(document.mentions or document.choices for document in documents)
        notes.append(
            "No mention has an antecedent that this model can look at, so there are no scores of coreference."
            if is_marked
            else "The corpus marks no coreference, so there are no scores of it."
        )
    if len(documents) == 1:
        notes.append("There is only one document, and intervals come from resampling documents: there are none.")
    return notes + _notes_on_tokens(sentences)


def notes_on_corpus(corpus: Corpus) -> list[str]:
    notes = list(corpus.notes)
    if corpus.skipped:
        example = f", the first: {corpus.skipped_examples[0]}" if corpus.skipped_examples else ""
        notes.append(f"Could not be read, so skipped: {corpus.skipped:,} parts of the corpus{example}")
    if corpus.unit_of_documents == "sentence":
        notes.append("The file marks no documents, so every sentence counts as one when intervals are estimated.")
    return notes


def notes_on_model(loaded: LoadedModel) -> list[str]:
    if not loaded.provenance["is_encoder_decoder"]:
        return []
    return ["The model has an encoder and a decoder; the scores are those of the encoder's self-attention."]


def _counts(encoded: EncodedWords) -> dict[str, Any]:
    return {name: getattr(encoded, name) for name in _OF_WORDS.split()}


def _left_out(what: str, encoded: EncodedWords) -> list[str]:
    every = encoded.inputs + encoded.single_word + encoded.too_long + encoded.empty
    notes = []
    if encoded.single_word:
        notes.append(f"Of a single word, so left out: {encoded.single_word:,} of {every:,} {what}.")
    if encoded.too_long:
        notes.append(
            f"Longer than the {encoded.max_length} tokens that an input may have, so left out: "
            f"{encoded.too_long:,} of {every:,} {what}."
        )
    return notes


def _notes_on_tokens(encoded: Encoded | EncodedWords) -> list[str]:
    notes = []
    if encoded.scored_tokens < FEW_TOKENS:
        notes.append(
            f"Only {encoded.scored_tokens:,} tokens were scored: too few to say what a head does. Some thousand tell."
        )
    if encoded.unknown > UNKNOWN_SHARE * encoded.scored_tokens:
        notes.append(
            f"{encoded.unknown / encoded.scored_tokens:.0%} of the tokens are unknown to the tokenizer; "
            f"the model may not be made for this language or script."
        )
    return notes


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("torch", "transformers", "tokenizers", "numpy", "scipy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # a build of torch may come under another name
            found[package] = "unknown"
    return found
