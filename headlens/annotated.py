"""How an annotated corpus is put before a model: the inputs, and what is scored on each set of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from headlens import rivals
from headlens.analyzers import DecisionAnalyzer, Phrases, Scorer, Shortlisted, Syntax
from headlens.analyzers.lexical import lexical
from headlens.documents import Document, Sentence
from headlens.encode import EncodedWords, encode_words
from headlens.errors import CorpusError
from headlens.evidence import Rival
from headlens.gold.arcs import FROM_HEAD, TO_HEAD, Arcs, dependencies, syntax_arcs
from headlens.gold.coreference import antecedents, chunks
from headlens.gold.phrases import phrasings
from headlens.gold.pronouns import pronoun_choices
from headlens.gold.scored_input import ScoredInput
from headlens.words import chunk_input, sentence_input

MINIMUM = 30  # decisions that a claim rests on at least

MakeRivals = Callable[[NDArray[np.int64], int], dict[str, Rival]]  # fold of each input, number of folds


@dataclass(frozen=True)
class Reading:
    """One set of inputs, and the analyzers that score them. `document_of` [input] counts the documents as given."""

    encoded: EncodedWords
    document_of: NDArray[np.int64]
    analyzers: tuple[Scorer, ...]
    rivals: Mapping[str, MakeRivals]  # by name of the analyzer
    counts: Mapping[str, int] = field(default_factory=dict)  # what was left out, and why
    asked: Mapping[str, int] = field(
        default_factory=dict
    )  # dependencies there are, and decisions made of them each way
    sentences: Sequence[Sentence] = ()  # by input, where each is one sentence
    scored: Mapping[int, ScoredInput] = field(default_factory=dict)  # by input, for those that the model reads

    @property
    def decisions(self) -> tuple[DecisionAnalyzer, ...]:
        return tuple(analyzer for analyzer in self.analyzers if isinstance(analyzer, DecisionAnalyzer))


def is_annotated(documents: Sequence[Document]) -> bool:
    return any(document.sentences for document in documents)


def read_sentences(
    documents: Sequence[Document],
    tokenizer: PreTrainedTokenizerBase,
    *,
    is_causal: bool,
    max_length: int,
    batch_tokens: int,
    with_lexical: bool = True,
) -> Reading:
    """Every sentence by itself: for position and surface, syntax, phrases and words, and choices of pronouns."""
    placed = [(number, sentence) for number, document in enumerate(documents) for sentence in document.sentences]
    sentences = [sentence for _, sentence in placed]
    encoded = encode_words(
        [sentence_input(sentence, number) for number, sentence in placed],
        tokenizer,
        max_length=max_length,
        batch_tokens=batch_tokens,
    )
    scored = scored_inputs(encoded, is_causal=is_causal)
    analyzers, made = list[Scorer](), dict[str, MakeRivals]()
    counts = dict[str, int]()
    arcs = syntax_arcs(sentences, scored)
    if len(arcs):
        analyzers.append(Syntax(arcs, _longest(scored), is_causal=is_causal))
        made["syntax"] = lambda fold_of, folds: _rivals_of_syntax(arcs, sentences, scored, fold_of, folds)
    if marks := phrasings(sentences, scored):
        analyzers.append(Phrases(marks, is_causal=is_causal))
    if with_lexical:
        analyzers += lexical(sentences, scored)
    document_of = np.array([number for number, _ in placed], dtype=np.int64)
    if any(document.choices for document in documents):
        _check_one_sentence_each(documents)
        choices = pronoun_choices({n: documents[number] for n, number in enumerate(document_of.tolist())}, scored)
        counts |= choices.left_out
        if len(choices):
            analyzers.append(Shortlisted("choice", choices, _longest(scored)))
            made["choice"] = lambda fold_of, folds: rivals.of_shortlists(choices, fold_of, folds)
    asked = _asked(arcs, [sentences[number] for number in scored])
    return Reading(encoded, document_of, tuple(analyzers), made, counts, asked, sentences, scored)


def read_chunks(
    documents: Sequence[Document],
    tokenizer: PreTrainedTokenizerBase,
    *,
    is_causal: bool,
    max_length: int,
    batch_tokens: int,
) -> Reading | None:
    """Stretches of documents of up to 120 words, for coreference; None where no mention has an antecedent."""
    listed = chunks(documents)
    if not any(chunk.mentions for chunk in listed):
        return None
    encoded = encode_words(
        [chunk_input(chunk.sentences, chunk.document) for chunk in listed],
        tokenizer,
        max_length=max_length,
        batch_tokens=batch_tokens,
    )
    scored = scored_inputs(encoded, is_causal=is_causal)
    found = antecedents(listed, scored)
    if not len(found):
        return None
    return Reading(
        encoded=encoded,
        document_of=np.array([chunk.document for chunk in listed], dtype=np.int64),
        analyzers=(Shortlisted("coref", found, _longest(scored)),),
        rivals={"coref": lambda fold_of, folds: rivals.of_shortlists(found, fold_of, folds)},
    )


def scored_inputs(encoded: EncodedWords, *, is_causal: bool) -> dict[int, ScoredInput]:
    """By input, for those that the model reads."""
    first = encoded.batches[0]
    has_sink = is_causal and not bool(first.special[0, int(first.first[0])])
    return {
        number: ScoredInput(present, is_causal, has_sink) for number, present in encoded.present.items()
    }  # fmt: skip


def _rivals_of_syntax(
    arcs: Arcs,
    sentences: Sequence[Sentence],
    scored: Mapping[int, ScoredInput],
    fold_of: NDArray[np.int64],
    folds: int,
) -> dict[str, Rival]:
    found = {rivals.OFFSET: rivals.constant_offset(arcs, fold_of, folds)}
    by_pos = rivals.by_part_of_speech(arcs, sentences, scored, fold_of, folds, minimum=MINIMUM)
    return found if by_pos is None else found | {rivals.BY_POS: by_pos}


def _check_one_sentence_each(documents: Sequence[Document]) -> None:
    for document in documents:
        if document.choices and len(document.sentences) != 1:
            raise CorpusError(
                f"{document.id}: a pronoun and its candidates are read as one input, so its document must be "
                f"one Sentence, however long; got {len(document.sentences)}."
            )


def _asked(arcs: Arcs, sentences: Sequence[Sentence]) -> dict[str, int]:
    """A causal model is asked about a dependency in one direction only, and about none with its sink."""
    stems = [arcs.labels[label].partition("[")[0] for label in arcs.label]
    return {
        "dependencies": sum(1 for sentence in sentences for _ in dependencies(sentence)),
        "dep_to_head": stems.count(TO_HEAD),
        "head_to_dep": stems.count(FROM_HEAD),
    }


def _longest(scored: Mapping[int, ScoredInput]) -> int:
    return max(one.present.size for one in scored.values())
