"""Real weights and real text: what fewer key/value heads cost, without training and after a short healing.

MiniLM, 12 heads a layer: distortion of sentence vectors, and Spearman's rho with human similarity (.9134 with all of
them; .4629 and .811 with no attention at all). SmolLM2, 3 key/value heads: perplexity (38.7; 585).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
import transformers
from measured_decoder import Windows, perplexity, read_windows
from measured_minilm import Real, read_minilm
from transformers import PreTrainedModel

from headlens.calibration import judged
from headlens.conversion.allocate import allocated
from headlens.conversion.carriers import converted
from headlens.conversion.moments import Moments, moments_of
from headlens.conversion.recipes import MEAN_POOLING, Recipe, converted_layers
from headlens.conversion.weights import read_layers
from headlens.healing import heal
from headlens.importance.inputs import TextBatch, text_batches
from headlens.models import LoadedModel, load_whole
from headlens.surgery import refit
from headlens.surgery.checkpoint import save_pruned

pytestmark = pytest.mark.measured

SHARED = Recipe("svd", "cheapest", repaired=False)
LEAST_DAMAGED = (5, 6, 7, 14, 15, 16, 17, 21, 22, 24, 25, 26, 27, 28, 29)  # one at a time, by the text that chooses


@pytest.fixture(autouse=True)
def _all_cores() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


# -------------------------------------------------------------------------------------------------------------- MiniLM


@pytest.fixture(scope="module")
def real(data_folder: Path, minilm_path: Path) -> Real:
    return read_minilm(data_folder, minilm_path)


@pytest.fixture(scope="module")
def fitted(real: Real) -> list[TextBatch]:
    """1,500 sentences that neither choose nor measure."""
    return text_batches(real.others, real.loaded.require_tokenizer())


@pytest.fixture(scope="module")
def moments(real: Real, fitted: list[TextBatch]) -> list[Moments]:
    return moments_of(real.loaded.model, fitted)


def shared(real: Real, moments: list[Moments], kv_heads: int, recipe: Recipe = SHARED) -> PreTrainedModel:
    layers = converted_layers(read_layers(real.loaded.model), [kv_heads] * 6, recipe, moments)
    return converted(real.loaded.model, layers, stock=False)


@pytest.mark.parametrize(("kv_heads", "measured"), [(6, 0.3316), (4, 0.4295), (3, 0.4608), (2, 0.4908), (1, 0.5032)])
def test_plain_mean_pooling_is_what_others_measured(real: Real, kv_heads: int, measured: float) -> None:
    layers = converted_layers(read_layers(real.loaded.model), [kv_heads] * 6, MEAN_POOLING, None)
    model = converted(real.loaded.model, layers)
    print(f"{kv_heads} key/value heads: Spearman {real.similarity_of(model):.4f}")
    assert real.distortion_of(model) == pytest.approx(measured, rel=0.005)


@pytest.mark.parametrize(
    ("kv_heads", "distortion", "similarity"),
    [(6, 0.045, 0.907), (4, 0.066, 0.906), (2, 0.112, 0.899), (1, 0.158, 0.889)],
)
def test_shared_factors_and_a_refit(
    real: Real, moments: list[Moments], fitted: list[TextBatch], kv_heads: int, distortion: float, similarity: float
) -> None:
    model = refit(shared(real, moments, kv_heads), real.loaded.model, fitted)
    found = real.distortion_of(model), real.similarity_of(model)
    print(f"{kv_heads} key/value heads: distortion {found[0]:.4f}, Spearman {found[1]:.4f}")
    assert found[0] <= distortion
    assert found[1] >= similarity


@pytest.mark.parametrize(("total", "distortion", "similarity"), [(24, 0.0567, 0.904), (12, 0.0972, 0.899)])
def test_a_budget_over_layers_is_worth_more_than_the_same_number_in_each(
    real: Real, moments: list[Moments], fitted: list[TextBatch], total: int, distortion: float, similarity: float
) -> None:
    """As many as 4 and 2 a layer: a tenth nearer than the best that was measured with the same number in each."""
    original, layers = real.loaded.model, read_layers(real.loaded.model)

    def in_layers(counts: Sequence[int]) -> PreTrainedModel:
        return converted(original, converted_layers(layers, counts, SHARED, moments), stock=False)

    damages = [
        {
            count: judged(in_layers([count if other == layer else 12 for other in range(6)]), real.scored)
            for count in (12, 6, 4, 3, 2, 1)
        }
        for layer in range(6)
    ]
    counts = allocated(damages, total)
    model = refit(in_layers(counts), original, fitted)
    found = real.distortion_of(model), real.similarity_of(model)
    print(f"{counts}: distortion {found[0]:.4f}, Spearman {found[1]:.4f}")
    assert sum(counts) <= total
    assert found[0] <= distortion
    assert found[1] >= similarity


def test_a_whole_conversion_takes_less_than_90_seconds(real: Real, fitted: list[TextBatch]) -> None:
    start = time.perf_counter()
    refit(shared(real, moments_of(real.loaded.model, fitted), 2), real.loaded.model, fitted)
    seconds = time.perf_counter() - start
    print(f"{seconds:.0f} s")
    assert seconds < 90, "is the machine quiet?"


@pytest.mark.parametrize(("is_pooled", "level"), [(True, 0.116), (False, 0.054)])
def test_a_short_healing(
    real: Real, moments: list[Moments], fitted: list[TextBatch], is_pooled: bool, level: float
) -> None:
    """300 steps of 32 sentences; within a tenth of what a training loop of our own reached."""
    teacher = real.loaded.model
    student = shared(real, moments, 4, MEAN_POOLING if is_pooled else SHARED)
    student = student if is_pooled else refit(student, teacher, fitted)
    healed = heal(
        student, teacher, real.others, real.loaded.require_tokenizer(), steps=300, max_length=32, held_out=real.held
    )
    found = real.distortion_of(healed.model)
    print(f"{'mean pooling' if is_pooled else 'shared factors'}: {real.distortion_of(student):.4f} to {found:.4f}")
    assert found <= 1.1 * level


# ------------------------------------------------------------------------------------------------------------- SmolLM2


@pytest.fixture(scope="module")
def whole(smollm2: LoadedModel) -> LoadedModel:
    return load_whole("smollm2", check=False)


@pytest.fixture(scope="module")
def text(whole: LoadedModel, data_folder: Path) -> Windows:
    return read_windows(whole, data_folder)


@pytest.fixture(scope="module")
def decoder_moments(whole: LoadedModel, text: Windows) -> list[Moments]:
    return moments_of(whole.model, text.fitted)


def one_each(
    whole: LoadedModel, moments: list[Moments], layers: tuple[int, ...] = tuple(range(30)), recipe: Recipe = SHARED
) -> PreTrainedModel:
    counts = [1 if layer in layers else 3 for layer in range(30)]
    return converted(whole.model, converted_layers(read_layers(whole.model), counts, recipe, moments))


def test_one_key_value_head_of_three(
    whole: LoadedModel, text: Windows, decoder_moments: list[Moments], tmp_path: Path
) -> None:
    """Means, plain or aligned, are worse than no attention at all; and the result loads where headlens is not known."""
    model = one_each(whole, decoder_moments)
    merged = perplexity(whole, model, text.asked)
    fitted = refit(model, whole.model, text.fitted)
    repaired = perplexity(whole, fitted, text.asked)
    pooled = perplexity(whole, one_each(whole, decoder_moments, recipe=MEAN_POOLING), text.asked)
    print(f"perplexity {merged:.1f}, refitted {repaired:.1f}; plain means {pooled:.0f}")
    assert merged <= 140
    assert repaired <= 80
    assert pooled > 585
    folder = save_pruned(fitted, tmp_path / "one", manifest={"source": whole.provenance})
    again = transformers.LlamaForCausalLM.from_pretrained(folder)
    assert again.config.num_key_value_heads == 1
    ids = text.asked[0].input_ids[:1]
    with torch.no_grad():
        assert torch.equal(again(input_ids=ids).logits, fitted(input_ids=ids).logits)


def test_half_of_the_layers(whole: LoadedModel, text: Windows, decoder_moments: list[Moments]) -> None:
    model = one_each(whole, decoder_moments, LEAST_DAMAGED)
    fitted = refit(model, whole.model, text.fitted, layers=LEAST_DAMAGED)
    found = perplexity(whole, fitted, text.asked)
    print(f"perplexity {perplexity(whole, model, text.asked):.1f}, refitted {found:.1f}")
    assert found <= 47
