"""Retrieval heads: heads that look at the very token of a text's earlier passage that the model then writes.

Wu et al. 2024, "Retrieval Head Mechanistically Explains Long-Context Factuality" (code: nightdessert/Retrieval_Head).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from headlens.arch import attention_sites, heads_present, is_causal_model
from headlens.behaviour.needles import Cell, Haystack, make_cells, random_needles, sentence_needles, shortest
from headlens.behaviour.repeated import Source
from headlens.behaviour.unembedding import VocabularyHead, vocabulary_head
from headlens.capture import capture
from headlens.corpora import read_corpus, sample_path
from headlens.corpora import texts as documents_of
from headlens.errors import CaptureError, CorpusError, UnsupportedModel
from headlens.models import LoadedModel, network_of
from headlens.records import LayerAttention
from headlens.scores import Metric, ScoreTable
from headlens.significance import bootstrap_weights, percentile_interval
from headlens.words import call, check_fast, encodable, kept_as_it_is

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LENGTHS = (64, 128, 256)  # tokens of a prompt
DEPTHS = (0.1, 0.5, 0.9)
NEEDLES = 3  # of each length and depth
THRESHOLD, STRONG = 0.1, 0.5  # Wu et al. 2024: 3 to 6% of heads score over .1, fewer than 1% over .5
ENOUGH = 0.5  # share of needle tokens that a model must write for its heads to be judged by, as Wu et al.'s code has it

METRICS = (
    Metric(
        "retrieval.copy",
        "Needle tokens copied",
        "Share of a needle's tokens that the model writes while the head's strongest key is that token in the needle.",
        "share",
    ),
    Metric(
        "retrieval.needle",
        "Strongest key in the needle",
        "Share of the tokens that the model writes while the head's strongest key is any token of the needle.",
        "share",
    ),
    Metric(
        "retrieval.elsewhere",
        "Strongest key in another stretch",
        "The same for a stretch as long as the needle at a random other place of the text: a control.",
        "share",
    ),
)

_BATCH_TOKENS = 4096


def retrieval(
    model: LoadedModel | PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    texts: Iterable[str] | None = None,
    sentences: Sequence[tuple[str, str]] | None = None,
    lengths: Sequence[int] | None = None,
    depths: Sequence[float] = DEPTHS,
    needles: int = NEEDLES,
    seed: int = 0,
) -> tuple[ScoreTable, dict[str, Any]]:
    """Hide needles in a text, let the model go on with each where the text asks for it, and see who looks at it.

    A text is haystack, key, needle, haystack, key. The model writes as many tokens as the needle has, always the one
    with the largest logit. A head copies a token when its strongest key is within the needle and holds the token that
    is written; its score is |copied and in the needle| / |in the needle|, both sets of tokens (Wu et al. 2024), the
    mean of all texts. The code of Wu et al. keeps only texts where the answer holds over half of the needle's words;
    here all count, and the facts say in how many the model writes half of it or more. The chance level is that of a
    head whose strongest key is any visible one. Intervals (95%) are from resampling the texts: every one has a random
    needle of its own, but sentences come over and over, which makes their intervals too narrow.

    Parameters
    ----------
    model
        A decoder: what `load_model` gave, or a model with its vocabulary head, or one that shares its embeddings.
    tokenizer
        Only where `model` is not what `load_model` gave.
    texts
        The haystack, one text after the other; None takes the bundled English sample.
    sentences
        What to hide, each as (how it begins, how it goes on), such as needles.SENTENCES; None draws random tokens,
        which any model can be asked for.
    lengths
        Of the prompts, in tokens; None takes those of LENGTHS that the model has room for.
    depths
        Shares of the haystack that stand before the needle.
    needles
        How many for each length and depth.

    Returns
    -------
    A table of METRICS with the number of texts as support (heads that were removed have no score), and the facts: plain
    values, among them `reproduced` (share of texts whose whole needle the model wrote), `recalled` (share of needle
    tokens written in their place) and `note`, a sentence where the model writes too little of its needles for the
    scores to say anything, else None.

    Raises
    ------
    UnsupportedModel
        An encoder or encoder-decoder model, or one without a vocabulary head; see `vocabulary_head`.
    CorpusError
        Options out of range, lengths that the model has no room for, texts or sentences without a token.
    CaptureError
        A layer did not report, or gave NaN.
    """
    loaded = model.model if isinstance(model, LoadedModel) else model
    network = _decoder(loaded)
    head = vocabulary_head(model)
    reader = _tokenizer(model, tokenizer)
    if needles < 1 or not depths or seed < 0:
        raise CorpusError(f"Needles, depths and the seed must be at least 1, 1 and 0; got {needles}, {depths}, {seed}.")
    source = Source.of(network, reader, is_causal=True)
    haystack = Haystack(
        _ids_of(texts, reader), np.array([source.before] if source.before is not None else [], np.int64)
    )
    several = max(1, len(LENGTHS if lengths is None else lengths)) * len(depths) * needles
    hidden = (
        random_needles(source.ordinary, several, seed=seed)
        if sentences is None
        else sentence_needles(sentences, several, reader)
    )
    _check_known([haystack.ids, *(needle.ids for needle in hidden)], source.known)
    fitting = _fitting(lengths, source.max_length, hidden, haystack)
    cells = make_cells(
        haystack, hidden[: len(fitting) * len(depths) * needles], lengths=fitting, depths=depths, seed=seed
    )
    found = [outcome for group in _groups(cells) for outcome in _run(network, head, group)]
    return _table(found, seed, heads_present(attention_sites(network))), {
        **_facts(cells, found),
        "seed": seed,
        "sentences": sentences is not None,
    }


# ----------------------------------------------------------------------------------------------------------- preparing


def _decoder(model: PreTrainedModel) -> PreTrainedModel:
    network = network_of(model)
    if model.config.is_encoder_decoder or not is_causal_model(network):
        raise UnsupportedModel(
            f"Retrieval is seen in a model that goes on with a text by itself, and {type(model).__name__} (model_type "
            f"{model.config.model_type!r}) is no decoder; leave it out for this model."
        )
    return network


def _tokenizer(
    model: LoadedModel | PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None
) -> PreTrainedTokenizerBase:
    found = model.require_tokenizer() if tokenizer is None and isinstance(model, LoadedModel) else tokenizer
    if found is None:
        raise UnsupportedModel("A model that is passed as an object needs its tokenizer: retrieval(model, tokenizer).")
    check_fast(found)
    return found


def _ids_of(texts: Iterable[str] | None, tokenizer: PreTrainedTokenizerBase) -> Any:
    documents = read_corpus(sample_path()) if texts is None else documents_of(texts)
    with kept_as_it_is(tokenizer):
        rows = call(tokenizer, [encodable(document.text, document.id) for document in documents])["input_ids"]
    ids = np.array([token for row in rows for token in row], dtype=np.int64)
    if not ids.size:
        raise CorpusError("The tokenizer makes no token of the text to hide needles in; give text that it can read.")
    return ids


def _check_known(rows: Sequence[Any], known: int) -> None:
    largest = max(int(ids.max()) for ids in rows)
    if largest >= known:
        raise UnsupportedModel(
            f"The tokenizer is not that of the model: it gives the token id {largest}, the model knows {known} tokens."
        )


def _fitting(
    lengths: Sequence[int] | None, max_length: int, needles: Sequence[Any], haystack: Haystack
) -> Sequence[int]:
    """Lengths of prompts behind which there is room for the needle; where none is given, one at least."""
    longest = max_length - max(needle.ids.size for needle in needles) + 1  # the last token is written, not read
    fewest = max(shortest(haystack, needle) for needle in needles)
    if fewest > longest:
        raise CorpusError(
            f"The model takes {max_length} tokens, and a text that hides one of these needles has "
            f"{fewest + max_length - longest} at least; give shorter needles."
        )
    if lengths is None:
        lengths = [length for length in LENGTHS if fewest <= length <= longest] or [longest]
    odd = [length for length in lengths if not fewest <= length <= longest]
    if odd or not lengths:
        raise CorpusError(
            f"Prompts with these needles must have {fewest} to {longest} tokens for a model that takes {max_length}; "
            f"got {', '.join(map(str, odd)) or 'none'}."
        )
    return lengths


def _groups(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    """Cells of one shape, so that nothing is padded, in batches."""

    def shape(cell: Cell) -> tuple[int, int]:
        return cell.prompt.size, cell.needle.size

    for (length, _), group in groupby(sorted(cells, key=shape), key=shape):
        own, size = list(group), max(1, _BATCH_TOKENS // length)
        yield from (own[start : start + size] for start in range(0, len(own), size))


# ------------------------------------------------------------------------------------------------------------- running


@dataclass(frozen=True, eq=False)
class Outcome:
    """What became of one cell."""

    written: Int[Tensor, " step"]
    scores: Float[Tensor, "metric layer head"]
    chance: Float[Tensor, " metric"]


def _run(network: PreTrainedModel, head: VocabularyHead, cells: Sequence[Cell]) -> list[Outcome]:
    prompts = torch.from_numpy(np.stack([cell.prompt for cell in cells]))
    steps = cells[0].needle.size
    with torch.inference_mode():
        written = write_on(network, head, prompts, steps)
        # once more as a whole: the cache of a sliding window forgets where its keys stood
        read = torch.cat([prompts, written[:, :-1]], dim=1)
        strongest = strongest_keys(network, read, prompts.shape[1] - 1)
    return [count_copies(*row) for row in zip(strongest, read, written, cells, strict=True)]


def write_on(
    network: PreTrainedModel, head: VocabularyHead, prompts: Int[Tensor, "cell token"], steps: int
) -> Int[Tensor, "cell step"]:
    """The tokens that a base model goes on with, always the one with the largest logit."""
    read, written = prompts.to(network.device), list[Tensor]()
    mask = torch.ones_like(read)
    cache = {_name_of_cache(network): DynamicCache(config=network.config)}  # is added to in place
    for _ in range(steps):
        output = network(input_ids=read, attention_mask=mask, use_cache=True, **cache)
        read = head.logits(output.last_hidden_state[:, -1]).argmax(dim=-1, keepdim=True)
        mask = torch.cat([mask, torch.ones_like(read)], dim=1)
        written.append(read)
    return torch.cat(written, dim=1).cpu()


def _name_of_cache(network: PreTrainedModel) -> str:
    """transformers 5.24 renamed past_key_values, and warns of the old name."""
    return "cache" if "cache" in inspect.signature(network.forward).parameters else "past_key_values"


def strongest_keys(
    network: PreTrainedModel, ids: Int[Tensor, "cell token"], first: int
) -> Int[Tensor, "cell layer head step"]:
    """The position that each head attends to most, from the tokens at position `first` and behind it.

    -1 for heads that were removed.
    """
    found: dict[int, Tensor] = {}

    def observe(attention: LayerAttention) -> None:
        skipped = max(0, first - attention.query_start)
        probs = attention.probs[:, :, skipped:]
        if not probs.shape[2]:
            return
        if not probs.isfinite().all():
            raise CaptureError(
                f"Layer {attention.layer} gave NaN or infinite attention; the weights may be damaged, or a narrow "
                f"dtype such as float16 may overflow."
            )
        place = attention.query_start + skipped - first
        layer = found.setdefault(
            attention.layer, torch.full((*probs.shape[:2], ids.shape[1] - first), -1, device=probs.device)
        )
        layer[:, :, place : place + probs.shape[2]] = probs.argmax(dim=-1)

    with torch.inference_mode(), capture(network, observe, way="fast") as sites:
        network(input_ids=ids.to(network.device), use_cache=False)
    with_heads = [site for site in sites if not site.is_empty]
    if not with_heads:
        raise CaptureError("All heads of the model were removed, so there is none to score.")
    if len(found) < len(with_heads) or any((keys < 0).any() for keys in found.values()):
        raise CaptureError(f"Not all of {len(with_heads)} attention layers reported all their rows to headlens.")
    present = heads_present(sites)
    if present is None:
        return torch.stack([found[layer] for layer in sorted(found)], dim=1).cpu()
    every = torch.full((len(ids), *present.shape, ids.shape[1] - first), -1)
    for site in with_heads:
        every[:, site.layer, list(site.heads or ())] = found[site.layer].cpu()
    return every


def count_copies(
    strongest: Int[Tensor, "layer head step"], read: Int[Tensor, " token"], written: Int[Tensor, " step"], cell: Cell
) -> Outcome:
    """The scores of METRICS for one cell; `read` are the prompt and what was written, but for the last token."""
    in_needle = (strongest >= cell.start) & (strongest < cell.stop)
    elsewhere = (strongest >= cell.elsewhere) & (strongest < cell.elsewhere + cell.needle.size)
    copied = in_needle & (read[strongest] == written)
    needle = torch.from_numpy(cell.needle)
    kinds, counts = needle.unique(return_counts=True)
    is_kind = written[:, None] == kinds  # [step, kind]
    got = (copied[..., None] & is_kind).any(dim=-2)  # [layer, head, kind]
    scores = [got.double().mean(dim=-1), in_needle.double().mean(dim=-1), elsewhere.double().mean(dim=-1)]
    visible = cell.prompt.size + torch.arange(len(written), dtype=torch.float64)
    missed = torch.where(is_kind, 1 - counts / visible[:, None], 1.0).prod(dim=0)
    somewhere = (needle.numel() / visible).mean()
    return Outcome(written, torch.stack(scores), torch.stack([(1 - missed).mean(), somewhere, somewhere]))


# ------------------------------------------------------------------------------------------------------------- reading


def _table(found: Sequence[Outcome], seed: int, present: Bool[Tensor, "layer head"] | None) -> ScoreTable:
    scores = torch.stack([outcome.scores for outcome in found]).numpy()  # [cell, metric, layer, head]
    value = scores.mean(axis=0)
    low, high = np.full_like(value, np.nan), np.full_like(value, np.nan)
    if len(found) > 1:
        weights = bootstrap_weights(len(found), seed=seed) / len(found)
        low, high = percentile_interval(np.tensordot(weights, scores, axes=1))
    is_there = np.ones(value.shape[1:], dtype=bool) if present is None else present.numpy()
    return ScoreTable(
        metrics=METRICS,
        values=np.where(is_there, value, np.nan),
        support=np.where(is_there, float(len(found)), np.zeros_like(value)),
        low=np.where(is_there, low, np.nan),
        high=np.where(is_there, high, np.nan),
        chance=torch.stack([outcome.chance for outcome in found]).mean(dim=0).numpy(),
    )


def _facts(cells: Sequence[Cell], found: Sequence[Outcome]) -> dict[str, Any]:
    ordered = [cell for group in _groups(cells) for cell in group]
    right = [outcome.written.numpy() == cell.needle for cell, outcome in zip(ordered, found, strict=True)]
    recalled = [float(hits.mean()) for hits in right]
    enough = sum(share >= ENOUGH for share in recalled)
    lengths, depths = sorted({cell.prompt.size for cell in cells}), sorted({cell.depth for cell in cells})
    return {
        "texts": len(cells),
        "lengths": lengths,
        "depths": depths,
        "needle_tokens": sorted({cell.needle.size for cell in cells}),
        "reproduced": float(np.mean([hits.all() for hits in right])),
        "recalled": float(np.mean(recalled)),
        "recalled_by_length": [_mean_where(recalled, ordered, length=length) for length in lengths],
        "recalled_by_depth": [_mean_where(recalled, ordered, depth=depth) for depth in depths],
        "enough": enough,
        "threshold": THRESHOLD,
        "strong": STRONG,
        "note": None if enough >= len(cells) / 2 else _too_little(enough, len(cells)),
    }


def _mean_where(
    recalled: Sequence[float], cells: Sequence[Cell], *, length: int | None = None, depth: float | None = None
) -> float:
    return float(
        np.mean(
            [
                share
                for share, cell in zip(recalled, cells, strict=True)
                if length in (None, cell.prompt.size) and depth in (None, cell.depth)
            ]
        )
    )


def _too_little(enough: int, cells: int) -> str:
    return (
        f"The model wrote half of the hidden needle or more in {enough} of {cells} texts only: it does not retrieve "
        f"what it is asked for, so low scores do not say that its heads could not."
    )
