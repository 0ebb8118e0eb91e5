"""Small models with heads and small tokenizers for the tests of evaluation, and the slow way to ask them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from headlens.model_facts import facts_of
from headlens.models import LoadedModel
from headlens.testing import tiny_model

WORDS = "the a cat dog cats dogs sees see sleeps sleep often and old big near is are good . ,".split()
VOCABULARY = ["<pad>", "<unk>", "<s>", "</s>", "<mask>", *WORDS]
SENTENCES = [
    "the old cat sees a dog and the big dog sees the cat near a dog .",
    "dogs sleep .",
    "a cat often sleeps , and the dogs see the old cats .",
    "the dog is good",
    "cats are big and dogs are old and the cat is near the dog and the dog sees",
]


def word_tokenizer(*, frame: str = "<s> $A", **roles: str) -> PreTrainedTokenizerFast:
    """Every word of WORDS is a token, all others are <unk>. `frame` says what stands around a text."""
    words = Tokenizer(models.WordLevel({word: place for place, word in enumerate(VOCABULARY)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    specials = [(name, VOCABULARY.index(name)) for name in ("<s>", "</s>")]
    pair = " ".join(f"{part.replace('$A', '$B')}:1" for part in frame.split() if part != "<s>")
    words.post_processor = processors.TemplateProcessing(single=frame, pair=f"{frame} {pair}", special_tokens=specials)
    roles = {"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>", **roles}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=40, model_input_names=inputs, **roles)


HEADED = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "opt": "OPTForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "bert": "BertForMaskedLM",
    "roberta": "RobertaForMaskedLM",
    "electra": "ElectraForMaskedLM",
    "distilbert": "DistilBertForMaskedLM",
    "albert": "AlbertForMaskedLM",
    "modernbert": "ModernBertForMaskedLM",
}


def whole_model(family: str, kind: str | None = None, **config: Any) -> PreTrainedModel:
    """A tiny model with its task head, wide weights in both, in float64."""
    base = tiny_model(family, vocab_size=len(VOCABULARY), **config)
    whole = getattr(transformers, kind or HEADED[family])(base.config).double().eval()
    whole.base_model.load_state_dict(base.state_dict(), strict=False)
    generator = torch.Generator().manual_seed(5)
    inner = {id(weight) for weight in whole.base_model.parameters()}
    with torch.no_grad():
        for _, weight in sorted(whole.named_parameters()):
            if id(weight) not in inner:
                weight.copy_(0.5 * torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    whole.tie_weights()
    return whole


def as_loaded(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, name: str = "tiny") -> LoadedModel:
    return LoadedModel(model, tokenizer, name, name, {"weights_sha256": None, **facts_of(model)})


def ids_of(text: str) -> list[int]:
    return [VOCABULARY.index(word) if word in VOCABULARY else 1 for word in text.split()]


@torch.no_grad()
def log_probs_at(model: PreTrainedModel, ids: Sequence[int], place: int) -> Tensor:
    """[token]: of all tokens at one place of one input, by itself and without padding."""
    return model(input_ids=torch.tensor([list(ids)])).logits[0, place].log_softmax(dim=-1)


def next_log_prob(model: PreTrainedModel, before: Sequence[int], token: int) -> float:
    return float(log_probs_at(model, before, -1)[token])


def masked_log_prob(model: PreTrainedModel, ids: Sequence[int], place: int) -> float:
    masked = [*ids[:place], VOCABULARY.index("<mask>"), *ids[place + 1 :]]
    return float(log_probs_at(model, masked, place)[ids[place]])
