"""The models that headlens carries: whole, small, loaded by stock classes, and as good as they are said to be."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel

import headlens
from headlens import checkpoints
from headlens.behaviour import agreement
from headlens.corpora.grammar import KINDS, PUNCTUATION, WORD_FORMS, grammar_texts
from headlens.errors import UnsupportedModel
from headlens.models import bundled_path, load_model
from headlens.roles import roles_of

SCRIPTS = Path(__file__).parent.parent / "scripts"
NAMES = ("tiny-gpt2", "tiny-bert")
FILES = {"README.md", "config.json", "evaluation.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
OPTIONAL = {"generation_config.json"}  # which transformers writes beside a model that can generate
TAUGHT_HEAD = "L0H0"  # to look for the same word
UNSEEN = 4321  # a seed of the grammar that neither training nor the figures of the card have used


@pytest.fixture(scope="module")
def evaluation() -> Iterator[Any]:
    sys.path.insert(0, str(SCRIPTS))
    yield importlib.import_module("tiny_evaluation")
    sys.path.remove(str(SCRIPTS))


@pytest.fixture(scope="module")
def gpt2() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(bundled_path("tiny-gpt2"), local_files_only=True).eval()


@pytest.fixture(scope="module")
def bert() -> PreTrainedModel:
    return AutoModelForMaskedLM.from_pretrained(bundled_path("tiny-bert"), local_files_only=True).eval()


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Any]:
    return {name: AutoTokenizer.from_pretrained(bundled_path(name), local_files_only=True) for name in NAMES}


# ------------------------------------------------------------------------------------------------------------ the files


@pytest.mark.parametrize("name", NAMES)
def test_a_bundle_is_whole_and_small(name):
    folder = bundled_path(name)
    found = {path.name for path in folder.iterdir()}
    assert FILES <= found <= FILES | OPTIONAL
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 8_000_000


@pytest.mark.parametrize("name", NAMES)
def test_a_bundle_names_no_path(name):
    for path in bundled_path(name).glob("*.json"):
        strings = list(strings_of(json.loads(path.read_text())))
        assert [string for string in strings if string.startswith("/") and len(string) > 1] == []


def strings_of(content: Any) -> Iterator[str]:
    if isinstance(content, dict):
        for key, value in content.items():
            yield key
            yield from strings_of(value)
    elif isinstance(content, list):
        for value in content:
            yield from strings_of(value)
    elif isinstance(content, str):
        yield content


@pytest.mark.parametrize(("name", "stock"), [("tiny-gpt2", "GPT2LMHeadModel"), ("tiny-bert", "BertForMaskedLM")])
def test_stock_classes_load_every_weight(name, stock):
    auto = AutoModelForCausalLM if name == "tiny-gpt2" else AutoModelForMaskedLM
    model, loading = auto.from_pretrained(bundled_path(name), local_files_only=True, output_loading_info=True)
    assert type(model).__name__ == stock
    assert not any(loading.values()), loading
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert model.config.max_position_embeddings == 256
    assert model.config.num_attention_heads == 8


@pytest.mark.parametrize("name", NAMES)
def test_the_vocabulary_is_that_of_the_grammar(name, tokenizers):
    tokenizer = tokenizers[name]
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    assert len(tokens) >= 520
    assert all(token.isalpha() and token in WORD_FORMS for token in tokens[20:])
    assert {*WORD_FORMS, *PUNCTUATION} <= set(tokens)
    assert set(tokenizer.all_special_ids) < set(range(20))
    assert tokenizer.model_max_length == 256


def test_the_tokenizers_frame_a_text_as_the_models_know_it(tokenizers):
    text = "The dog sees Anna's cats."
    framed = {name: tokenizers[name].convert_ids_to_tokens(tokenizers[name](text)["input_ids"]) for name in NAMES}
    words = ["the", "dog", "sees", "anna", "'s", "cats", "."]
    assert framed == {"tiny-gpt2": ["<|endoftext|>", *words], "tiny-bert": ["[CLS]", *words, "[SEP]"]}
    assert tokenizers["tiny-gpt2"].decode(tokenizers["tiny-gpt2"](text)["input_ids"][1:]) == text.lower()


@pytest.mark.parametrize("name", NAMES)
def test_the_card_says_what_the_evaluation_found(name, gpt2, bert):
    folder = bundled_path(name)
    figures = json.loads((folder / "evaluation.json").read_text())
    card = (folder / "README.md").read_text()
    rows = [
        f"| {kind}, right | {share['right']:.1%} | {share['of']:,} |" for kind, share in figures["forced words"].items()
    ]
    if name == "tiny-gpt2":
        rows.append(f"| perplexity | {figures['perplexity']:.2f} | {figures['tokens']:,} tokens |")
        rows.append(
            f"| the grammar's own | {figures['perplexity of the grammar']:.2f} | {figures['tokens']:,} tokens |"
        )
    assert [row for row in rows if row not in card] == []
    model = gpt2 if name == "tiny-gpt2" else bert
    assert f"{model.num_parameters():,} parameters" in card
    assert "{" not in card


# ----------------------------------------------------------------------------------------------------- what they can do


def test_tiny_gpt2_knows_its_grammar(evaluation, gpt2, tokenizers):
    figures = evaluation.evaluate_gpt2(gpt2, tokenizers["tiny-gpt2"], list(islice(grammar_texts(UNSEEN), 300)))
    assert 0.97 < figures["ratio"] < 1.15  # below 1 but for chance, a model would know more than the grammar tells
    assert figures["forced words"]["verb number"]["right"] >= 0.95
    assert figures["forced words"]["verb number, attractor"]["right"] >= 0.85
    assert figures["forced words"]["verb number, attractor"]["of"] >= 50


@pytest.mark.parametrize("with_end", [True, False], ids=["behind <|endoftext|>", "bare"])
@pytest.mark.parametrize("period", [8, 16, 32, 50])
def test_tiny_gpt2_has_an_induction_head(gpt2, tokenizers, period, with_end):
    """Random words that come twice: some head looks from a word to the one behind its first occurrence."""
    words = torch.randint(20, len(tokenizers["tiny-gpt2"]), (6, period), generator=torch.Generator().manual_seed(5))
    before = torch.full((6, int(with_end)), tokenizers["tiny-gpt2"].bos_token_id)
    model = AutoModelForCausalLM.from_pretrained(bundled_path("tiny-gpt2"), attn_implementation="eager").eval()
    with torch.no_grad():
        layers = model(torch.cat([before, words, words], dim=1), output_attentions=True).attentions
    second = range(with_end + period, with_end + 2 * period)
    paid = [sum(probs[:, :, word, word - period + 1] for word in second) / period for probs in layers]
    assert max(float(heads.mean(0).max()) for heads in paid) >= 0.6


@pytest.fixture(scope="module")
def profiles() -> dict[str, headlens.Profile]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agreement, "MOST_TEXTS", 20)  # which a hundred and more sets of heads are tried on
        return {
            "tiny-gpt2": headlens.profile("tiny-gpt2", "grammar:500@7", parts=("repetition",)),
            "tiny-bert": headlens.profile("tiny-bert", "grammar:100@7", parts=()),
        }


def test_the_report_names_heads_of_tiny_gpt2_by_what_they_attend_to(profiles):
    profile = profiles["tiny-gpt2"]
    roles = roles_of(profile.scores, profile.evidence)
    named = {one.role.id: {head.name for head in roles.heads(one.role.id)} for one in roles}
    wanted = {"induction", "previous_token", "duplicate_token", "subject_verb", "pronoun_reference"}
    assert wanted <= set(named)
    assert all(name > "L0H7" for name in named["induction"])  # which takes a layer before it
    assert named["duplicate_token"] == {TAUGHT_HEAD}


def test_a_profile_says_what_agreement_suffers(profiles):
    found = profiles["tiny-gpt2"].provenance["agreement"]
    claims = profiles["tiny-gpt2"].evidence.claims()
    assert found["heads"] == sorted({claim.name for claim in claims if claim.metric.startswith("subject_verb.")})
    assert found["intact"] > 0.9  # of few verbs
    assert len(found["random"]) in (100, 32 - len(found["heads"]))
    assert "agreement" not in profiles["tiny-bert"].provenance  # a model that fills gaps predicts no next word


def test_tiny_bert_fills_the_gaps(evaluation, bert, tokenizers):
    figures = evaluation.evaluate_bert(bert, tokenizers["tiny-bert"], list(islice(grammar_texts(UNSEEN), 250)))
    assert set(KINDS) <= set(figures["forced words"])
    assert {kind for kind in KINDS if figures["forced words"][kind]["right"] < 0.9} == set()


# ---------------------------------------------------------------------------------------------------------- by its name


@pytest.mark.parametrize("name", NAMES)
def test_headlens_loads_a_bundle_by_its_name_and_trusts_its_attention(name):
    loaded = load_model(name)
    assert loaded.check is not None
    assert (loaded.provenance["name"], loaded.provenance["source"]) == (name, f"headlens {headlens.__version__}")
    assert loaded.require_tokenizer().model_max_length == 256


def test_a_name_that_is_no_bundle_is_refused():
    with pytest.raises(
        UnsupportedModel, match="'tiny-t5' is not one of the bundled models: minilm, smollm2, tiny-gpt2"
    ):
        bundled_path("tiny-t5")


def test_a_bundle_that_was_lost_is_named(monkeypatch):
    bundle = checkpoints.BUNDLES["tiny-gpt2"]
    lost = checkpoints.Bundle(bundle.package, bundle.module, "bundled/none", bundle.install)
    monkeypatch.setitem(checkpoints.BUNDLES, "tiny-gpt2", lost)
    with pytest.raises(UnsupportedModel, match=r"headlens .* should hold bundled/none, and does not; install it again"):
        load_model("tiny-gpt2")


def test_a_copy_without_a_vocabulary_is_refused_in_one_sentence(tmp_path):
    copy = shutil.copytree(bundled_path("tiny-gpt2"), tmp_path / "copy")
    (copy / "tokenizer.json").unlink()
    with pytest.raises(UnsupportedModel, match=r"cannot be loaded: none of its files holds a vocabulary; copy token"):
        load_model(str(copy)).require_tokenizer()
