"""What a profile found, and the folder that holds it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headlens import __version__
from headlens.behaviour.similarity import Similarity
from headlens.errors import OutputError
from headlens.evidence_table import Evidence
from headlens.examples import Examples
from headlens.files import Write, write_together
from headlens.report.facts import at, may_claim
from headlens.roles import Roles, roles_of
from headlens.scores import ScoreTable

if TYPE_CHECKING:
    from headlens.models import LoadedModel
    from headlens.notebook import HeadView, Page

PROFILE_SCHEMA = "headlens.profile/1"
OPTIONAL_FILES = {"evidence.csv", "tests.parquet", "similarity.parquet", "similarity.csv", "examples.json"}
FIGURES = "figures"


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
        facts = {
            "schema": PROFILE_SCHEMA,
            "scores": self.scores.fingerprint(),
            **{f"has_{name}": part is not None for name, part in parts.items()},
            **self.provenance,
        }
        text = (json.dumps(facts, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace")
        files: dict[str, Write] = self.scores.writers()
        for part in parts.values():
            files |= part.writers() if part is not None else {}
        files |= {**pages, "profile.json": lambda path: path.write_bytes(text)}
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
            There is no profile, or one of another schema.
        """
        path = Path(folder) / "profile.json"
        try:
            provenance = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise OutputError(f"{path} is not there; give the folder that `headlens profile --out` wrote.") from None
        except (OSError, ValueError, RecursionError) as reason:
            why = getattr(reason, "strerror", None) or reason
            raise OutputError(f"{path} cannot be read ({why}); run the profile again.") from None
        facts = provenance if isinstance(provenance, dict) else {}
        schema = facts.pop("schema", None)
        if schema != PROFILE_SCHEMA:
            raise OutputError(
                f"{path} has the schema {schema!r}, and headlens {__version__} reads {PROFILE_SCHEMA!r}; "
                f"use {_writer(facts)}, or run the profile again."
            )
        scores = ScoreTable.load(folder)
        if provenance.pop("scores", None) != scores.fingerprint():
            raise OutputError(f"{path} and scores.parquet beside it are of different runs; run the profile again.")
        parts: dict[str, Any] = {"evidence": Evidence, "similarity": Similarity, "examples": Examples}
        has = {name: provenance.pop(f"has_{name}", False) for name in parts}
        loaded = {name: kind.load(folder) for name, kind in parts.items() if has[name]}
        return cls(scores, provenance, **loaded)

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
        model, corpus = self.provenance["model"], self.provenance["corpus"]
        return (
            f"<Profile of {model['name']}: {self.scores.n_layers} x {self.scores.n_heads} heads, "
            f"{len(self.scores.names)} scores, {corpus['documents']:,} documents>"
        )

    def _repr_html_(self) -> str:
        from headlens.report import render_summary

        return render_summary(self.scores, self.provenance, self.evidence, self.roles)


def _without(facts: dict[str, Any], *path: str) -> dict[str, Any]:
    """The same facts but for the entry at a path of keys."""
    here, *further = path
    if not further:
        return {key: value for key, value in facts.items() if key != here}
    inner = facts.get(here)
    return {**facts, here: _without(inner, *further)} if isinstance(inner, dict) else facts


def _writer(facts: dict[str, Any]) -> str:
    """Which headlens wrote these facts, as far as they tell."""
    version = facts.get("headlens")
    return f"headlens {version}, which wrote it" if isinstance(version, str) else "the headlens that wrote it"
