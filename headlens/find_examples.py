"""Runs a model over short texts of a corpus and keeps those on which each head does best what its role says."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headlens.annotated import scored_inputs
from headlens.documents import Document, Sentence
from headlens.encode import COMMAS, FULL_STOPS, check_vocabulary, encode_words, max_length_of
from headlens.errors import CorpusError
from headlens.examples import Example, Examples, mean_of_largest, short_texts
from headlens.gold.arcs import Arcs, syntax_arcs
from headlens.gold.coreference import Chunk, antecedents
from headlens.gold.phrases import phrasings
from headlens.gold.pronouns import pronoun_choices
from headlens.gold.scored_input import ScoredInput
from headlens.gold.shortlists import Shortlists
from headlens.records import Batch, WordAttention
from headlens.roles.table import Roles
from headlens.word_pass import word_attention
from headlens.words import id_of, sentence_input

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Bools: TypeAlias = NDArray[np.bool_]
Floats: TypeAlias = NDArray[np.floating]
Head: TypeAlias = tuple[int, int]
Pair: TypeAlias = tuple[int, int]  # from which word, to which

MOST_EXAMPLES = 3072  # of a model, which keeps the file under 4 MB: one each for 48 layers of 64 heads
ENOUGH = 2  # words with a target that a text should have; our choice


def find_examples(
    network: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Sequence[Document],
    roles: Roles,
    *,
    is_causal: bool,
    most_texts: int = 64,
    most_words: int = 24,
    per_head: int = 3,
    seed: int = 0,
) -> Examples:
    """For every head the texts on which it is strongest, the best first.

    A head with a label is measured by what the words of a text pay, on average, to the targets of that role: the
    previous word, an earlier copy, the verb of a subject as annotated. Texts in which ENOUGH words have a target come
    before those in which fewer have; of equal ones the earlier comes first. A head without a label or with a broad
    one, or whose role has no target in any text, is measured by the mean over words of the largest share to a word.

    Every text is run by itself, so that neither padding nor the other texts change a digit.

    Parameters
    ----------
    network
        As `models.network_of` gives it: a model of one attention stack, in eval mode.
    corpus
        Annotated sentences are taken whole if they have at most `most_words` words; where none has, and of documents
        without annotation, stretches of text of as many words, up to the end of a sentence if there is one.
    most_texts
        How many are run. A seeded draw, in which texts with targets come first.
    per_head
        Fewer for models with more than MOST_EXAMPLES / `per_head` heads.

    Raises
    ------
    UnsupportedModel, CaptureError
        As `encode_words` and `word_attention`. A corpus without a text of two words that the model can read is no
        error; it gives no examples.
    """
    draw = np.random.default_rng(seed)
    views = _views(short_texts(corpus, most_words, draw), network, tokenizer, is_causal=is_causal)
    aims = _aims(roles)
    targets = _targets(set(aims.values()), views)
    chosen = _chosen(targets, draw.permutation(sorted(views)).tolist(), most_texts, per_head)
    best = _Best(max(1, min(per_head, MOST_EXAMPLES // (roles.n_layers * roles.n_heads))))
    shown = [aim for aim, of_aim in targets.items() if not of_aim.keys().isdisjoint(chosen)]
    for number in chosen:
        of_text = {aim: targets[aim].get(number) for aim in shown}
        for _, layers in word_attention(network, [views[number].batch]):
            for attention in layers:
                best.see(number, views[number], attention, aims, of_text)
    return Examples(tuple(best.in_order(views, id_of(tokenizer, "unk_token"))))


def unknown_words(batch: Batch, unknown: int | None) -> tuple[int, ...]:
    """Words of a text alone that hold the tokenizer's unknown token; `unknown` is its id, None where there is none."""
    assert batch.words is not None
    ids, ranges = batch.input_ids[0].tolist(), batch.words[0].tolist()
    return tuple(word for word, (start, stop) in enumerate(ranges) if unknown in ids[start:stop])


@dataclass(frozen=True, eq=False)
class _View:
    """A text of one sentence, as the model reads it alone."""

    text: Document
    scored: ScoredInput
    batch: Batch

    @property
    def sentence(self) -> Sentence:
        return self.text.sentences[0]

    @property
    def visible(self) -> Bools:
        """[word, word_to]"""
        pairs = self.scored.present[:, None] & self.scored.present[None, :]
        return np.tril(pairs) if self.scored.is_causal else pairs

    @property
    def special(self) -> NDArray[np.int64]:
        """[special]: positions of the special tokens."""
        return np.flatnonzero(self.batch.special[0].numpy())


def _views(
    texts: Sequence[Document],
    network: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    is_causal: bool,
) -> dict[int, _View]:
    """Those that can be read, by their number."""
    inputs = [sentence_input(text.sentences[0], number) for number, text in enumerate(texts)]
    room = max_length_of(network.config, tokenizer)
    try:
        encoded = encode_words(inputs, tokenizer, max_length=room, batch_tokens=1)  # one a batch
    except CorpusError:
        return {}
    check_vocabulary(encoded, network, type(network).__name__)
    scored = scored_inputs(encoded, is_causal=is_causal)
    batch_of = {int(batch.input_index[0]): batch for batch in encoded.batches if batch.input_index is not None}
    return {number: _View(texts[number], scored[number], batch_of[number]) for number in sorted(batch_of)}


# ------------------------------------------------------------------------------------------------------ the targets


class _Aim(NamedTuple):
    """What a head is measured by."""

    role: str
    metric: str  # says what the targets are where annotation does; "" elsewhere


@dataclass(frozen=True, eq=False)
class _Target:
    """Where the words of a text should look."""

    to: Bools  # [word, to]: all words of the text, and then its special tokens

    @property
    def is_enough(self) -> bool:
        return int(self.to.any(axis=1).sum()) >= ENOUGH

    def strength(self, paid: Floats) -> Floats:
        """[head]: mean over the words that have a target of what they pay to theirs; `paid` is [head, word, to]."""
        of_word = (paid * self.to).sum(axis=2).clip(max=1)  # words on the same characters ("im") are paid twice
        return np.asarray(of_word.sum(axis=1) / self.to.any(axis=1).sum())


Targets: TypeAlias = dict[_Aim, dict[int, _Target]]  # by number of the text, where it has any


def _aims(roles: Roles) -> dict[Head, _Aim]:
    """Of heads with a label; not every label says where to look."""
    places = np.ndindex(roles.n_layers, roles.n_heads)
    labels = [label for layer, head in places if (label := roles.label(layer, head)) is not None]
    return {
        (label.layer, label.head): _Aim(label.role.id, label.metric if label.role.id in _BY_METRIC else "")
        for label in labels
    }


def _targets(aims: Iterable[_Aim], views: Mapping[int, _View]) -> Targets:
    """Without the aims that no text has a target for."""
    ordered = sorted(aims)
    gold = _of_metrics({aim.metric for aim in ordered if aim.metric}, views)
    found: Targets = {}
    for aim in ordered:
        every = {number: _Target(_where(aim, number, view, gold)) for number, view in views.items()}
        if having := {number: target for number, target in every.items() if target.to.any()}:
            found[aim] = having
    return found


def _where(aim: _Aim, number: int, view: _View, gold: Mapping[str, Mapping[int, set[Pair]]]) -> Bools:
    """[word, to]"""
    if aim.role in _SINKS:
        return view.scored.present[:, None] & _sinks(view, _SINKS[aim.role])[None, :]
    pairs = np.zeros_like(view.visible)
    if aim.role in _PAIRS:
        pairs = _PAIRS[aim.role](view)
    elif aim.metric:
        pairs[tuple(np.array(sorted(gold.get(aim.metric, {}).get(number, ())), dtype=np.int64).reshape(-1, 2).T)] = True
    return np.hstack([pairs & view.visible, np.zeros((len(pairs), view.special.size), dtype=bool)])


_SINKS: dict[str, tuple[str, ...]] = {
    "cls": ("cls",),
    "sep": ("sep",),
    "first_token": ("first",),
    "small_value_sink": ("first", "cls", "sep", "other_special"),
}
_BY_METRIC = frozenset({"subject_verb", "syntax", "pronoun_reference", "coreference"})


def _sinks(view: _View, classes: Sequence[str]) -> Bools:
    """[to]: special tokens of these classes; where a text begins with none, its first word is the first token."""
    members = np.any([view.batch.token_classes[name][0].numpy() for name in classes], axis=0)
    words = np.zeros(view.scored.present.size, dtype=bool)
    words[view.scored.present.argmax()] = members[0] and 0 not in view.special
    return np.concatenate([words, members[view.special]])


def _at(offset: int) -> Callable[[_View], Bools]:
    return lambda view: np.eye(view.scored.present.size, k=offset, dtype=bool)


def _same_word(view: _View) -> Bools:
    words = np.array([word.casefold() for word in view.sentence.words])
    return (words[:, None] == words[None, :]) & ~np.eye(words.size, dtype=bool)


def _after_earlier_copy(view: _View) -> Bools:
    after = np.roll(np.tril(_same_word(view)), 1, axis=1)  # nothing is rolled around: the last column is empty
    return after & ~np.eye(len(after), dtype=bool)


def _among(is_target: Callable[[str], bool]) -> Callable[[_View], Bools]:
    return lambda view: np.tile([is_target(word) for word in view.sentence.words], (len(view.sentence.words), 1))


def _is_punctuation(word: str) -> bool:
    return all(unicodedata.category(character).startswith("P") for character in word)


def _in_phrase(view: _View) -> Bools:
    """The neighbour in the same phrase, from words whose other neighbour is outside of it."""
    found = phrasings([view.sentence], {0: view.scored})
    size = len(view.sentence.words)
    left = found[0].with_left if found else np.zeros(size, dtype=bool)
    right = np.append(left[1:], False)
    return (
        np.eye(size, k=-1, dtype=bool) & (left & ~right)[:, None]
        | np.eye(size, k=1, dtype=bool) & (right & ~left)[:, None]
    )


# What [word, word_to] a role looks at, as far as the model can see it
_PAIRS: dict[str, Callable[[_View], Bools]] = {
    "previous_token": _at(-1),
    "previous_random_token": _at(-1),
    "next_token": _at(1),
    "self_token": _at(0),
    "duplicate_token": _same_word,
    "induction": _after_earlier_copy,
    "anti_induction": _after_earlier_copy,
    "full_stop": _among(FULL_STOPS.__contains__),
    "comma": _among(COMMAS.__contains__),
    "punctuation": _among(_is_punctuation),
    "adjacent_phrase": _in_phrase,
}


def _of_metrics(metrics: set[str], views: Mapping[int, _View]) -> dict[str, dict[int, set[Pair]]]:
    """By metric and number of the text: from which word annotation says that which word should be chosen."""
    if not metrics or not views:
        return {}
    scored = {number: view.scored for number, view in views.items()}
    texts = {number: view.text for number, view in views.items()}
    # by number: what cannot be read is never looked at, whatever stands there
    listed = [texts.get(number, texts[min(texts)]) for number in range(max(texts) + 1)]
    arcs = syntax_arcs([text.sentences[0] for text in listed], scored)
    mentioned = antecedents([Chunk(0, text.sentences, text.mentions or ()) for text in listed], scored)
    chosen = pronoun_choices(texts, scored)
    found: dict[str, dict[int, set[Pair]]] = {metric: {} for metric in metrics}
    for metric, of_metric in found.items():
        for number, pair in chain(_of_arcs(arcs, metric), _of_lists(mentioned, metric), _of_lists(chosen, metric)):
            of_metric.setdefault(number, set()).add(pair)
    return found


def _of_arcs(arcs: Arcs, metric: str) -> Iterator[tuple[int, Pair]]:
    if metric not in arcs.metrics:
        return
    for place in np.flatnonzero(arcs.membership[:, arcs.metrics.index(metric)][arcs.label]):
        word, target = int(arcs.word[place]), int(arcs.target[place])
        yield int(arcs.input[place]), ((target, word) if arcs.is_column[place] else (word, target))


def _of_lists(lists: Shortlists, metric: str) -> Iterator[tuple[int, Pair]]:
    if metric not in lists.metrics:
        return
    for place in np.flatnonzero(lists.counts_for[:, lists.metrics.index(metric)]):
        for target in lists.candidates[place][lists.right[place]].tolist():
            yield int(lists.input[place]), (int(lists.word[place]), target)


def _chosen(targets: Targets, drawn: Sequence[int], most_texts: int, per_head: int) -> list[int]:
    """In the order of the draw, but first what the aims need: a text for each of them, then a second one, and on."""
    chosen: dict[int, None] = {}
    for wanted in range(1, per_head + 1):
        for of_aim in targets.values():
            good = [number for number in drawn if number in of_aim and of_aim[number].is_enough]
            able = good or [number for number in drawn if number in of_aim]
            if sum(number in chosen for number in able) < wanted:
                chosen |= dict.fromkeys([number for number in able if number not in chosen][:1])
    chosen |= dict.fromkeys(drawn)
    return sorted(list(chosen)[:most_texts])


# --------------------------------------------------------------------------------------------------- the best of them


class _Kept(NamedTuple):
    """One head on one text."""

    is_enough: bool
    strength: float
    earlier: int  # the number of the text, negative
    place: Head
    why: str
    probs: Floats  # [word, word_to]
    to_special: Floats  # [word, special]

    @property
    def rank(self) -> tuple[bool, float, int]:
        return self.is_enough, round(self.strength, 6), self.earlier  # what differs less differs by rounding


class _Best:
    """The best few of each head: all that is kept of the attention that streams by."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: dict[Head, list[_Kept]] = {}

    def see(
        self,
        number: int,
        view: _View,
        attention: WordAttention,
        aims: Mapping[Head, _Aim],
        of_text: Mapping[_Aim, _Target | None],
    ) -> None:
        """One layer on one text; `of_text` has all aims that any of the texts has a target for."""
        probs = attention.probs[0].double().cpu().numpy()
        to_special = attention.to_special[0].double().cpu().numpy()
        paid, largest = np.concatenate([probs, to_special], axis=-1), mean_of_largest(probs, view.scored.present)
        of_aim = {aim: target.strength(paid) for aim, target in of_text.items() if target is not None}
        for head in range(len(probs)):
            place = (attention.layer, head)
            aim = aims.get(place)
            if aim is None or aim not in of_text:
                why = "broad" if aim is not None and aim.role == "broad" else ""
                self._add(_Kept(True, float(largest[head]), -number, place, why, probs[head], to_special[head]))
            elif (target := of_text[aim]) is not None:
                strength = float(of_aim[aim][head])
                self._add(_Kept(target.is_enough, strength, -number, place, aim.role, probs[head], to_special[head]))

    def _add(self, kept: _Kept) -> None:
        listed = self._kept.setdefault(kept.place, [])
        if len(listed) < self.most or kept.rank > listed[-1].rank:
            listed.append(kept._replace(probs=kept.probs.copy(), to_special=kept.to_special.copy()))
            listed.sort(key=lambda one: one.rank, reverse=True)
            del listed[self.most :]

    def in_order(self, views: Mapping[int, _View], unknown: int | None) -> Iterator[Example]:
        for place in sorted(self._kept):
            for kept in self._kept[place]:
                view = views[-kept.earlier]
                unknowns = unknown_words(view.batch, unknown)
                yield Example.of_attention(
                    place, view.sentence, kept.probs, kept.to_special, unknowns, kept.strength, kept.why
                )
