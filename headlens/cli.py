"""The command line: every subcommand is one function of the library, its progress, and its errors in one sentence."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headlens import __version__
from headlens.errors import CorpusError, HeadlensError, OutputError, UnsupportedModel
from headlens.files import printable

if TYPE_CHECKING:
    from headlens.corpora.describe import Description
    from headlens.documents import Document
    from headlens.evidence_table import Evidence
    from headlens.profiling import Progress
    from headlens.results import Profile

app = typer.Typer(
    help="See what each attention head of a pretrained transformer does.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

corpora_app = typer.Typer(
    help="Corpora, each named as KIND:FILE, or as a file that tells its own kind.\n\n"
    "Kinds: text (plain text), conllu (a treebank), gum (a treebank with coreference, as GUM), conll2012 and litbank "
    "(coreference), gap, winobias and winograd (pronouns and their candidates), parse (plain text, parsed by spaCy), "
    "data (a parquet, JSON, CSV or TSV file), hub (a data set of the hub: hub:owner/name:config@split), grammar "
    "(made-up English with gold: grammar:SENTENCES or grammar:SENTENCES@SEED).",
    no_args_is_help=True,
)
app.add_typer(corpora_app, name="corpus")

ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A hub id, a folder, or a bundled name: tiny-gpt2, tiny-bert, minilm, smollm2.",
        show_default=False,
    ),
]
Device = Annotated[str, typer.Option(help="Where the model runs: cpu, cuda, cuda:1, mps.")]
DType = Annotated[str, typer.Option(help="float32, float64, bfloat16, float16, or auto (that of the checkpoint).")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.", show_default=False)]

# How a corpus is read, the same for all that read one
Unit = Annotated[str, typer.Option(help="What is a document of a text file: a line, or a paragraph.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first N documents.", show_default=False)]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Go on past what cannot be read, and count it.")]
Columns = Annotated[
    str | None,
    typer.Option(metavar="OURS=THEIRS,...", help="Columns of a table: words=tokens,heads=head.", show_default=False),
]
Parser = Annotated[str, typer.Option(help="The spaCy pipeline that parses text (parse:FILE).")]
CorpusRevision = Annotated[
    str | None, typer.Option(help="Branch, tag or commit of a data set of the hub.", show_default=False)
]


def main() -> None:
    """Entry point of the `headlens` command."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal may not have all letters of a name
    with _plain_errors("nothing was written"):
        app()


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if version:
        typer.echo(f"headlens {__version__}")
        raise typer.Exit


@app.command("profile")
def _profile(
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
        typer.Option(metavar="DIR", help="Folder to write to. Default: profiles/MODEL.", show_default=False),
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
    also: Annotated[
        list[str] | None,
        typer.Option(
            "--with", metavar="PART", help="Also score this part: retrieval. May be repeated.", show_default=False
        ),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART",
            help="Leave this part out: contribution, lexical, repetition, circuits or similarity. May be repeated.",
            show_default=False,
        ),
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Run the model file's own eager attention (slower).")] = False,
) -> None:
    """Score every head of MODEL on a corpus and write a report.

    Writes report.html, scores.parquet, scores.csv, profile.json, similarity.parquet and similarity.csv to the folder
    given by --out; of annotated corpora also evidence.csv and tests.parquet.

    Examples: headlens profile tiny-gpt2; headlens profile minilm --corpus notes.txt --out reports/minilm
    """
    with _plain_errors("nothing was written"):
        folder = _folder(out, model)
        _check_writable(folder)
        with _progress() as progress:
            from headlens.behaviour.parts import chosen_parts
            from headlens.corpora import read_corpus
            from headlens.profiling import default_corpus, profile

            parts = chosen_parts(also or (), without or ())
            named = [*(corpus or []), *(files or [])]  # `--corpus a b`: b comes as an argument
            read = read_corpus(
                named or [default_corpus(model)],
                unit=unit,
                limit=limit,
                skip_bad=skip_bad,
                columns=_columns(columns),
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
            result.provenance["command"] = printable(shlex.join(["headlens", *sys.argv[1:]]))
            progress("writing the report", 0, 1)
            report = result.save(folder)
        _tell(result, report)


@app.command("check")
def _check(model: ModelName, dtype: DType = "float32", device: Device = "cpu", revision: Revision = None) -> None:
    """Check that what headlens captures of MODEL is what the model computes."""
    with _plain_errors("the check did not finish"):
        with _progress() as progress:
            progress("loading the model", 0, 1)
            from headlens.models import load_model
            from headlens.selfcheck import check_model

            loaded = load_model(model, device=device, dtype=dtype, revision=revision, check=False)
            progress("checking the model against itself", 0, 1)
            check = check_model(loaded.model)
        typer.echo(f"Self-check {check.line}")


@corpora_app.command("show")
def _show(
    specs: Annotated[list[str], typer.Argument(metavar="KIND:FILE...", help="What to look into.", show_default=False)],
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model", help="A model or a folder with a tokenizer: how it splits the words.", show_default=False
        ),
    ] = None,
    unit: Unit = "line",
    limit: Limit = None,
    skip_bad: SkipBad = False,
    columns: Columns = None,
    parser: Parser = "en_core_web_sm",
    revision: CorpusRevision = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON in place of tables.")] = False,
) -> None:
    """Tell what is in a corpus: documents, sentences, words, relations, parts of speech, mentions, choices.

    Example: headlens corpus show conllu:en_ewt-ud-test.conllu --model minilm
    """
    with _plain_errors("nothing was shown"):
        from headlens.corpora import read_corpus
        from headlens.corpora.describe import describe

        corpus = read_corpus(
            specs,
            unit=unit,
            limit=limit,
            skip_bad=skip_bad,
            columns=_columns(columns),
            parser=parser,
            revision=revision,
        )
        found = describe(corpus)
        splits = {name: _splits(name, corpus) for name in dict.fromkeys(models or ())}
        if as_json:
            typer.echo(json.dumps({**found.to_dict(), "tokenizers": splits}, indent=2, ensure_ascii=False))
        else:
            _print_corpus(found, splits)


@corpora_app.command("grammar")
def _grammar(
    out: Annotated[Path, typer.Option(metavar="FILE", help="The CoNLL-U file to write.", show_default=False)],
    sentences: Annotated[int, typer.Option(min=1, help="How many; the last text may bring up to three more.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Another seed makes another corpus.")] = 0,
) -> None:
    """Write short English texts of a probabilistic grammar as CoNLL-U: dependencies and coreference by construction.

    Example: headlens corpus grammar --sentences 2000 --seed 0 --out g.conllu
    """
    with _plain_errors("nothing was written"):
        from headlens.corpora.conllu_writing import write_conllu
        from headlens.corpora.grammar import perplexity_bound, texts_of

        texts = texts_of(sentences, seed=seed)
        write_conllu((text.document for text in texts), out.expanduser())
        count = sum(len(text.document.sentences) for text in texts)
        words = sum(text.document.n_words for text in texts)
        typer.echo(f"{out}: {len(texts):,} texts, {count:,} sentences, {words:,} words")
        typer.echo(
            f"Perplexity of the grammar: {perplexity_bound(texts):.2f} a token, counting one token for the end of each "
            "text. The best possible model needs no more."
        )


def _splits(name: str, documents: Iterable[Document]) -> dict[str, int]:
    """How a tokenizer splits the annotated words; a model's weights are not loaded."""
    from headlens import models
    from headlens.checkpoints import find_checkpoint
    from headlens.words import split_counts

    with models._quiet():
        tokenizer = models._load_tokenizer(find_checkpoint(name), trust_remote_code=False)
    if tokenizer is None:
        raise UnsupportedModel(f"{name!r} has no tokenizer; name a model of text, or a folder with a tokenizer.json.")
    sentences = [sentence for document in documents for sentence in document.sentences]
    words, split, without_token = split_counts(sentences, tokenizer)
    return {"words": words, "split": split, "without_token": without_token}


def _print_corpus(found: Description, splits: dict[str, dict[str, int]]) -> None:
    from rich.console import Console
    from rich.table import Table

    # brackets in a name are no markup
    console = Console(markup=False, highlight=False, emoji=False, soft_wrap=True)

    def show(title: str, headings: list[str], rows: Iterable[tuple[str, ...]]) -> None:
        table = Table(title=title, title_justify="left", box=None, pad_edge=False, show_header=any(headings))
        for number, heading in enumerate(headings):
            table.add_column(heading, justify="right" if number else "left")
        for row in rows:
            table.add_row(*row)
        console.print(table)
        console.print()

    show("Corpus", ["", ""], _corpus_rows(found))
    if found.relations:
        show("Relations", ["relation", "words"], _relation_rows(found))
    if found.upos:
        show("Parts of speech", ["tag", "words"], [(tag, f"{count:,}") for tag, count in found.upos.items()])
    if found.choices:
        rows = [(group, f"{count:,}") for group, count in found.choices.groups.items()]
        show("Choices by group", ["group", "choices"], [("all", f"{found.choices.count:,}"), *rows])
    if splits:
        rows_of_splits = [(name, *(f"{count:,}" for count in counts.values())) for name, counts in splits.items()]
        show("Tokenizers", ["tokenizer", "words", "split", "without a token"], rows_of_splits)
    for note in found.notes:
        console.print(f"Note: {note}")
    if found.skipped:
        console.print(f"Skipped, because they could not be read: {found.skipped:,}. The first:")
        for example in found.skipped_examples:
            console.print(f"- {example}")


def _corpus_rows(found: Description) -> Iterator[tuple[str, str]]:
    for source in found.sources:
        yield "source", f"{source['kind']}:{source['name']}"
    yield "documents", f"{found.documents:,}"
    yield "a document is", found.unit_of_documents
    yield "characters", f"{found.characters:,}"
    if found.sentences:
        yield "sentences", f"{found.sentences:,}"
        yield "of a single word", f"{found.single_word_sentences:,}"
        yield "words", f"{found.words:,}"
        yield "stretches of text that several words share", f"{found.shared_spans:,}"
        yield "longest document, in words", f"{found.longest_document:,}"
        yield "longest sentence, in words", f"{found.longest_sentence:,}"
    if coreference := found.coreference:
        yield "documents with coreference", f"{coreference.documents:,}"
        yield "mentions", f"{coreference.mentions:,}"
        yield "entities", f"{coreference.entities:,}"
        yield "chains (of two mentions or more)", f"{coreference.chains:,}"
        yield "singletons (of one mention)", f"{coreference.singletons:,}"
    if choices := found.choices:
        yield "pronouns to resolve", f"{choices.count:,}"
        yield "of them without a right candidate", f"{choices.without_right_one:,}"


def _relation_rows(found: Description) -> Iterator[tuple[str, str]]:
    for name, relation in (found.relations or {}).items():
        yield name, f"{relation.count:,}"
        for subtype, count in relation.subtypes.items():
            yield f"  :{subtype}", f"{count:,}"


def _columns(given: str | None) -> dict[str, str] | None:
    """ "words=tokens,heads=head" as a mapping."""
    if given is None:
        return None
    pairs = [part.partition("=") for part in given.split(",")]
    if not all(ours.strip() and equals for ours, equals, _ in pairs):  # "text=": there is no such column
        raise CorpusError(f"--columns takes OURS=THEIRS, several with commas between them; got {given!r}.")
    named = [ours.strip() for ours, _, _ in pairs]
    if twice := [name for name in named if named.count(name) > 1]:
        raise CorpusError(f"--columns names {twice[0]} twice; give each of our columns one of theirs.")
    return {ours.strip(): theirs.strip() for ours, _, theirs in pairs}


def _verdicts(evidence: Evidence) -> str:
    """How many relations got each verdict, the best first."""
    from headlens.evidence_table import VERDICTS

    found = [row.verdict for row in evidence.relations]
    told = [f"{found.count(verdict)} {verdict}" for verdict in VERDICTS if verdict in found]
    return f"of {len(found)} relations and kinds of reference: {', '.join(told)}"


def _folder(out: Path | None, model: str) -> Path:
    if out is None:
        name = Path(model).expanduser().resolve().name if Path(model).expanduser().is_dir() else Path(model).name
        return Path("profiles") / (name or "model")
    if not str(out).strip():
        raise HeadlensError("--out is empty; name a folder.")
    return out.expanduser()


def _check_writable(folder: Path) -> None:
    """Before minutes of work, not after."""
    import tempfile

    try:
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not existing.is_dir():
            raise NotADirectoryError(f"{existing} is a file")
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as reason:
        raise OutputError(
            f"{folder} cannot be written to ({reason.strerror or reason}); choose another folder with --out."
        ) from None


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar with the time left, on the error stream so that output can be piped; silent where there is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=None)

        def show(what: str, done: int, of: int) -> None:
            bar.update(task, description=what, completed=done, total=of if done else None)

        yield show


@contextmanager
def _plain_errors(if_interrupted: str) -> Iterator[None]:
    """One sentence and a non-zero exit code, for everything that a user can cause."""
    try:
        yield
    except HeadlensError as error:
        typer.echo(f"headlens: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        typer.echo(f"headlens: interrupted; {if_interrupted}.", err=True)
        sys.exit(130)
    except (MemoryError, RuntimeError, ImportError) as error:
        # torch raises RuntimeErrors of its own for both; an interrupt inside an import comes wrapped in another
        if isinstance(error.__cause__, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt):
            typer.echo(f"headlens: interrupted; {if_interrupted}.", err=True)
            sys.exit(130)
        if not (isinstance(error, MemoryError) or re.search("out of memory|allocate memory", str(error))):
            raise
        typer.echo("headlens: out of memory; try a smaller --batch-tokens or --max-length.", err=True)
        sys.exit(1)


def _tell(result: Profile, report: Path) -> None:
    from headlens.report.behaviour import agreement_line
    from headlens.report.findings import findings

    model, corpus = result.provenance["model"], result.provenance["corpus"]
    typer.echo(f"{model['name']}: {result.scores.n_layers} layers x {result.scores.n_heads} heads")
    typer.echo(f"Corpus: {corpus['documents']:,} documents, {corpus['scored_tokens']:,} tokens scored")
    typer.echo(f"Self-check {result.provenance['selfcheck']['line']}")
    for note in result.provenance["notes"]:
        typer.echo(f"Note: {note}")
    for finding in findings(result.scores, result.evidence):
        typer.echo(f"- {finding.text}")
    if result.evidence is not None:
        typer.echo(f"Evidence: {_verdicts(result.evidence)}")
    if line := agreement_line(result.provenance):
        typer.echo(line)
    typer.echo(f"Report: {report}")
