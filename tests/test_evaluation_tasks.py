"""Tasks by their names, the grammar's questions beside a loop over a stock model, and lm-evaluation-harness."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from evaluated import as_loaded, whole_model, word_tokenizer
from grammar_words import VOCABULARY
from tokenizers import processors
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from headlens.behaviour.agreement import ablate_agreement
from headlens.corpora.grammar import Forced, GrammarText, texts_of
from headlens.errors import CorpusError, UnsupportedModel
from headlens.evaluation import TASKS, TaskOptions, evaluate, read_task, run_lm_eval
from headlens.evaluation.grammar import ACROSS, AGREEMENT, COREFERENCE, Grammar
from headlens.evaluation.masked_words import MaskedWords
from headlens.evaluation.perplexity import Perplexity
from headlens.models import load_model
from headlens.testing import tiny_model

# -------------------------------------------------------------------------------------------------------------- grammar

TEXTS = texts_of(60, seed=3)
METRICS = (AGREEMENT, AGREEMENT + ACROSS, COREFERENCE, COREFERENCE + ACROSS)


def speaker(family: str, kind: str) -> PreTrainedModel:
    base = tiny_model(family, layers=2, heads=2, vocab_size=len(VOCABULARY) + 1, std=0.5)
    whole = getattr(transformers, kind)(base.config).double().eval()
    whole.base_model.load_state_dict(base.state_dict(), strict=False)
    whole.tie_weights()
    return whole


def masking(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """The same with one more token, the mask."""
    copy = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, pad_token="<pad>", bos_token="<s>")
    copy.add_special_tokens({"mask_token": "<mask>"})
    copy.backend_tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return copy


def ids_of(text: GrammarText) -> list[int]:
    words = [word.lower() for sentence in text.document.sentences for word in sentence.words]
    return [1, *(VOCABULARY.index(word) for word in words)]


def is_right(logits: torch.Tensor, forced: Forced) -> bool:
    right = logits[VOCABULARY.index(forced.right.lower())]
    return all(bool(right > logits[VOCABULARY.index(wrong.lower())]) for wrong in forced.wrong)


def counts(said: Sequence[tuple[int, Forced, bool]]) -> dict[str, list[float]]:
    """Columns by hand."""
    found = {f"{name}, {what}": [0.0] * len(TEXTS) for name in METRICS for what in ("right", "asked")}
    for item, forced, right in said:
        name = AGREEMENT if forced.kind == "verb number" else COREFERENCE
        for own in [name, name + ACROSS] if forced.has_attractor else [name]:
            found[f"{own}, right"][item] += right
            found[f"{own}, asked"][item] += 1
    return found


def check(result: Any, said: Sequence[tuple[int, Forced, bool]]) -> None:
    expected = counts(said)
    assert {name: column.tolist() for name, column in result.columns.items()} == expected
    for name in METRICS:
        right, asked = sum(expected[f"{name}, right"]), sum(expected[f"{name}, asked"])
        assert result.figure(name).value == pytest.approx(right / asked)
        assert 0 < right < asked


@pytest.mark.parametrize("batch_tokens", [1, 150, 4096])
def test_a_decoder_is_asked_with_the_words_before(
    grammar_tokenizer: PreTrainedTokenizerFast, batch_tokens: int
) -> None:
    model = speaker("gpt2", "GPT2LMHeadModel")
    said = []
    with torch.no_grad():
        for item, text in enumerate(TEXTS):
            ids = ids_of(text)
            for forced in text.forced:
                logits = model(torch.tensor([ids[: forced.word + 1]])).logits[0, -1]  # <s> stands in front
                said.append((item, forced, is_right(logits, forced)))
    found = evaluate(as_loaded(model, grammar_tokenizer), Grammar(TEXTS), batch_tokens=batch_tokens)
    check(found, said)
    assert found.facts == {"words_asked": len(said), "words_left_out": 0}


def test_an_encoder_is_asked_with_the_word_masked(grammar_tokenizer: PreTrainedTokenizerFast) -> None:
    model = speaker("bert", "BertForMaskedLM")
    said = []
    with torch.no_grad():
        for item, text in enumerate(TEXTS):
            for forced in text.forced:
                ids = ids_of(text)
                ids[forced.word + 1] = len(VOCABULARY)
                said.append((item, forced, is_right(model(torch.tensor([ids])).logits[0, forced.word + 1], forced)))
    check(evaluate(as_loaded(model, masking(grammar_tokenizer)), Grammar(TEXTS)), said)


def test_agreement_is_that_of_ablations(grammar_tokenizer: PreTrainedTokenizerFast) -> None:
    model = speaker("gpt2", "GPT2LMHeadModel")
    found = evaluate(as_loaded(model, grammar_tokenizer), Grammar(TEXTS))
    ablated = ablate_agreement(model, grammar_tokenizer, TEXTS, [(0, 0)], sets=1)
    assert found.value == ablated.intact
    assert found.figure(AGREEMENT + ACROSS).value == ablated.intact_across


def test_the_grammars_models_know_their_grammar() -> None:
    found = evaluate(load_model("tiny-gpt2", check=False), read_task("grammar:100@9"))
    assert found.task == "grammar:100@9"
    assert found.value > 0.9
    assert found.figure(COREFERENCE).value > 0.75


def test_words_that_a_tokenizer_does_not_know_are_left_out() -> None:
    with pytest.raises(CorpusError, match="makes one token of every form, and tells all of them apart, of no word"):
        evaluate(as_loaded(whole_model("gpt2"), word_tokenizer(frame="$A")), Grammar(TEXTS[:1]))


# ---------------------------------------------------------------------------------------------------------------- names


def test_corpora_are_named_as_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two\nthree\n\nfour\n")
    by_line, by_paragraph = (
        read_task(f"perplexity:text:{tmp_path / 'a.txt'}", TaskOptions(unit=unit)) for unit in ("line", "paragraph")
    )
    assert isinstance(by_line, Perplexity)
    assert isinstance(by_paragraph, Perplexity)
    assert [document.text for document in by_line.documents] == ["one two", "three", "four"]
    assert [document.text for document in by_paragraph.documents] == ["one two three", "four"]
    assert by_line.name == "perplexity:text:a.txt"
    assert by_line.fingerprint != by_paragraph.fingerprint


def test_a_treebank_is_a_corpus_for_perplexity_and_masks() -> None:
    file = Path(__file__).parent / "treebank.conllu"
    perplexity, masked = read_task(f"perplexity:conllu:{file}"), read_task(f"masked:{file}", TaskOptions(limit=1))
    assert isinstance(perplexity, Perplexity)
    assert isinstance(masked, MaskedWords)
    assert [document.text for document in masked.documents] == [perplexity.documents[0].text]
    assert perplexity.documents[0].sentences
    assert masked.name == "masked:treebank.conllu"


def test_windows_are_options() -> None:
    task = read_task("perplexity:grammar:20", TaskOptions(window=32, stride=8))
    assert isinstance(task, Perplexity)
    assert (task.window, task.stride) == (32, 8)


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("", {}, "'' begins with no kind of task; write KIND:FILE with one of perplexity, masked"),
        ("pairs.csv", {}, "'pairs.csv' begins with no kind of task"),
        ("perplexty:a.txt", {}, r"no kind of task \(did you mean perplexity\?\)"),
        ("sts", {}, "'sts' names a kind of task and nothing to read; write sts:FILE"),
        ("sts: ", {}, "nothing to read"),
        ("sts:none.csv", {}, "none.csv: there is no such file"),
        ("perplexity:conllu:none.conllu", {}, "none.conllu: there is no such file"),
        ("syntaxgym:none.json", {}, "none.json: there is no such file"),
        ("grammar:many", {}, "grammar:2000"),
        ("grammar:20", {"limit": 3}, "grammar:20: this kind of task has no limit; leave it out"),
        ("sts:none.csv", {"stride": 3}, "sts:none.csv: this kind of task has no stride"),
        ("sts:none.csv", {"limit": 0}, "the limit is at least 1"),
        ("sts:none.csv", {"revision": "main"}, "only data sets of the hub have a revision"),
    ],
)
def test_names_that_name_nothing_are_one_sentence(spec: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(CorpusError, match=message) as error:
        read_task(spec, TaskOptions(**options))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", TASKS)
def test_every_kind_tells_how_it_is_written(kind: str) -> None:
    assert TASKS[kind].example.startswith(f"{kind}:")
    assert TASKS[kind].takes <= set(TaskOptions.__dataclass_fields__)


# ------------------------------------------------------------------------------------------------------------- harness


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Stands for lm_eval: says what it was asked for."""
    asked: list[dict[str, Any]] = []

    def simple_evaluate(**request: Any) -> dict[str, Any]:
        asked.append(request)
        print("a table for the terminal")
        if "unknown" in request["tasks"]:
            raise KeyError("unknown")
        values = {"alias": "x", "acc,none": 0.25, "acc_stderr,none": 0.01}
        return {"results": dict.fromkeys(request["tasks"], values), "config": {}}

    package, models, hub = ModuleType("lm_eval"), ModuleType("lm_eval.models"), ModuleType("lm_eval.models.huggingface")
    package.simple_evaluate = simple_evaluate  # type: ignore[attr-defined]
    hub.HFLM = lambda **given: SimpleNamespace(**given)  # type: ignore[attr-defined]
    for module in (package, models, hub):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return asked


def test_the_harness_gets_the_very_model(harness: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    loaded = as_loaded(whole_model("gpt2"), word_tokenizer())
    found = run_lm_eval(loaded, ["lambada", "arc"], batch_size=4, limit=10)
    assert found == {task: {"acc,none": 0.25, "acc_stderr,none": 0.01} for task in ("lambada", "arc")}
    assert harness[0]["model"].pretrained is loaded.model
    assert harness[0]["model"].tokenizer is loaded.tokenizer
    assert harness[0]["model"].batch_size == 4
    assert (harness[0]["tasks"], harness[0]["limit"]) == (["lambada", "arc"], 10)
    assert capsys.readouterr().out == ""


def test_what_the_harness_cannot_do_is_one_sentence(harness: list[dict[str, Any]]) -> None:
    loaded = as_loaded(whole_model("gpt2"), word_tokenizer())
    with pytest.raises(CorpusError, match=r"could not run unknown: 'unknown'; `lm-eval ls tasks` lists"):
        run_lm_eval(loaded, ["unknown"])
    with pytest.raises(CorpusError, match="Name at least one task"):
        run_lm_eval(loaded, [])


def test_the_harness_needs_a_vocabulary_head(harness: list[dict[str, Any]]) -> None:
    base = as_loaded(tiny_model("gpt2"), word_tokenizer())
    with pytest.raises(UnsupportedModel, match="loaded as a GPT2Model, without a vocabulary head"):
        run_lm_eval(base, ["arc"])
    assert harness == []


def test_a_missing_harness_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(UnsupportedModel, match=r"cannot be imported .*: pip install lm-eval"):
        run_lm_eval(as_loaded(whole_model("gpt2"), word_tokenizer()), ["arc"])
