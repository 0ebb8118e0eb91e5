"""One head on one's own text: in the terminal, or as a page with arcs. No torch until a model is run."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

from headlens.corpora.surface_words import surface_words
from headlens.errors import CorpusError, OutputError
from headlens.examples import SMALLEST_SHARE, Example, mean_of_largest
from headlens.numbers import layers_of_heads, number
from headlens.report.own_text import render_own_text
from headlens.scores import head_name

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headlens.models import LoadedModel

_NAME = re.compile(r"L(\d{1,6})H(\d{1,6})", re.IGNORECASE | re.ASCII)
_BAR = 20  # cells for a share of 1
_LONGEST_QUOTE = 60  # characters of what was given, in a message
_ISOLATED = frozenset("R AL AN RLE LRE RLO LRO PDF RLI LRI FSI PDI".split())
_FIRST_STRONG_ISOLATE, _POP_ISOLATE = "\u2068", "\u2069"


def parse_head(name: object, n_layers: int, n_heads: int) -> tuple[int, int]:
    """(layer, head) of a name such as "L7H9"; both count from 0.

    Raises
    ------
    OutputError
        The name has another form, or the model has no such head.
    """
    try:
        layer, head = named_place(name)
    except OutputError as reason:
        raise OutputError(f"{reason} The model has {_range(n_layers, n_heads)}.") from None
    _check_place(layer, head, n_layers, n_heads)
    return layer, head


def named_place(name: object) -> tuple[int, int]:
    """(layer, head) of a name, of whatever model; OutputError where it has another form."""
    found = _NAME.fullmatch(name.strip()) if isinstance(name, str) else None
    if found is None:
        raise OutputError(f"A head is named L7H9, layer and head counted from 0; got {_quoted(name)}.")
    return int(found[1]), int(found[2])


def attention_of(loaded_model: LoadedModel, text: str, layer: int, head: int) -> Example:
    """What one head does on a text, which is one input of the model; of an encoder-decoder model a head of the encoder.

    Words are told by characters, as `surface_words` does. `strength` is the mean over words of the largest share.

    Raises
    ------
    OutputError
        The model has no such head, or it was removed.
    CorpusError
        A text of fewer than two words, of which the tokenizer makes no token, or longer than the model takes.
    UnsupportedModel, CaptureError
        The model has no tokenizer, or cannot be watched.
    """
    from headlens.arch import attention_sites, heads_present
    from headlens.encode import check_vocabulary, encode_words, max_length_of
    from headlens.find_examples import unknown_words
    from headlens.models import head_counts, network_of
    from headlens.word_pass import word_attention
    from headlens.words import align, id_of, sentence_input

    network, tokenizer = network_of(loaded_model.model), loaded_model.require_tokenizer()
    counts = head_counts(network.config)
    _check_place(layer, head, counts["layers"], counts["heads"])
    present = heads_present(attention_sites(network))
    if present is not None and not present[layer, head]:
        raise OutputError(f"{head_name(layer, head)} was removed from {loaded_model.name!r}: look at the original.")
    if not text.strip():
        raise CorpusError("The text is empty; give a sentence.")
    sentence = surface_words(text, id="your text")
    if len(sentence.words) < 2:
        raise CorpusError(f"The text has one word, {_quoted(text.strip())}, and nothing to attend to; give a sentence.")
    item = sentence_input(sentence, 0)
    tokens = align([item], tokenizer)[0].ids.size
    if tokens == 0:
        raise CorpusError(f"The tokenizer of {loaded_model.name!r} makes no token of the text; give one it can read.")
    room = max_length_of(network.config, tokenizer)
    needed = tokens + tokenizer.num_special_tokens_to_add(pair=False)
    if needed > room:
        raise CorpusError(
            f"The text has {needed:,} tokens, and {loaded_model.name!r} takes {room:,}; shorten the text."
        )
    encoded = encode_words([item], tokenizer, max_length=room, batch_tokens=1)
    check_vocabulary(encoded, network, loaded_model.name)
    ((batch, layers),) = word_attention(network, encoded.batches)
    attention = next(one for one in layers if one.layer == layer)
    probs = attention.probs[0].double().cpu().numpy()
    place = head if attention.head_ids is None else attention.head_ids.index(head)
    return Example.of_attention(
        (layer, head),
        sentence,
        probs[place],
        attention.to_special[0, place].double().cpu().numpy(),
        unknown_words(batch, id_of(tokenizer, "unk_token")),
        float(mean_of_largest(probs, encoded.present[0])[place]),
    )


def to_terminal(example: Example) -> RenderableType:
    """A table of every word and what it attends to, the largest share first, each with a bar."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(title=head_name(example.layer, example.head), title_justify="left", box=None)
    table.add_column("word", overflow="fold", style="bold")
    table.add_column("attends to", overflow="fold")
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, min_width=_BAR)
    for word, form in enumerate(example.words):
        name = Text(_printable(form), style="underline" if word in example.unknown else "")
        rows = [(Text(_printable(example.words[to])), share) for to, share in targets_of(example, word)]
        if example.rest[word] >= SMALLEST_SHARE:
            rows.append((Text("special tokens", style="italic dim"), example.rest[word]))
        if not rows:
            table.add_row(name, Text("all below .10", style="dim"), "", "")
        for place, (target, share) in enumerate(rows):
            bar = Text("█" * round(_BAR * share), style="blue")
            table.add_row(name if place == 0 else "", target, number(share, "share", digits=2), bar)
    if not example.unknown:
        return table
    unknown = ", ".join(dict.fromkeys(_printable(example.words[word]) for word in example.unknown))
    return Group(table, Text(f" Not in the vocabulary of the tokenizer: {unknown}", style="dim"))


def to_page(example: Example, title: str) -> str:
    """A self-contained HTML page with the arcs of the example."""
    return render_own_text(example, title)


def targets_of(example: Example, word: int) -> list[tuple[int, float]]:
    """The words that a word attends to, and the shares, the largest first."""
    paid = [(to, share) for start, to, share in example.arcs if start == word]
    return sorted(paid, key=lambda target: (-target[1], target[0]))


def _quoted(given: object) -> str:
    """As Python writes it, and no longer than fits into a sentence."""
    if isinstance(given, str) and len(given) > _LONGEST_QUOTE:
        return repr(f"{given[:_LONGEST_QUOTE]}…")
    return f"{given!r:.80}"


def _check_place(layer: int, head: int, n_layers: int, n_heads: int) -> None:
    if not (0 <= layer < n_layers and 0 <= head < n_heads):
        raise OutputError(f"The model has {_range(n_layers, n_heads)}; there is no {head_name(layer, head)}.")


def _range(n_layers: int, n_heads: int) -> str:
    return f"{layers_of_heads(n_layers, n_heads)}, L0H0 to {head_name(n_layers - 1, n_heads - 1)}"


def _printable(word: str) -> str:
    """Without control characters, and where it runs the other way, kept from turning what stands beside it around."""
    plain = "".join("\ufffd" if unicodedata.category(character) == "Cc" else character for character in word)
    if _ISOLATED.isdisjoint(map(unicodedata.bidirectional, plain)):
        return plain
    return f"{_FIRST_STRONG_ISOLATE}{plain}{_POP_ISOLATE}"
