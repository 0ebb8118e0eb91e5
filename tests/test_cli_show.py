"""`headlens show`, by what it prints and writes."""

from __future__ import annotations

import re
import webbrowser
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from headlens.cli import app
from headlens.testing.planted import planted_bert


def run(*arguments: object, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["show", *map(str, arguments)], input=stdin)


def refusal(*arguments: object, stdin: str | bytes | None = None) -> str:
    done = run(*arguments, stdin=stdin)
    assert isinstance(done.exception, SystemExit), done.exception
    assert (done.exit_code, done.stdout) == (1, "")
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A BERT whose head L0H4 attends to the previous token and L0H0 to the next one, and three of its words."""
    made = planted_bert()
    path = tmp_path_factory.mktemp("planted") / "a<b>"
    made.model.save_pretrained(path)
    made.tokenizer.save_pretrained(path)
    return path, made.tokenizer.convert_ids_to_tokens([7, 9, 11])


def rows(printed: str) -> list[tuple[str, str]]:
    """Word and what it attends to, where that gets nearly everything."""
    found = [re.match(r"\s*(\S+)\s+(\S.*?)\s+(1\.00|\.99)\s", line) for line in printed.splitlines()]
    return [(match[1], match[2]) for match in found if match]


def test_a_head_that_is_known_shows_what_it_does(model: tuple[Path, list[str]]) -> None:
    path, (a, b, c) = model
    done = run(path, f"{a} {b} {c}", "--head", "L0H4")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0].strip() == "L0H4"
    assert rows(done.stdout) == [(a, "special tokens"), (b, a), (c, b)]
    assert rows(run(path, f"{a} {b} {c}", "--head", "l0h0").stdout) == [(a, b), (b, c), (c, "special tokens")]


def test_a_dash_reads_standard_input(model: tuple[Path, list[str]]) -> None:
    path, words = model
    given = run(path, " ".join(words), "--head", "L0H4")
    piped = run(path, "-", "--head", "L0H4", stdin=" ".join(words) + "\n")
    assert (piped.exit_code, piped.stdout) == (0, given.stdout)


def test_the_page_is_written_and_opened(
    model: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, words = model
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: bool(opened.append(address)) or True)
    page = tmp_path / "new" / "page.html"
    done = run(path, " ".join(words), "--head", "L0H4", "--html", page, "--open")
    assert done.stdout.splitlines()[-1] == f"Page: {page}"
    assert opened == [page.as_uri()]
    html = page.read_text(encoding="utf-8")
    assert all(word in html for word in words)
    assert "L0H4 of a&lt;b&gt;" in html
    assert "<b>" not in html


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (
            "a b",
            ["--head", "7.9"],
            "A head is named L7H9, layer and head counted from 0; got '7.9'. The model has 2 layers of 6 heads, L0H0",
        ),
        ("a b", ["--head", "L0H6"], "2 layers of 6 heads, L0H0 to L1H5; there is no L0H6"),
        ("", ["--head", "L0H0"], "The text is empty"),
        ("\udcff", ["--head", "L0H0"], "The text is not UTF-8"),
        ("a b", ["--head", "L0H0", "--open"], "name one with --html"),
        ("a b", ["--head", "L0H0", "--html", "."], "is a folder; name a file in it"),
        ("a b", ["--head", "L0H0", "--html", "/dev/null"], "/dev/null is not a plain file"),
        ("x" * 5000, ["--head", "L0H0"], f"has one word, '{'x' * 60}…', and nothing to attend to"),
        ("a b", ["--head", "x" * 5000], f"counted from 0; got '{'x' * 60}…'."),
        ("a b", ["--head", "L0H0", "--html", "/dev/null/x"], "choose another place with --html"),
    ],
)
def test_mistakes_are_told_in_one_sentence(
    model: tuple[Path, list[str]], text: str, options: list[str], message: str
) -> None:
    assert message in refusal(model[0], text, *options)


@pytest.mark.parametrize(("stdin", "message"), [("", "The text is empty"), (b"caf\xe9 b", "The text is not UTF-8")])
def test_what_stands_on_standard_input_must_be_a_text(
    model: tuple[Path, list[str]], stdin: str | bytes, message: str
) -> None:
    assert message in refusal(model[0], "-", "--head", "L0H0", stdin=stdin)


def test_a_slip_in_the_options_is_found_before_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    import headlens.models

    monkeypatch.setattr(headlens.models, "load_model", lambda *_, **__: pytest.fail("the model was loaded"))
    assert "A head is named L7H9" in refusal("minilm", "a b", "--head", "H9")
    assert "is a folder" in refusal("minilm", "a b", "--head", "L0H0", "--html", "/")


def test_an_unknown_model_is_named() -> None:
    assert "no-such-model" in refusal("no-such-model", "a b", "--head", "L0H0")


def test_the_head_must_be_named() -> None:
    done = run("minilm", "a b")
    assert done.exit_code == 2
    assert "--head" in done.stderr
