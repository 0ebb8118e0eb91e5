"""What a text is about while it is made up: choices and their probability, entities, mentions, words that agree."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from headlens.corpora.grammar import lexicon
from headlens.corpora.grammar.lexicon import Agreement, Case, Gender, Name, Noun, Number, Verb
from headlens.corpora.grammar.trees import Node

Sort = Literal["animate", "thing", "place"]
Kind = Literal["verb number", "pronoun", "possessive", "reflexive"]

T = TypeVar("T")


class Dice:
    """Random choices, and the probability of all of them together."""

    def __init__(self, source: random.Random) -> None:
        self._random = source
        self.log_probability = 0.0

    def flip(self, probability: float) -> bool:
        is_so = self._random.random() < probability
        self.log_probability += math.log(probability if is_so else 1 - probability)
        return is_so

    def one_of(self, options: Sequence[T]) -> T:
        self.log_probability -= math.log(len(options))
        return options[self._random.randrange(len(options))]

    def pick(self, weights: Mapping[T, float]) -> T:
        """One of the keys, each as likely as its share of the weights."""
        total = sum(weights.values())
        options = list(weights)
        point, chosen = self._random.random() * total, options[-1]
        for option, weight in weights.items():
            point -= weight
            if point < 0:
                chosen = option
                break
        self.log_probability += math.log(weights[chosen] / total)
        return chosen


@dataclass(eq=False)
class Entity:
    id: str
    genders: tuple[Gender, ...]  # several: not told so far
    number: Number
    sort: Sort
    noun: Noun | Name | None = None  # None: several put together ("Anna and Peter")
    parts: tuple[Entity, ...] = ()
    last: Node | None = None  # the head of its last mention

    @property
    def is_animate(self) -> bool:
        return self.sort == "animate"

    @property
    def agreements(self) -> tuple[Agreement, ...]:
        if self.number == "plural":
            return (("neuter", "plural"),)
        return tuple((gender, self.number) for gender in self.genders)

    @property
    def agreement(self) -> Agreement:
        return self.agreements[0]

    @property
    def is_told(self) -> bool:
        """Its pronoun follows from what was said."""
        return len(self.agreements) == 1

    def overlaps(self, other: Entity) -> bool:
        return self is other or self in other.parts or other in self.parts


@dataclass(frozen=True)
class Phrase:
    """A noun phrase: its tree and what it refers to."""

    node: Node
    entity: Entity


@dataclass(frozen=True)
class Agrees:
    """A word that agrees with another, for `Forced`."""

    node: Node
    kind: Kind
    wrong: tuple[str, ...]
    controller: Node
    asks_for: Number | Agreement


class Story:
    """One text as it is made up."""

    def __init__(self, dice: Dice) -> None:
        self.dice = dice
        self.entities: list[Entity] = []
        self.used: set[Noun | Name] = set()
        self.focus: list[Entity] = []  # what a pronoun may refer to: subject, then objects of the sentence before
        self.mentions: list[tuple[Node, bool, Entity]] = []  # head, whether what is joined with it belongs to it
        self.agreeing: list[Agrees] = []
        self.refers: dict[Node, Entity] = {}  # nouns and pronouns, to entities

    def new_noun(self, nouns: Sequence[Noun]) -> Noun:
        """One that was not there before: a noun that comes again refers to the same as before."""
        noun = self.dice.one_of([noun for noun in nouns if noun not in self.used])
        self.used.add(noun)
        return noun

    def new(self, node: Node, noun: Noun | Name, genders: tuple[Gender, ...], number: Number, sort: Sort) -> Phrase:
        return self.mentioned(node, self.entity(noun, genders, number, sort))

    def entity(
        self,
        noun: Noun | Name | None,
        genders: tuple[Gender, ...],
        number: Number,
        sort: Sort,
        parts: tuple[Entity, ...] = (),
    ) -> Entity:
        entity = Entity(f"e{len(self.entities) + 1}", genders, number, sort, noun, parts)
        self.entities.append(entity)
        return entity

    def mentioned(self, node: Node, entity: Entity, *, with_conjuncts: bool = False) -> Phrase:
        self.mentions.append((node, with_conjuncts, entity))
        self.refers[node] = entity
        entity.last = node
        return Phrase(node, entity)

    def agree(
        self, node: Node, kind: Kind, wrong: tuple[str, ...], controller: Phrase, asks_for: Number | Agreement
    ) -> None:
        self.agreeing.append(Agrees(node, kind, wrong, controller.node, asks_for))

    def note_pronoun(self, node: Node, entity: Entity, case: Case, kind: Kind) -> None:
        right = lexicon.pronoun(entity.agreement, case)
        forms = [lexicon.pronoun(agreement, case) for agreement in lexicon.PRONOUNS]
        wrong = tuple(form for form in forms if form != right)
        assert entity.last is not None
        self.agreeing.append(Agrees(node, kind, wrong, entity.last, entity.agreement))


def by_agreement(entities: Sequence[Entity], sort: Sort | None) -> dict[Agreement, Entity]:
    """What each pronoun would refer to: the first that agrees. One whose gender was not told agrees with several."""
    found: dict[Agreement, Entity] = {}
    for entity in entities:
        if sort is None or entity.sort == sort:
            for agreement in entity.agreements:
                found.setdefault(agreement, entity)
    return found


def word(form: str, upos: str, lemma: str | None = None) -> Node:
    return Node(form, form if lemma is None else lemma, upos)


def verb_form(verb: Verb) -> Node:
    return word(verb.base, "VERB", verb.base)


def mark(form: str) -> Node:
    return word(form, "PUNCT")


def other_present(verb: Verb, number: Number) -> str:
    return verb.present("plural" if number == "singular" else "singular")
