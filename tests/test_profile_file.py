"""The folder of a profile: what profile.json must hold, and which files beside it belong to it."""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_annotated import annotated_evidence, annotated_scores
from report_pages import HEADS, LAYERS, PROVENANCE

from headlens.behaviour.similarity import Similarity
from headlens.effects import Ablation, Effect
from headlens.errors import OutputError
from headlens.evidence_table import TESTS
from headlens.examples import Example, Examples
from headlens.results import Profile

READ_AGAIN = ["tests.parquet", "similarity.parquet", "examples.json"]
EFFECT = Effect(0, 2, task="text", intact=3.0, change=0.2, low=0.1, high=0.3, q=0.01, documents=9)


def similarity(*, heads: int = HEADS, distance: float = 0.5) -> Similarity:
    """All heads are as far from each other."""
    n = LAYERS * heads
    return Similarity(
        tuple(divmod(place, heads) for place in range(n)),
        distance=distance * (1 - np.eye(n)),
        place=np.arange(2.0 * n).reshape(n, 2),
        cluster=np.zeros(n, dtype=np.int64),
        rows=10,
        inputs=2,
        stress=0.0,
        silhouette=0.5,
    )


def examples(*, head: int = 1, text_id: str = "text.txt:1") -> Examples:
    shares = ((1, 0, 0.9),)
    return Examples((Example(0, head, text_id, ("a", "dog"), shares, (0.5, 0.1), (), "ltr", strength=0.9, why=""),))


def profile(**changed: Any) -> Profile:
    parts = {"evidence": annotated_evidence(), "similarity": similarity(), "examples": examples()}
    return Profile(annotated_scores(), copy.deepcopy(PROVENANCE), **parts | changed)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return profile().save(tmp_path_factory.mktemp("saved") / "one").parent


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A profile to be damaged."""
    return Path(shutil.copytree(saved, tmp_path / "one"))


def facts_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "profile.json").read_text(encoding="utf-8"))
    return found


def change_facts(folder: Path, path: str, value: object) -> None:
    """The entry at a path such as `corpus.files.0.name`."""
    facts = facts_in(folder)
    *way, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    there: Any = facts
    for key in way:
        there = there[key]
    there[last] = value
    (folder / "profile.json").write_text(json.dumps(facts), encoding="utf-8")


# ---------------------------------------------------------------------------------------------------- files beside it


def test_the_hashes_are_those_of_the_files_that_are_read_again(folder: Path) -> None:
    found = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in READ_AGAIN}
    assert facts_in(folder)["sha256"] == found
    assert "sha256" not in Profile.load(folder).provenance


def test_only_what_is_there_has_a_hash(tmp_path: Path) -> None:
    profile(similarity=None, examples=None).save(tmp_path)
    assert facts_in(tmp_path)["sha256"].keys() == {"tests.parquet"}


def other_run(folder: Path) -> Path:
    """Of another corpus: a profile of the same model that has other numbers."""
    evidence = annotated_evidence()
    evidence = replace(evidence, p=evidence.p / 2)
    other = profile(evidence=evidence, similarity=similarity(distance=0.4), examples=examples(text_id="other.txt:1"))
    return other.save(folder).parent


@pytest.mark.parametrize("name", READ_AGAIN)
def test_a_file_of_another_run_is_named(folder: Path, tmp_path: Path, name: str) -> None:
    shutil.copy(other_run(tmp_path / "other") / name, folder / name)
    with pytest.raises(OutputError) as caught:
        Profile.load(folder)
    assert str(caught.value) == (
        f"{folder / name} is of another run than profile.json beside it, or was changed; run the profile again."
    )


@pytest.mark.parametrize("name", READ_AGAIN)
def test_a_file_that_is_gone_is_named_with_a_way_out(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(OutputError, match=rf"{name} is not there; .*run the profile again\.$"):
        Profile.load(folder)


def test_a_profile_that_was_loaded_is_saved_with_hashes_of_its_own(folder: Path, tmp_path: Path) -> None:
    again = Profile.load(folder).save(tmp_path / "again").parent
    assert Profile.load(again).scores.equals(Profile.load(folder).scores)
    assert facts_in(again)["sha256"].keys() == set(READ_AGAIN)


def test_a_profile_without_hashes_loads_as_those_of_earlier_versions(folder: Path) -> None:
    change_facts(folder, "sha256", None)
    loaded = Profile.load(folder)
    assert (loaded.evidence is None, loaded.similarity is None, len(loaded.examples or ())) == (False, False, 1)


@pytest.mark.parametrize(
    ("name", "larger"),
    [
        ("similarity.parquet", similarity(heads=HEADS + 1)),
        ("examples.json", examples(head=HEADS)),
    ],
)
def test_without_hashes_a_file_of_heads_that_are_not_there_is_named(
    folder: Path, tmp_path: Path, name: str, larger: Similarity | Examples
) -> None:
    change_facts(folder, "sha256", None)
    larger.writers()[name](folder / name)
    with pytest.raises(OutputError, match=rf"{name} is of another run than profile\.json"):
        Profile.load(folder)


def test_without_hashes_evidence_on_another_number_of_heads_is_named(folder: Path) -> None:
    change_facts(folder, "sha256", None)
    whole = annotated_evidence()
    replace(whole, **{name: getattr(whole, name)[:, :, 1:] for name in TESTS}).save(folder)
    with pytest.raises(OutputError, match=r"tests\.parquet is of another run than profile\.json"):
        Profile.load(folder)


# ------------------------------------------------------------------------------------------------------------ entries


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("model", [1, 2], r"model must be an object, got \[1, 2\]"),
        ("model.name", 3, "model.name must be a text, got 3"),
        ("model.layers", True, "model.layers must be a whole number, got True"),
        ("corpus", "x", "corpus must be an object, got 'x'"),
        ("corpus.files", {}, "corpus.files must be a list, got {}"),
        ("corpus.files.0", "a.txt", r"corpus.files\[0\] must be an object, got 'a.txt'"),
        ("corpus.files.0.bytes", 1.5, r"corpus.files\[0\].bytes must be a whole number, got 1.5"),
        ("selfcheck.passed", "yes", "selfcheck.passed must be true or false, got 'yes'"),
        ("selfcheck.line", 3, "selfcheck.line must be a text, got 3"),
        ("selfcheck.laws.0.error", "small", r"selfcheck.laws\[0\].error must be a number, got 'small'"),
        ("notes", [None], r"notes\[0\] must be a text, got None"),
        ("has_evidence", 1, "has_evidence must be true or false, got 1"),
        ("run", 3, "run must be an object, got 3"),
        ("sha256", [], r"sha256 must be an object, got \[\]"),
        ("command", "x" * 500, None),
        ("headlens", {"x": "y" * 500}, r"headlens must be a text, got .{80}\)"),
    ],
)
def test_an_entry_of_another_kind_is_named(folder: Path, path: str, value: object, message: str | None) -> None:
    change_facts(folder, path, value)
    if message is None:
        assert Profile.load(folder).provenance[path] == value
    else:
        with pytest.raises(OutputError, match=rf"profile\.json is not as headlens writes it \({message}"):
            Profile.load(folder)


@pytest.mark.parametrize("path", ["model", "model.name", "corpus.files", "selfcheck.passed", "notes", "seed", "run"])
def test_an_entry_may_be_unknown(folder: Path, path: str) -> None:
    change_facts(folder, path, None)
    assert Profile.load(folder).write_report(folder).exists()


def test_entries_that_are_not_known_are_kept(folder: Path) -> None:
    change_facts(folder, "later", {"any": ["thing"]})
    assert Profile.load(folder).provenance["later"] == {"any": ["thing"]}


@pytest.mark.parametrize("place", [(LAYERS, 0), (0, HEADS), (99, 0)])
def test_an_effect_of_a_head_that_is_not_there_is_named(folder: Path, place: tuple[int, int]) -> None:
    change_facts(folder, "ablation", Ablation((EFFECT,)).to_dict())
    assert Profile.load(folder).heads("L0H2").lines[-1].startswith("without it the loss rises")
    change_facts(folder, "ablation.effects.0.layer", place[0])
    change_facts(folder, "ablation.effects.0.head", place[1])
    with pytest.raises(
        OutputError, match=rf"an effect of L{place[0]}H{place[1]}, and its model has 3 layers of 4 heads"
    ):
        Profile.load(folder)


def test_effects_that_are_not_whole_are_named_with_their_file(folder: Path) -> None:
    change_facts(folder, "ablation", {"effects": [{"layer": 0}]})
    with pytest.raises(OutputError, match=r"profile\.json: An effect must have the entries .*run the profile again\.$"):
        Profile.load(folder)
