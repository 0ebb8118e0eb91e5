"""Where heads are strongest on the words of a corpus: short texts, shares of attention, examples.json. No torch."""

from __future__ import annotations

import json
import math
import os
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from headlens.corpora.surface_words import surface_words
from headlens.documents import Document, Sentence
from headlens.errors import OutputError, in_words
from headlens.files import Write
from headlens.gold.coreference import chunks

Direction = Literal["ltr", "rtl"]
Floats: TypeAlias = NDArray[np.floating]
Arc: TypeAlias = tuple[int, int, float]  # from which word, to which, and the share that is paid

SCHEMA_VERSION = "headlens.examples/1"
FILE = "examples.json"
SMALLEST_SHARE = 0.1  # what is paid to a word and drawn; our choice
LEAST_SHOWN = 0.15  # mean share at the places of a role in a text that shows it; our choice
DIGITS = 3  # of shares
FEWEST_WORDS = 5  # of a text, where there are such texts; our choice

_UNITS = 10**DIGITS  # the file holds shares as whole thousandths, half as long as fractions
_WAY_OUT = "run the profile again"
_POOL = 512  # texts to choose from
_READ = 20_000  # characters of a document without annotation
_SENTENCE_ENDS = frozenset(".!?…。！？؟।")


@dataclass(frozen=True)
class Example:
    """Attention of one head between the words of one text; shares are of a word's attention, rounded to DIGITS.

    To a word the sum over its tokens, from a word the mean over them. What is paid to words under SMALLEST_SHARE is
    left out. Raises OutputError for places outside of the text and for shares that are none.
    """

    layer: int
    head: int
    text_id: str  # where the text came from
    words: tuple[str, ...]
    arcs: tuple[Arc, ...]  # shares of at least SMALLEST_SHARE, in order of the words
    rest: tuple[float, ...]  # of each word: the share that goes to special tokens, [CLS], [SEP], <s>
    unknown: tuple[int, ...]  # words for which the tokenizer has its unknown token only
    direction: Direction
    strength: float  # what it was chosen by: the mean share that goes where its role says, else each word's largest
    why: str  # id of the role that it shows; "" for none
    shown: tuple[int, ...] = ()  # of `arcs`, by their place: those that show the role
    asked: int = 0  # places in the text where the role can show; 0 where that is not known
    right: int = 0  # those of them at which the head looks where the role says

    def __post_init__(self) -> None:
        places = [*self.unknown, *(place for start, stop, _ in self.arcs for place in (start, stop))]
        shares = [*self.rest, self.strength, *(share for _, _, share in self.arcs)]
        if not self.words or len(self.rest) != len(self.words):
            raise OutputError(f"{len(self.words)} words need as many shares for special tokens, got {len(self.rest)}.")
        if min(self.layer, self.head) < 0 or any(not 0 <= place < len(self.words) for place in places):
            raise OutputError(f"Heads count from 0, and places are words 0 to {len(self.words) - 1} of {self.text_id}.")
        if any(not 0 <= arc < len(self.arcs) for arc in self.shown) or not 0 <= self.right <= self.asked:
            raise OutputError(
                f"{self.text_id} has {len(self.arcs)} arcs and {self.asked} places; more cannot be shown."
            )
        if any(not 0 <= share <= 1.001 for share in shares):  # of rounding
            raise OutputError(f"Shares of attention lie between 0 and 1; {self.text_id} has another one.")
        if self.direction not in get_args(Direction):
            raise OutputError(f"The direction of a text is ltr or rtl, got {self.direction!r}.")

    @classmethod
    def of_attention(
        cls,
        place: tuple[int, int],
        sentence: Sentence,
        probs: Floats,
        to_special: Floats,
        unknown: tuple[int, ...],
        strength: float,
        why: str = "",
    ) -> Example:
        """From `probs` [word, word_to] and `to_special` [word, special] of the head at `place`, (layer, head)."""
        starts, stops = np.nonzero(probs >= SMALLEST_SHARE)
        return cls(
            *place,
            text_id=sentence.id,
            words=sentence.words,
            arcs=tuple(
                (start, stop, round(float(probs[start, stop]), DIGITS))
                for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
            ),
            rest=tuple(round(float(share), DIGITS) for share in to_special.sum(axis=-1)),
            unknown=unknown,
            direction=direction_of(sentence.text),
            strength=round(strength, DIGITS),
            why=why,
        )

    def showing(self, pairs: Collection[tuple[int, int]], *, asked: int, right: int) -> Example:
        """The same with the arcs between `pairs` of words, from and to, told apart, as far as they are drawn."""
        shown = tuple(place for place, (start, stop, _) in enumerate(self.arcs) if (start, stop) in pairs)
        return replace(self, shown=shown, asked=asked, right=right)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `drawArcs` of the report takes them."""
        return {
            "layer": self.layer,
            "head": self.head,
            "text_id": self.text_id,
            "words": list(self.words),
            "arcs": [list(arc) for arc in self.arcs],
            "rest": list(self.rest),
            "unknown": list(self.unknown),
            "direction": self.direction,
            "strength": self.strength,
            "why": self.why,
            "shown": list(self.shown),
            "asked": self.asked,
            "right": self.right,
        }


@dataclass(frozen=True)
class Unshown:
    """A head whose role no text shows that was run."""

    layer: int
    head: int
    why: str  # id of the role
    run: int  # texts
    able: int  # those of them in which the role has a place
    strength: (
        float  # the most that goes where the role says, the mean over the places of a text; 0 where there are none
    )

    def __post_init__(self) -> None:
        if min(self.layer, self.head) < 0 or not 0 <= self.able <= self.run or not 0 <= self.strength <= 1.001:
            raise OutputError(f"A head without examples has a place, texts and a share, got {self}.")


@dataclass(frozen=True)
class Examples:
    """Examples of all heads; of one head the best first. `unshown` are the heads whose role has none."""

    listed: tuple[Example, ...] = ()
    unshown: tuple[Unshown, ...] = ()

    def __len__(self) -> int:
        return len(self.listed)

    def __iter__(self) -> Iterator[Example]:
        return iter(self.listed)

    def __repr__(self) -> str:
        return f"<Examples: {len(self)} of {len(self._by_head)} heads>"

    def of(self, layer: int, head: int) -> tuple[Example, ...]:
        """Empty where the head has none."""
        return self._by_head.get((layer, head), ())

    @cached_property
    def _by_head(self) -> dict[tuple[int, int], tuple[Example, ...]]:
        found: dict[tuple[int, int], tuple[Example, ...]] = {}
        for example in self.listed:
            place = (example.layer, example.head)
            found[place] = (*found.get(place, ()), example)
        return found

    def to_dict(self) -> dict[str, Any]:
        """What the file holds: every text once, and shares as whole thousandths.

        `texts` has `id`, `words`, `unknown` and `direction`; `heads` maps "7.9" (layer 7, head 9) to its examples, with
        `text` (a place in `texts`), `arcs` (from, to, thousandths, from, to, thousandths, ...), `rest` and `strength`
        (thousandths) and `why`; where the role has places in the text also `shown`, `asked` and `right`. `unshown`, if
        there is any, maps "7.9" to `why`, `run`, `able` and `strength`.
        """
        texts: dict[tuple[Any, ...], int] = {}
        heads: dict[str, list[dict[str, Any]]] = {}
        for example in self.listed:
            text = (example.text_id, example.words, example.unknown, example.direction)
            heads.setdefault(f"{example.layer}.{example.head}", []).append(
                {
                    "text": texts.setdefault(text, len(texts)),
                    "arcs": [number for start, stop, share in example.arcs for number in (start, stop, _units(share))],
                    "rest": [_units(share) for share in example.rest],
                    "strength": _units(example.strength),
                    "why": example.why,
                    **(
                        {"shown": list(example.shown), "asked": example.asked, "right": example.right}
                        if example.asked
                        else {}
                    ),
                }
            )
        named = [
            {"id": text_id, "words": list(words), "unknown": list(unknown), "direction": direction}
            for text_id, words, unknown, direction in texts
        ]
        unshown = {
            f"{one.layer}.{one.head}": {
                "why": one.why,
                "run": one.run,
                "able": one.able,
                "strength": _units(one.strength),
            }
            for one in self.unshown
        }
        return {"schema": SCHEMA_VERSION, "texts": named, "heads": heads} | ({"unshown": unshown} if unshown else {})

    def writers(self) -> dict[str, Write]:
        """examples.json: for those who write more files in the same step."""
        text = json.dumps(self.to_dict(), ensure_ascii=False, separators=(",", ":")) + "\n"
        content = text.encode("utf-8", "replace")  # the name of a file may be no proper text
        return {FILE: lambda path: path.write_bytes(content)}

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Examples:
        """Read what `writers` wrote.

        Raises
        ------
        OutputError
            There is no examples.json, it is of another schema, or broken.
        """
        path = Path(folder) / FILE
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise OutputError(f"{path} is not there; give the folder of a profile, or {_WAY_OUT}.") from None
        except (OSError, ValueError, RecursionError) as reason:
            why = getattr(reason, "strerror", None) or reason
            raise OutputError(f"{path} cannot be read ({why}); {_WAY_OUT}.") from None
        schema = content.get("schema") if isinstance(content, dict) else None
        if schema != SCHEMA_VERSION:
            raise OutputError(f"{path} has the schema {schema!r}, this headlens reads {SCHEMA_VERSION!r}; {_WAY_OUT}.")
        try:
            return cls(tuple(_listed(content)), tuple(_unshown(content.get("unshown", {}))))
        except (OutputError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as reason:
            raise OutputError(
                f"{path} does not hold examples of heads as it should{in_words(reason)}; {_WAY_OUT}."
            ) from None


def mean_of_largest(probs: Floats, present: NDArray[np.bool_]) -> Floats:
    """[head]: mean over the words `present` of the largest share to a word; `probs` is [head, word, word_to]."""
    return np.asarray(probs.max(axis=-1)[:, present].mean(axis=-1))


def direction_of(text: str) -> Direction:
    """Which way a text is read: "rtl" where most letters of a known direction are right-to-left.

    By the bidirectional classes L, R and AL of Unicode. (Its algorithm asks the first such letter alone, and takes a
    Hebrew sentence that begins with a Latin name for English.)
    """
    classes = [unicodedata.bidirectional(character) for character in text]
    return "rtl" if classes.count("R") + classes.count("AL") > classes.count("L") else "ltr"


def has_both_directions(text: str) -> bool:
    """Whether some letters are read from left to right and some from right to left."""
    classes = set(map(unicodedata.bidirectional, text))
    return "L" in classes and bool(classes & {"R", "AL"})


def short_texts(corpus: Sequence[Document], most_words: int, draw: np.random.Generator) -> list[Document]:
    """Up to _POOL different ones of one sentence each, drawn at random, in the order of the corpus.

    Sentences with their pronouns to resolve; of documents without annotation stretches of text of up to `most_words`
    words, which end where a sentence does if they can. Texts of fewer than FEWEST_WORDS are taken where there are no
    others, and stretches of annotated text where every sentence is too long.
    """
    places = [(number, place) for number, one in enumerate(corpus) for place in range(max(1, len(one.sentences)))]
    order = [places[index] for index in draw.permutation(len(places))]
    for fewest, as_plain in ((FEWEST_WORDS, False), (2, False), (2, True)):
        found: dict[tuple[str, ...], tuple[tuple[int, int, int], Document]] = {}
        for number, place in order:
            one = corpus[number]
            is_plain = as_plain or not one.sentences
            listed = _stretches(one, most_words) if is_plain else _short_sentence(one, place, most_words)
            for part, text in enumerate(islice(listed, _POOL)):
                words = text.sentences[0].words
                if len(words) >= fewest:
                    found.setdefault(words, ((number, place, part), text))
            if len(found) >= _POOL:
                break
        if found:
            return [text for _, text in sorted(found.values(), key=lambda placed: placed[0])]
    return []


def short_stretches(corpus: Sequence[Document], most_words: int, draw: np.random.Generator) -> list[Document]:
    """Up to _POOL stretches of whole sentences with mentions, as coreference is read, but of `most_words` at most.

    Drawn at random, in the order of the corpus. None of a document in which coreference is not annotated.
    """
    able = [chunk for chunk in chunks(corpus, most=most_words) if len(chunk.mentions) > 1]
    listed = [chunk for chunk in able if sum(len(sentence.words) for sentence in chunk.sentences) <= most_words]
    chosen = [listed[place] for place in sorted(draw.permutation(len(listed))[:_POOL])]
    return [Document.of_sentences(one.sentences, one.sentences[0].id, mentions=one.mentions) for one in chosen]


def _short_sentence(document: Document, place: int, most_words: int) -> Iterator[Document]:
    """The sentence by itself, with the pronouns to resolve in it."""
    sentence = document.sentences[place]
    if len(sentence.words) <= most_words:
        choices = document.choices if len(document.sentences) == 1 else ()
        yield Document.of_sentences([sentence], sentence.id, choices=choices)


def _stretches(document: Document, most_words: int) -> Iterator[Document]:
    text = document.text if len(document.text) <= _READ else document.text[:_READ].rsplit(maxsplit=1)[0]
    whole = surface_words(text, id=document.id)
    start = 0
    while start < len(whole.words):
        stop = _end_of_stretch(whole.words, start, most_words)
        begin, end = whole.spans[start][0], whole.spans[stop - 1][1]
        spans = tuple((first - begin, last - begin) for first, last in whole.spans[start:stop])
        sentence = Sentence(whole.words[start:stop], text[begin:end], spans, id=document.id)
        yield Document.of_sentences([sentence], document.id)
        start = stop


def _end_of_stretch(words: Sequence[str], start: int, most_words: int) -> int:
    """After the last word within reach that ends a sentence, if there is one."""
    limit = start + most_words
    if limit >= len(words):
        return len(words)
    return next((stop for stop in range(limit, start, -1) if words[stop - 1] in _SENTENCE_ENDS), limit)


def _units(share: float) -> int:
    return round(share * _UNITS)


def _listed(content: Mapping[str, Any]) -> Iterator[Example]:
    for head, examples in content["heads"].items():
        layer, _, number = head.partition(".")
        for example in examples:
            text = content["texts"][example["text"]]
            yield Example(
                layer=int(layer),
                head=int(number),
                text_id=_string(text["id"]),
                words=tuple(map(_string, text["words"])),
                arcs=_arcs(example["arcs"]),
                rest=tuple(map(_share, example["rest"])),
                unknown=tuple(map(_whole, text["unknown"])),
                direction=text["direction"],
                strength=_share(example["strength"]),
                why=_string(example["why"]),
                shown=tuple(map(_whole, example.get("shown", ()))),
                asked=_whole(example.get("asked", 0)),
                right=_whole(example.get("right", 0)),
            )


def _unshown(of_heads: Mapping[str, Any]) -> Iterator[Unshown]:
    for head, one in of_heads.items():
        layer, _, number = head.partition(".")
        counts = {name: _whole(one[name]) for name in ("run", "able")}
        yield Unshown(int(layer), int(number), _string(one["why"]), **counts, strength=_share(one["strength"]))


def _arcs(numbers: list[int]) -> tuple[Arc, ...]:
    parts = [iter(numbers)] * 3
    return tuple((_whole(start), _whole(stop), _share(share)) for start, stop, share in zip(*parts, strict=True))


def _share(units: object) -> float:
    return _whole(units) / _UNITS


def _whole(number: object) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not math.isfinite(number):
        raise OutputError(f"{number!r:.80} is no whole number")
    return number


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise OutputError(f"{value!r:.80} is no text")
    return value
