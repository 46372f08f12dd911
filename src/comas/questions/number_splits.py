"""Splits of generated questions, by their numbers: disjoint by construction, whatever is asked.

Leaves out: splits of questions that are read from files (`sources.cut`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from comas.questions.sources import split_of_text


def split_of_numbers(task: str, numbers: Sequence[int], shares: Mapping[str, float]) -> str:
    """The split of a task that numbers belong to, whatever their order.

    `shares` has the share of each split, in the order in which the hash is cut.
    """
    written = " ".join(map(str, sorted(numbers)))
    return split_of_text(task, written, shares)
