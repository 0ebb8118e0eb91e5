import hashlib
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from headlens.corpora import CORPORA, Corpus, describe_files, read_corpus, read_text, sample_path, texts
from headlens.corpora import kinds as kinds_of_corpora
from headlens.documents import Document
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


def test_a_corpus_is_a_sequence_of_documents(two):
    corpus = read_corpus(two)
    assert len(corpus) == 4
    assert corpus[0].text == "one"
    assert corpus[-1].text == "four"
    assert [document.text for document in corpus[1:3]] == ["two", "three"]
    assert corpus[2] in corpus
    assert list(corpus) == list(corpus.documents)
    assert repr(corpus) == "<Corpus of 4 documents from b.txt, a.txt>"


def test_documents_by_themselves_are_a_corpus_of_unknown_origin():
    corpus = Corpus(texts(["one", "two"]))
    assert (len(corpus), corpus.sources, corpus.skipped, corpus.notes, corpus.unit_of_documents) == (2, (), 0, (), "")
    assert repr(corpus) == "<Corpus of 2 documents from memory>"


def test_a_corpus_names_its_files(two):
    assert read_corpus([two[0], f"text:{two[1]}"], limit=1).sources == [
        {"kind": "text", **entry} for entry in describe_files(two)
    ]


BARE = "\t_" * 8
SENTENCE = f"1\tDogs{BARE}\n2\tbark{BARE}\n\n"


@pytest.fixture
def treebanks(tmp_path: Path) -> dict[str, Path]:
    """By what they mark: no documents, documents, and mentions."""
    contents = {
        "plain": SENTENCE * 2,
        "named": f"# newdoc id = a\n{SENTENCE * 2}# newdoc id = b\n{SENTENCE}",
        "gum": f"# newdoc id = a\n# global.Entity = GRP\n{SENTENCE}",
    }
    for name, content in contents.items():
        (tmp_path / f"{name}.conllu").write_text(content)
    return {name: tmp_path / f"{name}.conllu" for name in contents}


@pytest.mark.parametrize(
    ("name", "unit", "texts"),
    [
        ("plain", "sentence", ["Dogs bark"] * 2),
        ("named", "document", ["Dogs bark Dogs bark", "Dogs bark"]),
        ("gum", "document", ["Dogs bark"]),
    ],
)
def test_a_corpus_says_what_its_documents_are(treebanks, name, unit, texts):
    corpus = read_corpus(treebanks[name])
    assert [document.text for document in corpus] == texts
    assert corpus.unit_of_documents == unit
    assert corpus.notes == []


@pytest.mark.parametrize("unit", ["line", "paragraph"])
def test_the_documents_of_text_are_its_units(two, unit):
    assert read_corpus(two, unit=unit).unit_of_documents == unit


def test_treebanks_go_together_and_a_note_says_what_their_documents_are(treebanks):
    corpus = read_corpus(list(treebanks.values()))
    assert [source["kind"] for source in corpus.sources] == ["conllu", "conllu", "gum"]
    assert [document.mentions for document in corpus] == [None] * 4 + [()]
    assert corpus.unit_of_documents == "mixed"
    assert corpus.notes == [
        "What counts as a document: in plain.conllu a sentence.",
        "What counts as a document: in named.conllu, gum.conllu a document.",
    ]


def test_a_file_that_the_limit_leaves_unread_has_no_unit(treebanks):
    corpus = read_corpus([treebanks["plain"], treebanks["named"]], limit=2)
    assert (corpus.unit_of_documents, corpus.notes) == ("sentence", [])
    assert [source["name"] for source in corpus.sources] == ["plain.conllu", "named.conllu"]


@pytest.mark.parametrize("kinds", [("conllu", "text"), ("text", "parse"), ("gum", "litbank"), ("gap", "data")])
def test_corpora_of_different_things_are_refused(two, kinds):
    specs = [f"{kind}:{path}" for kind, path in zip(kinds, two, strict=True)]
    with pytest.raises(CorpusError) as refused:
        read_corpus(specs)
    first, second = (CORPORA[kind].holds for kind in kinds)
    assert str(refused.value) == (
        f"{two[0]} holds {first} ({kinds[0]}) and {two[1]} {second} ({kinds[1]}), which do not go together; "
        "read them one by one."
    )


def test_what_is_bad_is_refused_or_skipped_and_counted(tmp_path):
    path = tmp_path / "bad.conllu"
    path.write_text(SENTENCE + "1\tx\n\n" * 7 + SENTENCE)
    with pytest.raises(CorpusError, match="line 4: expected 10 columns"):
        read_corpus(path)
    corpus = read_corpus(path, skip_bad=True)
    assert len(corpus) == 2
    assert corpus.skipped == 7
    assert [int(re.search(r"line (\d+)", example)[1]) for example in corpus.skipped_examples] == [4, 6, 8, 10, 12]


def test_lines_of_text_that_are_bad_are_skipped_too(file):
    file.write_bytes(b"fine\n\xff\nalso fine\n")
    corpus = read_corpus(file, skip_bad=True)
    assert ([document.text for document in corpus], corpus.skipped) == (["fine", "also fine"], 1)


def test_a_corpus_with_nothing_good_is_refused(tmp_path):
    (tmp_path / "bad.conllu").write_text("1\tx\n\n")
    with pytest.raises(CorpusError, match="no sentence in it can be read"):
        read_corpus(f"conllu:{tmp_path / 'bad.conllu'}", skip_bad=True)


def test_columns_of_a_table_are_named(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"a": ["Dogs", "bark"], "b": [2, 0]}\n{"a": ["So"], "b": [0]}\n')
    corpus = read_corpus(f"data:{path}", columns={"words": "a", "heads": "b"})
    assert [document.sentences[0].heads for document in corpus] == [(1, -1), (-1,)]
    assert corpus.unit_of_documents == "sentence"


def test_rows_of_a_table_of_texts_are_documents(tmp_path):
    (tmp_path / "t.csv").write_text("text,label\nOne day.,1\nTwo days.,0\n")
    assert read_corpus(f"data:{tmp_path / 't.csv'}").unit_of_documents == "row"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": {"words": "a"}}, r"Only tables \(data, hub\) have columns to name; this is text\."),
        ({"revision": "main"}, r"Only data sets of the hub have a revision; this is text\."),
    ],
)
def test_options_that_no_corpus_takes_are_refused(two, options, message):
    with pytest.raises(CorpusError, match=message):
        read_corpus(two, **options)


def test_items_of_pronoun_sets_are_documents(tmp_path):
    path = tmp_path / "pro_stereotyped_type1.txt"
    path.write_text("1 [The nurse] met the chief because [he] hid.\n2 The nurse met [the chief] because [she] hid.\n")
    corpus = read_corpus(path)
    assert (len(corpus), corpus.unit_of_documents, corpus.sources[0]["kind"]) == (2, "item", "winobias")


def test_a_data_set_of_the_hub_is_named_by_its_revision(monkeypatch):
    asked = {}

    def read_hub(spec, **options):
        asked[spec] = options
        return iter(texts(["one", "two"])), {"name": "o/n", "config": None, "split": "test", "revision": "abc"}

    monkeypatch.setattr(kinds_of_corpora, "read_hub", read_hub)
    corpus = read_corpus("hub:o/n", limit=1, revision="main", columns={"text": "t"})
    assert [document.text for document in corpus] == ["one"]
    assert corpus.sources == [{"kind": "hub", "name": "o/n", "config": None, "split": "test", "revision": "abc"}]
    assert asked == {"o/n": {"columns": {"text": "t"}, "revision": "main", "limit": 1, "on_bad": None}}


def test_parsed_text_is_noted_as_such(two, monkeypatch):
    def read_parsed(path, *, unit, parser, on_bad):
        return iter([Document(f"{unit} by {parser}")])

    monkeypatch.setattr(kinds_of_corpora, "read_parsed", read_parsed)
    monkeypatch.setattr("headlens.corpora.silver_note", lambda parser: f"a note on {parser}")
    corpus = read_corpus([f"parse:{path}" for path in two], unit="paragraph", parser="p")
    assert [document.text for document in corpus] == ["paragraph by p"] * 2
    assert (corpus.notes, corpus.unit_of_documents) == (["a note on p"], "paragraph")


def test_strings_are_numbered_documents():
    assert pairs(texts(["one", "two "])) == [("text 1", "one"), ("text 2", "two ")]
    with pytest.raises(CorpusError, match="text 2: a document needs at least one character"):
        texts(["one", " \n"])


@pytest.mark.parametrize("call", [read_corpus, describe_files])
def test_no_file_at_all_is_refused(call):
    with pytest.raises(CorpusError, match="at least one file or Document; none was given"):
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
