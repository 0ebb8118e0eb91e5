"""Objectives, against what transformers says of the same model, and against formulas written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)

from headlens.errors import CorpusError, UnsupportedModel
from headlens.importance.inputs import TextBatch, padded_batches
from headlens.importance.leave_one_out import leave_one_out
from headlens.importance.objectives import (
    CosineDistortion,
    Objective,
    cosine_distortion,
    hidden_distortion,
    kl_distortion,
    label_loss,
    masked_token_loss,
    next_token_loss,
    own_head,
    token_logits,
)
from headlens.testing import tiny_model

TEXTS = [[7, 31, 5, 88, 64], [90, 6, 13], [55, 18, 23, 61, 70, 8, 9]]


def batches() -> list[TextBatch]:
    return padded_batches(TEXTS, batch_tokens=10)  # of 2 rows with padding, and of 1


def whole_of(auto: type, family: str, **more: object) -> PreTrainedModel:
    """A model with its head, all weights drawn widely."""
    config = tiny_model(family).config
    for name, value in more.items():
        setattr(config, name, value)
    whole = auto.from_config(config).double().eval()
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for _, weight in sorted(whole.named_parameters()):
            weight.copy_((weight == 1).all() + 0.3 * torch.randn(weight.shape, generator=generator).double())
    return whole.requires_grad_(False)


@torch.no_grad()
def last(network: PreTrainedModel, text: list[int]) -> Tensor:
    return network(input_ids=torch.tensor([text])).last_hidden_state[0]


@torch.no_grad()
def values_of(objective: Objective, network: PreTrainedModel) -> list[float]:
    found = torch.zeros(objective.examples, dtype=torch.float64)
    for batch in objective.batches:
        hidden = network(input_ids=batch.input_ids, attention_mask=batch.attention_mask).last_hidden_state
        found[batch.example] = objective.values(hidden, batch)
    return found.tolist()


def moved(network: PreTrainedModel) -> PreTrainedModel:
    """Another network of the same family."""
    return tiny_model(network.config.model_type, seed=5)


# --------------------------------------------------------------------------------------------------------- distortions


def test_cosine_distortion() -> None:
    network = tiny_model("bert")
    other, expected = moved(network), []
    for text in TEXTS:
        one, two = (last(each, text).mean(dim=0).numpy() for each in (network, other))
        expected.append(1 - one @ two / np.sqrt(one @ one * (two @ two)))
    assert values_of(cosine_distortion(network, batches()), other) == pytest.approx(expected, rel=1e-10)


def test_hidden_distortion() -> None:
    network = tiny_model("gpt2")
    other = moved(network)
    intact = [last(network, text).numpy() for text in TEXTS]
    variance = np.concatenate(intact).var(axis=0).sum()
    expected = [
        ((last(other, text).numpy() - one) ** 2).sum(axis=1).mean() / variance
        for text, one in zip(TEXTS, intact, strict=True)
    ]
    assert values_of(hidden_distortion(network, batches()), other) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("kept_bytes", [1 << 20, 0])
def test_kl_distortion(kept_bytes: int) -> None:
    whole = whole_of(AutoModelForCausalLM, "llama")
    network, other, expected = whole.base_model, tiny_model("llama", seed=5), []
    for text in TEXTS:
        one, two = (whole.lm_head(last(each, text)).log_softmax(dim=-1).detach() for each in (network, other))
        expected.append(float((one.exp() * (one - two)).sum(dim=-1).mean()))
    objective = kl_distortion(network, batches(), token_logits(whole), kept_bytes=kept_bytes)
    assert values_of(objective, other) == pytest.approx(expected, rel=1e-10)


DISTORTIONS = ["cosine_distortion", "hidden_distortion", "kl_distortion"]


def distortion(name: str) -> tuple[Objective, PreTrainedModel]:
    whole = whole_of(AutoModelForCausalLM, "gpt2")
    network = whole.base_model
    if name == "kl_distortion":
        return kl_distortion(network, batches(), token_logits(whole)), network
    return {"cosine_distortion": cosine_distortion, "hidden_distortion": hidden_distortion}[name](
        network, batches()
    ), network


@pytest.mark.parametrize("name", DISTORTIONS)
def test_a_distortion_is_0_at_the_model_as_it_is_and_so_is_its_gradient(name: str) -> None:
    objective, network = distortion(name)
    assert (objective.name, objective.is_distortion) == (name, True)
    assert values_of(objective, network) == pytest.approx([0, 0, 0], abs=1e-13)
    for batch in objective.batches:
        hidden = network(input_ids=batch.input_ids, attention_mask=batch.attention_mask).last_hidden_state
        hidden = hidden.detach().requires_grad_()
        objective.values(hidden, batch).sum().backward()
        assert float(hidden.grad.abs().max()) < 1e-12


@pytest.mark.parametrize("name", DISTORTIONS)
def test_a_distortion_has_the_gradient_of_its_differences(name: str) -> None:
    objective, network = distortion(name)
    batch = objective.batches[0]
    hidden = network(input_ids=batch.input_ids, attention_mask=batch.attention_mask).last_hidden_state.detach()
    hidden = hidden + torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda given: objective.values(given, batch), hidden.requires_grad_())


@pytest.mark.parametrize("name", DISTORTIONS)
def test_rows_may_come_again_in_any_order(name: str) -> None:
    objective, network = distortion(name)
    batch, rows = objective.batches[0], torch.tensor([1, 0, 1, 1])
    with torch.no_grad():
        hidden = moved(network)(input_ids=batch.input_ids, attention_mask=batch.attention_mask).last_hidden_state
        alone = objective.values(hidden, batch)
        assert torch.allclose(objective.values(hidden[rows], batch, rows), alone[rows], rtol=0, atol=1e-12)
        assert torch.allclose(objective.values(hidden[rows], batch.take(rows)), alone[rows], rtol=0, atol=1e-12)


def test_tiny_distortions_keep_their_digits() -> None:
    """In float32, where 1 - cosine has steps of 6e-8."""
    batch = padded_batches([[5]])[0]
    objective = CosineDistortion([batch], torch.tensor([[1.0, 0.0]]))
    found = objective.values(torch.tensor([[[1.0, 1e-5]]]), batch)
    assert float(found) == pytest.approx(5e-11, rel=1e-4)


# -------------------------------------------------------------------------------------------------------------- losses


@pytest.mark.parametrize(
    ("family", "more"),
    # the head of OPT calls the decoder within its network; with a projection, on narrower states than its layers have
    [("gpt2", {}), ("llama", {}), ("opt", {}), ("opt", {"word_embed_proj_dim": 12})],
)
def test_next_token_loss_is_that_of_transformers(family: str, more: dict[str, object]) -> None:
    whole = whole_of(AutoModelForCausalLM, family, **more)
    objective = next_token_loss(batches(), token_logits(whole))
    expected = [float(whole(torch.tensor([text]), labels=torch.tensor([text])).loss) for text in TEXTS]
    assert values_of(objective, whole.base_model) == pytest.approx(expected, rel=1e-6)  # transformers' is in float32
    assert (objective.name, objective.is_distortion) == ("next_token_loss", False)


@pytest.mark.parametrize("family", ["bert", "distilbert", "roberta"])
def test_masked_token_loss_is_that_of_transformers(family: str) -> None:
    whole = whole_of(AutoModelForMaskedLM, family)
    objective = masked_token_loss(batches(), token_logits(whole), 3, special=[7, 90], share=0.9, seed=1)
    expected = []
    for example, text in enumerate(TEXTS):
        ids = next(
            batch.input_ids[row, : len(text)]
            for batch in objective.batches
            for row, number in enumerate(batch.example.tolist())
            if number == example
        )
        masked = ids == 3
        assert torch.equal(ids[~masked], torch.tensor(text)[~masked])
        assert not {7, 90} & set(torch.tensor(text)[masked].tolist())
        free = len(set(text) - {7, 90})
        assert int(masked.sum()) == round(0.9 * free)
        labels = torch.tensor(text).where(masked, -100)
        expected.append(float(whole(ids[None], labels=labels[None]).loss))
    assert values_of(objective, whole.base_model) == pytest.approx(expected, rel=1e-6)


def test_a_single_token_has_no_next_one() -> None:
    with pytest.raises(CorpusError, match=r"1 of 2 have none \(e.g. example 1\)"):
        next_token_loss(padded_batches([[4, 5], [6]]), lambda hidden: hidden)


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("bert", {}),
        ("roberta", {}),
        ("distilbert", {}),
        ("gpt2", {"pad_token_id": 0}),
        ("llama", {"pad_token_id": 0}),
        ("opt", {}),
    ],
)
def test_the_own_head_of_a_classifier_gives_its_logits(family: str, more: dict[str, object]) -> None:
    whole = whole_of(AutoModelForSequenceClassification, family, num_labels=3, **more)
    objective = label_loss(batches(), [2, 0, 1], own_head(whole))
    expected = [
        float(torch.nn.functional.cross_entropy(whole(torch.tensor([text])).logits, torch.tensor([label])))
        for text, label in zip(TEXTS, [2, 0, 1], strict=True)
    ]
    assert values_of(objective, whole.base_model) == pytest.approx(expected, rel=1e-9)
    assert objective.unit == "nats"


def test_numbers_are_met_by_their_squared_error() -> None:
    whole = whole_of(AutoModelForSequenceClassification, "bert", num_labels=1)
    objective = label_loss(batches(), [0.5, -1.0, 2.0], own_head(whole))
    expected = [
        float((whole(torch.tensor([text])).logits[0, 0] - label) ** 2)
        for text, label in zip(TEXTS, [0.5, -1.0, 2.0], strict=True)
    ]
    assert values_of(objective, whole.base_model) == pytest.approx(expected, rel=1e-9)


def test_labels_of_another_number_are_refused() -> None:
    with pytest.raises(CorpusError, match="3 examples, and labels of the shape"):
        label_loss(batches(), [1, 0], lambda hidden, _batch: hidden)


def test_a_base_model_has_no_head() -> None:
    with pytest.raises(UnsupportedModel, match="is a base model and has no head"):
        own_head(tiny_model("bert"))


def test_a_loss_can_fall_when_a_head_goes() -> None:
    """Values are differences to the model as it is, with their sign."""
    whole = whole_of(AutoModelForCausalLM, "gpt2")
    objective = next_token_loss(batches(), token_logits(whole))
    found = leave_one_out(whole.base_model, objective)
    assert (found.values < 0).any()
    assert (found.values > 0).any()
    weight = whole.transformer.h[1].attn.c_proj.weight
    before = values_of(objective, whole.base_model)
    with torch.no_grad():
        weight[8:16] = 0  # L1H1
    change = np.array(values_of(objective, whole.base_model)) - before
    assert found.per_example[:, 1, 1] == pytest.approx(change, abs=1e-11)
