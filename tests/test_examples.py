"""Examples of heads: what is kept of a pattern, which texts are short enough, and the file that holds them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_words import bare

from headlens.corpora import texts
from headlens.documents import Choice, Document, Mention
from headlens.errors import OutputError
from headlens.examples import (
    Example,
    Examples,
    Unshown,
    direction_of,
    mean_of_largest,
    short_stretches,
    short_texts,
)
from headlens.testing import draw

DOG = Example(
    layer=7,
    head=9,
    text_id="a.conllu:3",
    words=("the", "dog", "barks"),
    arcs=((1, 0, 0.42), (2, 1, 0.123), (2, 2, 0.5)),
    rest=(1.0, 0.58, 0.007),
    unknown=(1,),
    direction="ltr",
    strength=0.271,
    why="syntax",
)
HEBREW = replace(DOG, head=0, words=("שלום", "עולם", "!"), direction="rtl", unknown=(), why="")
AGAIN = replace(DOG, arcs=(), strength=0.1)
SHOWING = replace(DOG, shown=(0, 2), asked=4, right=3)
NONE = Unshown(7, 1, "coreference", run=7, able=3, strength=0.125)


def saved(examples: Examples, folder: Path) -> Path:
    (write,) = examples.writers().values()
    path = folder / "examples.json"
    write(path)
    return path


def short(documents: Any, most_words: int = 6, seed: int = 0) -> list[Document]:
    return short_texts(documents, most_words, np.random.default_rng(seed))


def words_of(documents: Any, most_words: int = 6) -> list[str]:
    return [" ".join(text.sentences[0].words) for text in short(documents, most_words)]


# ------------------------------------------------------------------------------------------------------ one example


def test_arcs_are_shares_from_a_tenth_on_and_special_tokens_are_a_number():
    probs = draw([". .0999 .1", ".12345 .4 .", ". . 1"]).numpy()
    special = draw([".3 .5", ".2 .27655", ". ."]).numpy()
    example = Example.of_attention((3, 1), bare("a b c"), probs, special, (2,), 0.123456, "syntax")
    assert example == Example(
        3,
        1,
        "a sentence",
        ("a", "b", "c"),
        arcs=((0, 2, 0.1), (1, 0, 0.123), (1, 1, 0.4), (2, 2, 1.0)),
        rest=(0.8, 0.477, 0.0),
        unknown=(2,),
        direction="ltr",
        strength=0.123,
        why="syntax",
    )


def test_the_largest_share_is_averaged_over_words_that_have_a_token():
    probs = np.stack([draw([".1 .2", ". ."]).numpy(), draw([".7 .2", ".3 .4"]).numpy()])
    assert mean_of_largest(probs, np.array([True, False])).tolist() == pytest.approx([0.2, 0.7])
    assert mean_of_largest(probs, np.array([True, True])).tolist() == pytest.approx([0.1, 0.55])


@pytest.mark.parametrize(
    "change",
    [
        {"words": ()},
        {"rest": (0.1, 0.2)},
        {"layer": -1},
        {"arcs": ((0, 3, 0.5),)},
        {"arcs": ((-1, 0, 0.5),)},
        {"unknown": (3,)},
        {"arcs": ((0, 1, 1.2),)},
        {"rest": (0.1, 0.2, float("nan"))},
        {"strength": -0.5},
        {"shown": (3,), "asked": 1, "right": 1},
        {"asked": 1, "right": 2},
    ],
)
def test_what_no_head_can_do_is_refused(change):
    with pytest.raises(OutputError):
        replace(DOG, **change)


def test_arcs_that_show_the_role_are_told_apart_as_far_as_they_are_drawn():
    shown = DOG.showing({(2, 2), (0, 1), (1, 0)}, asked=4, right=3)
    assert shown == replace(DOG, shown=(0, 2), asked=4, right=3)


@pytest.mark.parametrize("change", [{"layer": -1}, {"able": 8}, {"strength": float("nan")}])
def test_a_head_without_examples_needs_a_place_texts_and_a_share(change):
    with pytest.raises(OutputError, match="A head without examples has a place, texts and a share"):
        replace(NONE, **change)


def test_plain_values_are_what_a_page_can_read():
    assert json.loads(json.dumps(DOG.to_dict())) == {
        "layer": 7,
        "head": 9,
        "text_id": "a.conllu:3",
        "words": ["the", "dog", "barks"],
        "arcs": [[1, 0, 0.42], [2, 1, 0.123], [2, 2, 0.5]],
        "rest": [1.0, 0.58, 0.007],
        "unknown": [1],
        "direction": "ltr",
        "strength": 0.271,
        "why": "syntax",
        "shown": [],
        "asked": 0,
        "right": 0,
    }


@pytest.mark.parametrize(
    ("text", "direction"),
    [
        ("the dog", "ltr"),
        ("狗在叫", "ltr"),
        ("123 ... !", "ltr"),
        ("שלום עולם", "rtl"),
        ("كان الكلب", "rtl"),
        ("GPT הוא מודל שפה", "rtl"),
        ("the word שלום means peace", "ltr"),
    ],
)
def test_direction_is_that_of_most_letters(text, direction):
    assert direction_of(text) == direction


# --------------------------------------------------------------------------------------------------------- the file


def test_examples_of_a_head_come_in_their_order():
    examples = Examples((DOG, HEBREW, AGAIN))
    assert examples.of(7, 9) == (DOG, AGAIN)
    assert examples.of(7, 0) == (HEBREW,)
    assert examples.of(0, 0) == ()
    assert len(examples) == 3
    assert list(examples) == [DOG, HEBREW, AGAIN]


def test_what_is_saved_comes_back(tmp_path):
    saved(Examples((DOG, AGAIN, HEBREW)), tmp_path)
    assert Examples.load(tmp_path).listed == (DOG, AGAIN, HEBREW)


def test_what_shows_a_role_and_heads_without_examples_come_back(tmp_path):
    text = saved(Examples((SHOWING,), (NONE,)), tmp_path).read_text(encoding="utf-8")
    assert Examples.load(tmp_path) == Examples((SHOWING,), (NONE,))
    content = json.loads(text)
    assert {key: content["heads"]["7.9"][0][key] for key in ("shown", "asked", "right")} == {
        "shown": [0, 2],
        "asked": 4,
        "right": 3,
    }
    assert content["unshown"] == {"7.1": {"why": "coreference", "run": 7, "able": 3, "strength": 125}}


def test_no_examples_are_saved_and_come_back(tmp_path):
    saved(Examples(), tmp_path)
    assert Examples.load(tmp_path).listed == ()


def test_the_file_holds_every_text_once_and_whole_thousandths(tmp_path):
    text = saved(Examples((DOG, AGAIN, HEBREW)), tmp_path).read_text(encoding="utf-8")
    assert json.loads(text) == {
        "schema": "headlens.examples/1",
        "texts": [
            {"id": "a.conllu:3", "words": ["the", "dog", "barks"], "unknown": [1], "direction": "ltr"},
            {"id": "a.conllu:3", "words": ["שלום", "עולם", "!"], "unknown": [], "direction": "rtl"},
        ],
        "heads": {
            "7.9": [
                {
                    "text": 0,
                    "arcs": [1, 0, 420, 2, 1, 123, 2, 2, 500],
                    "rest": [1000, 580, 7],
                    "strength": 271,
                    "why": "syntax",
                },
                {"text": 0, "arcs": [], "rest": [1000, 580, 7], "strength": 100, "why": "syntax"},
            ],
            "7.0": [
                {
                    "text": 1,
                    "arcs": [1, 0, 420, 2, 1, 123, 2, 2, 500],
                    "rest": [1000, 580, 7],
                    "strength": 271,
                    "why": "",
                }
            ],
        },
    }
    assert "שלום" in text


def test_a_file_name_that_is_no_text_does_not_stop_the_file(tmp_path):
    saved(Examples((replace(DOG, text_id="a\udcff:1"),)), tmp_path)
    assert Examples.load(tmp_path).of(7, 9)[0].text_id == "a?:1"


def test_a_large_model_stays_under_four_megabytes(tmp_path):
    arcs = tuple((word, (word + step) % 24, 0.199) for word in range(24) for step in range(5))
    crowded = replace(DOG, words=("word",) * 24, arcs=arcs, rest=(0.005,) * 24, unknown=(), why="small_value_sink")
    examples = Examples(tuple(replace(crowded, layer=layer, head=head) for layer in range(48) for head in range(64)))
    assert saved(examples, tmp_path).stat().st_size < 4 << 20


def test_a_missing_file_is_named_with_the_way_out(tmp_path):
    with pytest.raises(
        OutputError, match=r"examples\.json is not there; give the folder of a profile, or run the profile again"
    ):
        Examples.load(tmp_path)


@pytest.mark.parametrize("content", ["", "{", '{"schema": "headlens.examples/1"', "\xff", "[" * 100_000])
def test_a_file_that_is_no_json_is_refused_in_one_sentence(tmp_path, content):
    (tmp_path / "examples.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(OutputError, match=r"examples\.json cannot be read .* run the profile again"):
        Examples.load(tmp_path)


@pytest.mark.parametrize("content", ["[]", "{}", "null", '{"schema": "headlens.examples/2"}', '{"schema": []}'])
def test_another_schema_is_refused(tmp_path, content):
    (tmp_path / "examples.json").write_text(content, encoding="utf-8")
    with pytest.raises(OutputError, match=r"has the schema .*, this headlens reads 'headlens\.examples/1'"):
        Examples.load(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        {"texts": None},
        {"texts": []},
        {"heads": []},
        {"heads": {"7": []}},
        {"heads": {"7.x": [{"text": 0}]}},
        {"unshown": {"7.1": {"why": "syntax", "run": 1, "able": 2, "strength": 0}}},
        {"unshown": {"7.1": {"why": "syntax"}}},
        {"unshown": [1]},
        {"example": {"text": 5}},
        {"example": {"text": -1.5}},
        {"example": {"arcs": [1, 0]}},
        {"example": {"arcs": [1, 7, 500]}},
        {"example": {"arcs": [1, 0, 0.42]}},
        {"example": {"arcs": [1, 0, 5000]}},
        {"example": {"rest": [1]}},
        {"example": {"rest": None}},
        {"example": {"strength": "much"}},
        {"example": {"why": None}},
        {"example": {"shown": [3], "asked": 1}},
        {"example": {"asked": 0.5}},
        {"text": {"words": [*"the dog barks".split(), 4]}},
        {"text": {"direction": "up"}},
        {"text": {"unknown": [True]}},
        {"text": {"id": 3}},
    ],
)
def test_broken_content_is_refused_in_one_sentence(tmp_path, damage):
    content = Examples((DOG,)).to_dict()
    content["heads"]["7.9"][0] |= damage.pop("example", {})
    content["texts"][0] |= damage.pop("text", {})
    if damage == {"heads": {"7": []}}:
        damage = {"heads": {"7": content["heads"]["7.9"]}}
    (tmp_path / "examples.json").write_text(json.dumps(content | damage), encoding="utf-8")
    with pytest.raises(OutputError, match=r"examples\.json does not hold examples of heads") as caught:
        Examples.load(tmp_path)
    assert "\n" not in str(caught.value)
    assert "Error" not in str(caught.value)  # as Python calls it


def test_what_is_missing_of_the_examples_is_named(tmp_path):
    content = Examples((DOG,)).to_dict()
    del content["heads"]
    (tmp_path / "examples.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(OutputError, match=r"as it should \(heads is missing\); run the profile again\.$"):
        Examples.load(tmp_path)


# ------------------------------------------------------------------------------------------------------ short texts


def test_annotated_sentences_are_whole_or_left_out():
    long, fitting = bare("a b c d e f g"), bare("a b c d e f")
    assert words_of([Document.of_sentences([long, fitting], "d")]) == ["a b c d e f"]


DOGS = (bare("a dog saw a man"), bare("it ran"), bare("he saw it go and laughed loud"), bare("very long " * 5))
REFERRING = [
    *(Mention(0, 2, "dog"), Mention(3, 5, "man"), Mention(5, 6, "dog")),
    *(Mention(7, 8, "man"), Mention(9, 10, "dog"), Mention(4, 6, "across"), Mention(14, 15, "x"), Mention(15, 16, "x")),
]


def stretches_of(documents: list[Document], most_words: int) -> list[Document]:
    return short_stretches(documents, most_words, np.random.default_rng(0))


def test_stretches_are_whole_sentences_with_their_mentions_counted_from_the_first_word():
    found = stretches_of([Document.of_sentences(DOGS, "d", mentions=REFERRING)], 7)
    assert [(len(text.sentences), text.mentions) for text in found] == [
        (2, (Mention(0, 2, "dog"), Mention(3, 5, "man"), Mention(5, 6, "dog"), Mention(4, 6, "across"))),
        (1, (Mention(0, 1, "man"), Mention(2, 3, "dog"))),
    ]  # the last sentence is too long
    assert [text.text for text in found] == ["a dog saw a man it ran", "he saw it go and laughed loud"]


def test_text_without_coreference_has_no_stretches():
    assert stretches_of([Document.of_sentences(DOGS, "d")], 7) == []
    assert stretches_of([Document.of_sentences(DOGS, "d", mentions=REFERRING[:1])], 7) == []


def test_pronouns_to_resolve_stay_with_their_sentence():
    choice = Choice(4, 5, ())
    document = Document.of_sentences([bare("a dog saw a man")], "d", choices=[choice])
    assert short([document])[0].choices == (choice,)


def test_plain_text_is_cut_behind_the_last_full_stop_within_reach_else_at_the_limit():
    text = "One two three. Four five! Six seven eight nine ten eleven twelve thirteen."
    assert words_of(texts(text), 8) == [
        "One two three . Four five !",
        "Six seven eight nine ten eleven twelve thirteen",
    ]
    assert words_of(texts("我们在家。他们在北京学习"), 6) == ["我 们 在 家 。", "他 们 在 北 京 学"]


def test_a_text_that_just_fits_is_not_cut():
    assert words_of(texts("One two three. Four five"), 6) == ["One two three . Four five"]


def test_words_of_a_stretch_stand_where_their_characters_are():
    found = short(texts("Oh, my dear dog. Your cat ran away."), 6)
    for text in found:
        (sentence,) = text.sentences
        assert tuple(sentence.text[start:stop] for start, stop in sentence.spans) == sentence.words
        assert text.id == "text 1"
    assert [text.text for text in found] == ["Oh, my dear dog.", "Your cat ran away."]


def test_very_short_texts_are_taken_where_there_are_no_others():
    short_one, fitting = bare("yes sir"), bare("a b c d e")
    assert words_of([Document.of_sentences([short_one, fitting], "d")]) == ["a b c d e"]
    assert words_of([Document.of_sentences([short_one], "d")]) == ["yes sir"]
    assert words_of([Document.of_sentences([bare("yes")], "d")]) == []


def test_annotated_text_is_cut_where_every_sentence_is_too_long():
    assert words_of([Document.of_sentences([bare("a b c d e f g h")], "d")]) == ["a b c d e f", "g h"]


def test_the_same_sentence_is_taken_once():
    assert words_of(texts(["one two three four five"] * 3)) == ["one two three four five"]


def test_texts_are_in_the_order_of_the_corpus_and_the_same_for_a_seed():
    numbered = texts([f"sentence number {number} of the many" for number in range(600)])
    found = words_of(numbered)
    places = [int(words.split()[2]) for words in found]
    assert places == sorted(places)
    assert len(places) == len(set(places)) == 512
    assert max(places) > 550  # not merely the first
    assert found == words_of(numbered)
    assert short(numbered, seed=1) != short(numbered)


def test_a_book_on_one_line_is_not_read_to_its_end():
    sentence = f"{'w' * 80}%04d of the long book. "  # of 100 characters or so
    found = words_of(texts("".join(sentence % number for number in range(400))), 6)
    assert 0.9 < len(found) * len(sentence % 0) / 20_000 <= 1
    assert [int(words.split()[0].strip("w")) for words in found] == list(range(len(found)))
