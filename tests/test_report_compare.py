"""The page of a comparison, read back from its HTML, against tables drawn by hand."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from compared import (
    AFTER,
    BEFORE,
    CLS,
    INDUCTION,
    NAN,
    PREVIOUS,
    PROVENANCE,
    Given,
    after,
    before,
    evidence_of,
    held,
    larger,
    roles_of,
    scores_of,
    weighed,
)
from report_pages import Node, cells, read

from headlens.comparison import Comparison, Pair, compare
from headlens.evidence_table import ABOVE, CHANCE, INFORMED, UNDECIDED
from headlens.report.compare import render_comparison
from headlens.report.compare_words import THRESHOLDS, notices, sentences, tally
from headlens.scores import ScoreTable

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def found() -> Comparison:
    return compare([before(), after()], ["old", "new"])


@pytest.fixture(scope="module")
def page(found: Comparison) -> Node:
    return read(render_comparison(found))


@pytest.fixture(scope="module")
def shapes() -> Comparison:
    return compare([before(), larger()], ["small", "large"])


def drawn_rows(values: np.ndarray) -> list[str]:
    return [" ".join(map(str, row)) for row in values]


def only(*given: Given) -> Pair:
    return compare(given, ["old", "new"]).pairs[0]


def rows(page: Node, kind: str) -> list[list[str]]:
    return [cells(row) for row in page.one("table", class_=kind).one("tbody").all("tr")]


def changed(path: str, value: Any) -> dict[str, Any]:
    room, _, name = path.rpartition(".")
    return PROVENANCE | ({room: PROVENANCE[room] | {name: value}} if room else {name: value})


# ------------------------------------------------------------------------------------------------------------ sentences


def test_sentences_tell_what_changed_with_its_numbers(found: Comparison) -> None:
    assert sentences(found.pairs[0]) == [
        # .20 to .20 and the like hold 0; beyond it are L0H1, L1H0 of induction, L0H2, L1H1, comma and [CLS] of L1H2
        "Of 20 differences with an interval, 6 lie beyond 0; by chance about 1 would, so some of them may be "
        "accidents, but most are not.",
        THRESHOLDS,
        "1 of 6 heads was removed: L0H0.",
        "Comma: 0 of 1 head (1 firm) kept, 1 lost; L1H2's score fell from .650 to .150 (−.500 [−.550, −.376]).",
        "Induction: 1 of 3 heads (2 firm) kept, 2 lost, 1 gained; L0H0 was removed; L0H1's score fell from .700 to "
        ".300 (−.400 [−.450, −.276]); the best is now L1H0 (.600).",
        "Previous token: 0 of 1 head (1 firm) kept, 1 lost, 1 gained; L0H2's score fell from .900 to .400 (−.500 "
        "[−.550, −.376]); the best is now L1H1 (.750).",
        "[CLS]: no head before, 1 head now (1 gained): L1H2 (.800).",
    ]


def test_every_number_of_a_sentence_stands_in_the_tables(found: Comparison, shapes: Comparison) -> None:
    missing, numbers = [], []
    for comparison in (found, shapes):
        page = read(render_comparison(comparison))
        shown = " ".join(part.text for part in [*page.all("table", class_="cmp"), *page.all("ul", class_="fates")])
        told = re.sub(r"L\d+H\d+", "", " ".join(sentences(comparison.pairs[0])))  # heads are names, not numbers
        numbers += (found_here := re.findall(r"[−+]?(?:\d[\d,]*)?\.?\d+", told))
        missing += [one for one in found_here if not re.search(rf"(?<![\d.]){re.escape(one)}(?!\d)", shown)]
    assert len(numbers) > 50
    assert missing == []


def test_roles_that_keep_all_their_heads_share_a_sentence() -> None:
    roles = roles_of(held(INDUCTION, 0, 1, 0.7), held(INDUCTION, 0, 0, 0.8), held(PREVIOUS, 0, 2, 0.9))
    told = sentences(only(before(roles=roles), before(roles=roles)))
    assert told == [
        "Of 24 differences with an interval, 0 lie beyond 0; by chance about 1 would: as a whole the scores tell no "
        "difference, and any single one may be an accident.",
        "Kept by all heads that had them, and by no other: induction (2); previous token (1).",
    ]


@pytest.mark.parametrize(
    ("beyond", "words"),
    [
        (1, ": as a whole the scores tell no difference, and any single one may be an accident."),
        (2, ", so most of them may be accidents."),
        (4, ", so some of them may be accidents, but most are not."),
    ],
)
def test_what_follows_from_the_number_of_differences_is_said(beyond: int, words: str) -> None:
    # 24 heads of one score, by chance 1.2 beyond 0; so many of them rise by .50
    old = np.full((4, 6), 0.2)
    new = np.where(np.arange(24).reshape(4, 6) < beyond, 0.7, 0.2)
    given = [
        Given(scores_of({"surface.cls": drawn_rows(values)}, with_macro=False), roles_of()) for values in (old, new)
    ]
    assert sentences(only(*given))[0].partition(" would")[2] == words


def test_a_head_that_is_named_no_longer_is_not_said_to_have_lost_its_role() -> None:
    drawn = BEFORE | {"repetition.induction": [".80 .68 .10", ".20 .10 .50"]}
    old, new = (roles_of(*(held(INDUCTION, 0, head, 0.7) for head in heads)) for heads in ((0, 1), (0,)))
    told = sentences(only(before(roles=old), before(roles=new, scores=scores_of(drawn))))
    # .02 down, by hypot(.03, .04) at most further down and up
    assert told[2] == (
        "Induction: 1 of 2 heads (2 firm) kept, 1 no longer named; L0H1's score went from .700 to .680 (−.020 [−.070, "
        "+.030]), which may be an accident."
    )


def test_of_the_heads_that_lose_a_role_the_one_that_changed_most_is_told() -> None:
    old = roles_of(held(INDUCTION, 1, 2, 0.5), held(INDUCTION, 0, 1, 0.4), held(INDUCTION, 1, 1, 0.3))
    new = roles_of(held(INDUCTION, 1, 2, 0.55))
    told = sentences(only(before(roles=old), after(roles=new)))
    # L1H1 stayed at .10; the best is where it was, so nothing is said of it
    assert told[3] == (
        "Induction: 1 of 3 heads (3 firm) kept, 1 lost, 1 no longer named; L0H1's score fell from .700 to .300 (−.400 "
        "[−.450, −.276])."
    )


def test_a_pair_without_any_role_says_so() -> None:
    told = sentences(only(before(roles=roles_of()), before(roles=roles_of())))
    assert told[1] == "No head of either side has any of the roles that both were asked for."


def test_a_pair_without_intervals_says_so() -> None:
    pair = only(before(scores=without_intervals(BEFORE)), after(scores=without_intervals(AFTER)))
    assert tally(pair) == (0, 0, 0.0)
    told = sentences(pair)
    assert told[0] == "No score has an interval on both sides, so none tells a difference from an accident."
    assert (
        "Comma: 0 of 1 head (1 firm) kept, 1 no longer named; L1H2's score went from .650 to .150 (−.500), without an "
        "interval to tell that from an accident."
    ) in told


def test_of_different_shapes_sentences_tell_shares(shapes: Comparison) -> None:
    assert sentences(shapes.pairs[0]) == [
        "A role is a threshold: heads just above it and just below it may hardly differ, and the counts turn on that.",
        "Induction: 3 of 6 heads of small (2 firm; .500; best L0H0 with .800); none of 9 heads of large.",
        "Comma: 1 of 6 heads of small (1 firm; .167; best L1H2 with .650); none of 9 heads of large.",
        "Previous token: 1 of 6 heads of small (1 firm; .167; best L0H2 with .900); 1 of 9 heads of large (1 firm; "
        ".111; best L1H1 with .600).",
    ]


# -------------------------------------------------------------------------------------------------------------- notices


def test_like_profiles_need_no_notice(found: Comparison, page: Node) -> None:
    assert notices(found.pairs[0]) == []
    assert page.all("ul", class_="note") == []


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        (
            "corpus.files",
            [{"name": "other.txt", "sha256": "cd34"}],
            "Not the same corpus: old has text.txt (12 documents), new has other.txt (12 documents).",
        ),
        (
            "corpus.documents",
            7,
            "Not the same corpus: old has text.txt (12 documents), new has text.txt (7 documents).",
        ),
        ("corpus.files", [], "Nothing tells whether the corpora are the same."),
        ("corpus.max_length", 64, "Not the same longest input: old has 128, new has 64."),
        ("headlens", "0.2.0", "Not the same version of headlens: old has 0.1.0, new has 0.2.0."),
        ("seed", 3, "Not the same seed: old has 0, new has 3."),
        ("model.dtype", "bfloat16", "Not the same number format: old has float32, new has bfloat16."),
        (
            "model.name",
            "Other",
            "Not the same model: old has Tiny, new has Other. Heads are matched by their place; where models were "
            "trained apart, two heads in one place need have nothing in common.",
        ),
    ],
)
def test_what_differs_besides_the_scores_is_told_first(path: str, value: Any, line: str) -> None:
    given = [before(), after(provenance=changed(path, value))]
    assert notices(only(*given)) == [line]
    page = read(render_comparison(compare(given, ["old", "new"])))
    assert page.one("ul", class_="note").text == line


@pytest.mark.parametrize(
    "files", [[{"name": "copy.txt", "sha256": "ab12"}], [{"name": "text.txt", "sha256": "ab12", "bytes": 9}]]
)
def test_the_same_text_under_another_name_is_the_same_corpus(files: list[dict[str, Any]]) -> None:
    assert notices(only(before(), after(provenance=changed("corpus.files", files)))) == []


def test_the_order_of_files_does_not_make_another_corpus() -> None:
    files = [{"name": "a", "sha256": "1"}, {"name": "b", "sha256": "2"}]
    old, new = (changed("corpus.files", order) for order in (files, files[::-1]))
    assert notices(only(before(provenance=old), after(provenance=new))) == []


def test_generated_corpora_are_told_apart_by_what_made_them() -> None:
    old, new = ({"kind": "grammar", "name": "200 sentences", "seed": seed} for seed in (0, 1))
    pair = only(before(provenance=changed("corpus.files", [old])), after(provenance=changed("corpus.files", [new])))
    assert [line.partition(":")[0] for line in notices(pair)] == ["Not the same corpus"]


def test_scores_and_roles_of_one_side_are_told() -> None:
    old = before(
        scores=scores_of(BEFORE | {"position.mass[1]": BEFORE["surface.cls"]}, with_macro=False),
        roles=roles_of(asked=(INDUCTION, CLS)),
    )
    new = after(
        scores=scores_of(
            AFTER | {"syntax.a": AFTER["surface.cls"], "syntax.b": AFTER["surface.cls"]}, with_macro=False
        ),
        roles=roles_of(asked=(INDUCTION,)),
    )
    assert notices(only(old, new)) == [
        "Left out, because only old has them: 1 score (position).",
        "Left out, because only new has them: 2 scores (syntax).",
        "Not compared, because one side lacks the scores for them: 1 role ([CLS]).",
    ]


def test_settings_of_evidence_are_compared() -> None:
    row = weighed("syntax.dep_to_head[obj]", 1, 2, 0.7, ABOVE)
    pair = only(before(evidence=evidence_of(row)), after(evidence=evidence_of(row, minimum=20)))
    assert notices(pair) == ["Not the same minimum where evidence was weighed: old has 50, new has 20."]


def test_different_shapes_are_told(shapes: Comparison) -> None:
    assert notices(shapes.pairs[0])[0] == (
        "Not the same shape: small has 2 × 3 heads, large has 3 × 3 heads, so roles and scores are compared as a "
        "whole, not head by head."
    )


@pytest.mark.parametrize("is_first", [True, False])
def test_after_a_failed_self_check_no_role_is_told(is_first: bool) -> None:
    failed = PROVENANCE | {"selfcheck": {"passed": False, "line": "failed: rows sum to 1.2"}}
    given = [before(provenance=failed), after()] if is_first else [before(), after(provenance=failed)]
    comparison = compare(given, ["old", "new"])
    assert sentences(comparison.pairs[0]) == []
    assert notices(comparison.pairs[0])[0].startswith(f"The self-check of {'old' if is_first else 'new'} failed: ")
    page = read(render_comparison(comparison))
    assert page.all("table", class_="map") == []
    assert page.all("table", class_="roles") == []
    assert page.all("ul", class_="fates") == []
    assert [heading.text for heading in page.all("h3")] == ["Scores"]


# ----------------------------------------------------------------------------------------------------------------- maps


def test_the_maps_show_roles_before_and_after(page: Node) -> None:
    old, new = ([cells(row)[1:] for row in grid.one("tbody").all("tr")] for grid in page.all("table", class_="map"))
    assert old == [["I", "I", "P"], ["·", "·", ","]]
    # L0H0 is removed, L0H1 and L0H2 lost all, L1H0 and L1H1 are new; L1H2 had induction before, under the comma
    assert new == [["absent", "✕I", "✕P"], ["I+", "P+", "I"]]


def test_a_removed_head_is_crossed_out(page: Node) -> None:
    gone = page.all("td", class_="gone")
    assert [cell.attributes["title"] for cell in gone] == ["L0H0: absent"]
    assert len(gone[0].all("svg", class_="cross")) == 1


def test_firm_and_tentative_roles_look_different(page: Node) -> None:
    outlined = [cell.attributes["title"] for cell in page.all("td", class_="tentative")]
    # L1H2 has a tentative role on both sides, and a firm one, which stands for it
    assert outlined == []
    roles = roles_of(held(INDUCTION, 0, 1, 0.7, is_firm=False), held(PREVIOUS, 0, 2, 0.9))
    second = read(render_comparison(compare([before(roles=roles), before(roles=roles)])))
    outlined = [cell.attributes["title"] for cell in second.all("td", class_="tentative")]
    assert outlined == ["L0H1: induction (tentative)"] * 2


def test_a_role_by_two_scores_is_as_firm_as_its_firmer_one() -> None:
    by_two = [held(INDUCTION, 0, 1, 0.7), held(INDUCTION, 0, 1, 0.9, is_firm=False, metric="elsewhere.score")]
    page = read(render_comparison(compare([before(roles=roles_of(*by_two)), after(roles=roles_of())])))
    titles = [cell.attributes["title"] for cell in page.all("td") if "title" in cell.attributes]
    assert titles[1] == "L0H1: induction (firm)"


def test_the_cells_name_all_roles(page: Node) -> None:
    titles = [cell.attributes["title"] for cell in page.all("td") if "title" in cell.attributes]
    assert titles[5] == "L1H2: comma (firm), induction (tentative)"
    assert titles[6:8] == ["L0H0: absent", "L0H1: no role; before induction"]
    assert titles[11] == "L1H2: induction (firm), [CLS] (tentative)"


# --------------------------------------------------------------------------------------------------------------- tables


def test_the_counts_of_fates(page: Node) -> None:
    of_roles, of_heads = page.all("ul", class_="fates")
    assert [item.text for item in of_roles.all("li")] == [
        *("0● kept", "2▲ moved", "1✕ lost", "1+ gained"),
        "1of 6 heads removed",
    ]
    # induction: L1H2 stays, L0H0 and L0H1 go, L1H0 comes; one goes of the comma; one goes and one comes of the previous
    # token; one comes of [CLS]
    assert [item.text for item in of_heads.all("li")] == ["1● kept", "4✕ lost", "3+ gained"]


def test_the_table_of_roles(page: Node) -> None:
    assert rows(page, "roles") == [
        [
            *("comma", "✕ lost", "1 (1 firm)", "0", "0", "1 / 0", "0 / 0"),
            *("L1H2 .650 (firm)", "L1H2 .150", "", "−.500 [−.550, −.376]", "none"),
        ],
        [
            *("induction", "▲ moved", "3 (2 firm)", "2 (2 firm)", "1", "2 / 0", "1 / 0"),
            *("L0H0 .800 (firm)", "L0H0 removed", "", "", "L1H0 .600 (firm)"),
        ],
        [
            *("previous token", "▲ moved", "1 (1 firm)", "1 (1 firm)", "0", "1 / 0", "1 / 0"),
            *("L0H2 .900 (firm)", "L0H2 .400", "", "−.500 [−.550, −.376]", "L1H1 .750 (firm)"),
        ],
        [
            *("[CLS]", "+ gained", "0", "1 (0 firm)", "0", "0 / 0", "1 / 0"),
            # gained by .60: from .20 [.17, .24] to .80 [.77, .92], so up by hypot(.12, .03)
            *("none", "", "", "+.600 [+.550, +.724]", "L1H2 .800 (tentative)"),
        ],
    ]


def test_the_tables_of_heads(page: Node) -> None:
    lost, kept = page.all("table", class_="heads")
    code = "repetition.induction"
    assert [cells(row) for row in lost.one("tbody").all("tr")] == [
        ["L0H0", "✕ lost", f"induction{code}", ".800 (firm)", "removed", "", ""],
        ["L0H1", "✕ lost", f"induction{code}", ".700 (firm)", ".300 (no role)", "", "−.400 [−.450, −.276]"],
        ["L1H2", "✕ lost", "commasurface.comma", ".650 (firm)", ".150 (no role)", "", "−.500 [−.550, −.376]"],
        [
            *("L0H2", "✕ lost", "previous tokenposition.mass[-1]"),
            *(".900 (firm)", ".400 (no role)", "", "−.500 [−.550, −.376]"),
        ],
        ["L1H0", "+ gained", f"induction{code}", ".200 (no role)", ".600 (firm)", "", "+.400 [+.350, +.524]"],
        [
            *("L1H1", "+ gained", "previous tokenposition.mass[-1]"),
            *(".300 (no role)", ".750 (firm)", "", "+.450 [+.400, +.574]"),
        ],
        ["L1H2", "+ gained", "[CLS]surface.cls", ".200 (no role)", ".800 (tentative)", "", "+.600 [+.550, +.724]"],
    ]
    assert [cells(row) for row in kept.one("tbody").all("tr")] == [
        # a difference of .05 is as long as its interval reaches down
        ["L1H2", "● kept", f"induction{code}", ".500 (tentative)", ".550 (firm)", "", "+.050 [.000, +.174]"]
    ]


def test_the_table_of_scores(page: Node) -> None:
    by_score = {row[0]: row[1:] for row in rows(page, "scores")}
    name = "Title of repetition.inductionrepetition.induction"
    assert by_score[name] == [
        # medians of .1 .1 .2 .5 .7 .8 and of .1 .1 .3 .55 .6
        *("L0H0 .800", "L1H0 .600", ".350", ".300", ".050"),
        *("L1H0 +.400 [+.350, +.524]", "L0H1 −.400 [−.450, −.276]", "2 of 5"),
    ]
    assert list(by_score) == [f"Title of {name}{name}" for name in BEFORE] + ["All"]
    assert by_score["All"] == ["", "6 of 20 (by chance about 1)"]


def test_a_score_that_rose_nowhere_says_so() -> None:
    page = read(render_comparison(compare([before(), before()])))
    assert {tuple(row[6:9]) for row in rows(page, "scores")[:-1]} == {("none", "none", "0 of 6")}


def test_pictures_show_before_as_a_ring_and_after_as_a_dot(page: Node) -> None:
    comma, induction, *_ = page.one("table", class_="roles").one("tbody").all("tr")
    # on a line from 5 to 95
    assert comma.one("circle", class_="ring").attributes["cx"] == "63.5"
    assert comma.one("circle", class_="dot").attributes["cx"] == "18.5"
    assert comma.one("path", class_="chance").attributes["d"].startswith("M9.5 ")
    assert (len(induction.all("circle", class_="ring")), len(induction.all("circle", class_="dot"))) == (1, 0)


def test_what_lies_beyond_the_line_has_no_picture() -> None:
    drawn = {"repetition.induction": [".80 1.70 .10", ".20 .10 .50"]}
    given = Given(scores_of(drawn), roles_of(held(INDUCTION, 0, 1, 1.7)))
    page = read(render_comparison(compare([given, given])))
    assert page.one("table", class_="roles").one("tbody").all("svg") == []


def test_models_of_different_shape_have_counts_and_shares(shapes: Comparison) -> None:
    page = read(render_comparison(shapes))
    assert page.all("table", class_="map") == []
    assert page.all("table", class_="heads") == []
    assert rows(page, "roles") == [
        ["induction", "3 (2 firm)", ".500", "L0H0 .800 (firm)", "0", ".000", "none"],
        ["comma", "1 (1 firm)", ".167", "L1H2 .650 (firm)", "0", ".000", "none"],
        ["previous token", "1 (1 firm)", ".167", "L0H2 .900 (firm)", "1 (1 firm)", ".111", "L1H1 .600 (firm)"],
    ]
    name = "position.mass[-1]"
    assert rows(page, "scores") == [[f"Title of {name}{name}", "L0H2 .900", "L1H1 .600", ".150", ".100", ".050"]]


def test_evidence_of_both_sides_is_compared() -> None:
    old = evidence_of(
        weighed("syntax.dep_to_head[obj]", 1, 2, 0.7, ABOVE),
        weighed("syntax.dep_to_head[nsubj]", 0, 1, 0.6, INFORMED),
        weighed("syntax.dep_to_head[det]", 0, 2, 0.5, ABOVE),
        weighed("syntax.dep_to_head[amod]", 0, 2, 0.2, CHANCE),
        weighed("syntax.dep_to_head[case]", 0, 2, 0.3, UNDECIDED),
        weighed("syntax.dep_to_head[aux]", 0, 2, 0.9, ABOVE),
    )
    new = evidence_of(
        weighed("syntax.dep_to_head[case]", 0, 2, 0.9, ABOVE),
        weighed("syntax.dep_to_head[amod]", 0, 2, 0.2, CHANCE),
        weighed("syntax.dep_to_head[det]", 0, 2, 0.4, ABOVE),
        weighed("syntax.dep_to_head[nsubj]", 1, 1, 0.7, ABOVE),
        weighed("syntax.dep_to_head[obj]", 1, 2, 0.2, CHANCE),
    )
    given = [before(evidence=old), after(evidence=new)]
    page = read(render_comparison(compare(given, ["old", "new"])))
    found = rows(page, "evidence")
    assert [(row[0].partition("syntax")[0], row[1]) for row in found] == [
        ("direct object → verb", f"{ABOVE} → {CHANCE}"),
        ("adposition or case marker → noun", f"{UNDECIDED} → {ABOVE}"),
        ("subject → predicate", f"{INFORMED} → {ABOVE}; of another head"),
        ("determiner → noun", f"{ABOVE} in both"),
    ]
    assert found[0][2:] == ["L1H2 .700", "L1H2 .200", "", "−.500 [−.550, −.450]"]


def test_of_different_shapes_no_relation_moves() -> None:
    old, new = (evidence_of(weighed("syntax.dep_to_head[obj]", 1, head, 0.7, ABOVE)) for head in (1, 2))
    large = larger()
    large.evidence = new
    page = read(render_comparison(compare([before(evidence=old), large])))
    assert [row[1] for row in rows(page, "evidence")] == [f"{ABOVE} in both"]


def test_without_evidence_of_both_sides_there_is_no_table_of_it(page: Node) -> None:
    assert page.all("table", class_="evidence") == []
    one = before(evidence=evidence_of(weighed("syntax.dep_to_head[obj]", 1, 2, 0.7, ABOVE)))
    assert read(render_comparison(compare([one, after()]))).all("table", class_="evidence") == []


# ------------------------------------------------------------------------------------------------------------- the page


def test_three_profiles_make_two_sections() -> None:
    page = read(render_comparison(compare([before(), after(), larger()], ["old", "new", "large"])))
    assert page.one("h1").text == "old compared with 2 others"
    assert [heading.text for heading in page.all("h2")] == ["old (A) and new (B)", "old (A) and large (C)"]
    assert [link.attributes["href"] for link in page.one("nav").all("a")] == ["#pair-1", "#pair-2"]
    assert [term.text for term in page.all("dt")] == ["A", "B", "C"]


def test_markup_in_names_is_escaped() -> None:
    evil = changed("model.name", EVIL) | {"corpus": {"files": [{"name": EVIL}]}}
    metric = f"surface.{EVIL}"
    scores = scores_of({metric: BEFORE["surface.cls"]})
    given = [before(provenance=evil, scores=scores), after(provenance=PROVENANCE, scores=scores)]
    html = render_comparison(compare(given, [EVIL, "new"]))
    assert "<script" not in html
    assert read(html).one("h1").text == f"{EVIL} and new compared"


def test_the_page_needs_no_network_and_no_script(found: Comparison) -> None:
    html = render_comparison(found)
    assert not re.search(r"<script|<link|@import|https?://|url\(", html)
    assert "default-src 'none'" in html


def test_the_page_is_the_same_each_time(found: Comparison) -> None:
    assert render_comparison(found) == render_comparison(found)


def test_every_id_is_there_once_and_every_link_leads_somewhere() -> None:
    page = read(render_comparison(compare([before(), after(), larger()])))
    ids = [node.attributes["id"] for node in page.walk() if "id" in node.attributes]
    assert len(ids) == len(set(ids))
    assert {link.attributes["href"][1:] for link in page.all("a")} <= set(ids)


def test_every_cell_of_a_table_has_a_heading(page: Node) -> None:
    for table in page.all("table", class_="cmp"):
        columns = len(table.one("thead").all("th"))
        for row in table.one("tbody").all("tr"):
            assert (
                sum(int(cell.attributes.get("colspan", 1)) for cell in row.children if isinstance(cell, Node))
                == columns
            )


def without_intervals(drawn: dict[str, list[str]]) -> ScoreTable:
    return scores_of(drawn, below=NAN, above=NAN)
