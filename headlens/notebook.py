"""What a profile shows in a notebook: the whole report, one head in words, one head on one's own text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from headlens.effects import Ablation
from headlens.errors import OutputError
from headlens.examples import Example
from headlens.roles import HeadRole
from headlens.scores import head_name
from headlens.show import attention_of, to_page

if TYPE_CHECKING:
    import pandas as pd

    from headlens.models import LoadedModel
    from headlens.scores import ScoreTable

_PAGE_HEIGHT, _TEXT_HEIGHT = 900, 360  # px


@dataclass(frozen=True)
class Page:
    """A page that a notebook shows in a frame; `html` is the page itself."""

    html: str
    height: int = _PAGE_HEIGHT  # px of the frame

    def _repr_html_(self) -> str:
        frame = f'style="width:100%;height:{self.height}px;border:0" loading="lazy"'
        return f'<iframe title="headlens" {frame} srcdoc="{escape(self.html)}"></iframe>'

    def __repr__(self) -> str:
        return f"<Page of {len(self.html):,} characters; in a notebook it shows itself>"


@dataclass(frozen=True)
class OwnText:
    """One head on one's own text: a page with arcs in a notebook, a table elsewhere."""

    example: Example
    title: str

    def _repr_html_(self) -> str:
        return Page(to_page(self.example, self.title), _TEXT_HEIGHT)._repr_html_()

    def __repr__(self) -> str:
        from rich.console import Console

        from headlens.show import to_terminal

        console = Console(width=100, no_color=True)
        with console.capture() as captured:
            console.print(to_terminal(self.example))
        return captured.get()


@dataclass(frozen=True, eq=False)
class HeadView:
    """One head of a profile."""

    layer: int
    head: int
    roles: tuple[HeadRole, ...]  # the label first
    examples: tuple[Example, ...]
    table: ScoreTable
    provenance: Mapping[str, Any]
    model: LoadedModel | None = None  # as long as the profile was made in this session

    @property
    def name(self) -> str:
        return head_name(self.layer, self.head)

    @property
    def scores(self) -> pd.DataFrame:
        """Every score of the head: metric, value, support, low, high, chance."""
        frame = self.table.to_frame()
        of_head = frame[(frame["layer"] == self.layer) & (frame["head"] == self.head)]
        return of_head.drop(columns=["layer", "head"]).reset_index(drop=True)

    @property
    def lines(self) -> list[str]:
        """The evidence for each role, and what happens without the head if that was tried."""
        told = [f"{one.role.title} ({'firm' if one.is_firm else 'tentative'}): {one.sentence}" for one in self.roles]
        facts = self.provenance.get("ablation")
        effect = Ablation.from_dict(facts).of(self.layer, self.head) if facts else None
        return [*(told or ["no role"]), *([effect.sentence] if effect else [])]

    def show(self, text: str, model: LoadedModel | None = None) -> OwnText:
        """What the head attends to on a text of one's own.

        Parameters
        ----------
        model
            The model, from `headlens.load_model`, where the profile was loaded from a folder.

        Raises
        ------
        OutputError
            There is no model at hand.
        CorpusError
            The text is empty, has one word, or is longer than the model takes.
        """
        model = model or self.model
        if model is None:
            name = self.provenance.get("model", {}).get("name", "its name")
            raise OutputError(
                f"A profile from a folder has no model with it: pass model=headlens.load_model({str(name)!r})."
            )
        return OwnText(attention_of(model, text, self.layer, self.head), f"{self.name} of {model.name}")

    def __repr__(self) -> str:
        return "\n".join([self.name, *(f"- {line}" for line in self.lines)])

    def _repr_html_(self) -> str:
        items = "".join(f"<li>{escape(line)}</li>" for line in self.lines)
        return f"<b>{escape(self.name)}</b><ul>{items}</ul>"
