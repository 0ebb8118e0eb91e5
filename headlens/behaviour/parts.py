"""What heads do beside the words of a corpus: on repeated tokens, in their weights, beside each other, with needles.

Every part is asked for by name. A part that a model cannot be asked for is left out with its reason. Two parts are not
run here: contribution and lexical belong to the pass over the corpus, examples and ablation come after the roles.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from headlens.behaviour.circuits import HeadPair, circuits
from headlens.behaviour.repetition import repetition
from headlens.behaviour.retrieval import retrieval
from headlens.behaviour.similarity import Similarity, similarity
from headlens.capture import Way
from headlens.errors import CorpusError, OutputError, UnsupportedModel
from headlens.models import LoadedModel, network_of
from headlens.records import Batch
from headlens.scores import ScoreTable

PARTS = ("contribution", "lexical", "repetition", "circuits", "similarity", "examples", "retrieval", "ablation")
USUAL = PARTS[:-2]  # needles take minutes on larger models, and so does taking out head after head
_OF_THE_PASS = ("contribution", "lexical")  # summed with the other scores of the corpus
_PAIRS_TOLD = 10  # of each kind of composition

Say = Callable[[str], None]  # told what is being done


@dataclass
class Behaviour:
    """What was found: tables of scores, facts for the provenance, and remarks."""

    tables: list[ScoreTable] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    similarity: Similarity | None = None


def chosen_parts(also: Collection[str], without: Collection[str]) -> set[str]:
    """The usual parts, and more or fewer of them."""
    check_parts({*also, *without})
    if both := sorted({*also} & {*without}):
        raise OutputError(f"A part is either wanted or left out, not both: {', '.join(both)}.")
    return {*USUAL, *also} - {*without}


def check_parts(parts: Collection[str]) -> None:
    unknown = sorted(set(parts) - set(PARTS))
    if unknown:
        raise OutputError(f"There is no part of a profile called {', '.join(unknown)}; there are: {', '.join(PARTS)}.")


def behaviour(
    loaded: LoadedModel,
    batches: Sequence[Batch],
    parts: Collection[str],
    *,
    seed: int,
    way: Way,
    say: Say,
) -> Behaviour:
    """Score the heads of a model by these parts; `batches` of the corpus are for their similarity."""
    found = Behaviour()
    network, tokenizer = network_of(loaded.model), loaded.require_tokenizer()

    def repeated() -> None:
        table, facts = repetition(network, tokenizer, seed=seed, model=loaded, way=way)
        found.tables.append(table)
        found.notes += facts.pop("notes")
        found.facts["repetition"] = facts

    def weights() -> None:
        of_weights = circuits(loaded, seed=seed)
        found.tables.append(of_weights.scores)
        pairs = {kind: of_kind.best(_PAIRS_TOLD) for kind, of_kind in of_weights.compositions.items()}
        found.facts["circuits"] = {
            "left_out": of_weights.left_out,
            "pairs": {kind: [_pair(pair) for pair in best] for kind, best in pairs.items()},
        }

    def beside_each_other() -> None:
        found.similarity = similarity(network, batches, seed=seed, way=way)

    def with_needles() -> None:
        table, facts = retrieval(loaded, seed=seed)
        found.tables.append(table)
        found.notes += [note] if (note := facts.pop("note")) else []
        found.facts["retrieval"] = facts

    steps: dict[str, tuple[str, Callable[[], None]]] = {
        "repetition": ("scoring heads on repeated tokens", repeated),
        "circuits": ("reading the weights of heads", weights),
        "similarity": ("comparing heads", beside_each_other),
        "retrieval": ("hiding needles", with_needles),
    }
    for name, (words, run) in steps.items():
        if name in parts:
            say(words)
            try:
                run()
            except (UnsupportedModel, CorpusError) as reason:  # of one part: the others are worth having
                found.notes.append(f"There are no scores of {name}: {reason}")
    return found


def _pair(pair: HeadPair) -> dict[str, Any]:
    return {"pair": str(pair), "value": pair.value}
