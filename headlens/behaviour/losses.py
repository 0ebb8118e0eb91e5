"""What a model can be asked with and without a head: its loss, or, where it has none, how far its output moves.

Hidden states are read where something is asked, and logits of a few hundred tokens are there at a time.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from headlens.arch import family_of, is_causal_model
from headlens.behaviour.repeated import Source, fitting_period, random_sample, written
from headlens.behaviour.unembedding import vocabulary_head
from headlens.behaviour.upper_layers import UpperLayers
from headlens.capture import capture
from headlens.checkpoints import find_checkpoint
from headlens.effects import MOST_TOKENS, Measure
from headlens.errors import CorpusError, UnsupportedModel
from headlens.models import LoadedModel, network_of, quiet
from headlens.records import Batch

_SHARE = MOST_TOKENS // 20  # that a document may give before others have given theirs: 20 can be told from chance
MASKED = 0.15  # of the tokens of each input: Devlin et al. 2019, section 3.1; all of them become the mask token
PERIOD, SEQUENCES = 50, 40  # random tokens of a copy, as in `repetition`, and how many are written twice

_STREAM = 4  # of the seed: `repetition` draws from 0 to 3, and a head is not asked on what it was found on
_BATCH_TOKENS = 2048
_ROWS = 256  # whose logits are there at once

Logits = Callable[[Tensor], Tensor]  # from hidden states [row, hidden] to [row, token]


@dataclass(frozen=True, eq=False)
class Asked:
    """Inputs, padded on the right, and the tokens at which hidden states are read, row by row."""

    input_ids: Int[Tensor, "batch token"]
    attention_mask: Int[Tensor, "batch token"]
    read: Bool[Tensor, "batch token"]
    right: Int[Tensor, " asked"]  # the token that should be predicted there
    document: Int[Tensor, " batch"]


class Question(ABC):
    """Asked of the model as it is and with a head gated to 0; `documents` tells the document of each single answer."""

    measure: Measure
    documents: Int[Tensor, " answer"]

    @abstractmethod
    def answers(self, gates: Float[Tensor, "layer head"]) -> Float[Tensor, "answer ..."]:
        """What the model says, one entry or row an answer, in float32 at least, on the CPU."""

    @abstractmethod
    def changes(
        self, intact: Float[Tensor, "answer ..."], without: Float[Tensor, "answer ..."]
    ) -> Float[Tensor, " answer"]:
        """How far the answers of a model without a head are from those of the intact one."""


class Loss(Question):
    """Cross-entropy in nats of each token that is asked for."""

    def __init__(self, network: PreTrainedModel, logits: Logits, asked: Sequence[Asked], measure: Measure) -> None:
        self.runs, self.logits, self.measure = _Runs(network, asked), logits, measure
        self.documents = torch.cat([one.document[one.read.nonzero()[:, 0]] for one in asked]).cpu()

    def answers(self, gates: Tensor) -> Tensor:
        return self.runs.read(gates, self._losses)

    def changes(self, intact: Tensor, without: Tensor) -> Tensor:
        return without - intact

    def _losses(self, hidden: Float[Tensor, "batch token hidden"], asked: Asked) -> Float[Tensor, " asked"]:
        rows = zip(hidden[asked.read].split(_ROWS), asked.right.split(_ROWS), strict=True)
        return torch.cat(
            [nn.functional.cross_entropy(_wide(self.logits(some)), right, reduction="none") for some, right in rows]
        )


class Output(Question):
    """The mean of the last hidden states over the tokens of each input, special ones included."""

    measure: Measure = "output"

    def __init__(self, network: PreTrainedModel, asked: Sequence[Asked]) -> None:
        self.runs = _Runs(network, asked)
        self.documents = torch.cat([one.document for one in asked]).cpu()

    def answers(self, gates: Tensor) -> Tensor:
        return self.runs.read(gates, _mean)

    def changes(self, intact: Tensor, without: Tensor) -> Tensor:
        return 1 - nn.functional.cosine_similarity(intact.double(), without.double(), dim=-1)


def about_text(model: LoadedModel, batches: Sequence[Batch], *, seed: int) -> Question:
    """What the model was trained for, on the first tokens of a corpus: the next token, or the masked ones.

    Where it has no vocabulary head, or one that headlens cannot follow, its output. Raises CorpusError where nothing
    can be asked.
    """
    network = network_of(model.model)
    tokenizer = model.require_tokenizer()
    inputs = sample(batches)
    if not inputs:
        raise CorpusError("The corpus holds no token to ask the model for, with and without a head; give it text.")
    is_causal = is_causal_model(network)
    logits = _next_token_logits(model) if is_causal else masked_token_logits(model)
    if logits is None:
        return Output(network, _packed(network, [_whole(item) for item in inputs]))
    if is_causal:
        asked = [_next_tokens(item) for item in inputs]
    else:
        rng = np.random.default_rng(seed)
        asked = [_masked(item, int(tokenizer.mask_token_id), rng) for item in inputs]
    asked = [item for item in asked if item.read.any()]
    if not asked:
        raise CorpusError("Every input of the corpus is a single token, so no next one can be asked for; give it text.")
    return Loss(network, logits, _packed(network, asked), "text")


def about_repeats(model: LoadedModel, *, seed: int) -> Question:
    """The next token within the second copy of random tokens written twice; every sequence is a document.

    Raises
    ------
    UnsupportedModel
        The model sees the tokens that follow, or has no plain vocabulary head.
    CorpusError
        There is no room for two copies.
    """
    network = network_of(model.model)
    tokenizer = model.require_tokenizer()
    if not is_causal_model(network):
        raise UnsupportedModel(
            f"{model.name!r} sees the tokens that follow, so it predicts no second copy of random tokens; ask for the "
            f"task 'text'."
        )
    logits = causal_logits(model)
    source = Source.of(network, tokenizer, is_causal=True)
    period = fitting_period(source, PERIOD, 2)
    drawn = random_sample(source, period=period, batch=SEQUENCES, seed=seed, stream=_STREAM)
    twice = written(source, drawn, 2)
    second = twice.layout.first + twice.layout.period  # nothing tells that a second copy begins there
    asked = []
    for item in sample(twice.batches, most=drawn.numel() * 2):
        read = np.zeros(len(item.ids), dtype=bool)
        read[second : twice.layout.stop - 1] = True
        asked.append(_Item(item.ids, read, item.ids[1:][read[:-1]], item.document))
    return Loss(network, logits, _packed(network, asked), "repeats")


# -------------------------------------------------------------------------------------------------------------- inputs


@dataclass(frozen=True, eq=False)
class Input:
    """One input without its padding."""

    ids: np.ndarray[Any, np.dtype[np.int64]]  # [token]
    is_scored: np.ndarray[Any, np.dtype[np.bool_]]  # [token]: not special
    document: int


@dataclass(frozen=True, eq=False)
class _Item:
    """One input as it is asked."""

    ids: np.ndarray[Any, np.dtype[np.int64]]  # [token]
    read: np.ndarray[Any, np.dtype[np.bool_]]  # [token]
    right: np.ndarray[Any, np.dtype[np.int64]]  # [asked]
    document: int


def sample(batches: Sequence[Batch], *, most: int = MOST_TOKENS) -> list[Input]:
    """Inputs of up to `most` scored tokens together (or one that has more), in an order that batches do not change.

    The first documents, whole; but of long ones only the first tokens, so that there are enough documents. Inputs
    without a scored token are left out.
    """
    by_document: dict[int, list[tuple[int, Input]]] = defaultdict(list)
    for place, (order, item) in enumerate(_inputs(batches)):
        by_document[item.document].append((place if order is None else order, item))
    ranked = []
    for document, own in sorted(by_document.items()):
        before = 0
        for order, item in sorted(own, key=lambda one: one[0]):
            ranked.append((before // _SHARE, document, order, item))
            before += int(item.is_scored.sum())
    found, tokens = list[Input](), 0
    for *_, item in sorted(ranked, key=lambda one: one[:3]):
        tokens += int(item.is_scored.sum())
        if found and tokens > most:
            break
        found.append(item)
    return found


def _inputs(batches: Sequence[Batch]) -> Iterator[tuple[int | None, Input]]:
    """Each with its place in the corpus, where that is known."""
    for batch in batches:
        real, scored = batch.attention_mask.cpu(), batch.rows.cpu()
        order = [None] * len(real) if batch.input_index is None else batch.input_index.tolist()
        for row, document in enumerate(batch.document.tolist()):
            if scored[row].any():
                ids = batch.input_ids[row].cpu()[real[row]].numpy()
                yield order[row], Input(ids, scored[row][real[row]].numpy(), document)


def _next_tokens(item: Input) -> _Item:
    read = np.append(item.is_scored[1:], False)
    return _Item(item.ids, read, item.ids[1:][read[:-1]], item.document)


def _masked(item: Input, mask: int, rng: np.random.Generator) -> _Item:
    scored = np.flatnonzero(item.is_scored)
    chosen = np.sort(rng.choice(scored, max(1, round(MASKED * len(scored))), replace=False))
    ids, read = item.ids.copy(), np.zeros(len(item.ids), dtype=bool)
    ids[chosen], read[chosen] = mask, True
    return _Item(ids, read, item.ids[chosen], item.document)


def _whole(item: Input) -> _Item:
    return _Item(item.ids, np.ones(len(item.ids), dtype=bool), item.ids, item.document)


def _packed(network: PreTrainedModel, items: Sequence[_Item]) -> list[Asked]:
    """Shortest first, in batches of about as many tokens each, on the model's device."""
    rows, found = list[_Item](), list[Asked]()
    for item in sorted(items, key=lambda one: len(one.ids)):
        if rows and (len(rows) + 1) * len(item.ids) > _BATCH_TOKENS:
            found.append(_padded(network, rows))
            rows = []
        rows.append(item)
    return [*found, _padded(network, rows)]


def _padded(network: PreTrainedModel, rows: Sequence[_Item]) -> Asked:
    shape = (len(rows), max(len(item.ids) for item in rows))
    ids = torch.full(shape, getattr(network.config.get_text_config(), "pad_token_id", None) or 0)
    mask, read = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.bool)
    for row, item in enumerate(rows):
        length = len(item.ids)
        ids[row, :length], mask[row, :length] = torch.from_numpy(item.ids), 1
        read[row, :length] = torch.from_numpy(item.read)
    right = torch.from_numpy(np.concatenate([item.right for item in rows]))
    document = torch.tensor([item.document for item in rows])
    return Asked(*(tensor.to(network.device) for tensor in (ids, mask, read, right, document)))


# ------------------------------------------------------------------------------------------------------------- running


class _Runs:
    """One network and what it is asked."""

    def __init__(self, network: PreTrainedModel, asked: Sequence[Asked]) -> None:
        self.network, self.asked = network, asked
        self._layers = UpperLayers(network)

    def read(
        self, gates: Float[Tensor, "layer head"], read: Callable[[Tensor, Asked], Tensor]
    ) -> Float[Tensor, "answer ..."]:
        """What `read` makes of the last hidden states of every batch, one after the other. The first gates are open."""
        gated = (gates != 1).any(dim=-1)
        below = int(gated.int().argmax())
        found = []
        with (
            torch.inference_mode(),
            capture(self.network, gates=gates.to(self.network.device, self.network.dtype), way="fast"),
        ):
            for number, one in enumerate(self.asked):
                hidden = self._layers.run(number, below, one.input_ids, one.attention_mask)
                found.append(read(hidden, one).cpu())
        return torch.cat(found)


def _mean(hidden: Float[Tensor, "batch token hidden"], asked: Asked) -> Float[Tensor, "batch hidden"]:
    real = asked.attention_mask.bool()[..., None]
    return _wide(hidden).where(real, 0).sum(dim=1) / real.sum(dim=1)


def _wide(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


# --------------------------------------------------------------------------------------------------- vocabulary heads


def _next_token_logits(model: LoadedModel) -> Logits | None:
    try:
        return causal_logits(model)
    except UnsupportedModel:
        return None


def causal_logits(model: LoadedModel) -> Logits:
    """The vocabulary head of a decoder; UnsupportedModel where none is known."""
    head = vocabulary_head(model)
    config = model.model.config.get_text_config()
    factor = getattr(config, "logit_scale", None) or 1 / (
        getattr(config, "logits_scaling", None) or 1
    )  # Cohere, Granite
    cap = getattr(config, "final_logit_softcapping", None)  # Gemma

    def logits(hidden: Tensor) -> Tensor:
        found = head.logits(hidden) * factor
        return found if cap is None else cap * torch.tanh(found / cap)

    return logits


def masked_token_logits(model: LoadedModel) -> Logits | None:
    """The vocabulary head of an encoder, with all that stands before its matrix; None where it has none."""
    kind = MODEL_FOR_MASKED_LM_MAPPING_NAMES.get(family_of(model.model))
    tokenizer = model.require_tokenizer()
    if kind is None or tokenizer.mask_token_id is None or model.model.config.is_encoder_decoder:
        return None
    is_whole = any(cls.__name__ == kind for cls in type(model.model).__mro__)
    whole = model.model if is_whole else _stored(model)
    if whole is None:
        return None
    given = _Given()
    shell = copy.copy(whole)  # shares its weights, and is called without the network below
    shell._modules = {**whole._modules, whole.base_model_prefix: given}

    def logits(hidden: Tensor) -> Tensor:
        given.hidden = hidden[None]
        return shell(input_ids=torch.zeros(hidden.shape[:1], dtype=torch.long, device=hidden.device)[None]).logits[0]

    return logits


class _Given(nn.Module):
    """Stands where a network was, and says what it is told to say."""

    hidden: Tensor

    def forward(self, *_: Any, **__: Any) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=self.hidden)


def _stored(model: LoadedModel) -> PreTrainedModel | None:
    """The model with the head that its checkpoint holds; None where it holds none, or not all of it."""
    if model.provenance.get("weights_sha256") is None:
        return None  # passed as an object
    checkpoint = find_checkpoint(model.name, revision=model.provenance.get("revision"))
    if checkpoint.gguf:
        return None
    with quiet():
        whole, report = AutoModelForMaskedLM.from_pretrained(
            checkpoint.folder,
            config=copy.deepcopy(model.model.config),
            dtype=model.model.dtype,
            output_loading_info=True,
            local_files_only=True,
            use_safetensors=True,
        )
    base = f"{whole.base_model_prefix}."
    missing = [name for name in report["missing_keys"] if not name.startswith(base)]
    return None if missing else whole.to(model.model.device).eval()
