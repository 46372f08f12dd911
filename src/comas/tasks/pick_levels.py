"""Puzzles of `pick` at several levels in one task: three of four, of five and of six numbers.

The more numbers are offered, the more choices there are of which one fits. Every split has as many
questions of each level, whose name is their kind: `three of 4`. Everything else is as in `pick`
(work is hidden, splits are cut by sets of numbers). For curricula, such as the method `sec`. Leaves
out: the form `two`.
"""

from __future__ import annotations

import random
from dataclasses import replace

from comas.questions.sources import check_asked
from comas.tasks import pick
from comas.types import Question

OFFERED = (4, 5, 6)
"""How many numbers each level offers."""


def load(
    split: str, path: str | None = None, limit: int | None = None, seed: int = 0
) -> list[Question]:
    """All questions of a split in an order drawn by `seed`, at most `limit`; `path` must be None:
    the puzzles are generated.
    """
    check_asked("pick_levels", split, pick.SHARES, path)
    fewest = len(pick.load(split, seed=seed, count=OFFERED[0]))
    questions: list[Question] = []
    for count in OFFERED:
        of_level = pick.load(split, limit=fewest, seed=seed, count=count)
        questions += [replace(question, kind=f"three of {count}") for question in of_level]
    random.Random(f"pick_levels {split} {seed}").shuffle(questions)
    return questions[:limit]


def pose(text: str) -> Question | None:
    """The puzzle of four numbers that a text proposes, as in `pick`."""
    posed = pick.pose(text)
    return None if posed is None else replace(posed, kind="three of 4")


task = replace(
    pick.task,
    name="pick_levels",
    load=load,
    pose=pose,
)
"""Work, wording and `max_tokens` are those of `pick`."""
