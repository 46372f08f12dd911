"""Which kinds of questions a step asks: a bandit whose arms are the kinds.

The draw and update of SEC (arXiv 2505.14970), for any method that remembers: a value per kind
follows what was gained from it, and kinds are drawn by the softmax of their values. Leaves out:
what a gain is (`methods.sec` takes the mean absolute advantage).
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence

from comas.types import Question

Values = dict[str, float]
"""Kind -> its value, in units of gains."""


def first_values(questions: Sequence[Question]) -> Values:
    """A value of 0 for every kind that there is."""
    return dict.fromkeys(sorted({question.kind for question in questions}), 0.0)


def drawn(
    values: Mapping[str, float],
    questions: Sequence[Question],
    count: int,
    rng: random.Random,
    temperature: float,
) -> list[Question]:
    """Draw `count` different questions: for each a kind with probability proportional to
    exp(value / temperature), among kinds that have questions left, then one of that kind,
    uniformly.
    """
    left: dict[str, list[Question]] = {}
    for question in questions:
        left.setdefault(question.kind, []).append(question)
    for kind in sorted(left):
        rng.shuffle(left[kind])
    chosen: list[Question] = []
    while left and len(chosen) < count:
        chances = softmax(values, left, temperature)
        (kind,) = rng.choices(list(chances), list(chances.values()))
        chosen.append(left[kind].pop())
        if not left[kind]:
            del left[kind]
    return chosen


def softmax(
    values: Mapping[str, float], kinds: Collection[str], temperature: float
) -> dict[str, float]:
    """Kind -> its probability among these; a kind without a value has 0."""
    known = {kind: values.get(kind, 0.0) for kind in sorted(kinds)}
    highest = max(known.values())
    weights = {kind: math.exp((value - highest) / temperature) for kind, value in known.items()}
    total = math.fsum(weights.values())
    return {kind: weight / total for kind, weight in weights.items()}


def moved(values: Mapping[str, float], gains: Mapping[str, Sequence[float]], rate: float) -> Values:
    """Values after a step: those of kinds that were asked move by `rate` towards their mean gain,
    TD(0) without a next state.
    """
    found = dict(values)
    for kind, of_kind in gains.items():
        if of_kind:
            mean = math.fsum(of_kind) / len(of_kind)
            before = found.get(kind, 0.0)
            found[kind] = before + rate * (mean - before)
    return found
