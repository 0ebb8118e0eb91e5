"""What head_count_study.py found, as tables, a picture and sentences that follow from the numbers. No torch here."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from headlens.evidence_table import ABOVE, INFORMED
from headlens.files import write_together

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Result: TypeAlias = Mapping[str, Any]  # what a run leaves in <out>/runs
Row: TypeAlias = Mapping[Any, Any]  # of the summary: one way to cut the attention

MEASURES = {  # column of results.csv -> heading of the table, decimals
    "loss": ("loss, nats a token", 4),
    "excess": ("above the grammar's own", 4),
    "agreement": ("verbs that agree", 3),
    "agreement_attractor": ("across an attractor", 3),
    "reference": ("pronouns that agree", 3),
    "reference_attractor": ("across an attractor", 3),
    "relations": ("relations that a head stands for", 1),
    "relations_untrained": ("before training", 1),
    "relation_heads": ("heads that stand for them", 1),
    "entropy": ("entropy of a row, nats", 2),
    "rank_qk": ("rank of W_QK", 1),
    "rank_attention": ("rank of attention", 1),
}
PANELS = {
    "excess": "Loss above the grammar's own, nats a token",
    "agreement_attractor": "Verbs that agree across an attractor, share",
    "reference": "Pronouns that agree, share",
    "relations": "Relations that a head stands for; dotted: before training",
    "rank_qk": "Effective rank of W_QK, mean of heads",
}


def write_report(results: Sequence[Result], out: Path, command: str) -> None:
    """results.csv, summary.csv, head_count.svg, head_count.png and README.md."""
    frame = results_frame(results)
    summary = summary_frame(frame)
    page, pictures = readme(results, summary, command), drawn(figure_of(frame))
    write_together(
        {
            out / "results.csv": lambda path: frame.to_csv(path, index=False, lineterminator="\n"),
            out / "summary.csv": lambda path: summary.to_csv(path, index=False, lineterminator="\n"),
            out / "head_count.svg": lambda path: path.write_bytes(pictures["svg"]),
            out / "head_count.png": lambda path: path.write_bytes(pictures["png"]),
            out / "README.md": lambda path: path.write_text(page, encoding="utf-8"),
        }
    )


# -------------------------------------------------------------------------------------------------------------- tables


def results_frame(results: Sequence[Result]) -> pd.DataFrame:
    """One row a run."""
    import pandas as pd

    rows = [
        {
            **result["design"],
            **result["figures"],
            "training_tokens": result["training_tokens"],
            "training_seconds": round(result["training_seconds"], 1),
            "seconds": round(result["seconds"], 1),
        }
        for result in results
    ]
    return pd.DataFrame(rows).sort_values(["heads", "kv_heads", "seed"], ignore_index=True)


def summary_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """One row for each way to cut the attention: `measure.mean`, `measure.min`, `measure.max` over the seeds.

    Numbers of heads first, then those that share key/value heads, from many to one.
    """
    groups = frame.groupby(["heads", "kv_heads"])
    table = groups.agg(seeds=("seed", "size"), parameters=("parameters", "first"), cache_bytes=("cache_bytes", "first"))
    for measure in MEASURES:
        for statistic in ("mean", "min", "max"):
            table[f"{measure}.{statistic}"] = groups[measure].agg(statistic)
    table = table.reset_index()
    order = table.assign(is_shared=table["kv_heads"] < table["heads"]).sort_values(
        ["is_shared", "heads", "kv_heads"], ascending=[True, True, False], ignore_index=True
    )
    return order.drop(columns="is_shared")


def markdown_table(summary: pd.DataFrame) -> str:
    """Means, and in brackets the smallest and the largest of the seeds."""
    headings = ["heads", "key/value heads", "parameters", "cache, bytes a token", *(h for h, _ in MEASURES.values())]
    lines = ["| " + " | ".join(headings) + " |", "|" + " ---: |" * len(headings)]
    for row in summary.to_dict("records"):
        cells = [str(row["heads"]), str(row["kv_heads"]), f"{row['parameters']:,}", f"{row['cache_bytes']:,.0f}"]
        for measure, (_, digits) in MEASURES.items():
            mean, low, high = (f"{row[f'{measure}.{part}']:.{digits}f}" for part in ("mean", "min", "max"))
            cells.append(f"{mean} ({low} to {high})")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


# ----------------------------------------------------------------------------------------------------------- sentences


def findings(summary: pd.DataFrame) -> tuple[str, str]:
    """One head against many, and where more heads stop paying; both judged by how far the seeds lie apart."""
    plain = {int(row["heads"]): row for row in summary.to_dict("records") if row["heads"] == row["kv_heads"]}
    best = min(plain, key=lambda heads: float(plain[heads]["loss.mean"]))
    return _one_against(plain, best), _enough(plain, best)


def _one_against(plain: Mapping[int, Row], best: int) -> str:
    one, many = plain[1], plain[best]
    if best == 1:
        return f"No number of heads has a lower mean loss than one head a layer, {_range(one)}."
    if one["loss.min"] > many["loss.max"]:
        verdict = "even the best seed of the one lies above the worst of the other"
    else:
        verdict = "their seeds overlap, so these runs do not tell them apart"
    shares = [f"{100 * row['agreement_attractor.mean']:.1f}%" for row in (one, many)]
    return (
        f"One head a layer ends at {_range(one)}, the best number of heads, {best}, at {_range(many)}: {verdict}. "
        f"Across an attractor {shares[0]} of the verbs agree with one head, {shares[1]} with {best}."
    )


def _enough(plain: Mapping[int, Row], best: int) -> str:
    ceiling = plain[best]["loss.max"]
    within = [heads for heads in sorted(plain) if plain[heads]["loss.mean"] <= ceiling]
    above = [str(heads) for heads in sorted(plain) if heads not in within]
    least = within[0]
    if least == max(plain):
        told = f"more heads pay up to the most that were tried, {least}, with {_range(plain[best])}"
    elif least == best:
        told = f"more heads stop paying at {least}, which has the lowest mean loss, {_range(plain[best])}"
    else:
        told = (
            f"more heads stop paying at {least}: its mean loss, {plain[least]['loss.mean']:.4f}, is the first within "
            f"the range of the best, {best} heads with {_range(plain[best])}"
        )
    outside = f"; above that range lie the means of {', '.join(above)}" if above else ""
    return f"Judged by the spread of the seeds, {told}{outside}."


def _range(row: Row) -> str:
    return f"{row['loss.mean']:.4f} nats a token ({row['loss.min']:.4f} to {row['loss.max']:.4f})"


# ------------------------------------------------------------------------------------------------------------- picture


def figure_of(frame: pd.DataFrame) -> Figure:
    """Means and ranges of the seeds by number of heads, and for shared key/value heads by the size of the cache."""
    import seaborn
    from matplotlib.figure import Figure

    is_plain = frame["heads"] == frame["kv_heads"]
    plain, shared = frame[is_plain], frame[frame["heads"].isin(frame.loc[~is_plain, "heads"])]
    style: dict[str, Any] = {"errorbar": ("pi", 100), "err_style": "bars", "err_kws": {"capsize": 3}, "color": "black"}
    with seaborn.axes_style("whitegrid"):
        figure = Figure(figsize=(12, 6.5), layout="constrained")
        axes = list(figure.subplots(2, 3).flat)
    for ax, (measure, title) in zip(axes, PANELS.items(), strict=False):
        seaborn.lineplot(plain, x="heads", y=measure, marker="o", ax=ax, **style)
        if measure == "relations":
            seaborn.lineplot(plain, x="heads", y=f"{measure}_untrained", marker="^", linestyle=":", ax=ax, **style)
        _dress(ax, plain["heads"], "heads a layer", title)
    last = axes[-1]
    seaborn.lineplot(shared, x="cache_bytes", y="excess", marker="s", linestyle="--", ax=last, **style)
    heads = int(shared["heads"].iloc[0])
    _dress(
        last,
        shared["cache_bytes"],
        "key/value cache, bytes a token",
        f"As the first panel, {heads} heads; numbers: key/value heads",
    )
    means = shared.groupby("kv_heads", as_index=False)[["cache_bytes", "excess"]].mean()
    for row in means.to_dict("records"):
        place = (row["cache_bytes"], row["excess"])
        last.annotate(f"{row['kv_heads']:.0f}", place, xytext=(5, 5), textcoords="offset points")
    return figure


def _dress(ax: Axes, values: pd.Series, label: str, title: str) -> None:
    ticks = sorted({int(value) for value in values})
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    ax.set(xlabel=label, ylabel="")
    ax.set_title(title, fontsize="medium", loc="left")


def drawn(figure: Figure) -> dict[str, bytes]:
    """SVG and PNG; the same picture gives the same bytes."""
    import matplotlib

    options: dict[str, dict[str, Any]] = {"svg": {"metadata": {"Date": None}}, "png": {"dpi": 110}}
    pictures = {}
    with matplotlib.rc_context({"svg.hashsalt": "headlens"}):
        for kind, more in options.items():
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, **more)
            pictures[kind] = buffer.getvalue()
    return pictures


# ---------------------------------------------------------------------------------------------------------------- page


def readme(results: Sequence[Result], summary: pd.DataFrame, command: str) -> str:
    """What was found, in sentences and a table; what was done and measured; how it was made."""
    first = results[0]
    plan, figures, counts = first["plan"], first["figures"], first["decisions"]
    hours = sum(result["seconds"] for result in results) / 3600
    tested = [result["figures"]["relations_tested"] for result in results]
    stated = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    return f"""# How many heads?

{"".join(f"- {sentence}{chr(10)}" for sentence in findings(summary))}
![Means of the seeds, and from the smallest to the largest of them](head_count.svg)

Means of {_span(summary["seeds"])} seeds, in brackets the smallest and the largest of them:

{markdown_table(summary)}

## What was done

GPT-2s of {plan["layers"]} layers and {plan["d_model"]} numbers a token, each trained for {plan["steps"]:,} steps of
{plan["batch"]} texts of headlens's grammar, {first["training_tokens"] / 1e6:.2f} million tokens, every text read once,
with one learning rate for all ({plan["learning_rate"]:g}, cosine). A seed draws weights and texts, the same for all
rows; they differ in nothing but the cut of the attention. Those with fewer key/value heads than heads (grouped-query
attention, with one of them multi-query attention) also have fewer parameters.

## What was measured

- Loss: on {plan["held_out"]:,} unseen texts, the end of each included. The grammar's own, {figures["grammar_loss"]:.4f}
  nats a token, is minus the log probability of the derivations; a text may have several, so the best possible model
  lies at it or slightly below.
- Words that agree: where the grammar allows one form only, is it likelier than every wrong one, given what stands
  before? {counts["agreement"]:,} verbs, and {counts["reference"]:,} pronouns, possessives and reflexives; across an
  attractor, a noun or pronoun in between that asks for another form, {counts["agreement_attractor"]:,} and
  {counts["reference_attractor"]:,}.
- Relations that a head stands for: `headlens.profile` reads {plan["annotated"]:,} of the texts, and a relation counts
  if its verdict is "{ABOVE}" or "{INFORMED}": the head is chosen on other
  texts than it is judged on. Of {_span(tested)} relations with enough decisions, subtypes as part of theirs; a head may
  have several. More heads are more to choose from, and more tests, so these counts compare but roughly. Before
  training: what the same test says of the same model when it has learnt nothing.
- Entropy: mean of all heads and rows. Rank: effective rank (Roy and Vetterli 2007), mean of all heads: of W_Q W_K^T,
  at most the width of a head, {plan["d_model"]} / heads; of the attention matrices of {plan["ranked"]} texts, at most
  their tokens.
- Cache: keys and values that the model keeps for one token, in float32.

One size of model, one grammar, one learning rate, {_span(summary["seeds"])} seeds: elsewhere it may be otherwise.

## How it was made

`{command}`: {len(results)} runs, together {hours:.2f} hours of one core; {stated}.
Every run is in results.csv, with the verdict on every relation in runs/; the table with all digits is summary.csv.
"""


def _span(counts: Iterable[int]) -> str:
    counts = list(counts)
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"
