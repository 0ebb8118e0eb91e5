"""Pairs of a good and a bad sentence, as in BLiMP (Warstadt et al. 2020) and SLING (Song et al. 2022)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headlens.documents import Document
from headlens.encode import max_length_of
from headlens.errors import CorpusError
from headlens.evaluation.language import (
    Asked,
    LanguageModel,
    TokenText,
    check_length,
    language_model,
    masked_tokens,
    next_tokens,
    start_ids,
    token_texts,
)
from headlens.evaluation.results import Metric, fingerprint, mean
from headlens.evaluation.task import BATCH_TOKENS, Answers, Task
from headlens.models import LoadedModel
from headlens.significance import Floats
from headlens.words import id_of


@dataclass(frozen=True)
class Pair:
    good: str
    bad: str
    id: str  # "file.jsonl, line 3"
    group: str = ""  # paradigm


class MinimalPairs(Task):
    """Share of pairs of which the good sentence is the more probable one; a tie counts half.

    Of a decoder the summed log-probability of all tokens, the first one too: a sentence stands behind what the
    tokenizer puts there, or else behind the token that begins or ends texts. Of an encoder the pseudo-log-likelihood,
    each token masked once (Salazar et al. 2020). No correction for length. Two sentences of the same tokens are a tie.
    """

    metrics = (
        Metric("accuracy", mean("right"), higher_is_better=True),
        Metric("margin", mean("margin"), higher_is_better=True),  # log-probability of the good less the bad, nats
    )

    def __init__(self, pairs: Sequence[Pair], *, name: str = "blimp", sources: Sequence[Any] = ()) -> None:
        if not pairs:
            raise CorpusError(f"{name}: there is no pair; give at least one.")
        self.pairs, self.name, self.sources = tuple(pairs), name, tuple(sources)
        self.items = tuple(pair.id for pair in pairs)
        self.fingerprint = fingerprint("pairs", [(pair.good, pair.bad) for pair in pairs])

    def ask(self, loaded: LoadedModel, *, batch_tokens: int = BATCH_TOKENS) -> Answers:
        model = language_model(loaded)
        texts = self._texts(model)
        most = max_length_of(loaded.model.config, model.tokenizer)
        asked = sorted(_asked(texts, model, self._place, most), key=lambda one: len(one.ids))
        sums = np.zeros(2 * len(self.pairs))
        for said in model.say(asked, batch_tokens=batch_tokens):
            sums[said.item] += said.log_probs.sum()
        same = np.array([np.array_equal(a.ids, b.ids) for a, b in zip(texts[::2], texts[1::2], strict=True)])
        margin = np.where(same, 0.0, sums[::2] - sums[1::2])
        right = np.where(margin == 0, 0.5, margin > 0)
        facts = {
            "ties": int((margin == 0).sum()),
            "score": "log-probability" if model.is_causal else "pseudo-log-likelihood",
            "groups": self._by_group(right),
            "sources": [dict(source) for source in self.sources],
        }
        return Answers({"right": right, "margin": margin}, facts)

    def _texts(self, model: LanguageModel) -> list[TokenText]:
        """Good and bad of every pair, in turns."""
        sentences = [sentence for pair in self.pairs for sentence in (pair.good, pair.bad)]
        documents = [Document(sentence, self._place(number)) for number, sentence in enumerate(sentences)]
        texts = token_texts(documents, model.tokenizer)
        if len(texts) < len(sentences):
            missing = min(set(range(len(sentences))) - {text.item for text in texts})
            raise CorpusError(f"{self._place(missing)}: the tokenizer of {model.name!r} makes no token of a sentence.")
        return texts

    def _place(self, item: int) -> str:
        return self.pairs[item // 2].id

    def _by_group(self, right: Floats) -> dict[str, float]:
        groups = Counter(pair.group for pair in self.pairs)
        of = np.array([pair.group for pair in self.pairs])
        return {group: float(right[of == group].mean()) for group in groups}


def _asked(texts: Sequence[TokenText], model: LanguageModel, place: Any, most: int) -> Iterator[Asked]:
    mask = id_of(model.tokenizer, "mask_token")
    for text in texts:
        if model.is_causal:
            one = next_tokens(text.item, start_ids(text, model.tokenizer), text.ids)
            check_length(len(one.ids), most, place(text.item))
            yield one
        else:
            assert mask is not None
            ids = np.concatenate([text.before, text.ids, text.after])
            check_length(len(ids), most, place(text.item))
            places = np.arange(text.before.size, text.before.size + text.ids.size)
            yield from masked_tokens(text.item, ids, places, mask)
