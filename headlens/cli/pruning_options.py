"""Options that the commands around pruning share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from headlens.errors import PlanError

if TYPE_CHECKING:
    from headlens.corpora import Corpus
    from headlens.evaluation import Task

CalibrationFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--calibration",
        metavar="KIND:FILE",
        help="Text that heads are judged on, as after --corpus of `headlens profile`; part of it is held out. Without "
        "any, the bundled English sample; for tiny-gpt2 and tiny-bert their own grammar. May be repeated.",
        show_default=False,
    ),
]
Objective = Annotated[
    str | None,
    typer.Option(
        help="What heads are judged by: cosine (of sentence vectors), kl (of next-token distributions), hidden, or "
        "loss. Default: kl for language models, else cosine.",
        show_default=False,
    ),
]
Texts = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Texts (of language models: windows) that choose. Default: 256 texts or 8 windows.",
        show_default=False,
    ),
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        min=2, help="Tokens of a text or window. Default: 128 or 256, or what the model takes.", show_default=False
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Of the order of texts, random plans and random methods.")]
UnitOfHeads = Annotated[
    str | None,
    typer.Option(
        "--heads-as",
        metavar="UNIT",
        help="What goes together: head; group (a key/value head and its query heads); even (a head of every group of "
        "a layer). Default: head, or group where heads share keys and values.",
        show_default=False,
    ),
]
Every = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="K",
        help="Of greedy: heads (or groups) that go before the next scoring; more is faster and less exact. Default: 1.",
        show_default=False,
    ),
]
Tasks = Annotated[
    list[str] | None,
    typer.Option(
        "--eval",
        metavar="KIND:FILE",
        help="A task for all models: a FILE of the kind sts, perplexity, masked, blimp, sling, syntaxgym, "
        "classification or regression; grammar:2000 (sentences); repeat (decoders: random tokens written twice). May "
        "be repeated.",
        show_default=False,
    ),
]
Draws = Annotated[int, typer.Option("--random", min=1, help="Random plans of each kind to hold the result against.")]

SelfContained = Annotated[
    bool,
    typer.Option("--self-contained", help="Add code with which transformers loads it where headlens is missing."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a checkpoint that headlens wrote.")]


def calibration_corpus(files: list[str] | None, model: str) -> Corpus:
    from headlens.corpora import read_corpus
    from headlens.profiling import default_corpus

    return read_corpus(files or [default_corpus(model)])


def tasks_of(specs: list[str] | None) -> list[Task]:
    from headlens.evaluation import read_task

    return [read_task(spec) for spec in specs or []]


def names_in(text: str) -> list[str]:
    """What stands between commas; nothing between two of them is no name."""
    return [name.strip() for name in text.split(",") if name.strip()]


def check_name(value: str | None, known: Iterable[str], option: str) -> None:
    """Before the model is loaded. PlanError for a name that is not among those known."""
    names = list(known)
    if value is not None and value not in names:
        raise PlanError(f"{option} is one of {', '.join(names)}; got {value!r}.")


def amount_of(text: str | None, option: str) -> float | int | None:
    """ "0.6" or "60%" is a share, "36" a number of heads. PlanError for what is neither, or cannot be of any model."""
    if text is None:
        return None
    try:
        if text.endswith("%"):
            found: float | int = float(text[:-1]) / 100
        else:
            found = int(text) if text.strip().lstrip("+-").isdigit() else float(text)
    except ValueError:
        raise PlanError(f"{option} takes a share (0.6 or 60%) or a number of heads (36), got {text!r}.") from None
    if isinstance(found, float) and not 0 <= found <= 1:
        raise PlanError(
            f"{option}: a share of heads is from 0 to 1, got {found:g}; a number of heads is a whole number."
        )
    if found < 0:
        raise PlanError(f"{option}: a number of heads is at least 1, got {found}.")
    return found
