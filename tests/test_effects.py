"""What is said of a head that was taken out, and how it is kept: the wording tells a use from a mere change."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from headlens.effects import Ablation, Effect, task_of
from headlens.errors import OutputError

NAN = float("nan")
USED = Effect(1, 3, "text", intact=3.21, change=0.031, low=0.025, high=0.038, q=0.001, documents=40)
MOVED = replace(USED, task="output", intact=NAN, change=0.012, low=0.010, high=0.014, q=NAN)


@pytest.mark.parametrize(
    ("effect", "sentence"),
    [
        (USED, "without it the loss rises by .031 [.025, .038] nats a token (from 3.21): the model uses it"),
        (
            replace(USED, task="repeats", change=2.5, low=2.25, high=2.75),
            "without it the loss on repeated tokens rises by 2.500 [2.250, 2.750] nats a token (from 3.21): "
            "the model uses it",
        ),
        (
            replace(USED, change=0.001, low=-0.002, high=0.003),
            "without it no rise of the loss is to be seen: .001 [−.002, .003] nats a token (from 3.21)",
        ),
        (
            replace(USED, change=-0.02, low=-0.03, high=-0.01),
            "without it the loss does not rise but changes by −.020 [−.030, −.010] nats a token (from 3.21)",
        ),
        (
            replace(USED, q=0.2),
            "without it the loss rises by .031 [.025, .038] nats a token (from 3.21), which among all heads taken out "
            "may be chance (q = .200)",
        ),
        (
            replace(USED, low=NAN, high=NAN),
            "without it the loss changes by .031 nats a token (from 3.21); one document cannot tell that from chance",
        ),
        (MOVED, "without it the sentence vectors move by .012 [.010, .014] (1 − cosine)"),
        (replace(MOVED, low=NAN, high=NAN), "without it the sentence vectors move by .012 (1 − cosine)"),
    ],
)
def test_sentence(effect: Effect, sentence: str) -> None:
    assert effect.sentence == sentence


@pytest.mark.parametrize(
    ("changed", "is_used"),
    [
        ({}, True),
        ({"task": "repeats"}, True),
        ({"low": 0.0}, False),
        ({"low": -0.001}, False),
        ({"low": NAN, "high": NAN}, False),
        ({"q": 0.049}, True),
        ({"q": 0.05}, False),
        ({"q": NAN}, False),
        ({"task": "output"}, False),  # nothing was found to get worse
    ],
)
def test_used_is_a_loss_that_rises_beyond_chance(changed: dict[str, Any], is_used: bool) -> None:
    effect = replace(USED, **changed)
    assert effect.is_used is is_used
    assert ("the model uses it" in effect.sentence) is is_used


def test_an_output_is_no_loss() -> None:
    assert USED.is_loss
    assert not MOVED.is_loss


def test_a_head_that_was_not_taken_out_has_no_effect() -> None:
    ablation = Ablation((USED, replace(MOVED, head=4)))
    assert ablation.of(1, 3) is USED
    assert ablation.of(1, 4) == replace(MOVED, head=4)
    assert ablation.of(3, 1) is None


def test_json_and_back() -> None:
    whole = Ablation(
        (replace(USED, p=0.0005, median_of_heads=0.002), replace(USED, head=4, change=1.0)), {"text": 3971}, 7
    )
    plain = whole.to_dict()
    text = json.dumps(plain, allow_nan=False)
    assert json.loads(text)["effects"][0]["name"] == "L1H3"
    assert json.loads(text)["effects"][1]["p"] is None
    again = Ablation.from_dict(json.loads(text))
    assert again.effects[0] == whole.effects[0]
    assert (again.asked, again.seed) == ({"text": 3971}, 7)
    assert again.to_dict() == plain


def test_whole_numbers_of_json_are_read() -> None:
    plain = Ablation((USED,)).to_dict()
    plain["effects"][0] |= {"change": 1, "high": 2}
    assert Ablation.from_dict(plain).effects[0].change == 1.0


def broken(**changed: Any) -> dict[str, Any]:
    plain = Ablation((USED,)).to_dict()
    plain["effects"][0] |= changed
    return plain


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([], "must be a dict with a list of effects"),
        ({"effects": {}}, "must be a dict with a list of effects"),
        ({"effects": [3]}, "must have the entries layer, head"),
        (broken(more=1), "must have the entries layer, head"),
        ({"effects": [{"name": "L0H0", "layer": 0}]}, "must have the entries layer, head"),
        (broken(layer="1"), "layer of an effect must be a whole number, got '1'"),
        (broken(head=1.5), "head of an effect must be a whole number, got 1.5"),
        (broken(documents=True), "documents of an effect must be a whole number, got True"),
        (broken(documents=0), "at least one document"),
        (broken(layer=-1), "a layer and a head from 0 on"),
        (broken(change="much"), "change of an effect must be a number or null, got 'much'"),
        (broken(change=None), "L1H3: the change must be a number"),
        (broken(low=float("inf")), "L1H3: low must be a finite number or NaN"),
        (broken(low=0.5), "L1H3: the interval must not end before it begins, got 0.5 to 0.038"),
        (broken(change=10**400), "too large"),
        (broken(task="love"), "must be one of text, repeats, output, got 'love'"),
        (broken() | {"asked": {"love": 3}}, "asked must give a whole number by task"),
        (broken() | {"asked": 3}, "asked must give a whole number by task"),
        (broken() | {"seed": None}, "seed of an ablation must be a whole number, got None"),
        ({"effects": broken()["effects"] * 2}, "L1H3 is there more often"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(found: Any, message: str) -> None:
    with pytest.raises(OutputError, match=message) as raised:
        Ablation.from_dict(found)
    assert str(raised.value).endswith("; run the profile again.")


@pytest.mark.parametrize(
    ("roles", "is_causal", "task"),
    [
        (["induction"], True, "repeats"),
        (["anti_induction"], True, "repeats"),
        (["comma", "duplicate_token"], True, "repeats"),
        (["previous_random_token"], True, "repeats"),
        (["previous_token"], True, "text"),
        ([], True, "text"),
        (["duplicate_token"], False, "text"),  # what a model sees ahead of it need not predict
    ],
)
def test_heads_of_repetition_are_asked_about_repeats(roles: list[str], is_causal: bool, task: str) -> None:
    assert task_of(roles, is_causal=is_causal) == task
