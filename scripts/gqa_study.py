"""Ways to share keys and values, beside each other on one model: methods x key/value heads, nothing trained.

    python scripts/gqa_study.py minilm --kv-heads 6,4,3,2,1 --corpus conllu:en_ewt-ud-dev.conllu --eval sts:stsb.csv

Everything is fitted on one part of the corpus and judged on another, which chose nothing either. The page says what
each step is worth: shared factors against aligned means, groups of heads that go together against neighbours, and the
refit of output projections; each as the difference of two conversions that differ in nothing else, text by text, with
a bootstrap interval. `--overview` writes the page above those of all models.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from gqa_report import write_overview, write_report

from headlens.calibration import Calibration, calibrate_to_fit, judged_one_by_one, objective_for
from headlens.conversion.carriers import converted
from headlens.conversion.moments import moments_of
from headlens.conversion.recipes import MEAN_POOLING, Recipe, converted_layers
from headlens.conversion.weights import read_layers
from headlens.corpora import read_corpus
from headlens.evaluation import Task, evaluate, read_task
from headlens.models import LoadedModel, load_whole, network_of
from headlens.profiling import default_corpus
from headlens.provenance import circumstances, corpus_facts
from headlens.surgery import apply_plan, mean_contexts, present_plan, refit

SEEDS = range(3)  # of groups by lot
RECIPES = {
    "mean": MEAN_POOLING,
    "first": replace(MEAN_POOLING, method="first"),
    "medoid": Recipe("medoid", "contiguous", repaired=False),
    "weighted": Recipe("weighted", "contiguous", repaired=False),
    "aligned": Recipe("aligned", "contiguous", repaired=False),
    "aligned, restored norms": Recipe("aligned", "contiguous", "restored", repaired=False),
    "aligned, fitted scale": Recipe("aligned", "contiguous", "fitted", repaired=False),
    "aligned, similar groups": Recipe("aligned", "similar", repaired=False),
    "svd": Recipe("svd", "contiguous", repaired=False),
    "svd, cheapest groups": Recipe("svd", "cheapest", repaired=False),
}
REFITTED = ("mean", "aligned", "aligned, similar groups", "svd", "svd, cheapest groups")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--kv-heads", default="4,2,1", help="of every layer, several with commas between them")
    parser.add_argument("--corpus", action="append", help="text to fit, choose and judge on")
    parser.add_argument("--eval", action="append", default=[], help="a task, KIND:FILE; may be repeated")
    parser.add_argument("--tokens", type=int, default=100_000, help="to fit on")
    parser.add_argument("--texts", type=int, help="that judge")
    parser.add_argument("--layers", help="only these change, as 5,6,7")
    parser.add_argument("--recipes", help=f"of {'; '.join(RECIPES)}; with semicolons between them")
    parser.add_argument("--name", help="of the folder under --out; default: the model's")
    parser.add_argument("--out", type=Path, default=Path("reports/gqa"))
    parser.add_argument("--overview", action="store_true", help="write the page above those of all models, and stop")
    options = parser.parse_args()
    if options.overview:
        write_overview(options.out)
        return
    loaded = load_whole(options.model, check=False)
    corpus = read_corpus(options.corpus or [default_corpus(options.model)])
    calibration = calibrate_to_fit(loaded, corpus, options.tokens, texts=options.texts)
    study = Study(loaded, calibration, [read_task(spec) for spec in options.eval], _numbers(options.layers))
    names = [name.strip() for name in options.recipes.split(";")] if options.recipes else list(RECIPES)
    found = list(study.run(_numbers(options.kv_heads) or [], names))
    facts = {
        **circumstances(loaded.name, corpus, 0, caller="scripts/gqa_study.py"),
        "model": loaded.name,
        "command": shlex.join(["python", "scripts/gqa_study.py", *map(_shown, sys.argv[1:])]),
        "data": {**corpus_facts(corpus, limit=None), **calibration.facts},
        "layers": options.layers,
        "objective": study.objective.name,
        "kv_heads": present_plan(loaded.model).kv_heads,
    }
    write_report(found, json.loads(json.dumps(facts)), options.out / (options.name or options.model))


class Study:
    """One model, everything that is tried on it, and what it is asked."""

    def __init__(
        self, loaded: LoadedModel, calibration: Calibration, tasks: Sequence[Task], layers: Sequence[int] | None
    ) -> None:
        self.loaded, self.calibration, self.tasks = loaded, calibration, tasks
        self.objective = objective_for(loaded, calibration.held_out)
        self.layers = read_layers(loaded.model)
        self.changing = range(len(self.layers)) if layers is None else layers
        start = time.perf_counter()
        self.moments = moments_of(loaded.model, calibration.fitted)
        print(f"moments: {time.perf_counter() - start:.0f} s", flush=True)

    def run(self, kv_heads: Sequence[int], names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """One record a model: the two that all are held against first."""
        network = network_of(self.loaded.model)
        yield self._asked("original", None, False, network=self.loaded.model)
        base = present_plan(network)
        means = mean_contexts(network, self.calibration.fitted)
        yield self._asked(
            "no heads", None, False, network=apply_plan(self.loaded.model, base.without(base), fill=means)
        )
        for count in kv_heads:
            for name in names:
                yield from self._converted(name, RECIPES[name], count)
            if count > 1:
                for seed in SEEDS:
                    lot = replace(MEAN_POOLING, grouping="random")
                    yield from self._converted("mean, random groups", lot, count, seed=seed)

    def _converted(self, name: str, recipe: Recipe, count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
        counts = [count if number in self.changing else len(layer.k) for number, layer in enumerate(self.layers)]
        if count == 1 and recipe.grouping != "contiguous":
            return  # there is one group of all
        start = time.perf_counter()
        layers = converted_layers(self.layers, counts, recipe, self.moments, seed=seed)
        seconds = time.perf_counter() - start
        model = converted(self.loaded.model, layers, stock=False)
        yield self._asked(name, count, False, network=model, seconds=seconds, seed=seed)
        if name in REFITTED:
            start = time.perf_counter()
            model = refit(model, self.loaded.model, self.calibration.fitted, layers=self.changing)
            yield self._asked(
                name, count, True, network=model, seconds=seconds + time.perf_counter() - start, seed=seed
            )

    def _asked(self, name: str, count: int | None, refitted: bool, *, network: Any, **more: Any) -> dict[str, Any]:
        moved = judged_one_by_one(network_of(network), self.objective)
        results = [evaluate(replace(self.loaded, model=network), task) for task in self.tasks]
        record = {
            "method": name,
            "kv_heads": count,
            "refitted": refitted,
            "distortions": moved.tolist(),
            "tasks": [result.to_dict() for result in results],
            **more,
        }
        told = " ".join(f"{result.value:.4f}" for result in results)
        print(f"{count} {name}{', refitted' * refitted}: {moved.mean():.4f} {told}", flush=True)
        return record


def _numbers(text: str | None) -> list[int] | None:
    return None if text is None else [int(part) for part in text.split(",")]


def _shown(argument: str) -> str:
    """Files by their names: where they lie is of no interest."""
    kind, colon, path = argument.rpartition(":")
    return f"{kind}{colon}{Path(path).name}" if "/" in path else argument


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
