"""Which kind a corpus is: by its name, or by what the file holds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headlens.corpora import read_corpus, sample_path
from headlens.corpora.gap import COLUMNS as GAP_COLUMNS
from headlens.corpora.grammar import read_grammar
from headlens.corpora.kinds import CORPORA, Options, Spec, guessed_kind, parse_spec
from headlens.errors import CorpusError

CONLLU = "1\tDogs\tdog\tNOUN\t_\t_\t2\tnsubj\t_\t_\n2\tbark\tbark\tVERB\t_\t_\t0\troot\t_\t_\n\n"
GUM = "# newdoc id = a\n# global.Entity = GRP-etype\n" + CONLLU
WORD_OF_CONLL = "nw/a 0 0 word NN * - - - Speaker#1 * "
CONLL2012 = f"#begin document (nw/a); part 000\n{WORD_OF_CONLL}-\n\n#end document\n"
LITBANK = "#begin document (a); part 0\na\t0\t0\tword" + "\t_" * 8 + "\t\n\n#end document\n"
GAP = (
    "\t".join(["ID", *GAP_COLUMNS, "URL"])
    + "\nt-1\tAnn met Eve and she left.\tshe\t16\tAnn\t0\tTRUE\tEve\t8\tFALSE\thttp\n"
)
WINOBIAS = "1 [The nurse] met the chief because [he] was ill.\n2 The nurse met [the chief] because [she] was ill.\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file.txt"


# -------------------------------------------------------------------------------------------------------------- by name


@pytest.mark.parametrize("kind", [kind for kind in CORPORA if kind not in ("hub", "grammar")])
def test_a_kind_goes_before_a_colon(file, kind):
    file.write_text("anything")
    assert parse_spec(f"{kind}:{file}") == Spec(kind, str(file))


def test_the_grammar_has_a_size_a_seed_and_no_files():
    assert parse_spec("grammar:300@2") == Spec("grammar", "300@2")
    corpus = read_corpus(["grammar:5", "grammar:5@2"])
    assert list(corpus) == [*read_grammar(5, seed=0), *read_grammar(5, seed=2)]
    assert [(source["sentences"], source["seed"]) for source in corpus.sources] == [(5, 0), (5, 2)]


@pytest.mark.parametrize("size", ["0", "-5", "ten", "5@", "5@-1", "1e3"])
def test_a_size_that_is_none_is_refused(size):
    with pytest.raises(CorpusError, match=r"^A corpus of the grammar is named by its sentences, grammar:2000"):
        parse_spec(f"grammar:{size}")


def test_the_hub_has_names_and_no_files():
    assert parse_spec("hub:owner/name:config@test") == Spec("hub", "owner/name:config@test")


def test_a_file_whose_name_has_a_colon_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a:b.txt", "text:c.txt"):
        Path(name).write_text("A day.")
    assert parse_spec("a:b.txt") == Spec("text", "a:b.txt")
    assert parse_spec(Path("a:b.txt")) == Spec("text", "a:b.txt")
    assert parse_spec(str(tmp_path / "a:b.txt")) == Spec("text", str(tmp_path / "a:b.txt"))
    assert parse_spec("./text:c.txt") == Spec("text", "text:c.txt")
    assert parse_spec("text:a:b.txt") == Spec("text", "a:b.txt")
    with pytest.raises(CorpusError, match=r"c\.txt: there is no such file"):
        parse_spec("text:c.txt")  # the kind goes first


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("conlu:a.conllu", r" \(did you mean 'conllu'\?\)"),
        ("GUM:a.conllu", r" \(did you mean 'gum'\?\)"),
        ("wino-bias:a", r" \(did you mean 'winobias'\?\)"),
        ("zzz:a.txt", ""),
    ],
)
def test_an_unknown_kind_is_refused_with_the_known_ones(spec, hint):
    message = (
        f"^'{spec}' begins with no kind of corpus{hint}; write KIND:FILE with one of text, conllu, .*, hub, or ./{spec}"
    )
    with pytest.raises(CorpusError, match=message):
        parse_spec(spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("conllu:", "names a kind and no file"),
        ("hub: ", "names a kind and no"),
        ("grammar:", "no number of sentences; write grammar:2000"),
        ("", "an empty name"),
    ],
)
def test_a_kind_without_a_file_is_refused(spec, message):
    with pytest.raises(CorpusError, match=message):
        parse_spec(spec)


@pytest.mark.parametrize("spec", ["text:no.txt", "no.txt", "a/b:c.txt", "some words: and more"])
def test_a_missing_file_is_refused(spec, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CorpusError, match=r"there is no such file|this is a folder"):
        parse_spec(spec)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # nobody writes to it: opening it would wait for ever
    with pytest.raises(CorpusError, match="expected a regular file"):
        parse_spec(tmp_path / "pipe")


# -------------------------------------------------------------------------------------------------------------- content

CERTAIN = {
    "conllu": [
        CONLLU,
        "\ufeff# newdoc\r\n" + CONLLU.replace("\n", "\r\n"),
        "\n\n" + CONLLU,
        "1-2\tim" + "\t_" * 8 + "\n1\tin" + "\t_" * 8 + "\n2\tdem" + "\t_" * 8 + "\n",
        "# text = Dogs bark\n" + CONLLU * 10_000,
        CONLLU + "1\tx\n",
        CONLLU.replace("2\tbark", "x\tbark"),
        *("# " + "x" * shift + "\n" + CONLLU.replace("Dogs", "\u72d7" * 5_000) * 10 for shift in range(3)),
        CONLLU.splitlines()[1].replace("2", "1", 1),
    ],
    "gum": [GUM, "# global.Entity = GRP\n" + CONLLU],
    "conll2012": [CONLL2012, CONLL2012.replace(" ", "\t").replace("#begin\tdocument\t", "#begin document ")],
    "litbank": [LITBANK],
    "gap": [GAP],
    "winobias": [WINOBIAS],
    "text": [
        "",
        "One line.",
        "A day began.\nIt ended.\n",
        "Tabs\there and\tthere.\nNone here.\n",
        "one\ttwo",
        "# A heading\n\nIts text.\n",
        "# text mining\n\nIts text.\n",
        "# newdocs\nare here\n",
        "[Music] Hello.\nYes.",
        "{Sighs} I know.\nNo.\n",
        '"Well," she said.\n"Go," said he.\n',
        "<unk> is a word.\nSo it is.\n",
        "1 One thing.\n2 Another [sic] thing.\n",
        "1 [One] thing and [another].\n2 A line without.\n",
        "yes, and no\nno, and yes\n",
        "No,yes and no\nAnd,so on\n",
        "1\n2\n3\n",
        "1 This line of plain text has ten words in it\nAnd another one.\n",
        "今天,我去了。\n明天,我也去。\n",
        "[" * 60_000,
        " = Title = \n\n Text , tokenised . \n",
        "#begin\nwith a number sign\n",
        "A row of words. " * 10_000,
        "今" * 50_000,
    ],
}


@pytest.mark.parametrize(
    ("kind", "content"), [(kind, content) for kind, contents in CERTAIN.items() for content in contents]
)
def test_a_file_tells_its_kind(file, kind, content):
    file.write_text(content, encoding="utf-8", newline="")
    assert guessed_kind(file) == kind
    assert parse_spec(file) == Spec(kind, str(file))


@pytest.mark.parametrize("data", [b"\xff\xfe", b"caf\xe9\n", b"GIF\x00\x01", "text".encode("utf-16")])
def test_what_is_no_text_is_left_to_the_reader_of_text(file, data):
    file.write_bytes(data)
    assert guessed_kind(file) == "text"


def test_the_name_of_a_file_tells_nothing(tmp_path):
    (tmp_path / "a.conllu").write_text("A day began.\n")
    (tmp_path / "a.txt").write_text(CONLLU)
    assert guessed_kind(tmp_path / "a.conllu") == "text"
    assert guessed_kind(tmp_path / "a.txt") == "conllu"


UNCERTAIN = {
    "spaces for tabs": (CONLLU.replace("\t", " "), "a treebank"),
    "nine columns": (CONLLU.replace("\t_\n", "\n"), "a table with tabs"),
    "comments of a treebank": ("# sent_id = 1\n# text = Dogs bark\nDogs bark\n", "a treebank"),
    "a comment of GUM": ("# newdoc\n" + CONLLU.replace("\t", " "), "a treebank"),
    "brackets in columns": (CONLL2012.replace(" -\n", " (1)\n"), "coreference in columns"),
    "a part of LitBank": (CONLL2012.replace(" -\n", " -\n" + WORD_OF_CONLL + "\n"), "coreference in columns"),
    "ten columns of another table": (CONLLU.replace("\t2\t", "\tx\t"), "a table with tabs"),
    "two columns": ("a\tb\nc\td\n", "a table with tabs"),
    "JSON lines": ('{"text": "a"}\n{"text": "b"}\n', "JSON"),
    "JSON over lines": ('{\n  "text": "a"\n}\n', "JSON"),
    "a list in JSON": ('[\n  {"text": "a"}\n]\n', "JSON"),
    "XML": ('<?xml version="1.0"?>\n<a>text</a>\n', "XML or HTML"),
    "HTML": ("<!doctype html>\n<p>text</p>\n", "XML or HTML"),
    "an element": ('<doc id="1">\ntext\n</doc>\n', "XML or HTML"),
    "commas": ("text,label\nA day.,1\n", "a table with commas"),
}


@pytest.mark.parametrize("case", UNCERTAIN)
def test_of_what_looks_like_something_else_the_kind_is_asked_for(file, case):
    content, what = UNCERTAIN[case]
    file.write_text(content)
    with pytest.raises(CorpusError) as refused:
        parse_spec(file)
    message = str(refused.value)
    assert message.startswith(
        f"{file}: it looks like {what}, and what it holds is not certain; say which kind it is, as in "
    )
    assert f"text:{file}" in message
    assert "(kinds: text, conllu, gum," in message
    assert "\n" not in message


def test_a_parquet_file_is_asked_about(file):
    file.write_bytes(b"PAR1\x15\x04")
    with pytest.raises(CorpusError, match=r"it looks like a parquet file, .* as in data:"):
        guessed_kind(file)


def test_a_file_that_may_not_be_read_is_refused(file, monkeypatch):
    file.write_text("text")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # the tests may run as root, who may read everything
    with pytest.raises(CorpusError, match=r"file\.txt: cannot be opened \(Permission denied\)"):
        guessed_kind(file)


# -------------------------------------------------------------------------------------------------------------- reading

XWINOGRAD = (
    'en\toriginal\t?\tAnn met Eve; she left.\t["Ann", "met", "Eve", ";", "she", "left", "."]\t'
    '["she", [4, 5], ["she"]]\t[["Ann", [0, 1], ["Ann"], true], ["Eve", [2, 3], ["Eve"], false]]\n'
)
CONTENT = {
    "text": "A day.\n",
    "conllu": CONLLU,
    "gum": GUM,
    "conll2012": CONLL2012,
    "litbank": LITBANK,
    "gap": GAP,
    "winobias": WINOBIAS,
    "winograd": XWINOGRAD,
}


@pytest.mark.parametrize("kind", CONTENT)
def test_every_kind_has_its_reader(file, kind):
    file.write_text(CONTENT[kind])
    document = next(CORPORA[kind].read(str(file), Options()))
    assert bool(document.sentences) == (kind != "text")
    assert (document.mentions is not None) == (kind in ("gum", "conll2012", "litbank"))
    assert bool(document.choices) == (kind in ("gap", "winobias", "winograd"))


@pytest.mark.parametrize("kind", [*CONTENT, "data"])
def test_every_reader_goes_on_behind_what_is_bad(file, kind):
    bad_and_good = {
        "text": "\x07\nA day.\n",
        "conllu": "1\tx\n\n" + CONLLU,
        "gum": GUM + "1\tx\n\n",
        "conll2012": CONLL2012 + "x\n",
        "litbank": LITBANK + "x\n",
        "gap": GAP + "t-2\tx\n",
        "winobias": WINOBIAS + "x\n",
        "winograd": XWINOGRAD + "x\n",
        "data": '{"words": ["a"], "heads": [7]}\n{"words": ["a"], "heads": [0]}\n',
    }
    file = file.with_suffix(".jsonl")
    file.write_text(bad_and_good[kind])
    seen = list[CorpusError]()
    assert list(CORPORA[kind].read(str(file), Options(on_bad=seen.append)))
    assert len(seen) == 1
    with pytest.raises(CorpusError):
        list(CORPORA[kind].read(str(file), Options()))


def test_the_bundled_sample_is_text():
    assert guessed_kind(sample_path()) == "text"


# Everything of the data folder that is a corpus, and some that is none
REAL = {
    "ud/en_ewt-ud-test.conllu": "conllu",
    "ud/zh_gsdsimp-ud-test.conllu": "conllu",
    "ud/de_gsd-ud-test.conllu": "conllu",
    "ud/en_gum-ud-dev.conllu": "gum",
    "coref/litbank/24_o_pioneers_brat.conll": "litbank",
    "coref/winobias/dev_type1_pro_stereotype.first100.v4_auto_conll": "conll2012",
    "coref/winobias/pro_stereotyped_type1.txt.dev": "winobias",
    "coref/winobias/anti_stereotyped_type2.txt.dev": "winobias",
    "coref/gap/gap-validation.tsv": "gap",
    "eval/text/gutenberg-masque_of_the_red_death.txt": "text",
    "eval/text/gutenberg-the_legend_of_sleepy_hollow.txt": "text",
    "eval/text/wikitext2-valid.head.txt": "text",
    "eval/text/zh_gsdsimp-dev.txt": "text",
    "coref/wsc/xwinograd-en-original.tsv": None,
    "coref/winogender/templates.tsv": None,
    "eval/blimp/adjunct_island.jsonl": None,
    "eval/cls/rt-polarity.1000.csv": None,
    "eval/syntaxgym/number_prep.json": None,
}


@pytest.mark.parametrize("path", REAL)
def test_real_files_tell_their_kind_or_are_asked_about(data_folder, path):
    if REAL[path]:
        assert guessed_kind(data_folder / path) == REAL[path]
    else:
        with pytest.raises(CorpusError, match="say which kind it is"):
            guessed_kind(data_folder / path)
