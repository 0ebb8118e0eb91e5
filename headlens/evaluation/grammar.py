"""Agreement and coreference in the grammar's texts, where one form of a word is right and others are not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from headlens.behaviour.agreement import other_ids
from headlens.corpora.grammar import KINDS, Forced, GrammarText, texts_of
from headlens.corpora.kinds import size_of_grammar
from headlens.encode import encode_words, max_length_of
from headlens.errors import CorpusError
from headlens.evaluation.language import Asked, Ints, LanguageModel, language_model, masked_tokens
from headlens.evaluation.results import Metric, fingerprint, ratio
from headlens.evaluation.task import BATCH_TOKENS, Answers, Task
from headlens.models import LoadedModel
from headlens.words import WordInput, chunk_input, id_of

AGREEMENT, COREFERENCE, ACROSS = "agreement", "coreference", " across another noun"
_GROUPS = {kind: AGREEMENT if kind == "verb number" else COREFERENCE for kind in KINDS}


class Grammar(Task):
    """Share of words whose right form is more probable than every form that the grammar excludes; items are texts.

    Agreement: the number of verbs. Coreference: pronouns, possessives and reflexives, whose form tells whom they
    mean. "Across another noun": one that would ask for another form stands between. A decoder is asked with the words
    before, an encoder with all other words and the asked one masked. Words of which a form is not one token of
    its own are left out.
    """

    metrics = tuple(
        Metric(
            name,
            ratio(f"{name}, right", f"{name}, asked"),
            higher_is_better=True,
            alike=(f"{name}, asked",),
            decisions=(f"{name}, asked", "word"),
        )
        for name in (AGREEMENT, AGREEMENT + ACROSS, COREFERENCE, COREFERENCE + ACROSS)
    )
    item = "document"

    def __init__(self, texts: Sequence[GrammarText], *, name: str = "grammar") -> None:
        if not texts:
            raise CorpusError(f"{name}: there is no text; give at least one.")
        self.texts, self.name = tuple(texts), name
        self.items = tuple(text.document.id for text in texts)
        self.fingerprint = fingerprint("grammar", [text.document.text for text in texts])

    @classmethod
    def of(cls, size: str, *, name: str = "grammar") -> Grammar:
        """Of "SENTENCES" or "SENTENCES@SEED"."""
        sentences, seed = size_of_grammar(size)
        return cls(texts_of(sentences, seed=seed), name=name)

    def ask(self, loaded: LoadedModel, *, batch_tokens: int = BATCH_TOKENS) -> Answers:
        model = language_model(loaded)
        columns = {
            f"{metric.name}, {what}": np.zeros(len(self.items))
            for metric in self.metrics
            for what in ("right", "asked")
        }
        inputs = list(_inputs(self.texts, model, max_length_of(loaded.model.config, model.tokenizer)))
        if not inputs:
            raise CorpusError(
                f"{self.name}: the tokenizer of {loaded.name!r} makes one token of every form, and tells all of them "
                f"apart, of no word of the texts, so nothing can be asked."
            )
        for item, question, is_right in _answers(model, inputs, batch_tokens):
            for name in question.names:
                columns[f"{name}, right"][item] += is_right
                columns[f"{name}, asked"][item] += 1
        of_words, questions = sum(len(text.forced) for text in self.texts), sum(len(one.questions) for one in inputs)
        return Answers(columns, {"words_asked": questions, "words_left_out": of_words - questions})


@dataclass(frozen=True, eq=False)
class _Question:
    place: int  # of the word in the input
    wrong: tuple[int, ...]  # ids
    names: tuple[str, ...]  # of the metrics that count it


@dataclass(frozen=True, eq=False)
class _Input:
    """What is read at once, and a question for each place that is asked for."""

    asked: Asked
    questions: tuple[_Question, ...]


def _inputs(texts: Sequence[GrammarText], model: LanguageModel, most: int) -> Iterator[_Input]:
    """Shortest first."""
    words = [chunk_input(text.document.sentences, number) for number, text in enumerate(texts)]
    for batch in encode_words(words, model.tokenizer, max_length=most).batches:
        assert batch.input_index is not None
        assert batch.words is not None
        for row, number in enumerate(batch.input_index.tolist()):
            ids = batch.input_ids[row][batch.attention_mask[row]].numpy()
            ranges = batch.words[row].tolist()
            questions = [
                question
                for question in _questions(words[number], texts[number].forced, ranges, model)
                if ids[question.place] not in question.wrong  # else both are the unknown token
            ]
            if questions:
                yield from _asked(number, ids, questions, model)


def _questions(
    item: WordInput, forced: Sequence[Forced], ranges: Sequence[Sequence[int]], model: LanguageModel
) -> Iterator[_Question]:
    """Of words all of whose forms are one token each."""
    single = [replace(one, wrong=(form,)) for one in forced for form in one.wrong]
    ids = iter(other_ids(item, single, model.tokenizer))
    for one in forced:
        wrong = [next(ids) for _ in one.wrong]
        start, stop = ranges[one.word]
        if stop - start == 1 and start > 0 and wrong and None not in wrong:
            name = _GROUPS[one.kind]
            names = (name, name + ACROSS) if one.has_attractor else (name,)
            yield _Question(start, tuple(found for found in wrong if found is not None), names)


def _asked(item: int, ids: Ints, questions: Sequence[_Question], model: LanguageModel) -> Iterator[_Input]:
    places = np.array([question.place for question in questions])
    if model.is_causal:
        yield _Input(Asked(item, ids, places - 1, ids[places]), tuple(questions))
        return
    mask = id_of(model.tokenizer, "mask_token")
    assert mask is not None
    for masked, question in zip(masked_tokens(item, ids, places, mask), questions, strict=True):
        yield _Input(masked, (question,))


def _answers(
    model: LanguageModel, inputs: Sequence[_Input], batch_tokens: int
) -> Iterator[tuple[int, _Question, bool]]:
    """Item, question, and whether the right form has the largest logit of all its forms, alone."""
    questions = iter([question for one in inputs for question in one.questions])
    for asked, logits in model.rows((one.asked for one in inputs), batch_tokens=batch_tokens):
        for right, row in zip(asked.right.tolist(), logits, strict=True):
            question = next(questions)
            wrong = row[torch.tensor(question.wrong, device=row.device)]
            yield asked.item, question, bool((row[right] > wrong).all())
