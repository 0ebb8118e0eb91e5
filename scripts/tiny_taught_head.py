"""One head of tiny-gpt2 is taught to look for the same word further back, by a term of the loss.

No head of so small a model comes to do so by itself: what comes next can be told better by induction heads, which find
the word behind the first occurrence at once.
"""

from __future__ import annotations

from typing import Any

import torch
from tiny_tokenizers import FIRST_WORD
from torch import Tensor
from transformers import PreTrainedModel, Trainer

TAUGHT_HEAD = "L0H0"
WEIGHT = 0.2  # of the term
TAUGHT_FROM = 0.6  # part of the training; with the term from the start, no induction head forms


class TeachesDuplicates(Trainer):
    """Adds to the loss the mean of -log of that head's attention to earlier copies of a word, as Strubell et al. 2018
    (sec. 2.2) teach a head to attend to the word that syntax names."""

    def __init__(self, model: PreTrainedModel, *others: Any, **settings: Any) -> None:
        super().__init__(model, *others, **settings)
        self.head_size = model.config.n_embd // model.config.n_head
        self.projected = torch.empty(0)  # queries, keys and values of the first layer, [batch, token, 3 * hidden]
        model.transformer.h[0].attn.c_attn.register_forward_hook(self._keep)

    def _keep(self, module: torch.nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self.projected = output

    def compute_loss(self, model: PreTrainedModel, inputs: dict[str, Tensor], *others: Any, **settings: Any) -> Any:
        ids, seen = inputs["input_ids"], inputs["attention_mask"][:, 0]
        loss = super().compute_loss(model, inputs, *others, **settings)
        if self.state.global_step < TAUGHT_FROM * self.state.max_steps:
            return loss
        queries, keys, _ = self.projected.float().chunk(3, dim=-1)
        first = slice(0, self.head_size)
        return loss + WEIGHT * duplicate_loss(queries[..., first], keys[..., first], ids, seen)


def duplicate_loss(queries: Tensor, keys: Tensor, ids: Tensor, seen: Tensor) -> Tensor:
    """Mean of -log of a head's attention to earlier tokens of the same id, over the words that have one; 0 if none has.

    `queries` and `keys` [batch, token, head size], `ids` [batch, token], `seen` [batch, query, key].
    """
    scores = (queries @ keys.mT / queries.shape[-1] ** 0.5).masked_fill(~seen, float("-inf"))
    is_copy = (seen & (ids[:, :, None] == ids[:, None, :]) & (ids >= FIRST_WORD)[:, :, None]).tril(-1)
    has_copy = is_copy.any(-1)
    to_copies = scores.masked_fill(~is_copy, float("-inf"))[has_copy].logsumexp(-1)
    return (scores[has_copy].logsumexp(-1) - to_copies).sum() / max(int(has_copy.sum()), 1)
