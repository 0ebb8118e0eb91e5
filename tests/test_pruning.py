"""Pruning from model to folder: what is chosen, what it is held against, and that every part of the report is true."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from headlens import arms, pruning
from headlens.calibration import Calibration, calibrate, judged, objective_for
from headlens.corpora import Corpus, read_corpus, texts
from headlens.errors import CorpusError, PlanError, UnsupportedModel
from headlens.evaluation import Task, TaskResult, evaluate, read_task
from headlens.measure import parameters
from headlens.models import LoadedModel, load_whole, network_of
from headlens.plan import HeadPlan
from headlens.pruning import Pruned, Wish, prune, usual_method
from headlens.pruning_words import lines_of
from headlens.testing import tiny_model

pytestmark = pytest.mark.slow  # many models; CI runs them as its own step

WISH = Wish(remove=8)


@cache
def tiny() -> LoadedModel:
    return load_whole("tiny-gpt2", check=False)


@cache
def grammar() -> Corpus:
    return read_corpus(["grammar:120"])


@cache
def pruned() -> Pruned:
    return prune(tiny(), grammar(), WISH, method="norm", tasks=[read_task("grammar:60")], draws=2, texts=12)


def calibration(model: LoadedModel, corpus: Corpus, **how: int) -> Calibration:
    return calibrate(model, corpus, **how)


def test_no_text_that_chooses_judges_the_outcome() -> None:
    found = calibration(tiny(), grammar(), texts=15)
    rows = {
        part: {tuple(row[mask.bool()].tolist()) for batch in getattr(found, part) for row, mask in _rows(batch)}
        for part in ("chosen", "fitted", "held_out")
    }
    assert len(rows["held_out"]) == len(rows["chosen"]) == 15
    assert rows["chosen"] <= rows["fitted"]
    assert not rows["held_out"] & rows["fitted"]


def _rows(batch: object) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(batch.input_ids, batch.attention_mask, strict=True))  # type: ignore[attr-defined]


def test_a_single_text_cannot_both_choose_and_judge() -> None:
    with pytest.raises(CorpusError, match="has 1 different text; give at least two"):
        calibration(tiny(), Corpus(texts(["the goat was old ."])))


def test_an_objective_of_another_name_is_refused() -> None:
    batches = calibration(tiny(), grammar(), texts=4).chosen
    with pytest.raises(UnsupportedModel, match="has no vocabulary head"):
        objective_for(load_base(), batches, "kl")


def load_base() -> LoadedModel:
    return replace(tiny(), model=tiny().model.base_model)


def test_the_kept_model_has_the_heads_of_its_plan_and_the_original_is_whole() -> None:
    result = pruned()
    assert result.plan.n_kept == 24
    assert [layer.attn.num_heads for layer in result.model.transformer.h] == [len(kept) for kept in result.plan.kept]
    assert {layer.attn.num_heads for layer in tiny().model.transformer.h} == {8}


def test_what_it_is_held_against_is_all_there() -> None:
    names = [arm.name for arm in pruned().arms]
    assert names == ["pruned", "original"] + ["random, same layers", "random"] * 2 + ["no heads"]
    counts = [len(kept) for kept in pruned().plan.kept]
    for arm in pruned().random("random, same layers"):
        assert [len(kept) for kept in arm.plan.kept] == counts
        assert arm.plan != pruned().plan
    assert all(arm.plan.n_kept == 24 for arm in pruned().random())
    assert pruned().arm("no heads").plan.n_kept == 0
    assert len({arm.plan for arm in pruned().arms if arm.draw is not None}) == 4


def test_distortion_is_nought_of_the_original_and_largest_without_heads() -> None:
    distortions = {arm.name: arm.distortion for arm in pruned().arms}
    assert distortions["original"] == pytest.approx(0, abs=1e-6)
    assert 0.01 < distortions["pruned"] < distortions["no heads"]


def test_the_distortion_is_that_of_the_model_by_hand() -> None:
    result, own = pruned(), calibration(tiny(), grammar(), texts=12)
    total, examples = 0.0, 0
    with torch.no_grad():
        for batch in own.held_out:
            before, after = (
                model(batch.input_ids, attention_mask=batch.attention_mask).logits.double().log_softmax(-1)
                for model in (tiny().model, result.model)
            )
            real = batch.attention_mask.bool()
            by_token = (before.exp() * (before - after)).sum(-1).where(real, 0)
            total += float((by_token.sum(-1) / real.sum(-1)).sum())
            examples += len(batch.input_ids)
    assert result.arm("pruned").distortion == pytest.approx(total / examples, rel=1e-4)


def test_tasks_are_asked_of_the_pruned_model_and_not_of_the_original() -> None:
    result = pruned()
    difference, copying = result.differences()
    assert copying.task == "repeat:8"
    assert difference.value == pytest.approx(result.arms[0].results[0].value - result.arm("original").results[0].value)
    whole, nothing = (result.arm(name).results[0].per_item for name in ("original", "no heads"))
    assert any(not np.array_equal(nothing[column], whole[column]) for column in whole)


def test_means_are_kept_and_zero_keeps_nothing() -> None:
    zero = prune(tiny(), grammar(), pruned().plan, fill="zero", draws=1, texts=12)
    assert zero.importance is None
    assert zero.facts["method"]["ranked_by"] == "by hand"
    assert zero.arm("pruned").distortion > pruned().arm("pruned").distortion


def test_a_repair_stands_beside_what_it_repairs() -> None:
    result = prune(tiny(), grammar(), pruned().plan, repair=True, draws=1, texts=40)
    assert [arm.name for arm in result.arms[:3]] == ["repaired", "pruned", "original"]
    assert result.arm("repaired").distortion < result.arm("pruned").distortion
    assert judged(network_of(result.model), _held_out(40)) == pytest.approx(result.arm("repaired").distortion, rel=1e-5)


def _held_out(texts: int) -> object:
    return objective_for(tiny(), calibration(tiny(), grammar(), texts=texts).held_out)


def test_a_masked_model_says_what_the_pruned_one_does_and_is_not_called_so() -> None:
    result = prune(tiny(), grammar(), pruned().plan, masked=True, draws=1, texts=12)
    assert result.arms[0].name == "masked"
    assert result.arms[0].distortion == pytest.approx(pruned().arm("pruned").distortion, rel=1e-4)
    assert sum(weight.numel() for weight in result.model.parameters()) == sum(
        weight.numel() for weight in tiny().model.parameters()
    )
    assert "masked" in next(lines_of(result))
    with pytest.raises(PlanError, match="leave one of the two out"):
        prune(tiny(), grammar(), WISH, masked=True, repair=True)


def test_nothing_to_remove_is_refused() -> None:
    with pytest.raises(PlanError, match="none is to go"):
        prune(tiny(), grammar(), Wish(keep=1.0))
    with pytest.raises(PlanError, match="ranked by greedy"):
        prune(tiny(), grammar(), WISH, method="magic", texts=4)


def test_protected_heads_stay() -> None:
    weakest = pruned().plan.removed[0]
    result = prune(tiny(), grammar(), Wish(remove=8, protected=frozenset({weakest})), method="norm", draws=1, texts=12)
    assert weakest not in result.plan.removed


def test_the_terminal_says_what_the_arms_say() -> None:
    lines = list(lines_of(pruned()))
    assert lines[0].startswith("tiny-gpt2: 24 of 32 heads kept, 8 taken out (norm, judged by kl distortion)")
    row = next(line for line in lines if line.startswith("pruned"))
    assert f"{pruned().arm('pruned').distortion:.4f}" in row
    assert f"{pruned().arm('pruned').results[0].value:.4f}" in row
    band = next(line for line in lines if line.startswith("random heads, of any layer"))
    draws = [arm.distortion for arm in pruned().random()]
    assert f"({min(draws):.4f} to {max(draws):.4f})" in band


def test_the_table_names_measures_and_their_units() -> None:
    heading = list(lines_of(pruned()))[2].split("  ")
    told = [cell.strip() for cell in heading if cell.strip()]
    assert told == [
        "distortion (kl, nats a token)",
        "grammar:60, agreement",
        "repeat:8, loss on the second copy",
    ]


@pytest.mark.parametrize("name", ["random", "random, same layers"])
def test_the_difference_to_random_heads_is_that_to_their_mean(name: str) -> None:
    """Words right over words asked: of the draws the mean share, on the same texts."""
    own, *drawn = (arm.results[0].per_item for arm in (pruned().arms[0], *pruned().random(name)))
    right, asked = "agreement, right", "agreement, asked"
    shares = [one[right].sum() / one[asked].sum() for one in (own, *drawn)]
    found = pruned().differences_to_random(name)[0]
    assert len(drawn) == 2
    assert found.value == pytest.approx(shares[0] - (shares[1] + shares[2]) / 2)
    weights = np.random.default_rng(7).multinomial(len(own[asked]), np.full(len(own[asked]), 1 / len(own[asked])), 4000)
    gains = own[right] - (drawn[0][right] + drawn[1][right]) / 2  # all were asked the same words
    replicates = (weights @ gains) / (weights @ own[asked])
    assert [found.low, found.high] == pytest.approx(np.percentile(replicates, [2.5, 97.5]), abs=0.02)  # other draws


def test_the_terminal_says_whether_the_choice_paid() -> None:
    told = {"random": "random heads, of any layer", "random, same layers": "random heads, as many in each layer"}
    lines = list(lines_of(pruned()))
    for name, words in told.items():
        (line,) = (one for one in lines if one.startswith(f"repeat:8, loss on the second copy, less {words}"))
        values = [pruned().arms[0].results[1].value - arm.results[1].value for arm in pruned().random(name)]
        assert f"{words} (mean of 2): " in line
        assert line.endswith(f"; draw by draw {min(values):+.4f} to {max(values):+.4f}")
        difference = pruned().differences_to_random(name)[1]
        assert f" {abs(difference.value):.4f}" in line or f"({difference.value:+.4f}" in line


def test_a_decoder_is_asked_whether_it_still_copies() -> None:
    asked = [[result.task for result in arm.results] for arm in pruned().arms]
    assert asked == [["grammar:60", "repeat:8"]] * len(asked)
    assert pruned().arm("no heads").results[1].value > pruned().arm("original").results[1].value + 1
    assert "repeat:8: loss on the second copy" in pruned().facts["measured"]


def test_who_asked_for_copying_is_not_asked_twice() -> None:
    found = prune(tiny(), grammar(), pruned().plan, tasks=[read_task("repeat:2")], draws=1, texts=8)
    assert [result.task for result in found.arms[0].results] == ["repeat:2"]


@pytest.mark.parametrize("kind", ["encoder", "base"])
def test_models_that_tell_no_next_token_are_not_asked_to_copy(kind: str) -> None:
    loaded = load_whole("tiny-bert", check=False) if kind == "encoder" else load_base()
    found = prune(loaded, grammar(), Wish(remove=1), method="norm", objective="hidden", draws=1, texts=4)
    assert [arm.results for arm in found.arms] == [()] * len(found.arms)


def test_a_model_without_room_for_two_copies_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(loaded: LoadedModel, task: Task) -> TaskResult:
        if task.name == "repeat:8":
            raise CorpusError("no room")
        return evaluate(loaded, task)

    monkeypatch.setattr(arms, "evaluate", no_room)
    found = prune(tiny(), grammar(), pruned().plan, tasks=[read_task("grammar:20")], draws=1, texts=8)
    assert [result.task for result in found.arms[0].results] == ["grammar:20"]


def test_notes_of_tasks_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the original, and what only the model has that is kept; those of random heads not."""
    notes = {"original": ("few words",), "pruned": ("few words", "worse than chance"), "no heads": ("worst",)}
    arms = [
        replace(arm, results=tuple(replace(one, notes=notes.get(arm.name, ("drawn",))) for one in arm.results[:1]))
        for arm in pruned().arms
    ]
    lines = [line for line in lines_of(replace(pruned(), arms=tuple(arms))) if line.startswith("Note")]
    assert lines == ["Note: grammar:60: few words", "Note (pruned): grammar:60: worse than chance"]


def test_a_pruned_model_is_a_line() -> None:
    distortion = pruned().arm("pruned").distortion
    assert repr(pruned()) == (
        f"<Pruned tiny-gpt2: pruned, 24 of 32 heads kept, kl distortion {distortion:.4f}, held against 6 others>"
    )


@pytest.mark.parametrize("keep", [1e-9, 0.01])
def test_a_share_that_comes_to_no_head_is_refused(keep: float) -> None:
    with pytest.raises(PlanError, match=f"A share of {keep:g} comes to none of 32 heads; keep more"):
        prune(tiny(), grammar(), Wish(keep=keep), method="norm")


def test_what_was_saved_gives_the_same_logits_in_a_fresh_process(tmp_path: Path) -> None:
    folder = pruned().save(tmp_path / "small")
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        torch.save(pruned().model(ids).logits, tmp_path / "logits.pt")
    code = (
        "import sys, torch; torch.set_num_threads(1); from headlens.models import load_whole\n"
        "model = load_whole(sys.argv[1]).model\n"
        "with torch.no_grad(): found = model(torch.arange(5, 25)[None]).logits\n"
        "print(torch.equal(found, torch.load(sys.argv[2])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder), str(tmp_path / "logits.pt")], capture_output=True, text=True
    )
    assert done.stdout.strip() == "True", done.stderr
    manifest = json.loads((folder / "headlens.json").read_text())
    assert manifest["measured"]["parameters"]["after"] == sum(one.numel() for one in pruned().model.parameters())
    assert HeadPlan.load(folder) == pruned().plan


@pytest.mark.parametrize(
    ("family", "every", "method"), [("bert", None, "greedy"), ("albert", None, "loo_mean"), ("albert", 2, "greedy")]
)
def test_heads_are_searched_where_the_model_is_small_enough(family: str, every: int | None, method: str) -> None:
    assert usual_method(tiny_model(family), every) == method


def test_a_large_model_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("bert")
    sizes = parameters(model)
    monkeypatch.setattr(pruning, "SEARCHED", sizes.without_embeddings)
    assert usual_method(model) == "greedy"
    monkeypatch.setattr(pruning, "SEARCHED", sizes.without_embeddings - 1)
    assert usual_method(model) == "loo_mean"


def test_tasks_are_asked_of_the_original_before_anything_is_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("ranked, though the model cannot be asked")

    def without_head(loaded: LoadedModel, _task: Task) -> None:
        assert loaded is tiny()
        raise UnsupportedModel("no head for this task")

    monkeypatch.setattr(pruning, "rank", never)
    monkeypatch.setattr(pruning, "evaluate", without_head)
    with pytest.raises(UnsupportedModel, match="no head for this task"):
        prune(tiny(), grammar(), WISH, method="norm", tasks=[read_task("grammar:20")], draws=1, texts=8)


def test_arms_go_by_the_name_of_their_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task may look there whether the head of the model was trained."""
    names = set()

    def noted(loaded: LoadedModel, task: Task) -> TaskResult:
        names.add(loaded.name)
        return evaluate(loaded, task)

    monkeypatch.setattr(pruning, "evaluate", noted)
    prune(tiny(), grammar(), WISH, method="norm", tasks=[read_task("grammar:20")], draws=1, texts=8)
    assert names == {"tiny-gpt2"}
