"""Copying: whether a head's direct path to the logits raises the very token that it attends to.

After the copying evaluator of Olsson et al. 2022, "In-context Learning and Induction Heads", section "Head activation
evaluators": the head's output is carried to the logits by the unembedding alone, the mean over the vocabulary is
subtracted, and what is left below zero is dropped. Of all that the tokens of the sample are raised by, the share counts
that goes to the token attended to, scaled to -1 (only others are raised) .. 1 (only it is).

What the paper leaves open, and what is done here:

- A head attends to several tokens at once. What it writes is a sum over them, a_ij v_j W_O, and each part is carried to
  the logits by itself and counts by its attention a_ij; so the score does not fall where attention is spread.
- The share is (raise of the token attended to) / (raise of all tokens of the sample), each summed over rows and keys.
- It is scaled so that a head that raises all tokens alike has 0: (a - o) / (a + o), with a for the token attended to
  and o for the mean of the other tokens of the sample. (Of the paper's scale only the ends are told, -1 and 1.)
- The final norm stands before the unembedding: directions are multiplied by its gain, and for a LayerNorm freed of
  their mean. Its scale is one positive factor for each row and left out, as are its bias and that of the unembedding,
  W_O's bias, and a cap or factor on the logits: none of them comes from the head.
- Special tokens are neither rows, nor attended to, nor tokens of the sample.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from headlens.analyzers import Analyzer, Sums
from headlens.arch import attention_sites, family_of, output_projection, output_weight
from headlens.errors import UnsupportedModel
from headlens.models import head_counts
from headlens.records import Batch, LayerAttention
from headlens.scores import Metric

_BY_PATH = {
    "ln_f": "gpt2 gpt_bigcode gptj",
    "final_layer_norm": "gpt_neox",
    "final_layernorm": "phi",
    "decoder.final_layer_norm": "opt",
    "layer_norm": "biogpt",
    "norm": "llama mistral mixtral qwen2 qwen3 qwen2_moe qwen3_moe phi3 gemma olmo cohere granite stablelm starcoder2 "
    "smollm3 gpt_oss",
}
FINAL_NORMS = {family: path for path, families in _BY_PATH.items() for family in families.split()}
_NORMED_OUTPUT = frozenset({"gemma2", "gemma3_text", "olmo2"})


class Copying(Analyzer):
    """Olsson et al.'s copying score of every head, -1 .. 1, on inputs of random tokens none of which comes twice.

    Chance is a head that raises all tokens of a sample alike, whatever it attends to.

    Parameters
    ----------
    projections
        W_O of every layer, cut by head.
    directions
        Of every input the rows of the centred unembedding for its tokens (`directions`), zero at special tokens;
        `Batch.document` tells which input a row of a batch is.
    """

    name = "copying"
    metrics = (
        Metric(
            "repetition.copying",
            "Copying",
            "How much the direct path raises the logit of the token attended to, a, against the mean of the other "
            "tokens of the sample, o: (a - o) / (a + o), from -1 (only others rise) to 1 (only it rises).",
            "ratio",
        ),
        Metric(
            "repetition.copying_share",
            "Copying, as a share",
            "Of all that the direct path raises the logits of the sample's tokens by, the share that goes to the token "
            "attended to. Chance: all rise alike.",
            "share",
        ),
    )

    def __init__(
        self,
        projections: Sequence[Float[Tensor, "_head _dim hidden"]],
        directions: Float[Tensor, "input token hidden"],
    ) -> None:
        self.projections, self.directions = tuple(projections), directions

    def observe(self, attention: LayerAttention, batch: Batch) -> Sums:
        start, _, queries, keys = attention.query_start, *attention.probs.shape[1:]
        rows = batch.rows[:, start : start + queries]
        by_key = (rows.to(attention.probs.dtype)[:, None, None] @ attention.probs).squeeze(-2)
        paid = by_key * batch.rows[:, None, :keys]  # [batch, head, key]
        raised = self._raised(attention, batch)
        return {
            "rows": rows.sum(dim=-1)[:, None],
            "attended": (paid * raised.diagonal(dim1=-2, dim2=-1)).sum(dim=-1),
            "all": (paid * raised.sum(dim=-1)).sum(dim=-1),
            "mean_of_others": (paid * _mean_of_others(raised, batch)).sum(dim=-1),
        }

    def score(self, sums: Sums) -> dict[str, Tensor]:
        attended, others = sums["attended"], sums["mean_of_others"]  # NaN where no token of the sample is raised
        return {
            "repetition.copying": (attended - others) / (attended + others),
            "repetition.copying_share": attended / sums["all"],
        }

    def support(self, sums: Sums) -> dict[str, Tensor]:
        rows = torch.where(sums["all"] > 0, sums["rows"], 0)
        return {metric.name: rows for metric in self.metrics}

    def _raised(self, attention: LayerAttention, batch: Batch) -> Float[Tensor, "batch head key token"]:
        """By how much each key's value, sent through each head, raises the logit of each token of its input."""
        if attention.v.shape[-1] == 0:  # the head that chance is taken from has no values: all tokens rise alike
            return batch.rows[:, None, None].expand(-1, 1, attention.probs.shape[-1], -1).to(attention.probs.dtype)
        w_out = self.projections[attention.layer]
        directions = self.directions[batch.document.to(self.directions.device)]
        readers = torch.einsum("hdm,btm->bhdt", w_out.to(directions), directions)
        values = attention.v.repeat_interleave(len(w_out) // attention.v.shape[1], dim=1)
        return (values.to(readers) @ readers).relu()


def directions(
    unembedding: Float[Tensor, "token hidden"], norm: nn.Module | None, ids: Int[Tensor, "batch sample"]
) -> Float[Tensor, "batch sample hidden"]:
    """What a change of the residual stream is multiplied by to give the logits of `ids`, less the mean logit.

    `norm` is the final norm, of which only the gain counts, and for a LayerNorm the centring; None where there is none.
    In float32 at least.
    """
    dtype = torch.promote_types(unembedding.dtype, torch.float32)
    mean = unembedding.mean(dim=0, dtype=torch.float64)
    found = unembedding[ids.to(unembedding.device)].double() - mean
    if norm is not None:
        found = found * _gain(norm, found)
        if _is_centring(norm):
            found = found - found.mean(dim=-1, keepdim=True)
    return found.to(dtype)


def final_norm(network: PreTrainedModel) -> nn.Module:
    """The norm between the last layer and the unembedding.

    Raises UnsupportedModel for families where it is not known, or where something else stands in the direct path.
    """
    family = family_of(network)
    if family in _NORMED_OUTPUT:
        raise UnsupportedModel(
            f"{family!r} normalises what its heads write before it is added, so that no head has a direct path to the "
            f"logits."
        )
    if family not in FINAL_NORMS:
        raise UnsupportedModel(
            f"Where {family!r} keeps its final norm is not known (known: {', '.join(sorted(FINAL_NORMS))}); add it to "
            f"FINAL_NORMS in headlens/behaviour/copying.py."
        )
    norm = network.base_model
    for name in FINAL_NORMS[family].split("."):
        norm = getattr(norm, name, None)
    if not isinstance(norm, nn.Module):
        raise UnsupportedModel(
            f"This {type(network).__name__} has no norm behind its last layer: it normalises within the residual "
            f"stream, so no head has a direct path to the logits."
        )
    return norm


def projections_by_layer(network: PreTrainedModel) -> list[Float[Tensor, "_head _dim hidden"]]:
    """W_O of every layer, cut by head. Raises UnsupportedModel where it is not known, or not kept as a plain matrix."""
    heads, found = head_counts(network.config)["heads"], []
    for site in attention_sites(network):
        projection = output_projection(network, site)
        weight = getattr(projection, "weight", None)
        if not isinstance(weight, Tensor) or weight.dim() != 2 or not weight.is_floating_point():
            raise UnsupportedModel(
                f"The output projection of {site} is a {type(projection).__name__} without a plain matrix of weights; "
                f"copying needs the model without quantisation."
            )
        found.append(output_weight(projection, heads if site.heads is None else len(site.heads)).detach())
    return found


def copying(
    network: PreTrainedModel,
    unembedding: Float[Tensor, "token hidden"],
    batches: Sequence[Batch],
) -> Copying:
    """The analyzer for these batches, whose documents must be numbered in their order.

    Raises UnsupportedModel where a family's output projection or final norm is not known.
    """
    norm, projections = final_norm(network), projections_by_layer(network)
    by_batch = [
        directions(unembedding.detach(), norm, batch.input_ids) * batch.rows[..., None].to(unembedding.device)
        for batch in batches
    ]
    return Copying(projections, torch.cat(by_batch))


def _mean_of_others(raised: Tensor, batch: Batch) -> Float[Tensor, "batch head key"]:
    """Mean raise of the tokens of the sample but the one at the key."""
    others = (batch.rows.sum(dim=-1) - 1)[:, None, None]
    return (raised.sum(dim=-1) - raised.diagonal(dim1=-2, dim2=-1)) / others


def _gain(norm: nn.Module, like: Tensor) -> Tensor:
    weight = getattr(norm, "weight", None)
    if not isinstance(weight, Tensor):
        return like.new_ones(())
    # Gemma multiplies by 1 + weight
    return weight.detach().to(like) + (1 if type(norm).__name__.startswith("Gemma") else 0)


def _is_centring(norm: nn.Module) -> bool:
    return type(norm).__name__.endswith("LayerNorm")  # the others are kinds of RMSNorm
