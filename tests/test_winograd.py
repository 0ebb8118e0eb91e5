import json

import pytest

from headlens.corpora.winograd import read_winograd
from headlens.documents import Candidate
from headlens.errors import CorpusError

CUP = ["Ann", "'s", "cup", "does", "n't", "fit", "(", "``", "tight", "''", ")", "the", "box", ":", "it", "leaks", "."]


def row(
    language="en",
    text="Ann's cup doesn't fit (\"tight\") the box: it leaks.",
    tokens=CUP,
    pronoun=("it", [14, 15], ["it"]),
    candidates=(
        ("Ann's cup", [0, 3], ["Ann", "'s", "cup"], True),
        ("the box", [11, 13], ["the", "box"], False),
    ),
):  # fmt: skip
    return "\t".join([language, "original", "?", text, json.dumps(tokens), json.dumps(pronoun), json.dumps(candidates)])


ZH = row(
    "zh",
    "猫和大狗，因为它跑。 ",
    ["猫", "和", "大狗", "，因为", "它", "跑。 "],
    ("它", [4, 5], ["它"]),
    (("猫", [0, 1], ["猫"], False), ("大狗", [2, 3], ["大狗"], True)),
)


@pytest.fixture
def file(tmp_path):
    def write(*lines):
        (tmp_path / "xw.tsv").write_text("\n".join(lines), encoding="utf-8")
        return tmp_path / "xw.tsv"

    return write


def test_words_are_the_tokens_as_the_sentence_writes_them(file):
    (document,) = read_winograd(file(row()))
    (sentence,) = document.sentences
    written = [*CUP[:7], '"', "tight", '"', *CUP[10:]]
    assert sentence.words == tuple(written)
    assert sentence.spans[:5] == ((0, 3), (3, 5), (6, 9), (10, 14), (14, 17))
    assert [document.text[start:stop] for start, stop in sentence.spans] == written
    assert document.id == sentence.id == "xw.tsv:1"


def test_the_choice_is_counted_in_words(file):
    (choice,) = next(iter(read_winograd(file(row())))).choices
    assert (choice.start, choice.stop) == (14, 15)
    assert choice.candidates == (Candidate(0, 3, is_right=True), Candidate(11, 13, is_right=False))
    assert choice.groups == ("winograd",)


@pytest.mark.parametrize("language", ["zh", "jp", "ja"])
def test_without_segmentation_words_are_cut_anew(file, language):
    (document,) = read_winograd(file(ZH.replace("zh", language, 1)))
    assert document.text == "猫和大狗，因为它跑。"
    assert document.sentences[0].words == tuple("猫和大狗，因为它跑。")
    (choice,) = document.choices
    assert (choice.start, choice.stop) == (7, 8)
    assert choice.candidates == (Candidate(0, 1, is_right=False), Candidate(2, 4, is_right=True))


def test_in_other_languages_tokens_are_kept_whole(file):
    (document,) = read_winograd(file(ZH.replace("zh", "yue", 1)))
    assert document.sentences[0].words == ("猫", "和", "大狗", "，因为", "它", "跑。")


def test_a_forced_border_cuts_a_word(file):
    line = row(
        "jp",
        "ABのC",
        ["A", "B", "の", "C"],
        ("B", [1, 2], ["B"]),
        (("A", [0, 1], ["A"], True), ("C", [3, 4], ["C"], False)),
    )
    (document,) = read_winograd(file(line))
    assert document.sentences[0].words == ("A", "B", "の", "C")
    assert document.choices[0].start == 1


def candidates(*right):
    return tuple(("cup", [2, 3], ["cup"], is_right) for is_right in right)


BAD = {
    "six columns": (row().rpartition("\t")[0], r"expected 7 columns separated by tabs, got 6"),
    "eight columns": (row() + "\tx", r"expected 7 columns separated by tabs, got 8"),
    "tokens that are no JSON": (row().replace('["Ann"', '["Ann', 1), r"the tokens cannot be read as JSON \(.*\)"),
    "a candidate that is no JSON": (row()[:-1], r"the candidates cannot be read as JSON"),
    "tokens that are no list": (row(tokens="Ann"), r"the tokens are a JSON list of strings"),
    "a number among tokens": (row(tokens=[*CUP, 1]), r"the tokens are a JSON list of strings"),
    "a blank token": (row(tokens=["Ann", " ", *CUP[1:]]), r"the tokens are a JSON list of strings that are not blank"),
    "other tokens": (
        row(tokens=["Ann", "'s", "cup", "did", *CUP[4:]]),
        r"the token 'did' should stand at character 10 of the sentence, where 'doesn",
    ),
    "too few tokens": (row(tokens=CUP[:-1]), r"the tokens end before the sentence does, at '\.'"),
    "too many tokens": (
        row(tokens=[*CUP, "!"]),
        r"the token '!' should stand at character 50 of the sentence, where ''",
    ),
    "another pronoun": (
        row(pronoun=("it", [13, 14], ["it"])),
        r"the pronoun should be \['it'\] at tokens 13 to 14, where \[':'\] stands",
    ),
    "a stretch outside": (row(pronoun=("it", [14, 99], CUP[14:])), r"the pronoun should be .* at tokens 14 to 99"),
    "a stretch before the first": (
        row(pronoun=("it", [-3, -2], ["it"])),
        r"the pronoun should be .* at tokens -3 to -2",
    ),
    "an empty stretch": (row(pronoun=("", [3, 3], [])), r"the pronoun should be \[\] at tokens 3 to 3"),
    "a pronoun of another shape": (row(pronoun="it"), r"the pronoun is written as \[text, \[start, stop\], tokens\];"),
    "a candidate of another shape": (
        row(candidates=(("cup", [2], ["cup"], True), ("cup", [2, 3], ["cup"], False))),
        r"candidate 1 is written as \[text, \[start, stop\], tokens\], with true or false;",
    ),
    "a truth value of another kind": (row(candidates=candidates(True, "no")), r"candidate 2 is written as"),
    "one candidate": (row(candidates=candidates(True)), r"the candidates are a JSON list of two or more"),
    "no right candidate": (row(candidates=candidates(False, False)), r"exactly one candidate is right, got 0"),
    "two right candidates": (row(candidates=candidates(True, False, True)), r"exactly one candidate is right, got 2"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_row_is_named_and_can_be_left_out(file, case):
    bad, message = BAD[case]
    path, errors = file(row(), bad, "", ZH), []
    with pytest.raises(CorpusError, match=rf"xw\.tsv, line 2: {message}.*mend the row\.$") as refused:
        list(read_winograd(path))
    assert [document.id for document in read_winograd(path, on_bad=errors.append)] == ["xw.tsv:1", "xw.tsv:4"]
    assert [str(error) for error in errors] == [str(refused.value)]


@pytest.mark.parametrize("lines", [[], [" "], ["x"]])
def test_a_file_without_a_row_that_can_be_read_is_refused(file, lines):
    with pytest.raises(CorpusError, match="expected rows of XWinograd, found none that can be read"):
        list(read_winograd(file(*lines), on_bad=lambda error: None))


def test_a_missing_file_is_refused_at_once(tmp_path):
    with pytest.raises(CorpusError, match="there is no such file"):
        read_winograd(tmp_path / "no.tsv")


@pytest.mark.parametrize(("language", "rows"), [("en", 273), ("zh", 16)])
def test_the_choices_of_the_data_are_the_annotated_strings(data_folder, language, rows):
    path = data_folder / f"coref/wsc/xwinograd-{language}-original.tsv"
    documents = list(read_winograd(path))
    assert len(documents) == rows
    annotated = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    assert [strings(document) for document in documents] == [
        [
            without_space(json.loads(cells[5])[0]),
            *((without_space(text), is_right) for text, _, _, is_right in json.loads(cells[6])),
        ]
        for cells in annotated
    ]


def strings(document):
    """The pronoun and the candidates as the text writes them, each with whether it is right; without white space."""
    (choice,) = document.choices
    (sentence,) = document.sentences

    def text(stretch):
        return without_space(document.text[sentence.spans[stretch.start][0] : sentence.spans[stretch.stop - 1][1]])

    return [text(choice), *((text(candidate), candidate.is_right) for candidate in choice.candidates)]


def without_space(text):
    return "".join(text.split())
