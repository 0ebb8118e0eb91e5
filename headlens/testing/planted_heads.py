"""How heads with a role are made: what stands where in the residual stream, and what each head reads and writes.

The residual stream is divided into subspaces at right angles to each other, each for one fact about a token, and a
head with a role reads the facts that it needs, at known sizes:

- which word it is: a point on each of 16 circles, with an angle that grows with the id. Two words are as alike as the
  mean cosine of the angles between them, and the steps are chosen so that different words are little alike. Each
  special token has a direction of its own;
- its position: the same on 15 other circles, so that turning what the query looks for moves it by so many positions;
- its place: one coordinate that grows evenly with the position, and one that fills it up to a constant length;
- the token before: empty until a previous-token head of the first layer writes it (GPT-2 only);
- scratch, to which heads write what nobody reads.

All subspaces stand at right angles to the vector of ones, and all tokens have one length, so that LayerNorm takes
nothing away and rescales by a known factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from headlens.errors import UnsupportedModel

LAYERS, HEADS, HEAD_DIM = 2, 6, 64
HIDDEN = HEADS * HEAD_DIM
LENGTH = math.sqrt(HIDDEN / 3)  # three such parts make a token, whose coordinates then have a variance of 1

_WORD_CIRCLES, _POSITION_CIRCLES = 16, 15  # a duplicate-token head reads 2 * 16 and 2 * 15 dimensions
_DRAWS = 300  # of frequencies, to choose from
_MOST_ALIKE = 0.5  # of different words, or positions; above it, scores would have to be very large
_SLIP = 0.002  # the attention that may go astray
_REACH = 0.7  # of the place coordinate, to both sides, as a share of the length that place has in all
_ROVING = 2.0  # standard deviation of the attention scores of a head without a role
_WHISPER = 0.1  # what is written to scratch, against the length of a word
_SHOUT = 2.0  # what an induction head writes over the word that is there, against its length

# ------------------------------------------------------------------------------------------------ the residual stream


@dataclass(frozen=True, eq=False)
class Stream:
    """Where facts about a token stand in the residual stream, and the embeddings that put them there.

    A token has three parts of the same length, `LENGTH`: what it is, its position, its place. All are float64.
    """

    word: Float[Tensor, "hidden _"]  # orthonormal, as all that follow
    special: Float[Tensor, "hidden _"]
    position: Float[Tensor, "hidden _"]
    place: Float[Tensor, "hidden 2"]
    word_before: Float[Tensor, "hidden _"]
    special_before: Float[Tensor, "hidden _"]
    scratch: Float[Tensor, "hidden _"]
    words: Float[Tensor, "word _"]  # each of length 1
    step: Float[Tensor, " circle"]  # by which one position turns its circles, in radians
    most_alike: tuple[float, float]  # cosine of two different words, and of two positions
    tokens: Float[Tensor, "token hidden"]
    positions: Float[Tensor, "position hidden"]


def make_stream(vocab: int, positions: int, special: Sequence[str], seed: int) -> Stream:
    """The stream of a model whose first token ids are the special ones.

    Raises
    ------
    UnsupportedModel
        Too few tokens or positions to plant anything, or more than can be told apart.
    """
    if vocab < len(special) + 2 or positions < 2:
        raise UnsupportedModel(
            f"A planted model needs at least {len(special) + 2} tokens, {len(special)} of them special, and 2 "
            f"positions, got {vocab} and {positions}."
        )
    words, _, alike_words = _circles(vocab - len(special), _WORD_CIRCLES, "words", seed)
    points, step, alike_positions = _circles(positions, _POSITION_CIRCLES, "positions", seed + 1)
    ramp = torch.linspace(-_REACH, _REACH, positions, dtype=torch.float64)
    places = torch.stack([ramp, (1 - ramp.square()).sqrt()], dim=-1)
    sizes = {
        "word": 2 * _WORD_CIRCLES,
        "special": len(special),
        "position": 2 * _POSITION_CIRCLES,
        "place": 2,
        "word_before": 2 * _WORD_CIRCLES,
        "special_before": len(special),
        "scratch": 2 * _WORD_CIRCLES,
    }
    space = dict(zip(sizes, _at_right_angles(HIDDEN, list(sizes.values()), seed), strict=True))
    return Stream(
        **space,
        words=words,
        step=step,
        most_alike=(alike_words, alike_positions),
        tokens=LENGTH * torch.cat([space["special"].T, words @ space["word"].T]),
        positions=LENGTH * (points @ space["position"].T + places @ space["place"].T),
    )


def _circles(count: int, circles: int, what: str, seed: int) -> tuple[Tensor, Tensor, float]:
    """Points [count, 2 * circles] of length 1, the step on each circle, and the largest cosine of two of them."""
    steps = math.pi * torch.rand(_DRAWS, circles, generator=_generator(seed), dtype=torch.float64)
    apart = torch.arange(1, count, dtype=torch.float64)
    alike = torch.stack([(apart[:, None] * step).cos().mean(dim=-1).abs().max() for step in steps])
    best = int(alike.argmin())
    if alike[best] > _MOST_ALIKE:
        raise UnsupportedModel(
            f"{count} {what} are too many to be told apart by a planted model: the cosine of two of them is "
            f"{float(alike[best]):.2f}, and may be {_MOST_ALIKE}; ask for fewer."
        )
    angles = torch.arange(count, dtype=torch.float64)[:, None] * steps[best]
    return torch.cat([angles.cos(), angles.sin()], dim=-1) / math.sqrt(circles), steps[best], float(alike[best])


def _turned(step: Float[Tensor, " circle"], by: int) -> Float[Tensor, "turned turned"]:
    """The matrix that takes the point of position p to that of p + by: `point @ matrix`."""
    cos, sin = (by * step).cos().diag(), (by * step).sin().diag()
    return torch.cat([torch.cat([cos, sin], dim=1), torch.cat([-sin, cos], dim=1)])


def _at_right_angles(hidden: int, sizes: Sequence[int], seed: int) -> list[Tensor]:
    """Orthonormal bases [hidden, size], at right angles to each other and to the vector of ones."""
    drawn = torch.randn(hidden, sum(sizes), generator=_generator(seed), dtype=torch.float64)
    basis = torch.linalg.qr(torch.cat([torch.ones(hidden, 1, dtype=torch.float64), drawn], dim=1)).Q
    return list(basis[:, 1:].split(list(sizes), dim=1))


# ---------------------------------------------------------------------------------------------------------- the heads


@dataclass(frozen=True, eq=False)
class PlantedHead:
    """Weights of one head: `x @ query + query_bias`, `x @ key`, and so on; the model scales scores by dim ** -0.5."""

    query: Float[Tensor, "hidden dim"]
    query_bias: Float[Tensor, " dim"]
    key: Float[Tensor, "hidden dim"]
    value: Float[Tensor, "hidden dim"]
    output: Float[Tensor, "dim hidden"]


class Sight:
    """How the heads of a layer read a stream: `x @ reader` gives facts at length 1, whatever the norm made of them."""

    def __init__(self, stream: Stream, sink: int, *, shrunk: float = 1.0) -> None:
        length = LENGTH * shrunk
        self.stream = stream
        self.word, self.word_before = stream.word / length, stream.word_before / length
        self.position = stream.position / length
        self.place = stream.place[:, :1] / length
        self.sink = stream.special[:, sink : sink + 1] / length
        self.token = torch.cat([stream.word, stream.special], dim=1) / length
        alike_words, alike_positions = stream.most_alike
        self.different_words, self.different_positions = 1 - alike_words, 1 - alike_positions
        # a score that far above the others of a row leaves them _SLIP of the attention together
        self.far = math.log(len(stream.positions) / _SLIP)


class _Scores:
    """Attention scores as a sum of products: what a query is looking for times what a key has."""

    def __init__(self) -> None:
        self.query: list[Tensor] = []
        self.key: list[Tensor] = []
        self.bias: list[Tensor] = []

    def add(self, strength: float, query: Tensor | None, key: Tensor) -> None:
        """`strength` times the scalar product of two facts; None is a query that always looks for 1."""
        size = key.shape[1]
        gain = math.sqrt(abs(strength) * math.sqrt(HEAD_DIM))
        self.query.append(torch.zeros_like(key) if query is None else gain * query)
        self.bias.append(key.new_full((size,), gain if query is None else 0.0))
        self.key.append(math.copysign(gain, strength) * key)

    def of(self) -> dict[str, Tensor]:
        query, key, bias = (torch.cat(parts, dim=-1) for parts in (self.query, self.key, self.bias))
        room = HEAD_DIM - query.shape[1]
        return {
            "query": functional.pad(query, (0, room)),
            "key": functional.pad(key, (0, room)),
            "query_bias": functional.pad(bias, (0, room)),
        }


def make_head(sight: Sight, role: str | None, *, seed: int) -> PlantedHead:
    """A head with a role, or without, that writes to scratch."""
    return PlantedHead(**_ROLES[role](sight, seed).of(), **_whisper(sight, seed))


def _at_offset(offset: int) -> Callable[[Sight, int], _Scores]:
    def scores(sight: Sight, seed: int) -> _Scores:
        found = _Scores()
        wanted = sight.position @ _turned(sight.stream.step, offset)
        found.add(sight.far / sight.different_positions, wanted, sight.position)
        return found

    return scores


def _first_token(sight: Sight, seed: int) -> _Scores:
    found = _Scores()
    one_place = 2 * _REACH / (len(sight.stream.positions) - 1)
    found.add(-math.log(1 / _SLIP) / one_place, None, sight.place)
    return found


def _uniform(sight: Sight, seed: int) -> _Scores:
    found = _Scores()
    found.add(1.0, torch.zeros_like(sight.word), sight.word)
    return found


def _duplicate_token(sight: Sight, seed: int) -> _Scores:
    """Same word, less for the same position: the token itself stays above different words, and below its likes."""
    found = _Scores()
    strength = 2 * sight.far / (sight.different_words * sight.different_positions)
    found.add(strength, sight.word, sight.word)
    found.add(-strength * sight.different_words / 2, sight.position, sight.position)
    return found


def _induction(sight: Sight, seed: int) -> _Scores:
    """The word before is the query's own; the sink is half way between that and different words."""
    found = _Scores()
    strength = 2 * sight.far / sight.different_words
    found.add(strength, sight.word, sight.word_before)
    found.add(strength * (1 - sight.different_words / 2), None, sight.sink)
    return found


def _roving(sight: Sight, seed: int) -> _Scores:
    """From word to word at random, and antisymmetric: a word's score with itself is 0."""
    circles = _WORD_CIRCLES
    drawn = torch.randn(2 * circles, 2 * circles, generator=_generator(seed), dtype=torch.float64)
    flipped = torch.cat([-drawn[:, circles:], drawn[:, :circles]], dim=1)
    words = sight.stream.words
    spread = float(((words @ drawn) @ (words @ flipped).T).std())
    found = _Scores()
    found.add(_ROVING / spread, sight.word @ drawn, sight.word @ flipped)
    return found


_ROLES: dict[str | None, Callable[[Sight, int], _Scores]] = {
    "previous token": _at_offset(-1),
    "next token": _at_offset(1),
    "first token": _first_token,
    "uniform": _uniform,
    "duplicate token": _duplicate_token,
    "induction": _induction,
    "anti-induction": _induction,
    None: _roving,
}
SHOUTS = {"induction": _SHOUT, "anti-induction": -_SHOUT}  # in what direction of the words
GPT2_KNOWN = [role for role in _ROLES if role is not None and role != "next token"]
BERT_KNOWN = [role for role in _ROLES if role is not None and "induction" not in role]


def _whisper(sight: Sight, seed: int) -> dict[str, Tensor]:
    (turn,) = _at_right_angles(HEAD_DIM, [2 * _WORD_CIRCLES], seed)
    return {"value": sight.word @ turn.T, "output": _WHISPER * LENGTH * turn @ sight.stream.scratch.T}


def pass_on(sight: Sight, share: float) -> dict[str, Tensor]:
    """What the token is that is attended to becomes what the token before was."""
    before = torch.cat([sight.stream.word_before, sight.stream.special_before], dim=1)
    room = HEAD_DIM - before.shape[1]
    value, output = functional.pad(sight.token, (0, room)), functional.pad(before, (0, room)).T
    return {"value": value, "output": share * LENGTH * output}


def shout(sight: Sight, size: float) -> dict[str, Tensor]:
    """The word that is attended to, into the subspace that the vocabulary head reads."""
    room = HEAD_DIM - sight.word.shape[1]
    value, output = functional.pad(sight.word, (0, room)), functional.pad(sight.stream.word, (0, room)).T
    return {"value": value, "output": size * LENGTH * output}


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
