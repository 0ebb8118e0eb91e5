"""How well an encoder fills gaps: each token masked once, by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from headlens.documents import Document
from headlens.encode import encode, max_length_of
from headlens.errors import CorpusError
from headlens.evaluation.language import Asked, masked_model, masked_tokens
from headlens.evaluation.results import Metric, exponential, fingerprint, ratio
from headlens.evaluation.task import BATCH_TOKENS, Answers, Task
from headlens.models import LoadedModel
from headlens.records import Batch
from headlens.words import id_of

ACCURACY, PSEUDO_PERPLEXITY = "accuracy of masked tokens", "pseudo-perplexity per token"


class MaskedWords(Task):
    """Share of tokens that are the most probable in their place, and e to the mean loss in nats (Salazar et al. 2020).

    Every token of the text is masked once while all others are seen; items are documents. Those longer than the model
    takes are cut into windows.
    """

    metrics = (
        Metric(ACCURACY, ratio("right", "tokens"), True, alike=("tokens",), decisions=("tokens", "token")),
        Metric(
            PSEUDO_PERPLEXITY, exponential("loss", "tokens"), False, alike=("tokens",), decisions=("tokens", "token")
        ),
    )
    item = "document"

    def __init__(self, documents: Sequence[Document], *, name: str = "masked", sources: Sequence[Any] = ()) -> None:
        if not documents:
            raise CorpusError(f"{name}: there is no document; give at least one.")
        self.documents, self.name, self.sources = tuple(documents), name, tuple(sources)
        self.items = tuple(document.id for document in documents)
        self.fingerprint = fingerprint("masked", [document.text for document in documents])

    def ask(self, loaded: LoadedModel, *, batch_tokens: int = BATCH_TOKENS) -> Answers:
        model = masked_model(loaded)
        most = max_length_of(loaded.model.config, model.tokenizer)
        encoded = encode(self.documents, model.tokenizer, max_length=most)
        mask = id_of(model.tokenizer, "mask_token")
        assert mask is not None
        loss, tokens, right = (np.zeros(len(self.items)) for _ in range(3))
        for said in model.say(_asked(encoded.batches, mask), batch_tokens=batch_tokens):
            loss[said.item] -= said.log_probs.sum()
            tokens[said.item] += len(said.log_probs)
            right[said.item] += said.is_first.sum()
        facts = {
            "tokens": encoded.scored_tokens,
            "unknown_tokens": encoded.unknown,
            "cut_documents": encoded.cut_documents,
            "sources": [dict(source) for source in self.sources],
        }
        return Answers({"loss": loss, "tokens": tokens, "right": right}, facts)


def _asked(batches: Sequence[Batch], mask: int) -> Iterator[Asked]:
    for batch in batches:
        for row, document in enumerate(batch.document.tolist()):
            real = batch.attention_mask[row]
            ids, special = batch.input_ids[row][real].numpy(), batch.special[row][real].numpy()
            yield from masked_tokens(document, ids, np.flatnonzero(~special), mask)
