"""What is told of a checkpoint that came out of surgery: read from its manifest, on the page and in a comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from compared import PROVENANCE, after, before
from report_pages import PROVENANCE as PAGE_PROVENANCE
from report_pages import cells, planted, read

from headlens.checkpoints import speaks_grammar
from headlens.comparison import compare
from headlens.errors import OutputError
from headlens.manifest import first_source, read_manifest, source_of, surgery_facts
from headlens.report.compare import render_comparison
from headlens.report.compare_words import notices
from headlens.report.html import render_report
from headlens.report.surgery import surgery_lines, surgery_sentence, surgery_table


def arm(name: str, heads: int, distortion: float, accuracy: float, draw: int | None = None) -> dict[str, Any]:
    figures = [{"metric": "accuracy", "value": accuracy}, {"metric": "accuracy of the rest", "value": 0.0}]
    tasks = [{"task": "pairs", "figures": figures}]
    return {"name": name, "draw": draw, "heads": heads, "distortion": distortion, "tasks": tasks, "removed": ["L0H0"]}


MANIFEST: dict[str, Any] = {
    "schema": "headlens.pruned/1",
    "source": {"name": "Tiny", "weights_sha256": "c0ffee"},
    "method": {"ranked_by": "greedy", "objective": "kl", "fill": "mean", "repair": False, "order": ["L0H0"]},
    "measured": {"parameters": {"before": 1000, "after": 750}, "pairs: accuracy": {"before": 0.9, "after": 0.85}},
    "speed": [{"workload": "prefill", "ratio": 1.25, "low": 1.2, "high": 1.3}],
    "arms": [
        arm("pruned", 5, 0.02, 0.85),
        arm("original", 6, 0.0, 0.9),
        arm("random", 5, 0.3, 0.7, 0),
        arm("random", 5, 0.5, 0.6, 1),
        arm("no heads", 0, 2.0, 0.5),
    ],
}


def after_surgery(**changed: Any) -> dict[str, Any]:
    facts = surgery_facts(MANIFEST) | changed
    model = {"name": "small", "dtype": "float32", "layers": 2, "heads": 3, "heads_kept": 5, "surgery": facts}
    return {**PROVENANCE, "model": model}


def folder_of(place: Path, source: object) -> Path:
    place.mkdir(parents=True)
    text = json.dumps({**MANIFEST, "source": source})
    (place / "headlens.json").write_text(text, encoding="utf-8")
    return place


def test_what_is_kept_of_a_manifest() -> None:
    facts = surgery_facts(MANIFEST)
    assert facts["kind"] == "pruned"
    assert facts["method"] == {"ranked_by": "greedy", "objective": "kl", "fill": "mean", "repair": False}
    pruned = {"name": "pruned", "draw": None, "heads": 5, "distortion": 0.02, "tasks": {"pairs: accuracy": 0.85}}
    assert facts["arms"][0] == pruned
    assert facts["source"]["name"] == "Tiny"


def test_the_first_source_is_found_through_several_surgeries(tmp_path: Path) -> None:
    first = folder_of(tmp_path / "first", {"name": "tiny-gpt2"})
    second = folder_of(tmp_path / "second", {"name": str(first)})
    assert first_source(str(second)) == "tiny-gpt2"
    assert speaks_grammar(str(second))
    assert not speaks_grammar(str(folder_of(tmp_path / "other", {"name": "minilm"})))


@pytest.mark.parametrize("source", [None, {}, {"name": ""}, {"name": 3}, ["tiny-gpt2"]])
def test_a_manifest_that_tells_no_source(source: object, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "here", source)
    assert source_of(read_manifest(folder)) is None
    assert first_source(str(folder)) == str(folder)


def test_a_circle_of_sources_ends(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    folder_of(one, {"name": str(other)})
    folder_of(other, {"name": str(one)})
    assert first_source(str(one)) == str(one)


def test_another_tools_file_of_that_name_ends_the_search(tmp_path: Path) -> None:
    (tmp_path / "headlens.json").write_text("{}")
    assert first_source(str(tmp_path)) == str(tmp_path)
    with pytest.raises(OutputError, match="no manifest"):
        read_manifest(tmp_path)


def test_the_sentence_of_a_surgery() -> None:
    words = "Tiny without 1 of its 6 heads (chosen by greedy; their mean outputs kept in the bias)"
    assert surgery_sentence(after_surgery()) == words
    assert surgery_sentence(PROVENANCE) == ""


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"kind": "masked"}, "Tiny with heads set to 0; nothing in it is smaller ("),
        ({"method": {"ranked_by": "by hand", "fill": "zero"}}, "heads (chosen by hand; nothing in their place)"),
        ({"method": {"repair": True}}, "heads (output projections refitted)"),
        ({"method": None, "source": None}, "another model without 1 of its 6 heads"),
    ],
)
def test_other_surgeries(changed: dict[str, Any], words: str) -> None:
    assert words in surgery_sentence(after_surgery(**changed))


def test_random_draws_are_one_row_with_their_reach() -> None:
    table = surgery_table(after_surgery())
    assert table is not None
    rows = {row.cells[0].text: [(cell.text, cell.note) for cell in row.cells[1:]] for row in table.rows}
    assert rows == {
        "the original": [("6", ""), ("0.0000", ""), ("0.9000", "")],
        "pruned": [("5", ""), ("0.0200", ""), ("0.8500", "")],
        "random heads, of any layer": [("5", ""), ("0.4000", "0.3000 to 0.5000"), ("0.6500", "0.6000 to 0.7000")],
        "no heads at all": [("0", ""), ("2.0000", ""), ("0.5000", "")],
    }


def test_sizes_and_speed_are_told_and_scores_are_in_the_table_only() -> None:
    assert list(surgery_lines(after_surgery())) == [
        "Parameters: 750; 1,000 in the original (.75 of it).",
        "Speed, prefill: 1.25 times that of the original (quartiles of paired runs 1.20 to 1.30).",
    ]


@pytest.mark.parametrize("broken", [{}, {"arms": "no"}, {"arms": [3]}, {"measured": [1], "speed": [None]}])
def test_a_manifest_with_less_in_it_gives_less(broken: dict[str, Any]) -> None:
    facts = surgery_facts({"schema": "headlens.pruned/1", **broken})
    provenance = {"model": {"name": "small", "surgery": facts}}
    assert surgery_table(provenance) is None
    assert list(surgery_lines(provenance)) == []
    assert surgery_sentence(provenance) == "another model pruned"


def test_the_page_of_a_pruned_model_has_its_cost() -> None:
    provenance = {**PAGE_PROVENANCE, "model": {**PAGE_PROVENANCE["model"], **after_surgery()["model"]}}
    page = render_report(planted(), provenance)
    assert "pruned from Tiny" in page
    assert "The model is Tiny without 1 of its 6 heads" in page
    assert "Speed, prefill: 1.25 times" in page
    assert "Surgery</h2>" not in render_report(planted(), PAGE_PROVENANCE)
    assert "Surgery</h2>" in page


def test_a_comparison_with_the_model_it_came_from_tells_so_and_what_it_cost() -> None:
    pair = compare([before(), after(provenance=after_surgery())], ["whole", "small"]).pairs[0]
    (told,) = [line for line in notices(pair) if "surgery" in line]
    assert told.startswith("small came out of surgery on whole: Tiny without 1 of its 6 heads (")
    assert not any("Not the same model" in line for line in notices(pair))
    page = render_comparison(compare([before(), after(provenance=after_surgery())], ["whole", "small"]))
    rows = [cells(row) for row in read(page).one("table", class_="surgery").all("tr")]
    assert ["random heads, of any layer2 draws", "5", "0.40000.3000 to 0.5000", "0.65000.6000 to 0.7000"] in rows


@pytest.mark.parametrize(
    "source", [{"name": "Another"}, {"name": "Tiny", "weights_sha256": "other"}, None], ids=["name", "weights", "none"]
)
def test_a_surgery_on_another_model_is_not_the_difference(source: object) -> None:
    whole = {**PROVENANCE, "model": {**PROVENANCE["model"], "weights_sha256": "c0ffee"}}
    sides = [before(provenance=whole), after(provenance=after_surgery(source=source))]
    pair = compare(sides, ["whole", "small"]).pairs[0]
    assert any("Not the same model" in line for line in notices(pair))
    assert "What surgery cost" not in render_comparison(compare(sides, ["whole", "small"]))
