"""Whether heads carry agreement: gate them, and see how often the model still prefers the right form of a verb.

The texts are those of the grammar, where it is known which form is right. Most sets of heads do some harm when they are
taken out, so heads are held against random sets of as many others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations, islice
from math import comb
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headlens.arch import attention_sites, heads_present, is_causal_model
from headlens.behaviour.unembedding import VocabularyHead, vocabulary_head
from headlens.capture import capture
from headlens.corpora import Corpus
from headlens.corpora.grammar import Forced, GrammarText, grammar_texts
from headlens.corpora.kinds import GRAMMAR
from headlens.encode import EncodedWords, encode_words, max_length_of
from headlens.errors import CorpusError, UnsupportedModel
from headlens.evidence_table import Evidence
from headlens.gates import gates_without
from headlens.models import LoadedModel, head_counts, network_of
from headlens.numbers import layers_of_heads
from headlens.records import Batch
from headlens.scores import head_name
from headlens.words import WordInput, align, chunk_input

SETS = 100  # of random heads
MOST_TEXTS = 120
ALPHA = 0.05
_OTHER_SEED = 500_000  # of the texts that agreement is asked on
_KIND = "verb number"

_SUBJECT_VERB = "subject_verb."  # metrics of evidence

Head = tuple[int, int]
Say = Callable[[str], None]  # told what is being done


@dataclass(frozen=True)
class AgreementAblation:
    """Shares of verbs whose right form was more probable than the other one, given the words before it."""

    heads: tuple[Head, ...]  # that were gated to 0
    verbs: int
    intact: float
    ablated: float
    random: tuple[float, ...]  # of every random set
    across: int  # verbs with a noun of the other number between them and their subject
    intact_across: float  # NaN where there is none
    ablated_across: float
    random_across: tuple[float, ...] = ()  # of every random set

    @property
    def p(self) -> float:
        """Share of the sets, the named one among them, that leave no more verbs right than the named one."""
        return (1 + sum(share <= self.ablated for share in self.random)) / (1 + len(self.random))

    @property
    def does_harm(self) -> bool:
        """More than nearly all random sets do."""
        return self.p <= ALPHA and self.ablated < self.intact

    def to_dict(self) -> dict[str, Any]:
        """Plain values, heads by their names."""
        found = asdict(self) | {"heads": [head_name(*head) for head in self.heads]}
        found |= {"random": list(self.random), "random_across": list(self.random_across)}
        return found | {"p": self.p, "does_harm": self.does_harm}


def agreement_of_claims(
    model: LoadedModel, corpus: Corpus, evidence: Evidence, *, seed: int, say: Say
) -> tuple[dict[str, Any], list[str]]:
    """What gating does of the heads that evidence names for subject and verb: an entry of the provenance, and notes.

    Nothing for other corpora than the grammar. The texts are others than those that named the heads.
    """
    if {source["kind"] for source in corpus.sources} != {GRAMMAR}:
        return {}, []
    if not is_causal_model(network_of(model.model)):
        return {}, [
            "The model predicts no next word, so it was not asked whether agreement suffers without some heads."
        ]
    heads = sorted({(claim.layer, claim.head) for claim in evidence.claims() if claim.metric.startswith(_SUBJECT_VERB)})
    if not heads:
        return {}, ["No head is named for subject and verb, so it was not asked whether agreement suffers without it."]
    say("taking heads out")
    texts = list(islice(grammar_texts(_OTHER_SEED + corpus.sources[0]["seed"]), MOST_TEXTS))
    try:
        found = ablate_agreement(model, model.require_tokenizer(), texts, heads, seed=seed)
    except (CorpusError, UnsupportedModel) as reason:
        return {}, [f"Agreement was not asked with heads taken out: {reason}"]
    return {"agreement": found.to_dict()}, []


class _Question(NamedTuple):
    row: int
    token: int  # before the verb
    right: int  # ids
    wrong: int
    has_attractor: bool


@dataclass(frozen=True, eq=False)
class _Asked:
    """One batch and what is asked of it."""

    batch: Batch
    questions: list[_Question]


def ablate_agreement(
    model: PreTrainedModel | LoadedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[GrammarText],
    heads: Sequence[Head],
    *,
    sets: int = SETS,
    seed: int = 0,
) -> AgreementAblation:
    """Gate `heads` to 0, and `sets` times as many random other heads, and count the verbs that the model gets right.

    No random set comes twice; where the model has no more than `sets` of them, all are gated.

    Asked are verbs with one right form, where that form and the other one are one token each.

    Raises
    ------
    UnsupportedModel
        A model without a plain vocabulary head; see `vocabulary_head`.
    CorpusError
        No head is named, one is not there or was removed, or nothing can be asked.
    """
    network = network_of(model.model if isinstance(model, LoadedModel) else model)
    counts = head_counts(network.config)
    shape = counts["layers"], counts["heads"]
    present = heads_present(attention_sites(network))
    there = (
        set(np.ndindex(*shape)) if present is None else {(layer, head) for layer, head in present.nonzero().tolist()}
    )
    _check_heads(heads, shape, there)
    vocabulary = vocabulary_head(model)
    asked = list(_asked(network, tokenizer, texts))
    if not any(one.questions for one in asked):
        raise CorpusError("No verb of the texts has two forms of one token each, so agreement cannot be asked.")
    intact, ablated = (_right(network, vocabulary, asked, gates_without(shape, off)) for off in ([], heads))
    across = np.array([question.has_attractor for one in asked for question in one.questions])
    others = sorted(there - set(heads))
    pool = others if len(others) >= len(heads) else sorted(there)
    drawn = _sets(pool, len(heads), sets, np.random.default_rng(seed))
    random = [_right(network, vocabulary, asked, gates_without(shape, off)) for off in drawn]
    return AgreementAblation(
        heads=tuple(heads),
        verbs=len(across),
        intact=float(intact.mean()),
        ablated=float(ablated.mean()),
        random=tuple(float(right.mean()) for right in random),
        across=int(across.sum()),
        intact_across=float(intact[across].mean()) if across.any() else float("nan"),
        ablated_across=float(ablated[across].mean()) if across.any() else float("nan"),
        random_across=tuple(float(right[across].mean()) for right in random if across.any()),
    )


def _sets(pool: Sequence[Head], size: int, count: int, draw: np.random.Generator) -> list[tuple[Head, ...]]:
    """So many random sets of that size, no two alike; where there are no more than so many, all."""
    if comb(len(pool), size) <= count:
        return list(combinations(pool, size))
    found: dict[tuple[int, ...], None] = {}  # in the order in which they came
    while len(found) < count:
        found[tuple(sorted(draw.choice(len(pool), size, replace=False).tolist()))] = None
    return [tuple(pool[place] for place in places) for places in found]


def _check_heads(heads: Sequence[Head], shape: tuple[int, int], there: set[Head]) -> None:
    if not heads:
        raise CorpusError("Name at least one head to gate.")
    for layer, head in heads:
        if not (0 <= layer < shape[0] and 0 <= head < shape[1]):
            raise CorpusError(f"The model has {layers_of_heads(*shape)}, no {head_name(layer, head)}.")
        if (layer, head) not in there:
            raise CorpusError(f"{head_name(layer, head)} was removed from the model: gate one that is there.")


def _right(
    network: PreTrainedModel, vocabulary: VocabularyHead, asked: Sequence[_Asked], gates: Tensor
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """[verb]: whether its right form got the larger logit."""
    found = []
    with torch.inference_mode(), capture(network, gates=gates.to(network.device, network.dtype), way="fast"):
        for one in asked:
            if not one.questions:
                continue
            batch = one.batch.to(network.device)
            hidden = network(batch.input_ids, attention_mask=batch.attention_mask.long()).last_hidden_state
            row, token, right, wrong, _ = (torch.tensor(column) for column in zip(*one.questions, strict=True))
            logits = vocabulary.logits(hidden[row, token])
            index = torch.arange(len(row))
            found.append((logits[index, right] > logits[index, wrong]).cpu().numpy())
    return np.concatenate(found)


def _asked(
    network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[GrammarText]
) -> Iterator[_Asked]:
    inputs = [chunk_input(text.document.sentences, number) for number, text in enumerate(texts)]
    encoded: EncodedWords = encode_words(inputs, tokenizer, max_length=max_length_of(network.config, tokenizer))
    for batch in encoded.batches:
        assert batch.input_index is not None
        assert batch.words is not None
        questions = []
        for row, number in enumerate(batch.input_index.tolist()):
            verbs = [forced for forced in texts[number].forced if forced.kind == _KIND]
            others = other_ids(inputs[number], verbs, tokenizer)
            for forced, wrong in zip(verbs, others, strict=True):
                start, stop = batch.words[row, forced.word].tolist()
                if wrong is not None and stop - start == 1 and start > 0:
                    right = int(batch.input_ids[row, start])
                    questions.append(_Question(row, start - 1, right, wrong, forced.has_attractor))
        yield _Asked(batch, questions)


def other_ids(item: WordInput, verbs: Sequence[Forced], tokenizer: PreTrainedTokenizerBase) -> list[int | None]:
    """The id of the wrong form in the place of each verb; None where it is not one token."""
    if not verbs:
        return []
    found = list[int | None]()
    for forced, aligned in zip(verbs, align([_with(item, forced) for forced in verbs], tokenizer), strict=True):
        start, stop = aligned.ranges[forced.word]
        found.append(int(aligned.ids[start]) if stop - start == 1 else None)
    return found


def _with(item: WordInput, forced: Forced) -> WordInput:
    """The same input with the wrong form in the place of the right one."""
    start, stop = item.spans[forced.word]
    wrong = forced.wrong[0]
    longer = len(wrong) - (stop - start)
    spans = [(a + longer * (a >= stop), b + longer * (b >= stop)) for a, b in item.spans]
    words = [wrong if place == forced.word else word for place, word in enumerate(item.words)]
    return replace(item, words=tuple(words), text=item.text[:start] + wrong + item.text[stop:], spans=tuple(spans))
