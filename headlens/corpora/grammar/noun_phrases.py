"""Noun phrases: names, nouns with what stands before and after them, and pronouns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from headlens.corpora.grammar import lexicon
from headlens.corpora.grammar.lexicon import Agreement, Case, Gender, Name, Noun, Number, Verb
from headlens.corpora.grammar.story import Entity, Kind, Phrase, Sort, Story, by_agreement, mark, word
from headlens.corpora.grammar.trees import Node

_NOUNS: dict[Sort, tuple[Noun, ...]] = {
    "animate": (*lexicon.WOMEN, *lexicon.MEN, *lexicon.PEOPLE, *lexicon.ANIMALS),
    "thing": lexicon.THINGS,
    "place": lexicon.PLACES,
}
_OF_NOUNS: dict[Sort, float] = {"animate": 0.4, "thing": 0.3, "place": 0.3}


class NounPhrases(Story):
    """How something is referred to."""

    @abstractmethod
    def relative_clause(self, subject: Phrase, depth: int) -> Node:
        """The verb of a clause about a noun, without its subject."""

    @abstractmethod
    def finite(self, verb: Verb, subject: Phrase) -> Node:
        """A verb that agrees with its subject, with its auxiliaries."""

    def subject(self, depth: int, sort: Sort) -> Phrase:
        if (antecedents := by_agreement(self.focus, sort)) and self.dice.flip(0.5):
            return self.pronoun(antecedents, self.focus, "nominative")
        return self.full(sort, depth, subject=None)

    def object(self, subject: Entity, depth: int, sort: Sort, *, may_be_pronoun: bool = True) -> Phrase:
        others = [entity for entity in self.focus if not entity.overlaps(subject)]  # else it were a reflexive
        if may_be_pronoun and (antecedents := by_agreement(others, sort)) and self.dice.flip(0.35):
            return self.pronoun(antecedents, others, "accusative")
        return self.full(sort, depth, subject=subject)

    def pronoun(self, antecedents: Mapping[Agreement, Entity], candidates: Sequence[Entity], case: Case) -> Phrase:
        agreement = self.dice.one_of(tuple(antecedents))
        entity = antecedents[agreement]
        node = word(lexicon.pronoun(agreement, case), "PRON")
        if len(by_agreement(candidates, None)) == 1:
            self.note_pronoun(node, entity, case, "possessive" if case == "possessive" else "pronoun")
        entity.genders = (agreement[0],) if entity.number == "singular" else entity.genders
        return self.mentioned(node, entity)

    def bound(self, entity: Entity, case: Case, kind: Kind) -> Node:
        """A pronoun that refers to the subject of its own clause."""
        node = word("", "PRON")
        if entity.is_told:
            node.form = lexicon.pronoun(entity.agreement, case)
            self.note_pronoun(node, entity, case, kind)
        else:
            entity.genders = (self.dice.one_of(entity.genders),)
            node.form = lexicon.pronoun(entity.agreement, case)
        node.lemma = node.form
        self.mentioned(node, entity)
        return node

    def full(self, sort: Sort, depth: int, subject: Entity | None, inside: Entity | None = None) -> Phrase:
        """A noun phrase with a noun or name. It refers neither to the `subject` of its clause nor to what it is said
        of, where it stands `inside` another noun phrase."""
        excluded = [entity for entity in (subject, inside) if entity is not None]
        known = [
            entity
            for entity in self.entities
            if entity.sort == sort and entity.noun is not None and not any(map(entity.overlaps, excluded))
        ]
        kinds = {"noun": 0.6, "two": 0.06 if depth == 0 and sort != "place" else 0.0, "again": 0.12 if known else 0.0}
        kind = self.dice.pick({**kinds, "name": 0.36 if sort == "animate" else 0.0})
        if kind == "again":
            return self._again(self.dice.one_of(known))
        if kind == "name":
            return self._named(depth)
        if kind == "two":
            return self._two(sort, depth)
        return self._described(sort, depth, subject)

    def _again(self, entity: Entity) -> Phrase:
        if isinstance(entity.noun, Name):
            return self.mentioned(word(entity.noun.form, "PROPN"), entity)
        assert entity.noun is not None
        node = word(entity.noun.form(entity.number), "NOUN", entity.noun.singular)
        return self.mentioned(node.put_first("det", word("the", "DET")), entity)

    def _named(self, depth: int) -> Phrase:
        name = self.dice.one_of([name for name in lexicon.NAMES if name not in self.used])
        self.used.add(name)
        node = word(name.form, "PROPN")
        phrase = self.new(node, name, (name.gender,), "singular", "animate")
        if depth == 0 and self.dice.flip(0.1):
            noun = self.new_noun(self.said_of(phrase.entity))
            other = word(noun.form("singular"), "NOUN", noun.singular)
            self._adjective(other, "animate")
            other.put_first("det", word("the", "DET")).put_first("punct", mark(","))
            node.add_after("appos", other.add_after("punct", mark(",")))
        return phrase

    def _two(self, sort: Sort, depth: int) -> Phrase:
        """ "Anna and the old farmer": two mentions, and one of both together."""
        first = self._named(1) if sort == "animate" and self.dice.flip(0.6) else self._described(sort, 2, None)
        second = self._named(1) if sort == "animate" and self.dice.flip(0.6) else self._described(sort, 2, None)
        first.node.add_after("conj", second.node.put_first("cc", word("and", "CCONJ")))
        both = self.entity(None, ("neuter",), "plural", sort, (first.entity, second.entity))
        return self.mentioned(first.node, both, with_conjuncts=True)

    def _described(self, sort: Sort, depth: int, subject: Entity | None) -> Phrase:
        noun = self.new_noun(_NOUNS[sort])
        number: Number = "plural" if self.dice.flip(0.42) else "singular"
        node = word(noun.form(number), "NOUN", noun.singular)
        if sort != "animate" and self.dice.flip(0.08):
            node.add_before("compound", word(self.dice.one_of(lexicon.COMPOUNDS), "NOUN"))
        self._adjective(node, sort)
        self._determiner(node, number, depth, subject)
        phrase = self.new(node, noun, noun.genders if number == "singular" else ("neuter",), number, sort)
        self._modifiers(phrase, depth)
        return phrase

    def _adjective(self, node: Node, sort: Sort) -> None:
        if self.dice.flip(0.42):
            words = lexicon.ADJECTIVES if sort == "animate" else lexicon.OF_THINGS
            node.put_first("amod", word(self.dice.one_of(words), "ADJ"))

    def _determiner(self, node: Node, number: Number, depth: int, subject: Entity | None) -> None:
        owners = {} if subject is not None or depth else by_agreement(self.focus, "animate")
        kinds = {"article": 0.68, "genitive": 0.08 if depth < 2 else 0.0}
        kinds |= {"possessive": 0.2 if owners or (subject and subject.noun) else 0.0}
        kinds |= {"none": 0.15 if number == "plural" else 0.0, "numeral": 0.1 if number == "plural" else 0.0}
        kind = self.dice.pick(kinds)
        if kind == "article" and number == "singular":
            self.article(node)
        elif kind == "article":
            node.put_first("det", word(self.dice.one_of(lexicon.PLURAL_DETERMINERS), "DET"))
        elif kind == "numeral":
            node.put_first("nummod", word(self.dice.one_of(lexicon.NUMERALS), "NUM"))
        elif kind == "possessive" and subject is not None:
            node.put_first("nmod:poss", self.bound(subject, "possessive", "possessive"))
        elif kind == "possessive":
            node.put_first("nmod:poss", self.pronoun(owners, self.focus, "possessive").node)
        elif kind == "genitive":
            owner = self._named(1) if self.dice.flip(0.7) else self._described("animate", 2, None)
            node.put_first("nmod:poss", owner.node.add_after("case", word("'s", "PART")))

    def article(self, node: Node) -> None:
        article = self.dice.one_of(lexicon.SINGULAR_DETERMINERS)
        first = next(node.words())
        form = "an" if article == "a" and first.form[0] in "aeiou" else article
        node.put_first("det", word(form, "DET", article))

    def _modifiers(self, phrase: Phrase, depth: int) -> None:
        """What follows a noun."""
        if depth > 1:
            return
        of_clause = 0.14 if depth == 0 else 0.0
        kind = self.dice.pick(
            {
                "none": 0.62,
                "noun": 0.24,
                "subject relative": of_clause if phrase.entity.is_animate else 0.0,
                "object relative": of_clause,
                "adjective": 0.03 if phrase.entity.is_animate else 0.0,
            }
        )
        node = phrase.node
        if kind == "noun":
            sort = self.dice.pick(_OF_NOUNS)
            other = self.full(sort, depth + 1, None, phrase.entity)
            preposition = word(self.dice.one_of(lexicon.OF_NOUNS), "ADP")
            node.add_after("nmod", other.node.put_first("case", preposition))
        elif kind == "subject relative":
            verb = self.relative_clause(phrase, depth + 1)
            node.add_after("acl:relcl", verb.put_first("nsubj", word(self.relativizer(phrase), "PRON")))
        elif kind == "object relative":
            self._object_relative(phrase, depth)
        elif kind == "adjective":
            node.add_after("amod", self.with_complement(phrase.entity, depth))

    def _object_relative(self, phrase: Phrase, depth: int) -> None:
        """ "the dog that Anna sees" """
        relativizer = self.relativizer(phrase)
        subject = self.full("animate", depth + 1, None, phrase.entity)
        verbs = lexicon.TO_ANIMATE if phrase.entity.is_animate else lexicon.TO_THINGS
        root = self.finite(self.dice.one_of(verbs), subject)
        root.put_first("nsubj", subject.node).put_first("obj", word(relativizer, "PRON"))
        phrase.node.add_after("acl:relcl", root)

    def relativizer(self, phrase: Phrase) -> str:
        is_person = phrase.entity.is_animate and phrase.entity.noun not in lexicon.ANIMALS
        return "who" if is_person and self.dice.flip(0.5) else "that"

    def said_of(self, entity: Entity) -> Sequence[Noun]:
        """Nouns that may be said of someone or something."""
        if not entity.is_animate:
            return lexicon.THINGS
        if entity.noun in lexicon.ANIMALS:
            return lexicon.ANIMALS
        by_gender: dict[tuple[Gender, ...], tuple[Noun, ...]] = {
            ("feminine",): lexicon.WOMEN,
            ("masculine",): lexicon.MEN,
        }
        return (*(by_gender.get(entity.genders, ()) if entity.number == "singular" else ()), *lexicon.PEOPLE)

    def with_complement(self, subject: Entity, depth: int) -> Node:
        """ "afraid of the dogs" """
        adjective = self.dice.one_of(tuple(lexicon.WITH_COMPLEMENT))
        found = self.object(subject, depth + 1, "animate", may_be_pronoun=False)
        preposition = lexicon.WITH_COMPLEMENT[adjective]
        return word(adjective, "ADJ").add_after("obl", found.node.put_first("case", word(preposition, "ADP")))
