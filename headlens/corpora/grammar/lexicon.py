"""The words of the grammar, and their forms. No torch here.

Nothing is meant to be said about the world: words were chosen to be short, common, and without two readings (no "her"
that is also a noun, no plural that is also a verb).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Gender = Literal["feminine", "masculine", "neuter"]
Number = Literal["singular", "plural"]
Case = Literal["nominative", "accusative", "possessive", "reflexive"]
Agreement = tuple[Gender, Number]  # what a pronoun takes from what it refers to; gender does not show in the plural


@dataclass(frozen=True)
class Noun:
    singular: str
    plural: str
    genders: tuple[Gender, ...]  # several: the noun does not tell
    is_animate: bool

    def form(self, number: Number) -> str:
        return self.singular if number == "singular" else self.plural


@dataclass(frozen=True)
class Name:
    form: str
    gender: Gender


@dataclass(frozen=True)
class Verb:
    base: str
    third: str
    past: str
    participle: str

    def present(self, number: Number) -> str:
        return self.third if number == "singular" else self.base


_IRREGULAR_PLURALS = {"man": "men", "woman": "women", "mouse": "mice", "goose": "geese", "knife": "knives"}
_IRREGULAR_VERBS = {
    "see": "saw seen",
    "know": "knew known",
    "hear": "heard heard",
    "find": "found found",
    "lose": "lost lost",
    "break": "broke broken",
    "buy": "bought bought",
    "sell": "sold sold",
    "build": "built built",
    "hold": "held held",
    "take": "took taken",
    "steal": "stole stolen",
    "draw": "drew drawn",
    "sleep": "slept slept",
    "sing": "sang sung",
    "swim": "swam swum",
    "fall": "fell fallen",
    "stand": "stood stood",
    "give": "gave given",
    "lend": "lent lent",
    "teach": "taught taught",
    "send": "sent sent",
    "run": "ran run",
    "kneel": "knelt knelt",
    "hide": "hid hidden",
    "say": "said said",
    "think": "thought thought",
}


def _sibilant(word: str) -> bool:
    return word.endswith(("s", "x", "z", "ch", "sh"))


def _with_s(word: str) -> str:
    if _sibilant(word):
        return f"{word}es"
    return f"{word[:-1]}ies" if word.endswith("y") and word[-2] not in "aeiou" else f"{word}s"


def _nouns(words: str, *genders: Gender, is_animate: bool) -> tuple[Noun, ...]:
    return tuple(Noun(word, _IRREGULAR_PLURALS.get(word, _with_s(word)), genders, is_animate) for word in words.split())


def _verbs(words: str) -> tuple[Verb, ...]:
    return tuple(_verb(word) for word in words.split())


def _verb(base: str) -> Verb:
    if base in _IRREGULAR_VERBS:
        past, participle = _IRREGULAR_VERBS[base].split()
        return Verb(base, _with_s(base), past, participle)
    stem = f"{base[:-1]}i" if base.endswith("y") and base[-2] not in "aeiou" else base
    past = f"{stem}d" if stem.endswith("e") else f"{stem}ed"
    return Verb(base, _with_s(base), past, past)


NAMES = (
    *(Name(name, "feminine") for name in "Anna Maria Clara Julia Emma Nora Laura Sofia Helen Alice Ruth Eva".split()),
    *(Name(name, "feminine") for name in "Diana Martha Lucy Iris Grace Sarah Lena Olga".split()),
    *(Name(name, "masculine") for name in "Peter Paul Martin Oscar Felix David Simon Jacob Henry Victor Leo".split()),
    *(Name(name, "masculine") for name in "Adam Thomas Walter Hugo Boris Frank George Ivan Karl".split()),
)
WOMEN = _nouns(
    "woman girl queen sister aunt daughter princess actress waitress lady bride nun", "feminine", is_animate=True
)
MEN = _nouns("man boy king brother uncle son prince actor waiter monk wizard groom", "masculine", is_animate=True)
PEOPLE = _nouns(
    "doctor teacher farmer pilot baker singer lawyer painter neighbor guest student friend soldier writer dancer "
    "hunter tailor clerk",
    "feminine",
    "masculine",
    is_animate=True,
)
ANIMALS = _nouns(
    "dog cat horse rabbit bird mouse goose lion bear fox duck goat donkey monkey turtle snake",
    "neuter",
    is_animate=True,
)
THINGS = _nouns(
    "book letter box table chair lamp bottle apple coat ring key map picture basket knife drum clock hat ladder bell "
    "flower stone flag pencil brush bucket candle carpet cushion guitar helmet jar mirror necklace pillow violin",
    "neuter",
    is_animate=False,
)
PLACES = _nouns(
    "house garden river bridge forest school market tower island church station hill lake castle prison library harbor "
    "palace",
    "neuter",
    is_animate=False,
)

INTRANSITIVE = _verbs(
    "sleep sing laugh dance swim fall wait smile arrive stand cry run jump kneel whisper disappear work rest"
)
TO_ANIMATE = _verbs(
    "see help follow call visit admire thank know hear warn love teach chase trust miss greet hate invite"
)
TO_THINGS = _verbs(
    "open clean buy sell paint break find lose build hold take steal draw repair touch need wash push hide carry"
)
REFLEXIVE = _verbs("see help admire know hear love")  # of those that take animate objects
GIVING = _verbs("give show lend send offer")
SAYING = _verbs("say think believe explain")
WANTING = _verbs("want try learn")

ADJECTIVES = tuple(
    "old young small tall happy sad quiet clever kind brave angry tired strange pretty busy poor rich famous lonely "
    "gentle proud honest".split()
)
OF_THINGS = tuple("old small large heavy new red green blue white broken empty strange pretty expensive".split())
WITH_COMPLEMENT = {"afraid": "of", "proud": "of", "angry": "at", "jealous": "of", "happy": "with"}
INTENSIFIERS = ("very", "too", "so")
COMPOUNDS = tuple("silver glass paper winter summer kitchen".split())
ADVERBS = tuple(
    "often never always sometimes usually quickly slowly quietly secretly suddenly gladly rarely calmly proudly "
    "loudly seldom".split()
)
ADVERBS_AFTER = tuple("today again here outside alone well".split())

MODALS = tuple("will can must may should".split())
OF_NOUNS = tuple("of near with from behind beside".split())  # prepositions between nouns
OF_VERBS = tuple("in near behind at under beside".split())  # between verbs and places
SUBORDINATORS = tuple("because when while although if".split())
SINGULAR_DETERMINERS = tuple("the a this".split())
PLURAL_DETERMINERS = tuple("the some these many".split())
NUMERALS = tuple("two three four five".split())
BE = {"present": ("is", "are"), "past": ("was", "were")}
HAVE = ("has", "have")
DO = ("does", "do")
PUNCTUATION = (".", "!", ",")


def _cases(forms: str) -> dict[Case, str]:
    return dict(zip(get_args(Case), forms.split(), strict=True))


PRONOUNS: dict[Agreement, dict[Case, str]] = {
    ("feminine", "singular"): _cases("she her her herself"),
    ("masculine", "singular"): _cases("he him his himself"),
    ("neuter", "singular"): _cases("it it its itself"),
    ("neuter", "plural"): _cases("they them their themselves"),
}


def pronoun(agreement: Agreement, case: Case) -> str:
    gender, number = agreement
    return PRONOUNS[gender if number == "singular" else "neuter", number][case]


_VERBS = (*INTRANSITIVE, *TO_ANIMATE, *TO_THINGS, *GIVING, *SAYING, *WANTING)
_CLOSED = (
    *(*MODALS, *OF_NOUNS, *OF_VERBS, *WITH_COMPLEMENT.values(), *SUBORDINATORS, *SINGULAR_DETERMINERS),
    *(*PLURAL_DETERMINERS, *NUMERALS, *BE["present"], *BE["past"], *HAVE, *DO, *INTENSIFIERS),
    *("an", "and", "be", "by", "not", "that", "to", "who", "'s"),
)
WORD_FORMS = tuple(
    dict.fromkeys(
        [
            *_CLOSED,
            *(form for cases in PRONOUNS.values() for form in cases.values()),
            *(
                form
                for noun in (*WOMEN, *MEN, *PEOPLE, *ANIMALS, *THINGS, *PLACES)
                for form in (noun.singular, noun.plural)
            ),
            *(form for verb in _VERBS for form in (verb.base, verb.third, verb.past, verb.participle)),
            *(*ADJECTIVES, *OF_THINGS, *WITH_COMPLEMENT, *ADVERBS, *ADVERBS_AFTER, *COMPOUNDS),
            *(name.form.lower() for name in NAMES),
        ]
    )
)
