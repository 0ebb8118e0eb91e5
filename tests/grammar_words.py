"""A tokenizer of which every word form of the grammar is one token."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from headlens.corpora.grammar import PUNCTUATION, WORD_FORMS

VOCABULARY = ["<pad>", "<s>", *PUNCTUATION, *WORD_FORMS]


def grammar_words() -> PreTrainedTokenizerFast:
    """Puts <s> in front of a text; ids are places in VOCABULARY."""
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(VOCABULARY)}, unk_token="<pad>"))
    words.normalizer = normalizers.Lowercase()
    words.pre_tokenizer = pre_tokenizers.Split(Regex(r"'s\b|\w+|[^\w\s]"), behavior="removed", invert=True)
    words.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", bos_token="<s>", model_max_length=128)
