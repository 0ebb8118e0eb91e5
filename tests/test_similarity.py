"""Distances of heads equal closed forms and SciPy's, row by row; sample, map and clusters keep their laws."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from torch import Tensor

import headlens.behaviour.similarity as module
from headlens.behaviour.similarity import (
    ROWS_OF_INPUT,
    Similarity,
    choose_rows,
    clusters_of,
    divergences,
    map_of,
    similarity,
)
from headlens.capture import Way, capture
from headlens.errors import CaptureError, CorpusError, OutputError
from headlens.records import Batch
from headlens.testing import VOCAB, slow_attentions, tiny_model

LENGTHS = (12, 7, 4, 9, 5)  # of the inputs, one special token at each end


def batch_of(inputs: list[list[int]], document: list[int], *, side: str = "right") -> Batch:
    longest = max(map(len, inputs))
    ids = torch.zeros(len(inputs), longest, dtype=torch.long)
    mask, special = torch.zeros_like(ids, dtype=torch.bool), torch.zeros_like(ids, dtype=torch.bool)
    for row, own in enumerate(inputs):
        start = 0 if side == "right" else longest - len(own)
        ids[row, start : start + len(own)] = torch.tensor(own)
        mask[row, start : start + len(own)] = True
        special[row, [start, start + len(own) - 1]] = True
    return Batch(ids, mask, special, torch.tensor(document))


def drawn_inputs() -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(5, VOCAB, (length,), generator=generator).tolist() for length in LENGTHS]


def batches_of(*sizes: int, side: str = "right") -> list[Batch]:
    """The drawn inputs in batches of these sizes."""
    inputs, found, start = drawn_inputs(), list[Batch](), 0
    for size in sizes:
        documents = list(range(start, start + size))
        found.append(batch_of(inputs[start : start + size], documents, side=side))
        start += size
    assert start == len(inputs)
    return found


def slow_rows(model: Any) -> Tensor:
    """[row, head, key] of all ordinary tokens of the drawn inputs, as transformers itself reports them."""
    found = []
    for ids in drawn_inputs():
        given = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
        (layers,) = slow_attentions(model, given).values()
        whole = torch.cat([layer[0] for layer in layers])  # [layer * head, query, key]
        rows = whole[:, 1:-1].transpose(0, 1)
        found.append(torch.nn.functional.pad(rows, (0, max(LENGTHS) - len(ids))))
    return torch.cat(found)


def slow_distances(rows: Tensor) -> np.ndarray:
    heads = rows.shape[1]
    probs = rows.double().numpy()
    return np.array(
        [
            [np.mean([jensenshannon(row[one], row[two]) ** 2 for row in probs]) for two in range(heads)]
            for one in range(heads)
        ]
    )


def made(distance: Any, heads: int, cluster: list[int] | None = None, **more: Any) -> Similarity:
    """Of drawn distances, with so many heads a layer."""
    distance = np.array(distance, dtype=float)
    n = len(distance)
    entries: dict[str, Any] = {
        "heads": tuple(divmod(index, heads) for index in range(n)),
        "distance": distance,
        "place": np.arange(2.0 * n).reshape(n, 2),
        "cluster": np.array(cluster or [0] * n),
        "rows": 3,
        "inputs": 2,
        "stress": 0.125,
        "silhouette": 0.5,
    }
    return Similarity(**{**entries, **more})


# --------------------------------------------------------------------------------------------------------- divergences

LN2 = math.log(2)
QUARTERS = 0.5 * (0.5 * math.log(0.5 / 0.375) * 2 + 0.25 * math.log(0.25 / 0.375) * 2 + 2 * 0.25 * math.log(2))


@pytest.mark.parametrize(
    ("p", "q", "expected"),
    [
        ([1, 0, 0], [1, 0, 0], 0),
        ([0.2, 0.3, 0.5], [0.2, 0.3, 0.5], 0),
        ([1, 0, 0], [0, 1, 0], LN2),
        ([0.5, 0.5, 0, 0], [0, 0, 0.3, 0.7], LN2),
        ([1, 0], [0.5, 0.5], 0.5 * (math.log(4 / 3) + 0.5 * math.log(2 / 3) + 0.5 * math.log(2))),
        ([0.5, 0.5, 0, 0], [0.25, 0.25, 0.25, 0.25], QUARTERS),
        ([0.3, 0.2], [0.3, 0.2], 0),  # rows that sum to less than 1: the rest went to no key
        ([0.4, 0], [0, 0.4], 0.4 * LN2),
    ],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-6)])
def test_closed_forms(p: list[float], q: list[float], expected: float, dtype: Any, tolerance: float) -> None:
    drawn = np.array([[p, q]], dtype)  # one row
    assert divergences(drawn)[0, 1] == pytest.approx(expected, abs=tolerance)


def test_rows_are_added_up_and_only_pairs_are_given() -> None:
    rows = np.array([[[1.0, 0], [0, 1]], [[1, 0], [1, 0]], [[0, 1], [1, 0]]])  # disjoint, alike, disjoint
    np.testing.assert_allclose(divergences(rows), [[0, 2 * LN2], [0, 0]], atol=1e-12)


def test_never_negative_however_alike() -> None:
    row = np.random.default_rng(0).dirichlet(np.ones(50), size=200).astype(np.float32)
    nearly = row * np.float32(1 + 1e-6)
    found = divergences(np.stack([row, row, nearly], axis=1))
    assert (found >= 0).all()
    assert found.max() < 200 * 1e-6


# ------------------------------------------------------------------------------------------------------ from a model


@pytest.mark.parametrize("way", ["fast", "exact"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "albert"])
def test_equals_scipy_on_what_transformers_reports(family: str, way: Way) -> None:
    model = tiny_model(family)
    found = similarity(model, batches_of(3, 2), way=way)
    expected = slow_distances(slow_rows(model))
    assert found.rows == sum(LENGTHS) - 2 * len(LENGTHS)
    assert found.inputs == 5
    assert found.heads == tuple((layer, head) for layer in range(3) for head in range(4))
    tolerance = 1e-6 if family == "llama" else 1e-10  # transformers takes the softmax of Llama in float32
    np.testing.assert_allclose(found.distance, expected, atol=tolerance)
    assert expected[np.triu_indices(12, 1)].min() > 0.005  # or the comparison would say little


@pytest.mark.parametrize("pass_bytes", [12 * 12 * 8, 5 * 12 * 12 * 8])  # of one row, of five
def test_slices_and_portions_change_nothing(pass_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gpt2")
    whole = similarity(model, batches_of(3, 2))
    monkeypatch.setattr(sys.modules["headlens.capture"], "capture", partial(capture, slice_bytes=3000))
    monkeypatch.setattr(module, "_PASS_BYTES", pass_bytes)
    monkeypatch.setattr(module, "_BLOCK_BYTES", 1)
    parts = similarity(model, batches_of(3, 2))
    np.testing.assert_allclose(parts.distance, whole.distance, atol=1e-12)
    assert parts.rows == whole.rows


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1), (2, 3), (5,)])
@pytest.mark.parametrize("rows", [9, 2000])
def test_batches_and_padding_change_nothing(sizes: tuple[int, ...], rows: int) -> None:
    model = tiny_model("bert")
    reference = similarity(model, batches_of(4, 1), rows=rows, seed=3)
    found = similarity(model, batches_of(*sizes), rows=rows, seed=3)
    np.testing.assert_allclose(found.distance, reference.distance, atol=1e-12)
    assert (found.rows, found.inputs) == (reference.rows, reference.inputs)


def test_padding_on_the_left_changes_nothing() -> None:
    model = tiny_model("gpt2")
    right, left = similarity(model, batches_of(3, 2)), similarity(model, batches_of(3, 2, side="left"))
    np.testing.assert_allclose(left.distance, right.distance, atol=1e-10)


def test_planted_duplicates_are_at_distance_0_and_nearest_each_other() -> None:
    model = tiny_model("bert")
    of_head = slice(2 * 8, 3 * 8)
    attention = model.encoder.layer[1].attention.self
    with torch.no_grad():
        for projection in (attention.query, attention.key):
            projection.weight[:8] = projection.weight[of_head]
            projection.bias[:8] = projection.bias[of_head]
    found = similarity(model, batches_of(3, 2), clusters=11)
    (first, distance), *_ = found.nearest(1, 0)
    assert first == (1, 2)
    assert distance == pytest.approx(0, abs=1e-12)
    assert found.nearest(1, 2)[0][0] == (1, 0)
    assert found.cluster[4] == found.cluster[6]  # of 12 heads in 11 clusters, only these two share one
    assert len(set(found.cluster.tolist())) == 11


def test_heads_in_another_order_have_the_same_distances() -> None:
    model, swapped = tiny_model("bert"), tiny_model("bert")
    order = [3, 1, 0, 2]
    attention = swapped.encoder.layer[-1].attention.self
    with torch.no_grad():
        for projection in (attention.query, attention.key):
            projection.weight.copy_(projection.weight.view(4, 8, -1)[order].reshape(32, -1))
            projection.bias.copy_(projection.bias.view(4, 8)[order].reshape(32))
    places = [*range(8), *(8 + head for head in order)]
    before, after = similarity(model, batches_of(5)), similarity(swapped, batches_of(5))
    np.testing.assert_allclose(after.distance, before.distance[np.ix_(places, places)], atol=1e-12)


def test_bfloat16_model_is_compared_in_float32() -> None:
    exact = similarity(tiny_model("bert"), batches_of(5))
    coarse = similarity(tiny_model("bert", dtype=torch.bfloat16), batches_of(5), way="exact")
    # bfloat16 keeps 3 digits, of which the scores of the last layers have lost one or two
    np.testing.assert_allclose(coarse.distance, exact.distance, atol=0.05)
    assert coarse.distance.max() <= LN2
    assert coarse.distance[np.triu_indices(12, 1)].min() > 0


def test_special_tokens_and_padding_have_no_rows() -> None:
    batch = batch_of([[1, 9, 2]], [0])  # one ordinary token
    found = similarity(tiny_model("bert"), [batch])
    assert found.rows == 1


def test_nan_is_refused_with_its_document() -> None:
    model = tiny_model("bert")
    first, second, *others = map(set, drawn_inputs())
    only_in_second = min(second.difference(first, *others))
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[only_in_second] = torch.nan
    with pytest.raises(CaptureError, match="NaN or infinite attention on document 1 "):
        similarity(model, batches_of(3, 2))


def test_several_stacks_are_refused() -> None:
    with pytest.raises(CaptureError, match="several attention stacks"):
        similarity(tiny_model("t5"), batches_of(5))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 0}, "At least one row .* rows=0"),
        ({"clusters": 0}, "at least one cluster .* clusters=0"),
        ({"clusters": 13}, "12 heads make at most 12 clusters, got clusters=13"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        similarity(tiny_model("bert"), batches_of(5), **options)


def test_corpus_without_a_row_is_refused() -> None:
    with pytest.raises(CorpusError, match="no token whose attention could be compared"):
        similarity(tiny_model("bert"), [batch_of([[1, 2]], [0])])


# -------------------------------------------------------------------------------------------------------------- sample


def test_short_corpus_is_taken_whole() -> None:
    (first, second) = choose_rows([[3, 0], [2]], rows=10, seed=0)
    assert first.input.tolist() == [0, 0, 0]
    assert first.rank.tolist() == [0, 1, 2]
    assert (second.input.tolist(), second.rank.tolist()) == ([0, 0], [0, 1])


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 40, 100, 139, 140])
def test_exactly_as_many_rows_as_asked_for(rows: int) -> None:
    found = choose_rows([[100, 5], [30, 5]], rows=rows, seed=1)
    assert sum(len(batch.rank) for batch in found) == rows
    for batch, counts in zip(found, [[100, 5], [30, 5]], strict=True):
        places = list(zip(batch.input.tolist(), batch.rank.tolist(), strict=True))
        assert len(set(places)) == len(places)
        assert all(0 <= rank < counts[row] for row, rank in places)


def test_long_inputs_do_not_outweigh_short_ones() -> None:
    (found,) = choose_rows([[1000, 20, 20, 20]], rows=4 * ROWS_OF_INPUT, seed=0)
    assert np.bincount(found.input).tolist() == [ROWS_OF_INPUT] * 4


def test_sample_depends_on_the_seed_only() -> None:
    counts = [[50, 60, 70]]
    ranks = [choose_rows(counts, rows=20, seed=seed)[0].rank.tolist() for seed in (0, 0, 1)]
    assert ranks[0] == ranks[1] != ranks[2]


def test_every_row_of_an_input_can_be_drawn() -> None:
    drawn = {rank for seed in range(200) for rank in choose_rows([[20]], rows=3, seed=seed)[0].rank.tolist()}
    assert drawn == set(range(20))


def test_only_inputs_of_the_sample_are_run() -> None:
    model = tiny_model("bert")
    run = []
    handle = model.register_forward_pre_hook(
        lambda _module, _args, kwargs: run.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    found = similarity(model, batches_of(3, 2), rows=2)
    handle.remove()
    assert run == [1]
    assert (found.rows, found.inputs) == (2, 1)


# ------------------------------------------------------------------------------------------------------ map, clusters


def test_map_of_places_in_a_plane_is_exact() -> None:
    places = np.array([[0.0, 0], [3, 4], [-1, 2], [5, -2], [2, 2]])
    distance = np.linalg.norm(places[:, None] - places[None], axis=-1)
    found, stress = map_of(distance)
    np.testing.assert_allclose(np.linalg.norm(found[:, None] - found[None], axis=-1), distance, atol=1e-6)
    assert stress < 1e-6


def test_stress_of_four_equal_distances() -> None:
    """Four points of which all are at distance 1 do not fit a plane; a square of side s is the best map. Its stress-1,
    sqrt((4 (s - 1)^2 + 2 (s sqrt 2 - 1)^2) / (8 s^2)), is least where SMACOF's raw stress is, s = (2 + sqrt 2) / 4."""
    place, stress = map_of(1.0 - np.eye(4))
    side = (2 + math.sqrt(2)) / 4
    expected = math.sqrt((4 * (side - 1) ** 2 + 2 * (side * math.sqrt(2) - 1) ** 2) / (8 * side**2))
    between = np.sort(np.linalg.norm(place[:, None] - place[None], axis=-1)[np.triu_indices(4, 1)])
    np.testing.assert_allclose(between, [side] * 4 + [side * math.sqrt(2)] * 2, atol=1e-4)  # where SMACOF stops
    assert stress == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_few_heads_have_a_map(heads: int) -> None:
    place, stress = map_of(0.5 * (1 - np.eye(heads)))
    assert place.shape == (heads, 2)
    assert stress == pytest.approx(0, abs=1e-6)


def test_heads_that_are_all_alike_lie_on_one_spot() -> None:
    place, stress = map_of(np.zeros((4, 4)))
    assert np.ptp(place, axis=0).tolist() == pytest.approx([0, 0], abs=1e-6)
    assert stress == pytest.approx(0, abs=1e-6)


TWO_GROUPS = [0, 1, 0, 1, 1, 0]


def grouped(labels: list[int]) -> np.ndarray:
    """.1 within a group, .6 between groups."""
    same = np.array(labels)[:, None] == np.array(labels)
    return np.where(same, 0.1, 0.6) * (1 - np.eye(len(labels)))


@pytest.mark.parametrize("labels", [TWO_GROUPS, [0, 0, 1, 2, 1, 2, 0], [0, 1, 2, 3, 0, 1, 2, 3]])
def test_silhouette_finds_the_number_of_groups(labels: list[int]) -> None:
    found, silhouette = clusters_of(grouped(labels))
    assert found.tolist() == labels  # numbered in the order in which the heads come
    assert silhouette == pytest.approx((0.6 - 0.1) / 0.6)


def between(*groups: tuple[list[int], float]) -> np.ndarray:
    """Heads of one of the `groups` are as far apart as it says, the innermost deciding; heads of none of them .6."""
    n = max(head for heads, _ in groups for head in heads) + 1
    distance = np.full((n, n), 0.6)
    for heads, apart in groups:
        distance[np.ix_(heads, heads)] = apart
    return distance * (1 - np.eye(n))


def test_a_head_like_no_other_makes_no_clusters_by_itself() -> None:
    """Of {0..7} and {8}, a split has a silhouette of (8 / 9) (5 / 6) or so; but it is {0..3} and {4..7} that are asked
    for, and the head that stands apart is a cluster of its own."""
    distance = between(([*range(8)], 0.3), ([0, 1, 2, 3], 0.2), ([4, 5, 6, 7], 0.2))
    distance = np.pad(distance, (0, 1), constant_values=1.5)
    distance[8, 8] = 0
    found, silhouette = clusters_of(distance)
    assert found.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2]
    assert silhouette == pytest.approx(8 / 9 * (0.3 - 0.2) / 0.3)  # a head by itself counts 0
    apart = [0, 0, 0, 0, 0, 0, 0, 0, 1]
    mean = (3 * 0.2 + 4 * 0.3) / 7
    assert 8 / 9 * (1.5 - mean) / 1.5 > silhouette  # what the largest silhouette alone would have taken
    assert found.tolist() != apart


@pytest.mark.parametrize(
    ("inner", "is_near", "labels"),
    [(0.13, False, [0] * 6 + [1] * 2), (0.07, True, [0, 0, 0, 1, 1, 1, 2, 2])],
)
def test_even_clusters_are_preferred_where_they_are_nearly_as_good(
    inner: float, is_near: bool, labels: list[int]
) -> None:
    """{0..5} beside {6, 7}; within the former, {0, 1, 2} and {3, 4, 5} are nearer to themselves than to each other."""
    distance = between(([*range(6)], 0.2), ([0, 1, 2], inner), ([3, 4, 5], inner), ([6, 7], 0.1))
    coarse = (6 * (0.6 - (2 * inner + 3 * 0.2) / 5) / 0.6 + 2 * 0.5 / 0.6) / 8  # one cluster holds 6 of 8 heads
    fine = (6 * (0.2 - inner) / 0.2 + 2 * 0.5 / 0.6) / 8
    assert fine < coarse
    assert (fine > 0.8 * coarse) is is_near
    found, silhouette = clusters_of(distance)
    assert found.tolist() == labels
    assert silhouette == pytest.approx(fine if is_near else coarse)


def test_heads_that_are_equally_far_from_each_other_are_split_all_the_same() -> None:
    found, silhouette = clusters_of(0.5 * (1 - np.eye(5)))
    assert silhouette == pytest.approx(0)
    assert len(set(found.tolist())) > 1


def test_number_of_clusters_that_is_given() -> None:
    found, silhouette = clusters_of(grouped(TWO_GROUPS), 1)
    assert found.tolist() == [0] * 6
    assert math.isnan(silhouette)
    assert len(set(clusters_of(grouped(TWO_GROUPS), 4)[0].tolist())) == 4


@pytest.mark.parametrize("heads", [1, 2])
def test_too_few_heads_are_one_cluster(heads: int) -> None:
    found, silhouette = clusters_of(0.5 * (1 - np.eye(heads)))
    assert found.tolist() == [0] * heads
    assert math.isnan(silhouette)


# --------------------------------------------------------------------------------------------------------- the result

DRAWN = [
    [0.0, 0.1, 0.4, 0.3],
    [0.1, 0.0, 0.2, 0.6],
    [0.4, 0.2, 0.0, 0.5],
    [0.3, 0.6, 0.5, 0.0],
]  # L0H0, L0H1, L1H0, L1H1


def test_mean_distance_within_and_between_layers() -> None:
    found = made(DRAWN, 2)
    assert found.within_layers == pytest.approx((0.1 + 0.5) / 2)
    assert found.between_layers == pytest.approx((0.4 + 0.3 + 0.2 + 0.6) / 4)


def test_means_that_do_not_exist_are_nan() -> None:
    assert math.isnan(made(DRAWN, 4).between_layers)
    assert math.isnan(made(DRAWN, 1).within_layers)


def test_nearest_heads_in_order_without_the_head_itself() -> None:
    assert made(DRAWN, 2).nearest(0, 1) == [((0, 0), 0.1), ((1, 0), 0.2), ((1, 1), 0.6)]
    assert made(DRAWN, 2).nearest(1, 1, n=1) == [((0, 0), 0.3)]


def test_head_that_is_not_there() -> None:
    with pytest.raises(OutputError, match="4 heads, L0H0 to L1H1, and none of L2H0"):
        made(DRAWN, 2).nearest(2, 0)


def test_frame_has_a_row_for_every_head() -> None:
    frame = made(DRAWN, 2, cluster=[0, 0, 1, 2]).to_frame()
    assert frame["nearest"].tolist() == ["L0H1", "L0H0", "L0H1", "L0H0"]
    assert frame["nearest_distance"].tolist() == [0.1, 0.1, 0.2, 0.3]
    assert frame["cluster"].tolist() == [0, 0, 1, 2]
    assert frame[["x", "y"]].to_numpy().tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_frame_of_distances_is_named() -> None:
    assert made(DRAWN, 2).distance_frame().loc["L1H0", "L0H1"] == 0.2


def test_saved_and_loaded_is_the_same(tmp_path: Path) -> None:
    saved = made(DRAWN, 2, cluster=[0, 0, 1, 2], silhouette=float("nan"))
    saved.save(tmp_path)
    loaded = Similarity.load(tmp_path)
    for name in ("distance", "place", "cluster"):
        assert np.array_equal(getattr(loaded, name), getattr(saved, name))
    assert (loaded.heads, loaded.rows, loaded.inputs, loaded.stress) == (saved.heads, 3, 2, 0.125)
    assert math.isnan(loaded.silhouette)
    assert (tmp_path / "similarity.csv").read_text().splitlines()[1] == "0,0,0,0.0,1.0,L0H1,0.1"


def test_broken_file_is_refused(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    made(DRAWN, 2).save(tmp_path)
    path = tmp_path / "similarity.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["L0H1"]), path)
    with pytest.raises(OutputError, match=r"are whole \(the distances of L0H1 are missing\); run the profile again"):
        Similarity.load(tmp_path)
    with pytest.raises(OutputError, match="is not there; give the folder"):
        Similarity.load(tmp_path / "nowhere")


def test_arrays_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        made(DRAWN, 2).distance[0, 1] = 0


def test_shapes_must_fit() -> None:
    with pytest.raises(OutputError, match=r"place of 4 heads must have the shape \(4, 2\), got \(3, 2\)"):
        made(DRAWN, 2, place=np.zeros((3, 2)))


def test_saved_distances_are_read_without_torch() -> None:
    code = "import sys, headlens.behaviour.similarity; assert not {'torch', 'transformers'} & sys.modules.keys()"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_144_heads_on_2000_rows_take_seconds() -> None:
    probs = np.random.default_rng(0).dirichlet(np.ones(64), size=(200, 144)).astype(np.float32)  # a tenth of them
    sums = module._Sums(12, 144)
    start = time.process_time()
    sums.add(probs)
    assert time.process_time() - start < 1  # measured: .2 s
