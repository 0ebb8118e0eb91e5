import importlib
import importlib.metadata
import re
from dataclasses import dataclass, field

import pytest

from headlens.corpora import parsed
from headlens.corpora.parsed import read_parsed, silver_note
from headlens.documents import ROOT, Document
from headlens.errors import CorpusError

TEXT = "The  dog barked. It\tran!\n\n A cat?\n"


@pytest.fixture
def file(tmp_path):
    def write(text=TEXT):
        (tmp_path / "a.txt").write_text(text, encoding="utf-8")
        return tmp_path / "a.txt"

    return write


@pytest.fixture(autouse=True)
def _nothing_is_remembered():
    parsed._loaded.cache_clear()


@pytest.fixture
def spacy():
    return pytest.importorskip("spacy", reason="spaCy is not installed")


# ----------------------------------------- a stand-in with the interface of spaCy that is used, where spaCy is missing


@dataclass
class Token:
    i: int
    idx: int
    text: str
    pos_: str = ""
    lemma_: str = ""
    dep_: str = ""
    head: "Token" = None

    @property
    def is_space(self):
        return self.text.isspace()


@dataclass
class Doc:
    sents: list
    has_dependencies: bool = True

    def has_annotation(self, name):
        return name == "DEP" and self.has_dependencies


@dataclass
class Pipeline:
    """Every word depends on the word before it, or on the white space before it; a stop ends a sentence."""

    has_parser: bool = True
    has_tagger: bool = True
    is_confused: bool = False  # puts heads into the sentence before
    longest: int = 100
    meta: dict = field(default_factory=lambda: {"lang": "xx", "name": "stand_in", "version": "1.2"})
    pipe_names: tuple = ("tagger",)

    def __call__(self, text):
        if len(text) > self.longest:
            raise ValueError(f"[E088] Text of length {len(text)} exceeds maximum of {self.longest}.\nMore.")
        tokens, sents, current = [], [], []
        for word, start in pieces(text):
            token = Token(len(tokens), start, word)
            token.head = tokens[-1] if current or (self.is_confused and tokens) else token
            token.dep_ = "nsubjPass" if current else "ROOT"
            if self.has_tagger:
                token.pos_, token.lemma_ = "SPACE" if word.isspace() else "X", word.lower()
            tokens.append(token)
            current.append(token)
            if word in ".!?":
                sents.append(current)
                current = []
        return Doc(sents + [current] * bool(current), self.has_parser)


def pieces(text):
    """As spaCy does: one space between words belongs to the word before it, more are a token."""
    for match in re.finditer(r"\w+|[^\w\s]|(?<=\s)\s+|^\s+|(?! )\s+", text):
        yield match[0], match.start()


# ----------------------------------------------------------------------------------------------------- what is read


def test_sentences_words_and_annotation_are_those_of_the_pipeline(file):
    first, second = read_parsed(file(), parser=Pipeline())
    dog, it = first.sentences
    assert (dog.words, it.words) == (("The", "dog", "barked", "."), ("It", "ran", "!"))
    assert (dog.text, it.text) == ("The  dog barked.", "It\tran!")
    assert dog.spans == ((0, 3), (5, 8), (9, 15), (15, 16))
    assert it.spans == ((0, 2), (3, 6), (6, 7))
    assert dog.upos == ("X",) * 4
    assert dog.lemmas == ("the", "dog", "barked", ".")
    assert dog.relations == ("root", "nsubjpass", "nsubjpass", "nsubjpass")
    assert (first.id, second.id, dog.id) == ("a.txt:1", "a.txt:3", "a.txt:1")
    assert (first.text, second.text) == ("The  dog barked. It\tran!", "A cat?")
    assert first.mentions is None


def test_a_head_that_is_white_space_is_passed_over(file):
    """Between "The" and "dog" stands a token of white space, which "dog" depends on."""
    (document, _) = read_parsed(file(), parser=Pipeline())
    assert document.sentences[0].heads == (ROOT, 0, 1, 2)
    assert document.sentences[1].heads == (ROOT, 0, 1)


def test_a_sentence_of_white_space_alone_is_none_and_a_root_of_white_space_is_no_head():
    class Spaced(Pipeline):
        def __call__(self, text):
            space, word = Token(0, 0, "  ", dep_="ROOT"), Token(2, 3, "b", dep_="dep")
            end = Token(1, 2, "\n")
            space.head, word.head, end.head = space, space, end
            return Doc([[space, word], [end]])

    document = parsed._parsed(Spaced(), Document("   b"))
    (sentence,) = document.sentences
    assert (sentence.words, sentence.heads, sentence.spans) == (("b",), (ROOT,), ((0, 1),))


@pytest.mark.parametrize(
    ("text", "joined"), [("Yes.No.", "Yes.No."), ("Yes. No.", "Yes. No."), ("Yes.  No.", "Yes. No.")]
)
def test_sentences_are_joined_as_they_stood(file, text, joined):
    (document,) = read_parsed(file(text), parser=Pipeline())
    assert [sentence.text for sentence in document.sentences] == ["Yes.", "No."]
    assert document.text == joined


def test_what_the_pipeline_does_not_annotate_is_none(file):
    sentence = next(read_parsed(file(), parser=Pipeline(has_tagger=False))).sentences[0]
    assert (sentence.upos, sentence.lemmas) == (None, None)
    assert sentence.heads is not None


def test_paragraphs_are_documents_too(file):
    documents = list(read_parsed(file("A cat\nran.\n\nIt hid."), unit="paragraph", parser=Pipeline()))
    assert [document.text for document in documents] == ["A cat ran.", "It hid."]


# ---------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("on_bad", [None, lambda error: None])
def test_a_pipeline_without_a_parser_is_refused(file, on_bad):
    with pytest.raises(
        CorpusError, match="pipeline xx_stand_in gives it no dependencies, it is made of tagger; name one"
    ):
        list(read_parsed(file(), parser=Pipeline(has_parser=False), on_bad=on_bad))


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        (
            Pipeline(longest=6),
            r"a\.txt:1: spaCy cannot parse it \(\[E088\] Text of length 24 exceeds maximum of 6\); use",
        ),
        (Pipeline(is_confused=True), r"a\.txt:1: the parser gives 'It' a head outside of its sentence"),
    ],
)
def test_a_text_that_cannot_be_parsed_is_named_and_can_be_left_out(file, pipeline, message, monkeypatch):
    monkeypatch.setattr(parsed, "_PROBE", 6)
    errors = []
    with pytest.raises(CorpusError, match=message):
        list(read_parsed(file(), parser=pipeline))
    assert [document.id for document in read_parsed(file(), parser=pipeline, on_bad=errors.append)] == ["a.txt:3"]
    assert len(errors) == 1


def test_a_file_without_a_text_that_can_be_parsed_is_refused(file, monkeypatch):
    monkeypatch.setattr(parsed, "_PROBE", 1)
    with pytest.raises(CorpusError, match=r"a\.txt: no text of it can be parsed"):
        list(read_parsed(file(), parser=Pipeline(longest=1), on_bad=lambda error: None))


def test_a_missing_file_is_refused_at_once(tmp_path):
    with pytest.raises(CorpusError, match="there is no such file"):
        read_parsed(tmp_path / "no.txt", parser=Pipeline())


def test_without_spacy_the_way_to_install_it_is_told(file, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(
        CorpusError,
        match=r"needs spaCy \(No module named 'spacy'\); install it with: pip install 'headlens\[parse\]'\.",
    ):
        read_parsed(file())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "en_core_web_sm",
            r"'en_core_web_sm' cannot be loaded \(No such thing\); .*python -m spacy download en_core_web_sm\.$",
        ),
        (
            "some/folder",
            r"some/folder: no spaCy pipeline can be loaded from there \(No such thing\); name the folder of one\.$",
        ),
    ],
)
def test_without_the_pipeline_the_way_to_get_it_is_told(file, monkeypatch, name, message):
    class Empty:
        @staticmethod
        def load(name):
            raise OSError("No such thing.\nMore.")

    monkeypatch.setattr(importlib, "import_module", lambda name: Empty)
    with pytest.raises(CorpusError, match=message):
        read_parsed(file(), parser=name)


def test_a_pipeline_is_loaded_once_for_the_note_and_the_reader(file, monkeypatch):
    names = []

    class Full:
        @staticmethod
        def load(name):
            names.append(name)
            return Pipeline()

    monkeypatch.setattr(importlib, "import_module", lambda name: Full)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: {"spacy": "3.9"}[name])
    assert len(list(read_parsed(file(), parser="xx_stand_in"))) == 2
    assert silver_note("xx_stand_in").startswith(
        "Parsed by spaCy 3.9 with xx_stand_in 1.2: a silver annotation, made by a"
    )
    assert names == ["xx_stand_in"]


# ------------------------------------------------------------------------------------------------------- spaCy itself


@pytest.fixture
def chained(spacy):
    """Blank English, and a part that hangs every token on the one before it and ends sentences at full stops."""
    from spacy.language import Language

    @Language.component("headlens_test_chain")
    def chain(doc):
        for token in doc:
            token.is_sent_start = token.i == 0 or doc[token.i - 1].text == "."
        for token in doc:
            token.head = token if token.is_sent_start else doc[token.i - 1]
            token.dep_ = "ROOT" if token.is_sent_start else "dobj"
            token.pos_ = "X"
        return doc

    pipeline = spacy.blank("en")
    pipeline.add_pipe("headlens_test_chain")
    return pipeline


def test_spacy_parses(file, chained):
    (document,) = read_parsed(file("The  dog's barked. It\tran"), parser=chained)
    dog, it = document.sentences
    assert dog.words == ("The", "dog", "'s", "barked", ".")
    assert dog.spans == ((0, 3), (5, 8), (8, 10), (11, 17), (17, 18))
    assert dog.heads == (ROOT, 0, 1, 2, 3)
    assert dog.relations == ("root", *["dobj"] * 4)
    assert (dog.upos, dog.lemmas) == (("X",) * 5, None)
    assert (it.words, it.heads) == (("It", "ran"), (ROOT, 0))
    assert document.text == "The  dog's barked. It\tran"


def test_spacy_without_a_parser_is_refused(file, spacy):
    with pytest.raises(
        CorpusError, match="the spaCy pipeline en_pipeline gives it no dependencies, it is made of nothing"
    ):
        list(read_parsed(file(), parser=spacy.blank("en")))


def test_a_text_that_is_too_long_for_spacy_is_named(file, chained):
    chained.max_length = 10
    with pytest.raises(CorpusError, match=r"a\.txt:1: spaCy cannot parse it \(\[E088\]"):
        list(read_parsed(file("A dog barked."), parser=chained))


def test_spacy_has_no_such_pipeline(file, spacy):
    with pytest.raises(CorpusError, match=r"'xx_no_such' cannot be loaded .* python -m spacy download xx_no_such"):
        read_parsed(file(), parser="xx_no_such")


def test_the_note_names_what_made_the_parses(chained, spacy):
    assert silver_note(chained).startswith(f"Parsed by spaCy {spacy.__version__} with en_pipeline 0.0.0: a silver")
