"""What a profile, and leaving out every head, cost beside the model's own forward pass, in time and in memory.

    python scripts/benchmark.py                 # about five minutes on two cores
    python scripts/benchmark.py --quick         # half of that, fewer repeats

Time: the pass over 200 sentences with all analyzers, against the base model alone under sdpa over the same batches;
with --treebank also the pass over all its sentences with syntax, coreference left out as it reads other inputs.
Both are run in turn, A B A B, and what counts is the median of the paired ratios; start-up, loading, self-check,
statistics and report are not part of it. Heads left out: the time of one head, when all of MiniLM's are left out one at
a time, against the pass over the same batches. Memory: how far one text of 2,048 tokens lifts the resident memory of a
fresh process, in a random GPT-2-small, profile against sdpa.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import torch
import transformers
import typer
from rich.console import Console
from rich.table import Table

from headlens.analyze import analyze
from headlens.analyzers import ANALYZERS, Scorer
from headlens.annotated import read_sentences
from headlens.corpora import read_corpus, sample_path
from headlens.encode import encode
from headlens.importance.inputs import TextBatch, text_batches
from headlens.importance.leave_one_out import leave_one_out
from headlens.importance.objectives import cosine_distortion
from headlens.models import LoadedModel, load_model
from headlens.records import Batch

LONG = 2048  # tokens of the text for the memory figure
LEFT_OUT = "minilm, a head left out"
LEFT_OUT_SENTENCES = 48  # all heads take as long as some 40 passes
TARGETS = {"minilm": 1.3, "bert-base (random)": 1.3, "minilm, treebank": 1.4, LEFT_OUT: 0.6, "memory": 1.2}


def main(
    sentences: Annotated[int, typer.Option(help="How many sentences.")] = 200,
    repeats: Annotated[int, typer.Option(help="Paired runs.")] = 9,
    quick: Annotated[bool, typer.Option("--quick", help="Three paired runs.")] = False,
    corpus: Annotated[Path | None, typer.Option(help="One sentence a line; default: the bundled sample.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for benchmark.md.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
    treebank: Annotated[
        str | None, typer.Option(help="Such as conllu:en_ewt-ud-test.conllu: MiniLM with syntax.")
    ] = None,
    memory_of: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Measure, print a table, and write it down."""
    if memory_of:
        print(extra_peak(memory_of))
        return
    transformers.logging.set_verbosity_error()
    loaded = load_model("minilm")
    documents = read_corpus(corpus or sample_path(), limit=sentences)
    batches = encode(documents, loaded.require_tokenizer(), max_length=512).batches
    figures = {
        name: time_pass(model, batches, 3 if quick else repeats)
        for name, model in (("minilm", loaded.model), ("bert-base (random)", random_bert()))
    }
    if treebank:
        reading = read_sentences(
            read_corpus(treebank), loaded.require_tokenizer(), is_causal=False, max_length=512, batch_tokens=4096
        )
        figures["minilm, treebank"] = time_pass(
            loaded.model, reading.encoded.batches, 3 if quick else repeats, reading.analyzers
        )
    figures[LEFT_OUT] = time_leave_one_out(loaded, [document.text for document in documents], 3 if quick else repeats)
    memory = {way: median(peak_in_fresh_process(way) for _ in range(3)) for way in ("sdpa", "profile")}
    ratios = {
        "profile_vs_limit": figures["bert-base (random)"]["ratio"],
        "leave_one_out_vs_forwards": figures[LEFT_OUT]["ratio"],
        "memory_2048_vs_sdpa": memory["profile"] / memory["sdpa"],
    }
    table = as_table(figures, memory)
    Console().print(table)
    if json_file:
        result = {
            "ratios": ratios,
            "models": figures,
            "memory_bytes": memory,
            "machine": machine(),
            "documents": len(documents),
        }
        json_file.write_text(json.dumps(result, indent=2) + "\n")
    if out:
        out.mkdir(parents=True, exist_ok=True)
        (out / "benchmark.md").write_text(as_markdown(figures, memory))


def time_pass(
    model: transformers.PreTrainedModel, batches: list[Batch], repeats: int, of_words: Sequence[Scorer] = ()
) -> dict[str, float]:
    """Median seconds of the plain pass and of the profile's pass, and the median of their paired ratios."""

    def plain() -> None:
        with torch.inference_mode():
            for batch in batches:
                model(input_ids=batch.input_ids, attention_mask=batch.attention_mask.long())

    def profiled() -> None:
        fresh = [replace(batch, _derived={}) for batch in batches]  # no masks left over from the run before
        scorers = [*(make() for make in ANALYZERS.values()), *of_words]
        analyze(model, fresh, scorers, documents=1 + max(int(batch.document.max()) for batch in batches))

    plain(), profiled()
    return paired([(seconds(plain), seconds(profiled)) for _ in range(repeats)], batches)


def time_leave_one_out(loaded: LoadedModel, texts: Sequence[str], repeats: int) -> dict[str, float]:
    """Median seconds of a plain pass and of one head, when all are left out, and the median of their paired ratios."""
    batches = text_batches(texts[:LEFT_OUT_SENTENCES], loaded.require_tokenizer())
    objective = cosine_distortion(loaded.model, batches)
    heads = loaded.provenance["layers"] * loaded.provenance["heads"]
    passes = heads // 8  # a single one is too short to be timed

    def plain() -> None:
        with torch.inference_mode():
            for batch in batches * passes:
                loaded.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask)

    def left_out() -> None:
        leave_one_out(loaded.model, objective)

    plain(), left_out()
    pairs = [(seconds(plain) / passes, seconds(left_out) / heads) for _ in range(repeats)]
    return paired(pairs, batches)


def paired(pairs: Sequence[tuple[float, float]], batches: Sequence[Batch | TextBatch]) -> dict[str, float]:
    ratios = sorted(b / a for a, b in pairs)
    return {
        "inputs": sum(len(batch.input_ids) for batch in batches),
        "plain_seconds": median(a for a, _ in pairs),
        "profile_seconds": median(b for _, b in pairs),
        "ratio": median(ratios),
        "lowest": ratios[0],
        "highest": ratios[-1],
    }


def seconds(run: Callable[[], None]) -> float:
    start = perf_counter()
    run()
    return perf_counter() - start


def random_bert() -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    return transformers.BertModel(transformers.BertConfig()).eval()


def peak_in_fresh_process(way: str) -> int:
    command = [sys.executable, __file__, "--memory-of", way]
    # glibc keeps freed blocks for later, by chance more or fewer: told to return them, it shows what is alive
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return int(done.stdout.split()[-1])


def extra_peak(way: str) -> int:
    """Bytes by which one long text lifts this process's peak over what the loaded model takes."""
    torch.manual_seed(0)
    model = transformers.GPT2Model(transformers.GPT2Config(n_positions=LONG)).eval()
    ids = torch.randint(50_000, (1, LONG))
    real = torch.ones(1, LONG, dtype=torch.bool)
    short = Batch(ids[:, :8], real[:, :8], ~real[:, :8], torch.zeros(1, dtype=torch.long))
    batch = Batch(ids, real, ~real, torch.zeros(1, dtype=torch.long))
    runs: dict[str, Callable[[Batch], Any]] = {
        "sdpa": lambda b: model(input_ids=b.input_ids, attention_mask=b.attention_mask.long(), use_cache=False),
        "profile": lambda b: analyze(model, [b], [make() for make in ANALYZERS.values()], documents=1),
    }
    with torch.inference_mode():
        runs[way](short)  # libraries load their code on first use
        before = memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
        runs[way](batch)
    return memory("VmHWM") - before


def memory(which: str) -> int:
    """Bytes of this process's resident memory as Linux counts it: VmRSS now, VmHWM at its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{which}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("The memory figure needs Linux's /proc.")


def as_table(figures: dict[str, dict[str, float]], memory: dict[str, float]) -> Table:
    table = Table("what", "plain sdpa", "headlens", "ratio", "lowest to highest", "target")
    for name, f in figures.items():
        table.add_row(
            f"{name}, seconds",
            f"{f['plain_seconds']:.2f}",
            f"{f['profile_seconds']:.2f}",
            f"{f['ratio']:.2f}",
            f"{f['lowest']:.2f} to {f['highest']:.2f}",
            f"{TARGETS[name]:.1f}",
        )
    plain, ours = memory["sdpa"] / 2**20, memory["profile"] / 2**20
    table.add_row(
        f"GPT-2-small (random) at {LONG} tokens, extra MiB",
        f"{plain:.0f}",
        f"{ours:.0f}",
        f"{ours / plain:.2f}",
        "",
        f"{TARGETS['memory']:.1f}",
    )
    return table


def as_markdown(figures: dict[str, dict[str, float]], memory: dict[str, float]) -> str:
    rows = [
        f"| {name}, {f['inputs']:,.0f} sentences | {f['plain_seconds']:.2f} s | {f['profile_seconds']:.2f} s | "
        f"**{f['ratio']:.2f}** ({f['lowest']:.2f} to {f['highest']:.2f}) | {TARGETS[name]:.1f} |"
        for name, f in figures.items()
    ]
    plain, ours = memory["sdpa"] / 2**20, memory["profile"] / 2**20
    rows.append(
        f"| GPT-2-small (random), one text of {LONG} tokens, extra peak memory | {plain:.0f} MiB | {ours:.0f} MiB | "
        f"**{ours / plain:.2f}** | {TARGETS['memory']:.1f} |"
    )
    facts = machine()
    return "\n".join(
        [
            "# What a profile costs",
            "",
            "The pass over the corpus with all analyzers, against the base model alone under sdpa over the same",
            "batches: median of paired runs in turn, and the range of the ratios. A head left out: the time of one,",
            "when all heads are left out one at a time. Made by",
            "`python scripts/benchmark.py --out reports/benchmark`",
            f"on {facts['date']}; {facts['cpu']}, {facts['threads']} threads, torch {facts['torch']}, "
            f"transformers {facts['transformers']}.",
            "",
            "| what | plain sdpa | headlens | ratio | target |",
            "| --- | ---: | ---: | ---: | ---: |",
            *rows,
            "",
        ]
    )


def machine() -> dict[str, Any]:
    return {
        "cpu": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "date": datetime.now(timezone.utc).date().isoformat(),
    }


if __name__ == "__main__":
    typer.run(main)
