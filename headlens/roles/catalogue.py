"""Every role that a head can have: its score, threshold, null and source. The one place where these numbers stand.

Ranks say which role is more specific, so that it stands for a head where two are as certain: induction and what is
written, reference, syntax, the same word, pieces of a word, position, and last resting places.
"""

from __future__ import annotations

from dataclasses import dataclass

from headlens.roles.role import Role
from headlens.roles.rules import Condition, Rule
from headlens.wording import SYNTAX, family_of

NO_OP_RATIO = 1 / 3  # of what sinks bring, by norm, over what they are paid; our choice, after Kobayashi et al. 2020

_CLARK_POSITION = "Clark et al. 2019, section 3.1: more than half of the attention"
_CLARK_TOKEN = "Clark et al. 2019, labels of their figure of head clusters: .6"
_INDUCTION = "after Olsson et al. 2022, prefix matching and copying; .4 is our choice, and twice its control and chance"
_UNREPEATED = "the same offset in unrepeated tokens"
_PREFIX = Condition("repetition.prefix_matching", "prefix matching", 0.4, if_unknown=True)

# In the order in which they are told.
RULES: tuple[Rule, ...] = (
    Rule(
        id="induction",
        letter="I",
        title="induction",
        kind="repetition",
        rank=0,
        metric="repetition.induction",
        threshold=0.4,
        claim="attends to what followed the same token before (induction)",
        measure="of its mass, in random tokens written twice",
        source=_INDUCTION,
        control="repetition.induction_control",
        control_name=_UNREPEATED,
        also=(_PREFIX, Condition("repetition.copying", "copying", by="high", if_unknown=True)),
    ),
    Rule(
        id="anti_induction",
        letter="X",
        title="anti-induction",
        kind="repetition",
        rank=0,
        metric="repetition.induction",
        threshold=0.4,
        claim="attends to what followed the same token before without copying it",
        measure="of its mass, in random tokens written twice",
        source=f"{_INDUCTION}; their anti-copying prefix-search heads",
        control="repetition.induction_control",
        control_name=_UNREPEATED,
        also=(_PREFIX, Condition("repetition.copying", "copying", by="high", is_below=True)),
    ),
    Rule(
        id="retrieval",
        letter="G",
        title="retrieval",
        kind="repetition",
        rank=1,
        metric="retrieval.copy",
        threshold=0.1,
        claim="attends to the token of a needle that the model writes next",
        measure="of the needle's tokens",
        source="Wu et al. 2024, section 2: a retrieval head has a score over .1",
        control="retrieval.elsewhere",
        control_name="another stretch of the text",
    ),
    Rule(
        id="adjacent_phrase",
        letter="A",
        title="adjacent phrase",
        kind="phrase",
        rank=5,
        metric="phrase.neighbour",
        threshold=0.6,
        claim="attends to the neighbour in the same phrase",
        measure="of the words between one inside and one outside",
        source="our choice; a head that looks at a fixed offset gets .50, and the interval must lie above that",
        floor=0.5,
    ),
    Rule(
        id="duplicate_token",
        letter="D",
        title="duplicate token",
        kind="repetition",
        rank=6,
        metric="repetition.duplicate",
        threshold=0.4,
        claim="attends to the same token elsewhere",
        measure="of its mass, in random tokens written twice",
        source="after Wang et al. 2023, duplicate token heads; .4 is our choice, and twice its control and chance",
        control="repetition.duplicate_control",
        control_name=_UNREPEATED,
    ),
    Rule(
        id="rare_word",
        letter="W",
        title="rare word",
        kind="word",
        rank=6,
        metric="lexical.rarest_word",
        threshold=0.5,
        claim="attends to the rarest word",
        measure="of the words have it as their strongest word",
        source="after Voita et al. 2019, section 5.2; half is our choice",
    ),
    Rule(
        id="subword",
        letter="T",
        title="pieces of a word",
        kind="word",
        rank=7,
        metric="lexical.subword",
        threshold=0.5,
        claim="attends to earlier pieces of the same word",
        measure="of its mass, from later pieces",
        source="after Zheng et al. 2024; half is our choice, and twice what it pays to the token before a new word",
        control="lexical.subword_previous",
        control_name="the token before a new word",
    ),
    Rule(
        id="full_stop",
        letter=".",
        title="full stop",
        kind="punctuation",
        rank=8,
        metric="surface.full_stop",
        threshold=0.6,
        claim="attends to full stops",
        measure="of its mass on average",
        source=_CLARK_TOKEN,
    ),
    Rule(
        id="comma",
        letter=",",
        title="comma",
        kind="punctuation",
        rank=8,
        metric="surface.comma",
        threshold=0.6,
        claim="attends to commas",
        measure="of its mass on average",
        source=_CLARK_TOKEN,
    ),
    Rule(
        id="punctuation",
        letter="M",
        title="punctuation, sentence border",
        kind="punctuation",
        rank=9,
        metric="border.punctuation",
        threshold=0.5,
        claim="attends to punctuation",
        measure="of its mass on average",
        source="our choice, as for positions: more than half of the attention",
    ),
    Rule(
        id="previous_token",
        letter="P",
        title="previous token",
        kind="position",
        rank=10,
        metric="position.mass[-1]",
        threshold=0.5,
        claim="attends to the previous token",
        measure="of its mass on average",
        source=_CLARK_POSITION,
    ),
    Rule(
        id="next_token",
        letter="N",
        title="next token",
        kind="position",
        rank=10,
        metric="position.mass[1]",
        threshold=0.5,
        claim="attends to the next token",
        measure="of its mass on average",
        source=_CLARK_POSITION,
    ),
    Rule(
        id="self_token",
        letter="O",
        title="the token itself",
        kind="position",
        rank=10,
        metric="position.mass[0]",
        threshold=0.5,
        claim="attends to the token itself",
        measure="of its mass on average",
        source=_CLARK_POSITION,
    ),
    Rule(
        id="previous_random_token",
        letter="V",
        title="previous token of random ones",
        kind="position",
        rank=11,
        metric="repetition.previous",
        threshold=0.5,
        claim="attends to the previous token whatever the words",
        measure="of its mass, in random tokens",
        source=f"{_CLARK_POSITION}; on random tokens, as in TransformerLens' demonstrations",
    ),
    Rule(
        id="position_alone",
        letter="=",
        title="position alone",
        kind="position",
        rank=12,
        metric="position.variability",
        threshold=0.05,
        claim="attends by relative position whatever the words",
        measure="of the variance of its pattern not explained by position",
        source="after Vig and Belinkov 2019: variability below .05",
        is_below=True,
    ),
    Rule(
        id="local",
        letter="L",
        title="near tokens",
        kind="position",
        rank=12,
        metric="position.local",
        threshold=3.0,
        claim="attends to tokens at most two away",
        measure="times the chance of that",
        source="after Pande et al. 2021, whose sieve bias must lie above 3",
        unit="ratio",
    ),
    Rule(
        id="copying_weights",
        letter="U",
        title="copying, by its weights",
        kind="weights",
        rank=12,
        metric="circuits.copy_top5",
        threshold=0.5,
        claim="has weights that raise the very token attended to among the five most raised",
        measure="of sampled tokens",
        source="after Wang et al. 2023, copy score of name movers; half is our choice",
        has_interval=False,
    ),
    Rule(
        id="suppressing_weights",
        letter="H",
        title="suppression, by its weights",
        kind="weights",
        rank=12,
        metric="circuits.copy_suppression",
        threshold=0.5,
        claim="has weights that lower the very token attended to among the ten most lowered",
        measure="of sampled tokens",
        source="after McDougall et al. 2023, whose copy-suppression head has .84; half is our choice",
        has_interval=False,
    ),
    Rule(
        id="small_value_sink",
        letter="Z",
        title="sink of small values",
        kind="sink",
        rank=13,
        metric="contribution.sink_weight",
        threshold=0.3,
        claim="attends to the first and special tokens, of which it takes little",
        measure="of its mass on average",
        source="after Kobayashi et al. 2020 and Gu et al. 2025; .3 as for the first token, a third is our choice",
        also=(Condition("contribution.sink_ratio", "contribution over mass", NO_OP_RATIO, is_below=True),),
    ),
    Rule(
        id="cls",
        letter="C",
        title="[CLS]",
        kind="sink",
        rank=14,
        metric="surface.cls",
        threshold=0.6,
        claim="attends to [CLS]",
        measure="of its mass on average",
        source=_CLARK_TOKEN,
    ),
    Rule(
        id="sep",
        letter="E",
        title="[SEP]",
        kind="sink",
        rank=14,
        metric="surface.sep",
        threshold=0.6,
        claim="attends to [SEP]",
        measure="of its mass on average",
        source=_CLARK_TOKEN,
    ),
    Rule(
        id="first_token",
        letter="F",
        title="first token",
        kind="sink",
        rank=14,
        metric="surface.first",
        threshold=0.3,
        claim="attends to the first token",
        measure="of its mass on average",
        source="Gu et al. 2025: an attention sink holds more than .3",
    ),
    Rule(
        id="broad",
        letter="B",
        title="broad",
        kind="broad",
        rank=15,
        metric="surface.breadth",
        threshold=0.85,
        claim="attends broadly",
        measure="of the entropy of uniform attention",
        source="after Clark et al. 2019, whose broad heads lie above 3.8 of about 4.5 nats",
        has_null=False,
    ),
)


@dataclass(frozen=True)
class FromEvidence:
    """A role that annotated words show: which metrics speak of it."""

    role: Role
    families: tuple[str, ...]
    kinds: tuple[str, ...] = ()  # what stands in the brackets of the metric; empty: any

    def has(self, metric: str) -> bool:
        family, kind = family_of(metric), metric.partition("[")[2].rstrip("]")
        base = kind.removesuffix("_unmatched").partition(":")[0]
        if family not in self.families or (family == "choice" and kind != "all"):
            return False
        return family in ("choice", "subject_verb") or not self.kinds or base in self.kinds


_GLOSS = "above every baseline but rules that read parts of speech, and no accident among all tests"
_EVIDENCE = "the margin and the correction of the evidence; see Methods"


def _told(id: str, letter: str, title: str, kind: str, rank: int) -> Role:
    return Role(id, letter, title, kind, rank, _GLOSS, _EVIDENCE)


# The first that has a metric takes it.
CLAIMS: tuple[FromEvidence, ...] = (
    FromEvidence(
        _told("pronoun_reference", "R", "pronoun reference", "coreference", 2),
        ("coref", "choice"),
        ("pronoun", "pronoun_noun"),
    ),
    FromEvidence(_told("coreference", "K", "coreference", "coreference", 3), ("coref",)),
    FromEvidence(_told("subject_verb", "S", "subject and verb", "syntax", 3), SYNTAX, ("nsubj", "csubj")),
    FromEvidence(_told("syntax", "Y", "other syntax", "syntax", 4), SYNTAX),
)


def claim_of(metric: str) -> FromEvidence | None:
    """Which role a metric of annotated words speaks of."""
    return next((claim for claim in CLAIMS if claim.has(metric)), None)
