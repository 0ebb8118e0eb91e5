"""Several models asked the same: what is held against what, what is in memory, and how it is told."""

from __future__ import annotations

import copy
import gc
import json
import math
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from converted import PER_LAYER, with_shared
from evaluated import as_loaded, whole_model, word_tokenizer
from pruned_models import SOURCE, pruned

import headlens.evaluating
from headlens.conversion.carriers import converted
from headlens.conversion.weights import read_layers
from headlens.errors import CorpusError, OutputError, UnsupportedModel
from headlens.evaluating import Answered, Evaluation, evaluate_models, is_here
from headlens.evaluating_words import difference_in_words, difference_line, figure, lines_of, speed_in_words
from headlens.evaluation import Answers, Difference, Metric, Task, TaskResult, evaluate, read_task
from headlens.evaluation.results import mean, ratio
from headlens.measure import CacheBytes, DiskBytes, Parameters, Workload
from headlens.models import LoadedModel, load_whole
from headlens.numbers import aligned
from headlens.surgery.checkpoint import save_pruned

SAID = {  # by model, one number an item
    "whole": [0.5, 0.75, 0.25, 1.0],
    "small": [0.25, 0.5, 0.0, 0.75],  # always a quarter less
    "twin": [0.5, 0.75, 0.25, 1.0],
    "mixed": [1.0, 0.25, 0.75, 0.5],
}


class Told(Task):
    """Every model says what stands in SAID, and needs as many tokens for it as it has letters in its name."""

    metrics = (
        Metric("right per token", ratio("right", "tokens"), higher_is_better=True, alike=("tokens",)),
        Metric("right", mean("right"), higher_is_better=True),
    )
    name, fingerprint = "told", "f"
    items = ("one", "two", "three", "four")

    def ask(self, loaded: LoadedModel, *, batch_tokens: int = 4096) -> Answers:
        name = Path(loaded.name).name
        tokens = np.full(4, 5.0 if name in ("whole", "small", "twin") else 7.0)
        return Answers({"right": np.array(SAID[name]), "tokens": tokens}, notes=("read aloud",))


class OnlyPerToken(Told):
    metrics = Told.metrics[:1]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of models, and nothing is read from them: a tiny model stands for each."""
    for name in SAID:
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"x" * 1000)
        (tmp_path / name / "config.json").write_bytes(b"{}")
    model = whole_model("gpt2")
    monkeypatch.setattr(
        headlens.evaluating, "load_whole", lambda name, **_: as_loaded(model, word_tokenizer(), str(name))
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_model_is_held_against_one_item_by_item(folder: Path) -> None:
    found = evaluate_models(["small", "twin"], [Told()], against="whole")
    assert [one.name for one in found.models] == ["whole", "small", "twin"]
    whole, small, twin = found.models
    assert [one.results[0].figure("right").value for one in found.models] == [0.625, 0.375, 0.625]
    assert whole.differences == ()
    (lower,), (same,) = small.differences, twin.differences
    assert lower is not None
    assert same is not None
    # a quarter of 5 tokens less of every item, so there is nothing that a choice of items could change
    assert [lower.value, lower.low, lower.high] == pytest.approx([-0.05] * 3)
    assert lower.is_worse
    assert [same.value, same.low, same.high] == [0, 0, 0]


def test_the_model_that_others_are_held_against_is_asked_once(folder: Path) -> None:
    found = evaluate_models(["whole", "small", "small"], [Told()], against="whole")
    assert [one.name for one in found.models] == ["whole", "small"]


def test_without_another_model_nothing_is_held_against_anything(folder: Path) -> None:
    found = evaluate_models(["small", "whole"], [Told()])
    assert [one.name for one in found.models] == ["small", "whole"]
    assert [one.differences for one in found.models] == [(), ()]
    assert not any("less" in line for line in lines_of(found))


def test_between_two_tokenizers_the_first_metric_that_holds_is_taken(folder: Path) -> None:
    found = evaluate_models(["mixed"], [Told()], against="whole")
    (difference,) = found.models[1].differences
    assert difference is not None
    assert difference.metric == "right"
    assert difference.value == 0
    assert difference.low < 0 < difference.high
    lines = [line for line in lines_of(found) if "told, " in line]
    assert [line.split("  ")[0] for line in lines] == ["told, right per token", "told, right"]


def test_where_no_metric_holds_the_reason_is_said(folder: Path) -> None:
    found = evaluate_models(["mixed"], [OnlyPerToken()], against="whole")
    assert found.models[1].differences == (None,)
    assert "right per token cannot be compared, because the tokens of the two models differ" in found.models[1].notes[1]
    assert sum("cannot be compared" in line for line in lines_of(found)) == 1


def test_sizes_are_those_of_the_files_and_of_a_real_run(folder: Path) -> None:
    (found,) = evaluate_models(["whole"], [Told()]).models
    assert found.disk == DiskBytes(weights=1000, total=1002)
    model = whole_model("gpt2")
    assert found.parameters.total == sum(weight.numel() for weight in model.parameters())
    layers, hidden = model.config.n_layer, model.config.n_embd
    assert found.cache == CacheBytes(2 * layers * hidden * 32 * 8, 32, 1)  # keys and values, 8 bytes a number


def test_of_several_weight_files_in_a_folder_only_the_one_that_is_read_counts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A .gguf file may lie among others."""
    from headlens.checkpoints import Checkpoint

    (folder / "whole" / "one.gguf").write_bytes(b"x" * 30)
    (folder / "whole" / "other.gguf").write_bytes(b"x" * 70)
    checkpoint = Checkpoint("whole", folder / "whole", "whole", gguf="one.gguf")
    monkeypatch.setattr(headlens.evaluating, "find_checkpoint", lambda name, **_: checkpoint)
    (found,) = evaluate_models(["whole"], [Told()]).models
    assert found.disk == DiskBytes(weights=30, total=30)


@pytest.mark.parametrize(("speed", "most"), [(False, 1), (True, 2)])
def test_one_model_is_in_memory_and_two_where_they_are_timed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, speed: bool, most: int
) -> None:
    alive: list[weakref.ref[Any]] = []
    counts = []

    def load(name: str, **_: Any) -> LoadedModel:
        loaded = as_loaded(whole_model("gpt2", layers=1), word_tokenizer(), name)
        alive.append(weakref.ref(loaded.model))
        gc.collect()
        counts.append(sum(one() is not None for one in alive))
        return loaded

    monkeypatch.setattr(headlens.evaluating, "load_whole", load)
    monkeypatch.setattr(headlens.evaluating, "measure_speed", lambda *_, **__: [])
    evaluate_models(["small", "twin", "mixed"], [Told()], against="whole", speed=speed)
    assert len(counts) == 4
    assert max(counts) == most


def test_every_model_is_timed_in_turns_with_that_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"whole": 3, "small": 1, "twin": 2}
    models = {name: whole_model("gpt2", layers=layers) for name, layers in sizes.items()}
    monkeypatch.setattr(
        headlens.evaluating, "load_whole", lambda name, **_: as_loaded(models[name], word_tokenizer(), name)
    )
    asked = []
    measure_speed = headlens.evaluating.measure_speed

    def note(model: Any, other: Any, **how: Any) -> Any:
        asked.append((model, other))
        return measure_speed(model, other, rounds=1, warm_up=0, **how)

    monkeypatch.setattr(headlens.evaluating, "measure_speed", note)
    work = Workload("prefill", 1, 4)
    found = evaluate_models(["small", "twin"], [], against="whole", speed=True, workloads=[work])
    assert asked == [(models["small"], models["whole"]), (models["twin"], models["whole"])]
    assert [[speed.workload for speed in one.speeds] for one in found.models] == [[], [work], [work]]
    (speed,) = found.models[1].speeds
    assert speed.ratio is not None
    assert f"small: {work}: {speed.ratio:.2f} times as fast as whole (" in "\n".join(lines_of(found))


@pytest.mark.parametrize(("names", "against"), [(["whole"], None), (["whole"], "whole")])
def test_speed_needs_another_model(folder: Path, names: list[str], against: str | None) -> None:
    with pytest.raises(UnsupportedModel, match="in turns with another model; name one"):
        evaluate_models(names, [], against=against, speed=True)


def test_no_model_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="Name at least one model"):
        evaluate_models([], [Told()])


def test_without_the_harness_nothing_is_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "lm_eval", None)
    monkeypatch.setattr(headlens.evaluating, "load_whole", lambda *_, **__: pytest.fail("a model was loaded"))
    with pytest.raises(UnsupportedModel, match=r"cannot be imported .*: pip install lm-eval"):
        evaluate_models(["whole"], [], lm_eval=["arc"])


def test_what_the_harness_says_stands_beside_the_tasks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def run(loaded: LoadedModel, tasks: Any, *, limit: int | None) -> dict[str, dict[str, float]]:
        asked.append((Path(loaded.name).name, list(tasks), limit))
        return {"arc": {"acc,none": 0.25 if loaded.name == "whole" else 0.5}}

    monkeypatch.setattr(headlens.evaluating, "lm_eval_package", lambda: (None, None))
    monkeypatch.setattr(headlens.evaluating, "run_lm_eval", run)
    found = evaluate_models(["whole", "small"], [], lm_eval=["arc"], limit=3)
    assert asked == [("whole", ["arc"], 3), ("small", ["arc"], 3)]
    assert found.to_dict()["models"][1]["lm_eval"] == {"arc": {"acc,none": 0.5}}
    assert "arc                    acc,none  0.2500  0.5000" in list(lines_of(found))


def test_progress_counts_up_to_its_end(folder: Path) -> None:
    told: list[tuple[str, int, int]] = []
    evaluate_models(["small"], [Told(), Told()], against="whole", progress=lambda *step: told.append(step))
    assert [(done, of) for _, done, of in told] == [(number, 6) for number in range(6)]
    assert told[4][0] == "small: told"


# --------------------------------------------------------------------------------------------------- pruned checkpoints


def checkpoint(folder: Path, name: str) -> Path:
    model = pruned(whole_model("gpt2").float(), [(0, 0)])
    manifest = {"source": {**SOURCE["source"], "name": name}}
    return save_pruned(model, folder / "cut", tokenizer=word_tokenizer(), manifest=manifest)


def test_a_pruned_checkpoint_says_how_to_hold_it_against_its_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(checkpoint(tmp_path, "tiny-gpt2"))
    found = evaluate_models([path], [])
    assert found.models[0].made_from == "tiny-gpt2"
    assert found.hints == (
        f"{path} was pruned from tiny-gpt2, which is here: --against tiny-gpt2 shows what that cost.",
    )
    assert list(lines_of(found))[-1] == found.hints[0]
    with_original = evaluate_models(["tiny-gpt2", path], [])
    assert with_original.hints == ()
    assert evaluate_models([path], [], against="tiny-gpt2").hints == ()


def test_a_converted_checkpoint_is_not_called_pruned_and_shows_its_key_value_heads(tmp_path: Path) -> None:
    model = whole_model("gpt2").float()
    layers = with_shared(read_layers(model), PER_LAYER)
    manifest = {"source": {**SOURCE["source"], "name": "tiny-gpt2"}}
    path = save_pruned(converted(model, layers), tmp_path / "few", tokenizer=word_tokenizer(), manifest=manifest)
    found = evaluate_models([str(path), str(checkpoint(tmp_path, "tiny-gpt2"))], [])
    assert found.hints[0].startswith(f"{path} was converted from tiny-gpt2, which is here: --against tiny-gpt2 shows")
    table = [line.split("  ")[-1].strip() for line in lines_of(found) if "parameters" in line or " bytes" in line]
    assert table == ["key/value heads", "2 1 4", "3 4 4"]
    assert "key/value" not in "".join(lines_of(evaluate_models([str(path)], [])))


def test_an_original_that_is_not_here_is_not_named(tmp_path: Path) -> None:
    found = evaluate_models([str(checkpoint(tmp_path, "no-such/model"))], [])
    assert (found.models[0].made_from, found.hints) == ("no-such/model", ())


NOT_KNOWN = " So it is not known what this model was made from."
NO_MANIFEST = f" is no manifest of the schema headlens.pruned/1, headlens.masked/1 or headlens.converted/1.{NOT_KNOWN}"


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        ("[]", NO_MANIFEST),
        ('{"schema": "other/1"}', NO_MANIFEST),
        ("[1,", f" is not JSON: Expecting value: line 1 column 4 (char 3).{NOT_KNOWN}"),
        (None, None),
    ],
)
def test_a_damaged_manifest_is_no_error_and_not_passed_over(
    tmp_path: Path, manifest: str | None, said: str | None
) -> None:
    path = checkpoint(tmp_path, "tiny-gpt2")
    if manifest is None:
        (path / "headlens.json").unlink()
    else:
        (path / "headlens.json").write_text(manifest, encoding="utf-8")
    found = evaluate_models([str(path)], [])
    assert found.models[0].made_from is None
    notes = [line for line in lines_of(found) if line.startswith("Note: ")]
    assert [note.partition("headlens.json")[2] for note in notes] == ([] if said is None else [said])


def test_what_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}", encoding="utf-8")
    names = ["tiny-bert", "model", "empty", "gone", "no-such/model", "a:b", ""]
    assert [name for name in names if is_here(name)] == ["tiny-bert", "model"]


# ------------------------------------------------------------------------------------------------------------ how told


def between(value: float, low: float, high: float, *, higher_is_better: bool = True) -> Difference:
    return Difference("sts", "spearman", float(value), float(low), float(high), higher_is_better)


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        (between(-0.0381, -0.0657, -0.0157), "lower by 0.0381 (0.0157 to 0.0657), worse"),
        (between(0.5, 0.25, 0.75), "higher by 0.5000 (0.2500 to 0.7500), better"),
        (between(0.5, 0.25, 0.75, higher_is_better=False), "higher by 0.5000 (0.2500 to 0.7500), worse"),
        (between(-12.5, -20, -4, higher_is_better=False), "lower by 12.50 (4.0000 to 20.00), better"),
        (between(0.02, -0.01, 0.05), "no difference beyond chance (+0.0200, -0.0100 to +0.0500)"),
        (between(-0.02, -0.05, 0), "no difference beyond chance (-0.0200, -0.0500 to +0.0000)"),
        (between(0, 0, 0), "the same"),
        (between(0.25, math.nan, math.nan), "+0.2500, and no interval to tell it from chance"),
    ],
)
def test_a_difference_in_words(difference: Difference, words: str) -> None:
    assert difference_in_words(difference) == words


def test_a_line_says_what_was_asked_and_what_it_is_held_against() -> None:
    same = between(0, 0, 0)
    assert difference_line(same, "original") == "sts, spearman, less the original: the same"
    assert difference_line(same, "random heads") == "sts, spearman, less random heads: the same"


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (1.04, 1.12, "work: 1.09 times as fast as whole (quartiles of 7 paired runs 1.04 to 1.12; 523 tokens/s)"),
        (
            0.88,
            1.12,
            "work: no difference beyond noise (1.09 times as fast as whole, quartiles of 7 paired runs 0.88 to 1.12; "
            "523 tokens/s)",
        ),
    ],
)
def test_speed_within_noise_is_not_called_faster(low: float, high: float, words: str) -> None:
    speed = {"workload": "work", "ratio": 1.09, "rounds": 7, "low": low, "high": high, "median": 523.4}
    assert speed_in_words({**speed, "unit": "tokens/s"}, "whole") == words


@pytest.mark.parametrize(("low", "high"), [(0.8, 0.9), (0.8, 1.0), (1.0, 1.2)])
def test_one_at_the_edge_is_within_noise(low: float, high: float) -> None:
    speed = {"workload": "", "ratio": 0.9, "rounds": 1, "low": low, "high": high, "median": 1, "unit": ""}
    assert ("noise" in speed_in_words(speed, "whole")) == (1 in (low, high))


class Counted(Told):
    metrics = (Metric("right per token", ratio("right", "tokens"), True, decisions=("tokens", "token")),)
    item = "text"


def test_models_of_other_tokenizers_say_what_they_were_asked(folder: Path) -> None:
    """Four texts of 5 tokens each, or of 7; what is the same as above is not said again."""
    rows = [line.split("  ") for line in lines_of(evaluate_models(["whole", "twin", "mixed"], [Counted()]))][1:4]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert [row[:-2] for row in cells] == [
        ["told, right per token", "20 tokens in 4 texts", "whole"],
        ["twin"],
        ["28 tokens in 4 texts", "mixed"],
    ]


def test_an_evaluation_is_a_line() -> None:
    assert repr(by_hand()) == "<Evaluation of whole, small: blimp:x, held against whole>"
    assert repr(Evaluation((replace(by_hand().models[1], results=()),))) == "<Evaluation of small: no task>"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.12345, "0.1235"),
        (-9.5, "-9.5000"),
        (-12.5, "-12.50"),
        (123.44, "123.4"),
        (123456.7, "123,457"),
        (math.nan, "not defined"),
    ],
)
def test_a_figure(value: float, said: str) -> None:
    assert figure(value) == said


def test_cells_stand_below_one_another() -> None:
    assert list(aligned([["a", "bcd", ""], ["ef", "g", "h"]])) == ["a   bcd", "ef  g    h"]


def by_hand() -> Evaluation:
    def result(values: list[float]) -> TaskResult:
        metric = Metric("accuracy", mean("right"), higher_is_better=True)
        return TaskResult("blimp:x", (metric,), {"right": np.array(values)}, ("only",), "f")

    whole = Answered(
        "whole", {}, (result([1.0]),), {}, Parameters(1000, 400, 900), DiskBytes(4000, 5000), CacheBytes(640, 32, 1)
    )
    small = replace(
        whole,
        name="small",
        results=(result([0.5]),),
        parameters=Parameters(800, 200, 700),
        disk=DiskBytes(3000, 9999),
        cache=CacheBytes(320, 32, 1),
        differences=(Difference("blimp:x", "accuracy", -0.5, math.nan, math.nan, True),),
        notes=("read aloud", "read aloud"),
    )
    return Evaluation((whole, small), "whole", facts={"command": "by hand"})


def test_the_tables_of_a_drawing() -> None:
    assert list(lines_of(by_hand())) == [
        "task               asked   model  value   95% interval  less whole",
        "blimp:x, accuracy  1 item  whole  1.0000  none",
        "                           small  0.5000  none          -0.5000, and no interval to tell it from chance",
        "",
        "model  parameters  of attention  weights on disk     cache of 32 tokens",
        "whole  1,000       400           4,000 bytes         640 bytes",
        "small  800 (0.80)  200 (0.50)    3,000 bytes (0.75)  320 bytes (0.50)",
        "Note: read aloud",
    ]


def test_of_encoders_there_is_no_cache() -> None:
    one = replace(by_hand().models[0], cache=None)
    assert list(lines_of(Evaluation((one,))))[-1].split() == ["whole", "1,000", "400", "4,000", "bytes"]


def test_as_json_what_is_no_number_is_null(tmp_path: Path) -> None:
    by_hand().save(tmp_path / "new" / "e.json")
    found = json.loads((tmp_path / "new" / "e.json").read_text(encoding="utf-8"))
    assert found["schema"] == "headlens.evaluation/1"
    assert (found["command"], found["against"]) == ("by hand", "whole")
    small = found["models"][1]
    assert small["differences"] == [
        {"task": "blimp:x", "metric": "accuracy", "value": -0.5, "low": None, "high": None, "higher_is_better": True}
    ]
    assert small["tasks"][0]["figures"][0]["value"] == 0.5
    assert small["tasks"][0]["figures"][0]["low"] is None
    assert small["bytes_on_disk"] == {"weights": 3000, "total": 9999}
    assert small["bytes_of_cache"] == {"total": 320, "tokens": 32, "batch": 1}
    assert small["parameters"]["attention"] == 200


def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="is not a plain file"):
        by_hand().save(tmp_path)


def test_a_task_that_a_model_cannot_do_is_refused(folder: Path) -> None:
    class Unfit(Told):
        def ask(self, loaded: LoadedModel, *, batch_tokens: int = 4096) -> Answers:
            raise CorpusError(f"{loaded.name} cannot.")

    with pytest.raises(CorpusError, match="whole cannot"):
        evaluate_models(["whole"], [Unfit()])


def test_a_model_of_nan_is_refused() -> None:
    loaded = load_whole("tiny-gpt2", check=False)
    broken = replace(loaded, model=copy.deepcopy(loaded.model))
    with torch.no_grad():
        broken.model.transformer.h[1].attn.c_proj.weight[0, 0] = float("nan")
    with pytest.raises(UnsupportedModel, match="not finite"):
        evaluate(broken, read_task("grammar:20"))
