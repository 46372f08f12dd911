"""A pool of questions that agents posed and that were accepted: later steps refer to them and solve
them again.

A method remembers it as `state["pool"]`, a list of texts, the oldest first. Leaves out: which
questions are accepted.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from comas.game.posing import posed_again, unwritten
from comas.types import Question, Share, State, Task, Whole


def start(questions: Sequence[Question], task: Task, *, seeds: Whole = 0) -> State:
    """A pool of `seeds` training questions; none is the setting without data."""
    return {"pool": [question.prompt for question in questions[:seeds]]}


def draw(
    state: State,
    questions: Sequence[Question],
    count: int,
    rng: random.Random,
    task: Task,
    *,
    refer: Share = 0.5,
    solve: Share = 0.5,
) -> list[Question]:
    """A share `solve` of the step from the pool, as far as it goes; the rest are proposals, of
    which a share `refer` sees an accepted question.
    """
    pool = state["pool"]
    most = int(solve * count)
    again = posed_again(rng.sample(pool, min(len(pool), most)), task)
    examples: list[str] = []
    for _ in range(count - len(again)):
        refers = bool(pool) and rng.random() < refer
        examples.append(rng.choice(pool) if refers else "")
    return again + unwritten(examples)


def with_newest(pool: Sequence[str], more: Iterable[str], most: int) -> list[str]:
    """A pool with more texts, each once; the oldest leave it where there are too many."""
    distinct = dict.fromkeys([*pool, *more])
    return list(distinct)[-most:]
