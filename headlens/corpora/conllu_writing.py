"""Writing annotated documents as CoNLL-U, with mentions in the manner of GUM. No torch here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import IO

from headlens.corpora.blocks import Block
from headlens.corpora.conllu_rows import COLUMNS, Rows
from headlens.corpora.entities import ENTITY_FIELD
from headlens.documents import ROOT, Document, Mention, Sentence, joined
from headlens.errors import CorpusError
from headlens.files import atomic_write

_BREAK = re.compile("[\t\n\r]")
_BEYOND_TEXT = re.compile("[\x00-\x1f\x7f]+")
_PLACE = re.compile(r" \([^()]+:[0-9]+\)$")  # what readers put behind the name of a document
_OF_BRACKETS = re.compile(r"[-(),|]|\[[0-9]+/[0-9]+\]$")


def write_conllu(documents: Iterable[Document], path: str | os.PathLike[str]) -> None:
    """Write documents as CoNLL-U (universaldependencies.org/format), so that they are read back as they are.

    `read_gum` gives back the same words, texts, spans, annotation and mentions, where the documents have mentions, and
    `read_conllu` where they have none (None); mentions come back in order, and ids name the new file. What is not
    annotated is "_". Words on the same characters are written as one multiword token. The name of a document follows
    `# newdoc id`, mentions stand in MISC as GUM's brackets with the entity for their only field. The file is put in
    place when it is complete; documents are taken one at a time.

    Raises
    ------
    CorpusError
        No document, or one that the format cannot hold: without annotated words; with choices of pronouns; with
        mentions where the first document has none (or the other way round); with an empty form, a tab or a line break
        in it; with characters of the text that belong to no word; with heads that are no tree with one root; with
        crossing mentions of one entity, or an entity whose name has a sign of the brackets.
    OutputError
        The file cannot be written.
    """

    def write(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            _write_all(documents, file, Path(path))

    atomic_write(path, write)


def _write_all(documents: Iterable[Document], file: IO[str], target: Path) -> None:
    first: Document | None = None
    for number, document in enumerate(documents, start=1):
        first = first or document
        _check(document, first)
        for block in _blocks(document, number, target):
            file.write("\n".join([*block, "", ""]))
    if first is None:
        raise CorpusError(f"{target}: there is no document to write; give at least one.")


def _check(document: Document, first: Document) -> None:
    """Refuse what a file in this format has no place for."""
    if not document.sentences:
        raise CorpusError(f"{document.id}: CoNLL-U holds annotated words, this is plain text; parse it first.")
    if document.choices:
        raise CorpusError(
            f"{document.id}: CoNLL-U holds no choices of pronouns and candidates; write the document without them."
        )
    if (document.mentions is None) != (first.mentions is None):
        raise CorpusError(
            f"{document.id}: coreference is annotated in a whole file or not at all, and {document.id} and {first.id} "
            "differ in it; write two files."
        )
    if document.text != joined(document.sentences)[0]:
        raise CorpusError(
            f"{document.id}: its text is not that of its sentences, one after the other; make it with "
            "Document.of_sentences."
        )


def _blocks(document: Document, number: int, target: Path) -> Iterator[list[str]]:
    """The lines of every sentence; those of the first begin the document."""
    brackets = _brackets(document)
    word = 0
    for place, sentence in enumerate(document.sentences, start=1):
        opening = [f"# newdoc id = {_name(document)}"] if place == 1 else []
        if place == 1 and document.mentions is not None:
            opening.append(f"# global.Entity = {ENTITY_FIELD}")
        of_words = [brackets.get(word + i, "") for i in range(len(sentence.words))]
        lines = [*opening, f"# sent_id = {number}-{place}", f"# text = {sentence.text}", *_rows(sentence, of_words)]
        _check_reads_back(sentence, lines, target)
        yield lines
        word += len(sentence.words)


def _name(document: Document) -> str:
    return " ".join(_BEYOND_TEXT.sub(" ", _PLACE.sub("", document.id)).split()) or "document"


def _rows(sentence: Sentence, brackets: Sequence[str]) -> Iterator[str]:
    _check_text(sentence)
    for words in _tokens(sentence):
        start, stop = sentence.spans[words[0]]
        misc = "_" if _has_space_after(sentence, words[-1]) else "SpaceAfter=No"
        if len(words) > 1:
            yield _row(sentence, f"{words[0] + 1}-{words[-1] + 1}", sentence.text[start:stop], misc=misc)
        for word in words:
            own = [f"Entity={brackets[word]}"] if brackets[word] else []
            own += [misc] if len(words) == 1 and misc != "_" else []
            yield _word_row(sentence, word, "|".join(own) or "_")


def _tokens(sentence: Sentence) -> Iterator[list[int]]:
    """Words on the same characters together."""
    for _, words in groupby(range(len(sentence.words)), key=lambda word: sentence.spans[word]):
        yield list(words)


def _has_space_after(sentence: Sentence, word: int) -> bool:
    if word + 1 == len(sentence.words):
        return sentence.space_after
    return sentence.spans[word][1] < sentence.spans[word + 1][0]


def _word_row(sentence: Sentence, word: int, misc: str) -> str:
    def of(annotation: Sequence[str] | None) -> str:
        return "_" if annotation is None else annotation[word]

    upos, relation = of(sentence.upos), of(sentence.relations)
    for kind, cell in (("part of speech", upos), ("relation", relation)):
        if " " in cell:
            raise CorpusError(f"{sentence.id}: the {kind} {cell!r} has a space in it, which CoNLL-U has no place for.")
    return _row(
        sentence,
        str(word + 1),
        sentence.words[word],
        lemma=of(sentence.lemmas),
        upos=upos,
        head="_" if sentence.heads is None else str(_counted_from_1(sentence.heads[word])),
        relation=relation,
        misc=misc,
    )


def _counted_from_1(head: int) -> int:
    return 0 if head == ROOT else head + 1


def _row(
    sentence: Sentence,
    id: str,
    form: str,
    *,
    lemma: str = "_",
    upos: str = "_",
    head: str = "_",
    relation: str = "_",
    misc: str = "_",
) -> str:
    cells = [id, form, lemma, upos, "_", "_", head, relation, "_", misc]
    assert len(cells) == COLUMNS
    for cell in cells:
        if not cell.strip():
            raise CorpusError(
                f"{sentence.id}: word {id} has an empty form, lemma, part of speech or relation, which CoNLL-U has no "
                "place for; take the word out, or write '_' for what is not annotated."
            )
        if _BREAK.search(cell):
            raise CorpusError(
                f"{sentence.id}: word {id} has a tab or a line break in {cell[:30]!r}, which CoNLL-U has no place for; "
                "put a space there, in the text as well."
            )
    return "\t".join(cells)


# ---------------------------------------------------------------------------------------------- what cannot be written


def _check_text(sentence: Sentence) -> None:
    """Words stand in order on the text, each on some of its characters, and between them is white space alone."""
    text, at = sentence.text, 0
    if _BREAK.search(text) or text != text.strip():
        raise CorpusError(
            f"{sentence.id}: the text of a sentence in CoNLL-U is one line without white space at its ends and without "
            f"a tab, got {text[:50]!r}; put spaces in their place."
        )
    for words in _tokens(sentence):
        start, stop = sentence.spans[words[0]]
        shown = f"word {words[0] + 1}, {sentence.words[words[0]][:30]!r},"
        if start == stop:
            raise CorpusError(
                f"{sentence.id}: {shown} stands on no character of the text, and CoNLL-U has words that can be seen "
                "only; take it out."
            )
        if start < at or text[at:start].strip():
            raise CorpusError(
                f"{sentence.id}: {shown} stands on characters {start} to {stop} after words up to {at}; in CoNLL-U "
                "words stand in order, on the same characters or on different ones, with white space between them."
            )
        at = stop
    if text[at:]:
        raise CorpusError(f"{sentence.id}: {text[at:][:30]!r} at the end of the text belongs to no word.")


def _check_reads_back(sentence: Sentence, lines: Sequence[str], target: Path) -> None:
    """Refuse a sentence that a reader would take for another."""
    try:
        raw = tuple((number, f"{line}\n".encode()) for number, line in enumerate(lines, start=1))
        read = Rows(Block(target, raw)).sentence(sentence.text)
    except UnicodeEncodeError as reason:
        raise CorpusError(f"{sentence.id}: its text is no Unicode ({reason.reason}); decode it anew.") from reason
    except CorpusError as reason:
        what = str(reason).removeprefix(f"{target}").removeprefix(", ")
        raise CorpusError(f"{sentence.id}: it cannot be written as CoNLL-U, for in {what}") from reason
    if replace(read, id=sentence.id) == sentence:
        return
    fields = ("words", "spans", "upos", "lemmas", "heads", "relations")
    field = next(name for name in fields if getattr(read, name) != getattr(sentence, name))
    raise CorpusError(
        f"{sentence.id}: CoNLL-U cannot tell its {field} {_short(getattr(sentence, field))} from "
        f"{_short(getattr(read, field))}; write those."
    )


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# ------------------------------------------------------------------------------------------------------------ mentions


def _brackets(document: Document) -> dict[int, str]:
    """By word of the document, what GUM writes on its row: "(2(1)", "2)". Inner mentions close first."""
    mentions = document.mentions or ()
    _check_entities(document, mentions)
    _check_nested(document, mentions)
    opening, whole, closing = dict[int, list[str]](), dict[int, list[str]](), dict[int, list[str]]()
    for mention in sorted(mentions, key=lambda m: (m.start, -m.stop)):
        if mention.stop == mention.start + 1:
            whole.setdefault(mention.start, []).append(f"({mention.entity})")
        else:
            opening.setdefault(mention.start, []).append(f"({mention.entity}")
            closing.setdefault(mention.stop - 1, []).insert(0, f"{mention.entity})")
    words = opening.keys() | whole.keys() | closing.keys()
    return {word: _in_order(opening.get(word, []), whole.get(word, []), closing.get(word, [])) for word in words}


def _in_order(opening: list[str], whole: list[str], closing: list[str]) -> str:
    if closing:  # an entity that opens in front of one that closes, "(2" and "1)", would be taken for another: "(21)"
        return "".join([*whole, *closing, *opening])
    return "".join([*opening, *whole])


def _check_entities(document: Document, mentions: Sequence[Mention]) -> None:
    for mention in mentions:
        name = mention.entity
        if not name.strip() or _OF_BRACKETS.search(name) or _BREAK.search(name):
            raise CorpusError(
                f"{document.id}: the entity {name!r} cannot be named in GUM's brackets, whose names are not empty and "
                "have none of - ( ) , | nor a tab in them; rename it, to a number for instance."
            )


def _check_nested(document: Document, mentions: Sequence[Mention]) -> None:
    """Brackets tell the mentions of one entity apart only where one is inside another or behind it."""
    open_mentions = dict[str, list[Mention]]()
    for mention in sorted(mentions, key=lambda m: (m.start, -m.stop)):
        around = open_mentions.setdefault(mention.entity, [])
        while around and around[-1].stop <= mention.start:
            around.pop()
        if around and around[-1].stop < mention.stop:
            raise CorpusError(
                f"{document.id}: the mentions of entity {mention.entity} on words {around[-1].start} to "
                f"{around[-1].stop} and {mention.start} to {mention.stop} cross, and brackets cannot tell which closes "
                "first; keep one of them."
            )
        around.append(mention)
