"""What a profile found, and the folder that holds it."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headlens.behaviour.similarity import Similarity
from headlens.errors import OutputError
from headlens.evidence_table import Evidence
from headlens.files import Write, write_together
from headlens.scores import ScoreTable

PROFILE_SCHEMA = "headlens.profile/1"
EVIDENCE_FILES = ("evidence.csv", "tests.parquet")
SIMILARITY_FILES = ("similarity.parquet", "similarity.csv")


@dataclass(frozen=True, eq=False)
class Profile:
    """Scores of every head of a model, and their provenance (plain values, as in profile.json)."""

    scores: ScoreTable
    provenance: dict[str, Any]
    evidence: Evidence | None = None  # of annotated corpora
    similarity: Similarity | None = None  # of all heads to each other

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write scores.parquet, scores.csv, report.html and profile.json, and put them in place when all are complete.

        Of annotated corpora also evidence.csv and tests.parquet, and similarity.parquet and similarity.csv where heads
        were compared; those of an earlier profile are removed else.

        Raises
        ------
        OutputError
            The folder cannot be written to. What was there stays.
        """
        from headlens.report import render_report

        folder = Path(folder)
        start = time.perf_counter()
        page = render_report(self.scores, self.provenance, self.evidence, self.similarity).encode("utf-8", "replace")
        run = self.provenance.setdefault("run", {})
        run.setdefault("seconds", {})["report"] = time.perf_counter() - start
        facts = {
            "schema": PROFILE_SCHEMA,
            "scores": self.scores.fingerprint(),
            "has_evidence": self.evidence is not None,
            "has_similarity": self.similarity is not None,
            **self.provenance,
        }
        text = (json.dumps(facts, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace")
        files: dict[str, Write] = {
            **self.scores.writers(),
            **(self.evidence.writers() if self.evidence is not None else {}),
            **(self.similarity.writers() if self.similarity is not None else {}),
            "report.html": lambda path: path.write_bytes(page),
            "profile.json": lambda path: path.write_bytes(text),
        }
        write_together({folder / name: write for name, write in files.items()})
        for name in {*EVIDENCE_FILES, *SIMILARITY_FILES} - files.keys():
            (folder / name).unlink(missing_ok=True)
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
        except FileNotFoundError:
            raise OutputError(f"{path} is not there; give the folder that `headlens profile --out` wrote.") from None
        except (OSError, ValueError) as reason:
            raise OutputError(f"{path} cannot be read ({reason}); run the profile again.") from None
        schema = provenance.pop("schema", None) if isinstance(provenance, dict) else None
        if schema != PROFILE_SCHEMA:
            raise OutputError(f"{path} has the schema {schema!r}, this headlens reads {PROFILE_SCHEMA!r}.")
        scores = ScoreTable.load(folder)
        if provenance.pop("scores", None) != scores.fingerprint():
            raise OutputError(f"{path} and scores.parquet beside it are of different runs; run the profile again.")
        has_evidence, has_similarity = (provenance.pop(name, False) for name in ("has_evidence", "has_similarity"))
        return cls(
            scores,
            provenance,
            Evidence.load(folder) if has_evidence else None,
            Similarity.load(folder) if has_similarity else None,
        )

    def __repr__(self) -> str:
        model, corpus = self.provenance["model"], self.provenance["corpus"]
        return (
            f"<Profile of {model['name']}: {self.scores.n_layers} x {self.scores.n_heads} heads, "
            f"{len(self.scores.names)} scores, {corpus['documents']:,} documents>"
        )

    def _repr_html_(self) -> str:
        from headlens.report import render_summary

        return render_summary(self.scores, self.provenance, self.evidence)
