"""`headlens evaluate` as a person meets it."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import commands
import pytest

from headlens.cli.evaluate import limited_tasks
from headlens.cli.pruning_options import names_in
from headlens.corpora.grammar import texts_of
from headlens.errors import CorpusError
from headlens.models import load_whole
from headlens.surgery import apply_plan, full_plan
from headlens.surgery.checkpoint import save_pruned

TINY = "tiny-gpt2"
invoke, refusal = partial(commands.invoke, "evaluate"), partial(commands.refusal, "evaluate")


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tiny-gpt2 without its first layer's heads."""
    whole = load_whole(TINY, check=False)
    model = apply_plan(whole.model, full_plan(whole.model).without([(0, head) for head in range(8)]))
    folder = tmp_path_factory.mktemp("checkpoints") / "cut"
    return save_pruned(model, folder, tokenizer=whole.tokenizer, manifest={"source": whole.provenance})


@pytest.fixture
def words(tmp_path: Path) -> Path:
    file = tmp_path / "words.txt"
    file.write_text("The cat sat.\nThe dog ran.\nIt rained.\n", encoding="utf-8")
    return file


def test_a_pruned_checkpoint_against_its_original(cut: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/bin/headlens", "evaluate", "a b"])
    code, said, errors = invoke(cut, "--against", TINY, "--eval", "grammar:60", "--out", tmp_path / "new" / "e.json")
    assert (code, errors) == (0, "")
    lines = said.splitlines()
    assert lines[0].split()[-2:] == ["less", TINY]
    texts = texts_of(60)
    verbs = sum(word.kind == "verb number" for text in texts for word in text.forced)  # all are words of its vocabulary
    assert lines[1].startswith(f"grammar:60, agreement  {verbs} words in {len(texts)} documents  ")
    assert verbs > len(texts)
    assert lines[2].split()[0] == str(cut)
    assert "lower by" in lines[2]
    assert lines[2].endswith(", worse")
    found = json.loads((tmp_path / "new" / "e.json").read_text(encoding="utf-8"))
    assert found["command"] == "headlens evaluate 'a b'"
    whole, small = found["models"]
    assert (whole["name"], small["name"], small["made_from"]) == (TINY, str(cut), TINY)
    # 8 of 32 heads of 24 numbers each: W_Q, W_K, W_V with their biases, and W_O
    assert whole["parameters"]["total"] - small["parameters"]["total"] == 192 * (3 * 192 + 192) + 3 * 192
    (difference,) = small["differences"]
    values = [model["tasks"][0]["figures"][0]["value"] for model in (small, whole)]
    assert difference["value"] == pytest.approx(values[0] - values[1], abs=1e-12)


def test_alone_it_says_how_to_compare(cut: Path) -> None:
    _, said, _ = invoke(cut, "--eval", "grammar:20")
    assert said.splitlines()[-1].endswith(f"which is here: --against {TINY} shows what that cost.")


def test_several_models_and_tasks(cut: Path, words: Path) -> None:
    code, said, _ = invoke(TINY, cut, "--eval", "grammar:20", "--eval", f"perplexity:{words}", "--limit", "2")
    assert code == 0
    assert re.search(r"^perplexity:words.txt, perplexity per token  \d+ tokens in 2 documents ", said, re.MULTILINE)
    assert "less" not in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([TINY], "Say what the models are asked: --eval KIND:FILE"),
        ([TINY, "--speed"], "name one to hold the model against"),
        (["no-such-model", "--eval", "grammar:20"], "no-such-model"),
        ([TINY, "--eval", "gramar:20"], "did you mean grammar"),
        ([TINY, "--eval", "grammar:20", "--limit", "5"], "has no limit; leave it out"),
        ([TINY, "--eval", "perplexity:gone.txt"], "gone.txt"),
        (["tiny-bert", "--eval", "grammar:20", "--dtype", "float12"], "float12"),
    ],
)
def test_what_cannot_be_is_one_sentence(arguments: list[str], message: str) -> None:
    assert message in refusal(*arguments)


def test_without_the_harness_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "lm_eval", None)
    assert "pip install lm-eval" in refusal(TINY, "--lm-eval", "arc_easy")


def test_an_output_that_cannot_be_is_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import headlens.evaluating

    monkeypatch.setattr(headlens.evaluating, "evaluate_models", lambda *_, **__: pytest.fail("models were run"))
    (tmp_path / "file").write_text("kept", encoding="utf-8")
    assert "is not a plain file" in refusal(TINY, "--eval", "grammar:20", "--out", tmp_path)
    assert "cannot be written to" in refusal(TINY, "--eval", "grammar:20", "--out", tmp_path / "file" / "e.json")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "kept"


def test_a_failed_run_leaves_the_last_good_result(tmp_path: Path) -> None:
    (tmp_path / "e.json").write_text("kept", encoding="utf-8")
    refusal("no-such-model", "--eval", "grammar:20", "--out", tmp_path / "e.json")
    assert [(path.name, path.read_text(encoding="utf-8")) for path in tmp_path.iterdir()] == [("e.json", "kept")]


def test_a_limit_goes_to_the_tasks_that_take_one(words: Path) -> None:
    perplexity, grammar = limited_tasks([f"perplexity:{words}", "grammar:20"], 2)
    assert len(perplexity.items) == 2
    assert grammar.fingerprint == limited_tasks(["grammar:20"], None)[0].fingerprint
    with pytest.raises(CorpusError, match="has no limit"):
        limited_tasks(["grammar:20"], 2)
    assert len(limited_tasks(["grammar:20"], 2, is_used=True)) == 1  # by lm-evaluation-harness


@pytest.mark.parametrize(("text", "names"), [("", []), (" a ,b", ["a", "b"]), ("a,, b c,", ["a", "b c"])])
def test_names_stand_between_commas(text: str, names: list[str]) -> None:
    assert names_in(text) == names
