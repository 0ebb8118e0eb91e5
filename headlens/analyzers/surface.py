"""What heads look at, by the kind of token; how sharply; and how often they rest on a sink."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headlens.analyzers.base import Analyzer, Sums
from headlens.records import Batch, LayerAttention
from headlens.scores import Metric

CLASSES = {  # of Batch.token_classes -> metric, in words
    "first": ("first", "the first token"),
    "cls": ("cls", "[CLS]"),
    "sep": ("sep", "[SEP]"),
    "other_special": ("special", "other special tokens"),
    "full_stop": ("full_stop", "full stops"),
    "comma": ("comma", "commas"),
}
SINK_SHARE = 0.5  # of a row's mass


class Surface(Analyzer):
    """Mass on kinds of tokens, entropy, confidence, breadth, rows that rest on a sink.

    Rows are the tokens that are neither special nor padding. Kinds of tokens as in Clark et al. 2019, sec. 3.2;
    confidence after Voita et al. 2019, sec. 4; a sink is the first token (Xiao et al. 2024) or any special token.
    A kind of token that the corpus does not have gives no score.
    """

    name = "surface"
    metrics = (
        *(
            Metric(
                f"surface.{metric}",
                f"Mass on {words}",
                f"Mean share of a row's attention that goes to {words}.",
                "share",
            )
            for metric, words in CLASSES.values()
        ),
        Metric(
            "surface.sink_rows",
            "Rows that rest on a sink",
            f"Share of rows with over {SINK_SHARE} of their attention on the first token and special tokens together.",
            "share",
        ),
        Metric("surface.entropy", "Entropy", "Mean entropy of a row; 0 = all on one key.", "nats"),
        Metric(
            "surface.breadth",
            "Breadth",
            "Mean entropy over the mean entropy of uniform attention; 1 = spread over all visible keys.",
            "ratio",
        ),
        Metric("surface.confidence", "Confidence", "Mean of a row's largest probability.", "share"),
    )

    def observe(self, attention: LayerAttention, batch: Batch) -> Sums:
        start, queries = attention.query_start, attention.probs.shape[2]
        rows = batch.rows[:, start : start + queries]
        weight = rows.to(attention.probs.dtype)  # [batch, query]
        sums_of_rows = torch.stack([attention.entropy, attention.largest], dim=-1)
        entropy, confidence = torch.einsum("bhqs,bq->sbh", sums_of_rows, weight)
        resting = _on_sinks(attention.probs, batch.derived("surface.sink_positions", _sink_positions)) > SINK_SHARE
        visible = batch.visible(attention.is_causal)[:, start : start + queries].clamp_min(1)
        return {
            "rows": rows.sum(dim=-1)[:, None],
            "paid": _to_kinds(attention.probs, weight, kinds_of_tokens(batch)),
            "keys": batch.derived("surface.keys", _keys),
            "resting": (resting & rows[:, None]).sum(dim=-1),
            "entropy": entropy,
            "uniform_entropy": (visible.double().log() * rows).sum(dim=-1)[:, None],
            "confidence": confidence,
        }

    def score(self, sums: Sums) -> dict[str, Tensor]:
        rows = sums["rows"]
        shares = sums["paid"] / rows[..., None]
        scores = {f"surface.{metric}": shares[..., i] for i, (metric, _) in enumerate(CLASSES.values())}
        scores["surface.sink_rows"] = sums["resting"] / rows
        scores["surface.entropy"] = sums["entropy"] / rows
        scores["surface.breadth"] = sums["entropy"] / sums["uniform_entropy"]
        scores["surface.confidence"] = sums["confidence"] / rows
        return scores

    def support(self, sums: Sums) -> dict[str, Tensor]:
        occurring = torch.where(sums["keys"] > 0, sums["rows"][..., None], 0)
        kinds = {f"surface.{metric}": occurring[..., i] for i, (metric, _) in enumerate(CLASSES.values())}
        return {metric.name: kinds.get(metric.name, sums["rows"]) for metric in self.metrics}


def kinds_of_tokens(batch: Batch) -> Float[Tensor, "batch token kind"]:
    """1 where a token is of a kind, in the order of CLASSES; 0 for padding."""
    return batch.derived("surface.kinds", _kinds)


def sinks(batch: Batch) -> Bool[Tensor, "batch token"]:
    """The first token and special tokens of every input."""
    return batch.derived("surface.sinks", _sinks)


def _kinds(batch: Batch) -> Float[Tensor, "batch token kind"]:
    none = torch.zeros_like(batch.special)
    kinds = [batch.token_classes.get(name, none) & batch.attention_mask for name in CLASSES]
    return torch.stack(kinds, dim=-1).float()


def _keys(batch: Batch) -> Float[Tensor, "batch head=1 kind"]:
    """How many tokens of each kind an input has."""
    return kinds_of_tokens(batch).sum(dim=1)[:, None]


def _to_kinds(probs: Tensor, weight: Tensor, kinds: Tensor) -> Float[Tensor, "batch head kind"]:
    """Mass that goes to each kind of token, summed over the rows: first over rows, since the kinds are many."""
    by_key = (weight[:, None, None] @ probs).squeeze(-2)  # [batch, head, key]
    return by_key @ kinds[:, : probs.shape[-1]].to(probs.dtype)


def _sinks(batch: Batch) -> Bool[Tensor, "batch token"]:
    return (kinds_of_tokens(batch)[..., list(CLASSES).index("first")].bool() | batch.special) & batch.attention_mask


def _sink_positions(batch: Batch) -> Int[Tensor, "batch sink"]:
    """-1 fills up where an input has fewer sinks than another."""
    is_sink = sinks(batch)
    position = torch.arange(is_sink.shape[1], device=is_sink.device).expand_as(is_sink)
    most = int(is_sink.sum(dim=-1).max())
    return position.where(is_sink, -1).sort(dim=-1, descending=True).values[:, :most]


def _on_sinks(probs: Tensor, sinks: Tensor) -> Float[Tensor, "batch head query"]:
    keys = probs.shape[-1]
    there = (sinks >= 0) & (sinks < keys)
    place = sinks.clamp(0, keys - 1)[:, None, None].expand(*probs.shape[:3], -1)
    return (probs.gather(-1, place) * there[:, None, None]).sum(dim=-1)
