"""What a profile found, and the folder that holds it."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headlens.behaviour.similarity import Similarity
from headlens.evidence_table import Evidence
from headlens.examples import Examples
from headlens.files import Write, write_together
from headlens.numbers import amount
from headlens.profile_file import FILE as PROFILE_FILE
from headlens.profile_file import (
    HASHES,
    PROFILE_SCHEMA,
    check_effects,
    check_same_run,
    json_of,
    noting_hash,
    read_facts,
)
from headlens.report.facts import at, may_claim
from headlens.roles import Roles, roles_of
from headlens.scores import ScoreTable

if TYPE_CHECKING:
    from headlens.models import LoadedModel
    from headlens.notebook import HeadView, Page

OPTIONAL_FILES = {"evidence.csv", "tests.parquet", "similarity.parquet", "similarity.csv", "examples.json"}
FIGURES = "figures"
# What of a profile is read again beside the scores, and from where
_PARTS: dict[str, tuple[Any, str]] = {
    "evidence": (Evidence, "tests.parquet"),
    "similarity": (Similarity, "similarity.parquet"),
    "examples": (Examples, "examples.json"),
}


@dataclass(frozen=True, eq=False)
class Profile:
    """Scores of every head of a model, and their provenance (plain values, as in profile.json)."""

    scores: ScoreTable
    provenance: dict[str, Any]
    evidence: Evidence | None = None  # of annotated corpora
    similarity: Similarity | None = None  # of all heads to each other
    examples: Examples | None = None  # texts of the corpus on which each head is strongest
    model: LoadedModel | None = None  # that was profiled, as long as the profile is in memory; never saved

    @cached_property
    def roles(self) -> Roles:
        """Which roles each head has. After a failed self-check the report and exported files withhold them."""
        return roles_of(self.scores, self.evidence)

    def heads(self, name: str) -> HeadView:
        """One head by its name, "L7H9": its roles, scores, examples, `.show(text)`. OutputError if there is none."""
        from headlens.notebook import HeadView
        from headlens.show import parse_head

        place = parse_head(name, self.scores.n_layers, self.scores.n_heads)
        examples = self.examples.of(*place) if self.examples is not None else ()
        roles = self.roles.of(*place) if self._may_claim else ()
        return HeadView(*place, roles, examples, self.scores, self.provenance, self.model)

    def report(self) -> Page:
        """The whole report, which a notebook shows in a frame; `.html` is the page."""
        from headlens.notebook import Page

        return Page(self._page())

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write everything into a folder, and put it in place when all is complete; gives the path of the report.

        scores.parquet, scores.csv, profile.json, roles.json, report.html and figures/; of annotated corpora also
        evidence.csv and tests.parquet; where heads were compared similarity.parquet and similarity.csv; and where
        examples were looked for examples.json. What an earlier profile has beside these is removed.

        Raises
        ------
        OutputError
            The folder cannot be written to. What was there stays.
        """
        folder = Path(folder)
        start = time.perf_counter()
        pages = self._pages()
        run = self.provenance.setdefault("run", {})
        run.setdefault("seconds", {})["report"] = time.perf_counter() - start
        parts = {"evidence": self.evidence, "similarity": self.similarity, "examples": self.examples}
        hashes: dict[str, str] = {}
        facts = {
            "schema": PROFILE_SCHEMA,
            "scores": self.scores.fingerprint(),
            HASHES: hashes,
            **{f"has_{name}": part is not None for name, part in parts.items()},
            **self.provenance,
        }
        files: dict[str, Write] = self.scores.writers()
        for part in parts.values():
            files |= part.writers() if part is not None else {}
        for _, name in _PARTS.values():
            if name in files:
                files[name] = noting_hash(name, files[name], hashes)
        # the last one: it has the hashes of what was written before it
        files |= {**pages, PROFILE_FILE: lambda path: path.write_bytes(json_of(facts))}
        write_together({folder / name: write for name, write in files.items()})
        for name in OPTIONAL_FILES - files.keys():
            (folder / name).unlink(missing_ok=True)
        self._remove_old_figures(folder, files)
        return folder / "report.html"

    def write_report(self, folder: str | os.PathLike[str]) -> Path:
        """Make report.html, figures/ and roles.json anew from what is known, without the model; the rest stays.

        Raises
        ------
        OutputError
            The folder cannot be written to. The report that was there stays.
        """
        folder = Path(folder)
        pages = self._pages()
        write_together({folder / name: write for name, write in pages.items()})
        self._remove_old_figures(folder, pages)
        return folder / "report.html"

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Profile:
        """Read what `save` wrote.

        Raises
        ------
        OutputError
            There is no profile, or one of another schema; an entry of profile.json is of another kind; or a file
            beside it is of another run.
        """
        folder = Path(folder)
        facts = read_facts(folder)
        hashes = facts.pop(HASHES, None) or {}
        scores = ScoreTable.load(folder)
        has_same = facts.pop("scores", None) == scores.fingerprint()
        check_same_run(folder / "scores.parquet", hashes, belongs=has_same)
        shape = (scores.n_layers, scores.n_heads)
        check_effects(folder, facts, shape)
        loaded: dict[str, Any] = {}
        for name, (kind, file) in _PARTS.items():
            if facts.pop(f"has_{name}", False):
                loaded[name] = kind.load(folder)
                check_same_run(folder / file, hashes, belongs=_is_of(loaded[name], shape))
        return cls(scores, facts, **loaded)

    def _pages(self) -> dict[str, Write]:
        """What people read, complete before the first of it is written."""
        from headlens.report.plots import figure_writers
        from headlens.role_files import RoleFile

        content = self._page().encode("utf-8", "replace")
        name = str(at(self.provenance, "model", "name") or "")
        figures = figure_writers(self.scores, self.roles if self._may_claim else None, self.similarity, model=name)
        return {
            "report.html": lambda path: path.write_bytes(content),
            **{f"{FIGURES}/{name}": write for name, write in figures.items()},
            **RoleFile.of(self).writers(),
        }

    def _page(self) -> str:
        from headlens.report import render_report

        # how long the page takes is known too late to stand on it; so a page made again is the same page
        facts = _without(self.provenance, "run", "seconds", "report")
        return render_report(self.scores, facts, self.evidence, self.similarity, self.examples, self.roles)

    @property
    def _may_claim(self) -> bool:
        return may_claim(self.provenance)

    @staticmethod
    def _remove_old_figures(folder: Path, files: Collection[str]) -> None:
        from headlens.report.plots import remove_others

        remove_others(folder / FIGURES, [Path(name).name for name in files])

    def __repr__(self) -> str:
        name, documents = at(self.provenance, "model", "name"), at(self.provenance, "corpus", "documents")
        told = [f"{self.scores.n_layers} x {self.scores.n_heads} heads", amount(len(self.scores.names), "score")]
        told += [amount(documents, "document")] if documents is not None else []
        return f"<Profile of {name or 'a model'}: {', '.join(told)}>"

    def _repr_html_(self) -> str:
        from headlens.report import render_summary

        return render_summary(self.scores, self.provenance, self.evidence, self.roles)


def _is_of(part: Evidence | Similarity | Examples, shape: tuple[int, int]) -> bool:
    """Whether it can be of a model of so many layers and heads."""
    if isinstance(part, Evidence):
        return part.value.shape[1:] == shape
    heads = part.heads if isinstance(part, Similarity) else [(one.layer, one.head) for one in (*part, *part.unshown)]
    return all(layer < shape[0] and head < shape[1] for layer, head in heads)


def _without(facts: dict[str, Any], *path: str) -> dict[str, Any]:
    """The same facts but for the entry at a path of keys."""
    here, *further = path
    if not further:
        return {key: value for key, value in facts.items() if key != here}
    inner = facts.get(here)
    return {**facts, here: _without(inner, *further)} if isinstance(inner, dict) else facts
