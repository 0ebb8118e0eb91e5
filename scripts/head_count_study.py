"""How many heads? Small GPT-2s that differ in nothing but how their attention is cut into heads.

    python scripts/head_count_study.py                                  # 27 runs, two at a time: about an hour
    python scripts/head_count_study.py --quick --out /tmp/head_count    # a miniature; its figures say nothing

1, 2, 4, 8, 16 and 32 heads share the same 128 numbers, so all have as many parameters. 8 heads with 4, 2 or 1 key/value
heads have fewer: grouped-query and multi-query attention, by headlens.MultiHeadAttention in the place of GPT-2's own.
Models of one seed start from the same numbers and read the same texts in the same order. The texts are made by
headlens.corpora.grammar, which knows how probable each of them is, so a model's loss has something to be held against.

Each run leaves one file in <out>/runs and is not made again; one that was interrupted starts anew. The report is
written by head_count_report.py, beside this file.
"""

from __future__ import annotations

import hashlib
import json
import math
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
from head_count_report import write_report
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from train_tiny import POSITIONS, gpt2_tokenizer
from transformers import GPT2Config, GPT2LMHeadModel

import headlens
from headlens.attention import MultiHeadAttention
from headlens.corpora.grammar import Forced, GrammarText, grammar_texts
from headlens.evidence_table import ABOVE, INFORMED, TOO_FEW, Evidence, RelationEvidence
from headlens.files import atomic_write

Ids: TypeAlias = NDArray[np.int16]  # [text, token]

SCHEMA = "headlens.head_count_run/1"
TRAINING_SEED, HELD_OUT_SEED = 1_000, 9_000  # of the grammar; training adds the number of the run's seed
PAD, END = (gpt2_tokenizer().convert_tokens_to_ids(token) for token in ("<pad>", "<|endoftext|>"))
POOL = 50  # batches that are sorted by length together
MENTIONS = ("coref[pronoun]", "coref[proper]", "coref[nominal]")  # rows of evidence that do not overlap
SUMS = ("ALL", "subject_verb")  # rows of evidence that count decisions of other rows again
REFERENCE = ("pronoun", "possessive", "reflexive")  # kinds of Forced words that refer


@dataclass(frozen=True)
class Plan:
    """What all runs share."""

    d_model: int = 128
    layers: int = 4
    steps: int = 1600
    batch: int = 32  # texts
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


def token_ids(text: GrammarText, vocabulary: dict[str, int]) -> list[int]:
    """The words between two <|endoftext|>: word i is token i + 1, and the end is predicted like a word."""
    words = [vocabulary[word.lower()] for sentence in text.document.sentences for word in sentence.words]
    return [END, *words, END]


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


def padded(rows: Sequence[Sequence[int]]) -> Ids:
    ids = np.full((len(rows), max(map(len, rows))), PAD, dtype=np.int16)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
    return ids


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
    return model


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
        trainer.model_accepts_loss_kwargs = False  # or it passes num_items_in_batch down to layers that refuse it
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    model.eval()


def _as_inputs(batch: Sequence[Ids]) -> dict[str, Tensor]:
    """No mask: padding stands behind the text, where a causal model does not look, and has no label."""
    ids = torch.from_numpy(batch[0].astype(np.int64))
    return {"input_ids": ids, "labels": ids.masked_fill(ids == PAD, -100)}


# ------------------------------------------------------------------------------------------------------------ measures


@dataclass(frozen=True)
class Choice:
    """One word that the grammar forces, and whether the model finds it likelier than all that would be wrong."""

    kind: str
    has_attractor: bool
    is_right: bool


@torch.inference_mode()
def read(model: GPT2LMHeadModel, texts: Sequence[GrammarText]) -> tuple[float, list[Choice]]:
    """Nats of all texts, their ends included, and the choices at all forced words."""
    vocabulary = gpt2_tokenizer().get_vocab()
    nats, choices = 0.0, list[Choice]()
    ordered = sorted(texts, key=lambda text: text.document.n_words)
    for start in range(0, len(ordered), 64):
        group = ordered[start : start + 64]
        ids = torch.from_numpy(padded([token_ids(text, vocabulary) for text in group]).astype(np.int64))
        log_probs = model(input_ids=ids, use_cache=False).logits.double().log_softmax(dim=-1)[:, :-1]
        of_next = log_probs.gather(-1, ids[:, 1:, None]).squeeze(-1)
        nats -= float(of_next[ids[:, 1:] != PAD].sum())
        for row, text in zip(log_probs, group, strict=True):
            choices += [chosen(row, forced, vocabulary) for forced in text.forced]
    return nats, choices


def chosen(log_probs: Float[Tensor, "token form"], forced: Forced, vocabulary: dict[str, int]) -> Choice:
    """Row i of `log_probs` predicts word i."""
    right, *wrong = (float(log_probs[forced.word, vocabulary[form.lower()]]) for form in (forced.right, *forced.wrong))
    return Choice(forced.kind, forced.has_attractor, right > max(wrong))


def language_figures(model: GPT2LMHeadModel, texts: Sequence[GrammarText]) -> tuple[dict[str, float], dict[str, int]]:
    """Loss beside the grammar's own and shares of right choices; and how many choices there are."""
    nats, choices = read(model, texts)
    tokens = sum(text.document.n_words + 1 for text in texts)
    loss, grammar = nats / tokens, -sum(text.log_probability for text in texts) / tokens
    groups = {
        "agreement": [choice for choice in choices if choice.kind == "verb number"],
        "reference": [choice for choice in choices if choice.kind in REFERENCE],
        **{kind: [choice for choice in choices if choice.kind == kind] for kind in REFERENCE},
    }
    for name in ("agreement", "reference"):
        groups[f"{name}_attractor"] = [choice for choice in groups[name] if choice.has_attractor]
    shares = {name: share_right(group) for name, group in groups.items()}
    counts = {name: len(group) for name, group in groups.items()}
    return {"loss": loss, "grammar_loss": grammar, "excess": loss - grammar, **shares}, counts


def share_right(choices: Sequence[Choice]) -> float:
    return sum(choice.is_right for choice in choices) / len(choices) if choices else math.nan


def head_figures(
    model: GPT2LMHeadModel, texts: Sequence[GrammarText], ranked: int
) -> tuple[dict[str, float], dict[str, str]]:
    """What the heads do; and of every relation its best head and the verdict on it."""
    tokenizer = gpt2_tokenizer()
    documents = [text.document for text in texts]
    profile = headlens.profile(model, documents, tokenizer=tokenizer)
    assert profile.evidence is not None
    tested = relations_tested(profile.evidence)
    found = [row for row in tested if row.verdict in (ABOVE, INFORMED)]  # above all baselines that know positions
    patterns = headlens.collect(model, tokenizer, [document.text for document in documents[:ranked]], "probs")
    ranks = [effective_rank(torch.from_numpy(one.probs)).mean() for one in patterns]
    figures = {
        "relations": len(found),
        "relation_heads": len({row.name for row in found}),
        "relations_tested": len(tested),
        "entropy": float(profile.scores["surface.entropy"].mean()),
        "rank_qk": float(effective_rank(query_key_matrices(model)).mean()),
        "rank_attention": float(torch.stack(ranks).mean()),
    }
    return figures, {row.relation: f"{row.name}: {row.verdict}" for row in tested}


def relations_tested(evidence: Evidence) -> list[RelationEvidence]:
    """Dependencies and kinds of mentions with enough decisions, each once: subtypes are part of their relation."""
    return [
        row
        for row in evidence.relations
        if row.verdict != TOO_FEW
        and (row.relation in MENTIONS or not (row.relation in SUMS or ":" in row.relation or "[" in row.relation))
    ]


def effective_rank(matrices: Float[Tensor, "*lead row column"]) -> Float[Tensor, "*lead"]:
    """exp of the entropy of the singular values as shares of their sum (Roy and Vetterli 2007): n for n equal ones."""
    values = torch.linalg.svdvals(matrices.double())
    shares = values / values.sum(dim=-1, keepdim=True)
    return torch.special.entr(shares).sum(dim=-1).exp()


@torch.no_grad()
def query_key_matrices(model: GPT2LMHeadModel) -> Float[Tensor, "layer head hidden hidden"]:
    """W_Q W_K^T of every head, by which it matches what it reads; its rank is at most the head's width."""
    return torch.stack([_query_key(mha) for mha in _layers(model)])


def _query_key(mha: MultiHeadAttention) -> Float[Tensor, "head hidden hidden"]:
    q = mha.q_proj.weight.unflatten(0, (mha.num_heads, mha.head_dim))
    k = mha.k_proj.weight.unflatten(0, (mha.num_kv_heads, mha.head_dim))
    k = k.repeat_interleave(mha.num_heads // mha.num_kv_heads, dim=0)
    return q.transpose(-1, -2) @ k


def _layers(model: GPT2LMHeadModel) -> Iterator[MultiHeadAttention]:
    for layer, block in enumerate(model.transformer.h):
        replaced = getattr(block.attn, "mha", None)
        yield MultiHeadAttention.from_huggingface(model, layer) if replaced is None else replaced


@torch.inference_mode()
def cache_bytes(model: GPT2LMHeadModel) -> float:
    """Bytes of keys and values that the model keeps for one token, in the precision of its weights."""
    tokens = 8
    cache = model(input_ids=torch.full((1, tokens), END), use_cache=True).past_key_values
    return sum(part.nbytes for layer in cache.layers for part in (layer.keys, layer.values)) / tokens


# ---------------------------------------------------------------------------------------------------------------- runs


def run(plan: Plan, design: Design, batches: Sequence[Ids], path: Path) -> dict[str, Any]:
    """Train one model, measure it, and write it down."""
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    start = perf_counter()
    model = build_model(plan, design)
    train(model, batches, plan, design.seed)
    trained = perf_counter()
    texts = held_out_texts(plan.held_out)
    language, decisions = language_figures(model, texts)
    heads, verdicts = head_figures(model, texts[: plan.annotated], plan.ranked)
    parameters = sum(weight.numel() for weight in model.parameters())
    result = {
        **identity(plan, design),
        "figures": {**language, **heads, "parameters": parameters, "cache_bytes": cache_bytes(model)},
        "decisions": decisions,
        "verdicts": verdicts,
        "training_tokens": sum(int((batch != PAD).sum()) for batch in batches),
        "training_seconds": trained - start,
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
