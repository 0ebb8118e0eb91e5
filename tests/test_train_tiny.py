"""scripts/train_tiny.py: what the models read, how they are judged, and that a run that was broken off goes on."""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import typer
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

from headlens.corpora.grammar import PUNCTUATION, WORD_FORMS, Forced, grammar_texts

SCRIPTS = Path(__file__).parent.parent / "scripts"
ROWS = 40


@pytest.fixture(scope="module")
def script() -> Iterator[Any]:
    sys.path.insert(0, str(SCRIPTS))
    yield importlib.import_module("train_tiny")
    sys.path.remove(str(SCRIPTS))


@pytest.fixture(scope="module")
def evaluation(script) -> Any:
    return importlib.import_module("tiny_evaluation")


@pytest.fixture(scope="module")
def gpt2(script) -> Any:
    return script.gpt2_tokenizer()


@pytest.fixture(scope="module")
def bert(script) -> Any:
    return script.bert_tokenizer()


# ----------------------------------------------------------------------------------------------------------- tokenizers


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_ordinary_words_have_the_ids_from_20_on_and_nothing_else_has(name, request):
    tokenizer = request.getfixturevalue(name)
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    words = {form for form in WORD_FORMS if form != "'s"}
    assert set(tokens[20:]) == words
    assert len(tokens[20:]) == len(words)
    assert set(tokens[:20]) >= {*PUNCTUATION, "'s"}
    assert not words & set(tokens[:20])
    assert len(tokenizer) >= 520


def test_a_text_becomes_its_words(gpt2, bert):
    text = "Anna's dog sees the old bridge, and it sleeps!"
    words = ["anna", "'s", "dog", "sees", "the", "old", "bridge", ",", "and", "it", "sleeps", "!"]
    assert gpt2.convert_ids_to_tokens(gpt2(text)["input_ids"]) == ["<|endoftext|>", *words]
    assert bert.convert_ids_to_tokens(bert(text)["input_ids"]) == ["[CLS]", *words, "[SEP]"]


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_decoded_text_reads_as_text(name, request):
    tokenizer = request.getfixturevalue(name)
    text = "anna's dog sees the old bridge, and it sleeps!"
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


def test_a_word_that_the_grammar_lacks_is_unknown(gpt2, bert):
    assert gpt2("quantum")["input_ids"] == [gpt2.bos_token_id, gpt2.unk_token_id]
    assert bert("quantum")["input_ids"] == [bert.cls_token_id, bert.unk_token_id, bert.sep_token_id]


def test_every_text_of_the_grammar_is_known_and_cut_into_its_words(evaluation, gpt2):
    for text in islice(grammar_texts(3), 50):
        forms = [word.lower() for sentence in text.document.sentences for word in sentence.words]
        assert gpt2.convert_ids_to_tokens(evaluation.token_ids(text, gpt2))[1:] == forms


# ----------------------------------------------------------------------------------------------------------------- rows


@pytest.fixture
def rows_of(script, monkeypatch) -> Callable[..., list[dict[str, Any]]]:
    """Rows of one kind only, as lists."""

    def rows_of(tokenizer: Any, *, random: float, joined: float = 0, n: int = ROWS) -> list[dict[str, Any]]:
        for name in ("FIRST_UNTIL", "NEXT_UNTIL", "ALL_WORDS_FROM"):  # as rows are when all this is over
            monkeypatch.setattr(script, name, {"FIRST_UNTIL": -2.0}.get(name, -1.0))
        monkeypatch.setattr(script, "RANDOM", random)
        monkeypatch.setattr(script, "JOINED", joined)
        rows = script.Rows(tokenizer, n, seed=0)
        return [{name: values.tolist() for name, values in rows[index].items()} for index in range(n)]

    return rows_of


def forms(text: Any) -> list[str]:
    return [word.lower() for sentence in text.document.sentences for word in sentence.words]


def test_texts_apart_start_at_position_0_each_and_are_told_word_by_word(rows_of, gpt2, script):
    row = rows_of(gpt2, random=0, n=3)[2]
    texts = islice(grammar_texts(script.TRAINING_SEEDS + 2), 30)
    pieces = [["<|endoftext|>", *forms(text)] for text in texts]
    told = [(token, place, number) for number, piece in enumerate(pieces) for place, token in enumerate(piece)]
    tokens = gpt2.convert_ids_to_tokens(row["input_ids"])
    assert list(zip(tokens, row["position_ids"], row["text"], strict=True)) == told[:256]
    assert row["labels"] == row["input_ids"]


def test_what_does_not_fit_into_a_row_of_gaps_is_padding(rows_of, bert, script):
    row = rows_of(bert, random=0, n=1)[0]
    pieces = [["[CLS]", *forms(text), "[SEP]"] for text in islice(grammar_texts(script.TRAINING_SEEDS), 30)]
    told: list[str] = []
    for piece in pieces:
        if len(told) + len(piece) > 256:
            break
        told += piece
    fill = 256 - len(told)
    tokens = bert.convert_ids_to_tokens(
        [label if label != -100 else id for id, label in zip(row["input_ids"], row["labels"], strict=True)]
    )
    assert tokens == [*told, *["[PAD]"] * fill]
    assert fill > 0
    assert set(row["text"][-fill:]) == {-1}  # which no text is


def test_joined_texts_see_each_other_and_share_their_positions(rows_of, gpt2):
    apart, joined = rows_of(gpt2, random=0, n=1)[0], rows_of(gpt2, random=0, joined=1, n=1)[0]
    assert joined["input_ids"] == apart["input_ids"]
    assert joined["position_ids"] == list(range(256))
    assert len(set(joined["text"])) == 1


def told_by_its_stretch(ids: list[int]) -> list[bool]:
    """Whether some word stood before, and what followed it then is what follows now."""
    return [False] + [
        any(ids[k - 1 : k + 1] == ids[i - 1 : i + 1] for k in range(1, i - 1)) for i in range(1, len(ids))
    ]


def stretches(row: dict[str, list[int]]) -> Iterator[tuple[list[int], list[int]]]:
    """Ids and labels of each of its texts."""
    for number in sorted(set(row["text"])):
        kept = [i for i, text in enumerate(row["text"]) if text == number]
        yield [row["input_ids"][i] for i in kept], [row["labels"][i] for i in kept]


def test_random_words_count_where_they_come_again(rows_of, gpt2):
    with_end, sizes, scored = 0, Counter[int](), Counter[bool]()
    for row in rows_of(gpt2, random=1):
        assert row["position_ids"] == list(range(256))
        for ids, labels in stretches(row):
            sizes[len(ids)] += 1
            start = int(ids[0] == gpt2.bos_token_id)
            with_end += start
            assert min(ids[start:]) >= 20
            assert {id for id, label in zip(ids, labels, strict=True) if label not in (id, -100)} == set()
            told = told_by_its_stretch(ids)
            scored.update(told[i] for i, label in enumerate(labels) if label != -100)
            assert len(set(ids[start : start + 8])) == 8  # the shortest that comes again
            assert labels[: start + 8] == [-100] * (start + 8)
    assert set(sizes) == {64, 256}
    assert sizes[64] > 4 * 10
    assert sizes[256] > 10  # of 40 rows, one in two
    assert 0.3 < with_end / sizes.total() < 0.7
    assert set(scored) == {True}
    assert scored[True] > 0.3 * 256 * ROWS


def test_the_first_rows_are_short_stretches_of_few_words_from_position_0_on(script, gpt2):
    rows = script.Rows(gpt2, 1000, seed=0)
    first = [rows[index] for index in range(0, 120, 2)]
    words = Counter(id for row in first for id in row["input_ids"].tolist() if id != gpt2.bos_token_id)
    assert len(words) == 32
    for row in first:
        assert row["text"].tolist() == [0] * 64 + [1] * 64 + [2] * 64 + [3] * 64
        assert row["position_ids"].tolist() == [*range(64)] * 4


@pytest.mark.parametrize(
    ("rows", "share"), [(range(240, 500, 2), 0.6), (range(500, 2000, 9), 0.2)], ids=["next", "then"]
)
def test_later_rows_are_texts_as_well(script, gpt2, rows, share):
    made = script.Rows(gpt2, 2000, seed=0)
    of_random_words = [row for row in (made[index] for index in rows) if (row["labels"] == -100).any()]
    n = len(rows)
    assert abs(len(of_random_words) - share * n) < 4 * math.sqrt(share * (1 - share) * n)
    assert all(row["position_ids"].tolist() == [*range(256)] for row in of_random_words)


@pytest.mark.parametrize(
    ("part", "words"), [(0, 32), (0.12, 32), (0.21, round(math.sqrt(32 * 602))), (0.3, 602), (1, 602)]
)
def test_words_become_more_by_equal_factors(script, part, words):
    assert script.words_known(part) == words


def test_where_gaps_are_to_be_filled_random_words_are_of_all_from_the_start(rows_of, bert):
    rows = rows_of(bert, random=1)
    assert {tuple(row["position_ids"]) for row in rows} == {tuple(range(256))}
    framed = [row for row in rows if row["input_ids"][0] == bert.cls_token_id]
    assert {row["input_ids"][-1] for row in framed} == {bert.sep_token_id}
    assert 8 <= len(framed) <= 32  # of 40, one in two
    places = Counter(i for row in rows for i, label in enumerate(row["labels"]) if label != -100)
    assert len(places) > 250


def test_upper_layers_learn_later(script, small, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "FIRST_LAYERS", 1)
    monkeypatch.setattr(script, "FIRST_UNTIL", 0.5)
    recipe = script.RECIPES["tiny-gpt2"]
    torch.manual_seed(0)
    start = recipe.model(recipe.tokenizer())
    seen = []

    class Watches(script.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
            seen.append([not torch.equal(a, b) for a, b in zip(weights(model), weights(start), strict=True)])

    def weights(model: Any) -> list[Tensor]:
        return [block.mlp.c_proj.weight.detach().clone() for block in model.transformer.h]

    init = script.Trainer.__init__
    monkeypatch.setattr(
        script.Trainer,
        "__init__",
        lambda self, *args, callbacks, **others: init(self, *args, callbacks=[*callbacks, Watches()], **others),
    )
    assert weights(start)[0].any()
    assert not weights(start)[1].any()  # adds nothing
    script.train(recipe, tmp_path, steps=4, batch_size=2, seed=0)
    assert [upper for _, upper in seen] == [False, False, True, True]
    assert all(lower for lower, _ in seen[1:])


@pytest.mark.slow
def test_gaps_are_15_percent_of_the_words_and_half_of_those_that_agree_80_10_10(script, rows_of, bert):
    fates, words, of_them = Counter[str](), Counter[bool](), Counter[bool]()
    for index, row in enumerate(rows_of(bert, random=0, n=40)):
        agreeing, start = set[int](), 0
        for text in islice(grammar_texts(script.TRAINING_SEEDS + index), 30):
            agreeing |= {start + 1 + forced.word for forced in text.forced}  # behind [CLS]
            start += len(forms(text)) + 2
        for place, (id, label) in enumerate(zip(row["input_ids"], row["labels"], strict=True)):
            if label == -100:
                assert id != bert.mask_token_id
                words[place in agreeing] += id not in bert.all_special_ids
                continue
            assert label not in bert.all_special_ids
            words[place in agreeing] += 1
            of_them[place in agreeing] += 1
            fates["mask" if id == bert.mask_token_id else "same" if id == label else "other"] += 1
    gaps = fates.total()
    # four standard deviations of a binomial count on either side
    for agrees, share, least in ((False, 0.15, 5_000), (True, 0.5, 600)):
        n = words[agrees]
        assert n > least
        assert abs(of_them[agrees] - share * n) < 4 * math.sqrt(share * (1 - share) * n)
    assert abs(fates["mask"] - 0.8 * gaps) < 4 * math.sqrt(0.8 * 0.2 * gaps)
    assert abs(fates["other"] - 0.1 * gaps) < 4 * math.sqrt(0.1 * 0.9 * gaps)


def test_a_row_is_always_the_same_and_no_two_are(script, bert):
    def ids(rows: Any, index: int) -> tuple[int, ...]:
        return tuple(rows[index]["input_ids"].tolist())

    rows = script.Rows(bert, 8, seed=0)
    first = [ids(rows, index) for index in range(8)]
    assert [ids(script.Rows(bert, 8, seed=0), index) for index in reversed(range(8))] == first[::-1]
    assert len(set(first)) == 8
    assert not set(first) & {ids(script.Rows(bert, 8, seed=1), index) for index in range(8)}


def test_seeds_of_training_and_of_evaluation_do_not_meet(script):
    assert script.EVALUATION_SEED < script.TRAINING_SEEDS
    rows = max(recipe.steps for recipe in script.RECIPES.values()) * 8
    assert rows <= script.TRAINING_SEEDS  # or the last rows of one seed would be the first of the next


def test_a_token_sees_its_own_text_only(script):
    row = {"input_ids": torch.arange(4), "text": torch.tensor([0, 0, 1, 1])}
    batch = script.collate([row, {**row, "text": torch.tensor([0, 0, 0, -1])}], is_causal=False)
    assert set(batch) == {"input_ids", "attention_mask"}
    assert batch["attention_mask"].int().tolist() == [
        [[[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]],
        [[[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 1]]],
    ]
    causal = script.collate([row], is_causal=True)["attention_mask"]
    assert causal.int().tolist() == [[[[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]]]


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-bert"])
def test_texts_of_a_row_are_read_as_if_alone(script, small, rows_of, name):
    """What a model makes of the second text of a row is what it makes of that text in a row of its own."""
    recipe = script.RECIPES[name]
    tokenizer = recipe.tokenizer()
    model = recipe.model(tokenizer).eval().double()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    rows_of(tokenizer, random=0, n=1)
    row = script.Rows(tokenizer, 1, 0)[0]
    batch = script.collate([row], is_causal=name == "tiny-gpt2")
    second = row["text"] == 1
    with torch.no_grad():
        together = model(**{k: v for k, v in batch.items() if k != "labels"}).logits[0, second]
        alone = model(row["input_ids"][None, second]).logits[0]
    assert torch.allclose(together, alone, rtol=0, atol=1e-10)


# ----------------------------------------------------------------------------------------------------------- evaluation


def model_of(logits: Callable[[Tensor], Tensor], attentions: tuple[Tensor, ...] | None = None) -> Any:
    """A model that gives these logits [batch, token, vocabulary] for these ids, and always the same attention."""

    def model(ids: Tensor, **options: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=logits(ids), attentions=attentions or (torch.zeros(1, 1, 101, 101),))

    model.set_attn_implementation = lambda name: None  # type: ignore[attr-defined]
    return model


@pytest.fixture(scope="module")
def texts() -> list[Any]:
    return list(islice(grammar_texts(5), 150))


def test_a_model_that_prefers_nothing_is_right_about_nothing(evaluation, gpt2, texts):
    figures = evaluation.evaluate_gpt2(model_of(lambda ids: torch.zeros(*ids.shape, len(gpt2))), gpt2, texts)
    assert figures["perplexity"] == pytest.approx(len(gpt2), rel=1e-5)  # float32
    assert {share["right"] for share in figures["forced words"].values()} == {0.0}


def test_a_model_that_knows_what_comes_is_right_about_all(evaluation, gpt2, texts):
    def known(ids: Tensor) -> Tensor:
        return 50.0 * torch.nn.functional.one_hot(ids.roll(-1, dims=1), len(gpt2))

    figures = evaluation.evaluate_gpt2(model_of(known), gpt2, texts)
    assert figures["perplexity"] == pytest.approx(1)
    assert {share["right"] for share in figures["forced words"].values()} == {1.0}
    forced = [one for text in texts for one in text.forced]
    counts = Counter(one.kind for one in forced)
    counts += Counter(f"{one.kind}, attractor" for one in forced if one.has_attractor)
    assert {kind: share["of"] for kind, share in figures["forced words"].items()} == dict(counts)


def test_perplexity_counts_every_word_and_the_end(evaluation, gpt2, texts):
    scores = torch.randn(len(gpt2), generator=torch.Generator().manual_seed(1))
    figures = evaluation.evaluate_gpt2(model_of(lambda ids: scores.expand(*ids.shape, -1)), gpt2, texts)
    told = Counter(form for text in texts for form in [*forms(text), "<|endoftext|>"])
    log_probs = (scores.double() - scores.double().logsumexp(0)).tolist()
    loss = -sum(n * log_probs[gpt2.convert_tokens_to_ids(form)] for form, n in told.items())
    assert figures["tokens"] == told.total()
    assert figures["perplexity"] == pytest.approx(math.exp(loss / told.total()), rel=1e-5)
    bound = math.exp(-sum(text.log_probability for text in texts) / told.total())
    assert figures["perplexity of the grammar"] == pytest.approx(bound)
    assert figures["ratio"] == pytest.approx(figures["perplexity"] / bound)


def test_gaps_are_judged_one_at_a_time_where_they_are(evaluation, bert, texts):
    """Scores favour some forms at gaps and the others elsewhere, so it shows where they are read."""
    scores = torch.randn(len(bert), generator=torch.Generator().manual_seed(2))

    def only_at_gaps(ids: Tensor) -> Tensor:
        is_gap = ids == bert.mask_token_id
        assert is_gap.sum(1).tolist() == [1] * len(ids)
        return torch.where(is_gap[..., None], scores, -scores)

    figures = evaluation.evaluate_bert(model_of(only_at_gaps), bert, texts)

    def wins(one: Forced) -> bool:
        right, *wrong = (scores[bert.convert_tokens_to_ids(form)] for form in (one.right, *one.wrong))
        return bool(right > max(wrong))

    pronouns = [one for text in texts for one in text.forced if one.kind == "pronoun"]
    assert figures["forced words"]["pronoun"] == {"right": np.mean([wins(p) for p in pronouns]), "of": len(pronouns)}
    assert 0 < figures["forced words"]["pronoun"]["right"] < 1


def test_the_best_induction_head_is_found(evaluation, gpt2):
    period, query = 50, torch.arange(51, 101)
    attentions = torch.rand(2, 3, 4, 101, 101, generator=torch.Generator().manual_seed(3)) * 0.1  # layer, batch, head
    attentions[1, :, 2, query, query - period + 1] = torch.linspace(0.6, 0.8, 50)  # 0.7 on average
    attentions[0, :, 3, query, query - period] = 1.0  # the word itself, which is not what counts
    attentions[0, :, 1, :51, 1:52] = 1.0  # nor is the first copy
    model = model_of(lambda ids: torch.zeros(0), tuple(attentions))
    found = evaluation.best_induction_head(model, gpt2, period=period, sequences=3)
    assert found == {"head": "L1H2", "attention": pytest.approx(0.7, abs=1e-6)}


# ------------------------------------------------------------------------------------------------------------- training


@pytest.fixture
def small(script, monkeypatch) -> None:
    monkeypatch.setattr(script, "LAYERS", 2)
    monkeypatch.setattr(script, "HIDDEN", 16)


STOCK = {"tiny-gpt2": AutoModelForCausalLM, "tiny-bert": AutoModelForMaskedLM}


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-bert"])
def test_a_run_leaves_a_model_its_figures_and_its_card(script, small, tmp_path, name, capsys):
    out = tmp_path / "out"
    script.main(name, out, tmp_path / "checkpoints", steps=4, batch_size=2, texts=10)
    assert "perplexity" in capsys.readouterr().out or name == "tiny-bert"
    model, loading = STOCK[name].from_pretrained(out, output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    assert model.dtype == torch.float32
    assert model.config.use_cache
    assert len(AutoTokenizer.from_pretrained(out)) == model.config.vocab_size
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in out.iterdir())  # for everyone to read
    figures = json.loads((out / "evaluation.json").read_text())
    card = (out / "README.md").read_text()
    assert figures["texts"] == 10
    assert f"| verb number, right | {figures['forced words']['verb number']['right']:.1%} |" in card
    assert f"{model.num_parameters():,} parameters" in card
    assert "4 steps of 2 rows" in card
    assert str(tmp_path) not in "".join(path.read_text() for path in [*out.glob("*.json"), out / "README.md"])


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-bert"])
def test_a_run_that_was_broken_off_goes_on(script, small, tmp_path, monkeypatch, name):
    recipe = script.RECIPES[name]
    settings = {"steps": 4, "batch_size": 2, "seed": 0}
    whole = script.train(recipe, tmp_path / "whole", **settings)

    made = script.Rows.__getitem__
    asked: list[int] = []

    def breaks_in_the_third_step(rows: Any, index: int) -> Any:
        asked.append(index)
        if len(asked) > 6:  # one batch is fetched ahead
            raise KeyboardInterrupt
        return made(rows, index)

    with monkeypatch.context() as broken:
        broken.setattr(script.Rows, "__getitem__", breaks_in_the_third_step)
        with pytest.raises(KeyboardInterrupt):
            script.train(recipe, tmp_path / "broken", **settings)
    assert [path.name for path in (tmp_path / "broken").iterdir()] == ["checkpoint-2"]
    monkeypatch.setattr(script.Rows, "__getitem__", lambda rows, index: asked.append(index) or made(rows, index))
    asked.clear()
    resumed = script.train(recipe, tmp_path / "broken", **settings)
    assert len(asked) == 4  # the rows of two steps
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


@pytest.mark.slow
def test_training_moves_the_weights_towards_the_language(script, small, tmp_path, evaluation, texts):
    recipe = script.RECIPES["tiny-gpt2"]
    tokenizer = recipe.tokenizer()
    before = recipe.model(tokenizer).eval()
    after = script.train(recipe, tmp_path, steps=60, batch_size=2, seed=0).eval()
    first, last = (evaluation.evaluate_gpt2(model, tokenizer, texts[:30])["perplexity"] for model in (before, after))
    assert last < 0.7 * first


def test_a_name_that_is_no_recipe_is_refused(script, tmp_path):
    with pytest.raises(typer.BadParameter, match="'tiny-t5' is none of tiny-gpt2, tiny-bert"):
        script.main("tiny-t5", tmp_path)


# ------------------------------------------------------------------------------------------------------ the taught head


@pytest.fixture(scope="module")
def taught(script) -> Any:
    return importlib.import_module("tiny_taught_head")


def test_the_term_is_the_mean_of_minus_log_of_what_goes_to_earlier_copies(taught):
    ids = torch.tensor([[1, 30, 31, 30, 30, 5, 5]])  # 1 and 5 are no words
    queries = torch.zeros(1, 7, 3)  # so that attention is uniform: 1/4 of 4 tokens to a copy, 2/5 of 5
    seen = torch.ones(1, 7, 7, dtype=torch.bool).tril()
    found = taught.duplicate_loss(queries, torch.randn(1, 7, 3), ids, seen)
    assert found.item() == pytest.approx(-(math.log(1 / 4) + math.log(2 / 5)) / 2, abs=1e-6)


def test_a_copy_in_another_text_does_not_count(taught):
    ids = torch.tensor([[30, 31, 30, 30]])
    text = torch.tensor([0, 0, 1, 1])
    seen = (text[:, None] == text[None]).tril()[None]
    found = taught.duplicate_loss(torch.zeros(1, 4, 3), torch.randn(1, 4, 3), ids, seen)
    assert found.item() == pytest.approx(math.log(2), abs=1e-6)


def test_a_head_that_looks_at_copies_pays_nothing_and_without_copies_there_is_no_term(taught):
    ids = torch.tensor([[30, 31, 32, 30, 31, 32]])
    one_hot = 30.0 * torch.nn.functional.one_hot(ids - 30, 3).float()
    earlier = torch.tensor([0.0] * 3 + [1.0] * 3)[None, :, None]  # it looks for words of the first half
    keys = torch.cat([one_hot, 100 * (1 - earlier)], dim=-1)
    queries = torch.cat([one_hot, earlier], dim=-1)
    seen = torch.ones(1, 6, 6, dtype=torch.bool).tril()
    assert taught.duplicate_loss(queries, keys, ids, seen).item() == pytest.approx(0, abs=1e-6)
    assert taught.duplicate_loss(queries, keys, torch.arange(30, 36)[None], seen).item() == 0


def test_only_late_in_the_training_the_term_is_added(script, taught, tmp_path, monkeypatch):
    added = []
    monkeypatch.setattr(taught, "duplicate_loss", lambda q, k, ids, seen: added.append(tuple(q.shape)) or q.sum() * 0)
    script.train(script.RECIPES["tiny-gpt2"], tmp_path, steps=5, batch_size=1, seed=0)
    assert added == [(1, script.POSITIONS, script.HIDDEN // script.HEADS)] * 2  # of steps 0 to 4, the last two
