"""Proof, before any number, that what is captured is what the model computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headlens.arch import Site, attention_sites, output_bias, output_projection, output_weight
from headlens.attention import repeat_kv
from headlens.capture import SLICE_BYTES, Way, capture, switched
from headlens.errors import SelfCheckFailed, UnsupportedModel
from headlens.numbers import amount
from headlens.positions import with_positions
from headlens.records import LayerAttention, Stack

LENGTHS = (17, 9)  # tokens of the two texts: one is padded; fewer where a model takes fewer
STATES = 5  # tokens of the text that a decoder without an encoder looks across at
SLICE_ROWS = 6  # query rows of a slice of the fast way
# Largest error allowed, relative to the largest number compared (at least 1). Families that take their softmax in
# float32 whatever the dtype (Llama and others) are no more exact than that in float64.
TOLERANCES = {torch.float64: 5e-6, torch.float32: 1e-4, torch.bfloat16: 6e-2, torch.float16: 1e-2}


@dataclass(frozen=True)
class Law:
    """One thing that must hold, the largest relative error found, and where."""

    name: str
    error: float
    tolerance: float
    where: str

    @property
    def holds(self) -> bool:
        return self.error <= self.tolerance  # False for NaN too


@dataclass(frozen=True)
class SelfCheck:
    """The laws that were checked, and in words those that could not be."""

    laws: tuple[Law, ...]
    layers: int
    unchecked: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return all(law.holds for law in self.laws)

    @property
    def line(self) -> str:
        """One line for people."""
        worst = max(self.laws, key=lambda law: law.error / law.tolerance if law.error == law.error else float("inf"))
        if not self.passed:
            return f"failed: {worst.name} in {worst.where} by {worst.error:.1e} (allowed {worst.tolerance:.0e})"
        missing = f"; not checked: {'; '.join(self.unchecked)}" if self.unchecked else ""
        return (
            f"passed: {amount(len(self.laws), 'law')} over {amount(self.layers, 'layer')} hold, "
            f"largest error {worst.error:.1e} of {worst.tolerance:.0e} allowed ({worst.name}){missing}"
        )

    def to_dict(self) -> dict[str, Any]:
        laws = [
            {"law": law.name, "error": law.error, "tolerance": law.tolerance, "where": law.where} for law in self.laws
        ]
        return {"passed": self.passed, "line": self.line, "laws": laws, "unchecked": list(self.unchecked)}


def check_model(model: nn.Module, inputs: Mapping[str, Tensor] | None = None) -> SelfCheck:
    """Check a model of transformers against itself, on two short random texts of which one is padded.

    `inputs` replaces the texts: keyword arguments of the model, the padding (if any) marked in "attention_mask".

    Raises
    ------
    SelfCheckFailed
        A law does not hold; the message names law, layer and figure.
    UnsupportedModel
        The model's attention cannot be watched.
    """
    given = dict(inputs) if inputs is not None else _random_inputs(model)
    check = _check(model, given)
    for law in check.laws:
        if not law.holds:
            raise SelfCheckFailed(
                f"Self-check failed: {law.name} does not hold in {law.where}: "
                f"error {law.error:.2e}, allowed {law.tolerance:.0e}. No score of this model can be trusted."
            )
    return check


def _check(model: nn.Module, inputs: dict[str, Tensor]) -> SelfCheck:
    every = attention_sites(model)
    sites = [site for site in every if not site.is_empty]  # nothing comes from a layer without heads
    tolerance = next(TOLERANCES[weight.dtype] for weight in model.parameters() if weight.dtype in TOLERANCES)
    rows = [_real_rows(inputs, site.stack) for site in sites]
    sinks = any(hasattr(site.module, "sinks") for site in sites)
    with torch.inference_mode():
        plain = _unwatched(model, inputs, tolerance)
        with _projected(model, sites) as outputs:
            exact, hidden = _watched(model, inputs, "exact")
        sliced, _ = _watched(model, inputs, "both", slice_bytes=_slice_bytes(exact))
        lost = _lost(hidden, plain)
        laws = [_reported_once(exact, sites)]
        if laws[0].holds:
            compare = _Comparison(sites, exact, rows, tolerance)
            if not sinks:
                ones = "rows of probabilities sum to 1"
                laws.append(compare.law(ones, lambda a, _: (a.probs.sum(-1), torch.ones_like(a.probs[..., 0]))))
            laws += [
                compare.law("probabilities times values are the context", lambda a, _: (_mixed(a), a.context)),
                compare.law("headlens's attention equals the model's", lambda _, i: _both_ways(sliced, sites[i])),
            ]
            if not lost.all():
                pair = (hidden.masked_fill(lost, 0), plain.masked_fill(lost, 0))
                real = _real_rows(inputs, every[-1].stack)
                laws.append(_law("watching changes nothing", [pair], [real], ["the model's output"], tolerance))
            if outputs is not None:
                heads = "heads' contributions and the bias are the layer's output"
                laws.append(compare.law(heads, lambda a, i: _as_layer(_summed(a, model, sites[i]), outputs[i])))
            if "attention_mask" in inputs and len(inputs["attention_mask"]) > 1:
                laws.append(_padded_equals_unpadded(model, inputs, sites, exact, tolerance))
    unchecked = ["heads' contributions (output projection unknown)"] if outputs is None else []
    unchecked += ["rows sum to 1 (the model has learned sinks)"] if sinks else []
    if lost.any():
        unchecked.append(f"the output where unwatched the model gives NaN ({float(lost.double().mean()):.0%} of it)")
    return SelfCheck(tuple(laws), len(sites), tuple(unchecked))


@dataclass(frozen=True)
class _Comparison:
    """Compares two [batch, head, query, ...] tensors of every layer, on rows that are real tokens."""

    sites: list[Site]
    layers: list[LayerAttention]
    real: list[Tensor | None]  # of every layer
    tolerance: float

    def law(self, name: str, sides: Callable[[LayerAttention, int], tuple[Tensor, Tensor]]) -> Law:
        pairs = [sides(layer, i) for i, layer in enumerate(self.layers)]
        aligned = [(a.transpose(1, 2), b.transpose(1, 2)) for a, b in pairs]
        return _law(name, aligned, self.real, [str(site) for site in self.sites], self.tolerance)


def _law(
    name: str, pairs: list[tuple[Tensor, Tensor]], real: list[Tensor | None], where: list[str], tolerance: float
) -> Law:
    if not pairs:
        return Law(name, 0.0, tolerance, "no layer")  # all heads were removed
    errors = [_error(a, b, rows) for (a, b), rows in zip(pairs, real, strict=True)]
    worst = max(range(len(errors)), key=lambda i: errors[i] if errors[i] == errors[i] else float("inf"))
    return Law(name, errors[worst], tolerance, where[worst])


def _error(a: Tensor, b: Tensor, real: Tensor | None) -> float:
    """Largest difference over [batch, token, ...] on real tokens, relative to the largest number (at least 1)."""
    if real is not None and a.dim() > 2 and real.shape == a.shape[:2]:
        a, b = a[real.bool()], b[real.bool()]
    a, b = a.double(), b.double()
    return float((a - b).abs().max() / b.abs().max().clamp_min(1))


def _real_rows(inputs: Mapping[str, Tensor], stack: Stack) -> Tensor | None:
    """The mask [batch, token] of the tokens that are the queries of a stack."""
    decoding = stack != "encoder" and "decoder_input_ids" in inputs
    return inputs.get("decoder_attention_mask" if decoding else "attention_mask")


def _lost(watched: Tensor, plain: Tensor) -> Tensor:
    """Where only the model's own attention gives no number: eager float64 has rows of padding that are NaN, if the
    softmax is in float32 (Gemma 2)."""
    return watched.isfinite() & ~plain.isfinite()


def _unwatched(model: nn.Module, inputs: Mapping[str, Tensor], tolerance: float) -> Tensor:
    """What the model returns by itself, from the same positions. In half precision with eager attention, as its own may
    round differently in every layer, and a deep model carries that far."""
    handle = model.register_forward_pre_hook(with_positions, with_kwargs=True)
    try:
        with switched(model, "eager") if tolerance > TOLERANCES[torch.float32] else nullcontext():
            return _hidden(model(**inputs))
    finally:
        handle.remove()


def _reported_once(exact: list[LayerAttention], sites: list[Site]) -> Law:
    got = sorted((layer.stack, layer.layer) for layer in exact)
    want = sorted((site.stack, site.layer) for site in sites)
    missing = len(set(want) - set(got)) + abs(len(got) - len(want))
    where = next((str(s) for s in sites if got.count((s.stack, s.layer)) != 1), "the model")
    return Law("every layer is reported once", float(missing), 0.5, where)


def _watched(
    model: nn.Module, inputs: dict[str, Tensor], way: Way, *, slice_bytes: int = SLICE_BYTES
) -> tuple[list[LayerAttention], Tensor]:
    """What `capture` delivers, in the order of the model's attention layers, and what the model returns."""
    seen: list[LayerAttention] = []
    with capture(model, seen.append, way=way, slice_bytes=slice_bytes) as sites:
        hidden = _hidden(model(**inputs))
    order = {(site.stack, site.layer): i for i, site in enumerate(sites)}
    return sorted(seen, key=lambda layer: order[layer.stack, layer.layer]), hidden


def _slice_bytes(exact: list[LayerAttention]) -> int:
    """As many as a few rows take, so that the texts make more than one slice."""
    return SLICE_ROWS * max((a.probs[:, :, :1].numel() * a.probs.element_size() for a in exact), default=1)


def _hidden(output: Any) -> Tensor:
    """The first tensor that a model returns: hidden states or logits."""
    first = output if isinstance(output, Tensor) else output[0]
    assert isinstance(first, Tensor)
    return first


def _both_ways(seen: list[LayerAttention], site: Site) -> tuple[Tensor, Tensor]:
    """The context of a layer put together from its slices, and whole; twice the whole where there is no fast way."""
    *slices, whole = (a for a in seen if (a.stack, a.layer) == (site.stack, site.layer))
    slices.sort(key=lambda a: a.query_start)
    joined = torch.cat([a.context for a in slices or [whole]], dim=2)
    fits = joined.shape == whole.context.shape
    return (joined if fits else torch.full_like(whole.context, torch.nan)), whole.context


def _mixed(attention: LayerAttention) -> Tensor:
    return attention.probs @ repeat_kv(attention.v, attention.probs.shape[1] // attention.v.shape[1])


def _summed(attention: LayerAttention, model: nn.Module, site: Site) -> Tensor:
    """[batch, 1, query, hidden]: the sum of what each head adds, and the bias."""
    projection = output_projection(model, site)
    weight = output_weight(projection, attention.context.shape[1])
    total = torch.einsum("bhqd,hde->bqe", attention.context, weight)
    bias = output_bias(projection)
    return (total if bias is None else total + bias)[:, None]


def _as_layer(summed: Tensor, output: Tensor | None) -> tuple[Tensor, Tensor]:
    """Both sides [batch, 1, query, hidden]; no numbers where the layer's projection was never called."""
    return summed, torch.full_like(summed, torch.nan) if output is None else output[:, None]


@contextmanager
def _projected(model: nn.Module, sites: list[Site]) -> Iterator[list[Tensor | None] | None]:
    """What the output projections return, in the order of the sites, None for one that was not called; None in all
    where the family's are not known."""
    try:
        projections = [output_projection(model, site) for site in sites]
    except UnsupportedModel:
        yield None
        return
    returned: dict[int, list[Tensor]] = {id(p): [] for p in projections}
    outputs: list[Tensor | None] = []
    handles = [
        p.register_forward_hook(lambda module, _, output: returned[id(module)].append(output.detach()))
        for p in {id(p): p for p in projections}.values()
    ]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()
    calls = {key: iter(values) for key, values in returned.items()}
    outputs += [next(calls[id(p)], None) for p in projections]


def _padded_equals_unpadded(
    model: nn.Module, inputs: dict[str, Tensor], sites: list[Site], exact: list[LayerAttention], tolerance: float
) -> Law:
    pairs, where = [], []
    for row in range(len(inputs["attention_mask"])):
        single, _ = _watched(model, _without_padding(inputs, row), "exact")
        for padded, unpadded, site in zip(exact, single, sites, strict=True):
            real = _real_rows(inputs, site.stack)
            rows = padded.context[row].transpose(0, 1)
            rows = rows if real is None else rows[real[row].bool()]
            pairs.append((rows[None], unpadded.context.transpose(1, 2)))
            where.append(str(site))
    return _law("padded equals unpadded", pairs, [None] * len(pairs), where, tolerance)


def _without_padding(inputs: Mapping[str, Tensor], row: int) -> dict[str, Tensor]:
    alone = {}
    for name, value in inputs.items():
        real = inputs.get("decoder_attention_mask" if name.startswith("decoder_") else "attention_mask")
        alone[name] = value[row : row + 1]
        if real is not None and real.shape == value.shape[:2] and not name.startswith("encoder_"):
            alone[name] = alone[name][:, real[row].bool()]
    return alone


def _random_inputs(model: nn.Module) -> dict[str, Tensor]:
    config: Any = getattr(model, "config", None)
    reads = getattr(model, "main_input_name", "input_ids")
    if not hasattr(config, {"input_ids": "vocab_size", "pixel_values": "image_size"}.get(reads, "")):
        raise UnsupportedModel(f"What {type(model).__name__} reads is not known here: give its inputs to check_model.")
    device, dtype = next(model.parameters()).device, next(model.parameters()).dtype
    random = torch.Generator().manual_seed(0)
    if reads == "pixel_values":
        size = config.image_size if isinstance(config.image_size, int) else config.image_size[0]
        pixels = torch.randn(2, config.num_channels, size, size, generator=random)
        return {"pixel_values": pixels.to(device, dtype)}
    low = 20 if config.vocab_size > 40 else 0  # special tokens stand first
    lengths = _lengths(model)
    ids = torch.randint(low, config.vocab_size, (len(lengths), max(lengths)), generator=random)
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    pad = getattr(config, "pad_token_id", None)
    is_token = isinstance(pad, int) and 0 <= pad < config.vocab_size
    ids = torch.where(real, ids, torch.tensor(pad if is_token else 0))
    inputs = {"input_ids": ids.to(device), "attention_mask": real.long().to(device)}
    if getattr(config, "is_encoder_decoder", False):
        inputs |= {"decoder_input_ids": inputs["input_ids"], "decoder_attention_mask": inputs["attention_mask"]}
    elif getattr(config, "add_cross_attention", False):
        states = torch.randn(len(lengths), STATES, config.hidden_size, generator=random)
        inputs["encoder_hidden_states"] = states.to(device, dtype)
    return inputs


def _lengths(model: nn.Module) -> list[int]:
    """Tokens of the two texts: LENGTHS, or shorter in their ratio where the model has fewer positions."""
    places = getattr(model.config, "max_position_embeddings", None)
    if not isinstance(places, int) or places < 1:
        return list(LENGTHS)
    for name, part in model.named_modules():  # RoBERTa counts from the place after that of padding
        if name.endswith("position_embeddings") and isinstance(getattr(part, "padding_idx", None), int):
            places -= part.padding_idx + 1
            break
    if places < 1:
        raise UnsupportedModel(f"{type(model).__name__} has no position for even one token, by its config.")
    longest = min(places, max(LENGTHS))
    return [max(1, length * longest // max(LENGTHS)) for length in LENGTHS]
