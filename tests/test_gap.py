from collections import Counter

import pytest

from headlens.corpora.gap import read_gap
from headlens.documents import Candidate
from headlens.errors import CorpusError

HEADER = "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL"


def row(
    text="Ann Lee's \"aunt\" Zoë met Bea—she left.",
    pronoun="she", at="29", a="Ann Lee", a_at="0", a_right="TRUE", b="Bea", b_at="25", b_right="FALSE", url="http://x",
):  # fmt: skip
    return "\t".join(["x-1", text, pronoun, at, a, a_at, a_right, b, b_at, b_right, url])


@pytest.fixture
def file(tmp_path):
    def write(*lines, header=HEADER, end="\n"):
        path = tmp_path / "gap.tsv"
        path.write_bytes("".join(line + end for line in (header, *lines)).encode())
        return path

    return write


def test_a_row_is_a_document_with_one_choice(file):
    (document,) = read_gap(file(row()))
    (sentence,) = document.sentences
    assert document.text == sentence.text == 'Ann Lee\'s "aunt" Zoë met Bea—she left.'
    assert sentence.words == ("Ann", "Lee", "'", "s", '"', "aunt", '"', "Zoë", "met", "Bea", "—", "she", "left", ".")
    (choice,) = document.choices
    assert (choice.start, choice.stop) == (11, 12)
    assert choice.candidates == (Candidate(0, 2, is_right=True), Candidate(9, 10, is_right=False))
    assert choice.groups == ("feminine",)
    assert document.id == sentence.id == "gap.tsv:2"


@pytest.mark.parametrize(
    ("pronoun", "groups"),
    [
        ("she", ("feminine",)), ("Her", ("feminine",)), ("hers", ("feminine",)),
        ("He", ("masculine",)), ("him", ("masculine",)), ("his", ("masculine",)),
        ("they", ()), ("it", ()),
    ],
)  # fmt: skip
def test_the_gender_is_that_of_the_pronoun(file, pronoun, groups):
    text = f"Ann saw Bea and {pronoun} left"
    (document,) = read_gap(file(row(text, pronoun, "16", "Ann", "0", b="Bea", b_at="8")))
    assert document.choices[0].groups == groups
    assert document.choices[0].start == 4


@pytest.mark.parametrize("a", [True, False])
@pytest.mark.parametrize("b", [True, False])
def test_any_truth_values_are_kept(file, a, b):
    (document,) = read_gap(file(row(a_right=str(a), b_right=str(b).upper())))
    assert [candidate.is_right for candidate in document.choices[0].candidates] == [a, b]


def test_columns_are_found_by_name_and_others_are_ignored(file):
    header = "\t".join(reversed(HEADER.split("\t"))) + "\tmore"
    line = "\t".join(reversed(row(url="").split("\t"))) + "\t"
    for_comparison = list(read_gap(file(row())))
    assert list(read_gap(file(line, header=header))) == for_comparison


@pytest.mark.parametrize("end", ["\r\n", "\n\n"])
def test_line_ends_and_blank_lines_do_not_matter(file, end):
    line = row()
    documents = list(read_gap(file(line, line, end=end)))
    assert [document.id for document in documents] == (
        ["gap.tsv:2", "gap.tsv:3"] if end == "\r\n" else ["gap.tsv:3", "gap.tsv:5"]
    )
    assert documents[1].choices == documents[0].choices


BAD = {
    "a letter beside": (row(at="28"), r"Pronoun should be 'she' at character 28 of the text, where '—sh' stands"),
    "an offset in bytes": (row(b_at="26"), r"B should be 'Bea' at character 26 of the text, where 'ea—' stands"),
    "beyond the text": (row(a_at="400"), r"A should be 'Ann Lee' at character 400 of the text, where '' stands"),
    "another case": (row(a="ann Lee"), r"A should be 'ann Lee' at character 0 of the text, where 'Ann Lee' stands"),
    "an empty name": (row(b=""), r"B should be '' at character 25"),
    "a word for an offset": (row(a_at="zero"), r"A-offset counts characters from 0, got 'zero'"),
    "an offset below 0": (row(b_at="-3"), r"B-offset counts characters from 0, got '-3'"),
    "no offset": (row(at=""), r"Pronoun-offset counts characters from 0, got ''"),
    "no truth value": (row(a_right="yes"), r"A-coref is TRUE or FALSE, got 'yes'"),
    "too few cells": ("x\ty", r"expected 11 cells separated by tabs, as in the header, got 2"),
    "too many cells": (row() + "\tz", r"expected 11 cells separated by tabs, as in the header, got 12"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_row_is_named_with_its_line(file, case):
    bad, message = BAD[case]
    with pytest.raises(CorpusError, match=rf"gap\.tsv, line 3: {message}.*mend the row.*\.$"):
        list(read_gap(file(row(), bad)))


@pytest.mark.parametrize("case", BAD)
def test_reading_goes_on_behind_a_bad_row(file, case):
    bad, message = BAD[case]
    errors = []
    documents = list(read_gap(file(row(), bad, row()), on_bad=errors.append))
    assert [document.id for document in documents] == ["gap.tsv:2", "gap.tsv:4"]
    (error,) = errors
    assert error.args[0].count("\n") == 0
    with pytest.raises(CorpusError, match=message):
        raise error


def test_reading_goes_on_behind_a_line_that_is_not_utf8(file):
    path = file(row())
    path.write_bytes(path.read_bytes() + b"caf\xe9\n" + row().encode())
    errors = []
    assert [document.id for document in read_gap(path, on_bad=errors.append)] == ["gap.tsv:2", "gap.tsv:4"]
    assert [str(error).partition("line ")[2][:26] for error in errors] == ["3: byte 4 of the line (0xE"]
    with pytest.raises(CorpusError, match=r"line 3: byte 4 of the line \(0xE9\) is not UTF-8"):
        list(read_gap(path))


@pytest.mark.parametrize("missing", ["Text", "A-offset", "B-coref"])
@pytest.mark.parametrize("on_bad", [None, lambda error: None])
def test_a_missing_column_is_named(file, missing, on_bad):
    header = "\t".join("x" if name == missing else name for name in HEADER.split("\t"))
    with pytest.raises(
        CorpusError, match=rf"gap\.tsv, line 1: the header .*; {missing} is missing: name a file of GAP\.$"
    ):
        list(read_gap(file(row(), header=header), on_bad=on_bad))


@pytest.mark.parametrize("lines", [[], ["x"]])
def test_a_file_without_a_row_that_can_be_read_is_refused(file, lines):
    with pytest.raises(CorpusError, match=r"gap\.tsv: expected rows of GAP, found none that can be read"):
        list(read_gap(file(*lines), on_bad=lambda error: None))


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "gap.tsv").write_text("")
    with pytest.raises(CorpusError, match="line 1: the header of a GAP file"):
        list(read_gap(tmp_path / "gap.tsv"))


def test_a_missing_file_is_refused_at_once(tmp_path):
    with pytest.raises(CorpusError, match="there is no such file"):
        read_gap(tmp_path / "no.tsv")


# Counted by other means than this reader when the data were cut
COUNTS = {
    "gap-validation.tsv": (227, 187, 205, 62),
    "gap-development.balanced1000.tsv": (500, 434, 467, 99),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_of_the_data(data_folder, name):
    documents = list(read_gap(data_folder / "coref/gap" / name))
    per_gender, a, b, neither = COUNTS[name]
    choices = [document.choices[0] for document in documents]
    assert Counter(choice.groups for choice in choices) == {("feminine",): per_gender, ("masculine",): per_gender}
    right = Counter(tuple(candidate.is_right for candidate in choice.candidates) for choice in choices)
    assert right == {(True, False): a, (False, True): b, (False, False): neither}
