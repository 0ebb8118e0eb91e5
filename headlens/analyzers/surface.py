"""What heads look at, by the kind of token; how sharply; and how often they rest on a sink."""

from __future__ import annotations

import torch
from jaxtyping import Float
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
        start, (queries, keys) = attention.query_start, attention.probs.shape[-2:]
        rows = batch.rows[:, start : start + queries]
        weight = rows.to(attention.probs.dtype)  # [batch, query]
        kinds = batch.derived("surface.kinds", _kinds)[:, None, :keys].to(weight.dtype)
        paid = attention.probs @ kinds  # [batch, head, query, kind], sinks last
        per_row = torch.stack([torch.special.entr(attention.probs).sum(dim=-1), attention.strongest[0]], dim=-1)
        entropy, confidence = torch.einsum("bhqs,bq->sbh", per_row, weight)
        visible = batch.visible(attention.is_causal)[:, start : start + queries].clamp_min(1)
        return {
            "rows": rows.sum(dim=-1)[:, None],
            "paid": torch.einsum("bhqc,bq->bhc", paid[..., :-1], weight),
            "keys": batch.derived("surface.keys", _keys),
            "resting": ((paid[..., -1] > SINK_SHARE) & rows[:, None]).sum(dim=-1),
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


def _kinds(batch: Batch) -> Float[Tensor, "batch token kind"]:
    """1 where a token is of a kind; the last kind is the sinks."""
    none = torch.zeros_like(batch.special)
    kinds = [batch.token_classes.get(name, none) & batch.attention_mask for name in CLASSES]
    sinks = (kinds[0] | batch.special) & batch.attention_mask
    return torch.stack([*kinds, sinks], dim=-1).float()


def _keys(batch: Batch) -> Float[Tensor, "batch head=1 kind"]:
    """How many tokens of each kind an input has."""
    return batch.derived("surface.kinds", _kinds)[..., :-1].sum(dim=1)[:, None]
