"""The whole way, as someone goes it: profile, prune by role, save, load in a fresh process, evaluate, compare."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from headlens.comparison import Pair, compare
from headlens.corpora import read_corpus, texts
from headlens.documents import Document
from headlens.evaluation import evaluate, read_task
from headlens.models import LoadedModel, load_whole
from headlens.plans import with_roles
from headlens.profiling import profile
from headlens.pruning import Pruned, Wish, prune
from headlens.report.compare import render_comparison
from headlens.report.compare_words import notices
from headlens.results import Profile
from headlens.surgery import full_plan

pytestmark = pytest.mark.slow  # two profiles and eight models

MODEL, CORPUS, TASK = "tiny-gpt2", "grammar:150", "grammar:80"


@cache
def whole() -> LoadedModel:
    return load_whole(MODEL, check=False)


@cache
def plain() -> list[Document]:
    """The words alone: what annotation says is not asked here."""
    return texts([document.text for document in read_corpus([CORPUS])])


@cache
def before() -> Profile:
    return profile(MODEL, plain(), parts=["repetition"])


@cache
def protected() -> frozenset[tuple[int, int]]:
    return with_roles(before().roles, ["induction"])


@cache
def pruned() -> Pruned:
    wish = Wish(keep=0.5, protected=protected())
    tasks = [read_task(TASK)]
    return prune(whole(), read_corpus([CORPUS]), wish, method="norm", tasks=tasks, draws=1, texts=20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pruned().save(tmp_path_factory.mktemp("chain") / "small")


@pytest.fixture(scope="module")
def pair(folder: Path) -> Pair:
    return compare([before(), profile(str(folder), plain(), parts=["repetition"])], ["whole", "small"]).pairs[0]


def test_heads_of_the_role_stay_and_as_many_go_as_were_asked() -> None:
    assert len(protected()) >= 2
    assert protected() <= set(pruned().plan)
    assert pruned().plan.n_kept == 16


def test_attributes_of_the_model_tell_the_heads_that_are_there() -> None:
    kept = [len(layer) for layer in pruned().plan.kept]
    blocks = pruned().model.transformer.h
    assert [block.attn.num_heads for block in blocks] == kept
    assert [block.attn.split_size for block in blocks] == [24 * heads for heads in kept]
    assert [block.attn.head_dim for block in blocks] == [24] * 4
    assert [tuple(block.attn.c_attn.weight.shape) for block in blocks] == [(192, 3 * 24 * heads) for heads in kept]
    assert [block.attn.c_proj.weight.numel() for block in blocks] == [24 * heads * 192 for heads in kept]
    assert all(block.attn.c_proj.bias.abs().max() > 0 for block in blocks)  # of layers that lost all their heads, too


@pytest.mark.parametrize("loads", ["headlens", "auto"])
def test_a_fresh_process_says_the_same(loads: str, folder: Path, tmp_path: Path) -> None:
    ids = torch.arange(5, 45).view(2, 20)
    with torch.no_grad():
        torch.save(pruned().model(ids).logits, tmp_path / "logits.pt")
    load = {
        "headlens": "from headlens.models import load_whole; model = load_whole(sys.argv[1]).model",
        "auto": "import headlens.models; from transformers import AutoModelForCausalLM as A\n"
        "model = A.from_pretrained(sys.argv[1]).eval()",
    }[loads]
    code = (
        f"import sys, torch; torch.set_num_threads(1)\n{load}\n"
        "with torch.no_grad(): found = model(torch.arange(5, 45).view(2, 20)).logits\n"
        "print(torch.equal(found, torch.load(sys.argv[2])))"
    )
    command = [sys.executable, "-c", code, str(folder), str(tmp_path / "logits.pt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "True", done.stderr


def test_what_the_pruning_said_is_what_the_saved_model_says(folder: Path) -> None:
    said = pruned().arm("pruned").results[0].value
    assert evaluate(load_whole(str(folder), check=False), read_task(TASK)).value == said
    assert evaluate(whole(), read_task(TASK)).value == pruned().arm("original").results[0].value
    assert said != pruned().arm("original").results[0].value


def test_the_comparison_follows_heads_in_the_numbers_of_the_original(pair: Pair) -> None:
    assert sorted(pair.removed) == sorted(pruned().plan.removed)
    assert len(pair.removed) == 16
    (induction,) = [change for change in pair.roles if change.role.id == "induction"]
    assert not any(head.is_removed for head in induction.heads)
    gone = [head for change in pair.roles for head in change.heads if head.is_removed]
    assert gone
    assert {head.fate for head in gone} == {"lost"}
    assert not {(head.layer, head.head) for head in gone} & protected()


def test_heads_below_the_first_that_went_score_as_before(pair: Pair) -> None:
    """In the first layer every head that stays gets what it always got."""
    name = "position.mass[-1]"
    old, new = (side.scores[name][0] for side in (pair.before, pair.after))
    there = [head for layer, head in pruned().plan if layer == 0]
    assert there
    np.testing.assert_allclose(new[there], old[there], rtol=0, atol=1e-5)


def test_the_comparison_says_what_was_done_and_what_it_cost(pair: Pair, folder: Path) -> None:
    (told,) = [line for line in notices(pair) if "came out of surgery" in line]
    assert "tiny-gpt2 without 16 of its 32 heads (chosen by norm; their mean outputs kept in the bias)" in told
    page = render_comparison(
        compare([before(), profile(str(folder), plain(), parts=["repetition"])], ["whole", "small"])
    )
    for arm in ("pruned", "original", "no heads"):
        assert f"{pruned().arm(arm).results[0].value:.4f}" in page


def test_three_rounds_in_a_row_remove_what_each_was_asked() -> None:
    """Plans of later rounds are in the numbers of the first model, though the weights are those of the last."""
    model, plan = whole(), full_plan(whole().model)
    kept = []
    for _round in range(3):
        found = prune(model, read_corpus([CORPUS]), Wish(remove=6), method="norm", draws=1, texts=12)
        assert set(found.plan) < set(plan)
        model, plan = found.loaded, found.plan
        kept.append(plan.n_kept)
    assert kept == [26, 20, 14]
    assert sum(block.attn.num_heads for block in model.model.transformer.h) == 14
