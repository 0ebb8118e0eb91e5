"""What heads look at in random tokens that are written several times: the previous token, the same one, the next one.

Random tokens say nothing about each other, so a head that finds a token's earlier copy, or what came after it, finds it
by its identity. On tokens that are not repeated the same distances tell what position alone gets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headlens.analyzers.base import Analyzer, Sums
from headlens.behaviour.repeated import Layout
from headlens.records import Batch, LayerAttention
from headlens.scores import Metric

TWO_COPIES = ("previous", "duplicate", "induction")
SEVERAL_COPIES = ("prefix_matching",)

_TITLES = {
    "previous": "Previous token",
    "duplicate": "Duplicate token",
    "induction": "Induction",
    "prefix_matching": "Prefix matching",
}
_KEYS_IN_WORDS = {
    "previous": "the previous token, from all rows of both copies that have one (the special token in front counts)",
    "duplicate": "the same token in the first copy, from the rows of the second",
    "induction": "the token after the same token in the first copy, from the rows of the second",
    "prefix_matching": "all tokens that followed the same token in earlier copies, from the rows of the second copy on",
}
_OTHER_COPY = "the same token in the other copy, from the rows of both"


class Repetition(Analyzer):
    """Mass on certain keys of each row, and how often the strongest key is among them.

    "previous", "duplicate" and "induction" are for two copies, after TransformerLens (offsets -1, -T and -T + 1 for a
    period of T tokens); "prefix_matching" is for several, after Olsson et al. 2022, "Head activation evaluators". In a
    model that sees both ways a token's duplicate is the one in the other copy, whichever the row is in. Copies are told
    by position alone. The first of equally large probabilities is a row's strongest key.

    Parameters
    ----------
    layout
        Where the copies stand in all inputs; all else in them is special.
    kinds
        Some of TWO_COPIES, or SEVERAL_COPIES.
    is_control
        The inputs are laid out alike but not repeated: metrics are named "repetition.duplicate_control" and have no
        strongest key.
    """

    def __init__(self, layout: Layout, kinds: Sequence[str], *, is_causal: bool, is_control: bool = False) -> None:
        self.layout, self.kinds, self.is_causal = layout, tuple(kinds), is_causal
        self.name = "repetition_control" if is_control else "repetition"
        self.suffix = "_control" if is_control else ""
        self.has_strongest = not is_control and self.kinds != SEVERAL_COPIES
        self.metrics = tuple(self._metrics())
        self.without_macro = frozenset(metric.name for metric in self.metrics)  # every input has the same rows

    def observe(self, attention: LayerAttention, batch: Batch) -> Sums:
        start, queries = attention.query_start, attention.probs.shape[2]
        rows, mass, strongest = [], [], []
        for kind in self.kinds:
            keys = self._keys(kind, batch)[start : start + queries]
            there = (keys >= 0) & batch.attention_mask[:, keys.clamp_min(0)]  # [batch, query, key]
            there &= batch.rows[:, start : start + queries, None]
            rows.append(there.any(dim=-1).sum(dim=-1)[:, None])
            mass.append(_paid(attention.probs, keys, there).sum(dim=-1))
            chosen = (attention.strongest_key[..., None] == keys) & there[:, None]
            strongest.append(chosen.sum(dim=(-2, -1)))
        stacked = {"rows": rows, "mass": mass, "strongest": strongest}
        return {name: torch.stack(found, dim=-1) for name, found in stacked.items()}

    def score(self, sums: Sums) -> dict[str, Tensor]:
        return self._named(sums["mass"] / sums["rows"], sums["strongest"] / sums["rows"])

    def support(self, sums: Sums) -> dict[str, Tensor]:
        return self._named(sums["rows"], sums["rows"])

    def chance(self, uniform: Sums) -> dict[str, Tensor]:
        # All keys of a uniform row are largest; which one a random choice takes is told by the mass.
        mass = uniform["mass"] / uniform["rows"]
        return self._named(mass, mass)

    def _named(self, mass: Tensor, strongest: Tensor) -> dict[str, Tensor]:
        found = {}
        for place, kind in enumerate(self.kinds):
            found[f"repetition.{kind}{self.suffix}"] = mass[..., place]
            if self.has_strongest:
                found[f"repetition.{kind}_argmax"] = strongest[..., place]
        return found

    def _metrics(self) -> list[Metric]:
        found = []
        for kind in self.kinds:
            title = _TITLES[kind]
            words = _OTHER_COPY if kind == "duplicate" and not self.is_causal else _KEYS_IN_WORDS[kind]
            told = f"Mean attention to {words}, in random tokens written {_times(self.layout.copies)}."
            if self.suffix:
                title = f"{title}, nothing repeated"
                told = f"Mean attention at the distances of repetition.{kind}, in random tokens that are not repeated."
            found.append(Metric(f"repetition.{kind}{self.suffix}", title, told, "share"))
            if self.has_strongest:
                told = f"Share of rows whose strongest key is {words}. Chance: a key drawn at random."
                found.append(Metric(f"repetition.{kind}_argmax", f"{title}, strongest key", told, "share"))
        return found

    def _keys(self, kind: str, batch: Batch) -> Int[Tensor, "token key"]:
        """For each row the keys that count, -1 for none."""

        def make(batch: Batch) -> Tensor:
            position = torch.arange(batch.input_ids.shape[1], device=batch.input_ids.device)
            return _KEYS[kind](position, self.layout, self.is_causal)

        return batch.derived(f"{self.name}.{kind}.{self.layout}", make)


def _previous(position: Tensor, layout: Layout, is_causal: bool) -> Tensor:
    return (position - 1)[:, None]  # -1, none, for the first


def _duplicate(position: Tensor, layout: Layout, is_causal: bool) -> Tensor:
    is_second = position >= layout.first + layout.period
    ahead = torch.full_like(position, -1) if is_causal else position + layout.period
    return torch.where(is_second, position - layout.period, ahead)[:, None]


def _induction(position: Tensor, layout: Layout, is_causal: bool) -> Tensor:
    is_second = position >= layout.first + layout.period
    return torch.where(is_second, position - layout.period + 1, -1)[:, None]


def _after_earlier_copies(position: Tensor, layout: Layout, is_causal: bool) -> Tensor:
    back = layout.period * torch.arange(1, layout.copies, device=position.device)
    earlier = position[:, None] - back  # where the token stood before
    return torch.where(earlier >= layout.first, earlier + 1, -1)


_KEYS: dict[str, Callable[[Tensor, Layout, bool], Tensor]] = {
    "previous": _previous,
    "duplicate": _duplicate,
    "induction": _induction,
    "prefix_matching": _after_earlier_copies,
}


def _paid(probs: Tensor, keys: Tensor, there: Tensor) -> Float[Tensor, "batch head query"]:
    """Mass of each row on its keys together."""
    place = keys.clamp(0, probs.shape[-1] - 1).expand(*probs.shape[:2], -1, -1)
    return (probs.gather(-1, place) * there[:, None]).sum(dim=-1)


def _times(copies: int) -> str:
    return "twice" if copies == 2 else f"{copies} times"
