"""Arithmetic of settlements: baselines that are facts of the game, and how new a text is.

Pure, and whatever the order of what is summed: `math.fsum`. Leaves out: whom to pay.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

Grams = Counter[tuple[str, ...]]
"""Runs of words -> how often each is there."""


def mean(values: Sequence[float | None]) -> float | None:
    """The mean of the values that are there; None where none is."""
    there = [value for value in values if value is not None]
    return math.fsum(there) / len(there) if there else None


def standardised(values: Sequence[float], scale: bool = True) -> list[float]:
    """Values minus their mean, over their standard deviation; all 0 where they are equal.

    Equation 3 of arXiv 2402.03300; `scale = False` leaves the division out.
    """
    if not values or max(values) == min(values):
        return [0.0] * len(values)
    centre = math.fsum(values) / len(values)
    variance = math.fsum((value - centre) ** 2 for value in values) / len(values)
    divisor = math.sqrt(variance) if scale else 1.0
    return [(value - centre) / divisor for value in values]


def grams(text: str, longest: int = 3) -> Grams:
    """Count the runs of up to `longest` words of a text."""
    words = text.split()
    counts: Grams = Counter()
    for length in range(1, longest + 1):
        starts = range(len(words) - length + 1)
        counts.update(tuple(words[start : start + length]) for start in starts)
    return counts


def similarity(one: Grams, other: Grams) -> float:
    """The cosine of two counts, from 0 to 1; 0 where one is empty."""
    squares = _square(one) * _square(other)
    if squares == 0:
        return 0.0
    return sum(count * other[gram] for gram, count in one.items()) / math.sqrt(squares)


def _square(counts: Grams) -> int:
    return sum(count * count for count in counts.values())
