"""Sizes of the attention, whatever a family calls them."""

from __future__ import annotations

import pytest
import transformers

from headlens.errors import UnsupportedModel
from headlens.models import head_counts
from headlens.testing import FAMILIES, tiny_model

GROUPED = {"llama", "mistral", "qwen2", "qwen3", "gemma2"}
WIDTHS = {"qwen3": 10, "gemma2": 6, "t5": 6}  # where it is not hidden / heads


@pytest.mark.parametrize("family", FAMILIES)
def test_head_counts_of_every_family(family: str) -> None:
    kv_heads = 2 if family in GROUPED else 1 if family == "falcon" else 4
    sizes = {"layers": 3, "heads": 4, "kv_heads": kv_heads, "head_dim": WIDTHS.get(family, 8), "hidden": 32}
    assert head_counts(tiny_model(family).config) == sizes


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        # as published: gpt2, bart-large, t5-small, whisper-tiny, CLIP's text half, falcon-40b, DeepSeek-V3
        (transformers.GPT2Config(), [12, 12, 12, 64, 768]),
        (transformers.BartConfig(encoder_layers=12, decoder_layers=6), [12, 16, 16, 64, 1024]),
        (transformers.T5Config(), [6, 8, 8, 64, 512]),
        (transformers.WhisperConfig(encoder_layers=4, encoder_attention_heads=6, d_model=384), [4, 6, 6, 64, 384]),
        (transformers.CLIPConfig(), [12, 8, 8, 64, 512]),
        (transformers.GPTBigCodeConfig(multi_query=True), [12, 12, 1, 64, 768]),
        (transformers.GPTBigCodeConfig(multi_query=False), [12, 12, 12, 64, 768]),
        (
            transformers.FalconConfig(
                num_hidden_layers=60,
                num_attention_heads=128,
                num_kv_heads=8,
                hidden_size=8192,
                new_decoder_architecture=True,
            ),
            [60, 128, 8, 64, 8192],
        ),
        (transformers.DeepseekV3Config(), [61, 128, 128, 192, 7168]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_head_counts_of_published_configs(config: transformers.PreTrainedConfig, sizes: list[int]) -> None:
    assert list(head_counts(config).values()) == sizes


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            transformers.SwinConfig(),
            r"'swin' must give num_attention_heads as a whole number, got [\[(]3, 6, 12, 24[\])]",
        ),
        (transformers.MambaConfig(), "'mamba' must give num_attention_heads as a whole number, got None"),
        (transformers.GPT2Config(n_embd=770), "12 heads for a hidden size of 770"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_config_does_not_say_is_not_guessed(config: transformers.PreTrainedConfig, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        head_counts(config)
