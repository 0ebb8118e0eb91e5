"""Coreference in the columns of CoNLL-2012, and LitBank's variety of them. No torch here."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headlens.corpora.blocks import Block, RawLine, blocks
from headlens.corpora.entities import Mentions, conll_brackets
from headlens.corpora.text import OnBad, at_least_one, existing_file
from headlens.documents import Document, Mention, Sentence
from headlens.errors import CorpusError

FEWEST_COLUMNS = 12  # document, part, number, word, tag, parse, lemma, frameset, sense, speaker, name, ..., coreference
LITBANK_COLUMNS = 13
WORD, TAG = 3, 4

# universaldependencies.org/tagset-conversion/en-penn-uposf.html, but for what the English treebanks of UD do by now:
# modals are AUX, possessive pronouns PRON
UPOS = {
    **dict.fromkeys("# $ SYM".split(), "SYM"),
    **dict.fromkeys("'' `` , . : -LRB- -RRB- HYPH NFP".split(), "PUNCT"),
    **dict.fromkeys("JJ JJR JJS AFX".split(), "ADJ"),
    **dict.fromkeys("RB RBR RBS WRB".split(), "ADV"),
    **dict.fromkeys("NN NNS".split(), "NOUN"),
    **dict.fromkeys("NNP NNPS".split(), "PROPN"),
    **dict.fromkeys("PRP PRP$ WP WP$ EX".split(), "PRON"),
    **dict.fromkeys("DT PDT WDT".split(), "DET"),
    **dict.fromkeys("VB VBD VBG VBN VBP VBZ".split(), "VERB"),
    **dict.fromkeys("IN RP".split(), "ADP"),
    **dict.fromkeys("POS TO".split(), "PART"),
    "CC": "CCONJ",
    "CD": "NUM",
    "MD": "AUX",
    "UH": "INTJ",
}
NOT_ANNOTATED = frozenset({"-", "_", "*"})

_BEGIN = re.compile(r"#begin document\s*\((?P<name>.*)\);?(?:\s*part\s+(?P<part>[0-9]+))?")
_END = "#end document"

Cells = Callable[[str, str], list[str]]  # of a line, and its place for messages


def read_conll2012(path: str | os.PathLike[str], *, on_bad: OnBad | None = None) -> Iterator[Document]:
    """The documents of a file of the CoNLL-2012 task (Pradhan et al. 2012), read as they are asked for.

    A document stands between "#begin document" and "#end document"; each part of one is a document of its own.
    Columns are separated by white space, the last one marks mentions ("-": none). Words are as the file writes them,
    and the text is the words with single spaces between them. Tags of the Penn Treebank become those of Universal
    Dependencies by UPOS, others "X"; where a sentence has none they are None, as are heads and relations always.

    Ids are "name part 0 (file_conll:1)" of a document and "file_conll:2" of a sentence (its first row).

    Raises CorpusError: at once where there is no such file; while reading, for a file without a document or in UTF-16;
    for a sentence with a line that is not UTF-8 or too long, with too few columns or a changing number of them, whose
    words are not counted from 0, that has an empty word, or that stands outside of a document; and for brackets that
    do not match and a document that does not end. With `on_bad` such a sentence is left out, and a document in which
    something is wrong has no mentions (None): some of them would be missing.
    """
    return _documents(existing_file(path), on_bad, _cells, "-")


def read_litbank(path: str | os.PathLike[str], *, on_bad: OnBad | None = None) -> Iterator[Document]:
    """As `read_conll2012`, for LitBank (Bamman et al. 2020): 13 columns separated by tabs, the last one empty where no
    mention begins or ends."""
    return _documents(existing_file(path), on_bad, _litbank_cells, "")


def _cells(line: str, place: str) -> list[str]:
    cells = line.split()
    if len(cells) < FEWEST_COLUMNS:
        raise CorpusError(
            f"{place}: expected at least {FEWEST_COLUMNS} columns separated by white space, got {len(cells)}; "
            "mend the row."
        )
    return cells


def _litbank_cells(line: str, place: str) -> list[str]:
    cells = line.split("\t")
    if len(cells) != LITBANK_COLUMNS:
        raise CorpusError(
            f"{place}: expected {LITBANK_COLUMNS} columns separated by tabs, got {len(cells)}; mend the row."
        )
    return cells


# ----------------------------------------------------------------------------------------------------------- documents


@dataclass
class _Draft:
    """A document as far as it is read. `mentions` is None when something in it could not be read."""

    id: str
    place: str  # where it begins, for messages
    mentions: Mentions | None = field(default_factory=Mentions)
    sentences: list[Sentence] = field(default_factory=list)
    n_words: int = 0


class _Reader:
    """Reads one file block by block."""

    def __init__(self, file: Path, on_bad: OnBad | None, cells: Cells, no_mention: str) -> None:
        self.file, self.on_bad, self.cells, self.no_mention = file, on_bad, cells, no_mention
        self.draft: _Draft | None = None

    def documents(self) -> Iterator[Document]:
        for block in blocks(self.file):
            for part in _parts(block):
                yield from self._read(part)
        yield from self._finished(is_ended=False)

    def _read(self, part: Block) -> Iterator[Document]:
        """Take a mark or a sentence; give the document that ends here."""
        number, raw = part.lines[0]
        if raw.startswith(b"#begin document"):
            yield from self._finished(is_ended=False)
            self.draft = self._begun(number, raw)
        elif raw.startswith(_END.encode()):
            yield from self._finished(is_ended=True)
        elif not raw.startswith(b"#"):
            self._take(part)

    def _begun(self, number: int, raw: bytes) -> _Draft:
        line = raw.decode("utf-8", "replace").strip()
        match = _BEGIN.fullmatch(line)
        name = match["name"] if match else line.removeprefix("#begin document").strip()
        part = f" part {int(match['part'])}" if match and match["part"] else ""
        return _Draft(f"{name}{part} ({self.file.name}:{number})".strip(), f"{self.file}, line {number}")

    def _take(self, block: Block) -> None:
        number = block.lines[0][0]
        try:
            if self.draft is None:
                raise CorpusError(
                    f"{self.file}, line {number}: the row stands outside of a document; a document begins with "
                    "'#begin document (name)' and ends with '#end document': mend the file."
                )
            self._add(self.draft, block)
        except CorpusError as error:
            self._tell(error)

    def _add(self, draft: _Draft, block: Block) -> None:
        rows = [(number, self.cells(line, f"{self.file}, line {number}")) for number, line in block.decoded()]
        sentence = _sentence(self.file, rows)
        before, draft.n_words = draft.n_words, draft.n_words + len(rows)
        draft.sentences.append(sentence)
        if draft.mentions is not None:
            for word, (number, cells) in enumerate(rows, start=before):
                if cells[-1].strip() != self.no_mention:
                    _add_brackets(draft.mentions, cells[-1], word, f"{self.file}, line {number}")

    def _finished(self, *, is_ended: bool) -> Iterator[Document]:
        draft, self.draft = self.draft, None
        if draft is None:
            return
        mentions: tuple[Mention, ...] | None = None
        try:
            if not is_ended:
                raise CorpusError(
                    f"{draft.place}: the document that begins here has no '#end document'; the file may be cut off: "
                    "fetch it again, or mend it."
                )
            mentions = None if draft.mentions is None else draft.mentions.finished()
        except CorpusError as error:
            self._tell(error)
        if draft.sentences:
            yield Document.of_sentences(draft.sentences, draft.id, mentions=mentions)

    def _tell(self, error: CorpusError) -> None:
        if self.on_bad is None:
            raise error
        self.on_bad(error)
        if self.draft is not None:
            self.draft.mentions = None


def _documents(file: Path, on_bad: OnBad | None, cells: Cells, no_mention: str) -> Iterator[Document]:
    nothing = "no sentence in it can be read" if on_bad else "there is no sentence in it"
    yield from at_least_one(
        _Reader(file, on_bad, cells, no_mention).documents(),
        f"{file}: expected documents that begin with '#begin document', {nothing}; name a file that holds some.",
    )


def _parts(block: Block) -> Iterator[Block]:
    """The marks of a block one by one, and the rows between them together."""
    rows = list[RawLine]()
    for line in block.lines:
        if line[1].startswith(b"#"):
            if rows:
                yield Block(block.file, tuple(rows))
            yield Block(block.file, (line,))
            rows = []
        else:
            rows.append(line)
    if rows:
        yield Block(block.file, tuple(rows))


# ----------------------------------------------------------------------------------------------------------- sentences


def _sentence(file: Path, rows: Sequence[tuple[int, list[str]]]) -> Sentence:
    columns = len(rows[0][1])
    for expected, (number, cells) in enumerate(rows):
        if len(cells) != columns:
            raise CorpusError(
                f"{file}, line {number}: the sentence began with {columns} columns, and this row has {len(cells)}; "
                "mend the row."
            )
        if cells[2].strip() != str(expected):
            raise CorpusError(
                f"{file}, line {number}: the third column counts the words of a sentence from 0; expected {expected}, "
                f"got {cells[2][:20]!r}; mend the sentence (a blank line ends it)."
            )
        if not cells[WORD].strip():
            raise CorpusError(f"{file}, line {number}: the word is empty; mend the row.")
    words = tuple(cells[WORD] for _, cells in rows)
    starts = [0]
    for word in words:
        starts.append(starts[-1] + len(word) + 1)
    return Sentence(
        words=words,
        text=" ".join(words),
        spans=tuple((start, start + len(word)) for start, word in zip(starts, words, strict=False)),
        upos=_upos([cells[TAG].strip() for _, cells in rows]),
        id=f"{file.name}:{rows[0][0]}",
    )


def _upos(tags: Sequence[str]) -> tuple[str, ...] | None:
    if all(tag in NOT_ANNOTATED for tag in tags):
        return None
    return tuple(UPOS.get(tag, "X") for tag in tags)


def _add_brackets(mentions: Mentions, cell: str, word: int, place: str) -> None:
    for bracket in conll_brackets(cell.strip(), place):
        if bracket.opens:
            mentions.open(bracket.entity, word, place)
        if bracket.closes:
            mentions.close(bracket.entity, word, place)
