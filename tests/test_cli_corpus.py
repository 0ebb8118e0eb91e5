"""`headlens corpus`, by what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from headlens.cli import app
from headlens.corpora import CORPORA
from headlens.corpora.conllu import read_gum
from headlens.corpora.grammar import read_grammar


def word(number: int, form: str, upos: str, head: int, relation: str, misc: str = "_") -> str:
    return f"{number}\t{form}\t_\t{upos}\t_\t_\t{head}\t{relation}\t_\t{misc}\n"


TREEBANK = (
    "# newdoc id = one\n# global.Entity = GRP-etype\n# text = a b abc\n"
    + word(1, "a", "NOUN", 2, "nsubj:pass", "Entity=(1-x)")
    + word(2, "b", "VERB", 0, "root")
    + word(3, "abc", "PRON", 2, "obj", "Entity=(1-x)")
    + "\n"
    + "# newdoc id = two\n"
    + word(1, "c", "NOUN", 0, "root", "Entity=(1-x)")
    + "\n"
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a[b].conllu"
    path.write_text(TREEBANK)
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["corpus", *map(str, arguments)])


def shown(*arguments: object) -> list[tuple[str, ...]]:
    """The lines of the tables, cut where two spaces stand."""
    done = run("show", *arguments)
    assert done.exit_code == 0, (done.stderr, done.exception)
    return [
        tuple(cell.strip() for cell in line.replace("  :", ":").split("  ") if cell.strip())
        for line in done.stdout.splitlines()
        if line.strip()
    ]


def refusal(*arguments: object) -> str:
    done = run("show", *arguments)
    assert isinstance(done.exception, SystemExit), done.exception
    assert (done.exit_code, done.stdout) == (1, "")
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_a_treebank_is_shown_with_what_it_marks(file):
    lines = shown(file)
    for expected in [
        ("source", "gum:a[b].conllu"),
        ("documents", "2"),
        ("a document is", "document"),
        ("sentences", "2"),
        ("words", "4"),
        ("of a single word", "1"),
        ("longest document, in words", "3"),
        ("longest sentence, in words", "3"),
        ("mentions", "3"),
        ("entities", "2"),
        ("chains (of two mentions or more)", "1"),
        ("singletons (of one mention)", "1"),
        ("root", "2"),
        ("nsubj", "1"),
        (":pass", "1"),
        ("NOUN", "2"),
    ]:
        assert expected in lines
    assert lines[lines.index(("nsubj", "1")) + 1] == (":pass", "1")


def test_the_kind_may_be_named(file):
    lines = shown(f"conllu:{file}")
    assert ("source", "conllu:a[b].conllu") in lines
    assert "mentions" not in {line[0] for line in lines}


def test_json_holds_the_same(file):
    done = run("show", file, "--json")
    facts = json.loads(done.stdout)
    assert (facts["documents"], facts["sentences"], facts["words"]) == (2, 2, 4)
    assert facts["relations"]["nsubj"] == {"count": 1, "subtypes": {"pass": 1}}
    assert facts["upos"] == {"NOUN": 2, "PRON": 1, "VERB": 1}
    assert facts["coreference"] == {"documents": 2, "mentions": 3, "entities": 2, "chains": 1, "singletons": 1}
    assert facts["sources"][0]["kind"] == "gum"
    assert facts["tokenizers"] == {}


def test_a_tokenizer_tells_which_words_it_splits(file, tiny_bert):
    (tiny_bert / "model.safetensors").unlink()  # a tokenizer is enough
    file.write_text(TREEBANK.replace("abc", "a-b"))
    counts = {"words": 4, "split": 1, "without_token": 0}
    assert json.loads(run("show", file, "--json", "--model", tiny_bert).stdout)["tokenizers"] == {
        str(tiny_bert): counts
    }
    assert any(line[-3:] == ("4", "1", "0") for line in shown(file, "--model", tiny_bert, "--model", tiny_bert))


def test_a_folder_without_a_tokenizer_is_refused(file, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "has no tokenizer; name a model of text, or a folder" in refusal(file, "--model", tmp_path / "empty")


def test_choices_are_shown_by_group(tmp_path):
    path = tmp_path / "pro_stereotyped_type1.txt"
    path.write_text("1 [The nurse] met the chief because [he] hid.\n2 The nurse met [the chief] because [she] hid.\n")
    lines = shown(path)
    for expected in [("pro", "2"), ("type1", "2"), ("feminine", "1"), ("masculine", "1"), ("pronouns to resolve", "2")]:
        assert expected in lines


def test_plain_text_has_no_words(tmp_path):
    (tmp_path / "a.txt").write_text("One.\n\nTwo.\nThree.\n")
    lines = shown(tmp_path / "a.txt", "--unit", "paragraph")
    assert lines == [
        ("Corpus",),
        ("source", "text:a.txt"),
        ("documents", "2"),
        ("a document is", "paragraph"),
        ("characters", "15"),
    ]


def test_what_is_bad_is_skipped_on_request_and_told(file):
    file.write_text(TREEBANK + "1\tx\n\n")
    assert "line 11: expected 10 columns" in refusal(file)
    done = run("show", file, "--skip-bad")
    assert done.exit_code == 0
    assert "could not be read: 1. The first:" in done.stdout
    assert f"- {file}, line 11: expected 10 columns" in done.stdout
    assert json.loads(run("show", file, "--skip-bad", "--json").stdout)["skipped"] == 1


def test_limits_and_columns_are_handed_on(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"a": ["Dogs", "bark"]}\n{"a": ["So"]}\n')
    lines = shown(f"data:{path}", "--columns", "words=a", "--limit", "1")
    assert ("words", "2") in lines
    assert "A column is one of text, words" in refusal(f"data:{path}", "--columns", "nothing=a")
    assert "--columns takes OURS=THEIRS" in refusal(f"data:{path}", "--columns", "words")


def test_mistakes_are_told_in_one_sentence(tmp_path):
    assert "there is no such file" in refusal(tmp_path / "no.txt")
    assert "did you mean 'conllu'?" in refusal("conlu:a.conllu")
    (tmp_path / "t.txt").write_text("a\tb\nc\td\n")
    assert "say which kind it is" in refusal(tmp_path / "t.txt")


def test_help_lists_the_kinds():
    text = " ".join(run("--help").stdout.split())
    assert [kind for kind in CORPORA if kind not in text] == []


def test_the_grammar_writes_a_treebank_that_is_read_back(tmp_path):
    file = tmp_path / "g.conllu"
    result = CliRunner().invoke(app, ["corpus", "grammar", "--sentences", "12", "--seed", "3", "--out", str(file)])
    assert result.exit_code == 0
    written = read_grammar(12, seed=3)
    read = list(read_gum(file))
    assert [document.mentions for document in read] == [document.mentions for document in written]
    for name in ("words", "text", "spans", "upos", "lemmas", "heads", "relations"):
        pairs = zip(read, written, strict=True)
        assert all([getattr(s, name) for s in a.sentences] == [getattr(s, name) for s in b.sentences] for a, b in pairs)
    assert f"{len(written)} texts" in result.output
    assert "Perplexity of the grammar: " in result.output
