"""Self-consistency (arXiv 2203.11171): independent answers, and the one that most agree on.

The agents answer in turn until there are `votes` answers: copies of one model are the published
method, a team votes as a team. Among equals the earliest answer wins. Leaves out: weights,
confidence.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from comas.game.agent import Agent, takers
from comas.game.votes import decide, in_turn, solved
from comas.types import Count, Question, Setup, Task


async def play(
    question: Question, agents: Sequence[Agent], rng: random.Random, task: Task, *, votes: Count = 8
) -> str | None:
    """Answer with the first of the majority's replies; None where none of them can be read."""
    able = takers(agents, "solution")
    turns = await solved(question, in_turn(able, votes), task)
    return await decide(question, turns, task)


setup = Setup(play)
