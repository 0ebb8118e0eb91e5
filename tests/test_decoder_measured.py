"""Real weights of a grouped decoder: whole key/value groups of SmolLM2 taken out, without training.

Four windows of 256 tokens rank the groups (half a story, half web text), 118 give the means that are kept, 32 others,
of the end of that story and of one never seen, are asked: perplexity 38.7 with all heads; 47.7, 60.3 and 118 without
a random 10, 20 and 40% of the groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from measured_decoder import perplexity, read_windows

from headlens.importance.leave_one_out import leave_one_out
from headlens.importance.objectives import kl_distortion, token_logits
from headlens.models import LoadedModel, load_whole, network_of
from headlens.plans import lowest
from headlens.surgery import apply_plan, mean_contexts, present_plan

pytestmark = pytest.mark.measured


@pytest.fixture(autouse=True)
def _all_cores() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def whole(smollm2: LoadedModel) -> LoadedModel:
    return load_whole("smollm2", check=False)


def test_whole_groups_are_taken_out(whole: LoadedModel, data_folder: Path) -> None:
    text = read_windows(whole, data_folder)
    network = network_of(whole.model)
    means = mean_contexts(network, text.fitted)
    judge = kl_distortion(network, text.chosen, token_logits(whole.model))
    found = leave_one_out(network, judge, ablation="mean", unit="group", means=means)
    base = present_plan(network)
    assert perplexity(whole, whole.model, text.asked) == pytest.approx(38.72, rel=0.005)
    for share, most in ((0.1, 41), (0.2, 44), (0.4, 60)):
        plan = lowest(found.values, base, remove=share, unit="group")
        assert len(plan.removed) == round(270 * share)
        found_there = perplexity(whole, apply_plan(whole.model, plan, fill=means), text.asked)
        print(f"{share:.0%} of the groups removed: perplexity {found_there:.2f}")
        assert found_there <= most
