"""Random tokens written several times over: inputs in which nothing can be told but where a token stood before."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from headlens.encode import max_length_of
from headlens.errors import CorpusError
from headlens.records import Batch
from headlens.words import id_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

TokenIds: TypeAlias = Tensor | NDArray[Any] | Sequence[Sequence[int]] | Sequence[int]

FEWEST_TOKENS = 3  # of a period; in one of two the token after an earlier copy is the previous token as well
# Ids of a vocabulary run roughly from common to rare tokens. Of a large one a sample takes neither the first twentieth
# (signs, the most common words) nor the rare four fifths: of GPT-2's 50,256 tokens 2,512 to 10,050, within the 1,000 to
# 10,000 of TransformerLens' Main_Demo. Of a small one it takes all ordinary tokens.
LARGE_VOCABULARY = 5000
MIDDLE = (0.05, 0.2)
_BATCH_TOKENS = 4096

# Entries that a vocabulary holds in reserve ("[unused7]", "<extra_id_0>", "<|reserved_special_token_3|>"), and bytes
# ("<0x0A>"), which are no text by themselves
_IN_RESERVE = re.compile(r"[\[<]\W?_?(unused|reserved|extra_id|madeupword|0x[0-9a-f]{2}>)", re.IGNORECASE)


@dataclass(frozen=True)
class Layout:
    """Where the copies stand: positions are counted from 0, and special tokens may stand before and after them."""

    first: int  # position of the first token of the first copy
    period: int  # tokens of one copy
    copies: int

    @property
    def stop(self) -> int:
        """Position after the last copy."""
        return self.first + self.copies * self.period


@dataclass(frozen=True, eq=False)
class Repeated:
    """A sample written `layout.copies` times; every sequence is a document of its own."""

    batches: list[Batch]
    layout: Layout


@dataclass(frozen=True, eq=False)
class Source:
    """What random tokens can be drawn from, and what stands around them, for one model and its tokenizer."""

    ordinary: NDArray[np.int64]  # ids in ascending order
    before: int | None  # id of the special token in front; None where the tokenizer has none
    after: int | None  # id of the special token behind; None in front of models that only look back
    max_length: int  # tokens of one input, special ones included
    known: int  # ids that the model has an embedding for

    @property
    def room(self) -> int:
        """Tokens that fit between the special ones."""
        return self.max_length - (self.before is not None) - (self.after is not None)

    @classmethod
    def of(cls, network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, is_causal: bool) -> Source:
        """Causal models get the tokenizer's BOS token in front, others [CLS] (or BOS) and [SEP] (or EOS) around.

        Raises CorpusError where the model has no embedding for one of them.
        """
        known = int(network.get_input_embeddings().num_embeddings)
        before = id_of(tokenizer, "bos_token") if is_causal else _first_of(tokenizer, "cls_token", "bos_token")
        after = None if is_causal else _first_of(tokenizer, "sep_token", "eos_token")
        strange = [token for token in (before, after) if token is not None and token >= known]
        if strange:
            raise CorpusError(
                f"The tokenizer is not that of the model: its special token has the id {strange[0]}, the model knows "
                f"{known} tokens; give the tokenizer that belongs to it."
            )
        return cls(ordinary_ids(tokenizer, known), before, after, max_length_of(network.config, tokenizer), known)


def ordinary_ids(tokenizer: PreTrainedTokenizerBase, known: int) -> NDArray[np.int64]:
    """Ids, ascending, that a random sequence may hold: below `known`, not special, not added, not kept in reserve.

    Of more than LARGE_VOCABULARY of them those in the MIDDLE, as Olsson et al. 2022 leave out the most and the least
    common tokens.
    """
    odd = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    vocabulary = tokenizer.get_vocab().items()
    kept = {token for name, token in vocabulary if token < known and token not in odd and not _IN_RESERVE.match(name)}
    ids = np.array(sorted(kept), dtype=np.int64)
    if len(ids) <= LARGE_VOCABULARY:
        return ids
    start, stop = (int(share * len(ids)) for share in MIDDLE)
    return ids[start:stop]


def fitting_period(source: Source, period: int, copies: int) -> int:
    """`period`, or the largest below it that the model's positions and the vocabulary have room for.

    Raises CorpusError where that is less than FEWEST_TOKENS, or `period` is.
    """
    if period < FEWEST_TOKENS:
        raise CorpusError(f"A period must have at least {FEWEST_TOKENS} tokens, got {period}.")
    found = min(period, source.room // copies, len(source.ordinary))
    if found < FEWEST_TOKENS:
        raise CorpusError(
            f"Random tokens written {copies} times need {FEWEST_TOKENS} ordinary tokens and {copies * FEWEST_TOKENS} "
            f"positions at least, but the model takes {source.max_length} tokens, special ones included, and "
            f"{len(source.ordinary)} ordinary ones can be drawn; take a model and a tokenizer with more of both."
        )
    return found


def random_sample(source: Source, *, period: int, batch: int, seed: int, stream: int = 0) -> Int[Tensor, "batch token"]:
    """In each row `period` ordinary ids, none twice as long as there are so many; then each once more, and so on.

    The same seed and stream give the same ids; other streams of a seed are independent of it. Raises CorpusError where
    there is none to draw.
    """
    if not len(source.ordinary):
        raise CorpusError("The vocabulary holds no ordinary token to draw; give the tokenizer that the model has.")
    generator = np.random.default_rng([seed, stream])
    rounds = -(-period // len(source.ordinary))
    rows = [
        np.concatenate([generator.permutation(source.ordinary) for _ in range(rounds)])[:period] for _ in range(batch)
    ]
    return torch.from_numpy(np.stack(rows))


def given_sample(source: Source, ids: TokenIds, copies: int) -> Int[Tensor, "batch token"]:
    """A user's own ids, [batch, period] or [period]: one copy of each sequence.

    Raises CorpusError where they are no whole numbers in rows of one length, are unknown to the model, or have no room.
    """
    try:
        sample = torch.as_tensor(ids)
    except (ValueError, TypeError, RuntimeError) as error:
        raise CorpusError(f"ids must be whole numbers in rows of one length: {error}.") from None
    sample = sample[None] if sample.dim() == 1 else sample
    if sample.dim() != 2 or sample.numel() == 0 or sample.is_floating_point() or sample.dtype == torch.bool:
        raise CorpusError(
            f"ids must be whole numbers [batch, period], one copy of each sequence; got {sample.dtype} "
            f"{list(sample.shape)}."
        )
    sample = sample.cpu().long()
    outside = sample[(sample < 0) | (sample >= source.known)]
    if len(outside):
        raise CorpusError(f"ids holds {int(outside[0])}, and the model knows the tokens 0 to {source.known - 1}.")
    period = sample.shape[1]
    if not FEWEST_TOKENS <= period <= source.room // copies:
        raise CorpusError(
            f"ids has {period} tokens in a row, and {copies} copies of it must fit the {source.max_length} tokens that "
            f"the model takes with the special ones; give {FEWEST_TOKENS} to {source.room // copies} tokens a row."
        )
    return sample


def written(source: Source, sample: Int[Tensor, "batch token"], copies: int) -> Repeated:
    """The sample `copies` times in a row, between the special tokens of the source."""
    size = len(sample)
    ends = [torch.full((size, int(end is not None)), end or 0) for end in (source.before, source.after)]
    ids = torch.cat([ends[0], sample.repeat(1, copies), ends[1]], dim=1)
    layout = Layout(ends[0].shape[1], sample.shape[1], copies)
    position = torch.arange(ids.shape[1])
    special = ((position < layout.first) | (position >= layout.stop)).expand_as(ids)
    everything = Batch(ids, torch.ones_like(special), special.clone(), torch.arange(size))
    rows = max(1, _BATCH_TOKENS // ids.shape[1])
    return Repeated([_rows_of(everything, slice(start, start + rows)) for start in range(0, size, rows)], layout)


def _rows_of(batch: Batch, rows: slice) -> Batch:
    return Batch(batch.input_ids[rows], batch.attention_mask[rows], batch.special[rows], batch.document[rows])


def _first_of(tokenizer: PreTrainedTokenizerBase, *names: str) -> int | None:
    found = (id_of(tokenizer, name) for name in names)
    return next((token for token in found if token is not None), None)
