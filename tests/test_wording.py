"""Metrics and relations in words."""

from __future__ import annotations

import pytest

from headlens.wording import title_of, way_of


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("subject_verb.subject_to_verb", "from a subject to its verb"),
        ("subject_verb.verb_to_subject", "from a verb to its subject"),
        ("syntax.dep_to_head[obl]", "from an oblique to its verb"),
        ("syntax.head_to_dep[obl]", "from a verb to its oblique"),
        ("syntax.dep_to_head[nsubj:pass]", "from a subject (nsubj:pass) to its predicate"),
        ("syntax.dep_to_head[xyz]", "from a dependent (xyz) to its syntactic head"),
        ("syntax.head_to_dep[ALL]", "from a syntactic head to its dependent"),
        ("coref[proper]", "from a proper name to an earlier mention of the same entity"),
        (
            "coref[all_unmatched]",
            "from a mention whose lemma no candidate shares to an earlier mention of the same entity",
        ),
        ("choice[type_one]", "from a pronoun (type one) to its referent"),
    ],
)
def test_metrics_in_words(metric: str, words: str) -> None:
    assert way_of(metric).sentence == words


@pytest.mark.parametrize(
    ("relation", "title"),
    [
        ("subject_verb", "Subject and verb"),
        ("ALL", "All relations"),
        ("det", "Determiner"),
        ("det:poss", "det:poss"),
        ("coref[nominal_unmatched]", "Common nouns whose lemma no candidate shares"),
        ("choice[feminine]", "Feminine pronouns"),
        ("choice[type_one]", "Type one"),
    ],
)
def test_titles_of_rows(relation: str, title: str) -> None:
    assert title_of(relation) == title
