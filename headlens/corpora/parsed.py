"""Plain text, parsed as it is read by a spaCy pipeline. No torch here."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from headlens.corpora.text import OnBad, at_least_one, read_each, read_text
from headlens.documents import ROOT, Document, Sentence
from headlens.errors import CorpusError

DEFAULT_PARSER = "en_core_web_sm"
_PROBE = 1000  # characters of the first text, which tell whether there is a parser
_INSTALL = "pip install 'headlens[parse]'"


def read_parsed(
    path: str | os.PathLike[str], *, unit: str = "line", parser: Any = DEFAULT_PARSER, on_bad: OnBad | None = None
) -> Iterator[Document]:
    """The documents of a plain text file (as `read_text` finds them), parsed by spaCy into annotated sentences.

    `parser` is the name of an installed pipeline, the path of one, or a loaded one (`spacy.language.Language`).
    Words are its tokens but for white space; upos, lemmas, heads and relations are its own, relations in lower case,
    and what it does not annotate is None. Its relations need not be those of Universal Dependencies: spaCy's English
    pipelines have dobj, pobj, nsubjpass and the like. Nobody has checked these parses: see `silver_note`.

    Raises CorpusError: at once where spaCy or the pipeline is missing or broken, and as `read_text` does; while
    reading, where the pipeline has no parser, and for a text that it cannot parse: with `on_bad` such a text is left
    out.
    """
    texts = read_text(path, unit=unit, on_bad=on_bad)
    return at_least_one(
        _documents(texts, _pipeline(parser), on_bad),
        f"{path}: no text of it can be parsed; name another file or another parser.",
    )


def silver_note(parser: Any = DEFAULT_PARSER) -> str:
    """One sentence for a report: which program of which version made the parses, and that nobody checked them."""
    pipeline = _pipeline(parser)
    version = importlib.metadata.version("spacy")
    return (
        f"Parsed by spaCy {version} with {_name(pipeline)} {pipeline.meta['version']}: a silver annotation, made by a "
        "program and checked by nobody, with the relations of that pipeline (spaCy's English ones are not those of "
        "Universal Dependencies)."
    )


def _pipeline(parser: Any) -> Any:
    return _loaded(os.fspath(parser)) if isinstance(parser, str | os.PathLike) else parser


@lru_cache(maxsize=1)  # the note and the reader want the same one, and loading takes a second
def _loaded(name: str) -> Any:
    try:
        spacy = importlib.import_module("spacy")
    except ImportError as error:
        raise CorpusError(f"Parsing plain text needs spaCy ({error}); install it with: {_INSTALL}.") from error
    try:
        return spacy.load(name)
    except Exception as error:  # a missing pipeline, or whatever the code in one raises
        if _looks_like_path(name):
            raise CorpusError(
                f"{name}: no spaCy pipeline can be loaded from there ({_reason(error)}); name the folder of one."
            ) from error
        raise CorpusError(
            f"The spaCy pipeline {name!r} cannot be loaded ({_reason(error)}); install it with: "
            f"python -m spacy download {name}."
        ) from error


def _looks_like_path(name: str) -> bool:
    return len(Path(name).parts) != 1 or Path(name).exists()


def _reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _name(pipeline: Any) -> str:
    return f"{pipeline.meta['lang']}_{pipeline.meta['name']}"


def _documents(texts: Iterator[Document], pipeline: Any, on_bad: OnBad | None) -> Iterator[Document]:
    for first in islice(texts, 1):
        _doc(pipeline, first.id, first.text[:_PROBE])  # a pipeline without a parser is not the fault of one text
        yield from read_each(chain([first], texts), partial(_parsed, pipeline), on_bad)


def _doc(pipeline: Any, id: str, text: str) -> Any:
    """What spaCy makes of the text; it has dependencies."""
    try:
        doc = pipeline(text)
    except ValueError as error:  # of a text that is longer than the pipeline allows
        raise CorpusError(f"{id}: spaCy cannot parse it ({_reason(error)}); use shorter texts.") from error
    if not doc.has_annotation("DEP"):
        parts = ", ".join(pipeline.pipe_names) or "nothing"
        raise CorpusError(
            f"{id}: the spaCy pipeline {_name(pipeline)} gives it no dependencies, it is made of {parts}; name one "
            "with a parser."
        )
    return doc


def _parsed(pipeline: Any, document: Document) -> Document:
    doc = _doc(pipeline, document.id, document.text)
    runs = [words for sentence in doc.sents if (words := [token for token in sentence if not token.is_space])]
    ends = [words[0].idx for words in runs[1:]] + [len(document.text)]
    sentences = [_sentence(document, words, next_start) for words, next_start in zip(runs, ends, strict=True)]
    return Document.of_sentences(sentences, document.id)


def _sentence(document: Document, words: Sequence[Any], next_start: int) -> Sentence:
    start, stop = words[0].idx, _end(words[-1])
    place = {word.i: index for index, word in enumerate(words)}
    return Sentence(
        words=tuple(word.text for word in words),
        text=document.text[start:stop],
        spans=tuple((word.idx - start, _end(word) - start) for word in words),
        upos=_if_any([word.pos_ for word in words]),
        lemmas=_if_any([word.lemma_ for word in words]),
        heads=tuple(_head(document, word, place) for word in words),
        relations=_if_any([word.dep_.lower() for word in words]),
        id=document.id,
        space_after=stop < next_start,
    )


def _end(word: Any) -> int:
    return int(word.idx) + len(word.text)


def _if_any(entries: Sequence[str]) -> tuple[str, ...] | None:
    return tuple(entries) if any(entries) else None


def _head(document: Document, word: Any, place: dict[int, int]) -> int:
    """Index of the head among the words of the sentence. In spaCy a root is its own head."""
    head = word.head
    while head.is_space and head.head.i != head.i:
        head = head.head
    if head.i == word.i or head.is_space:
        return ROOT
    if head.i not in place:
        raise CorpusError(
            f"{document.id}: the parser gives {word.text!r} a head outside of its sentence; name another parser."
        )
    return place[head.i]
