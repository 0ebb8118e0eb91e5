import pytest

from headlens.corpora.surface_words import surface_words, words_within
from headlens.errors import CorpusError

CASES = {
    "full stop": ("The dog barked.", "The|dog|barked|."),
    "inner apostrophe": ("It doesn't, o’clock", "It|doesn't|,|o’clock"),
    "outer apostrophes": ("'twas the dogs' 'ball'", "'|twas|the|dogs|'|'|ball|'"),
    "inner hyphen": ("her mother-in-law -- well-", "her|mother-in-law|-|-|well|-"),
    "two in a row end a word": ("a--b c''d", "a|-|-|b|c|'|'|d"),
    "a space ends a word": ("a- b a -b", "a|-|b|a|-|b"),
    "digits": ("US$10 3.5 x2", "US|$|10|3|.|5|x2"),
    "underscore": ("a_b", "a|_|b"),
    "white space": ("\ta\u00a0b\u3000c  ", "a|b|c"),
    "Han and kana": ("奖杯，太大abc了 カ゚ン", "奖|杯|，|太|大|abc|了|カ゚|ン"),
    "Hangul": ("개가 짖었다.", "개가|짖었다|."),
    "combining accent": ("cafe\u0301s e\u0301-t\u0301a .\u0301", "cafe\u0301s|e\u0301-t\u0301a|.\u0301"),
    "vowel signs": ("हिन्दी में", "हिन्दी|में"),
    "joiner": ("می\u200cخواهم", "می\u200cخواهم"),
    "emoji with a variation": ("hi❤\ufe0f!", "hi|❤\ufe0f|!"),
    "family of joined emoji": ("a 👩\u200d👩\u200d👧!", "a|👩\u200d👩\u200d👧|!"),
    "emoji side by side": ("👩👧", "👩|👧"),
    "skin tone": ("👍\U0001f3fdok", "👍\U0001f3fd|ok"),
    "flags": ("🇫🇷🇩🇪", "🇫🇷|🇩🇪"),
    "joiner at the end of an emoji": ("👩\u200d a", "👩\u200d|a"),
    "mark without a base": ("\u0301a", "\u0301|a"),
}


@pytest.mark.parametrize("case", CASES)
def test_words_follow_the_rule(case):
    text, words = CASES[case]
    assert surface_words(text).words == tuple(words.split("|"))


def test_spans_are_the_characters_of_the_words():
    sentence = surface_words(" It doesn't,  今天\n", id="file:1")
    assert sentence.spans == ((1, 3), (4, 11), (11, 12), (14, 15), (15, 16))
    assert sentence.text == " It doesn't,  今天\n"
    assert sentence.id == "file:1"
    assert (sentence.upos, sentence.lemmas, sentence.heads, sentence.relations) == (None,) * 4


@pytest.mark.parametrize(
    ("borders", "words"),
    [
        ([], "Smith's|well-known"),
        ([0, 18], "Smith's|well-known"),
        ([5], "Smith|'|s|well-known"),
        ([10, 2], "Sm|ith's|we|ll-known"),
        ([13, 13], "Smith's|well|-|known"),
        ([12], "Smith's|well|-|known"),
        ([7], "Smith's|well-known"),
    ],
)
def test_a_border_ends_a_word_and_both_sides_are_cut_by_themselves(borders, words):
    text = "Smith's well-known"
    assert surface_words(text, borders=borders).words == tuple(words.split("|"))


@pytest.mark.parametrize("border", [-1, 4])
def test_a_border_outside_of_the_text_is_refused(border):
    with pytest.raises(CorpusError, match=r"file:1: words cannot end at .* in a text of 3 characters"):
        surface_words("abc", borders=[border], id="file:1")


@pytest.mark.parametrize("text", ["", " \n"])
def test_a_text_without_words_is_refused(text):
    with pytest.raises(CorpusError, match="file:1: a sentence needs at least one word"):
        surface_words(text, id="file:1")


@pytest.mark.parametrize(
    ("start", "stop", "words"),
    [
        (0, 3, (0, 1)),
        (0, 7, (0, 2)),
        (4, 12, (1, 3)),
        (3, 8, (1, 2)),
        (3, 13, (1, 3)),
        (0, 13, (0, 3)),
        (1, 12, (1, 3)),
    ],
)
def test_words_within_a_stretch_of_characters(start, stop, words):
    assert words_within(surface_words("The dog runs."[:12] + " "), start, stop) == words


def test_a_stretch_without_a_whole_word_is_refused():
    with pytest.raises(CorpusError, match="file:1: no word stands on characters 1 to 4"):
        words_within(surface_words("The dog", id="file:1"), 1, 4)
