"""The unembedding of a base model gives the logits of the model with its vocabulary head, or it is refused by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, BertForMaskedLM, PreTrainedModel

from headlens.behaviour.unembedding import _PLAIN, unembedding, vocabulary_head
from headlens.errors import UnsupportedModel
from headlens.models import LoadedModel, load_model
from headlens.testing import VOCAB, tiny_model

SIZES = {
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    **dict.fromkeys(["num_hidden_layers", "n_layer"], 2),
    **dict.fromkeys(["num_attention_heads", "n_head", "num_local_experts", "num_experts"], 4),
    **dict.fromkeys(["num_key_value_heads", "num_experts_per_tok"], 2),
    **dict.fromkeys(["hidden_size", "n_embd", "word_embed_proj_dim"], 32),
    **dict.fromkeys(["intermediate_size", "ffn_dim", "n_inner", "moe_intermediate_size"], 24),
    **dict.fromkeys(["max_position_embeddings", "n_positions"], 80),
    "head_dim": 8,
    "rotary_dim": 4,
    "layer_types": None,
    "shared_expert_intermediate_size": 16,
}
PLAIN_LOGITS = {"cohere": {"logit_scale": 1.0}, "gemma2": {"final_logit_softcapping": None}}


def with_head(family: str, **more: Any) -> PreTrainedModel:
    """A tiny model with its vocabulary head, all weights drawn widely."""
    known = AutoConfig.for_model(family).to_dict()
    sizes = {name: value for name, value in SIZES.items() if name in known}
    if family == "gpt_oss":  # its rotary embedding stretches positions that this model is too small to have
        sizes["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    config = AutoConfig.for_model(family, vocab_size=VOCAB, **{**sizes, **more})
    model = AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(0.3 * torch.randn(weight.shape, generator=generator) + (weight.dim() == 1))
    return model.float().eval()


def saved(model: PreTrainedModel, folder: Path) -> LoadedModel:
    model.save_pretrained(folder)
    return load_model(str(folder), check=False)


@torch.no_grad()
def hidden_and_logits(model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    ids = torch.arange(5, 25)[None]
    return model.base_model(input_ids=ids).last_hidden_state, model(input_ids=ids).logits


@pytest.mark.parametrize("family", sorted(_PLAIN))
def test_base_model_from_a_checkpoint_gives_the_logits_of_the_model_with_its_head(family: str, tmp_path: Path) -> None:
    model = with_head(family, **PLAIN_LOGITS.get(family, {}))
    hidden, logits = hidden_and_logits(model)
    loaded = saved(model, tmp_path)
    assert loaded.model.get_output_embeddings() is None
    torch.testing.assert_close(vocabulary_head(loaded).logits(hidden), logits, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(
    ("family", "scaling"),
    [("cohere", {"logit_scale": 0.25}), ("granite", {"logits_scaling": 8.0}), ("gemma2", {})],
)
def test_scaled_and_capped_logits_keep_their_order(family: str, scaling: dict[str, Any]) -> None:
    model = with_head(family, **scaling).double()
    hidden, logits = hidden_and_logits(model)
    found = vocabulary_head(model).logits(hidden)
    assert not torch.allclose(found, logits, rtol=1e-3)
    assert torch.equal(found.argsort(dim=-1), logits.argsort(dim=-1))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_model_with_its_head_gives_that(family: str) -> None:
    model = with_head(family)
    assert torch.equal(unembedding(model), model.lm_head.weight)


def test_tied_base_model_in_memory_gives_its_input_embeddings() -> None:
    model = tiny_model("gpt2")
    assert torch.equal(unembedding(model), model.wte.weight)
    assert not unembedding(model).requires_grad


@pytest.mark.parametrize(("family", "config"), [("llama", {}), ("gpt2", {"tie_word_embeddings": False}), ("phi", {})])
def test_untied_checkpoint_gives_the_matrix_in_its_file(family: str, config: dict[str, Any], tmp_path: Path) -> None:
    model = with_head(family, **config)
    assert not torch.equal(model.lm_head.weight, model.get_input_embeddings().weight)
    assert torch.equal(unembedding(saved(model, tmp_path)), model.lm_head.weight)


def test_matrix_in_the_file_goes_before_tied_embeddings(tmp_path: Path) -> None:
    model = with_head("llama", tie_word_embeddings=True)
    loaded = saved(model, tmp_path)
    own = torch.randn(VOCAB, 32)
    stored = load_file(tmp_path / "model.safetensors")
    save_file({**stored, "lm_head.weight": own}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert torch.equal(unembedding(loaded), own)


def test_old_name_of_gpt_neox(tmp_path: Path) -> None:
    model = with_head("gpt_neox")
    loaded = saved(model, tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    weight = stored.pop("lm_head.weight", None)
    stored["embed_out.weight"] = stored["embed_out.weight"] if weight is None else weight
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert torch.equal(unembedding(loaded), model.lm_head.weight)


def test_matrix_is_found_in_whichever_shard_holds_it(tmp_path: Path) -> None:
    model = with_head("llama")
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert torch.equal(unembedding(load_model(str(tmp_path), check=False)), model.lm_head.weight)


def test_matrix_comes_in_the_dtype_of_the_model(tmp_path: Path) -> None:
    with_head("llama").save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path), dtype="bfloat16", check=False)
    assert unembedding(loaded).dtype == torch.bfloat16


def test_gguf_file_gives_the_matrix_it_holds(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="needs the package gguf")
    from headlens.behaviour.unembedding import _stored
    from headlens.checkpoints import Checkpoint

    matrix = torch.randn(VOCAB, 32)
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama")
    writer.add_tensor("token_embd.weight", torch.zeros(VOCAB, 32).numpy())
    writer.add_tensor("output.weight", matrix.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    head = _stored(Checkpoint("tiny", tmp_path, "tiny", gguf="tiny.gguf"), "llama")
    assert head is not None
    assert torch.equal(head.weight, matrix)
    assert head.bias is None


@pytest.mark.slow
def test_smollm2_shares_its_embeddings(smollm2: LoadedModel) -> None:
    assert torch.equal(unembedding(smollm2), smollm2.model.get_input_embeddings().weight)


# ---------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "albert", "modernbert", "electra"])
def test_encoders_are_refused_by_name(family: str) -> None:
    with pytest.raises(UnsupportedModel, match=rf"model_type '{family}'\) is an encoder, whose vocabulary head"):
        unembedding(tiny_model(family))


def test_encoder_with_a_vocabulary_head_is_refused_too() -> None:
    model = BertForMaskedLM(tiny_model("bert").config)
    with pytest.raises(UnsupportedModel, match=r"BertForMaskedLM .* is an encoder"):
        unembedding(model)


@pytest.mark.parametrize("family", ["t5", "bart", "vit"])
def test_models_that_do_not_go_on_with_a_text_are_refused(family: str) -> None:
    with pytest.raises(UnsupportedModel, match="does not go on with a text"):
        unembedding(tiny_model(family))


def test_unknown_family_is_not_guessed_at() -> None:
    with pytest.raises(UnsupportedModel, match=r"'bloom'.* not known to be a mere matrix"):
        unembedding(tiny_model("bloom"))


@pytest.mark.parametrize("family", ["llama", "phi"])
def test_untied_base_model_in_memory_is_refused(family: str) -> None:
    with pytest.raises(UnsupportedModel, match=r"without a vocabulary head.*pass what load_model gave"):
        unembedding(with_head(family).base_model)


def test_shared_embeddings_are_not_all_of_a_head_with_a_bias() -> None:
    with pytest.raises(UnsupportedModel, match="does not say that it shares all of one"):
        unembedding(with_head("phi", tie_word_embeddings=True).base_model)


def test_name_of_a_model_in_memory_is_not_looked_up(tmp_path: Path) -> None:
    loaded = saved(with_head("llama"), tmp_path)
    in_memory = LoadedModel(
        loaded.model, None, str(tmp_path), "a model in memory", {**loaded.provenance, "weights_sha256": None}
    )
    with pytest.raises(UnsupportedModel, match="without a vocabulary head"):
        unembedding(in_memory)


def test_checkpoint_without_a_head_is_refused(tmp_path: Path) -> None:
    loaded = saved(with_head("llama").base_model, tmp_path)
    with pytest.raises(UnsupportedModel, match=f"checkpoint {re.escape(repr(str(tmp_path)))} holds no vocabulary head"):
        unembedding(loaded)


def test_projected_hidden_states_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"should be a matrix \[token, 32\].*got .*\[99, 16\]"):
        unembedding(with_head("opt", word_embed_proj_dim=16))


def test_damaged_file_is_named(tmp_path: Path) -> None:
    loaded = saved(with_head("llama"), tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not at all")
    with pytest.raises(UnsupportedModel, match=r"model\.safetensors of .* cannot be read"):
        unembedding(loaded)
