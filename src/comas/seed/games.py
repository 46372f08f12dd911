"""What the seed model of games is taught: legal moves at random, in `kuhn` and `tictactoe`.

Demonstrations are positions of games between players that move at random, each with one of its
legal moves, drawn uniformly: the model learns the form and the rules, never which move is good.
Words of its own: cards, marks, cells. Leaves out: any payoff.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from comas.game.moves import at_random
from comas.seed.course import Course
from comas.tasks import kuhn, tictactoe
from comas.types import Question, Task

PLAYED = 1500
"""Games of each kind that the positions are taken from."""
TASKS = {"kuhn": kuhn.task, "tictactoe": tictactoe.task}
GAMES = Course(
    seed=10,
    batch={"kuhn": 16, "tictactoe": 96},
    steps=2000,
    world="games",
    words=("kuhn", *kuhn.CARDS, *kuhn.MOVES, "board", "x", "o", *tictactoe.CELLS),
)
"""Game -> demonstrations per step."""


def questions(course: Course) -> list[Question]:
    """Positions of `PLAYED` games of each kind between players that move at random; their legal
    moves are in `meta`.
    """
    rng = random.Random(f"games {course.seed}")
    positions: list[Question] = []
    for game, task in TASKS.items():
        for start in task.load("train", copies=PLAYED, limit=PLAYED):
            positions += asyncio.run(_positions(game, start, rng))
    return positions


async def _positions(game: str, start: Question, rng: random.Random) -> list[Question]:
    """The positions of one game between players that move at random."""
    positions: list[Question] = []

    async def move(seat: int, view: str, legal: Sequence[str]) -> str:
        name = f"{start.id}-{len(positions)}"
        facts = {"legal": list(legal)}
        positions.append(Question(id=name, prompt=view, kind=game, meta=facts))
        return at_random(view, legal, rng)

    rules = TASKS[game].rules
    assert rules is not None
    await rules(start, move, rng)
    return positions


def demonstration(
    rng: random.Random, role: str, positions: Sequence[Question], course: Course
) -> tuple[str, str]:
    """One (prompt, move) of the game `role`; the move is any legal one."""
    position = rng.choice(positions)
    while position.kind != role:
        position = rng.choice(positions)
    return prompt_of(position), rng.choice(position.meta["legal"])


def prompt_of(position: Question) -> str:
    """A position as the seed model is asked."""
    template = TASKS[position.kind].wording["move_seed"]
    return template.replace("{question}", position.prompt)
