"""What is in a corpus, as tables on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headlens.corpora.describe import Description


def print_corpus(found: Description, splits: dict[str, dict[str, int]]) -> None:
    """Sources and counts, relations, parts of speech, choices, and how each tokenizer splits the words."""
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
