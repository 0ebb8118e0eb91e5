"""Mentions as GUM brackets them: hand-drawn brackets, and documents written by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from headlens.corpora.conllu import read_gum
from headlens.corpora.entities import Bracket, Mentions, conll_brackets, field_of_entity, gum_brackets
from headlens.documents import Document, Mention
from headlens.errors import CorpusError

FIELDS = "# global.Entity = GRP-etype-infstat-salience-centering-minspan-link-identity"


def opens(entity: str) -> Bracket:
    return Bracket(entity, opens=True, closes=False)


def closes(entity: str) -> Bracket:
    return Bracket(entity, opens=False, closes=True)


def whole(entity: str) -> Bracket:
    return Bracket(entity, opens=True, closes=True)


# ------------------------------------------------------------------------------------------------------------- brackets


@pytest.mark.parametrize(
    ("value", "field", "expected"),
    [
        ("(3-abstract-new-sssss-cf1-5-coref", 0, [opens("3")]),
        ("3)", 0, [closes("3")]),
        ("(9-abstract-giv:act-sssss-cf1-1-appos)", 0, [whole("9")]),
        ("(175-time-giv:inact-nnnnn-cf5-1-coref)189)188)", 0, [whole("175"), closes("189"), closes("188")]),
        ("(1-person(2-place-new(3-time)", 0, [opens("1"), opens("2"), whole("3")]),
        ("(12-person-new-nnnnn-cf1-1-sgl-Jean%2DPaul%2C_%28b.%29)", 0, [whole("12")]),
        ("(7)", 0, [whole("7")]),
        ("(person-4-new(place-5)4)", 1, [opens("4"), whole("5"), closes("4")]),
        ("2)(2-person-new", 0, [closes("2"), opens("2")]),
    ],
)
def test_brackets_of_gum_name_their_entity(value, field, expected):
    assert gum_brackets(value, field, "f, line 1") == expected


@pytest.mark.parametrize("value", ["", "3", "(", ")", "()", "(3-a))", "((3-a)", "(3-a)4", "3)x"])
def test_what_is_no_row_of_brackets_is_refused(value):
    with pytest.raises(CorpusError, match=r"^f, line 1: '.*' is no row of brackets .*mend it\.$"):
        gum_brackets(value, 0, "f, line 1")


@pytest.mark.parametrize(("value", "field"), [("(3)", 1), ("(3-)", 1), ("(-person", 0), ("(3- )", 1)])
def test_an_opening_bracket_without_its_entity_is_refused(value, field):
    with pytest.raises(CorpusError, match=rf"should name its entity in field {field + 1}, as global\.Entity says"):
        gum_brackets(value, field, "f, line 1")


@pytest.mark.parametrize("value", ["(3[1/2]-person", "3[2/2])"])
def test_a_part_of_a_mention_is_refused(value):
    with pytest.raises(CorpusError, match=r"the mention 3\[./2\] is a part of one that is not continuous"):
        gum_brackets(value, 0, "f, line 1")


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("(0|(1)", [opens("0"), whole("1")]),
        ("45)|4)|5)", [closes("45"), closes("4"), closes("5")]),
        ("(12)", [whole("12")]),
    ],
)
def test_brackets_of_conll_are_separated_by_bars(cell, expected):
    assert conll_brackets(cell, "f, line 1") == expected


@pytest.mark.parametrize("cell", ["", "1", "(1||(2)", "(1|", "(1)(2)", "()", "_"])
def test_other_cells_are_refused(cell):
    with pytest.raises(
        CorpusError, match=r"^f, line 1: '.*' is no row of brackets that mark mentions, as '\(1\|\(2\)' is"
    ):
        conll_brackets(cell, "f, line 1")


@pytest.mark.parametrize(("fields", "expected"), [("GRP", 0), (" GRP-etype ", 0), ("etype-GRP-link", 1)])
def test_the_entity_is_where_the_fields_say(fields, expected):
    assert field_of_entity(fields, "f, line 1") == expected


@pytest.mark.parametrize("fields", ["", "eid-etype-head-other", "GRPS", "grp"])
def test_fields_without_an_entity_are_refused(fields):
    with pytest.raises(
        CorpusError, match=r"f, line 1: the fields .* include GRP, got .*; read the file as conllu:FILE"
    ):
        field_of_entity(fields, "f, line 1")


def test_of_nested_mentions_of_one_entity_the_inner_closes_first():
    mentions = Mentions()
    mentions.open("1", 0, "a")
    mentions.open("2", 1, "b")
    mentions.open("1", 2, "c")
    mentions.close("1", 3, "d")
    mentions.close("2", 5, "e")
    mentions.close("1", 6, "f")
    assert mentions.finished() == (Mention(0, 7, "1"), Mention(1, 6, "2"), Mention(2, 4, "1"))


def test_brackets_that_do_not_match_are_refused_where_they_stand():
    mentions = Mentions()
    mentions.open("1", 0, "f, line 1")
    mentions.open("1", 1, "f, line 2")
    with pytest.raises(CorpusError, match=r"^f, line 3: a mention of entity 2 closes here and none is open"):
        mentions.close("2", 1, "f, line 3")
    mentions.close("1", 2, "f, line 3")
    with pytest.raises(CorpusError, match=r"^f, line 1: the mention of entity 1 that opens here does not close"):
        mentions.finished()
    mentions.close("1", 2, "f, line 4")
    with pytest.raises(CorpusError, match=r"^f, line 5: a mention of entity 1 closes here and none is open"):
        mentions.close("1", 2, "f, line 5")


# ------------------------------------------------------------------------------------------------------------ documents


def words(*rows: str, start: int = 1) -> list[str]:
    """Rows out of "form", "form (1-x" or "1-2 form (1-x" with the brackets of Entity last."""
    lines, number = [], start - 1
    for row in rows:
        cells = row.split(" ")
        id = cells.pop(0) if cells[0][0].isdigit() and len(cells) > 1 else None
        if id is None:
            number += 1
        entity = f"SpaceAfter=No|Entity={cells[1]}|Bridge=1<2" if len(cells) > 1 else "_"
        lines.append("\t".join([id or str(number), cells[0], *["_"] * 7, entity]))
    return lines


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "g.conllu"


def read(file: Path, *lines: str, **options) -> list[Document]:
    file.write_text("\n".join([*lines, "", ""]), encoding="utf-8")
    return list(read_gum(file, **options))


def test_mentions_count_words_through_the_document(file):
    documents = read(
        file,
        "# newdoc id = a",
        FIELDS,
        *words("the (1-object", "dog 1)", "barks"),
        "",
        *words("it (1-object)", "saw", "her (2-person)"),
        "",
        "# newdoc id = b",
        FIELDS,
        *words("she (1-person)"),
    )
    assert [document.mentions for document in documents] == [
        (Mention(0, 2, "1"), Mention(3, 4, "1"), Mention(5, 6, "2")),
        (Mention(0, 1, "1"),),
    ]


def test_mentions_may_run_through_sentences_and_cross(file):
    [document] = read(file, "# newdoc", FIELDS, *words("a (1-x", "b (2-x"), "", *words("c 1)", "d 2)"))
    assert document.mentions == (Mention(0, 3, "1"), Mention(1, 4, "2"))


def test_nested_mentions_of_one_entity(file):
    [document] = read(file, "# newdoc", FIELDS, *words("a (1-x(1-x", "b 1)", "c 1)"))
    assert document.mentions == (Mention(0, 2, "1"), Mention(0, 3, "1"))


def test_a_bracket_on_a_multiword_token_opens_at_its_first_word_and_closes_at_its_last(file):
    [document] = read(
        file,
        "# newdoc",
        FIELDS,
        *words(
            "he", "2-3 dogs' (1-x", "dogs", "'", "bark 1)", "5-6 im (2-x)", "in", "dem", "7-8 zum 3)", "zu (3-x", "dem"
        ),
    )
    assert document.mentions == (Mention(1, 4, "1"), Mention(4, 6, "2"), Mention(6, 8, "3"))


def test_brackets_on_the_words_of_a_multiword_token_are_theirs(file):
    [document] = read(
        file, "# newdoc", FIELDS, *words("1-2 John's (1-x", "John (2-x)", "'s", "dog 1)", "4-5 it's", "it (1-x)", "'s")
    )
    assert document.mentions == (Mention(0, 1, "2"), Mention(0, 3, "1"), Mention(3, 4, "1"))


def test_a_mention_of_a_token_holds_those_of_its_words_of_the_same_entity(file):
    [document] = read(file, "# newdoc", FIELDS, *words("1-2 zum (1-x)", "zu", "dem (1-x)"))
    assert document.mentions == (Mention(0, 2, "1"), Mention(1, 2, "1"))


def test_a_token_closes_what_its_last_word_opens_and_a_first_word_what_its_token_opens(file):
    [document] = read(file, "# newdoc", FIELDS, *words("1-2 zum 1)(2-x", "zu 2)", "dem (1-x", "a (3-x)"))
    assert document.mentions == (Mention(0, 1, "2"), Mention(1, 2, "1"), Mention(2, 3, "3"))


def test_the_field_order_of_the_file_holds(file):
    [document] = read(file, "# newdoc", "# global.Entity = etype-GRP", *words("a (person-7)"))
    assert document.mentions == (Mention(0, 1, "7"),)
    [document] = read(file, "# newdoc", "# global.Entity = GRP", *words("a (8)"))
    assert document.mentions == (Mention(0, 1, "8"),)


def test_entities_of_a_file_without_documents_are_those_of_a_sentence(file):
    documents = read(file, FIELDS, *words("a (1-x)"), "", *words("b (1-x)"))
    assert [document.mentions for document in documents] == [(Mention(0, 1, "1"),)] * 2


def test_no_mention_in_an_annotated_document_is_an_empty_row(file):
    assert read(file, FIELDS, *words("a"))[0].mentions == ()


REFUSED = {
    "no fields": (
        ["# newdoc id = a", *words("a")],
        r", line 1: expected '# global\.Entity = GRP-\.\.\.' before the first",
    ),
    "other fields": (
        ["# newdoc", "# global.Entity = eid-etype", *words("a")],
        r", line 2: the fields of Entity in the",
    ),
    "closing alone": (
        ["# newdoc", FIELDS, *words("a", "b 1)")],
        ", line 4: a mention of entity 1 closes here and none",
    ),
    "never closed": (["# newdoc", FIELDS, *words("a", "b (1-x")], ", line 4: the mention of entity 1 that opens here"),
    "closed too late": (
        ["# newdoc", FIELDS, *words("a (1-x"), "", "# newdoc", *words("b 1)")],
        ", line 3: the mention of entity 1 that opens here does not close before its document ends",
    ),
    "no bracket": (["# newdoc", FIELDS, *words("a 1")], ", line 3: '1' is no row of brackets"),
    "an empty node": (["# newdoc", FIELDS, *words("a", "1.1 b (1-x)")], ", line 4: a mention stands on an empty node"),
    "a part": (["# newdoc", FIELDS, *words("a (1[1/2]-x)")], r", line 3: the mention 1\[1/2\] is a part of one"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_marks_no_mention_is_refused_with_its_line(file, case):
    lines, message = REFUSED[case]
    with pytest.raises(CorpusError, match=message) as refused:
        read(file, *lines)
    assert str(refused.value).startswith(str(file))
    assert str(refused.value).endswith(".")


BAD_DOCUMENTS = {
    "a closing bracket alone": ([*words("a (1-x)"), "", *words("b 2)"), "", *words("c")], ["a", "b", "c"]),
    "one never closed": ([*words("a (1-x)"), "", *words("b (2-x"), "", *words("c")], ["a", "b", "c"]),
    "a bad sentence": ([*words("a (1-x)"), "", *words("b (1-x)", start=2), "", *words("c (1-x)")], ["a", "c"]),
}


@pytest.mark.parametrize("case", BAD_DOCUMENTS)
def test_a_document_with_something_bad_keeps_its_sentences_and_loses_its_mentions(file, case):
    lines, texts = BAD_DOCUMENTS[case]
    seen = list[CorpusError]()
    good, bad, last = read(
        file,
        "# newdoc id = good",
        FIELDS,
        *words("x (1-x)"),
        "",
        "# newdoc id = bad",
        *lines,
        "",
        "# newdoc id = last",
        *words("y (2-x)"),
        on_bad=seen.append,
    )
    assert len(seen) == 1
    assert [sentence.text for sentence in bad.sentences] == texts
    assert bad.mentions is None
    assert (good.mentions, last.mentions) == ((Mention(0, 1, "1"),), (Mention(0, 1, "2"),))


def test_a_file_without_fields_is_refused_in_any_case(file):
    with pytest.raises(CorpusError, match="read this one as conllu:FILE"):
        read(file, *words("a"), on_bad=lambda _: None)
