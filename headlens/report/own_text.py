"""One head on one text: a small page that needs no network, with every share in words for those without scripts."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from headlens.examples import Example, has_both_directions
from headlens.numbers import number
from headlens.report.environment import new_environment
from headlens.scores import head_name

if TYPE_CHECKING:
    from jinja2 import Environment


def render_own_text(example: Example, title: str) -> str:
    """An HTML page with the arcs of one example; `title` is plain text."""
    return (
        _environment()
        .get_template("own_text.html.j2")
        .render(
            title=title,
            name=head_name(example.layer, example.head),
            example=example,
            data=example.to_dict(),
            text=" ".join(example.words),
            has_both_directions=has_both_directions(" ".join(example.words)),
        )
    )


@cache
def _environment() -> Environment:
    return new_environment(number=number)
