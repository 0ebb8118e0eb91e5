"""What happens when a head is taken out. No torch here.

Attention alone says what a head attends to. That the model uses it, only gating it to 0 and seeing the loss rise says;
where a model has no loss, all that can be said is that its output changes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from headlens.errors import OutputError
from headlens.numbers import NOT_DEFINED, number, probability
from headlens.scores import head_name

Head = tuple[int, int]  # layer and head
Task = Literal["text", "repeats"]  # what is asked: the corpus, or random tokens written twice
Measure = Literal["text", "repeats", "output"]  # what could be measured: a loss, or how far the output moves

ALPHA = 0.05  # false discovery rate, as of the other tests
MOST_TOKENS = 4000  # of the corpus that are run without each head, special ones not counted
_ON_REPEATS = frozenset({"induction", "anti_induction", "duplicate_token", "previous_random_token"})  # ids of roles
_COUNTS = ("layer", "head", "documents")
_WAY_OUT = "run the profile again"
_NUMBERS = ("intact", "change", "low", "high", "q", "p", "median_of_heads")  # NaN where they are not known


@dataclass(frozen=True)
class Effect:
    """What gating one head to 0 does.

    Of "text" and "repeats", `change` is by how much the mean loss rises, in nats a token: of the next token, or of
    masked ones; on "repeats" of the second copy only. Of "output" it is the mean of 1 - cosine between the mean-pooled
    last hidden states with and without the head, 0..2, which says nothing of better or worse.
    """

    layer: int
    head: int
    task: Measure
    intact: float  # mean loss of the model as it is; NaN of "output"
    change: float
    low: float  # of the 95% interval over documents; NaN where there is only one
    high: float
    q: float  # false discovery rate among all heads that were taken out; NaN of "output"
    documents: int  # of "repeats": sequences
    p: float = math.nan  # that the change is above 0, one-sided
    median_of_heads: float = math.nan  # change by the other heads that were asked the same; NaN where there is none

    def __post_init__(self) -> None:
        if self.layer < 0 or self.head < 0 or self.documents < 1:
            raise OutputError(
                f"An effect needs a layer and a head from 0 on and at least one document, got {self.name} and "
                f"{self.documents}."
            )
        for name in _NUMBERS:
            if math.isinf(getattr(self, name)):
                raise OutputError(f"{self.name}: {name} must be a finite number or NaN.")
        if math.isnan(self.change):
            raise OutputError(f"{self.name}: the change must be a number.")
        if self.low > self.high:
            raise OutputError(
                f"{self.name}: the interval must not end before it begins, got {self.low} to {self.high}."
            )

    @property
    def name(self) -> str:
        return head_name(self.layer, self.head)

    @property
    def is_loss(self) -> bool:
        """Whether there is a better and a worse; else only the output was compared."""
        return self.task != "output"

    @property
    def is_used(self) -> bool:
        """The loss rises without the head, beyond what chance does among all heads that were taken out."""
        return self.is_loss and self.low > 0 and self.q < ALPHA

    @property
    def sentence(self) -> str:
        """From "without it" on: what changes, by how much, and whether the model uses the head."""
        if not self.is_loss:
            return f"without it the sentence vectors move by {self._change} (1 − cosine)"
        loss = "loss" if self.task == "text" else "loss on repeated tokens"
        amount = f"{self._change} nats a token (from {number(self.intact, 'nats')})"
        if self.is_used:
            return f"without it the {loss} rises by {amount}: the model uses it"
        if math.isnan(self.low):
            return f"without it the {loss} changes by {amount}; one document cannot tell that from chance"
        if self.high < 0:
            return f"without it the {loss} does not rise but changes by {amount}"
        if self.low > 0:
            return (
                f"without it the {loss} rises by {amount}, which among all heads taken out may be chance "
                f"(q = {probability(self.q) if not math.isnan(self.q) else NOT_DEFINED})"
            )
        return f"without it no rise of the {loss} is to be seen: {amount}"

    @property
    def _change(self) -> str:
        value = number(self.change, "share")
        if math.isnan(self.low):
            return value
        return f"{value} [{number(self.low, 'share')}, {number(self.high, 'share')}]"


@dataclass(frozen=True)
class Ablation:
    """What taking out each of several heads does, one at a time (zero ablation: its output before W_O becomes 0)."""

    effects: tuple[Effect, ...]
    asked: Mapping[Measure, int] = field(default_factory=dict)  # tokens whose loss was taken; of "output", inputs
    seed: int = 0  # of masks, random tokens, bootstrap and permutations

    def __post_init__(self) -> None:
        heads = [(effect.layer, effect.head) for effect in self.effects]
        if twice := sorted({head_name(*head) for head in heads if heads.count(head) > 1}):
            raise OutputError(f"A head is taken out once, and {', '.join(twice)} is there more often.")

    def of(self, layer: int, head: int) -> Effect | None:
        """None where that head was not taken out."""
        return next((effect for effect in self.effects if (effect.layer, effect.head) == (layer, head)), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None stands for NaN."""
        return {
            "gate": 0,
            "seed": self.seed,
            "asked": dict(self.asked),
            "effects": [
                {"name": effect.name} | {name: _plain(value) for name, value in asdict(effect).items()}
                for effect in self.effects
            ],
        }

    @classmethod
    def of_provenance(cls, provenance: Mapping[str, Any]) -> Ablation | None:
        """What a profile knows of it; None where no head was taken out, OutputError where the entry is not whole."""
        found = provenance.get("ablation")
        return cls.from_dict(found) if found else None

    @classmethod
    def from_dict(cls, found: object) -> Ablation:
        """What `to_dict` gave; OutputError on anything else."""
        if not isinstance(found, dict) or not isinstance(found.get("effects"), list):
            raise OutputError(
                f"What heads do when taken out must be a dict with a list of effects, got {found!r:.80}; {_WAY_OUT}."
            )
        asked, seed = found.get("asked", {}), found.get("seed", 0)
        if not isinstance(asked, dict) or not all(
            name in get_args(Measure) and type(count) is int for name, count in asked.items()
        ):
            raise OutputError(f"asked must give a whole number by task, got {asked!r:.80}; {_WAY_OUT}.")
        if type(seed) is not int:
            raise OutputError(f"The seed of an ablation must be a whole number, got {seed!r:.80}; {_WAY_OUT}.")
        try:
            return cls(tuple(_effect(row) for row in found["effects"]), asked, seed)
        except (OutputError, OverflowError) as reason:
            raise OutputError(f"{str(reason).rstrip('.')}; {_WAY_OUT}.") from None


def task_of(roles: Collection[str], *, is_causal: bool) -> Task:
    """What to ask a head with these roles (ids): random tokens written twice show what finding repetitions is for."""
    return "repeats" if is_causal and _ON_REPEATS & set(roles) else "text"


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def _effect(row: object) -> Effect:
    if not isinstance(row, dict) or set(row) - {"name"} != {entry.name for entry in fields(Effect)}:
        raise OutputError(
            f"An effect must have the entries {', '.join(entry.name for entry in fields(Effect))}, got {row!r:.80}."
        )
    for name in _COUNTS:
        if type(row[name]) is not int:
            raise OutputError(f"The {name} of an effect must be a whole number, got {row[name]!r:.80}.")
    for name in _NUMBERS:
        if row[name] is not None and type(row[name]) not in (int, float):
            raise OutputError(f"The {name} of an effect must be a number or null, got {row[name]!r:.80}.")
    if row["task"] not in get_args(Measure):
        raise OutputError(
            f"The task of an effect must be one of {', '.join(get_args(Measure))}, got {row['task']!r:.80}."
        )
    entries: dict[str, Any] = {name: math.nan if row[name] is None else float(row[name]) for name in _NUMBERS}
    return Effect(task=row["task"], **entries, **{name: row[name] for name in _COUNTS})
