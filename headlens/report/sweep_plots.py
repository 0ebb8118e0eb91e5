"""Pictures of a sweep: quality against heads kept with the random band, and which roles die when. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

_FORMATS = ("svg", "png")
_SIZE = (6.4, 4.0)  # inches


def draw_sweep(frame: pd.DataFrame) -> dict[str, Callable[[Path], object]]:
    """One picture a quantity, "sweep-1.svg" and so on: lines of methods, and the band of random draws."""
    writers: dict[str, Callable[[Path], object]] = {}
    for place, quantity in enumerate(dict.fromkeys(frame["quantity"])):
        own = frame[frame["quantity"] == quantity]
        for kind in _FORMATS:
            writers[f"sweep-{place}.{kind}"] = _saved(partial(_curves, frame=own), kind, str(quantity))
    return writers


def draw_survival(frame: pd.DataFrame) -> dict[str, Callable[[Path], object]]:
    """A grid a method: roles down, heads removed across, and the share of the role's heads that is left."""
    writers: dict[str, Callable[[Path], object]] = {}
    for method in dict.fromkeys(frame["method"]):
        own = frame[frame["method"] == method]
        if own["removed"].nunique() > 1:
            for kind in _FORMATS:
                title = f"Heads left of each role, by {method}"
                writers[f"survival-{method}.{kind}"] = _saved(partial(_grid, frame=own), kind, title)
    return writers


def _curves(axes: Any, frame: pd.DataFrame) -> None:
    import seaborn

    whole = frame[frame["method"] == "whole model"]["value"].iloc[0]
    axes.axhline(whole, color="0.6", linewidth=1, linestyle="--", label="whole model")
    band = frame[frame["draw"] >= 0].groupby("removed")["value"]
    if len(band):
        low, high, middle = band.min(), band.max(), band.median()
        axes.fill_between(low.index, low, high, color="0.88", label="random, worst to best")
        axes.plot(middle.index, middle, color="0.5", linewidth=1)
    named = frame[(frame["draw"] < 0) & (frame["method"] != "whole model")]
    seaborn.lineplot(
        named, x="removed", y="value", hue="method", style="method", markers=True, palette="colorblind", ax=axes
    )
    axes.set(xlabel="heads removed", ylabel=str(frame["quantity"].iloc[0]))
    axes.legend(title=None, frameon=False, fontsize="small")


def _grid(axes: Any, frame: pd.DataFrame) -> None:
    import seaborn

    shares = frame.assign(share=frame["left"] / frame["heads"])
    pairs = zip(frame["role"].tolist(), frame["heads"].tolist(), strict=True)
    labels = {str(role): f"{str(role).replace('_', ' ')} ({heads})" for role, heads in pairs}
    grid = shares.pivot(index="role", columns="removed", values="share").loc[list(labels)]
    grid.index = [labels[role] for role in grid.index]
    seaborn.heatmap(
        grid, vmin=0, vmax=1, cmap="Blues", annot=True, fmt=".2f", annot_kws={"fontsize": 7}, cbar=False, ax=axes
    )
    axes.set(xlabel="heads removed", ylabel="")


def _saved(draw: Callable[[Any], None], kind: str, title: str) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        import matplotlib
        from matplotlib.figure import Figure

        with matplotlib.rc_context({"svg.hashsalt": "headlens", "svg.fonttype": "none"}):
            figure = Figure(figsize=_SIZE, layout="constrained")
            axes = figure.subplots()
            draw(axes)
            axes.set_title(title, fontsize="medium", loc="left")
            metadata = {"Date": None} if kind == "svg" else None
            figure.savefig(path, format=kind, dpi=150, metadata=metadata)

    return write
