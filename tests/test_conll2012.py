"""Reading the columns of CoNLL-2012 and of LitBank."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from headlens.corpora.conll2012 import UPOS, read_conll2012, read_litbank
from headlens.documents import Document, Mention, Sentence
from headlens.errors import CorpusError

BEGIN, END = "#begin document (nw/a); part 000", "#end document"


def row(number: int, word: str, mention: str = "-", tag: str = "-", *, part: int = 0) -> str:
    return "\t".join(["nw/a", str(part), str(number), word, tag, "*", "-", "-", "-", "Speaker#1", "*", mention])


def litbank_row(number: int, word: str, mention: str = "") -> str:
    return "\t".join(["24_o_pioneers", "0", str(number), word, *["_"] * 8, mention])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "f_conll"


def read(file: Path, *lines: str, reader=read_conll2012, **options) -> list[Document]:
    file.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return list(reader(file, **options))


DOCUMENT = [
    BEGIN,
    row(0, "The", "(1", "DT"),
    row(1, "dog", "1)", "NN"),
    row(2, "'s", "-", "POS"),
    "",
    row(0, "Its", "(2|(1)"),
    row(1, "owner", "2)"),
    "",
    END,
]


def test_a_document_is_what_its_columns_say(file):
    [document] = read(file, *DOCUMENT)
    assert (document.id, document.text) == ("nw/a part 0 (f_conll:1)", "The dog 's Its owner")
    assert document.sentences == (
        Sentence(
            ("The", "dog", "'s"), "The dog 's", ((0, 3), (4, 7), (8, 10)), ("DET", "NOUN", "PART"), id="f_conll:2"
        ),
        Sentence(("Its", "owner"), "Its owner", ((0, 3), (4, 9)), id="f_conll:6"),
    )
    assert document.mentions == (Mention(0, 2, "1"), Mention(3, 4, "1"), Mention(3, 5, "2"))


@pytest.mark.parametrize(
    "mend",
    [
        lambda text: text.replace("\t", "     "),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\ufeff" + text.rstrip("\n"),
        lambda text: text.replace("\n\n#end", "\n#end"),
        lambda text: text.replace("#begin", "\n\n#begin"),
        lambda text: text.replace("#begin", "# a comment\n#begin"),
    ],
    ids=["spaces", "CRLF", "byte order mark", "no blank line before the end", "blank lines first", "a comment"],
)
def test_white_space_makes_no_difference(file, mend):
    expected = read(file, *DOCUMENT)
    file.write_bytes(mend("\n".join([*DOCUMENT, ""])).encode())
    found = list(read_conll2012(file))
    assert [(d.text, d.mentions) for d in found] == [(d.text, d.mentions) for d in expected]


def test_parts_of_a_document_are_documents(file):
    documents = read(
        file,
        BEGIN,
        row(0, "a", "(1)"),
        END,
        "#begin document (nw/a); part 012",
        row(0, "b", "(1)", part=12),
        "",
        END,
        "#begin document (other)",
        row(0, "c"),
        END,
    )
    assert [(document.id, document.text, document.mentions) for document in documents] == [
        ("nw/a part 0 (f_conll:1)", "a", (Mention(0, 1, "1"),)),
        ("nw/a part 12 (f_conll:4)", "b", (Mention(0, 1, "1"),)),
        ("other (f_conll:8)", "c", ()),
    ]


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("PRP PRP$ WP WP$", "PRON PRON PRON PRON"),
        ("NNP NNPS NN NNS", "PROPN PROPN NOUN NOUN"),
        ("VBD MD TO VB", "VERB AUX PART VERB"),
        ("IN CC CD UH", "ADP CCONJ NUM INTJ"),
        ("JJR RBS DT EX", "ADJ ADV DET PRON"),
        (", -LRB- HYPH $", "PUNCT PUNCT PUNCT SYM"),
        ("NN - XX _", "NOUN X X X"),
        ("- - - -", None),
        ("_ _ _ _", None),
    ],
)
def test_tags_of_the_penn_treebank_become_universal_ones(file, tags, expected):
    rows = [row(number, "w", "-", tag) for number, tag in enumerate(tags.split())]
    [document] = read(file, BEGIN, *rows, "", END)
    assert document.sentences[0].upos == (None if expected is None else tuple(expected.split()))


def test_every_universal_tag_is_one_of_the_seventeen():
    assert set(UPOS.values()) <= set(
        "ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X".split()
    )


def test_litbank_leaves_the_last_column_empty(file):
    [document] = read(
        file,
        "#begin document (24_o_pioneers); part 0",
        litbank_row(0, "PART"),
        litbank_row(1, "I"),
        "",
        litbank_row(0, "Emil", "(3"),
        litbank_row(1, "Bergson", "3)"),
        END,
        reader=read_litbank,
    )
    assert (document.text, document.mentions) == ("PART I Emil Bergson", (Mention(2, 4, "3"),))
    assert document.sentences[0].upos is None
    assert document.sentences[0].heads is None


REFUSED = {
    "few columns": (
        [BEGIN, "a\t0\t0\tword\t-"],
        ", line 2: expected at least 12 columns separated by white space, got 5",
    ),
    "plain text": (["A dark night."], ", line 1: the row stands outside of a document"),
    "other columns": (
        [BEGIN, row(0, "a"), row(1, "b") + "\t-"],
        ", line 3: the sentence began with 12 columns, and this",
    ),
    "a gap in numbers": ([BEGIN, row(0, "a"), row(2, "b")], ", line 3: the third column counts the words"),
    "from 1": ([BEGIN, row(1, "a")], "expected 0, got '1'"),
    "no blank line": ([BEGIN, row(0, "a"), row(0, "b")], "expected 1, got '0'"),
    "behind the end": ([*DOCUMENT, row(0, "a")], ", line 10: the row stands outside of a document"),
    "no end": (DOCUMENT[:-1], ", line 1: the document that begins here has no '#end document'"),
    "no end in between": (
        [*DOCUMENT[:-1], *DOCUMENT],
        ", line 1: the document that begins here has no '#end document'",
    ),
    "closing alone": ([BEGIN, row(0, "a", "1)"), END], ", line 2: a mention of entity 1 closes here and none is open"),
    "never closed": (
        [BEGIN, row(0, "a", "(1"), END],
        ", line 2: the mention of entity 1 that opens here does not close",
    ),
    "no bracket": ([BEGIN, row(0, "a", "_"), END], ", line 2: '_' is no row of brackets"),
    "a control character": ([BEGIN, row(0, "a\x07"), END], ", line 2: character 11 is the control character U+0007"),
    "no document": ([""], ": expected documents that begin with '#begin document', there is no sentence in it"),
    "an empty document": ([BEGIN, END], ": expected documents that begin with '#begin document', there is no sentence"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_document_is_refused_with_its_line(file, case):
    lines, message = REFUSED[case]
    with pytest.raises(CorpusError) as refused:
        read(file, *lines)
    assert message in str(refused.value).removeprefix(str(file))
    assert str(refused.value).startswith(str(file))
    assert str(refused.value).endswith(".")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (litbank_row(0, "a").replace("\t", " "), "expected 13 columns separated by tabs, got 1"),
        (litbank_row(0, ""), "line 2: the word is empty"),
        (litbank_row(0, "a").removesuffix("\t"), "expected 13 columns separated by tabs, got 12"),
        (litbank_row(0, "a", "-"), "'-' is no row of brackets"),
    ],
)
def test_litbank_is_read_strictly(file, line, message):
    with pytest.raises(CorpusError, match=message):
        read(file, BEGIN, line, END, reader=read_litbank)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "there is no sentence in it"),
        (BEGIN.encode("utf-16"), "expected UTF-8, this is UTF-16"),
        (f"{BEGIN}\n{row(0, 'café')}\n".encode("latin-1"), r"line 2: byte 13 of the line \(0xE9\) is not UTF-8"),
    ],
)
def test_what_is_no_text_is_refused(file, data, message):
    file.write_bytes(data)
    with pytest.raises(CorpusError, match=message):
        list(read_conll2012(file))


@pytest.mark.parametrize("reader", [read_conll2012, read_litbank])
def test_a_missing_file_is_refused_at_once(tmp_path, reader):
    with pytest.raises(CorpusError, match="there is no such file"):
        reader(tmp_path / "no")


BAD_DOCUMENTS = {
    "a bad sentence": ([BEGIN, row(0, "a", "(1)"), "", row(1, "b"), "", row(0, "c", "(1)"), END], "a c"),
    "a bad bracket": ([BEGIN, row(0, "a", "(1)"), "", row(0, "b", "2)"), END], "a b"),
    "an open bracket": ([BEGIN, row(0, "a", "(1)"), "", row(0, "b", "(2"), END], "a b"),
    "no end": ([BEGIN, row(0, "a", "(1)"), ""], "a"),
}


@pytest.mark.parametrize("case", BAD_DOCUMENTS)
def test_a_document_with_something_bad_keeps_its_sentences_and_loses_its_mentions(file, case):
    lines, text = BAD_DOCUMENTS[case]
    seen = list[CorpusError]()
    bad, good = read(file, *lines, "#begin document (g)", row(0, "x", "(1)"), END, on_bad=seen.append)
    assert len(seen) == 1
    assert (bad.text, bad.mentions) == (text, None)
    assert (good.text, good.mentions) == ("x", (Mention(0, 1, "1"),))


def test_rows_outside_of_documents_are_left_out(file):
    seen = list[CorpusError]()
    [document] = read(file, row(0, "a"), "", *DOCUMENT, row(0, "b"), on_bad=seen.append)
    assert len(seen) == 2
    assert document.mentions is not None
    with pytest.raises(CorpusError, match="no sentence in it can be read"):
        read(file, row(0, "a"), on_bad=seen.append)


# ------------------------------------------------------------------------------------------------------------ real data


# Sentences, words, mentions, entities, and those of one mention
LITBANK = {
    "158_emma": (77, 2_063, 319, 61, 40),
    "1661_the_adventures_of_sherlock_holmes": (113, 2_095, 287, 53, 36),
    "24_o_pioneers": (106, 2_041, 334, 99, 76),
    "32_herland": (118, 2_005, 305, 101, 81),
    "514_little_women": (85, 2_014, 288, 55, 37),
}


@pytest.mark.parametrize("name", LITBANK)
def test_litbank_has_the_counts_that_are_stated(data_folder, name):
    [document] = read_litbank(data_folder / "coref" / "litbank" / f"{name}_brat.conll")
    assert (len(document.sentences), document.n_words, *coreference([document])) == LITBANK[name]


def test_winobias_in_columns_has_the_counts_that_are_stated(data_folder):
    path = data_folder / "coref" / "winobias" / "dev_type1_pro_stereotype.first100.v4_auto_conll"
    documents = list(read_conll2012(path))
    assert (len(documents), sum(document.n_words for document in documents)) == (100, 1_371)
    assert coreference(documents) == (202, 100, 0)


def coreference(documents: list[Document]) -> tuple[int, int, int]:
    sizes = Counter((document.id, mention.entity) for document in documents for mention in document.mentions or ())
    return sizes.total(), len(sizes), sum(size == 1 for size in sizes.values())
