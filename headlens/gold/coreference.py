"""Decisions of coreference: which earlier mention does a mention refer back to? No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headlens.documents import Document, Mention, Sentence
from headlens.gold.scored_input import ScoredInput
from headlens.gold.shortlists import Question, Shortlists

CHUNK_WORDS = 120  # words of one input, about the 128 tokens of Clark et al. 2019
TYPES = {"PRON": "pronoun", "PROPN": "proper"}  # by part of speech; every other is nominal
KINDS = ("all", "pronoun", "proper", "nominal")
UNMATCHED = "_unmatched"
METRICS = (
    *(f"coref[{kind}]" for kind in KINDS),
    *(f"coref[{kind}{UNMATCHED}]" for kind in KINDS),
    "coref[pronoun_noun]",
)
NEAREST, SAME_LEMMA = "nearest mention", "same lemma, else nearest"

# Where a noun phrase ends and what modifies it begins, for corpora that mark no heads
_POSTMODIFIERS = frozenset(
    ", ( ; : - -- of in on at to for from with by about into over under between among who whom whose which that "
    "where when".split()
)


@dataclass(frozen=True)
class Chunk:
    """Consecutive sentences of one document that are read as one input."""

    document: int
    sentences: tuple[Sentence, ...]
    mentions: tuple[Mention, ...]  # those that lie inside; words are counted from the chunk's first


def chunks(documents: Sequence[Document], *, most: int = CHUNK_WORDS) -> list[Chunk]:
    """Whole sentences of every document with mentions, filled up to `most` words; a longer one stands alone."""
    return [
        chunk
        for number, document in enumerate(documents)
        if document.mentions is not None
        for chunk in _chunks_of(document, number, most)
    ]


def antecedents(listed: Sequence[Chunk], scored: Mapping[int, ScoredInput]) -> Shortlists:
    """A decision for every mention that has an antecedent before it in its chunk.

    The head word of the mention chooses among the distinct head words of earlier mentions, singletons included; a
    candidate is right if an earlier mention with that head word is of the same entity (after Clark et al. 2019,
    section 4.3, whose candidates stand on both sides).
    """
    questions = [
        question for number in sorted(scored) for question in _questions(listed[number], number, scored[number])
    ]
    return Shortlists.of(questions, METRICS)


def head_word(mention: Mention, words: _Words) -> int:
    """The first word of the mention whose head lies outside of it.

    Where heads are not annotated, the last word before the first comma, preposition or relative pronoun in it.
    """
    inside = range(mention.start, mention.stop)
    if words.heads is not None:
        heads = words.heads
        return next((word for word in inside if heads[word] not in inside), mention.start)
    cut = next((word for word in inside[1:] if words.forms[word].lower() in _POSTMODIFIERS), mention.stop)
    return cut - 1


@dataclass(frozen=True)
class _Words:
    """The words of a chunk in one row."""

    forms: tuple[str, ...]
    lemmas: tuple[str, ...]  # lower-cased; the forms where lemmas are not annotated
    upos: tuple[str, ...] | None
    heads: tuple[int, ...] | None

    @classmethod
    def of(cls, sentences: Sequence[Sentence]) -> _Words:
        starts = np.cumsum([0, *(len(sentence.words) for sentence in sentences)]).tolist()
        return cls(
            forms=tuple(word for sentence in sentences for word in sentence.words),
            lemmas=tuple(lemma.lower() for sentence in sentences for lemma in sentence.lemmas or sentence.words),
            upos=tuple(tag for sentence in sentences for tag in sentence.upos or ())
            if all(sentence.upos is not None for sentence in sentences)
            else None,
            heads=tuple(
                head + start if head >= 0 else -1
                for sentence, start in zip(sentences, starts, strict=False)
                for head in sentence.heads or ()
            )
            if all(sentence.heads is not None for sentence in sentences)
            else None,
        )


def _chunks_of(document: Document, number: int, most: int) -> Iterator[Chunk]:
    group, first, size = list[Sentence](), 0, 0
    for sentence in document.sentences:
        if group and size + len(sentence.words) > most:
            yield _chunk(document, number, group, first, size)
            group, first, size = [], first + size, 0
        group.append(sentence)
        size += len(sentence.words)
    if group:
        yield _chunk(document, number, group, first, size)


def _chunk(document: Document, number: int, sentences: list[Sentence], first: int, size: int) -> Chunk:
    inside = tuple(
        Mention(mention.start - first, mention.stop - first, mention.entity)
        for mention in document.mentions or ()
        if first <= mention.start and mention.stop <= first + size
    )
    return Chunk(number, tuple(sentences), inside)


def _questions(chunk: Chunk, number: int, scored: ScoredInput) -> Iterator[Question]:
    words = _Words.of(chunk.sentences)
    entities_at: dict[int, set[str]] = {}  # by head word
    heads = [head_word(mention, words) for mention in chunk.mentions]
    for head, mention in zip(heads, chunk.mentions, strict=True):
        entities_at.setdefault(head, set()).add(mention.entity)
    possible = scored.candidates
    for head, mention in zip(heads, chunk.mentions, strict=True):
        candidates = tuple(word for word in sorted(entities_at) if word < head and possible[head, word])
        right = tuple(mention.entity in entities_at[word] for word in candidates)
        if any(right):
            yield _question(number, head, candidates, right, words)


def _question(number: int, head: int, candidates: tuple[int, ...], right: tuple[bool, ...], words: _Words) -> Question:
    same_lemma = [
        is_right
        for word, is_right in zip(candidates, right, strict=True)
        if words.lemmas[word] == words.lemmas[head]
    ]  # fmt: skip
    return Question(
        input=number,
        word=head,
        candidates=candidates,
        right=right,
        chance=sum(right) / len(right),
        metrics=tuple(_metrics_of(head, candidates, right, words, is_matched=bool(same_lemma))),
        baselines={NEAREST: right[-1], SAME_LEMMA: same_lemma[-1] if same_lemma else right[-1]},
    )


def _metrics_of(
    head: int, candidates: tuple[int, ...], right: tuple[bool, ...], words: _Words, *, is_matched: bool
) -> Iterator[str]:
    kinds = ["all"]
    if words.upos is not None:
        kinds.append(TYPES.get(words.upos[head], "nominal"))
    for kind in kinds:
        yield f"coref[{kind}]"
        if not is_matched:
            yield f"coref[{kind}{UNMATCHED}]"
    if words.upos is not None and words.upos[head] == "PRON":
        found = [words.upos[word] for word, is_right in zip(candidates, right, strict=True) if is_right]
        if "PRON" not in found:
            yield "coref[pronoun_noun]"
