"""Mentions of entities, as brackets in a column of a corpus tell them. No torch here."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from headlens.documents import Mention
from headlens.errors import CorpusError

ENTITY_FIELD = "GRP"  # tells which mentions are of one entity; of the other fields none is read

_BRACKET = re.compile(r"\((?P<open>[^()]+)(?P<whole>\))?|(?P<close>[^()]+)\)")
_PART = re.compile(r"\[\d+/\d+\]$")


@dataclass(frozen=True)
class Bracket:
    """Where a mention opens, closes, or does both."""

    entity: str
    opens: bool
    closes: bool


@dataclass
class Mentions:
    """The mentions of one document, out of its brackets in their order. Of nested mentions of one entity the inner one
    closes first."""

    _open: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    _closed: list[Mention] = field(default_factory=list)

    def open(self, entity: str, word: int, place: str) -> None:
        """A mention starts at a word of the document; `place` is for messages: "file, line 12"."""
        self._open.setdefault(entity, []).append((word, place))

    def close(self, entity: str, word: int, place: str) -> None:
        """A mention ends with a word of the document. Raises CorpusError where none is open."""
        starts = self._open.get(entity)
        if not starts:
            raise CorpusError(f"{place}: a mention of entity {entity} closes here and none is open; mend the brackets.")
        self._closed.append(Mention(starts.pop()[0], word + 1, entity))

    def finished(self) -> tuple[Mention, ...]:
        """All mentions, by where they start. Raises CorpusError where one is open still."""
        for entity, starts in self._open.items():
            if starts:
                raise CorpusError(
                    f"{starts[-1][1]}: the mention of entity {entity} that opens here does not close before its "
                    "document ends; mend the brackets."
                )
        return tuple(sorted(self._closed))


def field_of_entity(fields: str, place: str) -> int:
    """Which field of an opening bracket names the entity, by the value of `# global.Entity`: "GRP-etype-...".

    Raises CorpusError where none does.
    """
    names = fields.strip().split("-")
    if ENTITY_FIELD not in names:
        raise CorpusError(
            f"{place}: the fields of Entity in the manner of GUM include {ENTITY_FIELD}, got {fields.strip()!r}; "
            "read the file as conllu:FILE, without its mentions."
        )
    return names.index(ENTITY_FIELD)


def gum_brackets(value: str, entity_field: int, place: str) -> list[Bracket]:
    """The brackets of a value of Entity in MISC: "(175-time-giv:inact-nnnnn-cf5-1-coref)189)188)".

    An opening bracket has all fields, a closing one the entity only. Fields have no hyphen, comma or bracket of their
    own: GUM writes %2D, %2C, %28 and %29. Raises CorpusError for anything else, and for a part of a mention that is
    not continuous ("[1/2]"): a mention here is a stretch of words.
    """
    matches = list(_BRACKET.finditer(value))
    if not value or "".join(match[0] for match in matches) != value:
        raise _no_brackets(value, "(1-person(2-place)1)", place)
    return [_gum_bracket(match, entity_field, place) for match in matches]


def conll_brackets(value: str, place: str) -> list[Bracket]:
    """The brackets of a cell in the coreference column of CoNLL-2012: "(0|(1)". Raises CorpusError for others."""
    matches = [_BRACKET.fullmatch(part.strip()) for part in value.split("|")]
    found = [_bracket(match, match["open"] or match["close"]) for match in matches if match]
    if len(found) < len(matches):
        raise _no_brackets(value, "(1|(2)", place)
    return found


def _no_brackets(value: str, example: str, place: str) -> CorpusError:
    return CorpusError(f"{place}: {value!r} is no row of brackets that mark mentions, as {example!r} is; mend it.")


def _gum_bracket(match: re.Match[str], entity_field: int, place: str) -> Bracket:
    fields = match["open"].split("-") if match["open"] else ["-"] * entity_field + [match["close"]]
    if len(fields) <= entity_field or not fields[entity_field].strip():
        raise CorpusError(
            f"{place}: the bracket {match[0]!r} should name its entity in field {entity_field + 1}, as "
            "global.Entity says, and has no such field; mend it."
        )
    entity = fields[entity_field]
    if _PART.search(entity):
        raise CorpusError(
            f"{place}: the mention {entity} is a part of one that is not continuous, and mentions here are stretches "
            "of words; take the parts out, or read the file as conllu:FILE."
        )
    return _bracket(match, entity)


def _bracket(match: re.Match[str], entity: str) -> Bracket:
    return Bracket(entity, opens=bool(match["open"]), closes=bool(match["whole"] or match["close"]))
