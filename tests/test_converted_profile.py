"""Profiles of converted models: scores by the head numbers of the original, and words that fit what was done.

The reference is a model in which every query head has a key/value head of its own, in the order of the original.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compared import PROVENANCE as PLAIN
from compared import after, before
from converted import PER_LAYER, language_model, spread, with_shared
from report_pages import PROVENANCE, cells, planted, read
from test_collect import TEXTS, tokenizer
from transformers import PreTrainedModel

from headlens.analyze import analyze
from headlens.analyzers import ANALYZERS
from headlens.analyzers.contribution import Contribution
from headlens.behaviour.circuits import circuits
from headlens.comparison import compare
from headlens.conversion.carriers import converted
from headlens.conversion.weights import LayerWeights, read_layers
from headlens.encode import encode_texts
from headlens.manifest import surgery_facts
from headlens.model_facts import facts_of
from headlens.models import load_model
from headlens.plan import Groups
from headlens.report.compare import render_comparison
from headlens.report.compare_words import notices, sentences
from headlens.report.facts import header_facts
from headlens.report.html import render_report
from headlens.report.surgery import surgery_lines, surgery_sentence, surgery_table
from headlens.scores import ScoreTable
from headlens.surgery import apply_plan, present_plan
from headlens.surgery.checkpoint import save_pruned

EXACT: Any = {"rtol": 1e-9, "atol": 1e-9}  # float64
ORDER: Groups = ((2,), (0,), (3,), (1,))


def scores(model: PreTrainedModel) -> ScoreTable:
    network = model.base_model
    batches = encode_texts(TEXTS, tokenizer(), max_length=64, batch_tokens=40).batches
    scorers = [*(make() for make in ANALYZERS.values()), Contribution(network)]
    return analyze(network, batches, scorers, documents=len(TEXTS)).scores()


def assert_same(found: ScoreTable, wanted: ScoreTable) -> None:
    assert found.metrics == wanted.metrics
    assert np.nanstd(wanted.values, axis=(1, 2)).max() > 0.01, "heads alike: any order would pass"
    for name in ("values", "low", "high", "support"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), err_msg=name, **EXACT)


# ------------------------------------------------------------------------------------------------------ head by number


def in_order(layer: LayerWeights, groups: Groups) -> LayerWeights:
    """The same layer, with its key/value heads in another order; the query heads of a model follow."""
    places = [head for (head,) in groups]
    shared = {name: getattr(layer, name) for name in ("k", "v", "k_bias", "v_bias")}
    moved: dict[str, Any] = {name: None if part is None else part[places] for name, part in shared.items()}
    return replace(layer, **moved, groups=groups)


@pytest.mark.parametrize("family", ["bert", "gpt2", "opt"])
def test_heads_in_another_order_keep_their_numbers(family: str) -> None:
    model = language_model(family)
    moved = converted(model, [in_order(layer, ORDER) for layer in read_layers(model)])
    assert present_plan(moved).kept == ((2, 0, 3, 1),) * 3
    assert_same(scores(moved), scores(model))


@pytest.mark.parametrize("family", ["bert", "gpt2", "opt"])
def test_heads_that_share_have_the_scores_of_heads_with_copies(family: str) -> None:
    model = language_model(family)
    layers = with_shared(read_layers(model), PER_LAYER)
    shared, copied = converted(model, layers), converted(model, spread(layers))
    assert [len(groups) for groups in present_plan(shared).groups] == [2, 1, 4]
    assert_same(scores(shared), scores(copied))


def test_circuits_of_heads_that_share_are_those_of_copies() -> None:
    model = language_model("gpt2")
    layers = with_shared(read_layers(model), PER_LAYER)
    found, wanted = (circuits(converted(model, one)).scores for one in (layers, spread(layers)))
    assert found.metrics == wanted.metrics
    np.testing.assert_allclose(found.values, wanted.values, **EXACT)


def test_scores_of_a_loaded_checkpoint_are_by_the_same_numbers(tmp_path: Path) -> None:
    model = language_model("gpt2")
    layers = with_shared(read_layers(model), PER_LAYER)
    folder = save_pruned(converted(model, layers), tmp_path / "new", manifest={"source": {"name": "tiny"}})
    loaded = load_model(str(folder), dtype="auto")
    assert_same(scores(loaded.model), scores(converted(model, spread(layers))))
    assert loaded.provenance["surgery"]["kind"] == "converted"
    assert loaded.provenance["plan"]["groups"][0] == [[0, 2], [3, 1]]
    assert (loaded.provenance["heads"], loaded.provenance["kv_heads"]) == (4, 4)


def test_what_a_model_says_of_itself() -> None:
    model = language_model("gpt2")
    shared = converted(model, with_shared(read_layers(model), PER_LAYER))
    told = facts_of(shared)
    assert "heads_kept" not in told
    assert [len(groups) for groups in told["plan"]["groups"]] == [2, 1, 4]
    both = facts_of(apply_plan(shared, present_plan(shared).without([(1, 0), (1, 3)])))
    assert both["heads_kept"] == 10
    assert "plan" not in facts_of(model)


# ------------------------------------------------------------------------------------------------------------- in words


def arm(name: str, heads: int, kv_heads: list[int], distortion: float) -> dict[str, Any]:
    return {"name": name, "draw": None, "heads": heads, "kv_heads": kv_heads, "distortion": distortion, "tasks": []}


MANIFEST: dict[str, Any] = {
    "schema": "headlens.converted/1",
    "source": {"name": "Tiny"},
    "kv_heads": [1, 1],
    "kv_heads_of_original": 3,
    "groups": [[[0, 1, 2]], [[2, 0, 1]]],
    "method": {
        "merged_by": "svd",
        "grouping": "cheapest",
        "repair": True,
        "kv_heads": [1, 1],
        "objective": "kl_distortion",
        "tried": [{}],
    },
    "measured": {
        "parameters": {"before": 1000, "after": 800},
        "bytes of the cache after 32 tokens": {"before": 768, "after": 256},
    },
    "arms": [
        arm("converted", 6, [1, 1], 0.25),
        arm("converted, not refitted", 6, [1, 1], 0.5),
        arm("original", 6, [3, 3], 0.0),
        arm("mean pooling", 6, [1, 1], 2.0),
        arm("no heads", 0, [0, 0], 4.0),
    ],
}


def provenance(heads_kept: int | None = None, **changed: Any) -> dict[str, Any]:
    plan = {"groups": MANIFEST["groups"]}
    model = {"name": "small", "dtype": "float32", "layers": 2, "heads": 3, "kv_heads": 3, "plan": plan}
    kept = {} if heads_kept is None else {"heads_kept": heads_kept}
    return {**PLAIN, "model": {**model, **kept, "surgery": surgery_facts({**MANIFEST, **changed})}}


def test_what_is_kept_of_the_manifest_of_a_conversion() -> None:
    facts = surgery_facts(MANIFEST)
    assert (facts["kind"], facts["shares_anew"], facts["kv_heads"]) == ("converted", True, [1, 1])
    assert facts["method"] == {name: value for name, value in MANIFEST["method"].items() if name != "tried"}
    assert [one["kv_heads"] for one in facts["arms"]] == [[1, 1], [1, 1], [3, 3], [1, 1], [0, 0]]


@pytest.mark.parametrize(
    ("heads_kept", "changed", "words"),
    [
        (
            None,
            {},
            "Tiny with 1 of 3 key/value heads a layer (merged by svd; cheapest groups; output projections refitted)",
        ),
        (None, {"method": {}}, "Tiny with 1 of 3 key/value heads a layer"),
        (None, {"kv_heads": [1, 3], "method": {}}, "Tiny with 4 of 6 key/value heads (1 3 by layer)"),
        (
            None,
            {"kv_heads_of_original": 1, "kv_heads": [3, 3], "arms": [], "method": {"merged_by": "copies"}},
            "Tiny with 3 key/value heads a layer instead of 1 (in exact copies)",
        ),
        (
            None,
            {"arms": [], "healing": {"arms": [arm("original", 6, [2, 2], 0.0)]}, "method": {"healed_steps": 100}},
            "Tiny with 1 of 2 key/value heads a layer (healed in 100 steps)",
        ),
        (
            4,  # of six, when Tiny still had six
            {"schema": "headlens.pruned/1", "method": {"ranked_by": "greedy"}},
            "Tiny without 2 of its 6 heads and with 1 of 3 key/value heads a layer (chosen by greedy)",
        ),
        (
            4,  # as many as Tiny had: the others went before
            {"schema": "headlens.pruned/1", "method": {"merged_by": "svd"}, "arms": [arm("original", 4, [2, 2], 0.0)]},
            "Tiny with 1 of 2 key/value heads a layer; 2 of its 6 heads were gone before (merged by svd)",
        ),
        (None, {"kv_heads": None, "arms": [], "method": {}}, "Tiny with other key/value heads"),
    ],
)
def test_the_sentence_of_a_conversion(heads_kept: int | None, changed: dict[str, Any], words: str) -> None:
    assert surgery_sentence(provenance(heads_kept, **changed)) == words


def test_key_value_heads_stand_in_the_table() -> None:
    table = surgery_table(provenance())
    assert table is not None
    assert [column.title for column in table.columns] == ["Model", "Heads", "Key/value heads", "Distortion"]
    assert "KL divergence, nats a token" in table.columns[3].meaning
    assert [[cell.text for cell in row.cells] for row in table.rows] == [
        ["the original", "6", "6", "0.0000"],
        ["converted", "6", "2", "0.2500"],
        ["converted, not refitted", "6", "2", "0.5000"],
        ["plain mean pooling", "6", "2", "2.0000"],
        ["no heads at all", "0", "0", "4.0000"],
    ]
    assert [row.cells[0].is_strong for row in table.rows] == [False, True, False, False, False]


def test_the_cache_is_told() -> None:
    assert list(surgery_lines(provenance())) == [
        "Parameters: 800; 1,000 in the original (.80 of it).",
        "Bytes of the cache after 32 tokens: 256; 768 in the original (.33 of it).",
    ]


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ([[[0, 1, 2]], [[2, 0, 1]]], "1 key/value head a layer"),
        ([[[0, 1, 2]], [[0], [1], [2]]], "1 3 key/value heads by layer"),
    ],
)
def test_the_head_of_a_page_has_the_numbers_of_today(plan: Any, words: str) -> None:
    told = provenance()
    told["model"]["plan"] = {"groups": plan}
    assert words in dict(header_facts(before().scores, told))["Model"].split(", ")
    assert "converted from Tiny" in dict(header_facts(before().scores, told))["Model"]


def test_the_page_of_a_converted_model_claims_no_removed_head() -> None:
    page = render_report(planted(), {**PROVENANCE, "model": {**PROVENANCE["model"], **provenance()["model"]}})
    assert "The model is Tiny with 1 of 3 key/value heads a layer (merged by svd;" in page
    assert "pruned" not in page.split("<script")[0]
    assert "Surgery</h2>" in page


def test_a_comparison_with_the_original_tells_of_the_conversion() -> None:
    whole = {**PLAIN, "model": {**PLAIN["model"], "name": "Tiny"}}
    same_heads = before(provenance=provenance())
    pair = compare([before(provenance=whole), same_heads], ["whole", "small"]).pairs[0]
    (told,) = [line for line in notices(pair) if "surgery" in line]
    assert told.startswith(
        "small came out of surgery on whole: Tiny with 1 of 3 key/value heads a layer (merged by svd"
    )
    assert not any("removed" in line or "pruned" in line for line in [*notices(pair), *sentences(pair)])
    page = read(render_comparison(compare([before(provenance=whole), same_heads], ["whole", "small"])))
    rows = [cells(row) for row in page.one("table", class_="surgery").all("tr")]
    assert ["plain mean pooling", "6", "2", "2.0000"] in rows
    removed = compare([before(provenance=whole), after(provenance=provenance())], ["whole", "small"]).pairs[0]
    assert any("removed" in line for line in sentences(removed))  # where one is gone it is still said
