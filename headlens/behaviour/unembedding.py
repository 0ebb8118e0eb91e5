"""From the last hidden state to the vocabulary: the matrix that a base model leaves behind when it is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedModel

from headlens.arch import family_of
from headlens.checkpoints import Checkpoint, find_checkpoint
from headlens.errors import UnsupportedModel
from headlens.models import LoadedModel, head_counts

_WEIGHT = ("lm_head.weight", "embed_out.weight")  # the second: GPT-NeoX up to transformers 5
_GGUF = ("output.weight", "output.bias")

# Families whose logits are `hidden @ W.T`, plus a bias for those in _BIASED, up to a factor (Cohere, Granite) or a cap
# (Gemma 2) that does not change their order. tests/test_unembedding.py holds each against its own vocabulary head.
_BIASED = frozenset({"gptj", "phi"})
_PLAIN = _BIASED | frozenset(
    "gpt2 gpt_bigcode gpt_neox opt biogpt llama mistral mixtral qwen2 qwen3 qwen2_moe qwen3_moe phi3 gemma gemma2 "
    "gemma3_text olmo olmo2 cohere granite stablelm starcoder2 smollm3 gpt_oss".split()
)
_NAMES = {"biogpt": ("output_projection.weight",)}  # of the weight in the files, where it is none of _WEIGHT


@dataclass(frozen=True, eq=False)
class VocabularyHead:
    """A linear vocabulary head, on the model's device and in its dtype."""

    weight: Float[Tensor, "token hidden"]
    bias: Float[Tensor, " token"] | None = None

    def logits(self, hidden: Float[Tensor, "*lead hidden"]) -> Float[Tensor, "*lead token"]:
        """Scores of all tokens from the last hidden state (after the final norm).

        Without the factor of Cohere and Granite and the cap of Gemma 2: those change the size of logits, and with it
        the probabilities, but not which token comes first.
        """
        return torch.nn.functional.linear(hidden, self.weight, self.bias)


def unembedding(model: PreTrainedModel | LoadedModel) -> Float[Tensor, "token hidden"]:
    """The matrix that turns the last hidden state into logits: the weight of `vocabulary_head`, with its errors."""
    return vocabulary_head(model).weight


def vocabulary_head(model: PreTrainedModel | LoadedModel) -> VocabularyHead:
    """The vocabulary head of a decoder.

    Of a model that has one, its own. Of a base model what its checkpoint holds, for which it must come from
    `load_model`; and where the config ties it to the input embeddings, those.

    Raises
    ------
    UnsupportedModel
        An encoder or an encoder-decoder model (their heads are more than a matrix), a family of which the head is not
        known to be one, hidden states that are projected first (OPT 350m), or a matrix that is nowhere to be found.
    """
    network = model.model if isinstance(model, LoadedModel) else model
    family = family_of(network)
    _check_plain(network, family)
    checkpoint = _checkpoint(model)
    head = _own(network)
    if head is None and checkpoint is not None:
        head = _stored(checkpoint, family)
    if head is None and network.config.get_text_config().tie_word_embeddings and family not in _BIASED:
        head = VocabularyHead(_weight_of(network.get_input_embeddings()))
    if head is None:
        raise UnsupportedModel(_nowhere(network, checkpoint))
    _check_fits(head, network, family)
    bias = None if head.bias is None else head.bias.detach().to(network.device, network.dtype)
    return VocabularyHead(head.weight.detach().to(network.device, network.dtype), bias)


def _check_plain(network: PreTrainedModel, family: str) -> None:
    if family in _PLAIN:
        return
    if network.config.is_encoder_decoder or not getattr(network.config.get_text_config(), "vocab_size", None):
        why = "does not go on with a text from its last hidden state alone"
    elif family in _OF_ENCODERS:
        why = "is an encoder, whose vocabulary head transforms the hidden state before its matrix"
    else:
        why = "has a vocabulary head that is not known to be a mere matrix"
    raise UnsupportedModel(
        f"{type(network).__name__} (model_type {family!r}) {why}, so it has no unembedding; this needs a decoder of "
        f"one of the families {', '.join(sorted(_PLAIN))}."
    )


_OF_ENCODERS = frozenset(
    "bert roberta xlm-roberta camembert electra ernie data2vec-text distilbert albert modernbert deberta "
    "deberta-v2 mpnet".split()
)


def _checkpoint(model: PreTrainedModel | LoadedModel) -> Checkpoint | None:
    """The files that the weights were read from; None for a model that was passed as an object."""
    if not isinstance(model, LoadedModel) or model.provenance.get("weights_sha256") is None:
        return None
    return find_checkpoint(model.name, revision=model.provenance.get("revision"))


def _own(network: PreTrainedModel) -> VocabularyHead | None:
    layer = network.get_output_embeddings()
    if layer is None:
        return None
    bias = getattr(layer, "bias", None)
    return VocabularyHead(_weight_of(layer), bias if isinstance(bias, Tensor) else None)


def _weight_of(layer: torch.nn.Module) -> Tensor:
    assert isinstance(layer.weight, Tensor)
    return layer.weight


def _stored(checkpoint: Checkpoint, family: str) -> VocabularyHead | None:
    """What the files of a checkpoint hold; None where they hold no matrix of its own for the head."""
    found: dict[str, Tensor] = {}
    names = _GGUF if checkpoint.gguf else (*_NAMES.get(family, _WEIGHT), "lm_head.bias")
    for file in checkpoint.weight_files:
        try:
            found |= _from_gguf(file, names) if checkpoint.gguf else _from_safetensors(file, names)
        except (OSError, SafetensorError, ValueError) as error:
            raise UnsupportedModel(
                f"{file.name} of {checkpoint.name!r} cannot be read ({error}); copy or download it again."
            ) from error
    weight = next((found[name] for name in names[:-1] if name in found), None)
    return None if weight is None else VocabularyHead(weight, found.get(names[-1]))


def _from_safetensors(file: Path, names: tuple[str, ...]) -> dict[str, Tensor]:
    with safe_open(file, framework="pt") as stored:
        return {name: stored.get_tensor(name) for name in names if name in stored.keys()}  # noqa: SIM118, no mapping


def _from_gguf(file: Path, names: tuple[str, ...]) -> dict[str, Tensor]:
    from gguf import GGUFReader
    from gguf.quants import dequantize

    stored = {tensor.name: tensor for tensor in GGUFReader(file).tensors if tensor.name in names}
    return {name: torch.tensor(dequantize(tensor.data, tensor.tensor_type)) for name, tensor in stored.items()}


def _nowhere(network: PreTrainedModel, checkpoint: Checkpoint | None) -> str:
    what = f"{type(network).__name__} is a base model"
    if checkpoint is not None:
        return f"{what}, and the checkpoint {checkpoint.name!r} holds no vocabulary head; use one that does."
    return (
        f"{what} without a vocabulary head, and its config does not say that it shares all of one with the input "
        f"embeddings; pass what load_model gave, or the model with its head (AutoModelForCausalLM)."
    )


def _check_fits(head: VocabularyHead, network: PreTrainedModel, family: str) -> None:
    hidden = head_counts(network.config)["hidden"]
    if head.weight.dim() != 2 or head.weight.shape[1] != hidden or not head.weight.is_floating_point():
        raise UnsupportedModel(
            f"The vocabulary head of a {family!r} of hidden size {hidden} should be a matrix [token, {hidden}] of real "
            f"numbers, got {head.weight.dtype} {list(head.weight.shape)}: its hidden states are projected or packed "
            f"first, which headlens does not follow."
        )
