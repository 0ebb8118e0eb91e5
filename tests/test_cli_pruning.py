"""`headlens importance`, `prune` and `sweep` as they are typed: what they write, and what they refuse."""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from commands import invoke, refusal
from grammar_words import VOCABULARY, grammar_words
from pruned_models import content, with_head
from report_pages import PROVENANCE, planted

from headlens.models import load_whole
from headlens.plan import HeadPlan
from headlens.results import Profile

pytestmark = pytest.mark.slow  # many models; CI runs them as its own step

LAYERS, HEADS, GROUP = 3, 4, 2  # of the tiny Llama: two query heads share a key/value head
CALIBRATION = ("--calibration", "grammar:40", "--texts", "6")
QUICK = (*CALIBRATION, "--random", "1", "--no-speed")
IDS = torch.arange(5, 25)[None]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "llama"
    with_head("llama", "AutoModelForCausalLM", vocab_size=len(VOCABULARY)).save_pretrained(folder)
    grammar_words().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 3 x 4 heads, with roles of position and sinks among them."""
    folder = tmp_path_factory.mktemp("profiles") / "own"
    Profile(planted(), copy.deepcopy(PROVENANCE)).save(folder)
    return folder


def run(*arguments: object) -> str:
    code, said, errors = invoke(*arguments)
    assert code == 0, errors
    return said


def pruned(model: Path, out: Path, *options: object) -> tuple[HeadPlan, dict[str, Any]]:
    run("prune", model, "--out", out, *QUICK, *options)
    return HeadPlan.load(out), json.loads((out / "headlens.json").read_text())


def logits(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        return load_whole(str(folder), check=False).model(IDS).logits


def silenced(folder: Path, heads: Sequence[tuple[int, int]]) -> torch.Tensor:
    """Logits of the Llama whose output projections read nothing of these heads."""
    model: Any = load_whole(str(folder), check=False).model
    dim = model.config.head_dim
    for layer, head in heads:
        model.model.layers[layer].self_attn.o_proj.weight.data[:, head * dim : (head + 1) * dim] = 0
    with torch.no_grad():
        return model(IDS).logits


# ----------------------------------------------------------------------------------------------------------- importance


@pytest.mark.slow  # eleven methods
def test_all_methods_leave_out_what_the_objective_makes_meaningless(llama: Path, tmp_path: Path) -> None:
    said = run("importance", llama, "--methods", "all", *CALIBRATION, "--out", tmp_path / "out")
    left_out = {line.split()[0] for line in said.splitlines() if " left out: " in line}
    assert left_out == {"gradient", "gradient_token", "gradient_batch", "taylor"}
    told = json.loads((tmp_path / "out" / "importance.json").read_text())
    assert set(told["refused"]) == left_out
    assert set(told["methods"]) == {
        *("greedy", "loo_mean", "loo_zero", "loo_resample", "loo_uniform", "norm", "norm_raw", "norm_centred"),
        *("integrated", "gauss_newton", "random"),
    }
    pairs = pd.read_csv(tmp_path / "out" / "agreement.csv")
    assert len(pairs) == 11 * 10 // 2


def test_importance_follows_every_option(monkeypatch: pytest.MonkeyPatch, llama: Path, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["headlens", "importance", "a model"])
    options = (
        "--objective hidden --heads-as head --max-length 7 --seed 3 --dtype float64 --device cpu --every 5".split()
    )
    said = run("importance", llama, "--methods", "greedy, random", *CALIBRATION, *options, "--out", tmp_path)
    told = json.loads((tmp_path / "importance.json").read_text())
    assert told["command"] == "headlens importance 'a model'"
    assert (told["objective"], told["unit"], told["seed"]) == ("hidden_distortion", "head", 3)
    assert (told["data"]["max_length"], told["data"]["chosen_on"]) == (7, 6)
    assert told["model"]["dtype"] == "float64"
    assert told["methods"]["random"]["facts"] == {"seed": 3}
    assert len(told["methods"]["greedy"]["order"]) == LAYERS * HEADS
    order = told["methods"]["greedy"]["order"]
    lines = said.splitlines()
    (start,) = (place for place, line in enumerate(lines) if line.startswith("greedy: When the head goes, "))
    assert [line.split()[::2] for line in lines[start + 2 : start + 6]] == [
        [least, most] for least, most in zip(order[:4], order[:-5:-1], strict=True)
    ]
    assert f"Tables: {tmp_path}" in said


@pytest.mark.parametrize(("every", "scored"), [("6", 6), ("3", 6 + 3)])
def test_every_says_how_many_groups_go_before_the_next_scoring(
    llama: Path, tmp_path: Path, every: str, scored: int
) -> None:
    """Six groups: all of them are scored once, and of three that are left all again."""
    run("importance", llama, "--methods", "greedy", "--every", every, *CALIBRATION, "--out", tmp_path)
    facts = json.loads((tmp_path / "importance.json").read_text())["methods"]["greedy"]["facts"]
    assert (facts["unit"], facts["evaluations"]) == ("group", scored)


def test_heads_that_share_keys_matter_together(llama: Path, tmp_path: Path) -> None:
    run("importance", llama, *CALIBRATION, "--out", tmp_path)
    scores = pd.read_csv(tmp_path / "scores.csv")
    values = scores.sort_values(["layer", "head"])["value"].to_numpy().reshape(LAYERS, HEADS // GROUP, GROUP)
    assert (values[..., 0] == values[..., 1]).all()
    assert len({*values[..., 0].ravel()}) == LAYERS * HEADS // GROUP


# ---------------------------------------------------------------------------------------------------------------- prune


@pytest.mark.parametrize("amount", ["--keep=0.5", "--keep=50%", "--keep=6", "--remove=.5", "--remove=6"])
def test_an_amount_is_a_share_or_a_number(llama: Path, tmp_path: Path, amount: str) -> None:
    plan, told = pruned(llama, tmp_path / "out", amount, "--method", "norm")
    assert plan.n_kept == 6
    assert all(group in {(0, 1), (2, 3)} for layer in plan.groups for group in layer)
    assert told["method"]["ranked_by"] == "norm"
    model = load_whole(str(tmp_path / "out"), check=False).model
    assert [layer.self_attn.o_proj.in_features for layer in model.model.layers] == [
        len(kept) * model.config.head_dim for kept in plan.kept
    ]


def test_prune_follows_every_option(monkeypatch: pytest.MonkeyPatch, llama: Path, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["headlens", "prune", "a model"])
    options = "--every 2 --objective loss --heads-as even --per-layer --floor 2 --fill zero --repair --max-length 9"
    more = "--eval grammar:30 --random 2 --seed 5 --dtype float64 --device cpu".split()
    plan, told = pruned(llama, tmp_path / "out", "--remove", 6, *options.split(), *more)
    assert [[len(group) for group in layer] for layer in plan.groups] == [[1, 1]] * LAYERS
    assert told["command"] == "headlens prune 'a model'"
    method = {name: told["method"][name] for name in ("ranked_by", "objective", "fill", "repair")}
    assert method == {"ranked_by": "greedy", "objective": "next_token_loss", "fill": "zero", "repair": True}
    assert (told["data"]["max_length"], told["data"]["seed"], told["data"]["chosen_on"]) == (9, 5, 6)
    assert [arm["name"] for arm in told["arms"]] == [
        *("repaired", "pruned", "original"),
        *("random, same layers", "random") * 2,
        "no heads",
    ]
    assert all([task["task"] for task in arm["tasks"]] == ["grammar:30", "repeat:8"] for arm in told["arms"])
    assert any(name.startswith("grammar:30") for name in told["measured"])
    assert told["speed"] == []
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "float64"


def test_every_says_how_many_go_before_the_next_scoring(llama: Path, tmp_path: Path) -> None:
    """Three groups of six: looked at together once, or all and then those at the front again and again."""
    scored = {
        every: pruned(llama, tmp_path / every, "--remove", 6, "--every", every)[1]["method"]["evaluations"]
        for every in ("3", "1")
    }
    assert scored["3"] == 6
    assert scored["1"] > 6


@pytest.mark.parametrize("options", [(), ("--masked",)])
def test_named_heads_go_and_nothing_else_changes(llama: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    heads = [(1, 0), (1, 1), *((2, head) for head in range(HEADS))]
    plan, told = pruned(llama, tmp_path / "out", "--heads", "L1H0, L1H1, L2H*", "--fill", "zero", *options)
    assert told["method"]["ranked_by"] == "by hand"
    assert told["arms"][0]["name"] == ("masked" if options else "pruned")
    sizes = told["measured"]["parameters"]
    assert (sizes["before"] == sizes["after"]) == bool(options)
    assert list(plan.removed) == heads
    expected = silenced(llama, heads)
    torch.testing.assert_close(logits(tmp_path / "out"), expected, atol=1e-4, rtol=1e-4)  # logits of some tens
    assert (expected - logits(llama)).abs().max() > 1


def test_means_stay_in_the_bias_where_nothing_else_is_said(llama: Path, tmp_path: Path) -> None:
    pruned(llama, tmp_path / "mean", "--heads", "L1H0,L1H1")
    assert load_whole(str(tmp_path / "mean"), check=False).model.model.layers[1].self_attn.o_proj.bias is not None
    assert not torch.allclose(logits(tmp_path / "mean"), silenced(llama, [(1, 0), (1, 1)]), atol=1e-2)


def test_an_expanded_model_can_lose_any_head(llama: Path, tmp_path: Path) -> None:
    plan, _ = pruned(llama, tmp_path / "out", "--heads", "L0H0,L1H3,L2H1", "--expand", "--fill", "zero")
    assert list(plan.removed) == [(0, 0), (1, 3), (2, 1)]
    expected = silenced(llama, plan.removed)
    torch.testing.assert_close(logits(tmp_path / "out"), expected, atol=1e-4, rtol=1e-4)  # logits of some tens


@pytest.mark.parametrize("is_folder", [True, False])
def test_a_plan_is_followed_from_a_file_or_folder(llama: Path, tmp_path: Path, is_folder: bool) -> None:
    plan = HeadPlan.full(LAYERS, HEADS, HEADS // GROUP).without([(0, 2), (0, 3)])
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "plan.json").write_text(json.dumps(plan.to_dict()))
    given = tmp_path / "plans" if is_folder else tmp_path / "plans" / "plan.json"
    assert pruned(llama, tmp_path / "out", "--plan", given)[0] == plan


def test_heads_with_these_roles_stay(llama: Path, profile: Path, tmp_path: Path) -> None:
    """All that may go goes: heads that are left have one of the roles, or share their keys with one that has."""
    names = {one.name for one in Profile.load(profile).roles if one.role.id in {"previous_token", "next_token"}}
    assert names == {"L0H2", "L1H0", "L1H3"}
    assert {one.name for one in Profile.load(profile).roles if one.role.kind == "sink"} == {"L2H0", "L2H1"}
    roles = ("--keep-roles", f"{profile}:previous_token", "--keep-roles", f"{profile}:next_token, sink")
    plan, _ = pruned(llama, tmp_path / "out", "--keep", 8, "--method", "random", *roles)
    assert plan.kept == ((2, 3), (0, 1, 2, 3), (0, 1))


def test_code_for_other_machines_is_added_where_it_is_asked_for(llama: Path, tmp_path: Path) -> None:
    for name, options in {"plain": (), "whole": ("--self-contained",)}.items():
        pruned(llama, tmp_path / name, "--heads", "L1H0,L1H1", *options)
    added = {path.name for path in (tmp_path / "whole").iterdir()} - {
        path.name for path in (tmp_path / "plain").iterdir()
    }
    assert len(added) == 1
    (name,) = added
    assert name.endswith(".py")
    compile((tmp_path / "whole" / name).read_text(), name, "exec")
    assert "auto_map" in json.loads((tmp_path / "whole" / "config.json").read_text())


def test_only_on_request_a_checkpoint_is_replaced(llama: Path, tmp_path: Path) -> None:
    pruned(llama, tmp_path / "out", "--heads", "L1H0,L1H1")
    before = content(tmp_path / "out")
    again = ("prune", llama, "--out", tmp_path / "out", *QUICK, "--heads", "L0")
    assert "holds something already" in refusal(*again)
    assert content(tmp_path / "out") == before
    run(*again, "--overwrite")
    assert HeadPlan.load(tmp_path / "out").kept == ((), (0, 1, 2, 3), (0, 1, 2, 3))


def test_a_folder_of_another_kind_is_never_replaced(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    asked = ("prune", llama, "--out", tmp_path, "--heads", "L0", "--overwrite")
    assert "is no checkpoint of headlens, so it is not replaced" in refusal(*asked)
    assert content(tmp_path) == {"notes.txt": b"mine"}


@pytest.mark.slow
def test_speed_is_measured_unless_it_is_declined(llama: Path, tmp_path: Path) -> None:
    said = run("prune", llama, "--out", tmp_path / "out", *CALIBRATION, "--random", 1, "--heads", "L0")
    speed = json.loads((tmp_path / "out" / "headlens.json").read_text())["speed"]
    assert len(speed) == 2  # decoding at two sizes of batch; 128 tokens at once are more than the model reads
    assert said.count("times as fast as the original") == len(speed)


# ---------------------------------------------------------------------------------------------------------------- sweep


def test_sweep_follows_every_option(
    monkeypatch: pytest.MonkeyPatch, llama: Path, profile: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["headlens", "sweep", "a model"])
    options = "--methods norm,random --shares 0.5,.25 --objective hidden --heads-as group --random 2 --max-length 8"
    more = ("--seed", 4, "--dtype", "float64", "--device", "cpu", "--eval", "grammar:30", "--profile", profile)
    said = run("sweep", llama, *options.split(), *CALIBRATION, *more, "--out", tmp_path / "out")
    told = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert told["command"] == "headlens sweep 'a model'"
    assert told["methods"] == ["norm", "random"]
    assert (told["shares"], told["draws"], told["unit"]) == ([0.25, 0.5], 2, "group")
    assert (told["objective"], told["seed"], told["data"]["max_length"]) == ("hidden_distortion", 4, 8)
    assert told["model"]["dtype"] == "float64"
    frame = pd.read_csv(tmp_path / "out" / "sweep.csv")
    assert frame["quantity"].nunique() == 2
    # the whole model; two shares by two rankings and two draws
    assert len(frame) == 2 * (1 + 2 * (2 + 2))
    assert sorted({*frame["removed"]}) == [0, 4, 6]  # a quarter of 12 heads is 3, and they go by two
    survival = pd.read_csv(tmp_path / "out" / "survival.csv")
    assert {"previous_token", "next_token"} <= {*survival["role"]}
    assert "distortion (squared distance over variance), by heads removed (of random draws the median" in said
    assert re.search(r"^previous token +norm +\d", said, re.MULTILINE)
    assert f"Tables and pictures: {tmp_path / 'out'}" in said
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".csv", ".json", ".svg", ".png"}


# ------------------------------------------------------------------------------------------------------ what is refused

PRUNE: list[tuple[str, str]] = [
    ("--keep 0.5 --method magic", "Heads are ranked by greedy, loo_mean"),
    ("--keep 0.5 --objective magic", "--objective is one of cosine, kl, hidden, loss; got 'magic'"),
    ("--keep 0.5 --fill magic", "--fill is one of mean, zero; got 'magic'"),
    ("--keep 0.5 --heads-as magic", "--heads-as is one of head, group, even; got 'magic'"),
    ("--keep 0.5 --heads-as head", "2 heads share a key/value head here, so single ones cannot go"),
    ("--keep 0.5 --method norm --every 2", "(greedy), not for norm; leave that option out"),
    ("--heads L0 --every 2", "no head is scored, so none is scored again"),
    ("--keep 0.5 --remove 0.5", "Say either how many heads to keep or how many to remove"),
    ("--keep 0.5 --heads L0", "one of these"),
    ("--heads L0 --plan plan.json", "one of these"),
    ("", "Say how many heads stay or go (--keep, --remove), or which (--heads, --plan); one of these"),
    ("--keep many", "--keep takes a share (0.6 or 60%) or a number of heads (36), got 'many'"),
    ("--remove x%", "--remove takes a share (0.6 or 60%) or a number of heads (36), got 'x%'"),
    ("--keep 1.5", "--keep: a share of heads is from 0 to 1, got 1.5"),
    ("--keep 150%", "a share of heads is from 0 to 1, got 1.5"),
    ("--remove=-0.5", "--remove: a share of heads is from 0 to 1, got -0.5"),
    ("--keep nan", "a share of heads is from 0 to 1, got nan"),
    ("--keep 0", "--keep 0 leaves no head; if all are to go, say so with --remove 100%"),
    ("--keep 0%", "--keep 0 leaves no head"),
    ("--keep 1e-9", "A share of 1e-09 comes to none of 12 heads; keep more"),
    ("--keep 100%", "All heads would stay"),
    ("--remove 0", "All heads would stay, and none is to go"),
    ("--remove 0.0", "All heads would stay"),
    ("--remove 1e-9", "none is to go"),
    ("--remove 13", "The model has 12 heads, got 13"),
    ("--remove=-1", "--remove: a number of heads is at least 1, got -1"),
    ("--remove 3", "3 heads cannot be removed exactly, because they go 2 at a time: remove 2 or 4"),
    ("--keep 12", "none is to go; ask for fewer to be kept"),
    ("--remove 8 --floor 4", "Only 0 of 8 heads can be removed"),
    ("--remove 4 --per-layer", "cannot be taken evenly from 3 layers"),
    ("--heads L0H4", "L0H4: the model counts from 0 to 3, there is no 4"),
    ("--heads L3", "L3: the model counts from 0 to 2, there is no 3"),
    ("--heads third", "Heads are named like L3H2, L7H* (a whole layer) or L*H0; got 'third'"),
    ("--heads L0 --floor 1", "--floor is of a ranking"),
    ("--heads L0 --per-layer", "--per-layer is of a ranking"),
    ("--heads L0 --heads-as group", "--heads-as is of a ranking"),
    ("--heads L0 --keep-roles a:b", "--keep-roles is of a ranking"),
    ("--heads L0 --masked --repair", "nothing to repair; leave one of the two out"),
    ("--heads L0 --calibration missing.txt", "missing.txt"),
    ("--heads L0 --eval sts:missing.csv", "missing.csv"),
    ("--heads L0 --eval magic:pairs.csv", "magic"),
    ("--plan missing.json", "missing.json cannot be read (No such file or directory)"),
    ("--keep 0.5 --keep-roles missing:syntax", "missing"),
    ("--keep 0.5 --keep-roles syntax", "--keep-roles takes the folder of a profile and roles"),
    ("--keep 0.5 --keep-roles :syntax", "--keep-roles takes the folder of a profile and roles"),
]


@pytest.mark.parametrize(("options", "message"), PRUNE, ids=[options or "nothing" for options, _ in PRUNE])
def test_prune_refuses_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, llama: Path, tmp_path: Path, options: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    calibration = () if "--calibration" in options else ("--calibration", "grammar:40")
    said = refusal("prune", llama, "--out", "out", *calibration, *options.split(), "--no-speed")
    assert said.startswith("headlens: ")
    assert message in said
    assert list(tmp_path.iterdir()) == []


NEEDS_NO_MODEL = [
    *("--keep 1.5", "--keep many", "--keep 0", "--keep 1.0", "--remove 0", "--remove=-3", "--remove=-0.1"),
    *(
        "--keep 0.5 --remove 2",
        "--keep 2 --heads L0",
        "",
        "--heads L0,third",
        "--heads ,",
        "--heads L1H",
        "--heads L-1",
    ),
    *("--plan missing.json", "--keep 2 --keep-roles syntax", "--keep 2 --keep-roles missing:syntax"),
]


@pytest.mark.parametrize("options", NEEDS_NO_MODEL, ids=[options or "nothing" for options in NEEDS_NO_MODEL])
def test_what_is_wrong_with_any_model_is_said_before_one_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: str
) -> None:
    monkeypatch.setattr("headlens.models.load_whole", lambda *_, **__: pytest.fail("a model was loaded"))
    assert refusal("prune", "tiny-gpt2", "--out", tmp_path / "out", *options.split()).startswith("headlens: ")


def test_the_first_name_that_is_none_of_a_head_is_told(tmp_path: Path) -> None:
    assert "got 'L12X4'" in refusal("prune", "tiny-gpt2", "--out", tmp_path / "out", "--heads", "L0H1, L12X4 ,L1")


BROKEN = {
    "not JSON": ("{", "is not JSON"),
    "no plan": ('{"heads": 4}', "Not a plan of heads of the schema"),
    "twice": (json.dumps({**HeadPlan.full(3, 4, 2).to_dict(), "groups": [[[0, 0]], [], []]}), "more than once"),
    "of another model": (
        json.dumps(HeadPlan.full(12, 12).without([(0, 0)]).to_dict()),
        "The plan is for 12 x 12 heads (12 of keys and values), and the model has 3 x 4 heads (2 of keys and values)",
    ),
    "of a model without groups": (
        json.dumps(HeadPlan.full(3, 4).without([(0, 0)]).to_dict()),
        "The plan is for 3 x 4 heads (4 of keys and values)",
    ),
    "of all heads": (json.dumps(HeadPlan.full(3, 4, 2).to_dict()), "the model has 12 of 12"),
}


@pytest.mark.parametrize(("plan", "message"), BROKEN.values(), ids=BROKEN)
def test_a_plan_that_cannot_be_followed_is_refused(llama: Path, tmp_path: Path, plan: str, message: str) -> None:
    (tmp_path / "plan.json").write_text(plan)
    assert message in refusal("prune", llama, "--out", tmp_path / "out", "--plan", tmp_path / "plan.json", *QUICK)
    assert not (tmp_path / "out").exists()


def test_roles_that_no_profile_of_this_model_has_are_refused(llama: Path, profile: Path, tmp_path: Path) -> None:
    asked = ("--keep", 0.5, "--out", tmp_path / "out", *QUICK, "--keep-roles")
    assert "There is no role or kind 'magic' in this profile" in refusal("prune", llama, *asked, f"{profile}:magic")
    said = refusal("prune", "tiny-gpt2", *asked, f"{profile}:position")
    assert "is a profile of 3 x 4 heads, and the model has 4 x 8; take the profile of this model" in said
    assert not (tmp_path / "out").exists()


IMPORTANCE = [
    ("--methods magic", "Heads are ranked by greedy, loo_mean"),
    ("--methods ,", "name at least one"),
    ("--methods taylor", "taylor cannot be asked: it ranks by a gradient, and that of kl_distortion is zero"),
    ("--methods norm --every 3", "(greedy), not for norm; leave that option out"),
    ("--objective magic", "--objective is one of cosine, kl, hidden, loss; got 'magic'"),
    ("--heads-as even", "--heads-as is one of head, group; got 'even'"),
    ("--calibration missing.txt", "missing.txt"),
    ("--dtype float12", "float12"),
]
SWEEP = [
    ("--methods magic", "Heads are ranked by greedy, loo_mean"),
    ("--methods ,", "name at least one"),
    ("--methods norm,taylor", "taylor cannot be asked"),
    ("--shares half", "--shares takes numbers with commas, 0.1,0.5; got 'half'"),
    ("--shares ,", "A sweep removes shares above 0 and up to 1"),
    ("--shares 0.5,2", "A sweep removes shares above 0 and up to 1"),
    ("--shares 0.01", "come to no head of 12; give larger ones"),
    ("--objective magic", "--objective is one of cosine, kl, hidden, loss; got 'magic'"),
    ("--heads-as even", "--heads-as is one of head, group; got 'even'"),
    ("--heads-as head", "2 heads share a key/value head here, so single ones cannot go"),
    ("--profile missing", "missing"),
    ("--eval blimp:missing", "missing"),
    ("--calibration missing.txt", "missing.txt"),
]


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [*(("importance", *one) for one in IMPORTANCE), *(("sweep", *one) for one in SWEEP)],
)
def test_the_others_refuse_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, llama: Path, tmp_path: Path, command: str, options: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    calibration = () if "--calibration" in options else CALIBRATION
    said = refusal(command, llama, "--out", "out", *calibration, *options.split())
    assert said.startswith("headlens: ")
    assert message in said
    assert list(tmp_path.iterdir()) == []


def test_a_profile_of_another_model_tells_nothing_of_survival(profile: Path, tmp_path: Path) -> None:
    asked = ("sweep", "tiny-gpt2", *CALIBRATION, "--profile", profile, "--out", tmp_path / "out")
    assert "The roles are of 3 x 4 heads, and the model has 4 x 8; take the profile of this model" in refusal(*asked)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["importance", "prune", "sweep"])
def test_a_model_or_a_place_that_is_not_there_is_refused(command: str, tmp_path: Path) -> None:
    amount = ("--keep", "0.5") if command == "prune" else ()
    assert "'nonesuch' is no folder here" in refusal(command, "nonesuch", *amount, "--out", tmp_path / "out")
    (tmp_path / "file").write_text("mine")
    said = refusal(command, "tiny-gpt2", *amount, "--out", tmp_path / "file" / "out")
    assert "choose another place with --out" in said
    assert content(tmp_path) == {"file": b"mine"}


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("prune", ("--random", "0")),
        ("prune", ("--floor", "-1")),
        ("prune", ("--every", "0")),
        ("importance", ("--every", "0")),
        ("importance", ("--texts", "0")),
        ("sweep", ("--max-length", "1")),
        ("sweep", ("--seed", "-1")),
        ("sweep", ("--random", "0")),
    ],
)
def test_numbers_out_of_range_are_usage_errors(command: str, options: tuple[str, str], tmp_path: Path) -> None:
    said = refusal(command, "tiny-gpt2", "--out", tmp_path / "out", *options, code=2)
    assert f"Invalid value for '{options[0]}'" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["importance", "prune", "sweep", "evaluate"])
def test_help_is_not_cut_in_eighty_columns(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, said, _ = invoke(command, "--help")
    assert code == 0
    assert "\N{HORIZONTAL ELLIPSIS}" not in said
    assert max(map(len, said.splitlines())) <= 80
