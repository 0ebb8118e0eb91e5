"""Tables, sentence similarity, and classification and regression with the model's own head."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import numpy as np
import pytest
import torch
from evaluated import VOCABULARY, as_loaded, ids_of, whole_model, word_tokenizer
from scipy import stats
from transformers import BertForSequenceClassification, PreTrainedModel

from headlens.errors import CorpusError, UnsupportedModel
from headlens.evaluation import TaskOptions, evaluate, paired_difference, read_task
from headlens.evaluation.labels import Classification, Labelled, Regression, _logits
from headlens.evaluation.rows import read_rows
from headlens.evaluation.sts import ScoredPair, Similarity
from headlens.models import load_model
from headlens.surgery import apply_plan, full_plan
from headlens.testing import tiny_model

# --------------------------------------------------------------------------------------------------------------- tables

FILES = {
    "quoted.csv": 'a,b\n"x, ""y""",1\n"two\nlines",2\n\nz,3\n',
    "tabs.txt": 'a\tb\nx, "y"\t1\n"an open quote\t2\n\nz\t3\n',
    "lines.jsonl": '{"a": "x", "b": 1}\n\n{"a": "y", "b": 2}\n{"a": "z", "b": 3}',
    "list.json": '[{"a": "x", "b": 1},\n {"a": "y", "b": 2}, {"a": "z", "b": 3}]',
    "lines.json": '{"a": "x", "b": 1}\n{"a": "y", "b": 2}\n{"a": "z", "b": 3}\n',
    "bom.tsv": "\ufeffa\tb\r\nx\t1\r\ny\t2\r\nz\t3\r\n",
}
FOUND = {
    "quoted.csv": (['x, "y"', "two\nlines", "z"], ["line 2", "line 3", "line 6"]),
    "tabs.txt": (['x, "y"', '"an open quote', "z"], ["line 2", "line 3", "line 5"]),
    "lines.jsonl": (["x", "y", "z"], ["line 1", "line 3", "line 4"]),
    "list.json": (["x", "y", "z"], ["entry 1", "entry 2", "entry 3"]),
    "lines.json": (["x", "y", "z"], ["line 1", "line 2", "line 3"]),
    "bom.tsv": (["x", "y", "z"], ["line 2", "line 3", "line 4"]),
}


@pytest.mark.parametrize("name", FILES)
def test_rows_of_files(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(FILES[name].encode())
    table = read_rows(file)
    texts, places = FOUND[name]
    assert [row.text("a") for row in table.rows] == texts
    assert [row.number("b") for row in table.rows] == [1, 2, 3]
    assert [row.place for row in table.rows] == [f"{name}, {place}" for place in places]
    assert table.columns == ("a", "b")
    assert len(read_rows(file, limit=2).rows) == 2


def test_rows_of_parquet_name_their_labels(tmp_path: Path) -> None:
    features = datasets.Features({"a": datasets.Value("string"), "b": datasets.ClassLabel(names=["no", "yes"])})
    data = datasets.Dataset.from_dict({"a": ["x", "y"], "b": [1, 0]}, features=features)
    data.to_parquet(tmp_path / "t.parquet")
    rows = read_rows(tmp_path / "t.parquet").rows
    assert [(row.values["a"], row.values["b"]) for row in rows] == [("x", "yes"), ("y", "no")]


class Hub:
    """Stands for the hub: says what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def dataset_info(self, name: str, revision: str | None) -> Any:
        return huggingface_hub.hf_api.DatasetInfo(id=name, sha=f"commit of {revision}", private=False, downloads=0,
                                                  likes=0, tags=[])  # fmt: skip

    def load_dataset(self, **request: Any) -> Any:
        self.asked.append(request)
        features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["N", "P"])})
        data = datasets.Dataset.from_dict({"text": ["good", "near"], "label": [1, 0]}, features=features)
        return data.to_iterable_dataset()


def test_rows_of_the_hub_come_from_one_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub()
    monkeypatch.setattr(datasets, "load_dataset", hub.load_dataset)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    task = read_task("classification:hub:some/set:part@dev", TaskOptions(revision="v1"))
    assert isinstance(task, Classification)
    expected = {"path": "some/set", "name": "part", "split": "dev", "revision": "commit of v1", "streaming": True}
    assert hub.asked == [expected]
    assert [(row.text, row.label) for row in task.rows] == [("good", "P"), ("near", "N")]
    assert task.name == "classification:hub:some/set:part@dev"
    assert task.sources == ({"name": "some/set", "config": "part", "split": "dev", "revision": "commit of v1"},)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("sts:hub:no_owner", "named as hub:owner/name:config@split, got hub:no_owner"),
        ("sts:hub:some/set", r"cannot be looked up on the hub"),
    ],
)
def test_sets_that_are_not_there_are_one_sentence(spec: str, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        read_task(spec)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("sentence1,sentence2,score\na,b,1\na,b\n", r"t\.csv, line 3: expected 3 cells \(.*\), got 2"),
        ("sentence1,sentence2,score\na,b,1\na,b,high\n", "line 3: expected a number in the column score, got 'high'"),
        ("sentence1,sentence2,score\na,b,nan\n", "line 2: expected a number"),
        ("sentence1,sentence2,score\na, ,1\n", "line 2: expected text in the column sentence2, got ' '"),
        ('sentence1,sentence2,score\n"a"b,c,1\n', "line 2: this is no row of a table"),
        ('sentence1,sentence2,score\na,b,1\n"a,b,1\n', "line 3: this is no row of a table"),
        ("sentence1,sentence1,score\na,b,1\n", "line 1: two columns have one name"),
        (
            "left,right,score\na,b,1\n",
            r"no column for first \(sentence1, .*the columns are left, right, score: say which",
        ),
        ("sentence1,sentence2,score\n", "expected a table with rows, found none"),
        (
            "sentence1,sentence2,score\na,b,1\nc,d,1\n",
            "a correlation needs pairs of different scores; got 2 pairs of one",
        ),
        (b"sentence1,sentence2,score\na,\xff,1\n", r"t\.csv, line 2: byte 3 of the line \(0xFF\) is not UTF-8"),
    ],
)
def test_bad_tables_are_one_sentence(content: str | bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CorpusError, match=message):
        read_task(f"sts:{file}")


def test_columns_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("left,right,sentence2,score,human\na,b,c,1,2\nd,e,f,1,3\n")
    named = {"first": "left", "second": "right", "score": "human"}
    task = read_task(f"sts:{tmp_path / 't.csv'}", TaskOptions(columns=named))
    assert isinstance(task, Similarity)
    assert [(pair.first, pair.second, pair.score) for pair in task.pairs] == [("a", "b", 2.0), ("d", "e", 3.0)]
    with pytest.raises(CorpusError, match="there is no column 'middle'"):
        read_task(f"sts:{tmp_path / 't.csv'}", TaskOptions(columns=named | {"first": "middle"}))
    with pytest.raises(CorpusError, match="a column is one of first, second, score here, not third"):
        read_task(f"sts:{tmp_path / 't.csv'}", TaskOptions(columns={"third": "left"}))


# ----------------------------------------------------------------------------------------------------------- similarity

SCORED = [
    ("the cat sleeps .", "a cat sleeps", 4.5),
    ("dogs see the big cat near the old dog .", "the dogs see cats", 3.0),
    ("the dog is good", "cats are big", 1.0),
    ("old cats sleep often", "the old cats often sleep near a dog", 3.0),
    ("a dog", "the cat and a dog see the big dogs .", 2.0),
]
STS = Similarity([ScoredPair(*pair, f"pair {number}") for number, pair in enumerate(SCORED)])


@torch.no_grad()
def slow_embedding(model: PreTrainedModel, text: str, frame: tuple[list[int], list[int]]) -> torch.Tensor:
    ids = torch.tensor([[*frame[0], *ids_of(text), *frame[1]]])
    return model(input_ids=ids).last_hidden_state[0].mean(dim=0)


@pytest.mark.parametrize("batch_tokens", [1, 30, 4096])
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_similarity_equals_a_loop_over_sentences(family: str, batch_tokens: int) -> None:
    model = tiny_model(family, vocab_size=len(VOCABULARY))
    found = evaluate(as_loaded(model, word_tokenizer(frame="<s> $A </s>")), STS, batch_tokens=batch_tokens)
    embedded = [[slow_embedding(model, text, ([2], [3])) for text in pair[:2]] for pair in SCORED]
    cosines = [float(torch.cosine_similarity(a, b, dim=0)) for a, b in embedded]
    assert found.columns["cosine"] == pytest.approx(cosines, abs=1e-9)
    scores = [score for *_, score in SCORED]
    assert found.value == pytest.approx(stats.spearmanr(cosines, scores).statistic)
    assert found.figure("pearson").value == pytest.approx(stats.pearsonr(cosines, scores).statistic)


def test_similarity_is_of_the_model_given() -> None:
    model = tiny_model("bert", vocab_size=len(VOCABULARY))
    pruned = apply_plan(model, full_plan(model).without([(0, 1), (2, 3), (2, 0)]))
    intact, gone = (evaluate(as_loaded(one, word_tokenizer()), STS) for one in (model, pruned))
    assert np.abs(intact.columns["cosine"] - gone.columns["cosine"]).max() > 0.01
    assert paired_difference(gone, intact).value == pytest.approx(gone.value - intact.value)


def test_long_texts_are_the_mean_over_their_windows() -> None:
    model = tiny_model("bert", vocab_size=len(VOCABULARY))
    long = " ".join(["the old cat sees a dog ."] * 7)  # 49 tokens, of which 38 fit
    task = Similarity([ScoredPair(long, "a dog", 1.0, "long"), ScoredPair("a cat", "a dog", 2.0, "short")])
    found = evaluate(as_loaded(model, word_tokenizer(frame="<s> $A </s>")), task)
    ids = ids_of(long)
    with torch.no_grad():
        parts = [model(torch.tensor([[2, *part, 3]])).last_hidden_state[0] for part in (ids[:38], ids[38:])]
    expected = torch.cosine_similarity(torch.cat(parts).mean(dim=0), slow_embedding(model, "a dog", ([2], [3])), dim=0)
    assert found.columns["cosine"][0] == pytest.approx(float(expected), abs=1e-9)
    assert found.notes == ("1 sentences are longer than the model takes and were read in windows.",)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "pairs", "value"), [("stsb-captions-dev-en", 375, 0.9134), ("sts-images-2014-2015", 999, 0.9021)]
)
def test_minilm_ranks_pairs_as_published_here(
    name: str, pairs: int, value: float, data_folder: Path, minilm_path: Path
) -> None:
    found = evaluate(
        load_model(str(minilm_path), check=False), read_task(f"sts:{data_folder / f'eval/sts/{name}.csv'}")
    )
    assert len(found.items) == pairs
    assert found.value == pytest.approx(value, abs=1e-3)


def test_a_tab_separated_file_of_sick_is_found_out(data_folder: Path) -> None:
    task = read_task(f"sts:{data_folder / 'eval/sts/SICK_trial.txt'}")
    assert isinstance(task, Similarity)
    assert len(task.pairs) == 500
    assert np.mean([pair.score for pair in task.pairs]) == pytest.approx(3.59, abs=0.01)


# --------------------------------------------------------------------------------------------------------------- labels

TEXTS = [
    "the cat sleeps .",
    "dogs see the big old cat near the dog",
    "good",
    "the dog is big and near",
    "cats are old .",
]
LABELS = ["red", "green", "blue", "green", "red"]


def classifier(labels: dict[int, str] | None = None, **config: Any) -> PreTrainedModel:
    named = labels or {0: "red", 1: "green", 2: "blue"}
    model = whole_model("bert", "BertForSequenceClassification")
    config = {
        "num_labels": len(named),
        "id2label": named,
        "label2id": {name: place for place, name in named.items()},
    } | config
    head = torch.nn.Linear(32, len(named), dtype=torch.float64)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in head.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    model.classifier = head
    model.num_labels = len(named)
    for name, value in config.items():
        setattr(model.config, name, value)
    return model


def labelled(labels: list[str], seconds: list[str] | None = None) -> list[Labelled]:
    pairs = zip(TEXTS, seconds or [None] * len(TEXTS), labels, strict=True)
    return [Labelled(text, second, label, f"row {n}") for n, (text, second, label) in enumerate(pairs)]


@torch.no_grad()
def slow_logits(model: PreTrainedModel, text: str, second: str | None = None) -> list[float]:
    ids, types = [2, *ids_of(text), 3], [0] * (2 + len(ids_of(text)))
    if second is not None:
        own = [*ids_of(second), 3]
        ids, types = ids + own, types + [1] * len(own)
    return model(input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([types])).logits[0].tolist()


PAIR_FRAME = "<s> $A </s>"


@pytest.mark.parametrize("batch_tokens", [1, 25, 4096])
@pytest.mark.parametrize("seconds", [None, TEXTS[::-1]], ids=["one text", "two texts"])
def test_accuracy_equals_a_loop_over_texts(seconds: list[str] | None, batch_tokens: int) -> None:
    model = classifier()
    task = Classification(labelled(LABELS, seconds))
    loaded = as_loaded(model, word_tokenizer(frame=PAIR_FRAME))
    found = evaluate(loaded, task, batch_tokens=batch_tokens)
    rows = [slow_logits(model, text, second) for text, second in zip(TEXTS, seconds or [None] * 5, strict=True)]
    right = [["red", "green", "blue"][int(np.argmax(row))] == label for row, label in zip(rows, LABELS, strict=True)]
    with torch.no_grad():
        assert _logits(loaded, task.rows, batch_tokens)[0] == pytest.approx(np.array(rows), abs=1e-9)
    assert found.columns["right"].tolist() == right
    assert found.value == np.mean(right)
    assert found.facts["most_frequent_label"] == 0.4


def test_accuracy_is_of_the_model_given() -> None:
    model = classifier()
    rows = [
        Labelled(text, None, ["red", "green", "blue"][int(np.argmax(slow_logits(model, text)))], text) for text in TEXTS
    ]
    pruned = apply_plan(model, full_plan(model).without([(layer, head) for layer in range(3) for head in range(4)]))
    tokenizer = word_tokenizer(frame=PAIR_FRAME)
    assert evaluate(as_loaded(model, tokenizer), Classification(rows)).value == 1
    assert evaluate(as_loaded(pruned, tokenizer), Classification(rows)).value < 1


def evaluated(model: PreTrainedModel, labels: list[str], names: dict[str, str] | None = None) -> dict[str, int]:
    task = Classification(labelled(labels), names=names)
    found = evaluate(as_loaded(model, word_tokenizer(frame=PAIR_FRAME)), task)
    return dict(found.facts["labels"])


def test_labels_are_found_by_name_whatever_their_order() -> None:
    assert evaluated(classifier({0: "green", 1: "blue", 2: "red"}), LABELS) == {"green": 0, "blue": 1, "red": 2}


def test_labels_may_differ_in_capitals() -> None:
    assert evaluated(classifier(), ["RED", "Green", "blue", "Green", "RED"]) == {"RED": 0, "Green": 1, "blue": 2}


def test_numbers_are_places_where_the_model_names_nothing() -> None:
    unnamed = classifier({0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"})
    assert evaluated(unnamed, ["0", "1", "2", "1", "0"]) == {"0": 0, "1": 1, "2": 2}


def test_labels_can_be_named() -> None:
    names = {"0": "blue", "1": "red"}
    assert evaluated(classifier(), ["0", "1", "0", "1", "0"], names) == {"0": 2, "1": 0}


@pytest.mark.parametrize(
    ("labels", "names", "message"),
    [
        (["0", "1", "2", "1", "0"], None, "labels 0, 1, 2, and 'tiny' has red, green, blue: it is not certain"),
        (
            ["red", "green", "pink", "red", "red"],
            None,
            "certain which of these 'pink' is; say so, as --labels pink=red",
        ),
        (["0", "1", "0", "1", "0"], {"0": "pink"}, "'tiny' has the labels red, green, blue, not pink"),
        (["0", "1", "0", "1", "0"], {"0": "red", "1": "red"}, "Several labels of the file are one label"),
    ],
)
def test_labels_that_cannot_be_told_are_refused(labels: list[str], names: dict[str, str] | None, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        evaluated(classifier(), labels, names)


def test_numbers_beyond_the_labels_are_refused() -> None:
    with pytest.raises(CorpusError, match="not certain which of these '3' is"):
        evaluated(classifier({0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}), ["0", "1", "3", "1", "0"])


def test_a_shuffled_list_of_labels_is_refused() -> None:
    shuffled = classifier(label2id={"red": 1, "green": 0, "blue": 2})
    with pytest.raises(UnsupportedModel, match="contradicts itself about its labels"):
        evaluated(shuffled, LABELS)


def test_another_order_that_fits_much_better_is_told() -> None:
    model = classifier()
    texts = [f"{text} {extra}" for text in TEXTS for extra in ("cat", "dog", "big", "old", "near")]
    said = [int(np.argmax(slow_logits(model, text))) for text in texts]
    rows = [
        Labelled(text, None, ["green", "blue", "red"][place], text) for text, place in zip(texts, said, strict=True)
    ]
    found = evaluate(as_loaded(model, word_tokenizer(frame=PAIR_FRAME)), Classification(rows))
    assert found.value == 0
    assert found.facts["best_of_all_orders"] == 1
    assert "in another order the model would be right in 1.000 instead of 0.000" in found.notes[0]


def test_a_base_model_has_no_labels() -> None:
    base = tiny_model("bert", vocab_size=len(VOCABULARY))
    with pytest.raises(UnsupportedModel, match="'tiny' is a BertModel, which has no head for labels"):
        evaluate(as_loaded(base, word_tokenizer()), Classification(labelled(LABELS)))


def test_a_head_that_the_checkpoint_does_not_hold_is_refused(tiny_bert: Path) -> None:
    """A base model's folder, loaded by hand as a classifier: transformers draws its head at random and only warns."""
    base = load_model(str(tiny_bert), check=False)
    random_head = replace(base, model=BertForSequenceClassification(base.model.config).eval())
    rows = [Labelled("a b", None, "LABEL_0", "row")]
    with pytest.raises(UnsupportedModel, match=r"lacks classifier\.\w+, so the head of this model is random"):
        evaluate(random_head, Classification(rows))
    random_head.model.save_pretrained(tiny_bert)
    assert len(evaluate(random_head, Classification(rows)).items) == 1  # now its own


def test_long_texts_are_cut_and_counted() -> None:
    model = classifier()
    long = " ".join(["the old cat sees a dog ."] * 7)
    rows = [Labelled(long, None, "red", "long"), *labelled(LABELS)]
    found = evaluate(as_loaded(model, word_tokenizer(frame=PAIR_FRAME)), Classification(rows))
    expected = int(np.argmax(slow_logits(model, " ".join(long.split()[:38]))))
    assert found.columns["right"][0] == (expected == 0)
    assert found.facts["cut_texts"] == 1
    assert found.notes[0] == "1 texts are longer than the model takes and were cut at their end."


def test_a_decoder_without_a_padding_token_reads_texts_one_by_one() -> None:
    model = whole_model("gpt2", "GPT2ForSequenceClassification")
    model.config.pad_token_id = None
    rows = [replace(row, label=str(number % 2)) for number, row in enumerate(labelled(LABELS))]
    found = evaluate(as_loaded(model, word_tokenizer()), Classification(rows))
    with torch.no_grad():
        said = [int(model(torch.tensor([[2, *ids_of(text)]])).logits[0].argmax()) for text in TEXTS]
    assert found.columns["right"].tolist() == [place == number % 2 for number, place in enumerate(said)]


def test_regression_correlates_the_one_logit() -> None:
    model = classifier({0: "LABEL_0"})
    scores = [0.5, 3.0, 2.0, 4.5, 1.0]
    found = evaluate(
        as_loaded(model, word_tokenizer(frame=PAIR_FRAME)), Regression(labelled([str(score) for score in scores]))
    )
    predicted = [slow_logits(model, text)[0] for text in TEXTS]
    assert found.columns["predicted"] == pytest.approx(predicted, abs=1e-9)
    assert found.value == pytest.approx(stats.spearmanr(predicted, scores).statistic)


def test_regression_needs_one_logit() -> None:
    with pytest.raises(UnsupportedModel, match="'tiny' gives 3 numbers a text, regression needs one"):
        evaluate(as_loaded(classifier(), word_tokenizer()), Regression(labelled(["1", "2", "3", "4", "5"])))


def test_files_of_labels(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("sentence,label\ngood,1\nbad,0\n")
    lines = [
        {"sentence1": "a", "sentence2": "b", "label": "neutral"},
        {"sentence1": "c", "sentence2": "d", "label": "x"},
    ]
    (tmp_path / "two.jsonl").write_text("\n".join(map(json.dumps, lines)))
    one, two = (
        read_task(f"classification:{tmp_path / 'one.csv'}"),
        read_task(f"classification:{tmp_path / 'two.jsonl'}"),
    )
    assert isinstance(one, Classification)
    assert isinstance(two, Classification)
    assert one.rows == (Labelled("good", None, "1", "one.csv, line 2"), Labelled("bad", None, "0", "one.csv, line 3"))
    assert two.rows[0] == Labelled("a", "b", "neutral", "two.jsonl, line 1")
    regression = read_task(f"regression:{tmp_path / 'one.csv'}")
    assert isinstance(regression, Regression)
    assert [float(row.label) for row in regression.rows] == [1, 0]


@pytest.mark.parametrize(
    ("name", "rows", "labels"),
    [("rt-polarity.1000.csv", 1000, 2), ("banking77-test.12intents.csv", 480, 12), ("ocnli-dev.300.jsonl", 300, 3)],
)
def test_public_files_of_labels_are_read(name: str, rows: int, labels: int, data_folder: Path) -> None:
    task = read_task(f"classification:{data_folder / 'eval/cls' / name}")
    assert isinstance(task, Classification)
    assert len(task.rows) == rows
    assert len({row.label for row in task.rows}) == labels
    assert (task.rows[0].second is not None) == (name == "ocnli-dev.300.jsonl")
