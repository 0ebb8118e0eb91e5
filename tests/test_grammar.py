"""The grammar: what it writes agrees with what it says about it, and nothing can be told by distance alone."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any

import pytest

from headlens.corpora import grammar
from headlens.corpora.grammar import (
    PUNCTUATION,
    WORD_FORMS,
    Forced,
    GrammarText,
    grammar_texts,
    lexicon,
    read_grammar,
)
from headlens.corpora.grammar.clauses import Clauses
from headlens.corpora.grammar.lexicon import Number
from headlens.corpora.grammar.story import Agrees, Dice, Entity
from headlens.corpora.grammar.trees import Node
from headlens.documents import ROOT, Document, Mention, Sentence
from headlens.errors import CorpusError

TEXTS = 1500
SINGULAR_PRONOUNS, PLURAL_PRONOUNS = {"he", "she", "it"}, {"they"}
OF_ENGLISH = {  # universaldependencies.org
    *("acl:relcl", "advcl", "advmod", "amod", "appos", "aux", "aux:pass", "case", "cc", "ccomp", "compound", "conj"),
    *("cop", "det", "iobj", "mark", "nmod", "nmod:poss", "nsubj", "nsubj:pass", "nummod", "obj", "obl", "obl:agent"),
    *("punct", "root", "xcomp"),
}


NOUNS = (*lexicon.WOMEN, *lexicon.MEN, *lexicon.PEOPLE, *lexicon.ANIMALS, *lexicon.THINGS, *lexicon.PLACES)
NUMBERS = {
    **dict.fromkeys((noun.singular for noun in NOUNS), "singular"),
    **dict.fromkeys((noun.plural for noun in NOUNS), "plural"),
}


@pytest.fixture(scope="module")
def texts() -> list[GrammarText]:
    return list(islice(grammar_texts(5), TEXTS))


def sentences(texts: Sequence[GrammarText]) -> Iterator[Sentence]:
    for text in texts:
        yield from text.document.sentences


def words(document: Document) -> list[str]:
    return [word.lower() for sentence in document.sentences for word in sentence.words]


# ---------------------------------------------------------------------------------------------------------------- form


def test_a_seed_gives_the_same_texts_and_another_seed_gives_others() -> None:
    first, again, other = (list(islice(grammar_texts(seed), 40)) for seed in (3, 3, 4))
    assert first == again
    assert not {text.document.text for text in first} & {text.document.text for text in other}


def test_every_form_is_in_the_word_list_and_the_word_list_holds_no_other(texts: list[GrammarText]) -> None:
    written = {word for text in texts for word in words(text.document)}
    assert written - set(PUNCTUATION) == set(WORD_FORMS)
    assert 580 <= len(WORD_FORMS) <= 640
    assert len(set(WORD_FORMS)) == len(WORD_FORMS)


def test_texts_have_one_to_four_sentences_that_begin_with_a_capital_and_end_with_a_mark(
    texts: list[GrammarText],
) -> None:
    assert {len(text.document.sentences) for text in texts} == {1, 2, 3, 4}
    for sentence in sentences(texts):
        assert sentence.text[0].isupper()
        assert sentence.words[-1] in (".", "!")
        assert not {" ,", " .", " !", " '", "  "} & {a + b for a, b in pairwise(sentence.text)}


def test_spans_spell_the_words(texts: list[GrammarText]) -> None:
    for sentence in sentences(texts):
        assert [sentence.text[start:stop] for start, stop in sentence.spans] == list(sentence.words)


def test_trees_have_one_root_reach_every_word_and_do_not_cross(texts: list[GrammarText]) -> None:
    for sentence in sentences(texts):
        heads = sentence.heads
        assert heads is not None
        assert heads.count(ROOT) == 1
        for place, head in enumerate(heads):
            seen = {place}
            while head != ROOT:
                assert head not in seen
                seen.add(head)
                head = heads[head]
        arcs = [(min(pair), max(pair)) for pair in enumerate(heads) if pair[1] != ROOT]
        assert not any(a < c < b < d for a, b in arcs for c, d in arcs), sentence.text


def test_relations_are_those_of_universal_dependencies_and_all_occur(texts: list[GrammarText]) -> None:
    found = {relation for sentence in sentences(texts) for relation in sentence.relations or ()}
    assert found == OF_ENGLISH


@pytest.mark.parametrize(
    ("relation", "of_dependent", "of_head"),
    [
        ("det", {"DET"}, {"NOUN"}),
        ("amod", {"ADJ"}, {"NOUN"}),
        ("aux", {"AUX"}, {"VERB", "ADJ", "NOUN"}),
        ("cop", {"AUX"}, {"ADJ", "NOUN"}),
        ("case", {"ADP", "PART"}, {"NOUN", "PROPN", "PRON"}),
        ("nsubj", {"NOUN", "PROPN", "PRON"}, {"VERB", "ADJ", "NOUN"}),
        ("obj", {"NOUN", "PROPN", "PRON"}, {"VERB"}),
        ("nmod:poss", {"NOUN", "PROPN", "PRON"}, {"NOUN"}),
        ("acl:relcl", {"VERB", "ADJ"}, {"NOUN"}),
        ("xcomp", {"VERB"}, {"VERB"}),
    ],
)
def test_relations_hold_between_these_parts_of_speech(
    texts: list[GrammarText], relation: str, of_dependent: set[str], of_head: set[str]
) -> None:
    pairs = {
        (sentence.upos[place], sentence.upos[sentence.heads[place]])
        for sentence in sentences(texts)
        for place, name in enumerate(sentence.relations or ())
        if name == relation
    }
    assert {dependent for dependent, _ in pairs} <= of_dependent
    assert {head for _, head in pairs} <= of_head


def test_articles_are_a_before_consonants_and_an_before_vowels(texts: list[GrammarText]) -> None:
    for sentence in sentences(texts):
        for article, following in pairwise(word.lower() for word in sentence.words):
            if article in ("a", "an"):
                assert (article == "an") == (following[0] in "aeiou"), sentence.text


# ----------------------------------------------------------------------------------------------------------- agreement


def number_of_subject(sentence: Sentence, subject: int) -> str | None:
    """Read off the text: of a noun from its form, of several put together plural; None for a relative pronoun."""
    assert sentence.heads is not None
    assert sentence.relations is not None
    form = sentence.words[subject].lower()
    if any(head == subject and sentence.relations[place] == "conj" for place, head in enumerate(sentence.heads)):
        return "plural"
    if form in SINGULAR_PRONOUNS or form in {name.form.lower() for name in lexicon.NAMES}:
        return "singular"
    if form in PLURAL_PRONOUNS:
        return "plural"
    return NUMBERS.get(form)


AUXILIARIES = {"is": "singular", "are": "plural", "was": "singular", "were": "plural", "has": "singular"} | {
    "have": "plural",
    "does": "singular",
    "do": "plural",
}
THIRD = {verb.third for verb in lexicon._VERBS}
BASE = {verb.base for verb in lexicon._VERBS}


def finite_number(sentence: Sentence, verb: int) -> str | None:
    """What the form of a verb, or of its first auxiliary, shows; None where it shows nothing."""
    assert sentence.heads is not None
    assert sentence.relations is not None
    helpers = [
        sentence.words[place].lower()
        for place, head in enumerate(sentence.heads)
        if head == verb and sentence.relations[place] in ("aux", "aux:pass", "cop")
    ]
    if helpers:
        return AUXILIARIES.get(helpers[0])
    form = sentence.words[verb].lower()
    if form in THIRD:
        return "singular"
    return "plural" if form in BASE and form not in {verb.past for verb in lexicon._VERBS} else None


def test_finite_verbs_agree_with_their_subjects(texts: list[GrammarText]) -> None:
    compared = 0
    for sentence in sentences(texts):
        for place, relation in enumerate(sentence.relations or ()):
            if relation in ("nsubj", "nsubj:pass"):
                subject, verb = number_of_subject(sentence, place), finite_number(sentence, sentence.heads[place])
                if subject and verb:
                    assert subject == verb, sentence.text
                    compared += 1
    assert compared > 2000


def test_verbs_of_relative_clauses_agree_with_the_noun_that_they_describe(texts: list[GrammarText]) -> None:
    compared = 0
    for sentence in sentences(texts):
        for place, relation in enumerate(sentence.relations or ()):
            clause = sentence.heads[place]
            if relation == "nsubj" and sentence.words[place] in ("who", "that"):
                verb, noun = finite_number(sentence, clause), sentence.heads[clause]
                if verb:
                    assert verb == NUMBERS[sentence.words[noun].lower()], sentence.text
                    compared += 1
    assert compared > 50


def test_pronouns_of_an_entity_never_differ_in_gender_or_number(texts: list[GrammarText]) -> None:
    told = {form: key for key, cases in lexicon.PRONOUNS.items() for form in cases.values()}
    told |= {name.form.lower(): (name.gender, "singular") for name in lexicon.NAMES}
    told |= {noun.singular: ("feminine", "singular") for noun in lexicon.WOMEN}
    told |= {noun.singular: ("masculine", "singular") for noun in lexicon.MEN}
    told |= {noun.singular: ("neuter", "singular") for noun in (*lexicon.ANIMALS, *lexicon.THINGS, *lexicon.PLACES)}
    compared = 0
    for text in texts:
        by_entity: dict[str, set[Any]] = {}
        for mention in text.document.mentions or ():
            form = _single_head(text.document, mention)
            if form in told:
                by_entity.setdefault(mention.entity, set()).add(told[form])
                compared += 1
        assert all(len(seen) == 1 for seen in by_entity.values()), text.document.text
    assert compared > 3000


def _single_head(document: Document, mention: Mention) -> str | None:
    """The form of the word that a mention hangs on; None where it holds several put together."""
    start = 0
    for sentence in document.sentences:
        if mention.start < start + len(sentence.words):
            break
        start += len(sentence.words)
    assert sentence.heads is not None
    assert sentence.relations is not None
    inside = range(mention.start - start, mention.stop - start)
    [head] = [place for place in inside if sentence.heads[place] not in inside]
    several = any(sentence.heads[place] == head and sentence.relations[place] == "conj" for place in inside)
    return None if several else sentence.words[head].lower()


# -------------------------------------------------------------------------------------------------------- forced words


def test_forced_words_stand_in_the_text_and_the_excluded_forms_are_others_of_its_words(
    texts: list[GrammarText],
) -> None:
    for text in texts:
        forms = words(text.document)
        for forced in text.forced:
            assert forms[forced.word] == forced.right
            assert forced.right not in forced.wrong
            assert forced.wrong
            assert set(forced.wrong) < set(WORD_FORMS)


def test_every_kind_of_forced_word_is_common_with_and_without_attractors(texts: list[GrammarText]) -> None:
    found = Counter((forced.kind, forced.has_attractor) for text in texts for forced in text.forced)
    for kind in grammar.KINDS:
        assert found[kind, False] > 60
        assert found[kind, True] > 15


@pytest.mark.parametrize(
    ("first", "second", "joined", "has_attractor"),
    [
        ("plural", "singular", False, True),  # the dogs near the river run
        ("plural", "plural", False, False),  # the dogs near the rivers run
        ("plural", "singular", True, False),  # Anna and Peter run: Peter is a part of the subject
    ],
)
def test_an_attractor_asks_for_another_form_and_is_no_part_of_the_subject(
    first: Number, second: Number, joined: bool, has_attractor: bool
) -> None:
    subject, other, verb = (Node(form, form, "X") for form in ("subject", "other", "run"))
    between = Entity("e2", ("neuter",), second, "animate")
    controller = Entity("e1", ("neuter",), first, "animate", parts=(between,) if joined else ())
    agrees = Agrees(verb, "verb number", ("runs",), subject, first)
    place = {subject: 0, other: 1, verb: 2}
    forced = grammar._forced(place, [subject, other, verb], {subject: controller, other: between}, agrees)
    assert forced == Forced(2, "verb number", "run", ("runs",), has_attractor)


# ------------------------------------------------------------------------------------------------------------ distance


def largest_share(offsets: Sequence[int]) -> float:
    return max(Counter(offsets).values()) / len(offsets)


@pytest.mark.parametrize("relation", ["nsubj", "nsubj:pass", "obj", "nmod", "nmod:poss", "obl"])
def test_no_constant_offset_finds_half_of_the_heads(texts: list[GrammarText], relation: str) -> None:
    offsets = [
        sentence.heads[place] - place
        for sentence in sentences(texts)
        for place, name in enumerate(sentence.relations or ())
        if name == relation
    ]
    assert len(offsets) > 300
    assert largest_share(offsets) < 0.5


def test_no_constant_offset_finds_half_of_the_antecedents(texts: list[GrammarText]) -> None:
    """Counted generously: from the last word of a mention to the last word of any earlier one of its entity."""
    offsets, asked = Counter[int](), 0
    for text in texts:
        mentions = text.document.mentions or ()
        for mention in mentions:
            earlier = [one for one in mentions if one.entity == mention.entity and one.start < mention.start]
            if earlier:
                asked += 1
                offsets.update({mention.stop - one.stop for one in earlier})
    assert asked > 1000
    assert max(offsets.values()) / asked < 0.25


def test_nearer_mentions_that_agree_stand_between_some_pronouns_and_their_antecedents(texts: list[GrammarText]) -> None:
    feminine = {name.form.lower() for name in lexicon.NAMES if name.gender == "feminine"}
    distracted = 0
    for text in texts:
        forms = words(text.document)
        mentions = sorted(text.document.mentions or ())
        for number, mention in enumerate(mentions):
            if forms[mention.start] == "she":
                nearer = [
                    one for one in mentions[:number] if one.stop - one.start == 1 and forms[one.start] in feminine
                ]
                distracted += bool(nearer) and nearer[-1].entity != mention.entity
    assert distracted > 10


# --------------------------------------------------------------------------------------------------------- probability


class Recorder(Dice):
    """Dice that write down how likely each throw was."""

    def __init__(self, source: random.Random) -> None:
        super().__init__(source)
        self.likelihoods: list[float] = []

    def flip(self, probability: float) -> bool:
        is_so = super().flip(probability)
        self.likelihoods.append(probability if is_so else 1 - probability)
        return is_so

    def one_of(self, options: Sequence[Any]) -> Any:
        self.likelihoods.append(1 / len(options))
        return super().one_of(options)

    def pick(self, weights: Mapping[Any, float]) -> Any:
        chosen = super().pick(weights)
        self.likelihoods.append(weights[chosen] / sum(weights.values()))
        return chosen


def test_the_probability_of_a_text_is_that_of_all_its_choices() -> None:
    dice = Recorder(random.Random(0))
    text = grammar._told(Clauses(dice), "a text")
    assert text.log_probability == pytest.approx(math.log(math.prod(dice.likelihoods)), rel=1e-12)
    assert len(dice.likelihoods) > 20


def test_throws_come_as_often_as_their_probability_says() -> None:
    dice, throws = Dice(random.Random(1)), 20000
    weights = {"a": 3.0, "b": 1.0, "never": 0.0}
    picked = Counter(dice.pick(weights) for _ in range(throws))
    flipped = sum(dice.flip(0.3) for _ in range(throws)) / throws
    four_errors = 4 * math.sqrt(0.25 / throws)
    assert picked["a"] / throws == pytest.approx(0.75, abs=four_errors)
    assert flipped == pytest.approx(0.3, abs=four_errors)
    assert picked["never"] == 0


def test_the_mean_surprise_is_the_entropy_of_the_choices() -> None:
    """-log p averages to the entropy over many throws: p is the probability with which things are drawn."""
    dice, throws = Dice(random.Random(2)), 40000
    weights = {"a": 0.7, "b": 0.2, "c": 0.1}
    for _ in range(throws):
        dice.pick(weights)
    entropy = -sum(p * math.log(p) for p in weights.values())
    assert -dice.log_probability / throws == pytest.approx(entropy, abs=0.02)


# -------------------------------------------------------------------------------------------------------------- corpus


def test_a_corpus_has_as_many_sentences_as_asked_for_and_ends_with_a_whole_text() -> None:
    documents = read_grammar(50, seed=2)
    count = sum(len(document.sentences) for document in documents)
    assert 50 <= count <= 53
    assert documents == [text.document for text in islice(grammar_texts(2), len(documents))]


@pytest.mark.parametrize(("sentences", "seed"), [(0, 0), (-1, 0), (5, -1)])
def test_impossible_corpora_are_refused(sentences: int, seed: int) -> None:
    with pytest.raises(CorpusError, match="grammar"):
        read_grammar(sentences, seed=seed)


# ------------------------------------------------------------------------------------------------------------ mentions


def test_mentions_hold_no_preposition_and_no_conjunction_at_their_edge(texts: list[GrammarText]) -> None:
    edges = set()
    for text in texts:
        upos = [tag for sentence in text.document.sentences for tag in sentence.upos or ()]
        edges |= {upos[mention.start] for mention in text.document.mentions or ()}
    assert edges == {"DET", "NOUN", "PROPN", "PRON", "ADJ", "NUM"}


def test_two_put_together_are_mentioned_each_and_both(texts: list[GrammarText]) -> None:
    found = 0
    for text in texts:
        forms, spans = words(text.document), {(m.start, m.stop) for m in text.document.mentions or ()}
        for start, stop in spans:
            if stop - start == 3 and forms[start + 1] == "and":
                assert {(start, start + 1), (start + 2, stop)} < spans
                found += 1
    assert found > 20
