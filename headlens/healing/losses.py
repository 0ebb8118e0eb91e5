"""How far a model is from the original, as losses to train on. All are means over real tokens or rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from headlens.errors import CorpusError
from headlens.importance.inputs import TextBatch
from headlens.importance.objectives import Head, Logits, mean_pooled

_TOKENS = 256  # whose logits are there at once

Hidden = Float[Tensor, "row token hidden"]
Mask = Int[Tensor, "row token"]


@dataclass(frozen=True, eq=False)
class States:
    """What a network computed: its hidden states after every layer, and the last ones, which a head reads."""

    layers: tuple[Tensor, ...]  # each [row, token, hidden]
    last: Hidden

    def to(self, device: torch.device) -> States:
        return States(tuple(one.to(device) for one in self.layers), self.last.to(device))


def states_of(network: PreTrainedModel, batch: TextBatch) -> States:
    """Run a network. What it is given to begin with, the embeddings, is no state of a layer."""
    found = network(input_ids=batch.input_ids, attention_mask=batch.attention_mask, output_hidden_states=True)
    return States(tuple(found.hidden_states[1:]), found.last_hidden_state)


@dataclass(frozen=True, eq=False)
class Losses:
    """The parts of a loss, and what each of them needs."""

    weights: Mapping[str, float]
    variances: Float[Tensor, " layer"]
    own_logits: Logits | None = None  # of the model that is healed
    original_logits: Logits | None = None
    task: Callable[[Hidden, TextBatch], Tensor] | None = None

    def parts(self, found: States, wanted: States, batch: TextBatch) -> dict[str, Tensor]:
        """Every part by itself, without its weight."""
        losses: dict[str, Tensor] = {}
        for name in self.weights:
            if name == "hidden":
                losses[name] = hidden_loss(found.layers, wanted.layers, batch.attention_mask, self.variances)
            elif name == "embedding":
                losses[name] = embedding_loss(found.last, wanted.last, batch.attention_mask)
            elif name == "logits":
                assert self.own_logits is not None
                assert self.original_logits is not None
                real = batch.attention_mask.bool()
                losses[name] = logits_loss(found.last[real], wanted.last[real], self.own_logits, self.original_logits)
            else:
                assert self.task is not None
                losses[name] = self.task(found.last, batch)
        return losses

    def total(self, parts: Mapping[str, Tensor]) -> Tensor:
        return torch.stack([self.weights[name] * part for name, part in parts.items()]).sum()


def hidden_loss(
    found: Sequence[Tensor], wanted: Sequence[Tensor], mask: Mask, variances: Float[Tensor, " layer"]
) -> Float[Tensor, ""]:
    """Mean over layers of the mean squared distance of a layer's hidden states, over their variance."""
    real = mask.bool()
    by_layer = [
        (wide(one[real]) - wide(other[real])).square().sum(dim=-1).mean()
        for one, other in zip(found, wanted, strict=True)
    ]
    return (torch.stack(by_layer) / variances.to(by_layer[0])).mean()


def embedding_loss(found: Hidden, wanted: Hidden, mask: Mask) -> Float[Tensor, ""]:
    """1 - cosine of the vectors of texts, which are means over real tokens; 0..2."""
    one, other = (nn.functional.normalize(mean_pooled(hidden, mask), dim=-1) for hidden in (found, wanted))
    return (one - other).square().sum(dim=-1).mean() / 2


def logits_loss(
    found: Float[Tensor, "real hidden"], wanted: Float[Tensor, "real hidden"], own: Logits, original: Logits
) -> Float[Tensor, ""]:
    """Kullback-Leibler divergence from the original's distributions over the vocabulary; nats a token."""

    def divergence(one: Tensor, other: Tensor) -> Tensor:
        with torch.no_grad():  # the original's head, too, must get no gradient
            target = wide(original(other)).log_softmax(dim=-1)
        return nn.functional.kl_div(wide(own(one)).log_softmax(dim=-1), target, log_target=True, reduction="sum")

    return _in_pieces(divergence, found, wanted) / len(found)


def next_token_task(logits: Logits) -> Callable[[Hidden, TextBatch], Tensor]:
    """Cross-entropy of every token but the first of a row, in nats a token."""

    def loss(hidden: Hidden, batch: TextBatch) -> Tensor:
        asked = batch.attention_mask[:, 1:].bool()
        states, right = hidden[:, :-1][asked], batch.input_ids[:, 1:][asked]
        if not len(right):
            raise CorpusError("The task of a language model is the next token, and these texts have one token each.")

        def entropy(one: Tensor, ids: Tensor) -> Tensor:
            return nn.functional.cross_entropy(wide(logits(one)), ids, reduction="sum")

        return _in_pieces(entropy, states, right) / len(right)

    return loss


def label_task(head: Head, labels: Tensor) -> Callable[[Hidden, TextBatch], Tensor]:
    """Loss of the model's own head: cross-entropy where labels are whole numbers, else squared error."""

    def loss(hidden: Hidden, batch: TextBatch) -> Tensor:
        found, right = wide(head(hidden, batch)), labels.to(hidden.device)[batch.example]
        if right.is_floating_point():
            return (found.squeeze(-1) - right).square().mean()
        return nn.functional.cross_entropy(found, right)

    return loss


@torch.no_grad()
def layer_variances(network: PreTrainedModel, batches: Sequence[TextBatch]) -> Float[Tensor, " layer"]:
    """Mean squared distance of the hidden states of every layer from their mean over all real tokens.

    CorpusError where they do not vary: of a single token.
    """
    count, sums, squares = 0, [], []
    for batch in batches:
        own = batch.to(network.device)
        real = own.attention_mask.bool()
        layers = torch.stack([one[real].double() for one in states_of(network, own).layers])  # [layer, real, hidden]
        count += layers.shape[1]
        sums.append(layers.sum(dim=1))
        squares.append(layers.square().sum(dim=(1, 2)))
    mean = torch.stack(sums).sum(dim=0) / count
    second = torch.stack(squares).sum(dim=0) / count
    variances = second - mean.square().sum(dim=-1)
    flat = (variances <= 1e-12 * second).nonzero().flatten().tolist()
    if flat:
        raise CorpusError(
            f"The hidden states of layer {flat[0]} are the same for all {count} tokens of the text to train on; give "
            f"more text, or leave out the part hidden of the loss."
        )
    return variances


def wide(values: Tensor) -> Tensor:
    """In single precision at least."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _in_pieces(loss: Callable[[Tensor, Tensor], Tensor], one: Tensor, other: Tensor) -> Tensor:
    """A sum over tokens, whose logits are made again when gradients need them: those of a batch would fill memory."""
    pieces = zip(one.split(_TOKENS), other.split(_TOKENS), strict=True)
    sums = [checkpoint(loss, *piece, use_reentrant=False, preserve_rng_state=False) for piece in pieces]
    return torch.stack(sums).sum()
