"""`headlens profile`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headlens.cli.options import (
    Columns,
    CorpusRevision,
    Device,
    DType,
    Limit,
    ModelName,
    Parser,
    Revision,
    SkipBad,
    Unit,
    columns_of,
    formats_of,
    path_of,
)
from headlens.cli.terminal import check_writable, command_line, interrupts_held, plain_errors, progress_bar
from headlens.errors import OutputError

if TYPE_CHECKING:
    from headlens.evidence_table import Evidence
    from headlens.results import Profile


def profile(
    model: ModelName,
    files: Annotated[
        list[str] | None, typer.Argument(metavar="FILE", help="Corpora, as after --corpus.", show_default=False)
    ] = None,
    corpus: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND:FILE...",
            help="Text files or annotated corpora, such as conllu:FILE or gum:FILE; `headlens corpus --help` lists the "
            "kinds. Without any, the bundled English sample; for tiny-gpt2 and tiny-bert their own grammar.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", parser=path_of, help="Folder to write to. Default: profiles/MODEL.", show_default=False
        ),
    ] = None,
    unit: Unit = "line",
    limit: Limit = None,
    skip_bad: SkipBad = False,
    columns: Columns = None,
    parser: Parser = "en_core_web_sm",
    corpus_revision: CorpusRevision = None,
    max_length: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of one input; default: as many as the model takes.", show_default=False),
    ] = None,
    batch_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of one forward pass; results do not depend on it.")
    ] = 4096,
    dtype: DType = "float32",
    device: Device = "cpu",
    revision: Revision = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the resampling behind the intervals.")] = 0,
    controls: Annotated[
        int, typer.Option(min=0, help="Also score N copies with random weights; of annotated corpora.")
    ] = 0,
    ensembles: Annotated[
        bool, typer.Option("--ensembles", help="Also put up to four heads together, relation by relation.")
    ] = False,
    probe: Annotated[bool, typer.Option("--probe", help="Also fit a dependency probe to the attention.")] = False,
    ablate: Annotated[
        bool,
        typer.Option("--ablate", help="Also take heads out, one by one: does the model use them? As --with ablation."),
    ] = False,
    also: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="PART",
            help="Also score this part: retrieval or ablation. May be repeated.",
            show_default=False,
        ),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART",
            help="Leave this part out: contribution, lexical, repetition, circuits, similarity or examples. May be "
            "repeated.",
            show_default=False,
        ),
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Run the model file's own eager attention (slower).")] = False,
    exports: Annotated[
        list[str] | None,
        typer.Option(
            "--export",
            metavar="FORMAT",
            help="Also write it as parquet, csv, json or roles; see `headlens export`. May be repeated.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Score every head of MODEL on a corpus and write a report.

    Writes report.html, roles.json, scores.parquet, scores.csv, profile.json and figures/ to the folder given by --out;
    unless --without says so also similarity.parquet, similarity.csv and examples.json; of annotated corpora also
    evidence.csv and tests.parquet.

    Examples: headlens profile tiny-gpt2; headlens profile minilm --corpus notes.txt --out reports/minilm
    """
    with plain_errors("nothing was written"):
        folder = folder_for(out, model)
        check_writable(folder)
        formats = _formats(exports or [])
        with progress_bar() as progress:
            with interrupts_held():
                from headlens.behaviour.parts import chosen_parts
                from headlens.corpora import read_corpus
                from headlens.profiling import default_corpus, profile

            parts = chosen_parts([*(also or []), *(["ablation"] if ablate else [])], without or [])
            named = [*(corpus or []), *(files or [])]  # `--corpus a b`: b comes as an argument
            read = read_corpus(
                named or [default_corpus(model)],
                unit=unit,
                limit=limit,
                skip_bad=skip_bad,
                columns=columns_of(columns),
                parser=parser,
                revision=corpus_revision,
            )
            result = profile(
                model,
                read,
                device=device,
                dtype=dtype,
                revision=revision,
                max_length=max_length,
                batch_tokens=batch_tokens,
                seed=seed,
                way="exact" if exact else "fast",
                controls=controls,
                ensembles=ensembles,
                probe=probe,
                parts=parts,
                progress=progress,
            )
            result.provenance["command"] = command_line()
            progress("writing the report", 0, 1)
            report = result.save(folder)
            if formats:
                from headlens.exports import export

                export(result, folder, formats)
        _tell(result, report)


def folder_for(out: Path | None, model: str) -> Path:
    """Where a profile is written: profiles/MODEL if not said otherwise."""
    if out is None:
        name = Path(model).expanduser().resolve().name if Path(model).expanduser().is_dir() else Path(model).name
        return Path("profiles") / (name or "model")
    return out.expanduser()


def _formats(given: Sequence[str]) -> list[str]:
    """Before minutes of work, not after."""
    if any("bertviz" in name.split(",") for name in given):
        raise OutputError("BertViz wants texts: write the profile, then use `headlens export DIR --to bertviz --text`.")
    return formats_of(given, without="bertviz")


def _tell(result: Profile, report: Path) -> None:
    from headlens.effects import Ablation
    from headlens.numbers import layers_of_heads
    from headlens.report.behaviour import agreement_line
    from headlens.report.facts import corpus_words
    from headlens.report.findings import findings

    model = result.provenance["model"]
    typer.echo(f"{model['name']}: {layers_of_heads(result.scores.n_layers, result.scores.n_heads)}")
    typer.echo(f"Corpus: {', '.join(corpus_words(result.provenance))}")
    typer.echo(f"Self-check {result.provenance['selfcheck']['line']}")
    for note in result.provenance["notes"]:
        typer.echo(f"Note: {note}")
    ablation = Ablation.of_provenance(result.provenance)
    for finding in findings(result.scores, result.evidence, result.roles, ablation):
        typer.echo(f"- {finding.text}")
    if result.evidence is not None:
        typer.echo(f"Evidence: {_verdicts(result.evidence)}")
    if line := agreement_line(result.provenance, result.roles):
        typer.echo(line)
    typer.echo(f"Report: {report}")


def _verdicts(evidence: Evidence) -> str:
    """How many relations got each verdict, the best first."""
    from headlens.evidence_table import VERDICTS

    found = [row.verdict for row in evidence.distinct_relations]
    told = [f"{found.count(verdict)} {verdict}" for verdict in VERDICTS if verdict in found]
    return f"of {len(found)} relations and kinds of reference: {', '.join(told)}"
