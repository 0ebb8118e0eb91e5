"""Healing after surgery: against a training loop written out, and what it must leave alone."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pruned_models import pruned, with_head
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast, set_seed

from headlens.calibration import calibrate
from headlens.conversion.carriers import converted
from headlens.conversion.recipes import MEAN_POOLING, converted_layers
from headlens.conversion.weights import read_layers
from headlens.corpora import Corpus, texts
from headlens.errors import CorpusError, HeadlensError, OutputError, PlanError, UnsupportedModel
from headlens.healing import Healed, HealingError, heal, heal_alike, heal_with_random
from headlens.healing.losses import (
    embedding_loss,
    hidden_loss,
    label_task,
    layer_variances,
    logits_loss,
    next_token_task,
)
from headlens.healing.reading import read
from headlens.healing.surroundings import random_states_kept
from headlens.importance.inputs import TextBatch, padded_batches
from headlens.models import LoadedModel
from headlens.plan import plan_of
from headlens.surgery import apply_plan, full_plan, masked_twin
from headlens.testing import tiny_model

pytestmark = pytest.mark.slow  # many models; CI runs them as its own step

WORDS = [f"w{number}" for number in range(90)]


@pytest.fixture(scope="module")
def words() -> PreTrainedTokenizerFast:
    """A word a token, with ids from 5 on; an empty line is unknown, so that no model reads windows."""
    return tokenizer({word: number for number, word in enumerate(WORDS, start=5)})


@pytest.fixture(scope="module")
def running() -> PreTrainedTokenizerFast:
    """The same, and an empty line is a token: for windows of running text."""
    return tokenizer({"\n\n": 4, **{word: number for number, word in enumerate(WORDS, start=5)}})


def tokenizer(vocabulary: dict[str, int]) -> PreTrainedTokenizerFast:
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split

    one = Tokenizer(WordLevel({"[P]": 0, "[U]": 1, **vocabulary}, unk_token="[U]"))
    one.pre_tokenizer = Split(Regex(r"\w+|\n\n"), behavior="removed", invert=True)
    return PreTrainedTokenizerFast(tokenizer_object=one, pad_token="[P]", unk_token="[U]")


def sentences(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choice(WORDS) for _ in range(rng.randint(2, 12))) for _ in range(count)]


TEXTS = sentences(60)


def original(family: str, auto: str | None = None, **entries: Any) -> PreTrainedModel:
    return tiny_model(family, **entries) if auto is None else with_head(family, auto, **entries)


def pooled(teacher: PreTrainedModel) -> PreTrainedModel:
    """Two key/value heads a layer, each the mean of neighbours."""
    counts = [max(1, len(layer.k) // 2) for layer in read_layers(teacher)]
    return converted(teacher, converted_layers(read_layers(teacher), counts, MEAN_POOLING, None), stock=False)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def loaded(model: PreTrainedModel, words: PreTrainedTokenizerFast) -> LoadedModel:
    return LoadedModel(model, words, "a tiny model", "", {})


# ------------------------------------------------------------------------------------------------- what a healing does

CAUSAL = "AutoModelForCausalLM"


@pytest.mark.parametrize(
    ("family", "auto", "share"),
    [
        ("bert", None, 0.1),
        ("gpt2", CAUSAL, 0.1),
        ("llama", CAUSAL, 0.5),
        ("distilbert", None, 0.2),
        ("albert", None, 0.1),
        ("t5", None, 0.6),
        ("roberta", "AutoModelForMaskedLM", 0.2),
        ("bert", "AutoModelForSequenceClassification", 0.1),
    ],
)
def test_a_healed_model_is_nearer_to_the_original_on_text_that_it_was_not_trained_on(
    family: str, auto: str | None, share: float, words: PreTrainedTokenizerFast
) -> None:
    teacher = original(family, auto)
    student = pruned(teacher)
    before = weights(teacher), weights(student)
    healed = heal(student, teacher, sentences(200), words, steps=40, batch=16, lr=5e-3, max_length=12)
    assert 0 < healed.after < share * healed.before
    assert healed.objective == ("kl_distortion" if auto == CAUSAL else "cosine_distortion")
    assert same(weights(teacher), before[0])
    assert same(weights(student), before[1])
    assert healed.plan == plan_of(healed.model.config) == plan_of(student.config)
    assert [weight.shape for weight in healed.model.state_dict().values()] == [one.shape for one in before[1].values()]
    for model in (teacher, student, healed.model):
        assert not any(module.training for module in model.modules())
        assert all(weight.requires_grad and weight.grad is None for weight in model.parameters())


@pytest.mark.parametrize(("family", "auto"), [("bert", None), ("gpt2", CAUSAL), ("llama", CAUSAL)])
@pytest.mark.parametrize("progressive", [0.0, 0.5])
def test_a_converted_model_is_healed_at_once_or_step_by_step(
    family: str, auto: str | None, progressive: float, words: PreTrainedTokenizerFast
) -> None:
    teacher = original(family, auto)
    student = pooled(teacher)
    healed = heal(
        student, teacher, sentences(200), words, steps=40, batch=16, lr=5e-3, max_length=12, progressive=progressive
    )
    assert 0 < healed.after < 0.5 * healed.before
    assert healed.plan == plan_of(student.config)
    assert [weight.shape for weight in healed.model.state_dict().values()] == [
        weight.shape for weight in student.state_dict().values()
    ]
    assert healed.recipe.to_dict()["progressive"] == progressive
    for model in (teacher, healed.model):
        assert all(weight.requires_grad and weight.grad is None for weight in model.parameters())


def test_a_student_starts_as_the_original_where_its_own_attention_comes_step_by_step(
    words: PreTrainedTokenizerFast,
) -> None:
    """With one step in a million its first loss is that of the original, which is 0."""
    teacher = original("bert")
    losses = {
        progressive: heal(
            pooled(teacher),
            teacher,
            TEXTS,
            words,
            steps=steps,
            batch=8,
            lr=1e-9,
            max_length=12,
            progressive=progressive,
        ).log[0]["loss"]
        for progressive, steps in ((0.0, 2), (1.0, 100))
    }
    assert losses[1.0] < 0.01 * losses[0.0]


def test_a_gpt2_that_became_multi_query_is_healed(words: PreTrainedTokenizerFast) -> None:
    teacher = original("gpt2", CAUSAL)
    student = converted(teacher, converted_layers(read_layers(teacher), [1] * 3, MEAN_POOLING, None))
    assert type(student).__name__ == "GPTBigCodeForCausalLM"
    healed = heal(student, teacher, sentences(200), words, steps=40, batch=16, lr=5e-3, max_length=12)
    assert 0 < healed.after < 0.6 * healed.before


def test_another_student_is_healed_on_the_same_budget(words: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    teacher = original("bert")
    first = run(words, out=tmp_path / "healed")
    other = heal_alike(first, teacher, TEXTS, words, pooled(teacher), "mean pooling", out=tmp_path)
    assert other.recipe == first.recipe
    assert (tmp_path / "mean-pooling" / "healing.json").is_file()
    alone = heal(pooled(teacher), teacher, TEXTS, words, steps=12, batch=8, lr=3e-3, save_every=3, max_length=8)
    assert same(weights(other.model), weights(alone.model))


BASES = [
    ("bert", "AutoModelForSequenceClassification", "bert.embeddings.", ("pooler", "classifier")),
    ("gpt2", None, "wt wp", ()),
    ("opt", None, "embed_", ()),
    ("llama", CAUSAL, "model.embed_tokens.", ("lm_head",)),
    ("albert", None, "embeddings.", ("pooler",)),
    ("t5", None, "shared. encoder.embed_tokens.", ("decoder",)),
]


@pytest.mark.parametrize(("family", "auto", "tables", "above"), BASES)
def test_layers_are_trained_and_nothing_else(
    family: str, auto: str | None, tables: str, above: tuple[str, ...], words: PreTrainedTokenizerFast
) -> None:
    before, after = two_steps(family, auto, words)
    for name, weight in before.items():
        stays = any(part in name for part in (*tables.split(), *above))
        if stays or not name.endswith(("key.bias", "k_proj.bias")):  # the softmax does not see these
            assert torch.equal(weight, after[name]) == stays, name


@pytest.mark.parametrize(("family", "auto", "tables", "above"), BASES[:2])
def test_embeddings_are_trained_when_asked(
    family: str, auto: str | None, tables: str, above: tuple[str, ...], words: PreTrainedTokenizerFast
) -> None:
    before, after = two_steps(family, auto, words, train_embeddings=True)
    moved = {name for name, weight in before.items() if not torch.equal(weight, after[name])}
    assert {name for name in before if any(part in name for part in tables.split())} <= moved
    assert not any(part in name for part in above for name in moved)


def two_steps(
    family: str, auto: str | None, words: PreTrainedTokenizerFast, **more: Any
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    teacher = original(family, auto)
    off = [(layer, head) for layer in range(3) for head in (0, 1)]  # no layer is empty, or its norm would not move
    student = pruned(teacher, off)
    return weights(student), weights(heal(student, teacher, TEXTS, words, steps=2, batch=8, **more).model)


def test_it_is_the_training_that_it_says_it_is(words: PreTrainedTokenizerFast) -> None:
    """A loop by hand: data order, losses, their weights, clipping, AdamW and its schedule."""
    teacher = original("bert")
    student = pruned(teacher)
    steps, batch, lr, seed = 20, 4, 3e-3, 7
    healed = heal(
        student,
        teacher,
        TEXTS,
        words,
        steps=steps,
        batch=batch,
        lr=lr,
        seed=seed,
        parts={"hidden": 0.5, "embedding": 2.0},
    )
    expected = by_hand(student, teacher, steps=steps, batch=batch, lr=lr, seed=seed)
    found = weights(healed.model)
    assert all(torch.allclose(found[name], weight, rtol=0, atol=1e-9) for name, weight in weights(expected).items())
    assert not same(found, weights(student))
    assert [entry["step"] for entry in healed.log] == list(range(1, steps + 1))
    # at the step of each entry, after 2 steps of warm-up; the first is 0
    rates = [lr * (step / 2 if step < 2 else (1 + math.cos(math.pi * (step - 2) / 18)) / 2) for step in range(steps)]
    assert np.allclose([entry["learning_rate"] for entry in healed.log], rates, rtol=1e-12)


def by_hand(student: Any, teacher: Any, *, steps: int, batch: int, lr: float, seed: int) -> Any:
    shuffled = np.random.default_rng(seed).permutation(len(TEXTS))
    ids = [[WORDS.index(word) + 5 for word in TEXTS[number].split()] for number in shuffled[len(TEXTS) // 2 :]]
    rng = np.random.default_rng(seed)
    order = [row for _ in range(9) for row in rng.permutation(len(ids)).tolist()]
    model = copy.deepcopy(student)
    chosen = [weight for name, weight in model.named_parameters() if name.startswith("encoder.")]
    optimizer = torch.optim.AdamW(chosen, lr=lr, betas=(0.9, 0.98), eps=1e-8, weight_decay=0)
    with torch.no_grad():
        every = [torch.cat([layers(teacher, row)[number] for row in ids]) for number in range(3)]
    variances = [states.var(dim=0, correction=0).sum() for states in every]
    for step in range(steps):
        rate = step / 2 if step < 2 else (1 + math.cos(math.pi * (step - 2) / 18)) / 2
        for group in optimizer.param_groups:
            group["lr"] = lr * rate
        rows = [ids[row] for row in order[step * batch : (step + 1) * batch]]
        found = [layers(model, row) for row in rows]
        with torch.no_grad():
            wanted = [layers(teacher, row) for row in rows]
        hidden = 0.0
        for number, variance in enumerate(variances):
            one, other = (torch.cat([each[number] for each in states]) for states in (found, wanted))
            hidden = hidden + (one - other).square().sum(dim=-1).mean() / variance / 3
        pairs = zip(found, wanted, strict=True)
        angles = [1 - torch.cosine_similarity(one[2].mean(dim=0), other[2].mean(dim=0), dim=0) for one, other in pairs]
        loss = 0.5 * hidden + 2 * sum(angles) / batch
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(chosen, 1.0)
        optimizer.step()
    return model


def layers(model: PreTrainedModel, ids: list[int]) -> list[Tensor]:
    """Hidden states [token, hidden] after every layer, of one text alone."""
    return [states[0] for states in model(torch.tensor([ids]), output_hidden_states=True).hidden_states[1:]]


def test_neither_model_drops_anything_out_whatever_mode_it_comes_in(words: PreTrainedTokenizerFast) -> None:
    def healed_with(dropout: float, *, in_train_mode: bool) -> dict[str, Tensor]:
        off = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
        teacher = original("bert", **off)
        student = pruned(teacher)
        teacher.train(in_train_mode)
        teacher.encoder.layer[1].eval()
        healed = heal(student.train(in_train_mode), teacher, TEXTS, words, steps=4, batch=8, lr=3e-3)
        assert teacher.training == teacher.encoder.layer[0].training == student.training == in_train_mode
        assert not teacher.encoder.layer[1].training
        assert not healed.model.training
        return weights(healed.model)

    assert same(healed_with(0.5, in_train_mode=True), healed_with(0.0, in_train_mode=False))


def test_labels_train_the_network_below_the_models_own_head(words: PreTrainedTokenizerFast) -> None:
    teacher = original("bert", "AutoModelForSequenceClassification")
    labels = [int(len(text.split()) > 6) for text in TEXTS]
    healed = heal(
        pruned(teacher), teacher, TEXTS, words, steps=80, batch=16, lr=2e-3, labels=labels, parts={"task": 1.0}
    )
    with torch.no_grad():
        predicted = [int(healed.model(**words(text, return_tensors="pt")).logits.argmax()) for text in TEXTS]
    right = sum(one == other for one, other in zip(predicted, labels, strict=True))
    assert 15 < sum(labels) < 45
    assert right > 48


def test_labels_that_are_numbers_are_met(words: PreTrainedTokenizerFast) -> None:
    teacher = original("bert", "AutoModelForSequenceClassification", id2label={0: "length"})
    labels = [2.5] * len(TEXTS)
    parts = {"task": 1.0}
    healed = heal(pruned(teacher), teacher, TEXTS, words, steps=80, batch=16, lr=2e-3, labels=labels, parts=parts)
    with torch.no_grad():
        before, found = (
            [float(one(**words(text, return_tensors="pt")).logits) for text in TEXTS] for one in (teacher, healed.model)
        )
    assert max(abs(value - 2.5) for value in before) > 1
    assert max(abs(value - 2.5) for value in found) < 0.5


def test_where_there_are_labels_the_task_is_a_part_of_the_loss(words: PreTrainedTokenizerFast) -> None:
    teacher = original("bert", "AutoModelForSequenceClassification")
    healed = heal(pruned(teacher), teacher, TEXTS, words, steps=1, batch=4, labels=[0, 1] * 30)
    assert dict(healed.recipe.parts) == {"hidden": 1.0, "embedding": 1.0, "task": 1.0}
    first = healed.log[0]
    assert first["loss"] == pytest.approx(first["hidden"] + first["embedding"] + first["task"], rel=1e-6)


@pytest.mark.parametrize("parts", [{"task": 1.0}, {"logits": 1.0}])
def test_language_models_heal_on_windows_with_their_own_words(
    parts: dict[str, float], running: PreTrainedTokenizerFast
) -> None:
    teacher = original("gpt2", CAUSAL)
    healed = heal(pruned(teacher), teacher, ["w1 w2 w3 w4"] * 3 + sentences(60, 1), running, steps=30, batch=4, lr=5e-3,
                  parts=parts, max_length=16)  # fmt: skip
    (name,) = parts
    assert healed.log[-1][name] < healed.log[0][name]
    assert healed.recipe.max_length == 16


# ----------------------------------------------------------------------------------------------------------- by hand

MASK = torch.tensor([[1, 1, 1], [1, 0, 0]])
FOUND = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]], [[1.0, 1.0], [9.0, 9.0], [9.0, 9.0]]])
WANTED = torch.tensor([[[0.0, 0.0], [0.0, 0.0], [3.0, 0.0]], [[1.0, 0.0], [-9.0, 9.0], [5.0, 9.0]]])
BATCH = TextBatch(torch.tensor([[2, 1, 0], [1, 0, 0]]), MASK, torch.tensor([1, 0]))


def test_hidden_loss_of_a_drawing() -> None:
    # squared distances of the four real tokens: 1, 4, 1, 1; the second layer is right
    found = hidden_loss([FOUND, WANTED], [WANTED, WANTED], MASK, torch.tensor([3.5, 7.0]))
    assert found == pytest.approx((7 / 4 / 3.5 + 0) / 2)


def test_embedding_loss_of_a_drawing() -> None:
    # means (4, 3)/3 and (3, 0)/3: cosine 4/5; (1, 1) and (1, 0): cosine 1/sqrt 2
    assert embedding_loss(FOUND, WANTED, MASK) == pytest.approx(((1 - 0.8) + (1 - 2**-0.5)) / 2)


def test_logits_loss_of_a_drawing() -> None:
    """Of a fair coin from one that shows heads in three of four; of two tokens only the first differs."""
    coins = {0.0: [0.5, 0.5], 1.0: [0.75, 0.25]}

    def logits(hidden: Tensor) -> Tensor:
        return torch.tensor([coins[float(value)] for value in hidden[:, 0]]).log() + 2.0

    found = logits_loss(torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0], [1.0]]), logits, logits)
    assert found == pytest.approx((0.75 * math.log(1.5) + 0.25 * math.log(0.5)) / 2)


def test_losses_over_many_tokens_are_means_of_all_of_them() -> None:
    wanted = torch.zeros(600, 2)
    found = wanted.clone()
    found[599, 0] = math.log(3.0)
    kl = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    assert logits_loss(found, wanted, lambda one: one, lambda one: one) == pytest.approx(kl / 600)


def test_next_token_loss_of_a_drawing() -> None:
    batch = TextBatch(torch.tensor([[2, 1, 0], [1, 0, 0]]), MASK, torch.tensor([0, 1]))
    loss = next_token_task(lambda hidden: torch.stack([hidden[:, 0], hidden[:, 1]], dim=-1))
    # after the first token comes 1 (of logits 1, 0), after the second 0 (of logits 0, 2)
    expected = (math.log(1 + math.e) + math.log(1 + math.exp(2))) / 2
    assert loss(FOUND, batch) == pytest.approx(expected)
    alone = TextBatch(torch.tensor([[1]]), torch.tensor([[1]]), torch.tensor([0]))
    with pytest.raises(CorpusError, match="one token each"):
        loss(FOUND[:1, :1], alone)


def test_labels_go_with_their_texts() -> None:
    # row 0 is example 1, row 1 is example 0
    classes = label_task(lambda hidden, batch: hidden[:, 0], torch.tensor([0, 1]))
    assert classes(FOUND, BATCH) == pytest.approx((math.log(1 + math.e) + math.log(2)) / 2)
    numbers = label_task(lambda hidden, batch: hidden[:, 0, :1], torch.tensor([5.0, 3.0]))
    assert numbers(FOUND, BATCH) == pytest.approx(((1 - 3) ** 2 + (1 - 5) ** 2) / 2)


def test_variances_are_those_of_numpy_over_real_tokens() -> None:
    model = original("gpt2")
    rows = [[7, 8, 9, 10], [11, 12], [13, 14, 15]]
    found = layer_variances(model, padded_batches(rows, batch_tokens=6))
    every = [[layer.detach().numpy() for layer in layers(model, row)] for row in rows]
    expected = [np.concatenate([row[layer] for row in every]).var(axis=0).sum() for layer in range(3)]
    assert np.allclose(found.numpy(), expected, rtol=1e-10)


# ------------------------------------------------------------------------------------------------------------ the text


def test_what_calibration_holds_out_is_held_out(
    words: PreTrainedTokenizerFast, running: PreTrainedTokenizerFast
) -> None:
    for model, reader in ((original("bert"), words), (original("gpt2", CAUSAL), running)):
        corpus = Corpus(texts(sentences(300, 2)))
        expected = calibrate(loaded(model, reader), corpus, max_length=8, seed=3).held_out
        found = read(loaded(model, reader), corpus, None, None, max_length=8, seed=3)
        assert [one.input_ids.tolist() for one in found.held_out] == [one.input_ids.tolist() for one in expected]
        assert len(found.rows) > 40


def test_no_text_is_trained_on_and_judged_on(words: PreTrainedTokenizerFast) -> None:
    twice = ["w1 w2", "w3 w4", "w5 w6 w7"] * 20
    found = read(loaded(original("bert"), words), [*twice, "w8 w9"], ["w3 w4"], None, max_length=2, seed=0)
    assert sorted(found.rows) == [(6, 7)] * 20 + [(10, 11)] * 20 + [(13, 14)]
    assert [one.input_ids.tolist() for one in found.held_out] == [[[8, 9]]]


def test_every_text_comes_once_before_one_comes_again(words: PreTrainedTokenizerFast) -> None:
    found = read(loaded(original("bert"), words), TEXTS, ["w1"], None, max_length=8, seed=0).drawn(5, 30, seed=1)
    order = [found[place] for place in range(len(found))]
    assert len(order) == 150
    assert sorted(order[:60]) == sorted(order[60:120]) == list(range(60))
    assert order[:60] != order[60:120]


# ------------------------------------------------------------------------------------------------- going on with it


class _Stopped(Exception):
    pass


def stop_at(step: int) -> Callable[[str, int, int], None]:
    def progress(what: str, done: int, of: int) -> None:
        if done == step:
            raise _Stopped

    return progress


def run(words: PreTrainedTokenizerFast, **more: Any) -> Healed:
    teacher = original("bert", dtype=torch.float32)
    options = {"steps": 12, "batch": 8, "lr": 3e-3, "save_every": 3, "max_length": 8, **more}
    return heal(pruned(teacher), teacher, TEXTS, words, **options)


@pytest.mark.parametrize("stops", [[1], [3], [7], [4, 11], [12]])
def test_a_healing_that_goes_on_equals_one_in_a_single_piece(
    stops: list[int], tmp_path: Path, words: PreTrainedTokenizerFast
) -> None:
    whole, folder = run(words), tmp_path / "a" / "folder"
    for stop in stops:
        with pytest.raises(_Stopped):
            run(words, out=folder, progress=stop_at(stop))
    seen: list[tuple[str, int, int]] = []
    healed = run(words, out=folder, progress=lambda *told: seen.append(told))
    first = (stops[-1] - 1) // 3 * 3  # a stop at step 6 comes before its checkpoint
    assert seen == [("healing", step, 12) for step in range(first + 1, 13)]
    assert same(weights(healed.model), weights(whole.model))
    assert healed.log == whole.log
    assert (healed.before, healed.after) == (whole.before, whole.after)
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint-12", "healing.json"]


def test_a_finished_healing_is_read_and_not_done_again(tmp_path: Path, words: PreTrainedTokenizerFast) -> None:
    first = run(words, out=tmp_path)
    again = run(words, out=tmp_path, progress=stop_at(1))
    assert same(weights(first.model), weights(again.model))
    assert again.log == first.log


def test_a_checkpoint_that_was_not_written_to_its_end_is_passed_over(
    tmp_path: Path, words: PreTrainedTokenizerFast
) -> None:
    with pytest.raises(_Stopped):
        run(words, out=tmp_path, progress=stop_at(8))
    half = tmp_path / "checkpoint-9"
    half.mkdir()
    (half / "trainer_state.json").write_text('{"global_step": ')
    assert same(weights(run(words, out=tmp_path).model), weights(run(words).model))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"steps": 13}, r"other settings: steps \(12, now 13\)"),
        ({"lr": 1e-3}, r"other settings: lr \(0.003, now 0.001\)"),
        ({"seed": 1}, "other settings: seed"),
        ({"parts": {"hidden": 1.0}}, "other settings: parts"),
        ({"held_out": ["w1 w2"]}, "other settings: texts"),
    ],
)
def test_the_folder_of_another_request_is_refused(
    change: dict[str, Any], named: str, tmp_path: Path, words: PreTrainedTokenizerFast
) -> None:
    with pytest.raises(_Stopped):
        run(words, out=tmp_path, progress=stop_at(4))
    with pytest.raises(OutputError, match=f"was begun with {named}"):
        run(words, out=tmp_path, **change)


def test_the_folder_of_another_student_is_refused(tmp_path: Path, words: PreTrainedTokenizerFast) -> None:
    teacher = original("bert")
    one, other = pruned(teacher), pruned(teacher, [(0, 0)])
    heal(one, teacher, TEXTS, words, steps=2, batch=2, out=tmp_path)
    with pytest.raises(OutputError, match="other settings: student"):
        heal(other, teacher, TEXTS, words, steps=2, batch=2, out=tmp_path)


def test_folders_that_hold_something_are_left_alone(tmp_path: Path, words: PreTrainedTokenizerFast) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(OutputError, match=r"holds thesis\.txt and no healing"):
        run(words, out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(OutputError, match=r"cannot be read .*; give another folder"):
        run(words, out=tmp_path / "thesis.txt")
    run(words, out=tmp_path / "new", steps=1)
    with pytest.raises(OutputError, match="give a new folder, or resume=True"):
        run(words, out=tmp_path / "new", steps=1, resume=False)
    (tmp_path / "new" / "healing.json").write_text("{")
    with pytest.raises(OutputError, match=r"healing\.json cannot be read"):
        run(words, out=tmp_path / "new", steps=1)


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_damaged_checkpoint_is_named(file: str, tmp_path: Path, words: PreTrainedTokenizerFast) -> None:
    with pytest.raises(_Stopped):
        run(words, out=tmp_path, progress=stop_at(8))
    path = tmp_path / "checkpoint-6" / file
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(OutputError, match=r"checkpoint-6 cannot be read .*; remove it to start over"):
        run(words, out=tmp_path)


def test_a_full_disk_keeps_the_last_good_checkpoint(
    tmp_path: Path, words: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = torch.save

    def full(what: object, path: Any, *args: Any, **kwargs: Any) -> None:
        if "checkpoint-6" in str(path):
            raise RuntimeError("PytorchStreamWriter failed writing file data.pkl: file write failed\nframe #0")
        save(what, path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        with pytest.raises(OutputError, match=r"cannot be written .*\(.*file write failed\); make room on its disk"):
            run(words, out=tmp_path)
    assert (tmp_path / "checkpoint-3" / "trainer_state.json").exists()
    assert same(weights(run(words, out=tmp_path).model), weights(run(words).model))


# -------------------------------------------------------------------------------------------- what nobody should notice


def test_nothing_is_printed_left_behind_or_set(
    tmp_path: Path, words: PreTrainedTokenizerFast, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    states = np.random.get_state()[1].tolist(), torch.get_rng_state()
    run(words, seed=5)
    assert np.random.get_state()[1].tolist() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_random_states_are_put_back() -> None:
    """Python's by itself: the checks that tests run under draw from it."""

    def states() -> list[float]:
        return [random.random(), float(np.random.random()), float(torch.rand(()))]

    set_seed(1)
    expected = states()
    set_seed(1)
    with random_states_kept(torch.device("cpu")):
        set_seed(2)
    assert states() == expected


def test_a_healing_tells_itself_in_plain_values(words: PreTrainedTokenizerFast) -> None:
    healed = run(words)
    told = json.loads(json.dumps(healed.to_dict(), allow_nan=False))
    assert told["recipe"] == {
        "steps": 12, "batch": 8, "lr": 3e-3, "parts": {"hidden": 1.0, "embedding": 1.0}, "max_length": 8, "seed": 0,
        "progressive": 0.0, "train_embeddings": False, "bf16": False, "save_every": 3,
    }  # fmt: skip
    assert (told["objective"], told["heads"], told["last_step"]["step"]) == ("cosine_distortion", 4, 12)
    assert (told["before"], told["after"]) == (healed.before, healed.after)
    assert set(healed.log[0]) == {"step", "loss", "hidden", "embedding", "learning_rate", "grad_norm"}


def test_other_seeds_see_other_text_first(words: PreTrainedTokenizerFast) -> None:
    one, other = (run(words, seed=seed, held_out=["w1 w2"]) for seed in (0, 1))
    assert one.log[0]["loss"] != other.log[0]["loss"]
    assert one.before == other.before


# ------------------------------------------------------------------------------------------------------- random plans


@pytest.mark.parametrize("same_layers", [True, False])
def test_random_plans_are_healed_on_the_same_budget(
    same_layers: bool, tmp_path: Path, words: PreTrainedTokenizerFast
) -> None:
    teacher = original("bert", dtype=torch.float32)
    healed = run(words)
    made = []

    def make(plan: Any) -> Any:
        made.append(plan)
        return apply_plan(teacher, plan)

    found = list(
        heal_with_random(
            healed, teacher, TEXTS, words, make=make, draws=3, same_layers=same_layers, out=tmp_path / "all"
        )
    )
    assert [one.plan for one in found] == made
    assert len(set(made)) > 1
    counts = [tuple(map(len, plan.kept)) for plan in made]
    assert {sum(one) for one in counts} == {4}
    assert (set(counts) == {(3, 1, 0)}) == same_layers
    assert [(one.draw, one.recipe, len(one.log)) for one in found] == [(draw, healed.recipe, 12) for draw in range(3)]
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["random-0", "random-1", "random-2"]
    # the same model by the same recipe on the same text is the same, so the budget is the same
    again = next(heal_with_random(healed, teacher, TEXTS, words, make=lambda _: run_student(), draws=1))
    assert same(weights(again.model), weights(healed.model))


def run_student() -> Any:
    return pruned(original("bert", dtype=torch.float32))


# ----------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"steps": 0}, HealingError, "steps of at least 1, got 0"),
        ({"batch": 0}, HealingError, "batch of at least 1, got 0"),
        ({"save_every": 0}, HealingError, "save_every of at least 1"),
        ({"max_length": -1}, HealingError, "max_length of at least 1"),
        ({"lr": float("nan")}, HealingError, "positive number, got nan"),
        ({"lr": 0.0}, HealingError, "positive number"),
        ({"seed": -1}, HealingError, "seed must be 0 or more"),
        ({"parts": {}}, HealingError, "there must be one"),
        ({"parts": {"hidden": -1.0}}, HealingError, "positive weight"),
        ({"parts": {"cosine": 1.0}}, HealingError, "hidden, embedding, logits, task; got 'cosine'"),
        ({"parts": {"logits": 1.0}}, UnsupportedModel, "BertModel has no vocabulary head"),
        ({"parts": {"task": 1.0}}, UnsupportedModel, "its task needs labels"),
        ({"labels": [1, 0]}, CorpusError, "60 texts and 2 labels"),
        ({"held_out": []}, CorpusError, "60 texts to train on and 0 others"),
        ({"held_out": TEXTS}, CorpusError, "0 texts to train on and 60 others"),
        ({"held_out": [" "]}, CorpusError, "text 1"),
        ({"labels": [0] * 60}, UnsupportedModel, "BertModel is a base model and has no head"),
        ({"bf16": True}, UnsupportedModel, "this is float64 on cpu; leave out bf16"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused_in_a_sentence(
    options: dict[str, Any], error: type[HeadlensError], message: str, words: PreTrainedTokenizerFast
) -> None:
    teacher = original("bert")
    with pytest.raises(error, match=message) as found:
        heal(pruned(teacher), teacher, TEXTS, words, **options)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "there are 0; give at least two"),
        (["w1 w2"], "there are 1; give at least two"),
        (["w1", "  "], "text 2"),
        ("w1 w2", "got a single string"),
        (["w1 w2 w3", "w1 w2 w3"], "0 texts to train on"),
        (["w1", "w2", "w2"], "the same for all"),
    ],
)
def test_too_little_text_is_refused(given: Any, message: str, words: PreTrainedTokenizerFast) -> None:
    teacher = original("bert")
    with pytest.raises(CorpusError, match=message):
        heal(pruned(teacher), teacher, given, words, steps=1)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: original("roberta"), "the family bert, the teacher roberta"),
        (lambda: original("bert", heads=2), "the hidden size 32, the teacher 16"),
        (lambda: original("bert", layers=2), "the layers 3, the teacher 2"),
        (lambda: original("bert", vocab_size=120), "the vocabulary 99, the teacher 120"),
    ],
)
def test_models_that_do_not_belong_together_are_refused(
    other: Callable[[], PreTrainedModel], message: str, words: PreTrainedTokenizerFast
) -> None:
    with pytest.raises(HealingError, match=f"the student has {message}"):
        heal(pruned(original("bert")), other(), TEXTS, words, steps=1)


def test_the_tokenizer_of_another_model_is_refused() -> None:
    teacher = original("bert")
    with pytest.raises(CorpusError, match="gives the id 501, and BertModel has 99 tokens"):
        heal(
            pruned(teacher),
            teacher,
            ["many", "words"],
            tokenizer({"many": 500, "words": 501}),
            steps=1,
            held_out=["many"],
        )


def test_a_masked_twin_would_get_its_heads_back(words: PreTrainedTokenizerFast) -> None:
    teacher = original("bert")
    twin = masked_twin(teacher, full_plan(teacher).without([(0, 0)]), fill=None)
    with pytest.raises(PlanError, match="would come back in training"):
        heal(twin, teacher, TEXTS, words, steps=1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused(dtype: torch.dtype, words: PreTrainedTokenizerFast) -> None:
    teacher = original("bert", dtype=dtype)
    with pytest.raises(UnsupportedModel, match="small steps are lost; load it in float32"):
        heal(pruned(teacher), teacher, TEXTS, words, steps=1)


def test_a_head_that_is_the_table_of_embeddings_stays_as_it_is(words: PreTrainedTokenizerFast) -> None:
    teacher = original("gpt2", CAUSAL)
    with pytest.raises(UnsupportedModel, match="leave out train_embeddings"):
        heal(pruned(teacher), teacher, TEXTS, words, steps=1, train_embeddings=True)


def test_a_loss_that_is_no_number_stops_the_training(words: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    teacher = original("bert", dtype=torch.float32)
    student = pruned(teacher)
    with pytest.raises(HealingError, match=r"no number any more at step \d+ of 30: .* than 1e\+36"):
        heal(student, teacher, TEXTS, words, steps=30, lr=1e36, out=tmp_path / "new")


def test_without_accelerate_it_says_what_to_install(
    words: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setattr(sys.modules[Healed.__module__], "is_accelerate_available", lambda: False)
    with pytest.raises(HealingError, match="pip install accelerate"):
        run(words)


def test_bf16_multiplies_in_half_and_keeps_weights_whole(words: PreTrainedTokenizerFast) -> None:
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        with pytest.raises(UnsupportedModel, match="bf16 needs a device"):
            run(words, bf16=True)
        pytest.skip("this processor does not multiply in bfloat16")
    whole, half = run(words), run(words, bf16=True)
    assert half.model.dtype == torch.float32
    assert half.log[0]["loss"] != whole.log[0]["loss"]
    assert half.log[0]["loss"] == pytest.approx(whole.log[0]["loss"], rel=0.05)
    assert half.after < half.before
