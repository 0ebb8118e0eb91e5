"""Models of transformers' own classes whose heads do what is written down: for tests, where the truth must be known.

Their weights are set by hand (`headlens.testing.planted_heads` says how); feed-forward layers add nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from headlens.errors import UnsupportedModel
from headlens.testing.planted_heads import (
    BERT_KNOWN,
    GPT2_KNOWN,
    HEADS,
    HIDDEN,
    LAYERS,
    SHOUTS,
    PlantedHead,
    Sight,
    make_head,
    make_stream,
    pass_on,
    shout,
)

Roles = Mapping[tuple[int, int], str]

GPT2_ROLES: dict[tuple[int, int], str] = {
    (0, 1): "previous token",
    (0, 4): "duplicate token",
    (0, 5): "first token",
    (1, 0): "uniform",
    (1, 3): "induction",
}
BERT_ROLES: dict[tuple[int, int], str] = {
    (0, 0): "next token",
    (0, 3): "duplicate token",
    (0, 4): "previous token",
    (1, 2): "first token",
    (1, 5): "uniform",
}

_GPT2_SPECIAL = ("<pad>", "<s>", "<unk>")
_BERT_SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")
_NAMES = {"<s>": "bos_token"}  # in a tokenizer, where the name is not that of the token


@dataclass(frozen=True, eq=False)
class Planted:
    """A model, what its heads do, by (layer, head), and a tokenizer of as many words. Other heads have no role."""

    model: PreTrainedModel
    roles: dict[tuple[int, int], str]
    tokenizer: PreTrainedTokenizerFast


@torch.no_grad()
def planted_gpt2(*, vocab: int = 128, positions: int = 160, roles: Roles | None = None, seed: int = 0) -> Planted:
    """A GPT2LMHeadModel of 2 layers of 6 heads with planted roles, in eval mode and float32.

    Attention is at least .99 where a role says it should be, on inputs that begin with `<s>`, as the tokenizer makes
    them, padded or not:

    - "previous token": all rows but the first;
    - "first token": the first token that is not padding;
    - "uniform": all visible keys alike, exactly;
    - "duplicate token": the earlier occurrences of the same word together; itself where there is none;
    - "induction", in layer 1: the tokens after the earlier occurrences of the same word, together; `<s>` where there
      is none. It raises their logits above all others, so that the model continues what it saw before;
    - "anti-induction": attends likewise and lowers them.

    A head without a role attends to some words more than to others, in a way of its own, never more to a word that is
    the same, and wherever they stand. All heads but those of induction and the previous token write to where nobody
    reads, and nothing from special tokens: attention that rests on `<s>` adds nothing.

    Parameters
    ----------
    vocab
        Token ids in all: three special ones, then words, each of four letters.
    positions
        Tokens of the longest input.
    roles
        What heads do by (layer, head), each from 0; None takes GPT2_ROLES. Induction needs a previous-token head in
        layer 0.
    seed
        Of the circles, the subspaces and the heads without a role.

    Raises
    ------
    UnsupportedModel
        A role or a head that there is not, or more words or positions than can be told apart.
    """
    planned = _planned(GPT2_ROLES if roles is None else roles, GPT2_KNOWN)
    _check_induction(planned)
    stream = make_stream(vocab, positions, _GPT2_SPECIAL, seed)
    ids = {name: _GPT2_SPECIAL.index(token) for name, token in (("pad", "<pad>"), ("bos", "<s>"), ("eos", "<s>"))}
    config = GPT2Config(
        **{f"{name}_token_id": token for name, token in ids.items()},
        vocab_size=vocab,
        n_positions=positions,
        n_embd=HIDDEN,
        n_layer=LAYERS,
        n_head=HEADS,
        n_inner=8,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = _newborn(GPT2LMHeadModel, config, seed)
    model.transformer.wte.weight.copy_(stream.tokens)
    model.transformer.wpe.weight.copy_(stream.positions)
    writers = [place for place, role in planned.items() if role == "previous token" and place[0] == 0]
    for layer, block in enumerate(model.transformer.h):
        # in layer 1 every token also has the token before it, as long as its own: 4 thirds of the square of the length
        sight = Sight(stream, ids["bos"], shrunk=math.sqrt(3 / 4) if layer and writers else 1.0)
        heads = [_gpt2_head(sight, (layer, head), planned, writers, seed) for head in range(HEADS)]
        columns = [torch.cat([getattr(made, part) for made in heads], dim=1) for part in ("query", "key", "value")]
        block.attn.c_attn.weight.copy_(torch.cat(columns, dim=1))
        block.attn.c_attn.bias.zero_()[:HIDDEN] = torch.cat([made.query_bias for made in heads])
        block.attn.c_proj.weight.copy_(torch.cat([made.output for made in heads]))
        block.mlp.c_proj.weight.zero_()
    return Planted(model, planned, _tokenizer(vocab, positions, _GPT2_SPECIAL, ends=("<s>",)))


@torch.no_grad()
def planted_bert(*, vocab: int = 128, positions: int = 160, roles: Roles | None = None, seed: int = 0) -> Planted:
    """A BertModel of 2 layers of 6 heads with planted roles, in eval mode and float32.

    As `planted_gpt2`, with these differences. Inputs are `[CLS]`, words, `[SEP]`; there is "next token", of all rows
    but the last, and no induction; "duplicate token" is all other occurrences of the same word together, earlier and
    later (of special tokens nothing is said); None takes BERT_ROLES.

    Raises
    ------
    UnsupportedModel
        A role or a head that there is not, or more words or positions than can be told apart.
    """
    planned = _planned(BERT_ROLES if roles is None else roles, BERT_KNOWN)
    stream = make_stream(vocab, positions, _BERT_SPECIAL, seed)
    config = BertConfig(
        pad_token_id=_BERT_SPECIAL.index("[PAD]"),
        vocab_size=vocab,
        max_position_embeddings=positions,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = _newborn(BertModel, config, seed)
    model.embeddings.word_embeddings.weight.copy_(stream.tokens)
    model.embeddings.position_embeddings.weight.copy_(stream.positions)
    model.embeddings.token_type_embeddings.weight.zero_()
    sight = Sight(stream, sink=_BERT_SPECIAL.index("[CLS]"))
    for layer, block in enumerate(model.encoder.layer):
        heads = [make_head(sight, planned.get((layer, head)), seed=_seed(seed, layer, head)) for head in range(HEADS)]
        own = block.attention.self
        for part, linear in (("query", own.query), ("key", own.key), ("value", own.value)):
            linear.weight.copy_(torch.cat([getattr(made, part) for made in heads], dim=1).T)
            linear.bias.zero_()
        own.query.bias.copy_(torch.cat([made.query_bias for made in heads]))
        block.attention.output.dense.weight.copy_(torch.cat([made.output for made in heads]).T)
        block.output.dense.weight.zero_()
    return Planted(model, planned, _tokenizer(vocab, positions, _BERT_SPECIAL, ends=("[CLS]", "[SEP]")))


def _gpt2_head(
    sight: Sight, place: tuple[int, int], roles: Roles, writers: Sequence[tuple[int, int]], seed: int
) -> PlantedHead:
    role = roles.get(place)
    made = make_head(sight, role, seed=_seed(seed, *place))
    if place in writers:
        return replace(made, **pass_on(sight, share=1 / len(writers)))
    return replace(made, **shout(sight, SHOUTS[role])) if role in SHOUTS else made


def _planned(roles: Roles, known: Sequence[str]) -> dict[tuple[int, int], str]:
    for (layer, head), role in roles.items():
        if role not in known:
            raise UnsupportedModel(f"L{layer}H{head}: there is no role {role!r} here; there are: {', '.join(known)}.")
        if not (0 <= layer < LAYERS and 0 <= head < HEADS):
            raise UnsupportedModel(
                f"L{layer}H{head}: {role!r} needs a head of the {LAYERS} layers of {HEADS} heads, counted from 0."
            )
    return dict(roles)


def _check_induction(roles: Roles) -> None:
    for (layer, head), role in roles.items():
        if role not in SHOUTS:
            continue
        if layer == 0:
            raise UnsupportedModel(
                f"L{layer}H{head}: {role!r} rests on what a head of an earlier layer writes; plant it in layer 1."
            )
        if "previous token" not in (other for (below, _), other in roles.items() if below == 0):
            raise UnsupportedModel(f"L{layer}H{head}: {role!r} needs a 'previous token' head in layer 0; plant one.")


def _newborn(kind: type[PreTrainedModel], config: PreTrainedConfig, seed: int) -> Any:
    """A model as it is born, the same for the same seed; torch's own random state stays."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return kind(config).float().eval()


def _seed(seed: int, layer: int, head: int) -> int:
    """One for each head, and none of those of the stream."""
    return 1000 * (seed + 1) + HEADS * layer + head


def _tokenizer(vocab: int, positions: int, special: Sequence[str], *, ends: tuple[str, ...]) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing

    by_name = {_NAMES.get(token, f"{token.strip('<>[]').lower()}_token"): token for token in special}
    vocabulary = [*special, *islice(_made_up_words(), vocab - len(special))]
    backend = Tokenizer(WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token=by_name["unk_token"]))
    backend.pre_tokenizer = Whitespace()
    backend.post_processor = TemplateProcessing(
        single=" ".join([ends[0], "$A", *ends[1:]]), special_tokens=[(end, special.index(end)) for end in ends]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=positions, **by_name)


def _made_up_words() -> Iterator[str]:
    """Two syllables each: baba, babe, ..."""
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    return (first + second for first in syllables for second in syllables)
