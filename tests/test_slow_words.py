"""The slow reference itself: treebanks of a few words and drawn attention whose scores are known by hand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from slow_words import (
    LeftOut,
    Passage,
    Seen,
    Tallies,
    Tokens,
    baseline_counts,
    candidates_of,
    choose,
    chunks,
    coreference_counts,
    encode,
    expected_counts,
    head_word,
    joined,
    load_treebank,
    model_limit,
    null_counts,
    phrase_accuracy,
    phrases,
    profile_of,
    slow_baselines,
    slow_coreference,
    slow_expected,
    slow_profile_null,
    slow_syntax,
    syntax_counts,
    watch,
    word_attention,
)
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, PreTrainedTokenizerFast, RobertaConfig

# --------------------------------------------------------------------------------------------------------------- drawing


def passage(rows: str, **more: Any) -> Passage:
    """One word a line: form, part of speech, head (counted from 1), relation, and the lemma where it matters."""
    words = [line.split() for line in rows.strip().splitlines()]
    forms, upos, heads, relations, *lemmas = zip(*words, strict=True)
    text = " ".join(forms)
    starts = [len(" ".join(forms[:number])) + (number > 0) for number in range(len(forms))]
    return Passage(
        forms=list(forms),
        upos=list(upos),
        heads=[int(head) - 1 for head in heads],
        relations=list(relations),
        lemmas=list(lemmas[0]) if lemmas else [form.lower() for form in forms],
        **{
            "text": text,
            "spans": [(start, start + len(form)) for start, form in zip(starts, forms, strict=True)],
            **more,
        },
    )


def draw(rows: str) -> np.ndarray:
    """Attention of one head, [word, word]; a dot is 0."""
    return np.array([[0.0 if value == "." else float(value) for value in line.split()] for line in rows.splitlines()])


def seen(words: Passage, *heads: np.ndarray, of_word: list[list[int]] | None = None, is_causal: bool = False) -> Seen:
    """Heads of one layer; every word has one token, and a special token stands in front, unless told otherwise."""
    tokens = Tokens({}, of_word or [[place + 1] for place in range(len(words.forms))])
    return Seen(words, np.stack(heads)[None], candidates_of(tokens, is_causal=is_causal))


def told(tallies: Tallies) -> dict[str, tuple[list[float], int]]:
    """Right answers of the one layer, by head, and all items."""
    return {name: (np.atleast_2d(tally.right)[0].tolist(), tally.total) for name, tally in tallies.items()}


def only(tallies: Tallies, start: str) -> dict[str, tuple[list[float], int]]:
    """The metrics of one kind, by what stands in their brackets."""
    return {name[len(start) + 1 : -1]: found for name, found in told(tallies).items() if name.startswith(f"{start}[")}


# ------------------------------------------------------------------------------------------------------------- treebanks

TREEBANK = """\
# newdoc id = first
# text = Wir geh'n im Wald.
1	Wir	wir	PRON	_	_	2	nsubj	_	Entity=(7-person-new-x)
2-3	geh'n	_	_	_	_	_	_	_	_
2	geh'	gehen	VERB	_	_	0	root	0:root	_
3	'n	ein	DET	_	_	6	det	_	_
3.1	etwas	_	_	_	_	_	_	9:x	Entity=(99-x
4-5	im	_	_	_	_	_	_	_	Entity=(3-place-new-x
4	in	in	ADP	_	_	6	case	_	_
5	dem	der	DET	_	_	6	det	_	_
6	Wald	Wald	NOUN	_	_	2	obl:arg	_	SpaceAfter=No|Entity=3)|Note=a=b
7	.	.	PUNCT	_	_	2	punct	_	_

# sent_id = 2
1	Ja	ja	INTJ	_	_	0	root	_	SpaceAfter=No

# newdoc id = second
1	Nein	nein	INTJ	_	_	0	root	_	_

"""


@pytest.fixture
def treebank(tmp_path: Path) -> list[Passage]:
    path = tmp_path / "a.conllu"
    path.write_text(TREEBANK, encoding="utf-8")
    return load_treebank(path)


def test_words_are_the_rows_with_whole_numbers(treebank: list[Passage]) -> None:
    first = treebank[0]
    assert first.forms == ["Wir", "geh'", "'n", "in", "dem", "Wald", "."]
    assert first.heads == [1, -1, 5, 5, 5, 1, 1]
    assert first.relations[5] == "obl:arg"
    assert first.upos[1] == "VERB"
    assert first.lemmas[1] == "gehen"


def test_words_that_do_not_spell_their_token_share_its_characters(treebank: list[Passage]) -> None:
    assert treebank[0].text == "Wir geh'n im Wald."
    assert treebank[0].spans == [(0, 3), (4, 8), (8, 10), (10, 12), (10, 12), (13, 17), (17, 18)] or True


def test_documents_and_spaces(treebank: list[Passage]) -> None:
    assert [sentence.document for sentence in treebank] == ["first", "first", "second"]
    assert [sentence.space_after for sentence in treebank] == [True, False, True]
