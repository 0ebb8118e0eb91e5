"""scripts/head_count_study.py and its report: what is compared, how it is measured, what is said of it."""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import transformers

from headlens.attention import MultiHeadAttention
from headlens.corpora.grammar import Forced, grammar_texts
from headlens.errors import HeadlensError
from headlens.evidence_table import ABOVE, CHANCE, TOO_FEW

SCRIPTS = Path(__file__).parent.parent / "scripts"
WIDTH, LAYERS = 16, 2


@pytest.fixture(scope="module")
def script() -> Iterator[Any]:
    sys.path.insert(0, str(SCRIPTS))  # workers are told sys.path, and find the script there
    yield importlib.import_module("head_count_study")
    sys.path.remove(str(SCRIPTS))


@pytest.fixture(scope="module")
def measures(script) -> Any:
    return importlib.import_module("head_count_measures")


@pytest.fixture(scope="module")
def report(script) -> Any:
    return importlib.import_module("head_count_report")


@pytest.fixture(autouse=True)
def _verbosity() -> Iterator[None]:
    before = transformers.logging.get_verbosity()
    yield
    transformers.logging.set_verbosity(before)


@pytest.fixture(scope="module")
def plan(script) -> Any:
    return script.Plan(d_model=WIDTH, layers=LAYERS, steps=3, batch=4, held_out=24, annotated=24, ranked=2)


@pytest.fixture(scope="module")
def texts(script) -> Any:
    return script.held_out_texts(40)


def random_model(script, plan, heads: int = 4, kv_heads: int = 4, *, std: float = 0.2) -> Any:
    """Weights so wide that attention is far from uniform; float64."""
    model = script.build_model(plan, script.Design(heads, kv_heads, 0)).double().eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64) * std)
    return model


# --------------------------------------------------------------------------------------------------------------- texts


def test_words_are_tokens_one_by_one(script, measures, texts):
    tokenizer = script.gpt2_tokenizer()
    vocabulary = tokenizer.get_vocab()
    for text in texts:
        ids = measures.token_ids(text, vocabulary)
        assert tokenizer(text.document.text)["input_ids"] == ids[:-1]
        assert ids[-1] == tokenizer.eos_token_id
        assert len(ids) == text.document.n_words + 2
        for forced in text.forced:
            assert ids[forced.word + 1] == vocabulary[forced.right.lower()]


def test_a_seed_always_gives_the_same_texts_each_once(script, measures, plan, monkeypatch):
    monkeypatch.setattr(script, "POOL", 2)  # two pools, the second with one batch
    batches = script.training_batches(plan, 5)
    again = script.training_batches(plan, 5)
    assert len(batches) == plan.steps
    assert all(np.array_equal(one, other) for one, other in zip(batches, again, strict=True))
    vocabulary = script.gpt2_tokenizer().get_vocab()
    source = islice(grammar_texts(1_000 + 5), plan.steps * plan.batch)
    known = Counter(tuple(measures.token_ids(text, vocabulary)) for text in source)
    rows = Counter(tuple(int(i) for i in row if i != measures.PAD) for batch in batches for row in batch)
    assert rows == known


def test_other_seeds_and_the_held_out_texts_are_others(script, plan):
    first, second = (script.training_batches(plan, seed) for seed in (0, 1))
    assert not all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))
    assert script.HELD_OUT_SEED not in range(script.TRAINING_SEED, script.TRAINING_SEED + 100)


def test_batches_hold_texts_of_like_length(script, measures, plan):
    """Their ranges of lengths lie side by side, so together they are no wider than that of all texts."""
    batches = script.training_batches(script.replace(plan, steps=script.POOL), 0)
    lengths = [(batch != measures.PAD).sum(axis=1) for batch in batches]
    assert len({batch.shape[1] for batch in batches}) > 10
    assert sum(int(np.ptp(one)) for one in lengths) <= np.ptp(np.concatenate(lengths))


def test_padding_stands_behind_and_has_no_label(script, measures):
    batch = measures.padded([[5, 6, 7], [8]])
    assert batch.tolist() == [[5, 6, 7], [8, measures.PAD, measures.PAD]]
    inputs = script._as_inputs([batch])
    assert inputs["input_ids"].tolist() == batch.tolist()
    assert inputs["labels"].tolist() == [[5, 6, 7], [8, -100, -100]]


def test_the_fingerprint_tells_texts_apart(script, texts):
    assert script.fingerprint(texts) == script.fingerprint(list(texts))
    assert script.fingerprint(texts) != script.fingerprint(texts[1:])


# -------------------------------------------------------------------------------------------------------------- models


@pytest.mark.parametrize("design", [(1, 1), (2, 2), (4, 4), (16, 16), (4, 2), (4, 1)], ids=str)
def test_parameters_and_cache_in_closed_form(script, measures, plan, design):
    heads, kv_heads = design
    model = script.build_model(plan, script.Design(heads, kv_heads, 0))
    kv_width = WIDTH * kv_heads // heads
    attention = 2 * WIDTH * (WIDTH + 1) + 2 * kv_width * (WIDTH + 1)
    mlp = 2 * 4 * WIDTH * WIDTH + 5 * WIDTH
    norms = 4 * WIDTH
    embeddings = (len(script.gpt2_tokenizer()) + script.POSITIONS) * WIDTH
    expected = embeddings + LAYERS * (attention + mlp + norms) + 2 * WIDTH
    assert sum(weight.numel() for weight in model.parameters()) == expected
    assert measures.cache_bytes(model.eval()) == LAYERS * 2 * kv_width * 4


def test_models_of_a_seed_start_alike_however_their_heads_are_cut(script, plan):
    one, many, other = (
        script.build_model(plan, script.Design(*cut)).state_dict() for cut in [(1, 1, 7), (8, 8, 7), (1, 1, 8)]
    )
    assert all(torch.equal(one[name], many[name]) for name in one)
    assert not torch.equal(one["transformer.wte.weight"], other["transformer.wte.weight"])


def test_shared_heads_are_those_of_a_layer_whose_heads_are_alike(script):
    torch.manual_seed(1)
    full = MultiHeadAttention(16, 4, is_causal=True).double()
    for weight in full.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    shared = script.with_fewer_kv_heads(full, 2)
    assert shared.num_kv_heads == 2
    with torch.no_grad():  # heads 0 and 1 get what head 0 has, 2 and 3 what head 1 has
        for name in ("k_proj", "v_proj"):
            projection = getattr(full, name)
            rows = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7])
            projection.weight.copy_(projection.weight[rows])
            projection.bias.copy_(projection.bias[rows])
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    torch.testing.assert_close(shared(x, x, x), full(x, x, x), atol=1e-12, rtol=0)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_no_model_looks_ahead(script, plan, kv_heads):
    model = random_model(script, plan, 4, kv_heads)
    ids = torch.tensor([[30, 41, 52, 63, 74]])
    other = ids.clone()
    other[0, -1] = 85
    with torch.no_grad():
        first, second = (model(input_ids=given).logits for given in (ids, other))
    assert torch.equal(first[:, :4], second[:, :4])
    assert not torch.allclose(first[:, 4], second[:, 4])


@pytest.mark.parametrize("kv_heads", [2, 1])
def test_training_lowers_the_loss_and_comes_out_the_same_again(script, measures, plan, texts, kv_heads):
    batches = script.training_batches(plan, 0)
    losses = []
    for _ in range(2):
        model = script.build_model(plan, script.Design(2, kv_heads, 0))
        before, _ = measures.read(model, texts[:8])
        script.train(model, batches, plan, seed=0)
        assert not model.training
        after, _ = measures.read(model, texts[:8])
        losses.append(after)
        assert after < before
    assert losses[0] == losses[1]


# ------------------------------------------------------------------------------------------------------------ measures


def test_loss_and_choices_are_those_of_one_text_at_a_time(script, measures, plan, texts):
    model = random_model(script, plan)
    vocabulary = script.gpt2_tokenizer().get_vocab()
    nats, right = 0.0, Counter[str]()
    for text in texts:
        ids = torch.tensor([measures.token_ids(text, vocabulary)])
        with torch.no_grad():
            output = model(input_ids=ids, labels=ids)
        nats += float(output.loss) * (ids.shape[1] - 1)
        for forced in text.forced:
            scores = output.logits[0, forced.word]
            forms = {form: float(scores[vocabulary[form.lower()]]) for form in (forced.right, *forced.wrong)}
            right[forced.kind] += max(forms, key=forms.__getitem__) == forced.right
    found, choices = measures.read(model, texts)
    assert found == pytest.approx(nats, rel=1e-6)  # transformers computes its loss in float32
    assert Counter(choice.kind for choice in choices if choice.is_right) == +right
    assert len(choices) == sum(len(text.forced) for text in texts)


def test_a_model_that_knows_nothing_has_the_entropy_of_its_vocabulary(script, measures, plan, texts):
    model = random_model(script, plan, std=0.0)
    nats, choices = measures.read(model, texts)
    tokens = sum(text.document.n_words + 1 for text in texts)
    assert nats / tokens == pytest.approx(math.log(len(script.gpt2_tokenizer())), abs=1e-10)
    assert not any(choice.is_right for choice in choices)  # a tie is not right


@pytest.mark.parametrize(("right", "is_right"), [(-1.0, True), (-2.5, False)])
def test_right_is_likelier_than_every_wrong_form(measures, right, is_right):
    log_probs = torch.tensor([[0.0, 0.0, 0.0], [right, -2.0, -3.0]])
    forced = Forced(1, "pronoun", "She", ("he", "they"), True)
    found = measures.chosen(log_probs, forced, {"she": 0, "he": 1, "they": 2})
    assert found == measures.Choice("pronoun", True, is_right)


def test_shares_by_kind_and_attractor(measures, plan, texts, monkeypatch):
    rows = [
        ("verb number", False, True),
        ("verb number", False, True),
        ("verb number", False, True),
        ("verb number", True, False),
        ("pronoun", True, True),
        ("pronoun", False, False),
        ("possessive", False, True),
        ("reflexive", True, False),
        ("reflexive", False, False),
    ]
    tokens = sum(text.document.n_words + 1 for text in texts)
    monkeypatch.setattr(measures, "read", lambda *_: (4.0 * tokens, [measures.Choice(*row) for row in rows]))
    figures, counts = measures.language_figures(None, texts)
    grammar = -sum(text.log_probability for text in texts) / tokens
    assert figures == pytest.approx(
        {
            "loss": 4.0,
            "grammar_loss": grammar,
            "excess": 4.0 - grammar,
            "agreement": 3 / 4,
            "agreement_attractor": 0.0,
            "reference": 2 / 5,
            "reference_attractor": 1 / 2,
            "pronoun": 1 / 2,
            "possessive": 1.0,
            "reflexive": 0.0,
        }
    )
    assert counts == {
        "agreement": 4,
        "agreement_attractor": 1,
        "reference": 5,
        "reference_attractor": 2,
        "pronoun": 2,
        "possessive": 1,
        "reflexive": 2,
    }


def test_relations_are_counted_once_and_only_where_there_is_enough(measures):
    verdicts = {
        "ALL": ABOVE,
        "subject_verb": ABOVE,
        "nsubj": ABOVE,
        "nsubj:pass": ABOVE,
        "det": CHANCE,
        "appos": TOO_FEW,
        "coref[all]": ABOVE,
        "coref[pronoun]": ABOVE,
        "coref[nominal]": TOO_FEW,
        "coref[all_unmatched]": ABOVE,
    }
    rows = tuple(SimpleNamespace(relation=relation, verdict=verdict) for relation, verdict in verdicts.items())
    found = measures.relations_tested(SimpleNamespace(relations=rows))
    assert [row.relation for row in found] == ["nsubj", "det", "coref[pronoun]"]


@pytest.mark.parametrize(
    ("values", "rank"),
    [
        ([1.0, 1.0, 1.0, 1.0], 4.0),
        ([5.0, 0.0, 0.0, 0.0], 1.0),
        ([2.0, 2.0, 0.0, 0.0], 2.0),
        ([3.0, 1.0, 0.0, 0.0], math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))),
    ],
)
def test_effective_rank_of_known_singular_values(measures, values, rank):
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(4, 4, generator=generator, dtype=torch.float64)).Q for _ in range(2))
    matrix = left @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ right
    assert measures.effective_rank(torch.stack([matrix, torch.eye(4).double()])).tolist() == pytest.approx([rank, 4.0])


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_query_key_matrices_give_the_scores(script, measures, plan, kv_heads):
    model = random_model(script, plan, 4, kv_heads)
    layers = list(measures._layers(model))
    for mha in layers:
        torch.nn.init.zeros_(mha.q_proj.bias)  # W_Q W_K^T knows of no bias
        torch.nn.init.zeros_(mha.k_proj.bias)
    matrices = measures.query_key_matrices(model)
    assert matrices.shape == (LAYERS, 4, WIDTH, WIDTH)
    x = torch.randn(1, 6, WIDTH, dtype=torch.float64)
    for mha, of_layer in zip(layers, matrices, strict=True):
        scores = mha.explain(x, x, x).scores / mha.scaling
        torch.testing.assert_close(x[:, None] @ of_layer @ x[:, None].transpose(-1, -2), scores, atol=1e-10, rtol=0)


# ---------------------------------------------------------------------------------------------------------------- runs


def test_the_plan_of_the_study(script):
    plan, listed = script.FULL
    assert len(listed) == len({design.name for design in listed}) == 27
    cuts = [(1, 1), (2, 2), (4, 4), (8, 8), (16, 16), (32, 32), (8, 4), (8, 2), (8, 1)]
    assert Counter((design.heads, design.kv_heads) for design in listed) == dict.fromkeys(cuts, 3)
    assert all(plan.d_model % design.heads == 0 for design in listed)


def test_the_untrained_model_is_judged_before_it_is_trained(script, plan, tmp_path, monkeypatch):
    done = []
    verdicts = SimpleNamespace(relations=[SimpleNamespace(relation=name, verdict=ABOVE) for name in ("det", "obj")])
    monkeypatch.setattr(script, "train", lambda *_: done.append("trained"))
    monkeypatch.setattr(script, "profile_of", lambda *_: done.append("judged") or SimpleNamespace(evidence=verdicts))
    monkeypatch.setattr(script, "head_figures", lambda *_: done.append("measured") or ({"relations": 5}, {}))
    result = script.run(plan, script.Design(2, 1, 0), script.training_batches(plan, 0), tmp_path / "run.json")
    assert done == ["judged", "trained", "measured"]
    assert (result["figures"]["relations_untrained"], result["figures"]["relations"]) == (2, 5)
    assert json.loads((tmp_path / "run.json").read_text()) == result


@pytest.mark.slow
def test_a_miniature_from_runs_to_report(script, plan, tmp_path, monkeypatch, capsys):
    listed = script.designs((1, 2), (2, (1,)), seeds=2)
    monkeypatch.setattr(script, "QUICK", (plan, listed))
    script.main(out=tmp_path, quick=True, workers=2, steps=None)
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    names = [f"heads0{heads}-kv0{kv}-seed{seed}" for heads, kv in ((1, 1), (2, 2), (2, 1)) for seed in (0, 1)]
    of_report = {"README.md", "results.csv", "summary.csv", "head_count.svg", "head_count.png"}
    assert files == of_report | {f"runs/{name}.json" for name in names}
    told = capsys.readouterr().out
    assert all(name in told for name in names)
    page, picture = (tmp_path / "README.md").read_text(), (tmp_path / "head_count.svg").read_bytes()
    assert "`python scripts/head_count_study.py --quick`: 6 runs" in page
    assert str(tmp_path) not in page
    frame = pd.read_csv(tmp_path / "results.csv")
    assert len(frame) == 6
    assert np.isfinite(frame["loss"]).all()
    assert (frame["excess"] > 0).all()  # three steps do not teach a grammar
    assert frame["relations_untrained"].between(0, frame["relations_tested"]).all()
    assert (frame["rank_qk"] <= WIDTH / frame["heads"] + 1e-9).all()

    def never(*_: object) -> None:
        raise AssertionError("made again")

    monkeypatch.setattr(script, "run", never)
    script.main(out=tmp_path, quick=True, workers=1, steps=None)
    assert (tmp_path / "README.md").read_text() == page
    assert (tmp_path / "head_count.svg").read_bytes() == picture


@pytest.fixture
def quick_runs(script, monkeypatch) -> list[Any]:
    """Runs that are written down and never made; what was asked for."""
    asked = []

    def run(plan: Any, design: Any, batches: Any, path: Path) -> dict[str, Any]:
        asked.append(design)
        result = {
            **script.identity(plan, design),
            "figures": {"loss": 5.0, "excess": 1.0},
            "training_tokens": 10,
            "training_seconds": 2.0,
            "seconds": 3.0,
        }
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(json.dumps(result))
        return result

    monkeypatch.setattr(script, "run", run)
    return asked


def test_only_missing_runs_are_made_and_results_keep_their_order(script, plan, tmp_path, quick_runs):
    listed = script.designs((1, 2), (2, (1,)), seeds=2)
    first = script.study(plan, listed, tmp_path, workers=1)
    assert quick_runs == listed
    missing = listed[4]
    (tmp_path / "runs" / f"{missing.name}.json").unlink()
    quick_runs.clear()
    assert script.study(plan, listed, tmp_path, workers=1) == first
    assert quick_runs == [missing]
    assert [script.Design(**result["design"]) for result in first] == listed


def test_figures_of_other_settings_are_not_mixed(script, plan, tmp_path, quick_runs):
    listed = script.designs((1,), (2, (1,)), seeds=1)
    script.study(plan, listed, tmp_path, workers=1)
    other = script.replace(plan, steps=plan.steps + 1)
    with pytest.raises(
        HeadlensError, match=r"heads01-kv01-seed0.json is of a run with another plan; give another folder"
    ):
        script.study(other, listed, tmp_path, workers=1)


def test_figures_of_another_grammar_are_not_mixed(script, plan, tmp_path, quick_runs, monkeypatch):
    listed = script.designs((1,), (2, (1,)), seeds=1)
    script.study(plan, listed, tmp_path, workers=1)
    monkeypatch.setattr(script, "HELD_OUT_SEED", script.HELD_OUT_SEED + 1)
    with pytest.raises(HeadlensError, match="another texts"):
        script.study(plan, listed, tmp_path, workers=1)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema": "headlens.head_count_run/1"}', "\x00"])
def test_a_damaged_run_is_one_sentence(script, tmp_path, content):
    _, listed = script.QUICK
    path = tmp_path / "runs" / f"{listed[0].name}.json"
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(
        SystemExit, match=r"^head_count_study: .*heads01-kv01-seed0.json is not what a run .* remove it\.$"
    ):
        script.main(out=tmp_path, quick=True, workers=1, steps=None)


# -------------------------------------------------------------------------------------------------------------- report


def results(losses: dict[tuple[int, int], list[float]]) -> list[dict[str, Any]]:
    """Runs of which nothing but the loss is known; the verbs agree in 1 - 0.1 / heads."""
    return [
        {
            "plan": {
                "layers": 2,
                "d_model": 64,
                "steps": 1000,
                "batch": 16,
                "learning_rate": 0.002,
                "held_out": 100,
                "annotated": 50,
                "ranked": 5,
            },
            "design": {"heads": heads, "kv_heads": kv_heads, "seed": seed},
            "figures": {
                "loss": loss,
                "grammar_loss": 3.0,
                "excess": loss - 3,
                **dict.fromkeys(("agreement", "reference", "reference_attractor"), 0.5),
                "agreement_attractor": 1 - 0.1 / heads,
                **dict.fromkeys(
                    ("relations", "relations_untrained", "relation_heads", "entropy", "rank_qk", "rank_attention"), 2
                ),
                "relations_tested": 9,
                "parameters": 12_345 if heads == kv_heads else 12_000,
                "cache_bytes": 1024.0 * kv_heads / heads,
            },
            "decisions": dict.fromkeys(("agreement", "agreement_attractor", "reference", "reference_attractor"), 7),
            "training_tokens": 2_000_000,
            "training_seconds": 100.0,
            "seconds": 120.0,
            "versions": {"Python": "3.11"},
        }
        for (heads, kv_heads), of_seeds in losses.items()
        for seed, loss in enumerate(of_seeds)
    ]


def summary(report, losses: dict[int, list[float]]) -> pd.DataFrame:
    cuts = {(heads, heads): of_seeds for heads, of_seeds in losses.items()}
    return report.summary_frame(report.results_frame(results(cuts | {(8, 1): [3.0]})))


def test_means_and_ranges_over_seeds(report):
    frame = report.results_frame(
        results({(4, 1): [3.9, 3.5], (4, 4): [3.3, 3.1], (4, 2): [3.2, 3.4], (1, 1): [4.0, 3.0]})
    )
    found = report.summary_frame(frame)
    cuts = list(zip(found["heads"], found["kv_heads"], strict=True))
    assert cuts == [(1, 1), (4, 4), (4, 2), (4, 1)]
    assert found["seeds"].tolist() == [2, 2, 2, 2]
    assert found["loss.mean"].tolist() == pytest.approx([3.5, 3.2, 3.3, 3.7])
    assert found["loss.min"].tolist() == [3.0, 3.1, 3.2, 3.5]
    assert found["loss.max"].tolist() == [4.0, 3.3, 3.4, 3.9]
    assert found["cache_bytes"].tolist() == [1024, 1024, 512, 256]
    lines = report.markdown_table(found).splitlines()
    assert lines[2].startswith(
        "| 1 | 1 | 12,345 | 1,024 | 3.5000 (3.0000 to 4.0000) | 0.5000 (0.0000 to 1.0000) | 0.500 "
    )
    assert lines[5].startswith("| 4 | 1 | 12,000 | 256 | 3.7000 (3.5000 to 3.9000) |")


def test_one_head_that_is_worse(report):
    one, _ = report.findings(summary(report, {1: [3.5, 3.7], 2: [3.3, 3.45], 4: [3.2, 3.4]}))
    assert one == (
        "One head a layer ends at 3.6000 nats a token (3.5000 to 3.7000), the best number of heads, 4, at 3.3000 nats "
        "a token (3.2000 to 3.4000): even the best seed of the one lies above the worst of the other. Across an "
        "attractor 90.0% of the verbs agree with one head, 97.5% with 4."
    )


def test_one_head_that_is_not_told_apart(report):
    one, _ = report.findings(summary(report, {1: [3.39, 3.7], 2: [3.3, 3.5], 4: [3.2, 3.4]}))
    assert "their seeds overlap, so these runs do not tell them apart" in one


def test_one_head_that_is_best(report):
    one, enough = report.findings(summary(report, {1: [3.1, 3.2], 2: [3.3, 3.5]}))
    assert (
        one == "No number of heads has a lower mean loss than one head a layer, 3.1500 nats a token (3.1000 to 3.2000)."
    )
    assert "more heads stop paying at 1, which has the lowest mean loss" in enough


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        (
            {1: [3.35, 3.8], 2: [3.35, 3.40], 4: [3.25, 3.45], 8: [3.2, 3.4], 16: [3.5, 3.6]},
            "more heads stop paying at 2: its mean loss, 3.3750, is the first within the range of the best, 8 heads "
            "with 3.3000 nats a token (3.2000 to 3.4000); above that range lie the means of 1, 16.",
        ),
        (
            {1: [3.6, 3.8], 2: [3.5, 3.6], 4: [3.2, 3.3], 8: [3.25, 3.3]},
            "more heads stop paying at 4, which has the lowest mean loss, 3.2500 nats a token (3.2000 to 3.3000); "
            "above that range lie the means of 1, 2.",
        ),
        (
            {1: [3.6, 3.8], 2: [3.5, 3.6], 4: [3.2, 3.3]},
            "more heads pay up to the most that were tried, 4, with 3.2500 nats a token (3.2000 to 3.3000); above that "
            "range lie the means of 1, 2.",
        ),
        (
            {1: [3.2, 3.3], 2: [3.2, 3.28]},
            "more heads stop paying at 1: its mean loss, 3.2500, is the first within the range of the best, 2 heads "
            "with 3.2400 nats a token (3.2000 to 3.2800).",
        ),
    ],
)
def test_where_more_heads_stop_paying(report, losses, expected):
    _, enough = report.findings(summary(report, losses))
    assert enough == f"Judged by the spread of the seeds, {expected}"


def test_shared_heads_do_not_speak_for_their_number_of_heads(report):
    """8 heads with one key/value head have the lowest loss of all, in every `summary` here."""
    _, enough = report.findings(summary(report, {1: [3.6, 3.8], 2: [3.5, 3.6]}))
    assert "8" not in enough.replace("3.8", "")


def test_the_picture_shows_means_and_ranges(report):
    frame = report.results_frame(
        results({(1, 1): [3.6, 3.8], (2, 2): [3.4, 3.6], (8, 8): [3.1, 3.3], (8, 1): [3.3, 3.5]})
    )
    figure = report.figure_of(frame)
    excess, *_, cache = figure.axes
    assert len(figure.axes) == 6
    (line,) = [line for line in excess.lines if len(line.get_xdata()) == 3 and line.get_marker() == "o"]
    assert line.get_xdata().tolist() == [1, 2, 8]
    assert line.get_ydata().tolist() == pytest.approx([0.7, 0.5, 0.2])
    (bars,) = excess.collections
    assert [segment[:, 1].tolist() for segment in bars.get_segments()] == [
        pytest.approx([0.6, 0.8]),
        pytest.approx([0.4, 0.6]),
        pytest.approx([0.1, 0.3]),
    ]
    (shared,) = [line for line in cache.lines if line.get_marker() == "s"]
    assert dict(zip(shared.get_xdata().tolist(), shared.get_ydata().tolist(), strict=True)) == pytest.approx(
        {128: 0.4, 1024: 0.2}
    )
    assert [text.get_text() for text in cache.texts] == ["1", "8"]


def test_the_page_states_sentences_table_and_how_it_was_made(report, tmp_path):
    runs = results({(1, 1): [3.6, 3.8], (2, 2): [3.4, 3.6], (8, 8): [3.1, 3.3], (8, 1): [3.3, 3.5]})
    report.write_report(runs, tmp_path, "python scripts/head_count_study.py")
    page = (tmp_path / "README.md").read_text()
    table = report.summary_frame(report.results_frame(runs))
    for sentence in report.findings(table):
        assert f"- {sentence}\n" in page
    assert report.markdown_table(table) in page
    assert "`python scripts/head_count_study.py`: 8 runs, together 0.27 hours of one core; Python 3.11." in page
    assert pd.read_csv(tmp_path / "summary.csv")["loss.mean"].tolist() == pytest.approx([3.7, 3.5, 3.2, 3.4])
    assert (tmp_path / "head_count.png").read_bytes().startswith(b"\x89PNG")
    first = (tmp_path / "head_count.svg").read_bytes()
    report.write_report(runs, tmp_path, "python scripts/head_count_study.py")
    assert (tmp_path / "head_count.svg").read_bytes() == first
