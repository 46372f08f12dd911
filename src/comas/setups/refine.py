"""Verify, then refine, then vote: chains of answers that their authors check and mend.

After Deep Self-Evolving Reasoning (arXiv 2510.17498): weak checks and repairs are enough where they
mend more often than they spoil, since a vote over `chains` independent chains amplifies the
difference. The agents begin the chains in turn. A chain is an answer, and up to `rounds` times a
check and another answer by the same agent; with `always` it goes on also where the check finds
nothing wrong, as in the paper, whose chains end by their length alone. The majority of the chains'
last answers decides, the earliest among equals. Leaves out: chains that read each other (`debate`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from comas.game.agent import Agent, takers, together
from comas.game.votes import decide, in_turn
from comas.setups.autogen import WORDING as WORDING
from comas.setups.autogen import talk
from comas.types import Count, Question, Role, Setup, Task, Whole


async def play(
    question: Question,
    agents: Sequence[Agent],
    rng: random.Random,
    task: Task,
    *,
    chains: Count = 4,
    rounds: Whole = 2,
    always: bool = False,
) -> str | None:
    """Answer with the first of the chains' last answers that give the majority's answer."""
    able = takers(agents, "solution")
    turns = await together(
        talk(question, [agent] * (1 + 2 * rounds), task, always=always)
        for agent in in_turn(able, chains)
    )
    return await decide(question, turns, task)


setup = Setup(play, roles={"solution": Role("answer"), "revision": Role("answer"), "proxy": Role()})
