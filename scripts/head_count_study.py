"""How many heads? Small GPT-2s that differ in nothing but how their attention is cut into heads.

    python scripts/head_count_study.py                                  # 27 runs, two at a time: some 45 minutes
    python scripts/head_count_study.py --quick --out /tmp/head_count    # a miniature; its figures say nothing

1, 2, 4, 8, 16 and 32 heads share the same 128 numbers, so all have as many parameters. 8 heads with 4, 2 or 1 key/value
heads have fewer: grouped-query and multi-query attention, by headlens.MultiHeadAttention in the place of GPT-2's own.
Models of one seed start from the same numbers and read the same texts in the same order. The texts are made by
headlens.corpora.grammar, which knows how probable each of them is, so a model's loss has something to be held against.

Each run leaves one file in <out>/runs and is not made again; one that was interrupted starts anew. What is
measured of a model stands in head_count_measures.py, what is written of all of them in head_count_report.py.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import platform
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, TypeAlias

import numpy as np
import torch
import transformers
import typer
from head_count_measures import (
    END,
    PAD,
    Ids,
    cache_bytes,
    head_figures,
    language_figures,
    padded,
    profile_of,
    relations_tested,
    token_ids,
    with_a_head,
)
from head_count_report import write_report
from torch import Tensor
from train_tiny import POSITIONS, gpt2_tokenizer
from transformers import GPT2Config, GPT2LMHeadModel

import headlens
from headlens.attention import MultiHeadAttention
from headlens.corpora.grammar import GrammarText, grammar_texts
from headlens.files import atomic_write

SCHEMA = "headlens.head_count_run/1"
TRAINING_SEED, HELD_OUT_SEED = 1_000, 9_000  # of the grammar; training adds the number of the run's seed
POOL = 50  # batches that are sorted by length together


@dataclass(frozen=True)
class Plan:
    """What all runs share."""

    d_model: int = 128
    layers: int = 4
    steps: int = 2000
    batch: int = 16  # texts
    learning_rate: float = 2e-3
    held_out: int = 2000  # texts that loss and choices are measured on
    annotated: int = 400  # of them: texts that heads are measured on
    ranked: int = 60  # of them: texts whose attention matrices are decomposed


@dataclass(frozen=True)
class Design:
    """One run: how the attention is cut, and the seed."""

    heads: int
    kv_heads: int
    seed: int

    @property
    def name(self) -> str:
        return f"heads{self.heads:02}-kv{self.kv_heads:02}-seed{self.seed}"


def designs(heads: Sequence[int], grouped: tuple[int, Sequence[int]], seeds: int) -> list[Design]:
    """Seed by seed. `grouped` is a number of heads, and the numbers of key/value heads that these share in turn."""
    cuts = [(count, count) for count in heads] + [(grouped[0], shared) for shared in grouped[1]]
    return [Design(*cut, seed) for seed in range(seeds) for cut in cuts]


FULL = (Plan(), designs((1, 2, 4, 8, 16, 32), (8, (4, 2, 1)), seeds=3))
QUICK = (
    Plan(d_model=32, layers=2, steps=8, batch=16, held_out=48, annotated=48, ranked=4),
    designs((1, 2, 4), (4, (2, 1)), seeds=2),
)

# --------------------------------------------------------------------------------------------------------------- texts


def held_out_texts(count: int) -> list[GrammarText]:
    return list(islice(grammar_texts(HELD_OUT_SEED), count))


def fingerprint(texts: Sequence[GrammarText]) -> str:
    """Tells texts of one version of the grammar from those of another."""
    return hashlib.sha256("\n".join(text.document.text for text in texts).encode()).hexdigest()[:16]


def training_batches(plan: Plan, seed: int) -> list[Ids]:
    """What every model of a seed reads, each text once: batches [text, token] of texts of like length."""
    vocabulary = gpt2_tokenizer().get_vocab()
    texts = (token_ids(text, vocabulary) for text in grammar_texts(TRAINING_SEED + seed))
    batches: list[Ids] = []
    while len(batches) < plan.steps:
        pool = sorted(islice(texts, min(POOL, plan.steps - len(batches)) * plan.batch), key=len)
        batches += [padded(pool[start : start + plan.batch]) for start in range(0, len(pool), plan.batch)]
    return batches


# -------------------------------------------------------------------------------------------------------------- models


def build_model(plan: Plan, design: Design) -> GPT2LMHeadModel:
    """A new GPT-2, the same for all numbers of heads of a seed; with fewer key/value heads, the first of them stay."""
    config = GPT2Config(
        vocab_size=len(gpt2_tokenizer()),
        n_positions=POSITIONS,
        n_embd=plan.d_model,
        n_layer=plan.layers,
        n_head=design.heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        pad_token_id=PAD,
        bos_token_id=END,
        eos_token_id=END,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(design.seed)
        model = GPT2LMHeadModel(config)
    if design.kv_heads < design.heads:
        headlens.replace_attention(model)
        for block in model.transformer.h:
            block.attn.mha = with_fewer_kv_heads(block.attn.mha, design.kv_heads)
    return model.eval()


def with_fewer_kv_heads(mha: MultiHeadAttention, kv_heads: int) -> MultiHeadAttention:
    """The same layer with nothing but its first key/value heads, which all heads share."""
    shared = MultiHeadAttention(mha.d_model, mha.num_heads, kv_heads, is_causal=mha.is_causal)
    kept = kv_heads * mha.head_dim
    k, v = ((layer.weight[:kept], layer.bias[:kept]) for layer in (mha.k_proj, mha.v_proj))
    q, o = ((layer.weight, layer.bias) for layer in (mha.q_proj, mha.o_proj))
    shared.set_weights(q, k, v, o)
    return shared


def train(model: GPT2LMHeadModel, batches: Sequence[Ids], plan: Plan, seed: int) -> None:
    """Every batch once, in an order that the seed draws."""
    from transformers import PrinterCallback, Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=len(batches),
            per_device_train_batch_size=1,  # of the data set, whose items are batches
            learning_rate=plan.learning_rate,
            weight_decay=0.1,
            warmup_steps=max(1, len(batches) // 20),
            lr_scheduler_type="cosine",
            seed=seed,
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
            dataloader_pin_memory=False,
        )
        trainer = Trainer(model, arguments, train_dataset=list(batches), data_collator=_as_inputs)
        trainer.model_accepts_loss_kwargs = False  # a loss is the mean over its batch
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    model.eval()


def _as_inputs(batch: Sequence[Ids]) -> dict[str, Tensor]:
    """No mask: padding stands behind the text, where a causal model does not look, and has no label."""
    ids = torch.from_numpy(batch[0].astype(np.int64))
    return {"input_ids": ids, "labels": ids.masked_fill(ids == PAD, -100)}


# ---------------------------------------------------------------------------------------------------------------- runs


def run(plan: Plan, design: Design, batches: Sequence[Ids], path: Path) -> dict[str, Any]:
    """Train one model, measure it, and write it down."""
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    start = perf_counter()
    texts = held_out_texts(plan.held_out)
    annotated = texts[: plan.annotated]
    model = build_model(plan, design)
    untrained = len(with_a_head(relations_tested(profile_of(model, annotated).evidence)))
    begun = perf_counter()
    train(model, batches, plan, design.seed)
    trained = perf_counter()
    language, decisions = language_figures(model, texts)
    heads, verdicts = head_figures(model, annotated, plan.ranked)
    parameters = sum(weight.numel() for weight in model.parameters())
    result = {
        **identity(plan, design),
        "figures": {
            **language,
            **heads,
            "relations_untrained": untrained,
            "parameters": parameters,
            "cache_bytes": cache_bytes(model),
        },
        "decisions": decisions,
        "verdicts": verdicts,
        "training_tokens": sum(int((batch != PAD).sum()) for batch in batches),
        "training_seconds": trained - begun,
        "seconds": perf_counter() - start,
        "versions": versions(),
    }
    atomic_write(path, lambda target: target.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8"))
    return result


def identity(plan: Plan, design: Design) -> dict[str, Any]:
    """What makes two runs the same: settings and texts."""
    texts = fingerprint(held_out_texts(min(plan.held_out, 100)))
    return {"schema": SCHEMA, "plan": asdict(plan), "design": asdict(design), "texts": texts}


def finished(plan: Plan, design: Design, path: Path) -> dict[str, Any] | None:
    """What the run left, None if it is still to be made.

    Raises HeadlensError where the file holds something else: figures of other settings are not to be mixed with these.
    """
    if not path.exists():
        return None
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        differing = [name for name, value in identity(plan, design).items() if result[name] != value]
    except (ValueError, KeyError, TypeError):
        raise headlens.HeadlensError(f"{path} is not what a run of this study leaves; remove it.") from None
    if differing:
        raise headlens.HeadlensError(
            f"{path} is of a run with another {' and '.join(differing)}; give another folder with --out, or remove it."
        )
    return dict(result)


def study(plan: Plan, listed: Sequence[Design], out: Path, *, workers: int = 2) -> list[dict[str, Any]]:
    """All runs, in the order of `listed`; only those are made that have left no file."""
    paths = {design: out / "runs" / f"{design.name}.json" for design in listed}
    results = {design: finished(plan, design, path) for design, path in paths.items()}
    missing = [design for design, result in results.items() if result is None]
    for result in _made(_jobs(plan, {design: paths[design] for design in missing}), workers):
        results[Design(**result["design"])] = result
        _say(result)
    return [result for result in results.values() if result is not None]


Job: TypeAlias = tuple[Plan, Design, Sequence[Ids], Path]  # what `run` takes


def _jobs(plan: Plan, missing: dict[Design, Path]) -> Iterator[Job]:
    for seed in sorted({design.seed for design in missing}):
        batches = training_batches(plan, seed)
        yield from ((plan, design, batches, path) for design, path in missing.items() if design.seed == seed)


def _made(jobs: Iterable[Job], workers: int) -> Iterator[dict[str, Any]]:
    """Results as they come."""
    if workers == 1:
        yield from (run(*job) for job in jobs)
        return
    context = multiprocessing.get_context("spawn")  # a fork would inherit torch's threads in an unknown state
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        try:
            for done in as_completed([pool.submit(run, *job) for job in jobs]):
                yield done.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)  # or an hour of runs goes on before the error is told
            raise


def _say(result: dict[str, Any]) -> None:
    figures, speed = result["figures"], result["training_tokens"] / result["training_seconds"]
    print(
        f"{Design(**result['design']).name}: {figures['loss']:.4f} nats a token ({figures['excess']:+.4f}), "
        f"{result['seconds']:.0f} s, trained at {speed:,.0f} tokens/s",
        flush=True,
    )


def versions() -> dict[str, str]:
    found = {"torch": torch.__version__, "transformers": transformers.__version__, "headlens": headlens.__version__}
    return {"Python": platform.python_version(), **found}


def main(
    out: Annotated[Path, typer.Option(help="Folder of the runs and the report.")] = Path("reports/head_count"),
    quick: Annotated[bool, typer.Option("--quick", help="A miniature of few steps; its figures say nothing.")] = False,
    workers: Annotated[int, typer.Option(min=1, help="Runs at a time, each on one core.")] = 2,
    steps: Annotated[int | None, typer.Option(min=1, help="Instead of the planned number.")] = None,
) -> None:
    """Make the runs that are missing, and the report of all."""
    plan, listed = QUICK if quick else FULL
    plan = plan if steps is None else replace(plan, steps=steps)
    command = "python scripts/head_count_study.py" + (" --quick" if quick else "")
    command += "" if steps is None else f" --steps {steps}"
    try:
        write_report(study(plan, listed, out, workers=workers), out, command)
    except headlens.HeadlensError as error:
        sys.exit(f"head_count_study: {error}")
    print(f"Report: {out / 'README.md'}")


if __name__ == "__main__":
    typer.run(main)
