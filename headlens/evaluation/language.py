"""Asking a model for tokens: the next one of a decoder, or masked ones of an encoder.

The network runs on whole inputs; logits are made only where a token is asked for, a few hundred at a time.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headlens.arch import attention_sites
from headlens.behaviour.losses import causal_logits, masked_token_logits
from headlens.documents import Document
from headlens.encode import encode
from headlens.errors import CorpusError, UnsupportedModel
from headlens.models import LoadedModel, network_of
from headlens.significance import Floats
from headlens.words import id_of

Ints: TypeAlias = NDArray[np.int64]
Logits: TypeAlias = Callable[[Tensor], Tensor]  # from hidden states [asked, hidden] to [asked, token]

_ROWS = 256  # whose logits are there at once
_NO_LIMIT = 10_000_000  # tokens of an input that is not to be cut


@dataclass(frozen=True, eq=False)
class Asked:
    """One input without its padding, and the hidden states from which a token is to be told."""

    item: int
    ids: Ints  # [token]
    read: Ints  # [asked]: places of hidden states
    right: Ints  # [asked]: the token that should be told there


@dataclass(frozen=True, eq=False)
class Said:
    item: int
    log_probs: Floats  # [asked]: of the right tokens, in nats
    is_first: NDArray[np.bool_]  # [asked]: no token was more probable than the right one


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A network and its vocabulary head."""

    network: PreTrainedModel
    logits: Logits
    tokenizer: PreTrainedTokenizerBase
    name: str
    is_causal: bool

    def say(self, asked: Iterable[Asked], *, batch_tokens: int) -> Iterator[Said]:
        """What the model gives to the right tokens, input by input in the given order; neighbours share a batch."""
        for one, logits in self.rows(asked, batch_tokens=batch_tokens):
            log_probs = logits.log_softmax(dim=-1)
            right = torch.from_numpy(one.right).to(logits.device)
            own = log_probs.gather(-1, right[:, None])[:, 0]
            yield Said(one.item, own.double().cpu().numpy(), (own >= log_probs.amax(dim=-1)).cpu().numpy())

    def rows(
        self, asked: Iterable[Asked], *, batch_tokens: int
    ) -> Iterator[tuple[Asked, Float[Tensor, "asked token"]]]:
        """The logits of all tokens at every place that is asked for, in float32 at least; a long input in parts."""
        for group in _batches(asked, batch_tokens):
            hidden = self._hidden(group)
            counts = [len(one.read) for one in group]
            owner, within = np.repeat(np.arange(len(group)), counts), np.concatenate([np.arange(n) for n in counts])
            place = np.concatenate([one.read for one in group])
            for start in range(0, len(owner), _ROWS):
                part = slice(start, start + _ROWS)
                found = self.logits(hidden[torch.from_numpy(owner[part]), torch.from_numpy(place[part])])
                wide = found.to(torch.promote_types(found.dtype, torch.float32))
                for row in np.unique(owner[part]):
                    own = np.flatnonzero(owner[part] == row)
                    few = slice(within[part][own[0]], within[part][own[-1]] + 1)
                    one = group[row]
                    yield Asked(one.item, one.ids, one.read[few], one.right[few]), wide[own[0] : own[-1] + 1]

    def _hidden(self, group: Sequence[Asked]) -> Float[Tensor, "batch token hidden"]:
        ids, mask = padded([one.ids for one in group], id_of(self.tokenizer, "pad_token") or 0)
        known = self.network.get_input_embeddings().num_embeddings
        if int(ids.max()) >= known:
            raise UnsupportedModel(
                f"The tokenizer is not that of {self.name!r}: it gives the token id {int(ids.max())}, the model knows "
                f"{known} tokens."
            )
        return hidden_states(self.network, ids, mask)


def causal_model(loaded: LoadedModel) -> LanguageModel:
    """The next-token predictor in `loaded`: with the head of the model itself, or that of a base model's checkpoint.

    Raises UnsupportedModel for a model that sees the tokens that follow, or has no vocabulary head.
    """
    network = network_of(loaded.model)
    tokenizer = loaded.require_tokenizer()
    if _is_encoder(network) or loaded.model.config.is_encoder_decoder:
        raise UnsupportedModel(
            f"{loaded.name!r} sees the tokens that follow, so it gives no probability to the next one; this task is "
            f"for decoders (for encoders there are masked, blimp and sts)."
        )
    logits = _own_head(loaded.model) or causal_logits(loaded)
    return LanguageModel(network, logits, tokenizer, loaded.name, is_causal=True)


def masked_model(loaded: LoadedModel) -> LanguageModel:
    """The predictor of masked tokens in `loaded`, as `causal_model`.

    Raises UnsupportedModel for a decoder, and where there is no mask token or no vocabulary head.
    """
    network = network_of(loaded.model)
    tokenizer = loaded.require_tokenizer()
    if not _is_encoder(network) or loaded.model.config.is_encoder_decoder:
        raise UnsupportedModel(f"{loaded.name!r} is no encoder, so it predicts no masked tokens; use perplexity.")
    if id_of(tokenizer, "mask_token") is None:
        raise UnsupportedModel(f"The tokenizer of {loaded.name!r} has no mask token, so no token can be masked.")
    logits = _own_head(loaded.model) or masked_token_logits(loaded)
    if logits is None:
        raise UnsupportedModel(
            f"{loaded.name!r} has no trained head for masked tokens (its checkpoint holds none); use a checkpoint that "
            f"does, or a task such as sts."
        )
    return LanguageModel(network, logits, tokenizer, loaded.name, is_causal=False)


def language_model(loaded: LoadedModel) -> LanguageModel:
    """`causal_model` of a decoder, `masked_model` of an encoder."""
    return masked_model(loaded) if _is_encoder(network_of(loaded.model)) else causal_model(loaded)


# ------------------------------------------------------------------------------------------------------- what is asked


@dataclass(frozen=True, eq=False)
class TokenText:
    """The tokens of one text, and what the tokenizer puts around those of every text."""

    item: int
    ids: Ints
    before: Ints
    after: Ints


def token_texts(documents: Sequence[Document], tokenizer: PreTrainedTokenizerBase) -> list[TokenText]:
    """Of every text that has a token, uncut, in their order. Special tokens written out in a text are text."""
    found = []
    for batch in encode(documents, tokenizer, max_length=_NO_LIMIT, batch_tokens=1).batches:  # one text each
        ids, own = batch.input_ids[0].numpy(), np.flatnonzero(~batch.special[0].numpy())
        parts = ids[own[0] : own[-1] + 1], ids[: own[0]], ids[own[-1] + 1 :]
        found.append(TokenText(int(batch.document[0]), *parts))
    return sorted(found, key=lambda text: text.item)


def start_ids(text: TokenText, tokenizer: PreTrainedTokenizerBase) -> Ints:
    """What stands before a sentence so that its first token has a probability, too: what the tokenizer puts there,
    else its first token of all texts, or the one that ends them; nothing where it has neither."""
    if text.before.size:
        return text.before
    start = next((found for name in ("bos_token", "eos_token") if (found := id_of(tokenizer, name)) is not None), None)
    return np.array([] if start is None else [start], np.int64)


def next_tokens(item: int, before: Ints, ids: Ints) -> Asked:
    """Every token of `ids` given those before it; the very first one only if something stands `before`."""
    whole = np.concatenate([before, ids])
    places = np.arange(max(before.size, 1), whole.size)
    return Asked(item, whole, places - 1, whole[places])


def masked_tokens(item: int, ids: Ints, places: Ints, mask: int) -> Iterator[Asked]:
    """The input once for each place, with the token there masked (Salazar et al. 2020)."""
    for place in places:
        masked = ids.copy()
        masked[place] = mask
        yield Asked(item, masked, np.array([place]), ids[place : place + 1])


def hidden_states(
    network: PreTrainedModel, ids: Int[Tensor, "batch token"], mask: Shaped[Tensor, "batch token"]
) -> Float[Tensor, "batch token hidden"]:
    """The last hidden states; no key/value cache is kept."""
    takes = inspect.signature(network.forward).parameters
    options = {"use_cache": False} if "use_cache" in takes else {}
    device = network.device
    hidden = network(input_ids=ids.to(device), attention_mask=mask.long().to(device), **options).last_hidden_state
    if not hidden[mask.bool().to(device)].isfinite().all():
        raise UnsupportedModel(
            f"The {type(network).__name__} gives numbers that are not finite, so it cannot be evaluated: look for NaN "
            f"in its weights, or run it in float32."
        )
    return hidden


def padded(rows: Sequence[Ints], pad: int) -> tuple[Tensor, Tensor]:
    """Ids and mask [batch, token] of rows of different lengths, padded on the right."""
    shape = len(rows), max(map(len, rows))
    ids, mask = torch.full(shape, pad), torch.zeros(shape, dtype=torch.long)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.from_numpy(row)
        mask[number, : len(row)] = 1
    return ids, mask


def check_length(tokens: int, most: int, place: str) -> None:
    """Refuse what does not fit the model in one piece: CorpusError."""
    if tokens > most:
        raise CorpusError(
            f"{place}: {tokens} tokens, special ones included, are more than the {most} that the model takes; shorten "
            f"it or leave it out."
        )


# -------------------------------------------------------------------------------------------------------------- inside


def _batches(asked: Iterable[Asked], batch_tokens: int) -> Iterator[list[Asked]]:
    group, longest = list[Asked](), 0
    for one in asked:
        longest = max(longest, len(one.ids))
        if group and (len(group) + 1) * longest > batch_tokens:
            yield group
            group, longest = [], len(one.ids)
        group.append(one)
    if group:
        yield group


def _is_encoder(network: PreTrainedModel) -> bool:
    return attention_sites(network)[0].stack == "encoder"


def _own_head(model: PreTrainedModel) -> Logits | None:
    """The vocabulary head of the model as its own code runs it; None of a base model."""
    if model.base_model is model or model.get_output_embeddings() is None:
        return None
    given = _Given()
    shell = copy.copy(model)  # shares its weights, and is called without the network below
    shell._modules = {**model._modules, model.base_model_prefix: given}

    def logits(hidden: Tensor) -> Tensor:
        given.hidden = hidden[None]
        return shell(input_ids=torch.zeros(hidden.shape[:1], dtype=torch.long, device=hidden.device)[None]).logits[0]

    return logits


class _Given(nn.Module):
    """Stands where a network was, and says what it is told to say."""

    hidden: Tensor

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "decoder", self)  # which the head of OPT calls; a submodule of itself it must not be

    def forward(self, *_: Any, **__: Any) -> _Output:
        return _Output(self.hidden)


class _Output:
    """Hidden states in whatever kind of output a head expects them; it finds nothing else there."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, place: int | slice) -> Any:
        return (self.last_hidden_state,)[place]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)
