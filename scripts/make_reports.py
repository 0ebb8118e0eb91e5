"""Make the example reports under reports/: the models that anyone has, on the corpora that come with headlens.

    python scripts/make_reports.py                 # tiny-gpt2, tiny-bert and minilm
    python scripts/make_reports.py tiny-bert
    python scripts/make_reports.py --pages         # only the pages again, from the numbers that are there

Each folder is what `headlens profile MODEL --ablate` writes, without the tables that repeat scores.parquet as text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import headlens
from headlens.behaviour.parts import USUAL

MODELS = ("tiny-gpt2", "tiny-bert", "minilm")
REPORTS = Path(__file__).parent.parent / "reports"
LEFT_OUT = ("scores.csv", "evidence.csv", "similarity.csv")


def main(
    models: Annotated[list[str] | None, typer.Argument(help="Which; default: all.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the folders.")] = REPORTS,
    pages: Annotated[bool, typer.Option("--pages", help="Only render the pages again.")] = False,
) -> None:
    """Profile each model and write its folder."""
    for name in models or MODELS:
        if pages:
            print(headlens.Profile.load(out / name).write_report(out / name))
        else:
            print(make(name, out / name))


def make(name: str, folder: Path) -> Path:
    profile = headlens.profile(name, parts={*USUAL, "ablation"}, progress=_say)
    profile.provenance["command"] = f"python scripts/make_reports.py {name}"
    report = profile.save(folder)
    for table in LEFT_OUT:
        (folder / table).unlink(missing_ok=True)
    for picture in (folder / "figures").glob("*.png"):  # the same as SVG is there
        if picture.stem != "role-map":
            picture.unlink()
    return report


def _say(what: str, done: int, of: int) -> None:
    if not done:
        print(f"  {what}", flush=True)


if __name__ == "__main__":
    typer.run(main)
