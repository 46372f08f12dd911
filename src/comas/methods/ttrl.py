"""TTRL (arXiv 2504.16084): the majority answer of a question's samples is its label.

The team answers a question `votes` times, its agents in turn and nobody seeing another's work; a
readable answer that agrees with the majority of all of them is rewarded with 1, any other 0. Ties
and single votes are no majority: nobody is rewarded, where the paper takes the first of equals. No
judges. Leaves out: weighting of votes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from comas.game.agent import Agent, takers
from comas.game.votes import agrees, clear_majority, decide, in_turn, solved
from comas.objective.credit import grpo
from comas.objective.losses import clipped
from comas.types import Count, Episode, Method, Question, Role, Task


async def play(
    question: Question,
    agents: Sequence[Agent],
    rng: random.Random,
    task: Task,
    *,
    votes: Count = 16,
) -> str | None:
    """Have the agents of a shuffled team solve it in turn, `votes` times; the majority answers."""
    able = takers(agents, "solution")
    rng.shuffle(able)
    turns = await solved(question, in_turn(able, votes), task)
    return await decide(question, turns, task)


def settle(episodes: Sequence[Episode], task: Task) -> None:
    """Give 1 for the majority's answer and 0 for any other; where there is none, all get 0."""
    for episode in episodes:
        answers = [turn.info["answer"] for turn in episode.turns]
        best = clear_majority(answers, task)
        for turn in episode.turns:
            turn.reward = float(best is not None and agrees(turn, best, task))
            turn.group = f"{episode.id}/{turn.policy}"


ROLES = {
    "solution": Role("answer", reward="1 for the answer of the majority, 0 for any other"),
}
method = Method(
    play,
    settle,
    grpo,
    clipped,
    kl={"solution": 0.1},
    roles=ROLES,
    presets={"stable": {"questions": 24}},
)
