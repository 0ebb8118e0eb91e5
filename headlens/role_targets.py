"""Where a role says that the words of a short text should look, and whether a head does: the places of each role."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headlens.analyzers.frequencies import Frequencies
from headlens.documents import Document, Sentence, joined
from headlens.encode import COMMAS, FULL_STOPS
from headlens.examples import LEAST_SHOWN
from headlens.gold.arcs import Arcs, syntax_arcs
from headlens.gold.coreference import Chunk, antecedents
from headlens.gold.phrases import phrasings
from headlens.gold.pronouns import pronoun_choices
from headlens.gold.scored_input import ScoredInput
from headlens.gold.shortlists import Shortlists
from headlens.records import Batch
from headlens.roles.role import HeadRole
from headlens.roles.table import Roles
from headlens.wording import family_of

Bools: TypeAlias = NDArray[np.bool_]
Floats: TypeAlias = NDArray[np.floating]
Ints: TypeAlias = NDArray[np.int64]
Head: TypeAlias = tuple[int, int]
Question: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...]]  # word, what it chooses among, what is right

NEAR = 2  # tokens away, as of position.local


@dataclass(frozen=True, eq=False)
class View:
    """A text as the model reads it alone: one sentence, or a stretch of whole sentences that coreference is read in."""

    text: Document
    scored: ScoredInput
    batch: Batch
    is_stretch: bool = False

    @cached_property
    def sentence(self) -> Sentence:
        """All words in one row."""
        if len(self.text.sentences) == 1:
            return self.text.sentences[0]
        text, spans = joined(self.text.sentences)
        words = tuple(word for sentence in self.text.sentences for word in sentence.words)
        return Sentence(words, text, spans, id=self.text.id)

    @property
    def visible(self) -> Bools:
        """[word, word_to]"""
        pairs = self.scored.present[:, None] & self.scored.present[None, :]
        return np.tril(pairs) if self.scored.is_causal else pairs

    @property
    def special(self) -> Ints:
        """[special]: positions of the special tokens."""
        return np.flatnonzero(self.batch.special[0].numpy())

    @property
    def is_split(self) -> Bools:
        """[word]: whether it has several tokens."""
        assert self.batch.words is not None
        ranges = self.batch.words[0].numpy()
        return np.asarray(ranges[:, 1] - ranges[:, 0] > 1)


class Aim(NamedTuple):
    """What a head is measured by."""

    role: str
    metrics: tuple[str, ...] = ()  # say what is right where annotation does; empty elsewhere


class Measured(NamedTuple):
    """What heads do at the places of a text."""

    strength: Floats  # [head]: mean share that goes where it should
    hits: Ints  # [head]: places at which nothing that could be chosen gets more
    choice: Ints  # [head, place]: what gets most
    is_hit: Bools  # [head, place]


@dataclass(frozen=True, eq=False)
class Places:
    """Where a role asks the words of one text to look, one entry a decision, or a word that has a target.

    `to` counts the words of the text and then its special tokens. Of a column it counts the words that attend, and
    `word` is the one attended to.
    """

    word: Ints  # [place]
    right: Bools  # [place, to]
    among: Bools  # [place, to]: what could be chosen
    is_column: bool = False

    def __len__(self) -> int:
        return self.word.size

    def measured(self, paid: Floats) -> Measured:
        """`paid` is [head, word, to]."""
        size = paid.shape[1]
        asked = paid[:, :, :size].swapaxes(1, 2)[:, self.word] if self.is_column else paid[:, self.word]
        share = (asked * self.right).sum(axis=-1).clip(max=1)  # words on the same characters ("im") are paid twice
        choice = np.where(self.among, asked, -1.0).argmax(axis=-1)
        is_hit = self.right[np.arange(len(self)), choice]
        return Measured(share.mean(axis=-1), is_hit.sum(axis=-1), choice, is_hit)

    def shows(self, strength: float, hits: int) -> bool:
        """Whether a head does here what its role says: right in half of the places, and enough to be seen."""
        return 2 * hits >= len(self) and strength >= LEAST_SHOWN

    def pairs(self, choice: Ints, is_hit: Bools) -> set[tuple[int, int]]:
        """From which word to which the head looks as it should; both arrays are [place]. Some lead to no word."""
        listed = zip(self.word.tolist(), choice.tolist(), is_hit.tolist(), strict=True)
        found = [(word, to) for word, to, is_right in listed if is_right]
        return {(to, word) for word, to in found} if self.is_column else set(found)


Targets: TypeAlias = dict[Aim, dict[int, Places]]  # by number of the text, where it has any

_OF_SEVERAL = frozenset({"coref", "choice"})  # families of which every metric of a role asks the same of a head
_BY_METRIC = frozenset({"subject_verb", "syntax", "pronoun_reference", "coreference"})


def aims_of(roles: Roles) -> dict[Head, Aim]:
    """Of heads with a label, by (layer, head)."""
    places = np.ndindex(roles.n_layers, roles.n_heads)
    labels = [label for layer, head in places if (label := roles.label(layer, head)) is not None]
    return {(label.layer, label.head): _aim(label, roles) for label in labels}


def _aim(label: HeadRole, roles: Roles) -> Aim:
    if label.role.id not in _BY_METRIC:
        return Aim(label.role.id)
    if family_of(label.metric) not in _OF_SEVERAL:
        return Aim(label.role.id, (label.metric,))
    held = {one.metric for one in roles.of(label.layer, label.head) if one.role.id == label.role.id}
    return Aim(label.role.id, tuple(sorted(held)))


def targets_of(aims: Iterable[Aim], views: Mapping[int, View], frequencies: Frequencies | None) -> Targets:
    """Every aim, also those that no text has a place for. `frequencies` of words are those of the whole corpus."""
    ordered = sorted(set(aims))
    sentences = {number: view for number, view in views.items() if not view.is_stretch}
    gold = _of_metrics({metric for aim in ordered for metric in aim.metrics}, views)
    found: Targets = {}
    for aim in ordered:
        if aim.metrics:
            every = {number: _decisions(aim, number, view, gold) for number, view in views.items()}
        else:
            every = {number: _places(aim.role, view, frequencies) for number, view in sentences.items()}
        found[aim] = {number: places for number, places in every.items() if len(places)}
    return found


# ------------------------------------------------------------------------------- roles that the words themselves show


def _places(role: str, view: View, frequencies: Frequencies | None) -> Places:
    if role == "adjacent_phrase":
        return _asking(_in_phrase(view), view)
    if role == "rare_word":
        return _asking(_rarest(view, frequencies) if frequencies is not None else [], view)
    right = _where(role, view)
    word = np.flatnonzero(right.any(axis=1))
    return Places(word, right[word], np.ones_like(right)[word])


def _where(role: str, view: View) -> Bools:
    """[word, to]"""
    if role in _SINKS:
        return view.scored.present[:, None] & _sinks(view, _SINKS[role])[None, :]
    pairs = _PAIRS[role](view) if role in _PAIRS else np.zeros_like(view.visible)
    return np.hstack([pairs & view.visible, np.zeros((len(pairs), view.special.size), dtype=bool)])


_SINKS: dict[str, tuple[str, ...]] = {
    "cls": ("cls",),
    "sep": ("sep",),
    "first_token": ("first",),
    "small_value_sink": ("first", "cls", "sep", "other_special"),
}


def _sinks(view: View, classes: Sequence[str]) -> Bools:
    """[to]: special tokens of these classes; where a text begins with none, its first word is the first token."""
    members = np.any([view.batch.token_classes[name][0].numpy() for name in classes], axis=0)
    words = np.zeros(view.scored.present.size, dtype=bool)
    words[view.scored.present.argmax()] = members[0] and 0 not in view.special
    return np.concatenate([words, members[view.special]])


def _at(*offsets: int) -> Callable[[View], Bools]:
    return lambda view: np.any([np.eye(view.scored.present.size, k=k, dtype=bool) for k in offsets], axis=0)


def _same_word(view: View) -> Bools:
    words = np.array([word.casefold() for word in view.sentence.words])
    return (words[:, None] == words[None, :]) & ~np.eye(words.size, dtype=bool)


def _after_earlier_copy(view: View) -> Bools:
    after = np.roll(np.tril(_same_word(view)), 1, axis=1)  # nothing is rolled around: the last column is empty
    return after & ~np.eye(len(after), dtype=bool)


def _among(is_target: Callable[[str], bool]) -> Callable[[View], Bools]:
    return lambda view: np.tile([is_target(word) for word in view.sentence.words], (len(view.sentence.words), 1))


def _is_punctuation(word: str) -> bool:
    return all(unicodedata.category(character).startswith("P") for character in word)


def _within_split_words(view: View) -> Bools:
    """From a word of several tokens to itself: attention between words cannot tell its pieces apart."""
    is_asked = view.is_split & (view.scored.asked if view.scored.is_causal else True)
    return np.diag(is_asked)


# What [word, word_to] a role looks at, as far as the model can see it
_PAIRS: dict[str, Callable[[View], Bools]] = {
    "previous_token": _at(-1),
    "previous_random_token": _at(-1),
    "next_token": _at(1),
    "self_token": _at(0),
    "local": _at(*range(-NEAR, NEAR + 1)),
    "duplicate_token": _same_word,
    "induction": _after_earlier_copy,
    "anti_induction": _after_earlier_copy,
    "full_stop": _among(FULL_STOPS.__contains__),
    "comma": _among(COMMAS.__contains__),
    "punctuation": _among(_is_punctuation),
    "subword": _within_split_words,
}


# --------------------------------------------------------------------------- roles that choose between certain words


def _asking(questions: Sequence[Question], view: View, *, is_column: bool = False) -> Places:
    size = view.scored.present.size + (0 if is_column else view.special.size)
    among, right = (np.zeros((len(questions), size), dtype=bool) for _ in range(2))
    for place, (_, candidates, answers) in enumerate(questions):
        among[place, list(candidates)] = True
        right[place, list(answers)] = True
    return Places(np.array([word for word, _, _ in questions], dtype=np.int64), right, among, is_column)


def _in_phrase(view: View) -> list[Question]:
    """Between the two neighbours of a word, of which one is of its phrase."""
    found = phrasings([view.sentence], {0: view.scored})
    if not found:
        return []
    with_left, possible = found[0].with_left, view.scored.candidates
    return [
        (word, (word - 1, word + 1), (word - 1 if with_left[word] else word + 1,))
        for word in range(1, len(with_left) - 1)
        if possible[word, word - 1] and possible[word, word + 1] and with_left[word] != with_left[word + 1]
    ]


def _rarest(view: View, frequencies: Frequencies) -> list[Question]:
    """As `analyzers.lexical.RareWords` asks: the rarest of what a word could choose, where that is rare at all."""
    counts, found = frequencies.of(view.sentence.words), list[Question]()
    for word, possible in enumerate(view.scored.candidates):
        candidates = np.flatnonzero(possible)
        rarest = candidates[counts[candidates] == counts[candidates].min()] if candidates.size else candidates
        if 0 < rarest.size < candidates.size and counts[rarest[0]] <= frequencies.most_of_rare:
            found.append((word, tuple(candidates.tolist()), tuple(rarest.tolist())))
    return found


def _decisions(aim: Aim, number: int, view: View, gold: Mapping[str, Mapping[int, dict[Question, bool]]]) -> Places:
    """What annotation asks; that the only candidate is chosen shows nothing, so it is not asked here."""
    asked: dict[Question, bool] = {}
    for metric in aim.metrics:
        asked |= gold[metric].get(number, {})
    questions = [question for question in asked if len(question[1]) > len(question[2])]
    return _asking(questions, view, is_column=any(asked.values()))


def _of_metrics(metrics: set[str], views: Mapping[int, View]) -> dict[str, dict[int, dict[Question, bool]]]:
    """By metric and number of the text: what is asked, and whether of the column of a word."""
    found: dict[str, dict[int, dict[Question, bool]]] = {metric: {} for metric in metrics}
    if not metrics or not views:
        return found
    sentences, stretches = (
        {number: view for number, view in views.items() if view.is_stretch == is_stretch}
        for is_stretch in (False, True)
    )
    arcs, chosen, mentioned = _arcs_of(sentences), _choices_of(sentences), _antecedents_of(stretches)
    candidates = {number: view.scored.candidates for number, view in sentences.items()}
    for metric, of_metric in found.items():
        listed = chain(_of_lists(chosen, metric), _of_lists(mentioned, metric))
        for number, question, is_column in chain(_of_arcs(arcs, metric, candidates), listed):
            of_metric.setdefault(number, {})[question] = is_column
    return found


def _scored(views: Mapping[int, View]) -> dict[int, ScoredInput]:
    return {number: view.scored for number, view in views.items()}


def _arcs_of(views: Mapping[int, View]) -> Arcs:
    # by number: what cannot be read is never looked at, whatever stands there
    listed = [views[number if number in views else min(views)].sentence for number in range(max(views, default=-1) + 1)]
    return syntax_arcs(listed, _scored(views))


def _choices_of(views: Mapping[int, View]) -> Shortlists:
    return pronoun_choices({number: view.text for number, view in views.items()}, _scored(views))


def _antecedents_of(views: Mapping[int, View]) -> Shortlists:
    texts = [views[number if number in views else min(views)].text for number in range(max(views, default=-1) + 1)]
    return antecedents([Chunk(0, text.sentences, text.mentions or ()) for text in texts], _scored(views))


def _of_arcs(arcs: Arcs, metric: str, candidates: Mapping[int, Bools]) -> Iterator[tuple[int, Question, bool]]:
    if metric not in arcs.metrics:
        return
    for place in np.flatnonzero(arcs.membership[:, arcs.metrics.index(metric)][arcs.label]).tolist():
        number, word, is_column = int(arcs.input[place]), int(arcs.word[place]), bool(arcs.is_column[place])
        possible = candidates[number][:, word] if is_column else candidates[number][word]
        yield number, (word, tuple(np.flatnonzero(possible).tolist()), (int(arcs.target[place]),)), is_column


def _of_lists(lists: Shortlists, metric: str) -> Iterator[tuple[int, Question, bool]]:
    if metric not in lists.metrics:
        return
    for place in np.flatnonzero(lists.counts_for[:, lists.metrics.index(metric)]).tolist():
        candidates, right = lists.candidates[place], lists.right[place]
        listed = tuple(candidates[candidates >= 0].tolist())
        yield int(lists.input[place]), (int(lists.word[place]), listed, tuple(candidates[right].tolist())), False
