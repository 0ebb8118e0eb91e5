"""Dependency trees that a grammar grows, and the sentences that they are read off as. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from headlens.documents import ROOT, Sentence, Span

_NO_SPACE_BEFORE = frozenset({".", "!", ",", "'s"})


@dataclass(eq=False)  # told apart by identity
class Node:
    """A word with what depends on it, in the order of the text: `before` it and `after` it."""

    form: str
    lemma: str
    upos: str
    relation: str = "root"
    before: list[Node] = field(default_factory=list)
    after: list[Node] = field(default_factory=list)

    def add_before(self, relation: str, *nodes: Node) -> Node:
        """As the nearest to the word so far, on its left."""
        for node in nodes:
            node.relation = relation
            self.before.append(node)
        return self

    def put_first(self, relation: str, node: Node) -> Node:
        """As the farthest from the word, on its left."""
        node.relation = relation
        self.before.insert(0, node)
        return self

    def add_after(self, relation: str, *nodes: Node) -> Node:
        for node in nodes:
            node.relation = relation
            self.after.append(node)
        return self

    def words(self) -> Iterator[Node]:
        """The words of the subtree in order."""
        for node in self.before:
            yield from node.words()
        yield self
        for node in self.after:
            yield from node.words()

    def phrase(self, *, with_conjuncts: bool) -> Iterator[Node]:
        """The words of a noun phrase: not the preposition or conjunction before it, its conjuncts on request."""
        for node in self.before:
            if node.relation not in ("case", "cc"):
                yield from node.words()
        yield self
        for node in self.after:
            if with_conjuncts or node.relation != "conj":
                yield from node.words()


def as_sentence(root: Node, id: str) -> tuple[Sentence, list[Node]]:
    """The sentence of a tree, its first letter a capital, and its words in order."""
    nodes = list(root.words())
    place = {node: number for number, node in enumerate(nodes)}
    heads = [ROOT] * len(nodes)
    for number, node in enumerate(nodes):
        for dependent in (*node.before, *node.after):
            heads[place[dependent]] = number
    words = [node.form for node in nodes]
    words[0] = words[0][0].upper() + words[0][1:]
    text, spans = _spelled(words)
    sentence = Sentence(
        words=tuple(words),
        text=text,
        spans=spans,
        upos=tuple(node.upos for node in nodes),
        lemmas=tuple(node.lemma for node in nodes),
        heads=tuple(heads),
        relations=tuple(node.relation for node in nodes),
        id=id,
    )
    return sentence, nodes


def _spelled(words: list[str]) -> tuple[str, tuple[Span, ...]]:
    text, spans = "", []
    for number, word in enumerate(words):
        if number and word not in _NO_SPACE_BEFORE:
            text += " "
        spans.append((len(text), len(text) + len(word)))
        text += word
    return text, tuple(spans)
