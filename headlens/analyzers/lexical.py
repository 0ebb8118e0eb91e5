"""Which heads look at rare words, at words of one part of speech, and at other words with the same lemma."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped
from numpy.typing import NDArray
from torch import Tensor

from headlens.analyzers.base import Scorer, Sums, WordAnalyzer
from headlens.analyzers.frequencies import Frequencies
from headlens.analyzers.subwords import Subwords
from headlens.documents import Sentence
from headlens.gold.scored_input import ScoredInput
from headlens.pooling import candidates
from headlens.records import Batch, WordAttention
from headlens.scores import Metric

RAREST, TWO_RAREST = "lexical.rarest_word", "lexical.two_rarest_words"
TO_TAG, FROM_TAG = "lexical.to_upos", "lexical.from_upos"
SAME_LEMMA, OTHER_FORM = "lexical.same_lemma", "lexical.same_lemma_other_form"
SAME_LEMMA_STRONGEST = "lexical.same_lemma_strongest"

FEWEST_OF_TAG = 30  # words; a part of speech with fewer in the corpus gives no score
OPEN_CLASSES = frozenset({"ADJ", "ADV", "INTJ", "NOUN", "PROPN", "VERB"})  # universaldependencies.org/u/pos
NOT_ANNOTATED = "_"

LONGEST, PREVIOUS, NEXT, FIRST = "longest word", "previous word", "next word", "first word"

_NONE = -1  # where a word has no tag, or no lemma


def lexical(
    sentences: Sequence[Sentence],
    scored: Mapping[int, ScoredInput],
    *,
    counts: Mapping[str, object] | None = None,
) -> tuple[Scorer, ...]:
    """The analyzers of this family for which the sentences have the annotation.

    Parameters
    ----------
    scored
        By input, for those sentences that the model reads.
    counts
        How often words occur: numbers by form, in whatever letters. None counts them in `sentences`, whether the model
        reads them or not.
    """
    frequencies = Frequencies.of_sentences(sentences) if counts is None else Frequencies.listed(counts)
    frequency_of = {number: frequencies.of(sentences[number].words) for number in scored}
    analyzers: list[Scorer] = [Subwords(), RareWords(frequency_of, frequencies.most_of_rare)]
    if tags := frequent_tags(sentences, scored):
        analyzers.append(PartsOfSpeech(tags, numbered_tags(sentences, scored, tags)))
    lemma_of, form_of = content_words(sentences, scored)
    if lemma_of:
        analyzers.append(SameLemma(lemma_of, form_of))
    return tuple(analyzers)


# ---------------------------------------------------------------------------------------------------------- rare words


class RareWords(WordAnalyzer):
    """Share of words whose strongest candidate is the rarest one, or one of the two rarest (Voita et al. 2019).

    What can be rarest are the words that can be chosen from a word: in an encoder the others of its sentence, in a
    decoder the earlier ones. All that are equally rare are right. A word is asked if its rarest candidate is outside
    the most frequent forms of the language, and if there is a candidate that would be wrong.

    Chance is a head that attends to all tokens alike, with a draw among equals: to it the strongest are the words of
    the most tokens, which are often the rare ones.
    """

    name = "rare_words"
    metrics = (
        Metric(
            RAREST,
            "The rarest word",
            "Share of words whose strongest word is the least frequent one that they can attend to.",
            "share",
        ),
        Metric(
            TWO_RAREST,
            "The two rarest words",
            "Share of words whose strongest word is one of the two least frequent ones that they can attend to.",
            "share",
        ),
    )
    without_macro = frozenset(metric.name for metric in metrics)

    def __init__(self, frequency_of: Mapping[int, NDArray[np.float64]], most: float) -> None:
        """`frequency_of` [word] by input; `most`: the largest count of a word that is rare."""
        self.frequency_of, self.most = frequency_of, most

    def observe(self, attention: WordAttention, batch: Batch) -> Sums:
        causal = attention.is_causal
        one, two = (self._answers(batch, count, causal) for count in (1, 2))
        return {
            "hits": torch.stack([_hits(attention, one), _hits(attention, two)], dim=-1),
            "asked": torch.stack([_asked(one), _asked(two)], dim=-1),
            "by_chance": batch.derived(
                f"rare.by_chance {causal}",
                lambda b: torch.stack([_hits_by_chance(b, answers, causal) for answers in (one, two)], dim=-1),
            ),
        }

    def score(self, sums: Sums) -> dict[str, Tensor]:
        shares = sums["hits"] / sums["asked"]
        return {RAREST: shares[..., 0], TWO_RAREST: shares[..., 1]}

    def support(self, sums: Sums) -> dict[str, Tensor]:
        return {RAREST: sums["asked"][..., 0], TWO_RAREST: sums["asked"][..., 1]}

    def chance(self, uniform: Sums) -> dict[str, Tensor]:
        return self.score({**uniform, "hits": uniform["by_chance"]})

    def _answers(self, batch: Batch, count: int, is_causal: bool) -> Bool[Tensor, "batch word word_to"]:
        """From each word that is asked, the `count` rarest candidates and all that are as rare as they."""
        return batch.derived(f"rare.answers {count} {is_causal}", lambda b: self._rarest(b, count, is_causal))

    def _rarest(self, batch: Batch, count: int, is_causal: bool) -> Bool[Tensor, "batch word word_to"]:
        pairs = candidates(batch, is_causal)
        frequency = _padded(batch, self.frequency_of, np.inf)[:, None].masked_fill(~pairs, torch.inf)
        ascending = frequency.sort(dim=-1).values
        limit = ascending[..., min(count, ascending.shape[-1]) - 1, None]  # without so many candidates: infinite
        answers = pairs & (frequency <= limit)
        is_asked = (ascending[..., :1] <= self.most) & (answers != pairs).any(dim=-1, keepdim=True)
        return answers & is_asked


def rare_word_rivals(
    analyzer: RareWords, batches: Iterable[Batch], sentences: Sequence[Sentence], *, is_causal: bool
) -> dict[str, dict[str, float]]:
    """What rules that know nothing of frequency would score, by rule and metric; NaN where no word is asked.

    The rules are the word of the most characters, and the one before, the one after, and the first of all; of equals,
    and where there is no such word, the first.
    """
    rules = (LONGEST, PREVIOUS, FIRST) if is_causal else (LONGEST, PREVIOUS, NEXT, FIRST)
    lengths = {number: np.array([float(len(word)) for word in one.words]) for number, one in enumerate(sentences)}
    totals = dict[str, Tensor]()
    for batch in batches:
        for key, value in analyzer.observe(_by_rules(batch, rules, lengths, is_causal), batch).items():
            totals[key] = totals.get(key, torch.zeros(())) + value.double().sum(dim=0)
    scores = analyzer.score(totals)
    return {rule: {name: float(value[place]) for name, value in scores.items()} for place, rule in enumerate(rules)}


def _by_rules(
    batch: Batch, rules: Sequence[str], lengths: Mapping[int, NDArray[np.float64]], is_causal: bool
) -> WordAttention:
    """Attention whose heads follow a rule each."""
    length = _padded(batch, lengths, 0.0)
    size, words = length.shape
    position = torch.arange(words, device=length.device)
    step = position[None, :] - position[:, None]
    weights = {
        LONGEST: length[:, None, :].expand(-1, words, -1),
        PREVIOUS: (step == -1).double().expand(size, -1, -1),
        NEXT: (step == 1).double().expand(size, -1, -1),
        FIRST: (position == 0).double().expand(size, words, -1),
    }
    probs = torch.stack([weights[rule] for rule in rules], dim=1)
    nothing = probs.new_zeros(*probs.shape[:3], 0)
    return WordAttention(0, probs, nothing, candidates(batch, is_causal), is_causal)


# ----------------------------------------------------------------------------------------------------- parts of speech


class PartsOfSpeech(WordAnalyzer):
    """How a head's attention between words divides by part of speech of the word attended to, and attending.

    Vig & Belinkov 2019, equation 3: the attention to (or from) words with a tag, over all attention between words. A
    word's attention to itself is left out, and so is a causal model's to the first token, unless it is a special one.
    Chance, the share of a head that attends to all tokens alike, is the share that the tag has in the corpus.
    """

    name = "parts_of_speech"

    def __init__(self, tags: Sequence[str], tag_of: Mapping[int, NDArray[np.int64]]) -> None:
        """`tag_of` [word] by input, an index into `tags`, or -1 for any other tag."""
        self.tags, self.tag_of = tuple(tags), tag_of
        self.metrics = tuple(
            Metric(
                f"{stem}[{tag}]",
                f"Attention {way} {tag}",
                f"Share of the attention between different words that {goes} words tagged {tag}.",
                "share",
            )
            for stem, way, goes in ((TO_TAG, "to", "goes to"), (FROM_TAG, "from", "comes from"))
            for tag in self.tags
        )
        self.without_macro = frozenset(metric.name for metric in self.metrics)

    def observe(self, attention: WordAttention, batch: Batch) -> Sums:
        causal = attention.is_causal
        pairs = batch.derived(f"tags.pairs {causal}", lambda b: self._pairs(b, causal))
        members = batch.derived("tags.members", self._members)
        paid = attention.probs * pairs[:, None]
        received, given = paid.sum(dim=-2).double(), paid.sum(dim=-1).double()  # [batch, head, word]
        return {
            "to": received @ members,
            "from": given @ members,
            "between": given.sum(dim=-1),
            "rows": batch.derived(f"tags.rows {causal}", lambda b: self._rows(b, causal)),
        }

    def score(self, sums: Sums) -> dict[str, Tensor]:
        between = sums["between"][..., None]
        return self._by_metric(sums["to"] / between, sums["from"] / between)

    def support(self, sums: Sums) -> dict[str, Tensor]:
        return self._by_metric(sums["rows"][..., 0], sums["rows"][..., 1])

    def _by_metric(self, to: Tensor, origin: Tensor) -> dict[str, Tensor]:
        both = torch.cat([to, origin], dim=-1)
        return {metric.name: both[..., place] for place, metric in enumerate(self.metrics)}

    def _members(self, batch: Batch) -> Float[Tensor, "batch word tag"]:
        tags = _padded(batch, self.tag_of, _NONE)
        return (tags[..., None] == torch.arange(len(self.tags), device=tags.device)).double()

    def _pairs(self, batch: Batch, is_causal: bool) -> Bool[Tensor, "batch word word_to"]:
        """Candidates in the inputs that are tagged."""
        assert batch.input_index is not None
        tagged = torch.tensor([number in self.tag_of for number in batch.input_index.tolist()])
        return candidates(batch, is_causal) & tagged.to(batch.input_ids.device)[:, None, None]

    def _rows(self, batch: Batch, is_causal: bool) -> Float[Tensor, "batch head=1 tag both"]:
        """How many words have a candidate with a tag, and how many with the tag have a candidate."""
        pairs, members = self._pairs(batch, is_causal).double(), self._members(batch)
        to = (pairs @ members > 0).sum(dim=1)
        origin = (pairs.any(dim=-1)[..., None] * members).sum(dim=1)
        return torch.stack([to.double(), origin], dim=-1)[:, None]


def frequent_tags(sentences: Sequence[Sentence], scored: Mapping[int, ScoredInput]) -> tuple[str, ...]:
    """The tags of at least `FEWEST_OF_TAG` words that the model reads, in alphabetical order."""
    counts = Counter[str]()
    for number, one in scored.items():
        tags = sentences[number].upos or ()
        counts.update(tag for tag, is_there in zip(tags, one.present.tolist(), strict=False) if is_there)
    del counts[NOT_ANNOTATED]
    return tuple(sorted(tag for tag, count in counts.items() if count >= FEWEST_OF_TAG))


def numbered_tags(
    sentences: Sequence[Sentence], scored: Mapping[int, ScoredInput], tags: Sequence[str]
) -> dict[int, NDArray[np.int64]]:
    """[word] by input, for those that are tagged: an index into `tags`, or -1."""
    place = {tag: index for index, tag in enumerate(tags)}
    return {
        number: np.array([place.get(tag, _NONE) for tag in upos], dtype=np.int64)
        for number in scored
        if (upos := sentences[number].upos) is not None
    }


# ---------------------------------------------------------------------------------------------------------- same lemma


class SameLemma(WordAnalyzer):
    """Attention of a content word to the others of its input that have the same lemma; of a decoder to earlier ones.

    Words that have no such candidate are not asked. Of the share of `OTHER_FORM` are the words alone that have a
    candidate with the lemma and another form. Chance of the strongest word is as for rare words.
    """

    name = "same_lemma"
    metrics = (
        Metric(
            SAME_LEMMA,
            "Attention to the same lemma",
            "Mean share of a content word's attention to other words with its lemma, where it can attend to one.",
            "share",
        ),
        Metric(
            OTHER_FORM,
            "Attention to the same lemma in another form",
            "Mean share of a content word's attention to words with its lemma and another form, where it can attend "
            "to one.",
            "share",
        ),
        Metric(
            SAME_LEMMA_STRONGEST,
            "Same lemma is strongest",
            "Share of content words whose strongest word has their lemma, where they can attend to one.",
            "share",
        ),
    )
    without_macro = frozenset(metric.name for metric in metrics)

    def __init__(self, lemma_of: Mapping[int, NDArray[np.int64]], form_of: Mapping[int, NDArray[np.int64]]) -> None:
        """[word] by input: numbers that tell lemmas apart, -1 for words that count for nothing; and forms."""
        self.lemma_of, self.form_of = lemma_of, form_of

    def observe(self, attention: WordAttention, batch: Batch) -> Sums:
        causal = attention.is_causal
        same = batch.derived(f"lemma.same {causal}", lambda b: self._same(b, causal))
        other = batch.derived(f"lemma.other {causal}", lambda b: self._other(b, causal))
        paid = [torch.einsum("bhij,bij->bh", attention.probs, pairs.to(attention.probs)) for pairs in (same, other)]
        return {
            "paid": torch.stack(paid, dim=-1).double(),
            "asked": torch.stack([_asked(same), _asked(other)], dim=-1),
            "hits": _hits(attention, same),
            "by_chance": batch.derived(f"lemma.by_chance {causal}", lambda b: _hits_by_chance(b, same, causal)),
        }

    def score(self, sums: Sums) -> dict[str, Tensor]:
        paid = sums["paid"] / sums["asked"]
        return {
            SAME_LEMMA: paid[..., 0],
            OTHER_FORM: paid[..., 1],
            SAME_LEMMA_STRONGEST: sums["hits"] / sums["asked"][..., 0],
        }

    def support(self, sums: Sums) -> dict[str, Tensor]:
        same, other = sums["asked"].unbind(dim=-1)
        return {SAME_LEMMA: same, OTHER_FORM: other, SAME_LEMMA_STRONGEST: same}

    def chance(self, uniform: Sums) -> dict[str, Tensor]:
        return self.score({**uniform, "hits": uniform["by_chance"]})

    def _same(self, batch: Batch, is_causal: bool) -> Bool[Tensor, "batch word word_to"]:
        lemma = _padded(batch, self.lemma_of, _NONE)
        counts = (lemma != _NONE)[:, :, None]
        return candidates(batch, is_causal) & (lemma[:, :, None] == lemma[:, None, :]) & counts

    def _other(self, batch: Batch, is_causal: bool) -> Bool[Tensor, "batch word word_to"]:
        form = _padded(batch, self.form_of, _NONE)
        return self._same(batch, is_causal) & (form[:, :, None] != form[:, None, :])


def content_words(
    sentences: Sequence[Sentence], scored: Mapping[int, ScoredInput]
) -> tuple[dict[int, NDArray[np.int64]], dict[int, NDArray[np.int64]]]:
    """Numbers of lemmas and of forms, upper and lower case alike, for inputs with lemmas and tags.

    [word] by input; the lemma is -1 but for content words: open classes of the universal parts of speech.
    """
    lemma_of, form_of = dict[int, NDArray[np.int64]](), dict[int, NDArray[np.int64]]()
    for number in scored:
        sentence, numbers = sentences[number], dict[str, int]()
        if sentence.lemmas is None or sentence.upos is None:
            continue
        lemmas = [
            numbers.setdefault(lemma.lower(), len(numbers)) if tag in OPEN_CLASSES and lemma != NOT_ANNOTATED else _NONE
            for lemma, tag in zip(sentence.lemmas, sentence.upos, strict=True)
        ]
        lemma_of[number] = np.array(lemmas, dtype=np.int64)
        forms = [numbers.setdefault(word.lower(), len(numbers)) for word in sentence.words]
        form_of[number] = np.array(forms, dtype=np.int64)
    return lemma_of, form_of


# ------------------------------------------------------------------------------------------------------ of all of them


def _padded(
    batch: Batch, of_input: Mapping[int, NDArray[np.generic]], missing: int | float
) -> Shaped[Tensor, "batch word"]:
    """The entries of each input in a row; `missing` at padding and in inputs that have none."""
    assert batch.words is not None
    assert batch.input_index is not None
    rows = [of_input.get(number) for number in batch.input_index.tolist()]
    kind = torch.float64 if isinstance(missing, float) else torch.long
    found = torch.full(batch.words.shape[:2], missing, dtype=kind)
    for place, row in enumerate(rows):
        if row is not None:
            found[place, : row.size] = torch.from_numpy(row)
    return found.to(batch.words.device)


def _hits(attention: WordAttention, answers: Bool[Tensor, "batch word word_to"]) -> Float[Tensor, "batch head"]:
    """How many words have an answer for their strongest word."""
    chosen = attention.row_choice[..., None]
    return answers[:, None].expand(-1, chosen.shape[1], -1, -1).gather(-1, chosen).sum(dim=(-2, -1)).double()


def _asked(answers: Bool[Tensor, "batch word word_to"]) -> Float[Tensor, "batch head=1"]:
    """How many words have an answer."""
    return answers.any(dim=-1).sum(dim=-1, keepdim=True).double()


def _hits_by_chance(
    batch: Batch, answers: Bool[Tensor, "batch word word_to"], is_causal: bool
) -> Float[Tensor, "batch head=1"]:
    """Hits of a head that attends to all tokens alike and draws among equally strong words: those of most tokens."""
    assert batch.words is not None
    pairs = candidates(batch, is_causal)
    tokens = ((batch.words[..., 1] - batch.words[..., 0])[:, None] * pairs).expand_as(pairs)
    strongest = pairs & (tokens == tokens.amax(dim=-1, keepdim=True))
    right = (strongest & answers).sum(dim=-1).double() / strongest.sum(dim=-1).clamp_min(1)
    return right.sum(dim=-1, keepdim=True)
