"""What head_count_study.py measures of a model: how well it has learnt the grammar, and what its heads do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from train_tiny import gpt2_tokenizer
from transformers import GPT2LMHeadModel

import headlens
from headlens.attention import MultiHeadAttention
from headlens.corpora.grammar import Forced, GrammarText
from headlens.evidence_table import ABOVE, INFORMED, TOO_FEW, Evidence, RelationEvidence

Ids: TypeAlias = NDArray[np.int16]  # [text, token]

PAD, END = (gpt2_tokenizer().convert_tokens_to_ids(token) for token in ("<pad>", "<|endoftext|>"))
REFERENCE = ("pronoun", "possessive", "reflexive")  # kinds of Forced words that refer
MENTIONS = ("coref[pronoun]", "coref[proper]", "coref[nominal]")  # rows of evidence that do not overlap
SUMS = ("ALL", "subject_verb")  # rows of evidence that count decisions of other rows again


def token_ids(text: GrammarText, vocabulary: dict[str, int]) -> list[int]:
    """The words between two <|endoftext|>: word i is token i + 1, and the end is predicted like a word."""
    words = [vocabulary[word.lower()] for sentence in text.document.sentences for word in sentence.words]
    return [END, *words, END]


def padded(rows: Sequence[Sequence[int]]) -> Ids:
    ids = np.full((len(rows), max(map(len, rows))), PAD, dtype=np.int16)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
    return ids


# ------------------------------------------------------------------------------------------------------------ language


@dataclass(frozen=True)
class Choice:
    """One word that the grammar forces, and whether the model finds it likelier than all that would be wrong."""

    kind: str
    has_attractor: bool
    is_right: bool


@torch.inference_mode()
def read(model: GPT2LMHeadModel, texts: Sequence[GrammarText]) -> tuple[float, list[Choice]]:
    """Nats of all texts, their ends included, and the choices at all forced words."""
    vocabulary = gpt2_tokenizer().get_vocab()
    nats, choices = 0.0, list[Choice]()
    ordered = sorted(texts, key=lambda text: text.document.n_words)
    for start in range(0, len(ordered), 64):
        group = ordered[start : start + 64]
        ids = torch.from_numpy(padded([token_ids(text, vocabulary) for text in group]).astype(np.int64))
        log_probs = model(input_ids=ids, use_cache=False).logits.double().log_softmax(dim=-1)[:, :-1]
        of_next = log_probs.gather(-1, ids[:, 1:, None]).squeeze(-1)
        nats -= float(of_next[ids[:, 1:] != PAD].sum())
        for row, text in zip(log_probs, group, strict=True):
            choices += [chosen(row, forced, vocabulary) for forced in text.forced]
    return nats, choices


def chosen(log_probs: Float[Tensor, "token form"], forced: Forced, vocabulary: dict[str, int]) -> Choice:
    """Row i of `log_probs` predicts word i."""
    right, *wrong = (float(log_probs[forced.word, vocabulary[form.lower()]]) for form in (forced.right, *forced.wrong))
    return Choice(forced.kind, forced.has_attractor, right > max(wrong))


def language_figures(model: GPT2LMHeadModel, texts: Sequence[GrammarText]) -> tuple[dict[str, float], dict[str, int]]:
    """Loss beside the grammar's own and shares of right choices; and how many choices there are."""
    nats, choices = read(model, texts)
    tokens = sum(text.document.n_words + 1 for text in texts)
    loss, grammar = nats / tokens, -sum(text.log_probability for text in texts) / tokens
    groups = {
        "agreement": [choice for choice in choices if choice.kind == "verb number"],
        "reference": [choice for choice in choices if choice.kind in REFERENCE],
        **{kind: [choice for choice in choices if choice.kind == kind] for kind in REFERENCE},
    }
    for name in ("agreement", "reference"):
        groups[f"{name}_attractor"] = [choice for choice in groups[name] if choice.has_attractor]
    shares = {name: share_right(group) for name, group in groups.items()}
    counts = {name: len(group) for name, group in groups.items()}
    return {"loss": loss, "grammar_loss": grammar, "excess": loss - grammar, **shares}, counts


def share_right(choices: Sequence[Choice]) -> float:
    return sum(choice.is_right for choice in choices) / len(choices) if choices else math.nan


# --------------------------------------------------------------------------------------------------------------- heads


def head_figures(
    model: GPT2LMHeadModel, texts: Sequence[GrammarText], ranked: int
) -> tuple[dict[str, float], dict[str, str]]:
    """What the heads do; and of every relation its best head and the verdict on it."""
    profile = profile_of(model, texts)
    tested = relations_tested(profile.evidence)
    found = with_a_head(tested)
    strings = [text.document.text for text in texts[:ranked]]
    patterns = headlens.collect(model, gpt2_tokenizer(), strings, "probs")
    ranks = [effective_rank(torch.from_numpy(one.probs)).mean() for one in patterns]
    figures = {
        "relations": len(found),
        "relation_heads": len({row.name for row in found}),
        "relations_tested": len(tested),
        "entropy": float(profile.scores["surface.entropy"].mean()),
        "rank_qk": float(effective_rank(query_key_matrices(model)).mean()),
        "rank_attention": float(torch.stack(ranks).mean()),
    }
    return figures, {row.relation: f"{row.name}: {row.verdict}" for row in tested}


def profile_of(model: GPT2LMHeadModel, texts: Sequence[GrammarText]) -> headlens.Profile:
    return headlens.profile(model, [text.document for text in texts], tokenizer=gpt2_tokenizer())


def with_a_head(tested: Sequence[RelationEvidence]) -> list[RelationEvidence]:
    """Those that a head stands for: above all baselines that know positions, by the verdict of headlens."""
    return [row for row in tested if row.verdict in (ABOVE, INFORMED)]


def relations_tested(evidence: Evidence | None) -> list[RelationEvidence]:
    """Dependencies and kinds of mentions with enough decisions, each once: subtypes are part of their relation."""
    assert evidence is not None  # the grammar annotates all its texts
    return [
        row
        for row in evidence.relations
        if row.verdict != TOO_FEW
        and (row.relation in MENTIONS or not (row.relation in SUMS or ":" in row.relation or "[" in row.relation))
    ]


def effective_rank(matrices: Float[Tensor, "*lead row column"]) -> Float[Tensor, "*lead"]:
    """exp of the entropy of the singular values as shares of their sum (Roy and Vetterli 2007): n for n equal ones."""
    values = torch.linalg.svdvals(matrices.double())
    shares = values / values.sum(dim=-1, keepdim=True)
    return torch.special.entr(shares).sum(dim=-1).exp()


@torch.no_grad()
def query_key_matrices(model: GPT2LMHeadModel) -> Float[Tensor, "layer head hidden hidden"]:
    """W_Q W_K^T of every head, by which it matches what it reads; its rank is at most the head's width."""
    return torch.stack([_query_key(mha) for mha in _layers(model)])


def _query_key(mha: MultiHeadAttention) -> Float[Tensor, "head hidden hidden"]:
    q = mha.q_proj.weight.unflatten(0, (mha.num_heads, mha.head_dim))
    k = mha.k_proj.weight.unflatten(0, (mha.num_kv_heads, mha.head_dim))
    k = k.repeat_interleave(mha.num_heads // mha.num_kv_heads, dim=0)
    return q.transpose(-1, -2) @ k


def _layers(model: GPT2LMHeadModel) -> Iterator[MultiHeadAttention]:
    for layer, block in enumerate(model.transformer.h):
        replaced = getattr(block.attn, "mha", None)
        yield MultiHeadAttention.from_huggingface(model, layer) if replaced is None else replaced


@torch.inference_mode()
def cache_bytes(model: GPT2LMHeadModel) -> float:
    """Bytes of keys and values that the model keeps for one token, in the precision of its weights."""
    tokens = 8
    cache = model(input_ids=torch.full((1, tokens), END), use_cache=True).past_key_values
    return sum(part.nbytes for layer in cache.layers for part in (layer.keys, layer.values)) / tokens
