"""The self-check passes on every family, and each of its laws fails when it is broken, and says where."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from transformers.masking_utils import AttentionMaskInterface
from transformers.models.bert import modeling_bert

from headlens.arch import SPECS, ArchSpec
from headlens.capture import NAME
from headlens.errors import CaptureError, SelfCheckFailed, UnsupportedModel
from headlens.records import LayerAttention
from headlens.replace import replace_attention
from headlens.selfcheck import Law, SelfCheck, check_model
from headlens.testing import FAMILIES, padded_inputs, tiny_model

capture_file, check_file = sys.modules["headlens.capture"], sys.modules["headlens.selfcheck"]
WATCHED = [family for family in FAMILIES if family not in ("deberta_v2", "gpt_neo", "falcon", "bloom")]
LAWS = [
    "every layer is reported once",
    "rows of probabilities sum to 1",
    "probabilities times values are the context",
    "headlens's attention equals the model's",
    "watching changes nothing",
    "heads' contributions and the bias are the layer's output",
    "padded equals unpadded",
]
SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 99}


def names(check: SelfCheck) -> list[str]:
    return [law.name for law in check.laws]


# --------------------------------------------------------------------------------------------------------- it passes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("family", WATCHED)
def test_every_family_passes_with_every_law(family: str, dtype: torch.dtype) -> None:
    check = check_model(tiny_model(family, dtype=dtype))
    assert check.passed
    assert check.layers == (9 if family in ("t5", "bart") else 3)
    assert names(check) == (LAWS[:-1] if family == "vit" else LAWS)  # images have no padding
    assert (check.unchecked == ()) == (family != "gemma2" or dtype == torch.float32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", ["bert", "modernbert", "gpt2", "qwen2", "gemma2", "t5", "bart"])
def test_half_precision_passes_also_in_deep_models(family: str, dtype: torch.dtype) -> None:
    check = check_model(tiny_model(family, dtype=dtype, layers=6))
    assert names(check) == LAWS


def test_replaced_layers_pass() -> None:
    model = tiny_model("gpt2")
    replace_attention(model)
    assert names(check_model(model)) == LAWS


def test_a_model_with_a_head_passes() -> None:
    model = hf.BertForMaskedLM(tiny_model("bert").config).eval()
    assert names(check_model(model)) == LAWS


def test_numbers_that_the_model_itself_does_not_have_are_not_compared() -> None:
    # transformers' eager float64 attention of Gemma 2 gives NaN in rows of padding, and so in all of that sentence
    model = tiny_model("gemma2", dtype=torch.float64)
    check = check_model(model)
    assert check.unchecked == ("the output where unwatched the model gives NaN (50% of it)",)
    assert check.line.endswith("; not checked: the output where unwatched the model gives NaN (50% of it)")
    both_padded = {name: values[1:] for name, values in padded_inputs().items()}
    check = check_model(model, both_padded | {"attention_mask": torch.tensor([[1] * 7 + [0] * 5, [1] * 4 + [0] * 8])})
    assert names(check) == [name for name in LAWS if name != "watching changes nothing"]
    assert "(100% of it)" in check.line


def test_learned_sinks_are_not_expected_to_sum_to_one() -> None:
    grouped = {"num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1}
    rotary = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "pad_token_id": 0}
    model = hf.GptOssModel(hf.GptOssConfig(**SIZE, **grouped, **rotary, bos_token_id=1, eos_token_id=2)).eval()
    for weight in model.parameters():
        weight.data.normal_(0, 0.2)
    check = check_model(model)
    assert names(check) == [name for name in LAWS if name != "rows of probabilities sum to 1"]
    assert check.unchecked == ("rows sum to 1 (the model has learned sinks)",)


def test_a_family_whose_projections_are_unknown_is_checked_in_all_else() -> None:
    model = hf.SplinterModel(hf.SplinterConfig(**SIZE, question_token_id=3)).eval()
    check = check_model(model)
    assert names(check) == [name for name in LAWS if not name.startswith("heads'")]
    assert check.unchecked == ("heads' contributions (output projection unknown)",)


def test_inputs_of_ones_own() -> None:
    inputs = padded_inputs()
    assert names(check_model(tiny_model("bert"), inputs)) == LAWS
    assert names(check_model(tiny_model("bert"), {"input_ids": inputs["input_ids"] % 40 + 5})) == LAWS[:-1]
    # padded on the left without position_ids: both sides of the comparison get them
    assert names(check_model(tiny_model("gpt2"), padded_inputs(side="left"))) == LAWS


@pytest.mark.parametrize("pad", [-1, 99, 5000])
def test_padding_that_is_no_token_is_read_as_the_first_one(pad: int) -> None:
    model = tiny_model("bert")
    model.config.pad_token_id = pad
    assert names(check_model(model)) == LAWS


@pytest.mark.parametrize("places", [2, 8])
@pytest.mark.parametrize("family", ["bert", "gpt2", "distilbert", "bart", "opt"])
def test_models_of_few_positions_get_shorter_texts(family: str, places: int) -> None:
    name = "n_positions" if family == "gpt2" else "max_position_embeddings"
    assert names(check_model(tiny_model(family, **{name: places}))) == LAWS


@pytest.mark.parametrize("pad", [0, 3])
def test_positions_that_padding_takes_are_no_room_for_text(pad: int) -> None:
    assert names(check_model(tiny_model("roberta", max_position_embeddings=11, pad_token_id=pad))) == LAWS
    with pytest.raises(UnsupportedModel, match="RobertaModel has no position for even one token"):
        check_model(tiny_model("roberta", max_position_embeddings=pad + 1, pad_token_id=pad))


@pytest.mark.parametrize("places", [80, check_file.STATES])  # also as many tokens as states to look across at
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_a_decoder_without_encoder_is_checked_in_its_cross_layers_too(family: str, places: int) -> None:
    check = check_model(looking_across(family, places))
    assert (check.layers, names(check)) == (6, LAWS)


def test_cross_layers_that_see_nothing_are_named() -> None:
    law, where, _ = failure(looking_across("gpt2", 80), padded_inputs())
    assert (law, where) == ("every layer is reported once", "cross layer 0 (h.0.crossattention)")


def looking_across(family: str, places: int) -> nn.Module:
    name = "n_positions" if family == "gpt2" else "max_position_embeddings"
    decodes = {"is_decoder": True} if family == "bert" else {}
    return tiny_model(family, add_cross_attention=True, **decodes, **{name: places})


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_a_decoder_padded_in_other_places_than_its_encoder(family: str) -> None:
    inputs = padded_inputs()
    inputs |= {f"decoder_{name}": values.flip(0) for name, values in inputs.items()}
    assert names(check_model(tiny_model(family), inputs)) == LAWS


def test_a_model_that_reads_neither_text_nor_images_is_checked_on_given_inputs() -> None:
    sizes = {"d_model": 32, "num_mel_bins": 8, "max_source_positions": 20, "vocab_size": 99, "pad_token_id": 0}
    depth = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    ends = {"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
    model = hf.WhisperModel(hf.WhisperConfig(**sizes, **depth, **ends)).eval()
    with pytest.raises(UnsupportedModel, match=r"WhisperModel reads is not known here: give its inputs to check_model"):
        check_model(model)
    sound = {"input_features": torch.randn(2, 8, 40), "decoder_input_ids": torch.randint(5, 99, (2, 6))}
    assert names(check_model(model, sound)) == LAWS[:-1]


def test_the_model_is_as_it_was() -> None:
    model = tiny_model("t5", dtype=torch.bfloat16)
    check_model(model)
    assert {m.config._attn_implementation for m in model.modules() if hasattr(m, "config")} == {"sdpa"}
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert capture_file._SWITCHED == {}
    assert all(weight.grad is None for weight in model.parameters())


@pytest.mark.slow
def test_a_model_of_the_size_of_bert_base_takes_under_two_seconds() -> None:
    model = hf.BertModel(hf.BertConfig()).eval()
    start = time.process_time()
    check_model(model)
    assert time.process_time() - start < 2  # of one core


# ----------------------------------------------------------------------------------------------------- what people read


def test_the_line_for_people() -> None:
    line = check_model(tiny_model("bert", dtype=torch.float32)).line
    assert re.fullmatch(
        r"passed: 7 laws over 3 layers hold, largest error \d\.\de-0\d of 1e-04 allowed \([a-z' 1]+\)", line
    )
    laws = (Law("a", 1e-7, 1e-4, "x"), Law("b", 2e-3, 1e-4, "encoder layer 1 (layer.1)"), Law("c", 5e-4, 1e-4, "y"))
    assert SelfCheck(laws, 3).line == "failed: b in encoder layer 1 (layer.1) by 2.0e-03 (allowed 1e-04)"
    broken = Law("d", float("nan"), 1e-4, "z")
    assert SelfCheck((*laws, broken), 3).line == "failed: d in z by nan (allowed 1e-04)"
    assert not SelfCheck((broken,), 3).passed


def test_it_can_be_written_as_json() -> None:
    record = json.loads(json.dumps(check_model(tiny_model("vit")).to_dict()))
    assert record["passed"] is True
    assert record["line"].startswith("passed: 6 laws")
    assert [law["law"] for law in record["laws"]] == LAWS[:-1]
    assert record["unchecked"] == []


# ------------------------------------------------------------------------------------------------------- each law fails

Patch = pytest.MonkeyPatch


def failure(model: nn.Module, inputs: dict[str, Tensor] | None = None) -> tuple[str, str, float]:
    """Law, place and figure of the message."""
    with pytest.raises(SelfCheckFailed) as caught:
        check_model(model, inputs)
    found = re.fullmatch(
        r"Self-check failed: (.+) does not hold in (.+): error (nan|\d\.\d\de[-+]\d\d), allowed \de-\d\d\. "
        r"No score of this model can be trusted\.",
        str(caught.value),
    )
    assert found, str(caught.value)
    return found[1], found[2], float(found[3])


def dropped_masks(patch: Patch) -> None:
    patch.setitem(AttentionMaskInterface._global_mapping, NAME, lambda *a, **k: None)


def test_a_dropped_mask_function(monkeypatch: Patch) -> None:
    dropped_masks(monkeypatch)
    law, where, error = failure(tiny_model("bert"))
    assert (law, where) == ("watching changes nothing", "the model's output")
    assert error > 0.01


def test_padding_that_is_attended_to(monkeypatch: Patch) -> None:
    # as above, and the model itself is deceived as well
    dropped_masks(monkeypatch)
    monkeypatch.setitem(AttentionMaskInterface._global_mapping, "sdpa", lambda *a, **k: None)
    law, where, _ = failure(tiny_model("bert"))
    assert law == "padded equals unpadded"
    assert where.startswith("encoder layer")


def test_positions_that_count_the_padding(monkeypatch: Patch) -> None:
    for file in (capture_file, check_file):
        monkeypatch.setattr(file, "with_positions", lambda *_: None)
    law, _, error = failure(tiny_model("gpt2"), padded_inputs(side="left"))
    assert law == "padded equals unpadded"
    assert error > 0.1


def test_another_projection_than_the_output_projection(monkeypatch: Patch) -> None:
    monkeypatch.setitem(SPECS, "gpt_neox", ArchSpec("^.mlp.dense_4h_to_h"))
    model = tiny_model("gpt_neox", intermediate_size=32)
    law, where, error = failure(model)
    assert law == "heads' contributions and the bias are the layer's output"
    assert where.startswith("decoder layer")
    assert error > 0.1


@pytest.mark.parametrize("family", ["gemma2", "t5"])
def test_a_keyword_swallowed_in_the_fast_way(family: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(capture_file, "_is_plain", lambda *_: True)
    law, where, _ = failure(tiny_model(family))
    assert law == "headlens's attention equals the model's"
    assert re.match(r"(encoder|decoder) layer \d \(", where)


def test_slices_that_do_not_make_a_whole(monkeypatch: Patch) -> None:
    deliver = capture_file._Tap.deliver

    def lose_some(tap: Any, attention: LayerAttention) -> None:
        if attention.layer != 1 or attention.query_start == 0:
            deliver(tap, attention)

    monkeypatch.setattr(capture_file._Tap, "deliver", lose_some)
    law, where, error = failure(tiny_model("bert"))
    assert (law, where) == (
        "headlens's attention equals the model's",
        "encoder layer 1 (encoder.layer.1.attention.self)",
    )
    assert error != error


@pytest.mark.parametrize("times", [0, 2])
def test_a_layer_that_reports_never_or_twice(times: int, monkeypatch: Patch) -> None:
    deliver = capture_file._Tap.deliver

    def repeat(tap: Any, attention: LayerAttention) -> None:
        for _ in range(times if attention.layer == 1 else 1):
            deliver(tap, attention)

    monkeypatch.setattr(capture_file._Tap, "deliver", repeat)
    law, where, error = failure(tiny_model("bert"))
    assert (law, where) == ("every layer is reported once", "encoder layer 1 (encoder.layer.1.attention.self)")
    assert error >= 1


def wrong_eager(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    right = modeling_bert.eager_attention_forward
    return lambda *args, **kwargs: change(*right(*args, **kwargs))


@pytest.mark.parametrize(
    ("change", "law"),
    [
        (lambda context, probs: (context, probs * 0.9), "rows of probabilities sum to 1"),
        (lambda context, probs: (context * 1.001, probs), "probabilities times values are the context"),
        (lambda context, probs: (context, probs.flip(1)), "probabilities times values are the context"),
    ],
)
def test_an_attention_that_does_not_add_up(change: Callable[..., Any], law: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(modeling_bert, "eager_attention_forward", wrong_eager(change))
    found, where, _ = failure(tiny_model("bert", dtype=torch.float32))
    assert found == law
    assert where.startswith("encoder layer")


def test_weights_that_are_no_numbers() -> None:
    model = tiny_model("bert")
    model.encoder.layer[1].attention.self.query.weight.data[3] = torch.nan
    law, where, error = failure(model)
    assert (law, where) == ("rows of probabilities sum to 1", "encoder layer 1 (encoder.layer.1.attention.self)")
    assert error != error


def test_an_output_that_is_no_number_watched_or_not() -> None:
    model = tiny_model("bert")
    model.encoder.layer[2].output.LayerNorm.bias.data[3] = torch.nan
    law, where, error = failure(model)
    assert (law, where) == ("watching changes nothing", "the model's output")
    assert error != error


def test_train_mode_and_families_off_the_interface_are_refused() -> None:
    with pytest.raises(CaptureError, match="train mode"):
        check_model(tiny_model("bert").train())
    with pytest.raises(UnsupportedModel, match="BloomModel"):
        check_model(tiny_model("bloom"))
