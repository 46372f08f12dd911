"""RLVR: the true verifier rewards, the supervised bound that label-free methods are measured
against.

Each question is answered `votes` times by one agent; a right answer is rewarded with 1, a wrong one
0, and one whose verifier broke down nothing. GRPO (arXiv 2402.03300) compares them with one
another. Leaves out: format rewards.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from comas.game.agent import Agent, choose
from comas.game.votes import solved
from comas.objective.credit import grpo
from comas.objective.losses import clipped
from comas.types import Count, Episode, Method, Question, Role, Task


async def play(
    question: Question, agents: Sequence[Agent], rng: random.Random, task: Task, *, votes: Count = 8
) -> str | None:
    """Have one agent, drawn uniformly, solve it `votes` times; answer with the first."""
    agent = choose(agents, rng, "solution")
    turns = await solved(question, [agent] * votes, task)
    return turns[0].text


def settle(episodes: Sequence[Episode], task: Task) -> None:
    """Give 1 for a right answer and 0 for a wrong or unfinished one.

    Where the verifier itself failed, the turn is not rewarded.
    """
    for episode in episodes:
        for turn in episode.turns:
            verdict = task.verify(episode.question, turn.text) if turn.finished else "wrong"
            turn.reward = {"right": 1.0, "wrong": 0.0, "failed": None}[verdict]
            turn.group = f"{episode.id}/{turn.policy}"


ROLES = {
    "solution": Role("answer", reward="1 if the verifier calls it right, 0 if wrong"),
}
method = Method(
    play,
    settle,
    grpo,
    clipped,
    kl={"solution": 0.1},
    roles=ROLES,
    supervised=True,
    presets={"stable": {"questions": 48}},
)
