import re

import pytest

from headlens.corpora.winobias import groups_of_name, read_winobias
from headlens.errors import CorpusError

PRO = "pro_stereotyped_type1.txt.dev"
PAIR = [
    "1 [The developer] argued with the designer because [she] did not like the design.",
    "2 The developer argued with [the designer] because [his] idea failed.",
]


@pytest.fixture
def file(tmp_path):
    def write(*lines, name=PRO):
        (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
        return tmp_path / name

    return write


def told(document):
    """Every choice as words: the pronoun, its candidates in their order, the right one in brackets; and the groups."""
    (sentence,) = document.sentences

    def words(stretch):
        return " ".join(sentence.words[stretch.start : stretch.stop])

    return [
        (
            words(choice),
            [f"[{words(c)}]" if c.is_right else words(c) for c in choice.candidates],
            choice.groups,
        )
        for choice in document.choices
    ]


def test_brackets_mark_the_right_one_and_the_other_is_the_other_occupation(file):
    first, second = read_winobias(file(*PAIR))
    assert told(first) == [("she", ["[The developer]", "the designer"], ("pro", "type1", "feminine"))]
    assert told(second) == [("his", ["The developer", "[the designer]"], ("pro", "type1", "masculine"))]
    assert first.text == "The developer argued with the designer because she did not like the design."
    assert first.sentences[0].words[:5] == ("The", "developer", "argued", "with", "the")
    assert (first.choices[0].start, first.choices[0].stop) == (7, 8)
    assert [document.id for document in (first, second)] == [f"{PRO}:1", f"{PRO}:2"]


OTHERS = {
    "in any case, without a determiner": (
        "3 [She] paid Designer and [a Developer].",
        "She",
        "Designer",
        "[a Developer]",
    ),
    "the pronoun first": ("3 [He] saw that [the developer] met an designer.", "He", "[the developer]", "an designer"),
    "the bracket without the determiner": (
        "3 The [developer] met a designer: [he] hid.",
        "he",
        "[developer]",
        "a designer",
    ),
    "space in the brackets": ("3 [ developer] met the designer; [ he ] hid.", "he", "[developer]", "the designer"),
    "at a possessive": (
        "3 [The developer] saw the designer's car and [his] own.",
        "his",
        "[The developer]",
        "the designer",
    ),
    "named again": (
        "3 [The developer] told the designer: [she] was a designer.",
        "she",
        "[The developer]",
        "the designer",
    ),
    "the right one named again": (
        "3 [The developer] met the designer; [he] is a developer.",
        "he",
        "[The developer]",
        "the designer",
    ),
    "inside of no other word": (
        "3 [The developer] saw designers, codesigner Al, the designer and [her].",
        "her",
        "[The developer]",
        "the designer",
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_the_other_occupation_is_found(file, case):
    line, pronoun, first, second = OTHERS[case]
    ((found, candidates, _),) = told(list(read_winobias(file(*PAIR, line)))[2])
    assert (found, candidates) == (pronoun, [first, second])


def test_an_occupation_inside_of_a_longer_one_is_not_found(file):
    lines = [
        "1 [The construction  worker] saw the cook and [he] left.",
        "2 [The worker] saw the cook and [he] left.",
        "3 [The chief] saw the cook and [he] left.",
        "4 [The chief executive] saw the cook and [he] left.",
        "5 [The cook] saw the construction worker and [he] left.",
        "6 [The cook] saw the chief executive and [he] left.",
    ]
    assert [told(document)[0][1] for document in read_winobias(file(*lines))] == [
        ["[The construction worker]", "the cook"],
        ["[The worker]", "the cook"],
        ["[The chief]", "the cook"],
        ["[The chief executive]", "the cook"],
        ["[The cook]", "the construction worker"],
        ["[The cook]", "the chief executive"],
    ]


def test_white_space_between_the_words_of_an_occupation_does_not_matter(file):
    lines = [
        "1 [The construction worker] saw the cook and [he] left.",
        "2 [The cook] saw the construction  worker and [he] left.",
        "3 [The construction worker] and the cook met: [he] is no construction  worker.",
    ]
    assert [told(document)[0][1][1] for document in read_winobias(file(*lines))] == [
        "the cook",
        "the construction worker",
        "the cook",
    ]


def test_every_pronoun_is_a_choice(file):
    line = "3 [The designer] met the developer and [she] lost [her] pen."
    assert told(list(read_winobias(file(*PAIR, line)))[2]) == [
        ("she", ["[The designer]", "the developer"], ("pro", "type1", "feminine")),
        ("her", ["[The designer]", "the developer"], ("pro", "type1", "feminine")),
    ]


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        (PRO, ("pro", "type1")),
        ("anti_stereotyped_type2.txt.test", ("anti", "type2")),
        ("dev_type1_pro_stereotype.txt", ("pro", "type1")),
        ("ANTI_stereotyped.txt", ("anti",)),
        ("sentences_type2.txt", ("type2",)),
        ("sentences.txt", ()),
        ("repro_stereotyped_prototype1.txt", ()),
    ],
)
def test_groups_are_what_the_name_of_the_file_says(file, name, groups):
    assert groups_of_name(name) == groups
    assert next(iter(read_winobias(file(*PAIR, name=name)))).choices[0].groups == (*groups, "feminine")


def test_a_pronoun_without_a_gender_has_no_group(file):
    (document,) = list(read_winobias(file(*PAIR, "3 [The designer] told the developer that [they] won.")))[2:]
    assert document.choices[0].groups == ("pro", "type1")


BAD = {
    "no number": (
        "[The developer] met the designer and [she] left.",
        r"a line of WinoBias is a number and a sentence, got",
    ),
    "no pronoun": (
        "3 [The developer] met the designer.",
        r"brackets mark one candidate and at least one pronoun, got 1 and 0",
    ),
    "no candidate": ("3 The developer met the designer and [she] left.", r"brackets mark .*, got 0 and 1"),
    "two candidates": ("3 [The developer] met [the designer] and [she] left.", r"brackets mark .*, got 2 and 1"),
    "an open bracket": ("3 [The developer met the designer and [she] left.", r"every bracket that opens closes again"),
    "a closed bracket": ("3 [The developer] met the designer and she] left.", r"every bracket that opens closes again"),
    "no other": (
        "3 [The developer] met a friend and [she] left.",
        r"expected one occupation beside 'The developer' .*, found none",
    ),
    "two others": (
        "3 [The developer] met the designer, a cook and [her].",
        r"expected one occupation beside 'The developer' .*, found 'the designer', 'a cook'",
    ),
}
COOK = "4 [The cook] met the designer and [he] left."


@pytest.mark.parametrize("case", BAD)
def test_a_bad_line_is_named_and_can_be_left_out(file, case):
    bad, message = BAD[case]
    path, errors = file(*PAIR, bad, COOK), []
    with pytest.raises(CorpusError, match=rf"{re.escape(PRO)}, line 3: {message}") as refused:
        list(read_winobias(path))
    assert str(refused.value).endswith(".")
    assert [document.id for document in read_winobias(path, on_bad=errors.append)] == [f"{PRO}:{n}" for n in (1, 2, 4)]
    assert [str(error) for error in errors] == [str(refused.value)]


@pytest.mark.parametrize("lines", [[], ["", "1 Only [one]."]])
def test_a_file_without_a_line_that_can_be_read_is_refused(file, lines):
    with pytest.raises(CorpusError, match="expected lines of WinoBias, found none that can be read"):
        list(read_winobias(file(*lines), on_bad=lambda error: None))


def test_a_missing_file_is_refused_at_once(tmp_path):
    with pytest.raises(CorpusError, match="there is no such file"):
        read_winobias(tmp_path / "no.dev")


@pytest.mark.parametrize(("kind", "lines", "choices"), [("type1", 396, 396 + 9), ("type2", 395, 395 + 6)])
@pytest.mark.parametrize("stereotype", ["pro", "anti"])
def test_nearly_all_lines_of_the_data_are_read(data_folder, stereotype, kind, lines, choices):
    """The one that is not, in both files of type 2, names a manager beside the developer and the cleaner."""
    path = data_folder / f"coref/winobias/{stereotype}_stereotyped_{kind}.txt.dev"
    errors = []
    documents = list(read_winobias(path, on_bad=errors.append))
    assert len(documents) == lines
    assert sum(len(document.choices) for document in documents) == choices
    assert {choice.groups[:2] for document in documents for choice in document.choices} == {(stereotype, kind)}
    assert [str(error).partition(", ")[2][:7] for error in errors] == ["line 72"] * (396 - lines)


def test_the_other_candidate_is_the_right_one_of_the_line_that_goes_with_it(data_folder):
    """The data come in pairs of lines, one for each of two people; who is marked in one is unmarked in the other."""
    path = data_folder / "coref/winobias/pro_stereotyped_type1.txt.dev"
    people = [
        {candidate.is_right: names(document, candidate) for candidate in document.choices[0].candidates}
        for document in read_winobias(path)
    ]
    agree = sum(
        first[True] == second[False] and first[False] == second[True]
        for first, second in zip(people[::2], people[1::2], strict=True)
    )
    assert agree == len(people) // 2


def names(document, stretch):
    return " ".join(document.sentences[0].words[stretch.start : stretch.stop]).lower().removeprefix("the ")
