"""Clauses and sentences: who does what, and in which order it is said."""

from __future__ import annotations

from dataclasses import dataclass, field

from headlens.corpora.grammar import lexicon
from headlens.corpora.grammar.lexicon import Verb
from headlens.corpora.grammar.noun_phrases import NounPhrases
from headlens.corpora.grammar.story import Entity, Phrase, mark, other_present, verb_form, word
from headlens.corpora.grammar.trees import Node

_RELATIVE = {"intransitive": 0.4, "transitive": 0.4, "copula": 0.2}


@dataclass
class Clause:
    """What a clause says, for the sentences to come."""

    root: Node
    subject: Entity
    objects: list[Entity] = field(default_factory=list)


class Clauses(NounPhrases):
    """What is said."""

    def sentence(self) -> Node:
        kind = self.dice.pick({"plain": 0.76, "coordinated": 0.09, "clause first": 0.07, "clause last": 0.08})
        before = self._subordinate() if kind == "clause first" else None
        clause = self.clause(depth=0)
        root = clause.root
        if before is not None:
            root.put_first("punct", mark(",")).put_first("advcl", before)
        elif kind == "clause last":
            root.add_after("advcl", self._subordinate(clause))
        elif kind == "coordinated":
            self._look_at(clause)
            clause = self.clause(depth=1)
            clause.root.put_first("cc", word("and", "CCONJ")).put_first("punct", mark(","))
            root.add_after("conj", clause.root)
        self._look_at(clause)
        return root.add_after("punct", mark(self.dice.pick({".": 0.9, "!": 0.1})))

    def _look_at(self, clause: Clause) -> None:
        """Pronouns that follow refer to what this clause is about."""
        self.focus = [clause.subject, *clause.objects]

    def _subordinate(self, main: Clause | None = None) -> Node:
        if main is not None:
            self._look_at(main)
        subordinator = self.dice.one_of(lexicon.SUBORDINATORS)
        clause = self.clause(depth=1)
        self._look_at(clause)
        return clause.root.put_first("mark", word(subordinator, "SCONJ"))

    def clause(self, depth: int) -> Clause:
        kinds = {"intransitive": 0.2, "transitive": 0.34, "giving": 0.08, "copula": 0.14, "nominal": 0.05}
        kinds |= {"passive": 0.09} | ({"saying": 0.06, "wanting": 0.05} if depth == 0 else {})
        kind = self.dice.pick(kinds)
        wants_thing = kind in ("copula", "passive") and self.dice.flip(0.4)
        subject = self.subject(depth, "thing" if wants_thing else "animate")
        clause = self.predicate(kind, subject, depth)
        clause.root.put_first("nsubj:pass" if kind == "passive" else "nsubj", subject.node)
        return clause

    def predicate(self, kind: str, subject: Phrase, depth: int) -> Clause:
        """The root of a clause with all that depends on it but the subject."""
        build = {
            "intransitive": self._intransitive,
            "transitive": self._transitive,
            "giving": self._giving,
            "copula": self._copula,
            "nominal": self._nominal,
            "passive": self._passive,
            "saying": self._saying,
            "wanting": self._wanting,
        }[kind]
        return build(subject, depth)

    def _intransitive(self, subject: Phrase, depth: int) -> Clause:
        root = self.finite(self.dice.one_of(lexicon.INTRANSITIVE), subject)
        self._circumstances(root, subject.entity, depth, 0.5)
        self._second_verb(root, subject, depth)
        return Clause(root, subject.entity)

    def _transitive(self, subject: Phrase, depth: int) -> Clause:
        if self.dice.flip(0.12) and subject.entity.is_animate:
            root = self.finite(self.dice.one_of(lexicon.REFLEXIVE), subject)
            root.add_after("obj", self.bound(subject.entity, "reflexive", "reflexive"))
            self._circumstances(root, subject.entity, depth, 0.3)
            return Clause(root, subject.entity)
        is_animate = self.dice.flip(0.45)
        root = self.finite(self.dice.one_of(lexicon.TO_ANIMATE if is_animate else lexicon.TO_THINGS), subject)
        found = self.object(subject.entity, depth, "animate" if is_animate else "thing")
        root.add_after("obj", found.node)
        self._circumstances(root, subject.entity, depth, 0.3)
        self._second_verb(root, subject, depth)
        return Clause(root, subject.entity, [found.entity])

    def _giving(self, subject: Phrase, depth: int) -> Clause:
        root = self.finite(self.dice.one_of(lexicon.GIVING), subject)
        if self.dice.flip(0.55):
            receiver = self.object(subject.entity, depth, "animate")
            thing = self.object(subject.entity, depth, "thing", may_be_pronoun=False)
            root.add_after("iobj", receiver.node).add_after("obj", thing.node)
        else:
            thing = self.object(subject.entity, depth, "thing")
            receiver = self.object(subject.entity, depth, "animate")
            root.add_after("obj", thing.node)
            root.add_after("obl", receiver.node.put_first("case", word("to", "ADP")))
        return Clause(root, subject.entity, [receiver.entity, thing.entity])

    def _copula(self, subject: Phrase, depth: int) -> Clause:
        if subject.entity.is_animate:
            has_complement = self.dice.flip(0.25)
            root = (
                self.with_complement(subject.entity, depth)
                if has_complement
                else word(self.dice.one_of(lexicon.ADJECTIVES), "ADJ")
            )
        else:
            root = word(self.dice.one_of(lexicon.OF_THINGS), "ADJ")
        if self.dice.flip(0.2):
            root.add_before("advmod", word(self.dice.one_of(lexicon.INTENSIFIERS), "ADV"))
        return Clause(self._with_copula(root, subject), subject.entity)

    def _nominal(self, subject: Phrase, depth: int) -> Clause:
        """ "Anna is a doctor": the noun is said of the subject, and refers to nothing of its own."""
        noun = self.new_noun(self.said_of(subject.entity))
        root = word(noun.form(subject.entity.number), "NOUN", noun.singular)
        if self.dice.flip(0.35):
            root.add_before("amod", word(self.dice.one_of(lexicon.ADJECTIVES), "ADJ"))
        if subject.entity.number == "singular":
            self.article(root)
        return Clause(self._with_copula(root, subject), subject.entity)

    def _passive(self, subject: Phrase, depth: int) -> Clause:
        verbs = lexicon.TO_ANIMATE if subject.entity.is_animate else lexicon.TO_THINGS
        verb = self.dice.one_of(verbs)
        root = word(verb.participle, "VERB", verb.base)
        self._auxiliary_be(root, subject, "aux:pass")
        self.adverb(root)
        if not self.dice.flip(0.6):
            self._circumstances(root, subject.entity, depth, 0.4)
            return Clause(root, subject.entity)
        agent = self.object(subject.entity, depth, "animate")
        root.add_after("obl:agent", agent.node.put_first("case", word("by", "ADP")))
        return Clause(root, subject.entity, [agent.entity])

    def _saying(self, subject: Phrase, depth: int) -> Clause:
        root = self.finite(self.dice.one_of(lexicon.SAYING), subject)
        self.focus = [subject.entity]
        inner = self.clause(depth + 1)
        if self.dice.flip(0.7):
            inner.root.put_first("mark", word("that", "SCONJ"))
        root.add_after("ccomp", inner.root)
        return Clause(root, subject.entity, [entity for entity in [inner.subject] if entity is not subject.entity])

    def _wanting(self, subject: Phrase, depth: int) -> Clause:
        root = self.finite(self.dice.one_of(lexicon.WANTING), subject)
        if self.dice.flip(0.4):
            inner, objects = verb_form(self.dice.one_of(lexicon.INTRANSITIVE)), []
        else:
            inner = verb_form(self.dice.one_of(lexicon.TO_THINGS))
            found = self.object(subject.entity, depth, "thing")
            inner.add_after("obj", found.node)
            objects = [found.entity]
        root.add_after("xcomp", inner.put_first("mark", word("to", "PART")))
        return Clause(root, subject.entity, objects)

    def _second_verb(self, root: Node, subject: Phrase, depth: int) -> None:
        """ "Anna sleeps and sings": a second verb of the same subject."""
        has_auxiliary = any(node.relation == "aux" for node in root.before)
        if depth or has_auxiliary or not self.dice.flip(0.12):
            return
        verb = self.dice.one_of(lexicon.INTRANSITIVE)
        number = subject.entity.number
        other = word(verb.present(number), "VERB", verb.base)
        self.agree(other, "verb number", (other_present(verb, number),), subject, number)
        root.add_after("conj", other.put_first("cc", word("and", "CCONJ")))

    def relative_clause(self, subject: Phrase, depth: int) -> Node:
        return self.predicate(self.dice.pick(_RELATIVE), subject, depth).root

    # ----------------------------------------------------------------------------------------------------------- verbs

    def finite(self, verb: Verb, subject: Phrase) -> Node:
        """A verb in a tense, with its auxiliaries and perhaps an adverb; what agrees with the subject is noted."""
        number = subject.entity.number
        tense = self.dice.pick({"present": 0.44, "past": 0.2, "modal": 0.14, "perfect": 0.12, "negated": 0.1})
        if tense == "present":
            root = word(verb.present(number), "VERB", verb.base)
            self.agree(root, "verb number", (other_present(verb, number),), subject, number)
        elif tense == "past":
            root = word(verb.past, "VERB", verb.base)
        elif tense == "modal":
            root = verb_form(verb).add_before("aux", word(self.dice.one_of(lexicon.MODALS), "AUX"))
        elif tense == "perfect":
            root = word(verb.participle, "VERB", verb.base)
            root.add_before("aux", self.agreeing_auxiliary(lexicon.HAVE, "have", subject))
        else:
            root = verb_form(verb)
            root.add_before("aux", self.agreeing_auxiliary(lexicon.DO, "do", subject))
            root.add_before("advmod", word("not", "PART"))
        self.adverb(root)
        return root

    def adverb(self, root: Node) -> None:
        if self.dice.flip(0.3):
            root.add_before("advmod", word(self.dice.one_of(lexicon.ADVERBS), "ADV"))

    def _with_copula(self, root: Node, subject: Phrase) -> Node:
        before, root.before = root.before, []
        self._auxiliary_be(root, subject, "cop")
        root.before += before
        return root

    def _auxiliary_be(self, root: Node, subject: Phrase, relation: str) -> None:
        tense = self.dice.pick({"present": 0.5, "past": 0.35, "modal": 0.15})
        if tense == "modal":
            root.add_before("aux", word(self.dice.one_of(lexicon.MODALS), "AUX"))
            root.add_before(relation, word("be", "AUX"))
        else:
            root.add_before(relation, self.agreeing_auxiliary(lexicon.BE[tense], "be", subject))

    def agreeing_auxiliary(self, forms: tuple[str, str], lemma: str, subject: Phrase) -> Node:
        number = subject.entity.number
        right, wrong = forms if number == "singular" else forms[::-1]
        node = word(right, "AUX", lemma)
        self.agree(node, "verb number", (wrong,), subject, number)
        return node

    def _circumstances(self, root: Node, subject: Entity, depth: int, probability: float) -> None:
        """A place, or an adverb at the end."""
        if self.dice.flip(probability):
            place = self.object(subject, depth, "place", may_be_pronoun=False)
            root.add_after("obl", place.node.put_first("case", word(self.dice.one_of(lexicon.OF_VERBS), "ADP")))
        elif self.dice.flip(0.15):
            root.add_after("advmod", word(self.dice.one_of(lexicon.ADVERBS_AFTER), "ADV"))
