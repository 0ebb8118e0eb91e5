"""Similarity on the page: the map of all heads, their distances as a picture, their clusters and what these share."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
from report_annotated import grid, rows_of, section
from report_pages import NAN, at, read, table

from headlens.behaviour.similarity import Similarity
from headlens.report import render_report
from headlens.report.further import further
from headlens.report.matrix import MOST_PIXELS, matrix
from headlens.report.similar import clusters_table, similarity_lines
from headlens.report.themes import themes
from headlens.roles import roles_of
from headlens.scores import ScoreTable

Place = tuple[int, int]

HEADS = ((0, 0), (0, 1), (1, 0), (1, 1))
DISTANCE = np.array([[0, 0.1, 0.6, 0.6], [0.1, 0, 0.6, 0.6], [0.6, 0.6, 0, 0.2], [0.6, 0.6, 0.2, 0]])
PLACE = np.array([[0.0, 0.0], [0.1, 0.0], [0.6, 0.1], [0.6, 0.3]])


def table_of(values: dict[str, dict[Place, float]]) -> ScoreTable:
    return table({name: at(0.01, heads) for name, heads in values.items()}, with_macro=False)


@pytest.fixture(scope="module")
def similarity() -> Similarity:
    """L0H0 and L0H1 alike, L1H0 and L1H1 alike, the pairs far apart."""
    return Similarity(HEADS, DISTANCE, PLACE, np.array([0, 0, 1, 1]), 1234, 20, 0.05, 0.8)


def spread(sizes: list[int], silhouette: float = 0.5) -> Similarity:
    """Clusters of these sizes, of which nothing else matters."""
    n = sum(sizes)
    cluster = np.repeat(np.arange(len(sizes)), sizes)
    distance = np.where(cluster[:, None] == cluster, 0.1, 0.5) * (1 - np.eye(n))
    heads = tuple((0, head) for head in range(n))
    return Similarity(heads, distance, np.zeros((n, 2)), cluster, 10, 1, 0.1, silhouette)


def pixels(svg: str, which: int = 0) -> np.ndarray:
    """Alpha [row, column] of a picture in it, 0..1, read by Pillow."""
    from PIL import Image

    found = re.findall(r'href="data:image/png;base64,([^"]*)"', svg)[which]
    with Image.open(io.BytesIO(base64.b64decode(found))) as image:
        return np.asarray(image.convert("RGBA"))[..., 3] / 255


def test_clusters_have_a_table_and_every_head_a_mark(similarity: Similarity) -> None:
    scores = table_of({"surface.first": {(0, 0): 0.5}})
    part = section(read(render_report(scores, {}, None, similarity)), "Similarity")
    assert [[row[0], row[1], row[2], row[3], row[-1]] for row in rows_of(grid(part, "Clusters of heads"))] == [
        ["a", "2", "0.10", "L0", "L0H0, L0H1"],
        ["b", "2", "0.20", "L1", "L1H0, L1H1"],
    ]
    (picture,) = [svg for svg in part.all("svg") if svg.attributes["class"] == "similar"]
    assert [title.text for title in picture.all("title")] == [
        *("L0H0, cluster a", "L0H1, cluster a", "L1H0, cluster b", "L1H1, cluster b"),
    ]
    assert "Compared on 1,234 rows of attention" in part.text
    assert "of one layer are 0.15 nats apart on average, of different layers 0.60" in part.text


def test_distances_on_the_map_keep_their_proportions(similarity: Similarity) -> None:
    page = read(render_report(table_of({"surface.first": {}}), {}, None, similarity))
    (drawing,) = page.all("svg", class_="similar")
    x = {text.text: float(text.attributes["x"]) for text in drawing.all("text")}
    assert (x["L1H0"] - x["L0H0"]) / (x["L0H1"] - x["L0H0"]) == pytest.approx(6, rel=0.02)


def test_one_head_can_be_drawn() -> None:
    alone = Similarity(((0, 0),), np.zeros((1, 1)), np.zeros((1, 2)), np.array([0]), 5, 1, 0.0, NAN)
    page = read(render_report(table_of({"surface.first": {}}), {}, None, alone))
    assert rows_of(grid(page, "Clusters of heads"))[0][:3] == ["a", "1", "–"]
    assert page.all("svg", class_="matrix") == []  # of one head there is no other to be near
    assert "silhouette" not in section(page, "Similarity").text


def test_a_cluster_is_told_by_the_labels_of_its_heads(similarity: Similarity) -> None:
    scores = table_of({"surface.first": {(0, 0): 0.9, (0, 1): 0.9}, "position.mass[-1]": {(1, 0): 0.9}})
    found = clusters_table(similarity, roles_of(scores))
    (place,) = [place for place, column in enumerate(found.columns) if column.title == "In common"]
    assert [row.cells[place].text for row in found.rows] == ["first token 2", "previous token 1; 1 without a role"]
    assert "In common" not in [column.title for column in clusters_table(similarity).columns]


def test_themes_hand_the_roles_on(similarity: Similarity) -> None:
    scores = table_of({"surface.first": {(0, 0): 0.9}})
    found = themes(scores, None, further({}), {}, similarity, roles_of(scores))
    (theme,) = [theme for theme in found if theme.title == "Similarity"]
    assert theme.table is not None
    assert "In common" in [column.title for column in theme.table.columns]


# -------------------------------------------------------------------------------------------------------------- honesty


@pytest.mark.parametrize(("sizes", "said"), [([9, 3], True), ([8, 4], False), ([71, 1], True), ([12], False)])
def test_one_cluster_with_more_than_two_thirds_of_the_heads_is_said_to_tell_little(
    sizes: list[int], said: bool
) -> None:
    told = " ".join(similarity_lines(spread(sizes)))
    assert ("The clusters say which heads stand apart, and little of the others." in told) is said
    assert (f"Cluster a holds {sizes[0]} of {sum(sizes)} heads" in told) is said


@pytest.mark.parametrize(("silhouette", "weak"), [(0.18, True), (0.24, True), (0.25, False), (0.8, False)])
def test_weak_clusters_are_said_to_be_weak(silhouette: float, weak: bool) -> None:
    told = list(similarity_lines(spread([3, 3], silhouette)))[-1]
    assert told.startswith(f"Mean silhouette of the clusters {f'{silhouette:.2f}'[1:]}")
    assert ("below .25: no more than a way to put heads in order" in told) is weak


# ---------------------------------------------------------------------------------------------------------- the picture


def test_near_heads_are_strong_and_stand_by_cluster_then_layer() -> None:
    """Heads 0 and 2 are of one cluster, 1 and 3 of another, so that their order is 0 2 1 3."""
    order = [0, 2, 1, 3]
    shuffled = DISTANCE[np.ix_(order, order)]  # head 1 of the drawn ones is head 2 here
    mixed = Similarity(HEADS, shuffled, PLACE, np.array([0, 1, 0, 1]), 10, 1, 0.05, 0.8)
    expected = 1 - DISTANCE / 0.6  # the farthest pair is blank
    np.testing.assert_allclose(pixels(matrix(mixed)), expected, atol=0.5 / 31 + 0.5 / 255)  # 32 levels, and bytes


def test_lines_part_the_clusters_and_layers_are_named(similarity: Similarity) -> None:
    drawing = matrix(similarity)
    (image,) = re.findall(r'<image x="(\d+)" y="(\d+)" width="(\d+)" height="\3"', drawing)
    left, top, side = map(float, image)
    borders = re.findall(r'<path class="border" d="([^"]*)"', drawing)[0]
    inner = [tuple(map(float, place)) for place in re.findall(r"M([\d.]+) ([\d.]+)[vh]", borders)[1:]]
    assert inner == [(left + side / 2, top), (left, top + side / 2)]
    texts = re.findall(r'<text class="(\w+)" x="([\d.]+)" y="([\d.]+)">(\w+)</text>', drawing)
    across = {words: float(x) for kind, x, y, words in texts if kind == "cluster" and float(y) < top}
    assert across == {"a": left + side / 4, "b": left + side * 3 / 4}
    layers = {words: float(y) for kind, _, y, words in texts if kind == "layer"}
    assert layers == pytest.approx({"L0": top + side / 4 + 3.5, "L1": top + side * 3 / 4 + 3.5})


def test_the_picture_is_told_in_words(similarity: Similarity) -> None:
    assert (
        'aria-label="Distances of 4 heads to each other, the nearer the stronger, by cluster and then by layer. '
        'Mean distance within clusters 0.15 nats, between clusters 0.60 nats."'
    ) in matrix(similarity)


def test_heads_that_are_all_alike_are_all_near() -> None:
    alike = Similarity(HEADS, np.zeros((4, 4)), np.zeros((4, 2)), np.zeros(4, dtype=np.int64), 10, 1, 0.0, NAN)
    assert (pixels(matrix(alike)) == 1).all()


def test_the_bar_below_goes_from_alike_to_the_farthest(similarity: Similarity) -> None:
    drawing = matrix(similarity)
    bar = pixels(drawing, 1)[0]
    assert (bar[0], bar[-1]) == (1, 0)
    assert (np.diff(bar) < 0).all()
    assert "0 nats, alike" in drawing
    assert "0.60, farthest" in drawing


def test_many_heads_share_pixels_and_keep_the_page_small() -> None:
    n = 3 * MOST_PIXELS
    cluster = np.repeat([0, 1], [n // 3, 2 * n // 3])
    distance = np.where(cluster[:, None] == cluster, 0.0, 0.5)
    heads = tuple(divmod(head, 40) for head in range(n))
    drawing = matrix(Similarity(heads, distance, np.zeros((n, 2)), cluster, 10, 1, 0.1, 0.5))
    found = pixels(drawing)
    assert found.shape == (MOST_PIXELS, MOST_PIXELS)
    border = MOST_PIXELS // 3
    assert found[border - 5, border - 5] == found[border + 5, border + 5] == 1
    assert found[border - 5, border + 5] == found[border + 5, border - 5] == 0
    noise = np.random.default_rng(0).random((n, n))
    noisy = matrix(Similarity(heads, noise + noise.T, np.zeros((n, 2)), cluster, 10, 1, 0.1, 0.5))
    assert len(noisy) < 300_000
