"""What heads take from where they look: closed forms, and equality with vectors that are written out."""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from slow_contribution import Written, offers_of, slow_scores
from test_analyze import COMMA, SEP, STOP, batches_of, corpus, patterns
from test_analyzers import attention_of, batch_of
from torch import Tensor, nn

from headlens.analyze import analyze
from headlens.analyzers import Position, Surface, contribution
from headlens.analyzers.contribution import NEIGHBOURS, NO_OP_RATIO, Contribution, norms_after, output_factors
from headlens.attention import MultiHeadAttention
from headlens.capture import Way, capture
from headlens.errors import UnsupportedModel
from headlens.models import network_of
from headlens.records import Batch, LayerAttention
from headlens.replace import replace_attention
from headlens.scores import ScoreTable
from headlens.testing import draw, tiny_model

CLS = 1
KINDS = ("first", "cls", "sep", "full_stop", "comma")  # of the corpus that the models run over
GROUPED = {"llama": 2, "gemma2": 2, "qwen3": 2}


# ------------------------------------------------------------------------------------- drawn attention, known norms


def layer_of(*w_out: list[list[float]]) -> MultiHeadAttention:
    """A layer of heads of two numbers each, with these W_O [dim, hidden]."""
    weight = torch.tensor(w_out, dtype=torch.float64)  # [head, dim, hidden]
    layer = MultiHeadAttention(weight.shape[2], len(w_out), head_dim=2, bias=False).double().eval()
    layer.o_proj.weight = nn.Parameter(weight.flatten(0, 1).T.contiguous())
    return layer


# Lengths 3, 4 and 5 of [1, 0], [0, 1] and [1, 1]; and the first number alone, whatever the second is.
THREE_FOUR_FIVE = [[3.0, 0.0, 0.0, 0.0], [0.0, 4.0, 0.0, 0.0]]
FIRST_ALONE = [[0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]]

# [CLS] a , b: of the first head, [CLS] brings nothing; of the second, b does not
PATTERNS = [
    draw([". . . 1", ".5 .5 . .", ".6 .2 . .2", ".9 . .1 ."]),
    draw([". . . 1", ".25 .5 .25 .", ". . 1 .", ". . . 1"]),
]
VALUES = [[[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [[2.0, 9.0], [1.0, 9.0], [-1.0, 8.0], [0.0, 7.0]]]
CONTEXTS = [[[99.0, 99.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [[99.0, 99.0], [2.0, 5.0], [-2.0, 6.0], [2.0, 7.0]]]


def drawn_case(heads: list[int]) -> tuple[Contribution, LayerAttention, Batch]:
    attention = dataclasses.replace(
        attention_of(*(PATTERNS[head] for head in heads)),
        v=torch.tensor([[VALUES[head] for head in heads]], dtype=torch.float64),
        context=torch.tensor([[CONTEXTS[head] for head in heads]], dtype=torch.float64),
    )
    analyzer = Contribution(layer_of(*([THREE_FOUR_FIVE, FIRST_ALONE][head] for head in heads)))
    return analyzer, attention, batch_of(4, special=(0,), cls=(0,), comma=(2,))


def rows_of(attention: LayerAttention, start: int, stop: int, keys: int = 4) -> LayerAttention:
    """A slice of query rows, of which none looks beyond the first `keys`."""
    return dataclasses.replace(
        attention,
        **{name: getattr(attention, name)[:, :, start:stop] for name in ("q", "context")},
        **{name: getattr(attention, name)[:, :, :keys] for name in ("k", "v")},
        probs=attention.probs[:, :, start:stop, :keys],
        query_start=start,
    )


# Of the first head, what is taken is 1.5 from a | .6 from a, 1 from b | .4 from the comma. Of the second .5 from [CLS],
# .5 from a, .25 from the comma | 1 from the comma | nothing at all: a row that is left out.
EXPECTED = {
    "first": [0.0, 0.2],
    "cls": [0.0, 0.2],
    "sep": [0.0, 0.0],
    "special": [0.0, 0.0],
    "full_stop": [0.0, 0.0],
    "comma": [1 / 3, 0.6],
    "self": [1 / 3, 0.7],
    "previous": [1.375 / 3, 0.2],
    "next": [0.625 / 3, 0.1],
    "norm_of_sink": [0.0, 3.0],
    "sink_weight": [2 / 3, 0.25 / 3],
    "sink_share": [0.0, 0.2],
    "sink_ratio": [0.0, 2.4],
    "size": [2 / 3, 1 / 3],
}


@pytest.mark.parametrize("heads", [[0, 1], [1, 0]])
def test_a_drawn_case(heads: list[int]) -> None:
    analyzer, attention, batch = drawn_case(heads)
    scores = analyzer.score(analyzer.observe(attention, batch))
    assert list(scores) == [metric.name for metric in analyzer.metrics]
    for name, expected in EXPECTED.items():
        wanted = torch.tensor([[expected[head] for head in heads]], dtype=torch.float64)
        torch.testing.assert_close(scores[f"contribution.{name}"], wanted, rtol=0, atol=1e-12, msg=name)


def test_support_counts_the_rows_in_which_something_is_taken() -> None:
    analyzer, attention, batch = drawn_case([0, 1])
    support = {name: value.tolist() for name, value in analyzer.support(analyzer.observe(attention, batch)).items()}
    assert support["contribution.comma"] == support["contribution.sink_ratio"] == [[3, 2]]
    assert support["contribution.previous"] == [[3, 2]]
    assert support["contribution.sink_weight"] == support["contribution.size"] == [[3]]
    assert support["contribution.norm_of_sink"] == [[1, 1]]
    assert support["contribution.full_stop"] == [[0, 0]]  # there is none


def test_a_head_without_values_has_no_scores_but_its_weights() -> None:
    analyzer, attention, batch = drawn_case([0, 1])
    values, contexts = attention.v.clone(), attention.context.clone()
    values[:, 0], contexts[:, 0] = 0, 0
    sums = analyzer.observe(dataclasses.replace(attention, v=values, context=contexts), batch)
    scores, support = analyzer.score(sums), analyzer.support(sums)
    of_first_head = {
        name.split(".")[1]: (float(scores[name][0, 0]), int(support[name].expand(1, 2)[0, 0])) for name in scores
    }
    defined = {name: found for name, found in of_first_head.items() if not np.isnan(found[0])}
    assert defined == {"sink_weight": (pytest.approx(2 / 3), 3), "size": (0.0, 3)}
    assert all(count == 0 for name, (_, count) in of_first_head.items() if name not in defined)
    assert scores["contribution.comma"][0, 1] == pytest.approx(0.6)


def test_what_padding_offers_is_never_read() -> None:
    analyzer, attention, batch = drawn_case([0, 1])
    before = analyzer.observe(attention, batch)
    wider = {name: nn.functional.pad(getattr(attention, name), (0, 0, 0, 1)) for name in ("q", "k", "v", "context")}
    wider["v"][:, :, 4] = torch.nan
    padded = dataclasses.replace(attention, **wider, probs=nn.functional.pad(attention.probs, (0, 1, 0, 1)))
    tensors = (nn.functional.pad(t, (0, 1)) for t in (batch.input_ids, batch.attention_mask, batch.special))
    classes = {name: nn.functional.pad(member, (0, 1)) for name, member in batch.token_classes.items()}
    after = analyzer.observe(padded, Batch(*tensors, batch.document, classes))
    for key, value in before.items():
        torch.testing.assert_close(after[key], value, rtol=0, atol=1e-12, msg=key)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("order", ["first to last", "last to first"])
def test_slices_of_rows_add_up(rows: int, order: str) -> None:
    analyzer, attention, batch = drawn_case([0, 1])
    whole = analyzer.observe(attention, batch)
    starts = range(0, 4, rows) if order == "first to last" else reversed(range(0, 4, rows))
    parts = [analyzer.observe(rows_of(attention, start, min(start + rows, 4)), batch) for start in starts]
    for key, value in whole.items():
        torch.testing.assert_close(sum(part[key] for part in parts), value, rtol=0, atol=1e-12, msg=key)


def test_values_are_read_once_a_layer_and_anew_in_the_next_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    analyzer, attention, batch = drawn_case([0, 1])
    read: list[tuple[int, ...]] = []

    def noted(values: Tensor, factor: Tensor) -> Tensor:
        if values.data_ptr() == attention.v.data_ptr():  # and not the context
            read.append(tuple(values.shape))
        return norms_after(values, factor)

    monkeypatch.setattr(contribution, "norms_after", noted)
    slices = [rows_of(attention, 2, 4), rows_of(attention, 0, 2, keys=2)]
    for _ in range(2):
        for part in slices:
            analyzer.observe(part, batch)
    assert read == [(1, 2, 4, 2)] * 2  # the shorter slice made do with what the longer one had
    before = analyzer.observe(attention, batch)["offered"]
    attention.v.mul_(2)  # the same memory, other values
    assert torch.equal(analyzer.observe(attention, batch)["offered"], 2 * before)


def test_layers_that_share_values_have_their_own_w_out() -> None:
    model = nn.ModuleList([layer_of(THREE_FOUR_FIVE, FIRST_ALONE), layer_of(FIRST_ALONE, THREE_FOUR_FIVE)])
    _, attention, batch = drawn_case([0, 1])
    analyzer = Contribution(model)
    half = rows_of(attention, 0, 2)
    offered = [
        analyzer.observe(dataclasses.replace(half, layer=layer), batch)["offered"][0, :, -1].tolist()
        for layer in (0, 1)  # the first layer's last row never comes
    ]
    assert offered == [[3.0, 1.0], [1.0, pytest.approx(float(np.hypot(3, 36)))]]  # of a, the only ordinary token here


# ------------------------------------------------------------------------------------------------- norms behind W_O


@pytest.mark.parametrize("hidden", [12, 2])  # wider than a head, and narrower
def test_norms_behind_w_out(hidden: int) -> None:
    layer = MultiHeadAttention(hidden, 4, head_dim=3).double().eval()
    nn.init.normal_(layer.o_proj.weight)
    values = torch.randn(2, 2, 5, 3, dtype=torch.float64)  # two heads share a key/value head
    (factor,) = output_factors(layer).values()
    weights = layer.o_proj.weight.detach().numpy()
    expected = np.zeros((2, 4, 5))
    for b, h, t in np.ndindex(2, 4, 5):
        expected[b, h, t] = np.linalg.norm(weights[:, 3 * h : 3 * h + 3] @ values[b, h // 2, t].numpy())
    np.testing.assert_allclose(norms_after(values, factor).numpy(), expected, rtol=1e-10)


def test_norms_keep_their_digits_where_w_out_lets_little_through() -> None:
    turn = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64)).Q
    let_through = torch.tensor([1.0] * 7 + [1e-4], dtype=torch.float64)
    layer = MultiHeadAttention(8, 1, head_dim=8).eval()
    layer.o_proj.weight = nn.Parameter((turn * let_through).T.float().contiguous())
    value = turn[:, 7].float()[None, None, None]
    (factor,) = output_factors(layer).values()
    expected = float((layer.o_proj.weight.detach().double() @ value.flatten().double()).norm())
    # float32 has seven digits, four are used up by the smallness; v G v^T would have none left
    assert float(norms_after(value, factor)) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_norms_of_narrow_values_are_taken_in_single_precision(dtype: torch.dtype) -> None:
    layer = MultiHeadAttention(8, 2).to(dtype).eval()
    values = torch.full((1, 2, 3, 4), 200.0, dtype=dtype)  # whose squares overflow float16
    (factor,) = output_factors(layer).values()
    weights = layer.o_proj.weight.detach().double().numpy()
    expected = [np.linalg.norm(weights[:, 4 * h : 4 * h + 4].sum(axis=1)) * 200 for h in range(2)]
    found = norms_after(values, factor)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found[0, :, 0].numpy(), expected, rtol=1e-5)


# ------------------------------------------------------------------------------------------------------ running models


def network(family: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    return network_of(tiny_model(family, dtype=dtype))


def scores_of(model: nn.Module, batches: list[Batch], way: Way = "fast") -> ScoreTable:
    return analyze(model, batches, [Contribution(model)], documents=6, way=way).scores()


def written(family: str, model: nn.Module) -> list[Written]:
    found = []
    for text in corpus():
        ids = text.tolist()
        members = {"cls": CLS, "sep": SEP, "full_stop": STOP, "comma": COMMA}
        kinds = {name: [t == token for t in ids] for name, token in members.items()}
        kinds |= {"first": [i == 0 for i in range(len(ids))], "special": [False] * len(ids)}
        offers = offers_of(family, model, text, heads=4, kv_heads=GROUPED.get(family, 4))
        probs = np.stack([layer.double().numpy() for layer in patterns(model, text)])
        found.append(Written(probs, offers, [t in (CLS, SEP) for t in ids], kinds))
    return found


def assert_equal_scores(table: ScoreTable, slow: dict[str, np.ndarray], tolerance: float) -> None:
    absent = {"contribution.special", "contribution.special.macro"}  # no such token in this corpus
    assert set(table.names) == set(slow) - absent
    for name in table.names:
        np.testing.assert_allclose(table[name], slow[name], rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("family", ["bert", "gpt2", "gpt_neox", "opt", "llama", "gemma2", "qwen3", "t5"])
def test_equal_to_the_vectors_written_out(family: str) -> None:
    model = network(family)  # the exact way, as some files take the softmax in float32 and the fast way does not
    assert_equal_scores(scores_of(model, batches_of("all"), "exact"), slow_scores(written(family, model)), 1e-10)


@pytest.mark.parametrize("how", ["one by one", "left", "shuffled pairs"])
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_batches_and_padding_change_nothing(family: str, how: str) -> None:
    model = network(family)
    assert_equal_scores(scores_of(model, batches_of(how), "exact"), slow_scores(written(family, model)), 1e-10)


@pytest.mark.parametrize("way", ["fast", "exact"])
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_equal_in_float32(family: str, way: Way) -> None:
    model = network(family, torch.float32)
    assert_equal_scores(scores_of(model, batches_of("all"), way), slow_scores(written(family, model)), 1e-5)


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_slices_of_few_rows_change_nothing(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = network(family)
    whole = scores_of(model, batches_of("all"))
    monkeypatch.setattr("headlens.analyze.capture", partial(capture, slice_bytes=5000))  # some two rows
    sliced = scores_of(model, batches_of("all"))
    assert sliced.names == whole.names
    np.testing.assert_allclose(sliced.values, whole.values, rtol=1e-10, atol=1e-12)


def test_layers_of_headlens_itself_score_as_the_ones_they_replace() -> None:
    model = network("gpt2")
    before = scores_of(model, batches_of("all"))
    replace_attention(model)
    after = scores_of(model, batches_of("all"))
    assert after.names == before.names
    np.testing.assert_allclose(after.values, before.values, rtol=0, atol=1e-10)


def test_where_all_tokens_offer_alike_shares_are_those_of_the_weights() -> None:
    model = network("bert")
    for block in model.encoder.layer:
        block.attention.self.value.weight.data.zero_()  # the bias is left: one value for all tokens
    analyzers = [Contribution(model), Surface(), Position()]
    table = analyze(model, batches_of("all"), analyzers, documents=6).scores()
    pairs = {f"contribution.{kind}": f"surface.{kind}" for kind in KINDS}
    pairs |= {f"contribution.{name}": f"position.mass[{offset}]" for offset, (name, _) in NEIGHBOURS.items()}
    np.testing.assert_allclose(
        np.stack([table[name] for name in pairs]), np.stack([table[name] for name in pairs.values()]), atol=1e-12
    )
    for name in ("contribution.sink_ratio", "contribution.norm_of_sink"):
        np.testing.assert_allclose(table[name], 1.0, atol=1e-12)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_chance_is_that_of_the_weights(family: str) -> None:
    model = network(family)
    table = analyze(model, batches_of("all"), [Contribution(model), Surface(), Position()], documents=6).scores()
    chance = dict(zip(table.names, table.chance, strict=True))
    for end in ("", ".macro"):
        for kind in KINDS:
            assert chance[f"contribution.{kind}{end}"] == pytest.approx(chance[f"surface.{kind}{end}"], abs=1e-12)
        for offset, (name, _) in NEIGHBOURS.items():
            expected = chance[f"position.mass[{offset}]{end}"]
            assert chance[f"contribution.{name}{end}"] == pytest.approx(expected, abs=1e-12)
        assert chance[f"contribution.sink_share{end}"] == pytest.approx(chance[f"contribution.sink_weight{end}"])
        assert chance[f"contribution.sink_ratio{end}"] == pytest.approx(1)
        assert chance[f"contribution.norm_of_sink{end}"] == pytest.approx(1)
        assert chance[f"contribution.size{end}"] == 0.25


def test_sinks_that_bring_nothing_have_no_share_whatever_their_weight() -> None:
    model = network("bert")
    real = batches_of("all")[0]

    def without_sinks(_module: nn.Module, _args: object, out: Tensor) -> Tensor:
        return out * real.rows[..., None]

    for block in model.encoder.layer:
        block.attention.self.value.register_forward_hook(without_sinks)
    table = scores_of(model, [real])
    for name in ("first", "cls", "sep", "sink_share", "sink_ratio", "norm_of_sink"):
        assert (table[f"contribution.{name}"] == 0).all()
    assert (table["contribution.sink_weight"] > 0.01).all()
    assert (table["contribution.sink_ratio"] < NO_OP_RATIO).all()


def test_sizes_of_a_layer_sum_to_one() -> None:
    table = scores_of(network("llama"), batches_of("all"))
    np.testing.assert_allclose(table["contribution.size"].sum(axis=-1), 1.0, atol=1e-12)


# ------------------------------------------------------------------------------------------------ what is turned away


def test_a_family_whose_output_projections_are_not_known() -> None:
    model = network("bert")
    model.config.model_type = "novel"
    with pytest.raises(UnsupportedModel, match="Where 'novel' keeps its output projections is not known"):
        Contribution(model)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e4m3fn])
def test_quantised_weights(dtype: torch.dtype) -> None:
    model = network("bert")
    dense = model.encoder.layer[1].attention.output.dense
    dense.weight = nn.Parameter(dense.weight.detach().to(dtype), requires_grad=False)
    with pytest.raises(UnsupportedModel, match=r"encoder layer 1 .* \(Linear\) is not just a plain matrix of weights"):
        Contribution(model)


def test_adapters_around_weights() -> None:
    model = network("bert")
    part = model.encoder.layer[1].attention.output

    class Adapted(nn.Module):  # as PEFT's: it shows the weight that it adds to
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base, self.weight = base, base.weight

    part.dense = Adapted(part.dense)
    with pytest.raises(UnsupportedModel, match=r"encoder layer 1 .* \(Adapted\) is not just .* with adapters merged"):
        Contribution(model)


@pytest.mark.parametrize("width", [24, 33])
def test_an_output_projection_of_another_width(width: int) -> None:
    model = network("bert")
    model.encoder.layer[0].attention.output.dense = nn.Linear(width, 32)
    with pytest.raises(UnsupportedModel, match=f"8 numbers from each of 4 heads, 32 in all, and takes {width}"):
        Contribution(model)
