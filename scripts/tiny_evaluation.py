"""What the two small models that headlens carries have learnt of their grammar."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeAlias, TypeVar

import torch
from tiny_tokenizers import FIRST_WORD
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from headlens.corpora.grammar import Forced, GrammarText

T = TypeVar("T")
Outcome: TypeAlias = tuple[Forced, bool]  # and whether the model had it right
Figures: TypeAlias = dict[str, Any]  # ready for JSON


def evaluate_gpt2(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, texts: Sequence[GrammarText]) -> Figures:
    """Perplexity beside the grammar's own, right forms given what stands before them, the best induction head."""
    losses, outcomes = 0.0, list[Outcome]()
    for batch in _in_batches(texts):
        ids = [[*token_ids(text, tokenizer), tokenizer.eos_token_id] for text in batch]
        log_probs = _log_probs(model, tokenizer, ids)
        for text, row, of_text in zip(batch, ids, log_probs, strict=True):
            losses -= float(of_text[torch.arange(len(row) - 1), row[1:]].sum())
            # what predicts word w is the token before it, and that has the index w: the first token is no word
            outcomes += [(forced, is_right(forced, of_text[forced.word], tokenizer)) for forced in text.forced]
    tokens = sum(text.document.n_words + 1 for text in texts)  # one for the end
    perplexity, bound = math.exp(losses / tokens), math.exp(-sum(text.log_probability for text in texts) / tokens)
    return {
        "texts": len(texts),
        "tokens": tokens,
        "perplexity": perplexity,
        "perplexity of the grammar": bound,
        "ratio": perplexity / bound,
        "forced words": shares_right(outcomes),
        "induction": best_induction_head(model, tokenizer),
    }


def evaluate_bert(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, texts: Sequence[GrammarText]) -> Figures:
    """Right forms where the word is masked, one word at a time."""
    outcomes = list[Outcome]()
    for batch in _in_batches([(text, forced) for text in texts for forced in text.forced]):
        ids = [token_ids(text, tokenizer) for text, _ in batch]
        for row, (_, forced) in zip(ids, batch, strict=True):
            row[forced.word + 1] = tokenizer.mask_token_id
        for (_, forced), of_text in zip(batch, _log_probs(model, tokenizer, ids), strict=True):
            outcomes.append((forced, is_right(forced, of_text[forced.word + 1], tokenizer)))
    return {"texts": len(texts), "forced words": shares_right(outcomes)}


def token_ids(text: GrammarText, tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """What the tokenizer makes of a text; every word is one token, and one stands before the first word."""
    encoded = tokenizer(text.document.text)
    words = [word for word in encoded.word_ids() if word is not None]
    assert words == list(range(text.document.n_words)), f"{text.document.text!r} is not cut into its words"
    assert tokenizer.unk_token_id not in encoded["input_ids"], f"{text.document.text!r} has an unknown word"
    return list(encoded["input_ids"])


def is_right(forced: Forced, log_probs: Tensor, tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether the right form is more probable than each wrong one; `log_probs` is [vocabulary]."""
    right, *wrong = log_probs[tokenizer.convert_tokens_to_ids([forced.right.lower(), *map(str.lower, forced.wrong)])]
    return all(bool(right > other) for other in wrong)


def shares_right(outcomes: Iterable[Outcome]) -> dict[str, dict[str, float]]:
    """For each kind, and each kind across an attractor: how many there were, and which share of them was right."""
    groups: dict[str, list[bool]] = {}
    for forced, right in outcomes:
        groups.setdefault(forced.kind, []).append(right)
        if forced.has_attractor:
            groups.setdefault(f"{forced.kind}, attractor", []).append(right)
    return {name: {"right": sum(of) / len(of), "of": len(of)} for name, of in sorted(groups.items())}


@torch.no_grad()
def best_induction_head(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, *, period: int = 50, sequences: int = 10
) -> dict[str, Any]:
    """The head whose attention from a repeated word to the word behind its first occurrence is largest on average, in
    random words that come twice (Olsson et al. 2022): its name, and that mean, 0..1."""
    source = torch.Generator().manual_seed(0)
    words = torch.randint(FIRST_WORD, len(tokenizer), (sequences, period), generator=source)
    first = torch.full((sequences, 1), tokenizer.bos_token_id)
    model.set_attn_implementation("eager")
    layers = model(torch.cat([first, words, words], dim=1), output_attentions=True).attentions
    model.set_attn_implementation("sdpa")
    probs = torch.stack(layers)  # [layer, batch, head, query, key]
    paid = probs.diagonal(1 - period, dim1=-2, dim2=-1)[..., 2:]  # to BOS and the first word: queries of the first copy
    means = paid.mean((1, -1))
    layer, head = divmod(int(means.argmax()), means.shape[1])
    return {"head": f"L{layer}H{head}", "attention": float(means.max())}


@torch.no_grad()
def _log_probs(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, rows: Sequence[list[int]]) -> Tensor:
    """[batch, token, vocabulary], right-padded."""
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[tokenizer.pad_token_id] * (longest - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return model(ids, attention_mask=mask).logits.log_softmax(-1)


def _in_batches(items: Iterable[T], size: int = 64) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
