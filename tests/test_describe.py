"""What a corpus holds, counted by hand."""

from __future__ import annotations

import json

from headlens.corpora import Corpus, read_corpus, texts
from headlens.corpora.describe import Choices, Coreference, Relation, describe
from headlens.documents import Candidate, Choice, Document, Mention, Sentence


def sentence(words: str, relations: str | None = None, upos: str | None = None, **options) -> Sentence:
    forms = tuple(words.split())
    starts = [sum(len(form) + 1 for form in forms[:number]) for number in range(len(forms))]
    return Sentence(
        forms,
        words,
        tuple((start, start + len(form)) for start, form in zip(starts, forms, strict=True)),
        upos=None if upos is None else tuple(upos.split()),
        relations=None if relations is None else tuple(relations.split()),
        **options,
    )


# "im" is two words, and so is "zum"; the empty word stands on nothing
SHARED = Sentence(
    ("in", "dem", "Haus", "zu", "dem", "", ""), "im Haus zum", ((0, 2), (0, 2), (3, 7), *[(8, 11)] * 2, *[(11, 11)] * 2)
)
FIRST = Document.of_sentences(
    [sentence("a b c", "nsubj root nsubj:pass", "X X Y"), sentence("d", "root", "Z"), SHARED],
    "first",
    mentions=[Mention(0, 1, "1"), Mention(1, 2, "1"), Mention(2, 3, "2")],
)
SECOND = Document.of_sentences(
    [sentence("e f", "aux:pass aux:pass:x", "Y Z")],
    "second",
    mentions=[Mention(0, 1, "1")],
    choices=[
        Choice(0, 1, (Candidate(1, 2, True),), ("pro", "type1")),
        Choice(1, 2, (Candidate(0, 1, False),), ("pro",)),
    ],
)
THIRD = Document.of_sentences([sentence("g")], "third")

FOUND = describe(
    Corpus(
        [FIRST, SECOND, THIRD],
        [{"kind": "gum", "name": "a.conllu", "sha256": "0", "bytes": 1}],
        skipped=2,
        skipped_examples=["one", "two"],
        notes=["a note"],
        unit_of_documents="document",
    )
)


def test_documents_sentences_and_words():
    assert (FOUND.documents, FOUND.sentences, FOUND.words, FOUND.single_word_sentences) == (3, 5, 14, 2)
    assert (FOUND.longest_document, FOUND.longest_sentence) == (11, 7)
    assert FOUND.characters == len("a b c d im Haus zum") + len("e f") + len("g")


def test_characters_that_several_words_share():
    assert FOUND.shared_spans == 2


def test_subtypes_stand_under_their_relation():
    assert list((FOUND.relations or {}).items()) == [
        ("aux", Relation(2, {"pass": 1, "pass:x": 1})),
        ("nsubj", Relation(2, {"pass": 1})),
        ("root", Relation(2, {})),
    ]


def test_parts_of_speech_come_the_largest_first():
    assert list((FOUND.upos or {}).items()) == [("X", 2), ("Y", 2), ("Z", 2)]
    found = describe(Corpus([Document.of_sentences([sentence("a b c", upos="Y X Y")], "d")]))
    assert list((found.upos or {}).items()) == [("Y", 2), ("X", 1)]


def test_entities_are_those_of_their_document():
    assert FOUND.coreference == Coreference(documents=2, mentions=4, entities=3, chains=1, singletons=2)


def test_choices_are_counted_by_group():
    assert FOUND.choices == Choices(count=2, without_right_one=1, groups={"pro": 2, "type1": 1})


def test_where_it_came_from_is_told():
    assert FOUND.sources == [{"kind": "gum", "name": "a.conllu", "sha256": "0", "bytes": 1}]
    assert (FOUND.skipped, FOUND.skipped_examples, FOUND.notes) == (2, ["one", "two"], ["a note"])
    assert FOUND.unit_of_documents == "document"


def test_plain_text_has_documents_and_characters():
    found = describe(Corpus(texts(["one", "three"])))
    assert (found.documents, found.characters) == (2, 8)
    assert (found.sentences, found.words, found.longest_document, found.longest_sentence) == (0, 0, 0, 0)
    assert (found.relations, found.upos, found.coreference, found.choices) == (None, None, None, None)


def test_no_mention_is_not_no_coreference():
    document = Document.of_sentences([sentence("a")], "d", mentions=[])
    assert describe(Corpus([document])).coreference == Coreference(1, 0, 0, 0, 0)


def test_a_description_is_plain_values():
    plain = json.loads(json.dumps(FOUND.to_dict()))
    assert plain["relations"]["nsubj"] == {"count": 2, "subtypes": {"pass": 1}}
    assert plain["coreference"]["chains"] == 1
    assert plain["choices"]["groups"] == {"pro": 2, "type1": 1}


# As stated of the file when it was cut
def test_gum_is_described_as_its_makers_do(data_folder):
    found = describe(read_corpus(f"gum:{data_folder / 'ud' / 'en_gum-ud-dev.conllu'}"))
    assert (found.documents, found.sentences, found.words) == (30, 1_575, 28_119)
    assert found.coreference == Coreference(30, 7_897, 3_940, 1_102, 2_838)
    relations = found.relations or {}
    assert len(relations) == 36
    with_subtypes = sum(len(of.subtypes) + (of.count > sum(of.subtypes.values())) for of in relations.values())
    assert with_subtypes == 51
    assert found.unit_of_documents == "document"
