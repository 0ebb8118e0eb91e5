"""Treebanks in CoNLL-U, and GUM, which marks mentions of entities as well. No torch here."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from headlens.corpora.blocks import Block, blocks
from headlens.corpora.conllu_rows import Marked, Rows
from headlens.corpora.entities import Bracket, Mentions, field_of_entity, gum_brackets
from headlens.corpora.text import OnBad, at_least_one, existing_file
from headlens.documents import Document, Mention, Sentence
from headlens.errors import CorpusError

_COMMENT = re.compile(r"#\s*(?P<name>newdoc|global\.Entity|text)(?:\s+id)?\s*(?:=(?P<value>.*))?")


def read_conllu(path: str | os.PathLike[str], *, on_bad: OnBad | None = None) -> Iterator[Document]:
    """The documents of a CoNLL-U file (universaldependencies.org/format), read as they are asked for.

    A document begins at `# newdoc`; a sentence before the first of these is a document of its own, as is every
    sentence of a file without any. Words are the rows with a whole number for their id: those of multiword tokens
    ("1-2") and empty nodes ("8.1") are none. Heads and relations are HEAD and DEPREL; a column that is "_" throughout a
    sentence is not annotated (None). `mentions` is None.

    The text of a sentence is `# text` where it spells the forms up to white space, else the forms put together by
    SpaceAfter. Words of a multiword token whose forms spell it ("can" + "not") have their own characters of it; those
    of any other ("in" + "dem" for "im") share all of its characters.

    Ids are "name (file.conllu:1)" of a document with a name, "file.conllu:1" of one without (the line of `# newdoc`),
    and "file.conllu:3" of a sentence (its first row).

    Raises CorpusError: at once where there is no such file; while reading, for a file without a sentence or in UTF-16,
    and for a sentence with a line that is not UTF-8, too long, or no row of ten columns, with ids that do not count
    from 1, an empty form, a multiword token that has not these words, or heads that are no tree with one root. With
    `on_bad` such a sentence is left out.
    """
    return _documents(existing_file(path), on_bad, has_mentions=False)


def read_gum(path: str | os.PathLike[str], *, on_bad: OnBad | None = None) -> Iterator[Document]:
    """As `read_conllu`, with the mentions that `Entity=` in MISC marks as the GUM corpus does (Zeldes 2017).

    `# global.Entity` tells which field of an opening bracket is GRP, the entity. A bracket on the row of a multiword
    token opens at its first word and closes at its last. Mentions of one entity may be nested, and those of several
    may overlap. SplitAnte and Bridge are no identity and are not read. Mentions that are not continuous, or stand on
    an empty node, are refused.

    Raises CorpusError also for a file without `# global.Entity` before its first sentence, for one that has no GRP, and
    for brackets that cannot be read or do not match. With `on_bad` a document with such a bracket, or with a sentence
    that cannot be read, keeps its other sentences and has no mentions (None): some of them would be missing.
    """
    return _documents(existing_file(path), on_bad, has_mentions=True)


# ----------------------------------------------------------------------------------------------------------- documents


class _Comments(NamedTuple):
    newdoc: tuple[int, str] | None = None  # line and name, which may be empty
    entity_fields: tuple[int, str] | None = None
    text: str | None = None


@dataclass
class _Draft:
    """A document as far as it is read; `id` is None for a sentence that is one by itself."""

    id: str | None
    mentions: Mentions | None
    sentences: list[Sentence] = field(default_factory=list)
    n_words: int = 0

    def document(self, on_bad: OnBad | None) -> Document:
        return Document.of_sentences(self.sentences, self.id or self.sentences[0].id, mentions=self._mentions(on_bad))

    def _mentions(self, on_bad: OnBad | None) -> tuple[Mention, ...] | None:
        try:
            return None if self.mentions is None else self.mentions.finished()
        except CorpusError as error:
            if on_bad is None:
                raise
            on_bad(error)
            return None


def _documents(file: Path, on_bad: OnBad | None, *, has_mentions: bool) -> Iterator[Document]:
    nothing = "no sentence in it can be read" if on_bad else "there is no sentence in it"
    yield from at_least_one(
        (draft.document(on_bad) for draft in _drafts(file, on_bad, has_mentions) if draft.sentences),
        f"{file}: expected sentences in CoNLL-U, {nothing}; name a file that holds some.",
    )


def _drafts(file: Path, on_bad: OnBad | None, has_mentions: bool) -> Iterator[_Draft]:
    draft: _Draft | None = None
    entity_field: int | None = None
    for block in blocks(file):
        comments = _comments(block)
        if comments.newdoc:
            if draft:
                yield draft
            draft = _Draft(_document_id(file, *comments.newdoc), Mentions() if has_mentions else None)
        if comments.entity_fields is not None and has_mentions:
            number, fields = comments.entity_fields
            entity_field = field_of_entity(fields, f"{file}, line {number}")
        if not _has_rows(block):
            continue
        if has_mentions and entity_field is None:
            raise CorpusError(
                f"{file}, line {block.lines[0][0]}: expected '# global.Entity = GRP-...' before the first sentence, as "
                "in the GUM corpus; name a file of GUM, or read this one as conllu:FILE."
            )
        target = draft or _Draft(None, Mentions() if has_mentions else None)
        _take(block, comments.text, target, entity_field, on_bad)
        if draft is None:
            yield target
    if draft:
        yield draft


def _take(block: Block, text: str | None, draft: _Draft, entity_field: int | None, on_bad: OnBad | None) -> None:
    """Put the sentence of a block into a draft, and its brackets."""
    try:
        rows = Rows(block)
        sentence = rows.sentence(text)
        before, draft.n_words = draft.n_words, draft.n_words + len(sentence.words)
        draft.sentences.append(sentence)
        if draft.mentions is not None and entity_field is not None:
            _add_brackets(rows, draft.mentions, before, entity_field)
    except CorpusError as error:
        if on_bad is None:
            raise
        on_bad(error)
        draft.mentions = None


def _comments(block: Block) -> _Comments:
    """What the comments say, as far as they can be read: a sentence that is left out may begin a document."""
    found = _Comments()
    for number, raw in block.lines:
        if raw.startswith(b"#") and (match := _COMMENT.fullmatch(raw.decode("utf-8", "replace").strip())):
            value = (match["value"] or "").strip()
            if match["name"] == "newdoc":
                found = found._replace(newdoc=(number, value))
            elif match["name"] == "text":
                found = found._replace(text=value)
            else:
                found = found._replace(entity_fields=(number, value))
    return found


def _document_id(file: Path, number: int, name: str) -> str:
    place = f"{file.name}:{number}"
    return f"{name} ({place})" if name else place


def _has_rows(block: Block) -> bool:
    return any(not raw.startswith(b"#") for _, raw in block.lines)


# ------------------------------------------------------------------------------------------------------------ mentions


def _add_brackets(rows: Rows, mentions: Mentions, before: int, entity_field: int) -> None:
    """Add the brackets of a sentence that `before` words of its document precede."""
    found = list[tuple[tuple[int, bool], Callable[[str, int, str], None], str, int, str]]()
    for row in rows.marked:
        if "Entity=" not in row.misc:
            continue
        place = rows.place(row.line)
        first, last = row.first, row.stop - 1
        for bracket in _brackets(row, entity_field, place):
            if bracket.opens:
                found.append(((first, False), mentions.open, bracket.entity, first, place))
            if bracket.closes:  # the row of a multiword token stands before those of its words
                found.append(((last, first < last), mentions.close, bracket.entity, last, place))
    for _, take, entity, word, place in sorted(found, key=itemgetter(0)):
        take(entity, before + word, place)


def _brackets(row: Marked, entity_field: int, place: str) -> list[Bracket]:
    values = [entry.removeprefix("Entity=") for entry in row.misc.split("|") if entry.startswith("Entity=")]
    if values and row.is_empty_node:
        raise CorpusError(
            f"{place}: a mention stands on an empty node, which is no word; "
            "take it out, or read the file as conllu:FILE."
        )
    return [bracket for value in values for bracket in gum_brackets(value, entity_field, place)]
