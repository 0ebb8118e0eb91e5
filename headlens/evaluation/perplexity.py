"""Perplexity of a decoder over a corpus, with a sliding window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from headlens.documents import Document
from headlens.encode import max_length_of
from headlens.errors import CorpusError
from headlens.evaluation.language import Asked, TokenText, causal_model, next_tokens, token_texts
from headlens.evaluation.results import Metric, exponential, fingerprint
from headlens.evaluation.task import BATCH_TOKENS, Answers, Task
from headlens.models import LoadedModel

PER_TOKEN, PER_WORD = "perplexity per token", "perplexity per word"


class Perplexity(Task):
    """e to the mean loss in nats of every token given those before it; items are documents.

    A document is read in windows of `window` tokens, each `stride` tokens after the one before; a token is scored once,
    in the first window that holds it, and has at least `window - stride` tokens before it there (fewer only where the
    document begins). What the tokenizer puts in front of a text stands in front of every window and counts in it; where
    it puts nothing, the first token of a document cannot be scored. What it puts behind a text is left out.

    Per word, the summed loss is divided by the words: those of the annotation where there is one, else what stands
    between white space. So models with different tokenizers can be compared, except in languages without spaces.
    """

    metrics = (
        Metric(PER_TOKEN, exponential("loss", "tokens"), False, alike=("tokens",), decisions=("tokens", "token")),
        Metric(PER_WORD, exponential("loss", "words"), False, alike=("words",), decisions=("words", "word")),
    )
    item = "document"

    def __init__(
        self,
        documents: Sequence[Document],
        *,
        name: str = "perplexity",
        window: int | None = None,  # None: as many tokens as the model takes
        stride: int | None = None,  # None: half a window
        sources: Sequence[Any] = (),
    ) -> None:
        if not documents:
            raise CorpusError(f"{name}: there is no document; give at least one.")
        for what, size in (("window", window), ("stride", stride)):
            if size is not None and size < 1:
                raise CorpusError(f"{name}: the {what} is a number of tokens from 1 on; got {size}.")
        self.documents, self.name, self.window, self.stride = tuple(documents), name, window, stride
        self.sources = tuple(sources)
        self.items = tuple(document.id for document in documents)
        self.fingerprint = fingerprint("perplexity", window, stride, [document.text for document in documents])

    def ask(self, loaded: LoadedModel, *, batch_tokens: int = BATCH_TOKENS) -> Answers:
        model = causal_model(loaded)
        texts = token_texts(self.documents, model.tokenizer)
        window = _Window.of(self, texts[0].before.size, max_length_of(loaded.model.config, model.tokenizer))
        loss, tokens = np.zeros(len(self.items)), np.zeros(len(self.items))
        pieces = (piece for text in texts for piece in _pieces(text, window))
        for said in model.say(sorted(pieces, key=lambda piece: len(piece.ids)), batch_tokens=batch_tokens):
            loss[said.item] -= said.log_probs.sum()
            tokens[said.item] += len(said.log_probs)
        if not tokens.any():
            raise CorpusError(f"{self.name}: every document is a single token, so no next one can be asked for.")
        words = np.array([float(words_of(document)) for document in self.documents])
        unscored = sum(len(text.ids) for text in texts) - int(tokens.sum())
        facts = {
            "window": window.room + window.before,
            "stride": window.stride,
            "tokens": int(tokens.sum()),
            "unscored_tokens": unscored,
            "words": int(words.sum()),
            "words_are": "annotated" if any(document.sentences for document in self.documents) else "between spaces",
            "sources": [dict(source) for source in self.sources],
        }
        return Answers({"loss": loss, "tokens": tokens, "words": words}, facts)


def words_of(document: Document) -> int:
    """Annotated words, or stretches between white space."""
    return document.n_words or len(document.text.split())


class _Window(NamedTuple):
    room: int  # tokens of the text in a window
    stride: int
    before: int  # tokens that the tokenizer puts in front

    @classmethod
    def of(cls, task: Perplexity, before: int, most: int) -> _Window:
        window = most if task.window is None else task.window
        if window > most:
            raise CorpusError(f"{task.name}: the window is {window} tokens, the model takes {most}; make it smaller.")
        room = window - before
        # without a token in front, a window begins with one that another window has scored
        largest = room - (0 if before else 1)
        if largest < 1:
            raise CorpusError(f"{task.name}: the window must hold at least {2 + before} tokens; got {window}.")
        stride = max(1, min(largest, window // 2)) if task.stride is None else task.stride
        if stride > largest:
            raise CorpusError(
                f"{task.name}: a stride of {stride} tokens leaves some unscored in a window of {window}; take at most "
                f"{largest}."
            )
        return cls(room, stride, before)


def _pieces(text: TokenText, window: _Window) -> Iterator[Asked]:
    """The windows of one document, and in each the tokens that no window before it has scored."""
    scored, stop = 0, min(window.room, len(text.ids))
    while scored < len(text.ids):
        start = max(0, stop - window.room)
        whole = next_tokens(text.item, text.before, text.ids[start:stop])
        fresh = whole.read + 1 - window.before + start >= scored
        if fresh.any():
            yield Asked(text.item, whole.ids, whole.read[fresh], whole.right[fresh])
        scored, stop = stop, min(stop + window.stride, len(text.ids))
