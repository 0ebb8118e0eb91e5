"""One head on one's own text: its name, its numbers, the table of the terminal and the page."""

from __future__ import annotations

import html
import io
import json
import re
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from rich.cells import cell_len
from rich.console import Console
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import headlens.report
from headlens.errors import CorpusError, OutputError
from headlens.examples import Example, Examples
from headlens.models import LoadedModel
from headlens.show import attention_of, parse_head, to_page, to_terminal
from headlens.testing import slow_attentions, tiny_model

ARCS_JS = Path(headlens.report.__file__).parent / "templates" / "arcs.js"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "dog", "##s", "bark", "##ed", "##ing", ".", ",", "cat"]
LONG = "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft"


@lru_cache
def tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(PIECES)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    backend.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


@lru_cache
def loaded(family: str = "bert") -> LoadedModel:
    return LoadedModel(tiny_model(family), tokenizer(), f"tiny-{family}", "memory", {})


def example(words: list[str], arcs: list[tuple[int, int, float]], **more) -> Example:
    fields = {"rest": (0.05,) * len(words), "unknown": (), "direction": "ltr", "strength": 0.5, "why": ""} | more
    return Example(7, 9, "your text", tuple(words), tuple(arcs), **fields)


# ------------------------------------------------------------------------------------------------ the name of a head


@pytest.mark.parametrize(
    ("name", "place"),
    [("L7H9", (7, 9)), ("L0H0", (0, 0)), ("l11h0", (11, 0)), (" L07H009 ", (7, 9)), ("L11H11", (11, 11))],
)
def test_a_head_is_named_by_layer_and_head(name, place):
    assert parse_head(name, 12, 12) == place


@pytest.mark.parametrize(
    "name", ["", "7.9", "L7", "H9L7", "L7H", "L-1H0", "L7H9x", "layer 7 head 9", "L７H９", "L7H9\nL1H1", None, 7]
)
def test_another_form_of_name_is_refused(name):
    with pytest.raises(
        OutputError, match=re.escape(f"A head is named L7H9, layer and head counted from 0; got {name!r}. The model ")
    ):
        parse_head(name, 12, 12)


@pytest.mark.parametrize(("name", "told"), [("L6H0", "L6H0"), ("L0H12", "L0H12"), ("L6H12", "L6H12")])
def test_a_head_that_the_model_lacks_is_refused_with_those_it_has(name, told):
    with pytest.raises(OutputError, match=rf"has 6 layers of 12 heads, L0H0 to L5H11; there is no {told}\."):
        parse_head(name, 6, 12)


# ------------------------------------------------------------------------------------------------------- the numbers


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_to_a_word_goes_the_sum_over_its_tokens_and_from_it_the_mean(family):
    found = attention_of(loaded(family), "the dogs barked zzz.", 1, 2)
    assert found.words == ("the", "dogs", "barked", "zzz", ".")
    ids = torch.tensor([[2, 4, 5, 6, 7, 8, 1, 10, 3]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    (patterns,) = slow_attentions(tiny_model(family), inputs).values()
    pattern = patterns[1][0][2].numpy()
    tokens = [slice(1, 2), slice(2, 4), slice(4, 6), slice(6, 7), slice(7, 8)]
    shares = [[pattern[start, stop].sum(axis=1).mean() for stop in tokens] for start in tokens]
    expected = {(i, j): share for i, row in enumerate(shares) for j, share in enumerate(row) if share >= 0.1}
    assert {arc[:2]: arc[2] for arc in found.arcs} == pytest.approx(expected, abs=6e-4)  # of rounding to three digits
    assert found.rest == pytest.approx([pattern[start][:, [0, 8]].sum(axis=1).mean() for start in tokens], abs=6e-4)
    assert found.strength == pytest.approx(sum(map(max, shares)) / 5, abs=6e-4)
    assert (found.layer, found.head, found.unknown, found.direction, found.why) == (1, 2, (3,), "ltr", "")


def test_of_two_stacks_the_encoder_is_shown():
    found = attention_of(loaded("bart"), "the dogs barked.", 0, 1)
    assert len(found.words) == 4
    assert any(to > start for start, to, _ in found.arcs)  # no decoder looks ahead


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "The text is empty"),
        (" \n\t ", "The text is empty"),
        ("dog", "The text has one word, 'dog', and nothing to attend to"),
        ("the dog " * 40, r"The text has 82 tokens, and 'tiny-bert' takes 80; shorten the text\."),
        ("a \ud800", "half of a surrogate pair"),
    ],
)
def test_a_text_that_cannot_be_shown_is_refused_in_one_sentence(text, told):
    with pytest.raises(CorpusError, match=told) as caught:
        attention_of(loaded(), text, 0, 0)
    assert "\n" not in str(caught.value)


def test_a_text_of_no_token_is_refused():
    with pytest.raises(CorpusError, match=r"The tokenizer of 'tiny-bert' makes no token of the text"):
        attention_of(loaded(), "\x00 \x01", 0, 0)


@pytest.mark.parametrize(("layer", "head"), [(3, 0), (0, 4), (-1, 0)])
def test_a_place_outside_of_the_model_is_refused(layer, head):
    with pytest.raises(OutputError, match="has 3 layers of 4 heads"):
        attention_of(loaded(), "the dog", layer, head)


# ------------------------------------------------------------------------------------------------------- the terminal


def lines_of(shown: Example, width: int = 60) -> list[str]:
    nowhere = io.StringIO()
    Console(width=width, force_terminal=False, color_system=None, file=nowhere).print(to_terminal(shown))
    return nowhere.getvalue().splitlines()


def test_targets_stand_with_their_shares_the_largest_first():
    shown = example(["the", "dog", "barks"], [(1, 0, 0.25), (1, 2, 0.7), (2, 1, 1.0)], rest=(0.9, 0.05, 0.0))
    assert [line.split() for line in lines_of(shown)] == [
        ["L7H9"],
        ["word", "attends", "to", "share"],
        ["the", "special", "tokens", ".90", "█" * 18],
        ["dog", "barks", ".70", "█" * 14],
        ["the", ".25", "█" * 5],
        ["barks", "dog", "1.00", "█" * 20],
    ]


def test_a_word_without_a_target_says_so():
    assert "all below .10" in "\n".join(lines_of(example(["a", "b"], [])))


def test_unknown_words_are_told():
    told = lines_of(example(["a", "b", "c", "b"], [], unknown=(1, 2, 3)))[-1].strip()
    assert told == "Not in the vocabulary of the tokenizer: b, c"
    assert "vocabulary" not in "\n".join(lines_of(example(["a", "b"], [])))


@pytest.mark.parametrize("width", [40, 60, 100])
@pytest.mark.parametrize(
    "words",
    [
        [LONG, LONG, "ist"],
        ["我", "们", "在北京的大学里学习中文我们在北京的大学里学习中文"],
        ["שלום", "עולם", "GPT"],
        ["كان", "الكلب", "."],
        ["👩🏽‍🚀", "❤️", "e\u0301"],
    ],
)
def test_no_word_breaks_the_table(words, width):
    shown = example(words, [(1, 0, 0.5), (2, 1, 0.25), (0, 2, 1.0)])
    lines = lines_of(shown, width)
    assert max(map(cell_len, lines)) <= width
    shares = [line for line in lines if re.search(r"[01]?\.\d\d ", line)]
    assert len({cell_len(line[: line.index("█")]) for line in shares}) == 1  # all bars begin in one column
    text = re.sub(r"[\s\u2068\u2069█\d.]", "", "".join(lines[1:]))
    once_as_word_once_as_target = "".join(words * 2).replace(".", "")
    assert sorted(text) == sorted("wordattendstoshare" + once_as_word_once_as_target)


@pytest.mark.parametrize("word", ["[red]", "[/]", "\x1b[31mred", "a\x07b", "a\u202ecba"])
def test_words_are_text_and_no_commands(word):
    text = "\n".join(lines_of(example([word, "b"], [(1, 0, 0.5)])))
    assert text.count(word.replace("\x1b", "\ufffd").replace("\x07", "\ufffd")) == 2
    assert "\x1b" not in text
    assert ("\u2068" in text) == ("\u202e" in word)


# ----------------------------------------------------------------------------------------------------------- the page

WILD = example(
    [
        "I",
        "</script><script>document.title='bad'</script>",
        "&amp;",
        "<img src=x onerror=\"document.title='bad'\">",
        ".",
    ],
    [(1, 0, 0.82), (2, 2, 0.3), (0, 3, 0.5), (1, 4, 0.9)],
    unknown=(2,),
    rest=(0.2, 0.0, 0.4, 0.0, 0.0),
)


def test_the_page_holds_the_example_as_data_and_escapes_words():
    page = to_page(WILD, "L7H9 & <b>friends</b>")
    data = re.search(r'<script type="application/json" id="example">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert json.loads(data[1]) == WILD.to_dict()
    assert "<title>L7H9 &amp; &lt;b&gt;friends&lt;/b&gt; · headlens</title>" in page
    assert page.count("</script>") == 2  # the data's and the program's own
    assert "<img" not in page
    assert "http" not in re.sub(r"http://www\.w3\.org/2000/svg|http-equiv", "", page)  # nothing is fetched


def test_the_page_tells_every_share_without_scripts():
    page = to_page(WILD, "title")
    rows = re.findall(r"<tr>(.*?)</tr>", page)[1:]
    cells = [
        [html.unescape(re.sub(r"<.*?>", "", cell)) for cell in re.split(r"(?<=</t[dh]>)", row)[:-1]] for row in rows
    ]
    words = WILD.words
    assert cells == [
        [words[0], words[3], ".50", ".20"],
        [words[1], words[4], ".90", ".00"],
        [words[0], ".82"],
        [words[2], words[2], ".30", ".40"],
        [words[3], "", "", ".00"],
        [words[4], "", "", ".00"],
    ]


# What the page is in a browser


@lru_cache
def browser() -> str:
    found = shutil.which("chromium") or shutil.which("google-chrome")
    return found or pytest.skip("needs a browser: chromium or google-chrome")


def in_browser(page: str, folder: Path, *, width: int = 1000) -> str:
    """The page as it is once its scripts have run."""
    (folder / "page.html").write_text(page, encoding="utf-8")
    command = [browser(), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--dump-dom"]
    command += [f"--user-data-dir={folder / 'browser'}", f"--window-size={width},800", f"file://{folder / 'page.html'}"]
    return subprocess.run(command, capture_output=True, check=True, timeout=300, text=True).stdout


def arcs_in(drawn: str) -> str:
    return drawn[drawn.index('<div class="arcs') : drawn.index("</main>")]


def test_a_browser_draws_the_arcs_and_runs_no_word(tmp_path):
    drawn = in_browser(to_page(WILD, "title"), tmp_path)
    assert "<title>title · headlens</title>" in drawn
    part = arcs_in(drawn)
    spans = re.findall(r'<span class="arcs-word( arcs-unknown)?" tabindex="(-?\d)" data-word="\d">(.*?)</span>', part)
    assert [html.unescape(text) for _, _, text in spans] == list(WILD.words)
    assert [bool(unknown) for unknown, _, _ in spans] == [False, False, True, False, False]
    assert [tab for _, tab, _ in spans] == ["0", "-1", "-1", "-1", "-1"]  # one stop; arrow keys go on
    drawn_arcs = re.findall(r'<g data-from="(\d)" data-to="(\d)">.*?stroke-width="(.*?)"', part)
    assert [(int(start), int(to)) for start, to, _ in drawn_arcs] == [arc[:2] for arc in WILD.arcs]
    widths = [float(width) for _, _, width in drawn_arcs]
    assert sorted(range(4), key=widths.__getitem__) == sorted(range(4), key=lambda arc: WILD.arcs[arc][2])
    listed = [html.unescape(line) for line in re.findall(r"<li>(.*?)</li>", part)]
    assert listed == [f"{WILD.words[a]} → {WILD.words[b]} {share:.2f}".replace("0.", ".") for a, b, share in WILD.arcs]


@pytest.mark.parametrize(("width", "is_down"), [(1000, False), (500, True)])
def test_words_stand_one_below_the_other_where_the_line_does_not_fit(tmp_path, width, is_down):
    shown = example("and the dog that chased all of the cats was very very tired indeed".split(), [(1, 0, 0.5)])
    assert ('class="arcs arcs-down"' in in_browser(to_page(shown, "title"), tmp_path, width=width)) == is_down


@pytest.mark.parametrize("direction", ["ltr", "rtl"])
def test_arcs_go_from_word_to_word_whichever_way_the_text_runs(tmp_path, direction):
    shown = example(["aa", "bb", "cc", "dd"], [(3, 0, 0.5), (1, 2, 0.4)], direction=direction)
    part = arcs_in(in_browser(to_page(shown, "title"), tmp_path))
    assert f'<div class="arcs-words" dir="{direction}">' in part
    ends = re.findall(r'd="M([\d.]+) ([\d.]+)C[\d.]+ ([-\d.]+) [\d.]+ [-\d.]+ ([\d.]+) [\d.]+"', part)
    (from_last, line, above, to_first), (from_second, below_line, below, to_third) = [map(float, end) for end in ends]
    assert above < line < below_line < below  # to earlier words above, to later ones below
    assert (to_first < from_last) == (to_third > from_second) == (direction == "ltr")


def test_examples_of_the_file_are_read_as_they_were_written():
    if shutil.which("node") is None:
        pytest.skip("needs node")
    examples = Examples((WILD, example(["a", "b"], [(0, 1, 0.125)]), example(["a", "b"], [])))
    program = f"{ARCS_JS.read_text(encoding='utf-8')};const file={json.dumps(examples.to_dict())};"
    program += "console.log(JSON.stringify([drawArcs.examples(file, 7, 9), drawArcs.examples(file, 0, 0)]))"
    done = subprocess.run(["node", "-e", program], capture_output=True, check=True, timeout=300, text=True)
    assert json.loads(done.stdout) == [[one.to_dict() for one in examples], []]
