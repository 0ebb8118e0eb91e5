"""The methods of the page: every role with its numbers, and the rest only where the page has something of the kind."""

from __future__ import annotations

import re
from typing import Any

import pytest
from report_pages import Node, cells, read

from headlens.report.html import _environment
from headlens.report.methods import Methods, methods_of
from headlens.roles.catalogue import CLAIMS, RULES
from headlens.roles.role import HeadRole, Role
from headlens.roles.rules import Rule

ABLATION: dict[str, Any] = {"ablation": {"effects": []}}
EMPTY: dict[str, Any] = {"methods": set(), "settings": None, "verdicts": {}, "baselines": [], "linked": set()}


def page_of(method: Methods) -> Node:
    return read(_environment().get_template("methods.html.j2").render(method=method, **EMPTY))


def roles_table(page: Node) -> dict[str, list[str]]:
    """Cells of a row by the role's title."""
    (table,) = page.all("table", class_="every")
    rows = [cells(row) for row in table.one("tbody").all("tr")]
    return {re.sub(r"^\S (.*) \(\S\)$", r"\1", row[0]): row for row in rows}


@pytest.fixture(scope="module")
def page() -> Node:
    return page_of(methods_of(ABLATION, has_similarity=True, has_examples=True))


def test_every_role_has_its_row_with_letter_and_source(page: Node) -> None:
    found = roles_table(page)
    roles = [*(rule.role for rule in RULES), *(claim.role for claim in CLAIMS)]
    assert list(found) == [role.title for role in roles]
    for role in roles:
        assert found[role.title][0] == f"{role.letter} {role.title} ({role.letter})"
        assert found[role.title][-1] == role.source


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_threshold_is_that_of_the_rule(page: Node, rule: Rule) -> None:
    row = roles_table(page)[rule.title]
    assert row[1] == rule.metric
    side, printed = row[2].split()[:2]
    assert side == ("under" if rule.is_below else "over")
    assert float(printed) == rule.threshold  # no digit is lost to rounding
    for condition in rule.also:
        assert condition.metric in row[4]
        if condition.limit is not None:
            assert float(re.findall(rf"{condition.words} (?:over|under) ([.\d]+)", row[4])[0]) == pytest.approx(
                condition.limit, abs=0.005
            )


def test_nulls_and_controls_are_told(page: Node) -> None:
    found = roles_table(page)
    assert found["induction"][3:5] == [
        "the same offset in unrepeated tokens (repetition.induction_control) or chance, whichever is higher",
        "the whole interval over 2 times its null; prefix matching over .40 (repetition.prefix_matching, where there "
        "is one); copying over chance (repetition.copying, by the upper end of its interval, where there is one)",
    ]
    assert found["adjacent phrase"][3:5] == ["a fixed offset, .50", "the whole interval over .50"]
    assert found["previous token"][3:5] == ["chance", "–"]
    assert found["broad"][3].startswith("none")
    assert "the value decides alone" in found["copying, by its weights"][4]
    assert found["subject and verb"][1:4] == [
        "subject_verb.*, syntax.*[nsubj, csubj]",
        "above every baseline but rules that read parts of speech, and no accident among all tests",
        "the strongest baseline that a head must be above; rules that read parts of speech are not among them",
    ]


@pytest.mark.parametrize(
    "said",
    [
        "at least 30 rows or decisions",
        "must be below .05",
        "of which at most 10 count",
        "Benjamini and Hochberg 1995",
        "15% of each text",
        "Shares under .10 are not drawn",
        "A mean silhouette under .25",
        "Kaufman and Rousseeuw 1990",
        "holds over two thirds of the heads",
        "Kovaleva et al. 2019, section 4.1",
        "block is not measured",
    ],
)
def test_methods_tell_the_numbers_that_decide(page: Node, said: str) -> None:
    assert said in page.text


@pytest.mark.parametrize(
    ("method", "titles"),
    [
        (methods_of({}), []),
        (methods_of(ABLATION), ["Heads taken out"]),
        (methods_of({}, has_similarity=True), ["Similarity"]),
        (methods_of({}, has_examples=True), ["Examples"]),
    ],
)
def test_only_what_is_on_the_page_is_told(method: Methods, titles: list[str]) -> None:
    found = [heading.text for heading in page_of(method).all("h3")]
    assert found == ["Roles", *titles, "Classes of patterns"]


def test_nothing_is_said_to_be_used_where_no_head_was_taken_out() -> None:
    assert not re.search(r"\b[Uu]se[sd]?\b", page_of(methods_of({}, has_similarity=True, has_examples=True)).text)


def test_the_order_of_labels_is_told_as_it_is(page: Node) -> None:
    """Two by two, each pair equal in all that goes before."""

    def held(kind: str, firm: bool, excess: float, rank: int, *, by_rule: bool = False) -> HeadRole:
        role = Role("x", "X", "x", kind, rank, "", "")
        nan = float("nan")
        return HeadRole(
            role, 0, 0, "m", 0.5, nan, nan, nan, nan, "", excess, nan, 100.0, firm, "", is_above_informed=not by_rule
        )

    pairs = {
        "a role of a resting place": (held("syntax", False, 0.0, 9), held("sink", True, 9.0, 0)),
        "firm before tentative": (held("syntax", True, 0.0, 9), held("syntax", False, 9.0, 0)),
        "a role that a rule which reads": (held("syntax", True, 0.0, 9), held("syntax", True, 9.0, 0, by_rule=True)),
        "the larger excess": (held("syntax", True, 9.0, 9), held("syntax", True, 8.0, 0)),
        "the more specific role": (held("syntax", True, 11.0, 0), held("syntax", True, 99.0, 1)),
    }
    text = page.text
    places = [text.index(words) for words in pairs]
    assert places == sorted(places)
    assert [first.precedence < second.precedence for first, second in pairs.values()] == [True] * 5


def test_methods_without_roles_are_those_of_the_scores() -> None:
    found = read(_environment().get_template("methods.html.j2").render(**EMPTY))
    assert found.all("table") == []
