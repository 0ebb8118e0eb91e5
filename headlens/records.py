"""What flows from a corpus through a running model to the analyzers.

Axis names used in the whole package: batch token query key (token positions) head kv (key/value head) layer dim hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Stack = Literal["encoder", "decoder", "cross"]


@dataclass(frozen=True)
class Batch:
    """Inputs of one forward pass, padded on the right or on the left.

    `special` marks the tokens that the tokenizer added ([CLS], <s>, ...); `document` tells which document of the
    corpus each row belongs to (several rows when a long text was cut into windows). Batches of annotated words know
    their `words` and which input of the corpus each row is.
    """

    input_ids: Int[Tensor, "batch token"]
    attention_mask: Bool[Tensor, "batch token"]  # True = a real token
    special: Bool[Tensor, "batch token"]
    document: Int[Tensor, " batch"]
    token_classes: dict[str, Bool[Tensor, "batch token"]] = field(default_factory=dict)  # "cls", "full_stop", ...
    input_index: Int[Tensor, " batch"] | None = None  # which of the corpus's inputs each row is; None for plain text
    words: Int[Tensor, "batch word 2"] | None = None  # first token of each word and the one after its last; 0, 0: none
    _derived: dict[str, Tensor] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def rows(self) -> Bool[Tensor, "batch token"]:
        """The tokens whose attention is scored: neither special nor padding."""
        return self.attention_mask & ~self.special

    @cached_property
    def first(self) -> Int[Tensor, " batch"]:
        """Index of each row's first real token (0 unless the batch is padded on the left)."""
        return self.attention_mask.int().argmax(dim=-1)

    def visible(self, is_causal: bool) -> Int[Tensor, "batch token"]:
        """How many keys each token can see: all real tokens, or those up to itself."""
        real = self.attention_mask.long()
        return real.cumsum(dim=-1) if is_causal else real.sum(dim=-1, keepdim=True).expand_as(real)

    def derived(self, name: str, make: Callable[[Batch], Tensor]) -> Tensor:
        """`make(batch)`, computed once: every layer of the model asks for the same masks."""
        if name not in self._derived:
            self._derived[name] = make(self)
        return self._derived[name]

    def to(self, device: torch.device | str) -> Batch:
        return Batch(
            self.input_ids.to(device),
            self.attention_mask.to(device),
            self.special.to(device),
            self.document.to(device),
            {name: member.to(device) for name, member in self.token_classes.items()},
            None if self.input_index is None else self.input_index.to(device),
            None if self.words is None else self.words.to(device),
        )


@dataclass(frozen=True)
class LayerAttention:
    """What one attention layer computed for one batch, or for one slice of its query rows. Lives for the call only.

    `q` and `k` are as they enter the dot product (after rotary embedding), `k` and `v` have the model's own number of
    key/value heads, `probs` is after the softmax, `context` is each head's output before W_O and before any gate.
    Row i of `probs` belongs to position `query_start + i`; positions of queries and keys share one count. The key axis
    of a slice may end early, where no row of it may look further (causal models). Slices come in no order of their own.
    """

    layer: int  # 0-based within its stack
    q: Float[Tensor, "batch head query dim"]
    k: Float[Tensor, "batch kv key dim"]
    v: Float[Tensor, "batch kv key dim_v"]
    probs: Float[Tensor, "batch head query key"]
    context: Float[Tensor, "batch head query dim_v"]
    query_start: int = 0
    stack: Stack = "encoder"
    is_causal: bool = False
    scaling: float | None = None  # what q @ k was multiplied by; None where the model file does it itself

    scores: Float[Tensor, "batch head query key"] | None = (
        None  # before the softmax, masked; only the fast way has them
    )
    head_ids: tuple[int, ...] | None = None  # of a pruned layer: each head's number in the original model

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.probs.shape))
        return f"<LayerAttention of {self.stack} layer {self.layer}, rows from {self.query_start}: probs {shape}>"

    # What several analyzers ask of every row is computed once for all of them.

    @cached_property
    def largest(self) -> Float[Tensor, "batch head query"]:
        """Largest probability of every row."""
        return self.probs.amax(dim=-1)

    @cached_property
    def strongest_key(self) -> Int[Tensor, "batch head query"]:
        """Index of every row's first largest probability."""
        return _first_largest(self.probs)

    @cached_property
    def entropy(self) -> Float[Tensor, "batch head query"]:
        """Entropy of every row in nats; 0 log 0 = 0."""
        if self.scores is None:
            floor = torch.finfo(self.probs.dtype).tiny
            return -torch.linalg.vecdot(self.probs, self.probs.clamp_min(floor).log_())
        # -log p = (largest score - score) - log(largest p): no logarithm but one a row, and exact where p is large
        below = (self.scores.amax(dim=-1, keepdim=True) - self.scores).clamp_max_(torch.finfo(self.scores.dtype).max)
        return torch.linalg.vecdot(self.probs, below) - self.largest.log()

    def in_single_precision(self) -> LayerAttention:
        """The same with probabilities in float32 at least: sums of bfloat16 numbers lose their last digits."""
        if self.probs.dtype.itemsize >= 4:
            return self
        return replace(self, probs=self.probs.float())


@dataclass(frozen=True)
class WordAttention:
    """Attention of one layer between whole words, all rows of it. Lives for the call only.

    To a word: the sum over its tokens; from a word: the mean over its tokens. Special tokens are left out and rows are
    not renormalised, so that they sum to less than 1. Words without a token, and padding, have rows and columns of
    zeros, and are in no `candidates`: the words that can be chosen from each word.
    """

    layer: int
    probs: Float[Tensor, "batch head word word_to"]
    to_special: Float[Tensor, "batch head word special"]  # from each word to each special token of its input
    candidates: Bool[Tensor, "batch word word_to"]
    is_causal: bool = False
    head_ids: tuple[int, ...] | None = None  # of a pruned layer: each head's number in the original model

    @cached_property
    def row_choice(self) -> Int[Tensor, "batch head word"]:
        """From each word the candidate that it attends to most, the first of equals; 0 where there is none."""
        return _first_largest(self._among_candidates)

    @cached_property
    def column_choice(self) -> Int[Tensor, "batch head word_to"]:
        """To each word the word that attends to it most, of those that have it for a candidate; the first of equals."""
        return _first_largest(self._among_candidates.transpose(-1, -2).contiguous())

    @cached_property
    def _among_candidates(self) -> Float[Tensor, "batch head word word_to"]:
        return self.probs.masked_fill(~self.candidates[:, None], -1.0)


def _first_largest(values: Float[Tensor, "*lead last"]) -> Int[Tensor, "*lead"]:
    """Index of the first largest value on the last axis."""
    if values.device.type == "cpu":  # NumPy's search is ten times faster than torch's on long rows
        return torch.from_numpy(np.argmax(values.detach().numpy(), axis=-1))
    return values.argmax(dim=-1)
