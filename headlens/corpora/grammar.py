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
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from headlens.corpora import lexicon
from headlens.corpora.lexicon import Agreement, Case, Gender, Name, Noun, Number, Verb
from headlens.corpora.trees import Node, as_sentence
from headlens.documents import Document, Mention
from headlens.errors import CorpusError

Sort = Literal["animate", "thing", "place"]
Kind = Literal["verb number", "pronoun", "possessive", "reflexive"]
KINDS: tuple[Kind, ...] = ("verb number", "pronoun", "possessive", "reflexive")
PUNCTUATION = lexicon.PUNCTUATION

WORD_FORMS = lexicon.WORD_FORMS  # lower-cased, without punctuation: all that a text may hold

T = TypeVar("T")

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
    """Texts without end, always the same for a seed.

    exp(-sum of log_probability / number of tokens), with one token a text for its end, is an upper bound on the
    perplexity of the best possible model: a text may have more derivations than the one that is counted.
    """
    if seed < 0:
        raise CorpusError(f"The seed of a grammar must not be negative, got {seed}.")
    source = random.Random(seed)
    number = 0
    while True:
        number += 1
        yield _Story(_Dice(source), f"grammar:{seed}, text {number}").told()


def read_grammar(sentences: int, *, seed: int = 0) -> list[Document]:
    """Texts until there are so many sentences; the last one may bring up to three more."""
    if sentences < 1:
        raise CorpusError(f"A corpus of the grammar needs at least one sentence, got {sentences}.")
    documents, count = [], 0
    for text in grammar_texts(seed):
        documents.append(text.document)
        count += len(text.document.sentences)
        if count >= sentences:
            break
    return documents


# -------------------------------------------------------------------------------------------------------------- choices


class _Dice:
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


# ------------------------------------------------------------------------------------------------------------- entities


@dataclass(eq=False)
class _Entity:
    id: str
    genders: tuple[Gender, ...]  # several: not told so far
    number: Number
    sort: Sort
    noun: Noun | Name | None = None  # None: several put together ("Anna and Peter")
    parts: tuple[_Entity, ...] = ()
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

    def overlaps(self, other: _Entity) -> bool:
        return self is other or self in other.parts or other in self.parts


@dataclass(frozen=True)
class _Phrase:
    """A noun phrase: its tree and what it refers to."""

    node: Node
    entity: _Entity


@dataclass(frozen=True)
class _Agrees:
    """A word that agrees with another, for `Forced`."""

    node: Node
    kind: Kind
    wrong: tuple[str, ...]
    controller: Node
    asks_for: Number | Agreement


@dataclass
class _Clause:
    """What a clause says, for the sentences to come."""

    root: Node
    subject: _Entity
    objects: list[_Entity] = field(default_factory=list)


_BOUND = frozenset({"conj", "cc"})  # what a mention of the first of several does not hold


class _Story:
    """One text as it is made up."""

    def __init__(self, dice: _Dice, id: str) -> None:
        self.dice, self.id = dice, id
        self._entities: list[_Entity] = []
        self._used: set[Noun | Name] = set()
        self._focus: list[_Entity] = []  # what a pronoun may refer to: subject, then objects of the sentence before
        self._mentions: list[tuple[Node, frozenset[str], _Entity]] = []
        self._agreeing: list[_Agrees] = []
        self._refers: dict[Node, _Entity] = {}  # nouns and pronouns, to entities

    def told(self) -> GrammarText:
        sentences, nodes = [], list[Node]()
        for number in range(self.dice.pick(_SENTENCES)):
            sentence, words = as_sentence(self._sentence(), f"{self.id}, sentence {number + 1}")
            sentences.append(sentence)
            nodes += words
        place = {node: number for number, node in enumerate(nodes)}
        mentions = [self._mention(place, *mention) for mention in self._mentions]
        forced = [self._forced(place, nodes, agrees) for agrees in self._agreeing]
        return GrammarText(
            Document.of_sentences(sentences, self.id, mentions=sorted(mentions)),
            self.dice.log_probability,
            tuple(sorted(forced, key=lambda one: one.word)),
        )

    def _mention(self, place: Mapping[Node, int], node: Node, leave_out: frozenset[str], entity: _Entity) -> Mention:
        places = [place[word] for word in node.words(leave_out)]
        return Mention(places[0], places[-1] + 1, entity.id)

    def _forced(self, place: Mapping[Node, int], nodes: Sequence[Node], agrees: _Agrees) -> Forced:
        first, last = sorted((place[agrees.controller], place[agrees.node]))
        own = self._refers[agrees.controller]
        others = [self._refers[node] for node in nodes[first + 1 : last] if node in self._refers]
        between = [entity for entity in others if not entity.overlaps(own)]
        if agrees.kind == "verb number":
            attracts = any(entity.number != agrees.asks_for for entity in between)
        else:
            attracts = any(entity.agreement != agrees.asks_for for entity in between)
        return Forced(place[agrees.node], agrees.kind, agrees.node.form, agrees.wrong, attracts)

    # ------------------------------------------------------------------------------------------------------- sentences

    def _sentence(self) -> Node:
        kind = self.dice.pick({"plain": 0.76, "coordinated": 0.09, "clause first": 0.07, "clause last": 0.08})
        before = self._subordinate() if kind == "clause first" else None
        clause = self._clause(depth=0)
        root = clause.root
        if before is not None:
            root.put_first("punct", _mark(",")).put_first("advcl", before)
        elif kind == "clause last":
            root.add_after("advcl", self._subordinate(clause))
        elif kind == "coordinated":
            self._look_at(clause)
            clause = self._clause(depth=1)
            clause.root.put_first("cc", _word("and", "CCONJ")).put_first("punct", _mark(","))
            root.add_after("conj", clause.root)
        self._look_at(clause)
        return root.add_after("punct", _mark(self.dice.pick({".": 0.9, "!": 0.1})))

    def _look_at(self, clause: _Clause) -> None:
        """Pronouns that follow refer to what this clause is about."""
        self._focus = [clause.subject, *clause.objects]

    def _subordinate(self, main: _Clause | None = None) -> Node:
        if main is not None:
            self._look_at(main)
        word = self.dice.one_of(lexicon.SUBORDINATORS)
        clause = self._clause(depth=1)
        self._look_at(clause)
        return clause.root.put_first("mark", _word(word, "SCONJ"))

    def _clause(self, depth: int) -> _Clause:
        kinds = {"intransitive": 0.2, "transitive": 0.34, "giving": 0.08, "copula": 0.14, "nominal": 0.05}
        kinds |= {"passive": 0.09} | ({"saying": 0.06, "wanting": 0.05} if depth == 0 else {})
        kind = self.dice.pick(kinds)
        wants_thing = kind in ("copula", "passive") and self.dice.flip(0.4)
        subject = self._subject(depth, "thing" if wants_thing else "animate")
        clause = self._predicate(kind, subject, depth)
        clause.root.put_first("nsubj:pass" if kind == "passive" else "nsubj", subject.node)
        return clause

    # ------------------------------------------------------------------------------------------------------ predicates

    def _predicate(self, kind: str, subject: _Phrase, depth: int) -> _Clause:
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

    def _intransitive(self, subject: _Phrase, depth: int) -> _Clause:
        root = self._finite(self.dice.one_of(lexicon.INTRANSITIVE), subject)
        self._circumstances(root, subject.entity, depth, 0.5)
        self._second_verb(root, subject, depth)
        return _Clause(root, subject.entity)

    def _transitive(self, subject: _Phrase, depth: int) -> _Clause:
        if self.dice.flip(0.12) and subject.entity.is_animate:
            root = self._finite(self.dice.one_of(lexicon.REFLEXIVE), subject)
            root.add_after("obj", self._bound(subject.entity, "reflexive", "reflexive"))
            self._circumstances(root, subject.entity, depth, 0.3)
            return _Clause(root, subject.entity)
        is_animate = self.dice.flip(0.45)
        root = self._finite(self.dice.one_of(lexicon.TO_ANIMATE if is_animate else lexicon.TO_THINGS), subject)
        found = self._object(subject.entity, depth, "animate" if is_animate else "thing")
        root.add_after("obj", found.node)
        self._circumstances(root, subject.entity, depth, 0.3)
        self._second_verb(root, subject, depth)
        return _Clause(root, subject.entity, [found.entity])

    def _giving(self, subject: _Phrase, depth: int) -> _Clause:
        root = self._finite(self.dice.one_of(lexicon.GIVING), subject)
        if self.dice.flip(0.55):
            receiver = self._object(subject.entity, depth, "animate")
            thing = self._object(subject.entity, depth, "thing", may_be_pronoun=False)
            root.add_after("iobj", receiver.node).add_after("obj", thing.node)
        else:
            thing = self._object(subject.entity, depth, "thing")
            receiver = self._object(subject.entity, depth, "animate")
            root.add_after("obj", thing.node)
            root.add_after("obl", receiver.node.put_first("case", _word("to", "ADP")))
        return _Clause(root, subject.entity, [receiver.entity, thing.entity])

    def _copula(self, subject: _Phrase, depth: int) -> _Clause:
        if subject.entity.is_animate:
            has_complement = self.dice.flip(0.25)
            root = (
                self._with_complement(subject.entity, depth)
                if has_complement
                else _word(self.dice.one_of(lexicon.ADJECTIVES), "ADJ")
            )
        else:
            root = _word(self.dice.one_of(lexicon.OF_THINGS), "ADJ")
        if self.dice.flip(0.2):
            root.add_before("advmod", _word(self.dice.one_of(lexicon.INTENSIFIERS), "ADV"))
        return _Clause(self._with_copula(root, subject), subject.entity)

    def _nominal(self, subject: _Phrase, depth: int) -> _Clause:
        """ "Anna is a doctor": the noun is said of the subject, and refers to nothing of its own."""
        noun = self._new_noun(self._said_of(subject.entity))
        root = _word(noun.form(subject.entity.number), "NOUN", noun.singular)
        if self.dice.flip(0.35):
            root.add_before("amod", _word(self.dice.one_of(lexicon.ADJECTIVES), "ADJ"))
        if subject.entity.number == "singular":
            self._article(root)
        return _Clause(self._with_copula(root, subject), subject.entity)

    def _passive(self, subject: _Phrase, depth: int) -> _Clause:
        verbs = lexicon.TO_ANIMATE if subject.entity.is_animate else lexicon.TO_THINGS
        verb = self.dice.one_of(verbs)
        root = _word(verb.participle, "VERB", verb.base)
        self._auxiliary_be(root, subject, "aux:pass")
        self._adverb(root)
        if not self.dice.flip(0.6):
            self._circumstances(root, subject.entity, depth, 0.4)
            return _Clause(root, subject.entity)
        agent = self._object(subject.entity, depth, "animate")
        root.add_after("obl:agent", agent.node.put_first("case", _word("by", "ADP")))
        return _Clause(root, subject.entity, [agent.entity])

    def _saying(self, subject: _Phrase, depth: int) -> _Clause:
        root = self._finite(self.dice.one_of(lexicon.SAYING), subject)
        self._focus = [subject.entity]
        inner = self._clause(depth + 1)
        if self.dice.flip(0.7):
            inner.root.put_first("mark", _word("that", "SCONJ"))
        root.add_after("ccomp", inner.root)
        return _Clause(root, subject.entity, [entity for entity in [inner.subject] if entity is not subject.entity])

    def _wanting(self, subject: _Phrase, depth: int) -> _Clause:
        root = self._finite(self.dice.one_of(lexicon.WANTING), subject)
        if self.dice.flip(0.4):
            inner, objects = _verb_form(self.dice.one_of(lexicon.INTRANSITIVE)), []
        else:
            inner = _verb_form(self.dice.one_of(lexicon.TO_THINGS))
            found = self._object(subject.entity, depth, "thing")
            inner.add_after("obj", found.node)
            objects = [found.entity]
        root.add_after("xcomp", inner.put_first("mark", _word("to", "PART")))
        return _Clause(root, subject.entity, objects)

    def _second_verb(self, root: Node, subject: _Phrase, depth: int) -> None:
        """ "Anna sleeps and sings": a second verb of the same subject."""
        has_auxiliary = any(node.relation == "aux" for node in root.before)
        if depth or has_auxiliary or not self.dice.flip(0.12):
            return
        verb = self.dice.one_of(lexicon.INTRANSITIVE)
        number = subject.entity.number
        other = _word(verb.present(number), "VERB", verb.base)
        self._agree(other, "verb number", (_other_present(verb, number),), subject, number)
        root.add_after("conj", other.put_first("cc", _word("and", "CCONJ")))

    # ----------------------------------------------------------------------------------------------------------- verbs

    def _finite(self, verb: Verb, subject: _Phrase) -> Node:
        """A verb in a tense, with its auxiliaries and perhaps an adverb; what agrees with the subject is noted."""
        number = subject.entity.number
        tense = self.dice.pick({"present": 0.44, "past": 0.2, "modal": 0.14, "perfect": 0.12, "negated": 0.1})
        if tense == "present":
            root = _word(verb.present(number), "VERB", verb.base)
            self._agree(root, "verb number", (_other_present(verb, number),), subject, number)
        elif tense == "past":
            root = _word(verb.past, "VERB", verb.base)
        elif tense == "modal":
            root = _verb_form(verb).add_before("aux", _word(self.dice.one_of(lexicon.MODALS), "AUX"))
        elif tense == "perfect":
            root = _word(verb.participle, "VERB", verb.base)
            root.add_before("aux", self._agreeing_auxiliary(lexicon.HAVE, "have", subject))
        else:
            root = _verb_form(verb)
            root.add_before("aux", self._agreeing_auxiliary(lexicon.DO, "do", subject))
            root.add_before("advmod", _word("not", "PART"))
        self._adverb(root)
        return root

    def _adverb(self, root: Node) -> None:
        if self.dice.flip(0.3):
            root.add_before("advmod", _word(self.dice.one_of(lexicon.ADVERBS), "ADV"))

    def _with_copula(self, root: Node, subject: _Phrase) -> Node:
        before, root.before = root.before, []
        self._auxiliary_be(root, subject, "cop")
        root.before += before
        return root

    def _auxiliary_be(self, root: Node, subject: _Phrase, relation: str) -> None:
        tense = self.dice.pick({"present": 0.5, "past": 0.35, "modal": 0.15})
        if tense == "modal":
            root.add_before("aux", _word(self.dice.one_of(lexicon.MODALS), "AUX"))
            root.add_before(relation, _word("be", "AUX"))
        else:
            root.add_before(relation, self._agreeing_auxiliary(lexicon.BE[tense], "be", subject))

    def _agreeing_auxiliary(self, forms: tuple[str, str], lemma: str, subject: _Phrase) -> Node:
        number = subject.entity.number
        right, wrong = forms if number == "singular" else forms[::-1]
        node = _word(right, "AUX", lemma)
        self._agree(node, "verb number", (wrong,), subject, number)
        return node

    def _agree(
        self, node: Node, kind: Kind, wrong: tuple[str, ...], controller: _Phrase, asks_for: Number | Agreement
    ) -> None:
        self._agreeing.append(_Agrees(node, kind, wrong, controller.node, asks_for))

    def _circumstances(self, root: Node, subject: _Entity, depth: int, probability: float) -> None:
        """A place, or an adverb at the end."""
        if self.dice.flip(probability):
            place = self._object(subject, depth, "place", may_be_pronoun=False)
            root.add_after("obl", place.node.put_first("case", _word(self.dice.one_of(lexicon.OF_VERBS), "ADP")))
        elif self.dice.flip(0.15):
            root.add_after("advmod", _word(self.dice.one_of(lexicon.ADVERBS_AFTER), "ADV"))

    def _with_complement(self, subject: _Entity, depth: int) -> Node:
        """ "afraid of the dogs" """
        adjective = self.dice.one_of(tuple(lexicon.WITH_COMPLEMENT))
        found = self._object(subject, depth + 1, "animate", may_be_pronoun=False)
        preposition = lexicon.WITH_COMPLEMENT[adjective]
        return _word(adjective, "ADJ").add_after("obl", found.node.put_first("case", _word(preposition, "ADP")))

    # ---------------------------------------------------------------------------------------------------- noun phrases

    def _subject(self, depth: int, sort: Sort) -> _Phrase:
        if (antecedents := _by_agreement(self._focus, sort)) and self.dice.flip(0.5):
            return self._pronoun(antecedents, self._focus, "nominative")
        return self._full(sort, depth, subject=None)

    def _object(self, subject: _Entity, depth: int, sort: Sort, *, may_be_pronoun: bool = True) -> _Phrase:
        others = [entity for entity in self._focus if not entity.overlaps(subject)]  # else it were a reflexive
        if may_be_pronoun and (antecedents := _by_agreement(others, sort)) and self.dice.flip(0.35):
            return self._pronoun(antecedents, others, "accusative")
        return self._full(sort, depth, subject=subject)

    def _pronoun(self, antecedents: Mapping[Agreement, _Entity], candidates: Sequence[_Entity], case: Case) -> _Phrase:
        agreement = self.dice.one_of(tuple(antecedents))
        entity = antecedents[agreement]
        node = _word(lexicon.pronoun(agreement, case), "PRON")
        if len(_by_agreement(candidates, None)) == 1:
            self._note_pronoun(node, entity, case, "possessive" if case == "possessive" else "pronoun")
        entity.genders = (agreement[0],) if entity.number == "singular" else entity.genders
        return self._mentioned(node, entity)

    def _bound(self, entity: _Entity, case: Case, kind: Kind) -> Node:
        """A pronoun that refers to the subject of its own clause."""
        node = _word("", "PRON")
        if entity.is_told:
            node.form = lexicon.pronoun(entity.agreement, case)
            self._note_pronoun(node, entity, case, kind)
        else:
            entity.genders = (self.dice.one_of(entity.genders),)
            node.form = lexicon.pronoun(entity.agreement, case)
        node.lemma = node.form
        self._mentioned(node, entity)
        return node

    def _note_pronoun(self, node: Node, entity: _Entity, case: Case, kind: Kind) -> None:
        right = lexicon.pronoun(entity.agreement, case)
        forms = [lexicon.pronoun(agreement, case) for agreement in lexicon.PRONOUNS]
        wrong = tuple(form for form in forms if form != right)
        assert entity.last is not None
        self._agreeing.append(_Agrees(node, kind, wrong, entity.last, entity.agreement))

    def _full(self, sort: Sort, depth: int, subject: _Entity | None, inside: _Entity | None = None) -> _Phrase:
        """A noun phrase with a noun or name. It refers neither to the `subject` of its clause nor to what it is said
        of, where it stands `inside` another noun phrase."""
        excluded = [entity for entity in (subject, inside) if entity is not None]
        known = [
            entity
            for entity in self._entities
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

    def _again(self, entity: _Entity) -> _Phrase:
        if isinstance(entity.noun, Name):
            return self._mentioned(_word(entity.noun.form, "PROPN"), entity)
        assert entity.noun is not None
        node = _word(entity.noun.form(entity.number), "NOUN", entity.noun.singular)
        return self._mentioned(node.put_first("det", _word("the", "DET")), entity)

    def _named(self, depth: int) -> _Phrase:
        name = self.dice.one_of([name for name in lexicon.NAMES if name not in self._used])
        self._used.add(name)
        node = _word(name.form, "PROPN")
        phrase = self._new(node, name, (name.gender,), "singular", "animate")
        if depth == 0 and self.dice.flip(0.1):
            noun = self._new_noun(self._said_of(phrase.entity))
            other = _word(noun.form("singular"), "NOUN", noun.singular)
            self._adjective(other, "animate")
            other.put_first("det", _word("the", "DET")).put_first("punct", _mark(","))
            node.add_after("appos", other.add_after("punct", _mark(",")))
        return phrase

    def _two(self, sort: Sort, depth: int) -> _Phrase:
        """ "Anna and the old farmer": two mentions, and one of both together."""
        first = self._named(1) if sort == "animate" and self.dice.flip(0.6) else self._described(sort, 2, None)
        second = self._named(1) if sort == "animate" and self.dice.flip(0.6) else self._described(sort, 2, None)
        first.node.add_after("conj", second.node.put_first("cc", _word("and", "CCONJ")))
        both = self._entity(None, ("neuter",), "plural", sort, (first.entity, second.entity))
        return self._mentioned(first.node, both, whole=True)

    def _described(self, sort: Sort, depth: int, subject: _Entity | None) -> _Phrase:
        noun = self._new_noun(_NOUNS[sort])
        number: Number = "plural" if self.dice.flip(0.42) else "singular"
        node = _word(noun.form(number), "NOUN", noun.singular)
        if sort != "animate" and self.dice.flip(0.08):
            node.add_before("compound", _word(self.dice.one_of(lexicon.COMPOUNDS), "NOUN"))
        self._adjective(node, sort)
        self._determiner(node, number, depth, subject)
        phrase = self._new(node, noun, noun.genders if number == "singular" else ("neuter",), number, sort)
        self._modifiers(phrase, depth)
        return phrase

    def _adjective(self, node: Node, sort: Sort) -> None:
        if self.dice.flip(0.42):
            words = lexicon.ADJECTIVES if sort == "animate" else lexicon.OF_THINGS
            node.put_first("amod", _word(self.dice.one_of(words), "ADJ"))

    def _determiner(self, node: Node, number: Number, depth: int, subject: _Entity | None) -> None:
        owners = {} if subject is not None or depth else _by_agreement(self._focus, "animate")
        kinds = {"article": 0.68, "genitive": 0.08 if depth < 2 else 0.0}
        kinds |= {"possessive": 0.2 if owners or (subject and subject.noun) else 0.0}
        kinds |= {"none": 0.15 if number == "plural" else 0.0, "numeral": 0.1 if number == "plural" else 0.0}
        kind = self.dice.pick(kinds)
        if kind == "article" and number == "singular":
            self._article(node)
        elif kind == "article":
            node.put_first("det", _word(self.dice.one_of(lexicon.PLURAL_DETERMINERS), "DET"))
        elif kind == "numeral":
            node.put_first("nummod", _word(self.dice.one_of(lexicon.NUMERALS), "NUM"))
        elif kind == "possessive" and subject is not None:
            node.put_first("nmod:poss", self._bound(subject, "possessive", "possessive"))
        elif kind == "possessive":
            node.put_first("nmod:poss", self._pronoun(owners, self._focus, "possessive").node)
        elif kind == "genitive":
            owner = self._named(1) if self.dice.flip(0.7) else self._described("animate", 2, None)
            node.put_first("nmod:poss", owner.node.add_after("case", _word("'s", "PART")))

    def _article(self, node: Node) -> None:
        article = self.dice.one_of(lexicon.SINGULAR_DETERMINERS)
        first = next(node.words())
        form = "an" if article == "a" and first.form[0] in "aeiou" else article
        node.put_first("det", _word(form, "DET", article))

    def _modifiers(self, phrase: _Phrase, depth: int) -> None:
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
            other = self._full(sort, depth + 1, None, phrase.entity)
            preposition = _word(self.dice.one_of(lexicon.OF_NOUNS), "ADP")
            node.add_after("nmod", other.node.put_first("case", preposition))
        elif kind == "subject relative":
            clause = self._predicate(self.dice.pick(_RELATIVE), phrase, depth + 1)
            node.add_after("acl:relcl", clause.root.put_first("nsubj", _word(self._relativizer(phrase), "PRON")))
        elif kind == "object relative":
            self._object_relative(phrase, depth)
        elif kind == "adjective":
            node.add_after("amod", self._with_complement(phrase.entity, depth))

    def _object_relative(self, phrase: _Phrase, depth: int) -> None:
        """ "the dog that Anna sees" """
        relativizer = self._relativizer(phrase)
        subject = self._full("animate", depth + 1, None, phrase.entity)
        verbs = lexicon.TO_ANIMATE if phrase.entity.is_animate else lexicon.TO_THINGS
        root = self._finite(self.dice.one_of(verbs), subject)
        root.put_first("nsubj", subject.node).put_first("obj", _word(relativizer, "PRON"))
        phrase.node.add_after("acl:relcl", root)

    def _relativizer(self, phrase: _Phrase) -> str:
        is_person = phrase.entity.is_animate and phrase.entity.noun not in lexicon.ANIMALS
        return "who" if is_person and self.dice.flip(0.5) else "that"

    def _said_of(self, entity: _Entity) -> Sequence[Noun]:
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

    def _new_noun(self, nouns: Sequence[Noun]) -> Noun:
        """One that was not there before: a noun that comes again refers to the same as before."""
        noun = self.dice.one_of([noun for noun in nouns if noun not in self._used])
        self._used.add(noun)
        return noun

    # -------------------------------------------------------------------------------------------------------- entities

    def _new(self, node: Node, noun: Noun | Name, genders: tuple[Gender, ...], number: Number, sort: Sort) -> _Phrase:
        return self._mentioned(node, self._entity(noun, genders, number, sort))

    def _entity(
        self,
        noun: Noun | Name | None,
        genders: tuple[Gender, ...],
        number: Number,
        sort: Sort,
        parts: tuple[_Entity, ...] = (),
    ) -> _Entity:
        entity = _Entity(f"e{len(self._entities) + 1}", genders, number, sort, noun, parts)
        self._entities.append(entity)
        return entity

    def _mentioned(self, node: Node, entity: _Entity, *, whole: bool = False) -> _Phrase:
        self._mentions.append((node, frozenset() if whole else _BOUND, entity))
        self._refers[node] = entity
        entity.last = node
        return _Phrase(node, entity)


_NOUNS: dict[Sort, tuple[Noun, ...]] = {
    "animate": (*lexicon.WOMEN, *lexicon.MEN, *lexicon.PEOPLE, *lexicon.ANIMALS),
    "thing": lexicon.THINGS,
    "place": lexicon.PLACES,
}
_OF_NOUNS: dict[Sort, float] = {"animate": 0.4, "thing": 0.3, "place": 0.3}
_RELATIVE = {"intransitive": 0.4, "transitive": 0.4, "copula": 0.2}


def _by_agreement(entities: Sequence[_Entity], sort: Sort | None) -> dict[Agreement, _Entity]:
    """What each pronoun would refer to: the first that agrees. One whose gender was not told agrees with several."""
    found: dict[Agreement, _Entity] = {}
    for entity in entities:
        if sort is None or entity.sort == sort:
            for agreement in entity.agreements:
                found.setdefault(agreement, entity)
    return found


def _word(form: str, upos: str, lemma: str | None = None) -> Node:
    return Node(form, form if lemma is None else lemma, upos)


def _verb_form(verb: Verb) -> Node:
    return _word(verb.base, "VERB", verb.base)


def _mark(form: str) -> Node:
    return _word(form, "PUNCT")


def _other_present(verb: Verb, number: Number) -> str:
    return verb.present("plural" if number == "singular" else "singular")
