"""What a model is judged by while heads are taken out: how far its output moves, or how well it does a task.

A distortion compares the model with itself as it is, needs no label, and is 0 before anything is taken out; the
gradient of such an objective is therefore zero there by construction. All values are means over the tokens of one
example, in float32 at least, and differentiable.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.errors import CorpusError, UnsupportedModel
from headlens.importance.inputs import TextBatch, examples_of
from headlens.scores import Unit

Logits = Callable[[Tensor], Tensor]  # from hidden states [row, hidden] to [row, vocabulary]
Head = Callable[[Tensor, TextBatch], Tensor]  # from last hidden states [row, token, hidden] to [row, label]

KEPT_BYTES = 256 << 20  # of reference probabilities: where they are more, they are computed again from hidden states
_TOKENS = 256  # whose logits are there at once
IGNORED = -100  # as a label: the token is not asked for


class Objective(ABC):
    """Judged on `batches`, which hold every example once; the larger the value, the worse the model does."""

    name: str
    is_distortion: bool  # 0 at the model as it is
    unit: Unit
    batches: tuple[TextBatch, ...]
    examples: int

    @abstractmethod
    def values(
        self, hidden: Float[Tensor, "row token hidden"], batch: TextBatch, rows: Int[Tensor, " row"] | None = None
    ) -> Float[Tensor, " row"]:
        """Of last hidden states, whose row i belongs to row `rows[i]` of the batch (None: to row i)."""


class _OnBatches(Objective):
    def __init__(self, batches: Iterable[TextBatch]) -> None:
        self.batches = tuple(batches)
        self.examples = examples_of(self.batches)


# --------------------------------------------------------------------------------------------------------- distortions


class CosineDistortion(_OnBatches):
    """1 - cosine between the mean-pooled last hidden states and those of the model as it is; 0..2."""

    name = "cosine_distortion"
    is_distortion = True
    unit = "share"

    def __init__(self, batches: Iterable[TextBatch], vectors: Float[Tensor, "example hidden"]) -> None:
        super().__init__(batches)
        self.vectors = nn.functional.normalize(vectors, dim=-1)

    def values(self, hidden: Tensor, batch: TextBatch, rows: Tensor | None = None) -> Tensor:
        batch = batch if rows is None else batch.take(rows)
        pooled = nn.functional.normalize(mean_pooled(hidden, batch.attention_mask), dim=-1)
        reference = self.vectors.to(pooled)[batch.example.to(pooled.device)]
        # half the squared distance of unit vectors: 1 - cosine itself loses half of the digits where it is small
        return (pooled - reference).square().sum(dim=-1) / 2


class HiddenDistortion(_OnBatches):
    """Mean squared distance of the last hidden states from those of the model as it is, over their variance."""

    name = "hidden_distortion"
    is_distortion = True
    unit = "ratio"

    def __init__(self, batches: Iterable[TextBatch], kept: _Kept) -> None:
        super().__init__(batches)
        self.kept = kept
        wide = kept.hidden.double()
        self.variance = float((wide - wide.mean(dim=0)).square().sum(dim=-1).mean())

    def values(self, hidden: Tensor, batch: TextBatch, rows: Tensor | None = None) -> Tensor:
        batch = batch if rows is None else batch.take(rows)
        real = batch.attention_mask.to(hidden.device).bool()
        reference = self.kept.hidden.to(hidden.device)[self.kept.places(batch).to(hidden.device)]
        distance = (_wide(hidden[real]) - _wide(reference)).square().sum(dim=-1)
        return mean_by_row(distance, real) / self.variance


class KLDistortion(_OnBatches):
    """Kullback-Leibler divergence of the next-token distributions from those of the model as it is; nats a token."""

    name = "kl_distortion"
    is_distortion = True
    unit = "nats"

    def __init__(self, batches: Iterable[TextBatch], kept: _Kept, logits: Logits, *, kept_bytes: int) -> None:
        super().__init__(batches)
        self.kept, self.logits = kept, logits
        size = _wide(logits(kept.hidden[:1]))
        fits = len(kept.hidden) * size.numel() * size.itemsize <= kept_bytes
        self._probs = self._all_probs() if fits else None

    def values(self, hidden: Tensor, batch: TextBatch, rows: Tensor | None = None) -> Tensor:
        batch = batch if rows is None else batch.take(rows)
        real = batch.attention_mask.to(hidden.device).bool()
        places = self.kept.places(batch)
        moved = hidden[real]
        parts = [
            self._divergence(some, at) for some, at in zip(moved.split(_TOKENS), places.split(_TOKENS), strict=True)
        ]
        return mean_by_row(torch.cat(parts), real)

    def _divergence(
        self, hidden: Float[Tensor, "token hidden"], places: Int[Tensor, " token"]
    ) -> Float[Tensor, " token"]:
        probs, entropy = self._reference(places)
        moved = _wide(self.logits(hidden))
        return moved.logsumexp(dim=-1) - torch.linalg.vecdot(probs, moved) - entropy

    def _reference(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities [token, vocabulary] and entropy [token] of the model as it is."""
        if self._probs is not None:
            return self._probs[0][places], self._probs[1][places]
        return _probs_and_entropy(self.logits(self.kept.hidden[places]))

    @torch.no_grad()
    def _all_probs(self) -> tuple[Tensor, Tensor]:
        parts = [_probs_and_entropy(self.logits(some)) for some in self.kept.hidden.split(_TOKENS)]
        return torch.cat([probs for probs, _ in parts]), torch.cat([entropy for _, entropy in parts])


def cosine_distortion(network: PreTrainedModel, batches: Sequence[TextBatch]) -> CosineDistortion:
    """How far sentence vectors move: for encoders, and where there is no vocabulary head."""
    vectors: dict[int, Tensor] = {}
    for batch, hidden in _passes(network, batches):
        pooled = mean_pooled(hidden, batch.attention_mask)
        vectors |= dict(zip(batch.example.tolist(), pooled, strict=True))
    return CosineDistortion(batches, torch.stack([vectors[example] for example in range(len(vectors))]))


def hidden_distortion(network: PreTrainedModel, batches: Sequence[TextBatch]) -> HiddenDistortion:
    """How far the last hidden states of all real tokens move: for any model."""
    return HiddenDistortion(batches, _Kept.of(network, batches))


def kl_distortion(
    network: PreTrainedModel, batches: Sequence[TextBatch], logits: Logits, *, kept_bytes: int = KEPT_BYTES
) -> KLDistortion:
    """How far the next-token distributions move, over all real tokens.

    `logits` is the vocabulary head, such as `next_token_logits` gives it. Reference distributions of more than
    `kept_bytes` are computed again from hidden states whenever they are needed.
    """
    return KLDistortion(batches, _Kept.of(network, batches), logits, kept_bytes=kept_bytes)


# -------------------------------------------------------------------------------------------------------------- losses


class TokenLoss(_OnBatches):
    """Cross-entropy in nats of the tokens that are asked for, `labels` [example, token]; IGNORED elsewhere."""

    is_distortion = False
    unit = "nats"

    def __init__(
        self, name: str, batches: Iterable[TextBatch], labels: Int[Tensor, "example token"], logits: Logits
    ) -> None:
        super().__init__(batches)
        self.name, self.labels, self.logits = name, labels, logits
        without = (labels == IGNORED).all(dim=-1).nonzero().flatten().tolist()
        if len(labels) != self.examples or without:
            raise CorpusError(
                f"{name} needs a token to ask for in each example, and {len(without)} of {self.examples} have none "
                f"(e.g. example {without[0] if without else len(labels)}); leave those out."
            )

    def values(self, hidden: Tensor, batch: TextBatch, rows: Tensor | None = None) -> Tensor:
        batch = batch if rows is None else batch.take(rows)
        labels = self.labels.to(hidden.device)[batch.example.to(hidden.device), : hidden.shape[1]]
        asked = labels != IGNORED
        pairs = zip(hidden[asked].split(_TOKENS), labels[asked].split(_TOKENS), strict=True)
        losses = [
            nn.functional.cross_entropy(_wide(self.logits(some)), right, reduction="none") for some, right in pairs
        ]
        return mean_by_row(torch.cat(losses), asked)


class LabelLoss(_OnBatches):
    """Loss of a head of the model on one label an example: cross-entropy of classes, squared error of numbers."""

    name = "label_loss"
    is_distortion = False

    def __init__(self, batches: Iterable[TextBatch], labels: Tensor, head: Head) -> None:
        super().__init__(batches)
        if labels.shape != (self.examples,):
            raise CorpusError(f"There are {self.examples} examples, and labels of the shape {tuple(labels.shape)}.")
        self.labels, self.head = labels, head
        self.unit = "ratio" if labels.is_floating_point() else "nats"

    def values(self, hidden: Tensor, batch: TextBatch, rows: Tensor | None = None) -> Tensor:
        batch = (batch if rows is None else batch.take(rows)).to(hidden.device)
        found, right = _wide(self.head(hidden, batch)), self.labels.to(hidden.device)[batch.example]
        if right.is_floating_point():
            return (found.squeeze(-1) - right).square()
        return nn.functional.cross_entropy(found, right, reduction="none")


def next_token_loss(batches: Sequence[TextBatch], logits: Logits) -> TokenLoss:
    """The training loss of language models; CorpusError where an example is a single token."""
    labels = _labels(batches, lambda batch: batch.input_ids[:, 1:], lambda batch: batch.attention_mask[:, 1:].bool())
    return TokenLoss("next_token_loss", batches, labels, logits)


def masked_token_loss(
    batches: Sequence[TextBatch],
    logits: Logits,
    mask_token: int,
    *,
    special: Iterable[int],
    share: float = 0.15,
    seed: int = 0,
) -> TokenLoss:
    """The training loss of masked language models: `share` of each example's tokens (at least one) become the mask.

    15% are those of Devlin et al. 2019; all of them are replaced by the mask token, none by random ones. Tokens with an
    id in `special` are never masked; CorpusError where an example has no other.
    """
    rng, off = np.random.default_rng(seed), torch.tensor(sorted(special), dtype=torch.long)
    masked: list[TextBatch] = []
    labels = torch.full((examples_of(batches), max(batch.input_ids.shape[1] for batch in batches)), IGNORED)
    for batch in batches:
        ids = batch.input_ids.clone()
        free = batch.attention_mask.bool() & ~torch.isin(ids, off.to(ids.device))
        for row, example in enumerate(batch.example.tolist()):
            places = free[row].nonzero().flatten().cpu().numpy()
            count = min(len(places), max(1, round(share * len(places))))
            chosen = torch.from_numpy(rng.choice(places, count, replace=False))
            labels[example, chosen] = batch.input_ids[row, chosen].cpu()
            ids[row, chosen] = mask_token
        masked.append(TextBatch(ids, batch.attention_mask, batch.example))
    return TokenLoss("masked_token_loss", masked, labels, logits)


def label_loss(batches: Sequence[TextBatch], labels: Sequence[int] | Sequence[float], head: Head) -> LabelLoss:
    """A labelled task: whole numbers are classes, other numbers are to be met. `head` as `own_head` gives it."""
    return LabelLoss(batches, torch.tensor(labels), head)


# --------------------------------------------------------------------------------------------------------------- heads


def own_head(whole: PreTrainedModel) -> Head:
    """The head of a model with one, applied to last hidden states: [row, token, hidden] to its logits.

    The head must see nothing of the network but its last hidden states (and the pooler of them).
    """
    below = whole.base_model
    if below is whole:
        raise UnsupportedModel(f"{type(whole).__name__} is a base model and has no head for a task; load one that has.")
    given = _Given(getattr(below, "pooler", None))
    shell = copy.copy(whole)  # shares its weights, and is called without the network below
    shell._modules = {**whole._modules, whole.base_model_prefix: given}

    def head(hidden: Tensor, batch: TextBatch) -> Tensor:
        given.hidden = hidden
        return shell(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits

    return head


def token_logits(whole: PreTrainedModel) -> Logits:
    """The vocabulary head of a model with one, applied to hidden states of single tokens."""
    head = own_head(whole)

    def logits(hidden: Tensor) -> Tensor:
        one = torch.zeros(1, len(hidden), dtype=torch.long, device=hidden.device)
        return head(hidden[None], TextBatch(one, one + 1, one[:, 0]))[0]

    return logits


class _Given(nn.Module):
    """Stands where a network was, and says what it is told to say."""

    hidden: Tensor

    def __init__(self, pooler: nn.Module | None) -> None:
        super().__init__()
        self._modules["pooler"] = pooler
        # OPTForCausalLM calls the decoder inside of its network; a submodule of itself this must not be
        object.__setattr__(self, "decoder", self)

    def forward(self, *_: Any, **__: Any) -> _Output:
        pooler = self._modules["pooler"]
        return _Output(self.hidden, None if pooler is None else pooler(self.hidden))


class _Output:
    """Of a base model; what else a head asks for (a cache, all hidden states) is None."""

    def __init__(self, last_hidden_state: Tensor, pooler_output: Tensor | None) -> None:
        self.last_hidden_state, self.pooler_output = last_hidden_state, pooler_output

    def __getattr__(self, _name: str) -> None:
        return None

    def __getitem__(self, place: int) -> Tensor | None:
        return (self.last_hidden_state, self.pooler_output)[place]


# -------------------------------------------------------------------------------------------------------------- shared


def mean_pooled(
    hidden: Float[Tensor, "row token hidden"], mask: Int[Tensor, "row token"]
) -> Float[Tensor, "row hidden"]:
    """Mean over the real tokens of each row, special ones included."""
    real = mask.to(hidden.device).bool()[..., None]
    return _wide(hidden).where(real, 0).sum(dim=1) / real.sum(dim=1)


def mean_by_row(values: Float[Tensor, " one"], chosen: Tensor) -> Float[Tensor, " row"]:
    """Mean over each row of values that stand where `chosen` [row, token] is True, row by row."""
    spread = values.new_zeros(chosen.shape).masked_scatter(chosen, values)
    return spread.sum(dim=-1) / chosen.sum(dim=-1)


class _Kept:
    """Last hidden states of the real tokens of all examples, one example after the other."""

    def __init__(self, hidden: Float[Tensor, "all hidden"], first: Int[Tensor, " example"]) -> None:
        self.hidden, self.first = hidden, first

    @classmethod
    def of(cls, network: PreTrainedModel, batches: Sequence[TextBatch]) -> _Kept:
        found: dict[int, Tensor] = {}
        for batch, hidden in _passes(network, batches):
            for row, (example, length) in enumerate(zip(batch.example.tolist(), batch.lengths.tolist(), strict=True)):
                found[example] = hidden[row, :length].clone()
        ordered = [found[example] for example in range(len(found))]
        lengths = torch.tensor([len(own) for own in ordered])
        return cls(torch.cat(ordered), lengths.cumsum(dim=0) - lengths)

    def places(self, batch: TextBatch) -> Int[Tensor, " real"]:
        """Where each real token of the batch stands in `hidden`, row by row."""
        mask = batch.attention_mask.cpu().bool()
        return (self.first[batch.example.cpu(), None] + torch.arange(mask.shape[1]))[mask]


def _passes(network: PreTrainedModel, batches: Sequence[TextBatch]) -> Iterable[tuple[TextBatch, Tensor]]:
    examples_of(batches)
    for batch in batches:
        own = batch.to(network.device)
        with torch.no_grad():
            yield own, network(input_ids=own.input_ids, attention_mask=own.attention_mask).last_hidden_state


def _probs_and_entropy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities and -sum p log p, as sum p z - log sum exp z has it with the sign that a divergence needs."""
    wide = _wide(logits)
    probs = wide.softmax(dim=-1)
    return probs, wide.logsumexp(dim=-1) - torch.linalg.vecdot(probs, wide)


def _labels(
    batches: Sequence[TextBatch], ids: Callable[[TextBatch], Tensor], asked: Callable[[TextBatch], Tensor]
) -> Int[Tensor, "example token"]:
    labels = torch.full((examples_of(batches), max(batch.input_ids.shape[1] for batch in batches)), IGNORED)
    for batch in batches:
        found = ids(batch).where(asked(batch), IGNORED).cpu()
        labels[batch.example.cpu(), : found.shape[1]] = found
    return labels


def _wide(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))
