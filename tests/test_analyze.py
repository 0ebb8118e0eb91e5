"""The loop over a corpus equals a slow loop over single sentences, however the corpus is batched."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from slow_scores import Sentence, near_ties, slow_scores
from torch import Tensor

from headlens.analyze import analyze
from headlens.analyzers import ANALYZERS, Position, Surface
from headlens.capture import Way, capture
from headlens.errors import CaptureError, CorpusError
from headlens.records import Batch
from headlens.scores import ScoreTable
from headlens.testing import slow_attentions, tiny_model

CLS, SEP, STOP, COMMA = 1, 2, 7, 8
LENGTHS = (14, 9, 3, 11, 5, 4)


def corpus() -> list[Tensor]:
    """Sentences [CLS] words [SEP], of which one has a single word, some with commas and full stops."""
    random = torch.Generator().manual_seed(3)
    texts = [torch.randint(9, 99, (n - 2,), generator=random) for n in LENGTHS]
    texts[0][4], texts[0][-1], texts[1][-1], texts[3][2] = COMMA, STOP, STOP, COMMA
    return [torch.cat([torch.tensor([CLS]), text, torch.tensor([SEP])]) for text in texts]


def batch_of(texts: list[Tensor], documents: list[int], side: str = "right") -> Batch:
    width = max(map(len, texts))
    ids, real = torch.zeros(len(texts), width, dtype=torch.long), torch.zeros(len(texts), width, dtype=torch.bool)
    for row, text in enumerate(texts):
        place = slice(0, len(text)) if side == "right" else slice(width - len(text), width)
        ids[row, place], real[row, place] = text, True
    first = torch.zeros_like(real)
    first[torch.arange(len(texts)), real.int().argmax(dim=1)] = True
    members = {"cls": ids == CLS, "sep": ids == SEP, "full_stop": ids == STOP, "comma": ids == COMMA, "first": first}
    return Batch(ids, real, (ids == CLS) | (ids == SEP), torch.tensor(documents), members)


def patterns(model: torch.nn.Module, text: Tensor) -> list[Tensor]:
    """[head, query, key] of each layer, from transformers itself."""
    inputs = {"input_ids": text[None], "attention_mask": torch.ones(1, len(text), dtype=torch.long)}
    if model.config.is_encoder_decoder:  # its encoder alone, whose config still speaks of two stacks
        model.set_attn_implementation("eager")
        with torch.no_grad():
            return [layer[0] for layer in model(**inputs, output_attentions=True).attentions]
    (layers,) = slow_attentions(model, inputs).values()
    return [layer[0] for layer in layers]


def sentences(model: torch.nn.Module, texts: list[Tensor]) -> list[Sentence]:
    found = []
    for text in texts:
        probs = np.stack([layer.double().numpy() for layer in patterns(model, text)])
        ids = text.tolist()
        kinds = {
            "first": [i == 0 for i in range(len(ids))],
            **{name: [t == token for t in ids] for name, token in (("cls", CLS), ("sep", SEP))},
            **{name: [t == token for t in ids] for name, token in (("full_stop", STOP), ("comma", COMMA))},
            "special": [False] * len(ids),
        }
        found.append(Sentence(probs, [t in (CLS, SEP) for t in ids], kinds))
    return found


def profile_of(model: torch.nn.Module, batches: list[Batch], way: Way = "fast") -> ScoreTable:
    analyzers = [make() for make in ANALYZERS.values()]
    return analyze(model, batches, analyzers, documents=len(LENGTHS), way=way).scores()


def batches_of(how: str) -> list[Batch]:
    texts = corpus()
    order = {"one by one": range(6), "all": range(6), "left": range(6), "shuffled pairs": (4, 0, 2, 5, 1, 3)}[how]
    size = {"one by one": 1, "shuffled pairs": 2}.get(how, 6)
    groups = [list(order)[i : i + size] for i in range(0, 6, size)]
    return [batch_of([texts[i] for i in group], group, "left" if how == "left" else "right") for group in groups]


def assert_equal_scores(table: ScoreTable, slow: dict[str, np.ndarray], tolerance: float) -> None:
    without_macro = {"position.variability"}
    expected = {name for name in slow if name.removesuffix(".macro") not in without_macro} | without_macro
    absent = {"surface.special", "surface.special.macro"}  # no such token in this corpus
    assert set(table.names) == expected - absent
    for name in table.names:
        distance = name.startswith("position.distance")
        np.testing.assert_allclose(
            table[name], slow[name], atol=tolerance, rtol=10 * tolerance if distance else 0, err_msg=name
        )


@pytest.mark.parametrize("how", ["one by one", "all", "left", "shuffled pairs"])
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_equal_to_a_slow_loop_in_float64(family: str, how: str) -> None:
    model = tiny_model(family)
    slow = slow_scores(sentences(model, corpus()), is_causal=family == "gpt2")
    assert_equal_scores(profile_of(model, batches_of(how)), slow, 1e-10)


@pytest.mark.parametrize("way", ["fast", "exact"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "distilbert", "qwen3"])
def test_equal_to_a_slow_loop_in_float32(family: str, way: Way) -> None:
    model = tiny_model(family, dtype=torch.float32)
    cases = sentences(model, corpus())
    assert near_ties(cases) == 0  # so that shares of strongest keys are comparable
    slow = slow_scores(cases, is_causal=family not in ("bert", "distilbert"))
    # masses are means of float32 probabilities, entropies sums of -p log p: 1e-6, and some units of rounding
    assert_equal_scores(profile_of(model, batches_of("all"), way), slow, 2e-6)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_slices_of_few_rows_change_nothing(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(family)
    whole = profile_of(model, batches_of("all"))
    monkeypatch.setattr("headlens.analyze.capture", partial(capture, slice_bytes=5000))  # some two rows
    sliced = profile_of(model, batches_of("all"))
    np.testing.assert_allclose(sliced.values, whole.values, atol=1e-12, rtol=0)
    np.testing.assert_array_equal(sliced.support, whole.support)


@pytest.mark.parametrize("is_causal", [True, False])
def test_chance_is_what_uniform_attention_scores(is_causal: bool) -> None:
    texts = corpus()
    cases = []
    for text in texts:
        n = len(text)
        seen = np.tril(np.ones((n, n))) if is_causal else np.ones((n, n))
        ids = text.tolist()
        kinds = {name: [t == token for t in ids] for name, token in (("cls", CLS), ("sep", SEP))}
        kinds |= {name: [t == token for t in ids] for name, token in (("full_stop", STOP), ("comma", COMMA))}
        kinds |= {"first": [i == 0 for i in range(n)], "special": [False] * n}
        uniform = seen / seen.sum(axis=-1, keepdims=True)
        cases.append(Sentence(uniform[None, None], [t in (CLS, SEP) for t in ids], kinds))
    slow = slow_scores(cases, is_causal=is_causal)
    table = profile_of(tiny_model("gpt2" if is_causal else "bert"), batches_of("shuffled pairs"))
    for name in table.names:
        # ties are broken at random by chance, to the first key by argmax
        wanted = slow[name.replace("argmax", "mass")][0, 0]
        assert table.chance[table.index(name)] == pytest.approx(wanted, abs=1e-10), name


def test_support_counts_rows_and_inputs() -> None:
    table = profile_of(tiny_model("bert"), batches_of("all"))
    rows = sum(n - 2 for n in LENGTHS)
    assert (table.support[table.index("position.mass[-1]")] == rows).all()
    assert (table.support[table.index("position.mass_valid[-1]")] == rows - 6).all()
    assert (table.support[table.index("position.mass_valid[-1].macro")] == 5).all()  # one sentence has one word
    assert (table.support[table.index("surface.cls.macro")] == 6).all()


def test_documents_of_several_windows_stay_together_in_a_fold() -> None:
    texts = corpus()
    tally = analyze(tiny_model("bert"), [batch_of(texts, [0, 0, 1, 1, 1, 0])], [Surface()], documents=2)
    assert tally.folds == 2
    rows = tally.model["surface"].sums["rows"][:, 0, 0]
    assert rows.tolist() == [LENGTHS[0] + LENGTHS[1] + LENGTHS[5] - 6, LENGTHS[2] + LENGTHS[3] + LENGTHS[4] - 6]


def test_intervals_are_percentiles_over_documents() -> None:
    model, batches = tiny_model("bert"), batches_of("all")
    table = analyze(model, batches, [Surface()], documents=6).scores(seed=5)
    tally = analyze(model, batches, [Surface()], documents=6)
    paid = tally.model["surface"].sums["paid"][:, 1, 2, 1].numpy()  # [fold] of [CLS], layer 1, head 2
    rows = tally.model["surface"].sums["rows"][:, 1, 0].numpy()
    drawn = np.random.default_rng(0).integers(0, 6, (20_000, 6))
    means = paid[drawn].sum(axis=1) / rows[drawn].sum(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    place = (table.index("surface.cls"), 1, 2)
    # two independent bootstraps, of 2,000 and 20,000 draws: their ends differ by a few hundredths of the width
    assert table.low[place] == pytest.approx(low, abs=0.08 * (high - low))
    assert table.high[place] == pytest.approx(high, abs=0.08 * (high - low))


def test_one_document_has_no_interval() -> None:
    table = analyze(tiny_model("bert"), [batch_of(corpus()[:1], [0])], [Surface()], documents=1).scores()
    assert np.isnan(table.low).all()
    assert np.isnan(table.high).all()
    assert np.isfinite(table.values).all()


def test_the_same_seed_gives_the_same_table() -> None:
    model = tiny_model("gpt2")
    tables = [profile_of(model, batches_of("all")) for _ in range(2)]
    assert tables[0].equals(tables[1])


def test_progress_is_told_in_tokens() -> None:
    told: list[int] = []
    analyze(tiny_model("bert"), batches_of("shuffled pairs"), [Position()], documents=6, progress=told.append)
    assert told == [LENGTHS[4] + LENGTHS[0], LENGTHS[2] + LENGTHS[5], LENGTHS[1] + LENGTHS[3]]


def test_nothing_after_the_last_attention_runs() -> None:
    model, ran = tiny_model("bert"), []
    for i, layer in enumerate(model.encoder.layer):
        layer.intermediate.register_forward_hook(lambda *_, i=i: ran.append(i))
    analyze(model, batches_of("all"), [Surface()], documents=6)
    assert ran == [0, 1]


def test_an_empty_corpus_is_refused() -> None:
    with pytest.raises(CorpusError, match="at least one document"):
        analyze(tiny_model("bert"), [], [Surface()], documents=1)


def test_nan_is_refused_with_its_layer() -> None:
    model = tiny_model("bert")
    with torch.no_grad():
        model.encoder.layer[1].attention.self.query.weight[0, 0] = math.nan
    with pytest.raises(CaptureError, match="Layer 1 gave NaN"):
        analyze(model, batches_of("all"), [Surface()], documents=6)


def test_several_stacks_are_refused() -> None:
    with pytest.raises(CaptureError, match="several attention stacks"):
        analyze(tiny_model("t5"), batches_of("all"), [Surface()], documents=6)


def test_an_encoder_of_two_stacks_is_scored_alone() -> None:
    model = tiny_model("bart").get_encoder()
    slow = slow_scores(sentences(model, corpus()), is_causal=False)
    assert_equal_scores(profile_of(model, batches_of("all")), slow, 1e-10)


def test_sums_are_all_that_is_kept() -> None:
    tally = analyze(tiny_model("bert"), batches_of("all"), [Position(), Surface()], documents=6)
    kept = [t for totals in tally.model.values() for t in (*totals.sums.values(), *totals.macro.values())]
    assert all(t.shape[:2] == (6, 3) and t.dtype == torch.float64 for t in kept)
    assert sum(t.numel() for t in kept) < 6 * 3 * 4 * 250  # folds x layers x heads x numbers a head
