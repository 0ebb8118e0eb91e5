"""Analyses that cost passes of their own and that a user asks for by name: random controls, ensembles, a probe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from headlens.analyze import analyze
from headlens.analyzers import Syntax
from headlens.annotated import MINIMUM, Reading
from headlens.capture import Way
from headlens.controls import controls, reinitialised
from headlens.ensembles import ensembles
from headlens.errors import CorpusError, OutputError
from headlens.passes import Passes
from headlens.probe import probe
from headlens.tally import Tally
from headlens.word_pass import word_attention

NOTHING_ASKED = "There is nothing that heads can be right or wrong about, so there are no controls, ensembles or probe."
NO_SYNTAX = "There are no dependencies to ask about, so there is neither an ensemble nor a probe."

Say = Callable[[str], None]  # told what is being done


@dataclass(frozen=True)
class Further:
    """What is asked for beyond the scores."""

    controls: int = 0  # copies of the model with random weights
    ensembles: bool = False
    probe: bool = False

    def __post_init__(self) -> None:
        if self.controls < 0:
            raise OutputError(f"controls is a number of copies, 0 for none; got {self.controls}.")

    def __bool__(self) -> bool:
        return bool(self.controls or self.ensembles or self.probe)


def analyze_further(
    network: PreTrainedModel, passes: Passes, asked: Further, *, way: Way, seed: int, say: Say
) -> tuple[dict[str, Any], list[str]]:
    """Entries of the provenance, and notes on what could not be done."""
    found, notes = dict[str, Any](), list[str]()
    if asked and not any(reading.decisions for reading in passes.readings):
        return found, [NOTHING_ASKED]
    if asked.controls:
        say("scoring copies with random weights")
        found["controls"] = controls(network, lambda copy: _decided(copy, passes, way), asked.controls, seed).to_dict()
    syntax = next((a for a in passes.readings[0].analyzers if isinstance(a, Syntax)), None)
    if syntax is None:
        return found, [NO_SYNTAX] if asked.ensembles or asked.probe else []
    if asked.ensembles:
        say("putting heads together")
        found["ensembles"] = _ensembles(network, passes, syntax, way, seed)
    if asked.probe:
        say("fitting a probe")
        try:
            found["probe"] = _probe(network, passes.readings[0], passes.folds, way, seed, bool(asked.controls))
        except CorpusError as error:  # the scores are there already, and no reason to lose them
            notes.append(f"No probe was fitted: {error}")
    return found, notes


def _decided(network: PreTrainedModel, passes: Passes, way: Way) -> Tally:
    return Tally.joined(
        [
            analyze(network, reading.encoded.batches, reading.decisions, documents=passes.folds, way=way)
            for reading in passes.readings
            if reading.decisions
        ]
    )


def _ensembles(network: PreTrainedModel, passes: Passes, syntax: Syntax, way: Way, seed: int) -> list[dict[str, Any]]:
    reading = passes.readings[0]
    sums = passes.tallies[0].model[syntax.name].sums
    correct = passes.tallies[0].counts_of_heads((sums["correct"].cpu() @ syntax.membership).numpy())
    attention = word_attention(network, reading.encoded.batches, way=way)
    fold_of = reading.document_of % passes.folds
    found = ensembles(attention, syntax.arcs, fold_of, correct, seed=seed, minimum=MINIMUM)
    return [one.to_dict() for one in found]


def _probe(
    network: PreTrainedModel, reading: Reading, folds: int, way: Way, seed: int, with_control: bool
) -> dict[str, Any]:
    batches = reading.encoded.batches
    control = word_attention(reinitialised(network, seed), batches, way=way) if with_control else None
    return probe(
        word_attention(network, batches, way=way),
        reading.sentences,
        reading.scored,
        reading.document_of % folds,
        control=control,
        seed=seed,
    ).to_dict()
