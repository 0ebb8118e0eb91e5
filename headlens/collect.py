"""Attention of a few texts as arrays, for notebooks. What is large is scored as it streams by (`profile`), not kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headlens.arch import attention_sites, output_projection, output_weight
from headlens.attention import head_contributions
from headlens.capture import capture
from headlens.encode import check_vocabulary, encode_texts, max_length_of, token_strings
from headlens.errors import CaptureError, CorpusError, UnsupportedModel
from headlens.models import head_counts, network_of
from headlens.plan import HeadPlan, plan_of
from headlens.records import Batch, LayerAttention, Stack

What = Literal["q", "k", "v", "probs", "context", "contribution"]

LIMIT_BYTES = 1 << 30


@dataclass(frozen=True, eq=False)
class Collected:
    """Attention of one text, without padding. The arrays asked for; the others are None.

    q, context [layer, head, token, dim]; k, v [layer, kv, token, dim]; probs [layer, head, query, key];
    contribution [layer, head, token, hidden], what each head adds to the residual stream (the bias belongs to none).
    Of a pruned model heads, and key/value heads, stand where they stood in the original, and those that were removed
    are NaN. Where a pruned model gave each head keys and values of its own, `kv` counts heads.
    """

    text: str
    tokens: list[str]
    special: NDArray[np.bool_]  # True where the tokenizer added the token
    q: NDArray[np.float32] | None = None
    k: NDArray[np.float32] | None = None
    v: NDArray[np.float32] | None = None
    probs: NDArray[np.float32] | None = None
    context: NDArray[np.float32] | None = None
    contribution: NDArray[np.float32] | None = None

    def __repr__(self) -> str:
        names = [name for name in get_args(What) if getattr(self, name) is not None]
        return f"<Collected {', '.join(names)} of {len(self.tokens)} tokens: {self.text[:40]!r}>"


def collect(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: str | Sequence[str],
    what: What | Sequence[What] = ("q", "k", "v", "probs", "context"),
    *,
    limit_bytes: int = LIMIT_BYTES,
) -> list[Collected]:
    """What every head computes on each text. Of an encoder-decoder model, its encoder.

    Parameters
    ----------
    what
        Which arrays: "q", "k", "v", "probs", "context", "contribution".
    limit_bytes
        Refuse to keep more than this; the default is 1 GiB.

    Raises
    ------
    CaptureError
        An unknown name in `what`, more memory needed than `limit_bytes`, or a model without any heads.
    CorpusError
        No text, or one that is longer than the model takes.
    """
    texts = [texts] if isinstance(texts, str) else list(texts)
    what = [what] if isinstance(what, str) else list(what)
    unknown = sorted(set(what) - set(get_args(What)))
    if unknown:
        raise CaptureError(f"collect knows {', '.join(get_args(What))}, got {', '.join(unknown)}.")
    if not isinstance(model, PreTrainedModel):
        raise UnsupportedModel(
            f"Expected a model of transformers, got {type(model).__name__}; of a LoadedModel pass `.model`."
        )
    network = network_of(model)
    encoded = encode_texts(texts, tokenizer, max_length=max_length_of(network.config, tokenizer))
    if encoded.cut_documents:
        raise CorpusError(
            f"{encoded.cut_documents} of {len(texts)} texts are longer than the {encoded.max_length} tokens that the "
            f"model takes: shorten them, or leave them out."
        )
    if encoded.empty:
        raise CorpusError(f"{encoded.empty} of {len(texts)} texts have no token: leave them out.")
    check_vocabulary(encoded, network, type(model).__name__)
    _check_memory(network, encoded.batches, what, limit_bytes)
    found: dict[int, Collected] = {}
    for batch in encoded.batches:
        found |= _of_batch(network, tokenizer, texts, batch.to(network.device), what)
    return [found[i] for i in range(len(texts))]


def bytes_needed(model: PreTrainedModel, lengths: Sequence[int], what: Sequence[What]) -> int:
    """Bytes of float32 arrays for texts of these many tokens."""
    sizes = head_counts(model.config)
    heads, kv, dim, hidden = (sizes[name] for name in ("heads", "kv_heads", "head_dim", "hidden"))
    if (plan := plan_of(model.config)) is not None:
        kv = _key_value_heads(plan)[1]
    per_token = {"q": heads * dim, "k": kv * dim, "v": kv * dim, "context": heads * dim, "contribution": heads * hidden}
    numbers = sum(sum(per_token.get(name, heads * n) for name in what) * n for n in lengths)
    return 4 * sizes["layers"] * numbers


def _check_memory(model: PreTrainedModel, batches: list[Batch], what: Sequence[What], limit: int) -> None:
    lengths = [int(n) for batch in batches for n in batch.attention_mask.sum(dim=-1)]
    needed = bytes_needed(model, lengths, what)
    if needed > limit:
        raise CaptureError(
            f"{', '.join(what)} of {len(lengths)} texts take {needed / 2**20:,.0f} MiB, more than the limit of "
            f"{limit / 2**20:,.0f} MiB: ask for less, or raise limit_bytes."
        )


def _of_batch(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str], batch: Batch, what: Sequence[What]
) -> dict[int, Collected]:
    layers: dict[int, dict[str, torch.Tensor]] = {}
    weights = _w_out(model) if "contribution" in what else {}

    def keep(attention: LayerAttention) -> None:
        kept: dict[str, torch.Tensor] = {name: getattr(attention, name) for name in what if name != "contribution"}
        if weights:
            kept["contribution"] = head_contributions(attention.context, weights[attention.stack, attention.layer])
        layers[attention.layer] = {name: value.float().cpu() for name, value in kept.items()}

    with torch.inference_mode(), capture(model, keep) as sites:
        model(input_ids=batch.input_ids, attention_mask=batch.attention_mask.long())
    if not layers:
        raise CaptureError("All heads of the model were removed, so there is nothing to collect.")
    listed = [layers[layer] for layer in sorted(layers)]
    plan = plan_of(model.config)
    if plan is not None and any(site.heads is not None for site in sites):
        listed = _in_original_places(layers, plan)
    found = {}
    for row, document in enumerate(batch.document.tolist()):
        real = batch.attention_mask[row].cpu()
        arrays = {}
        for name in what:
            stacked = torch.stack([layer[name][row] for layer in listed])[:, :, real]
            arrays[name] = (stacked[..., real] if name == "probs" else stacked).numpy()
        ids = batch.input_ids[row].cpu()[real].tolist()
        special = batch.special[row].cpu()[real].numpy()
        found[document] = Collected(texts[document], token_strings(tokenizer, ids), special, **arrays)
    return found


def _in_original_places(layers: dict[int, dict[str, torch.Tensor]], plan: HeadPlan) -> list[dict[str, torch.Tensor]]:
    """All layers, with NaN for the heads that were removed."""
    kv_numbers, kv_heads = _key_value_heads(plan)
    like = next(iter(layers.values()))
    placed = []
    for layer in range(plan.layers):
        every = {}
        for name, example in like.items():
            numbers, count = (kv_numbers[layer], kv_heads) if name in ("k", "v") else (plan.kept[layer], plan.heads)
            every[name] = example.new_full((len(example), count, *example.shape[2:]), torch.nan)
            if numbers:
                every[name][:, list(numbers)] = layers[layer][name]
        placed.append(every)
    return placed


def _key_value_heads(plan: HeadPlan) -> tuple[list[tuple[int, ...]], int]:
    """The number of each layer's key/value heads, and of how many: as in the original, or as the query heads are
    numbered where a head that had shared its keys got some of its own."""
    share = plan.heads // plan.kv_heads
    numbers = [tuple(group[0] // share for group in groups) for groups in plan.groups]
    if all(len(set(of_layer)) == len(of_layer) for of_layer in numbers):
        return numbers, plan.kv_heads
    return [tuple(group[0] for group in groups) for groups in plan.groups], plan.heads


def _w_out(model: PreTrainedModel) -> dict[tuple[Stack, int], torch.Tensor]:
    heads = head_counts(model.config)["heads"]
    return {
        (site.stack, site.layer): output_weight(
            output_projection(model, site), heads if site.heads is None else len(site.heads)
        )
        for site in attention_sites(model)
    }
