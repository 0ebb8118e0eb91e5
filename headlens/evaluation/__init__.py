"""The tasks that a model can be evaluated on. A new one is a class in a file of its own, and a line here."""

from headlens.evaluation.harness import run_lm_eval
from headlens.evaluation.pairing import Difference, difference_to_mean, paired_difference
from headlens.evaluation.repeat import SEQUENCES, Repeat
from headlens.evaluation.results import Figure, Metric, TaskResult
from headlens.evaluation.specs import (
    TaskKind,
    TaskOptions,
    read_classification,
    read_grammar_task,
    read_masked_words,
    read_pairs,
    read_perplexity,
    read_regression,
    read_repeat,
    read_similarity,
    read_syntaxgym,
    task_of,
)
from headlens.evaluation.task import Answers, Task, evaluate

_TEXT = frozenset({"limit", "unit", "columns", "revision"})
_TABLE = frozenset({"limit", "columns", "revision"})

TASKS: dict[str, TaskKind] = {
    "perplexity": TaskKind(read_perplexity, _TEXT | {"window", "stride"}, "perplexity:FILE or perplexity:KIND:FILE"),
    "masked": TaskKind(read_masked_words, _TEXT, "masked:FILE or masked:KIND:FILE"),
    "blimp": TaskKind(read_pairs, _TABLE, "blimp:FILE or blimp:FOLDER"),
    "sling": TaskKind(read_pairs, _TABLE, "sling:FILE or sling:FOLDER"),
    "syntaxgym": TaskKind(read_syntaxgym, frozenset({"limit"}), "syntaxgym:FILE"),
    "sts": TaskKind(read_similarity, _TABLE, "sts:FILE"),
    "classification": TaskKind(read_classification, _TABLE | {"labels"}, "classification:FILE"),
    "regression": TaskKind(read_regression, _TABLE, "regression:FILE"),
    "grammar": TaskKind(read_grammar_task, frozenset(), "grammar:2000 or grammar:2000@1"),
    "repeat": TaskKind(read_repeat, frozenset(), "repeat:16 or just repeat", usual=str(SEQUENCES)),
}


def read_task(spec: str, options: TaskOptions | None = None) -> Task:
    """The task that is named as KIND:FILE, with one of TASKS for its kind.

    FILE is a local file, or hub:owner/name:config@split; of perplexity and masked a corpus as `read_corpus` takes it
    (perplexity:conllu:FILE), of grammar a number of sentences, of repeat a number of sequences or nothing ("repeat").
    Raises CorpusError in one sentence, with file and line.
    """
    return task_of(spec, TASKS, options or TaskOptions())


__all__ = [
    "TASKS",
    "Answers",
    "Difference",
    "Figure",
    "Metric",
    "Repeat",
    "Task",
    "TaskKind",
    "TaskOptions",
    "TaskResult",
    "difference_to_mean",
    "evaluate",
    "paired_difference",
    "read_task",
    "run_lm_eval",
]
