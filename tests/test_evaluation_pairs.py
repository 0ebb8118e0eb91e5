"""Minimal pairs and SyntaxGym suites beside sums of single log-probabilities, and formulas by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from evaluated import (
    VOCABULARY,
    as_loaded,
    ids_of,
    masked_log_prob,
    next_log_prob,
    whole_model,
    word_tokenizer,
)

from headlens.errors import CorpusError
from headlens.evaluation import evaluate, read_task
from headlens.evaluation.formulas import Region, parse_formula
from headlens.evaluation.language import causal_model
from headlens.evaluation.minimal_pairs import MinimalPairs, Pair
from headlens.evaluation.syntaxgym import SyntaxGym, read_suite

PAIRS = [
    ("the cat sleeps .", "the cat sleep .", "one"),
    ("cats sleep", "cats often sleeps .", "one"),  # of different lengths
    ("the dogs see a cat .", "a dogs see a cat .", "one"),  # that differ at the start
    ("the cats are big", "the cats are big", "two"),  # the same
    ("the horse is near", "the zebra is near", "two"),  # of words that the tokenizer does not know
    ("dogs see the old cat and the old dog .", "dogs sees the old cat and the old dog .", "two"),
]
TASK = MinimalPairs([Pair(good, bad, f"pair {n}", group) for n, (good, bad, group) in enumerate(PAIRS)])


def check_pairs(found: Any, margins: list[float]) -> None:
    right = [0.5 if margin == 0 else float(margin > 0) for margin in margins]
    assert found.columns["margin"] == pytest.approx(margins, abs=1e-9)
    assert found.columns["right"].tolist() == right
    assert {0.0, 0.5, 1.0} == set(right)  # else the test could not tell them apart
    assert found.value == np.mean(right)
    assert found.figure("margin").value == pytest.approx(np.mean(margins))
    assert found.facts["ties"] == 2
    assert found.facts["groups"] == {"one": np.mean(right[:3]), "two": np.mean(right[3:])}


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({"frame": "<s> $A </s>"}, "<s>"),  # what the tokenizer puts in front
        ({"frame": "$A", "bos_token": "<s>", "eos_token": "</s>"}, "<s>"),
        ({"frame": "$A", "eos_token": "</s>"}, "</s>"),  # as GPT-2 was trained
        ({"frame": "$A"}, None),
    ],
)
def test_a_decoder_scores_the_sum_over_all_tokens(options: dict[str, str], start: str | None) -> None:
    model = whole_model("gpt2")

    def score(text: str) -> float:
        ids = [] if start is None else [VOCABULARY.index(start)]
        first = len(ids) or 1
        ids += ids_of(text)
        return sum(next_log_prob(model, ids[:place], ids[place]) for place in range(first, len(ids)))

    margins = [0.0 if ids_of(good) == ids_of(bad) else score(good) - score(bad) for good, bad, _ in PAIRS]
    check_pairs(evaluate(as_loaded(model, word_tokenizer(**options)), TASK), margins)


@pytest.mark.parametrize("batch_tokens", [1, 40, 4096])
def test_an_encoder_scores_the_sum_over_single_masks(batch_tokens: int) -> None:
    model = whole_model("bert")

    def score(text: str) -> float:
        ids = [2, *ids_of(text), 3]
        return sum(masked_log_prob(model, ids, place) for place in range(1, len(ids) - 1))

    margins = [0.0 if ids_of(good) == ids_of(bad) else score(good) - score(bad) for good, bad, _ in PAIRS]
    loaded = as_loaded(model, word_tokenizer(frame="<s> $A </s>"))
    check_pairs(evaluate(loaded, TASK, batch_tokens=batch_tokens), margins)


def test_sentences_that_do_not_fit_are_refused_by_name() -> None:
    long = MinimalPairs([Pair("the cat " * 20, "a cat", "file.jsonl, line 9")])
    with pytest.raises(
        CorpusError, match=r"file\.jsonl, line 9: 41 tokens, special ones included, are more than the 40"
    ):
        evaluate(as_loaded(whole_model("gpt2"), word_tokenizer()), long)


def test_jsonl_of_a_file_and_of_a_folder(tmp_path: Path) -> None:
    for name, rows in {"b": PAIRS[:2], "a": PAIRS[2:]}.items():
        lines = [json.dumps({"sentence_good": good, "sentence_bad": bad, "field": "x"}) for good, bad, _ in rows]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n\n")
    (tmp_path / "notes.txt").write_text("no pairs here")
    single, folder = read_task(f"blimp:{tmp_path / 'b.jsonl'}"), read_task(f"sling:{tmp_path}")
    assert isinstance(single, MinimalPairs)
    assert isinstance(folder, MinimalPairs)
    assert single.name == "blimp:b.jsonl"
    assert single.pairs == tuple(
        Pair(good, bad, f"b.jsonl, line {n}", "b") for n, (good, bad, _) in enumerate(PAIRS[:2], 1)
    )
    assert [pair.group for pair in folder.pairs] == ["a"] * 4 + ["b"] * 2
    assert [source["name"] for source in folder.sources] == ["a.jsonl", "b.jsonl"]


def test_paradigms_are_told_by_their_names_where_the_rows_have_them(tmp_path: Path) -> None:
    row = {"sentence_good": "a", "sentence_bad": "b", "UID": "npi"}
    (tmp_path / "x.jsonl").write_text(json.dumps(row))
    task = read_task(f"blimp:{tmp_path / 'x.jsonl'}")
    assert isinstance(task, MinimalPairs)
    assert task.pairs[0].group == "npi"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"sentence_good": "a", "sentence_bad": "b"}\n{"sentence_good": "a"', r"p\.jsonl, line 2: this is not JSON"),
        ('{"sentence_good": "a", "sentence_bad": "b"}\n[1]', r"p\.jsonl, line 2: expected a JSON object, got list"),
        (
            '{"sentence_good": "a", "sentence_bad": "b"}\n{"sentence_good": "a"}',
            r"line 2: there is no sentence_bad here",
        ),
        ('{"sentence_good": "a", "sentence_bad": 3}', r"line 1: expected text in the column sentence_bad, got 3"),
        (
            '{"good_one": "a", "sentence_bad": "b"}',
            r"no column for good \(sentence_good, good\); the columns are good_one",
        ),
        ("", "expected a table with rows, found none"),
    ],
)
def test_bad_files_of_pairs_are_one_sentence(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(content)
    with pytest.raises(CorpusError, match=message):
        read_task(f"blimp:{file}")


def test_a_folder_without_pairs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="the folder holds no file of pairs"):
        read_task(f"blimp:{tmp_path}")


# ------------------------------------------------------------------------------------------------------------ formulas

VALUES = {("a", "1"): 1.0, ("a", "2"): 2.0, ("b", "1"): 4.0, ("b", "2"): 0.5, ("c-d_e", "10"): 3.0}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("(1;%a%) < (2;%a%)", True),
        ("(2;%a%) < (1;%a%)", False),
        ("(2;%a%)>(1;%a%)", True),
        ("(1;%a%) < (1;%a%)", False),
        ("(1;%a%) > (1;%a%)", False),
        ("(1;%a%) = 1", True),
        ("(1;%a%) = 1.0009", True),  # within a thousandth of a bit
        ("(1;%a%) = 1.0012", False),
        ("( 1 ; %a% )  <  [ (2;%a%) ]", True),
        ("(10;%c-d_e%) = 3", True),
        ("(1;%a%) + (2;%a%) = 3", True),
        ("(1;%b%) - (2;%a%) - (1;%a%) = 1", True),  # from the left: from the right it would be 3
        ("(1;%b%) - [(2;%a%) - (1;%a%)] = 3", True),
        ("(1;%a%) + (2;%a%) < (1;%b%) - (2;%b%)", True),  # sums before comparisons: 3 < 3.5
        ("[(1;%a%) < (2;%a%)] & [(1;%b%) < (2;%b%)]", False),
        ("[(1;%a%) < (2;%a%)] | [(1;%b%) < (2;%b%)]", True),
        ("(1;%a%) < (2;%a%) & (2;%b%) < (1;%b%)", True),  # comparisons before &
        ("[1 < 2] & [2 < 1] & [1 < 2]", False),
        ("((1 < 2) & (2 < 1)) | (1 < 2)", True),
        ("(*;%a%) = 3", True),  # the whole sentence
        ("(*;%b%) < (*;%a%)", False),
    ],
)
def test_formulas_mean_what_they_say(text: str, holds: bool) -> None:
    assert parse_formula(text).holds(VALUES) is holds


def test_a_formula_knows_what_it_asks_for() -> None:
    found = parse_formula("[(6;%x%) < (*;%y%)] & [(6;%x%) < 3]")
    assert found.regions == {Region("x", "6"), Region("y", "*")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a region .* at character 1, got the end"),
        ("(1;%a%)", "claims nothing"),
        ("(1;%a%) + 2", "claims nothing"),
        ("(1;%a%) <", "expected a region .* got the end"),
        ("(1;%a%) < (2;%a%", r"expected \) at character 13, got ';%a%'"),
        ("[(1;%a%) < 2", "expected ] at character 13, got the end"),
        ("[(1;%a%) < 2)", r"expected \] at character 13, got '\)'"),
        ("(1;%a%) < 2]", "expected the end at character 12, got ']'"),
        ("(1;%a%) < 2 < 3", "< and < side by side"),
        ("1 - 2 + 3 < 4", r"- and \+ side by side"),
        ("[1 < 2] & [1 < 2] | [1 < 2]", r"& and \| side by side"),
        ("1 & 2", "& stands between two claims"),
        ("[1 < 2] + 3 < 4", r"\+ stands between two values"),
        ("[1 < 2] < [1 < 2]", "< stands between two values"),
        ("__import__('os').system('true') < 1", "expected a region"),
        ("[" * 60 + "1 < 2" + "]" * 60, "more than 50 brackets"),
    ],
)
def test_formulas_that_say_nothing_clear_are_refused(text: str, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        parse_formula(text)


# ----------------------------------------------------------------------------------------------------------- SyntaxGym

SENTENCES = {
    ("0", "match"): [("1", "the cat"), ("2", ""), ("3", "near the dogs"), ("4", "sleeps"), ("5", ".")],
    ("0", "mismatch"): [("1", "the cat"), ("2", ""), ("3", "near the dogs"), ("4", "sleep"), ("5", ".")],
    ("1", "mismatch"): [("1", "cats"), ("2", "often"), ("3", "near a dog"), ("4", "sees"), ("5", "a cat")],
    ("1", "match"): [("1", "cats"), ("2", "often"), ("3", "near a dog"), ("4", "see"), ("5", "a cat")],
}
FORMULAS = [
    "(4;%match%) < (4;%mismatch%)",
    "(1;%match%) + (2;%match%) < (*;%match%) - (4;%match%) - (5;%match%)",
    "(3;%match%) > (5;%mismatch%)",
]


def suite(**changes: Any) -> dict[str, Any]:
    items = [
        {
            "item_number": number + 1,
            "conditions": [
                {
                    "condition_name": name,
                    "regions": [{"region_number": int(region), "content": text} for region, text in regions],
                }
                for (item, name), regions in SENTENCES.items()
                if item == str(number)
            ],
        }
        for number in range(2)
    ]
    predictions = [{"type": "formula", "formula": formula} for formula in FORMULAS]
    return {"meta": {"name": "x", "metric": "sum"}, "predictions": predictions, "items": items} | changes


def write(folder: Path, content: object) -> Path:
    file = folder / "suite.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
    return file


@pytest.mark.parametrize(("frame", "start"), [("<s> $A", [2]), ("$A", [])])
def test_regions_are_summed_in_bits(frame: str, start: list[int], tmp_path: Path) -> None:
    model = whole_model("gpt2")
    bits: dict[str, dict[tuple[str, str], float]] = {"0": {}, "1": {}}
    for (item, name), regions in SENTENCES.items():
        ids = list(start)
        for region, text in regions:
            bits[item][name, region] = 0.0
            for token in ids_of(text):
                if ids:  # nothing stands before the first token of all
                    bits[item][name, region] -= next_log_prob(model, ids, token) / math.log(2)
                ids.append(token)
    items, formulas = read_suite(write(tmp_path, suite()))
    task = SyntaxGym(items, formulas)
    loaded = as_loaded(model, word_tokenizer(frame=frame))
    with torch.inference_mode():
        found = task._surprisals(causal_model(loaded), 40, 4096)
    assert found[0] == pytest.approx(bits["0"], abs=1e-9)
    assert found[1] == pytest.approx(bits["1"], abs=1e-9)
    holds = [
        [
            own["match", "4"] < own["mismatch", "4"],
            own["match", "1"] + own["match", "2"] < sum(own["match", n] for n in "123"),
            own["match", "3"] > own["mismatch", "5"],
        ]
        for own in (bits["0"], bits["1"])
    ]
    result = evaluate(loaded, task)
    assert result.columns["right"].tolist() == [np.mean(own) for own in holds]
    assert result.value == pytest.approx(np.mean(holds))
    assert list(result.facts["predictions"].values()) == np.mean(holds, axis=0).tolist()


def test_a_suite_is_read_by_the_names_of_its_conditions(tmp_path: Path) -> None:
    """Their order differs between items."""
    items, _ = read_suite(write(tmp_path, suite()))
    assert [[condition.name for condition in item.conditions] for item in items] == [
        ["match", "mismatch"],
        ["mismatch", "match"],
    ]
    assert [item.id for item in items] == ["suite.json, item 1", "suite.json, item 2"]


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in suite().items() if key != name}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"meta": \n 3,}', "suite.json, line 2: this is not JSON"),
        ("[]", "has an object called meta here, in list"),
        (without("items"), "has a list called items here, got NoneType"),
        (suite(meta={"metric": "mean"}), "regions are scored by their sum, this suite asks for 'mean'"),
        (suite(predictions=[{"formula": "(4;%match%)"}]), "suite.json, prediction 1: .* claims nothing"),
        (
            suite(predictions=[{"formula": "(9;%match%) < 1"}]),
            r"item 1: the formula asks for \(9;%match%\), the regions",
        ),
        (suite(predictions=[{"formula": "(4;%other%) < 1"}]), "asks for .*other.*, the conditions are match, mismatch"),
        (suite(predictions=[]), "at least one item and one prediction"),
        (suite(items=[{"conditions": [{"condition_name": "match", "regions": []}]}]), "item 1: .* no region with text"),
    ],
)
def test_bad_suites_are_one_sentence(content: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=message):
        read_task(f"syntaxgym:{write(tmp_path, content)}")


def test_the_public_suite_is_read(data_folder: Path) -> None:
    task = read_task(f"syntaxgym:{data_folder / 'eval/syntaxgym/number_prep.json'}")
    assert isinstance(task, SyntaxGym)
    assert len(task.suite) == 19
    assert {len(item.conditions) for item in task.suite} == {4}
    assert task.name == "syntaxgym:number_prep.json"


def test_the_equal_pair_of_sling_is_a_tie(data_folder: Path) -> None:
    """Pair 38 of cl_simple_noun; a model that always says the same must get one half for it."""
    task = read_task(f"sling:{data_folder / 'eval/sling/cl_simple_noun.jsonl'}")
    assert isinstance(task, MinimalPairs)
    own = MinimalPairs(task.pairs[38:40])
    assert own.pairs[0].good == own.pairs[0].bad
    found = evaluate(as_loaded(whole_model("gpt2"), word_tokenizer()), own)
    assert found.columns["right"][0] == 0.5
