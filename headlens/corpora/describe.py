"""What is in a corpus, in numbers. No torch here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headlens.corpora import Corpus
from headlens.documents import Document, Sentence


@dataclass(frozen=True)
class Relation:
    """How often a relation occurs, with its subtypes and by them: nsubj, and "pass" of nsubj:pass."""

    count: int
    subtypes: Mapping[str, int]


@dataclass(frozen=True)
class Coreference:
    """Mentions of entities; a chain is an entity with several, a singleton one with a single mention."""

    documents: int  # in which mentions are annotated
    mentions: int
    entities: int
    chains: int
    singletons: int


@dataclass(frozen=True)
class Choices:
    """Pronouns and their candidates."""

    count: int
    without_right_one: int
    groups: Mapping[str, int]


@dataclass(frozen=True)
class Description:
    """What a corpus holds; None where it does not annotate such things. Counts by name come the largest first."""

    sources: Sequence[Mapping[str, Any]]
    unit_of_documents: str
    documents: int
    characters: int
    sentences: int
    words: int
    shared_spans: int  # stretches of text that several words share, as "im" is "in" + "dem"
    longest_document: int  # in words
    longest_sentence: int  # in words
    single_word_sentences: int
    relations: Mapping[str, Relation] | None
    upos: Mapping[str, int] | None
    coreference: Coreference | None
    choices: Choices | None
    skipped: int
    skipped_examples: Sequence[str]
    notes: Sequence[str]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def describe(corpus: Corpus) -> Description:
    sentences = [sentence for document in corpus for sentence in document.sentences]
    lengths = [len(sentence.words) for sentence in sentences]
    return Description(
        sources=list(corpus.sources),
        unit_of_documents=corpus.unit_of_documents,
        documents=len(corpus),
        characters=sum(len(document.text) for document in corpus),
        sentences=len(sentences),
        words=sum(lengths),
        shared_spans=sum(_shared_spans(sentence) for sentence in sentences),
        longest_document=max((document.n_words for document in corpus), default=0),
        longest_sentence=max(lengths, default=0),
        single_word_sentences=lengths.count(1),
        relations=_relations(sentences),
        upos=_upos(sentences),
        coreference=_coreference(corpus),
        choices=_choices(corpus),
        skipped=corpus.skipped,
        skipped_examples=list(corpus.skipped_examples),
        notes=list(corpus.notes),
    )


def _shared_spans(sentence: Sentence) -> int:
    return sum(words > 1 for (start, stop), words in Counter(sentence.spans).items() if start < stop)


def _relations(sentences: Iterable[Sentence]) -> dict[str, Relation] | None:
    counts = Counter(relation for sentence in sentences for relation in sentence.relations or ())
    subtypes: dict[str, Counter[str]] = {}
    for relation, count in counts.items():
        name, colon, subtype = relation.partition(":")
        subtypes.setdefault(name, Counter())[subtype if colon else ""] += count
    found = {
        name: Relation(of.total(), _sorted(Counter({subtype: count for subtype, count in of.items() if subtype})))
        for name, of in subtypes.items()
    }
    return dict(sorted(found.items(), key=lambda item: (-item[1].count, item[0]))) or None


def _upos(sentences: Iterable[Sentence]) -> dict[str, int] | None:
    return _sorted(Counter(tag for sentence in sentences for tag in sentence.upos or ())) or None


def _coreference(documents: Iterable[Document]) -> Coreference | None:
    marked = [document for document in documents if document.mentions is not None]
    if not marked:
        return None
    sizes = Counter(
        (number, mention.entity) for number, document in enumerate(marked) for mention in document.mentions or ()
    )
    singletons = sum(size == 1 for size in sizes.values())
    return Coreference(len(marked), sizes.total(), len(sizes), len(sizes) - singletons, singletons)


def _choices(documents: Iterable[Document]) -> Choices | None:
    choices = [choice for document in documents for choice in document.choices]
    if not choices:
        return None
    without = sum(not any(candidate.is_right for candidate in choice.candidates) for choice in choices)
    return Choices(len(choices), without, _sorted(Counter(group for choice in choices for group in choice.groups)))


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
