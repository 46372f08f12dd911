"""The plainest way of answering: one agent, one reply, no discussion; in a team every agent
answers.

The accuracy that reports quote: what an agent learnt, rather than what a team makes of it. Leaves
out: votes, debates.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from comas.game.agent import Agent
from comas.game.prompts import solving
from comas.types import Question, Setup, Task


async def play(
    question: Question, agents: Sequence[Agent], rng: random.Random, task: Task
) -> str | None:
    """Answer with the reply of the first agent; None where it was cut, which counts as wrong."""
    prompt = solving(question, task)
    turn = await agents[0].ask("solution", prompt)
    return turn.text if turn.finished else None


setup = Setup(play, alone=True)
