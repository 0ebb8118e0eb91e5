"""Metrics in words: what attends to what, for headings, tables and sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

ALL = "ALL"
SUBJECT_VERB = "subject_verb"
SYNTAX = (SUBJECT_VERB, "syntax")  # families of metrics

# What Universal Dependencies calls the dependent of a relation and the word that it hangs on
_RELATIONS: dict[str, tuple[str, str]] = {
    ALL: ("dependent", "syntactic head"),
    "acl": ("clause about a noun", "noun"),
    "advcl": ("adverbial clause", "main predicate"),
    "advmod": ("adverb", "modified word"),
    "amod": ("adjective", "noun"),
    "appos": ("apposition", "noun"),
    "aux": ("auxiliary", "main verb"),
    "case": ("adposition or case marker", "noun"),
    "cc": ("conjunction", "conjunct"),
    "ccomp": ("complement clause", "verb"),
    "clf": ("classifier", "number or determiner"),
    "compound": ("part of a compound", "main word"),
    "conj": ("later conjunct", "first conjunct"),
    "cop": ("copula", "predicate"),
    "csubj": ("clausal subject", "predicate"),
    "det": ("determiner", "noun"),
    "discourse": ("interjection or particle", "main predicate"),
    "dislocated": ("dislocated element", "main predicate"),
    "expl": ("expletive", "predicate"),
    "fixed": ("later word of a fixed expression", "first word"),
    "flat": ("later word of a name", "first word"),
    "goeswith": ("later part of a split word", "first part"),
    "iobj": ("indirect object", "verb"),
    "list": ("later item of a list", "first item"),
    "mark": ("subordinating conjunction", "verb"),
    "nmod": ("nominal modifier", "noun"),
    "nsubj": ("subject", "predicate"),
    "nummod": ("number", "noun"),
    "obj": ("direct object", "verb"),
    "obl": ("oblique", "verb"),
    "orphan": ("orphan of an ellipsis", "promoted word"),
    "parataxis": ("parenthesis", "main predicate"),
    "reparandum": ("corrected slip", "repair"),
    "vocative": ("vocative", "main predicate"),
    "xcomp": ("open complement", "verb"),
}

_MENTIONS = {
    "all": ("mention", "mentions"),
    "pronoun": ("pronoun", "pronouns"),
    "proper": ("proper name", "proper names"),
    "nominal": ("common noun", "common nouns"),
    "pronoun_noun": ("pronoun with no pronoun as antecedent", "pronouns with no pronoun as antecedent"),
}
_GROUPS = {
    "all": "All pronouns",
    "pro": "Pro-stereotypical",
    "anti": "Anti-stereotypical",
    "feminine": "Feminine pronouns",
    "masculine": "Masculine pronouns",
    "winograd": "Winograd schemas",
    "type1": "Type 1 sentences",
    "type2": "Type 2 sentences",
}
_UNMATCHED = "_unmatched"
_EARLIER = "earlier mention of the same entity"


@dataclass(frozen=True)
class RivalWords:
    """A baseline in words."""

    title: str  # of its column
    phrase: str  # in a sentence, before its accuracy
    meaning: str


BASELINES: dict[str, RivalWords] = {
    "constant offset": RivalWords(
        "Constant offset", "best constant offset", "always the word so many places away, the best of −10 to +10"
    ),
    "part of speech": RivalWords(
        "Part of speech",
        "a rule that knows parts of speech",
        "always the first, second or third word of one part of speech on one side, the best of them; it knows the "
        "annotation, which no head is told, so heads need not be above it",
    ),
    "nearest mention": RivalWords("Nearest mention", "nearest mention", "the mention before"),
    "same lemma, else nearest": RivalWords(
        "Same lemma, else nearest",
        "same lemma (else nearest)",
        "the last mention before whose lemma is the same, else the mention before",
    ),
    "first candidate": RivalWords(
        "First candidate", "first candidate", "always the candidate that comes first in the text"
    ),
    "nearest candidate": RivalWords(
        "Nearest candidate", "nearest candidate", "always the candidate nearest to the pronoun"
    ),
    "profile": RivalWords(
        "Own profile",
        "its own position profile",
        "a head that pays to every distance what this head pays to it on average, whatever the words are",
    ),
}
"""Baselines in the order of their columns; others stand before the profile under their own names."""


class Way(NamedTuple):
    """From what to what attention goes, each a noun without its article."""

    source: str
    target: str
    is_asked_of_target: bool = False  # which word attends to it most? Else the source is asked what it attends to most

    @property
    def arrow(self) -> str:
        return f"{self.source} → {self.target}"

    @property
    def sentence(self) -> str:
        """`from a direct object to its verb`, or `to a direct object from its verb more than from any other word`."""
        if self.is_asked_of_target:
            return f"to {_a(self.target)} from its {self.source} more than from any other word"
        article = "an" if self.target == _EARLIER else "its"
        return f"from {_a(self.source)} to {article} {self.target}"


def way_of(metric: str) -> Way:
    """What a metric of syntax, coreference or pronouns looks at; a relation that is not known goes by its own name."""
    stem, _, kind = metric.partition("[")
    kind = kind.rstrip("]")
    if stem == "coref":
        return Way(_mention(kind, 0), _EARLIER)
    if stem == "choice":
        return Way("pronoun" if kind == "all" else f"pronoun ({kind.replace('_', ' ')})", "referent")
    if stem.startswith(SUBJECT_VERB):
        dependent, head = "subject", "verb"
    else:
        dependent, head = _dependency(kind)
    if _is_to_head(stem):
        return Way(dependent, head)
    # a verb may have several dependents and pays most to one of them, so its dependents are asked
    return Way(head, dependent, is_asked_of_target=not stem.startswith(SUBJECT_VERB))


def title_of(relation: str) -> str:
    """Name of a relation, as in RelationEvidence, or of a metric of coreference or pronouns, for the first column."""
    stem, bracket, kind = relation.partition("[")
    kind = kind.rstrip("]")
    if relation == SUBJECT_VERB:
        return "Subject and verb"
    if relation == ALL:
        return "All relations"
    if bracket and stem == "coref":
        return capital(_mention(kind, 1))
    if bracket and stem == "choice":
        return _GROUPS.get(kind, capital(kind.replace("_", " ")))
    return capital(_RELATIONS[relation][0]) if relation in _RELATIONS else relation


def rival_words(name: str) -> RivalWords:
    return BASELINES.get(name, RivalWords(name[:1].upper() + name[1:], name, ""))


def family_of(metric: str) -> str:
    return metric.partition("[")[0].partition(".")[0]


def is_subtype(relation: str) -> bool:
    return ":" in relation


def is_part_of(part: str, whole: str) -> bool:
    """Whether all decisions of one relation, as in RelationEvidence, are decisions of another one, too, by its name."""
    (stem, bracket, kind), (other, _, around) = part.rstrip("]").partition("["), whole.rstrip("]").partition("[")
    if part == whole or not bracket:
        return part != whole and (whole == ALL or part.partition(":")[0] == whole)
    if stem != other or (around.endswith(_UNMATCHED) and not kind.endswith(_UNMATCHED)):
        return False
    inner, outer = kind.removesuffix(_UNMATCHED), around.removesuffix(_UNMATCHED)
    return outer == "all" or inner == outer or inner.startswith(f"{outer}_")


def _dependency(relation: str) -> tuple[str, str]:
    base = relation.partition(":")[0]
    if base not in _RELATIONS:
        return f"dependent ({relation})", "syntactic head"
    dependent, head = _RELATIONS[base]
    if relation == ALL:
        return dependent, head
    return (f"{dependent} ({relation})" if is_subtype(relation) else dependent), head


def _is_to_head(stem: str) -> bool:
    return stem.endswith((".dep_to_head", ".subject_to_verb"))


def _mention(kind: str, number: int) -> str:
    """Singular (0) or plural (1)."""
    base = kind.removesuffix(_UNMATCHED)
    words = _MENTIONS[base][number] if base in _MENTIONS else base.replace("_", " ")
    return f"{words} whose lemma no candidate shares" if kind.endswith(_UNMATCHED) else words


def _a(noun: str) -> str:
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
