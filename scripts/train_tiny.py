"""Train the two small models that headlens carries, and measure what they have learnt.

    python scripts/train_tiny.py tiny-gpt2 --out headlens/bundled/tiny-gpt2
    python scripts/train_tiny.py tiny-bert --out headlens/bundled/tiny-bert

Nothing is downloaded, and a call after a break goes on from the last checkpoint. The language of the models is that of
headlens.corpora.grammar, of which every fact is known: a perplexity that no good model exceeds, and every verb and
pronoun of which the grammar leaves one form only. A part of what they read is no language but random words over and
over, which teaches them to look for what came before (Olsson et al. 2022). Each model gets a model card with figures.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from tiny_card import card
from tiny_evaluation import Figures, evaluate_bert, evaluate_gpt2
from tiny_taught_head import TAUGHT_FROM, TAUGHT_HEAD, TeachesDuplicates
from tiny_tokenizers import FIRST_WORD, POSITIONS, bert_tokenizer, gpt2_tokenizer
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import get_last_checkpoint

from headlens.corpora.grammar import WORD_FORMS, GrammarText, grammar_texts
from headlens.files import atomic_write

Ints: TypeAlias = NDArray[np.int64]

LAYERS, HEADS, HIDDEN = 4, 8, 192
SPREAD = 0.06  # of GPT-2's first weights; with the usual 0.02, a model as narrow as this one learns to copy much later
IGNORED = -100  # a label that counts for nothing, as transformers has it

# Seeds of the grammar: each row of texts has one of its own, and those below the first are for evaluation
TRAINING_SEEDS = 1_000_000
EVALUATION_SEED = 0
EVALUATION_TEXTS = 2000

JOINED = 0.2  # share of the rows of text whose texts see each other
PERIODS, GAP = (8, 64), 6  # how many words come again; at most so many others stand between
MASKED, AS_MASK, AS_OTHER = 0.15, 0.8, 0.1  # as Devlin et al. 2019, sec. 3.1
MASKED_AGREEING = 0.5  # of the words of which the grammar leaves one form, or a small model learns little of them

# Rows are texts, or no text but random words that come again. An induction head forms within minutes if there is
# nothing to learn but to look for what came before, in short stretches of few different words that start at position 0,
# and if no more than the two layers that it takes are there. So GPT-2 starts with that, and learns next to do the same
# with all words at all positions. Parts of the training are counted from 0 to 1.
FIRST_UNTIL, NEXT_UNTIL = 0.12, 0.25
RANDOM_FIRST, RANDOM_NEXT, RANDOM = 1.0, 0.6, 0.2  # share of the rows; BERT has the last from the start
FEW_WORDS, ALL_WORDS_FROM = 32, 0.3  # different words at first, and the part from which on they are all
SHORT = 64  # tokens of a short stretch
FIRST_LAYERS = 2


# ----------------------------------------------------------------------------------------------------------------- rows


class Rows(Dataset):
    """What a model learns from, in rows of POSITIONS tokens. Row number i is made when it is asked for, always alike.

    `input_ids`, `labels`, `position_ids` and `text`, each [token]; tokens see those of the same `text` only.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, rows: int, seed: int) -> None:
        self.tokenizer, self.rows, self.seed = tokenizer, rows, seed
        self.is_causal = tokenizer.mask_token_id is None

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        source = np.random.default_rng((self.seed, index))
        part = index / self.rows if self.is_causal else 1.0
        agrees = np.zeros(POSITIONS, dtype=bool)
        if source.random() < share_of_random(part):
            is_short = part < FIRST_UNTIL or (self.is_causal and source.random() < 0.5)
            ids, text, is_new = self._random(source, SHORT if is_short else POSITIONS, words_known(part))
            places = _places(text) if part < FIRST_UNTIL else np.arange(POSITIONS)
        else:
            ids, text, agrees = self._texts(index)
            text = np.zeros_like(text) if source.random() < JOINED else text
            places, is_new = _places(text), np.zeros(POSITIONS, dtype=bool)
        labels = ids.copy()
        if self.is_causal:
            labels[is_new] = IGNORED  # nothing tells a random word before it comes again
        else:
            self._mask(ids, labels, agrees, source)
        row = {"input_ids": ids, "labels": labels, "position_ids": places, "text": text}
        return {name: torch.from_numpy(values) for name, values in row.items()}

    def _texts(self, index: int) -> tuple[Ints, Ints, NDArray[np.bool_]]:
        """Texts one after the other until the row is full: ids, the text that each token is of, and whether the grammar
        leaves one form of it. Of what is cut at the end, a model that looks ahead could not know the rest, so it gets
        padding there."""
        ids, text = np.full(POSITIONS, self.tokenizer.pad_token_id), np.full(POSITIONS, -1)
        agrees = np.zeros(POSITIONS, dtype=bool)
        start = 0
        for number, told in enumerate(grammar_texts(TRAINING_SEEDS * (1 + self.seed) + index)):
            piece = self.tokenizer(told.document.text)["input_ids"]
            stop = start + len(piece)
            if stop > POSITIONS and not self.is_causal:
                break
            ids[start:stop], text[start:stop] = piece[: POSITIONS - start], number
            places = start + 1 + np.array([forced.word for forced in told.forced], dtype=np.int64)  # 1 for the frame
            agrees[places[places < POSITIONS]] = True
            if stop >= POSITIONS:
                break
            start = stop
        return ids, text, agrees

    def _random(self, source: np.random.Generator, length: int, known: int) -> tuple[Ints, Ints, NDArray[np.bool_]]:
        """Stretches of so many tokens, out of that many different words: ids, the stretch that each token is of, and
        whether it cannot be told from what stands before it in its stretch."""
        stretches = [self._stretch(source, length, known) for _ in range(POSITIONS // length)]
        ids, is_new = (np.concatenate(of_all) for of_all in zip(*stretches, strict=True))
        return ids, np.repeat(np.arange(len(stretches)), length), is_new

    def _stretch(self, source: np.random.Generator, length: int, known: int) -> tuple[Ints, NDArray[np.bool_]]:
        """Random words, then parts of them again and again with other words between; half of the stretches within what
        the tokenizer puts around a text."""
        frame = self.tokenizer("")["input_ids"] if source.random() < 0.5 else []
        period = int(source.integers(PERIODS[0], min(PERIODS[1], length // 2 - 1, known // 2) + 1))
        # the words that are known at first must be others than the first of the alphabet
        order = FIRST_WORD + np.random.default_rng(self.seed).permutation(len(self.tokenizer) - FIRST_WORD)
        words, others = np.split(source.permutation(order[:known]), [period])
        ids, is_new = [*frame[:1], *words], [True] * (len(frame[:1]) + period)
        while len(ids) < length:
            between = others[: source.integers(1, GAP + 1)] if source.random() < 0.7 else others[:0]
            start = int(source.integers(0, period - 2))
            again = words[start : source.integers(start + 3, period + 1)]
            ids += [*between, *again]
            is_new += [True] * (len(between) + 1) + [False] * (len(again) - 1)
            others = source.permutation(others)
        ids[length - len(frame[1:]) :] = frame[1:]
        return np.array(ids[:length]), np.array(is_new[:length])

    def _mask(self, ids: Ints, labels: Ints, agrees: NDArray[np.bool_], source: np.random.Generator) -> None:
        """Hide some of the words in `ids`, and leave `labels` for these only."""
        is_word = ~np.isin(ids, self.tokenizer.all_special_ids)
        chosen = is_word & (source.random(ids.size) < np.where(agrees, MASKED_AGREEING, MASKED))
        labels[~chosen] = IGNORED
        fate = source.random(ids.size)
        ids[chosen & (fate < AS_MASK)] = self.tokenizer.mask_token_id
        others = chosen & (fate >= AS_MASK) & (fate < AS_MASK + AS_OTHER)
        ids[others] = source.integers(FIRST_WORD, len(self.tokenizer), int(others.sum()))


def share_of_random(part: float) -> float:
    if part < FIRST_UNTIL:
        return RANDOM_FIRST
    return RANDOM_NEXT if part < NEXT_UNTIL else RANDOM


def words_known(part: float) -> int:
    """How many different words random rows are made of; the others come bit by bit."""
    every = len(WORD_FORMS) - 1  # without 's
    grown = (part - FIRST_UNTIL) / (ALL_WORDS_FROM - FIRST_UNTIL)
    return round(FEW_WORDS * (every / FEW_WORDS) ** min(max(grown, 0), 1))


def _places(text: Ints) -> Ints:
    """Positions that start anew with every text."""
    index = np.arange(text.size)
    is_first = np.diff(text, prepend=text[0] - 1) != 0
    return index - np.maximum.accumulate(np.where(is_first, index, 0))


def collate(rows: Sequence[dict[str, Tensor]], *, is_causal: bool) -> dict[str, Tensor]:
    """A batch of rows, with a mask [batch, 1, query, key] that says which tokens see each other."""
    batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    text = batch.pop("text")
    seen = text[:, None, :, None] == text[:, None, None, :]
    batch["attention_mask"] = seen.tril() if is_causal else seen
    return batch


# ------------------------------------------------------------------------------------------------------------- training


def train(recipe: Recipe, checkpoints: Path, *, steps: int, batch_size: int, seed: int) -> PreTrainedModel:
    """The model after `steps` steps; goes on from the last checkpoint in that folder, if it holds one."""
    tokenizer = recipe.tokenizer()
    torch.manual_seed(seed)
    model = recipe.model(tokenizer)
    settings = TrainingArguments(
        output_dir=str(checkpoints),
        max_steps=steps,
        per_device_train_batch_size=batch_size,
        learning_rate=recipe.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=min(100, steps // 10),
        weight_decay=0.01,
        adam_beta2=0.98,
        optim="adamw_torch_fused",
        bf16=True,  # products only; the weights stay in float32
        use_cpu=True,
        seed=seed,
        save_steps=min(250, max(1, steps // 2)),
        save_total_limit=1,
        logging_steps=min(50, steps),
        disable_tqdm=True,
        report_to="none",
        remove_unused_columns=False,
        train_sampling_strategy="sequential",  # rows are random as they are, and change as the training goes on
    )
    rows = Rows(tokenizer, steps * batch_size, seed)
    grows = [UpperLayersLater(round(FIRST_UNTIL * steps))] if rows.is_causal else []
    kind = TeachesDuplicates if rows.is_causal else Trainer
    trainer = kind(model, settings, partial(collate, is_causal=rows.is_causal), rows, callbacks=grows)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(checkpoints)) if checkpoints.is_dir() else None)
    return model


class UpperLayersLater(TrainerCallback):
    """Layers from FIRST_LAYERS on, which add nothing to begin with, learn from this step on."""

    def __init__(self, first_step: int) -> None:
        self.first_step = first_step

    def on_step_begin(self, args: Any, state: TrainerState, control: Any, model: Any = None, **others: Any) -> None:
        model.transformer.h[FIRST_LAYERS:].requires_grad_(state.global_step >= self.first_step)


def _gpt2(tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=POSITIONS,
        n_embd=HIDDEN,
        n_layer=LAYERS,
        n_head=HEADS,
        initializer_range=SPREAD,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = GPT2LMHeadModel(config)
    for block in model.transformer.h[FIRST_LAYERS:]:
        torch.nn.init.zeros_(block.attn.c_proj.weight)
        torch.nn.init.zeros_(block.mlp.c_proj.weight)
    return model


def _bert(tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    config = BertConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=POSITIONS,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * HIDDEN,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=tokenizer.pad_token_id,
    )
    return BertForMaskedLM(config)


# ------------------------------------------------------------------------------------------------------------- recipes


@dataclass(frozen=True)
class Recipe:
    """One of the two models: how it is made, and how it is judged."""

    tokenizer: Callable[[], PreTrainedTokenizerFast]
    model: Callable[[PreTrainedTokenizerFast], PreTrainedModel]  # untrained
    evaluate: Callable[[PreTrainedModel, PreTrainedTokenizerFast, Sequence[GrammarText]], Figures]
    learning_rate: float
    steps: int


RECIPES = {
    "tiny-gpt2": Recipe(gpt2_tokenizer, _gpt2, evaluate_gpt2, learning_rate=3e-3, steps=4000),
    "tiny-bert": Recipe(bert_tokenizer, _bert, evaluate_bert, learning_rate=2e-3, steps=5600),
}


def main(
    name: Annotated[str, typer.Argument(help=f"Which one: {', '.join(RECIPES)}.")],
    out: Annotated[Path, typer.Option(help="Folder for the model.")],
    checkpoints: Annotated[Path | None, typer.Option(help="Folder to go on from; default: build/NAME.")] = None,
    steps: Annotated[int | None, typer.Option(help="Fewer for a try; default: those of the bundled model.")] = None,
    batch_size: Annotated[int, typer.Option(help=f"Rows of {POSITIONS} tokens a step.")] = 8,
    seed: Annotated[int, typer.Option(help="Of the weights and of the texts.")] = 0,
    texts: Annotated[int, typer.Option(help="How many unseen texts to judge it by.")] = EVALUATION_TEXTS,
) -> None:
    """Train, save, judge what was saved, and write a model card."""
    if name not in RECIPES:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(RECIPES)}.")
    recipe = RECIPES[name]
    steps = recipe.steps if steps is None else steps
    model = train(recipe, checkpoints or Path("build") / name, steps=steps, batch_size=batch_size, seed=seed)
    save(model, recipe.tokenizer(), out)
    model, tokenizer = type(model).from_pretrained(out), AutoTokenizer.from_pretrained(out)
    unseen = list(islice(grammar_texts(EVALUATION_SEED), texts))
    figures = recipe.evaluate(model.eval(), tokenizer, unseen)
    facts = facts_of(model, steps=steps, rows=batch_size, rate=recipe.learning_rate)
    write_text(out / "evaluation.json", json.dumps(figures, indent=2) + "\n")
    write_text(out / "README.md", card(name, type(model).__name__, facts, figures))
    print(f"{out}: {json.dumps(figures)}")


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """What stock from_pretrained reads."""
    model.config.use_cache = True  # which training switches off
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)  # written for its owner only


def facts_of(model: PreTrainedModel, **training: float) -> dict[str, Any]:
    """What a model card says of the model and of how it was made."""
    return {
        "layers": model.config.num_hidden_layers,
        "heads": model.config.num_attention_heads,
        "parameters": model.num_parameters(),
        "positions": POSITIONS,
        "words": len(WORD_FORMS),
        "joined": JOINED,
        "random": RANDOM,
        "masked": MASKED,
        "masked_agreeing": MASKED_AGREEING,
        "only_random": FIRST_UNTIL,
        "few": FEW_WORDS,
        "first_layers": FIRST_LAYERS,
        "taught": TAUGHT_HEAD,
        "taught_from": TAUGHT_FROM,
        **training,
    }


def write_text(path: Path, text: str) -> None:
    atomic_write(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


if __name__ == "__main__":
    typer.run(main)
