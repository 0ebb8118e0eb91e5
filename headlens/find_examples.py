"""Runs a model over short texts of a corpus and keeps those in which each head does best what its role says."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headlens.analyzers.frequencies import Frequencies
from headlens.annotated import scored_inputs
from headlens.documents import Document
from headlens.encode import check_vocabulary, encode_words, max_length_of
from headlens.errors import CorpusError
from headlens.examples import Example, Examples, Unshown, mean_of_largest, short_stretches, short_texts
from headlens.records import Batch, WordAttention
from headlens.role_targets import Aim, Head, Places, Targets, View, aims_of, targets_of
from headlens.roles.table import Roles
from headlens.word_pass import word_attention
from headlens.words import chunk_input, id_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Floats: TypeAlias = NDArray[np.floating]

MOST_EXAMPLES = 3072  # of a model, which keeps the file under 4 MB: one each for 48 layers of 64 heads
TEXTS_OF_A_ROLE = 64  # that are run for each role of a head, where there are so many; our choice
LEAST_TEXTS = 64  # that are run in any case; our choice

_WITHOUT_TARGETS = frozenset({"broad", "position_alone"})  # roles that no word more than another shows


def find_examples(
    network: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Sequence[Document],
    roles: Roles,
    *,
    is_causal: bool,
    most_texts: int = 256,
    most_words: int = 24,
    per_head: int = 3,
    seed: int = 0,
) -> Examples:
    """For every head the texts on which it is strongest, the best first.

    A head with a label is measured at the places of that role: the words that have a previous one, an earlier copy, or
    a decision that annotation asks of them. Its examples are texts that show the role (`role_targets.Places.shows`),
    by the mean share that goes there; of equal ones that with more places comes first, then the earlier. Where none of
    the texts shows it the head is among the `unshown`. Heads without a label, or with one that says nothing of where
    to look, are measured by the mean over words of the largest share to a word.

    Every text is run by itself, so that neither padding nor the other texts change a digit.

    Parameters
    ----------
    network
        As `models.network_of` gives it: a model of one attention stack, in eval mode.
    corpus
        Annotated sentences are taken whole if they have at most `most_words` words; where none has, and of documents
        without annotation, stretches of text of as many words, up to the end of a sentence if there is one. Coreference
        is asked in stretches of whole sentences of as many words.
    most_texts
        How many are run. A seeded draw, in which texts with places for the roles come first.
    per_head
        Fewer for models with more than MOST_EXAMPLES / `per_head` heads.

    Raises
    ------
    UnsupportedModel, CaptureError
        As `encode_words` and `word_attention`. A corpus without a text of two words that the model can read is no
        error; it gives no examples.
    """
    draw = np.random.default_rng(seed)
    texts = short_texts(corpus, most_words, draw)
    stretches = short_stretches(corpus, most_words, draw)
    views = _views([*texts, *stretches], len(texts), network, tokenizer, is_causal=is_causal)
    aims = {head: aim for head, aim in aims_of(roles).items() if aim.role not in _WITHOUT_TARGETS}
    targets = targets_of(aims.values(), views, _frequencies(corpus))
    drawn = draw.permutation(sorted(views)).tolist()
    chosen = _chosen(targets, drawn, [number for number in drawn if not views[number].is_stretch], most_texts)
    best = _Best(max(1, min(per_head, MOST_EXAMPLES // (roles.n_layers * roles.n_heads))), aims)
    for number in chosen:
        of_text = {aim: of_aim[number] for aim, of_aim in targets.items() if number in of_aim}
        for _, layers in word_attention(network, [views[number].batch]):
            for attention in layers:
                best.see(number, views[number], attention, of_text)
    unshown = tuple(best.unshown(len(chosen))) if chosen else ()
    return Examples(tuple(best.in_order(views, id_of(tokenizer, "unk_token"))), unshown)


def unknown_words(batch: Batch, unknown: int | None) -> tuple[int, ...]:
    """Words of a text alone that hold the tokenizer's unknown token; `unknown` is its id, None where there is none."""
    assert batch.words is not None
    ids, ranges = batch.input_ids[0].tolist(), batch.words[0].tolist()
    return tuple(word for word, (start, stop) in enumerate(ranges) if unknown in ids[start:stop])


def _views(
    texts: Sequence[Document],
    stretches_from: int,
    network: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    is_causal: bool,
) -> dict[int, View]:
    """Those that can be read, by their number."""
    inputs = [chunk_input(text.sentences, number) for number, text in enumerate(texts)]
    room = max_length_of(network.config, tokenizer)
    try:
        encoded = encode_words(inputs, tokenizer, max_length=room, batch_tokens=1)  # one a batch
    except CorpusError:
        return {}
    check_vocabulary(encoded, network, type(network).__name__)
    scored = scored_inputs(encoded, is_causal=is_causal)
    batch_of = {int(batch.input_index[0]): batch for batch in encoded.batches if batch.input_index is not None}
    return {
        number: View(texts[number], scored[number], batch_of[number], is_stretch=number >= stretches_from)
        for number in sorted(batch_of)
    }


def _frequencies(corpus: Sequence[Document]) -> Frequencies | None:
    """Of the words of annotated sentences, as rare words are scored; None where there are none."""
    sentences = [sentence for document in corpus for sentence in document.sentences]
    return Frequencies.of_sentences(sentences) if sentences else None


def _chosen(targets: Targets, drawn: Sequence[int], plain: Sequence[int], most_texts: int) -> list[int]:
    """What the aims need, in the order of the draw: a text for each of them, then a second one, and on.

    Then such as are no stretches, `plain`, up to LEAST_TEXTS.
    """
    chosen: dict[int, None] = {}
    able = [[number for number in drawn if number in of_aim] for of_aim in targets.values()]
    for wanted in range(1, TEXTS_OF_A_ROLE + 1):
        for of_aim in able:
            if sum(number in chosen for number in of_aim) < wanted:
                chosen |= dict.fromkeys([number for number in of_aim if number not in chosen][:1])
    spare = [number for number in plain if number not in chosen]
    return sorted([*chosen, *spare[: max(0, LEAST_TEXTS - len(chosen))]][:most_texts])


# --------------------------------------------------------------------------------------------------- the best of them


class _Kept(NamedTuple):
    """One head on one text."""

    strength: float
    asked: int  # places of its role; 0 of a head that is measured by its largest shares
    right: int
    earlier: int  # the number of the text, negative
    place: Head
    pairs: Collection[tuple[int, int]]  # of words, whose arcs show the role
    probs: Floats  # [word, word_to]
    to_special: Floats  # [word, special]

    @property
    def rank(self) -> tuple[float, int, int]:
        return round(self.strength, 6), self.asked, self.earlier  # what differs less differs by rounding


class _Best:
    """The best few of each head: all that is kept of the attention that streams by."""

    def __init__(self, most: int, aims: Mapping[Head, Aim]) -> None:
        self.most, self.aims = most, aims
        self._kept: dict[Head, list[_Kept]] = {}
        self._reached: dict[Head, list[float]] = {}  # strength in every text that has places for the role

    def see(self, number: int, view: View, attention: WordAttention, of_text: Mapping[Aim, Places]) -> None:
        """One layer on one text; `of_text` has the aims that the text has places for."""
        probs = attention.probs[0].double().cpu().numpy()
        to_special = attention.to_special[0].double().cpu().numpy()
        numbers = range(len(probs)) if attention.head_ids is None else attention.head_ids
        heads_of: dict[Aim | None, list[int]] = {}
        for head in range(len(probs)):
            heads_of.setdefault(self.aims.get((attention.layer, numbers[head])), []).append(head)
        for aim, heads in heads_of.items():
            if aim is None and not view.is_stretch:
                found = _by_largest(probs[heads], view)
            elif aim is not None and aim in of_text:
                found = _at_places(np.concatenate([probs, to_special], axis=-1)[heads], of_text[aim])
            else:
                continue
            for head, one in zip(heads, found, strict=True):
                place = (attention.layer, numbers[head])
                if aim is not None:
                    self._reached.setdefault(place, []).append(one.strength)
                if one.is_shown:
                    counted = (one.strength, one.asked, one.right, -number, place, one.pairs)
                    self._add(_Kept(*counted, probs[head], to_special[head]))

    def _add(self, kept: _Kept) -> None:
        listed = self._kept.setdefault(kept.place, [])
        if len(listed) < self.most or kept.rank > listed[-1].rank:
            listed.append(kept._replace(probs=kept.probs.copy(), to_special=kept.to_special.copy()))
            listed.sort(key=lambda one: one.rank, reverse=True)
            del listed[self.most :]

    def in_order(self, views: Mapping[int, View], unknown: int | None) -> Iterator[Example]:
        for place in sorted(self._kept):
            why = self.aims[place].role if place in self.aims else ""
            for kept in self._kept[place]:
                view = views[-kept.earlier]
                unknowns = unknown_words(view.batch, unknown)
                example = Example.of_attention(
                    place, view.sentence, kept.probs, kept.to_special, unknowns, kept.strength, why
                )
                yield example.showing(kept.pairs, asked=kept.asked, right=kept.right)

    def unshown(self, run: int) -> Iterator[Unshown]:
        """Heads with a role that none of the texts shows that were run."""
        for place in sorted(self.aims.keys() - self._kept.keys()):
            reached = self._reached.get(place, [])
            yield Unshown(*place, self.aims[place].role, run, len(reached), max(reached, default=0.0))


class _Found(NamedTuple):
    """What one head does on a text."""

    strength: float
    is_shown: bool = True
    asked: int = 0
    right: int = 0
    pairs: Collection[tuple[int, int]] = ()


def _by_largest(probs: Floats, view: View) -> Iterator[_Found]:
    """`probs` is [head, word, word_to]."""
    return map(_Found, mean_of_largest(probs, view.scored.present).tolist())


def _at_places(paid: Floats, places: Places) -> Iterator[_Found]:
    """`paid` is [head, word, to]."""
    measured = places.measured(paid)
    for head, (strength, hits) in enumerate(zip(measured.strength.tolist(), measured.hits.tolist(), strict=True)):
        is_shown = places.shows(strength, hits)
        pairs = places.pairs(measured.choice[head], measured.is_hit[head]) if is_shown else ()
        yield _Found(strength, is_shown, len(places), hits, pairs)
