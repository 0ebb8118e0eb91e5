"""English with gold by construction: short texts of a probabilistic grammar, every one with its own derivation.

A text is one to four sentences. What annotators write elsewhere is known here because it was chosen: parts of speech,
Universal Dependencies, who is who, and the probability of every choice. The grammar has rules of reference that leave
no doubt: an object or a place belongs to the subject of its clause ("Anna sees her brother"); a pronoun refers to the
subject or the object of the sentence before, to the subject if both agree with it; a noun that comes again, or a name,
is the same as before. Nearer nouns that agree just as well, or do not, stand in between.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from headlens.corpora.grammar import lexicon
from headlens.corpora.grammar.clauses import Clauses
from headlens.corpora.grammar.story import Agrees, Dice, Entity, Kind
from headlens.corpora.grammar.trees import Node, as_sentence
from headlens.documents import Document, Mention
from headlens.errors import CorpusError

KINDS: tuple[Kind, ...] = get_args(Kind)
PUNCTUATION = lexicon.PUNCTUATION
WORD_FORMS = lexicon.WORD_FORMS  # lower-cased, without punctuation: all that a text may hold

_SENTENCES = {1: 0.15, 2: 0.3, 3: 0.3, 4: 0.25}  # of a text


@dataclass(frozen=True)
class Forced:
    """A word of which the grammar allows one form only, and the forms that it excludes there.

    `has_attractor`: between the word and what it agrees with stands a noun or pronoun that would ask for another form.
    """

    word: int  # counted through the document
    kind: Kind
    right: str
    wrong: tuple[str, ...]
    has_attractor: bool


@dataclass(frozen=True)
class GrammarText:
    document: Document
    log_probability: float  # of the derivation, natural logarithm; the text has at least this, if it has several
    forced: tuple[Forced, ...]


def grammar_texts(seed: int = 0) -> Iterator[GrammarText]:
    """Texts without end, always the same for a seed."""
    if seed < 0:
        raise CorpusError(f"The seed of a grammar must not be negative, got {seed}.")
    source = random.Random(seed)
    number = 0
    while True:
        number += 1
        yield _told(Clauses(Dice(source)), f"grammar:{seed}, text {number}")


def texts_of(sentences: int, *, seed: int = 0) -> list[GrammarText]:
    """Texts until there are so many sentences; the last one may bring up to three more."""
    if sentences < 1:
        raise CorpusError(f"A corpus of the grammar needs at least one sentence, got {sentences}.")
    found, count = [], 0
    for text in grammar_texts(seed):
        found.append(text)
        count += len(text.document.sentences)
        if count >= sentences:
            break
    return found


def read_grammar(sentences: int, *, seed: int = 0) -> list[Document]:
    """The documents of `texts_of`."""
    return [text.document for text in texts_of(sentences, seed=seed)]


def perplexity_bound(texts: Sequence[GrammarText]) -> float:
    """Perplexity per token of the grammar's own derivations; tokens are the words and one a text for its end.

    An upper bound on that of the best possible model: a text may have more derivations than the one that is counted.
    """
    tokens = sum(text.document.n_words + 1 for text in texts)
    return math.exp(-sum(text.log_probability for text in texts) / tokens)


def _told(story: Clauses, id: str) -> GrammarText:
    sentences, nodes = [], list[Node]()
    for number in range(story.dice.pick(_SENTENCES)):
        sentence, words = as_sentence(story.sentence(), f"{id}, sentence {number + 1}")
        sentences.append(sentence)
        nodes += words
    place = {node: number for number, node in enumerate(nodes)}
    mentions = [_mention(place, *mention) for mention in story.mentions]
    forced = [_forced(place, nodes, story.refers, agrees) for agrees in story.agreeing]
    return GrammarText(
        Document.of_sentences(sentences, id, mentions=sorted(mentions)),
        story.dice.log_probability,
        tuple(sorted(forced, key=lambda one: one.word)),
    )


def _mention(place: Mapping[Node, int], node: Node, with_conjuncts: bool, entity: Entity) -> Mention:
    places = [place[word] for word in node.phrase(with_conjuncts=with_conjuncts)]
    return Mention(places[0], places[-1] + 1, entity.id)


def _forced(place: Mapping[Node, int], nodes: Sequence[Node], refers: Mapping[Node, Entity], agrees: Agrees) -> Forced:
    first, last = sorted((place[agrees.controller], place[agrees.node]))
    others = [refers[node] for node in nodes[first + 1 : last] if node in refers]
    between = [entity for entity in others if not entity.overlaps(refers[agrees.controller])]
    if agrees.kind == "verb number":
        attracts = any(entity.number != agrees.asks_for for entity in between)
    else:
        attracts = any(entity.agreement != agrees.asks_for for entity in between)
    return Forced(place[agrees.node], agrees.kind, agrees.node.form, agrees.wrong, attracts)
