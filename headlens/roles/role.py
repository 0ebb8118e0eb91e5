"""What a role is, and a head that has one. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headlens.scores import Floats, head_name

MOST_ERRORS = 10.0  # standard errors; an excess beyond tells how much text there was, not how well the role fits
_REACH = 2 * 1.959964  # standard errors from end to end of a 95% interval


@dataclass(frozen=True)
class Role:
    """A name for something that heads attend to. What it takes is in `catalogue`."""

    id: str  # "previous_token", in files
    letter: str  # on the head map
    title: str  # "previous token"
    kind: str  # of one kind share a colour: position, punctuation, sink, broad, coreference, syntax, phrase, repetition
    rank: int  # the lower, the more specific; see catalogue
    gloss: str  # what it takes, in one line
    source: str

    @property
    def is_rest(self) -> bool:
        """Attention that goes where it does nothing, or everywhere: such a role never hides another one."""
        return self.kind in ("sink", "broad")


@dataclass(frozen=True, repr=False)
class HeadRole:
    """One head and one role that it has, by one metric. Numbers that are not known are NaN.

    `value`, `low` and `high` are held out where the role comes from annotation and was confirmed; `null` is what the
    head would get without the role: the strongest baseline that it must be above, the control, or else chance.
    `informed` is the best rule that reads annotation which no head is given, such as parts of speech: it bars no role,
    but where it does as well, the role stands behind others of the head.
    """

    role: Role
    layer: int
    head: int
    metric: str
    value: float
    low: float
    high: float
    chance: float
    null: float
    null_name: str  # "chance", "best constant offset"
    excess: float  # of value over null, in standard errors
    q: float  # false discovery rate among all heads and metrics of the family; NaN where a threshold decided alone
    support: float  # rows or decisions
    is_firm: bool  # confirmed on data that did not choose it; the rest is tentative
    sentence: str  # "attends from the object to its verb in 71% of 1,024 cases on held-out documents; best ..."
    informed: float = float("nan")
    informed_name: str = ""  # "a rule that knows parts of speech"
    is_above_informed: bool = True  # by the margin, or there is no such rule

    def __repr__(self) -> str:
        strength = "firm" if self.is_firm else "tentative"
        return f"<{self.name} {self.role.title}, {strength}: {self.metric} {self.value:.3f}>"

    @property
    def name(self) -> str:
        return head_name(self.layer, self.head)

    @property
    def precedence(self) -> tuple[bool, bool, bool, float, int, float]:
        """For sorting roles of one head, the one to show first.

        No mere rest, firm, above informed rules, most in excess, most specific.
        """
        excess = 0.0 if np.isnan(self.excess) else min(self.excess, MOST_ERRORS)
        gain = 0.0 if np.isnan(self.null) else self.value - self.null
        # rounded, or errors of the last digit would decide
        standing = self.role.is_rest, not self.is_firm, not self.is_above_informed
        return *standing, -round(excess, 6), self.role.rank, -round(gain, 6)


def excess_of(value: Floats, null: Floats, low: Floats, high: Floats, *, is_below: bool = False) -> Floats:
    """How many standard errors values lie beyond their null; the standard error is that of a 95% interval, NaN if none.

    An interval of no width, as of a head that is right always, makes the excess as large as it counts.
    """
    gap = np.where(is_below, null - value, value - null)
    error = (np.asarray(high) - low) / _REACH
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(error == 0, np.sign(gap) * MOST_ERRORS, gap / error)
