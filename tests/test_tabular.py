import gzip
import json
import logging
import os
from pathlib import Path
from types import SimpleNamespace

import datasets
import huggingface_hub
import pyarrow
import pyarrow.parquet
import pytest

from headlens.corpora.tabular import read_hub, read_table
from headlens.documents import ROOT
from headlens.errors import CorpusError

DOG = {
    "text": "The dog barked.",
    "words": ["The", "dog", "barked", "."],
    "upos": ["DET", "NOUN", "VERB", "PUNCT"],
    "lemmas": ["the", "dog", "bark", "."],
    "heads": [2, 3, 0, 3],
    "relations": ["det", "nsubj", "root", "punct"],
}
IT = {
    "text": "It ran",
    "words": ["It", "ran"],
    "upos": ["PRON", "VERB"],
    "lemmas": ["it", "run"],
    "heads": [2, 0],
    "relations": ["nsubj", "root"],
}


def write_lines(path: Path, rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_json(path: Path, rows) -> Path:
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def write_zipped(path: Path, rows) -> Path:
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return path


def write_parquet(path: Path, rows) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def write_csv(path: Path, rows, separator=",") -> Path:
    def cell(value) -> str:
        written = value if isinstance(value, str) else json.dumps(value)
        return '"' + written.replace('"', '""') + '"'

    lines = [list(rows[0]), *([cell(value) for value in row.values()] for row in rows)]
    path.write_text("".join(separator.join(line) + "\n" for line in lines), encoding="utf-8")
    return path


def write_tsv(path: Path, rows) -> Path:
    return write_csv(path, rows, "\t")


FORMATS = {
    "a.jsonl": write_lines,
    "a.ndjson": write_lines,
    "a.json": write_json,
    "a.jsonl.gz": write_zipped,
    "a.parquet": write_parquet,
    "A.PARQUET": write_parquet,
    "a.csv": write_csv,
    "a.tsv": write_tsv,
}


@pytest.fixture
def table(tmp_path):
    def write(*rows, name="a.jsonl"):
        return FORMATS[name](tmp_path / name, list(rows))

    return write


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_is_a_sentence_in_every_format(table, name):
    dog, it = read_table(table(DOG, IT, name=name))
    (sentence,) = dog.sentences
    assert sentence.words == ("The", "dog", "barked", ".")
    assert sentence.text == dog.text == "The dog barked."
    assert sentence.spans == ((0, 3), (4, 7), (8, 14), (14, 15))
    assert sentence.upos == ("DET", "NOUN", "VERB", "PUNCT")
    assert sentence.lemmas == ("the", "dog", "bark", ".")
    assert sentence.heads == (1, 2, ROOT, 2)
    assert sentence.relations == ("det", "nsubj", "root", "punct")
    assert it.sentences[0].heads == (1, ROOT)
    assert (dog.id, sentence.id, it.id) == (f"{name}:1", f"{name}:1", f"{name}:2")
    assert dog.mentions is None


@pytest.mark.parametrize("name", ["a[1]*.jsonl", "what?.jsonl", "**.jsonl", "two words.jsonl"])
def test_a_path_is_not_a_pattern(tmp_path, name):
    write_lines(tmp_path / "a1.jsonl", [{"text": "other"}])
    (document,) = read_table(write_lines(tmp_path / name, [{"text": "this"}]))
    assert document.text == "this"


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
def test_a_word_that_looks_like_nothing_is_a_word(table, name):
    documents = read_table(
        table({"words": ["NA"], "heads": ["0"]}, {"words": ["nan", "null"], "heads": [2, 0]}, name=name)
    )
    assert [document.sentences[0].words for document in documents] == [("NA",), ("nan", "null")]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_a_text_that_looks_like_nothing_is_a_text(table, name):
    documents = read_table(table({"text": "NA"}, {"text": "null"}, {"text": "1, 2"}, name=name))
    assert [document.text for document in documents] == ["NA", "null", "1, 2"]


NAMES = {
    "hub": {"tokens": "words", "upos": "upos", "lemmas": "lemmas", "head": "heads", "deprel": "relations"},
    "conllu": {"form": "words", "upos": "upos", "lemma": "lemmas", "head": "heads", "deprel": "relations"},
    "plural": {"forms": "words", "upos": "upos", "lemmas": "lemmas", "heads": "heads", "deprels": "relations"},
}


@pytest.mark.parametrize("names", NAMES)
def test_columns_are_recognised_by_their_names(table, names):
    renamed = {theirs: DOG[ours] for theirs, ours in NAMES[names].items()}
    (document,) = read_table(table(renamed | {"xpos": ["x"] * 4, "id": "row 1"}))
    (sentence,) = document.sentences
    assert sentence.words == ("The", "dog", "barked", ".")
    assert sentence.upos == ("DET", "NOUN", "VERB", "PUNCT")
    assert sentence.lemmas == ("the", "dog", "bark", ".")
    assert sentence.heads == (1, 2, ROOT, 2)
    assert sentence.relations == ("det", "nsubj", "root", "punct")


def test_columns_can_be_told(table):
    row = {"w": ["a", "b"], "tokens": ["x"], "h": [0, 1], "deprel": ["root", "dep"], "upos": ["X", "X"], "text": "a  b"}
    (document,) = read_table(table(row), columns={"words": "w", "heads": "h", "upos": "", "text": ""})
    (sentence,) = document.sentences
    assert (sentence.words, sentence.heads, sentence.relations) == (("a", "b"), (ROOT, 0), ("root", "dep"))
    assert (sentence.upos, sentence.text) == (None, "a b")


def test_two_names_that_fit_are_not_told_apart(table):
    path = table({"words": ["a"], "tokens": ["a"]})
    with pytest.raises(
        CorpusError, match=r"words and tokens could both be the column words; .* as --columns words=words"
    ):
        list(read_table(path))
    assert next(read_table(path, columns={"words": "tokens"})).sentences[0].words == ("a",)


@pytest.mark.parametrize("heads", [["2", "3", "0", "3"], [2, 3, 0, 3], '["2", "3", "0", "3"]'])
def test_heads_are_numbers_or_strings(table, heads):
    assert next(read_table(table(DOG | {"heads": heads}))).sentences[0].heads == (1, 2, ROOT, 2)


@pytest.mark.parametrize("empty", [None, ["_"] * 4, [""] * 4])
@pytest.mark.parametrize("ours", ["upos", "lemmas", "heads", "relations"])
def test_what_is_not_annotated_is_none(table, ours, empty):
    first, second = read_table(table(DOG | {ours: empty}, DOG))
    assert getattr(first.sentences[0], ours) is None
    assert getattr(second.sentences[0], ours) is not None


def test_numbers_that_stand_for_names_are_named(tmp_path):
    features = datasets.Features(
        {
            "words": datasets.List(datasets.Value("string")),
            "upos": datasets.List(datasets.ClassLabel(names=["NOUN", "VERB"])),
        }
    )
    rows = datasets.Dataset.from_dict({"words": [["dogs", "bark"]], "upos": [[0, 1]]}, features=features)
    rows.to_parquet(str(tmp_path / "a.parquet"))
    assert next(read_table(tmp_path / "a.parquet")).sentences[0].upos == ("NOUN", "VERB")


def test_consecutive_rows_of_one_document_stand_together(table):
    rows = [
        {"words": [word], "doc_id": name}
        for word, name in zip("abcdefg", ["x", "x", 7, None, None, "x", "x"], strict=True)
    ]
    documents = list(read_table(table(*(row | {"doc_id": row["doc_id"] and str(row["doc_id"])} for row in rows))))
    assert [(document.id, document.text) for document in documents] == [
        ("x (a.jsonl:1)", "a b"),
        ("7 (a.jsonl:3)", "c"),
        ("a.jsonl:4", "d"),
        ("a.jsonl:5", "e"),
        ("x (a.jsonl:6)", "f g"),
    ]
    assert [sentence.id for sentence in documents[0].sentences] == ["a.jsonl:1", "a.jsonl:2"]


def test_numbers_can_name_documents(table):
    documents = read_table(table({"words": ["a"], "document": 0}, {"words": ["b"], "document": 0}))
    assert [(document.id, document.text) for document in documents] == [("0 (a.jsonl:1)", "a b")]


@pytest.mark.parametrize("name", ["text", "sentence"])
def test_text_by_itself_makes_plain_documents(table, name):
    documents = list(read_table(table({name: " One here. ", "label": 1}, {name: "Two", "label": 0})))
    assert [(document.id, document.text, document.sentences) for document in documents] == [
        ("a.jsonl:1", "One here.", ()),
        ("a.jsonl:2", "Two", ()),
    ]


def test_plain_texts_of_one_document_are_joined(table):
    documents = read_table(table({"text": "One.", "doc_id": "x"}, {"text": "Two.", "doc_id": "x"}))
    assert [document.text for document in documents] == ["One. Two."]


TEXTS = {
    "as the words spell it": (
        "今天(很)好",
        ["今天", "(", "很", ")", "好"],
        "今天(很)好",
        ((0, 2), (2, 3), (3, 4), (4, 5), (5, 6)),
    ),
    "with other white space": (" a \u00a0b\tc ", ["a", "b", "c"], "a \u00a0b\tc", ((0, 1), (3, 4), (5, 6))),
    "a word with a space in it": ("à 10 000.", ["à", "10 000", "."], "à 10 000.", ((0, 1), (2, 8), (8, 9))),
    "none": (None, ["a", "bc"], "a bc", ((0, 1), (2, 4))),
    "another word": ("a bd", ["a", "bc"], "a bc", ((0, 1), (2, 4))),
    "more than the words": ("a bc d", ["a", "bc"], "a bc", ((0, 1), (2, 4))),
    "less than the words": ("a", ["a", "bc"], "a bc", ((0, 1), (2, 4))),
}


@pytest.mark.parametrize("case", TEXTS)
def test_words_stand_in_the_text_where_it_is_theirs(table, case):
    given, words, text, spans = TEXTS[case]
    (document,) = read_table(table({"words": words, "text": given}))
    assert (document.text, document.sentences[0].spans) == (text, spans)


IM_HAUS = {
    "text": "Im Haus cannot.",
    "ids": ["1-2", "1", "2", "3", "3.1", "4-5", "4", "5", "6"],
    "words": ["Im", "In", "dem", "Haus", "ghost", "cannot", "can", "not", "."],
    "upos": ["_", "ADP", "DET", "NOUN", "VERB", "_", "AUX", "PART", "PUNCT"],
    "heads": ["_", "3", "3", "0", "_", "_", "3", "3", "3"],
}


@pytest.mark.parametrize("name", ["ids", "id"])
def test_rows_of_multiword_tokens_and_empty_nodes_are_no_words(table, name):
    row = {name if ours == "ids" else ours: value for ours, value in IM_HAUS.items()}
    (sentence,) = next(read_table(table(row))).sentences
    assert sentence.words == ("In", "dem", "Haus", "can", "not", ".")
    assert sentence.spans == ((0, 2), (0, 2), (3, 7), (8, 11), (11, 14), (14, 15))
    assert sentence.upos == ("ADP", "DET", "NOUN", "AUX", "PART", "PUNCT")
    assert sentence.heads == (2, 2, ROOT, 2, 2, 2)
    assert sentence.text == "Im Haus cannot."


def test_without_a_text_a_multiword_token_is_written_as_itself(table):
    (document,) = read_table(table(IM_HAUS | {"text": None}))
    assert document.text == "Im Haus cannot ."
    assert document.sentences[0].spans == ((0, 2), (0, 2), (3, 7), (8, 11), (11, 14), (15, 16))


BAD_ROWS = {
    "no words": ({"words": []}, "a sentence is a list of words that are not blank, got"),
    "a blank word": ({"words": ["The", " ", "barked", "."]}, "a sentence is a list of words that are not blank, got"),
    "a word that is missing": (
        {"words": ["The", None, "barked", "."]},
        "a sentence is a list of words that are not blank",
    ),
    "too few heads": ({"heads": [2, 3, 0]}, "4 words need as many heads, got 3; mend the row"),
    "too many lemmas": ({"lemmas": ["a"] * 5}, "4 words need as many lemmas, got 5; mend the row"),
    "a relation that is missing": ({"relations": ["det", None, "root", "x"]}, "the relations of word 2 are missing"),
    "a head beyond the sentence": ({"heads": [2, 5, 0, 3]}, r"the head of word 2 is a number from 0 .* to 4, got '5'"),
    "a head below 0": ({"heads": [2, -1, 0, 3]}, r"the head of word 2 is a number from 0 .* to 4, got '-1'"),
    "no root": ({"heads": [2, 3, 2, 3]}, "one word has the head 0 and is the root, got 0"),
    "two roots": ({"heads": [2, 0, 0, 3]}, "one word has the head 0 and is the root, got 2"),
    "a circle": ({"heads": [2, 1, 0, 3]}, "the heads of word 1 lead in a circle and not to the root"),
    "its own head": ({"heads": [2, 2, 0, 3]}, "the heads of word 1 lead in a circle and not to the root"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_a_bad_row_is_named_and_can_be_left_out(table, case):
    change, message = BAD_ROWS[case]
    path, errors = table(DOG, DOG | change, IT), []
    with pytest.raises(CorpusError, match=rf"a\.jsonl, row 2: {message}") as refused:
        list(read_table(path))
    assert "\n" not in str(refused.value)
    assert [document.id for document in read_table(path, on_bad=errors.append)] == ["a.jsonl:1", "a.jsonl:3"]
    assert [str(error) for error in errors] == [str(refused.value)]


BAD_IDS = {
    "a gap": (["1", "2", "4", "5"], "the ids of words count 1, 2, 3, ..., got 1, 2, 4, 5"),
    "from 0": ([0, 1, 2, 3], "the ids of words count 1, 2, 3, ..., got 0, 1, 2, 3"),
    "too few": (["1", "2", "3"], "4 words need as many ids, got 3"),
    "none of a word": (["1.1", "1.2", "1.3", "1.4"], "the ids of words count 1, 2, 3"),
    "a range over another": (["1-2", "2-3", "1", "2"], "the multiword token 2-3 covers no words of its own"),
    "a range behind its words": (["1", "2", "1-2", "3"], "the multiword token 1-2 covers no words of its own"),
    "a range beyond": (["1-9", "1", "2", "3"], "the multiword token 1-9 covers no words of its own"),
    "a letter": (["1", "2", "x", "3"], "an id is like 8, 8-9 or 8.1, got 'x'"),
}


@pytest.mark.parametrize("case", BAD_IDS)
def test_ids_that_do_not_count_words_are_refused(table, case):
    ids, message = BAD_IDS[case]
    with pytest.raises(CorpusError, match=rf"a\.jsonl, row 1: {message}"):
        list(read_table(table({"words": ["a", "b", "c", "d"], "ids": ids})))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"words": "The dog"}, "the words are a list with one entry a word, got 'The dog'"),
        ({"words": "[The dog]"}, "the words cannot be read as a JSON list"),
        ({"words": [1, 2]}, "the words are strings, got 1; name another column"),
        ({"words": ["a"], "upos": [3]}, "the upos are strings, got 3; name another column"),
        ({"words": ["a"], "heads": [0.0]}, r"the heads are strings, got 0\.0"),
        ({"text": 5}, "the text is a string, got 5"),
        ({"text": "  "}, "the text is blank"),
    ],
)
def test_a_column_of_another_kind_is_refused(table, row, message):
    with pytest.raises(CorpusError, match=rf"a\.jsonl, row 1: {message}"):
        list(read_table(table(row)))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"a": 1, "b": 2},
            r"no column is surely the words or the text; the columns are a, b: .*--columns words=tokens,heads",
        ),
        (
            {"text": "a", "heads": [0]},
            r"heads cannot be read without words; the columns are text, heads: .* words= for none",
        ),
    ],
)
def test_columns_that_are_not_certain_are_asked_for(table, row, message):
    with pytest.raises(CorpusError, match=rf"a\.jsonl: {message}"):
        list(read_table(table(row), on_bad=lambda error: None))


def test_words_can_be_said_to_be_none(table):
    (document,) = read_table(table({"text": "a", "heads": [0]}), columns={"words": ""})
    assert (document.text, document.sentences) == ("a", ())


def test_a_column_that_is_not_there_is_refused(table):
    with pytest.raises(CorpusError, match=r"a\.jsonl: there is no column toks; the columns are text, words"):
        list(read_table(table({"text": "a", "words": ["a"]}), columns={"words": "toks"}))


def test_an_unknown_name_of_ours_is_refused_at_once(table):
    with pytest.raises(CorpusError, match=r"A column is one of text, words, .* not deprel; write ours=theirs"):
        read_table(table(DOG), columns={"deprel": "relations"})


def test_an_unknown_ending_is_refused_at_once(tmp_path):
    (tmp_path / "a.xlsx").write_text("x")
    with pytest.raises(CorpusError, match=r"a\.xlsx: a table's name ends in \.parquet, .*, got '\.xlsx'"):
        read_table(tmp_path / "a.xlsx")


def test_a_missing_file_is_refused_at_once(tmp_path):
    with pytest.raises(CorpusError, match="there is no such file"):
        read_table(tmp_path / "no.jsonl")


@pytest.fixture
def logged():
    """What datasets says to a user with its usual settings."""

    class Messages(logging.Handler):
        def emit(self, record):
            seen.append(record.getMessage())

    seen, handler, level = [], Messages(), datasets.logging.get_verbosity()
    datasets.logging.set_verbosity_warning()
    logging.getLogger("datasets").addHandler(handler)
    yield seen
    logging.getLogger("datasets").removeHandler(handler)
    datasets.logging.set_verbosity(level)


BROKEN = {
    "a.jsonl": b'{"text": "x"}\n{oops\n',
    "empty.jsonl": b"",
    "empty.csv": b"",
    "a.csv": b'text,b\n"x,1,2\n3,4,5\n',
    "latin.csv": b"text\ncaf\xe9\n",
    "a.parquet": b"no parquet at all",
}


@pytest.mark.parametrize("on_bad", [None, lambda error: None])
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_one_sentence(tmp_path, name, on_bad, logged):
    (tmp_path / name).write_bytes(BROKEN[name])
    with pytest.raises(CorpusError, match=rf"{name}: cannot be read \(.+\); check that .* a whole table\.$") as refused:
        list(read_table(tmp_path / name, on_bad=on_bad))
    assert "\n" not in str(refused.value)
    assert logged == []


def test_a_table_without_rows_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("text\n")
    with pytest.raises(CorpusError, match=r"a\.csv: expected a table with rows, found none"):
        list(read_table(tmp_path / "a.csv"))


def test_a_table_without_a_row_that_can_be_read_is_refused(table):
    with pytest.raises(CorpusError, match="no row can be read as a sentence"):
        list(read_table(table({"words": [""]}), on_bad=lambda error: None))


@pytest.mark.usefixtures("logged")
def test_how_loud_datasets_is_stays_as_it_was(table):
    documents = read_table(table(DOG, IT))
    next(documents)
    assert datasets.logging.get_verbosity() == datasets.logging.WARNING


# ----------------------------------------------------------------------------------------------------------------- hub


class Hub:
    """Stands for the hub: says what it was asked for."""

    def __init__(self, rows, sha="c0ffee"):
        self.rows, self.sha, self.read = rows, sha, 0
        self.asked: list[object] = []

    def dataset_info(self, name, *, revision=None):
        self.asked.append((name, revision))
        return SimpleNamespace(sha=self.sha)

    def load_dataset(self, **request):
        self.asked.append(request)

        def rows():
            for row in self.rows:
                self.read += 1
                yield row

        return Stream(rows())


class Stream:
    features = None

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return self.rows


@pytest.fixture
def hub(monkeypatch):
    hub = Hub([DOG, IT, DOG, IT])
    monkeypatch.setattr(datasets, "load_dataset", hub.load_dataset)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    return hub


@pytest.mark.parametrize(
    ("spec", "split", "asked"),
    [
        ("some/set", None, (None, "test")),
        ("some/set:en_ewt", None, ("en_ewt", "test")),
        ("some/set:en_ewt@dev", None, ("en_ewt", "dev")),
        ("some/set@dev", "train", (None, "dev")),
        ("some/set:en:x", "train", ("en:x", "train")),
    ],
)
@pytest.mark.parametrize("revision", [None, "2.16"])
def test_a_set_of_the_hub_is_streamed_at_one_commit(hub, spec, split, asked, revision):
    documents, provenance = read_hub(spec, revision=revision, **({} if split is None else {"split": split}))
    config, split = asked
    assert hub.asked == [
        ("some/set", revision),
        {"path": "some/set", "name": config, "split": split, "revision": "c0ffee", "streaming": True},
    ]
    assert provenance == {"name": "some/set", "config": config, "split": split, "revision": "c0ffee"}
    assert [document.text for document in documents] == ["The dog barked.", "It ran"] * 2


def test_documents_of_the_hub_are_named_by_what_was_asked_for(hub):
    documents, _ = read_hub("some/set:en_ewt@dev", limit=2)
    assert [document.id for document in documents] == ["some/set:en_ewt@dev:1", "some/set:en_ewt@dev:2"]


@pytest.mark.parametrize("limit", [1, 2, 3, 9])
def test_no_more_is_read_than_the_limit_needs(hub, limit):
    documents, _ = read_hub("some/set", limit=limit)
    assert len(list(documents)) == min(limit, 4)
    assert hub.read <= limit + 1  # a document ends where the next begins


def test_bad_rows_of_the_hub_are_named_and_can_be_left_out(hub):
    hub.rows[1] = {"words": []}
    with pytest.raises(CorpusError, match="some/set, row 2: a sentence is a list of words"):
        list(read_hub("some/set")[0])
    errors = []
    assert len(list(read_hub("some/set", on_bad=errors.append)[0])) == 3
    assert len(errors) == 1


def test_columns_of_the_hub_can_be_told(hub):
    hub.rows[:] = [{"toks": ["a"]}]
    assert next(read_hub("some/set", columns={"words": "toks"})[0]).text == "a"
    with pytest.raises(CorpusError, match="some/set: no column is surely the words"):
        read_hub("some/set")


@pytest.mark.parametrize("spec", ["imdb", "a/b/c", "a/b:", "a/b@", "a b/c", "", "a/b@test[:10]"])
def test_a_spec_that_is_none_is_refused(hub, spec):
    with pytest.raises(CorpusError, match="named as owner/name:config@split, got"):
        read_hub(spec)
    assert hub.asked == []


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(hub, limit):
    with pytest.raises(CorpusError, match=f"at least 1 .*; got {limit}"):
        read_hub("some/set", limit=limit)


def test_a_folder_of_the_same_name_is_not_taken_for_the_hub(hub, tmp_path, monkeypatch):
    (tmp_path / "some/set").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CorpusError, match="there is a folder some/set here, which hides the hub's"):
        read_hub("some/set")


@pytest.mark.skipif(os.environ.get("HF_HUB_OFFLINE") != "1", reason="the hub can be reached")
def test_offline_is_one_sentence():
    with pytest.raises(
        CorpusError, match=r"some/set: cannot be looked up on the hub \(.*\); check .* data:FILE"
    ) as refused:
        read_hub("some/set")
    assert "\n" not in str(refused.value)


def test_a_set_that_cannot_be_loaded_is_one_sentence(hub, monkeypatch):
    def refuse(**request):
        raise RuntimeError("Dataset scripts are no longer supported, but found set.py\nmore")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(CorpusError, match=r"some/set: cannot be read \(Dataset scripts .* found set\.py\); check"):
        read_hub("some/set")


def test_a_set_without_a_commit_is_refused(hub):
    hub.sha = None
    with pytest.raises(CorpusError, match="the hub names no commit for it"):
        read_hub("some/set")


@pytest.mark.network
def test_a_treebank_of_the_hub():
    documents, provenance = read_hub("commul/universal_dependencies:en_ewt", limit=3)
    first = next(documents).sentences[0]
    assert first.heads is not None
    assert first.heads.count(ROOT) == 1
    assert provenance["revision"] is not None
    assert len(provenance["revision"]) == 40
