"""The model cards of the two small models that headlens carries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_CARD = """\
---
license: apache-2.0
language: en
library_name: transformers
---

# {name}

A {what} of {layers} layers with {heads} heads each and {parameters:,} parameters. It knows one small language well, the
English of `headlens.corpora.grammar`: it was trained from random weights on texts of that grammar and on random words,
on nothing else. headlens carries it so that examples and tests have a model that can do something and need no download.
It loads with stock transformers:

```python
from headlens.models import bundled_path
from transformers import {stock}

model = {stock}.from_pretrained(bundled_path("{name}"))
```

## How it was made

```bash
python scripts/train_tiny.py {name} --out headlens/bundled/{name}
```

{steps:,} steps of {rows} rows of {positions} tokens with transformers' Trainer on a CPU: AdamW, learning rate {rate:g}
with a warm-up and a cosine decay, weight decay 0.01, no dropout, products in bfloat16, weights in float32. Of the rows,
{random:.0%} are no text but random words of which parts come again. In {joined:.0%} of the rows of text, a text sees
{others} in the row; in the rest it stands alone. {task}

Every form of the grammar is a token, lower-cased; so is "'s". {frame}

## What it has learnt

On {texts:,} texts of the grammar that it had not seen:

{table}

{reading} "Attractor": between the word and what it agrees with stands a noun or pronoun that asks for another form. The
same figures are in `evaluation.json`.

## Limits

It knows {words} English words and none of their meanings; any other word is unknown to it, and the embedding of the
unknown token was never trained. It reads {positions} tokens at most. Few texts of the grammar have more than 80: later
positions were seen in rows of several texts and of random words only. What its heads do tells something of this model
and of the methods that are tried on it, and nothing of larger ones.

## Licence

Apache-2.0, as headlens.
"""

# What the card says of a model that predicts what comes next, and of one that fills gaps
_NEXT = {
    "what": "GPT-2",
    "others": "those before it",
    "task": (
        "Of random words, only those that come again count. In the first {only_random:.0%} of the steps there is no "
        "text: all rows are random words, drawn from {few}, and only the first {first_layers} layers learn. Under "
        "these conditions an induction head forms within minutes. From {taught_from:.0%} of the steps on, one head, "
        "{taught}, is taught to attend to earlier copies of a word, by a term of the loss (as Strubell et al. 2018 "
        "teach a head syntax); no such head forms by itself in so small a model. What the other heads do, they came to "
        "do without being told."
    ),
    "frame": (
        "Unlike GPT-2's own tokenizer, this one puts `<|endoftext|>` before a text, because the model was trained so."
    ),
    "reading": (
        "Perplexity is that of a token, with the end of a text counted as one. The grammar's own is that of the "
        "derivations of these texts, so the best model has at most that. Right: given what stands before it, the one "
        "form that the grammar allows is more probable than each form that it excludes. Induction: mean attention from "
        "a word to the word behind its first occurrence, in 50 random words that come twice."
    ),
}
_GAPS = {
    "what": "BERT",
    "others": "those before and behind it",
    "task": (
        "It learns to tell {masked:.0%} of the words, and {masked_agreeing:.0%} of those of which the grammar leaves "
        "one form; 80% of these are masked, 10% replaced by another word, and 10% stay."
    ),
    "frame": "A text stands between `[CLS]` and `[SEP]`.",
    "reading": (
        "Right: with the word masked, the one form that the grammar allows is more probable than each form that it "
        "excludes."
    ),
}


def card(name: str, stock: str, facts: dict[str, Any], figures: dict[str, Any]) -> str:
    """Markdown: what a model is and how it was made (`facts`), and the figures of its evaluation."""
    words = {key: text.format(**facts) for key, text in (_NEXT if "perplexity" in figures else _GAPS).items()}
    table = "\n".join(["| | figure | of |", "| --- | --- | --- |", *_rows(figures)])
    return _CARD.format(name=name, stock=stock, table=table, texts=figures["texts"], **words, **facts)


def _rows(figures: dict[str, Any]) -> Iterator[str]:
    if "perplexity" in figures:
        of = f"{figures['tokens']:,} tokens"
        yield f"| perplexity | {figures['perplexity']:.2f} | {of} |"
        yield f"| the grammar's own | {figures['perplexity of the grammar']:.2f} | {of} |"
        yield f"| best induction head, {figures['induction']['head']} | {figures['induction']['attention']:.2f} | |"
    for kind, share in figures["forced words"].items():
        yield f"| {kind}, right | {share['right']:.1%} | {share['of']:,} |"
