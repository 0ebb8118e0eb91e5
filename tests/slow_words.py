"""Every score of syntax, subjects and verbs, phrases and coreference again, the slow way: one unpadded input at a time.

Written from the definitions, without a line of headlens: what the fast code must equal. Attention is that of Hugging
Face's own eager code. Arrays are [layer, head], [layer, head, token, token] or [layer, head, word, word], in float64.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Direction = Literal["row", "column"]

ROOT = -1
NEAR = 1e-6  # two largest values that differ by less than this share of the larger: float32 may choose the other one
OFFSETS = (*range(-10, 0), *range(1, 11))
MAX_WORDS = 120  # of the sentences that are read together for coreference


# ------------------------------------------------------------------------------------------------------------ treebanks


@dataclass
class Passage:
    """The words of one sentence, or of several that are read together; words and heads are counted from 0."""

    forms: list[str]
    upos: list[str]
    heads: list[int]
    relations: list[str]
    lemmas: list[str] = field(default_factory=list)
    mentions: list[tuple[int, int, str]] = field(default_factory=list)  # first word, the one after its last, entity
    text: str = ""
    spans: list[tuple[int, int]] = field(default_factory=list)  # of each word, in the characters of `text`
    space_after: bool = True
    document: str = ""


def load_treebank(path: Path) -> list[Passage]:
    """The sentences of a CoNLL-U file, with the mentions of GUM's `Entity=`."""
    sentences, document = list[Passage](), ""
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        lines = [line for line in block.split("\n") if line]
        for line in lines:
            if line.startswith("# newdoc"):
                document = line.partition("=")[2].strip() or f"from sentence {len(sentences)}"
        rows = [line.split("\t") for line in lines if not line.startswith("#")]
        rows = [row for row in rows if "." not in row[0]]  # 8.1 is an empty node
        if rows:
            sentences.append(_sentence(rows, document))
    return sentences


def _sentence(rows: list[list[str]], document: str) -> Passage:
    words = [row for row in rows if "-" not in row[0]]
    text, spans, is_spaced = _text(rows)
    return Passage(
        forms=[row[1] for row in words],
        upos=[row[3] for row in words],
        heads=[int(row[6]) - 1 for row in words],
        relations=[row[7] for row in words],
        lemmas=[row[2] for row in words],
        mentions=_mentions(rows),
        text=text,
        spans=spans,
        space_after=is_spaced,
        document=document,
    )


def _words_of(row: list[str]) -> range:
    """Numbers of the words on a row, from 0; several on that of a multiword token."""
    first, _, last = row[0].partition("-")
    return range(int(first) - 1, int(last or first))


def _text(rows: list[list[str]]) -> tuple[str, list[tuple[int, int]], bool]:
    """Text of the forms, the characters of each word, and whether a space follows.

    Words of a multiword token have their own characters where they spell it, and all of its characters otherwise.
    """
    form = {_words_of(row)[0]: row[1] for row in rows if "-" not in row[0]}
    text, spans, is_spaced = "", list[tuple[int, int]](), False
    for row in rows:
        words = _words_of(row)
        if words[0] < len(spans):
            continue  # it is part of the multiword token above
        text += " " if is_spaced else ""
        start, stop = len(text), len(text) + len(row[1])
        text += row[1]
        is_spelt = "".join(form[word] for word in words) == row[1]
        for word in words:
            spans.append((start, start + len(form[word])) if is_spelt else (start, stop))
            start += len(form[word]) if is_spelt else 0
        is_spaced = "SpaceAfter=No" not in row[9].split("|")
    return text, spans, is_spaced


# "(3-person-..." opens entity 3, "3)" closes it, "(3-person-...)" is a mention of the words of this row
_BRACKETS = re.compile(r"\(([^()-]+)[^()]*(\)?)|([^()]+)\)")


def _mentions(rows: list[list[str]]) -> list[tuple[int, int, str]]:
    found = list[tuple[int, int, str]]()
    opening: dict[int, list[str]] = defaultdict(list)  # entities by word
    closing: dict[int, list[str]] = defaultdict(list)
    for row in rows:
        words = _words_of(row)
        for entity, is_whole, closed in _BRACKETS.findall(_misc(row, "Entity")):
            if is_whole:
                found.append((words[0], words[-1] + 1, entity))
            elif entity:
                opening[words[0]].append(entity)
            else:
                closing[words[-1]].append(closed)
    starts: dict[str, list[int]] = defaultdict(list)  # of nested mentions of one entity the last one closes first
    for word in range(_words_of(rows[-1])[-1] + 1):
        for entity in opening[word]:
            starts[entity].append(word)
        for entity in closing[word]:
            found.append((starts[entity].pop(), word + 1, entity))
    assert not any(starts.values()), f"brackets that nothing closes: {dict(starts)}"
    return sorted(found)


def _misc(row: list[str], key: str) -> str:
    values = [entry.partition("=")[2] for entry in row[9].split("|") if entry.startswith(f"{key}=")]
    return values[0] if values else ""


def chunks(sentences: Sequence[Passage], max_words: int = MAX_WORDS) -> list[Passage]:
    """Whole sentences of one document, filled up greedily; a longer sentence stands alone."""
    filled = list[list[Passage]]()
    for sentence in sentences:
        last = filled[-1] if filled else []
        words = sum(len(other.forms) for other in [*last, sentence])
        if last and last[0].document == sentence.document and words <= max_words:
            last.append(sentence)
        else:
            filled.append([sentence])
    return [joined(group) for group in filled]


def joined(sentences: Sequence[Passage]) -> Passage:
    """The words of several sentences as one passage."""
    whole = Passage([], [], [], [], document=sentences[0].document)
    for number, sentence in enumerate(sentences):
        if number and sentences[number - 1].space_after:
            whole.text += " "
        word, character = len(whole.forms), len(whole.text)
        whole.forms += sentence.forms
        whole.upos += sentence.upos
        whole.lemmas += sentence.lemmas
        whole.relations += sentence.relations
        whole.heads += [ROOT if head == ROOT else word + head for head in sentence.heads]
        whole.mentions += [(word + start, word + stop, entity) for start, stop, entity in sentence.mentions]
        whole.spans += [(character + start, character + stop) for start, stop in sentence.spans]
        whole.text += sentence.text
    whole.space_after = sentences[-1].space_after
    return whole


# ----------------------------------------------------------------------------------------------- words and their tokens


@dataclass
class Tokens:
    """The input of a passage."""

    inputs: dict[str, list[int]]  # "input_ids", and what else the tokenizer gives to the model
    of_word: list[list[int]]  # positions of the tokens of each word


def encode(tokenizer: Any, passage: Passage) -> Tokens:
    """A WordPiece tokenizer gets the words, any other one the text."""
    is_word_piece = type(tokenizer.backend_tokenizer.model).__name__ == "WordPiece"
    options: dict[str, Any] = {"return_special_tokens_mask": True, "return_offsets_mapping": True, "verbose": False}
    if is_word_piece:
        encoding = tokenizer(passage.forms, is_split_into_words=True, **options)
    else:
        encoding = tokenizer(passage.text, **options)
    special = encoding.pop("special_tokens_mask")
    offsets = encoding.pop("offset_mapping")
    of_word: list[list[int]] = [[] for _ in passage.forms]
    for token in range(len(special)):
        if special[token]:
            continue
        if is_word_piece:
            of_word[encoding.word_ids()[token]].append(token)
            continue
        place = _first_character(passage.text, *offsets[token])
        for word, (start, stop) in enumerate(passage.spans):
            if start <= place < stop:
                of_word[word].append(token)
    return Tokens(dict(encoding), of_word)


def _first_character(text: str, start: int, stop: int) -> int:
    """Place of the first character that is no white space; -1 where there is none."""
    return next((place for place in range(start, stop) if not text[place].isspace()), -1)


@dataclass
class Seen:
    """One input after the forward pass: its words and the attention between them."""

    passage: Passage
    words: Array  # [layer, head, word, word]
    candidates: Mask  # [word, word]: the words that may be chosen from each word


def word_attention(attention: Array, of_word: list[list[int]]) -> Array:
    """To a word: the sum over its tokens; from a word: the mean over its tokens; 0 for words without a token.

    Clark et al. 2019, section 4.1. Special tokens are left out and rows are not renormalised.
    """
    layers, heads, tokens, _ = attention.shape
    to_words = np.zeros((layers, heads, tokens, len(of_word)))
    for word, places in enumerate(of_word):
        to_words[..., word] = attention[..., places].sum(axis=-1)
    between = np.zeros((layers, heads, len(of_word), len(of_word)))
    for word, places in enumerate(of_word):
        if places:
            between[:, :, word] = to_words[:, :, places].mean(axis=2)
    return between


def candidates_of(tokens: Tokens, *, is_causal: bool) -> Mask:
    """All words but the word itself; of a decoder the earlier ones, without the sink."""
    count = len(tokens.of_word)
    sinks = {word for word, places in enumerate(tokens.of_word) if 0 in places}  # with a special token there: none
    allowed = np.zeros((count, count), dtype=bool)
    for word in range(count):
        for other in range(count):
            have_tokens = bool(tokens.of_word[word] and tokens.of_word[other])
            is_visible = other < word and not sinks & {word, other} if is_causal else other != word
            allowed[word, other] = have_tokens and is_visible
    return allowed


@dataclass
class LeftOut:
    """Passages that give no score."""

    one_word: int = 0
    too_long: int = 0


def watch(
    model: Any,
    tokenizer: Any,
    passages: Iterable[Passage],
    *,
    is_causal: bool = False,
    attention: Sequence[Array] | None = None,
    left_out: LeftOut | None = None,
) -> Iterator[Seen]:
    """Run the model over the passages, one at a time.

    `attention` takes the place of the model: one array [layer, head, token, token] for each passage. `left_out` is
    filled with counts.
    """
    left_out = left_out or LeftOut()
    for number, passage in enumerate(passages):
        if len(passage.forms) == 1:
            left_out.one_word += 1
            continue
        tokens = encode(tokenizer, passage)
        if model is not None and len(tokens.inputs["input_ids"]) > model_limit(model):
            left_out.too_long += 1
            continue
        probs = attention[number] if attention is not None else _attention(model, tokens)
        yield Seen(passage, word_attention(probs, tokens.of_word), candidates_of(tokens, is_causal=is_causal))


def model_limit(model: Any) -> int:
    """How many tokens the model can read."""
    embeddings = [part for name, part in model.named_modules() if name.split(".")[-1] == "position_embeddings"]
    if embeddings and getattr(embeddings[0], "padding_idx", None) is not None:
        # RoBERTa counts positions from the padding index on
        return int(embeddings[0].num_embeddings) - int(embeddings[0].padding_idx) - 1
    return int(model.config.max_position_embeddings)


def _attention(model: Any, tokens: Tokens) -> Array:
    import torch

    with torch.no_grad():
        inputs = {name: torch.tensor([values]) for name, values in tokens.inputs.items()}
        layers = model(**inputs, output_attentions=True).attentions
    return np.stack([layer[0].double().numpy() for layer in layers])


# -------------------------------------------------------------------------------------------------------------- choices


@dataclass
class Tally:
    """How many items are right. `right` and `near` are [layer, head], or single numbers for what asks no head."""

    right: Array = field(default_factory=lambda: np.zeros(()))
    near: Array = field(default_factory=lambda: np.zeros(()))  # items whose two largest values are nearly equal
    total: int = 0

    @property
    def accuracy(self) -> Array:
        return self.right / self.total if self.total else np.full(self.right.shape, np.nan)


Tallies = dict[str, Tally]


def _count(tallies: Tallies, names: Iterable[str], right: Any, near: Any = 0) -> None:
    for name in names:
        tally = tallies.setdefault(name, Tally())
        tally.right = tally.right + np.asarray(right, dtype=np.float64)
        tally.near = tally.near + np.asarray(near, dtype=np.float64)
        tally.total += 1


def _first_largest(values: Array) -> tuple[NDArray[np.int_], Mask]:
    """Index of the first largest value on the last axis, and whether another is nearly as large."""
    if values.shape[-1] == 1:
        return np.zeros(values.shape[:-1], dtype=int), np.zeros(values.shape[:-1], dtype=bool)
    second, first = np.moveaxis(np.sort(values, axis=-1)[..., -2:], -1, 0)
    return values.argmax(axis=-1), first - second <= NEAR * np.abs(first)


@dataclass
class Choices:
    """What each head chooses for each word of an input."""

    word: NDArray[np.int_]  # [layer, head, word]; ROOT where there is no candidate
    near: Mask  # [layer, head, word]
    allowed: Mask  # [word, word]: the candidates of each word


def choose(words: Array, candidates: Mask, direction: Direction) -> Choices:
    """From each word the candidate that it attends to most (row), or to each word the word that attends to it most,
    of those that have it for a candidate (column)."""
    values, allowed = (words, candidates) if direction == "row" else (np.swapaxes(words, -1, -2), candidates.T)
    chosen = np.full(values.shape[:-1], ROOT)
    near = np.zeros(values.shape[:-1], dtype=bool)
    for word in range(len(allowed)):
        places = np.flatnonzero(allowed[word])
        if places.size:
            best, near[..., word] = _first_largest(values[:, :, word, places])
            chosen[..., word] = places[best]
    return Choices(chosen, near, allowed)


# ---------------------------------------------------------------------------------------------------------------- items


@dataclass
class Item:
    """The head looks from `source` and should choose `target`."""

    source: int
    target: int
    direction: Direction
    metrics: list[str]


def items(passage: Passage) -> list[Item]:
    """What is asked of one sentence: its dependencies both ways, and its subjects and verbs both ways."""
    found = list[Item]()
    for word, (head, relation) in enumerate(zip(passage.heads, passage.relations, strict=True)):
        if head == ROOT or collapsed(relation) in ("root", "punct"):
            continue
        names = sorted({"ALL", collapsed(relation), relation})
        found.append(Item(word, head, "row", [f"syntax.dep_to_head[{name}]" for name in names]))
        found.append(Item(word, head, "column", [f"syntax.head_to_dep[{name}]" for name in names]))
        if collapsed(relation) in ("nsubj", "csubj"):
            verb = _verb(passage, head)
            if verb is not None:
                found.append(Item(word, verb, "row", ["subject_verb.subject_to_verb"]))
                found.append(Item(verb, word, "row", ["subject_verb.verb_to_subject"]))
    return found


def collapsed(relation: str) -> str:
    return relation.split(":")[0]


def _verb(passage: Passage, head: int) -> int | None:
    if passage.upos[head] in ("VERB", "AUX"):
        return head
    for word, relation in enumerate(passage.relations):
        if passage.heads[word] == head and collapsed(relation) == "cop":
            return word
    return None


Score = Callable[[Item, Choices], tuple[Any, Any]]


def _scored(seen: Seen, words: Array, score: Score, tallies: Tallies) -> None:
    """Add `score` of every item of one input; an item's target must be a candidate of its source."""
    choices = {direction: choose(words, seen.candidates, direction) for direction in ("row", "column")}
    for item in items(seen.passage):
        chosen = choices[item.direction]
        if chosen.allowed[item.source, item.target]:
            _count(tallies, item.metrics, *score(item, chosen))


def _is_right(item: Item, choices: Choices) -> tuple[Any, Any]:
    return choices.word[..., item.source] == item.target, choices.near[..., item.source]


def _expected(item: Item, choices: Choices) -> tuple[Any, Any]:
    """Share of the words x with a candidate at x + k that choose it, k being the item's own distance."""
    distance = item.target - item.source
    count = len(choices.allowed)
    others = [x for x in range(count) if 0 <= x + distance < count and choices.allowed[x, x + distance]]
    chosen = choices.word[..., others] == np.array(others) + distance
    return chosen.mean(axis=-1), choices.near[..., others].mean(axis=-1)


def syntax_counts(seen: Iterable[Seen]) -> Tallies:
    """Right choices by metric, [layer, head]."""
    tallies: Tallies = {}
    for one in seen:
        _scored(one, one.words, _is_right, tallies)
        _count_phrases(one, tallies)
    return tallies


def expected_counts(seen: Iterable[Seen]) -> Tallies:
    """Expectation of the right choices if those of the words of a sentence were dealt anew, by distance."""
    tallies: Tallies = {}
    for one in seen:
        _scored(one, one.words, _expected, tallies)
    return tallies


def null_counts(seen: Iterable[Seen], profile: dict[int, Array]) -> Tallies:
    """Right choices of the head's mean attention by distance."""
    tallies: Tallies = {}
    for one in seen:
        _scored(one, profile_attention(profile, len(one.candidates)), _is_right, tallies)
    return tallies


def baseline_counts(seen: Iterable[Seen]) -> tuple[Tallies, dict[int, Tallies]]:
    """Chance, and the head of each constant offset; neither asks the model's attention."""
    chance: Tallies = {}
    offsets: dict[int, Tallies] = {offset: {} for offset in OFFSETS}
    for one in seen:
        for item in items(one.passage):
            allowed = one.candidates if item.direction == "row" else one.candidates.T
            if not allowed[item.source, item.target]:
                continue
            _count(chance, item.metrics, 1 / allowed[item.source].sum())
            for offset in OFFSETS:
                _count(offsets[offset], item.metrics, item.source + offset == item.target)
    return chance, offsets


# ------------------------------------------------------------------------------------------------- profile of positions


def profile_of(seen: Iterable[Seen]) -> dict[int, Array]:
    """Mean attention, [layer, head], between all pairs of words by their distance in words; negative: to the left."""
    sums: dict[int, Any] = defaultdict(float)
    pairs: dict[int, int] = defaultdict(int)
    for one in seen:
        count = len(one.candidates)
        for distance in range(1 - count, count):
            inside = one.candidates.diagonal(distance)
            if inside.any():
                sums[distance] = sums[distance] + one.words.diagonal(distance, 2, 3)[..., inside].sum(axis=-1)
                pairs[distance] += int(inside.sum())
    return {distance: sums[distance] / pairs[distance] for distance in pairs}


def profile_attention(profile: dict[int, Array], count: int) -> Array:
    """The attention between `count` words of heads that know nothing but the distance."""
    nothing = np.zeros_like(next(iter(profile.values()))) if profile else np.zeros((1, 1))
    rows = [[profile.get(to - word, nothing) for to in range(count)] for word in range(count)]
    return np.moveaxis(np.array(rows), (0, 1), (2, 3))


# -------------------------------------------------------------------------------------------------------------- phrases

INTERNAL = ("det", "amod", "nummod", "compound", "flat", "fixed", "case", "clf", "goeswith", "aux")


def phrases(passage: Passage) -> list[int]:
    """Number of each word's phrase: the words that are connected by relations that stand inside a phrase."""
    phrase = list(range(len(passage.forms)))
    for word, (head, relation) in enumerate(zip(passage.heads, passage.relations, strict=True)):
        is_degree = collapsed(relation) == "advmod" and head != ROOT and passage.upos[head] in ("ADJ", "ADV")
        if head != ROOT and (collapsed(relation) in INTERNAL or relation == "nmod:poss" or is_degree):
            old, new = phrase[word], phrase[head]
            phrase = [new if number == old else number for number in phrase]
    return phrase


def _count_phrases(seen: Seen, tallies: Tallies) -> None:
    """A decoder has no item: the neighbour on the right is no candidate."""
    phrase = phrases(seen.passage)
    for word in range(1, len(phrase) - 1):
        left, right = word - 1, word + 1
        is_left, is_right = phrase[left] == phrase[word], phrase[right] == phrase[word]
        if is_left == is_right or not (seen.candidates[word, left] and seen.candidates[word, right]):
            continue
        own, other = (left, right) if is_left else (right, left)
        paid, unpaid = seen.words[:, :, word, own], seen.words[:, :, word, other]
        near = np.abs(paid - unpaid) <= NEAR * np.maximum(paid, unpaid)
        _count(tallies, [f"phrase.neighbour.{'left' if is_left else 'right'}"], paid > unpaid, near)


def phrase_accuracy(tallies: Tallies) -> Array:
    """phrase.neighbour: a head of constant offset has .5; NaN where one of the sides has no item."""
    sides = [tallies.get(f"phrase.neighbour.{side}", Tally()).accuracy for side in ("left", "right")]
    return (sides[0] + sides[1]) / 2


# ---------------------------------------------------------------------------------------------------------- coreference


@dataclass
class Reference:
    """A mention and the head words of the earlier mentions of its chunk, from left to right."""

    word: int
    candidates: list[int]
    right: set[int]
    metrics: list[str]


def head_word(passage: Passage, start: int, stop: int) -> int:
    """The first word of the stretch whose head is outside it."""
    return next(word for word in range(start, stop) if not start <= passage.heads[word] < stop)


def references(seen: Seen) -> list[Reference]:
    """The mentions of a chunk that have a right candidate."""
    passage = seen.passage
    mentions = [(head_word(passage, start, stop), entity) for start, stop, entity in passage.mentions]
    found = list[Reference]()
    for word, entity in mentions:
        earlier = [(other, its) for other, its in mentions if other < word and seen.candidates[word, other]]
        right = {other for other, its in earlier if its == entity}
        if right:
            places = sorted({other for other, _ in earlier})
            found.append(Reference(word, places, right, _coreference_metrics(passage, word, places, right)))
    return found


def _coreference_metrics(passage: Passage, word: int, places: list[int], right: set[int]) -> list[str]:
    kind = {"PRON": "pronoun", "PROPN": "proper"}.get(passage.upos[word], "nominal")
    names = ["all", kind]
    if not _same_lemma(passage, word, places):
        names += ["all_unmatched", f"{kind}_unmatched"]
    if kind == "pronoun" and all(passage.upos[place] != "PRON" for place in right):
        names.append("pronoun_noun")
    return [f"coref[{name}]" for name in names]


def _same_lemma(passage: Passage, word: int, places: list[int]) -> list[int]:
    return [place for place in places if passage.lemmas[place].lower() == passage.lemmas[word].lower()]


def coreference_counts(seen: Iterable[Seen], profile: dict[int, Array]) -> dict[str, Tallies]:
    """Right choices by metric, of the heads and of the baselines "nearest", "lemma", "profile" and "chance"."""
    counts: dict[str, Tallies] = {name: {} for name in ("heads", "nearest", "lemma", "profile", "chance")}
    for one in seen:
        for item in references(one):
            places = np.array(item.candidates)
            is_right = np.array([place in item.right for place in places])
            best, near = _first_largest(one.words[:, :, item.word, places])
            _count(counts["heads"], item.metrics, is_right[best], near)
            by_distance = np.stack([profile[place - item.word] for place in item.candidates], axis=-1)
            best, near = _first_largest(by_distance)
            _count(counts["profile"], item.metrics, is_right[best], near)
            alike = _same_lemma(one.passage, item.word, item.candidates)
            _count(counts["nearest"], item.metrics, item.candidates[-1] in item.right)
            _count(counts["lemma"], item.metrics, (alike or item.candidates)[-1] in item.right)
            _count(counts["chance"], item.metrics, is_right.mean())
    return counts


# ------------------------------------------------------------------------------------------------- from model to scores


def slow_syntax(model: Any, tokenizer: Any, sentences: Sequence[Passage], *, is_causal: bool = False) -> Tallies:
    return syntax_counts(watch(model, tokenizer, sentences, is_causal=is_causal))


def slow_expected(model: Any, tokenizer: Any, sentences: Sequence[Passage], *, is_causal: bool = False) -> Tallies:
    return expected_counts(watch(model, tokenizer, sentences, is_causal=is_causal))


def slow_profile_null(model: Any, tokenizer: Any, sentences: Sequence[Passage], *, is_causal: bool = False) -> Tallies:
    profile = profile_of(watch(model, tokenizer, sentences, is_causal=is_causal))
    return null_counts(watch(model, tokenizer, sentences, is_causal=is_causal), profile)


def slow_baselines(
    model: Any, tokenizer: Any, sentences: Sequence[Passage], *, is_causal: bool = False
) -> tuple[Tallies, dict[int, Tallies]]:
    return baseline_counts(watch(model, tokenizer, sentences, is_causal=is_causal))


def slow_coreference(
    model: Any, tokenizer: Any, sentences: Sequence[Passage], *, is_causal: bool = False
) -> dict[str, Tallies]:
    """`sentences` are those of whole documents, in their order."""
    read_together = chunks(sentences)
    profile = profile_of(watch(model, tokenizer, read_together, is_causal=is_causal))
    return coreference_counts(watch(model, tokenizer, read_together, is_causal=is_causal), profile)
