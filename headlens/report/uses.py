"""Of which heads a model was seen to make use, in one sentence for the findings."""

from __future__ import annotations

from collections.abc import Sequence

from headlens.effects import Ablation, Effect
from headlens.numbers import amount, number, signed
from headlens.scores import HeadScore

Parts = tuple[str | HeadScore, ...]

_NAMED = 8  # heads of the findings that are named; the rest are counted
_NO_LOSS = (
    "Heads were taken out one by one, but this model has no loss that could rise, so of no head is it said that the "
    "model uses it."
)


def use_of_heads(ablation: Ablation, named: Sequence[HeadScore]) -> Parts:
    """How many heads the loss needs, the one that it needs most, and which of the heads `named` above it needs.

    Empty where no head was taken out.
    """
    asked = [effect for effect in ablation.effects if effect.is_loss]
    if not asked:
        return (_NO_LOSS,) if ablation.effects else ()
    used = [effect for effect in asked if effect.is_used]
    if not used:
        return (f"The loss does not rise beyond chance without any of the {_taken_out(asked)}.",)
    most = max(used, key=lambda effect: effect.change)
    there = {(effect.layer, effect.head): effect for effect in asked}
    places = dict.fromkeys((head.layer, head.head) for head in named)
    of_named = [there[place] for place in places if place in there]
    return (
        f"The model uses {len(used):,} of the {_taken_out(asked)}: without each of them its loss rises beyond chance, "
        "the most without ",
        _score(most),
        f" ({_rise(most)})",
        *_of_findings(of_named),
        ".",
    )


def _taken_out(asked: Sequence[Effect]) -> str:
    return f"{amount(len(asked), 'head')} that {'was' if len(asked) == 1 else 'were'} taken out one by one"


def _of_findings(effects: Sequence[Effect]) -> Parts:
    used = [effect for effect in effects if effect.is_used]
    spared = [effect for effect in effects if not effect.is_used]
    if not effects:
        return ()
    if not spared:
        return (". It uses all of the heads named above" if len(used) > 1 else ". It uses the head named above",)
    if not used:
        return (". No rise is to be seen without any of the heads named above",)
    return (
        ". Of the heads named above it uses ",
        *_joined(used),
        "; no rise beyond chance is to be seen without ",
        *_joined(spared, "or"),
    )


def _rise(effect: Effect) -> str:
    loss = "" if effect.task == "text" else " on repeated tokens"
    return f"{signed(effect.change, 'share')} nats a token{loss}, from {number(effect.intact, 'nats')}"


def _joined(effects: Sequence[Effect], last: str = "and") -> Parts:
    shown = effects if len(effects) < _NAMED + 3 else effects[:_NAMED]  # to leave out one or two saves nothing
    more = len(effects) - len(shown)
    parts: list[str | HeadScore] = []
    for place, effect in enumerate(shown):
        is_last = place == len(shown) - 1 and not more
        parts += [] if place == 0 else [f" {last} " if is_last else ", "]
        parts.append(_score(effect))
    return (*parts, f" {last} {more} more" if more else "")


def _score(effect: Effect) -> HeadScore:
    return HeadScore(
        effect.layer,
        effect.head,
        value=effect.change,
        low=effect.low,
        high=effect.high,
        chance=float("nan"),
        support=float(effect.documents),
    )
