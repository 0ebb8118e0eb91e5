"""Which role each head has, as one small file that other tools can load. No torch here.

docs/roles-file.md describes the file field by field; the fields are those of the classes below.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Union, get_args, get_origin, get_type_hints, runtime_checkable

import numpy as np

from headlens.effects import Ablation, Effect
from headlens.errors import OutputError
from headlens.evidence_table import Evidence
from headlens.files import Write, write_together
from headlens.numbers import layers_of_heads
from headlens.roles.role import HeadRole, Role
from headlens.roles.table import Roles
from headlens.scores import ScoreTable, head_name

if TYPE_CHECKING:
    pass

SCHEMA_VERSION = "headlens.roles/1"
FILE_NAME = "roles.json"

_WAY_OUT = "export the profile again"


@runtime_checkable
class ProfileParts(Protocol):
    """What of a profile is written here; `Profile` has it."""

    @property
    def scores(self) -> ScoreTable: ...
    @property
    def roles(self) -> Roles: ...
    @property
    def provenance(self) -> Mapping[str, Any]: ...
    @property
    def evidence(self) -> Evidence | None: ...


# ------------------------------------------------------------------------------------------------- what the file holds


@dataclass(frozen=True)
class ModelFacts:
    name: str
    layers: int
    heads: int  # of a layer
    kv_heads: int | None  # key/value heads of a layer
    architecture: str | None  # class in transformers
    family: str | None  # model_type in transformers
    revision: str | None  # commit on the hub
    weights_sha256: str | None
    is_causal: bool | None


@dataclass(frozen=True)
class CorpusSource:
    """A file has a hash and its size in bytes, a data set of the hub a revision, the grammar sentences and a seed."""

    name: str
    kind: str | None
    sha256: str | None
    bytes: int | None
    revision: str | None
    sentences: int | None
    seed: int | None


@dataclass(frozen=True)
class CorpusFacts:
    files: tuple[CorpusSource, ...]  # empty: text that was in memory
    unit: str | None  # what a document is
    limit: int | None  # of documents
    documents: int | None
    tokens: int | None


@dataclass(frozen=True)
class Verdict:
    """Of the self-check; None where nothing is known of it."""

    passed: bool | None
    line: str | None


@dataclass(frozen=True)
class AskedRole:
    """A role whose scores the profile has, whether or not a head has it."""

    id: str
    letter: str
    title: str
    kind: str
    takes: str  # of a head to have it
    source: str


@dataclass(frozen=True)
class HeldRole:
    """A role of a head, by one metric; fields as of HeadRole, NaN where a number is not known."""

    id: str
    strength: Literal["firm", "tentative"]
    is_label: bool
    metric: str
    value: float
    low: float
    high: float
    chance: float
    null: float
    null_name: str
    q: float
    support: float
    sentence: str
    informed: float = math.nan  # files of before do not have these two
    informed_name: str = ""


@dataclass(frozen=True)
class HeadEffect:
    """What gating the head to 0 does; fields as of Effect, NaN where a number is not known."""

    task: str
    intact: float
    change: float
    low: float
    high: float
    q: float
    documents: int
    is_used: bool
    sentence: str


@dataclass(frozen=True)
class HeadEntry:
    layer: int
    head: int
    is_present: bool  # False: removed from the model, or no score is defined for it
    roles: tuple[HeldRole, ...]  # its label first
    effect: HeadEffect | None

    @property
    def name(self) -> str:
        return head_name(self.layer, self.head)


@dataclass(frozen=True)
class RoleFile:
    """The roles of all heads of a model, and where they come from."""

    headlens: str | None  # version
    created: str | None  # ISO 8601, when the profile was made
    model: ModelFacts
    corpus: CorpusFacts
    selfcheck: Verdict
    withheld: str | None  # why no head has a role, though some might
    catalogue: tuple[AskedRole, ...]
    heads: tuple[HeadEntry, ...]  # all of them, layer by layer

    def __post_init__(self) -> None:
        layers, heads = self.model.layers, self.model.heads
        if layers < 1 or heads < 1:
            raise OutputError(f"a model has at least one layer and one head, got {layers} and {heads}")
        for entry in self.heads:
            if not (0 <= entry.layer < layers and 0 <= entry.head < heads):
                raise OutputError(f"{entry.name} is no head of a model of {layers_of_heads(layers, heads)}")
        if len({(entry.layer, entry.head) for entry in self.heads}) != len(self.heads) or (
            len(self.heads) != layers * heads
        ):
            raise OutputError(
                f"every head of {layers_of_heads(layers, heads)} must be there once, got {len(self.heads)} entries"
            )
        self._check_roles()

    def _check_roles(self) -> None:
        known = {role.id for role in self.catalogue}
        for entry in self.heads:
            if unknown := [role.id for role in entry.roles if role.id not in known]:
                raise OutputError(f"{entry.name} has the role {unknown[0]!r}, which the catalogue does not have")
            if [role.is_label for role in entry.roles] != [place == 0 for place in range(len(entry.roles))]:
                raise OutputError(f"the first role of {entry.name}, and no other one, must be its label")
            if self.withheld is not None and entry.roles:
                raise OutputError(f"roles are withheld, and still {entry.name} has some")

    @classmethod
    def of(cls, profile: ProfileParts) -> RoleFile:
        """The file of a profile. After a failed self-check no head has a role, and `withheld` says why."""
        provenance, scores = profile.provenance, profile.scores
        verdict = _picked(Verdict, provenance.get("selfcheck"))
        withheld = reason_to_withhold(provenance)
        effects = Ablation.from_dict(provenance["ablation"]) if provenance.get("ablation") else Ablation(())
        is_present = np.asarray(np.isfinite(scores.values).any(axis=0))
        roles = profile.roles
        return cls(
            headlens=provenance.get("headlens"),
            created=provenance.get("created"),
            model=_model_facts(provenance.get("model") or {}, scores),
            corpus=_corpus_facts(provenance.get("corpus") or {}),
            selfcheck=verdict,
            withheld=withheld,
            catalogue=tuple(_asked(role) for role in roles.asked),
            heads=tuple(
                HeadEntry(
                    layer,
                    head,
                    is_present=bool(is_present[layer, head]),
                    roles=() if withheld else _held(roles.of(layer, head)),
                    effect=_effect(effects.of(layer, head)),
                )
                for layer, head in np.ndindex(scores.n_layers, scores.n_heads)
            ),
        )

    def of_head(self, layer: int, head: int) -> HeadEntry:
        """The entry of one head."""
        found = next((entry for entry in self.heads if (entry.layer, entry.head) == (layer, head)), None)
        if found is None:
            raise OutputError(
                f"The file is of {layers_of_heads(self.model.layers, self.model.heads)}, no {head_name(layer, head)}."
            )
        return found

    def with_role(self, role: str, *, firm_only: bool = False) -> list[tuple[int, int]]:
        """Heads (layer, head) that have a role, by its id, in the order of layers and heads."""
        if role not in {asked.id for asked in self.catalogue}:
            known = ", ".join(asked.id for asked in self.catalogue)
            raise OutputError(f"The file does not know the role {role!r}; it knows {known}.")
        return [
            (entry.layer, entry.head)
            for entry in self.heads
            if any(one.id == role and (one.strength == "firm" or not firm_only) for one in entry.roles)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None stands for NaN."""
        return {"schema": SCHEMA_VERSION, **_plain(asdict(self))}

    def writers(self) -> dict[str, Write]:
        """roles.json, a line for each role of the catalogue and each head."""
        text = _by_line(self.to_dict()).encode("utf-8", "replace")
        return {FILE_NAME: lambda path: path.write_bytes(text)}

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write roles.json into a folder; OutputError if that cannot be done."""
        write_together({Path(folder) / name: write for name, write in self.writers().items()})
        return Path(folder) / FILE_NAME

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RoleFile:
        """Read a file, given its path or its folder. Fields that are not known are passed over.

        Raises
        ------
        OutputError
            It is not there, of another schema version, lacks a field or holds one of another type, or has a head that
            its model does not have.
        """
        path = Path(path)
        path = path / FILE_NAME if path.is_dir() else path
        try:
            found = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
        except FileNotFoundError:
            raise OutputError(f"{path} is not there; give a {FILE_NAME}, or the folder that holds it.") from None
        except (OSError, ValueError, RecursionError) as reason:
            raise OutputError(f"{path} cannot be read ({reason}); {_WAY_OUT}.") from None
        schema = found.get("schema") if isinstance(found, dict) else None
        if schema != SCHEMA_VERSION:
            raise OutputError(f"{path} has the schema {schema!r}, this headlens reads {SCHEMA_VERSION!r}; {_WAY_OUT}.")
        try:
            return _read(cls, found, "")
        except OutputError as reason:
            raise OutputError(f"{path} does not hold the roles of a model: {reason}; {_WAY_OUT}.") from None


# ------------------------------------------------------------------------------------------------- from a profile to it


def reason_to_withhold(provenance: Mapping[str, Any]) -> str | None:
    verdict = _picked(Verdict, provenance.get("selfcheck"))
    if verdict.passed is not False:
        return None
    return f"The self-check of the model failed, so no score of it can be trusted: {verdict.line or 'no details'}."


def _picked(cls: type, facts: object, **given: Any) -> Any:
    """A value of a class from the entries of the same names; what is not there is None."""
    entries = facts if isinstance(facts, Mapping) else {}
    return cls(**{field.name: given.get(field.name, entries.get(field.name)) for field in fields(cls)})


def _model_facts(facts: Mapping[str, Any], scores: ScoreTable) -> ModelFacts:
    found: ModelFacts = _picked(
        ModelFacts,
        facts,
        name=str(facts.get("name", "")),
        layers=scores.n_layers,
        heads=scores.n_heads,
        architecture=facts.get("class"),
    )
    return found


def _corpus_facts(facts: Mapping[str, Any]) -> CorpusFacts:
    files: Iterable[Mapping[str, Any]] = facts.get("files") or ()
    sources = tuple(_picked(CorpusSource, file, name=str(file.get("name", ""))) for file in files)
    found: CorpusFacts = _picked(CorpusFacts, facts, files=sources)
    return found


def _asked(role: Role) -> AskedRole:
    return AskedRole(role.id, role.letter, role.title, role.kind, role.gloss, role.source)


def _held(roles: Sequence[HeadRole]) -> tuple[HeldRole, ...]:
    numbers = ("value", "low", "high", "chance", "null", "null_name", "q", "support")
    names = ("metric", *numbers, "sentence", "informed", "informed_name")
    return tuple(
        HeldRole(
            id=one.role.id,
            strength="firm" if one.is_firm else "tentative",
            is_label=place == 0,
            **{name: getattr(one, name) for name in names},
        )
        for place, one in enumerate(roles)
    )


def _effect(effect: Effect | None) -> HeadEffect | None:
    if effect is None:
        return None
    return HeadEffect(**{field.name: getattr(effect, field.name) for field in fields(HeadEffect)})


# --------------------------------------------------------------------------------------------------- to JSON and back


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _by_line(content: Mapping[str, Any]) -> str:
    """JSON with every entry on its own line, and so every entry of a list: small, and `diff` shows single heads."""

    def dump(value: object) -> str:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)

    lines = []
    for name, value in content.items():
        rows = [f"  {dump(row)}" for row in value] if isinstance(value, list) and value else []
        text = "[\n" + ",\n".join(rows) + "\n]" if rows else dump(value)
        lines.append(f"{dump(name)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


@lru_cache
def _types_of(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _read(kind: Any, found: Any, where: str) -> Any:
    """A value of one of the types of the fields above from what JSON gave; `where` it stands is for messages."""
    if is_dataclass(kind):
        return _read_entries(kind, found, where)
    if get_origin(kind) in (Union, UnionType):
        inner = next(option for option in get_args(kind) if option is not type(None))
        return None if found is None else _read(inner, found, where)
    if get_origin(kind) is tuple:
        _expect(isinstance(found, list), "a list", found, where)
        return tuple(_read(get_args(kind)[0], entry, f"{where}[{place}]") for place, entry in enumerate(found))
    if get_origin(kind) is Literal:
        _expect(found in get_args(kind), " or ".join(map(repr, get_args(kind))), found, where)
        return found
    if kind is float:
        is_number = type(found) in (int, float) and math.isfinite(found)
        _expect(found is None or is_number, "a number or null", found, where)
        return math.nan if found is None else float(found)
    words = {int: "a whole number", str: "a text", bool: "true or false"}
    _expect(type(found) is kind, words[kind], found, where)
    return found


def _read_entries(kind: Any, found: Any, where: str) -> Any:
    _expect(isinstance(found, dict), "an object", found, where)
    path = f"{where}." if where else ""
    types = _types_of(kind)
    needed = {field.name for field in fields(kind) if field.default is MISSING}
    for name in types:
        if name in needed and name not in found:
            raise OutputError(f"{path}{name} is missing")
    given = {name: of_field for name, of_field in types.items() if name in found}
    return kind(**{name: _read(of_field, found[name], f"{path}{name}") for name, of_field in given.items()})


def _expect(holds: bool, expected: str, found: object, where: str) -> None:
    if not holds:
        raise OutputError(f"{where} must be {expected}, got {found!r:.80}")
