"""`headlens convert` as a person meets it, and `headlens heal` of what it wrote."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import commands
import pytest
from transformers import AutoModelForCausalLM

from headlens.cli.convert import counts_of, groups_in, layers_in
from headlens.errors import PlanError
from headlens.manifest import read_manifest
from headlens.models import load_whole, network_of
from headlens.plan import HeadPlan
from headlens.surgery import present_plan

TINY = "tiny-gpt2"
invoke, refusal = partial(commands.invoke, "convert"), partial(commands.refusal, "convert")
SHORT = ["--calibration", "grammar:60", "--tokens", "600", "--texts", "8", "--max-length", "16", "--no-speed"]


@pytest.mark.slow
def test_what_is_written_is_what_is_told(tmp_path: Path) -> None:
    code, said, errors = invoke(
        TINY, "--kv-heads", "2", "--layers", "0,2-3", "--out", tmp_path / "new", "--eval", "grammar:30", *SHORT
    )
    assert (code, errors) == (0, "")
    lines = said.splitlines()
    assert lines[0].startswith("tiny-gpt2: key/value heads by layer 8 8 8 8 -> 2 8 2 2 (")
    assert lines[1] == "Tried, judged by kl distortion on text that nothing was fitted on:"
    for name in ("original", "converted", "plain mean pooling", "no attention heads at all"):
        assert any(line.startswith(f"{name} ") for line in lines)
    assert "repeat:8" in said
    assert lines[-1] == f"Saved: {tmp_path / 'new'}"
    manifest = read_manifest(tmp_path / "new")
    assert manifest["kv_heads"] == [2, 8, 2, 2]
    tried = manifest["method"]["tried"]
    assert [one["distortion"] for one in tried] == sorted(one["distortion"] for one in tried)
    assert len({(one["method"], one["grouping"], one["repair"]) for one in tried}) == len(tried) == 5
    arms = {arm["name"]: arm for arm in manifest["arms"]}
    assert set(arms) >= {"converted", "original", "mean pooling", "no heads"}
    assert arms["converted"]["distortion"] < arms["mean pooling"]["distortion"] < arms["no heads"]["distortion"]
    loaded = load_whole(str(tmp_path / "new"), check=False)
    assert [len(groups) for groups in present_plan(network_of(loaded.model)).groups] == [2, 8, 2, 2]


@pytest.mark.slow
def test_plain_mean_pooling_to_one_head_is_stock_and_warned_of(tmp_path: Path) -> None:
    code, said, _ = invoke(TINY, "--kv-heads", "1", "--method", "mean", "--out", tmp_path / "new", *SHORT)
    assert code == 0
    assert "(mean, contiguous groups)" in said.splitlines()[0]
    assert "Tried" not in said
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "new")
    assert type(model).__name__ == "GPTBigCodeForCausalLM"
    assert read_manifest(tmp_path / "new")["loads_in"] == "transformers"


@pytest.mark.slow
def test_a_budget_and_groups_by_hand(tmp_path: Path) -> None:
    code, said, _ = invoke(
        TINY, "--budget", "50%", "--method", "svd", "--no-repair", "--out", tmp_path / "half", *SHORT
    )
    assert code == 0
    assert "Budget of 1" in said
    assert sum(read_manifest(tmp_path / "half")["kv_heads"]) <= 16
    by_hand = ["--kv-heads", "2", "--groups", "0,2,4,6|1,3,5,7", "--method", "svd"]
    assert invoke(TINY, *by_hand, "--out", tmp_path / "hand", *SHORT)[0] == 0
    assert HeadPlan.load(tmp_path / "hand").groups == (((0, 2, 4, 6), (1, 3, 5, 7)),) * 4


@pytest.mark.slow
def test_there_and_back(tmp_path: Path) -> None:
    options = ["--method", "svd", "--out"]
    assert invoke(TINY, "--kv-heads", "4", *options, tmp_path / "four", *SHORT)[0] == 0
    code, said, _ = invoke(tmp_path / "four", "--kv-heads", "8", *options, tmp_path / "eight", *SHORT)
    assert code == 0
    assert "4 4 4 4 -> 8 8 8 8 (copies, which is exact)" in said
    measured = read_manifest(tmp_path / "eight")["measured"]["kl_distortion (held out)"]
    assert abs(measured["after"]) < 1e-6


@pytest.mark.slow
def test_what_was_converted_is_healed_beside_mean_pooling(tmp_path: Path) -> None:
    assert invoke(TINY, "--kv-heads", "2", "--method", "aligned", "--out", tmp_path / "two", *SHORT)[0] == 0
    short = ["--corpus", "grammar:60", "--batch", "4", "--max-length", "16", "--steps", "6", "--progressive", "0.5"]
    code, said, errors = commands.invoke("heal", tmp_path / "two", "--out", tmp_path / "healed", *short)
    assert (code, errors) == (0, "")
    assert "key/value heads by layer 2 2 2 2, healed after tiny-gpt2 in 6 steps of 4" in said.splitlines()[0]
    assert [line.split("  ")[0] for line in said.splitlines()[2:7]] == [
        *("original", "converted", "healed", "plain mean pooling", "plain mean pooling, healed"),
    ]
    assert "Plain mean pooling comes to " in said
    manifest = read_manifest(tmp_path / "healed")
    assert manifest["schema"] == "headlens.converted/1"
    assert manifest["healing"]["recipe"]["progressive"] == 0.5
    assert [arm["name"] for arm in manifest["healing"]["arms"]] == [
        *("healed", "converted", "original", "mean pooling", "mean pooling, healed"),
    ]
    assert manifest["method"]["merged_by"] == "aligned"
    assert manifest["kv_heads"] == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            [],
            "Say how many key/value heads a layer shall have (--kv-heads), or how many all layers together (--budget).",
        ),
        (
            ["--kv-heads", "2", "--budget", "8"],
            "Key/value heads of a layer (--kv-heads) and of all layers (--budget) are given; leave one out.",
        ),
        (
            ["--kv-heads", "3"],
            "Layer 0: 8 key/value heads cannot become 3 in groups of one size; choose one of 1, 2, 4, 8",
        ),
        (["--kv-heads", "0"], "8 key/value heads cannot become 0"),
        (["--kv-heads", "16"], "Layer 0 has 8 query heads, so no more key/value heads than that; got 16"),
        (["--kv-heads", "8"], "Every layer that is named has 8 key/value heads already"),
        (["--kv-heads", "two"], "--kv-heads takes a number of key/value heads"),
        (["--kv-heads", "4,4"], "The model has 4 layers, and 2 numbers of key/value heads are given"),
        (["--kv-heads", "2", "--layers", "9"], "The model has layers 0 to 3, no layer 9"),
        (["--kv-heads", "2", "--layers", "3-x"], "--layers takes numbers and rising ranges of layers"),
        (["--kv-heads", "2", "--layers", "3-1"], "--layers takes numbers and rising ranges of layers"),
        (["--kv-heads", "2", "--layers", "\u00b2"], "--layers takes numbers and rising ranges of layers"),
        (["--kv-heads", "2", "--layers", "0-99999999"], "--layers takes numbers and rising ranges of layers"),
        (
            ["--kv-heads", "2", "--method", "svd", "--grouping", "similar", "--groups", "0,1,2,3|4,5,6,7"],
            "--groups names the heads that share, and --grouping how they are found",
        ),
        (["--kv-heads", "2", "--groups", "0;1"], "--groups takes key/value heads by number"),
        (["--kv-heads", "2", "--groups", "0,1|2,3"], "Groups must hold each of the key/value heads 0 to 7 once"),
        (["--kv-heads", "2", "--method", "median"], "--method is one of best, mean, first"),
        (["--kv-heads", "2", "--grouping", "similar"], "The best conversion chooses grouping and scale itself"),
        (["--kv-heads", "2", "--repair"], "The best conversion is found with and without a repair"),
        (["--kv-heads", "2", "--method", "svd", "--scale", "fitted"], "Heads merged by svd are fitted as they are"),
        (["--kv-heads", "2", "--objective", "loss"], "--objective is one of cosine, kl, hidden"),
        (["--budget", "2"], "A budget of 2 key/value heads cannot be spread"),
    ],
)
def test_what_cannot_be_is_one_sentence_before_any_work(options: list[str], message: str, tmp_path: Path) -> None:
    said = refusal(TINY, "--out", tmp_path / "new", *options)
    assert message in said
    assert not (tmp_path / "new").exists()


def test_too_little_text_is_told_before_the_work(tmp_path: Path) -> None:
    file = tmp_path / "few.txt"
    file.write_text("\n".join(["The dog sees the cat.", "A cat sleeps.", "Dogs sleep.", "Cats see dogs.", "It is."]))
    said = refusal(TINY, "--kv-heads", "2", "--out", tmp_path / "new", "--calibration", f"text:{file}")
    assert "tokens to fit on, and moments of 192 dimensions need 193 at least (100,000 are usual)" in said


def test_numbers_layers_and_groups_as_they_are_written() -> None:
    assert counts_of(None) is None
    assert counts_of("4") == 4
    assert counts_of("4,2,8") == (4, 2, 8)
    assert layers_in("0-2,7") == (0, 1, 2, 7)
    assert layers_in(None) is None
    assert groups_in("0,3|1,2") == ((0, 3), (1, 2))
    with pytest.raises(PlanError, match="as 0-3,7"):
        layers_in("-1")
