"""Which heads attend from a dependent to its head, or from the head to its dependent, and from subject to verb."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headlens.analyzers.base import DecisionAnalyzer, Sums
from headlens.analyzers.word_profile import PROFILE_SUMS, profile_sums
from headlens.errors import CaptureError
from headlens.gold.arcs import ALL, FROM_HEAD, TO_HEAD, TO_SUBJECT, TO_VERB, Arcs
from headlens.pooling import candidates
from headlens.records import Batch, WordAttention
from headlens.scores import Metric

ABSTENTION = "syntax.abstention"
MASSES = {
    "syntax.mass[to_head]": ("Attention to the head", "from a word to its head"),
    "syntax.mass[to_dependent]": ("Attention to dependents", "from a word to its dependents"),
    "syntax.mass[either]": ("Attention along dependencies", "between a word and its head, in either direction"),
}


_Alike = Callable[..., Tensor]  # share [decision, head] of the words that choose like the one that is asked


class Syntax(DecisionAnalyzer):
    """Accuracy of a head's strongest candidate for every dependency relation, both ways, and mass along dependencies.

    Accuracies after Clark et al. 2019, section 4.2, mass after Vig & Belinkov 2019, equation 4. Beside each count of
    right decisions stand the counts that are expected of a head that pays no heed to syntax, two permutation nulls in
    closed form: dependents are shuffled within the sentence among the pairs of words at the same distance (a head that
    looks at a fixed distance gets what is expected), or among all words for the same answer (so does a head that looks
    at long or rare words, whichever word asks).
    """

    name = "syntax"
    pooled = PROFILE_SUMS

    def __init__(self, arcs: Arcs, longest: int, *, is_causal: bool) -> None:
        """`longest`: words of the longest input, for the profile of relative positions."""
        self.arcs, self.longest, self.is_causal = arcs, longest, is_causal
        self.counted, self.membership = arcs.metrics, torch.from_numpy(arcs.membership).float()
        self.metrics = (
            *(_metric_of(name) for name in arcs.metrics),
            *(
                Metric(name, title, f"Share of the attention between different words that goes {way}.", "share")
                for name, (title, way) in MASSES.items()
            ),
            Metric(
                ABSTENTION,
                "Rows that abstain",
                "Share of words whose largest attention goes to a special token or, in a causal model without one, to "
                "the first word, rather than to a candidate.",
                "share",
            ),
        )
        self.without_macro = frozenset(metric.name for metric in self.metrics)

    def observe(self, attention: WordAttention, batch: Batch) -> Sums:
        if attention.is_causal != self.is_causal:
            raise CaptureError("The decisions were made for another kind of attention: causal and not.")
        return {
            "correct": self.correct(attention, batch),
            "expected_by_distance": self._expected(attention, batch, self._alike_at_distance),
            "expected_by_word": self._expected(attention, batch, self._alike_to_word),
            "total": batch.derived("syntax.total", lambda b: self._totals(b)[:, 0]),
            "by_chance": batch.derived("syntax.by_chance", lambda b: self._totals(b)[:, 1]),
            **_masses(attention, batch.derived("syntax.heads", self._heads_of)),
            **_abstentions(attention, batch),
            **profile_sums(attention, batch, self.longest),
        }

    def correct(self, attention: WordAttention, batch: Batch) -> Float[Tensor, "batch head label"]:
        place, word, target, _, _ = batch.derived("syntax.arcs", self._arcs_of).unbind()

        def is_right(at: Tensor, by_column: bool) -> Tensor:
            choice = attention.column_choice if by_column else attention.row_choice
            return (choice[place[at], :, word[at]] == target[at, None]).float()

        return self._each_way(is_right, attention, batch)

    def _expected(self, attention: WordAttention, batch: Batch, alike: _Alike) -> Float[Tensor, "batch head label"]:
        """Right decisions that are expected of a head if which word asks made no difference."""

        def share(at: Tensor, by_column: bool) -> Tensor:
            choice = attention.column_choice if by_column else attention.row_choice
            return alike(choice, batch, at, by_column=by_column)

        return self._each_way(share, attention, batch)

    def _each_way(
        self, ask: Callable[[Tensor, bool], Tensor], attention: WordAttention, batch: Batch
    ) -> Float[Tensor, "batch head label"]:
        """`ask` the decisions about rows, and those about columns, for a number for every head; the sums by label."""
        decisions = batch.derived("syntax.arcs", self._arcs_of).shape[1]
        found = torch.zeros(decisions, attention.probs.shape[1], device=attention.probs.device)
        for by_column in (False, True):
            at = batch.derived(f"syntax.by_column {by_column}", partial(self._of_one_way, by_column=by_column))
            found[at] = ask(at, by_column)
        return self._by_label(found, batch)

    def score(self, sums: Sums) -> dict[str, Tensor]:
        membership = self.membership.to(sums["correct"])
        correct, total = sums["correct"] @ membership, sums["total"].to(sums["correct"]) @ membership
        accuracy = correct / total
        scores = {name: accuracy[..., i] for i, name in enumerate(self.arcs.metrics)}
        shares = sums["along"] / sums["between"][..., None]
        scores |= {name: shares[..., i] for i, name in enumerate(MASSES)}
        scores[ABSTENTION] = sums["abstained"] / sums["rows"]
        return scores

    def support(self, sums: Sums) -> dict[str, Tensor]:
        total = sums["total"] @ self.membership.to(sums["total"])
        found = {name: total[..., i] for i, name in enumerate(self.arcs.metrics)}
        return found | dict.fromkeys((*MASSES, ABSTENTION), sums["rows"])

    def chance(self, uniform: Sums) -> dict[str, Tensor]:
        membership = self.membership.to(uniform["by_chance"])
        level = (uniform["by_chance"] @ membership) / (uniform["total"] @ membership)
        named = {name: level[..., i] for i, name in enumerate(self.arcs.metrics)}
        nothing = {ABSTENTION: torch.full_like(uniform["rows"], torch.nan)}
        return self.score(uniform) | named | nothing

    def _arcs_of(self, batch: Batch) -> Int[Tensor, "field decision"]:
        """Row of the batch, word, target, label and is_column of all decisions of a batch."""
        place, index = self.arcs.by_input.of(_inputs(batch))
        arcs = self.arcs
        fields = (place, arcs.word[index], arcs.target[index], arcs.label[index], arcs.is_column[index])
        return torch.stack([torch.from_numpy(field).long() for field in fields]).to(batch.input_ids.device)

    def _totals(self, batch: Batch) -> Float[Tensor, "batch both head=1 label"]:
        """How many decisions of each label an input has, and how many a random choice gets right."""
        place, index = self.arcs.by_input.of(_inputs(batch))
        size, labels = batch.input_ids.shape[0], len(self.arcs.labels)
        cell = torch.from_numpy(place * labels + self.arcs.label[index])
        chance = torch.from_numpy(self.arcs.chance[index])
        sums = torch.zeros(2, size * labels, dtype=torch.float64)
        sums.index_add_(1, cell, torch.stack([torch.ones_like(chance), chance]))
        return sums.view(2, size, 1, labels).transpose(0, 1).to(batch.input_ids.device)

    def _heads_of(self, batch: Batch) -> Float[Tensor, "batch word word_to"]:
        """1 from each dependent to its head, for all pairs that can be chosen one way or the other."""
        assert batch.words is not None
        place, word, target, label, _ = batch.derived("syntax.arcs", self._arcs_of).unbind()
        is_dependency = torch.tensor([name.startswith((TO_HEAD, FROM_HEAD)) for name in self.arcs.labels])
        kept = is_dependency.to(label.device)[label]
        size, words = batch.words.shape[:2]
        heads = torch.zeros(size, words, words, device=batch.words.device)
        heads[place[kept], word[kept], target[kept]] = 1
        return heads

    def _of_one_way(self, batch: Batch, *, by_column: bool) -> Int[Tensor, " decision"]:
        *_, is_column = batch.derived("syntax.arcs", self._arcs_of).unbind()
        return (is_column == by_column).nonzero()[:, 0]

    def _by_label(self, values: Float[Tensor, "decision head"], batch: Batch) -> Float[Tensor, "batch head label"]:
        place, _, _, label, _ = batch.derived("syntax.arcs", self._arcs_of).unbind()
        size, labels = batch.input_ids.shape[0], len(self.arcs.labels)
        sums = values.new_zeros(size * labels, values.shape[1]).index_add_(0, place * labels + label, values)
        return sums.view(size, labels, -1).transpose(1, 2)

    def _alike_at_distance(
        self, choice: Tensor, batch: Batch, at: Tensor, *, by_column: bool
    ) -> Float[Tensor, "decision head"]:
        """Of the words that could choose at the distance of a decision, the share of those that do so."""
        place, word, target, _, _ = batch.derived("syntax.arcs", self._arcs_of)[:, at].unbind()
        which = "column" if by_column else "row"
        possible = batch.derived(f"syntax.possible {which}", lambda b: self._possible(b, by_column=by_column))
        words = choice.shape[-1]
        position = torch.arange(words, device=choice.device)
        counts = self._counted(choice - position + words - 1, 2 * words - 1, batch, by_column=by_column)
        step = target - word + words - 1
        return counts[place, :, step] / possible[place, step][:, None].clamp_min(1)

    def _alike_to_word(
        self, choice: Tensor, batch: Batch, at: Tensor, *, by_column: bool
    ) -> Float[Tensor, "decision head"]:
        """Of the words that could choose the answer of a decision, the share of those that do so."""
        place, _, target, _, _ = batch.derived("syntax.arcs", self._arcs_of)[:, at].unbind()
        choosers = _pairs(batch, self.is_causal, by_column=by_column).sum(dim=1)  # [batch, word that is chosen]
        counts = self._counted(choice, choice.shape[-1], batch, by_column=by_column)
        return counts[place, :, target] / choosers[place, target][:, None].clamp_min(1)

    def _counted(
        self, kind: Int[Tensor, "batch head word"], kinds: int, batch: Batch, *, by_column: bool
    ) -> Float[Tensor, "batch head kind"]:
        """How many words that have a candidate make a choice of each kind."""
        which = "column" if by_column else "row"
        chooses = batch.derived(f"syntax.chooses {which}", lambda b: self._chooses(b, by_column=by_column))
        kept = kind.where(chooses[:, None], kinds)  # words without a candidate go into a bin of their own at the end
        counts = torch.zeros(*kind.shape[:2], kinds + 1, device=kind.device)
        return counts.scatter_add_(2, kept, torch.ones_like(kept, dtype=counts.dtype))

    def _possible(self, batch: Batch, *, by_column: bool) -> Float[Tensor, "batch distance"]:
        """How many words have a candidate at each distance."""
        pairs = _pairs(batch, self.is_causal, by_column=by_column)
        size, words = pairs.shape[:2]
        position = torch.arange(words, device=pairs.device)
        distance = (position[None, :] - position[:, None] + words - 1).expand_as(pairs)
        counts = torch.zeros(size, 2 * words, device=pairs.device)
        return counts.scatter_add_(1, distance.reshape(size, -1), pairs.reshape(size, -1).float())

    def _chooses(self, batch: Batch, *, by_column: bool) -> Tensor:
        """[batch, word]: words that have a candidate."""
        return _pairs(batch, self.is_causal, by_column=by_column).any(dim=-1)


def _metric_of(name: str) -> Metric:
    stem, _, relation = name.partition("[")
    relation = relation.rstrip("]")
    kind = "all relations" if relation == ALL else relation
    titles = {
        TO_HEAD: (f"{kind}: dependent to head", f"Share of dependents ({kind}) whose strongest word is their head."),
        FROM_HEAD: (
            f"{kind}: head to dependent",
            f"Share of dependents ({kind}) of which their head is the word that attends to them most.",
        ),
        TO_VERB: ("Subject to verb", "Share of subjects whose strongest word is their verb."),
        TO_SUBJECT: ("Verb to subject", "Share of verbs with a subject whose strongest word is that subject."),
    }
    title, meaning = titles[stem]
    return Metric(name, title, meaning, "share")


def _inputs(batch: Batch) -> list[int]:
    assert batch.input_index is not None
    return batch.input_index.tolist()


def _pairs(batch: Batch, is_causal: bool, *, by_column: bool) -> Tensor:
    """[batch, word, candidate of its row], or of its column."""
    pairs = candidates(batch, is_causal)
    return pairs.transpose(1, 2) if by_column else pairs


def _masses(attention: WordAttention, heads: Float[Tensor, "batch word word_to"]) -> dict[str, Tensor]:
    paid = attention.probs
    to_head = torch.einsum("bhij,bij->bh", paid, heads.to(paid.dtype))
    to_dependent = torch.einsum("bhij,bji->bh", paid, heads.to(paid.dtype))
    between = paid.sum(dim=(-2, -1)) - paid.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    along = torch.stack([to_head, to_dependent, to_head + to_dependent], dim=-1)
    return {"along": along.double(), "between": between.double()}


def _abstentions(attention: WordAttention, batch: Batch) -> dict[str, Tensor]:
    has_candidate = attention.candidates.any(dim=-1)  # [batch, word]
    others = attention.probs.masked_fill(attention.candidates[:, None], -1.0)  # the sink, and the word itself
    others.diagonal(dim1=-2, dim2=-1).fill_(-1.0)
    resting = others.amax(dim=-1)
    if attention.to_special.shape[-1]:
        resting = torch.maximum(resting, attention.to_special.amax(dim=-1))
    strongest = attention.probs.masked_fill(~attention.candidates[:, None], -1.0).amax(dim=-1)
    abstained = (resting > strongest) & has_candidate[:, None]
    return {"abstained": abstained.sum(dim=-1).double(), "rows": has_candidate.sum(dim=-1)[:, None].double()}
