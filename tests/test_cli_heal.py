"""`headlens heal` as a person meets it, and the library function behind it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import commands
import pytest
import torch
from safetensors.torch import load_file

import headlens.heal_pruned
from headlens.calibration import calibrate
from headlens.cli.heal import clear, parts_of
from headlens.corpora import Corpus, read_corpus
from headlens.errors import HealingError, OutputError
from headlens.evaluation import read_task
from headlens.heal_pruned import HealedPruned, heal_pruned, other_source
from headlens.heal_pruned_words import lines_of
from headlens.healing import Healed, heal
from headlens.manifest import read_manifest, source_of
from headlens.models import LoadedModel, load_whole, network_of
from headlens.pruning import Wish, prune
from headlens.surgery import apply_plan, full_plan, masked_twin, mean_contexts, refit
from headlens.surgery.checkpoint import save_pruned

TINY = "tiny-gpt2"
invoke, refusal = partial(commands.invoke, "heal"), partial(commands.refusal, "heal")
SHORT = ["--corpus", "grammar:60", "--batch", "4", "--max-length", "16"]
OFF = [(0, 0), (0, 3), (1, 2), (2, 5), (3, 1)]


@cache
def whole() -> LoadedModel:
    return load_whole(TINY, check=False)


@cache
def grammar() -> Corpus:
    return read_corpus(["grammar:60"])


def save(folder: Path, **manifest: Any) -> Path:
    model = apply_plan(whole().model, full_plan(whole().model).without(OFF))
    facts = {"source": whole().provenance, "method": {"ranked_by": "by hand", "fill": "zero", "repair": False}}
    return save_pruned(model, folder, tokenizer=whole().tokenizer, manifest={**facts, **manifest})


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("checkpoints") / "cut")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same(one: Path, other: Path) -> bool:
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


# --------------------------------------------------------------------------------------------------------- the command


@pytest.mark.slow
def test_a_healed_checkpoint_is_what_heal_gives_and_tells_how(cut: Path, tmp_path: Path) -> None:
    options = ["--steps", "6", "--lr", "0.001", "--loss", "hidden=1,logits=0.5", "--random", "2"]
    code, said, errors = invoke(cut, "--out", tmp_path / "healed", "--eval", "grammar:40", *SHORT, *options)
    assert (code, errors) == (0, "")
    student = load_whole(str(cut), check=False)
    tokenizer = whole().require_tokenizer()
    recipe: dict[str, Any] = {"steps": 6, "batch": 4, "lr": 0.001, "max_length": 16}
    expected = heal(student.model, whole().model, grammar(), tokenizer, parts={"hidden": 1.0, "logits": 0.5}, **recipe)
    found = load_whole(str(tmp_path / "healed"), check=False)
    state = expected.model.state_dict()
    assert all(torch.equal(weight, state[name]) for name, weight in found.model.state_dict().items())

    manifest = read_manifest(tmp_path / "healed")
    assert manifest["source"]["name"] == TINY
    assert manifest["method"] == {"ranked_by": "by hand", "fill": "zero", "repair": False, "healed_steps": 6}
    healing = manifest["healing"]
    assert healing["recipe"] == expected.recipe.to_dict()
    name = "kl_distortion (held out)"
    assert healing["measured"][name] == {"before": expected.before, "after": expected.after}
    assert manifest["measured"][name] == {"before": 0.0, "after": expected.after}
    assert set(healing["measured"]) == {name, "grammar:40: agreement"}
    assert healing["data"]["files"][0]["kind"] == "grammar"
    arms = [(arm["name"], arm["draw"]) for arm in healing["arms"]]
    assert arms[:3] == [("healed", None), ("pruned", None), ("original", None)]
    assert arms[3:] == [("random", 0), ("random, healed", 0), ("random", 1), ("random, healed", 1)]
    assert all(arm["distortion"] > 0 for arm in healing["arms"] if arm["name"] != "original")

    lines = said.splitlines()
    assert "27 of 32 heads, healed after tiny-gpt2 in 6 steps of 4 (loss: hidden 1, logits 0.5)" in lines[0]
    assert [line.split("  ")[0] for line in lines[2:7]] == [
        *("original", "pruned", "healed", "random heads", "random heads, healed"),
    ]
    assert "grammar:40, agreement, less the pruned: " in said
    assert "grammar:40, agreement, less the original: " in said
    assert not (tmp_path / "healed.healing").exists()


@contextmanager
def _interrupted(at: tuple[str, int]) -> Iterator[Callable[[str, int, int], None]]:
    def show(what: str, done: int, of: int) -> None:
        if (what, done) == at:
            raise KeyboardInterrupt

    yield show


@pytest.mark.slow
def test_an_interrupted_healing_goes_on_to_the_same_end(
    cut: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [*SHORT, "--steps", "60", "--random", "1"]
    assert invoke(cut, "--out", tmp_path / "straight", *options)[0] == 0
    out, work = tmp_path / "healed", tmp_path / "healed.healing"
    for at in (("healing", 55), ("healing: random 1 of 1", 52)):
        with monkeypatch.context() as patch:
            patch.setattr("headlens.cli.heal.progress_bar", lambda at=at: _interrupted(at))
            code, _, said = invoke(cut, "--out", out, *options)
        assert code == 130
        assert f"the same command goes on from the last checkpoint in {work}" in said
        assert not out.exists()
    assert {path.name for path in work.iterdir()} == {"healed", "random-0"}

    steps: list[tuple[str, int]] = []

    @contextmanager
    def noted() -> Iterator[Callable[[str, int, int], None]]:
        yield lambda what, done, of: steps.append((what, done))

    with monkeypatch.context() as patch:
        patch.setattr("headlens.cli.heal.progress_bar", noted)
        assert invoke(cut, "--out", out, *options)[0] == 0
    trained = [(what, done) for what, done in steps if what.startswith("healing")]
    assert trained == [("healing: random 1 of 1", step) for step in range(51, 61)]
    assert same(out, tmp_path / "straight")
    arms = [read_manifest(path)["healing"]["arms"] for path in (out, tmp_path / "straight")]
    assert arms[0] == arms[1]
    assert not work.exists()


@pytest.mark.slow
def test_another_recipe_does_not_go_on_and_can_start_over(
    cut: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "healed"
    options = [*SHORT, "--random", "0", "--steps"]
    with monkeypatch.context() as patch:
        patch.setattr("headlens.cli.heal.progress_bar", lambda: _interrupted(("healing", 3)))
        assert invoke(cut, "--out", out, *options, "4")[0] == 130
    assert "begun with other settings: steps (4, now 2)" in refusal(cut, "--out", out, *options, "2")
    assert invoke(cut, "--out", out, *options, "2", "--no-resume")[0] == 0
    assert read_manifest(out)["healing"]["recipe"]["steps"] == 2
    assert len(read_manifest(out)["healing"]["arms"]) == 3  # no random plan


def test_without_accelerate_it_says_what_to_install(cut: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[Healed.__module__], "is_accelerate_available", lambda: False)
    monkeypatch.setattr("headlens.models.load_whole", lambda *_, **__: pytest.fail("a model was loaded"))
    said = refusal(cut, "--out", tmp_path / "out")
    assert "the extra heal" in said
    assert "pip install accelerate" in said


def test_a_folder_that_is_no_pruned_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    assert "give a folder that `headlens prune` or `headlens convert` wrote" in refusal(
        tmp_path / "x", "--out", tmp_path / "out"
    )


def test_where_the_original_is_not_named_it_must_be_given(tmp_path: Path) -> None:
    folder = save(tmp_path / "cut", source={})
    assert "does not name its original; give it with --original" in refusal(folder, "--out", tmp_path / "out")


def test_the_original_must_be_the_one_that_was_pruned(tmp_path: Path) -> None:
    folder = save(tmp_path / "cut", source={"name": TINY, "weights_sha256": "ab" * 32})
    said = refusal(folder, "--out", tmp_path / "out", *SHORT, "--steps", "1")
    assert "came from one with abababababab: it may be another model. Name the right one with --original" in said


def test_an_output_that_holds_something_is_refused_before_the_work(cut: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "kept").write_text("kept", encoding="utf-8")
    assert "holds something already (kept)" in refusal(cut, "--out", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--loss", "hidden"], "takes PART=WEIGHT"),
        (["--loss", "hidden=1,hidden=2"], "names a part twice"),
        (["--loss", "cosine=1"], "hidden, embedding, logits, task; got 'cosine'"),
        (["--lr", "0"], "learning rate must be a positive number"),
        (["--original", "tiny-bert"], "the student has the family gpt2, the teacher bert"),
        (["--dtype", "float12"], "float12"),
    ],
)
def test_what_cannot_be_is_one_sentence(cut: Path, tmp_path: Path, options: list[str], message: str) -> None:
    assert message in refusal(cut, "--out", tmp_path / "out", *SHORT, "--steps", "1", *options)
    assert not (tmp_path / "out").exists()


def test_the_parts_of_a_loss() -> None:
    assert parts_of(None) is None
    assert parts_of("hidden=1, logits = 0.5") == {"hidden": 1.0, "logits": 0.5}


def test_only_healings_are_cleared(tmp_path: Path) -> None:
    work = tmp_path / "x.healing"
    clear(work)  # there is none
    (work / "healed").mkdir(parents=True)
    (work / "healed" / "healing.json").write_text("{}", encoding="utf-8")
    (work / "photos").mkdir()
    with pytest.raises(OutputError, match="photos is no healing, so it is not removed"):
        clear(work)
    assert (work / "healed" / "healing.json").exists()
    (work / "photos").rmdir()
    clear(work)
    assert not work.exists()
    work.write_text("a file", encoding="utf-8")
    with pytest.raises(OutputError, match="is no healing"):
        clear(work)


# --------------------------------------------------------------------------------------------------------- the library


def run(cut: LoadedModel, manifest: dict[str, Any], **more: Any) -> HealedPruned:
    options: dict[str, Any] = {"steps": 2, "batch": 4, "max_length": 16, "draws": 1}
    return heal_pruned(cut, whole(), grammar(), manifest=manifest, **{**options, **more})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "has_means", "is_repaired"),
    [
        ({"fill": "zero", "repair": False}, False, False),
        ({"fill": "mean", "repair": False}, True, False),
        ({"fill": "mean", "repair": True}, True, True),
        ("leave one out", True, False),
    ],
)
def test_random_plans_get_the_surgery_that_the_manifest_tells(
    cut: Path, monkeypatch: pytest.MonkeyPatch, method: Any, has_means: bool, is_repaired: bool
) -> None:
    made, trained = [], []
    heal_with_random = headlens.heal_pruned.heal_with_random

    def note(*given: Any, make: Callable[[Any], Any], **how: Any) -> Any:
        def making(plan: Any) -> Any:
            made.append((plan, make(plan)))
            return made[-1][1]

        for one in heal_with_random(*given, make=making, **how):
            trained.append(one)
            yield one

    monkeypatch.setattr(headlens.heal_pruned, "heal_with_random", note)
    found = run(load_whole(str(cut), check=False), {"method": method})
    ((plan, model),), (one,) = made, trained
    assert one.before != one.after
    assert [arm.distortion for arm in found.random("random")] == [one.before]
    assert [arm.distortion for arm in found.random("random, healed")] == [one.after]
    assert [len(kept) for kept in plan.kept] == [6, 7, 7, 7]
    fitted = calibrate(whole(), grammar(), max_length=16).fitted
    means = mean_contexts(network_of(whole().model), fitted) if has_means else None
    expected = apply_plan(whole().model, plan, fill=means)
    if is_repaired:
        expected = refit(expected, whole().model, fitted)
    state = expected.state_dict()
    assert all(torch.equal(weight, state[name]) for name, weight in model.state_dict().items())
    assert bool(found.notes) == isinstance(method, str)
    assert (found.facts["method"].get("pruned_by") == method) == isinstance(method, str)


@pytest.mark.slow
def test_what_was_told_of_the_pruning_stays_and_its_figures_are_set_apart(tmp_path: Path) -> None:
    task = read_task("grammar:40")
    first = prune(whole(), grammar(), Wish(remove=6), method="norm", tasks=[task], draws=1, texts=4, max_length=16)
    first.save(tmp_path / "cut")
    manifest = read_manifest(tmp_path / "cut")
    found = run(load_whole(str(tmp_path / "cut"), check=False), manifest, tasks=[task], draws=0)
    found.save(tmp_path / "healed")
    told = read_manifest(tmp_path / "healed")
    assert told["surgery"]["measured"] == manifest["measured"]
    assert told["surgery"]["arms"] == manifest["arms"]
    assert told["data"] == manifest["data"]
    assert told["measured"]["parameters"] == manifest["measured"]["parameters"]
    assert told["heads_kept"] == manifest["heads_kept"]
    assert found.arm("pruned").results[0].value == first.arms[0].results[0].value
    assert found.arm("original").results[0].value == first.arm("original").results[0].value
    assert json.dumps(told["healing"]["pruned"]["weights_sha256"]) != json.dumps(told["source"]["weights_sha256"])
    assert len(found.differences("pruned")) == len(found.differences()) == 1
    assert found.random() == ()
    assert not any("random" in line for line in lines_of(found))


def test_a_model_that_has_lost_no_head_has_nothing_to_heal() -> None:
    with pytest.raises(HealingError, match="tiny-gpt2 has lost no head"):
        run(whole(), {})
    twin = replace(whole(), model=masked_twin(whole().model, full_plan(whole().model).without([(0, 0)]), fill=None))
    with pytest.raises(HealingError, match="has lost no head"):
        run(twin, {})


@pytest.mark.parametrize(
    ("manifest", "name"),
    [({"source": {"name": "a"}}, "a"), ({"source": "b"}, "b"), ({}, None), ({"source": {"name": None}}, None)],
)
def test_the_name_of_the_original(manifest: dict[str, Any], name: str | None) -> None:
    assert source_of(manifest) == name


def test_the_weights_of_the_original_are_those_that_were_pruned() -> None:
    digest = whole().provenance["weights_sha256"]
    assert other_source({"source": {"weights_sha256": digest}}, whole()) is None
    assert other_source({"source": "tiny-gpt2"}, whole()) is None  # nothing is known
    said = other_source({"source": {"weights_sha256": "0" * 64}}, whole())
    assert said is not None
    assert digest[:12] in said
    assert "000000000000" in said
