"""Score every attention head of a model in a page of public API: copy it and change it.

python scripts/profile_heads.py minilm
python scripts/profile_heads.py distilbert/distilbert-base-uncased my_texts.txt
"""

from __future__ import annotations

import sys
from pathlib import Path

import headlens


def main(model: str, *files: str) -> None:
    """What `headlens profile` does, step by step."""
    loaded = headlens.load_model(model)  # a hub id, a folder, or a bundled name
    print(f"{loaded.name}: self-check {loaded.check.line}")  # is what we capture what the model computes?

    profile = headlens.profile(loaded, list(files) or None)  # None: the bundled English sample
    scores = profile.scores
    print(f"{len(scores.names)} scores of {scores.n_layers} x {scores.n_heads} heads\n")

    for metric in ("position.mass[-1]", "position.mass[1]", "surface.first", "surface.breadth"):
        best = scores.best(metric, 3)
        told = ", ".join(f"{s.name} {s.value:.2f} [{s.low:.2f}, {s.high:.2f}]" for s in best)
        print(f"{metric:20} {told}   chance {best[0].chance:.2f}")

    frame = scores.to_frame()  # pandas, long form: metric, layer, head, value, support, low, high, chance
    head = frame[(frame["layer"] == 0) & (frame["head"] == 2)]
    print(f"\nWhat L0H2 does most above chance:\n{above_chance(head)}")

    report = profile.save(Path("profiles") / Path(model).name)
    print(f"\nReport: {report}")


def above_chance(head):
    """The five shares that lie furthest above their chance level."""
    masses = head[head["metric"].str.match(r"(position\.mass|surface)") & ~head["metric"].str.endswith(".macro")]
    excess = (masses["value"] - masses["chance"]).sort_values(ascending=False).index[:5]
    return masses.loc[excess, ["metric", "value", "chance"]].to_string(index=False)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
