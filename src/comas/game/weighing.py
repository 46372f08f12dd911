"""Beliefs of a model: log-probs of given replies, as shares, expectations and a drawn word.

What a small model says of work is often the same whatever the work; how probable it finds the words
tells more. `Agent.weigh` records a turn with `info["choices"]` and `info["weights"]`. Leaves out:
computing log-probs (engines).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from comas.types import HostFailure, Turn, UserMistake


def check_choices(choices: Sequence[str], turn: str) -> None:
    """Refuse choices that cannot be told apart: fewer than two, an empty or a repeated one, and a
    set, whose order differs from process to process.
    """
    listed = isinstance(choices, Sequence) and not isinstance(choices, str | bytes)
    if not listed or len(choices) < 2:
        raise UserMistake(
            f"turn {turn}: weigh was given the choices {choices!r}: give a list of two or more"
        )
    for choice in choices:
        if not isinstance(choice, str):
            raise UserMistake(f"turn {turn}: choice {choice!r} to be weighed is no text: write str")
        if any("\ud800" <= sign <= "\udfff" for sign in choice):
            raise UserMistake(
                f"turn {turn}: choice {choice!r} to be weighed has half a character (a lone"
                " surrogate), which no model can say: leave it out"
            )
    for index, choice in enumerate(choices):
        if not choice.strip():
            raise UserMistake(f"turn {turn}: choice {index} to be weighed is empty: leave it out")
        if choice in choices[:index]:
            raise UserMistake(
                f"turn {turn}: choice {choice!r} is to be weighed twice: once will do"
            )


def check_tokens(choices: Sequence[str], ids: Sequence[Sequence[int]], turn: str) -> None:
    """Refuse choices of which one begins another one, as tokens: its weight would hold the other's.

    `ids` are the tokens of each choice.
    """
    spelt = [tuple(tokens) for tokens in ids]
    for choice, tokens in zip(choices, spelt, strict=True):
        if not tokens:
            raise UserMistake(
                f"turn {turn}: choice {choice!r} has no token for this model: reword it"
            )
        for other, longer in zip(choices, spelt, strict=True):
            if choice is not other and longer == tokens:
                raise UserMistake(
                    f"turn {turn}: choices {choice!r} and {other!r} are the same tokens to this"
                    " model, which may not know these words: reword them, or set options.score=text"
                )
            if choice is not other and longer[: len(tokens)] == tokens:
                raise UserMistake(
                    f"turn {turn}: choice {choice!r} is the beginning of {other!r} in this model's"
                    " tokens, so that its weight would hold the other's: reword one of them"
                )


def shares_of(weights: Sequence[float]) -> list[float]:
    """Log-probs of choices -> their shares, which sum to 1."""
    highest = max(weights)
    if not math.isfinite(highest):
        raise HostFailure(f"none of the choices has a finite log-prob: {list(weights)}")
    raw = [math.exp(weight - highest) for weight in weights]
    total = math.fsum(raw)
    return [share / total for share in raw]


def said_of(weights: Sequence[float], temperature: float, seed: int) -> tuple[int, float]:
    """The number of the choice that a weighed turn says, and its margin as probability mass.

    Drawn in proportion to the shares by `seed` (63 bits: a point of [0, 1) by itself), with the
    distance of that point from the edge of the choice's interval; at temperature 0 the likeliest,
    the first among equals, with its distance from the next one.
    """
    shares = shares_of(weights)
    if temperature == 0:
        best = max(range(len(shares)), key=shares.__getitem__)
        others = [share for number, share in enumerate(shares) if number != best]
        return best, shares[best] - max(others, default=0.0)
    point = seed / 2**63
    edges = [0.0, *itertools.accumulate(shares)]
    last = len(shares) - 1
    number = next((n for n in range(last) if point < edges[n + 1]), last)
    return number, max(0.0, min(edges[number + 1] - point, point - edges[number]))


def is_weighing(turn: Turn) -> bool:
    """Whether a turn chose among given replies (`Agent.weigh`), so that none of its tokens was
    sampled.
    """
    return "weights" in turn.info


def is_sampled(turn: Turn) -> bool:
    """Whether its policy drew all tokens of a turn: they were neither chosen nor given to it
    (`Agent.tell`).
    """
    return not is_weighing(turn) and "told" not in turn.info


def shares(turn: Turn) -> list[float]:
    """The shares of a weighed turn's choices, in their order."""
    return shares_of(turn.info["weights"])


def expected(turn: Turn, values: Sequence[float]) -> float:
    """The expectation of `values`, one per choice, under a weighed turn's shares."""
    return math.fsum(s * v for s, v in zip(shares(turn), values, strict=True))
