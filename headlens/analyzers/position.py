"""Where heads look, by distance: fixed offsets, the neighbourhood, mean distance, and how much position explains."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from headlens.analyzers.base import Analyzer, Sums
from headlens.records import Batch, LayerAttention
from headlens.scores import Metric

OFFSETS = (-3, -2, -1, 0, 1, 2, 3)
NEIGHBOURHOOD = 2  # Pande et al. 2021: keys at most two away, the token itself included
EXACT_BINS = 8  # relative positions up to 8 have a bin each, further ones share a bin by octave: 9-16, 17-32, ...
OCTAVES = 12  # up to 8 * 2**12 = 32,768 tokens; the last bin takes all beyond
_BINS = 2 * (EXACT_BINS + OCTAVES) + 1

_NAMES = {-1: "the previous token", 0: "the token itself", 1: "the next token"}


def _where(offset: int) -> str:
    return _NAMES.get(offset, f"the token {abs(offset)} {'before' if offset < 0 else 'after'}")


class Position(Analyzer):
    """Mass and strongest key at fixed offsets, the local band, distances, variability.

    Rows are the tokens that are neither special nor padding; keys are all tokens. An offset of -1 is the previous token
    (Clark et al. 2019, sec. 3.1; Voita et al. 2019, sec. 5.2.1 for the share of strongest keys).
    """

    name = "position"
    without_macro = frozenset({"position.variability"})
    metrics = (
        *(
            Metric(
                f"position.mass[{o}]",
                f"Mass on {_where(o)}",
                f"Mean attention to {_where(o)}; a row whose target lies outside the sequence counts 0.",
                "share",
            )
            for o in OFFSETS
        ),
        *(
            Metric(
                f"position.mass_valid[{o}]",
                f"Mass on {_where(o)}, where there is one",
                f"Mean attention to {_where(o)} over the rows whose target is in the sequence and not a special token.",
                "share",
            )
            for o in OFFSETS
        ),
        *(
            Metric(
                f"position.argmax[{o}]",
                f"Strongest key is {_where(o)}",
                f"Share of rows whose first largest probability is at {_where(o)}. Chance: a key drawn at random.",
                "share",
            )
            for o in OFFSETS
        ),
        Metric(
            "position.local",
            "Attention to the neighbourhood",
            f"Mass on keys at most {NEIGHBOURHOOD} away, over the mass that uniform attention would put there.",
            "ratio",
        ),
        Metric(
            "position.distance",
            "Mean distance",
            "Mean number of tokens between a row and what it attends to, over all keys, special tokens included.",
            "tokens",
        ),
        Metric(
            "position.distance_signed",
            "Mean signed distance",
            "Mean position attended to, minus the row's own: negative looks back, positive ahead.",
            "tokens",
        ),
        Metric(
            "position.variability",
            "Variability beyond relative position",
            "Share of the variance of the probabilities that relative position alone does not explain; 0 = the head "
            "looks at fixed distances whatever the words are.",
            "share",
        ),
    )

    def observe(self, attention: LayerAttention, batch: Batch) -> Sums:
        start = attention.query_start
        stop = start + attention.probs.shape[2]
        rows = batch.rows[:, start:stop]
        targets = batch.derived("position.targets", _targets)[:, start:stop]
        scored = batch.derived("position.scored_targets", _scored_targets)[:, start:stop]
        paid = _at_offsets(attention.probs, start)  # [batch, head, query, offset]
        offset_of_strongest = attention.strongest_key - torch.arange(start, stop, device=rows.device)
        strongest_at = offset_of_strongest[..., None] == torch.tensor(OFFSETS, device=rows.device)
        profile, distance = offset_profile(attention.probs, rows, start)
        part = f"[{start}:{stop}{' causal' if attention.is_causal else ''}]"
        return {
            "rows": rows.sum(dim=-1)[:, None],
            "rows_with_target": scored.sum(dim=1)[:, None],
            "mass": torch.einsum("bhqo,bqo->bho", paid, targets.to(paid.dtype)),
            "mass_valid": torch.einsum("bhqo,bqo->bho", paid, scored.to(paid.dtype)),
            "strongest": (strongest_at & rows[:, None, :, None]).sum(dim=2),
            "near": (profile * (distance.abs() <= NEIGHBOURHOOD)).sum(dim=-1),
            "near_by_chance": batch.derived(
                f"position.near{part}", lambda b: _near_by_chance(b, attention.is_causal, start, stop)
            ),
            "distance": profile.double() @ distance.abs().double(),
            "signed": profile.double() @ distance.double(),
            "square": (torch.linalg.vector_norm(attention.probs, dim=-1).square() * rows[:, None]).sum(dim=-1),
            "bins": _binned(profile, distance),
            "pairs": batch.derived(f"position.pairs{part}", lambda b: _pairs(b, attention.is_causal, start, stop)),
        }

    def score(self, sums: Sums) -> dict[str, Tensor]:
        rows = sums["rows"]
        by_offset = {
            "mass": sums["mass"] / rows[..., None],
            "mass_valid": sums["mass_valid"] / sums["rows_with_target"],
            "argmax": sums["strongest"] / rows[..., None],
        }
        scores = {f"position.{n}[{o}]": s[..., i] for n, s in by_offset.items() for i, o in enumerate(OFFSETS)}
        scores["position.local"] = sums["near"] / sums["near_by_chance"]
        scores["position.distance"] = sums["distance"] / rows
        scores["position.distance_signed"] = sums["signed"] / rows
        scores["position.variability"] = _variability(sums["square"], sums["bins"], sums["pairs"])
        return scores

    def support(self, sums: Sums) -> dict[str, Tensor]:
        with_target = {f"position.mass_valid[{o}]": sums["rows_with_target"][..., i] for i, o in enumerate(OFFSETS)}
        return {metric.name: with_target.get(metric.name, sums["rows"]) for metric in self.metrics}

    def chance(self, uniform: Sums) -> dict[str, Tensor]:
        scores = self.score(uniform)
        # All keys of a uniform row are largest; which one a random choice takes is told by the mass.
        return scores | {f"position.argmax[{o}]": scores[f"position.mass[{o}]"] for o in OFFSETS}


def offset_profile(
    probs: Float[Tensor, "batch head query key"], rows: Bool[Tensor, "batch query"], start: int = 0
) -> tuple[Float[Tensor, "batch head distance"], Tensor]:
    """Mass at every relative position, summed over `rows`, and the relative positions (key minus query)."""
    batch, head, queries, keys = probs.shape
    width = queries + keys - 1
    # Written in rows of width - 1 and read in rows of `width`, each row of `probs` stands one place further left than
    # the row above, so that all pairs of one distance come to stand in one column.
    sheared = probs.new_zeros(batch, head, queries, width)
    steps = (head * queries * width, queries * width, width - 1, 1)
    sheared.as_strided(probs.shape, steps, sheared.storage_offset() + queries - 1).copy_(probs)
    profile = (rows.to(probs.dtype)[:, None, None] @ sheared).squeeze(-2)
    return profile, torch.arange(1 - queries - start, keys - start, device=probs.device)


def _at_offsets(probs: Tensor, start: int) -> Float[Tensor, "batch head query offset"]:
    """What each row pays at every offset; 0 beyond the keys."""
    queries, keys = probs.shape[-2:]
    position = torch.arange(start, start + queries, device=probs.device)[:, None]
    key = position + torch.tensor(OFFSETS, device=probs.device)
    inside = (key >= 0) & (key < keys)
    return probs.gather(-1, key.clamp(0, keys - 1).expand(*probs.shape[:2], -1, -1)) * inside


def _targets(batch: Batch) -> Bool[Tensor, "batch token offset"]:
    """Rows to score whose target at each offset is a real token."""
    return torch.stack([batch.rows & _shifted(batch.attention_mask, o) for o in OFFSETS], dim=-1)


def _scored_targets(batch: Batch) -> Bool[Tensor, "batch token offset"]:
    """Rows to score whose target at each offset is neither special nor padding."""
    return torch.stack([batch.rows & _shifted(batch.rows, o) for o in OFFSETS], dim=-1)


def _shifted(marks: Bool[Tensor, "batch token"], offset: int) -> Bool[Tensor, "batch token"]:
    """At token i the mark of token i + offset; False outside."""
    padded = F.pad(marks, (max(0, -offset), max(0, offset)))
    first = max(0, offset)
    return padded[:, first : first + marks.shape[1]]


def _near_by_chance(batch: Batch, is_causal: bool, start: int, stop: int) -> Float[Tensor, "batch head=1"]:
    """Sum over the rows of the share of visible keys that lie in the neighbourhood."""
    offsets = range(-NEIGHBOURHOOD, 1 if is_causal else NEIGHBOURHOOD + 1)
    near = torch.stack([_shifted(batch.attention_mask, o) for o in offsets]).sum(dim=0)  # [batch, token]
    share = near.double() / batch.visible(is_causal).clamp_min(1)
    return (share * batch.rows)[:, start:stop].sum(dim=-1, keepdim=True)


def _pairs(batch: Batch, is_causal: bool, start: int, stop: int) -> Float[Tensor, "batch head=1 bin"]:
    """How many pairs of a row and a key that it sees fall into each bin of relative position."""
    tokens = batch.attention_mask.shape[1]
    position = torch.arange(start, stop, device=batch.rows.device)
    first = batch.first[:, None]
    last = position if is_causal else first + batch.attention_mask.sum(dim=-1, keepdim=True) - 1
    rows = batch.rows[:, start:stop].double()
    # Row i sees the distances first - i to last - i: one step up there, one down behind, and the running sum counts.
    steps = torch.zeros(len(rows), 2 * tokens + 1, dtype=torch.float64, device=rows.device)
    steps.scatter_add_(1, first - position + tokens, rows)
    steps.scatter_add_(1, (last - position + tokens + 1).expand_as(rows), -rows)
    distance = torch.arange(-tokens, tokens + 1, device=rows.device)
    return _binned(steps.cumsum(dim=-1), distance)[:, None]


def _bin_of(distance: Tensor) -> Tensor:
    """0 is the token itself, then 1, 2, .. 8, 9-16, 17-32, ...; negative distances have bins of their own."""
    size = distance.abs()
    octave = torch.ceil(torch.log2(size.clamp_min(1) / EXACT_BINS)).long().clamp(0, OCTAVES)
    index = torch.where(size <= EXACT_BINS, size, EXACT_BINS + octave)
    return torch.where(distance < 0, EXACT_BINS + OCTAVES + index, index)


def _binned(profile: Float[Tensor, "*lead distance"], distance: Tensor) -> Float[Tensor, "*lead bin"]:
    bins = profile.new_zeros(*profile.shape[:-1], _BINS, dtype=torch.float64)
    return bins.index_add_(-1, _bin_of(distance), profile.double())


def _variability(square: Tensor, bins: Tensor, pairs: Tensor) -> Tensor:
    """1 - variance between bins / variance, over pairs of a row and a key it sees; after Vig & Belinkov 2019, eq. 5."""
    total = square - bins.sum(dim=-1).square() / pairs.sum(dim=-1)
    explained = (bins.square() / pairs.clamp_min(1)).sum(dim=-1) - bins.sum(dim=-1).square() / pairs.sum(dim=-1)
    return torch.where(total > 1e-12 * square, (1 - explained / total).clamp(0, 1), torch.nan)
