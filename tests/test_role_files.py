"""The head-roles file says what it says it does, refuses what is broken, and exports read back in other tools."""

from __future__ import annotations

import copy
import csv
import json
import math
import re
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pandas as pd
import pytest
from report_annotated import evidence_of, known
from report_pages import PROVENANCE

from headlens.effects import Ablation, Effect
from headlens.errors import OutputError
from headlens.evidence_table import ABOVE, Evidence
from headlens.exports import bertviz_arrays, export
from headlens.role_files import (
    RoleFile,
)
from headlens.roles.role import HeadRole, Role
from headlens.roles.table import Roles
from headlens.scores import Metric, ScoreTable

DOCS = Path(__file__).parents[1] / "docs"
NAN = math.nan

PREVIOUS = Role("previous_token", "P", "previous token", "position", 10, "over .50 of its mass", "Clark et al. 2019")
SYNTAX = Role("syntax", "Y", "other syntax", "syntax", 4, "above every baseline", "the evidence")
METRICS = (
    Metric("position.mass[-1]", "Mass on the previous token", "m", "share"),
    Metric("surface.entropy", "=Entropy", "m", "nats"),
)
FACTS: dict[str, Any] = {
    **PROVENANCE,
    "model": {
        **PROVENANCE["model"],
        "class": "BertModel",
        "family": "bert",
        "revision": "abc",
        "weights_sha256": "0f",
        "is_causal": False,
    },
    "corpus": {
        "files": [{"kind": "text", "name": "text.txt", "sha256": "ab12", "bytes": 9}],
        "unit": "line",
        "limit": 5,
        "documents": 3,
        "tokens": 10158,
    },
}


@dataclass(frozen=True)
class Parts:
    scores: ScoreTable
    roles: Roles
    provenance: dict[str, Any]
    evidence: Evidence | None = None


@dataclass(frozen=True)
class Text:
    text: str
    tokens: list[str]
    probs: np.ndarray | None


def scores() -> ScoreTable:
    """1 x 3 heads, of which the last is absent."""
    values = np.array([[[0.9, 0.2, NAN]], [[1.25, -2.0, NAN]]])
    support = np.array([[[10.0, 10, 0]], [[10, 10, 0]]])
    return ScoreTable(METRICS, values, support, values - 0.125, values + 0.125, np.array([0.05, NAN]))


def held(role: Role, head: int, *, value: float = 0.9, is_firm: bool = True, q: float = 0.01) -> HeadRole:
    return HeadRole(
        role,
        layer=0,
        head=head,
        metric="position.mass[-1]",
        value=value,
        low=value - 0.1,
        high=value + 0.1,
        chance=0.05,
        null=0.1,
        null_name="chance",
        excess=3.0,
        q=q,
        support=10.0,
        is_firm=is_firm,
        sentence=f"-attends: {value}",
    )


def roles() -> Roles:
    firm_and_tentative = (held(SYNTAX, 0, is_firm=False), held(PREVIOUS, 0, q=NAN), held(SYNTAX, 1, value=0.2))
    return Roles(1, 3, (SYNTAX, PREVIOUS), firm_and_tentative)


def parts(**provenance: Any) -> Parts:
    return Parts(scores(), roles(), {**FACTS, **provenance})


def written(folder: Path, profile: Parts | None = None) -> dict[str, Any]:
    path = RoleFile.of(profile or parts()).save(folder)
    assert path == folder / "roles.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


# ------------------------------------------------------------------------------------------------------------- the file


def test_the_file_has_the_facts_of_the_profile(tmp_path: Path) -> None:
    found = written(tmp_path)
    assert found["schema"] == "headlens.roles/1"
    assert (found["headlens"], found["created"]) == ("0.1.0", "2026-11-30T10:12:00+00:00")
    assert found["model"] == {
        "name": "Tiny",
        "layers": 1,  # of the table, whatever the model says of itself
        "heads": 3,
        "kv_heads": 2,
        "architecture": "BertModel",
        "family": "bert",
        "revision": "abc",
        "weights_sha256": "0f",
        "is_causal": False,
    }
    assert found["corpus"] == {
        "files": [
            {
                "name": "text.txt",
                "kind": "text",
                "sha256": "ab12",
                "bytes": 9,
                "revision": None,
                "sentences": None,
                "seed": None,
            }
        ],
        "unit": "line",
        "limit": 5,
        "documents": 3,
        "tokens": 10158,
    }
    assert found["selfcheck"] == {"passed": True, "line": "all 12 heads recomputed"}
    assert found["withheld"] is None
    assert [role["id"] for role in found["catalogue"]] == ["syntax", "previous_token"]
    assert found["catalogue"][1] == {
        "id": "previous_token",
        "letter": "P",
        "title": "previous token",
        "kind": "position",
        "takes": "over .50 of its mass",
        "source": "Clark et al. 2019",
    }


def test_every_head_has_its_roles_label_first_and_nan_is_null(tmp_path: Path) -> None:
    heads = written(tmp_path)["heads"]
    assert [(head["layer"], head["head"], head["is_present"]) for head in heads] == [
        (0, 0, True),
        (0, 1, True),
        (0, 2, False),
    ]
    of_first = [(role["id"], role["strength"], role["is_label"]) for role in heads[0]["roles"]]
    assert of_first == [("previous_token", "firm", True), ("syntax", "tentative", False)]
    assert heads[0]["roles"][0] == {
        "id": "previous_token",
        "strength": "firm",
        "is_label": True,
        "metric": "position.mass[-1]",
        "value": 0.9,
        "low": 0.8,
        "high": 1.0,
        "chance": 0.05,
        "null": 0.1,
        "null_name": "chance",
        "q": None,
        "support": 10.0,
        "sentence": "-attends: 0.9",
        "informed": None,
        "informed_name": "",
    }
    assert heads[2] == {"layer": 0, "head": 2, "is_present": False, "roles": [], "effect": None}


def test_a_tentative_role_is_the_label_where_there_is_no_other(tmp_path: Path) -> None:
    alone = Roles(1, 3, (SYNTAX,), (held(SYNTAX, 1, is_firm=False),))
    found = written(tmp_path, Parts(scores(), alone, FACTS))
    assert [(one["strength"], one["is_label"]) for one in found["heads"][1]["roles"]] == [("tentative", True)]


def test_what_taking_a_head_out_does_stands_with_the_head(tmp_path: Path) -> None:
    used = Effect(0, 1, "text", intact=3.21, change=0.031, low=0.025, high=0.038, q=0.004, documents=40)
    moved = Effect(0, 0, "output", intact=NAN, change=0.01, low=NAN, high=NAN, q=NAN, documents=1)
    profile = parts(ablation=Ablation((used, moved)).to_dict())
    heads = written(tmp_path, profile)["heads"]
    assert heads[1]["effect"] == {
        "task": "text",
        "intact": 3.21,
        "change": 0.031,
        "low": 0.025,
        "high": 0.038,
        "q": 0.004,
        "documents": 40,
        "is_used": True,
        "sentence": "without it the loss rises by .031 [.025, .038] nats a token (from 3.21): the model uses it",
    }
    assert (heads[0]["effect"]["intact"], heads[0]["effect"]["low"], heads[0]["effect"]["is_used"]) == (
        None,
        None,
        False,
    )
    assert RoleFile.load(tmp_path).to_dict() == RoleFile.of(profile).to_dict()


def test_after_a_failed_self_check_roles_are_withheld(tmp_path: Path) -> None:
    found = written(tmp_path, parts(selfcheck={"passed": False, "line": "rows do not sum to one"}))
    assert found["withheld"] == (
        "The self-check of the model failed, so no score of it can be trusted: rows do not sum to one."
    )
    assert [head["roles"] for head in found["heads"]] == [[], [], []]
    assert len(found["catalogue"]) == 2
    assert RoleFile.load(tmp_path).withheld == found["withheld"]


def test_provenance_may_say_nothing(tmp_path: Path) -> None:
    found = written(tmp_path, Parts(scores(), roles(), {}))
    assert (found["model"]["name"], found["model"]["revision"], found["corpus"]["files"]) == ("", None, [])
    assert found["selfcheck"] == {"passed": None, "line": None}
    assert len(found["heads"][0]["roles"]) == 2
    assert RoleFile.load(tmp_path).created is None


def test_a_line_is_a_head(tmp_path: Path) -> None:
    written(tmp_path)
    lines = (tmp_path / "roles.json").read_text(encoding="utf-8").splitlines()
    heads = [line for line in lines if line.startswith('  {"layer"')]
    assert [json.loads(line.rstrip(","))["head"] for line in heads] == [0, 1, 2]


def test_a_loaded_file_answers(tmp_path: Path) -> None:
    written(tmp_path)
    found = RoleFile.load(tmp_path / "roles.json")
    assert found.with_role("syntax") == [(0, 0), (0, 1)]
    assert found.with_role("syntax", firm_only=True) == [(0, 1)]
    assert math.isnan(found.of_head(0, 0).roles[0].q)
    assert found.of_head(0, 1).name == "L0H1"
    with pytest.raises(OutputError, match=r"does not know the role 'cls'; it knows syntax, previous_token\."):
        found.with_role("cls")
    with pytest.raises(OutputError, match=r"1 layer of 3 heads, no L1H0\."):
        found.of_head(1, 0)


def test_a_file_of_before_informed_rules_were_told_still_loads(tmp_path: Path) -> None:
    found = written(tmp_path)
    for head in found["heads"]:
        for role in head["roles"]:
            del role["informed"], role["informed_name"]
    (tmp_path / "roles.json").write_text(json.dumps(found), encoding="utf-8")
    (role, _) = RoleFile.load(tmp_path).of_head(0, 0).roles
    assert math.isnan(role.informed)
    assert role.informed_name == ""


def test_further_fields_and_roles_are_passed_over(tmp_path: Path) -> None:
    found = written(tmp_path)
    before = RoleFile.load(tmp_path)
    found["novel"] = found["model"]["novel"] = found["heads"][0]["roles"][0]["novel"] = {"a": [1]}
    (tmp_path / "roles.json").write_text(json.dumps(found), encoding="utf-8")
    assert RoleFile.load(tmp_path).to_dict() == before.to_dict()


def change(path: str, value: Any) -> Any:
    """A function that puts a value at a path such as heads.0.layer, or takes the entry away (...)."""

    def apply(found: dict[str, Any]) -> None:
        *way, last = [int(step) if step.isdigit() else step for step in path.split(".")]
        place: Any = found
        for step in way:
            place = place[step]
        if value is ...:
            del place[last]
        else:
            place[last] = value

    return apply


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("schema", "headlens.roles/2", "has the schema 'headlens.roles/2', this headlens reads 'headlens.roles/1'"),
        ("schema", ..., "has the schema None"),
        ("withheld", ..., "withheld is missing"),
        ("model.layers", ..., "model.layers is missing"),
        ("heads.1.roles.0.q", ..., r"heads\[1\].roles\[0\].q is missing"),
        ("heads.1.effect", ..., r"heads\[1\].effect is missing"),
        ("heads.0.layer", 1, "L1H0 is no head of a model of 1 layer of 3 heads"),
        ("heads.2.head", 3, "L0H3 is no head of a model of 1 layer of 3 heads"),
        ("heads.2.head", -1, "L0H-1 is no head"),
        ("heads.2.head", 1, "every head of 1 layer of 3 heads must be there once, got 3 entries"),
        ("heads.2", ..., "every head of 1 layer of 3 heads must be there once, got 2 entries"),
        ("model.heads", 0, "at least one layer and one head, got 1 and 0"),
        ("model.heads", 10**9, "every head of 1 layer of 1,000,000,000 heads must be there once"),
        ("model.heads", 3.0, "model.heads must be a whole number, got 3.0"),
        ("model.heads", True, "model.heads must be a whole number, got True"),
        ("model", [], r"model must be an object, got \[\]"),
        ("heads", {}, "heads must be a list, got {}"),
        ("heads.0.is_present", 1, r"heads\[0\].is_present must be true or false, got 1"),
        ("heads.0.roles.0.value", "0.9", r"heads\[0\].roles\[0\].value must be a number or null, got '0.9'"),
        ("heads.0.roles.0.strength", "weak", "strength must be 'firm' or 'tentative', got 'weak'"),
        ("heads.0.roles.0.strength", [], r"strength must be 'firm' or 'tentative', got \[\]"),
        ("heads.0.roles.0.id", "novel", "L0H0 has the role 'novel', which the catalogue does not have"),
        ("heads.0.roles.0.is_label", False, "the first role of L0H0, and no other one, must be its label"),
        ("heads.0.roles.1.is_label", True, "the first role of L0H0, and no other one, must be its label"),
        ("withheld", "because", "roles are withheld, and still L0H0 has some"),
        ("selfcheck.passed", "yes", "selfcheck.passed must be true or false, got 'yes'"),
        ("corpus.files.0", None, r"corpus.files\[0\] must be an object, got None"),
    ],
)
def test_what_is_broken_is_refused_in_one_sentence(tmp_path: Path, path: str, value: Any, message: str) -> None:
    found = written(tmp_path)
    change(path, value)(found)
    (tmp_path / "roles.json").write_text(json.dumps(found), encoding="utf-8")
    with pytest.raises(OutputError, match=message) as caught:
        RoleFile.load(tmp_path)
    text = str(caught.value)
    assert text.startswith(str(tmp_path / "roles.json"))
    assert text.endswith("; export the profile again.")
    assert "\n" not in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "has the schema None"),
        ("null", "has the schema None"),
        ('{"schema": NaN}', "NaN is no number of JSON"),
        ("[" * 100_000, "cannot be read"),
        ('{"schema": "headlens.roles/1"}', "headlens is missing"),
    ],
)
def test_what_is_no_such_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(OutputError, match=message):
        RoleFile.load(path)


def test_an_endless_number_is_refused(tmp_path: Path) -> None:
    written(tmp_path)
    path = tmp_path / "roles.json"
    text = path.read_text(encoding="utf-8")
    assert '"support": 10.0' in text
    path.write_text(text.replace('"support": 10.0', '"support": 1e999', 1), encoding="utf-8")
    with pytest.raises(OutputError, match="support must be a number or null, got inf"):
        RoleFile.load(path)


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"roles\.json is not there; give a roles\.json, or the folder that holds it"):
        RoleFile.load(tmp_path)
    (tmp_path / "roles.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(OutputError, match="cannot be read"):
        RoleFile.load(tmp_path)


def test_a_name_that_no_file_can_hold_is_written_all_the_same(tmp_path: Path) -> None:
    profile = parts(model={**FACTS["model"], "name": "a\udcff"})
    RoleFile.of(profile).save(tmp_path)
    assert RoleFile.load(tmp_path).model.name == "a?"


# ---------------------------------------------------------------------------------------------- the schema and the docs


def test_schema_and_file_have_the_same_fields() -> None:
    schema = json.loads((DOCS / "roles.schema.json").read_text(encoding="utf-8"))
    described = fields_of_schema(schema)
    assert described - {("", "schema")} == fields_of_class(RoleFile, "")
    of_later = {("/heads/roles", "informed"), ("/heads/roles", "informed_name")}
    assert required_of_schema(schema) == described - of_later


def test_what_is_written_follows_the_schema(tmp_path: Path) -> None:
    schema = json.loads((DOCS / "roles.schema.json").read_text(encoding="utf-8"))
    effect = Effect(0, 1, "text", intact=3.0, change=0.1, low=0.05, high=0.2, q=0.01, documents=4)
    assert complaints(written(tmp_path, parts(ablation=Ablation((effect,)).to_dict())), schema) == []
    assert complaints(written(tmp_path, Parts(scores(), roles(), {})), schema) == []


def test_what_a_reader_refuses_the_schema_refuses(tmp_path: Path) -> None:
    schema = json.loads((DOCS / "roles.schema.json").read_text(encoding="utf-8"))
    found = written(tmp_path)
    for path, value in (("heads.0.roles.0.strength", "weak"), ("heads.0.head", -1), ("model.layers", "1")):
        broken = copy.deepcopy(found)
        change(path, value)(broken)
        assert len(complaints(broken, schema)) == 1


def test_the_docs_name_every_field() -> None:
    text = (DOCS / "roles-file.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", text))
    assert {name for _, name in fields_of_class(RoleFile, "")} <= named


def test_the_example_of_the_docs_is_one_and_its_readers_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / "roles-file.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```json\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    plain, ours, *_ = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "roles.json").write_text(example, encoding="utf-8")
    schema = json.loads((DOCS / "roles.schema.json").read_text(encoding="utf-8"))
    assert complaints(json.loads(example), schema) == []
    assert RoleFile.load(tmp_path).to_dict() == json.loads(example)
    assert RoleFile.load(tmp_path).writers()["roles.json"](tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text(encoding="utf-8") == example
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(plain, "plain", "exec"), names)
    assert names["firm"] == {"previous_token": {(0, 0)}}
    exec(compile(ours, "ours", "exec"), names)
    assert names["roles"].with_role("previous_token", firm_only=True) == [(0, 0)]


# ------------------------------------------------------------------------------------------------------------- exports


def with_evidence() -> Parts:
    row = known("syntax.dep_to_head[obj]", (0, 1), 0.6, ABOVE, offset=("-1", 0.4), pos=("=1+1", 0.5))
    return Parts(scores(), roles(), FACTS, evidence_of([row], []))


def read_table(path: Path) -> pd.DataFrame:
    if path.suffix == ".csv":
        return pd.read_csv(path)
    return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_json(path, orient="split")


@pytest.mark.parametrize("ending", ["parquet", "csv", "json"])
def test_the_table_of_scores_reads_back(tmp_path: Path, ending: str) -> None:
    assert export(parts(), tmp_path, [ending]) == [tmp_path / f"head-{name}.{ending}" for name in ("scores", "roles")]
    table = read_table(tmp_path / f"head-scores.{ending}")
    assert list(table.columns) == "metric title unit layer head value support low high chance".split()
    assert len(table) == 6
    first, last = table.iloc[0], table.iloc[5]
    assert first.drop("title").to_list() == ["position.mass[-1]", "share", 0, 0, 0.9, 10, 0.775, 1.025, 0.05]
    assert first["title"] == "Mass on the previous token"
    assert (last["metric"], last["unit"], last["head"]) == ("surface.entropy", "nats", 2)
    assert last["title"] == ("'=Entropy" if ending == "csv" else "=Entropy")
    assert pd.isna(last[["value", "low", "high", "chance"]]).all()


@pytest.mark.parametrize("ending", ["parquet", "csv", "json"])
def test_the_table_of_roles_reads_back(tmp_path: Path, ending: str) -> None:
    export(parts(), tmp_path, [ending])
    table = read_table(tmp_path / f"head-roles.{ending}")
    assert table["role"].to_list() == ["previous_token", "syntax", "syntax"]
    assert table["title"].to_list() == ["previous token", "other syntax", "other syntax"]
    assert table["is_label"].to_list() == [True, False, True]
    assert table["value"].to_list() == [0.9, 0.9, 0.2]
    assert table["sentence"][0] == ("'-attends: 0.9" if ending == "csv" else "-attends: 0.9")
    assert pd.isna(table["q"][0])


@pytest.mark.parametrize("ending", ["parquet", "csv", "json"])
def test_evidence_has_a_table_where_there_is_some(tmp_path: Path, ending: str) -> None:
    export(with_evidence(), tmp_path, [ending])
    table = read_table(tmp_path / f"head-evidence.{ending}")
    assert table["metric"].to_list() == ["syntax.dep_to_head[obj]"]
    assert table["held_out"][0] == pytest.approx(0.6)
    assert table["part of speech.option"][0] == ("'=1+1" if ending == "csv" else "=1+1")
    assert str(table["constant offset.option"][0]) == "-1"
    export(parts(), tmp_path, [ending])
    assert not (tmp_path / f"head-evidence.{ending}").exists()
    assert (tmp_path / f"head-scores.{ending}").exists()


def test_json_tables_are_json(tmp_path: Path) -> None:
    export(with_evidence(), tmp_path, ["json"])
    for name in ("scores", "roles", "evidence"):
        text = (tmp_path / f"head-{name}.json").read_text(encoding="utf-8")
        table = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        assert all(len(row) == len(table["columns"]) for row in table["data"])
    scores_table = json.loads((tmp_path / "head-scores.json").read_text(encoding="utf-8"))
    assert scores_table["data"][2][5] is None
    assert scores_table["data"][3][3:6] == [0, 0, 1.25]


def test_tables_hold_no_roles_after_a_failed_self_check(tmp_path: Path) -> None:
    export(parts(selfcheck={"passed": False, "line": "no"}), tmp_path, ["csv"])
    with (tmp_path / "head-roles.csv").open(encoding="utf-8") as file:
        (columns,) = csv.reader(file)
    assert columns[:4] == ["role", "title", "strength", "layer"]


@pytest.mark.parametrize(
    ("formats", "message"),
    [
        (["xlsx"], "exported to parquet, csv, json, roles, bertviz, got xlsx"),
        (["csv", "xml"], "got xml"),
        ([], "got none of them"),
        ("csv", "got csv"),  # a text is a list of letters
        (["bertviz"], "give at least one text"),
    ],
)
def test_what_cannot_be_exported_is_told_and_nothing_is_written(
    tmp_path: Path, formats: list[str] | str, message: str
) -> None:
    with pytest.raises(OutputError, match=message):
        export(parts(), tmp_path / "new", formats)
    assert not (tmp_path / "new").exists()


def test_roles_are_a_format(tmp_path: Path) -> None:
    assert export(parts(), tmp_path, ["roles"]) == [tmp_path / "roles.json"]
    assert RoleFile.load(tmp_path).with_role("previous_token") == [(0, 0)]


def test_arrays_are_as_bertviz_takes_them(tmp_path: Path) -> None:
    probs = np.random.default_rng(3).dirichlet(np.ones(4), size=(2, 3, 4)).astype(np.float32)
    one, other = Text("Hi — you", ["[CLS]", "hi", "—", "you"], probs), Text("a b", ["a", "b"], probs[:, :, :2, :2])
    attention, tokens = bertviz_arrays(one)
    assert tokens == one.tokens
    assert [layer.shape for layer in attention] == [(1, 3, 4, 4)] * 2
    assert np.array_equal(attention[1][0], probs[1])
    export(parts(), tmp_path, ["bertviz"], texts=[one, other])
    listed = json.loads((tmp_path / "bertviz.json").read_text(encoding="utf-8"))
    assert [(entry["text"], entry["tokens"]) for entry in listed] == [
        (one.text, one.tokens),
        (other.text, other.tokens),
    ]
    with np.load(tmp_path / "bertviz.npz", allow_pickle=False) as arrays:
        assert np.array_equal(arrays[listed[0]["array"]][:, 0], probs)
        assert arrays[listed[1]["array"]].shape == (2, 1, 3, 2, 2)


def test_the_reader_for_bertviz_of_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """BertViz itself is not asked for: what it does with its arguments before it draws stands below."""
    import sys
    from types import ModuleType

    import torch

    shown: list[Any] = []

    def head_view(attention: list[torch.Tensor], tokens: list[str]) -> None:
        # bertviz 1.4.1, util.format_attention: four axes, the first of which is squeezed out, and all layers stacked
        assert all(layer.dim() == 4 for layer in attention)
        shown.append((torch.stack([layer.squeeze(0) for layer in attention]), tokens))

    bertviz = ModuleType("bertviz")
    bertviz.head_view = head_view  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bertviz", bertviz)
    monkeypatch.chdir(tmp_path)
    probs = np.random.default_rng(3).dirichlet(np.ones(4), size=(2, 3, 4)).astype(np.float32)
    export(parts(), tmp_path, ["bertviz"], texts=[Text("a", list("abcd"), probs)])
    text = (DOCS / "roles-file.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    (reader,) = [block for block in blocks if "bertviz.json" in block]
    exec(compile(reader, "bertviz", "exec"), {})
    ((attention, tokens),) = shown
    assert np.array_equal(attention.numpy(), probs)
    assert tokens == list("abcd")


def test_attention_that_was_not_collected_is_told(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match='collect with what="probs"'):
        export(parts(), tmp_path, ["bertviz"], texts=[Text("a", ["a"], None)])


def test_exports_have_the_same_bytes_every_time(tmp_path: Path) -> None:
    probs = np.full((1, 1, 2, 2), 0.5, dtype=np.float32)
    formats = ["parquet", "csv", "json", "roles", "bertviz"]
    first, second = (
        export(with_evidence(), tmp_path / name, formats, texts=[Text("a", ["a", "b"], probs)]) for name in "ab"
    )
    assert len(first) == 12
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


# ------------------------------------------------------------------------------------------------------------- helpers


def fields_of_class(cls: Any, path: str) -> set[tuple[str, str]]:
    """(path of the object, name) of every field, through lists and optional ones."""
    found = set()
    hints = get_type_hints(cls)
    for field in fields(cls):
        found.add((path, field.name))
        for kind in (hints[field.name], *get_args(hints[field.name])):
            if is_dataclass(kind):
                found |= fields_of_class(kind, f"{path}/{field.name}")
    return found


def fields_of_schema(schema: dict[str, Any], path: str = "") -> set[tuple[str, str]]:
    found = set()
    for name, entry in schema.get("properties", {}).items():
        found |= {(path, name)} | fields_of_schema(entry.get("items", entry), f"{path}/{name}")
    return found


def required_of_schema(schema: dict[str, Any], path: str = "") -> set[tuple[str, str]]:
    found = {(path, name) for name in schema.get("required", [])}
    for name, entry in schema.get("properties", {}).items():
        found |= required_of_schema(entry.get("items", entry), f"{path}/{name}")
    return found


_KINDS: dict[str, Any] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "null": lambda value: value is None,
}


def complaints(value: Any, schema: dict[str, Any], where: str = "") -> list[str]:
    """What of JSON Schema the file uses, checked by hand: type, const, enum, minimum, required, properties, items."""
    unknown = set(schema) - {*("$schema", "title", "description", "type", "const", "enum", "minimum"), "required"}
    assert unknown <= {"properties", "items"}
    kinds = [schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type", [])
    if kinds and not any(_KINDS[kind](value) for kind in kinds):
        return [f"{where}: {value!r} is no {kinds}"]
    found = [f"{where}: not {schema['const']!r}"] if "const" in schema and value != schema["const"] else []
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{where}: {value!r} is not in {schema['enum']}")
    if "minimum" in schema and value is not None and value < schema["minimum"]:
        found.append(f"{where}: {value!r} is too small")
    if isinstance(value, dict):
        found += [f"{where}: {name} is missing" for name in schema.get("required", []) if name not in value]
        for name, entry in schema.get("properties", {}).items():
            found += complaints(value[name], entry, f"{where}/{name}") if name in value else []
    if isinstance(value, list):
        for place, entry in enumerate(value):
            found += complaints(entry, schema["items"], f"{where}[{place}]")
    return found
