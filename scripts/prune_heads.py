"""Prune a model by hand, step by step: rank its heads, take out the least important ones, ask before and after, save.

    python scripts/prune_heads.py tiny-gpt2 --keep 0.5 --eval grammar:400 --out pruned

What `headlens prune` does in one command, with random heads beside it, is written out here to be changed.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from headlens.calibration import calibrate, judged, objective_for
from headlens.corpora import read_corpus
from headlens.evaluation import evaluate, paired_difference, read_task
from headlens.importance.leave_one_out import leave_one_out
from headlens.models import load_whole, network_of
from headlens.plans import lowest
from headlens.profiling import default_corpus
from headlens.surgery import apply_plan, mean_contexts, present_plan
from headlens.surgery.checkpoint import save_pruned


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--keep", type=float, default=0.5, help="share of the heads that stay")
    parser.add_argument("--calibration", help="text that heads are judged on; default: what comes with headlens")
    parser.add_argument("--eval", default="grammar:400", help="a task, KIND:FILE")
    parser.add_argument("--out", required=True, help="folder for the checkpoint")
    options = parser.parse_args()

    original = load_whole(options.model)
    network = network_of(original.model)  # without its head: what heads are judged in
    calibration = calibrate(original, read_corpus([options.calibration or default_corpus(options.model)]))

    # how much does each head matter? by how much the model's own output moves without it, on text that chooses
    objective = objective_for(original, calibration.chosen)
    means = mean_contexts(network, calibration.fitted)
    importance = leave_one_out(network, objective, ablation="mean", means=means)
    print(f"Two halves of the texts agree on the order of heads to {importance.split_half().halves:.2f}.")

    # those that matter least go for good; what they gave on average stays, in the bias of the output projection
    plan = lowest(importance.values, present_plan(network), keep=options.keep)
    pruned = replace(original, model=apply_plan(original.model, plan, fill=means), name=f"{original.name}, pruned")
    print(plan)

    # what did that do, on text and items that had no say in the choice?
    held_out = objective_for(original, calibration.held_out)
    print(f"{held_out.name}: {judged(network_of(pruned.model), held_out):.4f}")
    task = read_task(options.eval)
    before, after = evaluate(original, task), evaluate(pruned, task)
    change = paired_difference(after, before)
    print(f"{task.name}: {before.value:.4f} before, {after.value:.4f} after [{change.low:+.4f}, {change.high:+.4f}]")

    measured = {before.metric: {"before": before.value, "after": after.value}}
    folder = save_pruned(
        pruned.model,
        options.out,
        tokenizer=original.tokenizer,
        manifest={"source": original.provenance, "method": "leave one out, mean", "measured": measured},
    )
    print(f"Saved: {folder}; headlens.load_model({str(folder)!r}) gives it back.")


if __name__ == "__main__":
    main()
