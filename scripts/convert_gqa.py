"""Convert a model to grouped-query attention by hand, step by step: moments, groups, merging, repair, ask, save.

    python scripts/convert_gqa.py tiny-gpt2 --kv-heads 2 --eval grammar:400 --out grouped

What `headlens convert` does in one command, with several recipes tried, is written out here to be changed.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from headlens.calibration import calibrate_to_fit, judged, objective_for
from headlens.conversion.absorb import absorb
from headlens.conversion.carriers import converted, in_stock_class
from headlens.conversion.grouping import cheapest_groups
from headlens.conversion.merging import discarded_energy, share_factors
from headlens.conversion.moments import moments_of
from headlens.conversion.recipes import MEAN_POOLING, converted_layers
from headlens.conversion.weights import read_layers
from headlens.corpora import read_corpus
from headlens.evaluation import evaluate, paired_difference, read_task
from headlens.models import load_whole, network_of
from headlens.profiling import default_corpus
from headlens.surgery import refit
from headlens.surgery.checkpoint import save_pruned


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--kv-heads", type=int, default=2, help="key/value heads of every layer")
    parser.add_argument("--calibration", help="text to fit on; default: what comes with headlens")
    parser.add_argument("--eval", default="grammar:400", help="a task, KIND:FILE")
    parser.add_argument("--out", required=True, help="folder for the checkpoint")
    options = parser.parse_args()

    original = load_whole(options.model)
    corpus = read_corpus([options.calibration or default_corpus(options.model)])
    calibration = calibrate_to_fit(original, corpus, tokens=100_000)
    held_out = objective_for(original, calibration.held_out)  # text that nothing is fitted on

    # what every layer reads, as it is and as its attention sees it: sums over the text, and nothing else is kept
    moments = moments_of(original.model, calibration.fitted)

    # layer by layer: biases that attention does not need go, heads that lose least together share a factor
    merged = []
    for number, layer in enumerate(read_layers(original.model)):
        bare = absorb(layer)
        cost = discarded_energy(bare, moments[number])
        groups = cheapest_groups(len(bare.k), options.kv_heads, cost)
        merged.append(share_factors(bare, groups, moments[number]))
        print(f"layer {number}: heads {' | '.join(' '.join(map(str, group)) for group in merged[-1].groups)}")
    shared = converted(original.model, merged, stock=False)

    # the output projections are fitted anew, towards the stream of the original; nothing is trained
    repaired = refit(shared, original.model, calibration.fitted)

    pooled = converted(
        original.model,
        converted_layers(read_layers(original.model), [options.kv_heads] * len(merged), MEAN_POOLING, None),
    )
    for name, model in (("shared factors", shared), ("the same, refitted", repaired), ("plain mean pooling", pooled)):
        print(f"{held_out.name}, {name}: {judged(network_of(model), held_out):.4f}")

    task = read_task(options.eval)
    before, after = evaluate(original, task), evaluate(replace(original, model=repaired), task)
    change = paired_difference(after, before)
    print(f"{task.name}: {before.value:.4f} before, {after.value:.4f} after [{change.low:+.4f}, {change.high:+.4f}]")

    measured = {before.metric: {"before": before.value, "after": after.value}}
    folder = save_pruned(
        in_stock_class(repaired),
        options.out,
        tokenizer=original.tokenizer,
        manifest={"source": original.provenance, "method": {"merged_by": "svd", "repair": True}, "measured": measured},
    )
    print(f"Saved: {folder}; headlens.load_model({str(folder)!r}) gives it back.")


if __name__ == "__main__":
    main()
