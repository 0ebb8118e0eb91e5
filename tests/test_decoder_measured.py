"""Real weights of a grouped decoder: whole key/value groups of SmolLM2 taken out, without training.

Four windows of 256 tokens rank the groups (half a story, half web text), 118 give the means that are kept, 32 others,
of the end of that story and of one never seen, are asked: perplexity 38.7 with all heads; 47.7, 60.3 and 118 without
a random 10, 20 and 40% of the groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from headlens.importance.inputs import TextBatch, padded_batches
from headlens.importance.leave_one_out import leave_one_out
from headlens.importance.objectives import kl_distortion, token_logits
from headlens.models import LoadedModel, load_whole, network_of
from headlens.plans import lowest
from headlens.surgery import apply_plan, mean_contexts, present_plan

pytestmark = pytest.mark.measured

WINDOW = 256


@pytest.fixture(autouse=True)
def _all_cores() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def whole(smollm2: LoadedModel) -> LoadedModel:
    return load_whole("smollm2", check=False)


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


def test_whole_groups_are_taken_out(whole: LoadedModel, data_folder: Path) -> None:
    texts = data_folder / "eval" / "text"
    legend = (texts / "gutenberg-the_legend_of_sleepy_hollow.txt").read_text(encoding="utf-8")
    story = windows(legend, whole)
    other = windows((texts / "gutenberg-masque_of_the_red_death.txt").read_text(encoding="utf-8"), whole)
    web = windows(web_text(data_folder / "ud" / "en_ewt-ud-dev.conllu"), whole)
    fitted = padded_batches(story[:40] + web[:78], batch_tokens=4 * WINDOW)
    asked = padded_batches(windows(legend, whole, from_the_end=True)[-20:] + other[:12], batch_tokens=4 * WINDOW)
    assert sum(map(len, asked)) == 32

    network = network_of(whole.model)
    means = mean_contexts(network, fitted)
    judge = kl_distortion(network, padded_batches(story[:2] + web[:2]), token_logits(whole.model))
    found = leave_one_out(network, judge, ablation="mean", unit="group", means=means)
    base = present_plan(network)
    assert perplexity(whole, whole.model, asked) == pytest.approx(38.72, rel=0.005)
    for share, most in ((0.1, 41), (0.2, 44), (0.4, 60)):
        plan = lowest(found.values, base, remove=share, unit="group")
        assert len(plan.removed) == round(270 * share)
        found_there = perplexity(whole, apply_plan(whole.model, plan, fill=means), asked)
        print(f"{share:.0%} of the groups removed: perplexity {found_there:.2f}")
        assert found_there <= most
