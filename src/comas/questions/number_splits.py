"""Splits of generated questions, by their numbers: disjoint by construction, whatever is asked.

Leaves out: splits of questions that are read from files (`sources.cut`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from comas.questions.sources import place


def split_of_numbers(task: str, numbers: Sequence[int], shares: Mapping[str, float]) -> str:
    """The split of a task that numbers belong to, whatever their order.

    `shares` has the share of each split, in the order in which the hash is cut; what rounding
    leaves over is the last one's.
    """
    written = " ".join(map(str, sorted(numbers)))
    rest = place(task, written)
    for name, share in shares.items():
        if rest < share:
            return name
        rest -= share
    return list(shares)[-1]
