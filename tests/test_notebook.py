"""What a profile shows in a notebook: the page in a frame, one head in words, one head on one's own text."""

from __future__ import annotations

from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_pages import PROVENANCE, planted

from headlens import Profile, load_model, profile
from headlens.effects import Ablation, Effect
from headlens.errors import CorpusError, OutputError


@pytest.fixture(scope="module")
def drawn() -> Profile:
    """3 x 4 heads; L0H2 attends to the previous token, L1H0 to that and broadly."""
    effect = Effect(0, 2, "text", intact=3.2, change=0.03, low=0.02, high=0.04, q=0.001, documents=9, p=0.0005)
    return Profile(planted(), {**PROVENANCE, "ablation": Ablation((effect,)).to_dict()})


@pytest.fixture(scope="module")
def made() -> Profile:
    texts = "The dog sees the cat. The cat sleeps."
    return profile("tiny-gpt2", [_document(texts)], parts={"examples"})


def _document(text: str) -> Any:
    from headlens import texts

    return texts([text])[0]


def test_the_report_is_framed_whole_and_cannot_leave_its_frame(drawn: Profile) -> None:
    page = drawn.report()
    assert page.html.lstrip().startswith("<!doctype html>")
    framed = page._repr_html_()
    attribute = framed.partition('srcdoc="')[2].partition('"')[0]
    assert unescape(attribute) == page.html
    assert "<" not in attribute
    assert "in a notebook" in repr(page)


def test_a_head_tells_its_roles_with_their_evidence(drawn: Profile) -> None:
    head = drawn.heads("L1H0")
    assert [one.role.id for one in head.roles] == ["previous_token", "broad"]
    assert repr(head).splitlines() == [
        "L1H0",
        "- previous token (firm): attends to the previous token: .71 [.69, .72] of its mass on average (chance .05)",
        "- broad (firm): attends broadly: .90 [.88, .92] of the entropy of uniform attention",
    ]


def test_a_head_says_used_only_where_taking_it_out_did_harm(drawn: Profile) -> None:
    assert drawn.heads("L0H2").lines[-1].endswith("the model uses it")
    assert "uses" not in repr(drawn.heads("L1H0"))
    assert drawn.heads("L0H0").lines == ["no role"]


def test_after_a_failed_self_check_a_head_has_no_role(drawn: Profile) -> None:
    failed = Profile(drawn.scores, {**PROVENANCE, "selfcheck": {"passed": False, "line": "L1 differs"}})
    assert failed.heads("L1H0").roles == ()


def test_scores_of_a_head_are_those_of_the_table(drawn: Profile) -> None:
    frame = drawn.heads("L2H1").scores.set_index("metric")
    assert list(frame.index) == list(drawn.scores.names)
    np.testing.assert_array_equal(frame["value"], drawn.scores.values[:, 2, 1])


@pytest.mark.parametrize("name", ["L3H0", "L0H4", "7.9", ""])
def test_a_head_that_is_not_there_is_refused(drawn: Profile, name: str) -> None:
    with pytest.raises(OutputError):
        drawn.heads(name)


def test_a_head_is_shown_on_ones_own_text(made: Profile) -> None:
    shown = made.heads("L0H4").show("The dog sees the cat.")
    assert shown.example.words == ("The", "dog", "sees", "the", "cat", ".")
    assert shown.title == "L0H4 of tiny-gpt2"
    assert "sees" in repr(shown)
    assert "srcdoc" in shown._repr_html_()


def test_a_profile_from_a_folder_asks_for_the_model(made: Profile, tmp_path: Path) -> None:
    made.save(tmp_path)
    loaded = Profile.load(tmp_path)
    assert loaded.examples is not None
    assert loaded.examples.to_dict() == made.examples.to_dict()
    with pytest.raises(OutputError, match=r"pass model=headlens.load_model\('tiny-gpt2'\)"):
        loaded.heads("L0H4").show("The dog sees the cat.")
    shown = loaded.heads("L0H4").show("The dog sees the cat.", model=load_model("tiny-gpt2", check=False))
    assert shown.example == made.heads("L0H4").show("The dog sees the cat.").example


@pytest.mark.parametrize("text", ["", "Word", "the " * 300])
def test_a_text_that_cannot_be_shown_is_refused(made: Profile, text: str) -> None:
    with pytest.raises(CorpusError):
        made.heads("L0H0").show(text)


def test_what_is_saved_has_its_roles_figures_and_examples(made: Profile, tmp_path: Path) -> None:
    made.save(tmp_path)
    there = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert {"roles.json", "examples.json", "figures/role-map.svg", "figures/role-map.png", "report.html"} <= there
    (tmp_path / "figures" / "heat-of-old.svg").write_text("")
    (tmp_path / "figures" / "mine.svg").write_text("")
    before = (tmp_path / "report.html").read_bytes()
    Profile.load(tmp_path).write_report(tmp_path)
    assert (tmp_path / "report.html").read_bytes() == before
    assert (tmp_path / "figures" / "mine.svg").exists()
    assert not (tmp_path / "figures" / "heat-of-old.svg").exists()
    Profile(made.scores, made.provenance).save(tmp_path)
    assert not (tmp_path / "examples.json").exists()
