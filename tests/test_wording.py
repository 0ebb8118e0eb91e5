"""Metrics and relations in words."""

from __future__ import annotations

import pytest

from headlens.wording import is_part_of, title_of, way_of


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("subject_verb.subject_to_verb", "from a subject to its verb"),
        ("subject_verb.verb_to_subject", "from a verb to its subject"),
        ("syntax.dep_to_head[obl]", "from an oblique to its verb"),
        ("syntax.head_to_dep[obl]", "to an oblique from its verb more than from any other word"),
        ("syntax.dep_to_head[nsubj:pass]", "from a subject (nsubj:pass) to its predicate"),
        ("syntax.dep_to_head[xyz]", "from a dependent (xyz) to its syntactic head"),
        ("syntax.head_to_dep[ALL]", "to a dependent from its syntactic head more than from any other word"),
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


@pytest.mark.parametrize(
    ("part", "whole", "expected"),
    [
        ("acl:relcl", "acl", True),
        ("acl", "acl:relcl", False),
        ("acl", "acl", False),
        ("acl:relcl", "ALL", True),
        ("coref[pronoun_unmatched]", "coref[all_unmatched]", True),
        ("coref[pronoun_unmatched]", "coref[pronoun]", True),
        ("coref[pronoun]", "coref[all_unmatched]", False),
        ("coref[pronoun_noun]", "coref[pronoun]", True),
        ("coref[proper]", "coref[pronoun]", False),
        ("choice[feminine]", "choice[all]", True),
        ("choice[feminine]", "coref[all]", False),
        ("coref[all]", "ALL", False),
    ],
)
def test_which_decisions_are_among_those_of_another_relation(part: str, whole: str, expected: bool) -> None:
    assert is_part_of(part, whole) is expected
