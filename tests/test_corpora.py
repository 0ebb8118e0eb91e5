import hashlib
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from headlens.corpora import describe_files, read_corpus, read_text, sample_path, texts
from headlens.errors import CorpusError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file.txt"


def pairs(documents) -> list[tuple[str, str]]:
    return [(document.id, document.text) for document in documents]


@pytest.mark.parametrize(
    "data",
    [
        b"One.\n\n \t\nTwo, here.\nThree.\n",
        b"One.\n\n \t\nTwo, here.\nThree.",
        b"One.\r\n\r\n \t\r\nTwo, here.\r\nThree.\r\n",
        b"\xef\xbb\xbfOne.\n\n\x0c\n  Two, here. \nThree.\n\n\n",
    ],
)
def test_every_line_that_is_not_blank_is_a_document(file, data):
    file.write_bytes(data)
    assert pairs(read_text(file)) == [("file.txt:1", "One."), ("file.txt:4", "Two, here."), ("file.txt:5", "Three.")]


@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n\n"])
def test_a_paragraph_is_its_lines_joined_by_a_space(file, end):
    file.write_bytes(b"\nOne\n two.\n\n\nThree.\r\n\r\nFour,\nfive,\nsix." + end)
    expected = [("file.txt:2", "One two."), ("file.txt:6", "Three."), ("file.txt:8", "Four, five, six.")]
    assert pairs(read_text(file, unit="paragraph")) == expected


def test_only_line_feeds_end_a_line(file):
    text = "one\u2028two\u0085three\u00a0four\tfive 今天。 👩‍👩‍👧"
    file.write_text(text, encoding="utf-8")
    assert pairs(read_text(str(file))) == [("file.txt:1", text)]


def test_lines_are_read_as_they_are_asked_for(file):
    file.write_bytes(b"fine\n" * 3 + b"\xff\n")
    documents = read_text(file)
    assert [next(documents).text for _ in range(3)] == ["fine"] * 3
    with pytest.raises(CorpusError):
        next(documents)


REFUSED = {
    "NUL": (b"fine\nGIF\x00\x01", r"file\.txt, line 2: character 4 is the control character U\+0000"),
    "escape": (b"fine\n\nred \x1b[31m\n", r"file\.txt, line 3: character 5 is the control character U\+001B"),
    "delete": (b"\x7fELF", r"line 1: character 1 is the control character U\+007F"),
    "lone carriage return": (b"one\rtwo\n", r"line 1: character 4 is the control character U\+000D"),
    "Latin-1": (b"fine\ncaf\xe9 au lait\n", r"file\.txt, line 2: byte 4 of the line \(0xE9\) is not UTF-8"),
    "cut off": (b"fine\n\xe4\xbb", r"line 2: byte 1 of the line \(0xE4\) is not UTF-8"),
    "UTF-16": ("text".encode("utf-16"), r"file\.txt: expected UTF-8, this is UTF-16"),
    "empty": (b"", r"file\.txt: expected text, the file is empty or only white space"),
    "only a mark": (b"\xef\xbb\xbf", r"file\.txt: expected text, the file is empty or only white space"),
    "white space": (b" \n\t\r\n\xc2\xa0\n", r"file\.txt: expected text, the file is empty or only white space"),
}


@pytest.mark.parametrize("unit", ["line", "paragraph"])
@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_text_is_refused(file, case, unit):
    data, message = REFUSED[case]
    file.write_bytes(data)
    with pytest.raises(CorpusError, match=message) as refused:
        list(read_text(file, unit=unit))
    assert "\n" not in str(refused.value)
    assert str(refused.value).endswith(".")


def test_a_missing_file_is_refused_at_once(tmp_path):
    with pytest.raises(CorpusError, match=r"no\.txt: there is no such file; check the path"):
        read_text(tmp_path / "no.txt")


def test_a_folder_is_refused_at_once(tmp_path):
    with pytest.raises(CorpusError, match="expected a text file, this is a folder"):
        read_text(tmp_path)


@pytest.mark.parametrize("name", ["x" * 5000, "a\x00b"])
def test_a_name_that_no_file_can_have_is_refused(name):
    with pytest.raises(CorpusError, match=r"cannot be looked up|there is no such file"):
        read_text(name)


@pytest.mark.parametrize("read", [lambda path: list(read_text(path)), describe_files])
def test_a_file_that_may_not_be_read_is_refused(file, monkeypatch, read):
    file.write_text("text")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # the tests may run as root, who may read everything
    with pytest.raises(CorpusError, match=r"file\.txt: cannot be opened \(Permission denied\); make it readable"):
        read(file)


def test_an_unknown_unit_is_refused_at_once(file):
    with pytest.raises(CorpusError, match="one of line, paragraph; got 'page'"):
        read_text(file, unit="page")


@pytest.mark.skipif(os.name != "posix", reason="named pipes are a thing of POSIX")
def test_a_pipe_can_be_read(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen([sys.executable, "-c", f"open({str(pipe)!r}, 'w').write('from a pipe')"]):
        assert pairs(read_text(pipe)) == [("pipe:1", "from a pipe")]


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    (tmp_path / "b.txt").write_text("one\ntwo\n")
    (tmp_path / "a.txt").write_text("three\n\nfour\n")
    return [tmp_path / "b.txt", tmp_path / "a.txt"]


def test_a_corpus_keeps_the_order_of_its_files(two):
    expected = [("b.txt:1", "one"), ("b.txt:2", "two"), ("a.txt:1", "three"), ("a.txt:3", "four")]
    assert pairs(read_corpus(two)) == expected
    assert pairs(read_corpus(str(path) for path in two)) == expected


def test_one_path_is_a_corpus(two):
    assert pairs(read_corpus(two[0])) == pairs(read_corpus(str(two[0]))) == [("b.txt:1", "one"), ("b.txt:2", "two")]


def test_the_unit_holds_for_every_file(two):
    assert [document.text for document in read_corpus(two, unit="paragraph")] == ["one two", "three", "four"]


@pytest.mark.parametrize(("limit", "ids"), [(1, ["b.txt:1"]), (3, ["b.txt:1", "b.txt:2", "a.txt:1"])])
def test_a_limit_takes_the_first_documents(two, limit, ids):
    assert [document.id for document in read_corpus(two, limit=limit)] == ids


def test_nothing_is_read_beyond_the_limit_but_every_file_is_looked_up(two, tmp_path):
    two[1].write_bytes(b"\xff")
    assert len(read_corpus(two, limit=2)) == 2
    with pytest.raises(CorpusError, match=r"no\.txt: there is no such file"):
        read_corpus([two[0], tmp_path / "no.txt"], limit=1)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(two, limit):
    with pytest.raises(CorpusError, match=f"at least 1 .*; got {limit}"):
        read_corpus(two, limit=limit)


def test_strings_are_numbered_documents():
    assert pairs(texts(["one", "two "])) == [("text 1", "one"), ("text 2", "two ")]
    with pytest.raises(CorpusError, match="text 2: a document needs at least one character"):
        texts(["one", " \n"])


@pytest.mark.parametrize("call", [read_corpus, describe_files])
def test_no_file_at_all_is_refused(call):
    with pytest.raises(CorpusError, match="at least one text file; none was named"):
        call([])


def test_files_are_described_by_what_they_hold(two):
    assert describe_files(two) == [
        {"name": "b.txt", "sha256": hashlib.sha256(b"one\ntwo\n").hexdigest(), "bytes": 8},
        {"name": "a.txt", "sha256": hashlib.sha256(b"three\n\nfour\n").hexdigest(), "bytes": 12},
    ]


def test_a_corpus_does_not_need_torch():
    code = "import sys, headlens.corpora; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture(scope="module")
def sample() -> list[str]:
    return [document.text for document in read_corpus(sample_path())]


def test_the_sample_has_the_size_that_its_readme_states(sample):
    readme = sample_path().with_name("README.md").read_text()
    assert f"{len(sample)} documents" in readme
    assert f"{sum(len(text.split()) for text in sample):,} words" in readme


def test_no_five_words_of_the_sample_come_twice(sample):
    runs = Counter[tuple[str, ...]]()
    for text in sample:
        words = re.findall(r"[\w']+", text.lower())
        runs.update({tuple(words[start : start + 5]) for start in range(len(words) - 4)})
    assert [run for run, count in runs.items() if count > 1] == []


def test_no_two_words_open_more_than_three_documents_of_the_sample(sample):
    openings = Counter(" ".join(text.lower().split()[:2]) for text in sample)
    assert {opening: count for opening, count in openings.items() if count > 3} == {}


def test_the_sample_is_plain_text_and_ends_its_sentences(sample):
    assert [text for text in sample if re.search(r"\s\s|[^\x20-\x7e—£]", text) or text[-1] not in '.?!"'] == []
