"""Writing CoNLL-U: what is written is valid by a check of its own, and is read back as it was."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from drawn_words import bare, parsed

from headlens.corpora.conllu import read_conllu, read_gum
from headlens.corpora.conllu_writing import write_conllu
from headlens.documents import ROOT, Candidate, Choice, Document, Mention, Sentence
from headlens.errors import CorpusError, OutputError

TREEBANK = Path(__file__).with_name("treebank.conllu")

CAT = parsed("The DET 2 det the", "cat NOUN 3 nsubj", "sleeps VERB 0 root sleep")
IM = Sentence(
    words=("sie", "in", "dem", "Haus"),
    text="sie im Haus",
    spans=((0, 3), (4, 6), (4, 6), (7, 11)),
    upos=("PRON", "ADP", "DET", "NOUN"),
    lemmas=("sie", "in", "der", "Haus"),
    heads=(ROOT, 3, 3, 0),
    relations=("root", "case", "det", "obl"),
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "w.conllu"


def nameless(document: Document) -> Document:
    return replace(document, id="", sentences=tuple(replace(sentence, id="") for sentence in document.sentences))


def document(*sentences: Sentence, mentions: Sequence[Mention] | None = None, id: str = "d") -> Document:
    return Document.of_sentences(sentences, id, mentions=mentions)


def read_back(file: Path, *documents: Document) -> list[Document]:
    write_conllu(documents, file)
    assert_valid(file)
    read = read_conllu if documents[0].mentions is None else read_gum
    return [nameless(one) for one in read(file)]


def rows_of(file: Path) -> list[list[str]]:
    lines = file.read_text(encoding="utf-8").split("\n")
    return [line.split("\t") for line in lines if line and not line.startswith("#")]


def refusal(file: Path, *documents: Document) -> str:
    with pytest.raises(CorpusError) as refused:
        write_conllu(documents, file)
    assert not list(file.parent.iterdir())  # neither the file nor half of it
    message = str(refused.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


def assert_valid(file: Path) -> None:
    """The rules of universaldependencies.org/format, each checked by itself."""
    data = file.read_bytes().decode("utf-8")
    assert data.endswith("\n\n")
    assert "\n\n\n" not in data
    assert "\r" not in data
    ids = re.findall(r"^# sent_id = (\S+)$", data, flags=re.MULTILINE)
    blocks = data.removesuffix("\n\n").split("\n\n")
    assert len(set(ids)) == len(ids) == len(blocks)
    for block in blocks:
        lines = block.split("\n")
        comments = [line for line in lines if line.startswith("# ")]
        assert lines[: len(comments)] == comments
        rows = [line.split("\t") for line in lines[len(comments) :]]
        assert_valid_rows(rows)
        [text] = [line.removeprefix("# text = ") for line in comments if line.startswith("# text = ")]
        assert re.sub(r"\s+", " ", text) == spelled(rows)


def assert_valid_rows(rows: list[list[str]]) -> None:
    assert {len(row) for row in rows} == {10}
    assert all(cell and cell == cell.strip() for row in rows for cell in row)
    for row in rows:
        assert not any(" " in cell for number, cell in enumerate(row) if number not in (1, 2, 9))
        keys = [entry.partition("=")[0] for entry in row[9].split("|")]
        assert len(set(keys)) == len(keys)
    words = [row for row in rows if "-" not in row[0]]
    assert [row[0] for row in words] == [str(number) for number in range(1, len(words) + 1)]
    heads = [row[6] for row in words]
    assert heads.count("0") == 1 or set(heads) == {"_"}
    assert all(head == "_" or 0 <= int(head) <= len(words) for head in heads)
    last = 0
    for place, row in enumerate(rows):
        if "-" in row[0]:
            first, stop = map(int, row[0].split("-"))
            assert last < first < stop <= len(words)
            assert rows[place + 1][0] == str(first)
            assert row[2:9] == ["_"] * 7
            last = stop
        elif int(row[0]) <= last:
            assert "SpaceAfter=No" not in row[9]


def spelled(rows: list[list[str]]) -> str:
    text, covered = "", 0
    for row in rows:
        first, _, last = row[0].partition("-")
        if int(first) > covered:
            covered = int(last or first)
            text += re.sub(r"\s+", " ", row[1]) + ("" if "SpaceAfter=No" in row[9].split("|") else " ")
    return text.strip()


# ---------------------------------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("read", [read_conllu, read_gum])
def test_a_treebank_is_read_back_as_it_was(file, read):
    documents = list(read(TREEBANK))
    write_conllu(iter(documents), file)
    assert_valid(file)
    assert [nameless(one) for one in read(file)] == [nameless(one) for one in documents]
    assert ("Entity" in file.read_text()) == (read is read_gum)


# In a process of its own, where no type is checked at run time: whole treebanks take a second each
ROUND_TRIP = """
import sys
from dataclasses import replace
from headlens.corpora.conllu import read_conllu, read_gum
from headlens.corpora.conllu_writing import write_conllu

def nameless(document):
    return replace(document, id="", sentences=tuple(replace(sentence, id="") for sentence in document.sentences))

read = {"conllu": read_conllu, "gum": read_gum}[sys.argv[1]]
documents = list(read(sys.argv[2]))
write_conllu(documents, sys.argv[3])
assert [nameless(one) for one in read(sys.argv[3])] == [nameless(one) for one in documents]
print(len(documents))
"""


@pytest.mark.parametrize(
    ("kind", "name", "documents"),
    [
        ("gum", "en_gum-ud-dev.conllu", 30),
        ("conllu", "en_ewt-ud-test.conllu", 316),
        ("conllu", "de_gsd-ud-test.conllu", 977),
        ("conllu", "zh_gsdsimp-ud-dev.conllu", 500),
    ],
)
def test_real_treebanks_are_read_back_as_they_were(data_folder, file, kind, name, documents):
    command = [sys.executable, "-c", ROUND_TRIP, kind, str(data_folder / "ud" / name), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, str(documents)), done.stderr
    assert_valid(file)


def test_the_rows_of_a_sentence(file):
    write_conllu([document(replace(CAT, space_after=False), mentions=[Mention(0, 2, "7")])], file)
    assert file.read_text() == (
        "# newdoc id = d\n"
        "# global.Entity = GRP\n"
        "# sent_id = 1-1\n"
        "# text = The cat sleeps\n"
        "1\tThe\tthe\tDET\t_\t_\t2\tdet\t_\tEntity=(7\n"
        "2\tcat\tcat\tNOUN\t_\t_\t3\tnsubj\t_\tEntity=7)\n"
        "3\tsleeps\tsleep\tVERB\t_\t_\t0\troot\t_\tSpaceAfter=No\n"
        "\n"
    )


def test_names_of_documents_stay_without_the_place_where_they_were_read(file, tmp_path):
    documents = [document(CAT, id="first (old.conllu:1)"), document(CAT, id="old.conllu:9"), document(CAT, id="a\nb")]
    write_conllu(documents, file)
    lines = [line for line in file.read_text().split("\n") if line.startswith("# newdoc")]
    assert lines == ["# newdoc id = first", "# newdoc id = old.conllu:9", "# newdoc id = a b"]
    again = tmp_path / "again.conllu"
    write_conllu(read_conllu(file), again)
    assert again.read_bytes() == file.read_bytes()


def test_documents_and_sentences_keep_their_borders(file):
    documents = [document(CAT, replace(IM, space_after=False), CAT), document(IM), document(CAT)]
    assert read_back(file, *documents) == [nameless(one) for one in documents]


def test_words_on_the_same_characters_are_one_multiword_token(file):
    assert read_back(file, document(IM)) == [nameless(document(IM))]
    assert [row[:2] for row in rows_of(file)] == [
        ["1", "sie"],
        ["2-3", "im"],
        ["2", "in"],
        ["3", "dem"],
        ["4", "Haus"],
    ]


def test_multiword_tokens_side_by_side_and_at_the_end(file):
    sentence = Sentence(("in", "dem", "zu", "der"), "imzur", ((0, 2), (0, 2), (2, 5), (2, 5)), space_after=False)
    assert read_back(file, document(sentence)) == [nameless(document(sentence))]
    assert [(row[0], row[9]) for row in rows_of(file)] == [
        ("1-2", "SpaceAfter=No"),
        ("1", "_"),
        ("2", "_"),
        ("3-4", "SpaceAfter=No"),
        ("3", "_"),
        ("4", "_"),
    ]


@pytest.mark.parametrize("field", ["upos", "lemmas", "heads", "relations"])
def test_what_is_not_annotated_stays_so(file, field):
    sentence = replace(CAT, **{field: None})
    assert read_back(file, document(sentence)) == [nameless(document(sentence))]
    column = {"upos": 3, "lemmas": 2, "heads": 6, "relations": 7}[field]
    assert {row[column] for row in rows_of(file)} == {"_"}


@pytest.mark.parametrize("mentions", [None, []])
def test_a_sentence_of_mere_words_may_have_no_annotation_or_no_mentions(file, mentions):
    assert read_back(file, document(bare("a b"), mentions=mentions)) == [
        nameless(document(bare("a b"), mentions=mentions))
    ]


@pytest.mark.parametrize(
    ("words", "text", "spans"),
    [
        (("can", "not"), "cannot", ((0, 3), (3, 6))),
        (("a", "b"), "a\u00a0b", ((0, 1), (2, 3))),
        (("a", "b"), "a   b", ((0, 1), (4, 5))),
        (("10 000", "x"), "10 000 x", ((0, 6), (7, 8))),
        (("#", "=", "|", "_", "Entity=(1)"), "# = | _ Entity=(1)", ((0, 1), (2, 3), (4, 5), (6, 7), (8, 18))),
        (("猫", "は"), "猫は", ((0, 1), (1, 2))),
        (("text", "=", "x"), "text = x", ((0, 4), (5, 6), (7, 8))),
    ],
)
def test_any_words_and_spaces_between_them(file, words, text, spans):
    sentence = Sentence(words, text, spans)
    assert read_back(file, document(sentence)) == [nameless(document(sentence))]


# ------------------------------------------------------------------------------------------------------------- mentions

FIVE = bare("a b c d e")


@pytest.mark.parametrize(
    ("mentions", "cells"),
    [
        ([(0, 1, "1")], ["(1)", "", "", "", ""]),
        ([(0, 3, "1"), (1, 2, "2")], ["(1", "(2)", "1)", "", ""]),
        ([(0, 3, "1"), (0, 2, "2")], ["(1(2", "2)", "1)", "", ""]),
        ([(0, 2, "1"), (0, 1, "2")], ["(1(2)", "1)", "", "", ""]),
        ([(0, 3, "1"), (1, 3, "2"), (2, 3, "3")], ["(1", "(2", "(3)2)1)", "", ""]),
        ([(0, 3, "1"), (1, 3, "1"), (1, 2, "1"), (2, 3, "1")], ["(1", "(1(1)", "(1)1)1)", "", ""]),
        ([(0, 3, "1"), (0, 3, "2")], ["(1(2", "", "2)1)", "", ""]),
        ([(0, 3, "1"), (0, 3, "1")], ["(1(1", "", "1)1)", "", ""]),
        ([(0, 2, "1"), (2, 4, "1")], ["(1", "1)", "(1", "1)", ""]),
        ([(0, 3, "1"), (2, 5, "2")], ["(1", "", "1)(2", "", "2)"]),
        ([(0, 3, "1"), (2, 5, "2"), (2, 3, "1"), (2, 3, "3")], ["(1", "", "(1)(3)1)(2", "", "2)"]),
        ([(1, 2, "1"), (1, 2, "2")], ["", "(1)(2)", "", "", ""]),
        ([(0, 5, "Anna B. = 1%")], ["(Anna B. = 1%", "", "", "", "Anna B. = 1%)"]),
    ],
)  # fmt: skip
def test_mentions_are_brackets_and_come_back(file, mentions, cells):
    given = document(FIVE, mentions=sorted(Mention(*each) for each in mentions))
    assert read_back(file, given) == [nameless(given)]
    assert [row[9].removeprefix("Entity=").removesuffix("_") for row in rows_of(file)] == cells


def test_mentions_come_back_in_order(file):
    mentions = [Mention(3, 5, "2"), Mention(0, 2, "1")]
    [read] = read_back(file, document(FIVE, mentions=mentions))
    assert read.mentions == (Mention(0, 2, "1"), Mention(3, 5, "2"))


def test_words_of_mentions_are_counted_through_the_document(file):
    given = [
        document(CAT, IM, mentions=[Mention(1, 5, "over the border"), Mention(5, 6, "inside a token")]),
        document(IM, mentions=[Mention(2, 4, "1")]),
    ]
    assert read_back(file, *given) == [nameless(one) for one in given]


def test_a_mention_and_no_space_stand_on_one_row(file):
    sentence = Sentence(("can", "not"), "cannot", ((0, 3), (3, 6)))
    write_conllu([document(sentence, mentions=[Mention(0, 1, "1")])], file)
    assert [row[9] for row in rows_of(file)] == ["Entity=(1)|SpaceAfter=No", "_"]


# ------------------------------------------------------------------------------------------------- what is not written


def sentence(*words: str, text: str | None = None, spans: Sequence[tuple[int, int]] | None = None, **more) -> Sentence:
    """Words with spaces between them, unless the text and the spans say otherwise."""
    starts = [sum(len(word) + 1 for word in words[:place]) for place in range(len(words))]
    own = [(start, start + len(word)) for start, word in zip(starts, words, strict=True)]
    return Sentence(words, text or " ".join(words), tuple(spans or own), id="here", **more)


REFUSED = {
    "no sentences": (Document("text", "d"), "d: CoNLL-U holds annotated words, this is plain text; parse it"),
    "choices": (
        Document.of_sentences([FIVE], "d", choices=[Choice(4, 5, (Candidate(0, 1, True),))]),
        "d: CoNLL-U holds no choices",
    ),
    "another text": (Document("The cat sleeps!", "d", (CAT,)), "d: its text is not that of its sentences"),
    "an empty form": (document(sentence("a", "", text="a b", spans=[(0, 1), (2, 3)])), "word 2 has an empty form"),
    "a blank form": (document(sentence(" ", text="a", spans=[(0, 1)])), "here: word 1 has an empty form"),
    "an empty lemma": (document(sentence("a", "b", lemmas=("a", ""))), "here: word 2 has an empty form, lemma"),
    "a tab in a form": (
        document(sentence("a\tb", text="a b", spans=[(0, 3)])),
        r"here: word 1 has a tab or a line break in 'a\tb'",
    ),
    "a line break in a form": (
        document(sentence("a\nb", text="a b", spans=[(0, 3)])),
        r"here: word 1 has a tab or a line break in 'a\nb'",
    ),
    "a tab in a lemma": (document(sentence("a", lemmas=("\tx",))), "word 1 has a tab"),
    "a line break in the text": (
        document(sentence("a", "b", text="a\nb", spans=[(0, 1), (2, 3)])),
        r"here: the text of a sentence in CoNLL-U is one line without white space at its ends and without a tab, got",
    ),
    "a tab in the text": (document(sentence("a", "b", text="a\tb", spans=[(0, 1), (2, 3)])), "one line without"),
    "white space at an end": (document(sentence("a", text="a ", spans=[(0, 1)])), "one line without white space at"),
    "a control character": (document(sentence("a\x07")), "here: it cannot be written as CoNLL-U, for in line"),
    "half a surrogate pair": (document(sentence("a\ud800")), "here: its text is no Unicode"),
    "a space in a tag": (document(sentence("a", upos=("X Y",))), "here: the part of speech 'X Y' has a space in it"),
    "a space in a relation": (document(sentence("a", relations=("x y",))), "here: the relation 'x y' has a space"),
    "no character": (
        document(sentence("a", "pro", text="a", spans=[(0, 1), (1, 1)])),
        "here: word 2, 'pro', stands on no character of the text",
    ),
    "characters of no word": (
        document(sentence("a", "c", text="a b c", spans=[(0, 1), (4, 5)])),
        "here: word 2, 'c', stands on characters 4 to 5 after words up to 1",
    ),
    "characters at the end": (document(sentence("a", text="a b c", spans=[(0, 1)])), "here: ' b c' at the end of the"),
    "words out of order": (
        document(sentence("a", "b", text="b a", spans=[(2, 3), (0, 1)])),
        "here: word 1, 'a', stands on characters 2 to 3 after words up to 0",
    ),
    "words over one another": (
        document(sentence("ab", "bc", text="abc", spans=[(0, 2), (1, 3)])),
        "here: word 2, 'bc', stands on characters 1 to 3 after words up to 2",
    ),
    "another form": (
        document(sentence("-LRB-", "a", text="( a", spans=[(0, 1), (2, 3)])),
        "here: CoNLL-U cannot tell its spans ((0, 1), (2, 3)) from ((0, 5), (6, 7)); write those",
    ),
    "words that spell the token that they share": (
        document(sentence("a", "b", text="ab", spans=[(0, 2), (0, 2)])),
        "here: CoNLL-U cannot tell its spans ((0, 2), (0, 2)) from ((0, 1), (1, 2))",
    ),
    "lemmas that are no annotation": (document(sentence("a", lemmas=("_",))), "tell its lemmas ('_',) from None"),
    "two roots": (document(sentence("a", "b", heads=(ROOT, ROOT))), "a second word has it here"),
    "a cycle": (document(sentence("a", "b", "c", heads=(ROOT, 2, 1))), "lead back to it, not to the root"),
    "crossing mentions": (
        document(FIVE, mentions=[Mention(2, 5, "1"), Mention(0, 3, "1")]),
        "d: the mentions of entity 1 on words 0 to 3 and 2 to 5 cross",
    ),
    "crossing after a nested one": (
        document(FIVE, mentions=[Mention(0, 3, "1"), Mention(1, 2, "1"), Mention(2, 4, "1")]),
        "on words 0 to 3 and 2 to 4 cross",
    ),
    **{
        f"an entity named {name!r}": (document(FIVE, mentions=[Mention(0, 1, name)]), f"the entity {name!r} cannot be")
        for name in ("", " ", "a-b", "(a", "a)", "a|b", "a,b", "a\tb", "a[1/2]")
    },
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_format_cannot_hold_is_refused(file, case):
    given, message = REFUSED[case]
    assert message in refusal(file, given)


def test_nothing_is_written_of_documents_in_front_of_one_that_is_refused(file):
    good, bad = document(CAT), document(sentence("a\tb", text="a b", spans=[(0, 3)]))
    refusal(file, good, bad)
    write_conllu([good], file)
    before = file.read_bytes()
    with pytest.raises(CorpusError):
        write_conllu([good, bad], file)
    assert file.read_bytes() == before


@pytest.mark.parametrize("mentions", [[None, []], [[], None]])
def test_coreference_is_annotated_in_all_documents_or_in_none(file, mentions):
    given = [document(CAT, mentions=each, id=id) for each, id in zip(mentions, "ab", strict=True)]
    assert "b: coreference is annotated in a whole file or not at all, and b and a differ" in refusal(file, *given)


def test_a_file_without_a_document_is_not_written(file):
    assert "there is no document to write" in refusal(file)


def test_a_place_that_cannot_be_written_to_is_said(tmp_path):
    with pytest.raises(OutputError, match="not a plain file"):
        write_conllu([document(CAT)], tmp_path)


def test_documents_are_taken_one_at_a_time_and_may_come_from_the_file_itself(file):
    write_conllu([document(CAT, id="a"), document(IM, id="b")], file)
    before = file.read_bytes()
    write_conllu(read_conllu(file), file)
    assert file.read_bytes() == before
