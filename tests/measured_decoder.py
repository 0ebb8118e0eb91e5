"""SmolLM2 and the windows of 256 tokens that its levels are measured on.

118 windows, of a story's beginning and of web text, are fitted on; 4 of them choose; 32 others, of that story's end and
of one never seen, are asked: perplexity 38.7 with all heads, 585 with none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from headlens.importance.inputs import TextBatch, padded_batches
from headlens.models import LoadedModel

WINDOW = 256


@dataclass(frozen=True)
class Windows:
    fitted: Sequence[TextBatch]
    chosen: Sequence[TextBatch]
    asked: Sequence[TextBatch]


def read_windows(whole: LoadedModel, data_folder: Path) -> Windows:
    texts = data_folder / "eval" / "text"
    legend = (texts / "gutenberg-the_legend_of_sleepy_hollow.txt").read_text(encoding="utf-8")
    story = windows(legend, whole)
    other = windows((texts / "gutenberg-masque_of_the_red_death.txt").read_text(encoding="utf-8"), whole)
    web = windows(web_text(data_folder / "ud" / "en_ewt-ud-dev.conllu"), whole)
    asked = windows(legend, whole, from_the_end=True)[-20:] + other[:12]
    assert len(asked) == 32
    return Windows(
        padded_batches(story[:40] + web[:78], batch_tokens=4 * WINDOW),
        padded_batches(story[:2] + web[:2]),
        padded_batches(asked, batch_tokens=4 * WINDOW),
    )


def windows(text: str, loaded: LoadedModel, *, from_the_end: bool = False) -> list[list[int]]:
    ids = loaded.require_tokenizer()(text, add_special_tokens=False, verbose=False)["input_ids"]
    first = len(ids) % WINDOW if from_the_end else 0
    return [ids[start : start + WINDOW] for start in range(first, len(ids) - WINDOW + 1, WINDOW)]


def web_text(file: Path) -> str:
    documents: list[list[str]] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("# newdoc"):
            documents.append([])
        if line.startswith("# text = "):
            documents[-1].append(line.removeprefix("# text = "))
    return "\n\n".join(" ".join(sentences) for sentences in documents)


@torch.inference_mode()
def perplexity(loaded: LoadedModel, model: torch.nn.Module, asked: Sequence[TextBatch]) -> float:
    loss, tokens = 0.0, 0
    for batch in asked:
        logits = model(input_ids=batch.input_ids).logits[:, :-1].flatten(0, 1)
        wanted = batch.input_ids[:, 1:].flatten()
        loss += float(torch.nn.functional.cross_entropy(logits, wanted, reduction="sum"))
        tokens += len(wanted)
    return math.exp(loss / tokens)
