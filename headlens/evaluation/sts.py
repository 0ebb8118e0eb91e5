"""Sentence similarity: does the cosine of two sentences rank pairs as people do?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headlens.documents import Document
from headlens.encode import check_vocabulary, encode, max_length_of
from headlens.errors import CorpusError
from headlens.evaluation.language import hidden_states
from headlens.evaluation.results import Metric, fingerprint, pearson, spearman
from headlens.evaluation.task import BATCH_TOKENS, Answers, Task
from headlens.models import LoadedModel, network_of

COLUMNS = {
    "first": ("sentence1", "sentence_A", "text1", "sentence_1"),
    "second": ("sentence2", "sentence_B", "text2", "sentence_2"),
    "score": ("score", "relatedness_score", "similarity_score", "similarity", "label"),
}


@dataclass(frozen=True)
class ScoredPair:
    first: str
    second: str
    score: float  # on any scale
    id: str


class Similarity(Task):
    """Spearman correlation between the scores of people and the cosine of the two embeddings; items are pairs.

    An embedding is the mean of the last hidden states over all tokens but padding, special ones included, as in
    sentence-transformers' mean pooling (Reimers & Gurevych 2019). A text longer than the model takes is read in
    windows, and the mean is over all of them.
    """

    metrics = (
        Metric("spearman", spearman("cosine", "score"), higher_is_better=True, alike=("score",)),
        Metric("pearson", pearson("cosine", "score"), higher_is_better=True, alike=("score",)),
    )

    def __init__(self, pairs: Sequence[ScoredPair], *, name: str = "sts", sources: Sequence[Any] = ()) -> None:
        if len({pair.score for pair in pairs}) < 2:
            raise CorpusError(f"{name}: a correlation needs pairs of different scores; got {len(pairs)} pairs of one.")
        self.pairs, self.name, self.sources = tuple(pairs), name, tuple(sources)
        self.items = tuple(pair.id for pair in pairs)
        self.fingerprint = fingerprint("sts", [(pair.first, pair.second, pair.score) for pair in pairs])

    def ask(self, loaded: LoadedModel, *, batch_tokens: int = BATCH_TOKENS) -> Answers:
        sentences = [
            Document(sentence, pair.id) for pair in self.pairs for sentence in (pair.first, pair.second)
        ]  # fmt: skip
        pooled, cut = _mean_pooled(loaded, sentences, batch_tokens)
        cosine = torch.nn.functional.cosine_similarity(pooled[::2], pooled[1::2], dim=-1)
        score = np.array([pair.score for pair in self.pairs])
        notes = (f"{cut} sentences are longer than the model takes and were read in windows.",) if cut else ()
        return Answers(
            {"cosine": cosine.numpy(), "score": score}, {"sources": [dict(source) for source in self.sources]}, notes
        )


def _mean_pooled(
    loaded: LoadedModel, sentences: Sequence[Document], batch_tokens: int
) -> tuple[Float[Tensor, "text hidden"], int]:
    """Embeddings in float64 on the CPU, and how many texts were cut."""
    network, tokenizer = network_of(loaded.model), loaded.require_tokenizer()
    most = max_length_of(loaded.model.config, tokenizer)
    encoded = encode(sentences, tokenizer, max_length=most, batch_tokens=batch_tokens)
    check_vocabulary(encoded, network, loaded.name)
    sums, counts = torch.zeros(0), torch.zeros(len(sentences), dtype=torch.float64)
    for batch in encoded.batches:
        hidden = hidden_states(network, batch.input_ids, batch.attention_mask)
        real = batch.attention_mask[..., None].to(hidden.device)
        part = hidden.double().where(real, 0).sum(dim=1).cpu()  # [batch, hidden]
        sums = sums if sums.numel() else torch.zeros(len(sentences), part.shape[-1], dtype=torch.float64)
        sums.index_add_(0, batch.document, part)
        counts.index_add_(0, batch.document, batch.attention_mask.sum(dim=-1).double())
    if not counts.all():
        missing = sentences[int((counts == 0).int().argmax())]
        raise CorpusError(f"{missing.id}: the tokenizer of {loaded.name!r} makes no token of a sentence; leave it out.")
    return sums / counts[:, None], encoded.cut_documents
