"""scripts/verify_attention.py: what it calls equal, what it calls a failure, and what it writes."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend

from headlens import attention
from headlens.errors import HeadlensError

SCRIPT = Path(__file__).parent.parent / "scripts" / "verify_attention.py"


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("verify_attention", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["verify_attention"] = module  # where its dataclasses look themselves up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["verify_attention"]


@pytest.fixture(scope="module")
def subjects(script) -> dict[str, Any]:
    return {subject.name: subject for subject in script.subjects("cpu")}


@pytest.fixture
def few(script, subjects, monkeypatch) -> None:
    """Only BERT in float32, so that main() takes a moment."""
    monkeypatch.setattr(script, "subjects", lambda device, model: [subjects["BERT"]])
    monkeypatch.setattr(script, "DTYPES", (torch.float32,))


def test_it_covers_the_families_and_torch(subjects):
    assert list(subjects) == [
        "BERT",
        "GPT-2",
        "GPT-2, scores / layer",
        "GPT-2, upcast",
        "Llama, grouped",
        "nn.MultiheadAttention",
    ]


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "GPT-2, scores / layer", "GPT-2, upcast", "Llama, grouped"])
def test_eager_attention_is_met_bit_for_bit(script, subjects, name):
    check = script.compare(subjects[name], torch.float32, script.Setting("eager"), "cpu")
    assert (check.verdict, check.max_error, check.tolerance) == ("bit-equal", 0.0, 0.0)
    assert (check.layers, check.batches) == (2, "padded, full")
    assert 2 < check.largest_output < 8  # the tolerances are made for it


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "Llama, grouped", "nn.MultiheadAttention"])
def test_sdpa_is_met_within_the_tolerance(script, subjects, name):
    check = script.compare(subjects[name], torch.float64, script.Setting("sdpa"), "cpu")
    assert check.verdict == "within"
    assert check.tolerance == (1e-6 if name.startswith("Llama") else 1e-13)


@pytest.mark.parametrize("function", ["attention_scores", "attention_probs", "merge_heads"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["GPT-2", "nn.MultiheadAttention"])
def test_a_small_error_fails(script, subjects, monkeypatch, name, implementation, function):
    right = getattr(attention, function)
    monkeypatch.setattr(attention, function, lambda *args: right(*args) * 1.0001)
    check = script.compare(subjects[name], torch.float32, script.Setting(implementation), "cpu")
    assert check.verdict == "FAILS"


def test_nan_fails(script, subjects, monkeypatch):
    monkeypatch.setattr(attention, "merge_heads", lambda context: context.transpose(1, 2).flatten(-2) * torch.nan)
    check = script.compare(subjects["BERT"], torch.bfloat16, script.Setting("sdpa"), "cpu")
    assert check.verdict == "FAILS"


def test_a_back_end_without_a_kernel_is_said_so(script, subjects):
    setting = script.Setting("sdpa", SDPBackend.EFFICIENT_ATTENTION)
    check = script.compare(subjects["GPT-2"], torch.float32, setting, "cpu")
    assert (check.verdict, check.batches, check.max_error) == ("not supported", "", None)
    assert check.note == "the back end has no kernel for this case"
    assert script.cells(check)[3] == "sdpa efficient"


def test_other_errors_are_not_hidden(script, subjects, monkeypatch):
    def broken(*args: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(attention, "attention_scores", broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        script.compare(subjects["BERT"], torch.float32, script.Setting("eager"), "cpu")


def test_on_cuda_every_back_end_is_asked_with_and_without_tf32(script):
    words = [str(setting) for setting in script.settings_for("cuda", torch.float32)]
    plain = ["eager", "sdpa", "sdpa math", "sdpa efficient", "sdpa flash"]
    assert words == plain + [f"{word} + TF32" for word in plain]
    assert [str(setting) for setting in script.settings_for("cuda", torch.bfloat16)] == plain
    assert [str(setting) for setting in script.settings_for("cpu", torch.float32)] == ["eager", "sdpa"]


@pytest.mark.parametrize(
    ("dtype", "setting", "device", "expected"),
    [
        (torch.float32, ("eager",), "cuda", 2e-5),
        (torch.float32, ("sdpa", None, True), "cuda", 1e-2),
        (torch.bfloat16, ("sdpa",), "cuda", 1e-1),
        (torch.float16, ("sdpa",), "cpu", 5e-3),
    ],
)
def test_tolerances(script, subjects, dtype, setting, device, expected):
    mha = attention.MultiHeadAttention(8, 2)
    assert script.tolerance_of(subjects["BERT"], mha, dtype, script.Setting(*setting), device) == expected


def test_settings_are_put_back(script, subjects):
    before = (torch.get_float32_matmul_precision(), torch.backends.mha.get_fastpath_enabled())
    script.compare(subjects["BERT"], torch.float32, script.Setting("sdpa", SDPBackend.MATH, tf32=True), "cpu")
    assert (torch.get_float32_matmul_precision(), torch.backends.mha.get_fastpath_enabled()) == before


@pytest.mark.usefixtures("few")
def test_the_report(script, tmp_path, capsys):
    assert script.main(["--out", str(tmp_path)]) == 0
    data = json.loads((tmp_path / "cpu.json").read_text())
    assert [check["verdict"] for check in data["checks"]] == ["bit-equal", "within"]
    assert data["command"] == "python scripts/verify_attention.py --device cpu"
    assert data["machine"].endswith("threads")
    page = (tmp_path / "cpu.md").read_text()
    assert "2 comparisons: 1 bit-equal, 1 within, 0 FAILS, 0 not supported." in page
    assert f"torch {torch.__version__}" in page
    assert "| BERT | 2 | float32 | eager | padded, full |" in page
    assert "bit-equal" in capsys.readouterr().out


@pytest.mark.usefixtures("few")
def test_a_failure_is_the_exit_code(script, tmp_path, monkeypatch):
    monkeypatch.setattr(attention, "repeat_kv", lambda x, groups: x.roll(1, dims=1))
    assert script.main(["--out", str(tmp_path)]) == 1
    assert "0 bit-equal, 0 within, 2 FAILS" in (tmp_path / "cpu.md").read_text()


def test_cuda_without_a_device_is_one_sentence(script, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert script.main(["--device", "cuda"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == ("--device cuda needs a CUDA device, and torch sees none on this machine; use --device cpu.\n")


def test_a_model_that_is_not_there(script, tmp_path):
    with pytest.raises(HeadlensError, match="no model folder, and no hub id"):
        script.pretrained(str(tmp_path / "nothing"))


def test_every_layer_of_a_pretrained_model(script, minilm_path, monkeypatch):
    monkeypatch.setattr(script, "tiny_models", dict)
    (minilm,) = (subject for subject in script.subjects("cpu", str(minilm_path)) if subject.is_huggingface)
    check = script.compare(minilm, torch.float32, script.Setting("eager"), "cpu")
    assert (check.verdict, check.layers) == ("bit-equal", 6)
    facts = script.provenance("cpu", str(minilm_path))
    assert str(minilm_path.parent) not in json.dumps(facts)


@pytest.mark.gpu
def test_everything_on_a_gpu(script, tmp_path):
    assert script.main(["--device", "cuda", "--out", str(tmp_path)]) == 0
