"""What happens without a head, as a table: the only place of the page that tells what a model uses."""

from __future__ import annotations

import math
from collections.abc import Iterator

from headlens.effects import MOST_TOKENS, Ablation, Effect, Measure
from headlens.numbers import amount, interval, number, probability, signed
from headlens.report.facts import Provenance, at
from headlens.report.tables import NOTHING, Cell, Column, Row, Table
from headlens.roles import Roles

_ASKED = {"text": "text", "repeats": "repeated tokens", "output": "sentence vectors"}
_USED, _NO_RISE, _MOVES = "the model uses it", "no rise beyond chance", "the vectors move"


def taken_out_table(provenance: Provenance, roles: Roles | None) -> Table | None:
    """One row a head that was taken out, those that the model uses first; None where nobody asked.

    Raises
    ------
    OutputError
        The entry `ablation` of the provenance is not whole.
    """
    effects = sorted(_effects(provenance), key=lambda effect: (not effect.is_used, -effect.change))
    if not effects:
        return None
    return Table("Heads taken out", _COLUMNS, tuple(_row(effect, roles) for effect in effects))


def taken_out_introduction(provenance: Provenance) -> str:
    """What was done and what was compared; empty where nobody asked."""
    measures = {effect.task for effect in _effects(provenance)}
    if not measures:
        return ""
    begin = "Attention tells where a head looks, not what it is for. The output of one head at a time is set to 0, and "
    compared = [words for measure, words in _COMPARED.items() if measure in measures]
    is_loss = measures != {"output"}
    end = " Only where that loss rises, beyond chance, is the model said to use the head." if is_loss else ""
    return f"{begin}{'; '.join(compared)}.{end}"


_COMPARED: dict[Measure, str] = {
    "text": "the loss on the same texts of the corpus is compared",
    "repeats": "of heads named for repetition the loss on random tokens written twice",
    "output": "since the model has no vocabulary head, and so no loss, it is compared how far the mean of its last "
    "hidden states turns, which knows no better or worse: of no head does this say that the model uses it",
}


def taken_out_lines(provenance: Provenance) -> Iterator[str]:
    """On how much the table rests, and why not on all of the corpus."""
    asked = Ablation.from_dict(found).asked if (found := at(provenance, "ablation")) else {}
    whole = at(provenance, "corpus", "documents")
    for measure, words in _RESTS_ON.items():
        documents = max((effect.documents for effect in _effects(provenance) if effect.task == measure), default=0)
        if not documents or measure not in asked:
            continue
        counted = amount(documents, "sequence" if measure == "repeats" else "document")
        if measure != "repeats" and isinstance(whole, int):
            part = f"all {whole:,} documents" if documents == whole else f"{documents:,} of {amount(whole, 'document')}"
            counted = f"{part} of the corpus"
        yield f"{words.format(amount(asked[measure], 'input' if measure == 'output' else 'token'), counted)}."
        if measure != "repeats":
            yield (
                f"At most some {MOST_TOKENS:,} tokens of a corpus are run again without each head, of its first "
                "documents and of long ones the beginning, since that takes as many passes as there are heads."
            )


_RESTS_ON: dict[Measure, str] = {
    "text": "The loss is that of {} in {}",
    "repeats": "The loss on random tokens written twice is that of {} in {}",
    "output": "The vectors are those of {} in {}",
}


def _effects(provenance: Provenance) -> tuple[Effect, ...]:
    found = at(provenance, "ablation")
    return Ablation.from_dict(found).effects if found else ()


_COLUMNS = (
    Column("Head", is_number=False, names=("head",)),
    Column("Role", "that stands for the head on the map", False, names=("role",)),
    Column("Asked of", "the corpus, or random tokens written twice", False, names=("asked_of",)),
    Column(
        "Change",
        "by how much the mean loss rises without the head, in nats a token; of sentence vectors: by how much they move "
        "(1 − cosine)",
        names=("change", "low", "high"),
    ),
    Column("From", "the mean loss of the whole model, in nats a token", names=("intact",)),
    Column("Other heads", "the median change by the other heads that were taken out", names=("median_of_heads",)),
    Column("Documents", "that the interval is over", names=("documents",)),
    Column("p", "that the loss rises at all, by signs drawn anew", names=("p",), is_low_first=True),
    Column("q", "of this head among all that were taken out (Benjamini and Hochberg)", names=("q",), is_low_first=True),
    Column("What it says", is_number=False, names=("says",)),
)


def _row(effect: Effect, roles: Roles | None) -> Row:
    label = roles.label(effect.layer, effect.head) if roles is not None else None
    role = label.role.title if label is not None else ""
    reach = interval(effect.low, effect.high, "share") if math.isfinite(effect.low) else ""
    says = _USED if effect.is_used else _NO_RISE if effect.is_loss else _MOVES
    return Row(
        (
            Cell(NOTHING, heads=(effect.name,), values=(effect.name,)),
            Cell(role or NOTHING, values=(role,)),
            Cell(_ASKED[effect.task], values=(_ASKED[effect.task],)),
            Cell(
                signed(effect.change, "share"), reach, is_strong=True, values=(effect.change, effect.low, effect.high)
            ),
            Cell(_nats(effect.intact), values=(effect.intact,)),
            Cell(
                signed(effect.median_of_heads, "share") if math.isfinite(effect.median_of_heads) else NOTHING,
                values=(effect.median_of_heads,),
            ),
            Cell(f"{effect.documents:,}", values=(effect.documents,)),
            Cell(_p(effect.p), values=(effect.p,)),
            Cell(_p(effect.q), values=(effect.q,)),
            Cell(f"{'●' if effect.is_used else '○'} {says}", values=(says,), order=float(not effect.is_used)),
        )
    )


def _nats(value: float) -> str:
    return number(value, "nats") if math.isfinite(value) else NOTHING


def _p(value: float) -> str:
    return probability(value) if math.isfinite(value) else NOTHING
