"""The tokenizers of the two small models that headlens carries: every form of the grammar is a token."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from headlens.corpora.grammar import PUNCTUATION, WORD_FORMS

POSITIONS = 256  # tokens that the models can read
FIRST_WORD = 20  # the id of the first ordinary word; before it stand special tokens, punctuation and places kept free


def gpt2_tokenizer() -> PreTrainedTokenizerFast:
    """Every form of the grammar is a token. Puts <|endoftext|> before a text, which GPT-2's own tokenizer does not."""
    end = "<|endoftext|>"
    special = {"pad_token": "<pad>", "bos_token": end, "eos_token": end, "unk_token": "<unk>"}
    return _word_tokenizer(special, f"{end} $A", f"{end} $A {end} $B:1")


def bert_tokenizer() -> PreTrainedTokenizerFast:
    """Every form of the grammar is a token; a text stands between [CLS] and [SEP]."""
    special = {name: f"[{name[:-6].upper()}]" for name in ("pad_token", "unk_token", "cls_token", "sep_token")}
    special["mask_token"] = "[MASK]"
    return _word_tokenizer(special, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")


def _word_tokenizer(special: dict[str, str], single: str, pair: str) -> PreTrainedTokenizerFast:
    vocabulary = vocabulary_of(list(dict.fromkeys(special.values())))
    words = Tokenizer(models.WordLevel(vocabulary, unk_token=special["unk_token"]))
    words.normalizer = normalizers.Lowercase()
    words.pre_tokenizer = pre_tokenizers.Split(Regex(r"'s\b|\w+|[^\w\s]"), behavior="removed", invert=True)
    words.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[(token, vocabulary[token]) for token in special.values()]
    )
    words.decoder = decoders.WordPiece(cleanup=True)  # no space before punctuation and 's
    return PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=POSITIONS, **special)


def vocabulary_of(special: Sequence[str]) -> dict[str, int]:
    """Ids of all tokens: special ones, punctuation, free places; ordinary words from FIRST_WORD on."""
    words = sorted(form for form in WORD_FORMS if form.isalpha())
    marks = sorted({*PUNCTUATION, *WORD_FORMS} - set(words))
    first = [*special, *marks]
    free = [f"[unused{number}]" for number in range(FIRST_WORD - len(first))]
    return {token: number for number, token in enumerate([*first, *free, *words])}
