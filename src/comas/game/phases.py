"""Two roles that learn in turn, as in R-Zero (arXiv 2508.05004): for some steps questions are
proposed, then those that were found good are solved.

A method remembers the `phase` (`propose` or `solve`), how many of its steps are `done`, the
`labels` of questions that were found in it, and the `pool` of those that are solved, with theirs.
Leaves out: what a good question is, and what a label is.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from comas.game.posing import posed_again
from comas.types import Question, State, Task


def start(questions: Sequence[Question], task: Task) -> State:
    """The first phase is the proposer's."""
    return proposing_phase()


def proposing_phase() -> State:
    """The record at the beginning of the proposer's phase."""
    return {"phase": "propose", "done": 0, "labels": {}, "pool": {}}


def from_pool(state: State, count: int, rng: random.Random, task: Task) -> list[Question]:
    """Questions to be solved, up to `count`."""
    pool = sorted(state["pool"])
    return posed_again(rng.sample(pool, min(count, len(pool))), task)


def after_step(
    state: State, labels: Mapping[str, Any], proposing: int, solving: int, least: int
) -> State:
    """Count a step of a phase, add the questions that it found with their labels, and change
    phases where it was the last.

    The proposer goes on until there are `least` questions: a solver that learns from a few of them
    forgets the others.
    """
    done = state["done"] + 1
    if state["phase"] == "solve":
        return proposing_phase() if done >= solving else {**state, "done": done}
    found = {**state["labels"], **labels}
    if done >= proposing and len(found) >= least:
        return {"phase": "solve", "done": 0, "labels": {}, "pool": found}
    return {**state, "done": done, "labels": found}
