"""What gqa_study.py found, as tables, pictures and sentences that follow from the numbers. No torch here."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headlens.files import write_together
from headlens.significance import percentile_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = dict[str, Any]  # of one model: method, kv_heads, refitted, distortions, tasks

REPLICATES = 2000
STEPS = {  # what is compared: heading -> pairs of (method, refitted) that differ in nothing else
    "shared factors (svd) for aligned means": [
        (("svd", False), ("aligned", False)),
        (("svd", True), ("aligned", True)),
    ],
    "groups that go together for neighbours": [
        (("svd, cheapest groups", False), ("svd", False)),
        (("svd, cheapest groups", True), ("svd", True)),
        (("aligned, similar groups", False), ("aligned", False)),
    ],
    "a refit of output projections": [
        (("mean", True), ("mean", False)),
        (("aligned", True), ("aligned", False)),
        (("svd", True), ("svd", False)),
    ],
    "alignment for plain means": [(("aligned", False), ("mean", False)), (("aligned", True), ("mean", True))],
    "norms restored after an aligned mean": [(("aligned, restored norms", False), ("aligned", False))],
    "a scale fitted to an aligned mean": [(("aligned, fitted scale", False), ("aligned", False))],
}


def write_report(records: Sequence[Record], facts: dict[str, Any], out: Path) -> None:
    """results.json, results.csv, a picture and README.md of one model."""
    picture = _drawn(_figure(records, facts))
    write_together(
        {
            out / "results.json": lambda path: path.write_text(
                json.dumps({"facts": facts, "records": [_short(record) for record in records]}, indent=1) + "\n"
            ),
            out / "results.csv": lambda path: path.write_text("\n".join(_csv(records)) + "\n"),
            out / "gqa.png": lambda path: path.write_bytes(picture),
            out / "README.md": lambda path: path.write_text("\n".join(_page(records, facts)) + "\n"),
        }
    )


def write_overview(out: Path) -> None:
    """The page above those of all models: what each step is worth on each of them."""
    models = {
        file.parent.name: json.loads(file.read_text(encoding="utf-8")) for file in sorted(out.glob("*/results.json"))
    }
    rows: dict[str, dict[str, list[str]]] = {step: {} for step in STEPS}
    for name, found in models.items():
        for step in found["steps"] if "steps" in found else _steps(found["records"]):
            rows[step["step"]].setdefault(name, []).append(_verdict(step))
    lines = [
        "# Fewer key/value heads without training",
        "",
        "What each step of a conversion is worth, on real and on small models: how often it brought the model nearer "
        "to the original on text that nothing was fitted on, beyond its interval (95%, bootstrap over texts), among "
        "the pairs of conversions that differ in nothing else. Nothing is trained. Pages, tables and pictures: "
        + ", ".join(f"[{name}]({name}/README.md)" for name in models)
        + ".",
        "",
        "| step | " + " | ".join(models) + " |",
        "|---|" + "---|" * len(models),
    ]
    for step, by_model in rows.items():
        cells = [_counted(by_model.get(name, [])) for name in models]
        lines.append(f"| {step} | " + " | ".join(cells) + " |")
    (out / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


# -------------------------------------------------------------------------------------------------------------- tables


def _page(records: Sequence[Record], facts: dict[str, Any]) -> Iterator[str]:
    data = facts["data"]
    tasks = [task["task"] for task in records[0]["tasks"]]
    yield f"# {facts['model']}: fewer than {facts['kv_heads']} key/value heads, without training"
    yield ""
    yield (
        f"Fitted on {data['tokens_fitted_on']:,} tokens ({data['fitted_on']:,} {data['reads']}); judged on "
        f"{data['held_out']:,} others by {facts['objective'].replace('_', ' ')} (0: the original). Layers that change: "
        f"{facts['layers'] or 'all'}. Intervals are 95%, by bootstrap over texts or items."
    )
    yield ""
    yield f"    {facts['command']}"
    yield ""
    yield "![Distortion by key/value heads](gqa.png)"
    yield ""
    yield "| key/value heads | method | distortion | " + "".join(f"{task} | " for task in tasks) + "seconds |"
    yield "|---:|---|---|" + "---|" * (len(tasks) + 1)
    for record in records:
        yield _row(record, facts["kv_heads"])
    yield ""
    yield "## What each step is worth"
    yield ""
    yield "Differences of mean distortion between two conversions that differ in nothing else; below 0 it helps."
    yield ""
    yield "| step | key/value heads | from | to | difference |"
    yield "|---|---:|---:|---:|---|"
    for step in _steps(records):
        low, high = step["interval"]
        yield (
            f"| {step['step']} ({step['pair']}) | {step['kv_heads']} | {step['from']:.4f} | {step['to']:.4f} | "
            f"{step['difference']:+.4f} [{low:+.4f}, {high:+.4f}]: {_verdict(step)} |"
        )


def _row(record: Record, whole: int) -> str:
    low, high = _interval(np.array(record["distortions"]))
    name = record["method"] + (", refitted" if record["refitted"] else "")
    if record["method"] == "mean, random groups":
        name += f" (seed {record['seed']})"
    count = record["kv_heads"] if record["kv_heads"] else (whole if record["method"] == "original" else 0)
    cells = [f"{_mean(record):.4f} [{low:.4f}, {high:.4f}]"]
    for task in record["tasks"]:
        figure = task["figures"][0]
        cells.append(f"{figure['value']:.4g} [{figure['low']:.4g}, {figure['high']:.4g}]")
    seconds = f"{record['seconds']:.0f}" if "seconds" in record else ""
    return f"| {count} | {name} | " + " | ".join(cells) + f" | {seconds} |"


def _steps(records: Sequence[Record]) -> Iterator[dict[str, Any]]:
    by_key = {(one["kv_heads"], one["method"], one["refitted"]): one for one in records}
    for step, pairs in STEPS.items():
        for count in dict.fromkeys(one["kv_heads"] for one in records if one["kv_heads"]):
            for new, old in pairs:
                after, before = by_key.get((count, *new)), by_key.get((count, *old))
                if after is None or before is None:
                    continue
                changes = np.array(after["distortions"]) - np.array(before["distortions"])
                yield {
                    "step": step,
                    "pair": f"{_named(*new)} less {_named(*old)}",
                    "kv_heads": count,
                    "from": _mean(before),
                    "to": _mean(after),
                    "difference": float(changes.mean()),
                    "interval": _interval(changes),
                }


def _named(method: str, refitted: bool) -> str:
    return method + (", refitted" if refitted else "")


def _verdict(step: dict[str, Any]) -> str:
    low, high = step["interval"]
    return "helps" if high < 0 else "hurts" if low > 0 else "no difference beyond chance"


def _counted(verdicts: Sequence[str]) -> str:
    if not verdicts:
        return "–"
    parts = [f"{verdicts.count('helps')} of {len(verdicts)} help"]
    if hurts := verdicts.count("hurts"):
        parts.append(f"{hurts} hurt" if hurts > 1 else "1 hurts")
    return ", ".join(parts)


def _csv(records: Sequence[Record]) -> Iterator[str]:
    yield "kv_heads,method,refitted,seed,distortion,low,high,seconds,task,metric,value,value_low,value_high"
    for record in records:
        low, high = _interval(np.array(record["distortions"]))
        head = (
            f'{record["kv_heads"] or ""},"{record["method"]}",{record["refitted"]},{record.get("seed", "")},'
            f"{_mean(record):.6f},{low:.6f},{high:.6f},{record.get('seconds', 0):.1f}"
        )
        figures = [(task["task"], figure) for task in record["tasks"] for figure in task["figures"]]
        for task, figure in figures or [("", None)]:
            told = ["", "", "", ""] if figure is None else [figure[key] for key in ("metric", "value", "low", "high")]
            yield f'{head},"{task}",' + ",".join(f'"{part}"' if isinstance(part, str) else str(part) for part in told)


def _short(record: Record) -> Record:
    return {**record, "distortions": [round(value, 6) for value in record["distortions"]]}


def _mean(record: Record) -> float:
    return float(np.mean(record["distortions"]))


def _interval(values: np.ndarray) -> tuple[float, float]:
    draws = np.random.default_rng(0).integers(len(values), size=(REPLICATES, len(values)))
    low, high = percentile_interval(values[draws].mean(axis=1)[:, None])
    return float(low[0]), float(high[0])


# ------------------------------------------------------------------------------------------------------------- picture


def _figure(records: Sequence[Record], facts: dict[str, Any]) -> Figure:
    import pandas as pd
    import seaborn
    from matplotlib.figure import Figure

    frame = pd.DataFrame(
        [
            {
                "key/value heads": record["kv_heads"],
                "distortion": _mean(record),
                "method": record["method"],
                "refitted": "refitted" if record["refitted"] else "as merged",
            }
            for record in records
            if record["kv_heads"]
        ]
    )
    with seaborn.axes_style("whitegrid"):
        figure = Figure(figsize=(8, 5), layout="constrained")
        axes = figure.subplots()
    seaborn.lineplot(
        frame, x="key/value heads", y="distortion", hue="method", style="refitted", markers=True, ax=axes, errorbar=None
    )
    nothing = next(record for record in records if record["method"] == "no heads")
    axes.axhline(_mean(nothing), color="0.5", linestyle=":", linewidth=1)
    axes.text(frame["key/value heads"].max(), _mean(nothing), "no heads at all ", ha="right", va="bottom", color="0.4")
    counts = sorted(frame["key/value heads"].unique())
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(int(count)) for count in counts])
    if frame["distortion"].max() > 20 * frame["distortion"].min():
        axes.set_yscale("log")
    axes.set_ylabel(f"{facts['objective'].replace('_', ' ')} on text that nothing was fitted on")
    axes.legend(title=None, frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _drawn(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=130, metadata={"Software": None})
    return file.getvalue()
