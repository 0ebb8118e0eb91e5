"""Which heads attend from a mention to its antecedent, and from a pronoun to the name that it stands for."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from headlens.analyzers.base import DecisionAnalyzer, Sums
from headlens.analyzers.word_profile import PROFILE_SUMS, profile_sums
from headlens.gold.shortlists import Shortlists
from headlens.records import Batch, WordAttention
from headlens.scores import Metric

OPPOSITES = (("pro", "anti"), ("feminine", "masculine"))  # groups whose difference is a score of its own


class Shortlisted(DecisionAnalyzer):
    """Share of decisions in which the candidate that a word attends to most is a right one; ties go to the first."""

    pooled = PROFILE_SUMS

    def __init__(self, name: str, shortlists: Shortlists, longest: int) -> None:
        """`longest`: words of the longest input, for the profile of relative positions."""
        self.name, self.shortlists, self.longest = name, shortlists, longest
        self.counted, self.membership = shortlists.metrics, torch.eye(len(shortlists.metrics))
        self._counts_for = torch.from_numpy(shortlists.counts_for).float()  # [decision, metric]
        self._differences = {
            f"{name}.difference[{one}-{other}]": (f"{name}[{one}]", f"{name}[{other}]")
            for one, other in OPPOSITES
            if {f"{name}[{one}]", f"{name}[{other}]"} <= set(shortlists.metrics)
        }
        self.metrics = (
            *(_metric_of(metric) for metric in shortlists.metrics),
            *(_difference(metric) for metric in self._differences),
        )
        self.without_macro = frozenset(metric.name for metric in self.metrics)

    def observe(self, attention: WordAttention, batch: Batch) -> Sums:
        return {
            "correct": self.correct(attention, batch),
            "total": batch.derived(f"{self.name}.total", lambda b: self._totals(b)[0]),
            "by_chance": batch.derived(f"{self.name}.by_chance", lambda b: self._totals(b)[1]),
            **profile_sums(attention, batch, self.longest),
        }

    def correct(self, attention: WordAttention, batch: Batch) -> Float[Tensor, "batch head label"]:
        listed = batch.derived(f"{self.name}.listed", self._listed)
        place, index, word, candidates = listed[:, 0], listed[:, 1], listed[:, 2], listed[:, 3:]
        heads = attention.probs.shape[1]
        if not len(listed):
            return attention.probs.new_zeros(len(batch.input_ids), heads, len(self.counted), dtype=torch.float32)
        rows = attention.probs[place, :, word]  # [decision, head, word_to]
        paid = rows.gather(-1, candidates.clamp_min(0)[:, None].expand(-1, heads, -1))
        choice = paid.masked_fill((candidates < 0)[:, None], -1.0).argmax(dim=-1)
        right = torch.from_numpy(self.shortlists.right).to(choice.device)[index].gather(1, choice)
        return self._by_input(right.float(), place, index, batch)

    def score(self, sums: Sums) -> dict[str, Tensor]:
        accuracy = sums["correct"] / sums["total"]
        return self._with_differences({name: accuracy[..., i] for i, name in enumerate(self.shortlists.metrics)})

    def support(self, sums: Sums) -> dict[str, Tensor]:
        support = {name: sums["total"][..., i] for i, name in enumerate(self.shortlists.metrics)}
        both = {name: support[one] + support[other] for name, (one, other) in self._differences.items()}
        return support | both

    def chance(self, uniform: Sums) -> dict[str, Tensor]:
        level = uniform["by_chance"] / uniform["total"]
        return self._with_differences({name: level[..., i] for i, name in enumerate(self.shortlists.metrics)})

    def _with_differences(self, scores: dict[str, Tensor]) -> dict[str, Tensor]:
        return scores | {name: scores[one] - scores[other] for name, (one, other) in self._differences.items()}

    def _listed(self, batch: Batch) -> Tensor:
        """[decision, field]: row of the batch, index, word, then the candidates."""
        assert batch.input_index is not None
        place, index = self.shortlists.by_input.of(batch.input_index.tolist())
        columns = (place, index, self.shortlists.word[index])
        fields = [torch.from_numpy(column)[:, None] for column in columns]
        listed = torch.cat([*fields, torch.from_numpy(self.shortlists.candidates[index])], dim=1)
        return listed.to(batch.input_ids.device)

    def _totals(self, batch: Batch) -> Float[Tensor, "both batch head=1 metric"]:
        listed = batch.derived(f"{self.name}.listed", self._listed)
        chance = torch.from_numpy(self.shortlists.chance).to(listed.device)[listed[:, 1]]
        both = torch.stack([torch.ones_like(chance), chance], dim=1)  # [decision, both]
        return self._by_input(both, listed[:, 0], listed[:, 1], batch).transpose(0, 1).unsqueeze(2)

    def _by_input(
        self, values: Float[Tensor, "decision column"], place: Tensor, index: Tensor, batch: Batch
    ) -> Float[Tensor, "batch column metric"]:
        """Values of every decision, added up by input and by the metrics that it counts for."""
        counts_for = self._counts_for.to(values)[index]  # [decision, metric]
        each = values[:, :, None] * counts_for[:, None, :]
        return each.new_zeros(batch.input_ids.shape[0], *each.shape[1:]).index_add_(0, place, each)


def _metric_of(name: str) -> Metric:
    family, _, kind = name.partition("[")
    words = kind.rstrip("]").replace("_", " ")
    if family == "choice":
        return Metric(
            name,
            f"Pronoun to name, {words}",
            f"Share of pronouns ({words}) that attend to the right name most.",
            "share",
        )
    return Metric(
        name,
        f"Mention to antecedent, {words}",
        f"Share of mentions ({words}) whose strongest earlier mention is of the same entity.",
        "share",
    )


def _difference(name: str) -> Metric:
    one, _, other = name.partition("[")[2].rstrip("]").partition("-")
    return Metric(name, f"{one} minus {other}", f"Accuracy on {one} items minus accuracy on {other} items.", "share")
