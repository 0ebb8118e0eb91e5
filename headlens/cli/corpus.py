"""`headlens corpus`: what is in a corpus, and one of made-up English."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headlens.cli.corpus_tables import print_corpus
from headlens.cli.options import Columns, CorpusRevision, Limit, Parser, SkipBad, Unit, columns_of, path_of
from headlens.cli.terminal import interrupts_held, plain_errors
from headlens.errors import UnsupportedModel

if TYPE_CHECKING:
    from headlens.documents import Document

corpora_app = typer.Typer(
    help="Corpora, each named as KIND:FILE, or as a file that tells its own kind.\n\n"
    "Kinds: text (plain text), conllu (a treebank), gum (a treebank with coreference, as GUM), conll2012 and litbank "
    "(coreference), gap, winobias and winograd (pronouns and their candidates), parse (plain text, parsed by spaCy), "
    "data (a parquet, JSON, CSV or TSV file), hub (a data set of the hub: hub:owner/name:config@split), grammar "
    "(made-up English with gold: grammar:SENTENCES or grammar:SENTENCES@SEED).",
    no_args_is_help=True,
)


@corpora_app.command("show")
def show(
    specs: Annotated[list[str], typer.Argument(metavar="KIND:FILE", help="What to look into.", show_default=False)],
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
    with plain_errors("nothing was shown"):
        from headlens.corpora import read_corpus
        from headlens.corpora.describe import describe

        corpus = read_corpus(
            specs,
            unit=unit,
            limit=limit,
            skip_bad=skip_bad,
            columns=columns_of(columns),
            parser=parser,
            revision=revision,
        )
        found = describe(corpus)
        splits = {name: _splits(name, corpus) for name in dict.fromkeys(models or ())}
        if as_json:
            typer.echo(json.dumps({**found.to_dict(), "tokenizers": splits}, indent=2, ensure_ascii=False))
        else:
            print_corpus(found, splits)


@corpora_app.command("grammar")
def grammar(
    out: Annotated[
        Path, typer.Option(metavar="FILE", parser=path_of, help="The CoNLL-U file to write.", show_default=False)
    ],
    sentences: Annotated[int, typer.Option(min=1, help="How many; the last text may bring up to three more.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Another seed makes another corpus.")] = 0,
) -> None:
    """Write short English texts of a probabilistic grammar as CoNLL-U: dependencies and coreference by construction.

    Example: headlens corpus grammar --sentences 2000 --seed 0 --out g.conllu
    """
    with plain_errors("nothing was written"):
        from headlens.corpora.conllu_writing import write_conllu
        from headlens.corpora.grammar import perplexity_bound, texts_of

        texts = texts_of(sentences, seed=seed)
        write_conllu((text.document for text in texts), out)
        count = sum(len(text.document.sentences) for text in texts)
        words = sum(text.document.n_words for text in texts)
        typer.echo(f"{out}: {len(texts):,} texts, {count:,} sentences, {words:,} words")
        typer.echo(
            f"Perplexity of the grammar: {perplexity_bound(texts):.2f} a token, counting one token for the end of each "
            "text. The best possible model needs no more."
        )


def _splits(name: str, documents: Iterable[Document]) -> dict[str, int]:
    """How a tokenizer splits the annotated words; a model's weights are not loaded."""
    with interrupts_held():
        from headlens import models
        from headlens.checkpoints import find_checkpoint
        from headlens.words import split_counts

    with models.quiet():
        tokenizer = models.load_tokenizer(find_checkpoint(name), trust_remote_code=False)
    if tokenizer is None:
        raise UnsupportedModel(f"{name!r} has no tokenizer; name a model of text, or a folder with a tokenizer.json.")
    sentences = [sentence for document in documents for sentence in document.sentences]
    words, split, without_token = split_counts(sentences, tokenizer)
    return {"words": words, "split": split, "without_token": without_token}
