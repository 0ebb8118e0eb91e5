"""Where heads are strongest: closed forms on heads that attend to all alike, and what transformers itself reports."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pytest
import torch
from drawn_words import bare, parsed
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from headlens.corpora import texts
from headlens.documents import Candidate, Choice, Document, Mention, Sentence
from headlens.errors import UnsupportedModel
from headlens.examples import Example, Examples, Unshown
from headlens.find_examples import find_examples
from headlens.models import network_of
from headlens.roles.role import HeadRole, Role
from headlens.roles.table import Roles
from headlens.testing import Planted, planted_bert, planted_gpt2, slow_attentions, tiny_model

LAYERS, HEADS = 2, 6
BERT_UNIFORM, GPT2_UNIFORM = (1, 5), (1, 0)
SIZE = 8  # words of SENTENCE

# 0 the, 1 old, 2 dog, 3 saw, 4 it, 5 ",", 6 the, 7 "."
SENTENCE = parsed(
    "the DET 3 det",
    "old ADJ 3 amod",
    "dog NOUN 4 nsubj",
    "saw VERB 0 root",
    "it PRON 4 obj",
    ", PUNCT 4 punct",
    "The DET 4 obl",
    ". PUNCT 4 punct",
)
ANNOTATED = Document.of_sentences(
    [SENTENCE],
    "drawn",
    mentions=[Mention(0, 3, "dog"), Mention(1, 2, "age"), Mention(4, 5, "dog"), Mention(6, 7, "other")],
    choices=[Choice(4, 5, (Candidate(2, 3, True), Candidate(6, 7, False)))],
)


@lru_cache
def bert() -> Planted:
    return planted_bert()


@lru_cache
def gpt2() -> Planted:
    return planted_gpt2()


def label(place: tuple[int, int], role: str, metric: str = "") -> HeadRole:
    nan = float("nan")
    named = Role(role, "x", role, "kind", 5, "", "")
    return HeadRole(named, *place, metric, 0.9, 0.8, 1.0, nan, 0.1, "chance", nan, nan, 100.0, True, "")


def roles(*held: HeadRole, layers: int = LAYERS, heads: int = HEADS) -> Roles:
    return Roles(layers, heads, (), held)


def in_bert(corpus: Sequence[Document], *held: HeadRole, **options: int) -> Examples:
    return find_examples(bert().model, bert().tokenizer, corpus, roles(*held), is_causal=False, **options)


def told(found: Examples, place: tuple[int, int]) -> tuple[str, float]:
    """The role and the share that goes where it says, whether the text shows it or not; of one head on one text."""
    (one,) = [*found.of(*place), *(one for one in found.unshown if (one.layer, one.head) == place)]
    return one.why, one.strength


def in_gpt2(corpus: Sequence[Document], *held: HeadRole, **options: int) -> Examples:
    network = network_of(gpt2().model)
    return find_examples(network, gpt2().tokenizer, corpus, roles(*held), is_causal=True, **options)


def documents(*sentences: Sentence) -> list[Document]:
    return [Document.of_sentences([sentence], f"document {place}") for place, sentence in enumerate(sentences)]


# ---------------------------------------------------------------------- what is measured: a head that attends alike

# By role and metric: how many targets each word of SENTENCE has, if all words can be seen; words without any left out
SEEN_BOTH_WAYS = [
    ("previous_token", "", [1] * 7),
    ("previous_random_token", "", [1] * 7),
    ("next_token", "", [1] * 7),
    ("self_token", "", [1] * 8),
    ("duplicate_token", "", [1, 1]),  # the, The
    ("induction", "", [1]),  # The -> old
    ("anti_induction", "", [1]),
    ("full_stop", "", [1] * 8),
    ("comma", "", [1] * 8),
    ("punctuation", "", [2] * 8),
    ("adjacent_phrase", "", [1]),  # the old dog: dog -> old, not saw; the has one neighbour, old has both in its phrase
    ("local", "", [3, 4, 5, 5, 5, 5, 4, 3]),  # itself and up to two on either side
    ("syntax", "syntax.dep_to_head[ALL]", [1] * 5),
    ("syntax", "syntax.head_to_dep[det]", [1]),  # dog -> the
    ("syntax", "syntax.head_to_dep[ALL]", [1] * 5),  # dog -> the, old; saw -> dog, it, The
    ("subject_verb", "subject_verb.subject_to_verb", [1]),
    ("coreference", "coref[all]", [1]),  # it -> dog
    ("pronoun_reference", "coref[pronoun]", [1]),
    ("pronoun_reference", "choice[all]", [1]),
    ("cls", "", [1] * 8),
    ("sep", "", [1] * 8),
    ("first_token", "", [1] * 8),
    ("small_value_sink", "", [2] * 8),  # [CLS] and [SEP]
]


@pytest.mark.parametrize(("role", "metric", "targets"), SEEN_BOTH_WAYS)
def test_an_even_head_pays_each_target_one_of_all_tokens(role, metric, targets):
    why, strength = told(in_bert([ANNOTATED], label(BERT_UNIFORM, role, metric)), BERT_UNIFORM)
    assert why == role
    assert strength == pytest.approx(np.mean(targets) / (SIZE + 2), abs=6e-4)  # of rounding to three digits


def test_induction_is_about_earlier_copies_also_where_later_ones_can_be_seen():
    _, strength = told(in_bert(documents(bare("b x b y b z")), label(BERT_UNIFORM, "induction")), BERT_UNIFORM)
    assert strength == pytest.approx((1 + 2) / 2 / 8, abs=6e-4)  # the second b -> x; the third -> x and y


# Word i sees <s> and the words up to itself, and pays each 1 / (i + 2). By role: (word, targets) that it can see
SEEN_BACKWARDS = [
    ("previous_token", "", [(word, 1) for word in range(1, 8)]),
    ("self_token", "", [(word, 1) for word in range(8)]),
    ("duplicate_token", "", [(6, 1)]),
    ("induction", "", [(6, 1)]),
    ("comma", "", [(5, 1), (6, 1), (7, 1)]),
    ("punctuation", "", [(5, 1), (6, 1), (7, 2)]),
    ("syntax", "syntax.dep_to_head[ALL]", [(4, 1), (6, 1)]),  # it -> saw, The -> saw
    ("syntax", "syntax.head_to_dep[ALL]", [(2, 1), (2, 1), (3, 1)]),  # dog -> the, old; saw -> dog
    ("subject_verb", "subject_verb.verb_to_subject", [(3, 1)]),
    ("coreference", "coref[all]", [(4, 1)]),
    ("first_token", "", [(word, 1) for word in range(8)]),
    ("small_value_sink", "", [(word, 1) for word in range(8)]),
]


@pytest.mark.parametrize(("role", "metric", "targets"), SEEN_BACKWARDS)
def test_an_even_decoder_head_pays_each_target_one_of_the_tokens_so_far(role, metric, targets):
    why, strength = told(in_gpt2([ANNOTATED], label(GPT2_UNIFORM, role, metric)), GPT2_UNIFORM)
    assert why == role
    expected = np.mean([count / (word + 2) for word, count in targets])
    assert strength == pytest.approx(expected, abs=6e-4)  # of rounding to three digits


@pytest.mark.parametrize(
    ("role", "metric"),
    [
        ("next_token", ""),  # a decoder does not see it
        ("cls", ""),  # it has none
        ("sep", ""),
        ("subject_verb", "subject_verb.subject_to_verb"),  # the verb comes later
        ("syntax", "syntax.dep_to_head[iobj]"),
        ("pronoun_reference", "choice[all]"),  # a candidate comes later
        ("adjacent_phrase", "phrase.neighbour"),  # the neighbour to the right comes later
        ("retrieval", "retrieval.copy"),
        ("copying_weights", "circuits.copy_top5"),
    ],
)
def test_a_role_without_a_place_in_the_texts_has_no_examples_and_says_so(role, metric):
    found = in_gpt2([ANNOTATED], label(GPT2_UNIFORM, role, metric))
    assert found.of(*GPT2_UNIFORM) == ()
    assert found.unshown == (Unshown(*GPT2_UNIFORM, why=role, run=1, able=0, strength=0.0),)


@pytest.mark.parametrize("role", ["broad", "position_alone"])
def test_a_role_that_names_no_target_is_measured_by_the_largest_share(role):
    found = in_bert([ANNOTATED], label(BERT_UNIFORM, role))
    assert [(one.why, one.strength, one.asked) for one in found.of(*BERT_UNIFORM)] == [("", 0.1, 0)]


def test_without_a_special_token_in_front_the_first_word_is_the_first_token():
    model, tokenizer = tiny_model("t5", dtype=torch.float32), planted_bert(vocab=99).tokenizer
    tokenizer.backend_tokenizer.post_processor = None
    place = (1, 2)
    held = roles(label(place, "first_token"), layers=3, heads=4)
    found = find_examples(network_of(model), tokenizer, [ANNOTATED], held, is_causal=False)
    ids = torch.tensor([tokenizer(list(SENTENCE.words), is_split_into_words=True)["input_ids"]])
    assert ids.shape == (1, SIZE)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    inputs |= {f"decoder_{name}": values for name, values in inputs.items()}
    (pattern,) = slow_attentions(model, inputs)["encoder"][1]
    assert told(found, place) == ("first_token", pytest.approx(float(pattern[2, :, 0].mean()), abs=6e-4))
    assert {one.rest for one in found} == {(0.0,) * SIZE}


# ------------------------------------------------------------------------------------------------ which texts are best

SHORT, MIDDLE, LONG = bare("a b c d e"), bare("f g h i j k"), bare("l m n o p q r")


def test_the_strongest_comes_first():
    found = in_bert(documents(LONG, SHORT, MIDDLE)).of(*BERT_UNIFORM)
    assert [one.words for one in found] == [SHORT.words, MIDDLE.words, LONG.words]
    assert [one.strength for one in found] == [0.143, 0.125, 0.111]  # 1/7, 1/8, 1/9


def test_of_equal_ones_the_earlier_comes_first():
    found = in_bert(texts(["a b c d e", "b b b b b", "c b c d e", "d b c d e"]))
    assert [one.text_id for one in found.of(*BERT_UNIFORM)] == ["text 1", "text 2", "text 3"]


def test_a_later_text_takes_the_place_of_the_weakest():
    found = in_bert(documents(LONG, SHORT, MIDDLE), per_head=2).of(*BERT_UNIFORM)
    assert [one.words for one in found] == [SHORT.words, MIDDLE.words]


@pytest.mark.parametrize("per_head", [1, 2])
def test_no_more_than_asked_for_are_kept(per_head):
    found = in_bert(documents(LONG, SHORT, MIDDLE), per_head=per_head)
    assert {place: len(found.of(*place)) for place in np.ndindex(LAYERS, HEADS)} == dict.fromkeys(
        np.ndindex(LAYERS, HEADS), per_head
    )


# Relations to the word before, which the planted head looks at, and to one further back; of three the first is right
RIGHT = "a NOUN 0 root | b NOUN 1 obl | c NOUN 2 punct | d NOUN 3 punct | e NOUN 4 punct"
ONE_OF_TWO = "a NOUN 0 root | b NOUN 1 obl | c NOUN 1 obl | d NOUN 3 punct | f NOUN 4 punct"
TWO_OF_THREE = "a NOUN 0 root | b NOUN 1 obl | c NOUN 2 obl | d NOUN 2 obl | g NOUN 4 punct"
ONE_OF_THREE = "a NOUN 0 root | b NOUN 1 obl | c NOUN 1 obl | d NOUN 1 obl | h NOUN 4 punct"


def relating(*drawn: str) -> list[Document]:
    return documents(*(parsed(*(line.strip() for line in one.split("|"))) for one in drawn))


def by_planted(
    corpus: Sequence[Document], role: str, metric: str, **options: int
) -> tuple[tuple[Example, ...], Examples]:
    """Of the head that always looks at the word before."""
    (place,) = [place for place, planted in bert().roles.items() if planted == "previous token"]
    found = in_bert(corpus, label(place, role, metric), **options)
    return found.of(*place), found


def test_texts_that_show_a_decision_come_by_the_share_that_is_paid_to_the_answers():
    corpus = relating(ONE_OF_TWO, ONE_OF_THREE, RIGHT, TWO_OF_THREE)
    listed, _ = by_planted(corpus, "syntax", "syntax.dep_to_head[obl]", per_head=4)
    assert [(one.right, one.asked) for one in listed] == [(1, 1), (2, 3), (1, 2)]
    assert [one.words[-1] for one in listed] == ["e", "g", "f"]  # under half of h is right
    assert [one.strength for one in listed] == [
        pytest.approx(1, abs=0.01),  # what may go astray, by the word of planted_bert
        pytest.approx(2 / 3, abs=0.01),
        pytest.approx(1 / 2, abs=0.01),
    ]


def test_the_arcs_of_right_decisions_are_told_apart():
    (example,), _ = by_planted(relating(ONE_OF_TWO), "syntax", "syntax.dep_to_head[obl]")
    assert [arc[:2] for arc in example.arcs] == [(1, 0), (2, 1), (3, 2), (4, 3)]
    assert [example.arcs[place][:2] for place in example.shown] == [(1, 0)]


def test_of_columns_the_word_that_attends_most_is_the_answer():
    # b is looked at by c; that c is its head is right, that a is the head of c is not: d looks at c
    corpus = relating("a NOUN 0 root | b NOUN 3 det | c NOUN 1 obl | d NOUN 1 punct | e NOUN 1 punct")
    (example,), _ = by_planted(corpus, "syntax", "syntax.head_to_dep[det]")
    assert (example.asked, example.right) == (1, 1)
    assert [example.arcs[place][:2] for place in example.shown] == [(2, 1)]
    listed, found = by_planted(corpus, "syntax", "syntax.head_to_dep[obl]")
    assert listed == ()
    assert [(one.able, round(one.strength, 2)) for one in found.unshown] == [(1, 0.0)]


def test_antecedents_are_looked_for_across_sentences():
    first, second = bare("a b c d e"), bare("f g h i j")
    mentions = [Mention(0, 1, "other"), Mention(4, 5, "one"), Mention(5, 6, "one")]
    corpus = [Document.of_sentences([first, second], "two", mentions=mentions)]
    (example,), _ = by_planted(corpus, "coreference", "coref[all]")
    assert example.words == (*first.words, *second.words)
    assert [example.arcs[place][:2] for place in example.shown] == [(5, 4)]


def test_all_metrics_by_which_a_head_refers_are_asked():
    (place,) = [place for place, planted in bert().roles.items() if planted == "previous token"]
    held = [label(place, "pronoun_reference", metric) for metric in ("coref[pronoun]", "choice[all]")]
    sentence = parsed("a NOUN 0 root", "b NOUN 1 obl", "it PRON 1 obj", "d NOUN 1 punct", "e NOUN 1 punct")
    choice = Choice(2, 3, (Candidate(1, 2, True), Candidate(0, 1, False)))
    corpus = [Document.of_sentences([sentence], "one", choices=[choice])]
    assert [(one.why, one.right) for one in in_bert(corpus, *held).of(*place)] == [("pronoun_reference", 1)]


def test_an_answer_without_a_rival_shows_nothing():
    corpus = [Document.of_sentences([bare("a b c d e")], "d", mentions=[Mention(0, 1, "one"), Mention(1, 2, "one")])]
    listed, found = by_planted(corpus, "coreference", "coref[all]")
    assert listed == ()
    assert [(one.run, one.able) for one in found.unshown] == [(1, 0)]


def test_a_rare_word_head_should_look_at_the_rarest_word_by_the_counts_of_the_whole_corpus():
    # each word is rarer than those before; c, b and a are the rare half of the six forms, so only b and a are asked
    others = [bare(" ".join([form] * count)) for form, count in zip("fedcb", (9, 8, 7, 6, 5), strict=True)]
    (place,) = [place for place, planted in gpt2().roles.items() if planted == "previous token"]
    found = in_gpt2(documents(bare("f e d c b a"), *others), label(place, "rare_word"))
    assert [(one.words, one.right, one.asked) for one in found.of(*place)] == [(tuple("fedcba"), 2, 2)]
    assert [found.of(*place)[0].arcs[arc][:2] for arc in found.of(*place)[0].shown] == [(4, 3), (5, 4)]


def test_texts_with_places_for_a_role_are_among_the_few_that_are_run():
    plain = [bare(f"w{number} b c d e f") for number in range(200)]
    known = [name for name in gpt2().tokenizer.get_vocab() if len(name) == 4][:9]
    plain[57] = bare(" ".join([*known[:4], *known[:3], *known[4:]]))
    plain[101] = bare(" ".join([*known, ",", *known[:6]]))
    (repeating,) = [place for place, planted in gpt2().roles.items() if planted == "duplicate token"]
    (elsewhere,) = [place for place, planted in gpt2().roles.items() if planted == "first token"]
    held = [label(repeating, "duplicate_token"), label(elsewhere, "comma")]
    found = in_gpt2(documents(*plain), *held, most_texts=3)
    assert {one.words for one in found.of(*repeating)} == {plain[57].words, plain[101].words}
    assert [(one.why, one.run, one.able) for one in found.unshown] == [("comma", 3, 1)]


def test_more_texts_are_run_for_what_few_of_them_have():
    plain = [bare(f"w{number} b c d e {',' if number % 4 == 0 else 'f'}") for number in range(400)]
    (unshown,) = in_bert(documents(*plain), label(BERT_UNIFORM, "comma")).unshown
    assert (unshown.run, unshown.able) == (64, 64)  # by chance 16 of 64


def test_planted_heads_show_what_was_planted():
    words = [name for name in gpt2().tokenizer.get_vocab() if len(name) == 4][:9]
    repeated = bare(" ".join([*words[:4], *words[:3], *words[4:]]))
    others = [bare(" ".join(np.roll(words, place))) for place in range(1, 4)]
    held = [label(place, role.replace(" ", "_")) for place, role in gpt2().roles.items() if role != "uniform"]
    found = in_gpt2(documents(*others, repeated), *held)
    best = {role: found.of(*place)[0] for place, role in gpt2().roles.items() if role != "uniform"}
    assert {role: one.why for role, one in best.items()} == {role: role.replace(" ", "_") for role in best}
    assert min(one.strength for one in best.values()) >= 0.99  # by the word of planted_gpt2
    assert best["induction"].words == best["duplicate token"].words == repeated.words
    assert [arc[:2] for arc in best["induction"].arcs] == [(4, 1), (5, 2), (6, 3)]
    assert {arc[:2] for arc in best["duplicate token"].arcs} >= {(4, 0), (5, 1), (6, 2)}
    assert [arc[:2] for arc in best["previous token"].arcs] == [(word, word - 1) for word in range(1, len(words))]


# ------------------------------------------------------------------------------------- the same as transformers itself


@pytest.mark.parametrize(("planted", "is_causal"), [(bert, False), (gpt2, True)])
def test_shares_are_those_that_transformers_reports(planted, is_causal):
    network, tokenizer = network_of(planted().model), planted().tokenizer
    vocabulary = sorted(name for name in tokenizer.get_vocab() if len(name) == 4)
    generator = np.random.default_rng(3)
    sentences = [bare(" ".join(generator.choice(vocabulary, size))) for size in (5, 9, 7, 12)]
    found = find_examples(network, tokenizer, documents(*sentences), roles(), is_causal=is_causal, per_head=4)
    reported = [patterns_of(network, tokenizer, sentence) for sentence in sentences]
    assert len(found) == 4 * LAYERS * HEADS
    for layer, head in np.ndindex(LAYERS, HEADS):
        expected = {s.words: drawn_example(p[layer][head], s) for s, p in zip(sentences, reported, strict=True)}
        assert {one.words: about(one) for one in found.of(layer, head)} == expected
        strengths = [one.strength for one in found.of(layer, head)]
        assert strengths == sorted(strengths, reverse=True)


def patterns_of(network, tokenizer, sentence):
    ids = torch.tensor([tokenizer(list(sentence.words), is_split_into_words=True)["input_ids"]])
    (patterns,) = slow_attentions(network, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}).values()
    return [layer[0].double().numpy() for layer in patterns]


def drawn_example(pattern, sentence):
    """Between [CLS] or <s> in front and what is left behind; every word is one token."""
    size = len(sentence.words)
    words = pattern[1 : size + 1, 1 : size + 1]
    arcs = {
        (start, stop): near(words[start, stop])
        for start in range(size)
        for stop in range(size)
        if words[start, stop] >= 0.1
    }
    return arcs, [near(1 - row.sum()) for row in words], near(words.max(axis=1).mean())


def about(example: Example):
    return {arc[:2]: arc[2] for arc in example.arcs}, list(example.rest), example.strength


def near(value: float):
    return pytest.approx(value, abs=6e-4)  # of rounding to three digits


def test_a_text_has_the_same_example_in_every_corpus():
    vocabulary = sorted(name for name in bert().tokenizer.get_vocab() if len(name) == 4)
    generator = np.random.default_rng(4)
    corpus = documents(*(bare(" ".join(generator.choice(vocabulary, size))) for size in (11, 5, 9, 7, 16)))
    together = in_bert(corpus, per_head=5)
    alone = [one for document in corpus for one in in_bert([document], per_head=5)]
    assert sorted(together, key=repr) == sorted(alone, key=repr)
    assert together.listed == in_bert(corpus, per_head=5).listed


def test_words_outside_the_vocabulary_are_told():
    known = sorted(name for name in bert().tokenizer.get_vocab() if len(name) == 4)[:3]
    (example, *_) = in_bert(texts(f"{known[0]} dog {known[1]} cat {known[2]}"))
    assert example.unknown == (1, 3)


def test_large_models_have_fewer_examples_of_each_head(monkeypatch):
    corpus = documents(LONG, SHORT, MIDDLE)
    monkeypatch.setattr("headlens.find_examples.MOST_EXAMPLES", 2 * LAYERS * HEADS)
    assert len(in_bert(corpus)) == 2 * LAYERS * HEADS
    monkeypatch.setattr("headlens.find_examples.MOST_EXAMPLES", 1)
    assert len(in_bert(corpus)) == LAYERS * HEADS


def test_what_is_paid_to_two_words_on_the_same_characters_counts_once():
    vocabulary = {"[UNK]": 0, "i": 1, "m": 2, "a": 3, "b": 4, ".": 5}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
    sentence = Sentence((".", ".", "a"), "im a", ((0, 2), (0, 2), (3, 4)))
    held = roles(label((0, 0), "full_stop"), layers=3, heads=4)
    (example,) = find_examples(tiny_model("gpt2"), tokenizer, documents(sentence), held, is_causal=True).of(0, 0)
    shares = {arc[:2]: arc[2] for arc in example.arcs}
    assert shares[0, 0] == shares[1, 0] == shares[1, 1] == 1  # the first word of a decoder has nothing else to look at
    assert example.strength == pytest.approx((1 + 1 + min(1, 2 * shares[2, 0])) / 3, abs=2e-3)  # of rounding


def test_pieces_of_a_word_are_what_a_split_word_pays_to_itself():
    backend = Tokenizer(models.BPE(vocab={"[UNK]": 0, "a": 1, "b": 2, "c": 3}, merges=[], unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
    model = tiny_model("gpt2")
    held = roles(label((0, 0), "subword"), layers=3, heads=4)
    found = find_examples(model, tokenizer, documents(bare("ab c abc")), held, is_causal=True)
    ids = torch.tensor([[1, 2, 3, 1, 2, 3]])
    (layers,) = slow_attentions(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}).values()
    (pattern,) = layers[0]
    # a decoder rests on its first word, so the last alone is asked
    assert told(found, (0, 0)) == ("subword", near(pattern[0, 3:, 3:].sum(dim=-1).mean().item()))


# ----------------------------------------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("corpus", [[], texts("word"), documents(bare("word"))])
def test_a_corpus_without_two_words_gives_no_examples(corpus):
    assert in_bert(corpus).listed == ()


def test_texts_that_the_model_cannot_take_give_no_examples():
    planted = planted_bert(positions=6)
    found = find_examples(planted.model, planted.tokenizer, [ANNOTATED], roles(), is_causal=False)
    assert found.listed == ()


def test_another_model_s_tokenizer_is_refused():
    words = sorted(name for name in bert().tokenizer.get_vocab() if len(name) == 4)[-6:]
    with pytest.raises(UnsupportedModel, match="The tokenizer is not that of"):
        find_examples(tiny_model("bert"), bert().tokenizer, texts(" ".join(words)), roles(), is_causal=False)
