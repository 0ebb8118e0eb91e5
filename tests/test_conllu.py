"""Reading CoNLL-U: small treebanks written by hand, and the counts that the makers of real ones state."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import pytest

from headlens.corpora import blocks
from headlens.corpora.conllu import read_conllu, read_gum
from headlens.documents import ROOT, Document, Sentence
from headlens.errors import CorpusError


def row(id: object, form: str, head: object = "_", relation: str = "_", upos: str = "_", misc: str = "_") -> str:
    return "\t".join([str(id), form, form.lower(), upos, "_", "_", str(head), relation, "_", misc])


TWO_WORDS = [row(1, "Dogs", 2, "nsubj", "NOUN"), row(2, "bark", 0, "root", "VERB", "SpaceAfter=No")]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "t.conllu"


def read(file: Path, *lines: str, **options) -> list[Document]:
    file.write_text("\n".join([*lines, "", ""]), encoding="utf-8")
    return list(read_conllu(file, **options))


def only_sentence(file: Path, *lines: str) -> Sentence:
    [document] = read(file, *lines)
    [sentence] = document.sentences
    return sentence


def characters(sentence: Sentence) -> list[str]:
    return [sentence.text[start:stop] for start, stop in sentence.spans]


def refusal(file: Path, *lines: str) -> str:
    with pytest.raises(CorpusError) as refused:
        read(file, *lines)
    message = str(refused.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message.removeprefix(str(file))


# ------------------------------------------------------------------------------------------------------------ sentences


def test_a_sentence_is_what_its_columns_say(file):
    sentence = only_sentence(file, "# sent_id = a", "# text = Dogs bark", *TWO_WORDS)
    assert sentence == Sentence(
        words=("Dogs", "bark"),
        text="Dogs bark",
        spans=((0, 4), (5, 9)),
        upos=("NOUN", "VERB"),
        lemmas=("dogs", "bark"),
        heads=(1, ROOT),
        relations=("nsubj", "root"),
        id="t.conllu:3",
        space_after=False,
    )


def test_heads_and_relations_are_not_those_of_the_enhanced_graph(file):
    cells = row(1, "a", 0, "root").split("\t")
    cells[8] = "0:root|1:dep"
    assert only_sentence(file, "\t".join(cells)).relations == ("root",)


def test_multiword_tokens_and_empty_nodes_are_no_words(file):
    sentence = only_sentence(
        file,
        row("0.1", "zero"),
        row("1-2", "cannot"),
        row(1, "can", 0, "root"),
        row("1.1", "again"),
        row(2, "not", 1, "advmod"),
        row("2.1", "last"),
        row("2.2", "very last"),
    )
    assert (sentence.words, sentence.heads, sentence.text) == (("can", "not"), (ROOT, 0), "cannot")


def test_words_that_spell_their_token_have_their_own_characters(file):
    sentence = only_sentence(file, row("1-2", "cannot"), row(1, "can"), row(2, "not"), row(3, "go"))
    assert (sentence.text, characters(sentence)) == ("cannot go", ["can", "not", "go"])


def test_words_that_do_not_spell_their_token_share_it(file):
    sentence = only_sentence(file, row(1, "sie"), row("2-3", "im"), row(2, "in"), row(3, "dem"), row(4, "Haus"))
    assert (sentence.text, sentence.spans) == ("sie im Haus", ((0, 3), (4, 6), (4, 6), (7, 11)))


def test_no_space_follows_a_token_where_its_row_says_so_and_not_those_of_its_words(file):
    sentence = only_sentence(
        file,
        row("1-2", "im", misc="Typo=No|SpaceAfter=No"),
        row(1, "in"),
        row(2, "dem"),
        row("3-4", "zum"),
        row(3, "zu", misc="SpaceAfter=No"),
        row(4, "dem", misc="SpaceAfter=No"),
        row(5, "Haus", misc="NoSpaceAfter=No"),
    )
    assert (sentence.text, sentence.space_after) == ("imzum Haus", True)


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("a\u00a0b", ((0, 1), (2, 3))),
        ("a   b", ((0, 1), (4, 5))),
        ("ab", ((0, 1), (1, 2))),
    ],
)
def test_the_text_that_the_file_gives_may_have_any_white_space(file, text, spans):
    sentence = only_sentence(file, f"# text = {text}", row(1, "a"), row(2, "b"))
    assert (sentence.text, sentence.spans) == (text, spans)


@pytest.mark.parametrize(
    "comment", ["# text = a c", "# text = a b c", "# text = a", "# text =", "# text_en = ab", "# newpar", "#text"]
)
def test_a_text_that_does_not_spell_the_forms_is_rebuilt(file, comment):
    sentence = only_sentence(file, comment, row(1, "a"), row(2, "b"))
    assert (sentence.text, sentence.spans) == ("a b", ((0, 1), (2, 3)))


def test_a_form_may_have_a_space_in_it_of_any_kind(file):
    sentence = only_sentence(file, "# text = 10\u00a0000 euros", row(1, "10 000"), row(2, "euros"))
    assert (sentence.words, sentence.spans) == (("10 000", "euros"), ((0, 6), (7, 12)))
    assert only_sentence(file, row(1, "10 000"), row(2, "euros")).text == "10 000 euros"


@pytest.mark.parametrize("form", ["[SEP]", "____", "_", "<s>", "a=b", "|", "'", '"'])
def test_any_form_is_a_word(file, form):
    sentence = only_sentence(file, row(1, "x"), row(2, form))
    assert (sentence.words, sentence.text) == (("x", form), f"x {form}")


def test_columns_of_underscores_are_not_annotated(file):
    line = "\t".join(["1", "a", *["_"] * 8])
    sentence = only_sentence(file, line)
    assert (sentence.upos, sentence.lemmas, sentence.heads, sentence.relations) == (None, None, None, None)


def test_a_column_with_one_entry_is_annotated(file):
    sentence = only_sentence(file, row(1, "a", upos="X"), row(2, "b"))
    assert sentence.upos == ("X", "_")


def test_cells_may_hold_spaces_and_equal_signs(file):
    line = "\t".join(["1", "a", "a", "X", "_", "A=b c=d", "0", "root", "_", 'XML=<ref target:::"x y">|SpaceAfter=No'])
    assert only_sentence(file, line).space_after is False


def test_non_projective_heads_and_late_roots_are_fine(file):
    heads = [3, 4, 4, 0]
    assert only_sentence(file, *(row(n, "x", head) for n, head in enumerate(heads, 1))).heads == (2, 3, 3, ROOT)


# ------------------------------------------------------------------------------------------------------------ documents


def test_a_document_begins_at_newdoc(file):
    documents = read(
        file,
        "# newdoc id = first",
        "# newpar",
        *TWO_WORDS,
        "",
        row(1, "So"),
        "",
        "# newdoc",
        "# sent_id = 3",
        row(1, "Yes"),
    )
    assert [(document.id, document.text) for document in documents] == [
        ("first (t.conllu:1)", "Dogs barkSo"),
        ("t.conllu:8", "Yes"),
    ]
    assert [sentence.id for document in documents for sentence in document.sentences] == [
        "t.conllu:3",
        "t.conllu:6",
        "t.conllu:10",
    ]
    assert [document.mentions for document in documents] == [None, None]


def test_without_newdoc_every_sentence_is_a_document(file):
    documents = read(file, *TWO_WORDS, "", "# a comment", row(1, "So"))
    assert [(document.id, len(document.sentences)) for document in documents] == [("t.conllu:1", 1), ("t.conllu:5", 1)]
    assert all(document.id == document.sentences[0].id for document in documents)


def test_sentences_before_the_first_newdoc_stand_alone(file):
    documents = read(file, row(1, "a"), "", row(1, "b"), "", "# newdoc id = d", row(1, "c"), "", row(1, "d"))
    assert [document.text for document in documents] == ["a", "b", "c d"]


def test_comments_by_themselves_may_begin_a_document(file):
    documents = read(
        file, "# newdoc id = a", "", row(1, "a"), "", "# newdoc id = none", "", "# newdoc id=b", row(1, "b")
    )
    assert [document.id for document in documents] == ["a (t.conllu:1)", "b (t.conllu:7)"]


@pytest.mark.parametrize(
    "mend",
    [
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: data.rstrip(b"\n"),
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: data.replace(b"\n\n", b"\n\n \n\n"),
        lambda data: b"\n" + data,
    ],
    ids=["CRLF", "no last line feed", "byte order mark", "many blank lines", "a blank line first"],
)
def test_line_ends_and_marks_make_no_difference(file, mend):
    read(file, "# text = Dogs bark", *TWO_WORDS, "", row(1, "So"))
    expected = [document.text for document in read_conllu(file)]
    file.write_bytes(mend(file.read_bytes()))
    assert [document.text for document in read_conllu(file)] == expected == ["Dogs bark", "So"]


def test_documents_are_read_as_they_are_asked_for(file):
    file.write_bytes(f"{row(1, 'a')}\n\n{row(1, 'b')}\n\n".encode() + b"\xff\n")
    documents = read_conllu(str(file))
    assert [next(documents).text for _ in range(2)] == ["a", "b"]
    with pytest.raises(CorpusError, match="line 5"):
        next(documents)


# ------------------------------------------------------------------------------------------------------------ bad input

GOOD = row(1, "a", 0, "root")

REFUSED = {
    "nine columns": ([GOOD.rpartition("\t")[0]], ", line 1: expected 10 columns separated by tabs, got 9"),
    "eleven columns": ([GOOD + "\t_"], ", line 1: expected 10 columns separated by tabs, got 11"),
    "spaces": ([GOOD.replace("\t", "  ")], "got 1; here they are separated by spaces: put tabs in their place"),
    "a blank line is missing": ([GOOD, GOOD], ", line 2: ids count the words from 1, so 2 is expected, got '1'"),
    "plain text": (["It was a dark night."], ", line 1: expected 10 columns separated by tabs, got 1; mend the row"),
    "ids from 0": ([row(0, "a")], "so 1 is expected, got '0'"),
    "a gap in ids": ([row(1, "a"), row(3, "b")], ", line 2: ids count the words from 1, so 2 is expected, got '3'"),
    "an id of letters": ([row("x", "a")], "so 1 is expected, got 'x'"),
    "an id with a zero": ([row("01", "a")], "so 1 is expected, got '01'"),
    "an early empty node": ([row("1.1", "a"), row(1, "b")], ", line 1: ids count the words from 1"),
    "only an empty node": ([row("0.1", "a")], ", line 1: a sentence needs at least one word"),
    "a late range": ([row(1, "a"), row("1-2", "ab"), row(2, "b")], ", line 2: the multiword token 1-2 does not fit"),
    "a range of one": ([row("1-1", "a"), row(1, "a")], ", line 1: the multiword token 1-1 does not fit"),
    "a range backwards": ([row("1-0", "a"), row(1, "a")], ", line 1: the multiword token 1-0 does not fit"),
    "a range in a range": (
        [row("1-3", "abc"), row(1, "a"), row("2-3", "bc"), row(2, "b"), row(3, "c")],
        ", line 3: the multiword token 2-3 does not fit in front of word 2",
    ),
    "a range too long": (
        [row("1-3", "ab"), row(1, "a"), row(2, "b")],
        "a multiword token reaches to word 3, and the last",
    ),
    "an endless range": ([row("1-" + "9" * 5000, "ab"), row(1, "a")], "so 1 is expected"),
    "no form": ([row(1, "")], ", line 1: the form of '1' is empty"),
    "a blank form": ([row(1, "a"), row(2, "\u00a0")], ", line 2: the form of '2' is empty"),
    "no form of a token": ([row("1-2", ""), row(1, "a"), row(2, "b")], ", line 1: the form of '1-2' is empty"),
    "a head too far": ([row(1, "a", 0), row(2, "b", 3)], ", line 2: HEAD is 3, and the sentence has 2 words"),
    "a head before 0": ([row(1, "a", -1)], "HEAD is the number of a word or 0, got '-1'"),
    "a head of letters": ([row(1, "a", "x")], "HEAD is the number of a word or 0, got 'x'"),
    "a missing head": ([row(1, "a", 0), row(2, "b")], ", line 2: HEAD is the number of a word or 0, got '_'"),
    "an empty head": ([row(1, "a", "")], "HEAD is the number of a word or 0, got ''"),
    "a head in another script": ([row(1, "a", "٠")], "HEAD is the number of a word or 0"),
    "an endless head": ([row(1, "a", "9" * 5000)], "HEAD is the number of a word or 0"),
    "no root": ([row(1, "a", 2), row(2, "b", 1)], ", line 1: one word of a sentence has head 0, and no word has it"),
    "two roots": ([row(1, "a", 0), row(2, "b", 0)], ", line 2: one word of a sentence has head 0, and a second word"),
    "its own head": ([row(1, "a", 0), row(2, "b", 2)], ", line 2: the heads above word 2 lead back to it"),
    "a cycle": (
        [row(1, "a", 0), row(2, "b", 1), row(3, "c", 5), row(4, "d", 3), row(5, "e", 4)],
        "lead back to it, not to the root",
    ),
    "a control character": ([row(1, "a\x07")], ", line 1: character 4 is the control character U+0007"),
    "only comments": (["# newdoc id = a", "# text = a"], ": expected sentences in CoNLL-U, there is no sentence in it"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_sentence_is_refused_with_its_line(file, case):
    lines, message = REFUSED[case]
    assert message in refusal(file, *lines)


BROKEN_FILES = {
    "empty": (b"", ": expected sentences in CoNLL-U, there is no sentence in it"),
    "blank": (b"\n \r\n\n", ": expected sentences in CoNLL-U, there is no sentence in it"),
    "Latin-1": (row(1, "café").encode("latin-1"), ", line 1: byte 6 of the line (0xE9) is not UTF-8"),
    "UTF-16": (row(1, "a").encode("utf-16"), ": expected UTF-8, this is UTF-16"),
    "binary": (b"\x7fELF\x02\x01\x01\x00", ", line 1: character 1 is the control character U+007F"),
    "lone carriage returns": (row(1, "a").encode() + b"\r" + row(2, "b").encode(), "is the control character U+000D"),
}


@pytest.mark.parametrize("case", BROKEN_FILES)
def test_what_is_no_text_is_refused(file, case):
    data, message = BROKEN_FILES[case]
    file.write_bytes(data)
    with pytest.raises(CorpusError) as refused:
        list(read_conllu(file))
    assert message in str(refused.value).removeprefix(str(file))


def test_a_missing_file_is_refused_at_once(tmp_path):
    with pytest.raises(CorpusError, match="there is no such file"):
        read_conllu(tmp_path / "no.conllu")


class _Watched(io.BufferedReader):
    """A file that notes how much is asked of it at once."""

    largest = 0

    def readline(self, size: int | None = -1) -> bytes:
        line = super().readline(size)
        self.largest = max(self.largest, len(line))
        return line


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
def test_a_line_without_an_end_is_not_read_whole(file, monkeypatch, start):
    monkeypatch.setattr(blocks, "LONGEST_LINE", 100)
    monkeypatch.setattr(blocks, "_READ_AT_ONCE", 104)
    file.write_bytes(start + b"x" * 1000 + b"\n\n" + row(1, "fine").encode())
    watched = _Watched(io.FileIO(file))
    monkeypatch.setattr(blocks, "open_file", lambda _: watched)
    seen = list[CorpusError]()
    assert [document.id for document in read_conllu(file, on_bad=seen.append)] == ["t.conllu:3"]
    assert [str(error).removeprefix(str(file)) for error in seen] == [
        ", line 1: the line has more than 100 bytes, so this is no file of words, one a line; name another file."
    ]
    assert watched.largest == 104


@pytest.mark.parametrize("start", ["", "\ufeff"], ids=["plain", "byte order mark"])
@pytest.mark.parametrize("end", ["", "\n"], ids=["no line feed", "line feed"])
def test_lines_up_to_a_mebibyte_are_read(file, start, end):
    others = len("1\t" + "\t_" * 8 + end)
    file.write_text(start + "1\t" + "x" * (2**20 - others) + "\t_" * 8 + end, encoding="utf-8")
    [document] = read_conllu(file)
    assert len(document.text) == 2**20 - others
    file.write_text(start + "1\t" + "x" * (2**20 - others + 1) + "\t_" * 8 + end, encoding="utf-8")
    with pytest.raises(CorpusError, match="line 1: the line has more than 1,048,576 bytes"):
        list(read_conllu(file))


def test_a_file_without_blank_lines_is_not_read_whole(file, monkeypatch):
    monkeypatch.setattr(blocks, "MOST_LINES", 5)
    assert len(only_sentence(file, *(row(n, "a") for n in range(1, 6))).words) == 5
    message = refusal(file, *(row(n, "a") for n in range(1, 7)))
    assert ", line 1: expected a blank line after every sentence, got 5 lines without one" in message
    file.write_text((row(1, "a") + "\n") * 100 + "\n" + row(1, "b"))
    assert [len(block.lines) for block in blocks.blocks(file)] == [6, 1]


# --------------------------------------------------------------------------------------------------------- going on


def test_reading_goes_on_behind_a_bad_sentence(file):
    seen = list[CorpusError]()
    documents = read(
        file,
        "# newdoc id = a",
        row(1, "one"),
        "",
        row(1, "two"),
        row(1, "again"),
        "",
        "# newdoc id = b",
        row(2, "three"),
        "",
        row(1, "four"),
        on_bad=seen.append,
    )
    assert [(document.id, document.text) for document in documents] == [
        ("a (t.conllu:1)", "one"),
        ("b (t.conllu:7)", "four"),
    ]
    assert [str(error).split(":")[0].rpartition(", ")[2] for error in seen] == ["line 5", "line 8"]


def test_bytes_that_are_no_text_spoil_their_sentence_only(file):
    file.write_bytes(
        f"# newdoc id = a\n{row(1, 'a')}\n\n# newdoc id = ".encode()
        + b"\xff\n"
        + f"{row(1, 'b')}\n\n{row(1, 'c')}".encode()
    )
    seen = list[CorpusError]()
    documents = list(read_conllu(file, on_bad=seen.append))
    assert [document.text for document in documents] == ["a", "c"]
    assert len(seen) == 1


def test_a_file_of_bad_sentences_only_is_refused(file):
    seen = list[CorpusError]()
    with pytest.raises(CorpusError, match="expected sentences in CoNLL-U, no sentence in it can be read"):
        read(file, row(2, "a"), "", row(3, "b"), on_bad=seen.append)
    assert len(seen) == 2


# ------------------------------------------------------------------------------------------------------------ real data

# Sentences, words and documents as counted when the files were cut; 0 documents: none is marked
COUNTS = {
    "de_gsd-ud-dev": (799, 12_480, 0),
    "de_gsd-ud-test": (977, 16_499, 0),
    "en_ewt-ud-dev": (2_001, 25_147, 318),
    "en_ewt-ud-test": (2_077, 25_094, 316),
    "en_gum-ud-dev": (1_575, 28_119, 30),
    "en_gum-ud-test": (1_464, 28_397, 30),
    "en_pud-ud-test": (1_000, 21_180, 397),
    "zh_gsdsimp-ud-dev": (500, 12_663, 0),
    "zh_gsdsimp-ud-test": (500, 12_012, 0),
}


# Mentions, entities, and those of one mention
COREFERENCE = {"en_gum-ud-dev": (7_897, 3_940, 2_838), "en_gum-ud-test": (7_927, 4_319, 3_225)}


@pytest.fixture(scope="module", params=COUNTS)
def treebank(request: pytest.FixtureRequest, data_folder: Path) -> tuple[Path, list[Document]]:
    path = data_folder / "ud" / f"{request.param}.conllu"
    return path, list((read_gum if request.param in COREFERENCE else read_conllu)(path))


def test_treebanks_have_the_counts_that_are_stated(treebank):
    path, documents = treebank
    n_sentences, n_words, n_documents = COUNTS[path.stem]
    sentences = [sentence for document in documents for sentence in document.sentences]
    assert len(documents) == (n_documents or n_sentences)
    assert (len(sentences), sum(len(sentence.words) for sentence in sentences)) == (n_sentences, n_words)


def test_gum_has_the_mentions_that_are_stated(treebank):
    path, documents = treebank
    sizes = Counter((document.id, mention.entity) for document in documents for mention in document.mentions or ())
    found = (sizes.total(), len(sizes), sum(size == 1 for size in sizes.values()))
    assert found == COREFERENCE.get(path.stem, (0, 0, 0))


def test_every_word_stands_on_its_form_or_shares_a_token(treebank):
    path, documents = treebank
    surfaces, texts = _surfaces(path)
    found = [sentence for document in documents for sentence in document.sentences]
    assert [sentence.text for sentence in found] == texts
    for sentence, tokens in zip(found, surfaces, strict=True):
        sharing = Counter(sentence.spans)
        for word, span in zip(sentence.words, sentence.spans, strict=True):
            standing = sentence.text[slice(*span)]
            assert standing == word or (sharing[span] > 1 and standing in tokens), (sentence.id, word, standing)


def _surfaces(path: Path) -> tuple[list[set[str]], list[str]]:
    """Forms of the multiword tokens of every sentence, and its text, by a plain look at the lines."""
    paragraphs = [paragraph.split("\n") for paragraph in path.read_text(encoding="utf-8").strip().split("\n\n")]
    surfaces = [
        {line.split("\t")[1] for line in lines if line[0] != "#" and "-" in line.split("\t")[0]} for lines in paragraphs
    ]
    texts = [next(line[9:] for line in lines if line.startswith("# text = ")).strip() for lines in paragraphs]
    return surfaces, texts
